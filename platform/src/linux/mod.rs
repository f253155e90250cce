//! The real board: Linux.
//!
//! Always holds: no `unsafe`; every path is below one of [`Roots`], so tests run on a made-up machine;
//! everything that is read has a limit, and no content can cause a panic.
//!
//! Leaves to others: all decisions.

mod alarm;
mod beneath;
mod claim;
mod clocks;
mod code;
mod disk;
mod evidence;
mod host;
pub(crate) mod kept;
pub mod logind;
mod memory;
mod place;
mod program;
mod regular;
pub mod slots;
mod stack;
pub mod state;
mod supervisor;
mod threads;
mod usage;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::socket::{setsockopt, sockopt};

use crate::exit::RecordedExit;
use crate::files::{DurableFiles, Files, Kind, ReadError};

pub use alarm::Alarm;
pub use beneath::{Beneath, open_beneath};
pub use claim::{Awaited, Claim, Holder, claim, holders};
pub use clocks::LinuxClocks;
pub use code::give_back_code;
pub use disk::{LinuxDisk, allocate};
pub use evidence::LinuxTraces;
pub use host::{LinuxHost, process_facts, watchdogs};
pub use memory::memory_limit;
pub use place::{make_way, make_way_alone, set_aside_from};
pub use program::{Program, ProgramError, become_program, block_stop_signals, unblock_stop_signals};
pub use regular::{
    kind_in_its_place, open_lock, open_regular, open_regular_as, read_end, read_regular, write_regular,
};
pub use stack::give_back_stack;
pub use supervisor::NotifySocket;
pub use threads::{StuckThread, stuck_threads};
pub use usage::{
    FileSystemUse, InodeUse, InterfaceUse, MemoryUse, booted_at, file_system_use, interfaces, memory_use,
    processor_time,
};

pub(crate) use disk::{find_below, find_file, read_up_to, reopen};
pub(crate) use usage::word_after;

/// Files below `root` on the real disk. Does nothing until it is used; the first write makes the root.
pub fn files(root: impl Into<PathBuf>) -> Arc<DurableFiles<LinuxDisk>> {
    Arc::new(DurableFiles::new(LinuxDisk::new(root)))
}

/// Makes the kernel probe a silent TCP peer: after `after`, at each `interval`, until `probes` were
/// unanswered, which ends the connection with an error. In whole seconds; fractions are dropped.
///
/// # Errors
/// It is not a TCP socket, or the kernel refuses the times.
pub fn probe_idle_peer(
    socket: &impl AsFd,
    after: Duration,
    interval: Duration,
    probes: u32,
) -> io::Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    setsockopt(socket, sockopt::TcpKeepIdle, &seconds(after))?;
    setsockopt(socket, sockopt::TcpKeepInterval, &seconds(interval))?;
    setsockopt(socket, sockopt::TcpKeepCount, &probes)?;
    Ok(setsockopt(socket, sockopt::KeepAlive, &true)?)
}

/// Raises this process's limit of open files as far as permitted. Returns the limit; the present one if the
/// system allows no more.
///
/// # Errors
/// The limit cannot be read.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return Ok(hard);
    }
    Ok(soft)
}

/// The machine's memory in bytes, also where `/proc/meminfo` is hidden.
///
/// # Errors
/// The system does not report it.
pub fn total_memory() -> io::Result<u64> {
    Ok(nix::sys::sysinfo::sysinfo()?.ram_total())
}

/// True if this process has root's rights, which it needs for example to start containers.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The processor time of the calling thread since it began.
///
/// # Errors
/// The system does not count it.
pub fn thread_time() -> io::Result<Duration> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.into())
}

/// The whole content of a regular file that the operator named: links are followed, because `/etc` is often
/// made of them; anything else that is not a file is refused without blocking.
pub fn read_named_file(path: &Path, limit: usize) -> Result<Vec<u8>, ReadError> {
    let file = open_named_file(path)?;
    let failed = |source| ReadError::Io { operation: "read", path: path.to_path_buf(), source };
    let size = file.metadata().map_err(failed)?.len();
    let content = read_up_to(file, limit.saturating_add(1)).map_err(failed)?;
    if content.len() > limit {
        let size = size.max(content.len() as u64);
        return Err(ReadError::TooLarge { path: path.to_path_buf(), size, limit });
    }
    Ok(content)
}

/// Opens a regular file that the operator named for reading, by the rules of [`read_named_file`].
pub fn open_named_file(path: &Path) -> Result<File, ReadError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ReadError::NotFound { path: path.to_path_buf() },
        _ => ReadError::Io { operation: "read", path: path.to_path_buf(), source },
    };
    let check = |found: Metadata| match disk::kind_of_type(found.file_type()) {
        Kind::File => Ok(()),
        kind => Err(ReadError::NotAFile { path: path.to_path_buf(), kind }),
    };
    // Examined before it is opened: opening a device can have effects.
    check(path.metadata().map_err(failed)?)?;
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    check(file.metadata().map_err(failed)?)?;
    Ok(file)
}

/// Whether the file system of a path executes no programs.
///
/// # Errors
/// It cannot be determined.
pub fn is_noexec(path: &Path) -> io::Result<bool> {
    use nix::sys::statvfs::{FsFlags, statvfs};
    Ok(statvfs(path)?.flags().contains(FsFlags::ST_NOEXEC))
}

/// The previous exit as recorded in `files` and remembered by the machine.
pub fn previous_exit(files: Arc<dyn Files>, roots: Roots) -> RecordedExit<LinuxTraces> {
    RecordedExit::new(files, LinuxTraces::new(roots))
}

/// The paths where the machine describes itself.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/etc`.
    pub etc: PathBuf,
    /// `/usr/lib`.
    pub usr_lib: PathBuf,
    /// `/var/lib`.
    pub var_lib: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::under("/")
    }
}

impl Roots {
    /// The usual places below `root`; a made-up machine for tests.
    pub fn under(root: impl AsRef<Path>) -> Self {
        let at = |place| root.as_ref().join(place);
        Self {
            proc: at("proc"),
            sys: at("sys"),
            etc: at("etc"),
            usr_lib: at("usr/lib"),
            var_lib: at("var/lib"),
        }
    }
}

/// Longest text that is read from `/proc`, `/sys` or `/etc`, in bytes: os-release and meminfo are under 4
/// KiB.
const FACT_LIMIT: u64 = 16 * 1024;

/// Opens without blocking if there is a pipe in its place.
fn open_fact(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

/// The beginning of a small text, without white space around it.
fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_fact(path)?.take(FACT_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_string())
}
