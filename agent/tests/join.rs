//! `kedge join` against false servers: real TLS, the program as it is delivered, and a fake agent that has
//! only the socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use net_server::*;
use ring::hmac;
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::atomic::Ordering;

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const TOKEN: &str = "abc123.0123456789abcdef";

/// cluster-info that this token has signed.
fn cluster_info(authority: &Authority, token: &str) -> String {
    let (id, secret) = token.split_once('.').unwrap();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: https://elsewhere:6443\n    \
         certificate-authority-data: {}\nusers: null\n",
        BASE64_STANDARD.encode(&authority.pem)
    );
    let head = BASE64_URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let signed = format!("{head}.{}", BASE64_URL_SAFE_NO_PAD.encode(&kubeconfig));
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
    let signature = format!("{head}..{}", BASE64_URL_SAFE_NO_PAD.encode(mac));
    json!({"data": {"kubeconfig": kubeconfig, (format!("jws-kubeconfig-{id}")): signature}}).to_string()
}

/// A server with this certificate, which shows everybody this.
fn server(identity: &Identity, shown: String) -> Server {
    let versions = rustls::ALL_VERSIONS;
    let options = ServerOptions { listen: "127.0.0.1:0", identity, clients: None, versions };
    Server::start_with(&options, move |heard| match heard.path.as_str() {
        CLUSTER_INFO => Reply::ok(&shown),
        _ => Reply::status(403, "Forbidden", "not for everybody"),
    })
}

/// A device.
struct Device(Scratch);

impl Device {
    fn new() -> Self {
        let device = Self(Scratch::new("join").unwrap());
        device.0.write("token", format!("{TOKEN}\n"));
        device
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The exit code and the output of the command.
    fn join(&self, server: &Server, flags: &[&str]) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_kedge"))
            .args(["join", &format!("https://{}", server.address), "--environment-file", ""])
            .args(["--token-file", &self.at("token"), "--timeout", "4s"])
            .args(["--node-name", "edge-7"].iter().filter(|_| !flags.contains(&"--node-name")))
            .args([
                "--kubeconfig",
                &self.at("kubeconfig"),
                "--bootstrap-kubeconfig",
                &self.at("etc/bootstrap"),
            ])
            .args(["--root-dir", &self.at("root"), "--run-dir", &self.at("run")])
            .args(flags)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(!said.contains("0123456789abcdef"), "the secret is shown: {said}");
        (output.status.code().unwrap(), said)
    }

    #[track_caller]
    fn is_refused(&self, server: &Server, flags: &[&str], why: &str) {
        let (code, said) = self.join(server, flags);
        assert!(code == 1 && said.contains(why), "{code}: {said}, expected {why}");
        assert!(!self.0.join("etc").exists(), "something was written: {said}");
    }

    /// An agent that answers each question about its state with the next of these reports, and the last one
    /// from then on.
    fn agent(&self, reports: Vec<serde_json::Value>) {
        std::fs::create_dir_all(self.0.join("run")).unwrap();
        let listener = UnixListener::bind(self.0.join("run/kedge.sock")).unwrap();
        std::thread::spawn(move || {
            let mut reports = reports.into_iter().peekable();
            let mut report = reports.next().unwrap();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut heard = [0; 1024];
                let amount = stream.read(&mut heard).unwrap();
                let body = report.to_string();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes());
                if heard[..amount].starts_with(b"GET /status") {
                    report = reports.next().unwrap_or(report);
                }
            }
        });
    }
}

fn ready() -> serde_json::Value {
    json!({"node": "edge-7", "contact": {"state": "made"}, "registered": true, "statusPosts": 1, "ready": {"status": "True"}})
}

#[test]
fn right_server_is_joined_and_a_second_line_changes_nothing() {
    let authority = Authority::new("hub");
    let server = server(&authority.identity(&["127.0.0.1"], NOW), cluster_info(&authority, TOKEN));
    let device = Device::new();
    let waiting = json!({"node": "edge-7", "contact": {"state": "never"},
        "identity": {"state": "waiting", "request": "node-csr-1", "message": "NameTaken"}});
    let (hash, another) = (authority.key_hash(), json!({"node": "raspberrypi"}));
    device.agent(vec![another, waiting, ready()]);
    let (code, said) = device.join(&server, &["--ca-cert-hash", &hash]);
    assert_eq!(code, 0, "{said}");
    for part in ["to restart as edge-7", "approve node-csr-1: NameTaken", "node edge-7 is Ready"] {
        assert!(said.contains(part), "{said}, expected {part}");
    }
    let written = device.0.join("etc/bootstrap");
    let text = std::fs::read_to_string(&written).unwrap();
    assert_eq!(std::fs::metadata(&written).unwrap().permissions().mode() & 0o777, 0o600);
    // the address that was given and tried, not the one that the server names
    for part in [&format!("https://{}", server.address), TOKEN, "system:node:edge-7"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(server.counts.heard().len(), 2);
    assert!(server.counts.heard().iter().all(|heard| heard.header("authorization").is_none()));

    // as once the agent has its certificate
    let token = text.replace("token:", "token: abc #");
    device.0.write("kubeconfig", token);
    std::fs::remove_file(&written).unwrap();
    let (code, said) = device.join(&server, &["--ca-cert-hash", &hash]);
    assert!(code == 0 && said.contains("has joined already") && !written.exists(), "{said}");
    let renamed = device.join(&server, &["--ca-cert-hash", &hash, "--node-name", "edge-8"]);
    assert!(renamed.0 == 1 && renamed.1.contains("this machine is node edge-7"), "{}", renamed.1);
}

#[test]
fn joined_node_is_not_moved_to_another_cluster() {
    let (authority, other) = (Authority::new("hub"), Authority::new("another hub"));
    let first = server(&authority.identity(&["127.0.0.1"], NOW), cluster_info(&authority, TOKEN));
    let second = server(&other.identity(&["127.0.0.1"], NOW), cluster_info(&other, TOKEN));
    let device = Device::new();
    device.agent(vec![ready()]);
    assert_eq!(device.join(&first, &["--ca-cert-hash", &authority.key_hash()]).0, 0);
    std::fs::rename(device.0.join("etc/bootstrap"), device.0.join("kubeconfig")).unwrap();
    std::fs::remove_dir_all(device.0.join("etc")).unwrap();
    let leave = format!("this machine is node edge-7 of https://{}", first.address);
    device.is_refused(&second, &["--ca-cert-hash", &other.key_hash()], &leave);
    assert!(second.counts.heard().is_empty(), "nobody was asked");
}

#[test]
fn each_failed_check_is_named_and_nothing_is_written() {
    let (authority, other) = (Authority::new("hub"), Authority::new("rogue"));
    let hash = authority.key_hash();
    let pinned = ["--ca-cert-hash", hash.as_str()];
    let own = authority.identity(&["127.0.0.1"], NOW);
    let device = Device::new();

    let rogue = server(&other.identity(&["127.0.0.1"], NOW), cluster_info(&other, TOKEN));
    device.is_refused(&rogue, &pinned, &format!("{}, expected {hash}", other.key_hash()));
    // it hands on what the right server says
    let relay = server(&other.identity(&["127.0.0.1"], NOW), cluster_info(&authority, TOKEN));
    device.is_refused(&relay, &pinned, "none of its own that verifies under it");
    device.is_refused(&relay, &["--unsafe-skip-ca-verification"], "none of its own that verifies under it");
    let elsewhere = server(&authority.identity(&["elsewhere"], NOW), cluster_info(&authority, TOKEN));
    device.is_refused(&elsewhere, &pinned, "for this address");
    let expired = server(&authority.identity(&["127.0.0.1"], (2020, 2021)), cluster_info(&authority, TOKEN));
    device.is_refused(&expired, &pinned, "expired");

    let forgetful = server(&own, cluster_info(&authority, "zzz123.0123456789abcdef"));
    device.is_refused(&forgetful, &["--unsafe-skip-ca-verification"], "abc123 has not signed");
    let forger = server(&own, cluster_info(&authority, "abc123.fedcba9876543210"));
    device.is_refused(&forger, &pinned, "is not by this token abc123");
    let closed = Server::start_with(
        &ServerOptions {
            listen: "127.0.0.1:0",
            identity: &own,
            clients: None,
            versions: rustls::ALL_VERSIONS,
        },
        |_| Reply::status(403, "Forbidden", "not for everybody"),
    );
    device.is_refused(&closed, &pinned, "shows this to everybody");
    let silent = Server::start(&authority, |_| Reply::ok("{}"));
    device.is_refused(&silent, &pinned, "no connection within 4 s");
    assert!(silent.counts.connections.load(Ordering::SeqCst) > 1, "tried once only");
}
