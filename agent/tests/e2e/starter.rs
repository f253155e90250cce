//! A machine without slots: the packaged program starts the chosen one, and comes back after any failure of
//! that one. Real processes; each choice is a record as an agent leaves it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kedge_rig::agent::AgentOptions;
use kedge_rig::babysitter::{Babysitter, Signal, State, Unit};
use kedge_rig::cluster::{HEADER, Source};
use kedge_rig::registry::FakeRegistry;
use kedge_rig::scratch::{Scratch, wait_until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::setup::{NODE, PATIENCE, Setup, is_root, payload};

/// Dies before it has done anything, as a program for another processor does.
const DIES: &str = "#!/bin/sh\nkill -ILL $$\n";
/// Waits for ever.
const HANGS: &str = "#!/bin/sh\nexec sleep 10000\n";

/// A machine with the package. Its program is in `bin`.
struct Machine {
    // before the directory in which it runs
    babysitter: Option<Babysitter>,
    scratch: Scratch,
    /// From the start of a process until it is ready.
    start_limit: Duration,
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn executable(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The agent as it is released, with bytes at its end that make it another program.
fn agent(mark: &str) -> Vec<u8> {
    [std::fs::read(env!("CARGO_BIN_EXE_kedge")).unwrap().as_slice(), mark.as_bytes()].concat()
}

impl Machine {
    fn new() -> Self {
        let scratch = Scratch::new("starter").unwrap();
        executable(&scratch.path().join("bin/kedge"), &agent(""));
        std::fs::create_dir_all(scratch.path().join("root/system")).unwrap();
        Self { babysitter: None, scratch, start_limit: Duration::from_secs(90) }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn place(&self, content: &[u8]) -> PathBuf {
        self.at("lib/kedge/versions").join(digest(content)).join("kedge")
    }

    fn install(&self, content: &[u8]) {
        executable(&self.place(content), content);
    }

    /// Chooses programs: `used`, and one on trial.
    fn choose(&self, used: Option<&[u8]>, tried: Option<&[u8]>) {
        let program =
            |content: &[u8]| json!({ "program": digest(content), "digest": "sha256:of-a-manifest" });
        let mut record = json!({
            "apiVersion": "kedge.dev/system-v1",
            "packaged": digest(&std::fs::read(self.at("bin/kedge")).unwrap()),
        });
        for (key, content) in [("use", used), ("try", tried)] {
            if let Some(content) = content {
                record[key] = program(content);
            }
        }
        std::fs::write(self.at("root/system/agent"), record.to_string()).unwrap();
    }

    fn record(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.at("root/system/agent")).unwrap()).unwrap()
    }

    fn start(&mut self) {
        let program = self.at("bin/kedge").into_os_string();
        let common = ["--root-dir".into(), self.at("root").into(), "--run-dir".into(), self.at("run").into()];
        let own = ["--config-dir".into(), self.at("config.d").into(), "--crun".into(), "".into()];
        std::fs::create_dir_all(self.at("config.d")).unwrap();
        let agent = [program.clone(), "agent".into()].into_iter().chain(common.clone()).chain(own);
        let mut unit = Unit::new("starter", agent.collect());
        unit.record_command = Some([program, "record-exit".into()].into_iter().chain(common).collect());
        unit.run_dir = Some(self.at("run"));
        unit.log = Some(self.at("log"));
        unit.limits.start = self.start_limit;
        unit.limits.stop = Duration::from_secs(2);
        unit.limits.restart_after = Duration::from_millis(100);
        self.babysitter = Some(Babysitter::start(unit).unwrap());
    }

    /// Waits until this program is ready.
    #[track_caller]
    fn runs(&self, program: &Path) -> i32 {
        let babysitter = self.babysitter.as_ref().unwrap();
        let image = |state: &State| std::fs::read_link(format!("/proc/{}/exe", state.pid?)).ok();
        let is_it = |state: &State| state.is_ready() && image(state).as_deref() == Some(program);
        let state = babysitter.wait_until("the right program", PATIENCE, is_it).unwrap_or_else(|error| {
            let log = std::fs::read_to_string(self.at("log")).unwrap_or_default();
            panic!("{error}\nthe record: {}\nthe log:\n{log}", self.record())
        });
        state.pid.unwrap()
    }

    /// The packaged program runs after a program failed for this reason.
    #[track_caller]
    fn falls_back(&mut self, to: &Path, reason: &str) {
        self.start();
        self.runs(to);
        let record = self.record();
        assert_eq!((&record["failed"]["reason"], record.get("try")), (&json!(reason), None), "{record}");
    }
}

#[test]
fn chosen_program_runs_and_a_crash_takes_it_back() {
    let mut machine = Machine::new();
    let (used, tried) = (agent("used"), agent("tried"));
    machine.install(&used);
    machine.install(&tried);
    machine.choose(Some(&used), Some(&tried));
    machine.start();
    let mut last = 0;
    for tries in 1..=3 {
        let process = machine.runs(&machine.place(&tried));
        assert_ne!(process, last);
        assert_eq!(machine.record()["starts"], tries);
        last = process;
        let ends = machine.babysitter.as_ref().unwrap().state().ends.len();
        machine.babysitter.as_ref().unwrap().signal(Signal::SIGKILL);
        machine.babysitter.as_ref().unwrap().wait_ends(ends + 1, PATIENCE).unwrap();
    }
    machine.runs(&machine.place(&used));
    assert_eq!(machine.record()["failed"]["reason"], "crash");
}

#[test]
fn tried_program_that_dies_brings_back_the_package() {
    let mut machine = Machine::new();
    machine.install(DIES.as_bytes());
    machine.choose(None, Some(DIES.as_bytes()));
    machine.falls_back(&machine.at("bin/kedge"), "crash");
    let ends = machine.babysitter.as_ref().unwrap().state().ends;
    assert_eq!(ends.iter().filter(|end| end.exit.signal() == Some(4)).count(), 3, "{ends:?}");
}

#[test]
fn tried_program_that_never_is_ready_brings_back_the_package() {
    let mut machine = Machine::new();
    machine.start_limit = Duration::from_secs(10);
    machine.install(HANGS.as_bytes());
    machine.choose(None, Some(HANGS.as_bytes()));
    machine.falls_back(&machine.at("bin/kedge"), "crash");
}

#[test]
fn program_whose_file_is_unusable_is_not_started() {
    for (content, reason) in [(None, "gone"), (Some("another"), "damaged"), (Some("\0not a program"), "exec")]
    {
        let mut machine = Machine::new();
        let used = agent("used");
        machine.install(&used);
        let wanted = content.filter(|_| reason == "exec").unwrap_or("wanted").as_bytes();
        if let Some(content) = content {
            executable(&machine.place(wanted), content.as_bytes());
        }
        machine.choose(Some(&used), Some(wanted));
        machine.falls_back(&machine.place(&used), reason);
    }
}

#[test]
fn newly_installed_package_takes_the_place_of_all() {
    let mut machine = Machine::new();
    let used = agent("used");
    machine.install(&used);
    machine.choose(Some(&used), None);
    std::fs::remove_file(machine.at("bin/kedge")).unwrap();
    executable(&machine.at("bin/kedge"), &agent("the next release"));
    machine.start();
    machine.runs(&machine.at("bin/kedge"));
    let record = machine.record();
    assert_eq!(
        (record.get("use"), &record["overruled"]["program"]),
        (None, &json!(digest(&used))),
        "{record}"
    );
}

/// A node with its program in its scratch directory, and a registry that it trusts.
fn installed(purpose: &str) -> (Scratch, FakeRegistry, Setup) {
    let scratch = Scratch::new(purpose).unwrap();
    executable(&scratch.path().join("bin/kedge"), &agent(""));
    // the package has no keys, and says that updates need no signature
    scratch.write("lib/kedge/release", "UPDATES=allow-unsigned\n");
    let registry = FakeRegistry::start().unwrap();
    let images = format!("{HEADER}kedge: {{images: {{insecureRegistries: [\"{}\"]}}}}\n", registry.name());
    scratch.write("local.yaml", images);
    let mut options = AgentOptions::new(&scratch.path().join("bin/kedge"));
    options.restart_after = Duration::from_millis(200);
    options.flags = vec!["--config".into(), scratch.path().join("local.yaml").into()];
    let setup = Setup::new(purpose, options);
    (scratch, registry, setup)
}

/// Puts a program into the registry, and returns the lines of a payload that want it.
fn offer(registry: &FakeRegistry, version: &str, program: &[u8]) -> String {
    let processor = std::env::consts::ARCH;
    let digest_of = digest(program);
    let mut block = format!(
        "kedge-update 2\nboard {processor}\nversion {version}\nprogram {} {digest_of}\n",
        program.len()
    )
    .into_bytes();
    block.resize(4096, b'\n');
    for content in [&block[..], program] {
        let path = format!("kedge/agent/blobs/sha256:{}", digest(content));
        registry.put(&path, "application/octet-stream", content);
    }
    let image = format!("{}/kedge/agent@sha256:{}", registry.name(), "0".repeat(64));
    let digest = digest(&block);
    format!(
        "kedge:\n  images: {{insecureRegistries: [\"{}\"]}}\n  agent:\n    version: \"{version}\"\n    programs:\n      {processor}: {{image: \"{image}\", digest: \"sha256:{digest}\"}}\n",
        registry.name()
    )
}

/// The program of the node's process.
fn image(setup: &Setup) -> Option<PathBuf> {
    let pid = setup.agent().babysitter().state().pid?;
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

#[test]
fn wanted_program_is_fetched_tried_and_promoted() {
    // programs are written and tried by root alone
    if !is_root() {
        return;
    }
    let (scratch, registry, setup) = installed("program");
    let packaged = || {
        let path = scratch.path().join("bin/kedge");
        let found = std::fs::metadata(&path).unwrap();
        (found.ino(), found.mtime_nsec(), digest(&std::fs::read(&path).unwrap()))
    };
    let before = packaged();
    let next = agent("the next version");
    let uid = setup.pin("next", &payload(1, 2, &offer(&registry, "9.9", &next)));
    setup.runs(&uid);
    setup.promotes(&uid);
    let place =
        |content: &[u8]| Some(scratch.path().join("lib/kedge/versions").join(digest(content)).join("kedge"));
    assert_eq!(image(&setup), place(&next));
    let record = || -> Value {
        let path = setup.agent().root_dir().join("system/agent");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let is_used = || record()["use"]["program"] == json!(digest(&next));
    wait_until("the promotion of the program", PATIENCE, is_used);
    let requests = registry.take_seen();
    // a connection that broke is resumed
    let is_first = |range: &Option<String>| range.as_ref().is_none_or(|range| range.starts_with("bytes=0-"));
    let first = requests.iter().filter(|seen| is_first(&seen.range));
    let mut blobs: Vec<_> = first.map(|seen| seen.path.as_str()).collect();
    blobs.sort_unstable();
    let all = blobs.len();
    blobs.dedup();
    assert_eq!((all, blobs.len()), (2, 2), "the manifest and the program, once each: {requests:?}");

    // a good one that is not wanted any more before it is used
    let later = agent("a later version");
    let passing = setup.pin("later", &payload(3600, 2, &offer(&registry, "9.10", &later)));
    setup.runs(&passing);
    assert_eq!(image(&setup), place(&later));
    registry.take_seen();
    setup.cluster.assign(NODE, &Source::Pinned { name: "next".to_owned(), uid: uid.clone() }).unwrap();
    wait_until("the program before it", PATIENCE, || image(&setup) == place(&next));
    setup.runs(&uid);
    assert_eq!((record().get("try"), registry.take_seen()), (None, Vec::new()), "it is still installed");
    assert_eq!(packaged(), before, "the packaged program is never written");
}
