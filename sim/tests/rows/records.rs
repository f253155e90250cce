//! Records that are missing, damaged or from another agent: the agent starts, says what it set aside,
//! loses nothing that it could still know, and mends what it can.

use crate::{A, B, DEFAULT, HOUR, MINUTE, TRIAL, payload};
use kedge_core::Action;
use kedge_sim::World;
use serde_json::{Value, json};

use kedge_sim::Seen;

const DAMAGE: [(&str, &[u8]); 4] = [
    ("zeros", &[0; 64]),
    ("half", b"{\"apiVersion\":\"kedge.dev/v1\",\"sou"),
    ("text", b"hello"),
    ("list", b"[]"),
];

/// A node in the trial of `b`, whose last-known-good is `a`; stopped.
fn stopped() -> (World, String, String) {
    let (mut world, good) = World::known_good();
    let uid = world.adopt("b", &payload(B, ""));
    world.run_for(TRIAL / 2);
    world.stop();
    world.disk.take_written();
    (world, good, uid)
}

#[test]
fn a_damaged_current_is_set_aside_last_known_good_runs_and_the_assignment_is_downloaded_again() {
    for (what, bytes) in DAMAGE {
        let (mut world, good, uid) = stopped();
        world.disk.put("current", bytes);
        world.link = false;
        world.start();
        assert_eq!(world.used(), A, "{what}");
        let condition = world.report().config.condition;
        assert_eq!(condition.status, "Unknown", "{what}");
        assert_eq!(condition.message, format!("using last known good: (UID: {good})"), "{what}");
        assert!(
            condition.reason.starts_with("failed to load current: the record of it is unreadable: "),
            "{what}"
        );
        assert!(world.disk.is("current.corrupt-1", Some(bytes)), "{what}");
        // still unknown at the next start, when the file is only missing
        world.stop();
        world.start();
        assert_eq!(world.used(), A, "{what}");
        world.link = true;
        world.run_for(MINUTE);
        world.restart();
        assert_eq!((world.used(), world.state()), (B, "trial"), "{what}");
        world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
        assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(good), "{what}");
    }
}

#[test]
fn what_was_set_aside_is_said_in_an_event() {
    let (mut world, _, _) = stopped();
    world.take_events();
    world.disk.put("current", b"\0\0");
    world.start();
    world.run_for(MINUTE);
    let events = world.take_events();
    assert!(
        events.iter().any(|event| event.starts_with("StateSetAside: current is unreadable")),
        "{events:?}"
    );
}

#[test]
fn a_missing_current_beside_a_last_known_good_is_unknown_and_not_local() {
    let (mut world, good, _) = stopped();
    world.disk.remove("current");
    world.link = false;
    world.start();
    assert_eq!(world.used(), A);
    assert_eq!(world.report().config.condition.message, format!("using last known good: (UID: {good})"));
    world.link = true;
    world.run_for(MINUTE);
    world.restart();
    assert_eq!(world.used(), B);
}

#[test]
fn a_missing_current_beside_a_last_known_good_that_cannot_be_read_is_unknown_and_not_local() {
    let (mut world, _, _) = stopped();
    world.disk.remove("current");
    world.disk.put("last-known-good", b"\0");
    world.link = false;
    world.start();
    let condition = world.report().config.condition;
    assert_eq!((world.used(), condition.status), (DEFAULT, "Unknown"));
    assert!(condition.reason.contains("the record of it is missing"), "{}", condition.reason);
    world.link = true;
    world.run_for(MINUTE);
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn nothing_at_all_on_disk_is_local_and_the_assignment_comes_with_the_network() {
    let (mut world, _, _) = stopped();
    world.disk.retain(|_| false);
    world.link = false;
    world.start();
    assert_eq!((world.used(), world.state()), (DEFAULT, "local"));
    world.link = true;
    world.run_for(MINUTE);
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn an_unknown_current_and_a_nil_source_wait_for_a_word_of_the_operator() {
    let (mut world, _, _) = stopped();
    world.hub.assign(Value::Null);
    world.disk.put("current", b"\0");
    world.start();
    world.run_for(HOUR);
    assert_eq!(world.used(), A);
    let [status, _, reason] = world.config_ok();
    assert_eq!(status, "Unknown");
    assert!(reason.contains("kedge config reset"), "{reason}");
    world.handle(kedge_core::Event::Reset);
    world.turn();
    world.restart();
    assert_eq!(world.used(), DEFAULT);
}

#[test]
fn a_damaged_last_known_good_is_set_aside_and_the_assigned_config_runs_on() {
    for (what, bytes) in DAMAGE {
        let (mut world, _, uid) = stopped();
        world.disk.put("last-known-good", bytes);
        world.start();
        assert_eq!(world.used(), B, "{what}");
        world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
        world.run_for(TRIAL);
        assert_eq!(world.state(), "known-good", "{what}");
        assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(uid), "{what}");
    }
    let (mut world, _, _) = stopped();
    world.disk.put("last-known-good", b"\0");
    world.start();
    world.adopt("c", "broken: [");
    let [_, message, reason] = world.config_ok();
    assert_eq!(message, "using last-known-good (default)");
    assert!(reason.contains("the record of it is unreadable"), "{reason}");
}

#[test]
fn damaged_counts_are_zero_and_the_trial_begins_anew() {
    for (what, bytes) in DAMAGE {
        let (mut world, _, _) = stopped();
        world.disk.put("0.1.0/startups.json", bytes);
        world.start();
        assert_eq!((world.used(), world.state()), (B, "trial"), "{what}");
        assert_eq!(world.report().config.ran_seconds, 0, "{what}");
        assert!(world.disk.content("0.1.0/startups.json.corrupt-1").is_some(), "{what}");
        world.run_for(TRIAL);
        assert_eq!(world.state(), "known-good", "{what}");
    }
}

#[test]
fn a_record_of_a_newer_agent_is_unknown_left_alone_and_replaced_when_the_assignment_is_known() {
    let (mut world, good, _) = stopped();
    let newer = br#"{"apiVersion":"kedge.dev/v9","anything":[1,2,3]}"#;
    world.disk.put("current", newer);
    world.link = false;
    world.start();
    assert_eq!(world.used(), A);
    assert!(world.report().config.condition.reason.contains("written by another agent (kedge.dev/v9)"));
    assert!(world.disk.is("current", Some(newer)));
    assert!(world.disk.content("current.corrupt-1").is_none());
    world.link = true;
    world.run_for(MINUTE);
    world.restart();
    assert_eq!(world.used(), B);
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(good));
}

#[test]
fn nothing_is_swept_while_a_record_that_might_name_it_is_unknown() {
    for record in ["current", "last-known-good"] {
        let (mut world, good, uid) = stopped();
        world.disk.put(record, b"\0");
        world.link = false;
        world.seen.clear();
        world.start();
        assert!(world.seen.contains(&Seen::Asked(Action::Sweep { keep: None })), "{record}");
        for uid in [&good, &uid] {
            assert!(world.disk.paths().iter().any(|path| path.contains(uid)), "{record}");
        }
    }
}

#[test]
fn checkpoints_that_no_record_names_are_swept_and_the_two_that_are_named_stay() {
    let (mut world, good, _) = stopped();
    world.start();
    let uid = world.adopt("c", &payload(203, ""));
    let checkpoints: Vec<String> =
        world.disk.paths().into_iter().filter(|path| path.starts_with("checkpoints/")).collect();
    assert_eq!(checkpoints.len(), 2, "{checkpoints:?}");
    assert!(checkpoints.iter().any(|path| path.contains(&good)));
    assert!(checkpoints.iter().any(|path| path.contains(&uid)));
}

#[test]
fn files_that_cannot_be_read_or_set_aside_do_not_stop_the_agent() {
    for path in ["current", "last-known-good", "0.1.0/startups.json", "0.1.0/bad-configs.json"] {
        for full in [false, true] {
            let (mut world, _, _) = stopped();
            world.disk.put(path, b"\0");
            world.disk.make_unreadable(path);
            if full {
                world.disk.fault = kedge_sim::disk::WriteFault::All;
            }
            world.start();
            world.run_for(HOUR);
            assert!(world.process.is_some(), "{path}");
            if world.exited() {
                world.restart();
            }
            assert_eq!(
                world.report().lease.seconds_since_renewal.map(|age| age < 15),
                Some(true),
                "{path} {full}"
            );
        }
    }
}

#[test]
fn everything_damaged_at_once_is_local_and_the_heartbeat_goes_on() {
    for (what, bytes) in DAMAGE {
        let (mut world, _, uid) = stopped();
        for path in world.disk.paths() {
            world.disk.put(&path, bytes);
        }
        world.start();
        for _ in 0..4 {
            world.run_for(MINUTE);
            if world.exited() {
                world.restart();
            }
        }
        // the network told what was lost
        assert_eq!((world.used(), world.state()), (B, "trial"), "{what}");
        world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    }
}
