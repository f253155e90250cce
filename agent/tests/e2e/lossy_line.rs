//! A line of 600 ms (there and back) that loses every fifth packet in each direction: renewals arrive under
//! every allowed setting of the heartbeats, from the same process. Prints the bytes that each setting costs.
//!
//! The packets are real, and so are TCP's retransmissions: see [`kedge_rig::lossy_line`]. Needs root.

use std::time::{Duration, Instant};

use kedge_core::kubelet::schema;
use kedge_rig::cluster::{Cluster, HEADER};
use kedge_rig::lossy_line::{self, LossyLine, Quality, Traffic};
use kedge_rig::power_cut::print_past_test_runner;

use crate::setup::{Setup, is_root, plain};

const QUALITY: Quality = Quality { delay: Duration::from_millis(300), loss_percent: 20 };

/// The settings that decide the traffic of an idle node.
const HEARTBEATS: [&str; 3] =
    ["nodeLeaseDurationSeconds", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency"];

/// The settings of the nodes by their names, and the renewals that are awaited of each: the slowest makes one
/// in 40 s.
fn cases() -> [(&'static str, String, usize); 3] {
    let with = |pick: fn(&schema::Field) -> String| {
        let fields = schema::leaves().into_iter().map(|(_, field)| field);
        let wanted = fields.filter(|field| HEARTBEATS.contains(&field.name));
        wanted.map(|field| format!("{}: {}\n", field.name, pick(field))).collect::<String>()
    };
    // "4 to 160: a reason"
    let lowest = |field: &schema::Field| bounds(field).0;
    let highest = |field: &schema::Field| bounds(field).1;
    let default = |field: &schema::Field| field.default.value().expect("each has one").to_string();
    [("lowest", with(lowest), 20), ("default", with(default), 4), ("highest", with(highest), 2)]
}

fn bounds(field: &schema::Field) -> (String, String) {
    let text = field.bounds();
    let (low, rest) = text.split_once(" to ").unwrap_or_else(|| panic!("{} has no bounds", field.name));
    let (high, _) = rest.split_once(": ").expect("bounds have a reason");
    (low.to_owned(), high.to_owned())
}

/// This many lines; `None` where networks cannot be made, which is acceptable only without root.
fn lines(count: u8, quality: Quality) -> Option<Vec<LossyLine>> {
    let open = |line| LossyLine::open(line, quality);
    let made = lossy_line::own_network().and_then(|()| (1..=count).map(open).collect());
    match made {
        Ok(lines) => Some(lines),
        Err(error) => {
            let must = std::env::var("CI").as_deref() == Ok("true") && is_root();
            assert!(!must, "no line can be made: {error}");
            print_past_test_runner(&format!("SKIPPED: a lossy line needs root, ip and socat: {error}"));
            None
        }
    }
}

fn renewals(setup: &Setup, node: &str) -> usize {
    setup.cluster.view().look(|world| world.renewal_count(node))
}

#[test]
fn lossy_line_keeps_renewals_under_every_setting() {
    let Some(lines) = lines(3, QUALITY) else { return };
    let cases = cases();
    let mut cluster = Cluster::start_at("lossy-line", lossy_line::HUB.into()).unwrap();
    for ((node, fields, _), line) in cases.iter().zip(&lines) {
        let agent = cluster.add(node, plain()).unwrap();
        // later by name than the rig's own drop-in, so that it wins
        agent.write_drop_in("20-heartbeats.conf", &format!("{HEADER}{fields}")).unwrap();
        line.at_node(|| agent.start()).unwrap();
    }
    let setup = Setup { cluster };
    for (node, ..) in &cases {
        setup.shows(&format!("{node} Ready, with a Lease"), |world| {
            world.condition(node, "Ready").is_some_and(|(status, ..)| status == "True")
                && world.renewal_count(node) > 0
        });
    }
    let since = Instant::now();
    let count =
        |(node, ..): &(&str, String, usize), line: &LossyLine| (renewals(&setup, node), line.traffic());
    let before: Vec<(usize, Traffic)> =
        cases.iter().zip(&lines).map(|(case, line)| count(case, line)).collect();
    for ((node, _, awaited), (seen, _)) in cases.iter().zip(&before) {
        setup.shows(&format!("{awaited} more renewals of {node}"), |world| {
            world.renewal_count(node) >= seen + awaited
        });
    }
    for ((case, line), (seen, to_ready)) in cases.iter().zip(&lines).zip(&before) {
        let node = case.0;
        let ends = setup.cluster.agent(node).babysitter().state().ends;
        assert!(ends.is_empty(), "{node} ended: {ends:?}\n{}", setup.cluster.agent(node).log_text());
        let (renewed, now) = count(case, line);
        assert!(now.lost > 0, "the line of {node} lost none of {} packets", now.packets);
        let per_hour = |count: f64| count / since.elapsed().as_secs_f64() * 3600.0;
        print_past_test_runner(&format!(
            "600 ms, 20 % loss, {node} settings: {} connections and {} bytes until Ready; \
             then {:.0} renewals, {:.0} connections and {:.0} bytes per hour",
            to_ready.connections,
            to_ready.bytes,
            per_hour((renewed - seen) as f64),
            per_hour((now.connections - to_ready.connections) as f64),
            per_hour((now.bytes - to_ready.bytes) as f64),
        ));
    }
    // the nodes end before their lines do
    drop(setup);
}

/// The node dials, TLS begins, the call is taken, and the roles turn: each costs a round trip, and none more
/// than that.
#[test]
fn call_on_a_long_line_takes_six_round_trips_at_most() {
    // long enough that a busy machine's own delays are small beside it
    let quality = Quality { delay: Duration::from_millis(300), loss_percent: 0 };
    let round_trip = quality.delay * 2;
    let Some(lines) = lines(1, quality) else { return };
    let mut cluster = Cluster::start_at("long-line", lossy_line::HUB.into()).unwrap();
    let agent = cluster.add("edge-1", plain()).unwrap();
    lines[0].at_node(|| agent.start()).unwrap();
    let setup = Setup { cluster };
    setup.shows("a node with a Lease", |world| world.renewal_count("edge-1") > 0);
    let kubectl = setup.cluster.kubectl();
    let took = |path: &str| {
        let begun = Instant::now();
        kubectl.run(&["get", "--raw", path]).unwrap();
        begun.elapsed()
    };
    let best = |path: &str| (0..5).map(|_| took(path)).min().unwrap();
    // the first call may come before the node watches, and then waits for its next renewal
    let (call, own) = (best("/api/v1/nodes/edge-1/proxy/healthz"), best("/healthz"));
    print_past_test_runner(&format!(
        "a call on a line of {round_trip:?} there and back: {call:?}, of which kubectl's own {own:?}"
    ));
    assert!(call.saturating_sub(own) <= round_trip * 6, "{call:?}, of which kubectl's own {own:?}");
}
