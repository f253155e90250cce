//! The source of an image: a registry or a layout. The puller treats both alike.

use std::io::Read;

use kedge_core::images::BlobDigest;
use kedge_core::images::manifest::Blob;

use super::error::PullError;

/// An index or a manifest, as it came.
pub(super) struct Fetched {
    pub(super) bytes: Vec<u8>,
    /// The type that the source declared.
    pub(super) content_type: Option<String>,
}

/// The bytes of a blob from some offset on.
pub(super) struct BlobStream {
    /// The offset: the requested one, or 0 where the source can begin nowhere else.
    pub(super) starts_at: u64,
    pub(super) reader: Box<dyn Read>,
}

pub(super) trait Source {
    /// An index or a manifest by digest or tag.
    fn manifest(&mut self, name: &str) -> Result<Fetched, PullError>;

    /// A blob from byte `from` on; `None`: the source has no such byte.
    fn blob(&mut self, blob: &Blob, from: u64) -> Result<Option<BlobStream>, PullError>;

    /// The manifests that list signatures of this one. Fails with `Denied` if the source has none.
    fn signatures(&mut self, manifest: &BlobDigest) -> Result<Vec<Vec<u8>>, PullError>;

    /// Whether asking costs no request.
    fn is_at_hand(&self) -> bool;

    /// For messages: the registry or the path.
    fn shown(&self) -> String;
}
