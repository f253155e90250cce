//! A node's reactions to the configuration it is assigned.

use kedge_rig::cluster::Source;
use serde_json::json;

use crate::setup::{NODE, Setup, payload, plain};

#[test]
fn good_config_is_adopted_and_promoted() {
    let setup = Setup::new("good", plain());
    setup.config_ok(
        "True",
        "using current (init)",
        "current is set to the local default, and an init config was provided",
    );
    let uid = setup.pin("edge-good", &payload(3, 2, ""));
    setup.runs(&uid);
    setup.shows("the adoption's event", |world| world.saw_event(NODE, "KubeletConfigChanged", &uid));
    setup.promotes(&uid);
    setup.shows("the promotion's event", |world| world.saw_event(NODE, "ConfigPromoted", &uid));
    let trial_was_seen = setup.cluster.view().look(|world| {
        world.facts().0.iter().any(|fact| {
            matches!(&fact.kind, kedge_rig::view::FactKind::Config(config)
                if config.active.as_deref() == Some(&uid) && config.last_known_good.is_none())
        })
    });
    assert!(trial_was_seen, "a node in its trial has another last-known-good");
    // on disk: the checkpoint, and both records name it
    let current = setup.record("current");
    let payload = current["sha256"].as_str().unwrap();
    let checkpoint = setup.record(&format!("checkpoints/{uid}/{payload}"));
    assert_eq!(checkpoint["metadata"]["name"], "edge-good");
    assert_eq!(setup.record("last-known-good")["uid"], json!(uid));
    // one clean exit, to adopt it; nothing counted
    assert_eq!((setup.ends().len(), setup.unclean_ends(), setup.counted_startups()), (1, 0, 0));
}

/// A bad configuration on top of a good one: the words of the condition, and that it stays so over a restart.
#[track_caller]
fn check_bad(purpose: &str, bad_payload: &str, reason: &str) {
    let mut setup = Setup::new(purpose, plain());
    let good = setup.good("edge-good");
    let bad = setup.pin("edge-bad", bad_payload);
    let expect = |setup: &Setup| {
        setup.config_ok(
            "False",
            &format!("using last known good: (UID: {good})"),
            &reason.replace("{uid}", &bad),
        );
        setup.shows("what is assigned and what runs", |world| {
            let config = world.config(NODE);
            config.assigned.as_deref() == Some(&bad)
                && config.active.as_deref() == Some(&good)
                && config.last_known_good.as_deref() == Some(&good)
        });
    };
    expect(&setup);
    setup.shows("the event", |world| world.saw_event(NODE, "ConfigRolledBack", &bad));
    // one exit to adopt the good one, one to adopt the bad one; the verdict needs no crash
    assert_eq!((setup.ends().len(), setup.unclean_ends()), (2, 0));
    let bad_configs = setup.record(concat!(env!("CARGO_PKG_VERSION"), "/bad-configs.json"));
    assert!(bad_configs.to_string().contains(&bad), "{bad_configs}");

    setup.agent_mut().stop().unwrap();
    let renewals = setup.cluster.view().look(|world| world.renewal_count(NODE));
    setup.agent_mut().start().unwrap();
    setup.shows("its heartbeat", |world| world.renewal_count(NODE) > renewals + 1);
    expect(&setup);
    assert_eq!(setup.ends().len(), 0, "the bad one is not tried again");
}

#[test]
fn unparsable_config_is_rolled_back_for_good() {
    check_bad("parse", &payload(1, 2, "evictionHard: [\n"), "failed to parse current (UID: {uid})");
}

#[test]
fn unknown_field_is_rolled_back_for_good() {
    check_bad(
        "unknown",
        &payload(1, 2, "nodeStatusReportFreqency: 1m\n"),
        "failed to parse current (UID: {uid})",
    );
}

#[test]
fn invalid_config_is_rolled_back_for_good() {
    check_bad("validate", &payload(1, 200, ""), "failed to validate current (UID: {uid})");
}

#[test]
fn edit_of_a_pinned_config_is_reported_not_followed() {
    let setup = Setup::new("pinned", plain());
    let uid = setup.pin("edge-pinned", &payload(1, 2, "nodeStatusReportFrequency: 1m\n"));
    setup.runs(&uid);
    setup.promotes(&uid);
    setup.cluster.edit_config("edge-pinned", &payload(1, 2, "nodeStatusReportFrequency: 2m\n")).unwrap();
    setup.shows("the condition to say that the edit is not followed", |world| {
        world.condition(NODE, "ConfigOK").is_some_and(|(status, message, reason)| {
            status == "True"
                && message == format!("using current (UID: {uid})")
                && reason.starts_with("all checks passed; ")
                && reason.contains("does not follow edits")
        })
    });
    assert_eq!(setup.ends().len(), 1, "no restart for an edit that is not followed");
    let active = setup.agent().kedge_json(&["config", "show"]).unwrap();
    assert!(active.to_string().contains("1m"), "{active}");
}

#[test]
fn edit_of_a_followed_config_gets_its_own_trial() {
    let setup = Setup::new("following", plain());
    let uid = setup.cluster.create_config("edge-named", &payload(2, 2, "")).unwrap();
    setup.cluster.assign(NODE, &Source::Following { name: "edge-named".into() }).unwrap();
    setup.runs(&uid);
    setup.promotes(&uid);
    let first = setup.record("last-known-good")["resourceVersion"].clone();

    // a bad edit: rolled back to the content before it, though UID and name are the same
    setup.cluster.edit_config("edge-named", &payload(2, 99, "")).unwrap();
    setup.config_ok(
        "False",
        &format!("using last known good: (UID: {uid})"),
        &format!("failed to validate current (UID: {uid})"),
    );
    assert_eq!(setup.record("last-known-good")["resourceVersion"], first);

    // a good edit: adopted, and last-known-good only after its own trial
    setup.cluster.edit_config("edge-named", &payload(2, 3, "")).unwrap();
    setup.runs(&uid);
    assert_eq!(setup.record("last-known-good")["resourceVersion"], first, "promoted before its trial");
    let second = setup.record("current")["resourceVersion"].clone();
    assert_ne!(first, second);
    let promoted = kedge_rig::scratch::poll(kedge_rig::cluster::PATIENCE, || {
        (setup.record("last-known-good")["resourceVersion"] == second).then_some(())
    });
    assert!(promoted.is_some(), "the second content was never promoted:\n{}", setup.agent().log_text());
}

#[test]
fn empty_source_is_unknown_and_changes_nothing() {
    let setup = Setup::new("unclear", plain());
    let good = setup.good("edge-good");
    setup.cluster.assign(NODE, &Source::Raw(json!({}))).unwrap();
    let cause = "failed to sync, desired config unclear, cause: invalid NodeConfigSource, exactly one subfield must \
                 be non-nil, but all were nil";
    setup.config_ok("Unknown", &format!("using current (UID: {good})"), cause);
    assert_eq!(setup.ends().len(), 1, "no restart for an unclear source");
    // and after a restart: last-known-good, with the same cause
    setup.agent().babysitter().signal(kedge_rig::babysitter::Signal::SIGTERM);
    setup.ready_in_run(3);
    setup.shows("the cause after a restart", |world| {
        world
            .condition(NODE, "ConfigOK")
            .is_some_and(|(status, _, reason)| status == "Unknown" && reason == cause)
            && world.config(NODE).active.as_deref() == Some(&good)
    });
    // a valid source ends it
    setup.cluster.assign(NODE, &Source::Pinned { name: "edge-good".into(), uid: good.clone() }).unwrap();
    setup.runs(&good);
}

#[test]
fn unknown_uid_is_unknown_and_changes_nothing() {
    let setup = Setup::new("no-such-uid", plain());
    let good = setup.good("edge-good");
    let wrong =
        Source::Pinned { name: "edge-good".into(), uid: "00000000-0000-0000-0000-000000000000".into() };
    setup.cluster.assign(NODE, &wrong).unwrap();
    setup.shows("Unknown", |world| {
        world.condition(NODE, "ConfigOK").is_some_and(|(status, message, _)| {
            status == "Unknown" && message == format!("using current (UID: {good})")
        })
    });
    let missing = Source::Following { name: "no-such-config".into() };
    setup.cluster.assign(NODE, &missing).unwrap();
    setup.shows("the name of what cannot be downloaded", |world| {
        world.condition(NODE, "ConfigOK").is_some_and(|(status, message, reason)| {
            status == "Unknown" && message.contains(&good) && reason.contains("no-such-config")
        })
    });
    assert_eq!(setup.ends().len(), 1);
    // created later, it is found
    let late = setup.cluster.create_config("no-such-config", &payload(1, 2, "")).unwrap();
    setup.runs(&late);
}

#[test]
fn unassigned_node_runs_its_local_config() {
    let setup = Setup::new("unassign", plain());
    setup.good("edge-good");
    setup.cluster.assign(NODE, &Source::Nil).unwrap();
    setup.config_ok(
        "True",
        "using current (init)",
        "current is set to the local default, and an init config was provided",
    );
    setup.shows("nothing assigned, active or last-known-good", |world| {
        let config = world.config(NODE);
        config.assigned.is_none() && config.active.is_none() && config.last_known_good.is_none()
    });
    assert_eq!((setup.ends().len(), setup.unclean_ends()), (2, 0));
}

#[test]
fn forgiven_config_is_tried_again() {
    let setup = Setup::new("forgive", plain());
    let good = setup.good("edge-good");
    let bad = setup.pin("edge-bad", &payload(1, 200, ""));
    let rolled_back = |setup: &Setup| {
        setup.config_ok(
            "False",
            &format!("using last known good: (UID: {good})"),
            &format!("failed to validate current (UID: {bad})"),
        );
    };
    rolled_back(&setup);
    let runs = setup.agent().babysitter().state().runs;
    let (code, _, complaint) = setup.agent().kedge(&["config", "forgive", &bad]).unwrap();
    assert_eq!(code, 0, "{complaint}");
    // it is tried: one more clean exit and start; and it is still bad
    setup.ready_in_run(runs + 1);
    rolled_back(&setup);
    assert_eq!(setup.unclean_ends(), 0);
}

#[test]
fn edited_drop_in_voids_old_verdicts() {
    let mut setup = Setup::new("drop-in", plain());
    let good = setup.good("edge-good");
    // does not validate because of the drop-in: the lease would end before the next status
    setup.agent_mut().stop().unwrap();
    let conf = |threshold: u32| format!("{}crashLoopThreshold: {threshold}\n", kedge_rig::cluster::HEADER);
    setup.agent().write_drop_in("20-site.conf", &conf(3)).unwrap();
    setup.agent_mut().start().unwrap();
    setup.runs(&good);
    let shown = setup.agent().kedge_json(&["config", "show"]).unwrap().to_string();
    assert!(shown.contains("\"crashLoopThreshold\":3"), "{shown}");
    assert_eq!(setup.ends().len(), 0);

    // the drop-in mends a config that was condemned for the field it sets: the old verdict is about another
    // content
    let bad = setup.pin("edge-bad", &payload(1, 200, ""));
    setup.runs(&bad);
    setup.promotes(&bad);
}

/// A file of the node's is damaged while it is off; it still starts, reports it, and repairs it from the API
/// server.
#[track_caller]
fn check_damage(damage: impl Fn(&Setup)) {
    let mut setup = Setup::new("damage", plain());
    let good = setup.good("edge-good");
    let next = setup.pin("edge-next", &payload(1, 2, "nodeStatusReportFrequency: 4m\n"));
    setup.runs(&next);
    setup.promotes(&next);
    assert_ne!(good, next);
    setup.agent_mut().stop().unwrap();
    damage(&setup);
    setup.agent_mut().start().unwrap();
    setup.runs(&next);
    setup.promotes(&next);
    assert_eq!(setup.unclean_ends(), 0);
    let shown = setup.agent().kedge_json(&["config", "show"]).unwrap().to_string();
    assert!(shown.contains("4m"), "{shown}");
}

#[test]
fn damaged_checkpoint_is_downloaded_again() {
    check_damage(|setup| {
        let current = setup.record("current");
        let (uid, payload) = (current["checkpoint"].as_str().unwrap(), current["sha256"].as_str().unwrap());
        let path = setup.agent().config_dir().join("checkpoints").join(uid).join(payload);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    });
}

#[test]
fn damaged_current_is_written_again() {
    check_damage(|setup| std::fs::write(setup.agent().config_dir().join("current"), "\0\0\0{").unwrap());
}

#[test]
fn lost_state_is_downloaded_again() {
    check_damage(|setup| std::fs::remove_dir_all(setup.agent().root_dir()).unwrap());
}

#[test]
fn state_directory_that_is_a_file_is_set_aside() {
    check_damage(|setup| {
        let root = setup.agent().root_dir();
        std::fs::remove_dir_all(&root).unwrap();
        std::fs::write(root, "x").unwrap();
    });
    let lose_records = |setup: &Setup| {
        std::fs::remove_dir_all(setup.agent().config_dir()).unwrap();
        std::os::unix::fs::symlink("nowhere", setup.agent().config_dir()).unwrap();
    };
    check_damage(lose_records);
}

/// The state of a node whose agent was of another version: everything under that version's name.
#[test]
fn new_agent_version_keeps_the_assignment() {
    let mut setup = Setup::new("upgrade", plain());
    let good = setup.good("edge-good");
    // the version before condemned it, and this one can read it
    let next = setup.pin("edge-next", &payload(1, 2, ""));
    setup.runs(&next);
    setup.promotes(&next);
    setup.cluster.assign(NODE, &Source::Pinned { name: "edge-good".into(), uid: good.clone() }).unwrap();
    setup.runs(&good);
    setup.agent_mut().stop().unwrap();
    let config = setup.agent().config_dir();
    let (ours, before) = (config.join(env!("CARGO_PKG_VERSION")), config.join("0.0.9"));
    std::fs::rename(&ours, &before).unwrap();
    std::fs::create_dir(config.join("0.0.8")).unwrap();
    let verdict = json!({ good.as_str(): {"time": "2026-01-01T00:00:00Z", "reason": "failed to parse"} });
    std::fs::write(before.join("bad-configs.json"), verdict.to_string()).unwrap();

    setup.agent_mut().start().unwrap();
    setup.runs(&good);
    setup.promotes(&good);
    assert!(ours.join("startups.json").exists());
    assert!(!before.join("startups.json").exists(), "counts of another version stayed");
    // the verdicts stay for a way back, those of older versions do not
    assert!(before.join("bad-configs.json").exists());
    assert!(!config.join("0.0.8").exists());
    assert_eq!(setup.unclean_ends(), 0);

    // the way back: the version before still knows what it condemned
    setup.agent_mut().stop().unwrap();
    std::fs::remove_dir_all(&ours).unwrap();
    std::fs::rename(&before, &ours).unwrap();
    setup.agent_mut().start().unwrap();
    let status = setup.agent().kedge_json(&["config", "status"]).unwrap();
    assert_eq!(status["condition"]["status"], "False", "{status}");
}

#[test]
fn metadata_edit_is_shown_and_writes_nothing() {
    let setup = Setup::new("same-payload", plain());
    let uid = setup.cluster.create_config("edge-named", &payload(1, 2, "")).unwrap();
    setup.cluster.assign(NODE, &Source::Following { name: "edge-named".into() }).unwrap();
    setup.runs(&uid);
    setup.promotes(&uid);
    let before = setup.record("current");
    setup.cluster.kubectl().run(&["annotate", "configmap", "edge-named", "note=the payload stays"]).unwrap();
    let shown = || {
        let status = setup.agent().kedge_json(&["config", "status"]).ok()?;
        Some(status["status"]["assigned"]["configMap"]["resourceVersion"].clone())
    };
    let follows = kedge_rig::scratch::poll(kedge_rig::cluster::PATIENCE, || {
        (shown()? != before["resourceVersion"]).then_some(())
    });
    assert!(follows.is_some(), "the version stayed:\n{}", setup.agent().log_text());
    assert_eq!(setup.record("current"), before);
    assert_eq!((setup.ends().len(), setup.unclean_ends()), (1, 0), "{}", setup.agent().log_text());
}
