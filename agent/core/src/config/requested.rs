//! The ConfigMap that the Node's request names, as last read, and the problems between the two.
//!
//! Always holds: content that is recorded, or cannot be assigned, is not kept. Leaves to others: comparing it with
//! the records (`running/comparing`).

use crate::config::records::shortened;
use serde_json::Value;
use std::rc::Rc;

/// The ConfigMap that the source names, as last read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    /// Not read yet.
    Unread,
    /// It does not exist.
    Missing,
    /// It could not be read; the reason.
    Unreadable(String),
    /// It has this UID and resourceVersion; its content was not read, because it is on disk.
    Unchanged {
        uid: String,
        resource_version: String,
    },
    Here(Rc<Value>),
    /// It has this UID and resourceVersion, and the records agree with it. Its content, perhaps a mebibyte,
    /// was dropped.
    Compared {
        uid: String,
        resource_version: String,
    },
    /// It has this UID and resourceVersion, and cannot be assigned; why. Its content was dropped, too.
    Refused {
        uid: String,
        resource_version: String,
        problem: SyncProblem,
    },
}

impl Object {
    /// Whether `other` adds nothing to the facts about this version of the object.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match self {
            // a refused object is compared again if its content arrives again: the first may have arrived
            // damaged
            Self::Here(_) | Self::Refused { .. } => {
                matches!(other, Self::Unchanged { .. }) && self.version() == other.version()
            }
            Self::Compared { .. } => self.version() == other.version(),
            _ => false,
        }
    }

    /// The ConfigMap's UID and resourceVersion, once they are known.
    pub(crate) fn version(&self) -> Option<(&str, &str)> {
        match self {
            Self::Unread | Self::Missing | Self::Unreadable(_) => None,
            Self::Unchanged { uid, resource_version }
            | Self::Compared { uid, resource_version }
            | Self::Refused { uid, resource_version, .. } => Some((uid, resource_version)),
            Self::Here(here) => {
                let part = |pointer: &str| here.pointer(pointer).and_then(Value::as_str);
                Some((part("/metadata/uid")?, part("/metadata/resourceVersion")?))
            }
        }
    }

    /// The problem lasts as long as this version of the object: its content is not needed any more.
    pub(crate) fn refused(&self, problem: SyncProblem) -> Self {
        let (uid, resource_version) = self.version().unwrap_or_default();
        Self::Refused { uid: uid.to_owned(), resource_version: resource_version.to_owned(), problem }
    }
}

/// The source's config could not be assigned: the condition is Unknown, with this reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyncProblem {
    /// The source is invalid.
    Invalid(String),
    /// Any other failure between the source and a durable assignment.
    Failed(String),
}

impl SyncProblem {
    /// Much of it may be a client's text, and every watcher of Nodes gets the condition.
    pub(crate) fn shortened(self) -> Self {
        match self {
            Self::Invalid(why) => Self::Invalid(shortened(&why)),
            Self::Failed(why) => Self::Failed(shortened(&why)),
        }
    }
}
