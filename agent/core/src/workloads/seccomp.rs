//! `seccompProfile: RuntimeDefault`: which system calls a container may not make.
//!
//! A list of what is denied, not of what is allowed: programs meet new calls with each release of their C library, and an edge node is
//! upgraded rarely. Denied is what reaches beyond the container or into rarely tested parts of the kernel. Always holds: a call that
//! a capability is for is allowed to a container that has it; other calling conventions of the processor are filtered, too. Leaves to
//! others: loading it (the runtime).

use serde_json::{Value, json};

/// Calls that nobody makes who holds no capability for them, and the capability.
const BY_CAPABILITY: &[(&str, &[&str])] = &[
    (
        "CAP_SYS_ADMIN",
        &[
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "pivot_root",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "swapoff",
            "swapon",
            "umount",
            "umount2",
            "unshare",
        ],
    ),
    ("CAP_BPF", &["bpf"]),
    ("CAP_PERFMON", &["perf_event_open"]),
    ("CAP_DAC_READ_SEARCH", &["open_by_handle_at"]),
    ("CAP_SYS_BOOT", &["kexec_file_load", "kexec_load", "reboot"]),
    ("CAP_SYS_MODULE", &["create_module", "delete_module", "finit_module", "init_module", "query_module"]),
    ("CAP_SYS_PACCT", &["acct"]),
    ("CAP_SYS_PTRACE", &["kcmp", "pidfd_getfd"]),
    ("CAP_SYS_RAWIO", &["ioperm", "iopl"]),
    ("CAP_SYS_TIME", &["clock_adjtime", "clock_settime", "settimeofday", "stime"]),
    ("CAP_SYS_TTY_CONFIG", &["vhangup"]),
    ("CAP_SYSLOG", &["syslog"]),
];
/// Denied to all: keys belong to no namespace, and the rest is where the kernel was broken most.
const ALWAYS: &[&str] = &[
    "_sysctl",
    "add_key",
    "get_kernel_syms",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "keyctl",
    "move_pages",
    "nfsservctl",
    "request_key",
    "sysfs",
    "uselib",
    "userfaultfd",
    "ustat",
    "vm86",
    "vm86old",
];
/// Namespaces that `clone` would make: each is a bit of its flags.
const NAMESPACES: [u64; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
const EPERM: u32 = 1;
/// `clone3` has its flags where no filter can look: a C library that is told that there is none takes `clone`.
const ENOSYS: u32 = 38;

/// For `linux.seccomp` of a container with these capabilities.
pub(crate) fn runtime_default(capabilities: &[String]) -> Value {
    let has = |name: &str| capabilities.iter().any(|other| other == name);
    let may_namespace = has("CAP_SYS_ADMIN");
    let lists = BY_CAPABILITY.iter().filter(|(capability, _)| !has(capability));
    let mut names: Vec<&str> = lists.flat_map(|(_, names)| *names).copied().collect();
    names.extend(ALWAYS);
    let deny =
        |names: Value, errno: u32| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno});
    let mut rules = vec![deny(json!(names), EPERM)];
    if !may_namespace {
        rules.push(deny(json!(["clone3"]), ENOSYS));
        for flag in NAMESPACES {
            let mut rule = deny(json!(["clone"]), EPERM);
            rule["args"] = json!([{"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}]);
            rules.push(rule);
        }
    }
    json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": architectures(), "syscalls": rules})
}

/// The processor's, and those whose programs it runs, too.
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

    fn denied(capabilities: &[&str]) -> Vec<String> {
        let capabilities: Vec<String> = capabilities.iter().map(|name| (*name).to_owned()).collect();
        let profile = runtime_default(&capabilities);
        let rules = profile["syscalls"].as_array().unwrap().clone();
        let names = rules.iter().flat_map(|rule| rule["names"].as_array().unwrap().clone());
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn capability_brings_its_calls() {
        let has = |names: &[String], name: &str| names.iter().any(|other| other == name);
        let usual = denied(&["CAP_CHOWN"]);
        for name in ["mount", "bpf", "keyctl", "clone", "clone3", "unshare", "reboot"] {
            assert!(has(&usual, name), "{name}");
        }
        for name in ["execve", "openat", "ptrace", "chroot"] {
            assert!(!has(&usual, name), "{name}");
        }
        let time = denied(&["CAP_SYS_TIME"]);
        assert!(!has(&time, "clock_settime") && has(&time, "mount"));
        let admin = denied(&["CAP_SYS_ADMIN"]);
        assert!(!has(&admin, "mount") && !has(&admin, "clone") && has(&admin, "keyctl"));
    }
}
