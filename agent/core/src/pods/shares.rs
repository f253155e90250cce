//! How much of the pods that the API server shows is taken: each namespace may use only as much as it leaves
//! free for all others.
//!
//! Always holds: whatever pods one namespace has, those of another are taken while there is room for them; of
//! a pod that is not taken it is still known that it exists, whether it is being deleted, and whether it has
//! ended, because these facts take almost no room. Leaves to others: the handling of such a pod (`Pods`), and
//! the order in which pods come.

use crate::outbox::json_bytes;
use crate::sorted::SortedMap;
use serde_json::{Map, Value, json};

use super::spec::MIRROR_ANNOTATION;

/// Most pods that are taken; one namespace may use half of the room that the others leave.
pub(crate) const MOST_TAKEN: usize = 1000;
/// Most bytes of these together, as text: 250 pods of the largest size that etcd accepts would be 375 MB, and
/// real ones have 5 kB.
pub(crate) const MOST_TAKEN_BYTES: usize = 16 << 20;
/// Longest text that is taken of a pod that does not fit: names have 253 characters.
const LONGEST_TEXT: usize = 512;
/// Key beside the fields of a pod, which no API server lets anyone write: marks a part of a pod, with the
/// bytes of the whole.
const PART: &str = "partOf";

/// A number of things, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    count: usize,
    bytes: usize,
}

impl Amount {
    fn add(&mut self, bytes: usize) {
        self.count = self.count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The amounts taken of each namespace.
#[derive(Debug, Clone)]
pub struct Shares {
    most: Amount,
    all: Amount,
    of: SortedMap<String, Amount>,
}

impl Default for Shares {
    /// The limits for pods.
    fn default() -> Self {
        Self::within(MOST_TAKEN, MOST_TAKEN_BYTES)
    }
}

impl Shares {
    /// Shares of this many things with this many bytes together.
    pub(crate) fn within(count: usize, bytes: usize) -> Self {
        Self { most: Amount { count, bytes }, all: Amount::default(), of: SortedMap::new() }
    }

    /// Returns the pod, or only its part if it does not fit.
    pub fn admit(&mut self, pod: Value) -> Value {
        if is_part(&pod) {
            return pod;
        }
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let bytes = json_bytes(&pod);
        if !self.fits(namespace, bytes) {
            return part_of(&pod, bytes);
        }
        self.add(namespace, bytes);
        pod
    }

    /// Counts a thing that was taken before.
    pub(crate) fn add(&mut self, namespace: &str, bytes: usize) {
        self.all.add(bytes);
        match self.of.get_mut(namespace) {
            Some(own) => own.add(bytes),
            None => _ = self.of.insert(namespace.to_owned(), Amount { count: 1, bytes }),
        }
    }

    /// Whether it fits: a namespace may have as much as it leaves to others, which is half of the amount that
    /// those before it left.
    pub(crate) fn fits(&self, namespace: &str, bytes: usize) -> bool {
        let own = self.of.get(namespace).copied().unwrap_or_default();
        own.count < self.most.count.saturating_sub(self.all.count)
            && own.bytes.saturating_add(bytes) <= self.most.bytes.saturating_sub(self.all.bytes)
    }
}

/// Whether this is the part of a pod that did not fit.
pub(crate) fn is_part(pod: &Value) -> bool {
    whole_bytes(pod).is_some()
}

/// If so, the number of the pod's bytes.
pub(crate) fn whole_bytes(pod: &Value) -> Option<usize> {
    pod[PART].as_u64().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The part that is taken of a pod that does not fit, or of its metadata, with the number of its bytes: its
/// identity, its version, whether it is being deleted, and whether it has ended.
#[must_use]
pub fn part_of(pod: &Value, whole_bytes: usize) -> Value {
    let short = |value: &Value| match value {
        Value::String(text) if text.len() > LONGEST_TEXT => Value::Null,
        Value::Array(_) | Value::Object(_) => Value::Null,
        value => value.clone(),
    };
    let meta = &pod["metadata"];
    let mut kept = Map::new();
    for name in
        ["namespace", "name", "uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        kept.insert(name.into(), short(&meta[name]));
    }
    let hash = short(&meta["annotations"][MIRROR_ANNOTATION]);
    if !hash.is_null() {
        kept.insert("annotations".into(), json!({MIRROR_ANNOTATION: hash}));
    }
    kept.retain(|_, value| !value.is_null());
    json!({
        PART: whole_bytes,
        "metadata": kept,
        "spec": {"nodeName": short(&pod["spec"]["nodeName"])},
        "status": {"phase": short(&pod["status"]["phase"])},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, bytes: usize) -> Value {
        json!({"metadata": {"namespace": namespace, "name": "p", "uid": "u"}, "data": "x".repeat(bytes)})
    }

    #[test]
    fn small_namespace_has_room_beside_any_number_of_large_ones() {
        let mut shares = Shares::default();
        let mut taken = 0;
        for hog in 0..20 {
            for _ in 0..30 {
                taken += usize::from(!is_part(&shares.admit(pod(&format!("hog-{hog}"), 1_300_000))));
            }
            let small = shares.admit(pod("small", 5_000));
            assert!(!is_part(&small), "beside {hog} hogs");
        }
        assert!((8..=12).contains(&taken), "{taken}");
        assert!(shares.all.bytes <= MOST_TAKEN_BYTES);
    }

    #[test]
    fn many_pods_of_one_namespace_leave_places_to_others() {
        let mut shares = Shares::default();
        let many = (0..5_000).filter(|_| !is_part(&shares.admit(pod("many", 10)))).count();
        assert_eq!(many, MOST_TAKEN / 2);
        let others = (0..250).filter(|_| !is_part(&shares.admit(pod("other", 10)))).count();
        assert_eq!(others, 250);
        assert!(!is_part(&shares.admit(pod("third", 10))));
    }

    #[test]
    fn part_of_a_pod_is_small_and_tells_that_it_is_deleted() {
        let mut large = pod("n", 100);
        large["metadata"]["annotations"] = json!({"a": "x".repeat(100_000), MIRROR_ANNOTATION: "h"});
        large["metadata"]["resourceVersion"] = json!("7");
        large["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        large["metadata"]["deletionGracePeriodSeconds"] = json!(5);
        large["spec"]["nodeName"] = json!("edge");
        large["status"] = json!({"phase": "Running", "message": "x".repeat(1000)});
        let part = part_of(&large, 1000);
        let expected = json!({
            PART: 1000,
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5,
                "annotations": {MIRROR_ANNOTATION: "h"}},
            "spec": {"nodeName": "edge"},
            "status": {"phase": "Running"},
        });
        assert_eq!(part, expected);
        assert_eq!(Shares::default().admit(part.clone()), part, "it stays what it is");
        // a server may send anything
        let long = "x".repeat(100_000);
        for odd in [
            json!({"metadata": {"name": long, "uid": [long], "namespace": {"x": long}}}),
            json!(5),
            Value::Null,
        ] {
            assert!(json_bytes(&part_of(&odd, 1)) < 300, "{odd}");
        }
    }
}
