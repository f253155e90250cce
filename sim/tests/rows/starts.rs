//! ARCHITECTURE.md, "How the previous run ended" and cases 1 to 5 of "Start".

use crate::{A, B, DEFAULT, HOUR, MINUTE, SECOND, TRIAL, payload, short};
use kedge_core::config::records::StateFile;
use kedge_core::{Action, Core, Event, Exit, Options, PreviousRun, Step};
use kedge_sim::disk::WriteFault;
use kedge_sim::hub::Hub;
use kedge_sim::{Seen, World};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How one end of a run is counted: `end` ends it, then the agent starts again.
#[track_caller]
fn check_end(what: &str, startups: usize, cuts: u64, end: impl Fn(&mut World)) {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.run_for(TRIAL / 4 + SECOND);
    end(&mut world);
    world.advance(2 * SECOND);
    world.start();
    let record = world.startups();
    assert_eq!(record["startups"].as_array().map(Vec::len), Some(startups), "{what}");
    assert_eq!(record["cuts"], json!(cuts), "{what}");
    // a counted startup sets the running time to zero, a cut never does
    // and an end that was asked for saves what ran since the last save
    let saved_ms = if ["asked to stop", "a planned reboot", "an upgrade restarts the agent"].contains(&what) {
        151_000
    } else {
        150_000
    };
    assert_eq!(record["ran_ms"], json!(if startups > 0 { 0 } else { saved_ms }), "{what}");
    assert_eq!(record["open"], json!(world.boot_id()), "{what}");
    assert_eq!(world.used(), A);
    let ran_to_promotion =
        if startups > 0 { TRIAL } else { TRIAL - std::time::Duration::from_millis(saved_ms) };
    world.run_for(ran_to_promotion - SECOND);
    assert_eq!(world.state(), "trial", "{what}");
    world.run_for(SECOND);
    assert_eq!(world.state(), "known-good", "{what}");
    assert_eq!(world.startups()["startups"], json!([]), "{what}: forgotten after a whole trial");
    assert_eq!(world.startups()["cuts"], json!(0), "{what}");
}

#[test]
fn how_the_previous_run_ended_decides_what_is_counted() {
    check_end("asked to stop", 0, 0, World::stop);
    check_end("a planned reboot", 0, 0, World::reboot);
    check_end("an exit code", 1, 0, |world| world.crash());
    check_end("nothing recorded, in this boot", 1, 0, |world| world.die_unrecorded());
    for result in ["signal", "core-dump", "oom-kill", "watchdog"] {
        check_end(result, 1, 0, |world| world.end(world.ending(result)));
    }
    check_end("not ready in time", 1, 0, |world| {
        world.end(Exit { was_ready: false, stop_asked: true, ..world.ending("timeout") });
    });
    check_end("a stalled loop of the agent", 1, 0, |world| {
        world.end(Exit { stalled: vec!["renew".into()], ..world.ending("watchdog") });
    });
    check_end("only the disk stood still", 0, 1, |world| {
        world.end(Exit { stalled: vec!["disk".into()], ..world.ending("watchdog") });
    });
    check_end("a power cut", 0, 1, |world| world.power_cut());
    check_end("stop asked for, killed at its time limit", 0, 0, |world| {
        world.end(Exit { stop_asked: true, ..world.ending("timeout") });
    });
    check_end("the hardware watchdog reset the board", 1, 0, |world| {
        world.power_cut();
        world.previous = PreviousRun { hardware_reset: true, ..PreviousRun::default() };
    });
    check_end("the kernel panicked", 1, 0, |world| {
        world.power_cut();
        world.previous = PreviousRun { kernel_panic: true, ..PreviousRun::default() };
    });
    check_end("a crash, then the board rebooted before the next start", 1, 0, |world| {
        world.crash();
        world.power_cut();
    });
    check_end("a stop asked for, not closed, then the power went", 0, 0, |world| {
        world.end(Exit { stop_asked: true, ..world.ending("success") });
        world.power_cut();
    });
    check_end("an upgrade restarts the agent", 0, 0, |world| world.stop());
}

#[test]
fn evidence_of_a_reset_is_held_against_one_run_only() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.power_cut();
    world.previous.hardware_reset = true;
    world.start();
    assert_eq!(world.report().config.startups, 1);
    world.power_cut();
    world.start();
    assert_eq!((world.report().config.startups, world.report().config.cuts), (1, 1));
}

#[test]
fn case_1_an_invalid_local_config_refuses_to_start_and_counts_nothing() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash();
    let before = world.disk.contents();
    world.drop_in("maxPods: lots");
    let options = Options {
        node_name: "edge-1".into(),
        version: world.version.clone(),
        local: world.local.clone(),
        dynamic_config: true,
        node_labels: BTreeMap::new(),
        boot_id: world.boot_id(),
        previous_run: world.previous.clone(),
        seed: 1,
    };
    let error = Core::new(options, world.now()).err().expect("it refuses").report();
    assert!(error.contains("10-site.conf") && error.contains("maxPods"), "{error}");
    assert_eq!(world.disk.contents(), before);
    // mended: the crash before it is counted once
    world.local.drop_ins.clear();
    world.start();
    assert_eq!(world.report().config.startups, 1);
}

#[test]
fn case_2_current_local_runs_local_and_makes_it_last_known_good() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.disk.put("current", b"");
    world.start();
    assert_eq!(world.used(), DEFAULT);
    assert_eq!(world.file("last-known-good").expect("there")["local"], json!(true));
}

#[test]
fn case_3_the_assigned_config_runs_if_it_is_usable() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, ""));
    assert_eq!((world.used(), world.state()), (B, "trial"));
}

#[test]
fn case_4_else_last_known_good_runs_and_its_own_crashes_are_counted_against_it() {
    let (mut world, good) = World::known_good();
    world.adopt("b", "broken: [");
    assert_eq!(world.used(), A);
    for crash in 1..=10 {
        world.crash_and_start();
        assert_eq!((world.used(), world.report().config.startups), (A, crash));
    }
    world.crash_and_start();
    assert_eq!(world.used(), DEFAULT);
    assert!(world.bad_configs().get(&good).is_some());
}

#[test]
fn case_5_else_local_runs_and_last_known_good_is_not_rewritten() {
    let (mut world, good) = World::known_good();
    world.adopt("b", "broken: [");
    for _ in 0..11 {
        world.crash_and_start();
    }
    assert_eq!(world.used(), DEFAULT);
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(good));
    world.check_written_is_bounded();
    // and a config that works is taken as ever
    world.adopt("c", &payload(203, ""));
    assert_eq!((world.used(), world.state()), (203, "trial"));
}

#[test]
fn a_crash_that_local_survives_is_counted_against_nobody() {
    let mut world = World::new();
    world.start();
    for _ in 0..30 {
        world.crash_and_start();
    }
    assert_eq!(world.used(), DEFAULT);
    world.check_written(&[]);
    assert_eq!(world.config_ok()[0], "True");
}

#[test]
fn last_known_good_that_begins_to_crash_is_rolled_back_to_local_and_that_is_said() {
    let (mut world, good) = World::known_good();
    for _ in 0..11 {
        assert_eq!(world.used(), A);
        world.crash_and_start();
    }
    assert_eq!(world.used(), DEFAULT);
    world.check_config_ok(
        "False",
        "using last-known-good (default)",
        &format!("current failed trial period due to crash loop (UID: {good})"),
    );
}

#[test]
fn a_trial_of_zero_is_promoted_at_first_contact_and_still_protected_for_a_minute() {
    let (mut world, _) = World::known_good();
    world.assign("b", &short(B, "0s", 1));
    world.turn();
    world.link = false;
    world.restart();
    world.run_for(SECOND * 30);
    assert_eq!(world.used(), B);
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(world.hub.uid_of("a")));
    world.link = true;
    world.run_for(SECOND * 40);
    assert_eq!(world.state(), "known-good");
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(world.hub.uid_of("b")));
    // known good, and yet its crashes condemn it within a minute of running each
    world.crash_and_start();
    world.run_for(SECOND * 59);
    world.crash_and_start();
    assert_eq!(world.used(), DEFAULT, "it was the last-known-good itself");
}

#[test]
fn a_trial_of_zero_forgets_crashes_after_a_minute_of_running() {
    let (mut world, _) = World::in_trial("a", &short(A, "0s", 1));
    for _ in 0..5 {
        world.run_for(SECOND * 61);
        world.crash_and_start();
        assert_eq!(world.used(), A);
    }
}

#[test]
fn a_threshold_of_zero_rolls_back_at_the_first_crash_and_not_at_the_adoption() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    assert_eq!((world.used(), world.report().config.startups), (B, 0));
    world.crash_and_start();
    assert_eq!(world.used(), A);
}

#[test]
fn a_crash_loop_is_the_threshold_plus_one_crashes_with_no_whole_trial_between_them_at_any_age() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 2));
    world.run_for(48 * HOUR);
    assert_eq!(world.state(), "known-good");
    // far apart: each is forgotten
    for _ in 0..10 {
        world.crash_and_start();
        world.run_for(TRIAL);
    }
    assert_eq!(world.used(), B);
    // with less than a trial between them: not
    for crash in 1..=2 {
        world.crash_and_start();
        assert_eq!(world.report().config.startups, crash);
        world.run_for(TRIAL - SECOND);
    }
    world.crash_and_start();
    assert_eq!(world.used(), DEFAULT);
}

#[test]
fn clean_stops_and_cuts_between_crashes_do_not_excuse_them() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 2));
    for _ in 0..2 {
        world.crash_and_start();
        world.stop();
        world.start();
        world.cut_and_start();
        world.run_for(MINUTE);
        assert_eq!(world.used(), B);
    }
    world.crash_and_start();
    assert_eq!(world.used(), A);
}

#[test]
fn cuts_condemn_only_when_there_are_more_than_28_without_a_save_between_them() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, ""));
    for _ in 0..28 {
        world.cut_and_start();
        assert_eq!(world.used(), B);
    }
    world.run_for(TRIAL / 4);
    for _ in 0..28 {
        world.cut_and_start();
        assert_eq!(world.used(), B);
    }
    world.cut_and_start();
    assert_eq!(world.used(), A);
    assert_eq!(
        world.bad_configs()[world.hub.uid_of("b")]["contents"].as_object().map(|all| all.len()),
        Some(1)
    );
}

#[test]
fn a_settled_config_is_never_condemned_by_power_cuts() {
    let (mut world, _) = World::known_good();
    for _ in 0..200 {
        world.cut_and_start();
    }
    assert_eq!(world.used(), A);
    assert_eq!(world.startups()["cuts"], json!(0));
}

#[test]
fn another_agent_version_judges_afresh_and_removes_the_counts_of_the_other() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.crash_and_start();
    assert_eq!(world.used(), A);
    world.stop();
    world.version = "0.2.0".into();
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    assert!(world.disk.content("0.1.0/startups.json").is_none());
    world.crash_and_start();
    assert_eq!(world.used(), A);
    // back to the old one: its verdict still stands
    world.stop();
    world.version = "0.1.0".into();
    world.start();
    assert_eq!(world.used(), A);
}

#[test]
fn an_edited_drop_in_is_a_fresh_trial_and_old_verdicts_do_not_apply() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, "crashLoopThreshold: 11"));
    assert_eq!(world.used(), A);
    world.stop();
    world.drop_in("crashLoopThreshold: 3");
    world.start();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    world.crash_and_start();
    assert_eq!(world.report().config.startups, 1);
    world.stop();
    world.drop_in("crashLoopThreshold: 4");
    world.start();
    assert_eq!((world.used(), world.report().config.startups), (B, 0));
    // without the drop-in the old verdict stands
    world.stop();
    world.local.drop_ins.clear();
    world.start();
    assert_eq!(world.used(), A);
}

#[test]
fn a_drop_in_that_breaks_a_payload_marks_it_under_this_drop_in_only() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.drop_in("crashLoopThreshold: 5");
    world.start();
    world.adopt("b", &payload(B, "crashLoopThreshold: 11"));
    assert_eq!((world.used(), world.state()), (B, "trial"));
    world.stop();
    world.local.drop_ins.clear();
    world.start();
    assert_eq!(world.used(), A);
    assert_eq!(world.config_ok()[0], "False");
    world.stop();
    world.drop_in("crashLoopThreshold: 5");
    world.start();
    assert_eq!(world.used(), B);
}

#[test]
fn a_stop_that_comes_before_the_start_is_over_is_clean() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.stop();
    world.launch();
    world.process.as_mut().expect("it runs").stop_asked = true;
    world.handle(kedge_core::Event::Stop("asked to stop".into()));
    world.turn();
    world.exit();
    assert_eq!(world.startups()["open"], Value::Null);
    world.start();
    assert_eq!(world.report().config.startups, 0);
}

#[test]
fn a_power_cut_before_the_evidence_of_an_adoption_is_consumed_is_no_crash() {
    let (mut world, _) = World::known_good();
    world.assign("b", &short(B, "10m", 0));
    world.turn();
    world.exit();
    // the start is recorded, and the power goes before anything else
    world.launch();
    while world.startups()["open"].is_null() {
        world.do_step();
    }
    world.power_cut();
    world.start();
    assert_eq!((world.used(), world.report().config.startups), (B, 0));
}

/// A config that the first crash condemns has crashed, and one write of the next start fails.
fn first_crash_and_a_failed_write(failing: usize) -> (World, Value) {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, "crashLoopThreshold: 0"));
    let before = world.startups();
    world.crash();
    world.disk.fault = WriteFault::Once(failing);
    world.advance(2 * SECOND);
    world.start();
    assert_eq!((world.used(), world.state()), (A, "fallback"));
    (world, before)
}

#[test]
fn counts_stay_on_disk_while_the_verdict_they_prove_does_not() {
    let (world, before) = first_crash_and_a_failed_write(1);
    assert_eq!(world.bad_configs(), Value::Null);
    assert_eq!(world.startups()["id"], before["id"]);
    assert_eq!(world.startups()["startups"].as_array().map(Vec::len), Some(1));
}

#[test]
fn counts_that_could_not_be_brought_up_to_date_stay_as_they_were() {
    let (world, before) = first_crash_and_a_failed_write(0);
    assert_eq!(world.startups(), before);
}

#[test]
fn a_start_reads_a_checkpoint_that_two_records_name_once() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.seen.clear();
    world.start();
    let is_read = |seen: &&Seen| matches!(seen, Seen::Performed(Step::Read(StateFile::Checkpoint(_)), _));
    assert_eq!(world.seen.iter().filter(is_read).count(), 1);
}

/// Whether a start without this checkpoint says that last-known-good could not be fallen back to.
fn warns_without_the_checkpoint_of_last_known_good(world: &mut World) -> bool {
    let record = world.file("last-known-good").expect("there is one");
    let part = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
    world.stop();
    world.disk.remove(&format!("checkpoints/{}/{}", part("uid"), part("resourceVersion")));
    world.log.clear();
    world.start();
    world.log.iter().any(|line| line.contains("could not be fallen back to"))
}

#[test]
fn a_last_known_good_that_is_lost_is_said_unless_it_is_what_is_assigned() {
    let (mut world, _) = World::known_good();
    assert!(!warns_without_the_checkpoint_of_last_known_good(&mut world), "the condition says it already");
    let (mut world, _) = World::known_good();
    world.hub.assign(Hub::following("a"));
    world.turn();
    world.hub.push("a", &payload(B, ""));
    world.turn();
    world.restart();
    assert_eq!((world.used(), world.state()), (B, "trial"));
    assert!(
        warns_without_the_checkpoint_of_last_known_good(&mut world),
        "another version of the same object"
    );
}

#[test]
fn an_agent_that_is_told_to_start_twice_starts_once() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.launch();
    assert!(world.do_step(), "the first record is read");
    world.handle(Event::Start);
    world.turn();
    world.handle(Event::Start);
    world.turn();
    assert_eq!((world.used(), world.state()), (A, "known-good"));
}

#[test]
fn evidence_is_consumed_once() {
    let (mut world, _) = World::known_good();
    world.crash();
    world.seen.clear();
    world.start();
    world.run_for(HOUR);
    let consumed = world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert_eq!(consumed.count(), 1);
}

#[test]
fn there_is_no_configuration_before_the_start_is_decided() {
    let (mut world, _) = World::known_good();
    world.stop();
    let max_pods = |world: &World| {
        let node = &world.process.as_ref().expect("it runs").node;
        node.effective().map(|effective| effective.config.max_pods)
    };
    world.launch();
    assert_eq!(max_pods(&world), None);
    world.turn();
    assert_eq!(max_pods(&world), Some(A));
}

#[test]
fn what_is_set_and_does_nothing_is_said_once() {
    for (fields, said) in [("port: 1\naddress: ::1", 1), ("", 0)] {
        let mut world = World::new();
        world.base(fields);
        world.start();
        world.run_for(HOUR);
        let line = "  set but without effect here: address, port";
        assert_eq!(world.log.iter().filter(|other| *other == line).count(), said, "{fields}");
        assert_eq!(world.log.iter().filter(|other| other.contains("without effect")).count(), said);
    }
}
