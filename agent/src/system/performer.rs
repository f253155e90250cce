//! Performs the orders of core about systems: each on a thread of its own, which ends with it.
//!
//! Always holds: an order is answered once, and a change of the slots is reported before its answer. A slot
//! or a program is written only from a manifest that this order has verified. A thread exists only for an
//! order, and without one only the facts at a start are read. Leaves to others: every decision
//! (`kedge_core::system`), the steps of a slot (`crate::slot::steps`), the bytes (`fetch`).

use super::fetch::{Content, Failed, Fetched, Fetcher, Running};
use super::install::{install, sweep};
use super::starter::{CHOSEN, digest, versions};
use crate::errors::chain;
use crate::images::ranges::Web;
use crate::locks::locked;
use crate::net::transport::{Cancel, WallClock};
use crate::options::Places;
use crate::perform::spawn;
use crate::slot::admission::facts;
use crate::slot::host::{self, LOCK, inspect, status};
use crate::slot::keys::{self, Sources};
use crate::slot::signature::check;
use crate::slot::{FAILED, FAILED_CHARS, steps, update};
use kedge_core::images::room::Disk;
use kedge_core::images::settings::Registries;
use kedge_core::kubelet::wanted::Pinned;
use kedge_core::slot::admission::{self, Facts, MANIFEST, Plan};
use kedge_core::slot::keys::{Proposed, Trust, propose};
use kedge_core::slot::list::{self, Step};
use kedge_core::slot::manifest::{self, FILES, MANIFEST_BYTES, Manifest, PROGRAM, Terms};
use kedge_core::slot::{CommandLine, Work, Works, demands};
use kedge_core::system::starter::{Chosen, RECORD, RECORD_BYTES, Record};
use kedge_core::system::{By, Entry, Failure, Kind, Slot, Slots, SystemEvent, SystemOrder, programs};
use kedge_core::{Digest, Event};
use kedge_platform::linux::slots::{EFI, LinuxSlots, SlotsLock, lock};
use kedge_platform::linux::{self, FileSystemUse, Roots, file_system_use};
use kedge_platform::slots::Slots as BootList;
use kedge_platform::{Files, ReadError};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::Sender as EventSender;

/// This machine.
#[derive(Clone)]
pub(crate) struct Machine {
    places: Places,
    roots: Roots,
    efi: PathBuf,
    is_image: bool,
}

/// The way to give orders.
pub(crate) struct Systems {
    machine: Machine,
    clock: WallClock,
    events: EventSender<Event>,
    registries: Mutex<Registries>,
    /// Of the order under way.
    cancel: Mutex<Cancel>,
}

impl Systems {
    pub(crate) fn new(machine: Machine, clock: WallClock, events: EventSender<Event>) -> Arc<Self> {
        let (registries, cancel) = (Mutex::default(), Mutex::default());
        Arc::new(Self { machine, clock, events, registries, cancel })
    }

    /// The servers and credentials of the configuration in use.
    pub(crate) fn use_registries(&self, registries: &Registries) {
        locked(&self.registries).clone_from(registries);
    }

    /// Performs an order; never blocks.
    pub(crate) fn order(self: &Arc<Self>, order: SystemOrder) {
        if order == SystemOrder::StopFetch {
            return locked(&self.cancel).cancel();
        }
        let cancel = Cancel::new();
        locked(&self.cancel).clone_from(&cancel);
        let own = self.clone();
        let started = spawn("system", move || own.perform(&order, cancel));
        if let Err(error) = started {
            // never waits: the caller is the main loop, which empties this queue
            let _ = self.events.try_send(event(SystemEvent::Done(Err(error.to_string()))));
        }
    }

    fn tell(&self, news: SystemEvent) {
        let _ = self.events.blocking_send(event(news));
    }

    fn perform(&self, order: &SystemOrder, cancel: Cancel) {
        let machine = &self.machine;
        let done = match order {
            SystemOrder::StopFetch => Ok(()),
            SystemOrder::Fetch { wanted, version, bytes_per_second } => {
                self.fetch(wanted, version, *bytes_per_second, cancel)
            }
            SystemOrder::Write { wanted } => self.write(wanted, cancel),
            SystemOrder::Arm { digest, by, config, demands_contact } => {
                machine.arm(*digest, *by, *config, *demands_contact).map_err(Failed::Again)
            }
            SystemOrder::Disarm => machine.disarm().map_err(Failed::Again),
            SystemOrder::Reboot { why } => reboot(why).map_err(Failed::Again),
            SystemOrder::Bless => machine.change(Record::note_good).map_err(Failed::Again),
            SystemOrder::RaiseFloor { digest } => machine.raise_floor(*digest).map_err(Failed::Again),
            SystemOrder::TakeKeys(list) => machine.take_keys(list.as_bytes()).map_err(Failed::Again),
        };
        let changes = !matches!(order, SystemOrder::Fetch { .. } | SystemOrder::TakeKeys(_));
        if changes && let Some(slots) = machine.slots() {
            self.tell(SystemEvent::Slots(slots));
        }
        self.tell(match done {
            Ok(()) => SystemEvent::Done(Ok(())),
            Err(Failed::Again(why)) => SystemEvent::Done(Err(why)),
            Err(Failed::Refused(reason, message)) => SystemEvent::Refused { reason, message },
        });
    }

    fn web(&self, cancel: Cancel) -> Web {
        Web::new(locked(&self.registries).clone(), self.clock.clone(), cancel)
    }

    fn fetch(&self, wanted: &Pinned, version: &str, rate: Option<u64>, cancel: Cancel) -> Result<(), Failed> {
        let machine = &self.machine;
        machine.can_install().map_err(Failed::Again)?;
        let pieces = machine.pieces(wanted.digest);
        remove_others(&pieces);
        let web = self.web(cancel);
        let fetched = self.fetch_with(&web, wanted, rate, &|fetcher| {
            let fetched = fetcher.fetch(&|block| {
                let manifest = machine.judge(block, wanted.digest, false, false)?;
                match manifest.version == version {
                    true => machine.admit(&manifest).map(|_| manifest).map_err(Failed::Again),
                    // the fault of the configuration, not of the system
                    false => Err(Failed::Again(format!(
                        "the manifest names version {}, expected {version}",
                        manifest.version
                    ))),
                }
            });
            log::info!("system {version}: {} bytes came from its server", fetcher.read.get());
            fetched
        })?;
        if fetched.is_straight && !machine.is_image {
            return Err(Failed::Again("the disk has no room for the program".to_owned()));
        }
        Ok(())
    }

    fn fetch_with<T>(
        &self,
        web: &Web,
        wanted: &Pinned,
        rate: Option<u64>,
        act: &dyn Fn(&Fetcher<'_>) -> T,
    ) -> T {
        let machine = &self.machine;
        let room = || {
            let found = file_system_use(&machine.places.root_dir);
            found.map_or(0, |FileSystemUse { capacity_bytes, available_bytes, .. }| {
                Disk { capacity_bytes, available_bytes, inodes: 0, inodes_free: 0 }.room().bytes
            })
        };
        let progress = |percent| self.tell(SystemEvent::Progress(percent));
        act(&Fetcher {
            web,
            wanted,
            pieces: machine.pieces(wanted.digest),
            running: machine.running(),
            rate,
            room: &room,
            progress: &progress,
            read: Cell::default(),
        })
    }

    fn write(&self, wanted: &Pinned, cancel: Cancel) -> Result<(), Failed> {
        let machine = &self.machine;
        let pieces = machine.pieces(wanted.digest);
        let web = self.web(cancel);
        self.fetch_with(&web, wanted, None, &|fetcher| {
            // what a damaged disk lost comes once more
            let judge = |block: &[u8]| machine.judge(block, wanted.digest, false, false);
            let Fetched { manifest, .. } = fetcher.fetch(&judge)?;
            machine.write(fetcher, &manifest, &pieces).map_err(Failed::Again)
        })?;
        let _ = fs::remove_dir_all(&pieces);
        Ok(())
    }
}

fn event(news: SystemEvent) -> Event {
    Event::System(Box::new(news))
}

/// Removes the pieces of other updates: one is wanted at a time.
fn remove_others(pieces: &Path) {
    let all = pieces.parent().and_then(|all| fs::read_dir(all).ok());
    for entry in all.into_iter().flatten().flatten() {
        if entry.path() != pieces {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The machine waits for the pods by the agent's inhibitor, as for any shutdown.
fn reboot(why: &str) -> Result<(), String> {
    log::info!("restarting the machine: {why}");
    match Command::new("systemctl").arg("reboot").status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("systemctl reboot: {status}")),
        Err(error) => Err(format!("cannot start systemctl: {error}")),
    }
}

impl Machine {
    pub(crate) fn new(places: Places) -> Self {
        let roots = Roots::default();
        let is_image = host::is_image(&roots);
        Self { places, roots, efi: EFI.into(), is_image }
    }

    fn pieces(&self, digest: Digest) -> PathBuf {
        self.places.root_dir.join("system/pieces").join(digest.to_string())
    }

    fn facts(&self) -> Facts {
        facts(&self.roots, &self.efi, Path::new("/"))
    }

    fn boot_list(&self) -> LinuxSlots {
        LinuxSlots::new(&self.roots, &self.efi)
    }

    /// The slots of this machine; `None` if it can have no other system.
    pub(crate) fn slots(&self) -> Option<Slots> {
        if self.is_image {
            return image_slots(&self.facts(), &self.efi);
        }
        let chosen = std::env::var(CHOSEN).ok();
        linux::is_root()
            .then(|| programs::slots(&self.record(), chosen.as_deref(), processor(), crate::VERSION))
    }

    fn running(&self) -> Option<Running> {
        let facts = self.is_image.then(|| self.facts())?;
        let running = CommandLine::parse(&facts.command_line).slot?;
        let (device, _) = facts.roots.get(&format!("root-{running}"))?;
        Some(Running { folder: self.efi.join("kedge").join(running), root: device.into() })
    }

    fn sources(&self) -> Sources {
        match self.is_image {
            true => Sources::of_image(&self.roots, &self.efi, &self.places.root_dir),
            false => {
                let own = self.roots.etc.join("kedge");
                let is_own = own.join("keys").exists() || own.join("update-keys").exists();
                let versions = self.versions();
                let own = if is_own { own } else { versions.parent().unwrap_or(&versions).to_owned() };
                Sources::of_package(&own, &self.places.root_dir)
            }
        }
    }

    fn judge(
        &self,
        block: &[u8],
        digest: Digest,
        allows_older: bool,
        below_floor: bool,
    ) -> Result<Manifest, Failed> {
        let trust = self.sources().trust().map_err(Failed::Again)?;
        let facts = if self.is_image { self.facts() } else { Facts::default() };
        let (board, running) = match self.is_image {
            true => (facts.board.as_str(), facts.version.as_str()),
            false => (processor(), crate::VERSION),
        };
        let terms = Terms { board, running, trust: &trust, allows_older, below_floor };
        let verified = manifest::verify(block, Some(&digest.to_string()), &terms, &check);
        verified.map_err(|refusal| match refusal.reason {
            manifest::Reason::WrongDigest => Failed::Again(refusal.text),
            reason => Failed::Refused(reason.word(), refusal.text),
        })
    }

    /// Where the update goes; `None`: it is a program.
    fn admit(&self, manifest: &Manifest) -> Result<Option<Plan>, String> {
        match (self.is_image, manifest.member(PROGRAM)) {
            (true, None) => admission::admit(&self.facts(), manifest).map(Some),
            (false, Some(_)) => Ok(None),
            (true, Some(_)) => Err("the update is a program, and this machine has two slots".to_owned()),
            (false, None) => Err("the update is a disk image, and this machine has no slots".to_owned()),
        }
    }

    /// Whether a program can be installed beside the packaged one.
    fn can_install(&self) -> Result<(), String> {
        if self.is_image {
            return Ok(());
        }
        let place = self.versions();
        let made = fs::create_dir_all(&place).and_then(|()| {
            File::create(place.join(".new")).and_then(|_| fs::remove_file(place.join(".new")))
        });
        let problem = match (made, linux::is_noexec(&place)) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Ok(true)) => "it is mounted noexec".to_owned(),
            _ => return Ok(()),
        };
        Err(format!("{}: {problem}", place.display()))
    }

    fn write(&self, fetcher: &Fetcher<'_>, manifest: &Manifest, pieces: &Path) -> Result<(), String> {
        let Some(plan) = self.admit(manifest)? else {
            let member = manifest.member(PROGRAM).ok_or("the update has no program")?;
            let chosen = Chosen { program: member.digest.clone(), digest: manifest.digest.clone() };
            install(&self.versions(), &chosen, &mut Content::new(fetcher, manifest))?;
            return self.change(|record| record.hold(&chosen));
        };
        let _lock = locked_slots()?;
        let block = fs::read(pieces.join(MANIFEST)).map_err(|error| error.to_string())?;
        write_slot(&self.boot_list(), &plan, &block, &mut Content::new(fetcher, manifest))
    }

    fn arm(&self, digest: Digest, by: By, config: Option<Digest>, contact: bool) -> Result<(), String> {
        if !self.is_image {
            let packaged = self.packaged().map_err(|error| error.to_string())?;
            let mut armed = Ok(());
            self.change(|record| armed = record.arm(digest, &packaged))?;
            return armed;
        }
        let facts = self.facts();
        let other = match CommandLine::parse(&facts.command_line).slot {
            Some("a") => "b",
            _ => "a",
        };
        let block = block_of(&self.efi, other).ok_or_else(|| format!("slot {other} has no manifest"))?;
        // it ran here before, or was judged when it was fetched
        let judged = self.judge(&block, digest, true, by == By::Revert);
        let manifest = judged.map_err(|failed| match failed {
            Failed::Again(why) | Failed::Refused(_, why) => why,
        })?;
        let mut works = inspect(&self.roots, status(&self.places).as_ref());
        if contact {
            works.insert(Work::Contact);
        }
        let _lock = locked_slots()?;
        arm_slot(&self.boot_list(), &facts, &manifest, works, &notes(by, config))
    }

    fn disarm(&self) -> Result<(), String> {
        if !self.is_image {
            return self.change(Record::disarm);
        }
        let _lock = locked_slots()?;
        disarm_slot(&self.boot_list(), &self.facts())
    }

    fn raise_floor(&self, digest: Digest) -> Result<(), String> {
        if !self.is_image {
            self.change(|record| record.promote(digest))?;
            let record = self.record();
            let kept = [record.used(), record.tried(), record.held()];
            let kept: Vec<_> = kept.into_iter().flatten().collect();
            sweep(&self.versions(), &self.roots.proc, &kept);
        }
        match self.sources().trust()? {
            Trust::List(list) => {
                let slots = self.is_image.then(|| self.boot_list());
                keys::keep(slots.as_ref(), &self.places.root_dir, &list)
            }
            _ => Ok(()),
        }
    }

    fn take_keys(&self, offered: &[u8]) -> Result<(), String> {
        let trust = self.sources().trust()?;
        let in_force = if let Trust::List(list) = &trust { Some(list) } else { None };
        match propose(in_force, offered, false, &check) {
            Ok(Proposed::Known) => Ok(()),
            // the keys in force judge the update
            Err(why) => {
                log::warn!("kedge.system.keys: {why}; the keys in force stay");
                Ok(())
            }
            Ok(Proposed::New(list)) => {
                let slots = self.is_image.then(|| self.boot_list());
                keys::keep(slots.as_ref(), &self.places.root_dir, &list)
            }
        }
    }

    fn versions(&self) -> PathBuf {
        versions(&std::env::current_exe().unwrap_or_default())
    }

    /// The digest of the packaged program, which need not be the running one.
    fn packaged(&self) -> io::Result<String> {
        match std::env::var_os(CHOSEN) {
            None => digest(Path::new("/proc/self/exe")),
            Some(_) => {
                let versions = self.versions();
                let above = versions.ancestors().nth(3).unwrap_or(Path::new("/usr"));
                digest(&above.join("bin/kedge"))
            }
        }
    }

    /// An unreadable record counts as absent: the packaged program runs.
    fn record(&self) -> Record {
        let files = linux::files(&self.places.root_dir);
        let read = match files.read(Path::new(RECORD), RECORD_BYTES) {
            Err(ReadError::NotFound { .. }) => return Record::default(),
            Err(error) => Err(chain(&error)),
            Ok(content) => Record::read(&content),
        };
        read.unwrap_or_else(|why| {
            log::warn!("{RECORD}: {why}");
            Record::default()
        })
    }

    fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), String> {
        let mut record = self.record();
        let before = record.clone();
        change(&mut record);
        if record == before {
            return Ok(());
        }
        let files = linux::files(&self.places.root_dir);
        files.write_durably(Path::new(RECORD), &record.text()).map_err(|error| chain(&error))
    }
}

/// As configurations name it.
fn processor() -> &'static str {
    match std::env::consts::ARCH {
        "arm" => "armv7",
        other => other,
    }
}

fn locked_slots() -> Result<SlotsLock, String> {
    lock(Path::new(LOCK), false).map_err(|error| format!("cannot lock {LOCK}: {error}"))
}

fn failed(slot: &str) -> Step {
    Step::Drop(format!("kedge/{slot}/{FAILED}"))
}

fn write_slot<S: BootList>(
    slots: &S,
    plan: &Plan,
    block: &[u8],
    content: &mut impl Read,
) -> Result<(), String> {
    update::make_ready(slots, plan.running).map_err(|error| error.to_string())?;
    let mut steps = vec![failed(plan.other)];
    steps.extend(plan.write(block));
    steps::perform(slots, &steps, content)
}

/// More words of an entry: the origin of the order.
fn notes(by: By, config: Option<Digest>) -> String {
    let config = config.map(|config| format!(" kedge.config={config}")).unwrap_or_default();
    let by = match by {
        By::Config => "",
        By::Hand => " kedge.by=hand",
        By::Revert => " kedge.by=revert",
    };
    config + by
}

fn arm_slot<S: BootList>(
    slots: &S,
    facts: &Facts,
    manifest: &Manifest,
    works: Works,
    notes: &str,
) -> Result<(), String> {
    let plan = admission::admit(facts, manifest)?;
    update::make_ready(slots, plan.running).map_err(|error| error.to_string())?;
    let mut steps = leave(facts, plan.other);
    steps.extend(plan.try_it(&demands(works), notes));
    steps::perform(slots, &steps, &mut io::empty())
}

/// Takes a slot from the boot loader's list.
fn leave(facts: &Facts, slot: &str) -> Vec<Step> {
    let names = list::of(&facts.entries, slot).into_iter().map(|(name, _)| name.clone());
    let begin = [Step::Settle, failed(slot)];
    begin.into_iter().chain(names.map(Step::Remove)).chain([Step::Settle]).collect()
}

fn disarm_slot<S: BootList>(slots: &S, facts: &Facts) -> Result<(), String> {
    let running = CommandLine::parse(&facts.command_line).slot.ok_or("no slot runs")?;
    if !facts.is_good(running) {
        return Err(format!("slot {running} is on trial, and the other one is its fallback"));
    }
    let other = if running == "a" { "b" } else { "a" };
    steps::perform(slots, &leave(facts, other), &mut io::empty())
}

fn block_of(efi: &Path, slot: &str) -> Option<Vec<u8>> {
    let block = fs::read(efi.join("kedge").join(slot).join(MANIFEST)).ok()?;
    (block.len() == MANIFEST_BYTES).then_some(block)
}

fn image_slots(facts: &Facts, efi: &Path) -> Option<Slots> {
    let line = CommandLine::parse(&facts.command_line);
    let running = line.slot.filter(|_| facts.has_variables)?;
    let word = |word: &str| Digest::parse(word.strip_prefix("kedge.update=")?);
    let booted = facts.command_line.split_whitespace().filter_map(word).next_back();
    // of a flashed image nothing is known while its list is unreadable
    if facts.entries.is_empty() && booted.is_none() {
        return None;
    }
    let other = if running == "a" { "b" } else { "a" };
    let mut runs = image_slot(facts, efi, running);
    runs.version.clone_from(&facts.version);
    // a flashed image has no manifest on the EFI partition: a name for it that stays
    let flashed = || Digest::of(format!("{} {}", facts.board, facts.version).as_bytes());
    runs.digest = booted.or(runs.digest).or_else(|| Some(flashed()));
    Some(Slots {
        kind: Kind::System,
        place: facts.board.clone(),
        running: runs,
        other: image_slot(facts, efi, other),
        // the command line is there even while the list is not
        is_on_trial: !(line.was_good || facts.is_good(running)),
    })
}

fn image_slot(facts: &Facts, efi: &Path, slot: &str) -> Slot {
    let block = block_of(efi, slot).unwrap_or_default();
    let text = String::from_utf8_lossy(&block);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    // a file that was lost since; the root is compared when it is written
    let is_whole = FILES.iter().all(|file| {
        let bytes = value(file).and_then(|value| value.split(' ').next()?.parse().ok());
        bytes.is_some() && bytes == facts.files.get(&format!("{slot}/{file}")).copied()
    });
    let entry = list::of(&facts.entries, slot).pop();
    let failed = fs::read_to_string(efi.join("kedge").join(slot).join(FAILED)).ok();
    let options = entry.map(|(_, text)| text.as_str()).unwrap_or_default();
    let has = |word: &str| options.split_whitespace().any(|found| found == word);
    Slot {
        digest: is_whole.then(|| Digest::of(&block)),
        version: value("version").unwrap_or_default().to_owned(),
        entry: entry.map_or(Entry::Absent, |(name, text)| entry_of(name, list::is_marked_good(text))),
        by: match () {
            () if has("kedge.by=hand") => By::Hand,
            () if has("kedge.by=revert") => By::Revert,
            () => By::Config,
        },
        failure: failed.map(|text| failure(&text)),
    }
}

/// By the boot loader's name of an entry: `kedge-b+2-1.conf` has two tries left.
fn entry_of(name: &str, is_good: bool) -> Entry {
    let Some((_, counts)) = name.trim_end_matches(".conf").split_once('+') else { return Entry::Uncounted };
    let left = counts.split('-').next().and_then(|left| left.parse().ok()).unwrap_or_default();
    Entry::Counted { left, is_good }
}

fn failure(text: &str) -> Failure {
    // the verdict; the lines of that boot follow it
    let is_silence = text.lines().next().is_some_and(|verdict| verdict.contains(" has no contact, "));
    Failure { is_silence, text: kedge_api::excerpt_of(text.trim(), FAILED_CHARS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_core::slot::keys::Trust;
    use kedge_platform::fake::{FakeDisk, FakeSlots};
    use kedge_platform::slots::LIST;

    /// A slot's manifest, with files of these sizes.
    fn block(version: &str) -> Vec<u8> {
        let mut block =
            format!("kedge-update 2\nboard toaster\nversion {version}\nvmlinuz 5 x\ninitrd 6 x\n")
                .into_bytes();
        block.resize(MANIFEST_BYTES, b'\n');
        block
    }

    /// Slot a runs; b has this entry, and files.
    fn slots(entry: Option<(&str, &str)>, files: &[(&str, &[u8])]) -> Slots {
        let scratch = kedge_rig::Scratch::new("slots").unwrap();
        for (name, content) in files {
            scratch.write(&format!("kedge/{name}"), content);
        }
        let size =
            |name: &str| Some((name.to_owned(), fs::metadata(scratch.join("kedge").join(name)).ok()?.len()));
        let names = ["a/vmlinuz", "a/initrd", "b/vmlinuz", "b/initrd"];
        let own = ("kedge-a+5.conf".to_owned(), "options root=PARTLABEL=root-a kedge.slot=good\n".to_owned());
        let entry = entry.map(|(name, text)| (name.to_owned(), format!("options {text}\n")));
        let facts = Facts {
            command_line: "root=PARTLABEL=root-a kedge.slot=good".to_owned(),
            has_variables: true,
            is_counted: true,
            entries: [own].into_iter().chain(entry).collect(),
            files: names.into_iter().filter_map(size).collect(),
            board: "toaster".to_owned(),
            version: "1".to_owned(),
            ..Facts::default()
        };
        image_slots(&facts, scratch.path()).unwrap()
    }

    #[test]
    fn slot_is_known_by_its_manifest_while_it_is_whole() {
        let block = block("2");
        let files: [(&str, &[u8]); 3] =
            [("b/manifest", &block), ("b/vmlinuz", b"12345"), ("b/initrd", b"123456")];
        let whole = slots(None, &files);
        assert_eq!((whole.place.as_str(), whole.kind, whole.is_on_trial), ("toaster", Kind::System, false));
        let flashed = Some(Digest::of(b"toaster 1"));
        assert_eq!((whole.running.digest, whole.running.version.as_str()), (flashed, "1"));
        let other = whole.other;
        assert_eq!((other.digest, other.version.as_str()), (Some(Digest::of(&block)), "2"));
        assert_eq!((other.entry, other.by, other.failure), (Entry::Absent, By::Config, None));
        for lost in 0..3 {
            let mut files = files.to_vec();
            files.remove(lost);
            assert_eq!(slots(None, &files).other.digest, None, "{lost}");
        }
        assert_eq!(slots(None, &[files[0], files[1], ("b/initrd", b"12345")]).other.digest, None);
    }

    #[test]
    fn entry_has_its_tries_and_its_author() {
        let check = |name: &str, text: &str, entry: Entry, by: By| {
            let other = slots(
                Some((name, text)),
                &[("b/failed", b"after 600 s this slot has no contact, which ...\n")],
            )
            .other;
            assert_eq!((other.entry, other.by), (entry, by), "{name}");
            assert!(other.failure.is_some_and(|failure| failure.is_silence));
        };
        let counted = |left, is_good| Entry::Counted { left, is_good };
        check("kedge-b.conf", "root=PARTLABEL=root-b", Entry::Uncounted, By::Config);
        check("kedge-b+3.conf", "x kedge.update=1 kedge.by=hand", counted(3, false), By::Hand);
        check("kedge-b+2-1.conf", "x kedge.by=revert", counted(2, false), By::Revert);
        check("kedge-b+0-3.conf", "x kedge.config=1", counted(0, false), By::Config);
        check("kedge-b+4-1.conf", "x kedge.slot=good", counted(4, true), By::Config);
    }

    #[test]
    fn unreadable_list_puts_no_good_slot_on_trial() {
        let digest = Digest::of(b"manifest");
        let check = |words: &str, expected: Option<(Option<Digest>, bool)>| {
            let facts = Facts {
                command_line: format!("root=PARTLABEL=root-a {words}"),
                has_variables: true,
                is_counted: true,
                ..Facts::default()
            };
            let slots = image_slots(&facts, Path::new("/nowhere"));
            assert_eq!(slots.map(|slots| (slots.running.digest, slots.is_on_trial)), expected, "{words}");
        };
        check("quiet", None);
        check(&format!("kedge.update={digest}"), Some((Some(digest), true)));
        check(&format!("kedge.update={digest} kedge.slot=good"), Some((Some(digest), false)));
    }

    #[test]
    fn verdict_about_more_than_contact_is_no_silence() {
        assert!(
            !failure("after 600 s this slot has no state and no contact, which the one before it had")
                .is_silence
        );
        assert!(!failure("the agent did not stay up for 15 s within 240 s").is_silence);
        assert!(failure("after 600 s this slot has no contact, which the one before it had").is_silence);
        let quoted = failure("the agent did not stay up for 15 s\nthe server has no contact, it said");
        assert!(!quoted.is_silence && quoted.text.ends_with("\nthe server has no contact, it said"));
        let longest = failure(&format!("why\n{}", "x".repeat(5000)));
        assert!(longest.text.len() < 900, "an Event takes it: {} bytes", longest.text.len());
    }

    #[test]
    fn refused_keys_do_not_end_an_update() {
        let scratch = kedge_rig::Scratch::new("take-keys").unwrap();
        let [root_dir, dynamic_config_dir, run_dir, preloaded_images] =
            ["root", "configs", "run", "images"].map(|name| scratch.join(name));
        let places = Places { root_dir, dynamic_config_dir, run_dir, preloaded_images };
        let roots = Roots { etc: scratch.join("etc"), ..Roots::default() };
        let machine = Machine { places, roots, efi: scratch.join("efi"), is_image: false };
        assert_eq!(machine.take_keys(b"no list of keys"), Ok(()));
    }

    /// A machine whose slot a runs, and slot b is an older good one whose last trial failed.
    fn machine() -> FakeSlots {
        let disk = FakeDisk::new();
        for slot in ["a", "b"] {
            disk.put(format!("kedge/{slot}/vmlinuz"), b"old");
            disk.put(format!("kedge/{slot}/initrd"), b"old");
            let text = format!(
                "title {slot}\nversion 7\noptions root=PARTLABEL=root-{slot} quiet kedge.slot=good\n"
            );
            disk.put(Path::new(LIST).join(format!("kedge-{slot}+5.conf")), text.as_bytes());
        }
        disk.put("kedge/b/failed", b"why");
        disk.put("dev/vda3", b"old root");
        FakeSlots::new(&disk)
    }

    fn facts_of(slots: &FakeSlots, is_counted: bool) -> Facts {
        let files = ["a/vmlinuz", "a/initrd", "b/vmlinuz", "b/initrd"];
        Facts {
            command_line: "root=PARTLABEL=root-a quiet".to_owned(),
            has_variables: true,
            is_counted,
            entries: slots.entries().unwrap(),
            files: files.map(|name| (name.to_owned(), 3)).into(),
            free_bytes: 1 << 20,
            roots: [("root-b".to_owned(), ("/dev/vda3".to_owned(), 1 << 20))].into(),
            is_own_efi: true,
            board: "toaster".to_owned(),
            version: "1".to_owned(),
        }
    }

    /// An update's manifest, its block, and its content.
    fn update() -> (Manifest, Vec<u8>, Vec<u8>) {
        let members = [("vmlinuz", &b"kernel"[..]), ("initrd", b"initramfs"), ("root", b"a root")];
        let mut text = "kedge-update 2\nboard toaster\nversion 2\noptions quiet\n".to_owned();
        for (key, content) in members {
            text.push_str(&format!("{key} {} {}\n", content.len(), Digest::of(content)));
        }
        let mut block = text.into_bytes();
        block.resize(MANIFEST_BYTES, b'\n');
        let (allows_older, below_floor) = (false, false);
        let terms =
            Terms { board: "toaster", running: "1", trust: &Trust::Unsigned, allows_older, below_floor };
        let manifest = manifest::verify(&block, None, &terms, &check).unwrap();
        (manifest, block, members.map(|(_, content)| content).concat())
    }

    fn list_of(slots: &FakeSlots) -> String {
        slots.entries().unwrap().into_keys().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn wanted_slot_is_written_armed_and_disarmed() {
        let slots = machine();
        let (manifest, block, content) = update();
        let plan = admission::admit(&facts_of(&slots, true), &manifest).unwrap();
        write_slot(&slots, &plan, &block, &mut &content[..]).unwrap();
        assert_eq!(list_of(&slots), "kedge-a.conf", "it is not in the list before it is armed");
        assert!(slots.disk.holds("dev/vda3", b"a root") && slots.disk.holds("kedge/b/manifest", &block));
        assert!(slots.disk.content("kedge/b/failed").is_none(), "that was another system's");
        let config = Digest::of(b"payload");
        let contact = Works::from_iter([Work::Contact]);
        arm_slot(&slots, &facts_of(&slots, false), &manifest, contact, &notes(By::Config, Some(config)))
            .unwrap();
        assert_eq!(list_of(&slots), "kedge-a.conf kedge-b+3.conf");
        let text = slots.entries().unwrap().remove("kedge-b+3.conf").unwrap();
        let words = format!(
            "root=PARTLABEL=root-b quiet kedge.demands=state,contact kedge.update={} kedge.config={config}\n",
            manifest.digest
        );
        assert!(text.ends_with(&words), "{text}, expected {words}");
        disarm_slot(&slots, &facts_of(&slots, false)).unwrap();
        assert_eq!(list_of(&slots), "kedge-a.conf");
        assert!(slots.disk.holds("dev/vda3", b"a root"), "the slot itself stays");
    }

    #[test]
    fn way_back_takes_the_place_of_the_good_entry() {
        let slots = machine();
        let (manifest, ..) = update();
        let facts = facts_of(&slots, true);
        arm_slot(&slots, &facts, &manifest, Works::new(), &notes(By::Revert, None)).unwrap();
        assert_eq!(list_of(&slots), "kedge-a+5.conf kedge-b+3.conf");
        let text = slots.entries().unwrap().remove("kedge-b+3.conf").unwrap();
        assert!(text.contains(" kedge.by=revert\n") && text.contains("\nversion 8\n"), "{text}");
    }

    #[test]
    fn fallback_of_a_trial_stays_in_the_list() {
        let slots = machine();
        let mut facts = facts_of(&slots, true);
        let text = "options root=PARTLABEL=root-a quiet\n".to_owned();
        facts.entries.remove("kedge-a+5.conf");
        facts.entries.insert("kedge-a+2-1.conf".to_owned(), text);
        assert!(disarm_slot(&slots, &facts).unwrap_err().contains("on trial"));
        assert!(arm_slot(&slots, &facts, &update().0, Works::new(), "").unwrap_err().contains("on trial"));
        assert_eq!(list_of(&slots), "kedge-a+5.conf kedge-b+5.conf");
    }
}
