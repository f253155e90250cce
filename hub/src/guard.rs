//! Feeds systemd's watchdog while every loop of the hub makes progress.
//!
//! Owns: the list of watched loops, and the thread that checks them. Always holds: the ping is withheld only
//! for a fault that a restart may cure; it is not withheld while the disk has an unfinished commit, because a
//! restart would only meet the same stalled disk. Leaves to others: the arithmetic
//! (`kedge_platform::Watchdog`), reporting progress (the loops).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kedge_platform::{Health, Progress, Supervisor, Watchdog};
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::Hub;
use crate::store::health::STALL;

/// Time between two checks, unless the supervisor wants pings more often.
const PERIOD: Duration = Duration::from_secs(5);
/// One turn of a loop that only computes takes a few seconds at most, even for the largest list on the
/// smallest board.
pub(crate) const TURN: Duration = Duration::from_secs(30);

/// The loops of one hub.
#[derive(Debug)]
pub struct Loops(Mutex<Watchdog>);

impl Default for Loops {
    fn default() -> Loops {
        Loops(Mutex::new(Watchdog::new(PERIOD)))
    }
}

impl Loops {
    /// Adds a loop, which reports its progress by the returned handle.
    pub(crate) fn watch(&self, name: &'static str) -> Progress {
        self.watchdog().watch(name, TURN)
    }

    fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        // a panic leaves the list valid, because each entry is
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stalled(&self, now: Duration) -> Vec<String> {
        match self.watchdog().check(now) {
            Health::Well => Vec::new(),
            Health::Stalled(loops) => loops.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Reports that a loop waits when the loop ends or this value is dropped, because an ended loop cannot stall.
#[derive(Debug)]
pub(crate) struct Turns(Progress);

impl Turns {
    pub(crate) fn new(progress: Progress) -> Turns {
        Turns(progress)
    }

    /// See [`Progress::busy`].
    pub(crate) fn busy(&self) {
        self.0.busy();
    }

    /// See [`Progress::idle`].
    pub(crate) fn idle(&self) {
        self.0.idle();
    }

    /// See [`Progress::idle_for`].
    pub(crate) fn idle_for(&self, wait: Duration) {
        self.0.idle_for(wait);
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.0.idle();
    }
}

/// Reads the progress of the runtime's threads from its counters: a thread that is held by a request could
/// not report that itself.
#[derive(Debug)]
struct Workers {
    metrics: RuntimeMetrics,
    /// For each thread: its token, and its counters when they last changed.
    seen: Vec<(Progress, (u64, Duration))>,
}

impl Workers {
    fn new(runtime: &Handle, loops: &Loops) -> Workers {
        let metrics = runtime.metrics();
        let seen = (0..metrics.num_workers())
            .map(|_| (loops.watch("runtime thread"), (0, Duration::ZERO)))
            .collect();
        Workers { metrics, seen }
    }

    fn observe(&mut self) {
        for (worker, (progress, before)) in self.seen.iter_mut().enumerate() {
            let turns = self.metrics.worker_park_unpark_count(worker);
            let now = (turns, self.metrics.worker_total_busy_duration(worker));
            // an odd number of turns: the thread sleeps until there is work
            match turns % 2 == 1 {
                true => progress.idle(),
                false if now != *before => progress.busy(),
                false => {}
            }
            *before = now;
        }
    }
}

/// The result of a check, for the supervisor and the log.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Well,
    /// Some loops are stalled, and the disk explains it.
    Excused(Vec<String>),
    Stalled(Vec<String>),
}

fn verdict(stalled: Vec<String>, disk_stalls: bool) -> Verdict {
    match (stalled.is_empty(), disk_stalls) {
        (true, _) => Verdict::Well,
        (false, true) => Verdict::Excused(stalled),
        (false, false) => Verdict::Stalled(stalled),
    }
}

/// Starts the thread that checks the loops and pings, for as long as the process lives; starts no thread if
/// the supervisor expects no pings. Must be called inside the runtime.
///
/// # Errors
/// The system could not start a thread.
pub fn start(hub: &Hub, supervisor: Arc<dyn Supervisor>) -> std::io::Result<()> {
    let Some(patience) = supervisor.watchdog_period() else { return Ok(()) };
    let (loops, health) = (Arc::clone(hub.loops()), Arc::clone(hub.writer().health()));
    let mut workers = Workers::new(&Handle::current(), &loops);
    let period = PERIOD.min(patience / 3);
    let began = Instant::now();
    let check = move || {
        let mut before = Verdict::Well;
        loop {
            workers.observe();
            let found = verdict(loops.stalled(began.elapsed()), health.oldest_unfinished_commit() >= STALL);
            if std::mem::discriminant(&found) != std::mem::discriminant(&before) {
                tell(&found);
            }
            if !matches!(found, Verdict::Stalled(_)) {
                supervisor.watchdog_ping();
            }
            before = found;
            std::thread::sleep(period);
        }
    };
    std::thread::Builder::new().name("guard".to_owned()).stack_size(256 * 1024).spawn(check).map(drop)
}

fn tell(verdict: &Verdict) {
    match verdict {
        Verdict::Well => log::warn!("all loops move again"),
        Verdict::Excused(loops) => {
            log::warn!("{}; the disk stalls, so this is not the end", loops.join("; "))
        }
        Verdict::Stalled(loops) => log::error!("{}; withholding the watchdog's ping", loops.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LOOP: &str = "loop test did not move for 31 s, its limit is 30 s";

    #[test]
    fn disk_that_stalls_is_no_reason_for_a_restart() {
        let stalled = || vec![LOOP.to_owned()];
        assert_eq!(verdict(Vec::new(), false), Verdict::Well);
        assert_eq!(verdict(Vec::new(), true), Verdict::Well);
        assert_eq!(verdict(stalled(), true), Verdict::Excused(stalled()));
        assert_eq!(verdict(stalled(), false), Verdict::Stalled(stalled()));
    }

    /// Checks each second from `from` on, as the thread does; returns the names of the loops that are stalled
    /// after `secs`.
    fn after(loops: &Loops, mut observe: impl FnMut(), from: u64, secs: u64) -> Vec<String> {
        let mut found = Vec::new();
        for second in from..=from + secs {
            observe();
            found = loops.stalled(Duration::from_secs(second));
        }
        found
    }

    #[test]
    fn loop_that_stands_still_is_named_and_one_that_ended_is_not() {
        let loops = Loops::default();
        let turns = Turns::new(loops.watch("test"));
        turns.busy();
        assert_eq!(after(&loops, || (), 0, 30), [""; 0]);
        assert_eq!(after(&loops, || (), 31, 0), [LOOP]);
        turns.idle();
        assert_eq!(after(&loops, || (), 32, 100), [""; 0]);
        turns.idle_for(Duration::from_secs(5));
        assert_eq!(after(&loops, || (), 133, 30), [""; 0]);
        assert_eq!(after(&loops, || (), 164, 10).len(), 1, "a wake-up that did not come");
        drop(turns);
        assert_eq!(after(&loops, || (), 175, 100), [""; 0]);
    }

    #[test]
    fn blocked_runtime_thread_is_seen_and_a_sleeping_one_is_not() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let loops = Loops::default();
        let mut workers = Workers::new(runtime.handle(), &loops);
        let metrics = runtime.metrics();
        let sleeping = || (0..2).filter(|worker| metrics.worker_park_unpark_count(*worker) % 2 == 1).count();
        let wait_until = |count| {
            while sleeping() != count {
                std::thread::yield_now();
            }
        };
        wait_until(2);
        assert_eq!(after(&loops, || workers.observe(), 0, 100), [""; 0]);
        let ((begun, begins), (release, released)) = (channel(), channel::<()>());
        runtime.spawn(async move {
            begun.send(()).unwrap();
            released.recv()
        });
        begins.recv().unwrap();
        wait_until(1);
        let found = after(&loops, || workers.observe(), 101, 40);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("loop runtime thread did not move for "), "{found:?}");
        release.send(()).unwrap();
        wait_until(2);
        assert_eq!(after(&loops, || workers.observe(), 142, 100), [""; 0]);
    }
}
