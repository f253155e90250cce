//! DaemonSet: one pod on each matching node. Only the objects; creating pods is left to a controller.
//!
//! Rules are upstream's: the selector never changes and selects the template; a change of the template
//! increments the template generation, which apps/v1 keeps in an annotation and no client may decrease.

use serde_json::{Value, json};

use super::kind::Kind;
use super::pod_spec::{self, Of, annotations, warnings};
use super::table::{Column, age};
use super::{meta, rules};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::{at, text};

/// The annotation of the template generation, a field in older versions.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// apps/v1 DaemonSet.
pub static DAEMON_SET: Kind = Kind {
    group: "apps",
    kind: "DaemonSet",
    plural: "daemonsets",
    singular: "daemonset",
    short_names: &["ds"],
    categories: &["all"],
    status: true,
    generation: true,
    type_name: "apps/v1/DaemonSet",
    columns: &[
        Column::NAME,
        Column::integer("Desired"),
        Column::integer("Current"),
        Column::integer("Ready"),
        Column::integer("Up-to-date"),
        Column::integer("Available"),
        Column::text("Node Selector"),
        Column::AGE,
        Column::text("Containers").wide(),
        Column::text("Images").wide(),
        Column::text("Selector").wide(),
    ],
    cells,
    convert,
    prepare,
    validate,
    warnings,
    ..Kind::USUAL
};

fn cells(set: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let number = |field: &str| Value::from(set["status"][field].as_i64().unwrap_or(0));
    let template = &set["spec"]["template"]["spec"];
    let containers = || template["containers"].as_array().into_iter().flatten();
    let join =
        |field: &str| containers().map(|container| text(container, &[field])).collect::<Vec<_>>().join(",");
    vec![
        text(set, &["metadata", "name"]).into(),
        number("desiredNumberScheduled"),
        number("currentNumberScheduled"),
        number("numberReady"),
        number("updatedNumberScheduled"),
        number("numberAvailable"),
        labels_shown(&template["nodeSelector"]).into(),
        age(set, now),
        join("name").into(),
        join("image").into(),
        selector_shown(&set["spec"]["selector"]).into(),
    ]
}

pub(super) fn labels_shown(labels: &Value) -> String {
    let entries = labels.as_object().into_iter().flatten();
    let shown: Vec<String> =
        entries.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or(""))).collect();
    if shown.is_empty() { "<none>".to_owned() } else { shown.join(",") }
}

fn selector_shown(selector: &Value) -> String {
    let mut shown = match labels_shown(&selector["matchLabels"]) {
        none if none == "<none>" => Vec::new(),
        labels => vec![labels],
    };
    for rule in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = text(rule, &["key"]);
        let values: Vec<&str> =
            rule["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let values = values.join(",");
        shown.push(match text(rule, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if shown.is_empty() { "<none>".to_owned() } else { shown.join(",") }
}

fn convert(set: &mut Value) {
    if let Some(spec) = set.pointer_mut("/spec/template/spec") {
        pod_spec::convert(spec);
    }
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("updateStrategy").or_insert_with(|| json!({}));
        spec.entry("revisionHistoryLimit").or_insert_with(|| 10.into());
    }
    if let Some(strategy) = new.pointer_mut("/spec/updateStrategy").and_then(Value::as_object_mut) {
        let sort = strategy.entry("type").or_insert_with(|| "RollingUpdate".into());
        if sort == "RollingUpdate" {
            let rolling = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
            if let Some(rolling) = rolling.as_object_mut() {
                rolling.entry("maxUnavailable").or_insert_with(|| 1.into());
                rolling.entry("maxSurge").or_insert_with(|| 0.into());
            }
        }
    }
    if let Some(spec) = new.pointer_mut("/spec/template/spec") {
        pod_spec::set_defaults(spec, Of::Template);
    }
    let given = |set: &Value| {
        text(set, &["metadata", "annotations", TEMPLATE_GENERATION]).parse::<i64>().ok().filter(|n| *n >= 1)
    };
    let count = match old {
        None => given(new).unwrap_or(1),
        Some(old) => {
            let changed = old["spec"]["template"] != new["spec"]["template"];
            given(old).unwrap_or(1).saturating_add(i64::from(changed))
        }
    };
    if new["metadata"].is_object() {
        new["metadata"]["annotations"][TEMPLATE_GENERATION] = count.to_string().into();
    }
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let old = old.map(|old| &old["spec"]["template"]);
    warnings::of_change(&new["spec"]["template"], old, "spec.template.")
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let spec = &new["spec"];
    validate_selector(spec, errors);
    let template = &spec["template"]["spec"];
    // a template that an older hub accepted must not keep the controller from writing the status
    if old.is_none_or(|old| old["spec"]["template"] != spec["template"]) {
        let meta = &spec["template"]["metadata"];
        rules::labels(meta, "labels", "spec.template", errors);
        let path = "spec.template.annotations";
        meta::validate_annotations(meta, path, errors);
        annotations::validate(meta, template, |_| true, path, errors);
        pod_spec::validate(template, Of::Template, "spec.template.spec", errors);
        annotations::validate_agreement(meta, template, "spec.template.spec", errors);
    }
    let policy = text(template, &["restartPolicy"]);
    if matches!(policy, "OnFailure" | "Never") {
        errors.push(FieldError::unsupported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if template.get("activeDeadlineSeconds").is_some() {
        let why = "activeDeadlineSeconds in DaemonSet is not Supported";
        errors.push(FieldError::forbidden("spec.template.spec.activeDeadlineSeconds", why));
    }
    for field in ["minReadySeconds", "revisionHistoryLimit"] {
        rules::not_negative(spec, field, "spec", errors);
    }
    validate_strategy(&spec["updateStrategy"], errors);
    if old.is_some_and(|old| old["spec"]["selector"] != spec["selector"]) {
        errors.push(FieldError::invalid("spec.selector", spec["selector"].clone(), "field is immutable"));
    }
    for (field, _) in rules::entries(new, "status") {
        rules::not_negative(&new["status"], field, "status", errors);
    }
}

fn validate_selector(spec: &Value, errors: &mut FieldErrors) {
    let selector = &spec["selector"];
    let entries = |field: &str| match &selector[field] {
        Value::Object(entries) => entries.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if selector.is_null() {
        return errors.push(FieldError::required("spec.selector", ""));
    }
    if entries("matchLabels") + entries("matchExpressions") == 0 {
        let why = "empty selector is invalid for daemonset";
        return errors.push(FieldError::invalid("spec.selector", selector.clone(), why));
    }
    rules::label_selector(selector, "spec.selector", errors);
    let labels = &spec["template"]["metadata"]["labels"];
    if !selects(selector, labels) {
        let why = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels.clone(), why));
    }
}

/// Whether a label selector selects these labels.
pub fn selects(selector: &Value, labels: &Value) -> bool {
    selects_by(selector, |key| labels.get(key).and_then(Value::as_str))
}

/// The same for labels that `label` looks up.
pub fn selects_by<'a>(selector: &Value, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    let rules = selector["matchExpressions"].as_array().into_iter().flatten();
    let holds = |rule: &Value| {
        let found = label(text(rule, &["key"]));
        let listed = |value: &str| rules::list(rule, "values").iter().any(|one| one == value);
        match text(rule, &["operator"]) {
            "In" => found.is_some_and(listed),
            "NotIn" => found.is_none_or(|value| !listed(value)),
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    };
    equal.into_iter().all(|(key, value)| label(key).is_some_and(|found| value == found))
        && rules.into_iter().all(holds)
}

/// A whole number, or a percentage of at most 100; `None` if it is neither.
fn is_zero(value: &Value) -> Option<bool> {
    match value {
        Value::Number(number) => number.as_i64().filter(|number| *number >= 0).map(|number| number == 0),
        Value::String(text) => {
            let number = text.strip_suffix('%')?.parse::<u32>().ok()?;
            (number <= 100).then_some(number == 0)
        }
        _ => None,
    }
}

fn validate_strategy(strategy: &Value, errors: &mut FieldErrors) {
    let path = "spec.updateStrategy";
    match text(strategy, &["type"]) {
        "OnDelete" => return,
        "RollingUpdate" => {}
        other => {
            return errors.push(FieldError::unsupported(
                format!("{path}.type"),
                other,
                &["OnDelete", "RollingUpdate"],
            ));
        }
    }
    let Some(rolling) = at(strategy, &["rollingUpdate"]) else {
        return errors.push(FieldError::required(format!("{path}.rollingUpdate"), ""));
    };
    let mut zero = [true; 2];
    for (zero, field) in zero.iter_mut().zip(["maxUnavailable", "maxSurge"]) {
        match is_zero(&rolling[field]) {
            Some(is_zero) => *zero = is_zero,
            None => {
                let why = "must be a whole number of at least 0 or a percentage of at most 100%";
                return errors.push(FieldError::invalid(
                    format!("{path}.rollingUpdate.{field}"),
                    rolling[field].clone(),
                    why,
                ));
            }
        }
    }
    // exactly one of the two may be non-zero: a set either surges or takes pods down, and with neither it
    // could not update
    match zero {
        [false, false] => errors.push(FieldError::invalid(
            format!("{path}.rollingUpdate.maxSurge"),
            rolling["maxSurge"].clone(),
            "may not be set when maxUnavailable is non-zero",
        )),
        [true, true] => errors.push(FieldError::invalid(
            format!("{path}.rollingUpdate.maxUnavailable"),
            rolling["maxUnavailable"].clone(),
            "cannot be 0 when maxSurge is 0",
        )),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(change: impl FnOnce(&mut Value)) -> Value {
        let mut set = json!({"metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
        change(&mut set);
        prepare(&mut set, None);
        set
    }

    fn check(new: &Value, old: Option<&Value>, expect: &[&str]) {
        let mut errors = FieldErrors::default();
        validate(new, old, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn defaults_are_upstreams() {
        let made = set(|_| {});
        assert_eq!(
            made["spec"]["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
        );
        assert_eq!(made["spec"]["revisionHistoryLimit"], 10);
        assert_eq!(made["metadata"]["annotations"][TEMPLATE_GENERATION], "1");
        assert_eq!(made["spec"]["template"]["spec"]["restartPolicy"], "Always");
        check(&made, None, &[]);
        let on_delete = set(|set| set["spec"]["updateStrategy"] = json!({"type": "OnDelete"}));
        assert!(on_delete["spec"]["updateStrategy"].get("rollingUpdate").is_none());
        check(&on_delete, None, &[]);
    }

    #[test]
    fn template_generation_counts_only_template_changes() {
        let old = set(|_| {});
        let mut new = set(|set| set["spec"]["minReadySeconds"] = 3.into());
        prepare(&mut new, Some(&old));
        assert_eq!(new["metadata"]["annotations"][TEMPLATE_GENERATION], "1");
        new["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
        new["metadata"]["annotations"][TEMPLATE_GENERATION] = "77".into();
        prepare(&mut new, Some(&old));
        assert_eq!(new["metadata"]["annotations"][TEMPLATE_GENERATION], "2");
    }

    #[test]
    fn selector_strategy_and_template_are_validated() {
        let case = |change: fn(&mut Value), expect: &[&str]| check(&set(change), None, expect);
        case(
            |set| set["spec"]["selector"]["matchLabels"]["app"] = "b".into(),
            &[
                "spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template `labels`",
            ],
        );
        case(
            |set| set["spec"]["selector"] = json!({}),
            &["spec.selector: Invalid value: {}: empty selector is invalid for daemonset"],
        );
        case(
            |set| set["spec"]["template"]["spec"]["restartPolicy"] = "Never".into(),
            &["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""],
        );
        let rolling = |unavailable: Value, surge: Value| {
            set(move |set| {
                set["spec"]["updateStrategy"] =
                    json!({"rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
            })
        };
        let path = "spec.updateStrategy.rollingUpdate";
        check(&rolling(json!("10%"), json!(0)), None, &[]);
        check(&rolling(json!(0), json!("5%")), None, &[]);
        check(
            &rolling(json!(1), json!(1)),
            None,
            &[&format!("{path}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero")],
        );
        check(
            &rolling(json!(0), json!("0%")),
            None,
            &[&format!("{path}.maxUnavailable: Invalid value: 0: cannot be 0 when maxSurge is 0")],
        );
        check(
            &rolling(json!("101%"), json!(0)),
            None,
            &[&format!(
                "{path}.maxUnavailable: Invalid value: \"101%\": must be a whole number of at least 0 or a percentage of at most 100%"
            )],
        );
        let old = set(|_| {});
        let changed = set(|set| {
            set["spec"]["selector"]["matchLabels"] = json!({"b": "1"});
            set["spec"]["template"]["metadata"]["labels"] = json!({"b": "1"});
        });
        check(
            &changed,
            Some(&old),
            &["spec.selector: Invalid value: {\"matchLabels\":{\"b\":\"1\"}}: field is immutable"],
        );
    }

    #[test]
    fn selectors_select() {
        let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [
            {"key": "b", "operator": "In", "values": ["x", "y"]}, {"key": "c", "operator": "DoesNotExist"}]});
        assert!(selects(&selector, &json!({"a": "1", "b": "y"})));
        assert!(!selects(&selector, &json!({"a": "1", "b": "z"})));
        assert!(!selects(&selector, &json!({"a": "1", "b": "y", "c": ""})));
        assert_eq!(selector_shown(&selector), "a=1,b in (x,y),!c");
    }
}
