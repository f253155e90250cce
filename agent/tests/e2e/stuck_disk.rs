//! A disk that does not answer silences no node: not while the agent runs, not after it was killed.
//!
//! The disk is a real ext4 in a file, frozen by `fsfreeze`: whoever writes there waits in the kernel and
//! cannot be killed, not by SIGKILL either. A thread that only sleeps is easier on the agent, so a sleeping
//! thread replaces the frozen disk only where mounting is not permitted. Needs root. The agent's limit for
//! its disk is two seconds here instead of two minutes; with `KEDGE_CRASH_FULL=1` it is the real one, for ten
//! minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kedge_rig::agent::AgentOptions;
use kedge_rig::babysitter::{Babysitter, ServiceResult, Signal, State};
use kedge_rig::cluster::{Cluster, HEADER};
use kedge_rig::power_cut::{is_full, print_past_test_runner};
use kedge_rig::scratch::wait_until;

use crate::setup::{NODE, PATIENCE, Setup, faulty, is_root, payload};

/// Renewals, one in three seconds, that last longer than the agent's own limits.
const SCALED_RENEWALS: usize = 6;

/// Ten minutes of renewals.
const FULL_RENEWALS: usize = 200;

/// A file system in a file, thawed and unmounted when dropped. Processes on it wait in the kernel until then.
/// It must be dropped before what runs on it.
struct Disk(PathBuf);

impl Disk {
    /// `None` where mounting is not permitted, which is acceptable only on a developer's machine.
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let image = at.with_extension("ext4");
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
        };
        let (image, path) = (image.to_str().unwrap(), at.to_str().unwrap());
        if run("mkfs.ext4", &["-q", image]) && run("mount", &["-t", "ext4", "-o", "loop", image, path]) {
            return Some(Self(at.to_owned()));
        }
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no disk can be mounted at {path}");
        print_past_test_runner("SKIPPED: a frozen disk needs mkfs.ext4 and root");
        None
    }

    fn freeze(&self) {
        assert!(Command::new("fsfreeze").arg("-f").arg(&self.0).status().unwrap().success());
    }

    fn thaw(&self) {
        assert!(Command::new("fsfreeze").arg("-u").arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let thaw =
            Command::new("fsfreeze").arg("-u").arg(&self.0).stderr(std::process::Stdio::null()).status();
        let unmount = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = (thaw, unmount);
    }
}

/// A node with a last-known-good, on a disk of its own.
fn on_a_disk(purpose: &str) -> Option<(Setup, Disk, String)> {
    let options = AgentOptions {
        watchdog: Duration::from_secs(3),
        stop: Duration::from_secs(1),
        abort: Duration::from_secs(1),
        ..faulty()
    };
    let mut cluster = Cluster::start(purpose).unwrap();
    let agent = cluster.add(NODE, options).unwrap();
    let disk = Disk::mount(&agent.root_dir())?;
    if !is_full() {
        std::fs::create_dir_all(agent.run_dir()).unwrap();
        std::fs::write(agent.run_dir().join("limit-disk"), "2000").unwrap();
    }
    agent.start().unwrap();
    let setup = Setup { cluster };
    let good = setup.good("edge-good");
    Some((setup, disk, good))
}

fn babysitter(setup: &Setup) -> &Babysitter {
    setup.agent().babysitter()
}

/// Freezes the disk and pushes a configuration: writing its checkpoint is what hangs. Waits until the API
/// shows the stall.
#[track_caller]
fn freeze(setup: &Setup, disk: &Disk) -> String {
    disk.freeze();
    let next = setup.pin("edge-next", &payload(300, 0, ""));
    shows_stall(setup, "True");
    next
}

#[track_caller]
fn shows_stall(setup: &Setup, expect: &str) {
    setup.shows(&format!("DiskStalled={expect}"), |world| {
        world.condition(NODE, "DiskStalled").is_some_and(|(status, ..)| status == expect)
    });
}

#[track_caller]
fn renews(setup: &Setup, times: usize) {
    // one by one: ten minutes of renewals exceed the patience of a single wait
    for _ in 0..=times {
        let seen = setup.cluster.view().look(|world| world.renewal_count(NODE));
        setup.shows("a renewal", |world| world.renewal_count(NODE) > seen);
    }
}

/// Checks that no run has ended since then.
#[track_caller]
fn same_process_as(setup: &Setup, before: &State) -> State {
    let state = babysitter(setup).state();
    let log = setup.agent().log_text();
    assert_eq!((state.pid, state.ends.len()), (before.pid, before.ends.len()), "{log}");
    state
}

/// Processes of this program on this node's state, also those that record an end.
fn processes(setup: &Setup) -> usize {
    let root = setup.agent().root_dir();
    let root = root.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).split('\0').any(|word| word == root)).count()
}

#[test]
fn frozen_disk_stops_neither_process_nor_lease() {
    let Some((setup, disk, good)) = on_a_disk("frozen") else { return };
    let before = babysitter(&setup).state();
    let next = freeze(&setup, &disk);
    // longer than the disk's limit, the watchdog's period and the time from its SIGABRT to SIGKILL together
    renews(&setup, if is_full() { FULL_RENEWALS } else { SCALED_RENEWALS });
    let state = same_process_as(&setup, &before);
    assert!(state.pings > before.pings);
    let status = setup.agent().kedge_json(&["status"]).unwrap();
    assert!(status["disk"]["stalledSeconds"].is_u64(), "{status:#}");
    setup.shows("what still runs", |world| world.config(NODE).active.as_deref() == Some(&good));
    disk.thaw();
    setup.runs(&next);
    shows_stall(&setup, "False");
    assert_eq!((processes(&setup), setup.unclean_ends(), setup.counted_startups()), (1, 0, 0));
    let status = setup.agent().kedge_json(&["status"]).unwrap();
    assert!(status["disk"]["stalledSeconds"].is_null(), "{status:#}");
    drop(disk);
}

#[test]
fn agent_killed_on_a_frozen_disk_is_followed_by_another() {
    let Some((setup, disk, good)) = on_a_disk("frozen-kill") else { return };
    let next = freeze(&setup, &disk);
    let ends = setup.ends().len();
    for kill in 1..=2 {
        babysitter(&setup).signal(Signal::SIGKILL);
        babysitter(&setup).wait_ends(ends + kill, PATIENCE).unwrap();
        babysitter(&setup).wait_ready(PATIENCE).unwrap();
        renews(&setup, 2);
        // the push cannot be recorded, and is not forgotten either
        setup.shows("what runs, and that the push waits", |world| {
            world.config(NODE).active.as_deref() == Some(&good)
                && world.condition(NODE, "ConfigOK").is_some_and(|(status, ..)| status == "Unknown")
        });
    }
    // one that cannot end, one that runs, and one that waits to copy the record of an end to the disk; the
    // number stays at three
    assert_eq!(babysitter(&setup).state().stuck, 1, "{}", setup.agent().log_text());
    assert!(processes(&setup) <= 3, "{} processes", processes(&setup));
    shows_stall(&setup, "True");
    disk.thaw();
    setup.runs(&next);
    shows_stall(&setup, "False");
    assert_eq!(babysitter(&setup).state().stuck, 0);
    wait_until("the recorder to end", PATIENCE, || processes(&setup) == 1);
    drop(disk);
}

#[test]
fn stop_does_not_wait_for_a_frozen_disk() {
    let Some((setup, disk, _)) = on_a_disk("frozen-stop") else { return };
    let next = freeze(&setup, &disk);
    babysitter(&setup).stop_and_wait(PATIENCE).unwrap();
    let log = setup.agent().log_text();
    assert!(log.contains("exiting: asked to stop by SIGTERM, not waiting for a disk"), "{log}");
    // its last write still waits in the kernel, and may yet change the records: the next agent only reads
    // them
    babysitter(&setup).start_again();
    babysitter(&setup).wait_ready(PATIENCE).unwrap();
    let log = setup.agent().log_text();
    assert!(log.contains("running without changing anything there"), "{log}");
    disk.thaw();
    setup.runs(&next);
    assert_eq!((setup.counted_startups(), setup.counted_cuts()), (0, 0));
    drop(disk);
}

/// Nothing records how the process ended, as under Docker, and the stop is requested before the guard finds
/// the stall.
#[test]
fn stop_during_a_stall_is_no_crash_without_a_record() {
    let setup = Setup::new("stall-stop", AgentOptions { records_ends: false, ..faulty() });
    std::fs::write(setup.agent().run_dir().join("limit-disk"), "2000").unwrap();
    setup.good("edge-good");
    let tried = setup.pin("edge-tried", &payload(300, 3, ""));
    setup.runs(&tried);
    let gate = setup.agent().run_dir().join("gate-disk");
    std::fs::write(&gate, "").unwrap();
    let next = setup.pin("edge-next", &payload(300, 3, "maxPods: 7\n"));
    wait_until("the disk's thread at its gate", PATIENCE, || gate.with_file_name("at-disk").exists());
    babysitter(&setup).stop_and_wait(PATIENCE).unwrap();
    assert_eq!(setup.ends().last().map(|ended| ended.result), Some(ServiceResult::Success));
    assert!(setup.agent().log_text().contains("not waiting for a disk"), "{}", setup.agent().log_text());
    std::fs::remove_file(&gate).unwrap();
    babysitter(&setup).start_again();
    babysitter(&setup).wait_ready(PATIENCE).unwrap();
    assert_eq!((setup.counted_startups(), setup.counted_cuts()), (0, 0));
    setup.runs(&next);
}

/// Where mounting is not permitted, a thread that sleeps for ever: as on a real disk, the ping continues and
/// no process is killed for it.
#[test]
fn hanging_disk_loop_keeps_the_process_and_its_lease() {
    let setup = Setup::new("hanging", AgentOptions { watchdog: Duration::from_secs(3), ..faulty() });
    std::fs::write(setup.agent().run_dir().join("limit-disk"), "2000").unwrap();
    setup.good("edge-good");
    let fields = "kedge:\n  faultInjection:\n    hangLoop: disk\n    hangAfter: 1s\n";
    let uid = setup.pin("edge-disk", &payload(300, 0, fields));
    setup.runs(&uid);
    let before = babysitter(&setup).state();
    shows_stall(&setup, "True");
    renews(&setup, 4);
    let state = same_process_as(&setup, &before);
    // a kill is recorded as a kill, but a stop that cannot be recorded on the disk does not look like one
    babysitter(&setup).signal(Signal::SIGTERM);
    setup.ready_in_run(state.runs + 1);
    assert_eq!(setup.ends().last().map(|ended| ended.result), Some(ServiceResult::Success));
    assert_eq!((setup.counted_startups(), setup.counted_cuts()), (0, 0));
}

/// The paths in a configuration may be on a network mount whose server is away. A gate stands in for the
/// mount; the runtime need not work for it.
#[test]
fn static_pods_that_hang_hold_up_no_record() {
    let mut cluster = Cluster::start("static-hang").unwrap();
    let options = AgentOptions { crun: Some("/bin/false".into()), ..faulty() };
    let agent = cluster.add(NODE, options).unwrap();
    // the node is known to be not Ready before the push, so no configuration is blamed for it
    let terms = format!("{HEADER}configTrialDuration: 1s\nevictionPressureTransitionPeriod: 1s\n");
    agent.write_drop_in("10-terms.conf", &terms).unwrap();
    agent.start().unwrap();
    let setup = Setup { cluster };
    if !is_root() {
        print_past_test_runner("SKIPPED: only root may have a runtime");
        return;
    }
    wait_until("the look at the runtime", PATIENCE, || {
        let log = setup.agent().log_text();
        log.contains("no pods can run: ") || log.contains("no container can start")
    });
    let local_runs_since = Instant::now();
    wait_until("local to be unmixed with what ran before", PATIENCE, || {
        local_runs_since.elapsed() > Duration::from_secs(3)
    });
    let gate = setup.agent().run_dir().join("gate-static-pods");
    std::fs::write(&gate, "").unwrap();
    let hung = setup.pin("edge-hung", &payload(1, 2, "staticPodPath: /srv\n"));
    setup.runs(&hung);
    wait_until("the look at its gate", PATIENCE, || gate.with_file_name("at-static-pods").exists());
    // its trial is recorded, and a push replaces it, although it has a thread that no signal ends
    setup.promotes(&hung);
    let next = setup.pin("edge-next", &payload(300, 2, "maxPods: 7\n"));
    setup.runs(&next);
    assert_eq!(setup.counted_startups(), 0);
    std::fs::remove_file(&gate).unwrap();
}
