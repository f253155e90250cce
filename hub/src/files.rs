//! Small files: written to a temporary file and renamed, and flushed where they must survive a power cut.
//!
//! Always holds: a reader sees the old content or the new one, never a mixture, and once `Flush::Now` has
//! returned the new one is durable. A leftover of an interrupted write is overwritten by the next. Only
//! regular files of a bounded size are read: for a named pipe, a device or a directory in a file's place the
//! read fails at once. Left to others: objects (`store`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use kedge_platform::linux::open_regular_as;

/// Only the owner may read: keys, and files that hold them.
pub(crate) const SECRET: u32 = 0o600;
/// Anyone may read: the CA's certificate, the server's address.
pub(crate) const PUBLIC: u32 = 0o644;
/// Longest file that is read; ours are far smaller.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Whether a write waits for the disk: a first start writes six files, and a memory card takes 10 to 50 ms
/// for each of the two flushes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Durable once the call returns.
    Now,
    /// The system flushes it later, within half a minute on Linux; a power cut before that may leave an empty
    /// or damaged file. Only for files that the next start checks and recreates.
    Later,
}

/// Replaces `path`; the file has `mode` from its first byte on. There must be one writer at a time, which the
/// data directory's lock ensures.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32, flush: Flush) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file in a directory"));
    };
    let temporary = directory.join(format!(".{}.tmp", name.to_string_lossy()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    // the umask may have removed bits of the mode
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

/// Writes only if the content differs, so that a restart does not write; flushed later, because the next call
/// would notice a damaged file and replace it. Returns true if it wrote.
pub(crate) fn write_if_changed(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let same_mode = || Ok::<_, io::Error>(fs::metadata(path)?.permissions().mode() & 0o777 == mode);
    match read(path) {
        Ok(old) if old == content && same_mode()? => Ok(false),
        _ => write(path, content, mode, Flush::Later).map(|()| true),
    }
}

/// Reads a whole file; fails if it is longer than [`MAX_FILE_BYTES`].
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, MAX_FILE_BYTES)
}

/// Opens a regular file, or creates it, as `options` demand. A link is followed, because an operator may keep
/// a file on another disk; its target must be a regular file.
pub(crate) fn open_regular(options: &OpenOptions, path: &Path) -> io::Result<File> {
    match path.is_symlink() {
        true => open_regular_as(&path.canonicalize()?, options),
        false => open_regular_as(path, options),
    }
}

/// Reads a whole file; fails if it is longer than `most` bytes, or not a regular file.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(OpenOptions::new().read(true), path)?;
    let too_long = |length| {
        let text = format!("{length} bytes long, expected at most {most}");
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    };
    let length = file.metadata()?.len();
    if length > most {
        return too_long(length);
    }
    let mut content = Vec::new();
    // it may grow meanwhile
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most { too_long(content.len() as u64) } else { Ok(content) }
}

/// Fails if something other than a regular file has this path; succeeds if the path does not exist.
pub(crate) fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        // the error names the type of the file
        Ok(_) => open_regular(OpenOptions::new().read(true), path).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a directory that only the owner may enter (its missing parents get the umask's mode), and makes
/// its name durable.
pub(crate) fn make_private_directory(path: &Path) -> io::Result<()> {
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
    use super::*;

    fn test_directory(name: &str) -> kedge_rig::Scratch {
        kedge_rig::Scratch::new(&format!("hub-{name}")).unwrap()
    }

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
    fn pipe_device_or_directory_is_refused_at_once() {
        let directory = test_directory("no-file");
        let made = |name: &str| directory.join(name);
        assert!(std::process::Command::new("mkfifo").arg(made("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", made("link")).unwrap();
        fs::create_dir(made("folder")).unwrap();
        for (name, expect) in [("pipe", "a named pipe"), ("link", "a device"), ("folder", "a directory")] {
            let refused = read(&made(name)).unwrap_err().to_string();
            assert!(refused.contains(expect), "{name}: {refused}");
            assert!(check_regular(&made(name)).is_err(), "{name}");
        }
        fs::write(made("file"), "x").unwrap();
        std::os::unix::fs::symlink(made("file"), made("link-to-a-file")).unwrap();
        assert_eq!(read(&made("link-to-a-file")).unwrap(), b"x");
        assert!(check_regular(&made("link-to-a-file")).is_ok() && check_regular(&made("missing")).is_ok());
    }

    #[test]
    fn oversized_file_is_refused() {
        let directory = test_directory("large");
        let path = directory.join("file");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("expected at most"));
    }
}
