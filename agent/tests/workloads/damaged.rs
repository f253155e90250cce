//! Damaged state of pods and images: each file and directory of it damaged as by a failing disk, an operator
//! or another version, with the real agent and crun.
//!
//! Always holds, whatever was damaged: the agent starts and logs what it cannot use; an unusable pod record
//! is kept aside; running containers continue, or end once and are started anew where their state cannot be
//! known; nothing runs twice; objects that the API server has come back from there; a list that could not be
//! read ends no pod; in the end everything is as before, without a manual repair.
//!
//! `KEDGE_CRASH_FULL=1` damages each file in every way.

use crate::cuts::{is_ready, stays};
use crate::damage::{Damage, apply};
use crate::killed_agents::pids;
use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network, kill};
use kedge_rig::cluster::HEADER;
use kedge_rig::power_cut::is_full;
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pod of the API server, which refers to a ConfigMap, and a static one from a file.
const WEB: &str = "web";
const STILL: &str = "still";

/// How a file of ours may be found.
#[derive(Debug, Clone, Copy)]
enum Spoilt {
    By(Damage),
    /// A later version wrote it.
    Newer,
    /// It is somebody else's, and closed to everybody.
    Closed,
}

impl Spoilt {
    fn apply(self, path: &Path) {
        assert!(path.exists(), "{}", path.display());
        match self {
            Self::By(damage) => apply(damage, path),
            Self::Newer => {
                let text = fs::read_to_string(path).unwrap();
                let mut content: Value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                match content.get("version") {
                    Some(_) => content["version"] = json!(1000),
                    None if content.is_object() => content["apiVersion"] = json!("kedge.dev/v1000"),
                    None => content = json!({"version": 1000, "content": content}),
                }
                fs::write(path, content.to_string()).unwrap();
            }
            Self::Closed => {
                fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
                chown(path, Some(65_534), Some(65_534)).unwrap();
            }
        }
    }
}

/// Damage after which a file cannot be used; every run tries all of these.
const EACH: [Spoilt; 7] = [
    Spoilt::By(Damage::CutToHalf),
    Spoilt::By(Damage::Zeroed),
    Spoilt::By(Damage::FullDirectory),
    Spoilt::By(Damage::DanglingLink),
    Spoilt::By(Damage::LinkToZero),
    Spoilt::By(Damage::Fifo),
    Spoilt::Newer,
];
const REST: [Spoilt; 7] = [
    Spoilt::By(Damage::CutTo(0)),
    Spoilt::By(Damage::CutTo(1)),
    Spoilt::By(Damage::Noise),
    Spoilt::By(Damage::Grown),
    Spoilt::By(Damage::Directory),
    Spoilt::By(Damage::LinkToPasswd),
    Spoilt::By(Damage::Socket),
];

/// All kinds, or without `KEDGE_CRASH_FULL` one that cannot be parsed and one that blocks its reader.
fn some() -> Vec<Spoilt> {
    if is_full() { all() } else { vec![Spoilt::By(Damage::Noise), Spoilt::By(Damage::Fifo)] }
}

fn all() -> Vec<Spoilt> {
    EACH.into_iter().chain(REST.into_iter().filter(|_| is_full())).collect()
}

struct Node {
    setup: Setup,
    manifest: PathBuf,
    shared: PathBuf,
    /// Bytes of the log that were read.
    read: usize,
}

impl Node {
    fn new() -> Self {
        let mut setup = Setup::before_the_agent();
        let scratch = setup.cluster.scratch();
        let (manifests, shared) = (scratch.join("manifests"), scratch.join("shared"));
        fs::create_dir(&manifests).unwrap();
        fs::create_dir(&shared).unwrap();
        let static_path = format!("{HEADER}staticPodPath: {}\nfileCheckFrequency: 1s\n", manifests.display());
        setup.cluster.agent(NODE).write_drop_in("20-static.conf", &static_path).unwrap();
        let manifest = manifests.join("still.json");
        let mut still = stays(STILL, STILL, &shared, &Value::Null);
        still["spec"].as_object_mut().unwrap().remove("nodeName");
        fs::write(&manifest, still.to_string()).unwrap();
        setup.await_pods();
        let node = Self { setup, manifest, shared, read: 0 };
        let words = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"hello": "hello"}});
        let more = json!({"env": [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "hello"}}}]});
        node.apply_all(&[words, stays(WEB, WEB, &node.shared, &more)]);
        node.await_all("both pods");
        node
    }

    fn apply_all(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.setup.cluster.kubectl().feed(&["apply", "-f", "-"], &list).unwrap();
    }

    fn root(&self) -> PathBuf {
        self.setup.cluster.agent(NODE).root_dir()
    }

    fn pod(&self, name: &str) -> Value {
        self.setup.cluster.kubectl().json(&["get", "pod", name]).unwrap_or_default()
    }

    fn uid(&self) -> String {
        self.pod(WEB)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The agent's record of this pod, as `kedge pods` prints it.
    fn known(&self, name: &str) -> Value {
        let pods = self.setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
        let pods = pods["pods"].as_array().cloned().unwrap_or_default();
        pods.into_iter().find(|pod| pod["name"] == name).unwrap_or_default()
    }

    fn runs(&self, name: &str) -> bool {
        self.known(name)["containers"][0]["state"] == "Running" && pids(name_of(name)).len() == 1
    }

    #[track_caller]
    fn await_all(&self, what: &str) {
        self.setup.shows(&format!("{what}: both run, and the API shows it"), || {
            self.runs(WEB) && self.runs("still-edge-1") && is_ready(&self.pod(WEB)["status"])
        });
    }

    fn stop(&mut self) {
        self.setup.cluster.agent_mut(NODE).stop().unwrap();
        self.read = self.setup.cluster.agent(NODE).log_text().len();
    }

    fn start(&mut self) {
        self.setup.cluster.agent_mut(NODE).start().unwrap();
    }

    /// The agent's log since its last stop.
    fn log(&self) -> String {
        self.setup.cluster.agent(NODE).log_text()[self.read..].to_owned()
    }

    #[track_caller]
    fn says(&self, what: &str, said: &str) {
        self.setup.shows(&format!("{what}: {said:?} in the log"), || self.log().contains(said));
    }

    /// Spoils a file between two agents. Both pods keep running, and everything is as before in the end.
    #[track_caller]
    fn check_goes_on(&mut self, file: &str, spoilt: Spoilt, said: &str) {
        let what = format!("{file}, {spoilt:?}");
        let before = (pids(WEB), pids(STILL));
        self.stop();
        spoilt.apply(&self.root().join(file));
        self.start();
        self.await_all(&what);
        self.says(&what, said);
        assert_eq!((pids(WEB), pids(STILL)), before, "{what}: {}", self.log());
        assert!(!self.log().contains("panicked"), "{what}: {}", self.log());
    }

    fn is_json(&self, file: &str) -> bool {
        let path = self.root().join(file);
        path.symlink_metadata().is_ok_and(|found| found.is_file())
            && fs::read(path).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
    }

    fn only_file_in(&self, folder: &str) -> String {
        let files = fs::read_dir(self.root().join(folder)).unwrap().flatten();
        let names: Vec<String> = files.map(|entry| entry.file_name().into_string().unwrap()).collect();
        let files: Vec<&String> =
            names.iter().filter(|name| !name.contains(".corrupt-") && !name.starts_with('.')).collect();
        let [name] = files[..] else { panic!("{folder}: {names:?}") };
        format!("{folder}/{name}")
    }

    fn import(&self, layout: &str) -> (i32, String, String) {
        self.setup.cluster.agent(NODE).kedge(&["images", "import", layout, "--name", "web:1"]).unwrap()
    }

    fn imports(&self, layout: &str) -> bool {
        self.import(layout).0 == 0
    }

    /// The node is switched off, its disk spoilt, and it boots, without an API server at first.
    fn reboot(&mut self, spoil: impl FnOnce(&Path)) {
        self.setup.cluster.hub_mut().stop().unwrap();
        self.setup.turn_off();
        self.read = self.setup.cluster.agent(NODE).log_text().len();
        fs::remove_dir_all(self.setup.cluster.agent(NODE).run_dir()).unwrap();
        spoil(&self.root());
        self.start();
    }

    fn find_server(&mut self) {
        self.setup.cluster.hub_mut().start_again().unwrap();
    }

    /// How often Events with this reason, and this text in their message, were recorded for a pod.
    fn events(&self, pod: &str, reason: &str, said: &str) -> u64 {
        let events = self.setup.cluster.kubectl().json(&["get", "events"]).unwrap_or_default();
        let events = events["items"].as_array().into_iter().flatten();
        let such = events.filter(|event| {
            event["involvedObject"]["name"] == pod
                && event["reason"] == reason
                && event["message"].as_str().is_some_and(|message| message.contains(said))
        });
        such.map(|event| event["count"].as_u64().unwrap_or(1)).sum()
    }

    /// The same for containers that this node killed because it could not tell their state.
    fn killings(&self, pod: &str, said: &str) -> u64 {
        self.events(pod, "Killing", said)
    }

    /// Starts of a pod's container, as it notes them.
    fn starts(&self, name: &str) -> usize {
        let text = fs::read_to_string(self.shared.join("ran")).unwrap_or_default();
        text.lines().filter(|line| line.split(' ').next() == Some(name)).count()
    }
}

/// A static pod has the node's name in its own.
fn name_of(name: &str) -> &str {
    name.strip_suffix("-edge-1").unwrap_or(name)
}

#[test]
fn unreadable_record_of_a_pod_ends_nothing() {
    isolated_network("damaged::unreadable_record_of_a_pod_ends_nothing", || {
        let mut node = Node::new();
        let record = format!("pods/desired/{}.json", node.uid());
        for spoilt in all() {
            let said = format!("{record} cannot be used");
            node.check_goes_on(&record, spoilt, &said);
            // a file that is too large would fill the disk
            let aside = match spoilt {
                Spoilt::By(Damage::Grown) => format!("{record} is not kept aside: {record} has "),
                _ => format!("{record} is kept aside as {record}.corrupt-"),
            };
            node.says(&record, &aside);
            node.setup.shows("the record as it should be", || node.is_json(&record));
        }
        let object = node.only_file_in("pods/objects");
        for spoilt in some() {
            node.check_goes_on(&object, spoilt, &format!("{object} cannot be used"));
            node.setup.shows("the copy as it should be", || node.is_json(&object));
        }
        for file in [&record, &object] {
            node.check_goes_on(file, Spoilt::Closed, "");
        }
        // without an API server nobody brings it back, and nothing ends
        node.stop();
        node.setup.cluster.hub_mut().stop().unwrap();
        fs::write(node.root().join(&record), "{").unwrap();
        let before = (pids(WEB), pids(STILL));
        node.start();
        node.setup.shows("both go on", || node.runs(WEB) && node.runs("still-edge-1"));
        assert_eq!((pids(WEB), pids(STILL)), before);
        node.find_server();
        node.await_all("with the API server");
        assert_eq!((pids(WEB), pids(STILL)), before);
        let aside = |folder: &str| {
            let names = fs::read_dir(node.root().join(folder)).unwrap().flatten();
            names.filter(|entry| entry.file_name().to_string_lossy().contains(".corrupt-")).count()
        };
        assert!((1..=6).contains(&aside("pods/desired")), "{} files set aside", aside("pods/desired"));
    });
}

/// Only its record says how it ended, and twice is better than never: it runs again, once for each loss of
/// the record.
#[test]
fn finished_static_pod_with_unreadable_record_runs_again() {
    isolated_network("damaged::finished_static_pod_with_unreadable_record_runs_again", || {
        let mut node = Node::new();
        let mut once = stays("once", "once", &node.shared, &Value::Null);
        once["spec"].as_object_mut().unwrap().remove("nodeName");
        once["spec"]["restartPolicy"] = json!("Never");
        once["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", "echo once >>/shared/ran"]);
        let beside = node.manifest.with_file_name("once.json");
        fs::write(&beside, once.to_string()).unwrap();
        let is_over = |node: &Node| node.pod("once-edge-1")["status"]["phase"] == "Succeeded";
        node.setup.shows("its end", || is_over(&node));
        let web = node.uid();
        let desired = fs::read_dir(node.root().join("pods/desired")).unwrap().flatten();
        let names = desired.map(|entry| entry.file_name().into_string().unwrap());
        let [record] = &names.filter(|name| !name.contains(&web)).collect::<Vec<_>>()[..] else {
            panic!("one has a record")
        };
        let record = format!("pods/desired/{record}");
        for (before, spoilt) in (1..).zip(some()) {
            node.check_goes_on(&record, spoilt, &format!("{record} cannot be used"));
            node.setup.shows("the record as it should be", || node.is_json(&record));
            node.setup.shows("its end", || is_over(&node));
            assert_eq!(node.starts("once"), before + 1, "{spoilt:?}: {}", node.log());
        }
        let ran = node.starts("once");
        node.stop();
        node.start();
        node.await_all("with a record that can be read");
        node.setup.shows("its end", || is_over(&node));
        assert_eq!(node.starts("once"), ran, "{}", node.log());
    });
}

#[test]
fn unreadable_state_of_images_ends_nothing() {
    isolated_network("damaged::unreadable_state_of_images_ends_nothing", || {
        let mut node = Node::new();
        let layout = node.setup.cluster.scratch().join("layout").display().to_string();
        let record = node.only_file_in("images/records");
        let config = node.only_file_in("images/configs");
        let layers = fs::read_dir(node.root().join("images/layers")).unwrap().flatten();
        let layers = layers.filter_map(|entry| entry.file_name().into_string().ok());
        let layer = layers.filter(|name| name.ends_with(".json")).collect::<Vec<_>>();
        let [layer] = &layer[..] else { panic!("{layer:?}") };
        let layer = format!("images/layers/{layer}");
        for file in [&record, &config, &"images/needed.json".to_owned()] {
            for spoilt in some() {
                node.check_goes_on(file, spoilt, "");
                node.setup.shows(&format!("{file}, {spoilt:?}: the image whole again"), || {
                    node.imports(&layout) && node.is_json(file)
                });
            }
        }
        let no_files = [Damage::Fifo, Damage::Directory, Damage::DanglingLink];
        for lock in ["images/lock", "images/records.lock"] {
            for damage in no_files {
                node.check_goes_on(lock, Spoilt::By(damage), "");
                let what = format!("{lock}, {damage:?}: it is locked again");
                let path = node.root().join(lock);
                node.setup.shows(&what, || {
                    node.imports(&layout) && path.symlink_metadata().is_ok_and(|found| !found.is_symlink())
                });
            }
        }
        // a layer that a container has mounted is not made anew under it; once the container has ended, the
        // image is unpacked again, and the next containers run
        node.check_goes_on(&layer, Spoilt::By(Damage::Noise), "");
        let (code, _, why) = node.import(&layout);
        assert!(code != 0 && why.contains("its record is lost, and a container uses it"), "{why}");
        let before = [pids(WEB), pids(STILL)].concat();
        before.iter().for_each(|pid| kill(*pid));
        apply(Damage::Fifo, &node.root().join("images/layers/.lock"));
        node.setup.shows("the image again", || node.imports(&layout));
        node.await_all("with the image made anew");
        assert!(pids(WEB).iter().chain(&pids(STILL)).all(|pid| !before.contains(pid)));
        assert!(!node.log().contains("panicked"), "{}", node.log());
    });
}

/// Without an API server, records that the disk has lost stay lost until there is one again; then everything
/// is as before.
#[test]
fn node_boots_with_what_a_damaged_disk_has_left() {
    isolated_network("damaged::node_boots_with_what_a_damaged_disk_has_left", || {
        let mut node = Node::new();
        let record = format!("pods/desired/{}.json", node.uid());
        let object = node.only_file_in("pods/objects");
        for (path, damage, said) in [
            (record.as_str(), Damage::Noise, "cannot be used"),
            (object.as_str(), Damage::CutToHalf, "cannot be used"),
            ("pods/desired", Damage::File, "desired was a file, expected a directory"),
            ("pods/objects", Damage::Fifo, "objects was a named pipe, expected a directory"),
            ("pods", Damage::DanglingLink, "pods was a symbolic link, expected a directory"),
            ("volumes", Damage::File, "volumes was a file, expected a directory"),
            ("containers", Damage::Fifo, "containers was a named pipe, expected a directory"),
        ] {
            let what = format!("{path}, {damage:?}, after a boot");
            let before = [WEB, STILL].map(|name| node.starts(name));
            node.reboot(|root| apply(damage, &root.join(path)));
            node.setup.shows(&format!("{what}: the static pod"), || node.runs("still-edge-1"));
            node.says(&what, said);
            node.find_server();
            node.await_all(&what);
            assert_eq!([WEB, STILL].map(|name| node.starts(name)), before.map(|count| count + 1), "{what}");
            assert!(!node.log().contains("panicked"), "{what}: {}", node.log());
        }
        let manifest = node.manifest.clone();
        fs::remove_file(manifest).unwrap();
        wait_until("the end of the static pod", LIMIT, || pids(STILL).is_empty());
    });
}

/// An image that the disk has lost is imported again, whatever is left of it; then all runs.
#[test]
fn lost_images_are_imported_again() {
    isolated_network("damaged::lost_images_are_imported_again", || {
        let mut node = Node::new();
        let layout = node.setup.cluster.scratch().join("layout").display().to_string();
        for (path, damage) in [
            ("images/records", Damage::File),
            ("images/configs", Damage::Fifo),
            ("images/layers", Damage::DanglingLink),
            ("images/blobs", Damage::File),
            ("images/claims", Damage::File),
            ("images", Damage::Socket),
        ] {
            let what = format!("{path}, {damage:?}");
            node.reboot(|root| apply(damage, &root.join(path)));
            node.find_server();
            node.setup.shows(&format!("{what}: an agent with a runtime"), || !node.known(WEB).is_null());
            let (code, _, why) = node.import(&layout);
            assert_eq!(code, 0, "{what}: {why}");
            node.await_all(&what);
        }
    });
}

/// Volatile records, damaged while no agent lives: a container whose state cannot be known ends, once, and
/// another is started.
#[test]
fn unreadable_records_of_containers_end_them_once() {
    isolated_network("damaged::unreadable_records_of_containers_end_them_once", || {
        let mut node = Node::new();
        let run = node.setup.cluster.agent(NODE).run_dir().join("containers/pods").join(node.uid());
        let mut attempt = 0;
        for file in ["order.json", "state.json"] {
            let ways = [
                Spoilt::Newer,
                Spoilt::By(Damage::Noise),
                Spoilt::By(Damage::FullDirectory),
                Spoilt::By(Damage::Fifo),
            ];
            for spoilt in ways {
                let what = format!("{file}, {spoilt:?}");
                let (before, still) = (pids(WEB), pids(STILL));
                node.stop();
                spoilt.apply(&run.join(format!("c/main-{attempt}")).join(file));
                node.start();
                // the API server may show an older state, and the process logs its start a moment after it
                // appears
                node.setup.shows(&format!("{what}: another container"), || {
                    node.runs(WEB) && pids(WEB) != before && node.starts(WEB) > 1 + attempt
                });
                attempt += 1;
                node.says(&what, file);
                node.says(&what, "is ended: ");
                assert_eq!(node.starts(WEB), 1 + attempt, "{what}: once\n{}", node.log());
                assert_eq!(pids(STILL), still, "{what}");
            }
        }
        // the record of how it ended is unreadable
        for spoilt in [Spoilt::Newer, Spoilt::By(Damage::Noise)] {
            let bundle = run.join(format!("c/main-{attempt}"));
            let [pid] = pids(WEB)[..] else { panic!("{:?}", pids(WEB)) };
            node.stop();
            kill(pid);
            wait_until("the record of its end", LIMIT, || bundle.join("exit.json").exists());
            spoilt.apply(&bundle.join("exit.json"));
            node.start();
            let what = format!("exit.json, {spoilt:?}");
            node.setup.shows(&format!("{what}: another container"), || {
                node.runs(WEB) && node.starts(WEB) > 1 + attempt
            });
            attempt += 1;
            assert_eq!(node.starts(WEB), 1 + attempt, "{what}: once\n{}", node.log());
            let last = node.pod(WEB)["status"]["containerStatuses"][0]["lastState"]["terminated"].clone();
            assert_eq!(last["exitCode"], 137, "{what}: {last}");
        }
        // files without which the container's state can still be known
        for file in
            [format!("c/main-{attempt}/shim.json"), format!("c/main-{attempt}/lock"), "order.json".into()]
        {
            let what = format!("{file}, noise");
            let before = (pids(WEB), pids(STILL));
            node.stop();
            apply(if file.ends_with("lock") { Damage::File } else { Damage::Noise }, &run.join(&file));
            node.start();
            node.await_all(&what);
            assert!(node.starts(WEB) <= 2 + attempt, "{what}: {}", node.log());
            if !file.ends_with("lock") {
                assert_eq!((pids(WEB), pids(STILL)), before, "{what}: {}", node.log());
            }
        }
        node.setup.cluster.kubectl().run(&["delete", "pod", WEB, "--timeout=60s"]).unwrap();
        wait_until("the end of its process", LIMIT, || pids(WEB).is_empty());
        assert!(!run.exists(), "nothing of it is left");
    });
}

/// The records of a container, as a shim that speaks another version of the protocol would have written them.
fn speaks(bundle: &Path, version: u32) {
    for file in ["order.json", "shim.json", "state.json"] {
        let path = bundle.join(file);
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["version"] = json!(version);
        fs::write(path, record.to_string()).unwrap();
    }
}

/// An agent before an update, or after a downgrade, meets shims that it does not understand.
#[test]
fn container_of_another_protocol_begins_anew_and_says_so() {
    isolated_network("damaged::container_of_another_protocol_begins_anew_and_says_so", || {
        const ONCE: &str = "once";
        let mut node = Node::new();
        let mut once = stays(ONCE, ONCE, &node.shared, &Value::Null);
        once["spec"]["restartPolicy"] = json!("Never");
        node.apply_all(&[once]);
        node.setup.shows("the third pod", || node.runs(ONCE));
        let bundle = |node: &Node, name: &str, attempt: usize| {
            let uid = node.pod(name)["metadata"]["uid"].as_str().unwrap().to_owned();
            let run = node.setup.cluster.agent(NODE).run_dir().join("containers/pods");
            run.join(uid).join(format!("c/main-{attempt}"))
        };
        let still = pids(STILL);
        let said = |version: u32| format!("order.json: version {version}, expected 1");
        for (attempt, version) in [0, 2].into_iter().enumerate() {
            let what = format!("version {version}");
            let before = pids(WEB);
            node.stop();
            speaks(&bundle(&node, WEB, attempt), version);
            if version == 2 {
                speaks(&bundle(&node, ONCE, 0), version);
            }
            node.start();
            node.setup.shows(&format!("{what}: another container"), || {
                let is_anew = pids(WEB) != before && node.starts(WEB) > 1 + attempt;
                is_anew && node.runs(WEB) && is_ready(&node.pod(WEB)["status"])
            });
            assert_eq!(node.starts(WEB), 2 + attempt, "{what}: once\n{}", node.log());
            let last = node.pod(WEB)["status"]["containerStatuses"][0]["lastState"]["terminated"].clone();
            assert_eq!((&last["reason"], &last["exitCode"]), (&json!("ContainerStatusUnknown"), &json!(137)));
            let message = last["message"].as_str().unwrap_or_default();
            assert!(message.starts_with("The container was ended: ") && message.ends_with(&said(version)));
            node.setup.shows(&format!("{what}: its Event"), || node.killings(WEB, &said(version)) == 1);
        }
        node.setup
            .shows("the end of the pod that runs once", || node.pod(ONCE)["status"]["phase"] == "Failed");
        node.setup.shows("its Event", || node.killings(ONCE, &said(2)) == 1);
        let ended = node.pod(ONCE)["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        assert!(ended["message"].as_str().is_some_and(|message| message.ends_with(&said(2))), "{ended}");

        // the next agent finds what this one noted: it ends nothing and posts no Event again
        let before = (pids(WEB), pids(STILL));
        node.stop();
        node.start();
        node.await_all("the next agent");
        let marked = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mark"},
            "spec": {"nodeName": NODE, "hostNetwork": true, "containers": [{"name": "main", "image": "web:1", "command": ["/nonexistent"]}]}});
        node.apply_all(&[marked]);
        node.setup.shows("an Event of the next agent", || node.events("mark", "Failed", "") > 0);
        assert_eq!([node.killings(WEB, ""), node.killings(ONCE, "")], [2, 1], "{}", node.log());
        assert_eq!((pids(WEB), pids(STILL)), before);
        assert_eq!((pids(STILL), pids(ONCE), node.starts(ONCE)), (still, vec![], 1));
        assert!(!node.log().contains("panicked"), "{}", node.log());
    });
}

/// A pod whose container writes a number after the other.
const TALKS: &str = "talks";

/// The log of a container, damaged between two lives of the agent and during one: the container keeps
/// running, and its later output can be read.
#[test]
fn container_logs_are_written_again_whatever_befell_them() {
    isolated_network("damaged::container_logs_are_written_again_whatever_befell_them", || {
        let mut node = Node::new();
        let script = "i=0; while :; do i=$((i+1)); echo number $i; sleep 0.2; done";
        let talks = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": TALKS}, "spec": {"nodeName": NODE,
            "hostNetwork": true, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script, TALKS]}]}});
        node.apply_all(&[talks]);
        let last = |node: &Node| {
            let text = node.setup.cluster.kubectl().run(&["logs", TALKS, "--tail=1"]).unwrap_or_default();
            text.trim().strip_prefix("number ").and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        node.setup.shows("its first lines", || last(&node) > 0);
        let uid = node.pod(TALKS)["metadata"]["uid"].as_str().unwrap().to_owned();
        let directory = Path::new("/var/log/pods").join(format!("default_{TALKS}_{uid}/main"));
        let ways = [
            ("0.log", Damage::Missing),
            ("0.log", Damage::Noise),
            ("0.log", Damage::CutTo(0)),
            ("0.log", Damage::CutToHalf),
            ("0.log", Damage::FullDirectory),
            ("0.log", Damage::LinkToPasswd),
            ("0.log.1", Damage::FullDirectory),
            // nobody reads the pipe, so a program that opens it for writing waits for ever
            ("0.log", Damage::Fifo),
            ("0.log.1", Damage::Fifo),
            ("0.log", Damage::LinkToZero),
            ("0.log", Damage::Fifo),
        ];
        for (at, (file, damage)) in ways.into_iter().enumerate() {
            let what = format!("{file}, {damage:?}");
            let before = (pids(WEB), pids(STILL), pids(TALKS));
            let number = last(&node);
            // one of two log files is damaged while the agent runs
            let is_between = at.is_multiple_of(2);
            if is_between {
                node.stop();
            }
            let path = directory.join(file);
            if file == "0.log" || path.exists() {
                apply(damage, &path);
            } else {
                fs::create_dir_all(path.join("full")).unwrap();
            }
            if is_between {
                node.start();
                node.await_all(&what);
            }
            node.setup.shows(&format!("{what}: what it writes later"), || last(&node) > number);
            assert_eq!((pids(WEB), pids(STILL), pids(TALKS)), before, "{what}: {}", node.log());
            assert!(!node.log().contains("panicked"), "{what}: {}", node.log());
        }
        assert!(!fs::read_to_string("/etc/passwd").unwrap().contains("number"), "no link is written to");

        // before the container has written again, kubectl logs reports why its file cannot be read
        let [pid] = pids(TALKS)[..] else { panic!("{:?}", pids(TALKS)) };
        let stopped =
            Command::new("/usr/bin/env").args(["kill", "-STOP", &pid.to_string()]).status().unwrap();
        assert!(stopped.success());
        node.setup.shows("why its log cannot be read", || {
            // its last line may just be written
            apply(Damage::LinkToPasswd, &directory.join("0.log"));
            let read = node.setup.cluster.kubectl().run(&["logs", TALKS]);
            read.is_err_and(|error| error.to_string().contains("0.log: not a regular file"))
        });

        // a log that cannot be created: its container waits and says why, the others keep running, and it
        // runs once its log can be created
        let before = (pids(WEB), pids(STILL));
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, "not a directory").unwrap();
        kill(pid);
        let waiting = || node.pod(TALKS)["status"]["containerStatuses"][0]["state"]["waiting"].take();
        node.setup.shows("a container without a log", || {
            let waiting = waiting();
            let message = waiting["message"].as_str().unwrap_or_default();
            waiting["reason"] == "CreateContainerError" && message.contains(directory.to_str().unwrap())
        });
        let why = node.setup.cluster.kubectl().run(&["logs", TALKS]).unwrap_err().to_string();
        assert!(why.contains("main: not a directory"), "{why}");
        fs::remove_file(&directory).unwrap();
        node.setup.shows("the container, and its log", || last(&node) > 0 && pids(TALKS).len() == 1);
        assert_eq!((pids(WEB), pids(STILL)), before);
        node.setup.cluster.kubectl().run(&["delete", "pod", TALKS, "--timeout=60s"]).unwrap();
        wait_until("the end of its logs", LIMIT, || !directory.parent().unwrap().exists());
    });
}
