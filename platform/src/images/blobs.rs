//! Blobs: files whose names are the digests of their bytes.
//!
//! Always holds: bytes are written to `HEX.part` and counted as they arrive; the part is renamed after its
//! size and digest were checked and its bytes are durable; an interrupted part is continued at its end, after
//! its bytes were read again. No part grows beyond the promised size. Two writers of one blob exclude each
//! other. Anything else than a file in the place of a blob or its part is removed. Leaves to others: the
//! source of the bytes, and whether there is room for them.

use std::error::Error;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use super::{BlobName, sync_directory};
use crate::trees;

/// Bytes per read while a part is read again.
const CHUNK_BYTES: usize = 64 * 1024;
/// The suffix of a part's name.
const PART: &str = ".part";

/// The reason why a blob could not be stored.
#[derive(Debug)]
pub enum BlobError {
    /// Another writer is writing it; try again later.
    Busy { name: BlobName },
    /// The bytes do not match the digest in the name; they were removed.
    Differs { name: BlobName, found: String },
    /// More bytes arrived than were promised; the part was emptied.
    TooLong { name: BlobName, expected: u64 },
    /// Fewer bytes arrived; the part is kept and can be continued.
    Short { name: BlobName, expected: u64, found: u64 },
    /// The disk is full; the part is kept.
    NoSpace { name: BlobName },
    /// The disk or the kernel failed.
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

impl fmt::Display for BlobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { name } => write!(f, "blob sha256:{name} is being written by another pull"),
            Self::Differs { name, found } => {
                write!(f, "blob sha256:{name} has the digest sha256:{found}; discarded")
            }
            Self::TooLong { name, expected } => {
                write!(
                    f,
                    "blob sha256:{name} has more than the {expected} bytes that its manifest says; discarded"
                )
            }
            Self::Short { name, expected, found } => {
                write!(f, "blob sha256:{name} ended after {found} of {expected} bytes")
            }
            Self::NoSpace { name } => write!(f, "blob sha256:{name}: the disk is full"),
            Self::Io { operation, path, .. } => write!(f, "cannot {operation} {}", path.display()),
        }
    }
}

impl Error for BlobError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The directory of blobs.
#[derive(Clone, Debug)]
pub struct Blobs {
    directory: PathBuf,
}

impl Blobs {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.directory.join(name.as_str())
    }

    fn part_path(&self, name: &BlobName) -> PathBuf {
        self.directory.join(format!("{name}{PART}"))
    }

    /// True if the blob exists with this size.
    #[must_use]
    pub fn has(&self, name: &BlobName, size: u64) -> bool {
        fs::symlink_metadata(self.path(name)).is_ok_and(|found| found.is_file() && found.len() == size)
    }

    /// The number of bytes that exist of a blob, complete or in part.
    #[must_use]
    pub fn have(&self, name: &BlobName, size: u64) -> u64 {
        if self.has(name, size) {
            return size;
        }
        fs::symlink_metadata(self.part_path(name)).map_or(0, |found| found.len().min(size))
    }

    /// The same for a blob whose size is unknown.
    #[must_use]
    pub fn bytes(&self, name: &BlobName) -> u64 {
        let length = |path: PathBuf| fs::symlink_metadata(path).map(|found| found.len());
        length(self.path(name)).or_else(|_| length(self.part_path(name))).unwrap_or(0)
    }

    /// Reads a blob once more, and removes it if its bytes do not match its name: a flash block went bad.
    /// Returns true if it was good.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn verify(&self, name: &BlobName) -> Result<bool, BlobError> {
        let path = self.path(name);
        let failed = |operation, source| BlobError::Io { operation, path: path.clone(), source };
        let (mut file, mut hash) = (self.open(name)?, Sha256::new());
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => hash.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(failed("read", source)),
            }
        }
        if hex(&hash.finalize()) == name.as_str() {
            return Ok(true);
        }
        fs::remove_file(&path).map_err(|source| failed("remove", source))?;
        Ok(false)
    }

    /// Reads a blob of at most `limit` bytes and checks its digest once more.
    ///
    /// # Errors
    /// It is missing, too long, or does not match its name: then it was removed.
    pub fn read(&self, name: &BlobName, limit: usize) -> Result<Vec<u8>, BlobError> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        let file = self.open(name)?;
        let read = file.take(limit as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|source| BlobError::Io { operation: "read", path: path.clone(), source })?;
        let found = hex(&Sha256::digest(&bytes));
        if bytes.len() > limit || found != name.as_str() {
            // the flash may have gone bad, so the blob cannot be used any more
            let _ = fs::remove_file(&path);
            return Err(BlobError::Differs { name: name.clone(), found });
        }
        Ok(bytes)
    }

    /// Opens a blob to unpack it; the unpacked bytes have a digest of their own.
    ///
    /// # Errors
    /// It is missing or not a file.
    pub fn open(&self, name: &BlobName) -> Result<File, BlobError> {
        let path = self.path(name);
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        file.map_err(|source| BlobError::Io { operation: "open", path, source })
    }

    /// Begins a blob, or continues one where an earlier writer stopped. `None` if it is complete.
    ///
    /// # Errors
    /// Another writer has its lock, or the disk failed.
    pub fn part(&self, name: &BlobName, size: u64) -> Result<Option<Part>, BlobError> {
        let path = self.part_path(name);
        let failed = |operation, source| BlobError::Io { operation, path: path.clone(), source };
        loop {
            if self.has(name, size) {
                return Ok(None);
            }
            for place in [&path, &self.path(name)] {
                make_room(place).map_err(|source| failed("make room for", source))?;
            }
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(&path)
                .map_err(|source| failed("open", source))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(BlobError::Busy { name: name.clone() }),
                Err(TryLockError::Error(source)) => return Err(failed("lock", source)),
            }
            // the previous holder of the lock may have renamed or removed the opened file
            if is_still(&file, &path) {
                let mut part = Part {
                    file,
                    path,
                    target: self.path(name),
                    name: name.clone(),
                    size,
                    length: 0,
                    hash: Sha256::new(),
                };
                part.read_again()?;
                return Ok(Some(part));
            }
        }
    }

    /// Writes a small blob that is in memory.
    ///
    /// # Errors
    /// As for [`Part::append`] and [`Part::finish`].
    pub fn put(&self, name: &BlobName, bytes: &[u8]) -> Result<(), BlobError> {
        let Some(mut part) = self.part(name, bytes.len() as u64)? else { return Ok(()) };
        part.restart()?;
        part.append(bytes)?;
        part.finish()
    }

    /// Removes a blob and its part; both may be missing. A blob that another pull is writing is left alone.
    ///
    /// # Errors
    /// The disk failed.
    pub fn remove(&self, name: &BlobName) -> Result<(), BlobError> {
        // opening a pipe in its place would wait for a writer
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let part = OpenOptions::new().read(true).custom_flags(flags).open(self.part_path(name));
        if part.as_ref().is_ok_and(|part| matches!(part.try_lock(), Err(TryLockError::WouldBlock))) {
            return Ok(());
        }
        for path in [self.path(name), self.part_path(name)] {
            if let Err(source) = trees::remove(&path) {
                return Err(BlobError::Io { operation: "remove", path, source });
            }
        }
        Ok(())
    }

    /// The existing blobs, complete or in part.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<BlobName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let text = name.to_string_lossy();
            names.extend(BlobName::new(text.strip_suffix(PART).unwrap_or(&text)));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// Removes a directory, link, pipe or device from a path; a file stays, because it may be continued.
fn make_room(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => trees::remove(path),
        _ => Ok(()),
    }
}

fn is_still(file: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (opened.dev(), opened.ino()) == (named.dev(), named.ino())
}

/// A blob that is being written. When it is dropped, the part stays and can be continued.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    target: PathBuf,
    name: BlobName,
    size: u64,
    length: u64,
    hash: Sha256,
}

impl Part {
    /// The number of bytes so far.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads the bytes of an earlier writer, to continue the digest. If there are too many, the part is begun
    /// anew.
    fn read_again(&mut self) -> Result<(), BlobError> {
        let mut buffer = vec![0; CHUNK_BYTES];
        self.file.seek(SeekFrom::Start(0)).map_err(|source| self.failed("seek in", source))?;
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.hash.update(&buffer[..count]);
                    self.length += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed("read", source)),
            }
            if self.length > self.size {
                return self.restart();
            }
        }
    }

    /// Begins anew.
    ///
    /// # Errors
    /// The disk failed.
    pub fn restart(&mut self) -> Result<(), BlobError> {
        self.file.set_len(0).map_err(|source| self.failed("empty", source))?;
        self.file.seek(SeekFrom::Start(0)).map_err(|source| self.failed("seek in", source))?;
        self.length = 0;
        self.hash = Sha256::new();
        Ok(())
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// They exceed the promised size, or the disk is full or failed.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        if bytes.len() as u64 > self.size - self.length {
            self.restart()?;
            return Err(BlobError::TooLong { name: self.name.clone(), expected: self.size });
        }
        self.file.write_all(bytes).map_err(|source| {
            // it is unknown how much of it was written: the next writer reads it again
            self.failed("write", source)
        })?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Checks size and digest, makes the bytes durable, and renames the part.
    ///
    /// # Errors
    /// The bytes are too few, or do not match the name, or the disk failed.
    pub fn finish(self) -> Result<(), BlobError> {
        if self.length != self.size {
            return Err(BlobError::Short { name: self.name, expected: self.size, found: self.length });
        }
        let found = hex(&self.hash.clone().finalize());
        if found != self.name.as_str() {
            fs::remove_file(&self.path).map_err(|source| self.failed("remove", source))?;
            return Err(BlobError::Differs { name: self.name, found });
        }
        self.file.sync_data().map_err(|source| self.failed("sync", source))?;
        fs::rename(&self.path, &self.target).map_err(|source| self.failed("rename", source))?;
        let directory = self.target.parent().unwrap_or(Path::new("."));
        sync_directory(directory).map_err(|source| self.failed("sync the directory of", source))
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> BlobError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                BlobError::NoSpace { name: self.name.clone() }
            }
            _ => BlobError::Io { operation, path: self.path.clone(), source },
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;

    fn blobs(scratch: &Scratch) -> Blobs {
        Blobs::new(scratch.path().to_path_buf())
    }

    fn name(content: &[u8]) -> BlobName {
        BlobName::new(&hex(&Sha256::digest(content))).unwrap()
    }

    const CONTENT: &[u8] = b"the bytes of a blob";

    fn begun(blobs: &Blobs) -> Part {
        blobs.part(&name(CONTENT), CONTENT.len() as u64).unwrap().unwrap()
    }

    /// A damaged disk, or a person, may have left them there.
    #[test]
    fn blob_is_written_whatever_lies_in_its_place() {
        type Spoil = fn(&Path);
        let ways: [(&str, Spoil); 6] = [
            ("a full directory", |path| fs::create_dir_all(path.join("below/further")).unwrap()),
            ("a link to a device", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
            ("a link to nothing", |path| std::os::unix::fs::symlink("/nonexistent", path).unwrap()),
            ("a pipe", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
            ("more bytes than it has", |path| fs::write(path, [b'x'; 1000]).unwrap()),
            ("nothing", |path| fs::write(path, "").unwrap()),
        ];
        for (what, spoil) in ways {
            for is_part in [false, true] {
                let scratch = Scratch::new("blobs-spoilt").unwrap();
                let blobs = blobs(&scratch);
                let blob = name(CONTENT);
                spoil(&if is_part { blobs.part_path(&blob) } else { blobs.path(&blob) });
                let mut part = begun(&blobs);
                assert_eq!(part.length(), 0, "{what}");
                part.append(CONTENT).unwrap();
                part.finish().unwrap();
                assert_eq!(blobs.read(&blob, 100).unwrap(), CONTENT, "{what}");
                for path in [blobs.part_path(&blob), blobs.path(&blob)] {
                    trees::remove(&path).unwrap();
                    spoil(&path);
                }
                blobs.remove(&blob).unwrap();
                assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "{what}");
            }
        }
    }

    #[test]
    fn part_is_continued_where_it_ends() {
        let scratch = Scratch::new("blobs").unwrap();
        let blobs = blobs(&scratch);
        begun(&blobs).append(&CONTENT[..7]).unwrap();
        let mut part = begun(&blobs);
        assert_eq!(part.length(), 7);
        part.append(&CONTENT[7..]).unwrap();
        part.finish().unwrap();
        assert_eq!(blobs.read(&name(CONTENT), 100).unwrap(), CONTENT);
        assert!(blobs.part(&name(CONTENT), CONTENT.len() as u64).unwrap().is_none(), "it is there");
        assert_eq!(blobs.list().unwrap(), [name(CONTENT)]);
    }

    #[test]
    fn wrong_bytes_never_get_the_name() {
        let scratch = Scratch::new("blobs").unwrap();
        let blobs = blobs(&scratch);
        let mut part = begun(&blobs);
        part.append(&[0; CONTENT.len()]).unwrap();
        assert!(matches!(part.finish(), Err(BlobError::Differs { .. })));
        assert_eq!(begun(&blobs).length(), 0, "nothing is continued");
        let short = begun(&blobs);
        assert!(matches!(short.finish(), Err(BlobError::Short { found: 0, .. })));
        let mut long = begun(&blobs);
        assert!(matches!(long.append(&[0; 100]), Err(BlobError::TooLong { .. })));
        drop(long);
        assert!(!blobs.has(&name(CONTENT), CONTENT.len() as u64));
        // a power cut can leave the size without the bytes at the end of a file, or more than was promised
        fs::write(blobs.part_path(&name(CONTENT)), [0; 100]).unwrap();
        assert_eq!(begun(&blobs).length(), 0);
    }

    #[test]
    fn second_writer_waits_for_the_first() {
        let scratch = Scratch::new("blobs").unwrap();
        let blobs = blobs(&scratch);
        let mut part = begun(&blobs);
        let busy = blobs.part(&name(CONTENT), CONTENT.len() as u64);
        assert!(matches!(busy, Err(BlobError::Busy { .. })));
        // nor does the cleanup of another pull remove it
        blobs.remove(&name(CONTENT)).unwrap();
        part.append(CONTENT).unwrap();
        assert_eq!(blobs.have(&name(CONTENT), 1000), CONTENT.len() as u64);
        part.finish().unwrap();
        assert!(blobs.part(&name(CONTENT), CONTENT.len() as u64).unwrap().is_none());
        assert_eq!(blobs.have(&name(CONTENT), CONTENT.len() as u64), CONTENT.len() as u64);
    }

    #[test]
    fn blob_that_went_bad_is_removed() {
        let scratch = Scratch::new("blobs").unwrap();
        let blobs = blobs(&scratch);
        blobs.put(&name(CONTENT), CONTENT).unwrap();
        let mut bad = CONTENT.to_vec();
        bad[3] ^= 1;
        fs::write(blobs.path(&name(CONTENT)), &bad).unwrap();
        assert!(matches!(blobs.read(&name(CONTENT), 100), Err(BlobError::Differs { .. })));
        assert!(!blobs.has(&name(CONTENT), CONTENT.len() as u64));
        fs::write(blobs.path(&name(CONTENT)), &bad).unwrap();
        assert!(!blobs.verify(&name(CONTENT)).unwrap());
        assert!(!blobs.has(&name(CONTENT), CONTENT.len() as u64));
        blobs.put(&name(CONTENT), CONTENT).unwrap();
        assert!(blobs.verify(&name(CONTENT)).unwrap());
        assert_eq!(blobs.read(&name(CONTENT), 100).unwrap(), CONTENT);
        blobs.remove(&name(CONTENT)).unwrap();
        blobs.remove(&name(CONTENT)).unwrap();
        assert_eq!(blobs.list().unwrap(), []);
    }
}
