//! The Events about pods that a DaemonSet's controller creates, deletes or finds ended, and about nodes that
//! a configuration is assigned to. Created pods of a step share one Event, and so do deleted ones and
//! assigned nodes. Of the pods found ended, up to [`NAMED`] have their own and the rest share one. The rate
//! is limited.
//!
//! Always holds: a set may record [`AT_ONCE`] of them at once and then one each [`EVERY`], however many pods
//! are made and deleted; pods that this limit skipped are counted in the next Event. So an update of 10,000
//! nodes, or a fleet whose pods fail again and again, does not push other Events out of the store. Leaves to
//! others: Events about the rollout itself, each of which is recorded once.

use std::collections::BTreeMap;
use std::time::Duration;

/// Upstream's bound for one source and object.
const AT_ONCE: u32 = 25;
/// Upstream's is five minutes, and upstream drops the Events above the limit.
const EVERY: Duration = Duration::from_secs(60);
/// Names in the message of one Event.
const NAMED: usize = 5;

/// A change of pods or nodes that Events report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::controllers) enum Deed {
    Made,
    Ended,
    /// A pod that ended by itself was found.
    Found,
    /// A node was assigned a configuration.
    Assigned,
}

/// Type, reason and message.
pub(in crate::controllers) type Told = (&'static str, &'static str, String);

/// The Events of one set.
#[derive(Debug)]
pub(in crate::controllers) struct Telling {
    tallies: BTreeMap<Deed, Tally>,
    left: u32,
    /// Since when the allowance for the next Event has been accumulating.
    since: Duration,
}

/// Pods that no Event has reported yet.
#[derive(Debug, Default)]
struct Tally {
    /// Writes about which the store has not answered yet.
    awaited: usize,
    count: usize,
    names: Vec<String>,
}

impl Default for Telling {
    fn default() -> Telling {
        Telling { tallies: BTreeMap::new(), left: AT_ONCE, since: Duration::ZERO }
    }
}

impl Telling {
    /// A new step begins: writes of the previous step without an answer were not made.
    pub(in crate::controllers) fn begin(&mut self) {
        self.tallies.values_mut().for_each(|tally| tally.awaited = 0);
    }

    /// Another write for this deed: its Event follows after the store's last answer.
    pub(in crate::controllers) fn expect(&mut self, deed: Deed) {
        self.tallies.entry(deed).or_default().awaited += 1;
    }

    /// The store has answered about a pod.
    pub(in crate::controllers) fn answered(
        &mut self,
        deed: Deed,
        pod: &str,
        is_done: bool,
        now: Duration,
    ) -> Option<Told> {
        let tally = self.tallies.get_mut(&deed)?;
        tally.awaited = tally.awaited.saturating_sub(1);
        if is_done {
            tally.add(pod);
        }
        self.tell(deed, now)
    }

    /// A pod was found that ended by itself, the `number`th of a step.
    pub(in crate::controllers) fn found(&mut self, number: usize, told: Told, now: Duration) -> Option<Told> {
        if number <= NAMED && self.take(now) {
            return Some(told);
        }
        self.tallies.entry(Deed::Found).or_default().count += 1;
        None
    }

    /// The Events that were delayed by the limit and may be recorded now.
    pub(in crate::controllers) fn overdue(&mut self, now: Duration) -> Vec<Told> {
        let all = [Deed::Made, Deed::Ended, Deed::Found, Deed::Assigned];
        all.into_iter().filter_map(|deed| self.tell(deed, now)).collect()
    }

    /// When the next delayed Event may be recorded, if nothing changes.
    pub(in crate::controllers) fn next(&self) -> Option<Duration> {
        let waits = self.tallies.values().any(|tally| tally.awaited == 0 && tally.count > 0);
        waits.then_some(self.since + EVERY)
    }

    fn tell(&mut self, deed: Deed, now: Duration) -> Option<Told> {
        let is_whole = self.tallies.get(&deed).is_some_and(|tally| tally.awaited == 0 && tally.count > 0);
        if !(is_whole && self.take(now)) {
            return None;
        }
        let tally = self.tallies.remove(&deed)?;
        Some(match deed {
            Deed::Made => ("Normal", "SuccessfulCreate", tally.text("Created", "pod")),
            Deed::Ended => ("Normal", "SuccessfulDelete", tally.text("Deleted", "pod")),
            Deed::Assigned => ("Normal", "Assigned", tally.text("Assigned", "node")),
            Deed::Found => {
                let message =
                    format!("Found {} more daemon pods that ended, will try to kill them", tally.count);
                ("Warning", "FailedDaemonPod", message)
            }
        })
    }

    /// Whether the limit allows one more Event; if so, counts it.
    fn take(&mut self, now: Duration) -> bool {
        while self.left < AT_ONCE && self.since + EVERY <= now {
            self.left += 1;
            self.since += EVERY;
        }
        if self.left == AT_ONCE {
            self.since = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

impl Tally {
    fn add(&mut self, pod: &str) {
        self.count += 1;
        if self.names.len() < NAMED {
            self.names.push(pod.to_owned());
        }
    }

    fn text(&self, verb: &str, noun: &str) -> String {
        let shown = self.names.join(", ");
        match self.count - self.names.len() {
            0 if self.count == 1 => format!("{verb} {noun}: {shown}"),
            0 => format!("{verb} {noun}s: {shown}"),
            more => format!("{verb} {noun}s: {shown} and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_bound_are_told_with_the_next() {
        let (mut telling, second) = (Telling::default(), Duration::from_secs);
        let mut make = |pod: &str, at: u64| {
            telling.begin();
            telling.expect(Deed::Made);
            let told = telling.answered(Deed::Made, pod, true, second(at));
            (told.map(|(_, _, message)| message), telling.next())
        };
        for index in 0..AT_ONCE {
            let name = format!("d-{index}");
            assert_eq!(make(&name, 100), (Some(format!("Created pod: {name}")), None));
        }
        assert_eq!(make("x", 101), (None, Some(second(160))));
        assert_eq!(make("y", 159), (None, Some(second(160))));
        assert_eq!(make("z", 161), (Some("Created pods: x, y, z".to_owned()), None));
        for pod in 0..7 {
            assert_eq!(make(&format!("p-{pod}"), 170).1, Some(second(220)));
        }
        let expect =
            ("Normal", "SuccessfulCreate", "Created pods: p-0, p-1, p-2, p-3, p-4 and 2 more".into());
        assert_eq!(telling.overdue(second(220)), [expect]);
        assert_eq!((telling.overdue(second(500)), telling.next()), (Vec::new(), None));
    }

    #[test]
    fn bound_is_whole_again_after_a_quiet_time() {
        let mut telling = Telling::default();
        let told = |telling: &mut Telling, at: u64| {
            let of = || ("Warning", "FailedDaemonPod", String::new());
            (0..100).filter(|_| telling.found(1, of(), Duration::from_secs(at)).is_some()).count()
        };
        assert_eq!(told(&mut telling, 0), 25);
        assert_eq!(told(&mut telling, 130), 2);
        assert_eq!(told(&mut telling, 100_000), 25);
        let left = telling.overdue(Duration::from_secs(100_060));
        assert!(matches!(&left[..], [(_, _, text)] if text.starts_with("Found 248 more")), "{left:?}");
    }
}
