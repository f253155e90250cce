//! An OCI layout: a directory with `index.json` and blobs, as skopeo, umoci and buildkit write it, or a tar
//! archive of one.
//!
//! Always holds: everything read is below the directory, whatever links it has; sizes have the same limits as
//! a registry's; the caller checks the bytes. A tar archive is unpacked by the confined process first.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kedge_core::images::manifest::{Blob, Document, MAX_MANIFEST_BYTES, Offered};
use kedge_core::images::signature::{Attached, MAX_SIGNATURES};
use kedge_core::images::{BlobDigest, Reference};
use kedge_platform::images::open_beneath;

use super::error::{PullError, Sort};
use super::source::{BlobStream, Fetched, Source};

/// A layout in a directory.
pub(super) struct Layout {
    directory: PathBuf,
    /// For messages: the path that the operator gave.
    shown: String,
}

/// One image of a layout, and its name.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) reference: Reference,
    pub(super) digest: BlobDigest,
}

impl Layout {
    pub(super) fn new(directory: &Path, shown: &Path) -> Self {
        Self { directory: directory.to_path_buf(), shown: shown.display().to_string() }
    }

    fn bad(&self, why: impl std::fmt::Display) -> PullError {
        PullError::new(Sort::Bad, format!("{}: {why}", self.shown))
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, PullError> {
        let failed = |error| self.bad(format_args!("{path}: {error}"));
        let file = open_beneath(&self.directory, Path::new(path)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(self.bad(format_args!("{path} has more than {MAX_MANIFEST_BYTES} bytes")));
        }
        Ok(bytes)
    }

    fn index(&self) -> Result<Vec<Offered>, PullError> {
        let bytes = self.read("index.json")?;
        let index =
            Document::parse(&bytes, None).map_err(|why| self.bad(format_args!("index.json: {why}")))?;
        let Document::Index(offered) = index else { return Err(self.bad("index.json is no index")) };
        Ok(offered)
    }

    /// The images in it, without their attachments. `name` is the operator's name for the only image, or for
    /// the one for this node; without it each image must carry a whole reference.
    pub(super) fn images(&self, name: Option<&Reference>) -> Result<Vec<Named>, PullError> {
        let mut offered = self.index()?;
        offered.retain(|entry| Attached::of(entry).is_none());
        match (name, offered.as_slice()) {
            (_, []) => Err(self.bad("index.json lists no image")),
            (Some(name), [only]) => Ok(vec![Named { reference: name.clone(), digest: only.manifest.digest }]),
            (Some(_), many) => {
                Err(self.bad(format_args!("it has {} images, and --name can name one", many.len())))
            }
            (None, many) => many.iter().map(|image| self.named(image)).collect(),
        }
    }

    fn named(&self, image: &Offered) -> Result<Named, PullError> {
        let is_whole = |text: &&String| text.contains('/') || text.contains(':');
        let text =
            image.image_name.as_ref().or(image.ref_name.as_ref().filter(is_whole)).ok_or_else(|| {
                let called = image.ref_name.as_deref().unwrap_or("nothing");
                self.bad(format_args!(
                    "image {} is called {called:?} there: say with --name what it is called here",
                    image.manifest.digest
                ))
            })?;
        let reference = Reference::parse(text).map_err(|why| self.bad(why))?;
        Ok(Named { reference, digest: image.manifest.digest })
    }

    fn open(&self, digest: &BlobDigest) -> Result<File, PullError> {
        let path = blob_path(digest);
        open_beneath(&self.directory, Path::new(&path))
            .map_err(|error| self.bad(format_args!("{path}: {error}")))
    }
}

impl Source for Layout {
    fn manifest(&mut self, name: &str) -> Result<Fetched, PullError> {
        let digest = BlobDigest::parse(name).map_err(|why| self.bad(why))?;
        Ok(Fetched { bytes: self.read(&blob_path(&digest))?, content_type: None })
    }

    fn blob(&mut self, blob: &Blob, from: u64) -> Result<Option<BlobStream>, PullError> {
        let mut file = self.open(&blob.digest)?;
        file.seek(SeekFrom::Start(from)).map_err(|error| self.bad(error))?;
        Ok(Some(BlobStream { starts_at: from, reader: Box::new(file) }))
    }

    fn signatures(&mut self, manifest: &BlobDigest) -> Result<Vec<Vec<u8>>, PullError> {
        let entries = self.index()?;
        let may_sign = |entry: &&Offered| Attached::of(entry).is_some_and(|kind| kind.may_sign(manifest));
        let found = entries.iter().filter(may_sign).take(MAX_SIGNATURES);
        found.map(|entry| self.read(&blob_path(&entry.manifest.digest))).collect()
    }

    fn is_at_hand(&self) -> bool {
        true
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }
}

fn blob_path(digest: &BlobDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}
