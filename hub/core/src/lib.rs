//! The hub's decisions: the semantics of the Kubernetes API, and authorization.
//!
//! Owns: the table of kinds and their rules (`kinds`), reading bodies (`decode`, `protobuf`, `yaml`) within
//! limits (`cost`), changing objects (`patch`, `apply`), choosing them (`selector`), errors in upstream's
//! words (`api_error`), authorization (`identity`), the decision on a request (`requests`), the stored
//! objects and the order of their changes (`state`), and actions that no request asked for (`controllers`).
//! Always holds: everything here is a function of its arguments. This crate reads no clock, opens no file or
//! socket, starts no thread and draws no random number; `Cargo.toml` and `clippy.toml` keep it so. Leaves to
//! others (`kedge-hub`): the durable store, the writer's thread, certificates, HTTP.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read what they wrote themselves"))]

pub mod api_error;
pub mod apply;
pub mod continue_token;
pub mod controllers;
pub mod cost;
pub mod decode;
pub mod disruption;
pub mod field_error;
pub mod identity;
pub mod kinds;
pub mod loans;
pub mod object;
pub mod page;
pub mod patch;
mod path;
pub mod plain;
mod pod_security;
pub mod protobuf;
pub mod quantity;
pub mod requests;
pub mod restored;
pub mod selector;
pub mod state;
pub mod summary;
pub mod value;
pub mod yaml;

pub use api_error::ApiError;
pub use field_error::FieldError;
pub use object::{Event, Object};
