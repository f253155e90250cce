//! ARCHITECTURE.md, "Durable writes": every transition's durable writes in their order, and no others.

use crate::{A, B, MINUTE, TRIAL, payload, short};
use kedge_sim::World;
use kedge_sim::disk::WriteFault;

#[test]
fn a_report_names_the_transition_that_waits_for_the_disk() {
    let (mut world, _) = World::known_good();
    assert_eq!(world.report().config.transition, None);
    world.assign("b", &payload(B, ""));
    while world.do_watch_node() || world.do_watch_map() {}
    assert_eq!(world.report().config.transition, Some("adopt"));
    world.turn();
    world.restart();
    assert_eq!(world.report().config.transition, None);
}

/// A node whose heartbeats are hours apart: what it does within minutes, its own deadlines woke it for.
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
fn a_disk_that_refused_is_tried_again_though_nothing_else_wakes_the_agent() {
    let mut world = rarely_woken();
    world.disk.fault = WriteFault::Once(0);
    world.assign("b", &payload(B, ""));
    world.turn();
    assert_eq!(world.deadline(), Some(world.mono + MINUTE));
    world.run_for(MINUTE);
    assert!(world.exited(), "adopted");

    let mut world = rarely_woken();
    let bad = world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    world.disk.fault = WriteFault::None;
    assert_eq!(world.deadline(), Some(world.mono + MINUTE));
    world.run_for(MINUTE);
    assert!(world.bad_configs().get(&bad).is_some(), "the verdict");
}
