//! Roles, bindings and questions in any order: each answer of the index is that of an evaluator that reads
//! all stored objects anew, as slowly as upstream's documentation says it.

use std::collections::BTreeMap;

use kedge_hub_core::Object;
use kedge_hub_core::identity::Attributes;
use kedge_hub_core::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, Kind, ROLE, ROLE_BINDING};
use kedge_hub_core::state::Rights;
use serde_json::{Value, json};

use crate::Target;
use crate::input::Input;

pub(crate) const TARGET: Target =
    Target { name: "hub_rights", run, seeds, words: &[], longest_bytes: 512, mutations: 1000 };

const KINDS: [&Kind; 4] = [&CLUSTER_ROLE, &ROLE, &CLUSTER_ROLE_BINDING, &ROLE_BINDING];
const NAMES: [&str; 3] = ["a", "b", "c"];
const SPACES: [&str; 2] = ["shop", "plant"];
const VERBS: [&str; 4] = ["get", "list", "create", "*"];
const GROUPS: [&str; 3] = ["", "apps", "*"];
const RESOURCES: [&str; 7] = ["pods", "pods/log", "*/log", "*", "nodes", "pods/*", "log"];
const OBJECTS: [&str; 3] = ["x", "y", ""];
const URLS: [&str; 6] = ["/metrics", "/api/*", "*", "/api", "/*", "/api/v1"];
const USERS: [&str; 3] = ["jane", "system:serviceaccount:shop:a", "system:serviceaccount:plant:b"];
const TEAMS: [&str; 2] = ["people", "system:authenticated"];

fn seeds() -> Vec<Vec<u8>> {
    vec![
        // a ClusterRole, bound everywhere and in one namespace, asked, deleted, asked
        vec![
            0, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 9,
            0, 0, 0, 0,
        ],
        // a Role with names, bound to a service account before it exists
        vec![3, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 9, 1, 0, 1, 1, 0, 0, 0, 7, 1, 0, 9, 1, 1, 0, 0],
        // paths
        vec![0, 1, 0, 2, 1, 1, 1, 2, 3, 4, 2, 1, 0, 0, 1, 9, 2, 0, 1, 2, 3, 4, 5],
        (0..120).map(|number: u8| number.wrapping_mul(37)).collect(),
        (0..200).map(|number: u8| number.wrapping_mul(91) ^ 0x5a).collect(),
        (0..250).map(|number: u8| number.wrapping_mul(13).rotate_left(3)).collect(),
        vec![1; 80],
        vec![2; 90],
        vec![9; 60],
        [vec![0; 40], vec![2; 40], vec![9; 40]].concat(),
    ]
}

/// All stored objects, by kind, namespace and name.
#[derive(Default)]
struct Stored(BTreeMap<(&'static str, &'static str, &'static str), Value>);

fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut rights, mut stored) = (Rights::default(), Stored::default());
    while !input.is_empty() {
        match input.choice(10) {
            place @ 0..=6 => {
                let kind = KINDS[usize::from(place) % KINDS.len()];
                let (space, name) = (space_of(kind, &mut input), input.one_of(&NAMES));
                let value = match kind.kind {
                    "Role" | "ClusterRole" => json!({"rules": rules(&mut input)}),
                    _ => binding(kind, &mut input),
                };
                change(&mut rights, kind, (space, name), &value, true);
                stored.0.insert((kind.kind, space, name), value);
            }
            7 => {
                let kind = input.one_of(&KINDS);
                let (space, name) = (space_of(kind, &mut input), input.one_of(&NAMES));
                if let Some(old) = stored.0.remove(&(kind.kind, space, name)) {
                    change(&mut rights, kind, (space, name), &old, false);
                }
            }
            _ => ask(&rights, &stored, &mut input),
        }
    }
    ask_all(&rights, &stored);
    // everything can be deleted again after any sequence of writes
    for ((of, space, name), old) in std::mem::take(&mut stored.0) {
        let kind = KINDS.into_iter().find(|kind| kind.kind == of).expect("it is one of the four");
        change(&mut rights, kind, (space, name), &old, false);
    }
    for user in USERS {
        let groups = TEAMS.map(str::to_owned);
        assert_eq!(rights.rules(user, &groups, SPACES[0]).count(), 0, "{user}");
        assert!(rights.unresolved(user, &groups, SPACES[0]).is_empty(), "{user}");
    }
}

fn space_of(kind: &Kind, input: &mut Input<'_>) -> &'static str {
    if kind.namespaced { input.one_of(&SPACES) } else { "" }
}

fn change(rights: &mut Rights, kind: &'static Kind, place: (&str, &str), value: &Value, exists: bool) {
    let mut value = value.clone();
    value["metadata"] = json!({"namespace": place.0, "name": place.1});
    let object = Object::new(kind, &value, 1).expect("it has a name");
    rights.change(kind, &object, exists);
}

fn some<'a>(input: &mut Input<'_>, all: &[&'a str]) -> Vec<&'a str> {
    let count = 1 + input.choice(2);
    (0..count).map(|_| input.one_of(all)).collect()
}

fn rules(input: &mut Input<'_>) -> Value {
    let count = 1 + input.choice(2);
    let rule = |input: &mut Input<'_>| {
        if input.choice(4) == 3 {
            return json!({"verbs": some(input, &VERBS), "nonResourceURLs": some(input, &URLS)});
        }
        json!({"verbs": some(input, &VERBS), "apiGroups": some(input, &GROUPS),
            "resources": some(input, &RESOURCES), "resourceNames": if input.coin() { some(input, &OBJECTS) } else { Vec::new() }})
    };
    (0..count).map(|_| rule(input)).collect::<Vec<_>>().into()
}

fn binding(kind: &Kind, input: &mut Input<'_>) -> Value {
    let role = if kind.namespaced && input.coin() { "Role" } else { "ClusterRole" };
    let name = input.one_of(&NAMES);
    let count = 1 + input.choice(2);
    let subject = |input: &mut Input<'_>| match input.choice(4) {
        0 => json!({"kind": "User", "name": input.one_of(&USERS)}),
        1 => json!({"kind": "Group", "name": input.one_of(&TEAMS)}),
        2 => {
            json!({"kind": "ServiceAccount", "name": input.one_of(&NAMES), "namespace": input.one_of(&SPACES)})
        }
        // of the binding's namespace
        _ => json!({"kind": "ServiceAccount", "name": input.one_of(&NAMES)}),
    };
    let subjects: Vec<Value> = (0..count).map(|_| subject(input)).collect();
    json!({"roleRef": {"kind": role, "name": name}, "subjects": subjects})
}

/// Every question of a few values, so that the questions also meet a role that is bound by chance.
fn ask_all(rights: &Rights, stored: &Stored) {
    let groups = [TEAMS[0].to_owned()];
    for user in USERS {
        for namespace in ["", SPACES[0], SPACES[1]] {
            for (resource, subresource) in [("pods", ""), ("pods", "log"), ("nodes", ""), ("nodes", "log")] {
                for (group, name) in [("", ""), ("", OBJECTS[0]), ("apps", OBJECTS[0])] {
                    let verb = VERBS[0];
                    let asked = Attributes {
                        verb,
                        group,
                        resource,
                        subresource,
                        namespace,
                        name,
                        ..Attributes::default()
                    };
                    let found = rights.grant(user, &groups, &asked).is_some();
                    assert_eq!(found, stored.allows(user, &groups, &asked), "{user} {asked:?}");
                }
            }
        }
    }
}

fn ask(rights: &Rights, stored: &Stored, input: &mut Input<'_>) {
    let user = input.one_of(&USERS);
    let groups: Vec<String> = some(input, &TEAMS).into_iter().map(str::to_owned).collect();
    let verb = input.one_of(&VERBS[..3]);
    let asked = if input.choice(4) == 3 {
        Attributes {
            verb,
            path: input.one_of(&["/metrics", "/api", "/api/v1", "/", "/healthz"]),
            ..Attributes::default()
        }
    } else {
        let subresource = input.one_of(&["", "log"]);
        Attributes {
            verb,
            group: input.one_of(&GROUPS[..2]),
            resource: input.one_of(&["pods", "nodes"]),
            subresource,
            namespace: input.one_of(&["", SPACES[0], SPACES[1]]),
            name: input.one_of(&OBJECTS),
            ..Attributes::default()
        }
    };
    let found = rights.grant(user, &groups, &asked).is_some();
    assert_eq!(found, stored.allows(user, &groups, &asked), "{user} {groups:?} {asked:?}");
}

impl Stored {
    /// Every binding, its role by name, every rule.
    fn allows(&self, user: &str, groups: &[String], asked: &Attributes<'_>) -> bool {
        self.0.iter().any(|((kind, space, _), binding)| {
            let counts = match *kind {
                "ClusterRoleBinding" => true,
                // paths, and kinds without namespaces, belong to no namespace
                "RoleBinding" => asked.namespace == *space,
                _ => return false,
            };
            let bound = binding["subjects"].as_array().into_iter().flatten();
            let mut bound = bound.filter(|subject| is_subject(subject, space, user, groups));
            counts
                && bound.next().is_some()
                && self.role(binding, space).iter().any(|rule| covers(rule, asked))
        })
    }

    fn role(&self, binding: &Value, space: &str) -> Vec<Value> {
        let role = &binding["roleRef"];
        let mut all = self.0.iter();
        let found = all.find(|((kind, of, name), _)| {
            role["kind"] == *kind && role["name"] == *name && (*kind == "ClusterRole" || *of == space)
        });
        found.and_then(|(_, role)| role["rules"].as_array().cloned()).unwrap_or_default()
    }
}

fn is_subject(subject: &Value, space: &str, user: &str, groups: &[String]) -> bool {
    let name = subject["name"].as_str().unwrap_or_default();
    match subject["kind"].as_str() {
        Some("User") => name == user,
        Some("Group") => groups.iter().any(|group| group == name),
        _ => {
            let of = subject["namespace"].as_str().filter(|of| !of.is_empty()).unwrap_or(space);
            !of.is_empty() && user == format!("system:serviceaccount:{of}:{name}")
        }
    }
}

fn covers(rule: &Value, asked: &Attributes<'_>) -> bool {
    let texts = |field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let has = |field: &str, text: &str| texts(field).iter().any(|own| own == "*" || own == text);
    if !has("verbs", asked.verb) {
        return false;
    }
    if asked.resource.is_empty() {
        return texts("nonResourceURLs").iter().any(|own| match own.strip_suffix('*') {
            Some(beginning) => asked.path.starts_with(beginning),
            None => own == asked.path,
        });
    }
    let whole = match asked.subresource {
        "" => asked.resource.to_owned(),
        sub => format!("{}/{sub}", asked.resource),
    };
    let of_all = format!("*/{}", asked.subresource);
    let is_meant =
        |own: &String| own == "*" || *own == whole || (!asked.subresource.is_empty() && *own == of_all);
    let names = texts("resourceNames");
    has("apiGroups", asked.group)
        && texts("resources").iter().any(is_meant)
        && (names.is_empty() || names.iter().any(|own| own == asked.name))
}
