//! The controllers, which act without a client's request: one file each.
//!
//! Each is a [`Controller`]: inputs and outputs at its top, a pure `reconcile` below. Left to others: the runner (`kedge-hub`).

pub mod certificates;
mod controller;
pub mod garbage;
pub mod nodes;
pub mod service_accounts;

pub use controller::{
    Action, Controller, Decision, Done, Edit, Guarded, Level, Line, Now, Signing, Task, World,
};
