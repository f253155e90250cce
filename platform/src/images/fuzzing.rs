//! Unpacks a layer in this very process, so that a fuzzer can observe the code: feature `fake`, never in a
//! release.
//!
//! Always holds: a separate thread unpacks, whose root is a private file system in memory that ends with the
//! thread, so no archive reaches a file of the machine. It keeps the capabilities that `confine` takes away:
//! it reads only the archive, and no device that it makes can be opened. Leaves to others: the properties of
//! the outcome (the fuzz target).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, umask};
use nix::sys::statvfs::statvfs;
use sha2::{Digest as _, Sha256};

use super::apply::{self, Bounds, Packing};
use super::blobs::hex;
use super::mounts;

/// One archive.
#[derive(Debug)]
struct Job {
    archive: Vec<u8>,
    packing: Packing,
    bounds: Bounds,
    /// True to unpack onto the result of the previous jobs.
    is_next: bool,
}

/// The outcome of an archive.
#[derive(Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Digest of the plain archive, entries, bytes on disk; or the reason of a refusal.
    pub done: Result<(String, u64, u64), String>,
    /// All files that exist now, sorted.
    pub tree: Vec<Found>,
    /// Bytes of the file system that this archive has used.
    pub used_bytes: u64,
}

/// A file, a directory or another entry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub path: PathBuf,
    /// `file`, `directory`, `link`, `device` or `pipe`.
    pub kind: &'static str,
    /// The number of a device.
    pub device: u64,
    /// Owner, mode, time, and the digest of the content.
    pub rest: String,
}

/// The thread that unpacks.
#[derive(Debug)]
pub struct Unpacker {
    jobs: SyncSender<Job>,
    outcomes: Receiver<Unpacked>,
}

impl Unpacker {
    /// Starts it with a file system of this many bytes.
    ///
    /// # Errors
    /// The kernel refuses, for example because the process is not root's.
    pub fn start(bytes: u64) -> io::Result<Self> {
        let (jobs, taken) = sync_channel::<Job>(0);
        let (told, outcomes) = sync_channel(0);
        let (ready, is_ready) = sync_channel(0);
        thread::Builder::new().name("unpack".to_owned()).spawn(move || {
            let begun = begin(bytes);
            let has_begun = begun.is_ok();
            let _ = ready.send(begun);
            while let Some(job) = taken.recv().ok().filter(|_| has_begun) {
                let _ = told.send(unpack(&job));
            }
        })?;
        is_ready.recv().map_err(|_| io::Error::other("the thread that unpacks has panicked"))??;
        Ok(Self { jobs, outcomes })
    }

    /// Unpacks an archive: into an empty directory, or onto the result of the previous one. `packing`:
    /// `plain`, `gzip` or `zstd`.
    ///
    /// # Panics
    /// The unpacking code panics.
    #[must_use]
    pub fn unpack(
        &self,
        archive: &[u8],
        packing: &str,
        [entries, bytes]: [u64; 2],
        is_next: bool,
    ) -> Unpacked {
        let packing = Packing::parse(packing).expect("it is one of three");
        let bounds = Bounds { entries, bytes };
        let job = Job { archive: archive.to_vec(), packing, bounds, is_next };
        self.jobs.send(job).expect("the thread that unpacks waits for it");
        self.outcomes.recv().expect("the thread that unpacks answers")
    }
}

fn begin(bytes: u64) -> io::Result<()> {
    let place = std::env::temp_dir();
    mounts::set_thread_apart(&place)?;
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let size = format!("size={bytes},mode=755");
    mount(Some("tmpfs"), &place, Some("tmpfs"), flags, Some(size.as_str()))?;
    nix::unistd::chroot(&place)?;
    nix::unistd::chdir("/")?;
    umask(Mode::empty());
    Ok(())
}

fn unpack(job: &Job) -> Unpacked {
    if !job.is_next {
        for entry in fs::read_dir("/").expect("it is there").flatten() {
            crate::trees::remove(&entry.path()).expect("it is in memory");
        }
    }
    let used = || {
        let stat = statvfs("/").expect("it is mounted");
        (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
    };
    let before = used();
    let applied = apply::apply(job.archive.as_slice(), job.packing, job.bounds);
    let used_bytes = used().saturating_sub(before);
    let mut tree = Vec::new();
    list(Path::new("/"), &mut tree);
    tree.sort();
    Unpacked {
        done: applied.map(|it| (it.diff, it.entries, it.bytes)).map_err(|refusal| refusal.why),
        tree,
        used_bytes,
    }
}

fn list(directory: &Path, tree: &mut Vec<Found>) {
    for entry in fs::read_dir(directory).expect("it was listed").flatten() {
        let path = entry.path();
        let meta = fs::symlink_metadata(&path).expect("it was listed");
        let kind = meta.file_type();
        let (kind, content) = if kind.is_file() {
            ("file", hex(&Sha256::digest(fs::read(&path).expect("it is a file"))))
        } else if kind.is_symlink() {
            ("link", format!("{:?}", fs::read_link(&path).expect("it is a link")))
        } else if kind.is_fifo() {
            ("pipe", String::new())
        } else if kind.is_dir() {
            list(&path, tree);
            ("directory", String::new())
        } else {
            ("device", format!("{:?}", kind))
        };
        let mut rest = format!("{} {} {:o} ", meta.uid(), meta.gid(), meta.mode());
        // for a directory both depend on its content, and on when it was made
        if !meta.is_dir() {
            write!(rest, "{} {} ", meta.mtime(), meta.nlink()).expect("it is a text");
        }
        rest.push_str(&content);
        tree.push(Found { path, kind, device: meta.rdev(), rest });
    }
}
