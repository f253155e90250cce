//! How fast nodes get NoExecute taints, depending on the share of ready nodes in their zone. Pure; states and
//! numbers are those of upstream's node lifecycle controller.
//!
//! Always holds: a zone gets at most one new NoExecute taint per [`PERIOD`], or per [`SECONDARY_PERIOD`]
//! while most of its nodes are not ready, and none if it is small as well; while no zone has a ready node,
//! the fault is more likely between the hub and all of them, so no node has such a taint. Left to others:
//! which taint is due (`taints`), and ending pods (`taint_eviction`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::value::text;

/// Time between two new NoExecute taints of a zone: upstream's --node-eviction-rate of 0.1 nodes a second.
const PERIOD: Duration = Duration::from_secs(10);
/// The same while most nodes of a large zone are not ready: --secondary-node-eviction-rate, 0.01.
const SECONDARY_PERIOD: Duration = Duration::from_secs(100);
/// Most nodes of a small zone, which gets no new taints while most of its nodes are not ready:
/// --large-cluster-size-threshold.
const SMALL: usize = 50;
/// Upstream's --unhealthy-zone-threshold, in percent, and the number of nodes that is always fewer than most.
pub(super) const MOST_PERCENT: usize = 55;
pub(super) const FEW: usize = 2;

/// Label of a node that is not counted in its zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// The zone in which a node's readiness is counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Region and zone; empty for a node without both labels: all such nodes share one zone.
    pub(super) zone: Box<str>,
    pub(super) counts: bool,
}

impl Place {
    pub(super) fn of(node: &Value) -> Place {
        let labels = &node["metadata"]["labels"];
        let (region, zone) = (
            text(labels, &["topology.kubernetes.io/region"]),
            text(labels, &["topology.kubernetes.io/zone"]),
        );
        let zone =
            if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}/{zone}") };
        Place { zone: zone.into(), counts: labels.get(EXCLUDED).is_none() }
    }
}

/// How many nodes of a zone are ready.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Census {
    pub(super) ready: usize,
    pub(super) not_ready: usize,
}

/// Upstream's Normal, PartialDisruption and FullDisruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Normal,
    MostNotReady,
    NoneReady,
}

impl Census {
    fn state(self) -> State {
        let all = self.ready + self.not_ready;
        if self.ready == 0 && self.not_ready > 0 {
            State::NoneReady
        } else if self.not_ready > FEW && self.not_ready * 100 >= all * MOST_PERCENT {
            State::MostNotReady
        } else {
            State::Normal
        }
    }

    /// Time between two taints; `None`: no taints are granted.
    fn period(self) -> Option<Duration> {
        match self.state() {
            State::MostNotReady if self.ready + self.not_ready <= SMALL => None,
            State::MostNotReady => Some(SECONDARY_PERIOD),
            State::Normal | State::NoneReady => Some(PERIOD),
        }
    }
}

/// Every zone that has nodes.
#[derive(Debug, Default)]
pub(super) struct Zones {
    zones: BTreeMap<Box<str>, Zone>,
    /// No zone has a ready node.
    pub(super) all_lost: bool,
    #[cfg(test)]
    pub(super) mutant: Option<Mutant>,
}

/// A broken promise, which a test of the rates must notice.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// The time of the last grant is forgotten.
    Forgetful,
    /// A large zone with mostly unready nodes is treated as healthy.
    NoSecondRate,
    /// A small zone with mostly unready nodes is treated as a large one.
    SmallIsLarge,
    /// The loss of all zones is ignored.
    LossIgnored,
}

#[derive(Debug, Default)]
struct Zone {
    census: Census,
    /// When the last taint was granted.
    last: Option<Duration>,
}

impl Zones {
    /// Takes in the nodes of each zone. Returns whether contact is back after a time in which no zone had a
    /// ready node.
    pub(super) fn count(&mut self, census: BTreeMap<&str, Census>) -> bool {
        self.zones.retain(|zone, _| census.contains_key(&**zone));
        for (zone, census) in census {
            self.zones.entry(zone.into()).or_default().census = census;
        }
        let counted = || self.zones.values().map(|zone| zone.census).filter(|of| of.ready + of.not_ready > 0);
        let all_lost = counted().next().is_some() && counted().all(|of| of.state() == State::NoneReady);
        #[cfg(test)]
        let all_lost = all_lost && self.mutant != Some(Mutant::LossIgnored);
        let was_lost = std::mem::replace(&mut self.all_lost, all_lost);
        was_lost && !all_lost
    }

    /// No zone gets a taint until `PERIOD` after this time.
    pub(super) fn hold_until(&mut self, time: Duration) {
        self.zones.values_mut().for_each(|zone| zone.last = Some(time));
    }

    /// Whether a node of this zone may get a new taint now; if so, the grant is counted.
    pub(super) fn grants(&mut self, zone: &str, now: Duration) -> bool {
        let Some(zone) = self.zones.get_mut(zone).filter(|_| !self.all_lost) else { return false };
        let period = zone.census.period();
        #[cfg(test)]
        let period = Mutant::period(self.mutant, period);
        let Some(period) = period else { return false };
        let is_granted = zone.last.is_none_or(|last| last + period <= now);
        if is_granted {
            zone.last = Some(now);
        }
        is_granted
    }
}

#[cfg(test)]
impl Mutant {
    fn period(mutant: Option<Self>, period: Option<Duration>) -> Option<Duration> {
        match (mutant, period) {
            (Some(Self::Forgetful), Some(_)) => Some(Duration::ZERO),
            (Some(Self::NoSecondRate), Some(_)) | (Some(Self::SmallIsLarge), None) => Some(PERIOD),
            _ => period,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn zone_state_follows_upstreams_thresholds() {
        let check = |ready, not_ready, expect, period: Option<u64>| {
            let census = Census { ready, not_ready };
            assert_eq!(census.state(), expect, "{census:?}");
            assert_eq!(census.period(), period.map(Duration::from_secs), "{census:?}");
        };
        check(0, 0, State::Normal, Some(10));
        check(1, 0, State::Normal, Some(10));
        check(0, 1, State::NoneReady, Some(10));
        check(0, 80, State::NoneReady, Some(10));
        check(1, 2, State::Normal, Some(10));
        check(1, 3, State::MostNotReady, None);
        check(9, 11, State::MostNotReady, None);
        check(46, 54, State::Normal, Some(10));
        check(22, 28, State::MostNotReady, None);
        check(22, 29, State::MostNotReady, Some(100));
    }

    #[test]
    fn zone_is_region_and_zone() {
        let check = |labels: Value, zone: &str, counts: bool| {
            let place = Place::of(&json!({"metadata": {"labels": labels}}));
            assert_eq!((&*place.zone, place.counts), (zone, counts));
        };
        check(json!(null), "", true);
        check(json!({"topology.kubernetes.io/zone": "z"}), "/z", true);
        check(json!({"topology.kubernetes.io/region": "r"}), "r/", true);
        check(json!({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"}), "r/z", true);
        check(json!({EXCLUDED: ""}), "", false);
    }
}
