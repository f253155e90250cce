//! The answers of the local endpoint: health, the effective configuration, the agent's state, metrics, and
//! the two requests that change something.

use super::{Request, Response, Verb};
use kedge_core::pods::PodEvent;
use kedge_core::{Core, Event, Forgiveness, Now, Report};
use kedge_platform::ProcessFacts;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Facts that core does not know, as of now.
#[derive(Debug, Default)]
pub struct Surroundings {
    pub process: ProcessFacts,
    /// The API server, and the latest outcomes of requests to it.
    pub server: Value,
    /// The state of writes to the disk.
    pub disk: Value,
    /// The flags that no configuration shows.
    pub flags: Value,
}

/// The answer to a request, and the event that it causes.
pub fn answer(request: &Request, node: &Core, now: Now, around: &Surroundings) -> (Response, Option<Event>) {
    let (Some(report), Some(effective)) = (node.report(now), node.effective()) else {
        return (Response::text(503, "starting: no configuration is in use yet\n"), None);
    };
    match (request.verb, request.path.as_str()) {
        (Verb::Get, "/healthz") => (Response::text(200, "ok"), None),
        (Verb::Get, "/configz") => (Response::json(200, &effective.configz()), None),
        (Verb::Get, "/config") => (Response::json(200, &effective.to_json()), None),
        (Verb::Get, "/config/text") => (Response::text(200, effective.to_text()), None),
        (Verb::Get, "/status") => (Response::json(200, &status(&report, around)), None),
        (Verb::Get, "/metrics") => (Response::metrics(metrics(&report, &around.process)), None),
        (Verb::Get, "/pods") => match node.pods() {
            // unknown does not mean gone: an agent that has just started does not know yet which pods run
            Some(pods) => {
                let held = node.pods_held_seconds(now);
                let (pods, is_complete) = (json!(pods), node.knows_all_pods());
                (
                    Response::json(
                        200,
                        &json!({"pods": pods, "isComplete": is_complete, "heldSeconds": held}),
                    ),
                    None,
                )
            }
            None => (Response::text(404, NO_RUNTIME), None),
        },
        (Verb::Post, "/pods/release") => release(request, node),
        (Verb::Post, "/config/forgive") => forgive(request, node, &report),
        (Verb::Post, "/config/reset") => match node.reset_refusal() {
            None => {
                let text = "going back to the local config; the agent restarts\n";
                (Response::text(200, text), Some(Event::Reset))
            }
            Some(why) => {
                (Response::text(503, format!("going back to the local config: not done, {why}\n")), None)
            }
        },
        (_, path) => (Response::not_found(path), None),
    }
}

/// `kedge status --output json`.
fn status(report: &Report, around: &Surroundings) -> Value {
    let mut status = json!(report);
    status["server"] = around.server.clone();
    status["disk"] = around.disk.clone();
    status["flags"] = around.flags.clone();
    if let (Some(storage), Some(disk)) = (json!(report.storage).as_object(), status["disk"].as_object_mut()) {
        disk.extend(storage.clone());
    }
    status["disk"]["stalledSeconds"] = json!(report.disk_stalled_seconds);
    status
}

/// The answer where there are no pods.
const NO_RUNTIME: &str = "this node runs no pods: there is no container runtime (--crun)\n";

fn release(request: &Request, node: &Core) -> (Response, Option<Event>) {
    let Some(pods) = node.pods() else { return (Response::text(404, NO_RUNTIME), None) };
    let which = request.param("pod").filter(|pod| !pod.is_empty());
    let named = which.map(|pod| pod.split_once('/').unwrap_or(("default", pod)));
    let is_it = |namespace: &str, name: &str| named.is_none_or(|named| named == (namespace, name));
    let found: Vec<String> = pods
        .iter()
        .filter(|pod| pod.is_orphaned && !pod.is_ending && is_it(&pod.namespace, &pod.name))
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    if found.is_empty() {
        let which = which.map(|pod| format!(" {pod}")).unwrap_or_default();
        return (Response::text(404, format!("there is no orphaned pod{which}\n")), None);
    }
    let named = named.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    let event = Event::Pods(Box::new(PodEvent::Release(named)));
    (Response::text(200, format!("orphaned pods end: {}\n", found.join(", "))), Some(event))
}

fn forgive(request: &Request, node: &Core, report: &Report) -> (Response, Option<Event>) {
    let Some(uid) = request.param("uid").filter(|uid| kedge_core::config::source::is_file_name(uid)) else {
        return (Response::text(400, "uid is missing or no UID\n"), None);
    };
    match node.forgiveness(uid) {
        Forgiveness::Taken => {
            let text = format!(
                "forgetting the verdicts on UID {uid}; if it is assigned, the agent restarts to try it\n"
            );
            (Response::text(200, text), Some(Event::Forgive(uid.to_owned())))
        }
        Forgiveness::NothingKnown => {
            let known: Vec<&str> = report.config.bad.iter().map(|bad| bad.uid.as_str()).collect();
            let known = if known.is_empty() {
                "there are none".into()
            } else {
                format!("known: {}", known.join(", "))
            };
            (Response::text(404, format!("there is no verdict on UID {uid}; {known}\n")), None)
        }
        refusal @ (Forgiveness::TooMany | Forgiveness::Exiting | Forgiveness::SwitchedOff) => {
            (Response::text(503, format!("forgetting the verdicts on UID {uid}: {refusal}\n")), None)
        }
    }
}

/// Prometheus text. `kubelet_node_config_*` are upstream's names and labels.
fn metrics(report: &Report, process: &ProcessFacts) -> String {
    let mut out = String::new();
    let status = &report.config.status;
    // as upstream: the value is always 1, the labels carry the information
    for (name, help, source) in [
        ("assigned", "The configuration this node will try to use.", &status.assigned),
        ("active", "The configuration in use.", &status.active),
        ("last_known_good", "The configuration fallen back to.", &status.last_known_good),
    ] {
        let labels = match source.as_ref().and_then(|source| source.config_map.as_ref()) {
            None => {
                r#"node_config_kubelet_key="",node_config_resource_version="",node_config_source="local",node_config_uid="""#
                    .to_owned()
            }
            Some(map) => format!(
                r#"node_config_kubelet_key="{}",node_config_resource_version="{}",node_config_source="/api/v1/namespaces/{}/configmaps/{}",node_config_uid="{}""#,
                map.kubelet_config_key, map.resource_version, map.namespace, map.name, map.uid
            ),
        };
        gauge(&mut out, &format!("kubelet_node_config_{name}"), help, &format!("{{{labels}}} 1"));
    }
    let error = u8::from(!status.error.is_empty());
    let help = "1 if the assigned configuration is not in use because of an error.";
    gauge(&mut out, "kubelet_node_config_error", help, &format!(" {error}"));
    counter(
        &mut out,
        "kedge_lease_renewals_total",
        "Lease renewals accepted since the start.",
        report.lease.renewals,
    );
    counter(
        &mut out,
        "kedge_status_posts_total",
        "Status patches accepted since the start.",
        report.status_posts,
    );
    let startups = report.config.startups;
    let help = "Counted startups of the configuration in use since its last whole trial.";
    gauge(&mut out, "kedge_config_startups", help, &format!(" {startups}"));
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Resident memory.", process.rss_bytes),
        ("process_open_fds", "Open file descriptors.", process.fds),
        ("process_threads", "Threads.", process.threads),
    ] {
        if let Some(value) = value {
            gauge(&mut out, name, help, &format!(" {value}"));
        }
    }
    out
}

fn gauge(out: &mut String, name: &str, help: &str, sample: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{sample}");
}

fn counter(out: &mut String, name: &str, help: &str, value: u64) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
}
