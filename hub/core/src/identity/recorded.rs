//! What a Kubernetes 1.36 allows, recorded, beside what this hub allows: identity x verb x resource.
//!
//! `hub/tests/kubernetes` has the cells (`rights.json`), the answers of the API server by
//! SubjectAccessReview (`rights.txt`), the differences that are meant (`differences.txt`), and the program that
//! asked. Both sides have the same roles, bindings, identities, nodes and pods. Always holds: a difference is
//! explained by a line of `differences.txt`, and each line explains at least one cell.

#![allow(clippy::disallowed_methods, reason = "a test reads what was recorded")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::default_roles::{cluster_role_bindings, cluster_roles};
use super::fixture::Objects;
use super::{Attributes, Identity, authorize};
use crate::kinds::{self, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, rules::list};
use crate::value::text;

fn read(name: &str) -> String {
    fs::read_to_string(format!("{}/../tests/kubernetes/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// A line of `differences.txt`: `+` (the hub allows more) or `-`, identities, verbs, resources or paths, and
/// the reason, separated by `|`; a `*` at the end of a name stands for any rest, `any` for all.
struct Row<'a> {
    hub: bool,
    identities: Vec<&'a str>,
    verbs: Vec<&'a str>,
    places: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Row<'a> {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [sign, identities, verbs, places, why] = parts[..] else { panic!("not five parts: {line}") };
        assert!(matches!(sign, "+" | "-") && !why.is_empty(), "{line}");
        Row {
            hub: sign == "+",
            identities: identities.split(", ").collect(),
            verbs: verbs.split(' ').collect(),
            places: places.split(' ').collect(),
        }
    }

    fn explains(&self, identity: &str, place: &str, verb: &str, hub: bool) -> bool {
        let has = |names: &[&str], name: &str| {
            names.iter().any(|one| match one.strip_suffix('*') {
                Some(start) if !start.is_empty() => name.starts_with(start),
                _ => *one == "any" || *one == name,
            })
        };
        self.hub == hub
            && has(&self.identities, identity)
            && has(&self.places, place)
            && has(&self.verbs, verb)
    }
}

/// The store of the recorded server: the hub's default roles, and the objects of the cells.
fn view(cells: &Value) -> Objects {
    let mut view = Objects::default();
    for (kind, defaults) in
        [(&CLUSTER_ROLE, cluster_roles()), (&CLUSTER_ROLE_BINDING, cluster_role_bindings())]
    {
        for value in defaults {
            let place = format!("/{}", text(&value, &["metadata", "name"]));
            view = view.with_right(kind, &place, value);
        }
    }
    for entry in list(cells, "objects") {
        let mut value = entry["object"].clone();
        let (namespace, name) =
            ["namespace", "name"].map(|field| text(&value, &["metadata", field]).to_owned()).into();
        let kind = kinds::served().find(|kind| kind.kind == text(&value, &["kind"])).unwrap();
        if kinds::rbac::is_of_rights(kind) {
            view = view.with_right(kind, &format!("{namespace}/{name}"), value);
            continue;
        }
        if entry["as"].is_object() {
            value["spec"]["username"] = entry["as"]["user"].clone();
        }
        view = view.with(kind.plural, &namespace, &name, value);
    }
    view
}

/// The attributes of `GROUP/RESOURCE:SUBRESOURCE@NAMESPACE#NAME`.
fn attributes(what: &str) -> Attributes<'_> {
    let (group, rest) = what.split_once('/').unwrap();
    let (rest, name) = rest.split_once('#').unwrap_or((rest, ""));
    let (whole, namespace) = rest.split_once('@').unwrap();
    let (resource, subresource) = whole.split_once(':').unwrap_or((whole, ""));
    Attributes { group, resource, subresource, namespace, name, ..Attributes::default() }
}

/// Per identity, the cells that the recorded server allows: resource or path, and verb.
fn recorded<'a>(cells: &Value, text: &'a str) -> BTreeMap<&'a str, BTreeSet<(String, &'a str)>> {
    let mut found = BTreeMap::new();
    let mut own: Option<&mut BTreeSet<_>> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(line) = line.strip_prefix("  ") else {
            own = Some(found.entry(line).or_insert_with(BTreeSet::new));
            continue;
        };
        let (verbs, places) = line.split_once(": ").unwrap();
        let (verbs, all) = match verbs.strip_prefix("path ") {
            Some(verbs) => (verbs, "paths"),
            None => (verbs, "resources"),
        };
        let places: Vec<String> = match places {
            "all" => list(cells, all).iter().map(|place| place.as_str().unwrap().to_owned()).collect(),
            some => some.split(' ').map(str::to_owned).collect(),
        };
        let own = own.as_mut().unwrap();
        for verb in verbs.split(' ') {
            own.extend(places.iter().map(|place| (place.clone(), verb)));
        }
    }
    found
}

#[test]
fn hub_allows_what_kubernetes_allows() {
    let cells = crate::decode::value(read("rights.json").as_bytes()).unwrap();
    let view = view(&cells);
    let answers = read("rights.txt");
    let recorded = recorded(&cells, &answers);
    let meant = read("differences.txt");
    let meant: Vec<&str> = meant.lines().filter(|line| !line.starts_with('#')).collect();
    let rows: Vec<Row<'_>> = meant.iter().map(|line| Row::parse(line)).collect();
    let strings =
        |field: &str| list(&cells, field).iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>();
    let (mut count, mut unexplained, mut used) = (0, String::new(), BTreeSet::new());
    for (name, found) in cells["identities"].as_object().unwrap() {
        let groups: Vec<&str> = list(found, "groups").iter().map(|group| group.as_str().unwrap()).collect();
        let identity = Identity::new(text(found, &["user"]), &groups);
        let theirs = &recorded[&**name];
        for (places, verbs) in [("resources", "verbs"), ("paths", "pathVerbs")] {
            for place in strings(places) {
                let asked = match places {
                    "paths" => Attributes { path: place, ..Attributes::default() },
                    _ => attributes(place),
                };
                let mut wrong = Vec::new();
                let more = match strings("rareResources").contains(&place) {
                    true => strings("rareVerbs"),
                    false => Vec::new(),
                };
                for verb in strings(verbs).into_iter().chain(more) {
                    count += 1;
                    let hub = authorize(Some(&identity), &Attributes { verb, ..asked }, &view).is_ok();
                    if hub == theirs.contains(&(place.to_owned(), verb)) {
                        continue;
                    }
                    let row = rows.iter().position(|row| row.explains(name, place, verb, hub));
                    match row {
                        Some(row) => drop(used.insert(row)),
                        None => wrong.push(format!("{}{verb}", if hub { '+' } else { '-' })),
                    }
                }
                if !wrong.is_empty() {
                    unexplained.push_str(&format!("{name}: {place}: {}\n", wrong.join(" ")));
                }
            }
        }
    }
    assert!(unexplained.is_empty(), "the hub allows more (+) or less (-) than Kubernetes:\n{unexplained}");
    let unused = meant.iter().enumerate().filter(|(index, _)| !used.contains(index));
    let unused: Vec<&&str> = unused.map(|(_, line)| line).collect();
    assert!(unused.is_empty(), "lines that explain no difference: {unused:?}");
    assert!(count > 100_000, "{count} cells");
}
