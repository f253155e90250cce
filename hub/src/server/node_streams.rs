//! Requests that only a node can serve: its pods' logs, streams into their containers, and its own API.
//!
//! Owns the translation of such a request into the kubelet's terms. Always holds: the node sees names of
//! objects only after the hub has checked them, and of the query only parameters that mean something there.
//! Left to others: reaching the node and passing its answer on (`calls`), refusals because of a pod's state
//! (`kedge_hub_core::requests`).

use http::{Method, Response};
use kedge_api::percent_encoded;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::kinds::{NODE, POD, Subresource};
use kedge_hub_core::requests::{serving_container, serving_node};

use super::audited::Begins;
use super::calls::{self, Asked, Messages};
use super::context::{RequestContext, attributes};
use super::request::{self, Parameters};
use super::respond::{self, Body};
use super::route::Target;

/// Parameters of a log that are passed to the node unchanged.
const OF_LOGS: [&str; 8] =
    ["follow", "limitBytes", "previous", "sinceSeconds", "sinceTime", "stream", "tailLines", "timestamps"];
/// The served paths of a node's own API, and the subresource whose right suffices for each. `logs` has
/// further paths below it.
const OF_NODES: [(&[&str], &str); 7] = [
    (&["configz"], "configz"),
    (&["healthz"], "healthz"),
    (&["logs"], "log"),
    (&["metrics"], "metrics"),
    (&["metrics", "resource"], "metrics"),
    (&["pods"], "pods"),
    (&["stats", "summary"], "stats"),
];
/// Parameters of a node's own API that are passed on unchanged.
const OF_NODE_LOGS: [&str; 6] = ["boot", "pattern", "query", "sinceTime", "tailLines", "untilTime"];
const OF_STATS: [&str; 1] = ["only_cpu_and_memory"];

/// `GET .../log`, `GET` or `POST` of `.../exec`, `.../attach`, `.../portforward`.
pub(super) async fn answer(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    subresource: &Subresource,
) -> Result<Response<Body>, ApiError> {
    if request::needs_create(verb, subresource.name) {
        context.authorize(&attributes("create", target, None))?;
    }
    let hub = &context.server.hub;
    let found = hub.get(&POD, &target.namespace, &target.name);
    let pod = found.ok_or_else(|| ApiError::not_found(&POD, &target.name))?.value();
    let parameters = &context.parameters;
    let named = parameters.text("container");
    if subresource.name == "log" {
        check_log(target, parameters)?;
    }
    let Some(node) = serving_node(&pod, subresource.name, named)? else { return Ok(respond::empty(204)) };
    let container = serving_container(&pod, named);
    let path = match subresource.name {
        "log" => path(&["containerLogs", &target.namespace, &target.name, container]),
        "portforward" => path(&["portForward", &target.namespace, &target.name]),
        verb => path(&[verb, &target.namespace, &target.name, container]),
    };
    let asked = match subresource.name {
        "log" => Asked::get(with_query(path, OF_LOGS.iter().map(|name| (*name, *name)), parameters)),
        "portforward" => {
            let names = [("port", "port"), ("ports", "ports")].into_iter();
            Asked::stream(with_query(path, names, parameters), context.parts)
        }
        _ => {
            // the kubelet has other names for these parameters
            let names =
                [("command", "command"), ("stdin", "input"), ("stdout", "output"), ("stderr", "error")];
            let names = names.into_iter().chain([("tty", "tty")]);
            Asked::stream(with_query(path, names, parameters), context.parts)
        }
    };
    let messages = match subresource.name {
        "log" => Messages::asked(&context.parts.headers)?,
        _ => None,
    };
    calls::open(context, node, asked, messages, &Begins { verb, target }).await
}

/// The subresource of nodes whose right suffices for this path of a node's API, as in a kubelet; `None` if
/// nothing is served there.
pub(super) fn part(segments: &[String]) -> Option<&'static str> {
    let is_name = |name: &String| !matches!(name.as_str(), "." | "..");
    let known = match segments {
        [first, below @ ..] if first == "logs" && below.iter().all(is_name) => &segments[..1],
        whole => whole,
    };
    OF_NODES.iter().find(|(path, _)| path.iter().eq(known)).map(|(_, part)| *part)
}

/// `GET /api/v1/nodes/NAME/proxy/...`.
pub(super) async fn proxy(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    segments: &[String],
) -> Result<Response<Body>, ApiError> {
    let node = &*target.name;
    if context.parts.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    if context.server.hub.get(&NODE, "", node).is_none() {
        return Err(ApiError::not_found(&NODE, node));
    }
    let names: &'static [&'static str] = match part(segments).ok_or_else(ApiError::path_not_found)? {
        "log" => &OF_NODE_LOGS,
        "stats" => &OF_STATS,
        _ => &[],
    };
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let names = names.iter().map(|name| (*name, *name));
    let asked = Asked::get(with_query(path(&segments), names, &context.parameters));
    calls::open(context, node, asked, None, &Begins { verb, target }).await
}

fn path(segments: &[&str]) -> String {
    segments.iter().flat_map(|segment| ["/".to_owned(), percent_encoded(segment)]).collect()
}

/// Adds the parameters of these names, under the kubelet's names for them.
fn with_query(
    mut path: String,
    names: impl Iterator<Item = (&'static str, &'static str)>,
    parameters: &Parameters,
) -> String {
    let mut separator = '?';
    for (name, own) in names {
        for value in parameters.all(name) {
            path.push_str(&format!("{separator}{own}={}", percent_encoded(value)));
            separator = '&';
        }
    }
    path
}

/// Refuses, as upstream, parameters that no log can satisfy.
fn check_log(target: &Target, parameters: &Parameters) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    for flag in ["follow", "previous", "timestamps"] {
        parameters.flag(flag)?;
    }
    for (name, least) in [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)] {
        if let Some(number) = parameters.signed(name)?.filter(|number| *number < least) {
            let why = format!("must be greater than or equal to {least}");
            errors.push(FieldError::invalid(name, number, &why));
        }
    }
    match parameters.text("stream") {
        "" | "All" => {}
        "Stderr" | "Stdout" if parameters.has("tailLines") => {
            let why = "`tailLines` and specific `stream` are mutually exclusive for now";
            errors.push(FieldError::forbidden("", why));
        }
        "Stderr" | "Stdout" => {}
        other => errors.push(FieldError::unsupported("stream", other, &["All", "Stderr", "Stdout"])),
    }
    if parameters.has("sinceSeconds") && parameters.has("sinceTime") {
        errors
            .push(FieldError::forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
    }
    match errors.as_slice() {
        [] => Ok(()),
        errors => Err(ApiError::invalid(&POD, &target.name, errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_put_in_the_kubelets_words() {
        let parameters = Parameters::parse("command=sh&command=a+%26b&stdin=true&container=c&x=y").unwrap();
        let names = [("command", "command"), ("stdin", "input")].into_iter();
        let query = with_query(path(&["exec", "n", "p/..", "c"]), names, &parameters);
        assert_eq!(query, "/exec/n/p%2F../c?command=sh&command=a%20%26b&input=true");
    }

    #[test]
    fn paths_of_a_node_have_their_rights() {
        let check = |path: &str, expect: Option<&str>| {
            let segments: Vec<String> =
                path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
            assert_eq!(part(&segments), expect, "{path}");
        };
        check("stats/summary", Some("stats"));
        check("metrics", Some("metrics"));
        check("metrics/resource", Some("metrics"));
        check("logs", Some("log"));
        check("logs/pods/a b/0.log", Some("log"));
        for absent in ["", "stats", "metrics/cadvisor", "logs/../x", "logs/.", "run/a", "containerLogs/n/p/c"]
        {
            check(absent, None);
        }
    }

    #[test]
    fn log_that_nothing_could_answer_is_refused() {
        let target =
            Target { kind: &POD, namespace: "n".into(), name: "p".into(), subresource: "log".into() };
        let check = |query: &str, expect: Option<u16>| {
            let parameters = Parameters::parse(query).unwrap();
            assert_eq!(check_log(&target, &parameters).err().map(|error| error.code), expect, "{query}");
        };
        check("follow=true&tailLines=0&limitBytes=1&sinceSeconds=1&timestamps=1", None);
        check("tailLines=-1", Some(422));
        check("limitBytes=0", Some(422));
        check("sinceSeconds=0", Some(422));
        check("sinceSeconds=5&sinceTime=2026-11-23T00:00:00Z", Some(422));
        check("stream=Stdout", None);
        check("stream=All&tailLines=1", None);
        check("stream=Stderr&tailLines=1", Some(422));
        check("stream=stdin", Some(422));
        check("tailLines=all", Some(400));
        check("follow=perhaps", Some(400));
    }
}
