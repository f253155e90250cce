//! A push replaces the program in place: the same process, no pause; and what a stop, a kill, a second push
//! or an upgrade at any moment of it leads to.
//!
//! The gates at which the process is held are those of `run.rs`, in its order: the first three in the process
//! image that ends, the other two in the one that starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kedge_rig::agent::AgentOptions;
use kedge_rig::babysitter::{Babysitter, Ended, Phase, ServiceResult, Signal, State};
use kedge_rig::cluster::Source;
use kedge_rig::scratch::wait_until;

use crate::setup::{NODE, PATIENCE, Setup, faulty, payload, plain};

const GATES: [&str; 5] = ["exec-decided", "exec-blocked", "exec-recorded", "exec-begun", "exec-claimed"];

/// A payload that its `maxPods` distinguishes from the others.
fn numbered(number: u64) -> String {
    payload(600, 0, &format!("maxPods: {number}\n"))
}

/// A node that follows a ConfigMap, at number 1 of its contents.
fn following(purpose: &str, options: AgentOptions) -> Setup {
    let setup = Setup::new(purpose, options);
    setup.cluster.create_config("edge", &numbered(1)).unwrap();
    setup.cluster.assign(NODE, &Source::Following { name: "edge".into() }).unwrap();
    runs_number(&setup, 1);
    setup
}

fn push(setup: &Setup, number: u64) {
    setup.cluster.edit_config("edge", &numbered(number)).unwrap();
}

/// Waits until the node itself reports that this content runs, and well.
#[track_caller]
fn runs_number(setup: &Setup, number: u64) {
    let awaited = format!("number {number} to run; the log:\n{}", setup.agent().log_text());
    wait_until(&awaited, PATIENCE, || {
        let runs = |shown: serde_json::Value| shown["config"]["maxPods"] == number;
        let ok = |shown: serde_json::Value| shown["condition"]["status"] == "True";
        setup.agent().kedge_json(&["config", "show"]).is_ok_and(runs)
            && setup.agent().kedge_json(&["config", "status"]).is_ok_and(ok)
    });
}

fn babysitter(setup: &Setup) -> &Babysitter {
    setup.agent().babysitter()
}

fn run_file(setup: &Setup, name: &str) -> PathBuf {
    setup.agent().run_dir().join(name)
}

fn close(setup: &Setup, gate: &str) {
    std::fs::write(run_file(setup, &format!("gate-{gate}")), "").unwrap();
}

fn open(setup: &Setup, gate: &str) {
    std::fs::remove_file(run_file(setup, &format!("gate-{gate}"))).unwrap();
}

/// Waits until the process is held there.
#[track_caller]
fn wait_at(setup: &Setup, gate: &str) {
    wait_until(&format!("the process at {gate}"), PATIENCE, || {
        run_file(setup, &format!("at-{gate}")).exists()
    });
}

/// Forgets earlier replacements: this test makes more than an operator does.
fn forget_pace(setup: &Setup) {
    let _ = std::fs::remove_file(run_file(setup, "replaced"));
}

/// Pushes `number` and holds the process at `gate` of the replacement that this leads to.
#[track_caller]
fn push_and_hold(setup: &Setup, gate: &str, number: u64) {
    forget_pace(setup);
    close(setup, gate);
    push(setup, number);
    wait_at(setup, gate);
}

#[test]
fn push_keeps_the_process_and_has_no_pause() {
    // a pause would be noticed: with one, this test would exceed its patience
    let options = AgentOptions { restart_after: PATIENCE * 2, ..plain() };
    let mut setup = following("replace", options);
    let pid = babysitter(&setup).state().pid;
    push(&setup, 2);
    runs_number(&setup, 2);
    let state = babysitter(&setup).state();
    assert_eq!(state.pid, pid);
    assert!(state.status.starts_with("runs ConfigMap "), "what systemctl status shows: {:?}", state.status);
    assert!(state.ends.len() == 2 && state.ends.iter().all(|ended| ended.is_replaced), "{:?}", state.ends);
    assert_eq!(setup.counted_startups(), 0);
    // each process image counts as a run of its own, and the last one handles signals and its own end
    assert_eq!(std::fs::read_to_string(run_file(&setup, "run")).unwrap(), "3");
    let socket = run_file(&setup, "kedge.sock");
    assert!(std::os::unix::net::UnixStream::connect(socket).is_ok());
    setup.agent_mut().stop().unwrap();
    setup.agent_mut().start().unwrap();
    runs_number(&setup, 2);
    assert_eq!(setup.counted_startups(), 0);
}

#[test]
fn fourth_push_in_a_minute_is_paced() {
    let setup = following("replace-pace", plain());
    for number in 2..=4 {
        push(&setup, number);
        runs_number(&setup, number);
    }
    let ends = setup.ends();
    assert!(ends.len() == 4 && ends[..3].iter().all(|ended| ended.is_replaced), "{ends:?}");
    // on a machine so slow that this image has run for ten seconds it need not be paced
    if ends[3].ran < Duration::from_secs(9) {
        assert!(!ends[3].is_replaced, "{ends:?}");
        assert_eq!(ends[3].exit.code(), Some(0));
        assert!(setup.agent().log_text().contains("too many replacements"));
    }
    assert_eq!((setup.unclean_ends(), setup.counted_startups()), (0, 0));
}

#[test]
fn stop_at_any_moment_of_a_replacement_is_obeyed() {
    let setup = following("replace-stop", faulty());
    for (index, gate) in GATES.iter().enumerate() {
        let number = 10 + index as u64;
        push_and_hold(&setup, gate, number);
        babysitter(&setup).stop();
        let is_asked = |state: &State| state.phase == Phase::Stopping;
        babysitter(&setup).wait_until("the signal", PATIENCE, is_asked).unwrap();
        open(&setup, gate);
        babysitter(&setup).stop_and_wait(PATIENCE).unwrap();
        // it ended by itself, not by the signal's default action
        let ended: Ended = setup.ends().pop().unwrap();
        assert_eq!((ended.result, ended.exit.code()), (ServiceResult::Success, Some(0)), "{gate}: {ended}");
        babysitter(&setup).start_again();
        runs_number(&setup, number);
        assert_eq!(setup.counted_startups(), 0, "{gate}");
    }
}

#[test]
fn kill_at_any_moment_of_a_replacement_loses_nothing() {
    let setup = following("replace-kill", faulty());
    for (index, gate) in GATES.iter().enumerate() {
        let number = 10 + index as u64;
        push_and_hold(&setup, gate, number);
        let before = babysitter(&setup).state();
        babysitter(&setup).signal(Signal::SIGKILL);
        // the gate opens only when the process is dead, or it would run for a moment more
        babysitter(&setup).wait_ends(before.ends.len() + 1, PATIENCE).unwrap();
        open(&setup, gate);
        setup.ready_in_run(before.runs + 1);
        runs_number(&setup, number);
        // the adoption was durable and closed before, and the next start was not recorded yet
        assert_eq!(setup.counted_startups(), 0, "{gate}:\n{}", setup.agent().log_text());
    }
}

#[test]
fn push_at_any_moment_of_a_replacement_is_followed() {
    let setup = following("replace-push", faulty());
    for (index, gate) in GATES.iter().enumerate() {
        let number = 10 + 2 * index as u64;
        push_and_hold(&setup, gate, number);
        push(&setup, number + 1);
        open(&setup, gate);
        runs_number(&setup, number + 1);
    }
    assert_eq!((setup.unclean_ends(), setup.counted_startups()), (0, 0));
}

/// Another file with the same content in the program's place, as a package manager puts it there.
fn install(program: &Path) {
    let fresh = program.with_extension("new");
    // by another process: a copy of ours would be busy while a child of another test has inherited its
    // descriptor
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_kedge")).arg(&fresh).status().unwrap();
    assert!(copied.success());
    std::fs::rename(fresh, program).unwrap();
}

#[test]
fn push_after_an_upgrade_exits_instead_of_replacing_in_place() {
    let scratch = kedge_rig::Scratch::new("upgraded").unwrap();
    let program = scratch.path().join("kedge");
    install(&program);
    let setup = following("replace-upgrade", AgentOptions { program: program.clone(), ..plain() });
    let pid = babysitter(&setup).state().pid;
    install(&program);
    push(&setup, 2);
    runs_number(&setup, 2);
    let ended = setup.ends().pop().unwrap();
    assert!(!ended.is_replaced && ended.exit.code() == Some(0), "{ended}");
    assert_ne!(babysitter(&setup).state().pid, pid);
    assert!(setup.agent().log_text().contains("is not the one that runs"));
    assert_eq!(setup.counted_startups(), 0);
}
