//! The signs of life: the Lease, the status of the Node, and the looks at the host that the status is
//! composed from.
//!
//! Always holds: Lease and status are independent of each other and of the configuration's state; a status is
//! compared with the last known state of the server. Leaves to others: when requests are sent again
//! (`outbox`), the Node itself (`object`).

use crate::answer::{Answer, Level, Now};
use crate::config::condition::ConfigOk;
use crate::config::records::Complaints;
use crate::config::running::{Hold, Notice};
use crate::config::start::Floor;
use crate::event::{Action, Request, RequestKey};
use crate::kubelet::Config;
use crate::node::facts::{HostFacts, Runtime};
use crate::node::lease::LeaseKeeper;
use crate::node::pressure::Pressures;
use crate::node::rival::{self, Rival};
use crate::node::status::{StatusKeeper, StatusPatch};
use crate::outbox::{Outbox, Terms};
use crate::pace::Rewrites;
use crate::report::{ConditionReport, LeaseReport, StorageReport};
use crate::turn::{Order, Turn};
use kedge_api as api;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a runtime may take to start before the node reports a fault: it adopts a hundred containers in
/// less.
const RUNTIME_START: Duration = Duration::from_secs(10);
/// When it is looked at again if it has not reported meanwhile that it works.
const RUNTIME_LOOK: Duration = Duration::from_secs(1);

/// How long the runtime's program may be missing before pods are rejected for that: a disk may be mounted
/// late, and a package replaced.
const MISSING_FOR: Duration = Duration::from_secs(20);

/// A look at the host joins any other work of the agent in the last eighth of its period, by default a
/// renewal, so that an idle node wakes once for both. On its own it starts a sixteenth of the period late;
/// otherwise both would take turns.
const EARLIER: f64 = 1.0 / 8.0;
const LATER: f64 = 1.0 / 16.0;

/// When something is due: `from` then on together with other work, on its own at `by`.
#[derive(Debug, Clone, Copy)]
struct Due {
    from: Duration,
    by: Duration,
}

impl Due {
    fn at(at: Duration) -> Self {
        Self { from: at, by: at }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    pub(crate) lease: LeaseKeeper,
    status: StatusKeeper,
    /// The status in the outbox, and its content without times.
    offered: Option<(StatusPatch, Value)>,
    /// The content of the last accepted status.
    written: Option<Value>,
    rewrites: Rewrites,
    /// Another machine that reports as this node.
    pub(crate) rival: Rival,
    /// A status waits for its pace.
    paced: Option<Duration>,
    /// Status patches accepted since the start.
    pub(crate) posts: u64,
    host_facts: Due,
    awaits_host_facts: bool,
    /// The first of the last looks that all found no program of the runtime.
    missing_since: Option<Duration>,
    began: Duration,
    disk_stalled_since: Option<Duration>,
}

impl Heartbeat {
    pub(crate) fn new(lease_secs: u32, turn: &mut Turn) -> Self {
        let lease = LeaseKeeper::new(&turn.options.node_name, lease_secs, turn.now);
        turn.outbox.set_terms(RequestKey::Renew, lease.terms());
        // two kilobytes each half minute to a server that refuses them would be 6 MB a day
        let terms = Terms { holds_refused: true, ..Terms::default() };
        turn.outbox.set_terms(RequestKey::PatchStatus, terms);
        Self {
            lease,
            status: StatusKeeper::new(turn.now.wall),
            offered: None,
            written: None,
            rewrites: Rewrites::default(),
            rival: Rival::default(),
            paced: None,
            posts: 0,
            host_facts: Due::at(turn.now.mono),
            awaits_host_facts: false,
            missing_since: None,
            began: turn.now.mono,
            disk_stalled_since: None,
        }
    }

    /// The Node as last seen; `None` if it does not exist. `is_whole`: with its status. The Lease of a new
    /// Node is claimed at once. Returns whether the server, which refused statuses, accepts them again.
    pub(crate) fn node(&mut self, node: Option<&api::Node>, is_whole: bool, turn: &mut Turn) -> bool {
        let takes_again = match node {
            Some(node) if is_whole => self.node_seen(node, turn),
            Some(_) => false,
            // another Node has nothing of the earlier writes
            None => {
                self.status.node_gone();
                self.written = None;
                false
            }
        };
        if self.lease.node(node.map(|node| node.metadata.uid.as_str()), turn.now) {
            turn.outbox.end_pause(turn.now, &RequestKey::Renew);
        }
        takes_again
    }

    fn node_seen(&mut self, node: &api::Node, turn: &mut Turn) -> bool {
        self.status.node_seen(node);
        if let Some(ours) = self.status.system_info().filter(|_| self.written.is_some()) {
            self.rival.seen(turn.now.mono, &node.status.node_info, ours);
        }
        let mut conditions = node.status.conditions.iter();
        let there = conditions.find(|there| there.condition_type == api::DUPLICATE_IDENTITY);
        let takes_again = self.rival.shown(there.is_some_and(|there| there.status == "True"));
        if takes_again {
            turn.outbox.end_pause(turn.now, &RequestKey::PatchStatus);
        }
        takes_again
    }

    pub(crate) fn server_changed(&mut self, turn: &mut Turn) {
        self.lease.server_changed(turn.now);
        self.status.node_gone();
        (self.offered, self.written, self.rival) = (None, None, Rival::default());
    }

    /// The longest pause before this node writes again what another writer changed, and between reports
    /// without news.
    pub(crate) fn longest_pause(&self, config: &Config, now: Now) -> Duration {
        let frequency = config.node_status_report_frequency;
        if self.rival.is_there(now.mono) { frequency.max(rival::PAUSE) } else { frequency }
    }

    // ------------------------------------------------------------------------------------------ host and
    // disk

    pub(crate) fn pressures(&self) -> &Pressures {
        &self.status.pressures
    }

    /// The node's faults, once it was looked at, and whether all values that have thresholds could be read.
    pub(crate) fn complaints(&self) -> Option<(Complaints, bool)> {
        self.facts().map(|_| (self.status.complaints(), self.status.pressures.is_whole))
    }

    pub(crate) fn facts(&self) -> Option<&HostFacts> {
        self.status.facts()
    }

    /// Takes facts about the host; returns the texts for Events about them. `floor` has the last-known-good's
    /// limits, while a configuration is on trial.
    pub(crate) fn observe(
        &mut self,
        mut facts: HostFacts,
        config: &Config,
        floor: Option<&Floor>,
        turn: &mut Turn,
    ) -> Vec<Notice> {
        self.awaits_host_facts = false;
        facts.runtime = self.lasting(facts.runtime, turn.now);
        // a restart of the agent is not a change of the node's pods
        if facts.runtime == Runtime::Starting && turn.now.mono < self.began.saturating_add(RUNTIME_START) {
            self.host_facts = Due::at(turn.now.mono.saturating_add(RUNTIME_LOOK));
            return Vec::new();
        }
        let before = self.status.pressures.pressed;
        for line in self.status.observe(turn.now, facts, config, floor, &turn.options.version) {
            turn.log(Level::Warn, line);
        }
        let node = &turn.options.node_name;
        let notice = |reason| {
            // upstream's text
            let message = format!("Node {node} status is now: {reason}");
            Notice { warning: false, reason, message }
        };
        self.status.pressures.news(before).into_iter().map(notice).collect()
    }

    /// The state by which pods are judged: a runtime that has just gone is not ready, and rejects none.
    fn lasting(&mut self, runtime: Runtime, now: Now) -> Runtime {
        let Runtime::Missing(why) = runtime else {
            self.missing_since = None;
            return runtime;
        };
        let since = *self.missing_since.get_or_insert(now.mono);
        match now.mono < since.saturating_add(MISSING_FOR) {
            true => Runtime::NotReady(format!("container runtime is not ready: {why}")),
            false => Runtime::Missing(why),
        }
    }

    pub(crate) fn refresh_facts(&mut self, config: &Config, turn: &mut Turn) {
        if self.awaits_host_facts || turn.now.mono < self.host_facts.from {
            return;
        }
        self.awaits_host_facts = true;
        let every = config.node_status_update_frequency;
        let latest = turn.jitter.stretch(every, 0.04).saturating_add(every.mul_f64(LATER));
        self.host_facts = Due {
            from: turn.now.mono.saturating_add(every.mul_f64(1.0 - EARLIER)),
            by: turn.now.mono.saturating_add(latest),
        };
        turn.act(Action::ReadHostFacts);
    }

    /// Something about the host has changed.
    pub(crate) fn look_again(&mut self, now: Now) {
        self.host_facts = Due::at(now.mono);
    }

    pub(crate) fn machine_stops(&mut self, stops: bool) {
        self.status.machine_stops(stops);
    }

    /// `SystemOK`, on a machine whose system was ever wanted.
    pub(crate) fn system(&mut self, condition: Option<(&'static str, &'static str, String)>) {
        self.status.system(condition);
    }

    pub(crate) fn decommissioning(&mut self, condition: Option<(&'static str, &'static str, String)>) {
        self.status.decommissioning(condition);
    }

    pub(crate) fn pods_held(&mut self, held: Option<&Hold>) {
        self.status.pods_held(held);
    }

    pub(crate) fn disk_stalled(&mut self, now: Now, stalled: bool) {
        self.disk_stalled_since = stalled.then(|| self.disk_stalled_since.unwrap_or(now.mono));
        self.status.disk_stalled(stalled);
    }

    // ------------------------------------------------------------------------------------------ the status

    /// `config` is `status.config` on our hub, which stores it there. A status that was written before, and
    /// that somebody else has changed, is written again with growing pauses.
    pub(crate) fn offer_status(
        &mut self,
        config_ok: &ConfigOk,
        config: Option<&api::NodeConfigStatus>,
        turn: &mut Turn,
    ) {
        let Self { status, offered, rewrites, written, paced, .. } = self;
        *paced = None;
        turn.offer(RequestKey::PatchStatus, |now| {
            let mut patch = status.patch(now, config_ok);
            if let Some(config) = config.filter(|_| status.facts().is_some()) {
                add_config_status(&mut patch, config, status.believed(), status.reads());
            }
            let said = patch.as_ref().map(|_| status.said(config_ok, config));
            let is_again = said.is_some() && *written == said;
            if is_again && now.mono < rewrites.due() && !status.is_report_due(now) {
                *paced = Some(rewrites.due());
                patch = None;
            }
            *offered = patch.zip(said);
            offered.as_ref().map(|(patch, _)| Request::PatchStatus(patch.body.clone()))
        });
    }

    /// Returns whether the server knows by it that this node is decommissioned.
    pub(crate) fn status_accepted(&mut self, config: &Config, turn: &mut Turn) -> bool {
        self.posts = self.posts.saturating_add(1);
        if let Some((patch, said)) = self.offered.take() {
            let is_again = self.written.as_ref() == Some(&said);
            let first = config.node_status_update_frequency;
            let longest = self.longest_pause(config, turn.now);
            // a regular report without a difference answers nobody's change
            if !is_again || patch.differs {
                self.rewrites.written(turn.now.mono, is_again, first, longest);
            }
            self.written = Some(said);
            self.rival.reported();
            self.status.accepted(turn.now, patch, longest, turn.jitter);
        }
        self.status.says_decommissioned()
    }

    /// A server that knows two machines of this name takes statuses from the first only. The next try is an
    /// hour away, or comes when the Node shows that the other machine is gone.
    pub(crate) fn status_failed(&mut self, answer: &Answer, turn: &mut Turn) {
        self.offered = None;
        if answer.is_about_a_duplicate() {
            self.rival.refused(turn.now.mono);
            let next = turn.now.mono.saturating_add(turn.jitter.stretch(rival::PAUSE, 0.25));
            turn.outbox.pause(&RequestKey::PatchStatus, next);
        }
    }

    /// There is no Node whose status could be patched.
    pub(crate) fn withdraw_status(&mut self, turn: &mut Turn) {
        let key = RequestKey::PatchStatus;
        turn.outbox.withdraw(&key);
        self.offered.take_if(|_| !turn.outbox.is_in_flight(&key));
    }

    // ------------------------------------------------------------------------------------------ the Lease

    pub(crate) fn offer_renewal(&mut self, turn: &mut Turn) {
        let (now, key) = (turn.now, RequestKey::Renew);
        if turn.outbox.is_free(now, &key)
            && let Some(request) = self.lease.poll(now)
        {
            // there is room for a Lease: its few bytes come before all others
            let _ = turn.outbox.put(now, key, Order::Renew(request));
        }
    }

    pub(crate) fn renewed(&mut self, answer: &Answer, turn: &mut Turn) {
        let verdict = self.lease.answered(turn.now, answer, turn.jitter);
        turn.outbox.answered(turn.now, &RequestKey::Renew, answer, verdict, turn.jitter);
    }

    // ------------------------------------------------------------------------------------------ looking

    /// `is_there`: whether there is a Node.
    pub(crate) fn next_deadline(
        &self,
        now: Now,
        is_there: bool,
        outbox: &Outbox<RequestKey, Order>,
    ) -> Option<Duration> {
        let report = self.status.report_due();
        let awaits_report = is_there && self.offered.is_none();
        [
            self.lease.next_deadline().filter(|_| outbox.is_free(now, &RequestKey::Renew)),
            (!self.awaits_host_facts).then_some(self.host_facts.by),
            report.filter(|at| awaits_report && *at > now.mono),
            self.paced.filter(|_| awaits_report),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(crate) fn lease_report(&self, now: Now) -> LeaseReport {
        let since = |at: Duration| now.mono.saturating_sub(at).as_secs();
        LeaseReport {
            renewals: self.lease.renewed,
            seconds_since_renewal: self.lease.last_renewed.map(since),
        }
    }

    pub(crate) fn ready_report(&self) -> ConditionReport {
        self.status.ready_report()
    }

    pub(crate) fn disk_stalled_seconds(&self, now: Now) -> Option<u64> {
        self.disk_stalled_since.map(|at| now.mono.saturating_sub(at).as_secs())
    }

    pub(crate) fn storage_report(&self) -> Option<StorageReport> {
        let facts = self.facts()?;
        Some(StorageReport {
            bytes: facts.storage_bytes,
            available_bytes: facts.storage_available_bytes?,
            available_inodes: facts.inodes_free?,
        })
    }
}

/// Adds `status.config` to the patch where it differs; fields to remove get an explicit null.
fn add_config_status(
    patch: &mut Option<StatusPatch>,
    status: &api::NodeConfigStatus,
    believed: Option<&api::NodeStatus>,
    reads: u64,
) {
    let there = believed.and_then(|believed| believed.config.clone()).unwrap_or_default();
    if there == *status {
        return;
    }
    let Some(result) = patch.as_ref().map(|patch| patch.result.clone()).or(believed.cloned()) else { return };
    let mut fields = serde_json::Map::new();
    let mut set = |name: &str, differs: bool, value: Value| {
        if differs {
            fields.insert(name.to_owned(), value);
        }
    };
    set("assigned", there.assigned != status.assigned, json!(status.assigned));
    set("active", there.active != status.active, json!(status.active));
    set("lastKnownGood", there.last_known_good != status.last_known_good, json!(status.last_known_good));
    let error = if status.error.is_empty() { Value::Null } else { json!(status.error) };
    set("error", there.error != status.error, error);
    let patch = patch.get_or_insert_with(|| StatusPatch {
        body: json!({"status": {}}),
        result,
        reads,
        changed: true,
        differs: true,
    });
    patch.body["status"]["config"] = Value::Object(fields);
    patch.result.config = Some(status.clone());
    (patch.changed, patch.differs) = (true, true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::judge::PreviousRun;
    use crate::kubelet::{self, LocalLayers};
    use crate::options::Options;
    use crate::outbox::{LIMITS, Verdict};
    use crate::pace::Jitter;

    struct Bench {
        options: Options,
        config: Config,
        outbox: Outbox<RequestKey, Order>,
        jitter: Jitter,
    }

    impl Bench {
        fn new() -> Self {
            let options = Options {
                node_name: "edge".into(),
                version: "0".into(),
                local: LocalLayers::default(),
                dynamic_config: false,
                node_labels: Default::default(),
                slot: None,
                slots: None,
                decommission: None,
                boot_id: String::new(),
                previous_run: PreviousRun::default(),
                seed: 1,
            };
            let config = kubelet::effective(&options.local, None).expect("defaults are valid").config;
            Self { options, config, outbox: Outbox::new(LIMITS), jitter: Jitter::new(1) }
        }

        fn at<T>(&mut self, secs: u64, act: impl FnOnce(&Config, &mut Turn) -> T) -> T {
            let now = Now { mono: Duration::from_secs(secs), wall: api::Timestamp::default() };
            let Self { options, config, outbox, jitter } = self;
            let mut actions = vec![];
            act(config, &mut Turn { now, options, jitter, outbox, actions: &mut actions })
        }
    }

    #[test]
    fn runtime_that_comes_back_soon_rejects_nothing() {
        let mut bench = Bench::new();
        let mut heartbeat = bench.at(0, |_, turn| Heartbeat::new(40, turn));
        let gone = || Runtime::Missing("crun is not there".into());
        let mut check = |secs, runtime, expect: Runtime| {
            let facts = HostFacts { runtime, ..HostFacts::default() };
            bench.at(secs, |config, turn| heartbeat.observe(facts, config, None, turn));
            assert_eq!(heartbeat.facts().map(|facts| facts.runtime.clone()), Some(expect), "after {secs} s");
        };
        let not_ready = || Runtime::NotReady("container runtime is not ready: crun is not there".into());
        check(0, gone(), not_ready());
        check(19, gone(), not_ready());
        check(20, gone(), gone());
        check(30, Runtime::Ready, Runtime::Ready);
        check(40, gone(), not_ready());
        check(60, gone(), gone());
    }

    #[test]
    fn restart_of_the_agent_is_no_news() {
        let facts = |runtime| HostFacts {
            cpus: 4,
            memory_bytes: 1 << 30,
            memory_available_bytes: Some(1),
            runtime,
            ..HostFacts::default()
        };
        let mut bench = Bench::new();
        let mut heartbeat = bench.at(0, |_, turn| Heartbeat::new(40, turn));
        for secs in [1, 9] {
            let notices = bench
                .at(secs, |config, turn| heartbeat.observe(facts(Runtime::Starting), config, None, turn));
            assert!(notices.is_empty() && heartbeat.facts().is_none(), "its runtime starts");
            assert_eq!(heartbeat.host_facts.by, Duration::from_secs(secs) + RUNTIME_LOOK);
        }
        // a runtime that does not start is reported in time
        let notices =
            bench.at(10, |config, turn| heartbeat.observe(facts(Runtime::Starting), config, None, turn));
        assert!(!notices.is_empty() && heartbeat.facts().is_some());
    }

    #[test]
    fn look_at_the_host_goes_with_what_wakes_the_agent() {
        let looks_at = |secs| {
            let mut bench = Bench::new();
            let mut heartbeat = bench.at(0, |_, turn| Heartbeat::new(40, turn));
            bench.at(0, |config, turn| heartbeat.refresh_facts(config, turn));
            assert!(std::mem::take(&mut heartbeat.awaits_host_facts), "the first at once");
            bench.at(secs, |config, turn| {
                heartbeat.refresh_facts(config, turn);
                let alone = heartbeat.next_deadline(turn.now, true, turn.outbox);
                (heartbeat.awaits_host_facts, alone.map(|alone| alone.as_secs_f64()))
            })
        };
        let (looks, alone) = looks_at(8);
        // a renewal comes 10 to 10.4 s after the one before: later than that nothing else wakes it
        assert!(!looks && alone.is_some_and(|alone| (10.4..11.1).contains(&alone)), "{alone:?}");
        assert!(looks_at(9).0);
    }

    #[test]
    fn refused_status_waits_for_minutes() {
        let mut bench = Bench::new();
        bench.at(0, |_, turn| Heartbeat::new(40, turn));
        let order = || Order::Request(Request::PatchStatus(json!({"status": {"phase": "x"}})));
        let key = RequestKey::PatchStatus;
        let now = |secs| Now { mono: Duration::from_secs(secs), wall: api::Timestamp::default() };
        assert!(bench.outbox.put(now(0), key, order()) && bench.outbox.take_due(now(0)).is_some());
        let answer = Answer::Refused {
            status: 422,
            reason: "Invalid".into(),
            message: "no".into(),
            retry_after: None,
        };
        bench.outbox.answered(now(0), &key, &answer, Verdict::Failed, &mut bench.jitter);
        assert!(bench.outbox.is_held(now(299), &key, &order()));
        assert!(!bench.outbox.is_held(now(376), &key, &order()));
    }
}
