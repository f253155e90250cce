//! Records on the disk by which the networks of pods are undone after the run directory was lost, for example
//! by a reboot.
//!
//! Always holds: a pod's record is written before the first plugin runs, and removed after DEL of all
//! plugins. A pod also runs when its record cannot be written. Leaves to others: the contents, and the times
//! (`Performer`).

use kedge_core::pods::PodUid;
use kedge_platform::files::{DurableFiles, Entry, Files as _};
use kedge_platform::linux::{LinuxDisk, files};
use kedge_platform::workloads::Notes;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest record: the configuration of the plugins and their result.
const BYTES: usize = 512 * 1024;
/// Most pods that are looked at.
const PODS: usize = 10_000;
const ENDING: &str = ".json";

pub(super) struct Kept(Arc<DurableFiles<LinuxDisk>>);

impl Kept {
    pub(super) fn below(directory: &Path) -> Self {
        Self(files(directory))
    }

    pub(super) fn pods(&self) -> BTreeSet<String> {
        let listed = self.0.list(Path::new(""), PODS).map(|listing| listing.entries).unwrap_or_default();
        let name = |entry: &Entry| Some(entry.name.to_str()?.strip_suffix(ENDING)?.to_owned());
        listed.iter().filter_map(name).collect()
    }

    /// The notes of a pod; empty if they cannot be read. `None`: it has no record.
    pub(super) fn notes(&self, pod: &PodUid) -> Option<Notes> {
        self.pods().contains(pod.as_str()).then(|| {
            let bytes = self.0.read(&file_of(pod), BYTES).unwrap_or_default();
            kedge_api::read::from_slice(&bytes).unwrap_or_default()
        })
    }

    pub(super) fn keep(&self, pod: &PodUid, notes: &Notes) {
        let bytes = serde_json::to_vec(notes).unwrap_or_default();
        warn(pod, self.0.write_durably(&file_of(pod), &bytes));
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        warn(pod, self.0.remove(&file_of(pod)));
    }
}

fn file_of(pod: &PodUid) -> PathBuf {
    format!("{pod}{ENDING}").into()
}

fn warn<E: Display>(pod: &PodUid, done: Result<(), E>) {
    if let Err(error) = done {
        log::warn!("record of the network of pod {pod}: {error}");
    }
}
