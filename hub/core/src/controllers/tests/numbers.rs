//! Objects whose every number and date is at an end of its type, as an administrator may write them or an
//! older hub may have stored them: nothing overflows, and no controller names a time that its process cannot
//! wait for.

use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::Hub;
use crate::controllers::Controller;
use crate::controllers::daemon_sets::DaemonSets;
use crate::controllers::{certificates, events, garbage, namespaces, nodes, pods, scheduler, taint_eviction};
use crate::kinds::schema::{self, Shape};
use crate::kinds::{self, CONTROLLER_REVISION, DAEMON_SET, KINDS, Kind, NAMESPACE, NODE, POD};
use crate::object::Object;
use crate::requests::{self, DeleteOptions, Fresh, Place, Propagation, WriteOptions};

const NUMBERS: [i64; 6] = [i64::MIN, -1, 0, 1, i32::MAX as i64, i64::MAX];
const DATES: [&str; 3] = ["0001-01-01T00:00:00", "2026-11-21T11:59:00", "9999-12-31T23:59:59"];
/// Longest that a controller may wait: from the first date to the last. An `Instant` holds it.
const LONGEST: Duration = Duration::from_secs(20_000 * 366 * 86_400);

/// A value of this shape, with everything in it.
fn full(shape: &Shape, values: &[&str], number: i64, date: &str, depth: usize) -> Value {
    let inner = |shape: &Shape| full(shape, &[], number, date, depth + 1);
    match shape {
        Shape::String => values.first().copied().unwrap_or("x").into(),
        Shape::Bool => false.into(),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => number.into(),
        Shape::Double => (number as f64).into(),
        Shape::Bytes => "YQ==".into(),
        Shape::Time => format!("{date}Z").into(),
        Shape::MicroTime => format!("{date}.000000Z").into(),
        Shape::Quantity => "1".into(),
        Shape::Raw => json!({"spec": {"template": {}}}),
        Shape::Message(_) | Shape::List(_) | Shape::Map(_) if depth > 12 => Value::Null,
        Shape::Message(name) => {
            let fields = schema::find(name).map_or(&[][..], |of| &of.fields);
            let fields = fields.iter().map(|field| {
                let value = full(&field.shape, &field.values, number, date, depth + 1);
                (field.name.to_owned(), value)
            });
            Value::Object(fields.collect())
        }
        Shape::List(item) => json!([inner(item)]),
        Shape::Map(item) => json!({"x": inner(item)}),
    }
}

/// One of each kind, in a namespace and on a node of theirs.
fn object(kind: &'static Kind, number: i64, date: &str, is_deleted: bool) -> Value {
    let mut value = full(&Shape::Message(kind.type_name), &[], number, date, 0);
    let of_set = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "u-DaemonSet", "controller": true}]);
    let name = if kind.kind == NAMESPACE.kind { "n" } else { "x" };
    let meta = &mut value["metadata"];
    let fields = meta.as_object_mut().unwrap();
    for field in ["managedFields", "ownerReferences", "finalizers", "generateName"] {
        fields.remove(field);
    }
    if !is_deleted {
        fields.remove("deletionTimestamp");
        fields.remove("deletionGracePeriodSeconds");
    }
    meta["name"] = name.into();
    meta["uid"] = format!("u-{}", kind.kind).into();
    meta["resourceVersion"] = "1".into();
    meta["annotations"] = json!({});
    if kind.namespaced {
        meta["namespace"] = "n".into();
    } else {
        meta.as_object_mut().unwrap().remove("namespace");
    }
    if [POD.kind, CONTROLLER_REVISION.kind].contains(&kind.kind) {
        meta["ownerReferences"] = of_set;
    }
    if kind.kind == POD.kind {
        value["spec"]["nodeName"] = "x".into();
        value["spec"]["tolerations"] =
            json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": number}]);
    }
    if kind.kind == NODE.kind {
        value["spec"]["taints"] =
            json!([{"key": "k", "effect": "NoExecute", "timeAdded": format!("{date}Z")}]);
    }
    if kind.kind == DAEMON_SET.kind {
        let labels = json!({"x": "x"});
        value["spec"]["selector"] = json!({"matchLabels": labels});
        value["spec"]["template"]["metadata"]["labels"] = labels;
    }
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.into();
    value
}

fn hub(number: i64, date: &str, is_deleted: bool) -> Hub {
    let mut hub = Hub::new();
    for kind in KINDS.iter().copied().filter(|kind| !kind.is_renewed()) {
        let value = object(kind, number, date, is_deleted);
        hub.index.restore(kind, Object::new(kind, &value, 1).unwrap());
    }
    hub
}

#[test]
fn numbers_of_any_size_are_shown_judged_and_deleted() {
    let times = [OffsetDateTime::UNIX_EPOCH, time::macros::datetime!(2026-11-21 12:00:00 UTC)];
    for (number, date, is_deleted) in all() {
        let mut hub = hub(number, date, is_deleted);
        for kind in KINDS.iter().copied().filter(|kind| !kind.is_renewed()) {
            let value = object(kind, number, date, is_deleted);
            for now in times {
                (kind.cells)(&value, now);
                drop(requests::new_object(kind, value.clone(), &Fresh { now, random: [7; 21] }));
                for asked in [i64::MIN, 1, i64::MAX] {
                    for propagation in [Propagation::Background, Propagation::Foreground] {
                        let asked = DeleteOptions {
                            grace_secs: Some(asked),
                            propagation,
                            ..DeleteOptions::default()
                        };
                        let namespace = if kind.namespaced { "n" } else { "" };
                        let name = value["metadata"]["name"].as_str().unwrap();
                        let place = Place { kind, namespace, name };
                        let options = WriteOptions::internal();
                        drop(requests::delete(&hub.index, &place, &asked, &options, now));
                    }
                }
            }
            let mut errors = crate::field_error::FieldErrors::default();
            (kind.validate)(&value, Some(&value), &mut errors);
            (kind.warnings)(&value, None);
            kind.selectable.iter().for_each(|field| drop((field.value)(&value)));
            drop(((kind.holder)(&value), (kind.refers)(&value)));
        }
        for view in kinds::VIEWS {
            let value = view.shown(object(view.stored(), number, date, is_deleted));
            (view.cells)(&value, times[1]);
        }
        hub.publish();
    }
}

fn all() -> impl Iterator<Item = (i64, &'static str, bool)> {
    let of = |number| DATES.into_iter().flat_map(move |date| [(number, date, false), (number, date, true)]);
    NUMBERS.into_iter().flat_map(of)
}

/// Runs a controller for over an hour.
fn run<C: Controller>(new: impl Fn() -> C) {
    for (number, date, is_deleted) in all() {
        let (mut hub, mut controller) = (hub(number, date, is_deleted), new());
        for second in [0, 60, 4000] {
            hub.run_at(&mut controller, second);
            let now = hub.now(second);
            let next = controller.reconcile(&hub.index, now).next;
            let waits = next.map(|next| next.saturating_sub(now.running));
            assert!(
                waits.is_none_or(|waits| waits <= LONGEST),
                "{}: {number} {date}: waits {waits:?}",
                C::NAME
            );
        }
    }
}

#[test]
fn numbers_of_any_size_stop_no_controller() {
    run(taint_eviction::TaintEviction::default);
    run(|| DaemonSets::new(Default::default()));
    run(|| nodes::Nodes::new(Duration::from_secs(50)));
    run(scheduler::Scheduler::default);
    run(pods::Pods::default);
    run(garbage::Garbage::default);
    run(events::Events::default);
    run(namespaces::Namespaces::default);
    // there is nobody who signs
    for (number, date, is_deleted) in all() {
        let (mut hub, mut controller) =
            (hub(number, date, is_deleted), certificates::Certificates::new(certificates::LONGEST));
        hub.tell(&mut controller);
        let now = hub.now(0);
        controller.reconcile(&hub.index, now);
    }
}
