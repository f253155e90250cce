//! A pod from a file: it runs before there is any API server, which then shows it and does not decide about
//! it; under the limits that the node's configuration has for pods.

use crate::pods::{NODE, Setup, pids};
use crate::setup::{LIMIT, isolated};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {nodefs.available: 0%, imagefs.available: 0%}\nfileCheckFrequency: 1s\npodPidsLimit: 77\ncontainerLogMaxSize: 64Ki\ncontainerLogMaxFiles: 2\n";
const LOG_BYTES: u64 = 64 << 10;
/// A static pod with one process that keeps running.
pub(crate) const MANIFEST: &str = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: 'web:1', command: [/bin/sh, -c, seq 1 5000; exec sleep 86321]}
";

/// A directory of static pods that the node's next start reads.
fn manifests(setup: &mut Setup) -> PathBuf {
    let directory = setup.cluster.scratch().join("manifests");
    fs::create_dir_all(&directory).unwrap();
    let config = format!("{CONFIG}staticPodPath: {}\n", directory.display());
    setup.cluster.agent(NODE).write_drop_in("10-static.conf", &config).unwrap();
    directory
}

/// `pids.max` of the control group above the process's: its pod's.
fn most_processes(pid: i64) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let found = groups.lines().find_map(|line| {
        let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { return None };
        let pod = path.rsplit_once('/')?.0;
        let mount = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|it| it == "pids") => "/sys/fs/cgroup/pids",
            _ => return None,
        };
        fs::read_to_string(format!("{mount}{pod}/pids.max")).ok()
    });
    found.unwrap_or_else(|| panic!("{groups}"))
}

/// Sizes of the files of the pod's log.
fn log_sizes() -> Vec<u64> {
    let files = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    let containers = files("/var/log/pods".into()).flat_map(|pod| files(pod.path()));
    let logs = containers.flat_map(|container| files(container.path()));
    logs.filter_map(|log| Some(log.metadata().ok()?.len())).collect()
}

fn mirror(setup: &Setup) -> Value {
    setup.cluster.kubectl().json(&["get", "pod", "web-edge-1"]).unwrap_or_default()
}

#[test]
fn static_pod_lives_as_long_as_its_file() {
    isolated("static_pods::static_pod_lives_as_long_as_its_file", || {
        let mut setup = Setup::before_the_agent();
        let directory = manifests(&mut setup);
        let file = directory.join("web.yaml");
        fs::write(&file, MANIFEST).unwrap();

        // no API server: it runs
        setup.cluster.hub_mut().stop().unwrap();
        setup.cluster.agent_mut(NODE).start().unwrap();
        setup.shows("the pod's process", || pids().len() == 1);
        let runs = pids();
        let pods = || setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
        assert_eq!(pods()["pods"][0]["origin"], "static");
        assert_eq!(most_processes(runs[0]), "77\n");
        // of some 230 KB
        setup.shows("two files of its log", || log_sizes().len() == 2);
        assert!(log_sizes().iter().all(|size| *size <= LOG_BYTES), "{:?}", log_sizes());

        // the pod's file becomes invalid, and another invalid one appears: the pod keeps running
        fs::write(&file, "kind: [").unwrap();
        fs::write(directory.join("other.json"), "{}").unwrap();
        let log = || setup.cluster.agent(NODE).log_text();
        let told = ["web.yaml cannot be used", "other.json cannot be used"];
        setup.shows("both complaints", || told.iter().all(|told| log().contains(told)));
        fs::write(&file, MANIFEST).unwrap();
        fs::remove_file(directory.join("other.json")).unwrap();

        // the API server comes: it shows the pod, and that a file was wrong
        setup.cluster.hub_mut().start_again().unwrap();
        let is_running = |mirror: &Value| mirror["status"]["containerStatuses"][0]["ready"] == true;
        setup.shows("the mirror", || is_running(&mirror(&setup)));
        let first = mirror(&setup);
        let annotations = &first["metadata"]["annotations"];
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
        assert_eq!(annotations["kubernetes.io/config.mirror"], annotations["kubernetes.io/config.hash"]);
        let owner = &first["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["name"]), (&json!("Node"), &json!(NODE)));
        let events = setup.cluster.kubectl().run(&["get", "events", "-A"]).unwrap();
        assert!(events.contains("FailedValidation"), "{events}");

        // the mirror is deleted: another one comes, and nothing ends
        setup.cluster.kubectl().run(&["delete", "pod", "web-edge-1", "--wait=false"]).unwrap();
        setup.shows("another mirror", || {
            let other = mirror(&setup);
            is_running(&other) && other["metadata"]["uid"] != first["metadata"]["uid"]
        });
        assert_eq!(pids(), runs, "one process all along");
        assert_eq!(mirror(&setup)["status"]["containerStatuses"][0]["restartCount"], 0);

        // under another name the file is another pod, as upstream: the old one ends before the new one of the
        // same name starts
        let renamed = directory.join("renamed.yaml");
        fs::rename(&file, &renamed).unwrap();
        let follows = |runs: &[i64]| {
            let now = pids();
            assert!(now.len() <= 1, "two of one name: {now:?}");
            now.len() == 1 && now != runs
        };
        let hash = || mirror(&setup)["metadata"]["annotations"]["kubernetes.io/config.hash"].clone();
        setup.shows("the pod of the renamed file", || follows(&runs));
        setup.shows("its mirror", || {
            is_running(&mirror(&setup)) && hash() != annotations["kubernetes.io/config.hash"]
        });
        let (runs, hash_of_renamed) = (pids(), hash());

        // moved away, the pod ends; moved back, it is the same pod, started anew
        let away = directory.with_file_name("away.yaml");
        fs::rename(&renamed, &away).unwrap();
        wait_until("the end of its process", LIMIT, || pids().is_empty());
        fs::rename(&away, &renamed).unwrap();
        setup.shows("the pod of the file that is back", || follows(&runs));
        setup.shows("its mirror", || is_running(&mirror(&setup)) && hash() == hash_of_renamed);

        // so is a file that returns while its pod ends: its grace period is longer than the time between two
        // looks
        let runs = pids();
        fs::rename(&renamed, &away).unwrap();
        let is_ending = || {
            let pods = setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
            pods["pods"][0]["isEnding"] == true || pids() != runs
        };
        wait_until("the begin of its end", LIMIT, is_ending);
        fs::rename(&away, &renamed).unwrap();
        setup.shows("the pod of the file that was away shortly", || follows(&runs));
        setup.shows("its mirror", || is_running(&mirror(&setup)) && hash() == hash_of_renamed);

        // a rename over the file replaces its pod by another
        let runs = pids();
        let fresh = directory.join(".fresh");
        fs::write(&fresh, MANIFEST.replace("name: web}", "name: other}")).unwrap();
        fs::rename(&fresh, &renamed).unwrap();
        setup.shows("the other pod alone", || {
            let other = setup.cluster.kubectl().json(&["get", "pod", "other-edge-1"]).unwrap_or_default();
            is_running(&other) && mirror(&setup).is_null() && pids().len() == 1 && pids() != runs
        });

        // the file is removed, and so are both pods
        fs::remove_file(&renamed).unwrap();
        wait_until("the end of its process", LIMIT, || pids().is_empty());
        setup.shows("no mirror", || {
            setup.cluster.kubectl().json(&["get", "pod", "other-edge-1"]).is_err() && mirror(&setup).is_null()
        });
    });
}
