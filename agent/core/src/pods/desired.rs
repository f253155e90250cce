//! The desired set on disk: whether it was read, and the records in it that belong to no known pod.
//!
//! Always holds: unknown is not empty, so a set that cannot be read is read again until it can. A record
//! without a pod is removed until the disk accepts that. Leaves to others: the content of records (`record`).

use crate::answer::{Level, Now};
use crate::pods::backoff::Retry;
use crate::pods::event::{DesiredFile, PodAction};
use crate::pods::keys::PodUid;
use crate::sorted::SortedSet;
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub(crate) struct Desired {
    pub(crate) is_read: bool,
    /// When the set, which was unreadable, is read again; `None` while that is under way, or once it was
    /// read.
    wake: Option<Duration>,
    retry: Retry,
    /// Pods whose records are unreadable.
    pub(crate) unreadable: SortedSet<PodUid>,
    /// Records without a pod that the disk failed to remove, and when the removal is tried again.
    leftovers: SortedSet<PodUid>,
    leftover_wake: Option<Duration>,
    leftover_retry: Retry,
}

impl Desired {
    /// The set cannot be read: until it is, no pod is started, stopped or forgotten.
    pub(crate) fn unread(&mut self, now: Now, why: &str, actions: &mut Vec<PodAction>) {
        if self.retry.failures() == 0 {
            let text = format!(
                "the desired pods cannot be read: {why}; those that run go on, no other is started, trying again"
            );
            actions.push(PodAction::Log(Level::Warn, text));
        }
        self.retry.failed(now.mono);
        self.wake = Some(self.retry.due());
    }

    /// Reads the set again if it is time.
    pub(crate) fn read_again(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        if self.wake.take_if(|at| *at <= now.mono).is_some() {
            actions.push(PodAction::ReadDesired);
        }
    }

    /// Tries again, if it is time, to remove records without a pod.
    pub(crate) fn remove_leftovers(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        if self.leftover_wake.take_if(|at| *at <= now.mono).is_some() {
            actions.extend(self.leftovers.iter().cloned().map(removal));
        }
    }

    /// Takes the result of removing a record without a pod.
    pub(crate) fn leftover_removed(&mut self, now: Now, uid: PodUid, done: &Result<(), String>) {
        if done.is_ok() {
            self.leftovers.remove(&uid);
            self.leftover_retry.succeeded();
        } else {
            self.leftovers.insert(uid);
            self.leftover_retry.failed(now.mono);
            self.leftover_wake = Some(self.leftover_retry.due());
        }
    }

    /// The pod has a record from now on. Returns whether it has one on disk whose content is unknown.
    pub(crate) fn takes_over(&mut self, uid: &PodUid) -> bool {
        self.unreadable.remove(uid) | self.leftovers.remove(uid)
    }

    /// The API server has listed its pods: removes unreadable records of pods that are neither there nor
    /// known here.
    pub(crate) fn forget_unreadable(
        &mut self,
        is_known: impl Fn(&PodUid) -> bool,
        actions: &mut Vec<PodAction>,
    ) {
        let lost: Vec<PodUid> = self.unreadable.iter().filter(|uid| !is_known(uid)).cloned().collect();
        for uid in lost {
            self.unreadable.remove(&uid);
            actions.push(removal(uid));
        }
    }

    /// When one of these steps is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.wake.into_iter().chain(self.leftover_wake).min()
    }

    /// The number of kept entries.
    pub(crate) fn len(&self) -> usize {
        self.unreadable.len().saturating_add(self.leftovers.len())
    }
}

fn removal(uid: PodUid) -> PodAction {
    PodAction::SaveDesired { file: DesiredFile::Pod(uid), content: None }
}
