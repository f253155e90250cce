//! Images that came with the system: OCI layouts in a directory of the flashed root.
//!
//! Always holds: they are a source that is asked before any registry, and nothing is done with them before a pod needs one; the
//! directory is only read. A layout that cannot be read is reported and passed over, because another one, or a registry, may serve.

use std::path::{Path, PathBuf};
use std::{fs, io};

use kedge_core::images::{BlobDigest, Reference};
use log::warn;

use super::error::PullError;
use super::layout::{Layout, Named};

/// Where images bring their layouts.
pub const DEFAULT_DIRECTORY: &str = "/usr/share/kedge/images";
/// Most layouts that are looked at: each is a file that a pull reads.
const MAX_LAYOUTS: usize = 256;

/// The directory: a layout itself, or one with layouts in it, which are asked in the order of their names.
#[derive(Clone, Debug)]
pub(super) struct Preloaded {
    directory: PathBuf,
}

impl Preloaded {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf() }
    }

    /// The first layout that has this image, and the digest of what the image is called there.
    pub(super) fn find(&self, reference: &Reference) -> Option<(Layout, BlobDigest)> {
        self.layouts().find_map(|layout| {
            let images = listed(&layout)?;
            let image = images.into_iter().find(|image| is_meant(reference, image))?;
            Some((layout, image.digest))
        })
    }

    /// All of them, by the names that they have there.
    pub(super) fn names(&self) -> Vec<Named> {
        self.layouts().filter_map(|layout| listed(&layout)).flatten().collect()
    }

    fn layouts(&self) -> impl Iterator<Item = Layout> {
        let is_layout = |path: &PathBuf| path.join("index.json").exists();
        let mut paths: Vec<PathBuf> = if is_layout(&self.directory) {
            vec![self.directory.clone()]
        } else {
            self.entries().into_iter().filter(is_layout).collect()
        };
        paths.sort();
        if paths.len() > MAX_LAYOUTS {
            let (directory, found) = (self.directory.display(), paths.len());
            warn!(
                "{directory} has {found} preloaded layouts, expected at most {MAX_LAYOUTS}: the last by name are ignored"
            );
            paths.truncate(MAX_LAYOUTS);
        }
        paths.into_iter().map(|path| Layout::new(&path, &path))
    }

    /// That there is no such directory is the ordinary case.
    fn entries(&self) -> Vec<PathBuf> {
        let read = fs::read_dir(&self.directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
        read.unwrap_or_else(|error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(
                    "preloaded images of {} cannot be read, registries are asked: {error}",
                    self.directory.display()
                );
            }
            Vec::new()
        })
    }
}

fn listed(layout: &Layout) -> Option<Vec<Named>> {
    let ignored = |error: PullError| warn!("preloaded images of {error} are ignored");
    layout.images(None).map_err(ignored).ok()
}

/// A digest decides when a pod gives both.
fn is_meant(wanted: &Reference, image: &Named) -> bool {
    let there = &image.reference;
    let is_same_repository = wanted.registry == there.registry && wanted.repository == there.repository;
    is_same_repository
        && match wanted.digest {
            Some(digest) => digest == image.digest,
            None => wanted.tag == there.tag,
        }
}
