//! The abilities of this board for containers: its trees of control groups, overlayfs, crun.
//!
//! Always holds: the board is examined once, at a start, by reading only. A missing ability is reported as a
//! problem with its consequences; the board is used as far as possible.
//!
//! Leaves to others: the reaction to a problem.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::cgroups::Cgroups;
use super::linux::Crun;
use super::process;
use crate::linux::{Roots, read_up_to};

/// Longest `/proc/self/mounts` or `/proc/filesystems` that is read: a node with 250 containers has some 100
/// KiB of mounts.
const FACT_BYTES: usize = 4 * 1024 * 1024;
/// Longest time of `crun --version`: the first read of a program from slow flash.
const VERSION_WITHIN: Duration = Duration::from_secs(20);
/// The share of all processes that pods may have.
const PODS_PROCESSES_PERCENT: u64 = 80;
/// All controllers for which the kernel has a tree of version 1: crun makes groups in each mounted one.
const CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// The result of the examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    /// A bit for the number of each capability that no container can be given.
    pub lacking: u64,
    /// The trees of control groups.
    pub cgroups: Cgroups,
    /// True if the kernel has overlayfs; without it each container gets a copy of its image.
    pub has_overlay: bool,
    /// Most processes and threads of all pods together, so that some are left for the machine; `None` if the
    /// limit is unknown.
    pub processes: Option<u64>,
    /// The lowest OOM score that a container can get: without CAP_SYS_RESOURCE this process's own.
    pub least_oom_score: i32,
    /// crun's version; `None`: it does not run.
    pub crun: Option<String>,
    /// Missing abilities, with their consequences.
    pub problems: Vec<String>,
}

/// The lowest score that the kernel allows.
const LOWEST_OOM_SCORE: i32 = -1000;
/// Bit of the capability that is needed to lower an OOM score.
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// Part of the text of each problem because of which no container can run.
const NOTHING_RUNS: &str = "no container can start";

impl Board {
    /// The reason why no container can run here; `None` if they can.
    pub fn obstacle(&self) -> Option<&str> {
        self.problems.iter().map(String::as_str).find(|problem| problem.contains(NOTHING_RUNS))
    }
}

/// True if the kernel enforces AppArmor profiles.
pub fn has_apparmor(roots: &Roots) -> bool {
    text(&roots.sys.join("module/apparmor/parameters/enabled")).trim() == "Y"
}

/// True if the kernel labels files and processes by SELinux: its file system is mounted, by which libselinux
/// decides, too.
pub fn has_selinux(roots: &Roots) -> bool {
    roots.sys.join("fs/selinux/enforce").exists()
}

/// The trees of control groups of this machine; it only reads.
pub fn control_groups(roots: &Roots) -> Cgroups {
    trees(&text(&roots.proc.join("self/mounts")), &|unified| text(&unified.join("cgroup.controllers"))).0
}

/// Examines the board.
pub fn probe(roots: &Roots, crun: &Crun) -> Board {
    let mounts = text(&roots.proc.join("self/mounts"));
    let (cgroups, mut problems) = trees(&mounts, &|unified| text(&unified.join("cgroup.controllers")));
    let filesystems = text(&roots.proc.join("filesystems"));
    let has_overlay = filesystems.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if !has_overlay {
        problems.push("the kernel has no overlayfs: each container gets a copy of its image".into());
    }
    let version = version(crun).inspect_err(|problem| problems.push(problem.clone())).ok();
    let processes = processes(&|name| text(&roots.proc.join("sys/kernel").join(name)));
    let own = |name: &str| text(&roots.proc.join("self").join(name));
    let least_oom_score = least_oom_score(&own("status"), &own("oom_score_adj"));
    if least_oom_score > LOWEST_OOM_SCORE {
        problems.push(format!(
            "without CAP_SYS_RESOURCE no OOM score below {least_oom_score} can be given: pods that are guaranteed their memory get that one"
        ));
    }
    let lacking = lacking_capabilities(&own("status"));
    if lacking & LONG_KNOWN != 0 {
        problems
            .push("this machine does not give all capabilities: privileged containers get the others".into());
    }
    Board { cgroups, has_overlay, processes, least_oom_score, lacking, crun: version, problems }
}

/// The kernel has two limits for the whole machine; the smaller one counts.
fn processes(limit: &dyn Fn(&str) -> String) -> Option<u64> {
    let limits = ["pid_max", "threads-max"].map(|name| limit(name).trim().parse::<u64>().ok());
    let least = limits.into_iter().flatten().min()?;
    Some(least / 100 * PODS_PROCESSES_PERCENT)
}

/// The lowest score for a process with this status and this OOM score. If one of them cannot be read, this
/// returns the lowest score of all: if the kernel refuses it, crun will report the error.
/// Capabilities that each kernel has which is still maintained.
const LONG_KNOWN: u64 = (1 << 38) - 1;

/// A bit for the number of each capability outside of our bounding set.
fn lacking_capabilities(status: &str) -> u64 {
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    bounding.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).map_or(0, |bits| !bits)
}

fn least_oom_score(status: &str, own: &str) -> i32 {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let may_lower = bits.is_none_or(|bits| bits & CAP_SYS_RESOURCE != 0);
    if may_lower { LOWEST_OOM_SCORE } else { own.trim().parse().unwrap_or(LOWEST_OOM_SCORE) }
}

/// The beginning of a file; an unreadable one is empty.
fn text(path: &Path) -> String {
    let bytes = fs::File::open(path).and_then(|file| read_up_to(file, FACT_BYTES)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The mounted trees; `controllers` reads the list of controllers of a unified tree.
fn trees(mounts: &str, controllers: &dyn Fn(&Path) -> String) -> (Cgroups, Vec<String>) {
    let mut v1 = Vec::new();
    let mut unified = None;
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, place, kind, options, ..] = words.as_slice() else { continue };
        match *kind {
            // a later mount covers an earlier one at the same path; for different paths the first is the
            // machine's
            "cgroup2" => unified = unified.or(Some(PathBuf::from(place))),
            "cgroup" => {
                let known = |option: &&str| CONTROLLERS.contains(option) || option.starts_with("name=");
                v1.extend(
                    options.split(',').filter(known).map(|name| (name.to_owned(), PathBuf::from(place))),
                );
            }
            _ => {}
        }
    }
    match (unified, v1.is_empty()) {
        (Some(unified), true) => (Cgroups::V2(unified), Vec::new()),
        (None, true) => {
            let problem = "no control groups are mounted: no container can start, because nothing would keep it from the machine's \
                           devices";
            (Cgroups::Absent, vec![problem.into()])
        }
        (None, false) => {
            let problems = v1_problem(&v1);
            (Cgroups::V1(v1), problems)
        }
        (Some(unified), false) => {
            let owned = controllers(&unified);
            let mut problems = v1_problem(&v1);
            if !owned.trim().is_empty() {
                problems.push(format!(
                    "{} owns the controllers {:?} beside trees of version 1: crun refuses such a machine, no container can start; boot with \
                     systemd.unified_cgroup_hierarchy=1, or without these controllers",
                    unified.display(),
                    owned.trim()
                ));
            }
            (Cgroups::V1(v1), problems)
        }
    }
}

fn v1_problem(trees: &[(String, PathBuf)]) -> Vec<String> {
    let mut problems = vec![
        "control groups of version 1: limits work, memory protection and pressure figures do not".into(),
    ];
    if !trees.iter().any(|(name, _)| name == "devices") {
        problems.push(
            "no control groups for devices are mounted: no container can start, because nothing would keep it from the machine's \
             devices"
                .into(),
        );
    }
    problems
}

fn version(crun: &Crun) -> Result<String, String> {
    let program = crun.program.display();
    let mut command = Command::new(&crun.program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    // its few lines fit into a pipe
    let (mut reader, writer) =
        std::io::pipe().map_err(|error| format!("ask {program} for its version: {error}"))?;
    command.stdout(writer);
    let status = process::run_within(&mut command, VERSION_WITHIN)
        .map_err(|error| format!("cannot run {program}: {error}; no container can start"))?;
    drop(command);
    let output = read_up_to(&mut reader, 4096).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    let found =
        text.lines().find_map(|line| line.strip_prefix("crun version ")).map(|found| found.trim().to_owned());
    found.filter(|_| status.success()).ok_or_else(|| {
        format!("{program} --version ended with {status} and does not name a version; no container can start")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n\
                      cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0\n\
                      cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\n";
    const V2: &str = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn trees_are_found_in_each_kind_of_machine() {
        let check = |mounts: &str, owned: &'static str| trees(mounts, &move |_| owned.to_owned());
        assert_eq!(check(V2, "cpu memory").0, Cgroups::V2("/sys/fs/cgroup/unified".into()));
        let (Cgroups::V1(found), problems) = check(&format!("{V1}{V2}"), "") else { panic!() };
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cpu", "cpuacct", "memory", "name=systemd", "freezer", "devices"]);
        assert!(problems.len() == 1 && !problems[0].contains(NOTHING_RUNS), "{problems:?}");
        let (_, problems) = check("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", "");
        assert!(problems[1].contains("for devices"), "{problems:?}");
        let (_, problems) = check(&format!("{V1}{V2}"), "hugetlb\n");
        assert!(problems[1].contains("\"hugetlb\"") && problems[1].contains(NOTHING_RUNS), "{problems:?}");
        assert_eq!(check("proc /proc proc rw 0 0\n", "").0, Cgroups::Absent);
    }

    #[test]
    fn oom_score_is_lowered_by_who_may() {
        let check =
            |status: &str, own: &str, expect| assert_eq!(least_oom_score(status, own), expect, "{status}");
        check("CapEff:\t000001ffffffffff\n", "0\n", -1000);
        check("CapEff:\t000001fffeffffff\n", "0\n", 0);
        check("CapEff:\t000001fffeffffff\n", "-999\n", -999);
        check("", "0\n", -1000);
    }

    #[test]
    fn some_processes_are_left_for_the_machine() {
        let check = |pid_max: &'static str, threads_max: &'static str, expect| {
            let limit = |name: &str| if name == "pid_max" { pid_max.into() } else { threads_max.into() };
            assert_eq!(processes(&limit), expect, "{pid_max:?} {threads_max:?}");
        };
        check("32768\n", "7000\n", Some(5600));
        check("4194304\n", "", Some(3_355_440));
        check("", "x", None);
    }

    #[test]
    fn missing_crun_is_a_problem_in_words() {
        let crun = Crun { program: "/nonexistent/crun".into(), limit: Duration::from_secs(1) };
        let board = probe(&Roots::under("/nonexistent"), &crun);
        assert!(board.obstacle().is_some());
        assert_eq!((board.crun, board.has_overlay), (None, false));
        assert!(board.problems.iter().any(|problem| problem.contains("/nonexistent/crun")));
    }
}
