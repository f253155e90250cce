//! The pages of the fleet: their content (golden), the parts that they leave out, their size, and that no
//! text of a node or client becomes markup.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote themselves")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::path::Path;
use std::time::Duration;

use kedge_hub_core::kinds::{CREDENTIAL, EVENT, NODE, POD};
use kedge_hub_core::object::Object;
use kedge_hub_core::page::{self, Fact, Frame, Knock, Listed, Numbers, Overview, Rollout, Sees, Shown};
use kedge_hub_core::state::fleet::Fleet;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;

const NOW: OffsetDateTime = datetime!(2026-12-01 08:00:00 UTC);
/// Most bytes of a page.
const PAGE_BYTES: usize = 64 << 10;
/// Every way in which a text has become something else before.
const HOSTILE: [&str; 7] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' autofocus onfocus='alert(1)",
    "\u{202e}gpj\u{2066}\u{200b}\u{1b}[2J\0\u{7}",
    "</style></title><svg/onload=alert(1)>",
    "&lt;b&gt;&#60;script&#62;",
    "javascript:alert(1)//'; rm -rf / #",
];

fn frame(path: &str) -> Frame<'_> {
    Frame { path, still: true, now: NOW }
}

fn put(fleet: &mut Fleet, kind: &'static kedge_hub_core::kinds::Kind, value: &Value, revision: u64) {
    fleet.restore(kind, &Object::new(kind, value, revision).unwrap());
}

fn condition(sort: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": sort, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-12-01T05:00:00Z"})
}

fn node(name: &str, ready: [&str; 2], config: [&str; 2], version: &str, more: &[Value]) -> Value {
    let mut conditions = vec![
        condition("Ready", ready[0], ready[1], "as it says"),
        condition(
            "ConfigOK",
            config[0],
            config[1],
            "using current: /api/v1/namespaces/fleet/configmaps/shops",
        ),
    ];
    conditions.extend(more.iter().cloned());
    let source = json!({"configMap": {"namespace": "fleet", "name": "shops", "uid": "7f3c", "resourceVersion": "41",
        "kubeletConfigKey": "kubelet"}});
    json!({"metadata": {"name": name, "creationTimestamp": "2026-03-01T00:00:00Z",
            "labels": {"kedge.dev/watchdog": "active", "kedge.dev/slot": "a"}},
        "status": {"conditions": conditions,
            "config": {"assigned": source, "active": {"configMap": {"namespace": "fleet", "name": "shops", "uid": "7f3c",
                "resourceVersion": "40", "kubeletConfigKey": "kubelet"}}},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            "nodeInfo": {"kubeletVersion": version, "osImage": "Kedge 1.4.2", "architecture": "arm64"}}})
}

fn event(name: &str, about: &str, reason: &str, message: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "type": "Warning", "reason": reason,
        "message": message, "count": 3, "lastTimestamp": "2026-12-01T07:59:00Z",
        "involvedObject": {"kind": "Node", "name": about}})
}

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "creationTimestamp": "2026-11-30T00:00:00Z"},
        "spec": {"nodeName": node}, "status": {"phase": "Running", "containerStatuses": [
            {"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}})
}

/// Four nodes, one of each sort.
fn small_fleet() -> Fleet {
    let mut fleet = Fleet::default();
    let wrong = ["False", "failed to validate current (UID: 7f3c)"];
    let mut failed = node("edge-2", ["True", "KubeletReady"], wrong, "v1.36.0+kedge.0.4.0", &[]);
    failed["status"]["config"]["error"] =
        "failed to validate current (UID: 7f3c): logging.verbosity is \"loud\", expected 0 to 10".into();
    let full = [condition("DiskPressure", "True", "KubeletHasDiskPressure", "")];
    let good = ["True", "passing all checks"];
    let nodes = [
        node("edge-1", ["True", "KubeletReady"], good, "v1.36.0+kedge.0.10.0", &full),
        failed,
        node("edge-3", ["Unknown", "NodeStatusUnknown"], good, "v1.36.0+kedge.0.10.0", &[]),
        json!({"metadata": {"name": "edge-4"}}),
    ];
    for (value, revision) in nodes.iter().zip(1..) {
        put(&mut fleet, &NODE, value, revision);
    }
    put(&mut fleet, &POD, &pod("web-1", "edge-1"), 5);
    put(&mut fleet, &EVENT, &event("e", "edge-1", "EvictionThresholdMet", "short of disk"), 6);
    let end = NOW.unix_timestamp() + 20 * 86_400;
    let record = json!({"metadata": {"name": "edge-1"}, "data": {"issue": "1", "notAfter": end.to_string(), "key": "k"}});
    put(&mut fleet, &CREDENTIAL, &record, 7);
    fleet
}

fn rollouts() -> Vec<Rollout> {
    let set = |name: &str, status: Value| json!({"metadata": {"namespace": "shop", "name": name, "generation": 2}, "status": status});
    let stopped =
        condition("RolloutStopped", "True", "TooManyFailures", "2 of 4 nodes failed: edge-1, edge-2");
    let sets = [
        set(
            "till",
            json!({"observedGeneration": 2, "desiredNumberScheduled": 4, "updatedNumberScheduled": 2,
            "numberAvailable": 2, "numberUnavailable": 2, "conditions": [stopped]}),
        ),
        set(
            "web",
            json!({"observedGeneration": 2, "desiredNumberScheduled": 4, "updatedNumberScheduled": 4,
            "numberAvailable": 4}),
        ),
    ];
    let config = json!({"metadata": {"name": "shops"}, "status": {"phase": "Soaking", "batch": 1,
        "nodes": {"selected": 4, "updated": 1, "failed": 0}}});
    let mut all: Vec<Rollout> = sets.iter().map(Rollout::of_daemon_set).collect();
    all.push(Rollout::of_config_rollout(&config));
    all.sort_by_key(Rollout::rank);
    all
}

fn knock(node: &str, why: &str, is_registered: bool) -> Knock {
    Knock { node: node.to_owned(), at: NOW.unix_timestamp() - 90, why: why.to_owned(), is_registered }
}

fn overview(fleet: &Fleet, sees: Sees, warnings: Vec<Value>) -> String {
    let knocks = vec![knock("edge-2", "the credential has expired", true), knock("edge-9", "stolen", false)];
    overview_with(fleet, sees, warnings, if sees.certificates { knocks } else { Vec::new() })
}

fn overview_with(fleet: &Fleet, sees: Sees, warnings: Vec<Value>, knocks: Vec<Knock>) -> String {
    let numbers = Numbers::of(fleet, NOW.unix_timestamp());
    let fact = |name, value: &str, is_bad| Fact { name, value: value.to_owned(), is_bad };
    let hub = vec![fact("ready", "yes", false), fact("store", "DiskFull for 7 s", true)];
    let shown =
        Overview { numbers: &numbers, hub, rollouts: rollouts(), warnings, requests: 1, knocks, sees };
    page::overview(&frame("/fleet"), &shown)
}

fn node_page(fleet: &Fleet, node: &Value, pods: &[Value], events: Vec<Value>, sees: Sees) -> String {
    let payloads =
        [Some("maxPods: 40\nregistryPullQPS: 5\n"), Some("maxPods: 42\nregistryPullQPS: 5\n"), None];
    node_page_with(fleet, node, pods, events, payloads, sees)
}

fn node_page_with(
    fleet: &Fleet,
    node: &Value,
    pods: &[Value],
    events: Vec<Value>,
    payloads: [Option<&str>; 3],
    sees: Sees,
) -> String {
    let name = node["metadata"]["name"].as_str().unwrap();
    let shown = Shown {
        node,
        sight: fleet.sight(name).unwrap(),
        day: &fleet.day(name, Duration::from_secs(7200)).unwrap(),
        lease: None,
        pods,
        of_pods: pods.len(),
        events: &events,
        of_events: events.len() + 1,
        certificate: fleet.end_of(name),
        payloads,
        sees,
    };
    page::node(&frame(&format!("/fleet/nodes/{name}")), &shown)
}

fn list(fleet: &Fleet, parameters: &[(&str, &str)]) -> Result<String, String> {
    let all: Vec<(String, String)> =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let listed = Listed::of(fleet, Sees::ALL, &all, NOW.unix_timestamp())?;
    Ok(page::list(&frame("/fleet/nodes"), &listed))
}

/// Compares with the file, or writes it if `KEDGE_GOLDEN=write`.
fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    // the style is a file of its own
    let text = text.replace(page::STYLE, "");
    if std::env::var("KEDGE_GOLDEN").as_deref() == Ok("write") {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &text).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, known, "{} differs; KEDGE_GOLDEN=write writes it anew", file.display());
}

#[test]
fn pages_say_what_they_said() {
    let fleet = small_fleet();
    let warnings = vec![event("e", "edge-1", "EvictionThresholdMet", "short of disk")];
    golden("fleet.html", &overview(&fleet, Sees::ALL, warnings.clone()));
    golden("fleet-nodes.html", &list(&fleet, &[("state", "ready")]).unwrap());
    let good = ["True", "passing all checks"];
    let value = node("edge-1", ["True", "KubeletReady"], good, "v1.36.0+kedge.0.10.0", &[]);
    golden("fleet-node.html", &node_page(&fleet, &value, &[pod("web-1", "edge-1")], warnings, Sees::ALL));
    let stopped = &rollouts()[0];
    let view = json!({"state": "stopped", "message": "2 of 4 nodes failed", "nodes": [
        {"node": "edge-1", "state": "runs", "why": ""}, {"node": "edge-2", "state": "failed", "why": "not ready"}]});
    let path = "/fleet/rollouts/shop/till";
    golden("fleet-rollout.html", &page::rollout(&frame(path), stopped, &json!({}), Some(&view)));
}

#[test]
fn what_a_reader_may_not_read_is_left_out() {
    let fleet = small_fleet();
    let nothing = overview(&fleet, Sees::default(), Vec::new());
    for part in
        ["CrashLoopBackOff", "Certificates", "warnings", "shop/till", "configuration shops", "Pods", "edge-9"]
    {
        assert!(!nothing.contains(part), "{part}");
    }
    for (parameter, value) in [("waiting", "CrashLoopBackOff"), ("ends", "30")] {
        let parameters = [(parameter.to_owned(), value.to_owned())];
        let of = |sees| Listed::of(&fleet, sees, &parameters, NOW.unix_timestamp()).map(drop);
        assert_eq!(of(Sees::default()), Err(parameter.to_owned()));
        assert_eq!(of(Sees::ALL), Ok(()));
    }
    let value = json!({"metadata": {"name": "edge-1"}});
    let shown = node_page(
        &fleet,
        &value,
        &[pod("web-1", "edge-1")],
        vec![event("e", "edge-1", "R", "M")],
        Sees::default(),
    );
    for part in ["web-1", "Certificate", ">R<", "Pods", "Events"] {
        assert!(!shown.contains(part), "{part}");
    }
    assert!(list(&fleet, &[("colour", "red")]).is_err());
}

/// A version that the hub lacks, or a reader who may not read ConfigMaps: nothing is compared with nothing.
#[test]
fn unknown_version_is_not_shown_as_empty() {
    let fleet = small_fleet();
    let node = node("edge-1", ["True", "R"], ["True", "passing"], "v1", &[]);
    let page = |payloads, sees| node_page_with(&fleet, &node, &[], Vec::new(), payloads, sees);
    let shown = page([Some("maxPods: 40"), Some("maxPods: 42"), None], Sees::ALL);
    assert!(shown.contains(">- maxPods: 42</span>\n<span class=g>+ maxPods: 40</span>"), "{shown}");
    assert!(shown.contains("local configuration, which the hub does not have"), "{shown}");
    let former = page([Some("maxPods: 40"), None, None], Sees::ALL);
    assert!(former.contains("no longer has the former") && !former.contains("maxPods"), "{former}");
    let latter = page([None, Some("maxPods: 42"), None], Sees::ALL);
    assert!(latter.contains("no longer has the latter") && !latter.contains("maxPods"), "{latter}");
    let sees = Sees { config_maps: false, ..Sees::ALL };
    let left_out = page([Some("maxPods: 40"), Some("maxPods: 42"), None], sees);
    assert!(!left_out.contains("maxPods") && !left_out.contains("<h3>"), "{left_out}");
}

#[test]
fn list_has_the_nodes_that_its_number_counts() {
    let fleet = small_fleet();
    let check = |parameters: &[(&str, &str)], expect: &[&str]| {
        let page = list(&fleet, parameters).unwrap();
        let found: Vec<&str> = ["edge-1", "edge-2", "edge-3", "edge-4"]
            .into_iter()
            .filter(|name| page.contains(*name))
            .collect();
        assert_eq!(found, expect, "{parameters:?}");
    };
    check(&[], &["edge-1", "edge-2", "edge-3", "edge-4"]);
    check(&[("state", "silent")], &["edge-3"]);
    check(&[("state", "never-heard")], &["edge-4"]);
    check(&[("field", "logging.verbosity")], &["edge-2"]);
    check(&[("config", "False: failed to validate current")], &["edge-2"]);
    check(&[("trouble", "DiskPressure")], &["edge-1"]);
    check(&[("waiting", "CrashLoopBackOff")], &["edge-1"]);
    check(&[("ends", "30")], &["edge-1"]);
    check(&[("ends", "7")], &[]);
    check(&[("silent", "day"), ("agent", "v1.36.0+kedge.0.10.0")], &["edge-3"]);
    check(&[("after", "edge-2")], &["edge-3", "edge-4"]);
}

/// Puts a text into every string of a value, and into its keys, but for those by which an object is found.
fn poison(value: &mut Value, text: &str, depth: usize) {
    match value {
        Value::String(old) => *old = text.to_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| poison(item, text, depth + 1)),
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                if !(depth == 1 && key == "name") && key != "type" && key != "lastTransitionTime" {
                    poison(value, text, depth + 1);
                }
            }
            if depth == 2 {
                fields.insert(text.to_owned(), text.into());
            }
        }
        _ => {}
    }
}

fn assert_harmless(page: &str, what: &str) {
    assert!(page.len() <= PAGE_BYTES, "{what}: {} bytes", page.len());
    let body = page.replace(page::STYLE, "");
    for bad in
        ["<script", "<img", "<svg/", "onerror=alert(1)>", "onfocus='", "</style></title", "href=\"javascript"]
    {
        assert!(!body.contains(bad), "{what}: {bad}");
    }
    let hides = |character: char| {
        (character.is_control() && character != '\n')
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!body.chars().any(hides), "{what}");
    // every tag is one of ours
    for tag in body.split('<').skip(1) {
        let name: String =
            tag.chars().take_while(|next| next.is_ascii_alphanumeric() || *next == '/').collect();
        let known = [
            "html", "head", "meta", "title", "style", "body", "nav", "main", "h1", "h2", "footer", "p", "ul",
            "li", "a", "details", "summary", "code", "table", "thead", "tbody", "tr", "th", "td", "time",
            "bdi", "span", "dl", "dt", "dd", "svg", "rect", "div", "pre", "h3", "",
        ];
        assert!(known.contains(&name.trim_matches('/')), "{what}: <{name}");
    }
}

/// In every field of every object that a page shows.
#[test]
fn hostile_texts_stay_texts() {
    let long = "<b>".repeat(100_000);
    for text in HOSTILE.into_iter().chain([long.as_str()]) {
        let mut fleet = Fleet::default();
        let sorts = ["DiskPressure", "ImageOK", "SystemOK"].map(|sort| condition(sort, "x", "x", "x"));
        let mut value = node("edge-1", ["x", "x"], ["x", "x"], "x", &sorts);
        value["status"]["config"]["error"] = "x".into();
        poison(&mut value, text, 0);
        value["status"]["config"]["error"] = format!("(UID: 1): {text}").into();
        let mut pod = pod("web-1", "edge-1");
        poison(&mut pod, text, 0);
        pod["spec"]["nodeName"] = "edge-1".into();
        let mut event = event("e", "edge-1", "R", "M");
        poison(&mut event, text, 0);
        event["type"] = "Warning".into();
        put(&mut fleet, &NODE, &value, 1);
        put(&mut fleet, &POD, &pod, 2);
        put(&mut fleet, &EVENT, &event, 3);
        let mut about_node = event.clone();
        about_node["involvedObject"]["kind"] = "Node".into();
        let what = &text[..20.min(text.len())];
        assert_harmless(&overview(&fleet, Sees::ALL, vec![event.clone(), about_node]), what);
        // three versions of one configuration, every line of which is hostile
        value["status"]["config"]["lastKnownGood"] = json!({"configMap": {"uid": text}});
        value["status"]["config"]["active"]["configMap"]["uid"] = format!("{text}.").into();
        let texts = ["a", "b", "c"].map(|end| format!("{text}{end}\n").repeat(100));
        let payloads = [0, 1, 2].map(|number| Some(texts[number].as_str()));
        let shown = node_page_with(&fleet, &value, &[pod], vec![event.clone()], payloads, Sees::ALL);
        assert_harmless(&shown, what);
        assert_eq!(shown.matches("<pre class=k>").count(), 2, "{what}: {shown}");
        let knocks = vec![knock(text, text, false), knock(text, text, true)];
        assert_harmless(&overview_with(&fleet, Sees::ALL, vec![event], knocks), what);
        assert!(shown.contains("Node edge-1"), "the page is there");
        assert_harmless(&list(&fleet, &[]).unwrap(), what);
        for by in ["config", "agent", "os", "image", "field", "watchdog", "waiting", "state"] {
            match list(&fleet, &[(by, text)]) {
                Ok(page) => assert_harmless(&page, what),
                Err(refused) => assert!(text.len() > 128 && refused == by, "{what}: {refused}"),
            }
        }
        let mut rollout = json!({"metadata": {"namespace": "x", "name": "x"}, "status": {"phase": "x", "nodes": {"x": 1},
            "conditions": [condition("Stopped", "True", "x", "x")], "currentRevision": "x"}});
        poison(&mut rollout, text, 0);
        let view =
            json!({"state": text, "message": text, "nodes": [{"node": text, "state": text, "why": text}]});
        for found in [Rollout::of_config_rollout(&rollout), Rollout::of_daemon_set(&rollout)] {
            assert_harmless(&page::rollout(&frame("/fleet/rollouts/a"), &found, &rollout, Some(&view)), what);
        }
    }
}

/// Ten thousand nodes, each with texts of its own.
#[test]
fn page_of_ten_thousand_nodes_is_small() {
    let mut fleet = Fleet::default();
    for number in 0..10_000_u64 {
        let reason = format!("reason {number} {}", "long ".repeat(20));
        let texts =
            [format!("edge-{number:05}"), format!("v1.36.0+kedge.0.{number}"), format!("system {number}")];
        let status = ["True", "False", "Unknown"][usize::try_from(number % 3).unwrap()];
        let mut value = node(
            &texts[0],
            [status, "R"],
            ["False", &reason],
            &texts[1],
            &[
                condition("DiskPressure", "True", "", ""),
                condition("SystemOK", "False", &reason, ""),
                condition("ImageOK", "False", &reason, ""),
            ],
        );
        value["status"]["nodeInfo"]["osImage"] = texts[2].as_str().into();
        put(&mut fleet, &NODE, &value, number + 1);
    }
    let warnings = vec![event("e", "edge-1", "Reason", &"long ".repeat(1000)); 20];
    let page = overview(&fleet, Sees::ALL, warnings);
    assert!(page.len() <= PAGE_BYTES, "{} bytes", page.len());
    assert!(page.contains(">10,000</a> nodes") && page.contains("and 9,988 more values"), "{page}");
    let list = list(&fleet, &[("trouble", "DiskPressure")]).unwrap();
    assert!(list.len() <= PAGE_BYTES && list.contains("10,000 nodes"), "{} bytes", list.len());
    assert!(list.contains("after=edge-00099"), "{list}");
}
