//! Whether the store accepts changes: the effect of a failed commit on the following ones.
//!
//! Owns: the kinds of failures, the pause after each, and which change may be tried meanwhile. Always holds:
//! after a failed commit no other is tried before its pause is over, and pauses grow up to [`LONGEST_PAUSE`],
//! also when commits in between succeed; so the number of failed commits, and of log lines about them, does
//! not depend on the number of writing clients. On a full disk changes that free room have a separate pause,
//! and the bytes that they may add meanwhile are bounded, so that deletions always find room. A change that
//! is too large for the remaining room stops no smaller one. Left to others: the clock (times are arguments),
//! the disk, the effect of a change on the room (`room`), finding the faulty one of several changes, and the
//! answers.

use std::time::Duration;

use super::room::{Effect, Growth};

/// The reason why the store refused. Each has other consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// No room, on the disk or below the store's own limit. Nothing was written; changes that free room may
    /// still be made.
    Full,
    /// No room even to open the store for deletions.
    FullAtStart,
    /// The file system accepts no writes.
    ReadOnly,
    /// A read or a write failed.
    Io,
    /// A flush failed: the kernel's copy of the file may differ from the disk. Only a new process that reads
    /// the file again can tell.
    Flush,
    /// The content of the file is not as written.
    Damaged,
    /// Another process holds the store.
    Busy,
    /// Anything else: the store rejects one change.
    Other,
}

impl Sort {
    pub const ALL: [Sort; 8] = [
        Sort::Full,
        Sort::FullAtStart,
        Sort::ReadOnly,
        Sort::Io,
        Sort::Flush,
        Sort::Damaged,
        Sort::Busy,
        Sort::Other,
    ];

    /// In /readyz, /metrics and the log.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Full => "full",
            Sort::FullAtStart => "full-at-start",
            Sort::ReadOnly => "read-only",
            Sort::Io => "io-error",
            Sort::Flush => "flush-failed",
            Sort::Damaged => "damaged",
            Sort::Busy => "busy",
            Sort::Other => "other",
        }
    }

    /// The work that continues meanwhile, for people.
    pub fn consequence(self) -> &'static str {
        match self {
            Sort::Full => "reads, renewals and deletions go on, other changes are refused",
            Sort::Flush => "the hub starts again",
            Sort::Damaged => "reads and renewals go on, changes are refused until a backup is restored",
            Sort::FullAtStart | Sort::ReadOnly | Sort::Io | Sort::Busy | Sort::Other => {
                "reads and renewals go on, changes are refused"
            }
        }
    }
}

/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause: the hub notices within this time that a disk has room again, and a failing one costs
/// two tries a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A failure this long after the last one starts with the first pause again.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// The store counts as full if it lacks room even for an object smaller than this. A Node with its status has
/// about 20 KiB.
pub const SMALL_BYTES: usize = 64 * 1024;

/// The results of the last commits.
#[derive(Debug, Default)]
pub struct Condition {
    failing: Option<Failing>,
    usual: Pause,
    freeing: Pause,
    growth: Growth,
    tight: Option<Tight>,
    large: Pause,
    odd: Pause,
}

/// There is room, but not for large objects.
#[derive(Debug)]
struct Tight {
    shown: Failing,
    from_bytes: usize,
    /// Bytes that deletions have freed since.
    freed: usize,
}

/// The store accepts no changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    pub sort: Sort,
    /// The engine's words, with the path.
    pub message: String,
    /// The first failure since it last worked.
    pub since: Duration,
    /// Only changes to objects of this size or more are refused, for want of room.
    pub from_bytes: Option<usize>,
}

impl Failing {
    /// The work that continues meanwhile, for people.
    pub fn consequence(&self) -> &'static str {
        match self.from_bytes {
            Some(_) => "changes of large objects are refused, all others are made",
            None => self.sort.consequence(),
        }
    }
}

/// A change that is not tried at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
    pub retry_after: Duration,
}

#[derive(Debug, Default)]
struct Pause {
    failures: u32,
    last: Duration,
    until: Duration,
}

impl Pause {
    fn is_forgotten(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) > FORGOTTEN
    }

    fn failed(&mut self, now: Duration) {
        if self.is_forgotten(now) {
            self.failures = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.last = now;
        self.until = now + pause;
    }
}

impl Condition {
    /// A commit failed, or could not be started.
    pub fn failed(&mut self, sort: Sort, message: String, now: Duration) {
        if self.usual.is_forgotten(now) {
            self.growth = Growth::default();
        }
        self.usual.failed(now);
        let since = self.failing.as_ref().map_or(now, |failing| failing.since);
        self.failing = Some(Failing { sort, message, since, from_bytes: None });
    }

    /// A commit with only changes that free room failed, too.
    pub fn failed_to_free(&mut self, sort: Sort, message: String, now: Duration) {
        self.freeing.failed(now);
        if self.failing.is_none() {
            self.usual.failed(now);
        }
        let since = self.failing.as_ref().map_or(now, |failing| failing.since);
        self.failing = Some(Failing { sort, message, since, from_bytes: None });
    }

    /// There was no room for an object of so many bytes, though there is for small ones. For a while objects
    /// of at least the next lower power of two are refused without a try: so few steps lead down to
    /// [`SMALL_BYTES`] that a client which tries all sizes causes few failed commits.
    pub fn too_large(&mut self, bytes: usize, message: String, now: Duration) {
        let since = self.shown(now).map_or(now, |failing| failing.since);
        let from_bytes = 1 << bytes.max(SMALL_BYTES).ilog2();
        self.large.failed(now);
        let shown = Failing { sort: Sort::Full, message, since, from_bytes: Some(from_bytes) };
        self.tight = Some(Tight { shown, from_bytes, freed: 0 });
    }

    /// One change failed for a reason of its own. Returns whether to log it.
    pub fn odd(&mut self, now: Duration) -> bool {
        let is_new = now >= self.odd.until;
        if is_new {
            self.odd.failed(now);
        }
        is_new
    }

    /// The store accepts changes. Returns the failure that has ended.
    pub fn works(&mut self) -> Option<Failing> {
        self.tight = None;
        self.failing.take()
    }

    pub fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// Why some changes are refused, for people: large ones are, until a commit shows that there is room for
    /// them.
    pub fn shown(&self, now: Duration) -> Option<&Failing> {
        let tight = self.tight.as_ref().filter(|_| !self.large.is_forgotten(now));
        self.failing.as_ref().or(tight.map(|tight| &tight.shown))
    }

    /// Whether the decision about a change depends on its effect.
    pub fn minds_effects(&self) -> bool {
        self.failing.is_some() || self.tight.is_some()
    }

    /// When to try whether it works again. A damaged store does not repair itself.
    pub fn retry_at(&self) -> Option<Duration> {
        let failing = self.failing.as_ref()?;
        (failing.sort != Sort::Damaged).then_some(self.usual.until)
    }

    /// The refusal for all changes of this sort, if none may be tried now.
    pub fn refusal(&self, frees_room: bool, now: Duration) -> Option<Refusal> {
        let failing = self.failing.as_ref()?;
        let frees = frees_room && failing.sort == Sort::Full;
        if frees && now >= self.freeing.until {
            return None;
        }
        let until = if frees { self.freeing.until } else { self.usual.until };
        let why = format!("the store is {}: {}", failing.sort.name(), failing.message);
        Some(Refusal { why, retry_after: until.saturating_sub(now).max(FIRST_PAUSE) })
    }

    /// Whether this change may be tried now; on a full disk the bytes that it adds are counted, until
    /// [`Condition::not_made`].
    ///
    /// # Errors
    /// The change may not be tried.
    pub fn admit(&mut self, effect: &mut Effect, now: Duration) -> Result<(), Refusal> {
        let frees = matches!(effect, Effect::Ends(_));
        if let Some(refusal) = self.refusal(frees, now).or_else(|| self.refusal_of_large(effect, now)) {
            return Err(refusal);
        }
        let (Some(_), Effect::Ends(ending)) = (&self.failing, effect) else { return Ok(()) };
        ending.counted = self.growth.take(ending);
        if ending.counted {
            return Ok(());
        }
        let why =
            "the store is full, and objects that are being deleted have grown by all that is kept for that";
        Err(Refusal { why: why.to_owned(), retry_after: LONGEST_PAUSE })
    }

    fn refusal_of_large(&self, effect: &Effect, now: Duration) -> Option<Refusal> {
        let (Some(tight), Effect::Takes(bytes)) = (&self.tight, effect) else { return None };
        if *bytes < tight.from_bytes || now >= self.large.until {
            return None;
        }
        let (message, kib) = (&tight.shown.message, tight.from_bytes / 1024);
        let why = format!("the store is full: {message}; objects of less than {kib} KiB may still be stored");
        Some(Refusal { why, retry_after: (self.large.until - now).max(FIRST_PAUSE) })
    }

    /// An admitted change was not made, for whatever reason.
    pub fn not_made(&mut self, effect: &Effect) {
        if let Effect::Ends(ending) = effect
            && ending.counted
        {
            self.growth.undo(ending);
        }
    }

    /// An admitted change is durable.
    pub fn made(&mut self, effect: &Effect) {
        if let Effect::Ends(ending) = effect {
            self.growth.give_back(ending);
        }
        let Some(tight) = &mut self.tight else { return };
        let has_room = match effect {
            Effect::Takes(bytes) => *bytes >= tight.from_bytes,
            Effect::Ends(ending) => {
                tight.freed += ending.frees;
                tight.freed >= tight.from_bytes
            }
        };
        if has_room {
            self.tight = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::{ALL_GROWTH_BYTES, Ending, GROWTH_BYTES, NODE_GROWTH_BYTES};
    use super::super::{Expect, Write, may_free_room};
    use super::*;
    use crate::kinds::{CONFIG_MAP, POD};
    use crate::object::Object;
    use serde_json::json;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn pauses_double_and_stay_over_short_recoveries() {
        let mut condition = Condition::default();
        let mut now = secs(1000);
        let mut tries = 0;
        while now < secs(1600) {
            tries += 1;
            condition.failed(Sort::Full, "full".to_owned(), now);
            now = condition.retry_at().unwrap();
            // it works for a moment, and the next change fails again
            condition.works();
            assert_eq!(condition.refusal(false, now), None);
        }
        assert!(tries <= 5 + 600 / 30, "{tries} failed commits in ten minutes");
        condition.failed(Sort::Io, "later".to_owned(), now + FORGOTTEN + secs(31));
        assert_eq!(condition.retry_at(), Some(now + FORGOTTEN + secs(32)));
    }

    #[test]
    fn pause_goes_on_doubling_for_two_minutes() {
        for (after, pause) in [(FORGOTTEN, secs(2)), (FORGOTTEN + secs(1), secs(1))] {
            let mut condition = Condition::default();
            condition.failed(Sort::Io, String::new(), secs(1000));
            let now = secs(1000) + after;
            condition.failed(Sort::Io, String::new(), now);
            assert_eq!(condition.retry_at(), Some(now + pause), "{after:?}");
        }
    }

    #[test]
    fn log_says_what_goes_on_meanwhile() {
        for sort in Sort::ALL {
            let text = sort.consequence();
            assert_eq!(text.contains("deletions"), sort == Sort::Full, "{sort:?}");
            assert_eq!(text.contains("backup"), sort == Sort::Damaged, "{sort:?}");
            // a failed flush ends the process
            assert_eq!(text.contains("go on"), sort != Sort::Flush, "{sort:?}");
            let mut condition = Condition::default();
            condition.failed(sort, String::new(), secs(1));
            assert_eq!(condition.failing().map(Failing::consequence), Some(text));
        }
        let mut condition = Condition::default();
        condition.too_large(300_000, String::new(), secs(1));
        let text = condition.shown(secs(1)).map(Failing::consequence);
        assert_eq!(text, Some("changes of large objects are refused, all others are made"));
    }

    #[test]
    fn full_store_takes_what_frees_room_and_nothing_else() {
        let mut condition = Condition::default();
        assert_eq!(condition.refusal(false, secs(9)), None);
        condition.failed(Sort::Full, "no room in x".to_owned(), secs(9));
        let refused = condition.refusal(false, secs(9)).unwrap();
        assert_eq!((refused.why.as_str(), refused.retry_after), ("the store is full: no room in x", secs(1)));
        assert_eq!(condition.refusal(true, secs(9)), None);
        // also after the pause: one probe decides for all
        assert!(condition.refusal(false, secs(99)).is_some());
        condition.failed_to_free(Sort::Full, "no room in x".to_owned(), secs(10));
        assert!(condition.refusal(true, secs(10)).is_some());
        assert_eq!(condition.refusal(true, secs(11)), None);
        assert_eq!(condition.works().map(|failing| failing.since), Some(secs(9)));
        assert_eq!(condition.refusal(false, secs(11)), None);
    }

    #[test]
    fn other_failures_refuse_deletions_too() {
        for sort in Sort::ALL.into_iter().filter(|sort| *sort != Sort::Full) {
            let mut condition = Condition::default();
            condition.failed(sort, String::new(), secs(9));
            assert!(condition.refusal(true, secs(20)).is_some(), "{sort:?}");
            assert_eq!(condition.retry_at().is_none(), sort == Sort::Damaged, "{sort:?}");
        }
    }

    #[test]
    fn revocation_is_made_whatever_else_has_grown() {
        let list = |bytes: usize| json!({"metadata": {"namespace": "kube-system", "name": "kedge-denied"}, "data": {"node.a": "x".repeat(bytes)}});
        let listed = Object::new(&CONFIG_MAP, &list(9000), 3).unwrap();
        let mut condition = Condition::default();
        condition.failed(Sort::Full, String::new(), secs(9));
        assert!(admitted(&mut condition, "", 4096, secs(9)) > 0);
        for (namespace, bytes, current, expect) in [
            ("kube-system", 9000 + GROWTH_BYTES, Some(&listed), true),
            ("kube-system", 9001 + GROWTH_BYTES, Some(&listed), false),
            ("kube-system", 100, None, true),
            ("kube-system", 1 + GROWTH_BYTES, None, false),
            ("default", 9000, Some(&listed), false),
        ] {
            let write = Write {
                kind: &CONFIG_MAP,
                namespace: namespace.to_owned(),
                name: "kedge-denied".to_owned(),
                expect: Expect::Revision(3),
                requires: Vec::new(),
                new: Some(list(bytes)),
                volatile: false,
                author: None,
            };
            let admitted = condition.admit(&mut Effect::of(&write, current), secs(9)).is_ok();
            assert_eq!(admitted, expect, "{namespace} {bytes}");
            assert_eq!(may_free_room(&write), namespace == "kube-system");
        }
    }

    fn ending(payer: &str, grows: usize, frees: usize) -> Effect {
        let payer = Some(Box::from(payer)).filter(|_| !payer.is_empty());
        Effect::Ends(Ending { grows, frees, payer, counted: false })
    }

    /// How many changes that add so much are admitted.
    fn admitted(condition: &mut Condition, payer: &str, grows: usize, now: Duration) -> usize {
        (0..10_000).take_while(|_| condition.admit(&mut ending(payer, grows, 0), now).is_ok()).count()
    }

    #[test]
    fn ending_objects_grow_within_limits_of_their_own() {
        let mut condition = Condition::default();
        let now = secs(1000);
        condition.failed(Sort::Full, String::new(), now);
        let (all, one) = (ALL_GROWTH_BYTES / 4096, NODE_GROWTH_BYTES / 4096);
        assert_eq!(admitted(&mut condition, "node-0", 4096, now), one);
        assert_eq!(admitted(&mut condition, "node-0", 1, now), 0);
        // the other nodes get the rest, and the nodes' shares never take the room of other objects
        let others = (1..100).map(|node| admitted(&mut condition, &format!("node-{node}"), 4096, now));
        assert_eq!(others.sum::<usize>(), all - one);
        assert_eq!(admitted(&mut condition, "", 4096, now), all);
        // however much is used up, objects may be deleted, and that makes room for others
        for payer in ["", "node-0"] {
            let mut gone = ending(payer, 0, 4096);
            assert_eq!(condition.admit(&mut gone, now), Ok(()));
            assert_eq!(admitted(&mut condition, payer, 4096, now), 0, "it is not gone yet");
            condition.made(&gone);
            assert_eq!(admitted(&mut condition, payer, 4096, now), 1);
        }
    }

    #[test]
    fn node_pays_for_what_it_lets_grow() {
        let pod = |bytes: usize| {
            let (mark, time) = ("deletionTimestamp", "2026-01-01T00:00:00Z");
            json!({"metadata": {"namespace": "a", "name": "p", mark: time}, "status": {"message": "x".repeat(bytes)}})
        };
        let current = Object::new(&POD, &pod(0), 3).unwrap();
        let write = |author: &str, new| Write {
            kind: &POD,
            namespace: "a".to_owned(),
            name: "p".to_owned(),
            expect: Expect::Revision(3),
            requires: Vec::new(),
            new,
            volatile: false,
            author: Some(Box::from(author)).filter(|_| !author.is_empty()),
        };
        let mut condition = Condition::default();
        let now = secs(1000);
        condition.failed(Sort::Full, String::new(), now);
        let mut grow = |author: &str| {
            let effect = Effect::of(&write(author, Some(pod(4096))), Some(&current));
            (0..10_000).take_while(|_| condition.admit(&mut effect.clone(), now).is_ok()).count()
        };
        assert_eq!(grow("n"), NODE_GROWTH_BYTES / 4096, "ordinary pods on its node");
        assert_eq!(grow(""), ALL_GROWTH_BYTES / 4096, "nothing of it was the node's");
        // the node confirms the end of pods: its own use is given back first, then that of others
        let gone = Effect::of(&write("n", None), Some(&current));
        let Effect::Ends(Ending { frees, .. }) = gone else { panic!("{gone:?}") };
        (0..NODE_GROWTH_BYTES.div_ceil(frees)).for_each(|_| condition.made(&gone));
        assert_eq!((condition.growth.charged, condition.growth.payers.len()), (0, 0));
        let before = condition.growth.others;
        condition.made(&gone);
        assert_eq!(condition.growth.others, before - frees);
    }

    #[test]
    fn growth_that_was_not_made_counts_for_nothing() {
        let mut condition = Condition::default();
        let now = secs(1000);
        // counted only while the store is full
        let mut early = ending("", 4096, 0);
        assert_eq!(condition.admit(&mut early, now), Ok(()));
        condition.failed(Sort::Full, String::new(), now);
        for payer in ["", "system:node:n"] {
            let most = if payer.is_empty() { ALL_GROWTH_BYTES } else { NODE_GROWTH_BYTES } / 4096;
            for _ in 0..2 * most {
                let mut grown = ending(payer, 4096, 0);
                assert_eq!(condition.admit(&mut grown, now), Ok(()));
                condition.not_made(&grown);
            }
            assert_eq!(admitted(&mut condition, payer, 4096, now), most);
            condition.not_made(&early);
            let mut refused = ending(payer, 4096, 0);
            assert!(condition.admit(&mut refused, now).is_err());
            condition.not_made(&refused);
            assert_eq!(admitted(&mut condition, payer, 4096, now), 0);
        }
        assert_eq!(condition.growth.charged, NODE_GROWTH_BYTES);
    }

    #[test]
    fn growth_is_forgotten_with_the_failures() {
        let mut condition = Condition::default();
        let mut now = secs(1000);
        condition.failed(Sort::Full, String::new(), now);
        assert!(admitted(&mut condition, "", 4096, now) > 1);
        // it becomes full again and again
        for _ in 0..100 {
            now += LONGEST_PAUSE;
            condition.works();
            condition.failed(Sort::Full, String::new(), now);
            assert_eq!(admitted(&mut condition, "", 4096, now), 0);
        }
        now += FORGOTTEN + secs(1);
        condition.works();
        assert_eq!(condition.admit(&mut Effect::Takes(10), now), Ok(()), "it works");
        condition.failed(Sort::Full, String::new(), now);
        assert!(admitted(&mut condition, "", 4096, now) > 1);
    }

    #[test]
    fn large_object_without_room_stops_no_smaller_one() {
        let mut condition = Condition::default();
        let now = secs(1000);
        condition.too_large(300_000, "no room".to_owned(), now);
        assert_eq!(condition.failing(), None);
        assert_eq!(condition.shown(now).and_then(|failing| failing.from_bytes), Some(262_144));
        let admits =
            |condition: &mut Condition, bytes, now| condition.admit(&mut Effect::Takes(bytes), now).is_ok();
        assert!(admits(&mut condition, 262_143, now) && !admits(&mut condition, 262_144, now));
        assert_eq!(condition.admit(&mut ending("", 4096, 0), now), Ok(()));
        // one try is allowed after the pause
        assert!(admits(&mut condition, 1_000_000, now + secs(1)));
        assert!(condition.shown(now + secs(1)).is_some());
        assert_eq!(condition.shown(now + FORGOTTEN + secs(1)), None);
        // changes that show that there is room again
        condition.made(&ending("", 0, 200_000));
        assert!(!admits(&mut condition, 300_000, now));
        condition.made(&ending("", 0, 100_000));
        assert!(admits(&mut condition, 300_000, now));
        condition.too_large(300_000, String::new(), now);
        condition.made(&Effect::Takes(262_144));
        assert_eq!(condition.shown(now), None);
    }

    #[test]
    fn objects_of_all_sizes_fail_a_bounded_number_of_times() {
        let mut condition = Condition::default();
        let (mut now, mut tries) = (secs(1000), 0);
        while now < secs(1600) {
            for bytes in (SMALL_BYTES..1_500_000).rev().step_by(1000) {
                if condition.admit(&mut Effect::Takes(bytes), now).is_ok() {
                    tries += 1;
                    condition.too_large(bytes, String::new(), now);
                }
            }
            now += secs(1);
        }
        assert!(tries < 5 * (5 + 600 / 30), "{tries} failed commits in ten minutes");
    }
}
