//! The rights that roles and bindings give, found by user and group.
//!
//! Always holds: it is a function of the stored roles and bindings alone; a change of one of them takes
//! effect with its publication. A decision visits the bindings of the caller in its namespace and their
//! rules, no others, and allocates nothing. A binding to a role that does not exist gives nothing until that
//! role is created. Left to others: which callers are judged by it (`identity`), locks.

mod rule;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

pub use rule::{Rule, quoted};

use crate::identity::Attributes;
use crate::kinds::rules::list;
use crate::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, Kind, ROLE, ROLE_BINDING};
use crate::object::Object;
use crate::value::text;

/// The kinds that give rights. Roles come first, so that reading them in this order resolves each binding.
pub static KINDS_OF_RIGHTS: [&Kind; 4] = [&CLUSTER_ROLE, &ROLE, &CLUSTER_ROLE_BINDING, &ROLE_BINDING];

/// Namespace and name; the namespace is empty for cluster-scoped kinds.
type Place = (Box<str>, Box<str>);

/// See the module.
#[derive(Debug, Default)]
pub struct Rights {
    /// Existing roles, and missing ones that bindings name. Bindings know their role by its position here.
    roles: Vec<Role>,
    /// Positions that are not used.
    free: Vec<usize>,
    role_at: BTreeMap<Place, usize>,
    bindings: BTreeMap<Place, Binding>,
    users: BTreeMap<Box<str>, Bound>,
    groups: BTreeMap<Box<str>, Bound>,
}

#[derive(Debug, Default)]
struct Role {
    place: Place,
    /// `None`: it does not exist.
    rules: Option<Box<[Rule]>>,
    /// The bindings that name it.
    bindings: usize,
}

#[derive(Debug)]
struct Binding {
    role: usize,
    subjects: BTreeSet<Subject>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// Also a service account, by its user name.
    User(Box<str>),
    Group(Box<str>),
}

/// The bindings of one user or group, by their names.
#[derive(Debug, Default)]
struct Bound {
    everywhere: BTreeMap<Box<str>, Bond>,
    namespaces: BTreeMap<Box<str>, BTreeMap<Box<str>, Bond>>,
}

/// One binding of a subject.
#[derive(Debug)]
struct Bond {
    role: usize,
    /// Namespace and name of the binding.
    binding: Place,
    /// The subject in upstream's words: `User "jane"`.
    subject: Box<str>,
}

/// The reason why a request is allowed. Shows upstream's words.
#[derive(Debug)]
pub struct Grant<'a> {
    bond: &'a Bond,
    role: &'a Role,
}

impl fmt::Display for Grant<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bond { binding: (namespace, name), subject, .. } = self.bond;
        let (of_role, role) = &self.role.place;
        let kind = if of_role.is_empty() { "ClusterRole" } else { "Role" };
        match &**namespace {
            "" => write!(out, "ClusterRoleBinding {:?}", &**name),
            namespace => write!(out, "RoleBinding {:?}", format!("{name}/{namespace}")),
        }?;
        write!(out, " of {kind} {:?} to {subject}", &**role)
    }
}

impl Rights {
    /// Takes a change of an object of [`KINDS_OF_RIGHTS`]; other kinds change nothing.
    pub fn change(&mut self, kind: &Kind, object: &Object, exists: bool) {
        let place = (object.namespace.clone(), object.name.clone());
        let value = exists.then(|| object.value());
        match kind.kind {
            "Role" | "ClusterRole" if is_of(kind) => {
                self.set_role(place, value.as_ref().map(Rule::read_all));
            }
            "RoleBinding" | "ClusterRoleBinding" if is_of(kind) => self.set_binding(place, value.as_ref()),
            _ => {}
        }
    }

    fn set_role(&mut self, place: Place, rules: Option<Box<[Rule]>>) {
        let at = self.position(place);
        self.roles[at].rules = rules;
        self.release(at);
    }

    fn set_binding(&mut self, place: Place, value: Option<&Value>) {
        if let Some(old) = self.bindings.remove(&place) {
            for subject in &old.subjects {
                self.unbind(subject, &place);
            }
            self.roles[old.role].bindings -= 1;
            self.release(old.role);
        }
        let Some(value) = value else { return };
        let (namespace, name) = &place;
        let role = &value["roleRef"];
        let of_role = if text(role, &["kind"]) == "Role" { namespace.clone() } else { Box::default() };
        let at = self.position((of_role, text(role, &["name"]).into()));
        self.roles[at].bindings += 1;
        let mut subjects = BTreeSet::new();
        for subject in list(value, "subjects") {
            let Some((subject, shown)) = read_subject(subject, namespace) else { continue };
            if !subjects.insert(subject.clone()) {
                continue;
            }
            let bond = Bond { role: at, binding: place.clone(), subject: shown };
            let (map, key) = match subject {
                Subject::User(user) => (&mut self.users, user),
                Subject::Group(group) => (&mut self.groups, group),
            };
            let bound = map.entry(key).or_default();
            match &**namespace {
                "" => &mut bound.everywhere,
                _ => bound.namespaces.entry(namespace.clone()).or_default(),
            }
            .insert(name.clone(), bond);
        }
        self.bindings.insert(place, Binding { role: at, subjects });
    }

    fn unbind(&mut self, subject: &Subject, (namespace, name): &Place) {
        let (map, key) = match subject {
            Subject::User(user) => (&mut self.users, user),
            Subject::Group(group) => (&mut self.groups, group),
        };
        let Some(bound) = map.get_mut(key) else { return };
        if namespace.is_empty() {
            bound.everywhere.remove(name);
        } else if let Some(bonds) = bound.namespaces.get_mut(namespace) {
            bonds.remove(name);
            if bonds.is_empty() {
                bound.namespaces.remove(namespace);
            }
        }
        if bound.everywhere.is_empty() && bound.namespaces.is_empty() {
            map.remove(key);
        }
    }

    /// The position of a role, which need not exist.
    fn position(&mut self, place: Place) -> usize {
        if let Some(at) = self.role_at.get(&place) {
            return *at;
        }
        let role = Role { place: place.clone(), ..Role::default() };
        let at = match self.free.pop() {
            Some(at) => {
                self.roles[at] = role;
                at
            }
            None => {
                self.roles.push(role);
                self.roles.len() - 1
            }
        };
        self.role_at.insert(place, at);
        at
    }

    /// Forgets a role that neither exists nor is bound.
    fn release(&mut self, at: usize) {
        let role = &self.roles[at];
        if role.rules.is_none() && role.bindings == 0 {
            self.role_at.remove(&role.place);
            self.roles[at] = Role::default();
            self.free.push(at);
        }
    }

    /// The bindings of a user and its groups that apply in a namespace; those of the whole cluster come
    /// first. The empty namespace stands for the cluster's scope.
    fn bonds<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [String],
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Bond> + Clone {
        let own = self.users.get(user).into_iter();
        let bound = own.chain(groups.iter().filter_map(|group| self.groups.get(group.as_str())));
        let here = bound.clone().filter_map(move |bound| bound.namespaces.get(namespace));
        let everywhere = bound.flat_map(|bound| bound.everywhere.values());
        everywhere.chain(here.flat_map(BTreeMap::values))
    }

    /// The binding that allows a request, if one does.
    pub fn grant<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [String],
        request: &Attributes<'a>,
    ) -> Option<Grant<'a>> {
        self.bonds(user, groups, request.namespace).find_map(|bond| {
            let role = &self.roles[bond.role];
            let allows = role.rules.iter().flatten().any(|rule| rule.allows(request));
            allows.then_some(Grant { bond, role })
        })
    }

    /// The rules of a user and its groups in a namespace.
    pub fn rules<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [String],
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Rule> + Clone {
        self.bonds(user, groups, namespace).flat_map(|bond| self.roles[bond.role].rules.iter().flatten())
    }

    /// Upstream's error for each role that does not exist, although a binding of the caller names it.
    pub fn unresolved(&self, user: &str, groups: &[String], namespace: &str) -> Vec<String> {
        let roles: BTreeSet<&Place> = self
            .bonds(user, groups, namespace)
            .map(|bond| &self.roles[bond.role])
            .filter(|role| role.rules.is_none())
            .map(|role| &role.place)
            .collect();
        let shown = roles.into_iter().map(|(namespace, name)| {
            let kind = if namespace.is_empty() { &CLUSTER_ROLE } else { &ROLE };
            format!("{}.{} {name:?} not found", kind.singular, kind.group)
        });
        shown.collect()
    }

    /// The rules of a role; `None` if it does not exist. `namespace` is empty for a ClusterRole.
    pub fn rules_of_role(&self, namespace: &str, name: &str) -> Option<&[Rule]> {
        let at = self.role_at.get(&(Box::from(namespace), Box::from(name)))?;
        self.roles[*at].rules.as_deref()
    }

    /// The rights in `wanted` that the caller does not hold in a namespace.
    pub fn missing(&self, user: &str, groups: &[String], namespace: &str, wanted: &[Rule]) -> Vec<Rule> {
        rule::missing(self.rules(user, groups, namespace), wanted)
    }
}

/// The rights in `wanted` that `held` does not cover.
pub fn not_covered(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    rule::missing(held.iter(), wanted)
}

fn is_of(kind: &Kind) -> bool {
    crate::kinds::rbac::is_of_rights(kind)
}

/// A subject, and its description in upstream's words. A service account without a namespace is one of the
/// binding's namespace.
fn read_subject(subject: &Value, namespace: &str) -> Option<(Subject, Box<str>)> {
    let (kind, name) = (text(subject, &["kind"]), text(subject, &["name"]));
    let (subject, shown) = match kind {
        "User" => (Subject::User(name.into()), name.to_owned()),
        "Group" => (Subject::Group(name.into()), name.to_owned()),
        "ServiceAccount" => {
            let of = match text(subject, &["namespace"]) {
                "" => namespace,
                of => of,
            };
            if of.is_empty() {
                return None;
            }
            (Subject::User(format!("system:serviceaccount:{of}:{name}").into()), format!("{name}/{of}"))
        }
        _ => return None,
    };
    if name.is_empty() {
        return None;
    }
    Some((subject, format!("{kind} {shown:?}").into()))
}

#[cfg(test)]
mod tests;
