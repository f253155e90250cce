//! Create, update, patch, apply and delete, the same for every kind, with upstream's order of steps and
//! upstream's errors.
//!
//! Owns: the step from the stored objects, a request, the time and random bytes to one [`Decision`]: an
//! answer, or a write with the revision it was computed from. Always holds: an update without a change writes
//! nothing and keeps its resourceVersion; uid, name and creation time never change; no update is lost,
//! because `state` refuses a write that was computed from an older revision. Leaves to others: making the
//! write durable and retrying after a concurrent write (`kedge-hub`), HTTP, authorization (`identity`).

mod administrators;
mod advice;
mod allowance;
mod binding;
mod change;
mod create;
mod delete;
mod delete_options;
#[cfg(test)]
mod fixture;
mod objects;
mod priority;
mod renewal;
mod runtime;
mod service_account;
mod streams;
mod types;
mod write_options;

pub use allowance::{ALLOWANCES, Allowance, QUOTA_BYTES};
pub use binding::{bind, bound_pod, check_binding, check_name};
pub use change::{MayCreate, apply, edit, merged_with_old, update};
pub use create::{check_place, create, new_object, uid, wants_generated_name};
pub use delete::{FOREGROUND, ORPHAN, delete, finalize_namespace};
pub use delete_options::{DeleteOptions, Propagation};
pub use objects::Objects;
pub use renewal::Renewal;
pub use streams::{ProgramAddress, ProxyTarget, serving_container, serving_node};
pub use types::{Answer, Decision, Fresh, Part, Pending, Place};
pub use write_options::{Admit, WriteOptions};
