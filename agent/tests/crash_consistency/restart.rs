//! The start after a cut: mounts a rebuilt disk, starts the agent on it as another boot without a hub, and
//! compares what it reports with the records that then are on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kedge::local::client;
use kedge_rig::power_cut::Rebuilt;
use kedge_rig::scratch::poll;
use serde_json::Value;

use crate::history::{Config, History, NodeReport};

/// Longest wait for a first answer, on a machine that does other things at the same time.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for what a start does after it answers.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// How names of temporary files begin, before the process id.
const TEMPORARY: &str = ".kedge-new-";
/// How often a start is repeated that a crashing configuration ended before it answered: it has a second.
const TRIES: usize = 4;
/// A power cut means another boot: the kernel's file with its id is covered within a name space of the
/// agent's own.
const ANOTHER_BOOT: &str = r#"mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@""#;

/// How the agent is started on a rebuilt disk.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) drop_ins: PathBuf,
    pub(crate) node: &'static str,
}

/// The agent's answer at one moment.
#[derive(Debug, PartialEq)]
struct Answer {
    report: NodeReport,
    startups: u64,
}

impl Answer {
    fn read(status: &Value) -> Self {
        let startups = status["config"]["startups"].as_u64().unwrap_or(0);
        Self { report: NodeReport::of_status(status), startups }
    }
}

/// The observations of one start.
#[derive(Debug)]
struct Found {
    /// Its first answer.
    first: Answer,
    /// Its report once its start is complete, and the disk's content then.
    settled: Answer,
    status: Value,
    records: Records,
    boot_id: String,
    /// Temporary files that are still there, and names of what was set aside.
    leftovers: Vec<String>,
}

/// The records as they are on the disk, read without the agent's code.
#[derive(Debug)]
struct Records {
    current: Option<Value>,
    last_known_good: Option<Value>,
    startups: Option<Value>,
    bad_configs: Option<Value>,
    /// Payload of each checkpoint there.
    checkpoints: Vec<(Config, Option<String>)>,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A boot id that no other start has.
fn boot_id(number: usize) -> String {
    format!("{:08x}-0000-4000-8000-{number:012x}", std::process::id())
}

impl Start {
    /// Starts the agent on the disk, once or several times, each as another boot; judges each time.
    pub(crate) fn judge(&self, history: &History, rebuilt: &Rebuilt<'_>, boots: usize) -> Result<(), String> {
        let mut last = Err("never started".to_owned());
        for _ in 0..TRIES {
            last = self.judge_once(history, rebuilt, boots);
            if !matches!(&last, Err(why) if why.contains(ENDED_BY_FAULT)) {
                break;
            }
        }
        last
    }

    fn judge_once(&self, history: &History, rebuilt: &Rebuilt<'_>, boots: usize) -> Result<(), String> {
        let mounted = rebuilt.mount()?;
        for boot in 1..=boots {
            let found = self.start(mounted.path(), rebuilt.directory, boot)?;
            let judged = [&found.first, &found.settled]
                .into_iter()
                .try_for_each(|said| history.judge(rebuilt.cut.at, &said.report, said.startups))
                .and_then(|()| found.agrees(history));
            judged.map_err(|why| format!("boot {boot}: {why}\nrecords: {:?}", found.records))?;
        }
        Ok(())
    }

    fn start(&self, root: &Path, directory: &Path, boot: usize) -> Result<Found, String> {
        let run_dir = directory.join("run");
        let _ = fs::remove_dir_all(&run_dir);
        fs::create_dir_all(&run_dir).map_err(|error| format!("make {}: {error}", run_dir.display()))?;
        let boot_id = boot_id(boot);
        let boot_file = directory.join("boot_id");
        fs::write(&boot_file, format!("{boot_id}\n")).map_err(|error| error.to_string())?;
        let log = directory.join("agent.log");
        let output = fs::File::create(&log).map_err(|error| error.to_string())?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--", "sh", "-c", ANOTHER_BOOT, "sh"])
            .arg(&boot_file)
            .arg(&self.program)
            .args(["agent", "--crun", "", "--hostname-override", self.node, "--kubeconfig"])
            .arg(&self.kubeconfig)
            .arg("--config-dir")
            .arg(&self.drop_ins)
            .arg("--root-dir")
            .arg(root)
            .arg("--run-dir")
            .arg(&run_dir)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output);
        let process = Process(command.spawn().map_err(|error| format!("start the agent: {error}"))?);
        let own = format!("{TEMPORARY}{}-", process.0.id());
        let socket = run_dir.join("kedge.sock");
        let process = std::cell::RefCell::new(process);
        let ask = || first_answer(&mut process.borrow_mut(), &socket, &log);
        let first = ask()?;
        // the agent removes leftovers after it has started
        poll(SETTLE_LIMIT, || temporaries(root, &own).is_empty().then_some(()));
        let settled = poll(SETTLE_LIMIT, || {
            let looked = || -> Result<Option<Found>, String> {
                let before = ask()?;
                let records = Records::read(&root.join("config"), &text(&before["version"]))?;
                let leftovers = leftovers(root, &own);
                let status = ask()?;
                let (first, settled) = (Answer::read(&first), Answer::read(&status));
                // a trial may end, and the records change, while they are read
                let moves = settled != Answer::read(&before) || !status["config"]["transition"].is_null();
                let boot_id = boot_id.clone();
                Ok((!moves).then_some(Found { first, settled, records, status, boot_id, leftovers }))
            };
            looked().transpose()
        });
        settled.unwrap_or_else(|| Err("its answers keep changing".to_owned()))
    }
}

/// In the text of an error: the configuration ended the agent, as it is made to.
const ENDED_BY_FAULT: &str = "fault injection: crashing";

fn first_answer(process: &mut Process, socket: &Path, log: &Path) -> Result<Value, String> {
    let said = || fs::read_to_string(log).unwrap_or_default();
    let child = std::cell::RefCell::new(&mut process.0);
    let answer = poll(ANSWER_LIMIT, || {
        if let Ok(Some(status)) = child.borrow_mut().try_wait() {
            return Some(Err(format!("the agent ended, {status}:\n{}", said())));
        }
        let answer = client::get(socket, "/status").ok().filter(|answer| answer.status == 200)?;
        Some(serde_json::from_slice(&answer.body).map_err(|error| format!("/status is no JSON: {error}")))
    });
    answer.unwrap_or_else(|| Err(format!("no answer from /status:\n{}", said())))
}

/// Names below the directory, three deep: all there is of ours.
fn names(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
            }
            names.push(entry.path().strip_prefix(root).unwrap_or(root).display().to_string());
        }
    }
    names
}

/// Temporary files of others than the process that runs.
fn temporaries(root: &Path, own: &str) -> Vec<String> {
    names(root).into_iter().filter(|name| name.contains(TEMPORARY) && !name.contains(own)).collect()
}

fn leftovers(root: &Path, own: &str) -> Vec<String> {
    let aside = names(root).into_iter().filter(|name| name.contains(".corrupt-"));
    aside.chain(temporaries(root, own)).collect()
}

fn json(path: &Path) -> Result<Option<Value>, String> {
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Err(format!("{} is empty", path.display())),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| format!("{} is no JSON after a start: {error}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Records {
    fn read(config: &Path, version: &str) -> Result<Self, String> {
        let mut checkpoints = Vec::new();
        for name in names(&config.join("checkpoints")) {
            if name.contains('/') {
                let object = json(&config.join("checkpoints").join(&name))?.unwrap_or_default();
                let metadata = &object["metadata"];
                let payload = object["data"]["kubelet"].as_str().map(str::to_owned);
                checkpoints.push(((text(&metadata["uid"]), text(&metadata["resourceVersion"])), payload));
            }
        }
        let own = config.join(version);
        Ok(Self {
            current: json(&config.join("current"))?,
            last_known_good: json(&config.join("last-known-good"))?,
            startups: json(&own.join("startups.json"))?,
            bad_configs: json(&own.join("bad-configs.json"))?,
            checkpoints,
        })
    }

    fn config(record: Option<&Value>) -> Option<Config> {
        let record = record.filter(|record| record["local"] != true)?;
        Some((text(&record["uid"]), text(&record["resourceVersion"])))
    }

    fn assigned(&self) -> Option<Config> {
        Self::config(self.current.as_ref())
    }

    fn last_known_good(&self) -> Option<Config> {
        Self::config(self.last_known_good.as_ref())
    }

    /// The verdicts on a UID: (payload, reason).
    fn verdicts(&self, uid: &str) -> Vec<(String, String)> {
        let contents = self.bad_configs.as_ref().and_then(|bad| bad.get(uid)?.get("contents")?.as_object());
        contents
            .into_iter()
            .flatten()
            .map(|(_, verdict)| (text(&verdict["payload"]), text(&verdict["reason"])))
            .collect()
    }

    fn bad(&self) -> Vec<String> {
        let bad = self.bad_configs.as_ref().and_then(Value::as_object);
        bad.into_iter().flatten().map(|(uid, _)| uid.clone()).collect()
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, said: &T, on_disk: &T) -> Result<(), String> {
    if said == on_disk {
        return Ok(());
    }
    Err(format!("{what}: it reports {said:?}, on disk is {on_disk:?}"))
}

impl Found {
    /// Whether what was reported is what is on disk.
    fn agrees(&self, history: &History) -> Result<(), String> {
        let NodeReport { assigned, active, last_known_good, condition, bad } = &self.settled.report;
        equal("assigned", assigned, &self.records.assigned())?;
        equal("last-known-good", last_known_good, &self.records.last_known_good())?;
        equal("bad", &bad.iter().cloned().collect(), &self.records.bad())?;
        equal("leftovers and what was set aside", &Vec::new(), &self.leftovers)?;
        for config in [assigned, active, last_known_good].into_iter().flatten() {
            self.has_checkpoint(config, history)?;
        }
        let record = self.records.startups.as_ref();
        let ran_as = record.map(|record| text(&record["last"]));
        let startups = record.zip(ran_as.as_ref()).map(|(record, last)| &record["records"][last]);
        match active {
            Some(_) => {
                let startups = startups.ok_or("a pushed config runs, and its start is not recorded")?;
                equal("boot", &self.boot_id, &text(&startups["open"]))?;
                let listed = startups["startups"].as_array().map_or(0, Vec::len) as u64;
                equal("counted startups", &self.settled.startups, &listed)?;
            }
            None => {
                let recorded = ran_as.as_deref().is_none_or(|id| id == "local");
                equal("the local config is recorded as what runs", &true, &recorded)?;
            }
        }
        let verdicts = assigned.as_ref().map(|config| self.records.verdicts(&config.0)).unwrap_or_default();
        match condition[0].as_str() {
            "False" => {
                let recorded = verdicts.iter().any(|(_, reason)| *reason == condition[2]);
                equal("the reason is that of a recorded verdict", &true, &recorded)
            }
            "True" => {
                let condemned = verdicts.iter().any(|(payload, _)| Some(payload) == ran_as.as_ref());
                equal("what runs is condemned", &false, &condemned)
            }
            _ => Ok(()),
        }
    }

    /// Checks that the named config has a checkpoint with the payload that was pushed.
    fn has_checkpoint(&self, config: &Config, history: &History) -> Result<(), String> {
        let there = self.records.checkpoints.iter().find(|(name, _)| name == config);
        let payload = there.and_then(|(_, payload)| payload.as_deref());
        let pushed = history.payloads.get(config).map(String::as_str);
        if pushed.is_some() && payload == pushed {
            return Ok(());
        }
        Err(format!("the checkpoint of {config:?} has {payload:?}, pushed was {pushed:?}; {}", self.status))
    }
}
