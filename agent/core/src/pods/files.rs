//! The files of a pod's volumes, as they were written last.

use crate::answer::Now;
use crate::config::digest::Digest;
use crate::pods::backoff::Retry;
use crate::pods::event::{Volume, VolumeFile, VolumeSource};
use crate::pods::objects::LARGE_WAIT;
use crate::sorted::SortedMap;
use std::time::Duration;

/// The known state of the files of a pod's volumes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    /// The intended content of the files may have changed.
    pub(crate) is_stale: bool,
    pub(crate) is_updating: bool,
    /// Since when they have been waiting for objects.
    pub(crate) awaits_objects: Option<Duration>,
    /// The content that was ordered last, by volume. An earlier agent's orders are unknown.
    pub(crate) ordered: SortedMap<String, Digest>,
    pub(crate) retry: Retry,
    /// They were too large to be made: nothing is read for them before this time unless their intended
    /// content changes.
    pub(crate) too_large_until: Option<Duration>,
}

impl Files {
    /// Notes that they are too large.
    pub(crate) fn are_too_large(&mut self, now: Now) {
        self.is_stale = false;
        self.too_large_until = Some(now.mono.saturating_add(LARGE_WAIT));
    }

    /// Until when nothing is read for them.
    pub(crate) fn rest_until(&self, now: Now) -> Option<Duration> {
        self.too_large_until.filter(|until| !self.is_stale && now.mono < *until)
    }

    /// The pod was prepared with these.
    pub(crate) fn made(&mut self, volumes: &[Volume]) {
        *self = Self::default();
        self.ordered =
            volumes.iter().filter_map(|volume| Some((volume.name.clone(), digest(volume)?))).collect();
    }

    pub(crate) fn updated(&mut self) {
        self.is_updating = false;
        self.retry.succeeded();
    }
}

/// A digest of a volume's files; `None` if it has no files of the API.
pub(crate) fn digest(volume: &Volume) -> Option<Digest> {
    let VolumeSource::Files { files, .. } = &volume.source else { return None };
    let line = |VolumeFile { path, mode, owner, content }: &VolumeFile| {
        format!("{mode:o} {owner:?} {} {path}\0", Digest::of(content))
    };
    Some(Digest::of(files.iter().map(line).collect::<String>().as_bytes()))
}
