//! The program `kedge-hub`, started, stopped and misused by an operator.
//!
//! A failed start changes no existing file, exits with the right status, and reports the remedy.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::programs::{VERSIONS, contains};
use crate::server::{Hub, Outcome, run, scratch};

fn hub(words: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
    command.args(words);
    run(command, "")
}

fn serve(data_dir: &Path, listen: &str) -> Outcome {
    hub(&["serve", "--data-dir", data_dir.to_str().unwrap(), "--listen", listen])
}

/// A command that prints nothing on standard output and explains itself on standard error.
#[track_caller]
fn fails(outcome: &Outcome, code: i32, parts: &[&str]) {
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""));
    contains(&outcome.err, parts);
}

#[test]
fn help_goes_to_stdout_and_mistakes_to_stderr() {
    let help = hub(&["--help"]);
    assert_eq!(help.code, Some(0));
    contains(&help.out, &["kedge-hub COMMAND", "node-kubeconfig", "user create", "Exit status"]);
    let version = hub(&["--version"]);
    assert_eq!((version.code, version.out), (Some(0), format!("kedge-hub {}\n", env!("CARGO_PKG_VERSION"))));
    let listen = hub(&["serve", "--listen", "nonsense"]);
    fails(&listen, 2, &["--listen is \"nonsense\"", "see kedge-hub --help"]);
    assert_eq!(hub(&[]).code, Some(2));
}

#[test]
fn first_start_creates_files_and_sigterm_stops() {
    let parent = scratch();
    let mut hub = Hub::start(&parent.path().join("new/hub"));
    for (file, mode) in [
        ("admin.kubeconfig", 0o600),
        ("pki/ca.pem", 0o600),
        ("ca.crt", 0o644),
        ("server-url", 0o644),
        ("state.db", 0o600),
        ("state.db-wal", 0o600),
    ] {
        let found = fs::metadata(hub.data_dir.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
    assert_eq!(fs::metadata(&hub.data_dir).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_to_string(hub.data_dir.join("server-url")).unwrap(), format!("{}\n", hub.url));
    contains(
        &fs::read_to_string(hub.data_dir.join("admin.kubeconfig")).unwrap(),
        &[&format!("server: \"{}\"", hub.url)],
    );
    let (code, took) = hub.stop("TERM");
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(10), "{took:?}");
    hub.restart("TERM");
    assert_eq!(hub.stop("INT").0, Some(0));
}

#[test]
fn failed_start_names_its_cause() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = scratch();
    fails(&serve(data.path(), &address), 1, &["cannot listen on", &address, "another program does"]);
    fails(&serve(data.path(), "192.0.2.1:0"), 1, &["cannot listen on 192.0.2.1:0", "no such address"]);
    fs::write(data.path().join("file"), "").unwrap();
    fails(&serve(&data.path().join("file/hub"), "127.0.0.1:0"), 1, &["cannot write", "file/hub"]);
}

#[test]
fn second_hub_on_a_directory_is_refused() {
    let hub = Hub::new();
    fails(&serve(&hub.data_dir, "127.0.0.1:0"), 1, &[hub.data_dir.to_str().unwrap()]);
    assert_eq!(
        fs::read_to_string(hub.data_dir.join("server-url")).unwrap(),
        format!("{}\n", hub.url),
        "untouched"
    );
}

#[test]
fn damaged_authority_fails_the_start_and_is_kept() {
    let mut hub = Hub::new();
    hub.stop("TERM");
    let path = hub.data_dir.join("pki/ca.pem");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let damaged = serve(&hub.data_dir, "127.0.0.1:0");
    fails(&damaged, 1, &["pki/ca.pem", "not replacing it", "restore the file from a backup"]);
    assert_eq!(fs::read(&path).unwrap(), &whole[..whole.len() / 2]);
    fs::remove_file(&path).unwrap();
    fails(&serve(&hub.data_dir, "127.0.0.1:0"), 1, &["pki/ca.pem", "missing"]);
    fails(&hub.command(&["node-kubeconfig", "edge-1"]), 1, &["pki/ca.pem"]);
}

#[test]
fn node_kubeconfig_works_with_and_without_a_running_hub() {
    let mut hub = Hub::new();
    let running = hub.command(&["node-kubeconfig", "edge-1"]);
    hub.stop("TERM");
    let stopped = hub.command(&["node-kubeconfig", "edge-1"]);
    for outcome in [&running, &stopped] {
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        contains(
            &outcome.out,
            &[&format!("server: \"{}\"", hub.url), "user: \"system:node:edge-1\"", "client-key-data: "],
        );
    }
    assert_ne!(running.out, stopped.out, "each call makes a new key");
    let elsewhere = hub.command(&["node-kubeconfig", "edge-1", "--advertise", "hub.example:8443"]);
    contains(&elsewhere.out, &["server: \"https://hub.example:8443\""]);
    assert_eq!(hub.command(&["node-kubeconfig", "Edge_1"]).code, Some(2));
    let empty = scratch();
    let without_authority =
        self::hub(&["node-kubeconfig", "a", "--data-dir", empty.path().to_str().unwrap()]);
    fails(&without_authority, 1, &["no certificate authority in", "kedge-hub serve"]);
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0, "nothing is created");
}

#[test]
fn advertised_name_is_in_kubeconfigs_and_certificate() {
    let hub = Hub::with(&["--advertise", "hub.invalid", "--tls-san", "10.9.8.7"]);
    let port = hub.url.rsplit_once(':').unwrap().1;
    assert_eq!(hub.url, format!("https://hub.invalid:{port}"));
    contains(&hub.command(&["node-kubeconfig", "a"]).out, &[&hub.url]);
    for version in VERSIONS {
        let Some(kubectl) = hub.find_kubectl(version) else { continue };
        let reached = format!("get ns -o name --server https://127.0.0.1:{port}");
        contains(&kubectl.ok(&reached), &["namespace/default"]);
        if version == "1.20" {
            continue;
        }
        for name in ["hub.invalid", "10.9.8.7", "localhost"] {
            kubectl.ok(&format!("{reached} --tls-server-name {name}"));
        }
        let error = kubectl.fails(&format!("{reached} --tls-server-name elsewhere.invalid"));
        contains(&error, &["certificate is valid for", "hub.invalid", "not elsewhere.invalid"]);
    }
}

#[test]
fn hub_listens_on_ipv6_and_on_every_address() {
    if TcpListener::bind("[::1]:0").is_err() {
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: this machine has no IPv6 loopback");
        return;
    }
    let loopback = Hub::with(&["--listen", "[::1]:0"]);
    assert!(loopback.url.starts_with("https://[::1]:"), "{}", loopback.url);
    let every = Hub::with(&["--listen", "[::]:0"]);
    assert!(every.url.starts_with("https://[::1]:"), "{}", every.url);
    contains(&every.log(), &["listening on every address without --advertise: node kubeconfigs will name"]);
    let port = every.url.rsplit_once(':').unwrap().1;
    for version in VERSIONS {
        for hub in [&loopback, &every] {
            let Some(kubectl) = hub.find_kubectl(version) else { continue };
            contains(&kubectl.ok("get ns -o name"), &["namespace/default"]);
        }
        let Some(kubectl) = every.find_kubectl(version) else { continue };
        contains(
            &kubectl.ok(&format!("get ns -o name --server https://127.0.0.1:{port}")),
            &["namespace/default"],
        );
    }
}

#[test]
fn systemd_is_notified_of_start_and_stop() {
    let data = scratch();
    let path = data.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kedge-hub"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data.path().join("hub"))
        .env("NOTIFY_SOCKET", &path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let next_message = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    contains(&next_message(), &["READY=1"]);
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    contains(&next_message(), &["STOPPING=1"]);
    assert!(child.wait().unwrap().success());
}
