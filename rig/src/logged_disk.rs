//! A real file system on a disk whose every write and flush is logged, and every disk that a power cut could
//! have left.
//!
//! `qemu-storage-daemon` serves a file through its `blklogwrites` filter by FUSE, a loop device is attached
//! to that, and the file system is on the loop device. The loop device passes each flush on as an fsync, so
//! the log has the same barriers that a disk would see. Always holds: a rebuilt disk has every write that a
//! finished flush covers, and some of the later writes, torn at sectors or whole; everything that was
//! acknowledged before a position of the log was flushed before it. For two writes in progress during a flush
//! the log may allow less loss than a real disk, never more.
//!
//! Needs root, `/dev/fuse`, loop devices, `qemu-storage-daemon` (Debian: qemu-utils) and the file system's
//! mkfs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kedge_platform::linux::state;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::Random;
use crate::error::RigError;
use crate::scratch::poll;

/// Bytes that a disk writes as a unit: never torn. Also the unit of the log.
const SECTOR: usize = 512;
/// The unit in which an image is kept in memory.
const PAGE: usize = 4096;
/// Bytes of a disk that are read at once.
const READ_BYTES: usize = 1 << 20;
/// dm-log-writes: the first eight bytes of the log.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
/// Longest wait for the export to appear: a process that opens two files.
const EXPORT_LIMIT: Duration = Duration::from_secs(20);
/// Longest time for which a file system may stay busy, until a killed process is really gone.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// A file system and its mount options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// Its name for messages.
    pub name: &'static str,
    /// As in `/proc/filesystems`.
    pub kind: &'static str,
    /// The program that makes it, with its options.
    pub make: &'static [&'static str],
    /// Mount options.
    pub options: &'static str,
    /// Size of the disk in MiB.
    pub mib: u64,
    /// The program that repairs it before each mount after a cut, with its options; empty: replaying the
    /// journal must be enough.
    pub repair: &'static [&'static str],
}

/// ext4 with the blocks that a disk of any real size gets, and its default mount options.
pub const EXT4: FileSystem = FileSystem {
    name: "ext4",
    kind: "ext4",
    make: &["mkfs.ext4", "-q", "-F", "-b", "4096"],
    options: "defaults",
    mib: 24,
    repair: &[],
};

/// The state partition of the disk images, made, mounted and repaired in the same way; with the blocks that
/// mkfs chooses for a partition of any real size.
pub const STATE_PARTITION: FileSystem = FileSystem {
    name: "ext4 of the images",
    make: &{
        let [program, options @ ..] = state::MAKE;
        let [quiet, force, label, name, extended, lazy] = options;
        [program, "-b", "4096", quiet, force, label, name, extended, lazy]
    },
    options: state::OPTIONS,
    repair: &state::CORRECT,
    ..EXT4
};

/// ext4 that does not write data before the metadata that refers to it.
pub const EXT4_WRITEBACK: FileSystem =
    FileSystem { name: "ext4 data=writeback", options: "data=writeback", ..EXT4 };

/// btrfs, at the smallest size it accepts.
pub const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    kind: "btrfs",
    make: &["mkfs.btrfs", "-q", "-f"],
    options: "defaults",
    mib: 114,
    repair: &[],
};

/// e2fsck's exit codes below this one mean that there were no errors, or that they are corrected.
const UNCORRECTED: i32 = 4;

impl FileSystem {
    fn repair(&self, device: &Path) -> Result<(), RigError> {
        let [program, options @ ..] = self.repair else { return Ok(()) };
        let output = Command::new(program).args(options).arg(device).stdin(Stdio::null()).output();
        let output = output.map_err(|source| RigError::Io { tried: format!("run {program}"), source })?;
        match output.status.code() {
            Some(code) if code < UNCORRECTED => Ok(()),
            _ => Err(RigError::Failed {
                command: (*program).to_owned(),
                status: output.status.to_string(),
                said: String::from_utf8_lossy(&output.stdout).into_owned(),
            }),
        }
    }
}

/// The missing requirements of this machine for a logged disk with this file system, for people; `None` if
/// all are met.
pub fn missing(file_system: &FileSystem) -> Option<String> {
    let mut tools = vec![file_system.make[0], "losetup", "mount", "umount", "qemu-storage-daemon", "setpriv"];
    tools.extend(file_system.repair.first());
    let mut lacks: Vec<String> =
        tools.iter().filter(|tool| !succeeds("which", &[tool])).map(|tool| (*tool).to_owned()).collect();
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.split_whitespace().any(|word| word == file_system.kind) {
        lacks.push(format!("{} in the kernel", file_system.kind));
    }
    if !Path::new("/dev/fuse").exists() {
        lacks.push("/dev/fuse".to_owned());
    }
    if !succeeds("losetup", &["--find"]) {
        lacks.push("a loop device and the right to use it (root)".to_owned());
    }
    (!lacks.is_empty()).then(|| lacks.join(", "))
}

fn succeeds(command: &str, arguments: &[&str]) -> bool {
    let status = Command::new(command)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn perform(command: &mut Command) -> Result<String, RigError> {
    let shown = format!("{command:?}");
    let failed = |source| RigError::Io { tried: format!("run {shown}"), source };
    let output = command.stdin(Stdio::null()).output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(RigError::Failed { command: shown, status: output.status.to_string(), said });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn unmount(mount: &Path) -> Result<(), RigError> {
    let mut last = None;
    let done = poll(BUSY_LIMIT, || perform(Command::new("umount").arg(mount)).is_ok().then_some(()));
    if done.is_none() {
        last = perform(Command::new("umount").arg("--lazy").arg(mount)).err();
        eprintln!("{} is still busy, unmounted lazily", mount.display());
    }
    last.map_or(Ok(()), Err)
}

/// A mounted file system whose writes are logged; taken down when dropped.
#[derive(Debug)]
pub struct LoggedDisk {
    directory: PathBuf,
    mount: PathBuf,
    base: Image,
    daemon: Child,
    device: Option<String>,
    mounted: bool,
}

/// The length of the log: the only clock by which acknowledgements and cuts are compared.
#[derive(Debug, Clone)]
pub struct LogClock(PathBuf);

impl LogClock {
    /// The log's length now. Everything acknowledged before this call is before this position.
    pub fn now(&self) -> u64 {
        fs::metadata(&self.0).map_or(0, |metadata| metadata.len())
    }
}

impl LoggedDisk {
    /// Makes the file system anew and mounts it on the existing directory `mount`. Its files are made in
    /// `directory`, which the caller must remove afterwards.
    ///
    /// # Errors
    /// [`RigError::Missing`] if this machine cannot do it, although [`missing`] found everything.
    pub fn start(file_system: &FileSystem, directory: &Path, mount: &Path) -> Result<Self, RigError> {
        let disk = directory.join("disk");
        let made = File::create(&disk).and_then(|file| file.set_len(file_system.mib << 20));
        made.map_err(RigError::io("make the disk", &disk))?;
        perform(Command::new(file_system.make[0]).args(&file_system.make[1..]).arg(&disk))?;
        Self::over(file_system, directory, mount)
    }

    /// The same on a disk that a cut left.
    ///
    /// # Errors
    /// As [`LoggedDisk::start`].
    pub fn resume(
        file_system: &FileSystem,
        image: &Image,
        directory: &Path,
        mount: &Path,
    ) -> Result<Self, RigError> {
        image.write_to(&directory.join("disk"))?;
        Self::over(file_system, directory, mount)
    }

    fn over(file_system: &FileSystem, directory: &Path, mount: &Path) -> Result<Self, RigError> {
        let at = |file: &str| directory.join(file);
        let base = Image::read(&at("disk"))?;
        for file in ["log", "export"] {
            File::create(at(file)).map_err(RigError::io("make", &at(file)))?;
        }
        let daemon = daemon(directory)?;
        let mut disk = Self {
            directory: directory.to_owned(),
            mount: mount.to_owned(),
            base,
            daemon,
            device: None,
            mounted: false,
        };
        disk.attach(file_system)?;
        Ok(disk)
    }

    fn attach(&mut self, file_system: &FileSystem) -> Result<(), RigError> {
        let export = self.directory.join("export");
        let size = || fs::metadata(&export).map_or(0, |metadata| metadata.len());
        if poll(EXPORT_LIMIT, || (size() > 0).then_some(())).is_none() {
            return Err(RigError::Missing {
                program: "a FUSE export of qemu-storage-daemon".to_owned(),
                looked: export.display().to_string(),
                remedy: "it as root, with /dev/fuse, outside of a container".to_owned(),
            });
        }
        let device = perform(Command::new("losetup").args(["--show", "-f"]).arg(&export))?;
        self.device = Some(device.clone());
        perform(Command::new("mount").args(["-o", file_system.options]).arg(device).arg(&self.mount))?;
        self.mounted = true;
        Ok(())
    }

    /// The clock of this log.
    pub fn clock(&self) -> LogClock {
        LogClock(self.directory.join("log"))
    }

    /// The mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Cuts the power: later writes do not count.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn cut(mut self) -> Result<Recording, RigError> {
        let path = self.directory.join("log");
        let log = fs::read(&path).map_err(RigError::io("read", &path))?;
        let base = std::mem::take(&mut self.base);
        drop(self);
        Recording::new(base, log)
    }
}

fn daemon(directory: &Path) -> Result<Child, RigError> {
    let at = |name: &str| directory.join(name).display().to_string();
    let file = |node: &str, name: &str| format!("file,node-name={node},filename={}", at(name));
    let mut command = Command::new("setpriv");
    // it dies with the thread that started it, so that a killed test leaves no server behind
    command.args(["--pdeathsig", "KILL", "--", "qemu-storage-daemon"]);
    command.args(["--blockdev", &file("file", "disk"), "--blockdev", &file("log", "log")]);
    command.args(["--blockdev", "blklogwrites,node-name=logged,file=file,log=log,log-sector-size=512"]);
    let export = format!("fuse,id=export,node-name=logged,mountpoint={},writable=on", at("export"));
    command.args(["--export", &export]).stdin(Stdio::null());
    command.spawn().map_err(|source| RigError::Io { tried: "start qemu-storage-daemon".to_owned(), source })
}

impl Drop for LoggedDisk {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = unmount(&self.mount)
        {
            eprintln!("{error}");
        }
        if let Some(device) = &self.device {
            succeeds("losetup", &["-d", device]);
        }
        // ended properly, so that its FUSE mount is removed
        succeeds("kill", &[&self.daemon.id().to_string()]);
        let _ = self.daemon.wait();
    }
}

/// A file system of an [`Image`], mounted until it is dropped.
#[derive(Debug)]
pub struct Mounted {
    mount: PathBuf,
}

impl Mounted {
    /// Writes the image to a new file `file`, which is removed afterwards, and mounts it on the existing
    /// directory `mount`. The kernel replays the file system's journal, as at the next boot.
    ///
    /// # Errors
    /// It cannot be mounted; with the kernel's message.
    pub fn new(file_system: &FileSystem, image: &Image, file: &Path, mount: &Path) -> Result<Self, RigError> {
        // never the file of an earlier one: that may still be mounted in the mount namespace of a process
        // that is ending
        let _ = fs::remove_file(file);
        image.write_to(file)?;
        file_system.repair(file)?;
        let options = format!("loop,{}", file_system.options);
        let mounted = perform(Command::new("mount").args(["-o", &options]).arg(file).arg(mount));
        let removed = fs::remove_file(file).map_err(RigError::io("remove", file));
        mounted.and(removed)?;
        Ok(Self { mount: mount.to_owned() })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.mount) {
            eprintln!("{error}");
        }
    }
}

/// The content of a disk, in memory, without its empty pages. Cheap to clone, and to compare with a clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
    bytes: u64,
}

impl Image {
    /// Reads a whole disk.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, RigError> {
        let read = || -> io::Result<Self> {
            let file = File::open(path)?;
            let mut image = Self { pages: BTreeMap::new(), bytes: file.metadata()?.len() };
            let mut chunk = vec![0; READ_BYTES];
            for at in (0..image.bytes).step_by(READ_BYTES) {
                let chunk = &mut chunk[..(image.bytes - at).min(READ_BYTES as u64) as usize];
                file.read_exact_at(chunk, at)?;
                for (number, page) in chunk.chunks(PAGE).enumerate() {
                    if page.iter().any(|byte| *byte != 0) {
                        let mut whole = [0; PAGE];
                        whole[..page.len()].copy_from_slice(page);
                        image.pages.insert(at / PAGE as u64 + number as u64, Arc::new(whole));
                    }
                }
            }
            Ok(image)
        };
        read().map_err(RigError::io("read", path))
    }

    /// A partition, given by its range of bytes: whole pages.
    pub fn part(&self, bytes: std::ops::Range<u64>) -> Self {
        let first = bytes.start / PAGE as u64;
        let pages = self.pages.range(first..bytes.end.div_ceil(PAGE as u64));
        let pages = pages.map(|(number, page)| (number - first, page.clone())).collect();
        Self { pages, bytes: bytes.end - bytes.start }
    }

    /// True if it begins with this content.
    pub fn begins_with(&self, content: &[u8]) -> bool {
        const EMPTY: [u8; PAGE] = [0; PAGE];
        content.chunks(PAGE).enumerate().all(|(number, expected)| {
            let page = self.pages.get(&(number as u64)).map_or(&EMPTY, |page| &**page);
            page[..expected.len()] == *expected
        })
    }

    /// Writes it to a file, empty pages as holes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_to(&self, path: &Path) -> Result<(), RigError> {
        let written = || -> io::Result<()> {
            let file = File::create(path)?;
            file.set_len(self.bytes)?;
            self.pages.iter().try_for_each(|(number, page)| {
                let at = number * PAGE as u64;
                let length = (self.bytes - at).min(PAGE as u64) as usize;
                file.write_all_at(&page[..length], at)
            })
        };
        written().map_err(RigError::io("write", path))
    }

    fn write_sector(&mut self, sector: u64, content: &[u8]) {
        let at = sector * SECTOR as u64;
        if at + SECTOR as u64 > self.bytes {
            return;
        }
        let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| Arc::new([0; PAGE]));
        let within = (at % PAGE as u64) as usize;
        Arc::make_mut(page)[within..within + SECTOR].copy_from_slice(content);
    }
}

/// One entry of the log.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Its position in the log.
    start: u64,
    sector: u64,
    sectors: u64,
    flags: u64,
}

impl Entry {
    fn is_barrier(&self) -> bool {
        self.flags & (FLUSH | FUA) != 0
    }

    /// The number of content bytes after its head in the log.
    fn data(&self) -> u64 {
        if self.flags & DISCARD != 0 { 0 } else { self.sectors * SECTOR as u64 }
    }

    /// The position of the next one in the log.
    fn end(&self) -> u64 {
        self.start + SECTOR as u64 + self.data()
    }
}

/// The initial content of a disk, and all writes to it until the cut.
#[derive(Debug)]
pub struct Recording {
    base: Image,
    log: Vec<u8>,
    entries: Vec<Entry>,
}

impl Recording {
    /// From a disk's initial content and the log, in the format of dm-log-writes with sectors of 512 bytes.
    fn new(base: Image, log: Vec<u8>) -> Result<Self, RigError> {
        let entries = entries(&mut io::Cursor::new(&log))?;
        Ok(Self { base, log, entries })
    }

    /// The same from the files of a machine that is off; `disk` is the disk as it was when the log began.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(disk: &Path, log: &Path) -> Result<Self, RigError> {
        let bytes = fs::read(log).map_err(RigError::io("read", log))?;
        Self::new(Image::read(disk)?, bytes)
    }

    /// The number of flushes.
    pub fn flushes(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_barrier()).count()
    }

    /// The number of writes and discards.
    pub fn writes(&self) -> usize {
        self.entries.len() - self.flushes()
    }

    /// The disks that a cut could have left, in the order of time. The same choice gives the same disks.
    pub fn cuts(&self, choice: &Choice) -> Cuts<'_> {
        Cuts {
            recording: self,
            seed: choice.seed,
            durable: self.base.clone(),
            applied: 0,
            plans: self.plans(choice).into(),
        }
    }

    fn plans(&self, choice: &Choice) -> Vec<Plan> {
        let mut plans = Vec::new();
        let (mut begin, mut flush) = (0, 0);
        while begin <= self.entries.len() {
            let rest = &self.entries[begin..];
            let end = rest.iter().position(Entry::is_barrier).map_or(self.entries.len(), |at| begin + at);
            let from = begin.checked_sub(1).map_or(0, |barrier| self.entries[barrier].start);
            let to = self.entries.get(end).map_or(self.log.len() as u64, |barrier| barrier.start);
            let instants = choice.instants.iter().filter(|at| **at > from && **at < to);
            for at in instants.copied().collect::<std::collections::BTreeSet<u64>>() {
                let under_way = self.entries[begin..end].iter().filter(|entry| entry.start < at).count();
                plans.push(Plan { window: begin..begin + under_way, at, flush, subset: 0 });
            }
            // a cut at a flush without earlier writes equals the cut at the flush before it
            if end > begin || begin == 0 || end == self.entries.len() {
                let plan = |subset| Plan { window: begin..end, at: to, flush, subset };
                plans.extend(choice.subsets_at(flush, end > begin).map(plan));
            }
            begin = end + 1;
            flush += 1;
        }
        plans
    }

    fn content(&self, entry: &Entry, index: u64) -> &[u8] {
        const EMPTY: [u8; SECTOR] = [0; SECTOR];
        if entry.flags & DISCARD != 0 {
            return &EMPTY;
        }
        let at = entry.start as usize + SECTOR + index as usize * SECTOR;
        &self.log[at..at + SECTOR]
    }

    fn apply(&self, entry: &Entry, image: &mut Image, mut survives: impl FnMut(u64) -> bool) {
        for index in (0..entry.sectors).filter(|index| survives(*index)) {
            image.write_sector(entry.sector + index, self.content(entry, index));
        }
    }
}

/// The entries of a log that ends wherever the cut happened; its own count lags behind and is not used.
fn entries(log: &mut (impl Read + Seek)) -> Result<Vec<Entry>, RigError> {
    let garbled =
        |problem: String| RigError::BadAnswer { command: "read the log of writes".to_owned(), problem };
    let failed = |error: io::Error| garbled(error.to_string());
    let length = log.seek(SeekFrom::End(0)).map_err(failed)?;
    // its head is written with the first entry
    if length == 0 {
        return Ok(Vec::new());
    }
    let mut numbers = |at: u64| -> Result<[u64; 4], RigError> {
        let mut bytes = [0; 32];
        log.seek(SeekFrom::Start(at)).and_then(|_| log.read_exact(&mut bytes)).map_err(failed)?;
        let number =
            |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"));
        Ok([number(0), number(1), number(2), number(3)])
    };
    if numbers(0)?[0] != MAGIC {
        return Err(garbled("it does not begin as one".to_owned()));
    }
    let mut found = Vec::new();
    let mut start = SECTOR as u64;
    while start + SECTOR as u64 <= length {
        let [sector, sectors, flags, given] = numbers(start)?;
        let entry = Entry { start, sector, sectors, flags };
        if [sector, sectors, flags, given] == [0; 4] || entry.end() > length {
            break;
        }
        start = entry.end();
        found.push(entry);
    }
    Ok(found)
}

/// The part of the writes in a log that reaches the disk.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// All of them.
    Kept,
    /// The writes that a flush covered when the log had this length; and of the others a random part, in
    /// whole sectors.
    Cut {
        /// The log's length when the power was cut.
        at: u64,
        /// Chooses the random part.
        seed: u64,
    },
}

/// The sectors that no flush had covered when the power was cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unflushed {
    /// They were written all the same.
    pub kept: u64,
    /// Lost.
    pub lost: u64,
}

/// Changes a disk from its state at the beginning of the log to the state after the surviving writes. Works
/// on files, for the disks of whole machines; the log is one of QEMU's `blklogwrites` with sectors of 512
/// bytes.
///
/// # Errors
/// A file cannot be read or written, or is not such a log.
pub fn apply_log(disk: &Path, log: &Path, fate: Fate) -> Result<Unflushed, RigError> {
    let mut reader = File::open(log).map(io::BufReader::new).map_err(RigError::io("open", log))?;
    let entries = entries(&mut reader)?;
    let disk_file = File::options().write(true).open(disk).map_err(RigError::io("open", disk))?;
    let (durable, seed) = match fate {
        Fate::Kept => (entries.len(), 0),
        Fate::Cut { at, seed } => {
            let last = entries.iter().rposition(|entry| entry.is_barrier() && entry.start < at);
            (last.map_or(0, |barrier| barrier + 1), seed)
        }
    };
    let mut chance = Random::new(seed);
    let style = Style::new(chance.below(3) as usize, entries.len() - durable, &mut chance);
    let mut unflushed = Unflushed::default();
    for (number, entry) in entries.iter().enumerate() {
        let mut content = vec![0; entry.data() as usize];
        reader
            .seek(SeekFrom::Start(entry.start + SECTOR as u64))
            .and_then(|_| reader.read_exact(&mut content))
            .map_err(RigError::io("read", log))?;
        let write =
            |sectors| write_part(&disk_file, entry, &content, &sectors).map_err(RigError::io("write", disk));
        if number < durable {
            write(0..entry.sectors)?;
            continue;
        }
        let is_any = style.survives(number - durable, &mut chance);
        let mut survives = torn(entry, &mut chance);
        for index in 0..entry.sectors {
            if is_any && survives(index) {
                unflushed.kept += 1;
                write(index..index + 1)?;
            } else {
                unflushed.lost += 1;
            }
        }
    }
    Ok(unflushed)
}

/// Writes or discards these sectors of an entry; discarded sectors become zeros.
fn write_part(disk: &File, entry: &Entry, content: &[u8], sectors: &std::ops::Range<u64>) -> io::Result<()> {
    let bytes = |sectors: u64| sectors * SECTOR as u64;
    let place = bytes(entry.sector + sectors.start);
    if entry.flags & DISCARD == 0 {
        return disk
            .write_all_at(&content[bytes(sectors.start) as usize..bytes(sectors.end) as usize], place);
    }
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let length = bytes(sectors.end - sectors.start);
    if length == 0 {
        return Ok(());
    }
    Ok(fallocate(disk, flags, place as i64, length as i64)?)
}

/// A disk that a cut could have left.
#[derive(Debug)]
pub struct Cut {
    /// The position of the log at which the power was cut: everything acknowledged before must exist.
    pub at: u64,
    /// The number of flushes before it.
    pub flush: usize,
    /// 0: none of the unflushed writes survived; otherwise the number of the random part.
    pub subset: usize,
    /// The disk.
    pub image: Image,
}

/// The choice among all disks that a cut could have left.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The number of random parts of unflushed writes that survive at the end of each flush, besides none.
    pub subsets: usize,
    /// Only one of these at each flush, in turns.
    pub thin: bool,
    /// Additional positions of the log for cuts, with none of the unflushed writes: the moments of
    /// acknowledgements.
    pub instants: Vec<u64>,
    /// Chooses the random parts.
    pub seed: u64,
}

impl Choice {
    fn subsets_at(&self, flush: usize, anything: bool) -> std::ops::RangeInclusive<usize> {
        match (anything, self.thin) {
            (false, _) => 0..=0,
            (true, false) => 0..=self.subsets,
            (true, true) => {
                let turn = flush % (self.subsets + 1);
                turn..=turn
            }
        }
    }
}

/// A planned cut.
#[derive(Debug)]
struct Plan {
    /// Unflushed entries.
    window: std::ops::Range<usize>,
    at: u64,
    flush: usize,
    subset: usize,
}

/// See [`Recording::cuts`].
#[derive(Debug)]
pub struct Cuts<'a> {
    recording: &'a Recording,
    seed: u64,
    durable: Image,
    /// Number of entries that are in `durable`.
    applied: usize,
    plans: std::collections::VecDeque<Plan>,
}

impl Iterator for Cuts<'_> {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        let Plan { window, at, flush, subset } = self.plans.pop_front()?;
        for entry in &self.recording.entries[self.applied..window.start] {
            self.recording.apply(entry, &mut self.durable, |_| true);
        }
        self.applied = window.start;
        let mut image = self.durable.clone();
        if subset > 0 {
            let mut chance = random(self.seed, flush, subset);
            let style = Style::new(subset, window.len(), &mut chance);
            for (number, entry) in self.recording.entries[window].iter().enumerate() {
                if style.survives(number, &mut chance) {
                    self.recording.apply(entry, &mut image, torn(entry, &mut chance));
                }
            }
        }
        Some(Cut { at, flush, subset, image })
    }
}

/// The choice of surviving writes in a window.
enum Style {
    /// Each with a probability of one half.
    Half,
    /// The first ones, in order, as on a disk without a cache.
    Until(usize),
    /// All except one late write.
    Most,
}

impl Style {
    fn new(subset: usize, entries: usize, chance: &mut Random) -> Self {
        match subset % 3 {
            1 => Self::Half,
            2 => Self::Most,
            _ => Self::Until(chance.below(entries as u64 + 1) as usize),
        }
    }

    fn survives(&self, number: usize, chance: &mut Random) -> bool {
        match self {
            Self::Half => chance.below(2) == 0,
            Self::Most => chance.below(8) != 0,
            Self::Until(end) => number < *end,
        }
    }
}

/// The surviving sectors of a surviving write: mostly all, otherwise its first ones or any.
fn torn(entry: &Entry, chance: &mut Random) -> impl FnMut(u64) -> bool + use<> {
    let kind = if entry.sectors > 1 { chance.below(8) } else { 2 };
    let end = chance.below(entry.sectors.max(1));
    let mut chance = Random::new(chance.number());
    move |index| match kind {
        0 => index < end,
        1 => chance.below(2) == 0,
        _ => true,
    }
}

/// The random numbers of one cut.
fn random(seed: u64, flush: usize, subset: usize) -> Random {
    Random::new(seed ^ (flush as u64).rotate_left(32) ^ (subset as u64).rotate_left(48))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of writes (sector, content byte, sectors) and flushes.
    fn log(entries: &[Option<(u64, u8, u64)>]) -> Vec<u8> {
        let sector = |numbers: [u64; 4]| {
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            bytes.resize(SECTOR, 0);
            bytes
        };
        let mut log = sector([MAGIC, 1, 0, 512]);
        for entry in entries {
            match entry {
                None => log.extend(sector([0, 0, FLUSH, 0])),
                Some((at, byte, sectors)) => {
                    log.extend(sector([*at, *sectors, 0, 0]));
                    log.extend(vec![*byte; *sectors as usize * SECTOR]);
                }
            }
        }
        log
    }

    fn recording(entries: &[Option<(u64, u8, u64)>]) -> Recording {
        Recording::new(Image { pages: BTreeMap::new(), bytes: 64 * 1024 }, log(entries)).expect("a log")
    }

    fn choice(subsets: usize, seed: u64) -> Choice {
        Choice { subsets, seed, ..Choice::default() }
    }

    /// The first byte of each of the first sectors.
    fn shown(image: &Image) -> Vec<u8> {
        let sector = |at: u64| image.pages.get(&(at / 8)).map_or(0, |page| page[(at % 8) as usize * SECTOR]);
        (0..4).map(sector).collect()
    }

    #[test]
    fn flushed_writes_survive_and_others_do_not() {
        let recording = recording(&[Some((0, 1, 1)), None, Some((1, 2, 1)), None, None, Some((2, 3, 1))]);
        let disks: Vec<_> = recording.cuts(&choice(0, 1)).map(|cut| (cut.flush, shown(&cut.image))).collect();
        assert_eq!(
            disks,
            [(0, vec![0, 0, 0, 0]), (1, vec![1, 0, 0, 0]), (3, vec![1, 2, 0, 0])],
            "and no cut twice"
        );
        assert_eq!((recording.flushes(), recording.writes()), (3, 3));
    }

    #[test]
    fn random_parts_tear_only_unflushed_writes() {
        let recording = recording(&[Some((0, 1, 1)), None, Some((1, 2, 1)), Some((2, 3, 2)), None]);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            for cut in recording.cuts(&choice(3, seed)).filter(|cut| cut.flush == 1) {
                let disk = shown(&cut.image);
                assert_eq!(disk[0], 1, "flushed and lost");
                seen.insert(disk[1..].to_vec());
            }
        }
        let expect = [[0, 0, 0], [0, 0, 3], [0, 3, 0], [0, 3, 3], [2, 0, 0], [2, 0, 3], [2, 3, 0], [2, 3, 3]];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expect);
    }

    /// The disk after a log was applied to it, sector by sector.
    fn applied(bytes: &[u8], fate: Fate) -> (Vec<u8>, Unflushed) {
        let scratch = crate::Scratch::new("applied").expect("a directory");
        let [disk, log] = ["disk", "log"].map(|name| scratch.join(name));
        fs::write(&disk, [9; 4 * SECTOR]).expect("a disk");
        fs::write(&log, bytes).expect("a log");
        let unflushed = apply_log(&disk, &log, fate).expect("applied");
        let content = fs::read(&disk).expect("the disk");
        assert_eq!(content.len(), 4 * SECTOR);
        (content.chunks(SECTOR).map(|sector| sector[SECTOR - 1]).collect(), unflushed)
    }

    #[test]
    fn machine_cut_loses_only_unflushed_writes() {
        let writes = [Some((0, 1, 1)), None, Some((1, 2, 1)), Some((2, 3, 2))];
        let bytes = log(&writes);
        assert_eq!(applied(&bytes, Fate::Kept), (vec![1, 2, 3, 3], Unflushed::default()));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..1000 {
            let (disk, unflushed) = applied(&bytes, Fate::Cut { at: bytes.len() as u64, seed });
            assert_eq!((disk[0], unflushed.kept + unflushed.lost), (1, 3), "flushed and lost");
            assert_eq!(disk[1..].iter().filter(|byte| **byte == 9).count() as u64, unflushed.lost);
            seen.insert(disk[1..].to_vec());
        }
        let old = 9;
        let expect = [
            [2, 3, 3],
            [2, 3, old],
            [2, old, 3],
            [2, old, old],
            [old, 3, 3],
            [old, 3, old],
            [old, old, 3],
            [old, old, old],
        ];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expect);
        // a flush that began after the cut covers nothing
        let later = [&writes[..], &[None]].concat();
        let at = log(&writes[..2]).len() as u64;
        let lost = (0..200).any(|seed| applied(&log(&later), Fate::Cut { at, seed }).1.lost == 3);
        assert!(lost);
    }

    #[test]
    fn cuts_after_an_acknowledgement_contain_what_was_flushed() {
        let entries = [Some((0, 1, 1)), None, Some((1, 2, 1)), None];
        let recording = recording(&entries);
        let acknowledged = log(&entries[..2]).len() as u64;
        let choice = Choice { instants: vec![acknowledged], ..choice(0, 1) };
        let cuts: Vec<_> =
            recording.cuts(&choice).map(|cut| (cut.at >= acknowledged, shown(&cut.image))).collect();
        let nothing = vec![0; 4];
        let first = vec![1, 0, 0, 0];
        // at the first flush, at the moment of the acknowledgement, at the second flush, at the end
        let last = vec![1, 2, 0, 0];
        assert_eq!(cuts, [(false, nothing), (true, first.clone()), (true, first), (true, last)]);
    }

    #[test]
    fn thin_choice_has_one_disk_per_flush() {
        let recording = recording(&[Some((0, 1, 1)), None, Some((1, 2, 1)), None, Some((2, 3, 1)), None]);
        let choice = Choice { thin: true, ..choice(1, 1) };
        let subsets: Vec<_> = recording.cuts(&choice).map(|cut| (cut.flush, cut.subset)).collect();
        assert_eq!(subsets, [(0, 0), (1, 1), (2, 0), (3, 0)]);
    }

    #[test]
    fn truncated_log_ends_before_its_last_entry() {
        let mut cut = log(&[Some((0, 1, 1)), None, Some((1, 2, 4))]);
        cut.truncate(cut.len() - 700);
        assert_eq!(entries(&mut io::Cursor::new(cut)).expect("a log").len(), 2);
        assert!(entries(&mut io::Cursor::new([7; 64])).is_err());
        assert!(entries(&mut io::Cursor::new(b"short")).is_err());
        assert_eq!(entries(&mut io::Cursor::new(b"")).expect("nothing was written").len(), 0);
    }

    /// A program in a mount namespace of its own, which keeps a copy of every mount until it is dropped.
    struct Bystander(Child);

    impl Bystander {
        fn start() -> Self {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--", "sh", "-c", "echo; exec cat"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
            let started = child.stdout.as_mut().map(|output| io::Read::read_exact(output, &mut [0]));
            started.expect("its output").expect("a line");
            Self(child)
        }
    }

    impl Drop for Bystander {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Otherwise the disk before it, on the same loop device, would be judged in its place.
    #[test]
    fn disk_is_its_own_while_the_one_before_is_mounted() {
        if !crate::power_cut::is_possible(&EXT4) {
            return;
        }
        let scratch = crate::Scratch::new("mounted").expect("a directory");
        let [file, place, content] = ["file", "place", "content"].map(|name| scratch.join(name));
        fs::create_dir(&place).expect("a mount point");
        let with = |text: &str| {
            scratch.write("content/name", text);
            File::create(&file).and_then(|file| file.set_len(EXT4.mib << 20)).expect("an empty disk");
            perform(Command::new(EXT4.make[0]).args(&EXT4.make[1..]).arg("-d").args([&content, &file]))
                .expect("a file system");
            Image::read(&file).expect("an image")
        };
        let (first, second) = (with("first"), with("second"));
        let mounted = Mounted::new(&EXT4, &first, &file, &place).expect("a mount");
        let _bystander = Bystander::start();
        drop(mounted);
        let mounted = Mounted::new(&EXT4, &second, &file, &place).expect("a mount");
        assert_eq!(fs::read_to_string(mounted.path().join("name")).expect("the file"), "second");
    }
}
