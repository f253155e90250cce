//! Heartbeats: the Lease and the status keep their own periods whatever else fails.

use crate::{A, B, HOUR, MINUTE, SECOND, TRIAL, TRIAL_AND_A_RENEWAL, payload};
use kedge_core::{Action, Answer, Event, LeaseRequest, Request, RequestKey};
use kedge_sim::hub::{Flavour, Hub, refused};
use kedge_sim::{NODE, Seen, World, node_event};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

fn renewals(world: &World) -> Vec<&LeaseRequest> {
    let renewal = |seen| match seen {
        &Seen::Asked(Action::Renew { ref request, .. }) => Some(request),
        _ => None,
    };
    world.seen.iter().filter_map(renewal).collect()
}

fn requests(world: &World) -> Vec<&Request> {
    let request = |seen| match seen {
        &Seen::Asked(Action::Request(ref request)) => Some(request),
        _ => None,
    };
    world.seen.iter().filter_map(request).collect()
}

/// A node that has run for a while, with `seen` emptied.
fn settled() -> World {
    let (mut world, _) = World::known_good();
    world.run_for(TRIAL_AND_A_RENEWAL);
    world.seen.clear();
    world.hub.status_patches.clear();
    world
}

#[test]
fn renewal_patches_only_the_time_every_ten_seconds() {
    let mut world = settled();
    world.run_for(HOUR);
    let renewals = renewals(&world);
    // every 10 s, stretched by up to 4 %
    assert!((346..=361).contains(&renewals.len()), "{}", renewals.len());
    for renewal in renewals {
        assert!(matches!(renewal, LeaseRequest::Renew(_)), "{renewal:?}");
    }
    let lease = world.hub.lease().expect("created");
    assert_eq!(lease["spec"]["holderIdentity"], json!(NODE));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], json!(40));
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": world.hub.node_uid()}]);
    assert_eq!(lease["metadata"]["ownerReferences"], owner);
}

#[test]
fn renewal_deadline_is_at_most_its_period() {
    let mut world = settled();
    world.run_for(MINUTE);
    for seen in &world.seen {
        if let Seen::Asked(Action::Renew { deadline, .. }) = seen {
            assert!(*deadline <= 10 * SECOND, "{deadline:?}");
        }
    }
}

#[test]
fn lease_and_status_do_not_wait_for_each_other() {
    let mut world = settled();
    for _ in 0..3600 {
        while world.do_step()
            || world.do_facts()
            || world.do_request(Some(refused(500, "InternalError", "no")))
            || world.do_renewal(None)
        {}
        world.advance(SECOND);
        world.handle(Event::Tick);
    }
    assert!(renewals(&world).len() >= 320, "{}", renewals(&world).len());

    let mut world = settled();
    let patches = world.hub.status_patches.len();
    for _ in 0..3600 {
        while world.do_step()
            || world.do_facts()
            || world.do_request(None)
            || world.do_watch_node()
            || world.do_renewal(Some(refused(500, "InternalError", "no")))
        {}
        world.advance(SECOND);
        world.handle(Event::Tick);
    }
    assert!(world.hub.status_patches.len() >= patches + 11, "{}", world.hub.status_patches.len());
}

#[test]
fn unanswered_status_does_not_delay_the_lease() {
    let mut world = settled();
    for _ in 0..3600 {
        while world.do_step() || world.do_facts() || world.do_renewal(None) {}
        world.advance(SECOND);
        world.handle(Event::Tick);
    }
    assert!(renewals(&world).len() >= 320);
}

#[test]
fn stuck_disk_write_does_not_delay_the_lease() {
    let mut world = settled();
    world.assign("b", &payload(B, ""));
    for _ in 0..3600 {
        while world.do_facts()
            || world.do_request(None)
            || world.do_renewal(None)
            || world.do_watch_node()
            || world.do_watch_map()
        {}
        world.advance(SECOND);
        world.handle(Event::Tick);
    }
    assert!(world.process.as_ref().is_some_and(|process| process.step.is_some()), "stuck");
    assert!(renewals(&world).len() >= 320);
    world.turn();
    world.restart();
    assert_eq!(world.used(), B);
}

#[test]
fn missing_node_gets_no_lease() {
    let mut world = World::new();
    world.base("registerNode: false");
    world.hub = Hub::new(Flavour::Kedge);
    world.start();
    world.run_for(HOUR);
    assert!(world.hub.lease().is_none());
    assert!(renewals(&world).is_empty());
    assert!(requests(&world).iter().all(|request| !matches!(request, Request::Register(_))));
    world.hub.create_node(NODE);
    world.run_for(MINUTE);
    assert!(world.hub.lease().is_some());
}

#[test]
fn deleted_lease_is_created_again_for_the_present_node() {
    let mut world = settled();
    world.hub.delete_lease();
    world.run_for(MINUTE);
    assert!(world.hub.lease().is_some());
    let before = world.hub.node_uid();
    world.hub.delete_node();
    world.hub.delete_lease();
    world.run_for(2 * MINUTE);
    assert_ne!(world.hub.node_uid(), before);
    let owners = &world.hub.lease().expect("created")["metadata"]["ownerReferences"];
    assert_eq!(owners[0]["uid"], json!(world.hub.node_uid()));
}

#[test]
fn unchanged_status_is_sent_only_when_a_report_is_due() {
    let mut world = settled();
    world.run_for(24 * HOUR);
    let patches = &world.hub.status_patches;
    assert!(
        (286..=290).contains(&patches.len()),
        "{} in a day, one is due every five minutes",
        patches.len()
    );
    for patch in patches {
        let status = patch["status"].as_object().expect("a status");
        assert_eq!(status.keys().collect::<Vec<_>>(), ["conditions"]);
        for condition in status["conditions"].as_array().expect("a list") {
            assert_eq!(
                condition.as_object().map(|fields| fields.len()),
                Some(2),
                "its type and heartbeat: {condition}"
            );
            assert_ne!(condition["type"], "ConfigOK");
        }
    }
}

#[test]
fn start_within_a_wall_second_sends_no_extra_status() {
    let mut world = World::new();
    world.board.set_wall(world.board.wall_micros() + 123_456);
    world.start();
    world.run_for(TRIAL_AND_A_RENEWAL);
    world.hub.status_patches.clear();
    world.run_for(HOUR);
    assert!(world.hub.status_patches.len() <= 13, "{}", world.hub.status_patches.len());
}

#[test]
fn changed_condition_is_sent_with_its_own_transition_time() {
    let mut world = settled();
    let before = world.hub.condition("Ready").expect("reported").clone();
    world.facts.memory_available_bytes = Some(1 << 20);
    world.run_for(11 * SECOND);
    let pressure = world.hub.condition("MemoryPressure").expect("reported");
    assert_eq!(pressure["status"], "True");
    assert_eq!(pressure["reason"], "KubeletHasInsufficientMemory");
    assert!(pressure["lastTransitionTime"].as_str() > before["lastTransitionTime"].as_str());
    assert_eq!(pressure["lastTransitionTime"], pressure["lastHeartbeatTime"], "when it was seen");
    assert_eq!(
        world.hub.condition("Ready").expect("reported")["lastTransitionTime"],
        before["lastTransitionTime"]
    );
    world.facts.memory_available_bytes = Some(1 << 29);
    world.run_for(4 * MINUTE);
    assert_eq!(world.hub.condition("MemoryPressure").expect("there")["status"], "True", "held for a while");
    world.run_for(2 * MINUTE);
    assert_eq!(world.hub.condition("MemoryPressure").expect("there")["status"], "False");
}

#[test]
fn new_address_replaces_the_old_one() {
    let mut world = settled();
    world.facts.addresses = vec!["198.51.100.9".into()];
    world.run_for(11 * SECOND);
    let addresses = world.hub.node().expect("there")["status"]["addresses"].clone();
    assert_eq!(
        addresses,
        json!([{"type": "InternalIP", "address": "198.51.100.9"}, {"type": "Hostname", "address": NODE}])
    );
}

#[test]
fn unknown_ready_is_answered_with_a_fresh_status() {
    let mut world = settled();
    world.hub.mark_unknown();
    assert_eq!(world.hub.condition("Ready").expect("there")["status"], "Unknown");
    world.turn();
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let condition = world.hub.condition(kind).expect("there");
        assert_ne!(condition["status"], "Unknown", "{kind}");
        assert_ne!(condition["reason"], "NodeStatusUnknown", "{kind}");
    }
}

#[test]
fn conditions_and_labels_of_others_are_kept() {
    let mut world = settled();
    world.hub.edit_node(|node| {
        node["metadata"]["labels"]["site"] = json!("north");
        if let Some(conditions) = node["status"]["conditions"].as_array_mut() {
            conditions
                .push(json!({"type": "KernelDeadlock", "status": "False", "reason": "x", "message": "y"}));
        }
        node["status"]["capacity"]["example.com/gpu"] = json!("2");
    });
    world.run_for(HOUR);
    let node = world.hub.node().expect("there");
    assert_eq!(node["metadata"]["labels"]["site"], "north");
    assert!(world.hub.condition("KernelDeadlock").is_some());
    assert_eq!(node["status"]["capacity"]["example.com/gpu"], "2");
}

const TWENTY_YEARS_MICROS: i64 = 20 * 365 * 24 * 3600 * 1_000_000;

#[test]
fn wall_clock_jump_of_twenty_years_changes_no_timing() {
    for step in [TWENTY_YEARS_MICROS, -TWENTY_YEARS_MICROS] {
        // in a trial, after a crash, so that every clock matters
        let (mut world, _) = World::in_trial("a", &payload(A, ""));
        world.crash_and_start();
        let (mut stepped, _) = World::in_trial("a", &payload(A, ""));
        stepped.crash_and_start();
        for world in [&mut world, &mut stepped] {
            world.run_for(MINUTE);
            world.seen.clear();
        }
        stepped.board.set_wall(stepped.board.wall_micros() + step);
        for world in [&mut world, &mut stepped] {
            world.run_for(TRIAL - MINUTE - SECOND);
            assert_eq!(world.state(), "trial");
            world.run_for(TRIAL_AND_A_RENEWAL - TRIAL);
            assert_eq!(world.state(), "known-good");
            world.run_for(HOUR);
        }
        assert_eq!(renewals(&world).len(), renewals(&stepped).len());
        assert_eq!(requests(&world).len(), requests(&stepped).len());
        assert_eq!(world.disk.take_written(), stepped.disk.take_written());
        assert_eq!(world.hub.condition("Ready").expect("there")["status"], "True");
    }
}

#[test]
fn ten_minute_outage_ends_within_one_period() {
    let mut world = settled();
    let starts = world.starts;
    world.link = false;
    world.run_for(10 * MINUTE);
    assert!(!world.exited());
    let tried = renewals(&world).len();
    assert!((30..=120).contains(&tried), "{tried} tries");
    world.link = true;
    world.list_again();
    let before = world.hub.renewals;
    world.run_for(15 * SECOND);
    assert!(world.hub.renewals > before, "renewed within one period");
    assert_eq!(world.starts, starts);
    world.check_written(&[]);
    // logged at its beginning and its end, not every few seconds
    let about = world.log.iter().filter(|line| line.contains("lease")).count();
    assert!(about <= 2, "{:?}", world.log);
}

/// When the first node next does something for which `is_it` holds.
fn next_time(world: &mut World, is_it: impl Fn(&Seen) -> bool) -> Duration {
    world.seen.clear();
    for _ in 0..10_000 {
        world.wait_for_deadline();
        world.turn();
        if world.seen.iter().any(&is_it) {
            return world.time;
        }
    }
    panic!("never done")
}

/// The time between the first and the second such act, over boards with different seeds.
fn intervals(prepare: impl Fn(&mut World), is_it: impl Fn(&Seen) -> bool) -> BTreeSet<Duration> {
    let intervals = (1..=20_u64).map(|seed| {
        let mut world = World::new();
        world.seed = seed * 1000;
        world.start();
        prepare(&mut world);
        let first = next_time(&mut world, &is_it);
        next_time(&mut world, &is_it) - first
    });
    intervals.collect()
}

#[test]
fn boards_started_at_once_drift_apart() {
    let is_renewal = |seen: &Seen| matches!(seen, Seen::Asked(Action::Renew { .. }));
    let is_look = |seen: &Seen| matches!(seen, Seen::Asked(Action::ReadHostFacts));
    let renewals = intervals(|_| {}, is_renewal);
    assert!(renewals.len() >= 15, "{renewals:?}");
    let looks = intervals(|_| {}, is_look);
    assert!(looks.len() >= 15, "{looks:?}");
    let retries = intervals(|world| world.link = false, is_renewal);
    assert!(retries.len() >= 15, "{retries:?}");
}

#[test]
fn retry_after_is_obeyed_up_to_twenty_seconds() {
    for (asked, given) in [(15, 15), (20, 20), (31_536_000, 20)] {
        check_patience(Duration::from_secs(asked), Duration::from_secs(given));
    }
}

#[track_caller]
fn check_patience(asked: Duration, given: Duration) {
    let mut world = settled();
    let later = Answer::Refused {
        status: 429,
        reason: "TooManyRequests".into(),
        message: "later".into(),
        retry_after: Some(asked),
    };
    while world.process.as_ref().is_some_and(|process| process.renewal.is_none()) {
        world.advance(SECOND);
        world.handle(Event::Tick);
    }
    world.do_renewal(Some(later));
    world.seen.clear();
    world.run_for(given - SECOND);
    assert!(renewals(&world).is_empty());
    world.run_for(2 * SECOND);
    assert_eq!(renewals(&world).len(), 1);
}

/// A settled node without any assignment so far: nothing that an API server sends about sources may change
/// anything.
fn local() -> World {
    let mut world = World::new();
    world.start();
    world.run_for(MINUTE);
    world.seen.clear();
    world
}

#[test]
fn new_server_is_asked_for_its_version() {
    let mut world = local();
    world.hub.flavour = Flavour::Kubernetes;
    world.change_server();
    world.turn();
    assert_eq!(world.report().server_is_hub, Some(false));
}

#[test]
fn late_answer_of_the_previous_server_is_ignored() {
    let mut world = local();
    world.change_server();
    assert_eq!(requests(&world), [&Request::Version]);
    // the server is replaced before it has answered
    world.hub.flavour = Flavour::Kubernetes;
    world.change_server();
    assert_eq!(requests(&world), [&Request::Version], "one request of a kind at a time");
    world.do_request(Some(Answer::Accepted(Some(json!({"gitVersion": "v1.34.0+kedge-0.1.0"})))));
    assert_eq!(world.report().server_is_hub, None);
    assert_eq!(requests(&world), [&Request::Version; 2], "asked again");
    world.turn();
    assert_eq!(world.report().server_is_hub, Some(false));
}

#[test]
fn status_wiped_by_others_is_sent_again() {
    let mut world = settled();
    // somebody else removes the node's report
    world.hub.edit_node(|node| node["status"] = json!({}));
    world.turn();
    assert_eq!(world.hub.condition("Ready").expect("sent again")["status"], "True");
    assert_eq!(world.hub.condition("ConfigOK").expect("sent again")["status"], "True");
    assert_ne!(world.config_status(), Value::Null);
}

#[test]
fn overwritten_status_annotation_is_sent_again_after_a_pause() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.run_for(HOUR);
    let annotation = "/metadata/annotations/kedge.dev~1config-status";
    let status_annotation =
        |world: &World| world.hub.node().and_then(|node| node.pointer(annotation).cloned());
    let before = status_annotation(&world);
    assert!(before.is_some());
    world.seen.clear();
    for _ in 0..70 {
        world.hub.edit_node(|node| *node.pointer_mut(annotation).expect("there") = json!("another's word"));
        world.run_for(SECOND);
    }
    let sent =
        requests(&world).into_iter().filter(|request| matches!(request, Request::PatchNode(_))).count();
    assert_eq!(sent, 1, "one answer, then a pause");
    world.run_for(2 * MINUTE);
    assert_eq!(status_annotation(&world), before);
}

#[test]
fn node_recreated_unseen_gets_the_status_annotation_too() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.run_for(HOUR);
    world.hub.create_node(NODE);
    world.run_for(2 * MINUTE);
    let node = world.hub.node().expect("there");
    assert!(node.pointer("/metadata/annotations/kedge.dev~1config-status").is_some());
}

/// The hub was wiped, and the watch of the Node, which continues from its old version, gets no event.
fn wiped_unheard() -> World {
    let mut world = settled();
    world.hub.delete_node();
    world.hub.delete_lease();
    world.lose_news();
    world.seen.clear();
    world
}

fn searches(world: &World) -> usize {
    world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::WatchNode(_)))).count()
}

#[test]
fn node_missing_at_a_renewal_is_listed_and_registered() {
    let mut world = wiped_unheard();
    world.run_for(MINUTE);
    assert_eq!(searches(&world), 1);
    assert!(world.hub.node().is_some(), "registered again");
    assert!(world.hub.lease().is_some());
    world.run_for(HOUR);
    assert_eq!(searches(&world), 1, "once");
}

#[test]
fn missing_lease_says_nothing_about_the_node() {
    let mut world = World::new();
    world.start();
    world.run_for(MINUTE);
    assert!(world.hub.lease().is_some(), "created");
    assert_eq!(searches(&world), 1, "the watch that every start begins with");
}

#[test]
fn repeated_404_lists_the_node_every_five_minutes() {
    let mut world = settled();
    world.seen.clear();
    let not_found = Answer::Refused {
        status: 404,
        reason: "NotFound".into(),
        message: "no such subresource".into(),
        retry_after: None,
    };
    for _ in 0..10 {
        world.handle(Event::Answered(RequestKey::PatchStatus, not_found.clone()));
        world.advance(30 * SECOND);
    }
    assert_eq!(searches(&world), 1);
    world.handle(Event::Answered(RequestKey::PatchStatus, not_found.clone()));
    assert_eq!(searches(&world), 2, "five minutes later");
    // if the watch reported the Node as deleted, no list is needed
    let mut world = settled();
    world.handle(node_event(&Value::Null));
    world.seen.clear();
    world.handle(Event::Answered(RequestKey::PatchStatus, not_found));
    assert_eq!(searches(&world), 0);
}
