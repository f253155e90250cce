//! The memory that this process may use: the machine's, or less if a control group limits it.
//!
//! Always holds: an unreadable or invalid file sets no limit. The machine's size is obtained by a system
//! call, because a service may run without /proc/meminfo.

use std::fs;
use std::path::Path;

use nix::sys::sysinfo::sysinfo;

use super::Roots;

/// Longest file that is read.
const FILE_BYTES: usize = 64 * 1024;

/// The most bytes of memory that this process can get: the smallest limit of its control groups and those
/// above them, version 1 or 2, and the machine's memory.
pub fn memory_limit(roots: &Roots) -> u64 {
    let machine = sysinfo().map_or(u64::MAX, |info| info.ram_total());
    let text = fs::read_to_string(roots.proc.join("self/cgroup")).unwrap_or_default();
    groups_limit(&text, &roots.sys.join("fs/cgroup")).map_or(machine, |limit| limit.min(machine))
}

/// The smallest limit of the groups listed in `/proc/self/cgroup`, below the place where they are mounted.
fn groups_limit(groups: &str, mounted: &Path) -> Option<u64> {
    let of = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => (mounted.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (mounted.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let below = Path::new(path.trim_start_matches('/'));
        // the last one is the root, which is where a container sees its own group
        below.ancestors().filter_map(|group| number(&root.join(group).join(file))).min()
    };
    groups.lines().filter_map(of).min()
}

/// The limit in a file; `None` for `max` and for anything but a number.
fn number(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok().filter(|text| text.len() <= FILE_BYTES)?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_limit_of_all_groups_counts() {
        let place = std::env::temp_dir().join(format!("kedge-memory-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = place.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("a/memory.max", "5000\n");
        put("a/b/memory.max", "max\n");
        put("memory/x/memory.limit_in_bytes", "700\n");
        put("memory.max", "9000\n");
        let check = |groups: &str, expect: Option<u64>| {
            assert_eq!(groups_limit(groups, &place), expect, "{groups}");
        };
        check("0::/a/b\n", Some(5000));
        check("0::/\n", Some(9000));
        check("0::/elsewhere\n", Some(9000));
        check("3:cpu,memory:/x\n1:cpu:/a\n0::/a\n", Some(700));
        check("3:cpu:/a\nnonsense\n", None);
        let roots = Roots { proc: place.join("none"), ..Roots::default() };
        assert_eq!(memory_limit(&roots), sysinfo().unwrap().ram_total());
        fs::remove_dir_all(&place).unwrap();
    }
}
