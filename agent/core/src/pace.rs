//! Jitter and back-off from a seed: a fleet does not move in step, and a test moves the same way every time.

use std::time::Duration;

/// A small deterministic generator (xorshift64*): the seed is the only randomness, and the caller passes it
/// in.
#[derive(Debug, Clone)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        // zero is the one state it cannot leave
        Self(seed | 1)
    }

    /// Between 0 and 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `period` and up to `factor` of it more.
    pub(crate) fn stretch(&mut self, period: Duration, factor: f64) -> Duration {
        part(period, 1.0 + factor * self.next())
    }

    /// Somewhere within `period`.
    pub(crate) fn within(&mut self, period: Duration) -> Duration {
        part(period, self.next())
    }
}

/// A multiple of a period; the longest duration if the result does not fit.
fn part(period: Duration, times: f64) -> Duration {
    Duration::try_from_secs_f64(times * period.as_secs_f64()).unwrap_or(Duration::MAX)
}

/// The pace of writing again what somebody else has changed: another device with the same identity, or a
/// controller, may do so each time. The first such write comes a pause after the last one, each further one
/// after twice the pause.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rewrites {
    in_a_row: u32,
    /// No other before.
    due: Duration,
}

impl Rewrites {
    /// Records a write. `is_again`: it has the content of an earlier one.
    pub(crate) fn written(&mut self, now: Duration, is_again: bool, first: Duration, longest: Duration) {
        // a write that lasted for long was not contested
        let is_row = is_again && !self.due.is_zero() && now < self.due.saturating_add(longest);
        self.in_a_row = if is_row { self.in_a_row.saturating_add(1) } else { 0 };
        let pause = first.saturating_mul(1 << self.in_a_row.min(16)).min(longest.max(first));
        self.due = now.saturating_add(pause);
    }

    pub(crate) fn due(&self) -> Duration {
        self.due
    }
}

/// Exponential back-off: one second, doubling, up to a limit, each stretched by up to a quarter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure.
    pub(crate) fn failed(&mut self, limit: Duration, jitter: &mut Jitter) -> Duration {
        let wait = Duration::from_secs(1 << self.failures.min(16)).min(limit);
        self.failures = self.failures.saturating_add(1);
        jitter.stretch(wait, 0.25)
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_until_a_success() {
        let (mut backoff, mut jitter) = (Backoff::default(), Jitter::new(7));
        let limit = Duration::from_secs(10);
        for expect in [1, 2, 4, 8, 10, 10] {
            let wait = backoff.failed(limit, &mut jitter);
            let expect = Duration::from_secs(expect);
            assert!(wait >= expect && wait <= expect.mul_f64(1.25), "{wait:?}, expected about {expect:?}");
        }
        backoff.succeeded();
        assert!(backoff.failed(limit, &mut jitter) < Duration::from_millis(1300));
    }

    #[test]
    fn rewrites_come_after_growing_pauses() {
        let (first, longest) = (Duration::from_secs(10), Duration::from_secs(300));
        let (mut rewrites, mut now, mut pauses) = (Rewrites::default(), Duration::from_secs(5), vec![]);
        rewrites.written(now, false, first, longest);
        for _ in 0..7 {
            pauses.push((rewrites.due() - now).as_secs());
            now = rewrites.due();
            rewrites.written(now, true, first, longest);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
        let later = rewrites.due() + longest;
        rewrites.written(later, true, first, longest);
        assert_eq!(rewrites.due() - later, first, "nobody fought meanwhile");
        rewrites.written(later, false, first, longest);
        assert_eq!(rewrites.due() - later, first, "news of its own");
    }

    #[test]
    fn same_seed_gives_same_waits() {
        let waits = |seed| {
            let mut jitter = Jitter::new(seed);
            (0..50).map(|_| jitter.within(Duration::from_secs(300))).collect::<Vec<_>>()
        };
        assert_eq!(waits(3), waits(3));
        assert_ne!(waits(3), waits(5));
        assert!(waits(0).iter().all(|wait| *wait < Duration::from_secs(300)));
        let spread = waits(9);
        assert!(spread.iter().max() > spread.iter().min().map(|least| *least * 3).as_ref());
    }

    /// A fleet that was started at once must drift apart: a stretch that is always the same would keep it in
    /// step.
    #[test]
    fn stretch_uses_most_of_its_factor() {
        let (mut jitter, period) = (Jitter::new(11), Duration::from_secs(100));
        let drawn: Vec<_> = (0..50).map(|_| jitter.stretch(period, 0.25)).collect();
        let (least, most) = (*drawn.iter().min().expect("some"), *drawn.iter().max().expect("some"));
        assert!(least >= period && most <= period.mul_f64(1.25), "{least:?} to {most:?}");
        assert!(most - least > period.mul_f64(0.125), "{least:?} to {most:?}");
    }

    #[test]
    fn generator_is_the_published_xorshift64_star() {
        let mut jitter = Jitter::new(1);
        // its first four numbers for seed 1; a fraction keeps the upper 53 of 64 bits
        for expect in [
            5_180_492_295_206_395_165,
            12_380_297_144_915_551_517,
            13_389_498_078_930_870_103,
            5_599_127_315_341_312_413,
        ] {
            let expect: u64 = expect;
            assert_eq!(jitter.next(), (expect >> 11) as f64 / (1u64 << 53) as f64);
        }
    }
}
