//! Identities as clients see them: the rights of a credential, and its end.

use kedge_hub_core::kinds::schema::base64_encode;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::kinds::wait_for;
use super::server::{Client, Hub};
use super::{JSON, MAPS, NAMESPACES, NODES, PODS};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
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

/// A mirror pod of node `edge-1`; `uid` is its Node's.
fn mirror(uid: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": uid, "controller": true}]},
        "spec": {"nodeName": "edge-1", "containers": [{"name": "c", "image": "i"}]}});
    change(&mut pod);
    pod
}

#[test]
fn mirror_pod_opens_no_secret_and_holds_nobody_up() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let pods = "/api/v1/namespaces/kube-system/pods";
    admin.post(secrets, &json!({"metadata": {"name": "crown"}, "stringData": {"a": "b"}})).expect(201);
    let made = node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let other = admin.post(NODES, &json!({"metadata": {"name": "edge-2"}})).expect(201);
    let uid = made["metadata"]["uid"].as_str().unwrap();
    for volume in [
        json!({"projected": {"sources": [{"secret": {"name": "crown"}}]}}),
        json!({"secret": {"secretName": "crown"}}),
        json!({"csi": {"driver": "x", "nodePublishSecretRef": {"name": "crown"}}}),
        json!({"azureFile": {"secretName": "crown", "shareName": "s"}}),
    ] {
        let mut volume = volume;
        volume["name"] = "v".into();
        let refused =
            node.post(pods, &mirror(uid, |pod| pod["spec"]["volumes"] = json!([volume]))).expect(403);
        let message = refused["message"].as_str().unwrap();
        assert!(message.ends_with("node \"edge-1\" can not create pods that reference secrets"), "{message}");
        assert_eq!(node.get(&format!("{secrets}/crown")).code, 403);
    }
    let token = json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
    assert_eq!(node.post(pods, &mirror(uid, |pod| pod["spec"]["volumes"] = token)).code, 403);
    let stuck = mirror(uid, |pod| pod["metadata"]["finalizers"] = json!(["example.com/never"]));
    assert_eq!(node.post(pods, &stuck).code, 403);
    let foreign = other["metadata"]["uid"].as_str().unwrap();
    let blames = mirror(foreign, |_| {});
    assert_eq!(node.post(pods, &blames).code, 403);
    // an honest one has no account, and its node deletes it
    let own = node.post(pods, &mirror(uid, |_| {})).expect(201);
    assert_eq!(own["spec"].get("serviceAccountName"), None);
    assert_eq!(node.get("/api/v1/namespaces/kube-system/serviceaccounts/default").code, 403);
    // the deletion of the other Node, and of a namespace, does not wait for this one
    admin.post(NAMESPACES, &json!({"metadata": {"name": "tenant"}})).expect(201);
    let patient = mirror(uid, |pod| pod["spec"]["terminationGracePeriodSeconds"] = i32::MAX.into());
    node.post(&format!("{NAMESPACES}/tenant/pods"), &patient).expect(201);
    admin.delete(&format!("{NODES}/edge-2?propagationPolicy=Foreground")).expect(200);
    admin.delete(&format!("{NAMESPACES}/tenant")).expect(200);
    for path in [format!("{NODES}/edge-2"), format!("{NAMESPACES}/tenant")] {
        wait_for(&mut admin, &path, 404);
    }
}

#[test]
fn node_annotates_only_its_own_reports() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let path = format!("{NODES}/edge-1");
    let annotate = |key: &str| json!({"metadata": {"annotations": {key: "x"}}});
    let applied = "kubectl.kubernetes.io/last-applied-configuration";
    admin.patch("merge", &path, &annotate(applied)).expect(200);
    for place in [path.clone(), format!("{path}/status")] {
        node.patch("merge", &place, &annotate("kedge.dev/config-status")).expect(200);
        node.patch("merge", &place, &annotate("disk.node.kedge.dev/wear")).expect(200);
        for refused in ["admin/x", "kedge.dev/config-source"] {
            assert_eq!(node.patch("merge", &place, &annotate(refused)).code, 403, "{place} {refused}");
        }
        let removed = json!({"metadata": {"annotations": {applied: null}}});
        assert_eq!(node.patch("merge", &place, &removed).code, 403, "{place}");
    }
    // nor may it apply: as a second manager it would share the fields of the first, then give them up in the
    // first one's name, so that the next apply of the first would be refused, or remove nothing
    let apply = |client: &mut Client, manager: &str, labels: Value| {
        let object =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-1", "labels": labels}});
        let content = ("content-type", "application/apply-patch+yaml");
        let path = format!("{path}?fieldManager={manager}");
        client.send("PATCH", &path, &[content], object.to_string().as_bytes())
    };
    apply(&mut admin, "deployer", json!({"site": "x", "floor": "1"})).expect(200);
    for (manager, labels) in [("own", json!({"site": "x"})), ("deployer", json!({}))] {
        let refused = apply(&mut node, manager, labels).expect(403);
        assert_eq!(
            refused["message"],
            "nodes \"edge-1\" is forbidden: a node is no field manager and cannot apply, use another patch"
        );
    }
    let kept = apply(&mut admin, "deployer", json!({"floor": "2"})).expect(200);
    assert_eq!(kept["metadata"]["labels"].get("site"), None, "what it applies no longer is removed");
    let taints =
        json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}, "status": {"phase": "Running"}});
    let refused = node.patch("merge", &format!("{path}/status"), &taints).expect(403);
    let expect = "nodes \"edge-1\" is forbidden: node \"edge-1\" is not allowed to modify taints";
    assert_eq!(refused["message"], expect);
}

/// A request for a certificate with this subject, from the given signer.
pub(crate) fn signing_request(name: &str, user: &str, group: &str, signer: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, user);
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let usages = json!(["client auth", "digital signature"]);
    json!({"metadata": {"name": name}, "spec": {"request": base64_encode(pem.as_bytes()),
        "signerName": format!("kubernetes.io/{signer}"), "usages": usages}})
}

#[test]
fn client_signer_makes_no_node_and_no_administrator() {
    let hub = Hub::new();
    let mut node = hub.node("edge-1");
    for (user, group) in [("system:node:edge-2", "system:nodes"), ("x", "system:masters"), ("system:x", "y")]
    {
        let asked = signing_request("r", user, group, "kube-apiserver-client");
        assert_eq!(node.post(REQUESTS, &asked).code, 403, "{user} {group}");
        assert_eq!(hub.admin().post(REQUESTS, &asked).code, 403, "{user} {group}");
    }
    let other = signing_request("r", "system:node:edge-2", "system:nodes", "kube-apiserver-client-kubelet");
    assert_eq!(node.post(REQUESTS, &other).code, 403);
    // an apply that creates is a creation
    let mut admin = hub.admin();
    let mut apply = |user: &str, group: &str| {
        let mut asked = signing_request("r", user, group, "kube-apiserver-client");
        (asked["apiVersion"], asked["kind"]) =
            ("certificates.k8s.io/v1".into(), "CertificateSigningRequest".into());
        asked["spec"]["username"] = "system:node:edge-2".into();
        let content = ("content-type", "application/apply-patch+yaml");
        let path = format!("{REQUESTS}/r?fieldManager=t");
        admin.send("PATCH", &path, &[content], asked.to_string().as_bytes())
    };
    assert_eq!(apply("x", "system:masters").code, 403);
    assert_eq!(apply("jane", "people").expect(201)["spec"]["username"], "admin");
}

#[test]
fn requests_at_the_same_time_keep_the_limit_of_their_caller() {
    let hub = Hub::new();
    let node = hub.node("edge-1");
    let clients: Vec<_> = (0..24)
        .map(|number| {
            let mut client = node.another();
            let name = format!("r{number}");
            let asked =
                signing_request(&name, "system:node:edge-1", "system:nodes", "kube-apiserver-client-kubelet");
            std::thread::spawn(move || client.post(REQUESTS, &asked).code)
        })
        .collect();
    let codes: Vec<u16> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let made = codes.iter().filter(|code| **code == 201).count();
    assert_eq!((made, codes.iter().filter(|code| **code == 403).count()), (16, 8), "{codes:?}");
    let other = signing_request("o", "system:node:edge-2", "system:nodes", "kube-apiserver-client-kubelet");
    hub.node("edge-2").post(REQUESTS, &other).expect(201);
}

#[test]
fn approval_keeps_conditions_and_metadata() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    admin.post(REQUESTS, &signing_request("r", "jane", "people", "kube-apiserver-client")).expect(201);
    let condition = json!({"type": "ApprovalPatch", "status": "True", "reason": "e2e"});
    let patch = json!({"metadata": {"annotations": {"patched": "true"}}, "status": {"conditions": [condition],
        "certificate": "eA=="}, "spec": {"usages": ["server auth"]}});
    let patched = admin.patch("merge", &format!("{REQUESTS}/r/approval"), &patch).expect(200);
    assert_eq!(patched["metadata"]["annotations"]["patched"], "true");
    assert_eq!(patched["status"]["conditions"][0]["type"], "ApprovalPatch");
    assert_eq!(patched["status"].get("certificate"), None);
    assert_eq!(patched["spec"]["usages"], json!(["client auth", "digital signature"]));
}

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// Headers of a request with this token.
fn bearing(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn token_of_a_pod_lives_as_long_as_the_pod() {
    let hub = Hub::new();
    let (mut admin, mut node, mut nobody) = (hub.admin(), hub.node("edge-1"), hub.anonymous());
    let pod = |name: &str, on: &str| {
        let volumes = json!([{"name": "t", "projected": {"sources":
            [{"serviceAccountToken": {"path": "t", "audience": "vault"}}, {"serviceAccountToken": {"path": "a"}}]}}]);
        json!({"metadata": {"name": name}, "spec": {"nodeName": on, "volumes": volumes,
        "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}})
    };
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let made = admin.post(PODS, &pod("p", "edge-1")).expect(201);
    let other = admin.post(PODS, &pod("o", "edge-2")).expect(201);
    let bound = |name: &str, pod: &Value| {
        json!({"spec": {"audiences": [], "boundObjectRef": {"apiVersion": "v1",
        "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}}})
    };
    let path = format!("{ACCOUNTS}/default/token");
    assert_eq!(node.post(&path, &bound("o", &other)).code, 403, "another node's pod");
    assert_eq!(node.post(&path, &json!({"spec": {}})).code, 403, "bound to no pod");
    let granted = node.post(&path, &bound("p", &made)).expect(201);
    let token = granted["status"]["token"].as_str().unwrap().to_owned();
    assert_eq!(granted["spec"]["expirationSeconds"], 3600);
    assert_eq!(granted["spec"]["audiences"], json!(["https://kubernetes.default.svc.cluster.local"]));
    // for the API, or for audiences that the pod's volumes name; for a day
    let mut asked = bound("p", &made);
    for (audiences, code) in [(json!(["bank"]), 403), (json!(["", "vault"]), 403), (json!(["vault"]), 201)] {
        asked["spec"]["audiences"] = audiences;
        assert_eq!(node.post(&path, &asked).code, code, "{asked}");
    }
    asked["spec"]["expirationSeconds"] = 604_800.into();
    let long = node.send("POST", &path, &[JSON], asked.to_string().as_bytes());
    assert!(
        long.head().contains("requested expiration of 604800 seconds shortened to 86400"),
        "{}",
        long.head()
    );
    assert_eq!(long.expect(201)["spec"]["expirationSeconds"], 86_400);
    let header = bearing(&token);
    let as_pod = [JSON, ("authorization", header.as_str())];
    let user = nobody.send("POST", WHO_AM_I, &as_pod, b"{}").expect(201)["status"]["userInfo"].clone();
    assert_eq!(user["username"], "system:serviceaccount:default:default");
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    assert_eq!(user["extra"]["authentication.kubernetes.io/node-name"], json!(["edge-1"]));
    assert_eq!(nobody.send("GET", PODS, &as_pod, b"").code, 403, "an account has no rights of its own");
    let review = json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let good = node.post(reviews, &review).expect(201);
    assert_eq!(
        (&good["status"]["authenticated"], &good["status"]["user"]["username"]),
        (&json!(true), &user["username"])
    );
    let elsewhere = json!({"spec": {"token": token, "audiences": ["elsewhere"]}});
    assert_ne!(admin.post(reviews, &elsewhere).expect(201)["status"]["authenticated"], true);
    // revoking the node ends the tokens of its pods
    assert_eq!(hub.command(&["node", "revoke", "edge-1"]).code, Some(0));
    assert_eq!(hub.anonymous().send("GET", "/api", &as_pod, b"").code, 401);
    assert_ne!(admin.post(reviews, &review).expect(201)["status"]["authenticated"], true);
    // a thief may have the tokens
    assert_eq!(hub.command(&["node", "readmit", "edge-1"]).code, Some(0));
    assert_eq!(hub.anonymous().send("GET", "/api", &as_pod, b"").code, 401);
    assert_eq!(hub.command(&["node", "readmit", "edge-1", "--same-credentials"]).code, Some(0));
    assert_eq!(hub.anonymous().send("GET", "/api", &as_pod, b"").code, 200);
    admin.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).expect(200);
    assert_eq!(hub.anonymous().send("GET", "/api", &as_pod, b"").code, 401);
    let status = admin.post(reviews, &review).expect(201)["status"].clone();
    assert!(
        status["error"].as_str().unwrap().contains("service account token has been invalidated"),
        "{status}"
    );
    for forged in ["", "x", "a.b.c", &token[..token.len() - 4]] {
        let header = bearing(forged);
        let reply = hub.anonymous().send("GET", "/api", &[("authorization", header.as_str())], b"");
        assert_eq!(reply.code, 401, "{forged}");
    }
}

#[test]
fn tokens_are_asked_for_within_bounds() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let path = format!("{ACCOUNTS}/default/token");
    admin.post(&path, &json!({"spec": {"expirationSeconds": 599}})).expect(422);
    admin.post(&path, &json!({"spec": {"expirationSeconds": 4_294_967_297_i64}})).expect(422);
    admin.post(&format!("{ACCOUNTS}/missing/token"), &json!({"spec": {}})).expect(404);
    let wrong = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}}});
    admin.post(&path, &wrong).expect(400);
    let secret = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": "x"}}});
    admin.post(&path, &secret).expect(404);
    let mut issuer = admin.get("/.well-known/openid-configuration").expect(200);
    assert_eq!(issuer["id_token_signing_alg_values_supported"], json!(["ES256"]));
    let uri = issuer["jwks_uri"].take();
    assert!(uri.as_str().unwrap().ends_with("/openid/v1/jwks"), "{uri}");
    let keys = admin.get("/openid/v1/jwks").expect(200);
    assert_eq!((&keys["keys"][0]["kty"], &keys["keys"][0]["crv"]), (&json!("EC"), &json!("P-256")));
}

#[test]
fn token_ends_with_its_account_on_a_standing_connection() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    admin.post(ACCOUNTS, &json!({"metadata": {"name": "reader"}})).expect(201);
    let granted = admin.post(&format!("{ACCOUNTS}/reader/token"), &json!({"spec": {}})).expect(201);
    let header = bearing(granted["status"]["token"].as_str().unwrap());
    let mut nobody = hub.anonymous();
    nobody.send("GET", "/api", &[("authorization", header.as_str())], b"").expect(200);
    admin.delete(&format!("{ACCOUNTS}/reader")).expect(200);
    // on the same connection
    assert_eq!(nobody.send("GET", "/api", &[("authorization", header.as_str())], b"").code, 401);
}

#[test]
fn access_of_others_is_reviewed() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let ask = |user: &str, group: &str, verb: &str| {
        json!({"spec": {"user": user, "groups": [group],
        "resourceAttributes": {"verb": verb, "resource": "nodes", "name": "edge-1"}}})
    };
    for (user, group, verb, allowed) in [
        ("x", "system:masters", "delete", true),
        ("system:node:edge-1", "system:nodes", "get", true),
        ("system:node:edge-1", "system:nodes", "delete", false),
        ("jane", "people", "get", false),
    ] {
        let review = node.post(reviews, &ask(user, group, verb)).expect(201);
        assert_eq!(review["status"]["allowed"], allowed, "{user} {verb}");
        assert_eq!(review["kind"], "SubjectAccessReview");
    }
    admin
        .post(reviews, &json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "nodes"}}}))
        .expect(422);
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let within = |namespace: &str| {
        json!({"spec": {"user": "jane", "resourceAttributes":
        {"verb": "get", "resource": "pods", "namespace": namespace}}})
    };
    assert_eq!(admin.post(local, &within("default")).expect(201)["status"]["allowed"], false);
    admin.post(local, &within("other")).expect(400);
    let own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let table = [JSON, ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let body = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}).to_string();
    assert_eq!(admin.send("POST", own, &table, body.as_bytes()).code, 406);
}
