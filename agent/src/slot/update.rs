//! `kedge slot update`: writes an update into the slot that does not run, and makes the boot loader try it.
//!
//! Always holds: a power cut at any moment leaves a machine that boots the same slot as before; a refusal
//! because of the manifest, its signature, or a lack of room has changed nothing. One update or blessing at a
//! time. Leaves to others: whether and where (`kedge_core::slot::admission`), in which order (`list`), the
//! writing itself (`steps`).

use super::admission::facts;
use super::keys::Sources;
use super::signature::check;
use super::steps;
use crate::options::{Places, UpdateOptions};
use crate::output::CommandError;
use crate::slot::host::{self, LOCK, inspect, say, status};
use kedge_core::slot::admission::{self, Facts};
use kedge_core::slot::keys::Trust;
use kedge_core::slot::manifest::{self, MANIFEST_BYTES, Terms};
use kedge_core::slot::{Works, demands, words};
use kedge_platform::linux::slots::{EFI, LinuxSlots, lock};
use kedge_platform::linux::{Roots, is_root};
use kedge_platform::slots::Slots;
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

/// In the entry of a slot that a person has written.
const BY_HAND: &str = " kedge.by=hand";

/// `kedge slot update`.
///
/// # Errors
/// The update is refused, damaged, or cannot be written; or another one is under way.
pub fn update(places: &Places, options: &UpdateOptions) -> Result<(), CommandError> {
    let UpdateOptions { file, reboots, allows_older, again } = options;
    if !is_root() {
        return Err(unchanged("an update needs root"));
    }
    let _lock = lock(Path::new(LOCK), false).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => unchanged("another update is under way"),
        _ => unchanged(format_args!("cannot lock {LOCK}: {error}")),
    })?;
    let (mut update, length) =
        open(file).map_err(|error| unchanged(format_args!("cannot open {file}: {error}")))?;
    let roots = Roots::default();
    let trust = Sources::of_image(&roots, Path::new(EFI), &places.root_dir).trust().map_err(unchanged)?;
    let slots = LinuxSlots::new(&roots, EFI);
    let facts = facts(&roots, Path::new(EFI), Path::new("/"));
    let works = || inspect(&roots, status(places).as_ref());
    let mut block = Vec::new();
    let read = update.by_ref().take(MANIFEST_BYTES as u64).read_to_end(&mut block);
    read.map_err(|error| unchanged(format_args!("cannot read the update: {error}")))?;
    if !again {
        is_free(&places.root_dir.join("system"), &manifest::digest_of(&block)).map_err(unchanged)?;
    }
    let update = &mut block.as_slice().chain(update);
    say(write(&slots, &facts, &trust, update, length, *allows_older, works)?);
    match *reboots {
        true => Command::new("systemctl").arg("reboot").status().map(drop).map_err(CommandError::new),
        false => Ok(()),
    }
}

fn unchanged(why: impl std::fmt::Display) -> CommandError {
    CommandError::new(format_args!("{why}; nothing was changed"))
}

/// The update, and its length if that is known.
fn open(file: &str) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    if file == "-" {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let file = File::open(file)?;
    let metadata = file.metadata()?;
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

/// Whether a person may write the system with this digest, by the records of the agent: it has not failed
/// here, and no configuration is bringing another one.
fn is_free(records: &Path, digest: &str) -> Result<(), String> {
    let record =
        |name| -> Value { serde_json::from_str(&host::read(&records.join(name))).unwrap_or_default() };
    let is = |value: &Value| value["digest"].as_str().is_some_and(|named| named.ends_with(digest));
    let (bad, wanted) = (record("bad"), record("wanted"));
    let under_way = ["Fetching", "Held", "Written", "Armed", "Reverting"];
    let anyway = "--again takes it all the same";
    match () {
        () if bad["systems"].as_array().is_some_and(|systems| systems.iter().any(is)) => {
            Err(format!("this update was tried here before, and failed; {anyway}"))
        }
        () if under_way.iter().any(|state| wanted["state"] == *state) && !is(&wanted) => {
            let version = wanted["version"].as_str().unwrap_or_default();
            Err(format!("the configuration is bringing version {version}; {anyway}"))
        }
        () => Ok(()),
    }
}

/// Writes an admitted update, and returns the text to print then. The functions that work in this image must
/// work in the update; they are checked before the writing and after it, because writing the root may keep
/// the disk too busy for a heartbeat.
pub(super) fn write<S: Slots>(
    slots: &S,
    facts: &Facts,
    trust: &Trust,
    update: &mut impl Read,
    length: Option<u64>,
    allows_older: bool,
    mut works: impl FnMut() -> Works,
) -> Result<String, CommandError> {
    let mut manifest = Vec::new();
    let read = update.by_ref().take(MANIFEST_BYTES as u64).read_to_end(&mut manifest);
    read.map_err(|error| unchanged(format_args!("cannot read the update: {error}")))?;
    let Facts { board, version, .. } = facts;
    let terms = Terms { board, running: version, trust, allows_older, below_floor: false };
    let verified = manifest::verify(&manifest, None, &terms, &check);
    let verified = verified.map_err(|refusal| unchanged(refusal.text))?;
    if let Some(name) = &verified.signer {
        say(format_args!("the update is signed by the key {name}"));
    }
    let plan = admission::admit(facts, &verified).map_err(unchanged)?;
    let (running, other, expected) = (plan.running, plan.other, plan.bytes());
    if let Some(found) = length.filter(|found| *found < expected) {
        return Err(unchanged(format_args!(
            "the update is damaged: it has {found} bytes, expected {expected}"
        )));
    }
    make_ready(slots, running)?;
    say(format_args!("{} into slot {other}", plan.version));
    let mut all = works();
    let failed = |why: String| {
        CommandError::new(format_args!("{why}; slot {other} may be empty now, slot {running} is unchanged"))
    };
    steps::perform(slots, &plan.write(&manifest), update).map_err(failed)?;
    all.extend(works());
    let demands = demands(all);
    steps::perform(slots, &plan.try_it(&demands, BY_HAND), update).map_err(failed)?;
    Ok(format!(
        "slot {other} is complete and will be tried at the next boot, slot {running} is its fallback; its trial demands: {}",
        words(&demands, ",")
    ))
}

/// Checks that the EFI partition can be written, before anything on it is removed. Also clears the one-time
/// boot entry of a slot that could not be blessed: it would boot before the update.
pub(crate) fn make_ready<S: Slots>(slots: &S, running: &str) -> Result<(), CommandError> {
    let cure = "systemctl restart systemd-bless-boot repairs it if that is possible";
    slots
        .create(Path::new(steps::NEW))
        .map_err(|error| unchanged(format_args!("the EFI partition cannot be written ({error}); {cure}")))?;
    if slots.has_one_start() {
        let why = "and the firmware does not forget it: the update would not be tried";
        slots.set_one_start("").map_err(|error| {
            unchanged(format_args!("slot {running} was given one start more, {why} ({error})"))
        })?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{disk, entry, list};
    use super::*;
    use kedge_core::slot::parse;
    use kedge_platform::fake::{FakeDisk, FakeSlots, Loss};
    use kedge_platform::slots::Cure;
    use sha2::{Digest, Sha256};
    use std::collections::BTreeMap;

    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
    /// Losses by chance tried at each cut.
    const SEEDS: u64 = 8;
    const KEYS: [&str; 4] = ["index", "vmlinuz", "initrd", "root"];
    /// Where the parts of slot b lie.
    pub(in crate::slot) const PLACES: [&str; 4] =
        ["kedge/b/index", "kedge/b/vmlinuz", "kedge/b/initrd", "dev/vda3"];

    pub(in crate::slot) fn part(which: usize) -> Vec<u8> {
        (0..1500 + 700 * which).map(|index| (index * 31 + which * 7 + index / 512) as u8).collect()
    }

    pub(in crate::slot) fn bytes() -> Vec<u8> {
        let mut bytes = b"kedge-update 2\nboard toaster\nversion new\noptions quiet\n".to_vec();
        for (which, key) in KEYS.into_iter().enumerate() {
            let part = part(which);
            let digest: String = Sha256::digest(&part).iter().map(|byte| format!("{byte:02X}")).collect();
            bytes.extend(format!("{key} {} {digest}\n", part.len()).into_bytes());
        }
        bytes.resize(MANIFEST_BYTES, b'\n');
        (0..4).for_each(|which| bytes.extend(part(which)));
        bytes
    }

    fn facts_of(slots: &FakeSlots) -> Facts {
        let files = ["a/vmlinuz", "a/initrd", "b/vmlinuz", "b/initrd"];
        Facts {
            command_line: "root=PARTLABEL=root-a quiet".to_owned(),
            has_variables: true,
            is_counted: false,
            entries: slots.entries().unwrap(),
            files: files.map(|name| (name.to_owned(), 10)).into(),
            free_bytes: 1 << 20,
            roots: [("root-b".to_owned(), ("/dev/vda3".to_owned(), 1 << 20))].into(),
            is_own_efi: true,
            board: "toaster".to_owned(),
            version: "new".to_owned(),
        }
    }

    fn takes(slots: &FakeSlots, update: &[u8], length: Option<u64>) -> Result<String, String> {
        // the state works before the root is written, contact after it
        let mut works = ["state", "contact"].into_iter().map(parse);
        let update = &mut &update[..];
        let trust = Trust::Unsigned;
        let done = write(slots, &facts_of(slots), &trust, update, length, false, || works.next().unwrap());
        done.map_err(|error| error.to_string())
    }

    /// Checks that everything a boot loader would find is whole: slot a as it was, and the parts of slot b
    /// that have an entry. It skips an empty entry.
    fn judge(disk: &FakeDisk) -> Result<(), String> {
        let is_old = |slot: &str| {
            ["vmlinuz", "initrd"].iter().all(|name| disk.holds(format!("kedge/{slot}/{name}"), b"old"))
                && disk
                    .content(entry(&format!("kedge-{slot}.conf")))
                    .is_some_and(|text| text.ends_with(b" quiet\n"))
        };
        let is_new = || {
            let text = disk.content(entry("kedge-b+3.conf")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let places = PLACES.into_iter().enumerate();
            text.contains("\nversion 8\n")
                && text.contains(
                    "\noptions root=PARTLABEL=root-b quiet kedge.demands=state,contact kedge.update=",
                )
                && text.ends_with(" kedge.by=hand\n")
                && disk.holds("kedge/b/manifest", &bytes()[..MANIFEST_BYTES])
                && places.into_iter().all(|(which, place)| disk.holds(place, &part(which)))
        };
        let list = list(disk);
        let has = |name: &str| list.split(' ').any(|entry| entry == name);
        match () {
            () if !is_old("a") => Err(format!("slot a is damaged: {list}")),
            () if has("kedge-b.conf") && !(is_old("b") && disk.holds("dev/vda3", b"old root")) => {
                Err("the old entry is on a new slot".to_owned())
            }
            () if has("kedge-b+3.conf") && !disk.holds(entry("kedge-b+3.conf"), b"") && !is_new() => {
                Err("the new entry is without its files".to_owned())
            }
            () => Ok(()),
        }
    }

    /// The disks in a wrong state after a cut at each operation, until there are `enough`; and how many disks
    /// were checked.
    fn cuts(sabotage: fn(&FakeDisk), enough: usize) -> (Vec<String>, usize) {
        let whole = disk();
        sabotage(&whole);
        takes(&FakeSlots::new(&whole), &bytes(), None).unwrap();
        let (mut wrong, mut all) = (Vec::new(), 0);
        // one more than there are operations: a cut at rest
        for cut in 0..=whole.operations() {
            for loss in Loss::all(SEEDS) {
                if wrong.len() >= enough {
                    return (wrong, all);
                }
                all += 1;
                let disk = disk();
                sabotage(&disk);
                disk.cut_power_after(cut);
                let done = takes(&FakeSlots::new(&disk), &bytes(), None);
                disk.cut_power();
                disk.reboot(loss);
                disk.heal();
                let is_kept = done.is_err() || list(&disk) == "kedge-a.conf kedge-b+3.conf";
                let kept =
                    if is_kept { Ok(()) } else { Err(format!("acknowledged and lost: {}", list(&disk))) };
                if let Err(why) = judge(&disk).and(kept) {
                    wrong.push(format!("cut {cut}, {loss:?}: {why}"));
                }
                if loss == Loss::Chance(0) {
                    takes(&FakeSlots::new(&disk), &bytes(), None).expect("the next try works");
                }
            }
        }
        (wrong, all)
    }

    #[test]
    fn power_cut_leaves_whole_slots() {
        let (wrong, all) = cuts(|_| {}, usize::MAX);
        assert_eq!(wrong, [""; 0], "of {all}");
        assert!(all > 250, "only {all} disks: too little was done");
    }

    #[test]
    fn checker_notices_missing_flushes() {
        assert!(!cuts(|disk| disk.ignore_sync(true), 1).0.is_empty(), "content without flushes");
        assert!(!cuts(|disk| disk.ignore_sync_directory(true), 1).0.is_empty(), "names without flushes");
    }

    #[test]
    fn update_is_written_and_entered() {
        let disk = disk();
        let slots = FakeSlots::new(&disk);
        slots.set_one_start("kedge-a*").unwrap();
        let done = takes(&slots, &bytes(), Some(bytes().len() as u64)).unwrap();
        assert!(done.contains("slot b is complete") && done.ends_with("demands: state,contact"), "{done}");
        assert_eq!(list(&disk), "kedge-a.conf kedge-b+3.conf");
        judge(&disk).unwrap();
        assert_eq!(slots.one_start().0, None, "another slot goes before the update");
    }

    #[test]
    fn failed_operation_ends_the_update() {
        let healthy = disk();
        takes(&FakeSlots::new(&healthy), &bytes(), None).unwrap();
        for (errno, operation) in
            [EIO, ENOSPC].into_iter().flat_map(|errno| (0..healthy.operations()).map(move |at| (errno, at)))
        {
            let disk = disk();
            disk.fail_after(operation, errno);
            let done = takes(&FakeSlots::new(&disk), &bytes(), None);
            let why = done.expect_err("an operation failed");
            judge(&disk).unwrap_or_else(|wrong| panic!("operation {operation}: {why}: {wrong}"));
            assert!(why.contains("nothing was changed") || why.contains("slot b may be empty now"), "{why}");
        }
    }

    #[track_caller]
    fn check_damage(change: impl FnOnce(&mut Vec<u8>), expected: &str) {
        let (disk, mut update) = (disk(), bytes());
        change(&mut update);
        let why = takes(&FakeSlots::new(&disk), &update, None).unwrap_err();
        assert!(why.starts_with(expected), "{why}, expected {expected}");
        assert_eq!(list(&disk), "kedge-a.conf", "{why}");
        judge(&disk).unwrap();
    }

    #[test]
    fn damaged_update_empties_only_the_other_slot() {
        let at = |part: usize| {
            move |update: &mut Vec<u8>| update[MANIFEST_BYTES + [1500, 3700, 6600][part] + 9] ^= 1
        };
        check_damage(at(0), "vmlinuz is damaged, in the update or on the disk; slot b may be empty now");
        check_damage(at(1), "initrd is damaged");
        check_damage(at(2), "root is damaged");
        check_damage(
            |update| update.truncate(MANIFEST_BYTES + 3800),
            "initrd is damaged: the update ends 2800 bytes",
        );
    }

    #[test]
    fn disk_that_alters_a_byte_is_noticed() {
        let disk = disk();
        disk.flip_a_bit_next();
        let why = takes(&FakeSlots::new(&disk), &bytes(), None).unwrap_err();
        assert!(why.starts_with("index is damaged"), "{why}");
        assert_eq!(list(&disk), "kedge-a.conf");
    }

    #[track_caller]
    fn check_refused(prepare: impl FnOnce(&FakeSlots), update: &[u8], length: Option<u64>, expected: &str) {
        let disk = disk();
        let slots = FakeSlots::new(&disk);
        prepare(&slots);
        let why = takes(&slots, update, length).unwrap_err();
        assert!(
            why.contains(expected) && why.ends_with("; nothing was changed"),
            "{why}, expected {expected}"
        );
        assert_eq!(list(&disk), "kedge-a.conf kedge-b.conf");
        judge(&disk).unwrap();
    }

    #[test]
    fn refused_update_changes_nothing() {
        let short = bytes().len() as u64 - 1;
        check_refused(|_| {}, b"nonsense", None, "is no update");
        check_refused(
            |_| {},
            &bytes(),
            Some(short),
            "the update is damaged: it has 14295 bytes, expected 14296",
        );
        check_refused(
            |slots| slots.make_read_only(Some(Cure::Remount)),
            &bytes(),
            None,
            "the EFI partition cannot be written (",
        );
        let older = bytes().iter().map(|byte| *byte as char).collect::<String>();
        let older: Vec<u8> =
            older.replacen("version new", "version ne~", 1).chars().map(|char| char as u8).collect();
        check_refused(|_| {}, &older, None, "which is older than new, which runs; --allow-older");
        let in_the_way = |slots: &FakeSlots| slots.disk.put_kind(steps::NEW, kedge_platform::Kind::Directory);
        check_refused(in_the_way, &bytes(), None, "the EFI partition cannot be written (");
        let stubborn = |slots: &FakeSlots| {
            slots.set_one_start("kedge-a*").unwrap();
            slots.fill_firmware();
        };
        check_refused(stubborn, &bytes(), None, "the firmware does not forget it");
    }

    #[test]
    fn failed_update_is_taken_again_only_if_asked() {
        let scratch = kedge_rig::Scratch::in_memory("records").unwrap();
        let check = |file: &str, record: &str, expected: &str| {
            scratch.write(file, record);
            let found = is_free(scratch.path(), "5b1e").map_or_else(|why| why, |()| String::new());
            assert!(
                found.starts_with(expected) && found.is_empty() == expected.is_empty(),
                "{record}: {found}"
            );
        };
        assert_eq!(is_free(scratch.path(), "5b1e"), Ok(()));
        check("bad", "{\"systems\": [{\"digest\": \"7f3c\"}]}", "");
        check(
            "bad",
            "{\"systems\": [{\"digest\": \"7f3c\"}, {\"digest\": \"5b1e\"}]}",
            "this update was tried here",
        );
        check("bad", "damaged", "");
        check("wanted", "{\"digest\": \"5b1e\", \"state\": \"Fetching\"}", "");
        check("wanted", "{\"digest\": \"7f3c\", \"state\": \"Promoted\"}", "");
        let under_way = "{\"digest\": \"7f3c\", \"state\": \"Held\", \"version\": \"1.4\"}";
        check("wanted", under_way, "the configuration is bringing version 1.4; --again");
    }

    #[test]
    fn state_is_demanded_even_if_it_was_in_memory() {
        let disk = disk();
        let slots = FakeSlots::new(&disk);
        let (facts, update) = (facts_of(&slots), bytes());
        let done =
            write(&slots, &facts, &Trust::Unsigned, &mut &update[..], None, false, Works::new).unwrap();
        assert!(done.ends_with("its trial demands: state"), "{done}");
        let entry = disk.content(entry("kedge-b+3.conf")).unwrap();
        let entry = String::from_utf8_lossy(&entry);
        assert!(entry.contains(" kedge.demands=state kedge.update="), "{entry}");
    }

    #[test]
    fn update_may_arrive_in_small_pieces() {
        struct Pieces<'a>(&'a [u8]);
        impl Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let most = buffer.len().min(100);
                self.0.read(&mut buffer[..most])
            }
        }
        let disk = disk();
        let slots = FakeSlots::new(&disk);
        let update = bytes();
        write(&slots, &facts_of(&slots), &Trust::Unsigned, &mut Pieces(&update), None, false, || {
            parse("state,contact")
        })
        .unwrap();
        judge(&disk).unwrap();
        assert_eq!(list(&disk), "kedge-a.conf kedge-b+3.conf");
        let shown: BTreeMap<_, _> = slots.entries().unwrap();
        assert_eq!(shown.len(), 2);
    }
}
