//! The ConfigMap that the Node's request names, as last read, and the problems between the two.
//!
//! Always holds: content that is recorded, or cannot be assigned, is not kept. Leaves to others: comparing it
//! with the records (`running/comparing`).

use crate::config::records::shortened;
use crate::config::source::{self, RequestedSource, Source};
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

/// The Node's request, as last read.
#[derive(Debug, Clone)]
pub(crate) struct Requested {
    /// UID of the Node; empty before it was read.
    pub(crate) node_uid: String,
    /// The Node that requested something, valid or not, since this agent runs.
    asked_by: String,
    /// Where an operator writes the request.
    pub(crate) place: &'static str,
    pub(crate) source: Option<RequestedSource>,
    /// The ConfigMap that the source names.
    pub(crate) object: Object,
    /// The object changed, or its checkpoint was lost: it must be read whole.
    must_read: bool,
    /// Why the source's config is not assigned, for the condition.
    pub(crate) problem: Option<SyncProblem>,
    /// The pinned ConfigMap was edited: not followed, but reported.
    pub(crate) edited: Option<String>,
}

impl Default for Requested {
    fn default() -> Self {
        Self {
            node_uid: String::new(),
            asked_by: String::new(),
            place: source::place(true),
            source: None,
            object: Object::Unread,
            must_read: false,
            problem: None,
            edited: None,
        }
    }
}

impl Requested {
    /// The source, if it is a correct one.
    pub(crate) fn correct(&self) -> Option<&Source> {
        match &self.source {
            Some(RequestedSource::Correct(source)) => Some(source),
            _ => None,
        }
    }

    /// Whether the present Node requested something since this agent runs.
    pub(crate) fn is_by_this_node(&self) -> bool {
        self.asked_by == self.node_uid
    }

    /// The Node was read; `place` is where its source is written.
    pub(crate) fn node_seen(&mut self, uid: &str, source: RequestedSource, place: &'static str) {
        self.place = place;
        let object_of = |source: &RequestedSource| match source {
            RequestedSource::Correct(source) => {
                Some((source.object().0.to_owned(), source.object().1.to_owned()))
            }
            _ => None,
        };
        if self.source.as_ref().and_then(object_of) != object_of(&source) {
            self.object = Object::Unread;
        } else if self.source.as_ref() != Some(&source)
            && matches!(self.object, Object::Compared { .. } | Object::Refused { .. })
        {
            // another key of it, or the other form: its content was dropped
            self.read_again();
        }
        if source != RequestedSource::Nil && self.asked_by != uid {
            self.asked_by = uid.to_owned();
        }
        self.node_uid = uid.to_owned();
        self.source = Some(source);
    }

    /// Another API server answers from now on.
    pub(crate) fn server_changed(&mut self) {
        let place = self.place;
        *self = Self { place, must_read: true, ..Self::default() };
    }

    /// The ConfigMap that the source names was read, or was not.
    pub(crate) fn object_seen(&mut self, object: Object) {
        // keep the whole object: a confirmation that it did not change has no content
        if !self.object.is(&object) {
            self.object = object;
        }
    }

    /// The object must be read whole.
    pub(crate) fn read_again(&mut self) {
        (self.object, self.must_read) = (Object::Unread, true);
    }

    /// Returns once that the object must be read whole.
    pub(crate) fn take_must_read(&mut self) -> bool {
        std::mem::take(&mut self.must_read)
    }
}
