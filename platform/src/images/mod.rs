//! Images on a node's disk: blobs as a registry has them, layers as containers mount them.
//!
//! Always holds: a blob has its name only after its bytes were compared with it and are durable; a layer is there only with its
//! record, which is written after all it holds is durable; whatever a power cut or a kill leaves is continued, or removed by the
//! next sweep. Archives are read by a confined process, never by this one. No mount outlives the thread that made it.
//!
//!     blobs/HEX          a blob                        layers/NAME         what a layer adds to those below it
//!     blobs/HEX.part     a blob that is being fetched  layers/NAME.json    the record that vouches for it
//!     lock               shared: pulls; alone: removal layers/NAME.new ... being made, or being removed
//!
//! Leaves to others: what an image is, what may be removed, where blobs come from.

mod apply;
mod blobs;
mod child;
mod confine;
mod layers;
mod mounts;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::linux;

pub use blobs::{BlobError, Blobs, Part};
pub use child::{UnpackArguments, unpack_child};
pub use layers::{LayerRecord, Layers, Limits, Step, Unpack, UnpackError};
pub use mounts::mounted_layers;

/// A SHA-256 digest as a file's name: 64 lower case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobName(String);

impl BlobName {
    /// Takes a text that is one.
    #[must_use]
    pub fn new(hex: &str) -> Option<Self> {
        let is_hex = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Self(hex.to_owned()))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What holds off whoever removes, or whoever pulls. Ends with the value, and with the process.
#[derive(Debug)]
pub struct Hold {
    _file: File,
}

/// The directory of all images.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    root: PathBuf,
    pub blobs: Blobs,
    pub layers: Layers,
}

impl ImageFiles {
    /// Images below `root`, whose directories are made if they are missing. `program` unpacks layers when it is started as
    /// `program unpack ...` (see [`unpack_child`]).
    ///
    /// # Errors
    /// A directory cannot be made.
    pub fn open(root: &Path, program: &Path) -> io::Result<Self> {
        for directory in [root.to_path_buf(), root.join("blobs"), root.join("layers")] {
            make_directory(&directory)?;
        }
        Ok(Self {
            root: root.to_path_buf(),
            blobs: Blobs::new(root.join("blobs")),
            layers: Layers::new(root.join("layers"), program.to_path_buf()),
        })
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Held by whoever pulls: many at once. `None` while something is being removed.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_shared(&self) -> io::Result<Option<Hold>> {
        let file = self.lock_file("lock")?;
        held(file.try_lock_shared(), file)
    }

    /// Held by whoever removes: alone. `None` while another process or thread holds it either way.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_alone(&self) -> io::Result<Option<Hold>> {
        let file = self.lock_file("lock")?;
        held(file.try_lock(), file)
    }

    /// Held while records are read, changed and written, which is short: waits for others.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_records(&self) -> io::Result<Hold> {
        let file = self.lock_file("records.lock")?;
        file.lock()?;
        Ok(Hold { _file: file })
    }

    /// Held by whoever uses [`ImageFiles::extract`], until its directory is removed: waits for others.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_import(&self) -> io::Result<Hold> {
        let file = self.lock_file("import.lock")?;
        file.lock()?;
        Ok(Hold { _file: file })
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        let path = self.root.join(name);
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
    }

    /// Unpacks an archive that is no layer, such as a layout that somebody brought, by the same confined process, into a directory
    /// that the caller removes, who has [`ImageFiles::hold_import`].
    ///
    /// # Errors
    /// It is not unpacked, and nothing is left.
    pub fn extract(&self, archive: File, packing: &str, limits: Limits) -> Result<PathBuf, UnpackError> {
        self.layers.extract(archive, packing, limits)
    }

    /// Bytes and inodes of the file system that holds the images: capacity, available, inodes, free inodes.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn space(&self) -> io::Result<[u64; 4]> {
        // the types differ from one architecture to another
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "u32 on 32-bit boards")]
        fn sized(stat: &nix::sys::statvfs::Statvfs) -> [u64; 4] {
            let block = stat.fragment_size() as u64;
            [
                (stat.blocks() as u64).saturating_mul(block),
                (stat.blocks_available() as u64).saturating_mul(block),
                stat.files() as u64,
                stat.files_available() as u64,
            ]
        }
        Ok(sized(&nix::sys::statvfs::statvfs(&self.root)?))
    }
}

fn held(locked: Result<(), fs::TryLockError>, file: File) -> io::Result<Option<Hold>> {
    match locked {
        Ok(()) => Ok(Some(Hold { _file: file })),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// A directory for root alone; that it exists is fine.
fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file below a directory that a stranger filled: no link leads out of it, and nothing but a file is opened.
///
/// # Errors
/// It is missing, is no file, or lies outside.
pub fn open_beneath(directory: &Path, path: &Path) -> io::Result<File> {
    use nix::fcntl::ResolveFlag;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let found = linux::find_file(&File::open(directory)?, path, resolve)?;
    linux::reopen(&found.ok_or_else(|| io::Error::other("it is no file"))?)
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
