//! The pause of an agent that cannot start: usually its local configuration is invalid, and nobody is there
//! to mend it. Without a pause the service manager would start it every two seconds, 37,000 times a day, each
//! time with some lines in the journal, on flash.
//!
//! Always holds: the first refusal ends at once, so the operator who starts the service sees it; each further
//! one in a row waits twice as long, up to a minute, and ends soon after a file of the local configuration
//! was changed; a stop ends the pause. Without a service manager it does not pause. Leaves to others: why it
//! cannot start (`run`).

use crate::local_config::{self, Fingerprint};
use crate::options;
use crate::options::AgentOptions;
use kedge_platform::Supervisor as _;
use kedge_platform::linux::{self, NotifySocket};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// File in the run directory: the number of refusals in a row.
const COUNT: &str = "refused";
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Between two checks of the files of the local configuration.
const LOOK: Duration = Duration::from_secs(1);
/// Time that is requested from the service manager beyond the pause.
const BESIDE: Duration = Duration::from_secs(30);

/// The inputs of a start that matter here.
pub(crate) struct Start {
    run_dir: PathBuf,
    local: options::LocalFiles,
    found: Fingerprint,
}

impl Start {
    pub(crate) fn of(options: &AgentOptions) -> Self {
        let local = options.local.clone();
        Self { run_dir: options.places.run_dir.clone(), found: local_config::fingerprint(&local), local }
    }

    /// Waits, if this is not the first refusal in a row. Returns false, without a log line, if it is.
    pub(crate) fn pause(&self, why: &dyn Display) -> bool {
        let supervisor = NotifySocket::from_environment();
        if !supervisor.is_there() {
            return false;
        }
        let before = refusals(&self.run_dir);
        let _ = std::fs::write(self.run_dir.join(COUNT), (before.saturating_add(1)).to_string());
        let Some(pause) = pause_after(before) else { return false };
        log::error!(
            "{why}; refused {} times in a row, waiting {} s, or until its files are changed",
            before + 1,
            pause.as_secs()
        );
        crate::logging::flush();
        supervisor.extend_timeout(pause + BESIDE);
        supervisor
            .status(&format!("refuses to start: {}", why.to_string().lines().next().unwrap_or_default()));
        // a stop may end this process at once: it has nothing left to do
        linux::unblock_stop_signals();
        let end = Instant::now() + pause;
        while Instant::now() < end && local_config::fingerprint(&self.local) == self.found {
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// Records a start that succeeded: the next refusal is the first again.
pub(crate) fn forget(run_dir: &Path) {
    let _ = std::fs::remove_file(run_dir.join(COUNT));
}

fn refusals(run_dir: &Path) -> u32 {
    let count = linux::read_named_file(&run_dir.join(COUNT), 16).unwrap_or_default();
    String::from_utf8(count).ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// `None` for the first refusal.
fn pause_after(refusals: u32) -> Option<Duration> {
    let doublings = refusals.checked_sub(1)?.min(8);
    Some((FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute() {
        let pauses: Vec<u64> =
            (0..9).map(|before| pause_after(before).map_or(0, |it| it.as_secs())).collect();
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause_after(u32::MAX), Some(LONGEST_PAUSE));
        let day: u64 = 86_400 / (60 + 2);
        assert!(day < 1_400, "{day} starts a day");
    }

    #[test]
    fn refusals_are_counted_until_a_start_succeeds() {
        let scratch = kedge_rig::Scratch::new("refused").unwrap();
        assert_eq!(refusals(&scratch), 0);
        scratch.write(COUNT, "7");
        assert_eq!(refusals(&scratch), 7);
        scratch.write(COUNT, "what a damaged disk left");
        assert_eq!(refusals(&scratch), 0);
        forget(&scratch);
        assert!(!scratch.join(COUNT).exists());
    }
}
