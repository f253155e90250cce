//! How many probes run at once, and which is next.
//!
//! Always holds: of one pod only a few run at once, so that one whose probes hang leaves places to others; what waits begins in the
//! order in which it came, but for pods that have all of theirs.

use kedge_core::pods::PodUid;
use kedge_core::sorted::SortedMap;
use std::collections::VecDeque;

/// What runs in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// A program in a container: a thread of ours, and crun with 3 MB beside it.
    Program,
    /// A connection.
    Network,
    /// What runs after a start or before a stop, which takes longer than a probe.
    Hook,
}

impl Lane {
    /// At once, of all pods and of one.
    fn limits(self) -> (usize, usize) {
        match self {
            Self::Program => (16, 4),
            Self::Network => (64, 16),
            Self::Hook => (32, 8),
        }
    }
}

/// The places, and what waits for one. Core orders each probe once at a time, so few wait.
#[derive(Debug)]
pub(super) struct Places<T> {
    taken: SortedMap<(Lane, PodUid), usize>,
    waiting: VecDeque<(Lane, PodUid, T)>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { taken: SortedMap::new(), waiting: VecDeque::new() }
    }
}

impl<T> Places<T> {
    fn has_room(&self, lane: Lane, pod: &PodUid) -> bool {
        let (most, most_of_one) = lane.limits();
        let all: usize = self.taken.iter().filter(|((of, _), _)| *of == lane).map(|(_, count)| count).sum();
        let own = self.taken.get(&(lane, pod.clone())).copied().unwrap_or(0);
        all < most && own < most_of_one
    }

    /// Gives it back to be begun, or lets it wait.
    pub(super) fn take(&mut self, lane: Lane, pod: PodUid, what: T) -> Option<T> {
        if self.has_room(lane, &pod) {
            *self.taken.entry((lane, pod)).or_default() += 1;
            return Some(what);
        }
        self.waiting.push_back((lane, pod, what));
        None
    }

    /// Something has ended; gives what begins in its place.
    pub(super) fn give_back(&mut self, lane: Lane, pod: &PodUid) -> Option<T> {
        let key = (lane, pod.clone());
        if let Some(count) = self.taken.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(&key);
            }
        }
        let next = self.waiting.iter().position(|(of, pod, _)| *of == lane && self.has_room(lane, pod))?;
        let (lane, pod, what) = self.waiting.remove(next)?;
        *self.taken.entry((lane, pod)).or_default() += 1;
        Some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodUid {
        PodUid::new(name).unwrap()
    }

    #[test]
    fn pod_whose_probes_hang_leaves_places_to_others() {
        let mut places = Places::default();
        let (lane, hung) = (Lane::Program, pod("hung"));
        let begun = (0..10).filter(|number| places.take(lane, hung.clone(), *number).is_some()).count();
        assert_eq!(begun, 4);
        assert_eq!(places.take(lane, pod("other"), 100), Some(100), "before those that wait");
        assert_eq!(places.give_back(lane, &pod("other")), None, "the pod that waits has all of its places");
        assert_eq!(places.give_back(lane, &hung), Some(4), "in their order");
        assert_eq!(places.take(Lane::Network, hung, 200), Some(200), "of another sort");
    }

    #[test]
    fn no_more_than_the_limit_run_at_once() {
        let mut places = Places::default();
        let mut begun = Vec::new();
        for number in 0..40 {
            begun.extend(places.take(Lane::Program, pod(&format!("p-{}", number % 20)), number));
        }
        assert_eq!(begun.len(), 16);
        let mut ended = 0;
        while ended < begun.len() {
            let next = places.give_back(Lane::Program, &pod(&format!("p-{}", begun[ended] % 20)));
            begun.extend(next);
            ended += 1;
        }
        assert_eq!(begun.len(), 40);
        assert!(places.taken.is_empty() && places.waiting.is_empty(), "nothing is kept");
    }
}
