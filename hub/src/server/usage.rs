//! `metrics.k8s.io`: the resource usage of nodes and their pods, for `kubectl top`. The hub queries nodes
//! only when a client asks; it collects nothing in advance.
//!
//! Always holds: a request makes the hub query a limited number of nodes and waits a limited time, so a slow
//! node delays no other; warnings name the nodes without figures, with the reason; a node's figures count
//! only for pods that are bound to it; the cache is small and short-lived. Left to others: reaching a node
//! (`calls`), permissions (`handlers`).

use crate::server::route::Asked;
use crate::server::usages::{Answered, Left, Missing, NodeUsage};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Response};
use kedge_api::USAGE_WINDOW;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Attributes;
use kedge_hub_core::kinds::pod::{NODE_NAME_FIELD, PHASE_FIELD};
use kedge_hub_core::kinds::table::Column;
use kedge_hub_core::kinds::{Kind, NODE, POD};
use kedge_hub_core::object::Object;
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::Query;
use kedge_hub_core::summary::Usage;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};

use super::calls;
use super::context::RequestContext;
use super::limits::{Resource, Slot, Work};
use super::pieces::Held;
use super::request::{self, Form};
use super::respond::{self, Body};
use super::route::METRICS;
use super::shared::Server;
use crate::fresh::now_text;

/// The request that is sent to a node.
const ASKED: &str = "/stats/summary?only_cpu_and_memory=true";
/// Most bytes of a node's answer: 250 pods of three containers.
const ANSWER_BYTES: usize = 512 * 1024;
/// Step by which the buffer of an answer grows.
const GROWTH_BYTES: usize = 16 * 1024;
/// How long a request waits for its nodes: dialling over a slow link, and the time in which they measure.
const PATIENCE: Duration = Duration::from_secs(12);
/// Longest time for a node's answer. An answer that arrives after its clients have left is cached for the
/// next request.
const NODE_PATIENCE: Duration = Duration::from_secs(30);
/// Most nodes that one warning lists, and most characters of a reason that came from a node: a warning has
/// 256.
const NAMED: usize = 8;
/// Most warnings with a reason that came from a node.
const MOST_REASONS: usize = 8;

/// In the format of upstream's metrics server.
fn usage_value(usage: Usage) -> Value {
    json!({"cpu": format!("{}n", usage.nano_cores), "memory": format!("{}Ki", usage.bytes / 1024)})
}

fn sum(one: Usage, other: Usage) -> Usage {
    Usage {
        nano_cores: one.nano_cores.saturating_add(other.nano_cores),
        bytes: one.bytes.saturating_add(other.bytes),
    }
}

/// Queries a node, and publishes the answer.
async fn ask(server: Arc<Server>, node: String, noted: watch::Sender<Option<Answered>>) {
    // the answer is charged to the node, while it is read and while it is cached
    let slot = calls::slot_of(&server, &node);
    let asking = async {
        let _turn = server.usages.turns.acquire().await;
        let mut taken = slot.take(Resource::BodyBytes, 0)?;
        let answer = calls::ask(&server, &node, ASKED, ANSWER_BYTES, &mut taken).await?;
        Ok::<_, ApiError>((answer, taken))
    };
    let mut held = None;
    let usage = match timeout(NODE_PATIENCE, asking).await {
        Err(_) => Err(Missing::Late),
        // the node did not dial
        Ok(Err(error)) if error.code == 504 => Err(Missing::Late),
        Ok(Err(error)) => Err(Missing::Failed(error.message)),
        Ok(Ok((answer, taken))) => {
            let is_its = |namespace: &str, name: &str| {
                let pod = server.hub.get(&POD, namespace, name);
                pod.is_some_and(|pod| pod.field(NODE_NAME_FIELD) == node)
            };
            let read = NodeUsage::read(&answer, is_its).map_err(Missing::Failed);
            drop((answer, taken));
            read.and_then(|usage| {
                let taken = slot.take(Resource::BodyBytes, usage.size());
                held = Some(Arc::new(taken.map_err(|error| Missing::Failed(error.message))?));
                Ok(Arc::new(usage))
            })
        }
    };
    let time = now_text().into();
    noted.send_replace(Some(Answered { at: Instant::now(), time, usage, _held: held }));
}

/// The usage of nodes, and the nodes without figures.
#[derive(Default)]
struct Found {
    nodes: HashMap<String, (Arc<NodeUsage>, Arc<str>)>,
    missing: Left,
}

impl Found {
    async fn of(server: &Arc<Server>, nodes: &BTreeSet<String>) -> Found {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let begin = |node: &str, noted| {
            calls::ready(server, node).map_err(Missing::Unready)?;
            tokio::spawn(ask(Arc::clone(server), node.to_owned(), noted));
            Ok(())
        };
        let (wanted, missing) = server.usages.wanted(nodes, begin);
        let mut found = Found { missing, ..Found::default() };
        for (node, mut known) in wanted {
            let answered = match timeout_at(deadline, known.wait_for(Option::is_some)).await {
                Ok(Ok(answered)) => answered.clone(),
                _ => None,
            };
            match answered.map(|answered| answered.usage.map(|usage| (usage, answered.time))) {
                Some(Ok(usage)) => {
                    found.nodes.insert(node, usage);
                }
                Some(Err(why)) => found.missing.entry(why).or_default().push(node),
                None => found.missing.entry(Missing::Late).or_default().push(node),
            }
        }
        found
    }

    /// One warning for each reason.
    fn warnings(&self) -> Vec<String> {
        let is_own = |why: &&Missing| matches!(why, Missing::Failed(_));
        let own = self.missing.keys().filter(is_own).count();
        let mut shown = 0;
        let mut warnings: Vec<String> = Vec::new();
        for (why, nodes) in &self.missing {
            if is_own(&why) {
                shown += 1;
                if shown > MOST_REASONS {
                    continue;
                }
            }
            let more = nodes.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let named = nodes[..nodes.len().min(NAMED)].join(", ");
            let count = if nodes.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", nodes.len()) };
            warnings.push(format!("no usage of {count} ({}): {named}{more}", why.text()));
        }
        if own > MOST_REASONS {
            warnings.push(format!("no usage of other nodes, for {} more reasons", own - MOST_REASONS));
        }
        warnings
    }

    /// The reason why this node has no figures.
    fn why(&self, node: &str) -> Option<String> {
        let mut missing = self.missing.iter();
        missing.find_map(|(why, nodes)| nodes.iter().any(|known| known == node).then(|| why.text()))
    }
}

/// `GET /apis/metrics.k8s.io/v1beta1/...`.
pub(super) async fn answer(
    context: &RequestContext<'_>,
    server: &Arc<Server>,
    asked: &Asked,
) -> Result<Response<Body>, ApiError> {
    let is_list = asked.name.is_empty();
    let is_of_nodes = asked.resource == "nodes";
    let attributes = Attributes {
        verb: asked.verb(),
        group: METRICS.0,
        resource: asked.resource,
        namespace: &asked.namespace,
        name: &asked.name,
        ..Attributes::default()
    };
    context.authorize(&attributes)?;
    if context.parts.method != Method::GET || (is_list && context.parameters.flag("watch")?) {
        return Err(ApiError::method_not_allowed());
    }
    let form = request::wanted_form(&context.parts.headers, false)?;
    let objects = selected(context, asked, if is_of_nodes { &NODE } else { &POD })?;
    let nodes: BTreeSet<String> = objects.iter().filter_map(|object| node_of(object, is_of_nodes)).collect();
    let found = tokio::select! {
        found = Found::of(server, &nodes) => found,
        // frees the request's place for others
        () = context.presented.left() => return Err(ApiError::caller_left(METRICS.0)),
    };
    // the credential may have been revoked meanwhile, or expired
    context.identity_now()?;
    let shown = |object: &Arc<Object>| {
        context.charge(Work::Parsed(object.json.len()));
        if is_of_nodes { of_node(object, &found) } else { of_pod(object, &found) }
    };
    let mut items = objects.iter().filter_map(shown);
    if is_list {
        let mut response = listed(context.slot, form, is_of_nodes, items)?;
        respond::warn(&mut response, &found.warnings());
        return Ok(response);
    }
    match items.next() {
        Some(item) => Ok(respond::json(200, &single(form, is_of_nodes, item))),
        None => Err(absent(asked, nodes.first().and_then(|node| found.why(node)))),
    }
}

fn absent(asked: &Asked, why: Option<String>) -> ApiError {
    let Asked { resource, namespace, name } = asked;
    let name = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
    match why {
        Some(why) => ApiError::unavailable(format!("no usage of {resource} {name:?}: {why}")),
        None => ApiError::from_status(404, format!("{resource}.{} {name:?} not found", METRICS.0)),
    }
}

/// A list whose text is charged to its caller as it grows: a node may report a lot, and a tree of all values
/// would take many times more memory.
fn listed(
    slot: &Arc<Slot>,
    form: Form,
    is_of_nodes: bool,
    items: impl Iterator<Item = Value>,
) -> Result<Response<Body>, ApiError> {
    let mut text = head_of(form, is_of_nodes);
    let mut taken = slot.take(Resource::BodyBytes, text.len())?;
    for (number, item) in items.enumerate() {
        let item = match form {
            Form::Table(version) => row(version, item),
            _ => item,
        };
        let item = item.to_string();
        if text.capacity() - text.len() <= item.len() + 2 {
            let growth = GROWTH_BYTES.max(item.len() + 3);
            taken.more(growth)?;
            text.reserve_exact(growth);
        }
        if number > 0 {
            text.push(b',');
        }
        text.extend_from_slice(item.as_bytes());
    }
    text.extend_from_slice(b"]}");
    let mut response = respond::bytes(200, "application/json", text);
    response.extensions_mut().insert(Held::of(taken));
    Ok(response)
}

/// The text of a list up to its first item.
fn head_of(form: Form, is_of_nodes: bool) -> Vec<u8> {
    let items = if matches!(form, Form::Table(_)) { "rows" } else { "items" };
    respond::head_of_list(list(form, is_of_nodes), items)
}

/// The requested nodes or pods, in the order of their names.
fn selected(
    context: &RequestContext<'_>,
    asked: &Asked,
    kind: &'static Kind,
) -> Result<Vec<Arc<Object>>, ApiError> {
    let memory = context.server.hub.memory();
    if !asked.name.is_empty() {
        return Ok(memory.get(kind, &asked.namespace, &asked.name).into_iter().collect());
    }
    let text = |name| context.parameters.text(name);
    let selection = Selection::parse(kind, &asked.namespace, text("labelSelector"), text("fieldSelector"))?;
    let page = memory.list(kind, &selection, &Query::default());
    page.map(|page| page.objects)
        .map_err(|_| ApiError::internal("the latest state of the hub cannot be read"))
}

/// The node that must be queried about an object; `None` if no node has figures for it.
fn node_of(object: &Object, is_node: bool) -> Option<String> {
    let node = match is_node {
        true => &*object.name,
        false if object.field(PHASE_FIELD) == "Running" => object.field(NODE_NAME_FIELD),
        false => "",
    };
    Some(node.to_owned()).filter(|node| !node.is_empty())
}

fn of_node(object: &Object, found: &Found) -> Option<Value> {
    let (usage, time) = found.nodes.get(&*object.name)?;
    Some(
        json!({"metadata": metadata(object, time), "timestamp": &**time, "window": window(), "usage": usage_value(usage.node)}),
    )
}

fn of_pod(object: &Object, found: &Found) -> Option<Value> {
    let (usage, time) = found.nodes.get(object.field(NODE_NAME_FIELD))?;
    let containers = usage.pods.get(&(object.namespace.clone(), object.name.clone()))?;
    if containers.is_empty() {
        return None;
    }
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, usage)| json!({"name": &**name, "usage": usage_value(*usage)}))
        .collect();
    Some(
        json!({"metadata": metadata(object, time), "timestamp": &**time, "window": window(), "containers": containers}),
    )
}

/// In Go's format.
fn window() -> String {
    format!("{}s", USAGE_WINDOW.as_secs_f64())
}

fn metadata(object: &Object, time: &str) -> Value {
    let mut meta = json!({"name": &*object.name, "creationTimestamp": time});
    if !object.namespace.is_empty() {
        meta["namespace"] = (&*object.namespace).into();
    }
    let labels = object.value()["metadata"]["labels"].take();
    if labels.is_object() {
        meta["labels"] = labels;
    }
    meta
}

fn kind_of(is_of_nodes: bool) -> &'static str {
    if is_of_nodes { "NodeMetrics" } else { "PodMetrics" }
}

fn typed(mut item: Value, kind: &str) -> Value {
    item["kind"] = kind.into();
    item["apiVersion"] = format!("{}/{}", METRICS.0, METRICS.1).into();
    item
}

fn single(form: Form, is_of_nodes: bool, item: Value) -> Value {
    match form {
        Form::Table(version) => table(version, vec![row(version, item)]),
        _ => typed(item, kind_of(is_of_nodes)),
    }
}

/// Without items.
fn list(form: Form, is_of_nodes: bool) -> Value {
    match form {
        Form::Table(version) => table(version, Vec::new()),
        _ => typed(json!({"metadata": {}, "items": []}), &format!("{}List", kind_of(is_of_nodes))),
    }
}

/// For `kubectl get nodes.metrics.k8s.io`.
fn table(version: &str, rows: Vec<Value>) -> Value {
    let columns = [Column::NAME, Column::text("Cpu"), Column::text("Memory"), Column::text("Window")];
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": {},
        "columnDefinitions": columns.map(Column::to_value), "rows": rows,
    })
}

/// An item in such a table.
fn row(version: &str, mut item: Value) -> Value {
    let usage = match item["containers"].as_array() {
        Some(containers) => {
            containers.iter().map(|container| parsed(&container["usage"])).fold(Usage::default(), sum)
        }
        None => parsed(&item["usage"]),
    };
    let usage = usage_value(usage);
    let cells = json!([item["metadata"]["name"], usage["cpu"], usage["memory"], item["window"]]);
    let object = json!({"kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": item["metadata"].take()});
    json!({"cells": cells, "object": object})
}

/// The reverse of [`usage_value`].
fn parsed(usage: &Value) -> Usage {
    let number = |name: &str| {
        let text = usage[name].as_str().unwrap_or_default();
        text.trim_end_matches(char::is_alphabetic).parse().unwrap_or(0)
    };
    Usage { nano_cores: number("cpu"), bytes: number("memory") * 1024 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::usages::{KEPT, KEPT_FAILURE, Known, MOST_NODES, NodeUsages, Unready};
    use std::sync::Mutex;

    /// In the form of a kubelet's answer, cut to one pod.
    const RECORDED: &str = r#"{"node": {"nodeName": "n", "startTime": "2026-11-23T18:36:14Z",
        "systemContainers": [{"name": "pods", "startTime": "2026-11-23T18:36:17Z",
            "cpu": {"time": "2026-11-24T01:00:00Z", "usageNanoCores": 5, "usageCoreNanoSeconds": 7}}],
        "cpu": {"time": "2026-11-24T01:00:00Z", "usageNanoCores": 153812480, "usageCoreNanoSeconds": 2120373000000},
        "memory": {"time": "2026-11-24T01:00:00Z", "availableBytes": 6871015424, "usageBytes": 1709264896,
            "workingSetBytes": 1466097664, "rssBytes": 712294400, "pageFaults": 2, "majorPageFaults": 0},
        "swap": {"time": "2026-11-24T01:00:00Z", "swapUsageBytes": 0}},
      "pods": [{"podRef": {"name": "web-0", "namespace": "prod", "uid": "8b9a"}, "startTime": "2026-11-23T18:37:00Z",
        "containers": [{"name": "app", "startTime": "2026-11-23T18:37:02Z",
            "cpu": {"time": "2026-11-24T01:00:00Z", "usageNanoCores": 1200300, "usageCoreNanoSeconds": 5},
            "memory": {"time": "2026-11-24T01:00:00Z", "workingSetBytes": 5242880}},
          {"name": "begun", "memory": {"workingSetBytes": 1}},
          {"name": "a/../b", "cpu": {"usageNanoCores": 1}, "memory": {"workingSetBytes": 1}}],
        "cpu": {"usageNanoCores": 9}, "memory": {"workingSetBytes": 9}},
       {"podRef": {"name": "foreign", "namespace": "prod", "uid": "1"}, "containers": []}]}"#;

    #[test]
    fn recorded_summary_is_read() {
        let read =
            NodeUsage::read(RECORDED.as_bytes(), |namespace, name| (namespace, name) == ("prod", "web-0"));
        let read = read.unwrap();
        assert_eq!(usage_value(read.node), json!({"cpu": "153812480n", "memory": "1431736Ki"}));
        assert_eq!(read.pods.len(), 1, "of the node's own pods alone");
        let app = Usage { nano_cores: 1_200_300, bytes: 5_242_880 };
        // unknown is not zero
        let key: (Box<str>, Box<str>) = ("prod".into(), "web-0".into());
        let expect: Vec<(Box<str>, Usage)> = vec![("app".into(), app)];
        assert_eq!(read.pods[&key], expect);
        for (odd, why) in [("x", "no JSON"), ("{}", "no usage"), (r#"{"node": {"cpu": 3}}"#, "no summary")] {
            let error = NodeUsage::read(odd.as_bytes(), |_, _| true).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    fn answered(usage: Result<Arc<NodeUsage>, Missing>) -> Answered {
        Answered { at: Instant::now(), time: "t".into(), usage, _held: None }
    }

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|number| format!("n{number:03}")).collect()
    }

    #[test]
    fn request_asks_so_many_nodes_and_those_it_knows_once() {
        let usages = NodeUsages::default();
        let asked = Mutex::new(Vec::new());
        let unready = || Missing::Unready(Unready::WithoutWatch);
        let ask = |node: &str, noted| {
            // nodes that cannot be queried take up no place
            if node < "n005" {
                return Err(unready());
            }
            asked.lock().unwrap().push((node.to_owned(), noted));
            Ok(())
        };
        let check = |(wanted, missing): (Vec<(String, Known)>, Left), expect| {
            let missing = |why| missing.get(&why).map_or(0, Vec::len);
            let found = (wanted.len(), missing(unready()), missing(Missing::TooMany));
            assert_eq!((found, asked.lock().unwrap().len()), expect);
        };
        check(usages.wanted(&names(60), ask), ((MOST_NODES, 5, 5), 50));
        // while a query is pending no second one starts
        check(usages.wanted(&names(60), ask), ((55, 5, 0), 55));
        for (number, (_, noted)) in asked.lock().unwrap().iter().enumerate() {
            let usage = if number == 0 { Err(Missing::Late) } else { Ok(Arc::default()) };
            noted.send_replace(Some(answered(usage)));
        }
        // failures are cached, too
        check(usages.wanted(&names(60), ask), ((55, 5, 0), 55));
        // a query whose task ended without an answer
        asked.lock().unwrap().clear();
        let usages = NodeUsages::default();
        let one = BTreeSet::from(["n100".to_owned()]);
        usages.wanted(&one, |_, noted| {
            drop(noted);
            Ok(())
        });
        check(usages.wanted(&one, ask), ((1, 0, 0), 1));
    }

    #[test]
    fn figures_are_kept_for_their_time() {
        let check = |usage: Result<Arc<NodeUsage>, Missing>, kept: Duration| {
            let answered = answered(usage);
            assert!(answered.is_current(answered.at + kept - Duration::from_millis(1)));
            assert!(!answered.is_current(answered.at + kept));
        };
        check(Ok(Arc::default()), KEPT);
        check(Err(Missing::Late), KEPT_FAILURE);
    }

    #[test]
    fn nodes_without_figures_are_named() {
        let mut found = Found::default();
        found.missing.insert(Missing::TooMany, names(60).into_iter().skip(50).collect());
        found.missing.insert(Missing::Unready(Unready::WithoutWatch), vec!["edge-9".into()]);
        for number in 0..10 {
            found.missing.insert(Missing::Failed(format!("reason {number}")), vec![format!("f{number}")]);
        }
        let warnings = found.warnings();
        assert_eq!(warnings.len(), 2 + MOST_REASONS + 1);
        assert_eq!(
            warnings[0],
            "no usage of 10 nodes (one request asks 50 nodes at most; ask again, or for fewer): n050, n051, n052, n053, n054, n055, \
             n056, n057 and 2 more"
        );
        assert_eq!(
            warnings[1],
            "no usage of 1 node (without watches it hears of a call with its next renewal only): edge-9"
        );
        assert_eq!(warnings[2], "no usage of 1 node (reason 0): f0");
        assert!(warnings[10].contains("2 more reasons"), "{warnings:?}");
        assert_eq!(found.why("f3").as_deref(), Some("reason 3"));
        assert_eq!(found.why("known"), None);
    }

    #[test]
    fn table_has_the_sum_of_a_pods_containers() {
        let usage = |nano_cores| usage_value(Usage { nano_cores, bytes: 2048 });
        let containers = json!([{"name": "a", "usage": usage(1)}, {"name": "b", "usage": usage(2)}]);
        let pod = json!({"metadata": {"name": "p"}, "window": window(), "containers": containers});
        let shown = single(Form::Table("v1"), false, pod);
        assert_eq!(shown["rows"][0]["cells"], json!(["p", "3n", "4Ki", "1s"]));
        let node = json!({"metadata": {"name": "n"}, "window": window(), "usage": usage(5)});
        assert_eq!(
            single(Form::Table("v1"), true, node)["rows"][0]["cells"],
            json!(["n", "5n", "2Ki", "1s"])
        );
    }
}
