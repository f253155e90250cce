//! The text of objects in the form that a client asked for.

use crate::server::request::Form;
use bytes::Bytes;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::Kind;
use kedge_hub_core::kinds::table::Column;
use kedge_hub_core::object::Object;
use serde_json::{Value, json};

/// The text of a value, in a buffer of exactly its size, because it may wait for a slow reader.
pub(super) fn text_of(value: &Value) -> Bytes {
    let mut text = value.to_string();
    text.shrink_to_fit();
    text.into()
}

/// The part of the object in a table row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub(super) fn parse(text: &str) -> Result<IncludeObject, ApiError> {
        match text {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "None" => Ok(IncludeObject::None),
            "Object" => Ok(IncludeObject::Object),
            other => Err(ApiError::bad_request(format!(
                "Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// How to write objects of one answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer {
    pub(super) kind: &'static Kind,
    pub(super) form: Form,
    pub(super) include: IncludeObject,
}

impl Writer {
    pub(super) fn media(&self) -> String {
        match self.form {
            Form::Whole | Form::Nothing => "application/json".to_owned(),
            Form::Table(version) => format!("application/json;as=Table;g=meta.k8s.io;v={version}"),
            Form::Metadata(version) => {
                format!("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v={version}")
            }
        }
    }

    pub(crate) fn row(&self, value: Value) -> Value {
        let cells = (self.kind.cells)(&value, time::OffsetDateTime::now_utc());
        let object = match (self.include, self.form) {
            (IncludeObject::None, _) => Value::Null,
            (IncludeObject::Object, _) => value,
            (IncludeObject::Metadata, Form::Table(version)) => metadata(value, version),
            (IncludeObject::Metadata, _) => metadata(value, "v1"),
        };
        match object {
            Value::Null => json!({"cells": cells}),
            object => json!({"cells": cells, "object": object}),
        }
    }

    /// A table; without column definitions if the client has them already.
    pub(super) fn table(&self, values: impl Iterator<Item = Value>, meta: Value, titles: bool) -> Value {
        let version = match self.form {
            Form::Table(version) => version,
            _ => "v1",
        };
        let columns: Vec<Value> = match titles {
            true => self.kind.columns.iter().copied().map(Column::to_value).collect(),
            false => Vec::new(),
        };
        let rows: Vec<Value> = values.map(|value| self.row(value)).collect();
        json!({
            "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    /// One object's text, in the requested form.
    pub(super) fn object(&self, object: &Object) -> Bytes {
        match self.form {
            Form::Whole | Form::Nothing => self.kind.shown_text(object),
            _ => text_of(&self.value(object.value())),
        }
    }

    /// One stored object in the requested form.
    pub(super) fn value(&self, value: Value) -> Value {
        let value = self.kind.shown(value);
        match self.form {
            Form::Whole | Form::Nothing => value,
            Form::Metadata(version) => metadata(value, version),
            Form::Table(_) => {
                let meta = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                self.table(std::iter::once(value), meta, true)
            }
        }
    }
}

/// Reduces an object to its metadata.
pub(super) fn metadata(mut value: Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": value["metadata"].take(),
    })
}
