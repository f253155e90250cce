//! Cuts the power at every flush of an update and of its blessing, and examines each disk that could be left
//! as the boot loader would.
//!
//! Always holds: the entry that the boot loader would start is complete, to the last byte; an update that was
//! reported as complete is the one that it would start; a slot that was blessed has its tries. The guest
//! writes once, and the disks are rebuilt from the log of its writes; consecutive disks with equal slots and
//! EFI partitions are counted once.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::process::Command;

use kedge_rig::logged_disk::{Choice, Image, Recording};

use super::slots::{BLESSED, GOOD, blessed};
use crate::error::HilError;
use crate::machine::tool;
use crate::stage::Stage;

/// Random parts of the unflushed writes at each flush, beside none of them.
const SUBSETS: usize = 4;
/// With fewer disks than these the log was not read properly.
const LEAST_DISKS: usize = 50;

pub(super) fn cuts(stage: &mut Stage<'_>) -> Result<(), HilError> {
    stage.machine.record();
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    let updated = stage.machine.log_length();
    stage.reboot()?;
    blessed(stage, BLESSED)?;
    stage.wait("the end of the blessing", crate::stage::patience(), |stage| {
        let state = stage.guest("systemctl show -P SubState systemd-bless-boot")?;
        Ok(if state == "exited" { Ok(()) } else { Err(state) })
    })?;
    let good = stage.machine.log_length();
    let whole = Whole::read(stage)?;
    let recordings = stage.machine.recordings()?;
    let [update, blessing] = &recordings[..] else {
        return Err(HilError::Wrong(format!("{} boots were recorded, expected two", recordings.len())));
    };
    let first = whole.look(stage, update, updated, |started| started == "kedge-b+3.conf")?;
    let second = whole.look(stage, blessing, good, |started| started == "kedge-b+5.conf")?;
    let disks = first + second;
    stage.expect(&format!("{disks} disks looked at"), disks >= LEAST_DISKS, true)?;
    stage.say(&format!("{disks} disks that a power cut could have left, and each starts a whole slot"));
    Ok(())
}

/// The content of both slots when they are complete: here an update has the very bytes of the image. Also its
/// positions.
struct Whole {
    vmlinuz: Vec<u8>,
    initrd: Vec<u8>,
    root: Vec<u8>,
    places: [std::ops::Range<u64>; 3],
}

/// The EFI partition, and the roots of slot a and b.
type Parts = [Image; 3];

impl Whole {
    fn read(stage: &Stage<'_>) -> Result<Whole, HilError> {
        let file = |name: &str| {
            let path = stage.machine.image_file(name);
            fs::read(&path).map_err(HilError::io("read", &path))
        };
        let place = |name: &str| stage.machine.partition(name);
        Ok(Whole {
            vmlinuz: file("vmlinuz")?,
            initrd: file("initrd")?,
            root: file("root.squashfs")?,
            places: [place("esp")?, place("root-a")?, place("root-b")?],
        })
    }

    /// Examines each disk that a cut could have left of this boot's writes. An update that was acknowledged
    /// at a position of the log must be the one that is started after it. Returns the number of disks that
    /// differ in a slot or in the EFI partition.
    fn look(
        &self,
        stage: &mut Stage<'_>,
        recording: &Recording,
        acknowledged: u64,
        is_so: impl Fn(&str) -> bool,
    ) -> Result<usize, HilError> {
        let seed = super::chance::number("KEDGE_HIL_SEED").unwrap_or(1);
        let choice = Choice { subsets: SUBSETS, seed, instants: vec![acknowledged], ..Choice::default() };
        let (mut disks, mut last) = (0, None);
        for cut in recording.cuts(&choice) {
            let at = format!("power cut at flush {}, part {} (KEDGE_HIL_SEED={seed})", cut.flush, cut.subset);
            let parts = self.parts(&cut.image);
            let started = match last {
                Some((ref before, ref started)) if *before == parts => String::clone(started),
                _ => {
                    disks += 1;
                    let started = self.started(&parts, stage.machine.dir());
                    started.map_err(|problem| HilError::Wrong(format!("{at}: {problem}")))?
                }
            };
            let is_kept = cut.at < acknowledged || is_so(&started);
            stage.expect(
                &format!("{at}: {started} would start; what was acknowledged is kept"),
                is_kept,
                true,
            )?;
            last = Some((parts, started));
        }
        let (writes, flushes) = (recording.writes(), recording.flushes());
        stage.say(&format!("{writes} writes, {flushes} flushes: {disks} disks"));
        Ok(disks)
    }

    fn parts(&self, disk: &Image) -> Parts {
        self.places.clone().map(|place| disk.part(place))
    }

    /// The name of the entry that the boot loader would start, if all files that it starts are complete.
    fn started(&self, [esp, root_a, root_b]: &Parts, scratch: &Path) -> Result<String, String> {
        let (image, files) = (scratch.join("esp.img"), scratch.join("esp"));
        let _ = fs::remove_dir_all(&files);
        fs::create_dir_all(files.join("loader/entries"))
            .and_then(|()| fs::create_dir(files.join("kedge")))
            .and_then(|()| fs::write(&image, ""))
            .map_err(|error| error.to_string())?;
        esp.write_to(&image).map_err(|error| error.to_string())?;
        // Damaged files are not copied, and then found missing below. Files are copied one at a time, because
        // mcopy ends at the first damage, while the boot loader continues with the next entry.
        let listed = Command::new("mdir").args(["-b", "-i"]).arg(&image).arg("::/loader/entries").output();
        let listed = listed.map_err(|error| format!("mdir: {error}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let places = listed.lines().map(|entry| (entry, "loader/entries"));
        let mut problems = Vec::new();
        for (from, to) in places.chain([("::/kedge/a", "kedge"), ("::/kedge/b", "kedge")]) {
            let to = files.join(to);
            let options = ["-s".as_ref(), "-n".as_ref(), "-i".as_ref(), image.as_os_str()];
            problems.extend(tool("mcopy", &[&options[..], &[from.as_ref(), to.as_os_str()]].concat()).err());
        }
        let chosen = choose(&files).ok_or_else(|| format!("no entry can be started: {problems:?}"))?;
        let text = fs::read_to_string(files.join("loader/entries").join(&chosen)).unwrap_or_default();
        let slot = if chosen.starts_with("kedge-a") { "a" } else { "b" };
        let root = if slot == "a" { root_a } else { root_b };
        let is_named = text.contains(&format!("root=PARTLABEL=root-{slot} "));
        let holds = |name: &str, expected: &[u8]| {
            fs::read(files.join("kedge").join(slot).join(name)).is_ok_and(|found| found == expected)
        };
        let found = [
            is_named,
            holds("vmlinuz", &self.vmlinuz),
            holds("initrd", &self.initrd),
            root.begins_with(&self.root),
        ];
        match found {
            [true, true, true, true] => Ok(chosen),
            _ => Err(format!(
                "{chosen} would start; its root's name, kernel, initramfs and root are whole: {found:?}; {problems:?}"
            )),
        }
    }
}

/// systemd-boot's choice: among the entries whose kernel exists, those with tries left before the others, and
/// then the highest version.
fn choose(esp: &Path) -> Option<String> {
    let entries = fs::read_dir(esp.join("loader/entries")).ok()?;
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let text = fs::read_to_string(entry.path()).ok()?;
            let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            let kernel = esp.join(value("linux")?.trim_start_matches('/'));
            let is_bad = name.contains("+0");
            kernel.exists().then(|| {
                (is_bad, Reverse(value("version").and_then(|number| number.parse::<u64>().ok())), name)
            })
        })
        .collect();
    found.sort();
    found.into_iter().next().map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_loader_takes_the_newest_entry_that_has_tries() {
        let scratch = kedge_rig::scratch::Scratch::new("choose").unwrap();
        let chosen = |entries: &[(&str, u32, &str)]| {
            let esp = scratch.path().join("esp");
            let _ = fs::remove_dir_all(&esp);
            fs::create_dir_all(esp.join("loader/entries")).unwrap();
            fs::create_dir_all(esp.join("kedge/a")).unwrap();
            fs::write(esp.join("kedge/a/vmlinuz"), "").unwrap();
            for (name, version, kernel) in entries {
                let text = format!("title x\nversion {version}\nlinux {kernel}\noptions root=x\n");
                fs::write(esp.join("loader/entries").join(name), text).unwrap();
            }
            choose(&esp).unwrap_or_default()
        };
        let there = "/kedge/a/vmlinuz";
        assert_eq!(chosen(&[]), "");
        assert_eq!(chosen(&[("kedge-a.conf", 9, there), ("kedge-b+3.conf", 10, there)]), "kedge-b+3.conf");
        assert_eq!(chosen(&[("kedge-a.conf", 1, there), ("kedge-b+0-3.conf", 2, there)]), "kedge-a.conf");
        assert_eq!(
            chosen(&[("kedge-a.conf", 1, there), ("kedge-b+3.conf", 2, "/kedge/b/vmlinuz")]),
            "kedge-a.conf"
        );
        assert_eq!(chosen(&[("kedge-b+0-5.conf", 2, there)]), "kedge-b+0-5.conf");
    }
}
