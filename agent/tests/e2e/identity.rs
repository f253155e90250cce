//! The node's own credential: a join by a bootstrap token through kills, and a renewal while the node works.
//!
//! In the first tests a person approves each request, also where the hub would by itself.

use std::process::Command;
use std::time::Duration;

use kedge_rig::programs;
use kedge_rig::scratch::poll;
use serde_json::Value;

use crate::setup::{NODE, PATIENCE, Setup, plain};

/// How often the agent is killed within the join.
const KILLS: u64 = 12;

/// A node that has nothing but a bootstrap kubeconfig.
fn with_a_token(purpose: &str) -> Setup {
    let mut setup = Setup::with_hub(purpose);
    let data_dir = setup.cluster.scratch().join("hub/data");
    let made = Command::new(programs::built("kedge-hub").unwrap())
        .args(["node-bootstrap", NODE, "--data-dir"])
        .arg(data_dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = setup.cluster.scratch().write("bootstrap-kubeconfig", made.stdout);
    let mut options = plain();
    options.flags = vec!["--bootstrap-kubeconfig".into(), path.into()];
    let agent = setup.cluster.add(NODE, options).unwrap();
    std::fs::remove_file(agent.kubeconfig()).unwrap();
    setup
}

/// Approves the requests that wait; returns the names of all.
fn approve(setup: &Setup) -> Vec<String> {
    let kubectl = setup.cluster.kubectl();
    let list = kubectl.json(&["get", "csr"]).unwrap();
    let text = |one: &Value, at: &str| one.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = list["items"].as_array().unwrap().iter().map(|one| text(one, "/metadata/name"));
    let names: Vec<String> = names.filter(|name| name.starts_with("node-csr-")).collect();
    for name in &names {
        kubectl.run(&["certificate", "approve", name]).unwrap();
    }
    names
}

fn identity(setup: &Setup) -> Option<Value> {
    Some(setup.agent().kedge_json(&["status"]).ok()?["identity"].clone())
}

fn is_valid(setup: &Setup) -> Option<Value> {
    identity(setup).filter(|identity| identity["state"] == "valid" && identity["message"].is_null())
}

fn own_files(setup: &Setup) -> Vec<String> {
    let entries = std::fs::read_dir(setup.agent().root_dir().join("pki")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn node_with_a_token_joins_whenever_it_is_killed() {
    let mut setup = with_a_token("join-kills");
    for kill in 0..KILLS {
        setup.agent_mut().launch().unwrap();
        std::thread::sleep(Duration::from_millis(40 * kill));
        if kill > KILLS / 2 {
            approve(&setup);
        }
        setup.agent_mut().cut();
    }
    setup.agent_mut().start().unwrap();
    let valid = poll(PATIENCE, || {
        approve(&setup);
        is_valid(&setup)
    });
    assert!(valid.is_some(), "{}", setup.agent().log_text());
    setup.shows("a Ready node with a Lease", |world| {
        world.condition(NODE, "Ready").is_some_and(|(status, ..)| status == "True")
            && world.renewal_count(NODE) > 0
    });
    // one key, so one request, whatever was cut off
    assert_eq!(approve(&setup).len(), 1);
    let names = own_files(&setup);
    let [current, kubeconfig, kept] = &names[..] else { panic!("{names:?}") };
    assert_eq!((current.as_str(), kubeconfig.as_str()), ("current", "kubeconfig"));
    assert!(kept.starts_with("node-"), "{kept}");
    assert!(!setup.agent().log_text().contains("PRIVATE"));
}

#[test]
fn certificate_is_exchanged_while_the_node_works() {
    let setup = Setup::new("renewal", plain());
    let first = poll(PATIENCE, || is_valid(&setup)).expect("the kubeconfig's certificate is in use");
    let number = first["number"].as_u64().expect("hubs count");
    let rotate = format!("kedge.dev/rotate={number}");
    setup.cluster.kubectl().run(&["annotate", "node", NODE, &rotate]).unwrap();
    let second = poll(PATIENCE, || {
        approve(&setup);
        is_valid(&setup).filter(|identity| identity["number"].as_u64() > Some(number))
    });
    let second = second.unwrap_or_else(|| panic!("{}", setup.agent().log_text()));
    assert_ne!(first["serial"], second["serial"]);
    let renewed = setup.agent().kedge_json(&["status"]).unwrap()["lease"]["renewals"].as_u64();
    let goes_on = poll(PATIENCE, || {
        let status = setup.agent().kedge_json(&["status"]).ok()?;
        let is_quick = status["lease"]["secondsSinceRenewal"].as_u64() <= Some(12);
        assert!(is_quick, "{}", status["lease"]);
        (status["lease"]["renewals"].as_u64() > renewed.map(|count| count + 3)).then_some(())
    });
    assert!(goes_on.is_some(), "{}", setup.agent().log_text());
    assert_eq!(setup.agent().babysitter().state().runs, 1, "it did not restart");
    let names = own_files(&setup);
    assert_eq!(names.len(), 2, "{names:?}");
    // a restart uses it, and a kubeconfig that was made later is used again
    let kubeconfig = setup.cluster.hub().node_kubeconfig(NODE).unwrap();
    setup.agent().replace_kubeconfig(&kubeconfig).unwrap();
    setup.shows("the Lease", |world| world.renewal_count(NODE) > 0);
}

/// As after years in a store: it begins with a certificate that has ended, and its token is gone.
#[test]
fn node_with_an_ended_certificate_returns_by_itself() {
    let mut setup = with_a_token("ended");
    setup.agent_mut().start().unwrap();
    setup.shows("a Node with a Lease", |world| world.renewal_count(NODE) > 0);
    let first = poll(PATIENCE, || is_valid(&setup)).expect("it joined");
    setup.agent_mut().cut();
    let pki = setup.agent().root_dir().join("pki");
    let credential = std::fs::read_to_string(pki.join("current")).unwrap();
    let ended = setup.cluster.hub().expired(NODE, &credential).unwrap();
    let file = setup.cluster.scratch().write("ended", &ended);
    let digest = Command::new("sha256sum").arg(&file).output().unwrap().stdout;
    let digest = String::from_utf8(digest).unwrap();
    let digest = digest.split(' ').next().unwrap();
    std::fs::write(pki.join("current"), format!("# sha256 {digest}\n{ended}")).unwrap();
    for name in own_files(&setup).iter().filter(|name| name.starts_with("node-")) {
        std::fs::remove_file(pki.join(name)).unwrap();
    }
    std::fs::remove_file(setup.cluster.scratch().join("bootstrap-kubeconfig")).unwrap();
    setup.agent_mut().start().unwrap();
    let next = poll(PATIENCE, || is_valid(&setup).filter(|next| next["number"] != first["number"]));
    assert!(next.is_some(), "{}", setup.agent().log_text());
    let list = setup.cluster.kubectl().json(&["get", "csr"]).unwrap();
    let reasons = list["items"].as_array().unwrap().iter();
    let mut reasons: Vec<_> =
        reasons.map(|one| one["status"]["conditions"][0]["reason"].as_str().unwrap_or_default()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["Joins", "ReturnedAfter"], "no person is asked");
    setup.shows("a Lease", |world| world.renewal_count(NODE) > 0);
}
