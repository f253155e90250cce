//! One PolicyRule: the requests that it allows, the rules that it covers, and its text in errors.
//!
//! Always holds: the meaning is upstream's. A resource `x` never means `x/sub`; `*/sub` means that
//! subresource of everything; `*` means everything. A rule with names allows nothing on collections, except
//! lists and watches of one name.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::identity::Attributes;
use crate::value::at;

/// A text of a rule that stands for all.
const ALL: &str = "*";

/// A rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    verbs: Texts,
    groups: Texts,
    resources: Texts,
    names: Texts,
    urls: Texts,
}

type Texts = Box<[Box<str>]>;

fn has(texts: &Texts, text: &str) -> bool {
    texts.iter().any(|own| **own == *text)
}

fn has_or_all(texts: &Texts, text: &str) -> bool {
    texts.iter().any(|own| **own == *ALL || **own == *text)
}

impl Rule {
    /// From a PolicyRule; absent fields are empty.
    pub fn read(rule: &Value) -> Rule {
        let texts = |field: &str| {
            let list = rule.get(field).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_str).map(Box::from).collect()
        };
        Rule {
            verbs: texts("verbs"),
            groups: texts("apiGroups"),
            resources: texts("resources"),
            names: texts("resourceNames"),
            urls: texts("nonResourceURLs"),
        }
    }

    /// The rules of a role.
    pub fn read_all(role: &Value) -> Box<[Rule]> {
        let rules = at(role, &["rules"]).and_then(Value::as_array);
        rules.into_iter().flatten().map(Rule::read).collect()
    }

    /// As a PolicyRule, which has the same fields as a rule of a SelfSubjectRulesReview.
    pub fn to_value(&self) -> Value {
        let mut value = json!({ "verbs": self.verbs });
        for (name, _, texts) in self.fields() {
            if name != "verbs" && !texts.is_empty() {
                value[name] = json!(texts);
            }
        }
        value
    }

    /// Whether it is about paths, not about resources.
    pub fn is_for_paths(&self) -> bool {
        !self.urls.is_empty()
    }

    /// Whether it allows a request.
    pub fn allows(&self, request: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, request.verb) {
            return false;
        }
        if request.resource.is_empty() {
            return self.urls.iter().any(|url| url_covers(url, request.path));
        }
        has_or_all(&self.groups, request.group)
            && self.resources.iter().any(|own| resource_matches(own, request))
            && (self.names.is_empty() || has(&self.names, request.requested_name()))
    }

    /// Whether it means the object of a request in particular: it names the object, or means everything.
    pub fn names(&self, request: &Attributes<'_>) -> bool {
        has(&self.names, request.requested_name()) || has(&self.resources, ALL)
    }

    /// Whether it allows everything that another rule allows, alone.
    fn covers(&self, other: &Rule) -> bool {
        let all = |own: &Texts, wanted: &Texts| has(own, ALL) || wanted.iter().all(|wanted| has(own, wanted));
        let names = match (self.names.is_empty(), other.names.is_empty()) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => other.names.iter().all(|name| has(&self.names, name)),
        };
        let urls = other.urls.iter().all(|wanted| self.urls.iter().any(|own| url_covers(own, wanted)));
        all(&self.verbs, &other.verbs)
            && all(&self.groups, &other.groups)
            && other.resources.iter().all(|wanted| self.covers_resource(wanted))
            && names
            && urls
    }

    fn covers_resource(&self, wanted: &str) -> bool {
        let subresource = wanted.split_once('/').map(|(_, subresource)| subresource);
        has_or_all(&self.resources, wanted)
            || subresource.is_some_and(|subresource| {
                self.resources.iter().any(|own| own.strip_prefix("*/") == Some(subresource))
            })
    }

    /// The number of rules that [`Rule::parts`] returns.
    fn count(&self) -> usize {
        let resources = self.groups.len().saturating_mul(self.resources.len());
        let resources = resources.saturating_mul(self.names.len().max(1));
        self.verbs.len().saturating_mul(resources.saturating_add(self.urls.len()))
    }

    /// The same rights as rules with one verb and one resource or path each.
    fn parts(&self) -> impl Iterator<Item = Rule> + '_ {
        let one = |text: &str| -> Texts { Box::new([Box::from(text)]) };
        let names = move || {
            let none = self.names.is_empty().then(Texts::default);
            none.into_iter().chain(self.names.iter().map(move |name| one(name)))
        };
        self.verbs.iter().flat_map(move |verb| {
            let resources = self.groups.iter().flat_map(move |group| {
                self.resources.iter().flat_map(move |resource| {
                    names().map(move |names| Rule {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        names,
                        urls: Texts::default(),
                    })
                })
            });
            let urls =
                self.urls.iter().map(move |url| Rule { verbs: one(verb), urls: one(url), ..Rule::default() });
            resources.chain(urls)
        })
    }

    /// The fields, with their names in JSON and in errors, in the order of errors.
    fn fields(&self) -> [(&'static str, &'static str, &Texts); 5] {
        [
            ("apiGroups", "APIGroups", &self.groups),
            ("resources", "Resources", &self.resources),
            ("nonResourceURLs", "NonResourceURLs", &self.urls),
            ("resourceNames", "ResourceNames", &self.names),
            ("verbs", "Verbs", &self.verbs),
        ]
    }

    /// As upstream's errors show it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    pub fn shown(&self) -> String {
        let fields = self.fields().into_iter().filter(|(.., texts)| !texts.is_empty());
        let fields: Vec<String> =
            fields.map(|(_, name, texts)| format!("{name}:{}", quoted(texts))).collect();
        format!("{{{}}}", fields.join(", "))
    }
}

/// A list of texts as Go prints it.
pub fn quoted(texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", texts.join(" "))
}

fn resource_matches(own: &str, request: &Attributes<'_>) -> bool {
    let Attributes { resource, subresource, .. } = *request;
    if own == ALL {
        return true;
    }
    match (own.strip_prefix(resource), subresource) {
        (Some(""), "") => return true,
        (Some(rest), subresource)
            if rest.strip_prefix('/') == Some(subresource) && !subresource.is_empty() =>
        {
            return true;
        }
        _ => {}
    }
    !subresource.is_empty() && own.strip_prefix("*/") == Some(subresource)
}

/// Whether a path of a rule, which may end in `*`, covers a path, or another such path.
fn url_covers(own: &str, wanted: &str) -> bool {
    own == wanted
        || own.strip_suffix('*').is_some_and(|start| wanted.starts_with(start.trim_end_matches('*')))
}

/// Most single rights that are compared: a role of usual size has a few hundred. Beyond that only a rule that
/// one of the caller's rules covers as a whole counts as covered.
const MOST_PARTS: usize = 10_000;

/// The rights in `wanted` that `held` does not cover, put together by resource.
pub(super) fn missing<'a>(held: impl Iterator<Item = &'a Rule> + Clone, wanted: &[Rule]) -> Vec<Rule> {
    let covered = |rule: &Rule| held.clone().any(|own| own.covers(rule));
    let mut left = MOST_PARTS;
    let (mut parts, mut whole) = (BTreeSet::new(), Vec::new());
    for rule in wanted.iter().filter(|rule| !covered(rule)) {
        let count = rule.count();
        if count > left {
            whole.push(rule.clone());
            continue;
        }
        left -= count;
        parts.extend(rule.parts().filter(|part| !covered(part)));
    }
    whole.extend(compact(parts));
    whole
}

/// Puts rules for the same resource and name together into one with all their verbs, as upstream.
fn compact(parts: BTreeSet<Rule>) -> Vec<Rule> {
    let mut found: std::collections::BTreeMap<[Texts; 4], Vec<Box<str>>> = std::collections::BTreeMap::new();
    for Rule { verbs, groups, resources, names, urls } in parts {
        found.entry([groups, resources, names, urls]).or_default().extend(verbs);
    }
    found
        .into_iter()
        .map(|([groups, resources, names, urls], verbs)| Rule {
            verbs: verbs.into(),
            groups,
            resources,
            names,
            urls,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::NODE;
    use crate::selector::Selection;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        Rule::read(
            &json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names}),
        )
    }

    fn paths(verbs: &[&str], urls: &[&str]) -> Rule {
        Rule::read(&json!({"verbs": verbs, "nonResourceURLs": urls}))
    }

    #[test]
    fn resource_and_subresource_are_matched_as_upstream() {
        let check = |own: &str, asked: &str, expect: bool| {
            let (resource, subresource) = asked.split_once('/').unwrap_or((asked, ""));
            let request = Attributes { verb: "get", resource, subresource, ..Attributes::default() };
            assert_eq!(rule(&["get"], &[""], &[own], &[]).allows(&request), expect, "{own} {asked}");
        };
        check("pods", "pods", true);
        check("pods", "pods/exec", false);
        check("pods/exec", "pods/exec", true);
        check("pods/exec", "pods", false);
        check("pods/exec", "pods/execute", false);
        check("pods", "podsecurity", false);
        check("pods/*", "pods/exec", false);
        check("*/exec", "pods/exec", true);
        check("*/exec", "nodes/exec", true);
        check("*/exec", "pods/log", false);
        check("*/exec", "exec", false);
        check("*", "pods/exec", true);
        check("*", "nodes", true);
        check("*/", "pods", false);
        check("pods/", "pods", false);
    }

    #[test]
    fn verb_group_and_name_are_matched() {
        let check = |rule: &Rule, verb: &str, group: &str, name: &str, expect: bool| {
            let request = Attributes { verb, group, resource: "nodes", name, ..Attributes::default() };
            assert_eq!(rule.allows(&request), expect, "{rule:?} {verb} {group} {name}");
        };
        let reads = rule(&["get"], &["apps"], &["nodes"], &[]);
        check(&reads, "get", "apps", "a", true);
        check(&reads, "list", "apps", "", false);
        check(&reads, "get", "", "a", false);
        let all = rule(&["*"], &["*"], &["*"], &[]);
        check(&all, "explode", "x", "", true);
        // upstream: a question about all verbs is allowed by all verbs only
        check(&reads, "*", "apps", "", false);
        check(&all, "*", "*", "", true);
        let named = rule(&["*"], &[""], &["nodes"], &["a", "b"]);
        check(&named, "get", "", "a", true);
        check(&named, "get", "", "c", false);
        for verb in ["create", "list", "watch", "deletecollection"] {
            check(&named, verb, "", "", false);
        }
        let selection = Selection::parse(&NODE, "", "", "metadata.name=a").unwrap();
        for (verb, expect) in [("list", true), ("watch", true), ("deletecollection", false)] {
            let selection = Some(&selection);
            let request = Attributes { verb, resource: "nodes", selection, ..Attributes::default() };
            assert_eq!(named.allows(&request), expect, "{verb}");
        }
    }

    #[test]
    fn paths_end_in_a_star_or_match_exactly() {
        let check = |own: &str, path: &str, expect: bool| {
            let request = Attributes { verb: "get", path, ..Attributes::default() };
            assert_eq!(paths(&["get"], &[own]).allows(&request), expect, "{own} {path}");
        };
        check("/metrics", "/metrics", true);
        check("/metrics", "/metrics/", false);
        check("/api/*", "/api/v1", true);
        check("/api/*", "/api", false);
        check("/a*", "/apis", true);
        check("*", "/anything", true);
        check("/a*b", "/axb", false);
        check("/*/x", "/a/x", false);
        check("", "/a", false);
        // a rule for all resources has no path, and one for all paths no resource
        let all = rule(&["*"], &["*"], &["*"], &[]);
        assert!(!all.allows(&Attributes { verb: "get", path: "/metrics", ..Attributes::default() }));
        let everywhere = paths(&["*"], &["*"]);
        assert!(!everywhere.allows(&Attributes { verb: "get", resource: "pods", ..Attributes::default() }));
    }

    #[track_caller]
    fn check_missing(held: &[Rule], wanted: &[Rule], expect: &[&str]) {
        let found: Vec<String> = missing(held.iter(), wanted).iter().map(Rule::shown).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn rights_are_covered_together_or_missing() {
        let wanted = [rule(&["get", "list"], &["", "apps"], &["pods", "pods/log"], &[])];
        check_missing(&wanted, &wanted, &[]);
        check_missing(&[rule(&["*"], &["*"], &["*"], &[])], &wanted, &[]);
        let by_verb = [
            rule(&["get"], &["*"], &["pods", "*/log"], &[]),
            rule(&["list"], &["", "apps"], &["pods"], &[]),
            rule(&["list"], &[""], &["pods/log"], &[]),
        ];
        check_missing(
            &by_verb,
            &wanted,
            &[r#"{APIGroups:["apps"], Resources:["pods/log"], Verbs:["list"]}"#],
        );
        check_missing(
            &[],
            &[rule(&["get", "list"], &[""], &["secrets"], &[])],
            &[r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#],
        );
    }

    #[test]
    fn names_and_paths_are_covered_by_wider_ones() {
        let named = rule(&["get"], &[""], &["secrets"], &["a"]);
        let any = rule(&["get"], &[""], &["secrets"], &[]);
        check_missing(std::slice::from_ref(&any), std::slice::from_ref(&named), &[]);
        let whole = r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#;
        check_missing(std::slice::from_ref(&named), &[any], &[whole]);
        let other = r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}"#;
        check_missing(&[named], &[rule(&["get"], &[""], &["secrets"], &["a", "b"])], &[other]);
        check_missing(&[paths(&["get"], &["/api/*"])], &[paths(&["get"], &["/api/v1", "/api/x*"])], &[]);
        let all = r#"{NonResourceURLs:["*"], Verbs:["get"]}"#;
        check_missing(&[paths(&["get"], &["/*"])], &[paths(&["get"], &["*"])], &[all]);
        // all verbs, groups and resources are covered by all of them only
        let each = [rule(&["get", "list", "watch"], &["", "apps"], &["pods", "nodes"], &[])];
        assert_eq!(missing(each.iter(), &[rule(&["*"], &[""], &["pods"], &[])]).len(), 1);
        assert_eq!(missing(each.iter(), &[rule(&["get"], &["*"], &["pods"], &[])]).len(), 1);
        assert_eq!(missing(each.iter(), &[rule(&["get"], &[""], &["*"], &[])]).len(), 1);
        assert_eq!(missing(each.iter(), &[rule(&["get"], &[""], &["*/log"], &[])]).len(), 1);
    }

    /// Whoever writes such a role must not keep the hub busy.
    #[test]
    fn rule_of_many_rights_is_compared_as_a_whole() {
        let many: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let wide = rule(&many, &many, &many, &many);
        let one = std::slice::from_ref(&wide);
        assert_eq!(missing([].iter(), one), one);
        assert_eq!(missing([rule(&["*"], &["*"], &["*"], &[])].iter(), &[wide]), []);
    }
}
