//! The same promises on a real file system: obstacles in the place of a file, a full disk, permissions.
//!
//! Always holds: no call blocks, follows a link or leaves the directory.
//!
//! Leaves to others: power cuts, which need a block layer that can be cut (`crash` has a fake one).

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kedge_platform::files::{RESERVE_BYTES, RESERVE_NAME, TEMPORARY_PREFIX};
use kedge_platform::linux::{self, LinuxHost, Roots};
use kedge_platform::{Files, HostFacts, Kind, ReadError, WriteError};
use kedge_rig::Scratch;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const LIMIT: usize = 64 * 1024;

/// A root directory for the platform's files, in a directory of this test's own.
struct Root(Scratch);

impl Root {
    fn new() -> Self {
        Self(Scratch::new("platform").expect("the temporary directory can be written"))
    }

    fn files(&self) -> impl Files + use<> {
        let root = self.0.join("root");
        std::sync::Arc::into_inner(linux::files(root)).expect("just made")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join("root").join(path)
    }
}

/// A small tmpfs, if this user may mount one.
struct SmallDisk(Root);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let scratch = Root::new();
        fs::create_dir(scratch.at("")).expect("an empty directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "kedge-test"])
            .arg(scratch.at(""))
            .status();
        match mounted {
            Ok(status) if status.success() => Some(Self(scratch)),
            other => {
                kedge_rig::power_cut::print_past_test_runner(&format!(
                    "SKIPPED: a full disk needs a small tmpfs, and mount says {other:?} (not root?)"
                ));
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.at("")).status();
    }
}

#[test]
fn written_files_are_private_and_read_back() {
    let scratch = Root::new();
    let files = scratch.files();
    let path = Path::new("checkpoints/7f3c/12");
    files.write_durably(path, b"one").unwrap();
    files.write_durably(path, b"two").unwrap();
    files.write_durably(path, b"").unwrap();
    files.write_durably(path, &[9; 20_000]).unwrap();
    assert_eq!(files.read(path, LIMIT).unwrap(), [9; 20_000]);
    let mode = |path: &str| fs::symlink_metadata(scratch.at(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("checkpoints/7f3c/12"), 0o600);
    assert_eq!(mode("checkpoints/7f3c"), 0o700);
    assert_eq!(mode(""), 0o700);
    assert_eq!(fs::read_dir(scratch.at("checkpoints/7f3c")).unwrap().count(), 1, "no temporary file is left");
    files.remove(path).unwrap();
    files.remove(path).unwrap();
    assert!(matches!(files.read(path, LIMIT), Err(ReadError::NotFound { .. })));
}

#[test]
fn removed_directories_are_made_again() {
    let scratch = Root::new();
    let files = scratch.files();
    files.write_durably(Path::new("v1/startups.json"), b"1").unwrap();
    fs::remove_dir_all(scratch.at("v1")).unwrap();
    files.write_durably(Path::new("v1/startups.json"), b"2").unwrap();
    fs::remove_dir_all(scratch.0.join("root")).unwrap();
    files.write_durably(Path::new("v1/startups.json"), b"3").unwrap();
    fs::remove_dir_all(scratch.0.join("root")).unwrap();
    files.write_durably(Path::new("current"), b"4").unwrap();
    assert_eq!(files.read(Path::new("current"), LIMIT).unwrap(), b"4");
}

#[test]
fn operations_on_a_missing_root_create_nothing() {
    let scratch = Root::new();
    let files = scratch.files();
    assert!(matches!(files.read(Path::new("a"), 1), Err(ReadError::NotFound { .. })));
    assert!(matches!(files.list(Path::new(""), 1), Err(ReadError::NotFound { .. })));
    assert_eq!(files.sweep(&|_| true, 10), kedge_platform::SweepReport::default());
    files.remove(Path::new("a/b")).unwrap();
    assert!(!files.free_reserve().unwrap());
    assert!(!scratch.at("").exists());
}

/// Puts something odd at a path.
fn make(kind: Kind, path: &Path) {
    match kind {
        Kind::File => fs::write(path, b"file").unwrap(),
        Kind::Directory => {
            fs::create_dir(path).unwrap();
            fs::write(path.join("inside"), b"kept").unwrap();
        }
        // A link to a file that must not be read, written or removed.
        Kind::Symlink => {
            let target = path.ancestors().nth(2).expect("below the scratch directory").join("target");
            fs::write(&target, b"outside").unwrap();
            symlink(target, path).unwrap();
        }
        Kind::Fifo => mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap(),
        Kind::Socket => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        Kind::Device => unreachable!("needs privileges"),
    }
}

const ODD: [Kind; 4] = [Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket];

#[test]
fn special_files_are_reported_and_not_opened() {
    for kind in ODD {
        let scratch = Root::new();
        fs::create_dir(scratch.at("")).unwrap();
        make(kind, &scratch.at("current"));
        // Opening a FIFO carelessly would block here for ever.
        match scratch.files().read(Path::new("current"), LIMIT) {
            Err(ReadError::NotAFile { kind: found, .. }) => assert_eq!(found, kind),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[test]
fn special_files_are_replaced_and_directories_kept() {
    for kind in ODD {
        let scratch = Root::new();
        fs::create_dir(scratch.at("")).unwrap();
        make(kind, &scratch.at("current"));
        let files = scratch.files();
        files.write_durably(Path::new("current"), b"new").unwrap();
        assert_eq!(files.read(Path::new("current"), LIMIT).unwrap(), b"new", "{kind}");
        match kind {
            Kind::Directory => {
                assert_eq!(fs::read(scratch.at("current.corrupt-1/inside")).unwrap(), b"kept");
            }
            Kind::Symlink => assert_eq!(fs::read(scratch.0.join("target")).unwrap(), b"outside"),
            _ => {}
        }
    }
}

#[test]
fn special_file_as_directory_is_quarantined() {
    for kind in [Kind::File, Kind::Symlink, Kind::Fifo, Kind::Socket] {
        let scratch = Root::new();
        fs::create_dir(scratch.at("")).unwrap();
        make(kind, &scratch.at("checkpoints"));
        let files = scratch.files();
        assert!(
            matches!(files.read(Path::new("checkpoints/a"), 1), Err(ReadError::NotFound { .. })),
            "{kind}"
        );
        files.write_durably(Path::new("checkpoints/a"), b"new").unwrap();
        assert_eq!(fs::read(scratch.at("checkpoints/a")).unwrap(), b"new", "{kind}");
        assert!(fs::symlink_metadata(scratch.at("checkpoints.corrupt-1")).is_ok(), "{kind}");
    }
}

#[test]
fn links_to_directories_are_not_followed() {
    let scratch = Root::new();
    let outside = scratch.0.join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("secret"), b"secret").unwrap();
    fs::create_dir(scratch.at("")).unwrap();
    symlink(&outside, scratch.at("v1")).unwrap();
    let files = scratch.files();
    assert!(matches!(files.read(Path::new("v1/secret"), LIMIT), Err(ReadError::NotFound { .. })));
    assert!(matches!(files.list(Path::new("v1"), 10), Err(ReadError::NotAFile { kind: Kind::Symlink, .. })));
    files.remove(Path::new("v1/secret")).unwrap();
    files.sweep(&|_| false, 100);
    assert!(outside.join("secret").exists());
    assert!(fs::symlink_metadata(scratch.at("v1")).is_err(), "the link itself was swept");
}

#[test]
fn sweep_of_the_root_stays_in_the_root() {
    let root = Root::new();
    let files = linux::files(root.0.path());
    files.write_durably(Path::new("record"), b"kept").unwrap();
    for path in [".kedge-new-7-1", "pods/.kedge-new-7-1", "pods/data"] {
        fs::create_dir_all(root.0.join(path).parent().unwrap()).unwrap();
        fs::write(root.0.join(path), b"x").unwrap();
    }
    let report = files.sweep_root(100);
    assert_eq!((report.removed, report.error_count, report.truncated), (1, 0, false));
    for path in ["record", "pods/.kedge-new-7-1", "pods/data"] {
        assert!(root.0.join(path).exists(), "{path}");
    }
}

#[test]
fn named_file_is_read_through_links() {
    let scratch = Root::new();
    fs::create_dir(scratch.at("")).unwrap();
    for kind in ODD {
        make(kind, &scratch.at(&kind.to_string()));
        let read = linux::read_named_file(&scratch.at(&kind.to_string()), 7);
        match (kind, read) {
            (Kind::Symlink, Ok(content)) => assert_eq!(content, b"outside"),
            (_, Err(ReadError::NotAFile { kind: found, .. })) => assert_eq!(found, kind),
            (_, other) => panic!("{kind}: {other:?}"),
        }
    }
    let target = scratch.0.join("target");
    assert!(matches!(linux::read_named_file(&target, 6), Err(ReadError::TooLarge { size: 7, limit: 6, .. })));
    assert!(matches!(linux::read_named_file(&scratch.at("absent"), 6), Err(ReadError::NotFound { .. })));
    assert!(matches!(
        linux::read_named_file(Path::new("/dev/null"), 6),
        Err(ReadError::NotAFile { kind: Kind::Device, .. })
    ));
}

#[test]
fn root_may_be_a_link() {
    let scratch = Root::new();
    fs::create_dir(scratch.0.join("real")).unwrap();
    symlink(scratch.0.join("real"), scratch.0.join("root")).unwrap();
    scratch.files().write_durably(Path::new("a/b"), b"x").unwrap();
    assert!(scratch.0.join("real/a/b").exists());
}

#[test]
fn only_the_newest_quarantined_files_are_kept() {
    for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket] {
        let scratch = Root::new();
        fs::create_dir(scratch.at("")).unwrap();
        let files = scratch.files();
        for round in 0..14 {
            make(kind, &scratch.at("current"));
            let aside = files.set_aside(Path::new("current")).unwrap();
            assert_eq!(aside, Path::new(&format!("current.corrupt-{}", round % 6 + 1)), "{kind}");
            assert!(fs::symlink_metadata(scratch.at("current")).is_err());
        }
        let listing = files.list(Path::new(""), 100).unwrap();
        assert_eq!(listing.entries.len(), 5, "{listing:?}");
        assert!(listing.entries.iter().all(|entry| entry.kind == kind), "{listing:?}");
    }
}

#[test]
fn kept_file_stays_until_it_is_replaced() {
    let scratch = Root::new();
    let files = scratch.files();
    let path = Path::new("v1/list");
    files.write_durably(path, b"old").unwrap();
    let aside = files.keep_aside(path).unwrap();
    assert_eq!(aside, Path::new("v1/list.corrupt-1"));
    assert_eq!(files.read(path, LIMIT).unwrap(), b"old");
    files.write_durably(path, b"new").unwrap();
    assert_eq!([path, &aside].map(|path| files.read(path, LIMIT).unwrap()), [b"new", b"old"]);
    // a directory can have only one name
    make(Kind::Directory, &scratch.at("v1/other"));
    assert_eq!(files.keep_aside(Path::new("v1/other")).unwrap(), Path::new("v1/other.corrupt-1"));
    assert!(fs::symlink_metadata(scratch.at("v1/other")).is_err());
}

#[test]
fn sweep_of_100000_leftovers_is_bounded() {
    const LEFTOVERS: usize = 100_000;
    let scratch = Root(Scratch::in_memory("platform").unwrap());
    fs::create_dir(scratch.at("")).unwrap();
    for n in 0..LEFTOVERS {
        fs::File::create(scratch.at(&format!("{TEMPORARY_PREFIX}1-{n}"))).unwrap();
    }
    let files = scratch.files();
    files.write_durably(Path::new("current"), b"x").unwrap();
    let began = Instant::now();
    let report = files.sweep(&|_| true, 2000);
    let took = began.elapsed();
    assert!(report.examined <= 2000 && report.truncated, "{report:?}");
    // A loaded test machine takes milliseconds; this measures nothing, it only catches an unbounded wait.
    assert!(took < Duration::from_secs(5), "{took:?}");
    let mut calls = 1;
    while files.sweep(&|_| true, 20_000).truncated {
        calls += 1;
        assert!(calls < 10);
    }
    assert_eq!(fs::read_dir(scratch.at("")).unwrap().count(), 1);
    assert_eq!(files.read(Path::new("current"), LIMIT).unwrap(), b"x");
}

#[test]
fn full_disk_takes_verdicts_and_refuses_checkpoints() {
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let files = disk.0.files();
    files.write_durably(Path::new("current"), b"old").unwrap();
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    let filler = fs::write(disk.0.at("filler"), vec![1; 4 << 20]);
    assert_eq!(filler.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let error = files.write_durably(Path::new("checkpoint"), &[2; 100_000]).unwrap_err();
    assert!(matches!(error, WriteError::NoSpace { .. }), "{error}");
    assert!(disk.0.at(RESERVE_NAME).exists());
    files.write_durably(Path::new("v1/bad-configs.json"), &[3; 2000]).unwrap();
    assert_eq!(files.read(Path::new("v1/bad-configs.json"), LIMIT).unwrap(), [3; 2000]);
    assert!(!disk.0.at(RESERVE_NAME).exists());
    // The rest is used up: now an error is returned, and the old content stays.
    let _ = fs::write(disk.0.at("filler2"), vec![1; 4 << 20]);
    let error = files.write_durably(Path::new("current"), &[4; 9000]).unwrap_err();
    assert!(matches!(error, WriteError::NoSpace { .. }), "{error}");
    assert_eq!(files.read(Path::new("current"), LIMIT).unwrap(), b"old");
    fs::remove_file(disk.0.at("filler")).unwrap();
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    files.write_durably(Path::new("current"), &[4; 9000]).unwrap();
    let names = files.list(Path::new(""), 100).unwrap().entries;
    assert!(names.iter().all(|entry| !entry.name.to_string_lossy().starts_with(TEMPORARY_PREFIX)));
}

#[test]
fn read_only_disk_is_reported() {
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let files = disk.0.files();
    files.write_durably(Path::new("current"), b"old").unwrap();
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.0.at("")).status().unwrap();
    assert!(remounted.success());
    let error = files.write_durably(Path::new("current"), b"new").unwrap_err();
    assert!(matches!(error, WriteError::ReadOnly { .. }), "{error}");
    assert_eq!(files.read(Path::new("current"), LIMIT).unwrap(), b"old");
}

#[test]
fn the_reserve_takes_real_space() {
    let scratch = Root::new();
    scratch.files().ensure_reserve(RESERVE_BYTES).unwrap();
    let metadata = fs::metadata(scratch.at(RESERVE_NAME)).unwrap();
    assert_eq!(metadata.len(), RESERVE_BYTES as u64);
    assert!(metadata.blocks() * 512 >= RESERVE_BYTES as u64, "{} blocks", metadata.blocks());
}

#[test]
fn facts_of_this_machine_are_plausible() {
    let host = LinuxHost::new(Roots::default(), "/var/lib/kedge/not/there/yet");
    let identity = host.identity();
    assert_eq!(identity.boot_id.len(), 36);
    assert!(!identity.kernel_release.is_empty() && !identity.hostname.is_empty());
    assert_eq!(identity.operating_system, "linux");
    let (capacity, usage) = (host.capacity(), host.usage());
    assert!(capacity.cpus >= 1 && capacity.pids > 300, "{capacity:?}");
    assert!(usage.memory_available_bytes.is_some_and(|left| left > 0 && left < capacity.memory_bytes));
    assert!(usage.root_available_bytes.is_some_and(|left| left > 0 && left <= capacity.root_bytes));
    assert!(usage.pids_in_use.is_some_and(|used| used >= 1 && used < capacity.pids), "{usage:?}");
    assert!(host.addresses().iter().all(|address| !address.ip.is_loopback()));
    let own = linux::process_facts(&Roots::default());
    assert!(own.rss_bytes.is_some_and(|bytes| bytes > 100_000), "{own:?}");
    assert!(
        own.threads.is_some_and(|threads| threads >= 1) && own.fds.is_some_and(|fds| fds >= 3),
        "{own:?}"
    );
}

/// A made-up machine: pairs of path and content below a scratch root.
fn machine(files: &[(&str, &str)]) -> (Root, Roots) {
    let scratch = Root::new();
    for (path, content) in files {
        let path = scratch.0.join(path);
        fs::create_dir_all(path.parent().expect("below the scratch directory")).unwrap();
        fs::write(path, content).unwrap();
    }
    let roots = Roots::under(&scratch.0);
    (scratch, roots)
}

#[test]
fn host_without_proc_and_sys_has_facts() {
    let (scratch, roots) = machine(&[]);
    let host = LinuxHost::new(roots.clone(), scratch.0.join("nowhere"));
    let identity = host.identity();
    assert_eq!((identity.machine_id.as_str(), identity.boot_id.as_str()), ("", ""));
    assert_eq!(identity.os_image, "Linux");
    let capacity = host.capacity();
    assert!(capacity.cpus >= 1 && capacity.root_bytes > 0 && capacity.memory_bytes == 0, "{capacity:?}");
    assert_eq!(linux::process_facts(&roots), kedge_platform::ProcessFacts::default());
}

#[test]
fn fifo_in_place_of_a_fact_does_not_block() {
    let (scratch, roots) = machine(&[("usr/lib/os-release", "PRETTY_NAME=Board\n")]);
    fs::create_dir_all(scratch.0.join("etc")).unwrap();
    for name in ["etc/machine-id", "etc/os-release"] {
        make(Kind::Fifo, &scratch.0.join(name));
    }
    let (found, finds) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = found.send(LinuxHost::new(roots, "/").identity());
    });
    let identity = finds.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for the pipe");
    assert_eq!((identity.machine_id.as_str(), identity.os_image.as_str()), ("", "Board"));
}

#[test]
fn machine_id_is_the_first_valid_one() {
    const ID: &str = "0123456789abcdef0123456789abcdef";
    let id_of = |files: &[(&str, &str)]| {
        let (scratch, roots) = machine(files);
        LinuxHost::new(roots, scratch.0.path()).identity().machine_id
    };
    assert_eq!(id_of(&[("etc/machine-id", &format!("{ID}\n"))]), ID);
    let dbus = [("etc/machine-id", "uninitialized\n"), ("var/lib/dbus/machine-id", ID)];
    assert_eq!(id_of(&dbus), ID);
    // Derived: stable, and different for different boards.
    let derived = |uuid: &str| id_of(&[("etc/machine-id", ""), ("sys/class/dmi/id/product_uuid", uuid)]);
    assert_eq!(derived("a-board").len(), 32);
    assert_eq!(derived("a-board"), derived("a-board"));
    assert_ne!(derived("a-board"), derived("another"));
    let tree = id_of(&[("proc/device-tree/serial-number", "10000000abcdef\0")]);
    assert_eq!(tree, derived("10000000abcdef"));
    // Firmware with a placeholder id does not identify a board; a network card does.
    let unset = "00000000-0000-0000-0000-000000000000";
    let card = [("sys/class/net/eth0/address", "52:54:00:12:34:56\n"), ("sys/class/net/eth0/device/x", "")];
    assert_eq!(derived(unset), "");
    assert_eq!(id_of(&[("sys/class/dmi/id/product_uuid", unset), card[0], card[1]]), id_of(&card));
    assert_eq!(id_of(&card).len(), 32);
    assert_eq!(id_of(&card[..1]), "", "a virtual interface names no board");
}

#[test]
fn watchdogs_are_read_from_the_roots() {
    let (scratch, roots) = machine(&[
        ("sys/class/watchdog/watchdog1/identity", "Software Watchdog\n"),
        ("sys/class/watchdog/watchdog1/state", "inactive\n"),
        ("sys/class/watchdog/watchdog0/identity", "iTCO_wdt\n"),
        ("sys/class/watchdog/watchdog0/state", "active\n"),
        ("sys/class/watchdog/watchdog0/timeout", "30\n"),
        ("sys/class/watchdog/watchdog2/identity", ""),
    ]);
    let found = LinuxHost::new(roots, scratch.0.path()).watchdogs();
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.name.as_str(), it.is_active(), it.is_hardware(), it.timeout.as_str()))
        .collect();
    let expect =
        [("watchdog0", true, true, "30"), ("watchdog1", false, false, ""), ("watchdog2", false, true, "")];
    assert_eq!(found, expect);
}

#[test]
fn capacity_and_usage_are_read_from_the_roots() {
    let (scratch, roots) = machine(&[
        (
            "proc/meminfo",
            "MemTotal: 2048 kB\nMemAvailable: 1536 kB\nCached: 512 kB\nInactive(file): 256 kB\nAnonPages: 768 kB\n",
        ),
        ("proc/loadavg", "0.00 0.01 0.05 1/234 5678\n"),
        ("proc/sys/kernel/pid_max", "4194304\n"),
        ("proc/sys/kernel/threads-max", "15000\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("usr/lib/os-release", "PRETTY_NAME=\"Board OS 1.0\"\n"),
    ]);
    let host = LinuxHost::new(roots, scratch.0.path());
    let (capacity, usage) = (host.capacity(), host.usage());
    assert_eq!((capacity.cpus, capacity.memory_bytes, capacity.pids), (4, 2048 * 1024, 15_000));
    assert_eq!((usage.memory_available_bytes, usage.pids_in_use), (Some(1024 * 1024), Some(234)));
    assert_eq!(host.identity().os_image, "Board OS 1.0");
    // unknown must not be reported as empty: pods are evicted for lack of resources
    for file in ["meminfo", "loadavg"] {
        std::fs::remove_file(scratch.0.path().join("proc").join(file)).unwrap();
    }
    let usage = host.usage();
    assert_eq!((usage.memory_available_bytes, usage.pids_in_use), (None, None));
}
