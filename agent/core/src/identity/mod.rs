//! The node's own credential: how it joins with a token, and renews its certificate.
//!
//! Owns the decisions: `plan` chooses the next step from the files, `actor` its time. Always holds: the files
//! are the only memory, so a power cut between any two steps leaves a state to start from. A key is on the
//! disk before any server sees a request for it, and an existing key is used before another is made. A
//! certificate is used only once it is durable, and older files are removed only then. Nothing here ends a
//! request, a connection or the process. Leaves to others: keys and bytes (the shell; no private key comes
//! here), and which requests use the certificate (`net`).

pub(crate) mod actor;
mod plan;

pub use plan::{Plan, Situation, Source, plan, source};

/// A certificate of this node, as far as its decisions need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The serial number, in hexadecimal digits.
    pub serial: String,
    /// Our hub's count of the certificates that it issued; 0 if it has none.
    pub number: u64,
    /// Seconds since 1970: the beginning of its life, by its issuer's clock.
    pub issued: u64,
    /// Its end.
    pub not_after: u64,
    /// A digest of its public key.
    pub key: String,
    /// A digest of all of it.
    pub id: String,
    /// A digest of its issuer's name.
    pub issuer: String,
    /// The [`Certificate::id`] of the kubeconfig's certificate that it took the place of, if there was one.
    pub replaces: Option<String>,
}

/// The credential in a kubeconfig.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Given {
    /// There is no kubeconfig, or it cannot be used: why, if it is there.
    #[default]
    Nothing,
    Unusable(String),
    /// A certificate of this node.
    Certificate(Certificate),
    /// A token, or a certificate of somebody else: nothing that this node could renew.
    Other,
}

/// The files on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The digest of the public key in `pki/next.key`.
    pub next: Option<String>,
    /// The certificate of `pki/current`.
    pub current: Option<Certificate>,
    /// Those of `pki/node-SERIAL.pem`.
    pub kept: Vec<Certificate>,
    /// `--kubeconfig`.
    pub given: Given,
    /// There is a usable `pki/kubeconfig`.
    pub has_generated: bool,
    /// `--bootstrap-kubeconfig` can be used.
    pub can_join: bool,
    /// The bootstrap kubeconfig is in the place from which it is removed after the join.
    pub has_leftover_token: bool,
    /// `pki/running`: a serial number, and for how many seconds this node has run since it was issued.
    pub running: Option<(String, u64)>,
    /// Unusable files below `pki/`, and why.
    pub damaged: Vec<(String, String)>,
    /// Files could not be read; their disk may answer later.
    pub unread: Option<String>,
}

/// A key of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Of `pki/next.key`.
    Next,
    /// Of the certificate in use.
    Current,
}

/// The credential that a request for a certificate shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The one in use.
    Own,
    /// The token of `--bootstrap-kubeconfig`.
    Bootstrap,
}

/// One durable step on the disk, then [`IdentityEvent::Done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read everything, then [`IdentityEvent::Found`].
    Look,
    /// Make `pki/next.key`.
    MakeKey,
    /// Compose the request for a certificate, then [`IdentityEvent::Prepared`].
    Prepare(Key, By),
    /// Write `pki/kubeconfig` from the bootstrap kubeconfig.
    WriteKubeconfig,
    /// Write this certificate (PEM) with its key to `pki/node-SERIAL.pem`.
    Keep { key: Key, serial: String, pem: Vec<u8> },
    /// Make `pki/node-SERIAL.pem` the current one.
    Point(String),
    /// Remove `pki/next.key`.
    RemoveKey,
    /// Remove `pki/node-SERIAL.pem`.
    Remove(String),
    /// Remove the bootstrap kubeconfig, and the copy it came from.
    RemoveToken,
    /// Rename an unusable file, and say why.
    SetAside(String, String),
    /// Write `pki/running`.
    SaveRunning(String, u64),
}

/// An order about the identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityAction {
    Step(Step),
    /// Read the request with this name, or make it, then [`IdentityEvent::Asked`].
    Ask {
        by: By,
        name: String,
        request: String,
    },
}

/// An answer to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityEvent {
    /// [`Step::Look`]: the files on the disk.
    Found(Box<Found>),
    /// A step was performed, or not.
    Done(Result<(), String>),
    /// [`Step::Prepare`]: the name of the request, and the request.
    Prepared(Result<(String, String), String>),
    Asked(Asked),
}

/// The outcome of a request for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// It waits; why, if the server says so.
    Waits(Option<String>),
    /// It was denied, or cannot be signed: why.
    Denied(String),
    /// The fields of the certificate, and its PEM text.
    Issued(Box<Certificate>, Vec<u8>),
    /// The server does not take the credential, or the request.
    Refused(String),
    /// No valid answer.
    Failed(String),
}
