//! The default roles as a table: identity x verb x resource.
//!
//! The columns of `view`, `edit` and `admin` are upstream's answers for these roles, bound in one namespace,
//! except for DaemonSets, which only administrators write here. The last column is a node to which everything
//! is bound: it has what every node has, and no more.

use serde_json::{Value, json};

use super::default_roles::{cluster_role_bindings, cluster_roles};
use super::fixture::Objects;
use super::{Attributes, Identity, authorize};
use crate::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING};
use crate::value::text;

/// The identities of the columns: the user, and the role that it has.
const COLUMNS: [(&str, &str); 10] = [
    ("stranger", ""),
    ("viewer", "view"),
    ("editor", "edit"),
    ("chief", "admin"),
    ("looker", "kedge:fleet-view"),
    ("operator", "kedge:operator"),
    ("assigner", "kedge:assign"),
    ("prometheus", "system:monitoring"),
    ("root", "cluster-admin"),
    ("system:node:edge-9", "cluster-admin"),
];

/// Verb, resource (`group/resource:subresource@namespace`, or a path), and one character for each column.
const CELLS: [(&str, &str, &str); 48] = [
    //                                       s v e c l o a p r n
    ("get", "/pods@shop", ".yyyyy..y."),
    ("list", "/pods@shop", ".yyyyy..y."),
    ("watch", "/pods@shop", ".yyyyy..y."),
    ("list", "/pods@other", "....yy..y."),
    ("list", "/pods@", "....yy..y."),
    ("create", "/pods@shop", "..yy....yy"),
    ("delete", "/pods@shop", "..yy....yy"),
    ("deletecollection", "/pods@shop", "..yy....y."),
    ("patch", "/pods:status@shop", "........yy"),
    ("get", "/pods:log@shop", ".yyy.y..y."),
    ("get", "/pods:exec@shop", "..yy....y."),
    ("create", "/pods:exec@shop", "..yy....y."),
    ("create", "/pods:portforward@shop", "..yy....y."),
    ("create", "/pods:eviction@shop", "..yy....yy"),
    ("create", "/pods:binding@shop", "........y."),
    ("get", "/configmaps@shop", ".yyy....y."),
    ("update", "/configmaps@shop", "..yy....y."),
    ("get", "/configmaps@kube-system", "........y."),
    ("get", "/secrets@shop", "..yy....y."),
    ("list", "/secrets@shop", "..yy....y."),
    ("create", "/secrets@shop", "..yy....y."),
    ("get", "/secrets@kube-system", "........y."),
    ("get", "/serviceaccounts@shop", ".yyy....y."),
    ("impersonate", "/serviceaccounts@shop", "..yy....y."),
    ("create", "/serviceaccounts:token@shop", "..yy....y."),
    ("impersonate", "/users@", "........y."),
    ("get", "/namespaces@shop", ".yyyyy..y."),
    ("list", "/namespaces@", "....yy..y."),
    ("delete", "/namespaces@shop", "........y."),
    ("list", "/events@shop", ".yyyyy..y."),
    ("create", "/events@shop", "..yy....yy"),
    ("list", "/nodes@", "....yyy.y."),
    ("patch", "/nodes@", "......y.y."),
    ("delete", "/nodes@", "........y."),
    ("assign", "/nodes:config@", "......y.y."),
    ("wipe", "/nodes:config@", "........y."),
    ("get", "apps/daemonsets@shop", ".yyyyy..y."),
    ("patch", "apps/daemonsets@shop", ".....y..y."),
    ("create", "apps/daemonsets@shop", "........y."),
    ("get", "fleet.kedge.dev/configrollouts@", "....yyy.y."),
    ("patch", "fleet.kedge.dev/configrollouts@", ".....yy.y."),
    ("create", "fleet.kedge.dev/configrollouts@", "......y.y."),
    ("create", "rbac.authorization.k8s.io/roles@shop", "...y....y."),
    ("create", "rbac.authorization.k8s.io/clusterroles@", "........y."),
    ("update", "certificates.k8s.io/certificatesigningrequests:approval@", "........y."),
    ("approve", "certificates.k8s.io/signers@", "........y."),
    ("get", "path /metrics", ".......yy."),
    ("get", "path /kedge/nodes", "....yy..y."),
];

fn view() -> Objects {
    let mut view = Objects::default();
    for role in cluster_roles() {
        let place = format!("/{}", text(&role, &["metadata", "name"]));
        view = view.with_right(&CLUSTER_ROLE, &place, role);
    }
    for binding in cluster_role_bindings() {
        let place = format!("/{}", text(&binding, &["metadata", "name"]));
        view = view.with_right(&CLUSTER_ROLE_BINDING, &place, binding);
    }
    for (user, role) in COLUMNS.into_iter().filter(|(_, role)| !role.is_empty()) {
        let binding: Value = json!({"roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": user}]});
        let (kind, of) = match role {
            "view" | "edit" | "admin" => (&ROLE_BINDING, "shop"),
            _ => (&CLUSTER_ROLE_BINDING, ""),
        };
        view = view.with_right(kind, &format!("{of}/of-{user}"), binding);
    }
    view
}

fn asked<'a>(verb: &'a str, what: &'a str) -> Attributes<'a> {
    let none = Attributes { verb, ..Attributes::default() };
    if let Some(path) = what.strip_prefix("path ") {
        return Attributes { path, ..none };
    }
    let (group, rest) = what.split_once('/').unwrap();
    let (whole, namespace) = rest.split_once('@').unwrap();
    let (resource, subresource) = whole.split_once(':').unwrap_or((whole, ""));
    let is_named = !matches!(verb, "list" | "watch" | "create" | "deletecollection");
    Attributes { group, resource, subresource, namespace, name: if is_named { "x" } else { "" }, ..none }
}

#[test]
fn default_roles_allow_what_the_table_says() {
    let view = view();
    let mut found = String::new();
    let mut expect = String::new();
    for (verb, what, cells) in CELLS {
        let request = asked(verb, what);
        let may = COLUMNS.map(|(user, _)| {
            let group = if user.starts_with("system:node:") { "system:nodes" } else { "people" };
            let identity = Identity::new(user, &[group, kedge_api::AUTHENTICATED_GROUP]);
            if authorize(Some(&identity), &request, &view).is_ok() { 'y' } else { '.' }
        });
        found.push_str(&format!("{verb} {what} {}\n", may.iter().collect::<String>()));
        expect.push_str(&format!("{verb} {what} {cells}\n"));
    }
    assert_eq!(found, expect);
}
