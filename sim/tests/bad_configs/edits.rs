//! A ConfigMap that is deleted, created again, renamed and edited while a node uses it, a hundred times in a
//! row.
//!
//! Always holds: the node keeps its last-known-good, its records stay within their bounds, and it adopts a
//! correction.

use crate::Operator;
use crate::{BAD, DEFAULT, GOOD, MINUTE, TRIAL, TRIAL_AND_A_RENEWAL};
use kedge_core::config::records::{BAD_CONTENTS, BAD_UIDS, CHECKPOINT_BYTES};
use kedge_sim::hub::{Hub, NAMESPACE};
use kedge_sim::{World, payload};
use serde_json::json;

/// An invalid payload.
const BROKEN: &str = "maxPods: many";
/// Another valid configuration.
const OTHER: u32 = 203;

/// A node with `good` as its last-known-good, by UID.
fn settled() -> (World, String) {
    let mut world = World::new();
    world.start();
    let uid = world.hub.push("good", &payload(GOOD, ""));
    world.hub.assign(world.hub.pinned("good"));
    world.settle("the good one");
    world.run_for(TRIAL_AND_A_RENEWAL);
    world.take_events();
    (world, uid)
}

/// The same, following `BAD` by name while that is still valid.
fn following() -> (World, String) {
    let mut world = World::new();
    world.start();
    let uid = world.hub.push(BAD, &payload(GOOD, ""));
    world.hub.assign(Hub::following(BAD));
    world.settle("the good one");
    world.run_for(TRIAL_AND_A_RENEWAL);
    world.take_events();
    (world, uid)
}

#[track_caller]
fn check_unknown(world: &mut World, what: &str, used: u32, reason: &str) {
    world.settle(what);
    let seen = world.seen(what);
    assert_eq!((seen.status.as_str(), seen.used), ("Unknown", used), "{what}: {seen:?}");
    assert!(seen.reason.contains(reason), "{what}: {reason:?} is not in {:?}", seen.reason);
    world.check_alive(what, used);
}

#[test]
fn config_map_deleted_in_its_trial_keeps_running() {
    let (mut world, good) = settled();
    world.hub.push("tried", &payload(OTHER, ""));
    world.hub.assign(world.hub.pinned("tried"));
    world.settle("tried");
    world.run_for(TRIAL / 4);
    world.hub.delete_config_map("tried");
    check_unknown(&mut world, "deleted", OTHER, "ConfigMap kube-system/tried does not exist");
    assert_eq!(world.report().config.state, "trial");
    // another object, perhaps with other content
    let again = world.hub.push("tried", &payload(OTHER, ""));
    check_unknown(&mut world, "made again", OTHER, &format!("UID of downloaded ConfigMap {again:?}"));
    assert_eq!(world.recorded_uid("last-known-good"), good);
    world.check_mends("made again");
}

#[test]
fn renamed_config_map_is_taken_under_its_new_name() {
    let (mut world, _) = following();
    world.hub.push("edge-settings-2", &payload(OTHER, ""));
    world.hub.delete_config_map(BAD);
    check_unknown(&mut world, "renamed", GOOD, "ConfigMap kube-system/edge-settings does not exist");
    world.hub.assign(Hub::following("edge-settings-2"));
    world.settle("renamed");
    assert_eq!(world.used(), OTHER);
}

#[test]
fn renamed_key_keeps_what_runs() {
    let (mut world, _) = following();
    world.hub.push_data(BAD, json!({"config.yaml": payload(OTHER, "")}));
    check_unknown(
        &mut world,
        "key renamed",
        GOOD,
        "no text under key \"kubelet\", its keys are \"config.yaml\"",
    );
    world.hub.push_data(BAD, json!({"kubelet": payload(OTHER, "")}));
    world.settle("key named again");
    assert_eq!(world.used(), OTHER);
}

#[test]
fn broken_and_restored_config_needs_no_new_trial() {
    let (mut world, uid) = following();
    world.hub.push(BAD, BROKEN);
    world.settle("broken");
    assert_eq!((world.used(), world.report().config.state), (GOOD, "fallback"));
    world.hub.push(BAD, &payload(GOOD, ""));
    world.settle("restored");
    assert_eq!((world.used(), world.report().config.state), (GOOD, "known-good"));
    let seen = world.seen("restored");
    assert_eq!((seen.status.as_str(), seen.message), ("True", format!("using current (UID: {uid})")));
    assert_eq!(seen.error, "");
}

#[test]
fn bad_config_assigned_again_is_not_tried_again() {
    let (mut world, _) = settled();
    world.hub.push(BAD, BROKEN);
    world.hub.assign(world.hub.pinned(BAD));
    world.settle("bad");
    let first = world.seen("bad");
    world.hub.assign(world.hub.pinned("good"));
    world.settle("good again");
    assert_eq!(world.seen("good again").status, "True");
    world.hub.assign(world.hub.pinned(BAD));
    world.settle("bad again");
    let again = world.seen("bad again");
    assert_eq!((again.used, &again.reason, &again.error), (GOOD, &first.reason, &first.error));
    assert!(!again.events.iter().any(|event| event.starts_with("ConfigRolledBack")), "{again:?}");
    world.check_mends("bad again");
}

#[test]
fn hundred_bad_configs_in_a_row_stay_within_bounds() {
    let (mut world, good) = settled();
    for number in 0..100 {
        let name = format!("bad-{number}");
        world.hub.push(&name, BROKEN);
        world.hub.assign(world.hub.pinned(&name));
        world.settle(&name);
        assert_eq!(world.used(), GOOD, "{name}");
    }
    let verdicts = world.bad_configs();
    assert!(verdicts.as_object().expect("an object").len() <= BAD_UIDS);
    assert!(world.disk.paths().len() < 10, "{:?}", world.disk.paths());
    assert_eq!(world.recorded_uid("last-known-good"), good);
    world.check_alive("a hundred bad ones", GOOD);
    world.check_survives("a hundred bad ones", GOOD);
    world.check_mends("a hundred bad ones");
}

#[test]
fn hundred_bad_edits_of_one_config_stay_within_bounds() {
    let (mut world, uid) = following();
    for number in 0..100 {
        world.hub.push(BAD, &format!("maxPods: {number} or so"));
        world.settle("edited");
        assert_eq!(world.used(), GOOD, "edit {number}");
    }
    let contents = world.bad_configs()[&uid]["contents"].as_object().map(serde_json::Map::len);
    assert!(contents.is_some_and(|count| count <= BAD_CONTENTS), "{contents:?}");
    world.check_survives("a hundred bad edits", GOOD);
    world.check_mends("a hundred bad edits");
}

#[test]
fn edit_every_minute_promotes_none_and_heartbeats_go_on() {
    let (mut world, _) = following();
    for number in 0..60 {
        let text = if number % 3 == 0 { BROKEN.to_owned() } else { payload(300 + number, "") };
        world.hub.push(BAD, &text);
        world.settle("edited");
        let renewals = world.hub.renewals;
        world.run_for(MINUTE);
        assert!(world.hub.renewals >= renewals + 5, "edit {number}");
        let good = world.file("last-known-good").expect("a record");
        let path = format!(
            "checkpoints/{}/{}",
            good["checkpoint"].as_str().unwrap_or(""),
            good["sha256"].as_str().unwrap_or("")
        );
        let checkpoint = world.file(&path).unwrap_or_else(|| panic!("edit {number}: no {path}"));
        assert_eq!(checkpoint["data"]["kubelet"], json!(payload(GOOD, "")), "edit {number}");
    }
    world.check_mends("edited every minute");
}

#[test]
fn config_map_over_checkpoint_size_is_refused_unwritten() {
    let (mut world, _) = settled();
    let uid = world.hub.push("large", &payload(OTHER, ""));
    let mut large = world.hub.config_map("large").expect("pushed");
    large["metadata"]["annotations"] = json!({"note": "x".repeat(CHECKPOINT_BYTES)});
    let mut small = world.hub.delete_config_map("large").expect("it was pushed");
    // a server never has two contents for one version
    small["metadata"]["resourceVersion"] = json!("1000000");
    world.hub.put_config_map("large", &large);
    world.hub.assign(world.hub.pinned("large"));
    world.disk.take_written();
    check_unknown(&mut world, "large", GOOD, "bytes, expected at most 4194304");
    assert_eq!(world.disk.take_written(), Vec::<&str>::new());
    world.hub.put_config_map("large", &small);
    world.settle("not large any more");
    assert_eq!((world.used(), world.recorded_uid("current")), (OTHER, uid));
}

#[test]
fn contradicting_drop_in_runs_local_until_removed() {
    let mut world = World::new();
    world.start();
    world.hub.push("good", &payload(GOOD, "imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60"));
    world.hub.assign(world.hub.pinned("good"));
    world.settle("the good one");
    world.run_for(TRIAL_AND_A_RENEWAL);
    world.stop();
    world.drop_in("imageGCLowThresholdPercent: 75");
    world.start();
    let seen = world.seen("contradicted");
    assert_eq!((seen.used, seen.status.as_str()), (DEFAULT, "False"), "{seen:?}");
    assert!(seen.error.contains("75 (drop-in /etc/kedge/config.d/10-site.conf:3)"), "{seen:?}");
    world.check_alive("contradicted", DEFAULT);
    world.stop();
    world.local.drop_ins.clear();
    world.start();
    world.settle("the drop-in is gone");
    assert_eq!((world.used(), world.seen("the drop-in is gone").status), (GOOD, "True".to_owned()));
}

#[test]
fn same_name_in_another_namespace_is_refused() {
    let (mut world, _) = following();
    let mut other = world.hub.config_map(BAD).expect("pushed");
    other["metadata"]["namespace"] = json!("default");
    other["metadata"]["uid"] = json!("uid-of-another");
    other["data"]["kubelet"] = json!(payload(OTHER, ""));
    let own = world.hub.delete_config_map(BAD).expect("it was pushed");
    world.hub.put_config_map(BAD, &other);
    check_unknown(
        &mut world,
        "another's",
        GOOD,
        "the API server answered with ConfigMap default/edge-settings",
    );
    assert_eq!(NAMESPACE, "kube-system");
    world.hub.put_config_map(BAD, &own);
    world.settle("its own");
    assert_eq!(world.seen("its own").status, "True");
}
