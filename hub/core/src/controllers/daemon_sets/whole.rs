//! Judges all nodes of a set and compares the result with the controller's look, which skips the nodes at
//! rest: both must be equal. Every look in every test is compared.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::controller::World;
use super::super::placing::Node;
use super::history::Revision;
use super::rest::{AtRest, Basis};
use super::rollout::{Failures, Judge, Verdict};
use super::update::{Plan, Pod, gather, plan};
use crate::kinds::{NODE, POD};

/// The result of the controller's look, and the revision that it looked at.
pub(super) struct Found<'a> {
    pub(super) current: &'a Revision,
    pub(super) is_renumbered: bool,
    pub(super) is_shown: bool,
    pub(super) verdict: &'a Verdict,
    pub(super) plan: &'a Plan,
    pub(super) failures: &'a Failures,
    /// When the next node at rest has to be judged again.
    pub(super) next: Option<Duration>,
}

/// Compares both results, and the cached objects with the stored ones.
pub(super) fn compare(world: &dyn World, uid: &str, by: &Basis<'_>, found: &Found<'_>) {
    let known = by.known.versions();
    let mut stored = BTreeSet::new();
    for (_, pod) in world.dependents(uid).into_iter().filter(|(kind, _)| kind.kind == POD.kind) {
        let version = (pod.name.to_string(), pod.revision);
        // an owner need not be the controller
        if known.contains(&version) || Pod::read(&pod.value()).controller == uid {
            stored.insert(version);
        }
    }
    assert_eq!(known, stored, "the known pods are those that are stored");
    let stored = world.list(&NODE, "");
    assert_eq!(by.nodes.len(), stored.len(), "the known nodes are those that are stored");
    for object in &stored {
        let Some((revision, node)) = by.nodes.get(&*object.name) else {
            panic!("{} is not known", object.name)
        };
        assert!(
            *revision == object.revision || *node == Node::read(object),
            "{} is not as stored",
            object.name
        );
    }
    let nodes: Vec<&Node> = by.nodes.values().map(|(_, node)| node).collect();
    let pods: Vec<&Pod> = by.known.pods().collect();
    let heres = gather(by.wanted, &nodes, &pods, by.wall);
    let mut failures = by.failures.clone();
    let judge = Judge {
        settings: by.settings,
        wanted: by.wanted,
        current: found.current,
        is_renumbered: found.is_renumbered,
        is_shown: found.is_shown,
        heres: &heres,
        at_rest: AtRest::default(),
        now: by.now,
    };
    let verdict = judge.judge(&mut failures);
    let whole = plan(by.wanted, &verdict, &heres, AtRest::default(), by.now);
    let next = [verdict.next, whole.next].into_iter().flatten().min();
    let sooner = [found.verdict.next, found.plan.next, found.next].into_iter().flatten().min();
    assert!(
        next.is_none() || sooner.is_some_and(|at| Some(at) <= next),
        "looks again at {sooner:?}, not {next:?}"
    );
    assert_eq!(&failures, found.failures);
    assert_eq!(Verdict { next: found.verdict.next, ..verdict }, *found.verdict);
    // a look at all nodes also lists ended pods that are not replaced yet
    let due = |plan: &Plan| -> Vec<Pod> {
        plan.ended.iter().filter(|pod| by.pauses_until(&pod.node).is_none()).cloned().collect()
    };
    assert_eq!(due(&whole), due(found.plan));
    assert_eq!(Plan { next: found.plan.next, ended: found.plan.ended.clone(), ..whole }, *found.plan);
}
