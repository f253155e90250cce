//! The rule that nobody grants rights that they do not hold.
//!
//! Always holds: outside the group `system:masters` a role gets only rules that its writer holds in that
//! namespace, or any if the writer may `escalate`. A binding names only a role whose rules its writer holds,
//! or that the writer may `bind`. An aggregated role is written by a holder of all rights, because anybody's
//! label can widen it. Every write of a role or binding is judged as a whole, whatever part of it changes.
//! Rules and texts are upstream's.

use serde_json::{Value, json};

use super::attributes::{Attributes, ClusterView};
use super::identity::Identity;
use super::{Denied, authorizer, forbidden_object};
use crate::kinds::{CLUSTER_ROLE, ROLE, rbac};
use crate::state::{Rule, quoted};
use crate::value::text;

/// Upstream's refusal of an aggregated role.
const NO_AGGREGATION: &str = "must have cluster-admin privileges to use the aggregationRule";

/// Decides whether a caller outside the admin group may store this role or binding.
pub(super) fn admit(
    identity: &Identity,
    request: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let writes = matches!(request.verb, "create" | "update" | "patch");
    if request.group != rbac::GROUP || !writes || old.is_some_and(|old| only_frees(old, new)) {
        return Ok(());
    }
    match request.resource {
        "roles" | "clusterroles" => admit_role(identity, request, old, new, view),
        "rolebindings" | "clusterrolebindings" => admit_binding(identity, request, new, view),
        _ => Ok(()),
    }
}

/// Whether a change only removes owners and finalizers, for a collector of garbage.
fn only_frees(old: &Value, new: &Value) -> bool {
    let rest = |value: &Value| {
        let mut value = value.clone();
        if let Some(meta) = value["metadata"].as_object_mut() {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                meta.remove(field);
            }
        }
        value
    };
    old["metadata"] != new["metadata"] && rest(old) == rest(new)
}

fn admit_role(
    identity: &Identity,
    request: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let escalate = Attributes { verb: "escalate", subresource: "", ..*request };
    if authorizer::decide(identity, &escalate, view).is_ok() {
        return Ok(());
    }
    let refuse = |why: String| Err(forbidden_object(request, new, why));
    if let Some(why) = not_held(identity, request.namespace, &Rule::read_all(new), view) {
        return refuse(why);
    }
    let is_aggregated = |role: &Value| !role["aggregationRule"].is_null();
    if is_aggregated(new) || old.is_some_and(is_aggregated) {
        let all = [
            Rule::read(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})),
            Rule::read(&json!({"verbs": ["*"], "nonResourceURLs": ["*"]})),
        ];
        if not_held(identity, "", &all, view).is_some() {
            return refuse(NO_AGGREGATION.to_owned());
        }
    }
    Ok(())
}

fn admit_binding(
    identity: &Identity,
    request: &Attributes,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let role = &new["roleRef"];
    let name = text(role, &["name"]);
    let (kind, namespace) = match text(role, &["kind"]) {
        "Role" => (&ROLE, request.namespace),
        _ => (&CLUSTER_ROLE, ""),
    };
    let bind = Attributes {
        verb: "bind",
        group: kind.group,
        resource: kind.plural,
        namespace: request.namespace,
        name,
        ..Attributes::default()
    };
    if authorizer::decide(identity, &bind, view).is_ok() {
        return Ok(());
    }
    let mut rules = None;
    view.rights(&mut |rights| rules = rights.rules_of_role(namespace, name).map(<[Rule]>::to_vec));
    let Some(rules) = rules else {
        // upstream names the binding's resource and the role's name
        let message = format!("{}.{} {name:?} not found", request.resource, request.group);
        return Err(Denied { status: 404, message, reason: String::new() });
    };
    match not_held(identity, request.namespace, &rules, view) {
        Some(why) => Err(forbidden_object(request, new, why)),
        None => Ok(()),
    }
}

/// Upstream's refusal if the caller does not hold all of these rights in a namespace.
fn not_held(identity: &Identity, namespace: &str, wanted: &[Rule], view: &dyn ClusterView) -> Option<String> {
    let Identity { user, groups, .. } = identity;
    let (mut missing, mut unresolved) = (Vec::new(), Vec::new());
    view.rights(&mut |rights| {
        missing = rights.missing(user, groups, namespace, wanted);
        unresolved = rights.unresolved(user, groups, namespace);
    });
    if missing.is_empty() {
        return None;
    }
    let mut shown: Vec<String> = missing.iter().map(Rule::shown).collect();
    shown.sort_unstable();
    shown.dedup();
    let mut why = format!(
        "user {user:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(groups),
        shown.join("\n")
    );
    if !unresolved.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", unresolved.join(", ")));
    }
    Some(why)
}

#[cfg(test)]
mod tests;
