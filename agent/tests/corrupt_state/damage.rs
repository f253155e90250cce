//! The damage that a file or directory can suffer.

use kedge_rig::Random;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

/// One misfortune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Only this many bytes are left.
    CutTo(usize),
    /// The first half is left.
    CutToHalf,
    /// This many bytes are gone from the end.
    CutAllBut(usize),
    /// The file is as long as before, and all zero: many file systems leave this after a power cut.
    Zeroed,
    /// The file is as long as before, with random bytes.
    Noise,
    /// Five MiB follow what was there.
    Grown,
    /// One bit differs, this far in (percent).
    Flipped(usize),
    /// It is gone.
    Missing,
    /// An empty directory is there.
    Directory,
    /// A directory with something in it is there.
    FullDirectory,
    /// An empty file is there.
    File,
    /// A link to nothing.
    DanglingLink,
    /// A link to a file of the system.
    LinkToPasswd,
    /// A link to a file that never ends.
    LinkToZero,
    /// A link to itself.
    LinkToItself,
    /// A pipe without a writer.
    Fifo,
    /// A socket.
    Socket,
}

/// Does it to `path`.
pub(crate) fn apply(damage: Damage, path: &Path) {
    // an earlier damage may have left a file that cannot be read, or whose reading never ends
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let before = if is_file { fs::read(path).unwrap() } else { Vec::new() };
    remove(path);
    match damage {
        Damage::CutTo(bytes) => fs::write(path, &before[..bytes.min(before.len())]).unwrap(),
        Damage::CutToHalf => fs::write(path, &before[..before.len() / 2]).unwrap(),
        Damage::CutAllBut(bytes) => fs::write(path, &before[..before.len().saturating_sub(bytes)]).unwrap(),
        Damage::Zeroed => fs::write(path, vec![0; before.len()]).unwrap(),
        Damage::Noise => fs::write(path, noise(before.len())).unwrap(),
        Damage::Grown => {
            let mut file = fs::File::create(path).unwrap();
            file.write_all(&before).unwrap();
            file.write_all(&vec![b'x'; 5 << 20]).unwrap();
        }
        Damage::Flipped(percent) => {
            let mut bytes = before;
            let at = bytes.len() * percent / 100;
            bytes[at] ^= 1 << (at % 8);
            fs::write(path, bytes).unwrap();
        }
        Damage::Missing => {}
        Damage::Directory => fs::create_dir(path).unwrap(),
        Damage::FullDirectory => {
            fs::create_dir_all(path.join("below/further")).unwrap();
            fs::write(path.join("below/note"), "not ours").unwrap();
        }
        Damage::File => fs::write(path, "").unwrap(),
        Damage::DanglingLink => symlink("/nonexistent/thing", path).unwrap(),
        Damage::LinkToPasswd => symlink("/etc/passwd", path).unwrap(),
        Damage::LinkToZero => symlink("/dev/zero", path).unwrap(),
        Damage::LinkToItself => symlink(path, path).unwrap(),
        Damage::Fifo => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        Damage::Socket => drop(bind_short(path)),
    }
}

/// A socket's path has 107 bytes at most: bound from within its directory.
fn bind_short(path: &Path) -> UnixListener {
    let short = std::env::temp_dir().join(format!(
        "kedge-s-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let _ = fs::remove_file(&short);
    let listener = UnixListener::bind(&short).unwrap();
    fs::rename(&short, path).unwrap();
    listener
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

fn noise(length: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    (0..length).map(|_| random.number() as u8).collect()
}
