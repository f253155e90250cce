//! Images on a node's disk: blobs in the registry's form, layers in the form that containers mount.
//!
//! Always holds: a blob gets its name only after its bytes were checked and are durable; a layer exists only
//! with its record, which is written after its content is durable; leftovers of a power cut or a kill are
//! continued, or removed by the next sweep. Archives are read by a confined process, never by this one. No
//! mount outlives its thread.
//!
//!     blobs/HEX          a blob                        layers/NAME         what a layer adds to those below it
//!     blobs/HEX.part     a blob that is being fetched  layers/NAME.json    the record that vouches for it
//!     claims/PID-N       what a running pull uses      layers/NAME.new ... being made, or being removed
//!     lock               shared: a claim is made; alone: removal
//!
//! Leaves to others: the content of images, the choice of what to remove, the source of blobs.

mod apply;
mod blobs;
mod child;
mod claims;
mod confine;
#[cfg(any(test, feature = "fake"))]
pub mod fuzzing;
mod gzip;
mod layers;
mod mounts;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::files::Files as _;
use crate::linux;

pub use blobs::{BlobError, Blobs, Part};
pub use child::{UnpackArguments, unpack_child};
pub use claims::Claim;
pub use layers::{Cancelled, IMPORT, LayerRecord, Layers, Limits, Step, Unpack, UnpackError};
pub use mounts::mounted_layers;

/// A SHA-256 digest as a file's name: 64 lower case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobName(String);

impl BlobName {
    /// Accepts a text of that form.
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

/// A lock that excludes removals, or pulls. It ends with the value, and with the process.
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
    /// The images below `root`; missing directories are made. `program` unpacks layers when it is started as
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

    /// Held briefly to make or extend a claim, or to write a record; by many at once. `None` while a removal
    /// is in progress.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_shared(&self) -> io::Result<Option<Hold>> {
        let file = self.lock_file("lock")?;
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Hold { _file: file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Held alone by a removal, which must leave everything that is [`ImageFiles::claimed`]. Waits for the
    /// other holders, each of which only writes a record or removes some layers meanwhile.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_alone(&self) -> io::Result<Hold> {
        let file = self.lock_file("lock")?;
        file.lock()?;
        Ok(Hold { _file: file })
    }

    /// Protects names of blobs, chains, or [`IMPORT`] from removal until the claim is dropped. It must be
    /// made and extended under [`ImageFiles::hold_shared`].
    ///
    /// # Errors
    /// The disk failed.
    pub fn claim(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> io::Result<Claim> {
        let mut claim = Claim::begin(&self.root.join("claims"))?;
        claim.add(names)?;
        Ok(claim)
    }

    /// All claimed names. Call it under [`ImageFiles::hold_alone`].
    ///
    /// # Errors
    /// A claim cannot be read: then nothing may be removed.
    pub fn claimed(&self) -> io::Result<BTreeSet<String>> {
        claims::names(&self.root.join("claims"))
    }

    /// The names of each present claim, in the order in which they were added. It excludes nobody.
    ///
    /// # Errors
    /// A claim cannot be read.
    pub fn claims(&self) -> io::Result<Vec<Vec<String>>> {
        claims::lines(&self.root.join("claims"))
    }

    /// Held while records are read, changed and written, which is short; waits for other holders.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn hold_records(&self) -> io::Result<Hold> {
        let file = self.lock_file("records.lock")?;
        file.lock()?;
        Ok(Hold { _file: file })
    }

    /// Held for a use of [`ImageFiles::extract`], until its directory is removed; waits for other holders.
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
        clear_lock(&path)?;
        // garbage collection checks this each minute, so nothing is opened for writing
        match linux::open_regular(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => linux::open_lock(&path),
            opened => opened,
        }
    }

    /// Unpacks an archive that is not a layer, such as an imported layout, by the same confined process, into
    /// a directory that the caller must remove; the caller must hold [`ImageFiles::hold_import`] and a claim
    /// of [`IMPORT`].
    ///
    /// # Errors
    /// It was not unpacked, and nothing is left.
    pub fn extract(&self, archive: File, packing: &str, limits: Limits) -> Result<PathBuf, UnpackError> {
        self.layers.extract(archive, packing, limits)
    }

    /// Bytes and inodes of the file system that holds the images: capacity, available, inodes, free inodes.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn space(&self) -> io::Result<[u64; 4]> {
        // the field types differ between architectures
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

/// Sets aside what a damaged disk put in place of a lock file: a link, which may lead anywhere, or something
/// that would block when opened.
fn clear_lock(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(found) if found.is_file() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            let (parent, name) =
                (path.parent().unwrap_or(Path::new(".")), path.file_name().unwrap_or_default());
            let aside = linux::files(parent).set_aside(Path::new(name));
            let aside = aside.map_err(|error| io::Error::other(error.to_string()))?;
            log::warn!("{} was no file; renamed to {}", path.display(), aside.display());
            Ok(())
        }
    }
}

/// Makes a directory for root alone; it may exist.
fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file below a directory that a stranger filled: no link leads out of it, and only files are opened.
///
/// # Errors
/// It is missing, not a file, or outside of the directory.
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
