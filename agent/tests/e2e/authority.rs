//! The hub's certificate authority is replaced while a node works.

use std::process::Command;

use kedge_rig::programs;
use kedge_rig::scratch::poll;
use serde_json::Value;

use crate::setup::{NODE, PATIENCE, Setup, plain};

/// Runs a command of the hub's program on its directory.
#[track_caller]
fn hub_command(setup: &mut Setup, words: &[&str]) -> String {
    let data_dir = setup.cluster.scratch().join("hub/data");
    let mut command = Command::new(programs::built("kedge-hub").unwrap());
    let output = command.args(words).arg("--data-dir").arg(data_dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn restart_hub(setup: &mut Setup) {
    let hub = setup.cluster.hub_mut();
    hub.stop().unwrap();
    hub.start_again().unwrap();
}

fn annotation(node: &Value, name: &str) -> Option<String> {
    node["metadata"]["annotations"][name].as_str().map(str::to_owned)
}

/// Waits until the node reports the set that the hub announces now; returns its name.
#[track_caller]
fn trusts(setup: &Setup, not: &str) -> String {
    let found = poll(PATIENCE, || {
        let node = setup.cluster.kubectl().json(&["get", "node", NODE]).ok()?;
        let announced = annotation(&node, "kedge.dev/trust").filter(|name| name != not)?;
        (annotation(&node, "kedge.dev/authorities")? == announced).then_some(announced)
    });
    found.unwrap_or_else(|| panic!("{}", setup.agent().log_text()))
}

#[track_caller]
fn renews(setup: &Setup) {
    let renewals = || setup.agent().kedge_json(&["status"]).ok()?["lease"]["renewals"].as_u64();
    let before = renewals();
    let goes_on = poll(PATIENCE, || (renewals() > before).then_some(()));
    assert!(goes_on.is_some(), "{}", setup.agent().log_text());
}

#[test]
fn node_stays_in_contact_while_the_authority_is_replaced() {
    let mut setup = Setup::new("authority", plain());
    hub_command(&mut setup, &["ca", "new"]);
    restart_hub(&mut setup);
    let both = trusts(&setup, "");
    hub_command(&mut setup, &["ca", "switch"]);
    restart_hub(&mut setup);
    renews(&setup);
    hub_command(&mut setup, &["node", "rotate", NODE]);
    let renewed = poll(PATIENCE, || {
        let identity = setup.agent().kedge_json(&["status"]).ok()?["identity"].clone();
        let names = std::fs::read_dir(setup.agent().root_dir().join("pki")).ok()?;
        let has_current = names.flatten().any(|entry| entry.file_name() == "current");
        (identity["state"] == "valid" && has_current).then_some(())
    });
    assert!(renewed.is_some(), "{}", setup.agent().log_text());
    hub_command(&mut setup, &["ca", "retire", "1"]);
    restart_hub(&mut setup);
    trusts(&setup, &both);
    renews(&setup);
    let taken = std::fs::read_to_string(setup.agent().root_dir().join("pki/authorities")).unwrap();
    assert_eq!(taken.matches("BEGIN CERTIFICATE").count(), 1, "the retired one is not trusted any more");
    assert_eq!(setup.agent().babysitter().state().runs, 1, "the agent did not restart");
}
