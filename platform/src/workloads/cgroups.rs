//! Control groups: made with their limits, entered, emptied by killing, removed; in the unified tree (v2) or
//! in one tree for each controller (v1).
//!
//! Always holds: a group is identified by its path from the root of the tree, and nothing outside that path
//! is touched. A process is killed only while the kernel lists it in the group. Walks and waits are bounded.
//!
//! Leaves to others: the limits (core), the container's own group (crun makes it), the choice of tree
//! (`probe`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::process::ProcessFd;
use crate::linux::{InterfaceUse, MemoryUse, Roots, interfaces, read_up_to, word_after};

/// Longest file of a group that is read, in bytes: a list of 100,000 processes.
const FILE_BYTES: usize = 1024 * 1024;
/// Deepest nesting below a group that is walked, and most groups at one level: containers may make groups of
/// their own.
const DEPTH: usize = 8;
const CHILDREN: usize = 1024;
/// Longest time for killed processes to leave their group, and the interval of checks: there is no kernel
/// event that both trees have. A process that waits for a dead disk never leaves.
const EMPTY_WITHIN: Duration = Duration::from_secs(2);
const EMPTY_LOOK: Duration = Duration::from_millis(2);

/// The controllers for limits of a group, as v1 names them, in whose v1 trees our groups are made; and
/// systemd's tree.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The limits of a group; an absent one is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupLimits {
    /// Share of the processors beside other groups, in v1's measure: 2 to 262144, 1024 for one processor.
    pub cpu_shares: Option<u64>,
    /// Microseconds of processor time in each period.
    pub cpu_quota: Option<i64>,
    /// The period, in microseconds.
    pub cpu_period: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
}

/// The trees of control groups of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cgroups {
    /// One tree for all controllers.
    V2(PathBuf),
    /// A tree for each controller, or for several: name and mount point of all mounted ones.
    V1(Vec<(String, PathBuf)>),
    /// No tree: then there are no limits and no lists of a container's processes, and containers can use all
    /// of the machine's devices.
    Absent,
}

impl Cgroups {
    /// Makes a group, including missing parents, and sets its limits. Returns the limits that the machine
    /// cannot enforce.
    ///
    /// # Errors
    /// The group cannot be made.
    pub fn make(&self, group: &str, limits: &GroupLimits) -> io::Result<Vec<String>> {
        let mut missed = Vec::new();
        for root in self.trees() {
            let directory = below(root, group)?;
            self.allow_controllers(root, &directory);
            fs::create_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        }
        for (controller, file, value) in self.settings(limits) {
            let Some(root) = self.tree_of(controller) else {
                missed
                    .push(format!("{group}: {file} = {value}: this machine has no controller {controller}"));
                continue;
            };
            let path = below(root, group)?.join(file);
            if let Err(error) = fs::write(&path, &value) {
                missed.push(format!("{} = {value}: {error}", path.display()));
            }
        }
        Ok(missed)
    }

    /// Moves a process (0: the calling one) into a group, which is created if missing.
    ///
    /// # Errors
    /// One of the trees refused.
    pub fn put(&self, group: &str, pid: i32) -> io::Result<()> {
        self.make(group, &GroupLimits::default())?;
        for root in self.trees() {
            let path = below(root, group)?.join("cgroup.procs");
            fs::write(&path, pid.to_string()).map_err(|error| at(&path, &error))?;
        }
        Ok(())
    }

    /// The number of the group's processes that were killed for lack of memory; `None` if the group does not
    /// exist, or the kernel does not count them.
    pub fn oom_kills(&self, group: &str) -> Option<u64> {
        let (root, file) = match self {
            Self::V2(root) => (root.as_path(), "memory.events"),
            Self::V1(_) => (self.tree_of("memory")?, "memory.oom_control"),
            Self::Absent => return None,
        };
        let text = read(&below(root, group).ok()?.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    }

    /// The memory that the group's processes cannot give back: all except cached files that were not used
    /// lately, as the kubelet counts it. `None` if the group does not exist, or its memory is not counted.
    pub fn working_set(&self, group: &str) -> Option<u64> {
        let memory = self.memory_files(group)?;
        Some(memory.working_set())
    }

    /// The memory usage of the group. `None` if the group does not exist, or its memory is not counted.
    pub fn memory_use(&self, group: &str) -> Option<MemoryUse> {
        let memory = self.memory_files(group)?;
        let number = |file: &str| read(&memory.directory.join(file)).ok()?.trim().parse::<u64>().ok();
        let of = |v2: &str, v1: &str| word_after(&memory.stat, if memory.is_unified { v2 } else { v1 });
        let limit = number(if memory.is_unified { "memory.max" } else { "memory.limit_in_bytes" });
        let working_set = memory.working_set();
        Some(MemoryUse {
            used: memory.used,
            working_set,
            // v1 represents the absence of a limit by a huge number of pages
            available: limit.filter(|limit| *limit < 1 << 62).map(|limit| limit.saturating_sub(working_set)),
            anonymous: of("anon", "total_rss"),
            faults: of("pgfault", "total_pgfault"),
            major_faults: of("pgmajfault", "total_pgmajfault"),
            swapped: number("memory.swap.current").or_else(|| word_after(&memory.stat, "total_swap")),
            swap_available: None,
        })
    }

    fn memory_files(&self, group: &str) -> Option<MemoryFiles> {
        let root = match self {
            Self::V2(root) => root.as_path(),
            Self::V1(_) => self.tree_of("memory")?,
            Self::Absent => return None,
        };
        let is_unified = matches!(self, Self::V2(_));
        let directory = below(root, group).ok()?;
        let used = if is_unified { "memory.current" } else { "memory.usage_in_bytes" };
        let used: u64 = read(&directory.join(used)).ok()?.trim().parse().ok()?;
        let stat = read(&directory.join("memory.stat")).ok()?;
        Some(MemoryFiles { directory, is_unified, used, stat })
    }

    /// The processor time that the group's processes have used. `None` if the group does not exist, or its
    /// time is not counted.
    pub fn processor_time(&self, group: &str) -> Option<Duration> {
        match self {
            Self::V2(root) => {
                let stat = read(&below(root, group).ok()?.join("cpu.stat")).ok()?;
                word_after(&stat, "usage_usec").map(Duration::from_micros)
            }
            Self::V1(_) => {
                let path = below(self.tree_of("cpuacct")?, group).ok()?.join("cpuacct.usage");
                read(&path).ok()?.trim().parse().ok().map(Duration::from_nanos)
            }
            Self::Absent => None,
        }
    }

    /// The traffic on the network interfaces of the group's processes. `None` if they use the machine's
    /// network, or no process exists by which it could be read.
    pub fn interfaces(&self, group: &str, roots: &Roots) -> Option<Vec<InterfaceUse>> {
        let pid = self.processes(group).first()?.to_string();
        let network = |pid: &str| fs::read_link(roots.proc.join(pid).join("ns/net")).ok();
        let found = interfaces(roots, &pid);
        let is_own = network(&pid)? != network("self")?;
        // the process ID may have passed to another process meanwhile
        let is_its = self.processes(group).first()?.to_string() == pid;
        (is_own && is_its).then_some(found)
    }

    /// The number of processes and threads in the group. `None` if the group does not exist, or they are not
    /// counted.
    pub fn count(&self, group: &str) -> Option<u64> {
        let directory = below(self.tree_of("pids")?, group).ok()?;
        read(&directory.join("pids.current")).ok()?.trim().parse().ok()
    }

    /// Kills all processes in the group and below it, and waits for a limited time until they are gone. A
    /// group that does not exist counts as empty.
    ///
    /// # Errors
    /// Processes are left.
    pub fn kill_all(&self, group: &str) -> io::Result<()> {
        let end = Instant::now() + EMPTY_WITHIN;
        loop {
            let left = self.kill_once(group)?;
            if left == 0 {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(io::Error::other(format!(
                    "{left} processes of {group} do not end after SIGKILL"
                )));
            }
            std::thread::sleep(EMPTY_LOOK);
        }
    }

    /// The processes of a group, by the machine's IDs; a group that does not exist has none.
    pub(super) fn processes(&self, group: &str) -> Vec<i32> {
        let Some(root) = self.trees().first().copied() else { return Vec::new() };
        let Ok(directory) = below(root, group) else { return Vec::new() };
        with_children(&directory).iter().flat_map(|group| listed(&group.join("cgroup.procs"))).collect()
    }

    /// Sends SIGKILL to all present processes, and counts them.
    ///
    /// # Errors
    /// The group's path is invalid.
    pub fn kill_once(&self, group: &str) -> io::Result<usize> {
        let mut count = 0;
        for root in self.trees() {
            let directory = below(root, group)?;
            if matches!(self, Self::V2(_)) {
                // all at once, including new children; kernels before 5.14 do not have it
                let _ = fs::write(directory.join("cgroup.kill"), "1");
            }
            for directory in with_children(&directory) {
                count += kill_listed(&directory.join("cgroup.procs"));
            }
        }
        Ok(count)
    }

    /// Removes a group and those below it. One that does not exist counts as removed.
    ///
    /// # Errors
    /// One is left, because a process is in it.
    pub fn remove(&self, group: &str) -> io::Result<()> {
        let mut failed = None;
        for root in self.all_trees() {
            for directory in with_children(&below(root, group)?).iter().rev() {
                if let Err(error) = fs::remove_dir(directory)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    failed = Some(at(directory, &error));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The names of the groups directly below a group, in any tree.
    pub fn children(&self, group: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .all_trees()
            .into_iter()
            .filter_map(|root| below(root, group).ok())
            .flat_map(|directory| children(&directory))
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// True if a container can be kept from the machine's devices: as root it may make a node for each.
    pub fn confine_devices(&self) -> bool {
        match self {
            Self::V2(_) => true,
            Self::V1(_) => self.tree_of("devices").is_some(),
            Self::Absent => false,
        }
    }

    /// The controllers that the limits of pods need and the machine lacks.
    pub fn lacking(&self) -> Vec<&'static str> {
        let unified = match self {
            Self::V2(root) => read(&root.join("cgroup.controllers")).unwrap_or_default(),
            Self::V1(_) | Self::Absent => String::new(),
        };
        let is_there = |controller: &str| match self {
            Self::V2(_) => unified.split_whitespace().any(|word| word == controller),
            Self::V1(_) | Self::Absent => self.tree_of(controller).is_some(),
        };
        ["memory", "cpu", "pids"].into_iter().filter(|controller| !is_there(controller)).collect()
    }

    /// True if this group exists in any tree.
    pub fn has(&self, group: &str) -> bool {
        self.trees().iter().any(|root| root.join(group.trim_start_matches('/')).is_dir())
    }

    /// The roots of the trees in which our groups are made.
    fn trees(&self) -> Vec<&Path> {
        self.trees_of(|name| CONTROLLERS.contains(&name) || name == "name=systemd")
    }

    /// The roots of all trees: crun makes a container's group in each of them, and does not remove its
    /// parents.
    fn all_trees(&self) -> Vec<&Path> {
        self.trees_of(|_| true)
    }

    fn trees_of(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<&Path> {
        match self {
            Self::V2(root) => vec![root.as_path()],
            Self::V1(trees) => {
                let wanted = trees.iter().filter(|(name, _)| is_wanted(name));
                let mut paths: Vec<&Path> = wanted.map(|(_, path)| path.as_path()).collect();
                // two names may share a tree (cpu,cpuacct): each tree once
                paths.sort();
                paths.dedup();
                paths
            }
            Self::Absent => Vec::new(),
        }
    }

    fn tree_of(&self, controller: &str) -> Option<&Path> {
        match self {
            Self::V2(root) => Some(root),
            Self::V1(trees) => {
                trees.iter().find(|(name, _)| name == controller).map(|(_, path)| path.as_path())
            }
            Self::Absent => None,
        }
    }

    /// In the unified tree a group has a controller only if each group above it passes it on.
    fn allow_controllers(&self, root: &Path, directory: &Path) {
        if !matches!(self, Self::V2(_)) {
            return;
        }
        let above: Vec<&Path> =
            directory.ancestors().skip(1).take_while(|path| path.starts_with(root)).collect();
        for path in above.iter().rev() {
            let _ = fs::create_dir(path);
            for controller in CONTROLLERS {
                // if the kernel lacks it, setting the limit will fail
                let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }

    /// Limits as the files of this machine's trees: controller, file, value.
    fn settings(&self, limits: &GroupLimits) -> Vec<(&'static str, &'static str, String)> {
        let mut settings = Vec::new();
        let mut set = |controller, file, value: Option<String>| {
            settings.extend(value.map(|value| (controller, file, value)));
        };
        match self {
            Self::V2(_) => {
                set("cpu", "cpu.weight", limits.cpu_shares.map(|shares| weight(shares).to_string()));
                let period = limits.cpu_period.unwrap_or(100_000);
                let most = |quota: i64| if quota < 0 { "max".into() } else { quota.to_string() };
                set("cpu", "cpu.max", limits.cpu_quota.map(|quota| format!("{} {period}", most(quota))));
                set("memory", "memory.max", limits.memory.map(most));
                set("pids", "pids.max", limits.pids.map(most));
            }
            Self::V1(_) | Self::Absent => {
                set("cpu", "cpu.shares", limits.cpu_shares.map(|shares| shares.to_string()));
                set("cpu", "cpu.cfs_period_us", limits.cpu_period.map(|period| period.to_string()));
                set("cpu", "cpu.cfs_quota_us", limits.cpu_quota.map(|quota| quota.to_string()));
                set("memory", "memory.limit_in_bytes", limits.memory.map(|bytes| bytes.to_string()));
                let most = |count: i64| if count < 0 { "max".into() } else { count.to_string() };
                set("pids", "pids.max", limits.pids.map(most));
            }
        }
        settings
    }
}

/// The kernel's memory statistics of a group.
struct MemoryFiles {
    directory: PathBuf,
    is_unified: bool,
    used: u64,
    stat: String,
}

impl MemoryFiles {
    fn working_set(&self) -> u64 {
        let unused = if self.is_unified { "inactive_file" } else { "total_inactive_file" };
        self.used.saturating_sub(word_after(&self.stat, unused).unwrap_or(0))
    }
}

/// v1's shares (2 to 262144) as v2's weight (1 to 10000), by the line that crun and the kubelet draw between
/// the two ranges.
pub fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// The directory of a group; a path that leaves the tree is refused.
fn below(root: &Path, group: &str) -> io::Result<PathBuf> {
    let inner = group.strip_prefix('/').unwrap_or_default();
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if inner.is_empty() || !inner.split('/').all(is_plain) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{group:?} is not a control group")));
    }
    Ok(root.join(inner))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = read_up_to(fs::File::open(path)?, FILE_BYTES)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The processes of a group. A list that is longer than the limit is cut, perhaps within a number, and the
/// rest of that number might be another process's.
fn listed(path: &Path) -> Vec<i32> {
    let text = read(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |last| &text[..last]);
    whole.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A process ID may pass to another process between the list and the signal, so the process is opened first,
/// and must then still be listed.
fn kill_listed(path: &Path) -> usize {
    let opened: Vec<(i32, ProcessFd)> =
        listed(path).into_iter().filter_map(|pid| Some((pid, ProcessFd::open(pid).ok()??))).collect();
    if opened.is_empty() {
        return 0;
    }
    let now = listed(path);
    for (_, process) in opened.iter().filter(|(pid, _)| now.contains(pid)) {
        let _ = process.signal(nix::libc::SIGKILL);
    }
    now.len()
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_group = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.flatten().filter(is_group).map(|entry| entry.path()).take(CHILDREN).collect()
}

/// A group and those below it, each before its children.
fn with_children(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut level = vec![directory.to_path_buf()];
    for _ in 0..DEPTH {
        let next = level.iter().flat_map(|path| children(path)).collect();
        found.append(&mut level);
        level = next;
        if level.is_empty() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_the_weights_that_crun_sets() {
        for (shares, expect) in
            [(2, 1), (102, 4), (256, 10), (1024, 39), (2048, 79), (262_144, 10_000), (0, 1)]
        {
            assert_eq!(weight(shares), expect, "{shares}");
        }
    }

    #[test]
    fn limits_are_written_in_the_words_of_each_tree() {
        let limits = GroupLimits {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory: Some(1 << 20),
            pids: Some(-1),
        };
        let check = |groups: Cgroups, expect: &str| {
            let settings = groups.settings(&limits);
            let lines: Vec<String> =
                settings.iter().map(|(_, file, value)| format!("{file}={value}")).collect();
            assert_eq!(lines.join(" "), expect);
        };
        check(Cgroups::V2("/x".into()), "cpu.weight=39 cpu.max=50000 100000 memory.max=1048576 pids.max=max");
        check(
            Cgroups::V1(Vec::new()),
            "cpu.shares=1024 cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000 memory.limit_in_bytes=1048576 pids.max=max",
        );
    }

    #[test]
    fn group_outside_the_tree_is_refused() {
        for group in ["", "/", "a", "/a/../b", "/..", "/a//b", "/a/"] {
            assert!(below(Path::new("/sys/fs/cgroup"), group).is_err(), "{group:?}");
        }
        assert_eq!(below(Path::new("/x"), "/a/b").unwrap(), Path::new("/x/a/b"));
    }

    #[test]
    fn list_that_was_cut_names_no_stranger() {
        let scratch = std::env::temp_dir().join(format!("kedge-listed-{}", std::process::id()));
        for (text, expect) in
            [("12\n345\n", vec![12, 345]), ("12\n34", vec![12]), ("34", vec![]), ("", vec![])]
        {
            fs::write(&scratch, text).unwrap();
            assert_eq!(listed(&scratch), expect, "{text:?}");
        }
        let _ = fs::remove_file(scratch);
    }

    #[test]
    fn groups_are_removed_from_all_trees() {
        let scratch = std::env::temp_dir().join(format!("kedge-trees-{}", std::process::id()));
        let (pids, devices) = (scratch.join("pids"), scratch.join("devices"));
        let groups = Cgroups::V1(vec![("pids".into(), pids.clone()), ("devices".into(), devices.clone())]);
        groups.make("/a/b", &GroupLimits::default()).unwrap();
        assert!(pids.join("a/b").exists() && !devices.exists(), "crun makes the others");
        fs::create_dir_all(devices.join("a/c/d")).unwrap();
        assert_eq!(groups.children("/a"), ["b", "c"]);
        groups.remove("/a").unwrap();
        assert!(!pids.join("a").exists() && !devices.join("a").exists());
        assert!(groups.confine_devices() && !Cgroups::V1(vec![("pids".into(), pids)]).confine_devices());
        let _ = fs::remove_dir_all(scratch);
    }

    #[test]
    fn use_is_read_in_the_words_of_each_tree() {
        let scratch = std::env::temp_dir().join(format!("kedge-use-{}", std::process::id()));
        let group = scratch.join("a/b");
        fs::create_dir_all(&group).unwrap();
        for (file, text) in [
            ("memory.current", "1000\n"),
            ("memory.usage_in_bytes", "2000\n"),
            ("memory.stat", "anon 5\ninactive_file 300\ntotal_inactive_file 400\n"),
            ("memory.max", "900\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.swap.current", "3\n"),
            ("cpu.stat", "usage_usec 1500000\nuser_usec 1\n"),
            ("cpuacct.usage", "2500000000\n"),
            ("pids.current", "7\n"),
        ] {
            fs::write(group.join(file), text).unwrap();
        }
        let v2 = Cgroups::V2(scratch.clone());
        let v1 = ["memory", "pids", "cpuacct"].map(|name| (name.to_owned(), scratch.clone()));
        let v1 = Cgroups::V1(v1.to_vec());
        assert_eq!((v2.working_set("/a/b"), v2.count("/a/b")), (Some(700), Some(7)));
        assert_eq!((v1.working_set("/a/b"), v1.count("/a/b")), (Some(1600), Some(7)));
        assert_eq!((v2.working_set("/a/c"), v2.count("/a/c")), (None, None), "unknown is not zero");
        let time = |groups: &Cgroups| groups.processor_time("/a/b").map(|time| time.as_millis());
        assert_eq!((time(&v2), time(&v1), v2.processor_time("/a/c")), (Some(1500), Some(2500), None));
        let memory = v2.memory_use("/a/b").unwrap();
        assert_eq!((memory.used, memory.working_set, memory.available), (1000, 700, Some(200)));
        assert_eq!((memory.anonymous, memory.swapped, memory.faults), (Some(5), Some(3), None));
        let memory = v1.memory_use("/a/b").unwrap();
        assert_eq!((memory.used, memory.working_set, memory.available), (2000, 1600, None));
        let _ = fs::remove_dir_all(scratch);
    }

    #[test]
    fn controllers_that_the_kernel_lacks_are_found() {
        let scratch = std::env::temp_dir().join(format!("kedge-lacking-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let v1 = |names: &[&str]| {
            Cgroups::V1(names.iter().map(|name| ((*name).to_owned(), scratch.clone())).collect()).lacking()
        };
        assert_eq!(v1(&["pids", "cpu", "memory"]), [] as [&str; 0]);
        assert_eq!(v1(&["cpuset", "pids", "cpu"]), ["memory"]);
        assert_eq!(Cgroups::Absent.lacking(), ["memory", "cpu", "pids"]);
        for (text, expect) in [
            ("cpuset cpu io memory hugetlb pids rdma\n", vec![]),
            ("cpuset cpu io pids\n", vec!["memory"]),
            ("cpuset io memory\n", vec!["cpu", "pids"]),
        ] {
            fs::write(scratch.join("cgroup.controllers"), text).unwrap();
            assert_eq!(Cgroups::V2(scratch.clone()).lacking(), expect, "{text}");
        }
        let _ = fs::remove_dir_all(scratch);
    }

    #[test]
    fn limit_without_its_controller_is_reported() {
        let scratch = std::env::temp_dir().join(format!("kedge-groups-{}", std::process::id()));
        let groups = Cgroups::V1(vec![("cpu".into(), scratch.clone())]);
        let limits = GroupLimits { cpu_shares: Some(2), memory: Some(1), ..GroupLimits::default() };
        let missed = groups.make("/a/b", &limits).unwrap();
        assert_eq!(missed.len(), 1);
        assert!(missed[0].contains("no controller memory"), "{missed:?}");
        assert_eq!(fs::read_to_string(scratch.join("a/b/cpu.shares")).unwrap(), "2");
        assert_eq!(groups.children("/a"), ["b"]);
        let _ = fs::remove_dir_all(scratch);
    }
}
