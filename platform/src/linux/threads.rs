//! Threads of this process that wait in the kernel for something that no signal interrupts, such as a disk or
//! a server that does not answer.
//!
//! Always holds: the number of its waits distinguishes a thread that works hard from one that is stuck.
//! Nothing here blocks.
//!
//! Leaves to others: the acts that must wait while there is such a thread.

use std::fs;

/// A thread in a wait that signals cannot interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckThread {
    /// Its name.
    pub name: String,
    id: u32,
    /// How often it has waited since it began: if two checks find the same number, it is in the same wait.
    waits: u64,
}

/// Most threads that are examined: ten times as many as an agent has.
const MOST: usize = 1000;

/// The threads that wait now. A thread that a later call returns as an equal value has not moved.
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
