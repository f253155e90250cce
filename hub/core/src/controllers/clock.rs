//! Whether the wall clock can be trusted when an object is about to be deleted because of its age: a deletion
//! cannot be undone.
//!
//! Always holds: for an hour after the wall clock jumped, or after a start that finds it far from the newest
//! time in the store, nothing is deleted because of its age. Pure: times are given.

use std::time::Duration;

use time::OffsetDateTime;

/// A clock that advanced evenly for so long is trusted, whatever time it shows: a hub may have been off for
/// years.
const STEADY: Duration = Duration::from_secs(60 * 60);
/// A clock advanced evenly if it differs by no more than this from the monotonic one.
const EVEN: time::Duration = time::Duration::minutes(1);
/// How far a clock may be ahead of the newest time in the store: the hub may have been off for a while.
const AGREES: time::Duration = time::Duration::hours(1);

/// See the module.
#[derive(Debug)]
pub struct Clock {
    /// The newest time in the store at the start, and when that was.
    newest: Option<OffsetDateTime>,
    started: Duration,
    /// Since when the wall clock has advanced evenly, by both clocks.
    even: (Duration, OffsetDateTime),
}

impl Clock {
    /// At the start: the monotonic clock, the wall clock, and the newest time that the hub itself left in the
    /// store.
    pub fn new(running: Duration, wall: OffsetDateTime, newest: Option<OffsetDateTime>) -> Clock {
        Clock { newest, started: running, even: (running, wall) }
    }

    /// Whether ages by the wall clock count now.
    pub fn is_believed(&mut self, running: Duration, wall: OffsetDateTime) -> bool {
        let (since, from) = self.even;
        let steady = running.saturating_sub(since);
        let jumped = (wall - from) - time::Duration::try_from(steady).unwrap_or(time::Duration::MAX);
        if jumped.abs() > EVEN {
            self.even = (running, wall);
        } else if steady >= STEADY {
            return true;
        }
        let run =
            time::Duration::try_from(running.saturating_sub(self.started)).unwrap_or(time::Duration::MAX);
        self.newest.is_some_and(|newest| {
            let ahead = wall - newest;
            ahead >= -EVEN && ahead <= AGREES.saturating_add(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-21 12:00:00 UTC);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn clock_that_disagrees_is_believed_after_an_hour() {
        for newest in [None, Some(NOW - time::Duration::days(30)), Some(NOW + time::Duration::days(1))] {
            let mut clock = Clock::new(secs(5), NOW, newest);
            for (run, believed) in [(0, false), (3599, false), (3600, true), (9999, true)] {
                let wall = NOW + time::Duration::seconds(run);
                assert_eq!(
                    clock.is_believed(secs(5 + run.cast_unsigned()), wall),
                    believed,
                    "{newest:?} {run}"
                );
            }
        }
    }

    #[test]
    fn clock_that_agrees_is_believed_at_once() {
        for newest in [NOW, NOW + time::Duration::seconds(50), NOW - time::Duration::minutes(59)] {
            assert!(Clock::new(secs(5), NOW, Some(newest)).is_believed(secs(5), NOW), "{newest}");
        }
        // also after weeks, when it was set by a minute or more
        let mut clock = Clock::new(secs(0), NOW, Some(NOW));
        let weeks = time::Duration::days(21);
        assert!(clock.is_believed(weeks.unsigned_abs(), NOW + weeks + time::Duration::minutes(5)));
    }

    #[test]
    fn clock_that_jumps_is_not_believed() {
        let (mut clock, years) = (Clock::new(secs(0), NOW, Some(NOW)), time::Duration::days(30 * 365));
        assert!(clock.is_believed(secs(9), NOW));
        assert!(!clock.is_believed(secs(10), NOW + years));
        assert!(!clock.is_believed(secs(3600), NOW + years + time::Duration::seconds(3590)));
        // and is trusted once it is right again
        assert!(clock.is_believed(secs(3700), NOW + time::Duration::seconds(3700)));
        // after an hour it would be trusted
        assert!(!clock.is_believed(secs(4000), NOW + years));
        assert!(clock.is_believed(secs(7600), NOW + years + time::Duration::HOUR));
    }
}
