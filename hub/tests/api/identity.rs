//! Identities as clients see them: what a credential proves, and for how long.

use serde_json::json;

use super::server::Hub;
use super::{JSON, MAPS};

const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

#[test]
fn caller_sees_its_own_identity() {
    let hub = Hub::new();
    let mut node = hub.node("edge-1");
    let user = &node.post(WHO_AM_I, &json!({})).expect(201)["status"]["userInfo"];
    assert_eq!(user["username"], "system:node:edge-1");
    assert_eq!(user["groups"], json!(["system:nodes", "system:authenticated"]));
    let id = user["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap();
    assert!(id.starts_with("X509SHA256="), "{id}");
}

#[test]
fn administrator_impersonates_all_parts_of_a_user() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let headers = [
        JSON,
        ("impersonate-user", "jane"),
        ("impersonate-group", "people"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-example.com%2Fscopes", "a"),
    ];
    let review = admin.send("POST", WHO_AM_I, &headers, b"{}").expect(201);
    let expect = json!({"username": "jane", "groups": ["people", "system:authenticated"], "uid": "7",
        "extra": {"example.com/scopes": ["a"]}});
    assert_eq!(review["status"]["userInfo"], expect);
    assert_eq!(admin.send("GET", MAPS, &headers, b"").code, 403);
    let refused = admin.send("GET", MAPS, &[("impersonate-uid", "7")], b"").expect(400);
    assert_eq!(refused["message"], "requested impersonation without impersonating a user name");
}
