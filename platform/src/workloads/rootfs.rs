//! A container's root file system: its image's layers under a separate directory for the files that it
//! writes.
//!
//! Always holds: a layer is never written to. With overlayfs the layers are shared and nothing is copied;
//! without it, or where the disk's file system does not support it, the one merged layer is copied. Paths
//! inside an image are resolved within it, whatever links it has.
//!
//! Leaves to others: layers (images), mounts into it (crun, by `config.json`).

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, mkdirat, mknod};

use super::WorkloadError;
use crate::linux::{find_below, find_file, open_regular, open_regular_as, read_up_to, reopen};

/// Longest mount options: the kernel accepts one page.
const OPTIONS_BYTES: usize = 4095;
/// Longest `/etc/passwd` or `/etc/group` of an image that is read.
const USERS_BYTES: usize = 1024 * 1024;
/// Most entries that are copied where overlayfs is missing.
const COPY_ENTRIES: usize = 1_000_000;
/// Most mounts that are removed from one path: an agent that was killed while mounting mounts it again.
const STACKED: usize = 16;

/// An image's own user files, to resolve `USER name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFiles {
    /// `/etc/passwd`; empty if the image has none.
    pub passwd: String,
    /// `/etc/group`; empty if the image has none.
    pub group: String,
}

/// A directory that an image declares as a volume: its path in the container, and on the machine.
pub type FoundPlace = (PathBuf, PathBuf);

/// Mounts or copies the layers, the topmost first, to `target`; files that the container writes go to `data`.
pub(super) fn make(
    layers: &[PathBuf],
    data: &Path,
    target: &Path,
    has_overlay: bool,
) -> Result<(), WorkloadError> {
    if layers.is_empty() {
        return Err(WorkloadError::refused(format_args!("no layers for {}", target.display())));
    }
    let (upper, work) = (data.join("u"), data.join("w"));
    for directory in [target, &upper, &work] {
        make_directory(directory, 0o755)?;
    }
    let error = match has_overlay {
        false => io::Error::from(Errno::ENODEV),
        true => match mount_overlay(layers, &upper, &work, target)? {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
    };
    let cannot_carry = [Errno::EINVAL, Errno::ENODEV, Errno::EOPNOTSUPP].map(|errno| Some(errno as i32));
    match layers {
        [only] if cannot_carry.contains(&error.raw_os_error()) => copy_and_bind(only, &upper, target),
        _ => Err(WorkloadError::failed(
            format_args!("mount {} layers as an overlay at {}", layers.len(), target.display()),
            error,
        )),
    }
}

fn mount_overlay(
    layers: &[PathBuf],
    upper: &Path,
    work: &Path,
    target: &Path,
) -> Result<io::Result<()>, WorkloadError> {
    if let Some(why) = unfit(layers.iter().map(PathBuf::as_path).chain([upper, work])) {
        return Err(WorkloadError::refused(format_args!("{why}")));
    }
    let whole = |path: &Path| std::path::absolute(path).map_err(super::on("find", path));
    let own = format!(",upperdir={},workdir={}", whole(upper)?.display(), whole(work)?.display());
    let overlay = Overlay::of(layers.iter().map(PathBuf::as_path), &own);
    let overlay = overlay.map_err(|why| WorkloadError::refused(format_args!("{why}")))?;
    Ok(overlay.mount(target, MsFlags::empty()))
}

/// An overlay of layers, by names relative to the directory of the topmost: so some 150 fit into the page of
/// options. The topmost's path is absolute if there is room: it shows whose layers they are, because another
/// agent on the machine has some of the same names.
struct Overlay {
    directory: PathBuf,
    options: String,
}

impl Overlay {
    /// `layers`: the topmost first; `more`: options to append.
    fn of<'a>(layers: impl Iterator<Item = &'a Path>, more: &str) -> Result<Self, String> {
        let layers: Vec<&Path> = layers.collect();
        let directory = layers.first().and_then(|layer| layer.parent()).unwrap_or(Path::new("/"));
        let name = |layer: &&Path| {
            let whole = || std::path::absolute(layer).unwrap_or_else(|_| layer.to_path_buf());
            layer.strip_prefix(directory).map_or_else(|_| whole(), Path::to_path_buf).display().to_string()
        };
        let mut lower: Vec<String> = layers.iter().map(name).collect();
        let mut options = format!("lowerdir={}{more}", lower.join(":"));
        if let (Some(first), Some(top)) = (lower.first_mut(), layers.first())
            && let Ok(top) = std::path::absolute(top)
        {
            *first = top.display().to_string();
            let named = format!("lowerdir={}{more}", lower.join(":"));
            if named.len() <= OPTIONS_BYTES {
                options = named;
            }
        }
        if options.len() > OPTIONS_BYTES {
            return Err(format!(
                "{} layers make {} bytes of mount options, at most {OPTIONS_BYTES} are possible",
                layers.len(),
                options.len()
            ));
        }
        Ok(Self { directory: directory.to_path_buf(), options })
    }

    /// Mounts on a thread that does not share its working directory with others.
    fn mount(&self, target: &Path, flags: MsFlags) -> io::Result<()> {
        let target = std::path::absolute(target)?;
        let mount = || -> io::Result<()> {
            unshare(CloneFlags::CLONE_FS)?;
            nix::unistd::chdir(&self.directory)?;
            let options = Some(self.options.as_str());
            Ok(mount(Some("overlay"), &target, Some("overlay"), flags, options)?)
        };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("mount".into()).stack_size(64 * 1024);
            let thread = builder.spawn_scoped(scope, mount)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has panicked")))
        })
    }
}

/// The reason why these paths cannot be parts of an overlay.
fn unfit<'a>(mut places: impl Iterator<Item = &'a Path>) -> Option<String> {
    let is_unfit = |place: &&Path| place.as_os_str().as_bytes().iter().any(|byte| b":,\\".contains(byte));
    let place = places.find(is_unfit)?;
    Some(format!("{} has ':', ',' or '\\' in its name, which an overlay cannot take", place.display()))
}

/// The copy is bound to the path where an overlay would be mounted, so that both are removed in the same way.
fn copy_and_bind(layer: &Path, copy: &Path, target: &Path) -> Result<(), WorkloadError> {
    let failed = |tried: &str, error: io::Error| {
        WorkloadError::failed(format_args!("{tried} {}", layer.display()), error)
    };
    let mut links = BTreeMap::new();
    let mut left = COPY_ENTRIES;
    copy_into(layer, copy, &mut links, &mut left).map_err(|error| failed("copy", error))?;
    let none = None::<&str>;
    mount(Some(copy), target, none, MsFlags::MS_BIND, none)
        .map_err(|error| failed("bind a copy of", error.into()))
}

/// Copies the content of a directory, with owners, modes, devices and hard links. Extended attributes are not
/// copied.
fn copy_into(
    from: &Path,
    to: &Path,
    links: &mut BTreeMap<(u64, u64), PathBuf>,
    left: &mut usize,
) -> io::Result<()> {
    let itself = fs::symlink_metadata(from)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        *left = left
            .checked_sub(1)
            .ok_or_else(|| io::Error::other(format!("more than {COPY_ENTRIES} entries")))?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let found = fs::symlink_metadata(&from)?;
        if found.is_dir() {
            make_plain_directory(&to, 0o700)?;
            copy_into(&from, &to, links, left)?;
            continue;
        }
        // an interrupted copy is made again
        match fs::remove_file(&to) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Some(first) = links.get(&(found.dev(), found.ino())) {
            fs::hard_link(first, &to)?;
            continue;
        }
        copy_one(&from, &to, &found)?;
        if found.nlink() > 1 {
            links.insert((found.dev(), found.ino()), to);
        }
    }
    take_owner(to, &itself)
}

fn copy_one(from: &Path, to: &Path, found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to)?;
        return std::os::unix::fs::lchown(to, Some(found.uid()), Some(found.gid()));
    }
    if kind.is_file() {
        let mut source = open_regular(from)?;
        let mut copy = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        io::copy(&mut source, &mut copy)?;
    } else {
        let sort = match kind {
            kind if kind.is_fifo() => SFlag::S_IFIFO,
            kind if kind.is_char_device() => SFlag::S_IFCHR,
            kind if kind.is_block_device() => SFlag::S_IFBLK,
            _ => return Ok(()),
        };
        mknod(to, sort, Mode::S_IRUSR, found.rdev())?;
    }
    take_owner(to, found)
}

/// Sets the owner first, because that removes set-user-ID.
fn take_owner(to: &Path, found: &Metadata) -> io::Result<()> {
    std::os::unix::fs::lchown(to, Some(found.uid()), Some(found.gid()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(found.mode() & 0o7777))
}

fn make_plain_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        done => done,
    }
}

/// Makes a directory and its missing parents, all with this mode, whatever the umask of the service.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), WorkloadError> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let mut missing: Vec<&Path> = path.ancestors().skip(1).take_while(is_missing).collect();
    missing.reverse();
    missing.push(path);
    let made = missing.into_iter().try_for_each(|directory| {
        make_plain_directory(directory, 0o700)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(mode))
    });
    made.map_err(super::on("make directory", path))
}

/// Makes a directory of the machine and its missing parents, which all users may enter, whatever the umask of
/// the service.
///
/// # Errors
/// One cannot be made, or something else has its path.
pub fn make_open_directory(path: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    missing.reverse();
    missing.into_iter().try_for_each(|directory| {
        make_plain_directory(directory, 0o700)?;
        // a user who can write there may put a link in its place
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let made = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(directory)?;
        made.set_permissions(fs::Permissions::from_mode(0o755))
    })
}

/// Removes all mounts at this path; processes that still use them keep them for as long as they live.
///
/// # Errors
/// The kernel refused.
pub fn unmount(place: &Path) -> io::Result<()> {
    for _ in 0..STACKED {
        match umount2(place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // nothing is mounted there, or the path does not exist
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("more than {STACKED} file systems are mounted at {}", place.display())))
}

/// Mounts a file system in memory on a directory, unless one is mounted there.
///
/// # Errors
/// The kernel refused.
pub fn mount_memory(place: &Path, limit_bytes: u64, mode: u32) -> io::Result<()> {
    if is_mounted(place)? {
        return Ok(());
    }
    // 0 would mean no limit
    let options = format!("mode={mode:o},size={}", limit_bytes.max(1));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some(options.as_str()))?)
}

/// Mounts an image's layers, the topmost first, on a directory, unless something is mounted there: read only,
/// and without effect of its programs, devices and set-user-ID bits. `empty` must be an empty directory,
/// because an overlay needs more than one layer.
///
/// # Errors
/// The kernel refused, as one without overlayfs does, or the layers have names that it cannot accept.
pub fn mount_image(layers: &[PathBuf], empty: &Path, place: &Path) -> io::Result<()> {
    if is_mounted(place)? {
        return Ok(());
    }
    let lower = || layers.iter().map(PathBuf::as_path).chain([empty]);
    if let Some(why) = unfit(lower()) {
        return Err(io::Error::other(why));
    }
    let overlay = Overlay::of(lower(), "").map_err(io::Error::other)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    overlay.mount(place, flags).map_err(|error| {
        io::Error::new(error.kind(), format!("mount {} layers as a read-only overlay: {error}", layers.len()))
    })
}

/// True if a directory is the root of another file system than its parent.
fn is_mounted(place: &Path) -> io::Result<bool> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    Ok(device(place)? != device(&place.join(".."))?)
}

/// Binds the file or directory at `below` in a volume to `target`, an existing empty directory of our own, or
/// a file if it is one. Missing directories are made, like the volume's own. Containers write to the volume
/// meanwhile: no link may lead out of it, and exactly the object that was found is bound, whatever is at its
/// path afterwards.
///
/// # Errors
/// A link leads out of the volume, something on the way is not a directory, or the kernel refused.
pub fn bind_below(volume: &Path, below: &Path, target: &Path) -> io::Result<()> {
    let root = fs::OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(volume)?;
    let found = match find_below(&root, below, BENEATH) {
        Err(Errno::ENOENT) => {
            let mode = root.metadata()?.permissions().mode() & 0o7777;
            make_below(&root, below, BENEATH, mode)?
        }
        found => found?,
    };
    match found.metadata()?.is_dir() {
        true => make_plain_directory(target, 0o700)?,
        false => {
            open_regular_as(target, File::options().write(true).create(true).truncate(false).mode(0o600))
                .map(drop)?;
        }
    }
    let source = format!("/proc/self/fd/{}", found.as_raw_fd());
    let none = None::<&str>;
    Ok(mount(Some(source.as_str()), target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?)
}

/// Makes the directories that an image declares as volumes, where it lacks them: their paths are resolved
/// within it, whatever links it has. Files that a container writes there are removed with it, like all others
/// that it writes. Returns each with its path on the machine, which contains no links, and does not change
/// before the container runs. A volume that is the whole image is left out.
///
/// # Errors
/// Something on the way is not a directory, or the disk failed.
pub(super) fn make_places(root: &Path, places: &[PathBuf]) -> io::Result<Vec<FoundPlace>> {
    let in_root = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let directory = File::open(root)?;
    let whole = |file: &File| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let all = whole(&directory)?;
    let make = |place: &PathBuf| {
        let below = place.strip_prefix("/").unwrap_or(place);
        let made = match find_below(&directory, below, in_root) {
            Err(Errno::ENOENT) => make_below(&directory, below, in_root, 0o755),
            found => found.map_err(io::Error::from),
        };
        match made.and_then(|made| whole(&made)) {
            Ok(found) => Ok((place.clone(), found)),
            Err(error) => Err(io::Error::new(error.kind(), format!("/{}: {error}", below.display()))),
        }
    };
    let found = places.iter().map(make).collect::<io::Result<Vec<FoundPlace>>>();
    found.map(|found| found.into_iter().filter(|(_, found)| *found != all).collect())
}

/// No link leads out of the volume.
const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_MAGICLINKS);

/// Directories are made through their parent's descriptor and opened without following links, so a link in
/// the place of one is an error.
fn make_below(root: &File, path: &Path, resolve: ResolveFlag, mode: u32) -> io::Result<File> {
    let (mut walked, mut parent) = (PathBuf::new(), root.try_clone()?);
    for part in path.components() {
        walked.push(part);
        parent = match find_below(root, &walked, resolve) {
            Ok(found) => found,
            Err(Errno::ENOENT) => {
                match mkdirat(&parent, part.as_os_str(), Mode::S_IRWXU) {
                    Err(Errno::EEXIST) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let made = File::from(openat(&parent, part.as_os_str(), flags, Mode::empty())?);
                // set separately, because the umask narrows the mode above
                made.set_permissions(fs::Permissions::from_mode(mode))?;
                made
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(parent)
}

/// The user files as the container will see them. An image may lack them.
pub(super) fn user_files(root: &Path) -> Result<UserFiles, WorkloadError> {
    let root_fd = File::open(root).map_err(super::on("open", root))?;
    let read = |path: &str| -> Result<String, WorkloadError> {
        let failed = |tried: &str, error: io::Error| {
            WorkloadError::failed(format_args!("{tried} {path} in {}", root.display()), error)
        };
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let missing = |error: &io::Error| {
            [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP]
                .iter()
                .any(|it| error.raw_os_error() == Some(*it as i32))
        };
        let found = match find_file(&root_fd, Path::new(path), resolve) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(String::new()),
            Err(error) if missing(&error) => return Ok(String::new()),
            Err(error) => return Err(failed("open", error)),
        };
        let bytes = reopen(&found).and_then(|file| read_up_to(file, USERS_BYTES));
        Ok(String::from_utf8_lossy(&bytes.map_err(|error| failed("read", error))?).into_owned())
    };
    Ok(UserFiles { passwd: read("etc/passwd")?, group: read("etc/group")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kedge-rootfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn path_below_a_volume_never_leaves_it() {
        let place = place("below");
        let volume = place.join("volume");
        fs::create_dir_all(volume.join("inside")).unwrap();
        fs::create_dir_all(place.join("outside")).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o2771)).unwrap();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, volume.join(name)).unwrap();
        };
        link("../outside", "up");
        link(place.join("outside").to_str().unwrap(), "absolute");
        link("inside", "within");
        link("nowhere", "dangling");
        link("/proc/self/fd/0", "magic");
        let root = File::open(&volume).unwrap();
        let mode = root.metadata().unwrap().permissions().mode() & 0o7777;
        let made = |path: &str| match find_below(&root, Path::new(path), BENEATH) {
            Err(Errno::ENOENT) => make_below(&root, Path::new(path), BENEATH, mode),
            found => found.map_err(io::Error::from),
        };
        for path in ["up", "up/x", "absolute", "absolute/x", "dangling", "dangling/x", "magic", "../outside"]
        {
            assert!(made(path).is_err(), "{path}");
        }
        assert!(fs::read_dir(place.join("outside")).unwrap().next().is_none(), "nothing was made outside");
        for path in ["within", "within/x/y", "a/b"] {
            assert!(made(path).unwrap().metadata().unwrap().is_dir(), "{path}");
        }
        assert!(volume.join("inside/x/y").is_dir());
        let mode = fs::metadata(volume.join("a/b")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o2771, "as the volume");
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn place_of_an_image_is_made_inside_it() {
        let place = place("places");
        let root = place.join("root");
        fs::create_dir_all(root.join("run")).unwrap();
        fs::create_dir(root.join("var")).unwrap();
        fs::create_dir(place.join("outside")).unwrap();
        let link = |target: &Path, name: &str| std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        link(Path::new("/run"), "var/run");
        link(&place.join("outside"), "away");
        link(Path::new("../../../outside"), "up");
        fs::write(root.join("file"), "").unwrap();
        let made = |path: &str| make_places(&root, &[path.into()]);
        for (path, inside) in
            [("/data", "data"), ("/var/run/a/b", "run/a/b"), ("/run", "run"), ("/file", "file")]
        {
            made(path).unwrap();
            assert!(root.join(inside).exists(), "{path}");
        }
        assert_eq!(fs::metadata(root.join("run/a")).unwrap().mode() & 0o7777, 0o755);
        for path in ["/away/x", "/up/x", "/file/x"] {
            let error = made(path).unwrap_err().to_string();
            assert!(error.starts_with(path), "{error}");
        }
        assert!(fs::read_dir(place.join("outside")).unwrap().next().is_none(), "nothing was made outside");
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn image_links_do_not_lead_to_the_host_files() {
        let place = place("links");
        fs::write(place.join("outside"), "host").unwrap();
        let root = place.join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        let check = |link: &str, expect: &str| {
            let _ = fs::remove_file(root.join("etc/passwd"));
            std::os::unix::fs::symlink(link, root.join("etc/passwd")).unwrap();
            assert_eq!(user_files(&root).unwrap().passwd, expect, "{link}");
        };
        fs::write(root.join("inside"), "image").unwrap();
        check("/inside", "image");
        check("../../../../inside", "image");
        check("../../outside", "");
        check(place.join("outside").to_str().unwrap(), "");
        check("passwd", "");
        check("/etc", "");
        let _ = fs::remove_dir_all(place);
    }

    #[test]
    fn directories_that_lead_to_one_have_its_mode() {
        let place = place("modes");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o711)).unwrap();
        for _ in 0..2 {
            make_directory(&place.join("a/b/c"), 0o755).unwrap();
            for (name, expect) in [("", 0o711), ("a", 0o755), ("a/b", 0o755), ("a/b/c", 0o755)] {
                let mode = fs::metadata(place.join(name)).unwrap().mode() & 0o7777;
                assert_eq!(mode, expect, "{name:?}");
            }
        }
        fs::write(place.join("file"), "").unwrap();
        assert!(make_directory(&place.join("file/a"), 0o755).is_err());
        let _ = fs::remove_dir_all(place);
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        use nix::fcntl::OFlag;
        use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
        let place = place("nodes");
        fs::create_dir(place.join("etc")).unwrap();
        let check = |path: &Path| {
            let opens = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
            opens.add_watch(path, AddWatchFlags::IN_OPEN).unwrap();
            assert_eq!(user_files(&place).unwrap(), UserFiles::default());
            assert_eq!(opens.read_events().unwrap_err(), Errno::EAGAIN, "{} was opened", path.display());
            // control: the watch does notice an opened file
            let flags = OFlag::O_NONBLOCK.bits();
            drop(fs::OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap());
            assert_eq!(opens.read_events().unwrap().len(), 1);
        };
        nix::unistd::mkfifo(&place.join("etc/passwd"), Mode::S_IRWXU).unwrap();
        check(&place.join("etc/passwd"));
        // needs root: a device, through a link
        if mknod(&place.join("zero"), SFlag::S_IFCHR, Mode::S_IRWXU, nix::sys::stat::makedev(1, 5)).is_ok()
            && File::open(place.join("zero")).is_ok()
        {
            std::os::unix::fs::symlink("../zero", place.join("etc/group")).unwrap();
            check(&place.join("zero"));
        }
        let _ = fs::remove_dir_all(place);
    }

    #[test]
    fn copy_keeps_modes_links_and_symlinks() {
        let place = place("copy");
        let (from, to) = (place.join("from"), place.join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("a/f"), "text").unwrap();
        fs::set_permissions(from.join("a/f"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(from.join("a/b"), fs::Permissions::from_mode(0o511)).unwrap();
        fs::hard_link(from.join("a/f"), from.join("g")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", from.join("l")).unwrap();
        for _ in 0..2 {
            let mut left = 10;
            copy_into(&from, &to, &mut BTreeMap::new(), &mut left).unwrap();
            assert_eq!(left, 5);
            let found = fs::metadata(to.join("a/f")).unwrap();
            assert_eq!((found.mode() & 0o7777, found.nlink()), (0o4751, 2));
            assert_eq!(found.ino(), fs::metadata(to.join("g")).unwrap().ino());
            assert_eq!(fs::metadata(to.join("a/b")).unwrap().mode() & 0o7777, 0o511);
            assert_eq!(fs::read_link(to.join("l")).unwrap(), Path::new("/etc/passwd"));
        }
        assert!(copy_into(&from, &to, &mut BTreeMap::new(), &mut 2).is_err());
        let _ = fs::remove_dir_all(place);
    }

    #[test]
    fn layers_an_overlay_cannot_take_are_refused() {
        let place = place("layers");
        let check = |layers: &[PathBuf], part: &str| {
            let error = make(layers, &place.join("d"), &place.join("t"), true).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&[], "no layers");
        check(&["/a:b".into()], "in its name");
        check(&vec![PathBuf::from("/var/lib/kedge/images/l/0123456789abcdef01234567"); 200], "at most 4095");
        let _ = fs::remove_dir_all(place);
    }
}
