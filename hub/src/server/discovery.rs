//! Discovery: the served kinds, in the aggregated form (one request) and the legacy form (one per group
//! version).
//!
//! Both come from the table of kinds. `/api` and `/apis` must answer in the same form, or clients fall back:
//! both read the same Accept header.

use http::Response;
use serde_json::{Value, json};

use super::request::media_ranges;
use super::respond::{self, Body};
use super::route::{METRICS, VIRTUAL_GROUPS};
use kedge_hub_core::kinds::{self, Kind, schema};

/// The requested version of the aggregated form, if any.
fn aggregated(accept: &str) -> Option<&'static str> {
    for range in media_ranges(accept) {
        if range.media != "application/json" {
            continue;
        }
        match (range.parameter("as"), range.parameter("v")) {
            ("APIGroupDiscoveryList", "v2") => return Some("v2"),
            ("APIGroupDiscoveryList", "v2beta1") => return Some("v2beta1"),
            ("", _) => return None,
            _ => {}
        }
    }
    None
}

/// All groups but the core one, with their versions.
fn named_groups() -> Vec<(&'static str, &'static str)> {
    let kinds = kinds::group_versions().into_iter().filter(|(group, _)| !group.is_empty());
    let mut groups: Vec<_> = kinds.chain(VIRTUAL_GROUPS).chain([METRICS]).collect();
    groups.sort_by_key(|(group, _)| ORDER.iter().position(|known| known == group));
    groups
}

/// Upstream's order of groups: `kubectl get` uses the first group that has a resource of the given name.
const ORDER: [&str; 12] = [
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "fleet.kedge.dev",
    // served by another server behind the API server, so it comes after all others
    "metrics.k8s.io",
];

/// The hash that clients compare to notice a change of the type under which objects are stored; computed as
/// upstream.
fn storage_version_hash(kind: &'static Kind) -> String {
    let Kind { group, version, kind, .. } = kind.stored();
    let digest = ring::digest::digest(&ring::digest::SHA256, format!("{group}/{version}/{kind}").as_bytes());
    schema::base64_encode(&digest.as_ref()[..8])
}

/// `/`: the served paths.
pub(super) fn index() -> Response<Body> {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, version) in named_groups() {
        paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{version}")]);
    }
    let others = ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    paths.extend(others.map(str::to_owned));
    paths.sort_unstable();
    respond::json(200, &json!({"paths": paths}))
}

/// `/api`.
pub(super) fn core(accept: &str) -> Response<Body> {
    match aggregated(accept) {
        Some(version) => list(version, &[("", "v1")]),
        None => respond::json(
            200,
            &json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ),
    }
}

/// `/apis`.
pub(super) fn groups(accept: &str) -> Response<Body> {
    match aggregated(accept) {
        Some(version) => list(version, &named_groups()),
        None => {
            let groups: Vec<Value> =
                named_groups().iter().map(|(group, version)| listed_group(group, version)).collect();
            respond::json(200, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
    }
}

fn group_value(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

/// A group in the list of groups. A group without resources has no version there: clients do not cache an
/// empty list of resources, so they would request it at every command.
fn listed_group(group: &str, version: &str) -> Value {
    let mut value = group_value(group, version);
    if aggregated_resources(group, version).is_empty() {
        value["versions"] = json!([]);
    }
    value
}

/// `/apis/GROUP`.
pub(super) fn group(group: &str) -> Response<Body> {
    let version =
        named_groups().iter().find(|(known, _)| *known == group).map_or("v1", |(_, version)| version);
    let mut value = group_value(group, version);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    respond::json(200, &value)
}

/// Reviews and bindings, which clients see as resources: plural, singular, kind, and true if it is posted to
/// a namespace.
pub(super) fn posted_to(group: &str) -> &'static [(&'static str, &'static str, &'static str, bool)] {
    match group {
        "" => &[("bindings", "binding", "Binding", true)],
        "authorization.k8s.io" => &[
            ("localsubjectaccessreviews", "localsubjectaccessreview", "LocalSubjectAccessReview", true),
            ("selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview", false),
            ("selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview", false),
            ("subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview", false),
        ],
        "authentication.k8s.io" => &[
            ("selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview", false),
            ("tokenreviews", "tokenreview", "TokenReview", false),
        ],
        _ => &[],
    }
}

/// Kinds that are read and never stored: plural, kind, and true if it has a namespace.
fn measured(group: &str) -> &'static [(&'static str, &'static str, bool)] {
    match group == METRICS.0 {
        true => &[("nodes", "NodeMetrics", false), ("pods", "PodMetrics", true)],
        false => &[],
    }
}

fn kinds_of<'a>(group: &'a str, version: &'a str) -> impl Iterator<Item = &'static Kind> + 'a {
    kinds::served().filter(move |kind| kind.group == group && kind.version == version)
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub(super) fn resources(group: &str, version: &str) -> Response<Body> {
    let mut resources = Vec::new();
    for kind in kinds_of(group, version) {
        let mut resource = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": kind.verbs, "storageVersionHash": storage_version_hash(kind),
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        resources.push(resource);
        if kind.status {
            resources.push(json!({
                "name": format!("{}/status", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": ["get", "patch", "update"],
            }));
        }
        for subresource in kind.subresources() {
            let (group, version, of) = subresource.of;
            resources.push(json!({
                "name": format!("{}/{}", kind.plural, subresource.name), "singularName": "",
                "namespaced": kind.namespaced, "group": group, "version": version, "kind": of,
                "verbs": subresource.verbs,
            }));
        }
    }
    for (plural, singular, kind, namespaced) in posted_to(group) {
        resources.push(json!({
            "name": plural, "singularName": singular, "namespaced": namespaced, "kind": kind, "verbs": ["create"]}));
    }
    for (plural, kind, namespaced) in measured(group) {
        resources.push(json!({
            "name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]}));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let list = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources});
    respond::json(200, &list)
}

fn list(version: &str, groups: &[(&str, &str)]) -> Response<Body> {
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, group_version)| (group, group_version, aggregated_resources(group, group_version)))
        // a group without resources is left out, for the reason of `listed_group`
        .filter(|(_, _, resources)| !resources.is_empty())
        .map(|(group, group_version, resources)| {
            let mut meta = json!({"creationTimestamp": null});
            if !group.is_empty() {
                meta["name"] = (*group).into();
            }
            json!({"metadata": meta, "versions": [{
                "version": group_version, "resources": resources, "freshness": "Current"}]})
        })
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {}, "items": items,
    });
    let media = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    respond::bytes(200, &media, list.to_string())
}

fn aggregated_resources(group: &str, version: &str) -> Vec<Value> {
    let response_kind = |kind: &str| json!({"group": group, "version": version, "kind": kind});
    let scope = |namespaced| if namespaced { "Namespaced" } else { "Cluster" };
    let mut resources: Vec<Value> = kinds_of(group, version)
        .map(|kind| {
            let mut resource = json!({
                "resource": kind.plural, "responseKind": response_kind(kind.kind), "scope": scope(kind.namespaced),
                "singularResource": kind.singular, "verbs": kind.verbs,
            });
            if !kind.short_names.is_empty() {
                resource["shortNames"] = json!(kind.short_names);
            }
            if !kind.categories.is_empty() {
                resource["categories"] = json!(kind.categories);
            }
            let mut subresources: Vec<Value> = kind
                .subresources()
                .iter()
                .map(|subresource| {
                    let (group, version, of) = subresource.of;
                    json!({"subresource": subresource.name, "verbs": subresource.verbs,
                        "responseKind": {"group": group, "version": version, "kind": of}})
                })
                .collect();
            if kind.status {
                subresources.push(json!({
                    "subresource": "status", "responseKind": response_kind(kind.kind),
                    "verbs": ["get", "patch", "update"]}));
            }
            if !subresources.is_empty() {
                resource["subresources"] = subresources.into();
            }
            resource
        })
        .collect();
    for (plural, singular, kind, namespaced) in posted_to(group) {
        resources.push(json!({
            "resource": plural, "responseKind": response_kind(kind), "scope": scope(*namespaced), "singularResource": singular,
            "verbs": ["create"]}));
    }
    for (plural, kind, namespaced) in measured(group) {
        resources.push(json!({
            "resource": plural, "responseKind": response_kind(kind), "scope": scope(*namespaced), "singularResource": "",
            "verbs": ["get", "list"]}));
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_storage_versions_are_upstreams() {
        let groups: Vec<&str> = named_groups().iter().map(|(group, _)| *group).collect();
        assert_eq!(groups, ORDER, "every served group has its place");
        // the hashes of a Kubernetes 1.36 API server
        for (kind, expect) in [
            (&kinds::POD, "xPOwRZ+Yhw8="),
            (&kinds::CONFIG_MAP, "qFsyl6wFWjQ="),
            (&kinds::EVENT, "r2yiGXH7wu8="),
            (&kinds::EVENT_VIEW, "r2yiGXH7wu8="),
        ] {
            assert_eq!(storage_version_hash(kind), expect, "{}", kind.resource_name());
        }
    }

    #[test]
    fn discovery_takes_the_first_accepted_form() {
        let both = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(aggregated(both), Some("v2"));
        assert_eq!(
            aggregated("application/json;v=v2beta1;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"),
            Some("v2beta1")
        );
        assert_eq!(aggregated("application/json, */*"), None);
        assert_eq!(aggregated(""), None);
    }
}
