//! The running board, for opening its state partition: the kernel's tables and mounts, and the system's tools
//! for ext4.
//!
//! Always holds: the partition is on the same disk as the root, because another disk that is plugged in may
//! have the same label. Each tool has a time limit: a disk that takes half a minute for each block would keep
//! a check busy for hours, and no watchdog runs yet.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};

use super::slots::{SECTOR_BYTES, disk_of};
use super::{LinuxDisk, Roots, files, read_text};
use crate::files::DurableFiles;
use crate::state::{Check, StateBoard};

/// The program that makes the file system and its options, before the device. Tables are zeroed later, in the
/// background.
pub const MAKE: [&str; 7] =
    ["mkfs.ext4", "-q", "-F", "-L", "state", "-E", "lazy_itable_init=1,lazy_journal_init=1"];
/// The check at each start.
pub const CORRECT: [&str; 3] = ["e2fsck", "-f", "-p"];
/// The mount options. After an error the kernel stops writing, and the next start repairs the file system.
pub const OPTIONS: &str = "noatime,errors=remount-ro";

/// The same as flags of the system call.
const FLAGS: MsFlags = MsFlags::MS_NOATIME;
const DATA: &str = "errors=remount-ro";
const REPAIR: [&str; 3] = ["e2fsck", "-f", "-y"];
/// Used where no PATH is set yet.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// The partition's label.
const LABEL: &str = "state";
/// A hundred times the duration of a check of a large disk.
const CHECK_SECS: &str = "600";
/// Limit for reading a superblock, and for a new partition table.
const SHORT_SECS: &str = "60";
/// The exit codes of `timeout` after it ended a program, and after it, or the kernel for lack of memory,
/// killed it.
const ENDED: [i32; 2] = [124, 137];
/// Bytes of a tool's output that are kept.
const OUTPUT_BYTES: usize = 4096;
/// The size of test reads.
const BLOCK_BYTES: u64 = 4096;
/// The directory of a device's own files and the machine id, which are shown in their usual places.
const OWN: &str = "/var/etc";
const CONFIG: (&str, &str) = ("/var/etc/kedge", "/etc/kedge");
const MACHINE_ID: (&str, &str) = ("/var/etc/machine-id", "/etc/machine-id");
/// Directories that packages expect below `/var`, with their modes.
const DIRECTORIES: [(&str, u32); 5] = [
    ("/var/etc/kedge", 0o755),
    ("/var/etc/kedge/config.d", 0o755),
    ("/var/lib", 0o755),
    ("/var/log/journal", 0o755),
    ("/var/tmp", 0o1777),
];

/// The running board, or a file in place of its partition.
#[derive(Debug)]
pub struct LinuxState {
    /// The folder of sysfs, and the device.
    partition: Option<(PathBuf, PathBuf)>,
    roots: Roots,
}

impl LinuxState {
    /// The board with the partition on the disk of the root.
    pub fn new(roots: &Roots) -> Self {
        let disk = disk_of(&roots.sys, Path::new("/")).ok();
        Self { partition: disk.as_deref().and_then(partition_of), roots: roots.clone() }
    }

    fn found(&self) -> io::Result<&(PathBuf, PathBuf)> {
        self.partition.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn on_device(&self, tool: &[&str], limit: &str) -> io::Result<Output> {
        let (_, device) = self.found()?;
        let all = tool.iter().map(OsStr::new).chain([device.as_os_str()]);
        let mut command = Command::new("timeout");
        command.args(["-k", "10", limit]).args(all).env("PATH", PATH).stdin(Stdio::null()).output()
    }

    fn check(&self, tool: &[&str]) -> Check {
        match self.on_device(tool, CHECK_SECS) {
            Ok(output) => match output.status.code() {
                Some(code) if !ENDED.contains(&code) => Some((code, shown(&output))),
                _ => None,
            },
            // the tool could not be started: an error that stays uncorrected
            Err(error) => Some((-1, error.to_string())),
        }
    }

    fn sectors(&self, path: &Path) -> io::Result<u64> {
        let number = read_text(path)?.parse();
        number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// The partition with our label, as a folder of sysfs and a device.
fn partition_of(disk: &Path) -> Option<(PathBuf, PathBuf)> {
    let folders = disk.read_dir().ok()?.flatten().map(|entry| entry.path());
    let mut found = folders.filter_map(|folder| {
        let uevent = read_text(&folder.join("uevent")).ok()?;
        let value = |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let device = Path::new("/dev").join(value("DEVNAME")?);
        (value("PARTNAME") == Some(LABEL)).then_some((folder, device))
    });
    found.next()
}

/// A tool's output, first standard output, then errors, cut to a length that fits a log line.
fn shown(output: &Output) -> String {
    let all: Vec<u8> = output.stdout.iter().chain(&output.stderr).copied().take(OUTPUT_BYTES).collect();
    String::from_utf8_lossy(&all).into_owned()
}

fn succeeded(output: io::Result<Output>) -> io::Result<()> {
    let output = output?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{}: {}",
            output.status,
            shown(&output).trim_end().replace('\n', ";")
        ))),
    }
}

fn bind((from, to): (&str, &str)) -> io::Result<()> {
    Ok(mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

fn memory(at: &str, data: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(data))?)
}

fn make_directory(path: &str, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    set_mode(path, mode)
}

/// Writes nothing if the mode is right already.
fn set_mode(path: &str, mode: u32) -> io::Result<()> {
    match fs::metadata(path)?.permissions().mode() & 0o7777 == mode {
        true => Ok(()),
        false => fs::set_permissions(path, PermissionsExt::from_mode(mode)),
    }
}

impl StateBoard for LinuxState {
    type Disk = LinuxDisk;

    fn device(&self) -> Option<PathBuf> {
        self.partition.as_ref().map(|(_, device)| device.clone())
    }

    fn say(&self, text: &str) {
        let line = format!("<5>kedge-image: {text}\n");
        let log = OpenOptions::new().write(true).open("/dev/kmsg");
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn has_file_system(&self) -> bool {
        self.on_device(&["dumpe2fs", "-h"], SHORT_SECS).is_ok_and(|output| output.status.success())
    }

    fn correct(&self) -> Check {
        self.check(&CORRECT)
    }

    fn repair(&self, copy: Option<(u32, u32)>) -> Check {
        let copy = copy.map(|(block, bytes)| (block.to_string(), bytes.to_string()));
        let mut tool = REPAIR.to_vec();
        if let Some((block, bytes)) = &copy {
            tool.extend(["-b", block, "-B", bytes]);
        }
        self.check(&tool)
    }

    fn mount(&self, is_writable: bool) -> io::Result<()> {
        let (_, device) = self.found()?;
        let (flags, data) = match is_writable {
            true => (FLAGS, DATA),
            // not even the journal is replayed
            false => (FLAGS.union(MsFlags::MS_RDONLY), "noload"),
        };
        Ok(mount(Some(device), "/var", Some("ext4"), flags, Some(data))?)
    }

    fn bytes(&self) -> io::Result<u64> {
        let (folder, _) = self.found()?;
        Ok(self.sectors(&folder.join("size"))?.saturating_mul(SECTOR_BYTES))
    }

    fn bytes_behind(&self) -> io::Result<u64> {
        let (folder, _) = self.found()?;
        let disk = folder.parent().unwrap_or(folder);
        let end = self.sectors(&folder.join("start"))?.saturating_add(self.sectors(&folder.join("size"))?);
        let sectors = self.sectors(&disk.join("size"))?.saturating_sub(end);
        Ok(sectors.saturating_mul(SECTOR_BYTES))
    }

    fn read(&self, at: u64, bytes: u64) -> io::Result<()> {
        let (_, device) = self.found()?;
        let mut device = OpenOptions::new().read(true).custom_flags(OFlag::O_CLOEXEC.bits()).open(device)?;
        device.seek(SeekFrom::Start(at))?;
        let mut block = [0; BLOCK_BYTES as usize];
        (0..bytes.div_ceil(BLOCK_BYTES)).try_for_each(|_| device.read_exact(&mut block))
    }

    fn grow(&self) -> io::Result<()> {
        let (folder, _) = self.found()?;
        let disk = folder.parent().and_then(Path::file_name).unwrap_or_default();
        let mut definitions = OsString::from("--definitions=");
        definitions.push(self.roots.usr_lib.with_file_name("share/kedge-image/repart.d"));
        let mut command = Command::new("timeout");
        command.args(["-k", "10", SHORT_SECS, "systemd-repart"]).arg(definitions);
        command.args(["--dry-run=no", "--no-legend", "--pretty=no"]).arg(Path::new("/dev").join(disk));
        succeeded(command.env("PATH", PATH).stdin(Stdio::null()).output())
    }

    fn make(&self) -> io::Result<()> {
        succeeded(self.on_device(&MAKE, CHECK_SECS))
    }

    fn use_memory(&self) -> io::Result<()> {
        memory("/var", "mode=755,size=25%")
    }

    fn make_directories(&self) -> io::Result<()> {
        // tries all, and returns the first error
        DIRECTORIES.map(|(path, mode)| make_directory(path, mode)).into_iter().collect()
    }

    fn show_own_files(&self) -> io::Result<()> {
        bind(CONFIG).or_else(|_| memory(CONFIG.1, "mode=755,size=1m"))
    }

    fn own(&self) -> Arc<DurableFiles<LinuxDisk>> {
        files(OWN)
    }

    fn uuid(&self) -> io::Result<String> {
        read_text(&self.roots.proc.join("sys/kernel/random/uuid"))
    }

    fn show_machine_id(&self) -> io::Result<()> {
        let readable = set_mode(MACHINE_ID.0, 0o444);
        bind(MACHINE_ID).and(readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn partition_is_that_of_the_disk_with_the_root() {
        let scratch = kedge_rig::Scratch::new("state").unwrap();
        scratch.write("vda/uevent", "DEVNAME=vda\n");
        scratch.write("vda/size", "100000\n");
        scratch.write("vda/vda3/uevent", "DEVNAME=vda3\nPARTNAME=root-b\n");
        scratch.write("vda/vda4/uevent", "DEVNAME=vda4\nPARTNAME=state\n");
        scratch.write("vda/vda4/start", "1000\n");
        scratch.write("vda/vda4/size", "2000\n");
        scratch.write("sda/sda1/uevent", "DEVNAME=sda1\nPARTNAME=stateless\n");
        let found = partition_of(&scratch.path().join("vda"));
        assert_eq!(found, Some((scratch.path().join("vda/vda4"), "/dev/vda4".into())));
        assert_eq!(partition_of(&scratch.path().join("sda")), None);
        let state = LinuxState { partition: found, roots: Roots::default() };
        assert_eq!((state.bytes().unwrap(), state.bytes_behind().unwrap()), (2000 * 512, 97_000 * 512));
        let none = LinuxState { partition: None, roots: Roots::default() };
        assert!(none.bytes().is_err() && none.mount(true).is_err() && none.device().is_none());
    }

    #[test]
    fn options_are_what_the_call_gets() {
        assert_eq!(OPTIONS, format!("noatime,{DATA}"));
    }

    /// With the real tools, on a file.
    #[test]
    fn superblock_is_taken_from_its_copy() {
        let scratch = kedge_rig::Scratch::new("ext4").unwrap();
        let device = scratch.path().join("device");
        File::create(&device).unwrap().set_len(64 << 20).unwrap();
        let state =
            LinuxState { partition: Some((scratch.path().into(), device.clone())), roots: Roots::default() };
        assert!(!state.has_file_system());
        if let Err(error) = state.make() {
            assert!(error.to_string().contains("127"), "{error}");
            eprintln!("left out: no mkfs.ext4 here");
            return;
        }
        assert!(state.has_file_system());
        assert_eq!(state.correct().map(|(code, _)| code), Some(0));
        state.read(0, 64 << 10).unwrap();
        assert!(state.read(64 << 20, 1).is_err());
        OpenOptions::new().write(true).open(&device).unwrap().write_all(&[0; 65536]).unwrap();
        assert!(!state.has_file_system());
        assert!(state.correct().is_some_and(|(code, _)| code >= 4));
        let from = |block, bytes| state.repair(Some((block, bytes))).map(|(code, _)| code);
        assert!(from(32768, 4096).is_some_and(|code| code >= 4), "its blocks have 1024 bytes");
        assert!(from(8193, 1024).is_some_and(|code| code < 4));
        assert!(state.has_file_system());
    }
}
