//! Hooks of containers: what runs after a start and before a stop, and what waits for it.
//!
//! Always holds: postStart runs for each run that starts, and until it has ended the container has not started and those behind it
//! wait; preStop runs for each stop, within the grace, and the signal follows when it has ended or the grace is over. Each runs once,
//! but again, with an Event, when no agent saw its end, or it made room for others: never is worse than twice, and upstream promises
//! no more. Leaves to others: when there is a place for it (`places`), running it (`HookOrder`), ending what a killed agent had begun.

use crate::answer::Level;
use crate::pods::event::{ContainerKey, ContainerState, NodeFacts, PodAction};
use crate::pods::life::{ContainerLife, Context, Doing, Life};
use crate::pods::probes::Check;
use crate::pods::probes::spec::{Exec, HttpGet};
use crate::pods::spec::{Container, Pod};
use crate::sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a postStart hook may take. Upstream waits for ever, and nobody hears that the container never starts.
const POST_START_LIMIT: Duration = Duration::from_secs(3600);

/// `v1.Lifecycle`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Lifecycle {
    pub(crate) post_start: Option<Hook>,
    pub(crate) pre_stop: Option<Hook>,
    pub(crate) stop_signal: String,
}

/// `v1.LifecycleHandler`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Hook {
    exec: Option<Exec>,
    http_get: Option<HttpGet>,
    sleep: Option<Sleep>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct Sleep {
    seconds: u32,
}

/// The two hooks of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookKind {
    PostStart,
    PreStop,
}

impl HookKind {
    fn word(self) -> &'static str {
        match self {
            Self::PostStart => "postStart",
            Self::PreStop => "preStop",
        }
    }
}

/// A hook to be run once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOrder {
    pub container: ContainerKey,
    pub kind: HookKind,
    pub act: HookAct,
    /// From now on; what takes longer has failed.
    pub timeout: Duration,
}

/// What a hook does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookAct {
    /// A program succeeds with code 0, a request with any answer.
    Run(Check),
    Sleep(Duration),
}

impl Hook {
    fn complaint(&self) -> Option<String> {
        let given = [self.exec.is_some(), self.http_get.is_some(), self.sleep.is_some()];
        let given = given.into_iter().filter(|is_given| *is_given).count();
        if given != 1 {
            return Some(format!(" has {given} handlers, expected one of exec, httpGet, sleep"));
        }
        if self.exec.as_ref().is_some_and(|exec| exec.command.is_empty()) {
            return Some(".exec.command is empty".into());
        }
        self.http_get.as_ref().and_then(HttpGet::complaint)
    }

    fn act(&self, container: &Container, pod_ip: &str) -> Result<HookAct, String> {
        match self {
            Self { exec: Some(exec), .. } => Ok(HookAct::Run(exec.check(container))),
            Self { http_get: Some(http), .. } => http.check(container, pod_ip).map(HookAct::Run),
            Self { sleep: Some(sleep), .. } => Ok(HookAct::Sleep(Duration::from_secs(sleep.seconds.into()))),
            _ => Err("it has no handler".into()),
        }
    }
}

/// Reason and message of an Event.
fn repetition(kind: HookKind) -> (&'static str, String) {
    let word = kind.word();
    (repeated(kind), format!("the end of the {word} hook was not seen by the agent before: it is run again"))
}

fn repeated(kind: HookKind) -> &'static str {
    match kind {
        HookKind::PostStart => "PostStartHookRepeated",
        HookKind::PreStop => "PreStopHookRepeated",
    }
}

impl Container {
    fn hook(&self, kind: HookKind) -> Option<&Hook> {
        match kind {
            HookKind::PostStart => self.lifecycle.post_start.as_ref(),
            HookKind::PreStop => self.lifecycle.pre_stop.as_ref(),
        }
    }

    /// What is wrong with its hooks; `is_init`: it runs to its end before others begin.
    pub(crate) fn complaint_about_hooks(&self, is_init: bool) -> Option<String> {
        [HookKind::PostStart, HookKind::PreStop].into_iter().find_map(|kind| {
            let field = format!("container {}: lifecycle.{}", self.name, kind.word());
            let hook = self.hook(kind)?;
            if is_init {
                return Some(format!("{field} is given, but an init container has no hooks"));
            }
            hook.complaint().map(|why| format!("{field}{why}"))
        })
    }
}

/// How far the hooks of a run are, as the next agent has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookNote {
    /// postStart is due, or under way; or it has failed, for which the container is to be stopped.
    PostStart,
    /// postStart has ended well.
    Started,
    /// preStop is under way.
    PreStop,
    /// preStop has ended; the run is to end within this time of the machine's monotonic clock.
    PreStopped { until: Duration },
}

/// How far the postStart hook of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PostStart {
    Wanted,
    UnderWay,
    Failed,
}

/// The hooks of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    /// Of which run; None: it has none, or it has ended well.
    post_start: Option<(u32, PostStart)>,
    /// The run whose preStop hook has ended, and when its grace is over.
    pre_stopped: Option<(u32, Duration)>,
    /// What an earlier agent noted of a run.
    found: Option<(u32, HookNote)>,
    /// One was stopped for others, and an Event says so.
    made_room: bool,
    /// A hook that is run again, and whose Event waits for the pod's object.
    repeated: Option<HookKind>,
}

impl ContainerLife {
    /// This agent has started a run.
    pub(crate) fn started(&mut self, attempt: u32, has_hook: bool) {
        let post_start = has_hook.then_some((attempt, PostStart::Wanted));
        self.hooks = Hooks { post_start, ..Hooks::default() };
    }

    fn found_hook(&self, attempt: u32) -> Option<HookNote> {
        self.hooks.found.filter(|(found, _)| *found == attempt).map(|(_, note)| note)
    }

    fn post_start(&self) -> Option<PostStart> {
        let run = self.run.as_ref().filter(|run| run.is_live())?;
        self.hooks.post_start.filter(|(attempt, _)| *attempt == run.attempt).map(|(_, state)| state)
    }

    /// No postStart hook of its run is wanted, under way, or has failed.
    pub(crate) fn is_past_its_hook(&self) -> bool {
        self.post_start().is_none()
    }

    pub(crate) fn has_failed_hook(&self) -> bool {
        self.post_start() == Some(PostStart::Failed)
    }

    /// Whether containers behind it wait, as upstream, until it runs and its postStart hook has ended.
    pub(crate) fn holds_up(&self, spec: &Container) -> bool {
        let is_starting = matches!(self.command, Some(Doing::Pull | Doing::Create(_) | Doing::Start(_)));
        let has_hook = spec.lifecycle.post_start.is_some();
        let is_at_it = matches!(self.post_start(), Some(PostStart::Wanted | PostStart::UnderWay));
        has_hook && (is_starting || is_at_it)
    }

    /// What is left of the grace after a preStop hook.
    pub(crate) fn grace_after_hook(&self, attempt: u32, now: Duration) -> Option<Duration> {
        let (_, until) = self.hooks.pre_stopped.filter(|(stopped, _)| *stopped == attempt)?;
        Some(until.saturating_sub(now))
    }

    /// Whether the end of this hook is waited for.
    pub(crate) fn awaits_hook(&self, of: u32, kind: HookKind) -> bool {
        match kind {
            HookKind::PostStart => self.hooks.post_start == Some((of, PostStart::UnderWay)),
            HookKind::PreStop => {
                matches!(self.command, Some(Doing::PreStop { attempt, .. }) if attempt == of)
            }
        }
    }

    fn end_pre_stop(&mut self) {
        if let Some(Doing::PreStop { attempt, until }) = self.command {
            self.command = None;
            self.hooks.pre_stopped = Some((attempt, until));
        }
    }
}

impl Life {
    /// Runs postStart hooks that are due, and ends waiting for preStop hooks whose time is over.
    pub(crate) fn see_to_hooks(&mut self, ctx: &mut Context<'_>) {
        let Some(pod) = self.pod.clone() else { return };
        let is_ending = self.end.is_some();
        for spec in pod.spec.all_containers() {
            let Some(container) = self.containers.get_mut(&spec.name) else { continue };
            if let (true, Some(kind)) = (self.api.is_some(), container.hooks.repeated.take()) {
                let (reason, message) = repetition(kind);
                self.announce_of(&spec.name, true, reason, message, ctx.actions);
            }
            let Some(container) = self.containers.get_mut(&spec.name) else { continue };
            if let Some(Doing::PreStop { attempt, until }) = container.command {
                if until <= ctx.now.mono {
                    let key = self.key(&spec.name, attempt);
                    let note = HookNote::PreStopped { until };
                    ctx.actions.push(PodAction::NoteHook { container: key, note });
                    if let Some(container) = self.containers.get_mut(&spec.name) {
                        container.end_pre_stop();
                    }
                } else {
                    self.wake_at(until);
                }
                continue;
            }
            if container.post_start() != Some(PostStart::Wanted) {
                continue;
            }
            let attempt = container.run.as_ref().map_or(0, |run| run.attempt);
            let Some(hook) = spec.hook(HookKind::PostStart).filter(|_| !is_ending) else {
                container.hooks.post_start = None;
                continue;
            };
            container.hooks.post_start = Some((attempt, PostStart::UnderWay));
            let is_again = container.found_hook(attempt) == Some(HookNote::PostStart);
            let key = self.key(&spec.name, attempt);
            if is_again {
                self.announce_repetition(&spec.name, HookKind::PostStart, ctx.actions);
            }
            let act = hook.act(spec, &self.address(&pod, ctx.node));
            let (kind, timeout) = (HookKind::PostStart, POST_START_LIMIT);
            match act {
                Ok(act) => {
                    let order = HookOrder { container: key, kind, act, timeout };
                    ctx.actions.push(PodAction::RunHook(Box::new(order)));
                }
                Err(why) => self.hook_ended(&key, kind, &Err(why), ctx.actions),
            }
        }
    }

    /// Begins the preStop hook of a run that is to be stopped; true: the signal waits for it.
    pub(crate) fn begin_pre_stop(
        &mut self,
        name: &str,
        grace: Duration,
        message: &str,
        ctx: &mut Context<'_>,
    ) -> bool {
        // as upstream: no time, no hook
        let has_time = self.end.as_ref().is_none_or(|end| !end.grace.is_zero()) && !grace.is_zero();
        let Some(pod) = self.pod.clone().filter(|_| has_time) else { return false };
        let Some(spec) = pod.spec.all_containers().find(|spec| spec.name == name) else { return false };
        let (Some(hook), Some(container)) = (spec.hook(HookKind::PreStop), self.containers.get(name)) else {
            return false;
        };
        let Some(run) = &container.run else { return false };
        let (attempt, until) = (run.attempt, ctx.now.mono.saturating_add(grace));
        let is_running = matches!(run.state, ContainerState::Running { .. });
        let has_run = container.grace_after_hook(attempt, ctx.now.mono).is_some();
        let found = container.found_hook(attempt);
        if !is_running || has_run || container.command.is_some() {
            return false;
        }
        let act = hook.act(spec, &self.address(&pod, ctx.node));
        let key = self.key(name, attempt);
        if let Some(container) = self.containers.get_mut(name) {
            container.command = Some(Doing::PreStop { attempt, until });
        }
        self.announce_of(name, false, "Killing", message.to_owned(), ctx.actions);
        if found == Some(HookNote::PreStop) {
            self.announce_repetition(name, HookKind::PreStop, ctx.actions);
        }
        match act {
            Ok(act) => {
                ctx.actions.push(PodAction::NoteHook { container: key.clone(), note: HookNote::PreStop });
                let order = HookOrder { container: key, kind: HookKind::PreStop, act, timeout: grace };
                ctx.actions.push(PodAction::RunHook(Box::new(order)));
                self.wake_at(until);
            }
            Err(why) => self.hook_ended(&key, HookKind::PreStop, &Err(why), ctx.actions),
        }
        true
    }

    /// A hook has been run.
    pub(crate) fn hook_ended(
        &mut self,
        key: &ContainerKey,
        kind: HookKind,
        done: &Result<(), String>,
        actions: &mut Vec<PodAction>,
    ) {
        let Some(container) = self.containers.get_mut(&key.container) else { return };
        if !container.awaits_hook(key.attempt, kind) {
            return;
        }
        self.is_dirty = true;
        let note = match (kind, container.command) {
            // a failed one is run again by an agent that does not know of it
            (HookKind::PostStart, _) => done.is_ok().then_some(HookNote::Started),
            (_, Some(Doing::PreStop { until, .. })) => Some(HookNote::PreStopped { until }),
            _ => None,
        };
        actions.extend(note.map(|note| PodAction::NoteHook { container: key.clone(), note }));
        match kind {
            HookKind::PostStart => {
                let failed = done.is_err().then_some((key.attempt, PostStart::Failed));
                container.hooks.post_start = failed;
            }
            HookKind::PreStop => container.end_pre_stop(),
        }
        let Err(why) = done else { return };
        // as upstream: what a hook wrote may be secret, so no Event has it
        let (reason, message) = match kind {
            HookKind::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
            HookKind::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
        };
        self.announce_of(&key.container, true, reason, message.into(), actions);
        let (namespace, name, container, word) = (&self.namespace, &self.name, &key.container, kind.word());
        let why = kedge_api::excerpt_of(why, 1000);
        let text = format!("pod {namespace}/{name}: the {word} hook of container {container} failed: {why}");
        actions.push(PodAction::Log(Level::Warn, text));
    }

    /// A hook was stopped for others, and waits for its next turn.
    pub(crate) fn hook_made_room(
        &mut self,
        key: &ContainerKey,
        kind: HookKind,
        actions: &mut Vec<PodAction>,
    ) {
        let container = self.containers.get_mut(&key.container);
        let Some(container) = container.filter(|container| container.awaits_hook(key.attempt, kind)) else {
            return;
        };
        // it may come again each few minutes
        if std::mem::replace(&mut container.hooks.made_room, true) {
            return;
        }
        let message = format!("the {} hook made room for those of other pods: it is run again", kind.word());
        self.announce_of(&key.container, true, repeated(kind), message, actions);
    }

    /// The agent found this run at its start, with what the last one noted of its hooks.
    pub(crate) fn adopt_hooks(
        &mut self,
        now: Duration,
        key: &ContainerKey,
        noted: &SortedMap<ContainerKey, HookNote>,
    ) {
        let (Some(container), Some(note)) = (self.containers.get_mut(&key.container), noted.get(key)) else {
            return;
        };
        let hooks = &mut container.hooks;
        match *note {
            HookNote::PostStart => hooks.post_start = Some((key.attempt, PostStart::Wanted)),
            // it was to be stopped, and was not: another stop is another matter
            HookNote::PreStopped { until } if until > now => hooks.pre_stopped = Some((key.attempt, until)),
            HookNote::PreStopped { .. } | HookNote::Started | HookNote::PreStop => {}
        }
        hooks.found = Some((key.attempt, *note));
    }

    fn announce_repetition(&mut self, name: &str, kind: HookKind, actions: &mut Vec<PodAction>) {
        let (reason, message) = repetition(kind);
        let text = format!("pod {}/{}, container {name}: {message}", self.namespace, self.name);
        actions.push(PodAction::Log(Level::Warn, text));
        if self.api.is_some() {
            self.announce_of(name, true, reason, message, actions);
        } else if let Some(container) = self.containers.get_mut(name) {
            container.hooks.repeated = Some(kind);
        }
    }

    /// Where probes and hooks reach the pod: as upstream, on the machine's network at the node's address.
    pub(crate) fn address(&self, pod: &Pod, node: Option<&NodeFacts>) -> String {
        let of_node = || node.and_then(|node| node.addresses.first());
        let address = if pod.spec.host_network { of_node() } else { self.network.addresses.first() };
        address.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::probes::tests::{Node, news, orders};
    use crate::pods::{Inventory, PodEvent, StaticFile};

    const POST_START: &str = "lifecycle: {postStart: {exec: {command: [/warm]}}}";
    const PRE_STOP: &str = "lifecycle: {preStop: {httpGet: {port: 80, path: /bye}}}";

    fn hooks(actions: &[PodAction]) -> Vec<&HookOrder> {
        fn hook(action: &PodAction) -> Option<&HookOrder> {
            let PodAction::RunHook(order) = action else { return None };
            Some(order)
        }
        actions.iter().filter_map(hook).collect()
    }

    fn stops(actions: &[PodAction]) -> Vec<Duration> {
        let grace = |action: &PodAction| match action {
            PodAction::StopContainer { grace, .. } => Some(*grace),
            _ => None,
        };
        actions.iter().filter_map(grace).collect()
    }

    fn ended(node: &mut Node, kind: HookKind, done: Result<(), String>) -> Vec<PodAction> {
        let container = ContainerKey { pod: node.uid(), container: "a".into(), attempt: 0 };
        node.tell(PodEvent::HookEnded { container, kind, done })
    }

    /// The pod's file is removed: it ends, with 30 seconds of grace.
    fn end(node: &mut Node) -> Vec<PodAction> {
        node.tell(PodEvent::StaticPods(Ok(Vec::<StaticFile>::new())))
    }

    #[test]
    fn container_has_started_once_its_hook_has_ended() {
        let mut node = Node::new(&format!("{POST_START}, readinessProbe: {{tcpSocket: {{port: 1}}}}"));
        let seen = std::mem::take(&mut node.seen);
        let [hook] = hooks(&seen)[..] else { panic!("{seen:?}") };
        let command = vec!["/warm".to_owned()];
        assert_eq!(hook.act, HookAct::Run(Check::Exec { command }));
        assert!(orders(&seen).is_empty(), "it is not probed yet");
        let actions = ended(&mut node, HookKind::PostStart, Ok(()));
        assert_eq!(orders(&actions).len(), 1);
        assert!(ended(&mut node, HookKind::PostStart, Err("late".into())).is_empty());
    }

    #[test]
    fn container_whose_hook_fails_is_stopped() {
        let mut node = Node::new(POST_START);
        node.mirror();
        let actions = ended(&mut node, HookKind::PostStart, Err("secret".into()));
        assert_eq!(
            news(&actions),
            ["FailedPostStartHook PostStartHook failed", "Killing FailedPostStartHook"]
        );
        assert_eq!(stops(&actions), [Duration::from_secs(30)]);
    }

    #[test]
    fn container_behind_a_hook_waits() {
        let mut node = Node::new(&format!("{POST_START}}}\n  - {{name: b, image: 'x:1'"));
        assert_eq!(node.pods.report()[0].containers[1].state, "Waiting");
        let actions = ended(&mut node, HookKind::PostStart, Ok(()));
        node.perform(actions);
        assert_eq!(node.pods.report()[0].containers[1].state, "Running");
    }

    #[test]
    fn signal_waits_for_the_hook_within_the_grace() {
        // seconds that the hook takes, then the grace that is left
        for (takes, left) in [(0, 30), (10, 20), (29, 2)] {
            let mut node = Node::new(PRE_STOP);
            let actions = end(&mut node);
            let [hook] = hooks(&actions)[..] else { panic!("{actions:?}") };
            assert_eq!((hook.kind, hook.timeout), (HookKind::PreStop, Duration::from_secs(30)));
            assert!(stops(&actions).is_empty());
            node.secs += takes;
            assert!(stops(&node.tell(PodEvent::Tick)).is_empty(), "it has not ended");
            let actions = ended(&mut node, HookKind::PreStop, Ok(()));
            assert_eq!(stops(&actions), [Duration::from_secs(left)], "after {takes} s");
            assert!(hooks(&actions).is_empty(), "once");
        }
    }

    /// The hooks of a run that a new agent finds, ten seconds later, with what the last one noted.
    fn after_a_kill(fields: &str, note: HookNote) -> Node {
        let mut node =
            Node::found(fields, 11, |key| Inventory { hooks: [(key, note)].into(), ..Inventory::default() });
        node.mirror();
        node
    }

    fn notes(actions: &[PodAction]) -> Vec<HookNote> {
        let note = |action: &PodAction| match action {
            PodAction::NoteHook { note, .. } => Some(*note),
            _ => None,
        };
        actions.iter().filter_map(note).collect()
    }

    #[test]
    fn hook_whose_end_nobody_saw_is_run_again() {
        let mut node = after_a_kill(POST_START, HookNote::PostStart);
        let seen = std::mem::take(&mut node.seen);
        assert_eq!(hooks(&seen).len(), 1, "{seen:?}");
        let said = "pod default/p-edge, container a: the end of the postStart hook was not seen by the agent before: it is run again";
        assert!(seen.contains(&PodAction::Log(Level::Warn, said.into())), "{seen:?}");
        assert_eq!(node.pods.report()[0].containers[0].state, "Running");
        assert_eq!(notes(&ended(&mut node, HookKind::PostStart, Ok(()))), [HookNote::Started]);

        let mut node = after_a_kill(PRE_STOP, HookNote::PreStop);
        assert!(hooks(&node.seen).is_empty(), "it is not to stop yet");
        let actions = end(&mut node);
        assert_eq!((hooks(&actions).len(), stops(&actions).len()), (1, 0));
        assert!(
            news(&actions).iter().any(|news| news.starts_with("PreStopHookRepeated ")),
            "{:?}",
            news(&actions)
        );
    }

    #[test]
    fn hook_that_has_ended_is_not_run_by_the_next_agent() {
        let mut node = after_a_kill(POST_START, HookNote::Started);
        assert!(hooks(&node.seen).is_empty(), "{:?}", node.seen);
        assert!(hooks(&end(&mut node)).is_empty());

        let mut node = after_a_kill(PRE_STOP, HookNote::PreStopped { until: Duration::from_secs(20) });
        let actions = end(&mut node);
        assert_eq!(
            (hooks(&actions).len(), stops(&actions)),
            (0, vec![Duration::from_secs(9)]),
            "what is left"
        );
        // it was not stopped then: this is another stop
        let mut node = after_a_kill(PRE_STOP, HookNote::PreStopped { until: Duration::from_secs(5) });
        let actions = end(&mut node);
        assert_eq!((hooks(&actions).len(), stops(&actions).len()), (1, 0));
        assert!(!news(&actions).iter().any(|news| news.contains("Repeated")), "{:?}", news(&actions));
    }

    #[test]
    fn hook_is_noted_before_it_can_begin() {
        let node = Node::new(POST_START);
        let order = node
            .seen
            .iter()
            .filter(|action| matches!(action, PodAction::NoteHook { .. } | PodAction::RunHook(_)));
        let order: Vec<_> = order.map(|action| matches!(action, PodAction::NoteHook { .. })).collect();
        assert_eq!((notes(&node.seen), order), (vec![HookNote::PostStart], vec![true, false]));
        let mut node = Node::new(PRE_STOP);
        let actions = end(&mut node);
        assert_eq!(notes(&actions), [HookNote::PreStop]);
        node.secs += 3;
        let actions = ended(&mut node, HookKind::PreStop, Ok(()));
        assert_eq!(notes(&actions), [HookNote::PreStopped { until: Duration::from_secs(31) }]);
    }

    #[test]
    fn hook_that_hangs_ends_with_the_grace() {
        let mut node = Node::new(PRE_STOP);
        let begun = node.secs;
        end(&mut node);
        let due = node.pods.next_deadline().expect("the end of the grace");
        assert_eq!(due, Duration::from_secs(begun + 30));
        node.secs += 30;
        assert_eq!(stops(&node.tell(PodEvent::Tick)), [Duration::from_secs(2)]);
        assert!(ended(&mut node, HookKind::PreStop, Err("late".into())).is_empty());
    }

    #[test]
    fn hook_that_cannot_be_run_holds_nothing_up() {
        let mut node = Node::new("lifecycle: {preStop: {httpGet: {port: none}}}");
        node.mirror();
        let actions = end(&mut node);
        assert_eq!(
            news(&actions)[..2],
            ["Killing Stopping container a", "FailedPreStopHook PreStopHook failed"]
        );
        assert_eq!(stops(&actions), [Duration::from_secs(30)]);
    }

    #[test]
    fn hook_that_cannot_be_read_is_refused_with_its_field() {
        let complaint = |lifecycle: serde_json::Value, is_init| {
            let container = serde_json::json!({"name": "a", "lifecycle": lifecycle});
            let container: Container = serde_json::from_value(container).expect("it is a container");
            container.complaint_about_hooks(is_init).unwrap_or_default()
        };
        let sleep = || serde_json::json!({"preStop": {"sleep": {"seconds": 1}}});
        assert_eq!(complaint(sleep(), false), "");
        assert!(complaint(sleep(), true).contains("lifecycle.preStop is given, but an init container"));
        let none = complaint(serde_json::json!({"postStart": {}}), false);
        assert!(none.contains("lifecycle.postStart has 0 handlers"), "{none}");
    }
}
