//! A node's run on a logged disk, step by step, with two observers that record what it reports and when.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kedge::local::client;
use kedge_rig::agent::{Agent, AgentOptions};
use kedge_rig::babysitter::State;
use kedge_rig::cluster::{Cluster, HEADER, PATIENCE, Source};
use kedge_rig::logged_disk::{FileSystem, LogClock, LoggedDisk};
use kedge_rig::power_cut::{Cutting, Report, cut_at_every_flush, is_full};
use serde_json::{Value, json};

use crate::history::{Config, History, NodeReport, Observer};
use crate::restart::Start;

/// The node.
pub(crate) const NODE: &str = "edge-1";
/// How often the observers look: short against a start of the agent, so that little goes unseen.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// The condition's reason for an invalid source.
const UNCLEAR: &str = "failed to sync, desired config unclear, cause: invalid NodeConfigSource, exactly one subfield must \
                       be non-nil, but all were nil";

/// How much happens in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// A first start, two configurations adopted and promoted, an invalid source.
    Short,
    /// All of it.
    Whole,
}

/// A run to cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) file_system: &'a FileSystem,
    pub(crate) length: Length,
    /// The agent that runs.
    pub(crate) program: &'a Path,
    /// The agent that is started on each disk.
    pub(crate) checked: &'a Path,
    pub(crate) subsets: usize,
    /// Starts on each disk.
    pub(crate) boots: usize,
    pub(crate) enough: Option<usize>,
}

/// A node whose run is being recorded.
struct Running<'a> {
    cluster: Cluster,
    history: &'a Mutex<History>,
    clock: LogClock,
}

fn lock(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

fn payload(fields: &str) -> String {
    // a crashing config must not outlive its trial before it crashes
    let trial_secs = if fields.contains("crashAfter") { 60 } else { 1 };
    format!("{HEADER}configTrialDuration: {trial_secs}s\ncrashLoopThreshold: 1\n{fields}")
}

/// Runs it and checks what every cut leaves. Returns the agent's log, too.
pub(crate) fn cut(purpose: &str, run: &Run<'_>) -> (Report, String) {
    let mut cluster = Cluster::start(purpose).unwrap();
    let mount = cluster.scratch().path().join(NODE).join("root");
    let mut options = AgentOptions::new(run.program);
    options.restart_after = Duration::from_millis(50);
    options.abort = Duration::from_secs(5);
    let agent = cluster.add(NODE, options).unwrap();
    let start = Start {
        program: run.checked.to_owned(),
        kubeconfig: agent.kubeconfig(),
        drop_ins: agent.drop_in_dir(),
        node: NODE,
    };
    let cutting = Cutting {
        name: purpose,
        file_system: *run.file_system,
        mount: &mount,
        subsets: run.subsets,
        thin: !is_full(),
        enough: run.enough,
    };
    let (mut log, mut kept) = (String::new(), None);
    let live = |disk: &LoggedDisk| {
        let history = Mutex::new(History::default());
        let mut running = Running { cluster, history: &history, clock: disk.clock() };
        running.execute(run.length);
        // anything that the agent would still write does not count
        running.cluster.agent_mut(NODE).cut();
        log = running.cluster.agent(NODE).log_text();
        // credentials and drop-ins are needed until the checks are over
        let Running { mut cluster, .. } = running;
        cluster.hub_mut().stop().unwrap();
        kept = Some(cluster);
        let history = history.into_inner().unwrap();
        assert!(history.unexpected.is_empty(), "unexpected:\n{}\n{log}", history.unexpected.join("\n"));
        history
    };
    let (report, _) =
        cut_at_every_flush(&cutting, live, |history, rebuilt| start.judge(history, rebuilt, run.boots))
            .unwrap();
    (report, log)
}

impl Running<'_> {
    fn agent(&self) -> &Agent {
        self.cluster.agent(NODE)
    }

    fn execute(&mut self, length: Length) {
        let over = AtomicBool::new(false);
        let (history, clock) = (self.history, self.clock.clone());
        let socket = self.agent().run_dir().join("kedge.sock");
        self.begin("first start", [NodeReport::local()]);
        self.cluster.agent_mut(NODE).start().unwrap();
        std::thread::scope(|scope| {
            let view = self.cluster.view();
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    observe_status(history, &clock, &socket);
                    if let Some(said) = view.look(|world| world.node(NODE).and_then(NodeReport::of_node)) {
                        lock(history).observed(Observer::Api, clock.now(), &said, 0);
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.steps(length)));
            over.store(true, Ordering::SeqCst);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn begin(&self, name: &'static str, reports: impl IntoIterator<Item = NodeReport>) {
        let reports = reports.into_iter().map(|report| (report, None));
        lock(self.history).begin(name, self.clock.now(), reports);
    }

    /// One step: announces the reports that it may lead to, acts, and waits until both observers have seen
    /// the last report.
    #[track_caller]
    fn step(&self, name: &'static str, reports: impl IntoIterator<Item = NodeReport>, act: impl FnOnce()) {
        self.begin(name, reports);
        act();
        self.wait_for_last(name);
    }

    /// Forgives the assigned config, which leads over these reports back to the first one, so that the starts
    /// are counted.
    #[track_caller]
    fn forgive_still_bad(&self, name: &'static str, config: &Config, reports: [NodeReport; 3], starts: u64) {
        let [waits, tried, condemned] = reports;
        // a start where a running agent waits for its restart reports what that start leads to
        let reports = [(waits, Some(tried.clone())), (tried, None), (condemned, None)];
        lock(self.history).begin(name, self.clock.now(), reports);
        let before = self.agent().babysitter().state().runs;
        let (code, _, said) = self.agent().kedge(&["config", "forgive", &config.0]).unwrap();
        assert_eq!(code, 0, "{said}");
        let again = |state: &State| state.runs >= before + starts && state.is_ready();
        self.agent().babysitter().wait_until(name, PATIENCE, again).unwrap();
        lock(self.history).skip_to_last();
        self.wait_for_last(name);
    }

    /// The assigned config has no verdict any more, and the agent is about to restart to use it.
    fn waits(config: &Config, good: &Config) -> NodeReport {
        let reason = format!("current (UID: {}) can be tried now, restarting to use it", config.0);
        NodeReport::falls_back(config, good, "Unknown", &reason)
    }

    #[track_caller]
    fn wait_for_last(&self, name: &str) {
        let start = Instant::now();
        while !lock(self.history).is_up_to_date() {
            let unexpected = lock(self.history).unexpected.join("\n");
            let log = || self.agent().log_text();
            assert!(unexpected.is_empty(), "unexpected: {unexpected}\n{}", log());
            assert!(start.elapsed() < PATIENCE, "\"{name}\" never came to its end:\n{}", log());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn version_of(&self, name: &str) -> Config {
        let object = self.cluster.kubectl().json(&["get", "configmap", name]).unwrap();
        let part = |key: &str| object["metadata"][key].as_str().unwrap().to_owned();
        (part("uid"), part("resourceVersion"))
    }

    /// Makes a ConfigMap. The node does not notice.
    fn create(&self, name: &str, fields: &str) -> Config {
        self.cluster.create_config(name, &payload(fields)).unwrap();
        let config = self.version_of(name);
        lock(self.history).payloads.insert(config.clone(), payload(fields));
        config
    }

    fn pin(&self, name: &str, config: &Config) {
        let source = Source::Pinned { name: name.to_owned(), uid: config.0.clone() };
        self.cluster.assign(NODE, &source).unwrap();
    }

    fn follow(&self, name: &str) {
        self.cluster.assign(NODE, &Source::Following { name: name.to_owned() }).unwrap();
    }

    fn assign_raw(&self, source: &Value) {
        let patch = json!({"spec": {"configSource": source}}).to_string();
        self.cluster.kubectl().run(&["patch", "node", NODE, "--type=merge", "-p", &patch]).unwrap();
    }

    fn steps(&self, length: Length) {
        self.wait_for_last("first start");
        let a = self.create("edge-a", "nodeStatusReportFrequency: 1m\n");
        let b = self.create("edge-b", "nodeStatusReportFrequency: 2m\n");
        self.step(
            "a is adopted and promoted",
            [NodeReport::runs(&a, None), NodeReport::runs(&a, Some(&a))],
            || {
                self.pin("edge-a", &a);
            },
        );
        let (adopted, promoted) = (NodeReport::runs(&b, Some(&a)), NodeReport::runs(&b, Some(&b)));
        self.step("b, by name, is adopted and promoted", [adopted, promoted], || self.follow("edge-b"));
        self.invalid_source(&b);
        if length == Length::Whole {
            let good = self.followed_edit(b);
            self.bad_configs(&a, &good);
        }
    }

    /// A source that is invalid for a while: the record of it is the only one on disk, so a lost record would
    /// show. A note that nothing else on disk can make good for.
    fn invalid_source(&self, good: &Config) {
        let runs = NodeReport::runs(good, Some(good));
        let mut unclear = runs.clone();
        unclear.condition[0] = "Unknown".to_owned();
        unclear.condition[2] = UNCLEAR.to_owned();
        let restarted = NodeReport::falls_back(good, good, "Unknown", UNCLEAR);
        lock(self.history).begin("the source is invalid", self.clock.now(), [(unclear, Some(restarted))]);
        self.assign_raw(&json!({"configMap": null, "configMapRef": null}));
        self.assign_raw(&json!({}));
        self.wait_for_last("the source is invalid");
        self.step("the source is valid again", [runs], || self.follow("edge-b"));
    }

    /// An edit that is followed.
    fn followed_edit(&self, b: Config) -> Config {
        // the reports after the edit need its version, which the hub chooses, so they are added after the
        // edit
        let history = self.history;
        let text = payload("nodeStatusReportFrequency: 3m\n");
        let begins = self.clock.now();
        let mut held = lock(history);
        self.cluster.edit_config("edge-b", &text).unwrap();
        let good = self.version_of("edge-b");
        held.payloads.insert(good.clone(), text);
        let reports = [NodeReport::runs(&good, Some(&b)), NodeReport::runs(&good, Some(&good))];
        held.begin("b is edited", begins, reports.map(|report| (report, None)));
        drop(held);
        self.wait_for_last("b is edited");
        good
    }

    /// Bad configurations, forgiveness, and the end of it.
    fn bad_configs(&self, a: &Config, good: &Config) {
        let unparsable = self.create("edge-unparsable", "evictionHard: [\n");
        let crashing = self.create("edge-crash", "kedge:\n  faultInjection:\n    crashAfter: 1s\n");
        let reason = format!("failed to parse current (UID: {})", unparsable.0);
        let condemned = NodeReport::falls_back(&unparsable, good, "False", &reason).with_bad([&unparsable]);
        self.step("one that does not parse is rolled back", [condemned.clone()], || {
            self.pin("edge-unparsable", &unparsable);
        });
        let reports = [Self::waits(&unparsable, good), condemned.clone(), condemned];
        self.forgive_still_bad("it is forgiven, and is as bad as before", &unparsable, reports, 1);

        let in_trial = NodeReport::runs(&crashing, Some(good)).with_bad([&unparsable]);
        let reason = format!("current failed trial period due to crash loop (UID: {})", crashing.0);
        let looped =
            NodeReport::falls_back(&crashing, good, "False", &reason).with_bad([&unparsable, &crashing]);
        self.step("one that crashes is rolled back", [in_trial.clone(), looped.clone()], || {
            self.pin("edge-crash", &crashing);
        });
        let reports = [Self::waits(&crashing, good).with_bad([&unparsable]), in_trial, looped];
        self.forgive_still_bad("it is forgiven, and crashes again", &crashing, reports, 3);

        let bad = [&unparsable, &crashing];
        let again = NodeReport::runs(a, Some(good)).with_bad(bad);
        let promoted = NodeReport::runs(a, Some(a)).with_bad(bad);
        self.step("a is assigned again and promoted", [again, promoted], || self.pin("edge-a", a));
        let local = NodeReport::local().with_bad(bad);
        self.step("nothing is assigned", [local], || self.cluster.assign(NODE, &Source::Nil).unwrap());
    }
}

fn observe_status(history: &Mutex<History>, clock: &LogClock, socket: &Path) {
    let answer = client::get(socket, "/status").ok().filter(|answer| answer.status == 200);
    let status: Option<Value> = answer.and_then(|answer| serde_json::from_slice(&answer.body).ok());
    let Some(status) = status else { return };
    let startups = status["config"]["startups"].as_u64().unwrap_or(0);
    let report = NodeReport::of_status(&status);
    lock(history).observed(Observer::Status, clock.now(), &report, startups);
}
