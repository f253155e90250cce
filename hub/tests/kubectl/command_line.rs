//! The program `kedge-hub` as an operator starts, stops and misuses it.
//!
//! Holds: a wrong start changes nothing on disk that was there, ends with the right status, and says what to do.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::programs::{Hub, VERSIONS, contains, directory};

fn hub(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kedge-hub")).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn serve(data_dir: &Path, listen: &str) -> (Option<i32>, String, String) {
    hub(&["serve", "--data-dir", data_dir.to_str().unwrap(), "--listen", listen])
}

#[test]
fn help_and_version_go_to_standard_output_and_mistakes_to_standard_error() {
    let (code, out, _) = hub(&["--help"]);
    assert_eq!(code, Some(0));
    contains(&out, &["kedge-hub serve", "node-kubeconfig NAME", "--tls-san", "Exit status"]);
    let (code, out, _) = hub(&["--version"]);
    assert_eq!((code, out), (Some(0), format!("kedge-hub {}\n", env!("CARGO_PKG_VERSION"))));
    let (code, out, err) = hub(&["serve", "--listen", "nonsense"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    contains(&err, &["--listen is \"nonsense\"", "see kedge-hub --help"]);
    assert_eq!(hub(&[]).0, Some(2));
}

#[test]
fn a_hub_starts_in_an_empty_directory_and_stops_when_asked() {
    let parent = directory("starts");
    let mut hub = Hub::start_in(parent.join("new/hub"), &[]);
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
    fs::remove_dir_all(parent).unwrap();
}

#[test]
fn what_hinders_a_start_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = directory("hinders");
    let check = |result: (Option<i32>, String, String), parts: &[&str]| {
        assert_eq!((result.0, result.1.as_str()), (Some(1), ""));
        contains(&result.2, parts);
    };
    check(serve(&data, &address), &["cannot listen on", &address, "another program does"]);
    check(serve(&data, "192.0.2.1:0"), &["cannot listen on 192.0.2.1:0", "no such address"]);
    fs::write(data.join("file"), "").unwrap();
    check(serve(&data.join("file/hub"), "127.0.0.1:0"), &["cannot write", "file/hub"]);
    fs::remove_dir_all(data).unwrap();
}

#[test]
fn two_hubs_do_not_share_a_directory() {
    let hub = Hub::start("shared");
    let (code, _, err) = serve(&hub.data_dir, "127.0.0.1:0");
    assert_eq!(code, Some(1));
    contains(&err, &[hub.data_dir.to_str().unwrap()]);
    assert_eq!(
        fs::read_to_string(hub.data_dir.join("server-url")).unwrap(),
        format!("{}\n", hub.url),
        "untouched"
    );
}

#[test]
fn a_damaged_authority_stops_the_start_and_stays_as_it_is() {
    let mut hub = Hub::start("damaged");
    hub.stop("TERM");
    let path = hub.data_dir.join("pki/ca.pem");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let (code, _, err) = serve(&hub.data_dir, "127.0.0.1:0");
    assert_eq!(code, Some(1));
    contains(&err, &["pki/ca.pem", "not replacing it", "restore the file from a backup"]);
    assert_eq!(fs::read(&path).unwrap(), &whole[..whole.len() / 2]);
    fs::remove_file(&path).unwrap();
    contains(&serve(&hub.data_dir, "127.0.0.1:0").2, &["pki/ca.pem", "missing"]);
    let said = hub.command(&["node-kubeconfig", "edge-1"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    contains(&said.err, &["pki/ca.pem"]);
}

#[test]
fn node_credentials_are_printed_whether_the_hub_runs_or_not() {
    let mut hub = Hub::start("credentials");
    let running = hub.command(&["node-kubeconfig", "edge-1"]);
    hub.stop("TERM");
    let stopped = hub.command(&["node-kubeconfig", "edge-1"]);
    for said in [&running, &stopped] {
        assert_eq!(said.code, Some(0), "{}", said.err);
        contains(
            &said.out,
            &[&format!("server: \"{}\"", hub.url), "user: \"system:node:edge-1\"", "client-key-data: "],
        );
    }
    assert_ne!(running.out, stopped.out, "each call makes a new key");
    let elsewhere = hub.command(&["node-kubeconfig", "edge-1", "--advertise", "hub.example:8443"]);
    contains(&elsewhere.out, &["server: \"https://hub.example:8443\""]);
    assert_eq!(hub.command(&["node-kubeconfig", "Edge_1"]).code, Some(2));
    let empty = directory("credentials-empty");
    let (code, out, err) = self::hub(&["node-kubeconfig", "a", "--data-dir", empty.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    contains(&err, &["no certificate authority in", "kedge-hub serve"]);
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "and nothing was made");
    fs::remove_dir_all(empty).unwrap();
}

#[test]
fn the_advertised_name_stands_in_kubeconfigs_and_in_the_certificate() {
    let hub = Hub::start_in(directory("advertise"), &["--advertise", "hub.invalid", "--tls-san", "10.9.8.7"]);
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
        let said = kubectl.fails(&format!("{reached} --tls-server-name elsewhere.invalid"));
        contains(&said, &["certificate is valid for", "hub.invalid", "not elsewhere.invalid"]);
    }
}

#[test]
fn the_hub_is_reached_over_ipv6_and_on_every_address() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no IPv6 loopback");
        return;
    }
    let loopback = Hub::start_in(directory("ipv6"), &["--listen", "[::1]:0"]);
    assert!(loopback.url.starts_with("https://[::1]:"), "{}", loopback.url);
    let every = Hub::start_in(directory("every"), &["--listen", "[::]:0"]);
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
fn systemd_hears_of_the_start_and_of_the_stop() {
    let data = directory("systemd");
    let path = data.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kedge-hub"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data.join("hub"))
        .env("NOTIFY_SOCKET", &path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let heard = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    contains(&heard(), &["READY=1"]);
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    contains(&heard(), &["STOPPING=1"]);
    assert!(child.wait().unwrap().success());
    fs::remove_dir_all(data).unwrap();
}
