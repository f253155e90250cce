//! The disruptions of each node: the times in which no renewal can be expected of it.
//!
//! Always holds: only disruptions that the soak itself caused are recorded here, from before each begins
//! until after it ended; a node's delay beyond that counts against it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The key for disruptions of all nodes, because the hub is down.
pub(crate) const HUB: &str = "hub";

struct Disruption {
    subject: String,
    begun: Instant,
    over: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Disruptions(Mutex<Vec<Disruption>>);

impl Disruptions {
    fn lock(&self) -> MutexGuard<'_, Vec<Disruption>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the beginning of a disruption of one node or of [`HUB`].
    pub(crate) fn begin(&self, subject: &str) {
        self.lock().push(Disruption { subject: subject.to_owned(), begun: Instant::now(), over: None });
    }

    /// Records the end of the disruptions of one node, or of [`HUB`].
    pub(crate) fn end(&self, subject: &str) {
        let now = Instant::now();
        for span in self.lock().iter_mut().filter(|span| span.subject == subject && span.over.is_none()) {
            span.over = Some(now);
        }
    }

    /// The part of this time in which the node was not disrupted. Overlapping disruptions count once.
    pub(crate) fn undisturbed_time(&self, node: &str, from: Instant, to: Instant) -> Duration {
        let guard = self.lock();
        let mut spans: Vec<(Instant, Instant)> = guard
            .iter()
            .filter(|span| span.subject == node || span.subject == HUB)
            .map(|span| (span.begun.max(from), span.over.unwrap_or(to).min(to)))
            .filter(|(begun, over)| begun < over)
            .collect();
        spans.sort();
        let (mut fair, mut reached) = (Duration::ZERO, from);
        for (begun, over) in spans {
            fair += begun.saturating_duration_since(reached);
            reached = reached.max(over);
        }
        fair + to.saturating_duration_since(reached)
    }

    /// The longest undisturbed time between two of these moments; `until` follows the last one.
    pub(crate) fn longest_silence(&self, node: &str, renewals_seen: &[Instant], until: Instant) -> Duration {
        let ends = renewals_seen.iter().skip(1).copied().chain([until]);
        let gaps = renewals_seen.iter().copied().zip(ends);
        gaps.map(|(from, to)| self.undisturbed_time(node, from, to)).max().unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_disruptions_are_subtracted_once() {
        let base = Instant::now();
        let at = |secs: u64| base + Duration::from_secs(secs);
        let span = |subject: &str, begun, over: Option<u64>| Disruption {
            subject: subject.into(),
            begun: at(begun),
            over: over.map(at),
        };
        let disruptions = Disruptions(Mutex::new(vec![
            span("a", 10, Some(20)),
            span(HUB, 15, Some(30)),
            span("b", 40, None),
        ]));
        let check = |node: &str, from, to, expect| {
            assert_eq!(
                disruptions.undisturbed_time(node, at(from), at(to)).as_secs(),
                expect,
                "{node} {from} {to}"
            );
        };
        check("a", 0, 50, 30);
        check("b", 0, 50, 25);
        check("a", 12, 18, 0);
        check("a", 31, 31, 0);
        let renewals_seen = [at(0), at(9), at(31), at(35)];
        assert_eq!(disruptions.longest_silence("a", &renewals_seen, at(50)).as_secs(), 15);
        assert_eq!(disruptions.longest_silence("b", &renewals_seen, at(41)).as_secs(), 9);
        assert_eq!(disruptions.longest_silence("a", &[], at(1)), Duration::MAX);
    }
}
