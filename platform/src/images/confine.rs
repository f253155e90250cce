//! The confinement of the process that reads a stranger's archive.
//!
//! Always holds, once [`confine`] has returned: the process sees only the files below the directory in which
//! it was started, and cannot undo that; it has only the capabilities to make files for any user, and can
//! gain no others; its memory, processor time and open files are limited, and it is the first to be killed
//! when memory runs out; it has no network and shares no memory with other processes. On its mount, devices
//! and set-user-ID bits have no effect.
//!
//! The only `unsafe` of images: three system calls that nix does not wrap.

#![allow(unsafe_code, reason = "capset, a prctl and lsetxattr have no safe wrapper in nix")]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};

/// Limit of memory: the largest window of zstd that is read (64 MiB), twice while it grows, a list of created
/// names, the program.
const MEMORY_BYTES: u64 = 384 << 20;
/// Limit of open files: the archive, two pipes, one file, and in a removal a directory for each of 128
/// levels.
const OPEN_FILES: u64 = 256;
/// Increase of the nice value: a pull must not slow down a running container.
const NICE: libc::c_int = 10;

/// From linux/capability.h.
const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;
const CAP_MKNOD: u32 = 27;
const CAP_SETFCAP: u32 = 31;
const LAST_CAPABILITY: u32 = 63;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// The capabilities that are needed to make other users' files.
const KEPT: [u32; 6] = [CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_MKNOD, CAP_SETFCAP];

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Confines the calling process to its working directory. The process must have one thread.
///
/// # Errors
/// The kernel refuses a step, for example because the process is not root's. Then nothing may be read.
pub(super) fn confine(cpu_secs: u64) -> io::Result<()> {
    // dies with the thread that started it, so that no archive is read when nobody waits for the result
    prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    // otherwise it would inherit the agent's protection, although it may use more memory than the agent
    fs::write("/proc/self/oom_score_adj", "1000")?;
    match unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC) {
        // the kernel was built without these namespaces
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(error) => return Err(error.into()),
    }
    nix::unistd::chroot(".")?;
    nix::unistd::chdir("/")?;
    umask(Mode::empty());
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)?;
    setrlimit(Resource::RLIMIT_AS, MEMORY_BYTES as libc::rlim_t, MEMORY_BYTES as libc::rlim_t)?;
    setrlimit(Resource::RLIMIT_CPU, cpu_secs as libc::rlim_t, cpu_secs as libc::rlim_t)?;
    prctl::set_no_new_privs()?;
    // SAFETY: takes a number and touches no memory of ours; if it fails, the process only keeps its priority
    unsafe { libc::nice(NICE) };
    drop_capabilities()
}

fn drop_capabilities() -> io::Result<()> {
    for capability in (0..=LAST_CAPABILITY).filter(|number| !KEPT.contains(number)) {
        // SAFETY: takes numbers and touches no memory of ours; EINVAL means that the kernel does not know
        // this capability
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) } != 0 {
            break;
        }
    }
    let kept = KEPT.iter().fold(0_u32, |set, capability| set | 1 << capability);
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let low = CapabilityData { effective: kept, permitted: kept, inheritable: 0 };
    let data = [low, CapabilityData { effective: 0, permitted: 0, inheritable: 0 }];
    // SAFETY: version 3 reads one header and two data structures, which outlive the call
    let outcome = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an extended attribute of a path itself, never of what a link points to.
pub(super) fn set_attribute(path: &Path, name: &CStr, value: &[u8]) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both texts end with NUL, and the value's length is given; all three outlive the call
    let outcome =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
