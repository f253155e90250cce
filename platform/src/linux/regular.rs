//! Regular files in places where others may have put a named pipe, a device, a directory, a socket or a link:
//! below a directory of a container, or on a damaged disk.
//!
//! Always holds: only a regular file is opened, no link in its place is followed, and no call waits: a
//! pipe without a reader, or a device, would hold the thread for ever. An obstacle is left in place.
//!
//! Leaves to others: the choice of files, and the treatment of obstacles. Records are written by
//! [`DurableFiles`](crate::files).

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

use super::disk::{kind_of_type, read_up_to};
use crate::files::Kind;

/// Something other than a regular file has the name.
#[derive(Debug)]
struct NotRegular(Kind);

impl std::fmt::Display for NotRegular {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a regular file but a {}", self.0)
    }
}

impl std::error::Error for NotRegular {}

/// The type of the obstacle in the place of a regular file, if one of these functions failed because of it.
pub fn kind_in_its_place(error: &io::Error) -> Option<Kind> {
    error.get_ref().and_then(|why| why.downcast_ref::<NotRegular>()).map(|found| found.0)
}

/// Opens a regular file, or makes it, as `options` demand; their own `custom_flags` are ignored.
///
/// # Errors
/// Something else has its name ([`kind_in_its_place`]), or it cannot be opened.
pub fn open_regular_as(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let check = |kind| if kind == Kind::File { Ok(()) } else { Err(io::Error::other(NotRegular(kind))) };
    // examined before it is opened: opening a device can have effects
    match path.symlink_metadata() {
        Ok(found) => check(kind_of_type(found.file_type()))?,
        // it may be created
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW).bits();
    let file = options.clone().custom_flags(flags).open(path)?;
    check(kind_of_type(file.metadata()?.file_type()))?;
    Ok(file)
}

/// Opens a regular file, to be read.
///
/// # Errors
/// Something else has its name, or it cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_as(path, File::options().read(true))
}

/// The content of a regular file, cut at `limit` bytes.
///
/// # Errors
/// Something else has its name, or it cannot be read.
pub fn read_regular(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_up_to(open_regular(path)?, limit)
}

/// The last bytes of a regular file, `limit` at most.
///
/// # Errors
/// Something else has its name, or it cannot be read.
pub fn read_end(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    read_up_to(file, usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Writes the whole content of a regular file, which is made if it is missing.
///
/// # Errors
/// Something else has its name, or it cannot be written.
pub fn write_regular(path: &Path, content: &[u8]) -> io::Result<()> {
    open_regular_as(path, File::options().write(true).create(true).truncate(true))?.write_all(content)
}

/// Opens the file of a lock, or makes it; its content is kept.
///
/// # Errors
/// Something else has its name, or it cannot be opened.
pub fn open_lock(path: &Path) -> io::Result<File> {
    open_regular_as(path, File::options().read(true).write(true).create(true).truncate(false).mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use nix::sys::stat::Mode;
    use std::fs;
    use std::os::unix::net::UnixListener;

    /// The test would hang if one of them waited.
    #[test]
    fn anything_else_than_a_regular_file_is_refused_at_once() {
        type Put = fn(&Path);
        let others: [(Kind, Put); 6] = [
            (Kind::Fifo, |path| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap()),
            (Kind::Directory, |path| fs::create_dir(path).unwrap()),
            (Kind::Symlink, |path| {
                fs::write(path.with_extension("target"), "hidden").unwrap();
                std::os::unix::fs::symlink(path.with_extension("target"), path).unwrap();
            }),
            (Kind::Symlink, |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
            (Kind::Symlink, |path| std::os::unix::fs::symlink(path.with_extension("absent"), path).unwrap()),
            (Kind::Socket, |path| drop(UnixListener::bind(path).unwrap())),
        ];
        for (index, (kind, put)) in others.into_iter().enumerate() {
            let scratch = Scratch::new(&format!("regular-{index}")).unwrap();
            let path = scratch.join("file");
            put(&path);
            let check = |done: io::Result<()>, what: &str| {
                let error = done.expect_err(what);
                assert_eq!(kind_in_its_place(&error), Some(kind), "{what}: {error}");
                assert_eq!(error.to_string(), format!("not a regular file but a {kind}"), "{what}");
            };
            check(open_regular(&path).map(drop), "open");
            check(read_regular(&path, 10).map(drop), "read");
            check(read_end(&path, 10).map(drop), "read the end");
            check(write_regular(&path, b"text"), "write");
            check(open_lock(&path).map(drop), "lock");
            let left = kind_of_type(path.symlink_metadata().unwrap().file_type());
            assert_eq!(left, kind, "what is in the way is left there");
            assert!(!path.with_extension("absent").exists(), "no link is followed");
        }
    }

    #[test]
    fn regular_file_is_made_written_read_and_cut() {
        let scratch = Scratch::new("regular-file").unwrap();
        let path = scratch.join("file");
        let absent = open_regular(&path).unwrap_err();
        assert_eq!((absent.kind(), kind_in_its_place(&absent)), (io::ErrorKind::NotFound, None));
        write_regular(&path, b"a longer text").unwrap();
        write_regular(&path, b"0123456789").unwrap();
        assert_eq!(read_regular(&path, 100).unwrap(), b"0123456789");
        assert_eq!(read_regular(&path, 4).unwrap(), b"0123");
        assert_eq!(read_end(&path, 4).unwrap(), b"6789");
        drop(open_lock(&path).unwrap());
        assert_eq!(read_end(&path, 100).unwrap(), b"0123456789", "a lock leaves what is there");
        open_lock(&scratch.join("lock")).unwrap().lock().unwrap();
    }
}
