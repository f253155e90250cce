//! The steps by which a pod starts: admission, volumes and network, containers in their order.
//!
//! Always holds: no container starts before the pod's record is on disk, nor while parts remain of another
//! pod with its namespace and name, or of an ending pod of its DaemonSet; init containers run one after the
//! other; the image is checked, and pulled if needed, before each run. Leaves to others: performing the
//! steps, and the steps down (`ending`).

use crate::answer::Level;
use crate::images::image::Image;
use crate::node::facts::{self, ApiServer};
use crate::pods::admission::{self, host_ports};
use crate::pods::environment::{self, EnvProblem, Sources};
use crate::pods::event::{
    Console, ContainerOrder, Dns, ImageOrder, PodAction, PodNetwork, PodNetworks, PodSandbox, Volume,
};
use crate::pods::keys::{ObjectKind, ObjectName};
use crate::pods::life::{Context, Doing, Life, SandboxState, Swept, Verdict, changed};
use crate::pods::objects::{self, Found};
use crate::pods::orders::HookNote;
use crate::pods::spec::{Container, Pod, RestartPolicy};
use crate::pods::status::restarts_after;
use crate::pods::volumes::{self, VolumeProblem};
use crate::pods::{resources, security};
use std::rc::Rc;
use std::time::Duration;

/// The kind of the controller that has one pod on each node.
const DAEMON_SET: &str = "DaemonSet";

/// When a container that ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    /// A sidecar restarts always.
    Sidecar,
    /// An init container restarts until it succeeds, unless the pod's policy is Never.
    Init(RestartPolicy),
    /// A main container restarts by the pod's policy.
    Main(RestartPolicy),
}

impl Restart {
    fn after(self, exit_code: i32) -> bool {
        match self {
            Self::Sidecar => true,
            Self::Init(policy) => exit_code != 0 && policy != RestartPolicy::Never,
            Self::Main(policy) => restarts_after(policy, exit_code),
        }
    }
}

impl Life {
    /// Takes the next steps of a pod that should run.
    pub(crate) fn go_up(&mut self, ctx: &mut Context<'_>) {
        let Some(pod) = self.pod.clone() else { return };
        if self.admission.verdict != Verdict::Admitted || !self.may_start() {
            return;
        }
        if !self.has_begun()
            && let Some(other) = ctx.lives.values().find(|life| life.has_begun() && self.follows(life))
        {
            let message = format!(
                "pod {}/{} (uid {}), whose place it takes, has not gone",
                other.namespace, other.name, other.uid
            );
            return self.is_hindered_by(ctx.now, "PredecessorEnds", message, ctx.actions);
        }
        self.see_to_objects(&pod, ctx);
        self.see_to_tokens(&pod, ctx);
        if self.prepare(&pod, ctx) {
            self.update_files(&pod, ctx);
            self.start_containers(&pod, ctx);
            self.pull_ahead(&pod, ctx);
        }
    }

    /// Whether the other pod must be gone before this one starts: it has the same name, or it ends and
    /// belongs to the same DaemonSet, or another Node left it and it belongs to the same controller. A
    /// DaemonSet has one pod on a node, whatever the pods' names are; only under `maxSurge` it has a second
    /// one, beside one that does not end.
    fn follows(&self, other: &Life) -> bool {
        let controller = |life: &Self| life.pod.as_ref().and_then(|pod| pod.controller.clone());
        let is_left = || {
            let same = controller(other).filter(|theirs| controller(self).as_ref() == Some(theirs));
            other.ending.asked.is_some()
                && same.is_some_and(|(kind, _)| kind == DAEMON_SET || other.node_uid() != self.node_uid())
        };
        other.namespace == self.namespace && (other.name == self.name || is_left())
    }

    /// Judges a pod that has not been judged. A pod that runs is not judged again.
    pub(crate) fn admit(&mut self, ctx: &mut Context<'_>) {
        let (Verdict::Pending, Some(pod)) = (&self.admission.verdict, self.pod.clone()) else { return };
        if self.has_begun() || self.is_finished() {
            self.admission.verdict = Verdict::Admitted;
            self.saved.is_stale = true;
            return;
        }
        if ctx.is_shutting_down {
            // upstream's text
            let (reason, message) =
                ("NodeShutdown".to_owned(), "Pod was rejected as the node is shutting down.".to_owned());
            return self.reject(admission::Rejection { reason, message }, ctx);
        }
        let Some(node) = ctx.node else { return };
        let counted = ctx.lives.values().filter(|life| life.takes_its_share());
        let spec = |life: &'_ Life| life.pod.clone();
        let all: Vec<Rc<Pod>> = counted.clone().filter_map(spec).collect();
        let staying = counted.filter(|life| !life.is_leaving() && !self.follows(life));
        let judge = |others: &[Rc<Pod>]| {
            admission::admit(&pod, self.is_static(), node, others.iter().map(|pod| &pod.spec))
        };
        let verdict = judge(&all);
        // a rejection is final, so it must not be caused by resources of pods that will soon be gone
        if verdict.is_err() && judge(&staying.filter_map(spec).collect::<Vec<_>>()).is_ok() {
            return;
        }
        if let Err(rejection) = &verdict
            && rejection.reason == admission::NODE_AFFINITY
            && self.is_in_doubt(ctx)
        {
            // as upstream: the server may have bound the pod by labels of the Node that have not arrived here
            // yet
            let message = format!("{}; it is judged again once the Node was read", rejection.message);
            return self.is_hindered_by(ctx.now, admission::NODE_AFFINITY, message, ctx.actions);
        }
        if let Some(why) = node.no_runtime.clone().filter(|_| self.is_static()) {
            // nobody makes it anew when there is one
            return self.is_hindered_by(ctx.now, kedge_api::NO_CONTAINER_RUNTIME, why, ctx.actions);
        }
        (self.admission.doubt, self.waits.hindrance) = (None, None);
        self.saved.is_stale = true;
        match verdict {
            Ok(()) => {
                self.admission.verdict = Verdict::Admitted;
                let missed = resources::missed_controllers(&pod.spec, node);
                if !missed.is_empty() {
                    let message = facts::limits_not_kept(&missed);
                    self.announce(true, kedge_api::LIMITS_NOT_KEPT, message, ctx.actions);
                }
            }
            Err(rejection) => self.reject(rejection, ctx),
        }
    }

    /// Whether the Node has not been read since its labels were first found not to fit the pod.
    fn is_in_doubt(&mut self, ctx: &Context<'_>) -> bool {
        let (ordered, done) = ctx.node_reading;
        *self.admission.doubt.get_or_insert(ordered.saturating_add(1)) > done
    }

    /// Whether it uses, or will use, a share of the node.
    fn takes_its_share(&self) -> bool {
        let may_run = self.ending.asked.is_none() || self.has_begun();
        // a failed pod keeps its share until its containers have ended
        let is_done = self.is_finished() && (self.ending.failed.is_none() || self.is_down());
        self.admission.verdict == Verdict::Admitted && !is_done && may_run
    }

    /// Whether it ends, or the node ends it, so that its share will soon be free.
    pub(crate) fn is_leaving(&self) -> bool {
        self.ending.asked.is_some() || self.ending.failed.is_some()
    }

    fn reject(&mut self, rejection: admission::Rejection, ctx: &mut Context<'_>) {
        let text = format!(
            "pod {}/{} is rejected: {}: {}",
            self.namespace, self.name, rejection.reason, rejection.message
        );
        ctx.actions.push(PodAction::Log(Level::Warn, text));
        let reason =
            REASONS.iter().find(|reason| **reason == rejection.reason).unwrap_or(&"UnexpectedAdmissionError");
        self.announce(true, reason, rejection.message.clone(), ctx.actions);
        self.admission.verdict = Verdict::Rejected(rejection);
    }

    /// Reads the objects that are not known yet.
    fn see_to_objects(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        for name in objects::needed_by(pod) {
            if !matches!(ctx.objects.find(&name), Found::Data(_)) {
                self.see_to_object(&name, ctx);
            }
        }
    }

    /// An object's content prevents the start: reads all objects again and again until a person has corrected
    /// them.
    fn watch_objects(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        for name in objects::needed_by(pod) {
            self.see_to_object(&name, ctx);
        }
    }

    fn see_to_object(&mut self, name: &ObjectName, ctx: &mut Context<'_>) {
        // the current API server does not have the objects that another server's pods refer to
        if !ctx.can_read {
            return;
        }
        ctx.objects.want(ctx.now, name, ctx.actions);
        if let Some(at) = ctx.objects.next_read(name) {
            self.wake_at(at);
        }
    }

    /// Reads objects again whose copies may be old, for a container that starts.
    fn refresh_objects(pod: &Pod, since: Duration, ctx: &mut Context<'_>) {
        if !ctx.can_read {
            return;
        }
        for name in objects::needed_by(pod) {
            ctx.objects.want_since(ctx.now, &name, since, ctx.actions);
        }
    }

    /// The same; returns true once all are known.
    fn await_objects(&mut self, pod: &Pod, ctx: &mut Context<'_>) -> bool {
        let since = *self.waits.for_objects_since.get_or_insert(ctx.now.mono);
        Self::refresh_objects(pod, since, ctx);
        let are_known = Self::are_objects_settled(pod, since, ctx);
        self.waits.for_objects_since.take_if(|_| are_known);
        are_known
    }

    /// Whether all objects are settled for a pod that has been waiting since `since`. A read during the wait
    /// is enough: with many objects, or over a slow link, the first copy is old again before the last
    /// arrives, so the wait would otherwise never end.
    pub(crate) fn are_objects_settled(pod: &Pod, since: Duration, ctx: &Context<'_>) -> bool {
        objects::needed_by(pod).iter().all(|name| ctx.objects.is_settled(name, since))
    }

    /// Prepares network, volumes and cgroup; returns whether they are ready.
    fn prepare(&mut self, pod: &Pod, ctx: &mut Context<'_>) -> bool {
        match self.sandbox.state {
            SandboxState::Ready => return true,
            SandboxState::Preparing | SandboxState::Removing { .. } => return false,
            SandboxState::Absent | SandboxState::Half => {}
        }
        if self.sandbox.is_apart && self.may_run() {
            // as upstream: they start again in the new network
            self.stop_containers(ctx);
            return false;
        }
        if !self.sandbox.retry.is_due(ctx.now.mono) {
            self.wake_at(self.sandbox.retry.due());
            return false;
        }
        let Some(node) = ctx.node else { return false };
        if let (false, PodNetworks::NotReady(why)) = (pod.spec.host_network, &node.network) {
            // upstream's text except for its end
            let message = format!(
                "network is not ready: container runtime network not ready: NetworkReady=false \
                 reason:NetworkPluginNotReady message:Network plugin returns error: {why}"
            );
            self.hindered(ctx.now, "NetworkNotReady", message, ctx.actions);
            return false;
        }
        if let Some(until) = self.files.rest_until(ctx.now) {
            self.wake_at(until);
            return false;
        }
        if !self.await_objects(pod, ctx) {
            return false;
        }
        let patience = self.tokens.wait(ctx.now, ctx.can_read);
        if !self.see_to_image_volumes(pod, ctx) {
            return false;
        }
        let volumes = match volumes::volumes(pod, ctx.objects, &self.tokens, &self.image_volumes, node) {
            Ok(volumes) => volumes,
            Err(VolumeProblem::Awaited) => {
                patience.into_iter().for_each(|until| self.wake_at(until));
                return false;
            }
            Err(VolumeProblem::TooLarge(why)) => {
                self.hindered(ctx.now, "FailedMount", why, ctx.actions);
                self.files.are_too_large(ctx.now);
                self.files.rest_until(ctx.now).into_iter().for_each(|until| self.wake_at(until));
                return false;
            }
            Err(VolumeProblem::Failed(why)) => {
                self.hindered(ctx.now, "FailedMount", why, ctx.actions);
                self.watch_objects(pod, ctx);
                return false;
            }
        };
        if !node.has_cluster_dns && wants_cluster_dns(pod) && self.sandbox.retry.failures() == 0 {
            let message = format!(
                "pod: \"{}_{}({})\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                 \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
                pod.name, pod.namespace, pod.uid
            );
            self.announce(true, "MissingClusterDNS", message, ctx.actions);
        }
        let wants_server = pod.spec.volumes.iter().any(|volume| volume.has_token());
        if wants_server && environment::lacks_server(pod, node) && self.sandbox.retry.failures() == 0 {
            let at = node.api_server.as_ref().map(ApiServer::joined).unwrap_or_default();
            let message = format!(
                "the node asks its API server at {at}, where a pod with a network of its own finds itself: \
                 KUBERNETES_SERVICE_HOST is not set. Give the node's kubeconfig an address of the server's machine, or the \
                 pod hostNetwork"
            );
            self.announce(true, "APIServerOnLoopback", message, ctx.actions);
        }
        self.sandbox.state = SandboxState::Preparing;
        self.files.made(&volumes);
        self.sandbox.swept = Swept::No;
        let sandbox = self.sandbox_of(pod, volumes);
        ctx.actions.push(PodAction::PreparePod(Box::new(sandbox)));
        false
    }

    fn sandbox_of(&self, pod: &Pod, volumes: Vec<Volume>) -> PodSandbox {
        let spec = &pod.spec;
        let node_uid = self.node_uid().to_owned();
        let options = spec.dns_config.options.iter();
        PodSandbox {
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            node_uid,
            hostname: hostname(pod),
            host_network: spec.host_network,
            host_pid: spec.host_pid,
            host_ipc: spec.host_ipc,
            share_process_namespace: spec.share_process_namespace,
            qos: resources::qos_class(spec),
            resources: resources::of_pod(spec),
            volumes,
            host_ports: host_ports(spec),
            dns: Dns {
                policy: if spec.dns_policy.is_empty() {
                    "ClusterFirst".into()
                } else {
                    spec.dns_policy.clone()
                },
                nameservers: spec.dns_config.nameservers.clone(),
                searches: spec.dns_config.searches.clone(),
                options: options.map(|option| (option.name.clone(), option.value.clone())).collect(),
            },
            host_aliases: spec
                .host_aliases
                .iter()
                .map(|alias| (alias.ip.clone(), alias.hostnames.clone()))
                .collect(),
        }
    }

    /// The pod's own part is prepared.
    pub(crate) fn prepared(&mut self, network: PodNetwork) {
        (self.sandbox.state, self.sandbox.is_apart) = (SandboxState::Ready, false);
        self.sandbox.retry.succeeded();
        self.sandbox.network = network;
        self.waits.hindrance = None;
        self.waits.announced.clear();
        self.is_dirty = true;
    }

    fn start_containers(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        let policy = pod.spec.restart_policy;
        let has_run = |spec: &Container| {
            self.containers.get(&spec.name).is_some_and(|container| container.run.is_some())
        };
        let is_initialized = pod.spec.containers.iter().any(has_run);
        for spec in &pod.spec.init_containers {
            let container = self.containers.entry(spec.name.clone()).or_default();
            if spec.is_sidecar() {
                // as upstream: the next container starts once this one's startup probe has passed
                let has_started = container.health(spec).is_started;
                self.ensure(pod, spec, Restart::Sidecar, ctx);
                if !is_initialized && !has_started {
                    return;
                }
            } else if !is_initialized && !container.has_succeeded() {
                self.ensure(pod, spec, Restart::Init(policy), ctx);
                return;
            }
        }
        let mut is_held_up = false;
        for spec in &pod.spec.containers {
            let container = self.containers.entry(spec.name.clone()).or_default();
            if is_held_up && !container.is_live() {
                continue;
            }
            self.ensure(pod, spec, Restart::Main(policy), ctx);
            is_held_up |= self.containers.get(&spec.name).is_some_and(|container| container.holds_up(spec));
        }
    }

    /// Takes the next step of one container that should run, or run again.
    fn ensure(&mut self, pod: &Pod, spec: &Container, restart: Restart, ctx: &mut Context<'_>) {
        let is_done = matches!(restart, Restart::Main(_)) && self.results.contains_key(&spec.name);
        let container = self.containers.entry(spec.name.clone()).or_default();
        if container.command.is_some() || (is_done && !container.is_live()) {
            return;
        }
        if container.older.values().any(|is_live| *is_live) {
            // two runs at once: the earlier one has to end first
            self.stop_older(&spec.name, ctx);
            return;
        }
        let is_changed = container.run.as_ref().is_some_and(|run| changed(run, spec));
        match &container.run {
            Some(run) if run.is_live() => {
                if is_changed {
                    self.replace(&spec.name, true);
                    let message = format!("Container {} definition changed, will be restarted", spec.name);
                    self.stop(&spec.name, self.own_grace(), message, ctx);
                } else if let Some((grace, message)) = self.failed_check(pod, spec) {
                    self.stop(&spec.name, grace, message, ctx);
                } else {
                    // the image was changed back while the stop failed
                    self.replace(&spec.name, false);
                    self.remove_older(&spec.name, ctx);
                }
                return;
            }
            // created but not started, perhaps by an agent that was killed then. It never ran, so its start
            // does not count as a restart
            Some(run) if !run.has_ended() => {
                let attempt = run.attempt;
                if is_changed {
                    self.remove_run(&spec.name, attempt, ctx);
                } else {
                    self.start(&spec.name, attempt, ctx);
                }
                return;
            }
            Some(run) => {
                let code = run.exit().map_or(0, |exit| exit.code);
                // as upstream: a changed image restarts the container under any policy if it stopped this
                // run, but not if the run had already ended
                if !run.is_replaced && !restart.after(code) {
                    return;
                }
                if !is_changed && self.is_backing_off(pod, &spec.name, ctx) {
                    return;
                }
            }
            None => {}
        }
        // otherwise all runs whose start fails would be kept
        self.remove_older(&spec.name, ctx);
        if self.containers.get(&spec.name).is_some_and(|container| container.command.is_none()) {
            self.create(pod, spec, ctx);
        }
    }

    /// Notes whether the latest run is stopped to be replaced by another.
    fn replace(&mut self, name: &str, is_replaced: bool) {
        if let Some(run) = self.containers.get_mut(name).and_then(|container| container.run.as_mut()) {
            run.is_replaced = is_replaced;
        }
    }

    fn start(&mut self, name: &str, attempt: u32, ctx: &mut Context<'_>) {
        let key = self.key(name, attempt);
        let mut specs = self.pod.iter().flat_map(|pod| pod.spec.all_containers());
        let has_hook = specs.any(|spec| spec.name == name && spec.lifecycle.post_start.is_some());
        if let Some(container) = self.containers.get_mut(name) {
            container.command = Some(Doing::Start(attempt));
            if has_hook {
                // an agent may be killed before it learns that the container runs
                let container = key.clone();
                ctx.actions.push(PodAction::NoteHook { container, note: HookNote::PostStart });
            }
            ctx.actions.push(PodAction::StartContainer(key));
        }
    }

    /// Whether a container that ended must wait; announces the wait once.
    fn is_backing_off(&mut self, pod: &Pod, name: &str, ctx: &mut Context<'_>) -> bool {
        let Some(container) = self.containers.get_mut(name) else { return false };
        let ended = container.run.as_ref().and_then(|run| run.ended).unwrap_or_default();
        let due = container.restarts.due(ended);
        if ctx.now.mono >= due || container.image.is_some() {
            return false;
        }
        let whole = format!("{}_{}({})", pod.name, pod.namespace, pod.uid);
        let wait = go_duration(container.restarts.current(ended).unwrap_or_default().as_secs());
        let text = format!("back-off {wait} restarting failed container={name} pod={whole}");
        container.waiting = Some(("CrashLoopBackOff", text));
        let is_news = !std::mem::replace(&mut container.announced, true);
        self.wake_at(due);
        if is_news {
            let message = format!("Back-off restarting failed container {name} in pod {whole}");
            self.announce_of(name, true, "BackOff", message, ctx.actions);
        }
        true
    }

    /// Checks or pulls the image, then creates the next run.
    fn create(&mut self, pod: &Pod, spec: &Container, ctx: &mut Context<'_>) {
        let now = ctx.now.mono;
        let Some(container) = self.containers.get_mut(&spec.name) else { return };
        let waits = [&container.create, &container.pull].into_iter().filter(|retry| !retry.is_due(now));
        if let Some(due) = waits.map(crate::pods::backoff::Retry::due).max() {
            self.wake_at(due);
            return;
        }
        // the spec was changed since this image was pulled
        if container.image.as_ref().is_some_and(|(name, _)| *name != spec.image) {
            container.image = None;
        }
        let Some((_, image)) = container.image.clone() else {
            self.pull(pod, spec, ctx);
            return;
        };
        if !self.await_objects(pod, ctx) {
            return;
        }
        let Some(container) = self.containers.get_mut(&spec.name) else { return };
        let Some(node) = ctx.node else { return };
        let host_ip = &node.addresses[..node.addresses.len().min(1)];
        let pod_ips = if pod.spec.host_network { host_ip } else { &self.sandbox.network.addresses };
        let sources = Sources { pod, objects: ctx.objects, node, pod_ips };
        let made = environment::variables(spec, &image.config, &sources).and_then(|env| {
            let argv = environment::argv(spec, &image.config, &sources)?;
            Ok((env, argv, environment::mounts(spec, &sources)?))
        });
        let (env, argv, mounts) = match made {
            Ok(made) => made,
            Err(EnvProblem::Awaited) => return,
            Err(EnvProblem::Config(why)) => {
                let is_news = container.waiting.as_ref().is_none_or(|(_, told)| *told != why);
                container.waiting = Some(("CreateContainerConfigError", why.clone()));
                if is_news {
                    self.announce_of(&spec.name, true, "Failed", format!("Error: {why}"), ctx.actions);
                }
                // an edit of an object may correct this
                self.watch_objects(pod, ctx);
                return;
            }
        };
        let ended = container.run.as_ref().and_then(|run| run.ended);
        // a further try to create the run is still the same restart
        if let Some(ended) = ended.filter(|_| container.create.failures() == 0) {
            container.restarts.restarted(ended, now);
        }
        let attempt = container.next_attempt;
        container.keep_end(&self.uid, &spec.name);
        container.command = Some(Doing::Create(attempt));
        // the next run checks or pulls it again
        container.image = None;
        let signals = [&spec.lifecycle.stop_signal, &image.config.stop_signal];
        let stop_signal = signals.into_iter().find(|signal| !signal.is_empty());
        let stop_signal = stop_signal.map_or("SIGTERM", String::as_str).to_owned();
        let order = ContainerOrder {
            key: self.key(&spec.name, attempt),
            namespace: self.namespace.clone(),
            pod_name: self.name.clone(),
            image_name: spec.image.clone(),
            argv,
            env,
            working_dir: if spec.working_dir.is_empty() {
                image.config.working_dir.clone()
            } else {
                spec.working_dir.clone()
            },
            mounts,
            resources: resources::of_container(spec),
            security: security::of(pod, spec, node),
            qos: resources::qos_class(&pod.spec),
            stop_signal,
            termination_message: spec.termination_message(),
            console: Console { stdin: spec.stdin, stdin_once: spec.stdin_once, tty: spec.tty },
            image,
        };
        ctx.actions.push(PodAction::CreateContainer(Box::new(order)));
    }

    fn pull(&mut self, pod: &Pod, spec: &Container, ctx: &mut Context<'_>) {
        Self::refresh_objects(pod, ctx.now.mono, ctx);
        let Some(credentials) = credentials(pod, ctx) else { return };
        let Some(container) = self.containers.get_mut(&spec.name) else { return };
        container.command = Some(Doing::Pull);
        container.pulling.clone_from(&spec.image);
        ctx.actions.push(PodAction::PullImage(Box::new(ImageOrder {
            pod: self.uid.clone(),
            container: spec.name.clone(),
            image: spec.image.clone(),
            policy: spec.pull_policy(),
            credentials,
        })));
    }

    /// The image is on the node.
    pub(crate) fn image_ready(&mut self, name: &str, image: Image, actions: &mut Vec<PodAction>) {
        let named = self.image_of(name);
        let Some(container) = self.containers.get_mut(name) else { return };
        if container.command != Some(Doing::Pull) {
            return;
        }
        container.command = None;
        self.is_dirty = true;
        if container.pulling != named {
            return;
        }
        container.pull.succeeded();
        let message = match image.pulled {
            Some((took, _)) => format!(
                "Successfully pulled image {named:?} in {}. Image size: {} bytes.",
                go_millis(took),
                image.size_bytes
            ),
            None => format!("Container image {named:?} already present on machine"),
        };
        container.image = Some((named, image));
        self.announce_of(name, false, "Pulled", message, actions);
    }
}

/// Reasons of rejections, for Events.
const REASONS: &[&str] = &[
    "AppArmor",
    kedge_api::NO_CONTAINER_RUNTIME,
    "NodeAffinity",
    "NodePorts",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodOSNotSupported",
    "SysctlForbidden",
    "UnexpectedAdmissionError",
];

/// The pull secrets' contents; `None` while one is being read for the first time. A missing secret is left
/// out, as upstream.
pub(crate) fn credentials(pod: &Pod, ctx: &Context<'_>) -> Option<Vec<Vec<u8>>> {
    let mut all = vec![];
    for secret in &pod.spec.image_pull_secrets {
        let name = ObjectName {
            kind: ObjectKind::Secret,
            namespace: pod.namespace.clone(),
            name: secret.name.clone(),
        };
        match ctx.objects.find(&name) {
            Found::Data(data) => {
                if let Some(config) = data.get(".dockerconfigjson") {
                    all.push(config.clone());
                } else if let Some(older) = data.get(".dockercfg") {
                    all.push([b"{\"auths\":", older.as_slice(), b"}"].concat());
                }
            }
            // the image may be on the node already
            Found::Awaited if !ctx.can_read || ctx.objects.is_out_of_reach(&name) => {}
            Found::Awaited => return None,
            Found::Missing(_) => {}
        }
    }
    Some(all)
}

/// Longest hostname of Linux: upstream cuts a pod's name to it.
const HOSTNAME_BYTES: usize = 63;

fn hostname(pod: &Pod) -> String {
    let own = &pod.spec.hostname;
    let name = if own.is_empty() { &pod.name } else { own };
    let cut = name.get(..HOSTNAME_BYTES).unwrap_or(name);
    cut.trim_end_matches(['-', '.']).to_owned()
}

fn wants_cluster_dns(pod: &Pod) -> bool {
    match pod.spec.dns_policy.as_str() {
        "" | "ClusterFirst" => !pod.spec.host_network,
        policy => policy == "ClusterFirstWithHostNet",
    }
}

/// Whole seconds in Go's format of a duration.
fn go_duration(secs: u64) -> String {
    match (secs / 60, secs % 60) {
        (0, secs) => format!("{secs}s"),
        (minutes, secs) => format!("{minutes}m{secs}s"),
    }
}

fn go_millis(took: std::time::Duration) -> String {
    if took.as_secs() == 0 {
        format!("{}ms", took.as_millis())
    } else {
        format!("{:.3}s", took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use crate::pods::PodAction;
    use crate::pods::event::{ObjectRead, PodEvent};
    use crate::pods::fixture::Node;
    use crate::pods::keys::ObjectName;
    use serde_json::{Value, json};

    fn pod(name: &str, kind: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "u", "controller": true}]},
            "spec": {"containers": [{"name": "a", "image": "x:1"}], "terminationGracePeriodSeconds": 5},
            "status": {"phase": "Pending"}})
    }

    /// As after `kubectl delete --force` of a pod that a client reported as failed: the next pod has another
    /// name.
    #[test]
    fn next_pod_of_a_daemon_set_waits_for_one_that_ends() {
        for (kind, is_forced, waits) in
            [("DaemonSet", true, true), ("DaemonSet", false, true), ("ReplicaSet", true, false)]
        {
            let mut node = Node::new();
            node.see(pod("d-a", kind));
            node.wait(2);
            assert!(node.runs("d-a"));
            node.is_deaf = true;
            if is_forced {
                node.tell(PodEvent::PodGone(pod("d-a", kind)));
            } else {
                let mut ending = pod("d-a", kind);
                ending["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
                ending["metadata"]["deletionGracePeriodSeconds"] = 5.into();
                node.see(ending);
            }
            node.see(pod("d-a-s", kind));
            node.wait(3);
            assert!(node.runs("d-a"), "it takes its time");
            assert_eq!(node.runs("d-a-s"), !waits, "{kind}, forced: {is_forced}");
            node.ends("d-a", "a", 137);
            node.wait(2);
            assert_eq!((node.runs("d-a"), node.runs("d-a-s")), (false, true), "{kind}, forced: {is_forced}");
        }
    }

    /// Under `maxSurge` the old pod keeps running until the new one is available.
    #[test]
    fn pod_starts_beside_one_of_its_set_that_goes_on() {
        let mut node = Node::new();
        for name in ["d-a", "d-a-s"] {
            node.see(pod(name, "DaemonSet"));
        }
        node.wait(2);
        assert_eq!((node.runs("d-a"), node.runs("d-a-s")), (true, true));
    }

    #[test]
    fn pod_whose_part_is_gone_is_prepared_again() {
        let mut node = Node::new();
        node.bind("p", json!({}));
        node.prepared.clear();
        node.ends("p", "a", 1);
        node.wait(30);
        assert!(node.runs("p"), "{:?}", node.news());
    }

    /// The records of the pod's network are lost, and it cannot have that network back: nothing runs in what
    /// is left of it.
    #[test]
    fn containers_end_with_their_pods_network() {
        let mut node = Node::new();
        node.bind("p", json!({"terminationGracePeriodSeconds": 5}));
        let lose = |node: &mut Node| node.prepared.values_mut().for_each(|found| found.network = None);
        lose(&mut node);
        node.start();
        assert!(node.runs("p"), "it was had back");
        lose(&mut node);
        node.fails_networks = true;
        node.start();
        node.wait(2);
        assert!(!node.runs("p"));
        node.wait(60);
        assert!(!node.runs("p"), "not before there is one");
        node.fails_networks = false;
        node.wait(400);
        assert!(node.runs("p"));
    }

    /// Runs a pod with eight copies of each of `maps` ConfigMaps of `bytes` bytes, over a link on which each
    /// read takes 5 s. Returns the seconds until `is_so`, of 400, and the reads.
    fn over_a_slow_line(maps: usize, bytes: usize, is_so: impl Fn(&Node) -> bool) -> (Option<u64>, usize) {
        let mut node = Node::new();
        let source = |number: usize| {
            let item = |copy: usize| json!({"key": "k", "path": format!("{number}-{copy}")});
            let items: Vec<Value> = (0..8).map(item).collect();
            json!({"configMap": {"name": format!("m-{number}"), "items": items}})
        };
        let sources: Vec<Value> = (0..maps).map(source).collect();
        node.bind("p", json!({"volumes": [{"name": "all", "projected": {"sources": sources}}]}));
        let text = "x".repeat(bytes);
        let (begun, mut seen, mut reads) = (node.secs, 0, std::collections::VecDeque::<ObjectName>::new());
        let mut count = 0;
        while node.secs < begun + 400 {
            for action in &node.seen[seen..] {
                if let PodAction::ReadObject(name) = action {
                    reads.push_back(name.clone());
                    count += 1;
                }
            }
            seen = node.seen.len();
            if is_so(&node) {
                return (Some(node.secs - begun), count);
            }
            node.wait(1);
            if node.secs.is_multiple_of(5)
                && let Some(name) = reads.pop_front()
            {
                let read = ObjectRead::Found(json!({"metadata": {}, "data": {"k": text}}));
                node.tell(PodEvent::ObjectRead { name, read });
            }
        }
        (None, count)
    }

    #[test]
    fn pod_starts_if_reading_takes_longer_than_a_copy_is_fresh() {
        let (secs, reads) = over_a_slow_line(30, 10, |node| node.runs("p"));
        assert!(secs.is_some_and(|secs| secs < 350), "{secs:?}, {reads} reads");
    }

    #[test]
    fn pod_with_too_many_bytes_says_so_once() {
        let said = |node: &Node| {
            let told = "FailedMount MountVolume.SetUp failed for volume \"all\" : the files of the pod's volumes are more than 16777216 bytes";
            node.news().iter().filter(|news| *news == told).count()
        };
        let (secs, reads) = over_a_slow_line(20, 1 << 17, |node| said(node) > 0);
        assert_eq!(secs, Some(99), "once all were read: {reads} reads");
        let (again, _) = over_a_slow_line(20, 1 << 17, |node| said(node) > 1);
        assert_eq!(again, None, "not again and again");
    }
}
