//! When a container that ended, or a failed step, is tried again, by kubelet's times.
//!
//! Always holds: a retry never comes before its wait is over. Leaves to others: the work that is tried again.

use std::time::Duration;

/// The first wait, and the longest: kubelet's `10s` and `MaxContainerBackOff`.
pub(crate) const FIRST: Duration = Duration::from_secs(10);
pub(crate) const LONGEST: Duration = Duration::from_secs(300);

/// The back-off of one container's restarts. The first restart is immediate; a run that lasts ten minutes or
/// more resets the back-off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restarts {
    /// The wait before the next restart, and when it was set, which is at the latest restart.
    wait: Option<(Duration, Duration)>,
}

impl Restarts {
    /// When a container that ended at `ended` may start again.
    pub(crate) fn due(&self, ended: Duration) -> Duration {
        match self.current(ended) {
            Some(wait) => ended.saturating_add(wait),
            None => ended,
        }
    }

    /// The wait that a run which ended at this time has to keep.
    pub(crate) fn current(&self, ended: Duration) -> Option<Duration> {
        let (wait, since) = self.wait?;
        (ended.saturating_sub(since) <= LONGEST.saturating_mul(2)).then_some(wait)
    }

    /// Notes that the container starts again now.
    pub(crate) fn restarted(&mut self, ended: Duration, now: Duration) {
        let next = self.current(ended).map_or(FIRST, |wait| wait.saturating_mul(2).min(LONGEST));
        self.wait = Some((next, now));
    }
}

/// The back-off of a failed step: 10 s, doubled up to 5 minutes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Retry {
    failures: u32,
    not_before: Duration,
}

impl Retry {
    pub(crate) fn failed(&mut self, now: Duration) {
        let wait = FIRST.saturating_mul(1 << self.failures.min(8)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(wait);
    }

    /// Notes a refusal that will last.
    pub(crate) fn wait(&mut self, now: Duration, wait: Duration) {
        self.not_before = now.saturating_add(wait);
    }

    /// Notes a step that failed but got further than before: it waits as after a first failure.
    pub(crate) fn broke_off(&mut self, now: Duration) {
        self.succeeded();
        self.failed(now);
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.not_before
    }

    /// When the step may be tried again.
    pub(crate) fn due(&self) -> Duration {
        self.not_before
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn restarts_wait_like_kubelets() {
        let mut restarts = Restarts::default();
        let mut now = secs(100);
        let mut waits = vec![];
        for _ in 0..8 {
            // each run ends after a second
            let due = restarts.due(now);
            waits.push((due - now).as_secs());
            restarts.restarted(now, due);
            now = due + secs(1);
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        let ended = now + secs(600);
        assert_eq!(restarts.due(ended), ended, "it ran for more than ten minutes");
        restarts.restarted(ended, ended);
        assert_eq!(restarts.due(ended + secs(1)), ended + secs(11), "and begins anew");
    }

    #[test]
    fn run_of_ten_minutes_is_the_limit() {
        let mut restarts = Restarts::default();
        restarts.restarted(secs(0), secs(0));
        assert_eq!(restarts.current(secs(600)), Some(FIRST));
        assert_eq!(restarts.current(secs(601)), None);
    }

    #[test]
    fn retry_doubles_and_is_reset_by_success() {
        let mut retry = Retry::default();
        assert!(retry.is_due(secs(0)));
        retry.failed(secs(0));
        assert!(!retry.is_due(secs(9)) && retry.is_due(secs(10)));
        retry.failed(secs(10));
        assert_eq!(retry.due(), secs(30));
        for _ in 0..50 {
            retry.failed(secs(30));
        }
        assert_eq!(retry.due(), secs(330));
        retry.broke_off(secs(400));
        assert_eq!((retry.due(), retry.failures()), (secs(410), 1));
        retry.succeeded();
        assert_eq!(retry.failures(), 0);
        assert!(retry.is_due(secs(0)));
    }
}
