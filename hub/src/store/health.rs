//! Whether changes can be made durable now, for requests, /readyz, /metrics and controllers, which must know
//! it even while the store's thread is busy or blocked.
//!
//! Owns: the condition of the store behind a lock, the clock for it, the start of the commit in progress, and
//! counters. Always holds: a query never waits for the disk. Left to others: the rules
//! (`kedge_hub_core::state::Condition`), the thread (`writer`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kedge_hub_core::state::{Condition, Effect, Failing, Refusal, Sort, WriteError};
use kedge_platform::Progress;

use super::StoreError;
use crate::memory;

/// A commit that takes longer than this is a stall: new changes are refused at once instead of waiting behind
/// it. Memory cards pause for a second or two when they erase.
pub const STALL: Duration = Duration::from_secs(5);

/// The store's condition; see the module.
#[derive(Debug)]
pub struct Health {
    base: Instant,
    condition: Mutex<Condition>,
    /// The reason why the thread ended by itself.
    ended: Mutex<Option<String>>,
    /// The start of the store's operation in progress, in milliseconds since `base`, plus one; 0 if there is
    /// none.
    busy_since: AtomicU64,
    failures: [AtomicU64; Sort::ALL.len()],
    refused: AtomicU64,
    /// The handle by which the thread reports its progress between operations of the store.
    turns: OnceLock<Progress>,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            base: Instant::now(),
            condition: Mutex::default(),
            ended: Mutex::default(),
            busy_since: AtomicU64::new(0),
            failures: Default::default(),
            refused: AtomicU64::new(0),
            turns: OnceLock::new(),
        }
    }
}

/// Marks an operation of the store as in progress until it is dropped.
pub(super) struct Busy<'a>(&'a Health);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy_since.store(0, Ordering::Release);
        self.0.turn(Progress::busy);
    }
}

impl Health {
    fn now(&self) -> Duration {
        self.base.elapsed()
    }

    /// Sets the handle by which the thread reports its progress.
    pub fn report_turns(&self, progress: Progress) {
        // ignored if already set: a second one would be another hub's
        drop(self.turns.set(progress));
    }

    /// Reports progress of the thread.
    pub(super) fn turn(&self, report: impl FnOnce(&Progress)) {
        if let Some(turns) = self.turns.get() {
            report(turns);
        }
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The age of the oldest unfinished commit; zero without one.
    pub fn oldest_unfinished_commit(&self) -> Duration {
        match self.busy_since.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => self.now().saturating_sub(Duration::from_millis(since - 1)),
        }
    }

    /// The reason why changes are refused, and for how long they have been.
    pub fn failing(&self) -> Option<(Failing, Duration)> {
        let now = self.now();
        let failing = self.condition().shown(now).cloned()?;
        let since = now.saturating_sub(failing.since);
        Some((failing, since))
    }

    /// True if the remaining room is reserved for deletions.
    pub fn is_full(&self) -> bool {
        self.condition()
            .failing()
            .is_some_and(|failing| matches!(failing.sort, Sort::Full | Sort::FullAtStart))
    }

    /// Failed operations by sort, for `/metrics`.
    pub fn failures(&self) -> [(Sort, u64); Sort::ALL.len()] {
        Sort::ALL.map(|sort| (sort, self.failures[sort as usize].load(Ordering::Relaxed)))
    }

    /// Number of changes that were refused without an attempt.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The reason why the store's thread ended by itself.
    pub fn end(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The refusal of a change, if none of its sort may be attempted now: the first check, on the thread of a
    /// request.
    pub(super) fn refusal(&self, frees_room: bool) -> Option<WriteError> {
        let stalled = self.oldest_unfinished_commit();
        let refusal = if stalled >= STALL {
            let why = format!("the disk has not finished a commit for {} s", stalled.as_secs());
            Some(Refusal { why, retry_after: STALL })
        } else {
            self.condition().refusal(frees_room, self.now())
        };
        refusal.map(|refusal| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            WriteError::Refused(refusal)
        })
    }

    /// Decides whether this change may be attempted now: the thread's own check, just before the attempt.
    pub(super) fn admit(&self, effect: &mut Effect) -> Result<(), WriteError> {
        let admitted = self.condition().admit(effect, self.now());
        admitted.map_err(|refusal| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            WriteError::Refused(refusal)
        })
    }

    /// Notes that an admitted change was not made.
    pub(super) fn not_made(&self, effect: &Effect) {
        self.condition().not_made(effect);
    }

    /// Notes that an admitted change is durable.
    pub(super) fn made(&self, effect: &Effect) {
        self.condition().made(effect);
    }

    /// True if changes are judged by their effect ([`Health::admit`]).
    pub(super) fn minds_effects(&self) -> bool {
        self.condition().minds_effects()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.condition().failing().is_some()
    }

    /// The time at which the store must be tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.condition().retry_at().map(|at| self.base + at)
    }

    /// Notes that an operation of the store begins; it may take any time.
    pub(super) fn busy(&self) -> Busy<'_> {
        memory::assert_unlocked();
        let millis = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX - 1);
        self.busy_since.store(millis + 1, Ordering::Release);
        // a disk may take any time, so the guard must not count it as a stall
        self.turn(Progress::idle);
        Busy(self)
    }

    /// Counts a failure caused by changes to objects of at least this size.
    pub(super) fn too_large(&self, error: &StoreError, bytes: usize) {
        self.failures[error.sort as usize].fetch_add(1, Ordering::Relaxed);
        self.condition().too_large(bytes, error.message.clone(), self.now());
    }

    /// Counts a failure caused by a single change. Returns true if it should be logged.
    pub(super) fn odd(&self, error: &StoreError) -> bool {
        self.failures[error.sort as usize].fetch_add(1, Ordering::Relaxed);
        self.condition().odd(self.now())
    }

    /// Counts a failure and begins its pause; `freeing`: the commit contained only changes that free room.
    pub(super) fn failed(&self, error: &StoreError, freeing: bool) {
        self.failures[error.sort as usize].fetch_add(1, Ordering::Relaxed);
        let (now, message) = (self.now(), error.message.clone());
        if freeing {
            self.condition().failed_to_free(error.sort, message, now);
        } else {
            self.condition().failed(error.sort, message, now);
        }
    }

    /// Notes that the store accepts changes again.
    pub(super) fn works(&self) {
        if let Some(failing) = self.condition().works() {
            let secs = self.now().saturating_sub(failing.since).as_secs();
            log::info!("the store takes changes again after {secs} s ({})", failing.sort.name());
        }
    }

    pub(super) fn ends(&self, why: String) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use kedge_platform::Watchdog;

    use super::*;

    #[test]
    fn operation_of_the_store_is_no_stall_of_its_thread() {
        let mut watchdog = Watchdog::new(Duration::from_secs(5));
        let health = Health::default();
        health.report_turns(watchdog.watch("store", Duration::from_secs(30)));
        health.turn(Progress::busy);
        let mut stalled = |secs| {
            (secs..secs + 60).map(|second| watchdog.check(Duration::from_secs(second)).stalled_names()).last()
        };
        assert_eq!(stalled(0), Some(vec!["store"]), "it computes and does not get on");
        let busy = health.busy();
        assert_eq!(stalled(60), Some(vec![]), "the disk is slow");
        drop(busy);
        assert_eq!(stalled(120), Some(vec!["store"]), "it computes again");
    }
}
