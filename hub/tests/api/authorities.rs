//! Replacing the certificate authority and fencing a hub, by the commands and over TLS.

use std::time::Duration;

use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};

use super::server::{Client, Hub, Outcome};
use super::{LEASES, MAPS, NODES};

#[track_caller]
fn ok(outcome: &Outcome) -> &str {
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    &outcome.out
}

#[track_caller]
fn refused(outcome: &Outcome, expect: &str) {
    assert_eq!(outcome.code, Some(1), "{}", outcome.out);
    assert!(outcome.err.contains(expect), "{}", outcome.err);
}

/// The set that the hub names to a node as the one to trust.
fn announced(admin: &mut Client, node: &str) -> String {
    let path = format!("{NODES}/{node}");
    let mut digest = String::new();
    wait_until("the hub names the set to trust", Duration::from_secs(60), || {
        let found = admin.get(&path).expect(200);
        digest = found["metadata"]["annotations"]["kedge.dev/trust"].as_str().unwrap_or_default().to_owned();
        !digest.is_empty()
    });
    digest
}

fn report(node: &mut Client, name: &str, digest: &str) {
    let annotations = json!({"metadata": {"annotations": {"kedge.dev/authorities": digest}}});
    node.patch("merge", &format!("{NODES}/{name}"), &annotations).expect(200);
}

#[test]
fn authority_is_replaced_while_its_nodes_stay_in_contact() {
    let mut hub = Hub::new();
    let credentials =
        ["edge-1", "edge-2"].map(|name| ok(&hub.command(&["node-kubeconfig", name])).to_owned());
    let connect = |hub: &Hub, index: usize| Client::new(&credentials[index], &hub.url);
    for (index, name) in ["edge-1", "edge-2"].iter().enumerate() {
        connect(&hub, index).post(NODES, &json!({"metadata": {"name": name}})).expect(201);
    }
    refused(&hub.command(&["ca", "switch"]), "2 nodes would not trust the hub");
    assert!(ok(&hub.command(&["ca", "new"])).contains("authority 2 is made"));
    refused(&hub.command(&["ca", "switch", "--leave", "2"]), "restart it first");
    hub.restart("TERM");

    let digest = announced(&mut hub.admin(), "edge-1");
    refused(&hub.command(&["ca", "switch"]), "2 nodes would not trust the hub any more");
    report(&mut connect(&hub, 0), "edge-1", &digest);
    refused(&hub.command(&["ca", "switch"]), "1 nodes would not trust the hub any more");
    let status = hub.command(&["ca", "status"]);
    assert!(ok(&status).contains("do not yet: 1 (edge-2)"), "{}", status.out);
    report(&mut connect(&hub, 1), "edge-2", &digest);
    assert!(ok(&hub.command(&["ca", "switch"])).contains("authority 2 signs"));
    hub.restart("TERM");

    // the first authority's credentials and trust still do
    connect(&hub, 0).get(&format!("{NODES}/edge-1")).expect(200);
    assert_eq!(announced(&mut hub.admin(), "edge-1"), digest, "both are trusted as before");
    let renewed = ok(&hub.command(&["node-kubeconfig", "edge-1"])).to_owned();
    Client::new(&renewed, &hub.url).get(&format!("{NODES}/edge-1")).expect(200);
    refused(&hub.command(&["ca", "retire", "2"]), "authority 2 signs");
    wait_until("the hub knows who has which certificate", Duration::from_secs(60), || {
        ok(&hub.command(&["ca", "status"])).contains("nodes with a certificate of authority 1: 1 (edge-2)\n")
    });
    refused(&hub.command(&["ca", "retire", "1"]), "1 nodes have a certificate of authority 1 (edge-2)");
    ok(&hub.command(&["ca", "retire", "1", "--leave", "1"]));
    hub.restart("TERM");

    Client::new(&renewed, &hub.url).get(&format!("{NODES}/edge-1")).expect(200);
    // a device that was away all the time knows and has nothing but the first authority's
    connect(&hub, 1).get(&format!("{NODES}/edge-2")).expect(401);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let shown =
        connect(&hub, 1).post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).expect(201);
    let since: i64 = serde_json::from_value::<String>(
        shown["status"]["userInfo"]["extra"]["kedge.dev/expired-since"][0].clone(),
    )
    .unwrap()
    .parse()
    .unwrap();
    let state = std::fs::read_to_string(hub.data_dir.join("pki/authorities.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    let retired = state["retiredAt"]["1"].as_i64().unwrap();
    assert!(since == retired || since == retired - 1, "expired since the retirement: {since} {state}");
    let list: Value = serde_json::from_str(ok(&hub.command(&["ca", "status", "--output", "json"]))).unwrap();
    let roles: Vec<_> =
        list["authorities"].as_array().unwrap().iter().map(|one| one["role"].clone()).collect();
    assert_eq!(roles, ["retired", "signing"]);
    let audit = std::fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
    for verb in ["ca-new", "ca-switch", "ca-retire"] {
        assert!(audit.contains(&format!("\"verb\":\"{verb}\"")), "{verb}");
    }
}

#[test]
fn fenced_hub_changes_nothing_but_leases() {
    let mut hub = Hub::new();
    let credentials = ok(&hub.command(&["node-kubeconfig", "edge-1"])).to_owned();
    let mut node = Client::new(&credentials, &hub.url);
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let lease = json!({"metadata": {"name": "edge-1"}, "spec": {"holderIdentity": "edge-1", "leaseDurationSeconds": 40,
        "renewTime": "2026-11-30T00:00:00.000000Z"}});
    node.post(LEASES, &lease).expect(201);
    hub.flags.push("--fenced".to_owned());
    hub.restart("TERM");

    let (mut admin, mut node) = (hub.admin(), Client::new(&credentials, &hub.url));
    let renewal = json!({"spec": {"renewTime": "2026-11-30T01:00:00.000000Z"}});
    node.patch("merge", &format!("{LEASES}/edge-1"), &renewal).expect(200);
    let renewed = admin.get(&format!("{LEASES}/edge-1")).expect(200);
    assert_eq!(renewed["spec"]["renewTime"], renewal["spec"]["renewTime"]);
    let map = json!({"metadata": {"name": "m"}});
    for reply in [
        admin.post(MAPS, &map),
        admin.delete(&format!("{NODES}/edge-1")),
        node.patch("merge", &format!("{NODES}/edge-1/status"), &json!({"status": {"phase": "Running"}})),
        admin.post("/kedge/nodes/edge-1/revoke", &json!({})),
    ] {
        assert_eq!(reply.code, 503);
        assert!(reply.json()["message"].as_str().unwrap().contains("this hub is fenced"), "{}", reply.json());
        assert_eq!(reply.header("retry-after"), ["60"]);
    }
    admin.get(&format!("{NODES}/edge-1")).expect(200);
}
