//! How much of a disk images may use: never so much that the node's own records find no room.
//!
//! Always holds: a granted amount leaves [`KEPT_BYTES`] (or a twentieth of a small disk) and a twentieth of
//! the inodes free. Leaves to others: measuring the disk, and stopping at the granted amount.

/// Kept free for the records of the configuration, logs and an upgrade's download: 256 MiB.
pub const KEPT_BYTES: u64 = 256 << 20;
/// On a disk under 5 GiB: this part of it.
const KEPT_PART: u64 = 20;

/// The capacity and the free space of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The space that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub bytes: u64,
    /// `u64::MAX` on a file system that does not count them.
    pub entries: u64,
}

impl Disk {
    /// The room for images.
    #[must_use]
    pub fn room(&self) -> Room {
        let kept = KEPT_BYTES.min(self.capacity_bytes / KEPT_PART);
        let entries = match self.inodes {
            0 => u64::MAX,
            inodes => self.inodes_free.saturating_sub(inodes / KEPT_PART),
        };
        Room { bytes: self.available_bytes.saturating_sub(kept), entries }
    }
}

impl Room {
    /// Whether this many bytes fit.
    ///
    /// # Errors
    /// The bytes do not fit; the text shows the available room.
    pub fn reserve(&self, bytes: u64) -> Result<(), String> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(format!("{bytes} bytes are needed, the disk has {} for images", self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_leaves_the_records_theirs() {
        let disk = |capacity_bytes, available_bytes| Disk {
            capacity_bytes,
            available_bytes,
            inodes: 1000,
            inodes_free: 60,
        };
        assert_eq!(disk(100 << 30, 1 << 30).room(), Room { bytes: (1 << 30) - KEPT_BYTES, entries: 10 });
        assert_eq!(disk(1 << 30, 1 << 29).room().bytes, (1 << 29) - (1 << 30) / 20);
        assert_eq!(disk(100 << 30, KEPT_BYTES).room().bytes, 0);
        assert!(disk(100 << 30, KEPT_BYTES).room().reserve(1).unwrap_err().contains("0 for images"));
        let btrfs = Disk { inodes: 0, inodes_free: 0, ..disk(1 << 30, 1 << 29) };
        assert_eq!(btrfs.room().entries, u64::MAX);
        assert_eq!(btrfs.room().reserve(1), Ok(()));
    }
}
