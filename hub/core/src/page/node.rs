//! `/fleet/nodes/NAME`: one node.

use serde_json::Value;

use super::difference::difference;
use super::frame::{Frame, and_more, heading, same_by_kubectl};
use super::html::Html;
use super::overview::table_of_events;
use super::picture::picture;
use super::rollout::conditions;
use super::sees::Sees;
use crate::state::fleet::{CELLS, Levels, Sight};
use crate::value::{at, text};

/// Events, pods, labels on the page.
pub const MOST_EVENTS: usize = 50;
pub const MOST_PODS: usize = 50;
const LABELS: usize = 50;

/// The versions of a configuration that a Node names in `status.config`.
pub const VERSIONS: [(&str, &str); 3] =
    [("Assigned", "assigned"), ("Active", "active"), ("Last known good", "lastKnownGood")];

/// The facts that the page shows.
#[derive(Debug)]
pub struct Shown<'a> {
    /// The Node.
    pub node: &'a Value,
    pub sight: &'a Sight,
    pub day: &'a [Levels; CELLS],
    /// Its Lease, some of its pods, and its latest Events, the newest first; how many there are.
    pub lease: Option<&'a Value>,
    pub pods: &'a [Value],
    pub of_pods: usize,
    pub events: &'a [Value],
    pub of_events: usize,
    /// The end of its newest certificate (Unix time).
    pub certificate: Option<i64>,
    /// The payloads of [`VERSIONS`]; `None`: the hub does not have this version, or the reader may not read it.
    pub payloads: [Option<&'a str>; VERSIONS.len()],
    pub sees: Sees,
}

/// Writes the page.
pub fn node(frame: &Frame<'_>, shown: &Shown<'_>) -> String {
    let name = text(shown.node, &["metadata", "name"]);
    frame.page(&format!("Node {name}"), (&["fleet", "nodes", name], &[]), |page| {
        picture(page, shown.day);
        facts(page, frame, shown);
        same_by_kubectl(page, &format!("kubectl describe node {name}"));
        conditions(page, frame, shown.node);
        configuration(page, shown);
        if shown.sees.pods {
            pods(page, frame, name, shown);
        }
        if shown.sees.events {
            events(page, frame, name, shown);
        }
        heading(page, "Log of its agent");
        let query = "?query=kedge&tailLines=50";
        page.command(&format!("kubectl get --raw '/api/v1/nodes/{name}/proxy/logs/{query}'")).raw("\n");
        labels(page, shown.node);
    })
}

fn facts(page: &mut Html, frame: &Frame<'_>, shown: &Shown<'_>) {
    let node = shown.node;
    page.raw("<dl><dt>State<dd>").show(shown.sight.facts[0].1.replace('-', " "));
    if let Some(since) = shown.sight.silent_since {
        page.raw(", ");
        frame.since(page, since);
    }
    if let Some(lease) = shown.lease {
        page.raw("<dt>Last renewal<dd>");
        frame.since_text(page, text(lease, &["spec", "renewTime"]));
        page.raw(" <span class=m>(the node's clock)</span>");
    }
    page.raw("<dt>Registered<dd>");
    frame.since_text(page, text(node, &["metadata", "creationTimestamp"]));
    if shown.sees.certificates {
        page.raw("<dt>Certificate ends<dd>");
        match shown.certificate {
            Some(end) => frame.since(page, end),
            None => {
                page.raw("unknown");
            }
        }
    }
    for (label, field) in [
        ("Agent", "kubeletVersion"),
        ("System", "osImage"),
        ("Kernel", "kernelVersion"),
        ("Processor", "architecture"),
        ("Boot", "bootID"),
    ] {
        let value = text(node, &["status", "nodeInfo", field]);
        if !value.is_empty() {
            page.raw("<dt>").raw(label).raw("<dd>").within(value);
        }
    }
    for (label, name) in [("Slot", kedge_api::SLOT), ("Watchdog", kedge_api::WATCHDOG_LABEL)] {
        if let Some(value) = at(node, &["metadata", "labels", name]).and_then(Value::as_str) {
            page.raw("<dt>").raw(label).raw("<dd>").within(value);
        }
    }
    page.raw("<dt>Addresses<dd>");
    let addresses = at(node, &["status", "addresses"]).and_then(Value::as_array);
    for address in addresses.into_iter().flatten().take(8) {
        page.within(text(address, &["address"])).raw(" <span class=m>");
        page.within(text(address, &["type"])).raw("</span> ");
    }
    page.raw("</dl>\n");
}

/// Which configuration is assigned, runs, and is proven; for readers of ConfigMaps also the lines in which
/// these differ.
fn configuration(page: &mut Html, shown: &Shown<'_>) {
    let Some(config) = at(shown.node, &["status", "config"]) else { return };
    heading(page, "Configuration");
    page.raw("<dl>");
    let part = |which: &str| at(config, &[which, "configMap"]);
    for (label, which) in VERSIONS {
        page.raw("<dt>").raw(label).raw("<dd>");
        match part(which) {
            None => {
                page.raw("local");
            }
            Some(source) => {
                let field = |name: &str| text(source, &[name]);
                page.within(field("namespace")).raw("/").within(field("name"));
                page.raw(" <span class=m>version ").within(field("resourceVersion"));
                page.raw(", UID ").within(field("uid")).raw("</span>");
                let differs = |field: &str| {
                    let of = |which| part(which).map(|source| text(source, &[field]));
                    of(which) != of("assigned")
                };
                if which != "assigned" && (differs("uid") || differs("resourceVersion")) {
                    page.raw(" <span class=u>not the assigned one</span>");
                }
            }
        }
    }
    let error = text(config, &["error"]);
    if !error.is_empty() {
        page.raw("<dt>Error<dd class=x>");
        super::frame::message(page, error);
    }
    page.raw("</dl>\n");
    let names = [part("assigned"), part("active")];
    if shown.sees.config_maps
        && let [Some(assigned), _] = names
    {
        let of = |field: &str| text(assigned, &[field]);
        let (namespace, name) = (of("namespace"), of("name"));
        if crate::plain::is_simple(namespace) && crate::plain::is_simple(name) {
            same_by_kubectl(page, &format!("kubectl -n '{namespace}' get configmap '{name}' -o yaml"));
        }
    }
    if shown.sees.config_maps {
        differences(page, config, shown);
    }
}

/// The lines in which the assigned version differs from the one that runs, and from the proven one.
fn differences(page: &mut Html, config: &Value, shown: &Shown<'_>) {
    let version = |number: usize| {
        let source = at(config, &[VERSIONS[number].1, "configMap"])?;
        Some(["uid", "resourceVersion", "kubeletConfigKey"].map(|field| text(source, &[field])))
    };
    let [assigned, active, proven] = [0, 1, 2].map(version);
    for (number, title) in [
        (1, "<h3>From the active version to the assigned one</h3>\n"),
        (2, "<h3>From the last known good version to the assigned one</h3>\n"),
    ] {
        let found = [assigned, active, proven][number];
        if assigned.is_none() || found == assigned || (number == 2 && found == active) {
            continue;
        }
        page.raw(title);
        match (found, shown.payloads[number], shown.payloads[0]) {
            (None, ..) => {
                page.raw("<p class=m>The former is the node's local configuration, which the hub does not have.</p>\n");
            }
            (_, Some(from), Some(to)) => difference(page, from, to),
            (_, None, _) => {
                page.raw("<p class=m>The hub no longer has the former. Revisions of a ConfigRollout are kept.</p>\n");
            }
            (_, _, None) => {
                page.raw("<p class=m>The hub no longer has the latter: its ConfigMap was changed or deleted.</p>\n");
            }
        }
    }
}

fn pods(page: &mut Html, frame: &Frame<'_>, node: &str, shown: &Shown<'_>) {
    let pods = shown.pods;
    heading(page, "Pods");
    if !pods.is_empty() {
        page.raw(
            "<table class=w><thead><tr><th>Pod<th>Phase<th>Waits<th>Restarts<th>Since</tr></thead><tbody>\n",
        );
    }
    for pod in pods.iter().take(MOST_PODS) {
        let statuses = at(pod, &["status", "containerStatuses"]).and_then(Value::as_array);
        let statuses = statuses.map_or(&[][..], Vec::as_slice);
        let phase = text(pod, &["status", "phase"]);
        page.raw("<tr><td>").within(text(pod, &["metadata", "namespace"])).raw("/");
        page.within(text(pod, &["metadata", "name"]));
        page.raw(if matches!(phase, "Running" | "Succeeded") { "<td>" } else { "<td class=u>" })
            .within(phase);
        page.raw("<td class=x>");
        let reasons = statuses.iter().map(|status| text(status, &["state", "waiting", "reason"]));
        if let Some(reason) = reasons.into_iter().find(|reason| !reason.is_empty()) {
            page.within(reason);
        }
        let restarts = statuses.iter().filter_map(|status| status["restartCount"].as_u64());
        page.raw("<td>").show(restarts.fold(0_u64, u64::saturating_add)).raw(" restarts<td class=m>");
        frame.since_text(page, text(pod, &["metadata", "creationTimestamp"]));
        page.raw("</tr>\n");
    }
    if pods.is_empty() {
        page.raw("<p class=m>none</p>\n");
    } else {
        page.raw("</tbody></table>\n");
    }
    and_more(page, shown.of_pods.saturating_sub(pods.len().min(MOST_PODS)), "pods");
    same_by_kubectl(page, &format!("kubectl get pods -A --field-selector spec.nodeName={node}"));
}

fn events(page: &mut Html, frame: &Frame<'_>, node: &str, shown: &Shown<'_>) {
    heading(page, "Events");
    let events = &shown.events[..shown.events.len().min(MOST_EVENTS)];
    table_of_events(page, frame, events);
    if events.is_empty() {
        page.raw("<p class=m>none</p>\n");
    }
    and_more(page, shown.of_events.saturating_sub(events.len()), "events");
    let about = format!("involvedObject.kind=Node,involvedObject.name={node}");
    same_by_kubectl(page, &format!("kubectl get events -A --field-selector {about}"));
}

fn labels(page: &mut Html, node: &Value) {
    for (title, field) in [("Labels", "labels"), ("Annotations", "annotations")] {
        let all = at(node, &["metadata", field]).and_then(Value::as_object);
        let Some(all) = all.filter(|all| !all.is_empty()) else { continue };
        heading(page, title);
        page.raw("<dl>");
        for (key, value) in all.iter().take(LABELS) {
            page.raw("<dt>").within(key).raw("<dd>").within(value.as_str().unwrap_or(""));
        }
        page.raw("</dl>\n");
        and_more(page, all.len().saturating_sub(LABELS), "of them");
    }
}
