//! The index behind a lock, and watches as channels.
//!
//! Always holds: the writer thread alone changes the index, one batch under one write lock, so every reader sees whole batches in
//! the order of revisions. Left to `kedge_hub_core::state`: the objects, and which watcher gets which change.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kedge_hub_core::kinds::Kind;
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Changed, Index, Page, Query, Sink, Start, TooOld, WatchId, WatchRefused};
use tokio::sync::mpsc;

/// Changes that wait for one watcher; when it is further behind it is dropped and must watch again.
pub const WATCH_BACKLOG: usize = 1024;

/// The sending side of a watch.
#[derive(Debug)]
pub struct Sender(mpsc::Sender<Arc<Event>>);

impl Sink for Sender {
    fn take(&self, event: &Arc<Event>) -> bool {
        self.0.try_send(event.clone()).is_ok()
    }
}

#[derive(Debug)]
pub struct Memory {
    index: RwLock<Index<Sender>>,
}

impl Memory {
    pub fn new(index: Index<Sender>) -> Memory {
        Memory { index: RwLock::new(index) }
    }

    // a panic under the lock can only come from the writer, whose end stops the hub; readers go on until then
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Index<Sender>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index<Sender>> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest revision that readers can see.
    pub fn revision(&self) -> u64 {
        self.read().revision()
    }

    /// Objects of a kind.
    pub fn count(&self, kind: &Kind) -> usize {
        self.read().count(kind)
    }

    /// Open watches.
    pub fn watches(&self) -> usize {
        self.read().watches()
    }

    /// One object; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.read().get(kind, namespace, name)
    }

    /// Objects that name this UID as an owner, of all kinds.
    pub fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        self.read().dependents(uid)
    }

    /// All objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        self.read().in_namespace(namespace)
    }

    /// Lists the selected objects.
    pub fn list(&self, kind: &Kind, selection: &Selection, query: &Query<'_>) -> Result<Page, TooOld> {
        self.read().list(kind, selection, query)
    }

    /// Registers a watcher; see [`Index::watch`].
    pub fn watch(
        self: &Arc<Self>,
        kind: &Kind,
        selection: Selection,
        from: Option<u64>,
    ) -> Result<(Start, u64, Watch), WatchRefused> {
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
        let (start, revision, id) = self.write().watch(kind, selection.clone(), from, Sender(sender))?;
        Ok((start, revision, Watch { memory: self.clone(), id, selection, receiver }))
    }

    /// Makes changes visible: the writer's last step, after they are durable (or need not be).
    pub fn publish(&self, changes: Vec<Changed>) {
        self.write().publish(changes);
    }

    /// Whether all watches were ended.
    pub fn is_closed(&self) -> bool {
        self.read().is_closed()
    }

    /// Ends all watches and refuses new ones.
    pub fn close(&self) {
        self.write().close();
    }
}

/// A registered watcher; dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    memory: Arc<Memory>,
    id: WatchId,
    /// What it asked for.
    pub selection: Selection,
    /// Changes that concern it, in order. It ends when the watcher was too slow or the hub closes.
    pub receiver: mpsc::Receiver<Arc<Event>>,
}

impl Watch {
    /// A revision up to which every change is in the receiver or was taken from it.
    pub fn progress(&self) -> u64 {
        self.memory.revision()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.memory.write().unwatch(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::CONFIG_MAP;
    use serde_json::json;

    fn put(memory: &Memory) {
        let revision = memory.revision() + 1;
        let new = Object::new(&CONFIG_MAP, &json!({"metadata": {"namespace": "a", "name": "1"}}), revision);
        let event = Event { revision, old: None, new: new.map(Arc::new), last: None };
        memory.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event) }]);
    }

    #[test]
    fn slow_watcher_is_dropped_after_its_backlog() {
        let memory = Arc::new(Memory::new(Index::new(10)));
        let (_, _, mut slow) = memory.watch(&CONFIG_MAP, Selection::all(""), None).unwrap();
        for _ in 0..=WATCH_BACKLOG {
            put(&memory);
        }
        assert_eq!(memory.watches(), 0);
        let (_, _, mut quick) = memory.watch(&CONFIG_MAP, Selection::all(""), None).unwrap();
        put(&memory);
        assert!(quick.receiver.try_recv().is_ok());
        let mut received = 0;
        while slow.receiver.try_recv().is_ok() {
            received += 1;
        }
        assert_eq!(received, WATCH_BACKLOG);
        drop((slow, quick));
        assert_eq!(memory.watches(), 0);
    }
}
