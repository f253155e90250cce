//! Nodes that join by a token and renew their certificates, on one hub.
//!
//! Owns the cases that need time and a server: no Lease is late because of a renewal, whatever is cut off.
//! Leaves to others: the table of steps (`core/identity/plan.rs`), the files (`agent/src/identity`).

use kedge_platform::fake::Random;
use kedge_sim::credential::Credential;
use kedge_sim::hub::Flavour;
use kedge_sim::{Node, World};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: u64 = 86_400;
const EIGHTEEN_MONTHS: Duration = Duration::from_secs(548 * DAY);
/// A Lease is renewed each 10 s, and jitter.
const LATE_SECS: u64 = 11;

fn fleet(count: u64, life: u64) -> World {
    let names: Vec<String> = (1..=count).map(|number| format!("edge-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::fleet(Flavour::Kedge, &names);
    for (node, seed) in world.nodes.iter_mut().zip(1..) {
        node.credential = Some(Credential::joining(seed, life));
    }
    world
}

fn credential(node: &Node) -> &Credential {
    node.credential.as_ref().expect("it has one")
}

fn state(node: &Node) -> &'static str {
    node.report().identity.expect("it is kept").state
}

#[track_caller]
fn no_lease_is_late(world: &World) {
    for node in &world.nodes {
        let since = node.report().lease.seconds_since_renewal;
        assert!(since.is_some_and(|secs| secs <= LATE_SECS), "{}: {since:?}", node.name);
    }
}

#[test]
fn fleet_that_joined_in_one_hour_renews_without_a_late_lease() {
    let mut world = fleet(20, DAY);
    world.supervise_for(MINUTE);
    no_lease_is_late(&world);
    let mut per_hour = vec![0];
    let installed = |world: &World| world.nodes.iter().map(|node| credential(node).installed).sum::<u32>();
    for _ in 0..26 {
        let before = installed(&world);
        for _ in 0..12 {
            world.supervise_for(5 * MINUTE);
            no_lease_is_late(&world);
        }
        per_hour.push(installed(&world) - before);
    }
    assert!(world.nodes.iter().all(|node| credential(node).installed >= 2 && node.starts == 1));
    // a day's life: within five hours, and no hour has most of them
    let most = per_hour.iter().max().expect("hours");
    assert!(*most <= 8 && per_hour.iter().filter(|count| **count > 0).count() >= 4, "{per_hour:?}");
    assert_eq!(per_hour.iter().sum::<u32>(), 20, "{per_hour:?}");
}

#[test]
fn power_cuts_within_a_join_and_renewals_lose_no_identity() {
    for seed in 0..40 {
        let (mut world, mut random) = (fleet(1, DAY), Random::new(seed));
        world.nodes[0].link = true;
        for _ in 0..200 {
            world.supervise_for(Duration::from_secs(random.below(900)));
            // a cut after some step of a turn
            for _ in 0..random.below(12) {
                let World { hub, nodes, .. } = &mut world;
                nodes[0].turn(hub);
            }
            world.nodes[0].link = !random.percent(20);
            world.nodes[0].power_cut();
            world.advance(Duration::from_secs(random.below(60)));
        }
        world.nodes[0].link = true;
        world.supervise_for(30 * MINUTE);
        no_lease_is_late(&world);
        let files = &credential(&world.nodes[0]).files;
        assert!(
            files.current.is_some() && files.next.is_none() && files.kept.len() <= 2,
            "{seed}: {files:?}"
        );
    }
}

#[test]
fn node_that_is_away_beyond_its_end_returns_with_its_key() {
    for cut in 0..12 {
        let mut world = fleet(1, DAY);
        world.supervise_for(MINUTE);
        let joined = credential(&world.nodes[0]).files.current.clone().expect("it joined");
        // its renewal is under way when the line goes
        world.supervise_for(HOUR * 15);
        while credential(&world.nodes[0]).files.next.is_none() && credential(&world.nodes[0]).installed < 2 {
            world.supervise_for(Duration::from_secs(1));
        }
        for _ in 0..cut {
            let World { hub, nodes, .. } = &mut world;
            nodes[0].turn(hub);
        }
        world.nodes[0].link = false;
        world.supervise_for(3 * HOUR * 24);
        assert!(credential(&world.nodes[0]).is_refused(u64::MAX - 1));
        world.nodes[0].link = true;
        world.supervise_for(HOUR);
        no_lease_is_late(&world);
        let files = &credential(&world.nodes[0]).files;
        let current = files.current.as_ref().expect("there is one");
        assert!(current.number > joined.number && files.next.is_none(), "cut {cut}: {files:?}");
        assert_eq!(state(&world.nodes[0]), "valid", "cut {cut}");
    }
}

#[test]
fn request_that_nobody_approves_is_polled_and_harms_nothing() {
    let mut world = fleet(1, DAY);
    world.supervise_for(MINUTE);
    world.nodes[0].credential.as_mut().expect("it has one").approves = false;
    world.supervise_for(HOUR * 23);
    no_lease_is_late(&world);
    let report = world.nodes[0].report().identity.expect("it is kept");
    assert_eq!(report.state, "waiting");
    assert!(report.message.is_some_and(|message| message.contains("waits to be approved")));
    world.nodes[0].credential.as_mut().expect("it has one").approves = true;
    world.supervise_for(HOUR * 7);
    no_lease_is_late(&world);
    assert_eq!(state(&world.nodes[0]), "valid");
    assert_eq!(credential(&world.nodes[0]).installed, 2);
}

#[test]
fn board_whose_clock_stays_at_1970_renews_by_running_time() {
    let mut world = fleet(1, DAY);
    world.supervise_for(MINUTE);
    world.nodes[0].board.set_wall(0);
    // the power is cut each six hours: running time is written
    for _ in 0..8 {
        world.supervise_for(6 * HOUR);
        world.nodes[0].power_cut();
        world.nodes[0].board.set_wall(0);
    }
    world.supervise_for(MINUTE);
    assert!(credential(&world.nodes[0]).installed >= 2);
}

/// Out of its store after a year and a half, with a certificate of a year.
#[test]
fn node_that_was_off_for_18_months_returns_by_itself() {
    let mut world = fleet(1, 365 * DAY);
    world.supervise_for(MINUTE);
    let key = |world: &World| credential(&world.nodes[0]).files.current.as_ref().map(|own| own.key.clone());
    let before = key(&world);
    world.nodes[0].power_cut();
    world.advance(EIGHTEEN_MONTHS);
    world.supervise_for(5 * MINUTE);
    no_lease_is_late(&world);
    assert_eq!(key(&world), before, "another key needs a person");
    assert_eq!((state(&world.nodes[0]), credential(&world.nodes[0]).installed), ("valid", 2));
}

/// Only one of both clocks has moved on: the server's, or the node's.
#[test]
fn clock_of_one_that_is_18_months_ahead_costs_no_contact() {
    let ahead = i64::try_from(EIGHTEEN_MONTHS.as_secs()).expect("below");
    for is_server in [true, false] {
        let mut world = fleet(1, 365 * DAY);
        world.supervise_for(MINUTE);
        let node = &mut world.nodes[0];
        let moved = node.credential.as_mut().expect("it has one");
        moved.server_ahead = if is_server { ahead } else { -ahead };
        if !is_server {
            node.board.set_wall(node.board.wall_micros() + ahead * 1_000_000);
        }
        world.supervise_for(HOUR);
        for _ in 0..24 {
            world.supervise_for(HOUR);
            no_lease_is_late(&world);
        }
        let node = &world.nodes[0];
        // a server for which the certificate has ended gives the next one; a node whose own clock says so
        // goes by the time that it has run
        assert_eq!((state(node), credential(node).installed), ("valid", if is_server { 2 } else { 1 }));
        assert_eq!(node.starts, 1);
    }
}
