//! Token buckets: limits on how much may happen at once, and on average.
//!
//! Always holds: nothing here reads a clock; time that goes backwards refills nothing; a bucket never holds
//! more than its burst; it may be negative. Left to others: the meaning of a token, and the rate of each
//! caller.

use std::time::Instant;

/// A bucket's refill and size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) per_sec: f64,
    pub(crate) burst: f64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    left: f64,
    counted: Instant,
}

impl Bucket {
    pub(crate) fn full(rate: Rate, now: Instant) -> Bucket {
        Bucket { left: rate.burst, counted: now }
    }

    /// Refills the bucket up to `now`; the rate may differ from the last call's.
    pub(crate) fn at(&mut self, rate: Rate, now: Instant) -> &mut Bucket {
        let passed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.left = (self.left + passed * rate.per_sec).min(rate.burst);
        self.counted = self.counted.max(now);
        self
    }

    pub(crate) fn left(&self) -> f64 {
        self.left
    }

    /// Takes an amount, if that much is left.
    pub(crate) fn take(&mut self, amount: f64) -> bool {
        let fits = self.left >= amount;
        if fits {
            self.left -= amount;
        }
        fits
    }

    /// Takes an amount even if that much is not left, down to `least`.
    pub(crate) fn owe(&mut self, amount: f64, least: f64) {
        self.left = (self.left - amount).max(least);
    }

    /// Gives back an amount that was taken, up to `most`.
    pub(crate) fn give_back(&mut self, amount: f64, most: f64) {
        self.left = (self.left + amount).min(most);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RATE: Rate = Rate { per_sec: 2.0, burst: 10.0 };

    #[test]
    fn bucket_refills_up_to_its_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RATE, start);
        let mut after = |millis, taken: f64| {
            let bucket = bucket.at(RATE, start + Duration::from_millis(millis));
            (bucket.take(taken), bucket.left())
        };
        assert_eq!(after(0, 10.5), (false, 10.0));
        assert_eq!(after(0, 10.0), (true, 0.0), "all of it");
        assert_eq!(after(2000, 0.5), (true, 3.5));
        // time that went backwards refills nothing, and is not counted twice
        assert_eq!(after(1000, 0.0), (true, 3.5));
        assert_eq!(after(2500, 0.0), (true, 4.5));
        assert_eq!(after(60_000, 0.0), (true, 10.0));
    }

    #[test]
    fn debt_ends_at_its_least_and_is_paid_first() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RATE, start);
        bucket.owe(13.0, -20.0);
        assert_eq!((bucket.left(), bucket.take(0.1)), (-3.0, false));
        bucket.owe(100.0, -20.0);
        assert_eq!(bucket.left(), -20.0);
        assert_eq!(bucket.at(RATE, start + Duration::from_secs(11)).left(), 2.0);
        bucket.give_back(1.0, 10.0);
        assert_eq!(bucket.left(), 3.0);
        bucket.give_back(100.0, 10.0);
        assert_eq!(bucket.left(), 10.0);
    }
}
