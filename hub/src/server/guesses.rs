//! The rate of wrong bootstrap tokens from one network.
//!
//! Always holds: at most ten wrong tokens of one network are compared at once, and ten a minute; networks
//! that share a bucket by chance count as one. A right token costs nothing. While the bucket is empty it is
//! not compared either, so that a guess learns nothing. The table is of a fixed size: see
//! `handshakes::PACES`. Left to others: the comparison (`authentication`).

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::handshakes::Network;
use crate::bucket::{Bucket, Rate};

/// Number of buckets, 24 bytes each.
const BUCKETS: usize = 4096;
const RATE: Rate = Rate { per_sec: 1.0 / Guesses::SECS_PER_GUESS as f64, burst: 10.0 };

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    hasher: RandomState,
    /// Empty before the first guess.
    buckets: Mutex<Vec<Bucket>>,
}

impl Guesses {
    /// Pause after which a network may guess again.
    pub(super) const SECS_PER_GUESS: u32 = 6;

    /// Counts a token that is about to be compared; `false`: it must not be.
    pub(super) fn begin(&self, network: Network, now: Instant) -> bool {
        self.with(network, now, |bucket| bucket.take(1.0))
    }

    /// Takes back the count of a token that was right.
    pub(super) fn was_right(&self, network: Network, now: Instant) {
        self.with(network, now, |bucket| bucket.give_back(1.0, RATE.burst));
    }

    fn with<T>(&self, network: Network, now: Instant, act: impl FnOnce(&mut Bucket) -> T) -> T {
        // a panic leaves the buckets valid
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.resize(BUCKETS, Bucket::full(RATE, now));
        act(buckets[self.place(network)].at(RATE, now))
    }

    /// An attacker cannot foresee which networks share a bucket.
    fn place(&self, network: Network) -> usize {
        usize::try_from(self.hasher.hash_one(network) % BUCKETS as u64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn million_guesses_are_mostly_not_compared() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        // a million within an hour
        let compared =
            |number: u64| guesses.begin(Network::Local, start + Duration::from_micros(3600 * number));
        let compared = (0..1_000_000).filter(|number| compared(*number)).count();
        assert!((609..=610).contains(&compared), "{compared}");
    }

    #[test]
    fn right_token_costs_nothing_and_waits_with_the_wrong_ones() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        for _ in 0..100 {
            assert!(guesses.begin(Network::Local, start));
            guesses.was_right(Network::Local, start);
        }
        assert_eq!((0..20).filter(|_| guesses.begin(Network::Local, start)).count(), 10);
        let others = (1..9).map(|last| Network::V4([192, 0, 2, last]));
        let mut others = others.filter(|other| guesses.place(*other) != guesses.place(Network::Local));
        assert!(guesses.begin(others.next().unwrap(), start), "another network");
        assert!(!guesses.begin(Network::Local, start + Duration::from_secs(5)));
        assert!(guesses.begin(Network::Local, start + Duration::from_secs(7)));
        assert!(!guesses.begin(Network::Local, start + Duration::from_secs(7)));
    }
}
