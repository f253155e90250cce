//! Facts of the machine that the slot commands share: whether this is a disk image, which slot runs, whether
//! another command works.

use crate::local::client;
use crate::options::Places;
use kedge_core::slot::{self, CommandLine, Work, Works};
use kedge_platform::linux::{self, Roots};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// systemd-boot sets it for a boot that it counts.
pub(crate) const COUNTING: &str =
    "firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Held by an update and by a blessing.
pub(crate) const LOCK: &str = "/run/kedge-update.lock";

/// For the person at the console, or the journal: reports of progress are not an answer that a script would
/// read.
pub(crate) fn say(text: impl std::fmt::Display) {
    eprintln!("kedge: {text}");
}

/// Whether this node runs one of our disk images.
pub(crate) fn is_image(roots: &Roots) -> bool {
    roots.usr_lib.join("kedge-image/release").exists()
}

/// The running slot, on an image.
pub(crate) fn of_image(roots: &Roots) -> Option<String> {
    let line = CommandLine::parse(&read(&roots.proc.join("cmdline")));
    line.slot.filter(|_| is_image(roots)).map(|slot| slot.to_owned())
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The running agent's answer.
pub(crate) fn status(places: &Places) -> Option<Value> {
    let answer = client::get(&places.socket(), "/status").ok().filter(|answer| answer.status == 200)?;
    serde_json::from_slice(&answer.body).ok()
}

pub(crate) fn inspect(roots: &Roots, status: Option<&Value>) -> Works {
    let renewed = status.and_then(|status| status["lease"]["secondsSinceRenewal"].as_u64());
    let found = [
        (Work::State, has_state(&read(&roots.proc.join("mounts")))),
        (
            Work::Watchdog,
            linux::watchdogs(roots).iter().any(|device| device.is_active() && device.is_hardware()),
        ),
        (Work::Contact, renewed.is_some_and(|secs| secs <= slot::CONTACT_WITHIN.as_secs())),
    ];
    found.into_iter().filter_map(|(work, is_there)| is_there.then_some(work)).collect()
}

/// Whether `/var` is a file system of a disk that can be written; the last line for a path is the mount that
/// is seen.
pub(crate) fn has_state(mounts: &str) -> bool {
    let seen = |line: &'_ str| {
        let mut words = line.split(' ').skip(1).map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    let var = mounts.lines().rev().filter_map(seen).find(|(at, ..)| at == "/var");
    var.is_some_and(|(_, kind, options)| kind == "ext4" && options.split(',').any(|word| word == "rw"))
}
