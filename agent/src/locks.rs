//! A lock that outlives a panic of another thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after another thread panicked: the data under these locks is consistent after every statement.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
