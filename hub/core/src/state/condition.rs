//! Whether the store takes changes: what a failed commit means for those that follow.
//!
//! Owns: the sorts of failures, the pause after each, and which change may be tried meanwhile. Always holds: after a failed commit no
//! other is tried before its pause is over, and pauses grow up to [`LONGEST_PAUSE`], also when commits in between succeed; so the
//! number of failed commits, and of lines about them, does not depend on how many clients write. On a full disk changes that free
//! room have a pause of their own. Left to others: the clock (times are given), the disk, and the answers.

use std::time::Duration;

use serde_json::Value;

use super::order::Write;
use crate::identity::denied::is_deny_list;
use crate::kinds::CONFIG_MAP;
use crate::object::Object;
use crate::value::text;

/// Why the store refused. Each sort has another consequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// No room, on the disk or below the store's own limit. Nothing was written; what frees room may still be made.
    Full,
    /// No room even to open the store for deletions.
    FullAtStart,
    /// The file system takes no writes.
    ReadOnly,
    /// A read or a write failed.
    Io,
    /// A flush failed: what the system holds of the file may differ from what is on the disk. Only a process that reads it anew knows.
    Flush,
    /// The file is not what was written to it.
    Damaged,
    /// Another process holds the store.
    Busy,
    /// Anything else: one change that the store does not take.
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

    /// What goes on meanwhile, for people.
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
/// The longest pause: a disk that has room again is noticed in this time, and a failing one costs two tries a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A failure this long after the last one starts with the first pause again.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// An object that is being deleted may grow by this much on a full disk: its deletion time, finalizers, the last status of a pod. So may
/// the list of revoked credentials, by the entries of several nodes.
const GROWTH_BYTES: usize = 4 * 1024;

/// What the last commits have shown.
#[derive(Debug, Default)]
pub struct Condition {
    failing: Option<Failing>,
    usual: Pause,
    freeing: Pause,
}

/// The store takes no changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    pub sort: Sort,
    /// The engine's words, with the path.
    pub message: String,
    /// The first failure since it last worked.
    pub since: Duration,
}

/// A change that is not tried now.
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
    fn failed(&mut self, now: Duration) {
        if now.saturating_sub(self.last) > FORGOTTEN {
            self.failures = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.last = now;
        self.until = now + pause;
    }
}

impl Condition {
    /// A commit, or the try to make one, failed.
    pub fn failed(&mut self, sort: Sort, message: String, now: Duration) {
        self.usual.failed(now);
        let since = self.failing.as_ref().map_or(now, |failing| failing.since);
        self.failing = Some(Failing { sort, message, since });
    }

    /// A commit of nothing but changes that free room failed, too.
    pub fn failed_to_free(&mut self, sort: Sort, message: String, now: Duration) {
        self.freeing.failed(now);
        if self.failing.is_none() {
            self.usual.failed(now);
        }
        let since = self.failing.as_ref().map_or(now, |failing| failing.since);
        self.failing = Some(Failing { sort, message, since });
    }

    /// The store takes changes. Returns what has ended.
    pub fn works(&mut self) -> Option<Failing> {
        self.failing.take()
    }

    pub fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// When to find out whether it works again. A damaged store does not mend itself.
    pub fn retry_at(&self) -> Option<Duration> {
        let failing = self.failing.as_ref()?;
        (failing.sort != Sort::Damaged).then_some(self.usual.until)
    }

    /// Whether a change may not be tried now.
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
}

/// Whether a change leads to room: a deletion, or a change of an object that is being deleted which hardly grows. A revocation counts as
/// one: a full disk must not keep a thief in.
pub fn frees_room(write: &Write, current: Option<&Object>) -> bool {
    let Some(new) = &write.new else { return true };
    let revokes = is_revocation(write);
    let ends = !text(new, &["metadata", "deletionTimestamp"]).is_empty();
    let before = match current {
        Some(current) => current.json.len(),
        None if revokes => 0,
        None => return false,
    };
    (ends || revokes) && bytes(new) <= before + GROWTH_BYTES
}

/// Whether a change may turn out to free room, from itself alone.
pub fn may_free_room(write: &Write) -> bool {
    let is_marked = |new: &Value| new["metadata"]["deletionTimestamp"].is_string();
    write.new.as_ref().is_none_or(is_marked) || is_revocation(write)
}

fn is_revocation(write: &Write) -> bool {
    write.kind.kind == CONFIG_MAP.kind && is_deny_list(&write.namespace, &write.name)
}

fn bytes(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::CONFIG_MAP;
    use crate::state::Expect;
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
            // it works for a moment: the next change fails again
            condition.works();
            assert_eq!(condition.refusal(false, now), None);
        }
        assert!(tries <= 5 + 600 / 30, "{tries} failed commits in ten minutes");
        condition.failed(Sort::Io, "later".to_owned(), now + FORGOTTEN + secs(31));
        assert_eq!(condition.retry_at(), Some(now + FORGOTTEN + secs(32)));
    }

    #[test]
    fn full_store_takes_what_frees_room_and_nothing_else() {
        let mut condition = Condition::default();
        assert_eq!(condition.refusal(false, secs(9)), None);
        condition.failed(Sort::Full, "no room in x".to_owned(), secs(9));
        let refused = condition.refusal(false, secs(9)).unwrap();
        assert_eq!((refused.why.as_str(), refused.retry_after), ("the store is full: no room in x", secs(1)));
        assert_eq!(condition.refusal(true, secs(9)), None);
        // also after the pause: one probe finds out for all
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
    fn only_ends_of_objects_free_room() {
        let old = json!({"metadata": {"namespace": "a", "name": "b", "finalizers": ["x/y"]}, "data": {}});
        let current = Object::new(&CONFIG_MAP, &old, 3).unwrap();
        let check = |new: Option<Value>, current: Option<&Object>, expect: bool| {
            let write = Write {
                kind: &CONFIG_MAP,
                namespace: "a".to_owned(),
                name: "b".to_owned(),
                expect: Expect::Revision(3),
                requires: Vec::new(),
                new,
                volatile: false,
                author: None,
            };
            assert_eq!(frees_room(&write, current), expect, "{write:?}");
        };
        let mut marked = old.clone();
        marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        check(None, Some(&current), true);
        check(Some(old), Some(&current), false);
        check(Some(marked.clone()), Some(&current), true);
        check(Some(marked.clone()), None, false);
        marked["data"]["grown"] = "x".repeat(GROWTH_BYTES + 100).into();
        check(Some(marked), Some(&current), false);
        let list = |bytes: usize| json!({"metadata": {"namespace": "kube-system", "name": "kedge-denied"}, "data": {"node.a": "x".repeat(bytes)}});
        let listed = Object::new(&CONFIG_MAP, &list(9000), 3).unwrap();
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
            assert_eq!(frees_room(&write, current), expect, "{namespace} {bytes}");
            assert_eq!(may_free_room(&write), namespace == "kube-system");
        }
    }
}
