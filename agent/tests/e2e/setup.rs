//! One hub and one node, and the waits and checks that the tests share.

use std::time::Duration;

use kedge_rig::agent::{Agent, AgentOptions};
use kedge_rig::babysitter::Ended;
use kedge_rig::babysitter::ServiceResult;
use kedge_rig::cluster::{Cluster, HEADER, Source};
use kedge_rig::programs;
use kedge_rig::view::World;
use serde_json::Value;

/// The node.
pub(crate) const NODE: &str = "edge-1";

/// How long anything may take: the longest stall that the agent allows a loop (the disk's) is two minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// The counts of this version of the agent.
const STARTUPS: &str = concat!(env!("CARGO_PKG_VERSION"), "/startups.json");

/// A hub, the node, and what the API shows.
pub(crate) struct Setup {
    /// The hub and its nodes.
    pub(crate) cluster: Cluster,
}

/// The agent as it is released.
pub(crate) fn plain() -> AgentOptions {
    quick(AgentOptions::new(env!("CARGO_BIN_EXE_kedge").as_ref()))
}

/// The agent in which a configuration can ask for faults.
pub(crate) fn faulty() -> AgentOptions {
    quick(AgentOptions::new(&programs::agent_with_faults().unwrap()))
}

fn quick(mut options: AgentOptions) -> AgentOptions {
    options.restart_after = Duration::from_millis(200);
    options.abort = Duration::from_secs(2);
    options
}

/// A payload with these trial rules.
pub(crate) fn payload(trial_secs: u64, threshold: u32, fields: &str) -> String {
    // a period of a second, so that a test which waits until a fallback's outcome is its own, unmixed with
    // the config before it, waits a minute and not six
    let terms = format!("configTrialDuration: {trial_secs}s\ncrashLoopThreshold: {threshold}\n");
    format!("{HEADER}{terms}evictionPressureTransitionPeriod: 1s\n{fields}")
}

impl Setup {
    /// A hub and a node that runs and is Ready.
    pub(crate) fn new(purpose: &str, options: AgentOptions) -> Setup {
        let mut cluster = Cluster::start(purpose).unwrap();
        cluster.add(NODE, options).unwrap().start().unwrap();
        let setup = Setup { cluster };
        setup.shows("a Ready node with a Lease", |world| {
            world.condition(NODE, "Ready").is_some_and(|(status, ..)| status == "True")
                && world.renewal_count(NODE) > 0
        });
        setup
    }

    /// A hub without nodes.
    pub(crate) fn with_hub(purpose: &str) -> Setup {
        Setup { cluster: Cluster::start(purpose).unwrap() }
    }

    /// The same, with a log line for each request.
    pub(crate) fn with_telling_hub(purpose: &str) -> Setup {
        Setup { cluster: Cluster::start_with(purpose, &["--log-level", "debug"]).unwrap() }
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.cluster.agent(NODE)
    }

    pub(crate) fn agent_mut(&mut self) -> &mut Agent {
        self.cluster.agent_mut(NODE)
    }

    /// Waits until the API shows it.
    #[track_caller]
    pub(crate) fn shows(&self, awaited: &str, is_so: impl Fn(&World) -> bool) {
        if let Err(error) = self.cluster.view().wait_for(awaited, PATIENCE, is_so) {
            let logs: Vec<String> = self.cluster.agents().iter().map(Agent::log_text).collect();
            panic!("{error}\nthe agents' logs:\n{}", logs.join("\n"));
        }
    }

    /// Waits for exactly these words of the condition: from the process that runs now, and then through the
    /// API, which may still show the report of an earlier process.
    #[track_caller]
    pub(crate) fn config_ok(&self, status: &str, message: &str, reason: &str) {
        let expected = (status, message, reason);
        let own = kedge_rig::scratch::poll(PATIENCE, || {
            let own = self.agent().kedge_json(&["config", "status"]).ok()?;
            let words = ["status", "message", "reason"]
                .map(|word| own["condition"][word].as_str().unwrap_or_default());
            (words == [status, message, reason]).then_some(())
        });
        assert!(own.is_some(), "the agent never reported {expected:?}:\n{}", self.agent().log_text());
        self.shows(&format!("ConfigOK {expected:?}"), |world| {
            world.condition(NODE, "ConfigOK") == Some(expected)
        });
    }

    /// Waits until this config is reported as running well.
    #[track_caller]
    pub(crate) fn runs(&self, uid: &str) {
        self.config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
        self.shows("it as assigned and active", |world| {
            let config = world.config(NODE);
            config.assigned.as_deref() == Some(uid) && config.active.as_deref() == Some(uid)
        });
    }

    /// Waits until this config is last-known-good.
    #[track_caller]
    pub(crate) fn promotes(&self, uid: &str) {
        self.shows("its promotion", |world| world.config(NODE).last_known_good.as_deref() == Some(uid));
    }

    /// Makes a configuration, pins the node to it, and returns its UID.
    #[track_caller]
    pub(crate) fn pin(&self, name: &str, payload: &str) -> String {
        let uid = self.cluster.create_config(name, payload).unwrap();
        self.cluster.assign(NODE, &Source::Pinned { name: name.to_owned(), uid: uid.clone() }).unwrap();
        uid
    }

    /// A configuration that has survived its trial.
    #[track_caller]
    pub(crate) fn good(&self, name: &str) -> String {
        let uid = self.pin(name, &payload(1, 2, "nodeStatusReportFrequency: 1m\n"));
        self.runs(&uid);
        self.promotes(&uid);
        uid
    }

    /// Waits until the process that runs now is ready and the n-th.
    #[track_caller]
    pub(crate) fn ready_in_run(&self, run: u64) {
        let awaited = format!("run {run} to be ready");
        let state = self
            .agent()
            .babysitter()
            .wait_until(&awaited, PATIENCE, |state| state.runs >= run && state.is_ready());
        let state = state.unwrap_or_else(|error| panic!("{error}\n{}", self.agent().log_text()));
        assert_eq!(state.runs, run, "{}", self.agent().log_text());
    }

    /// The ends of all runs so far.
    pub(crate) fn ends(&self) -> Vec<Ended> {
        self.agent().babysitter().state().ends.into()
    }

    /// How many runs ended in another way than well.
    pub(crate) fn unclean_ends(&self) -> usize {
        self.ends().iter().filter(|ended| ended.result != ServiceResult::Success).count()
    }

    /// A JSON file of the agent's configuration directory.
    pub(crate) fn record(&self, path: &str) -> Value {
        let path = self.agent().config_dir().join(path);
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The counts kept about the configuration that ran last.
    pub(crate) fn startups(&self) -> Value {
        let record = self.record(STARTUPS);
        record["records"][record["last"].as_str().expect("something ran last")].clone()
    }

    /// Changes them by hand, while the agent does not run.
    pub(crate) fn edit_startups(&self, edit: impl FnOnce(&mut Value)) {
        let mut record = self.record(STARTUPS);
        let last = record["last"].as_str().expect("something ran last").to_owned();
        edit(&mut record["records"][last]);
        self.write_record(STARTUPS, &record);
    }

    /// Writes a record of the agent's by hand, while it does not run.
    pub(crate) fn write_record(&self, path: &str, content: &Value) {
        std::fs::write(self.agent().config_dir().join(path), content.to_string()).unwrap();
    }

    /// How many startups are counted against the configuration that runs.
    pub(crate) fn counted_startups(&self) -> usize {
        self.startups()["startups"].as_array().map(Vec::len).expect("startups.json has a list of startups")
    }

    /// How many power cuts in a row.
    pub(crate) fn counted_cuts(&self) -> u64 {
        self.startups()["cuts"].as_u64().expect("startups.json counts cuts")
    }
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
