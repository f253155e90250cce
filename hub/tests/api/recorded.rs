//! Data of older releases, used with the present hub: their data directories, their backups, and the requests
//! of their agents.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::server::{Client, Hub, Outcome, run, scratch};
use super::{LEASES, NODES};

/// The folders below `tests/data`, and the UID of the agent's Node then.
const RELEASES: [(&str, &str); 1] = [("0.1.0", "f8878008-c3c5-4ea4-9749-dd082f874374")];
const SYSTEM_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

fn recorded(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(release)
}

/// Copies the files of a data directory.
fn copy_data(release: &str, to: &Path) {
    fs::create_dir_all(to.join("pki")).unwrap();
    let keys = ["pki/ca.pem", "pki/admin.pem", "pki/serving.pem", "pki/tokens.pem"];
    for name in ["state.db", "ca.crt", "server-url"].iter().chain(&keys) {
        fs::copy(recorded(release).join(name), to.join(name)).unwrap();
    }
}

fn command(arguments: &[&str]) -> Outcome {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
    command.args(arguments);
    run(command, "")
}

/// Checks that everything that the release knew is there.
fn check(release: &str, hub: &Hub) {
    let mut admin = hub.admin();
    let kubeconfig = fs::read_to_string(recorded(release).join("node.kubeconfig")).unwrap();
    let mut node = Client::new(&kubeconfig, &hub.url);
    let own = node.get(&format!("{NODES}/edge-1")).expect(200);
    assert_eq!(own["status"]["config"]["lastKnownGood"]["configMap"]["resourceVersion"], "14", "{release}");
    node.get(&format!("{LEASES}/edge-1")).expect(200);
    let secret = admin.get("/api/v1/namespaces/default/secrets/secret").expect(200);
    assert_eq!(secret["data"]["key"], "dmFsdWU=", "{release}");
    let list = admin.get(&format!("{SYSTEM_MAPS}/kedge-denied")).expect(200);
    let keys: Vec<&String> = list["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["node.edge-2", "node.edge-3", "user.jane"], "{release}");
    let refused = hub.command(&["node-kubeconfig", "edge-2"]);
    assert!(refused.err.contains("node edge-2 was revoked"), "{release}: {}", refused.err);
    assert!(admin.get("/apis/apps/v1/namespaces/default/daemonsets/set").code == 200, "{release}");
    let made = admin.post(super::MAPS, &json!({"metadata": {"generateName": "new-"}})).expect(201);
    let version: u64 = made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(version > 42, "{release}: version {version} is given out twice");
}

#[test]
fn data_and_backup_of_each_release_are_opened() {
    for (release, _) in RELEASES {
        let folder = scratch();
        let [data, empty] = ["data", "empty"].map(|name| folder.path().join(name));
        copy_data(release, &data);
        let hub = Hub::start(&data);
        check(release, &hub);
        hub.terminate();
        check(release, &Hub::start(&data));
        let file = recorded(release).join("backup");
        let restored = command(&["restore", file.to_str().unwrap(), "--data-dir", empty.to_str().unwrap()]);
        assert_eq!(restored.code, Some(0), "{release}: {}", restored.err);
        assert!(
            restored.out.contains("27 objects restored; there was no store"),
            "{release}: {}",
            restored.out
        );
        assert!(restored.err.contains("has no checksum"), "{release}: {}", restored.err);
        check(release, &Hub::start(&empty));
    }
}

#[test]
fn store_of_a_newer_hub_names_the_way_back() {
    let folder = scratch();
    let data = folder.path().join("data");
    copy_data("0.1.0", &data);
    let store = rusqlite::Connection::open(data.join("state.db")).unwrap();
    store.execute("UPDATE meta SET value = 99 WHERE key = 'schema'", []).unwrap();
    drop(store);
    let refused = command(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1));
    for part in ["schema version 99, this hub knows 4", "use the newer hub that wrote it", "restore a backup"]
    {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
}

/// Replaces the version from which a request's watch resumes by one that this hub knows.
fn from_here(request: &str, version: &str) -> String {
    let (before, after) = request.split_once("&resourceVersion=").unwrap();
    let rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
    format!("{before}&resourceVersion={version}{rest}")
}

#[test]
fn agent_of_each_release_is_served() {
    for (release, uid) in RELEASES {
        let hub = Hub::new();
        let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
        for name in ["good", "bad", "tried"] {
            admin
                .post(SYSTEM_MAPS, &json!({"metadata": {"name": name}, "data": {"kubelet": "x"}}))
                .expect(201);
        }
        let text = fs::read_to_string(recorded(release).join("exchanges.jsonl")).unwrap();
        let mut count = 0;
        for line in text.lines() {
            let exchange: Value = serde_json::from_str(line).unwrap();
            let mut request = exchange["request"].as_str().unwrap().to_owned();
            let own = admin.get(&format!("{NODES}/edge-1"));
            if own.code == 200 {
                // the owner references of its objects refer to the Node
                request = request.replace(uid, own.json()["metadata"]["uid"].as_str().unwrap());
            }
            let expect = &exchange["answer"].as_str().unwrap()[9..12];
            let what = request.lines().next().unwrap().to_owned();
            if let Some((_, rest)) = what.split_once("configmaps?fieldSelector=metadata.name%3D") {
                // its Node already names the configuration
                let name = rest.split('&').next().unwrap();
                let source = json!({"configMap": {"name": name, "namespace": "kube-system", "kubeletConfigKey": "kubelet"}});
                admin
                    .patch("merge", &format!("{NODES}/edge-1"), &json!({"spec": {"configSource": source}}))
                    .expect(200);
            }
            let is_watch = what.contains("watch=true");
            if is_watch {
                let list = admin.get(SYSTEM_MAPS).expect(200);
                request = from_here(&request, list["metadata"]["resourceVersion"].as_str().unwrap());
            }
            let mut client = if is_watch { node.another() } else { node };
            client.write_raw(request.as_bytes()).unwrap();
            let found = if is_watch {
                client.read_until("\r\n\r\n")[9..12].to_owned()
            } else {
                client.read_reply().unwrap().code.to_string()
            };
            assert_eq!(found, expect, "{release}: {what}");
            node = if is_watch { client.another() } else { client };
            count += 1;
        }
        assert!(count > 40, "{release}: {count} requests");
        assert_eq!(
            admin.get(&format!("{NODES}/edge-1")).expect(200)["status"]["nodeInfo"]["operatingSystem"],
            "linux"
        );
    }
}
