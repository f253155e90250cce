//! Transitions under way, and when a refused write is repeated. What is written: `adoption-writes.txt`, `failed-writes.txt`.

use crate::{A, B, MINUTE, TRIAL, payload, short};
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

/// A node whose heartbeats are hours apart: within minutes only its other deadlines wake it.
fn rarely_woken() -> World {
    let mut world = World::new();
    world.drop_in(
        "nodeStatusUpdateFrequency: 12h\nnodeStatusReportFrequency: 12h\nnodeLeaseDurationSeconds: 86400",
    );
    world.start();
    world.adopt("a", &payload(A, ""));
    world.run_for(TRIAL);
    world
}

#[test]
fn refused_write_is_retried_after_a_minute() {
    let mut world = rarely_woken();
    world.disk.fault = WriteFault::Once(0);
    world.assign("b", &payload(B, ""));
    world.turn();
    assert_eq!(world.deadline(), Some(world.mono() + MINUTE));
    world.run_for(MINUTE);
    assert!(world.exited(), "adopted");

    let mut world = rarely_woken();
    let bad = world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    world.disk.fault = WriteFault::None;
    assert_eq!(world.deadline(), Some(world.mono() + MINUTE));
    world.run_for(MINUTE);
    assert!(world.bad_configs().get(&bad).is_some(), "the verdict");
}
