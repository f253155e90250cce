//! The disk that runs, for updates of disk images: its partitions, by the kernel's own tables.
//!
//! Always holds: a partition is looked for on one disk only, for another disk that is plugged in may have the same labels.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;

/// The kernel counts a disk in these units, whatever its own.
const SECTOR_BYTES: u64 = 512;

/// The disk that holds what is mounted on this path, as a folder of sysfs.
///
/// # Errors
/// It is on no partition of a disk.
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
/// The kernel does not say.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let room = statvfs(path)?;
    #[allow(clippy::unnecessary_cast, reason = "u32 on 32-bit boards")]
    let (blocks, size) = (room.blocks_available() as u64, room.fragment_size() as u64);
    Ok(blocks.saturating_mul(size))
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
}
