//! Unpacks a layer's archive into files, in the directory that is this process's root.
//!
//! Always holds: no path has `..`; an existing path is removed before it is replaced, so no write goes
//! through a link that the archive made; entries, bytes read and bytes written are limited, and so is every
//! name and attribute before it is held in memory. Removals (`.wh.NAME`, `.wh..wh..opq`) are applied to the
//! visible files: overlayfs turns them into whiteouts of the layer.
//!
//! The tar crate is only used to parse headers: in extended headers it cuts a value at a line feed, and has
//! no limit for their length. Leaves to others: confinement (`confine`), because of which this may resolve
//! paths as the kernel does.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, makedev, mknod, utimensat};
use nix::sys::time::TimeSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType, Header};

use super::blobs::hex;
use super::confine::set_attribute;
use super::gzip::GzipMembers;

/// Longest path or target of a link: the kernel's.
const MAX_PATH_BYTES: u64 = 4096;
/// Longest extended header: a path, a target, and attributes of 64 KiB each.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Most directories above a file, links resolved. Images have some 20; each level is a descriptor of whatever
/// walks the tree.
const MAX_DEPTH: usize = 128;
/// Bytes that an entry costs on a disk besides its content: an inode, its name.
const ENTRY_BYTES: u64 = 512;
/// Space is allocated in blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// Most characters of a path in an error.
const SHOWN_CHARS: usize = 300;
/// Bytes copied at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// Largest accepted window of zstd, which takes as much memory: the strongest levels without `--long` use 8
/// MiB, `--ultra -22` 128.
const MAX_WINDOW_BYTES: u64 = 64 << 20;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of the notes of an older storage driver, which have no meaning here.
const OTHER_NOTES: &[u8] = b".wh..wh.";

/// The compression of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "plain" => Some(Self::Plain),
            "gzip" => Some(Self::Gzip),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The most entries and bytes that one layer may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

/// The party at fault when an archive cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Blame {
    /// It is not a valid archive of a layer.
    Archive,
    /// It has more entries than allowed.
    Entries,
    /// It takes more bytes than allowed.
    Bytes,
    /// The disk is full or failed.
    Disk,
}

/// The reason why an archive is not unpacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) blame: Blame,
    pub(super) why: String,
}

impl Refusal {
    fn new(blame: Blame, why: impl Into<String>) -> Self {
        Self { blame, why: why.into() }
    }

    /// Adds the entry to the reason.
    fn at(self, place: &dyn fmt::Display) -> Self {
        Self { why: format!("{place}: {}", self.why), ..self }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::new(Blame::Archive, why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::new(Blame::Archive, why)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::new(blame(&error), error.to_string())
    }
}

/// The party at fault, also for an error that a reader has wrapped in other errors.
fn blame(error: &io::Error) -> Blame {
    let mut cause: &(dyn Error + 'static) = error;
    loop {
        if cause.is::<TooManyBytes>() {
            return Blame::Bytes;
        }
        let io = cause.downcast_ref::<io::Error>();
        if io.and_then(io::Error::raw_os_error).is_some_and(|code| is_of_disk(Errno::from_raw(code))) {
            return Blame::Disk;
        }
        let inner = match io {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => cause.source(),
        };
        match inner {
            Some(inner) => cause = inner,
            None => return Blame::Archive,
        }
    }
}

/// True for errors that the kernel returns for any archive when a disk is full or broken.
fn is_of_disk(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EIO | Errno::EROFS)
}

/// The archive unpacks to more bytes than allowed.
#[derive(Debug)]
struct TooManyBytes;

impl fmt::Display for TooManyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it unpacks to more than it may")
    }
}

impl Error for TooManyBytes {}

/// The size and digest of an unpacked layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    /// The digest of the unpacked archive.
    pub(super) diff: String,
    pub(super) entries: u64,
    /// Bytes on the disk, approximately.
    pub(super) bytes: u64,
}

/// Unpacks an archive into `/`.
///
/// # Errors
/// The fault, and the entry where it occurred; files made so far stay.
pub(super) fn apply(source: impl Read, packing: Packing, bounds: Bounds) -> Result<Applied, Refusal> {
    let limited = |packed: &mut dyn Read| -> Result<Applied, Refusal> {
        let mut counted = Counted { source: packed, hash: Sha256::new(), left: bounds.bytes };
        let mut layer = Layer::new(bounds);
        let mut archive = Archive::new(&mut counted);
        layer.unpack(&mut archive)?;
        // bytes after the archive's end are part of its digest
        drain(&mut counted).map_err(|error| Refusal::from(error).at(&"after the last entry"))?;
        let diff = hex(&counted.hash.finalize());
        Ok(Applied { diff, entries: layer.entries, bytes: bounds.bytes - layer.bytes_left })
    };
    match packing {
        Packing::Plain => limited(&mut BufReader::with_capacity(CHUNK_BYTES, source)),
        Packing::Gzip => limited(&mut GzipMembers::new(BufReader::with_capacity(CHUNK_BYTES, source))),
        Packing::Zstd => limited(&mut ZstdFrames::new(BufReader::with_capacity(CHUNK_BYTES, source))),
    }
}

/// A path for an error, which must leave room for the reason, and must not control anybody's terminal.
fn shown(path: &Path) -> String {
    let mut text = String::new();
    // a longer one is cut anyway
    for character in path.to_string_lossy().chars().take(SHOWN_CHARS + 1) {
        match character.is_control() {
            true => text.extend(character.escape_default()),
            false => text.push(character),
        }
    }
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn drain(source: &mut dyn Read) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    while source.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Counts bytes and their digest, up to a limit, so that an archive which unpacks endlessly is stopped.
struct Counted<'a> {
    source: &'a mut dyn Read,
    hash: Sha256,
    left: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| io::Error::other(TooManyBytes))?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// The frames of a zstd stream, one after another, and the skippable ones between them.
struct ZstdFrames<R> {
    source: R,
    decoder: ruzstd::decoding::FrameDecoder,
    is_within: bool,
}

impl<R: io::BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        let mut decoder = ruzstd::decoding::FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self { source, decoder, is_within: false }
    }

    /// Begins the next frame; false at the end.
    fn begin(&mut self) -> io::Result<bool> {
        use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: io::BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_within && !self.begin()? {
                return Ok(0);
            }
            self.is_within = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder.decode_blocks(&mut self.source, UptoBlocks(1)).map_err(io::Error::other)?;
            }
            let count = Read::read(&mut self.decoder, buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.is_within = false;
        }
    }
}

/// The facts from extended headers about the entry that follows them.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    user: Option<u64>,
    group: Option<u64>,
    size: Option<u64>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One file system entry to be made.
struct Node {
    path: PathBuf,
    kind: EntryType,
    mode: u32,
    user: u32,
    group: u32,
    mtime: i64,
    target: Option<PathBuf>,
    device: (u64, u64),
    size: u64,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Layer {
    entries_most: u64,
    entries: u64,
    bytes_left: u64,
    /// Paths of this layer as keyed digests (8 bytes each): an opaque directory keeps the files that this
    /// very layer put into it.
    made: HashSet<u64>,
    key: RandomState,
    /// Directories, to be given their modes and times at the end, because filling them changes their times.
    directories: Vec<(PathBuf, u32, i64)>,
    /// The directory whose depth was checked last, as long as nothing was made since that could change where
    /// its path leads.
    shallow: PathBuf,
}

impl Layer {
    fn new(bounds: Bounds) -> Self {
        Self {
            entries_most: bounds.entries,
            entries: 0,
            bytes_left: bounds.bytes,
            made: HashSet::new(),
            key: RandomState::new(),
            directories: Vec::new(),
            shallow: PathBuf::new(),
        }
    }

    fn unpack<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<(), Refusal> {
        let mut extensions = Extensions::default();
        let entries = archive.entries()?.raw(true);
        for (number, entry) in (1..).zip(entries) {
            let at = |refusal: Refusal| refusal.at(&format_args!("entry {number}"));
            self.take_entry()?;
            let mut entry = entry.map_err(|error| at(error.into()))?;
            if extensions.take_from(&mut entry).map_err(at)? {
                continue;
            }
            let described = std::mem::take(&mut extensions);
            let Some(node) = node_of(&entry, described).map_err(|why| at(why.into()))? else {
                continue;
            };
            let shown = shown(&node.path);
            self.make(node, &mut entry).map_err(|refusal| refusal.at(&shown))?;
        }
        self.finish_directories()
    }

    fn make(&mut self, node: Node, content: &mut dyn Read) -> Result<(), Refusal> {
        self.take_bytes(ENTRY_BYTES)?;
        let Some(name) = node.path.file_name().map(|name| name.as_bytes().to_vec()) else {
            return self.describe(&node);
        };
        let parent = node.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        self.make_parents(&parent)?;
        if name == OPAQUE {
            return Ok(self.empty(&parent)?);
        }
        if name.starts_with(OTHER_NOTES) {
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return match hidden {
                b"" | b"." | b".." => Err("it removes nothing that has a name".into()),
                hidden => Ok(self.remove(&parent.join(OsStr::from_bytes(hidden)))?),
            };
        }
        self.check_depth(&parent)?;
        self.place(&node, content)?;
        for value in node.attributes.values() {
            self.take_blocks(value.len() as u64)?;
        }
        self.note(&node.path);
        if node.kind.is_hard_link() { Ok(()) } else { self.describe(&node) }
    }

    /// Makes the entry itself, without owner, mode and time.
    fn place(&mut self, node: &Node, content: &mut dyn Read) -> Result<(), Refusal> {
        let path = &node.path;
        let found = fs::symlink_metadata(path).ok();
        if node.kind.is_dir() {
            if found.as_ref().is_some_and(fs::Metadata::is_dir) {
                return Ok(());
            }
            self.remove(path)?;
            self.take_bytes(BLOCK_BYTES)?;
            return Ok(fs::create_dir(path)?);
        }
        if found.is_some() {
            self.remove(path)?;
        }
        let target = || node.target.as_deref().ok_or("the link has no target");
        match node.kind {
            EntryType::Regular | EntryType::Continuous => self.write(path, node.size, content),
            EntryType::Symlink => {
                self.take_bytes(BLOCK_BYTES)?;
                Ok(symlink(target()?, path)?)
            }
            EntryType::Link => {
                let (_, inside) = inside(target()?.as_os_str().as_bytes())?;
                Ok(fs::hard_link(inside, path)?)
            }
            _ => make_device(node),
        }
    }

    fn write(&mut self, path: &Path, size: u64, content: &mut dyn Read) -> Result<(), Refusal> {
        self.take_blocks(size)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut buffer = vec![0; CHUNK_BYTES.min(size.max(1) as usize)];
        let mut left = size;
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = content.read(&mut buffer[..most])?;
            if count == 0 {
                return Err(format!("it ends {left} bytes early").into());
            }
            file.write_all(&buffer[..count])?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Counts an entry that needs an inode.
    fn take_entry(&mut self) -> Result<(), Refusal> {
        self.entries += 1;
        if self.entries > self.entries_most {
            let why = format!("it has more than {} entries", self.entries_most);
            return Err(Refusal::new(Blame::Entries, why));
        }
        Ok(())
    }

    /// Counts the blocks that this many bytes fill.
    fn take_blocks(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.take_bytes(bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES))
    }

    fn take_bytes(&mut self, bytes: u64) -> Result<(), Refusal> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left =
            left.ok_or_else(|| Refusal::new(Blame::Bytes, "the layer takes more room than it may"))?;
        Ok(())
    }

    /// Sets owner, attributes, mode and time. The owner comes first, because setting it removes set-user-ID
    /// bits and capabilities.
    fn describe(&mut self, node: &Node) -> Result<(), Refusal> {
        lchown(&node.path, Some(node.user), Some(node.group))?;
        for (name, value) in &node.attributes {
            let shown = String::from_utf8_lossy(name).escape_debug().take(SHOWN_CHARS).collect::<String>();
            let name = CString::new(name.as_slice()).map_err(|_| format!("attribute {shown}: it has NUL"))?;
            match set_attribute(&node.path, &name, value) {
                // a file system or a kind of file that has no attributes
                Err(error)
                    if matches!(error.raw_os_error(), Some(nix::libc::EOPNOTSUPP | nix::libc::EPERM)) => {}
                // an attribute that is too large for this file system is the archive's fault, although the
                // kernel reports a lack of space
                Err(error) => {
                    return Err(format!("attribute {shown} of {} bytes: {error}", value.len()).into());
                }
                Ok(()) => {}
            }
        }
        if !node.kind.is_symlink() {
            fs::set_permissions(&node.path, Permissions::from_mode(node.mode))?;
        }
        if node.kind.is_dir() {
            self.directories.push((node.path.clone(), node.mode, node.mtime));
            return Ok(());
        }
        Ok(set_time(&node.path, node.mtime)?)
    }

    fn finish_directories(&mut self) -> Result<(), Refusal> {
        for (path, mode, mtime) in std::mem::take(&mut self.directories).into_iter().rev() {
            // removed or replaced by a later entry
            if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                continue;
            }
            let done = fs::set_permissions(&path, Permissions::from_mode(mode))
                .and_then(|()| set_time(&path, mtime));
            done.map_err(|error| Refusal::from(error).at(&shown(&path)))?;
        }
        Ok(())
    }

    /// Makes directories above an entry that the archive does not list; each costs as much as a listed one.
    fn make_parents(&mut self, parent: &Path) -> Result<(), Refusal> {
        if fs::metadata(parent).is_ok_and(|found| found.is_dir()) {
            return Ok(());
        }
        let mut path = PathBuf::new();
        for component in parent.components() {
            let above = path.clone();
            path.push(component);
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            self.check_depth(&above)?;
            self.take_entry()?;
            self.take_bytes(ENTRY_BYTES + BLOCK_BYTES)?;
            fs::create_dir(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))?;
            self.note(&path);
        }
        Ok(())
    }

    /// Checks that one more level may be made in a directory: its real depth counts, whatever links lead to
    /// it.
    fn check_depth(&mut self, directory: &Path) -> Result<(), Refusal> {
        if directory == self.shallow {
            return Ok(());
        }
        let resolved = directory.canonicalize()?;
        // the first component is the root
        if resolved.components().count() > MAX_DEPTH + 1 {
            return Err(format!("it lies below more than {MAX_DEPTH} directories").into());
        }
        self.shallow = directory.to_path_buf();
        Ok(())
    }

    /// Removes a tree or a file; it may be missing. It walks with a descriptor for each level: overlayfs
    /// refuses to rename a directory of a lower layer, and no tree has more than [`MAX_DEPTH`] levels.
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        // a link may replace it
        self.shallow.clear();
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn note(&mut self, path: &Path) {
        self.made.insert(self.key.hash_one(path));
    }

    fn is_made(&self, path: &Path) -> bool {
        self.made.contains(&self.key.hash_one(path))
    }

    /// Removes a directory's content from lower layers, and keeps the files of this layer.
    fn empty(&mut self, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            if !self.is_made(&path) {
                self.remove(&path)?;
            } else if entry.file_type()?.is_dir() {
                self.empty(&path)?;
            }
        }
        Ok(())
    }
}

fn make_device(node: &Node) -> Result<(), Refusal> {
    let kind = match node.kind {
        EntryType::Fifo => SFlag::S_IFIFO,
        EntryType::Char => SFlag::S_IFCHR,
        EntryType::Block => SFlag::S_IFBLK,
        other => return Err(format!("its type is {other:?}, which no image has").into()),
    };
    if kind != SFlag::S_IFIFO && node.device == (0, 0) {
        return Err("it is the device 0:0, which means a removal to the kernel".into());
    }
    let mode = Mode::from_bits_truncate(node.mode as nix::libc::mode_t);
    let (major, minor) = node.device;
    mknod(&node.path, kind, mode, makedev(major, minor)).map_err(io::Error::from)?;
    Ok(())
}

fn set_time(path: &Path, mtime: i64) -> io::Result<()> {
    let time = TimeSpec::new(mtime as _, 0);
    match utimensat(AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink) {
        // a time that this file system cannot store is ignored
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A path of the archive below `/`: components without `.`; `..` is refused. Also returns true if any
/// component is left.
fn inside(path: &[u8]) -> Result<(bool, PathBuf), String> {
    let mut found = PathBuf::from("/");
    for component in Path::new(OsStr::from_bytes(path)).components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => {
                return Err(format!("the path {:?} has \"..\"", shown(Path::new(OsStr::from_bytes(path)))));
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok((found.as_os_str().len() > 1, found))
}

/// The entry itself, after its extended headers were read. `None` if it makes nothing.
fn node_of<R: Read>(entry: &Entry<'_, R>, extensions: Extensions) -> Result<Option<Node>, String> {
    let header = entry.header();
    let kind = header.entry_type();
    if kind.is_pax_global_extensions() {
        return Ok(None);
    }
    if kind.is_gnu_sparse() {
        return Err("it is a sparse file of GNU tar; pack the image without --sparse".to_owned());
    }
    let path = extensions.path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
    let (is_below, path) = inside(&path)?;
    if !is_below && !kind.is_dir() {
        return Ok(None);
    }
    let target = extensions.target.clone().or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
    let number = |name: &str, read: io::Result<u64>| read.map_err(|error| format!("{name}: {error}"));
    let id = |name: &str, extended: Option<u64>, read: io::Result<u64>| {
        let value = extended.map_or_else(|| number(name, read), Ok)?;
        // the highest value means "unchanged" to the kernel, and the file would stay root's
        let id = u32::try_from(value).ok().filter(|id| *id != u32::MAX);
        id.ok_or_else(|| format!("{name} is {value}, expected less than {}", u32::MAX))
    };
    let size = number("size", header.entry_size())?;
    // with another size, other readers would take these entries for the file's content: an image that looks
    // different to a scanner than to a runtime
    if let Some(other) = extensions.size.filter(|other| *other != size) {
        return Err(format!("its header says {size} bytes, its extended header {other}"));
    }
    if size > 0 && !kind.is_file() && !kind.is_contiguous() {
        return Err(format!("it is no file and has {size} bytes"));
    }
    Ok(Some(Node {
        path,
        kind,
        mode: header.mode().map_err(|error| format!("mode: {error}"))? & 0o7777,
        user: id("uid", extensions.user, header.uid())?,
        group: id("gid", extensions.group, header.gid())?,
        mtime: header.mtime().map_or(0, |secs| i64::try_from(secs).unwrap_or(0)),
        target: target.map(|target| PathBuf::from(OsStr::from_bytes(&target))),
        device: device_of(header),
        size,
        attributes: extensions.attributes,
    }))
}

fn device_of(header: &Header) -> (u64, u64) {
    let part = |read: io::Result<Option<u32>>| read.ok().flatten().map_or(0, u64::from);
    (part(header.device_major()), part(header.device_minor()))
}

impl Extensions {
    /// Reads this entry if it is an extended header. Returns false for other entries.
    fn take_from<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<bool, Refusal> {
        let kind = entry.header().entry_type();
        if kind.is_gnu_longname() {
            self.path = Some(text_of(entry)?);
        } else if kind.is_gnu_longlink() {
            self.target = Some(text_of(entry)?);
        } else if kind.is_pax_local_extensions() {
            let bytes = whole(entry, MAX_EXTENSION_BYTES)?;
            self.add_records(&bytes)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Parses records of `LENGTH KEY=VALUE\n`; the length counts all of that, and the value may contain any
    /// byte.
    fn add_records(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        let wrong = || "its extended header is malformed".to_owned();
        while !bytes.is_empty() {
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
            let digits = std::str::from_utf8(&bytes[..space]).map_err(|_| wrong())?;
            let length: usize = digits.parse().map_err(|_| wrong())?;
            let record = bytes.get(space + 1..length).ok_or_else(wrong)?;
            let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
            self.add(&record[..equals], &record[equals + 1..])?;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let number = |value: &[u8]| {
            let text = std::str::from_utf8(value).ok()?;
            text.parse::<u64>().ok()
        };
        let checked =
            |name: &str| number(value).ok_or_else(|| format!("{name} of its extended header is no number"));
        match key {
            b"path" => self.path = Some(path_of(value)?),
            b"linkpath" => self.target = Some(path_of(value)?),
            b"uid" => self.user = Some(checked("uid")?),
            b"gid" => self.group = Some(checked("gid")?),
            // 8 GiB is the most that fits into the header itself, and too much for one file of an image on a
            // device
            b"size" if checked("size")? >= 1 << 33 => return Err("a file of 8 GiB or more".to_owned()),
            b"size" => self.size = Some(checked("size")?),
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err("it is a sparse file of GNU tar; pack the image without --sparse".to_owned());
            }
            _ => {
                let name = key.strip_prefix(b"SCHILY.xattr.").filter(|name| is_kept(name));
                if let Some(name) = name {
                    self.attributes.insert(name.to_vec(), value.to_vec());
                }
            }
        }
        Ok(())
    }
}

/// The attributes that a layer may set. Excluded are `trusted.`, which overlayfs itself uses, and the labels
/// of this host's security modules.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"security.capability" || name.starts_with(b"system.posix_acl_")
}

fn path_of(value: &[u8]) -> Result<Vec<u8>, String> {
    if value.is_empty() || value.len() as u64 >= MAX_PATH_BYTES || value.contains(&0) {
        return Err(format!(
            "a path of {} bytes, expected 1 to {} without NUL",
            value.len(),
            MAX_PATH_BYTES - 1
        ));
    }
    Ok(value.to_vec())
}

/// A long name in the form of GNU tar, which ends with NUL.
fn text_of<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, Refusal> {
    let bytes = whole(entry, MAX_PATH_BYTES)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(path_of(&bytes[..end])?)
}

fn whole<R: Read>(entry: &mut Entry<'_, R>, limit: u64) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    entry.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(format!("an extended header of more than {limit} bytes").into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_stays_below_the_root() {
        for (path, expect) in [("a/b", "/a/b"), ("/etc/x", "/etc/x"), ("./a/./b/", "/a/b"), ("//x", "/x")] {
            assert_eq!(inside(path.as_bytes()), Ok((true, PathBuf::from(expect))));
        }
        assert_eq!(inside(b"./"), Ok((false, PathBuf::from("/"))));
        for path in ["..", "a/../b", "a/..", "/../etc"] {
            assert!(inside(path.as_bytes()).is_err(), "{path}");
        }
    }

    #[test]
    fn window_of_zstd_is_bounded() {
        let frame = |window: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, window, 1 | 3 << 3, 0, 0, b'a', b'b', b'c'];
        let read = |window: u8| {
            let mut text = String::new();
            ZstdFrames::new(&frame(window)[..]).read_to_string(&mut text).map(|_| text)
        };
        // the exponent minus 10, in the upper five bits
        assert_eq!(read((26 - 10) << 3).unwrap(), "abc");
        assert!(read((27 - 10) << 3).is_err());
    }

    #[test]
    fn extended_header_keeps_every_byte_of_a_value() {
        let mut found = Extensions::default();
        let value = b"\x01\n\x00=\n ";
        let mut record = b"SCHILY.xattr.security.capability=".to_vec();
        record.extend(value);
        let mut bytes = format!("{} ", record.len() + 4).into_bytes();
        bytes.extend(&record);
        bytes.push(b'\n');
        bytes.extend(b"9 uid=77\n");
        found.add_records(&bytes).unwrap();
        assert_eq!(found.attributes[&b"security.capability"[..]], value);
        assert_eq!(found.user, Some(77));
    }

    #[test]
    fn malformed_extended_header_is_refused() {
        for bytes in [
            &b"x"[..],
            b"99 uid=1\n",
            b"0 uid=1\n",
            b"9 uid=77",
            b"6 uid\n",
            b"-1 a=b\n",
            b"9 uid=xx\n",
            b"18446744073709551615 a=b\n",
            b"19 size=8589934592\n",
            b"24 GNU.sparse.major=1\n\n",
        ] {
            assert!(Extensions::default().add_records(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
        let attributes = |name: &str| {
            let record = format!(" SCHILY.xattr.{name}=y\n");
            let mut found = Extensions::default();
            found.add_records(format!("{}{record}", record.len() + 2).as_bytes()).unwrap();
            found.attributes.len()
        };
        assert_eq!(attributes("user.a"), 1);
        assert_eq!(attributes("trusted.overlay.opaque"), 0);
        assert_eq!(attributes("security.selinux"), 0);
    }
}
