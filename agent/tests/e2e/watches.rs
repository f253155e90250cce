//! What a node learns from the answers to its renewals: that a watch delivers no more events, and, without
//! watches, each change. Watches that show everything are left alone.

use kedge_rig::link::Link;

use crate::setup::{NODE, PATIENCE, Setup, payload, plain};

/// A node behind a link, with this drop-in.
fn behind_link(purpose: &str, drop_in: &str) -> (Setup, Link) {
    let mut setup = Setup::with_hub(purpose);
    let hub = setup.cluster.hub().address().to_owned();
    let link = Link::start(hub.parse().unwrap()).unwrap();
    let kubeconfig = setup.cluster.hub().node_kubeconfig(NODE).unwrap();
    let agent = setup.cluster.add(NODE, plain()).unwrap();
    agent.replace_kubeconfig(&kubeconfig.replace(&hub, &link.address().to_string())).unwrap();
    agent.write_drop_in("20-test.conf", drop_in).unwrap();
    agent.start().unwrap();
    setup.shows("a Ready node", |world| {
        world.condition(NODE, "Ready").is_some_and(|(status, ..)| status == "True")
    });
    waits_for_renewals(&setup, 1);
    (setup, link)
}

#[track_caller]
fn waits_for_renewals(setup: &Setup, more: usize) {
    let seen = setup.cluster.view().look(|world| world.renewal_count(NODE));
    setup.shows("renewals", |world| world.renewal_count(NODE) >= seen + more);
}

#[test]
fn push_past_a_deaf_watch_is_adopted() {
    let (setup, link) = behind_link("deaf", kedge_rig::cluster::HEADER);
    // the watches never see the change; the renewals recover on another connection
    link.forget();
    let uid = setup.pin("edge-next", &payload(1, 2, ""));
    setup.runs(&uid);
    let log = setup.agent().log_text();
    let anew = "watch-node: it has not shown a change that the API server named, listing anew";
    assert!(log.contains(anew), "{log}");
    assert_eq!(setup.unclean_ends(), 0);
}

#[test]
fn node_without_watches_keeps_one_connection_and_is_pushed_to() {
    let off = format!("{}kedge: {{watch: off}}\n", kedge_rig::cluster::HEADER);
    let (setup, link) = behind_link("one-connection", &off);
    let rests = |awaited: &str| {
        let is_one = kedge_rig::scratch::poll(PATIENCE, || (link.open() == 1).then_some(()));
        assert!(is_one.is_some(), "{awaited}: {} connections\n{}", link.open(), setup.agent().log_text());
    };
    rests("after the start");
    let uid = setup.pin("edge-next", &payload(1, 2, ""));
    setup.runs(&uid);
    setup.promotes(&uid);
    rests("with a config assigned");
    waits_for_renewals(&setup, 2);
    rests("after renewals");
    let watches = &setup.agent().kedge_json(&["status"]).unwrap()["server"]["watches"];
    assert_eq!(watches, &serde_json::json!([]), "none was ever opened");
    assert_eq!(setup.unclean_ends(), 0);
}

/// How often the node has asked for ConfigMaps: once for each list, once for each watch.
fn asked_for_config_maps(setup: &Setup) -> usize {
    let log = std::fs::read_to_string(setup.cluster.hub().log()).unwrap();
    log.lines().filter(|line| line.ends_with("GET /api/v1/namespaces/default/configmaps 200")).count()
}

#[test]
fn stop_of_the_hub_and_a_bound_pod_lead_to_no_list() {
    let mut setup = Setup::with_telling_hub("no-lists");
    let agent = setup.cluster.add(NODE, plain()).unwrap();
    agent
        .write_drop_in(
            "20-test.conf",
            &format!("{}nodeLeaseDurationSeconds: 4\n", kedge_rig::cluster::HEADER),
        )
        .unwrap();
    agent.start().unwrap();
    let uid = setup.pin("edge-good", &payload(1, 2, ""));
    setup.runs(&uid);
    setup.promotes(&uid);
    waits_for_renewals(&setup, 2);
    let before = asked_for_config_maps(&setup);
    setup.cluster.hub_mut().stop().unwrap();
    setup.cluster.hub_mut().start_again().unwrap();
    waits_for_renewals(&setup, 3);
    let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "edge-1", "containers": [{"name": "c", "image": "i"}]}}"#;
    setup.cluster.kubectl().feed(&["create", "-f", "-"], pod).unwrap();
    // a second each: a watch that had missed the pod's change would count as deaf after five
    waits_for_renewals(&setup, 8);
    let log = setup.agent().log_text();
    assert!(!log.contains("listing anew"), "{log}");
    assert_eq!(asked_for_config_maps(&setup) - before, 1, "the watch that goes on\n{log}");
    assert_eq!(setup.unclean_ends(), 0);
}
