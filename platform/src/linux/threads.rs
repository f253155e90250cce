//! Threads of this process that wait in the kernel for something that no signal ends, as for a disk or a server that does not answer.
//!
//! What always holds: a thread that only works hard is told from one that does not move, by how often it has waited. Nothing here waits.
//!
//! Leaves to others: what may not be begun while there is such a thread.

use std::fs;

/// A thread that waits where no signal reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckThread {
    /// Its name.
    pub name: String,
    id: u32,
    /// How often it has waited since it began: two looks that find the same number find it in the same wait.
    waits: u64,
}

/// Most threads that are looked at: ten times what an agent has.
const MOST: usize = 1000;

/// Those that wait so now. One that is found again, and is equal, has not moved.
#[must_use]
pub fn stuck_threads() -> Vec<StuckThread> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().take(MOST);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| stuck_in(id, &fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?))
        .collect()
}

fn stuck_in(id: u32, status: &str) -> Option<StuckThread> {
    let field = |name: &str| {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim())
    };
    if !field("State:")?.starts_with('D') {
        return None;
    }
    let waits = field("voluntary_ctxt_switches:")?.parse().ok()?;
    Some(StuckThread { name: field("Name:")?.to_owned(), id, waits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wait_without_signals_is_stuck() {
        let status = |state: &str| {
            format!("Name:\tcontainers\nState:\t{state}\nTgid:\t1\nvoluntary_ctxt_switches:\t17\n")
        };
        let found = stuck_in(4, &status("D (disk sleep)")).expect("stuck");
        assert_eq!(found, StuckThread { name: "containers".into(), id: 4, waits: 17 });
        assert_eq!(stuck_in(4, &status("S (sleeping)")), None);
        assert_eq!(stuck_in(4, "State:\tD (disk sleep)\n"), None);
        assert!(stuck_threads().iter().all(|thread| !thread.name.is_empty()));
    }
}
