//! `/fleet`: the rights of readers, the headers for browsers, that links lead somewhere, and that pages and
//! metrics have the numbers of the objects.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::revocation::until;
use crate::server::{Client, Hub, scratch};
use crate::{JSON, NODES, PODS, SETS};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// A hub that calls no node silent while a test runs.
fn patient_hub() -> Hub {
    Hub::with(&["--node-monitor-grace-period", "1h"])
}

/// Registers a node with a status of its own.
fn register(client: &mut Client, name: &str, ready: &str, config: &str, agent: &str) {
    client.post(NODES, &json!({"metadata": {"name": name}})).expect(201);
    let conditions = json!([{"type": "Ready", "status": ready, "reason": "R"},
        {"type": "ConfigOK", "status": "False", "reason": config},
        {"type": "DiskPressure", "status": if ready == "True" { "True" } else { "False" }}]);
    let info = json!({"kubeletVersion": agent, "osImage": "<b>Kedge</b>"});
    let status = json!({"status": {"conditions": conditions, "nodeInfo": info}});
    client.patch("merge", &format!("{NODES}/{name}/status"), &status).expect(200);
}

fn small_fleet(client: &mut Client) {
    register(client, "edge-1", "True", "failed", "v1");
    register(client, "edge-2", "True", "failed", "v2");
    register(client, "edge-3", "False", "other", "v2");
    let container = json!({"name": "c", "image": "i:1"});
    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "edge-1", "containers": [container]}});
    client.post(PODS, &pod).expect(201);
    let waits = json!([{"name": "c", "image": "i:1", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]);
    let status = json!({"status": {"phase": "Running", "containerStatuses": waits}});
    client.patch("merge", &format!("{PODS}/web/status"), &status).expect(200);
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}});
    let set = json!({"metadata": {"name": "till"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template}});
    client.post(SETS, &set).expect(201);
}

#[track_caller]
fn page(client: &mut Client, path: &str) -> String {
    let reply = client.get(path);
    let text = String::from_utf8(reply.body.clone()).unwrap();
    assert_eq!(reply.code, 200, "{path}: {text}");
    text
}

/// As another user, by impersonation.
fn as_user(client: &mut Client, user: &str, method: &str, path: &str) -> (u16, String) {
    let reply = client.send(method, path, &[("impersonate-user", user)], b"");
    (reply.code, String::from_utf8(reply.body).unwrap())
}

/// Gives a user of the same name a role with these rules.
fn allow(client: &mut Client, user: &str, rules: &Value) {
    client.post(ROLES, &json!({"metadata": {"name": user}, "rules": rules})).expect(201);
    bind(client, user, user);
}

fn bind(client: &mut Client, user: &str, role: &str) {
    let group = "rbac.authorization.k8s.io";
    let subject = json!({"kind": "User", "apiGroup": group, "name": user});
    let role = json!({"kind": "ClusterRole", "apiGroup": group, "name": role});
    client
        .post(BINDINGS, &json!({"metadata": {"name": user}, "subjects": [subject], "roleRef": role}))
        .expect(201);
}

#[test]
fn page_needs_the_path_and_the_list_of_nodes() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    let path = json!({"nonResourceURLs": ["/fleet", "/fleet/*"], "verbs": ["get"]});
    let nodes = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]});
    let one = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"], "resourceNames": ["edge-1"]});
    allow(&mut admin, "path-alone", &json!([path]));
    allow(&mut admin, "nodes-alone", &json!([nodes]));
    allow(&mut admin, "one-node", &json!([path, one]));
    allow(&mut admin, "both", &json!([path, nodes]));
    bind(&mut admin, "viewer", "kedge:fleet-view");
    let all = [
        "/fleet",
        "/fleet/nodes",
        "/fleet/nodes/edge-1",
        "/fleet/nodes/none",
        "/fleet/rollouts/default/till",
    ];
    for user in ["nobody", "path-alone", "nodes-alone", "one-node", "system:node:edge-1"] {
        for path in all {
            let (code, text) = as_user(&mut admin, user, "GET", path);
            assert_eq!(code, 403, "{user} {path}: {text}");
            assert!(!text.contains("CrashLoopBackOff") && !text.contains("v2"), "{user} {path}: {text}");
        }
    }
    assert_eq!(hub.anonymous().get("/fleet").code, 401);
    // the page that the administrator has just seen is not handed to others
    assert!(page(&mut admin, "/fleet").contains("CrashLoopBackOff"));
    let (code, text) = as_user(&mut admin, "both", "GET", "/fleet");
    assert_eq!(code, 200);
    for part in ["CrashLoopBackOff", "default/till", "Latest warnings", "Certificates", "Pods"] {
        assert!(!text.contains(part), "{part}");
    }
    let (_, text) = as_user(&mut admin, "both", "GET", "/fleet/nodes/edge-1");
    assert!(text.contains("Node edge-1") && !text.contains("web"), "{text}");
    for (path, code) in [
        ("/fleet/rollouts/default/till", 403),
        ("/fleet/nodes?waiting=CrashLoopBackOff", 400),
        ("/fleet/nodes?ends=30", 400),
        ("/fleet/nodes?colour=red", 400),
        ("/fleet/nodes/none", 404),
        ("/fleet/nothing", 404),
    ] {
        assert_eq!(as_user(&mut admin, "both", "GET", path).0, code, "{path}");
    }
    let (code, text) = as_user(&mut admin, "viewer", "GET", "/fleet");
    assert_eq!(code, 200);
    for part in ["CrashLoopBackOff", "default/till", "Latest warnings", "Certificates"] {
        assert!(text.contains(part), "{part}");
    }
}

/// Two callers may list the same, and one of them may read the object alone.
#[test]
fn page_of_a_rollout_is_not_handed_to_others() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "kedge-fleet"}})).expect(201);
    let spec = json!({"allNodes": true, "source": {"name": "settings"}});
    let rollout = json!({"apiVersion": "fleet.kedge.dev/v1", "kind": "ConfigRollout", "metadata": {"name": "shops"}, "spec": spec});
    admin.post("/apis/fleet.kedge.dev/v1/configrollouts", &rollout).expect(201);
    let path = json!({"nonResourceURLs": ["/fleet", "/fleet/*"], "verbs": ["get"]});
    let nodes = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]});
    let get = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["get"]});
    let (set, config) = (get("apps", "daemonsets"), get("fleet.kedge.dev", "configrollouts"));
    allow(&mut admin, "both", &json!([path, nodes]));
    allow(&mut admin, "reads", &json!([path, nodes, set, config]));
    for page in ["/fleet/rollouts/default/till", "/fleet/rollouts/shops"] {
        for (user, code) in [("reads", 200), ("both", 403)] {
            let (found, text) = as_user(&mut admin, user, "GET", page);
            assert_eq!(found, code, "{user} {page}: {text}");
        }
    }
}

#[test]
fn page_is_read_only_and_runs_nothing() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        for path in ["/fleet", "/fleet/nodes/edge-1"] {
            assert_eq!(admin.send(method, path, &[JSON], b"{}").code, 405, "{method} {path}");
        }
    }
    assert_eq!(as_user(&mut admin, "nobody", "POST", "/fleet").0, 403);
    let reply = admin.get("/fleet");
    let text = String::from_utf8(reply.body.clone()).unwrap();
    let style = text.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    let digest = ring::digest::digest(&ring::digest::SHA256, style.as_bytes());
    let digest = kedge_hub_core::kinds::schema::base64_encode(digest.as_ref());
    let policy = reply.header("content-security-policy").concat();
    assert!(
        policy.starts_with("default-src 'none'; ") && policy.contains(&format!("'sha256-{digest}'")),
        "{policy}"
    );
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(reply.header(name), [value], "{name}");
    }
    for bad in ["<script", "<form", " style=", "http://", "https://", "<b>"] {
        assert!(!text.contains(bad), "{bad}");
    }
    assert!(text.contains("http-equiv=refresh content=15"));
    assert!(!page(&mut admin, "/fleet?still").contains("http-equiv=refresh"));
}

/// The links of a page, as a browser resolves them.
fn links(path: &str, text: &str) -> Vec<String> {
    let folder: Vec<&str> = path.split('?').next().unwrap().split('/').collect();
    let hrefs =
        text.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&"));
    hrefs
        .map(|href| {
            let mut segments = folder[..folder.len() - 1].to_vec();
            let mut rest = href.as_str();
            while let Some(further) = rest.strip_prefix("../") {
                segments.pop();
                rest = further;
            }
            format!("{}/{rest}", segments.join("/"))
        })
        .collect()
}

/// From the first page, with a slash at its end or without, to all others.
#[test]
fn every_link_leads_to_a_page() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut open = vec!["/fleet".to_owned(), "/fleet/".to_owned()];
    while let Some(path) = open.pop() {
        if !found.insert(path.clone()) {
            continue;
        }
        let text = page(&mut admin, &path);
        open.extend(links(&path, &text));
        assert!(found.len() < 300, "the pages have no end");
    }
    for path in ["/fleet/nodes/edge-3", "/fleet/nodes?state=not-ready", "/fleet/rollouts/default/till?still"]
    {
        assert!(found.contains(path), "{path} in {found:#?}");
    }
}

fn sample(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in {metrics}")).parse().unwrap()
}

#[test]
fn metrics_have_the_numbers_of_the_page() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    let metrics = page(&mut admin, "/metrics");
    let text = page(&mut admin, "/fleet?still");
    for (name, count, shown) in [
        ("kedge_fleet_nodes{state=\"ready\"}", 2, "?state=ready&amp;still\">2</a>"),
        ("kedge_fleet_nodes{state=\"not-ready\"}", 1, "?state=not-ready&amp;still\">1</a>"),
        ("kedge_fleet_nodes{state=\"silent\"}", 0, "?state=silent&amp;still\">0</a>"),
        (
            "kedge_fleet_config{status=\"False\",reason=\"failed\"}",
            2,
            "?config=False%3A%20failed&amp;still\">2</a>",
        ),
        ("kedge_fleet_agent{version=\"v2\"}", 2, "?agent=v2&amp;still\">2</a>"),
        ("kedge_fleet_system{version=\"<b>Kedge</b>\"}", 3, ">3</a>"),
        ("kedge_fleet_trouble{condition=\"DiskPressure\"}", 2, "?trouble=DiskPressure&amp;still\">2</a>"),
        (
            "kedge_fleet_waiting{reason=\"CrashLoopBackOff\"}",
            1,
            "?waiting=CrashLoopBackOff&amp;still\">1</a>",
        ),
    ] {
        assert_eq!(sample(&metrics, name), count, "{name}");
        assert!(text.contains(shown), "{shown} in {text}");
    }
    assert!(metrics.contains("kedge_fleet_rollout{name=\"default/till\",phase=\""), "{metrics}");
    assert_eq!(sample(&metrics, "kedge_fleet_certificate_days_bucket{le=\"+Inf\"}"), 0);
    admin.delete(&format!("{NODES}/edge-1")).expect(200);
    assert_eq!(sample(&page(&mut admin, "/metrics"), "kedge_fleet_nodes{state=\"ready\"}"), 1);
}

/// Reasons and versions are texts of nodes: a fleet that makes up a new one each time fills no monitoring.
#[test]
fn made_up_reasons_are_few_labels() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    for number in 0..50 {
        register(
            &mut admin,
            &format!("edge-{number}"),
            "True",
            &format!("a\"\\\n{number}"),
            &format!("v{number}"),
        );
    }
    let metrics = page(&mut admin, "/metrics");
    for (name, other) in [
        ("kedge_fleet_config{", "kedge_fleet_config{status=\"other\",reason=\"other\"}"),
        ("kedge_fleet_agent{", "kedge_fleet_agent{version=\"other\"}"),
    ] {
        let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with(name)).collect();
        assert_eq!(lines.len(), 33, "{lines:#?}");
        assert_eq!(sample(&metrics, other), 50 - 32);
    }
    assert!(metrics.contains("reason=\"a\\\"\\\\?0\"} 1"), "{metrics}");
}

/// After a restart the numbers are counted anew from the store, and a past day is unknown.
#[test]
fn numbers_outlast_the_hub_and_the_picture_does_not() {
    let mut hub = patient_hub();
    small_fleet(&mut hub.admin());
    hub.restart("KILL");
    let mut admin = hub.admin();
    assert_eq!(sample(&page(&mut admin, "/metrics"), "kedge_fleet_agent{version=\"v2\"}"), 2);
    let text = page(&mut admin, "/fleet/nodes/edge-1");
    assert!(text.contains("<svg ") && text.contains("unknown 95"), "{text}");
}

/// Alerts and dashboard name metrics that the hub has, and each alert has its case.
#[test]
fn monitoring_names_metrics_of_the_hub() {
    let hub = patient_hub();
    let metrics = page(&mut hub.admin(), "/metrics");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let alerts = read("alerts.yaml");
    let mut found = 0;
    for text in [&alerts, &read("dashboard.json")] {
        for word in text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
            let is_metric =
                ["kedge_hub_", "kedge_fleet_", "apiserver_"].iter().any(|start| word.starts_with(start));
            let name = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(
                !is_metric || metrics.contains(&format!("# TYPE {name} ")),
                "the hub has no metric {word}"
            );
            found += usize::from(is_metric);
        }
    }
    assert!(found >= 30, "{found} names were compared");
    let cases = read("alerts_test.yaml");
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(
            cases.contains(&format!("    alertname: {alert}\n    exp_alerts:\n    - ")),
            "{alert} has no case"
        );
    }
}

/// A node's page compares what runs with what is assigned and with what is proven, for as long as the hub has
/// the versions; and for readers of ConfigMaps alone.
#[test]
fn configurations_of_a_node_are_compared() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    let made = |admin: &mut Client, name: &str, payload: &str| {
        let map = json!({"metadata": {"name": name}, "data": {"kubelet": payload}});
        let made = admin.post(crate::MAPS, &map).expect(201);
        json!({"configMap": {"namespace": "default", "name": name, "uid": made["metadata"]["uid"],
            "resourceVersion": made["metadata"]["resourceVersion"], "kubeletConfigKey": "kubelet"}})
    };
    let proven = made(&mut admin, "proven", "maxPods: 40\nregistryPullQPS: 5\n");
    let assigned = made(&mut admin, "assigned", "maxPods: <b>42</b>\nregistryPullQPS: 5\n");
    let config = json!({"assigned": assigned, "active": proven, "lastKnownGood": proven});
    let status = json!({"status": {"config": config}});
    hub.node("edge-1").patch("merge", &format!("{NODES}/edge-1/status"), &status).expect(200);
    let path = "/fleet/nodes/edge-1";
    let text = page(&mut admin, path);
    let difference =
        "<span class=x>- maxPods: 40</span>\n<span class=g>+ maxPods: &lt;b&gt;42&lt;/b&gt;</span>";
    assert!(text.contains(difference), "{text}");
    assert_eq!(text.matches("<h3>").count(), 1, "{text}");
    bind(&mut admin, "viewer", "kedge:fleet-view");
    let rules = json!([{"nonResourceURLs": ["/fleet", "/fleet/*"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]);
    allow(&mut admin, "both", &rules);
    let (code, text) = as_user(&mut admin, "both", "GET", path);
    assert!(code == 200 && !text.contains("maxPods"), "{text}");
    // a version that was written over is unknown, not the present one
    admin
        .patch("merge", &format!("{}/assigned", crate::MAPS), &json!({"data": {"kubelet": "maxPods: 7"}}))
        .expect(200);
    let text = page(&mut admin, &format!("{path}?still"));
    assert!(text.contains("no longer has the latter") && !text.contains("maxPods: "), "{text}");
}

/// A device that is refused is named, until it is accepted again; and so is the last backup.
#[test]
fn knocking_devices_and_the_last_backup_are_shown() {
    let mut hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    let mut node = hub.node("edge-2");
    node.get(&format!("{NODES}/edge-2")).expect(200);
    let text = page(&mut admin, "/fleet");
    assert!(!text.contains("Refused within") && text.contains("last backup: never"), "{text}");
    for name in ["edge-2", "edge-3"] {
        let revoked = hub.command(&["node", "revoke", name, "--reason", "<i>stolen</i>"]);
        assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    }
    assert_eq!(node.another().get("/api").code, 401);
    let file = scratch();
    let made = hub.command(&["backup", &file.path().join("b").display().to_string()]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let metrics = page(&mut admin, "/metrics");
    assert_eq!(sample(&metrics, "kedge_hub_refused_nodes"), 1);
    let text = page(&mut admin, "/fleet?still");
    // the other one did not knock
    assert!(text.contains("<li class=x>1 refused"), "{text}");
    assert!(
        text.contains("href=\"fleet/nodes/edge-2?still\">edge-2</a>") && text.contains("&lt;i&gt;stolen"),
        "{text}"
    );
    let rules = json!([{"nonResourceURLs": ["/fleet", "/fleet/*"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]);
    allow(&mut admin, "both", &rules);
    assert!(!as_user(&mut admin, "both", "GET", "/fleet").1.contains("refused"));
    // a stranger with a certificate of another authority, or with none, makes no entry
    assert_eq!(hub.anonymous().get("/api/v1/nodes").code, 401);
    assert_eq!(sample(&page(&mut admin, "/metrics"), "kedge_hub_refused_nodes"), 1);
    // a hub reads the time of its backup at its start, and then every minute
    hub.restart("TERM");
    let mut admin = hub.admin();
    let text = until(|| {
        Some(page(&mut admin, "/fleet?still")).filter(|text| !text.contains("last backup: unknown"))
    });
    assert!(text.contains(" s ago</li>") && !text.contains("<li class=x>last backup"), "{text}");
    // what was refused was forgotten with the process
    assert!(!text.contains("Refused within"));
}

/// A person who refreshes in a hundred windows, and goes round the cache: others are served all the same.
#[test]
fn storm_of_refreshes_keeps_nobody_out() {
    let hub = patient_hub();
    let mut admin = hub.admin();
    small_fleet(&mut admin);
    bind(&mut admin, "viewer", "kedge:fleet-view");
    let viewer = scratch();
    let file = viewer.path().join("viewer");
    let made = hub.command(&["user", "create", "viewer", "--out", &file.display().to_string()]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let kubeconfig = std::fs::read_to_string(&file).unwrap();
    let ended = AtomicBool::new(false);
    let (served, refused) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|reader| {
                let (mut client, ended) = (Client::new(&kubeconfig, &hub.url), &ended);
                scope.spawn(move || {
                    let (mut served, mut refused, mut number) = (0, 0, 0);
                    while !ended.load(Ordering::Relaxed) {
                        number += 1;
                        match client.get(&format!("/fleet?still={reader}.{number}")).code {
                            200 => served += 1,
                            429 => refused += 1,
                            other => panic!("{other}"),
                        }
                    }
                    (served, refused)
                })
            })
            .collect();
        // a node and an administrator go on meanwhile
        let mut node = hub.node("edge-1");
        for number in 0..50 {
            let status = json!({"metadata": {"annotations": {"number": number.to_string()}}});
            node.get(&format!("{NODES}/edge-1")).expect(200);
            admin.patch("merge", &format!("{NODES}/edge-2"), &status).expect(200);
        }
        ended.store(true, Ordering::Relaxed);
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert!(served > 0, "{refused} were refused");
}
