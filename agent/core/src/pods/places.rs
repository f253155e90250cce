//! Places for probes and hooks: how many run at once, which pod is next, and which run makes room for others.
//!
//! Always holds: only a few runs of one pod are under way at once; the next place goes to the pod with the
//! fewest places, and among equals to the one that has waited longest. While others wait, a run that has
//! exceeded its share of time makes room: it is stopped, this does not count as a result, and the run starts
//! again in its turn. Such long runs have at most half of the places, so a short run waits for one share at
//! most, and a long run still gets to its end. While no run waits, no run is stopped. Leaves to others:
//! running and stopping (the crate `kedge`), the meaning of a run's end (`probes`, `hooks`).

use crate::pods::event::PodAction;
use crate::pods::keys::PodUid;
use crate::pods::orders::{HookAct, HookOrder, RunKey};
use crate::pods::probes::{Check, ProbeOrder};
use crate::sorted::SortedMap;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

/// How many shares a run gets after it was stopped once, so that a run which needs more than one share gets
/// to its end too.
const LONG_SHARES: u32 = 4;
/// How long a stopped run is expected to keep its place: its program is killed, and crun has 2 s to take it
/// out of the process table. A run that takes longer may never end, so another one makes room.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// How many run at once is limited separately for each sort of cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// A program in a container: it costs a thread, and crun with 3 MB.
    Program,
    /// A connection.
    Network,
    /// A program or a connection after a start or before a stop, which may take longer than a probe.
    Hook,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Program, Self::Network, Self::Hook];

    /// Most at once, of all pods and of one.
    fn limits(self) -> (usize, usize) {
        match self {
            Self::Program => (16, 4),
            Self::Network => (64, 16),
            Self::Hook => (32, 8),
        }
    }

    /// The places that long runs may use while others wait.
    fn long(self) -> usize {
        self.limits().0 / 2
    }

    /// A run that has taken longer than this makes room for others.
    fn share(self) -> Duration {
        match self {
            Self::Program | Self::Network => Duration::from_secs(10),
            Self::Hook => Duration::from_secs(60),
        }
    }
}

/// An order that takes a place.
#[derive(Debug, Clone)]
enum Order {
    Probe(Box<ProbeOrder>),
    /// With the end of its time, which started with the order.
    Hook(Box<HookOrder>, Duration),
}

impl Order {
    fn lane(&self) -> Lane {
        match self {
            Self::Probe(order) if matches!(order.check, Check::Exec { .. }) => Lane::Program,
            Self::Probe(_) => Lane::Network,
            Self::Hook(..) => Lane::Hook,
        }
    }

    fn key(&self) -> RunKey {
        match self {
            Self::Probe(order) => RunKey::Probe(order.key.clone()),
            Self::Hook(order, _) => RunKey::Hook(order.container.clone(), order.kind),
        }
    }

    fn action(&self, now: Duration) -> PodAction {
        match self {
            Self::Probe(order) => PodAction::RunProbe(order.clone()),
            Self::Hook(order, until) => {
                let timeout = until.saturating_sub(now);
                PodAction::RunHook(Box::new(HookOrder { timeout, ..(**order).clone() }))
            }
        }
    }
}

/// A run that has a place.
#[derive(Debug, Clone)]
struct Run {
    order: Order,
    pod: PodUid,
    begun: Duration,
    was_stopped: bool,
    /// Since when its stop is under way.
    stopping: Option<Duration>,
}

/// An order that waits for a place.
#[derive(Debug, Clone)]
struct Waiting {
    order: Order,
    /// Its number in the order of arrival.
    number: u64,
}

/// The places of one lane.
#[derive(Debug, Clone, Default)]
struct LanePlaces {
    runs: Vec<Run>,
    /// By pod: orders that have not run, and orders whose run was stopped.
    fresh: SortedMap<PodUid, VecDeque<Waiting>>,
    stopped: SortedMap<PodUid, VecDeque<Waiting>>,
}

/// The places of all lanes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// In the order of `Lane::ALL`.
    lanes: [LanePlaces; 3],
    /// Number of the last order that arrived.
    number: u64,
    /// When a run will have used up a share that others wait for, or the time of a waiting hook is over.
    wake: Option<Duration>,
}

/// The result of giving places.
pub(crate) struct Given {
    /// Starts and stops of runs, in this order.
    pub(crate) actions: Vec<PodAction>,
    /// Hooks whose time was over before they got a place.
    pub(crate) expired: Vec<RunKey>,
}

impl Places {
    /// Takes an order that needs a place; returns any other action, or an order that needs none.
    pub(crate) fn want(&mut self, now: Duration, action: PodAction) -> Option<PodAction> {
        let order = match action {
            PodAction::RunProbe(order) => Order::Probe(order),
            // a sleep only waits
            PodAction::RunHook(order) if !matches!(order.act, HookAct::Sleep(_)) => {
                let until = now.saturating_add(order.timeout);
                Order::Hook(order, until)
            }
            other => return Some(other),
        };
        self.wait(order, false);
        None
    }

    fn wait(&mut self, order: Order, was_stopped: bool) {
        self.number = self.number.saturating_add(1);
        let number = self.number;
        let lane = &mut self.lanes[order.lane() as usize];
        let queue = if was_stopped { &mut lane.stopped } else { &mut lane.fresh };
        let pod = order.key().container().pod.clone();
        queue.entry(pod).or_default().push_back(Waiting { order, number });
    }

    /// A run has ended, by itself or by its timeout.
    pub(crate) fn ended(&mut self, key: &RunKey) {
        self.release(key);
    }

    /// A run was stopped, and waits for its next turn.
    pub(crate) fn stopped(&mut self, key: &RunKey) {
        if let Some(run) = self.release(key) {
            self.wait(run.order, true);
        }
    }

    fn release(&mut self, key: &RunKey) -> Option<Run> {
        self.lanes.iter_mut().find_map(|lane| {
            let at = lane.runs.iter().position(|run| run.order.key() == *key)?;
            Some(lane.runs.swap_remove(at))
        })
    }

    /// When places have to be given again if no event comes before.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.wake
    }

    /// The number of kept entries.
    pub(crate) fn len(&self) -> usize {
        let of_lane = |lane: &LanePlaces| {
            let waiting = lane.fresh.values().chain(lane.stopped.values());
            lane.runs.len().saturating_add(waiting.map(VecDeque::len).sum::<usize>())
        };
        self.lanes.iter().map(of_lane).sum()
    }

    /// Gives places to the orders whose turn it is. `may_probe` is false while pods are held; `is_wanted`
    /// says whether the result is still needed.
    pub(crate) fn give(
        &mut self,
        now: Duration,
        may_probe: bool,
        is_wanted: &dyn Fn(&RunKey) -> bool,
    ) -> Given {
        let mut given = Given { actions: Vec::new(), expired: Vec::new() };
        self.wake = None;
        for lane in Lane::ALL {
            let places = &mut self.lanes[lane as usize];
            if places.is_awaited() {
                if may_probe || lane == Lane::Hook {
                    places.begin(lane, now, is_wanted, &mut given);
                    places.make_room(lane, now, &mut given.actions);
                }
                self.wake = self.wake.into_iter().chain(places.next_deadline(lane, now)).min();
            }
        }
        given
    }
}

impl LanePlaces {
    fn is_awaited(&self) -> bool {
        !self.fresh.is_empty() || !self.stopped.is_empty()
    }

    /// Forgets orders at the front that are no longer wanted, or whose time is over.
    fn forget(&mut self, now: Duration, is_wanted: &dyn Fn(&RunKey) -> bool, expired: &mut Vec<RunKey>) {
        for queues in [&mut self.fresh, &mut self.stopped] {
            queues.retain(|_, queue| {
                while let Some(Waiting { order, .. }) = queue.front() {
                    let key = order.key();
                    match order {
                        _ if !is_wanted(&key) => {}
                        Order::Hook(_, until) if *until <= now => expired.push(key),
                        _ => return true,
                    }
                    queue.pop_front();
                }
                false
            });
        }
    }

    /// A pod's runs that are not being stopped.
    fn runs_of(&self, pod: &PodUid) -> usize {
        self.runs.iter().filter(|run| run.pod == *pod && run.stopping.is_none()).count()
    }

    /// Whether a pod may have another run. Its stopped orders count too, because otherwise it would start new
    /// runs over and over.
    fn has_room_for(&self, lane: Lane, pod: &PodUid) -> bool {
        let own = self.runs.iter().filter(|run| run.pod == *pod).count();
        own.saturating_add(self.stopped.get(pod).map_or(0, VecDeque::len)) < lane.limits().1
    }

    fn is_long(lane: Lane, now: Duration, run: &Run) -> bool {
        run.stopping.is_none() && (run.was_stopped || run.begun.saturating_add(lane.share()) <= now)
    }

    fn long_runs(&self, lane: Lane, now: Duration) -> usize {
        self.runs.iter().filter(|run| Self::is_long(lane, now, run)).count()
    }

    /// The orders in their turn, the first one first: their pods, and whether the run was stopped before.
    fn in_turn(&self, lane: Lane, of_fresh: bool, of_stopped: bool) -> Vec<(PodUid, bool)> {
        let fresh = self.fresh.iter().filter(|(pod, _)| of_fresh && self.has_room_for(lane, pod));
        let stopped = self.stopped.iter().filter(|_| of_stopped);
        let fresh = fresh.map(|(pod, queue)| (pod, queue, false));
        let all = fresh.chain(stopped.map(|(pod, queue)| (pod, queue, true)));
        let number = |queue: &VecDeque<Waiting>| queue.front().map_or(u64::MAX, |waiting| waiting.number);
        let mut turns: Vec<_> = all
            .map(|(pod, queue, was_stopped)| ((self.runs_of(pod), number(queue)), pod.clone(), was_stopped))
            .collect();
        kedge_api::sort::sort(&mut turns);
        turns.into_iter().map(|(_, pod, was_stopped)| (pod, was_stopped)).collect()
    }

    /// Fills the free places.
    fn begin(&mut self, lane: Lane, now: Duration, is_wanted: &dyn Fn(&RunKey) -> bool, given: &mut Given) {
        loop {
            self.forget(now, is_wanted, &mut given.expired);
            if self.runs.len() >= lane.limits().0 {
                return;
            }
            let may_be_long = self.long_runs(lane, now) < lane.long();
            let Some((pod, was_stopped)) = self.in_turn(lane, true, may_be_long).into_iter().next() else {
                return;
            };
            let queues = if was_stopped { &mut self.stopped } else { &mut self.fresh };
            let Some(Waiting { order, .. }) = queues.get_mut(&pod).and_then(VecDeque::pop_front) else {
                return;
            };
            given.actions.push(order.action(now));
            self.runs.push(Run { order, pod, begun: now, was_stopped, stopping: None });
        }
    }

    /// Stops runs that have used up their share, as many as others wait for.
    fn make_room(&mut self, lane: Lane, now: Duration, actions: &mut Vec<PodAction>) {
        let is_full = self.runs.len() >= lane.limits().0;
        let is_coming = |run: &&Run| run.stopping.is_some_and(|since| now < since.saturating_add(STOP_LIMIT));
        let coming = self.runs.iter().filter(is_coming).count();
        for (pod, was_stopped) in self.in_turn(lane, is_full, true).into_iter().skip(coming) {
            if !was_stopped && self.long_runs(lane, now) <= lane.long() {
                // the short runs will soon end or become long, so places will come without a stop
                continue;
            }
            let own = self.runs_of(&pod);
            let has_had_its_share = |run: &Run| {
                let shares = if was_stopped || run.was_stopped { LONG_SHARES } else { 1 };
                Self::is_long(lane, now, run)
                    && run.begun.saturating_add(lane.share().saturating_mul(shares)) <= now
            };
            let all = self.runs.iter().enumerate().filter(|(_, run)| has_had_its_share(run));
            let first = all.max_by_key(|(_, run)| (self.runs_of(&run.pod), Reverse(run.begun)));
            let Some((at, has)) = first.map(|(at, run)| (at, self.runs_of(&run.pod))) else { continue };
            // a pod that has a place takes no place from a pod that would then have fewer
            if own == 0 || own.saturating_add(1) < has {
                let run = &mut self.runs[at];
                run.stopping = Some(now);
                actions.push(PodAction::StopRun(run.order.key()));
            }
        }
    }

    fn next_deadline(&self, lane: Lane, now: Duration) -> Option<Duration> {
        let waiting = self.fresh.values().chain(self.stopped.values());
        let hooks = waiting.filter_map(|queue| match queue.front()?.order {
            Order::Hook(_, until) => Some(until),
            Order::Probe(_) => None,
        });
        let of_run = |run: &Run| match run.stopping {
            Some(since) => [since.saturating_add(STOP_LIMIT); 2],
            None => [
                run.begun.saturating_add(lane.share()),
                run.begun.saturating_add(lane.share().saturating_mul(LONG_SHARES)),
            ],
        };
        let shares = self.runs.iter().flat_map(of_run);
        shares.chain(hooks).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PodEvent;
    use crate::pods::fixture::Node;
    use crate::pods::keys::ContainerKey;
    use crate::pods::orders::HookKind;
    use crate::pods::probes::{ProbeKey, ProbeKind, ProbeOutcome};
    use serde_json::{Value, json};

    const HANGS: u64 = u64::MAX;

    /// Places, and a machine on which every run takes the time that is in its pod's name.
    struct Machine {
        places: Places,
        secs: u64,
        /// With the second in which each started.
        going: Vec<(RunKey, u64)>,
        /// Programs cannot be killed.
        is_deaf: bool,
        /// The pods whose runs have ended, with the second.
        ended: Vec<(String, u64)>,
        stops: usize,
        most: usize,
    }

    impl Machine {
        fn new() -> Self {
            let (places, going, ended) = (Places::default(), vec![], vec![]);
            Self { places, secs: 0, going, is_deaf: false, ended, stops: 0, most: 0 }
        }

        fn want(&mut self, action: PodAction) {
            assert!(self.places.want(Duration::from_secs(self.secs), action).is_none(), "it needs a place");
            self.give();
        }

        /// Wants probes of one pod; the pod's name ends with the seconds that each takes.
        fn probe(&mut self, pod: &str, count: usize) {
            (0..count).for_each(|number| self.want(probe(pod, number)));
        }

        fn give(&mut self) {
            loop {
                let Given { actions, .. } = self.places.give(Duration::from_secs(self.secs), true, &|_| true);
                if actions.is_empty() {
                    break;
                }
                for action in actions {
                    match action {
                        PodAction::RunProbe(order) => {
                            self.going.push((RunKey::Probe(order.key), self.secs));
                        }
                        PodAction::RunHook(order) => {
                            self.going.push((RunKey::Hook(order.container, order.kind), self.secs));
                        }
                        PodAction::StopRun(key) => {
                            self.stops += 1;
                            if !self.is_deaf {
                                self.going.retain(|(run, _)| *run != key);
                                self.places.stopped(&key);
                            }
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            self.most = self.most.max(self.going.len());
        }

        fn pass(&mut self, secs: u64) {
            for _ in 0..secs {
                self.secs += 1;
                let now = self.secs;
                let is_over = |(run, begun): &(RunKey, u64)| now - begun >= takes(run);
                for (run, _) in self.going.extract_if(.., |run| is_over(run)) {
                    self.places.ended(&run);
                    self.ended.push((run.container().pod.to_string(), now));
                }
                self.give();
            }
        }

        fn going_of(&self, pod: &str) -> usize {
            self.going.iter().filter(|(run, _)| run.container().pod.as_str() == pod).count()
        }

        /// How many runs of a pod have ended, and when the first did.
        fn ended_of(&self, pod: &str) -> (usize, Option<u64>) {
            let mut ends = self.ended.iter().filter(|(of, _)| of == pod).map(|(_, at)| *at);
            let first = ends.next();
            (ends.count() + usize::from(first.is_some()), first)
        }
    }

    fn takes(run: &RunKey) -> u64 {
        let pod = run.container().pod.to_string();
        pod.rsplit_once('-').and_then(|(_, secs)| secs.parse().ok()).unwrap_or(HANGS)
    }

    fn container(pod: &str, number: usize) -> ContainerKey {
        ContainerKey {
            pod: PodUid::new(pod).expect("it is a UID"),
            container: format!("c{number}"),
            attempt: 0,
        }
    }

    fn probe(pod: &str, number: usize) -> PodAction {
        let key = ProbeKey { container: container(pod, number), kind: ProbeKind::Readiness };
        let check = Check::Exec { command: vec!["/check".into()] };
        PodAction::RunProbe(Box::new(ProbeOrder { key, check, timeout: Duration::from_secs(1_000_000) }))
    }

    fn hook(pod: &str, number: usize, act: HookAct, timeout: Duration) -> PodAction {
        let kind = HookKind::PreStop;
        PodAction::RunHook(Box::new(HookOrder { container: container(pod, number), kind, act, timeout }))
    }

    fn program() -> HookAct {
        HookAct::Run(Check::Exec { command: vec!["/stop".into()] })
    }

    #[test]
    fn pod_has_only_its_own_places() {
        let mut machine = Machine::new();
        machine.probe("a-hung", 10);
        machine.probe("b-1", 1);
        assert_eq!((machine.going_of("a-hung"), machine.going_of("b-1")), (4, 1), "before those that wait");
        machine.pass(1000);
        assert_eq!((machine.going_of("a-hung"), machine.stops), (4, 0), "it waits for itself alone");
    }

    #[test]
    fn next_place_is_that_of_the_pod_that_has_fewest() {
        let mut machine = Machine::new();
        machine.probe("a-hung", 3);
        ["c-hung", "d-hung", "e-hung"].iter().for_each(|pod| machine.probe(pod, 4));
        machine.probe("f-2", 1);
        assert_eq!(machine.going.len(), 16);
        // the pod that has places has waited longer
        machine.want(probe("a-hung", 3));
        machine.probe("b-hung", 1);
        machine.pass(2);
        assert_eq!((machine.going_of("a-hung"), machine.going_of("b-hung")), (3, 1));
    }

    #[test]
    fn nothing_is_stopped_while_nobody_waits() {
        let mut machine = Machine::new();
        ["a-hung", "b-hung", "c-hung", "d-hung"].iter().for_each(|pod| machine.probe(pod, 4));
        machine.pass(100_000);
        assert_eq!((machine.going.len(), machine.stops), (16, 0));
        assert_eq!(machine.places.next_deadline(), None, "and nothing is looked at");
    }

    #[test]
    fn pods_that_hang_leave_room_to_others() {
        // few orders of each pod, many of each, a single one each, and a single one each of more pods than
        // places
        for (pods, of_each, most) in [(4, 4, 11), (4, 100, 11), (16, 1, 11), (100, 1, 120)] {
            let mut machine = Machine::new();
            (0..pods).for_each(|pod| machine.probe(&format!("{pod}-hung"), of_each));
            machine.probe("quick-1", 1);
            machine.pass(most);
            assert_eq!(machine.ended_of("quick-1").0, 1, "{pods} pods of {of_each}");
            // from then on a place is always free
            for _ in 0..100 {
                machine.probe("quick-1", 1);
                machine.pass(1);
            }
            assert_eq!(machine.ended_of("quick-1").0, 101, "{pods} pods of {of_each}");
            assert_eq!(machine.most, 16);
        }
    }

    #[test]
    fn what_takes_long_comes_to_its_end() {
        let mut machine = Machine::new();
        for pod in 0..40 {
            machine.probe(&format!("{pod}-30"), 1);
        }
        for _ in 0..600 {
            machine.probe("quick-1", 1);
            machine.pass(1);
        }
        let (ended, late) =
            ((0..40).map(|pod| machine.ended_of(&format!("{pod}-30")).0), machine.ended.len());
        assert_eq!(ended.collect::<Vec<_>>(), [1; 40], "{late} ended");
    }

    #[test]
    fn slow_program_ends_beside_pods_that_hang() {
        let mut machine = Machine::new();
        (0..40).for_each(|pod| machine.probe(&format!("{pod}-hung"), 1));
        machine.probe("slow-39", 1);
        // and other orders arrive all the time
        for pod in 40..140 {
            machine.probe(&format!("{pod}-hung"), 1);
            machine.probe("quick-1", 1);
            machine.pass(5);
        }
        assert_eq!(machine.ended_of("slow-39").0, 1);
    }

    #[test]
    fn program_that_cannot_be_stopped_holds_up_only_its_place() {
        let mut machine = Machine::new();
        machine.is_deaf = true;
        (0..16).for_each(|pod| machine.probe(&format!("{pod}-hung"), 1));
        machine.probe("quick-1", 1);
        machine.pass(10);
        assert_eq!((machine.stops, machine.ended_of("quick-1").0), (1, 0));
        machine.pass(4);
        assert_eq!(machine.stops, 1, "it may still end");
        machine.is_deaf = false;
        machine.pass(2);
        assert_eq!((machine.stops, machine.ended_of("quick-1").0), (2, 1));
    }

    #[test]
    fn hooks_have_their_turns_and_sleep_needs_none() {
        let mut machine = Machine::new();
        let day = Duration::from_secs(86_400);
        for pod in ["a-hung", "b-hung", "c-hung", "d-hung"] {
            (0..8).for_each(|number| machine.want(hook(pod, number, program(), day)));
        }
        assert_eq!(machine.going.len(), 32);
        let sleep = hook("e-1", 0, HookAct::Sleep(day), day);
        assert!(machine.places.want(Duration::ZERO, sleep).is_some(), "it needs no place");
        machine.want(hook("e-1", 1, program(), day));
        machine.pass(59);
        assert_eq!((machine.going_of("e-1"), machine.stops), (0, 0));
        machine.pass(2);
        assert_eq!((machine.ended_of("e-1").0, machine.stops), (1, 1));
    }

    #[test]
    fn hook_whose_time_is_over_before_its_turn_has_failed() {
        let mut places = Places::default();
        let at = Duration::from_secs;
        for pod in ["a", "b", "c", "d"] {
            for number in 0..8 {
                assert!(places.want(at(0), hook(pod, number, program(), at(86_400))).is_none());
            }
        }
        assert_eq!(places.give(at(0), true, &|_| true).actions.len(), 32);
        assert!(places.want(at(0), hook("e", 0, program(), at(30))).is_none());
        assert!(places.give(at(0), true, &|_| true).actions.is_empty());
        assert_eq!(places.next_deadline(), Some(at(30)));
        let given = places.give(at(30), true, &|_| true);
        assert_eq!(
            (given.actions.len(), given.expired),
            (0, vec![RunKey::Hook(container("e", 0), HookKind::PreStop)])
        );
        // a hook that starts late has the remaining time
        assert!(places.want(at(40), hook("e", 0, program(), at(30))).is_none());
        places.give(at(40), true, &|_| true);
        places.ended(&RunKey::Hook(container("a", 0), HookKind::PreStop));
        let begun = places.give(at(50), true, &|_| true).actions;
        assert!(matches!(&begun[..], [PodAction::RunHook(order)] if order.timeout == at(20)), "{begun:?}");
    }

    #[test]
    fn what_nobody_wants_gets_no_place() {
        let mut places = Places::default();
        for number in 0..20 {
            assert!(places.want(Duration::ZERO, probe(&format!("p-{number}"), 0)).is_none());
        }
        let is_wanted = |run: &RunKey| run.container().pod.as_str() != "p-17";
        let first = places.give(Duration::ZERO, true, &is_wanted);
        assert_eq!(
            (first.actions.len(), places.len()),
            (16, 19),
            "the one of a pod that is gone is forgotten"
        );
        assert!(places.give(Duration::ZERO, true, &|_| false).actions.is_empty());
        assert_eq!(places.len(), 16);
        for number in 0..16 {
            places.ended(&RunKey::Probe(ProbeKey {
                container: container(&format!("p-{number}"), 0),
                kind: ProbeKind::Readiness,
            }));
        }
        assert_eq!(places.len(), 0);
    }

    #[test]
    fn no_probe_begins_while_pods_are_held() {
        let mut places = Places::default();
        assert!(places.want(Duration::ZERO, probe("a", 0)).is_none());
        assert!(places.want(Duration::ZERO, hook("a", 0, program(), Duration::from_secs(9))).is_none());
        let held = places.give(Duration::ZERO, false, &|_| true).actions;
        assert!(matches!(&held[..], [PodAction::RunHook(_)]), "{held:?}");
        assert_eq!(places.give(Duration::ZERO, true, &|_| true).actions.len(), 1);
    }

    /// Answers the programs of the pod `quick`, and stops; other programs hang. `answered` is the number of
    /// actions that were already handled. Returns the seconds in which `quick` was probed.
    fn pass(node: &mut Node, secs: u64, answered: &mut usize) -> Vec<u64> {
        let mut probed = vec![];
        for _ in 0..secs {
            node.wait(1);
            while *answered < node.seen.len() {
                let action = node.seen[*answered].clone();
                *answered += 1;
                match action {
                    PodAction::RunProbe(order) if order.key.container.pod.as_str() == "quick" => {
                        probed.push(node.secs);
                        node.tell(PodEvent::Probed { probe: order.key, outcome: ProbeOutcome::Passed });
                    }
                    PodAction::StopRun(key) => node.tell(PodEvent::RunStopped(key)),
                    _ => {}
                }
            }
        }
        probed
    }

    #[test]
    fn probe_runs_beside_four_pods_whose_probes_hang() {
        let mut node = Node::new();
        let check = |timeout: u64| json!({"exec": {"command": ["/check"]}, "periodSeconds": 1, "timeoutSeconds": timeout});
        let hangs = |name: &str| json!({"name": name, "image": "x:1", "livenessProbe": check(1_000_000), "readinessProbe": check(1_000_000)});
        for name in ["hung-0", "hung-1", "hung-2", "hung-3"] {
            let containers: Vec<Value> = ["a", "b"].map(hangs).into();
            node.bind(name, json!({"containers": containers}));
        }
        let mut answered = 0;
        pass(&mut node, 100, &mut answered);
        let run = |action: &&PodAction| matches!(action, PodAction::RunProbe(_));
        assert_eq!(node.seen.iter().filter(run).count(), 16, "they have all places");
        assert!(!node.seen.iter().any(|action| matches!(action, PodAction::StopRun(_))), "and nobody waits");

        let bound = node.secs;
        node.bind(
            "quick",
            json!({"containers": [{"name": "a", "image": "x:1", "readinessProbe": check(1)}]}),
        );
        let probed = pass(&mut node, 60, &mut answered);
        assert!(probed[0] - bound <= 10, "{} s", probed[0] - bound);
        assert!(probed.len() >= 50, "it is probed each second: {probed:?}");
        assert_eq!(node.condition("quick", "Ready")["status"], "True");
        for name in ["hung-0", "hung-1", "hung-2", "hung-3"] {
            assert_eq!(node.condition(name, "Ready")["status"], "False");
            assert!(node.runs(name), "what was stopped counts neither way");
        }
        let said =
            "errored and resulted in unknown state: it was stopped to make room for those of other pods";
        assert!(node.news().iter().any(|news| news.contains(said)), "{:?}", node.news());
        assert!(node.stops().is_empty(), "{:?}", node.stops());
    }
}
