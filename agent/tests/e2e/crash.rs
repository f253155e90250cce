//! Crashes, hangs and stops: which of them count against a configuration, and what the node does then.

use std::time::Duration;

use kedge_rig::agent::AgentOptions;
use kedge_rig::babysitter::ServiceResult;
use kedge_rig::babysitter::{Babysitter, Phase, Signal, Unit};
use serde_json::json;

use crate::setup::{NODE, Setup, faulty, payload, plain};

const CRASH_AT_ONCE: &str = "kedge:\n  faultInjection:\n    crashAfter: 0s\n";
const CRASH_SOON: &str = "kedge:\n  faultInjection:\n    crashAfter: 500ms\n";

#[track_caller]
fn rolled_back_for_crashes(setup: &Setup, bad: &str, good: &str) {
    setup.config_ok(
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!("current failed trial period due to crash loop (UID: {bad})"),
    );
    setup.shows("the roll back's event", |world| world.saw_event(NODE, "ConfigRolledBack", bad));
}

/// With a threshold of N, the N+1st crash is the last.
#[track_caller]
fn check_threshold(fields: &str, threshold: u32) {
    let setup = Setup::new("crash", faulty());
    let good = setup.good("edge-good");
    let bad = setup.pin("edge-crash", &payload(30, threshold, fields));
    rolled_back_for_crashes(&setup, &bad, &good);
    let crashes = usize::try_from(threshold).unwrap() + 1;
    // two adoptions, the crashes, and then a run that does not end
    assert_eq!((setup.ends().len(), setup.unclean_ends()), (2 + crashes, crashes), "{:?}", setup.ends());
    setup.ready_in_run(u64::try_from(crashes).unwrap() + 3);
    // last-known-good runs now, and no start is counted against it
    assert_eq!(setup.counted_startups(), 0);
}

#[test]
fn crashes_above_the_threshold_roll_back() {
    check_threshold(CRASH_SOON, 2);
}

#[test]
fn threshold_zero_rolls_back_at_the_first_crash() {
    check_threshold(CRASH_SOON, 0);
}

#[test]
fn crash_before_ready_is_counted() {
    check_threshold(CRASH_AT_ONCE, 1);
}

#[test]
fn crashing_first_config_falls_back_to_local() {
    let setup = Setup::new("crash-local", faulty());
    let bad = setup.pin("edge-crash", &payload(30, 1, CRASH_SOON));
    setup.config_ok(
        "False",
        "using last-known-good (init)",
        &format!("current failed trial period due to crash loop (UID: {bad})"),
    );
    assert_eq!(setup.unclean_ends(), 2);
}

#[test]
fn kill_is_counted_and_stop_is_not() {
    let mut setup = Setup::new("kill", plain());
    let good = setup.good("edge-good");
    let uid = setup.pin("edge-next", &payload(120, 1, ""));
    setup.runs(&uid);
    // stops, in each of the ways that exist
    for _ in 0..3 {
        setup.agent_mut().stop().unwrap();
        setup.agent_mut().start().unwrap();
    }
    setup.runs(&uid);
    assert_eq!(setup.counted_startups(), 0);
    for (signal, run) in [(Signal::SIGTERM, 2), (Signal::SIGINT, 3)] {
        setup.agent().babysitter().signal(signal);
        setup.ready_in_run(run);
    }
    assert_eq!(setup.counted_startups(), 0);
    // kills
    setup.agent().babysitter().signal(Signal::SIGKILL);
    setup.ready_in_run(4);
    assert_eq!(setup.counted_startups(), 1);
    setup.runs(&uid);
    setup.agent().babysitter().signal(Signal::SIGKILL);
    rolled_back_for_crashes(&setup, &uid, &good);
}

#[test]
fn suspended_agent_is_killed_and_counted() {
    let setup = Setup::new("stopped", AgentOptions { watchdog: Duration::from_secs(3), ..plain() });
    let good = setup.good("edge-good");
    let uid = setup.pin("edge-next", &payload(120, 0, ""));
    setup.runs(&uid);
    setup.agent().babysitter().signal(Signal::SIGSTOP);
    rolled_back_for_crashes(&setup, &uid, &good);
    let ends = setup.ends();
    assert_eq!(ends.last().map(|ended| ended.result), Some(ServiceResult::Watchdog));
}

/// A loop of the agent hangs: the ping stops, the next start names the loop, and the config is rolled back.
#[track_caller]
fn check_hang(stalled: &str) {
    let setup = Setup::new("hang", AgentOptions { watchdog: Duration::from_secs(3), ..faulty() });
    let good = setup.good("edge-good");
    let fields = format!("kedge:\n  faultInjection:\n    hangLoop: {stalled}\n    hangAfter: 1s\n");
    let uid = setup.pin("edge-hang", &payload(300, 0, &fields));
    rolled_back_for_crashes(&setup, &uid, &good);
    assert_eq!(setup.ends().last().map(|ended| ended.result), Some(ServiceResult::Watchdog));
    let log = setup.agent().log_text();
    assert!(log.contains(&format!("stalled: {stalled}")), "the stalled loop is not named:\n{log}");
}

#[test]
fn hanging_main_loop_is_named_and_counted() {
    check_hang("main");
}

#[test]
fn hanging_renewal_loop_is_named_and_counted() {
    check_hang("renew");
}

#[test]
fn config_never_ready_is_rolled_back() {
    let mut setup = Setup::new("start-timeout", AgentOptions { start: Duration::from_secs(20), ..faulty() });
    let good = setup.good("edge-good");
    // a machine that builds at the same time may be slow to start the good ones; the bad one never gets there
    let uid =
        setup.pin("edge-never-ready", &payload(300, 0, "kedge:\n  faultInjection:\n    hangLoop: start\n"));
    rolled_back_for_crashes(&setup, &uid, &good);
    // the start in place has the agent's watchdog limit, a start by the service manager has the manager's
    assert_eq!(setup.ends().last().map(|ended| ended.result), Some(ServiceResult::Watchdog));
    // a later start does not run the replaced config either
    setup.agent_mut().stop().unwrap();
    setup.agent_mut().start().unwrap();
    rolled_back_for_crashes(&setup, &uid, &good);
}

#[test]
fn stop_that_ends_in_a_kill_is_not_counted() {
    let options =
        AgentOptions { watchdog: Duration::from_secs(600), stop: Duration::from_secs(2), ..faulty() };
    let mut setup = Setup::new("slow-stop", options);
    setup.good("edge-good");
    let fields = "kedge:\n  faultInjection:\n    hangLoop: main\n    hangAfter: 1s\n";
    let uid = setup.pin("edge-deaf", &payload(300, 0, fields));
    setup.runs(&uid);
    let deaf = kedge_rig::scratch::poll(crate::setup::PATIENCE, || {
        setup.agent().log_text().contains("loop main stops here").then_some(())
    });
    assert!(deaf.is_some(), "{}", setup.agent().log_text());
    let babysitter = setup.agent().babysitter();
    babysitter.stop_and_wait(crate::setup::PATIENCE).unwrap();
    assert_eq!(setup.ends().last().map(|ended| ended.result), Some(ServiceResult::Timeout));
    setup.agent_mut().start().unwrap();
    assert_eq!((setup.counted_startups(), setup.counted_cuts()), (0, 0));
    setup.runs(&uid);
}

/// A node whose configuration is in its trial, killed without a record of its end; `change` edits the files
/// that it left.
#[track_caller]
fn check_cut(purpose: &str, change: impl Fn(&Setup), startups: usize, cuts: u64) {
    let mut setup = Setup::new(purpose, plain());
    let uid = setup.pin("edge-next", &payload(300, 2, ""));
    setup.runs(&uid);
    setup.agent_mut().cut();
    change(&setup);
    setup.agent_mut().start().unwrap();
    assert_eq!(
        (setup.counted_startups(), setup.counted_cuts()),
        (startups, cuts),
        "{}",
        setup.agent().log_text()
    );
    setup.runs(&uid);
}

fn as_of_another_boot(setup: &Setup) {
    setup.edit_startups(|startups| {
        assert!(startups["open"].is_string(), "{startups}");
        startups["open"] = "a-boot-that-is-over".into();
    });
}

#[test]
fn unrecorded_end_in_this_boot_is_counted() {
    check_cut("no-record", |_| {}, 1, 0);
}

#[test]
fn power_cut_is_not_counted_as_crash() {
    check_cut("power-cut", as_of_another_boot, 0, 1);
}

#[test]
fn cuts_29_in_a_row_roll_back() {
    let mut setup = Setup::new("29-cuts", plain());
    let good = setup.good("edge-good");
    let uid = setup.pin("edge-next", &payload(300, 2, ""));
    setup.runs(&uid);
    // 27 power cuts counted before, and two more; the agent that starts between the two continues the trial
    setup.agent_mut().cut();
    setup.edit_startups(|startups| startups["cuts"] = 27.into());
    as_of_another_boot(&setup);
    setup.agent_mut().start().unwrap();
    assert_eq!(setup.counted_cuts(), 28, "{}", setup.agent().log_text());
    setup.runs(&uid);
    setup.agent_mut().cut();
    as_of_another_boot(&setup);
    setup.agent_mut().start().unwrap();
    setup.config_ok(
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!("current failed trial period due to power cuts (UID: {uid})"),
    );
}

#[test]
fn crash_recorded_before_a_reboot_is_counted() {
    let record = json!({"version": 1, "record": {
        "bootId": "a-boot-that-is-over", "result": "watchdog", "exitCode": "killed", "exitStatus": "ABRT",
        "wasReady": true, "stopAsked": false, "stalled": ["main"]
    }});
    check_cut(
        "recorded-reboot",
        |setup| {
            as_of_another_boot(setup);
            std::fs::write(setup.agent().root_dir().join("last-exit.json"), record.to_string()).unwrap();
        },
        1,
        0,
    );
}

#[test]
fn plain_restart_loop_survives_a_crashing_config() {
    let mut setup = Setup::new("plain-loop", faulty());
    let good = setup.good("edge-good");
    setup.agent_mut().stop().unwrap();
    let mut command: Vec<std::ffi::OsString> = vec![
        "/bin/sh".into(),
        "-c".into(),
        r#"unset NOTIFY_SOCKET WATCHDOG_USEC WATCHDOG_PID; while true; do echo x >>"$STARTS"; "$@"; sleep 0.2; done"#
            .into(),
        "sh".into(),
    ];
    // the loop is killed with its child: the child dies with the shell
    command.extend(["setpriv", "--pdeathsig", "KILL"].map(Into::into));
    command.extend(setup.agent().command());
    let mut unit = Unit::new("plain-loop", command);
    unit.restart = false;
    unit.limits.watchdog = None;
    unit.limits.start = Duration::from_secs(3600);
    unit.run_dir = Some(setup.agent().run_dir());
    unit.log = Some(setup.agent().log());
    let starts = setup.agent().run_dir().join("starts");
    unit.environment.push(("STARTS".into(), starts.clone().into()));
    let _loop = Babysitter::start(unit).unwrap();

    setup.runs(&good);
    let bad = setup.pin("edge-crash", &payload(30, 2, CRASH_SOON));
    rolled_back_for_crashes(&setup, &bad, &good);
    let next = setup.pin("edge-next", &payload(1, 2, ""));
    setup.runs(&next);
    setup.promotes(&next);
    // the loop started it at first and after each of three crashes: the adoptions happened within the process
    assert_eq!(std::fs::read_to_string(starts).unwrap().lines().count(), 4, "{}", setup.agent().log_text());
}

/// The mark is what tells this end from a crash: the record of the run is still open.
#[test]
fn kill_during_a_stop_is_not_counted() {
    let setup = Setup::new("kill-in-stop", faulty());
    let uid = setup.pin("edge-next", &payload(300, 2, ""));
    setup.runs(&uid);
    // the stop waits for a disk that the test blocks
    let gate = setup.agent().run_dir().join("gate-disk");
    std::fs::write(&gate, "").unwrap();
    setup.agent().babysitter().signal(Signal::SIGTERM);
    let stopping = |state: &kedge_rig::babysitter::State| state.phase == Phase::Stopping;
    setup.agent().babysitter().wait_until("its stop", crate::setup::PATIENCE, stopping).unwrap();
    setup.agent().babysitter().signal(Signal::SIGKILL);
    std::fs::remove_file(&gate).unwrap();
    setup.ready_in_run(3);
    assert_eq!(setup.ends().last().map(|ended| ended.result), Some(ServiceResult::Signal));
    assert_eq!((setup.counted_startups(), setup.counted_cuts()), (0, 0));
    setup.runs(&uid);
}

/// Two agents on the same records would overwrite each other's: their sockets are in different directories,
/// so only the claim on the root directory keeps them apart.
#[test]
fn second_agent_on_the_same_root_refuses_to_run() {
    let setup = Setup::new("second", plain());
    let before = setup.cluster.view().look(|world| world.renewal_count(NODE));
    let command = setup.agent().command();
    let other = std::process::Command::new(&command[0])
        .args(&command[1..])
        .env_remove("NOTIFY_SOCKET")
        .env("RUNTIME_DIRECTORY", setup.agent().run_dir().join("other"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(1), "{said}");
    assert!(said.contains("another agent keeps its state there; refusing to run beside it"), "{said}");
    setup.shows("the first goes on", |world| world.renewal_count(NODE) > before + 1);
    assert_eq!(setup.ends().len(), 0);
}
