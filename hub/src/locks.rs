//! Locks by the place of an object, for requests that lost a race for it.

use kedge_hub_core::requests::Place;

/// Number of locks; objects share them by a hash of their names, which costs only some waiting.
const LOCKS: usize = 64;

/// Queues of requests that write the same object; first come, first served.
#[derive(Debug)]
pub(crate) struct KeyedLocks(Vec<tokio::sync::Mutex<()>>);

impl Default for KeyedLocks {
    fn default() -> KeyedLocks {
        KeyedLocks((0..LOCKS).map(|_| tokio::sync::Mutex::new(())).collect())
    }
}

impl KeyedLocks {
    pub(crate) async fn lock(&self, place: &Place<'_>) -> tokio::sync::MutexGuard<'_, ()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (place.kind.plural, place.namespace, place.name).hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % LOCKS as u64).expect("it is below LOCKS");
        self.0[index].lock().await
    }
}
