//! Clocks that the test moves.
//!
//! Always holds: `monotonic` never goes back within a boot; `wall` may be set to anything; a reboot gives
//! another boot id and begins `monotonic` at zero. Clones show the same time; like a real program's, a
//! `FakeClocks` keeps the boot id it was made with.
//!
//! Leaves to others: timers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::clocks::Clocks;

/// Clocks moved by the test.
#[derive(Clone, Debug)]
pub struct FakeClocks {
    time: Arc<Mutex<Time>>,
    boot_id: String,
}

#[derive(Debug)]
struct Time {
    monotonic: Duration,
    wall: SystemTime,
    boot: u64,
}

impl FakeClocks {
    /// First boot, one second after it began, at the date `wall`.
    pub fn new(wall: SystemTime) -> Self {
        let time = Time { monotonic: Duration::from_secs(1), wall, boot: 1 };
        Self { time: Arc::new(Mutex::new(time)), boot_id: boot_name(1) }
    }

    /// Other clocks in the same boot, which start with the same time.
    pub fn fork(&self) -> Self {
        let Time { monotonic, wall, boot } = *self.time();
        Self { time: Arc::new(Mutex::new(Time { monotonic, wall, boot })), boot_id: self.boot_id.clone() }
    }

    fn time(&self) -> MutexGuard<'_, Time> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time();
        time.monotonic += by;
        time.wall += by;
    }

    /// Sets the date, to any year; `monotonic` does not change.
    pub fn set_wall(&self, wall: SystemTime) {
        self.time().wall = wall;
    }

    /// The machine boots again: the clocks of the next program run. `wall` is kept; for a board without a
    /// battery set another date with `set_wall`. Earlier clones keep the old boot id and must not be used any
    /// more.
    pub fn reboot(&self) -> Self {
        let mut time = self.time();
        time.boot += 1;
        time.monotonic = Duration::from_secs(1);
        Self { time: Arc::clone(&self.time), boot_id: boot_name(time.boot) }
    }
}

fn boot_name(boot: u64) -> String {
    format!("00000000-0000-4000-8000-{boot:012}")
}

impl Clocks for FakeClocks {
    fn monotonic(&self) -> Duration {
        self.time().monotonic
    }

    fn wall(&self) -> SystemTime {
        self.time().wall
    }

    fn boot_id(&self) -> &str {
        &self.boot_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_date_moves_only_the_wall_clock() {
        let clocks = FakeClocks::new(SystemTime::UNIX_EPOCH);
        clocks.advance(Duration::from_secs(60));
        clocks.set_wall(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        assert_eq!(clocks.monotonic(), Duration::from_secs(61));
        let next = clocks.reboot();
        assert_ne!(next.boot_id(), clocks.boot_id());
        assert_eq!(next.monotonic(), Duration::from_secs(1));
        assert_eq!(next.wall(), clocks.wall());
    }
}
