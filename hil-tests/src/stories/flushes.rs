//! Every disk that a power cut could have left during a life of the booted image: adoption, promotion, two roll backs, unassignment.
//!
//! QEMU logs each write and flush of the guest's disk. The state partition is rebuilt as a cut at each flush would have left it, with
//! nothing of what was on its way and once with a random part of it, is repaired and mounted on this machine, and the agent is started
//! on it as another boot without a hub. A few are booted. Always holds: what the API had shown before the cut is not lost, and the
//! agent runs what the node ran before or after the step that was cut. What breaks this is kept, disk and agent's log, and the rest is
//! looked at all the same. Needs root, loop devices, e2fsck and this machine's own agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kedge_rig::logged_disk::{Choice, Cut, Image, Recording, fast_directory};
use kedge_rig::programs;
use kedge_rig::scratch::poll;
use serde_json::Value;

use super::chance::number;
use crate::error::HilError;
use crate::machine::{Start, tool};
use crate::stage::{LOCAL, NODE, Stage, condition, patience, payload};

/// What QEMU's log is made of, and a disk's smallest unit.
const SECTOR: u64 = 512;
/// The flags of an entry in the log, as dm-log-writes numbers them.
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
/// Random parts of what was on its way, for each flush.
const SUBSETS: usize = 1;
/// How many of the disks are booted: each takes half a minute.
const BOOTED: usize = 3;
/// Of the disks on which something is wrong so many are kept: they have the size of the partition.
const KEPT: usize = 4;
/// e2fsck's exit codes below this one: there were no errors, or they are corrected.
const UNCORRECTED: i32 = 4;
/// Longest wait for the agent's answer, on this machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Runs the agent with another boot id than this machine's: a cut means another boot.
const ANOTHER_BOOT: &str = r#"mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@""#;

/// What an agent says about its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    message: String,
    last_known_good: Option<String>,
}

impl Said {
    fn new(message: &str, last_known_good: Option<&str>) -> Said {
        Said { message: message.to_owned(), last_known_good: last_known_good.map(str::to_owned) }
    }

    fn of(condition_message: &str, config: &Value) -> Said {
        let uid = config.pointer("/lastKnownGood/configMap/uid").and_then(Value::as_str);
        Said::new(condition_message, uid)
    }
}

/// A life: what is said one after the other, since when each may be so, and from when on it must have been.
struct Life {
    log: PathBuf,
    moments: Vec<Moment>,
}

struct Moment {
    said: Said,
    /// The log's length when the step that leads here began.
    begun: u64,
    /// The log's length when the API had shown it.
    shown: Option<u64>,
}

impl Life {
    fn now(&self) -> Result<u64, HilError> {
        Ok(fs::metadata(&self.log).map_err(HilError::io("look at", &self.log))?.len())
    }

    /// A step begins, to this.
    fn begins(&mut self, said: Said) -> Result<(), HilError> {
        let begun = self.now()?;
        self.moments.push(Moment { said, begun, shown: None });
        Ok(())
    }

    /// Waits until the API shows the last one.
    fn arrives(&mut self, stage: &mut Stage<'_>) -> Result<(), HilError> {
        let moment = self.moments.len() - 1;
        let said = self.moments[moment].said.clone();
        stage.wait(&format!("{said:?}"), patience(), |stage| {
            let node = stage.node()?;
            let found = Said::of(&condition(&node, "ConfigOK").1, &node["status"]["config"]);
            Ok(if found == said { Ok(()) } else { Err(format!("{found:?}")) })
        })?;
        self.moments[moment].shown = Some(self.now()?);
        Ok(())
    }

    /// What may be said after a cut when the log was this long.
    fn allowed(&self, at: u64) -> Vec<&Said> {
        let first = self.moments.iter().rposition(|moment| moment.shown.is_some_and(|shown| shown <= at));
        let last = self.moments.iter().rposition(|moment| moment.begun <= at);
        let first = first.unwrap_or(0);
        self.moments[first..=last.unwrap_or(0).max(first)].iter().map(|moment| &moment.said).collect()
    }
}

/// Where the state partition lies on the disk, in sectors.
#[derive(Debug, Clone, Copy)]
struct Partition {
    start: u64,
    sectors: u64,
}

impl Partition {
    /// The partition named `state`, as sfdisk has it.
    fn find(disk: &Path) -> Result<Partition, HilError> {
        let output = Command::new("sfdisk")
            .arg("--json")
            .arg(disk)
            .output()
            .map_err(|source| HilError::Io { tried: "run sfdisk".into(), source })?;
        let table: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let partitions = table["partitiontable"]["partitions"].as_array();
        let state = partitions.and_then(|all| all.iter().find(|partition| partition["name"] == "state"));
        let numbers = state.and_then(|state| Some((state["start"].as_u64()?, state["size"].as_u64()?)));
        let (start, sectors) = numbers
            .ok_or_else(|| HilError::Garbled(format!("{}: no partition \"state\"", disk.display())))?;
        Ok(Partition { start, sectors })
    }

    fn copy(self, disk: &Path, to: &Path, is_back: bool) -> Result<(), HilError> {
        let unit = 1 << 20;
        let mib = |sectors: u64| (sectors * SECTOR / unit).to_string();
        let offset = format!("{}={}", if is_back { "seek" } else { "skip" }, mib(self.start));
        let (from, to) = if is_back { (to, disk) } else { (disk, to) };
        let (from, to) = (format!("if={}", from.display()), format!("of={}", to.display()));
        let count = format!("count={}", self.sectors * SECTOR / unit);
        let words = [&*from, &*to, "bs=1M", &*offset, &*count, "conv=notrunc,sparse", "status=none"];
        tool("dd", &words.map(AsRef::as_ref))
    }

    /// The log of the whole disk as one of this partition, and where what began there in the one begins in the other.
    fn own_log(self, log: &[u8]) -> Result<(Vec<u8>, BTreeMap<u64, u64>), HilError> {
        let number = |at: u64| {
            let bytes = log.get(at as usize..at as usize + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or_else(|| HilError::Garbled("the log of writes ends".into()))
        };
        let head = log.get(..SECTOR as usize).ok_or_else(|| HilError::Garbled("no log of writes".into()))?;
        let mut own = head.to_vec();
        let mut places = BTreeMap::new();
        let mut at = SECTOR;
        while at + SECTOR <= log.len() as u64 {
            let (sector, sectors, flags) = (number(at)?, number(at + 8)?, number(at + 16)?);
            if [sector, sectors, flags] == [0; 3] {
                break;
            }
            let data = if flags & DISCARD != 0 { 0 } else { sectors * SECTOR };
            let end = at + SECTOR + data;
            if end > log.len() as u64 {
                break;
            }
            places.insert(at, own.len() as u64);
            let is_ours = sector >= self.start && sector + sectors <= self.start + self.sectors;
            if sectors == 0 || is_ours {
                let entry = own.len();
                own.extend_from_slice(&log[at as usize..end as usize]);
                let moved = if sectors == 0 { 0 } else { sector - self.start };
                own[entry..entry + 8].copy_from_slice(&moved.to_le_bytes());
            } else if flags & FLUSH != 0 {
                // what it flushes is ours, too
                own.extend([0, 0, FLUSH, 0].iter().flat_map(|number: &u64| number.to_le_bytes()));
                own.resize(own.len() + SECTOR as usize - 32, 0);
            }
            at = end;
        }
        places.insert(at, own.len() as u64);
        Ok((own, places))
    }
}

/// A position in the whole log as one in the partition's.
fn place(places: &BTreeMap<u64, u64>, at: u64) -> u64 {
    // an entry that began before it lies before it
    places.range(at..).next().or_else(|| places.last_key_value()).map_or(0, |(_, own)| *own)
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk in a file, mounted here until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Writes the disk to a file of its own, and repairs it as the image does before it mounts.
    fn new(image: &Image, file: &Path, place: &Path) -> Result<Mounted, HilError> {
        // Never the file of an earlier one. Whatever process got a mount name space of its own in the meantime, any program's, still
        // has the earlier one mounted; mount takes the loop device that a file has already, and shows that one again.
        let _ = fs::remove_file(file);
        image.write_to(file)?;
        repair(file)?;
        tool("mount", &["-o".as_ref(), "loop".as_ref(), file.as_os_str(), place.as_os_str()])?;
        Ok(Mounted(place.to_owned()))
    }
}

/// What the image's `open-state` does before it mounts: takes a copy of a superblock that cannot be read, corrects small errors, or
/// repairs all there is.
fn repair(file: &Path) -> Result<(), HilError> {
    let ends = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).arg(file).output();
        let output = output.map_err(|source| HilError::Io { tried: format!("run {program}"), source })?;
        let code = output.status.code().unwrap_or(i32::MAX);
        Ok::<_, HilError>((code, String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    if ends("dumpe2fs", &["-h"])?.0 != 0
        && ends("e2fsck", &["-f", "-y", "-b", "8193", "-B", "1024"])?.0 >= UNCORRECTED
    {
        ends("e2fsck", &["-f", "-y", "-b", "32768", "-B", "4096"])?;
    }
    if ends("e2fsck", &["-f", "-p"])?.0 < UNCORRECTED {
        return Ok(());
    }
    match ends("e2fsck", &["-f", "-y"])? {
        (code, _) if code < UNCORRECTED => Ok(()),
        (code, said) => Err(HilError::Wrong(format!("e2fsck -f -y: exit code {code}: {said}"))),
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = poll(Duration::from_secs(10), || tool("umount", &[self.0.as_os_str()]).ok());
        if unmounted.is_none() {
            eprintln!("cannot unmount {}", self.0.display());
        }
    }
}

/// Starts this machine's agent on rebuilt partitions. What it makes goes with it.
struct Starter {
    dir: PathBuf,
    agent: PathBuf,
    kubeconfig: PathBuf,
    count: u64,
}

impl Starter {
    fn new(stage: &Stage<'_>, dir: PathBuf) -> Result<Starter, HilError> {
        for name in ["mount", "nothing"] {
            let path = dir.join(name);
            fs::create_dir_all(&path).map_err(HilError::io("create directory", &path))?;
        }
        let kubeconfig = dir.join("kubeconfig");
        // nobody listens there
        let text = stage.hub.node_kubeconfig(NODE)?.replace(stage.hub.address(), "127.0.0.1:1");
        fs::write(&kubeconfig, text).map_err(HilError::io("write", &kubeconfig))?;
        Ok(Starter { agent: programs::built("kedge")?, dir, kubeconfig, count: 0 })
    }

    /// What the agent says on this disk.
    fn ask(&mut self, image: &Image) -> Result<Said, HilError> {
        let (file, mount, run) = (self.dir.join("image"), self.dir.join("mount"), self.dir.join("run"));
        let _mounted = Mounted::new(image, &file, &mount)?;
        let _ = fs::remove_dir_all(&run);
        self.count += 1;
        let boot = self.dir.join("boot_id");
        let id = format!("{:08x}-0000-4000-8000-{:012x}\n", std::process::id(), self.count);
        fs::write(&boot, id).map_err(HilError::io("write", &boot))?;
        let root = mount.join("lib/kedge");
        let said = self.answer(&root, &run, &boot)?;
        let aside = names(&root.join("config")).into_iter().find(|name| name.contains(".corrupt-"));
        match aside {
            None => Ok(said),
            Some(name) => Err(HilError::Wrong(format!("{name} was set aside"))),
        }
    }

    fn answer(&self, root: &Path, run: &Path, boot: &Path) -> Result<Said, HilError> {
        let log = self.dir.join("agent.log");
        let output = fs::File::create(&log).map_err(HilError::io("create", &log))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--"]);
        command.args(["sh", "-c", ANOTHER_BOOT, "sh"]);
        command.arg(boot).arg(&self.agent).args(["agent", "--hostname-override", NODE, "--kubeconfig"]);
        command.arg(&self.kubeconfig).arg("--config-dir").arg(self.dir.join("nothing"));
        command.arg("--root-dir").arg(root).arg("--run-dir").arg(run).env_remove("NOTIFY_SOCKET");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn();
        let child = child.map_err(|source| HilError::Io { tried: "start the agent".into(), source })?;
        let process = std::cell::RefCell::new(Process(child));
        let answer = poll(ANSWER_LIMIT, || {
            let asked = Command::new(&self.agent)
                .args(["config", "status", "--output", "json", "--root-dir"])
                .arg(root)
                .arg("--run-dir")
                .arg(run)
                .output();
            let status = asked.ok().filter(|output| output.status.success())?;
            let status: Value = serde_json::from_slice(&status.stdout).ok()?;
            // it answers before it has judged
            let message = status["condition"]["message"].as_str().filter(|message| !message.is_empty())?;
            Some(Said::of(message, &status["status"]))
        });
        drop(process);
        answer.ok_or_else(|| HilError::Never { awaited: "the agent's status".into(), found: self.last_log() })
    }

    fn last_log(&self) -> String {
        fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("remove {}: {error}", self.dir.display());
        }
    }
}

/// Names of what lies in a directory and below it.
fn names(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(self::names(&entry.path()));
        }
    }
    names
}

/// The life, on a machine whose writes are logged from its boot on.
fn live(stage: &mut Stage<'_>) -> Result<Life, HilError> {
    stage.power_on(&Start { log_writes: true, ..Start::default() })?;
    stage.renews()?;
    stage.ready()?;
    let mut life = Life { log: stage.machine.writes(), moments: Vec::new() };
    life.begins(Said::new(LOCAL, None))?;
    life.arrives(stage)?;

    let good = stage.make("edge-good", &payload("2s", 2, ""))?;
    life.begins(Said::new(&format!("using current (UID: {good})"), None))?;
    life.begins(Said::new(&format!("using current (UID: {good})"), Some(&good)))?;
    stage.assign_map("edge-good", &good)?;
    life.arrives(stage)?;

    let falls_back = Said::new(&format!("using last known good: (UID: {good})"), Some(&good));
    let garbled = stage.make("edge-garbled", &payload("1h", 2, "nodeStatusUpdateFrequency: ["))?;
    life.begins(falls_back.clone())?;
    stage.assign_map("edge-garbled", &garbled)?;
    life.arrives(stage)?;

    let killed = stage.make("edge-killed", &payload("1h", 1, ""))?;
    life.begins(Said::new(&format!("using current (UID: {killed})"), Some(&good)))?;
    stage.assign_map("edge-killed", &killed)?;
    life.arrives(stage)?;
    life.begins(falls_back)?;
    for _ in 0..2 {
        let process = stage.running()?;
        stage.guest(&format!("kill -KILL {process}"))?;
        stage.restarted(process)?;
    }
    life.arrives(stage)?;

    life.begins(Said::new(LOCAL, None))?;
    stage.assign(&Value::Null)?;
    life.arrives(stage)?;
    Ok(life)
}

pub(super) fn every(stage: &mut Stage<'_>) -> Result<(), HilError> {
    stage.machine.cut();
    let dir = stage.machine.dir().to_owned();
    let before = stage.machine.raw_disk("before.raw")?;
    let partition = Partition::find(&before)?;
    let state = dir.join("state.raw");
    partition.copy(&before, &state, false)?;
    let life = live(stage)?;
    stage.machine.cut();
    stage.say(&format!("a life of {} moments was logged", life.moments.len()));

    let log = fs::read(stage.machine.writes()).map_err(HilError::io("read", &stage.machine.writes()))?;
    let (own, places) = partition.own_log(&log)?;
    drop(log);
    let life = Life {
        moments: life
            .moments
            .into_iter()
            .map(|moment| Moment {
                begun: place(&places, moment.begun),
                shown: moment.shown.map(|shown| place(&places, shown)),
                said: moment.said,
            })
            .collect(),
        ..life
    };
    let recording = Recording::new(Image::read(&state)?, own)?;
    let choice = Choice {
        subsets: SUBSETS,
        seed: number("KEDGE_HIL_SEED").unwrap_or(1),
        instants: life.moments.iter().filter_map(|moment| moment.shown).collect(),
        ..Choice::default()
    };
    let cuts: Vec<Cut> = recording.cuts(&choice).collect();
    let starts = fast_directory().join(format!("kedge-hil-starts-{}", std::process::id()));
    let states = judge(stage, &life, &cuts, starts)?;
    stage.say(&format!(
        "{} writes and {} flushes of the state partition: {states} states rebuilt and started",
        recording.writes(),
        recording.flushes()
    ));
    for number in 1..=BOOTED {
        let cut = &cuts[number * (cuts.len() - 1) / BOOTED];
        cut.image.write_to(&state)?;
        partition.copy(&before, &state, true)?;
        boot(stage, &life, cut, &before)?;
    }
    Ok(())
}

/// Starts the agent on each; how many. All are looked at before anything that was wrong ends the story.
fn judge(stage: &mut Stage<'_>, life: &Life, cuts: &[Cut], dir: PathBuf) -> Result<usize, HilError> {
    let mut starter = Starter::new(stage, dir)?;
    let mut seen = BTreeMap::<String, usize>::new();
    let mut wrong = Vec::new();
    for cut in cuts {
        let at = format!("cut at flush {}, random part {}", cut.flush, cut.subset);
        match verdict(&mut starter, life, cut) {
            Ok(message) => *seen.entry(message).or_default() += 1,
            Err(why) => {
                stage.say(&format!("{at}: {why}"));
                if wrong.len() < KEPT {
                    keep(&starter, cut, &stage.machine.kept()?)?;
                }
                wrong.push(at);
            }
        }
    }
    for (message, states) in seen {
        stage.say(&format!("{states} states: {message}"));
    }
    match wrong.is_empty() {
        true => Ok(cuts.len()),
        false => Err(HilError::Wrong(format!("{} of {} states: {wrong:?}", wrong.len(), cuts.len()))),
    }
}

/// What the agent says on this disk, or what is wrong with it.
fn verdict(starter: &mut Starter, life: &Life, cut: &Cut) -> Result<String, String> {
    let said = starter.ask(&cut.image).map_err(|error| error.to_string())?;
    let allowed = life.allowed(cut.at);
    match allowed.contains(&&said) {
        true => Ok(said.message),
        false => Err(format!("it says {said:?}, and may say {allowed:?}")),
    }
}

/// The disk as the cut left it, and what the agent's log says of it.
fn keep(starter: &Starter, cut: &Cut, kept: &Path) -> Result<(), HilError> {
    let name = format!("flush-{}-part-{}", cut.flush, cut.subset);
    cut.image.write_to(&kept.join(format!("{name}.raw")))?;
    let log = kept.join(format!("{name}.log"));
    fs::write(&log, starter.last_log()).map_err(HilError::io("write", &log))
}

fn boot(stage: &mut Stage<'_>, life: &Life, cut: &Cut, disk: &Path) -> Result<(), HilError> {
    stage.machine.take_raw_disk(disk)?;
    // without the hub, which would tell it what is assigned now
    stage.power_on(&Start { unplugged: true, ..Start::default() })?;
    let text = stage.guest("kedge config status --output json")?;
    let status: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = status["condition"]["message"].as_str().unwrap_or_default();
    let said = Said::of(message, &status["status"]);
    stage.machine.cut();
    let allowed = life.allowed(cut.at);
    stage.expect(&format!("{said:?} is one of {allowed:?}"), allowed.contains(&&said), true)?;
    stage.say(&format!("booted after a cut at flush {}: {}", cut.flush, said.message));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use kedge_rig::logged_disk;
    use kedge_rig::scratch::Scratch;

    use super::*;

    fn entry(sector: u64, sectors: u64, flags: u64, byte: u8) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [sector, sectors, flags, 0].iter().flat_map(|number| number.to_le_bytes()).collect();
        bytes.resize(SECTOR as usize, 0);
        let data = if flags & DISCARD != 0 { 0 } else { sectors * SECTOR };
        bytes.extend(vec![byte; data as usize]);
        bytes
    }

    #[test]
    fn the_log_of_a_partition_has_its_writes_and_all_flushes() {
        let partition = Partition { start: 100, sectors: 50 };
        let head = vec![7; SECTOR as usize];
        let whole = [
            head.clone(),
            entry(99, 1, 0, 1),
            entry(100, 2, 0, 2),
            entry(0, 0, FLUSH, 0),
            entry(10, 1, FLUSH, 3),
            entry(149, 1, 0, 4),
            entry(150, 1, 0, 5),
            entry(120, 3, DISCARD, 0),
        ];
        let expect = [
            head,
            entry(0, 2, 0, 2),
            entry(0, 0, FLUSH, 0),
            entry(0, 0, FLUSH, 0),
            entry(49, 1, 0, 4),
            entry(20, 3, DISCARD, 0),
        ];
        let (own, places) = partition.own_log(&whole.concat()).unwrap();
        assert_eq!(own, expect.concat());
        let first_flush = whole[..4].concat().len() as u64;
        assert_eq!(place(&places, first_flush), expect[..3].concat().len() as u64);
    }

    #[test]
    fn what_was_shown_is_not_lost_and_what_has_not_begun_is_not_there() {
        let moment = |name: &str, begun, shown| Moment { said: Said::new(name, None), begun, shown };
        let life = Life {
            log: PathBuf::new(),
            moments: vec![moment("a", 10, Some(20)), moment("b", 30, None), moment("c", 40, Some(60))],
        };
        let check = |at, expect: &[&str]| {
            let allowed: Vec<_> = life.allowed(at).iter().map(|said| said.message.clone()).collect();
            assert_eq!(allowed, expect, "at {at}");
        };
        check(5, &["a"]);
        check(25, &["a"]);
        check(35, &["a", "b"]);
        check(50, &["a", "b", "c"]);
        check(60, &["c"]);
    }

    /// A program in a mount name space of its own, which has a copy of every mount there was.
    fn bystander() -> Process {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        Process(child)
    }

    #[test]
    fn each_disk_is_its_own_while_the_one_before_is_still_mounted_elsewhere() {
        if let Some(lacks) = logged_disk::missing(&logged_disk::EXT4) {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be shown here, lacks {lacks}");
            eprintln!("left out, lacks {lacks}");
            return;
        }
        let scratch = Scratch::new("hil-mounted").unwrap();
        let [file, place] = ["file", "place"].map(|name| scratch.path().join(name));
        fs::create_dir(&place).unwrap();
        fs::File::create(&file).and_then(|file| file.set_len(logged_disk::EXT4.mib << 20)).unwrap();
        tool("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), file.as_os_str()]).unwrap();
        let empty = Image::read(&file).unwrap();
        let with = |content: &str| {
            let _mounted = Mounted::new(&empty, &file, &place).unwrap();
            fs::write(place.join("name"), content).unwrap();
            for path in [place.join("name"), place.clone()] {
                fs::File::open(path).and_then(|opened| opened.sync_all()).unwrap();
            }
            Image::read(&file).unwrap()
        };
        let (first, second) = (with("first"), with("second"));
        let mounted = Mounted::new(&first, &file, &place).unwrap();
        let _bystander = bystander();
        drop(mounted);
        let _mounted = Mounted::new(&second, &file, &place).unwrap();
        assert_eq!(fs::read_to_string(place.join("name")).unwrap(), "second");
    }
}
