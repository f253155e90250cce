//! Several nodes on one hub.
//!
//! Owns what only shows with more than one: that each node decides for itself. Leaves one node's rules to `rows`.

use kedge_sim::hub::{Flavour, Hub};
use kedge_sim::situations::{A, B, TRIAL};
use kedge_sim::{Node, World, payload};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];

/// Every node asks for this ConfigMap, whatever it holds.
fn assign_to_all(world: &mut World, config: &str) {
    for name in NAMES {
        world.hub.assign_to(name, Hub::following(config));
    }
}

/// Three nodes whose last-known-good is `A`.
fn known_good_fleet() -> World {
    let mut world = World::fleet(Flavour::Kedge, &NAMES);
    world.hub.push("fleet", &payload(A, ""));
    assign_to_all(&mut world, "fleet");
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
    let mut world = known_good_fleet();
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
    let mut world = known_good_fleet();
    let starts: Vec<u64> = world.nodes.iter().map(|node| node.starts).collect();
    world.nodes[2].power_cut();
    world.supervise_for(MINUTE);
    let after: Vec<u64> = world.nodes.iter().map(|node| node.starts).collect();
    assert_eq!(after, [starts[0], starts[1], starts[2] + 1]);
    assert!(world.nodes.iter().all(|node| (state(node), node.used()) == ("known-good", A)));
}

/// Both obey the one Node and renew the one Lease; neither restarts for the other's sake.
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
