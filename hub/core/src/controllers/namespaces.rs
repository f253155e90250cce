//! Deletion of namespaces: empties a terminating one, pods first, reports the remaining content, and removes
//! it; deletes objects that remain of a removed namespace.
//!
//! Inputs: every kind, deletions only; Namespace. Outputs: every kind. Always holds: other objects stay until
//! the last pod is gone (upstream's OrderedNamespaceDeletion), so that no pod loses a policy or a Secret that
//! it still needs to end; the conditions of a namespace that cannot be removed name the reason; a namespace
//! that was created anew under the same name is not touched. Left to others: refusing creations meanwhile
//! (`state::Require::OpenNamespace`), ends of pods (their nodes, `pods`), finalizers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::{KINDS, Kind, NAMESPACE, POD};
use crate::object::{Event, Object};
use crate::requests::{DeleteOptions, Propagation};
use crate::value::{at, text};

/// Most deletions of one step, so that the whole content of a large namespace is never held at once.
const PER_STEP: usize = 1_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Namespaces {
    /// Namespaces to check.
    queue: BTreeSet<String>,
    /// Errors of deletions since the last conditions, by namespace and resource.
    failed: BTreeMap<String, BTreeMap<String, String>>,
    log: Vec<Line>,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    /// Delete an object of this kind in this namespace.
    Empty(String, &'static Kind),
    Report(String),
    Finalize(String),
}

impl Controller for Namespaces {
    type Purpose = Purpose;
    const NAME: &'static str = "namespaces";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));
    /// One commit's worth.
    const AT_ONCE: usize = 256;

    fn inputs() -> &'static [&'static Kind] {
        KINDS
    }

    fn outputs() -> &'static [&'static Kind] {
        KINDS
    }

    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        match kind.kind == NAMESPACE.kind {
            true => event.new.as_ref().is_some_and(|new| new.terminating),
            false => kind.namespaced && event.new.is_none(),
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        let namespace = if kind.namespaced { &object.namespace } else { &object.name };
        self.queue.insert(namespace.to_string());
    }

    fn sweep(&mut self, world: &dyn World) {
        let terminating = world.terminating();
        let terminating = terminating.iter().filter(|(kind, _)| kind.kind == NAMESPACE.kind);
        self.queue.extend(terminating.map(|(_, object)| object.name.to_string()));
        let left = world.namespaces_in_use();
        self.queue.extend(left.into_iter().filter(|name| world.get(&NAMESPACE, "", name).is_none()));
    }

    fn reconcile(&mut self, world: &dyn World, _: Now) -> Decision<Purpose> {
        let mut tasks = Vec::new();
        while tasks.len() < PER_STEP
            && let Some(name) = self.queue.pop_first()
        {
            let failed = self.failed.remove(&name).unwrap_or_default();
            let more = sync(world, &name, &failed, &mut tasks);
            if more {
                self.queue.insert(name);
                break;
            }
        }
        Decision { tasks, guarded: None, more: !self.queue.is_empty(), next: None }
    }

    fn performed(&mut self, purpose: Purpose, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Finalize(name), Ok(_)) => {
                self.log.push((Level::Info, format!("namespace {name} is empty and gone")));
            }
            (_, Ok(_)) => {}
            (_, Err(error)) if matches!(error.code, 404 | 409) => {}
            (Purpose::Empty(name, kind), Err(error)) => {
                self.failed.entry(name).or_default().insert(kind.resource_name(), error.to_string());
            }
            (Purpose::Report(name) | Purpose::Finalize(name), Err(error)) => {
                self.log
                    .push((Level::Warning, format!("cannot finish namespace {name}: {error}; trying again")));
            }
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

type Content = Vec<(&'static Kind, Arc<Object>)>;

/// The next actions for a namespace; returns whether more are due at once after them.
fn sync(
    world: &dyn World,
    name: &str,
    failed: &BTreeMap<String, String>,
    tasks: &mut Vec<Task<Purpose>>,
) -> bool {
    // each read sees a later state: objects listed before the namespace was found missing, or terminating,
    // belong to it and are deleted
    let before = world.get(&NAMESPACE, "", name);
    // most deletions are in open namespaces and need no list: if the namespace is closed later, that event
    // leads here again
    if before.as_ref().is_some_and(|found| !found.terminating) {
        return false;
    }
    let pods: Content = world.list(&POD, name).into_iter().map(|pod| (&POD, pod)).collect();
    let content = if pods.is_empty() { world.in_namespace(name) } else { pods };
    let namespace = world.get(&NAMESPACE, "", name);
    if namespace.as_ref().is_some_and(|found| !found.terminating) {
        return false;
    }
    let mut standing = content.iter().filter(|(kind, object)| is_due(kind, object)).peekable();
    if standing.peek().is_some() && failed.is_empty() {
        tasks.extend(standing.take(PER_STEP).map(|(kind, object)| delete(name, kind, object)));
        return true;
    }
    let Some(namespace) = namespace else { return false };
    if content.is_empty() {
        // it stays empty only if it was closed before the list; otherwise the event of its closing leads here
        // again
        let was_closed = before.is_some_and(|before| before.terminating && before.uid == namespace.uid);
        tasks.extend(was_closed.then(|| finalize(&namespace)));
        return false;
    }
    let wanted = conditions(&content, failed);
    let mut reported = namespace.value();
    if set_conditions(&mut reported, &wanted, "") {
        let uid = namespace.uid.to_string();
        let edit: Edit = Box::new(move |value, now| {
            let is_meant = value["metadata"]["uid"] == *uid;
            if is_meant {
                set_conditions(value, &wanted, now);
            }
            is_meant
        });
        let (namespace, name) = (String::new(), name.to_owned());
        let action =
            Action::Update { kind: &NAMESPACE, namespace, name: name.clone(), edit, requires: Vec::new() };
        tasks.push(Task { purpose: Purpose::Report(name), action });
    }
    false
}

/// Whether an object is to be deleted, for the first time or again. A mirror pod has no node to wait for, but
/// an older hub may have marked it with a grace period: a second deletion ends that.
fn is_due(kind: &Kind, object: &Object) -> bool {
    let has_grace =
        || object.value()["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|secs| secs > 0);
    // a holder shows that the pod is a mirror pod
    !object.terminating || (kind.kind == POD.kind && object.holder.is_some() && has_grace())
}

fn finalize(namespace: &Object) -> Task<Purpose> {
    let (name, uid) = (namespace.name.to_string(), namespace.uid.to_string());
    Task { purpose: Purpose::Finalize(name.clone()), action: Action::FinalizeNamespace { name, uid } }
}

fn delete(namespace: &str, kind: &'static Kind, object: &Object) -> Task<Purpose> {
    let options = DeleteOptions {
        uid: Some(object.uid.to_string()),
        propagation: Propagation::Background,
        ..DeleteOptions::default()
    };
    let (namespace, name) = (namespace.to_owned(), object.name.to_string());
    let purpose = Purpose::Empty(namespace.clone(), kind);
    Task { purpose, action: Action::Delete { kind, namespace, name, options, requires: Vec::new() } }
}

/// One condition: type, whether it is True, reason and message.
type Condition = (&'static str, bool, &'static str, String);

/// Upstream's conditions of a terminating namespace that still has content.
fn conditions(content: &Content, failed: &BTreeMap<String, String>) -> [Condition; 5] {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
    for (kind, object) in content {
        // upstream writes the group after a dot, also the empty one
        *kinds.entry(format!("{}.{}", kind.plural, kind.group)).or_default() += 1;
        let value = object.value();
        let held = at(&value, &["metadata", "finalizers"]).and_then(Value::as_array);
        for finalizer in held.into_iter().flatten().filter_map(Value::as_str) {
            *finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
    let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
        counts
            .iter()
            .map(|(what, count)| format!("{what} {verb} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let errors: Vec<&str> = failed.values().map(String::as_str).collect();
    let of_errors =
        format!("Failed to delete all resource types, {} remaining: {}", errors.len(), errors.join(", "));
    let of_finalizers =
        format!("Some content in the namespace has finalizers remaining: {}", listed(&finalizers, "in"));
    let either = |kind, found: bool, bad: (&'static str, String), good: (&'static str, &str)| match found {
        true => (kind, true, bad.0, bad.1),
        false => (kind, false, good.0, good.1.to_owned()),
    };
    let never = || ("", String::new());
    [
        either(
            "NamespaceDeletionDiscoveryFailure",
            false,
            never(),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        either(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            never(),
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        either(
            "NamespaceDeletionContentFailure",
            !errors.is_empty(),
            ("ContentDeletionFailed", of_errors),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        either(
            "NamespaceContentRemaining",
            true,
            ("SomeResourcesRemain", format!("Some resources are remaining: {}", listed(&kinds, "has"))),
            ("ContentRemoved", "All content successfully removed"),
        ),
        either(
            "NamespaceFinalizersRemaining",
            !finalizers.is_empty(),
            ("SomeFinalizersRemain", of_finalizers),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ]
}

/// Writes the conditions into the status; returns whether any differs.
fn set_conditions(namespace: &mut Value, wanted: &[Condition], now: &str) -> bool {
    if !namespace["status"]["conditions"].is_array() {
        namespace["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = namespace["status"]["conditions"].as_array_mut() else { return false };
    let mut changed = false;
    for (kind, is_true, reason, message) in wanted {
        let status = if *is_true { "True" } else { "False" };
        let new = json!({"type": kind, "status": status, "reason": reason, "message": message});
        let found = conditions.iter_mut().find(|condition| condition["type"] == *kind);
        let same = |old: &Value| {
            ["status", "reason", "message"].iter().all(|field| text(old, &[field]) == text(&new, &[field]))
        };
        match found {
            Some(old) if same(old) => continue,
            Some(old) => {
                let since =
                    if old["status"] == status { old["lastTransitionTime"].clone() } else { now.into() };
                *old = new.clone();
                old["lastTransitionTime"] = since;
            }
            None => {
                let mut new = new.clone();
                new["lastTransitionTime"] = now.into();
                conditions.push(new);
            }
        }
        changed = true;
    }
    changed
}
