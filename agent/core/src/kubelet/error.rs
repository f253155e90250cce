//! Why a configuration cannot be used: the fault, its layer, and its line.
//!
//! Leaves to others: how many problems are kept (`layers`), the consequences (`config`).

use crate::kubelet::origin::Origin;
use core::fmt;

/// The step at which a configuration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not YAML or JSON, not a KubeletConfiguration, or a field that is unknown, repeated or of the wrong
    /// type.
    Parse,
    /// Every layer is readable; a value, or a combination of values, is wrong.
    Validate,
}

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The layer that wrote it.
    pub origin: Origin,
    /// Path of the field; empty for the text as a whole.
    pub field: String,
    /// Line in the layer's text, from 1; 0 if it has none.
    pub line: u32,
    /// Column in the layer's text, from 1; 0 if unknown.
    pub column: u32,
    /// The value found and the value expected.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.origin, self.message)?;
        match self.line {
            0 => Ok(()),
            line => write!(formatter, " (line {line})"),
        }
    }
}

/// Why a configuration cannot be used. Has at least one problem and at most
/// [`MAX_PROBLEMS`](super::layers::MAX_PROBLEMS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The step that failed.
    pub kind: ErrorKind,
    /// The faults, in the order of layers and lines.
    pub problems: Vec<Problem>,
    /// How many more faults there were.
    pub omitted: usize,
}

impl ConfigError {
    /// All problems, one a line.
    #[must_use]
    pub fn report(&self) -> String {
        let mut lines: Vec<String> = self.problems.iter().map(Problem::to_string).collect();
        if self.omitted > 0 {
            lines.push(format!("and {} more", self.omitted));
        }
        lines.join("\n")
    }

    /// The problems that [`fmt::Display`] only counts: all but the first, one a line.
    #[must_use]
    pub fn further(&self) -> Option<String> {
        let problems = self.problems.get(1..).unwrap_or_default().to_vec();
        let further = Self { problems, ..self.clone() };
        (!further.problems.is_empty() || further.omitted > 0).then(|| further.report())
    }
}

/// One line: the first problem, and how many more there are.
impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(problem) = self.problems.first() {
            problem.fmt(formatter)?;
        }
        match self.problems.len().saturating_sub(1).saturating_add(self.omitted) {
            0 => Ok(()),
            more => write!(formatter, " (and {more} more)"),
        }
    }
}

impl std::error::Error for ConfigError {}
