//! Nodes that come back with an expired certificate, over real TLS, also to a hub whose clock is wrong.
//!
//! The certificates are made with the hub's authority, as a hub of another day would have made them.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kedge_api::serial::{self, Serial};
use kedge_hub::store::sqlite::checksum;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use super::server::{Client, Hub};
use super::{LEASES, NODES};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A device with a key.
struct Device {
    name: &'static str,
    key: KeyPair,
}

impl Device {
    fn new(name: &'static str) -> Device {
        Device { name, key: KeyPair::generate().unwrap() }
    }

    fn subject(&self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", self.name));
        params
    }

    /// A client with a certificate of this number, which ends in `ends`.
    fn client(&self, hub: &Hub, number: u64, ends: Duration) -> Client {
        self.with(hub, &self.certificate(hub, number, ends))
    }

    /// A certificate by the authority of a hub.
    fn certificate(&self, hub: &Hub, number: u64, ends: Duration) -> String {
        let mut params = self.subject();
        let now = OffsetDateTime::now_utc();
        params.not_before = OffsetDateTime::UNIX_EPOCH;
        params.not_after = now + ends;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let issued_micros = now.unix_timestamp() * 1_000_000;
        params.serial_number = Some(serial::write(&Serial { number, issued_micros }, [1; 4]).to_vec().into());
        let [authority, key] =
            ["ca.crt", "pki/ca.pem"].map(|file| fs::read_to_string(hub.data_dir.join(file)).unwrap());
        let issuer = Issuer::from_ca_cert_pem(&authority, KeyPair::from_pem(&key).unwrap()).unwrap();
        params.signed_by(&self.key, &issuer).unwrap().pem()
    }

    /// A client with this certificate (PEM).
    fn with(&self, hub: &Hub, certificate: &str) -> Client {
        let authority = fs::read(hub.data_dir.join("ca.crt")).unwrap();
        let [authority, certificate, key] =
            [&authority[..], certificate.as_bytes(), self.key.serialize_pem().as_bytes()]
                .map(|pem| STANDARD.encode(pem));
        let kubeconfig = format!(
            "clusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: \"{}\"\nusers:\n- user:\n    \
             client-certificate-data: {certificate}\n    client-key-data: {key}\n",
            hub.url
        );
        Client::new(&kubeconfig, &hub.url)
    }

    fn request(&self, name: &str) -> Value {
        let pem = self.subject().serialize_request(&self.key).unwrap().pem().unwrap();
        json!({"metadata": {"name": name}, "spec": {"request": STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth", "digital signature"]}})
    }

    /// Registers with this number, and is known by it.
    fn join(&self, hub: &Hub, number: u64) {
        let mut live = self.client(hub, number, Duration::days(100));
        live.post(NODES, &json!({"metadata": {"name": self.name}})).expect(201);
        let expires = |hub: &Hub| listed(hub, self.name)["certificateExpires"].clone();
        while expires(hub).is_null() {
            std::thread::yield_now();
        }
    }
}

fn listed(hub: &Hub, name: &str) -> Value {
    let list = hub.admin().get("/kedge/nodes").expect(200);
    list["nodes"].as_array().unwrap().iter().find(|node| node["name"] == name).cloned().unwrap_or_default()
}

/// Waits for the condition of a request; returns its reason.
fn decided(client: &mut Client, name: &str, sort: &str) -> String {
    loop {
        let request = client.another().get(&format!("{REQUESTS}/{name}")).expect(200);
        let conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if let Some(found) = conditions.iter().find(|condition| condition["type"] == sort) {
            return found["reason"].as_str().unwrap().to_owned();
        }
        std::thread::yield_now();
    }
}

/// Waits for the certificate of a request.
fn certificate(client: &mut Client, name: &str) -> String {
    loop {
        let request = client.another().get(&format!("{REQUESTS}/{name}")).expect(200);
        if let Some(text) = request["status"]["certificate"].as_str() {
            return String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        }
        std::thread::yield_now();
    }
}

fn events(hub: &Hub, reason: &str) -> usize {
    let events = hub.admin().get("/api/v1/namespaces/default/events").expect(200);
    events["items"].as_array().unwrap().iter().filter(|event| event["reason"] == reason).count()
}

#[test]
fn expired_node_gets_its_next_certificate_and_nothing_else() {
    let hub = Hub::new();
    let device = Device::new("edge-1");
    device.join(&hub, 1000);
    let mut expired = device.client(&hub, 1000, Duration::days(-100));
    let why = "the certificate of node \"edge-1\" has been expired since ";
    for (method, path) in [
        ("GET", &*format!("{NODES}/edge-1")),
        ("GET", "/api"),
        ("GET", NODES),
        ("GET", REQUESTS),
        ("POST", NODES),
        ("PATCH", &format!("{NODES}/edge-1/status")),
        ("PATCH", &format!("{LEASES}/edge-1")),
        ("POST", "/apis/kedge.dev/v1/nodes/edge-1/calls/x"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("GET", "/kedge/nodes"),
        ("GET", "/metrics"),
    ] {
        let headers = [(
            "content-type",
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
        )];
        let reply = expired.another().send(method, path, &headers, b"{}");
        assert_eq!(reply.code, 401, "{method} {path}");
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(why), "{method} {path}: {message}");
    }
    let user = expired.another().post(WHO_AM_I, &json!({})).expect(201)["status"]["userInfo"].take();
    assert_eq!(user["username"], "system:node:edge-1");
    assert!(user["extra"]["kedge.dev/expired-since"].is_array(), "{user}");
    let serving = json!("kubernetes.io/kubelet-serving");
    let mut other = device.request("serving");
    other["spec"]["signerName"] = serving;
    assert_eq!(expired.another().post(REQUESTS, &other).code, 401);
    let made = expired.another().post(REQUESTS, &device.request("next")).expect(201);
    assert!(made["spec"]["extra"]["kedge.dev/expired-since"].is_array(), "{made}");
    let next = certificate(&mut expired, "next");
    assert_eq!(decided(&mut expired, "next", "Approved"), "ReturnedAfter");
    let mut live = device.with(&hub, &next);
    live.get(&format!("{NODES}/edge-1")).expect(200);
    assert_eq!(events(&hub, "ReturnedAfter"), 1);
    let lines = fs::read_to_string(hub.data_dir.join("audit-others.log")).unwrap_or_default();
    assert!(lines.contains("\"kedge.dev/expired-since\":\"20"), "{lines}");
    assert!(hub.log().contains("system:node:edge-1 at 127.0.0.1 shows a certificate that has been expired"));
    // its renewals need nobody, with any key
    let renewed = Device { name: "edge-1", key: KeyPair::generate().unwrap() };
    live.post(REQUESTS, &renewed.request("renewal")).expect(201);
    let next = certificate(&mut live, "renewal");
    assert_eq!(decided(&mut live, "renewal", "Approved"), "Renews");
    renewed.with(&hub, &next).get(&format!("{NODES}/edge-1")).expect(200);
    // and the key that it had before is not its newest any more
    let mut old = device.client(&hub, 1000, Duration::days(-100));
    old.post(REQUESTS, &device.request("again")).expect(201);
    assert_eq!(decided(&mut old, "again", "AwaitingApproval"), "ReturnedWithOlderKey");
}

#[test]
fn older_copy_of_a_disk_waits_for_a_person() {
    let mut hub = Hub::new();
    let device = Device::new("edge-1");
    device.join(&hub, 1000);
    hub.restart("KILL");
    let mut copy = device.client(&hub, 999, Duration::days(-1));
    copy.post(REQUESTS, &device.request("r")).expect(201);
    assert_eq!(decided(&mut copy, "r", "AwaitingApproval"), "ReturnedWithOlderKey");
    while events(&hub, "ReturnedWithOlderKey") == 0 {
        std::thread::yield_now();
    }
    let table = hub.command(&["node", "list"]);
    assert!(table.out.contains("ReturnedWithOlderKey\n"), "{}", table.out);
    assert!(table.out.contains("  kubectl certificate approve r "), "{}", table.out);
    let approval =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Seen"}]}});
    hub.admin().patch("merge", &format!("{REQUESTS}/r/approval"), &approval).expect(200);
    let next = certificate(&mut copy, "r");
    device.with(&hub, &next).get(&format!("{NODES}/edge-1")).expect(200);
    assert_eq!(listed(&hub, "edge-1")["waiting"], Value::Null);
}

#[test]
fn denied_or_foreign_node_does_not_return() {
    let hub = Hub::new();
    let device = Device::new("edge-1");
    device.join(&hub, 1000);
    let outcome = hub.command(&["node", "revoke", "edge-1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let mut expired = device.client(&hub, 1000, Duration::days(-1));
    let reply = expired.post(REQUESTS, &device.request("r"));
    assert_eq!((reply.code, &reply.json()["message"]), (401, &json!("Unauthorized")), "it learns nothing");
    // by the authority of another hub, whether it has expired or not
    let other = Hub::new();
    for ends in [-1, 1] {
        let mut stranger = device.with(&hub, &device.certificate(&other, 1000, Duration::days(ends)));
        assert!(stranger.try_send("GET", "/version", &[], b"").is_err(), "{ends}");
    }
}

/// Changes a stored record while the hub is stopped.
fn alter(hub: &Hub, resource: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let store = rusqlite::Connection::open(hub.data_dir.join("state.db")).unwrap();
    let place = [resource, name];
    let found = "SELECT revision, json FROM objects WHERE resource = ?1 AND name = ?2";
    let (revision, json): (i64, Vec<u8>) =
        store.query_row(found, place, |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut value: Value = serde_json::from_slice(&json).unwrap();
    change(&mut value);
    let text = value.to_string();
    let sum = checksum([resource, "", name], revision, text.as_bytes());
    let row = "UPDATE objects SET json = ?3, sum = ?4 WHERE resource = ?1 AND name = ?2";
    assert_eq!(store.execute(row, (resource, name, text.into_bytes(), sum)).unwrap(), 1, "{name}");
}

/// The clock shows 1970, yesterday, a time two years ahead, or 2099: as the newest time in the store has it.
#[test]
fn hub_with_a_wrong_clock_locks_nobody_out() {
    let mut hub = Hub::with(&["--expired-node-may-renew", "0d"]);
    let devices = ["edge-1", "edge-2", "edge-3", "edge-4", "edge-5"].map(Device::new);
    devices.iter().for_each(|device| device.join(&hub, 1000));
    let day = Duration::days(1);
    let clocks = [(-56 * 365, "behind"), (-1, "behind"), (730, "ahead of"), (73 * 365, "ahead of")];
    for (device, (days, side)) in devices.iter().zip(clocks) {
        let newest = OffsetDateTime::now_utc() - days * day;
        hub.stop("TERM");
        alter(&hub, "hubstates.hub.kedge.dev", "clock", |record| {
            record["data"]["newest"] = kedge_hub_core::value::rfc3339(newest).into();
        });
        hub.restart("TERM");
        let verbose = String::from_utf8(hub.anonymous().get("/readyz?verbose").body).unwrap();
        assert!(verbose.contains("[-]clock failed: ") && verbose.contains(side), "{days}: {verbose}");
        // a certificate that is valid by this clock counts
        let path = format!("{NODES}/{}", device.name);
        device.client(&hub, 1000, 100 * day).get(&path).expect(200);
        // a node with an expired one returns, however long ago that was
        let mut expired = device.client(&hub, 1000, -9000 * day);
        expired.post(REQUESTS, &device.request(device.name)).expect(201);
        let next = certificate(&mut expired, device.name);
        device.with(&hub, &next).get(&path).expect(200);
    }
    // with a clock that is right the flag counts
    hub.stop("TERM");
    alter(&hub, "hubstates.hub.kedge.dev", "clock", |record| {
        record["data"]["newest"] = kedge_hub_core::value::rfc3339(OffsetDateTime::now_utc()).into();
    });
    hub.restart("TERM");
    assert_eq!(hub.anonymous().get("/readyz").body, b"ok");
    let late = &devices[4];
    let mut expired = late.client(&hub, 1000, -day);
    expired.post(REQUESTS, &late.request("late")).expect(201);
    assert_eq!(decided(&mut expired, "late", "AwaitingApproval"), "ExpiredTooLong");
}
