//! A real hub on a real file system, cut at every flush: nothing acknowledged is lost, and no version is
//! handed out twice.
//!
//! The hub runs on a disk whose writes are all logged: a first start with its authority and store, clients
//! that write at once, an orderly stop, a log that is full enough to be copied back, a kill, a recovery. Then
//! the disk is rebuilt as a cut at each flush and at each acknowledgement could have left it, with none and
//! with random parts of the unflushed writes, and the hub is started on each. The checker is checked: a hub
//! whose syncs do nothing must be caught.
//!
//! It has the requirements of `kedge_rig::logged_disk`: if they are not met the test is skipped, and under
//! CI=true that is a failure.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use kedge_rig::Scratch;
use kedge_rig::bad_disk::BadDisk;
use kedge_rig::logged_disk::{EXT4, EXT4_WRITEBACK, FileSystem, LogClock, LoggedDisk};
use kedge_rig::nosync_preload::{self, Skips};
use kedge_rig::power_cut::{
    self, Cutting, Rebuilt, Report, cut_at_every_flush, is_full, is_possible, print_past_test_runner,
};
use serde_json::{Value, json};
use server::{Client, Hub};

const HUB: &str = env!("CARGO_BIN_EXE_kedge-hub");
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
/// Concurrent writers, so that their writes are committed together.
const WRITERS: u64 = 3;
/// Objects of each writer.
const OBJECTS: u64 = 3;
/// Writes of each writer in each part of the run.
const STEPS: u64 = 18;
/// A content large enough for the write-ahead log to be copied back while clients write.
const LARGE: usize = 100_000;
/// The violation of an object that went back to an older state.
const LOST: &str = "older than its last acknowledged write";
/// A disk with room for the log. The journal is committed every second, so that unsynced writes reach the
/// disk, too.
const fn roomy(file_system: FileSystem, options: &'static str) -> FileSystem {
    FileSystem { mib: 48, options, ..file_system }
}

/// One write, or the result of a read: the state of the object afterwards (`None`: deleted), and the time of
/// the acknowledgement, with the version then.
#[derive(Debug, Clone)]
struct Step {
    content: Option<String>,
    acknowledged: Option<(u64, u64)>,
}

/// The observations of the clients: each object's writes in order, and the end of each run of the hub.
#[derive(Debug, Default)]
struct History {
    objects: BTreeMap<String, Vec<Step>>,
    /// Every version that was handed out, with its time. Includes renewals: they may be lost, but their
    /// versions must not be reused.
    versions: Vec<(u64, u64)>,
    /// When the authority was first used, and its administrator's kubeconfig.
    ready: Option<(u64, String)>,
    /// When the Lease was made, and each renewal that an orderly stop has made durable.
    lease: Vec<(u64, String)>,
}

impl power_cut::History for History {
    fn acknowledged(&self) -> Vec<u64> {
        let acknowledged = self.objects.values().flatten().filter_map(|step| step.acknowledged);
        acknowledged.map(|(at, _)| at).collect()
    }
}

fn version(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// A series of hubs that is being recorded.
struct Run<'a> {
    clock: LogClock,
    program: &'a Path,
    data_dir: PathBuf,
    history: Arc<Mutex<History>>,
    count: u64,
}

impl Run<'_> {
    fn start(&self) -> Hub {
        let hub = start(self.program, &self.data_dir);
        let now = self.clock.now();
        let kubeconfig = std::fs::read_to_string(self.data_dir.join("admin.kubeconfig")).unwrap();
        self.history.lock().unwrap().ready.get_or_insert((now, kubeconfig));
        hub
    }

    /// All writers at once, each with bodies of this size.
    fn write(&mut self, hub: &Hub, bytes: usize) {
        let first = self.count;
        self.count += STEPS;
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (client, clock, history) = (hub.admin(), self.clock.clone(), &self.history);
                let mut writer = Writer { client, clock, history, number: writer };
                let mut steps =
                    move || (first..first + STEPS).try_for_each(|count| writer.step(count, bytes));
                scope.spawn(move || assert_eq!(steps(), Some(())));
            }
            scope.spawn(|| self.renew(hub));
        });
    }

    /// Lets all writers write until the hub has ended by itself because of failed flushes; then records the
    /// state that a new one shows.
    fn fail(&mut self, mut hub: Hub, disk: &BadDisk) -> Hub {
        let first = self.count;
        self.count += STEPS;
        disk.fail_syncs(Some(1));
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (client, clock, history) = (hub.admin(), self.clock.clone(), &self.history);
                let mut writer = Writer { client, clock, history, number: writer };
                scope.spawn(move || (first..first + STEPS).try_for_each(|count| writer.step(count, 0)));
            }
        });
        assert_eq!(hub.wait(), Some(1));
        let hub = self.start();
        self.read(&hub);
        hub
    }

    /// Records the state that the hub shows: it must be durable, whichever client wrote it.
    fn read(&self, hub: &Hub) {
        let list = hub.admin().get(MAPS).expect(200);
        let now = self.clock.now();
        let items = list["items"].as_array().unwrap();
        for (name, steps) in &mut self.history.lock().unwrap().objects {
            let found = items.iter().find(|item| item["metadata"]["name"] == **name);
            check_object(name, steps, now, found);
            let content = found.map(|item| item["data"]["content"].as_str().unwrap().to_owned());
            let version = found.map_or(0, version);
            steps.push(Step { content, acknowledged: Some((now, version)) });
        }
    }

    /// Makes renewals, which are acknowledged before they are on disk.
    fn renew(&self, hub: &Hub) {
        let mut client = hub.admin();
        for _ in 0..STEPS {
            let found = client.get(LEASE);
            let known = if found.code == 200 { version(&found.json()).to_string() } else { String::new() };
            let time = format!("2026-01-01T00:00:00.{:06}Z", self.clock.now() % 1_000_000);
            let lease = json!({"metadata": {"name": "n", "resourceVersion": known},
                "spec": {"holderIdentity": "n", "renewTime": time}});
            let made = client.put(LEASE, &lease);
            assert!(matches!(made.code, 200 | 201), "{}", String::from_utf8_lossy(&made.body));
            let now = self.clock.now();
            let mut history = self.history.lock().unwrap();
            history.versions.push((now, version(&made.json())));
            if made.code == 201 {
                history.lease.push((now, time));
            }
        }
    }

    /// Stops the hub, and records the Lease, which is then entirely on disk.
    fn stop(&self, hub: Hub) {
        let lease = hub.admin().get(LEASE).expect(200);
        hub.terminate();
        let time = lease["spec"]["renewTime"].as_str().unwrap().to_owned();
        self.history.lock().unwrap().lease.push((self.clock.now(), time));
    }
}

/// A client with objects of its own.
struct Writer<'a> {
    client: Client,
    clock: LogClock,
    history: &'a Mutex<History>,
    number: u64,
}

impl Writer<'_> {
    /// Makes one write of one of its objects: created, replaced, patched, deleted, in turns. `None`: the hub
    /// could not make it, or did not answer.
    fn step(&mut self, count: u64, bytes: usize) -> Option<()> {
        let name = format!("w{}-{}", self.number, count % OBJECTS);
        let path = format!("{MAPS}/{name}");
        let content = format!("{count}{}", "x".repeat(bytes));
        let map = json!({"metadata": {"name": name}, "data": {"content": content}});
        let (method, target, media, body) = match count / OBJECTS % 4 {
            _ if !self.exists(&name) => ("POST", MAPS, "application/json", map.to_string()),
            0 | 1 => ("PUT", &*path, "application/json", map.to_string()),
            2 => {
                let patch = json!({"data": {"content": content}});
                ("PATCH", &*path, "application/merge-patch+json", patch.to_string())
            }
            _ => ("DELETE", &*path, "application/json", String::new()),
        };
        let content = (method != "DELETE").then_some(content);
        self.of(&name, |steps| steps.push(Step { content, acknowledged: None }));
        let reply = self.client.try_send(method, target, &[("content-type", media)], body.as_bytes()).ok()?;
        let now = self.clock.now();
        if matches!(reply.code, 500 | 503) {
            return None;
        }
        assert!(matches!(reply.code, 200 | 201), "{method} {name}: {}", String::from_utf8_lossy(&reply.body));
        // a delete is answered with a Status, which has no version
        let version = if method == "DELETE" { 0 } else { version(&reply.json()) };
        self.of(&name, |steps| steps.last_mut().unwrap().acknowledged = Some((now, version)));
        self.history.lock().unwrap().versions.push((now, version));
        Some(())
    }

    fn of<T>(&self, name: &str, what: impl FnOnce(&mut Vec<Step>) -> T) -> T {
        what(self.history.lock().unwrap().objects.entry(name.to_owned()).or_default())
    }

    fn exists(&self, name: &str) -> bool {
        self.of(name, |steps| steps.last().is_some_and(|step| step.content.is_some()))
    }
}

fn start(program: &Path, data_dir: &Path) -> Hub {
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
    Hub::spawn(command, data_dir)
}

/// A first start, writes, an orderly stop; then by the program `later` a log that is copied back, a kill, a
/// recovery, writes.
fn execute(disk: &LoggedDisk, later: &Path) -> History {
    let history = Arc::new(Mutex::new(History::default()));
    let (clock, data_dir) = (disk.clock(), disk.mount().join("hub"));
    let mut run = Run { clock, program: Path::new(HUB), data_dir, history: history.clone(), count: 0 };
    let hub = run.start();
    run.write(&hub, 0);
    run.stop(hub);
    run.program = later;
    let hub = run.start();
    run.write(&hub, LARGE);
    run.write(&hub, LARGE);
    hub.kill();
    let hub = run.start();
    run.write(&hub, 0);
    hub.kill();
    drop(run);
    Arc::into_inner(history).unwrap().into_inner().unwrap()
}

/// A hub whose flush fails while clients write, twice; the state that the next one shows must survive any
/// cut.
fn execute_failing(disk: &LoggedDisk, bad: &BadDisk) -> History {
    let history = Arc::new(Mutex::new(History::default()));
    let (clock, data_dir) = (disk.clock(), disk.mount().join("hub"));
    let mut run = Run { clock, program: bad.program(), data_dir, history: history.clone(), count: 0 };
    let hub = run.start();
    run.write(&hub, 0);
    let hub = run.fail(hub, bad);
    run.write(&hub, 0);
    let hub = run.fail(hub, bad);
    hub.kill();
    drop(run);
    Arc::into_inner(history).unwrap().into_inner().unwrap()
}

/// Starts the hub on the disk that the cut left.
///
/// # Panics
/// A promise is broken.
fn judge(history: &History, rebuilt: &Rebuilt<'_>) -> Result<(), String> {
    let mounted = rebuilt.mount()?;
    let at = rebuilt.cut.at;
    let hub = start(Path::new(HUB), &mounted.path().join("hub"));
    let mut client = match &history.ready {
        Some((ready, kubeconfig)) if *ready <= at => Client::new(kubeconfig, &hub.url),
        _ => hub.admin(),
    };
    let list = client.get(MAPS).expect(200);
    let items = list["items"].as_array().unwrap();
    let found = |name: &str| items.iter().find(|item| item["metadata"]["name"] == name);
    let mut highest = items.iter().map(version).max().unwrap_or_default();
    for (name, steps) in &history.objects {
        check_object(name, steps, at, found(name));
    }
    let before = history.versions.iter().filter(|(then, _)| *then <= at);
    highest = before.map(|(_, version)| *version).max().unwrap_or_default().max(highest);
    check_lease(history, at, &mut client);
    let next = client.post(MAPS, &json!({"metadata": {"name": "after"}})).expect(201);
    assert!(version(&next) > highest, "version {} is handed out after {highest} was", version(&next));
    Ok(())
}

/// The object is in the state of its last acknowledged write or a later one, with the version of that write.
fn check_object(name: &str, steps: &[Step], cut: u64, found: Option<&Value>) {
    let acknowledged = |step: &Step| step.acknowledged.is_some_and(|(at, _)| at <= cut);
    let last = steps.iter().rposition(acknowledged);
    let content = found.map(|item| item["data"]["content"].as_str().unwrap_or_default());
    let shown = content.map(|content| content.trim_end_matches('x'));
    match steps[last.unwrap_or(0)..].iter().find(|step| step.content.as_deref() == content) {
        Some(Step { acknowledged: Some((_, then)), .. }) if *then > 0 => {
            let now = version(found.unwrap());
            assert_eq!(now, *then, "{name} has the content of version {then}");
        }
        Some(_) => {}
        None if last.is_none() && content.is_none() => {}
        None => panic!("{name} is {shown:?}, {LOST}"),
    }
}

/// A Lease that was made exists, and is not older than an orderly stop left it.
fn check_lease(history: &History, cut: u64, client: &mut Client) {
    let Some((_, durable)) = history.lease.iter().rev().find(|(at, _)| *at <= cut) else { return };
    let lease = client.get(LEASE).expect(200);
    let is_first = history.lease[0].1 == *durable;
    let renewed = lease["spec"]["renewTime"].as_str().unwrap();
    assert!(is_first || renewed >= durable.as_str(), "the Lease is of {renewed}, {durable} was durable");
}

/// Runs and checks every cut. `later` is the program of the second part of the run.
fn cut(name: &str, file_system: FileSystem, later: &Path, subsets: usize, enough: Option<usize>) -> Report {
    let files = Scratch::in_memory(name).unwrap();
    let mount = files.join("mount");
    let cutting = Cutting { name, file_system, mount: &mount, subsets, thin: !is_full(), enough };
    let (report, _) = cut_at_every_flush(&cutting, |disk| execute(disk, later), judge).unwrap();
    print_past_test_runner(&format!("{name}: {report}"));
    report
}

#[test]
fn no_cut_of_a_hub_loses_what_it_acknowledged() {
    let file_system = roomy(EXT4, "commit=1");
    if !is_possible(&file_system) {
        return;
    }
    let report = cut("hub-cut", file_system, Path::new(HUB), if is_full() { 3 } else { 1 }, None);
    report.assert_none_wrong(report.acknowledgements);
}

#[test]
fn no_cut_after_a_failed_flush_finds_a_third_state() {
    let file_system = roomy(EXT4, "commit=1");
    if !is_possible(&file_system) {
        return;
    }
    let (name, files) = ("hub-cut-failed-flush", Scratch::in_memory("hub-cut-failed-flush").unwrap());
    let mount = files.join("mount");
    let bad = BadDisk::new(files.path(), Path::new(HUB), &mount).unwrap();
    let subsets = if is_full() { 3 } else { 1 };
    let cutting = Cutting { name, file_system, mount: &mount, subsets, thin: !is_full(), enough: None };
    let (report, _) = cut_at_every_flush(&cutting, |disk| execute_failing(disk, &bad), judge).unwrap();
    print_past_test_runner(&format!("{name}: {report}"));
    report.assert_none_wrong(report.acknowledgements);
}

#[test]
fn hub_without_sync_is_caught() {
    let file_system = roomy(EXT4_WRITEBACK, "data=writeback,noauto_da_alloc,commit=1");
    if !is_possible(&file_system) {
        return;
    }
    let files = Scratch::new("hub-nosync").unwrap();
    let later = nosync_preload::program(files.path(), Path::new(HUB), Skips::Files).unwrap();
    let report = cut("hub-cut-nosync", file_system, &later, 1, Some(3));
    let described = &report.described;
    assert!(
        described.iter().any(|text| text.contains(LOST)),
        "nothing lost in {} disks: {described:?}",
        report.disks
    );
}
