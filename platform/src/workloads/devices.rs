//! Devices of the machine in the form that containers get them: a single one, or all in `/dev`.
//!
//! Always holds: a device is looked up by name each time, because devices come and go; none is opened,
//! because opening some of them has effects.
//!
//! Leaves to others: the choice of devices for a container.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};

/// Most devices that a privileged container gets: machines have about 200; one with more is not an edge
/// device.
const MOST_DEVICES: usize = 4096;
/// Levels below `/dev`: `/dev/bus/usb/001/002` has four.
const MOST_LEVELS: usize = 8;
/// Devices that each container has of its own.
const OWN: [&str; 6] = ["/dev/console", "/dev/fd", "/dev/mqueue", "/dev/ptmx", "/dev/pts", "/dev/shm"];

/// A node for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its path, on the machine and in a container.
    pub path: String,
    /// True for a block device, false for a character device.
    pub is_block: bool,
    /// Its numbers.
    pub numbers: (u64, u64),
    /// Its permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The device at this path, also behind a link; `None` if it is something else.
///
/// # Errors
/// It cannot be examined, usually because it does not exist.
pub fn device(path: &str) -> io::Result<Option<Device>> {
    Ok(device_of(path, &fs::metadata(path)?))
}

/// All devices of the machine except those that each container has of its own, sorted by path.
///
/// # Errors
/// `/dev` cannot be read.
pub fn all_devices(dev: &Path) -> io::Result<Vec<Device>> {
    let mut found = Vec::new();
    gather(dev, 0, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn gather(directory: &Path, level: usize, found: &mut Vec<Device>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // a name that is not text cannot be written into a configuration; a missing file belongs to a device
        // that was just unplugged
        let (Some(text), Ok(metadata)) = (path.to_str(), path.symlink_metadata()) else { continue };
        if OWN.contains(&text) || found.len() >= MOST_DEVICES {
            continue;
        }
        if metadata.is_dir() && level < MOST_LEVELS {
            let _ = gather(&path, level + 1, found);
        } else {
            found.extend(device_of(text, &metadata));
        }
    }
    Ok(())
}

fn device_of(path: &str, metadata: &Metadata) -> Option<Device> {
    let sort = metadata.file_type();
    let is_block = sort.is_block_device();
    (is_block || sort.is_char_device()).then(|| Device {
        path: path.to_owned(),
        is_block,
        numbers: (major(metadata.rdev()), minor(metadata.rdev())),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_and_nothing_else() {
        let null = device("/dev/null").unwrap().unwrap();
        assert_eq!((null.is_block, null.numbers), (false, (1, 3)));
        assert_eq!(device("/etc").unwrap(), None);
        assert!(device("/dev/none-of-this-name").is_err());
        let all = all_devices(Path::new("/dev")).unwrap();
        assert!(all.contains(&null), "{all:?}");
        assert!(!all.iter().any(|device| device.path.starts_with("/dev/pts/")), "{all:?}");
    }
}
