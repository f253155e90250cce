//! Finds the changes that are at fault for a failed commit, and answers all of them.
//!
//! Always holds: each change is answered once. If small changes can be made at once, one of the failed ones
//! is at fault: it is searched for by halves, in at most [`SIFT_TRIES`] commits, and the others are made.
//! Otherwise the store is at fault, and on a full disk only changes that free room are attempted again. Left
//! to others: the time of the next attempt (`kedge_hub_core::state`).

use kedge_hub_core::state::{Batch, SMALL_BYTES, Sort, WriteError, may_free_room};

use super::{Waiting, Worker, answer_to};
use crate::store::StoreError;

/// Most failed commits while the changes at fault are searched for: enough to find two of 2048.
const SIFT_TRIES: u32 = 24;

/// A failed commit, with changes that must be answered.
pub(super) struct Failed {
    pub(super) error: StoreError,
    pub(super) waiting: Vec<Waiting>,
    /// True if it contained only changes that free room.
    pub(super) freeing: bool,
    /// True if it contained no renewals.
    pub(super) alone: bool,
}

impl Failed {
    /// True if one change may be at fault, and nothing was written.
    fn may_be_a_change(&self) -> bool {
        let Failed { error, waiting, freeing, .. } = self;
        !freeing && !waiting.is_empty() && !error.uncertain && matches!(error.sort, Sort::Full | Sort::Other)
    }
}

impl Worker {
    /// Answers the changes of a failed commit. If the store works all the same, one of them is at fault.
    pub(super) fn failed(&mut self, failed: Failed) {
        if !failed.may_be_a_change() {
            return self.give_up(failed);
        }
        let health = self.health.clone();
        let busy = health.busy();
        let tried = self.store.trial();
        drop(busy);
        match tried {
            Ok(()) => self.sift(failed, &mut { SIFT_TRIES }),
            Err(error) => {
                if error.sort == Sort::Flush {
                    self.note(&error, false, 0);
                }
                self.give_up(failed);
            }
        }
    }

    /// Makes the changes that are not at fault: by halves, those of small objects first.
    fn sift(&mut self, mut failed: Failed, tries: &mut u32) {
        if !failed.may_be_a_change() {
            return self.give_up(failed);
        }
        failed.waiting.sort_by_key(Waiting::bytes);
        if *tries == 0 || (failed.alone && failed.waiting.len() == 1) {
            return self.blame(failed);
        }
        *tries -= 1;
        let mut first = failed.waiting;
        let rest = if failed.alone { first.split_off(first.len() / 2) } else { Vec::new() };
        for part in [first, rest] {
            let mut writes = part.into_iter().map(Waiting::again);
            while writes.len() > 0 {
                let (batch, waiting) = self.stage(&mut writes);
                if let Err(failed) = self.attempt(batch, waiting, 0) {
                    self.sift(failed, tries);
                }
            }
        }
    }

    /// Refuses the changes that are at fault, unless there is not even room for small ones.
    fn blame(&mut self, failed: Failed) {
        let Failed { error, waiting, .. } = &failed;
        let smallest = waiting.iter().map(Waiting::bytes).min().unwrap_or(0);
        let log = match error.sort {
            Sort::Full if smallest < SMALL_BYTES => return self.give_up(failed),
            Sort::Full => {
                self.health.too_large(error, smallest);
                true
            }
            _ => self.health.odd(error),
        };
        if log {
            log::error!("{error}; {} changes were not made, others are", waiting.len());
        }
        failed.waiting.into_iter().for_each(|change| (change.reply)(Err(answer_to(&failed.error))));
    }

    /// The store accepts no changes; on a full disk those that free room are attempted once without the
    /// others.
    fn give_up(&mut self, failed: Failed) {
        let Failed { error, waiting, freeing, .. } = failed;
        self.note(&error, freeing, waiting.len());
        if error.sort != Sort::Full || freeing {
            return waiting.into_iter().for_each(|change| (change.reply)(Err(answer_to(&error))));
        }
        let (mut batch, mut retried) = (Batch::default(), Vec::new());
        for change in waiting {
            let (write, reply) = change.again();
            if !may_free_room(&write) {
                reply(Err(answer_to(&error)));
                continue;
            }
            match self.stage_one(&mut batch, write, reply) {
                Ok(staged) => retried.push(staged),
                // it takes room, like the others
                Err((reply, WriteError::Refused(_))) => reply(Err(answer_to(&error))),
                Err((reply, other)) => reply(Err(other)),
            }
        }
        if !retried.is_empty() {
            self.commit(batch, retried, 0);
        }
    }
}
