//! `seccompProfile`: which system calls a container may make.
//!
//! `RuntimeDefault` is a list of allowed calls, like containerd's default: a container may not make any other
//! call. Always holds: a call that needs a capability is allowed to a container that has it; other calling
//! conventions of the processor are filtered, too. A call that the list denies by name fails with EPERM; any
//! other fails with ENOSYS, as on a kernel that does not have it, so a program built for a newer kernel uses
//! the older call. Leaves to others: loading it (the runtime), reading files (`Localhost`).

use serde_json::{Value, json};

/// Longest profile in a file: containerd's default has 12 KiB, and it becomes a part of the container's
/// configuration.
pub const PROFILE_BYTES: usize = 256 * 1024;

/// Files and directories.
const FILES: &str = "access cachestat chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 \
    faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 \
    fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs \
    fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents getdents64 getxattr getxattrat inotify_add_watch \
    inotify_init inotify_init1 inotify_rm_watch ioctl lchown lchown32 lgetxattr link linkat listxattr listxattrat llistxattr \
    _llseek lremovexattr lseek lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat name_to_handle_at newfstatat open openat \
    openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr \
    removexattrat rename renameat renameat2 rmdir sendfile sendfile64 setxattr setxattrat splice stat stat64 statfs statfs64 \
    statmount listmount statx symlink symlinkat sync sync_file_range syncfs tee truncate truncate64 umask unlink unlinkat \
    utime utimensat utimensat_time64 utimes vmsplice write writev";
/// Waiting, and the reading and writing that goes with it.
const WAITING: &str = "epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old \
    eventfd eventfd2 io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit _newselect pause \
    poll ppoll ppoll_time64 pselect6 pselect6_time64 select signalfd signalfd4";
/// Memory. `mbind` and similar calls need a capability below.
const MEMORY: &str = "brk madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap \
    mmap2 mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages";
/// Processes, threads, their owners and limits. `ptrace` reaches no further than `/proc` does, since Linux
/// 4.8.
const PROCESSES: &str = "alarm capget capset execve execveat exit exit_group fork futex futex_requeue futex_time64 futex_wait \
    futex_waitv futex_wake getcpu getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpgid \
    getpgrp getpid getppid getpriority getresgid getresgid32 getresuid getresuid32 getrlimit get_robust_list getrusage getsid \
    get_thread_area gettid getuid getuid32 ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset \
    landlock_restrict_self lsm_get_self_attr lsm_list_modules lsm_set_self_attr nice pidfd_open pidfd_send_signal prctl \
    prlimit64 process_mrelease process_vm_readv process_vm_writev ptrace restart_syscall rseq rt_sigaction rt_sigpending \
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo \
    sched_getaffinity sched_getattr sched_getparam sched_get_priority_max sched_get_priority_min sched_getscheduler \
    sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler \
    sched_yield seccomp setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid \
    setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit set_robust_list \
    setsid set_thread_area set_tid_address setuid setuid32 sigaction sigaltstack signal sigpending sigprocmask sigreturn \
    sigsuspend sysinfo tgkill times tkill ugetrlimit uname uretprobe vfork wait4 waitid waitpid";
/// Clocks and timers; `adjtimex` and similar calls set a clock only with a capability, and read it without.
const TIME: &str = "adjtimex clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 \
    clock_nanosleep clock_nanosleep_time64 gettimeofday nanosleep time timer_create timer_delete timer_getoverrun \
    timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 \
    timerfd_settime timerfd_settime64";
/// Sockets except for `socket`, queues, semaphores, shared memory, random numbers.
const MESSAGES: &str = "accept accept4 bind connect getpeername getrandom getsockname getsockopt ipc listen mq_getsetattr \
    mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink msgctl msgget msgrcv \
    msgsnd recv recvfrom recvmmsg recvmmsg_time64 recvmsg semctl semget semop semtimedop semtimedop_time64 send sendmmsg \
    sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown socketcall socketpair";
/// Calls of one kind of processor. A name that another kind does not know is skipped.
const OF_PROCESSORS: &str = "arch_prctl modify_ldt arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls \
    sync_file_range2 riscv_flush_icache riscv_hwprobe";
const ALLOWED: [&str; 7] = [FILES, WAITING, MEMORY, PROCESSES, TIME, MESSAGES, OF_PROCESSORS];

/// The calls of each capability: allowed to containers that have one of them, denied to others.
const BY_CAPABILITY: &[(&str, &str)] = &[
    (
        "CAP_SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount open_tree \
         open_tree_attr perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    ("CAP_BPF", "bpf"),
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    ("CAP_PERFMON", "perf_event_open"),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module finit_module init_module"),
    ("CAP_SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("CAP_SYS_PACCT", "acct"),
    ("CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("CAP_SYS_RAWIO", "ioperm iopl"),
    ("CAP_SYS_TIME", "clock_settime clock_settime64 settimeofday stime"),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    ("CAP_SYSLOG", "syslog"),
];
/// Denied to all, and older than programs that would work without them: keys belong to no namespace, and the
/// rest is the machine's, or the part of the kernel with the most faults.
const DENIED: &str = "_sysctl add_key create_module get_kernel_syms io_uring_enter io_uring_register io_uring_setup \
    kexec_file_load kexec_load keyctl migrate_pages move_pages nfsservctl pivot_root query_module request_key swapoff swapon \
    sysfs uselib userfaultfd ustat vm86 vm86old";
/// `personality`: that of Linux, with 32 bits of addresses, the name of Linux 2.6, both; and the query for
/// the present one.
const PERSONALITIES: [u64; 5] = [0, 0x0008, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Bits of `clone`'s flags: a namespace each.
const NAMESPACES: u64 = 0x7e02_0000;
/// Sockets to the hypervisor ignore namespaces.
const AF_VSOCK: u64 = 40;
const EPERM: u32 = 1;
/// No filter can read the flags of `clone3`: a C library that gets this error uses `clone`.
const ENOSYS: u32 = 38;

/// For `linux.seccomp` of a container with these capabilities.
pub(crate) fn runtime_default(capabilities: &[String]) -> Value {
    let has = |name: &str| capabilities.iter().any(|other| other == name);
    let (granted, others): (Vec<_>, Vec<_>) =
        BY_CAPABILITY.iter().partition(|(capability, _)| has(capability));
    let words = |list: &[&(&'static str, &'static str)]| -> Vec<&str> {
        list.iter().flat_map(|(_, names)| names.split_whitespace()).collect()
    };
    let granted = words(&granted);
    let mut allowed: Vec<&str> = ALLOWED.iter().flat_map(|names| names.split_whitespace()).collect();
    allowed.extend(&granted);
    let is_denied = |name: &&str| !granted.contains(name) && !["clone", "clone3"].contains(name);
    let mut denied: Vec<&str> = words(&others).into_iter().filter(is_denied).collect();
    denied.extend(DENIED.split_whitespace());
    for names in [&mut allowed, &mut denied] {
        names.sort_unstable();
        names.dedup();
    }
    let allow = |names: Value| json!({"names": names, "action": "SCMP_ACT_ALLOW"});
    let allow_if = |name: &str, index: u32, operator: &str, value: u64, value_two: u64| {
        let argument = json!({"index": index, "value": value, "valueTwo": value_two, "op": operator});
        json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]})
    };
    let deny =
        |names: Value, errno: u32| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno});
    let mut rules = vec![
        allow(json!(allowed)),
        deny(json!(denied), EPERM),
        allow_if("socket", 0, "SCMP_CMP_NE", AF_VSOCK, 0),
        // the value that the rule above does not allow
        json!({"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM,
            "args": [{"index": 0, "value": AF_VSOCK, "op": "SCMP_CMP_EQ"}]}),
    ];
    for personality in PERSONALITIES {
        rules.push(allow_if("personality", 0, "SCMP_CMP_EQ", personality, 0));
    }
    if !has("CAP_SYS_ADMIN") {
        rules.push(allow_if("clone", 0, "SCMP_CMP_MASKED_EQ", NAMESPACES, 0));
        let mut bits = (0..64).map(|bit| 1u64 << bit).filter(|bit| NAMESPACES & bit != 0);
        rules.extend(bits.by_ref().map(|bit| {
            let mut rule = deny(json!(["clone"]), EPERM);
            rule["args"] = json!([{"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}]);
            rule
        }));
    }
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": ENOSYS, "architectures": architectures(),
        "syscalls": rules})
}

/// A profile in a file: `linux.seccomp` of the OCI runtime specification, as containerd reads it.
///
/// # Errors
/// The fault in it.
pub fn of_file(bytes: &[u8]) -> Result<Value, String> {
    let profile: Value = serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))?;
    let is_action = |value: &Value| value.as_str().is_some_and(|action| action.starts_with("SCMP_ACT_"));
    if !profile.is_object() || !is_action(&profile["defaultAction"]) {
        return Err("defaultAction is missing, expected SCMP_ACT_ERRNO or another action".into());
    }
    // a runtime that passes descriptors to a listener would hand over the container
    for field in ["listenerPath", "listenerMetadata"] {
        if !profile[field].is_null() {
            return Err(format!("{field} is not served"));
        }
    }
    let rules = match &profile["syscalls"] {
        Value::Null => &[][..],
        Value::Array(rules) => rules,
        _ => return Err("syscalls is no list".into()),
    };
    for (index, rule) in rules.iter().enumerate() {
        let has_names = rule["names"].as_array().is_some_and(|names| names.iter().all(Value::is_string));
        if !has_names || !is_action(&rule["action"]) {
            return Err(format!("syscalls[{index}] has no names or no action"));
        }
        // Docker's own form, which would be applied without its conditions
        if let Some(field) = ["includes", "excludes"].into_iter().find(|field| !is_absent(&rule[*field])) {
            return Err(format!(
                "syscalls[{index}].{field} belongs to Docker's form, expected the OCI runtime's"
            ));
        }
    }
    Ok(profile)
}

fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The processor's, and those whose programs it also runs.
fn architectures() -> &'static [&'static str] {
    if cfg!(target_arch = "x86_64") {
        &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    } else if cfg!(target_arch = "aarch64") {
        &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]
    } else if cfg!(target_arch = "arm") {
        &["SCMP_ARCH_ARM"]
    } else if cfg!(target_arch = "riscv64") {
        &["SCMP_ARCH_RISCV64"]
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Allowed names, and those that are denied with EPERM, whatever their arguments.
    fn rules(capabilities: &[&str]) -> (BTreeSet<String>, BTreeSet<String>) {
        let capabilities: Vec<String> = capabilities.iter().map(|name| (*name).to_owned()).collect();
        let profile = runtime_default(&capabilities);
        let rules = profile["syscalls"].as_array().unwrap().clone();
        let of = |action: &str| {
            let rules = rules.iter().filter(|rule| rule["action"] == action && rule["args"].is_null());
            let names = rules.flat_map(|rule| rule["names"].as_array().unwrap().clone());
            names.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        (of("SCMP_ACT_ALLOW"), of("SCMP_ACT_ERRNO"))
    }

    #[test]
    fn capability_brings_its_calls() {
        let (allowed, denied) = rules(&["CAP_CHOWN"]);
        for name in ["mount", "bpf", "keyctl", "unshare", "reboot", "chroot", "io_uring_setup", "setns"] {
            assert!(denied.contains(name) && !allowed.contains(name), "{name}");
        }
        for name in ["execve", "openat", "ptrace", "mknod", "fchmodat2", "futex_time64"] {
            assert!(allowed.contains(name) && !denied.contains(name), "{name}");
        }
        // filtered by their arguments, or as if the kernel did not have them
        for name in ["clone", "clone3", "socket", "personality"] {
            assert!(!allowed.contains(name) && !denied.contains(name), "{name}");
        }
        let (allowed, denied) = rules(&["CAP_SYS_TIME"]);
        assert!(allowed.contains("clock_settime") && denied.contains("mount"));
        let (allowed, denied) = rules(&["CAP_SYS_ADMIN"]);
        assert!(allowed.contains("mount") && allowed.contains("clone3") && denied.contains("keyctl"));
        let (allowed, denied) = rules(&["CAP_SYSLOG"]);
        assert!(
            allowed.contains("syslog") && !denied.contains("syslog"),
            "of two capabilities one is enough"
        );
    }

    #[test]
    fn no_call_is_allowed_and_denied() {
        for capabilities in [&[][..], &["CAP_SYS_ADMIN"], &["CAP_BPF", "CAP_PERFMON"]] {
            let (allowed, denied) = rules(capabilities);
            let both: Vec<_> = allowed.intersection(&denied).collect();
            assert!(both.is_empty(), "{both:?}");
        }
        let all: Vec<&str> = ALLOWED.iter().flat_map(|names| names.split_whitespace()).collect();
        let unique: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), unique.len(), "each call is in one list");
    }

    #[test]
    fn file_that_is_no_profile_is_refused() {
        let check = |text: &str, expect: Option<&str>| match (of_file(text.as_bytes()), expect) {
            (Ok(_), None) => {}
            (Err(why), Some(expect)) => assert!(why.contains(expect), "{why}"),
            other => panic!("{text}: {other:?}"),
        };
        check(r#"{"defaultAction": "SCMP_ACT_LOG"}"#, None);
        let rule = |more: &str| {
            format!(
                r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{{"names": ["a"], "action": "SCMP_ACT_KILL"{more}}}]}}"#
            )
        };
        check(&rule(""), None);
        check(&rule(r#", "includes": {}, "excludes": null"#), None);
        check(&rule(r#", "includes": {"caps": ["CAP_BPF"]}"#), Some("syscalls[0].includes"));
        check("{}", Some("defaultAction"));
        check("[", Some("not JSON"));
        check(r#"{"defaultAction": "SCMP_ACT_LOG", "listenerPath": "/x"}"#, Some("listenerPath"));
        check(
            r#"{"defaultAction": "SCMP_ACT_LOG", "syscalls": [{"action": "SCMP_ACT_LOG"}]}"#,
            Some("syscalls[0]"),
        );
    }
}
