//! What goes away by itself: dependents of deleted owners, the content of deleted namespaces, old events.
//!
//! Small and level-driven: on every deletion or marking it looks at the state as it is, and it looks at everything once at
//! start and then now and again, so that nothing it missed stays. An owner is gone when no object of its UID exists; owners of
//! kinds that are not served are never judged gone. Everything is deleted through the same verbs as a client's request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::Hub;
use crate::requests;
use kedge_hub_core::kinds::pod::NODE_NAME_FIELD;
use kedge_hub_core::kinds::{EVENT, KINDS, Kind, NAMESPACE, NODE, POD, at, schema, text};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::{DeleteOptions, FOREGROUND, ORPHAN, Place, Propagation, WriteOptions};

/// Everything is looked at this often, besides what changes.
const SWEEP: Duration = Duration::from_secs(60);
/// Events live this long, upstream's default. Counted from their creation: one that is counted up for longer comes anew.
const EVENT_LIFE: time::Duration = time::Duration::hours(1);
/// Events kept at most; the oldest go first. A thousand nodes that roll back at once write a few thousand.
const MAX_EVENTS: usize = 20_000;
/// Wait before subscriptions are made again.
const RESUBSCRIBE: Duration = Duration::from_millis(200);

/// What was done is said this often: an owner with ten thousand dependents is a line, not ten thousand.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// Owners named each time; the rest is a number.
const OWNERS_NAMED: usize = 10;

/// Of an owner's name, which nobody checked in a reference, so much is said: the longest name there can be.
const OWNER_NAME_CHARS: usize = 253;

/// Runs until the hub closes.
pub async fn run(hub: Arc<Hub>) {
    let mut collector = Collector { hub: Arc::clone(&hub), tally: Tally::default() };
    loop {
        let (changes, mut heard) = tokio::sync::mpsc::channel::<(usize, Arc<Event>)>(1024);
        let mut listeners = tokio::task::JoinSet::new();
        for (index, kind) in KINDS.iter().enumerate() {
            let mut subscription = hub.subscribe(kind);
            let changes = changes.clone();
            listeners.spawn(async move {
                while let Some(event) = subscription.next().await {
                    if matters(&event) && changes.send((index, event)).await.is_err() {
                        return;
                    }
                }
            });
        }
        drop(changes);
        collector.sweep().await;
        let mut next_sweep = tokio::time::interval_at(tokio::time::Instant::now() + SWEEP, SWEEP);
        let mut next_telling = tokio::time::interval(TOLD_EVERY);
        next_telling.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = heard.recv() => match change {
                    Some((kind, event)) => collector.react(KINDS[kind], &event).await,
                    None => break,
                },
                _ = next_sweep.tick() => collector.sweep().await,
                _ = next_telling.tick() => collector.tally.tell(),
                // a listener that ended fell behind or the hub closes
                _ = listeners.join_next() => break,
            }
        }
        collector.tally.tell();
        drop(listeners);
        tokio::time::sleep(RESUBSCRIBE).await;
    }
}

fn matters(event: &Event) -> bool {
    match &event.new {
        None => true,
        Some(new) => new.terminating || (event.old.is_none() && !new.owners.is_empty()),
    }
}

/// Who collects, and what there is to say of it.
struct Collector {
    hub: Arc<Hub>,
    tally: Tally,
}

impl Collector {
    async fn react(&mut self, kind: &'static Kind, event: &Event) {
        match &event.new {
            None => {
                let gone = event.object();
                self.delete_dependents(&gone.uid).await;
                self.finish_owners(gone).await;
                if kind.namespaced {
                    self.finish_namespace(&gone.namespace).await;
                }
            }
            Some(new) if new.terminating => self.finish(kind, new).await,
            Some(new) => self.check_owners(kind, new).await,
        }
    }

    /// Looks at everything.
    async fn sweep(&mut self) {
        for kind in KINDS {
            for object in self.hub.list(kind, "") {
                if object.terminating {
                    self.finish(kind, &object).await;
                } else if !object.owners.is_empty() {
                    self.check_owners(kind, &object).await;
                }
            }
        }
        self.release_lost_pods().await;
        self.expire_events().await;
    }

    /// A pod that goes away waits for its node to say that it has ended; a node that is no more never will.
    async fn release_lost_pods(&mut self) {
        for pod in self.hub.list(&POD, "") {
            let node = pod.field(NODE_NAME_FIELD);
            if !pod.terminating || node.is_empty() || self.hub.get(&NODE, "", node).is_some() {
                continue;
            }
            let asked =
                DeleteOptions { uid: Some(pod.uid.to_string()), grace_secs: Some(0), ..Default::default() };
            let internal = WriteOptions::internal();
            let outcome = requests::delete(
                &self.hub,
                &Place { kind: &POD, namespace: &pod.namespace, name: &pod.name },
                &asked,
                &internal,
            )
            .await;
            self.report(&POD, &pod, outcome.map(drop));
        }
    }

    async fn delete(&mut self, kind: &'static Kind, object: &Object) -> bool {
        self.delete_as(kind, object, Propagation::Unset).await
    }

    /// Says whether it was this that deleted it.
    async fn delete_as(&mut self, kind: &'static Kind, object: &Object, propagation: Propagation) -> bool {
        let uid = Some(object.uid.to_string());
        let options = DeleteOptions { uid, propagation, ..Default::default() };
        let internal = WriteOptions::internal();
        let outcome = requests::delete(
            &self.hub,
            &Place { kind, namespace: &object.namespace, name: &object.name },
            &options,
            &internal,
        )
        .await;
        match outcome {
            Ok(_) => true,
            Err(error) if matches!(error.code, 404 | 409) => false,
            Err(error) => {
                let place = format!("{}/{}", object.namespace, object.name);
                self.tally.failed(format!("cannot delete {} {place}: {error}", kind.plural));
                false
            }
        }
    }

    async fn delete_dependents(&mut self, uid: &str) {
        for (kind, object) in self.hub.memory().dependents(uid) {
            self.check_owners(kind, &object).await;
        }
    }

    /// An owner that waits for its dependents may have waited for this one.
    async fn finish_owners(&mut self, gone: &Object) {
        for owner in references(&gone.value()) {
            let Some((kind, found)) = find_owner(&self.hub, &gone.namespace, &owner) else { continue };
            if found.terminating && &*found.uid == text(&owner, &["uid"]) {
                self.finish(kind, &found).await;
            }
        }
    }

    /// Deletes an object when all its owners are gone; while one is left, only the references to the others go.
    async fn check_owners(&mut self, kind: &'static Kind, object: &Object) {
        let (alive, gone): (Vec<Value>, Vec<Value>) = references(&object.value())
            .into_iter()
            .partition(|owner| owner_exists(&self.hub, &object.namespace, owner));
        if gone.is_empty() || object.terminating {
            return;
        }
        if alive.is_empty() {
            if self.delete(kind, object).await {
                self.tally.collected(&gone[0], kind);
            }
            return;
        }
        for owner in gone {
            self.disown(kind, object, text(&owner, &["uid"])).await;
        }
    }

    /// Does what a marked object waits for.
    async fn finish(&mut self, kind: &'static Kind, object: &Object) {
        let value = object.value();
        if kind.kind == NAMESPACE.kind {
            self.empty_namespace(&object.name).await;
        }
        if has_finalizer(&value, ORPHAN) {
            for (kind, dependent) in self.hub.memory().dependents(&object.uid) {
                self.disown(kind, &dependent, &object.uid).await;
            }
            self.remove_finalizer(kind, object, ORPHAN).await;
        }
        if has_finalizer(&value, FOREGROUND) {
            for (kind, dependent) in blocking(&self.hub, &object.uid) {
                self.delete_first(kind, &dependent, &object.uid).await;
            }
            if blocking(&self.hub, &object.uid).is_empty() {
                self.remove_finalizer(kind, object, FOREGROUND).await;
            }
        }
    }

    /// Deletes what an owner waits for, and that in turn waits for its own dependents. Who has another owner stays with that one.
    async fn delete_first(&mut self, kind: &'static Kind, dependent: &Object, owner: &str) {
        let shared = references(&dependent.value()).iter().any(|reference| {
            text(reference, &["uid"]) != owner && owner_exists(&self.hub, &dependent.namespace, reference)
        });
        if shared {
            return self.disown(kind, dependent, owner).await;
        }
        let leaf = self.hub.memory().dependents(&dependent.uid).is_empty();
        let propagation = if leaf { Propagation::Unset } else { Propagation::Foreground };
        self.delete_as(kind, dependent, propagation).await;
    }

    async fn disown(&mut self, kind: &'static Kind, dependent: &Object, owner: &str) {
        let outcome = self.hub.update(kind, &dependent.namespace, &dependent.name, |value| {
            if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|reference| reference["uid"] != owner);
            }
        });
        self.report(kind, dependent, outcome.await.map(drop));
    }

    async fn remove_finalizer(&mut self, kind: &'static Kind, object: &Object, finalizer: &str) {
        let outcome = self.hub.update(kind, &object.namespace, &object.name, |value| {
            if value["metadata"]["uid"] == *object.uid
                && let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut()
            {
                finalizers.retain(|known| known != finalizer);
            }
        });
        self.report(kind, object, outcome.await.map(drop));
    }

    fn report(&mut self, kind: &Kind, object: &Object, outcome: Result<(), kedge_hub_core::ApiError>) {
        match outcome {
            Ok(()) => {}
            Err(error) if error.code == 404 => {}
            Err(error) => {
                let place = format!("{}/{}", object.namespace, object.name);
                self.tally.failed(format!("cannot update {} {place}: {error}", kind.plural));
            }
        }
    }

    /// Deletes what is in a terminating namespace, then lets the namespace go.
    async fn empty_namespace(&mut self, namespace: &str) {
        for (kind, object) in self.hub.memory().in_namespace(namespace) {
            if !object.terminating {
                let options = DeleteOptions { propagation: Propagation::Background, ..Default::default() };
                let internal = WriteOptions::internal();
                let outcome = requests::delete(
                    &self.hub,
                    &Place { kind, namespace, name: &object.name },
                    &options,
                    &internal,
                )
                .await;
                self.report(kind, &object, outcome.map(drop));
            }
        }
        self.finish_namespace(namespace).await;
    }

    async fn finish_namespace(&mut self, namespace: &str) {
        let terminating = self.hub.get(&NAMESPACE, "", namespace).is_some_and(|found| found.terminating);
        if !terminating || !self.hub.memory().in_namespace(namespace).is_empty() {
            return;
        }
        let outcome = requests::finalize_namespace(&self.hub, namespace).await;
        match outcome {
            Ok(_) => log::info!("namespace {namespace} is empty and gone"),
            Err(error) if error.code == 404 => {}
            Err(error) => log::warn!("cannot finish namespace {namespace}: {error}"),
        }
    }

    async fn expire_events(&mut self) {
        let now = time::OffsetDateTime::now_utc();
        let mut events = self.hub.list(&EVENT, "");
        // an event that is counted up is written again: its revision tells its age among the others
        events.sort_by_key(|event| event.revision);
        let surplus = events.len().saturating_sub(MAX_EVENTS);
        for (index, event) in events.iter().enumerate() {
            let old = made_at(&event.value()).is_some_and(|made| now - made > EVENT_LIFE);
            if index < surplus || old {
                self.delete(&EVENT, event).await;
            }
        }
    }
}

/// What there is to say at the next telling; bounded, whatever happens until then.
#[derive(Debug, Default)]
struct Tally {
    /// How many objects of which kind were deleted because this owner is gone, for the first [`OWNERS_NAMED`] owners.
    collected: BTreeMap<String, BTreeMap<&'static str, usize>>,
    /// And those of more owners.
    of_others: usize,
    /// The first thing that went wrong, and how many did.
    failure: String,
    failures: usize,
}

impl Tally {
    fn collected(&mut self, owner: &Value, kind: &Kind) {
        let name: String = text(owner, &["name"]).chars().take(OWNER_NAME_CHARS).collect();
        let owner = format!("{} {name:?}", text(owner, &["kind"]));
        if self.collected.len() < OWNERS_NAMED || self.collected.contains_key(&owner) {
            *self.collected.entry(owner).or_default().entry(kind.plural).or_default() += 1;
        } else {
            self.of_others += 1;
        }
    }

    fn failed(&mut self, why: String) {
        if self.failures == 0 {
            self.failure = why;
        }
        self.failures += 1;
    }

    /// Says it, and begins anew.
    fn tell(&mut self) {
        for (level, line) in std::mem::take(self).lines() {
            log::log!(level, "{line}");
        }
    }

    fn lines(self) -> Vec<(log::Level, String)> {
        let mut lines: Vec<_> = self
            .collected
            .iter()
            .map(|(owner, counts)| {
                let counts: Vec<String> =
                    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
                (log::Level::Info, format!("{owner} is gone, and with it: {}", counts.join(", ")))
            })
            .collect();
        if self.of_others > 0 {
            let line = format!("and {} more objects whose owners are gone", self.of_others);
            lines.push((log::Level::Info, line));
        }
        if self.failures > 0 {
            let more = match self.failures - 1 {
                0 => String::new(),
                more => format!(", and {more} more failures like it"),
            };
            lines.push((log::Level::Warn, format!("{}{more}; trying again", self.failure)));
        }
        lines
    }
}

fn references(value: &Value) -> Vec<Value> {
    at(value, &["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The kind of a reference, if it is served, and what stands under its name now.
fn find_owner(hub: &Hub, namespace: &str, owner: &Value) -> Option<(&'static Kind, Arc<Object>)> {
    let (version, kind) = (text(owner, &["apiVersion"]), text(owner, &["kind"]));
    let kind = KINDS.iter().copied().find(|known| known.kind == kind && known.api_version() == version)?;
    let namespace = if kind.namespaced { namespace } else { "" };
    hub.get(kind, namespace, text(owner, &["name"])).map(|found| (kind, found))
}

fn owner_exists(hub: &Hub, namespace: &str, owner: &Value) -> bool {
    let (version, kind) = (text(owner, &["apiVersion"]), text(owner, &["kind"]));
    let Some(kind) = KINDS.iter().find(|known| known.kind == kind && known.api_version() == version) else {
        return true;
    };
    // a cluster-scoped object cannot say in which namespace its owner is: upstream never judges such a reference
    if kind.namespaced && namespace.is_empty() {
        return true;
    }
    find_owner(hub, namespace, owner).is_some_and(|(_, found)| &*found.uid == text(owner, &["uid"]))
}

fn has_finalizer(value: &Value, finalizer: &str) -> bool {
    let finalizers = at(value, &["metadata", "finalizers"]).and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|known| known == finalizer))
}

/// The dependents whose reference says that the owner waits for them. Others go when the owner is gone, as upstream.
fn blocking(hub: &Hub, owner: &str) -> Vec<(&'static Kind, Arc<Object>)> {
    let blocks = |dependent: &Object| {
        references(&dependent.value())
            .iter()
            .any(|reference| text(reference, &["uid"]) == owner && reference["blockOwnerDeletion"] == true)
    };
    let mut dependents = hub.memory().dependents(owner);
    dependents.retain(|(_, dependent)| blocks(dependent));
    dependents
}

/// When an event was made, by our own clock; what it says of its times is by a node's, which may be years off.
fn made_at(value: &Value) -> Option<time::OffsetDateTime> {
    schema::parse_time(text(value, &["metadata", "creationTimestamp"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::{CONFIG_MAP, LEASE};
    use serde_json::json;

    #[test]
    fn what_was_collected_is_a_line_for_each_owner() {
        let owner = |name: &str| json!({"kind": "Node", "name": name, "uid": "u"});
        let mut tally = Tally::default();
        for _ in 0..10_000 {
            tally.collected(&owner("a"), &POD);
        }
        tally.collected(&owner("a"), &LEASE);
        for number in 0..OWNERS_NAMED + 5 {
            tally.collected(&owner(&format!("n\n{number:02}")), &CONFIG_MAP);
        }
        for _ in 0..3 {
            tally.failed("cannot delete pods default/p: the disk is full".to_owned());
        }
        let lines = std::mem::take(&mut tally).lines();
        assert_eq!(lines.len(), OWNERS_NAMED + 2);
        assert_eq!(lines[0].1, "Node \"a\" is gone, and with it: 1 leases, 10000 pods");
        assert_eq!(lines[1].1, "Node \"n\\n00\" is gone, and with it: 1 configmaps");
        assert_eq!(lines[OWNERS_NAMED].1, "and 6 more objects whose owners are gone");
        let failure =
            "cannot delete pods default/p: the disk is full, and 2 more failures like it; trying again";
        assert_eq!(lines[OWNERS_NAMED + 1], (log::Level::Warn, failure.to_owned()));
        tally.failed("cannot delete pods default/p: the disk is full".to_owned());
        assert_eq!(
            tally.lines(),
            [(log::Level::Warn, "cannot delete pods default/p: the disk is full; trying again".to_owned())]
        );
    }
}
