//! Equal lines, folded: the first few are written, further ones within a minute are one line with their
//! number.
//!
//! Two lines are equal if they differ in nothing but the request's id and times. Always holds: nothing is
//! folded without being counted; memory is bounded, and without room lines are written one by one. Reads no
//! clock. Left to others: writing (`super`), and limits on lines that differ (`quota`).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::entry::{Entry, Note};
use crate::own;

/// Equal lines of a minute that are written one by one. A program that does the same thing every second takes
/// four lines a minute.
const WRITTEN: u32 = 3;
/// Equal lines are counted for this time, give or take a period of the counts.
const PERIOD: Duration = Duration::from_secs(60);
/// Most distinct lines that are remembered within a period, 32 bytes each.
const TOLD_APART: usize = 16 * 1024;
/// Bytes of folded lines that wait for their number.
const KEPT_BYTES: usize = 256 * 1024;

/// The folded lines of one log.
#[derive(Debug, Default)]
pub(super) struct Folds {
    // keyed at random, so that no caller can construct different lines with equal hashes
    hasher: RandomState,
    of: HashMap<u64, Fold>,
    since: Option<Instant>,
    kept: usize,
}

#[derive(Debug, Default)]
struct Fold {
    written: u32,
    repeats: u64,
    /// The last of the repeats.
    last: String,
    /// The quota that the line uses, and the act under which it is counted there.
    whose: Box<str>,
    act: Box<str>,
    is_own: bool,
}

/// A line that is written for several equal ones.
#[derive(Debug)]
pub(super) struct Folded {
    pub(super) repeats: u64,
    pub(super) line: String,
    pub(super) whose: Box<str>,
    pub(super) act: Box<str>,
    pub(super) is_own: bool,
}

impl Folds {
    /// Returns true if the line is folded into earlier ones; otherwise the caller must write it. `whose`: the
    /// key of the quota that it uses.
    pub(super) fn take(&mut self, entry: &Entry<'_>, whose: &str, line: &str, now: Instant) -> bool {
        let old = self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD);
        if old && self.kept == 0 {
            self.of.clear();
            self.since = Some(now);
        }
        let key = self.hasher.hash_one(facts(entry));
        if self.of.len() >= TOLD_APART && !self.of.contains_key(&key) {
            return false;
        }
        let fold = self.of.entry(key).or_default();
        if fold.written < WRITTEN {
            fold.written += 1;
            return false;
        }
        let kept = self.kept - fold.last.len() + line.len();
        if kept > KEPT_BYTES {
            return false;
        }
        self.kept = kept;
        if fold.repeats == 0 {
            (fold.whose, fold.act, fold.is_own) = (whose.into(), entry.act().into(), entry.is_own());
        }
        fold.repeats += 1;
        line.clone_into(&mut fold.last);
        true
    }

    /// The folded lines since the last call, each with its number.
    pub(super) fn lines(&mut self) -> Vec<Folded> {
        self.kept = 0;
        self.since = None;
        let folds = self.of.drain().filter(|(_, fold)| fold.repeats > 0);
        let mut lines: Vec<Folded> = folds.map(|(_, fold)| numbered(fold)).collect();
        lines.sort_unstable_by(|one, other| one.line.cmp(&other.line));
        lines
    }
}

/// Everything in a line except its id and times.
fn facts<'a>(entry: &'a Entry<'_>) -> impl Hash + use<'a> {
    let user = |user: &'a kedge_hub_core::identity::Identity| {
        (&user.user, &user.uid, &user.groups, &user.credential)
    };
    let act = (entry.verb, entry.object, entry.stage, entry.code, entry.uri);
    (user(entry.user), entry.impersonated.map(user), entry.from, entry.agent, act, entry.notes)
}

fn numbered(Fold { repeats, last, whose, act, is_own, .. }: Fold) -> Folded {
    let mut line: Value = own::read(last.as_bytes()).expect("we made it of JSON");
    line["annotations"][Note::Repeats.key()] = repeats.to_string().into();
    Folded { repeats, line: format!("{line}\n"), whose, act, is_own }
}

#[cfg(test)]
mod tests {
    use kedge_hub_core::identity::Identity;
    use time::OffsetDateTime;

    use super::*;
    use crate::audit::ObjectRef;

    fn take(folds: &mut Folds, change: impl FnOnce(&mut Entry), now: Instant) -> bool {
        let user = Identity::new("a", &[]);
        let mut entry = Entry::own(&user, "patch", OffsetDateTime::UNIX_EPOCH);
        change(&mut entry);
        folds.take(&entry, "a", &entry.line(), now)
    }

    #[test]
    fn equal_lines_become_one_with_their_number() {
        let (mut folds, now) = (Folds::default(), Instant::now());
        let written = (0..100).filter(|_| !take(&mut folds, |_| {}, now)).count();
        assert_eq!(written as u32, WRITTEN);
        // a difference in any fact makes another line
        let other = Identity::new("b", &[]);
        let notes = [(Note::DryRun, "true".to_owned())];
        let differ: [fn(&mut Entry); 6] = [
            |entry| entry.code = 403,
            |entry| entry.verb = "delete",
            |entry| entry.uri = "/x?dryRun=All",
            |entry| entry.agent = "kubectl",
            |entry| entry.from = Some([192, 0, 2, 1].into()),
            |entry| entry.object = ObjectRef { name: "m", ..ObjectRef::default() },
        ];
        for change in differ {
            assert!(!take(&mut folds, change, now));
        }
        let entry = Entry { user: &other, ..Entry::own(&other, "patch", OffsetDateTime::UNIX_EPOCH) };
        assert!(!folds.take(&entry, "b", &entry.line(), now));
        let own = Identity::new("a", &[]);
        for entry in [
            Entry { impersonated: Some(&other), ..Entry::own(&own, "patch", OffsetDateTime::UNIX_EPOCH) },
            Entry { notes: &notes, ..Entry::own(&own, "patch", OffsetDateTime::UNIX_EPOCH) },
        ] {
            assert!(!folds.take(&entry, "a", &entry.line(), now));
        }
        // but a difference in the id and the times does not
        assert!(take(&mut folds, |entry| (entry.id, entry.ended) = ("7", OffsetDateTime::now_utc()), now));
        let lines = folds.lines();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((line.repeats, &*line.whose, &*line.act), (98, "a", "patch  200"));
        let line: Value = serde_json::from_str(&line.line).unwrap();
        assert_eq!(
            (&line["annotations"]["kedge.dev/repeats"], &line["auditID"]),
            (&"98".into(), &"7".into())
        );
        assert!(folds.lines().is_empty());
        assert!(!take(&mut folds, |_| {}, now), "a new period begins");
        // a single repeat uses the quota of its identity, too
        assert_eq!((1..=WRITTEN).filter(|_| take(&mut folds, |_| {}, now)).count(), 1);
        let lines = folds.lines();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((line.repeats, &*line.whose, &*line.act), (1, "a", "patch  200"));
    }

    #[test]
    fn lines_of_another_minute_are_written_again() {
        let (mut folds, start) = (Folds::default(), Instant::now());
        for second in 0..600 {
            // slower than the limit per minute
            let now = start + Duration::from_secs(30 * second);
            assert!(!take(&mut folds, |_| {}, now), "{second}");
        }
    }

    #[test]
    fn fold_lasts_a_minute_and_keeps_what_it_counts() {
        let (mut folds, start) = (Folds::default(), Instant::now());
        let within = PERIOD - Duration::from_nanos(1);
        (0..WRITTEN).for_each(|_| assert!(!take(&mut folds, |_| {}, start)));
        assert!(!take(&mut folds, |_| {}, start + PERIOD), "another minute");
        for after in [Duration::ZERO, within].into_iter().cycle().take(WRITTEN as usize - 1) {
            assert!(!take(&mut folds, |_| {}, start + PERIOD + after));
        }
        assert!(take(&mut folds, |_| {}, start + PERIOD + within));
        // a folded line that waits for its number is not lost, however late the lines are fetched
        assert!(take(&mut folds, |_| {}, start + 3 * PERIOD));
        assert_eq!(folds.lines().iter().map(|line| line.repeats).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn kept_lines_use_all_their_room() {
        let (user, now) = (Identity::new("a", &[]), Instant::now());
        for (bytes, expect) in [(KEPT_BYTES, true), (KEPT_BYTES + 1, false)] {
            let (mut folds, line) = (Folds::default(), "x".repeat(bytes));
            let entry = Entry::own(&user, "patch", OffsetDateTime::UNIX_EPOCH);
            let folded = (0..=WRITTEN).map(|_| folds.take(&entry, "a", &line, now)).last();
            assert_eq!(folded, Some(expect), "{bytes}");
        }
    }

    #[test]
    fn memory_of_folds_is_bounded() {
        let (mut folds, now, user) = (Folds::default(), Instant::now(), Identity::new("a", &[]));
        let line = format!("{{\"requestURI\": \"{}\"}}\n", "x".repeat(500));
        for number in 0..TOLD_APART + 100 {
            let name = format!("{number:0256}");
            for _ in 0..=WRITTEN {
                let object = ObjectRef { name: &name, ..ObjectRef::default() };
                let entry = Entry { object, ..Entry::own(&user, "patch", OffsetDateTime::UNIX_EPOCH) };
                folds.take(&entry, "a", &line, now);
            }
        }
        assert!(folds.of.len() <= TOLD_APART && folds.kept <= KEPT_BYTES);
        assert_eq!(folds.kept, folds.of.values().map(|fold| fold.last.len()).sum::<usize>());
        assert!(folds.lines().len() > 300);
        assert_eq!((folds.of.len(), folds.kept), (0, 0));
    }
}
