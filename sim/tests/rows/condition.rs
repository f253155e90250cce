//! How the configuration is reported: the times of `ConfigOK`, `status.config`, and the Events. The words of
//! the condition: `condition.txt` and the file of each rule.

use crate::{A, B, HOUR, MINUTE, SECOND, TRIAL_AND_A_RENEWAL, payload};
use kedge_core::{Action, Event, Request};
use kedge_sim::{Seen, World};
use serde_json::{Value, json};

/// Heartbeat and transition time of `ConfigOK`.
fn times(world: &World) -> (String, String) {
    let condition = world.hub.condition("ConfigOK").expect("reported");
    let text = |field: &str| condition[field].as_str().expect("a time").to_owned();
    (text("lastHeartbeatTime"), text("lastTransitionTime"))
}

#[test]
fn heartbeat_time_is_set_at_start_transition_time_on_change() {
    let (mut world, _) = World::known_good();
    let first = times(&world);
    world.run_for(24 * HOUR);
    assert_eq!(times(&world), first, "running on is neither");
    world.stop();
    world.start();
    let second = times(&world);
    assert!(second.0 > first.0, "{second:?}");
    assert_eq!(second.1, first.1);
    world.advance(SECOND);
    world.hub.assign(json!({}));
    world.turn();
    let third = times(&world);
    assert_eq!(third.0, second.0, "no start");
    assert!(third.1 > second.1, "it changed");
    world.advance(SECOND);
    world.hub.assign(json!({"configMapRef": {}}));
    world.turn();
    assert_eq!(world.config_ok()[0], "Unknown", "as before");
    assert!(times(&world).1 > third.1, "another reason is a change, too");
}

#[test]
fn status_config_names_assigned_active_and_last_known_good() {
    let (mut world, good) = World::known_good();
    let version_of = |world: &World, name: &str| {
        world.hub.config_map(name).expect("pushed")["metadata"]["resourceVersion"].clone()
    };
    let source = |world: &World, name: &str, uid: &str| {
        json!({"configMap": {
            "namespace": "kube-system", "name": name, "uid": uid, "resourceVersion": version_of(world, name),
            "kubeletConfigKey": "kubelet",
        }})
    };
    let a = source(&world, "a", &good);
    assert_eq!(world.config_status(), json!({"assigned": a, "active": a, "lastKnownGood": a}));
    let uid = world.adopt("b", &payload(B, ""));
    let b = source(&world, "b", &uid);
    assert_eq!(world.config_status(), json!({"assigned": b, "active": b, "lastKnownGood": a}));
    let uid = world.adopt("c", &payload(B, "crashLoopThreshold: 11"));
    let c = source(&world, "c", &uid);
    let error = format!(
        "failed to validate current (UID: {uid}): config c (uid {uid}): crashLoopThreshold is 11, expected 0 to 10 (line 4)"
    );
    assert_eq!(
        world.config_status(),
        json!({"assigned": c, "active": a, "lastKnownGood": a, "error": error})
    );
    world.hub.assign(Value::Null);
    world.turn();
    world.restart();
    assert_eq!(world.config_status(), json!({}));
}

#[test]
fn condition_is_composed_after_writes_and_sent_on_contact() {
    let (mut world, _) = World::known_good();
    world.assign("b", "maxPods: [");
    world.turn();
    world.link = false;
    world.seen.clear();
    world.restart();
    let at = |wanted: &dyn Fn(&Seen) -> bool| world.seen.iter().position(wanted).expect("it happened");
    let verdict = at(&|seen| {
        matches!(
            seen,
            Seen::Performed(
                kedge_core::Step::Write(kedge_core::config::records::StateFile::BadConfigs, _),
                _
            )
        )
    });
    let said =
        at(&|seen| matches!(seen, Seen::Asked(Action::Log(_, line)) if line.starts_with("ConfigRolledBack")));
    let used = at(&|seen| matches!(seen, Seen::Asked(Action::Use(_))));
    assert!(verdict < said && said < used);
    world.run_for(HOUR);
    world.link = true;
    world.run_for(MINUTE);
    assert_eq!(world.config_ok()[0], "False");
}

#[test]
fn adoption_promotion_and_roll_back_are_events() {
    let (mut world, uid) = World::in_trial("a", &payload(A, ""));
    let version = world.hub.config_map("a").expect("pushed")["metadata"]["resourceVersion"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert_eq!(
        world.take_events(),
        [format!(
            "KubeletConfigChanged: kedge restarted to use /api/v1/namespaces/kube-system/configmaps/a, UID: {uid}, \
             ResourceVersion: {version}, KubeletConfigKey: kubelet; on trial for 600 s"
        )]
    );
    world.run_for(TRIAL_AND_A_RENEWAL);
    assert_eq!(
        world.take_events(),
        [format!(
            "ConfigPromoted: ConfigMap kube-system/a (UID: {uid}, ResourceVersion: {version}) ran well for its trial \
             of 600 s and is last-known-good now"
        )]
    );
    let bad = world.adopt("b", "maxPods: [");
    let events = world.take_events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].starts_with("KubeletConfigChanged: kedge restarted to use"), "{events:?}");
    let rolled_back = format!(
        "ConfigRolledBack: ConfigMap kube-system/b, key kubelet: failed to parse current (UID: {bad}): config b"
    );
    assert!(events[1].starts_with(&rolled_back), "{events:?}");
    assert!(events[1].ends_with(&format!("; using last known good: (UID: {uid})")), "{events:?}");
    world.run_for(HOUR);
    assert_eq!(world.take_events(), Vec::<String>::new());
    world.hub.assign(Value::Null);
    world.turn();
    world.restart();
    assert_eq!(world.take_events(), ["KubeletConfigChanged: kedge restarted to use local config"]);
}

const HELD_UP: &str = "the runtime does not answer: it is at this: stop container web";

/// The next configuration is assigned, but the exit for it is held up.
fn held_up() -> (World, String, String) {
    let (mut world, uid) = World::known_good();
    let next = world.assign("b", &payload(B, ""));
    world.turn();
    assert!(world.exited());
    world.handle(Event::EndHeldUp(Some(HELD_UP.into())));
    assert!(!world.exited());
    (world, uid, next)
}

/// A thread that waits for a dead disk delays the end of the whole process.
#[test]
fn end_that_is_held_up_is_reported_until_it_can_be_made() {
    let (mut world, uid, next) = held_up();
    let renewed = world.hub.renewals;
    world.run_for(HOUR);
    assert!(!world.exited() && world.hub.renewals > renewed + 100, "the heartbeat goes on");
    let expect = format!("failed to sync, reason: restarting to use what is assigned waits: {HELD_UP}");
    assert_eq!(world.config_ok(), ["Unknown", &format!("using current (UID: {uid})"), &expect]);
    // the reason may change, and an assignment meanwhile is left to the next run
    world.handle(Event::EndHeldUp(Some("thread \"measure\" waits".into())));
    world.assign("a", &payload(A, ""));
    world.run_for(MINUTE);
    assert!(!world.exited() && world.config_ok()[2].ends_with("waits"));
    world.hub.assign(world.hub.pinned("b"));
    world.handle(Event::EndHeldUp(None));
    assert!(world.exited());
    world.restart();
    world.run_for(MINUTE);
    assert_eq!(world.config_ok()[1], format!("using current (UID: {next})"));
}

#[test]
fn stop_is_not_held_up() {
    let (mut world, _, next) = held_up();
    world.stop();
    world.start();
    world.run_for(MINUTE);
    assert_eq!(world.config_ok()[1], format!("using current (UID: {next})"));
}

/// The condition adds nothing to the event, unless something besides the verdict is wrong.
#[test]
fn roll_back_is_logged_once() {
    let (mut world, _) = World::known_good();
    world.log.clear();
    world.adopt("b", "maxPods: [");
    let said = |world: &World| world.log.iter().filter(|line| line.contains("failed to parse")).count();
    assert_eq!((said(&world), world.config_ok()[0].as_str()), (1, "False"), "{:#?}", world.log);
    // a later start finds the verdict, and logs it once
    world.log.clear();
    world.stop();
    world.start();
    assert_eq!(said(&world), 1, "{:#?}", world.log);
}

#[test]
fn refused_status_is_sent_until_it_is_accepted() {
    let (mut world, uid) = World::known_good();
    let bad = world.assign("b", "maxPods: [");
    world.turn();
    world.exit();
    world.launch();
    for _ in 0..20 {
        for _ in 0..100 {
            if world.do_step() || world.do_facts() || world.do_renewal(None) || world.do_watch_node() {
                continue;
            }
            let is_patch = world.process.as_ref().is_some_and(|process| {
                process.requests.first().is_some_and(|request| matches!(request, Request::PatchStatus(_)))
            });
            let refused =
                is_patch.then(|| kedge_sim::hub::refused(500, "InternalError", "etcdserver: no leader"));
            if !world.do_request(refused) {
                break;
            }
        }
        world.advance(SECOND * 30);
        world.handle(kedge_core::Event::Tick);
    }
    assert_eq!(world.config_ok()[0], "True", "as it was");
    world.run_for(MINUTE);
    world.check_config_ok(
        "False",
        &format!("using last known good: (UID: {uid})"),
        &format!("failed to parse current (UID: {bad})"),
    );
}

/// A Node withdraws its config during its first trial: nothing was promoted, so no record of that changes.
#[test]
fn config_taken_back_in_its_trial_is_an_event() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash_and_start();
    world.take_events();
    world.hub.assign(Value::Null);
    world.turn();
    world.restart();
    let changed = |world: &mut World| {
        let events = world.take_events();
        events.into_iter().filter(|event| event.contains("restarted to use local config")).count()
    };
    assert_eq!(changed(&mut world), 1);
    world.stop();
    world.start();
    world.run_for(MINUTE);
    assert_eq!(changed(&mut world), 0, "it runs on");
}

/// Status, reason and message of the condition that shows whether pods are held.
fn pods_held(world: &World) -> Option<[String; 3]> {
    let there = world.hub.condition("PodsHeld")?;
    Some(["status", "reason", "message"].map(|word| there[word].as_str().unwrap_or_default().to_owned()))
}

#[test]
fn hold_is_a_condition_and_its_rest_is_reported() {
    let mut world = World::new();
    world.start();
    for _ in 0..10 {
        world.crash_and_start();
    }
    world.run_for(SECOND);
    assert_eq!(pods_held(&world), None, "they never were");
    world.crash_and_start();
    world.run_for(SECOND * 60);
    let message = "the agent ended too often under a proven configuration: no pod is started or stopped until it has run for 600 s \
                   without that";
    assert_eq!(pods_held(&world), Some(["True", "AgentCrashLoop", message].map(str::to_owned)));
    let rest = world.report().config.pods_held_seconds.expect("they are held");
    assert!((530..=540).contains(&rest), "{rest}");
    // the hold continues under whatever config starts next, and in a trial until that config is promoted
    world.adopt("a", &payload(A, "configTrialDuration: 20m"));
    world.run_for(SECOND * 60);
    let [status, _, message] = pods_held(&world).expect("they are held");
    assert!(status == "True" && message.ends_with(" and its configuration is last-known-good"), "{message}");
    // a hold ends with the next save of progress
    world.run_for(MINUTE * 26);
    let [status, reason, _] = pods_held(&world).expect("it stays");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "PodsNotHeld"));
    assert_eq!(world.report().config.pods_held_seconds, None);
}
