//! The resource usage of the machine and of processes and files on it: processor time, memory, file systems,
//! network interfaces.
//!
//! Always holds: each call reads a few small files; a value that cannot be read or makes no sense is absent,
//! and not zero. Counters start at the machine's boot, or when the measured object began.
//!
//! Leaves to others: rates, and the form of reports.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use super::{Roots, open_fact, read_up_to};

/// Longest file that is read here: `/proc/stat` has a line for each processor and interrupt, `/proc/net/dev`
/// one for each interface, of which a node has one for each pod.
const FILE_BYTES: usize = 1024 * 1024;
/// Most interfaces that are examined.
const INTERFACES: usize = 4096;
/// The unit of `/proc/stat`: the kernel's `USER_HZ`, which is 100 on every architecture that this program is
/// built for.
const TICK_MILLIS: u64 = 10;
/// The fields of the first line of `/proc/stat` that count as work: user, nice, system, irq, softirq. Time of
/// guests is already part of user.
const WORK: [usize; 5] = [1, 2, 3, 6, 7];

/// Memory in bytes, and faults since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Includes the kernel's cache of files.
    pub used: u64,
    /// Excludes cached files that were not used lately.
    pub working_set: u64,
    /// Bytes below the limit; `None` without a limit.
    pub available: Option<u64>,
    /// Memory that is not a cache of files.
    pub anonymous: Option<u64>,
    /// Page faults: all, and those that waited for a disk.
    pub faults: Option<u64>,
    pub major_faults: Option<u64>,
    /// Bytes swapped out, and bytes that may still be.
    pub swapped: Option<u64>,
    pub swap_available: Option<u64>,
}

/// A file system's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystemUse {
    pub capacity_bytes: u64,
    /// Bytes for an ordinary user.
    pub available_bytes: u64,
    pub used_bytes: u64,
    /// `None` if it has no such limit.
    pub inodes: Option<InodeUse>,
}

/// A file system's inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeUse {
    pub all: u64,
    pub free: u64,
}

/// The traffic of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceUse {
    pub name: String,
    pub received_bytes: u64,
    pub receive_errors: u64,
    pub sent_bytes: u64,
    pub send_errors: u64,
}

/// The beginning of a file; an unreadable one is empty.
fn text(path: &Path) -> String {
    let bytes = open_fact(path).and_then(|file: File| read_up_to(file, FILE_BYTES)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The work time of all the machine's processors together.
pub fn processor_time(roots: &Roots) -> Option<Duration> {
    processors_of(&text(&roots.proc.join("stat")))
}

fn processors_of(stat: &str) -> Option<Duration> {
    let fields: Vec<&str> = stat.lines().find(|line| line.starts_with("cpu "))?.split_whitespace().collect();
    let ticks = WORK.into_iter().map(|at| fields.get(at)?.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks.checked_mul(TICK_MILLIS)?))
}

/// When the machine booted, in seconds since 1970, by its present clock.
pub fn booted_at(roots: &Roots) -> Option<i64> {
    let stat = text(&roots.proc.join("stat"));
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The machine's memory.
pub fn memory_use(roots: &Roots) -> Option<MemoryUse> {
    memory_of(&text(&roots.proc.join("meminfo")), &text(&roots.proc.join("vmstat")))
}

/// The available memory of the machine; `None` if it is unknown.
pub(super) fn memory_available(roots: &Roots) -> Option<u64> {
    memory_of(&text(&roots.proc.join("meminfo")), "")?.available
}

/// Counts as the kubelet does for a whole machine, under both versions of control groups: used are anonymous
/// memory and all that the kernel caches of files and holds for file systems in memory (cAdvisor's `anon` and
/// `file` of the root group, which are these fields). That leaves out the memory of the kernel itself, of
/// zram and of drivers. If the kernel's `MemAvailable` is lower than the result, it is used instead, so that
/// no memory is reported that programs cannot get.
fn memory_of(meminfo: &str, vmstat: &str) -> Option<MemoryUse> {
    let kib = |name| Some(word_after(meminfo, name)?.saturating_mul(1024));
    let all = kib("MemTotal:")?;
    let files = ["Cached:", "Buffers:", "SwapCached:"].map(|name| kib(name).unwrap_or(0));
    let anonymous = kib("AnonPages:")?;
    let used = files.into_iter().fold(anonymous, u64::saturating_add).min(all);
    let working_set = used.saturating_sub(kib("Inactive(file):")?);
    let left = all.saturating_sub(working_set);
    let (swap, swap_free) = (kib("SwapTotal:"), kib("SwapFree:"));
    Some(MemoryUse {
        used,
        working_set,
        available: Some(kib("MemAvailable:").map_or(left, |available| available.min(left))),
        anonymous: Some(anonymous),
        faults: word_after(vmstat, "pgfault"),
        major_faults: word_after(vmstat, "pgmajfault"),
        swapped: swap.zip(swap_free).map(|(all, free)| all.saturating_sub(free)),
        swap_available: swap_free,
    })
}

/// The number that follows a word at the beginning of a line.
pub(crate) fn word_after(text: &str, word: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == word).then(|| words.next()?.parse().ok())?)
}

/// The usage of the file system that contains a path.
pub fn file_system_use(path: &Path) -> Option<FileSystemUse> {
    let found = statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(wide(found.fragment_size()));
    let (all, free) = (wide(found.blocks()), wide(found.blocks_free()));
    let inodes = InodeUse { all: wide(found.files()), free: wide(found.files_free()) };
    Some(FileSystemUse {
        capacity_bytes: bytes(all),
        available_bytes: bytes(wide(found.blocks_available())),
        used_bytes: bytes(all.saturating_sub(free)),
        inodes: Some(inodes).filter(|inodes| inodes.all > 0),
    })
}

// widths differ between 32 and 64 bit targets
fn wide(count: impl Into<u64>) -> u64 {
    count.into()
}

/// The interfaces of a process's network except its loopback, in the kernel's order.
pub fn interfaces(roots: &Roots, pid: &str) -> Vec<InterfaceUse> {
    interfaces_of(&text(&roots.proc.join(pid).join("net/dev")))
}

fn interfaces_of(table: &str) -> Vec<InterfaceUse> {
    let one = |line: &str| {
        // a long number directly follows the colon after the name
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().map_while(|count| count.parse().ok()).collect();
        let at = |index: usize| counts.get(index).copied();
        Some(InterfaceUse {
            name: name.trim().to_owned(),
            received_bytes: at(0)?,
            receive_errors: at(2)?,
            sent_bytes: at(8)?,
            send_errors: at(10)?,
        })
    };
    table
        .lines()
        .skip(2)
        .take(INTERFACES)
        .filter_map(one)
        .filter(|interface| interface.name != "lo")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_processors_is_summed_without_idling() {
        let stat = "cpu  100 20 30 99999 9999 4 6 7 50 1\ncpu0 1 1 1 1\nbtime 1793491200\n";
        assert_eq!(processors_of(stat), Some(Duration::from_millis(1600)));
        let years = format!("cpu  {} 0 0 0 0 0 0\n", 86_400_u64 * 100 * 3650 * 64);
        assert_eq!(processors_of(&years), Some(Duration::from_secs(86_400 * 3650 * 64)));
        for odd in ["", "cpu  1 2\n", "cpu  a b c d e f g h\n", "cpu0 1 2 3 4 5 6 7 8\n"] {
            assert_eq!(processors_of(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn memory_is_what_the_kubelet_counts() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 500 kB\nBuffers: 30 kB\nCached: 460 kB\nSwapCached: 10 kB\n\
                       Inactive: 9 kB\nInactive(file): 100 kB\nAnonPages: 150 kB\nSwapTotal: 20 kB\nSwapFree: 5 kB\n";
        let found = memory_of(meminfo, "pgfault 7\npgmajfault 2\n").unwrap();
        let kib = |count: u64| count * 1024;
        assert_eq!((found.used, found.working_set, found.available), (kib(650), kib(550), Some(kib(450))));
        assert_eq!((found.anonymous, found.faults, found.major_faults), (Some(kib(150)), Some(7), Some(2)));
        assert_eq!((found.swapped, found.swap_available), (Some(kib(15)), Some(kib(5))));
        // programs cannot get the kernel's own memory, and the kernel takes that into account
        let available = |text: &str| memory_of(text, "").unwrap().available;
        assert_eq!(available(&meminfo.replace("500 kB", "440 kB")), Some(kib(440)));
        assert_eq!(
            available(&meminfo.replace("MemAvailable", "Other")),
            Some(kib(450)),
            "a kernel before 3.14"
        );
        let huge = meminfo.replace("460 kB", "18446744073709551615 kB");
        assert_eq!(
            memory_of(&huge, "").unwrap().working_set,
            kib(900),
            "what makes no sense overflows nothing"
        );
        for gone in ["MemTotal", "AnonPages", "Inactive(file)"] {
            assert_eq!(
                memory_of(&meminfo.replace(gone, "Other"), ""),
                None,
                "without {gone}: unknown is not zero"
            );
        }
    }

    #[test]
    fn interfaces_are_read_by_their_columns() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes\n    lo: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0\n\
                     eth0:18446744073709551615 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n odd: 1 2\nnone\n";
        let found = interfaces_of(table);
        let expect = InterfaceUse {
            name: "eth0".into(),
            received_bytes: u64::MAX,
            receive_errors: 3,
            sent_bytes: 9,
            send_errors: 11,
        };
        assert_eq!(found, [expect]);
    }

    #[test]
    fn this_machine_has_figures() {
        let roots = Roots::default();
        assert!(processor_time(&roots).is_some_and(|time| time > Duration::ZERO));
        assert!(memory_use(&roots).is_some_and(|memory| memory.working_set > 0));
        let disk = file_system_use(Path::new("/")).unwrap();
        assert!(disk.used_bytes + disk.available_bytes <= disk.capacity_bytes, "{disk:?}");
        assert!(booted_at(&roots).is_some_and(|at| at > 1_000_000_000));
        assert_eq!(file_system_use(Path::new("/no/such/place")), None);
    }
}
