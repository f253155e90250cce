//! The machine's traces of its last reset: the watchdog driver's boot status, and pstore's panic records.
//!
//! Always holds: the search is bounded in depth, names and bytes; a record of an oops (after which the kernel
//! went on) is not a panic; a missing directory means no evidence.
//!
//! Leaves to others: the evidence that was used before (`exit`).

use std::fs;
use std::path::{Path, PathBuf};

use super::{Roots, clocks, read_regular, read_text};
use crate::exit::{PANIC_RECORDS_LIMIT, ResetTraces, fingerprint};

/// `WDIOF_CARDRESET` of linux/watchdog.h: the card reset the machine.
const WDIOF_CARDRESET: u64 = 0x20;
/// Most watchdog devices that are examined.
const WATCHDOGS_LIMIT: usize = 16;
/// Most names that are examined in each of pstore's directories.
const NAMES_LIMIT: usize = 4096;
/// Bytes of a record from which its fingerprint is made; parts are a few KiB.
const RECORD_BYTES: usize = 64 * 1024;
/// systemd-pstore stores records two directories deep.
const DEPTH_LIMIT: usize = 3;

/// The machine's own traces.
#[derive(Clone, Debug)]
pub struct LinuxTraces {
    roots: Roots,
}

impl LinuxTraces {
    /// Traces found under `roots`.
    pub fn new(roots: Roots) -> Self {
        Self { roots }
    }
}

impl ResetTraces for LinuxTraces {
    fn boot_id(&self) -> String {
        clocks::boot_id(&self.roots)
    }

    fn watchdog_reset(&self) -> bool {
        let class = self.roots.sys.join("class/watchdog");
        let devices = fs::read_dir(class).into_iter().flatten().flatten().take(WATCHDOGS_LIMIT);
        devices.map(|device| device.path().join("bootstatus")).any(|path| {
            read_text(&path)
                .ok()
                .and_then(|text| number(&text))
                .is_some_and(|bits| bits & WDIOF_CARDRESET != 0)
        })
    }

    fn panic_records(&self) -> Vec<String> {
        let mut paths = newest_first(&self.roots.sys.join("fs/pstore"));
        paths.extend(newest_first(&self.roots.var_lib.join("systemd/pstore")));
        let mut records: Vec<String> = Vec::new();
        for path in paths {
            if records.len() >= PANIC_RECORDS_LIMIT {
                break;
            }
            match panic_record(&path) {
                Some(record) if !records.contains(&record) => records.push(record),
                _ => {}
            }
        }
        records
    }
}

/// The kernel prints decimal; a driver of its own may print hexadecimal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Records below `directory`; names and directories carry a time or a rising number.
fn newest_first(directory: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    gather(directory, DEPTH_LIMIT, &mut paths);
    paths.sort_by(|a, b| b.cmp(a));
    paths
}

fn gather(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Some(deeper) = depth.checked_sub(1) else { return };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten().take(NAMES_LIMIT) {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => gather(&entry.path(), deeper, found),
            // `dmesg.txt` is assembled from the parts and would make one panic look like two.
            Ok(kind) if kind.is_file() && entry.file_name().as_encoded_bytes().starts_with(b"dmesg-") => {
                found.push(entry.path());
            }
            _ => {}
        }
    }
}

/// The fingerprint of a record, if it may be a panic's.
fn panic_record(path: &Path) -> Option<String> {
    let content = match read_regular(path, RECORD_BYTES) {
        Ok(content) => content,
        Err(error) => {
            log::warn!("cannot read {}: {error}", path.display());
            return None;
        }
    };
    // The first line is `Panic#2 Part1`, `Oops#1 Part1`, ...; a compressed record does not show it, and
    // counts as a panic.
    let survived = ["Oops#", "Shutdown#", "Restart#", "Halt#", "Poweroff#", "Power off#"];
    let survived = survived.iter().any(|reason| content.starts_with(reason.as_bytes()));
    (!survived && !content.is_empty()).then(|| fingerprint(&content))
}
