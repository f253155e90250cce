//! Small files: written beside and renamed, and, where a power cut must not take them, flushed before anybody relies on them.
//!
//! Holds: a reader sees the old content or the new one, never a mixture, and after a `Flush::Now` returned the new one
//! stays. A leftover of an interrupted write is overwritten by the next. Objects are not kept here: the store does that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Only the owner may read: keys, and files that hold them.
pub(super) const SECRET: u32 = 0o600;
/// Anyone may read: the CA's certificate, the server's address.
pub(super) const PUBLIC: u32 = 0o644;
/// No file of this module comes near this; a larger one is not ours and is not read into memory.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Whether a write waits for the disk: a first start writes six files, and a memory card takes 10 to 50 ms for each of the two
/// flushes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// Once it returns, a power cut takes nothing away.
    Now,
    /// The system flushes it in its own time, half a minute on Linux; a power cut before may leave an empty or a spoilt file. Only
    /// for what the next start finds out and makes anew.
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
    // the umask may have taken bits away, it never adds any
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

/// Writes only if the content differs, so that a restart costs the disk nothing; flushed later, because whoever calls this again
/// finds a spoilt file different. Says whether it wrote.
pub(super) fn write_if_changed(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let same_mode = || Ok::<_, io::Error>(fs::metadata(path)?.permissions().mode() & 0o777 == mode);
    match read(path) {
        Ok(old) if old == content && same_mode()? => Ok(false),
        _ => write(path, content, mode, Flush::Later).map(|()| true),
    }
}

/// The whole file, refused when it is absurdly large.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = fs::metadata(path)?.len();
    if length > MAX_FILE_BYTES {
        let text = format!("{length} bytes long, expected at most {MAX_FILE_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    fs::read(path)
}

/// Makes a directory that only the owner may enter (those above it as the umask says), and makes its name durable.
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
    fn a_secret_is_written_with_its_mode_and_replaced_whole() {
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
    fn what_is_already_there_is_not_written_again_unless_its_mode_is_wrong() {
        let directory = test_directory("unchanged");
        let path = directory.join("file");
        assert!(write_if_changed(&path, b"x", SECRET).unwrap());
        assert!(!write_if_changed(&path, b"x", SECRET).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(write_if_changed(&path, b"x", SECRET).unwrap());
        assert!(write_if_changed(&path, b"y", SECRET).unwrap());
    }

    #[test]
    fn a_file_of_absurd_size_is_refused() {
        let directory = test_directory("large");
        let path = directory.join("file");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("expected at most"));
    }
}
