//! The agent's core: takes events, gives actions.
//!
//! `Core::handle` takes one event at one time and appends actions; `Core::next_deadline` says when to call it again without
//! an event. Always holds: at most one file step is under way; the Lease, the status and the configuration are
//! independent, so none waits for another; queues have bounds. Leaves to others: performing the actions and reporting
//! each outcome, in any order and as late as it likes.

use crate::config::condition::{self, ConfigOk};
use crate::config::records::BadConfigs;
use crate::config::running::{Configuration, Forgiveness, Next, Notice, Object};
use crate::config::source::{self, requested_source};
use crate::config::start::{self, Facts, Parsed, Started};
use crate::contact::{Contact, KUBECONFIG_LINE};
use crate::event::{
    Action, Answer, Collection, Event, LONGEST_PATIENCE, LeaseRequest, Level, Now, Outcome, Request,
    RequestKey,
};
use crate::kubelet::{self, ConfigError, Effective};
use crate::node::lease::LeaseKeeper;
use crate::node::registration::{missing_labels, registration};
use crate::node::status::{StatusKeeper, StatusPatch};
use crate::options::Options;
use crate::outbox::{self, LONGEST_WAIT, Outbox, Sendable, Terms, Verdict};
use crate::pace::Jitter;
use crate::reflector::{Reflector, Shown};
use crate::report::{ConfigReport, LeaseReport, Report, StorageReport};
use crate::watching::{WatchEnd, WatchFailure, Watched, Watching};
use crate::writes::{Steps, Suspend};
use kedge_api::{self as api, excerpt};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// Notices that wait to be posted as Events: enough for a start with everything wrong, and no more than a hub can take from
/// 10,000 nodes that come back together.
const PENDING_EVENTS: usize = 16;

#[derive(Clone)]
enum Phase {
    /// Before `Event::Start`.
    New,
    /// The decision at start is being made.
    Starting { outcomes: Vec<Outcome>, parsed: Parsed },
    /// A config is in use.
    Running(Box<Running>),
    /// The exit was ordered.
    Exited,
}

/// What leaves through the outbox.
#[derive(Debug, Clone, PartialEq)]
enum Order {
    Request(Request),
    Renew(LeaseRequest),
}

impl Sendable for Order {
    fn bytes(&self) -> usize {
        match self {
            Self::Request(request) => request.body().map_or(0, outbox::json_bytes),
            Self::Renew(LeaseRequest::Patch(body) | LeaseRequest::Create(body)) => outbox::json_bytes(body),
        }
    }
}

/// The annotation that stands for `status.config`.
#[derive(Clone)]
struct Mirror {
    text: String,
    /// The version of the Node that has it, as the server answered.
    version: Option<u64>,
}

#[derive(Clone)]
struct Running {
    configuration: Configuration,
    lease: LeaseKeeper,
    contact: Contact,
    status: StatusKeeper,
    node: Option<Box<api::Node>>,
    node_known_missing: bool,
    server_is_hub: Option<bool>,
    /// Which of the servers that the kubeconfig has named is asked now.
    server: u64,
    /// The source that the configuration knows is the one that this server's Node names. Until then no ConfigMap of this server
    /// is read: another server may have another object under the name that was watched there.
    is_source_of_this_server: bool,
    /// A stream had no network, and none has had contact since.
    is_out: bool,
    nodes: Reflector,
    maps: Reflector,
    /// Namespace and name of the ConfigMap that is watched.
    watched: Option<(String, String)>,
    /// The watched ConfigMap must be listed again.
    must_relist: bool,
    /// UID of the Node last seen, whether it is still there or not.
    seen_uid: String,
    /// The Node is not looked for again before this.
    next_relist: Duration,
    /// The server answered with another node's Node: logged once.
    wrong_node_logged: bool,
    next_host_facts: Duration,
    awaits_host_facts: bool,
    disk_stalled_since: Option<Duration>,
    /// The status in the outbox.
    status_offered: Option<StatusPatch>,
    /// `status.config` as it was last put into the outbox, for a server that is not our hub.
    mirror: Option<Mirror>,
    outbox: Outbox<RequestKey, Order>,
    pending_events: heapless::Deque<api::Event, PENDING_EVENTS>,
    last_config_ok: ConfigOk,
    exiting: bool,
    evidence_consumed: bool,
    posted: u64,
    status_posts: u64,
}

/// The core of one agent. A clone goes on from the same moment, so that a search can try several futures of it.
#[derive(Clone)]
pub struct Core {
    options: Options,
    facts: Facts,
    jitter: Jitter,
    phase: Phase,
    stop_before_start: Option<String>,
}

impl Core {
    /// Checks the local config: without a valid one an agent refuses to start, whatever is assigned.
    /// `now` is for stamps.
    ///
    /// # Errors
    /// The local config is invalid; nothing was counted or written.
    pub fn new(options: Options, now: Now) -> Result<Self, ConfigError> {
        let local_effective = kubelet::effective(&options.local, None)?;
        let overrides = kubelet::canonical_overrides(&options.local)?;
        let facts = Facts {
            local: Rc::new(options.local.clone()),
            local_effective: Rc::new(local_effective),
            overrides: Rc::new(overrides),
            dynamic: options.dynamic_config,
            boot_id: options.boot_id.clone(),
            previous: options.previous_run.clone(),
            wall: now.wall,
        };
        let jitter = Jitter::new(options.seed);
        Ok(Self { options, facts, jitter, phase: Phase::New, stop_before_start: None })
    }

    /// Takes one event; appends the actions it leads to.
    pub fn handle(&mut self, now: Now, event: Event, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Exited => {}
            Phase::New | Phase::Starting { .. } => self.handle_start(now, event, actions),
            Phase::Running(running) => {
                running.handle(now, event, &self.options, &mut self.jitter, actions);
                self.settle(now, actions);
            }
        }
    }

    /// When to call `handle` with `Tick` if nothing happens before.
    pub fn next_deadline(&self, now: Now) -> Option<Duration> {
        match &self.phase {
            Phase::Running(running) => running.next_deadline(now),
            _ => None,
        }
    }

    /// For `kedge status` and metrics; None until a config is in use.
    pub fn report(&self, now: Now) -> Option<Report> {
        match &self.phase {
            Phase::Running(running) => Some(running.report(now, &self.options)),
            _ => None,
        }
    }

    /// The outcome of [`Event::Forgive`] for this UID if it came now. Until a config is in use, no verdict is known.
    pub fn forgiveness(&self, uid: &str) -> Forgiveness {
        match &self.phase {
            Phase::Running(running) => running.configuration.forgiveness(uid),
            _ => Forgiveness::NothingKnown,
        }
    }

    /// Why [`Event::Reset`] would be refused if it came now; `None` if it would be done.
    pub fn reset_refusal(&self) -> Option<String> {
        match &self.phase {
            Phase::Running(running) => running.configuration.reset_refusal(),
            _ => Some("no configuration is in use yet; ask again then".into()),
        }
    }

    /// Which of the servers that the kubeconfig has named is asked now: an action is for this one, see [`Event::Heard`].
    pub fn server(&self) -> u64 {
        match &self.phase {
            Phase::Running(running) => running.server,
            _ => 0,
        }
    }

    /// UID and resourceVersion of the ConfigMap that is to be watched, if a whole copy of that is on disk: an object that still
    /// has both need not be downloaded, and [`Listing::Unchanged`](crate::Listing) says so.
    pub fn held_config_map(&self) -> Option<(String, String)> {
        let Phase::Running(running) = &self.phase else { return None };
        running.held()
    }

    /// The configuration in use, once there is one.
    pub fn effective(&self) -> Option<&Effective> {
        match &self.phase {
            Phase::Running(running) => Some(running.configuration.effective()),
            _ => None,
        }
    }

    fn handle_start(&mut self, now: Now, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Start if matches!(self.phase, Phase::New) => {
                self.phase = Phase::Starting { outcomes: Vec::new(), parsed: Parsed::default() };
            }
            Event::StepDone(outcome) => {
                if let Phase::Starting { outcomes, .. } = &mut self.phase {
                    outcomes.push(outcome);
                }
            }
            // a start takes milliseconds: let it reach a state that a stop can close
            Event::Stop(why) => {
                self.stop_before_start.get_or_insert(why);
                return;
            }
            _ => return,
        }
        let Phase::Starting { outcomes, parsed } = &mut self.phase else { return };
        match start::start(&mut Steps::over(outcomes), &self.facts, parsed) {
            Err(Suspend(step)) => actions.push(Action::Step(step)),
            Ok(started) => self.started(now, started, actions),
        }
    }

    fn started(&mut self, now: Now, started: Started, actions: &mut Vec<Action>) {
        let mut running = Running::new(now, started, self.facts.clone(), &self.options, actions);
        if let Some(why) = self.stop_before_start.take() {
            running.configuration.stop(&why);
        }
        self.phase = Phase::Running(Box::new(running));
        self.settle(now, actions);
    }

    /// Orders everything that is due.
    fn settle(&mut self, now: Now, actions: &mut Vec<Action>) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.settle(now, &self.options, &mut self.jitter, actions) {
            self.phase = Phase::Exited;
        }
    }
}

impl Running {
    fn new(now: Now, started: Started, facts: Facts, options: &Options, actions: &mut Vec<Action>) -> Self {
        let findings = started.findings.clone();
        let condemned = started.condemned.clone();
        let report = started.report.clone();
        let ended = started.ended.clone();
        let changed = started.changed.clone();
        let held = started.held.clone();
        let configuration = Configuration::new(started, facts, now);
        let config_ok = condition::config_ok(&configuration.view());
        let config = &configuration.effective().config;
        let (lease_secs, lists_only) = (config.node_lease_duration_secs, !config.watch);
        let lease = LeaseKeeper::new(&options.node_name, lease_secs, now);
        let mut outbox = Outbox::new(outbox::LIMITS);
        outbox.set_terms(RequestKey::Renew, lease.terms());
        // a server may refuse a label or an annotation, and an administrator may then set it, or allow it
        let terms = Terms { holds_refused: true, ..Terms::default() };
        outbox.set_terms(RequestKey::PatchLabels, terms);
        outbox.set_terms(RequestKey::PatchNode, terms);
        let mut running = Self {
            lease,
            contact: Contact::new(now),
            status: StatusKeeper::new(now.wall),
            configuration,
            node: None,
            node_known_missing: false,
            server_is_hub: None,
            server: 0,
            is_source_of_this_server: true,
            is_out: false,
            nodes: Reflector::new(Watched::Node, lists_only),
            maps: Reflector::new(Watched::ConfigMap, lists_only),
            watched: None,
            must_relist: false,
            seen_uid: String::new(),
            next_relist: now.mono,
            wrong_node_logged: false,
            next_host_facts: now.mono,
            awaits_host_facts: false,
            disk_stalled_since: None,
            status_offered: None,
            mirror: None,
            outbox,
            pending_events: heapless::Deque::new(),
            last_config_ok: config_ok.clone(),
            exiting: false,
            evidence_consumed: false,
            posted: 0,
            status_posts: 0,
        };
        for finding in findings {
            running.publish(now, options, actions, warning("StateSetAside", finding));
        }
        if let Some(how) = ended {
            running.publish(
                now,
                options,
                actions,
                warning("UncleanExit", format!("the previous run of the agent did not end cleanly: {how}")),
            );
        }
        if let Some(why) = held {
            running.publish(now, options, actions, warning("ProvenConfigCrashes", why));
        }
        if let Some(mut message) = changed {
            // its end is ConfigPromoted or ConfigRolledBack: kubectl sees the trial under way between them
            if let Some(left) = running.configuration.trial_left(now).filter(|left| !left.is_zero()) {
                message.push_str(&format!("; on trial for {} s", left.as_secs_f64().ceil()));
            }
            let notice = Notice { warning: false, reason: "KubeletConfigChanged", message };
            running.publish(now, options, actions, notice);
        }
        for verdict in condemned {
            let colon = if verdict.detail.is_empty() { "" } else { ": " };
            let message = format!("{}{colon}{}; {}", verdict.reason, verdict.detail, config_ok.message);
            running.publish(now, options, actions, warning("ConfigRolledBack", message));
        }
        if let Some(report) = report {
            actions.push(Action::Log(Level::Warn, format!("further problems:\n{report}")));
        }
        let line = format!("ConfigOK={}: {} ({})", config_ok.status, config_ok.message, config_ok.reason);
        actions.push(Action::Log(Level::Info, line));
        let without_effect = &running.configuration.effective().without_effect;
        if !without_effect.is_empty() {
            let line = format!("set but without effect here: {}", without_effect.join(", "));
            actions.push(Action::Log(Level::Info, line));
        }
        for held in &running.configuration.effective().held {
            actions.push(Action::Log(Level::Warn, held.to_string()));
        }
        actions.push(Action::Use(Box::new(running.configuration.effective().as_ref().clone())));
        running.consume_evidence(actions);
        actions.push(Action::Sweep { keep: running.configuration.checkpoints_to_keep() });
        actions.push(Action::WatchNode(running.nodes.watching.list(None)));
        running
    }

    /// Once, and only when everything it proved is on disk: until then the evidence is the only proof.
    fn consume_evidence(&mut self, actions: &mut Vec<Action>) {
        if !self.evidence_consumed && self.configuration.evidence_is_recorded() {
            self.evidence_consumed = true;
            actions.push(Action::ConsumeEvidence);
        }
    }

    // ------------------------------------------------------------------------------------------ events

    fn handle(
        &mut self,
        now: Now,
        event: Event,
        options: &Options,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) {
        match event {
            Event::Start | Event::Tick => {}
            Event::StepDone(outcome) => {
                let next = self.configuration.done(now, outcome);
                self.perform_next(next, actions);
            }
            Event::HostFacts(facts) => {
                self.awaits_host_facts = false;
                let effective = self.configuration.effective();
                for line in self.status.observe(now, *facts, &effective.config, &options.version) {
                    actions.push(Action::Log(Level::Warn, line));
                }
            }
            Event::Answered(key, answer) => self.answered(now, key, answer, options, jitter, actions),
            Event::Renewed(_) | Event::RenewedAsOf(_)
                if self.outbox.is_answered_by_another_server(&RequestKey::Renew) => {}
            Event::Renewed(answer) => self.renewed(now, &answer, None, options, jitter, actions),
            Event::RenewedAsOf(latest) => {
                self.renewed(now, &Answer::Accepted(None), Some(latest), options, jitter, actions);
            }
            Event::Listed { of, listing } => {
                self.reached(now, jitter);
                if self.is_watched(&of) {
                    let shown = self.reflector(of.watched()).listed(listing);
                    self.show(now, &of, shown, options, actions);
                }
            }
            Event::Changed { of, object, is_deleted } => {
                self.reached(now, jitter);
                if self.is_watched(&of) {
                    for shown in self.reflector(of.watched()).changed(object, is_deleted) {
                        self.show(now, &of, shown, options, actions);
                    }
                }
            }
            Event::WatchPosition { watched, round, version, is_change } => {
                self.reached(now, jitter);
                self.contact.watch_answered();
                let version = self.watching(watched).has_come_to(round, &version);
                if let Some(change) = version.filter(|_| is_change) {
                    self.watching(watched.other()).shown_elsewhere(change);
                }
            }
            Event::WatchReceiving { watched, round } => self.watching(watched).is_receiving(now, round),
            Event::WatchEnded { watched, round, end } => {
                self.watch_ended(now, watched, round, end, jitter, actions)
            }
            // an answer is not contact for a config: only what the API server accepts is
            Event::Contact => {
                self.reached(now, jitter);
                self.contact.watch_answered();
            }
            Event::NoKubeconfig(why) => {
                log_lines(self.contact.no_answer(KUBECONFIG_LINE, &why, true), actions);
            }
            Event::BadConfigsRead(read) => self.configuration.bad_configs_edited(BadConfigs::read(&read)),
            Event::Forgive(uid) => {
                let answer = self.configuration.forgive(&uid);
                let level = match answer {
                    Forgiveness::Taken | Forgiveness::NothingKnown => Level::Info,
                    Forgiveness::TooMany | Forgiveness::Exiting | Forgiveness::SwitchedOff => Level::Warn,
                };
                actions.push(Action::Log(level, format!("asked to forgive UID {}: {answer}", excerpt(&uid))));
            }
            Event::DiskStalled(stalled) => {
                self.disk_stalled_since = stalled.then(|| self.disk_stalled_since.unwrap_or(now.mono));
                self.status.disk_stalled(stalled);
            }
            Event::Reset => self.configuration.reset(),
            Event::Heard { server, event } => {
                if server > self.server {
                    self.server_changed(now, server, actions);
                }
                if server == self.server {
                    self.handle(now, *event, options, jitter, actions);
                } else {
                    self.answered_by_another_server(&event);
                }
            }
            Event::Stop(why) => self.configuration.stop(&why),
        }
    }

    /// Not the one that was watched before it.
    fn is_watched(&self, of: &Collection) -> bool {
        match of {
            Collection::Node => true,
            Collection::ConfigMap { namespace, name } => {
                self.watched.as_ref().is_some_and(|watched| (&watched.0, &watched.1) == (namespace, name))
            }
        }
    }

    /// Hands on what a reflector shows.
    fn show(
        &mut self,
        now: Now,
        of: &Collection,
        shown: Shown,
        options: &Options,
        actions: &mut Vec<Action>,
    ) {
        if let Shown::TooMuch { why, is_first: true } = &shown {
            let line = format!("{}: {why}; keeping what is known", of.watched().stream());
            actions.push(Action::Log(Level::Warn, line));
        }
        match of {
            Collection::Node => match shown {
                Shown::All(mut objects) => match objects.pop() {
                    Some(object) => self.node_shown(now, object, options, actions),
                    None => self.node_gone(now),
                },
                Shown::One(object) => self.node_shown(now, object, options, actions),
                Shown::Gone(_) => self.node_gone(now),
                Shown::Replaced(_) | Shown::Unchanged(_) | Shown::TooMuch { .. } => {}
            },
            Collection::ConfigMap { namespace, name } => {
                let object = match shown {
                    Shown::All(mut objects) => {
                        objects.pop().map_or(Object::Missing, |object| Object::Here(Rc::new(object)))
                    }
                    Shown::One(object) => Object::Here(Rc::new(object)),
                    Shown::Gone(_) => Object::Missing,
                    Shown::Unchanged((uid, resource_version)) => Object::Unchanged { uid, resource_version },
                    Shown::TooMuch { why, .. } => Object::Unreadable(why),
                    Shown::Replaced(_) => return,
                };
                self.configuration.object_seen(namespace, name, object);
            }
        }
    }

    fn node_shown(&mut self, now: Now, object: Value, options: &Options, actions: &mut Vec<Action>) {
        let expected = &options.node_name;
        match serde_json::from_value::<api::Node>(object) {
            Ok(node) if node.metadata.name == *expected => self.node_seen(now, Box::new(node)),
            Ok(node) => {
                if !std::mem::replace(&mut self.wrong_node_logged, true) {
                    let found = excerpt(&node.metadata.name);
                    let line = format!(
                        "the API server answered with the Node of {found:?}, expected {expected:?}; its config source is ignored"
                    );
                    actions.push(Action::Log(Level::Warn, line));
                }
            }
            Err(error) => {
                let line = format!("Node {expected} cannot be read: {error}; keeping what is known");
                actions.push(Action::Log(Level::Warn, line));
            }
        }
    }

    fn node_seen(&mut self, now: Now, node: Box<api::Node>) {
        if !self.seen_uid.is_empty() && self.seen_uid != node.metadata.uid {
            // perhaps a server that was set up again: a watch from a version of the old one would get no events
            self.must_relist = true;
        }
        self.seen_uid.clone_from(&node.metadata.uid);
        self.lease_node(now, Some(&node.metadata.uid));
        self.status.node_seen(&node);
        self.node_known_missing = false;
        if self.node.as_ref().is_some_and(|before| before.metadata.uid != node.metadata.uid) {
            // another Node of that name; the deletion of the one before was not seen
            self.mirror = None;
        }
        self.node = Some(node);
        self.note_overwritten_mirror(now);
    }

    fn node_gone(&mut self, now: Now) {
        self.lease_node(now, None);
        self.status.node_gone();
        self.mirror = None;
        self.node_known_missing = true;
        self.node = None;
    }

    /// Nothing about the other server's objects may be compared with, or sent to, this one: under another server's rules the Node's
    /// annotation could even read as "nothing is assigned", and a ConfigMap of the same name is another object.
    fn server_changed(&mut self, now: Now, server: u64, actions: &mut Vec<Action>) {
        self.server = server;
        self.server_is_hub = None;
        self.outbox.server_changed();
        self.configuration.server_changed();
        self.contact.server_changed(now);
        self.lease.server_changed(now);
        self.status.node_gone();
        self.mirror = None;
        self.status_offered = None;
        (self.node, self.node_known_missing, self.is_out) = (None, false, false);
        self.next_relist = now.mono;
        self.is_source_of_this_server = false;
        self.maps.stop();
        if self.watched.take().is_some() {
            actions.push(Action::EndConfigMapWatch);
        }
        let line = "the kubeconfig names another API server: the agent forgets what it read from the old one";
        actions.push(Action::Log(Level::Info, line.into()));
        actions.push(Action::WatchNode(self.nodes.list_another(None)));
    }

    /// News of a server that is not asked any more: only frees the way that the request took.
    fn answered_by_another_server(&mut self, event: &Event) {
        let key = match event {
            Event::Answered(key, _) => *key,
            Event::Renewed(_) | Event::RenewedAsOf(_) => RequestKey::Renew,
            _ => return,
        };
        self.outbox.is_answered_by_another_server(&key);
    }

    /// The Node as the Lease is to know it; None if it does not exist. A new one is claimed at once.
    fn lease_node(&mut self, now: Now, uid: Option<&str>) {
        if self.lease.node(uid, now) {
            self.outbox.end_pause(now, &RequestKey::Renew);
        }
    }

    fn reflector(&mut self, watched: Watched) -> &mut Reflector {
        match watched {
            Watched::Node => &mut self.nodes,
            Watched::ConfigMap => &mut self.maps,
        }
    }

    fn watching(&mut self, watched: Watched) -> &mut Watching {
        &mut self.reflector(watched).watching
    }

    /// The Lease request was answered. `latest`: the latest change that concerns the node, if the answer names it.
    fn renewed(
        &mut self,
        now: Now,
        answer: &Answer,
        latest: Option<u64>,
        options: &Options,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) {
        self.heard(now, answer, jitter);
        if self.lease.is_claimed() && is_not_found(answer) {
            self.relist_node(now, actions);
        }
        let verdict = self.lease.answered(now, answer, jitter);
        self.outbox.answered(now, &RequestKey::Renew, answer, verdict, jitter);
        self.note_renewal(now, answer, options, actions);
        if matches!(answer, Answer::Accepted(_)) {
            self.configuration.renewed(now);
            self.read_what_is_named(now, latest, jitter, actions);
        }
    }

    /// Lists what has not shown a change that a renewal named.
    fn read_what_is_named(
        &mut self,
        now: Now,
        latest: Option<u64>,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) {
        for watched in [Watched::Node, Watched::ConfigMap] {
            let watching = self.watching(watched);
            if !watching.named(now, latest, jitter) {
                continue;
            }
            if !watching.lists_only() {
                let line = format!(
                    "{}: it has not shown a change that the API server named, listing anew",
                    watched.stream()
                );
                actions.push(Action::Log(Level::Info, line));
            }
            match watched {
                Watched::Node => actions.push(Action::WatchNode(self.nodes.watching.list(None))),
                Watched::ConfigMap => self.must_relist = true,
            }
        }
    }

    fn watch_ended(
        &mut self,
        now: Now,
        watched: Watched,
        round: u64,
        end: WatchEnd,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) {
        let line = watched.stream();
        let report = self.watching(watched).ended(now, round, end, jitter);
        self.is_out |= report.is_unreachable;
        let Some((failure, why)) = report.failure else { return };
        match failure {
            WatchFailure::Unreachable => {
                log_lines(self.contact.no_answer(line, &why, report.is_first), actions);
            }
            WatchFailure::Answered if report.is_first => {
                actions.push(Action::Log(Level::Warn, format!("{line}: {why}; retrying")));
            }
            WatchFailure::Answered => {}
        }
        if let Some((namespace, name)) = self.watched.as_ref().filter(|_| report.is_unreadable) {
            self.configuration.object_seen(namespace, name, Object::Unreadable(why));
        }
    }

    /// Notices that somebody wrote over the mirrored status: a later request of an earlier run, or another client. It is sent again
    /// after a pause, so that two writers do not fight in a loop. A version of the Node before ours shows what was there before. A
    /// server that drops the annotation is not sent it again.
    fn note_overwritten_mirror(&mut self, now: Now) {
        let (Some(mirror), Some(node)) = (&self.mirror, &self.node) else { return };
        let Some(there) = node.metadata.annotations.get(api::CONFIG_STATUS_ANNOTATION) else { return };
        let seen: Option<u64> = node.metadata.resource_version.parse().ok();
        if *there != mirror.text && mirror.version.is_some() && seen > mirror.version {
            self.mirror = None;
            self.outbox.pause(&RequestKey::PatchNode, now.mono + LONGEST_WAIT);
        }
    }

    fn heard(&mut self, now: Now, answer: &Answer, jitter: &mut Jitter) {
        self.is_out |= matches!(answer, Answer::Failed(_));
        if answer.is_contact() {
            self.reached(now, jitter);
        }
    }

    /// The server answers: what waits for the network on another stream does not wait any longer.
    fn reached(&mut self, now: Now, jitter: &mut Jitter) {
        if std::mem::take(&mut self.is_out) {
            self.nodes.watching.hurry(now, jitter);
            self.maps.watching.hurry(now, jitter);
            self.outbox.hurry(now, jitter);
        }
    }

    /// The version of the watched ConfigMap of which a whole copy is on disk.
    fn held(&self) -> Option<(String, String)> {
        let (uid, resource_version) = self.configuration.held()?;
        Some((uid.to_owned(), resource_version.to_owned()))
    }

    fn answered(
        &mut self,
        now: Now,
        key: RequestKey,
        answer: Answer,
        options: &Options,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) {
        if self.outbox.is_answered_by_another_server(&key) {
            return;
        }
        self.heard(now, &answer, jitter);
        let line = describe(key, &options.node_name);
        if !matches!(answer, Answer::Failed(_)) {
            self.contact.answered(&line);
        }
        let verdict = verdict_on(key, &answer);
        let failure = self.outbox.answered(now, &key, &answer, verdict, jitter);
        if verdict == Verdict::Done {
            return self.settled(now, key, &answer, options, jitter, actions);
        }
        if let Answer::Failed(why) = &answer {
            log_lines(self.contact.no_answer(&line, why, failure.is_news), actions);
        } else if failure.is_news {
            let then = if failure.is_held { "trying again in 5 minutes" } else { "retrying" };
            actions.push(Action::Log(Level::Warn, format!("{line}: {answer}; {then}")));
        }
        match key {
            RequestKey::PatchStatus => self.status_offered = None,
            RequestKey::PatchNode => self.mirror = None,
            RequestKey::PatchLabels => {}
            _ => return,
        }
        if is_not_found(&answer) {
            self.relist_node(now, actions);
        }
    }

    /// A request was accepted, or refused in a way that settles it as well.
    fn settled(
        &mut self,
        now: Now,
        key: RequestKey,
        answer: &Answer,
        options: &Options,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) {
        match key {
            RequestKey::Version => {
                let version = if let Answer::Accepted(version) = answer { version.as_ref() } else { None };
                self.server_is_hub = Some(version.is_some_and(is_hub_version));
            }
            RequestKey::PatchStatus => {
                self.configuration.contact(now);
                self.status_posts += 1;
                if self.lease.last_renewed.is_none() {
                    let what = format!("the status of Node {} accepted", options.node_name);
                    log_lines(self.contact.accepted(now, &what), actions);
                }
                if let Some(patch) = self.status_offered.take() {
                    let frequency = self.configuration.effective().config.node_status_report_frequency;
                    self.status.accepted(now, patch, frequency, jitter);
                }
            }
            RequestKey::Register | RequestKey::PatchLabels => self.nodes.watching.changed_by_us(now),
            RequestKey::PatchNode => {
                self.nodes.watching.changed_by_us(now);
                if let Some(mirror) = self.mirror.as_mut().filter(|mirror| mirror.version.is_none()) {
                    mirror.version = version_of(answer);
                }
                self.note_overwritten_mirror(now);
            }
            RequestKey::PostEvent => {
                self.pending_events.pop_front();
                if !matches!(answer, Answer::Accepted(_)) {
                    actions.push(Action::Log(Level::Warn, format!("event dropped: {answer}")));
                }
            }
            RequestKey::Renew => {}
        }
    }

    fn note_renewal(&mut self, now: Now, answer: &Answer, options: &Options, actions: &mut Vec<Action>) {
        let lease = &options.node_name;
        if matches!(answer, Answer::Accepted(_)) {
            return log_lines(self.contact.accepted(now, &format!("Lease {lease} renewed")), actions);
        }
        let failures = self.outbox.failures(&RequestKey::Renew);
        if failures > 0 {
            let problem = format!("Lease {lease} not renewed: {answer}");
            log_lines(self.contact.not_renewed(now, problem, failures.into()), actions);
        }
    }

    /// Lists the Node again: the server answers 404 although the watch has it. A server that was wiped and has since passed the
    /// watched version sends no event on that watch.
    fn relist_node(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.node.is_none() || now.mono < self.next_relist {
            return;
        }
        self.next_relist = now.mono + LONGEST_PATIENCE;
        actions
            .push(Action::Log(Level::Info, "the API server does not find the Node, reading it anew".into()));
        actions.push(Action::WatchNode(self.nodes.watching.list(None)));
    }

    // ------------------------------------------------------------------------------------------ due actions

    /// Returns whether the exit was ordered.
    fn settle(
        &mut self,
        now: Now,
        options: &Options,
        jitter: &mut Jitter,
        actions: &mut Vec<Action>,
    ) -> bool {
        if !self.exiting {
            self.judge_source();
            let next = self.configuration.next(now);
            self.perform_next(next, actions);
        }
        for notice in self.configuration.take_notices() {
            self.publish(now, options, actions, notice);
        }
        if self.exiting {
            return true;
        }
        self.consume_evidence(actions);
        self.note_condition(actions);
        self.update_watches(now, actions);
        self.refresh_host_facts(now, jitter, actions);
        self.offer_requests(now, options);
        self.send_due_requests(now, actions);
        false
    }

    fn perform_next(&mut self, next: Option<Next>, actions: &mut Vec<Action>) {
        let exits = matches!(next, Some(Next::Exit(_)));
        // before the next write: it may be of a checkpoint that no record names yet
        if let Some(keep) = self.configuration.take_sweep().filter(|_| !exits) {
            actions.push(Action::Sweep { keep });
        }
        match next {
            Some(Next::Step(step)) => actions.push(Action::Step(step)),
            Some(Next::Exit(why)) => {
                self.exiting = true;
                let start_again = !self.configuration.is_stop_asked();
                actions.push(Action::Exit { why, start_again });
            }
            None => {}
        }
    }

    /// Judges the source, once it is known whether our hub serves the Node.
    fn judge_source(&mut self) {
        let (Some(node), Some(is_hub)) = (&self.node, self.server_is_hub) else { return };
        let annotation = node.metadata.annotations.get(api::CONFIG_SOURCE_ANNOTATION).map(String::as_str);
        let requested = requested_source(node.spec.config_source.as_ref(), annotation, is_hub);
        self.configuration.node_seen(&node.metadata.uid, requested, source::place(is_hub));
        let asked = node.metadata.annotations.get(api::FORGIVE_ANNOTATION).map(String::as_str);
        self.configuration.asked_to_forgive(asked);
        self.is_source_of_this_server = true;
    }

    fn note_condition(&mut self, actions: &mut Vec<Action>) {
        let config_ok = condition::config_ok(&self.configuration.view());
        if config_ok != self.last_config_ok {
            let line = format!("ConfigOK={}: {} ({})", config_ok.status, config_ok.message, config_ok.reason);
            actions.push(Action::Log(Level::Info, line));
            self.last_config_ok = config_ok;
        }
    }

    fn update_watches(&mut self, now: Now, actions: &mut Vec<Action>) {
        if let Some(order) = self.nodes.watching.poll(now, None) {
            actions.push(Action::WatchNode(order));
        }
        if self.is_source_of_this_server {
            self.update_config_map_watch(now, actions);
        }
    }

    fn update_config_map_watch(&mut self, now: Now, actions: &mut Vec<Action>) {
        // while the Node is unknown, the ConfigMap stays watched
        let wanted = match (self.configuration.requested_object(), &self.node) {
            (Some((namespace, name)), _) => Some((namespace.to_owned(), name.to_owned())),
            (None, Some(_)) => None,
            (None, None) => return,
        };
        let anew = self.configuration.take_must_read() | std::mem::take(&mut self.must_relist);
        let is_another = wanted != self.watched;
        self.watched = wanted;
        let Some((namespace, name)) = self.watched.clone() else {
            if is_another {
                self.maps.stop();
                actions.push(Action::EndConfigMapWatch);
            }
            return;
        };
        let held = self.held();
        let order = match (is_another, anew) {
            (true, _) => Some(self.maps.list_another(held)),
            (false, true) => Some(self.maps.watching.list(held)),
            (false, false) => self.maps.watching.poll(now, held),
        };
        if let Some(order) = order {
            actions.push(Action::WatchConfigMap { namespace, name, order });
        }
    }

    fn refresh_host_facts(&mut self, now: Now, jitter: &mut Jitter, actions: &mut Vec<Action>) {
        if self.awaits_host_facts || now.mono < self.next_host_facts {
            return;
        }
        self.awaits_host_facts = true;
        let every = self.configuration.effective().config.node_status_update_frequency;
        self.next_host_facts = now.mono + jitter.stretch(every, 0.04);
        actions.push(Action::ReadHostFacts);
    }

    /// Puts what is wanted now into the outbox, in place of what was wanted before.
    fn offer_requests(&mut self, now: Now, options: &Options) {
        self.offer(now, RequestKey::Version, |running| {
            running.server_is_hub.is_none().then_some(Request::Version)
        });
        self.offer(now, RequestKey::Register, |running| {
            let config = &running.configuration.effective().config;
            let facts = running.status.facts().filter(|_| config.register_node && running.node_known_missing);
            facts.map(|facts| Request::Register(registration(options, config, Some(facts))))
        });
        self.offer_patches(now, options);
        self.offer(now, RequestKey::PostEvent, |running| {
            let event = running.pending_events.front().filter(|_| running.node.is_some());
            event.map(|event| Request::PostEvent(json!(event)))
        });
        if self.outbox.is_free(now, &RequestKey::Renew)
            && let Some(request) = self.lease.poll(now)
        {
            let _ = self.outbox.put(now, RequestKey::Renew, Order::Renew(request));
        }
    }

    /// Puts the request of this key that is wanted now, if it may be sent.
    fn offer(&mut self, now: Now, key: RequestKey, wanted: impl FnOnce(&mut Self) -> Option<Request>) {
        if !self.outbox.is_free(now, &key) {
            return;
        }
        match wanted(self) {
            // without room it is offered again at the next event: an answer, which makes room, is one
            Some(request) => _ = self.outbox.put(now, key, Order::Request(request)),
            None => self.outbox.withdraw(&key),
        }
    }

    fn offer_patches(&mut self, now: Now, options: &Options) {
        let Some(is_hub) = self.server_is_hub.filter(|_| self.node.is_some()) else { return };
        let status = condition::config_status(&self.configuration.view());
        // first what mirrors the status: it is never older than the condition
        let awaits_mirror = !is_hub && self.awaits_mirror(now, json!(status).to_string());
        if !awaits_mirror {
            self.offer(now, RequestKey::PatchStatus, |running| {
                let mut patch = running.status.patch(now, &running.last_config_ok);
                if is_hub && running.status.facts().is_some() {
                    add_config_status(&mut patch, &status, running.status.believed());
                }
                running.status_offered = patch;
                running.status_offered.as_ref().map(|patch| Request::PatchStatus(patch.body.clone()))
            });
        }
        self.offer(now, RequestKey::PatchLabels, |running| {
            let labels = missing_labels(running.node.as_ref()?, options, running.status.facts());
            (!labels.is_empty()).then(|| Request::PatchLabels(json!({"metadata": {"labels": labels}})))
        });
    }

    /// Writes `status.config` as text into the annotation, on a server that drops the field. Returns whether an older one is still on
    /// its way: the present one follows with its answer, and the condition after it.
    fn awaits_mirror(&mut self, now: Now, text: String) -> bool {
        let is_done = match (&self.mirror, &self.node) {
            // until ours is known to be there, what is there may be what it replaces
            (Some(mirror), _) => mirror.text == text,
            (None, Some(node)) => node.metadata.annotations.get(api::CONFIG_STATUS_ANNOTATION) == Some(&text),
            (None, None) => true,
        };
        if is_done {
            return false;
        }
        let key = RequestKey::PatchNode;
        if self.outbox.is_in_flight(&key) {
            return true;
        }
        let body = json!({"metadata": {"annotations": {api::CONFIG_STATUS_ANNOTATION: text}}});
        let order = Order::Request(Request::PatchNode(body));
        if self.outbox.is_free(now, &key)
            && !self.outbox.is_held(now, &key, &order)
            && self.outbox.put(now, key, order)
        {
            self.mirror = Some(Mirror { text, version: None });
        }
        false
    }

    fn send_due_requests(&mut self, now: Now, actions: &mut Vec<Action>) {
        while let Some((key, order)) = self.outbox.take_due(now) {
            if matches!(key, RequestKey::Register | RequestKey::PatchLabels) {
                // the Node as read confirms this: do not resend for LONGEST_WAIT
                self.outbox.pause(&key, now.mono + LONGEST_WAIT);
            }
            actions.push(match order {
                Order::Request(request) => Action::Request(request),
                Order::Renew(request) => Action::Renew { request, deadline: self.lease.request_deadline() },
            });
        }
    }

    /// A log line, and an Event once there is a Node to post it on.
    fn publish(&mut self, now: Now, options: &Options, actions: &mut Vec<Action>, notice: Notice) {
        let level = if notice.warning { Level::Warn } else { Level::Info };
        actions.push(Action::Log(level, format!("{}: {}", notice.reason, notice.message)));
        self.posted += 1;
        let name = event_name(&options.node_name, now, self.posted);
        let event = api::Event {
            metadata: api::ObjectMeta { name, namespace: "default".into(), ..Default::default() },
            involved_object: api::ObjectReference {
                kind: "Node".into(),
                name: options.node_name.clone(),
                uid: options.node_name.clone(),
                api_version: "v1".into(),
                namespace: String::new(),
            },
            reason: notice.reason.into(),
            message: notice.message.chars().take(1000).collect(),
            source: api::EventSource { component: "kedge".into(), host: options.node_name.clone() },
            first_timestamp: Some(now.wall),
            last_timestamp: Some(now.wall),
            count: 1,
            event_type: if notice.warning { "Warning" } else { "Normal" }.into(),
        };
        // the one in flight stays, for its answer removes the first; of the others the oldest is dropped
        if self.pending_events.is_full() {
            let first = self.pending_events.pop_front();
            if self.outbox.is_in_flight(&RequestKey::PostEvent) {
                self.pending_events.pop_front();
                if let Some(first) = first {
                    let _ = self.pending_events.push_front(first);
                }
            }
        }
        let _ = self.pending_events.push_back(event);
    }

    fn next_deadline(&self, now: Now) -> Option<Duration> {
        let report = self.status.report_due();
        let awaits_report = self.node.is_some() && self.status_offered.is_none();
        [
            self.configuration.next_deadline(now),
            self.lease.next_deadline().filter(|_| self.outbox.is_free(now, &RequestKey::Renew)),
            self.nodes.watching.next_deadline(),
            self.maps.watching.next_deadline(),
            (!self.awaits_host_facts).then_some(self.next_host_facts),
            report.filter(|at| awaits_report && *at > now.mono),
            self.outbox.next_deadline(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn report(&self, now: Now, options: &Options) -> Report {
        let since = |at| now.mono.saturating_sub(at).as_secs();
        Report {
            node: options.node_name.clone(),
            version: options.version.clone(),
            config: ConfigReport::of(&self.configuration, now),
            lease: LeaseReport {
                renewals: self.lease.renewed,
                seconds_since_renewal: self.lease.last_renewed.map(since),
            },
            disk_stalled_seconds: self.disk_stalled_since.map(since),
            storage: self.status.facts().map(|facts| StorageReport {
                bytes: facts.storage_bytes,
                available_bytes: facts.storage_available_bytes,
                available_inodes: facts.inodes_free,
            }),
            contact: self.contact.report(now),
            status_posts: self.status_posts,
            registered: self.node.is_some(),
            server_is_hub: self.server_is_hub,
        }
    }
}

/// Whether an answer to `GET /version` is our hub's.
pub fn is_hub_version(version: &Value) -> bool {
    version.get("gitVersion").and_then(Value::as_str).is_some_and(|text| text.contains(api::HUB_VERSION_MARK))
}

/// For the log.
fn describe(key: RequestKey, node: &str) -> String {
    match key {
        RequestKey::Renew => format!("renewing Lease {node}"),
        RequestKey::Version => "GET /version".into(),
        RequestKey::Register => format!("creating Node {node}"),
        RequestKey::PatchStatus => format!("patching the status of Node {node}"),
        RequestKey::PatchLabels => format!("patching the labels of Node {node}"),
        RequestKey::PatchNode => format!("patching the annotations of Node {node}"),
        RequestKey::PostEvent => format!("posting an event about Node {node}"),
    }
}

/// What an answer to a request other than a renewal means for the next of its key.
fn verdict_on(key: RequestKey, answer: &Answer) -> Verdict {
    let status = match answer {
        Answer::Accepted(_) => return Verdict::Done,
        Answer::Refused { status, .. } => *status,
        Answer::Failed(_) => return Verdict::Failed,
    };
    let is_settled = match key {
        // on our hub every identity may read it
        RequestKey::Version => matches!(status, 403 | 404),
        RequestKey::Register => status == 409,
        // an Event that the server will never accept is dropped
        RequestKey::PostEvent => (400..500).contains(&status) && !matches!(status, 401 | 429),
        _ => false,
    };
    if is_settled { Verdict::Done } else { Verdict::Failed }
}

/// As upstream names Events, within what a name may have: of a long node name its beginning.
fn event_name(node: &str, now: Now, number: u64) -> String {
    let stamp = format!(".{:x}{:02x}", now.wall.micros(), number & 0xff);
    // the name of a Node is ASCII; a part of it may not end like this
    let room = api::names::SUBDOMAIN_BYTES.saturating_sub(stamp.len()).min(node.len());
    format!("{}{stamp}", node[..room].trim_end_matches(['.', '-']))
}

fn log_lines(lines: impl IntoIterator<Item = (Level, String)>, actions: &mut Vec<Action>) {
    actions.extend(lines.into_iter().map(|(level, line)| Action::Log(level, line)));
}

/// The version of the object that a server answered with.
fn version_of(answer: &Answer) -> Option<u64> {
    let Answer::Accepted(Some(object)) = answer else { return None };
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn is_not_found(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused { status: 404, .. })
}

fn warning(reason: &'static str, message: String) -> Notice {
    Notice { warning: true, reason, message }
}

/// Adds `status.config` to the patch where it differs; fields to remove get an explicit null.
fn add_config_status(
    patch: &mut Option<StatusPatch>,
    status: &api::NodeConfigStatus,
    believed: Option<&api::NodeStatus>,
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
    let patch =
        patch.get_or_insert_with(|| StatusPatch { body: json!({"status": {}}), result, changed: true });
    patch.body["status"]["config"] = Value::Object(fields);
    patch.result.config = Some(status.clone());
    patch.changed = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_the_longest_node_name_has_a_valid_name() {
        let now = Now { mono: Duration::ZERO, wall: api::Timestamp::from_micros(1_763_688_958_000_000) };
        let longest = format!("{}.{}", "a".repeat(126), "b".repeat(126));
        let dotted = "a.".repeat(126) + "a";
        let hyphens = format!("a{}b", "-".repeat(251));
        for node in ["edge-1", &longest, &dotted, &hyphens] {
            let name = event_name(node, now, 300);
            assert_eq!(api::names::subdomain_complaint(&name), None, "{name}");
            assert!(name.ends_with(".64410d5d5fb802c"), "{name}");
        }
        assert_ne!(event_name(&longest, now, 1), event_name(&longest, now, 2));
    }
}
