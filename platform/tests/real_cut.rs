//! A real ext4 under the real code, cut at every flush: each write that reaches the block layer is logged,
//! and the disk is rebuilt as it was at each flush, with none and with a random half of the writes in flight.
//!
//! Always holds: a rebuilt disk has everything that was acknowledged before that flush, and only complete
//! content. The checker is checked: without fsync of the file, or of the directory, it must find a fault.
//!
//! The rig is `kedge_rig::power_cut`. Without root, loop devices, FUSE and qemu-storage-daemon the test
//! prints that and does nothing; under CI=true it fails.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use kedge_platform::{Files, linux};
use kedge_rig::Scratch;
use kedge_rig::logged_disk::{EXT4, FileSystem, LoggedDisk};
use kedge_rig::power_cut::{Cutting, History, Rebuilt, Report, cut_at_every_flush, is_possible};

/// The journal is committed every second, so that an unsynced write reaches the disk during the test.
const FILE_SYSTEM: FileSystem = FileSystem { options: "commit=1", ..EXT4 };
const ROUNDS: usize = 8;
const RECORD: &str = "v1/record";
const LIMIT: usize = 1 << 20;

/// The way in which a version is written.
#[derive(Clone, Copy, PartialEq)]
enum Writer {
    Ours,
    WithoutFileSync,
    WithoutDirectorySync,
}

/// Recognizable content of a few KiB.
fn version(n: usize) -> Vec<u8> {
    (0..4096 + n % 7 * 1000).map(|index| (index * 31 + n * 7 + index / 512) as u8).collect()
}

fn write(writer: Writer, root: &Path, content: &[u8]) {
    if writer == Writer::Ours {
        return linux::files(root).write_durably(Path::new(RECORD), content).unwrap();
    }
    let target = root.join(RECORD);
    let temporary = root.join("v1/new");
    fs::create_dir_all(root.join("v1")).unwrap();
    let mut file = File::create(&temporary).unwrap();
    file.write_all(content).unwrap();
    if writer != Writer::WithoutFileSync {
        file.sync_all().unwrap();
    }
    fs::rename(temporary, target).unwrap();
    if writer != Writer::WithoutDirectorySync {
        File::open(root.join("v1")).unwrap().sync_all().unwrap();
    }
}

/// The log's length when each version was acknowledged.
struct Acknowledged(Vec<u64>);

impl History for Acknowledged {
    fn acknowledged(&self) -> Vec<u64> {
        self.0.clone()
    }
}

/// Writes version after version.
fn run(disk: &LoggedDisk, writer: Writer) -> Acknowledged {
    let (root, clock) = (disk.mount().join("root"), disk.clock());
    let acknowledged = (1..=ROUNDS).map(|n| {
        write(writer, &root, &version(n));
        clock.now()
    });
    Acknowledged(acknowledged.collect())
}

/// Checks that the disk has complete content, not older than the last acknowledged version.
fn judge(acknowledged: &Acknowledged, rebuilt: &Rebuilt<'_>) -> Result<(), String> {
    let needed = acknowledged.0.iter().filter(|at| **at <= rebuilt.cut.at).count();
    let mounted = rebuilt.mount()?;
    let content = linux::files(mounted.path().join("root")).read(Path::new(RECORD), LIMIT);
    let found = match content {
        Ok(content) => (1..=ROUNDS).find(|n| version(*n) == content).ok_or("content of no version")?,
        Err(_) => 0,
    };
    if found < needed { Err(format!("acknowledged {needed}, found {found}")) } else { Ok(()) }
}

/// Runs a writer, cuts, and checks. `None` where it is not possible.
fn cut(name: &str, writer: Writer) -> Option<Report> {
    if !is_possible(&FILE_SYSTEM) {
        return None;
    }
    let files = Scratch::in_memory(name).unwrap();
    let mount = files.join("mount");
    // one disk in two is enough to find violations
    let thin = writer != Writer::Ours;
    let cutting = Cutting { name, file_system: FILE_SYSTEM, mount: &mount, subsets: 1, thin, enough: None };
    let (report, _) = cut_at_every_flush(&cutting, |disk| run(disk, writer), judge).unwrap();
    eprintln!("{name}: {report}");
    Some(report)
}

#[test]
fn durable_writes_survive_a_cut_at_every_flush() {
    let Some(report) = cut("cut-ours", Writer::Ours) else { return };
    report.assert_none_wrong(30);
}

#[test]
fn missing_syncs_are_caught() {
    for (name, writer) in [
        ("cut-no-file-sync", Writer::WithoutFileSync),
        ("cut-no-directory-sync", Writer::WithoutDirectorySync),
    ] {
        let Some(report) = cut(name, writer) else { return };
        assert!(report.violations > 0, "{name}: nothing found in {} disks", report.disks);
    }
}
