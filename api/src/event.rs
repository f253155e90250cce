//! The Event: something that happened to an object, for people.

use crate::{ObjectMeta, Timestamp};
use serde::{Deserialize, Serialize};

/// `v1.Event`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// Name unique in its namespace.
    pub metadata: ObjectMeta,
    /// The object that the event is about.
    pub involved_object: ObjectReference,
    /// The cause, one CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// The program that reports it.
    pub source: EventSource,
    /// First occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<Timestamp>,
    /// Latest occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_timestamp: Option<Timestamp>,
    /// Number of occurrences.
    pub count: i32,
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub event_type: String,
}

/// `v1.ObjectReference`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// Kind of the object.
    pub kind: String,
    /// Its namespace, empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID; upstream's node agents put the node's *name* here, and `kubectl describe node` looks for
    /// both.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Its group and version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
}

/// `v1.EventSource`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSource {
    /// Name of the program.
    pub component: String,
    /// Name of the node that it runs on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
}
