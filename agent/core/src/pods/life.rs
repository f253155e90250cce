//! The life of one pod: what is known of it, and how events change that.
//!
//! Always holds: a run that ended never runs again; per container one command is under way; what is unknown is neither started nor
//! taken for ended. Leaves to others: the next steps up (`starting`) and down (`ending`), what is reported and recorded
//! (`reporting`), which pods there are (`Pods`).

use crate::answer::{Level, Now};
use crate::images::image::Image;
use crate::pods::admission::Rejection;
use crate::pods::ahead::{self, Ahead};
use crate::pods::backoff::{Restarts, Retry};
use crate::pods::event::{
    Command, ContainerState, Exit, Failure, FailureReason, NodeFacts, Observation, PodAction, PodNetwork,
    PodNews,
};
use crate::pods::failing::{Active, Failed};
use crate::pods::files::Files;
use crate::pods::hooks::Hooks;
use crate::pods::image_volumes::{self, ImageVolumes};
use crate::pods::in_api::{InApi, Saved};
use crate::pods::keys::{ContainerKey, PodUid};
use crate::pods::objects::Objects;
use crate::pods::probes::{Health, ProbeNews, Probes};
use crate::pods::spec::{Container, Pod, RestartPolicy};
use crate::pods::status::{Terminated, restarts_after};
use crate::pods::tokens::Tokens;
use crate::sorted::SortedMap;
use kedge_api::Timestamp;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The exit code of a run that could not be started, as containerd reports it.
const START_FAILED: i32 = 128;
/// The exit code of a run whose end nobody saw, as upstream reports it.
const UNSEEN: i32 = 137;

/// Where a pod comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Bound by the API server to the Node of this UID.
    Api { node_uid: String },
    /// A file.
    Static { path: String },
    /// The runtime has it, and nothing else is known of it.
    Found { node_uid: String },
}

/// The end of a pod, asked for or come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) grace: Duration,
    pub(crate) since: Duration,
}

/// The pod's own part: network, volumes, cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sandbox {
    Absent,
    /// There in part.
    Half,
    Preparing,
    Ready,
    Removing {
        keep_logs: bool,
    },
}

/// How far the pod's leftovers are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swept {
    No,
    /// All but the logs.
    KeptLogs,
    All,
}

/// Whether the pod may run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pending,
    Admitted,
    Rejected(Rejection),
}

/// Why a pod does not begin, as of the last step that failed or waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hindrance {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Since when it is for this reason.
    pub(crate) since: Timestamp,
}

/// What a command under way does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Pull,
    Create(u32),
    Start(u32),
    /// Its hook; the signal follows at this time.
    PreStop {
        attempt: u32,
        until: Duration,
    },
    /// KILL follows at this time.
    Stop {
        attempt: u32,
        kill_at: Duration,
    },
    Remove(u32),
}

/// The latest run of a container.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) attempt: u32,
    pub(crate) state: ContainerState,
    pub(crate) started: Option<Timestamp>,
    pub(crate) image_name: String,
    pub(crate) image_reference: String,
    /// When its end was seen here.
    pub(crate) ended: Option<Duration>,
    /// It could not be started: why.
    pub(crate) start_error: Option<String>,
    /// It was stopped for a run with another image: how it ends is no result.
    pub(crate) is_replaced: bool,
    pub(crate) is_removed: bool,
}

impl Run {
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. } | ContainerState::Unknown(_))
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, ContainerState::Exited(_) | ContainerState::Lost(_))
    }

    /// How it ended.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match &self.state {
            ContainerState::Exited(exit) => Some(exit.clone()),
            ContainerState::Lost(_) => Some(unseen_exit()),
            _ => None,
        }
    }

    pub(crate) fn terminated(&self, container_id: String) -> Option<Terminated> {
        match &self.state {
            ContainerState::Lost(why) => Some(Terminated::lost(container_id, why)),
            ContainerState::Exited(exit) => {
                let mut end = Terminated::by(exit, container_id);
                if let Some(why) = &self.start_error {
                    end.reason = "StartError".into();
                    end.message.clone_from(why);
                }
                Some(end)
            }
            _ => None,
        }
    }
}

pub(crate) fn unseen_exit() -> Exit {
    Exit {
        code: UNSEEN,
        signal: None,
        oom_killed: false,
        started: None,
        finished: None,
        message: String::new(),
    }
}

/// One container of a pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerLife {
    pub(crate) run: Option<Run>,
    /// Earlier runs that are not removed; true: it may still run.
    pub(crate) older: SortedMap<u32, bool>,
    /// How the run before ended.
    pub(crate) last: Option<Terminated>,
    /// The run that was lost last, and why, until an Event says so: mostly an earlier agent's, seen before the API server was reached.
    pub(crate) untold: Option<(u32, String)>,
    pub(crate) next_attempt: u32,
    /// Restarts that were reported before this process knew the container.
    pub(crate) floor: u32,
    /// It ran before this boot, by its log.
    pub(crate) ran_before: bool,
    pub(crate) command: Option<Doing>,
    /// Why it does not run: reason and message.
    pub(crate) waiting: Option<(&'static str, String)>,
    /// Seen to for the next run, and by which name.
    pub(crate) image: Option<(String, Image)>,
    /// The name of the image that is being seen to.
    pub(crate) pulling: String,
    pub(crate) restarts: Restarts,
    /// A restart's back-off has been announced.
    pub(crate) announced: bool,
    pub(crate) pull: Retry,
    /// Creating.
    pub(crate) create: Retry,
    /// Stopping and removing.
    pub(crate) cleaning: Retry,
    pub(crate) probes: Probes,
    pub(crate) hooks: Hooks,
}

impl ContainerLife {
    pub(crate) fn is_live(&self) -> bool {
        self.run.as_ref().is_some_and(Run::is_live) || self.older.values().any(|is_live| *is_live)
    }

    /// Whether the runtime still has something of it, or is at it.
    pub(crate) fn has_rest(&self) -> bool {
        let busy = self.command.is_some_and(|doing| doing != Doing::Pull);
        busy || !self.older.is_empty() || self.run.as_ref().is_some_and(|run| !run.is_removed)
    }

    fn has_ended_with(&self, code: i32) -> bool {
        self.run.as_ref().and_then(Run::exit).is_some_and(|exit| exit.code == code)
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        self.has_ended_with(0)
    }
}

/// One pod.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) uid: PodUid,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// None: only found in the runtime.
    pub(crate) pod: Option<Rc<Pod>>,
    pub(crate) api: Option<InApi>,
    pub(crate) verdict: Verdict,
    /// The labels of the Node keep it away, as far as they are known: the reading of the Node that it is judged by.
    pub(crate) doubt: Option<u64>,
    /// The API server's spec asks for other resources than it was admitted with.
    pub(crate) awaits_resize: bool,
    pub(crate) end: Option<End>,
    /// The node ends it, and its object stays.
    pub(crate) failed: Option<Failed>,
    /// The machine stops: how long its containers have.
    pub(crate) shutdown: Option<End>,
    /// Of a pod with a deadline.
    pub(crate) active: Option<Active>,
    pub(crate) sandbox: Sandbox,
    pub(crate) sandbox_retry: Retry,
    /// Its network could not be made: containers that still run are in one that was lost.
    pub(crate) is_apart: bool,
    /// None: nothing hinders it, or it has begun.
    pub(crate) hindrance: Option<Hindrance>,
    /// Since when it waits for objects, to go on with a start.
    pub(crate) awaits_objects: Option<Duration>,
    pub(crate) swept: Swept,
    /// The disk is short, and the pod has finished: its logs go, too.
    pub(crate) gives_up_logs: bool,
    pub(crate) network: PodNetwork,
    pub(crate) files: Files,
    pub(crate) tokens: Tokens,
    pub(crate) image_volumes: ImageVolumes,
    /// Images for the pod that will take its place.
    pub(crate) ahead: Ahead,
    pub(crate) containers: SortedMap<String, ContainerLife>,
    /// How containers ended that are not started again.
    pub(crate) results: SortedMap<String, Exit>,
    pub(crate) saved: Saved,
    /// The API server had it as finished when it was first seen, and nothing here knows better.
    pub(crate) is_finished_elsewhere: bool,
    /// The last thing that was announced about the pod as a whole, so that it is not announced again.
    pub(crate) announced: String,
    /// Look again now.
    pub(crate) is_dirty: bool,
    /// Look again then.
    pub(crate) wake: Option<Duration>,
    /// A probe is due then.
    pub(crate) probe_wake: Option<Duration>,
    pub(crate) probe_news: ProbeNews,
}

/// What a decision about one pod may look at, and what it does.
pub(crate) struct Context<'a> {
    pub(crate) now: Now,
    pub(crate) node: Option<&'a NodeFacts>,
    /// How many readings of the Node were ordered, and the last that has come to its end.
    pub(crate) node_reading: (u64, u64),
    /// The others.
    pub(crate) lives: &'a BTreeMap<PodUid, Life>,
    /// Those of the API server that bound the pod.
    pub(crate) objects: &'a mut Objects,
    /// Whether that API server is the present one, so that they can be read.
    pub(crate) can_read: bool,
    /// The machine stops.
    pub(crate) is_shutting_down: bool,
    pub(crate) actions: &'a mut Vec<PodAction>,
}

impl Life {
    pub(crate) fn new(uid: PodUid, namespace: &str, name: &str, origin: Origin) -> Self {
        Self {
            uid,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            origin,
            pod: None,
            api: None,
            verdict: Verdict::Pending,
            doubt: None,
            awaits_resize: false,
            end: None,
            failed: None,
            shutdown: None,
            active: None,
            sandbox: Sandbox::Absent,
            sandbox_retry: Retry::default(),
            is_apart: false,
            hindrance: None,
            awaits_objects: None,
            swept: Swept::No,
            gives_up_logs: false,
            network: PodNetwork::default(),
            files: Files::default(),
            tokens: Tokens::default(),
            image_volumes: ImageVolumes::default(),
            ahead: Ahead::default(),
            containers: SortedMap::new(),
            results: SortedMap::new(),
            saved: Saved::default(),
            is_finished_elsewhere: false,
            announced: String::new(),
            is_dirty: true,
            wake: None,
            probe_wake: None,
            probe_news: ProbeNews::default(),
        }
    }

    pub(crate) fn is_static(&self) -> bool {
        matches!(self.origin, Origin::Static { .. })
    }

    /// The Node that it is bound to; empty for a static pod.
    pub(crate) fn node_uid(&self) -> &str {
        match &self.origin {
            Origin::Api { node_uid } | Origin::Found { node_uid } => node_uid,
            Origin::Static { .. } => "",
        }
    }

    pub(crate) fn key(&self, container: &str, attempt: u32) -> ContainerKey {
        ContainerKey { pod: self.uid.clone(), container: container.to_owned(), attempt }
    }

    /// Whether the runtime has, or may have, something of it.
    pub(crate) fn has_begun(&self) -> bool {
        self.sandbox != Sandbox::Absent || self.containers.values().any(ContainerLife::has_rest)
    }

    /// Asks to be looked at then, at the latest.
    pub(crate) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Asks for its end; a later order may only shorten the grace.
    pub(crate) fn end(&mut self, now: Now, grace: Duration) {
        let end = self.end.get_or_insert(End { grace, since: now.mono });
        if now.mono.saturating_add(grace) < end.since.saturating_add(end.grace) {
            *end = End { grace, since: now.mono };
        }
        self.saved.is_stale = true;
        self.is_dirty = true;
    }

    /// The grace of its spec.
    pub(crate) fn own_grace(&self) -> Duration {
        let secs = self.pod.as_ref().map_or(30, |pod| pod.spec.grace_secs());
        Duration::from_secs(secs)
    }

    /// No container will be started any more: it was rejected, has finished, or ends.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some() || self.is_finished()
    }

    /// Its containers have done what they were to do, or it may not run.
    pub(crate) fn is_finished(&self) -> bool {
        if self.is_finished_elsewhere || self.failed.is_some() || matches!(self.verdict, Verdict::Rejected(_))
        {
            return true;
        }
        let Some(pod) = &self.pod else { return false };
        let has_result = |container: &Container| self.results.contains_key(&container.name);
        let failed_init =
            |container: &Container| self.results.get(&container.name).is_some_and(|exit| exit.code != 0);
        pod.spec.containers.iter().all(has_result) || pod.spec.init_containers.iter().any(failed_init)
    }

    /// Takes a new state of one run; the answer to a command, or something seen unasked.
    pub(crate) fn observed(&mut self, now: Now, observation: &Observation, actions: &mut Vec<PodAction>) {
        let ContainerKey { container: name, attempt, .. } = &observation.container;
        let container = self.containers.entry(name.clone()).or_default();
        container.next_attempt = container.next_attempt.max(attempt.saturating_add(1));
        let was_starting = container.command == Some(Doing::Start(*attempt));
        container.answered(*attempt, &observation.state);
        let news = container.take(now, *attempt, observation);
        if was_starting && news == Some("Started") {
            let mut specs = self.pod.iter().flat_map(|pod| pod.spec.all_containers());
            let has_hook = specs.any(|spec| spec.name == *name && spec.lifecycle.post_start.is_some());
            container.started(*attempt, has_hook);
        }
        self.is_dirty = true;
        match news {
            Some("Created") => self.announce_of(name, false, "Created", "Container created".into(), actions),
            Some("Started") => self.announce_of(name, false, "Started", "Container started".into(), actions),
            _ => {}
        }
    }

    /// Announces runs that were lost, once the API server knows the pod.
    pub(crate) fn announce_lost(&mut self, actions: &mut Vec<PodAction>) {
        if self.api.is_none() || self.containers.values().all(|container| container.untold.is_none()) {
            return;
        }
        let untold = |(name, container): (&String, &mut ContainerLife)| {
            container.untold.take().map(|(_, why)| (name.clone(), why))
        };
        let untold: Vec<(String, String)> = self.containers.iter_mut().filter_map(untold).collect();
        for (name, why) in untold {
            self.announce_of(&name, true, "Killing", format!("Container was ended: {why}"), actions);
        }
    }

    /// The agent found this run at its start: the health that the last agent noted holds until the next verdict.
    pub(crate) fn adopt_health(&mut self, key: &ContainerKey, known: &SortedMap<ContainerKey, Health>) {
        if let Some(container) = self.containers.get_mut(&key.container) {
            container.probes.adopt(key.attempt, known.get(key).copied().unwrap_or_default());
        }
    }

    /// Notes how containers ended that are not started again.
    pub(crate) fn note_results(&mut self) {
        let Some(pod) = self.pod.clone() else { return };
        // what ends because the machine stops has not done its work
        if self.end.is_some() || self.failed.is_some() || self.shutdown.is_some() {
            return;
        }
        let policy = pod.spec.restart_policy;
        let is_init =
            |container: &Container| pod.spec.init_containers.iter().any(|init| init.name == container.name);
        for spec in pod.spec.all_containers().filter(|spec| !spec.is_sidecar()) {
            let Some(container) = self.containers.get(&spec.name) else { continue };
            let exit = match &container.run {
                Some(run) if run.is_replaced => None,
                Some(run) => run.exit(),
                // it ran before this boot, and may run once only
                None if container.ran_before && policy == RestartPolicy::Never => Some(unseen_exit()),
                None => None,
            };
            let Some(exit) = exit else { continue };
            let is_final = match is_init(spec) {
                true => exit.code != 0 && policy == RestartPolicy::Never,
                false => self.is_finished_elsewhere || !restarts_after(policy, exit.code),
            };
            // how it ended was not seen before: others finished the pod while it ran
            let known = self.results.get(&spec.name);
            if is_final && known.is_none_or(|known| *known == unseen_exit() && exit != *known) {
                self.results.insert(spec.name.clone(), exit);
                self.saved.is_stale = true;
            }
        }
    }

    /// Takes the failure of a command.
    pub(crate) fn failed(
        &mut self,
        now: Now,
        command: &Command,
        failure: &Failure,
        actions: &mut Vec<PodAction>,
    ) {
        self.is_dirty = true;
        match command {
            Command::PreparePod(_) => self.prepare_failed(now, failure, actions),
            Command::UpdateVolumes(_) => self.update_failed(now, failure, actions),
            Command::RemovePod(_) => {
                self.sandbox = Sandbox::Half;
                self.sandbox_retry.failed(now.mono);
                self.announce(
                    true,
                    "FailedKillPod",
                    format!("error killing pod: {}", failure.message),
                    actions,
                );
            }
            Command::PullImage { container, .. } if container == ahead::SLOT => {
                self.image_ahead_failed(now, failure, actions);
            }
            Command::PullImage { container, .. } if container == image_volumes::SLOT => {
                self.image_volume_failed(now, failure, actions);
            }
            Command::PullImage { container, .. } => self.pull_failed(now, container, failure, actions),
            Command::CreateContainer(key) => self.create_failed(now, key, failure, actions),
            Command::StartContainer(key) => self.start_failed(now, key, failure, actions),
            Command::StopContainer(key) | Command::RemoveContainer(key) => {
                let Some(container) = self.containers.get_mut(&key.container) else { return };
                let is_it = matches!(container.command,
                    Some(Doing::Stop { attempt, .. } | Doing::Remove(attempt)) if attempt == key.attempt);
                if !is_it {
                    return;
                }
                container.command = None;
                container.cleaning.failed(now.mono);
                let message = format!("error killing pod: {}: {}", key.container, failure.message);
                self.announce(true, "FailedKillPod", message, actions);
            }
        }
    }

    fn prepare_failed(&mut self, now: Now, failure: &Failure, actions: &mut Vec<PodAction>) {
        self.sandbox = Sandbox::Half;
        self.sandbox_retry.failed(now.mono);
        self.is_apart |= failure.reason == FailureReason::Network;
        let message = &failure.message;
        match failure.reason {
            FailureReason::Volume => {
                self.image_volumes.look_again();
                self.hindered(now, "FailedMount", message.clone(), actions);
            }
            _ => {
                let message = format!("Failed to create pod sandbox: {message}");
                self.hindered(now, "FailedCreatePodSandBox", message, actions);
            }
        }
    }

    fn pull_failed(&mut self, now: Now, name: &str, failure: &Failure, actions: &mut Vec<PodAction>) {
        let image = self.image_of(name);
        let container = self.containers.get_mut(name);
        let Some(container) = container.filter(|container| container.command == Some(Doing::Pull)) else {
            return;
        };
        container.command = None;
        if container.pulling != image {
            return;
        }
        pull_retry(&mut container.pull, now, failure);
        let failures = container.pull.failures();
        let (reason, event, text, told) = pull_words(&image, failure, failures > 1);
        container.waiting = Some((reason, text));
        self.announce_of(name, true, event, told, actions);
        // upstream says it again and again
        if failures == 2 && reason == "ImagePullBackOff" {
            let message = format!("Back-off pulling image {image:?}");
            self.announce_of(name, false, "BackOff", message, actions);
        }
    }

    fn create_failed(
        &mut self,
        now: Now,
        key: &ContainerKey,
        failure: &Failure,
        actions: &mut Vec<PodAction>,
    ) {
        if failure.reason == FailureReason::Unprepared && self.sandbox == Sandbox::Ready {
            self.sandbox = Sandbox::Half;
        }
        let is_config = failure.reason == FailureReason::Config;
        let reason = if is_config { "CreateContainerConfigError" } else { "CreateContainerError" };
        let Some(container) = self.run_failed(Doing::Create(key.attempt), key, reason, failure, actions)
        else {
            return;
        };
        container.create.failed(now.mono);
    }

    fn start_failed(
        &mut self,
        now: Now,
        key: &ContainerKey,
        failure: &Failure,
        actions: &mut Vec<PodAction>,
    ) {
        let doing = Doing::Start(key.attempt);
        let Some(container) = self.run_failed(doing, key, "RunContainerError", failure, actions) else {
            return;
        };
        if let Some(run) = container.run.as_mut().filter(|run| run.attempt == key.attempt && !run.has_ended())
        {
            let exit = Exit { code: START_FAILED, finished: Some(now.wall), ..unseen_exit() };
            run.state = ContainerState::Exited(exit);
            run.ended = Some(now.mono);
            run.start_error = Some(failure.message.clone());
        }
    }

    /// A step up of a container failed; None if it is not the one under way.
    fn run_failed(
        &mut self,
        doing: Doing,
        key: &ContainerKey,
        reason: &'static str,
        failure: &Failure,
        actions: &mut Vec<PodAction>,
    ) -> Option<&mut ContainerLife> {
        let container = self.containers.get_mut(&key.container)?;
        container.command.take_if(|command| *command == doing)?;
        container.waiting = Some((reason, failure.message.clone()));
        self.announce_of(&key.container, true, "Failed", format!("Error: {}", failure.message), actions);
        self.containers.get_mut(&key.container)
    }

    /// A run's rest is removed.
    pub(crate) fn container_removed(&mut self, key: &ContainerKey) {
        self.is_dirty = true;
        let Some(container) = self.containers.get_mut(&key.container) else { return };
        if container.command == Some(Doing::Remove(key.attempt)) {
            container.command = None;
            container.cleaning.succeeded();
        }
        container.older.remove(&key.attempt);
        if let Some(run) = container.run.as_mut().filter(|run| run.attempt == key.attempt) {
            run.is_removed = true;
            // half made, and never started
            if run.state == ContainerState::Created {
                container.run = None;
            }
        }
    }

    /// The image as the spec names it.
    pub(crate) fn image_of(&self, name: &str) -> String {
        let spec = self.pod.as_ref().and_then(|pod| pod.spec.all_containers().find(|spec| spec.name == name));
        spec.map(|spec| spec.image.clone()).unwrap_or_default()
    }

    /// The pod does not begin: keeps why, for whoever looks later, logs it once, and records an Event.
    pub(crate) fn hindered(
        &mut self,
        now: Now,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        self.is_hindered_by(now, reason, message.clone(), actions);
        self.announce(true, reason, message, actions);
    }

    /// The same without an Event: nothing is wrong with the pod.
    pub(crate) fn is_hindered_by(
        &mut self,
        now: Now,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        let message = kedge_api::excerpt_of(&message, EVENT_CHARS);
        let before = self.hindrance.take();
        if before.as_ref().is_none_or(|before| before.reason != reason || before.message != message) {
            let line = format!("pod {}/{} waits: {reason}: {message}", self.namespace, self.name);
            actions.push(PodAction::Log(Level::Info, line));
        }
        let since = before.filter(|before| before.reason == reason).map_or(now.wall, |before| before.since);
        self.hindrance = Some(Hindrance { reason, message, since });
    }

    /// Records an Event about the pod; not the same one twice in a row.
    pub(crate) fn announce(
        &mut self,
        is_warning: bool,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        let text = format!("{reason} {message}");
        if self.announced != text {
            self.announced = text;
            self.record_event(String::new(), is_warning, reason, message, actions);
        }
    }

    /// Records an Event about a container.
    pub(crate) fn announce_of(
        &mut self,
        container: &str,
        is_warning: bool,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        let specs = self.pod.as_ref().map(|pod| &pod.spec);
        let is_init =
            specs.is_some_and(|spec| spec.init_containers.iter().any(|init| init.name == container));
        let list = if is_init { "initContainers" } else { "containers" };
        self.record_event(format!("spec.{list}{{{container}}}"), is_warning, reason, message, actions);
    }

    fn record_event(
        &self,
        field_path: String,
        is_warning: bool,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        // only what the API server knows can have events there
        if let Some(api) = self.api.as_ref().filter(|api| !api.is_deleted) {
            let message = kedge_api::excerpt_of(&message, EVENT_CHARS);
            let pod = api.reference.clone();
            let hinders = self.hindrance.as_ref().is_some_and(|it| it.reason == reason);
            let has_run = || self.containers.values().any(|container| container.run.is_some());
            let is_urgent = is_warning && (hinders || (!field_path.is_empty() && !has_run()));
            let news = PodNews { pod, field_path, is_warning, is_urgent, reason, message };
            actions.push(PodAction::RecordEvent(news));
        }
    }
}

/// Longest message of an Event: upstream's limit is 1,024 bytes.
const EVENT_CHARS: usize = 1000;

/// Whether the spec now has another image than this run was created with: upstream's only change that restarts a container.
pub(crate) fn changed(run: &Run, spec: &Container) -> bool {
    !run.image_name.is_empty() && run.image_name != spec.image
}

impl ContainerLife {
    /// Whether this observation answers the command under way.
    fn answered(&mut self, seen: u32, state: &ContainerState) {
        let ended = matches!(state, ContainerState::Exited(_) | ContainerState::Lost(_));
        let running = matches!(state, ContainerState::Running { .. });
        let is_answer = match self.command {
            Some(Doing::Create(attempt)) => attempt == seen,
            Some(Doing::Start(attempt)) => attempt == seen && (running || ended),
            Some(Doing::Stop { attempt, .. } | Doing::PreStop { attempt, .. }) => attempt == seen && ended,
            Some(Doing::Pull | Doing::Remove(_)) | None => false,
        };
        if is_answer {
            if matches!(self.command, Some(Doing::Create(_))) {
                self.create.succeeded();
            }
            if ended {
                self.cleaning.succeeded();
            }
            self.command = None;
        }
    }

    /// Takes the state; gives the word of an Event if there is something to announce.
    fn take(&mut self, now: Now, attempt: u32, observation: &Observation) -> Option<&'static str> {
        let latest = self.run.as_ref().map(|run| run.attempt);
        if latest.is_some_and(|latest| attempt < latest) {
            let is_live =
                matches!(observation.state, ContainerState::Running { .. } | ContainerState::Unknown(_));
            self.older.insert(attempt, is_live);
            return None;
        }
        if latest != Some(attempt) {
            self.supersede(&observation.container.pod, &observation.container.container);
            self.run = Some(Run {
                attempt,
                state: ContainerState::Created,
                started: None,
                image_name: observation.image_name.clone(),
                image_reference: observation.image_reference.clone(),
                ended: None,
                start_error: None,
                is_replaced: false,
                is_removed: false,
            });
        }
        let run = self.run.as_mut()?;
        if run.has_ended() {
            return None;
        }
        let was = std::mem::replace(&mut run.state, observation.state.clone());
        match &observation.state {
            ContainerState::Created => (latest != Some(attempt)).then_some("Created"),
            ContainerState::Running { started, .. } => {
                run.started = Some(*started);
                self.waiting = None;
                self.announced = false;
                (was == ContainerState::Created).then_some("Started")
            }
            ContainerState::Exited(exit) => {
                run.started = run.started.or(exit.started);
                run.ended = Some(now.mono);
                self.waiting = None;
                None
            }
            ContainerState::Lost(why) => {
                run.ended = Some(now.mono);
                self.waiting = None;
                if !why.is_empty() {
                    self.untold = Some((attempt, why.clone()));
                }
                None
            }
            ContainerState::Unknown(_) => None,
        }
    }

    /// The run so far becomes an earlier one.
    fn supersede(&mut self, uid: &PodUid, name: &str) {
        self.keep_end(uid, name);
        let Some(run) = self.run.take() else { return };
        if !run.is_removed {
            self.older.insert(run.attempt, run.is_live());
        }
    }

    /// Keeps how the latest run ended, before another takes its place.
    pub(crate) fn keep_end(&mut self, uid: &PodUid, name: &str) {
        let end = self.run.as_ref().and_then(|run| {
            let key = ContainerKey { pod: uid.clone(), container: name.to_owned(), attempt: run.attempt };
            run.terminated(shown_id(&key))
        });
        if end.is_some() {
            self.last = end;
        }
    }
}

/// What stands before a container's ID in a status: the runtime's name.
const ID_SCHEME: &str = "kedge://";

/// A container's ID as a status shows it.
pub(crate) fn shown_id(key: &ContainerKey) -> String {
    format!("{ID_SCHEME}{}", key.id())
}

/// An image over a link that cuts each connection comes as fast as the link has it, not as fast as a back-off lets it.
pub(crate) fn pull_retry(retry: &mut Retry, now: Now, failure: &Failure) {
    match failure.reason {
        FailureReason::PullBrokeOff => retry.broke_off(now.mono),
        _ => retry.failed(now.mono),
    }
}

/// How a failed pull is shown, in upstream's words: reason and message of the container, reason and message of the event.
pub(crate) fn pull_words(
    image: &str,
    failure: &Failure,
    is_backing_off: bool,
) -> (&'static str, &'static str, String, String) {
    let message = &failure.message;
    let both = |reason, event, text: String| (reason, event, text.clone(), text);
    let (word, text, told) = match failure.reason {
        FailureReason::InvalidImageName => {
            let text = format!("Failed to apply default image tag {image:?}: {message}");
            return both("InvalidImageName", "InspectFailed", text);
        }
        FailureReason::ImageNeverPull => {
            let text = format!("Container image {image:?} is not present with pull policy of Never");
            return both("ErrImageNeverPull", "ErrImageNeverPull", text);
        }
        FailureReason::ImageInspect => {
            let text = format!("Failed to inspect image {image:?}: {message}");
            return both("ImageInspectError", "InspectFailed", text);
        }
        FailureReason::ImageSignature => (
            "SignatureValidationFailed",
            format!("image pull failed for {image} because the signature validation failed: {message}"),
            format!("SignatureValidationFailed: {message}"),
        ),
        _ => ("ErrImagePull", message.clone(), message.clone()),
    };
    let told = format!("Failed to pull image {image:?}: {told}");
    match is_backing_off {
        true => {
            ("ImagePullBackOff", "Failed", format!("Back-off pulling image {image:?}: {word}: {text}"), told)
        }
        false => (word, "Failed", text, told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_pull_is_shown_in_upstreams_words() {
        let check = |reason, is_backing_off, expect: [&str; 4]| {
            let failure = Failure { reason, message: "why".into() };
            let (reason, event, text, told) = pull_words("r.lan/a", &failure, is_backing_off);
            assert_eq!([reason, event, &text, &told], expect);
        };
        let told = "Failed to pull image \"r.lan/a\": why";
        check(FailureReason::Other, false, ["ErrImagePull", "Failed", "why", told]);
        let backing_off = "Back-off pulling image \"r.lan/a\": ErrImagePull: why";
        check(FailureReason::Other, true, ["ImagePullBackOff", "Failed", backing_off, told]);
        let unsigned = "image pull failed for r.lan/a because the signature validation failed: why";
        let told = "Failed to pull image \"r.lan/a\": SignatureValidationFailed: why";
        check(FailureReason::ImageSignature, false, ["SignatureValidationFailed", "Failed", unsigned, told]);
        let backing_off =
            format!("Back-off pulling image \"r.lan/a\": SignatureValidationFailed: {unsigned}");
        check(FailureReason::ImageSignature, true, ["ImagePullBackOff", "Failed", &backing_off, told]);
        let never = "Container image \"r.lan/a\" is not present with pull policy of Never";
        check(FailureReason::ImageNeverPull, true, ["ErrImageNeverPull", "ErrImageNeverPull", never, never]);
    }
}
