//! One pod with every sort of volume and variable that is served, with a real hub, a real agent and crun: the
//! values it sees, and how it sees edits that happen while the agent is killed.

use crate::pods::{NODE, Setup, pids};
use crate::setup::{isolated_network, kill, processes};
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// An edit reaches a file after the renewal that announces it, and no earlier than 20 s after the last look.
const BOUND: Duration = Duration::from_secs(120);

fn words(value: &str) -> String {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"},
        "data": {"a": value, "b": value}});
    map.to_string()
}

/// An object that a pod may do without.
fn optional(kind: &str, name: &str) -> Value {
    let data = if kind == "Secret" { "stringData" } else { "data" };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, data: {"optional": "here"}})
}

fn manifest() -> String {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
        "stringData": {"key": "hidden"}, "immutable": true});
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let limit = json!({"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"});
    let all = json!({"defaultMode": 0o444, "sources": [
        {"configMap": {"name": "words"}},
        {"secret": {"name": "keys", "items": [{"key": "key", "path": "secret/key", "mode": 0o400}]}},
        {"configMap": {"name": "absent", "optional": true}},
        {"secret": {"name": "leaves", "optional": true}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "memory", "resourceFieldRef": limit}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "lan"}}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "first"}, "annotations": {"note": "x"}}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "serviceAccountName": "default",
        "securityContext": {"runAsUser": 1000, "runAsGroup": 3000, "runAsNonRoot": true, "fsGroup": 2000,
            "supplementalGroups": [4000], "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "all", "projected": all}, {"name": "words", "configMap": {"name": "words"}},
            {"name": "host", "hostPath": {"path": "/etc/made/inside", "type": "DirectoryOrCreate"}},
            {"name": "file", "hostPath": {"path": "/etc/made-file", "type": "FileOrCreate"}},
            {"name": "comes", "secret": {"secretName": "comes", "optional": true}},
            {"name": "leaves", "configMap": {"name": "leaves", "optional": true}},
            {"name": "data", "emptyDir": {}}, {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        "containers": [{"name": "main", "image": "web:1", "resources": {"limits": {"memory": "64Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]}},
            "command": ["/bin/sh", "-c", "echo $LABEL $NOTE $NODE $POD $MEMORY $ACCOUNT; exec sleep 86321"],
            "env": [{"name": "LABEL", "valueFrom": field("metadata.labels['app']")},
                {"name": "NOTE", "valueFrom": field("metadata.annotations['note']")},
                {"name": "NODE", "valueFrom": field("spec.nodeName")},
                {"name": "POD", "valueFrom": field("metadata.name")},
                {"name": "ACCOUNT", "valueFrom": field("spec.serviceAccountName")},
                {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}],
            "volumeMounts": [{"name": "all", "mountPath": "/etc/all"}, {"name": "words", "mountPath": "/etc/words"},
                {"name": "words", "mountPath": "/etc/one", "subPath": "a"}, {"name": "fast", "mountPath": "/fast"},
                {"name": "host", "mountPath": "host/relative"}, {"name": "file", "mountPath": "/host/file"},
                {"name": "comes", "mountPath": "/etc/comes"}, {"name": "leaves", "mountPath": "/etc/leaves"},
                {"name": "data", "mountPath": "/own", "subPathExpr": "logs/$(POD)"}, {"name": "data", "mountPath": "/data"}]}]}});
    let leaves = ["ConfigMap", "Secret"].map(|kind| optional(kind, "leaves"));
    let [map, other] = leaves.map(|object| object.to_string());
    format!("{}\n---\n{secret}\n---\n{map}\n---\n{other}\n---\n{pod}", words("first"))
}

/// A path as the container sees it.
fn inside(path: &str) -> PathBuf {
    let [pid] = pids()[..] else { panic!("one process: {:?}", pids()) };
    format!("/proc/{pid}/root{path}").into()
}

fn read(path: &str) -> String {
    fs::read_to_string(inside(path)).unwrap_or_else(|error| format!("{path}: {error}"))
}

/// The two words of one set of files; a reader that holds on to `..data` sees both of the same set.
fn both(directory: &str) -> (String, String) {
    let set = fs::read_link(inside(&format!("{directory}/..data"))).unwrap();
    let word = |name: &str| {
        let path = format!("{directory}/{}/{name}", set.display());
        fs::read_to_string(inside(&path)).ok()
    };
    match (word("a"), word("b")) {
        (Some(a), Some(b)) => (a, b),
        // the set was replaced between two reads: the next look has the other
        _ => (String::new(), String::new()),
    }
}

#[test]
fn pod_with_every_volume_sees_edits_whole() {
    isolated_network("volumes::pod_with_every_volume_sees_edits_whole", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        kubectl.feed(&["apply", "-f", "-"], &manifest()).unwrap();
        if poll(BOUND / 2, || setup.runs_with(0).then_some(())).is_none() {
            let events = kubectl.run(&["get", "events"]).unwrap_or_default();
            let pods = kubectl.run(&["get", "pod", "web", "-o", "yaml"]).unwrap_or_default();
            panic!("waited in vain for the pod Running\n{events}\n{pods}");
        }
        let expect = format!("stdout F first x {NODE} web 67108864 default\n");
        // a container runs before it has written anything
        setup.shows("the container's line", || setup.log(0).ends_with(&expect));
        let [pid] = pids()[..] else { panic!("one process: {:?}", pids()) };

        assert_eq!((read("/etc/all/a"), read("/etc/words/b")), ("first".into(), "first".into()));
        assert_eq!((read("/etc/all/secret/key"), read("/etc/all/memory")), ("hidden".into(), "64".into()));
        assert_eq!(read("/etc/all/labels"), "app=\"first\"");
        assert_eq!(read("/etc/one"), "first");
        let token = read("/etc/all/token");
        assert_eq!(token.split('.').count(), 3, "{token}");
        let mode = |path: &str| fs::metadata(inside(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("/etc/all/a"), mode("/etc/all/secret/key")), (0o444, 0o440));
        assert_eq!((mode("/fast"), mode("/data"), mode("/etc/all/token")), (0o2777, 0o2777, 0o640));
        // whatever umask the service has
        assert_eq!((mode("/host/relative"), mode("/host/file")), (0o755, 0o644));
        assert_eq!(fs::metadata("/etc/made").unwrap().permissions().mode() & 0o7777, 0o755);
        let owner = fs::metadata(inside("/etc/all/token")).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (1000, 2000));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for line in [
            "Uid:\t1000\t1000\t1000\t1000",
            "Gid:\t3000\t3000\t3000\t3000",
            "Groups:\t2000 4000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
        fs::write(inside("/own/x"), "mine").unwrap();
        assert_eq!(read("/data/logs/web/x"), "mine");
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        let is_memory = |path: &str| {
            let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(path)).unwrap();
            line.contains(" - tmpfs ")
        };
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
        assert!(root.split(' ').nth(5).unwrap().starts_with("ro"), "{root}");
        assert!(is_memory("/etc/all") && is_memory("/fast") && !is_memory("/data"), "{mounts}");
        assert!(fs::write(inside("/fast/big"), vec![0; 2 << 20]).is_err(), "its sizeLimit");
        let optional_ones = || {
            let is_there = |path: &str| read(path) == "here";
            ["/etc/comes/optional", "/etc/all/optional", "/etc/leaves/optional"].map(is_there)
        };
        assert_eq!(optional_ones(), [false, true, true]);

        // an edit, objects that appear and disappear; while they are on their way the agent replaces itself,
        // and is killed; a program in the container that waits for the edit keeps running
        let agent = setup.cluster.agent(NODE);
        // it ends by itself after a while: this test must not wait for it if something is wrong
        let follow = "for i in $(seq 900); do [ \"$(cat /etc/words/a)\" = second ] && break; sleep 0.2; done; echo saw $(cat /etc/words/b)";
        let following = thread::scope(|scope| {
            let following = scope.spawn(|| {
                kubectl.run(&["exec", "--request-timeout=0", "web", "--", "/bin/sh", "-c", follow])
            });
            setup.shows("a session", || !processes("session").is_empty());
            kubectl
                .feed(
                    &["apply", "-f", "-"],
                    &format!("{}\n---\n{}", words("second"), optional("Secret", "comes")),
                )
                .unwrap();
            kubectl.run(&["label", "pod", "web", "app=second", "--overwrite"]).unwrap();
            kubectl.run(&["delete", "configmap/leaves", "secret/leaves"]).unwrap();
            let before = agent.babysitter().state().pid;
            setup.replace_itself(50);
            assert_eq!(agent.babysitter().state().pid, before, "in place");
            kill(before.unwrap().into());
            let is_new = || {
                for directory in ["/etc/all", "/etc/words"] {
                    let (a, b) = both(directory);
                    assert_eq!(a, b, "one set whole");
                }
                let shown = [read("/etc/all/a"), read("/etc/words/a"), read("/etc/all/labels")];
                let is_so = shown == ["second", "second", "app=\"second\""]
                    && optional_ones() == [true, false, false];
                is_so.then_some(())
            };
            assert!(
                poll(BOUND, is_new).is_some(),
                "{} {:?}\n{}",
                read("/etc/words/a"),
                optional_ones(),
                agent.log_text()
            );
            following.join().unwrap()
        });
        assert_eq!(following.unwrap(), "saw second\n");
        assert_eq!(read("/etc/one"), "first", "a subPath is not updated, as upstream");
        assert!(setup.runs_with(0) && pids() == [pid], "nothing was restarted");
        assert_eq!(read("/etc/all/token").split('.').count(), 3);

        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        let left = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = agent.root_dir().display().to_string();
        let of_pods =
            left.lines().filter(|line| line.contains(".parts") || line.contains(&format!("{root}/pods")));
        assert_eq!(of_pods.count(), 0, "{left}");
    });
}

#[test]
fn path_that_an_annotation_makes_fails_until_that_is_mended() {
    isolated_network("volumes::path_that_an_annotation_makes_fails_until_that_is_mended", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "annotations": {"other": "logs"}}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false, "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [{"name": "main", "image": "web:1",
                "command": ["/bin/sh", "-c", "echo whole >/own/file; cat /data/*/*/file; exec sleep 86321"],
                "env": [{"name": "PLACE", "valueFrom": field("metadata.annotations['place']")},
                    {"name": "POD", "valueFrom": field("metadata.name")}],
                "volumeMounts": [{"name": "data", "mountPath": "/own", "subPathExpr": "$(PLACE)/$(POD)"},
                    {"name": "data", "mountPath": "/data"}]}]}});
        kubectl.feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
        let state = || {
            let pod = kubectl.json(&["get", "pod", "web"]).unwrap_or_default();
            pod["status"]["containerStatuses"][0]["state"].clone()
        };
        // without the annotation it is an absolute path
        setup.shows("the refusal", || state()["waiting"]["reason"] == "CreateContainerConfigError");
        assert!(pids().is_empty());
        kubectl.run(&["annotate", "pod", "web", "place=logs"]).unwrap();
        setup.shows("the pod", || setup.runs_with(0));
        setup.shows("its file", || setup.log(0).ends_with(" F whole\n"));
    });
}

#[test]
fn later_mounts_of_the_machine_are_seen_on_request() {
    isolated_network("volumes::later_mounts_of_the_machine_are_seen_on_request", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        let run =
            |line: &str| assert!(Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
        // as systemd mounts it for the whole machine
        run(
            "mkdir -p /etc/disks/one /etc/disks/part && mount --bind /etc/disks /etc/disks && mount --make-shared /etc/disks",
        );
        let volume = json!([{"name": "disks", "hostPath": {"path": "/etc/disks"}}]);
        let mount = |path: &str, more: Value| {
            let mut mount = json!({"name": "disks", "mountPath": path, "readOnly": true});
            mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            mount
        };
        let mounts = json!([
            mount("/follows", json!({"mountPropagation": "HostToContainer"})),
            mount("/alone", json!({}))
        ]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "volumes": volume,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "web:1", "volumeMounts": mounts,
                "command": ["/bin/sh", "-c", "until cat /follows/one/file; do sleep 1; done; cat /alone/one/file 2>/dev/null; echo $?; exec sleep 86321"]}]}});
        kubectl.feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
        setup.shows("the pod", || setup.runs_with(0));
        run("mount -t tmpfs later /etc/disks/one && echo later >/etc/disks/one/file");
        setup.shows("the file", || setup.log(0).ends_with(" F 1\n") && setup.log(0).contains(" F later\n"));
        // and a removed object's files do not stay
        let mounted = || fs::read_to_string(format!("/proc/{}/mounts", pids()[0])).unwrap();
        assert!(
            mounted().contains("later /follows/one tmpfs") && !mounted().contains("later /alone"),
            "{}",
            mounted()
        );
        run("umount /etc/disks/one");
        setup.shows("the end of the mount", || !mounted().contains("later /follows"));
    });
}
