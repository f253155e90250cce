//! ConfigRollout: brings a configuration to the selected nodes, batch by batch.
//!
//! Always holds: a selector that is empty selects no node by accident (`allNodes` must say so); every number,
//! share and duration that passed validation can be read by the controller. Left to others: the right to
//! write one (`identity::privileges`), and the rollout itself (`controllers::config_rollouts`).

use serde_json::{Value, json};

use super::kind::Kind;
use super::names::{NameRule, config_key_complaint};
use super::rules::{self, Errors, entries, list};
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::{at, duration, text};

/// The API group of Kedge's own kinds.
pub const GROUP: &str = "fleet.kedge.dev";
/// The namespace of sources and revisions.
pub const NAMESPACE: &str = "kedge-fleet";
/// Annotation: the number of the revision whose content the source is to get; `0`: the one before.
pub const UNDO: &str = "fleet.kedge.dev/undo-to";
/// Most batches.
pub const BATCHES: usize = 32;
/// Longest duration, in seconds: a year.
const LONGEST: u64 = 365 * 24 * 60 * 60;
/// Prefixes of labels that nodes cannot set themselves.
const TRUSTED: [&str; 2] = ["fleet.kedge.dev/", "node-restriction.kubernetes.io/"];

/// fleet.kedge.dev/v1 ConfigRollout.
pub static CONFIG_ROLLOUT: Kind = Kind {
    group: GROUP,
    kind: "ConfigRollout",
    plural: "configrollouts",
    singular: "configrollout",
    short_names: &["cro"],
    namespaced: false,
    status: true,
    generation: true,
    // its name is the value of a label
    name_rule: NameRule::Label,
    type_name: "fleet/v1/ConfigRollout",
    columns: &[
        Column::NAME,
        Column::text("Phase"),
        Column::text("Batch"),
        Column::integer("Selected"),
        Column::integer("Updated"),
        Column::integer("Failed"),
        Column::integer("Away"),
        Column::AGE,
        Column::text("Revision").wide(),
    ],
    cells,
    prepare,
    validate,
    warnings,
    ..Kind::USUAL
};

fn cells(rollout: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let status = &rollout["status"];
    let nodes = |field: &str| Value::from(status["nodes"][field].as_i64().unwrap_or(0));
    let batch = match (status["batch"].as_i64(), status["batches"].as_i64()) {
        (Some(batch), Some(batches)) => format!("{batch}/{batches}"),
        _ => String::new(),
    };
    vec![
        text(rollout, &["metadata", "name"]).into(),
        text(status, &["phase"]).into(),
        batch.into(),
        nodes("selected"),
        nodes("updated"),
        nodes("failed"),
        nodes("away"),
        age(rollout, now),
        text(status, &["updateRevision"]).into(),
    ]
}

fn prepare(new: &mut Value, _: Option<&Value>) {
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    spec.entry("revisionHistoryLimit").or_insert_with(|| 10.into());
    if let Some(source) = spec.get_mut("source").and_then(Value::as_object_mut) {
        source.entry("kubeletConfigKey").or_insert_with(|| "kubelet".into());
    }
    let strategy = spec.entry("strategy").or_insert_with(|| json!({}));
    let Some(strategy) = strategy.as_object_mut() else { return };
    for (field, value) in
        [("maxUnavailable", "2%"), ("maxFailures", "1%"), ("progressDeadline", "2h"), ("completeAfter", "1m")]
    {
        strategy.entry(field).or_insert_with(|| value.into());
    }
    if let Some(group) = strategy.get_mut("perGroup").and_then(Value::as_object_mut) {
        group.entry("maxUnavailable").or_insert_with(|| 1.into());
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = &new["spec"];
    validate_undo(new, errors);
    // a spec that an older hub accepted must not keep the controller from writing the status
    if old.is_some_and(|old| old["spec"] == *spec) {
        return;
    }
    validate_selector(spec, errors);
    let source = &spec["source"];
    rules::required(source, "name", "spec.source", errors);
    rules::name(text(source, &["name"]), NameRule::Subdomain, "spec.source.name", errors);
    let key = text(source, &["kubeletConfigKey"]);
    if let Some(why) = config_key_complaint(key).filter(|_| !key.is_empty()) {
        errors.push(FieldError::invalid("spec.source.kubeletConfigKey", key, &why));
    }
    rules::not_negative(spec, "revisionHistoryLimit", "spec", errors);
    let version = text(spec, &["minKubeletVersion"]);
    if !version.is_empty() && version_numbers(version).is_none() {
        let why = "must be a version such as v1.36.0+kedge-0.3.0";
        errors.push(FieldError::invalid("spec.minKubeletVersion", version, why));
    }
    let strategy = &spec["strategy"];
    let path = "spec.strategy";
    amount(&strategy["maxUnavailable"], 1, &format!("{path}.maxUnavailable"), errors);
    amount(&strategy["maxFailures"], 0, &format!("{path}.maxFailures"), errors);
    time(strategy, "progressDeadline", 1, path, errors);
    time(strategy, "completeAfter", 0, path, errors);
    if let Some(group) = at(strategy, &["perGroup"]) {
        let path = format!("{path}.perGroup");
        rules::required(group, "label", &path, errors);
        let label = text(group, &["label"]);
        if !label.is_empty() {
            rules::label_key(label, &format!("{path}.label"), errors);
        }
        amount(&group["maxUnavailable"], 1, &format!("{path}.maxUnavailable"), errors);
    }
    let batches = list(strategy, "batches");
    if batches.len() > BATCHES {
        errors.push(FieldError::too_many(format!("{path}.batches"), batches.len(), BATCHES));
    }
    for (index, batch) in batches.iter().take(BATCHES).enumerate() {
        let path = format!("{path}.batches[{index}]");
        if batch.get("limit").is_none() && is_empty(&batch["selector"]) {
            errors.push(FieldError::required(path.as_str(), "a batch needs a selector, a limit, or both"));
        }
        rules::label_selector(&batch["selector"], &format!("{path}.selector"), errors);
        amount(&batch["limit"], 1, &format!("{path}.limit"), errors);
        time(batch, "soak", 0, &path, errors);
    }
}

fn validate_undo(new: &Value, errors: &mut Errors) {
    let undo = text(new, &["metadata", "annotations", UNDO]);
    if !undo.is_empty() && undo.parse::<u32>().is_err() {
        let why = "must be the number of a revision, or 0 for the one before";
        errors.push(FieldError::invalid(format!("metadata.annotations[{UNDO}]"), undo, why));
    }
}

fn validate_selector(spec: &Value, errors: &mut Errors) {
    let selector = &spec["selector"];
    let is_all = spec["allNodes"] == true;
    rules::label_selector(selector, "spec.selector", errors);
    if is_all && !is_empty(selector) {
        let why = "may not be set together with a selector";
        errors.push(FieldError::forbidden("spec.allNodes", why));
    } else if !is_all && selector.is_null() {
        errors.push(FieldError::required("spec.selector", "or set allNodes"));
    } else if !is_all && is_empty(selector) {
        let why = "an empty selector selects every node: set allNodes for that";
        errors.push(FieldError::invalid("spec.selector", selector.clone(), why));
    }
}

fn is_empty(selector: &Value) -> bool {
    entries(selector, "matchLabels").next().is_none() && list(selector, "matchExpressions").is_empty()
}

/// A whole number of at least `least`, or a percentage of at least that and at most 100; nothing if it is
/// absent.
fn amount(value: &Value, least: u32, path: &str, errors: &mut Errors) {
    let number = match value {
        Value::Null => return,
        Value::String(text) => {
            let percent = text.strip_suffix('%').and_then(|percent| percent.parse::<u32>().ok());
            percent.filter(|percent| *percent <= 100)
        }
        other => other.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    if number.is_none_or(|number| number < least) {
        let why =
            format!("must be a whole number of at least {least} or a percentage between {least}% and 100%");
        errors.push(FieldError::invalid(path, value.clone(), &why));
    }
}

/// A duration in Go's notation, of at least `least` seconds and at most a year.
fn time(value: &Value, field: &str, least: u64, path: &str, errors: &mut Errors) {
    let found = text(value, &[field]);
    let is_good = |found: &str| {
        duration(found).is_some_and(|found| found.as_secs() >= least && found.as_secs() <= LONGEST)
    };
    if !found.is_empty() && !is_good(found) {
        let why = "must be a duration of at most a year, such as 1h30m";
        errors.push(FieldError::invalid(format!("{path}.{field}"), found, why));
    }
}

/// The numbers of a version in the order of their weight: of Kubernetes, then of the agent
/// (`v1.36.0+kedge-0.3.0`). A build after them is not compared.
pub fn version_numbers(version: &str) -> Option<[u32; 6]> {
    let (upstream, own) = version.strip_prefix('v')?.split_once("+kedge").unwrap_or((&version[1..], ""));
    let mut numbers = [0; 6];
    read_numbers(upstream, &mut numbers[..3])?;
    let own = own.trim_start_matches(['-', '.', 'v']);
    if !own.is_empty() {
        read_numbers(own, &mut numbers[3..])?;
    }
    Some(numbers)
}

fn read_numbers(text: &str, numbers: &mut [u32]) -> Option<()> {
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.');
    let parts = text[..end.unwrap_or(text.len())].trim_end_matches('.').split('.');
    for (number, part) in numbers.iter_mut().zip(parts) {
        *number = part.parse().ok()?;
    }
    Some(())
}

/// The labels of the selectors that a node could set itself, each once.
pub fn self_set_labels(spec: &Value) -> Vec<&str> {
    let strategy = &spec["strategy"];
    let batches = list(strategy, "batches").iter().map(|batch| &batch["selector"]);
    let mut found: Vec<&str> = Vec::new();
    for selector in std::iter::once(&spec["selector"]).chain(batches) {
        let equal = entries(selector, "matchLabels").map(|(key, _)| key);
        let rules = list(selector, "matchExpressions").iter().map(|rule| text(rule, &["key"]));
        found.extend(equal.chain(rules));
    }
    found.extend(at(strategy, &["perGroup"]).map(|group| text(group, &["label"])));
    found.retain(|key| !TRUSTED.iter().any(|prefix| key.starts_with(prefix)));
    found.sort_unstable();
    found.dedup();
    found
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(|old| self_set_labels(&old["spec"])).unwrap_or_default();
    let found = self_set_labels(&new["spec"]).into_iter().filter(|key| !known.contains(key));
    found
        .map(|key| {
            format!(
                "label {key:?} may be set by a node itself, which then chooses its configuration: use labels below {} or {}",
                TRUSTED[0], TRUSTED[1]
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::schema::{self, Shape};
    use super::*;

    fn rollout(change: impl FnOnce(&mut Value)) -> Value {
        let mut value = json!({"metadata": {"name": "shops"}, "spec": {
            "selector": {"matchLabels": {"fleet.kedge.dev/group": "shops"}}, "source": {"name": "settings"}}});
        change(&mut value["spec"]);
        prepare(&mut value, None);
        value
    }

    fn check(change: impl FnOnce(&mut Value), expect: &[&str]) {
        let mut errors = Errors::default();
        validate(&rollout(change), None, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn defaults_are_cautious() {
        let made = rollout(|spec| spec["strategy"] = json!({"perGroup": {"label": "fleet.kedge.dev/site"}}));
        let expect = json!({"maxUnavailable": "2%", "maxFailures": "1%", "progressDeadline": "2h",
            "completeAfter": "1m", "perGroup": {"label": "fleet.kedge.dev/site", "maxUnavailable": 1}});
        assert_eq!(made["spec"]["strategy"], expect);
        assert_eq!(made["spec"]["source"]["kubeletConfigKey"], "kubelet");
        check(|_| {}, &[]);
    }

    #[test]
    fn empty_selector_needs_all_nodes() {
        check(|spec| spec["selector"] = Value::Null, &["spec.selector: Required value: or set allNodes"]);
        let why =
            "spec.selector: Invalid value: {}: an empty selector selects every node: set allNodes for that";
        check(|spec| spec["selector"] = json!({}), &[why]);
        check(
            |spec| {
                spec["selector"] = json!({});
                spec["allNodes"] = true.into();
            },
            &[],
        );
        let why = "spec.allNodes: Forbidden: may not be set together with a selector";
        check(|spec| spec["allNodes"] = true.into(), &[why]);
    }

    #[test]
    fn amounts_and_times_are_bounded() {
        let set = |path: &'static str, value: Value| {
            move |spec: &mut Value| {
                spec["strategy"] = json!({"batches": [{"limit": 1}]});
                *spec["strategy"].pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
                if path == "/x" {
                    spec["strategy"]["maxUnavailable"] = value;
                }
            }
        };
        for good in [json!(1), json!("1%"), json!("100%")] {
            check(set("/x", good), &[]);
        }
        for (bad, shown) in
            [(json!(0), "0"), (json!("0%"), "\"0%\""), (json!("101%"), "\"101%\""), (json!(-1), "-1")]
        {
            let why = format!(
                "spec.strategy.maxUnavailable: Invalid value: {shown}: must be a whole number of at least 1 or a percentage between 1% and 100%"
            );
            check(set("/x", bad), &[&why]);
        }
        let why = "must be a duration of at most a year, such as 1h30m";
        check(
            |spec| spec["strategy"] = json!({"progressDeadline": "0s", "batches": [{"limit": "5%", "soak": "9000h"}, {"soak": "1h"}]}),
            &[
                &format!("spec.strategy.progressDeadline: Invalid value: \"0s\": {why}"),
                &format!("spec.strategy.batches[0].soak: Invalid value: \"9000h\": {why}"),
                "spec.strategy.batches[1]: Required value: a batch needs a selector, a limit, or both",
            ],
        );
    }

    /// The properties in the manifest, and those of the type.
    fn compare(name: &str, manifest: &Value) {
        let of = schema::find(name).unwrap();
        let fields: BTreeSet<&str> = of.fields.iter().map(|field| field.name).collect();
        let properties: BTreeSet<&str> = entries(manifest, "properties").map(|(key, _)| key).collect();
        assert_eq!(properties, fields, "{name}");
        for field in &of.fields {
            let below = &manifest["properties"][field.name];
            match &field.shape {
                Shape::Message(name) if name.starts_with("fleet/") => compare(name, below),
                Shape::List(item) => match &**item {
                    Shape::Message(name) if name.starts_with("fleet/") => compare(name, &below["items"]),
                    _ => {}
                },
                _ => {}
            }
        }
    }

    #[test]
    fn manifest_for_other_servers_has_the_same_fields() {
        let text = include_str!("../../../../docs/kubernetes/config-rollouts.yaml");
        let mut parts = text.split("\n---\n");
        let definition = parts.find(|part| part.contains("kind: CustomResourceDefinition")).unwrap();
        let definition = crate::yaml::parse(definition.as_bytes()).unwrap();
        assert_eq!(definition["spec"]["names"]["plural"], CONFIG_ROLLOUT.plural);
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        compare(CONFIG_ROLLOUT.type_name, schema);
        let strategy = &schema["properties"]["spec"]["properties"]["strategy"]["properties"];
        assert_eq!(strategy["batches"]["maxItems"], BATCHES);
    }

    #[test]
    fn undo_names_a_number() {
        let mut value = rollout(|_| {});
        for (undo, expect) in [("3", 0), ("0", 0), ("before", 1), ("-1", 1)] {
            value["metadata"]["annotations"] = json!({UNDO: undo});
            let mut errors = Errors::default();
            validate(&value, Some(&value), &mut errors);
            assert_eq!(errors.len(), expect, "{undo}");
        }
    }

    #[test]
    fn labels_of_nodes_themselves_are_warned_of_once() {
        let old = rollout(|_| {});
        let new = rollout(|spec| {
            spec["selector"]["matchLabels"]["site"] = "a".into();
            spec["strategy"] = json!({"batches": [{"selector": {"matchExpressions": [
                {"key": "canary", "operator": "Exists"}, {"key": "node-restriction.kubernetes.io/x", "operator": "Exists"}]}}]});
        });
        assert_eq!(warnings(&old, None), Vec::<String>::new());
        assert_eq!(self_set_labels(&new["spec"]), ["canary", "site"]);
        assert_eq!((warnings(&new, Some(&old)).len(), warnings(&new, Some(&new)).len()), (2, 0));
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let order = [
            "v1.35.9",
            "v1.36.0",
            "v1.36.0+kedge-0.2.9",
            "v1.36.0+kedge.0.3",
            "v1.36.0+kedge-v0.10.0-4-gabcdef1",
        ];
        let numbers: Vec<_> = order.iter().map(|version| version_numbers(version).unwrap()).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
        for wrong in ["", "1.36.0", "vx", "v1..2", "v1.36.0+kedge-x"] {
            assert_eq!(version_numbers(wrong), None, "{wrong}");
        }
    }
}
