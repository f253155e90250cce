//! Why a configuration cannot be used: what is wrong, in which layer, at which line.
//!
//! Leaves to others: how many problems are kept (`layers`), what follows from them (`config`).

use crate::kubelet::origin::Origin;
use core::fmt;

/// At which step a configuration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not YAML or JSON, not a KubeletConfiguration, or a field that is unknown, repeated or of the wrong type.
    Parse,
    /// Every layer can be read; a value, or a combination of values, is wrong.
    Validate,
}

/// One thing wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The layer that wrote it.
    pub origin: Origin,
    /// Path of the field; empty if the text as a whole is meant.
    pub field: String,
    /// Line in the layer's text, from 1; 0 if it has none.
    pub line: u32,
    /// Column in the layer's text, from 1; 0 if there is none.
    pub column: u32,
    /// What was found and what was expected.
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

/// Why a configuration cannot be used. Has at least one problem and at most [`MAX_PROBLEMS`](super::layers::MAX_PROBLEMS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The step that failed.
    pub kind: ErrorKind,
    /// What was found, in the order of layers and lines.
    pub problems: Vec<Problem>,
    /// How many more there were.
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

    /// What [`fmt::Display`] only counts: all problems but the first, one a line.
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
