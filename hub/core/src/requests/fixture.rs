//! Stored objects for the tests of requests.

use std::sync::Arc;

use serde_json::Value;

use crate::kinds::Kind;
use crate::object::{Event, Object};
use crate::state::{Index, Seen, Sink};

pub(super) struct NoSink;

impl Sink for NoSink {
    fn queue(&self, _: &Arc<Event>, _: Seen) -> bool {
        true
    }
}

/// An index of these objects, all at revision 1.
pub(super) fn stored(objects: &[(&'static Kind, Value)]) -> Index<NoSink> {
    let mut index = Index::new(1);
    for (kind, value) in objects {
        index.restore(kind, Object::new(kind, value, 1).unwrap());
    }
    index
}
