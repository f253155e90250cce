//! Tracks which loops of the program make progress, and so whether the supervisor's watchdog may be pinged.
//!
//! Always holds: `check` does no IO and reads no clock; a loop that waits on purpose is never stalled; a loop
//! that promised to wake and did not is stalled; time during which the checker itself did not run does not
//! count against a loop (a stopped virtual machine or a starved board is no fault of one loop).
//!
//! Leaves to others: sending the ping, storing the stalled loop's name for the next start, and choosing
//! limits. Connectivity plays no role here: a network loop that waits for an answer makes progress by its own
//! timeout.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Low half of a token: the loop works.
const BUSY: u64 = 0;
/// Low half of a token: the loop waits for an unknown time.
const IDLE: u64 = u32::MAX as u64;

/// Held by one loop, which reports its progress with it. Clones share the same token.
#[derive(Clone, Debug)]
pub struct Progress {
    // High half: turns, wrapping. Low half: BUSY, IDLE, or the milliseconds for which the loop intends to
    // wait. One word, so that the checker never sees a new turn with an old state.
    token: Arc<AtomicU64>,
}

impl Progress {
    fn new() -> Self {
        Self { token: Arc::new(AtomicU64::new(IDLE)) }
    }

    fn set(&self, state: u64) {
        let turn = (self.token.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.token.store((turn << 32) | state, Ordering::Release);
    }

    /// Work was done, or is about to begin: from now on the loop's limit applies. Call it at least once a
    /// turn, and between the steps of long work.
    pub fn busy(&self) {
        self.set(BUSY);
    }

    /// The loop is about to wait for work, for any time: not stalled until the next `busy`.
    pub fn idle(&self) {
        self.set(IDLE);
    }

    /// The loop is about to wait at most `wait`: stalled if it still waits when the loop's limit has passed
    /// after that. For loops that know their next deadline; it detects a wake-up that never comes.
    pub fn idle_for(&self, wait: Duration) {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(IDLE);
        self.set(millis.clamp(1, IDLE - 1));
    }
}

/// Watches the loops of one process.
#[derive(Debug)]
pub struct Watchdog {
    longest_step: Duration,
    checked: Option<Duration>,
    loops: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    name: &'static str,
    limit: Duration,
    progress: Progress,
    seen: u64,
    unmoved: Duration,
}

/// A loop that made no progress within its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalledLoop {
    /// The name under which it was registered.
    pub name: &'static str,
    /// How long it has been stalled (beyond its announced wait).
    pub unmoved: Duration,
    /// The limit that it exceeded.
    pub limit: Duration,
}

impl fmt::Display for StalledLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unmoved, limit) = (self.unmoved.as_secs(), self.limit.as_secs());
        write!(f, "loop {} did not move for {unmoved} s, its limit is {limit} s", self.name)
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Every loop made progress within its limit or waits on purpose: ping.
    Well,
    /// These are stalled: withhold the ping.
    Stalled(Vec<StalledLoop>),
}

impl Health {
    /// The names of the stalled loops, empty when all is well.
    pub fn stalled_names(&self) -> Vec<&'static str> {
        match self {
            Health::Well => Vec::new(),
            Health::Stalled(loops) => loops.iter().map(|stalled| stalled.name).collect(),
        }
    }
}

impl Watchdog {
    /// A watchdog that will be checked about every `period`. A longer gap between two checks counts as twice
    /// that: the checker was starved or stopped, and so may the loops have been.
    pub fn new(period: Duration) -> Self {
        Self { longest_step: period * 2, checked: None, loops: Vec::new() }
    }

    /// Registers a loop; it counts as waiting until its first `busy`. `limit` is the longest time of one
    /// turn: seconds for loops that only compute, longer for one that waits for a disk.
    pub fn watch(&mut self, name: &'static str, limit: Duration) -> Progress {
        let progress = Progress::new();
        let watched =
            Watched { name, limit, progress: progress.clone(), seen: IDLE, unmoved: Duration::ZERO };
        self.loops.push(watched);
        progress
    }

    /// Checks every loop at the monotonic time `now`. Its only state is the result of the last check.
    pub fn check(&mut self, now: Duration) -> Health {
        let since = self.checked.map_or(Duration::ZERO, |checked| now.saturating_sub(checked));
        self.checked = Some(now);
        let step = since.min(self.longest_step);
        let stalled: Vec<_> = self.loops.iter_mut().filter_map(|watched| watched.check(step)).collect();
        if stalled.is_empty() { Health::Well } else { Health::Stalled(stalled) }
    }
}

impl Watched {
    fn check(&mut self, step: Duration) -> Option<StalledLoop> {
        let token = self.progress.token.load(Ordering::Acquire);
        if token != self.seen {
            self.seen = token;
            self.unmoved = Duration::ZERO;
            return None;
        }
        let allowed = match token & IDLE {
            IDLE => return None,
            BUSY => Duration::ZERO,
            millis => Duration::from_millis(millis),
        };
        self.unmoved = self.unmoved.saturating_add(step);
        let unmoved = self.unmoved.saturating_sub(allowed);
        (unmoved > self.limit).then_some(StalledLoop { name: self.name, unmoved, limit: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(2);

    enum Step {
        Busy,
        Idle,
        IdleFor(u64),
    }

    /// One loop with a limit of 10 s; each row is (second, what the loop does just before the check,
    /// stalled?).
    fn check(rows: &[(u64, Option<Step>, bool)]) {
        let mut watchdog = Watchdog::new(PERIOD);
        let progress = watchdog.watch("main", Duration::from_secs(10));
        for (second, step, stalled) in rows {
            match step {
                Some(Step::Busy) => progress.busy(),
                Some(Step::Idle) => progress.idle(),
                Some(Step::IdleFor(secs)) => progress.idle_for(Duration::from_secs(*secs)),
                None => {}
            }
            let found = watchdog.check(Duration::from_secs(*second));
            assert_eq!(!found.stalled_names().is_empty(), *stalled, "at second {second}: {found:?}");
        }
    }

    #[test]
    fn loop_that_never_began_is_waiting() {
        check(&[(0, None, false), (4, None, false), (4000, None, false)]);
    }

    #[test]
    fn busy_loop_is_stalled_after_its_limit() {
        check(&[
            (0, Some(Step::Busy), false),
            (4, None, false),
            (8, None, false),
            (10, None, false),
            (11, None, true),
            (13, Some(Step::Busy), false),
            (17, None, false),
        ]);
    }

    #[test]
    fn moving_loop_is_never_stalled() {
        let rows: Vec<_> = (0..500).map(|n| (n * 3, Some(Step::Busy), false)).collect();
        check(&rows);
    }

    #[test]
    fn waiting_loop_is_not_stalled() {
        let mut rows = vec![(0, Some(Step::Busy), false), (2, Some(Step::Idle), false)];
        rows.extend((2..500).map(|n| (n * 3, None, false)));
        check(&rows);
    }

    #[test]
    fn missed_wake_up_is_a_stall() {
        let mut rows = vec![(0, Some(Step::IdleFor(60)), false)];
        rows.extend((1..=35).map(|n| (n * 2, None, false)));
        rows.push((72, None, true));
        check(&rows);
    }

    #[test]
    fn suspended_checker_blames_no_loop() {
        check(&[
            (0, Some(Step::Busy), false),
            (3600, None, false),
            (7200, None, false),
            (10_800, None, true),
        ]);
    }

    #[test]
    fn endless_wait_is_clamped() {
        check(&[(0, Some(Step::IdleFor(0)), false), (4, None, false), (8, None, false), (12, None, true)]);
        check(&[
            (0, Some(Step::IdleFor(u64::MAX)), false),
            (4, None, false),
            (8, None, false),
            (12, None, false),
        ]);
    }

    #[test]
    fn stalled_loops_are_named_and_disk_has_longer() {
        let mut watchdog = Watchdog::new(PERIOD);
        let (main, disk) = (
            watchdog.watch("main", Duration::from_secs(10)),
            watchdog.watch("disk", Duration::from_secs(60)),
        );
        main.busy();
        disk.busy();
        let mut names_at = |second| watchdog.check(Duration::from_secs(second)).stalled_names();
        assert!((0..=5).all(|n| names_at(n * 2).is_empty()));
        assert_eq!(names_at(12), ["main"]);
        for second in 7..=30 {
            names_at(second * 2);
        }
        assert_eq!(names_at(62), ["main", "disk"]);
        main.busy();
        assert_eq!(names_at(64), ["disk"]);
    }

    #[test]
    fn stall_message_names_loop_and_time() {
        let stalled =
            StalledLoop { name: "disk", unmoved: Duration::from_secs(61), limit: Duration::from_secs(60) };
        assert_eq!(stalled.to_string(), "loop disk did not move for 61 s, its limit is 60 s");
    }
}
