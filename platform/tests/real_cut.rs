//! A real ext4 under the real code, cut at every flush: each write that reaches the block layer is logged, and the disk
//! is rebuilt as it was at each flush, with nothing and with a random half of what was on its way.
//!
//! What always holds: no rebuilt disk has less than was acknowledged before that flush, or anything but whole content.
//! The checker is checked: without fsync of the file, or of the directory, it must find fault.
//!
//! The rig is `kedge_rig::logged_disk`. Without root, loop devices, FUSE and qemu-storage-daemon this says so and does
//! nothing; under CI=true it fails.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use kedge_platform::{Files, linux};
use kedge_rig::logged_disk::{self, Choice, EXT4, FileSystem, Image, LoggedDisk, Mounted, Recording};

/// The journal is committed every second, so that a write nobody synced reaches the disk while the test still looks.
const FILE_SYSTEM: FileSystem = FileSystem { options: "commit=1", ..EXT4 };
const ROUNDS: usize = 8;
const RECORD: &str = "v1/record";
const LIMIT: usize = 1 << 20;

/// How a version is put in place.
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

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = logged_disk::fast_directory().join(format!("kedge-cut-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("mount")).unwrap();
        Self(path)
    }

    fn mount(&self) -> PathBuf {
        self.0.join("mount")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes version after version, then cuts: everything written, and the log's length when each was acknowledged.
fn record(scratch: &Scratch, writer: Writer) -> (Recording, Vec<u64>) {
    let disk = LoggedDisk::start(&FILE_SYSTEM, &scratch.0, &scratch.mount()).unwrap();
    let (root, clock) = (disk.mount().join("root"), disk.clock());
    let acknowledged = (1..=ROUNDS).map(|n| {
        write(writer, &root, &version(n));
        clock.now()
    });
    let acknowledged = acknowledged.collect();
    (disk.cut().unwrap(), acknowledged)
}

/// Whether the disk has whole content, and none older than was acknowledged.
fn judge(scratch: &Scratch, image: &Image, needed: usize) -> Result<(), String> {
    let mounted = Mounted::new(&FILE_SYSTEM, image, &scratch.0.join("image"), &scratch.mount());
    let _mounted = mounted.map_err(|error| format!("does not mount: {error}"))?;
    let content = linux::files(scratch.mount().join("root")).read(Path::new(RECORD), LIMIT);
    let found = match content {
        Ok(content) => (1..=ROUNDS).find(|n| version(*n) == content).ok_or("content of no version")?,
        Err(_) => 0,
    };
    if found < needed { Err(format!("acknowledged {needed}, found {found}")) } else { Ok(()) }
}

/// Runs a writer, cuts, and checks: how many states, and what is wrong. `None` where it cannot be done.
fn explore(name: &str, writer: Writer) -> Option<(usize, Vec<String>)> {
    if let Some(lacks) = logged_disk::missing(&FILE_SYSTEM) {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "a real file system cannot be cut: {lacks}");
        eprintln!("SKIPPED: a real file system cannot be cut here, for want of: {lacks}");
        return None;
    }
    let scratch = Scratch::new(name);
    let (recording, acknowledged) = record(&scratch, writer);
    // one disk in two is enough to find fault
    let thin = writer != Writer::Ours;
    let choice = Choice { subsets: 1, thin, instants: acknowledged.clone(), seed: 1 };
    let (mut states, mut wrong) = (0, Vec::new());
    for cut in recording.cuts(&choice) {
        let needed = acknowledged.iter().filter(|at| **at <= cut.at).count();
        states += 1;
        if let Err(problem) = judge(&scratch, &cut.image, needed) {
            wrong.push(format!("flush {}, subset {}: {problem}", cut.flush, cut.subset));
        }
    }
    Some((states, wrong))
}

#[test]
fn a_real_file_system_cut_at_every_flush_has_what_was_acknowledged() {
    let Some((states, wrong)) = explore("ours", Writer::Ours) else { return };
    assert!(states > 30, "only {states} states");
    assert!(wrong.is_empty(), "{} of {states} wrong, first: {:?}", wrong.len(), wrong.first());
    eprintln!("{states} crash states of a real ext4, none wrong");
}

#[test]
fn the_checker_of_the_real_file_system_catches_missing_syncs() {
    for (name, writer) in [("file", Writer::WithoutFileSync), ("directory", Writer::WithoutDirectorySync)] {
        let Some((states, wrong)) = explore(name, writer) else { return };
        assert!(!wrong.is_empty(), "without sync of the {name}: nothing found in {states} states");
        eprintln!("without sync of the {name}: {} of {states} states wrong", wrong.len());
    }
}
