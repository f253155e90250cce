//! Node pressure: which thresholds are met, since when, and the state of the conditions.
//!
//! Always holds, as upstream: a threshold that was met is met until its minimum reclaim is available, too; a
//! condition is true from the first look that meets a threshold of it, whatever its grace period, until none
//! was met for the transition period; pods end for a threshold only when it has been met for its grace
//! period. A value that could not be read has no effect: no pod ends because of it, no condition becomes or
//! stays true, and no grace period restarts. Leaves to others: which pods end (`pods::eviction`), the text of
//! the conditions (`status`).

use crate::answer::Now;
use crate::kubelet::{Config, Eviction, EvictionThreshold, Signal};
use crate::node::facts::HostFacts;
use crate::pods::Pressing;
use crate::sorted::SortedMap;
use std::time::Duration;

/// The conditions, in the order of `Pressures::pressed`.
pub(crate) const CONDITIONS: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// Reasons of the Events for the end and the begin of each of `CONDITIONS`.
const EVENTS: [[&str; 2]; 3] = [
    ["NodeHasSufficientMemory", "NodeHasInsufficientMemory"],
    ["NodeHasNoDiskPressure", "NodeHasDiskPressure"],
    ["NodeHasSufficientPID", "NodeHasInsufficientPID"],
];

/// The pressure on one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pressures {
    own: Gauge,
    /// By the thresholds of the last-known-good, while a configuration is on trial.
    good: Option<Gauge>,
    /// The state of the conditions: memory, disk, pid.
    pub(crate) pressed: [bool; 3],
    /// The threshold that evicts pods, as of the last look.
    pub(crate) pressing: Option<Pressing>,
    /// How often the host was looked at.
    pub(crate) looks: u64,
    /// Whether the last look could read all values that have thresholds.
    pub(crate) is_whole: bool,
}

/// Thresholds of one configuration.
#[derive(Debug, Clone, Default)]
struct Gauge {
    /// The met thresholds, by their index in the configuration, and since when.
    met: SortedMap<usize, Duration>,
    /// When the cause of each condition was last seen.
    last_seen: [Option<Duration>; 3],
    pressed: [bool; 3],
}

impl Gauge {
    /// Judges the facts of one look; a condition outlasts its cause by `hold`.
    fn judge(&mut self, now: Now, facts: &HostFacts, thresholds: &[EvictionThreshold], hold: Duration) {
        let (mut met, mut is_seen) = (SortedMap::new(), [false; CONDITIONS.len()]);
        for (index, threshold) in thresholds.iter().enumerate() {
            let since = self.met.get(&index).copied();
            let is_met = is_met(threshold, facts, since.is_some());
            if is_met.unwrap_or(since.is_some()) {
                met.insert(index, since.unwrap_or(now.mono));
            }
            is_seen[condition_of(threshold.signal)] |= is_met == Some(true);
        }
        self.met = met;
        for (index, pressed) in self.pressed.iter_mut().enumerate() {
            if is_seen[index] {
                self.last_seen[index] = Some(now.mono);
            }
            *pressed = self.last_seen[index]
                .is_some_and(|seen| is_seen[index] || now.mono < seen.saturating_add(hold));
        }
    }

    /// The thresholds that evict pods now.
    fn ripe<'a>(
        &self,
        now: Now,
        facts: &HostFacts,
        thresholds: &'a [EvictionThreshold],
    ) -> Vec<&'a EvictionThreshold> {
        let is_ripe = |(index, since): &(&usize, &Duration)| {
            let threshold = &thresholds[**index];
            measured(threshold.signal, facts).is_some()
                && threshold.grace.is_none_or(|grace| now.mono >= (**since).saturating_add(grace))
        };
        self.met.iter().filter(is_ripe).map(|(index, _)| &thresholds[*index]).collect()
    }
}

impl Pressures {
    /// Takes a look at the host. `good` are the thresholds of the last-known-good, while a configuration is
    /// on trial: no pod ends, or is refused, for a threshold that only the one on trial has crossed, because
    /// a roll back would not undo that.
    pub(crate) fn observe(&mut self, now: Now, facts: &HostFacts, config: &Config, good: Option<&Eviction>) {
        self.looks = self.looks.saturating_add(1);
        let (thresholds, hold) = (&config.eviction.thresholds, config.eviction_pressure_transition_period);
        self.own.judge(now, facts, thresholds, hold);
        self.pressed = self.own.pressed;
        self.is_whole = thresholds.iter().all(|threshold| is_readable(threshold.signal, facts));
        let mut ripe = self.own.ripe(now, facts, thresholds);
        self.good = good.map(|good| {
            let mut gauge = self.good.take().unwrap_or_default();
            gauge.judge(now, facts, &good.thresholds, hold);
            let of_good = gauge.ripe(now, facts, &good.thresholds);
            let is_of_both = |own: &EvictionThreshold| {
                of_good.iter().any(|other| other.signal.resource() == own.signal.resource())
            };
            ripe.retain(|own| is_of_both(own));
            gauge
        });
        // memory first as upstream; thresholds without a grace period before those with one
        let next = ripe
            .into_iter()
            .min_by_key(|threshold| (threshold.signal != Signal::Memory, threshold.grace.is_some()));
        self.pressing = next.and_then(|threshold| {
            let (available, capacity) = measured(threshold.signal, facts)?;
            let longest_grace = threshold.grace.map(|_| config.eviction.longest_grace);
            let least = threshold.least.amount(capacity)?;
            Some(Pressing { signal: threshold.signal, least, available, longest_grace })
        });
    }

    /// The reasons of upstream's Events about the conditions that differ from these.
    pub(crate) fn news(&self, before: [bool; 3]) -> Vec<&'static str> {
        let changed =
            self.pressed.iter().zip(before).zip(EVENTS).filter(|((now, before), _)| **now != *before);
        changed.map(|((now, _), reasons)| reasons[usize::from(*now)]).collect()
    }

    /// The conditions that keep new pods out.
    pub(crate) fn conditions(&self) -> Vec<&'static str> {
        let by_good = self.good.as_ref().map_or([true; CONDITIONS.len()], |good| good.pressed);
        let all = CONDITIONS.into_iter().zip(self.pressed).zip(by_good);
        all.filter(|((_, pressed), by_good)| *pressed && *by_good).map(|((name, _), _)| name).collect()
    }
}

/// `None` if it cannot be determined.
fn is_met(threshold: &EvictionThreshold, facts: &HostFacts, was_met: bool) -> Option<bool> {
    let (available, capacity) = measured(threshold.signal, facts)?;
    let Some(least) = threshold.least.amount(capacity) else { return Some(false) };
    let reclaim = threshold.reclaim.amount(capacity).filter(|_| was_met).unwrap_or(0);
    Some(available < least.saturating_add(reclaim))
}

/// False only if the host has the value and it could not be read now.
fn is_readable(signal: Signal, facts: &HostFacts) -> bool {
    let capacity = match signal {
        Signal::Memory => facts.memory_bytes,
        Signal::NodefsBytes | Signal::ImagefsBytes => facts.storage_bytes,
        Signal::NodefsInodes | Signal::ImagefsInodes => facts.inodes,
        Signal::Pids => facts.pids,
    };
    capacity == 0 || measured(signal, facts).is_some()
}

/// The available amount, and the capacity. `None` if one of the two could not be read, or the file system
/// does not count it.
fn measured(signal: Signal, facts: &HostFacts) -> Option<(u64, u64)> {
    let (available, capacity) = match signal {
        Signal::Memory => (facts.memory_available_bytes, facts.memory_bytes),
        Signal::NodefsBytes | Signal::ImagefsBytes => (facts.storage_available_bytes, facts.storage_bytes),
        Signal::NodefsInodes | Signal::ImagefsInodes => (facts.inodes_free, facts.inodes),
        Signal::Pids => (facts.pids_in_use.map(|used| facts.pids.saturating_sub(used)), facts.pids),
    };
    available.map(|available| (available, capacity)).filter(|_| capacity > 0)
}

fn condition_of(signal: Signal) -> usize {
    match signal {
        Signal::Memory => 0,
        Signal::Pids => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::quantity::Threshold;
    use kedge_api::Timestamp;

    fn config(thresholds: Vec<EvictionThreshold>) -> Config {
        let mut config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        config.eviction.thresholds = thresholds;
        config.eviction.longest_grace = Duration::from_secs(9);
        config
    }

    fn hard(signal: Signal) -> EvictionThreshold {
        EvictionThreshold { signal, least: Threshold::Amount(100), grace: None, reclaim: Threshold::Off }
    }

    /// A host with 1,000 of everything and this much available.
    fn host(memory: u64, storage: u64, inodes_free: u64, pids_in_use: u64) -> HostFacts {
        HostFacts {
            memory_bytes: 1000,
            storage_bytes: 1000,
            inodes: 1000,
            pids: 1000,
            memory_available_bytes: Some(memory),
            storage_available_bytes: Some(storage),
            inodes_free: Some(inodes_free),
            pids_in_use: Some(pids_in_use),
            ..HostFacts::default()
        }
    }

    fn at(secs: u64) -> Now {
        Now { mono: Duration::from_secs(secs), wall: Timestamp::default() }
    }

    #[test]
    fn amount_at_the_threshold_is_no_pressure() {
        let all = [Signal::Memory, Signal::NodefsBytes, Signal::NodefsInodes, Signal::Pids].map(hard);
        let check = |(memory, storage, inodes, pids), expect: [bool; 3]| {
            let mut pressures = Pressures::default();
            pressures.observe(at(0), &host(memory, storage, inodes, pids), &config(all.to_vec()), None);
            assert_eq!(pressures.pressed, expect, "{memory} {storage} {inodes} {pids}");
            assert_eq!(pressures.pressing.is_some(), expect != [false; 3]);
        };
        check((100, 100, 100, 900), [false, false, false]);
        check((99, 100, 100, 900), [true, false, false]);
        check((100, 99, 100, 900), [false, true, false]);
        check((100, 100, 99, 900), [false, true, false]);
        check((100, 100, 100, 901), [false, false, true]);
        check((100, 100, 100, 2000), [false, false, true]);
        let mut pressures = Pressures::default();
        let unknown = HostFacts { cpus: 1, ..HostFacts::default() };
        pressures.observe(at(0), &unknown, &config(all.to_vec()), None);
        assert_eq!((pressures.pressed, pressures.pressing), ([false; 3], None), "what could not be read");
    }

    #[test]
    fn look_that_fails_is_no_pressure_and_ends_none() {
        let soft = EvictionThreshold { grace: Some(Duration::from_secs(60)), ..hard(Signal::Memory) };
        let config = config(vec![hard(Signal::NodefsBytes), soft]);
        let mut pressures = Pressures::default();
        let blind = HostFacts {
            memory_available_bytes: None,
            storage_available_bytes: None,
            ..host(500, 500, 500, 0)
        };
        pressures.observe(at(0), &blind, &config, None);
        assert_eq!((pressures.pressed, pressures.pressing.is_some()), ([false; 3], false));
        let pressed = host(50, 50, 500, 0);
        for (secs, facts, evicts) in [(10, &pressed, true), (20, &blind, false), (69, &pressed, true)] {
            pressures.observe(at(secs), facts, &config, None);
            assert_eq!(pressures.pressed, [true, true, false], "after {secs} s");
            assert_eq!(pressures.pressing.is_some(), evicts, "after {secs} s");
        }
        pressures.observe(at(70), &host(50, 500, 500, 0), &config, None);
        let signal = pressures.pressing.as_ref().map(|it| it.signal);
        assert_eq!(signal, Some(Signal::Memory), "its grace period went on");
        pressures.observe(at(370), &blind, &config, None);
        assert_eq!(pressures.pressed, [false; 3], "a condition is not held by what cannot be read");
    }

    #[test]
    fn condition_is_held_for_its_period() {
        let config = config(vec![hard(Signal::Memory)]);
        let mut pressures = Pressures::default();
        for (secs, available, expect) in [
            (0, 500, [false, false]),
            (10, 50, [true, true]),
            (20, 99, [true, true]),
            (319, 500, [true, false]),
            (320, 500, [false, false]),
            (330, 500, [false, false]),
        ] {
            let before = pressures.pressed;
            pressures.observe(at(secs), &host(available, 500, 500, 0), &config, None);
            assert_eq!([pressures.pressed[0], pressures.pressing.is_some()], expect, "after {secs} s");
            let news: &[&str] = match secs {
                10 => &["NodeHasInsufficientMemory"],
                320 => &["NodeHasSufficientMemory"],
                _ => &[],
            };
            assert_eq!(pressures.news(before), news, "after {secs} s");
        }
    }

    #[test]
    fn threshold_is_met_until_its_reclaim_is_available() {
        let mut pressures = Pressures::default();
        let threshold = EvictionThreshold { reclaim: Threshold::Amount(50), ..hard(Signal::NodefsBytes) };
        let config = config(vec![threshold]);
        for (available, expect) in [(149, false), (99, true), (149, true), (150, false), (149, false)] {
            pressures.observe(at(0), &host(500, available, 500, 0), &config, None);
            assert_eq!(pressures.pressing.is_some(), expect, "{available}");
        }
    }

    #[test]
    fn soft_threshold_presses_at_once_and_evicts_later() {
        let soft = EvictionThreshold {
            least: Threshold::Amount(300),
            grace: Some(Duration::from_secs(60)),
            ..hard(Signal::Memory)
        };
        let config = config(vec![soft, hard(Signal::Memory), hard(Signal::NodefsBytes)]);
        let mut pressures = Pressures::default();
        // seconds, memory, storage; then whether the condition holds, and the threshold that evicts pods
        let soft = Some((Signal::Memory, 300, Some(9)));
        let hard = Some((Signal::Memory, 100, None));
        let disk = Some((Signal::NodefsBytes, 100, None));
        for (secs, memory, storage, expect) in [
            (0, 200, 500, None),
            (59, 200, 500, None),
            (60, 200, 500, soft),
            (61, 200, 50, soft),
            (62, 50, 50, hard),
            (63, 300, 50, disk),
            (64, 200, 500, None),
            (123, 200, 500, None),
            (124, 200, 500, soft),
        ] {
            pressures.observe(at(secs), &host(memory, storage, 500, 0), &config, None);
            let found = pressures.pressing.as_ref();
            let found = found.map(|it| (it.signal, it.least, it.longest_grace.map(|grace| grace.as_secs())));
            assert_eq!(found, expect, "after {secs} s");
            assert!(pressures.pressed[0], "the condition does not wait");
        }
        assert_eq!(pressures.conditions(), ["MemoryPressure", "DiskPressure"]);
    }

    #[test]
    fn trial_alone_ends_and_refuses_no_pod() {
        let trial = EvictionThreshold { least: Threshold::Amount(300), ..hard(Signal::Memory) };
        let on_trial = config(vec![trial, hard(Signal::NodefsBytes)]);
        let good = |thresholds| config(thresholds).eviction;
        // the available amounts, and the thresholds of the last-known-good; then whether pods end, and which
        // conditions keep new ones out
        let soft = EvictionThreshold { grace: Some(Duration::from_secs(60)), ..hard(Signal::Memory) };
        for (memory, storage, thresholds, ends, refuses) in [
            (200, 500, vec![hard(Signal::Memory)], false, vec![]),
            (50, 500, vec![hard(Signal::Memory)], true, vec!["MemoryPressure"]),
            (50, 500, vec![soft], false, vec!["MemoryPressure"]),
            (50, 500, vec![], false, vec![]),
            (200, 50, vec![hard(Signal::Memory)], false, vec![]),
            (200, 50, vec![hard(Signal::ImagefsBytes)], true, vec!["DiskPressure"]),
            (500, 500, vec![trial], false, vec![]),
        ] {
            let mut pressures = Pressures::default();
            let facts = host(memory, storage, 500, 0);
            pressures.observe(at(0), &facts, &on_trial, Some(&good(thresholds)));
            assert_eq!(pressures.pressed, [memory < 300, storage < 100, false], "the conditions are its own");
            assert_eq!(
                (pressures.pressing.is_some(), pressures.conditions()),
                (ends, refuses),
                "{memory} {storage}"
            );
            // proven since: its own thresholds count from now on
            pressures.observe(at(1), &facts, &on_trial, None);
            assert_eq!(pressures.pressing.is_some(), memory < 300 || storage < 100);
        }
    }

    #[test]
    fn look_is_whole_if_all_could_be_read() {
        let all = [Signal::Memory, Signal::NodefsInodes].map(hard);
        for (facts, expect) in [
            (host(500, 500, 500, 0), true),
            (HostFacts { memory_available_bytes: None, ..host(500, 500, 500, 0) }, false),
            (HostFacts { storage_available_bytes: None, ..host(500, 500, 500, 0) }, true),
            // a file system that does not count inodes
            (HostFacts { inodes: 0, inodes_free: None, ..host(500, 500, 500, 0) }, true),
        ] {
            let mut pressures = Pressures::default();
            pressures.observe(at(0), &facts, &config(all.to_vec()), None);
            assert_eq!(pressures.is_whole, expect);
        }
    }
}
