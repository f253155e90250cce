//! Whether the wall clock can be trusted for a deletion of an old object, or for the refusal of a node whose
//! certificate expired long ago. Neither can be undone from afar.
//!
//! Always holds: a clock behind the newest time that the hub trusted, or more than 30 days ahead of it, is
//! wrong until it has advanced evenly for a week. Meanwhile no age counts. For an hour after the wall clock
//! jumped, or after a start that finds it far from the newest time, nothing is deleted because of its age.
//! Pure: times are given. Left to others: keeping the newest time over restarts, and showing the fault.

use std::fmt;
use std::time::Duration;

use kedge_api::{EARLIEST_NOW, LATEST_NOW};
use time::OffsetDateTime;

/// A clock that advanced evenly for so long is trusted to delete, if it is not wrong.
const STEADY: Duration = Duration::from_secs(60 * 60);
/// A clock that advanced evenly for so long is not wrong, whatever time it shows. The hub may have been off
/// for years, or the newest time may be of a day when the clock was wrong.
const SETTLED: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A clock advanced evenly if it differs by no more than this from the monotonic one.
const EVEN: time::Duration = time::Duration::minutes(1);
/// How far a clock may be ahead of the newest time for a deletion at once: the hub may have been off for a
/// while.
const AGREES: time::Duration = time::Duration::hours(1);
/// How far a clock may be ahead of the newest time and not be wrong.
const MOST_AHEAD: time::Duration = time::Duration::days(30);

/// Why a clock is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockFault {
    /// It shows a time before the newest one.
    Behind(time::Duration),
    /// It shows a time long after the newest one.
    Ahead(time::Duration),
}

impl fmt::Display for ClockFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (span, side) = match self {
            ClockFault::Behind(span) => (span, "behind"),
            ClockFault::Ahead(span) => (span, "ahead of"),
        };
        let days = span.whole_days();
        match days {
            0 => write!(out, "{} min", span.whole_minutes())?,
            _ => write!(out, "{days} days")?,
        }
        write!(
            out,
            " {side} the newest time in the store; nothing is deleted or refused by its age until it is right"
        )
    }
}

/// See the module.
#[derive(Debug)]
pub struct Clock {
    /// The newest time at the start, and when that was.
    newest: Option<OffsetDateTime>,
    started: Duration,
    /// The newest time so far.
    trusted: Option<OffsetDateTime>,
    /// Since when the wall clock has advanced evenly, by both clocks.
    even: (Duration, OffsetDateTime),
}

impl Clock {
    /// At the start: the monotonic clock, the wall clock, and the newest time that the hub trusted before.
    pub fn new(running: Duration, wall: OffsetDateTime, newest: Option<OffsetDateTime>) -> Clock {
        Clock { newest, started: running, trusted: newest, even: (running, wall) }
    }

    /// The newest time at a start: the one that the hub noted, or a later one of an object, unless the clock
    /// was wrong when that was written.
    pub fn newest(noted: Option<OffsetDateTime>, written: Option<OffsetDateTime>) -> Option<OffsetDateTime> {
        let written = written.filter(|time| match noted {
            Some(noted) => *time <= noted.saturating_add(MOST_AHEAD),
            None => is_possible(*time),
        });
        noted.max(written)
    }

    /// The newest time that this clock showed while it was not wrong; `None` before the first.
    pub fn trusted(&self) -> Option<OffsetDateTime> {
        self.trusted
    }

    /// Why the clock is wrong now, if it is.
    pub fn fault(&mut self, running: Duration, wall: OffsetDateTime) -> Option<ClockFault> {
        let steady = self.steady(running, wall);
        let fault = match self.trusted {
            Some(newest) if wall < newest.saturating_sub(EVEN) => Some(ClockFault::Behind(newest - wall)),
            Some(newest) if wall > newest.saturating_add(MOST_AHEAD) => {
                Some(ClockFault::Ahead(wall - newest))
            }
            Some(_) => None,
            // a first start has nothing to compare with
            None if is_possible(wall) => None,
            None if wall < earliest() => Some(ClockFault::Behind(earliest() - wall)),
            None => Some(ClockFault::Ahead(wall - earliest())),
        };
        let fault = fault.filter(|_| steady < SETTLED);
        if fault.is_none() {
            // after a week backwards, too
            self.trusted = match self.trusted {
                Some(newest) if wall < newest && newest - wall <= EVEN => Some(newest),
                _ => Some(wall),
            };
        }
        fault
    }

    /// Whether something may be deleted now because it is old by the wall clock.
    pub fn is_believed(&mut self, running: Duration, wall: OffsetDateTime) -> bool {
        if self.fault(running, wall).is_some() {
            return false;
        }
        if self.steady(running, wall) >= STEADY {
            return true;
        }
        let run =
            time::Duration::try_from(running.saturating_sub(self.started)).unwrap_or(time::Duration::MAX);
        self.newest.is_some_and(|newest| {
            let ahead = wall - newest;
            ahead >= -EVEN && ahead <= AGREES.saturating_add(run)
        })
    }

    /// How long the wall clock has advanced evenly; zero after a jump.
    fn steady(&mut self, running: Duration, wall: OffsetDateTime) -> Duration {
        let (since, from) = self.even;
        let steady = running.saturating_sub(since);
        let jumped = (wall - from) - time::Duration::try_from(steady).unwrap_or(time::Duration::MAX);
        if jumped.abs() <= EVEN {
            return steady;
        }
        self.even = (running, wall);
        Duration::ZERO
    }
}

fn earliest() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + EARLIEST_NOW
}

/// Whether a clock that was set may show this time.
fn is_possible(time: OffsetDateTime) -> bool {
    (earliest()..=OffsetDateTime::UNIX_EPOCH + LATEST_NOW).contains(&time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-21 12:00:00 UTC);
    const DAY: time::Duration = time::Duration::days(1);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn clock_that_disagrees_is_believed_after_an_hour() {
        for newest in [None, Some(NOW - 30 * DAY)] {
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
        let (mut clock, weeks) = (Clock::new(secs(0), NOW, Some(NOW)), time::Duration::days(21));
        assert!(clock.is_believed(weeks.unsigned_abs(), NOW + weeks + time::Duration::minutes(5)));
    }

    #[test]
    fn clock_that_jumps_is_not_believed() {
        let (mut clock, days) = (Clock::new(secs(0), NOW, Some(NOW)), time::Duration::days(20));
        assert!(clock.is_believed(secs(9), NOW));
        assert!(!clock.is_believed(secs(10), NOW + days));
        assert_eq!(clock.fault(secs(10), NOW + days), None, "it is not wrong");
        assert!(!clock.is_believed(secs(3600), NOW + days + time::Duration::seconds(3590)));
        assert!(clock.is_believed(secs(7210), NOW + days + time::Duration::hours(2)));
    }

    /// The clocks of hubs without a battery, and of a typing error.
    #[test]
    fn wrong_clock_counts_no_age_until_it_is_right() {
        for (wall, behind) in [
            (OffsetDateTime::UNIX_EPOCH, true),
            (NOW - DAY, true),
            (NOW + 31 * DAY, false),
            (NOW + 730 * DAY, false),
            (datetime!(2099-01-01 00:00:00 UTC), false),
        ] {
            let mut clock = Clock::new(secs(0), wall, Some(NOW));
            for hours in [0, 1, 100, 167] {
                let run = time::Duration::hours(hours);
                // it passes the newest time by itself
                if behind && wall + run > NOW {
                    continue;
                }
                let fault = clock.fault(run.unsigned_abs(), wall + run);
                assert_eq!(matches!(fault, Some(ClockFault::Behind(_))), behind, "{wall} {hours}");
                assert!(
                    fault.is_some() && !clock.is_believed(run.unsigned_abs(), wall + run),
                    "{wall} {hours}"
                );
                assert_eq!(clock.trusted(), Some(NOW), "{wall}");
            }
            // set right after a week less an hour, and left wrong
            let run = time::Duration::hours(167);
            assert_eq!(clock.fault(run.unsigned_abs(), NOW + run), None);
            let mut clock = Clock::new(secs(0), wall, Some(NOW));
            let week = time::Duration::days(7);
            assert_eq!(clock.fault(week.unsigned_abs(), wall + week), None, "{wall}");
            assert_eq!(clock.trusted(), Some(wall + week));
        }
    }

    #[test]
    fn first_start_is_judged_by_the_programs_date() {
        let fault = |wall| Clock::new(secs(0), wall, None).fault(secs(0), wall);
        assert_eq!(fault(NOW), None);
        assert!(matches!(fault(OffsetDateTime::UNIX_EPOCH), Some(ClockFault::Behind(_))));
        assert!(matches!(fault(datetime!(2099-01-01 00:00:00 UTC)), Some(ClockFault::Ahead(_))));
    }

    #[test]
    fn time_written_by_a_wrong_clock_is_not_the_newest() {
        let far = datetime!(2099-01-01 00:00:00 UTC);
        let check = |noted, written, expect| assert_eq!(Clock::newest(noted, written), expect);
        check(None, None, None);
        check(None, Some(NOW), Some(NOW));
        check(None, Some(far), None);
        check(None, Some(OffsetDateTime::UNIX_EPOCH), None);
        check(Some(NOW), Some(far), Some(NOW));
        check(Some(NOW), Some(NOW + DAY), Some(NOW + DAY));
        check(Some(NOW), Some(NOW - DAY), Some(NOW));
        check(Some(NOW), None, Some(NOW));
    }
}
