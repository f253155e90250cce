//! Node pressure in the configuration: signals, their hard and soft thresholds, how they end pods.
//!
//! Always holds: an entry that a kubelet refuses is refused in a push, and so is a threshold beyond half of
//! the node's capacity; in this machine's own files, which the first release accepted unread, such an entry
//! is left out, such a threshold counts as half, and both are reported. Leaves to others: when a threshold is
//! met (`node::pressure`), which pods end (`pods`).

use super::layers::Capacity;
use super::quantity::{Quantity, Threshold};
use super::schema::Beyond;
use super::{duration, path};
use core::time::Duration;
use kedge_api::excerpt;
use serde_json::{Map, Value};

/// A measured resource of the node. Images have no file system of their own here: `imagefs` is the same as
/// `nodefs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    Memory,
    NodefsBytes,
    NodefsInodes,
    ImagefsBytes,
    ImagefsInodes,
    Pids,
}

const SIGNALS: [(&str, Signal); 6] = [
    ("memory.available", Signal::Memory),
    ("nodefs.available", Signal::NodefsBytes),
    ("nodefs.inodesFree", Signal::NodefsInodes),
    ("imagefs.available", Signal::ImagefsBytes),
    ("imagefs.inodesFree", Signal::ImagefsInodes),
    ("pid.available", Signal::Pids),
];
/// Signals of a kubelet that this node does not measure.
const OTHER_SIGNALS: [&str; 3] =
    ["containerfs.available", "containerfs.inodesFree", "allocatableMemory.available"];

impl Signal {
    fn parse(name: &str) -> Option<Self> {
        SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal)
    }

    /// Upstream's name for the resource whose shortage ends pods.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodefsBytes | Self::ImagefsBytes => "ephemeral-storage",
            Self::NodefsInodes | Self::ImagefsInodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

/// The limit from which there is pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionThreshold {
    pub signal: Signal,
    /// Less than this is available.
    pub least: Threshold,
    /// `evictionSoftGracePeriod`: how long before pods end; `None` for a hard one, which ends them at once.
    pub grace: Option<Duration>,
    /// `evictionMinimumReclaim`: this much more must be available before it is over.
    pub reclaim: Threshold,
}

/// `evictionHard`, `evictionSoft` and the fields that belong to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    pub thresholds: Vec<EvictionThreshold>,
    /// `evictionMaxPodGracePeriod`: longest grace of a pod that ends for a soft threshold.
    pub longest_grace: Duration,
}

const HARD: &str = "evictionHard";
/// The highest threshold.
const HALF: &str = "50%";
pub(super) const SOFT: &str = "evictionSoft";
pub(super) const PERIODS: &str = "evictionSoftGracePeriod";
pub(super) const RECLAIM: &str = "evictionMinimumReclaim";

impl Eviction {
    /// `hard` as read; the maps from the object, whose entries are readable.
    pub(super) fn read(
        hard: &[(Signal, Threshold)],
        object: &Map<String, Value>,
        longest_grace: Duration,
    ) -> Self {
        let text = |field: &str, signal: Signal| {
            let (name, _) = SIGNALS.iter().find(|(_, known)| *known == signal)?;
            object.get(field)?.get(name)?.as_str()
        };
        let reclaim = |signal| text(RECLAIM, signal).and_then(reclaim_of).unwrap_or(Threshold::Off);
        let hard = hard.iter().map(|(signal, least)| (*signal, *least, None));
        let soft = SIGNALS.iter().filter_map(|(_, signal)| {
            let least = Threshold::parse(text(SOFT, *signal)?)?;
            Some((*signal, least, Some(period_of(text(PERIODS, *signal)?)?)))
        });
        let thresholds = hard.chain(soft).map(|(signal, least, grace)| {
            let reclaim = reclaim(signal);
            EvictionThreshold { signal, least, grace, reclaim }
        });
        Self { thresholds: thresholds.collect(), longest_grace }
    }
}

impl Capacity {
    fn of(self, signal: Signal) -> u64 {
        match signal {
            Signal::Memory => self.memory_bytes,
            Signal::NodefsBytes | Signal::ImagefsBytes => self.storage_bytes,
            Signal::NodefsInodes | Signal::ImagefsInodes => self.inodes,
            Signal::Pids => self.pids,
        }
    }
}

/// Limits thresholds to half of the node's capacity: one beyond that is a typing error, and would end pods
/// that no later configuration brings back. `is_written` tells whether somebody wrote the value at this path.
pub(super) fn hold_thresholds(
    object: &mut Map<String, Value>,
    capacity: Capacity,
    is_written: &dyn Fn(&str) -> bool,
    report: &mut dyn FnMut(Beyond),
) {
    for field in [HARD, SOFT, RECLAIM] {
        let Some(Value::Object(entries)) = object.get_mut(field) else { continue };
        for (name, value) in entries {
            let mut path = field.to_owned();
            path::enter(&mut path, name);
            let Some(signal) = Signal::parse(name).filter(|_| is_written(&path)) else { continue };
            let has = capacity.of(signal);
            let text = value.as_str().unwrap_or_default();
            if !Threshold::parse(text).is_some_and(|least| least.is_beyond_half(has)) {
                continue;
            }
            let of = if text.ends_with('%') { String::new() } else { format!(" ({has})") };
            let message =
                format!("{path} is {:?}, expected at most 50% of what the node has{of}", excerpt(text));
            report(Beyond { field: path, message, nearest: HALF.into(), was_taken: true });
            *value = HALF.into();
        }
    }
}

fn period_of(text: &str) -> Option<Duration> {
    duration::parse(text).and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos)
}

/// Unlike a threshold it may be zero.
fn reclaim_of(text: &str) -> Option<Threshold> {
    let is_zero = Quantity::parse(text).is_some_and(Quantity::is_zero);
    if is_zero { Some(Threshold::Off) } else { Threshold::parse(text) }
}

/// Whether a text is such a value.
type IsRight = fn(&str) -> bool;

/// Each map with the meaning of its values.
const MAPS: [(&str, &str, IsRight); 3] = [
    (PERIODS, "a duration such as \"1m30s\" that is not negative", |text| period_of(text).is_some()),
    (SOFT, "a quantity such as \"200Mi\" or a percentage from \"0%\" to \"100%\"", |text| {
        Threshold::parse(text).is_some()
    }),
    (RECLAIM, "a quantity such as \"200Mi\" or a percentage from \"0%\" to \"100%\"", |text| {
        reclaim_of(text).is_some()
    }),
];

/// Removes unreadable entries, and reports them.
pub(super) fn hold_entries(object: &mut Map<String, Value>, report: &mut dyn FnMut(Beyond)) {
    let mut without_period: Vec<String> = Vec::new();
    for (field, expected, is_right) in MAPS {
        let Some(Value::Object(entries)) = object.get_mut(field) else { continue };
        entries.retain(|signal, value| {
            let mut path = field.to_owned();
            path::enter(&mut path, signal);
            let is_known = Signal::parse(signal).is_some() || OTHER_SIGNALS.contains(&signal.as_str());
            let text = value.as_str().unwrap_or_default();
            let message = match (is_known, is_right(text)) {
                (true, true) => return true,
                (true, false) => format!("{path} is {:?}, expected {expected}", excerpt(text)),
                (false, _) => format!("{} is no signal of a kubelet", excerpt(&path)),
            };
            if field == PERIODS {
                without_period.push(signal.clone());
            }
            report(Beyond { field: path, message, nearest: "nothing".into(), was_taken: true });
            false
        });
    }
    if let Some(Value::Object(soft)) = object.get_mut(SOFT) {
        soft.retain(|signal, _| !without_period.contains(signal));
    }
}
