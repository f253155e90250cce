//! Pod: present so that clients which look for pods (`kubectl describe node`, agents that watch theirs) get a true answer,
//! an empty one. Writing pods is not served yet: every write verb answers 405.

use serde_json::Value;

use super::table::{Column, age};
use super::{Kind, READ_VERBS, Selectable, at, meta, no_defaults, no_rules, no_warnings, text};

/// core/v1 Pod.
pub static POD: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    namespaced: true,
    verbs: READ_VERBS,
    status: false,
    status_on_create: false,
    generation: true,
    unconditional_update: true,
    create_on_update: false,
    type_name: "core/v1/Pod",
    name_rule: meta::NameRule::Subdomain,
    volatile: &[],
    selectable: &[
        Selectable { label: "spec.nodeName", value: |pod| text(pod, &["spec", "nodeName"]).to_owned() },
        Selectable {
            label: "spec.restartPolicy",
            value: |pod| text(pod, &["spec", "restartPolicy"]).to_owned(),
        },
        Selectable {
            label: "spec.schedulerName",
            value: |pod| text(pod, &["spec", "schedulerName"]).to_owned(),
        },
        Selectable {
            label: "spec.serviceAccountName",
            value: |pod| text(pod, &["spec", "serviceAccountName"]).to_owned(),
        },
        Selectable { label: "status.phase", value: |pod| text(pod, &["status", "phase"]).to_owned() },
        Selectable { label: "status.podIP", value: |pod| text(pod, &["status", "podIP"]).to_owned() },
        Selectable {
            label: "status.nominatedNodeName",
            value: |pod| text(pod, &["status", "nominatedNodeName"]).to_owned(),
        },
    ],
    columns: &[
        Column::NAME,
        Column::text("Ready"),
        Column::text("Status"),
        Column::text("Restarts"),
        Column::AGE,
        Column::text("IP").wide(),
        Column::text("Node").wide(),
    ],
    cells,
    prepare: no_defaults,
    validate: no_rules,
    warnings: no_warnings,
};

fn cells(pod: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let statuses =
        || at(pod, &["status", "containerStatuses"]).and_then(Value::as_array).into_iter().flatten();
    let ready = statuses().filter(|status| status["ready"] == true).count();
    let wanted = at(pod, &["spec", "containers"]).and_then(Value::as_array).map_or(0, Vec::len);
    let restarts: i64 = statuses().filter_map(|status| status["restartCount"].as_i64()).sum();
    let or_none = |value: &str| if value.is_empty() { "<none>".to_owned() } else { value.to_owned() };
    vec![
        text(pod, &["metadata", "name"]).into(),
        format!("{ready}/{wanted}").into(),
        text(pod, &["status", "phase"]).into(),
        restarts.to_string().into(),
        age(pod, now),
        or_none(text(pod, &["status", "podIP"])).into(),
        or_none(text(pod, &["spec", "nodeName"])).into(),
    ]
}
