//! The names that running pulls use, so that a removal can run at the same time.
//!
//! Always holds: a claim is a locked file with one name in each line, so it ends with its value and with its
//! process, and an unlocked file does not count. Claims are made and extended under
//! [`ImageFiles::hold_shared`], and read under [`ImageFiles::hold_alone`]: so a removal sees the names of a
//! pull before the pull uses them.
//!
//! Leaves to others: the meaning of the names.
//!
//! [`ImageFiles::hold_shared`]: super::ImageFiles::hold_shared
//! [`ImageFiles::hold_alone`]: super::ImageFiles::hold_alone

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::linux::read_up_to;
use crate::{linux, trees};

/// Longest claim: 127 layers, a blob and a chain of 65 bytes for each, and the config; a longer one is an
/// error, and does not count as empty.
const CLAIM_BYTES: usize = 64 * 1024;

/// Number of claims made by this process.
static CLAIMS: AtomicU32 = AtomicU32::new(0);

/// The names that one pull uses, until this is dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
}

impl Claim {
    pub(super) fn begin(directory: &Path) -> io::Result<Self> {
        super::make_directory(directory)?;
        let number = CLAIMS.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("{}-{number}", std::process::id()));
        // a file left by an earlier process with this id is not locked; a process that lists claims may hold
        // the lock for a moment to test it
        let file = linux::open_regular_as(
            &path,
            File::options().create(true).write(true).truncate(true).mode(0o600),
        )?;
        file.lock()?;
        Ok(Self { file, path })
    }

    /// Adds names.
    ///
    /// # Errors
    /// The disk failed; some of the names may be claimed.
    pub fn add(&mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> io::Result<()> {
        let lines: String =
            names.into_iter().flat_map(|name| [name.as_ref().to_owned(), "\n".into()]).collect();
        self.file.write_all(lines.as_bytes())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // if it cannot be removed, it does not count, because it is unlocked
        let _ = fs::remove_file(&self.path);
    }
}

/// The names that pulls use now; removes claims whose process was killed.
pub(super) fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if !is_file(&path) {
            // not a file: no process of ours made it, and no process holds its lock
            trees::remove(&path)?;
            continue;
        }
        let file = match linux::open_regular(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file?,
        };
        match file.try_lock_shared() {
            Ok(()) => fs::remove_file(&path)?,
            Err(TryLockError::WouldBlock) => {
                let bytes = read_up_to(file, CLAIM_BYTES + 1)?;
                if bytes.len() > CLAIM_BYTES {
                    return Err(io::Error::other(format!("{} is too long", path.display())));
                }
                names.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(names)
}

/// The lines of each claim that counts now; removes nothing.
pub(super) fn lines(directory: &Path) -> io::Result<Vec<Vec<String>>> {
    let mut claims = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(claims),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if !is_file(&path) {
            continue;
        }
        let file = match linux::open_regular(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file?,
        };
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = read_up_to(file, CLAIM_BYTES)?;
                claims.push(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect());
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(claims)
}

/// Other things must not be opened, because that may wait for ever.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |found| found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;

    #[test]
    fn claim_counts_until_it_ends() {
        let scratch = Scratch::new("claims").unwrap();
        let directory = scratch.join("claims");
        assert!(names(&directory).unwrap().is_empty());
        let mut one = Claim::begin(&directory).unwrap();
        one.add(["a", "b"]).unwrap();
        let mut two = Claim::begin(&directory).unwrap();
        two.add(["b", "c"]).unwrap();
        two.add(["d"]).unwrap();
        scratch.write("claims/1-1", "of a process that was killed\n");
        assert_eq!(names(&directory).unwrap(), ["a", "b", "c", "d"].map(str::to_owned).into());
        assert!(!directory.join("1-1").exists());
        scratch.write("claims/1-1", "of a process that was killed\n");
        let mut claims = lines(&directory).unwrap();
        claims.sort();
        assert_eq!(claims, [&["a", "b"][..], &["b", "c", "d"]]);
        drop(two);
        assert_eq!(names(&directory).unwrap(), ["a", "b"].map(str::to_owned).into());
        std::fs::write(&one.path, "x".repeat(CLAIM_BYTES + 1)).unwrap();
        assert!(names(&directory).is_err(), "a claim that cannot be read is not no claim");
        drop(one);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }
}
