//! Core's answers to `kedge config forgive` and `reset`: accepted, refused, or delayed.

use crate::{A, MINUTE, payload};
use kedge_core::{Core, Event, Forgiveness};
use kedge_sim::disk::WriteFault;
use kedge_sim::{NODE, World};
use serde_json::{Value, json};

const ASKED: &str = "the Node still asks for a config; clear spec.configSource first";

#[test]
fn at_most_eight_forgive_requests_wait() {
    let mut world = World::new();
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    let uids: Vec<String> = (1..=9).map(|number| format!("uid-{number}")).collect();
    let list: Value = uids.iter().map(|uid| (uid.clone(), entry.clone())).collect();
    world.disk.put("0.1.0/bad-configs.json", list.to_string().as_bytes());
    world.start();
    // some of them twice
    for uid in uids[..8].iter().flat_map(|uid| [uid, uid]).chain([&uids[8]]) {
        world.handle(Event::Forgive(uid.clone()));
    }
    assert_eq!(
        world.log[world.log.len() - 2..],
        [
            "  asked to forgive UID uid-8: removing the verdicts on it",
            "W asked to forgive UID uid-9: not done, too many others wait for the disk; ask again later",
        ]
    );
    world.turn();
    assert_eq!(
        world.bad_configs().as_object().map(|left| left.keys().cloned().collect()),
        Some(vec!["uid-9".to_owned()])
    );
}

#[test]
fn forgive_and_reset_are_refused_while_exiting() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    fn node(world: &World) -> &Core {
        &world.process.as_ref().expect("it runs").node
    }
    let answers = |world: &World| [node(world).forgiveness(&uid), node(world).forgiveness("nobody")];
    let reset_refusal = |world: &World| node(world).reset_refusal();
    assert_eq!(answers(&world), [Forgiveness::Taken, Forgiveness::NothingKnown]);
    assert_eq!(reset_refusal(&world).as_deref(), Some(ASKED));
    world.assign("c", &payload(A + 2, ""));
    while world.report().config.transition != Some("adopt") {
        assert!(world.do_watch_node() || world.do_watch_map() || world.do_step());
    }
    assert_eq!(answers(&world), [Forgiveness::Exiting, Forgiveness::NothingKnown]);
    assert_eq!(reset_refusal(&world).as_deref(), Some("the agent is about to restart; ask again then"));
    world.handle(Event::Forgive(uid.clone()));
    let line =
        format!("W asked to forgive UID {uid}: not done, the agent is about to restart; ask again then");
    assert_eq!(world.log.last(), Some(&line));
    world.turn();
    world.restart();
    assert!(world.bad_configs().get(&uid).is_some());
    world.handle(Event::Stop("asked to stop".into()));
    assert_eq!(answers(&world), [Forgiveness::Exiting, Forgiveness::NothingKnown]);
    assert_eq!(reset_refusal(&world).as_deref(), Some("the agent is about to restart; ask again then"));
}

#[test]
fn reset_is_refused_while_the_node_asks_for_a_config() {
    let (mut world, _) = World::known_good();
    fn refusal(world: &World) -> Option<String> {
        world.process.as_ref().expect("it runs").node.reset_refusal()
    }
    assert_eq!(refusal(&world).as_deref(), Some(ASKED));
    // the config is not known yet
    world.stop();
    world.link = false;
    world.start();
    assert_eq!(refusal(&world), None);
    world.disk.fault = WriteFault::All;
    world.handle(Event::Reset);
    world.turn();
    assert_eq!(refusal(&world), None, "a second request is not refused");
    // a recreated Node has no source
    let (mut world, _) = World::known_good();
    world.hub.delete_node();
    world.hub.create_node(NODE);
    world.run_for(MINUTE);
    assert_eq!((world.state(), refusal(&world)), ("known-good", None));
}

/// A verdict that the disk refuses is kept when another UID is forgiven.
#[test]
fn forgiving_another_uid_keeps_an_unrecorded_verdict() {
    let (mut world, _) = World::in_trial("a", &payload(A, "crashLoopThreshold: 0"));
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    world.disk.put("0.1.0/bad-configs.json", json!({"other": entry}).to_string().as_bytes());
    world.crash();
    // the first write is the start's, the second the verdict
    world.disk.fault = WriteFault::Once(1);
    world.start();
    assert!(world.report().config.condition.reason.contains("crash loop"), "{:#?}", world.report().config);
    assert!(world.entry("a").is_null(), "not recorded");
    world.handle(Event::Forgive("other".into()));
    world.turn();
    assert!(world.bad_configs().get("other").is_none());
    assert!(!world.exited(), "a was not forgiven");
    world.run_for(2 * MINUTE);
    assert_eq!((world.exited(), world.state()), (false, "fallback"));
    assert_eq!(world.entry("a")["kind"], "crashLoop", "recorded when the disk works");
}

#[test]
fn reset_waits_for_pending_forgive_requests() {
    let mut world = World::new();
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    world.disk.put(
        "0.1.0/bad-configs.json",
        json!({"one": entry, "two": entry, "three": entry}).to_string().as_bytes(),
    );
    world.start();
    let uid = world.adopt("a", &payload(A, ""));
    world.handle(Event::Forgive("one".into()));
    assert_eq!(world.report().config.transition, Some("forgive"), "its write is under way");
    world.handle(Event::Forgive("two".into()));
    world.handle(Event::Reset);
    let node = &world.process.as_ref().expect("it runs").node;
    assert_eq!(node.forgiveness("three"), Forgiveness::Taken);
    world.handle(Event::Forgive("three".into()));
    assert_eq!(world.file("current").expect("there")["uid"], json!(uid));
    world.turn();
    assert!(world.exited());
    assert_eq!(
        (world.bad_configs(), &world.file("current").expect("there")["local"]),
        (json!({}), &json!(true))
    );
}

#[test]
fn dynamic_off_refuses_requests_and_ignores_file_edits() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    world.stop();
    world.disk.take_written();
    world.dynamic = false;
    world.start();
    // to an agent that never read the list, any content looks like an edit
    world.handle(Event::BadConfigsRead(world.read_bad_configs()));
    let node = &world.process.as_ref().expect("it runs").node;
    assert_eq!(node.forgiveness(&uid), Forgiveness::SwitchedOff);
    assert_eq!(
        node.reset_refusal().as_deref(),
        Some("dynamic configuration is off (--dynamic-config=false) and the local config runs")
    );
    assert!(world.report().config.bad.is_empty());
    world.handle(Event::Forgive(uid.clone()));
    world.handle(Event::Reset);
    world.run_for(MINUTE);
    assert!(!world.exited());
    world.check_written(&[]);
    assert!(world.bad_configs().get(&uid).is_some());
}

/// An administrator's annotation is obeyed once, however long it stays; after it was withdrawn, the same one
/// counts again.
#[test]
fn request_on_the_node_forgives_once() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(A + 1, "crashLoopThreshold: 0"));
    let crash = |world: &mut World| {
        world.crash();
        world.start();
        assert_eq!((world.used(), world.state()), (A, "fallback"));
    };
    crash(&mut world);
    let asks = |world: &mut World, value: &str| {
        world.hub.edit_node(|node| node["metadata"]["annotations"]["kedge.dev/forgive"] = json!(value));
        world.turn();
        world.exited()
    };
    assert!(!asks(&mut world, "another-uid"), "there is no verdict on it");
    assert!(asks(&mut world, &uid));
    world.restart();
    assert_eq!((world.used(), world.state()), (A + 1, "trial"));
    world.disk.take_written();
    world.run_for(2 * MINUTE);
    crash(&mut world);
    world.run_for(MINUTE);
    assert!(!world.exited(), "it was obeyed already");
    assert!(asks(&mut world, &format!("{uid} again")), "another request");
    world.restart();
    crash(&mut world);
    assert!(!asks(&mut world, ""), "withdrawn");
    assert_eq!(world.bad_configs()["forgiven"], Value::Null);
    assert!(asks(&mut world, &uid));
}

/// A node with a config `b` that crashed once too often, after its Node got the request to forgive it.
fn condemned() -> (World, String) {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(A + 1, "crashLoopThreshold: 0"));
    ask(&mut world, &uid);
    assert!(!world.exited(), "there is nothing to forgive");
    world.crash();
    world.start();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    (world, uid)
}

fn ask(world: &mut World, value: &str) {
    world.hub.edit_node(|node| node["metadata"]["annotations"]["kedge.dev/forgive"] = json!(value));
    world.turn();
}

fn edit_list(world: &mut World, edit: impl FnOnce(&mut Value)) {
    let mut bad = world.bad_configs();
    edit(&mut bad);
    world.disk.put("0.1.0/bad-configs.json", bad.to_string().as_bytes());
    world.handle(Event::BadConfigsRead(world.read_bad_configs()));
    world.turn();
}

/// The request is recorded when it is read: an annotation that stays does not apply to later verdicts.
#[test]
fn standing_request_lifts_no_later_verdict() {
    let (mut world, uid) = condemned();
    assert_eq!(world.bad_configs()["forgiven"]["reason"], json!(uid));
    world.run_for(MINUTE);
    assert!(!world.exited(), "it stood there before");
    ask(&mut world, &format!("{uid} again"));
    assert!(world.exited(), "another request");
    world.restart();
    assert_eq!((world.used(), world.state()), (A + 1, "trial"));
}

/// A new version starts its own list, and its first verdict may come before it reads the Node: an annotation
/// that is still there was obeyed under the version before, or is as old.
#[test]
fn standing_request_lifts_no_first_verdict_of_an_upgrade() {
    let (mut world, _) = World::known_good();
    let uid = world.assign("b", "maxPods: [");
    ask(&mut world, &uid);
    assert!(world.exited(), "b is adopted");
    world.exit();
    world.version = "0.2.0".into();
    world.start();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    world.run_for(MINUTE);
    assert!(!world.exited(), "nobody asked since");
    assert!(world.bad_configs()[&uid].is_object());
    ask(&mut world, &format!("{uid} again"));
    assert!(world.exited(), "another request");
}

/// An edited list may lack the note: the agent still knows which request it has obeyed, and writes the note
/// again.
#[test]
fn list_without_the_note_rearms_no_request() {
    let (mut world, uid) = condemned();
    world.disk.take_written();
    edit_list(&mut world, |bad| {
        let bad = bad.as_object_mut().expect("a map");
        bad.remove("forgiven").expect("the note");
    });
    world.run_for(MINUTE);
    assert!(!world.exited());
    world.check_written(&["bad-configs"]);
    assert_eq!(world.bad_configs()["forgiven"]["reason"], json!(uid));
    assert!(world.bad_configs()[&uid].is_object());
    // nor does its withdrawal count as a request
    ask(&mut world, "");
    assert!(!world.exited() && world.bad_configs().get("forgiven").is_none());
    ask(&mut world, &uid);
    assert!(world.exited());
}

/// The verdict is shown before it is written: a request that arrives in between is about that verdict.
#[test]
fn request_waits_for_the_verdict_to_be_recorded() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(A + 1, "crashLoopThreshold: 0"));
    world.crash();
    world.disk.fault = WriteFault::Once(1);
    world.start();
    assert!(world.entry("b").is_null(), "not recorded");
    ask(&mut world, &uid);
    assert!(!world.exited() && world.bad_configs().get("forgiven").is_none());
    world.run_for(2 * MINUTE);
    assert!(world.exited(), "recorded and forgiven");
    world.restart();
    assert_eq!((world.used(), world.state()), (A + 1, "trial"));
}

/// The lost list contained whether the request was obeyed already.
#[test]
fn standing_request_does_not_lift_a_doubt() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(A + 1, ""));
    ask(&mut world, &uid);
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"\0");
    world.start();
    world.run_for(MINUTE);
    assert_eq!((world.exited(), world.report().config.obstacle), (false, Some("verdicts-unknown")));
    ask(&mut world, &format!("{uid} again"));
    assert!(world.exited(), "a new request");
    world.restart();
    assert_eq!((world.used(), world.state()), (A + 1, "trial"));
}

/// No copy of it can be kept, so it is replaced only when a person asks for that.
#[test]
fn list_that_stays_unreadable_can_be_forgiven_from_afar() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(A + 1, ""));
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"\0");
    world.disk.fault = WriteFault::All;
    world.start();
    world.disk.fault = WriteFault::None;
    world.run_for(2 * MINUTE);
    assert_eq!((world.exited(), world.report().config.obstacle), (false, Some("verdicts-unknown")));
    ask(&mut world, &uid);
    world.run_for(2 * MINUTE);
    assert!(world.exited());
    world.restart();
    assert_eq!((world.used(), world.state()), (A + 1, "trial"));
}

/// Once a verdict is recorded, however late, the counts that led to it are removed: otherwise removing it by
/// hand would help only until the next start.
#[test]
fn late_verdict_that_is_taken_out_by_hand_is_gone() {
    for at_the_stop in [false, true] {
        let (mut world, _) = World::known_good();
        let uid = world.adopt("b", &payload(A + 1, "crashLoopThreshold: 0"));
        world.crash();
        // the start is written, but the verdict is not
        world.disk.fault = WriteFault::Once(1);
        world.start();
        assert!(world.entry("b").is_null(), "not recorded");
        if !at_the_stop {
            world.run_for(2 * MINUTE);
        }
        world.stop();
        assert_eq!(world.entry("b")["kind"], "crashLoop");
        let mut bad = world.bad_configs();
        bad.as_object_mut().expect("a map").remove(&uid).expect("the verdict");
        world.disk.put("0.1.0/bad-configs.json", bad.to_string().as_bytes());
        world.start();
        assert_eq!((world.used(), world.state()), (A + 1, "trial"), "at the stop: {at_the_stop}");
    }
}

/// A forgiven last-known-good is the first fallback, and may run again at once.
#[test]
fn forgiven_last_known_good_replaces_local() {
    let (mut world, good) = World::known_good();
    world.adopt("b", "broken: [");
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    world.stop();
    let mut bad = world.bad_configs();
    bad[&good] = entry;
    world.disk.put("0.1.0/bad-configs.json", bad.to_string().as_bytes());
    world.start();
    assert_eq!((world.used(), world.state()), (kedge_sim::DEFAULT_PODS, "fallback"));
    world.handle(Event::Forgive(good.clone()));
    world.turn();
    assert!(world.exited());
    world.restart();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    world.run_for(2 * MINUTE);
    assert!(!world.exited());
}

/// The list notes that an earlier one was lost: only the config assigned at that time is doubted, until
/// somebody forgives it.
#[test]
fn doubted_config_runs_when_it_is_forgiven() {
    for by_hand in [None, Some(&b"{}"[..]), Some(b"")] {
        let (mut world, _) = World::known_good();
        let uid = world.adopt("b", &payload(A + 1, ""));
        world.stop();
        world.disk.put("0.1.0/bad-configs.json", b"\0");
        world.start();
        assert_eq!((world.used(), world.report().config.obstacle), (A, Some("verdicts-unknown")));
        assert!(world.bad_configs()["unknown"].is_string());
        assert!(world.disk.content("0.1.0/bad-configs.json.corrupt-1").is_some());
        world.stop();
        world.start();
        assert_eq!((world.used(), world.report().config.condition.status), (A, "Unknown"));
        match by_hand {
            None => world.handle(Event::Forgive(uid)),
            Some([]) => {
                world.disk.remove("0.1.0/bad-configs.json");
                world.handle(Event::BadConfigsRead(world.read_bad_configs()));
            }
            Some(bytes) => {
                world.disk.put("0.1.0/bad-configs.json", bytes);
                world.handle(Event::BadConfigsRead(world.read_bad_configs()));
            }
        }
        world.turn();
        assert!(world.exited(), "{by_hand:?}");
        world.restart();
        assert_eq!((world.used(), world.state()), (A + 1, "trial"), "{by_hand:?}");
    }
    // the next assigned config is not doubted, nor is the previous one any more
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(A + 1, ""));
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"\0");
    world.start();
    world.adopt("c", &payload(A + 2, ""));
    assert_eq!((world.used(), world.bad_configs()), (A + 2, json!({})));
}
