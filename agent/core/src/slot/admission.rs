//! Whether an update may be written, and where: decided before its first byte is written.
//!
//! Always holds: an admitted update is written into the slot that does not run, on the disk of the running
//! one, with room for all of it. The running slot is good and complete, so it can be the fallback. A slot's
//! manifest is written after everything that it names. Leaves to others: the manifest and its signature
//! (`manifest`); reading the facts (`agent/src/slot/admission.rs`); the order of the writes (`list`); writing
//! (`agent/src/slot/update.rs`).

use super::list::{self, Entries, Part, Place, Step};
use super::manifest::{FILES, INDEX, MANIFEST_BYTES, Manifest, ROOT};
use super::{CommandLine, Works, words};
use crate::node::facts::ImageState;
use crate::sorted::SortedMap;
use std::collections::BTreeMap;

/// The manifest that a slot was written by, in `kedge/SLOT`.
pub const MANIFEST: &str = "manifest";
/// This much stays free on the EFI partition: for the boot entries, and for partly filled clusters.
const SPARE_BYTES: u64 = 65536;

/// The facts before an update.
#[derive(Debug, Default, Clone)]
pub struct Facts {
    /// The kernel's command line.
    pub command_line: String,
    /// Whether the boot loader's variables are readable.
    pub has_variables: bool,
    /// Whether the boot loader counts this boot.
    pub is_counted: bool,
    /// The boot loader's list.
    pub entries: Entries,
    /// Sizes of [`FILES`], by `SLOT/NAME`.
    pub files: SortedMap<String, u64>,
    /// Bytes free on the EFI partition.
    pub free_bytes: u64,
    /// The roots on the running disk: device and bytes, by the partition's name.
    pub roots: BTreeMap<String, (String, u64)>,
    /// Whether the EFI partition is on that disk, too.
    pub is_own_efi: bool,
    /// The board of the running image.
    pub board: String,
    /// Its version; empty if it is unreadable.
    pub version: String,
}

/// The target of an update.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The running slot.
    pub running: &'static str,
    /// The slot that is written.
    pub other: &'static str,
    /// The update's version, for people.
    pub version: String,
    /// SHA-256 of the manifest.
    digest: String,
    /// For the kernel's command line.
    options: String,
    /// In the order of the update.
    parts: Vec<Part>,
    /// The new entry's place in the boot loader's list: highest first. Never the same number twice, so that
    /// an older version can be an update, too.
    order: u64,
    /// The list as it is before.
    entries: Entries,
}

impl Plan {
    /// The size of the whole update.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(MANIFEST_BYTES as u64, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Writes all of the slot, its manifest last; afterwards it is not in the boot loader's list.
    pub fn write(&self, manifest: &[u8]) -> Vec<Step> {
        let mut steps = list::leave(&self.entries, self.running, self.other);
        let place = |name: &str| format!("kedge/{}/{name}", self.other);
        // an index without its root would be believed by the next update
        steps.extend([Step::Drop(place(MANIFEST)), Step::Drop(place(INDEX)), Step::Settle]);
        steps.extend(self.parts.iter().cloned().map(Step::Copy));
        steps.extend([Step::Put(place(MANIFEST), manifest.to_vec()), Step::Settle]);
        steps
    }

    /// Makes the boot loader try the written slot, in a trial with these demands. `notes` are more words of
    /// its entry: the origin of the order.
    pub fn try_it(&self, demands: &Works, notes: &str) -> Vec<Step> {
        let Self { other, version, digest, options, order, .. } = self;
        let demands = match demands.is_empty() {
            true => String::new(),
            false => format!(" kedge.demands={}", words(demands, ",")),
        };
        let text = format!(
            "title Kedge {version}, slot {other}\nsort-key kedge\nversion {order}\n\
             linux /kedge/{other}/vmlinuz\ninitrd /kedge/{other}/initrd\n\
             options root=PARTLABEL=root-{other} {options}{demands} kedge.update={digest}{notes}\n"
        );
        list::try_with(other, text)
    }
}

impl Facts {
    /// Whether a slot's boot has been marked good, in this boot or an earlier one. That the boot is counted
    /// stays readable until the next one. The entry of a good slot has the mark; the one of a new image is
    /// never counted.
    pub fn is_good(&self, slot: &str) -> bool {
        let is_good = |(name, text): (&String, &String)| !name.contains('+') || list::is_marked_good(text);
        !self.is_counted || list::of(&self.entries, slot).into_iter().any(is_good)
    }

    /// For the Node: the running slot, and why it runs.
    pub fn image(&self) -> ImageState {
        let Some(running) = CommandLine::parse(&self.command_line).slot.filter(|_| self.has_variables) else {
            return ImageState::NotAsked;
        };
        let other = if running == "a" { "b" } else { "a" };
        // the boot loader skips an entry without tries while it has another
        let is_used_up = |(name, _): &(&String, &String)| name.contains("+0-") || name.contains("+0.");
        let failed = list::of(&self.entries, other).iter().any(is_used_up);
        match () {
            () if !self.is_good(running) => ImageState::OnTrial(running),
            () if failed => ImageState::FellBack(running),
            () => ImageState::Good(running),
        }
    }

    /// For people: the running slot, and the boot loader's list.
    pub fn status(&self) -> Vec<String> {
        let running = CommandLine::parse(&self.command_line).slot;
        let mut lines = vec![format!("running: slot {}", running.unwrap_or_default())];
        if running.is_some_and(|slot| !self.is_good(slot)) {
            lines.push("on trial: yes".to_owned());
        }
        lines.extend(self.entries.iter().map(|(name, text)| {
            let value = |key| value(text, key).unwrap_or_default();
            format!("{}: {}, order {}", name.trim_end_matches(".conf"), value("title"), value("version"))
        }));
        lines
    }
}

/// Admits an update by its verified manifest.
///
/// # Errors
/// Why not, for people.
pub fn admit(facts: &Facts, manifest: &Manifest) -> Result<Plan, String> {
    let (running, other) = match CommandLine::parse(&facts.command_line).slot {
        Some("a") => ("a", "b"),
        Some(_) => ("b", "a"),
        None => return Err("the kernel's command line names no slot".to_owned()),
    };
    if !facts.has_variables {
        let why = "so no slot could ever be called good, and an update would be taken back";
        return Err(format!("the firmware's variables cannot be read here, {why}"));
    }
    // the other slot is the only fallback of a slot on trial: it must not be overwritten
    if !facts.is_good(running) {
        return Err(format!("slot {running} is still on trial, and slot {other} is its fallback"));
    }
    if !facts.is_own_efi {
        return Err("/efi is not on the disk of the running system".to_owned());
    }
    let root = facts.roots.get(&format!("root-{other}"));
    let (device, slot_bytes) = root.ok_or_else(|| format!("no partition root-{other}"))?;
    is_complete(facts, running, other)?;
    let size = |key: &str| manifest.member(key).map(|member| member.bytes);
    let root = size(ROOT).ok_or("the update has no root, so it is not one of a disk image")?;
    if root > *slot_bytes {
        return Err(format!("the root has {root} bytes, the slot {slot_bytes}"));
    }
    let small = [INDEX, FILES[0], FILES[1]].into_iter().filter_map(size);
    has_room(facts, other, small.fold(0, u64::saturating_add))?;
    let orders = facts.entries.values().filter_map(|text| value(text, "version")?.parse::<u64>().ok());
    let order = orders.max().unwrap_or(0).saturating_add(1);
    let parts = manifest.members.iter().map(|member| Part {
        key: member.key,
        place: match member.key {
            ROOT => Place::Device(device.clone()),
            key => Place::File(format!("kedge/{other}/{key}")),
        },
        bytes: member.bytes,
        digest: member.digest.clone(),
    });
    Ok(Plan {
        running,
        other,
        version: manifest.version.clone(),
        digest: manifest.digest.clone(),
        options: manifest.options.clone(),
        parts: parts.collect(),
        order,
        entries: facts.entries.clone(),
    })
}

/// Files lost by a damaged partition must be noticed while the other slot still boots.
fn is_complete(facts: &Facts, running: &str, other: &str) -> Result<(), String> {
    let lost = |what: &str| {
        Err(format!("{what} is lost, so slot {other} may be the only one that still boots; reboot first"))
    };
    if list::whole(&facts.entries, running).is_none() {
        return lost(&format!("the boot entry of slot {running}"));
    }
    for name in FILES {
        let file = format!("{running}/{name}");
        if facts.files.get(&file).is_none_or(|bytes| *bytes == 0) {
            return lost(&format!("/efi/kedge/{file}"));
        }
    }
    Ok(())
}

/// The other slot's files are overwritten, so their space counts as free.
fn has_room(facts: &Facts, other: &str, bytes: u64) -> Result<(), String> {
    let there = FILES.iter().filter_map(|name| facts.files.get(&format!("{other}/{name}")));
    let old = there.fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let (needed, room) = (bytes.saturating_add(SPARE_BYTES), facts.free_bytes.saturating_add(old));
    match needed <= room {
        true => Ok(()),
        false => Err(format!(
            "kernel, initramfs and index need {needed} bytes on the EFI partition, which has room for {room}"
        )),
    }
}

/// The rest of the first line that begins with a key.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
}

#[cfg(test)]
mod tests {
    use super::super::manifest;
    use super::*;

    fn manifest(change: &str, to: &str) -> Manifest {
        let text = manifest::tests::text("kedge-update 2", "2");
        assert!(text.contains(change), "{change}");
        let block = manifest::tests::block(text.replacen(change, to, 1));
        manifest::verify(&block, None, &manifest::tests::ANYBODY, &|_, _, _| false).unwrap()
    }

    /// Slot a runs, with the one entry of a new image beside an older update.
    fn facts() -> Facts {
        let map =
            |all: &[(&str, &str)]| all.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        let size = |name: &str, bytes| (name.to_owned(), bytes);
        Facts {
            command_line: "root=PARTLABEL=root-a quiet".to_owned(),
            has_variables: true,
            is_counted: false,
            entries: map(&[
                ("kedge-a.conf", "title A\nversion 7\noptions quiet\n"),
                ("kedge-b+0-3.conf", "title B\nversion 12\noptions quiet\n"),
                ("other.conf", "version 99 beta\n"),
            ]),
            files: [size("a/vmlinuz", 90_000), size("a/initrd", 9_000), size("b/vmlinuz", 50_000)].into(),
            free_bytes: 136_036,
            roots: [("root-b".to_owned(), ("/dev/vda3".to_owned(), 3000))].into(),
            is_own_efi: true,
            board: "toaster".to_owned(),
            version: "2".to_owned(),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Facts), manifest: &Manifest, expected: &str) {
        let mut facts = facts();
        change(&mut facts);
        let found = match admit(&facts, manifest) {
            Ok(Plan { running, other, parts, order, .. }) => match &parts[..] {
                [.., Part { place: Place::Device(device), .. }] => {
                    format!("{running} {other} {device} {order}")
                }
                parts => panic!("the root goes to a partition: {parts:?}"),
            },
            Err(why) => why,
        };
        assert!(found.contains(expected), "{found}, expected {expected}");
    }

    #[test]
    fn update_goes_into_the_slot_that_does_not_run() {
        let good = manifest("", "");
        check(|_| {}, &good, "a b /dev/vda3 13");
        let from_b = |facts: &mut Facts| {
            facts.command_line = "root=PARTLABEL=root-b".to_owned();
            facts.roots = [("root-a".to_owned(), ("/dev/sda2".to_owned(), 3000))].into();
            facts.files.insert("b/initrd".to_owned(), 1);
            facts.free_bytes = 1 << 20;
        };
        check(from_b, &good, "b a /dev/sda2 13");
        check(|facts| facts.command_line.clear(), &good, "names no slot");
        check(|facts| facts.has_variables = false, &good, "firmware's variables cannot be read");
        check(|facts| facts.is_own_efi = false, &good, "not on the disk of the running system");
        check(|facts| facts.roots.clear(), &good, "no partition root-b");
    }

    #[test]
    fn slot_on_trial_admits_no_update() {
        let counted = |name: &'static str, text: &'static str| {
            move |facts: &mut Facts| {
                facts.is_counted = true;
                facts.entries = [(name.to_owned(), text.to_owned())].into();
            }
        };
        let good = manifest("", "");
        check(counted("kedge-a+2-1.conf", "options quiet\n"), &good, "slot a is still on trial");
        check(counted("kedge-a+2-1.conf", "options quiet kedge.slot=good\n"), &good, "a b /dev/vda3 1");
        check(counted("kedge-a.conf", "options quiet\n"), &good, "a b /dev/vda3 1");
        check(counted("kedge-ab.conf", "options quiet\n"), &good, "slot a is still on trial");
    }

    #[test]
    fn incomplete_fallback_admits_no_update() {
        let good = manifest("", "");
        check(
            |facts| facts.entries.retain(|name, _| name != "kedge-a.conf"),
            &good,
            "boot entry of slot a is lost",
        );
        check(
            |facts| drop(facts.entries.insert("kedge-a.conf".into(), String::new())),
            &good,
            "entry of slot a is lost",
        );
        check(|facts| *facts.files.get_mut("a/vmlinuz").unwrap() = 0, &good, "/efi/kedge/a/vmlinuz is lost");
        check(|facts| facts.files.retain(|name, _| name != "a/initrd"), &good, "/efi/kedge/a/initrd is lost");
    }

    #[test]
    fn update_needs_room() {
        let good = manifest("", "");
        check(
            |facts| facts.free_bytes -= 1,
            &good,
            "need 186036 bytes on the EFI partition, which has room for 186035",
        );
        check(|_| {}, &manifest("root 3000", "root 3001"), "the root has 3001 bytes, the slot 3000");
        check(
            |_| {},
            &manifest("vmlinuz 100000", &format!("vmlinuz {}", u64::MAX)),
            "kernel, initramfs and index need",
        );
        let program = "program 7 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nversion 2";
        check(
            |_| {},
            &manifest("version 2", program),
            "the update has no root, so it is not one of a disk image",
        );
    }

    #[test]
    fn plan_writes_the_slot_and_then_enters_it() {
        let mut facts = facts();
        facts.entries.insert("kedge-b.conf".to_owned(), String::new());
        let manifest = manifest("", "");
        let plan = admit(&facts, &manifest).unwrap();
        assert_eq!(plan.bytes(), 4096 + 123_500);
        let shown = |steps: Vec<Step>| -> Vec<String> {
            let show = |step| match step {
                Step::Copy(Part { key, place, bytes, digest }) => {
                    assert_eq!(digest, "0123456789abcdef".repeat(4));
                    format!("{key} {place:?} {bytes}")
                }
                Step::Put(place, bytes) => format!("{place} {}", String::from_utf8_lossy(&bytes)),
                other => format!("{other:?}"),
            };
            steps.into_iter().map(show).collect()
        };
        assert_eq!(
            shown(plan.write(b"block")),
            [
                "Settle",
                "Remove(\"kedge-b.conf\")",
                "Remove(\"kedge-b+0-3.conf\")",
                "Settle",
                "Drop(\"kedge/b/manifest\")",
                "Drop(\"kedge/b/index\")",
                "Settle",
                "index File(\"kedge/b/index\") 500",
                "vmlinuz File(\"kedge/b/vmlinuz\") 100000",
                "initrd File(\"kedge/b/initrd\") 20000",
                "root Device(\"/dev/vda3\") 3000",
                "kedge/b/manifest block",
                "Settle"
            ]
        );
        let text = "title Kedge 2, slot b\nsort-key kedge\nversion 13\nlinux /kedge/b/vmlinuz\ninitrd /kedge/b/initrd\n\
                    options root=PARTLABEL=root-b quiet";
        let entered = |demands: &str, notes: &str, end: &str| {
            let update = format!("kedge.update={}", manifest.digest);
            let text = format!("{text}{end} {update}{notes}\n");
            let enter = Step::Enter("kedge-b+3.conf".to_owned(), text);
            assert_eq!(
                plan.try_it(&super::super::parse(demands), notes),
                [Step::Settle, enter, Step::Settle]
            );
        };
        entered("contact,state", " kedge.by=hand", " kedge.demands=state,contact");
        entered("", "", "");
    }

    #[test]
    fn image_is_ok_unless_it_is_tried_or_the_other_one_failed() {
        let check = |change: fn(&mut Facts), expect: ImageState| {
            let mut facts = facts();
            change(&mut facts);
            assert_eq!(facts.image(), expect, "{:?}", facts.entries);
        };
        check(|_| {}, ImageState::FellBack("a"));
        check(|facts| facts.has_variables = false, ImageState::NotAsked);
        check(|facts| facts.command_line.clear(), ImageState::NotAsked);
        let tried = |facts: &mut Facts| {
            facts.is_counted = true;
            facts.command_line = "root=PARTLABEL=root-b".to_owned();
        };
        check(tried, ImageState::OnTrial("b"));
        let flashed = |facts: &mut Facts| drop(facts.entries.remove("kedge-b+0-3.conf"));
        check(flashed, ImageState::Good("a"));
        let waits = |facts: &mut Facts| {
            let text = facts.entries.remove("kedge-b+0-3.conf").expect("it is there");
            facts.entries.insert("kedge-b+3.conf".to_owned(), text);
        };
        check(waits, ImageState::Good("a"));
        let blessed = |facts: &mut Facts| {
            facts.is_counted = true;
            facts.command_line = "root=PARTLABEL=root-b".to_owned();
            facts.entries.remove("kedge-b+0-3.conf");
            facts.entries.insert("kedge-b+5.conf".to_owned(), "options quiet kedge.slot=good\n".to_owned());
        };
        check(blessed, ImageState::Good("b"));
    }

    #[test]
    fn status_shows_what_runs_and_the_list() {
        let mut facts = facts();
        let list = ["kedge-a: A, order 7", "kedge-b+0-3: B, order 12", "other: , order 99 beta"];
        assert_eq!(facts.status(), [&["running: slot a"], &list[..]].concat());
        facts.is_counted = true;
        facts.command_line = "root=PARTLABEL=root-b".to_owned();
        assert_eq!(facts.status(), [&["running: slot b", "on trial: yes"], &list[..]].concat());
    }
}
