use super::*;
use crate::answer::Answer;
use crate::answer::Now;
use crate::pods::event::ContainerState;
use crate::pods::{
    ContainerKey, ImageConfig, Inventory, NodeFacts, Observation, PodAction, PodEvent, PodFound, PodNetwork,
    PodNetworks, PodUid, Pods, StaticFile,
};
use kedge_api::Timestamp;
use serde_json::{Value, json};

/// The probes of one container, for the run 0, which runs from second 0 on.
struct Bench {
    spec: Container,
    probes: Probes,
}

impl Bench {
    fn new(spec: Value) -> Self {
        let spec = serde_json::from_value(spec).expect("it is a container");
        let mut probes = Probes::default();
        probes.follow(0);
        Self { spec, probes }
    }

    /// The probes that start in that second.
    fn due(&mut self, secs: u64) -> Vec<ProbeKind> {
        self.due_of(secs, false)
    }

    fn due_of(&mut self, secs: u64, is_stopping: bool) -> Vec<ProbeKind> {
        let run = RunNow { attempt: 0, is_running: true, is_stopping };
        self.probes.due(&self.spec, "u", Duration::from_secs(secs), run)
    }

    fn answer(&mut self, kind: ProbeKind, secs: u64, outcome: &ProbeOutcome) -> bool {
        let probe = self.spec.probe(kind).expect("it has one").clone();
        self.probes.answered(kind, &probe, Duration::from_secs(secs), outcome)
    }

    /// Runs the probe each second from `secs` on with these results (`+`, `-`, `?` for not run), and returns
    /// the verdict after each.
    fn run(&mut self, kind: ProbeKind, secs: u64, results: &str) -> String {
        let known = results.chars().enumerate().map(|(index, result)| {
            let at = secs + index as u64;
            assert!(self.due(at).contains(&kind), "at {at}");
            let outcome = match result {
                '+' => ProbeOutcome::Passed,
                '-' => ProbeOutcome::Failed(String::new()),
                _ => ProbeOutcome::Errored(String::new()),
            };
            self.answer(kind, at, &outcome);
            match self.probes.track(kind).verdict {
                None => ' ',
                Some(true) => '+',
                Some(false) => '-',
            }
        });
        known.collect()
    }
}

fn each_second(mut probe: Value) -> Value {
    probe["tcpSocket"] = json!({"port": 1});
    probe["periodSeconds"] = json!(1);
    probe
}

use ProbeKind::{Liveness, Readiness, Startup};

#[test]
fn verdict_changes_at_its_threshold() {
    let check = |thresholds: Value, results: &str, expect: &str| {
        let mut bench = Bench::new(json!({"readinessProbe": each_second(thresholds.clone())}));
        assert_eq!(bench.run(Readiness, 0, results), expect, "{thresholds} {results}");
    };
    check(json!({}), "+--+---+", "++++++-+");
    check(json!({"successThreshold": 2}), "+-++--+---", "   ++++++-");
    check(json!({"failureThreshold": 1, "successThreshold": 3}), "-++-+++-", "------+-");
    // a probe that could not be run neither counts nor restarts the count
    check(json!({"failureThreshold": 2}), "+-??-+", "++++-+");
}

#[test]
fn liveness_and_readiness_wait_for_startup() {
    let probe = || each_second(json!({"failureThreshold": 3}));
    let mut bench =
        Bench::new(json!({"startupProbe": probe(), "livenessProbe": probe(), "readinessProbe": probe()}));
    assert_eq!(bench.due(0), [Startup]);
    assert!(bench.due(100).is_empty(), "one run at a time");
    bench.answer(Startup, 100, &ProbeOutcome::Failed(String::new()));
    assert_eq!(bench.due(100), [Startup], "the period is over");
    assert!(bench.answer(Startup, 100, &ProbeOutcome::Passed), "it is news");
    assert_eq!(bench.due(100), [Liveness, Readiness]);
    assert!(bench.probes.has_started(&bench.spec) && !bench.probes.is_ready(&bench.spec));
    assert!(!bench.due(1000).contains(&Startup), "it has passed");
}

#[test]
fn startup_that_fails_ends_all_probes() {
    let mut bench =
        Bench::new(json!({"startupProbe": each_second(json!({})), "livenessProbe": each_second(json!({}))}));
    assert_eq!(bench.run(Startup, 0, "---"), "  -");
    assert_eq!((bench.probes.failed(), bench.due(100)), (Some(Startup), vec![]));
}

#[test]
fn only_readiness_is_probed_in_a_pod_that_ends() {
    let mut bench = Bench::new(
        json!({"readinessProbe": each_second(json!({})), "livenessProbe": each_second(json!({}))}),
    );
    assert_eq!(bench.due_of(10, true), [Readiness]);
    assert_eq!(bench.due_of(11, false), [Liveness]);
}

#[test]
fn first_run_comes_within_delay_and_spread() {
    let at = |spec: Value, is_adopted: bool, kind| {
        let mut bench = Bench::new(spec);
        if is_adopted {
            bench.probes = Probes::default();
            bench.probes.adopt(0, Health::default());
            bench.probes.follow(0);
        }
        (0..100).find(|secs| bench.due(*secs).contains(&kind)).expect("it runs")
    };
    let delayed = || json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": 15});
    let plain = || json!({"tcpSocket": {"port": 1}, "periodSeconds": 20});
    assert_eq!(at(json!({"name": "a", "readinessProbe": plain()}), false, Readiness), 0);
    assert_eq!(at(json!({"name": "a", "livenessProbe": delayed()}), false, Liveness), 15);
    assert_eq!(at(json!({"name": "a", "livenessProbe": delayed()}), true, Liveness), 15);
    let mut seen = std::collections::BTreeSet::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        for (is_adopted, kind) in [(true, Readiness), (true, Liveness), (false, Liveness)] {
            let secs = at(
                json!({"name": name, "livenessProbe": plain(), "readinessProbe": plain()}),
                is_adopted,
                kind,
            );
            assert!(secs <= 20, "{name}: {secs}");
            seen.insert(secs);
        }
    }
    assert!(seen.len() > 5, "they are spread: {seen:?}");
}

#[test]
fn probe_that_takes_long_is_followed_at_once_by_the_next() {
    let mut bench = Bench::new(json!({"readinessProbe": {"tcpSocket": {"port": 1}}}));
    for (begin, end, next) in [(0, 1, 10), (10, 24, 24), (24, 24, 34)] {
        assert_eq!(bench.due(begin), [Readiness]);
        bench.answer(Readiness, end, &ProbeOutcome::Passed);
        assert_eq!(bench.probes.next(), Some(Duration::from_secs(next)));
    }
}

#[test]
fn events_about_one_pod_are_bounded() {
    let mut news = ProbeNews::default();
    let mut taken = |secs| news.may_tell(Duration::from_secs(secs));
    assert_eq!((0..100).filter(|secs| taken(*secs)).count(), 10);
    assert!(taken(300) && !taken(301) && taken(600));
    assert_eq!((0..100).filter(|step| taken(100_000 + step)).count(), 10);
}

// ---- through `Pods`

/// A node with one static pod.
pub(crate) struct Node {
    pub(crate) pods: Pods,
    pub(crate) secs: u64,
    /// Orders that are not performed.
    pub(crate) seen: Vec<PodAction>,
}

const KEY: &str = "a";

impl Node {
    /// The pod's only container, `a`, has these fields; the pod is prepared, and this agent started the
    /// container at second 1.
    pub(crate) fn new(fields: &str) -> Self {
        let mut node = Self { pods: Pods::new("edge"), secs: 1, seen: vec![] };
        node.begin(fields, Inventory::default());
        for _ in 0..8 {
            let actions = node.tell(PodEvent::Tick);
            node.perform(actions);
        }
        assert!(node.report().1.is_empty() || node.report().1 == "Running", "{:?}", node.report());
        node
    }

    /// The same container runs since second 1, and a new agent finds it at `secs`, with these notes about it.
    pub(crate) fn found(fields: &str, secs: u64, noted: impl Fn(ContainerKey) -> Inventory) -> Self {
        let uid = Self::new(fields).uid();
        let mut node = Self { pods: Pods::new("edge"), secs, seen: vec![] };
        let container = ContainerKey { pod: uid.clone(), container: KEY.into(), attempt: 0 };
        let (image_name, image_reference) = ("x:1".into(), "x:1".into());
        let run =
            Observation { container: container.clone(), state: running(1), image_name, image_reference };
        let found = PodFound {
            uid,
            namespace: "default".into(),
            name: "p-edge".into(),
            node_uid: String::new(),
            network: Some(PodNetwork { addresses: vec!["10.1.0.2".into()] }),
        };
        let inventory = Inventory { pods: vec![found], containers: vec![run], ..noted(container) };
        node.begin(fields, inventory);
        node
    }

    fn begin(&mut self, fields: &str, inventory: Inventory) {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - {{name: a, image: 'x:1', {fields}}}\n"
        );
        let facts = NodeFacts {
            name: "edge".into(),
            addresses: vec!["192.0.2.1".into()],
            cpu_milli: 4000,
            memory_bytes: 1 << 30,
            pods: 10,
            network: PodNetworks::Ready("n".into()),
            has_cluster_dns: true,
            ..NodeFacts::default()
        };
        let file = StaticFile { path: "/p".into(), content: Ok(text.into_bytes()) };
        for event in [
            PodEvent::Node(Box::new(facts)),
            PodEvent::Held(false),
            PodEvent::DesiredRead(Ok(vec![])),
            PodEvent::Inventory(inventory),
            PodEvent::StaticPods(Ok(vec![file])),
        ] {
            let actions = self.tell(event);
            self.perform(actions);
        }
    }

    fn now(&self) -> Now {
        let mono = Duration::from_secs(self.secs);
        Now { mono, wall: Timestamp::from_micros(1_000_000 * i64::try_from(self.secs).expect("small")) }
    }

    pub(crate) fn tell(&mut self, event: PodEvent) -> Vec<PodAction> {
        let mut actions = vec![];
        self.pods.handle(self.now(), event, &mut actions);
        actions
    }

    /// The runtime performs everything except probes and requests to the API server.
    pub(crate) fn perform(&mut self, actions: Vec<PodAction>) {
        for action in actions {
            match self.carried_out(action) {
                Ok(event) => {
                    let actions = self.tell(event);
                    self.perform(actions);
                }
                Err(other) => self.seen.push(*other),
            }
        }
    }

    /// The event with which the runtime or the disk answers this action; `Err` if others perform it.
    pub(crate) fn carried_out(&self, action: PodAction) -> Result<PodEvent, Box<PodAction>> {
        let seen = |container: ContainerKey, state| {
            let (image_name, image_reference) = ("x:1".into(), "x:1".into());
            PodEvent::Observed(Observation { container, state, image_name, image_reference })
        };
        Ok(match action {
            PodAction::PreparePod(pod) => {
                let network = PodNetwork { addresses: vec!["10.1.0.2".into()] };
                PodEvent::PodPrepared { pod: pod.uid, network }
            }
            PodAction::PullImage(order) => {
                let config = ImageConfig { cmd: vec!["/run".into()], ..ImageConfig::default() };
                let image = crate::pods::Image { config, ..crate::pods::Image::default() };
                PodEvent::ImageReady { pod: order.pod, container: order.container, image }
            }
            PodAction::CreateContainer(order) => seen(order.key.clone(), ContainerState::Created),
            PodAction::StartContainer(key) => seen(key, running(self.secs)),
            PodAction::SaveDesired { file, .. } => PodEvent::DesiredSaved { file, done: Ok(()) },
            other => return Err(Box::new(other)),
        })
    }

    pub(crate) fn uid(&self) -> PodUid {
        self.pods.report()[0].uid.clone()
    }

    fn report(&self) -> (u32, &'static str) {
        let container = &self.pods.report()[0].containers[0];
        (container.restarts, container.state)
    }

    pub(crate) fn mirror(&mut self) {
        let listed = PodEvent::PodsListed { node_uid: "n".into(), pods: vec![] };
        let created = self.tell(listed);
        let pod = created.into_iter().find_map(|action| match action {
            PodAction::CreateMirrorPod { pod, .. } => Some(pod),
            _ => None,
        });
        let mut pod = pod.expect("its mirror");
        pod["metadata"]["uid"] = json!("m-1");
        let request =
            crate::pods::PodRequest::CreateMirror { namespace: "default".into(), name: "p-edge".into() };
        let patches = self.tell(PodEvent::Answered { request, answer: Answer::Accepted(Some(pod)) });
        self.accept(&patches);
    }

    /// The API server accepts the statuses; returns the latest container's `started` and `ready`, and whether
    /// the pod is ready.
    fn accept(&mut self, actions: &[PodAction]) -> Option<(Value, Value)> {
        let mut shown = None;
        for action in actions {
            if let PodAction::PatchPodStatus { pod, patch } = action {
                let container = &patch["status"]["containerStatuses"][0];
                if container.is_object() {
                    shown = Some((container["started"].clone(), container["ready"].clone()));
                }
                let request = crate::pods::PodRequest::PatchStatus(pod.clone());
                let more = self.tell(PodEvent::Answered { request, answer: Answer::Accepted(None) });
                shown = self.accept(&more).or(shown);
            }
        }
        shown
    }

    /// Answers the probe that is under way, `after` seconds later.
    fn answer(&mut self, kind: ProbeKind, attempt: u32, after: u64, outcome: ProbeOutcome) -> Vec<PodAction> {
        self.secs += after;
        let container = ContainerKey { pod: self.uid(), container: KEY.into(), attempt };
        self.tell(PodEvent::Probed { probe: ProbeKey { container, kind }, outcome })
    }

    /// Lets time pass until probes start; returns them.
    fn wait(&mut self) -> Vec<ProbeOrder> {
        for _ in 0..20 {
            let due = self.pods.next_deadline().expect("a probe is due");
            self.secs = self.secs.max(due.as_secs() + u64::from(due.subsec_nanos() > 0));
            let actions = self.tell(PodEvent::Tick);
            let begun = orders(&actions);
            self.accept(&actions);
            if !begun.is_empty() {
                return begun;
            }
        }
        vec![]
    }
}

fn running(secs: u64) -> ContainerState {
    let started = Timestamp::from_micros(1_000_000 * i64::try_from(secs).expect("small"));
    ContainerState::Running { pid: 7, started }
}

pub(crate) fn orders(actions: &[PodAction]) -> Vec<ProbeOrder> {
    let order = |action: &PodAction| match action {
        PodAction::RunProbe(order) => Some((**order).clone()),
        _ => None,
    };
    actions.iter().filter_map(order).collect()
}

pub(crate) fn news(actions: &[PodAction]) -> Vec<String> {
    let text = |action: &PodAction| match action {
        PodAction::RecordEvent(news) => Some(format!("{} {}", news.reason, news.message)),
        _ => None,
    };
    actions.iter().filter_map(text).collect()
}

fn failed(why: &str) -> ProbeOutcome {
    ProbeOutcome::Failed(why.into())
}

const LIVENESS: &str = "livenessProbe: {httpGet: {port: 80}, initialDelaySeconds: 5, failureThreshold: 2, terminationGracePeriodSeconds: 7}";

#[test]
fn container_that_fails_liveness_is_restarted_with_its_grace() {
    let mut node = Node::new(LIVENESS);
    node.mirror();
    let [order] = &node.wait()[..] else { panic!("one probe") };
    assert_eq!((node.secs, order.timeout), (6, Duration::from_secs(1)));
    let Check::Http(HttpCheck { host, port: 80, .. }) = &order.check else { panic!("{order:?}") };
    assert_eq!(host, "10.1.0.2", "the pod's own address");
    let first = node.answer(Liveness, 0, 0, failed("HTTP probe failed with statuscode: 500"));
    assert_eq!(news(&first), ["Unhealthy Liveness probe failed: HTTP probe failed with statuscode: 500"]);
    assert_eq!(node.wait().len(), 1);
    let second = node.answer(Liveness, 0, 0, failed("HTTP probe failed with statuscode: 500"));
    assert_eq!(
        news(&second),
        ["Killing Container a failed liveness probe, will be restarted"],
        "the rest was said"
    );
    let stop = second.iter().find_map(|action| match action {
        PodAction::StopContainer { grace, .. } => Some(*grace),
        _ => None,
    });
    assert_eq!(stop, Some(Duration::from_secs(7)));
    assert!(orders(&node.tell(PodEvent::Tick)).is_empty(), "what is being stopped is not probed");
    let container = ContainerKey { pod: node.uid(), container: KEY.into(), attempt: 0 };
    let exit = crate::pods::Exit { code: 143, ..crate::pods::life::unseen_exit() };
    let (image_name, image_reference) = ("x:1".into(), "x:1".into());
    let ended = Observation { container, state: ContainerState::Exited(exit), image_name, image_reference };
    let actions = node.tell(PodEvent::Observed(ended));
    node.perform(actions);
    assert_eq!(node.report(), (1, "Running"));
    assert!(node.answer(Liveness, 0, 0, failed("late")).is_empty(), "of a run that is over");
    assert_eq!(node.wait().len(), 1, "the next run is probed anew");
}

const READINESS: &str = "readinessProbe: {tcpSocket: {port: 80}, failureThreshold: 1}";

#[test]
fn status_shows_ready_when_the_probe_passed() {
    let mut node = Node::new(READINESS);
    node.mirror();
    let actions = node.answer(Readiness, 0, 0, ProbeOutcome::Passed);
    let key = ContainerKey { pod: node.uid(), container: KEY.into(), attempt: 0 };
    let health = Health { is_started: true, is_ready: true };
    assert!(actions.contains(&PodAction::NoteHealth { container: key, health }), "{actions:?}");
    assert_eq!(node.accept(&actions), Some((json!(true), json!(true))));
    node.wait();
    let actions = node.answer(Readiness, 0, 0, ProbeOutcome::Passed);
    assert!(actions.is_empty(), "nothing new costs nothing: {actions:?}");
    node.wait();
    let actions = node.answer(Readiness, 0, 0, failed("x"));
    assert_eq!(node.accept(&actions), Some((json!(true), json!(false))));
}

#[test]
fn new_agent_believes_what_the_last_one_knew() {
    for (known, is_ready) in [(Health { is_started: true, is_ready: true }, true), (Health::default(), false)]
    {
        let noted = |key| Inventory { health: [(key, known)].into(), ..Inventory::default() };
        let mut node = Node::found(READINESS, 100, noted);
        let life = node.pods.lives.values().next().expect("the pod");
        let spec = life.pod.as_ref().expect("its file").spec.containers[0].clone();
        assert_eq!(life.containers[KEY].health(&spec).is_ready, is_ready);
        assert_eq!(node.wait().len(), 1, "and is probed again");
        assert!(node.secs <= 110, "within a period");
        let actions = node.answer(Readiness, 0, 0, ProbeOutcome::Passed);
        assert_eq!(actions.iter().any(|action| matches!(action, PodAction::NoteHealth { .. })), !is_ready);
    }
}

#[test]
fn probe_that_hangs_delays_no_other() {
    let both = format!("{READINESS}, livenessProbe: {{tcpSocket: {{port: 81}}, initialDelaySeconds: 1}}");
    let mut node = Node::new(&both);
    // readiness is under way, and gets no answer
    let mut begun = 0;
    while node.secs < 100 {
        for order in node.wait() {
            assert_eq!(order.key.kind, Liveness);
            begun += 1;
            node.answer(Liveness, 0, 0, ProbeOutcome::Passed);
        }
    }
    assert_eq!(begun, 11);
}

#[test]
fn probe_that_cannot_be_run_is_announced_and_does_not_count() {
    let mut node = Node::new("readinessProbe: {tcpSocket: {port: none}, failureThreshold: 1}");
    node.mirror();
    node.secs += 1000;
    let actions = node.tell(PodEvent::Tick);
    let [text] = &news(&actions)[..] else { panic!("{actions:?}") };
    assert!(
        text.contains("Readiness probe errored and resulted in unknown state: couldn't resolve port"),
        "{text}"
    );
    assert!(node.pods.next_deadline() > Some(node.now().mono), "it is tried again later");
}

#[test]
fn container_behind_a_sidecar_waits_for_its_startup_probe() {
    let sidecar = "env: []}\n  initContainers:\n  - {name: s, image: 'x:1', restartPolicy: Always, startupProbe: {tcpSocket: {port: 1}}";
    let mut node = Node::new(sidecar);
    let names = |node: &Node| -> Vec<String> {
        let containers = &node.pods.report()[0].containers;
        let running = containers.iter().filter(|container| container.state == "Running");
        running.map(|container| container.name.clone()).collect()
    };
    let ready = |node: &Node| {
        let report = &node.pods.report()[0];
        (report.ready, report.counted)
    };
    assert_eq!((names(&node), ready(&node)), (vec!["s".to_owned()], (0, 2)));
    let container = ContainerKey { pod: node.uid(), container: "s".into(), attempt: 0 };
    let probe = ProbeKey { container, kind: Startup };
    let actions = node.tell(PodEvent::Probed { probe, outcome: ProbeOutcome::Passed });
    node.perform(actions);
    assert_eq!((names(&node), ready(&node)), (vec!["a".to_owned(), "s".to_owned()], (2, 2)));
}
