//! Prometheus itself, as Debian has it, scrapes the hub with the role that the guide gives it. Skipped where
//! the program is not installed.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::programs::{contains, until, with_newest_kubectl};
use crate::server::Hub;

/// The manifest of the guide that is about Prometheus.
fn manifest() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides/rights.md");
    let page = fs::read_to_string(page).unwrap();
    let mut all = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    all.find(|one| one.contains("name: prometheus")).unwrap().to_owned()
}

/// The answer of a Prometheus on this port to a request of its API.
fn asked(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

/// The value of an instant query of one series.
fn value(port: u16, query: &str) -> Option<String> {
    let found = asked(port, &format!("/api/v1/query?query={query}"))?;
    Some(found["data"]["result"][0]["value"][1].as_str()?.to_owned())
}

/// Ends the program also when a step fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Prometheus with its files in this folder, and its port.
fn started(folder: &Path) -> (Ended, u16) {
    for _ in 0..10 {
        // it takes no port 0: one that is free now, unless another program is faster
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut child = Ended(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let mut has_ended = false;
        until(|| {
            has_ended = child.0.try_wait().unwrap().is_some();
            has_ended || value(port, "up{job=\"hub\"}").is_some()
        });
        if !has_ended {
            return (child, port);
        }
    }
    panic!("{}", fs::read_to_string(folder.join("log")).unwrap());
}

fn token(hub: &Hub) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts/prometheus/token";
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    hub.admin().post(path, &request).expect(201)["status"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn prometheus_scrapes_with_a_role_of_its_own() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        let _ = std::io::stderr().write_all(b"SKIPPED: prometheus is not installed\n");
        return;
    }
    with_newest_kubectl(|hub, kubectl| {
        kubectl.ok_with("apply -f -", &manifest());
        let folder = hub.data_dir.join("prometheus");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("token"), token(hub)).unwrap();
        let target = hub.url.strip_prefix("https://").unwrap();
        let authority = hub.data_dir.join("ca.crt");
        let (authority, token) = (authority.display(), folder.join("token"));
        let job = |name: &str, credentials: &str| {
            format!(
                "- job_name: {name}\n  scheme: https\n  scrape_interval: 1s\n{credentials}  tls_config: {{ca_file: '{authority}'}}\n  \
                 static_configs: [{{targets: ['{target}']}}]\n"
            )
        };
        let own = format!("  authorization: {{credentials_file: '{}'}}\n", token.display());
        let config = format!("scrape_configs:\n{}{}", job("hub", &own), job("nobody", ""));
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        let (_child, port) = started(&folder);
        until(|| value(port, "up{job=\"hub\"}").as_deref() == Some("1"));
        until(|| value(port, "up{job=\"nobody\"}").as_deref() == Some("0"));
        assert_eq!(value(port, "kedge_hub_store_writable{job=\"hub\"}").as_deref(), Some("1"));
        let targets = asked(port, "/api/v1/targets").unwrap();
        contains(&targets.to_string(), &["401 Unauthorized"]);

        // Prometheus gets no figures without the right
        kubectl.ok("delete clusterrolebinding prometheus");
        until(|| value(port, "up{job=\"hub\"}").as_deref() == Some("0"));
        contains(&asked(port, "/api/v1/targets").unwrap().to_string(), &["403 Forbidden"]);
    });
}
