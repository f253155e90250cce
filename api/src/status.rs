//! The Status: how an API server says that something failed (or, for a deletion, succeeded).

use serde::{Deserialize, Serialize};

/// `metav1.Status`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Always `Status`: what tells it from the object asked for.
    pub kind: String,
    /// Always `v1`.
    pub api_version: String,
    /// Success or Failure.
    pub status: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// For programs: NotFound, AlreadyExists, Conflict, Invalid, Expired, ...
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Which object, which fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status.
    pub code: u16,
}

/// `metav1.StatusDetails`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Its resource (upstream puts the resource, not the kind, here).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One per wrong field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds to wait before trying again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// `metav1.StatusCause`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCause {
    /// FieldValueRequired, FieldValueInvalid, ...
    pub reason: String,
    /// For people.
    pub message: String,
    /// Path of the field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}
