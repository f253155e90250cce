//! Images on this node: from a registry, or a layout on disk, to layers that containers mount.
//!
//! Owns the connections to registries, the order of files and records, and `kedge images`. Always holds: an
//! image's record is written after all its layers are durable; bytes count only once they match their digest;
//! an interrupted download is resumed. Everything here blocks: it lives on threads of its own, or in a
//! command.
//!
//! Leaves to others: decisions (`kedge_core::images`), files and confinement (`kedge_platform::images`), when
//! a pod needs an image (`kedge_core::pods`).

pub mod command;
mod error;
mod layout;
mod orders;
mod preloaded;
mod puller;
pub(crate) mod ranges;
mod registry;
mod roots;
mod signatures;
mod source;
mod store;

pub use error::{PullError, Sort};
pub use preloaded::DEFAULT_DIRECTORY as DEFAULT_PRELOADED;
pub use puller::{Options, Progress, Puller, Ready};
pub(crate) use registry::ping;
pub use store::Store;
