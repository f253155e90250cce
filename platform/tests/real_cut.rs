//! A real ext4 under the real code, cut at every flush: each write that reaches the block layer is logged, and the disk
//! is rebuilt as it was at each flush, with nothing and with a random half of what was on its way.
//!
//! What always holds: no rebuilt disk has less than was acknowledged before that flush, or anything but whole content.
//! The checker is checked: without fsync of the file, or of the directory, it must find fault.
//!
//! Needs root, loop devices, FUSE and qemu-storage-daemon (Debian: qemu-utils), whose
//! `blklogwrites` writes the log in dm-log-writes' format; says so and does nothing where they are missing.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kedge_platform::fake::Random;
use kedge_platform::{Files, linux};

const DISK_MIB: u64 = 16;
const ROUNDS: usize = 8;
const RECORD: &str = "v1/record";
const LIMIT: usize = 1 << 20;
/// dm-log-writes: the first eight bytes of the log.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

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

fn run(command: &str, arguments: &[&str]) -> bool {
    let status = Command::new(command).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file system whose every write is logged; taken down when dropped.
struct Rig {
    directory: PathBuf,
    daemon: Child,
    device: Option<String>,
}

impl Rig {
    fn start(name: &str) -> Option<Self> {
        let needed = ["mkfs.ext4", "losetup", "mount", "qemu-storage-daemon"];
        let missing: Vec<_> = needed.iter().filter(|tool| !run("which", &[tool])).collect();
        if !missing.is_empty() || !Path::new("/dev/fuse").exists() || !run("losetup", &["--find"]) {
            eprintln!(
                "SKIPPED: a real file system cannot be cut here; needs root, /dev/fuse and {missing:?}"
            );
            return None;
        }
        let directory = std::env::temp_dir().join(format!("kedge-cut-{}-{name}", std::process::id()));
        fs::create_dir_all(directory.join("mount")).unwrap();
        let at = |file: &str| directory.join(file);
        File::create(at("disk")).unwrap().set_len(DISK_MIB << 20).unwrap();
        assert!(run("mkfs.ext4", &["-q", "-F", text(&at("disk"))]));
        fs::copy(at("disk"), at("base")).unwrap();
        File::create(at("log")).unwrap();
        File::create(at("export")).unwrap();
        let file = |node: &str, name: &str| format!("file,node-name={node},filename={}", at(name).display());
        let log = "blklogwrites,node-name=w,file=f,log=l,log-sector-size=512,log-super-update-interval=1";
        let export = format!("fuse,id=e,node-name=w,mountpoint={},writable=on", at("export").display());
        let daemon = Command::new("timeout")
            .args([
                "300",
                "qemu-storage-daemon",
                "--blockdev",
                &file("f", "disk"),
                "--blockdev",
                &file("l", "log"),
            ])
            .args(["--blockdev", log, "--export", &export])
            .spawn()
            .unwrap();
        let mut rig = Self { directory, daemon, device: None };
        let began = Instant::now();
        while fs::metadata(rig.at("export")).map_or(0, |metadata| metadata.len()) == 0 {
            if began.elapsed() > Duration::from_secs(20) {
                eprintln!("SKIPPED: qemu-storage-daemon exports nothing by FUSE here");
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = Command::new("losetup").args(["--show", "-f"]).arg(rig.at("export")).output().unwrap();
        let device = String::from_utf8(found.stdout).unwrap().trim().to_string();
        rig.device = Some(device.clone());
        assert!(run("mount", &["-o", "commit=1", &device, text(&rig.at("mount"))]));
        Some(rig)
    }

    fn at(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Writes version after version; the log's length when each was acknowledged.
    fn record(&self, writer: Writer) -> Vec<u64> {
        let root = self.at("mount").join("root");
        let acknowledged = (1..=ROUNDS).map(|n| {
            write(writer, &root, &version(n));
            fs::metadata(self.at("log")).unwrap().len()
        });
        acknowledged.collect()
    }

    /// Checks every disk that a cut could have left; how many, and what is wrong.
    fn check(&self, acknowledged: &[u64], log: &[u8]) -> (usize, Vec<String>) {
        let entries = entries(log);
        let mut disk = fs::read(self.at("base")).unwrap();
        let mut random = Random::new(1);
        let (mut states, mut wrong, mut pending) = (0, Vec::new(), Vec::new());
        for (number, entry) in entries.iter().enumerate() {
            pending.push(entry);
            let last = number + 1 == entries.len();
            if entry.flags & (FLUSH | FUA) == 0 && !last {
                continue;
            }
            // Everything up to the flush before this one is durable. Of the rest: nothing, and a half.
            let before = pending.first().map_or(0, |first| first.start);
            let needed = acknowledged.iter().filter(|length| **length <= before as u64).count();
            for half in [false, true] {
                let mut image = disk.clone();
                let survivors = pending.iter().filter(|_| half && random.one_in(2));
                survivors.for_each(|entry| entry.apply(log, &mut image));
                states += 1;
                if let Err(problem) = self.judge(&image, needed) {
                    wrong.push(format!("at entry {number}, half {half}: {problem}"));
                }
            }
            pending.drain(..).for_each(|entry| entry.apply(log, &mut disk));
        }
        // And the cut after the last acknowledgement.
        states += 1;
        wrong.extend(
            self.judge(&disk, acknowledged.len()).err().map(|problem| format!("at the end: {problem}")),
        );
        (states, wrong)
    }

    fn judge(&self, image: &[u8], needed: usize) -> Result<(), String> {
        fs::write(self.at("image"), image).unwrap();
        let mount = self.at("mount");
        if !run("mount", &["-o", "loop", text(&self.at("image")), text(&mount)]) {
            return Err("does not mount".into());
        }
        let content = linux::files(mount.join("root")).read(Path::new(RECORD), LIMIT);
        assert!(run("umount", &[text(&mount)]));
        let found = match content {
            Ok(content) => (1..=ROUNDS).find(|n| version(*n) == content).ok_or("content of no version")?,
            Err(_) => 0,
        };
        if found < needed { Err(format!("acknowledged {needed}, found {found}")) } else { Ok(()) }
    }

    fn unmount(&mut self) {
        run("umount", &["--lazy", text(&self.at("mount"))]);
        if let Some(device) = self.device.take() {
            run("losetup", &["-d", &device]);
        }
        run("kill", &[&self.daemon.id().to_string()]);
        let _ = self.daemon.wait();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.unmount();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

struct LogEntry {
    start: usize,
    sector: usize,
    sectors: usize,
    flags: u64,
}

impl LogEntry {
    fn apply(&self, log: &[u8], image: &mut [u8]) {
        let range = self.sector * 512..(self.sector + self.sectors) * 512;
        if self.flags & DISCARD != 0 {
            image[range].fill(0);
        } else {
            let data = self.start + 512;
            image[range].copy_from_slice(&log[data..data + self.sectors * 512]);
        }
    }
}

/// The entries of a log that ends wherever the cut fell; its own count lags behind and is not trusted.
fn entries(log: &[u8]) -> Vec<LogEntry> {
    let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(number(0), MAGIC, "a log of writes");
    let mut found = Vec::new();
    let mut start = 512;
    while start + 512 <= log.len() {
        let [sector, sectors, flags, length] = [0, 8, 16, 24].map(|field| number(start + field));
        let data = if flags & DISCARD != 0 { 0 } else { sectors as usize * 512 };
        if [sector, sectors, flags, length] == [0; 4] || start + 512 + data > log.len() {
            break;
        }
        found.push(LogEntry { start, sector: sector as usize, sectors: sectors as usize, flags });
        start += 512 + data;
    }
    found
}

/// Runs a writer, cuts, and checks: how many states, and what is wrong. `None` where it cannot be done.
fn explore(name: &str, writer: Writer) -> Option<(usize, Vec<String>)> {
    let mut rig = Rig::start(name)?;
    let acknowledged = rig.record(writer);
    // The cut: nothing that is written from now on counts.
    let log = fs::read(rig.at("log")).unwrap();
    rig.unmount();
    Some(rig.check(&acknowledged, &log))
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
