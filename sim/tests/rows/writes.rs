//! ARCHITECTURE.md, "Durable writes": every transition's durable writes in their order, and no others.

use crate::{A, B, DEFAULT, HOUR, MINUTE, SECOND, TRIAL, payload, short};
use kedge_core::Event;
use kedge_sim::World;
use kedge_sim::disk::WriteFault;
use serde_json::{Value, json};

/// A node whose assigned config was silent for its whole trial: last-known-good runs, still without a network.
fn under_suspicion() -> World {
    let (mut world, _) = World::known_good();
    world.assign("b", &payload(B, ""));
    world.turn();
    world.link = false;
    world.restart();
    world.run_until_exit(2 * TRIAL);
    world.start();
    world
}

#[test]
fn a_node_that_nobody_configured_writes_nothing() {
    let mut world = World::new();
    world.start();
    world.run_for(HOUR);
    world.reboot();
    world.start();
    world.check_written(&[]);
    assert!(world.disk.paths().is_empty());
}

#[test]
fn adopting_writes_the_checkpoint_then_current_then_the_closed_counts_and_exits() {
    let mut world = World::new();
    world.start();
    let uid = world.assign("a", &payload(A, ""));
    world.turn();
    world.check_written(&["checkpoint", "current", "startups"]);
    assert!(world.exited());
    let current = world.file("current").expect("written");
    assert_eq!(current["uid"], json!(uid));
    assert_eq!(current["nodeUID"], json!(world.hub.node_uid()));
    assert_eq!(current["downloaded"], json!(true));
    let version = current["resourceVersion"].as_str().expect("a text");
    let checkpoint = world.file(&format!("checkpoints/{uid}/{version}")).expect("written");
    assert_eq!(Some(&checkpoint), world.hub.config_map("a"), "the whole ConfigMap");
    assert_eq!(world.startups()["open"], Value::Null);
    assert_eq!(world.startups()["ran_ms"], json!(0));
}

#[test]
fn a_report_names_the_transition_that_waits_for_the_disk() {
    let (mut world, _) = World::known_good();
    assert_eq!(world.report().config.transition, None);
    world.assign("b", &payload(B, ""));
    while world.do_watch_node() || world.do_watch_map() {}
    assert_eq!(world.report().config.transition, Some("adopt"));
    world.turn();
    world.restart();
    assert_eq!(world.report().config.transition, None);
}

#[test]
fn a_start_records_itself_before_the_payload_is_parsed_and_writes_nothing_else() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.check_written(&["checkpoint", "current", "startups", "startups"]);
    assert_eq!(world.startups()["open"], json!("boot-1"));
    assert_eq!(world.startups()["trial_ms"], Value::Null, "not parsed yet when it was written");
    assert_eq!(world.used(), A);
}

#[test]
fn the_config_is_used_only_after_its_start_is_recorded() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash();
    world.disk.take_written();
    world.launch();
    while world.process.as_ref().is_some_and(|process| process.used.is_none()) {
        assert!(world.do_step(), "it waits for nothing but its disk");
    }
    world.check_written(&["startups"]);
    assert_eq!(world.startups()["startups"].as_array().map(Vec::len), Some(1));
}

#[test]
fn progress_is_saved_every_quarter_of_the_trial_and_promotion_writes_counts_then_last_known_good() {
    let (mut world, uid) = World::in_trial("a", &payload(A, ""));
    world.disk.take_written();
    for (quarter, expect) in [(1, 150_000), (2, 300_000), (3, 450_000)] {
        world.run_for(TRIAL / 4 - SECOND);
        world.check_written(&[]);
        world.run_for(SECOND);
        world.check_written(&["startups"]);
        assert_eq!(world.startups()["ran_ms"], json!(expect), "quarter {quarter}");
        assert_eq!(world.startups()["contact"], json!(true));
    }
    world.run_for(TRIAL / 4);
    world.check_written(&["startups", "last-known-good"]);
    assert_eq!(world.file("last-known-good").expect("written")["uid"], json!(uid));
    assert_eq!(world.state(), "known-good");
}

#[test]
fn progress_of_a_long_trial_is_saved_every_five_minutes() {
    let (mut world, _) = World::in_trial("a", &short(A, "24h", 10));
    world.disk.take_written();
    world.run_for(HOUR);
    world.check_written(&["startups"; 12]);
}

#[test]
fn a_save_remembers_the_terms_that_the_next_start_goes_by_before_it_parses() {
    let (mut world, _) = World::in_trial("a", &short(A, "24h", 3));
    world.run_for(TRIAL);
    assert_eq!(world.startups()["trial_ms"], json!(86_400_000));
    assert_eq!(world.startups()["threshold"], json!(3));
}

#[test]
fn settled_and_running_writes_nothing_and_a_restart_two() {
    let (mut world, _) = World::known_good();
    world.run_for(24 * HOUR);
    world.check_written(&[]);
    world.stop();
    world.check_written(&["startups"]);
    assert_eq!(world.startups()["open"], Value::Null);
    world.start();
    world.check_written(&["startups"]);
    assert_eq!(world.startups()["open"], json!("boot-1"));
    world.run_for(24 * HOUR);
    world.check_written(&[]);
}

#[test]
fn a_condemned_start_writes_the_verdict_then_the_start_of_the_fallback() {
    let (mut world, _) = World::known_good();
    world.assign("b", "neither: [yaml nor a configuration");
    world.turn();
    world.check_written(&["checkpoint", "current", "startups"]);
    world.restart();
    // its own start before it is parsed, the verdict, the fallback's start
    world.check_written(&["startups", "bad-configs", "startups"]);
    assert_eq!(world.used(), A);
}

#[test]
fn a_start_condemned_by_its_counts_writes_only_the_verdict_then_the_fallback() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.disk.take_written();
    world.crash_and_start();
    // the threshold is known once it was parsed and a save remembered it; before that, by its own terms after parsing
    world.check_written(&["startups", "bad-configs", "startups"]);

    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.disk.take_written();
    world.crash_and_start();
    world.check_written(&["bad-configs", "startups"]);
    assert_eq!(world.used(), A);
}

#[test]
fn a_source_that_becomes_invalid_or_valid_again_is_noted_in_current_and_nothing_else() {
    let (mut world, _) = World::known_good();
    world.hub.assign(json!({}));
    world.turn();
    world.check_written(&["current"]);
    assert!(world.file("current").expect("there")["invalidSource"].is_string());
    world.run_for(HOUR);
    world.check_written(&[]);
    world.hub.assign(world.hub.pinned("a"));
    world.turn();
    world.check_written(&["current"]);
    assert_eq!(world.file("current").expect("there")["invalidSource"], Value::Null);
    assert_eq!(world.used(), A, "it was active all the time");
    assert!(!world.exited());
}

#[test]
fn unassigning_empties_current_and_the_next_start_resets_last_known_good_and_the_counts() {
    let (mut world, _) = World::known_good();
    world.hub.assign(Value::Null);
    world.turn();
    world.check_written(&["current"]);
    assert_eq!(world.file("current").expect("there")["local"], json!(true));
    world.restart();
    world.check_written(&["last-known-good", "startups"]);
    assert_eq!(world.file("last-known-good").expect("there")["local"], json!(true));
    assert_eq!(world.startups()["id"], json!("local"));
    world.stop();
    world.start();
    world.run_for(HOUR);
    world.check_written(&[]);
}

#[test]
fn a_trial_that_is_over_without_contact_saves_and_exits_and_contact_rides_along_with_the_next_save() {
    let (mut world, _) = World::known_good();
    world.assign("b", &payload(B, ""));
    world.turn();
    world.link = false;
    world.restart();
    world.disk.take_written();
    world.run_for(TRIAL - SECOND);
    world.check_written(&["startups"; 3]);
    world.run_for(SECOND);
    world.check_written(&["startups"]);
    assert!(world.exited());
    assert_eq!(world.startups()["open"], Value::Null);
    world.restart();
    world.check_written(&["startups", "bad-configs", "startups"]);
    assert_eq!(world.used(), A);
}

#[test]
fn contact_beside_a_fallback_marks_the_retry_closes_and_exits_and_contact_under_it_removes_the_entry() {
    let mut world = under_suspicion();
    world.disk.take_written();
    world.run_for(HOUR);
    // the fallback is settled and was so before: nothing to save
    let saved_by_the_fallback = world.disk.take_written();
    assert!(saved_by_the_fallback.iter().all(|name| *name == "startups"), "{saved_by_the_fallback:?}");
    world.link = true;
    world.turn();
    world.run_for(MINUTE);
    world.check_written(&["bad-configs", "startups"]);
    assert!(world.exited());
    world.restart();
    world.check_written(&["startups", "startups", "bad-configs"]);
    assert_eq!(world.used(), B);
    assert_eq!(world.bad_configs(), json!({}));
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
}

#[test]
fn a_new_resource_version_or_name_of_the_same_payload_updates_the_records_without_a_restart() {
    let mut world = World::new();
    world.start();
    world.assign_following("a", &payload(A, ""));
    world.turn();
    world.restart();
    world.disk.take_written();
    world.hub.push("a", &payload(A, ""));
    world.turn();
    world.check_written(&["checkpoint", "current"]);
    assert!(!world.exited());
    world.assign("copy", &payload(A, ""));
    world.turn();
    // another object has another id: the counts go on under it
    world.check_written(&["checkpoint", "current", "startups"]);
    assert!(!world.exited());
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
    assert_eq!(world.file("last-known-good").expect("there")["uid"], json!(world.hub.uid_of("copy")));
}

#[test]
fn a_cut_after_a_new_name_is_recorded_and_before_the_counts_follow_begins_them_anew_and_costs_nothing_else() {
    let (mut world, _) = World::in_trial("a", &short(A, "10m", 3));
    world.run_for(MINUTE);
    world.crash_and_start();
    assert_eq!(world.report().config.startups, 1);
    world.run_for(TRIAL / 2);
    let copy = world.assign("copy", &short(A, "10m", 3));
    while world.file("current").expect("there")["uid"] != json!(copy) {
        assert!(world.do_step() || world.do_watch_node() || world.do_watch_map(), "it is readdressed");
    }
    world.cut_and_start();
    let report = world.report();
    assert_eq!((world.used(), world.state(), report.config.startups, report.config.cuts), (A, "trial", 0, 0));
    world.check_config_ok("True", &format!("using current (UID: {copy})"), "all checks passed");
    for _ in 0..4 {
        world.crash_and_start();
    }
    assert_eq!(world.used(), DEFAULT);
    assert!(world.bad_configs().get(&copy).is_some());
}

// ---------------------------------------------------------------------------------------------- when a write fails

#[test]
fn an_adoption_that_cannot_be_written_is_said_and_not_made_and_made_when_the_disk_works_again() {
    for failing in 0..3 {
        let (mut world, uid) = World::known_good();
        world.disk.fault = WriteFault::Once(failing);
        world.assign("b", &payload(B, ""));
        world.turn();
        assert!(!world.exited(), "write {failing}");
        let next = world.hub.uid_of("b");
        let (message, reason) = match failing {
            0 | 1 => (
                format!("using current (UID: {uid})"),
                "failed to sync, reason: could not record the assignment on disk: input/output error".into(),
            ),
            // `current` names the new one already
            _ => (
                format!("using last known good: (UID: {uid})"),
                format!(
                    "failed to load current (UID: {next}): its start could not be recorded on disk: input/output error"
                ),
            ),
        };
        world.check_config_ok("Unknown", &message, &reason);
        world.disk.needless.clear();
        world.run_for(2 * MINUTE);
        assert!(world.exited(), "write {failing}");
        world.restart();
        assert_eq!(world.used(), B, "write {failing}");
        assert_eq!(world.state(), "trial");
    }
}

#[test]
fn a_write_that_fails_is_told_once_with_the_transition_it_belonged_to() {
    let (mut world, _) = World::known_good();
    world.take_events();
    world.disk.fault = WriteFault::All;
    world.assign("b", &payload(B, ""));
    world.run_for(HOUR);
    let told = "ConfigNotRecorded: adopt: a write failed (no space left on device); nothing was changed, trying again \
                later";
    assert_eq!(world.take_events(), [told]);
    world.hub.assign(Value::Null);
    world.run_for(HOUR);
    assert_eq!(world.take_events(), Vec::<String>::new(), "the disk is still the same");
}

#[test]
fn a_reset_that_cannot_be_written_is_made_when_the_disk_works_again() {
    let (mut world, _) = World::known_good();
    world.disk.fault = WriteFault::All;
    world.handle(Event::Reset);
    world.run_for(HOUR);
    assert!(!world.exited());
    assert_eq!(world.used(), A);
    let told = "ConfigNotRecorded: unassign: a write failed (no space left on device); nothing was changed, trying again \
                later";
    assert_eq!(world.take_events(), [told]);
    world.disk.fault = WriteFault::None;
    world.run_until_exit(2 * MINUTE);
    assert_eq!(world.file("current").expect("there")["local"], json!(true));
}

#[test]
fn a_verdict_that_cannot_be_written_falls_back_anyway_keeps_its_proof_and_says_so() {
    let (mut world, good) = World::known_good();
    let bad = world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    let proof = world.startups();
    world.crash();
    world.disk.take_written();
    world.disk.fault = WriteFault::All;
    world.start();
    world.check_written(&[]);
    assert_eq!(world.used(), A);
    assert_eq!(world.startups(), proof);
    world.check_config_ok(
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!(
            "current failed trial period due to crash loop (UID: {bad}); the verdict could not be recorded"
        ),
    );
    // the same again at the next start, and recorded once the disk works
    world.crash();
    world.start();
    assert_eq!(world.used(), A);
    world.disk.fault = WriteFault::None;
    world.run_for(2 * MINUTE);
    assert!(world.bad_configs().get(&bad).is_some());
    world.check_config_ok(
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!("current failed trial period due to crash loop (UID: {bad})"),
    );
}

#[test]
fn a_trial_start_that_cannot_be_recorded_is_not_made_and_is_made_when_the_disk_works_again() {
    let (mut world, good) = World::known_good();
    let uid = world.assign("b", &payload(B, ""));
    world.turn();
    world.disk.fault = WriteFault::All;
    world.restart();
    assert_eq!(world.used(), A);
    world.check_config_ok(
        "Unknown",
        &format!("using last known good: (UID: {good})"),
        &format!(
            "failed to load current (UID: {uid}): its start could not be recorded on disk: no space left on device"
        ),
    );
    world.run_for(HOUR);
    assert!(!world.exited());
    world.disk.fault = WriteFault::None;
    world.run_until_exit(2 * MINUTE);
    assert_eq!(
        world.startups()["open"],
        Value::Null,
        "an exit, and a power cut after it, are nobody's fault"
    );
    world.start();
    assert_eq!(world.used(), B);
}

/// A node whose heartbeats are hours apart: what it does within minutes, its own deadlines woke it for.
fn rarely_woken() -> World {
    let mut world = World::new();
    world.drop_in(
        "nodeStatusUpdateFrequency: 12h\nnodeStatusReportFrequency: 12h\nnodeLeaseDurationSeconds: 86400",
    );
    world.start();
    world.adopt("a", &payload(A, ""));
    world.run_for(TRIAL);
    world
}

#[test]
fn a_disk_that_refused_is_tried_again_though_nothing_else_wakes_the_agent() {
    let mut world = rarely_woken();
    world.disk.fault = WriteFault::Once(0);
    world.assign("b", &payload(B, ""));
    world.turn();
    assert_eq!(world.deadline(), Some(world.mono + MINUTE));
    world.run_for(MINUTE);
    assert!(world.exited(), "adopted");

    let mut world = rarely_woken();
    let bad = world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    world.disk.fault = WriteFault::None;
    assert_eq!(world.deadline(), Some(world.mono + MINUTE));
    world.run_for(MINUTE);
    assert!(world.bad_configs().get(&bad).is_some(), "the verdict");
}

#[test]
fn last_known_good_and_local_run_though_nothing_can_be_recorded() {
    let (mut world, uid) = World::known_good();
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    assert_eq!(world.used(), A);
    world.check_config_ok("True", &format!("using current (UID: {uid})"), "all checks passed");
    world.run_for(HOUR);
    assert_eq!(world.report().lease.seconds_since_renewal.map(|age| age < 12), Some(true));

    let (mut world, _) = World::known_good();
    world.hub.assign(Value::Null);
    world.turn();
    world.disk.fault = WriteFault::All;
    world.restart();
    assert_eq!(world.used(), crate::DEFAULT);
    assert_eq!(world.config_ok()[0], "True");
}

#[test]
fn a_config_whose_whole_trial_is_on_disk_runs_though_its_start_cannot_be_recorded() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &payload(B, ""));
    world.run_for(TRIAL - SECOND);
    // the counts are saved, that it is last-known-good is not
    world.disk.fault = WriteFault::Once(1);
    world.run_for(SECOND);
    assert_eq!((world.startups()["ran_ms"].clone(), world.state()), (json!(600_000), "trial"));
    world.power_cut();
    world.disk.fault = WriteFault::All;
    world.start();
    assert_eq!(world.used(), B);
}

#[test]
fn a_save_or_promotion_that_fails_is_made_later_and_nothing_is_lost_by_it() {
    for failing in 0..2 {
        let (mut world, _) = World::in_trial("a", &payload(A, ""));
        world.run_for(TRIAL - SECOND);
        world.disk.fault = WriteFault::Once(failing);
        world.run_for(SECOND);
        assert_eq!(world.state(), "trial", "write {failing}");
        world.run_for(2 * MINUTE);
        assert_eq!(world.state(), "known-good", "write {failing}");
        assert!(world.file("last-known-good").is_some());
    }
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.disk.fault = WriteFault::All;
    world.run_for(TRIAL - SECOND);
    world.disk.fault = WriteFault::None;
    world.run_for(3 * MINUTE);
    assert_eq!(world.state(), "known-good");
}

#[test]
fn a_disk_that_refuses_for_hours_is_asked_now_and_then_not_all_the_time() {
    let (mut world, _) = World::known_good();
    world.disk.fault = WriteFault::All;
    world.assign("b", &payload(B, ""));
    world.seen.clear();
    world.run_for(HOUR);
    let tried = world
        .seen
        .iter()
        .filter(|seen| matches!(seen, kedge_sim::Seen::Performed(kedge_core::Step::Write(..), _)));
    let tried = tried.count();
    assert!((50..=70).contains(&tried), "{tried} tries in an hour");
    // and each try is not a change of the condition
    let said = world.log.iter().filter(|line| line.contains("ConfigOK=")).count();
    assert!(said <= 4, "{:#?}", world.log);
    assert_eq!(world.take_events().len(), 1, "nor an event");
}

#[test]
fn evidence_of_a_crash_is_kept_until_what_it_proved_is_on_disk() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    assert_eq!(world.used(), A);
    // the power goes before the verdict could be written: it is still known that this was a crash
    world.power_cut();
    world.start();
    assert_eq!(world.used(), A);
    world.disk.fault = WriteFault::None;
    world.run_for(2 * MINUTE);
    assert!(world.bad_configs().get(world.hub.uid_of("b")).is_some());
    assert_eq!(world.previous, kedge_core::PreviousRun::default(), "and then no longer needed");
}

#[test]
fn a_clean_exit_leaves_counts_that_prove_an_unwritten_verdict_as_they_are() {
    let (mut world, _) = World::known_good();
    world.adopt("b", &short(B, "10m", 0));
    world.run_for(TRIAL / 4);
    let proof = world.startups();
    world.crash();
    world.disk.fault = WriteFault::All;
    world.start();
    assert_eq!(world.used(), A);
    // the disk works again, and the agent is stopped before it tries
    world.disk.fault = WriteFault::None;
    world.stop();
    assert_eq!(world.startups(), proof);
}

#[test]
fn cuts_stay_counted_over_a_clean_exit_until_a_whole_trial_has_run() {
    let cut_three_times = || {
        let (mut world, _) = World::in_trial("a", &payload(A, ""));
        for _ in 0..3 {
            world.cut_and_start();
        }
        world
    };
    let mut world = cut_three_times();
    world.run_for(10 * SECOND);
    world.stop();
    assert_eq!(world.startups()["cuts"], json!(3), "ten seconds are no progress");

    let mut world = cut_three_times();
    world.disk.fault = WriteFault::All;
    world.run_for(TRIAL);
    world.disk.fault = WriteFault::None;
    world.stop();
    assert_eq!(world.startups()["cuts"], json!(0), "a whole trial, though nothing of it could be saved");
}

#[test]
fn an_edit_of_the_list_of_bad_configs_during_a_write_is_taken_after_it() {
    let (mut world, _) = World::known_good();
    world.adopt("b", "broken: [");
    world.advance(TRIAL / 4);
    world.handle(Event::Tick);
    assert_eq!(world.report().config.transition, Some("trial-progress"));
    world.disk.put("0.1.0/bad-configs.json", b"{}");
    world.handle(Event::BadConfigsRead(world.read_bad_configs()));
    world.turn();
    assert!(world.exited(), "to try what nothing is held against any more");
}

#[test]
fn contact_under_a_retry_is_a_save_like_any_other() {
    let mut world = under_suspicion();
    world.link = true;
    world.run_until_exit(HOUR);
    world.link = false;
    world.start();
    world.run_for(MINUTE);
    assert_eq!((world.used(), world.state()), (B, "trial"));
    world.disk.take_written();
    world.link = true;
    world.run_for(MINUTE);
    world.check_written(&["startups", "bad-configs"]);
    world.run_for(MINUTE);
    world.check_written(&[]);
    world.run_for(2 * MINUTE);
    world.check_written(&["startups"]);
}

#[test]
fn forgiveness_that_cannot_be_written_is_said_and_has_to_be_asked_for_again() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", "broken: [");
    world.run_for(TRIAL);
    world.take_events();
    world.disk.fault = WriteFault::All;
    world.handle(Event::Forgive(uid.clone()));
    world.run_for(HOUR);
    assert_eq!(
        world.take_events(),
        [
            "ConfigNotRecorded: forgive: a write failed (no space left on device); nothing was changed, ask again when \
          the disk works"
        ]
    );
    world.disk.fault = WriteFault::None;
    world.run_for(HOUR);
    assert!(world.bad_configs().get(&uid).is_some());
    world.handle(Event::Forgive(uid));
    world.turn();
    assert_eq!(world.bad_configs(), json!({}));
}

#[test]
fn a_save_that_fails_is_made_when_the_next_is_due() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.disk.take_written();
    world.disk.fault = WriteFault::Once(0);
    world.run_for(TRIAL / 2 - SECOND);
    world.check_written(&[]);
    world.run_for(SECOND);
    world.check_written(&["startups"]);
    assert_eq!(world.startups()["ran_ms"], json!(300_000));
}

/// The same payload under another name, while one of the writes fails: which of the two names is said.
#[track_caller]
fn check_readdressing(failing: usize, said: &str) {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.run_for(MINUTE);
    world.disk.fault = WriteFault::Once(failing);
    world.assign("copy", &payload(A, ""));
    world.turn();
    assert!(!world.exited());
    let [status, message, _] = world.config_ok();
    // the counts alone are no reason to doubt what is assigned
    assert_eq!(status, if said == "copy" { "True" } else { "Unknown" });
    assert_eq!(message, format!("using current (UID: {})", world.hub.uid_of(said)));
    assert_eq!(world.file("current").expect("there")["uid"], json!(world.hub.uid_of(said)));
    world.run_for(TRIAL / 4 + MINUTE);
    world.check_config_ok(
        "True",
        &format!("using current (UID: {})", world.hub.uid_of("copy")),
        "all checks passed",
    );
    // the counts go on under the other id
    world.crash_and_start();
    assert_eq!((world.used(), world.report().config.startups), (A, 1), "write {failing}");
}

#[test]
fn a_new_name_of_the_same_payload_is_said_when_it_is_recorded_and_the_counts_follow() {
    check_readdressing(0, "a");
    check_readdressing(1, "a");
    check_readdressing(2, "copy");
}

#[test]
fn counts_that_did_not_follow_a_new_name_are_saved_once_a_quarter_of_the_trial_has_run() {
    let readdressed_after = |ran| {
        let (mut world, _) = World::in_trial("a", &payload(A, ""));
        world.run_for(ran);
        world.disk.fault = WriteFault::Once(2);
        world.assign("copy", &payload(A, ""));
        world.disk.take_written();
        world.turn();
        world.check_written(&["checkpoint", "current"]);
        world
    };
    let mut world = readdressed_after(MINUTE);
    world.run_for(TRIAL / 4 - MINUTE - SECOND);
    world.check_written(&[]);
    world.run_for(SECOND);
    world.check_written(&["startups"]);
    // a quarter has run: as soon as a disk that refused is asked again
    let mut world = readdressed_after(TRIAL / 4 + MINUTE);
    world.run_for(MINUTE - SECOND);
    world.check_written(&[]);
    world.run_for(SECOND);
    world.check_written(&["startups"]);
}

#[test]
fn contact_made_while_a_save_is_under_way_is_kept() {
    let (mut world, _) = World::known_good();
    world.assign("b", &payload(B, ""));
    world.turn();
    world.link = false;
    world.restart();
    world.advance(TRIAL / 4);
    world.handle(Event::Tick);
    assert_eq!(world.report().config.transition, Some("trial-progress"));
    world.handle(Event::Contact);
    world.turn();
    assert_eq!(world.startups()["contact"], json!(false), "as it was when the write began");
    assert!(world.report().config.contact);
    world.run_for(TRIAL);
    assert_eq!(world.state(), "known-good");
}
