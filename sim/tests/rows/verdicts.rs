//! Rules a to f (ARCHITECTURE.md) and what ends a verdict: `kedge config forgive`, a returning network, another object.

use crate::{A, B, DEFAULT, HOUR, MINUTE, SECOND, TRIAL, payload, short};
use kedge_core::config::records::{BAD_UIDS, StateFile};
use kedge_core::{Action, Core, Event, Forgiveness};
use kedge_sim::disk::WriteFault;
use kedge_sim::{Seen, World};
use serde_json::{Value, json};

#[test]
fn rule_a_a_config_with_a_bad_entry_is_not_run_and_nothing_is_written_about_it() {
    let (mut world, _) = World::known_good();
    world.adopt("b", "broken: [");
    world.run_for(TRIAL);
    world.disk.take_written();
    for _ in 0..5 {
        world.stop();
        world.start();
        assert_eq!(world.used(), A);
        // the fallback's own start and end
        world.check_written(&["startups", "startups"]);
    }
}

#[test]
fn rule_a_an_entry_written_by_hand_bans_every_content_of_its_uid() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(B, ""));
    world.stop();
    let entry = json!({&uid: {"time": "2026-11-21T01:00:00Z", "reason": "by hand"}});
    world.disk.put("0.1.0/bad-configs.json", entry.to_string().as_bytes());
    world.start();
    assert_eq!(world.used(), A);
    let [status, _, reason] = world.config_ok();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "by hand"));
}

#[test]
fn rule_b_a_missing_or_damaged_checkpoint_is_not_bad_and_is_downloaded_again() {
    for damage in [None, Some(&b"{}"[..])] {
        let (mut world, good) = World::known_good();
        let uid = world.adopt("b", &payload(B, ""));
        world.stop();
        let path = world.disk.paths().into_iter().find(|path| path.contains(&uid)).expect("there");
        match damage {
            None => world.disk.remove(&path),
            Some(bytes) => world.disk.put(&path, bytes),
        }
        world.link = false;
        world.start();
        assert_eq!(world.used(), A);
        let condition = world.report().config.condition;
        assert_eq!(
            (condition.status, &condition.message),
            ("Unknown", &format!("using last known good: (UID: {good})"))
        );
        assert!(
            condition.reason.starts_with(&format!("failed to load current (UID: {uid}): its checkpoint is "))
        );
        world.run_for(HOUR);
        assert_eq!(world.bad_configs(), serde_json::Value::Null);
        world.link = true;
        world.run_for(MINUTE);
        assert!(world.exited(), "{damage:?}: {:#?}", world.report());
        world.restart();
        assert_eq!((world.used(), world.state()), (B, "trial"));
    }
}

#[test]
fn rule_b_a_missing_checkpoint_of_an_object_that_is_gone_stays_missing() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &payload(B, ""));
    world.stop();
    world.disk.retain(|path| !path.contains(&uid));
    world.hub.delete_config_map("b");
    world.start();
    world.run_for(HOUR);
    assert_eq!(world.used(), A);
    assert_eq!(world.config_ok()[0], "Unknown");
}

#[test]
fn rule_b_last_known_good_with_a_missing_checkpoint_is_passed_over() {
    let (mut world, good) = World::known_good();
    world.adopt("b", "broken: [");
    world.stop();
    world.disk.retain(|path| !path.contains(&good));
    world.start();
    assert_eq!(world.used(), DEFAULT);
    let [status, message, reason] = world.config_ok();
    assert_eq!((status.as_str(), message.as_str()), ("False", "using last-known-good (default)"));
    assert!(
        reason
            .ends_with(&format!("; failed to load last-known-good (UID: {good}): its checkpoint is missing"))
    );
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(good));
}

#[test]
fn rule_c_a_payload_that_kills_the_parser_does_not_loop() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt_without_start("b", &payload(B, ""));
    let mut starts = 0;
    // the agent dies between the record of its start and the use of the config
    loop {
        world.launch();
        let recorded = || StateFile::Startups.path("0.1.0");
        while world.process.as_ref().is_some_and(|process| process.used.is_none()) {
            let writes = matches!(
                world.process.as_ref().and_then(|process| process.step.as_ref()),
                Some(kedge_core::Step::Write(StateFile::Startups, bytes))
                    if String::from_utf8_lossy(bytes).contains("\"open\":\"boot")
            );
            if writes && world.disk.content(&recorded()).is_some() && !world.bad_configs().is_object() {
                break;
            }
            world.do_step();
        }
        if world.process.as_ref().is_some_and(|process| process.used.is_some()) {
            break;
        }
        let step = world.process.as_mut().and_then(|process| process.step.take()).expect("a write");
        world.perform(&step);
        starts += 1;
        world.die_unrecorded();
        assert!(starts < 20, "it loops");
    }
    assert_eq!((starts, world.used()), (11, A));
    assert!(world.bad_configs().get(&uid).is_some());
}

#[test]
fn rule_e_comes_after_the_counts_and_the_log_tells_every_problem() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, "nodeStatusUpdateFrequency: 1ms\ncrashLoopThreshold: 44"));
    let log = world.log.join("\n");
    assert!(log.contains("nodeStatusUpdateFrequency") && log.contains("CrashLoopThreshold"), "{log}");
    assert_eq!(world.entry("b")["kind"], json!("validate"));
    world.adopt("c", "unknownField: 1");
    assert_eq!(world.entry("c")["kind"], json!("parse"));
}

#[test]
fn rule_f_a_silent_trial_is_a_suspicion_and_the_node_waits_on_last_known_good_until_that_has_contact() {
    let mut world = World::silent_trial();
    world.run_until_exit(TRIAL + SECOND);
    world.start();
    assert_eq!(world.used(), A);
    assert_eq!(
        (world.entry("b")["kind"].clone(), world.entry("b")["lost"].clone()),
        (json!("contact"), json!(1))
    );
    for _ in 0..10 {
        world.run_for(24 * HOUR);
        assert!(!world.exited(), "one outage, however long, condemns nothing");
    }
    world.link = true;
    world.run_for(MINUTE);
    world.restart();
    assert_eq!(world.used(), B);
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
    assert_eq!(world.bad_configs(), json!({}));
}

#[test]
fn rule_f_a_second_silent_trial_is_final() {
    let mut world = World::silent_trial();
    for lost in [1, 2] {
        world.run_until_exit(TRIAL + SECOND);
        world.start();
        assert_eq!(world.used(), A);
        assert_eq!(world.entry("b")["lost"], json!(lost));
        if lost == 1 {
            world.link = true;
            world.run_until_exit(MINUTE);
            world.link = false;
            world.start();
            assert_eq!(world.used(), B);
        }
    }
    world.link = true;
    for _ in 0..5 {
        world.run_for(24 * HOUR);
        assert!(!world.exited());
        world.stop();
        world.start();
        assert_eq!(world.used(), A);
    }
    let uid = world.hub.uid_of("b");
    assert_eq!(
        world.config_ok()[2],
        format!("current failed trial period due to lost contact with the API server (UID: {uid})")
    );
}

#[test]
fn rule_f_spares_what_was_put_there_with_the_image_and_what_is_last_known_good() {
    // preloaded: never had to be fetched, so a lack of contact says nothing
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.stop();
    let mut current = world.file("current").expect("there");
    current["downloaded"] = json!(false);
    world.disk.put("current", current.to_string().as_bytes());
    world.disk.remove("0.1.0/startups.json");
    world.link = false;
    world.start();
    world.run_for(24 * HOUR);
    assert!(!world.exited());
    world.crash_and_start();
    assert_eq!(world.used(), A);

    let (mut world, _) = World::known_good();
    world.stop();
    world.version = "0.2.0".into();
    world.link = false;
    world.start();
    world.run_for(24 * HOUR);
    assert!(!world.exited(), "it proved itself long ago");
}

#[test]
fn contact_at_any_time_of_the_trial_is_contact() {
    let mut world = World::silent_trial();
    world.run_for(TRIAL - SECOND);
    world.link = true;
    world.run_for(SECOND);
    world.link = false;
    world.run_for(2 * TRIAL);
    assert_eq!((world.used(), world.state()), (B, "known-good"));
}

#[test]
fn an_answer_of_401_and_a_server_that_is_not_trusted_are_no_contact() {
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
fn any_other_answer_is_contact() {
    for status in [403, 404, 409, 429, 500, 503] {
        let mut world = World::silent_trial();
        while world.process.as_ref().is_some_and(|process| process.requests.is_empty()) {
            world.advance(SECOND);
            world.handle(Event::Tick);
            while world.do_step() || world.do_facts() {}
        }
        let answer = kedge_sim::hub::refused(status, "", "");
        assert!(world.do_request(Some(answer)), "GET /version");
        assert!(world.report().config.contact, "{status}");
    }
}

#[test]
fn a_forgiven_config_is_tried_again_without_a_hand_on_the_node() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &short(B, "10m", 0));
    world.crash_and_start();
    assert_eq!(world.used(), A);
    world.disk.take_written();
    world.handle(Event::Forgive(uid.clone()));
    world.turn();
    world.check_written(&["bad-configs", "startups"]);
    // until the restart what was asked for does not run: nothing may say that all is well
    let waits = format!("(current (UID: {uid}) can be tried now, restarting to use it)");
    assert!(world.log.iter().any(|line| line.contains("ConfigOK=Unknown: ") && line.ends_with(&waits)));
    assert!(!world.log.iter().any(|line| line.contains("ConfigOK=True: using last known good")));
    world.restart();
    assert_eq!((world.used(), world.report().config.startups), (B, 0));
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
    assert!(world.log.iter().any(|line| line.contains("ConfigForgiven: ")), "{:?}", world.log);
}

#[test]
fn a_list_of_bad_configs_edited_by_hand_is_obeyed_at_once_and_at_the_next_start() {
    for running in [true, false] {
        let (mut world, _) = World::known_good();
        world.adopt("b", &short(B, "10m", 0));
        world.crash_and_start();
        assert_eq!(world.used(), A);
        if !running {
            world.stop();
        }
        world.disk.put("0.1.0/bad-configs.json", b"{}");
        if running {
            world.handle(Event::BadConfigsRead(world.read_bad_configs()));
            world.turn();
            world.exit();
        }
        world.start();
        assert_eq!((world.used(), world.report().config.startups), (B, 0), "running: {running}");
    }
}

#[test]
fn a_forgiven_config_begins_at_zero_even_if_its_counts_are_still_on_disk() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &short(B, "10m", 1));
    world.run_for(TRIAL / 4);
    world.crash_and_start();
    world.crash();
    // the verdict is written and the fallback's start is not
    world.disk.fault = kedge_sim::disk::WriteFault::Once(1);
    world.start();
    assert_eq!(world.used(), A);
    assert_eq!(world.startups()["startups"].as_array().map(Vec::len), Some(1), "the counts of b");
    world.handle(Event::Forgive(uid));
    world.run_for(2 * MINUTE);
    world.restart();
    assert_eq!((world.used(), world.report().config.startups), (B, 0));
}

#[test]
fn forgiving_what_is_not_banned_changes_nothing() {
    let (mut world, uid) = World::known_good();
    world.handle(Event::Forgive(uid));
    world.handle(Event::Forgive("nobody".into()));
    let said = "  asked to forgive UID nobody: there is no verdict on it";
    assert_eq!(world.log.last().map(String::as_str), Some(said));
    world.run_for(MINUTE);
    assert!(!world.exited());
    world.check_written(&[]);
}

#[test]
fn a_forgiven_config_that_is_still_bad_is_marked_again() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    world.handle(Event::Forgive(uid.clone()));
    world.turn();
    world.restart();
    assert_eq!(world.used(), A);
    assert!(world.bad_configs().get(&uid).is_some());
    world.run_for(HOUR);
    assert!(!world.exited());
}

#[test]
fn the_same_bad_payload_in_a_new_version_or_pushed_again_is_still_bad() {
    let mut world = World::new();
    world.start();
    world.assign_following("a", &payload(A, ""));
    world.turn();
    world.restart();
    world.run_for(TRIAL);
    world.hub.push("a", "broken: [");
    world.turn();
    world.restart();
    assert_eq!(world.used(), A);
    let starts = world.starts;
    for _ in 0..5 {
        world.hub.push("a", "broken: [");
        world.run_for(HOUR);
        assert!(!world.exited());
    }
    assert_eq!(world.starts, starts);
}

#[test]
fn verdicts_that_cannot_be_read_keep_the_assigned_config_from_running_and_no_other() {
    let (mut world, good) = World::known_good();
    let uid = world.adopt("b", &short(B, "10m", 0));
    world.crash_and_start();
    assert_eq!(world.used(), A);
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"\0\0\0\0");
    world.start();
    assert_eq!(world.used(), A);
    let [status, message, reason] = world.config_ok();
    assert_eq!(status, "Unknown");
    assert_eq!(message, format!("using last known good: (UID: {good})"));
    assert!(
        reason
            .starts_with(&format!("failed to load current (UID: {uid}): the list of bad configs is unknown"))
    );
    assert!(world.disk.content("0.1.0/bad-configs.json.corrupt-1").is_some());
    // also after another start, when the file is only missing
    world.stop();
    world.start();
    world.run_for(HOUR);
    assert_eq!(world.used(), A);
    // forgiven: tried
    world.handle(Event::Forgive(uid));
    world.turn();
    world.restart();
    assert_eq!(world.used(), B);

    // or assigned another: run, and the one before is banned, since verdicts on it may be lost
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.crash_and_start();
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"{");
    world.start();
    world.adopt("c", &payload(203, ""));
    assert_eq!((world.used(), world.state()), (203, "trial"));
    world.hub.assign(world.hub.pinned("b"));
    world.turn();
    world.restart();
    assert_eq!(world.used(), A, "b is still banned");
    let uid = world.hub.uid_of("b");
    assert_eq!(world.config_ok()[2], format!("earlier verdicts on current were lost (UID: {uid})"));
}

#[test]
fn last_known_good_as_the_assigned_config_runs_though_verdicts_cannot_be_read() {
    let (mut world, uid) = World::known_good();
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"{");
    world.start();
    assert_eq!(world.used(), A);
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
}

#[test]
fn what_was_consumed_is_said_after_it_was_recorded() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash();
    world.seen.clear();
    world.start();
    let at = |wanted: &dyn Fn(&Seen) -> bool| world.seen.iter().position(wanted).expect("it happened");
    let written =
        at(&|seen| matches!(seen, Seen::Performed(kedge_core::Step::Write(StateFile::Startups, _), _)));
    let consumed = at(&|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert!(written < consumed);
}

#[test]
fn an_edit_of_the_list_that_cannot_be_read_changes_nothing_of_what_is_known() {
    let (mut world, good) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    world.disk.put("0.1.0/bad-configs.json", b"{ half an edit");
    world.handle(Event::BadConfigsRead(world.read_bad_configs()));
    world.run_for(MINUTE);
    let bad = world.report().config.bad;
    assert_eq!(bad.iter().map(|entry| entry.uid.as_str()).collect::<Vec<_>>(), [uid.as_str()]);
    world.check_config_ok(
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!("failed to parse current (UID: {uid})"),
    );
}

#[test]
fn at_most_eight_wait_to_be_forgiven_and_each_once() {
    let mut world = World::new();
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    let uids: Vec<String> = (1..=9).map(|number| format!("uid-{number}")).collect();
    let list: Value = uids.iter().map(|uid| (uid.clone(), entry.clone())).collect();
    world.disk.put("0.1.0/bad-configs.json", list.to_string().as_bytes());
    world.start();
    // some ask twice
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
fn what_an_exit_on_its_way_would_not_come_to_is_not_promised() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    fn node(world: &World) -> &Core {
        &world.process.as_ref().expect("it runs").node
    }
    let said = |world: &World| [node(world).forgiveness(&uid), node(world).forgiveness("nobody")];
    let reset_refusal = |world: &World| node(world).reset_refusal();
    assert_eq!(said(&world), [Forgiveness::Taken, Forgiveness::NothingKnown]);
    assert_eq!(reset_refusal(&world), None);
    world.assign("c", &payload(A + 2, ""));
    while world.report().config.transition != Some("adopt") {
        assert!(world.do_watch_node() || world.do_watch_map() || world.do_step());
    }
    assert_eq!(said(&world), [Forgiveness::Exiting, Forgiveness::NothingKnown]);
    assert_eq!(reset_refusal(&world), Some("the agent is about to restart; ask again then"));
    world.handle(Event::Forgive(uid.clone()));
    let line =
        format!("W asked to forgive UID {uid}: not done, the agent is about to restart; ask again then");
    assert_eq!(world.log.last(), Some(&line));
    world.turn();
    world.restart();
    assert!(world.bad_configs().get(&uid).is_some());
    world.handle(Event::Stop("asked to stop".into()));
    assert_eq!(said(&world), [Forgiveness::Exiting, Forgiveness::NothingKnown]);
    assert_eq!(reset_refusal(&world), Some("the agent is about to restart; ask again then"));
}

#[test]
fn a_reset_waits_for_what_was_promised_and_comes_then() {
    let mut world = World::new();
    let entry = json!({"time": "2026-01-01T00:00:00Z", "reason": "tried by hand"});
    world.disk.put(
        "0.1.0/bad-configs.json",
        json!({"one": entry, "two": entry, "three": entry}).to_string().as_bytes(),
    );
    world.start();
    let uid = world.adopt("a", &payload(A, ""));
    world.handle(Event::Forgive("one".into()));
    assert_eq!(world.report().config.transition, Some("forgive"), "its write is on its way");
    world.handle(Event::Forgive("two".into()));
    world.handle(Event::Reset);
    let node = &world.process.as_ref().expect("it runs").node;
    assert_eq!(node.forgiveness("three"), Forgiveness::Taken);
    assert_eq!(node.reset_refusal(), None, "who asks twice is not refused");
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
fn what_is_asked_while_dynamic_config_is_off_is_refused_and_the_list_is_nobodys_edit() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    world.stop();
    world.disk.take_written();
    world.dynamic = false;
    world.start();
    // an agent that never read the list takes what is there for an edit
    world.handle(Event::BadConfigsRead(world.read_bad_configs()));
    let node = &world.process.as_ref().expect("it runs").node;
    assert_eq!(node.forgiveness(&uid), Forgiveness::SwitchedOff);
    assert_eq!(
        node.reset_refusal(),
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

#[test]
fn the_oldest_verdict_goes_when_there_are_too_many_and_never_that_on_a_config_in_use() {
    let (mut world, good) = World::known_good();
    let entry = |second: usize| {
        let time = format!("2026-01-01T00:00:{second:02}Z");
        // another content of that object: what runs is not banned by it
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

/// A followed config is condemned by its first crash, and the verdict cannot be written; then the disk works again.
fn condemned_unrecorded(payload: &str) -> World {
    let (mut world, _) = World::known_good();
    world.assign_following("b", payload);
    world.turn();
    world.restart();
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    assert_eq!(world.used(), A);
    world.disk.fault = WriteFault::None;
    world
}

#[test]
fn a_verdict_not_written_yet_holds_for_a_new_version_of_its_object_and_not_for_another_object() {
    let bad = short(B, "10m", 0);
    let mut world = condemned_unrecorded(&bad);
    world.hub.push("b", &bad);
    world.run_for(TRIAL);
    assert!(!world.exited(), "the same object with the same payload");
    assert!(world.bad_configs().get(world.hub.uid_of("b")).is_some());

    let mut world = condemned_unrecorded(&bad);
    world.assign("copy", &bad);
    world.run_for(TRIAL);
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    assert_eq!(world.report().config.startups, 0);
}

#[test]
fn a_source_that_was_invalid_in_between_does_not_lift_what_else_stands_in_the_way() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, ""));
    world.stop();
    world.disk.put("0.1.0/bad-configs.json", b"{ unreadable");
    world.start();
    assert_eq!(world.used(), A, "it may be a bad one");
    world.hub.assign(json!({}));
    world.turn();
    world.hub.assign(world.hub.pinned("b"));
    world.run_for(HOUR);
    assert!(!world.exited());
    assert!(world.config_ok()[2].contains("the list of bad configs is unknown"), "{:?}", world.config_ok());
}
