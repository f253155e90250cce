//! The policy that a namespace's labels name, and the errors in those labels.
//!
//! Always holds: a label that cannot be parsed counts as `restricted` if it enforces, and is ignored if it
//! warns. Names no kind, so that the rules of namespaces (`kinds`) may use it.

use serde_json::Value;

use super::level::Level;
use crate::field_error::FieldError;

pub(super) const PREFIX: &str = "pod-security.kubernetes.io/";

/// A level as of a version; no version is the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) level: Level,
    pub(super) minor: Option<u32>,
}

/// The levels that a namespace's labels name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: Rule,
    pub(super) audit: Rule,
    pub(super) warn: Rule,
}

impl Rule {
    pub(super) const NONE: Rule = Rule { level: Level::Privileged, minor: None };

    pub(super) fn shown(self) -> String {
        match self.minor {
            None => format!("{}:latest", self.level.name()),
            Some(minor) => format!("{}:v1.{minor}", self.level.name()),
        }
    }
}

/// `latest`, or the minor version of `v1.x`.
pub(super) fn read_version(text: &str) -> Option<Option<u32>> {
    if text == "latest" {
        return Some(None);
    }
    let number = text.strip_prefix("v1.")?;
    let is_plain = number == "0" || !number.starts_with('0');
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    // a number that does not fit is later than any version
    (is_plain && is_number).then(|| Some(number.parse().unwrap_or(u32::MAX)))
}

impl Policy {
    /// The policy of a namespace, and the errors in its labels.
    pub(super) fn of(namespace: &Value) -> (Policy, Vec<FieldError>) {
        let labels = &namespace["metadata"]["labels"];
        let mut errors = Vec::new();
        let mut error = |label: &str, given: &str, why: &str| {
            errors.push(FieldError::invalid(format!("metadata.labels[{PREFIX}{label}]"), given, why));
        };
        let label = |name: &str| labels.get(format!("{PREFIX}{name}")).and_then(Value::as_str);
        let mut rule = |mode: &str, otherwise: Level| {
            let mut rule = Rule::NONE;
            if let Some(given) = label(mode) {
                rule.level = Level::read(given).unwrap_or_else(|| {
                    error(mode, given, "must be one of privileged, baseline, restricted");
                    otherwise
                });
            }
            let version = format!("{mode}-version");
            if let Some(given) = label(&version) {
                rule.minor = read_version(given).unwrap_or_else(|| {
                    error(&version, given, "must be \"latest\" or \"v1.x\"");
                    None
                });
            }
            rule
        };
        let enforce = rule("enforce", Level::Restricted);
        let audit = rule("audit", Level::Privileged);
        let mut warn = rule("warn", Level::Privileged);
        // a namespace that enforces a level also warns by it
        let is_read = label("enforce").is_some_and(|given| Level::read(given).is_some());
        if label("warn").is_none() && is_read && enforce.level > warn.level {
            warn.level = enforce.level;
            if label("warn-version").is_none() {
                warn.minor = enforce.minor;
            }
        }
        (Policy { enforce, audit, warn }, errors)
    }
}

/// The errors that a change adds to a namespace's labels.
pub(crate) fn label_errors(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let errors = Policy::of(new).1;
    let shown = |errors: &[FieldError]| format!("{errors:?}");
    match old.map(|old| Policy::of(old).1) {
        Some(known) if shown(&known) == shown(&errors) => Vec::new(),
        _ => errors,
    }
}
