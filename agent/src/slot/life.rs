//! The life of a disk with two slots, cut at every operation: updates, blessings, and the boot loader, which
//! renames the entries that it counts.
//!
//! Always holds: the boot loader finds an entry, and its kernel and root are whole, to the last byte; also
//! when the power goes a second time while it counts.

use super::bless::tests::bless_it;
use super::tests::entry;
use super::update::tests::{PLACES, bytes, part};
use super::update::write;
use kedge_core::slot::admission::Facts;
use kedge_core::slot::keys::Trust;
use kedge_core::slot::{Works, list};
use kedge_platform::fake::{FakeDisk, FakeSlots, Loss};
use kedge_platform::files::Operations;
use kedge_platform::slots::Slots;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

/// Losses by chance tried at each cut, and again at each cut after it.
const SEEDS: u64 = 3;

/// A disk as it is flashed: slot a, and nothing else.
fn flashed() -> FakeSlots {
    let disk = FakeDisk::new();
    disk.put("kedge/a/vmlinuz", b"old");
    disk.put("kedge/a/initrd", b"old");
    disk.put("dev/vda2", b"old root");
    disk.put("dev/vda3", b"");
    disk.put(entry("kedge-a.conf"), b"title A\nversion 1\noptions root=PARTLABEL=root-a quiet\n");
    FakeSlots::new(&disk)
}

/// The entry that systemd-boot starts, its slot, and the tries that it has left and used up.
struct Started {
    name: String,
    slot: &'static str,
    counted: Option<(u32, u32)>,
}

fn counts(name: &str) -> Option<(u32, u32)> {
    let (_, counts) = name.strip_suffix(".conf")?.split_once('+')?;
    let (left, done) = counts.split_once('-').unwrap_or((counts, "0"));
    Some((left.parse().ok()?, done.parse().ok()?))
}

/// The best of the entries whose files exist: those with tries before the others, then the highest version.
fn started(slots: &FakeSlots) -> Option<Started> {
    let entries = slots.entries().ok()?.into_iter();
    let whole = entries.filter(|(_, text)| text.contains("\noptions root="));
    let rank = |(name, text): &(String, String)| {
        let version = text.lines().find_map(|line| line.strip_prefix("version ")?.parse::<u64>().ok());
        (counts(name).is_some_and(|(left, _)| left == 0), Reverse(version), name.clone())
    };
    let (name, _) = whole.min_by_key(rank)?;
    let slot = if name.starts_with("kedge-a") { "a" } else { "b" };
    Some(Started { slot, counted: counts(&name), name })
}

/// The boot loader's part of a boot: a counted entry gets its next name, and the firmware writes everything
/// back.
fn load(slots: &FakeSlots) -> Option<Started> {
    let mut started = started(slots)?;
    if let Some((left @ 1.., done)) = started.counted {
        let name = format!("kedge-{}+{}-{}.conf", started.slot, left - 1, done + 1);
        slots.disk.rename(&entry(&started.name), &entry(&name)).ok()?;
        slots.settle().ok()?;
        started.name = name;
    }
    Some(started)
}

/// Whether a slot has the flashed content, or the written one, and no mixture.
fn is_whole(slots: &FakeSlots, slot: &str) -> bool {
    let places = PLACES.map(|place| match slot {
        "a" => place.replace("/b/", "/a/").replace("vda3", "vda2"),
        _ => place.to_owned(),
    });
    let holds = |which: usize, content: &[u8]| slots.disk.holds(&places[which], content);
    let is_old = holds(1, b"old") && holds(2, b"old") && holds(3, b"old root");
    is_old || (0..4).all(|which| holds(which, &part(which)))
}

fn update(slots: &FakeSlots, running: &Started) -> Result<(), String> {
    let files = ["a/vmlinuz", "a/initrd", "b/vmlinuz", "b/initrd"];
    let root = |slot: &str, device: &str| (format!("root-{slot}"), (device.to_owned(), 1 << 20));
    let facts = Facts {
        command_line: format!("root=PARTLABEL=root-{} quiet", running.slot),
        has_variables: true,
        is_counted: running.counted.is_some(),
        entries: slots.entries().map_err(|error| error.to_string())?,
        files: files.map(|name| (name.to_owned(), 10)).into(),
        free_bytes: 1 << 20,
        roots: BTreeMap::from([root("a", "/dev/vda2"), root("b", "/dev/vda3")]),
        is_own_efi: true,
        board: "toaster".to_owned(),
        version: "new".to_owned(),
    };
    write(slots, &facts, &Trust::Unsigned, &mut &bytes()[..], None, false, Works::new)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// A good boot, and perhaps an update in it. `None` if the power went.
fn boot(slots: &FakeSlots, updates: bool) -> Option<Started> {
    let running = load(slots)?;
    if running.counted.is_some() {
        bless_it(slots, running.slot).ok()?;
    }
    if updates {
        update(slots, &running).ok()?;
    }
    Some(running)
}

/// Two updates, each followed by two boots. `None` if the power went.
fn life(slots: &FakeSlots) -> Option<()> {
    for (slot, updates) in [("a", true), ("b", false), ("b", true), ("a", false), ("a", false)] {
        let running = boot(slots, updates)?;
        assert_eq!(running.slot, slot, "{}", super::tests::list(&slots.disk));
    }
    Some(())
}

fn judge(slots: &FakeSlots) -> Result<(), String> {
    let shown = || format!("{:?}", slots.entries());
    let started = started(slots).ok_or_else(|| format!("no entry: {}", shown()))?;
    match is_whole(slots, started.slot) {
        true => Ok(()),
        false => Err(format!("slot {} would start, and is not whole: {}", started.slot, shown())),
    }
}

#[test]
fn lives_with_one_entry_that_is_never_renamed() {
    let slots = flashed();
    life(&slots).unwrap();
    assert_eq!(super::tests::list(&slots.disk), "kedge-a+5.conf kedge-b.conf");
}

/// The boot loader's list as a release left it after an update that is being tried: the next program blesses
/// it and updates over it.
#[test]
fn list_of_each_release_is_gone_on_with() {
    for release in ["0.1.0"] {
        let slots = flashed();
        slots.disk.remove(entry("kedge-a.conf"));
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(release).join("entries");
        for found in std::fs::read_dir(list).unwrap().map(Result::unwrap) {
            let text = std::fs::read(found.path()).unwrap();
            slots.disk.put(entry(found.file_name().to_str().unwrap()), &text);
        }
        let running = load(&slots).unwrap();
        assert_eq!(
            (running.slot, &*running.name),
            ("b", "kedge-b+1-2.conf"),
            "{release}: the update is tried"
        );
        bless_it(&slots, "b").unwrap();
        let blessed = started(&slots).unwrap();
        assert_eq!(
            (blessed.slot, super::tests::list(&slots.disk).contains("kedge-a")),
            ("b", true),
            "{release}"
        );
        update(&slots, &blessed).unwrap();
        assert_eq!(started(&slots).unwrap().slot, "a", "{release}: the next update goes into the other slot");
        assert!(is_whole(&slots, "a"), "{release}");
    }
}

#[test]
fn cut_anywhere_in_a_life_leaves_a_slot_that_starts() {
    let whole = flashed();
    life(&whole).unwrap();
    for cut in 0..whole.disk.operations() {
        for loss in Loss::all(SEEDS) {
            let slots = flashed();
            slots.disk.cut_power_after(cut);
            assert!(life(&slots).is_none(), "the power goes");
            slots.disk.reboot(loss);
            let at = format!("cut {cut}, {loss:?}");
            judge(&slots).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
            cut_while_counting(&slots, &at);
            boot(&slots, false).unwrap_or_else(|| panic!("{at}: the next boot is not good"));
            if loss != Loss::Chance(0) {
                continue;
            }
            let running = boot(&slots, true).unwrap_or_else(|| panic!("{at}: the next update fails"));
            let next = boot(&slots, false).unwrap_or_else(|| panic!("{at}: the update does not start"));
            assert_ne!(running.slot, next.slot, "{at}");
        }
    }
}

/// After a cut the boot loader runs first, and the power may go again at once.
fn cut_while_counting(slots: &FakeSlots, at: &str) {
    if started(slots).is_some_and(|started| started.counted.is_none()) {
        return;
    }
    for (operation, loss) in (0..2).flat_map(|operation| Loss::all(SEEDS).map(move |loss| (operation, loss)))
    {
        let slots = FakeSlots::new(&slots.disk.fork());
        slots.disk.cut_power_after(operation);
        let _ = load(&slots);
        slots.disk.reboot(loss);
        judge(&slots).unwrap_or_else(|wrong| panic!("{at}, then {loss:?} while counting: {wrong}"));
    }
}

#[test]
fn slot_that_rots_is_left_after_its_tries() {
    let slots = flashed();
    life(&slots).unwrap();
    let starts: Vec<_> = (0..7).map(|_| load(&slots).unwrap().slot).collect();
    assert_eq!(starts, ["a", "a", "a", "a", "a", "b", "b"]);
    assert_eq!(list::of(&slots.entries().unwrap(), "a")[0].0, "kedge-a+0-5.conf");
}
