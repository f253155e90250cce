//! The types that every part of core gets: the time, the answer to a request, the level of a log line.
//!
//! Owns these three types and nothing else, so that a part need not depend on the closed lists in `event`.

use kedge_api::Timestamp;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The time that core gets: running time since some fixed start, and wall time for stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic running time.
    pub mono: Duration,
    /// Wall time; never compared, except for how long a pod was active before this process (`pods::failing`).
    pub wall: Timestamp,
}

/// Longest wait that a server may ask for: a wrong or hostile answer must not end the heartbeat for a year.
pub(crate) const LONGEST_PATIENCE: Duration = Duration::from_secs(300);

/// Level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An operator should look.
    Warn,
    /// Worth knowing.
    Info,
    /// For debugging.
    Debug,
}

/// An API server's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Done; with the object, if one was requested.
    Accepted(Option<Value>),
    /// The server refuses; with its Status.
    Refused {
        status: u16,
        reason: String,
        message: String,
        /// When to try again, if the server sent it.
        retry_after: Option<Duration>,
    },
    /// No valid answer: unreachable, untrusted, late, garbled.
    Failed(String),
}

impl Answer {
    /// Whether the server will refuse the same request again: it lacks a right, or it is invalid or too
    /// large.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 403 | 405 | 413 | 415 | 422, .. })
    }

    /// Whether an Event need not be sent again: the server has it, or will never take it.
    pub(crate) fn settles_an_event(&self) -> bool {
        match self {
            Self::Accepted(_) => true,
            Self::Refused { status, .. } => (400..500).contains(status) && !matches!(status, 401 | 429),
            Self::Failed(_) => false,
        }
    }

    /// Status and reason of a refusal: its kind, whatever its message contains.
    pub(crate) fn refusal(&self) -> Option<(u16, String)> {
        match self {
            Self::Refused { status, reason, .. } => Some((*status, reason.clone())),
            Self::Accepted(_) | Self::Failed(_) => None,
        }
    }

    /// Our hub knows two machines of this name, and this is not the first.
    pub(crate) fn is_about_a_duplicate(&self) -> bool {
        matches!(self, Self::Refused { status: 409, reason, .. } if reason == kedge_api::DUPLICATE)
    }

    /// Verified TLS and any answer but 401.
    pub fn is_contact(&self) -> bool {
        !matches!(self, Self::Failed(_) | Self::Refused { status: 401, .. })
    }

    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after: Some(wait), .. } => (*wait).min(LONGEST_PATIENCE),
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(_) => f.write_str("accepted"),
            Self::Refused { status, message, .. } => write!(f, "the API server answered {status}: {message}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}
