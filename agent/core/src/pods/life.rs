//! The life of one pod: its known state, and how events change it.
//!
//! Always holds: a run that ended never runs again; per container at most one command is under way; a run in
//! an unknown state is neither started nor counted as ended. Leaves to others: the next steps up (`starting`)
//! and down (`ending`), reporting and recording (`reporting`), the set of pods (`Pods`).

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
use crate::pods::pulls::{pull_retry, pull_words};
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
/// The exit code of a run whose end was not seen, as upstream reports it.
const UNSEEN: i32 = 137;

/// Where a pod comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Bound by the API server to the Node with this UID.
    Api { node_uid: String },
    /// From a file.
    Static { path: String },
    /// Found in the runtime; no other source knows it.
    Found { node_uid: String },
}

/// The end of a pod, whether still requested or already reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) grace: Duration,
    pub(crate) since: Duration,
}

/// The pod's own part: network, volumes, cgroup.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub(crate) state: SandboxState,
    pub(crate) retry: Retry,
    pub(crate) network: PodNetwork,
    /// Its network could not be made: containers that still run are in one that was lost.
    pub(crate) is_apart: bool,
    pub(crate) swept: Swept,
    /// The disk is short and the pod has finished, so its logs are removed too.
    pub(crate) gives_up_logs: bool,
}

/// Whether it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxState {
    Absent,
    /// Partly made or removed.
    Half,
    Preparing,
    Ready,
    Removing {
        keep_logs: bool,
    },
}

/// How far the pod's remains are removed.
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

/// Whether the pod may run here, and the facts that keep this open.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    pub(crate) verdict: Verdict,
    /// The known labels of the Node do not fit the pod; carries the number of the Node's reading that
    /// decides.
    pub(crate) doubt: Option<u64>,
    /// The API server's spec has other resources than the pod was admitted with.
    pub(crate) awaits_resize: bool,
}

/// Why the pod ends, or will.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    /// An end was ordered: the pod goes, and its object with it.
    pub(crate) asked: Option<End>,
    /// Set if the node ends the pod while its object stays.
    pub(crate) failed: Option<Failed>,
    /// The grace period of its containers while the machine shuts down.
    pub(crate) shutdown: Option<End>,
    /// The running time of a pod with a deadline; `None` for others.
    pub(crate) active: Option<Active>,
    /// The API server showed the pod as finished when it was first seen, and this node has no newer result.
    pub(crate) is_finished_elsewhere: bool,
}

/// The reason why a pod does not start, and the last report about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits {
    /// Why it does not start; `None` if it has started or waits for nothing.
    pub(crate) hindrance: Option<Hindrance>,
    /// Since when a start has been waiting for objects.
    pub(crate) for_objects_since: Option<Duration>,
    /// The last Event about the pod as a whole, so that it is not repeated.
    pub(crate) announced: String,
}

/// The pod's probes together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probing {
    /// When the next one is due.
    pub(crate) wake: Option<Duration>,
    pub(crate) news: ProbeNews,
}

/// Why a pod does not start, by the last step that failed or waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hindrance {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Since when this has been the reason.
    pub(crate) since: Timestamp,
}

/// The command that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Pull,
    Create(u32),
    Start(u32),
    /// The preStop hook; the signal follows at this time at the latest.
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
    /// When this process saw its end.
    pub(crate) ended: Option<Duration>,
    /// Why starting it failed, if it did.
    pub(crate) start_error: Option<String>,
    /// It was stopped to be replaced by a run with another image, so its exit does not count as a result.
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

    /// The run's exit.
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
    /// Earlier runs that are not removed; true if the run may still be running.
    pub(crate) older: SortedMap<u32, bool>,
    /// How the previous run ended.
    pub(crate) last: Option<Terminated>,
    /// The run that was lost last, and why, until an Event reports it; usually a run of an earlier agent,
    /// found before the API server was reached.
    pub(crate) untold: Option<(u32, String)>,
    pub(crate) next_attempt: u32,
    /// Restarts that were reported before this process knew the container.
    pub(crate) floor: u32,
    /// It ran before this boot, because a log of it exists.
    pub(crate) ran_before: bool,
    pub(crate) command: Option<Doing>,
    /// Why it is waiting: reason and message.
    pub(crate) waiting: Option<(&'static str, String)>,
    /// The image that was pulled for the next run, with the name it was pulled by.
    pub(crate) image: Option<(String, Image)>,
    /// The name of the image that is being pulled or checked.
    pub(crate) pulling: String,
    pub(crate) restarts: Restarts,
    /// The back-off of the next restart was announced.
    pub(crate) announced: bool,
    pub(crate) pull: Retry,
    /// The back-off of creating.
    pub(crate) create: Retry,
    /// The back-off of stopping and removing.
    pub(crate) cleaning: Retry,
    pub(crate) probes: Probes,
    pub(crate) hooks: Hooks,
}

impl ContainerLife {
    pub(crate) fn is_live(&self) -> bool {
        self.run.as_ref().is_some_and(Run::is_live) || self.older.values().any(|is_live| *is_live)
    }

    /// Whether the runtime still has a part of it, or a command for it is under way.
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
    /// `None` if the pod was only found in the runtime.
    pub(crate) pod: Option<Rc<Pod>>,
    pub(crate) api: Option<InApi>,
    pub(crate) admission: Admission,
    pub(crate) ending: Ending,
    pub(crate) sandbox: Sandbox,
    pub(crate) waits: Waits,
    pub(crate) files: Files,
    pub(crate) tokens: Tokens,
    pub(crate) image_volumes: ImageVolumes,
    /// Images for the pod that will replace this one.
    pub(crate) ahead: Ahead,
    pub(crate) probing: Probing,
    pub(crate) containers: SortedMap<String, ContainerLife>,
    /// The exits of containers that are not started again.
    pub(crate) results: SortedMap<String, Exit>,
    pub(crate) saved: Saved,
    /// The pod needs a look now.
    pub(crate) is_dirty: bool,
    /// When the pod needs its next look.
    pub(crate) wake: Option<Duration>,
}

/// The input of a decision about one pod, and the actions that follow from it.
pub(crate) struct Context<'a> {
    pub(crate) now: Now,
    pub(crate) node: Option<&'a NodeFacts>,
    /// How many readings of the Node were ordered, and the number of the last completed one.
    pub(crate) node_reading: (u64, u64),
    /// The other pods.
    pub(crate) lives: &'a BTreeMap<PodUid, Life>,
    /// The objects on the API server that bound the pod.
    pub(crate) objects: &'a mut Objects,
    /// Whether that API server is the current one, so that objects can be read.
    pub(crate) can_read: bool,
    /// The machine is shutting down.
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
            admission: Admission { verdict: Verdict::Pending, doubt: None, awaits_resize: false },
            ending: Ending::default(),
            sandbox: Sandbox {
                state: SandboxState::Absent,
                retry: Retry::default(),
                network: PodNetwork::default(),
                is_apart: false,
                swept: Swept::No,
                gives_up_logs: false,
            },
            waits: Waits::default(),
            files: Files::default(),
            tokens: Tokens::default(),
            image_volumes: ImageVolumes::default(),
            ahead: Ahead::default(),
            probing: Probing::default(),
            containers: SortedMap::new(),
            results: SortedMap::new(),
            saved: Saved::default(),
            is_dirty: true,
            wake: None,
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

    /// Whether the runtime has, or may have, a part of it.
    pub(crate) fn has_begun(&self) -> bool {
        self.sandbox.state != SandboxState::Absent || self.containers.values().any(ContainerLife::has_rest)
    }

    /// Schedules the next look for this time at the latest.
    pub(crate) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Requests the pod's end; a later request may only shorten the grace period.
    pub(crate) fn end(&mut self, now: Now, grace: Duration) {
        let end = self.ending.asked.get_or_insert(End { grace, since: now.mono });
        if now.mono.saturating_add(grace) < end.since.saturating_add(end.grace) {
            *end = End { grace, since: now.mono };
        }
        self.saved.is_stale = true;
        self.is_dirty = true;
    }

    /// The grace period of its spec.
    pub(crate) fn own_grace(&self) -> Duration {
        let secs = self.pod.as_ref().map_or(30, |pod| pod.spec.grace_secs());
        Duration::from_secs(secs)
    }

    /// Whether no container will be started any more, because the pod was rejected, has finished or ends.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.asked.is_some() || self.is_finished()
    }

    /// Whether its containers have completed, or the pod may not run.
    pub(crate) fn is_finished(&self) -> bool {
        if self.ending.is_finished_elsewhere
            || self.ending.failed.is_some()
            || matches!(self.admission.verdict, Verdict::Rejected(_))
        {
            return true;
        }
        let Some(pod) = &self.pod else { return false };
        let has_result = |container: &Container| self.results.contains_key(&container.name);
        let failed_init =
            |container: &Container| self.results.get(&container.name).is_some_and(|exit| exit.code != 0);
        pod.spec.containers.iter().all(has_result) || pod.spec.init_containers.iter().any(failed_init)
    }

    /// Takes a new state of one run: the answer to a command, or a change that was seen without one.
    pub(crate) fn observed(&mut self, now: Now, observation: &Observation, actions: &mut Vec<PodAction>) {
        let ContainerKey { container: name, attempt, .. } = &observation.container;
        let container = self.containers.entry(name.clone()).or_default();
        container.next_attempt = container.next_attempt.max(attempt.saturating_add(1));
        let was_starting = container.command == Some(Doing::Start(*attempt));
        container.answered(*attempt, &observation.state);
        let news = container.note(now, *attempt, observation);
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

    /// Records Events for lost runs, once the API server knows the pod.
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

    /// The agent found this run at its start: takes the health that the last agent noted, until the next
    /// verdict.
    pub(crate) fn adopt_health(&mut self, key: &ContainerKey, known: &SortedMap<ContainerKey, Health>) {
        if let Some(container) = self.containers.get_mut(&key.container) {
            container.probes.adopt(key.attempt, known.get(key).copied().unwrap_or_default());
        }
    }

    /// Notes the exits of containers that are not started again.
    pub(crate) fn note_results(&mut self) {
        let Some(pod) = self.pod.clone() else { return };
        // a container that ends because of a shutdown has not completed its work
        if self.ending.asked.is_some() || self.ending.failed.is_some() || self.ending.shutdown.is_some() {
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
                // the container ran before this boot, and may run only once
                None if container.ran_before && policy == RestartPolicy::Never => Some(unseen_exit()),
                None => None,
            };
            let Some(exit) = exit else { continue };
            let is_final = match is_init(spec) {
                true => exit.code != 0 && policy == RestartPolicy::Never,
                false => self.ending.is_finished_elsewhere || !restarts_after(policy, exit.code),
            };
            // also corrects an unknown result: another client finished the pod while the container ran
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
                self.sandbox.state = SandboxState::Half;
                self.sandbox.retry.failed(now.mono);
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
                // another command may have replaced the failed one
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
        self.sandbox.state = SandboxState::Half;
        self.sandbox.retry.failed(now.mono);
        self.sandbox.is_apart |= failure.reason == FailureReason::Network;
        let message = &failure.message;
        match failure.reason {
            FailureReason::Volume => {
                self.image_volumes.check_again();
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
        // upstream repeats this Event over and over
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
        if failure.reason == FailureReason::Unprepared && self.sandbox.state == SandboxState::Ready {
            self.sandbox.state = SandboxState::Half;
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

    /// A step that starts a container failed; `None` if it is not the step under way.
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

    /// The remains of a run are removed.
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
            // partly made, and never started
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

    /// The pod does not start: keeps the reason for later readers, logs it once, and records an Event.
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

    /// The same without an Event, for a reason that is not a problem of the pod.
    pub(crate) fn is_hindered_by(
        &mut self,
        now: Now,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        let message = kedge_api::excerpt_of(&message, EVENT_CHARS);
        let before = self.waits.hindrance.take();
        if before.as_ref().is_none_or(|before| before.reason != reason || before.message != message) {
            let line = format!("pod {}/{} waits: {reason}: {message}", self.namespace, self.name);
            actions.push(PodAction::Log(Level::Info, line));
        }
        let since = before.filter(|before| before.reason == reason).map_or(now.wall, |before| before.since);
        self.waits.hindrance = Some(Hindrance { reason, message, since });
    }

    /// Records an Event about the pod, unless it equals the last one.
    pub(crate) fn announce(
        &mut self,
        is_warning: bool,
        reason: &'static str,
        message: String,
        actions: &mut Vec<PodAction>,
    ) {
        let text = format!("{reason} {message}");
        if self.waits.announced != text {
            self.waits.announced = text;
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
        // the API server takes Events only about a pod that it has
        if let Some(api) = self.api.as_ref().filter(|api| !api.is_deleted) {
            let message = kedge_api::excerpt_of(&message, EVENT_CHARS);
            let pod = api.reference.clone();
            let hinders = self.waits.hindrance.as_ref().is_some_and(|it| it.reason == reason);
            let has_run = || self.containers.values().any(|container| container.run.is_some());
            let is_urgent = is_warning && (hinders || (!field_path.is_empty() && !has_run()));
            let news = PodNews { pod, field_path, is_warning, is_urgent, reason, message };
            actions.push(PodAction::RecordEvent(news));
        }
    }
}

/// Longest message of an Event: upstream's limit is 1,024 bytes.
const EVENT_CHARS: usize = 1000;

/// Whether the spec now has another image than this run was created with: upstream's only change that
/// restarts a container.
pub(crate) fn changed(run: &Run, spec: &Container) -> bool {
    !run.image_name.is_empty() && run.image_name != spec.image
}

impl ContainerLife {
    /// Takes an observation as the answer to the command under way, if it is.
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

    /// Notes the state; returns the reason for an Event if one is due.
    fn note(&mut self, now: Now, attempt: u32, observation: &Observation) -> Option<&'static str> {
        let latest = self.run.as_ref().map(|run| run.attempt);
        if latest.is_some_and(|latest| attempt < latest) {
            // a later run exists, so only whether this one may still run matters
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
        // an end is final: a late observation does not change it
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

    /// Turns the latest run into an earlier one.
    fn supersede(&mut self, uid: &PodUid, name: &str) {
        self.keep_end(uid, name);
        let Some(run) = self.run.take() else { return };
        if !run.is_removed {
            self.older.insert(run.attempt, run.is_live());
        }
    }

    /// Keeps how the latest run ended before another replaces it.
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

/// The prefix of a container's ID in a status: the runtime's name.
const ID_SCHEME: &str = "kedge://";

/// A container's ID as a status shows it.
pub(crate) fn shown_id(key: &ContainerKey) -> String {
    format!("{ID_SCHEME}{}", key.id())
}
