//! Rules that join several fields: each value is valid, and their combination is not.
//!
//! The rules are the kubelet's (pkg/kubelet/apis/config/validation and pkg/kubelet/eviction), so a
//! configuration that it refuses is refused here too, before the agent runs pods with it; a configuration
//! that it accepts is accepted. Always holds: the message names both fields and the layer of the other one.
//! Leaves to others: single values (`settings`).

use super::{duration, path};
use crate::kubelet::origin::Origin;
use kedge_api::excerpt;
use serde_json::{Map, Value};

/// Finds combinations that contradict themselves. `place` returns the origin of a field, `report` takes path
/// and sentence.
pub(super) fn check(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    image_thresholds(object, place, report);
    shutdown(object, place, report);
    image_ages(object, place, report);
    parallel_pulls(object, place, report);
    soft_thresholds(object, report);
}

fn image_thresholds(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    let (low_field, high_field) = ("imageGCLowThresholdPercent", "imageGCHighThresholdPercent");
    let value = |field: &str| object.get(field).and_then(Value::as_i64).unwrap_or_default();
    let (low_value, high_value) = (value(low_field), value(high_field));
    if low_value < high_value {
        return;
    }
    // the lower layer wrote the unsuitable value: the other is the node owner's, or a default
    if is_written(high_field, place) {
        let other = written(low_field, place);
        let message =
            format!("{high_field} is {high_value}, expected more than {low_field}, {low_value} ({other})");
        report(high_field, message);
    } else {
        report(
            low_field,
            format!(
                "{low_field} is {low_value}, expected less than {high_field}, {high_value} (the default)"
            ),
        );
    }
}

fn shutdown(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    let (all, critical) = ("shutdownGracePeriod", "shutdownGracePeriodCriticalPods");
    let by_priority = "shutdownGracePeriodByPodPriority";
    let [all_nanos, critical_nanos] = [all, critical].map(|field| nanos(object, field));
    if critical_nanos > all_nanos {
        let found = duration::format(critical_nanos);
        let message = format!(
            "{critical} is {found:?}, expected at most {all}, {:?} ({})",
            duration::format(all_nanos),
            written(all, place)
        );
        report(critical, message);
    }
    let listed = object.get(by_priority).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if listed && all_nanos > 0 {
        let message = format!("{by_priority} is set, expected either it or {all} ({})", place(all));
        report(by_priority, message);
    }
}

fn image_ages(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    let (youngest, oldest) = ("imageMinimumGCAge", "imageMaximumGCAge");
    let [youngest_nanos, oldest_nanos] = [youngest, oldest].map(|field| nanos(object, field));
    if oldest_nanos != 0 && is_written(youngest, place) && oldest_nanos <= youngest_nanos {
        let (found, other) = (duration::format(oldest_nanos), duration::format(youngest_nanos));
        report(
            oldest,
            format!("{oldest} is {found:?}, expected more than {youngest}, {other:?} ({})", place(youngest)),
        );
    }
}

fn parallel_pulls(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    let (serialized, most) = ("serializeImagePulls", "maxParallelImagePulls");
    let pulls = object.get(most).and_then(Value::as_i64).unwrap_or(1);
    if pulls > 1 && object.get(serialized) == Some(&Value::Bool(true)) {
        report(
            most,
            format!("{most} is {pulls}, expected 1, for {serialized} is true ({})", place(serialized)),
        );
    }
}

fn soft_thresholds(object: &Map<String, Value>, report: &mut dyn FnMut(&str, String)) {
    let map = |field: &str| object.get(field).and_then(Value::as_object);
    for signal in map("evictionSoft").into_iter().flat_map(Map::keys) {
        if !map("evictionSoftGracePeriod").is_some_and(|periods| periods.contains_key(signal)) {
            let mut field = "evictionSoft".to_owned();
            path::enter(&mut field, signal);
            let message =
                format!("{} has no period, expected one in evictionSoftGracePeriod", excerpt(&field));
            report(&field, message);
        }
    }
}

fn nanos(object: &Map<String, Value>, field: &str) -> i64 {
    object.get(field).and_then(Value::as_str).and_then(duration::parse).unwrap_or(0)
}

/// Whether a layer wrote it; otherwise it is a default, or absent.
fn is_written(field: &str, place: &dyn Fn(&str) -> String) -> bool {
    place(field) != Origin::Default.to_string()
}

fn written(field: &str, place: &dyn Fn(&str) -> String) -> String {
    if is_written(field, place) { place(field) } else { "the default".to_owned() }
}
