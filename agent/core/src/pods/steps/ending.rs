//! The steps by which a pod goes down: its containers stop in their order, then their remains are removed,
//! and the pod's own part last.
//!
//! Always holds: sidecars stop after all other containers, the last one first; a container gets the remainder
//! of the pod's grace period, at least two seconds; no part of a pod is removed while one of its containers
//! may run, nor before the API server accepted its final status if there is one to report; the end of a
//! static pod waits for no API server. Leaves to others: performing the steps.

use crate::pods::event::PodAction;
use crate::pods::keys::ContainerKey;
use crate::pods::life::{ContainerLife, Context, Doing, Life, SandboxState, Swept, Verdict};
use std::time::Duration;

/// The shortest time between the signal and KILL: kubelet's `minimumGracePeriodInSeconds`.
const LEAST_GRACE: Duration = Duration::from_secs(2);

impl Life {
    /// Gives the next steps of a pod that ends or has finished.
    pub(crate) fn go_down(&mut self, ctx: &mut Context<'_>) {
        if matches!(self.admission.verdict, Verdict::Rejected(_)) && self.ending.asked.is_none() {
            return;
        }
        // the end must be on disk first: an agent that is killed meanwhile has to continue with the same end
        if self.ending.asked.is_none() && !self.is_failure_settled() {
            return;
        }
        self.stop_containers(ctx);
        if !self.is_down() {
            return;
        }
        // the containers' remains are the evidence, so they stay until the end is reported or their results
        // are recorded
        let is_known = match (&self.ending.asked, &self.ending.failed) {
            (Some(_), _) => self.is_end_reported(),
            (None, Some(_)) => self.is_failure_settled(),
            (None, None) => self.is_recorded(),
        };
        if !is_known {
            return;
        }
        let names: Vec<String> = self.containers.keys().cloned().collect();
        for name in names {
            self.remove_all(&name, ctx);
        }
        if !self.containers.values().any(|container| container.has_rest()) {
            self.sweep(ctx);
        }
    }

    pub(crate) fn stop_containers(&mut self, ctx: &mut Context<'_>) {
        let grace = self.grace_left(ctx.now.mono);
        let sidecars: Vec<String> = self.sidecars();
        let live: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| container.is_live())
            .map(|(name, _)| name.clone())
            .collect();
        let (last, first): (Vec<String>, Vec<String>) =
            live.into_iter().partition(|name| sidecars.contains(name));
        let main_is_left = !first.is_empty() || self.has_start_under_way(&sidecars);
        for name in first {
            self.stop_any(&name, grace, ctx);
        }
        if main_is_left && grace > LEAST_GRACE {
            // as upstream: their `preStop` hooks run together with those of the other containers
            for name in &last {
                self.begin_pre_stop(name, grace, &format!("Stopping container {name}"), ctx);
            }
            if !last.is_empty() {
                // main containers that stop late must not make the sidecars exceed the grace period
                let end_of_grace = ctx.now.mono.saturating_add(grace).saturating_sub(LEAST_GRACE);
                self.wake_at(end_of_grace);
            }
            return;
        }
        // in reverse order, one by one while there is time
        let order = sidecars.iter().rev().filter(|name| last.contains(name)).cloned();
        let at_once = if grace > LEAST_GRACE { 1 } else { last.len() };
        for name in order.take(at_once).collect::<Vec<_>>() {
            self.stop_any(&name, grace, ctx);
        }
    }

    fn sidecars(&self) -> Vec<String> {
        let inits = self.pod.iter().flat_map(|pod| &pod.spec.init_containers);
        inits.filter(|spec| spec.is_sidecar()).map(|spec| spec.name.clone()).collect()
    }

    /// Whether a main container is being created or started: it will have to be stopped before the sidecars.
    fn has_start_under_way(&self, sidecars: &[String]) -> bool {
        let mut main = self.containers.iter().filter(|(name, _)| !sidecars.contains(name));
        main.any(|(_, container)| matches!(container.command, Some(Doing::Create(_) | Doing::Start(_))))
    }

    fn grace_left(&self, now: Duration) -> Duration {
        let of_end =
            self.ending.asked.as_ref().map(|end| end.grace.saturating_sub(now.saturating_sub(end.since)));
        let of_failure = self.ending.failed.as_ref().map(|failed| failed.grace_left(now));
        let of_shutdown =
            self.ending.shutdown.as_ref().map(|end| end.grace.saturating_sub(now.saturating_sub(end.since)));
        let left = of_end.into_iter().chain(of_failure).chain(of_shutdown).min();
        left.unwrap_or_else(|| self.own_grace()).max(LEAST_GRACE)
    }

    fn stop_any(&mut self, name: &str, grace: Duration, ctx: &mut Context<'_>) {
        let container = self.containers.get(name);
        if container.is_some_and(|container| container.older.values().any(|is_live| *is_live)) {
            self.stop_older(name, ctx);
        } else {
            self.stop(name, grace, format!("Stopping container {name}"), ctx);
        }
    }

    /// Stops the latest run; if a stop is already under way, repeats it only with a shorter grace period.
    pub(crate) fn stop(&mut self, name: &str, grace: Duration, message: String, ctx: &mut Context<'_>) {
        let now = ctx.now.mono;
        let uid = self.uid.clone();
        let Some(container) = self.containers.get_mut(name) else { return };
        let Some(attempt) = container.run.as_ref().filter(|run| run.is_live()).map(|run| run.attempt) else {
            return;
        };
        let kill_at = now.saturating_add(grace);
        match container.command {
            None => {}
            // a difference of a second does not justify another command
            Some(Doing::Stop { kill_at: before, .. })
                if kill_at.saturating_add(Duration::from_secs(1)) < before => {}
            Some(Doing::PreStop { attempt, until }) => {
                container.command = Some(Doing::PreStop { attempt, until: until.min(kill_at) });
                self.wake_at(kill_at);
                return;
            }
            Some(_) => return,
        }
        let is_first = container.command.is_none();
        if is_first && !container.cleaning.is_due(now) {
            let due = container.cleaning.due();
            self.wake_at(due);
            return;
        }
        let after_hook = container.grace_after_hook(attempt, now).map(|left| left.max(LEAST_GRACE));
        if is_first && self.begin_pre_stop(name, grace, &message, ctx) {
            return;
        }
        let Some(container) = self.containers.get_mut(name) else { return };
        let grace = after_hook.map_or(grace, |left| left.min(grace));
        let kill_at = now.saturating_add(grace);
        container.command = Some(Doing::Stop { attempt, kill_at });
        let container = ContainerKey { pod: uid, container: name.to_owned(), attempt };
        if is_first && after_hook.is_none() {
            self.announce_of(name, false, "Killing", message, ctx.actions);
        }
        ctx.actions.push(PodAction::StopContainer { container, signal: None, grace });
    }

    /// Stops a run that was replaced by a later one.
    pub(crate) fn stop_older(&mut self, name: &str, ctx: &mut Context<'_>) {
        let now = ctx.now.mono;
        let uid = self.uid.clone();
        let Some(container) = self.containers.get_mut(name) else { return };
        let live = container.older.iter().find(|(_, is_live)| **is_live).map(|(attempt, _)| *attempt);
        let (Some(attempt), None) = (live, container.command) else { return };
        if !container.cleaning.is_due(now) {
            let due = container.cleaning.due();
            self.wake_at(due);
            return;
        }
        container.command = Some(Doing::Stop { attempt, kill_at: now.saturating_add(LEAST_GRACE) });
        let container = ContainerKey { pod: uid, container: name.to_owned(), attempt };
        ctx.actions.push(PodAction::StopContainer { container, signal: None, grace: LEAST_GRACE });
    }

    /// Removes one earlier run, unless another command is under way.
    pub(crate) fn remove_older(&mut self, name: &str, ctx: &mut Context<'_>) {
        let Some(container) = self.containers.get(name) else { return };
        let dead = container.older.iter().find(|(_, is_live)| !**is_live).map(|(attempt, _)| *attempt);
        if let Some(attempt) = dead {
            self.remove_run(name, attempt, ctx);
        }
    }

    pub(crate) fn remove_run(&mut self, name: &str, attempt: u32, ctx: &mut Context<'_>) {
        let key = self.key(name, attempt);
        let Some(container) = self.containers.get_mut(name) else { return };
        if container.command.is_some_and(|doing| doing != Doing::Pull) {
            return;
        }
        if !container.cleaning.is_due(ctx.now.mono) {
            let due = container.cleaning.due();
            self.wake_at(due);
            return;
        }
        container.command = Some(Doing::Remove(attempt));
        ctx.actions.push(PodAction::RemoveContainer(key));
    }

    fn remove_all(&mut self, name: &str, ctx: &mut Context<'_>) {
        self.remove_older(name, ctx);
        let Some(container) = self.containers.get(name) else { return };
        let left = container.run.as_ref().filter(|run| !run.is_removed && !run.is_live());
        if let Some(attempt) = left.map(|run| run.attempt) {
            self.remove_run(name, attempt, ctx);
        }
    }

    /// Removes the pod's own part; also its logs if the pod ends or the disk is short.
    fn sweep(&mut self, ctx: &mut Context<'_>) {
        let gives_up_logs = self.ending.asked.is_some() || self.sandbox.gives_up_logs;
        let goal = if gives_up_logs { Swept::All } else { Swept::KeptLogs };
        if matches!(self.sandbox.state, SandboxState::Preparing | SandboxState::Removing { .. })
            || self.sandbox.swept == goal
            || self.sandbox.swept == Swept::All
        {
            return;
        }
        if !self.sandbox.retry.is_due(ctx.now.mono) {
            self.wake_at(self.sandbox.retry.due());
            return;
        }
        let keep_logs = goal == Swept::KeptLogs;
        self.sandbox.state = SandboxState::Removing { keep_logs };
        ctx.actions.push(PodAction::RemovePod { pod: self.uid.clone(), keep_logs });
    }

    /// Notes that the pod's own part was removed.
    pub(crate) fn removed(&mut self) {
        self.is_dirty = true;
        let kept_logs = self.sandbox.state == SandboxState::Removing { keep_logs: true };
        self.sandbox.swept = if kept_logs { Swept::KeptLogs } else { Swept::All };
        self.sandbox.state = SandboxState::Absent;
        self.sandbox.retry.succeeded();
    }

    /// Whether the pod is over and none of its containers runs or is about to run.
    pub(crate) fn is_down(&self) -> bool {
        self.is_over() && !self.may_run()
    }

    /// Whether a container of it would be started or stopped now if pods were not held.
    pub(crate) fn waits_for_a_hold_to_end(&self) -> bool {
        match self.is_over() {
            true => self.may_run(),
            // a pod that ran before also waits if a container of it ended
            false => {
                let runs = |name: &String| self.containers.get(name).is_some_and(ContainerLife::is_live);
                self.pod.as_ref().is_some_and(|pod| !pod.spec.containers.iter().all(|spec| runs(&spec.name)))
            }
        }
    }

    /// Whether one of its containers runs or is about to run.
    pub(crate) fn may_run(&self) -> bool {
        self.containers.values().any(|container| container.is_live() || is_busy(container.command))
    }

    /// Whether all parts of the pod that the runtime had are removed.
    pub(crate) fn is_swept(&self) -> bool {
        self.sandbox.swept == Swept::All && !self.has_begun()
    }
}

/// Whether a command is under way that a stop must wait for.
fn is_busy(command: Option<Doing>) -> bool {
    matches!(command, Some(Doing::Create(_) | Doing::Start(_) | Doing::PreStop { .. } | Doing::Stop { .. }))
}

#[cfg(test)]
mod tests {
    use crate::pods::PodAction;
    use crate::pods::fixture::Node;
    use serde_json::json;

    fn stopped(node: &Node) -> Vec<&str> {
        let name = |action: &'_ PodAction| match action {
            PodAction::StopContainer { container, .. } => Some(container.container.clone()),
            _ => None,
        };
        let names: Vec<String> = node.seen.iter().filter_map(name).collect();
        let known = ["main", "s1", "s2", "s3"];
        names.iter().map(|name| *known.iter().find(|known| *known == name).expect("of this pod")).collect()
    }

    #[test]
    fn sidecars_end_one_by_one_from_the_last() {
        let mut node = Node::new();
        let sidecar = |name: &str| json!({"name": name, "image": "x:1", "restartPolicy": "Always"});
        let spec = json!({"initContainers": [sidecar("s1"), sidecar("s2"), sidecar("s3")],
            "containers": [{"name": "main", "image": "x:1"}]});
        node.bind("p", spec.clone());
        assert_eq!(node.runs.len(), 4);
        node.is_deaf = true;
        node.see(json!({"metadata": {"name": "p", "namespace": "default", "uid": "p",
            "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 60}, "spec": spec, "status": {}}));
        assert_eq!(stopped(&node), ["main"]);
        for (ends, expect) in [
            ("main", vec!["main", "s3"]),
            ("s3", vec!["main", "s3", "s2"]),
            ("s2", vec!["main", "s3", "s2", "s1"]),
        ] {
            node.wait(3);
            node.ends("p", ends, 0);
            assert_eq!(stopped(&node), expect, "after {ends}");
        }
    }
}
