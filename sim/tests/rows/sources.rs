//! Sources (RULES.md) on an API server that is not a hub, and which ConfigMaps are listed and downloaded.
//! Other reactions of a running agent to a source: `source.txt`.

use crate::{A, B, DEFAULT, HOUR, MINUTE, TRIAL_AND_A_RENEWAL, payload};
use kedge_api::{CONFIG_SOURCE_ANNOTATION, CONFIG_STATUS_ANNOTATION};
use kedge_core::config::records::CHECKPOINT_BYTES;
use kedge_core::{Action, Collection, Event, Listing, Request};
use kedge_sim::hub::{Flavour, Hub, NAMESPACE};
use kedge_sim::{NODE, Seen, World, map_event};
use serde_json::{Value, json};

#[test]
fn kubernetes_annotations_are_source_and_status() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    let uid = world.assign("a", &payload(A, ""));
    world.turn();
    world.restart();
    assert_eq!(world.used(), A);
    world.run_for(TRIAL_AND_A_RENEWAL);
    assert_eq!(world.state(), "known-good");
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    let annotations = &world.hub.node().expect("registered")["metadata"]["annotations"];
    let text = annotations[CONFIG_STATUS_ANNOTATION].as_str().expect("written");
    let status: Value = serde_json::from_str(text).expect("JSON");
    for part in ["assigned", "active", "lastKnownGood"] {
        assert_eq!(status[part]["configMap"]["uid"], json!(uid), "{part}");
    }
    // a field that the server drops is not sent again and again
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
fn messages_name_the_annotation_where_it_is_the_source() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.assign("a", &payload(A, ""));
    world.turn();
    world.restart();
    let refusal = world.process.as_ref().expect("it runs").node.reset_refusal();
    let expect = "the Node still asks for a config; clear annotation kedge.dev/config-source first";
    assert_eq!(refusal.as_deref(), Some(expect));
    world.hub.create_node(NODE);
    world.run_for(MINUTE);
    let [status, _, reason] = world.config_ok();
    assert_eq!(status, "Unknown");
    let expect = "annotation kedge.dev/config-source is empty on a Node that is not the one that assigned";
    assert!(reason.contains(expect), "{reason}");
}

/// A source that is read again, after a restart or a reconnect, causes no event.
#[test]
fn invalid_source_is_an_event_once() {
    let (mut world, _) = World::known_good();
    world.take_events();
    let of_source = |world: &mut World| {
        let events = world.take_events();
        events.into_iter().filter(|event| event.starts_with("ConfigSourceInvalid: ")).collect::<Vec<_>>()
    };
    for name in ["x", "y"] {
        world.hub.assign(Hub::following(name));
        world.run_for(MINUTE);
        let events = of_source(&mut world);
        assert!(
            matches!(&events[..], [event] if event.contains(&format!("kube-system/{name} does not exist; what runs goes on"))),
            "{events:?}"
        );
        world.list_again();
        world.run_for(MINUTE);
        world.stop();
        world.start();
        world.run_for(MINUTE);
        assert_eq!(of_source(&mut world), Vec::<String>::new(), "it is known");
    }
}

#[test]
fn annotation_is_ignored_on_the_hub() {
    let mut world = World::new();
    world.start();
    world.hub.push("a", &payload(A, ""));
    let text = world.hub.pinned("a").to_string();
    world.hub.edit_node(|node| node["metadata"]["annotations"][CONFIG_SOURCE_ANNOTATION] = json!(text));
    // the start under local, and its saved progress
    world.check_written(&["startups"]);
    world.run_for(HOUR);
    assert!(!world.exited());
    world.check_written(&["startups"; 4]);
}

#[test]
fn differing_field_and_annotation_are_invalid() {
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
    // an edit soon after another: the watch shows only metadata, and the Node is not read in full again at
    // once
    world.run_for(MINUTE);
    world.restart();
    assert_eq!(world.used(), A);
}

#[test]
fn dynamic_config_off_downloads_nothing() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.dynamic = false;
    world.downloads = 0;
    world.start();
    world.hub.push("b", &payload(B, ""));
    world.hub.assign(world.hub.pinned("b"));
    world.run_for(HOUR);
    assert_eq!((world.used(), world.downloads), (DEFAULT, 0));
}

#[test]
fn unchanged_config_map_is_not_downloaded_again() {
    let (mut world, _) = World::known_good();
    world.downloads = 0;
    world.stop();
    world.start();
    world.run_for(MINUTE);
    assert_eq!(std::mem::take(&mut world.downloads), 0);
    assert_eq!(world.config_ok()[0], "True");
    // an edited one is downloaded
    world.hub.push("a", &payload(B, ""));
    world.turn();
    assert_eq!(std::mem::take(&mut world.downloads), 1);
}

#[test]
fn lost_checkpoint_is_downloaded_again() {
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
fn new_source_form_downloads_the_config_map() {
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
    assert_eq!(world.disk.take_written(), ["current"], "the checkpoint stays");
}

/// How often a ConfigMap was listed since `seen` was emptied.
fn lists(world: &World) -> usize {
    let list = |seen: &&Seen| matches!(seen, Seen::Asked(Action::WatchConfigMap { .. }));
    world.seen.iter().filter(list).count()
}

#[test]
fn config_map_is_listed_anew_for_a_recreated_node() {
    let (mut world, _) = World::known_good();
    world.seen.clear();
    world.run_for(HOUR);
    assert_eq!(lists(&world), 0);
    // the server may have been wiped: a watch from the old version would get no event
    world.hub.create_node(NODE);
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    assert_eq!(lists(&world), 1);
}

#[test]
fn new_source_on_a_recreated_node_downloads_too() {
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

/// A node that follows `a` and has downloaded its newest version.
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

/// ConfigMap `a` has not changed since this version.
fn unchanged(world: &World, resource_version: &Value) -> Event {
    let of = Collection::ConfigMap { namespace: NAMESPACE.into(), name: "a".into() };
    let resource_version = resource_version.as_str().unwrap_or_default().to_owned();
    Event::Listed { of, listing: Listing::Unchanged((world.hub.uid_of("a"), resource_version)) }
}

#[test]
fn unchanged_notice_after_a_download_is_ignored() {
    let mut world = following_read_whole();
    let mut source = Hub::following("a");
    source["configMap"]["kubeletConfigKey"] = json!("other");
    world.hub.assign(source);
    world.turn();
    let (downloads, said) = (world.downloads, world.config_ok());
    assert!(said[2].contains("it has no text under key \"other\""), "{said:?}");
    // an answer to a request that was sent before the key changed
    world.handle(unchanged(
        &world,
        &world.hub.config_map("a").expect("pushed")["metadata"]["resourceVersion"].clone(),
    ));
    world.turn();
    assert_eq!((world.downloads, world.config_ok()), (downloads, said));
}

#[test]
fn restored_version_ends_the_note_about_an_edit() {
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
fn late_event_of_another_object_is_ignored() {
    let mut world = following_read_whole();
    let said = world.config_ok();
    for (namespace, name) in [(NAMESPACE, "b"), ("elsewhere", "a")] {
        world.handle(map_event(namespace, name, Value::Null));
        world.turn();
        assert_eq!(world.config_ok(), said, "{namespace}/{name}");
    }
}

#[test]
fn object_of_checkpoint_size_is_taken_a_larger_one_is_not() {
    for (more, taken) in [(0, true), (1, false)] {
        let (mut world, _) = World::known_good();
        let data = |filler: usize| json!({"kubelet": payload(B, ""), "filler": "x".repeat(filler)});
        world.hub.push_data("b", data(0));
        let empty = serde_json::to_vec(&world.hub.config_map("b").expect("pushed")).expect("an object").len();
        // the next version is as long as this one, because the counter has three digits
        world.hub.push_data("b", data(CHECKPOINT_BYTES - empty + more));
        let bytes = serde_json::to_vec(&world.hub.config_map("b").expect("pushed")).expect("an object").len();
        assert_eq!(bytes, CHECKPOINT_BYTES + more);
        world.hub.assign(world.hub.pinned("b"));
        world.turn();
        assert_eq!(world.exited(), taken, "{bytes} bytes");
        let refused = world.config_ok()[2].contains(&format!("expected at most {CHECKPOINT_BYTES}"));
        assert_eq!(refused, !taken, "{bytes} bytes");
    }
}

#[test]
fn one_mebibyte_payload_is_adopted() {
    let (mut world, _) = World::known_good();
    // in JSON a line end is two bytes
    let mut text = payload(B, "");
    text.push_str(&"\n".repeat((1 << 20) - text.len()));
    let uid = world.adopt("b", &text);
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
}
