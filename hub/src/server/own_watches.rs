//! The watches that a node has open, and the latest change that its renewals have named.
//!
//! A node that is named a change (`kedge_hub_core::state::Desired`) waits for each of its watches to come to it, and lists anew what one
//! does not show. Always holds: each watch comes to it, by the change or by a bookmark, so that a change of what no watch shows, as of
//! a pod, leads to no list. A bookmark is sent once a renewal has named a change, not at each change: ten changes between two
//! renewals are one. It also tells of calls: at once on the watch of the own Node, and in each answer to a renewal while a call waits.
//! Left to others: which changes concern a node, how a watch tells how far it has come (`watch`), what a call is (`calls`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::Reminder;

/// See the module. Each node has one.
#[derive(Debug, Default)]
pub(super) struct OwnWatches {
    named: AtomicU64,
    open: Mutex<Vec<Reminder>>,
    /// Of the own Node.
    of_node: Mutex<Vec<Reminder>>,
    /// The calls that wait for the node.
    calls: Mutex<Vec<Arc<str>>>,
    /// There are some.
    is_called: AtomicBool,
}

impl OwnWatches {
    fn open(&self) -> MutexGuard<'_, Vec<Reminder>> {
        locked(&self.open)
    }

    /// Adds a watch that begins. What was named before it is added is for it to look up after this.
    pub(super) fn add(&self, reminder: Reminder) {
        let mut open = self.open();
        open.retain(Reminder::is_open);
        open.push(reminder);
    }

    /// Adds a watch of the own Node that begins, which tells of calls; returns those that wait already.
    pub(super) fn add_of_node(&self, reminder: Reminder) -> Vec<Arc<str>> {
        let mut open = locked(&self.of_node);
        open.retain(Reminder::is_open);
        open.push(reminder);
        // after it was added: what comes later reminds it
        locked(&self.calls).clone()
    }

    /// Whether the node would hear of a call at once.
    pub(super) fn is_watching(&self) -> bool {
        locked(&self.of_node).iter().any(Reminder::is_open)
    }

    /// A call waits for the node.
    pub(super) fn call(&self, id: &Arc<str>) {
        locked(&self.calls).push(Arc::clone(id));
        self.is_called.store(true, Ordering::Release);
        locked(&self.of_node).retain(|reminder| reminder.call(id));
    }

    /// It does not wait any more.
    pub(super) fn forget(&self, id: &Arc<str>) {
        let mut calls = locked(&self.calls);
        calls.retain(|known| known != id);
        self.is_called.store(!calls.is_empty(), Ordering::Release);
    }

    /// Whether a call waits.
    pub(super) fn is_called(&self) -> bool {
        self.is_called.load(Ordering::Acquire)
    }

    /// The ids of the calls that wait, by commas.
    pub(super) fn calls(&self) -> String {
        locked(&self.calls).join(",")
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

fn locked<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    // nothing in it can panic half way
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
