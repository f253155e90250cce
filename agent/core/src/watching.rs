//! Keeps up the watch of one object: when it is listed, where a watch resumes, and how long to pause after an
//! end.
//!
//! A round is one order: a list, unless the watch resumes after a version, then the watch until it ends.
//! Always holds: one round of an object at a time, and the end of any other is ignored; a list costs as much
//! as all events of an hour, so a watch that broke off resumes where it was, unless it may have missed
//! something. Only a watch that worked ends the back-off, by living a minute or bringing events: a server
//! that opens each watch and ends it at once is contacted as rarely as one that is down. A state is logged
//! once, not each try.
//!
//! Answers to renewals may announce the latest change that concerns the node (`Kedge-Desired`). A watch that
//! does not show it is deaf, and the object is listed anew; unless the other watch has shown that change,
//! which then is about the other object. With `kedge.watch: off` a round ends with its list, and only such an
//! announcement leads to the next; without announcements, time does. Leaves to others: the requests
//! (`perform::watches`), the meaning of an object (`agent`).

use crate::answer::Now;
use crate::outbox::{HURRY, LONGEST_WAIT};
use crate::pace::{Backoff, Jitter};
use std::time::Duration;

/// How long a list may take at first, lookup and connection included.
const LIST_DEADLINE: Duration = Duration::from_secs(20);

/// How long reading a ConfigMap may take in the end: 1 MiB at 4 kB/s. Each failure doubles the time of the
/// next try: a dead link is found soon, and a slow one gets its time.
const LONGEST_DOWNLOAD: Duration = Duration::from_secs(5 * 60);

/// A watch that lived this long has worked: servers send a bookmark about every minute.
const LIVED_WELL: Duration = Duration::from_secs(60);

/// A watch that has not shown a change this long after its announcement is deaf; this is checked at renewals,
/// so at the first of these afterwards. A watch over a slow link lags behind the answer to a renewal by less.
const DEAF_AFTER: Duration = Duration::from_secs(5);

/// Without watches an object is read this often if no renewal announces changes: as rarely as a status is
/// sent.
const READ_EVERY: Duration = Duration::from_secs(5 * 60);

/// A list is read at least this often, whatever renewals announce: a server that was restored from a copy may
/// announce a number of an older history.
const READ_AT_LEAST: Duration = Duration::from_secs(60 * 60);

/// UID and resourceVersion of an object: two with both in common are the same.
pub type ObjectVersion = (String, String);

/// The watched objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// The own Node.
    Node,
    /// The ConfigMap that the Node names.
    ConfigMap,
    /// The pods bound to the node.
    Pods,
}

impl Watched {
    /// The stream on which it is watched, by its name in the log.
    pub fn stream(self) -> &'static str {
        match self {
            Self::Node => "watch-node",
            Self::ConfigMap => "watch-configmap",
            Self::Pods => "watch-pods",
        }
    }
}

/// One round of a watch, as ordered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchOrder {
    /// Number of the round: its end carries it.
    pub round: u64,
    /// Watch the events after this version; `None` means list first.
    pub after: Option<String>,
    /// The version that need not be read again.
    pub held: Option<ObjectVersion>,
    /// How long the list may take.
    pub list_deadline: Duration,
    /// The round ends with its list, and leaves no connection open.
    pub lists_only: bool,
    /// The watch needs only metadata, as a `PartialObjectMetadata`. A list returns whole objects all the
    /// same.
    pub metadata_only: bool,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchEnd {
    /// How long the watch was open; zero if it was not opened.
    pub lived: Duration,
    /// Whether it brought something newer than it began with.
    pub brought: bool,
    /// The version after which a watch may resume and miss nothing.
    pub resume: Option<String>,
    /// Why it failed, if the server did not end it in good order.
    pub failure: Option<(WatchFailure, String)>,
    /// The server refuses our credentials (401).
    pub is_refused: bool,
}

/// Why a list or a watch failed, by what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFailure {
    /// Nothing was learned about the object: the server is unreachable, untrusted, or refuses our
    /// credentials.
    Unreachable,
    /// The server refused this request, or sent an unreadable answer.
    Answered,
}

/// The report of the end of a round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EndReport {
    /// Why it failed.
    pub(crate) failure: Option<(WatchFailure, String)>,
    /// Whether it is of another kind than the failure before, or the first after a success: worth a line in
    /// the log.
    pub(crate) is_first: bool,
    /// The object could not be read.
    pub(crate) is_unreadable: bool,
    /// There was no network.
    pub(crate) is_unreachable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No round is ordered.
    Off,
    /// A round is under way.
    UnderWay,
    /// The next round is due then.
    Waiting { due: Duration },
    /// It was read, and is read again then, or when a change is announced.
    Read { due: Duration, at_last: Duration },
}

/// The watch of one object.
#[derive(Debug, Clone)]
pub(crate) struct Watching {
    object: Watched,
    lists_only: bool,
    metadata_only: bool,
    /// The last round was refused: a gateway may refuse the form, so the next requests whole objects.
    is_plain: bool,
    state: State,
    round: u64,
    /// Everything up to this revision was shown; `None` if the list is under way, or the server does not use
    /// such numbers.
    position: Option<u64>,
    /// The latest change that a renewal announced.
    latest: Option<u64>,
    /// The same when the list under way was ordered: a list shows everything that was announced before.
    named_before: Option<u64>,
    /// The first announced change beyond the position, and since when it is awaited.
    awaited: Option<(u64, Duration)>,
    /// The latest change that the other watch has shown.
    elsewhere: Option<u64>,
    /// Where the last round broke off, if a watch can resume there.
    resume: Option<String>,
    /// How the last round failed; `None` if it did not, or if it worked long enough to end the outage.
    failing: Option<WatchFailure>,
    backoff: Backoff,
}

impl Watching {
    pub(crate) fn new(object: Watched, lists_only: bool) -> Self {
        Self {
            object,
            lists_only,
            metadata_only: false,
            is_plain: false,
            state: State::Off,
            round: 0,
            position: None,
            latest: None,
            named_before: None,
            awaited: None,
            elsewhere: None,
            resume: None,
            failing: None,
            backoff: Backoff::default(),
        }
    }

    /// Resets everything but the number of the last round.
    fn forget(&mut self) {
        *self = Self { round: self.round, ..Self::new(self.object, self.lists_only) };
    }

    /// A round that begins with a list, in place of the one under way. Versions of one server or object mean
    /// nothing to another.
    pub(crate) fn list(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        self.resume = None;
        self.order(held)
    }

    /// Another object or server: earlier failures are irrelevant for it.
    pub(crate) fn list_another(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        self.forget();
        self.order(held)
    }

    /// From now on, until the server changes, its watches show metadata alone. Returns the round that resumes
    /// at the position of the watch under way, if there is one.
    pub(crate) fn narrow(&mut self) -> Option<WatchOrder> {
        if self.lists_only
            || std::mem::replace(&mut self.metadata_only, true)
            || self.state != State::UnderWay
        {
            return None;
        }
        self.resume = self.position.map(|position| position.to_string());
        Some(self.order(None))
    }

    /// Ends the watch.
    pub(crate) fn stop(&mut self) {
        self.forget();
    }

    /// The round that is due, if one is.
    pub(crate) fn poll(&mut self, now: Now, held: Option<ObjectVersion>) -> Option<WatchOrder> {
        let is_due = self.next_deadline().is_some_and(|due| due <= now.mono);
        is_due.then(|| self.order(held))
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.state {
            State::Waiting { due } => Some(due),
            State::Read { due, at_last } => Some(due.min(at_last)),
            State::Off | State::UnderWay => None,
        }
    }

    fn order(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        self.state = State::UnderWay;
        self.round = self.round.saturating_add(1);
        let after = self.resume.take();
        (self.position, self.awaited) = (None, None);
        self.named_before = self.latest.filter(|_| after.is_none());
        self.elsewhere = self.elsewhere.filter(|_| after.is_some());
        let Self { round, lists_only, .. } = *self;
        let metadata_only = self.metadata_only && !self.is_plain;
        WatchOrder { round, after, held, list_deadline: self.list_deadline(), lists_only, metadata_only }
    }

    /// The round has shown everything up to this version. Returns it, if the round counts and the server uses
    /// such numbers.
    pub(crate) fn has_come_to(&mut self, round: u64, version: &str) -> Option<u64> {
        let version = version.parse().ok().filter(|_| round == self.round);
        if round == self.round {
            self.position = version.max(self.named_before);
            self.awaited = self.awaited.filter(|(named, _)| Some(*named) > self.position);
        }
        version
    }

    /// The other watch has shown a change of this version: it is not about this object. An awaited change
    /// stays awaited, if it is another one.
    pub(crate) fn shown_elsewhere(&mut self, version: u64) {
        self.elsewhere = self.elsewhere.max(Some(version));
        self.awaited = self.awaited.filter(|(named, _)| *named != version);
    }

    /// The round is receiving a long event, which may be the awaited change.
    pub(crate) fn is_receiving(&mut self, now: Now, round: u64) {
        if let Some((_, since)) = self.awaited.as_mut().filter(|_| round == self.round) {
            *since = now.mono;
        }
    }

    /// The Lease was renewed, and the answer announced the latest change that concerns the node, or none.
    /// Returns whether the object must be listed now: the change has not been shown, and waiting for it is
    /// useless.
    pub(crate) fn named(&mut self, now: Now, latest: Option<u64>, jitter: &mut Jitter) -> bool {
        let has_fallen = latest.is_some() && latest < self.latest;
        self.latest = latest.or(self.latest);
        let Some(latest) = latest else { return false };
        if has_fallen {
            // another history: earlier versions do not count, and no watch can resume after them
            (self.resume, self.elsewhere) = (None, None);
            return matches!(self.state, State::UnderWay | State::Read { .. });
        }
        // A bookmark of the other watch does not count: it does not show the changes that this one missed.
        // Where lists replace watches, a list does not count either: it may show a later change than the
        // announced one.
        let is_elsewhere = !self.lists_only && self.awaited.is_none() && self.elsewhere >= Some(latest);
        if is_elsewhere || self.position.is_none_or(|position| position >= latest) {
            if let State::Read { due, .. } = &mut self.state {
                *due = now.mono.saturating_add(jitter.stretch(READ_EVERY, 0.25));
            }
            return false;
        }
        let (_, since) = *self.awaited.get_or_insert((latest, now.mono));
        match self.state {
            State::UnderWay => now.mono >= since.saturating_add(DEAF_AFTER),
            State::Read { .. } => true,
            State::Off | State::Waiting { .. } => false,
        }
    }

    /// The node changed the object itself. A watch shows that; without one it is read.
    pub(crate) fn changed_by_us(&mut self, now: Now) {
        if let State::Read { due, .. } = &mut self.state {
            *due = now.mono;
        }
    }

    pub(crate) fn lists_only(&self) -> bool {
        self.lists_only
    }

    /// A Node is never large enough to need more than the least.
    fn list_deadline(&self) -> Duration {
        match self.object {
            Watched::Node => LIST_DEADLINE,
            Watched::ConfigMap | Watched::Pods => {
                LIST_DEADLINE.saturating_mul(1 << self.backoff.failures().min(8)).min(LONGEST_DOWNLOAD)
            }
        }
    }

    /// A round ended.
    pub(crate) fn ended(&mut self, now: Now, round: u64, end: WatchEnd, jitter: &mut Jitter) -> EndReport {
        if (self.state, round) != (State::UnderWay, self.round) {
            return EndReport::default();
        }
        if self.lists_only && end.failure.is_none() {
            self.backoff.succeeded();
            self.failing = None;
            let due = now.mono.saturating_add(jitter.stretch(READ_EVERY, 0.25));
            self.state =
                State::Read { due, at_last: now.mono.saturating_add(jitter.stretch(READ_AT_LEAST, 0.25)) };
            return EndReport::default();
        }
        let was_failing = self.failing;
        if end.lived >= LIVED_WELL || end.brought {
            self.backoff.succeeded();
            self.failing = None;
        }
        let failure = end.failure.as_ref().map(|(failure, _)| *failure);
        self.is_plain = failure == Some(WatchFailure::Answered) && end.lived.is_zero() && !self.is_plain;
        // A refused watch after a list that was read proves nothing about the object. It may be about to be
        // another one: the server ends its watch as soon as the Node names that one, perhaps before the node
        // learns of it.
        let was_read = end.resume.is_some();
        // A refused version may be refused for ever: a hub restored from a backup is behind it. And an object
        // that was reported as unreadable counts as readable only after a list.
        self.resume = end.resume.filter(|_| failure != Some(WatchFailure::Answered));
        self.state =
            State::Waiting { due: now.mono.saturating_add(self.backoff.failed(LONGEST_WAIT, jitter)) };
        let Some((failure, why)) = end.failure else { return EndReport::default() };
        let before = self.failing.replace(failure);
        // one try that fails for lack of a network is not worth a condition; a download that keeps failing is
        let is_list_again = end.lived.is_zero() && was_failing.is_some();
        let is_unreadable = !was_read && (failure == WatchFailure::Answered || is_list_again);
        EndReport {
            failure: Some((failure, why)),
            is_first: before != Some(failure),
            is_unreadable: self.object == Watched::ConfigMap && is_unreadable,
            is_unreachable: failure == WatchFailure::Unreachable && end.lived.is_zero(),
        }
    }

    /// The network is back: a round that failed for lack of it need not wait any longer.
    pub(crate) fn hurry(&mut self, now: Now, jitter: &mut Jitter) {
        if let State::Waiting { due } = &mut self.state
            && self.failing == Some(WatchFailure::Unreachable)
        {
            *due = (*due).min(now.mono.saturating_add(jitter.within(HURRY)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WatchFailure::{Answered, Unreachable};
    use kedge_api::Timestamp;

    fn at(due: Duration) -> Now {
        Now { mono: due, wall: Timestamp::default() }
    }

    /// A watch and the time.
    struct Bench {
        watching: Watching,
        jitter: Jitter,
        now: Duration,
        order: WatchOrder,
    }

    impl Bench {
        fn of(object: Watched) -> Self {
            Self::following(object, false)
        }

        fn following(object: Watched, lists_only: bool) -> Self {
            let mut watching = Watching::new(object, lists_only);
            let order = watching.list(None);
            Self { watching, jitter: Jitter::new(7), now: Duration::from_secs(100), order }
        }

        /// The round shows everything up to this version.
        fn come_to(&mut self, version: &str) {
            self.watching.has_come_to(self.order.round, version);
        }

        /// A renewal announces this change, ten seconds after the one before. Returns whether the object must
        /// be listed; then it is.
        fn renewal_names(&mut self, latest: u64) -> bool {
            self.now += Duration::from_secs(10);
            let lists = self.watching.named(at(self.now), Some(latest), &mut self.jitter);
            if lists {
                self.order = self.watching.list(None);
            }
            lists
        }

        fn end(&mut self, end: WatchEnd) -> EndReport {
            self.watching.ended(at(self.now), self.order.round, end, &mut self.jitter)
        }

        /// The pause after the round that ended; then the next begins.
        fn pause(&mut self) -> Duration {
            let due = self.watching.next_deadline().expect("it goes on");
            let before = due - Duration::from_nanos(1);
            assert_eq!(self.watching.poll(at(before), None), None, "too early");
            self.order = self.watching.poll(at(due), None).expect("it is due");
            let pause = due - self.now;
            self.now = due;
            pause
        }

        #[track_caller]
        fn check_pause(&mut self, secs: u64) {
            let (pause, expect) = (self.pause(), Duration::from_secs(secs));
            assert!(pause >= expect && pause <= expect.mul_f64(1.25), "{pause:?}, expected about {secs} s");
        }
    }

    fn failed(failure: WatchFailure) -> WatchEnd {
        WatchEnd { failure: Some((failure, "no".into())), ..WatchEnd::default() }
    }

    /// The end of a watch that was open for this long, and then broke off at version 9.
    fn lived(secs: u64) -> WatchEnd {
        WatchEnd { lived: Duration::from_secs(secs), resume: Some("9".into()), ..failed(Unreachable) }
    }

    #[test]
    fn pauses_and_download_time_double_until_a_success() {
        let mut bench = Bench::of(Watched::ConfigMap);
        let mut deadlines = Vec::new();
        for expect in [1, 2, 4, 8, 16, 30, 30] {
            deadlines.push(bench.order.list_deadline.as_secs());
            bench.end(failed(Unreachable));
            bench.check_pause(expect);
        }
        assert_eq!(deadlines, [20, 40, 80, 160, 300, 300, 300]);
        bench.end(lived(60));
        bench.check_pause(1);
        assert_eq!(bench.order.list_deadline, 2 * LIST_DEADLINE);
        let mut node = Bench::of(Watched::Node);
        for _ in 0..40 {
            node.end(failed(Unreachable));
            node.pause();
        }
        assert_eq!(node.order.list_deadline, LIST_DEADLINE);
    }

    #[test]
    fn object_is_read_about_once_an_hour_whatever_is_named() {
        let mut bench = Bench::following(Watched::ConfigMap, true);
        bench.come_to("7");
        bench.end(WatchEnd::default());
        let begun = bench.now;
        while bench.watching.poll(at(bench.now), None).is_none() {
            assert!(!bench.renewal_names(7), "it has come to that");
            assert!((bench.now - begun).as_secs() < 10_000, "it is read at some time");
        }
        let after = (bench.now - begun).as_secs();
        assert!((3600..=4520).contains(&after), "after {after} s");
    }

    #[test]
    fn reads_of_a_fleet_spread() {
        let due = |seed: u64| {
            let mut bench = Bench::following(Watched::ConfigMap, true);
            bench.jitter = Jitter::new(seed * 7919);
            bench.end(WatchEnd::default());
            bench.watching.next_deadline().expect("it goes on") - bench.now
        };
        let dues: std::collections::BTreeSet<Duration> = (1..=20).map(due).collect();
        assert!(dues.len() >= 15, "{dues:?}");
        assert!(dues.iter().all(|due| (READ_EVERY..=READ_EVERY.mul_f64(1.25)).contains(due)), "{dues:?}");
    }

    #[test]
    fn only_life_or_news_ends_the_back_off() {
        for (end, is_reset) in [
            (WatchEnd { lived: Duration::from_secs(59), ..WatchEnd::default() }, false),
            (WatchEnd { lived: Duration::from_secs(60), ..WatchEnd::default() }, true),
            (WatchEnd { lived: Duration::from_millis(1), brought: true, ..failed(Answered) }, true),
            (WatchEnd { lived: Duration::from_millis(1), ..failed(Answered) }, false),
            (lived(59), false),
            (lived(60), true),
        ] {
            let mut bench = Bench::of(Watched::Node);
            for expect in [1, 2, 4] {
                bench.end(failed(Unreachable));
                bench.check_pause(expect);
            }
            bench.end(end);
            bench.check_pause(if is_reset { 1 } else { 8 });
        }
    }

    #[test]
    fn refused_watch_of_metadata_is_followed_by_a_whole_one() {
        let mut bench = Bench::of(Watched::Node);
        assert!(!bench.order.metadata_only, "the server has not said what it is");
        bench.order = bench.watching.narrow().expect("a round is under way");
        assert!(bench.order.metadata_only && bench.watching.narrow().is_none(), "once");
        for (end, is_metadata) in [
            (failed(Unreachable), true),
            // a gateway that refuses the form: whole objects for a round, as long as it lives
            (failed(Answered), false),
            (lived(1800), true),
            (failed(Answered), false),
            // the form was not the reason
            (failed(Answered), true),
            (lived(1800), true),
        ] {
            bench.end(end.clone());
            bench.pause();
            assert_eq!(bench.order.metadata_only, is_metadata, "{end:?}");
        }
        // another server
        bench.order = bench.watching.list_another(None);
        assert!(!bench.order.metadata_only);
    }

    #[test]
    fn round_of_metadata_goes_on_where_the_watch_was() {
        let mut bench = Bench::of(Watched::Node);
        bench.watching.has_come_to(bench.order.round, "41");
        let order = bench.watching.narrow().expect("a round is under way");
        assert_eq!((order.after.as_deref(), order.metadata_only), (Some("41"), true));
        let mut lists = Bench::following(Watched::Node, true);
        assert!(lists.watching.narrow().is_none(), "without watches there is nothing to narrow");
    }

    #[test]
    fn broken_watch_resumes_and_a_refused_one_is_listed() {
        for (end, expect) in [
            (lived(5), Some("9")),
            (WatchEnd { resume: Some("9".into()), ..WatchEnd::default() }, Some("9")),
            (WatchEnd { resume: Some("9".into()), ..failed(Answered) }, None),
            (WatchEnd::default(), None),
        ] {
            let mut bench = Bench::of(Watched::ConfigMap);
            bench.end(end);
            bench.pause();
            assert_eq!(bench.order.after.as_deref(), expect);
        }
        let mut bench = Bench::of(Watched::Node);
        bench.end(lived(5));
        assert_eq!(bench.watching.list_another(None).after, None, "another server");
        assert_eq!(bench.watching.list(None).after, None);
    }

    #[test]
    fn end_of_another_round_is_ignored() {
        let mut bench = Bench::of(Watched::Node);
        let old = bench.order.round;
        bench.order = bench.watching.list_another(None);
        assert_eq!(
            bench.watching.ended(at(bench.now), old, failed(Answered), &mut bench.jitter),
            EndReport::default()
        );
        assert_eq!(bench.watching.next_deadline(), None, "the new one is under way");
        bench.end(failed(Answered));
        let due = bench.watching.next_deadline();
        bench.end(failed(Answered));
        assert_eq!(bench.watching.next_deadline(), due, "told twice");
        bench.watching.stop();
        assert_eq!(bench.watching.next_deadline(), None);
    }

    #[test]
    fn state_is_logged_once() {
        let mut bench = Bench::of(Watched::Node);
        let mut logged = Vec::new();
        for end in [
            failed(Unreachable),
            failed(Unreachable),
            WatchEnd { lived: Duration::from_secs(2), ..failed(Unreachable) },
            failed(Answered),
            failed(Answered),
            lived(90),
            failed(Unreachable),
        ] {
            logged.push(bench.end(end).is_first);
            bench.pause();
        }
        assert_eq!(logged, [true, false, false, true, false, true, false]);
    }

    #[test]
    fn object_is_unreadable_when_refused_or_failing_again() {
        let unreadable = |bench: &mut Bench, end: WatchEnd| {
            let report = bench.end(end);
            bench.pause();
            report.is_unreadable
        };
        let mut bench = Bench::of(Watched::ConfigMap);
        assert!(!unreadable(&mut bench, failed(Unreachable)));
        assert!(unreadable(&mut bench, failed(Unreachable)));
        // a watch that broke off proves nothing about the object
        assert!(!unreadable(&mut bench, lived(90)));
        assert!(!unreadable(&mut bench, WatchEnd { lived: Duration::ZERO, ..lived(0) }));
        assert!(unreadable(&mut bench, failed(Answered)));
        assert!(!unreadable(&mut Bench::of(Watched::Node), failed(Answered)));
        // the source may name another object already: the earlier list counts until a list is refused
        let mut bench = Bench::of(Watched::ConfigMap);
        let refused_watch = WatchEnd { resume: Some("48".into()), ..failed(Answered) };
        assert!(!unreadable(&mut bench, refused_watch.clone()));
        assert!(!unreadable(&mut bench, refused_watch), "each after a list of its own");
        assert!(unreadable(&mut bench, failed(Answered)));
    }

    #[test]
    fn network_that_is_back_ends_only_the_waits_for_it() {
        for (failure, is_hurried) in [(Unreachable, true), (Answered, false)] {
            let mut bench = Bench::of(Watched::Node);
            for _ in 0..8 {
                bench.end(failed(failure));
                bench.pause();
            }
            bench.end(failed(failure));
            let before = bench.watching.next_deadline();
            bench.watching.hurry(at(bench.now), &mut bench.jitter);
            let due = bench.watching.next_deadline();
            assert_eq!(due != before, is_hurried, "{failure:?}");
            assert!(!is_hurried || due <= Some(bench.now + HURRY));
        }
    }

    #[test]
    fn watch_behind_what_was_named_is_listed_a_period_later() {
        let mut bench = Bench::of(Watched::Node);
        bench.come_to("100");
        assert!(!bench.renewal_names(100) && !bench.renewal_names(100));
        assert!(!bench.renewal_names(101), "it may be on its way");
        bench.come_to("101");
        assert!(!bench.renewal_names(101), "it was");
        // the change never arrives, and later ones are announced meanwhile
        assert!(!bench.renewal_names(102) && bench.renewal_names(103));
        assert_eq!(bench.order.after, None);
        assert!(!bench.renewal_names(104) && !bench.renewal_names(105), "the list is under way");
        bench.come_to("103");
        assert!(!bench.renewal_names(105) && bench.renewal_names(105));
        // whatever its version: it has everything that was announced when it was ordered
        bench.come_to("9");
        assert!(!bench.renewal_names(105) && !bench.renewal_names(105));
    }

    #[test]
    fn change_that_the_other_watch_shows_is_not_awaited() {
        let mut bench = Bench::of(Watched::Node);
        bench.come_to("100");
        // shown before it is announced, and after
        bench.watching.shown_elsewhere(101);
        assert!(!bench.renewal_names(101) && !bench.renewal_names(101));
        assert!(!bench.renewal_names(102), "it may be on its way");
        bench.watching.shown_elsewhere(102);
        // the node reported its status, which is not announced
        bench.watching.shown_elsewhere(103);
        assert!(!bench.renewal_names(102) && !bench.renewal_names(102));
        // another one is still awaited
        assert!(!bench.renewal_names(104));
        bench.watching.shown_elsewhere(105);
        assert!(bench.renewal_names(105), "nobody has shown 104");
        bench.come_to("105");
        // of another history
        assert!(bench.renewal_names(40));
        bench.come_to("40");
        assert!(!bench.renewal_names(41) && bench.renewal_names(41));
    }

    #[test]
    fn without_watches_each_object_is_read_for_itself() {
        let mut bench = Bench::following(Watched::ConfigMap, true);
        read(&mut bench, "100");
        bench.watching.shown_elsewhere(102);
        assert!(bench.renewal_names(102), "it may have changed at 101");
    }

    #[test]
    fn watch_that_keeps_up_is_never_taken_for_deaf() {
        let mut bench = Bench::of(Watched::Node);
        bench.come_to("100");
        // somebody changes the Node all the time: each answer announces a change that the watch shows a
        // moment later
        for latest in 101..400 {
            assert!(!bench.renewal_names(latest), "{latest}");
            bench.come_to(&latest.to_string());
        }
        // a large object over a slow link
        for _ in 0..30 {
            assert!(!bench.renewal_names(400));
            bench.watching.is_receiving(at(bench.now + Duration::from_secs(8)), bench.order.round);
        }
        bench.come_to("400");
        assert!(!bench.renewal_names(400));
    }

    #[test]
    fn change_announced_during_a_watch_outage_waits_a_round() {
        let mut bench = Bench::of(Watched::Node);
        bench.come_to("9");
        bench.end(lived(90));
        assert!(!bench.renewal_names(12) && !bench.renewal_names(12));
        bench.now = bench.watching.next_deadline().expect("it goes on").max(bench.now);
        bench.order = bench.watching.poll(at(bench.now), None).expect("it is due");
        assert_eq!(bench.order.after.as_deref(), Some("9"));
        bench.come_to("9");
        assert!(!bench.renewal_names(12));
        bench.come_to("12");
        assert!(!bench.renewal_names(12));
    }

    /// Ends the round well; returns the pause until it is read again without announcements.
    fn read(bench: &mut Bench, version: &str) -> Duration {
        bench.come_to(version);
        bench.end(WatchEnd::default());
        bench.watching.next_deadline().expect("it is read again") - bench.now
    }

    #[test]
    fn without_watches_only_a_named_change_is_read() {
        let mut bench = Bench::following(Watched::ConfigMap, true);
        assert!(bench.order.lists_only);
        assert!(read(&mut bench, "100") >= READ_EVERY, "nothing is named");
        assert!(!bench.renewal_names(100));
        assert!(bench.renewal_names(101), "at once: nothing else would show it");
        read(&mut bench, "101");
        let begun = bench.now;
        while bench.now < begun + Duration::from_secs(50 * 60) {
            assert!(!bench.renewal_names(101));
            assert_eq!(bench.watching.poll(at(bench.now), None), None);
        }
        assert!(bench.watching.next_deadline() < Some(begun + READ_AT_LEAST * 2), "never trusted for ever");
        // a failure is retried as usual
        assert!(bench.renewal_names(102));
        bench.end(failed(Unreachable));
        bench.check_pause(1);
        assert!(bench.order.lists_only);
    }

    #[test]
    fn without_watches_an_own_change_is_read_at_once() {
        let mut bench = Bench::following(Watched::Node, true);
        read(&mut bench, "100");
        bench.watching.changed_by_us(at(bench.now));
        assert_eq!(bench.watching.next_deadline(), Some(bench.now));
        let mut watched = Bench::of(Watched::Node);
        watched.watching.changed_by_us(at(watched.now));
        assert_eq!(watched.watching.next_deadline(), None, "the watch shows it");
    }

    #[test]
    fn name_that_fell_is_of_another_history() {
        for lists_only in [false, true] {
            let mut bench = Bench::following(Watched::Node, lists_only);
            bench.come_to("100");
            if lists_only {
                bench.end(WatchEnd::default());
            }
            assert!(!bench.renewal_names(90));
            assert!(bench.renewal_names(40));
            bench.come_to("41");
            if lists_only {
                bench.end(WatchEnd::default());
            }
            assert!(!bench.renewal_names(41));
            assert!(bench.renewal_names(50) || bench.renewal_names(50));
        }
        // between two rounds: the next one does not resume in the old history
        let mut bench = Bench::of(Watched::Node);
        assert!(!bench.renewal_names(100));
        bench.end(lived(90));
        assert!(!bench.renewal_names(40));
        let next = bench.watching.poll(at(bench.now), None).expect("it is due");
        assert_eq!(next.after, None);
    }

    #[test]
    fn fleet_that_gets_its_network_back_spreads_out() {
        let due = |seed| {
            let mut bench = Bench { jitter: Jitter::new(seed), ..Bench::of(Watched::Node) };
            for _ in 0..6 {
                bench.end(failed(Unreachable));
                bench.pause();
            }
            bench.end(failed(Unreachable));
            bench.watching.hurry(at(bench.now), &mut bench.jitter);
            bench.watching.next_deadline().expect("due") - bench.now
        };
        let spread: Vec<Duration> =
            (0..50).map(|seed| due(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed))).collect();
        let (first, last) = (spread.iter().min().expect("some"), spread.iter().max().expect("some"));
        assert!(*last - *first > HURRY / 2, "{first:?} to {last:?}");
    }
}
