//! Bootstrap tokens as a machine that joins, a stranger and a thief use them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use kedge_hub_core::kinds::schema::base64_decode;
use serde_json::{Value, json};

use super::identity::signing_request;
use super::server::{Client, Hub, Reply};
use super::{JSON, MAPS, NODES};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const NODE_SIGNER: &str = "kube-apiserver-client-kubelet";
const TOKEN: &str = "abcdef.0123456789abcdef";

/// A Secret with kubeadm's keys, and more.
fn secret(more: Value) -> Value {
    let mut data = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true"});
    for (key, value) in more.as_object().unwrap() {
        data[key] = value.clone();
    }
    json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": data})
}

/// Requests without a certificate, with a bearer token.
struct Bearer<'a>(Client, &'a str);

impl<'a> Bearer<'a> {
    fn new(hub: &Hub, token: &'a str) -> Bearer<'a> {
        Bearer(hub.anonymous(), token)
    }

    /// From another address of this machine.
    fn from(self, last: u8) -> Bearer<'a> {
        Bearer(self.0.from(last), self.1)
    }

    #[track_caller]
    fn send(&mut self, method: &str, path: &str, body: &Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let bearer = format!("Bearer {}", self.1);
        // a refused request ends its connection
        self.0 = self.0.another();
        self.0.send(method, path, &[JSON, ("authorization", &bearer)], body.as_bytes())
    }

    #[track_caller]
    fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &Value::Null)
    }
}

fn of_node(request: &str, node: &str) -> Value {
    signing_request(request, &format!("system:node:{node}"), "system:nodes", NODE_SIGNER)
}

#[test]
fn token_asks_for_its_node_and_nothing_else() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    admin
        .post(
            SECRETS,
            &secret(json!({"kedge.dev-node": "edge-1", "auth-extra-groups": "system:bootstrappers:x"})),
        )
        .expect(201);
    let mut device = Bearer::new(&hub, TOKEN);
    let user = device.send("POST", WHO_AM_I, &json!({})).expect(201)["status"]["userInfo"].take();
    let groups = json!(["system:bootstrappers", "system:bootstrappers:x", "system:authenticated"]);
    assert_eq!(user, json!({"username": "system:bootstrap:abcdef", "groups": groups}));
    let asked = of_node("r", "edge-1");
    let made = device.send("POST", REQUESTS, &asked).expect(201);
    assert_eq!((&made["spec"]["username"], &made["spec"]["groups"]), (&user["username"], &groups));
    let own = format!("{REQUESTS}/r");
    assert_eq!(device.get(&own).expect(200)["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(device.send("POST", REQUESTS, &asked).code, 409, "again after a cut");
    let why = r#"certificatesigningrequests.certificates.k8s.io "s" is forbidden: bootstrap token "abcdef" is for node "edge-1", not for "edge-2""#;
    device.send("POST", REQUESTS, &of_node("s", "edge-2")).refused(403, why);
    admin.post(REQUESTS, &of_node("other", "edge-1")).expect(201);
    let token = format!("{SECRETS}/bootstrap-token-abcdef");
    let approval = format!("{own}/approval");
    for (method, path) in [
        ("GET", &*format!("{REQUESTS}/other")),
        ("GET", REQUESTS),
        ("PUT", &own),
        ("DELETE", &own),
        ("PUT", &approval),
        ("GET", &token),
        ("GET", SECRETS),
        ("GET", MAPS),
        ("GET", NODES),
        ("GET", "/metrics"),
        ("GET", "/kedge/nodes"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
    ] {
        let body = if method == "GET" { Value::Null } else { asked.clone() };
        assert_eq!(device.send(method, path, &body).code, 403, "{method} {path}");
    }
    let headers = [JSON, ("authorization", "Bearer abcdef.0123456789abcdef"), ("impersonate-user", "admin")];
    assert_eq!(hub.anonymous().send("GET", NODES, &headers, b"").code, 403);
    // a node and its pods cannot read the tokens of others either
    let mut node = hub.node("edge-3");
    node.post(NODES, &json!({"metadata": {"name": "edge-3"}})).expect(201);
    for path in [&*token, SECRETS] {
        assert_eq!(node.get(path).code, 403, "{path}");
    }
    // the end of the token is the end of its rights
    admin.delete(&token).expect(200);
    assert_eq!(device.get(&own).code, 401);
    let lines = fs::read_to_string(hub.data_dir.join("audit-others.log")).unwrap_or_default();
    let line = lines.lines().find(|line| line.contains("\"create\"")).unwrap_or_else(|| panic!("{lines}"));
    assert!(line.contains("system:bootstrap:abcdef"), "{line}");
    shows_no_secret(&hub);
}

/// Neither the log nor the audit logs contain the token's secret.
fn shows_no_secret(hub: &Hub) {
    let logs = ["audit.log", "audit-reads.log", "audit-others.log", "audit-refused.log"];
    let logs = logs.map(|log| fs::read_to_string(hub.data_dir.join(log)).unwrap_or_default());
    let all = logs.join("") + &hub.log();
    assert!(all.contains("abcdef") && !all.contains("0123456789"), "{all}");
}

#[test]
fn only_a_right_and_valid_token_is_an_identity() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let path = format!("{SECRETS}/bootstrap-token-abcdef");
    let mut last = 0;
    let mut check = |more: Option<Value>, token: &str, code: u16| {
        if let Some(more) = &more {
            admin.post(SECRETS, &secret(more.clone())).expect(201);
        }
        last += 1;
        let found = Bearer::new(&hub, token).from(last).send("POST", WHO_AM_I, &json!({}));
        assert_eq!(found.code, code, "{more:?} {token}");
        if more.is_some() {
            admin.delete(&path).expect(200);
        }
    };
    check(Some(json!({})), TOKEN, 201);
    check(None, TOKEN, 401);
    check(Some(json!({})), "abcdef.0123456789abcdee", 401);
    check(Some(json!({})), "abcdeg.0123456789abcdef", 401);
    check(Some(json!({})), "abcdef.", 401);
    check(Some(json!({"usage-bootstrap-authentication": "yes"})), TOKEN, 401);
    check(Some(json!({"expiration": "2999-01-01T00:00:00Z"})), TOKEN, 201);
    check(Some(json!({"expiration": "2001-01-01T00:00:00Z"})), TOKEN, 401);
    check(Some(json!({"kedge.dev-uses": "0"})), TOKEN, 201);
    // it counts as its type alone, and in one namespace alone
    let mut opaque = secret(json!({}));
    opaque["type"] = "Opaque".into();
    admin.post(SECRETS, &opaque).expect(201);
    assert_eq!(Bearer::new(&hub, TOKEN).from(99).get("/api").code, 401);
    let refused = admin.post("/api/v1/namespaces/default/secrets", &secret(json!({}))).expect(422);
    assert!(refused["message"].as_str().unwrap().contains("kube-system alone"), "{refused}");
    shows_no_secret(&hub);
}

#[test]
fn used_token_asks_for_nothing_new() {
    let hub = Hub::new();
    hub.admin().post(SECRETS, &secret(json!({"kedge.dev-node": "*", "kedge.dev-uses": "0"}))).expect(201);
    let mut device = Bearer::new(&hub, TOKEN);
    let refused = device.send("POST", REQUESTS, &of_node("r", "edge-1")).expect(403);
    assert!(refused["message"].as_str().unwrap().contains("was used by another request"), "{refused}");
}

/// Many at once are no more than many in a row.
#[test]
fn guesses_at_once_share_one_rate() {
    let hub = Hub::new();
    hub.admin().post(SECRETS, &secret(json!({}))).expect(201);
    let began = Instant::now();
    let guess = |thread: u32| {
        let tokens = (0..8).map(move |number| format!("abcdef.{:016}", 100 * thread + number));
        tokens.filter(|token| Bearer::new(&hub, token).from(7).get("/api").code == 401).count()
    };
    let compared: usize = thread::scope(|scope| {
        let guess = &guess;
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || guess(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let most = 11 + usize::try_from(began.elapsed().as_secs() / 6).unwrap();
    assert!((10..=most).contains(&compared), "{compared}");
}

#[test]
fn guesses_end_after_ten_a_minute() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    admin.post(SECRETS, &secret(json!({}))).expect(201);
    let guess = |number: u32| {
        let token = format!("abcdef.{number:016}");
        let reply = Bearer::new(&hub, &token).from(7).get("/api");
        (reply.code, reply.header("retry-after").join(""))
    };
    let codes: Vec<u16> = (0..14).map(|number| guess(number).0).collect();
    assert!(codes[..10].iter().all(|code| *code == 401), "{codes:?}");
    assert_eq!(codes[13], 429, "{codes:?}");
    assert_eq!(guess(99), (429, "6".to_owned()));
    // a right one from there learns nothing either; one from elsewhere is not affected
    assert_eq!(Bearer::new(&hub, TOKEN).from(7).get("/api").code, 429);
    assert_eq!(Bearer::new(&hub, TOKEN).from(8).get("/api").code, 200);
    // nor does a node ask in their place
    let review = |token: &str| json!({"spec": {"token": token}});
    let mut node = hub.node("edge-1").from(9);
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let found = node.post(path, &review(TOKEN)).expect(201);
    assert_eq!(found["status"]["user"]["username"], "system:bootstrap:abcdef");
    for _ in 0..12 {
        let found = node.post(path, &review("abcdef.0000000000000000")).expect(201);
        assert_eq!(found["status"]["authenticated"], Value::Null);
    }
    let found = node.post(path, &review(TOKEN)).expect(201);
    assert_eq!(found["status"].get("user"), None, "{found}");
    shows_no_secret(&hub);
}

const INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// Runs a command that succeeds; returns its output.
#[track_caller]
fn command(hub: &Hub, words: &[&str]) -> String {
    let outcome = hub.command(words);
    assert_eq!(outcome.code, Some(0), "{words:?}: {}", outcome.err);
    outcome.out
}

/// Runs a command that fails, with this text.
#[track_caller]
fn fails(hub: &Hub, words: &[&str], why: &str) {
    let outcome = hub.command(words);
    assert_ne!(outcome.code, Some(0), "{words:?}: {}", outcome.out);
    assert!(outcome.err.contains(why), "{words:?}: {}", outcome.err);
}

/// The data of `cluster-info` once it has these keys: its controller is a moment behind.
#[track_caller]
fn info_with(client: &mut Client, keys: &[&str]) -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let reply = client.get(INFO);
        let data = if reply.code == 200 { reply.json()["data"].take() } else { Value::Null };
        let found: Vec<&str> = data.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        if found == keys {
            return data;
        }
        assert!(Instant::now() < end, "{found:?}, expected {keys:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// SHA-256 of the public key of the hub's authority.
fn authority_hash(hub: &Hub) -> String {
    let pem = fs::read(hub.data_dir.join("ca.crt")).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let key = pem.parse_x509().unwrap().public_key().raw.to_vec();
    let digest = ring::digest::digest(&ring::digest::SHA256, &key);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn token_of_the_command_joins_and_is_revoked() {
    let hub = Hub::new();
    let line = command(&hub, &["token", "create", "--node", "edge-1", "--description", "shop 7"]);
    let (echo, join) = line.trim().split_once(" | ").unwrap();
    let token = echo.strip_prefix("echo ").unwrap().to_owned();
    let (id, secret) = token.split_once('.').unwrap();
    let hash = authority_hash(&hub);
    let expect =
        format!("kedge join {} --ca-cert-hash sha256:{hash} --node-name edge-1 --token-file -", hub.url);
    assert_eq!(join, expect);
    let mut device = Bearer::new(&hub, &token);
    device.send("POST", REQUESTS, &of_node("r", "edge-1")).expect(201);
    assert_eq!(device.send("POST", REQUESTS, &of_node("s", "edge-2")).code, 403);
    // the hub approves it by itself
    while !command(&hub, &["token", "list"]).contains("Used") {
        thread::yield_now();
    }
    for format in ["table", "json"] {
        let list = command(&hub, &["token", "list", "--output", format]);
        for part in [id, "edge-1", "Used", "by itself", "shop 7"] {
            assert!(list.contains(part), "{part}: {list}");
        }
        assert!(!list.contains(secret), "{list}");
    }
    command(&hub, &["token", "revoke", &token]);
    assert_eq!(device.get("/api").code, 401);
    fails(&hub, &["token", "revoke", id], "there is no bootstrap token");
    assert_eq!(command(&hub, &["token", "list"]).lines().count(), 1);
    let logs =
        ["audit.log", "audit-others.log"].map(|log| fs::read_to_string(hub.data_dir.join(log)).unwrap());
    let logs = logs.join("") + &hub.log();
    assert!(logs.contains(&format!("bootstrap-token-{id}")) && !logs.contains(secret), "{logs}");
}

#[test]
fn line_for_a_device_outlives_an_authority() {
    let hub = Hub::new();
    let pins = || {
        let line = command(&hub, &["token", "create", "--node", "edge-1"]);
        let (_, rest) = line.split_once("--ca-cert-hash ").unwrap();
        rest.split_once(' ').unwrap().0.split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let first = pins();
    command(&hub, &["ca", "new"]);
    let both = pins();
    assert_eq!((first.len(), both.len()), (1, 2), "{both:?}");
    assert_eq!(first[0], both[0]);
    let kubeconfig = command(&hub, &["node-bootstrap", "edge-1"]);
    let authorities =
        kubeconfig.lines().find_map(|line| line.trim().strip_prefix("certificate-authority-data: "));
    let authorities = base64_decode(authorities.unwrap()).unwrap();
    assert_eq!(String::from_utf8(authorities).unwrap().matches("BEGIN CERTIFICATE").count(), 2);
}

#[test]
fn each_name_of_a_file_gets_its_token() {
    let hub = Hub::new();
    let file = hub.data_dir.join("names");
    let path = file.to_str().unwrap();
    for (text, why) in [
        ("edge-1\nEdge\n", "line 2: \"Edge\" is no name of a node"),
        ("edge-1\n\nedge-1", "line 3: \"edge-1\" is there twice"),
        ("# none\n", "it has no names"),
    ] {
        fs::write(&file, text).unwrap();
        fails(&hub, &["token", "create", "--names", path], why);
    }
    fs::write(&file, "# shops\nedge-1\n edge-2 \n").unwrap();
    let out = command(&hub, &["token", "create", "--names", path, "--ttl", "90d"]);
    let lines: Vec<(&str, &str)> = out.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["edge-1", "edge-2"]);
    let mut device = Bearer::new(&hub, lines[1].1);
    device.send("POST", REQUESTS, &of_node("r", "edge-2")).expect(201);
    assert_eq!(device.send("POST", REQUESTS, &of_node("s", "edge-1")).code, 403);
    // they sign nothing, so that the ConfigMap stays small
    info_with(&mut hub.anonymous(), &["kubeconfig"]);
    command(&hub, &["node", "revoke", "edge-2", "--force"]);
    fails(&hub, &["token", "create", "--names", path], "node edge-2 was revoked");
    fails(&hub, &["token", "create", "--node", "edge-2"], "node edge-2 was revoked");
    fails(&hub, &["node-bootstrap", "edge-2"], "node edge-2 was revoked");
    assert_eq!(command(&hub, &["token", "list"]).lines().count(), 3, "no token was made");
}

#[test]
fn bootstrap_kubeconfig_names_hub_node_and_token() {
    let hub = Hub::new();
    let text = command(&hub, &["node-bootstrap", "edge-1"]);
    for part in ["current-context: \"system:node:edge-1\"", "- name: \"system:node:edge-1\"", &hub.url] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let token =
        text.lines().find_map(|line| line.trim().strip_prefix("token: \"")).unwrap().trim_matches('"');
    Bearer::new(&hub, token).send("POST", REQUESTS, &of_node("r", "edge-1")).expect(201);
    let file = hub.data_dir.join("b");
    let out = command(&hub, &["node-bootstrap", "edge-1", "--out", file.to_str().unwrap(), "--ttl", "1h"]);
    assert!(out.contains("keep it secret") && !out.contains("token:"), "{out}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn cluster_info_is_for_everybody_and_follows_tokens() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let mut anonymous = hub.anonymous();
    let mut keys = |expect: &[&str]| info_with(&mut anonymous, expect);
    let data = keys(&["kubeconfig"]);
    let kubeconfig = data["kubeconfig"].as_str().unwrap();
    let authority = fs::read(hub.data_dir.join("ca.crt")).unwrap();
    let authority = kedge_hub_core::kinds::schema::base64_encode(&authority);
    for part in [&*authority, &*hub.url, "- name: \"\""] {
        assert!(kubeconfig.contains(part), "{part}: {kubeconfig}");
    }
    admin.post(SECRETS, &secret(json!({"usage-bootstrap-signing": "true"}))).expect(201);
    let signed = keys(&["jws-kubeconfig-abcdef", "kubeconfig"]);
    let token = admin.get(&format!("{SECRETS}/bootstrap-token-abcdef")).expect(200);
    let token = kedge_hub_core::identity::bootstrap_token::BootstrapToken::from_secret(&token).unwrap();
    assert_eq!(signed["jws-kubeconfig-abcdef"], token.sign(kubeconfig));
    // a forged one is corrected
    admin
        .patch("merge", INFO, &json!({"data": {"kubeconfig": "x", "jws-kubeconfig-abcdef": "y"}}))
        .expect(200);
    while keys(&["jws-kubeconfig-abcdef", "kubeconfig"]) != signed {}
    admin.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).expect(200);
    keys(&["kubeconfig"]);
    let mut anonymous = hub.anonymous();
    for (method, path) in [
        ("GET", "/api/v1/namespaces/kube-public/configmaps"),
        ("GET", "/api/v1/namespaces/kube-public/configmaps?fieldSelector=metadata.name%3Dcluster-info"),
        ("GET", "/api/v1/namespaces/kube-public/configmaps/kube-root-ca.crt"),
        ("PUT", INFO),
        ("PATCH", INFO),
        ("DELETE", INFO),
    ] {
        assert_eq!(anonymous.send(method, path, &[JSON], b"{}").code, 401, "{method} {path}");
        anonymous = anonymous.another();
    }
}
