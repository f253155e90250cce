//! A hub that is away, and a hub that comes back.

use std::time::{Duration, Instant};

use kedge_rig::cluster::Source;
use kedge_rig::view::World;

use crate::setup::{NODE, PATIENCE, Setup, faulty, payload, plain};

fn renewals(setup: &Setup) -> usize {
    setup.cluster.view().look(|world| world.renewal_count(NODE))
}

#[test]
fn killed_hub_is_found_again() {
    let mut setup = Setup::new("hub-killed", plain());
    let uid = setup.good("edge-good");
    let mut seen = renewals(&setup);
    for _ in 0..2 {
        setup.cluster.hub_mut().kill();
        setup.cluster.hub_mut().start_again().unwrap();
        setup.shows("renewals after the hub's return", |world| world.renewal_count(NODE) > seen + 1);
        seen = renewals(&setup);
    }
    setup.runs(&uid);
    assert_eq!(setup.ends().len(), 1, "the agent does not exit because of the network");
    // and it still takes orders
    let next = setup.pin("edge-next", &payload(1, 2, ""));
    setup.runs(&next);
}

#[test]
fn half_a_minute_without_hub_causes_no_exit() {
    let mut setup = Setup::new("hub-away", plain());
    let uid = setup.good("edge-good");
    let seen = renewals(&setup);
    let pings = setup.agent().babysitter().state().pings;
    setup.cluster.hub_mut().stop().unwrap();
    let away = Instant::now();
    // the outage itself is what is tested: it lasts its full time
    let quiet = kedge_rig::scratch::poll(Duration::from_secs(30), || {
        let state = setup.agent().babysitter().state();
        (!state.ends.is_empty() && state.ends.len() > 1).then_some(state)
    });
    assert!(quiet.is_none(), "the agent exited while the hub was away: {quiet:?}");
    assert!(away.elapsed() >= Duration::from_secs(30));
    assert!(setup.agent().babysitter().state().pings > pings, "the watchdog was fed all the while");
    let status = setup.agent().kedge_json(&["status"]).unwrap();
    assert_eq!(status["contact"]["state"], "lost", "{status}");
    assert!(status["server"]["problems"].as_array().is_some_and(|problems| !problems.is_empty()), "{status}");
    assert!(status["server"]["watches"].to_string().contains(r#""openSeconds":null"#), "{status}");
    setup.cluster.hub_mut().start_again().unwrap();
    setup.shows("renewals after the hub's return", |world| world.renewal_count(NODE) > seen + 1);
    setup.runs(&uid);
    let status = setup.agent().kedge_json(&["status"]).unwrap();
    assert_eq!(status["contact"]["state"], "made", "{status}");
    assert!(status["disk"]["availableBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{status}");
    let log = setup.agent().log_text();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    // the push restarted the agent once: two runs, of which the second saw the outage
    let contact =
        [" contact with the API server after", " contact with the API server lost", "API server again after"];
    assert_eq!(contact.map(lines), [2, 1, 1], "{log}");
    assert_eq!(lines("; retrying"), 1, "one outage, one line: {log}");
    assert_eq!(lines("effective configuration: {"), 2, "{log}");
    let lapse = setup.cluster.view().look(|world| {
        world.condition(NODE, "Ready").map(|(status, _, reason)| (status.to_owned(), reason.to_owned()))
    });
    assert_eq!(lapse.map(|(status, _)| status).as_deref(), Some("True"));
}

#[test]
fn start_without_hub_runs_the_assigned_config() {
    let mut setup = Setup::new("offline-start", plain());
    let uid = setup.good("edge-good");
    let next = setup.pin("edge-next", &payload(300, 2, "nodeStatusReportFrequency: 3m\n"));
    setup.runs(&next);
    setup.cluster.hub_mut().stop().unwrap();
    setup.agent_mut().stop().unwrap();
    let drop_ins = setup.agent().drop_in_dir().display().to_string();
    let foretold = setup.agent().kedge_json(&["config", "status", "--config-dir", &drop_ins]).unwrap();
    assert_eq!(foretold["from"], "records", "{foretold}");
    assert_eq!(foretold["status"]["active"]["configMap"]["uid"], next.as_str(), "{foretold}");
    let start = Instant::now();
    setup.agent_mut().start().unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "ready only after {:?}", start.elapsed());
    let status = setup.agent().kedge_json(&["config", "status"]).unwrap().to_string();
    assert!(status.contains(&next) && status.contains(&uid), "{status}");
    let shown = setup.agent().kedge_json(&["config", "show"]).unwrap().to_string();
    assert!(shown.contains("3m"), "{shown}");
    setup.cluster.hub_mut().start_again().unwrap();
    setup.runs(&next);
}

#[test]
fn two_nodes_are_independent() {
    let mut setup = Setup::new("two", plain());
    setup.cluster.add("edge-2", plain()).unwrap().start().unwrap();
    let ready = |node: &str| {
        let node = node.to_owned();
        move |world: &kedge_rig::view::World| {
            world.condition(&node, "Ready").is_some_and(|(status, ..)| status == "True")
        }
    };
    setup.shows("the second node", ready("edge-2"));
    let bad = setup.pin("edge-bad", &payload(1, 200, ""));
    setup.shows("the first node's verdict", |world| {
        world
            .condition(NODE, "ConfigOK")
            .is_some_and(|(status, _, reason)| status == "False" && reason.contains(&bad))
    });
    let second = setup.cluster.agent("edge-2").babysitter().state();
    assert_eq!((second.runs, second.ends.len()), (1, 0));
    setup.cluster.agent("edge-2").babysitter().wait_ready(PATIENCE).unwrap();
}

/// The node's wall clock steps by ten years; neither its Lease nor its readiness suffers, on either side.
#[track_caller]
fn check_clock(offset: &str) {
    let setup = Setup::new("clock", faulty());
    let start = Instant::now();
    let uid = setup.pin(
        "edge-clock",
        &payload(2, 0, &format!("kedge:\n  faultInjection:\n    clockOffset: {offset}\n")),
    );
    setup.runs(&uid);
    setup.promotes(&uid);
    let seen = renewals(&setup);
    setup.shows("five more renewals", |world| world.renewal_count(NODE) > seen + 4);
    let lease = setup.cluster.kubectl().json(&["get", "lease", NODE, "-n", "kube-node-lease"]).unwrap();
    let renewed = lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned();
    let year: i64 =
        renewed.get(..4).and_then(|year| year.parse().ok()).expect("a renewTime begins with a year");
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (365 * 24 * 3600 + 6 * 3600);
    let shift = year - 1970 - i64::try_from(now).unwrap();
    assert!((9..=11).contains(&shift.abs()), "the clock was not shifted by ten years: {renewed}");
    assert_eq!(shift < 0, offset.starts_with('-'), "{renewed}");
    let (silence, lapses) = setup.cluster.view().look(|world| {
        let lapses: Vec<_> =
            world.facts().0.iter().filter(|fact| fact.at > start).map(|fact| fact.kind.clone()).collect();
        (world.longest_silence(NODE, start), lapses)
    });
    assert!(silence < Duration::from_secs(12), "{silence:?}");
    let not_ready = lapses.iter().find(|kind| {
        matches!(kind, kedge_rig::view::FactKind::Condition { name, status, .. } if name == "Ready" && status != "True")
    });
    assert!(not_ready.is_none(), "{not_ready:?}");
    assert_eq!(setup.unclean_ends(), 0);
}

#[test]
fn clock_ten_years_ahead_keeps_renewing() {
    check_clock("87600h");
}

#[test]
fn clock_ten_years_behind_keeps_renewing() {
    check_clock("-87600h");
}

#[test]
fn settled_node_posts_no_status() {
    let setup = Setup::new("settled", plain());
    // a report that is due although nothing changed does not count here
    let uid = setup.pin("edge-good", &payload(1, 2, "nodeStatusReportFrequency: 5m\n"));
    setup.runs(&uid);
    setup.promotes(&uid);
    let posts = || setup.agent().kedge_json(&["status"]).unwrap()["statusPosts"].as_u64().unwrap();
    let version = |setup: &Setup| {
        setup.cluster.kubectl().json(&["get", "node", NODE]).unwrap()["metadata"]["resourceVersion"].clone()
    };
    // the report that the last change queued must be sent first
    let seen = renewals(&setup);
    setup.shows("renewals", |world| world.renewal_count(NODE) > seen + 4);
    let before = (posts(), version(&setup));
    let seen = renewals(&setup);
    // eight renewals of three seconds: two turns of nodeStatusUpdateFrequency
    setup.shows("renewals", |world| world.renewal_count(NODE) > seen + 8);
    assert_eq!((posts(), version(&setup)), before, "{}", setup.agent().log_text());
}

/// Takes the hub away while the program replaces itself in place, so that the new configuration never has
/// contact with it.
fn no_contact_after(setup: &mut Setup, ends: usize, act: impl FnOnce(&mut Setup)) {
    let gate = setup.agent().run_dir().join("gate-exec-recorded");
    std::fs::write(&gate, "").unwrap();
    act(setup);
    let awaited = "the end of the run before the one that tries the config";
    let ended = setup.agent().babysitter().wait_ends(ends, PATIENCE);
    ended.unwrap_or_else(|error| panic!("{awaited}: {error}\n{}", setup.agent().log_text()));
    setup.cluster.hub_mut().kill();
    std::fs::remove_file(&gate).unwrap();
}

/// Waits until the node's local status says so: the hub is down.
#[track_caller]
fn says(setup: &Setup, status: &str, message: &str, reason: &str) {
    let said = kedge_rig::scratch::poll(PATIENCE, || {
        let own = setup.agent().kedge_json(&["config", "status"]).ok()?;
        let words =
            ["status", "message", "reason"].map(|word| own["condition"][word].as_str().unwrap_or_default());
        (words == [status, message, reason]).then_some(())
    });
    assert!(said.is_some(), "never reported {status}, {message}, {reason}:\n{}", setup.agent().log_text());
}

/// Twice a whole trial (at least a minute) without contact, each time followed by contact under
/// last-known-good.
#[test]
fn config_without_contact_twice_is_rolled_back() {
    let mut setup = Setup::new("lost-contact", faulty());
    let good = setup.good("edge-good");
    let bad = setup.cluster.create_config("edge-silent", &payload(1, 2, "")).unwrap();
    let lost = (
        "False",
        format!("using last known good: (UID: {good})"),
        format!("current failed trial period due to lost contact with the API server (UID: {bad})"),
    );
    let pinned = Source::Pinned { name: "edge-silent".into(), uid: bad.clone() };

    // adopt: exit 2. A minute of silence: exit 3, and last-known-good
    no_contact_after(&mut setup, 2, |setup| setup.cluster.assign(NODE, &pinned).unwrap());
    says(&setup, lost.0, &lost.1, &lost.2);
    assert_eq!(setup.ends().len(), 3);

    // the hub is back: last-known-good has contact, so the network was not at fault, and the config is tried
    // once more: exit 4
    no_contact_after(&mut setup, 4, |setup| setup.cluster.hub_mut().start_again().unwrap());
    says(&setup, "True", &format!("using current (UID: {bad})"), "all checks passed");
    says(&setup, lost.0, &lost.1, &lost.2);
    assert_eq!(setup.ends().len(), 5);

    // the second failure is final
    setup.cluster.hub_mut().start_again().unwrap();
    let seen = renewals(&setup);
    setup.config_ok(lost.0, &lost.1, &lost.2);
    setup.shows("renewals under last-known-good", |world| world.renewal_count(NODE) > seen + 4);
    assert_eq!((setup.ends().len(), setup.unclean_ends()), (5, 0), "{}", setup.agent().log_text());
}

#[test]
fn one_outage_in_a_trial_bans_nothing() {
    let mut setup = Setup::new("one-outage", faulty());
    let good = setup.good("edge-good");
    let next = setup.cluster.create_config("edge-next", &payload(1, 2, "")).unwrap();
    let pinned = Source::Pinned { name: "edge-next".into(), uid: next.clone() };
    no_contact_after(&mut setup, 2, |setup| setup.cluster.assign(NODE, &pinned).unwrap());
    says(
        &setup,
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!("current failed trial period due to lost contact with the API server (UID: {next})"),
    );
    setup.cluster.hub_mut().start_again().unwrap();
    setup.runs(&next);
    setup.promotes(&next);
    assert_eq!(setup.unclean_ends(), 0);
}

#[test]
fn node_moved_to_another_hub_keeps_its_config() {
    let setup = Setup::new("moved", plain());
    let good = setup.good("edge-good");
    let other = Setup::with_hub("moved-to");
    setup.agent().replace_kubeconfig(&other.cluster.hub().node_kubeconfig(NODE).unwrap()).unwrap();
    other.shows("the node with its Lease at the other hub", |world| {
        world.condition(NODE, "Ready").is_some_and(|(status, ..)| status == "True")
            && world.renewal_count(NODE) > 0
    });
    other.shows("what it runs, and that this hub did not assign it", |world| {
        world
            .condition(NODE, "ConfigOK")
            .is_some_and(|(status, message, _)| status == "Unknown" && message.contains(&good))
            && world.config(NODE).active.as_deref() == Some(&good)
    });
    assert_eq!(setup.ends().len(), 1, "{}", setup.agent().log_text());

    // the other hub's assignment is followed
    let uid = other.cluster.create_config("edge-there", &payload(1, 2, "")).unwrap();
    other.cluster.assign(NODE, &Source::Pinned { name: "edge-there".into(), uid: uid.clone() }).unwrap();
    other.shows("its own config, active", |world| {
        world.condition(NODE, "ConfigOK").is_some_and(|(status, ..)| status == "True")
            && world.config(NODE).active.as_deref() == Some(&uid)
    });
    assert_eq!(setup.unclean_ends(), 0);
}

/// Twenty nodes follow a ConfigMap by its name and are moved to a new hub that has objects of the same names.
/// Half of them move while the old hub answers, so a request of theirs reaches the new hub first; half after
/// it is gone, so the first of their watches to be reopened does.
#[test]
fn fleet_on_a_rebuilt_hub_adopts_nothing_unasked() {
    const FOLLOWED: &str = "edge-common";
    let names: Vec<String> = (1..=20).map(|number| format!("edge-{number}")).collect();
    let follows = Source::Following { name: FOLLOWED.into() };
    let mut old = Setup::with_hub("fleet-old");
    for name in &names {
        old.cluster.add(name, plain()).unwrap().launch().unwrap();
    }
    let uid = old.cluster.create_config(FOLLOWED, &payload(1, 2, "maxPods: 11\n")).unwrap();
    let all = |setup: &Setup, awaited: &str, is_so: &dyn Fn(&World, &str) -> bool| {
        setup.shows(awaited, |world| names.iter().all(|name| is_so(world, name)));
    };
    all(&old, "twenty Nodes", &|world, name| world.node(name).is_some());
    for name in &names {
        old.cluster.assign(name, &follows).unwrap();
    }
    all(&old, "twenty promotions", &|world, name| {
        world.config(name).last_known_good.as_deref() == Some(&uid)
    });

    let new = Setup::with_hub("fleet-new");
    let other = new.cluster.create_config(FOLLOWED, &payload(1, 2, "maxPods: 12\n")).unwrap();
    let (early, late) = names.split_at(names.len() / 2);
    let moved = |old: &Setup, names: &[String]| {
        for name in names {
            let kubeconfig = new.cluster.hub().node_kubeconfig(name).unwrap();
            old.cluster.agent(name).replace_kubeconfig(&kubeconfig).unwrap();
        }
    };
    moved(&old, early);
    old.cluster.hub_mut().kill();
    moved(&old, late);
    // two renewals at least: the new hub has answered with its own Node, and every watch has shown what it
    // has
    all(
        &new,
        "all of them at the new hub, each with what it ran before and the word that nothing assigns it",
        &|world, name| {
            world.renewal_count(name) > 2
                && world
                    .condition(name, "ConfigOK")
                    .is_some_and(|(status, message, _)| status == "Unknown" && message.contains(&uid))
                && world.config(name).active.as_deref() == Some(&uid)
        },
    );
    let ends = |name: &str| old.cluster.agent(name).babysitter().state().ends.len();
    let adopted: Vec<&String> = names.iter().filter(|name| ends(name) > 1).collect();
    assert!(adopted.is_empty(), "adopted something unasked: {adopted:?}");

    // each node adopts the config that it is assigned, once
    for name in late {
        new.cluster.assign(name, &follows).unwrap();
    }
    new.shows("the new hub's object where it was assigned, and only there", |world| {
        let runs = |names: &[String], uid: &str| {
            names.iter().all(|name| world.config(name).active.as_deref() == Some(uid))
        };
        runs(late, &other) && runs(early, &uid)
    });
    for name in &names {
        assert_eq!(ends(name), if late.contains(name) { 2 } else { 1 }, "{name}");
    }
}
