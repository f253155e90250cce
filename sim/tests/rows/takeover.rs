//! State directories that the first release wrote, taken over: `first-release/*.json` hold their files by path.
//!
//! `trial`: `b` is in its trial, with 5 min of running, one crash and one cut; `a` is last-known-good; `c` is banned.
//! `suspected`: `b` is suspected of having lost contact, and `a` runs.

use crate::{A, B, MINUTE};
use kedge_sim::World;
use kedge_sim::disk::WriteFault;
use serde_json::{Value, json};

const TRIAL: &str = include_str!("first-release/trial.json");
const SUSPECTED: &str = include_str!("first-release/suspected.json");

/// A board with these files on its disk, without a network.
fn board(files: &str) -> World {
    let mut world = World::new();
    let files: Value = serde_json::from_str(files).expect("JSON");
    for (path, text) in files.as_object().expect("files by path") {
        world.disk.put(path, text.as_str().expect("a text").as_bytes());
    }
    world.link = false;
    world
}

fn checkpoints(world: &World) -> Vec<String> {
    world.disk.paths().into_iter().filter(|path| path.starts_with("checkpoints/")).collect()
}

/// `current` and `last-known-good` name checkpoints by the digest of their payload, and there are no others.
#[track_caller]
fn check_names(world: &World) {
    let mut named: Vec<String> = ["current", "last-known-good"]
        .map(|path| {
            let record = world.file(path).expect("a record");
            let text = |field: &str| record[field].as_str().expect("a text").to_owned();
            format!("checkpoints/{}/{}", text("checkpoint"), text("sha256"))
        })
        .to_vec();
    named.sort();
    assert_eq!(checkpoints(world), named);
}

#[test]
fn counts_and_checkpoints_of_a_trial_are_taken_over() {
    let mut world = board(TRIAL);
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    let report = world.report().config;
    // the record was left open by another boot
    assert_eq!((report.startups, report.cuts, report.ran_seconds), (1, 2, 300));
    check_names(&world);
    // written once
    world.stop();
    world.disk.take_written();
    world.start();
    world.check_written(&["startups"]);
}

#[test]
fn verdict_is_found_under_its_present_id() {
    let mut world = board(TRIAL);
    let mut entry: Value = world.bad_configs();
    let c = entry.as_object_mut().expect("a map").remove("uid-c-107").expect("the verdict on c");
    world.disk.put("0.1.0/bad-configs.json", json!({"uid-b-109": c}).to_string().as_bytes());
    world.start();
    assert_eq!(world.used(), B, "it is about another payload");
    let mut world = board(SUSPECTED);
    world.start();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    check_names(&world);
}

#[test]
fn takeover_goes_on_after_a_cut_at_any_write() {
    for writes in 0.. {
        let mut world = board(TRIAL);
        world.launch();
        let mut done = 0;
        let mut cut = false;
        while world.process.as_ref().is_some_and(|process| process.step.is_some()) {
            let step = world.process.as_ref().and_then(|process| process.step.clone());
            if matches!(step, Some(kedge_core::Step::Write(..))) {
                if done == writes {
                    cut = true;
                    break;
                }
                done += 1;
            }
            world.do_step();
        }
        if !cut {
            assert!(done >= 5, "{done} writes");
            return;
        }
        world.power_cut();
        world.start();
        assert_eq!((world.used(), world.state()), (B, "trial"), "cut at write {writes}");
        check_names(&world);
    }
}

#[test]
fn full_disk_keeps_the_older_checkpoints_in_use() {
    let mut world = board(TRIAL);
    let before = checkpoints(&world);
    world.disk.fault = WriteFault::All;
    world.start();
    // a trial that cannot be recorded is not made
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    assert_eq!(checkpoints(&world), before);
    world.disk.fault = WriteFault::None;
    world.run_for(2 * MINUTE);
    assert!(world.exited(), "the disk works");
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    check_names(&world);
}
