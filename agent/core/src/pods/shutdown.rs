//! The shutdown of the machine, which waits for this node's pods: they end by priority, the lowest first,
//! each group within its time.
//!
//! Always holds: a shutdown is not recorded, and the exits it causes do not count as results, so after the
//! boot the pods start again, also without an API server (upstream reports them as failed, finally); the
//! machine may stop once no container runs and the API server received the statuses, or when the time is
//! over; if the shutdown is cancelled, the pods keep running. Leaves to others: noticing and delaying the
//! shutdown (the shell), the node's condition (`node::status`).

use crate::answer::{Level, Now};
use crate::kubelet::ShutdownGroup;
use crate::pods::Pods;
use crate::pods::event::PodAction;
use crate::pods::life::{Context, End, Life, Verdict};
use std::time::Duration;

/// How long the machine waits for the API server to accept the last statuses.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What happens to pods at a shutdown of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown {
    /// By priority; empty if the machine waits for no pod.
    groups: Vec<ShutdownGroup>,
    under_way: Option<Stage>,
}

/// A shutdown under way.
#[derive(Debug, Clone)]
struct Stage {
    /// The group that ends now; after the last index, all have ended.
    turn: usize,
    /// When its pods must have ended; set once they were ordered to stop.
    until: Option<Duration>,
    is_let_go: bool,
}

impl Pods {
    /// Sets the groups in which pods end at a shutdown; without groups the machine does not wait for pods.
    pub(crate) fn plan_shutdown(&mut self, groups: Vec<ShutdownGroup>) {
        self.shutdown.groups = groups;
    }

    /// The machine is shutting down, or the shutdown was cancelled.
    pub(crate) fn machine_stops(&mut self, stops: bool, actions: &mut Vec<PodAction>) {
        let line = |text: &str| PodAction::Log(Level::Info, text.to_owned());
        match (stops, &self.shutdown.under_way) {
            (true, None) => {
                actions.push(line("the machine is shutting down: pods end, by priority"));
                self.shutdown.under_way = Some(Stage { turn: 0, until: None, is_let_go: false });
            }
            (false, Some(_)) => {
                actions.push(line("the machine does not shut down after all: pods go on"));
                self.shutdown.under_way = None;
                for life in self.lives.values_mut() {
                    life.ending.shutdown = None;
                    life.is_dirty = true;
                }
            }
            _ => {}
        }
    }

    pub(crate) fn shutdown_deadline(&self) -> Option<Duration> {
        self.shutdown.under_way.as_ref().filter(|shutdown| !shutdown.is_let_go)?.until
    }

    /// Whether pods are no longer admitted because of a shutdown.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutdown.under_way.is_some()
    }

    /// Starts the next group once the previous one has ended.
    pub(crate) fn see_to_shutdown(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        let Some(mut shutdown) = self.shutdown.under_way.clone().filter(|shutdown| !shutdown.is_let_go)
        else {
            return;
        };
        // pods that may not be stopped, or are not known yet, must not delay the shutdown
        if !self.is_ready() || self.is_held != Some(false) {
            shutdown.is_let_go = true;
            actions.push(PodAction::LetMachineStop);
        }
        while let Some(group) = self.shutdown.groups.get(shutdown.turn).filter(|_| !shutdown.is_let_go) {
            let (priorities, turn) = (&self.shutdown.groups, shutdown.turn);
            let is_of_it = |life: &Life| {
                group_of(priorities, life) == turn && life.admission.verdict == Verdict::Admitted
            };
            let until = *shutdown.until.get_or_insert(now.mono.saturating_add(group.grace));
            let mut runs = false;
            for life in self.lives.values_mut().filter(|life| is_of_it(life)) {
                if life.ending.shutdown.is_none() {
                    let grace = life.own_grace().min(group.grace);
                    life.ending.shutdown = Some(End { grace, since: now.mono });
                    life.is_dirty = true;
                }
                runs |= life.may_run();
            }
            if runs && now.mono < until {
                self.shutdown.under_way = Some(shutdown);
                return;
            }
            (shutdown.turn, shutdown.until) = (shutdown.turn.saturating_add(1), None);
        }
        let until = *shutdown.until.get_or_insert(now.mono.saturating_add(LAST_WORDS));
        let is_untold =
            |life: &Life| life.is_dirty || life.api.as_ref().is_some_and(|api| api.sent.is_some());
        if !shutdown.is_let_go && (!self.lives.values().any(is_untold) || until <= now.mono) {
            shutdown.is_let_go = true;
            actions.push(PodAction::LetMachineStop);
        }
        self.shutdown.under_way = Some(shutdown);
    }
}

/// The group with the highest priority that is not above the pod's; the first group takes all pods below it
/// too.
fn group_of(groups: &[ShutdownGroup], life: &Life) -> usize {
    let priority = life.pod.as_ref().and_then(|pod| pod.spec.priority).unwrap_or(0);
    groups.iter().rposition(|group| group.priority <= priority).unwrap_or(0)
}

impl Life {
    /// Stops its containers, and keeps everything else.
    pub(crate) fn shut_down(&mut self, ctx: &mut Context<'_>) {
        self.stop_containers(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PodEvent;
    use crate::pods::fixture::Node;
    use serde_json::json;

    fn node(groups: &[(i64, u64)]) -> Node {
        let mut node = Node::new();
        let group = |(priority, secs): &(i64, u64)| ShutdownGroup {
            priority: *priority,
            grace: Duration::from_secs(*secs),
        };
        node.pods.plan_shutdown(groups.iter().map(group).collect());
        node
    }

    fn bind(node: &mut Node, name: &str, priority: i64, policy: &str) {
        node.bind(name, json!({"priority": priority, "restartPolicy": policy}));
    }

    fn is_let_go(node: &Node) -> bool {
        node.seen.contains(&PodAction::LetMachineStop)
    }

    const CRITICAL: i64 = 2_000_000_000;

    #[test]
    fn pods_end_by_priority_within_their_time() {
        let mut node = node(&[(0, 20), (CRITICAL, 10)]);
        bind(&mut node, "critical", CRITICAL, "Always");
        bind(&mut node, "plain", 7, "Always");
        bind(&mut node, "low", -5, "Always");
        node.is_deaf = true;
        node.tell(PodEvent::Shutdown(true));
        assert_eq!(node.stops(), [("low", 20), ("plain", 20)]);
        node.wait(19);
        assert_eq!(node.stops().len(), 2, "{:?}", node.stops());
        node.wait(1);
        assert_eq!(node.stops()[2..], [("critical", 10)]);
        node.wait(9);
        assert!(!is_let_go(&node));
        node.wait(3);
        assert!(is_let_go(&node), "nothing holds a machine up for ever");
    }

    #[test]
    fn machine_is_let_go_when_pods_have_ended_and_are_reported() {
        let mut node = node(&[(0, 100), (5, 100), (CRITICAL, 10)]);
        bind(&mut node, "a", 0, "Always");
        bind(&mut node, "z", CRITICAL, "Always");
        node.tell(PodEvent::Shutdown(true));
        assert_eq!(node.stops(), [("a", 30), ("z", 10)], "a group without pods takes no time");
        assert!(is_let_go(&node));
        assert!(
            node.runs.values().all(|state| !matches!(state, crate::pods::ContainerState::Running { .. }))
        );
        let status = node.status("a");
        assert_eq!(status["phase"], "Running", "it comes again");
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 143);
        assert_eq!(node.condition("a", "Ready")["status"], "False");
        node.bind("late", json!({}));
        assert_eq!(node.status("late")["reason"], "NodeShutdown");
    }

    #[test]
    fn pods_come_again_after_the_boot() {
        for policy in ["Always", "OnFailure"] {
            let mut node = node(&[(0, 100)]);
            bind(&mut node, "a", 0, policy);
            let records = node.records.clone();
            node.tell(PodEvent::Shutdown(true));
            assert!(is_let_go(&node) && !node.runs("a"));
            node.wait(60);
            assert!(!node.runs("a"), "nothing starts while the machine stops");
            assert_eq!(node.records, records, "nothing of it is recorded");
            node.boot();
            assert!(node.runs("a"), "{policy}");
        }
    }

    #[test]
    fn pods_that_are_held_hold_nothing_up() {
        let mut node = node(&[(0, 100)]);
        bind(&mut node, "a", 0, "Always");
        node.tell(PodEvent::Held(true));
        node.tell(PodEvent::Shutdown(true));
        assert!(is_let_go(&node) && node.stops().is_empty());
    }

    #[test]
    fn stopped_pods_start_again_when_the_shutdown_is_cancelled() {
        let mut node = node(&[(0, 100)]);
        bind(&mut node, "a", 0, "Always");
        node.tell(PodEvent::Shutdown(true));
        assert!(!node.runs("a"));
        node.tell(PodEvent::Shutdown(false));
        node.wait(400);
        assert!(node.runs("a"));
        node.seen.clear();
        node.tell(PodEvent::Shutdown(true));
        assert!(is_let_go(&node), "the next one is held up again");
    }
}
