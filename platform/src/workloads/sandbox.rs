//! The parts that the containers of a pod share: namespaces bound to files, `/dev/shm`, control groups, and
//! the process that holds a shared PID namespace.
//!
//! Always holds: a namespace is bound to its file only when it is ready for use, so after a killed agent it
//! is either usable or missing, and preparing again makes only the missing ones. `order.json` is written
//! last. Removal collects errors and continues; a later removal finds the rest.
//!
//! Leaves to others: addresses (the network plugins, in the namespace), volumes, the containers.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use nix::sys::statfs::{FsType, NSFS_MAGIC, TMPFS_MAGIC, statfs};
use serde::{Deserialize, Serialize};

use super::cgroups::Cgroups;
use super::places::Places;
use super::process::ProcessName;
use super::records::{ORDER, Records, VERSION};
use super::rootfs::{make_directory, unmount};
use super::{PodOrder, PodPlaces, WorkloadError, check_name, on};
use crate::linux::{kind_in_its_place, open_regular, write_regular};
use crate::trees;

/// As containerd's and Docker's.
const SHM_OPTIONS: &str = "mode=1777,size=65536k";
/// Options for the small files, which containers may write: hosts and resolv.conf of the machine are 256 KiB
/// each at most.
const FILES_OPTIONS: &str = "mode=0755,size=1m,nr_inodes=16";
/// The process that holds the PID namespace.
const PAUSE: &str = "pause.json";
/// Longest time until it has given up its privileges and file systems; it takes milliseconds.
const PAUSE_READY_WITHIN: Duration = Duration::from_secs(30);
/// Longest time until it ends after SIGKILL, which also ends all processes in its namespace.
const PAUSE_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The namespaces that a pod may have of its own: the name of the file, here and in `/proc/PID/ns`.
const NAMESPACES: [(&str, CloneFlags); 3] =
    [("net", CloneFlags::CLONE_NEWNET), ("uts", CloneFlags::CLONE_NEWUTS), ("ipc", CloneFlags::CLONE_NEWIPC)];

#[derive(Serialize, Deserialize)]
struct PodRecord {
    version: u32,
    order: PodOrder,
}

#[derive(Serialize, Deserialize)]
struct PauseRecord {
    version: u32,
    process: ProcessName,
}

/// The order of a pod that was prepared completely.
pub(super) fn prepared(places: &Places, uid: &str) -> Option<PodOrder> {
    let records = Records::of(&places.pod(uid));
    records.read::<PodRecord>(ORDER).ok().flatten().map(|record| record.order)
}

/// Makes the missing parts.
pub(super) fn prepare(
    places: &Places,
    cgroups: &Cgroups,
    program: &Path,
    order: &PodOrder,
) -> Result<PodPlaces, WorkloadError> {
    let pod = places.pod(&order.uid);
    for (name, mode) in [("c", 0o700), ("files", 0o755)] {
        make_directory(&pod.join(name), mode)?;
    }
    write_files(&pod.join("files"), order)?;
    for (group, limits) in &order.groups {
        let missed = cgroups.make(group, limits).map_err(on("make control groups of", &pod))?;
        for missed in missed {
            log::warn!("pod {}: a limit is not kept: {missed}", order.uid);
        }
    }
    let own = |name: &str| is_own(order, name);
    for (name, flag) in NAMESPACES.into_iter().filter(|(name, _)| own(name)) {
        // a namespace that an interrupted call has bound already is kept
        let file = pod.join(name);
        if !is_on(&file, NSFS_MAGIC) {
            bind_new_namespace(&file, name, flag, &order.hostname).map_err(on("make namespace", &file))?;
        }
    }
    let shm = pod.join("shm");
    if !order.host_ipc {
        make_directory(&shm, 0o755)?;
        mount_small(&shm, "shm", SHM_OPTIONS)?;
    }
    if order.share_process_namespace {
        hold_processes(&pod, cgroups, program, order).map_err(on("make a PID namespace for", &pod))?;
    }
    // last: the record tells that everything above exists
    Records::of(&pod).write(ORDER, &PodRecord { version: VERSION, order: order.clone() })?;
    let at = |name: &str| own(name).then(|| pod.join(name));
    Ok(PodPlaces {
        network: at("net"),
        uts: at("uts"),
        ipc: at("ipc"),
        pid: order.share_process_namespace.then(|| pod.join("pid")),
        shm: if order.host_ipc { "/dev/shm".into() } else { shm },
        files: pod.join("files"),
    })
}

/// True if the pod has a namespace of this name, and does not use the machine's.
fn is_own(order: &PodOrder, name: &str) -> bool {
    match name {
        "ipc" => !order.host_ipc,
        _ => !order.host_network,
    }
}

/// Writes the files that containers mount, and may write: on a file system of their own, so that a container
/// that fills one fills nothing else.
fn write_files(directory: &Path, order: &PodOrder) -> Result<(), WorkloadError> {
    mount_small(directory, "files", FILES_OPTIONS)?;
    for name in order.files.keys() {
        check_name("file of a pod", &name.replace('.', "-"))?;
        let path = directory.join(name);
        // all are emptied before the first one is written, because a container may have filled them
        make_empty(&path).map_err(on("empty", &path))?;
    }
    for (name, text) in &order.files {
        let path = directory.join(name);
        write_regular(&path, text.as_bytes())
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)))
            .map_err(on("write", &path))?;
    }
    Ok(())
}

/// Makes an empty file; an obstacle in its place, from another user of the machine or a damaged disk, is
/// removed.
fn make_empty(path: &Path) -> io::Result<()> {
    match write_regular(path, b"") {
        Err(error) if kind_in_its_place(&error).is_some() => {
            log::warn!("{}: {error}; it is removed", path.display());
            trees::remove(path)?;
            write_regular(path, b"")
        }
        made => made,
    }
}

/// Mounts a file system in memory, unless it is mounted.
fn mount_small(place: &Path, name: &str, options: &str) -> Result<(), WorkloadError> {
    if is_on(place, TMPFS_MAGIC) && is_mount_point(place) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(name), place, Some("tmpfs"), flags, Some(options))
        .map_err(|error| WorkloadError::failed(format_args!("mount {}", place.display()), error))
}

/// True if anything exists of a container of this pod; a directory that cannot be read may contain one.
pub(super) fn has_containers(places: &Places, uid: &str) -> bool {
    match fs::read_dir(places.containers(uid)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The pod's network namespace, if it exists.
pub(super) fn network_of(places: &Places, uid: &str) -> Option<PathBuf> {
    Some(places.pod(uid).join("net")).filter(|place| is_on(place, NSFS_MAGIC))
}

/// True if the pod still has its record, its directory of containers and its namespaces.
pub(super) fn is_whole(places: &Places, uid: &str) -> bool {
    let Some(order) = prepared(places, uid) else { return false };
    let pod = places.pod(uid);
    let is_there = |(name, _): &(&str, CloneFlags)| is_on(&pod.join(name), NSFS_MAGIC);
    places.containers(uid).exists()
        && NAMESPACES.iter().filter(|(name, _)| is_own(&order, name)).all(is_there)
}

/// Removes the network namespace, which no container uses any more, and with it the results of incomplete
/// work in it.
pub(super) fn drop_network(places: &Places, uid: &str) -> Result<(), WorkloadError> {
    let pod = places.pod(uid);
    let place = pod.join("net");
    // the process is in the namespace, which would live on with it
    end_pause(&pod).map_err(on("end the pause process of", &pod))?;
    unmount(&place).map_err(on("unmount", &place))
}

/// Removes all shared parts; the containers must be gone.
pub(super) fn remove(places: &Places, cgroups: &Cgroups, uid: &str) -> Result<(), WorkloadError> {
    let pod = places.pod(uid);
    if has_containers(places, uid) {
        return Err(WorkloadError::Busy(format!("{} still has containers", pod.display())));
    }
    let groups = prepared(places, uid).map(|order| order.groups).unwrap_or_default();
    let mut failed = None;
    let mut keep = |done: Result<(), WorkloadError>| {
        if let Err(error) = done {
            failed = Some(error);
        }
    };
    keep(end_pause(&pod).map_err(on("end the pause process of", &pod)));
    if let Some((own, _)) = groups.last() {
        keep(cgroups.kill_all(own).map_err(on("end what is left in", &pod)));
        keep(cgroups.remove(own).map_err(on("remove the control group of", &pod)));
    }
    for name in ["net", "uts", "ipc", "pid", "shm", "files"] {
        let place = pod.join(name);
        keep(unmount(&place).map_err(on("unmount", &place)));
    }
    // still mounted directories must not be emptied, and without its record the pod would not be found again
    if let Some(error) = failed {
        return Err(error);
    }
    trees::remove(&pod).map_err(on("remove", &pod))?;
    // not removed if a container's data in it could not be removed
    let _ = fs::remove_dir(places.data_of_pod(uid));
    Ok(())
}

fn is_on(place: &Path, kind: FsType) -> bool {
    statfs(place).is_ok_and(|found| found.filesystem_type() == kind)
}

/// True if a directory is on another device than its parent.
fn is_mount_point(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    match (device(directory), device(&directory.join(".."))) {
        (Ok(own), Ok(parent)) => own != parent,
        _ => false,
    }
}

/// Makes a namespace, prepares it, and then binds it to a file. The thread in it ends; the file keeps the
/// namespace alive.
fn bind_new_namespace(file: &Path, name: &str, flag: CloneFlags, hostname: &str) -> io::Result<()> {
    make_empty(file)?;
    in_thread(|| {
        unshare(flag)?;
        match name {
            "net" => raise_loopback()?,
            "uts" => nix::unistd::sethostname(hostname)?,
            _ => {}
        }
        // /proc/thread-self: the calling thread's
        bind(Path::new(&format!("/proc/thread-self/ns/{name}")), file)
    })
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let none = None::<&str>;
    Ok(mount(Some(from), to, none, MsFlags::MS_BIND, none)?)
}

/// Namespaces belong to threads: a change runs on a thread of its own, which ends with the change.
pub(super) fn in_thread<T: Send>(change: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("namespace".into());
        let thread = builder.spawn_scoped(scope, change)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// `ip link set lo up`, in the calling thread's network namespace, where lo has index 1.
fn raise_loopback() -> io::Result<()> {
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 0x1 | 0x4;
    const IFF_UP: u32 = 1;
    const LENGTH: usize = 32;
    let mut message = [0_u8; LENGTH];
    // nlmsghdr: length, type, flags, sequence, port; ifinfomsg: family, padding, type, index, flags, mask of
    // flags
    message[0..4].copy_from_slice(&(LENGTH as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    message[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    message[20..24].copy_from_slice(&1_u32.to_ne_bytes());
    message[24..28].copy_from_slice(&IFF_UP.to_ne_bytes());
    message[28..32].copy_from_slice(&IFF_UP.to_ne_bytes());
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    sendto(netlink.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0_u8; 64];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // nlmsgerr follows the header: 0, or the error, negative
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|bytes| bytes.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("netlink answered too little")),
    }
}

/// Starts the process that holds the pod's PID namespace, unless it lives.
fn hold_processes(pod: &Path, cgroups: &Cgroups, program: &Path, order: &PodOrder) -> io::Result<()> {
    let file = pod.join("pid");
    if is_on(&file, NSFS_MAGIC) && is_pause_alive(pod) {
        return Ok(());
    }
    end_pause(pod)?;
    unmount(&file)?;
    make_empty(&file)?;
    let root = pod.join("empty");
    make_directory(&root, 0o555).map_err(io::Error::other)?;
    let (waits, go) = std::io::pipe()?;
    let process = in_thread(|| {
        // its network must be the pod's, because containers see that through its /proc/1/net
        for (name, flag) in NAMESPACES.into_iter().filter(|(name, _)| is_own(order, name)) {
            setns(open_regular(&pod.join(name))?, flag)?;
        }
        // applies to the children of this thread
        unshare(CloneFlags::CLONE_NEWPID)?;
        let mut command = Command::new(program);
        command.arg("pause").arg(&root).process_group(0).env_clear();
        let child = command.stdin(waits).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // dropped without waiting: it lives as long as the pod, and `end_pause` removes it from the process
        // table
        ProcessName::of(child.id().cast_signed())
    })?;
    let record = PauseRecord { version: VERSION, process };
    Records::of(pod).write(PAUSE, &record).map_err(io::Error::other)?;
    (&go).write_all(&[0])?;
    await_end_of_reader(&go, PAUSE_READY_WITHIN)?;
    if let Some((own, _)) = order.groups.last() {
        // a leaf group of its own: in the unified tree only leaves may contain processes
        cgroups.put(&format!("{own}/pause"), process.pid)?;
    }
    bind(Path::new(&format!("/proc/{}/ns/pid", process.pid)), &file)
}

/// Waits until a pipe has no reader any more.
fn await_end_of_reader(pipe: &io::PipeWriter, limit: Duration) -> io::Result<()> {
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::empty())], timeout)? {
        0 => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it was not ready after {} s", limit.as_secs()),
        )),
        _ => Ok(()),
    }
}

fn pause_of(pod: &Path) -> Option<ProcessName> {
    Records::of(pod).read::<PauseRecord>(PAUSE).ok().flatten().map(|record| record.process)
}

fn is_pause_alive(pod: &Path) -> bool {
    let process = pause_of(pod).and_then(|process| process.open().ok().flatten());
    process.is_some_and(|process| !process.wait(Duration::ZERO))
}

fn end_pause(pod: &Path) -> io::Result<()> {
    let Some(process) = pause_of(pod) else { return Ok(()) };
    if let Some(fd) = process.open()? {
        fd.signal(nix::libc::SIGKILL)?;
        if !fd.wait(PAUSE_ENDS_WITHIN) {
            return Err(io::Error::other(format!("process {} does not end after SIGKILL", process.pid)));
        }
        fd.reap();
    }
    Records::of(pod).remove(PAUSE).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use nix::sys::stat::Mode;

    /// Otherwise it would wait for a reader of the pipe for ever.
    #[test]
    fn what_lies_in_place_of_a_file_of_a_pod_is_removed() {
        let scratch = Scratch::new("pod-file").unwrap();
        let elsewhere = scratch.write("elsewhere", "stays");
        let path = scratch.join("hosts");
        let puts: [&dyn Fn(); 5] = [
            &|| (),
            &|| drop(scratch.write("hosts", "a container filled it")),
            &|| nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap(),
            &|| fs::create_dir_all(path.join("full")).unwrap(),
            &|| std::os::unix::fs::symlink(&elsewhere, &path).unwrap(),
        ];
        for put in puts {
            put();
            make_empty(&path).unwrap();
            assert!(path.symlink_metadata().unwrap().is_file());
            assert_eq!(fs::read(&path).unwrap(), b"");
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read(elsewhere).unwrap(), b"stays");
    }
}
