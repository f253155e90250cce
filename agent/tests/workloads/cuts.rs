//! Power cuts at every flush of the life of pods, with the real agent, crun and a real file system: bound,
//! started, ended and started again, done, deleted, replaced by another of the same name; its ConfigMap
//! edited.
//!
//! The node's root directory and its containers' logs are on a disk whose every write is logged. It is
//! rebuilt as a cut at each flush could have left it, and the agent is started on each as another boot, first
//! without an API server. Always holds: a pod that had run runs again, once; a pod that was done or gone does
//! not; a pod whose binding was under way runs, or is not known; a ConfigMap is seen as it was before an edit
//! or after it, and as after it where a container had seen that; no record is half written. On some disks the
//! agent then meets the API server in its final state, and must reach that state. The checker is checked: an
//! agent whose directories are not synced must be caught.
//!
//! `KEDGE_CRASH_FULL=1` checks more of what a flush that was under way can leave. Each boot has namespaces of
//! its own, which end with it.

use crate::killed_agents::pids;
use crate::pods::{NODE, Setup};
use crate::setup::{INSIDE, LIMIT, isolated_network, kill, set_apart};
use kedge::local::client;
use kedge_rig::Scratch;
use kedge_rig::cluster::Cluster;
use kedge_rig::logged_disk::{FileSystem, LogClock, LoggedDisk, STATE_PARTITION};
use kedge_rig::nosync_preload::{self, Skips};
use kedge_rig::power_cut::{
    Cutting, History, Rebuilt, Report, cut_at_every_flush, is_full, is_possible, print_past_test_runner,
};
use kedge_rig::programs;
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Room for an image, and for the twentieth that pulls leave free.
const DISK: FileSystem = FileSystem { mib: 32, ..STATE_PARTITION };
/// Where containers' logs are on the disk.
const LOGS: &str = "pod-logs";
/// The content of the Secret that must never be on the disk.
const NEVER_ON_DISK: &str = "a-word-for-memory-only";
/// One disk in this many also meets the API server.
const WITH_SERVER: usize = 8;

/// A pod of the run: the first word of what it writes.
pub(crate) type Mark = &'static str;

/// A pod that runs all the time.
const ANCHOR: Mark = "anchor";
/// Both values of its ConfigMap are edited.
const EDITED: Mark = "edited";
/// A pod that is killed, deleted and replaced by one of the same name.
const FIRST: Mark = "first";
const SECOND: Mark = "second";
/// A pod that is done at once, and must not be run again then.
const JOB: Mark = "job";
/// A pod whose Secret must not be on the disk.
const PRIVATE: Mark = "private";

/// When each change of a pod was requested and seen, by the length of the log.
#[derive(Debug, Default)]
struct Moments {
    uid: String,
    asked: Option<u64>,
    /// Seen to run, or to have run.
    ran: Option<u64>,
    /// Its end began.
    leaves: Option<u64>,
    /// Seen to be done, or gone from the API.
    over: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Runs,
    /// If the node knows it, and everything that it refers to, it starts running, unless it ends.
    MayRun,
    RunsNot,
}

#[derive(Debug, Default)]
struct Story {
    steps: Vec<(u64, &'static str)>,
    /// The container saw the edit.
    edited: Option<u64>,
    pods: BTreeMap<Mark, Moments>,
}

impl Story {
    fn expects(&self, mark: Mark, at: u64) -> Expect {
        let Some(pod) = self.pods.get(mark) else { return Expect::RunsNot };
        let by_then = |moment: Option<u64>| moment.is_some_and(|moment| moment <= at);
        match (by_then(pod.asked), by_then(pod.ran), by_then(pod.leaves), by_then(pod.over)) {
            (_, _, _, true) | (false, ..) => Expect::RunsNot,
            _ if mark == PRIVATE => Expect::RunsNot,
            (_, true, false, _) => Expect::Runs,
            _ => Expect::MayRun,
        }
    }

    /// The lines that the pod of this mark may write when it starts on a disk of this moment.
    fn lines_of(&self, mark: Mark, at: u64) -> Vec<String> {
        let before = self.edited.is_none_or(|edited| at < edited).then_some("edited 1 1");
        match mark {
            EDITED => before.into_iter().chain(["edited 2 2"]).map(str::to_owned).collect(),
            FIRST | SECOND => vec![format!("{mark} hello 1234")],
            PRIVATE => vec![format!("{mark} hello {NEVER_ON_DISK}")],
            _ => vec![mark.to_owned()],
        }
    }

    fn mark_of(&self, uid: &Value) -> Option<Mark> {
        self.pods.iter().find(|(_, pod)| *uid == pod.uid.as_str()).map(|(mark, _)| *mark)
    }
}

impl History for Story {
    fn acknowledged(&self) -> Vec<u64> {
        self.pods.values().flat_map(|pod| [pod.ran, pod.over]).chain([self.edited]).flatten().collect()
    }

    /// Before the first step the image is fetched, which `agent/tests/images` cuts.
    fn step_at(&self, at: u64) -> Option<&'static str> {
        self.steps.iter().rev().find(|(begins, _)| *begins <= at).map(|(_, step)| *step)
    }
}

fn pod(name: &str, mark: Mark, script: &str, shared: &Path, more: &Value) -> Value {
    // a job that failed would be tried again
    let restart_policy = if mark == JOB { "OnFailure" } else { "Always" };
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 2, "restartPolicy": restart_policy,
        "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script, mark],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}],
        "volumes": [{"name": "shared", "hostPath": {"path": shared}}]}});
    for (list, items) in more.as_object().into_iter().flatten() {
        let of_spec = ["volumes"].contains(&list.as_str());
        let place = if of_spec { &mut pod["spec"][list] } else { &mut pod["spec"]["containers"][0][list] };
        let mut all = place.as_array().cloned().unwrap_or_default();
        all.extend(items.as_array().into_iter().flatten().cloned());
        *place = json!(all);
    }
    pod
}

/// Writes its line, and stays.
pub(crate) fn stays(name: &str, mark: Mark, shared: &Path, more: &Value) -> Value {
    let script = "echo $0 $GREETING $(cat /keys/token 2>/dev/null) >>/shared/ran; trap 'exit 0' TERM; sleep 86322 & wait";
    pod(name, mark, script, shared, more)
}

/// With a word of a ConfigMap, and a file of this Secret.
fn with_objects(secret: &str) -> Value {
    json!({"env": [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "hello"}}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
        "volumes": [{"name": "keys", "secret": {"secretName": secret}}]})
}

/// With two values of one ConfigMap.
fn pair(value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pair"}, "data": {"a": value, "b": value}})
}

/// Writes both of them, and stays.
fn shows_a_pair(shared: &Path) -> Value {
    let script =
        "echo $0 $(cat /pair/a) $(cat /pair/b) >>/shared/ran; trap 'exit 0' TERM; sleep 86322 & wait";
    let more = json!({"volumeMounts": [{"name": "pair", "mountPath": "/pair"}],
        "volumes": [{"name": "pair", "configMap": {"name": "pair"}}]});
    pod("edited", EDITED, script, shared, &more)
}

/// The node while its disk is recorded.
struct Live<'a> {
    setup: &'a Setup,
    shared: &'a Path,
    clock: LogClock,
    story: Story,
}

impl Live<'_> {
    fn step(&mut self, name: &'static str) {
        self.story.steps.push((self.clock.now(), name));
    }

    fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.setup.cluster.kubectl().feed(&["apply", "-f", "-"], &list).unwrap();
    }

    fn status(&self, name: &str) -> Value {
        self.setup.cluster.kubectl().json(&["get", "pod", name]).unwrap_or_default()
    }

    /// Binds the pod, and waits until the API shows this.
    fn bind(&mut self, name: &str, mark: Mark, pod: Value, is_so: impl Fn(&Value) -> bool) {
        let asked = Some(self.clock.now());
        self.apply(&[pod]);
        let uid = self.status(name)["metadata"]["uid"].as_str().unwrap().to_owned();
        self.setup.shows(&format!("{mark}, as wanted"), || is_so(&self.status(name)["status"]));
        let ran = Some(self.clock.now());
        self.story.pods.insert(mark, Moments { uid, asked, ran, ..Moments::default() });
    }

    fn delete(&mut self, name: &str, mark: Mark) {
        let leaves = Some(self.clock.now());
        self.setup.cluster.kubectl().run(&["delete", "pod", name, "--timeout=60s"]).unwrap();
        let over = Some(self.clock.now());
        let moments = self.story.pods.get_mut(mark).unwrap();
        (moments.leaves, moments.over) = (leaves, over);
    }

    fn execute(&mut self) {
        let text = |text: &str| json!({"token": text});
        self.apply(&[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"hello": "hello"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": text("1234")}),
            json!({"apiVersion": "v1", "kind": "Secret", "stringData": text(NEVER_ON_DISK),
                "metadata": {"name": "private", "annotations": {"kedge.dev/offline": "never"}}}),
        ]);
        self.apply(&[pair("1")]);
        self.step("a pod is bound");
        self.bind("anchor", ANCHOR, stays("anchor", ANCHOR, self.shared, &Value::Null), is_ready);
        self.step("one with a ConfigMap and a Secret is bound");
        self.bind("web", FIRST, stays("web", FIRST, self.shared, &with_objects("keys")), is_ready);
        self.step("one with a volume of a ConfigMap is bound");
        self.bind("edited", EDITED, shows_a_pair(self.shared), is_ready);
        self.step("its ConfigMap is edited");
        self.apply(&[pair("2")]);
        self.setup.shows("the edit in the container", || {
            let [pid] = pids(EDITED)[..] else { return false };
            fs::read_to_string(format!("/proc/{pid}/root/pair/b")).is_ok_and(|value| value == "2")
        });
        self.story.edited = Some(self.clock.now());
        self.step("the container of the other ends and is started again");
        pids(FIRST).into_iter().for_each(kill);
        self.setup.shows("another container", || {
            let status = self.status("web")["status"].take();
            is_ready(&status) && status["containerStatuses"][0]["restartCount"] == 1
        });
        self.step("a pod does its work");
        let leaves = Some(self.clock.now());
        let job = pod("job", JOB, "echo $0 >>/shared/ran; sleep 0.2", self.shared, &Value::Null);
        self.bind("job", JOB, job, |status| status["phase"] == "Succeeded");
        // `bind` takes a reached state for a running pod: here that state is the job's end
        let done = self.story.pods.get_mut(JOB).unwrap();
        (done.ran, done.leaves, done.over) = (None, leaves, done.ran);
        self.step("the pod is deleted");
        self.delete("web", FIRST);
        self.step("another of the same name is bound");
        self.bind("web", SECOND, stays("web", SECOND, self.shared, &with_objects("keys")), is_ready);
        self.step("one with a Secret that may not lie on the disk is bound");
        self.bind(
            "private",
            PRIVATE,
            stays("private", PRIVATE, self.shared, &with_objects("private")),
            is_ready,
        );
        self.step("the other is deleted");
        self.delete("web", SECOND);
    }
}

pub(crate) fn is_ready(status: &Value) -> bool {
    status["containerStatuses"][0]["ready"] == true
}

/// The inputs of a boot on a rebuilt disk.
struct Boots {
    /// The agent's command line; the control group of its pods is the last word.
    command: Vec<OsString>,
    root_dir: PathBuf,
    run_dir: PathBuf,
    /// Where pods write; each boot has another directory there.
    shared: PathBuf,
    hub: PathBuf,
    hub_data: PathBuf,
    hub_address: String,
}

/// `$1`: a directory of this boot alone. Then the places of the disk, of `/run` and of the pods' files; then
/// the command.
const BOOT: &str = r#"umask 077
ip link set lo up
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$1/mount" "$2"
mount --bind "$1/run" "$3"
mount --bind "$1/shared" "$4"
mkdir -p "$2/$5"
mount --bind "$2/$5" /var/log/pods
shift 5
"$@"
exit $?"#;

/// A machine that was booted: namespaces, and the processes in them.
struct Booted {
    child: Child,
    directory: PathBuf,
    hub: Option<Child>,
}

impl Drop for Booted {
    fn drop(&mut self) {
        for child in [Some(&mut self.child), self.hub.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Boots {
    fn of(setup: &mut Setup, shared: &Path) -> Self {
        let hub = setup.cluster.hub();
        let (hub_address, hub_data) = (hub.address().to_owned(), hub.log().with_file_name("data"));
        let agent = setup.cluster.agent(NODE);
        let mut command = agent.command();
        let group = command.pop();
        command[0] = env!("CARGO_BIN_EXE_kedge").into();
        assert_eq!(group, std::env::var_os(INSIDE), "the last word of {command:?}");
        Self {
            command,
            root_dir: agent.root_dir(),
            run_dir: agent.run_dir(),
            shared: shared.to_owned(),
            hub: programs::built("kedge-hub").unwrap(),
            hub_data,
            hub_address,
        }
    }

    fn boot(&self, directory: &Path) -> std::io::Result<Booted> {
        for name in ["run", "shared"] {
            let _ = fs::remove_dir_all(directory.join(name));
            fs::create_dir(directory.join(name))?;
        }
        fs::write(directory.join("boot_id"), format!("{}\n", "5c7b0000-0000-4000-8000-000000000001"))?;
        let worker = directory.file_name().unwrap_or_default().to_string_lossy();
        let mut command = set_apart();
        command.args(["--net", "--mount-proc", "--kill-child=KILL", "sh", "-euc", BOOT, "sh"]);
        command.arg(directory).arg(&self.root_dir).arg(&self.run_dir).arg(&self.shared).arg(LOGS);
        command.args(&self.command).arg(format!("{}/{worker}", std::env::var(INSIDE).unwrap_or_default()));
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM"] {
            command.env_remove(name);
        }
        command.env("RUNTIME_DIRECTORY", &self.run_dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(directory.join("agent.log"))?);
        Ok(Booted { child: command.spawn()?, directory: directory.to_owned(), hub: None })
    }

    /// The API server as it was at the end of the run, in the network of this boot.
    fn begin_hub(&self, booted: &mut Booted) -> std::io::Result<()> {
        let data = booted.directory.join("hub");
        let _ = fs::remove_dir_all(&data);
        let copied = Command::new("cp").arg("-a").arg(&self.hub_data).arg(&data).status()?;
        assert!(copied.success());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "nsenter"]);
        command.arg(format!("--net=/proc/{}/ns/net", booted.child.id()));
        command.arg(&self.hub).args(["serve", "--data-dir"]).arg(&data).args(["--listen", &self.hub_address]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(booted.directory.join("hub.log"))?);
        booted.hub = Some(command.spawn()?);
        Ok(())
    }

    fn judge(&self, story: &Story, rebuilt: &Rebuilt<'_>) -> Result<(), String> {
        let mounted = rebuilt.mount()?;
        let at = rebuilt.cut.at;
        let mut booted = self.boot(rebuilt.directory).map_err(|error| error.to_string())?;
        let judged = booted.judge_alone(story, at).and_then(|()| {
            if !rebuilt.cut.flush.is_multiple_of(WITH_SERVER) {
                return Ok(());
            }
            self.begin_hub(&mut booted).map_err(|error| error.to_string())?;
            booted.judge_with_server(story, at)
        });
        let judged = judged.and_then(|()| no_half_file(mounted.path()));
        judged.map_err(|why| format!("{why}\n{:?}\n{}", booted.lines(), booted.log()))
    }
}

/// Checks that each file below has the form that its name promises, and that none contains the Secret that
/// must not be on disk.
fn no_half_file(root: &Path) -> Result<(), String> {
    const FOLDERS: [&str; 5] = ["pods/desired", "pods/objects", "images", "images/records", "images/configs"];
    let names = |folder: &str| fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    let half = |folder: &str| {
        let names = names(folder).map(|entry| format!("{folder}/{}", entry.file_name().display()));
        names.filter(|name| name.contains(".kedge-new-")).collect::<Vec<_>>()
    };
    // they are swept while the agent runs already
    let mut left = Vec::new();
    let is_swept = poll(LIMIT, || {
        left = FOLDERS.iter().flat_map(|folder| half(folder)).collect();
        left.is_empty().then_some(())
    });
    if is_swept.is_none() {
        return Err(format!("what the cut left half written stays: {left:?}"));
    }
    let pods = root.join("pods");
    for folder in ["desired", "objects"] {
        for entry in fs::read_dir(pods.join(folder)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let text = fs::read_to_string(entry.path()).map_err(|error| format!("{name}: {error}"))?;
            if !name.ends_with(".json") || serde_json::from_str::<Value>(&text).is_err() {
                return Err(format!("{folder}/{name} is left: {text:?}"));
            }
            let hidden = base64_of(NEVER_ON_DISK);
            if text.contains(NEVER_ON_DISK) || text.contains(&hidden) {
                return Err(format!("{folder}/{name} has what may not lie on the disk"));
            }
        }
    }
    Ok(())
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

impl Booted {
    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("agent.log")).unwrap_or_default()
    }

    /// The lines that pods wrote since the boot.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("shared/ran")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn count(&self, mark: Mark) -> usize {
        self.lines().iter().filter(|line| line.split(' ').next() == Some(mark)).count()
    }

    /// The pods that the agent knows.
    fn pods(&self, story: &Story) -> Option<BTreeMap<Mark, Value>> {
        let answer = client::get(&self.directory.join("run/kedge.sock"), "/pods").ok()?;
        let answer: Value = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)?;
        let marked = |pod: &Value| (story.mark_of(&pod["uid"]).unwrap_or("unknown"), pod.clone());
        Some(answer["pods"].as_array()?.iter().map(marked).collect())
    }

    /// Whether what pods refer to is on the disk.
    fn has_copies(&self) -> bool {
        let files = fs::read_dir(self.directory.join("mount/pods/objects")).into_iter().flatten().flatten();
        let copies =
            files.filter_map(|file| serde_json::from_slice::<Value>(&fs::read(file.path()).ok()?).ok());
        let names: Vec<Value> = copies.map(|mut copy| copy["object"]["name"].take()).collect();
        ["words", "keys", "pair"].iter().all(|name| names.contains(&json!(name)))
    }

    /// Without an API server: waits until the agent's pods match the disk, and judges them.
    fn judge_alone(&self, story: &Story, at: u64) -> Result<(), String> {
        let mut last = String::new();
        let settled = poll(LIMIT, || {
            let pods = self.pods(story)?;
            last = self.why_not_settled(story, at, &pods)?;
            last.is_empty().then_some(())
        });
        if settled.is_none() {
            return Err(format!("without an API server: {last}: {:?}", self.pods(story)));
        }
        self.judge_lines(story, at, |mark| match story.expects(mark, at) {
            Expect::Runs => 1..=1,
            Expect::MayRun => 0..=1,
            Expect::RunsNot => 0..=0,
        })
    }

    /// Empty if it is settled.
    fn why_not_settled(&self, story: &Story, at: u64, pods: &BTreeMap<Mark, Value>) -> Option<String> {
        // a job that is done looks like one that waits
        for mark in [ANCHOR, EDITED, FIRST, SECOND, PRIVATE] {
            let expect = story.expects(mark, at);
            let Some(pod) = pods.get(mark) else {
                if expect == Expect::Runs {
                    return Some(format!("{mark} is not known"));
                }
                continue;
            };
            let has_begun = pod["containers"][0]["state"] == "Running" && self.count(mark) > 0;
            let is_ending = pod["isEnding"] == true;
            let is_as_it_should = match expect {
                Expect::Runs => has_begun && !is_ending,
                // the pod's record is there, but not yet all that it refers to
                Expect::MayRun => has_begun || is_ending || !self.has_copies(),
                Expect::RunsNot => mark == PRIVATE || is_ending,
            };
            if !is_as_it_should {
                return Some(format!("{mark}, expected {expect:?}, is {pod}"));
            }
        }
        Some(String::new())
    }

    fn judge_lines(
        &self,
        story: &Story,
        at: u64,
        expect: impl Fn(Mark) -> std::ops::RangeInclusive<usize>,
    ) -> Result<(), String> {
        for mark in [ANCHOR, EDITED, FIRST, SECOND, JOB, PRIVATE] {
            let (count, expect) = (self.count(mark), expect(mark));
            if !expect.contains(&count) {
                return Err(format!("{mark} was started {count} times in this boot, expected {expect:?}"));
            }
            let right = story.lines_of(mark, at);
            let mut own = self.lines().into_iter().filter(|line| line.starts_with(mark));
            if let Some(line) = own.find(|line| !right.contains(line)) {
                return Err(format!("{mark} wrote {line:?}, expected one of {right:?}"));
            }
        }
        Ok(())
    }

    /// With the API server of the end of the run: waits until the agent's pods match that server's.
    fn judge_with_server(&self, story: &Story, at: u64) -> Result<(), String> {
        let wanted = [ANCHOR, EDITED, JOB, PRIVATE];
        let mut seen = None;
        let reached = poll(LIMIT, || {
            let pods = self.pods(story)?;
            let known: Vec<Mark> = pods.keys().copied().collect();
            let is_running =
                |mark: Mark| pods.get(mark).is_some_and(|pod| pod["containers"][0]["state"] == "Running");
            let runs = |mark: Mark| is_running(mark) && self.count(mark) > 0;
            let is_so = known == wanted && runs(ANCHOR) && runs(EDITED) && runs(PRIVATE) && !is_running(JOB);
            seen = Some(pods);
            is_so.then_some(())
        });
        if reached.is_none() {
            let hub = fs::read_to_string(self.directory.join("hub.log")).unwrap_or_default();
            return Err(format!("with the API server: expected {wanted:?}, known are {seen:?}\n{hub}"));
        }
        self.judge_lines(story, at, |mark| match mark {
            ANCHOR | EDITED | PRIVATE => 1..=1,
            _ => 0..=1,
        })
    }
}

/// Runs this agent on a logged disk, and starts it on every disk that a cut could have left.
fn cut(name: &str, program: &Path, file_system: FileSystem, enough: Option<usize>) -> Report {
    let mut cluster = Cluster::start(name).unwrap();
    let shared = cluster.scratch().join("shared");
    fs::create_dir(&shared).unwrap();
    let mount = cluster.scratch().join(NODE).join("root");
    // the node's directories are needed until the checks are over
    let (boots, mut kept) = (OnceLock::new(), None);
    let live = |disk: &LoggedDisk| {
        let mut setup = Setup::around(cluster, program, |root| {
            let logs = root.join(LOGS);
            fs::create_dir_all(&logs).unwrap();
            let bound = Command::new("mount").arg("--bind").arg(&logs).arg("/var/log/pods").status().unwrap();
            assert!(bound.success(), "in the mount namespace of this test");
        });
        setup.await_pods();
        let mut live = Live { setup: &setup, shared: &shared, clock: disk.clock(), story: Story::default() };
        live.execute();
        let story = live.story;
        setup.turn_off();
        assert!(Command::new("umount").arg("/var/log/pods").status().unwrap().success());
        setup.cluster.hub_mut().stop().unwrap();
        assert!(boots.set(Boots::of(&mut setup, &shared)).is_ok());
        kept = Some(setup);
        story
    };
    let cutting = Cutting { name, file_system, mount: &mount, subsets: 1, thin: !is_full(), enough };
    let check =
        |story: &Story, rebuilt: &Rebuilt<'_>| boots.get().expect("the run is over").judge(story, rebuilt);
    let (report, _) = cut_at_every_flush(&cutting, live, check).unwrap();
    print_past_test_runner(&format!("measured: {name}: {report}").replace('\n', ";"));
    report
}

#[test]
fn no_cut_makes_a_pod_run_twice_or_not_at_all() {
    if !is_possible(&DISK) {
        return;
    }
    isolated_network("cuts::no_cut_makes_a_pod_run_twice_or_not_at_all", || {
        let report = cut("pod-cuts", env!("CARGO_BIN_EXE_kedge").as_ref(), DISK, Some(3));
        report.assert_none_wrong(report.flushes / 2);
    });
}

#[test]
fn node_whose_pods_are_not_synced_is_caught() {
    if !is_possible(&DISK) {
        return;
    }
    isolated_network("cuts::node_whose_pods_are_not_synced_is_caught", || {
        let files = Scratch::new("pod-nosync").unwrap();
        let real = Path::new(env!("CARGO_BIN_EXE_kedge"));
        let program = nosync_preload::program(files.path(), real, Skips::Directories).unwrap();
        let report = cut("pod-cuts-nosync", &program, DISK, Some(1));
        assert!(report.violations > 0, "pods whose directories are not synced go unnoticed: {report}");
    });
}
