//! Deletes events: those above their age, the oldest ones of a node that has many, and, when there are too
//! many in all, the oldest ones of the users with the most.
//!
//! Inputs: Event, and the other kinds that a node's quota counts. Outputs: Event. Always holds: events of one
//! node never cause the deletion of another node's, and leave room for new ones in its quota; the cost of a
//! step grows with the events that it deletes, not with those that exist. Left to others: the permission of a
//! node to write (`requests::ALLOWANCES`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::controller::{Action, Controller, Decision, Done, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::event::NAME_FIELD;
use crate::kinds::{CERTIFICATE_REQUEST, EVENT, Kind, POD, schema};
use crate::object::{Event, Object};
use crate::requests::{DeleteOptions, QUOTA_BYTES};
use crate::value::text;

static INPUTS: &[&Kind] = &[&EVENT, &POD, &CERTIFICATE_REQUEST];
static OUTPUTS: &[&Kind] = &[&EVENT];

/// Events are deleted at this age, upstream's default. The age counts from creation by the hub's clock, once
/// that clock is trusted: a node's clock may be years off. An event that still repeats after that time is
/// created anew.
const LIFE: time::Duration = time::Duration::hours(1);
/// Between two looks at a clock that is not trusted.
const UNBELIEVED: Duration = Duration::from_secs(60);
/// Most events about or from one node; its quota is twice that, so an honest node is never refused.
const OF_ONE_NODE: usize = 128;
/// Most events in all. A thousand nodes that roll back at once write a few thousand.
const IN_ALL: usize = 20_000;
/// How many are deleted together when there are too many in all, so that the search for the users with the
/// most is rare.
const FREED: usize = 1_000;
/// Most deletions of one step.
const PER_STEP: usize = 1_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Events {
    /// Namespace and name of every known event by its creation time, in seconds.
    ages: BTreeSet<(i64, String, String)>,
    /// Users whose events are to be counted.
    holders: BTreeSet<Box<str>>,
    failed: Option<String>,
}

impl Controller for Events {
    type Purpose = ();
    const NAME: &'static str = "events";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(600));
    /// One commit's worth.
    const AT_ONCE: usize = 256;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        kind.kind == EVENT.kind || event.new.as_ref().is_some_and(|new| new.holder.is_some())
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        if kind.kind != EVENT.kind {
            self.holders.extend(event.new.as_ref().and_then(|new| new.holder.clone()));
            return;
        }
        match (&event.old, &event.new) {
            (Some(old), None) => drop(self.ages.remove(&age(old))),
            (None, Some(new)) => {
                self.ages.insert(age(new));
                self.holders.extend(new.holder.clone());
            }
            (_, new) => self.holders.extend(new.iter().filter_map(|new| new.holder.clone())),
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        let events = world.list(&EVENT, "");
        self.ages = events.iter().map(|event| age(event)).collect();
        self.holders.extend(events.iter().filter_map(|event| event.holder.clone()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<()> {
        let mut doomed = if now.ages { self.expired(world, now.wall) } else { Vec::new() };
        for holder in std::mem::take(&mut self.holders) {
            let charged = |kind: &&'static Kind| world.charged(&holder, kind);
            let others = INPUTS.iter().filter(|kind| kind.kind != EVENT.kind).flat_map(charged);
            let others = others.map(|object| object.json.len()).sum();
            doomed.extend(surplus(world.charged(&holder, &EVENT), others));
        }
        if self.ages.len() > IN_ALL {
            doomed.extend(of_those_with_most(world.list(&EVENT, "")));
        }
        let mut seen = BTreeSet::new();
        doomed.retain(|event| seen.insert(event.uid.clone()));
        let tasks = doomed.iter().map(|event| Task { purpose: (), action: delete(event) }).collect();
        let more = now.ages
            && self.ages.first().is_some_and(|(made, ..)| expiry(*made) <= now.wall)
            && !doomed.is_empty();
        Decision { tasks, guarded: None, more, next: self.next_expiry(now) }
    }

    fn performed(&mut self, (): (), outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<()>> {
        if let Err(error) = outcome
            && !matches!(error.code, 404 | 409)
        {
            self.failed = Some(format!("cannot delete old events: {error}; trying again"));
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        self.failed.take().map(|line| (Level::Warning, line)).into_iter().collect()
    }
}

impl Events {
    /// Events that are too old; forgotten here, so one whose deletion fails is found by the next sweep.
    fn expired(&mut self, world: &dyn World, now: OffsetDateTime) -> Vec<Arc<Object>> {
        let mut expired = Vec::new();
        while expired.len() < PER_STEP
            && let Some((made, ..)) = self.ages.first()
            && expiry(*made) <= now
            && let Some((_, namespace, name)) = self.ages.pop_first()
        {
            expired.extend(world.get(&EVENT, &namespace, &name));
        }
        expired
    }

    fn next_expiry(&self, now: Now) -> Option<Duration> {
        let (made, ..) = self.ages.first()?;
        let left = Duration::try_from(expiry(*made) - now.wall).unwrap_or_default();
        // a clock that is not trusted yet is checked again later
        let left = if now.ages { left } else { left.max(UNBELIEVED) };
        // one step for all that expire in the same minute
        Some(now.running + left.max(Duration::from_secs(1)))
    }
}

fn expiry(made: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(made).unwrap_or(OffsetDateTime::UNIX_EPOCH).saturating_add(LIFE)
}

fn age(event: &Object) -> (i64, String, String) {
    let made = schema::parse_time(text(&event.value(), &["metadata", "creationTimestamp"]));
    let made = made.map_or(0, OffsetDateTime::unix_timestamp);
    (made, event.namespace.to_string(), event.name.to_string())
}

/// The oldest events above a node's share, which is half of the quota that its other objects leave, so that
/// as much is left for new ones. A repeating event is updated, so events are ordered by revision instead of
/// creation.
fn surplus(mut events: Vec<Arc<Object>>, others: usize) -> Vec<Arc<Object>> {
    let most = QUOTA_BYTES.saturating_sub(others) / 2;
    events.sort_by_key(|event| std::cmp::Reverse(event.revision));
    let mut bytes = 0;
    let mut kept = 0;
    for event in &events {
        bytes += event.json.len();
        if kept == OF_ONE_NODE || bytes > most {
            break;
        }
        kept += 1;
    }
    events.split_off(kept)
}

/// The oldest events of the users with the most, until [`FREED`] fewer than the limit are left.
fn of_those_with_most(events: Vec<Arc<Object>>) -> Vec<Arc<Object>> {
    let mut excess = (events.len() + FREED).saturating_sub(IN_ALL);
    let mut groups: BTreeMap<Box<str>, Vec<Arc<Object>>> = BTreeMap::new();
    for event in events {
        let group = event.holder.clone().unwrap_or_else(|| event.field(NAME_FIELD).into());
        groups.entry(group).or_default().push(event);
    }
    let mut groups: Vec<Vec<Arc<Object>>> = groups.into_values().collect();
    for group in &mut groups {
        group.sort_by_key(|event| std::cmp::Reverse(event.revision));
    }
    groups.sort_by_key(Vec::len);
    let mut doomed = Vec::new();
    // lower the highest groups to the height of the next, until enough events are chosen
    while excess > 0
        && let Some(highest) = groups.last().map(Vec::len)
    {
        let first = groups.partition_point(|group| group.len() < highest);
        let below = first.checked_sub(1).map_or(0, |next| groups[next].len());
        let top = groups.len() - first;
        let height = below.max(highest.saturating_sub(excess.div_ceil(top)));
        for group in &mut groups[first..] {
            let taken = group.split_off(height);
            excess = excess.saturating_sub(taken.len());
            doomed.extend(taken);
        }
        groups.retain(|group| !group.is_empty());
    }
    doomed
}

fn delete(event: &Object) -> Action {
    let (namespace, name) = (event.namespace.to_string(), event.name.to_string());
    let options = DeleteOptions { uid: Some(event.uid.to_string()), ..DeleteOptions::default() };
    Action::Delete { kind: &EVENT, namespace, name, options, requires: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(node: &str, revision: u64, bytes: usize) -> Arc<Object> {
        let value = json!({"metadata": {"namespace": "default", "name": format!("{node}.{revision}"), "uid": revision.to_string()},
            "involvedObject": {"kind": "Node", "name": node}, "message": "x".repeat(bytes)});
        Arc::new(Object::new(&EVENT, &value, revision).unwrap())
    }

    fn revisions(events: &[Arc<Object>]) -> Vec<u64> {
        let mut revisions: Vec<u64> = events.iter().map(|event| event.revision).collect();
        revisions.sort_unstable();
        revisions
    }

    #[test]
    fn oldest_events_of_one_node_go_first() {
        let many = (1..=OF_ONE_NODE as u64 + 3).rev().map(|revision| event("a", revision, 1)).collect();
        assert_eq!(revisions(&surplus(many, 0)), [1, 2, 3]);
        let large: Vec<_> = (1..=4).map(|revision| event("a", revision, QUOTA_BYTES / 6)).collect();
        assert_eq!(revisions(&surplus(large.clone(), 0)), [1, 2]);
        assert_eq!(revisions(&surplus(large.clone(), QUOTA_BYTES / 2)), [1, 2, 3]);
        assert_eq!(revisions(&surplus(large, QUOTA_BYTES)), [1, 2, 3, 4]);
        assert!(surplus(Vec::new(), 0).is_empty());
    }

    #[test]
    fn flood_of_one_node_costs_no_other_events() {
        let quiet = (1..=100).map(|node| event(&format!("quiet-{node}"), node, 1));
        let loud = |name: &str, from: usize, count: usize| {
            let revisions = from as u64..(from + count) as u64;
            revisions.map(|revision| event(name, revision, 1)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = quiet.collect();
        all.extend(loud("a", 1_000, 12_000));
        all.extend(loud("b", 20_000, IN_ALL - 12_000));
        let doomed = of_those_with_most(all);
        assert_eq!(doomed.len(), 100 + FREED);
        assert!(doomed.iter().all(|event| &*event.holder.clone().unwrap() == "system:node:a"));
        assert_eq!(revisions(&doomed)[0], 1_000, "the oldest");
    }
}
