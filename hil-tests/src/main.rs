//! `kedge-hil`: boots the disk images of `images/` in QEMU and runs stories on them, with the hub and kubectl
//! on this machine.
//!
//! The first boot is a story itself: factory-new disk, firmware, identity, first Lease, Ready. It is saved,
//! with the agent stopped, and the others start from it, each with its own copy of the disk and of the hub's
//! data. A story that fails leaves its serial log, the guest's journal and the hub's log in a folder whose
//! path is printed, and the next one runs.

mod board;
mod error;
mod first;
mod machine;
mod qmp;
mod relay;
mod sabotage;
mod shell;
mod stage;
mod stories;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use kedge_rig::console::{Console, Tone};
use kedge_rig::hub::Hub;
use kedge_rig::scratch::Scratch;
use kedge_rig::signals::{self, StopSignal};
use lexopt::prelude::*;

use crate::board::Board;
use crate::error::HilError;
use crate::first::First;
use crate::machine::{HUB_IN_GUEST, MOVED_HUB_IN_GUEST, Machine, Start};
use crate::sabotage::Sabotage;
use crate::stage::{NODE, Stage};
use crate::stories::{Needs, STORIES, Story};

const HELP: &str = "\
kedge-hil --images DIR [--board NAME] [--full] [--faults FILE] [--broken-update FILE] [--programs DIR]
          [--logs DIR] [--sabotage FILE] [--taken DIR] [--outcomes FILE] [--story-limit BOOTS]
          [--limit BOOTS] [STORY...]
kedge-hil --list

Boots the image of a board in QEMU and runs the stories named, or the core ones, or all (--full).

  --images DIR          where images/build left its folders
  --board NAME          a file of hil-tests/boards [x86_64-uefi]
  --faults FILE         an agent with fault injection that runs on the board
  --broken-update FILE  an update for the board whose agent does not start
  --programs DIR        hil-tests/platform.c, built for x86_64, aarch64 and armv7
  --sabotage FILE       commands that break the node, see hil-tests/sabotage: a story passes if it then fails for the reason
                        in the file
  --logs DIR            where a failing story leaves its logs [target/hil]
  --taken DIR           shared by several runs: one of them makes the first boot, and a story that one has taken is left to it
  --outcomes FILE       gets a line for each story: board, story, outcome, seconds
  --story-limit BOOTS   a story fails that takes longer than so many times the first boot, which tells how busy this machine is
  --limit BOOTS         the same for all stories together: the one that runs then fails, and those that have not begun
";

/// A checked command line.
struct Options {
    board: String,
    images: PathBuf,
    is_full: bool,
    faults: Option<PathBuf>,
    broken_update: Option<PathBuf>,
    programs: Option<PathBuf>,
    logs: PathBuf,
    sabotage: Option<PathBuf>,
    taken: Option<PathBuf>,
    outcomes: Option<PathBuf>,
    /// Measured in first boots, like the next one.
    story_limit: Option<u32>,
    limit: Option<u32>,
    stories: Vec<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kedge-hil: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, HilError> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        // QEMU runs this for each connection of the guest
        Some("relay") if words.len() == 2 => return relay::run(&words[1]).map(|()| true),
        Some("--help" | "-h") => {
            print!("{HELP}");
            return Ok(true);
        }
        Some("--list") => {
            for story in STORIES {
                println!(
                    "{:<16} {:<5} {}",
                    story.name,
                    if story.is_core { "core" } else { "full" },
                    story.about
                );
            }
            return Ok(true);
        }
        _ => {}
    }
    let options = parse().map_err(|error| HilError::Garbled(format!("{error}; see kedge-hil --help")))?;
    Run::open(&options)?.stories()
}

fn parse() -> Result<Options, lexopt::Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut options = Options {
        board: "x86_64-uefi".into(),
        images: root.join("target/images"),
        is_full: false,
        faults: None,
        broken_update: None,
        programs: None,
        logs: root.join("target/hil"),
        sabotage: None,
        taken: None,
        outcomes: None,
        story_limit: None,
        limit: None,
        stories: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("board") => options.board = parser.value()?.string()?,
            Long("images") => options.images = parser.value()?.into(),
            Long("full") => options.is_full = true,
            Long("faults") => options.faults = Some(parser.value()?.into()),
            Long("broken-update") => options.broken_update = Some(parser.value()?.into()),
            Long("programs") => options.programs = Some(parser.value()?.into()),
            Long("sabotage") => options.sabotage = Some(parser.value()?.into()),
            Long("taken") => options.taken = Some(parser.value()?.into()),
            Long("outcomes") => options.outcomes = Some(parser.value()?.into()),
            Long("story-limit") => options.story_limit = Some(parser.value()?.parse()?),
            Long("limit") => options.limit = Some(parser.value()?.parse()?),
            Long("logs") => options.logs = parser.value()?.into(),
            Value(name) => options.stories.push(name.string()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

/// Time limits of stories; unset if nothing waits for the run.
struct Limits {
    /// Limit of each story.
    story: Option<Duration>,
    /// When all must have ended.
    end: Option<Instant>,
}

/// The state of one run.
struct Run<'a> {
    options: &'a Options,
    board: Board,
    image: PathBuf,
    hub: Hub,
    /// A port of loopback for the registry of a story.
    registry_port: u16,
    /// The starting point of the stories; `None` until it is made.
    first: Option<First>,
    scratch: Scratch,
    teller: Console,
    /// Sabotage by the name of the story that it must make fail; `None`: run the stories unchanged.
    sabotage: Option<BTreeMap<String, Sabotage>>,
    passed: usize,
    left_out: usize,
    /// Names of failed stories, and the reasons.
    failed: Vec<(&'static str, String)>,
}

impl<'a> Run<'a> {
    fn open(options: &'a Options) -> Result<Run<'a>, HilError> {
        let boards = Path::new(env!("CARGO_MANIFEST_DIR")).join("boards");
        let board = Board::read(&boards, &options.board)?;
        let absolute = |path: &Path| std::fs::canonicalize(path).map_err(HilError::io("find", path));
        let image = absolute(&options.images.join(&board.image))?;
        for name in &options.stories {
            if !STORIES.iter().any(|story| story.name == name) {
                return Err(HilError::Garbled(format!("no story {name}; see kedge-hil --list")));
            }
        }
        let sabotage = options.sabotage.as_deref().map(sabotage::read).transpose()?;
        let listen = |source| HilError::Io { tried: "listen for signals".into(), source };
        let stop = signals::listen().map_err(listen)?;
        let scratch = Scratch::new("hil")
            .map_err(|source| HilError::Io { tried: "make a temporary directory".into(), source })?;
        remove_at(stop, scratch.path().to_owned()).map_err(listen)?;
        let first = options.taken.as_deref().map(first::of_another_run).transpose()?.flatten();
        if let Some(first) = &first {
            copy_tree(&first.hub, &scratch.path().join("hub/data"))?;
        }
        let host = |address: &'static str| address.split(':').next().unwrap_or(address);
        let names = ["127.0.0.1", host(HUB_IN_GUEST), host(MOVED_HUB_IN_GUEST)];
        let flags = names.map(|name| ["--advertise", name]);
        let hub = Hub::start(&scratch.path().join("hub"), flags.as_flattened())?;
        // free until another program takes it: then the story with a registry reports it
        let registry_port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(|source| HilError::Io { tried: "find a free port".into(), source })?
            .port();
        let teller = Console::new();
        Ok(Run {
            options,
            board,
            image,
            hub,
            registry_port,
            first,
            scratch,
            teller,
            sabotage,
            passed: 0,
            left_out: 0,
            failed: Vec::new(),
        })
    }

    /// Runs every requested story; returns false if one failed.
    fn stories(mut self) -> Result<bool, HilError> {
        let start = Instant::now();
        let first = match self.first.take() {
            Some(first) => first,
            None => {
                let made = self.make_first(start);
                // the runs that wait for this first boot must not wait to their limit
                if let (Ok(None) | Err(_), Some(shared)) = (&made, &self.options.taken) {
                    first::failed(shared)?;
                }
                match made? {
                    Some(first) => first,
                    None => return Ok(false),
                }
            }
        };
        let limits = Limits {
            story: self.options.story_limit.map(|boots| first.boot * boots),
            end: self.options.limit.map(|boots| start + first.boot * boots),
        };
        for story in STORIES {
            if self.is_wanted(story) && self.take(story)? {
                match self.why_not(story) {
                    Some(why) => {
                        self.left_out += 1;
                        self.teller.say(Tone::Open, &format!("{}: left out: {why}", story.name));
                    }
                    None if limits.end.is_some_and(|end| end <= Instant::now()) => {
                        self.fails(story.name, "not begun, the time for all is over", Instant::now())?;
                    }
                    None => self.story(story, &first, &limits)?,
                }
            }
        }
        let secs = start.elapsed().as_secs();
        for (name, why) in &self.failed {
            println!("story failed: {name}: {}", why.replace('\n', " "));
        }
        let (passed, failed) = (self.passed, self.failed.len());
        println!(
            "\n{} in {secs} s:\n{passed} passed, {failed} failed, {} left out",
            self.board.name, self.left_out
        );
        Ok(self.failed.is_empty())
    }

    /// Boots a factory-new node, and saves it; `None` if it did not come up.
    fn make_first(&mut self, start: Instant) -> Result<Option<First>, HilError> {
        self.teller.chapter(&format!("{}: a factory-new node boots, joins and is Ready", self.board.name));
        let mut machine = self.machine("boot")?;
        if let Err(error) = self.first_boot(&mut machine) {
            self.teller.say(Tone::Bad, &format!("{error}"));
            self.keep_logs("boot", &mut machine);
            self.outcome("first boot", "failed", start)?;
            println!("story failed: first boot: {}", error.to_string().replace('\n', " "));
            println!("0 passed, 1 failed");
            return Ok(None);
        }
        self.passed += 1;
        self.outcome("first boot", "passed", start)?;
        let boot = start.elapsed();
        machine.save()?;
        self.hub.stop()?;
        let (mine, hub) = (machine.dir().to_owned(), self.hub_data());
        let copy = |first: &First| {
            machine::copy_saved(&mine, &first.machine).and_then(|()| copy_tree(&hub, &first.hub))
        };
        let shared = self.options.taken.as_deref().unwrap_or(self.scratch.path());
        let first = first::share(shared, boot, copy)?;
        std::fs::remove_dir_all(&mine).map_err(HilError::io("remove", &mine))?;
        Ok(Some(first))
    }

    fn is_wanted(&self, story: &Story) -> bool {
        match self.options.stories.is_empty() {
            true => story.is_core || self.options.is_full,
            false => self.options.stories.iter().any(|name| name == story.name),
        }
    }

    /// True if this run is the first to take the story, among those that share `--taken`.
    fn take(&self, story: &Story) -> Result<bool, HilError> {
        let Some(taken) = &self.options.taken else { return Ok(true) };
        let file = taken.join(story.name);
        match std::fs::File::create_new(&file) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(HilError::io("create", &file)(error)),
        }
    }

    /// Writes one line of `--outcomes`, a row of a table: the file is appended to, because other runs write
    /// to it, too.
    fn outcome(&self, story: &str, outcome: &str, start: Instant) -> Result<(), HilError> {
        let Some(path) = &self.options.outcomes else { return Ok(()) };
        let line = format!("{} | {story} | {outcome} | {}\n", self.board.name, start.elapsed().as_secs());
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(HilError::io("append to", path))
    }

    fn why_not(&self, story: &Story) -> Option<&'static str> {
        let is_slotted = self.board.firmware.is_some();
        if self.sabotage.as_ref().is_some_and(|sabotage| !sabotage.contains_key(story.name)) {
            return Some("hil-tests/sabotage has no command for it");
        }
        match story.needs {
            Needs::Faults | Needs::FaultsAndSlots if self.options.faults.is_none() => {
                Some("needs an agent with faults (--faults)")
            }
            Needs::Watchdog if self.board.watchdog.is_none() => Some("the board has no hardware watchdog"),
            Needs::NoWatchdog if self.board.watchdog.is_some() => Some("the board has a hardware watchdog"),
            Needs::Slots | Needs::FaultsAndSlots | Needs::BrokenUpdate if !is_slotted => {
                Some("the board has no boot loader that counts tries")
            }
            Needs::Programs if self.options.programs.is_none() => {
                Some("needs programs for each processor (--programs)")
            }
            Needs::BrokenUpdate if self.options.broken_update.is_none() => {
                Some("needs a broken update (--broken-update)")
            }
            _ => None,
        }
    }

    /// A machine with its credentials and the disks with updates, without a disk of its own.
    fn machine(&mut self, name: &str) -> Result<Machine, HilError> {
        let dir = self.scratch.path().join(name);
        let mut machine =
            Machine::new(&self.board, &dir, &self.image, self.hub.address(), self.registry_port)?;
        let kubeconfig = self.hub.node_kubeconfig(NODE)?.replace(self.hub.address(), HUB_IN_GUEST);
        machine.hand("kedge.kubeconfig", &kubeconfig)?;
        machine.hand("kedge.node-name", NODE)?;
        let nothing = self.scratch.path().join("nothing");
        std::fs::write(&nothing, [0; 512]).map_err(HilError::io("write", &nothing))?;
        let update = self.image.join(format!("kedge-{}.update", self.board.image));
        let update = if update.exists() { update } else { nothing.clone() };
        let lent = [self.options.faults.clone(), Some(update), self.options.broken_update.clone()];
        for file in lent {
            let file = file.unwrap_or_else(|| nothing.clone());
            machine.lend(&std::fs::canonicalize(&file).map_err(HilError::io("find", &file))?);
        }
        Ok(machine)
    }

    fn first_boot(&mut self, machine: &mut Machine) -> Result<(), HilError> {
        machine.flash()?;
        machine.start(&Start::default())?;
        let start = Instant::now();
        // a stage owns its machine, and returns it; meanwhile the caller's variable needs another one
        let placeholder = Machine::new(
            &self.board,
            &self.scratch.path().join("none"),
            &self.image,
            self.hub.address(),
            self.registry_port,
        )?;
        let machine_now = std::mem::replace(machine, placeholder);
        let mut stage = Stage::new(&mut self.hub, machine_now, &mut self.teller);
        let result = measure_first_boot(&mut stage, start);
        *machine = stage.machine;
        result
    }

    /// Notes that a story failed, with the reason.
    fn fails(&mut self, name: &'static str, why: &str, start: Instant) -> Result<(), HilError> {
        self.failed.push((name, why.to_owned()));
        self.teller.say(Tone::Bad, &format!("{name}: {why}"));
        self.outcome(name, "failed", start)
    }

    fn story(&mut self, story: &'static Story, first: &First, limits: &Limits) -> Result<(), HilError> {
        self.teller.chapter(&format!("{}: {}", story.name, story.about));
        self.hub.kill();
        let data = self.hub_data();
        std::fs::remove_dir_all(&data).map_err(HilError::io("remove", &data))?;
        copy_tree(&first.hub, &data)?;
        self.hub.start_again()?;
        let mut machine = self.machine(story.name)?;
        machine.copy_disks(&first.machine)?;
        let start = Instant::now();
        let end = limits.story.map(|limit| start + limit).into_iter().chain(limits.end).min();
        stage::end_by(end);
        let mut stage = Stage::new(&mut self.hub, machine, &mut self.teller);
        stage.programs.clone_from(&self.options.programs);
        stage.faults.clone_from(&self.options.faults);
        let sabotage = self.sabotage.as_ref().and_then(|sabotage| sabotage.get(story.name));
        let begun = stage.machine.start(&Start { from_snapshot: true, ..Start::default() });
        let result = begun.and_then(|()| stage.wakes()).and_then(|()| match sabotage {
            None => (story.run)(&mut stage),
            Some(sabotage) => run_sabotaged(&mut stage, story, sabotage),
        });
        let mut machine = stage.machine;
        match result {
            Ok(()) => {
                self.passed += 1;
                self.outcome(story.name, "passed", start)?;
                self.teller
                    .say(Tone::Good, &format!("{}: passed in {} s", story.name, start.elapsed().as_secs()));
            }
            Err(error) => {
                // the search for the reason has no time limit
                stage::end_by(None);
                let is_late = end.is_some_and(|end| end <= Instant::now());
                let late = if is_late {
                    format!(" (its time was over, {} s: {})", start.elapsed().as_secs(), self.teller.steps())
                } else {
                    String::new()
                };
                self.fails(story.name, &format!("{error}{late}"), start)?;
                self.keep_logs(story.name, &mut machine);
            }
        }
        let dir = machine.dir().to_owned();
        drop(machine);
        std::fs::remove_dir_all(&dir).map_err(HilError::io("remove", &dir))
    }

    fn hub_data(&self) -> PathBuf {
        self.scratch.path().join("hub/data")
    }

    /// Collects logs that help a person to find the cause, as far as possible: the story's own error has
    /// priority.
    fn keep_logs(&mut self, name: &str, machine: &mut Machine) {
        let to = self.options.logs.join(&self.board.name).join(name);
        // otherwise files of an earlier failure would be taken for this one's
        let _ = std::fs::remove_dir_all(&to);
        let _ = std::fs::create_dir_all(&to);
        let _ = std::fs::copy(machine.serial(), to.join("serial.log"));
        let _ = std::fs::copy(machine.log(), to.join("qemu.log"));
        let _ = std::fs::copy(self.hub.log(), to.join("hub.log"));
        for (file, command) in ASKED_AFTER_FAILURE {
            // a guest that does not answer one command answers none
            let Ok((_, output)) = machine.run_within(command, Duration::from_secs(60)) else { break };
            let _ = std::fs::write(to.join(file), output);
        }
        self.teller.say(Tone::Bad, &format!("logs: {}", to.display()));
    }
}

/// Limit of a settled agent's memory in a booted image. Most of it is the program's own code, which the
/// kernel maps in windows of 64 KiB around each used page: run `cross/layout record` when the memory comes
/// near the limit.
const MOST_PSS_KIB: u64 = 3 * 1024;

/// Commands in the guest after a failure, and the file for the output. The agent's own state first, because a
/// journal may be lost, or hang.
const ASKED_AFTER_FAILURE: [(&str, &str); 3] = [
    (
        "agent.log",
        "systemctl list-jobs --no-pager; systemctl --failed --no-pager; systemctl status --no-pager kedge kedge-provision; \
         cat /run/kedge/*; p=$(systemctl show -P MainPID kedge); for t in /proc/$p/task/*; do cat $t/comm $t/wchan $t/stack; echo; done; \
         ls -l /proc/$p/fd; cat /proc/mounts; ps ax; ip address; ls -lR /etc/kedge /var/lib/kedge",
    ),
    ("kernel.log", "dmesg | tail -500"),
    ("journal.log", "journalctl --no-pager -o short-monotonic -n 2000"),
];

/// Runs a story that must fail because of the sabotage.
fn run_sabotaged(stage: &mut Stage<'_>, story: &Story, sabotage: &Sabotage) -> Result<(), HilError> {
    stage.after_each_boot.clone_from(&sabotage.after_each_boot);
    if let Some(command) = &sabotage.after_each_boot {
        stage.say(&format!("sabotage after each boot: {command}"));
    }
    stage.in_folder.clone_from(&sabotage.in_folder);
    if let Some(command) = &sabotage.in_folder {
        stage.say(&format!("sabotage in its folder: {command}"));
    }
    if let Some(command) = &sabotage.before {
        stage.say(&format!("sabotage: {command}"));
        stage.guest(command)?;
    }
    match (story.run)(stage) {
        Err(error) if error.to_string().contains(&sabotage.fails_with) => {
            stage.say(&format!("fails, as it must: {error}"));
            Ok(())
        }
        Err(error) => Err(HilError::Wrong(format!("fails, but not with {:?}: {error}", sabotage.fails_with))),
        Ok(()) => Err(HilError::Wrong("passes in spite of the sabotage".into())),
    }
}

fn measure_first_boot(stage: &mut Stage<'_>, start: Instant) -> Result<(), HilError> {
    stage.wait("the first Lease", stage::patience(), |stage| {
        Ok(stage.renewed()?.ok_or_else(|| "no Lease".to_owned()))
    })?;
    let lease = start.elapsed();
    stage.ready()?;
    let ready = start.elapsed();
    stage.say(&format!(
        "power on to the first Lease: {:.1} s, to Ready: {:.1} s",
        lease.as_secs_f32(),
        ready.as_secs_f32()
    ));
    let state = stage.machine.run("systemctl is-system-running --wait || true", stage::patience())?.1;
    let failed = stage.guest("systemctl --failed --no-legend")?;
    stage.expect(&format!("the system's state, failed units: {failed:?}"), state.as_str(), "running")?;
    let left = stage.guest(
        "p=/sys/class/block/$(basename $(readlink -f /dev/disk/by-partlabel/state)); \
         echo $((($(cat $p/../size) - $(cat $p/start) - $(cat $p/size)) / 2048))",
    )?;
    stage.expect("MiB of the disk behind the state partition", left.as_str(), "0")?;
    let is_hardware = stage.machine.has_watchdog();
    let awaited =
        if is_hardware { "an active watchdog of the hardware" } else { "the kernel's own timer, active" };
    stage.wait(awaited, stage::patience(), |stage| {
        let found = stage.guest("cd /sys/class/watchdog && grep -H . */identity */state || true")?;
        let is_active = found.contains("state:active") && found.contains("Software Watchdog") != is_hardware;
        Ok(if is_active { Ok(()) } else { Err(found) })
    })?;
    // firmware need not support other file systems
    let kind = stage.guest("dd if=$(readlink -f /dev/kedge/esp) bs=1 skip=82 count=8 2>/dev/null")?;
    stage.expect("the EFI partition's file system", kind.as_str(), "FAT32")?;
    if stage.machine.has_loader() {
        let timeout = stage.guest("sed -n 's/^timeout //p' /efi/loader/loader.conf")?;
        stage.expect("the boot loader's timeout", timeout.as_str(), "menu-disabled")?;
    }
    let oops = stage.guest("cat /proc/sys/kernel/panic_on_oops")?;
    stage.expect("kernel.panic_on_oops", oops.as_str(), "1")?;
    // LLMNR's and mDNS's, in hexadecimal digits
    let ports = stage.guest("grep -hE ': [0-9A-F]+:(14EB|14E9) ' /proc/net/[tu][cd]p* || true")?;
    stage.expect("open ports for names of the local network", ports.as_str(), "")?;
    let waits = stage.guest("systemctl show -P OnFailure local-fs.target")?;
    stage.expect("what follows a file system that cannot be mounted", waits.as_str(), "")?;
    let overlay = stage.guest("grep -w overlay /proc/filesystems")?;
    stage.expect("what containers' roots are laid over", overlay.trim(), "nodev\toverlay")?;
    let times = stage.guest("systemd-analyze | head -n 1")?;
    stage.say(&times);
    let process = stage.running()?;
    let memory = stage
        .guest(&format!("grep -E '^(Pss|Private_Clean|Private_Dirty):' /proc/{process}/smaps_rollup"))?;
    stage.say(&format!("the agent's memory: {}", memory.split_whitespace().collect::<Vec<_>>().join(" ")));
    let kib =
        memory.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(u64::MAX);
    stage.expect(&format!("PSS of at most {MOST_PSS_KIB} KiB"), kib <= MOST_PSS_KIB, true)?;
    stage.sleeps()
}

/// Removes the disks when a signal stops the run. Its child processes end with it, but may write a last file
/// meanwhile.
fn remove_at(stop: Receiver<StopSignal>, scratch: PathBuf) -> std::io::Result<()> {
    let remove = move || {
        if stop.recv().is_ok() {
            let _ = std::fs::remove_dir_all(&scratch).or_else(|_| std::fs::remove_dir_all(&scratch));
            eprintln!("kedge-hil: stopped by a signal");
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("stop".into()).spawn(remove).map(drop)
}

/// Copies a directory with what is below it.
fn copy_tree(from: &Path, to: &Path) -> Result<(), HilError> {
    std::fs::create_dir_all(to).map_err(HilError::io("create directory", to))?;
    for entry in std::fs::read_dir(from).map_err(HilError::io("list", from))? {
        let entry = entry.map_err(HilError::io("list", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy_tree(&path, &target)?,
            false => drop(std::fs::copy(&path, &target).map_err(HilError::io("copy", &path))?),
        }
    }
    Ok(())
}
