//! State directories written by the first release, used unchanged until a push replaces their content:
//! `first-release/*.json` hold their files by path.
//!
//! `trial`: `b` is in its trial, with 5 min of running, one crash and one cut; `a` is last-known-good; `c` is
//! banned. `suspected`: `b` is suspected of having lost contact, and `a` is running.

use crate::{A, B, MINUTE, SECOND, payload};
use kedge_core::{Event, Step};
use kedge_sim::disk::WriteFault;
use kedge_sim::{NODE, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;

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
    // this hub has another Node and other ConfigMaps, with other UIDs
    world.hub.wiped(1000);
    world.hub.delete_node();
    world.hub.create_node(NODE);
    world
}

fn checkpoints(world: &World) -> Vec<String> {
    world.disk.paths().into_iter().filter(|path| path.starts_with("checkpoints/")).collect()
}

/// The checkpoints that the records name, in either form.
fn named(world: &World) -> BTreeSet<String> {
    let [current, good] = ["current", "last-known-good"].map(|path| world.file(path).expect("a record"));
    let records = [&current, &good, &good["previous"]];
    let names =
        records.into_iter().filter(|record| record.is_object() && record["local"] != true).map(|record| {
            let text = |field: &str| record[field].as_str();
            let file = match text("checkpoint") {
                Some(name) if name.contains('/') => name.to_owned(),
                Some(uid) => format!("{uid}/{}", text("sha256").expect("a text")),
                None => {
                    format!("{}/{}", text("uid").expect("a text"), text("resourceVersion").expect("a text"))
                }
            };
            format!("checkpoints/{file}")
        });
    names.collect()
}

/// Every checkpoint that a record names exists.
#[track_caller]
fn check_names(world: &World, when: &str) {
    let there = checkpoints(world);
    for name in named(world) {
        assert!(there.contains(&name), "{when}: {name} is named, there are {there:?}");
    }
}

/// The files on a board of the first release that an agent of that release needs to run the same
/// configuration.
fn needed(world: &World) -> Vec<(String, Vec<u8>)> {
    let contents = world.disk.contents();
    contents.into_iter().filter(|(path, _)| !path.starts_with("0.1.0/")).collect()
}

#[test]
fn upgrade_runs_a_trial_on_and_rewrites_no_record() {
    let mut world = board(TRIAL);
    let before = needed(&world);
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    let report = world.report().config;
    // the record was left open in another boot
    assert_eq!((report.startups, report.cuts, report.ran_seconds), (1, 2, 300));
    world.check_written(&["startups"]);
    assert_eq!(needed(&world), before, "the older agent can run it again");
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
    let before = needed(&world);
    world.start();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    assert_eq!(needed(&world), before);
    // an edit by hand keeps the existing ids
    let mut edited = world.bad_configs();
    edited["by-hand"] = json!({"time": "2026-01-01T00:00:00Z", "reason": "by hand"});
    world.disk.put("0.1.0/bad-configs.json", edited.to_string().as_bytes());
    world.handle(Event::BadConfigsRead(world.read_bad_configs()));
    world.run_for(2 * MINUTE);
    assert_eq!((world.exited(), world.state()), (false, "fallback"));
}

/// The older agent renamed a list that it could not read, so a missing list does not mean that a person
/// removed it.
#[test]
fn list_that_the_older_agent_renamed_is_lost() {
    let rename = |world: &mut World, to: Option<&str>| {
        let bytes = world.disk.content("0.1.0/bad-configs.json").expect("there");
        world.disk.remove("0.1.0/bad-configs.json");
        if let Some(to) = to {
            world.disk.put(to, &bytes);
        }
    };
    let mut world = board(TRIAL);
    rename(&mut world, Some("0.1.0/bad-configs.json.corrupt-1"));
    world.start();
    assert_eq!((world.used(), world.report().config.obstacle), (A, Some("verdicts-unknown")));
    assert!(world.bad_configs()["unknown"].is_string(), "{}", world.bad_configs());
    // now a person removes it
    world.stop();
    rename(&mut world, None);
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    let mut world = board(TRIAL);
    rename(&mut world, None);
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"), "removed, not renamed");
}

/// An older record does not name its payload, and its content may be missing for a while: any of the counts
/// may belong to it.
#[test]
fn counts_stay_while_the_payload_is_unknown() {
    let mut world = board(TRIAL);
    world.start();
    world.stop();
    let path = "checkpoints/uid-b-109/120";
    let bytes = world.disk.content(path).expect("there");
    world.disk.remove(path);
    world.start();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    world.stop();
    world.disk.put(path, &bytes);
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    let report = world.report().config;
    assert_eq!((report.startups, report.cuts), (1, 2));
}

/// Pushes a config that is promoted at the first renewal: the first release's checkpoints are removed when no
/// record on disk names them.
fn push(world: &mut World) {
    world.assign("c", &payload(A + 2, "configTrialDuration: 0s"));
}

#[track_caller]
fn check_pushed(world: &mut World, when: &str) {
    world.supervise_for(10 * MINUTE);
    assert_eq!((world.used(), world.state()), (A + 2, "known-good"), "{when}");
    check_names(world, when);
    let versions = ["current", "last-known-good"].map(|path| world.file(path).expect("a record"));
    assert!(versions.iter().all(|record| record["apiVersion"] == "kedge.dev/v2"), "{when}: {versions:?}");
    assert_eq!(BTreeSet::from_iter(checkpoints(world)), named(world), "{when}: nothing else is left");
    assert_eq!(checkpoints(world).len(), 2, "{when}: it and what was last-known-good before");
}

#[test]
fn failed_write_loses_no_older_checkpoint() {
    for writes in 0..8 {
        let mut world = board(TRIAL);
        world.disk.fault = WriteFault::Once(writes);
        world.link = true;
        world.supervise_for(MINUTE);
        push(&mut world);
        world.supervise_for(MINUTE);
        let when = format!("write {writes} fails");
        check_names(&world, &when);
        world.power_cut();
        check_pushed(&mut world, &when);
    }
}

#[test]
fn cut_at_any_write_loses_no_older_checkpoint() {
    // the writes: the start, three of the adoption, the next start, two of the promotion
    for writes in 0..7 {
        let mut world = board(TRIAL);
        world.link = true;
        world.launch();
        let is_pushed = run_up_to_write(&mut world, writes);
        world.power_cut();
        let when = format!("cut at write {writes}");
        check_names(&world, &when);
        world.supervise_for(MINUTE);
        check_names(&world, &when);
        if !is_pushed {
            push(&mut world);
        }
        check_pushed(&mut world, &when);
    }
}

/// Acts one by one, with a push once nothing is left to do, until just before the write after this many.
/// Returns whether the push came first.
fn run_up_to_write(world: &mut World, writes: usize) -> bool {
    let (mut done, mut is_pushed) = (0, false);
    for _ in 0..5000 {
        let step = world.process.as_ref().and_then(|process| process.step.clone());
        if matches!(step, Some(Step::Write(..))) {
            if done == writes {
                return is_pushed;
            }
            done += 1;
        }
        let acted = world.do_step()
            || world.do_watch_node()
            || world.do_watch_map()
            || world.do_request(None)
            || world.do_renewal(None)
            || world.do_facts();
        if world.exited() {
            world.supervise();
        } else if !acted && !is_pushed {
            push(world);
            is_pushed = true;
        } else if !acted {
            world.advance(SECOND);
            world.handle(Event::Tick);
        }
    }
    panic!("{done} writes, expected more than {writes}");
}

#[test]
fn full_disk_keeps_the_older_checkpoints_in_use() {
    let mut world = board(TRIAL);
    let before = checkpoints(&world);
    world.disk.fault = WriteFault::All;
    world.start();
    // a trial that cannot be recorded does not begin
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    assert_eq!(checkpoints(&world), before);
    world.disk.fault = WriteFault::None;
    world.run_for(2 * MINUTE);
    assert!(world.exited(), "the disk works");
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    check_names(&world, "the disk works");
}

/// The same payload under another key of another object: the record names that object, and the checkpoint by
/// its older name.
#[test]
fn older_checkpoint_serves_another_object_with_its_payload() {
    let mut world = board(TRIAL);
    let before = checkpoints(&world);
    let object: Value = world.file("checkpoints/uid-b-109/120").expect("there");
    let text = object["data"]["kubelet"].as_str().expect("a text").to_owned();
    world.link = true;
    world.start();
    let uid = world.assign("other", &text);
    world.turn();
    assert!(!world.exited(), "the same payload");
    let current = world.file("current").expect("there");
    assert_eq!((&current["uid"], &current["checkpoint"]), (&json!(uid), &json!("uid-b-109/120")));
    check_names(&world, "another object");
    world.stop();
    world.start();
    assert_eq!((world.used(), world.state(), checkpoints(&world)), (B, "trial", before));
}
