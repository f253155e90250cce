//! What goes away by itself: dependents of deleted owners, the content of deleted namespaces, old events.
//!
//! Small and level-driven: on every deletion or marking it looks at the state as it is, and it looks at everything once at
//! start and then now and again, so that nothing it missed stays. An owner is gone when no object of its UID exists; owners of
//! kinds that are not served are never judged gone. Everything is deleted through the same verbs as a client's request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::Hub;
use crate::kinds::pod::NODE_NAME_FIELD;
use crate::kinds::{EVENT, KINDS, Kind, NAMESPACE, NODE, POD, at, schema, text};
use crate::object::{Event, Object};
use crate::verbs::{FOREGROUND, ORPHAN, Propagation};

/// Everything is looked at this often, besides what changes.
const SWEEP: Duration = Duration::from_secs(60);
/// Events live this long, upstream's default. Counted from their creation: one that is counted up for longer comes anew.
const EVENT_LIFE: time::Duration = time::Duration::hours(1);
/// Events kept at most; the oldest go first. A thousand nodes that roll back at once write a few thousand.
const MAX_EVENTS: usize = 20_000;
/// Wait before subscriptions are made again.
const RESUBSCRIBE: Duration = Duration::from_millis(200);

/// Runs until the hub closes.
pub async fn run(hub: Arc<Hub>) {
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
        sweep(&hub).await;
        let mut next_sweep = tokio::time::interval_at(tokio::time::Instant::now() + SWEEP, SWEEP);
        loop {
            tokio::select! {
                change = heard.recv() => match change {
                    Some((kind, event)) => react(&hub, KINDS[kind], &event).await,
                    None => break,
                },
                _ = next_sweep.tick() => sweep(&hub).await,
                // a listener that ended fell behind or the hub closes
                _ = listeners.join_next() => break,
            }
        }
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

async fn react(hub: &Hub, kind: &'static Kind, event: &Event) {
    match &event.new {
        None => {
            let gone = event.object();
            delete_dependents(hub, &gone.uid).await;
            finish_owners(hub, gone).await;
            if kind.namespaced {
                finish_namespace(hub, &gone.namespace).await;
            }
        }
        Some(new) if new.terminating => finish(hub, kind, new).await,
        Some(new) => check_owners(hub, kind, new).await,
    }
}

/// Looks at everything.
async fn sweep(hub: &Hub) {
    for kind in KINDS {
        for object in hub.list(kind, "") {
            if object.terminating {
                finish(hub, kind, &object).await;
            } else if !object.owners.is_empty() {
                check_owners(hub, kind, &object).await;
            }
        }
    }
    release_lost_pods(hub).await;
    expire_events(hub).await;
}

/// A pod that goes away waits for its node to say that it has ended; a node that is no more never will.
async fn release_lost_pods(hub: &Hub) {
    for pod in hub.list(&POD, "") {
        let node = pod.field(NODE_NAME_FIELD);
        if !pod.terminating || node.is_empty() || hub.get(&NODE, "", node).is_some() {
            continue;
        }
        let asked = crate::verbs::DeleteOptions {
            uid: Some(pod.uid.to_string()),
            grace_secs: Some(0),
            ..Default::default()
        };
        let internal = crate::verbs::WriteOptions::internal();
        let outcome = crate::verbs::delete(hub, &POD, &pod.namespace, &pod.name, &asked, &internal).await;
        report(&POD, &pod, outcome.map(drop));
    }
}

async fn delete(hub: &Hub, kind: &'static Kind, object: &Object) {
    delete_as(hub, kind, object, Propagation::Unset).await;
}

async fn delete_as(hub: &Hub, kind: &'static Kind, object: &Object, propagation: Propagation) {
    let uid = Some(object.uid.to_string());
    let options = crate::verbs::DeleteOptions { uid, propagation, ..Default::default() };
    let internal = crate::verbs::WriteOptions::internal();
    let outcome = crate::verbs::delete(hub, kind, &object.namespace, &object.name, &options, &internal).await;
    match outcome {
        Ok(_) => {}
        Err(error) if matches!(error.code, 404 | 409) => {}
        Err(error) => {
            log::warn!("cannot delete {} {}/{}: {error}", kind.plural, object.namespace, object.name)
        }
    }
}

async fn delete_dependents(hub: &Hub, uid: &str) {
    for (kind, object) in hub.memory().dependents(uid) {
        check_owners(hub, KINDS[kind], &object).await;
    }
}

/// An owner that waits for its dependents may have waited for this one.
async fn finish_owners(hub: &Hub, gone: &Object) {
    for owner in references(&gone.value()) {
        let Some((kind, found)) = find_owner(hub, &gone.namespace, &owner) else { continue };
        if found.terminating && &*found.uid == text(&owner, &["uid"]) {
            finish(hub, kind, &found).await;
        }
    }
}

fn references(value: &Value) -> Vec<Value> {
    at(value, &["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Deletes an object when all its owners are gone; while one is left, only the references to the others go.
async fn check_owners(hub: &Hub, kind: &'static Kind, object: &Object) {
    let (alive, gone): (Vec<Value>, Vec<Value>) = references(&object.value())
        .into_iter()
        .partition(|owner| owner_exists(hub, &object.namespace, owner));
    if gone.is_empty() || object.terminating {
        return;
    }
    if alive.is_empty() {
        log::info!("{} {}/{}: its owners are gone, deleted", kind.plural, object.namespace, object.name);
        return delete(hub, kind, object).await;
    }
    for owner in gone {
        disown(hub, kind, object, text(&owner, &["uid"])).await;
    }
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

/// Does what a marked object waits for.
async fn finish(hub: &Hub, kind: &'static Kind, object: &Object) {
    let value = object.value();
    if kind.kind == NAMESPACE.kind {
        empty_namespace(hub, &object.name).await;
    }
    if has_finalizer(&value, ORPHAN) {
        for (kind, dependent) in hub.memory().dependents(&object.uid) {
            disown(hub, KINDS[kind], &dependent, &object.uid).await;
        }
        remove_finalizer(hub, kind, object, ORPHAN).await;
    }
    if has_finalizer(&value, FOREGROUND) {
        for (kind, dependent) in blocking(hub, &object.uid) {
            delete_first(hub, KINDS[kind], &dependent, &object.uid).await;
        }
        if blocking(hub, &object.uid).is_empty() {
            remove_finalizer(hub, kind, object, FOREGROUND).await;
        }
    }
}

/// The dependents whose reference says that the owner waits for them. Others go when the owner is gone, as upstream.
fn blocking(hub: &Hub, owner: &str) -> Vec<(usize, Arc<Object>)> {
    let blocks = |dependent: &Object| {
        references(&dependent.value())
            .iter()
            .any(|reference| text(reference, &["uid"]) == owner && reference["blockOwnerDeletion"] == true)
    };
    let mut dependents = hub.memory().dependents(owner);
    dependents.retain(|(_, dependent)| blocks(dependent));
    dependents
}

/// Deletes what an owner waits for, and that in turn waits for its own dependents. Who has another owner stays with that one.
async fn delete_first(hub: &Hub, kind: &'static Kind, dependent: &Object, owner: &str) {
    let shared = references(&dependent.value()).iter().any(|reference| {
        text(reference, &["uid"]) != owner && owner_exists(hub, &dependent.namespace, reference)
    });
    if shared {
        return disown(hub, kind, dependent, owner).await;
    }
    let leaf = hub.memory().dependents(&dependent.uid).is_empty();
    delete_as(hub, kind, dependent, if leaf { Propagation::Unset } else { Propagation::Foreground }).await;
}

async fn disown(hub: &Hub, kind: &'static Kind, dependent: &Object, owner: &str) {
    let outcome = hub.update(kind, &dependent.namespace, &dependent.name, |value| {
        if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|reference| reference["uid"] != owner);
        }
    });
    report(kind, dependent, outcome.await.map(drop));
}

async fn remove_finalizer(hub: &Hub, kind: &'static Kind, object: &Object, finalizer: &str) {
    let outcome = hub.update(kind, &object.namespace, &object.name, |value| {
        if value["metadata"]["uid"] == *object.uid
            && let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut()
        {
            finalizers.retain(|known| known != finalizer);
        }
    });
    report(kind, object, outcome.await.map(drop));
}

fn report(kind: &Kind, object: &Object, outcome: Result<(), crate::ApiError>) {
    match outcome {
        Ok(()) => {}
        Err(error) if error.code == 404 => {}
        Err(error) => {
            log::warn!("cannot update {} {}/{}: {error}", kind.plural, object.namespace, object.name)
        }
    }
}

/// Deletes what is in a terminating namespace, then lets the namespace go.
async fn empty_namespace(hub: &Hub, namespace: &str) {
    for (kind, object) in hub.memory().in_namespace(namespace) {
        if !object.terminating {
            let options =
                crate::verbs::DeleteOptions { propagation: Propagation::Background, ..Default::default() };
            let internal = crate::verbs::WriteOptions::internal();
            let kind = KINDS[kind];
            let outcome = crate::verbs::delete(hub, kind, namespace, &object.name, &options, &internal).await;
            report(kind, &object, outcome.map(drop));
        }
    }
    finish_namespace(hub, namespace).await;
}

async fn finish_namespace(hub: &Hub, namespace: &str) {
    let terminating = hub.get(&NAMESPACE, "", namespace).is_some_and(|found| found.terminating);
    if !terminating || !hub.memory().in_namespace(namespace).is_empty() {
        return;
    }
    let internal = crate::verbs::WriteOptions::internal();
    let outcome = crate::verbs::finalize_namespace(hub, namespace, &internal).await;
    match outcome {
        Ok(_) => log::info!("namespace {namespace} is empty and gone"),
        Err(error) if error.code == 404 => {}
        Err(error) => log::warn!("cannot finish namespace {namespace}: {error}"),
    }
}

/// When an event was made, by our own clock; what it says of its times is by a node's, which may be years off.
fn made_at(value: &Value) -> Option<time::OffsetDateTime> {
    schema::parse_time(text(value, &["metadata", "creationTimestamp"]))
}

async fn expire_events(hub: &Hub) {
    let now = time::OffsetDateTime::now_utc();
    let mut events = hub.list(&EVENT, "");
    // an event that is counted up is written again: its revision tells its age among the others
    events.sort_by_key(|event| event.revision);
    let surplus = events.len().saturating_sub(MAX_EVENTS);
    for (index, event) in events.iter().enumerate() {
        let old = made_at(&event.value()).is_some_and(|made| now - made > EVENT_LIFE);
        if index < surplus || old {
            delete(hub, &EVENT, event).await;
        }
    }
}
