//! Room on the disk that is kept for deletions: a file of its own, removed when the disk is full, and made
//! again when there is room.
//!
//! Always holds: a reserve has its full size or takes no room. Left to others: when to remove it and make it
//! again (`sqlite`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kedge_platform::linux::allocate;

use crate::files::open_regular;

/// Enough to fold a full log back into the file (4 MiB and one batch), after which deletions are written over
/// the old log.
pub(super) const RESERVE_BYTES: u64 = 8 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub(super) fn of(directory: &Path) -> Reserve {
        Reserve { path: directory.join("reserve") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_made(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|file| file.len() == RESERVE_BYTES)
    }

    /// Makes the reserve; writes nothing if it exists.
    pub(super) fn make(&self) -> io::Result<()> {
        if self.is_made() {
            return Ok(());
        }
        let taken =
            open_regular(File::options().create(true).truncate(true).write(true).mode(0o600), &self.path)
                .and_then(|file| take(&file));
        if taken.is_err() {
            // an incomplete reserve would only take room away
            drop(self.give_up());
        }
        taken
    }

    /// Gives the room back to the file system; returns true if there was any.
    pub(super) fn give_up(&self) -> io::Result<bool> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Allocates the room if the file system supports that, which writes nothing; otherwise writes it. It is not
/// flushed: after a power cut it is made anew.
fn take(mut file: &File) -> io::Result<()> {
    match allocate(file, RESERVE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
        outcome => return outcome,
    }
    let zeros = [0; 64 * 1024];
    (0..RESERVE_BYTES / zeros.len() as u64).try_for_each(|_| file.write_all(&zeros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_whole_or_takes_no_room() {
        use std::os::unix::fs::MetadataExt;
        let folder = kedge_rig::Scratch::new("hub-reserve").unwrap();
        let reserve = Reserve::of(folder.path());
        assert!(!reserve.give_up().unwrap());
        reserve.make().unwrap();
        let made = fs::metadata(reserve.path()).unwrap();
        assert!(made.blocks() * 512 >= RESERVE_BYTES, "{} blocks hold no room", made.blocks());
        reserve.make().unwrap();
        assert!(reserve.give_up().unwrap() && !reserve.path().exists());
        // left incomplete by a power cut
        fs::write(reserve.path(), [0; 100]).unwrap();
        assert!(!reserve.is_made());
        reserve.make().unwrap();
        assert!(reserve.is_made());
    }
}
