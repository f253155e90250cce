//! Objects from a hostile API server: each is refused or read, and a read one is written back equal.

use crate::Target;
use kedge_api::{ConfigMap, Event, Node};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;

pub(crate) const TARGET: Target =
    Target { name: "api_objects", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 3000 };

const WORDS: &[&str] = &[
    "\"metadata\":{",
    "\"name\":",
    "\"uid\":",
    "\"resourceVersion\":",
    "\"labels\":{",
    "\"annotations\":{",
    "\"ownerReferences\":[{",
    "\"creationTimestamp\":",
    "\"deletionTimestamp\":",
    "\"spec\":{",
    "\"configSource\":",
    "\"taints\":[{",
    "\"unschedulable\":",
    "\"status\":{",
    "\"conditions\":[{",
    "\"type\":",
    "\"lastHeartbeatTime\":",
    "\"addresses\":[{",
    "\"capacity\":{",
    "\"nodeInfo\":{",
    "\"config\":{",
    "\"assigned\":",
    "\"data\":{",
    "null",
    "\"2026-11-21T01:35:58Z\"",
    "-2147483649",
    "65536",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"n{"metadata":{"name":"edge-1","uid":"u","resourceVersion":"7","creationTimestamp":"2026-11-21T01:35:58Z","labels":{"a":"b"},"annotations":{"kedge.dev/config-source":"{}"},"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"y"}]},"spec":{"configSource":{"configMapRef":{"namespace":"n","name":"m","uid":"u"}},"taints":[{"key":"k","effect":"NoSchedule"}],"unschedulable":true},"status":{"capacity":{"cpu":"4"},"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-21T01:35:58Z","reason":"r","message":"m"}],"addresses":[{"type":"InternalIP","address":"192.0.2.7"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"nodeInfo":{"machineID":"x"},"config":{"assigned":{"configMap":{"namespace":"n","name":"m","uid":"u","resourceVersion":"1","kubeletConfigKey":"k"}},"error":"e"}}}"#,
        r#"m{"metadata":{"name":"edge","namespace":"kube-system"},"data":{"kubelet":"maxPods: 3"}}"#,
        r#"e{"metadata":{"name":"x"},"involvedObject":{"kind":"Node","name":"n"},"reason":"r","message":"m","source":{"component":"c"},"firstTimestamp":"2026-11-21T01:35:58Z","count":1,"type":"Normal"}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which {
        b'n' => check::<Node>(bytes),
        b'm' => check::<ConfigMap>(bytes),
        _ => check::<Event>(bytes),
    }
}

fn check<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    // through a `Value` as well, as watches pass objects on
    let tree =
        serde_json::from_slice::<Value>(bytes).ok().and_then(|tree| serde_json::from_value::<T>(tree).ok());
    let Ok(object) = serde_json::from_slice::<T>(bytes) else { return };
    // with a duplicate key one fails and the other takes the last value; otherwise they agree
    if let Some(tree) = tree {
        assert_eq!(tree, object);
    }
    let written = serde_json::to_vec(&object).expect("objects have text keys");
    let again: T = serde_json::from_slice(&written).expect("what we write we can read");
    let rewritten = serde_json::to_vec(&again).expect("objects have text keys");
    assert_eq!(written.escape_ascii().to_string(), rewritten.escape_ascii().to_string());
}
