//! Small files: written to a temporary file and renamed, and flushed where they must survive a power cut.
//!
//! Always holds: a reader sees the old content or the new one, never a mixture, and once `Flush::Now` has returned the new one
//! is durable. A leftover of an interrupted write is overwritten by the next. Left to others: objects (`store`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Only the owner may read: keys, and files that hold them.
pub(super) const SECRET: u32 = 0o600;
/// Anyone may read: the CA's certificate, the server's address.
pub(super) const PUBLIC: u32 = 0o644;
/// Longest file that is read; ours are far smaller.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Whether a write waits for the disk: a first start writes six files, and a memory card takes 10 to 50 ms for each of the two
/// flushes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// Durable once the call returns.
    Now,
    /// The system flushes it later, within half a minute on Linux; a power cut before that may leave an empty or damaged file. Only
    /// for files that the next start checks and recreates.
    Later,
}

/// Replaces `path`; the file has `mode` from its first byte on. One writer at a time (the data directory's lock sees to that).
pub(super) fn write(path: &Path, content: &[u8], mode: u32, flush: Flush) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file in a directory"));
    };
    let temporary = directory.join(format!(".{}.tmp", name.to_string_lossy()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    // the umask may have removed bits, it never adds any
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    if flush == Flush::Now {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&temporary, path)?;
    if flush == Flush::Now {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Writes only if the content differs, so that a restart does not write; flushed later, because the next call would find a damaged
/// file different. Returns whether it wrote.
pub(super) fn write_if_changed(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let same_mode = || Ok::<_, io::Error>(fs::metadata(path)?.permissions().mode() & 0o777 == mode);
    match read(path) {
        Ok(old) if old == content && same_mode()? => Ok(false),
        _ => write(path, content, mode, Flush::Later).map(|()| true),
    }
}

/// The whole file; an error if it is longer than [`MAX_FILE_BYTES`].
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = fs::metadata(path)?.len();
    if length > MAX_FILE_BYTES {
        let text = format!("{length} bytes long, expected at most {MAX_FILE_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    fs::read(path)
}

/// Creates a directory that only the owner may enter (those above it as the umask says), and makes its name durable.
pub(super) fn make_private_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    fs::DirBuilder::new().mode(0o700).create(path)?;
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::test_directory;
    use super::*;

    #[test]
    fn secret_is_written_with_its_mode_and_replaced_whole() {
        let directory = test_directory("durable");
        let path = directory.join("key");
        fs::write(directory.join(".key.tmp"), "left over by a power cut").unwrap();
        write(&path, b"one", SECRET, Flush::Now).unwrap();
        write(&path, b"two", SECRET, Flush::Later).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!directory.join(".key.tmp").exists());
    }

    #[test]
    fn equal_file_is_not_rewritten_unless_its_mode_is_wrong() {
        let directory = test_directory("unchanged");
        let path = directory.join("file");
        assert!(write_if_changed(&path, b"x", SECRET).unwrap());
        assert!(!write_if_changed(&path, b"x", SECRET).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(write_if_changed(&path, b"x", SECRET).unwrap());
        assert!(write_if_changed(&path, b"y", SECRET).unwrap());
    }

    #[test]
    fn oversized_file_is_refused() {
        let directory = test_directory("large");
        let path = directory.join("file");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("expected at most"));
    }
}
