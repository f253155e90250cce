//! Limits how often a program may replace itself in place (exec) before the service manager has to pace it.
//!
//! Always holds: a program that keeps replacing itself, for whatever reason, ends after a few times and is
//! started again by its service manager, with the service manager's pause. Times are those of the monotonic
//! clock of one boot.
//!
//! Leaves to others: storing the times (`exit::RunDirectory`), and the replacement itself (`linux::Program`).

use std::time::Duration;

/// A program that has run for this long is not in a loop: it may always replace itself.
pub const SETTLED: Duration = Duration::from_secs(10);
/// Replacements allowed within [`WINDOW`] to programs that have run for less: a push, its roll back, and one
/// more.
pub const AT_MOST: usize = 3;
/// The time over which replacements are counted.
pub const WINDOW: Duration = Duration::from_secs(60);

/// True if a program that has run for `ran` may replace itself `now`, after the replacements `earlier`.
pub fn is_allowed(earlier: &[Duration], now: Duration, ran: Duration) -> bool {
    ran >= SETTLED || recent(earlier, now).count() < AT_MOST
}

/// The replacements that still count. A time in the future (of another boot) counts, so that an unknown
/// number is not taken for zero.
pub(crate) fn recent(earlier: &[Duration], now: Duration) -> impl Iterator<Item = Duration> {
    earlier.iter().copied().filter(move |time| now.saturating_sub(*time) < WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(earlier: &[u64], now: u64, ran: u64, expect: bool) {
        let earlier: Vec<_> = earlier.iter().copied().map(Duration::from_secs).collect();
        assert_eq!(is_allowed(&earlier, Duration::from_secs(now), Duration::from_secs(ran)), expect);
    }

    #[test]
    fn fourth_replacement_in_a_minute_is_refused() {
        check(&[], 100, 0, true);
        check(&[98, 99], 100, 1, true);
        check(&[97, 98, 99], 100, 1, false);
        check(&[40, 98, 99], 100, 1, true);
        check(&[41, 98, 99], 100, 1, false);
    }

    #[test]
    fn program_that_ran_ten_seconds_is_not_paced() {
        check(&[97, 98, 99], 100, 9, false);
        check(&[97, 98, 99], 100, 10, true);
    }

    #[test]
    fn replacements_in_the_future_count() {
        check(&[900, 901, 902], 100, 0, false);
    }
}
