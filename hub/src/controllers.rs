//! The runner of all controllers: subscribes, reconciles, performs, and sweeps periodically.
//!
//! Owns: when a controller takes a step and how its actions are performed. Always holds: an action is
//! performed by the same rules as a client's request; a panic of a controller is logged and restarts only
//! that one; a subscription that fell behind is followed by a sweep. Left to others: every decision
//! (`kedge_hub_core::controllers`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kedge_hub_core::ApiError;
use kedge_hub_core::controllers::{
    Action, Controller, Decision, Done, Edit, Guarded, Level, Now, Task, World, approving, bootstrap_tokens,
    certificates, cluster_roles, config_rollouts, daemon_sets, disruptions, events, garbage, namespaces,
    nodes, pods, root_certificate, scheduler, service_accounts, system_namespaces, taint_eviction, trust,
};
use kedge_hub_core::identity::Identity;
use kedge_hub_core::kinds::{CERTIFICATE_REQUEST, Kind, POD};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::{Part, Place, WriteOptions};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Heard, Query, Require};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::audit::{ObjectRef, certificate_notes};
use crate::credential_table;
use crate::fresh::now_text;
use crate::guard::Turns;
use crate::pki::{Pki, PkiError};
use crate::probe::Probe;
use crate::requests;
use crate::store::health::STALL;
use crate::{Hub, Subscription};

/// Wait before subscribing again.
const RESUBSCRIBE: Duration = Duration::from_millis(200);
/// Wait before a failed controller is restarted.
const RESTART: Duration = Duration::from_secs(5);
/// Most changes queued for one controller; more wait in its subscriptions.
const BACKLOG: usize = 1024;
/// How often the runner checks for stalls, for controllers that ask for it.
const PULSE: Duration = Duration::from_secs(1);
/// Longest wait for one group of actions: their writes give up after 30 seconds, and are tried again after
/// concurrent changes.
const ACTIONS: Duration = Duration::from_secs(600);

/// Resources that actions need besides the hub.
pub struct Tools {
    pub pki: Arc<Pki>,
    pub probe: Probe,
    pub times: CertificateTimes,
    /// Whether this hub rolls out configurations itself; otherwise `kedge-hub controllers` does.
    pub config_rollouts: bool,
}

/// How long nodes' certificates count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CertificateTimes {
    /// Longest and default life.
    pub life: time::Duration,
    /// How long after its expiry a node may ask for the next one without a person.
    pub expired_may_renew: time::Duration,
}

impl Default for CertificateTimes {
    fn default() -> CertificateTimes {
        CertificateTimes { life: certificates::LONGEST, expired_may_renew: approving::EXPIRED_MAY_RENEW }
    }
}

/// Starts all controllers; dropping the returned set ends them. `grace`: silence after which a node is lost.
pub fn start(hub: &Arc<Hub>, tools: Tools, grace: Duration) -> JoinSet<()> {
    let tools = Arc::new(tools);
    let mut running = JoinSet::new();
    running.spawn(run(hub.clone(), tools.clone(), move || nodes::Nodes::new(grace)));
    running.spawn(run(hub.clone(), tools.clone(), garbage::Garbage::default));
    running.spawn(run(hub.clone(), tools.clone(), namespaces::Namespaces::default));
    running.spawn(run(hub.clone(), tools.clone(), pods::Pods::default));
    let rollouts = hub.rollout_defaults();
    running.spawn(run(hub.clone(), tools.clone(), move || daemon_sets::DaemonSets::new(rollouts)));
    if tools.config_rollouts {
        running.spawn(run(hub.clone(), tools.clone(), config_rollouts::ConfigRollouts::default));
    }
    running.spawn(run(hub.clone(), tools.clone(), scheduler::Scheduler::default));
    running.spawn(run(hub.clone(), tools.clone(), taint_eviction::TaintEviction::default));
    running.spawn(run(hub.clone(), tools.clone(), events::Events::default));
    running.spawn(run(hub.clone(), tools.clone(), system_namespaces::SystemNamespaces::default));
    running.spawn(run(hub.clone(), tools.clone(), service_accounts::ServiceAccounts::default));
    running.spawn(run(hub.clone(), tools.clone(), cluster_roles::ClusterRoles::default));
    running.spawn(run(hub.clone(), tools.clone(), disruptions::Disruptions::default));
    let ca = tools.pki.ca_text();
    running
        .spawn(run(hub.clone(), tools.clone(), move || root_certificate::RootCertificate::new(ca.clone())));
    // without an address nobody can join
    if let Some(url) = hub.tokens().map(|tokens| tokens.url.clone()) {
        let info = tools.pki.cluster_info(&url);
        let new = move || bootstrap_tokens::BootstrapTokens::new(info.clone());
        running.spawn(run(hub.clone(), tools.clone(), new));
    }
    let trusted = hub.authorities().filter(|known| known.all.len() > 1).map(|known| known.bundle.clone());
    running.spawn(run(hub.clone(), tools.clone(), move || trust::Trust::new(trusted.clone())));
    let CertificateTimes { life, expired_may_renew } = tools.times;
    running.spawn(run(hub.clone(), tools.clone(), move || approving::Approving::new(expired_may_renew)));
    running.spawn(run(hub.clone(), tools, move || certificates::Certificates::new(life)));
    running
}

/// Runs one controller until the hub closes.
async fn run<C: Controller>(hub: Arc<Hub>, tools: Arc<Tools>, new: impl Fn() -> C) {
    let progress = hub.loops().watch(C::NAME);
    loop {
        // a panic ends the task, not this loop
        let mut task = JoinSet::new();
        task.spawn(Runner::new(hub.clone(), tools.clone(), new(), Turns::new(progress.clone())).run());
        match task.join_next().await {
            Some(Err(error)) => log::error!("controller {} failed and is started again: {error}", C::NAME),
            _ => return,
        }
        tokio::time::sleep(RESTART).await;
    }
}

impl World for Hub {
    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        Hub::list(self, kind, namespace)
    }

    fn select(&self, kind: &'static Kind, selection: &Selection) -> Vec<Arc<Object>> {
        let page = self.memory().list(kind, selection, &Query::default());
        page.map(|page| page.objects).unwrap_or_default()
    }

    fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        self.memory().dependents(uid)
    }

    fn charged(&self, holder: &str, kind: &'static Kind) -> Vec<Arc<Object>> {
        self.memory().charged(holder, kind)
    }

    fn lost_owners(&self) -> Vec<String> {
        self.memory().lost_owners()
    }

    fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
        self.memory().terminating()
    }

    fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        self.memory().in_namespace(namespace)
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        self.memory().namespaces_in_use()
    }

    fn values(&self, kind: &'static Kind, field: usize) -> Vec<String> {
        self.memory().values(kind, field)
    }

    fn heard(&self) -> Heard {
        self.memory().leases_mut().heard()
    }
}

/// For how long this process and its disk made no progress.
#[derive(Debug)]
struct Stalls {
    begun: Instant,
    /// The last pulse, in milliseconds since `begun`.
    beat: AtomicU64,
    /// The longest stalls since the last `take`, in milliseconds.
    process: AtomicU64,
    disk: AtomicU64,
}

impl Stalls {
    fn new(begun: Instant) -> Stalls {
        let zero = || AtomicU64::new(0);
        Stalls { begun, beat: zero(), process: zero(), disk: zero() }
    }

    /// Records a pulse's measurements.
    fn note(&self, process: Duration, disk: Duration, now: Instant) {
        self.process.fetch_max(milliseconds(process), Ordering::Relaxed);
        self.disk.fetch_max(milliseconds(disk), Ordering::Relaxed);
        self.beat.store(milliseconds(now.saturating_duration_since(self.begun)), Ordering::Relaxed);
    }

    /// The longest stall of the process, and of the disk. Computes also how late the next pulse is: after a
    /// stall everything is ready at once, so a controller may ask before the pulse has run.
    fn take(&self, now: Instant) -> (Duration, Duration) {
        let due = self.begun + Duration::from_millis(self.beat.load(Ordering::Relaxed)) + PULSE;
        let process = Duration::from_millis(self.process.swap(0, Ordering::Relaxed));
        let disk = Duration::from_millis(self.disk.swap(0, Ordering::Relaxed));
        (process.max(now.saturating_duration_since(due)), disk)
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct Runner<C> {
    hub: Arc<Hub>,
    tools: Arc<Tools>,
    controller: C,
    start: Instant,
    turns: Turns,
}

impl<C: Controller> Runner<C> {
    fn new(hub: Arc<Hub>, tools: Arc<Tools>, controller: C, turns: Turns) -> Runner<C> {
        Runner { hub, tools, controller, start: Instant::now(), turns }
    }

    async fn run(mut self) {
        let stalls = Arc::new(Stalls::new(Instant::now()));
        let mut pulses = JoinSet::new();
        if C::MINDS_STALLS {
            pulses.spawn(pulse(Arc::clone(&self.hub), Arc::clone(&stalls)));
        }
        while self.can_write() {
            self.follow(&stalls).await;
            self.turns.idle();
            tokio::time::sleep(RESUBSCRIBE).await;
        }
    }

    /// False while the hub stops: it closes the store before it ends the subscriptions.
    fn can_write(&self) -> bool {
        self.hub.writer().is_alive() && !self.hub.memory().is_closed()
    }

    /// Follows the changes of the controller's inputs until one of the subscriptions ends.
    async fn follow(&mut self, stalls: &Stalls) {
        let (changes, mut observed) = mpsc::channel(BACKLOG);
        let mut listeners = JoinSet::new();
        for kind in C::inputs() {
            listeners.spawn(listen::<C>(kind, self.hub.subscribe(kind), changes.clone()));
        }
        self.turns.busy();
        self.controller.sweep(&*self.hub);
        let mut next_sweep = C::SWEEP.map(|period| Instant::now() + period);
        loop {
            self.turns.busy();
            while let Ok((kind, event)) = observed.try_recv() {
                self.controller.observe(kind, &event);
            }
            // a subscription ends if it fell behind or the hub closes
            if listeners.try_join_next().is_some() || !self.can_write() {
                return;
            }
            if let (Some(at), Some(period)) = (next_sweep, C::SWEEP)
                && at <= Instant::now()
            {
                self.controller.sweep(&*self.hub);
                next_sweep = Some(Instant::now() + period);
            }
            let now = self.now(stalls);
            let decision = self.step(now).await;
            if decision.more {
                tokio::task::yield_now().await;
                continue;
            }
            // a time beyond what the machine counts never comes
            let next_step = decision.next.and_then(|at| self.start.checked_add(at));
            let wake = [next_sweep, next_step].into_iter().flatten().min();
            let waiting_since = Instant::now();
            match wake {
                Some(at) => self.turns.idle_for(at.saturating_duration_since(waiting_since)),
                None => self.turns.idle(),
            }
            tokio::select! {
                Some((kind, event)) = observed.recv() => self.controller.observe(kind, &event),
                Some(_) = listeners.join_next() => return,
                () = sleep_until(wake) => {}
            }
        }
    }

    fn now(&self, stalls: &Stalls) -> Now {
        let (stalled, disk_stalled) = stalls.take(Instant::now());
        let disk_stalls = self.hub.writer().health().oldest_unfinished_commit() >= STALL;
        let wall = OffsetDateTime::now_utc();
        let ages = self.hub.believes_clock(wall);
        let right = self.hub.clock_fault().is_none();
        Now { running: self.start.elapsed(), wall, ages, right, stalled, disk_stalled, disk_stalls }
    }

    /// One step with all its tasks. Returns the time of the next step: a pause counts from the end of this
    /// one, so that a slow disk gets a rest.
    async fn step(&mut self, now: Now) -> Decision<C::Purpose> {
        let began = Instant::now();
        let mut decision = self.controller.reconcile(&*self.hub, now);
        self.perform(std::mem::take(&mut decision.tasks), now).await;
        if let Some(Guarded { tasks, blamed }) = decision.guarded.take() {
            self.turns.idle_for(ACTIONS);
            match self.tools.probe.check().await {
                Ok(()) => self.perform(tasks, now).await,
                Err(why) => {
                    log::error!("{blamed}, but the hub cannot reach itself either: {why}; not marking them");
                }
            }
        }
        for (level, line) in self.controller.take_log(now) {
            let level = match level {
                Level::Info => log::Level::Info,
                Level::Warning => log::Level::Warn,
            };
            log::log!(target: &format!("kedge_hub::{}", C::NAME), level, "{line}");
        }
        decision.next = decision.next.map(|at| at + began.elapsed());
        decision
    }

    /// Performs tasks in groups of [`Controller::AT_ONCE`], each followed by the tasks that its outcomes lead
    /// to. Ends early when the hub closes, because nothing can be written any more.
    async fn perform(&mut self, tasks: Vec<Task<C::Purpose>>, now: Now) {
        let mut waiting = VecDeque::from(tasks);
        while !waiting.is_empty() && self.can_write() {
            self.turns.idle_for(ACTIONS);
            let mut group = JoinSet::new();
            for Task { purpose, action } in waiting.drain(..waiting.len().min(C::AT_ONCE)) {
                debug_assert!(
                    action
                        .kind()
                        .is_none_or(|kind| C::outputs().iter().any(|output| output.plural == kind.plural)),
                    "{} does not declare its output: {action:?}",
                    C::NAME
                );
                let (hub, tools) = (self.hub.clone(), self.tools.clone());
                group.spawn(async move { (purpose, perform(&hub, &tools, action).await) });
            }
            let mut following = Vec::new();
            while let Some(performed) = group.join_next().await {
                // the next sweep retries a task that panicked
                if let Ok((purpose, outcome)) = performed {
                    following.extend(self.controller.performed(purpose, outcome, now));
                }
            }
            for task in following.into_iter().rev() {
                waiting.push_front(task);
            }
        }
    }
}

/// Passes the changes of one kind that the controller needs to the runner; ends with the subscription.
async fn listen<C: Controller>(
    kind: &'static Kind,
    mut subscription: Subscription,
    changes: mpsc::Sender<(&'static Kind, Arc<Event>)>,
) {
    // the sweep reads the objects itself; held here they would stay in memory after their deletion
    drop(std::mem::take(&mut subscription.snapshot));
    while let Some(event) = subscription.next().await {
        if C::concerns(kind, &event) && changes.send((kind, event)).await.is_err() {
            return;
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Measures for how long this process made no progress (how late a timer fires, or how long the machine was
/// suspended), and for how long a commit has been unfinished; keeps the longest times until they are taken.
async fn pulse(hub: Arc<Hub>, stalls: Arc<Stalls>) {
    loop {
        let (before, wall) = (Instant::now(), OffsetDateTime::now_utc());
        tokio::time::sleep(PULSE).await;
        let passed = before.elapsed();
        let late = passed.saturating_sub(PULSE);
        let suspended = suspension(OffsetDateTime::now_utc() - wall, passed);
        let disk = hub.writer().health().oldest_unfinished_commit();
        stalls.note(late.max(suspended), disk, Instant::now());
    }
}

/// The time that passed on the wall clock and not on the monotonic one, which stops while the machine is
/// suspended. A wall clock that was set forward counts as well; that costs only a longer grace period.
fn suspension(wall: time::Duration, passed: Duration) -> Duration {
    Duration::try_from(wall).unwrap_or_default().saturating_sub(passed)
}

async fn perform(hub: &Hub, tools: &Tools, action: Action) -> Result<Done, ApiError> {
    match action {
        Action::Create { kind, value, requires } => {
            hub.create_if(kind, value, &requires).await.map(|object| Done::Stored(object, true))
        }
        Action::Update { kind, namespace, name, edit, requires } => {
            update(hub, &Place { kind, namespace: &namespace, name: &name }, Part::All, edit, &requires).await
        }
        Action::Bind { namespace, name, edit, requires } => {
            let place = Place { kind: &POD, namespace: &namespace, name: &name };
            update(hub, &place, Part::Binding, edit, &requires).await
        }
        Action::Delete { kind, namespace, name, options, requires } => {
            let place = Place { kind, namespace: &namespace, name: &name };
            let internal = WriteOptions { requires: &requires, ..WriteOptions::internal() };
            requests::delete(hub, &place, &options, &internal).await.map(|_| Done::Gone)
        }
        Action::FinalizeNamespace { name, uid } => {
            requests::finalize_namespace(hub, &name, &uid).await.map(|_| Done::Gone)
        }
        Action::Sign(signing) => {
            // a clock that is behind must not shorten its life
            let now =
                hub.newest_time().max(Some(OffsetDateTime::now_utc())).unwrap_or(OffsetDateTime::UNIX_EPOCH);
            let pki = Arc::clone(&tools.pki);
            // it takes an issue number, and so waits for the disk
            let sign = move || pki.sign_client(&signing.request, signing.enciphers, now, signing.life);
            let signed = tokio::task::spawn_blocking(sign).await;
            let signed = signed.map_err(|_| ApiError::internal("the signer ended"))?;
            if let Err(error @ PkiError::NoNumber { .. }) = &signed {
                // the request is right: it is tried again
                return Err(ApiError::internal(error.to_string()));
            }
            record_signature(hub, signed.as_deref());
            if let Ok(pem) = &signed {
                note_credential(hub, pem).await?;
            }
            Ok(Done::Signed(signed.map_err(|error| error.to_string())))
        }
    }
}

/// Notes a node's certificate (PEM) in the table of credentials, before it leaves the hub.
async fn note_credential(hub: &Hub, pem: &str) -> Result<(), ApiError> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok();
    let identity = der.and_then(|der| Identity::from_client_certificate(&der));
    match identity.as_ref().and_then(credential_table::newest) {
        Some((node, newest)) => credential_table::note(hub, node, &newest).await,
        None => Ok(()),
    }
}

/// Writes a line to the audit log about a certificate (PEM) that was signed.
fn record_signature<E>(hub: &Hub, signed: Result<&str, E>) {
    let (Some(log), Ok(pem)) = (hub.audit(), signed) else { return };
    let der = CertificateDer::from_pem_slice(pem.as_bytes());
    let notes = der.map(|der| certificate_notes(&der)).unwrap_or_default();
    let Kind { group, version, plural, .. } = &CERTIFICATE_REQUEST;
    log.record_own("sign", ObjectRef { group, version, resource: plural, ..ObjectRef::default() }, &notes);
}

async fn update(
    hub: &Hub,
    place: &Place<'_>,
    part: Part,
    mut edit: Edit,
    requires: &[Require],
) -> Result<Done, ApiError> {
    let mut meant = false;
    let compute = |_: &Object, mut value| {
        meant = hub.memory().are_unchanged(requires) && edit(&mut value, &now_text());
        Ok(value)
    };
    let options = WriteOptions { requires, ..WriteOptions::internal() };
    let answer = requests::edit(hub, place, part, &options, compute).await?;
    let object = answer.object.ok_or_else(|| ApiError::not_found(place.kind, place.name))?;
    Ok(Done::Stored(object, meant))
}

#[cfg(test)]
mod tests {
    use kedge_api::{CLUSTER_EVENT_NAMESPACE, NODE_LEASE_NAMESPACE};
    use kedge_hub_core::controllers::nodes::{MINIMUM_GRACE, Nodes};
    use kedge_hub_core::kinds::{EVENT, LEASE, NODE};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Deletes objects that do not exist, one after another.
    #[derive(Default)]
    struct Deleter {
        performed: Vec<u32>,
    }

    impl Deleter {
        fn task(purpose: u32) -> Task<u32> {
            let action = Action::Delete {
                kind: &NODE,
                namespace: String::new(),
                name: format!("n{purpose}"),
                options: kedge_hub_core::requests::DeleteOptions::default(),
                requires: Vec::new(),
            };
            Task { purpose, action }
        }
    }

    impl Controller for Deleter {
        type Purpose = u32;
        const NAME: &'static str = "deleter";

        fn inputs() -> &'static [&'static Kind] {
            &[]
        }

        fn outputs() -> &'static [&'static Kind] {
            const OUTPUTS: &[&Kind] = &[&NODE];
            OUTPUTS
        }

        fn observe(&mut self, _: &'static Kind, _: &Event) {}

        fn sweep(&mut self, _: &dyn World) {}

        fn reconcile(&mut self, _: &dyn World, now: Now) -> Decision<u32> {
            Decision {
                tasks: [1, 2, 3].map(Deleter::task).into(),
                next: Some(now.running + PULSE),
                ..Decision::default()
            }
        }

        fn performed(&mut self, purpose: u32, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<u32>> {
            assert_eq!(outcome.unwrap_err().code, 404);
            self.performed.push(purpose);
            if purpose == 1 { vec![Deleter::task(10), Deleter::task(11)] } else { Vec::new() }
        }

        fn take_log(&mut self, _: Now) -> Vec<kedge_hub_core::controllers::Line> {
            Vec::new()
        }
    }

    #[tokio::test]
    async fn tasks_that_follow_come_before_the_rest() {
        let stage = Stage::new("order").await;
        let (hub, tools) = (Arc::clone(&stage.hub), Arc::clone(&stage.runner.tools));
        let turns = Turns::new(hub.loops().watch("test"));
        let mut runner = Runner::new(hub, tools, Deleter::default(), turns);
        let now = runner.now(&Stalls::new(Instant::now()));
        let next = runner.step(now).await.next.unwrap();
        assert_eq!(runner.controller.performed, [1, 10, 11, 2, 3]);
        assert!(next > now.running + PULSE, "the pause counts from the end of the step");
        stage.hub.memory().close();
        runner.step(now).await;
        assert_eq!(runner.controller.performed.len(), 5, "nothing is performed while the hub closes");
    }

    #[test]
    fn stall_shows_before_the_pulse_has_its_turn() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let stalls = Stalls::new(begun);
        let check = |now, process, disk| {
            assert_eq!(stalls.take(at(now)), (Duration::from_secs(process), Duration::from_secs(disk)));
        };
        check(1, 0, 0);
        // the pulse runs while a slow disk holds up a step, so the process does not count as stalled
        (1..=20).for_each(|second| stalls.note(Duration::ZERO, Duration::from_secs(second), at(second)));
        check(21, 0, 20);
        check(21, 0, 0);
        // the same result, whichever task runs first after a freeze
        check(81, 60, 0);
        stalls.note(Duration::from_secs(60), Duration::ZERO, at(81));
        check(82, 60, 0);
        check(82, 0, 0);
    }

    #[tokio::test]
    async fn lease_deleted_before_it_is_heard_is_no_lease() {
        let mut stage = Stage::with("ghost", 1).await;
        stage.make_lease(3600).await;
        let (namespace, name) = (NODE_LEASE_NAMESPACE.to_owned(), "n0".to_owned());
        let options = kedge_hub_core::requests::DeleteOptions::default();
        let requires = Vec::new();
        let delete = Action::Delete { kind: &LEASE, namespace, name, options, requires };
        perform(&stage.hub, &stage.runner.tools, delete).await.unwrap();
        for second in [5, 60] {
            // without a sweep, which would notice that the Lease is gone
            let now = stage.runner.now(&Stalls::new(Instant::now()));
            stage.runner.step(Now { running: Duration::from_secs(second), ..now }).await;
        }
        assert_eq!(stage.ready("n0"), "Unknown", "its grace period is that of a Lease that is gone");
    }

    /// Renewals produce no events: without a sweep the pass itself has to read them.
    #[tokio::test]
    async fn node_that_renews_is_not_lost_until_it_stops() {
        let mut stage = Stage::with("renews", 1).await;
        stage.make_lease(40).await;
        stage.at(5).await;
        let now = stage.runner.now(&Stalls::new(Instant::now()));
        for second in (10..300).step_by(10) {
            if second < 200 {
                let renew = |lease: &mut Value| {
                    lease["spec"]["renewTime"] =
                        format!("2026-01-01T00:{:02}:{:02}.000000Z", second / 60, second % 60).into();
                };
                stage.hub.update(&LEASE, NODE_LEASE_NAMESPACE, "n0", renew).await.unwrap();
            }
            let running = Duration::from_secs(second);
            stage.runner.step(Now { running, stalled: Duration::ZERO, ..now }).await;
            let expect = if second <= 190 + MINIMUM_GRACE.as_secs() { "True" } else { "Unknown" };
            assert_eq!(stage.ready("n0"), expect, "at {second}");
        }
    }

    #[tokio::test]
    async fn disk_that_keeps_pausing_does_not_hide_a_dead_node() {
        let mut stage = Stage::with("pausing", 2).await;
        stage.make_lease(40).await;
        stage.at(5).await;
        // n0 is dead; n1 has no Lease, and its status waits for the disk
        for second in (10..=60).step_by(10) {
            stage.after_stalls(second, 0, 6, true).await;
            assert_eq!(stage.ready_count(), 2, "nothing is marked while the disk stands still");
        }
        // the disk works for a moment
        stage.after_stalls(65, 0, 6, false).await;
        assert_eq!((stage.ready("n0"), stage.ready("n1")), ("Unknown".into(), "True".into()));
        stage.at(115).await;
        assert_eq!(stage.ready("n1"), "True");
        stage.at(116).await;
        assert_eq!(stage.ready("n1"), "Unknown");
    }

    /// A hub with its store on a real disk, and a runner of the node controller whose clock the test holds.
    struct Stage {
        // removed after the hub is closed
        _data_dir: kedge_rig::Scratch,
        hub: Arc<Hub>,
        runner: Runner<Nodes>,
        listener: Option<TcpListener>,
    }

    impl Drop for Stage {
        fn drop(&mut self) {
            self.hub.close();
        }
    }

    impl Stage {
        async fn new(name: &str) -> Stage {
            let data_dir = kedge_rig::Scratch::new(&format!("hub-lifecycle-{name}")).unwrap();
            let hub = Hub::open(&data_dir).unwrap();
            let pki =
                Pki::open(&data_dir, &["localhost".to_owned()], time::OffsetDateTime::now_utc()).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let probe = Probe::new(
                listener.local_addr().unwrap(),
                pki.client_config(OffsetDateTime::now_utc()).unwrap(),
            );
            let times = CertificateTimes::default();
            let tools = Arc::new(Tools { pki: Arc::new(pki), probe, times, config_rollouts: true });
            let turns = Turns::new(hub.loops().watch("test"));
            let runner = Runner::new(Arc::clone(&hub), tools, Nodes::new(MINIMUM_GRACE), turns);
            Stage { _data_dir: data_dir, hub, runner, listener: Some(listener) }
        }

        async fn with(name: &str, nodes: usize) -> Stage {
            let mut stage = Stage::new(name).await;
            for number in 0..nodes {
                let ready = json!({"type": "Ready", "status": "True"});
                let node =
                    json!({"metadata": {"name": format!("n{number}")}, "status": {"conditions": [ready]}});
                stage.hub.create(&NODE, node).await.unwrap();
                let ready = |object: &mut Value| object["status"] = json!({"conditions": [ready]});
                stage.hub.update(&NODE, "", &format!("n{number}"), ready).await.unwrap();
            }
            stage.at(0).await;
            stage
        }

        /// The first Lease of the node `n0`.
        async fn make_lease(&self, duration_secs: u64) -> Arc<Object> {
            let lease = json!({
                "metadata": {"name": "n0", "namespace": NODE_LEASE_NAMESPACE},
                "spec": {"holderIdentity": "n0", "leaseDurationSeconds": duration_secs, "renewTime": "2026-01-01T00:00:00.000000Z"},
            });
            self.hub.create(&LEASE, lease).await.unwrap()
        }

        async fn at(&mut self, second: u64) {
            self.after_stall(second, 0).await;
        }

        async fn after_stall(&mut self, second: u64, stalled: u64) {
            self.after_stalls(second, stalled, 0, false).await;
        }

        async fn after_stalls(&mut self, second: u64, process: u64, disk: u64, disk_stalls: bool) {
            // as at the start of a subscription
            self.runner.controller.sweep(&*self.hub);
            let [running, stalled, disk_stalled] = [second, process, disk].map(Duration::from_secs);
            let wall = OffsetDateTime::now_utc();
            self.runner
                .step(Now { running, wall, ages: true, right: true, stalled, disk_stalled, disk_stalls })
                .await;
        }

        /// Answers every connection as a healthy hub (or another) would.
        fn answer(&mut self, status: &'static str) {
            let listener = self.listener.take().unwrap();
            let acceptor = TlsAcceptor::from(self.runner.tools.pki.server_config().unwrap());
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let mut stream = acceptor.accept(stream).await.unwrap();
                    let mut request = [0; 1024];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
                }
            });
        }

        fn ready(&self, node: &str) -> Value {
            let node = self.hub.get(&NODE, "", node).unwrap().value();
            let conditions = node["status"]["conditions"].as_array().unwrap();
            conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].clone()
        }

        fn ready_count(&self) -> usize {
            let nodes = self.hub.list(&NODE, "");
            nodes.iter().filter(|node| self.ready(&node.name) == "True").count()
        }

        fn events(&self, reason: &str) -> Vec<Value> {
            let events = self.hub.list(&EVENT, CLUSTER_EVENT_NAMESPACE);
            events.iter().map(|event| event.value()).filter(|event| event["reason"] == reason).collect()
        }
    }

    #[tokio::test]
    async fn lost_and_cordoned_nodes_are_tainted_in_the_store() {
        let mut stage = Stage::with("taints", 3).await;
        let reports = |stage: &Stage, node: &'static str, second: u64| {
            let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": format!("2026-01-01T00:00:{second}Z")});
            let hub = Arc::clone(&stage.hub);
            async move {
                let status = |object: &mut Value| object["status"] = json!({"conditions": [condition]});
                hub.update(&NODE, "", node, status).await.unwrap();
            }
        };
        for node in ["n1", "n2"] {
            reports(&stage, node, 40).await;
        }
        stage.at(40).await;
        let before = stage.hub.get(&NODE, "", "n0").unwrap().revision;
        stage.at(60).await;
        let lost = stage.hub.get(&NODE, "", "n0").unwrap();
        let taints = lost.value()["spec"]["taints"].clone();
        let keys: Vec<&Value> = taints.as_array().unwrap().iter().map(|taint| &taint["effect"]).collect();
        assert_eq!(keys, ["NoSchedule", "NoExecute"]);
        assert!(taints[0]["timeAdded"].as_str().is_some_and(|time| time.len() == 20), "{taints}");
        assert!(lost.revision > before);
        stage.at(65).await;
        assert_eq!(
            stage.hub.get(&NODE, "", "n0").unwrap().revision,
            lost.revision,
            "one write for all of it"
        );
        reports(&stage, "n0", 41).await;
        let cordon = |object: &mut Value| object["spec"]["unschedulable"] = true.into();
        stage.hub.update(&NODE, "", "n1", cordon).await.unwrap();
        stage.at(70).await;
        let spec = |node: &str| stage.hub.get(&NODE, "", node).unwrap().value()["spec"].clone();
        assert_eq!(spec("n0")["taints"], Value::Null);
        assert_eq!(spec("n1")["taints"][0]["key"], "node.kubernetes.io/unschedulable");
        assert_eq!(spec("n2")["taints"], Value::Null);
    }

    #[tokio::test]
    async fn silent_node_is_marked_with_one_event() {
        let mut stage = Stage::with("marked", 1).await;
        stage.at(50).await;
        assert_eq!(stage.ready("n0"), "True");
        stage.at(51).await;
        assert_eq!(stage.ready("n0"), "Unknown");
        let revision = stage.hub.get(&NODE, "", "n0").unwrap().revision;
        stage.at(56).await;
        stage.at(500).await;
        assert_eq!(stage.hub.get(&NODE, "", "n0").unwrap().revision, revision, "written once");
        let events = stage.events("NodeNotReady");
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["involvedObject"]["name"], "n0");
        assert_eq!(events[0]["message"], "Node n0 status is now: NodeNotReady");
        let back = |object: &mut Value| {
            object["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]})
        };
        stage.hub.update(&NODE, "", "n0", back).await.unwrap();
        stage.at(505).await;
        assert_eq!(stage.ready("n0"), "True");
    }

    #[tokio::test]
    async fn renewed_lease_keeps_node_ready() {
        let mut stage = Stage::with("renewed", 1).await;
        stage.make_lease(40).await;
        for turn in 1..20 {
            let renew = |lease: &mut Value| {
                lease["spec"]["renewTime"] = json!(format!("19{:02}-01-01T00:00:00.000000Z", 99 - turn));
            };
            stage.hub.update(&LEASE, NODE_LEASE_NAMESPACE, "n0", renew).await.unwrap();
            stage.at(turn * 40).await;
            assert_eq!(stage.ready("n0"), "True", "turn {turn}");
        }
        stage.at(19 * 40 + 51).await;
        assert_eq!(stage.ready("n0"), "Unknown");
    }

    #[tokio::test]
    async fn many_nodes_are_lost_only_if_hub_reaches_itself() {
        let mut stage = Stage::with("proof", 5).await;
        // nothing accepts connections: the hub's request to itself is not answered, as when the server is
        // stuck
        stage.listener = None;
        stage.at(60).await;
        assert_eq!(stage.ready_count(), 5, "the fault is the hub's");
        assert!(stage.events("NodeNotReady").is_empty());

        let mut stage = Stage::with("proof-wrong-answer", 5).await;
        stage.answer("500 Internal Server Error");
        stage.at(60).await;
        assert_eq!(stage.ready_count(), 5);

        let mut stage = Stage::with("proof-given", 5).await;
        stage.answer("200 OK");
        stage.at(60).await;
        assert_eq!(stage.ready_count(), 0);
        assert_eq!(stage.events("NodeNotReady").len(), 5);
    }

    #[tokio::test]
    async fn stall_renews_grace_period() {
        let mut stage = Stage::with("stalled", 1).await;
        stage.after_stall(600, 590).await;
        stage.at(650).await;
        assert_eq!(stage.ready("n0"), "True");
        stage.at(651).await;
        assert_eq!(stage.ready("n0"), "Unknown");
    }

    #[test]
    fn suspended_machine_stood_still() {
        let check = |wall: i64, passed: u64, expect: u64| {
            let found = suspension(time::Duration::seconds(wall), Duration::from_secs(passed));
            assert_eq!(found, Duration::from_secs(expect));
        };
        check(1, 1, 0);
        check(3600, 1, 3599);
        check(-3600, 1, 0);
    }

    #[tokio::test]
    async fn node_renewed_before_its_mark_is_written_is_not_marked() {
        let mut stage = Stage::with("late", 1).await;
        let lease = stage.make_lease(40).await;
        stage.at(10).await;
        let mark = |revision| {
            let requires = vec![Require::Unchanged {
                kind: &LEASE,
                namespace: NODE_LEASE_NAMESPACE.to_owned(),
                name: "n0".to_owned(),
                revision,
            }];
            let edit: Edit = Box::new(|node, _| {
                node["status"]["conditions"][0]["status"] = "Unknown".into();
                true
            });
            let name = "n0".to_owned();
            Action::Update { kind: &NODE, namespace: String::new(), name, edit, requires }
        };
        let renew = |lease: &mut Value| lease["spec"]["renewTime"] = json!("2026-01-01T00:00:10.000000Z");
        stage.hub.update(&LEASE, NODE_LEASE_NAMESPACE, "n0", renew).await.unwrap();
        for revision in [Some(lease.revision), None] {
            let done = perform(&stage.hub, &stage.runner.tools, mark(revision)).await;
            assert!(matches!(done, Ok(Done::Stored(_, false))), "{done:?}");
            assert_eq!(stage.ready("n0"), "True");
        }
        let now = stage.hub.get(&LEASE, NODE_LEASE_NAMESPACE, "n0").unwrap().revision;
        let done = perform(&stage.hub, &stage.runner.tools, mark(Some(now))).await;
        assert!(matches!(done, Ok(Done::Stored(_, true))), "{done:?}");
        assert_eq!(stage.ready("n0"), "Unknown");
    }
}
