//! Images, as far as they need decisions: the image of a reference, the image of an index that fits this
//! node, the meaning of a registry's answer, missing parts, and removals.
//!
//! Always holds: every text from a registry, a Secret or a disk is bounded before it is read and checked
//! before it is used; a digest that is not 64 lower case hexadecimal digits never becomes a file's name;
//! nothing in use is ever chosen for removal.
//!
//! Leaves to others: connections and files (`agent/src/images`), unpacking (`platform/src/images`), when a
//! pod needs an image (`pods`).

pub mod bad;
pub mod challenge;
pub mod collect;
pub(crate) mod collecting;
pub mod credentials;
pub mod digest;
pub mod image;
pub mod manifest;
pub mod platform;
pub mod policy;
pub mod record;
pub mod reference;
pub mod room;
pub mod settings;
pub mod signature;
pub mod thresholds;
pub mod throttle;

pub use digest::BlobDigest;
pub use manifest::{ImageConfig, Manifest};
pub use platform::Platform;
pub use policy::PullPolicy;
pub use record::Record;
pub use reference::Reference;
pub use signature::SignaturePolicy;
