//! The layer of a value of the configuration.

use core::fmt;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// The `--config` file, by path.
    File(String),
    /// The assigned payload.
    ConfigMap { namespace: String, name: String, uid: String },
    /// A file checked as if it were pushed; the part and the file.
    Pushed(String),
    /// A drop-in file, by path.
    DropIn(String),
    /// A command line flag, by name without dashes.
    Flag(&'static str),
}

impl Origin {
    /// Whether it is a payload, not one of this machine's own layers.
    pub(crate) fn is_pushed(&self) -> bool {
        matches!(self, Self::ConfigMap { .. } | Self::Pushed(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File(path) => write!(formatter, "config file {path}"),
            Self::ConfigMap { name, uid, .. } => write!(formatter, "config {name} (uid {uid})"),
            Self::Pushed(what) => write!(formatter, "push {what}"),
            Self::DropIn(path) => write!(formatter, "drop-in {path}"),
            Self::Flag(name) => write!(formatter, "flag --{name}"),
        }
    }
}
