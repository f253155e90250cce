//! The agent's core: takes events, gives actions.
//!
//! `Core::handle` takes one event at one time and appends actions; `Core::next_deadline` returns when to call
//! it again without an event. Actors with a state of their own make the decisions, each in its module: the
//! configuration (`config::actor`), the Node object, the heartbeat, the Events (`node`), the pods
//! (`pods::actor`); this module routes events to them, and one actor's results to the next. Always holds: at
//! most one file step is under way; the Lease, the status and the configuration are independent, so none
//! waits for another; queues have bounds. Leaves to others: performing the actions and reporting each
//! outcome, in any order and as late as it likes.

use crate::answer::{Answer, Level, Now};
use crate::config::actor::ConfigActor;
use crate::config::running::Forgiveness;
use crate::config::start::{self, Facts, Parsed, Started};
use crate::contact::{Contact, KUBECONFIG_LINE};
use crate::event::{Action, Collection, Event, Request, RequestKey};
use crate::identity::actor::{IdentityActor, Wishes};
use crate::kubelet::error::ConfigError;
use crate::kubelet::{self, Effective};
use crate::node::calls::Calls;
use crate::node::decommission::{Decommissioning, Seen};
use crate::node::events::NodeEvents;
use crate::node::facts::ImageState;
use crate::node::heartbeat::Heartbeat;
use crate::node::object::{NodeNews, NodeObject};
use crate::options::Options;
use crate::outbox::{self, LONGEST_WAIT, Outbox, Verdict};
use crate::pace::Jitter;
use crate::pods::actor::{Around, PodsActor};
use crate::pods::rejecting::Rejecting;
use crate::pods::{PodEvent, PodReport};
use crate::reflector::{Reflector, Shown};
use crate::report::{ConfigReport, Report};
use crate::system::actor::SystemActor;
use crate::turn::{Order, Turn, is_not_found};
use crate::watching::{WatchEnd, WatchFailure, Watched, Watching};
use crate::with_pods::PodPart;
use crate::writes::{Outcome, Steps, Suspend};
use kedge_api as api;
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// Between two tries to take the authorities that the hub announces.
const AUTHORITIES_AGAIN: Duration = Duration::from_secs(600);

#[derive(Clone)]
enum Phase {
    /// Before `Event::Start`.
    New,
    /// The decision at start is being made.
    Starting { outcomes: Vec<Outcome>, parsed: Parsed },
    /// A config is in use.
    Running(Box<Running>),
    /// The exit was ordered. Everything is kept, because the exit may be delayed.
    Exited(Box<Running>),
}

#[derive(Clone)]
struct Running {
    actors: Actors,
    outbox: Outbox<RequestKey, Order>,
}

/// The actors, and their common state: the server.
#[derive(Clone)]
struct Actors {
    config: ConfigActor,
    node: NodeObject,
    heartbeat: Heartbeat,
    events: NodeEvents,
    calls: Calls,
    decommissioning: Decommissioning,
    /// `None` on a node without a runtime.
    pods: PodPart<Box<PodsActor>>,
    /// `Some` on a node that runs no pods, and has contact to say so.
    rejecting: Option<Rejecting>,
    /// `None` on a node without an API server.
    identity: Option<Box<IdentityActor>>,
    system: SystemActor,
    contact: Contact,
    is_hub: Option<bool>,
    /// Number of the present server: the servers that the kubeconfig has named are counted.
    server: u64,
    /// A stream had no network, and none has had contact since.
    is_out: bool,
    /// The set of authorities that was last to be taken, and when it may be tried again.
    authorities: Option<(String, Duration)>,
}

/// The core of one agent. A clone continues from the same moment, so that a search can try several futures of
/// it.
#[derive(Clone)]
pub struct Core {
    options: Options,
    facts: Facts,
    jitter: Jitter,
    phase: Phase,
    stop_before_start: Option<String>,
    serves_pods: bool,
    rejects_pods: bool,
    keeps_identity: bool,
}

impl Core {
    /// Checks the local config: without a valid one an agent refuses to start, whatever is assigned. `now` is
    /// for stamps.
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
            slots: options.slots.clone(),
            boot_id: options.boot_id.clone(),
            previous: options.previous_run.clone(),
            wall: now.wall,
        };
        let jitter = Jitter::new(options.seed);
        Ok(Self {
            options,
            facts,
            jitter,
            phase: Phase::New,
            stop_before_start: None,
            serves_pods: false,
            rejects_pods: false,
            keeps_identity: false,
        })
    }

    /// Containers can run here. Call it before `Event::Start`; otherwise the agent sends no requests about
    /// pods.
    pub fn serve_pods(&mut self) {
        self.serves_pods = true;
    }

    /// Containers never run here: pods that are bound to this node are rejected. Call it before
    /// `Event::Start`.
    pub fn reject_pods(&mut self) {
        self.rejects_pods = true;
    }

    /// The node has a credential, or a token for one. Call it before `Event::Start`.
    pub fn keep_identity(&mut self) {
        self.keeps_identity = true;
    }

    /// Takes one event; appends the actions it leads to.
    pub fn handle(&mut self, now: Now, event: Event, actions: &mut Vec<Action>) {
        let is_held_up = matches!(event, Event::EndHeldUp(Some(_)));
        match &mut self.phase {
            Phase::Exited(_) if is_held_up => {
                if let Phase::Exited(running) = std::mem::replace(&mut self.phase, Phase::New) {
                    self.phase = Phase::Running(running);
                    self.run(now, Some(event), actions);
                }
            }
            Phase::Exited(_) => {}
            Phase::New | Phase::Starting { .. } => self.handle_start(now, event, actions),
            Phase::Running(_) => self.run(now, Some(event), actions),
        }
    }

    /// When to call `handle` with `Tick` if no event comes before.
    pub fn next_deadline(&self, now: Now) -> Option<Duration> {
        match &self.phase {
            Phase::Running(running) => running.actors.next_deadline(now, &running.outbox),
            _ => None,
        }
    }

    /// For `kedge status` and metrics; `None` until a config is in use.
    pub fn report(&self, now: Now) -> Option<Report> {
        match &self.phase {
            Phase::Running(running) => Some(running.actors.report(now, &self.options)),
            _ => None,
        }
    }

    /// The pods of this node; `None` if it runs none.
    pub fn pods(&self) -> Option<Vec<PodReport>> {
        let Phase::Running(running) = &self.phase else { return None };
        running.actors.pods.as_ref().map(|pods| pods.report())
    }

    /// How many more seconds of running pods are held, if they are.
    pub fn pods_held_seconds(&self, now: Now) -> Option<u64> {
        let Phase::Running(running) = &self.phase else { return None };
        running.actors.config.configuration.hold_left(now).map(|left| left.as_secs_f64().ceil() as u64)
    }

    /// Whether [`Self::pods`] is complete: not before the records on the disk and the runtime's containers
    /// are known.
    pub fn knows_all_pods(&self) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        running.actors.pods.as_ref().is_some_and(|pods| pods.is_report_complete())
    }

    /// The outcome of [`Event::Forgive`] for this UID at this moment. Until a config is in use, no verdict is
    /// known.
    pub fn forgiveness(&self, uid: &str) -> Forgiveness {
        match &self.phase {
            Phase::Running(running) => running.actors.config.configuration.forgiveness(uid),
            _ => Forgiveness::NothingKnown,
        }
    }

    /// Why [`Event::Reset`] would be refused at this moment; `None` if it would be done.
    pub fn reset_refusal(&self) -> Option<String> {
        match &self.phase {
            Phase::Running(running) => running.actors.config.configuration.reset_refusal(),
            _ => Some("no configuration is in use yet; ask again then".into()),
        }
    }

    /// Number of the present server: an action is for this one, see [`Event::Heard`].
    pub fn server(&self) -> u64 {
        match &self.phase {
            Phase::Running(running) => running.actors.server,
            _ => 0,
        }
    }

    /// UID and resourceVersion of the ConfigMap to watch, if a whole copy of it is on disk: an object that
    /// still has both need not be downloaded, and is reported as [`Listing::Unchanged`](crate::Listing).
    pub fn held_config_map(&self) -> Option<(String, String)> {
        let Phase::Running(running) = &self.phase else { return None };
        running.actors.config.held()
    }

    /// The configuration in use, once there is one.
    pub fn effective(&self) -> Option<&Effective> {
        match &self.phase {
            Phase::Running(running) => Some(running.actors.config.configuration.effective()),
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
        let mut outbox = Outbox::new(outbox::LIMITS);
        let (options, jitter) = (&self.options, &mut self.jitter);
        let mut turn = Turn { now, options, jitter, outbox: &mut outbox, actions };
        let mut actors = Actors::new(started, self.facts.clone(), self.serves_pods, &mut turn);
        actors.rejecting = self.rejects_pods.then(|| Rejecting::new(&mut turn));
        actors.identity = self.keeps_identity.then(|| Box::new(IdentityActor::new(now.mono)));
        if let Some(why) = self.stop_before_start.take() {
            actors.config.configuration.stop(&why);
        }
        self.phase = Phase::Running(Box::new(Running { actors, outbox }));
        self.run(now, None, actions);
    }

    /// Takes the event, and orders everything that is due.
    fn run(&mut self, now: Now, event: Option<Event>, actions: &mut Vec<Action>) {
        let Phase::Running(running) = &mut self.phase else { return };
        let Running { actors, outbox } = &mut **running;
        let mut turn = Turn { now, options: &self.options, jitter: &mut self.jitter, outbox, actions };
        if let Some(event) = event {
            actors.handle(event, &mut turn);
        }
        if actors.settle(&mut turn)
            && let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::New)
        {
            self.phase = Phase::Exited(running);
        }
    }
}

impl Actors {
    fn new(started: Started, facts: Facts, serves_pods: bool, turn: &mut Turn) -> Self {
        let mut events = NodeEvents::default();
        let config = ConfigActor::new(started, facts, &mut events, turn);
        let (lease_secs, lists_only) = (config.config().node_lease_duration_secs, !config.config().watch);
        let mut node = NodeObject::new(lists_only, turn);
        node.list(turn);
        let pods = PodPart::of(|| serves_pods.then(|| Box::new(PodsActor::new(config.config(), turn))));
        Self {
            config,
            node,
            heartbeat: Heartbeat::new(lease_secs, turn),
            events,
            calls: Calls::new(turn.now.mono),
            decommissioning: Decommissioning::new(turn.options.decommission.clone()),
            pods,
            rejecting: None,
            identity: None,
            system: SystemActor::default(),
            contact: Contact::new(turn.now),
            is_hub: None,
            server: 0,
            is_out: false,
            authorities: None,
        }
    }

    // ------------------------------------------------------------------------------------------ events

    fn handle(&mut self, event: Event, turn: &mut Turn) {
        match event {
            Event::Start | Event::Tick => {}
            Event::StepDone(outcome) => self.config.step_done(outcome, turn),
            Event::HostFacts(facts) => {
                if matches!(facts.image, ImageState::Good(_)) {
                    self.config.configuration.slot_is_good();
                }
                let (config, floor) = (self.config.config(), self.config.configuration.floor());
                for notice in self.heartbeat.observe(*facts, config, floor, turn) {
                    self.events.publish(notice, turn);
                }
                if let Some((complaints, is_whole)) = self.heartbeat.complaints() {
                    self.config.configuration.looked(turn.now, complaints, is_whole);
                }
            }
            Event::Answered(key, answer) => self.answered(key, &answer, turn),
            Event::Renewed(answer) => self.renewed(&answer, None, turn),
            Event::RenewedAsOf(latest) => self.renewed(&Answer::Accepted(None), Some(latest), turn),
            Event::Called(ids) => self.calls.heard(&ids, turn),
            Event::Listed { of, listing } => {
                self.reached(turn);
                if self.is_watched(&of)
                    && let Some(reflector) = self.reflector(of.watched())
                {
                    let shown = reflector.listed(listing);
                    self.show(&of, shown, turn);
                }
            }
            Event::Changed { of, object, is_deleted } => {
                self.reached(turn);
                if self.is_watched(&of)
                    && let Some(reflector) = self.reflector(of.watched())
                {
                    for shown in reflector.changed(object, is_deleted) {
                        self.show(&of, shown, turn);
                    }
                }
            }
            Event::WatchPosition { watched, round, version, is_change } => {
                self.reached(turn);
                self.contact.watch_answered();
                let version =
                    self.watching(watched).and_then(|watching| watching.has_come_to(round, &version));
                if let Some(change) = version.filter(|_| is_change) {
                    let others = WATCHED.into_iter().filter(|other| *other != watched);
                    others.for_each(|other| {
                        self.watching(other).into_iter().for_each(|other| other.shown_elsewhere(change));
                    });
                }
            }
            Event::WatchReceiving { watched, round } => {
                let watching = self.watching(watched).into_iter();
                watching.for_each(|watching| watching.is_receiving(turn.now, round));
            }
            Event::WatchEnded { watched, round, end } => self.watch_ended(watched, round, end, turn),
            // an answer is not contact for a config: only an accepted request is
            Event::Contact => {
                self.reached(turn);
                self.contact.watch_answered();
            }
            Event::NoKubeconfig(why) => turn.log_all(self.contact.no_answer(KUBECONFIG_LINE, &why, true)),
            Event::BadConfigsRead(read) => self.config.bad_configs_read(&read),
            Event::Forgive(uid) => self.config.forgive(&uid, turn),
            Event::DiskStalled(stalled) => self.heartbeat.disk_stalled(turn.now, stalled),
            Event::EndHeldUp(why) => self.config.end_held_up(why, turn),
            Event::Reset => self.config.configuration.reset(),
            Event::Pods(event) => {
                // the runtime works now
                if matches!(*event, PodEvent::Inventory(_)) {
                    self.heartbeat.look_again(turn.now);
                }
                if let PodEvent::Shutdown(stops) = *event {
                    self.heartbeat.machine_stops(stops);
                }
                if let Some(pods) = self.pods.as_mut() {
                    pods.receive(*event, turn);
                }
            }
            Event::Identity(event) => {
                if let Some(identity) = &mut self.identity {
                    identity.take(*event, turn);
                }
            }
            Event::System(event) => self.system.take(*event, &mut self.config.configuration, turn),
            Event::Heard { server, event } => self.heard_from(server, *event, turn),
            Event::DecommissionNoted(done) => {
                if let Some(why) = self.decommissioning.noted(done, turn) {
                    self.config.configuration.stop(&why);
                }
            }
            Event::StateRemoved(done) => self.decommissioning.removed(done, turn),
            Event::Stop(why) => self.config.configuration.stop(&why),
        }
    }

    fn heard_from(&mut self, server: u64, event: Event, turn: &mut Turn) {
        if server > self.server {
            self.server_changed(server, turn);
        }
        if server == self.server {
            return self.handle(event, turn);
        }
        // an answer of an earlier server only frees the request's key
        let key = match event {
            Event::Answered(key, _) => key,
            Event::Renewed(_) | Event::RenewedAsOf(_) => RequestKey::Renew,
            _ => return,
        };
        turn.outbox.is_answered_by_another_server(&key);
    }

    /// The other server's objects may not be compared with this one's, or sent to it: under another server's
    /// rules the Node's annotation could even read as "nothing is assigned", and a ConfigMap of the same name
    /// is another object.
    fn server_changed(&mut self, server: u64, turn: &mut Turn) {
        (self.server, self.is_hub, self.is_out) = (server, None, false);
        turn.outbox.server_changed();
        self.contact.server_changed(turn.now);
        self.heartbeat.server_changed(turn);
        self.config.server_changed(turn);
        turn.log(Level::Info, "another API server is used: the agent forgets what it read from the old one");
        self.node.server_changed(turn);
        self.identity.iter_mut().for_each(|identity| identity.server_changed(turn.now.mono));
        if let Some(pods) = self.pods.as_mut() {
            pods.server_changed(turn);
        }
        self.rejecting.iter_mut().for_each(|rejecting| rejecting.server_changed(turn.now));
    }

    // ------------------------------------------------------------------------------------------ lists and
    // watches

    fn is_watched(&self, of: &Collection) -> bool {
        match of {
            Collection::Node => true,
            Collection::ConfigMap { namespace, name } => self.config.is_watched(namespace, name),
            Collection::Pods => self.pods.as_ref().is_some(),
        }
    }

    /// `None` if this node watches no such objects.
    fn reflector(&mut self, watched: Watched) -> Option<&mut Reflector> {
        match watched {
            Watched::Node => Some(&mut self.node.reflector),
            Watched::ConfigMap => Some(&mut self.config.reflector),
            Watched::Pods => self.pods.as_mut().map(|pods| &mut pods.reflector),
        }
    }

    fn watching(&mut self, watched: Watched) -> Option<&mut Watching> {
        self.reflector(watched).map(|reflector| &mut reflector.watching)
    }

    /// Passes on a reflector's news.
    fn show(&mut self, of: &Collection, shown: Shown, turn: &mut Turn) {
        if let Shown::TooMuch { why, is_first: true } = &shown {
            let stream = of.watched().stream();
            turn.log(Level::Warn, format!("{stream}: {why}; keeping what is known"));
        }
        match of {
            Collection::Node => {
                let is_read = matches!(shown, Shown::All(_));
                let Some(news) = self.node.shown(shown, turn) else { return };
                if matches!(news, NodeNews::Seen { is_another: true, .. }) {
                    self.config.relist();
                }
                let is_whole = matches!(news, NodeNews::Seen { is_whole: true, .. });
                let takes_again = self.heartbeat.node(self.node.node(), is_whole, turn);
                if let Some(pods) = self.pods.as_mut() {
                    if takes_again {
                        pods.statuses_are_taken();
                    }
                    pods.node(self.node.node(), is_read, turn);
                }
            }
            Collection::ConfigMap { namespace, name } => self.config.shown(namespace, name, shown),
            Collection::Pods => {
                if self.pods.as_mut().is_some_and(|pods| pods.shown(shown, turn)) {
                    self.node.list(turn);
                }
            }
        }
    }

    fn watch_ended(&mut self, watched: Watched, round: u64, end: WatchEnd, turn: &mut Turn) {
        // a node that begins with a credential that has ended sends nothing else
        if let Some(identity) = self.identity.as_mut().filter(|_| end.is_refused) {
            identity.heard(turn.now.mono, Some(401));
        }
        let line = watched.stream();
        let Some(watching) = self.watching(watched) else { return };
        let report = watching.ended(turn.now, round, end, turn.jitter);
        self.is_out |= report.is_unreachable;
        let Some((failure, why)) = report.failure else { return };
        match failure {
            WatchFailure::Unreachable => turn.log_all(self.contact.no_answer(line, &why, report.is_first)),
            WatchFailure::Answered if report.is_first => {
                turn.log(Level::Warn, format!("{line}: {why}; retrying"));
            }
            WatchFailure::Answered => {}
        }
        if report.is_unreadable {
            self.config.unreadable(why);
        }
    }

    /// Lists collections that have not shown a change that a renewal announced.
    fn read_what_is_named(&mut self, latest: Option<u64>, turn: &mut Turn) {
        for watched in WATCHED {
            let Some(watching) = self.watching(watched) else { continue };
            if !watching.named(turn.now, latest, turn.jitter) {
                continue;
            }
            if !watching.lists_only() {
                let stream = watched.stream();
                let line =
                    format!("{stream}: it has not shown a change that the API server named, listing anew");
                turn.log(Level::Info, line);
            }
            match watched {
                Watched::Node => self.node.list(turn),
                Watched::ConfigMap => self.config.relist(),
                Watched::Pods => {
                    if let Some(pods) = self.pods.as_mut() {
                        pods.list_again(turn);
                    }
                }
            }
        }
    }

    // ------------------------------------------------------------------------------------------ answers

    fn heard(&mut self, key: RequestKey, answer: &Answer, turn: &mut Turn) {
        self.is_out |= matches!(answer, Answer::Failed(_));
        // every caller may read `/version`, and a server without time checks no certificate's end
        let says_nothing = match answer {
            Answer::Accepted(_) => key == RequestKey::Version,
            Answer::Refused { status, .. } => *status == 429 || *status >= 500,
            Answer::Failed(_) => true,
        };
        if let Some(identity) = self.identity.as_mut().filter(|_| !says_nothing) {
            let status = match answer {
                Answer::Refused { status, .. } => Some(*status),
                _ => None,
            };
            identity.heard(turn.now.mono, status);
        }
        if answer.is_contact() {
            self.reached(turn);
        }
    }

    /// The server answers: requests that wait for the network on other streams need not wait any longer.
    fn reached(&mut self, turn: &mut Turn) {
        if std::mem::take(&mut self.is_out) {
            for watched in WATCHED {
                let (now, jitter) = (turn.now, &mut *turn.jitter);
                self.watching(watched).into_iter().for_each(|watching| watching.hurry(now, jitter));
            }
            turn.outbox.hurry(turn.now, turn.jitter);
        }
    }

    /// The Lease request was answered. `latest` is the latest change that concerns the node, if the answer
    /// has it.
    fn renewed(&mut self, answer: &Answer, latest: Option<u64>, turn: &mut Turn) {
        if turn.outbox.is_answered_by_another_server(&RequestKey::Renew) {
            return;
        }
        self.heard(RequestKey::Renew, answer, turn);
        if self.heartbeat.lease.is_claimed() && is_not_found(answer) {
            self.node.not_found(turn);
        }
        self.decommissioning.answered(answer, turn.now.mono);
        self.heartbeat.renewed(answer, turn);
        let lease = &turn.options.node_name;
        if matches!(answer, Answer::Accepted(_)) {
            turn.log_all(self.contact.accepted(turn.now, &format!("Lease {lease} renewed")));
            self.config.configuration.renewed(turn.now);
            if let (Some(pods), Some(latest)) = (self.pods.as_mut(), latest) {
                pods.named(latest, turn);
            }
            if let (Some(rejecting), Some(latest)) = (&mut self.rejecting, latest) {
                rejecting.named(latest);
            }
            return self.read_what_is_named(latest, turn);
        }
        let failures = turn.outbox.failures(&RequestKey::Renew);
        if failures > 0 {
            let problem = format!("Lease {lease} not renewed: {answer}");
            turn.log_all(self.contact.not_renewed(turn.now, problem, failures.into()));
        }
    }

    fn answered(&mut self, key: RequestKey, answer: &Answer, turn: &mut Turn) {
        if turn.outbox.is_answered_by_another_server(&key) {
            return;
        }
        self.heard(key, answer, turn);
        if let RequestKey::Pods(slot) = key {
            if let Some(pods) = self.pods.as_mut() {
                pods.answered(slot, answer.clone(), turn);
            }
            return;
        }
        let line = describe(key, &turn.options.node_name);
        if !matches!(answer, Answer::Failed(_)) {
            self.contact.answered(&line);
        }
        let verdict = verdict_on(key, answer);
        let failure = turn.outbox.answered(turn.now, &key, answer, verdict, turn.jitter);
        if verdict == Verdict::Done {
            return self.settled(key, answer, turn);
        }
        if let Answer::Failed(why) = answer {
            turn.log_all(self.contact.no_answer(&line, why, failure.is_news));
        } else if failure.is_news {
            let then = if failure.is_held { "trying again in 5 minutes" } else { "retrying" };
            turn.log(Level::Warn, format!("{line}: {answer}; {then}"));
        }
        match key {
            RequestKey::PatchStatus => {
                self.decommissioning.answered(answer, turn.now.mono);
                self.heartbeat.status_failed(answer, turn);
            }
            RequestKey::PatchNode | RequestKey::PatchLabels => self.node.failed(key),
            _ => return,
        }
        if is_not_found(answer) {
            self.node.not_found(turn);
        }
    }

    /// A request was accepted, or refused in a way that settles it as well.
    fn settled(&mut self, key: RequestKey, answer: &Answer, turn: &mut Turn) {
        match key {
            RequestKey::Version => {
                let version = if let Answer::Accepted(version) = answer { version.as_ref() } else { None };
                let is_hub = version.is_some_and(is_hub_version);
                self.is_hub = Some(is_hub);
                self.heartbeat.lease.server_is(is_hub);
                self.node.server_is(is_hub, turn);
            }
            RequestKey::PatchStatus => {
                self.node.changed_by_us(answer);
                self.config.configuration.contact(turn.now);
                if self.heartbeat.lease.last_renewed.is_none() {
                    let what = format!("the status of Node {} accepted", turn.options.node_name);
                    turn.log_all(self.contact.accepted(turn.now, &what));
                }
                let says_so = self.heartbeat.status_accepted(self.config.config(), turn);
                self.decommissioning.reported(says_so, turn);
            }
            RequestKey::Register | RequestKey::PatchLabels | RequestKey::PatchNode => {
                self.node.changed_by_us(answer);
                if key == RequestKey::PatchLabels {
                    let longest = self.heartbeat.longest_pause(self.config.config(), turn.now);
                    self.node.labels_accepted(self.config.config(), longest, turn);
                }
                self.node.settled(key, answer, turn);
            }
            RequestKey::PostEvent => self.events.posted(answer, turn),
            RequestKey::RejectPods => self.rejecting.iter_mut().for_each(|rejecting| rejecting.has_looked()),
            RequestKey::Renew | RequestKey::Pods(_) => {}
        }
    }

    // ------------------------------------------------------------------------------------------ what is due

    /// Returns whether the exit was ordered.
    fn settle(&mut self, turn: &mut Turn) -> bool {
        self.system.decide(&mut self.config.configuration, turn);
        self.config.decide(self.node.node(), self.is_hub, &mut self.events, turn);
        if self.config.is_exiting() {
            return true;
        }
        self.node.poll_watch(turn);
        self.config.update_watch(self.node.node().is_some(), turn);
        self.heartbeat.refresh_facts(self.config.config(), turn);
        self.heartbeat.pods_held(self.config.configuration.hold().as_ref());
        self.heartbeat.system(self.system.system_ok(&self.config.configuration));
        for notice in std::mem::take(&mut self.system.notices) {
            self.events.publish(notice, turn);
        }
        self.decommission(turn);
        self.renew_identity(turn);
        self.take_authorities(turn);
        self.offer_requests(turn);
        if let Some(pods) = self.pods.as_mut() {
            let around = Around {
                node: self.node.node(),
                facts: self.heartbeat.facts(),
                config: self.config.config(),
                floor: self.config.configuration.floor(),
                pressures: self.heartbeat.pressures(),
                is_held: self.config.configuration.are_pods_held() && self.decommissioning.record().is_none(),
            };
            pods.settle(&around, turn);
            if std::mem::take(&mut pods.wants_look) {
                self.heartbeat.look_again(turn.now);
            }
            if std::mem::take(&mut pods.wants_node) {
                self.node.list(turn);
            }
            for notice in std::mem::take(&mut pods.notices) {
                self.events.publish(notice, turn);
            }
            self.events.offer(self.node.node().is_some(), turn);
        }
        send_due_requests(self.heartbeat.lease.request_deadline(), turn);
        false
    }

    fn decommission(&mut self, turn: &mut Turn) {
        let pods = match self.pods.as_ref() {
            Some(pods) if self.decommissioning.record().is_some() => {
                pods.is_report_complete().then(|| pods.report().len())
            }
            Some(_) => None,
            None => Some(0),
        };
        let seen = Seen { node: self.node.node(), is_missing: self.node.is_missing(), pods };
        self.decommissioning.decide(&seen, turn);
        self.heartbeat.decommissioning(self.decommissioning.condition());
        if let (Some(pods), Some(record)) = (self.pods.as_mut(), self.decommissioning.record()) {
            pods.end_all(&record.node_uid, turn);
        }
    }

    /// The hub names the set of authorities to trust while it replaces one.
    fn take_authorities(&mut self, turn: &mut Turn) {
        let wanted = self.node.node().and_then(|node| node.metadata.annotations.get(api::TRUST_ANNOTATION));
        let own = self.heartbeat.facts().and_then(|facts| facts.authorities.as_ref());
        let (Some(wanted), Some(own)) = (wanted, own) else { return };
        let waits = |(tried, again): &(String, Duration)| tried == wanted && turn.now.mono < *again;
        if wanted != own && !self.authorities.as_ref().is_some_and(waits) {
            let again = turn.now.mono.saturating_add(AUTHORITIES_AGAIN);
            self.authorities = Some((wanted.clone(), again));
            turn.act(Action::TakeAuthorities(wanted.clone()));
        }
    }

    fn renew_identity(&mut self, turn: &mut Turn) {
        let Some(identity) = &mut self.identity else { return };
        let rotate = self
            .node
            .node()
            .and_then(|node| node.metadata.annotations.get(api::ROTATE_ANNOTATION)?.parse().ok());
        let wishes = Wishes {
            renews: self.config.config().rotates_certificates,
            gives_numbers: self.is_hub == Some(true),
            rotate,
        };
        identity.decide(wishes, turn);
        let has_news = std::mem::take(&mut identity.has_news);
        for notice in std::mem::take(&mut identity.notices) {
            self.events.publish(notice, turn);
        }
        if has_news {
            // requests that wait since the server refused them need not
            self.is_out = true;
            self.reached(turn);
        }
    }

    /// Puts the wanted requests into the outbox. Those of one moment leave in this order.
    fn offer_requests(&mut self, turn: &mut Turn) {
        turn.offer(RequestKey::Version, |_| self.is_hub.is_none().then_some(Request::Version));
        // a node that is decommissioned does not make its Node again
        if self.decommissioning.record().is_none() {
            self.node.offer_registration(self.config.config(), self.heartbeat.facts(), turn);
        }
        if let Some(is_hub) = self.is_hub.filter(|_| self.node.node().is_some()) {
            let status = self.config.config_status();
            // first the annotation with `status.config`, so that it is never older than the condition
            let awaits_annotation =
                !is_hub && self.node.offer_status_annotation(json!(status).to_string(), turn);
            if !awaits_annotation {
                let status = is_hub.then_some(&status);
                self.heartbeat.offer_status(self.config.config_ok(), status, turn);
            }
            let system = self.system.annotation(&self.config.configuration);
            self.node.offer_labels(self.config.config(), self.heartbeat.facts(), system, turn);
        } else {
            self.heartbeat.withdraw_status(turn);
            self.node.withdraw(turn);
        }
        self.events.offer(self.node.node().is_some(), turn);
        self.heartbeat.offer_renewal(turn);
        let is_there = self.node.node().is_some();
        self.rejecting.iter_mut().for_each(|rejecting| rejecting.offer(is_there, turn));
        self.calls.begin(turn);
    }

    fn next_deadline(&self, now: Now, outbox: &Outbox<RequestKey, Order>) -> Option<Duration> {
        let is_there = self.node.node().is_some();
        [
            self.config.configuration.next_deadline(now),
            self.config.reflector.watching.next_deadline(),
            self.node.next_deadline(),
            self.pods.as_ref().and_then(|pods| pods.next_deadline()),
            self.heartbeat.next_deadline(now, is_there, outbox),
            self.rejecting.as_ref().and_then(|rejecting| rejecting.next_deadline(now, is_there, outbox)),
            self.calls.next_deadline(),
            self.decommissioning.next_deadline(now.mono),
            self.identity.as_ref().and_then(|identity| identity.next_deadline()),
            outbox.next_deadline(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn report(&self, now: Now, options: &Options) -> Report {
        Report {
            node: options.node_name.clone(),
            version: options.version.clone(),
            config: ConfigReport::of(&self.config.configuration, now),
            lease: self.heartbeat.lease_report(now),
            disk_stalled_seconds: self.heartbeat.disk_stalled_seconds(now),
            storage: self.heartbeat.storage_report(),
            contact: self.contact.report(now),
            ready: self.heartbeat.ready_report(),
            identity: self.identity.as_ref().map(|identity| identity.report()),
            status_posts: self.heartbeat.posts,
            registered: self.node.node().is_some(),
            server_is_hub: self.is_hub,
            decommission: self.decommissioning.condition().map(|(_, _, message)| message),
            system: self.system.report(&self.config.configuration),
            another_machine: self.heartbeat.rival.report(now.mono),
        }
    }
}

/// Everything that may be watched.
const WATCHED: [Watched; 3] = [Watched::Node, Watched::ConfigMap, Watched::Pods];

/// Orders the requests whose turn it is.
fn send_due_requests(lease_deadline: Duration, turn: &mut Turn) {
    while let Some((key, order)) = turn.outbox.take_due(turn.now) {
        if matches!(key, RequestKey::Register | RequestKey::PatchLabels) {
            // a read of the Node confirms this: do not resend for LONGEST_WAIT
            turn.outbox.pause(&key, turn.now.mono.saturating_add(LONGEST_WAIT));
        }
        turn.act(match order {
            Order::Request(request) => Action::Request(request),
            Order::Renew(request) => Action::Renew { request, deadline: lease_deadline },
        });
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
        RequestKey::Pods(_) => "a request about pods".into(),
        RequestKey::RejectPods => format!("rejecting the pods of Node {node}"),
    }
}

/// The meaning of an answer to a request other than a renewal for the next one of its key.
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
        RequestKey::PostEvent => answer.settles_an_event(),
        _ => false,
    };
    if is_settled { Verdict::Done } else { Verdict::Failed }
}
