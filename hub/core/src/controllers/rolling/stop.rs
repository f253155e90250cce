//! When a rollout stops, and when it resumes.
//!
//! Always holds: a stop is part of the [`Record`]. It lasts until a person changes the content (the
//! generation) or one of the two settings that were in force when it stopped. After a resume as many more
//! nodes may fail as before. A content that was rolled back once is stopped from the start when it returns,
//! and is not rolled back again. Leaves to others: which nodes failed, and the texts.

use std::fmt::Display;

use super::recorded::Record;

/// Names in the text of a stop.
const NAMED: usize = 5;

/// One look at a rollout.
pub(in crate::controllers) struct Stop<'a> {
    /// As it is recorded.
    pub(in crate::controllers) known: &'a Record,
    /// Changes with the content of the rollout.
    pub(in crate::controllers) generation: &'a str,
    /// Another value resumes a stopped rollout, and forgives the failures so far.
    pub(in crate::controllers) resume: &'a str,
    /// The limit as it is written; another value resumes a stopped rollout.
    pub(in crate::controllers) limit: &'a str,
    pub(in crate::controllers) failed: usize,
    /// Most nodes that may fail; `None`: any number.
    pub(in crate::controllers) most: Option<usize>,
    /// Only updates stop.
    pub(in crate::controllers) is_update: bool,
}

impl Stop<'_> {
    /// The record as it should be, and whether the rollout was stopped before. `why`: the text of a stop
    /// after more failures than the number that it is given. `again`: that of a stop because this was rolled
    /// back in an earlier generation.
    pub(in crate::controllers) fn next(
        &self,
        why: impl FnOnce(usize) -> String,
        again: impl FnOnce(&str) -> String,
    ) -> (Record, bool) {
        let anew = || Record { generation: self.generation.to_owned(), ..Record::default() };
        let known = self.known;
        let mut next = if known.generation == self.generation { known.clone() } else { anew() };
        let was_stopped = next.stopped.is_some();
        if let Some(before) = known.rolled_back.as_ref().filter(|_| next.generation != known.generation) {
            next.rolled_back = Some(before.clone());
            self.stop(&mut next, again(before));
        }
        if was_stopped && (next.resume != self.resume || next.limit != self.limit) {
            let forgiven = if next.resume == self.resume { 0 } else { self.failed };
            next = Record { forgiven, resume: self.resume.to_owned(), soaked: next.soaked, ..anew() };
        }
        if let Some(most) = self.most.map(|most| most + next.forgiven)
            && self.failed > most
            && next.stopped.is_none()
            && self.is_update
        {
            self.stop(&mut next, why(most));
        }
        (next, was_stopped)
    }

    fn stop(&self, record: &mut Record, why: String) {
        record.stopped = Some(why);
        self.resume.clone_into(&mut record.resume);
        self.limit.clone_into(&mut record.limit);
    }
}

/// `3 nodes failed, more than 2: a (why), b (why), c (why)`.
pub(in crate::controllers) fn failures<W: Display>(
    failed: impl ExactSizeIterator<Item = (String, W)>,
    most: usize,
) -> String {
    let count = failed.len();
    let shown: Vec<String> = failed.take(NAMED).map(|(node, why)| format!("{node} ({why})")).collect();
    let more = count.saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let nodes = if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
    format!("{nodes} failed, more than {most}: {}{more}", shown.join(", "))
}
