//! The Events that controllers record.
//!
//! Always holds: an Event's name begins with that of its object and is valid however long that is. Leaves to
//! others: whether a repeated Event is counted (same mark, so the same name) or created anew (the mark
//! contains the time).

use serde_json::{Value, json};

use super::controller::Now;
use crate::kinds::Kind;
use crate::value::rfc3339;

/// Longest part of an object's name in that of an Event, which has 253 characters at most.
const NAME_BYTES: usize = 200;

/// The object that an Event is about, as its reference.
pub(super) struct About<'a> {
    pub(super) kind: &'static Kind,
    /// Empty for objects of the cluster.
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    pub(super) revision: Option<u64>,
}

/// What happened.
pub(super) struct What<'a> {
    /// `Normal` or `Warning`.
    pub(super) sort: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

/// An Event in a namespace. `mark`: the end of its name.
pub(super) fn event(
    about: &About<'_>,
    what: &What<'_>,
    component: &str,
    namespace: &str,
    mark: &str,
    now: Now,
) -> Value {
    let time = rfc3339(now.wall);
    let of = about.name[..about.name.floor_char_boundary(NAME_BYTES)].trim_end_matches(['.', '-']);
    let mut involved = json!({"apiVersion": about.kind.api_version(), "kind": about.kind.kind, "name": about.name, "uid": about.uid});
    if !about.namespace.is_empty() {
        involved["namespace"] = about.namespace.into();
    }
    if let Some(revision) = about.revision {
        involved["resourceVersion"] = revision.to_string().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{of}.{mark}"), "namespace": namespace},
        "involvedObject": involved,
        "reason": what.reason, "message": what.message, "type": what.sort,
        "source": {"component": component}, "reportingComponent": component, "reportingInstance": "",
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{NODE, POD};
    use std::time::Duration;

    #[test]
    fn event_names_its_object_and_has_a_valid_name() {
        let now = Now {
            running: Duration::ZERO,
            wall: time::OffsetDateTime::UNIX_EPOCH,
            ages: true,
            right: true,
            stalled: Duration::ZERO,
            disk_stalled: Duration::ZERO,
            disk_stalls: false,
        };
        let what = What { sort: "Normal", reason: "R", message: "m" };
        let about = About { kind: &NODE, namespace: "", name: "a", uid: "u", revision: None };
        let of_node = event(&about, &what, "c", "default", "x", now);
        assert_eq!(of_node["metadata"], json!({"name": "a.x", "namespace": "default"}));
        assert_eq!(
            of_node["involvedObject"],
            json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u"})
        );
        let long = format!("{}-{}", "p".repeat(199), "q".repeat(53));
        let about = About { kind: &POD, namespace: "n", name: &long, uid: "u", revision: Some(7) };
        let of_pod = event(&about, &what, "c", "n", "x", now);
        assert_eq!(of_pod["metadata"]["name"], format!("{}.x", "p".repeat(199)));
        assert_eq!(of_pod["involvedObject"]["resourceVersion"], "7");
    }
}
