//! Damage of several records at once, and the bound of the list of bad configs. Single records:
//! `lost-records.txt`.

use crate::{A, B, HOUR, MINUTE, TRIAL, payload};
use kedge_core::config::records::BAD_UIDS;
use kedge_sim::World;
use serde_json::{Value, json};

const DAMAGE: [(&str, &[u8]); 4] = [
    ("zeros", &[0; 64]),
    ("half", b"{\"apiVersion\":\"kedge.dev/v1\",\"sou"),
    ("text", b"hello"),
    ("list", b"[]"),
];

/// A stopped node in the trial of `b`, with `a` as last-known-good.
fn stopped() -> (World, String, String) {
    let (mut world, good) = World::known_good();
    let uid = world.adopt("b", &payload(B, ""));
    world.run_for(TRIAL / 2);
    world.stop();
    world.disk.take_written();
    (world, good, uid)
}

#[test]
fn unreadable_file_does_not_stop_the_agent() {
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
fn damage_of_every_file_at_once_is_repaired() {
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
        // downloaded again from the API server
        assert_eq!((world.used(), world.state()), (B, "trial"), "{what}");
        world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    }
}

#[test]
fn oldest_verdict_is_dropped_unless_in_use() {
    let (mut world, good) = World::known_good();
    let entry = |second: usize| {
        let time = format!("2026-01-01T00:00:{second:02}Z");
        // a verdict about another content of that object: the running config is not banned
        let verdict = json!({"time": time, "reason": "tried", "kind": "validate"});
        json!({"time": time, "reason": "tried", "contents": {"0".repeat(64): verdict}})
    };
    let mut list: serde_json::Map<String, Value> =
        (1..BAD_UIDS).map(|number| (format!("uid-{number:02}"), entry(number))).collect();
    list.insert(good.clone(), entry(0));
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", Value::Object(list).to_string().as_bytes());
    world.start();
    let uid = world.adopt("b", "broken: [");
    assert_eq!(world.used(), A);
    let left = world.bad_configs();
    assert_eq!(left.as_object().map(|left| left.len()), Some(BAD_UIDS));
    for (uid, stays) in [(good.as_str(), true), ("uid-01", false), ("uid-02", true), (&uid, true)] {
        assert_eq!(left.get(uid).is_some(), stays, "{uid}");
    }
}
