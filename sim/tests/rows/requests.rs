//! Requests to the API server besides renewals: their time and body, repetition after failures, log lines,
//! and the answers that count as contact.
//!
//! Always holds, because the world asserts it: one request of a kind at a time.

use crate::{A, HOUR, MINUTE, SECOND, TRIAL_AND_A_RENEWAL, payload};
use kedge_api::{CONFIG_STATUS_ANNOTATION, MAINTENANCE_ANNOTATION, SLOT};
use kedge_core::{Action, Answer, Event, LeaseRequest, Request, RequestKey};
use kedge_sim::hub::{Flavour, Hub, refused};
use kedge_sim::{NODE, Seen, World, node_event};
use serde_json::{Value, json};

/// The requests that change the Node.
const PATCHES: [RequestKey; 3] = [RequestKey::PatchStatus, RequestKey::PatchLabels, RequestKey::PatchNode];

/// How many requests of a kind were sent since `seen` was emptied.
fn asked(world: &World, kind: RequestKey) -> usize {
    let is_one = |seen: &&Seen| matches!(seen, Seen::Asked(Action::Request(other)) if other.key() == kind);
    world.seen.iter().filter(is_one).count()
}

/// Performs everything, until a request of this kind is the next to be answered.
#[track_caller]
fn run_up_to(world: &mut World, kind: RequestKey) {
    for _ in 0..100 {
        let first = world.process.as_ref().and_then(|process| process.requests.first());
        if first.is_some_and(|request| request.key() == kind) {
            return;
        }
        let moved = world.do_step()
            || world.do_facts()
            || world.do_request(None)
            || world.do_renewal(None)
            || world.do_watch_node()
            || world.do_watch_map();
        assert!(moved, "{kind:?} is not asked for");
    }
    panic!("{kind:?} is not asked for");
}

fn running(fields: &str) -> World {
    let mut world = World::new();
    world.base(fields);
    world.start();
    world.run_for(MINUTE);
    world.seen.clear();
    world.log.clear();
    world
}

/// The longest possible periods, so that only the tested mechanism wakes the agent more often.
const RARELY_WOKEN: &str =
    "nodeStatusUpdateFrequency: 5m\nnodeStatusReportFrequency: 5m\nnodeLeaseDurationSeconds: 160";

#[test]
fn failed_request_backs_off_and_is_logged_once() {
    let mut world = World::new();
    world.base(RARELY_WOKEN);
    world.link = false;
    world.start();
    world.run_for(10 * MINUTE);
    let tries = asked(&world, RequestKey::Version);
    // after 1, 2, 4, 8 and 16 seconds, then every 30; each stretched by up to a quarter
    assert!((20..=25).contains(&tries), "{tries} tries");
    let said: Vec<&String> = world.log.iter().filter(|line| line.contains("retrying")).collect();
    assert_eq!(said, ["W no contact with the API server yet: connection refused; retrying"]);
}

#[test]
fn refused_report_is_retried_after_a_second() {
    let mut world = running(RARELY_WOKEN);
    // with neither renewals nor host facts answered, only the report is left to wake it
    while asked(&world, RequestKey::PatchStatus) == 0 {
        world.advance(world.deadline().expect("a report is due") - world.mono());
        world.handle(Event::Tick);
    }
    world.do_request(Some(refused(500, "InternalError", "no leader")));
    let wait = world.deadline().expect("to try again") - world.mono();
    assert!(wait >= SECOND && wait <= SECOND.mul_f64(1.25), "{wait:?}");
}

#[test]
fn failure_is_logged_by_name_once_per_outage() {
    for (kind, what) in [
        (RequestKey::Version, "GET /version"),
        (RequestKey::Register, "creating Node edge-1"),
        (RequestKey::PatchStatus, "patching the status of Node edge-1"),
        (RequestKey::PatchLabels, "patching the labels of Node edge-1"),
        (RequestKey::PatchNode, "patching the annotations of Node edge-1"),
        (RequestKey::PostEvent, "posting an event about Node edge-1"),
    ] {
        let mut world = running("");
        let line = format!("W {what}: the API server answered 500: no leader; retrying");
        let failed = Event::Answered(kind, refused(500, "InternalError", "no leader"));
        world.handle(failed.clone());
        world.handle(failed.clone());
        assert_eq!(world.log, [line.as_str()]);
        world.handle(Event::Answered(kind, Answer::Accepted(Some(json!({"gitVersion": "v1.0.0+kedge-1"})))));
        world.handle(failed);
        assert_eq!(world.log, [line.as_str(), &line], "another outage");
    }
}

#[test]
fn rejected_event_is_dropped_any_other_posted_later() {
    for (status, is_dropped) in [
        (302, false),
        (400, true),
        (401, false),
        (403, true),
        (404, true),
        (422, true),
        (429, false),
        (499, true),
        (500, false),
        (503, false),
    ] {
        let mut world = World::new();
        world.start();
        world.assign("a", &payload(A, ""));
        world.turn();
        world.exit();
        world.launch();
        run_up_to(&mut world, RequestKey::PostEvent);
        world.do_request(Some(refused(status, "", "no")));
        world.run_for(MINUTE);
        let line = format!("W event dropped: the API server answered {status}: no");
        assert_eq!(world.log.contains(&line), is_dropped, "{status}");
        let posted = world.take_events();
        assert_eq!(posted.len(), usize::from(!is_dropped), "{status}: {posted:?}");
    }
}

/// A node with verdicts on twenty UIDs; each forgiven one is an event.
fn with_much_to_forgive() -> World {
    let mut world = World::new();
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    let list: Value = (1..=20).map(|number| (format!("uid-{number}"), entry.clone())).collect();
    world.disk.put("0.1.0/bad-configs.json", list.to_string().as_bytes());
    world
}

/// Forgives them; performs only the writes.
fn forgive(world: &mut World, uids: impl IntoIterator<Item = u32>) {
    for number in uids {
        world.handle(Event::Forgive(format!("uid-{number}")));
        while world.do_step() {}
    }
}

/// Which of the twenty the posted Events are about.
fn told(world: &World) -> Vec<u32> {
    let number = |event: &Value| {
        let message = event["message"].as_str().expect("a text");
        let number = message.strip_prefix("the verdicts on UID uid-");
        let number = number.and_then(|text| text.strip_suffix(" were removed on request"));
        number.expect(message).parse().expect("a number")
    };
    world.hub.events.iter().map(number).collect()
}

#[test]
fn only_the_last_sixteen_events_are_posted_in_order() {
    let mut world = with_much_to_forgive();
    world.link = false;
    world.start();
    forgive(&mut world, 1..=20);
    let wall = world.board.wall_micros();
    world.link = true;
    world.run_for(MINUTE);
    assert_eq!(told(&world), (5..=20).collect::<Vec<u32>>());
    let name = |event: &Value| event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let names: Vec<String> = world.hub.events.iter().map(name).collect();
    let expect: Vec<String> = (5..=20).map(|number| format!("{NODE}.{wall:x}{number:02x}")).collect();
    assert_eq!(names, expect);
}

#[test]
fn event_in_flight_stays_when_the_queue_is_full() {
    let mut world = with_much_to_forgive();
    world.start();
    forgive(&mut world, 1..=20);
    assert_eq!(asked(&world, RequestKey::PostEvent), 1, "not answered yet");
    world.turn();
    assert_eq!(told(&world), [vec![1], (6..=20).collect()].concat());
}

/// The Node that an unregistered node creates.
#[track_caller]
fn registered(fields: &str) -> Value {
    let mut world = World::new();
    world.base(fields);
    world.hub = Hub::new(Flavour::Kedge);
    world.launch();
    run_up_to(&mut world, RequestKey::Register);
    let process = world.process.as_ref().expect("it runs");
    let Some(Request::Register(body)) = process.requests.first() else { unreachable!("it is the first") };
    body.clone()
}

#[test]
fn node_is_created_with_labels_provider_and_taints() {
    let labels = json!({
        "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64",
    });
    let node = |spec: Value| {
        let metadata = json!({"name": NODE, "labels": labels});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    };
    assert_eq!(registered(""), node(json!({})));
    let taints = "[{key: a, value: b, effect: NoSchedule}, {key: a, effect: NoExecute}]";
    let spec = json!({
        "providerID": "board://7",
        "taints": [
            {"key": "a", "value": "b", "effect": "NoSchedule"},
            {"key": "a", "effect": "NoExecute"},
        ],
    });
    assert_eq!(registered(&format!("providerID: board://7\nregisterWithTaints: {taints}")), node(spec));
}

#[test]
fn unseen_node_is_created_again_after_half_a_minute() {
    for answer in [Answer::Accepted(None), refused(409, "AlreadyExists", "node already exists")] {
        let mut world = World::new();
        world.base(RARELY_WOKEN);
        world.hub = Hub::new(Flavour::Kedge);
        world.launch();
        run_up_to(&mut world, RequestKey::Register);
        world.do_request(Some(answer));
        while world.do_step() || world.do_facts() || world.do_request(None) {}
        assert_eq!(asked(&world, RequestKey::Register), 1);
        assert_eq!(world.deadline(), Some(world.mono() + 30 * SECOND), "nothing else wakes it");
        world.advance(30 * SECOND);
        world.handle(Event::Tick);
        assert_eq!(asked(&world, RequestKey::Register), 2);
    }
}

#[test]
fn host_facts_are_read_every_ten_seconds() {
    let mut world = running("nodeLeaseDurationSeconds: 160");
    world.run_for(HOUR);
    let looks = world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::ReadHostFacts))).count();
    // every 10 s, stretched by up to 4 %, and a sixteenth later where nothing else wakes the node
    assert!((326..=361).contains(&looks), "{looks}");
}

#[test]
fn no_status_before_first_host_facts() {
    for is_registered in [true, false] {
        let mut world = World::new();
        if !is_registered {
            world.hub = Hub::new(Flavour::Kedge);
        }
        world.launch();
        while world.do_step() || world.do_request(None) || world.do_renewal(None) || world.do_watch_node() {}
        assert_eq!(world.report().registered, is_registered);
        for kind in PATCHES.into_iter().chain([RequestKey::Register]) {
            assert_eq!(asked(&world, kind), 0, "{kind:?}");
        }
    }
}

#[test]
fn settled_node_sends_only_reports() {
    let mut world = running("");
    world.run_for(HOUR);
    let once = [RequestKey::Version, RequestKey::Register, RequestKey::PostEvent];
    for kind in [RequestKey::PatchLabels, RequestKey::PatchNode].into_iter().chain(once) {
        assert_eq!(asked(&world, kind), 0, "{kind:?}");
    }
    assert_eq!(world.log, [""; 0]);
}

/// `status.config` of the status patches since the last call.
fn config_parts(world: &mut World) -> Vec<Value> {
    let patches = std::mem::take(&mut world.hub.status_patches);
    patches.iter().filter_map(|patch| patch["status"].get("config").cloned()).collect()
}

#[test]
fn status_config_patch_has_only_what_changed() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    config_parts(&mut world);
    world.run_for(TRIAL_AND_A_RENEWAL);
    let parts = config_parts(&mut world);
    assert_eq!(parts.len(), 1, "{parts:?}");
    let names: Vec<&String> = parts[0].as_object().into_iter().flat_map(|fields| fields.keys()).collect();
    assert_eq!(names, ["lastKnownGood"]);
    world.hub.assign(json!({}));
    world.turn();
    let parts = config_parts(&mut world);
    assert!(parts.iter().all(|part| part.as_object().is_some_and(|fields| fields.len() == 1)), "{parts:?}");
    assert!(parts.iter().any(|part| part["error"].is_string()), "{parts:?}");
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    let parts = config_parts(&mut world);
    assert_eq!(parts.last(), Some(&json!({"error": null})), "{parts:?}");
}

fn status_annotation(world: &World) -> Option<Value> {
    let node = world.hub.node().expect("there");
    let text = node["metadata"]["annotations"][CONFIG_STATUS_ANNOTATION].as_str()?;
    Some(serde_json::from_str(text).expect("JSON"))
}

#[test]
fn refused_status_annotation_is_sent_again() {
    let mut world = World::with(Flavour::Kubernetes);
    world.launch();
    run_up_to(&mut world, RequestKey::PatchNode);
    world.do_request(Some(refused(500, "InternalError", "no leader")));
    world.turn();
    assert_eq!(status_annotation(&world), None);
    world.run_for(MINUTE);
    assert_eq!(status_annotation(&world), Some(json!({})));
}

#[test]
fn maintenance_windows_are_written_to_the_node() {
    let annotation = |world: &World| {
        world.hub.node_named(NODE).expect("the Node")["metadata"]["annotations"][MAINTENANCE_ANNOTATION]
            .clone()
    };
    let mut world = running("kedge: {maintenanceWindows: [\"02:00-04:00\", \"Sat 00:00-06:00\"]}");
    assert_eq!(annotation(&world), "02:00-04:00, Sat 00:00-06:00");
    world.run_for(HOUR);
    assert_eq!(asked(&world, RequestKey::PatchLabels), 0, "once is enough");
    let mut world = running("");
    world
        .hub
        .edit_node(|node| node["metadata"]["annotations"][MAINTENANCE_ANNOTATION] = json!("02:00-04:00"));
    world.run_for(HOUR);
    assert_eq!(annotation(&world), Value::Null, "those of an earlier configuration go");
}

#[test]
fn slot_is_a_label_and_an_annotation() {
    let shown = |world: &World| {
        let meta = world.hub.node_named(NODE).expect("the Node")["metadata"].clone();
        [meta["labels"][SLOT].clone(), meta["annotations"][SLOT].clone()]
    };
    let restarted = |world: &mut World, slot: Option<&str>| {
        world.crash();
        world.slot = slot.map(str::to_owned);
        world.start();
        world.run_for(HOUR);
    };
    for flavour in [Flavour::Kedge, Flavour::Kubernetes] {
        let mut world = World::with(flavour);
        world.slot = Some("a".to_owned());
        world.start();
        world.run_for(HOUR);
        assert_eq!(shown(&world), ["a", "a"]);
        assert_eq!(asked(&world, RequestKey::PatchLabels), 2, "the labels once, the annotation once");
        restarted(&mut world, Some("b"));
        assert_eq!(shown(&world), ["b", "b"]);
        assert_eq!(asked(&world, RequestKey::PatchLabels), 4, "the same after an update");
        // an operator may select by other words, but cannot change the annotation
        world.labels.insert(SLOT.into(), "canary".into());
        restarted(&mut world, Some("b"));
        assert_eq!(shown(&world), [json!("canary"), json!("b")]);
        world.labels.clear();
        restarted(&mut world, None);
        assert_eq!(shown(&world), [json!("canary"), Value::Null], "a node without slots");
    }
}

#[test]
fn refused_label_holds_back_neither_annotation_nor_log() {
    let mut world = World::with(Flavour::Kubernetes);
    world.labels.insert("kubernetes.io/foo".into(), "x".into());
    world.start();
    world.run_for(HOUR);
    assert_eq!(status_annotation(&world), Some(json!({})));
    // once, then every 5 minutes, randomly delayed by up to a quarter
    let tries = asked(&world, RequestKey::PatchLabels);
    assert!((10..=13).contains(&tries), "{tries}");
    let said: Vec<&String> = world.log.iter().filter(|line| line.contains("labels")).collect();
    let expect = "W patching the labels of Node edge-1: the API server answered 403: nodes \"edge-1\" is forbidden: is not \
                  allowed to modify labels: kubernetes.io/foo; trying again in 5 minutes";
    assert_eq!(said, [expect]);
    // an administrator may set such a label
    world.hub.edit_node(|node| node["metadata"]["labels"]["kubernetes.io/foo"] = json!("x"));
    world.run_for(10 * MINUTE);
    let node = world.hub.node().expect("there");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE, "the others are put on it");
}

#[test]
fn refused_status_annotation_is_repeated_rarely_until_changed() {
    for status in [400, 403, 422] {
        let mut world = World::with(Flavour::Kubernetes);
        world.launch();
        run_up_to(&mut world, RequestKey::PatchNode);
        world.seen.clear();
        world.do_request(Some(refused(status, "", "no")));
        world.run_for(4 * MINUTE);
        assert_eq!(asked(&world, RequestKey::PatchNode), 0, "{status}");
        world.hub.assign(json!({"neither": "form"}));
        world.turn();
        assert!(status_annotation(&world).is_some_and(|status| status["error"].is_string()), "{status}");
    }
    let mut world = World::with(Flavour::Kubernetes);
    world.launch();
    run_up_to(&mut world, RequestKey::PatchNode);
    world.do_request(Some(refused(403, "Forbidden", "no")));
    world.run_for(7 * MINUTE);
    assert_eq!(status_annotation(&world), Some(json!({})), "somebody may give it the right");
}

/// If a server refuses a node's report or registration, the node tries again every five minutes, and at once
/// when it has something new to report.
#[test]
fn refused_status_is_repeated_rarely_unless_it_changes() {
    for status in [400, 403, 422] {
        let mut world = World::new();
        world.launch();
        run_up_to(&mut world, RequestKey::PatchStatus);
        world.seen.clear();
        world.do_request(Some(refused(status, "", "no")));
        world.run_for(4 * MINUTE);
        assert_eq!(asked(&world, RequestKey::PatchStatus), 0, "{status}");
        world.facts.addresses = vec!["192.0.2.8".into()];
        world.run_for(MINUTE);
        assert_eq!(world.config_ok()[0], "True", "{status}");
    }
    let mut world = World::new();
    world.launch();
    run_up_to(&mut world, RequestKey::PatchStatus);
    world.do_request(Some(refused(403, "Forbidden", "no")));
    world.run_for(7 * MINUTE);
    assert_eq!(world.config_ok()[0], "True", "somebody may give it the right");
}

#[test]
fn refused_registration_is_repeated_rarely() {
    let mut world = World::new();
    world.hub = Hub::new(Flavour::Kedge);
    world.launch();
    run_up_to(&mut world, RequestKey::Register);
    world.seen.clear();
    world.do_request(Some(refused(403, "Forbidden", "no")));
    world.run_for(4 * MINUTE);
    assert_eq!(asked(&world, RequestKey::Register), 0);
    world.run_for(3 * MINUTE);
    assert!(world.hub.node().is_some(), "somebody may give it the right");
}

#[test]
fn refusal_after_an_outage_is_logged() {
    let mut world = running("");
    let patch = RequestKey::PatchLabels;
    for answer in [Answer::Failed("no route".into()), refused(403, "Forbidden", "no label x")] {
        world.handle(Event::Answered(patch, answer.clone()));
        world.handle(Event::Answered(patch, answer));
    }
    let said: Vec<&String> = world.log.iter().filter(|line| line.contains("no label x")).collect();
    assert_eq!(said.len(), 1, "{:?}", world.log);
}

#[test]
fn refusal_is_logged_once_whatever_its_message_names() {
    let mut world = running("");
    for (status, reason, message, is_logged) in [
        (403, "Forbidden", "no, says request 1", true),
        (403, "Forbidden", "no, says request 2", false),
        (422, "Invalid", "no, says request 3", true),
        (422, "", "no, says request 4", true),
        (403, "Forbidden", "no, says request 5", true),
    ] {
        world.handle(Event::Answered(RequestKey::PatchLabels, refused(status, reason, message)));
        let found = world.log.iter().any(|line| line.contains(message));
        assert_eq!(found, is_logged, "{message}: {:?}", world.log);
    }
}

#[test]
fn name_too_long_for_a_label_is_still_registered() {
    let mut world = World::new();
    world.name = "n".repeat(64);
    world.hub = Hub::new(Flavour::Kedge);
    world.launch();
    run_up_to(&mut world, RequestKey::Register);
    let request = world.process.as_ref().and_then(|process| process.requests.first().cloned());
    let Some(Request::Register(node)) = request else { panic!("{request:?}") };
    assert_eq!(
        node["metadata"]["labels"],
        json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"})
    );
}

#[test]
fn status_annotation_follows_every_change() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.run_for(MINUTE);
    for _ in 0..2 {
        world.hub.assign(json!({"neither": "form"}));
        world.turn();
        assert!(status_annotation(&world).is_some_and(|status| status["error"].is_string()));
        world.advance(SECOND);
        world.hub.assign(Value::Null);
        world.turn();
        assert_eq!(status_annotation(&world), Some(json!({})));
        world.advance(SECOND);
    }
}

/// Both places of a status on servers other than our hub: how often the condition and the annotation with the
/// status have changed.
#[derive(Default)]
struct Changes {
    shown: (Option<Value>, Option<Value>),
    condition: usize,
    annotation: usize,
}

impl Changes {
    #[track_caller]
    fn look(&mut self, world: &World) {
        let shown =
            (world.hub.condition("ConfigOK").map(|shown| shown["status"].clone()), status_annotation(world));
        self.condition += usize::from(shown.0 != self.shown.0);
        self.annotation += usize::from(shown.1 != self.shown.1);
        self.shown = shown;
        assert!(self.condition <= self.annotation, "the annotation is older than the condition");
    }
}

#[test]
fn status_annotation_is_never_older_than_the_condition() {
    // number of requests that are answered before the watch shows a change
    for pace in 0..4 {
        let mut world = World::with(Flavour::Kubernetes);
        world.start();
        world.run_for(MINUTE);
        let mut changes = Changes::default();
        changes.look(&world);
        for source in [json!({"neither": "form"}), Value::Null].iter().cycle().take(8) {
            world.hub.assign(source.clone());
            world.do_watch_node();
            for _ in 0..12 {
                for _ in 0..pace {
                    world.do_request(None);
                    changes.look(&world);
                }
                world.do_watch_node();
                world.do_step();
            }
            world.turn();
            changes.look(&world);
            let has_error = status_annotation(&world).is_some_and(|status| status["error"].is_string());
            assert_eq!(has_error, !source.is_null(), "no time passed, and it is behind");
        }
        assert!(changes.annotation >= 9, "{}", changes.annotation);
    }
}

/// A node that has run for a minute.
fn settled(flavour: Flavour) -> World {
    let mut world = World::with(flavour);
    world.start();
    world.run_for(MINUTE);
    world
}

/// The server gives no answer, and a status waits for the next try.
fn let_status_wait(world: &mut World) {
    world.handle(Event::Answered(RequestKey::PostEvent, Answer::Failed("no route".into())));
    world.seen.clear();
    world.handle(Event::DiskStalled(true));
    assert_eq!(asked(world, RequestKey::PatchStatus), 0, "it waits");
}

#[test]
fn status_that_waits_leaves_behind_a_newer_annotation() {
    let mut world = settled(Flavour::Kubernetes);
    world.hub.assign(json!({"neither": "form"}));
    world.do_watch_node();
    let_status_wait(&mut world);
    // the condition reflects the records on disk
    while world.do_step() {}
    world.advance(MINUTE);
    world.handle(Event::Tick);
    let keys = world.seen.iter().filter_map(|seen| match seen {
        Seen::Asked(Action::Request(request)) => Some(request.key()),
        _ => None,
    });
    // until there is an answer, one request is sent for all
    assert_eq!(keys.collect::<Vec<RequestKey>>(), [RequestKey::PatchNode]);
}

fn node_rounds(world: &World) -> usize {
    world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::WatchNode(_)))).count()
}

#[track_caller]
fn check_is_ready(world: &mut World) {
    assert_eq!(world.hub.condition("Ready").expect("there")["status"], "Unknown");
    world.run_for(MINUTE);
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        assert_ne!(world.hub.condition(kind).expect("there")["status"], "Unknown", "{kind}");
    }
}

#[test]
fn lost_node_elsewhere_is_ready_again() {
    let mut world = settled(Flavour::Kubernetes);
    for _ in 0..3 {
        world.hub.mark_unknown();
        check_is_ready(&mut world);
    }
}

#[test]
fn lost_node_is_ready_again_whatever_was_on_its_way() {
    for flavour in [Flavour::Kedge, Flavour::Kubernetes] {
        for watch_is_first in [false, true] {
            // marked as lost while a status is on its way
            let mut world = settled(flavour);
            world.handle(Event::DiskStalled(true));
            world.hub.mark_unknown();
            if watch_is_first {
                world.do_watch_node();
            }
            world.do_request(None);
            check_is_ready(&mut world);
            // and read in full while a status is on its way that was composed before
            world.hub.mark_unknown();
            world.do_watch_node();
            world.handle(Event::DiskStalled(false));
            world.do_watch_node();
            world.do_request(None);
            world.run_for(MINUTE);
            assert_eq!(world.hub.condition("Ready").expect("there")["status"], "True");
        }
    }
}

#[test]
fn own_changes_elsewhere_lead_to_no_list() {
    let mut world = settled(Flavour::Kubernetes);
    world.seen.clear();
    for stalled in [true, false, true, false] {
        world.handle(Event::DiskStalled(stalled));
        world.run_for(HOUR);
    }
    assert!(asked(&world, RequestKey::PatchStatus) > 40);
    assert_eq!(node_rounds(&world), 0, "it knows what it changed");
    // a change by somebody else is read, once
    world.hub.edit_node(|node| node["metadata"]["labels"]["site"] = json!("north"));
    world.run_for(HOUR);
    assert_eq!(node_rounds(&world), 1);
}

#[test]
fn node_that_is_stamped_each_second_is_read_rarely() {
    let mut world = settled(Flavour::Kubernetes);
    world.seen.clear();
    for stamp in 0..600 {
        world.hub.edit_node(|node| node["metadata"]["annotations"]["stamp"] = json!(stamp.to_string()));
        world.run_for(SECOND);
    }
    assert!((20..=21).contains(&node_rounds(&world)), "{}", node_rounds(&world));
}

#[test]
fn record_of_managers_is_dropped_from_a_lease_elsewhere() {
    // once with the patch that finds it missing, and again after it was created
    for (flavour, expect) in [(Flavour::Kedge, 0), (Flavour::Kubernetes, 2)] {
        let mut world = World::with(flavour);
        world.start();
        world.run_for(HOUR);
        let drops = |seen: &&Seen| match seen {
            Seen::Asked(Action::Renew { request: LeaseRequest::Patch(body), .. }) => {
                body["metadata"]["managedFields"] == json!([{}])
            }
            _ => false,
        };
        assert_eq!(world.seen.iter().filter(drops).count(), expect, "{flavour:?}");
        assert!(world.report().lease.renewals > 300);
    }
}

#[test]
fn nothing_that_waits_is_sent_to_a_deleted_node() {
    for flavour in [Flavour::Kedge, Flavour::Kubernetes] {
        let mut world = settled(flavour);
        let_status_wait(&mut world);
        world.hub.delete_node();
        world.do_watch_node();
        world.advance(MINUTE);
        world.handle(Event::Tick);
        for key in PATCHES {
            assert_eq!(asked(&world, key), 0, "{key:?}");
        }
    }
}

#[test]
fn status_annotation_is_not_sent_on_restart_or_once_dropped() {
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.run_for(HOUR);
    world.stop();
    world.seen.clear();
    world.start();
    world.run_for(MINUTE);
    assert_eq!(asked(&world, RequestKey::PatchNode), 0, "it is there");
    world.hub.assign(json!({"neither": "form"}));
    world.turn();
    world.seen.clear();
    for _ in 0..10 {
        world.hub.edit_node(|node| {
            let annotations = node.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
            annotations.expect("there are some").remove(CONFIG_STATUS_ANNOTATION);
        });
        world.run_for(MINUTE);
    }
    assert_eq!(asked(&world, RequestKey::PatchNode), 0);
}

#[test]
fn node_of_another_name_is_logged_once() {
    let mut world = World::new();
    world.link = false;
    world.start();
    let source = json!({"configMapRef": {"namespace": "n", "name": "m", "uid": "u"}});
    let other = json!({"metadata": {"name": "edge-2", "uid": "u-2"}, "spec": {"configSource": source}});
    world.log.clear();
    for _ in 0..3 {
        world.handle(node_event(&other));
    }
    let report = world.report();
    assert!(!report.config.contact && !report.registered);
    let said = "W the API server answered with the Node of \"edge-2\", expected \"edge-1\"; its config source is ignored";
    assert_eq!(world.log, [said]);
}

#[test]
fn unreadable_node_is_logged_once_and_in_short() {
    let mut world = World::new();
    world.link = false;
    world.start();
    let odd = |index: usize| json!({"metadata": {"name": NODE, "uid": "u", "labels": format!("{index}\n{}", "x".repeat(100_000))}});
    world.log.clear();
    (0..3).for_each(|index| world.handle(node_event(&odd(index))));
    assert_eq!(world.log.len(), 1, "{:?}", world.log.iter().map(String::len).collect::<Vec<_>>());
    assert!(world.log[0].contains("cannot be read: invalid type: string") && world.log[0].len() < 500);
    assert!(!world.log[0].contains('\n'), "{}", world.log[0]);
}

#[test]
fn report_counts_renewals_and_status_patches() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash();
    world.advance(SECOND);
    (world.hub.renewals, world.hub.status_patches) = (0, Vec::new());
    world.start();
    world.run_for(90 * SECOND);
    let report = world.report();
    let config = &report.config;
    assert_eq!((config.state, config.startups, config.cuts, config.contact), ("trial", 1, 0, true));
    assert_eq!((config.ran_seconds, config.trial_remaining_seconds), (90, Some(510)));
    assert_eq!((config.transition, config.obstacle), (None, None));
    assert_eq!((report.registered, report.server_is_hub), (true, Some(true)));
    assert_eq!((report.node.as_str(), report.version.as_str()), (NODE, "0.1.0"));
    world.run_for(HOUR);
    let report = world.report();
    assert_eq!(report.config.trial_remaining_seconds, None);
    assert_eq!(report.status_posts, world.hub.status_patches.len() as u64);
    assert!(report.status_posts > 2, "{}", report.status_posts);
    assert_eq!(report.lease.renewals, world.hub.renewals);
    world.adopt("b", "broken: [");
    assert_eq!(world.report().config.obstacle, Some("marked"));
}

#[test]
fn unauthorized_answer_is_not_contact() {
    let mut world = World::silent_trial();
    for _ in 0..100 {
        while world.do_step()
            || world.do_facts()
            || world.do_request(Some(kedge_sim::hub::refused(401, "Unauthorized", "Unauthorized")))
            || world.do_renewal(Some(kedge_sim::hub::refused(401, "Unauthorized", "Unauthorized")))
        {}
        if world.exited() {
            break;
        }
        world.advance(SECOND * 10);
        world.handle(Event::Tick);
    }
    assert!(world.exited(), "a silent trial");
    world.restart();
    assert_eq!(world.used(), A);
    world.run_for(HOUR);
    assert_eq!(world.used(), A);
}

#[test]
fn only_an_accepted_renewal_or_status_is_contact() {
    let heard = |answer: fn(&mut World) -> bool| {
        let mut world = World::silent_trial();
        let waits = |world: &World| world.process.as_ref().is_some_and(|process| process.requests.is_empty());
        while waits(&world) {
            world.advance(SECOND);
            world.handle(Event::Tick);
            while world.do_step() || world.do_facts() {}
        }
        assert!(answer(&mut world), "GET /version");
        world.report().config.contact
    };
    assert!(!heard(|world| world.do_request(Some(Answer::Accepted(Some(json!({"gitVersion": "v1.36.0"})))))));
    assert!(!heard(|world| world.do_request(Some(kedge_sim::hub::refused(403, "", "")))));
    assert!(!heard(|world| {
        world.handle(Event::Renewed(kedge_sim::hub::refused(503, "", "")));
        world.handle(Event::Contact);
        world.do_watch_node()
    }));
    assert!(heard(|world| {
        world.handle(Event::Renewed(Answer::Accepted(None)));
        true
    }));
    assert!(heard(|world| {
        world.handle(Event::Answered(RequestKey::PatchStatus, Answer::Accepted(None)));
        true
    }));
}
