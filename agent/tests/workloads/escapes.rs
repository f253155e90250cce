//! Ways out of a container, tried from inside with the real crun and kernel: with the rights of a pod that
//! sets none, with the restricted profile, and, to see that the attempts work at all, as a privileged
//! container.
//!
//! The program is Debian's perl, which makes any system call by its number. No try changes anything of the
//! machine if it succeeds.

use crate::setup::{Machine, Wanted, add_program, isolated, wanted};
use kedge_core::pods::{Seccomp, Security};
use kedge_core::workloads::spec::Device;
use kedge_platform::workloads::{bind_below, unmount};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The capabilities that containerd gives to a container that requests none.
const USUAL: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Numbers of system calls, in the order of `$NAMES` in the script.
#[cfg(target_arch = "x86_64")]
const CALLS: &str = "165 133 272 304 175 172 321 250 248 425 169 308 155 101 323 430 166";
#[cfg(not(target_arch = "x86_64"))]
const CALLS: &str = "40 33 97 265 105 0 280 219 217 425 142 268 41 117 282 430 39";
const NAMES: &str = "mount mknod unshare open_by_handle_at init_module iopl bpf keyctl add_key io_uring_setup reboot setns \
    pivot_root ptrace userfaultfd fsopen umount2";

/// Each line of its output: the attempt, and the number of the error, or `done`.
const SCRIPT: &str = r#"
$| = 1;
@n{split " ", "NAMES"} = split " ", "CALLS";
sub said { my ($what, $done) = @_; print "$what ", ($done ? "done" : $! + 0), "\n" }
sub call { my ($what, $name, @arguments) = @_; $! = 0; said($what, syscall($n{$name}, @arguments) != -1) }
sub writes { my ($path) = @_; $! = 0; said("write:$path", open(my $file, "+<", $path)) }
sub reads { my ($path) = @_; $! = 0; my $file; my $read = open($file, "<", $path) && sysread($file, my $byte, 1);
    print "read:$path ", ($read ? "done" : defined($read) && $read eq 0 ? "empty" : $! + 0), "\n" }
sub device { my ($what, $kind, $major, $minor) = @_; my $path = "/tmp/$what"; $! = 0;
    my $made = syscall($n{mknod}, $path, $kind | 0600, ($major << 8) | $minor) != -1;
    my $file; my $opened = $made && open($file, "<", $path); said("device:$what", $opened); unlink $path }

sub mounts { my ($kind, $options) = @_; my $place = "/tmp";
    call("mount:$kind", "mount", "none", "/tmp", $kind, 0, $options); syscall($n{umount2}, $place, 2) }

mounts("tmpfs", ""); mounts("cgroup", "memory"); mounts("proc", "");
call("mount:writable", "mount", "none", "/proc/sys", "none", 32 | 4096, 0);
call("fsopen", "fsopen", "tmpfs", 0);
device("disk", 060000, 8, 0); device("memory", 020000, 1, 1); device("kernel-log", 020000, 1, 11);
writes($_) for "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled";
opendir(my $groups, "/sys/fs/cgroup"); my @groups = map { "/sys/fs/cgroup/$_" } readdir $groups;
-d $_ ? writes("$_/release_agent") : writes($_) for grep { !/\.$/ } @groups; writes("/sys/fs/cgroup/devices/devices.allow");
reads($_) for "/proc/kcore", "/proc/keys", "/proc/timer_list";
my $handle = pack("IIQ", 8, 1, 2);
open(my $root, "<", "/"); call("open_by_handle_at", "open_by_handle_at", fileno($root), $handle, 0);
call("init_module", "init_module", my $module = "", 0, my $no = "");
call("bpf", "bpf", 0, my $map = pack("IIII", 2, 4, 4, 1) . "\0" x 100, 72);
call("keyctl", "keyctl", 0, -3, 0); call("add_key", "add_key", "user", "kedge", my $key = "x", 1, -3);
call("io_uring_setup", "io_uring_setup", 1, my $ring = "\0" x 120);
call("userfaultfd", "userfaultfd", 0);
call("reboot", "reboot", 0xfee1dead, 672274793, 0, 0);
call("pivot_root", "pivot_root", "/tmp", "/tmp");
call("ptrace:machine", "ptrace", 16, OUTSIDE, 0, 0);
$! = 0; said("kill:machine", kill(0, OUTSIDE));
opendir(my $all, "/proc"); said("processes:" . scalar(grep { /^\d+$/ } readdir $all), 1);
if ($> == 0) {
    mkdir "/tmp/x"; chroot "/tmp/x"; chdir ".." for 1 .. 20; chroot ".";
    said("chroot:outside", -e "/MARKER");
}
call("unshare:mount", "unshare", 0x00020000);
call("unshare:user", "unshare", 0x10000000);
"#;

fn with(security: Security, user: &'static str, outside: u32) -> Wanted {
    let script = SCRIPT
        .replace("NAMES", &NAMES.split_whitespace().collect::<Vec<_>>().join(" "))
        .replace("CALLS", CALLS)
        .replace("OUTSIDE", &outside.to_string())
        .replace("/MARKER", std::env::current_exe().unwrap().to_str().unwrap());
    // the script has no quote, which would end the shell's
    assert!(!script.contains('\''));
    Wanted { security, user, host_network: false, ..wanted("main", &format!("perl -e '{script}'")) }
}

fn tries(security: Security, user: &'static str) -> BTreeMap<String, String> {
    let machine = Machine::new();
    add_program(&machine.scratch.join("image"), "/usr/bin/perl");
    let mut runtime = machine.open();
    // its process ID is higher than any in the container
    let mut outside = Command::new("sleep").arg("600").spawn().unwrap();
    assert!(outside.id() > 10);
    let wanted = with(security, user, outside.id());
    let exit = runtime.run_to_end(&wanted);
    outside.kill().unwrap();
    outside.wait().unwrap();
    let logged = machine.logged(&wanted.id);
    assert_eq!(exit.exit_code, 0, "{exit:?} {logged:?}");
    runtime.clean_up(&[wanted.id]);
    let line = |line: &String| line.rsplit_once(' ').map(|(what, how)| (what.to_owned(), how.to_owned()));
    logged.iter().filter_map(line).collect()
}

fn named(capabilities: &[&str]) -> Vec<String> {
    capabilities.iter().map(|name| format!("CAP_{name}")).collect()
}

/// Checks that nothing was possible except these attempts.
#[track_caller]
fn assert_refused(found: &BTreeMap<String, String>, but: &[&str]) {
    assert!(found.len() > 30, "{found:#?}");
    let is_done = |(what, how): &(&String, &String)| {
        *how == "done" && !what.starts_with("processes:") && !but.contains(&what.as_str())
    };
    let done: Vec<_> = found.iter().filter(is_done).collect();
    assert!(done.is_empty(), "a container could do {done:#?} of {found:#?}");
    let processes = found.keys().find_map(|what| what.strip_prefix("processes:")).unwrap();
    assert!(processes.parse::<u32>().unwrap() <= 2, "a container sees {processes} processes");
}

#[test]
fn container_that_says_nothing_stays_inside() {
    isolated("escapes::container_that_says_nothing_stays_inside", || {
        let found = tries(Security { capabilities: named(&USUAL), ..Security::default() }, "");
        // without a seccomp profile, Kubernetes' default, these stay allowed: user namespaces, keys of its
        // own, rings
        let left = ["unshare:user", "keyctl", "add_key", "io_uring_setup", "userfaultfd"];
        assert_refused(&found, &left);
        for (what, errno) in [
            ("mount:tmpfs", "1"),
            ("device:disk", "1"),
            ("device:memory", "1"),
            ("unshare:mount", "1"),
            ("write:/proc/sys/kernel/core_pattern", "30"),
            ("open_by_handle_at", "1"),
            ("ptrace:machine", "3"),
            ("kill:machine", "3"),
        ] {
            assert_eq!(found.get(what).map(String::as_str), Some(errno), "{what}: {found:#?}");
        }
    });
}

#[test]
fn container_with_default_filter_is_refused_more() {
    isolated("escapes::container_with_default_filter_is_refused_more", || {
        let security =
            Security { capabilities: named(&USUAL), seccomp: Seccomp::RuntimeDefault, ..Security::default() };
        let found = tries(security, "");
        assert_refused(&found, &[]);
        for what in ["unshare:user", "keyctl", "add_key", "io_uring_setup", "userfaultfd", "bpf", "fsopen"] {
            assert_eq!(found.get(what).map(String::as_str), Some("1"), "{what}: {found:#?}");
        }
    });
}

#[test]
fn restricted_container_is_refused_everything() {
    isolated("escapes::restricted_container_is_refused_everything", || {
        let security = Security {
            must_not_be_root: true,
            read_only_root: true,
            no_new_privileges: true,
            seccomp: Seccomp::RuntimeDefault,
            ..Security::default()
        };
        let found = tries(security, "web");
        assert_refused(&found, &[]);
        // without the capability, and on a read-only root
        assert_ne!(found.get("device:disk").map(String::as_str), Some("done"));
    });
}

#[test]
fn privileged_container_succeeds_where_others_fail() {
    isolated("escapes::privileged_container_succeeds_where_others_fail", || {
        let capabilities = kedge_capabilities();
        let security = Security { capabilities, is_privileged: true, ..Security::default() };
        let found = tries(security, "");
        for what in [
            "mount:tmpfs",
            "mount:proc",
            "fsopen",
            "write:/proc/sys/kernel/core_pattern",
            "device:kernel-log",
            "unshare:mount",
            "add_key",
        ] {
            assert_eq!(found.get(what).map(String::as_str), Some("done"), "{what}: {found:#?}");
        }
        // even this container has a PID namespace of its own
        assert_eq!(found.get("ptrace:machine").map(String::as_str), Some("3"), "{found:#?}");
    });
}

/// The capabilities that this test itself has: it cannot give others.
fn kedge_capabilities() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
    let bits = u64::from_str_radix(line, 16).unwrap();
    let numbered = [
        (0, "CHOWN"),
        (1, "DAC_OVERRIDE"),
        (2, "DAC_READ_SEARCH"),
        (21, "SYS_ADMIN"),
        (27, "MKNOD"),
        (34, "SYSLOG"),
    ];
    let has = |(bit, _): &&(u32, &str)| bits & (1 << bit) != 0;
    numbered.iter().filter(has).map(|(_, name)| format!("CAP_{name}")).collect()
}

#[test]
fn link_swapped_under_a_sub_path_leads_nowhere() {
    isolated("escapes::link_swapped_under_a_sub_path_leads_nowhere", || {
        let machine = Machine::new();
        let (volume, outside) = (machine.scratch.join("volume"), machine.scratch.join("outside"));
        for directory in [volume.join("inner"), outside.clone()] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(outside.join("secret"), "x").unwrap();
        fs::write(volume.join("inner/own"), "x").unwrap();
        let ends = AtomicBool::new(false);
        let (mut tries, mut inside, mut left) = (0, 0, false);
        std::thread::scope(|scope| {
            // as a container would: a directory, a link to elsewhere in its place, and back
            scope.spawn(|| {
                symlink(&outside, volume.join("link")).unwrap();
                // the agent may have made a directory of that name meanwhile
                let put = |from: &str, to: &str| {
                    while fs::rename(volume.join(from), volume.join(to)).is_err() {
                        let _ = fs::remove_dir_all(volume.join(to));
                    }
                };
                while !ends.load(Ordering::Relaxed) {
                    put("inner", "spare");
                    put("link", "inner");
                    put("inner", "link");
                    put("spare", "inner");
                }
            });
            let target = machine.scratch.join("target");
            // on a busy machine the other thread may be stopped for all of 300 tries while the link is in
            // place
            while !left && (tries < 300 || inside == 0 && tries < 30_000) {
                tries += 1;
                inside += u32::from(bind_below(&volume, Path::new("inner/deeper"), &target).is_ok());
                left = target.join("secret").exists();
                unmount(&target).unwrap();
                kedge_platform::trees::remove(&target).unwrap();
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert!(!left, "it left the volume");
        assert!(!outside.join("deeper").exists(), "a directory was made outside of the volume");
        assert!(inside > 0, "not one of {tries} was bound");
    });
}

#[test]
fn device_is_usable_by_who_was_given_it() {
    isolated("escapes::device_is_usable_by_who_was_given_it", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        // the machine's log: no container has it by itself
        let script = "dd if=/dev/own of=/dev/null bs=8192 count=1 2>/dev/null && echo read";
        let path = "/dev/own".to_owned();
        let own = Device { path, is_block: false, major: 1, minor: 11, mode: 0o666, uid: 0, gid: 0 };
        let mut given = wanted("given", script);
        given.security.capabilities = named(&["SYSLOG"]);
        given.devices = vec![own];
        // a container that makes the device node itself may not open it
        let mut other =
            wanted("other", &format!("perl -e 'syscall(133, $p = \"/dev/own\", 8630, 267)'; {script}"));
        other.security.capabilities = named(&["SYSLOG", "MKNOD"]);
        add_program(&machine.scratch.join("image"), "/usr/bin/perl");
        assert_eq!(runtime.run_to_end(&given).exit_code, 0, "{:?}", machine.logged(&given.id));
        assert_eq!(machine.logged(&given.id), ["read"]);
        assert_ne!(runtime.run_to_end(&other).exit_code, 0, "{:?}", machine.logged(&other.id));
        runtime.clean_up(&[given.id, other.id]);
    });
}
