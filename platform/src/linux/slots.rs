//! The running board, for updates of disk images: its partitions, from the kernel's own tables, its EFI
//! partition, and its firmware.
//!
//! Always holds: a partition is looked for on one disk only, because another disk that is plugged in may have
//! the same labels.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::unistd::syncfs;

use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;

use super::Roots;
use crate::slots::{Cure, LIST, Slots, digest_of};

/// The kernel measures disks in these units, whatever their own.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The disk of the file system that is mounted on this path, as a folder of sysfs.
///
/// # Errors
/// It is not on a partition of a disk.
pub fn disk_of(sys: &Path, mounted: &Path) -> io::Result<PathBuf> {
    let device = mounted.metadata()?.dev();
    disk_with(sys, major(device), minor(device))
}

fn disk_with(sys: &Path, major: u64, minor: u64) -> io::Result<PathBuf> {
    let partition = sys.join(format!("dev/block/{major}:{minor}")).canonicalize()?;
    partition.parent().map(Path::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The partitions of a disk: device and bytes, by name.
pub fn partitions(disk: &Path) -> BTreeMap<String, (String, u64)> {
    let folders = disk.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let found = folders.filter_map(|folder| {
        let uevent = super::read_text(&folder.join("uevent")).ok()?;
        let value = |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let sectors: u64 = super::read_text(&folder.join("size")).ok()?.trim().parse().ok()?;
        let device = format!("/dev/{}", value("DEVNAME")?);
        Some((value("PARTNAME")?.to_owned(), (device, sectors.saturating_mul(SECTOR_BYTES))))
    });
    found.collect()
}

/// Bytes that root may still write to the file system there.
///
/// # Errors
/// The kernel does not report it.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let room = statvfs(path)?;
    #[allow(clippy::unnecessary_cast, reason = "u32 on 32-bit boards")]
    let (blocks, size) = (room.blocks_available() as u64, room.fragment_size() as u64);
    Ok(blocks.saturating_mul(size))
}

/// The mount point of the EFI partition.
pub const EFI: &str = "/efi";
/// Longest time of a check of the EFI partition; it has only a few files.
const REPAIR_SECS: &str = "120";
/// systemd-boot's variable with the entry that it starts next, once.
const ONE_START: &str = "firmware/efi/efivars/LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The running board. The EFI partition is written with ordinary system calls; the system's tools mount,
/// check and repair it.
#[derive(Debug, Clone)]
pub struct LinuxSlots {
    roots: Roots,
    efi: PathBuf,
}

impl LinuxSlots {
    /// A board with the EFI partition mounted there.
    pub fn new(roots: &Roots, efi: impl Into<PathBuf>) -> Self {
        Self { roots: roots.clone(), efi: efi.into() }
    }

    fn repair(&self) -> io::Result<()> {
        let efi = self.efi.as_os_str();
        if tool("mountpoint", &["-q".as_ref(), efi]).is_ok() {
            tool("umount", &[efi])?;
        }
        // its exit code also reports successful repairs: the mount decides
        let check = ["-k", "10", REPAIR_SECS, "fsck.fat", "-a", "/dev/kedge/esp"].map(OsStr::new);
        let _ = tool("timeout", &check);
        tool("mount", &[efi])
    }
}

/// Runs one of the system's programs, with our output.
fn tool(program: &str, arguments: &[&OsStr]) -> io::Result<()> {
    let failed = |why: &dyn std::fmt::Display| io::Error::other(format!("{program} {arguments:?}: {why}"));
    // programs write messages for people to our standard output, which must not mix with our own answer
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(stderr).status();
    match status.map_err(|error| failed(&error))? {
        status if status.success() => Ok(()),
        status => Err(failed(&status)),
    }
}

impl Slots for LinuxSlots {
    type Target = File;

    fn entries(&self) -> io::Result<BTreeMap<String, String>> {
        let folder = self.efi.join(LIST);
        let names: io::Result<Vec<_>> = fs::read_dir(&folder)?.map(|entry| Ok(entry?.file_name())).collect();
        let names = names?.into_iter().filter_map(|name| name.into_string().ok());
        let ours = names.filter(|name| name.starts_with("kedge-") && name.ends_with(".conf"));
        Ok(ours
            .map(|name| (name.clone(), super::read_text(&folder.join(name)).unwrap_or_default()))
            .collect())
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let path = self.efi.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::options().read(true).write(true).create(true).truncate(true).open(path)
    }

    fn partition(&self, device: &Path) -> io::Result<File> {
        if !device.metadata()?.file_type().is_block_device() {
            return Err(Errno::ENOTBLK.into());
        }
        File::options().read(true).write(true).open(device)
    }

    fn write(&self, target: &mut File, bytes: &[u8]) -> io::Result<usize> {
        target.write(bytes)
    }

    fn sync(&self, target: &File) -> io::Result<()> {
        target.sync_all()
    }

    fn digest(&self, target: &mut File, bytes: u64) -> io::Result<String> {
        let _ = posix_fadvise(&*target, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        let _ = fs::write(self.roots.proc.join("sys/vm/drop_caches"), "1");
        target.seek(SeekFrom::Start(0))?;
        digest_of(target, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.efi.join(from), self.efi.join(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.efi.join(path))
    }

    /// FAT writes the start of a renamed file's content later than its new name, so the whole file system is
    /// synced first; that does not flush the disk, so an fsync follows.
    fn settle(&self) -> io::Result<()> {
        let list = File::open(self.efi.join(LIST))?;
        syncfs(&list)?;
        list.sync_all()
    }

    fn cure(&self, cure: Cure) -> io::Result<()> {
        match cure {
            Cure::Remount => tool("mount", &["-o".as_ref(), "remount,rw".as_ref(), self.efi.as_os_str()]),
            Cure::Repair => self.repair(),
        }
    }

    fn has_one_start(&self) -> bool {
        self.roots.sys.join(ONE_START).exists()
    }

    fn set_one_start(&self, pattern: &str) -> io::Result<()> {
        tool("bootctl", &["set-oneshot".as_ref(), pattern.as_ref()])
    }
}

/// Excludes other updates and blessings while it is held, in all programs; it ends with this one.
#[derive(Debug)]
pub struct SlotsLock(#[allow(dead_code, reason = "held, not used")] File);

/// Takes the lock, or waits for it.
///
/// # Errors
/// Another program has it, and `waits` is false: `WouldBlock`.
pub fn lock(path: &Path, waits: bool) -> io::Result<SlotsLock> {
    let file = super::open_lock(path)?;
    match waits {
        true => file.lock()?,
        false => file.try_lock()?,
    }
    Ok(SlotsLock(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_those_of_the_disk_that_runs() {
        let scratch = kedge_rig::Scratch::new("slots").unwrap();
        let sys = scratch.join("sys");
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("devices/vda/vda3/uevent", "MAJOR=254\nDEVNAME=vda3\nPARTNAME=root-b\n");
        write("devices/vda/vda3/size", "8\n");
        write("devices/vda/queue/uevent", "");
        write("devices/sda/sda3/uevent", "DEVNAME=sda3\nPARTNAME=root-b\n");
        write("devices/sda/sda3/size", "16\n");
        std::fs::create_dir_all(sys.join("dev/block")).unwrap();
        std::os::unix::fs::symlink("../../devices/vda/vda3", sys.join("dev/block/254:3")).unwrap();
        let disk = disk_with(&sys, 254, 3).unwrap();
        assert_eq!(partitions(&disk), [("root-b".to_owned(), ("/dev/vda3".to_owned(), 4096))].into());
        assert!(disk_with(&sys, 254, 4).is_err());
    }

    #[test]
    fn efi_files_are_written_and_read_back() {
        let scratch = kedge_rig::Scratch::new("efi").unwrap();
        let slots = LinuxSlots::new(&Roots::under(scratch.path()), scratch.join("efi"));
        assert!(slots.entries().is_err(), "no list is not an empty one");
        let mut file = slots.create(Path::new("kedge/entry.new")).unwrap();
        assert_eq!(slots.write(&mut file, b"content and more").unwrap(), 16);
        slots.sync(&file).unwrap();
        let digest = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73";
        assert_eq!(slots.digest(&mut file, 7).unwrap(), digest);
        assert_eq!(slots.settle().map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
        std::fs::create_dir_all(scratch.join("efi").join(LIST)).unwrap();
        let entry = Path::new(LIST).join("kedge-b+3.conf");
        slots.rename(Path::new("kedge/entry.new"), &entry).unwrap();
        slots.settle().unwrap();
        let listed = [("kedge-b+3.conf".to_owned(), "content and more".to_owned())];
        assert_eq!(slots.entries().unwrap(), listed.into());
        slots.remove(&entry).unwrap();
        assert!(slots.entries().unwrap().is_empty());
        let file = slots.partition(&scratch.join("efi"));
        assert_eq!(file.map(drop).map_err(|error| error.raw_os_error()), Err(Some(Errno::ENOTBLK as i32)));
    }

    #[test]
    fn lock_is_held_by_one() {
        let scratch = kedge_rig::Scratch::new("lock").unwrap();
        let path = scratch.join("lock");
        let held = lock(&path, true).unwrap();
        assert_eq!(
            lock(&path, false).map(drop).map_err(|error| error.kind()),
            Err(io::ErrorKind::WouldBlock)
        );
        drop(held);
        lock(&path, false).unwrap();
    }
}
