//! The inputs of a request, and its result.

use std::sync::Arc;

use serde_json::Value;
use time::OffsetDateTime;

use super::advice;
use super::objects::Objects;
use super::write_options::WriteOptions;
use crate::kinds::Kind;
use crate::object::Object;
use crate::pod_security::Remarks;
use crate::state::Write;
use crate::value::rfc3339;

/// The key of an object that exists or will be created.
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

/// Inputs from outside: the wall clock, and unpredictable bytes. Used once.
#[derive(Debug, Clone, Copy)]
pub struct Fresh {
    pub now: OffsetDateTime,
    /// For the UID and the end of a generated name.
    pub random: [u8; 21],
}

impl Fresh {
    pub(super) fn stamp(&self) -> String {
        rfc3339(self.now)
    }
}

/// The decision on a request.
#[derive(Debug)]
pub enum Decision {
    /// An answer without a write.
    Answer(Answer),
    /// A write, and the answer after it. Decide again if the objects changed in the meantime.
    Write(Write, Pending),
}

/// The answer to a write that is still to be made.
#[derive(Debug, Default)]
pub struct Pending {
    pub(super) created: bool,
    pub(super) deleted: bool,
    pub(super) warnings: Vec<String>,
    pub(super) violation: Option<String>,
}

impl Pending {
    /// The answer, with the object as it was stored.
    pub fn answer(self, object: Arc<Object>) -> Answer {
        let Pending { created, deleted, warnings, violation } = self;
        Answer { object: Some(object), value: None, created, deleted, warnings, violation }
    }
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// The object as stored, or as it was when it was deleted. Absent after a dry run that stored nothing.
    pub object: Option<Arc<Object>>,
    /// The object of a dry run.
    pub value: Option<Value>,
    /// It did not exist before.
    pub created: bool,
    /// It was deleted.
    pub deleted: bool,
    /// Sentences for `Warning` headers.
    pub warnings: Vec<String>,
    /// The rules of the namespace's audited Pod Security level that the object breaks.
    pub violation: Option<String>,
}

impl Answer {
    pub(super) fn of(object: Arc<Object>) -> Answer {
        Answer { object: Some(object), ..Answer::default() }
    }

    pub(super) fn dry(value: Value) -> Answer {
        Answer { value: Some(value), ..Answer::default() }
    }

    pub(super) fn warned(
        mut self,
        kind: &Kind,
        new: &Value,
        old: &Value,
        remarks: Remarks,
        options: &WriteOptions<'_>,
    ) -> Answer {
        self.warnings = advice::warnings(kind, new, Some(old), options, remarks.warnings);
        self.violation = remarks.audit;
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

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status, for kinds with a status subresource.
    Main,
    /// Status and metadata.
    Status,
    /// Everything; for the hub's own controllers.
    All,
    /// The approval of a certificate request.
    Approval,
    /// The finalizers of a namespace, and metadata.
    Finalize,
    /// The node of a pod and the fields that follow from it; everything, but without a new generation. For
    /// bindings.
    Binding,
}
