//! Valid but unusual configurations: extreme values and spellings. They are accepted, and the node stays in
//! contact.
//!
//! Always holds: the node renews its Lease as often as its configuration requires, and adopts a correct
//! configuration that is pushed afterwards.

use crate::MINUTE;
use crate::Operator;
use kedge_sim::{HEADER, World};

#[track_caller]
fn check(what: &str, text: &str) {
    let mut world = World::new();
    world.start();
    world.hub.push("odd", text);
    world.hub.assign(world.hub.pinned("odd"));
    world.settle(what);
    let seen = world.seen(what);
    assert_eq!((seen.status.as_str(), seen.error.as_str()), ("True", ""), "{what}: {seen:?}");
    let (renewals, starts) = (world.hub.renewals, world.starts);
    world.run_for(15 * MINUTE);
    assert_eq!(world.starts, starts, "{what}: restarted");
    // a renewal each quarter of the lease duration, randomly delayed by up to a twenty-fifth
    let lease = world.hub.lease().expect("renewed");
    let expect = 4 * 15 * 60 / lease["spec"]["leaseDurationSeconds"].as_u64().expect("seconds");
    let renewed = world.hub.renewals - renewals;
    assert!(
        renewed >= expect * 9 / 10,
        "{what}: {renewed} renewals in a quarter of an hour, expected {expect}"
    );
    world.crash();
    world.start();
    world.settle(what);
    world.check_mends(what);
}

fn check_fields(what: &str, fields: &str) {
    check(what, &format!("{HEADER}{fields}\n"));
}

#[test]
fn extreme_values_lose_no_node() {
    check_fields("the shortest lease", "nodeLeaseDurationSeconds: 4");
    check_fields("the longest lease", "nodeLeaseDurationSeconds: 160");
    check_fields("status every second", "nodeStatusUpdateFrequency: 1s");
    check_fields("status every five minutes", "nodeStatusUpdateFrequency: 5m");
    check_fields("reports every five minutes", "nodeStatusReportFrequency: 5m");
    check_fields("reports every ten seconds", "nodeStatusReportFrequency: 10s");
    check_fields(
        "zeros that stand for defaults",
        "nodeStatusUpdateFrequency: 0s\nnodeStatusReportFrequency: 0s\nnodeLeaseDurationSeconds: 0",
    );
    check_fields("a trial of a week", "configTrialDuration: 168h");
    check_fields("no trial", "configTrialDuration: 0s\ncrashLoopThreshold: 0");
    check_fields("room for no pods", "maxPods: 0");
    check_fields(
        "more reserved than there is",
        "systemReserved: {memory: 99999999999999999999Ei, cpu: \"9999\"}",
    );
    check_fields(
        "thresholds of half of what there is",
        "evictionHard: {memory.available: 50%, nodefs.available: 50%}",
    );
    check_fields("pressure for a day", "evictionPressureTransitionPeriod: 24h");
    check_fields("not to be registered", "registerNode: false");
    check_fields("no health port", "healthzPort: 0");
    check_fields("the loudest log", "logging: {verbosity: 10}");
}

#[test]
fn unusual_spellings_are_read() {
    check(
        "JSON in one line",
        r#"{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1"}"#,
    );
    check("carriage returns", &format!("{HEADER}maxPods: 20\n").replace('\n', "\r\n"));
    check("a byte order mark", &format!("\u{feff}{HEADER}maxPods: 20\n"));
    check("markers of a document", &format!("%YAML 1.2\n---\n{HEADER}maxPods: 20\n...\n"));
    check("no line end at the end", &format!("{HEADER}maxPods: 20"));
    check_fields("an octal number", "maxPods: 0144");
    check_fields("a boolean of old", "registerNode: on");
    check_fields(
        "everything removed",
        "maxPods: null\nlogging: ~\nsystemReserved:\nregisterWithTaints: null",
    );
    check_fields("an alias used well", "systemReserved: &r {memory: 100Mi}\nkubeReserved: *r");
}
