//! Calls: requests to a node on the connection that it opens, from the view of administrators, the node and
//! another node.

use std::thread;
use std::time::Duration;

use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};

use super::server::{Client, Hub, Reply};
use super::{LEASES, NODES, PODS};

const LOG: &str = "/api/v1/namespaces/default/pods/p/log";
const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "kedge-session")];

/// A node with a Lease and a pod `p` that is bound to it.
pub(crate) fn with_pod(hub: &Hub) -> Client {
    with_node(hub, "edge-1", "p")
}

fn with_node(hub: &Hub, name: &str, pod: &str) -> Client {
    let mut node = hub.node(name);
    node.post(NODES, &json!({"metadata": {"name": name}})).expect(201);
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 4, "renewTime": "2026-11-23T00:00:00.000000Z"});
    node.post(LEASES, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
    let spec = json!({"nodeName": name, "containers": [{"name": "a", "image": "i"}]});
    hub.admin().post(PODS, &json!({"metadata": {"name": pod}, "spec": spec})).expect(201);
    node
}

/// Sends a request on a thread, and on a connection of its own.
pub(crate) fn asks(client: &Client, path: &str) -> thread::JoinHandle<Reply> {
    let (mut client, path) = (client.another(), path.to_owned());
    thread::spawn(move || client.get(&path))
}

/// The path of the next call that the watch of the own Node announces.
pub(crate) fn called(watch: &mut super::server::Watch) -> String {
    loop {
        let event = watch.next().expect("the watch has not ended");
        if let Some(ids) = event["object"]["metadata"]["annotations"]["kedge.dev/calls"].as_str() {
            assert_eq!(
                (&event["type"], event["object"]["kind"].as_str()),
                (&json!("BOOKMARK"), Some("Node"))
            );
            return path_of(ids);
        }
    }
}

fn path_of(id: &str) -> String {
    format!("/apis/kedge.dev/v1/nodes/edge-1/calls/{id}")
}

pub(crate) fn own_watch(node: &Client) -> super::server::Watch {
    watch_of(node, "edge-1")
}

fn watch_of(node: &Client, name: &str) -> super::server::Watch {
    let own = format!("{NODES}?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3D{name}");
    node.another().watch(&own)
}

/// The ids of the next calls that the watch announces.
fn ids(watch: &mut super::server::Watch, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < count {
        let event = watch.next().expect("the watch has not ended");
        let ids = event["object"]["metadata"]["annotations"]["kedge.dev/calls"].as_str();
        all.extend(ids.into_iter().flat_map(|ids| ids.split(',')).map(str::to_owned));
    }
    all
}

/// Clients that send this request, and do not read the answer.
fn askers(hub: &Hub, path: &str, count: usize) -> Vec<Client> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
    let asks = |mut client: Client| {
        client.write_raw(request.as_bytes()).unwrap();
        client
    };
    (0..count).map(|_| asks(hub.admin())).collect()
}

/// Most sessions of a node.
const NODE_MOST: usize = 20;

/// Takes a call; returns the connection on which the hub sends its request.
pub(crate) fn taken(node: &Client, path: &str) -> Client {
    let mut session = node.another();
    assert_eq!(session.send("POST", path, &UPGRADE, b"").code, 101);
    session
}

#[test]
fn call_is_answered_by_its_node_alone() {
    let hub = Hub::new();
    let (node, admin) = (with_pod(&hub), hub.admin());
    let mut watch = own_watch(&node);
    let asked = asks(&admin, &format!("{LOG}?tailLines=3&follow=true&pretty=true"));
    let path = called(&mut watch);
    // others learn nothing and change nothing
    let other = hub.node("edge-2");
    assert_eq!(other.another().send("POST", &path, &UPGRADE, b"").code, 403);
    assert_eq!(other.another().send("POST", &path.replace("edge-1", "edge-2"), &UPGRADE, b"").code, 404);
    assert_eq!(admin.another().send("POST", &path, &UPGRADE, b"").code, 403);
    assert_eq!(hub.anonymous().send("POST", &path, &UPGRADE, b"").code, 403);
    assert_eq!(node.another().send("POST", &path, &[], b"").code, 400);
    assert_eq!(node.another().send("POST", &path_of("0"), &UPGRADE, b"").code, 404);
    let mut session = taken(&node, &path);
    assert_eq!(node.another().send("POST", &path, &UPGRADE, b"").code, 404, "once");
    session
        .write_raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nServer: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
        )
        .unwrap();
    let answer = asked.join().unwrap();
    assert_eq!((answer.code, answer.body.as_slice()), (200, &b"one"[..]));
    assert_eq!(answer.header("content-type"), ["text/plain"]);
    assert!(!answer.head().contains("erver: x"), "{}", answer.head());
    let request = session.read_to_end();
    assert!(
        request.starts_with("GET /containerLogs/default/p/a?follow=true&tailLines=3 HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(!request.contains("uthorization") && !request.contains("pretty"), "{request}");
    hub.terminate();
}

/// A node that starts many large pods has a debt because of its reports. A client of its log does not wait
/// for that.
#[test]
fn node_without_requests_left_takes_its_calls() {
    let hub = Hub::new();
    let mut node = with_pod(&hub);
    let mut watch = own_watch(&node);
    // each as much work as 750 requests
    let dear = [b"{}".as_slice(), &[b' '; (3 << 20) - 2]].concat();
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for _ in 0..2 {
        node.another().send("POST", reviews, &[("content-type", "application/json")], &dear).expect(201);
    }
    assert_eq!(node.get("/version").code, 429);
    let asked = asks(&hub.admin(), LOG);
    let mut session = taken(&node, &called(&mut watch));
    session.write_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").unwrap();
    assert_eq!(asked.join().unwrap().body, b"one");
    // only the first attempt for each call is free, and others are not
    let _silent = askers(&hub, LOG, 1);
    let path = called(&mut watch);
    let codes = [&path, &path, &path_of("0")].map(|path| node.another().send("POST", path, &[], b"").code);
    assert_eq!(codes, [400, 429, 429]);
}

#[test]
fn log_comes_in_messages_for_a_websocket() {
    let hub = Hub::new();
    let (node, admin) = (with_pod(&hub), hub.admin());
    let mut watch = own_watch(&node);
    let mut client = admin.another();
    let asked = thread::spawn(move || {
        let headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "base64.binary.k8s.io"),
        ];
        (client.send("GET", LOG, &headers, b""), client.read_to_end())
    });
    let mut session = taken(&node, &called(&mut watch));
    session.write_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").unwrap();
    let (answer, messages) = asked.join().unwrap();
    assert_eq!(answer.code, 101);
    assert_eq!(answer.header("sec-websocket-accept"), ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]);
    assert_eq!(answer.header("sec-websocket-protocol"), ["base64.binary.k8s.io"]);
    assert!(answer.header("transfer-encoding").is_empty(), "{}", answer.head());
    // an empty message, the text in base64, and the beginning of the close frame
    assert!(messages.contains("\u{4}b25l"), "{messages:?}");
    assert!(session.read_to_end().starts_with("GET /containerLogs/default/p/a HTTP/1.1\r\n"));
    hub.terminate();
}

#[test]
fn error_of_the_node_is_shown_in_its_words() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let asked = asks(&hub.admin(), &format!("{LOG}?previous=true"));
    let mut session = taken(&node, &called(&mut watch));
    let text = "previous terminated container \"a\" in pod \"p\" not found";
    let answer = format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{text}\n", text.len() + 1);
    session.write_raw(answer.as_bytes()).unwrap();
    let status = asked.join().unwrap().expect(400);
    assert_eq!((status["message"].as_str(), status["reason"].as_str()), (Some(text), Some("BadRequest")));
}

#[test]
fn call_is_in_the_renewals_answer_until_it_is_too_late() {
    let hub = Hub::new();
    let mut node = with_pod(&hub);
    let asked = asks(&hub.admin(), LOG);
    let mut renew = || {
        let headers = [("content-type", "application/merge-patch+json"), ("prefer", "return=minimal")];
        let body: Value = json!({"spec": {"renewTime": "2026-11-23T00:00:01.000000Z"}});
        let reply = node.send("PATCH", &format!("{LEASES}/edge-1"), &headers, body.to_string().as_bytes());
        assert_eq!(reply.code, 204);
        reply.header("kedge-call").first().map(|id| (*id).to_owned())
    };
    let id = loop {
        if let Some(id) = renew() {
            break id;
        }
    };
    assert_eq!(renew().as_deref(), Some(&*id), "until it is taken");
    // the node does not dial
    asked.join().unwrap().refused(
        504,
        "error dialing backend: node \"edge-1\" was asked to open a connection, and did not within 11 s",
    );
    assert_eq!(renew(), None);
    assert_eq!(node.another().send("POST", &path_of(&id), &UPGRADE, b"").code, 404);
}

#[test]
fn only_administrators_ask_a_node_and_only_for_what_it_serves() {
    let hub = Hub::new();
    let mut node = with_pod(&hub);
    let proxy = format!("{NODES}/edge-1/proxy");
    assert_eq!(node.get(LOG).code, 403);
    assert_eq!(node.get(&format!("{proxy}/healthz")).code, 403);
    assert_eq!(hub.anonymous().get(LOG).code, 401);
    let mut admin = hub.admin();
    for path in ["", "/run/x", "/containerLogs/default/p/a", "/configz/..", "/%2e%2e/configz"] {
        assert_eq!(admin.get(&format!("{proxy}{path}")).code, 404, "{path}");
    }
    assert_eq!(admin.send("POST", &format!("{proxy}/configz"), &[], b"").code, 405);
    assert_eq!(admin.get(&format!("{NODES}/edge-9/proxy/healthz")).code, 404);
    assert_eq!(admin.get(&format!("{LOG}?tailLines=-1")).code, 422);
}

#[test]
fn session_ends_with_the_nodes_credential_and_with_the_hub() {
    let mut hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let mut follow = || {
        let mut client = hub.admin();
        client.write_raw(format!("GET {LOG}?follow=true HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).unwrap();
        let mut session = taken(&node, &called(&mut watch));
        session.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
        (client, session)
    };
    let (mut client, mut session) = follow();
    let (mut stopped, mut its_session) = follow();
    let said = hub.command(&["node", "revoke", "edge-1", "--reason", "stolen"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let text = client.read_to_end();
    assert!(text.ends_with("3\r\none\r\n"), "it breaks off: {text}");
    session.read_to_end();
    stopped.read_to_end();
    its_session.read_to_end();
    // a request that waits for a node does not delay a stop
    let (code, _) = hub.stop("TERM");
    assert_eq!(code, Some(0));
}

/// A log that is followed and a command, of a user whose binding is deleted.
#[test]
fn session_ends_with_the_right_to_it() {
    const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let hub = Hub::new();
    let (node, mut admin) = (with_pod(&hub), hub.admin());
    let mut watch = own_watch(&node);
    let rules = |verbs: &[&str]| {
        json!({"metadata": {"name": "runs"}, "rules": [
            {"apiGroups": [""], "resources": ["pods/log", "pods/exec"], "verbs": verbs}]})
    };
    let role = format!("{RIGHTS}/roles");
    admin.post(&role, &rules(&["get"])).expect(201);
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"});
    let runs = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runs"});
    let binding = json!({"metadata": {"name": "runs"}, "subjects": [subject], "roleRef": runs});
    admin.post(&format!("{RIGHTS}/rolebindings"), &binding).expect(201);
    let websocket = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
                     dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n";
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=sh&container=a&stdout=true";
    let ask = |path: &str, fields: &str| {
        let mut client = hub.admin();
        let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\nimpersonate-user: jane\r\n{fields}\r\n");
        client.write_raw(head.as_bytes()).unwrap();
        client
    };
    // a WebSocket runs a command by GET: the right to read is not enough
    let refused = ask(exec, websocket).read_reply().unwrap();
    refused.refused(403, "pods \"p\" is forbidden: User \"jane\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"default\"");
    admin.put(&format!("{role}/runs"), &rules(&["get", "create"])).expect(200);
    let mut log = ask(&format!("{LOG}?follow=true"), "");
    let mut its_session = taken(&node, &called(&mut watch));
    its_session.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
    log.read_until("one\r\n");
    let mut command = ask(exec, websocket);
    let mut session = taken(&node, &called(&mut watch));
    session.read_until("\r\n\r\n");
    session.write_raw(b"HTTP/1.1 101 \r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
    assert!(command.read_until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
    admin.delete(&format!("{RIGHTS}/rolebindings/runs")).expect(200);
    assert_eq!(log.read_to_end(), "", "it breaks off");
    assert_eq!(command.read_to_end(), "");
    its_session.read_to_end();
    session.read_to_end();
    assert_eq!(ask(LOG, "").read_reply().unwrap().code, 403);
}

#[test]
fn abandoned_calls_give_their_places_back() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    // so long that a call waits for 50 s
    let lease = json!({"spec": {"leaseDurationSeconds": 160}});
    node.another().patch("merge", &format!("{LEASES}/edge-1"), &lease).expect(200);
    let mut watch = own_watch(&node);
    let waiting = askers(&hub, LOG, NODE_MOST);
    let abandoned = ids(&mut watch, NODE_MOST);
    hub.admin()
        .get(LOG)
        .refused(429, "node \"edge-1\" has 20 sessions, and may have no more, please try again later");
    drop(waiting);
    // clients that retry are served: all of them, once the places of disconnected clients are free
    let tries = |mut client: Client| {
        thread::spawn(move || {
            loop {
                let reply = client.get(LOG);
                if reply.code != 429 {
                    return reply;
                }
                thread::sleep(Duration::from_millis(100));
            }
        })
    };
    let asked: Vec<_> = (0..NODE_MOST).map(|_| tries(hub.admin())).collect();
    let called = ids(&mut watch, NODE_MOST);
    for id in &abandoned {
        assert_eq!(node.another().send("POST", &path_of(id), &UPGRADE, b"").code, 404, "it is over");
    }
    let mut sessions: Vec<Client> = called.iter().map(|id| taken(&node, &path_of(id))).collect();
    for session in &mut sessions {
        session.write_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").unwrap();
    }
    for asked in asked {
        assert_eq!(asked.join().unwrap().body, b"one");
    }
    assert!(!hub.log().contains("did not dial within"), "no call waited to its end: {}", hub.log());
}

#[test]
fn client_that_does_not_read_delays_no_other() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let silent = askers(&hub, LOG, 1);
    let mut session = taken(&node, &called(&mut watch));
    let flood = thread::spawn(move || {
        let _ = session.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
        let mut chunks = 0_usize;
        while session.write_raw(&chunk).is_ok() {
            chunks += 1;
        }
        chunks
    });
    for _ in 0..3 {
        let asked = asks(&hub.admin(), LOG);
        let mut session = taken(&node, &called(&mut watch));
        session.write_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").unwrap();
        assert_eq!(asked.join().unwrap().body, b"one");
    }
    assert!(!flood.is_finished(), "it waits for its reader");
    // it leaves without closing
    drop(silent);
    let chunks = flood.join().unwrap();
    // limited by the sockets' buffers, not by memory
    assert!(chunks < 1000, "{chunks} chunks of 64 KiB were taken from the node");
}

#[test]
fn two_hundred_sessions_pass_and_nodes_keep_to_their_share() {
    const COUNT: usize = 10;
    let hub = Hub::new();
    let mut sessions = Vec::new();
    let mut clients = Vec::new();
    for number in 0..COUNT {
        let (name, pod) = (format!("edge-{number}"), format!("p-{number}"));
        let node = with_node(&hub, &name, &pod);
        let mut watch = watch_of(&node, &name);
        let log = format!("{PODS}/{pod}/log?follow=true");
        clients.extend(askers(&hub, &log, NODE_MOST));
        for id in ids(&mut watch, NODE_MOST) {
            let mut session = taken(&node, &format!("/apis/kedge.dev/v1/nodes/{name}/calls/{id}"));
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            session.write_raw(head.as_bytes()).unwrap();
            sessions.push(session);
        }
        hub.admin().get(&log).refused(
            429,
            &format!("node \"{name}\" has 20 sessions, and may have no more, please try again later"),
        );
    }
    // all are open at once, and each passes its node's bytes
    for (number, session) in sessions.iter_mut().enumerate() {
        session.write_raw(format!("4\r\n{number:04}\r\n0\r\n\r\n").as_bytes()).unwrap();
    }
    let mut heard: Vec<Vec<u8>> =
        clients.iter_mut().map(|client| client.read_reply().unwrap().body).collect();
    heard.sort();
    let expect: Vec<Vec<u8>> =
        (0..COUNT * NODE_MOST).map(|number| format!("{number:04}").into_bytes()).collect();
    assert_eq!(heard, expect);
}

#[test]
fn node_that_dies_breaks_its_sessions_off() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let mut client = askers(&hub, &format!("{LOG}?follow=true"), 1).remove(0);
    let mut session = taken(&node, &called(&mut watch));
    session.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
    // A connection that ends with unread bytes takes what it had sent with it: the answer has to be through before.
    let begun = client.read_until("3\r\none\r\n");
    drop(session);
    let rest = client.read_to_end();
    assert_eq!(rest, "", "no last chunk after {begun}");
}

/// The lines about an exec, as their stages and codes.
fn lines_of(hub: &Hub, resource: &str, subresource: &str) -> Vec<(String, Option<u64>)> {
    let log = std::fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let own = lines.filter(|line| {
        line["objectRef"]["resource"] == resource && line["objectRef"]["subresource"] == subresource
    });
    own.map(|line| (line["stage"].as_str().unwrap().to_owned(), line["responseStatus"]["code"].as_u64()))
        .collect()
}

#[test]
fn command_is_in_the_log_before_its_node_has_it() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=rm&container=a&stdout=true";
    let websocket = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
                     dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n";
    let spdy = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n";
    let begun = || ("RequestReceived".to_owned(), None);
    let ended = |code| ("ResponseComplete".to_owned(), Some(code));
    let mut expect = Vec::new();
    for (method, upgrade) in [("GET", websocket), ("POST", spdy)] {
        let mut client = hub.admin();
        client.write_raw(format!("{method} {exec} HTTP/1.1\r\nhost: h\r\n{upgrade}\r\n").as_bytes()).unwrap();
        let mut session = taken(&node, &called(&mut watch));
        let asked = session.read_until("\r\n\r\n");
        assert!(asked.contains("/exec/default/p/a?command=rm"), "{asked}");
        // the node has the request, and has not answered
        expect.push(begun());
        assert_eq!(lines_of(&hub, "pods", "exec"), expect, "{method}");
        session.write_raw(b"HTTP/1.1 101 \r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
        assert!(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
        drop(session);
        client.read_to_end();
        // the session is over
        expect.push(ended(101));
        wait_until("the line of the session's end", Duration::from_secs(60), || {
            lines_of(&hub, "pods", "exec") == expect
        });
    }
    // a node that refuses
    let mut client = hub.admin();
    client.write_raw(format!("POST {exec} HTTP/1.1\r\nhost: h\r\n{spdy}\r\n").as_bytes()).unwrap();
    let mut session = taken(&node, &called(&mut watch));
    session.read_until("\r\n\r\n");
    expect.push(begun());
    assert_eq!(lines_of(&hub, "pods", "exec"), expect);
    session.write_raw(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno").unwrap();
    assert_eq!(client.read_reply().unwrap().code, 404);
    expect.push(ended(404));
    wait_until("the line of the refusal", Duration::from_secs(60), || {
        lines_of(&hub, "pods", "exec") == expect
    });
    let reads = std::fs::read_to_string(hub.data_dir.join("audit-reads.log")).unwrap();
    assert!(!reads.contains("exec"), "{reads}");
}

#[test]
fn command_whose_line_cannot_be_written_is_not_passed_on() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    // a log that cannot be appended to: it is rotated away, and a directory has its name
    let log = hub.data_dir.join("audit.log");
    let full = std::fs::File::options().append(true).open(&log).unwrap();
    full.set_len(64 << 20).unwrap();
    for number in 0..5 {
        let rotated = hub.data_dir.join(format!("audit.log.{number}"));
        std::fs::create_dir_all(rotated.join("x")).unwrap();
    }
    let mut client = hub.admin();
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=rm&container=a&stdout=true";
    let spdy = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n";
    client.write_raw(format!("POST {exec} HTTP/1.1\r\nhost: h\r\n{spdy}\r\n").as_bytes()).unwrap();
    let mut session = taken(&node, &called(&mut watch));
    let refused = client.read_reply().unwrap();
    assert_eq!(refused.code, 503);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("was not passed on to node \"edge-1\""), "{message}");
    assert_eq!(session.read_to_end(), "", "the node hears nothing of it");
}
