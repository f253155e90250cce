//! Where the assigned config comes from (ARCHITECTURE.md, "Sources"): what a running agent does about each source it reads.

use crate::{A, B, DEFAULT, HOUR, MINUTE, TRIAL, payload};
use kedge_api::{CONFIG_SOURCE_ANNOTATION, CONFIG_STATUS_ANNOTATION};
use kedge_core::config::records::CHECKPOINT_BYTES;
use kedge_core::{Action, Event, Request};
use kedge_sim::hub::{Flavour, Hub, NAMESPACE};
use kedge_sim::{NODE, World, map_event};
use serde_json::{Value, json};

use kedge_sim::Seen;

#[test]
fn nil_on_the_node_we_know_leads_to_the_local_config() {
    let (mut world, _) = World::known_good();
    world.hub.assign(Value::Null);
    world.turn();
    world.restart();
    assert_eq!(world.used(), DEFAULT);
    assert_eq!(world.state(), "local");
    assert_eq!(world.config_status(), json!({}));
}

#[test]
fn nil_where_nothing_was_assigned_changes_nothing() {
    let mut world = World::new();
    world.start();
    world.run_for(HOUR);
    assert!(!world.exited());
    world.check_written(&[]);
}

/// A node with a known good config meets another Node under its name.
fn re_created() -> (World, String) {
    let (mut world, uid) = World::known_good();
    world.hub.delete_node();
    world.turn();
    world.hub.create_node(NODE);
    world.run_for(MINUTE);
    (world, uid)
}

#[test]
fn nil_on_a_re_created_node_keeps_what_is_active_and_says_why() {
    let (mut world, uid) = re_created();
    world.run_for(HOUR);
    world.check_written(&[]);
    world.check_config_ok(
        "Unknown",
        &format!("using current (UID: {uid})"),
        &format!(
            "failed to sync, reason: spec.configSource is empty on a Node that is not the one that assigned \
             ConfigMap kube-system/a (UID: {uid}); set a source, or run kedge config reset on the node"
        ),
    );
    world.crash_and_start();
    world.run_for(MINUTE);
    assert_eq!(world.used(), A);
    assert_eq!(world.config_ok()[0], "Unknown");
}

#[test]
fn a_re_created_node_follows_again_once_a_source_is_set() {
    let (mut world, uid) = re_created();
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    assert!(!world.exited(), "it runs what is asked for");
    world.check_written(&["current"]);
    assert_eq!(world.file("current").expect("there")["nodeUID"], json!(world.hub.node_uid()));
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    world.hub.assign(Value::Null);
    world.turn();
    world.restart();
    assert_eq!(world.used(), DEFAULT);
}

#[test]
fn an_explicit_nil_after_any_source_on_a_re_created_node_is_obeyed() {
    type SourceOf = fn(&Hub) -> Value;
    let sources: [(&str, SourceOf); 3] = [
        ("invalid", |_| json!({})),
        (
            "of an object that has no such key",
            |_| json!({"configMap": {"namespace": NAMESPACE, "name": "a", "kubeletConfigKey": "other"}}),
        ),
        ("correct", |hub| hub.pinned("a")),
    ];
    for (what, source) in sources {
        let (mut world, _) = re_created();
        world.hub.assign(source(&world.hub));
        world.turn();
        assert!(!world.exited(), "{what}");
        world.hub.assign(Value::Null);
        world.turn();
        assert!(world.exited(), "{what}");
        world.restart();
        assert_eq!(world.used(), DEFAULT, "{what}");
    }
}

#[test]
fn a_reset_on_the_node_leads_to_the_local_config_whoever_assigned() {
    let (mut world, _) = re_created();
    world.handle(Event::Reset);
    world.turn();
    world.restart();
    assert_eq!(world.used(), DEFAULT);
    assert_eq!(world.config_ok()[0], "True");
    world.run_for(HOUR);
    assert!(!world.exited());
}

#[test]
fn a_reset_while_the_source_still_asks_for_a_config_adopts_it_anew() {
    let (mut world, _) = World::known_good();
    world.handle(Event::Reset);
    world.turn();
    world.restart();
    // the operator still asks for it: it comes back, with a trial of its own
    assert!(world.exited());
    world.restart();
    assert_eq!((world.used(), world.state()), (A, "trial"));
}

#[test]
fn a_wiped_hub_is_registered_with_again_and_the_node_keeps_its_config() {
    let (mut world, _) = World::known_good();
    world.hub = Hub::new(Flavour::Kedge);
    // UIDs are never the same again
    world.hub.push("something", "else");
    world.run_for(2 * MINUTE);
    assert!(world.hub.node().is_some(), "registered");
    assert!(world.hub.lease().is_some());
    assert_eq!(world.used(), A);
    assert_eq!(world.config_ok()[0], "Unknown");
    let uid = world.assign("a", &payload(A, ""));
    world.turn();
    assert!(!world.exited(), "the same payload");
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
}

#[track_caller]
fn check_kept(source: impl FnOnce(&mut World) -> Value, reason: &str) {
    let (mut world, uid) = World::known_good();
    let source = source(&mut world);
    world.hub.assign(source);
    world.turn();
    assert!(!world.exited());
    world.check_config_ok("Unknown", &format!("using current (UID: {uid})"), reason);
    world.run_for(HOUR);
    assert_eq!(world.used(), A);
    assert!(!world.exited());
    // and mended by a correct one
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
}

#[test]
fn what_is_invalid_or_cannot_be_had_keeps_what_is_active_and_says_why() {
    check_kept(
        |_| json!({}),
        "failed to sync, desired config unclear, cause: invalid NodeConfigSource, exactly one subfield must be \
         non-nil, but all were nil",
    );
    check_kept(
        |world| json!({"configMapRef": world.hub.pinned("a")["configMapRef"], "configMap": {"name": "a"}}),
        "failed to sync, desired config unclear, cause: invalid NodeConfigSource, exactly one subfield must be \
         non-nil, but configMapRef and configMap were both set",
    );
    check_kept(
        |_| json!({"configMapRef": {"namespace": NAMESPACE, "name": "a"}}),
        "failed to sync, desired config unclear, cause: invalid ObjectReference, all of UID, Name, and Namespace \
         must be specified",
    );
    check_kept(
        |_| json!({"configMapRef": {"namespace": NAMESPACE, "name": "nothing", "uid": "u"}}),
        "failed to sync, desired config unclear, cause: invalid NodeConfigSource, ConfigMap kube-system/nothing \
         does not exist",
    );
    check_kept(
        |world| {
            world.hub.push("b", &payload(B, ""));
            json!({"configMapRef": {"namespace": NAMESPACE, "name": "b", "uid": "another"}})
        },
        "failed to sync, desired config unclear, cause: invalid ObjectReference, UID \"another\" does not match UID \
         of downloaded ConfigMap \"uid-b-112\"",
    );
    check_kept(
        |world| {
            world.hub.push_data("b", json!({"config": payload(B, "")}));
            world.hub.pinned("b")
        },
        "failed to sync, reason: failed to download ConfigMap kube-system/b: it has no text under key \"kubelet\", \
         its keys are \"config\"",
    );
}

#[test]
fn an_object_that_cannot_be_read_keeps_what_is_active_and_is_taken_when_it_can() {
    let (mut world, uid) = World::known_good();
    world.hub.push("b", &payload(B, ""));
    world.hub.assign(world.hub.pinned("b"));
    let there = world.hub.delete_config_map("b").expect("pushed");
    assert!(world.do_watch_node());
    let (namespace, name) = (NAMESPACE.to_owned(), "b".to_owned());
    world.handle(Event::ConfigMapUnreadable { namespace, name, why: "403 forbidden".into() });
    while world.do_step() || world.do_request(None) {}
    world.check_config_ok(
        "Unknown",
        &format!("using current (UID: {uid})"),
        "failed to sync, reason: failed to download ConfigMap kube-system/b: 403 forbidden",
    );
    world.hub.put_config_map("b", there);
    world.turn();
    world.restart();
    assert_eq!(world.used(), B);
}

#[test]
fn an_object_whose_names_are_no_file_names_is_not_checkpointed() {
    let (mut world, uid) = World::known_good();
    world.hub.assign(Hub::following("b"));
    world.turn();
    let metadata = json!({"namespace": NAMESPACE, "name": "b", "uid": "../../etc", "resourceVersion": "1"});
    let object = json!({"metadata": metadata, "data": {"kubelet": "x"}});
    world.handle(map_event(NAMESPACE, "b", object));
    while world.do_step() || world.do_request(None) {}
    world.check_config_ok(
        "Unknown",
        &format!("using current (UID: {uid})"),
        "failed to sync, reason: ConfigMap kube-system/b: UID \"../../etc\" or resourceVersion \"1\" is no name \
         for a file",
    );
    assert!(world.disk.paths().iter().all(|path| !path.contains("..")));
}

#[test]
fn at_start_the_records_are_the_assignment_and_being_offline_changes_nothing() {
    let (mut world, uid) = World::in_trial("a", &payload(A, ""));
    world.link = false;
    for _ in 0..3 {
        world.reboot();
        world.start();
        assert_eq!(world.used(), A);
        assert_eq!(world.report().config.condition.message, format!("using current (UID: {uid})"));
        assert_eq!(world.report().config.condition.status, "True");
    }
}

#[test]
fn a_source_that_was_invalid_when_last_read_starts_last_known_good_until_a_valid_one_is_read() {
    let (mut world, good) = World::known_good();
    world.adopt("b", &payload(B, ""));
    world.hub.assign(json!({}));
    world.turn();
    assert_eq!(world.used(), B, "a running agent keeps what is active");
    world.link = false;
    world.reboot();
    world.start();
    assert_eq!(world.used(), A);
    let condition = world.report().config.condition;
    assert_eq!(condition.status, "Unknown");
    assert_eq!(condition.message, format!("using last known good: (UID: {good})"));
    assert_eq!(
        condition.reason,
        "failed to sync, desired config unclear, cause: invalid NodeConfigSource, exactly one subfield must be \
         non-nil, but all were nil"
    );
    world.link = true;
    world.run_for(HOUR);
    assert_eq!(world.used(), A, "still invalid");
    world.hub.assign(world.hub.pinned("b"));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn that_the_source_is_invalid_is_said_once_it_is_noted_and_not_before() {
    let (mut world, _) = World::known_good();
    let status = |world: &World| world.report().config.condition.status;
    world.hub.assign(json!({}));
    assert!(world.do_watch_node());
    assert_eq!(status(&world), "True", "a power cut now would take back what was said");
    assert!(world.do_step());
    assert_eq!(status(&world), "Unknown");
    // and the other way round
    world.hub.assign(world.hub.pinned("a"));
    assert!(world.do_watch_node());
    assert_eq!(status(&world), "Unknown");
    world.turn();
    assert_eq!(status(&world), "True");
}

#[test]
fn a_rolled_back_node_compares_the_source_with_current_and_does_not_restart_for_ever() {
    let (mut world, _) = World::known_good();
    world.adopt("b", "not a configuration");
    assert_eq!(world.used(), A);
    // the fallback's own counts begin anew and are saved until they are whole
    world.run_for(TRIAL);
    world.disk.take_written();
    let starts = world.starts;
    for _ in 0..24 {
        world.run_for(HOUR);
        world.forget_shown();
        assert!(!world.exited());
    }
    world.check_written(&[]);
    world.stop();
    world.start();
    assert_eq!(world.starts, starts + 1);
    assert_eq!(world.used(), A);
}

#[test]
fn a_pinned_config_edited_in_place_is_not_followed_and_that_is_said() {
    let (mut world, uid) = World::known_good();
    let assigned = world.file("current").expect("there")["resourceVersion"].clone();
    world.hub.push("a", &payload(B, ""));
    world.turn();
    world.run_for(HOUR);
    assert!(!world.exited());
    world.check_written(&[]);
    let now = world.hub.config_map("a").expect("pushed")["metadata"]["resourceVersion"].clone();
    let (now, assigned) = (now.as_str().expect("a text"), assigned.as_str().expect("a text"));
    let reason = format!(
        "all checks passed; ConfigMap kube-system/a was edited (resourceVersion {now}, assigned {assigned}); a \
         source pinned to a UID does not follow edits"
    );
    world.check_config_ok("True", &format!("using current (UID: {uid})"), &reason);
    // edited back: nothing is left to say
    world.hub.push("a", &payload(A, ""));
    world.turn();
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    // the other form of the same name follows
    world.hub.push("a", &payload(B, ""));
    world.hub.assign(Hub::following("a"));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn a_following_config_edited_in_place_is_a_new_assignment_with_its_own_trial() {
    let mut world = World::new();
    world.start();
    world.assign_following("a", &payload(A, ""));
    world.turn();
    world.restart();
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
    world.hub.push("a", &payload(B, ""));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    assert_eq!(world.report().config.trial_remaining_seconds, Some(600));
    world.hub.push("a", "broken");
    world.turn();
    world.restart();
    // the last one that survived its trial, under the same name and UID
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    world.hub.push("a", &payload(B, ""));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn a_re_created_config_map_is_invalid_for_a_pin_and_another_assignment_for_a_follower() {
    let (mut world, uid) = World::known_good();
    world.hub.delete_config_map("a");
    world.turn();
    assert_eq!(world.config_ok()[0], "Unknown");
    let other = world.hub.push("a", &payload(B, ""));
    world.turn();
    world.check_config_ok(
        "Unknown",
        &format!("using current (UID: {uid})"),
        &format!(
            "failed to sync, desired config unclear, cause: invalid ObjectReference, UID \"{uid}\" does not match \
             UID of downloaded ConfigMap \"{other}\""
        ),
    );
    assert!(!world.exited());
    world.hub.assign(Hub::following("a"));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn deleting_a_followed_config_map_changes_nothing_but_the_condition() {
    let mut world = World::new();
    world.start();
    let uid = world.assign_following("a", &payload(A, ""));
    world.turn();
    world.restart();
    world.run_for(TRIAL);
    world.hub.delete_config_map("a");
    world.run_for(HOUR);
    assert_eq!(world.used(), A);
    world.check_config_ok(
        "Unknown",
        &format!("using current (UID: {uid})"),
        "failed to sync, desired config unclear, cause: invalid NodeConfigSource, ConfigMap kube-system/a does not \
         exist",
    );
}

#[test]
fn against_kubernetes_the_annotation_is_the_source_and_another_mirrors_the_status() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    let uid = world.assign("a", &payload(A, ""));
    world.turn();
    world.restart();
    assert_eq!(world.used(), A);
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    let annotations = &world.hub.node().expect("registered")["metadata"]["annotations"];
    let text = annotations[CONFIG_STATUS_ANNOTATION].as_str().expect("mirrored");
    let status: Value = serde_json::from_str(text).expect("JSON");
    for part in ["assigned", "active", "lastKnownGood"] {
        assert_eq!(status[part]["configMap"]["uid"], json!(uid), "{part}");
    }
    // a field that the server drops is not sent to it again and again
    assert!(world.hub.status_patches.iter().all(|patch| patch["status"].get("config").is_none()));
    world.hub.status_patches.clear();
    world.seen.clear();
    world.run_for(HOUR);
    let to_node = |seen: &&Seen| matches!(seen, Seen::Asked(Action::Request(Request::PatchNode(_))));
    assert_eq!(world.seen.iter().filter(to_node).count(), 0);
    world.hub.assign(Value::Null);
    world.turn();
    world.restart();
    assert_eq!(world.used(), DEFAULT);
}

#[test]
fn on_our_hub_the_annotation_is_ignored_because_a_node_could_write_it() {
    let mut world = World::new();
    world.start();
    world.hub.push("a", &payload(A, ""));
    let text = world.hub.pinned("a").to_string();
    world.hub.edit_node(|node| node["metadata"]["annotations"][CONFIG_SOURCE_ANNOTATION] = json!(text));
    world.run_for(HOUR);
    assert!(!world.exited());
    world.check_written(&[]);
}

#[test]
fn field_and_annotation_that_differ_are_invalid_and_equal_ones_are_one() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.hub.push("a", &payload(A, ""));
    world.hub.assign(world.hub.pinned("a"));
    let other = Hub::following("a");
    world.hub.edit_node(|node| node["spec"]["configSource"] = other);
    world.turn();
    let [status, _, reason] = world.config_ok();
    assert_eq!(status, "Unknown");
    assert!(reason.ends_with("are both set and differ"), "{reason}");
    let same = world.hub.pinned("a");
    world.hub.edit_node(|node| node["spec"]["configSource"] = same);
    world.turn();
    world.restart();
    assert_eq!(world.used(), A);
}

#[test]
fn dynamic_config_off_means_the_local_config_and_leaves_the_records_alone() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, ""));
    world.stop();
    world.disk.take_written();
    let before = world.disk.contents();
    world.dynamic = false;
    let downloads = world.downloads;
    world.start();
    world.hub.assign(Value::Null);
    world.run_for(HOUR);
    world.hub.assign(world.hub.pinned("a"));
    world.run_for(HOUR);
    assert_eq!(world.used(), DEFAULT);
    world.check_config_ok(
        "True",
        "using current (default)",
        "current is set to the local default, and no init config was provided; dynamic configuration is off \
         (--dynamic-config=false)",
    );
    world.crash_and_start();
    world.stop();
    world.check_written(&[]);
    assert_eq!(world.disk.contents(), before);
    assert_eq!(world.downloads, downloads, "nor is anything read that would not be used");
    world.dynamic = true;
    world.start();
    assert_eq!(world.used(), B, "as it was left");
}

#[test]
fn a_push_during_the_trial_of_another_replaces_it() {
    let (mut world, good) = World::known_good();
    world.adopt("b", &payload(B, ""));
    world.run_for(TRIAL / 2);
    world.adopt("c", &payload(203, ""));
    assert_eq!((world.used(), world.state()), (203, "trial"));
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(good));
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
}

#[test]
fn pushing_last_known_good_again_runs_it_without_another_trial() {
    let (mut world, uid) = World::known_good();
    world.adopt("b", "broken");
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (A, "known-good"));
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
}

#[test]
fn a_fallback_for_an_invalid_source_ends_when_the_same_payload_comes_as_another_object() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, ""));
    world.hub.assign(json!({}));
    world.turn();
    world.stop();
    world.start();
    assert_eq!(world.used(), A);
    world.assign("copy", &payload(B, ""));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn a_config_map_that_is_on_disk_as_it_is_is_not_downloaded_again() {
    let (mut world, _) = World::known_good();
    world.downloads = 0;
    world.stop();
    world.start();
    world.run_for(MINUTE);
    assert_eq!(std::mem::take(&mut world.downloads), 0);
    assert_eq!(world.config_ok()[0], "True");
    // what is edited is
    world.hub.push("a", &payload(B, ""));
    world.turn();
    assert_eq!(std::mem::take(&mut world.downloads), 1);
}

#[test]
fn a_config_map_whose_checkpoint_is_lost_is_downloaded_again() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.disk.retain(|path| !path.starts_with("checkpoints/"));
    world.downloads = 0;
    world.start();
    world.run_for(MINUTE);
    assert!(std::mem::take(&mut world.downloads) >= 1);
    assert_eq!((world.used(), world.exited()), (DEFAULT, true), "restarting to use it");
}

#[test]
fn another_source_for_the_config_map_on_disk_has_it_read_whole() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.start();
    world.turn();
    world.downloads = 0;
    world.disk.take_written();
    world.hub.assign(Hub::following("a"));
    world.turn();
    assert_eq!(std::mem::take(&mut world.downloads), 1);
    assert_eq!(world.config_ok()[0], "True");
    assert_eq!(world.disk.take_written(), ["checkpoint", "current"]);
}

/// What is to be watched from a new list on, since somebody looked.
fn lists(world: &World) -> usize {
    let list = |seen: &&Seen| matches!(seen, Seen::Asked(Action::WatchConfigMap(Some(_))));
    world.seen.iter().filter(list).count()
}

#[test]
fn a_config_map_is_listed_anew_for_a_re_created_node_and_not_for_every_change_of_it() {
    let (mut world, _) = World::known_good();
    world.seen.clear();
    world.run_for(HOUR);
    assert_eq!(lists(&world), 0);
    // the server may have begun anew: a watch that goes on where it was would hear nothing
    world.hub.create_node(NODE);
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    assert_eq!(lists(&world), 1);
}

#[test]
fn another_source_on_a_re_created_node_has_the_config_map_read_whole_too() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.start();
    world.turn();
    world.downloads = 0;
    world.hub.create_node(NODE);
    world.hub.assign(Hub::following("a"));
    world.turn();
    assert_eq!(std::mem::take(&mut world.downloads), 1);
    assert_eq!(world.config_ok()[0], "True");
}

/// Running what it follows, whose newest version it has read whole.
fn following_read_whole() -> World {
    let mut world = World::new();
    world.start();
    world.assign_following("a", &payload(A, ""));
    world.turn();
    world.restart();
    world.hub.push("a", &payload(A, ""));
    world.turn();
    world
}

/// The word that ConfigMap a did not change since this version.
fn unchanged(world: &World, resource_version: &Value) -> Event {
    Event::ConfigMapUnchanged {
        namespace: NAMESPACE.into(),
        name: "a".into(),
        uid: world.hub.uid_of("a"),
        resource_version: resource_version.as_str().unwrap_or_default().into(),
    }
}

#[test]
fn an_object_read_whole_is_not_read_again_for_the_word_that_it_did_not_change() {
    let mut world = following_read_whole();
    let mut source = Hub::following("a");
    source["configMap"]["kubeletConfigKey"] = json!("other");
    world.hub.assign(source);
    world.turn();
    let (downloads, said) = (world.downloads, world.config_ok());
    assert!(said[2].contains("it has no text under key \"other\""), "{said:?}");
    // asked for while the key was another one
    world.handle(unchanged(
        &world,
        &world.hub.config_map("a").expect("pushed")["metadata"]["resourceVersion"].clone(),
    ));
    world.turn();
    assert_eq!((world.downloads, world.config_ok()), (downloads, said));
}

#[test]
fn the_word_that_the_recorded_version_is_back_ends_what_was_said_of_an_edit() {
    let (mut world, _) = World::known_good();
    let recorded = world.file("current").expect("there")["resourceVersion"].clone();
    world.hub.push("a", &payload(B, ""));
    world.turn();
    assert!(world.config_ok()[2].contains("was edited"), "{:?}", world.config_ok());
    // a hub restored from its backup
    world.handle(unchanged(&world, &recorded));
    while world.do_step() || world.do_request(None) {}
    assert_eq!(world.config_ok()[2], "all checks passed");
}

#[test]
fn a_late_word_about_another_object_changes_nothing() {
    let mut world = following_read_whole();
    let said = world.config_ok();
    for (namespace, name) in [(NAMESPACE, "b"), ("elsewhere", "a")] {
        world.handle(Event::ConfigMapGone { namespace: namespace.into(), name: name.into() });
        world.turn();
        assert_eq!(world.config_ok(), said, "{namespace}/{name}");
    }
}

#[test]
fn what_a_re_created_node_asks_for_is_recorded_as_its_own_also_while_it_is_invalid() {
    let (mut world, _) = re_created();
    world.hub.assign(json!({}));
    world.turn();
    assert_eq!(world.file("current").expect("there")["nodeUID"], json!(world.hub.node_uid()));
    // and so a nil that is read only by the next run is obeyed
    world.stop();
    world.hub.assign(Value::Null);
    world.start();
    assert!(world.exited());
    world.restart();
    assert_eq!(world.used(), DEFAULT);
}

#[test]
fn a_reset_keeps_the_node_that_is_known_though_it_cannot_be_seen() {
    for link in [true, false] {
        let (mut world, _) = World::known_good();
        world.stop();
        world.link = link;
        world.start();
        world.handle(Event::Reset);
        world.turn();
        assert!(world.exited());
        let current = world.file("current").expect("there");
        assert_eq!((&current["local"], &current["nodeUID"]), (&json!(true), &json!(world.hub.node_uid())));
    }
}

#[test]
fn what_came_with_the_image_is_preloaded_under_a_new_name_and_not_with_a_new_payload() {
    let preloaded = || {
        let (mut world, _) = World::known_good();
        world.stop();
        let mut current = world.file("current").expect("there");
        current["downloaded"] = json!(false);
        world.disk.put("current", current.to_string().as_bytes());
        world.start();
        world
    };
    let mut world = preloaded();
    world.assign("copy", &payload(A, ""));
    world.turn();
    assert_eq!(world.file("current").expect("there")["uid"], json!(world.hub.uid_of("copy")));
    assert_eq!(world.file("current").expect("there")["downloaded"], json!(false));
    let mut world = preloaded();
    world.assign("b", &payload(B, ""));
    world.turn();
    assert_eq!(world.file("current").expect("there")["downloaded"], json!(true));
}

#[test]
fn an_object_as_large_as_a_checkpoint_may_be_is_taken_and_a_larger_one_is_not() {
    for (more, taken) in [(0, true), (1, false)] {
        let (mut world, _) = World::known_good();
        let data = |filler: usize| json!({"kubelet": payload(B, ""), "filler": "x".repeat(filler)});
        world.hub.push_data("b", data(0));
        let empty = serde_json::to_vec(world.hub.config_map("b").expect("pushed")).expect("an object").len();
        // the next version is as long as this one, for the counter has three digits
        world.hub.push_data("b", data(CHECKPOINT_BYTES - empty + more));
        let bytes = serde_json::to_vec(world.hub.config_map("b").expect("pushed")).expect("an object").len();
        assert_eq!(bytes, CHECKPOINT_BYTES + more);
        world.hub.assign(world.hub.pinned("b"));
        world.turn();
        assert_eq!(world.exited(), taken, "{bytes} bytes");
        let refused = world.config_ok()[2].contains(&format!("expected at most {CHECKPOINT_BYTES}"));
        assert_eq!(refused, !taken, "{bytes} bytes");
    }
}

#[test]
fn a_config_map_as_large_as_kubernetes_takes_is_adopted_whatever_its_text_costs_in_json() {
    let (mut world, _) = World::known_good();
    // in JSON a line end is two bytes
    let mut text = payload(B, "");
    text.push_str(&"\n".repeat((1 << 20) - text.len()));
    let uid = world.adopt("b", &text);
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
}
