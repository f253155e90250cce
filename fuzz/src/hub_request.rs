//! Callers that send any bytes to the hub over a connection: from the bytes of a request to the bytes of the
//! answer.
//!
//! The first byte chooses the caller, the second how the rest is sent: raw, or as one well-formed request
//! with a method, a path, headers and a body, so that mutations also reach the code behind HTTP. Each input
//! gets a new hub over a store in memory. Checked: no request fails on the hub's side, an answer is complete,
//! and a refusal is a Status of the same code.

use crate::Target;
use crate::hub_store::Preset;
use crate::input::sections;
use kedge_hub::{Hub, server};
use kedge_hub_core::identity::Identity;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

pub(crate) const TARGET: Target =
    Target { name: "hub_request", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 100 };

/// More than any input, and than the hub's answer to one: neither side waits for the other to read.
const PIPE_BYTES: usize = 1 << 20;

/// A caller that sent raw bytes hangs up after this long without an answer. Its bytes may have begun a watch,
/// which would not end by itself: the watch does not see the client leave while bytes of a further request
/// are unread.
const QUIET: Duration = Duration::from_millis(20);

const WORDS: &[&str] = &[
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "/api/v1/nodes",
    "/api/v1/namespaces/default/configmaps",
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    "/apis/apps/v1/namespaces/default/daemonsets",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/openapi/v3/api/v1",
    "/openapi/v2",
    "/readyz?verbose",
    "/metrics",
    "/version",
    "/status",
    "/binding",
    "/eviction",
    "/approval",
    "/default",
    "/edge-1",
    "?watch=true",
    "&timeoutSeconds=1",
    "&resourceVersion=",
    "&resourceVersionMatch=NotOlderThan",
    "&sendInitialEvents=true",
    "&allowWatchBookmarks=true",
    "&limit=1",
    "&continue=",
    "&labelSelector=",
    "&fieldSelector=metadata.name%3D",
    "&dryRun=All",
    "&fieldManager=",
    "&force=true",
    "&fieldValidation=Strict",
    "&propagationPolicy=Foreground",
    "&gracePeriodSeconds=0",
    "%2F",
    "%00",
    "content-type: application/json\r\n",
    "content-type: application/merge-patch+json\r\n",
    "content-type: application/json-patch+json\r\n",
    "content-type: application/strategic-merge-patch+json\r\n",
    "content-type: application/apply-patch+yaml\r\n",
    "content-type: text/vnd.kedge.renewal\r\n",
    "content-type: application/vnd.kubernetes.protobuf\r\n",
    "accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n",
    "accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io\r\n",
    "prefer: return=minimal\r\n",
    "impersonate-user: ",
    "impersonate-group: system:masters\r\n",
    "expect: 100-continue\r\n",
    "connection: close\r\n",
    "transfer-encoding: chunked\r\n",
    "content-length: ",
    " HTTP/1.1\r\nhost: h\r\n",
    "{\"metadata\":{\"name\":\"a\"}}",
    "\u{1e}",
];

fn seeds() -> Vec<Vec<u8>> {
    let asked = |who: &str, request: [&str; 4]| {
        [format!("{who}d").as_bytes(), request.join("\u{1e}").as_bytes()].concat()
    };
    let json = "content-type: application/json\r\n";
    let maps = "/api/v1/namespaces/default/configmaps";
    vec![
        asked("a", ["GET", "/api/v1/namespaces?limit=2", "", ""]),
        asked("a", ["GET", "/api/v1/namespaces?watch=true&timeoutSeconds=0", "", ""]),
        asked("a", ["POST", maps, json, r#"{"metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"v"}}"#]),
        asked("a", ["POST", maps, json, r#"{"metadata":{"generateName":"a-"},"binaryData":{"k":"aGk="}}"#]),
        asked(
            "a",
            [
                "PATCH",
                "/api/v1/nodes/edge-1?fieldManager=m&force=true",
                "content-type: application/apply-patch+yaml\r\n",
                "apiVersion: v1\nkind: Node\nmetadata: {name: edge-1, labels: {a: b}}\n",
            ],
        ),
        asked(
            "a",
            [
                "PATCH",
                "/api/v1/namespaces/default?dryRun=All",
                "content-type: application/json-patch+json\r\n",
                r#"[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]"#,
            ],
        ),
        asked("a", ["DELETE", "/api/v1/namespaces/default?propagationPolicy=Orphan", "", ""]),
        asked("a", ["DELETE", &format!("{maps}?labelSelector=a%3Db"), json, r#"{"preconditions":{"uid":"u"}}"#]),
        asked("a", ["GET", "/api/v1/serviceaccounts", "accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n", ""]),
        asked("a", ["GET", "/openapi/v3/apis/apps/v1", "", ""]),
        asked("a", ["GET", "/apis", "accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList\r\n", ""]),
        asked("a", ["GET", "/readyz?verbose", "impersonate-user: b\r\nimpersonate-group: system:masters\r\n", ""]),
        asked(
            "a",
            [
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                json,
                r#"{"spec":{"resourceAttributes":{"verb":"get","resource":"nodes"}}}"#,
            ],
        ),
        asked("n", ["POST", "/api/v1/nodes", json, r#"{"metadata":{"name":"edge-1"}}"#]),
        asked(
            "n",
            [
                "PATCH",
                "/api/v1/nodes/edge-1/status",
                "content-type: application/strategic-merge-patch+json\r\nprefer: return=minimal\r\n",
                r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#,
            ],
        ),
        asked("n", ["GET", "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dedge-1&timeoutSeconds=0", "", ""]),
        asked("x", ["GET", "/healthz", "", ""]),
        asked("x", ["GET", "/api/v1/nodes", "", ""]),
        b"arGET /version HTTP/1.1\r\nhost: h\r\n\r\nGET /healthz HTTP/1.1\r\nhost: h\r\n\r\n".to_vec(),
        b"arPOST /api/v1/namespaces HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1d\r\n{\"metadata\":{\"name\":\"space\"}}\r\n0\r\n\r\n".to_vec(),
        b"arGET /api/v1/nodes?watch=1 HTTP/1.1\r\nhost: h\r\n\r\nGET /version HTTP/1.1\r\nhost: h\r\n\r\n".to_vec(),
        b"arGET / HTTP/1.0\r\n\r\n".to_vec(),
    ]
}

fn run(data: &[u8]) {
    let [caller, form, rest @ ..] = data else { return };
    let identity = |user: &str, group: &str| Identity::new(user, &[group]);
    let caller = match caller {
        b'a' => Some(identity("admin", "system:masters")),
        b'n' => Some(identity("system:node:edge-1", "system:nodes")),
        b'o' => Some(identity("other", "others")),
        _ => None,
    };
    let hub = Hub::open_with(Box::<Preset>::default()).expect("this store never fails");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime needs only descriptors").block_on(async {
        let (client, ours) = tokio::io::duplex(PIPE_BYTES);
        let serving = async {
            // an error means that the caller did not send HTTP, or left
            drop(server::serve_one(hub.clone(), caller, ours).await);
            std::future::pending().await
        };
        let calling = async {
            match form {
                b'r' => any_bytes(client, rest).await,
                _ => one_request(client, rest).await,
            }
        };
        // the caller ends the run, because a watch would not end by itself
        tokio::select! {
            () = calling => {}
            () = serving => {}
        }
    });
    hub.close();
}

/// Sends everything and leaves: how much of it the hub answers depends on when the hub notices.
async fn any_bytes(mut client: DuplexStream, bytes: &[u8]) {
    // the hub may have closed the connection
    let _ = client.write_all(bytes).await;
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    while let Ok(Ok(1..)) = tokio::time::timeout(QUIET, client.read_buf(&mut answer)).await {}
    let failed = b"HTTP/1.1 500";
    assert!(!answer.windows(failed.len()).any(|part| part == failed), "{}", answer.escape_ascii());
}

async fn one_request(mut client: DuplexStream, dressed: &[u8]) {
    let [method, path, headers, body] = sections::<4>(dressed);
    let mut asked = [method, b" ", path, b" HTTP/1.1\r\nhost: h\r\n", headers].concat();
    // otherwise the hub would wait for an announced body that never arrives
    let named =
        |name: &str| headers.to_ascii_lowercase().windows(name.len()).any(|part| part == name.as_bytes());
    if named("content-length")
        || named("transfer-encoding")
        || path.contains(&b'\n')
        || method.contains(&b'\n')
    {
        return any_bytes(client, dressed).await;
    }
    asked.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    asked.extend_from_slice(body);
    if client.write_all(&asked).await.is_err() {
        return;
    }
    // answers may come before the body is read
    let Some(head) = read_head(&mut client).await else { return };
    let code: u16 = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    assert!((200..500).contains(&code) || code == 503, "{head}");
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    if field("transfer-encoding").is_some() || method == b"HEAD" {
        // a watch: it lasts for as long as we listen
        return;
    }
    let length = field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.expect("an answer is as long as it says");
    if field("content-type") == Some("application/json") && length > 0 {
        let value: Value =
            serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {}", body.escape_ascii()));
        if code >= 400 {
            assert_eq!(
                (value["kind"].as_str(), value["code"].as_u64()),
                (Some("Status"), Some(u64::from(code))),
                "{value}"
            );
            assert!(value["message"].as_str().is_some_and(|message| !message.is_empty()), "{value}");
        }
    }
}

async fn read_head(client: &mut DuplexStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}
