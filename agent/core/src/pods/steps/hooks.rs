//! Runs the hooks of a pod's containers (`hooks`).

use crate::answer::Level;
use crate::pods::event::{ContainerState, NodeFacts, PodAction};
use crate::pods::hooks::{Hooks, POST_START_LIMIT, PostStart, repeated, repetition};
use crate::pods::keys::ContainerKey;
use crate::pods::life::{ContainerLife, Context, Doing, Life};
use crate::pods::orders::{HookKind, HookNote, HookOrder};
use crate::pods::spec::{Container, Pod};
use crate::sorted::SortedMap;
use std::time::Duration;

impl ContainerLife {
    /// Notes that this agent has started a run.
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

    /// Whether the postStart hook of its run is absent or has succeeded.
    pub(crate) fn is_past_its_hook(&self) -> bool {
        self.post_start().is_none()
    }

    pub(crate) fn has_failed_hook(&self) -> bool {
        self.post_start() == Some(PostStart::Failed)
    }

    /// Whether containers behind it wait: as upstream, until it runs and its postStart hook has ended.
    pub(crate) fn holds_up(&self, spec: &Container) -> bool {
        let is_starting = matches!(self.command, Some(Doing::Pull | Doing::Create(_) | Doing::Start(_)));
        let has_hook = spec.lifecycle.post_start.is_some();
        let is_at_it = matches!(self.post_start(), Some(PostStart::Wanted | PostStart::UnderWay));
        has_hook && (is_starting || is_at_it)
    }

    /// The remainder of the grace period after a preStop hook.
    pub(crate) fn grace_after_hook(&self, attempt: u32, now: Duration) -> Option<Duration> {
        let (_, until) = self.hooks.pre_stopped.filter(|(stopped, _)| *stopped == attempt)?;
        Some(until.saturating_sub(now))
    }

    /// Whether another step waits for the end of this hook.
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
    /// Runs postStart hooks that are due, and stops waiting for preStop hooks whose time is over.
    pub(crate) fn see_to_hooks(&mut self, ctx: &mut Context<'_>) {
        let Some(pod) = self.pod.clone() else { return };
        let is_ending = self.ending.asked.is_some();
        for spec in pod.spec.all_containers() {
            let Some(container) = self.containers.get_mut(&spec.name) else { continue };
            if let (true, Some(kind)) = (self.api.is_some(), container.hooks.repeated.take()) {
                let (reason, message) = repetition(kind);
                self.announce_of(&spec.name, true, reason, message, ctx.actions);
            }
            let Some(container) = self.containers.get_mut(&spec.name) else { continue };
            if let Some(Doing::PreStop { attempt, until }) = container.command {
                // the grace period is over, so the signal no longer waits; noted, so that the next agent does
                // not either
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
            // a container that is about to stop runs no postStart hook any more
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

    /// Starts the preStop hook of a run that shall be stopped; returns whether the signal has to wait for it.
    pub(crate) fn begin_pre_stop(
        &mut self,
        name: &str,
        grace: Duration,
        message: &str,
        ctx: &mut Context<'_>,
    ) -> bool {
        // as upstream: without a grace period no hook runs
        let has_time = self.ending.asked.as_ref().is_none_or(|end| !end.grace.is_zero()) && !grace.is_zero();
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

    /// Takes the result of a hook.
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
            // a failed hook is run again by an agent that has no note of it
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
        // as upstream: the output of a hook may be secret, so Events never contain it
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

    /// A hook was stopped to make room for others, and waits for its next turn.
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
        // this may happen again every few minutes
        if std::mem::replace(&mut container.hooks.made_room, true) {
            return;
        }
        let message = format!("the {} hook made room for those of other pods: it is run again", kind.word());
        self.announce_of(&key.container, true, repeated(kind), message, actions);
    }

    /// The agent found this run at its start; takes the last agent's note of its hooks.
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
            // the earlier stop was never carried out, so a new stop runs the hook again
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

    /// The address at which probes and hooks reach the pod: as upstream, the node's address if the pod is on
    /// the machine's network.
    pub(crate) fn address(&self, pod: &Pod, node: Option<&NodeFacts>) -> String {
        let of_node = || node.and_then(|node| node.addresses.first());
        let address = if pod.spec.host_network { of_node() } else { self.sandbox.network.addresses.first() };
        address.cloned().unwrap_or_default()
    }
}
