//! `kedge slot bless`, for `systemd-bless-boot.service`: this boot is good, and its slot gets its tries back.
//!
//! Always holds: a healthy node keeps its slot. A kernel that meets an error in the EFI partition makes it
//! read-only, while the firmware keeps counting: five boots later the node would fall back to an older image.
//! So the partition is made writable again, then repaired; and if nothing helps, the firmware is set to boot
//! this slot once more, whatever the counts. Each good boot does that again; a failing slot uses up that one
//! start, and then the counts decide. Leaves to others: when a boot is good (`health`), and what changes on
//! the partition (`kedge_core::slot::list`).

use super::keys::{self, Sources};
use super::steps;
use crate::options::Places;
use crate::output::CommandError;
use crate::slot::host::{LOCK, read, say};
use kedge_core::slot::{CommandLine, list};
use kedge_platform::linux::Roots;
use kedge_platform::linux::slots::{EFI, LinuxSlots, lock};
use kedge_platform::slots::{Cure, Slots};
use std::io;
use std::path::Path;

/// The remedies, in the order in which they are tried.
const CURES: [Option<Cure>; 3] = [None, Some(Cure::Remount), Some(Cure::Repair)];

/// Marks the running slot as good.
///
/// # Errors
/// The slot did not get its tries back; the text says whether it will be started all the same.
pub fn bless(places: &Places) -> Result<(), CommandError> {
    let roots = Roots::default();
    let line = CommandLine::parse(&read(&roots.proc.join("cmdline")));
    let slot = line.slot.ok_or_else(|| CommandError::new("the kernel's command line names no slot"))?;
    let failed = |error| CommandError::new(format_args!("cannot lock {LOCK}: {error}"));
    let _lock = lock(Path::new(LOCK), true).map_err(failed)?;
    let slots = LinuxSlots::new(&roots, EFI);
    say(call_good(&slots, slot)?);
    if line.was_good {
        let sources = Sources::of_image(&roots, Path::new(EFI), &places.root_dir);
        keep_list(&slots, &sources, &places.root_dir).unwrap_or_else(say);
    }
    Ok(())
}

/// Keeps the list of keys of an image that was good before, so that it counts in the older one, too. An agent
/// whose configuration names its system does that when it promotes it.
fn keep_list<S: Slots>(slots: &S, sources: &Sources, root_dir: &Path) -> Result<(), String> {
    match sources.not_kept()? {
        Some(list) => keys::keep(Some(slots), root_dir, &list),
        None => Ok(()),
    }
}

fn call_good<S: Slots>(slots: &S, slot: &str) -> Result<String, CommandError> {
    for cure in CURES {
        match cured(slots, cure).and_then(|()| give_tries(slots, slot)) {
            Ok(()) => {
                forget_one_start(slots);
                return Ok(format!("slot {slot} is good: it may fail {} starts in a row", list::GOOD_TRIES));
            }
            Err(why) => say(why),
        }
    }
    // not again by each retry of the unit: firmware keeps variables in flash
    if !slots.has_one_start() {
        slots.set_one_start(&list::any_of(slot)).map_err(|error| {
            let what = "neither the EFI partition nor the firmware's variables can be written";
            CommandError::new(format_args!("{what} ({error}): slot {slot} runs out of tries"))
        })?;
    }
    let what = "the EFI partition cannot be written";
    Err(CommandError::new(format_args!(
        "{what}, so slot {slot} gets no tries back; the boot loader will start it once more all the same"
    )))
}

fn cured<S: Slots>(slots: &S, cure: Option<Cure>) -> Result<(), String> {
    let Some(cure) = cure else { return Ok(()) };
    let what = match cure {
        Cure::Remount => "making the EFI partition writable",
        Cure::Repair => "repairing the EFI partition",
    };
    say(what);
    slots.cure(cure).map_err(|error| format!("{what}: {error}"))
}

fn give_tries<S: Slots>(slots: &S, slot: &str) -> Result<(), String> {
    let entries = slots.entries().map_err(|error| format!("cannot read the boot loader's list: {error}"))?;
    steps::perform(slots, &list::blessing(&entries, slot)?, &mut io::empty())
}

/// Clears the one-time boot entry: left set, it would boot before an update that is written later. An update
/// clears it too.
fn forget_one_start<S: Slots>(slots: &S) {
    if slots.has_one_start()
        && let Err(error) = slots.set_one_start("")
    {
        say(format_args!("the firmware does not forget the one start that was asked for: {error}"));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{disk, entry, list};
    use super::*;
    use kedge_platform::fake::{FakeDisk, FakeSlots, Loss};

    const SEEDS: u64 = 8;
    const BLESSED: &str = "kedge-a+5.conf kedge-b.conf";
    const GOOD: &str = "title A\noptions root=PARTLABEL=root-a quiet kedge.slot=good\n";
    /// Boot entries at the time of a good boot.
    const FOUND: [(&str, &str); 4] = [
        (
            "kedge-a+2-1.conf",
            "title A\noptions root=PARTLABEL=root-a quiet kedge.demands=state,contact kedge.demands-secs=60\n",
        ),
        ("kedge-a+2-1.conf", "title A\noptions root=PARTLABEL=root-a quiet\n"),
        ("kedge-a+4-1.conf", GOOD),
        ("kedge-a+5.conf", GOOD),
    ];

    fn found((name, text): (&str, &str)) -> FakeSlots {
        let disk = disk();
        disk.remove(entry("kedge-a.conf"));
        disk.put(entry(name), text.as_bytes());
        FakeSlots::new(&disk)
    }

    #[track_caller]
    fn is_blessed(slots: &FakeSlots, when: &str) {
        assert_eq!(list(&slots.disk), BLESSED, "{when}");
        assert!(slots.disk.holds(entry("kedge-a+5.conf"), GOOD.as_bytes()), "{when}");
    }

    pub(in crate::slot) fn bless_it(slots: &FakeSlots, slot: &str) -> Result<String, String> {
        call_good(slots, slot).map_err(|error| error.to_string())
    }

    #[test]
    fn good_boot_gives_the_slot_its_tries_back() {
        for entry in FOUND {
            let slots = found(entry);
            bless_it(&slots, "a").unwrap();
            is_blessed(&slots, entry.0);
        }
    }

    /// The disks in a wrong state after a cut at each operation of a blessing.
    fn cuts(sabotage: fn(&FakeDisk)) -> Vec<String> {
        let mut wrong = Vec::new();
        for entry in FOUND {
            let whole = found(entry);
            bless_it(&whole, "a").unwrap();
            for (cut, loss) in
                (0..=whole.disk.operations()).flat_map(|cut| Loss::all(SEEDS).map(move |loss| (cut, loss)))
            {
                let slots = found(entry);
                sabotage(&slots.disk);
                slots.disk.cut_power_after(cut);
                let done = bless_it(&slots, "a");
                slots.disk.cut_power();
                slots.disk.reboot(loss);
                slots.disk.heal();
                let entries = slots.entries().unwrap();
                let own = list::of(&entries, "a");
                let is_whole = |text: &str| {
                    text.contains("\noptions root=PARTLABEL=root-a quiet") && text.ends_with('\n')
                };
                // the boot loader skips an empty entry
                let mut left = own.iter().filter(|(_, text)| !text.is_empty()).peekable();
                if left.peek().is_none() || !left.all(|(_, text)| is_whole(text)) {
                    wrong.push(format!("{}: cut {cut}, {loss:?}: {own:?}", entry.0));
                    continue;
                }
                if done.is_ok() && list(&slots.disk) != BLESSED {
                    wrong.push(format!("{}: cut {cut}, {loss:?}: acknowledged and lost", entry.0));
                }
                bless_it(&slots, "a").unwrap();
                is_blessed(&slots, &format!("after cut {cut}, {loss:?}"));
            }
        }
        wrong
    }

    #[test]
    fn power_cut_leaves_an_entry_that_boots() {
        assert_eq!(cuts(|_| {}), [""; 0]);
    }

    #[test]
    fn checker_notices_missing_flushes() {
        assert!(!cuts(|disk| disk.ignore_sync(true)).is_empty(), "content without flushes");
        assert!(!cuts(|disk| disk.ignore_sync_directory(true)).is_empty(), "names without flushes");
    }

    #[test]
    fn read_only_partition_is_cured() {
        for entry in FOUND {
            for cure in [Cure::Remount, Cure::Repair] {
                let slots = found(entry);
                slots.make_read_only(Some(cure));
                bless_it(&slots, "a").unwrap();
                is_blessed(&slots, entry.0);
                assert_eq!(slots.one_start(), (None, 0));
            }
        }
    }

    #[test]
    fn incurable_partition_costs_no_slot() {
        let slots = found(FOUND[2]);
        slots.make_read_only(None);
        for _ in 0..2 {
            let why = bless_it(&slots, "a").unwrap_err();
            assert!(why.ends_with("start it once more all the same"), "{why}");
            assert_eq!(slots.one_start(), (Some("kedge-a*".to_owned()), 1), "written once");
        }
        slots.make_read_only(Some(Cure::Repair));
        bless_it(&slots, "a").unwrap();
        assert_eq!(slots.one_start().0, None, "a blessed slot keeps no start of its own");
    }

    #[test]
    fn nothing_to_write_to_is_reported() {
        let slots = found(FOUND[0]);
        slots.make_read_only(None);
        slots.fill_firmware();
        let why = bless_it(&slots, "a").unwrap_err();
        assert!(why.ends_with("slot a runs out of tries"), "{why}");
    }

    #[test]
    fn lost_entry_asks_for_one_start() {
        let slots = found(("kedge-a+5.conf", ""));
        assert!(bless_it(&slots, "a").is_err());
        assert_eq!(slots.one_start().0.as_deref(), Some("kedge-a*"));
    }
}
