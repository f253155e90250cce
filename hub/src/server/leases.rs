//! The holder of each Lease, as far as the hub has seen: a leader renews its Lease every two seconds, and an
//! audit line for each renewal would bury the acts of people.
//!
//! Always holds: a write does not count as a renewal if it changes the holder, if another identity made the
//! named holder, or if it is of a node's Lease. Memory is bounded: beyond the limit every write of a Lease
//! counts as a change. Nothing is stored: after a start of the hub the first renewal of each holder counts as
//! a change. Left to others: the lines (`audited`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kedge_api::NODE_LEASE_NAMESPACE;
use kedge_hub_core::value::text;
use serde_json::{Map, Value};

/// Most Leases whose holders are remembered, some 300 bytes each.
const LEASES: usize = 1024;

/// The effect of a write on a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holding {
    /// The Lease's name: the path of a creation does not contain it.
    name: String,
    /// The holder that the Lease names; empty: none.
    holder: String,
    /// True if the write changes only the time of the last renewal.
    is_renewal: bool,
}

impl Holding {
    pub(super) fn of(old: Option<&Value>, new: &Value) -> Holding {
        let name = text(new, &["metadata", "name"]).to_owned();
        let holder = text(new, &["spec", "holderIdentity"]).to_owned();
        let is_renewal = old.is_some_and(|old| without_times(old) == without_times(new));
        Holding { name, holder, is_renewal }
    }
}

/// All parts that a renewal does not change; managed fields contain times, too.
fn without_times(lease: &Value) -> (Map<String, Value>, Map<String, Value>) {
    let part = |name: &str| lease[name].as_object().cloned().unwrap_or_default();
    let (mut meta, mut spec) = (part("metadata"), part("spec"));
    for field in ["managedFields", "resourceVersion"] {
        meta.remove(field);
    }
    spec.remove("renewTime");
    (meta, spec)
}

/// By namespace and name: the holder, and the identity that made it the holder.
type Known = HashMap<(Box<str>, Box<str>), (Box<str>, Box<str>)>;

/// The holders of the remembered Leases.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<Known>);

impl Holders {
    /// True if a write that was made only renews a Lease that `who` holds. Notes the holder from now on.
    pub(super) fn renews(&self, namespace: &str, holding: Holding, who: &str) -> bool {
        if namespace == NODE_LEASE_NAMESPACE {
            return false;
        }
        let Holding { name, holder, is_renewal } = holding;
        // one value is put in or taken out
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.into(), name.into_boxed_str());
        let before = known.get(&key);
        if let Some((before, whose)) = before.filter(|(before, _)| is_renewal && **before == *holder) {
            debug_assert!(!before.is_empty(), "nobody is no holder");
            return **whose == *who;
        }
        let has_room = before.is_some() || known.len() < LEASES;
        match holder.as_str() {
            "" => drop(known.remove(&key)),
            holder if has_room => drop(known.insert(key, (holder.into(), who.into()))),
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, transitions: u64, second: u64) -> Value {
        json!({"metadata": {"name": "l", "resourceVersion": second.to_string(),
                "managedFields": [{"manager": "m", "time": format!("00:00:{second}Z")}]},
            "spec": {"holderIdentity": holder, "leaseTransitions": transitions, "renewTime": format!("00:00:{second}Z")}})
    }

    #[test]
    fn renewal_changes_nothing_but_times() {
        let check = |change: fn(&mut Value), expect: bool| {
            let mut new = lease("h", 0, 2);
            change(&mut new);
            assert_eq!(Holding::of(Some(&lease("h", 0, 1)), &new).is_renewal, expect, "{new}");
        };
        check(|_| {}, true);
        check(|new| new["spec"]["holderIdentity"] = "other".into(), false);
        check(|new| new["spec"]["leaseDurationSeconds"] = 3600.into(), false);
        check(|new| new["metadata"]["labels"] = json!({"a": "b"}), false);
        check(|new| new["metadata"]["finalizers"] = json!(["a/b"]), false);
        assert!(!Holding::of(None, &lease("h", 0, 1)).is_renewal);
    }

    #[test]
    fn only_the_holder_renews_its_lease() {
        let holders = Holders::default();
        let write = |holder: &str, transitions: u64, who: &str| {
            let holding = Holding::of(Some(&lease("h", 0, 1)), &lease(holder, transitions, 2));
            holders.renews("kube-system", holding, who)
        };
        // the hub has not seen which identity made it the holder
        assert!(!write("h", 0, "a"));
        assert!(write("h", 0, "a"));
        // b writes, and a's holder stays
        assert!(!write("h", 0, "b"));
        assert!(write("h", 0, "a"));
        // b takes the Lease, and a then writes with b's holder
        assert!(!write("other", 1, "b"));
        assert!(!write("h", 0, "a"));
        assert!(write("h", 0, "a"));
        assert!(!write("", 1, "a"));
        assert!(!write("h", 0, "b"));
    }

    #[test]
    fn lease_of_a_node_is_held_by_nobody_else() {
        let holders = Holders::default();
        let renews = |namespace: &str, name: &str| {
            let (name, holder) = (name.to_owned(), "edge".to_owned());
            holders.renews(namespace, Holding { name, holder, is_renewal: true }, "admin")
        };
        assert!((0..3).all(|_| !renews(NODE_LEASE_NAMESPACE, "edge")));
        // beyond the limit each write is a change
        assert!((0..LEASES).all(|number| !renews("n", &number.to_string())));
        assert!(renews("n", "7") && !renews("n", "more") && !renews("n", "more"));
    }
}
