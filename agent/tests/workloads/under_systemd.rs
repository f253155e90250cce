//! The unit as it is shipped, under a real systemd as process 1 of namespaces of its own: the heartbeat
//! continues while something hangs where no signal ends it.

use crate::dead_paths::{MOST_SILENCE, dead_disk, pod};
use crate::pods::{NODE, Setup};
use crate::setup::{INSIDE, LIMIT, isolated_network};
use kedge_rig::scratch::wait_until;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A machine of which systemd is process 1; it ends with this.
struct Machine {
    first: Child,
    log: PathBuf,
}

impl Machine {
    /// With the agent of `setup` under the unit of this repository.
    fn start(setup: &Setup) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let agent = setup.cluster.agent(NODE);
        let at = agent.root_dir().with_file_name("machine");
        let (units, log) = (at.join("units"), at.join("log"));
        fs::create_dir_all(units.join("multi-user.target.wants")).unwrap();
        fs::create_dir_all(units.join("kedge.service.d")).unwrap();
        fs::copy(here.join("systemd/kedge.service"), units.join("kedge.service")).unwrap();
        symlink("../kedge.service", units.join("multi-user.target.wants/kedge.service")).unwrap();
        let to = format!("append:{}", at.join("agent.log").display());
        let drop_in = format!("[Service]\nStandardOutput={to}\nStandardError={to}\n");
        fs::write(units.join("kedge.service.d/log.conf"), drop_in).unwrap();
        // the places that the unit names, in the mount namespace of this test
        let script = "mkdir bin && mount -t tmpfs bin bin && mkdir bin/upper bin/work && \
            mount -t overlay -o lowerdir=/usr/bin,upperdir=bin/upper,workdir=bin/work bin /usr/bin && \
            touch /usr/bin/kedge && mount --bind \"$0\" /usr/bin/kedge && mkdir -p /etc/kedge /etc/default";
        let program = env!("CARGO_BIN_EXE_kedge");
        let made = Command::new("sh").args(["-c", script, program]).current_dir(&at).status().unwrap();
        assert!(made.success());
        fs::copy(agent.kubeconfig(), "/etc/kedge/kubeconfig").unwrap();
        let flags = format!(
            "KEDGE_FLAGS=--root-dir {} --config-dir {} --hostname-override {NODE} --cgroup-root {}\n",
            agent.root_dir().display(),
            agent.drop_in_dir().display(),
            std::env::var(INSIDE).unwrap()
        );
        fs::write("/etc/default/kedge", flags).unwrap();
        let mut machine = Command::new("sh");
        machine.arg(here.join("tests/workloads/machine.sh")).arg(std::env::var(INSIDE).unwrap());
        let first = machine.args([&units, &log]).stdin(Stdio::null()).spawn().unwrap();
        Self { first, log }
    }

    /// Runs a command there; its output.
    fn run(&self, script: &str) -> String {
        let manager = children_of(self.first.id());
        let [manager] = manager[..] else { panic!("no systemd: {}", self.log()) };
        let mut command = Command::new("nsenter");
        command.args(["--target", &manager.to_string(), "--mount", "--pid", "--cgroup", "sh", "-c", script]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    fn is_active(&self) -> bool {
        self.run("systemctl show --property ActiveState,StatusText kedge").contains("=active")
    }

    fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.log.with_file_name(name)).unwrap_or_default();
        format!("{}\n{}", read("log"), read("agent.log"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

fn children_of(process: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The heartbeat's longest gap since a moment, once renewals have resumed.
fn gap(setup: &Setup, machine: &Machine, since: Instant) -> Duration {
    let seen = || setup.cluster.view().look(|world| world.renewal_count(NODE));
    let before = seen();
    let goes_on = kedge_rig::scratch::poll(LIMIT, || (seen() > before + 1).then_some(()));
    assert!(goes_on.is_some(), "no renewal after {:?}: {}", since.elapsed(), machine.log());
    setup.cluster.view().look(|world| world.longest_silence(NODE, since))
}

#[test]
fn heartbeat_goes_on_over_a_dead_path_a_push_and_a_stop() {
    isolated_network("under_systemd::heartbeat_goes_on_over_a_dead_path_a_push_and_a_stop", || {
        if !Path::new("/usr/lib/systemd/systemd").exists() {
            assert!(std::env::var_os("CI").is_none(), "missing: systemd");
            return kedge_rig::power_cut::print_past_test_runner("SKIPPED: no systemd on this machine");
        }
        let setup = Setup::before_the_agent();
        let far = setup.cluster.agent(NODE).root_dir().with_file_name("far");
        let Some(disk) = dead_disk(&far) else { return };
        let machine = Machine::start(&setup);
        let has_pods = || {
            let node = setup.cluster.kubectl().json(&["get", "node", NODE]).unwrap_or_default();
            node["status"]["allocatable"]["pods"] == "110"
        };
        wait_until("a node that takes pods", LIMIT, has_pods);
        let since = Instant::now();
        disk.die();
        setup.apply(&pod("stuck", Some(&far), "exec sleep 86321"));
        let words = format!("hostPath {} does not answer", far.display());
        wait_until("an Event", LIMIT, || setup.has_event(&["pod/stuck", "FailedMount", &words]));
        let main = "systemctl show --property MainPID kedge";
        let before = machine.run(main);
        let uid = setup.push("edge-next");
        let runs = format!("using current (UID: {uid})");
        wait_until("the pushed configuration", LIMIT, || {
            let (status, words) = setup.config_ok();
            status == "True" && words.starts_with(&runs)
        });
        assert_eq!(machine.run(main), before, "in place");
        let asked = Instant::now();
        machine.run("systemctl restart kedge");
        assert!(asked.elapsed() < Duration::from_secs(6), "after {:?}", asked.elapsed());
        assert!(machine.is_active(), "{}", machine.log());
        let silence = gap(&setup, &machine, since);
        assert!(silence < MOST_SILENCE, "silent for {silence:?}");

        // a main process that no signal ends: systemd waits its limit after each signal, and then starts the
        // next
        let dead = format!(
            "cd /run/units/kedge.service.d && printf '[Service]\\nType=simple\\nWatchdogSec=0\\nExecStart=\\n\
             ExecStart=/usr/bin/cat {}/data\\n' >dead.conf && systemctl daemon-reload && systemctl restart kedge",
            far.display()
        );
        let waiting = disk.waiting();
        machine.run(&dead);
        wait_until("a process that waits", LIMIT, || disk.waiting() > waiting);
        machine.run("rm /run/units/kedge.service.d/dead.conf; systemctl daemon-reload");
        let asked = Instant::now();
        machine.run("systemctl restart kedge");
        let took = asked.elapsed();
        assert!(took > Duration::from_secs(12), "it could be ended after {took:?}, so this shows nothing");
        assert!(took < MOST_SILENCE, "after {took:?}");
        assert!(machine.is_active(), "{}", machine.log());
        gap(&setup, &machine, asked);
    });
}
