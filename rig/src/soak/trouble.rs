//! Who was in trouble when: the times in which a node cannot be expected to be heard.
//!
//! Always holds: only trouble that the soak itself made is written down here, from before it begins until after it ended; what a
//! node needs beyond that is its own doing and is counted against it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Everybody, because the hub is away.
pub(crate) const HUB: &str = "hub";

struct Spell {
    whose: String,
    begun: Instant,
    over: Option<Instant>,
}

/// All of it.
#[derive(Default)]
pub(crate) struct Troubles(Mutex<Vec<Spell>>);

impl Troubles {
    fn lock(&self) -> MutexGuard<'_, Vec<Spell>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It begins, for one node or for [`HUB`].
    pub(crate) fn begin(&self, whose: &str) {
        self.lock().push(Spell { whose: whose.to_owned(), begun: Instant::now(), over: None });
    }

    /// It is over.
    pub(crate) fn end(&self, whose: &str) {
        let now = Instant::now();
        for spell in self.lock().iter_mut().filter(|spell| spell.whose == whose && spell.over.is_none()) {
            spell.over = Some(now);
        }
    }

    /// How much of this time the node had no trouble. Two troubles at once count once.
    pub(crate) fn fair_time(&self, node: &str, from: Instant, to: Instant) -> Duration {
        let guard = self.lock();
        let mut spells: Vec<(Instant, Instant)> = guard
            .iter()
            .filter(|spell| spell.whose == node || spell.whose == HUB)
            .map(|spell| (spell.begun.max(from), spell.over.unwrap_or(to).min(to)))
            .filter(|(begun, over)| begun < over)
            .collect();
        spells.sort();
        let (mut fair, mut reached) = (Duration::ZERO, from);
        for (begun, over) in spells {
            fair += begun.saturating_duration_since(reached);
            reached = reached.max(over);
        }
        fair + to.saturating_duration_since(reached)
    }

    /// The longest time without trouble in which none of these moments lies; the last is followed by `until`.
    pub(crate) fn longest_silence(&self, node: &str, heard: &[Instant], until: Instant) -> Duration {
        let ends = heard.iter().skip(1).copied().chain([until]);
        let gaps = heard.iter().copied().zip(ends);
        gaps.map(|(from, to)| self.fair_time(node, from, to)).max().unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_disruptions_are_subtracted_once() {
        let base = Instant::now();
        let at = |secs: u64| base + Duration::from_secs(secs);
        let spell = |whose: &str, begun, over: Option<u64>| Spell {
            whose: whose.into(),
            begun: at(begun),
            over: over.map(at),
        };
        let troubles = Troubles(Mutex::new(vec![
            spell("a", 10, Some(20)),
            spell(HUB, 15, Some(30)),
            spell("b", 40, None),
        ]));
        let check = |node: &str, from, to, expect| {
            assert_eq!(troubles.fair_time(node, at(from), at(to)).as_secs(), expect, "{node} {from} {to}");
        };
        check("a", 0, 50, 30);
        check("b", 0, 50, 25);
        check("a", 12, 18, 0);
        check("a", 31, 31, 0);
        let heard = [at(0), at(9), at(31), at(35)];
        assert_eq!(troubles.longest_silence("a", &heard, at(50)).as_secs(), 15);
        assert_eq!(troubles.longest_silence("b", &heard, at(41)).as_secs(), 9);
        assert_eq!(troubles.longest_silence("a", &[], at(1)), Duration::MAX);
    }
}
