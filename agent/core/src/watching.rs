//! How the watch of one object is kept up: when it is listed, where a watch goes on, and how long to pause after an end.
//!
//! A round is one order: a list, unless the watch goes on after a version, then the watch until it ends. Always holds: one
//! round of an object at a time, and the end of any other is ignored; a list costs as much as all that happens in an hour, so a
//! watch that broke off goes on where it was, unless something may have been missed. Only what a watch *did* ends the back-off,
//! living a minute or bringing news: a server that opens each watch and ends it at once is asked as rarely as one that is down.
//! A state is logged once, not each try. Leaves to others: the requests (`perform::watches`), and what an object means (`agent`).

use crate::event::Now;
use crate::pace::{Backoff, Jitter};
use crate::requests::{HURRY, LONGEST_WAIT};
use std::time::Duration;

/// How long a list may take at first, lookup and connection included.
const LIST_DEADLINE: Duration = Duration::from_secs(20);

/// How long reading a ConfigMap may take in the end: 1 MiB at 4 kB/s. Each failure doubles what the next try is given: a dead
/// link is found out soon, and a slow one gets its time.
const LONGEST_DOWNLOAD: Duration = Duration::from_secs(5 * 60);

/// A watch that lived this long did what it is for: servers send a bookmark about every minute.
const LIVED_WELL: Duration = Duration::from_secs(60);

/// UID and resourceVersion of an object: two that have both in common are one and the same.
pub type ObjectVersion = (String, String);

/// The objects that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// The own Node.
    Node,
    /// The ConfigMap that the Node names.
    ConfigMap,
}

/// One round of a watch, as it is ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchOrder {
    /// Which round: its end carries it.
    pub round: u64,
    /// Watch what happens after this version; None: list first.
    pub after: Option<String>,
    /// The version that need not be read again.
    pub held: Option<ObjectVersion>,
    /// How long the list may take.
    pub list_deadline: Duration,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchEnd {
    /// How long the watch was open; zero: it was not opened.
    pub lived: Duration,
    /// It brought something newer than it began with.
    pub brought: bool,
    /// After which version a watch may go on and miss nothing.
    pub resume: Option<String>,
    /// Why it failed, if the server did not end it in good order.
    pub failure: Option<(WatchFailure, String)>,
}

/// Why a list or a watch failed, by what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFailure {
    /// Nothing was learned about the object: the server is unreachable, not trusted, or does not accept our credentials.
    Unreachable,
    /// The server refused this request, or sent what cannot be read.
    Answered,
}

/// What the end of a round is reported as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EndReport {
    /// Why it failed.
    pub(crate) failure: Option<(WatchFailure, String)>,
    /// It is of another sort than the failure before, or the first after a success: worth a line in the log.
    pub(crate) is_first: bool,
    /// The object could not be read.
    pub(crate) is_unreadable: bool,
    /// The network was not there.
    pub(crate) is_unreachable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is ordered.
    Off,
    /// A round is.
    UnderWay,
    /// The next is ordered then.
    Waiting { due: Duration },
}

/// The watch of one object.
#[derive(Debug, Clone)]
pub(crate) struct Watching {
    object: Watched,
    state: State,
    round: u64,
    /// Where the last round broke off, if a watch can go on there.
    resume: Option<String>,
    /// How the last round failed; None: it did not, or what it did ended the outage.
    failing: Option<WatchFailure>,
    backoff: Backoff,
}

impl Watching {
    pub(crate) fn new(object: Watched) -> Self {
        let backoff = Backoff::default();
        Self { object, state: State::Off, round: 0, resume: None, failing: None, backoff }
    }

    /// A round that begins with a list, in place of the one under way. Versions of one server or object mean nothing to another.
    pub(crate) fn list(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        self.resume = None;
        self.order(held)
    }

    /// Another object or server: what failed before has nothing to do with it.
    pub(crate) fn list_another(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        *self = Self { round: self.round, ..Self::new(self.object) };
        self.order(held)
    }

    /// Nothing is watched any more.
    pub(crate) fn stop(&mut self) {
        *self = Self { round: self.round, ..Self::new(self.object) };
    }

    /// The round that is due, if one is.
    pub(crate) fn poll(&mut self, now: Now, held: Option<ObjectVersion>) -> Option<WatchOrder> {
        let is_due = matches!(self.state, State::Waiting { due } if due <= now.mono);
        is_due.then(|| self.order(held))
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.state {
            State::Waiting { due } => Some(due),
            State::Off | State::UnderWay => None,
        }
    }

    fn order(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        self.state = State::UnderWay;
        self.round += 1;
        let after = self.resume.take();
        WatchOrder { round: self.round, after, held, list_deadline: self.list_deadline() }
    }

    /// Only a ConfigMap is large enough to need more than the least.
    fn list_deadline(&self) -> Duration {
        match self.object {
            Watched::Node => LIST_DEADLINE,
            Watched::ConfigMap => {
                (LIST_DEADLINE * (1 << self.backoff.failures().min(8))).min(LONGEST_DOWNLOAD)
            }
        }
    }

    /// A round ended.
    pub(crate) fn ended(&mut self, now: Now, round: u64, end: WatchEnd, jitter: &mut Jitter) -> EndReport {
        if (self.state, round) != (State::UnderWay, self.round) {
            return EndReport::default();
        }
        let was_failing = self.failing;
        if end.lived >= LIVED_WELL || end.brought {
            self.backoff.succeeded();
            self.failing = None;
        }
        let failure = end.failure.as_ref().map(|(failure, _)| *failure);
        // A version that was refused may be refused for ever: a hub restored from a backup is behind it. And an object that was
        // reported as unreadable counts as readable only after a list.
        self.resume = end.resume.filter(|_| failure != Some(WatchFailure::Answered));
        self.state = State::Waiting { due: now.mono + self.backoff.failed(LONGEST_WAIT, jitter) };
        let Some((failure, why)) = end.failure else { return EndReport::default() };
        let before = self.failing.replace(failure);
        // one try that fails for lack of a network is not worth a condition; a download that goes on failing is
        let is_list_again = end.lived.is_zero() && self.resume.is_none() && was_failing.is_some();
        let is_unreadable = failure == WatchFailure::Answered || is_list_again;
        EndReport {
            failure: Some((failure, why)),
            is_first: before != Some(failure),
            is_unreadable: self.object == Watched::ConfigMap && is_unreadable,
            is_unreachable: failure == WatchFailure::Unreachable && end.lived.is_zero(),
        }
    }

    /// The network is back: a round that failed for lack of it is not waited for any longer.
    pub(crate) fn hurry(&mut self, now: Now, jitter: &mut Jitter) {
        if let State::Waiting { due } = &mut self.state
            && self.failing == Some(WatchFailure::Unreachable)
        {
            *due = (*due).min(now.mono + jitter.within(HURRY));
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
            let mut watching = Watching::new(object);
            let order = watching.list(None);
            Self { watching, jitter: Jitter::new(7), now: Duration::from_secs(100), order }
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

    /// It was open for so long, and then broke off at version 9.
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
        // a watch that broke off says nothing about the object
        assert!(!unreadable(&mut bench, lived(90)));
        assert!(!unreadable(&mut bench, WatchEnd { lived: Duration::ZERO, ..lived(0) }));
        assert!(unreadable(&mut bench, failed(Answered)));
        assert!(!unreadable(&mut Bench::of(Watched::Node), failed(Answered)));
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
