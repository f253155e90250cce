//! Taints that follow a node's conditions and `spec.unschedulable`, so that schedulers and controllers need
//! to read one field only. Pure; the rules are those of upstream's node lifecycle controller.
//!
//! Always holds: only the taints of this table change, others and their order stay; a taint that a Node
//! already has is not written again. Nodes cannot remove their own taints (`identity`). Different from
//! upstream: a lost node gets its taints in the same write as its mark, not in three. Left to others: which
//! node gets a NoExecute taint when (`zones`), and ending pods (`taint_eviction`).

use serde_json::{Value, json};

use crate::value::condition;
use kedge_api::{NO_CONTAINER_RUNTIME, NO_RUNTIME_TAINT, NOT_READY_TAINT, UNREACHABLE_TAINT};

/// The cause of a taint.
enum Cause {
    /// The condition has this status.
    Condition(&'static str, &'static str),
    /// `spec.unschedulable`.
    Cordoned,
    /// No pod can begin there: for want of a runtime, or because the node is to run none. Of a node that is
    /// lost it stays as it was.
    NoRuntime,
}

const NOT_READY: Cause = Cause::Condition("Ready", "False");
const UNREACHABLE: Cause = Cause::Condition("Ready", "Unknown");
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Every taint the hub sets. The position in this table is the bit in [`Taints`].
const TABLE: [(&str, &str, Cause); 10] = [
    // the first entry is the taint of `AT_CREATION`
    (NOT_READY_TAINT, NO_SCHEDULE, NOT_READY),
    (UNREACHABLE_TAINT, NO_SCHEDULE, UNREACHABLE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE, Cause::Condition("MemoryPressure", "True")),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE, Cause::Condition("DiskPressure", "True")),
    ("node.kubernetes.io/network-unavailable", NO_SCHEDULE, Cause::Condition("NetworkUnavailable", "True")),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE, Cause::Condition("PIDPressure", "True")),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE, Cause::Cordoned),
    (NOT_READY_TAINT, NO_EXECUTE, NOT_READY),
    (UNREACHABLE_TAINT, NO_EXECUTE, UNREACHABLE),
    (NO_RUNTIME_TAINT, NO_SCHEDULE, Cause::NoRuntime),
];

/// The taint that a Node has from its creation (`kinds::node`) until it first reports whether it is ready.
const AT_CREATION: Taints = Taints(1);

/// The change to the NoExecute taints that are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoExecute {
    /// The node gets the taints that are due.
    Grant,
    /// The node gets no new one, and keeps those that it has.
    Keep,
    /// The node loses those that it has.
    TakeOff,
}

/// A set of taints of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taints(u16);

impl Taints {
    fn of(is_in: impl Fn(usize) -> bool) -> Taints {
        Taints((0..TABLE.len()).filter(|index| is_in(*index)).fold(0, |bits, index| bits | 1 << index))
    }

    fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// The taints that the Node has.
    pub(super) fn carried_by(node: &Value) -> Taints {
        let carried = list(node);
        Taints::of(|index| carried.iter().any(|taint| is_of(taint, index)))
    }

    /// The taints that the Node should have.
    pub(super) fn due_to(node: &Value) -> Taints {
        let due = Taints::of(|index| match TABLE[index].2 {
            Cause::Condition(sort, status) => {
                condition(&node["status"], sort).is_some_and(|found| found["status"] == status)
            }
            Cause::Cordoned => node["spec"]["unschedulable"] == true,
            Cause::NoRuntime => {
                let ready = condition(&node["status"], "Ready");
                ready.is_some_and(|ready| match ready["status"].as_str() {
                    Some("True") => node["status"]["allocatable"]["pods"] == "0",
                    Some("False") => ready["reason"] == NO_CONTAINER_RUNTIME,
                    _ => list(node).iter().any(|taint| is_of(taint, index)),
                })
            }
        });
        match condition(&node["status"], "Ready") {
            Some(_) => due,
            None => Taints(due.0 | (Taints::carried_by(node).0 & AT_CREATION.0)),
        }
    }

    /// Whether NoExecute is among them.
    pub(super) fn evict(self) -> bool {
        (0..TABLE.len()).any(|index| self.has(index) && TABLE[index].1 == NO_EXECUTE)
    }

    /// The taints to set if a node has `carried` and this is due.
    pub(super) fn wanted(self, carried: Taints, no_execute: NoExecute) -> Taints {
        let may_evict = match no_execute {
            NoExecute::Grant => true,
            // a node with one of the two may get the other, as when it answers again but is not ready
            NoExecute::Keep => carried.evict(),
            NoExecute::TakeOff => false,
        };
        Taints::of(|index| self.has(index) && (may_evict || TABLE[index].1 != NO_EXECUTE))
    }
}

fn list(node: &Value) -> &[Value] {
    node["spec"]["taints"].as_array().map_or(&[], Vec::as_slice)
}

fn is_of(taint: &Value, index: usize) -> bool {
    taint["key"] == TABLE[index].0 && taint["effect"] == TABLE[index].1
}

/// Sets the taints that a Node should have by its conditions and spec. `wall` (RFC 3339) becomes `timeAdded`
/// of new ones.
pub(super) fn set(node: &mut Value, wall: &str, no_execute: NoExecute) {
    let carried = Taints::carried_by(node);
    let wanted = Taints::due_to(node).wanted(carried, no_execute);
    if wanted == carried {
        return;
    }
    let mut taints = list(node).to_vec();
    taints.retain(|taint| {
        (0..TABLE.len()).find(|index| is_of(taint, *index)).is_none_or(|index| wanted.has(index))
    });
    for (index, (key, effect, _)) in TABLE.iter().enumerate() {
        if wanted.has(index) && !carried.has(index) {
            taints.push(json!({"key": key, "effect": effect, "timeAdded": wall}));
        }
    }
    if taints.is_empty() {
        if let Some(spec) = node["spec"].as_object_mut() {
            spec.remove("taints");
        }
    } else {
        node["spec"]["taints"] = taints.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(conditions: &[(&str, &str)], cordoned: bool, taints: &[&str]) -> Value {
        let conditions: Vec<Value> =
            conditions.iter().map(|(sort, status)| json!({"type": sort, "status": status})).collect();
        let taints: Vec<Value> = taints
            .iter()
            .map(|taint| taint.split_once(':').unwrap())
            .map(|(key, effect)| json!({"key": key, "effect": effect, "timeAdded": "then"}))
            .collect();
        let mut node = json!({"spec": {"taints": taints}, "status": {"conditions": conditions}});
        if cordoned {
            node["spec"]["unschedulable"] = true.into();
        }
        node
    }

    fn shown(node: &Value) -> Vec<String> {
        let short = |taint: &Value| {
            let key = taint["key"].as_str().unwrap().replace("node.kubernetes.io/", "");
            format!("{key}:{} {}", taint["effect"].as_str().unwrap(), taint["timeAdded"].as_str().unwrap())
        };
        list(node).iter().map(short).collect()
    }

    #[track_caller]
    fn check_with(mut node: Value, no_execute: NoExecute, expect: &[&str]) {
        set(&mut node, "now", no_execute);
        assert_eq!(shown(&node), expect);
        let once = node.clone();
        set(&mut node, "later", no_execute);
        assert_eq!(node, once, "correct taints are not written again");
    }

    #[track_caller]
    fn check(node: Value, expect: &[&str]) {
        check_with(node, NoExecute::Grant, expect);
    }

    #[test]
    fn conditions_and_cordons_have_upstreams_taints() {
        let calm = ["not-ready:NoSchedule now", "not-ready:NoExecute now"];
        check(node(&[("Ready", "False")], false, &[]), &calm);
        let lost = ["unreachable:NoSchedule now", "unreachable:NoExecute now"];
        check(node(&[("Ready", "Unknown")], false, &[]), &lost);
        check(node(&[("Ready", "True")], false, &[]), &[]);
        check(node(&[], false, &[]), &[]);
        check(node(&[("Ready", "True")], true, &[]), &["unschedulable:NoSchedule now"]);
        let pressed = [
            ("Ready", "True"),
            ("MemoryPressure", "True"),
            ("DiskPressure", "True"),
            ("NetworkUnavailable", "True"),
            ("PIDPressure", "True"),
        ];
        let all = [
            "memory-pressure:NoSchedule now",
            "disk-pressure:NoSchedule now",
            "network-unavailable:NoSchedule now",
            "pid-pressure:NoSchedule now",
        ];
        check(node(&pressed, false, &[]), &all);
        check(node(&[("Ready", "True"), ("MemoryPressure", "Unknown")], false, &[]), &[]);
    }

    #[test]
    fn node_without_a_runtime_is_tainted_until_it_has_one() {
        let told = |ready: &str, reason: &str, pods: &str, taints: &[&str]| {
            let mut node = node(&[("Ready", ready)], false, taints);
            node["status"]["conditions"][0]["reason"] = reason.into();
            node["status"]["allocatable"] = json!({"pods": pods});
            node
        };
        let (calm, tainted) = (["not-ready:NoSchedule now", "not-ready:NoExecute now"], [NO_RUNTIME]);
        const NO_RUNTIME: &str = "kedge.dev/no-container-runtime:NoSchedule";
        let with = |state: &str| format!("{NO_RUNTIME} {state}");
        check(told("False", "NoContainerRuntime", "0", &[]), &[calm[0], calm[1], &with("now")]);
        // it hangs, or is starting
        check(told("False", "KubeletNotReady", "0", &[]), &calm);
        // `--crun ""`
        check(told("True", "KubeletReady", "0", &[]), &[&with("now")]);
        // it was installed
        check(told("True", "KubeletReady", "110", &tainted), &[]);
        // lost meanwhile: nobody knows
        let lost = ["unreachable:NoSchedule now", "unreachable:NoExecute now"];
        check(told("Unknown", "NodeStatusUnknown", "0", &[]), &lost);
        check(told("Unknown", "NodeStatusUnknown", "0", &tainted), &[&with("then"), lost[0], lost[1]]);
    }

    #[test]
    fn creation_taint_stays_until_the_node_reports_ready() {
        let made = ["node.kubernetes.io/not-ready:NoSchedule"];
        check(node(&[], false, &made), &["not-ready:NoSchedule then"]);
        check(
            node(&[("MemoryPressure", "False")], true, &made),
            &["not-ready:NoSchedule then", "unschedulable:NoSchedule now"],
        );
        check(node(&[("Ready", "True")], false, &made), &[]);
        check(
            node(&[("Ready", "False")], false, &made),
            &["not-ready:NoSchedule then", "not-ready:NoExecute now"],
        );
        let lost = ["unreachable:NoSchedule now", "unreachable:NoExecute now"];
        check(node(&[("Ready", "Unknown")], false, &made), &lost);
        let evicting = ["node.kubernetes.io/not-ready:NoExecute"];
        check(node(&[], false, &evicting), &[]);
    }

    #[test]
    fn taints_change_without_touching_those_of_others() {
        let own = "example.com/x:NoSchedule";
        let same_key = "node.kubernetes.io/unreachable:PreferNoSchedule";
        let gone = ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"];
        check(
            node(&[("Ready", "True")], false, &[gone[0], own, gone[1], same_key]),
            &["example.com/x:NoSchedule then", "unreachable:PreferNoSchedule then"],
        );
        // from unreachable to not ready: one pair of taints replaces the other
        check(
            node(&[("Ready", "False")], false, &[own, gone[0], gone[1]]),
            &["example.com/x:NoSchedule then", "not-ready:NoSchedule now", "not-ready:NoExecute now"],
        );
        check(node(&[("Ready", "True")], false, &gone), &[]);
    }

    #[test]
    fn no_execute_is_granted_kept_or_taken_off() {
        let lost = |taints: &[&str]| node(&[("Ready", "Unknown")], false, taints);
        let (held, no_schedule) = ("unreachable:NoExecute then", "unreachable:NoSchedule now");
        check_with(lost(&[]), NoExecute::Keep, &[no_schedule]);
        check_with(lost(&[]), NoExecute::TakeOff, &[no_schedule]);
        let carried = ["node.kubernetes.io/unreachable:NoExecute"];
        check_with(lost(&carried), NoExecute::Keep, &[held, no_schedule]);
        check_with(lost(&carried), NoExecute::TakeOff, &[no_schedule]);
        check_with(node(&[("Ready", "True")], false, &carried), NoExecute::Keep, &[]);
        let not_ready = ["not-ready:NoSchedule now", "not-ready:NoExecute now"];
        check_with(node(&[("Ready", "False")], false, &carried), NoExecute::Keep, &not_ready);
    }
}
