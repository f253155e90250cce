//! Token buckets: how much of something may happen at once, and on average.
//!
//! Always holds: nothing here reads a clock; time that goes backwards refills nothing; a bucket never holds more than its burst, and may
//! owe. Left to others: what a token is, and who has which rate.

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

    /// As it is now, at a rate that may be another one than before.
    pub(crate) fn at(&mut self, rate: Rate, now: Instant) -> &mut Bucket {
        let passed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.left = (self.left + passed * rate.per_sec).min(rate.burst);
        self.counted = self.counted.max(now);
        self
    }

    pub(crate) fn left(&self) -> f64 {
        self.left
    }

    /// Takes an amount, if it is there.
    pub(crate) fn take(&mut self, amount: f64) -> bool {
        let fits = self.left >= amount;
        if fits {
            self.left -= amount;
        }
        fits
    }

    /// Takes an amount that may not be there, down to `least`.
    pub(crate) fn owe(&mut self, amount: f64, least: f64) {
        self.left = (self.left - amount).max(least);
    }

    pub(crate) fn give_back(&mut self, amount: f64) {
        self.left += amount;
    }
}
