//! Role, ClusterRole and their bindings: the rights of users, groups and service accounts.
//!
//! Always holds: the role that a binding names never changes, so a writer who may change the subjects of a
//! binding does not choose the rights. Validation and texts are upstream's. Left to others: what a rule
//! allows (`state::Rights`), who may grant what (`identity`), the rules of an aggregated ClusterRole
//! (`controllers::cluster_roles`).

use serde_json::{Value, json};

use super::kind::Kind;
use super::names::NameRule;
use super::rules::{self, Errors, list};
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::text;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// rbac.authorization.k8s.io/v1 Role.
pub static ROLE: Kind = Kind {
    kind: "Role",
    plural: "roles",
    singular: "role",
    type_name: "rbac/v1/Role",
    validate: |new, _, errors| validate_rules(new, true, errors),
    ..A_ROLE
};

/// rbac.authorization.k8s.io/v1 ClusterRole.
pub static CLUSTER_ROLE: Kind = Kind {
    kind: "ClusterRole",
    plural: "clusterroles",
    singular: "clusterrole",
    namespaced: false,
    type_name: "rbac/v1/ClusterRole",
    validate: validate_cluster_role,
    ..A_ROLE
};

/// rbac.authorization.k8s.io/v1 RoleBinding.
pub static ROLE_BINDING: Kind = Kind {
    kind: "RoleBinding",
    plural: "rolebindings",
    singular: "rolebinding",
    type_name: "rbac/v1/RoleBinding",
    validate: |new, old, errors| validate_binding(new, old, true, errors),
    ..A_BINDING
};

/// rbac.authorization.k8s.io/v1 ClusterRoleBinding.
pub static CLUSTER_ROLE_BINDING: Kind = Kind {
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    singular: "clusterrolebinding",
    namespaced: false,
    type_name: "rbac/v1/ClusterRoleBinding",
    validate: |new, old, errors| validate_binding(new, old, false, errors),
    ..A_BINDING
};

const A_ROLE: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::Segment,
    create_on_update: true,
    columns: &[Column::NAME, Column::text("Created At")],
    cells: |role, _| {
        vec![text(role, &["metadata", "name"]).into(), text(role, &["metadata", "creationTimestamp"]).into()]
    },
    ..Kind::USUAL
};

const A_BINDING: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::Segment,
    create_on_update: true,
    columns: &[
        Column::NAME,
        Column::text("Role"),
        Column::AGE,
        Column::text("Users").wide(),
        Column::text("Groups").wide(),
        Column::text("ServiceAccounts").wide(),
    ],
    cells,
    prepare: |new, _| name_groups(new),
    ..Kind::USUAL
};

/// The kinds whose objects decide about rights.
pub fn is_of_rights(kind: &Kind) -> bool {
    kind.group == GROUP
}

fn cells(binding: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let role = &binding["roleRef"];
    let subjects = |kind: &str| {
        let of_kind = list(binding, "subjects").iter().filter(|subject| text(subject, &["kind"]) == kind);
        let names = of_kind.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", text(subject, &["namespace"]), text(subject, &["name"])),
            _ => text(subject, &["name"]).to_owned(),
        });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    vec![
        text(binding, &["metadata", "name"]).into(),
        format!("{}/{}", text(role, &["kind"]), text(role, &["name"])).into(),
        age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

/// Fills in the API groups that follow from the kinds, as upstream's defaults.
fn name_groups(binding: &mut Value) {
    let name = |of: &mut Value| {
        if of.is_object() && text(of, &["apiGroup"]).is_empty() {
            of["apiGroup"] = GROUP.into();
        }
    };
    for subject in binding["subjects"].as_array_mut().into_iter().flatten() {
        if matches!(text(subject, &["kind"]), "User" | "Group") {
            name(subject);
        }
    }
    if !binding["roleRef"].is_object() {
        binding["roleRef"] = json!({"apiGroup": "", "kind": "", "name": ""});
    }
    name(&mut binding["roleRef"]);
}

fn validate_cluster_role(new: &Value, _: Option<&Value>, errors: &mut Errors) {
    validate_rules(new, false, errors);
    let Some(aggregation) = new.get("aggregationRule").filter(|rule| !rule.is_null()) else { return };
    let path = "aggregationRule.clusterRoleSelectors";
    let selectors = list(aggregation, "clusterRoleSelectors");
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(FieldError::required(path, why));
    }
    for (index, selector) in selectors.iter().enumerate() {
        rules::label_selector(selector, &format!("{path}[{index}]"), errors);
    }
}

fn validate_rules(role: &Value, namespaced: bool, errors: &mut Errors) {
    for (index, rule) in list(role, "rules").iter().enumerate() {
        validate_rule(rule, namespaced, &format!("rules[{index}]"), errors);
    }
}

fn validate_rule(rule: &Value, namespaced: bool, path: &str, errors: &mut Errors) {
    let has = |field: &str| !list(rule, field).is_empty();
    let mut require = |field: &str, why: &str| {
        errors.push(FieldError::required(format!("{path}.{field}"), why));
    };
    if !has("verbs") {
        require("verbs", "verbs must contain at least one value");
    }
    if !has("nonResourceURLs") {
        if !has("apiGroups") {
            require("apiGroups", "resource rules must supply at least one api group");
        }
        if !has("resources") {
            require("resources", "resource rules must supply at least one resource");
        }
        return;
    }
    let mut refuse = |why: &str| {
        let field = format!("{path}.nonResourceURLs");
        errors.push(FieldError::invalid(field, rule["nonResourceURLs"].clone(), why));
    };
    if namespaced {
        refuse("namespaced rules cannot apply to non-resource URLs");
    }
    if ["apiGroups", "resources", "resourceNames"].into_iter().any(has) {
        refuse("rules cannot apply to both regular resources and non-resource URLs");
    }
}

fn validate_binding(new: &Value, old: Option<&Value>, namespaced: bool, errors: &mut Errors) {
    let role = &new["roleRef"];
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    for (field, allowed) in [("apiGroup", &[GROUP][..]), ("kind", kinds)] {
        let found = text(role, &[field]);
        if !allowed.contains(&found) {
            errors.push(FieldError::unsupported(format!("roleRef.{field}"), found, allowed));
        }
    }
    rules::required(role, "name", "roleRef", errors);
    rules::name(text(role, &["name"]), NameRule::Segment, "roleRef.name", errors);
    for (index, subject) in list(new, "subjects").iter().enumerate() {
        validate_subject(subject, namespaced, &format!("subjects[{index}]"), errors);
    }
    if old.is_some_and(|old| old["roleRef"] != *role) {
        // upstream shows its own type here, whose fields have these names
        let part = |field: &str| text(role, &[field]).to_owned();
        let shown = json!({"APIGroup": part("apiGroup"), "Kind": part("kind"), "Name": part("name")});
        errors.push(FieldError::invalid("roleRef", shown, "cannot change roleRef"));
    }
}

fn validate_subject(subject: &Value, namespaced: bool, path: &str, errors: &mut Errors) {
    let (kind, group) = (text(subject, &["kind"]), text(subject, &["apiGroup"]));
    let name = text(subject, &["name"]);
    rules::required(subject, "name", path, errors);
    let mut check_group = |expect: &str| {
        if group != expect {
            errors.push(FieldError::unsupported(format!("{path}.apiGroup"), group, &[expect]));
        }
    };
    match kind {
        "ServiceAccount" => {
            check_group("");
            rules::name(name, NameRule::Subdomain, &format!("{path}.name"), errors);
            if !namespaced {
                rules::required(subject, "namespace", path, errors);
            }
        }
        "User" | "Group" => check_group(GROUP),
        _ => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::unsupported(format!("{path}.kind"), kind, &kinds));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: &Kind, mut new: Value, old: Option<Value>, expect: &[&str]) {
        let mut errors = Errors::default();
        (kind.prepare)(&mut new, old.as_ref());
        (kind.validate)(&new, old.as_ref(), &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{new}");
    }

    #[test]
    fn rules_are_for_resources_or_for_paths() {
        let rules = |rules: Value| json!({ "rules": rules });
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        check(&ROLE, rules(json!([pods])), None, &[]);
        check(&ROLE, json!({}), None, &[]);
        check(
            &ROLE,
            rules(json!([{}])),
            None,
            &[
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ],
        );
        let named =
            json!({"verbs": ["get"], "apiGroups": [""], "resources": ["a", "b"], "resourceNames": ["n"]});
        check(&CLUSTER_ROLE, rules(json!([named])), None, &[]);
        let urls = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]});
        check(&CLUSTER_ROLE, rules(json!([urls])), None, &[]);
        let invalid = "rules[0].nonResourceURLs: Invalid value: [\"/metrics\"]";
        let why = format!("{invalid}: namespaced rules cannot apply to non-resource URLs");
        check(&ROLE, rules(json!([urls])), None, &[&why]);
        let both = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"], "resources": ["pods"]});
        let why = format!("{invalid}: rules cannot apply to both regular resources and non-resource URLs");
        check(&CLUSTER_ROLE, rules(json!([both])), None, &[&why]);
    }

    #[test]
    fn aggregation_needs_valid_selectors() {
        let role = |selectors: Value| json!({"aggregationRule": {"clusterRoleSelectors": selectors}});
        check(&CLUSTER_ROLE, role(json!([{"matchLabels": {"a": "b"}}])), None, &[]);
        let why = "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil";
        check(&CLUSTER_ROLE, role(json!([])), None, &[why]);
        let odd = json!([{"matchExpressions": [{"key": "a", "operator": "Near"}]}]);
        let path = "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator";
        let why = format!("{path}: Invalid value: \"Near\": not a valid selector operator");
        check(&CLUSTER_ROLE, role(odd), None, &[&why]);
    }

    #[test]
    fn binding_names_a_role_and_its_subjects() {
        let binding = |subjects: Value, kind: &str| json!({"roleRef": {"kind": kind, "name": "view"}, "subjects": subjects});
        let people = json!([{"kind": "User", "name": "jane"}, {"kind": "Group", "name": "people"}]);
        check(&ROLE_BINDING, binding(people.clone(), "Role"), None, &[]);
        check(&ROLE_BINDING, binding(people.clone(), "ClusterRole"), None, &[]);
        check(&CLUSTER_ROLE_BINDING, binding(people.clone(), "ClusterRole"), None, &[]);
        let why = "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"";
        check(&CLUSTER_ROLE_BINDING, binding(people, "Role"), None, &[why]);
        let account = json!([{"kind": "ServiceAccount", "name": "runs"}]);
        check(&ROLE_BINDING, binding(account.clone(), "Role"), None, &[]);
        let why = "subjects[0].namespace: Required value";
        check(&CLUSTER_ROLE_BINDING, binding(account, "ClusterRole"), None, &[why]);
        let odd = json!([{"kind": "User", "name": "", "apiGroup": "x"}, {"kind": "Robot", "name": "r"},
            {"kind": "ServiceAccount", "name": "A", "apiGroup": "x", "namespace": "n"}]);
        check(
            &ROLE_BINDING,
            binding(odd, "Role"),
            None,
            &[
                "subjects[0].name: Required value",
                "subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
                "subjects[1].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
                "subjects[2].apiGroup: Unsupported value: \"x\": supported values: \"\"",
                "subjects[2].name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        );
        check(
            &ROLE_BINDING,
            json!({}),
            None,
            &[
                "roleRef.kind: Unsupported value: \"\": supported values: \"Role\", \"ClusterRole\"",
                "roleRef.name: Required value",
            ],
        );
        check(
            &ROLE_BINDING,
            json!({"roleRef": {"kind": "Role", "name": "a/b"}}),
            None,
            &["roleRef.name: Invalid value: \"a/b\": may not contain '/'"],
        );
    }

    #[test]
    fn role_of_a_binding_never_changes() {
        let binding =
            |name: &str| json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}});
        for kind in [&ROLE_BINDING, &CLUSTER_ROLE_BINDING] {
            check(kind, binding("view"), Some(binding("view")), &[]);
            let why = "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"admin\"}: cannot change roleRef";
            check(kind, binding("admin"), Some(binding("view")), &[why]);
        }
    }

    #[test]
    fn binding_shows_its_role_and_subjects() {
        let subjects = json!([{"kind": "User", "name": "a"}, {"kind": "User", "name": "b"},
            {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]);
        let binding = json!({"metadata": {"name": "x"}, "subjects": subjects,
            "roleRef": {"kind": "Role", "name": "r"}});
        let shown = cells(&binding, time::OffsetDateTime::UNIX_EPOCH);
        assert_eq!(shown[1], "Role/r");
        assert_eq!(shown[3..], [json!("a, b"), json!(""), json!("n/s")]);
    }
}
