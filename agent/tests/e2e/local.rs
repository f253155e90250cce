//! The local configuration: layers, the check, the refusal to start.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use kedge_rig::cluster::HEADER;
use kedge_rig::scratch::{Scratch, wait_until};
use serde_json::{Value, json};

use crate::setup::{NODE, Setup, plain};

const KEP_BASE: &str = "\
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
clusterDNS:
- 1.2.3.4
- 1.2.3.5
";

fn write(scratch: &Scratch, name: &str, fields: &str) -> String {
    let path = scratch.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, format!("{HEADER}{fields}")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn kedge(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kedge")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// `GET path` on the agent's socket.
fn get(socket: &Path, path: &str) -> Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: kedge\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn kep_3983_example_is_merged_as_specified() {
    let scratch = Scratch::new("kep").unwrap();
    let base = write(&scratch, "base.yaml", KEP_BASE);
    let mut options = plain();
    options.flags = vec!["--config".into(), base.into()];
    let mut setup = Setup::new("kep", options);
    setup.agent_mut().stop().unwrap();
    let drop_in =
        |name: &str, fields: &str| setup.agent().write_drop_in(name, &format!("{HEADER}{fields}")).unwrap();
    drop_in("20-x509.conf", "authentication:\n  x509:\n    clientCAFile: /some/new/location\n");
    drop_in("30-dns.conf", "clusterDNS:\n- 1.2.3.6\n");
    drop_in("40-ignored.txt", "clusterDNS:\n- 9.9.9.9\n");
    setup.agent_mut().start().unwrap();

    let expect = json!({
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/some/new/location"}
        },
        "clusterDNS": ["1.2.3.6"]
    });
    let configz = get(&setup.agent().run_dir().join("kedge.sock"), "/configz");
    for field in ["authentication", "clusterDNS"] {
        assert_eq!(configz["kubeletconfig"][field], expect[field], "{configz}");
    }
    // the doctor finds nothing wrong with a node that works, but for systemd, which does not run it
    let (kubeconfig, drop_ins) = (setup.agent().kubeconfig(), setup.agent().drop_in_dir());
    let arguments = ["doctor", "--hostname-override", NODE, "--output", "json", "--kubeconfig"];
    let places = [kubeconfig.to_str().unwrap(), "--config-dir", drop_ins.to_str().unwrap()];
    let (_, found, complaint) = setup.agent().kedge(&[&arguments[..], &places[..]].concat()).unwrap();
    let found: Vec<Value> =
        serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {complaint}"));
    let failed: Vec<&Value> =
        found.iter().filter(|finding| finding["level"] == "FAIL" && finding["check"] != "unit").collect();
    assert!(failed.is_empty(), "{failed:?}");
    let clock = found.iter().find(|finding| finding["check"] == "clock").expect("clocks are compared");
    assert_eq!((&clock["level"], &clock["found"]), (&json!("OK"), &json!("agrees with the server's")));
    let rights = found.iter().find(|finding| finding["check"] == "rights").expect("rights are asked for");
    assert!(rights["found"].as_str().unwrap().contains("9 of 9"), "{rights}");
    let (code, shown, complaint) = setup.agent().kedge(&["config", "show"]).unwrap();
    assert_eq!(code, 0, "{complaint}");
    let line =
        shown.lines().find(|line| line.contains("/some/new/location")).expect("the drop-in's value is shown");
    assert!(line.contains("20-x509.conf"), "the layer that set it is not named: {line}");
}

#[test]
fn config_check_needs_no_hub() {
    let scratch = Scratch::new("check").unwrap();
    let good = write(&scratch, "good.yaml", "maxPods: 20\n");
    let typo = write(&scratch, "typo.yaml", "maxPod: 20\n");
    let nonsense = write(&scratch, "nonsense.yaml", "crashLoopThreshold: 11\n");
    // the agent starts with it, and holds it at the bound
    let beyond = write(&scratch, "beyond.yaml", "nodeLeaseDurationSeconds: 300\n");
    let (code, out, complaint) = kedge(&["config", "check", "--config", &good, "--config-dir", ""]);
    assert_eq!(code, Some(0), "{out}{complaint}");
    for (file, field) in [(&typo, "maxPod"), (&nonsense, "rashLoopThreshold"), (&beyond, "; using 160")] {
        let (code, out, complaint) = kedge(&["config", "check", "--config", file, "--config-dir", ""]);
        assert!(code.is_some_and(|code| code != 0), "{file}");
        let said = format!("{out}{complaint}");
        assert!(said.contains(file.as_str()) && said.contains(field), "{said}");
    }
    // a manifest is checked by one of its keys, with the local configuration that the service would use
    let flags = format!("KEDGE_FLAGS=\"--config {good} --config-dir ''\"\n");
    let environment = scratch.write("environment", flags).display().to_string();
    let indented = |fields: &str| format!("{HEADER}{fields}").replace('\n', "\n    ");
    let manifest = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: edge\ndata:\n  good: |\n    {}\n  bad: |\n    {}\n",
        indented("maxPods: 20\n"),
        indented("maxPods: many\n"),
    );
    let manifest = scratch.write("map.yaml", manifest).display().to_string();
    let judge = |more: &[&str]| {
        let arguments = ["config", "check", "--environment-file", &environment];
        kedge(&[&arguments, more].concat())
    };
    let (code, out, complaint) = judge(&["--key", "good", &manifest]);
    assert_eq!(code, Some(0), "{out}{complaint}");
    assert!(out.contains(&format!("# config file {good}")) && out.contains("the service's flags"), "{out}");
    assert!(out.contains(&format!("{manifest}, as if it were pushed: valid")), "{out}");
    let (code, out, _) = judge(&["--key", "bad", &manifest]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("ConfigMap edge, key bad") && out.contains("maxPods"), "{out}");
    let (code, out, _) = judge(&[&manifest]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("choose one with --key"), "{out}");
    scratch.write("environment", format!("KEDGE_FLAGS=--config {typo}\n"));
    let (code, out, _) = judge(&[]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("maxPod"), "the service would refuse to start: {out}");
}

#[test]
fn invalid_local_config_refuses_to_start() {
    let scratch = Scratch::new("refuse").unwrap();
    let root = scratch.path().join("root");
    let file = write(&scratch, "conf.d/10-bad.conf", "maxPods: many\n");
    let dir = scratch.path().join("conf.d");
    let (code, _, said) = kedge(&[
        "agent",
        "--root-dir",
        root.to_str().unwrap(),
        "--config-dir",
        dir.to_str().unwrap(),
        "--hostname-override",
        "edge-1",
        "--kubeconfig",
        "/nonexistent",
    ]);
    assert!(code.is_some_and(|code| code != 0), "{said}");
    assert!(said.contains(&file) && said.contains("maxPods"), "{said}");
    // and without an agent it says so, too
    let (root_dir, drop_ins) = (root.to_str().unwrap(), dir.to_str().unwrap());
    let arguments = ["--root-dir", root_dir, "--run-dir", root_dir, "--config-dir", drop_ins];
    let (code, _, said) = kedge(&[&["config", "status"], arguments.as_slice()].concat());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the next start would refuse") && said.contains("maxPods"), "{said}");
    let startups = root.join("config").join(env!("CARGO_PKG_VERSION")).join("startups.json");
    assert!(!startups.exists(), "a refused start counts nothing");
}

/// An agent that a test started without a supervisor: it ends with the test, also with one that fails.
struct Alone(Child);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signal_sent_by_hand_is_no_crash() {
    let scratch = Scratch::new("signals").unwrap();
    let at = |name: &str| scratch.join(name).display().to_string();
    let agent = Command::new(env!("CARGO_BIN_EXE_kedge"))
        .args(["agent", "--hostname-override", NODE, "--config-dir", ""])
        .args(["--root-dir", &at("state"), "--run-dir", &at("run")])
        .env_remove("NOTIFY_SOCKET")
        .stderr(std::fs::File::create(scratch.join("log")).unwrap())
        .spawn()
        .unwrap();
    let mut agent = Alone(agent);
    let pid = agent.0.id().to_string();
    let logs = |text: &str| {
        wait_until(text, Duration::from_secs(60), || {
            std::fs::read_to_string(scratch.join("log")).unwrap().contains(text)
        });
    };
    let send = |name: &str| {
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    };
    logs("ConfigOK=True");
    for name in ["HUP", "USR1", "USR2"] {
        send(name);
        logs(&format!("SIG{name}"));
    }
    send("QUIT");
    logs("asked to stop by SIGQUIT");
    assert_eq!(agent.0.wait().unwrap().code(), Some(0));
}

#[test]
fn history_names_what_was_set_aside_and_what_is_unreadable() {
    let scratch = Scratch::new("history").unwrap();
    let root = scratch.path().display().to_string();
    let history = |more: &[&str]| {
        let (code, out, complaint) =
            kedge(&[&["config", "history", "--root-dir", &root, "--run-dir", &root], more].concat());
        assert_eq!(code, Some(0), "{complaint}");
        out
    };
    assert_eq!(history(&[]), "no bad configurations, nothing set aside\n");
    for name in ["current.corrupt-2", "0.1.0/bad-configs.json.corrupt-1", "checkpoints/u-1.corrupt-1"] {
        scratch.write(&format!("config/{name}"), "{");
    }
    scratch.write("images.corrupt-1", "");
    scratch.write("config/0.1.0/bad-configs.json", r#"{"apiVersion": "kedge.dev/v99"}"#);
    std::fs::create_dir_all(scratch.join("config/0.0.9/bad-configs.json")).unwrap();
    let shown: Value = serde_json::from_str(&history(&["--output", "json"])).unwrap();
    let below = scratch.join("images.corrupt-1").display().to_string();
    let aside =
        ["0.1.0/bad-configs.json.corrupt-1", "checkpoints/u-1.corrupt-1", "current.corrupt-2", &below];
    assert_eq!(shown["setAside"], json!(aside), "{shown}");
    let unreadable: Vec<&str> =
        shown["unreadable"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(unreadable[0].starts_with("0.0.9/bad-configs.json is a directory"), "{unreadable:?}");
    assert!(unreadable[1].starts_with("0.1.0/bad-configs.json: "), "{unreadable:?}");
    let text = history(&[]);
    assert!(text.contains("set aside: 0.1.0/bad-configs.json.corrupt-1\n"), "{text}");
    assert!(text.contains("unreadable: 0.1.0/bad-configs.json: "), "{text}");
}
