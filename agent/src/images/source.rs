//! Where an image comes from: a registry or a layout. The puller is the same for both.

use std::io::Read;

use kedge_core::images::BlobDigest;
use kedge_core::images::manifest::Blob;

use super::error::PullError;

/// An index or a manifest, as it came.
pub(super) struct Fetched {
    pub(super) bytes: Vec<u8>,
    /// What the source called it.
    pub(super) content_type: Option<String>,
}

/// The bytes of a blob from some place on.
pub(super) struct BlobStream {
    /// The place: what was asked for, or 0 where the source cannot begin elsewhere.
    pub(super) starts_at: u64,
    pub(super) reader: Box<dyn Read>,
}

pub(super) trait Source {
    /// An index or a manifest by digest or tag.
    fn manifest(&mut self, name: &str) -> Result<Fetched, PullError>;

    /// A blob from byte `from` on; `None`: the source has no such byte.
    fn blob(&mut self, blob: &Blob, from: u64) -> Result<Option<BlobStream>, PullError>;

    /// The manifests that list signatures of this one. `Denied`: there is none.
    fn signatures(&mut self, manifest: &BlobDigest) -> Result<Vec<Vec<u8>>, PullError>;

    /// Whether it costs no request to ask.
    fn is_at_hand(&self) -> bool;

    /// For messages: the registry or the path.
    fn shown(&self) -> String;
}
