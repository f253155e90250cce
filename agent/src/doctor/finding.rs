//! The findings of a check of `kedge doctor`, and its time limit.

use serde::Serialize;
use std::time::Duration;

/// The remedy for a disk that does not answer.
pub(crate) const HANGS: &str = "nothing can be recorded until the disk answers: see dmesg";

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Level {
    Ok,
    /// Works, or could not be checked; a person should look at it.
    Warn,
    /// Keeps the node from working.
    Fail,
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) level: Level,
    pub(crate) found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), advice: None }
    }

    pub(crate) fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    pub(crate) fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

/// The value, unless it takes too long.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = crate::queue::sync_channel(1);
    std::thread::Builder::new()
        .name("check".into())
        .spawn(move || {
            let _ = done.send(work());
        })
        .ok()?;
    result.recv_timeout(limit).ok()
}
