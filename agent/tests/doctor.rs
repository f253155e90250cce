//! `kedge doctor` against real sockets: it finds and names each fault, says what to do about it, and skips
//! the steps after it. Every command is the real program.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use net_server::*;
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

const NODE: &str = "edge-1";

/// The findings of one run of the doctor.
struct Found {
    code: Option<i32>,
    findings: Vec<Value>,
}

impl Found {
    /// The findings of one check, as `LEVEL found`.
    fn of(&self, check: &str) -> Vec<String> {
        let of_check = self.findings.iter().filter(|finding| finding["check"] == check);
        let line = |finding: &Value| {
            format!("{} {}", finding["level"].as_str().unwrap(), finding["found"].as_str().unwrap())
        };
        of_check.map(line).collect()
    }

    #[track_caller]
    fn has(&self, check: &str, begin: &str, part: &str) {
        let found = self.of(check);
        let is_there = found.iter().any(|line| line.starts_with(begin) && line.contains(part));
        assert!(is_there, "{check}: expected {begin:?} with {part:?} in {:#?}", self.findings);
    }
}

fn doctor(arguments: &[&str], path: Option<&str>) -> Found {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command.args(["doctor", "--environment-file", "", "--config-dir", "", "--hostname-override", NODE]);
    command.args(["--output", "json"]).args(arguments).env_remove("HTTPS_PROXY").env_remove("https_proxy");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().unwrap();
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    for finding in &findings {
        assert_eq!(
            finding["level"] == "OK",
            finding["advice"].is_null(),
            "advice where something is wrong: {finding}"
        );
    }
    Found { code: output.status.code(), findings }
}

/// Runs the checks on the way to this server, with the kubeconfig of a node.
fn on_the_way(authority: &Authority, identity_of: &Authority, server: &str) -> Found {
    let bench = Bench::with(authority, identity_of, server, "", kedge::net::transport::system_clock());
    let kubeconfig = bench.folder.join("kubeconfig").display().to_string();
    let root = bench.folder.join("root").display().to_string();
    doctor(&["--kubeconfig", &kubeconfig, "--root-dir", &root, "--run-dir", &root], None)
}

fn to_server(authority: &Authority, script: impl Fn(&Heard) -> Reply + Send + Sync + 'static) -> Found {
    let server = Server::start(authority, script);
    on_the_way(authority, authority, &format!("https://{}", server.address))
}

/// Like a server that serves reviews and allows everything but `forbidden`.
fn allowing(heard: &Heard, forbidden: &str) -> Reply {
    if heard.path.starts_with("/version") {
        return Reply::ok(r#"{"gitVersion":"v1.36.0"}"#);
    }
    if heard.path.contains("selfsubjectaccessreviews") {
        let review: Value = serde_json::from_str(&heard.body).unwrap();
        let attributes = &review["spec"]["resourceAttributes"];
        let word = |name: &str| attributes[name].as_str().unwrap_or_default().to_owned();
        let asked = format!("{} {} {}", word("verb"), word("resource"), word("subresource"));
        return Reply::ok(&json!({"status": {"allowed": asked.trim() != forbidden}}).to_string());
    }
    let source = r#"{"configMap":{"namespace":"site","name":"edge","kubeletConfigKey":"kubelet"}}"#;
    let metadata = json!({"name": NODE, "annotations": {"kedge.dev/config-source": source}});
    Reply::ok(&json!({"items": [{"metadata": metadata, "spec": {}}]}).to_string())
}

#[test]
fn whole_way_is_walked_and_rights_are_asked() {
    let authority = Authority::new("ca");
    let found = to_server(&authority, |heard| allowing(heard, ""));
    found.has("kubeconfig", "OK", "https://127.0.0.1");
    found.has("kubeconfig", "OK", "client certificate holds");
    found.has("tcp", "OK", "connected to 127.0.0.1");
    found.has("tls", "OK", "by chain, name and time");
    found.has("tls", "OK", "server's certificate holds");
    found.has("request", "OK", "version v1.36.0");
    found.has("rights", "OK", "9 of 9");
    found.has("node", "OK", "ConfigMap site/edge, and may read it");
}

#[test]
fn source_is_judged_as_the_agent_does() {
    let authority = Authority::new("ca");
    let check = |source: Value, level: &str, part: &str| {
        let found = to_server(&authority, move |heard| match heard.path.contains("/nodes?") {
            true => Reply::ok(
                &json!({"items": [{"metadata": {"name": NODE}, "spec": {"configSource": source}}]})
                    .to_string(),
            ),
            false => allowing(heard, ""),
        });
        found.has("node", level, part);
    };
    let pinned = json!({"configMapRef": {"namespace": "site", "name": "pinned", "uid": "u-1"}});
    check(pinned, "OK", "ConfigMap site/pinned, and may read it");
    let following =
        json!({"configMap": {"namespace": "site", "name": "edge", "kubeletConfigKey": "kubelet"}});
    check(following, "OK", "ConfigMap site/edge, and may read it");
    check(Value::Null, "OK", "asks for no ConfigMap");
    let without_uid = json!({"configMapRef": {"namespace": "site", "name": "pinned"}});
    check(without_uid, "FAIL", "invalid ObjectReference, all of UID, Name, and Namespace must be specified");
}

#[test]
fn missing_right_is_named_with_what_is_lost() {
    let authority = Authority::new("ca");
    for (forbidden, part) in [
        ("patch nodes status", "may not patch nodes/status edge-1: the node's status"),
        ("patch leases", "may not patch leases edge-1: the node is taken for lost"),
        ("watch configmaps", "may not watch ConfigMap site/edge"),
    ] {
        let found = to_server(&authority, move |heard| allowing(heard, forbidden));
        found.has("rights", "FAIL", part);
        let is_partly_ok = |line: &String| line.starts_with("OK") && !line.contains("9 of 9");
        assert!(!found.of("rights").iter().any(is_partly_ok), "{:?}", found.of("rights"));
        assert_eq!(found.code, Some(1));
    }
    let found = to_server(&authority, |heard| match heard.path.as_str() {
        path if path.contains("selfsubjectaccessreviews") => Reply::status(404, "NotFound", "no such kind"),
        path if path.contains("/leases/") => Reply::status(403, "Forbidden", "not yours"),
        _ => allowing(heard, ""),
    });
    found.has("rights", "FAIL", "/leases/edge-1?dryRun=All: refused (403 Forbidden): not yours");
}

#[test]
fn wrong_certificate_is_told_by_chain_name_and_time() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let listen = |identity: &Identity| {
        let options = ServerOptions {
            listen: "127.0.0.1:0",
            identity,
            clients: Some(&authority),
            versions: rustls::ALL_VERSIONS,
        };
        Server::start_with(&options, |heard| allowing(heard, "")).address
    };
    let check = |address: SocketAddr, part: &str| {
        let found = on_the_way(&authority, &authority, &format!("https://{address}"));
        found.has("tls", "FAIL", part);
        assert_eq!((found.of("request").len(), found.code), (0, Some(1)), "the steps after it are not taken");
    };
    check(listen(&other.identity(&["127.0.0.1"], NOW)), "does not verify");
    check(listen(&authority.identity(&["hub.example"], NOW)), "not for 127.0.0.1");
    check(listen(&authority.identity(&["127.0.0.1"], (2020, 2021))), "has ended");
    check(listen(&authority.identity(&["127.0.0.1"], (2110, 2120))), "not valid yet");
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = plain.accept() {
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    check(address, "");
}

#[test]
fn unreachable_or_refusing_server_is_told() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let found = on_the_way(&authority, &authority, &format!("https://{gone}"));
    found.has("tcp", "FAIL", "refused");
    assert_eq!(found.of("tls").len(), 0);
    let server = Server::start(&authority, |heard| allowing(heard, ""));
    let found = on_the_way(&authority, &other, &format!("https://{}", server.address));
    found.has("request", "FAIL", "certificate");
    let found = to_server(&authority, |_| Reply::status(401, "Unauthorized", "who are you"));
    found.has("request", "FAIL", "does not accept our credentials");
    let found = to_server(&authority, |heard| match heard.path.as_str() {
        "/version" => Reply::AnswerWith(200, "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "{}".into()),
        _ => allowing(heard, ""),
    });
    found.has("clock", "WARN", "ahead of the server's");
}

#[test]
fn broken_kubeconfig_ends_the_way() {
    let folder = Scratch::new("doctor").unwrap();
    let missing = folder.join("missing").display().to_string();
    let found = doctor(&["--kubeconfig", &missing], None);
    found.has("kubeconfig", "FAIL", &missing);
    let wrong = folder.write("wrong", "apiVersion: v1\nkind: Config\n").display().to_string();
    doctor(&["--kubeconfig", &wrong], None).has("kubeconfig", "FAIL", "current-context");
    doctor(&[], None).has("kubeconfig", "WARN", "no --kubeconfig");
    assert_eq!(found.of("tcp").len(), 0);
}

/// An agent that answers these paths, and nothing else.
fn answering(run: &std::path::Path, answers: Vec<(&'static str, Value)>) {
    std::fs::create_dir_all(run).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(run.join("kedge.sock")).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = socket.accept() {
            let mut asked = [0; 4096];
            let count = std::io::Read::read(&mut stream, &mut asked).unwrap_or(0);
            let asked = String::from_utf8_lossy(&asked[..count]).into_owned();
            let answer = answers.iter().find(|(path, _)| asked.starts_with(&format!("GET {path} ")));
            let (code, body) = answer.map_or((404, String::new()), |(_, body)| (200, body.to_string()));
            let _ = write!(stream, "HTTP/1.1 {code} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
}

/// A registry that has no TLS, as the first one of a lab: it answers whatever it hears.
fn plain_registry() -> SocketAddr {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = plain.accept() {
            let _ = std::io::Read::read(&mut socket, &mut [0; 4096]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    address
}

#[test]
fn node_without_crun_says_how_to_get_pods() {
    let found = doctor(&["--crun", "/nosuch/crun"], None);
    found.has("crun", "FAIL", "no pod can begin here: /nosuch/crun is not there");
    let advice = found.findings.iter().find(|finding| finding["check"] == "crun").unwrap();
    assert!(advice["advice"].as_str().unwrap().contains("apt install crun; the agent notices by itself"));
    doctor(&["--crun", ""], None).has("crun", "OK", "this node runs no pods");
}

#[test]
fn registry_without_tls_is_named_with_the_setting() {
    let folder = Scratch::new("doctor").unwrap();
    let (run, registry) = (folder.join("run"), plain_registry());
    let pods = json!({"pods": [{"namespace": "a", "name": "b", "containers": [
        {"name": "c", "image": format!("{registry}/team/app:1"), "reason": "ErrImagePull"}]}]});
    answering(
        &run,
        vec![("/status", json!({"flags": {"crun": env!("CARGO_BIN_EXE_kedge")}})), ("/pods", pods)],
    );
    let found = doctor(&["--run-dir", run.to_str().unwrap()], None);
    found.has("pods", "WARN", "a/b: c: ErrImagePull");
    let setting = format!("answers in plain HTTP: list {registry} under kedge.images.insecureRegistries");
    found.has("registry", "WARN", &setting);
}

/// The agent may have been started by something else than the unit, with other flags.
#[test]
fn agent_that_runs_is_asked_for_its_flags() {
    let folder = Scratch::new("doctor").unwrap();
    let run = folder.join("run");
    let kubeconfig = folder.join("kubeconfig").display().to_string();
    let status = json!({"node": NODE, "server": {"kubeconfig": kubeconfig},
        "flags": {"crun": "/nosuch/crun", "cgroupRoot": "/nosuch"}});
    answering(&run, vec![("/status", status)]);
    let found = doctor(&["--run-dir", run.to_str().unwrap()], None);
    found.has("kubeconfig", "FAIL", &kubeconfig);
    found.has("crun", "FAIL", "no pod can begin here: /nosuch/crun is not there");
}

#[test]
fn disk_that_hangs_gathers_no_processes() {
    let folder = Scratch::new("doctor").unwrap();
    let (root, run) = (folder.join("root"), folder.join("run"));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(run.join("doctor")).unwrap();
    let arguments = ["--root-dir", root.to_str().unwrap(), "--run-dir", run.to_str().unwrap()];
    // an earlier write that waits does the same
    let held = std::fs::File::open(run.join("doctor")).unwrap();
    held.try_lock().unwrap();
    doctor(&arguments, None).has("disk", "FAIL", "earlier kedge doctor still waits");
    drop(held);
    doctor(&arguments, None).has("disk", "OK", "durable write");
    // an agent that waits for its disk: nothing is written there, however long the disk would take
    let socket = std::os::unix::net::UnixListener::bind(run.join("kedge.sock")).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = socket.accept() {
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let body = json!({"disk": {"stalledSeconds": 200}}).to_string();
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    let found = doctor(&arguments, None);
    found.has("disk", "FAIL", "has waited for its disk for 3 min");
    assert_eq!(found.of("disk").len(), 1, "{:?}", found.of("disk"));
}

#[test]
fn node_itself_is_looked_at() {
    let folder = Scratch::new("doctor").unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let config = folder.write(
        "config.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: many\n",
    );
    // a unit that has failed, as systemctl shows it
    let shown = "LoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=disabled\nNRestarts=7\nWatchdogUSec=0\n\
        ExecStart={ path=/usr/bin/kedge ; argv[]=/usr/bin/kedge agent --v 4 ; ignore_errors=no ; }";
    let systemctl = folder.write("bin/systemctl", format!("#!/bin/sh\necho '{shown}'\n"));
    std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir_all(folder.join("root")).unwrap();
    let held = std::fs::File::open(folder.join("root")).unwrap();
    held.try_lock().unwrap();
    let bin = format!("{}:/usr/bin:/bin", at("bin"));
    let arguments =
        ["--config", &config.display().to_string(), "--root-dir", &at("root"), "--run-dir", &at("run")];
    let found = doctor(&arguments, Some(&bin));
    found.has("config", "FAIL", "maxPods");
    found.has("agent", "FAIL", "no agent runs here");
    found.has("lock", "FAIL", &format!("process {} ", std::process::id()));
    found.has("unit", "FAIL", "failed (failed), 7 restarts");
    found.has("unit", "WARN", "disabled");
    found.has("unit", "WARN", "no watchdog");
    found.has("unit", "WARN", "ExecStart=/usr/bin/kedge agent --v 4");
    found.has("disk", "OK", "durable write");
    assert_eq!(found.code, Some(1));
    drop(held);
    let left: Vec<_> = std::fs::read_dir(folder.join("root")).unwrap().collect();
    assert!(left.is_empty(), "the doctor leaves nothing behind: {left:?}");
    // nothing can be written below /proc, and it has no room
    let found = doctor(&["--root-dir", "/proc", "--run-dir", &at("run")], Some("/none"));
    found.has("disk", "FAIL", "free");
    found.has("unit", "WARN", "no systemctl");
    found.has("lock", "OK", "nobody holds /proc");
}
