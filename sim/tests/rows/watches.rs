//! Watches that end, outages, and a change of the server: the time of the next round, log lines, and the
//! knowledge that the agent drops.

use crate::{A, B, HOUR, MINUTE, SECOND, payload};
use kedge_core::{Action, Answer, Event, Request, WatchEnd, WatchFailure, Watched};
use kedge_sim::hub::{Flavour, Hub};
use kedge_sim::{Seen, World, node_event};
use serde_json::json;
use std::time::Duration;

fn failed(failure: WatchFailure, why: &str) -> WatchEnd {
    WatchEnd { failure: Some((failure, why.to_owned())), ..WatchEnd::default() }
}

fn orders(world: &World, watched: Watched) -> usize {
    let is_one = |seen: &&Seen| match seen {
        Seen::Asked(Action::WatchNode(_)) => watched == Watched::Node,
        Seen::Asked(Action::WatchConfigMap { .. }) => watched == Watched::ConfigMap,
        _ => false,
    };
    world.seen.iter().filter(is_one).count()
}

fn warnings(world: &World) -> Vec<&String> {
    world.log.iter().filter(|line| line.starts_with("W ")).collect()
}

#[test]
fn watches_that_end_at_once_are_ordered_rarely() {
    for lived in [Duration::from_millis(5), 2 * SECOND] {
        let (mut world, _) = World::known_good();
        world.seen.clear();
        world.log.clear();
        let end = WatchEnd { lived, ..failed(WatchFailure::Answered, "etcdserver: no leader") };
        for _ in 0..3600 {
            for watched in [Watched::Node, Watched::ConfigMap] {
                world.end_watch(watched, end.clone());
            }
            world.run_for(SECOND);
        }
        for watched in [Watched::Node, Watched::ConfigMap] {
            let orders = orders(&world, watched);
            // every 30 s, randomly delayed by up to a quarter, after a few quick ones
            assert!((90..=130).contains(&orders), "{orders} of {watched:?} in an hour");
        }
        assert_eq!(
            warnings(&world),
            [
                "W watch-node: etcdserver: no leader; retrying",
                "W watch-configmap: etcdserver: no leader; retrying"
            ]
        );
    }
}

/// A node that lost the network for ten minutes, `lag` after the trial of its config, and whose watch of this
/// object last failed just before the network came back.
fn back_after_an_outage(lag: Duration, watched: Watched) -> World {
    let no_route = || failed(WatchFailure::Unreachable, "no route to host");
    let (mut world, _) = World::known_good();
    world.run_for(lag);
    world.link = false;
    for _ in 0..600 {
        world.end_watch(Watched::Node, no_route());
        world.end_watch(Watched::ConfigMap, no_route());
        world.run_for(SECOND);
    }
    // the current round, or the next, fails just before the network is back
    while !world.end_watch(watched, no_route()) {
        world.run_for(SECOND);
    }
    world.link = true;
    let renewals = world.hub.renewals;
    world.seen.clear();
    while world.hub.renewals == renewals {
        world.run_for(SECOND / 4);
    }
    world.run_for(4 * SECOND);
    world
}

#[test]
fn watches_go_on_once_the_network_is_back() {
    for seed in 0..8 {
        for watched in [Watched::Node, Watched::ConfigMap] {
            let world = back_after_an_outage(seed * SECOND, watched);
            assert!(orders(&world, watched) > 0, "{seed}: the node waits on to watch its {watched:?}");
        }
    }
}

/// The status that could not be sent waits for up to half a minute, but only until another request succeeds.
#[test]
fn failed_status_is_sent_once_the_network_is_back() {
    let is_status = |seen: &Seen| matches!(seen, Seen::Asked(Action::Request(Request::PatchStatus(_))));
    for seed in 0..8 {
        let world = back_after_an_outage(seed * SECOND, Watched::Node);
        assert!(world.seen.iter().any(is_status), "{seed}: the status waits on");
    }
}

#[test]
fn another_server_is_read_from_its_node_on() {
    let (mut world, _) = World::known_good();
    world.seen.clear();
    world.change_server();
    let asked: Vec<&Action> = world
        .seen
        .iter()
        .filter_map(|seen| match seen {
            Seen::Asked(action) if !matches!(action, Action::Log(..)) => Some(action),
            _ => None,
        })
        .collect();
    // no renewal, no status, no ConfigMap request: each would rely on the old server's objects
    let [Action::EndConfigMapWatch, Action::WatchNode(order), Action::Request(Request::Version)] = asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!(order.after, None, "the versions of one server mean nothing to another");
    let report = world.report();
    assert_eq!((report.registered, report.server_is_hub), (false, None));
    world.run_for(MINUTE);
    assert!(orders(&world, Watched::ConfigMap) > 0, "its Node names one");
}

#[test]
fn rebuilt_hub_with_same_names_changes_nothing_unasked() {
    for is_map_first in [true, false] {
        let (mut world, _) = World::known_good();
        world.run_for(MINUTE);
        world.hub = Hub::new(Flavour::Kedge);
        world.hub.wiped(1_000_000);
        world.hub.push("a", &payload(B, ""));
        world.change_server();
        if is_map_first {
            assert!(!world.do_watch_map(), "the ConfigMap of another server is not read before its Node");
        }
        world.run_for(HOUR);
        assert!(!world.exited(), "restarted for what nobody assigned");
        assert_eq!(world.used(), A);
        world.crash_and_start();
        assert_eq!(world.used(), A);
    }
}

#[test]
fn news_of_an_earlier_server_is_dropped() {
    let (mut world, _) = World::known_good();
    let node = world.hub.node().expect("there");
    let heard = |server, event| Event::Heard { server, event: Box::new(event) };
    world.change_server();
    world.handle(heard(0, node_event(&node)));
    world.handle(heard(
        0,
        Event::Answered(kedge_core::RequestKey::Version, Answer::Accepted(Some(json!({})))),
    ));
    let renewals = world.report().lease.renewals;
    world.handle(heard(0, Event::Renewed(Answer::Accepted(None))));
    let report = world.report();
    assert_eq!((report.registered, report.server_is_hub, report.lease.renewals), (false, None, renewals));
    world.handle(heard(1, node_event(&node)));
    assert!(world.report().registered);
}

#[test]
fn renewal_on_its_way_to_the_old_server_does_not_count() {
    let (mut world, _) = World::known_good();
    while world.process.as_ref().is_some_and(|process| process.renewal.is_none()) {
        world.advance(SECOND);
        world.handle(Event::Tick);
    }
    let renewals = world.report().lease.renewals;
    world.change_server();
    world.do_renewal(Some(Answer::Accepted(None)));
    assert_eq!(world.report().lease.renewals, renewals);
    world.run_for(MINUTE);
    assert!(world.report().lease.renewals > renewals, "the way is free again");
}

/// A change on the hub that the watches never show.
fn change_unshown(world: &mut World, change: impl FnOnce(&mut Hub)) {
    world.turn();
    change(&mut world.hub);
    world.lose_news();
}

/// Two periods of renewals, with their largest delay: the first renewal names the change, after the second
/// the watch counts as deaf.
const TWO_RENEWALS: Duration = Duration::from_millis(20_900);

fn assigns_b(hub: &mut Hub) {
    hub.push("b", &payload(B, ""));
    hub.assign(Hub::following("b"));
}

#[test]
fn deaf_watch_is_found_by_what_renewals_name() {
    let follow = |name: &str| {
        let mut world = World::known_good().0;
        world.hub.assign(Hub::following(name));
        world.run_for(MINUTE);
        world
    };
    for change in [assigns_b, |hub: &mut Hub| drop(hub.push("a", &payload(B, "")))] {
        let mut world = follow("a");
        change_unshown(&mut world, change);
        world.run_for(TWO_RENEWALS);
        assert!(world.exited(), "it does not adopt: {:#?}", world.log);
        let line = "listing anew";
        assert!(world.log.iter().any(|logged| logged.ends_with(line)), "{:#?}", world.log);
    }
    // a server that names no changes: only silence or other news, neither of which the simulation has, ends
    // the wait
    let mut world = World::with(Flavour::Kubernetes);
    world.start();
    world.run_for(MINUTE);
    world.seen.clear();
    change_unshown(&mut world, assigns_b);
    world.run_for(TWO_RENEWALS);
    assert!(!world.exited());
    assert_eq!(orders(&world, Watched::Node), 0);
}

#[test]
fn watches_that_hear_all_are_never_listed_again() {
    let (mut world, _) = World::known_good();
    world.hub.assign(Hub::following("a"));
    world.run_for(MINUTE);
    world.seen.clear();
    // changes for another node, and the node's own reports
    for _ in 0..60 {
        world.hub.push("unrelated", "x");
        world.run_for(MINUTE);
    }
    let listed = [Watched::Node, Watched::ConfigMap].map(|watched| orders(&world, watched));
    assert_eq!(listed, [0, 0]);
}

#[test]
fn change_that_one_watch_shows_leads_to_no_list_of_the_other() {
    let (mut world, _) = World::known_good();
    let push: fn(&mut Hub) = |hub| drop(hub.push("a", &payload(A, "")));
    let label: fn(&mut Hub) = |hub| hub.edit_node(|node| node["metadata"]["labels"]["site"] = json!("north"));
    // if pinned, the node has nothing to report; if not, it reports the version that it follows
    for (change, follows) in [(push, false), (label, false), (push, true), (label, true)] {
        if follows {
            world.hub.assign(Hub::following("a"));
        }
        world.run_for(MINUTE);
        let named = world.hub.desired(kedge_sim::NODE);
        world.seen.clear();
        world.log.clear();
        change(&mut world.hub);
        world.run_for(2 * TWO_RENEWALS);
        assert!(world.hub.desired(kedge_sim::NODE) > named, "it is named");
        let listed = [Watched::Node, Watched::ConfigMap].map(|watched| orders(&world, watched));
        assert_eq!(listed, [0, 0], "{:#?}", world.log);
        assert_eq!(world.log, Vec::<String>::new());
    }
}

fn frugal(flavour: Flavour) -> World {
    let mut world = World::with(flavour);
    world.base("kedge: {watch: off}");
    world.start();
    world.run_for(MINUTE);
    world.seen.clear();
    world
}

#[test]
fn without_watches_a_push_comes_with_the_next_renewal() {
    let mut world = frugal(Flavour::Kedge);
    world.run_for(HOUR / 2);
    assert_eq!(orders(&world, Watched::Node), 0, "nothing is named: nothing is read");
    assigns_b(&mut world.hub);
    world.run_for(TWO_RENEWALS / 2);
    assert!(world.exited(), "{:#?}", world.log);
    world.restart();
    world.run_for(MINUTE);
    assert_eq!(world.used(), B);
    // an edit of the object that it follows; then the assignment is removed
    world.hub.push("b", &payload(A, ""));
    world.run_for(TWO_RENEWALS / 2);
    world.restart();
    world.run_for(MINUTE);
    assert_eq!(world.used(), A);
    world.hub.assign(serde_json::Value::Null);
    world.run_for(TWO_RENEWALS / 2);
    assert!(world.exited(), "{:#?}", world.log);
}

#[test]
fn silent_server_without_watches_is_asked_each_five_minutes() {
    let mut world = frugal(Flavour::Kubernetes);
    world.run_for(HOUR);
    let read = orders(&world, Watched::Node);
    // every 300 s, randomly delayed by up to a quarter
    assert!((9..=12).contains(&read), "{read}");
    assigns_b(&mut world.hub);
    world.run_for(375 * SECOND);
    assert!(world.exited(), "{:#?}", world.log);
}

#[test]
fn without_watches_a_node_registers_and_settles() {
    let mut world = World::new();
    world.base("kedge: {watch: off}");
    world.hub = Hub::new(Flavour::Kedge);
    world.start();
    world.run_for(MINUTE);
    assert!(world.report().registered && world.report().lease.renewals > 3);
    let node = world.hub.node().expect("registered");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], kedge_sim::NODE);
    world.seen.clear();
    world.run_for(HOUR);
    let changes = |request: &Request| matches!(request, Request::PatchNode(_) | Request::Register(_));
    let sent = |seen: &&Seen| matches!(seen, Seen::Asked(Action::Request(request)) if changes(request));
    assert_eq!(world.seen.iter().filter(sent).count(), 0, "it knows what it changed");
    assert!(orders(&world, Watched::Node) <= 1, "{}", orders(&world, Watched::Node));
    // the node lifecycle controller marked it as lost during an outage
    world.link = false;
    world.run_for(2 * MINUTE);
    world.hub.mark_unknown();
    world.link = true;
    world.run_for(MINUTE);
    assert_eq!(world.hub.condition("Ready").expect("there")["status"], "True");
}
