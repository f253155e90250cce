//! A real hub on a real file system, cut at every flush: nothing acknowledged is lost, and no version is handed out twice.
//!
//! The hub lives on a disk whose every write is logged: a first start with its authority and store, clients that write at once, an
//! orderly stop, a log full enough to be copied back, a kill, a recovery. Then the disk is rebuilt as a cut at each flush and at
//! each acknowledgement could have left it, with nothing and with random parts of what was on its way, and the hub is started
//! on each. The checker is checked: a hub whose syncs do nothing must be caught.
//!
//! `KEDGE_CRASH_FULL=1` checks more states, `KEDGE_CRASH_SEED` chooses other random parts. Needs what `kedge_rig::logged_disk` needs:
//! where that is missing nothing is shown, and under CI=true that is a failure.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod server;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use kedge_rig::logged_disk::{
    self, Choice, Cut, EXT4, EXT4_WRITEBACK, FileSystem, LogClock, LoggedDisk, Mounted, Recording,
};
use kedge_rig::nosync_preload::{self, Skips};
use serde_json::{Value, json};
use server::{Client, Hub};

const HUB: &str = env!("CARGO_BIN_EXE_kedge-hub");
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
/// Writers at once, so that what they write is committed together.
const WRITERS: u64 = 3;
/// Objects of each.
const OBJECTS: u64 = 3;
/// Writes of each writer in each part of the life.
const STEPS: u64 = 18;
/// A content large enough for the write-ahead log to be copied back while clients write.
const LARGE: usize = 100_000;
/// What is said of an object that went back.
const LOST: &str = "older than its last acknowledged write";
/// Violations spelt out; further ones are only counted.
const TOLD: usize = 3;

/// A disk with room for the log. The journal is committed every second, so that what nobody synced reaches the disk, too.
const fn roomy(file_system: FileSystem, options: &'static str) -> FileSystem {
    FileSystem { mib: 48, options, ..file_system }
}

/// One write: what the object is afterwards (`None`: gone), and when that was acknowledged, with the version then.
#[derive(Debug, Clone)]
struct Step {
    content: Option<String>,
    acknowledged: Option<(u64, u64)>,
}

/// What the clients saw: each object's writes in order, and the end of each life of the hub.
#[derive(Debug, Default)]
struct History {
    objects: BTreeMap<String, Vec<Step>>,
    /// Every version that was handed out, and when. Renewals too: they may be lost, but never their number.
    versions: Vec<(u64, u64)>,
    /// When the authority was first used, and its administrator's kubeconfig.
    ready: Option<(u64, String)>,
    /// When the Lease was made, and each renewal that an orderly stop has made durable.
    lease: Vec<(u64, String)>,
}

impl History {
    /// Moments of acknowledgements.
    fn instants(&self) -> Vec<u64> {
        let acknowledged = self.objects.values().flatten().filter_map(|step| step.acknowledged);
        acknowledged.map(|(at, _)| at).collect()
    }
}

fn version(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// The life of a hub, being lived.
struct Life<'a> {
    clock: LogClock,
    program: &'a Path,
    data_dir: PathBuf,
    history: Arc<Mutex<History>>,
    count: u64,
}

impl Life<'_> {
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
                scope.spawn(move || (first..first + STEPS).for_each(|count| writer.step(count, bytes)));
            }
            scope.spawn(|| self.renew(hub));
        });
    }

    /// Renewals, which are acknowledged before they are on disk.
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

    /// The Lease, once nothing of it is only in memory.
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
    /// One write of one of its objects: made, replaced, patched, deleted, by turns.
    fn step(&mut self, count: u64, bytes: usize) {
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
        let reply = self.client.send(method, target, &[("content-type", media)], body.as_bytes());
        let now = self.clock.now();
        assert!(matches!(reply.code, 200 | 201), "{method} {name}: {}", String::from_utf8_lossy(&reply.body));
        // of what is deleted the answer is a Status, without a version
        let version = if method == "DELETE" { 0 } else { version(&reply.json()) };
        self.of(&name, |steps| steps.last_mut().unwrap().acknowledged = Some((now, version)));
        self.history.lock().unwrap().versions.push((now, version));
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

/// A first start, writes, an orderly stop; then by the program `later` a log that is copied back, a kill, a recovery, writes.
fn live(file_system: &FileSystem, directory: &Path, later: &Path) -> (Recording, History) {
    let mount = directory.join("mount");
    std::fs::create_dir_all(&mount).unwrap();
    let disk = LoggedDisk::start(file_system, directory, &mount).unwrap();
    let history = Arc::new(Mutex::new(History::default()));
    let (clock, data_dir) = (disk.clock(), mount.join("hub"));
    let mut life = Life { clock, program: Path::new(HUB), data_dir, history: history.clone(), count: 0 };
    let hub = life.start();
    life.write(&hub, 0);
    life.stop(hub);
    life.program = later;
    let hub = life.start();
    life.write(&hub, LARGE);
    life.write(&hub, LARGE);
    hub.kill();
    let hub = life.start();
    life.write(&hub, 0);
    hub.kill();
    drop(life);
    let recording = disk.cut().unwrap();
    (recording, Arc::into_inner(history).unwrap().into_inner().unwrap())
}

/// Starts the hub on what the cut left.
///
/// # Panics
/// Something is not as it must be.
fn judge(history: &History, file_system: &FileSystem, cut: &Cut, directory: &Path) {
    let mount = directory.join("mount");
    std::fs::create_dir_all(&mount).unwrap();
    let mounted = Mounted::new(file_system, &cut.image, &directory.join("image"), &mount);
    let _mounted = mounted.expect("the file system does not mount");
    let hub = start(Path::new(HUB), &mount.join("hub"));
    let mut client = match &history.ready {
        Some((at, kubeconfig)) if *at <= cut.at => Client::new(kubeconfig, &hub.url),
        _ => hub.admin(),
    };
    let list = client.get(MAPS).expect(200);
    let items = list["items"].as_array().unwrap();
    let found = |name: &str| items.iter().find(|item| item["metadata"]["name"] == name);
    let mut highest = items.iter().map(version).max().unwrap_or_default();
    for (name, steps) in &history.objects {
        check_object(name, steps, cut.at, found(name));
    }
    let before = history.versions.iter().filter(|(at, _)| *at <= cut.at);
    highest = before.map(|(_, version)| *version).max().unwrap_or_default().max(highest);
    check_lease(history, cut.at, &mut client);
    let next = client.post(MAPS, &json!({"metadata": {"name": "after"}})).expect(201);
    assert!(version(&next) > highest, "version {} is handed out after {highest} was", version(&next));
}

/// The object is as its last acknowledged write or a later one left it, and says so with the version of that write.
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

/// A Lease that was made is there, and not older than an orderly stop left it.
fn check_lease(history: &History, cut: u64, client: &mut Client) {
    let Some((_, durable)) = history.lease.iter().rev().find(|(at, _)| *at <= cut) else { return };
    let lease = client.get(LEASE).expect(200);
    let is_first = history.lease[0].1 == *durable;
    let renewed = lease["spec"]["renewTime"].as_str().unwrap();
    assert!(is_first || renewed >= durable.as_str(), "the Lease is of {renewed}, {durable} was durable");
}

fn is_full() -> bool {
    std::env::var_os("KEDGE_CRASH_FULL").is_some_and(|value| !value.is_empty() && value != "0")
}

fn seed() -> u64 {
    let chosen = std::env::var("KEDGE_CRASH_SEED").ok();
    chosen.map_or(1, |seed| seed.parse().expect("KEDGE_CRASH_SEED is a number"))
}

/// What the checks found.
#[derive(Debug, Default)]
struct Findings {
    states: usize,
    violations: usize,
    told: Vec<String>,
}

/// Checks every cut of the choice, or until `enough` violations are found.
fn check(
    lived: &(Recording, History),
    file_system: &FileSystem,
    directory: &Path,
    subsets: usize,
    enough: Option<usize>,
) -> Findings {
    let (recording, history) = lived;
    let choice = Choice { subsets, thin: !is_full(), instants: history.instants(), seed: seed() };
    let cuts = Mutex::new(recording.cuts(&choice));
    let findings = Mutex::new(Findings::default());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let directory = directory.join(format!("worker-{worker}"));
            let (cuts, findings) = (&cuts, &findings);
            scope.spawn(move || {
                std::fs::create_dir_all(&directory).unwrap();
                loop {
                    let Some(cut) = cuts.lock().unwrap().next() else { return };
                    let judged =
                        catch_unwind(AssertUnwindSafe(|| judge(history, file_system, &cut, &directory)));
                    let mut findings = findings.lock().unwrap();
                    findings.states += 1;
                    if let Err(panic) = judged {
                        findings.violations += 1;
                        let text = panic.downcast_ref::<String>().cloned();
                        let text =
                            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                        if findings.told.len() < TOLD {
                            let text = text.unwrap_or_default();
                            findings.told.push(format!("flush {}, subset {}: {text}", cut.flush, cut.subset));
                        }
                    }
                    if enough.is_some_and(|enough| findings.violations >= enough) {
                        return;
                    }
                }
            });
        }
    });
    findings.into_inner().unwrap()
}

/// A directory for disks and images that goes with the test.
struct Files(PathBuf);

impl Files {
    fn new(purpose: &str) -> Files {
        let path =
            logged_disk::fast_directory().join(format!("kedge-hub-cut-{}-{purpose}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Files(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether this machine can show it.
fn is_possible() -> bool {
    let Some(lacks) = logged_disk::missing(&EXT4) else { return true };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "no power cut can be shown: {lacks}");
    eprintln!("SKIPPED: no power cut can be shown here, for want of: {lacks}");
    false
}

#[test]
fn a_hub_cut_at_any_flush_has_all_it_acknowledged() {
    if !is_possible() {
        return;
    }
    let file_system = roomy(EXT4, "commit=1");
    let files = Files::new("ours");
    let lived = live(&file_system, &files.0, Path::new(HUB));
    let subsets = if is_full() { 3 } else { 1 };
    let found = check(&lived, &file_system, &files.0, subsets, None);
    let acknowledged = lived.1.instants().len();
    println!(
        "{acknowledged} acknowledgements; {} writes, {} flushes; {} states, {} violations",
        lived.0.writes(),
        lived.0.flushes(),
        found.states,
        found.violations
    );
    assert!(found.states > acknowledged, "too few states to prove anything");
    assert_eq!(found.violations, 0, "{:#?}", found.told);
}

#[test]
fn a_hub_that_does_not_sync_is_caught() {
    if !is_possible() {
        return;
    }
    let file_system = roomy(EXT4_WRITEBACK, "data=writeback,noauto_da_alloc,commit=1");
    let files = Files::new("careless");
    let careless = nosync_preload::program(&files.0, Path::new(HUB), Skips::Files).unwrap();
    let lived = live(&file_system, &files.0, &careless);
    let found = check(&lived, &file_system, &files.0, 1, Some(TOLD));
    println!("{} of {} states wrong: {:#?}", found.violations, found.states, found.told);
    assert!(found.told.iter().any(|told| told.contains(LOST)), "nothing lost in {} states", found.states);
}
