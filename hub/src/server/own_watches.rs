//! A node's open watches, and the latest change that its renewals were told of.
//!
//! The answer to a renewal may name a change (`kedge_hub_core::state::Desired`); the node then waits for each
//! of its watches to reach it, and lists anew those that do not. Always holds: each watch reaches it, by the
//! change or by a bookmark, so a change that a watch does not show, such as that of a pod, leads to no list.
//! The bookmark is sent once a renewal has named a change, not at each change: ten changes between two
//! renewals need only one. This table also announces calls: at once on the watch of the node's own Node, and
//! in each answer to a renewal while a call waits. Left to others: the changes that concern a node, how a
//! watch reports its position (`watch`), calls themselves (`calls`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::Reminder;

/// The open watches of one node; see the module. Each node has one such table.
#[derive(Debug, Default)]
pub(super) struct OwnWatches {
    named: AtomicU64,
    open: Mutex<Vec<Reminder>>,
    /// The watches of the node's own Node.
    of_node: Mutex<Vec<Reminder>>,
    /// The calls that wait for the node.
    calls: Mutex<Vec<Arc<str>>>,
    /// True if some wait.
    is_called: AtomicBool,
}

impl OwnWatches {
    fn open(&self) -> MutexGuard<'_, Vec<Reminder>> {
        locked(&self.open)
    }

    /// Adds a new watch. The caller must then look up revisions that were named earlier.
    pub(super) fn add(&self, reminder: Reminder) {
        let mut open = self.open();
        open.retain(Reminder::is_open);
        open.push(reminder);
    }

    /// Adds a new watch of the node's own Node, which announces calls; returns the calls that wait already.
    pub(super) fn add_of_node(&self, reminder: Reminder) -> Vec<Arc<str>> {
        let mut open = locked(&self.of_node);
        open.retain(Reminder::is_open);
        open.push(reminder);
        // read after the watch was added: later calls remind the watch
        locked(&self.calls).clone()
    }

    /// True if the node would learn of a call at once.
    pub(super) fn is_watching(&self) -> bool {
        locked(&self.of_node).iter().any(Reminder::is_open)
    }

    /// Announces a call that waits for the node.
    pub(super) fn call(&self, id: &Arc<str>) {
        locked(&self.calls).push(Arc::clone(id));
        self.is_called.store(true, Ordering::Release);
        locked(&self.of_node).retain(|reminder| reminder.call(id));
    }

    /// The call no longer waits.
    pub(super) fn forget(&self, id: &Arc<str>) {
        let mut calls = locked(&self.calls);
        calls.retain(|known| known != id);
        self.is_called.store(!calls.is_empty(), Ordering::Release);
    }

    /// Whether a call waits.
    pub(super) fn is_called(&self) -> bool {
        self.is_called.load(Ordering::Acquire)
    }

    /// The ids of the waiting calls, separated by commas.
    pub(super) fn calls(&self) -> String {
        locked(&self.calls).join(",")
    }

    /// An answer to a renewal names this revision.
    pub(super) fn name(&self, revision: u64) {
        // the revision is hardly ever a new one
        if self.named.load(Ordering::Relaxed) < revision
            && self.named.fetch_max(revision, Ordering::AcqRel) < revision
        {
            self.open().retain(|reminder| reminder.name(revision));
        }
    }
}

fn locked<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    // a panic leaves the list consistent, because no change of it can panic half way
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
