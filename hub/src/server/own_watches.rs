//! The watches that a node has open, and the latest change that its renewals have named.
//!
//! A node that is named a change (`kedge_hub_core::state::Desired`) waits for each of its watches to come to it, and lists anew what one
//! does not show. Always holds: each watch comes to it, by the change or by a bookmark, so that a change of what no watch shows, as of
//! a pod, leads to no list. A bookmark is sent once a renewal has named a change, not at each change: ten changes between two
//! renewals are one. Left to others: which changes concern a node, how a watch tells how far it has come (`watch`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::Reminder;

/// See the module. Each node has one.
#[derive(Debug, Default)]
pub(super) struct OwnWatches {
    named: AtomicU64,
    open: Mutex<Vec<Reminder>>,
}

impl OwnWatches {
    fn open(&self) -> MutexGuard<'_, Vec<Reminder>> {
        // nothing in it can panic half way
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watch that begins. What was named before it is added is for it to look up after this.
    pub(super) fn add(&self, reminder: Reminder) {
        let mut open = self.open();
        open.retain(Reminder::is_open);
        open.push(reminder);
    }

    /// An answer names this revision.
    pub(super) fn name(&self, revision: u64) {
        // hardly ever is it another than in the answer before
        if self.named.load(Ordering::Relaxed) < revision
            && self.named.fetch_max(revision, Ordering::AcqRel) < revision
        {
            self.open().retain(|reminder| reminder.name(revision));
        }
    }
}
