//! `PullImage` orders of the pods' actor: each is performed and answered exactly once.
//!
//! Always holds: an order is answered by `ImageReady` or `Failed`, with upstream's reasons for a failure; an
//! unreadable Secret is skipped, as kubelet does, because another may serve. Blocks: call it on a thread for
//! pulls.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Instant;

use kedge_core::images::credentials::Keyring;
use kedge_core::images::{BlobDigest, Reference};
use kedge_core::pods::{Command, Failure, FailureReason, ImageOrder, PodEvent, PullPolicy};
use kedge_platform::images::Layers;
use log::warn;

use super::error::{PullError, Sort};
use super::puller::{Progress, Puller};
use super::store::{Store, blob_name};
use crate::workloads;

impl Puller {
    /// Performs an order; `send` takes the events for the pods' actor.
    pub fn perform(&self, order: &ImageOrder, send: &dyn Fn(PodEvent)) {
        let (pod, container) = (order.pod.clone(), order.container.clone());
        let is_told = Cell::new(false);
        let begun = Instant::now();
        let progress = |progress: Progress| {
            if matches!(progress, Progress::Resolved { .. }) && !is_told.replace(true) {
                send(PodEvent::ImagePulling { pod: pod.clone(), container: container.clone() });
            }
        };
        let done = self.ordered(order, &progress);
        send(match done {
            Ok(image) => {
                let pulled = (image.fetched_bytes > 0).then(|| (begun.elapsed(), image.fetched_bytes));
                let image = image.record.for_container(image.config, pulled);
                PodEvent::ImageReady { pod: pod.clone(), container: container.clone(), image }
            }
            Err(error) => {
                let command = Command::PullImage { pod: pod.clone(), container: container.clone() };
                let failure = Failure { reason: reason(error.sort), message: error.text };
                PodEvent::Failed { command, failure }
            }
        });
    }

    fn ordered(&self, order: &ImageOrder, progress: &dyn Fn(Progress)) -> Result<super::Ready, PullError> {
        let reference = Reference::parse(&order.image).map_err(|why| PullError::new(Sort::Name, why))?;
        let mut secrets = Keyring::default();
        for bytes in &order.credentials {
            if let Err(why) = secrets.add(bytes) {
                warn!("an imagePullSecret of pod {} is ignored: {why}", order.pod);
            }
        }
        let asked = self.ensure(&reference, order.policy, &secrets, progress);
        match asked {
            Err(outage) if outage.is_outage && self.uses_present_offline() => {
                // the outage is reported only if no present image may be used instead
                let present = self.ensure(&reference, PullPolicy::Never, &secrets, progress);
                present.map_err(|_| outage.clone()).inspect(|_| {
                    warn!("image {reference} is used as it is here, for no registry answers: {outage}");
                })
            }
            asked => asked,
        }
    }
}

/// The failures for which upstream has a reason of their own.
fn reason(sort: Sort) -> FailureReason {
    match sort {
        Sort::Name => FailureReason::InvalidImageName,
        Sort::Never => FailureReason::ImageNeverPull,
        Sort::Unsigned => FailureReason::ImageSignature,
        Sort::BrokeOff => FailureReason::PullBrokeOff,
        Sort::Unreachable | Sort::Denied | Sort::Bad | Sort::Disk | Sort::Cancelled => FailureReason::Other,
    }
}

impl workloads::Layers for Store {
    fn layers(&self, image: &str) -> Result<Vec<PathBuf>, String> {
        let id = BlobDigest::parse(image)?;
        let records = self.records().map_err(|error| error.text)?;
        let record = records.get(&id).ok_or_else(|| format!("there is no image {id}"))?;
        if self.whole(record).is_none() {
            return Err(format!("layers or the config of image {id} are missing"));
        }
        let has_overlay = self.has_overlay().map_err(|error| error.text)?;
        let directories = record.directories(has_overlay);
        let top_first = directories.iter().rev().filter_map(blob_name);
        Ok(top_first.map(|name| self.files.layers.directory().join(Layers::name(&name))).collect())
    }
}
