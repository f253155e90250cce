//! Clients that break the protocol or its limits: the hub answers with an error or closes the connection, and
//! continues to serve others.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::MAPS;
use crate::server::{Client, Hub};
use serde_json::{Value, json};

/// The status of an answer, or 0 if the hub closed the connection.
fn code(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    client.try_send(method, path, headers, body).map_or(0, |reply| reply.code)
}

#[test]
fn bad_requests_get_an_error_and_others_are_served() {
    let hub = Hub::new();
    let long = "x".repeat(64 * 1024);
    let check = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8], expect: &[u16]| {
        let code = code(&mut hub.admin(), method, path, headers, body);
        assert!(expect.contains(&code), "{method} {:.60}: {code}, expected {expect:?}", path);
        assert_eq!(hub.admin().get("/healthz").body, b"ok");
    };
    check("GET", "/api/v1/nodes", &[("x-long", &long)], b"", &[431, 0]);
    check("GET", "/api/v1/nodes", &[("x", "y"); 100], b"", &[431, 0]);
    check("GET", &format!("/api/v1/nodes/{}", "a".repeat(3000)), &[], b"", &[404]);
    check("GET", &format!("/api/v1/nodes?{}", "a=b&".repeat(100)), &[], b"", &[400]);
    check("GET", "/api/v1/nodes?labelSelector=%ff", &[], b"", &[400]);
    check("GET", "/api/v1/nodes?continue=AAAA", &[], b"", &[400]);
    check("GET", "/api/v1/nodes?limit=x", &[], b"", &[400]);
    check("GET", "/api/v1/nodes?watch=true&timeoutSeconds=99999999999999999999", &[], b"", &[400]);
    check("NONSENSE", "/api/v1/nodes", &[], b"", &[405]);
    check(
        "POST",
        MAPS,
        &[("content-type", "application/vnd.kubernetes.protobuf")],
        b"k8s\0\xff\xff\xff\xff",
        &[400],
    );
    let deep = format!("{{\"data\":{}", "[".repeat(100_000));
    check("POST", MAPS, &[("content-type", "application/json")], deep.as_bytes(), &[400]);
    let many: Value = (0..10_001).map(|_| json!({"op": "test", "path": "", "value": 1})).collect();
    let patch = [("content-type", "application/json-patch+json")];
    hub.admin().post(MAPS, &json!({"metadata": {"name": "a"}})).expect(201);
    check("PATCH", &format!("{MAPS}/a"), &patch, many.to_string().as_bytes(), &[413]);
    // the whole body is sent before the answer is read
    check("POST", MAPS, &[("content-type", "application/json")], &vec![b'x'; 8 << 20], &[413]);
    let annotations: Value = json!({"metadata": {"annotations": {"a": "x".repeat(300 * 1024)}}});
    let merge = [("content-type", "application/merge-patch+json")];
    check("PATCH", &format!("{MAPS}/a"), &merge, annotations.to_string().as_bytes(), &[422]);
}

#[test]
fn plain_http_connections_are_closed() {
    let hub = Hub::new();
    let address = hub.url.strip_prefix("https://").unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // a TLS alert at most, and the end
    let _ = socket.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    assert_eq!(hub.admin().get("/healthz").body, b"ok");
}

#[test]
fn watcher_that_never_reads_does_not_block_writers() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(MAPS, &json!({"metadata": {"name": "a"}})).expect(201);
    // kept open and never read
    let _unread = client.watch(&format!("{MAPS}?watch=true"));
    let merge = [("content-type", "application/merge-patch+json"), ("prefer", "return=minimal")];
    for count in 0..60 {
        let patch = json!({"data": {"k": format!("{count}").repeat(100_000)}}).to_string();
        assert_eq!(client.send("PATCH", &format!("{MAPS}/a"), &merge, patch.as_bytes()).code, 204);
    }
    assert_eq!(client.watch(&format!("{MAPS}?watch=true")).event(), "ADDED a");
}
