//! The files of a running pod's volumes: brought up to what the API server has now.
//!
//! Always holds: a volume is replaced whole, or stays as it is while what it should hold is unknown or cannot be read; files are not
//! replaced before what they hold is durable, so a power cut brings back nothing older. What a pod knows of itself is taken from the
//! API server, not from its record, which may be older. Leaves to others: when objects are read again (`actor`), tokens (`tokens`),
//! writing the files (the runtime).

use crate::config::digest::Digest;
use crate::event::Now;
use crate::pods::backoff::Retry;
use crate::pods::event::{Failure, PodAction, Volume, VolumeFile, VolumeSource};
use crate::pods::life::{Context, Life, Sandbox};
use crate::pods::spec::Pod;
use crate::pods::volumes::{self, VolumeProblem};
use std::collections::BTreeMap;

/// What is known of the files of a pod's volumes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    /// What they should hold may have changed.
    pub(crate) is_stale: bool,
    is_updating: bool,
    /// By volume: what was ordered last. An earlier agent's orders are unknown.
    ordered: BTreeMap<String, Digest>,
    retry: Retry,
}

impl Files {
    /// The pod is prepared with these.
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

impl Life {
    /// Orders the volumes whose files should be others.
    pub(crate) fn update_files(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        let is_known = self.api.is_some() || self.is_static();
        if self.sandbox != Sandbox::Ready || !self.files.is_stale || self.files.is_updating || !is_known {
            return;
        }
        if !self.files.retry.is_due(ctx.now.mono) {
            self.wake_at(self.files.retry.due());
            return;
        }
        let Some(node) = ctx.node else { return };
        if !Self::are_objects_settled(pod, ctx) {
            return;
        }
        self.files.is_stale = false;
        let mut changed = vec![];
        for made in volumes::file_volumes(pod, ctx.objects, &self.tokens, node) {
            match made {
                Ok(volume) => {
                    let digest = digest(&volume);
                    if digest.is_some() && self.files.ordered.get(&volume.name) != digest.as_ref() {
                        self.files.ordered.extend(digest.map(|digest| (volume.name.clone(), digest)));
                        changed.push(volume);
                    }
                }
                // it is looked at again when an answer comes
                Err(VolumeProblem::Awaited) => {}
                Err(VolumeProblem::Failed(why)) => self.announce(true, "FailedMount", why, ctx.actions),
            }
        }
        if !changed.is_empty() {
            self.files.is_updating = true;
            ctx.actions.push(PodAction::UpdateVolumes { pod: self.uid.clone(), volumes: changed });
        }
    }

    /// Some were not replaced; which is unknown.
    pub(crate) fn update_failed(&mut self, now: Now, failure: &Failure, actions: &mut Vec<PodAction>) {
        let retry = &mut self.files.retry;
        retry.failed(now.mono);
        self.files = Files { is_stale: true, retry: retry.clone(), ..Files::default() };
        self.announce(true, "FailedMount", failure.message.clone(), actions);
    }
}

/// Of what a volume's files hold; None: it has no files of the API.
fn digest(volume: &Volume) -> Option<Digest> {
    let VolumeSource::Files { files, .. } = &volume.source else { return None };
    let line = |VolumeFile { path, mode, content }: &VolumeFile| {
        format!("{mode:o} {} {path}\0", Digest::of(content))
    };
    Some(Digest::of(files.iter().map(line).collect::<String>().as_bytes()))
}
