//! Hooks and tokens while the agent is killed, or replaces itself for another configuration.

use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network, kill};
use kedge_rig::scratch::{poll, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A program that records its begin, waits until it may end, and records its end.
fn hook(name: &str) -> Value {
    let script = format!(
        "echo begin >>/shared/{name}; while ! [ -e /shared/{name}-may-end ]; do sleep 0.1; done; echo end >>/shared/{name}"
    );
    json!({"exec": {"command": ["/bin/sh", "-c", script]}})
}

fn pod(shared: &Path) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "shared", "hostPath": {"path": shared}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}}],
        "containers": [{"name": "main", "image": "web:1",
            "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"],
            "lifecycle": {"postStart": hook("post"), "preStop": hook("pre")},
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}, {"name": "token", "mountPath": "/token"}]}]}})
}

struct Hooked {
    setup: Setup,
    shared: PathBuf,
}

impl Hooked {
    fn new() -> Self {
        let mut setup = Setup::with_runtime();
        let shared = setup.cluster.scratch().join("shared");
        fs::create_dir(&shared).unwrap();
        setup.cluster.kubectl().feed(&["apply", "-f", "-"], &pod(&shared).to_string()).unwrap();
        Self { setup, shared }
    }

    fn lines(&self, hook: &str) -> Vec<String> {
        let text = fs::read_to_string(self.shared.join(hook)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn let_end(&self, hook: &str) {
        fs::write(self.shared.join(format!("{hook}-may-end")), "").unwrap();
    }

    fn has_begun(&self, hook: &str, times: usize) {
        let count = || self.lines(hook).iter().filter(|line| *line == "begin").count();
        wait_until(&format!("{hook} begun {times} times"), LIMIT, || count() == times);
    }

    fn status(&self) -> Value {
        let pod = self.setup.cluster.kubectl().json(&["get", "pod", "web"]).unwrap_or_default();
        pod["status"]["containerStatuses"][0].clone()
    }

    /// Checks that the pod has an event with this reason.
    fn has_event(&self, reason: &str) {
        let events = || self.setup.cluster.kubectl().run(&["get", "events"]).unwrap_or_default();
        self.setup.shows(&format!("the Event {reason}"), || events().contains(reason));
    }

    /// Ends the present run of the agent: by a kill, or by a configuration for which it replaces itself.
    fn another_run(&self, is_kill: bool, round: u32) {
        let agent = self.setup.cluster.agent(NODE);
        let before = agent.babysitter().state();
        if is_kill {
            kill(before.pid.unwrap().into());
            agent
                .babysitter()
                .wait_until("another agent", LIMIT, |state| state.runs > before.runs && state.is_ready())
                .unwrap();
            return;
        }
        self.setup.replace_itself(50 + round);
        assert_eq!(agent.babysitter().state().pid, before.pid, "it replaced itself in place");
    }
}

fn check(is_kill: bool) {
    let hooked = Hooked::new();
    hooked.has_begun("post", 1);
    hooked.another_run(is_kill, 0);
    // nobody sees the end of the first
    hooked.has_begun("post", 2);
    hooked.has_event("PostStartHookRepeated");
    assert_eq!((hooked.status()["started"].clone(), hooked.lines("post").len()), (json!(false), 2));
    hooked.let_end("post");
    hooked.setup.shows("the container started", || hooked.status()["ready"] == true);
    assert_eq!(hooked.status()["restartCount"], 0);

    // a hook that has ended is not run again
    let token = || {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let mut tokens = pids.filter_map(|pid| fs::read_to_string(pid.path().join("root/token/token")).ok());
        tokens.next().unwrap_or_default()
    };
    assert_eq!(token().split('.').count(), 3, "{}", token());
    hooked.another_run(is_kill, 1);
    assert_eq!(token().split('.').count(), 3, "a token is whole at each moment: {}", token());
    hooked.setup.shows("the pod adopted", || {
        let pods = hooked.setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
        pods["pods"][0]["containers"][0]["state"] == "Running"
    });

    hooked.setup.cluster.kubectl().run(&["delete", "pod", "web", "--wait=false"]).unwrap();
    hooked.has_begun("pre", 1);
    hooked.another_run(is_kill, 2);
    hooked.has_begun("pre", 2);
    hooked.has_event("PreStopHookRepeated");
    hooked.let_end("pre");
    let is_gone = || hooked.setup.cluster.kubectl().run(&["get", "pod", "web"]).is_err();
    let ended = poll(LIMIT, || is_gone().then_some(()));
    assert!(ended.is_some(), "{}\n{}", hooked.status(), hooked.setup.cluster.agent(NODE).log_text());
    assert_eq!(
        (hooked.lines("post")[..2].join(" "), hooked.lines("pre")[..2].join(" ")),
        ("begin begin".into(), "begin begin".into())
    );
    assert_eq!(hooked.lines("pre").iter().filter(|line| *line == "begin").count(), 2);
}

#[test]
fn hooks_outlast_a_killed_agent() {
    isolated_network("hooks::hooks_outlast_a_killed_agent", || check(true));
}

#[test]
fn hooks_outlast_an_agent_that_replaces_itself() {
    isolated_network("hooks::hooks_outlast_an_agent_that_replaces_itself", || check(false));
}
