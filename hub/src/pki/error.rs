//! The faults of the hub's keys. Every text names the file and tells how to mend it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A fault of the hub's keys. Every text names the file and tells how to mend it.
#[derive(Debug)]
pub enum PkiError {
    /// A file or directory cannot be read.
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file or directory cannot be written.
    Unwritable {
        /// Which one.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has an invalid content.
    Corrupt {
        /// Which one.
        path: PathBuf,
        /// The content found and expected.
        why: String,
    },
    /// The CA is damaged, or gone from a directory that had one.
    Authority {
        /// The CA's file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The directory never had a hub.
    NoAuthority {
        /// The data directory.
        data_dir: PathBuf,
    },
    /// The hub has not published a URL for nodes.
    NoServerUrl {
        /// The data directory.
        data_dir: PathBuf,
    },
    /// A name that is invalid in a certificate.
    BadName { name: String },
    /// A key or certificate could not be made.
    Signing {
        /// Its purpose.
        what: &'static str,
        /// The library's error.
        source: rcgen::Error,
    },
    /// No issue number can be taken, so nothing is issued.
    NoNumber {
        /// The system's error, with the file's path.
        source: io::Error,
    },
    /// The line about new credentials cannot be written to the audit log, so the credentials are not handed
    /// out.
    Unrecorded {
        /// The node whose credentials they are.
        name: String,
        /// The system's error, with the log's path.
        source: io::Error,
    },
    /// The TLS library refused the key or certificate.
    Tls(rustls::Error),
}

impl fmt::Display for PkiError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PkiError::Unreadable { path, source } => {
                write!(formatter, "cannot read {}: {source}", path.display())
            }
            PkiError::Unwritable { path, source } => {
                write!(formatter, "cannot write {}: {source}", path.display())
            }
            PkiError::Corrupt { path, why } => write!(formatter, "{}: {why}", path.display()),
            PkiError::Authority { path, why } => write!(
                formatter,
                "certificate authority {}: {why}; not replacing it, because every node and user trusts it: restore \
                 the file from a backup, or, to start over with new credentials for everyone, remove it together \
                 with ca.crt",
                path.display()
            ),
            PkiError::NoAuthority { data_dir } => write!(
                formatter,
                "no certificate authority in {}: run `kedge-hub serve --data-dir {0}` first",
                data_dir.display()
            ),
            PkiError::NoServerUrl { data_dir } => write!(
                formatter,
                "{} does not know yet where nodes reach the hub: run `kedge-hub serve` first, or give \
                 --advertise HOST:PORT",
                data_dir.join("server-url").display()
            ),
            PkiError::BadName { name } => {
                write!(
                    formatter,
                    "{name:?} cannot stand in a certificate, expected a host name or an IP address"
                )
            }
            PkiError::Signing { what, source } => {
                write!(formatter, "cannot make a {what} certificate: {source}")
            }
            PkiError::NoNumber { source } => {
                write!(formatter, "cannot take an issue number for a certificate: {source}")
            }
            PkiError::Unrecorded { name, source } => write!(
                formatter,
                "no credentials for node {name:?} are given out, because the audit log has no line about them: {source}"
            ),
            PkiError::Tls(source) => write!(formatter, "tls: {source}"),
        }
    }
}

impl std::error::Error for PkiError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // the text already contains the io and library errors: printing the chain must not repeat them
        None
    }
}
