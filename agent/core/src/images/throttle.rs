//! How many pulls start in a second: `registryPullQPS` and `registryBurst`, a bucket of tokens as in kubelet.
//!
//! Always holds: over any time no more pulls start than burst + QPS x time; a QPS of 0 means no limit. Times
//! are monotonic.

use std::time::Duration;

/// The bucket.
#[derive(Clone, Debug)]
pub struct Throttle {
    per_sec: u32,
    burst: u32,
    tokens: f64,
    filled_at: Duration,
}

impl Throttle {
    /// A full bucket. A burst of 0 with a limit would allow no pull, so it counts as 1.
    #[must_use]
    pub fn new(per_sec: u32, burst: u32, now: Duration) -> Self {
        let burst = burst.max(1);
        Self { per_sec, burst, tokens: f64::from(burst), filled_at: now }
    }

    /// Takes a token, or returns how long until there is one.
    ///
    /// # Errors
    /// The bucket is empty.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        if self.per_sec == 0 {
            return Ok(());
        }
        let passed = now.saturating_sub(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + passed * f64::from(self.per_sec)).min(f64::from(self.burst));
        self.filled_at = self.filled_at.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / f64::from(self.per_sec)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate() {
        let mut throttle = Throttle::new(2, 3, Duration::ZERO);
        let begun = |throttle: &mut Throttle, now| (0..100).filter(|_| throttle.take(now).is_ok()).count();
        assert_eq!(begun(&mut throttle, Duration::ZERO), 3);
        assert_eq!(throttle.take(Duration::ZERO), Err(Duration::from_millis(500)));
        assert_eq!(begun(&mut throttle, Duration::from_secs(1)), 2);
        assert_eq!(begun(&mut throttle, Duration::from_secs(1000)), 3);
        assert_eq!(begun(&mut throttle, Duration::ZERO), 0, "a clock that goes back gives nothing");
    }

    #[test]
    fn zero_means_no_limit() {
        let mut throttle = Throttle::new(0, 0, Duration::ZERO);
        assert!((0..1000).all(|_| throttle.take(Duration::ZERO).is_ok()));
        assert!(Throttle::new(1, 0, Duration::ZERO).take(Duration::ZERO).is_ok());
    }
}
