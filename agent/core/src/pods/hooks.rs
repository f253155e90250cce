//! Hooks of containers: they run after a start and before a stop, and other steps wait for them.
//!
//! Always holds: postStart runs for each run that starts, and until it has ended the container does not count
//! as started and the containers behind it wait; preStop runs for each stop, within the grace period, and the
//! signal follows when the hook has ended or the grace period is over. Each hook runs once; it runs again,
//! with an Event, if no agent saw its end or if it was stopped to make room for others: not running it would
//! be worse than running it twice, and upstream promises no more. Leaves to others: deciding when it gets a
//! place (`places`), running it (`HookOrder`), ending a hook that a killed agent had begun.

use crate::pods::orders::{HookAct, HookKind, HookNote};
use crate::pods::spec::{Container, Hook, HttpGet};
use std::time::Duration;

/// How long a postStart hook may take. Upstream waits for ever, and no report says that the container never
/// starts.
pub(crate) const POST_START_LIMIT: Duration = Duration::from_secs(3600);

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

    pub(crate) fn act(&self, container: &Container, pod_ip: &str) -> Result<HookAct, String> {
        match self {
            Self { exec: Some(exec), .. } => Ok(HookAct::Run(exec.check(container))),
            Self { http_get: Some(http), .. } => http.check(container, pod_ip).map(HookAct::Run),
            Self { sleep: Some(sleep), .. } => Ok(HookAct::Sleep(Duration::from_secs(sleep.seconds.into()))),
            _ => Err("it has no handler".into()),
        }
    }
}

/// Reason and message of an Event.
pub(crate) fn repetition(kind: HookKind) -> (&'static str, String) {
    let word = kind.word();
    (repeated(kind), format!("the end of the {word} hook was not seen by the agent before: it is run again"))
}

pub(crate) fn repeated(kind: HookKind) -> &'static str {
    match kind {
        HookKind::PostStart => "PostStartHookRepeated",
        HookKind::PreStop => "PreStopHookRepeated",
    }
}

impl Container {
    pub(crate) fn hook(&self, kind: HookKind) -> Option<&Hook> {
        match kind {
            HookKind::PostStart => self.lifecycle.post_start.as_ref(),
            HookKind::PreStop => self.lifecycle.pre_stop.as_ref(),
        }
    }

    /// The complaint about its hooks; `is_init`: it runs to its end before others start.
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

/// The progress of the postStart hook of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostStart {
    Wanted,
    UnderWay,
    Failed,
}

/// The hooks of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    /// The run with its postStart hook's state; `None` if the run has no such hook or the hook succeeded.
    pub(crate) post_start: Option<(u32, PostStart)>,
    /// The run whose preStop hook has ended, and when its grace period is over.
    pub(crate) pre_stopped: Option<(u32, Duration)>,
    /// The note that an earlier agent left about a run.
    pub(crate) found: Option<(u32, HookNote)>,
    /// A hook was stopped to make room for others, and an Event was recorded for it.
    pub(crate) made_room: bool,
    /// A hook that is run again, and whose Event has to wait for the pod's object.
    pub(crate) repeated: Option<HookKind>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Level;
    use crate::pods::event::PodAction;
    use crate::pods::keys::ContainerKey;
    use crate::pods::orders::HookOrder;
    use crate::pods::probes::Check;
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

    /// Removes the pod's file, so that it ends with 30 seconds of grace.
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
        // seconds that the hook takes, then the remaining grace period
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

    /// A node whose new agent finds a run ten seconds later, with this note of the last agent.
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
        // it was not stopped then, so this is another stop
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
