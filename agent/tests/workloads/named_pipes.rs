//! Named pipes in place of the files that a node reads while it runs. Opening one as if it were a file blocks
//! for ever, until somebody opens its other end.
//!
//! Always holds: the node says what it found, renews its Lease, and runs what does not need the file; once
//! there is a file, it is used. Logs, records and locks are in `damaged`, termination messages in `messages`,
//! the kubeconfig in `net_agent`.

use crate::pods::{NODE, Setup, pids};
use crate::setup::{LIMIT, isolated_network};
use crate::static_pods::MANIFEST;
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

fn make_pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn replace(path: &Path, text: &str) {
    let beside = path.parent().unwrap().join(".beside");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[test]
fn named_pipes_in_place_of_files_hold_up_nothing() {
    isolated_network("named_pipes::named_pipes_in_place_of_files_hold_up_nothing", || {
        let mut setup = Setup::before_the_agent();
        let scratch = setup.cluster.scratch().join(".");
        let manifest = scratch.join("manifests/first.yaml");
        let credentials = scratch.join("credentials/config.json");
        let network = Path::new("/etc/cni/net.d/10-pods.conflist");
        for path in [&manifest, &credentials, network] {
            make_pipe(path);
        }
        // beside the pipe, later by name
        fs::write(manifest.with_file_name("web.yaml"), MANIFEST).unwrap();
        let config = format!(
            "{}staticPodPath: {}\nfileCheckFrequency: 1s\nkedge:\n  images:\n    credentialsFile: {}\n",
            kedge_rig::cluster::HEADER,
            manifest.parent().unwrap().display(),
            credentials.display()
        );
        setup.cluster.agent(NODE).write_drop_in("20-pipes.conf", &config).unwrap();
        setup.await_pods();
        setup.shows("the static pod beside the pipe", || pids().len() == 1);

        let kubectl = setup.cluster.kubectl();
        let log = || setup.cluster.agent(NODE).log_text();
        let says = |path: &Path| format!("{} is a named pipe, expected a file", path.display());
        setup.shows("what is in place of a manifest", || log().contains(&says(&manifest)));

        let pod = |name: &str, image: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": NODE,
                "hostNetwork": true, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": image, "command": ["sleep", "86321"]}]}})
        };
        let mut networked = pod("networked", "web:1");
        networked["spec"]["hostNetwork"] = json!(false);
        let pods: Vec<Value> =
            vec![networked, pod("local", "web:1"), pod("fetched", "127.0.0.1:1/site/web:1")];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        kubectl.feed(&["create", "-f", "-"], &list.to_string()).unwrap();
        let message = |name: &str| {
            let pod = kubectl.json(&["get", "pod", name]).unwrap_or_default();
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].to_string()
        };
        setup.shows("what is in place of the network", || {
            kubectl.run(&["describe", "pod", "networked"]).is_ok_and(|text| text.contains(&says(network)))
        });
        setup.shows("what is in place of the credentials", || {
            message("fetched").contains(&says(&credentials))
        });
        setup.shows("the pod that needs none", || pids().len() == 2);
        let lease = ["get", "lease", NODE, "-n", "kube-node-lease"];
        let renewed = || kubectl.json(&lease).unwrap_or_default()["spec"]["renewTime"].to_string();
        for _ in 0..2 {
            let before = renewed();
            setup.shows("a renewal", || renewed() != before);
        }

        replace(&manifest, &MANIFEST.replace("name: web}", "name: first}"));
        setup.shows("the pod of the file", || pids().len() == 3);
        replace(&credentials, "{\"auths\": {}}");
        wait_until("another reason", LIMIT, || {
            let message = message("fetched");
            message.contains("127.0.0.1:1") && !message.contains("named pipe")
        });
        assert!(!log().contains("panicked"), "{}", log());
    });
}
