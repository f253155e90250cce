//! Why a request, or the way to a server, failed.
//!
//! Owns the errors of `net` and their words. Leaves to others: the reaction to an error (the caller, by
//! `is_contact`).

use crate::net::kubeconfig::KubeconfigError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use std::{error, fmt};

/// Why a request brought no useful answer, classified by what happens next. Every variant names the request.
#[derive(Clone, Debug, PartialEq)]
pub enum NetError {
    /// No answer: no address, no connection, no time, TLS refused by the server. Try again, later.
    Unreachable {
        request: String,
        /// The failed step, with host and address.
        why: String,
    },
    /// The server's certificate does not verify. Try again, later: clocks get set and certificates
    /// renewed; but an operator should look.
    Untrusted {
        request: String,
        /// The fault of the certificate.
        why: String,
    },
    /// The server does not know us (401). Credentials must change before this can work.
    Unauthorized { request: String, message: String },
    /// The server refused the request.
    Refused {
        request: String,
        /// HTTP status, 300 and above but not 401.
        status: u16,
        /// The `Status` object's reason, such as `NotFound`, `Conflict`, `AlreadyExists`; empty if it has
        /// none.
        reason: String,
        /// The `Status` object's message, or the beginning of the body.
        message: String,
        /// How long the server asks us to wait.
        retry_after: Option<Duration>,
    },
    /// The answer exceeds the size limit. Ask for less.
    TooLarge { request: String, status: u16, limit: usize },
    /// The answer makes no sense: not HTTP, cut off, not JSON. Try again, later.
    Garbled {
        request: String,
        /// HTTP status, if one was read.
        status: Option<u16>,
        why: String,
    },
    /// Nothing was sent: the request or the credentials cannot be expressed in HTTP.
    Unsendable { request: String, why: String },
    /// [`Cancel`] ended it.
    Cancelled,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { request, why } | Self::Garbled { request, why, .. } => {
                write!(f, "{request}: {why}")
            }
            Self::TooLarge { request, limit, .. } => {
                write!(f, "{request}: the answer has more than {limit} bytes")
            }
            Self::Untrusted { request, why } => {
                write!(f, "{request}: {why}, expected one that our roots vouch for")
            }
            Self::Unauthorized { request, message } => {
                write!(f, "{request}: the server does not accept our credentials (401): {message}")
            }
            Self::Refused { request, status, reason, message, .. } => {
                let separator = if reason.is_empty() { "" } else { " " };
                write!(f, "{request}: refused ({status}{separator}{reason}): {message}")
            }
            Self::Unsendable { request, why } => write!(f, "{request}: not sent: {why}"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl error::Error for NetError {}

impl NetError {
    /// The HTTP status, if the server gave one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Unauthorized { .. } => Some(401),
            Self::Refused { status, .. } | Self::TooLarge { status, .. } => Some(*status),
            Self::Garbled { status, .. } => *status,
            _ => None,
        }
    }

    /// Whether the server itself answered, and not with 401.
    #[must_use]
    pub fn is_contact(&self) -> bool {
        self.status().is_some_and(|status| status != 401)
    }
}

/// Why a server cannot be reached at all, until a file or the environment is corrected.
#[derive(Debug)]
pub enum OpenError {
    /// The kubeconfig, or a file that it names.
    Kubeconfig(KubeconfigError),
    /// The certificates or the key cannot be used.
    Identity {
        path: PathBuf,
        /// rustls's reason.
        source: rustls::Error,
    },
    /// The environment's proxy.
    Proxy { message: String },
    /// The system gives no thread to read the files on.
    Thread { source: io::Error },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(error) => error.fmt(f),
            Self::Identity { path, .. } => write!(f, "kubeconfig {}: certificates or key", path.display()),
            Self::Proxy { message } => write!(f, "HTTPS_PROXY: {message}"),
            Self::Thread { .. } => f.write_str("cannot start a thread that reads the kubeconfig"),
        }
    }
}

impl error::Error for OpenError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Kubeconfig(error) => error.source(),
            Self::Identity { source, .. } => Some(source),
            Self::Proxy { .. } => None,
            Self::Thread { source } => Some(source),
        }
    }
}
