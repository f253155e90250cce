//! Updates into the other slot: kept, rejected, refused. The update is the third disk of the machine.

use crate::error::HilError;
use crate::stage::{Stage, condition, patience};

/// The update, and one whose agent does not start, as disks.
pub(super) const GOOD: &str = "/dev/vdc";
const BROKEN: &str = "/dev/vdd";

/// Boot entries after a good update into slot b.
pub(super) const BLESSED: &str = "kedge-a.conf kedge-b+5.conf";

fn slot(stage: &mut Stage<'_>) -> Result<String, HilError> {
    stage.guest("sed -n 's/.*root=PARTLABEL=root-\\([ab]\\).*/\\1/p' /proc/cmdline")
}

fn entries(stage: &mut Stage<'_>) -> Result<String, HilError> {
    stage.guest("ls /efi/loader/entries | sort | tr '\\n' ' '").map(|text| text.trim().to_owned())
}

/// Waits until these are the boot entries.
pub(super) fn blessed(stage: &mut Stage<'_>, awaited: &str) -> Result<(), HilError> {
    stage.wait(&format!("boot entries {awaited}"), patience(), |stage| {
        let found = entries(stage)?;
        Ok(if found == awaited { Ok(()) } else { Err(found) })
    })
}

pub(super) fn good(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    let old = slot(stage)?;
    stage.expect("slot", old.as_str(), "a")?;
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    let found = entries(stage)?;
    stage.expect("boot entries", found.as_str(), "kedge-a.conf kedge-b+3.conf")?;
    stage.say("the update is in slot b, checked, with three tries");
    stage.reboot()?;
    let new = slot(stage)?;
    stage.expect("slot", new.as_str(), "b")?;
    refuses(stage, &format!("kedge slot update {GOOD}"), "still on trial")?;
    blessed(stage, BLESSED)?;
    shows_image(stage, "True")?;
    // the agent has been up for 15 s, by the guest's own clock
    let begun = stage.logged_at("kedge", "Started")?;
    let judged = stage.logged_at("kedge-health", "has been up for 15 s")?;
    stage.took("from the agent's start to a good slot", judged.saturating_sub(begun), 14..240)?;
    stage.renews()?;
    stage.runs(&uid)?;
    super::ends::counts(stage, "orderly reboot", 0, 0)?;
    stage.wait("the Node's label and annotation kedge.dev/slot=b", patience(), |stage| {
        let meta = &stage.node()?["metadata"];
        let shown = ["labels", "annotations"].map(|kind| meta[kind]["kedge.dev/slot"].clone());
        Ok(if shown.iter().all(|slot| slot == "b") { Ok(()) } else { Err(format!("{shown:?}")) })
    })?;
    let version = stage.guest("sed -n 's/^VERSION=//p' /usr/lib/kedge-image/release")?;
    let shown = stage.node()?["status"]["nodeInfo"]["osImage"].as_str().unwrap_or_default().to_owned();
    let is_named = shown.starts_with(&format!("Kedge {version} on Debian"));
    stage.expect(
        &format!("the image's version {version} in the Node's osImage {shown:?}"),
        is_named,
        true,
    )?;
    stage.say(
        "slot b runs, its agent is well under the same config, and its boot entry has the tries of a good slot",
    );
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    let found = entries(stage)?;
    stage.expect("boot entries", found.as_str(), "kedge-a+3.conf kedge-b.conf")?;
    stage.say("and takes the next update, into slot a; its own entry is no longer counted");
    Ok(())
}

/// Waits for this status of the condition `ImageOK`.
fn shows_image(stage: &mut Stage<'_>, status: &str) -> Result<(), HilError> {
    stage.wait(&format!("ImageOK {status}"), patience(), |stage| {
        let found = condition(&stage.node()?, "ImageOK");
        Ok(if found.0 == status { Ok(()) } else { Err(format!("{found:?}")) })
    })
}

pub(super) fn bad(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.guest(&format!("kedge slot update {BROKEN}"))?;
    stage.machine.run_last("systemctl reboot")?;
    for reset in ["to try slot b", "after the first try", "after the second try", "after the third try"] {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("reset {reset}"));
    }
    stage.machine.was_reset();
    stage.running()?;
    let now = slot(stage)?;
    stage.expect("slot", now.as_str(), "a")?;
    let found = entries(stage)?;
    stage.expect("boot entries", found.as_str(), "kedge-a.conf kedge-b+0-3.conf")?;
    stage.renews()?;
    stage.runs(&uid)?;
    shows_image(stage, "False")?;
    stage.say("slot a runs again, with its config, without help, and the Node shows that");
    Ok(())
}

pub(super) fn deaf(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    let entry = "/efi/loader/entries/kedge-b+3.conf";
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    let demands = stage.guest(&format!("sed -n 's/.* kedge.demands=\\([^ ]*\\).*/\\1/p' {entry}"))?;
    stage.expect("what the trial demands", demands.as_str(), "state,watchdog,contact")?;
    // an image whose network never comes up; with a shorter limit, because three tries would take half an
    // hour
    stage.guest(&format!(
        "sed -i '/^options /s/$/ systemd.mask=systemd-networkd.service kedge.demands-secs=60/' {entry} && sync"
    ))?;
    stage.machine.run_last("systemctl reboot")?;
    for reset in ["to try slot b", "after the first try", "after the second try", "after the third try"] {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("reset {reset}"));
    }
    stage.machine.was_reset();
    stage.running()?;
    let now = slot(stage)?;
    stage.expect("slot", now.as_str(), "a")?;
    let found = entries(stage)?;
    stage.expect("boot entries", found.as_str(), "kedge-a.conf kedge-b+0-3.conf")?;
    let reasons = stage.guest("journalctl -u kedge-health -o cat --no-pager | grep -F 'this slot has no'")?;
    // "after N s this slot has no contact"; N by the guest's own clock, and the limit is 60
    let silent = reasons.lines().filter(|line| line.contains("this slot has no contact"));
    let after: Vec<u64> =
        silent.filter_map(|line| line.split(' ').find_map(|word| word.parse().ok())).collect();
    let is_so = after.len() == 3 && after.iter().all(|secs| (60..120).contains(secs));
    stage.expect(
        &format!("three tries that ended for want of contact, after a minute: {reasons}"),
        is_so,
        true,
    )?;
    stage.renews()?;
    stage.runs(&uid)?;
    stage.say("slot b was well but for its network: slot a runs again, with its config, without help");
    Ok(())
}

/// Waits for slot a, after slot b has used up the tries of a good slot.
fn falls_back(stage: &mut Stage<'_>, uid: &str) -> Result<(), HilError> {
    stage.machine.was_reset();
    stage.running()?;
    let now = slot(stage)?;
    stage.expect("slot", now.as_str(), "a")?;
    // on a busy machine udev may find the EFI partition only after the agent has started
    blessed(stage, "kedge-a.conf kedge-b+0-5.conf")?;
    stage.renews()?;
    stage.runs(uid)?;
    stage.say("slot a runs, with its config, without help");
    Ok(())
}

/// Overwrites the beginning of a root from which systemd and the agent have been read, and resets the
/// machine.
fn rots(stage: &mut Stage<'_>, slot: &str) -> Result<(), HilError> {
    stage.machine.run_last(&format!(
        "dd if=/dev/urandom of=/dev/disk/by-partlabel/root-{slot} bs=1M count=4 oflag=direct conv=notrunc && \
         echo b >/proc/sysrq-trigger"
    ))?;
    stage.machine.wait_reset(patience())
}

pub(super) fn rotten(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    stage.reboot()?;
    blessed(stage, BLESSED)?;
    stage.reboot()?;
    let now = slot(stage)?;
    stage.expect("slot", now.as_str(), "b")?;
    blessed(stage, BLESSED)?;
    stage.say("slot b is good, and so is its next boot: all its tries are there");
    // the kernel no longer writes the EFI partition, and the loader has counted down
    stage.guest(
        "mv /efi/loader/entries/kedge-b+5.conf /efi/loader/entries/kedge-b+0-5.conf && sync && \
         mount -o remount,ro /efi && blockdev --setro $(readlink -f /dev/kedge/esp)",
    )?;
    refuses(stage, "kedge slot bless", "start it once more all the same")?;
    stage.reboot()?;
    let now = slot(stage)?;
    stage.expect("slot", now.as_str(), "b")?;
    blessed(stage, BLESSED)?;
    stage.say("a boot whose good end could not be written cost slot b nothing");
    rots(stage, "b")?;
    for start in 1..=5 {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("slot b is rotten: reset at start {start} of 5"));
    }
    falls_back(stage, &uid)?;
    rots(stage, "a")?;
    stage.wait("a message on the console that both slots are bad", patience(), |stage| {
        let console = stage.machine.serial_end();
        Ok(if console.contains("no other slot can be started") { Ok(()) } else { Err(console) })
    })?;
    stage.machine.wait_reset(patience())?;
    stage.say("slot a is rotten, too: the console shows it, and the machine tries again");
    Ok(())
}

pub(super) fn unreadable(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    stage.reboot()?;
    blessed(stage, BLESSED)?;
    stage.machine.run_last(
        "dd if=/dev/urandom of=/efi/kedge/b/initrd bs=1M count=1 conv=notrunc,fsync && echo b >/proc/sysrq-trigger",
    )?;
    stage.machine.wait_reset(patience())?;
    for start in 1..=5 {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("slot b has no initramfs: reset at start {start} of 5"));
    }
    falls_back(stage, &uid)
}

/// The root can be mounted and listed, but no file of it can be read.
pub(super) fn no_files(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    stage.reboot()?;
    blessed(stage, BLESSED)?;
    // overwrites everything between the superblock, which contains the position of the inode table at byte
    // 64, and that table
    stage.machine.run_last(
        "d=/dev/disk/by-partlabel/root-b; n=$(($(od -An -tu8 -j64 -N8 $d) / 131072 - 1)); [ $n -gt 99 ] && \
         dd if=/dev/zero of=$d bs=128k seek=1 count=$n oflag=direct conv=notrunc && echo b >/proc/sysrq-trigger",
    )?;
    stage.machine.wait_reset(patience())?;
    for start in 1..=5 {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("slot b has no systemd: reset at start {start} of 5"));
    }
    let console = std::fs::read(stage.machine.serial()).unwrap_or_default();
    let panics = String::from_utf8_lossy(&console).matches("Attempted to kill init").count();
    stage.expect(&format!("{panics} starts that ended in a panic, of 5"), panics >= 5, true)?;
    falls_back(stage, &uid)
}

/// Shows what follows if systemd can no longer read the units that its default target needs.
pub(super) fn no_system(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    stage.reboot()?;
    blessed(stage, BLESSED)?;
    stage.guest(
        "sed -i '/^options /s/$/ systemd.unit=emergency.target/' /efi/loader/entries/kedge-b+5.conf && sync",
    )?;
    stage.machine.run_last("systemctl reboot")?;
    stage.machine.wait_reset(patience())?;
    for start in 1..=5 {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("systemd does not start slot b: reset at start {start} of 5"));
    }
    let console = std::fs::read(stage.machine.serial()).unwrap_or_default();
    let shown = String::from_utf8_lossy(&console).matches("systemd cannot start this slot").count();
    stage.expect(&format!("{shown} starts with the reason on the console, of 5"), shown >= 5, true)?;
    falls_back(stage, &uid)
}

/// systemd-boot's version, as it reports it to the system that it starts.
fn loader_version(stage: &mut Stage<'_>) -> Result<u32, HilError> {
    let info = stage.guest(
        "tr -d '\\000' </sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f | tail -c +5",
    )?;
    let version = info.split_whitespace().nth(1).and_then(|word| word.split(['.', '-']).next()?.parse().ok());
    version.ok_or_else(|| HilError::Garbled(format!("LoaderInfo: {info:?}")))
}

/// The first loader that resets the machine when it cannot load a kernel.
const RESETS_ON_ERROR: u32 = 258;

pub(super) fn no_kernel(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = super::config::good(stage)?;
    let loader = loader_version(stage)?;
    stage.expect("a loader that resets when it cannot load a kernel", loader >= RESETS_ON_ERROR, true)?;
    stage.guest(&format!("kedge slot update {GOOD}"))?;
    stage.reboot()?;
    blessed(stage, BLESSED)?;
    stage.machine.run_last(
        "dd if=/dev/zero of=/efi/kedge/b/vmlinuz bs=1M count=1 conv=notrunc,fsync && echo b >/proc/sysrq-trigger",
    )?;
    stage.machine.wait_reset(patience())?;
    for start in 1..=5 {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("slot b has no kernel: systemd-boot {loader} reset at start {start} of 5"));
    }
    falls_back(stage, &uid)
}

/// Runs a command that must be refused with this message.
fn refuses(stage: &mut Stage<'_>, command: &str, why: &str) -> Result<(), HilError> {
    let (code, output) = stage.ask(command)?;
    stage.expect(
        &format!("{command}: refused with {why:?}: {output}"),
        (code != 0, output.contains(why)),
        (true, true),
    )?;
    stage.say(&format!("refused: {}", output.lines().find(|line| line.contains(why)).unwrap_or_default()));
    Ok(())
}

pub(super) fn refused(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let before = entries(stage)?;
    refuses(stage, "echo nonsense | kedge slot update -", "is no update")?;
    refuses(
        stage,
        &format!("head -c 4096 {GOOD} | sed 's/^board .*/board toaster/' | kedge slot update -"),
        "toaster",
    )?;
    // the same length, so that only the digest can reveal it
    refuses(
        stage,
        &format!(
            "{{ head -c 30000000 {GOOD}; head -c 4096 /dev/urandom; tail -c +30004097 {GOOD}; }} | kedge slot update -"
        ),
        "is damaged",
    )?;
    refuses(stage, &format!("head -c 20000000 {GOOD} | kedge slot update -"), "is damaged")?;
    let after = entries(stage)?;
    stage.expect("boot entries", after, before)
}
