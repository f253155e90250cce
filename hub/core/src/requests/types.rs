//! What a request brings along, and what it comes to.

use std::sync::Arc;

use serde_json::Value;
use time::OffsetDateTime;

use crate::api_error::ApiError;
use crate::apply::Owner;
use crate::kinds::Kind;
use crate::object::Object;
use crate::state::{Index, Sink, Write};
use crate::value::rfc3339;

/// The objects there are.
pub trait Objects {
    /// One object; `namespace` is empty for cluster-scoped kinds.
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>>;
}

impl<S: Sink> Objects for Index<S> {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        Index::get(self, kind, namespace, name)
    }
}

/// Where an object is, or would be.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub kind: &'static Kind,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Place<'_> {
    pub(super) fn find(&self, objects: &dyn Objects) -> Option<Arc<Object>> {
        objects.get(self.kind, self.namespace, self.name)
    }
}

/// What cannot be computed: the wall clock, and bytes that nobody can guess. Used once.
#[derive(Debug, Clone, Copy)]
pub struct Fresh {
    pub now: OffsetDateTime,
    /// Becomes the UID, and the end of a generated name.
    pub random: [u8; 21],
}

impl Fresh {
    pub(super) fn stamp(&self) -> String {
        rfc3339(self.now)
    }
}

/// What a request comes to.
#[derive(Debug)]
pub enum Decision {
    /// This, without a write.
    Answer(Answer),
    /// A write, and the answer once it was made. If the objects changed meanwhile: decide again.
    Write(Write, Pending),
}

/// The answer to a write that is not made yet.
#[derive(Debug, Default)]
pub struct Pending {
    pub(super) created: bool,
    pub(super) deleted: bool,
    pub(super) warnings: Vec<String>,
}

impl Pending {
    /// The answer, with the object as it was stored.
    pub fn answer(self, object: Arc<Object>) -> Answer {
        let Pending { created, deleted, warnings } = self;
        Answer { object: Some(object), value: None, created, deleted, warnings }
    }
}

/// Judges an object as it would be stored, before it is stored.
pub type Admit<'a> = dyn Fn(Option<&Value>, &Value) -> Result<(), ApiError> + Send + Sync + 'a;

/// What a client asks of a write beside the object.
pub struct WriteOptions<'a> {
    /// Do everything but the write.
    pub dry_run: bool,
    /// Admission, by who asks.
    pub admit: &'a Admit<'a>,
    /// Whose the fields are that this write sets.
    pub owner: Owner<'a>,
}

impl WriteOptions<'static> {
    /// The hub's own controllers: nothing to admit, and they own nothing.
    pub fn internal() -> WriteOptions<'static> {
        WriteOptions { dry_run: false, admit: &|_, _| Ok(()), owner: Owner::Nobody }
    }
}

/// How a request ended.
#[derive(Debug)]
pub struct Answer {
    /// The object as stored, or as it was when it was deleted. Absent after a dry run that stored nothing.
    pub object: Option<Arc<Object>>,
    /// The object of a dry run.
    pub value: Option<Value>,
    /// It did not exist before.
    pub created: bool,
    /// It is gone.
    pub deleted: bool,
    /// Sentences for `Warning` headers.
    pub warnings: Vec<String>,
}

impl Answer {
    pub(super) fn of(object: Arc<Object>) -> Answer {
        Answer { object: Some(object), value: None, created: false, deleted: false, warnings: Vec::new() }
    }

    pub(super) fn dry(value: Value) -> Answer {
        Answer { object: None, value: Some(value), created: false, deleted: false, warnings: Vec::new() }
    }

    pub(super) fn warned(mut self, kind: &Kind, new: &Value, old: Option<&Value>) -> Answer {
        self.warnings = (kind.warnings)(new, old);
        self
    }

    /// The object as a value.
    pub fn value(&self) -> Value {
        match (&self.value, &self.object) {
            (Some(value), _) => value.clone(),
            (None, Some(object)) => object.value(),
            (None, None) => Value::Null,
        }
    }
}

/// Which part of an object a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All but the status, of kinds that have one as a subresource.
    Main,
    /// Status and metadata.
    Status,
    /// Everything; for the hub's own controllers.
    All,
    /// Whether a certificate request is approved.
    Approval,
}

/// What a delete asks for.
#[derive(Debug, Default, Clone)]
pub struct DeleteOptions {
    /// Only the object of this UID.
    pub uid: Option<String>,
    /// Only at this version.
    pub resource_version: Option<String>,
    /// What becomes of the objects it owns.
    pub propagation: Propagation,
    /// Seconds a pod gets to end; absent is the pod's own wish.
    pub grace_secs: Option<i64>,
}

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// As the object's own finalizers say; in the background if they say nothing.
    #[default]
    Unset,
    /// They go later.
    Background,
    /// They go first.
    Foreground,
    /// They stay, without their owner.
    Orphan,
}
