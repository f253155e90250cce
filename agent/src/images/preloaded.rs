//! Images that came with the system: OCI layouts in a directory of the flashed root.
//!
//! Always holds: they are a source that is tried before any registry, and they are not unpacked before a pod
//! needs one; the directory is only read. A layout that cannot be read is reported once and skipped, because
//! another one, or a registry, may serve.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use kedge_core::images::{BlobDigest, Reference};
use log::warn;

use super::error::PullError;
use super::layout::{Layout, Named};

/// Where images bring their layouts.
pub const DEFAULT_DIRECTORY: &str = "/usr/share/kedge/images";
/// Most layouts that are read: a pull reads a file of each.
const MAX_LAYOUTS: usize = 256;
/// Most lines that are logged: one for each layout, and those about the directory.
const MAX_LINES: usize = MAX_LAYOUTS + 16;

/// The directory: a layout itself, or one with layouts in it, which are tried in the order of their names.
#[derive(Clone, Debug)]
pub(super) struct Preloaded {
    directory: PathBuf,
    /// The lines already logged: the directory belongs to the flashed root, so nothing of it changes while
    /// the agent runs.
    logged: Arc<Mutex<BTreeSet<String>>>,
}

impl Preloaded {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf(), logged: Arc::default() }
    }

    /// Logs a line unless it was logged before.
    fn warn_once(&self, line: String) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < MAX_LINES && !logged.contains(&line) {
            warn!("{line}");
            logged.insert(line);
        }
    }

    /// The first layout that has this image, and the digest that the image's name stands for there.
    pub(super) fn find(&self, reference: &Reference) -> Option<(Layout, BlobDigest)> {
        self.layouts().find_map(|layout| {
            let images = self.listed(&layout)?;
            let image = images.into_iter().find(|image| is_meant(reference, image))?;
            Some((layout, image.digest))
        })
    }

    /// All images, by the names that they have in the layouts.
    pub(super) fn names(&self) -> Vec<Named> {
        self.layouts().filter_map(|layout| self.listed(&layout)).flatten().collect()
    }

    fn layouts(&self) -> impl Iterator<Item = Layout> {
        let is_layout = |path: &PathBuf| path.join("index.json").exists();
        let mut paths: Vec<PathBuf> = if is_layout(&self.directory) {
            vec![self.directory.clone()]
        } else {
            self.entries().into_iter().filter(is_layout).collect()
        };
        kedge_api::sort::sort(&mut paths);
        if paths.len() > MAX_LAYOUTS {
            let (directory, found) = (self.directory.display(), paths.len());
            self.warn_once(format!(
                "{directory} has {found} preloaded layouts, expected at most {MAX_LAYOUTS}: the last by name are ignored"
            ));
            paths.truncate(MAX_LAYOUTS);
        }
        paths.into_iter().map(|path| Layout::new(&path, &path))
    }

    /// A missing directory is normal and not reported.
    fn entries(&self) -> Vec<PathBuf> {
        let read = fs::read_dir(&self.directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
        read.unwrap_or_else(|error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                self.warn_once(format!(
                    "preloaded images of {} cannot be read, registries are asked: {error}",
                    self.directory.display()
                ));
            }
            Vec::new()
        })
    }

    fn listed(&self, layout: &Layout) -> Option<Vec<Named>> {
        let ignored = |error: PullError| self.warn_once(format!("preloaded images of {error} are ignored"));
        layout.images(None).map_err(ignored).ok()
    }
}

/// The digest decides when a pod gives both a tag and a digest.
fn is_meant(wanted: &Reference, image: &Named) -> bool {
    let there = &image.reference;
    let is_same_repository = wanted.registry == there.registry && wanted.repository == there.repository;
    is_same_repository
        && match wanted.digest {
            Some(digest) => digest == image.digest,
            None => wanted.tag == there.tag,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_layout_is_logged_once_by_all_copies() {
        let scratch = kedge_rig::Scratch::new("preloaded").unwrap();
        scratch.write("broken/index.json", "{");
        let preloaded = Preloaded::new(scratch.path());
        let wanted = Reference::parse("registry.lan/app:v1").unwrap();
        for copy in [preloaded.clone(), preloaded.clone(), preloaded.clone()] {
            assert!(copy.find(&wanted).is_none());
            assert_eq!(preloaded.logged.lock().unwrap().len(), 1);
        }
        scratch.write("other/index.json", "{");
        assert!(preloaded.find(&wanted).is_none());
        let logged = preloaded.logged.lock().unwrap().clone();
        assert!(logged.len() == 2 && logged.iter().all(|line| line.contains("are ignored")), "{logged:?}");
    }
}
