//! `kedge slot`: answers about the running boot, for units of a disk image.
//!
//! Reads the facts for the decisions of `kedge_core::slot`: the kernel's command line and mounts, the
//! watchdogs, the unit and the running agent. Always holds: `status` changes nothing, and `health` only
//! records why a trial failed; a part that cannot be seen counts as broken. An unreadable program fails here,
//! too, which is how a good slot whose agent is lost is noticed. Leaves to others: changes of the slots
//! (`update`, `bless`).

pub mod admission;
pub mod bless;
pub(crate) mod host;
pub mod keys;
#[cfg(test)]
mod life;
pub(crate) mod signature;
pub(crate) mod steps;
pub mod update;
pub mod wanted;

use crate::options::Places;
use crate::output;
use crate::output::CommandError;
use crate::slot::host::{COUNTING, inspect, read, status};
use kedge_core::slot::list::Step;
use kedge_core::slot::{self, CommandLine, Trial, Verdict};
use kedge_platform::Clocks;
use kedge_platform::linux::slots::{EFI, LinuxSlots};
use kedge_platform::linux::{LinuxClocks, Roots, slots};
use kedge_platform::slots::Slots;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Why the last trial of a slot failed, in its folder on the EFI partition.
pub(crate) const FAILED: &str = "failed";
/// Longest text of a failure, in characters: an Event has at most 1024.
pub(crate) const FAILED_CHARS: usize = 800;
/// How often the trial checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The query to systemctl about the agent.
const AGENT: [&str; 4] = ["show", "kedge.service", "--property", "ActiveState,MainPID,NRestarts"];
/// The query to journalctl for what the agent of this boot said last.
const LAST_LINES: [&str; 7] =
    ["--boot", "--unit=kedge", "--lines=6", "--output=cat", "--no-pager", "--quiet", "--no-hostname"];

/// `kedge slot health`, for `kedge-health.service`: returns when this boot is good.
///
/// # Errors
/// This try has failed, and the machine must be reset.
pub fn health(places: &Places) -> Result<(), CommandError> {
    let roots = Roots::default();
    if !roots.sys.join(COUNTING).exists() {
        output::print("this boot is not counted");
        return Ok(());
    }
    let line = CommandLine::parse(&read(&roots.proc.join("cmdline")));
    let clocks = LinuxClocks::new(&roots);
    let begin = clocks.monotonic();
    if line.was_good {
        let asked = [&["show", "--property", "Id,LoadState"], &slot::NEEDED_UNITS[..]].concat();
        return judge(|| {
            slot::still_good(clocks.monotonic().saturating_sub(begin), &units(&systemctl(&asked)))
        });
    }
    let slot = line.slot;
    let mut trial = Trial::new(line);
    let judged = judge(|| {
        let status = status(places);
        let (process, restarts) = unit(&systemctl(&AGENT));
        let at = clocks.monotonic().saturating_sub(begin);
        let process = process.filter(|_| status.is_some());
        trial.look(at, process, restarts, || inspect(&roots, status.as_ref()))
    });
    if let (Some(slot), Err(why)) = (slot, &judged) {
        // bounded, because a line of the journal may be longer than the EFI partition has room
        let lines = kedge_api::excerpt_of(&output_of("journalctl", &LAST_LINES), FAILED_CHARS);
        note_failure(&LinuxSlots::new(&roots, EFI), slot, &format!("{why}\n{lines}"));
    }
    judged
}

/// Leaves the verdict, and after it the agent's last lines, for the other slot, which reports them after all
/// tries have failed.
fn note_failure<S: Slots>(slots: &S, slot: &str, why: &str) {
    let put = Step::Put(format!("kedge/{slot}/{FAILED}"), why.as_bytes().to_vec());
    if let Err(error) = steps::perform(slots, &[Step::Settle, put, Step::Settle], &mut io::empty()) {
        host::say(error);
    }
}

/// Checks until there is a verdict.
fn judge(mut look: impl FnMut() -> Option<Verdict>) -> Result<(), CommandError> {
    loop {
        match look() {
            Some(Verdict::Good(text)) => {
                output::print(text);
                return Ok(());
            }
            Some(Verdict::Bad(text)) => return Err(CommandError::new(text)),
            None => thread::sleep(LOOK_EVERY),
        }
    }
}

/// `kedge slot holds-root DISK`, for udev: other disks that are plugged in may have partitions with our
/// labels.
///
/// # Errors
/// The root is on another disk, or on none.
pub fn holds_root(disk: &str) -> Result<(), CommandError> {
    let found = slots::disk_of(&Roots::default().sys, Path::new("/"));
    let found = found.map_err(|error| CommandError::new(format_args!("the root is on no disk: {error}")))?;
    match found.file_name().is_some_and(|name| name == disk) {
        true => Ok(()),
        false => Err(CommandError::new(format_args!("the root is on {}, not on {disk}", found.display()))),
    }
}

fn systemctl(asked: &[&str]) -> String {
    output_of("systemctl", asked)
}

fn output_of(program: &str, asked: &[&str]) -> String {
    let output = Command::new(program).args(asked).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The process of an active unit, and how often systemd has restarted it, by systemctl's answer.
fn unit(answer: &str) -> (Option<u32>, u32) {
    let value = |name: &str| {
        answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
    };
    let process =
        value("MainPID").parse().ok().filter(|process| *process != 0 && value("ActiveState") == "active");
    (process, value("NRestarts").parse().unwrap_or_default())
}

/// Whether systemd could load each unit, by systemctl's answer: a block of lines for each.
fn units(answer: &str) -> BTreeMap<String, String> {
    let unit = |block: &str| {
        let value = |name| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        Some((value("Id")?.to_owned(), value("LoadState")?.to_owned()))
    };
    answer.split("\n\n").filter_map(unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::host::of_image;
    use kedge_core::slot::Work;
    use kedge_platform::fake::FakeDisk;
    use kedge_platform::slots::LIST;
    use serde_json::{Value, json};
    use std::path::PathBuf;

    /// Slot a runs, and slot b is an older good one.
    pub(super) fn disk() -> FakeDisk {
        let disk = FakeDisk::new();
        for slot in ["a", "b"] {
            disk.put(format!("kedge/{slot}/vmlinuz"), b"old");
            disk.put(format!("kedge/{slot}/initrd"), b"old");
            let text = format!("title {slot}\nversion 7\noptions root=PARTLABEL=root-{slot} quiet\n");
            disk.put(entry(&format!("kedge-{slot}.conf")), text.as_bytes());
        }
        disk.put("dev/vda3", b"old root");
        disk
    }

    pub(super) fn entry(name: &str) -> PathBuf {
        Path::new(LIST).join(name)
    }

    /// The names of the boot loader's list.
    pub(super) fn list(disk: &FakeDisk) -> String {
        let all = disk.paths().into_iter();
        let names = all.filter_map(|path| Some(path.strip_prefix(LIST).ok()?.to_str()?.to_owned()));
        names.collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(expected: &str, mount: &str, watchdog: (&str, &str), renewed: Value) {
        let scratch = kedge_rig::Scratch::new("slot").unwrap();
        scratch.write("proc/mounts", mount);
        scratch.write("sys/class/watchdog/watchdog0/state", watchdog.0);
        scratch.write("sys/class/watchdog/watchdog0/identity", watchdog.1);
        let at = |name| scratch.path().join(name);
        let roots = Roots { proc: at("proc"), sys: at("sys"), ..Roots::default() };
        let found = inspect(&roots, Some(&json!({"lease": {"secondsSinceRenewal": renewed}})));
        assert_eq!(slot::words(&found, ","), expected, "{mount:?} {watchdog:?} {renewed}");
    }

    #[test]
    fn works_what_is_there_now() {
        let disk = "/dev/vda4 /var ext4 rw,noatime 0 0\n";
        check("state,watchdog,contact", disk, ("active\n", "iTCO_wdt\n"), json!(600));
        check("state,contact", disk, ("active\n", "Software Watchdog\n"), json!(0));
        check("state", disk, ("inactive\n", "iTCO_wdt\n"), json!(601));
        check(
            "watchdog",
            "tmpfs /var tmpfs rw,mode=755 0 0\n",
            ("active\n", "i6300ESB timer\n"),
            json!(null),
        );
        check("", "/dev/vda4 /var ext4 ro,noatime 0 0\n", ("inactive\n", "i6300ESB timer\n"), json!(null));
        check("", "/dev/vda4 /var ext4 rw 0 0\ntmpfs /var tmpfs rw 0 0\n", ("", ""), json!(null));
        check("", "/dev/vda4 /var\n", ("", ""), json!("soon"));
    }

    #[test]
    fn slot_is_that_of_an_image_only() {
        let scratch = kedge_rig::Scratch::new("slot").unwrap();
        scratch.write("cmdline", "root=PARTLABEL=root-b quiet\n");
        let roots = Roots { proc: scratch.path().into(), usr_lib: scratch.path().into(), ..Roots::default() };
        assert_eq!(of_image(&roots), None);
        scratch.write("kedge-image/release", "BOARD=toaster\n");
        assert_eq!(of_image(&roots).as_deref(), Some("b"));
        scratch.write("cmdline", "root=/dev/vda1 quiet\n");
        assert_eq!(of_image(&roots), None);
    }

    #[test]
    fn silent_agent_has_no_contact() {
        assert!(!inspect(&Roots::default(), None).contains(&Work::Contact));
    }

    #[test]
    fn units_are_those_that_systemctl_names() {
        let answer = "Id=kedge.service\nLoadState=loaded\n\nLoadState=not-found\nId=systemd-udevd.service\n";
        let found: Vec<_> = units(answer).into_iter().collect();
        let pair = |unit: &str, state: &str| (unit.to_owned(), state.to_owned());
        assert_eq!(found, [pair("kedge.service", "loaded"), pair("systemd-udevd.service", "not-found")]);
        assert!(units("Failed to connect to bus\n").is_empty() && units("").is_empty());
    }

    #[test]
    fn unit_counts_only_while_active() {
        assert_eq!(unit("MainPID=77\nNRestarts=3\nActiveState=active\n"), (Some(77), 3));
        assert_eq!(unit("MainPID=77\nNRestarts=31\nActiveState=activating\n"), (None, 31));
        assert_eq!(unit("MainPID=0\nNRestarts=0\nActiveState=active\n"), (None, 0));
        assert_eq!(unit("Failed to connect to bus"), (None, 0));
    }
}
