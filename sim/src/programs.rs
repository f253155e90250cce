//! A machine without slots, on which programs of the agent lie beside the packaged one: the starter of the
//! package, the record that it shares with the agent, and programs with natures of their own.
//!
//! Always holds: the record is written by the disk's protocol, so a power cut leaves the old one or the new
//! one; a start on trial is counted before it begins. Programs are called by a letter; the packaged one is X.
//! Leaves to others: the agent that the started program is (`node`), times.

use crate::disk::Disk;
use crate::machine::{digest_of, name_of};
use kedge_core::config::records::Read;
use kedge_core::system::starter::{Chosen, RECORD, Reason, Record};
use kedge_core::system::{Slots, SystemEvent, SystemOrder, programs};
use kedge_core::{Digest, Exit, PreviousRun};
use std::collections::{BTreeMap, BTreeSet};

/// The processor of every machine.
pub const PROCESSOR: &str = "toaster";
/// The content of the package's program.
const PACKAGE: &str = "package 1";
/// Most starts in a row that end at once.
const MOST_STARTS: u32 = 12;

/// The behaviour of a started program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nature {
    #[default]
    Good,
    /// It dies at once, by this signal: `ILL` is a program for another processor.
    Dies(&'static str),
    /// It never becomes ready, and the supervisor ends it.
    NeverReady,
    /// It has no network.
    Deaf,
    /// It has none from its promotion to a good program on.
    DeafLater,
    /// The kernel does not start it: its interpreter, or its C library, is missing.
    NoExec,
    /// Somebody removed its file.
    Gone,
}

#[derive(Clone)]
pub struct Programs {
    pub natures: BTreeMap<String, Nature>,
    /// The versions of the agent, by program; of others it is the package's.
    pub agents: BTreeMap<String, String>,
    pub order: Option<SystemOrder>,
    /// The content of the packaged program.
    pub package: String,
    fetched: Option<Digest>,
    installed: BTreeSet<String>,
    /// The running program, if it is not the packaged one.
    chosen: Option<Chosen>,
    is_good: bool,
    /// The agent ends to be started again in place, by which no other program starts.
    pub(crate) replaces: bool,
    pub(crate) is_replaced: bool,
    /// Starts of programs so far.
    pub starts: u32,
}

impl Default for Programs {
    fn default() -> Self {
        Self {
            natures: BTreeMap::new(),
            agents: BTreeMap::new(),
            order: None,
            package: PACKAGE.to_owned(),
            fetched: None,
            installed: BTreeSet::new(),
            chosen: None,
            is_good: false,
            replaces: false,
            is_replaced: false,
            starts: 0,
        }
    }
}

fn name_of_program(chosen: &Chosen) -> String {
    name_of(Digest::parse(&chosen.digest))
}

impl Programs {
    fn record(disk: &Disk) -> Record {
        match disk.read(RECORD) {
            Read::Content(bytes) => Record::read(&bytes).unwrap_or_default(),
            _ => Record::default(),
        }
    }

    fn change(disk: &mut Disk, change: impl FnOnce(&mut Record)) -> Result<(), String> {
        let before = Self::record(disk);
        let mut record = before.clone();
        change(&mut record);
        if record == before { Ok(()) } else { disk.write_other(RECORD, &record.text()) }
    }

    #[must_use]
    pub fn slots(&self, disk: &Disk) -> Slots {
        let chosen = self.chosen.as_ref().map(|chosen| chosen.digest.as_str());
        programs::slots(&Self::record(disk), chosen, PROCESSOR, &self.runs())
    }

    /// The running program.
    #[must_use]
    pub fn runs(&self) -> String {
        self.chosen.as_ref().map_or_else(|| "X".to_owned(), name_of_program)
    }

    /// The record in a few words.
    #[must_use]
    pub fn list(disk: &Disk) -> String {
        let record = Self::record(disk);
        let shown = |what: &str, chosen: Option<Chosen>| {
            chosen.map(|chosen| format!("{what} {}", name_of_program(&chosen)))
        };
        let good = if record.is_good() { ", good" } else { "" };
        let tried =
            shown("try", record.tried()).map(|tried| format!("{tried}+{}{good}", record.tries_left()));
        let failed =
            record.failed().map(|(failed, why)| format!("failed {} ({why})", name_of_program(&failed)));
        let all = [shown("use", record.used()), tried, shown("held", record.held()), failed];
        let all: Vec<String> =
            all.into_iter().chain([shown("overruled", record.overruled())]).flatten().collect();
        if all.is_empty() { "the packaged one".to_owned() } else { all.join(", ") }
    }

    fn nature(&self) -> Nature {
        self.natures.get(&self.runs()).copied().unwrap_or_default()
    }

    #[must_use]
    pub fn is_deaf(&self) -> bool {
        match self.nature() {
            Nature::Deaf => true,
            Nature::DeafLater => self.is_good,
            _ => false,
        }
    }

    /// The version of the running program, if it is another one than the package's.
    #[must_use]
    pub fn agent(&self) -> Option<&String> {
        self.agents.get(&self.runs())
    }

    /// The packaged program starts: it becomes the one that the record names. A start that ends at once is
    /// handed to `ended`, which returns the evidence of it for the next one.
    pub fn start(
        &mut self,
        disk: &mut Disk,
        boot: &str,
        mut previous: PreviousRun,
        mut ended: impl FnMut(Exit) -> PreviousRun,
    ) {
        for _ in 0..MOST_STARTS {
            self.order = None;
            self.choose(disk, boot, &previous);
            self.starts += 1;
            let exit = match self.nature() {
                Nature::Dies(signal) => {
                    Exit { result: "signal".into(), exit_status: signal.into(), ..Exit::default() }
                }
                Nature::NeverReady => {
                    Exit { result: "timeout".into(), exit_status: "TERM".into(), ..Exit::default() }
                }
                _ => return,
            };
            assert!(self.chosen.is_some(), "the packaged program does not start");
            previous = ended(exit);
        }
        unreachable!("it starts without end");
    }

    fn choose(&mut self, disk: &mut Disk, boot: &str, previous: &PreviousRun) {
        let before = Self::record(disk);
        let mut record = before.clone();
        record.begin(&self.package, boot, previous);
        self.chosen = None;
        while let Some(chosen) = record.choose(boot) {
            let is_counted = record.tried().as_ref() == Some(&chosen) && !record.is_good();
            let nature = self.natures.get(&name_of_program(&chosen)).copied().unwrap_or_default();
            let is_there = self.installed.contains(&chosen.program) && nature != Nature::Gone;
            let written = if record == before { Ok(()) } else { disk.write_other(RECORD, &record.text()) };
            let failed = match () {
                () if !is_there => Reason::Gone,
                () if is_counted && written.is_err() => Reason::Unrecorded,
                () if nature == Nature::NoExec => Reason::Exec,
                () => {
                    self.is_good = record.is_good() || record.used().as_ref() == Some(&chosen);
                    self.chosen = Some(chosen);
                    return;
                }
            };
            record.fail(&chosen, failed);
        }
        if record != before {
            let _ = disk.write_other(RECORD, &record.text());
        }
    }

    /// Performs the order.
    pub fn perform(&mut self, disk: &mut Disk, is_online: bool) -> Vec<SystemEvent> {
        let Some(order) = self.order.take() else { return Vec::new() };
        let done = match order {
            SystemOrder::Fetch { wanted, .. } if is_online => {
                self.fetched = Some(wanted.digest);
                return vec![SystemEvent::Progress(42), SystemEvent::Done(Ok(()))];
            }
            SystemOrder::Fetch { .. } => Err("no answer".to_owned()),
            SystemOrder::Write { wanted } => {
                let digest = wanted.digest.to_string();
                assert_eq!(self.fetched, Some(wanted.digest), "it was not fetched");
                let chosen = Chosen { program: digest.clone(), digest };
                self.installed.insert(chosen.program.clone());
                Self::change(disk, |record| record.hold(&chosen))
            }
            SystemOrder::Arm { digest, .. } => {
                let mut armed = Ok(());
                Self::change(disk, |record| armed = record.arm(digest, PACKAGE)).and(armed)
            }
            SystemOrder::Disarm => Self::change(disk, Record::disarm),
            SystemOrder::Bless => {
                let done = Self::change(disk, Record::note_good);
                self.is_good |= done.is_ok();
                done
            }
            SystemOrder::RaiseFloor { digest } => {
                let done = Self::change(disk, |record| record.promote(digest));
                let record = Self::record(disk);
                let kept: Vec<String> = [record.used(), record.tried(), record.held(), self.chosen.clone()]
                    .into_iter()
                    .flatten()
                    .map(|chosen| chosen.program)
                    .collect();
                self.installed.retain(|program| kept.contains(program));
                done
            }
            SystemOrder::Reboot { .. } => unreachable!("a program needs no restart of the machine"),
            SystemOrder::TakeKeys(_) | SystemOrder::StopFetch => Ok(()),
        };
        vec![SystemEvent::Slots(self.slots(disk)), SystemEvent::Done(done)]
    }
}

/// `kedge.agent` of a payload.
#[must_use]
pub fn wants(program: &str) -> String {
    let digest = digest_of(program);
    format!(
        "kedge: {{agent: {{version: '{program}', programs: {{{PROCESSOR}: {{url: 'https://dl.example/{program}', digest: 'sha256:{digest}'}}}}}}}}"
    )
}
