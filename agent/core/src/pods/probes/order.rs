//! The order of a probe, and its outcome: the contract with its performer.
//!
//! Always holds: an order is complete, with address and port; the performer needs no other data of the pod.
//! Leaves to others: when a probe runs and the meaning of its result (`probes`), performing it (the crate
//! `kedge`).

use crate::pods::keys::ContainerKey;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The three probes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// The probe's name in Events.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// One probe of one run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeKey {
    pub container: ContainerKey,
    pub kind: ProbeKind,
}

/// A probe to be run once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOrder {
    pub key: ProbeKey,
    pub check: Check,
    /// Counted from its start; a probe that takes longer has failed.
    pub timeout: Duration,
}

/// The action of a probe or a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Runs a program in the container, with the settings of its first process.
    Exec { command: Vec<String> },
    /// Sends a GET request. Certificates are not verified.
    Http(HttpCheck),
    /// Opens a connection.
    Tcp { host: String, port: u16 },
    /// Calls `grpc.health.v1.Health/Check`, without TLS.
    Grpc { host: String, port: u16, service: String },
}

/// A GET request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCheck {
    pub is_https: bool,
    pub host: String,
    pub port: u16,
    /// With its query; begins with `/`.
    pub path: String,
    /// A value contains no control characters.
    pub headers: Vec<(String, String)>,
}

/// The outcome of a run of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeOutcome {
    Passed,
    /// It passed, but with a warning for people.
    Warned(String),
    Failed(String),
    /// The probe could not be run. This shows nothing about the container, and does not count.
    Errored(String),
}

/// The known health of a run, which is remembered for the next agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// Its startup probe has passed.
    pub is_started: bool,
    /// Its readiness probe has passed, and has not failed since.
    pub is_ready: bool,
}
