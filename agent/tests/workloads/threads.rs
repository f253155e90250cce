//! A machine that refuses new threads and processes for a while, as beside a fork bomb: nothing is lost for
//! good.

use crate::pods::{NODE, Setup, pids};
use crate::setup::{INSIDE, LIMIT, isolated, kill};
use crate::static_pods::MANIFEST;
use kedge_rig::Scratch;
use kedge_rig::babysitter::State;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {nodefs.available: 0%, imagefs.available: 0%}\nfileCheckFrequency: 1s\nshutdownGracePeriod: 20s\n";
/// A control group that an agent is started in, alone.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let version_1 = Path::new("/sys/fs/cgroup/pids");
        let tree = if version_1.exists() { version_1 } else { Path::new("/sys/fs/cgroup") };
        let path = tree.join(format!("{}-threads", std::env::var(INSIDE).unwrap().trim_start_matches('/')));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A node whose agent is started in it.
    fn node(&self, scratch: &Path) -> Setup {
        let program = scratch.join("agent");
        let script = format!(
            "#!/bin/sh\necho $$ >{}/cgroup.procs\nexec {} \"$@\"\n",
            self.0.display(),
            env!("CARGO_BIN_EXE_kedge")
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Setup::before_an_agent(&program, |_| ())
    }

    /// The most threads and processes.
    fn allow(&self, most: &str) {
        fs::write(self.0.join("pids.max"), most).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
                kill(pid.parse().unwrap());
            }
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
        }
        eprintln!("left behind: {}", self.0.display());
    }
}

#[test]
fn start_without_threads_loses_nothing_for_good() {
    isolated("threads::start_without_threads_loses_nothing_for_good", || {
        let (group, scratch) = (Group::new(), Scratch::new("threads").unwrap());
        let mut setup = group.node(&scratch);
        let directory = scratch.join("manifests");
        fs::create_dir_all(&directory).unwrap();
        let config = format!("{CONFIG}staticPodPath: {}\n", directory.display());
        setup.cluster.agent(NODE).write_drop_in("10-static.conf", &config).unwrap();
        setup.await_pods();
        let mut served = Vec::new();
        // from a limit too low to start at all to one with room for all but the last threads
        for most in [3, 9, 10, 11, 12] {
            let node = setup.cluster.agent(NODE);
            let before = node.babysitter().state();
            group.allow(&most.to_string());
            kill(before.pid.unwrap().into());
            let began =
                |state: &State| state.runs > before.runs && state.is_ready() || state.runs > before.runs + 2;
            node.babysitter().wait_until("starts without threads", LIMIT, began).unwrap();
            served.push(node.babysitter().state().is_ready());
            let file = directory.join("web.yaml");
            fs::write(&file, MANIFEST).unwrap();
            group.allow("max");
            setup.shows(&format!("a pod after a start with {most} threads"), || pids().len() == 1);
            fs::remove_file(&file).unwrap();
            setup.shows("its end", || pids().is_empty());
        }
        assert!(served.contains(&true) && served.contains(&false), "both sorts of starts: {served:?}");
    });
}

#[test]
fn probe_without_a_thread_does_not_end_the_agent() {
    isolated("threads::probe_without_a_thread_does_not_end_the_agent", || {
        let (group, scratch) = (Group::new(), Scratch::new("threads").unwrap());
        let mut setup = group.node(&scratch);
        setup.await_pods();
        let kubectl = setup.cluster.kubectl();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", "exec sleep 86321"],
                "livenessProbe": {"exec": {"command": ["/bin/true"]}, "periodSeconds": 1, "failureThreshold": 2}}]}});
        kubectl.feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
        setup.shows("the pod", || setup.runs_with(0));
        let agent = || setup.cluster.agent(NODE).babysitter().state();
        let before = agent();
        group.allow("1");
        setup.shows("a probe without a thread", || {
            let events = kubectl.run(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
            events.is_ok_and(|events| events.contains("cannot start a thread"))
        });
        group.allow("max");
        assert_eq!(agent().pid, before.pid, "the agent goes on");
        assert!(setup.runs_with(0), "a probe that did not run counts for nothing");
    });
}
