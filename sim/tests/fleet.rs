//! Several nodes on one hub.
//!
//! Owns the properties that need more than one node: each node decides for itself. Leaves one node's rules to
//! `rows`.

use kedge_core::{Event, Phase};
use kedge_sim::containers::Containers;
use kedge_sim::hub::{Flavour, Hub};
use kedge_sim::situations::{A, B, TRIAL};
use kedge_sim::{Node, World, map_event, node_event, payload};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];

/// Assigns this ConfigMap to these nodes, whatever it contains.
fn assign_to(world: &mut World, names: &[&str], config: &str) {
    for name in names {
        world.hub.assign_to(name, Hub::following(config));
    }
}

/// Nodes whose last-known-good is `A`.
fn known_good_fleet(names: &[&str]) -> World {
    let mut world = World::fleet(Flavour::Kedge, names);
    world.hub.push("fleet", &payload(A, ""));
    assign_to(&mut world, names, "fleet");
    world.supervise_for(2 * TRIAL);
    for node in &world.nodes {
        assert_eq!((state(node), node.used()), ("known-good", A), "{}", node.name);
    }
    world
}

fn state(node: &Node) -> &'static str {
    node.report().config.state
}

fn config_ok(world: &World, name: &str) -> String {
    let condition = world.hub.condition_of(name, "ConfigOK").expect("it was reported");
    condition["status"].as_str().expect("a text").to_owned()
}

#[test]
fn each_node_rolls_back_a_bad_config_on_its_own() {
    let mut world = known_good_fleet(&NAMES);
    world.nodes[1].link = false;
    world.hub.push("fleet", "maxPods: [");
    world.supervise_for(2 * MINUTE);

    for at in [0, 2] {
        let node = &world.nodes[at];
        assert_eq!((state(node), node.used()), ("fallback", A), "{}", node.name);
        assert_eq!(config_ok(&world, NAMES[at]), "False");
        assert_eq!(node.bad_configs().as_object().map(|bad| bad.len()), Some(1), "{}", node.name);
    }
    let unreached = &world.nodes[1];
    assert_eq!((state(unreached), unreached.used(), unreached.starts), ("known-good", A, 2));
    assert_eq!(config_ok(&world, NAMES[1]), "True");

    world.nodes[1].link = true;
    world.supervise_for(10 * MINUTE);
    assert_eq!((state(&world.nodes[1]), world.nodes[1].used()), ("fallback", A));

    world.hub.push("fleet", &payload(B, ""));
    world.supervise_for(2 * TRIAL);
    for node in &world.nodes {
        assert_eq!((state(node), node.used()), ("known-good", B), "{}", node.name);
        assert_eq!(config_ok(&world, &node.name), "True");
    }
}

#[test]
fn power_cut_of_one_node_leaves_the_others_alone() {
    let mut world = known_good_fleet(&NAMES);
    let starts: Vec<u64> = world.nodes.iter().map(|node| node.starts).collect();
    world.nodes[2].power_cut();
    world.supervise_for(MINUTE);
    let after: Vec<u64> = world.nodes.iter().map(|node| node.starts).collect();
    assert_eq!(after, [starts[0], starts[1], starts[2] + 1]);
    assert!(world.nodes.iter().all(|node| (state(node), node.used()) == ("known-good", A)));
}

/// Both obey the one Node and renew the one Lease; neither restarts because of the other.
#[test]
fn two_nodes_with_one_name_both_take_its_config() {
    let mut world = World::fleet(Flavour::Kedge, &["edge-1", "edge-1"]);
    world.hub.push("one", &payload(A, ""));
    world.hub.assign(Hub::following("one"));
    world.supervise_for(2 * TRIAL);
    let renewals = world.hub.renewals;
    world.supervise_for(10 * MINUTE);
    assert!(world.hub.renewals >= renewals + 2 * 50, "{}", world.hub.renewals - renewals);
    for node in &world.nodes {
        assert_eq!((state(node), node.used(), node.starts), ("known-good", A, 2));
    }
    assert_eq!(config_ok(&world, "edge-1"), "True");
}

/// Moves the node to another server: it hears of its Node first, then of a ConfigMap, or the other way round,
/// as if that stream were faster.
fn move_to(node: &mut Node, hub: &Hub, is_map_first: bool) {
    node.change_server();
    let there = hub.node_named(&node.name).expect("it was made");
    let map = hub.config_map("fleet").expect("it was pushed");
    let mut heard = [node_event(&there), map_event("default", "fleet", map)];
    if is_map_first {
        heard.reverse();
    }
    for event in heard {
        let server = node.process.as_ref().expect("it runs").node.server();
        node.handle(Event::Heard { server, event: Box::new(event) });
    }
}

/// A hub with other objects of the same names: every UID is new.
fn rebuilt(names: &[&str], is_higher: bool) -> Hub {
    let mut hub = Hub::new(Flavour::Kedge);
    match is_higher {
        true => hub.wiped(1_000_000),
        // it assigns UIDs from a counter, too: these objects use up those that the old hub assigned to its
        // Nodes and its ConfigMap
        false => names.iter().chain(&["fleet"]).for_each(|name| drop(hub.push(&format!("of-{name}"), ""))),
    }
    for name in names {
        hub.create_node(name);
    }
    hub.push("fleet", &payload(B, ""));
    hub
}

/// The hub was rebuilt from another backup: its Nodes and its ConfigMap have the same names as before, and
/// nobody has assigned anything yet. Whether its versions are lower or higher than those of the old one makes
/// no difference.
#[test]
fn fleet_moved_to_a_rebuilt_hub_adopts_nothing_unasked() {
    let names: Vec<String> = (1..=20).map(|number| format!("edge-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for is_higher in [false, true] {
        let mut world = known_good_fleet(&names);
        let starts: Vec<u64> = world.nodes.iter().map(|node| node.starts).collect();
        let before = world.hub.counter();
        world.hub = rebuilt(&names, is_higher);
        assert_eq!(world.hub.counter() > before, is_higher);
        for (at, node) in world.nodes.iter_mut().enumerate() {
            move_to(node, &world.hub, at % 2 == 0);
        }
        world.supervise_for(10 * MINUTE);
        for (node, starts) in world.nodes.iter().zip(&starts) {
            assert_eq!((node.used(), node.starts), (A, *starts), "{} took what nobody assigned", node.name);
            assert_eq!(config_ok(&world, &node.name), "Unknown", "{}", node.name);
        }
        // for either order some nodes get an assignment, and only those adopt it
        let (asked, others) = names.split_at(names.len() / 2);
        assign_to(&mut world, asked, "fleet");
        world.supervise_for(2 * TRIAL);
        for (node, starts) in world.nodes.iter().zip(&starts) {
            let expected = if others.contains(&&*node.name) { (A, *starts) } else { (B, starts + 1) };
            assert_eq!((node.used(), node.starts), expected, "{}", node.name);
        }
    }
}

/// A node like the first one, with its name and its credential, as after copying an image or a virtual
/// machine.
fn with_a_twin() -> World {
    let mut world = World::fleet(Flavour::Kedge, &NAMES[..1]);
    let mut twin = Node::new(NAMES[0], 2);
    twin.facts.machine_id = "another".into();
    world.nodes.push(twin);
    // one node's acts alone do not explain its requests any more, so they are not checked
    world.nodes.iter_mut().for_each(|node| node.checked = false);
    world
}

#[test]
fn two_devices_of_one_name_write_little() {
    let written = |mut world: World| {
        world.supervise_for(24 * 60 * MINUTE);
        let patches = &world.hub.status_patches;
        let bytes: usize = patches.iter().map(|patch| patch.to_string().len()).sum();
        (patches.len() * 100, bytes * 100, world)
    };
    let (alone, bytes_alone, _) = written(World::fleet(Flavour::Kedge, &NAMES[..1]));
    let (both, bytes_of_both, world) = written(with_a_twin());
    assert!(both <= alone / 100 * 105, "{both} statuses in a hundred days, alone {alone}");
    assert!(bytes_of_both <= bytes_alone / 100 * 105, "{bytes_of_both} bytes, alone {bytes_alone}");
    for (node, other) in world.nodes.iter().zip(["another", "5f3c"]) {
        let known = node.report().another_machine.expect("it reports all the time");
        assert_eq!(known.machine_id.as_deref(), Some(other));
    }
    let renewals = world.hub.renewals;
    assert!(renewals >= 2 * 8_300, "each renews its Lease as always: {renewals}");
}

#[test]
fn controller_that_fights_with_a_node_is_answered_at_a_pace() {
    let mut world = World::fleet(Flavour::Kedge, &NAMES[..1]);
    world.nodes[0].labels.insert("site".into(), "hq".into());
    world.supervise_for(MINUTE);
    let (before, mut labels) = (world.hub.status_patches.len(), 0);
    for _ in 0..(60 * 12) {
        world.hub.edit_node(|node| {
            let mut conditions = node["status"]["conditions"].as_array_mut().into_iter().flatten();
            let found = conditions.find(|condition| condition["type"] == "DiskPressure");
            if let Some(condition) = found {
                condition["status"] = "Unknown".into();
            }
            let own = node["metadata"]["labels"].as_object_mut().and_then(|labels| labels.remove("site"));
            labels += u32::from(own.is_some());
        });
        world.supervise_for(Duration::from_secs(5));
    }
    let statuses = world.hub.status_patches.len() - before;
    // after 10, 20, 40, 80, 160 s, and every 5 minutes afterwards
    assert!((10..=30).contains(&statuses), "{statuses} statuses in an hour");
    assert!((10..=25).contains(&labels), "the label came back {labels} times in an hour");
}

/// The servers of a configuration are tried like everything else in it.
#[test]
fn servers_without_contact_are_rolled_back() {
    let mut world = known_good_fleet(&NAMES[..1]);
    world.hub.push("fleet", &payload(B, "kedge: {servers: ['https://nowhere:6443']}"));
    let mut was_tried = false;
    for _ in 0..3600 {
        let process = world.nodes[0].process.as_ref();
        let effective = process.and_then(|process| process.node.effective());
        let is_nowhere = effective.is_some_and(|effective| !effective.config.servers.is_empty());
        was_tried |= is_nowhere;
        world.nodes[0].link = !is_nowhere;
        world.supervise_for(Duration::from_secs(1));
        if was_tried && state(&world.nodes[0]) == "fallback" {
            break;
        }
    }
    world.nodes[0].link = true;
    world.supervise_for(MINUTE);
    assert!(was_tried);
    assert_eq!((state(&world.nodes[0]), world.nodes[0].used()), ("fallback", A));
    assert_eq!(config_ok(&world, NAMES[0]), "False");
}

/// A node with a pod that runs, and a configuration.
fn with_a_pod() -> World {
    let mut world = known_good_fleet(&NAMES[..1]);
    let containers = Containers::new(7);
    world.nodes[0].power_cut();
    world.nodes[0].containers = Some(containers);
    let uid = world.hub.create_pod(NAMES[0], "a", "app:1");
    world.supervise_for(5 * MINUTE);
    assert!(world.nodes[0].containers.as_ref().is_some_and(|containers| containers.runs(&uid)));
    world
}

/// Asks the node to end for good, by the UID of the Node that it has or another.
fn decommission(world: &mut World, uid: Option<&str>) {
    let uid = uid.map_or_else(|| world.hub.node_uid(), str::to_owned);
    world.hub.edit_node(|node| {
        node["metadata"]["annotations"][kedge_api::DECOMMISSION_ANNOTATION] = uid.into();
    });
}

fn has_pods(node: &Node) -> bool {
    node.containers
        .as_ref()
        .is_some_and(|containers| !containers.left().0.is_empty() || !containers.left().1.is_empty())
}

/// A power cut after any of the agent's orders leads to the same end: no pod, state removed before the
/// report, the identity after it.
#[test]
fn decommissioned_node_ends_whatever_is_cut() {
    let mut hit = Vec::new();
    for cut in 0..40 {
        let mut world = with_a_pod();
        decommission(&mut world, None);
        for _ in 0..cut {
            let World { hub, nodes, .. } = &mut world;
            if !nodes[0].turn(hub) {
                if nodes[0].exited() {
                    nodes[0].supervise();
                } else {
                    world.run_for(Duration::from_secs(1));
                }
            }
        }
        let phase = world.nodes[0].decommission.as_ref().map(|record| record.phase);
        hit.extend(phase);
        world.nodes[0].power_cut();
        world.supervise_for(30 * MINUTE);
        let node = &world.nodes[0];
        let phase = node.decommission.as_ref().map(|record| record.phase);
        assert_eq!(phase, Some(Phase::Leaving), "cut after {cut} orders");
        assert!(!has_pods(node) && node.removals >= 1, "cut after {cut} orders");
        assert_eq!(world.hub.condition("Decommissioned").expect("reported")["status"], "True");
    }
    for phase in [Phase::Ending, Phase::Removing, Phase::Reporting, Phase::Leaving] {
        assert!(hit.contains(&phase), "no cut hit {phase:?}");
    }
}

#[test]
fn another_nodes_uid_decommissions_nothing() {
    let mut world = with_a_pod();
    for uid in ["another", "", ",wipe"] {
        decommission(&mut world, Some(uid));
        world.supervise_for(5 * MINUTE);
        assert!(world.nodes[0].decommission.is_none() && has_pods(&world.nodes[0]), "{uid:?}");
        assert!(world.hub.condition("Decommissioned").is_none());
    }
}

/// Without the server nothing is reported, and the identity stays for that. A pod that is bound meanwhile
/// does not begin.
#[test]
fn decommissioned_node_keeps_its_identity_until_it_was_heard() {
    let mut world = with_a_pod();
    decommission(&mut world, None);
    world.hub.create_pod(NAMES[0], "b", "app:1");
    let phase = |world: &World| world.nodes[0].decommission.as_ref().map(|record| record.phase);
    for _ in 0..200 {
        if phase(&world).is_some() {
            break;
        }
        world.run_for(Duration::from_secs(1));
    }
    world.nodes[0].link = false;
    world.supervise_for(60 * MINUTE);
    assert_eq!(phase(&world), Some(Phase::Reporting));
    assert!(!has_pods(&world.nodes[0]));
    world.nodes[0].link = true;
    world.supervise_for(10 * MINUTE);
    assert_eq!(phase(&world), Some(Phase::Leaving));
    let renewals = world.hub.renewals;
    world.hub.delete_node();
    world.supervise_for(10 * MINUTE);
    assert!(world.hub.node().is_none(), "it does not make its Node again");
    assert!(world.hub.renewals <= renewals + 2);
}
