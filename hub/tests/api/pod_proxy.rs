//! `pods/NAME/proxy`: requests to programs in pods; the test plays the node and the program.

use std::thread;
use std::time::Duration;

use kedge_rig::scratch::{poll, wait_until};
use serde_json::json;

use super::calls::{called, own_watch, taken, with_pod};
use super::server::{Client, Hub, Watch};
use super::{NODES, PODS};

const PROXY: &str = "/api/v1/namespaces/default/pods/p:8080/proxy";

/// A node whose pod `p` has an address.
fn with_address(hub: &Hub) -> (Client, Watch) {
    let node = with_pod(hub);
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}]}});
    node.another().patch("strategic-merge", &format!("{PODS}/p/status"), &status).expect(200);
    let watch = own_watch(&node);
    (node, watch)
}

/// Sends a request on a thread; returns all bytes of the answer, to the connection's end.
fn asks(hub: &Hub, method: &str, below: &str, more: &str) -> thread::JoinHandle<String> {
    let mut client = hub.admin();
    let request =
        format!("{method} {PROXY}{below} HTTP/1.1\r\nhost: hub.example\r\nconnection: close\r\n{more}");
    thread::spawn(move || {
        client.write_raw(request.as_bytes()).unwrap();
        client.read_to_end()
    })
}

/// Takes the call, and connects to the program; also returns the request for that.
fn connected(node: &Client, watch: &mut Watch) -> (Client, String) {
    let mut session = taken(node, &called(watch));
    let asked = session.read_until("\r\n\r\n");
    session.write_raw(b"HTTP/1.1 101 \r\nConnection: Upgrade\r\nUpgrade: kedge-pod-port\r\n\r\n").unwrap();
    (session, asked)
}

#[test]
fn request_reaches_the_program_and_its_answer_the_client() {
    let hub = Hub::new();
    let (node, mut watch) = with_address(&hub);
    let uid =
        hub.admin().get(&format!("{PODS}/p")).expect(200)["metadata"]["uid"].as_str().unwrap().to_owned();
    let more = "content-length: 4\r\nauthorization: Bearer x\r\ncookie: a\r\nx-own: 1\r\n\r\nbody";
    let asked = asks(&hub, "PUT", "/a%2fb//c/?d=e%20f", more);
    let (mut session, path) = connected(&node, &mut watch);
    assert!(path.starts_with(&format!("GET /podPort/{uid}/10.1.0.2/8080 HTTP/1.1\r\n")), "{path}");
    assert!(
        path.contains("upgrade: kedge-pod-port\r\n") && path.contains("Connection: Upgrade\r\n"),
        "{path}"
    );
    let request = session.read_until("body");
    assert!(request.starts_with("PUT /a%2fb//c/?d=e%20f HTTP/1.1\r\n"), "{request}");
    for field in [
        "host: hub.example",
        "x-own: 1",
        "x-forwarded-for: 127.0.0.1",
        &format!("x-forwarded-uri: {PROXY}/a%2fb//c/"),
        "content-length: 4",
    ] {
        assert!(request.contains(&format!("{field}\r\n")), "{field}: {request}");
    }
    assert!(!request.contains("uthorization") && !request.contains("ookie"), "{request}");
    let answer = "HTTP/1.1 418 I'm\r\nContent-Type: text/html\r\nSet-Cookie: a\r\nLocation: /d\r\nContent-Length: 3\r\n\r\none";
    session.write_raw(answer.as_bytes()).unwrap();
    let answer = asked.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 418 ") && answer.ends_with("\r\n\r\none"), "{answer}");
    for field in [
        "content-type: text/html".to_owned(),
        format!("location: {PROXY}/d"),
        "content-security-policy: sandbox".to_owned(),
        "x-content-type-options: nosniff".to_owned(),
        "content-length: 3".to_owned(),
    ] {
        assert!(answer.contains(&format!("{field}\r\n")), "{field}: {answer}");
    }
    assert!(!answer.contains("ookie"), "{answer}");
    assert_eq!(session.read_to_end(), "", "the program's connection ends with the answer");
    // the line of the end follows the answer, and may follow what its reader does next
    let line = poll(Duration::from_secs(30), || {
        let log = std::fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
        let line: serde_json::Value = serde_json::from_str(log.lines().last()?).ok()?;
        (!line["responseStatus"]["code"].is_null()).then_some(line)
    });
    let line = line.expect("the line of the end");
    assert_eq!(line["verb"], "update");
    assert_eq!(
        (&line["objectRef"]["name"], &line["objectRef"]["subresource"], &line["responseStatus"]["code"]),
        (&json!("p:8080"), &json!("proxy"), &json!(418))
    );
}

#[test]
fn answers_end_as_the_program_ends_them() {
    let hub = Hub::new();
    let (node, mut watch) = with_address(&hub);
    let mut check = |method: &str, said: &str, end: &str| {
        let asked = asks(&hub, method, "/", "\r\n");
        let (mut session, _) = connected(&node, &mut watch);
        session.read_until("\r\n\r\n");
        session.write_raw(said.as_bytes()).unwrap();
        drop(session);
        let answer = asked.join().unwrap();
        assert!(answer.ends_with(end), "{said}: {answer}");
        answer
    };
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
    let answer = check(
        "GET",
        &format!("HTTP/1.1 200 OK\r\n{chunked}0\r\nlate: 1\r\n\r\n"),
        "\r\n\r\n3\r\none\r\n0\r\n\r\n",
    );
    assert!(answer.contains("transfer-encoding: chunked\r\n"), "{answer}");
    let answer = check("GET", "HTTP/1.0 200 OK\r\n\r\none", "\r\n\r\none");
    assert!(!answer.contains("content-length") && !answer.contains("chunked"), "{answer}");
    // an answer that breaks off does so for the client, too
    check("GET", &format!("HTTP/1.1 200 OK\r\n{chunked}"), "\r\n\r\n3\r\none\r\n");
    let answer = check("GET", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\none", "\r\n\r\none");
    assert!(answer.contains("content-length: 99\r\n"), "{answer}");
    // answers without a body
    let answer = check("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", "\r\n\r\n");
    assert!(answer.contains("content-length: 99\r\n"), "{answer}");
    check("DELETE", "HTTP/1.1 204 No Content\r\n\r\n", "\r\n\r\n");
    check("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n", "\r\n\r\n");
    let answer = check("GET", "HTTP/1.1 101 \r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "}");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("answered 101"), "{answer}");
    let answer = check("GET", "", "}");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("error trying to reach service"),
        "{answer}"
    );
}

#[test]
fn program_out_of_reach_is_named_in_the_nodes_words() {
    let hub = Hub::new();
    let (node, mut watch) = with_address(&hub);
    let mut admin = hub.admin();
    let asked = thread::spawn(move || admin.get(&format!("{PROXY}/")));
    let mut session = taken(&node, &called(&mut watch));
    let why = "error trying to reach service: dial tcp 10.1.0.2:8080: connection refused";
    let answer = format!("HTTP/1.1 503 \r\nContent-Length: {}\r\n\r\n{why}", why.len());
    session.write_raw(answer.as_bytes()).unwrap();
    asked.join().unwrap().refused(503, why);
    // an answer in which the program itself fails
    let mut admin = hub.admin();
    let asked = thread::spawn(move || admin.get(&format!("{PROXY}/")));
    let mut session = taken(&node, &called(&mut watch));
    session.read_until("\r\n\r\n");
    session.write_raw(b"HTTP/1.1 101 \r\nUpgrade: kedge-pod-port\r\n\r\nSSH-2.0-x\r\n").unwrap();
    let status = asked.join().unwrap().expect(503);
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("error trying to reach service: "), "{message}");
}

#[test]
fn pod_proxy_refuses_before_it_calls_a_node() {
    let hub = Hub::new();
    let (node, _watch) = with_address(&hub);
    let admin = hub.admin();
    let check = |method: &str, path: &str, headers: &[(&str, &str)], code: u16, text: &str| {
        let reply = admin.another().send(method, &format!("{PODS}/{path}"), headers, b"");
        assert_eq!(reply.code, code, "{method} {path}");
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(text), "{method} {path}: {message}");
    };
    check("GET", "q/proxy/", &[], 404, "pods \"q\" not found");
    check("GET", "a:b:c:d/proxy/", &[], 400, "invalid pod request \"a:b:c:d\"");
    check("GET", "ftp:p:80/proxy/", &[], 400, "invalid pod request");
    check("GET", "p:http/proxy/", &[], 400, "expected a number from 1 to 65535");
    check("OPTIONS", "p/proxy/", &[], 405, "does not allow this method");
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    check("GET", "p/proxy/", &upgrade, 400, "unable to upgrade: pods/proxy passes no upgraded connection");
    let mut large = hub.admin();
    let head = format!("POST {PROXY}/ HTTP/1.1\r\nhost: h\r\ncontent-length: 3145729\r\n\r\n");
    large.write_raw(head.as_bytes()).unwrap();
    assert_eq!(large.read_reply().unwrap().code, 413);
    // relative links must lead below it
    let moved = hub.admin().get(&format!("{PROXY}?a=b"));
    assert_eq!((moved.code, moved.header("location")), (301, vec![&*format!("{PROXY}/?a=b")]));
    // a caller without the right
    let path = format!("{PROXY}/");
    let status = node.another().get(&path).expect(403);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("cannot get resource \"pods/proxy\""), "{message}");
    assert_eq!(hub.anonymous().get(&path).code, 401);
    assert_eq!(node.another().post(&path, &json!({})).code, 403);
    let acting = [("impersonate-user", "admin"), ("impersonate-group", "system:masters")];
    for path in [&path, &format!("{NODES}/edge-1/proxy/configz")] {
        assert_eq!(node.another().send("GET", path, &acting, b"").code, 403);
    }
    let of = |resource: &str, name: &str| {
        let is = |line: &serde_json::Value| {
            line["objectRef"]["resource"] == resource
                && line["objectRef"]["name"] == name
                && line["objectRef"]["subresource"] == "proxy"
                && line["impersonatedUser"]["username"] == "admin"
        };
        // the last line may be half written
        let log = std::fs::read_to_string(hub.data_dir.join("audit-refused.log")).unwrap();
        log.lines().flat_map(serde_json::from_str).any(|line| is(&line))
    };
    // the line of a refusal is written after the answer
    wait_until("the lines of both requests", Duration::from_secs(60), || {
        of("pods", "p:8080") && of("nodes", "edge-1")
    });
    // a pod without an address, and one without a node
    let status = json!({"status": {"podIP": null, "podIPs": null}});
    hub.admin().patch("merge", &format!("{PODS}/p/status"), &status).expect(200);
    check("GET", "p/proxy/", &[], 400, "address not allowed");
    assert_eq!(hub.admin().get(&format!("{NODES}/edge-1/proxy/run/x")).code, 404);
}

#[test]
fn flood_of_requests_to_programs_is_limited() {
    let hub = Hub::new();
    let (node, mut watch) = with_address(&hub);
    let request = format!("GET {PROXY}/ HTTP/1.1\r\nhost: h\r\n\r\n");
    let mut askers: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = hub.admin();
            client.write_raw(request.as_bytes()).unwrap();
            client
        })
        .collect();
    // requests over the limit are refused at once, while the others wait for the node
    let mut codes = Vec::new();
    let (mut served, mut sessions) = (0, Vec::new());
    let mut ids: Vec<String> = Vec::new();
    while ids.len() < 20 {
        let path = called(&mut watch);
        let (before, all) = path.rsplit_once('/').unwrap();
        ids.extend(all.split(',').map(|id| format!("{before}/{id}")));
    }
    for id in &ids {
        let mut session = taken(&node, id);
        session.read_until("\r\n\r\n");
        let _ = session.write_raw(b"HTTP/1.1 101 \r\nUpgrade: kedge-pod-port\r\n\r\n");
        session.read_until("\r\n\r\n");
        let _ = session.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        sessions.push(session);
    }
    // a program that never ends, and clients that do not read
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
    let mut flood = sessions.pop().unwrap();
    let flooding = thread::spawn(move || {
        let mut chunks = 0_usize;
        while flood.write_raw(&chunk).is_ok() {
            chunks += 1;
        }
        chunks
    });
    for session in &mut sessions {
        session.write_raw(b"3\r\none\r\n0\r\n\r\n").unwrap();
    }
    for client in &mut askers {
        let head = client.read_until("\r\n\r\n");
        codes.push(head[9..12].to_owned());
        served += usize::from(head.starts_with("HTTP/1.1 200"));
    }
    codes.sort_unstable();
    codes.dedup();
    assert_eq!((codes, served), (vec!["200".to_owned(), "429".to_owned()], 20));
    assert!(!flooding.is_finished(), "it waits for its reader");
    drop(askers);
    let chunks = flooding.join().unwrap();
    assert!(chunks < 1000, "{chunks} chunks of 64 KiB were taken from the program");
    hub.admin().get(&format!("{PODS}/p")).expect(200);
}

#[test]
fn program_leads_no_client_out_of_its_proxy() {
    let hub = Hub::new();
    let (node, mut watch) = with_address(&hub);
    let mut located = |method: &str, status: u16, location: &str| -> Option<String> {
        let asked = asks(&hub, method, "/item/1", "\r\n");
        let (mut session, _) = connected(&node, &mut watch);
        session.read_until("\r\n\r\n");
        let said = format!(
            "HTTP/1.1 {status} X\r\nLocation: {location}\r\nWWW-Authenticate: Basic realm=\"hub\"\r\nX-Accel-Redirect: /etc/shadow\r\n\
             Set-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
        );
        session.write_raw(said.as_bytes()).unwrap();
        let answer = asked.join().unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        for order in ["authenticate", "accel", "cookie"] {
            assert!(!answer.to_lowercase().contains(order), "{answer}");
        }
        answer.lines().find_map(|line| line.strip_prefix("location: ").map(str::to_owned))
    };
    let port = hub.url.rsplit_once(':').unwrap().1;
    let victim = "/api/v1/namespaces/victim";
    for location in [
        "../../../../../../../../api/v1/namespaces/victim".to_owned(),
        format!("{PROXY}/../../../../../../../api/v1/namespaces/victim"),
        format!("{PROXY}/%2e%2E/..\\.%2e/../../../../api/v1/namespaces/victim"),
        format!("HTTPS://hub.example:{port}{victim}"),
        format!("https://LOCALHOST:{port}{victim}"),
        format!("https://127.0.0.1:{port}{victim}"),
        format!("https://0x7f.1:{port}{victim}"),
        format!("https://[::1]:{port}{victim}"),
        format!("\\\\localhost:{port}{victim}"),
    ] {
        let led = located("GET", 307, &location);
        assert_eq!(led.as_deref(), Some(&*format!("{PROXY}{victim}")), "{location}");
        assert_eq!(located("DELETE", 307, &location), None, "{location}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(located(method, 302, "/fine"), None, "{method}");
    }
    assert_eq!(
        located("GET", 302, "https://sso.example/login").as_deref(),
        Some("https://sso.example/login")
    );
}
