//! When a pull that failed may be tried again: kubelet's back-off, 10 s doubling to 5 m.
//!
//! Always holds: one key's failures hold up no other key; a key that did not fail for twice the longest wait begins anew; the
//! keys remembered are bounded, the one that failed longest ago goes first. Times are those of a monotonic clock.

use std::collections::BTreeMap;
use std::time::Duration;

/// First wait, kubelet's.
pub const FIRST: Duration = Duration::from_secs(10);
/// Longest wait, kubelet's.
pub const LONGEST: Duration = Duration::from_secs(300);
/// Most keys remembered: ten images of each of kubelet's 110 pods, about 200 KiB.
const MAX_KEYS: usize = 1100;

/// The waits of all keys. A key is what failed, such as a pod's UID and an image.
#[derive(Clone, Debug, Default)]
pub struct BackOff {
    waits: BTreeMap<String, Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    failed_at: Duration,
    wait: Duration,
}

impl Wait {
    fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.failed_at) > 2 * LONGEST
    }
}

impl BackOff {
    /// Notes a failure, and gives how long to wait after it.
    pub fn failed(&mut self, key: &str, now: Duration) -> Duration {
        let wait = match self.waits.get(key).filter(|wait| !wait.is_over(now)) {
            Some(earlier) => (earlier.wait * 2).min(LONGEST),
            None => FIRST,
        };
        self.waits.insert(key.to_owned(), Wait { failed_at: now, wait });
        self.forget_some(now);
        wait
    }

    /// How long this key still has to wait; `None`: it may be tried.
    #[must_use]
    pub fn left(&self, key: &str, now: Duration) -> Option<Duration> {
        let wait = self.waits.get(key)?;
        let left = (wait.failed_at + wait.wait).saturating_sub(now);
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a key: it succeeded, or nobody asks for it any more.
    pub fn forget(&mut self, key: &str) {
        self.waits.remove(key);
    }

    fn forget_some(&mut self, now: Duration) {
        self.waits.retain(|_, wait| !wait.is_over(now));
        while self.waits.len() > MAX_KEYS {
            let oldest = self.waits.iter().min_by_key(|(_, wait)| wait.failed_at);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.waits.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn waits_double_up_to_five_minutes() {
        let mut backoff = BackOff::default();
        let mut now = secs(1000);
        for expect in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(backoff.left("a", now), None);
            assert_eq!(backoff.failed("a", now), secs(expect));
            assert_eq!(backoff.left("a", now + secs(1)), Some(secs(expect - 1)));
            assert_eq!(backoff.left("b", now), None, "another image does not wait");
            now += secs(expect);
        }
        assert_eq!(backoff.failed("a", now + secs(601)), FIRST, "it was long ago");
        backoff.forget("a");
        assert_eq!(backoff.left("a", now), None);
    }

    #[test]
    fn keys_remembered_are_bounded() {
        let mut backoff = BackOff::default();
        for n in 0..MAX_KEYS + 10 {
            backoff.failed(&n.to_string(), Duration::from_millis(n as u64));
        }
        assert_eq!(backoff.waits.len(), MAX_KEYS);
        assert_eq!(backoff.left("9", secs(2)), None);
        assert!(backoff.left("10", secs(2)).is_some());
        backoff.failed("x", secs(10_000));
        assert_eq!(backoff.waits.len(), 1);
    }
}
