//! What proves a verdict or a crash, until it is on disk: counts, and the record of an end. Each is believed once, for the one
//! it is about, over write errors and power cuts.

use super::*;
use kedge_core::Event;
use kedge_sim::disk::WriteFault;
use serde_json::Value;
use serde_json::json;

fn only_entry(world: &World, uid: &str) -> Value {
    let bad = world.bad_configs();
    let contents = bad[uid]["contents"].as_object().expect("it has verdicts");
    contents.values().next().expect("one at least").clone()
}

#[test]
fn what_was_condemned_is_not_left_open_when_its_verdict_cannot_be_written() {
    let (mut world, _) = World::known_good();
    let uid = world.assign("b", &payload(B, ""));
    world.turn();
    world.exit();
    world.link = false;
    world.start();
    world.run_until_exit(TRIAL + SECOND);
    world.disk.take_written();
    // its start is recorded, its verdict is not
    world.disk.fault = WriteFault::Once(1);
    world.start();
    assert_eq!(world.used(), A);
    world.check_written(&["startups", "startups"]);
    let counts = world.startups();
    assert_eq!(
        (&counts["open"], &counts["ran_ms"]),
        (&json!(null), &json!(TRIAL.as_millis())),
        "the proof stays"
    );
    // an end of the fallback is not held against it: it is still a suspicion, not a crash
    world.crash();
    world.start();
    assert_eq!(world.used(), A);
    let entry = only_entry(&world, &uid);
    assert_eq!((&entry["kind"], &entry["lost"]), (&json!("contact"), &json!(1)));
}

#[test]
fn the_unwritten_verdict_on_last_known_good_leaves_its_counts_as_they_are() {
    let (mut world, uid) = World::in_trial("a", &short(A, "1m", 0));
    world.run_for(2 * MINUTE);
    world.assign("b", &payload(B, "healthzPort: 70000"));
    world.turn();
    world.restart();
    assert_eq!(world.used(), A);
    // its terms are saved with its progress
    world.run_for(TRIAL);
    let proof = world.startups();
    world.crash();
    world.disk.fault = WriteFault::Once(0);
    world.start();
    assert_eq!(world.used(), DEFAULT);
    assert_eq!(world.startups(), proof);
    world.crash();
    world.start();
    assert_eq!(world.used(), DEFAULT);
    assert_eq!(only_entry(&world, &uid)["kind"], json!("crashLoop"));
}

#[test]
fn a_stop_writes_the_verdict_that_a_disk_had_refused_for_its_own_end_replaces_the_proof() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    assert_eq!(world.used(), A);
    world.disk.fault = WriteFault::None;
    world.disk.take_written();
    world.stop();
    world.check_written(&["bad-configs"]);
    world.start();
    assert_eq!(world.used(), A);
    assert_eq!(only_entry(&world, &uid)["kind"], json!("crashLoop"));
}

#[test]
fn a_stop_is_not_kept_from_its_end_by_a_disk_that_refuses_the_verdict_again() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    let proof = world.startups();
    world.crash();
    world.disk.take_written();
    world.disk.fault = WriteFault::All;
    world.start();
    world.stop();
    world.check_written(&[]);
    assert_eq!(world.startups(), proof);
}

#[test]
fn a_forgiven_config_is_not_condemned_for_counts_that_the_disk_did_not_let_go() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &short(B, "10m", 1));
    for _ in 0..2 {
        world.run_for(TRIAL / 4);
        world.crash();
        // the verdict is written, the start of the fallback is not
        world.disk.fault = WriteFault::Once(1);
        world.start();
    }
    assert_eq!(world.used(), A);
    assert!(world.bad_configs().get(&uid).is_some());
    let left = world.startups();
    assert_eq!(
        (&left["startups"].as_array().map(Vec::len), &left["open"]),
        (&Some(1), &json!(world.boot_id()))
    );
    world.disk.take_written();
    world.handle(Event::Forgive(uid));
    world.do_step();
    world.do_step();
    world.check_written(&["startups", "bad-configs"]);
    // before the agent can restart to try it
    world.power_cut();
    world.start();
    assert_eq!(world.used(), B);
    assert_eq!(world.report().config.startups, 0);
}

#[test]
fn a_crash_is_counted_once_though_the_power_goes_before_its_evidence_is_consumed() {
    let (mut world, _) = World::in_trial("a", &short(A, "10m", 10));
    world.crash();
    world.launch();
    while world.process.as_ref().is_some_and(|process| process.used.is_none())
        && world.startups()["startups"] == json!([])
    {
        world.do_step();
    }
    world.power_cut();
    world.start();
    assert_eq!((world.report().config.startups, world.report().config.cuts), (1, 1));
}

#[test]
fn an_end_before_anything_was_recorded_is_not_held_against_the_next_run() {
    let (mut world, _) = World::in_trial("a", &short(A, "10m", 10));
    world.stop();
    // this one dies before it has recorded its start: its record is closed, nothing counts
    world.launch();
    world.crash();
    world.start();
    assert_eq!(world.report().config.startups, 0);
    world.run_for(TRIAL / 2);
    world.cut_and_start();
    assert_eq!((world.report().config.startups, world.report().config.cuts), (0, 1));
    assert!(world.report().config.ran_seconds >= 150);
}
