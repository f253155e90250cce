//! Rules that join several fields: each value is right, and together they are not.
//!
//! The rules are the kubelet's (pkg/kubelet/apis/config/validation and pkg/kubelet/eviction), so a configuration that it
//! refuses is refused here too, before the agent runs pods with it; a configuration that it takes is taken. Always holds:
//! the message names both fields and the layer of the other one. Leaves to others: single values (`settings`).

use super::{duration, path};
use kedge_api::excerpt;
use serde_json::{Map, Value};

/// The kubelet's thresholds where no layer sets one.
const IMAGE_GC_PERCENT: (i64, i64) = (80, 85);

/// Finds combinations that contradict themselves. `place` gives the origin of a field, `report` takes path and sentence.
pub(super) fn check(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    image_thresholds(object, place, report);
    shutdown(object, place, report);
    image_ages(object, place, report);
    soft_thresholds(object, report);
}

fn image_thresholds(
    object: &Map<String, Value>,
    place: &dyn Fn(&str) -> String,
    report: &mut dyn FnMut(&str, String),
) {
    let fields = ["imageGCLowThresholdPercent", "imageGCHighThresholdPercent"];
    let [low, high] = fields.map(|field| object.get(field).and_then(Value::as_i64));
    for (field, value) in fields.into_iter().zip([low, high]) {
        if let Some(value) = value.filter(|value| !(0..=100).contains(value)) {
            return report(field, format!("{field} is {value}, expected 0 to 100"));
        }
    }
    let (low_value, high_value) = (low.unwrap_or(IMAGE_GC_PERCENT.0), high.unwrap_or(IMAGE_GC_PERCENT.1));
    if low_value < high_value || (low, high) == (None, None) {
        return;
    }
    // the lower layer wrote the one that does not fit: the other is the node owner's word, or a default
    let [low_field, high_field] = fields;
    if high.is_some() {
        let other = low.map_or_else(|| "the default".to_owned(), |_| place(low_field));
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
            written(object, all, place)
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
    if oldest_nanos != 0 && object.contains_key(youngest) && oldest_nanos <= youngest_nanos {
        let (found, other) = (duration::format(oldest_nanos), duration::format(youngest_nanos));
        report(
            oldest,
            format!("{oldest} is {found:?}, expected more than {youngest}, {other:?} ({})", place(youngest)),
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

fn written(object: &Map<String, Value>, field: &str, place: &dyn Fn(&str) -> String) -> String {
    if object.contains_key(field) { place(field) } else { "the default".to_owned() }
}
