//! Files and directories below a directory to which strangers write, such as `/var/log`.
//!
//! Always holds: no link is followed below that directory, whatever changes there meanwhile, so nothing
//! outside is reached; only regular files and directories are opened, because opening a device has effects
//! and a pipe blocks.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use super::reopen;

/// The result of [`open_beneath`].
#[derive(Debug)]
pub enum Beneath {
    /// A regular file, open for reading.
    File(File),
    /// The names in a directory, sorted, those of directories with `/` at their end; true if there are more.
    Directory(Vec<String>, bool),
}

/// Opens the file or directory that these names lead to. At most `most` names of a directory are listed.
///
/// # Errors
/// It is missing, is neither file nor directory, or a link leads to it (`PermissionDenied`).
pub fn open_beneath(directory: &Path, names: &[&str], most: usize) -> io::Result<Beneath> {
    // the directory itself may be a link, as on systems that keep logs in memory
    let mut found = open(directory, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    for name in names {
        if matches!(*name, "" | "." | "..") || name.contains(['/', '\0']) {
            let why = format!("{name:?} is no name of a file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let next = File::from(openat(&found, *name, flags, Mode::empty())?);
        if next.metadata()?.is_symlink() {
            let why = format!("{name:?} is a link, and links are not followed");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        found = next.into();
    }
    let found = File::from(found);
    let kind = found.metadata()?.file_type();
    if kind.is_file() {
        return Ok(Beneath::File(reopen(&found)?));
    }
    if !kind.is_dir() {
        return Err(io::Error::other("neither a file nor a directory"));
    }
    list(&found.into(), most).map(|(names, more)| Beneath::Directory(names, more))
}

fn list(directory: &OwnedFd, most: usize) -> io::Result<(Vec<String>, bool)> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut names = Vec::new();
    let mut more = false;
    for entry in Dir::openat(directory, ".", flags, Mode::empty())?.iter() {
        let entry = entry?;
        // no request can contain a name that is not UTF-8
        let Ok(name) = entry.file_name().to_str() else { continue };
        if matches!(name, "." | "..") {
            continue;
        }
        if names.len() == most {
            more = true;
            break;
        }
        let slash = if entry.file_type() == Some(Type::Directory) { "/" } else { "" };
        names.push(format!("{name}{slash}"));
    }
    names.sort();
    Ok((names, more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_is_reached() {
        let scratch = std::env::temp_dir().join(format!("kedge-beneath-{}", std::process::id()));
        let logs = scratch.join("logs");
        fs::create_dir_all(logs.join("a/b")).unwrap();
        fs::write(logs.join("a/b/c.log"), "text").unwrap();
        fs::write(scratch.join("secret"), "secret").unwrap();
        symlink("../secret", logs.join("file")).unwrap();
        symlink("..", logs.join("out")).unwrap();
        symlink("a", logs.join("in")).unwrap();
        symlink(&logs, scratch.join("root")).unwrap();
        nix::unistd::mkfifo(&logs.join("pipe"), Mode::S_IRUSR).unwrap();
        let shown = |root: &str, path: &str| {
            let names: Vec<&str> = path.split('/').filter(|name| *name != "-").collect();
            match open_beneath(&scratch.join(root), &names, 4) {
                Ok(Beneath::File(mut file)) => {
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    text
                }
                Ok(Beneath::Directory(names, more)) => format!("{} {more}", names.join(" ")),
                Err(error) => format!("{:?}", error.kind()),
            }
        };
        let found: Vec<String> = [
            "a/b/c.log",
            "a/b",
            "a",
            "file",
            "out/secret",
            "in/b/c.log",
            "../secret",
            "a/../a",
            "pipe",
            "no",
            "a/b/c.log/d",
        ]
        .map(|path| shown("logs", path))
        .into();
        let through_link = shown("root", "a/b/c.log");
        let all = shown("logs", "-");
        fs::remove_dir_all(&scratch).unwrap();
        let denied = "PermissionDenied";
        assert_eq!(
            found,
            [
                "text",
                "c.log false",
                "b/ false",
                denied,
                denied,
                denied,
                "InvalidInput",
                "InvalidInput",
                "Other",
                "NotFound",
                "NotADirectory"
            ]
        );
        assert_eq!(through_link, "text");
        assert!(all.ends_with(" true") && all.split(' ').count() == 5, "{all}");
    }
}
