//! The records that a start reads, and the order of its actions. Its decisions: `start.txt` and
//! `previous-run.txt`.

use crate::{A, B, HOUR, MINUTE, TRIAL, TRIAL_AND_A_RENEWAL, payload};
use kedge_core::config::records::StateFile;
use kedge_core::{Action, Step};
use kedge_sim::{Seen, World};

#[test]
fn checkpoint_named_twice_is_read_once() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.seen.clear();
    world.start();
    let is_read = |seen: &&Seen| matches!(seen, Seen::Performed(Step::Read(StateFile::Checkpoint(_)), _));
    assert_eq!(world.seen.iter().filter(is_read).count(), 1);
}

#[test]
fn evidence_is_consumed_once_per_start() {
    let (mut world, _) = World::known_good();
    world.crash();
    world.seen.clear();
    world.start();
    world.run_for(HOUR);
    let consumed = world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert_eq!(consumed.count(), 1);
}

#[test]
fn evidence_is_consumed_only_after_startups_is_durable() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash();
    world.seen.clear();
    world.start();
    let at = |wanted: &dyn Fn(&Seen) -> bool| world.seen.iter().position(wanted).expect("it happened");
    let written =
        at(&|seen| matches!(seen, Seen::Performed(kedge_core::Step::Write(StateFile::Startups, _), _)));
    let consumed = at(&|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert!(written < consumed);
}

#[test]
fn no_config_is_in_use_before_start_is_decided() {
    let (mut world, _) = World::known_good();
    world.stop();
    let max_pods = |world: &World| {
        let node = &world.process.as_ref().expect("it runs").node;
        node.effective().map(|effective| effective.config.max_pods)
    };
    world.launch();
    assert_eq!(max_pods(&world), None);
    world.turn();
    assert_eq!(max_pods(&world), Some(A));
}

/// A payload that was proven while a drop-in corrected its lease duration, as if a release without bounds had
/// adopted it.
#[test]
fn proven_config_beyond_the_bounds_comes_back() {
    let mut world = World::new();
    world.drop_in("nodeLeaseDurationSeconds: 40");
    world.start();
    world.adopt("a", &payload(A, "nodeLeaseDurationSeconds: 2147483647"));
    world.run_for(TRIAL_AND_A_RENEWAL);
    assert_eq!(world.state(), "known-good");
    world.stop();
    world.drop_in("");
    world.log.clear();
    world.start();
    assert_eq!(world.used(), A);
    let line = "nodeLeaseDurationSeconds is 2147483647, expected 4 to 160";
    let is_warned = |logged: &String| {
        logged.starts_with("W ") && logged.contains(line) && logged.ends_with("; using 160")
    };
    assert!(world.log.iter().any(is_warned), "{:?}", world.log);
    world.turn();
    assert_eq!(world.hub.lease().expect("renewed")["spec"]["leaseDurationSeconds"], 160);
    // the same payload under another UID is a new config that has never run
    let unproven = world.adopt("b", &payload(B, "nodeLeaseDurationSeconds: 2147483647"));
    assert!(world.bad_configs().get(&unproven).is_some(), "refused");
    assert_eq!(world.used(), A, "and what is proven runs instead");
}

/// A base file that the release before the bounds accepted: an upgrade of the agent must not keep the node
/// from starting.
#[test]
fn local_file_beyond_the_bounds_starts_and_is_named() {
    let mut world = World::new();
    world.base("nodeLeaseDurationSeconds: 300\nhealthzBindAddress: 0.0.0.0\nmaxParallelImagePulls: 0\npodLogsDir: logs");
    world.start();
    assert_eq!(world.state(), "local");
    let warned: Vec<&String> =
        world.log.iter().filter(|line| line.starts_with("W config file /etc/kedge")).collect();
    assert_eq!(warned.len(), 4, "{:?}", world.log);
    world.turn();
    assert_eq!(world.hub.lease().expect("renewed")["spec"]["leaseDurationSeconds"], 160);
    // a pushed config with the same value is refused
    let pushed = world.adopt("b", &payload(B, "nodeLeaseDurationSeconds: 300"));
    assert!(world.bad_configs().get(&pushed).is_some(), "refused");
}

/// A drop-in that something rewrites at each boot must not switch the crash protection off.
#[test]
fn crash_loop_ends_though_drop_ins_change_at_each_start() {
    let (mut world, _) = World::in_trial("a", &payload(A, "crashLoopThreshold: 3"));
    for crash in 1..=4 {
        world.crash();
        world.local.drop_ins.clear();
        world.drop_in(&format!("registryPullQPS: {crash}\n"));
        world.start();
        let expect = if crash == 4 { "fallback" } else { "trial" };
        assert_eq!(world.state(), expect, "{crash} crashes");
    }
    assert_eq!(world.entry("a")["kind"], "crashLoop");
    world.stop();
    world.local.drop_ins.clear();
    world.start();
    assert_eq!(world.state(), "fallback", "another drop-in lifts no ban");
}

/// A config's running time with other drop-ins does not count for its trial.
#[test]
fn other_drop_ins_begin_the_trial_anew() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.run_for(TRIAL - MINUTE);
    world.stop();
    world.drop_in("registryPullQPS: 7\n");
    world.start();
    world.run_for(2 * MINUTE);
    assert_eq!(world.state(), "trial");
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
}
