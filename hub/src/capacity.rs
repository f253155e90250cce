//! How much load the hub accepts: its limits, computed from the memory, file descriptors and processors that
//! it may use.
//!
//! Always holds: the limits follow from three numbers by one rule ([`Capacity::of`]), which
//! docs/reference/limits.md explains; all limits used up at once still fit into the memory. Left to others:
//! which caller gets which share (`server::limits`).

use std::fmt;
use std::fs;
use std::path::Path;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Memory assumed where the machine's size cannot be read.
const UNKNOWN_MEMORY: u64 = 512 * MIB;
/// Descriptors assumed where the process cannot read its limit; every system gives more.
const POSIX_DESCRIPTORS: u64 = 1024;
/// Descriptors that are not for connections of clients: the store, logs, the hub's connections to itself,
/// connections being refused.
const OTHER_DESCRIPTORS: u64 = 512;
/// Memory of one connection with a watch on it, and an occasional request.
const CONNECTION_BYTES: u64 = 24 * KIB;
/// Memory of one answer that is being compressed: the compressor's window and tables, and the parts before
/// and after it.
const LONG_ANSWER_BYTES: u64 = 512 * KIB;
/// Memory of one session while bytes pass: pipes and TLS records, both ways.
const SESSION_BYTES: u64 = 64 * KIB;
/// Most unfinished handshakes: a fleet that reconnects, at a few milliseconds each.
const HANDSHAKES: u64 = 2048;
/// Most requests whose answers are being made.
const REQUESTS: u64 = 2048;

/// The resources that the hub may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// The machine's memory, or the limit of a control group above the hub if that is lower.
    pub memory_bytes: u64,
    /// File descriptors of the process.
    pub descriptors: u64,
    pub processors: usize,
}

impl Machine {
    /// Reads this machine's resources. Raises the process's limit of descriptors as far as permitted.
    pub fn read() -> Machine {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let own_group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let memory = kedge_platform::linux::total_memory().ok();
        let limit = group_of(&own_group).and_then(|group| group_limit(Path::new("/sys/fs/cgroup"), group));
        let descriptors = kedge_platform::linux::raise_descriptor_limit().unwrap_or(POSIX_DESCRIPTORS);
        let memory_bytes = memory.into_iter().chain(limit).min().unwrap_or(UNKNOWN_MEMORY);
        Machine { memory_bytes, descriptors, processors }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { memory_bytes, descriptors, processors } = self;
        let memory = memory_bytes / MIB;
        write!(out, "{memory} MiB of memory, {descriptors} file descriptors, {processors} processors")
    }
}

/// The path of a process's control group (version 2), from its `/proc/PID/cgroup`.
fn group_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// The least memory limit of a control group and those above it.
fn group_limit(root: &Path, group: &str) -> Option<u64> {
    let own = root.join(group);
    let groups = own.ancestors().take_while(|path| path.starts_with(root));
    let files = groups.flat_map(|group| [group.join("memory.high"), group.join("memory.max")]);
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// The limits of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Threads that answer requests.
    pub workers: usize,
    /// Threads that read large bodies and write large answers.
    pub large_workers: usize,
    /// Connections after their handshake; each may carry one watch.
    pub connections: usize,
    /// Connections in their handshake.
    pub handshakes: usize,
    /// Requests whose answers are being made.
    pub requests: usize,
    /// Bytes of bodies that are being received or worked on.
    pub body_bytes: usize,
    /// Bytes that wait for slow readers: changes, and old versions of objects.
    pub backlog_bytes: usize,
    /// Long answers that are being rendered or compressed.
    pub long_answers: usize,
    /// Sessions with nodes.
    pub sessions: usize,
}

impl Capacity {
    /// A quarter of the memory is for connections, a sixteenth each for bodies, for readers that fall behind
    /// and for sessions, a sixty-fourth for answers that are being compressed. The rest is for the objects
    /// themselves. Half of the processors handle large bodies and answers.
    pub fn of(machine: &Machine) -> Capacity {
        let Machine { memory_bytes, descriptors, processors } = *machine;
        let handshakes = HANDSHAKES.min(descriptors / 8);
        let connections = descriptors
            .saturating_sub(handshakes)
            .saturating_sub(OTHER_DESCRIPTORS.min(descriptors / 2))
            .min(memory_bytes / 4 / CONNECTION_BYTES);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Capacity {
            // two on a machine with one processor: the system then takes turns between a long request and a
            // short one
            workers: processors.max(2),
            large_workers: (processors / 2).max(1),
            connections: size(connections),
            handshakes: size(handshakes),
            requests: size(REQUESTS),
            body_bytes: size((memory_bytes / 16).clamp(16 * MIB, 512 * MIB)),
            backlog_bytes: size((memory_bytes / 16).clamp(16 * MIB, 512 * MIB)),
            long_answers: size((memory_bytes / 64 / LONG_ANSWER_BYTES).clamp(8, 256)),
            sessions: size((memory_bytes / 16 / SESSION_BYTES).clamp(64, 512)),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capacity { workers, large_workers, connections, handshakes, .. } = self;
        let mib = |bytes: usize| bytes as u64 / MIB;
        write!(
            out,
            "{connections} connections, {handshakes} handshakes, {} MiB of bodies, {} MiB of watch backlog, {workers} threads and {large_workers} for large bodies",
            mib(self.body_bytes),
            mib(self.backlog_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_follows_memory_and_descriptors() {
        let check = |memory_mib: u64, descriptors: u64, processors: usize, expect: [usize; 8]| {
            let machine = Machine { memory_bytes: memory_mib * MIB, descriptors, processors };
            let capacity = Capacity::of(&machine);
            let found = [
                capacity.connections,
                capacity.handshakes,
                capacity.body_bytes / (MIB as usize),
                capacity.backlog_bytes / (MIB as usize),
                capacity.long_answers,
                capacity.sessions,
                capacity.workers,
                capacity.large_workers,
            ];
            assert_eq!(found, expect, "{machine:?}");
        };
        check(512, 524_288, 1, [5461, 2048, 32, 32, 16, 512, 2, 1]);
        check(1024, 524_288, 2, [10_922, 2048, 64, 64, 32, 512, 2, 1]);
        check(8192, 524_288, 4, [87_381, 2048, 512, 512, 256, 512, 4, 2]);
        check(65_536, 524_288, 4, [521_728, 2048, 512, 512, 256, 512, 4, 2]);
        check(8192, 65_536, 4, [62_976, 2048, 512, 512, 256, 512, 4, 2]);
        check(8192, 1024, 4, [384, 128, 512, 512, 256, 512, 4, 2]);
        check(8192, 256, 4, [96, 32, 512, 512, 256, 512, 4, 2]);
        check(8192, 0, 4, [0, 0, 512, 512, 256, 512, 4, 2]);
        check(64, 65_536, 1, [682, 2048, 16, 16, 8, 64, 2, 1]);
    }

    /// An operator finds in the log which limits of docs/reference/limits.md apply on this machine.
    #[test]
    fn limits_are_shown_with_what_they_follow_from() {
        let machine = Machine { memory_bytes: 1024 * MIB, descriptors: 65_536, processors: 2 };
        assert_eq!(machine.to_string(), "1024 MiB of memory, 65536 file descriptors, 2 processors");
        assert_eq!(
            Capacity::of(&machine).to_string(),
            "10922 connections, 2048 handshakes, 64 MiB of bodies, 64 MiB of watch backlog, 2 threads and 1 for large bodies"
        );
    }

    #[test]
    fn memory_limit_is_the_least_of_all_groups() {
        assert_eq!(group_of("1:name=x:/y\n0::/system.slice/hub.service\n"), Some("system.slice/hub.service"));
        let root = kedge_rig::Scratch::new("hub-capacity").unwrap();
        let write = |group: &str, file: &str, text: &str| {
            let directory = root.path().join(group);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(file), text).unwrap();
        };
        assert_eq!(group_limit(root.path(), "a/b"), None);
        write("a/b", "memory.max", "max\n");
        assert_eq!(group_limit(root.path(), "a/b"), None);
        write("a", "memory.max", "4096\n");
        write("a/b", "memory.high", "8192\n");
        assert_eq!(group_limit(root.path(), "a/b"), Some(4096), "the one above allows less");
        assert_eq!(group_limit(root.path(), "c"), None);
    }
}
