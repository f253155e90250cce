//! Transitions under way, and when a refused write is repeated. The written records: `adoption-writes.txt`,
//! `failed-writes.txt`.

use crate::{A, B, HOUR, MINUTE, SECOND, TRIAL, TRIAL_AND_A_RENEWAL, payload, short};
use kedge_sim::World;
use kedge_sim::disk::WriteFault;

#[test]
fn report_names_the_transition_under_way() {
    let (mut world, _) = World::known_good();
    assert_eq!(world.report().config.transition, None);
    world.assign("b", &payload(B, ""));
    while world.do_watch_node() || world.do_watch_map() {}
    assert_eq!(world.report().config.transition, Some("adopt"));
    world.turn();
    world.restart();
    assert_eq!(world.report().config.transition, None);
}

/// A node whose pushed configuration is known-good.
fn settled() -> World {
    let mut world = World::new();
    world.start();
    world.adopt("a", &payload(A, ""));
    world.run_for(TRIAL_AND_A_RENEWAL);
    world
}

#[test]
fn refused_write_is_retried_after_a_minute() {
    let mut world = settled();
    world.disk.fault = WriteFault::Once(0);
    world.assign("b", &payload(B, ""));
    world.turn();
    world.run_for(MINUTE - SECOND);
    assert!(!world.exited(), "repeated too early");
    world.run_for(SECOND);
    assert!(world.exited(), "adopted");

    let mut world = settled();
    let bad = world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    world.disk.fault = WriteFault::None;
    world.run_for(MINUTE - SECOND);
    assert!(world.bad_configs().get(&bad).is_none(), "repeated too early");
    world.run_for(SECOND);
    assert!(world.bad_configs().get(&bad).is_some(), "the verdict");
}

/// A clean end that could not be recorded needs no record: the trial continues, although nothing can be
/// written.
#[test]
fn trial_goes_on_over_a_clean_restart_on_a_refusing_disk() {
    for fault in [WriteFault::All, WriteFault::ReadOnly] {
        let mut world = settled();
        world.adopt("b", &payload(B, ""));
        world.run_for(TRIAL / 2);
        world.disk.fault = fault;
        for _ in 0..2 {
            world.stop();
            world.start();
            assert_eq!((world.used(), world.state()), (B, "trial"), "{fault:?}");
        }
        // a crash differs: it must be counted, and cannot be
        world.crash();
        world.start();
        assert_eq!((world.used(), world.state()), (A, "fallback"), "{fault:?}");
    }
}

/// A config that is suspected of cutting the node off gets more patience than the outage lasted, up to a day:
/// it need not save its progress every few seconds, however short its trial is.
#[test]
fn long_silence_in_a_short_trial_is_saved_rarely() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(A + 1, "configTrialDuration: 40s"));
    world.link = false;
    world.run_for(2 * MINUTE);
    world.restart();
    assert_eq!((world.used(), world.state()), (A, "fallback"), "a silent trial");
    world.run_for(2 * HOUR);
    world.link = true;
    world.run_for(HOUR);
    world.link = false;
    world.restart();
    assert_eq!((world.used(), world.state()), (A + 1, "trial"), "it is tried again");
    world.disk.take_written();
    world.run_for(HOUR);
    assert!(!world.exited(), "its patience is not over");
    let written = world.disk.take_written();
    assert!((1..=16).contains(&written.len()), "{written:?}");
}
