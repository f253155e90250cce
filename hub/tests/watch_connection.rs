//! A watch on a connection that serves other requests: before it, after it, and pipelined.
//!
//! Each test reads the bytes of one real TLS connection. The content of watches is tested in `hub/tests/api`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod server;

use std::io::Write;

use serde_json::json;
use server::{Client, Hub};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn hub() -> (Hub, Client) {
    let hub = Hub::new();
    let mut admin = hub.admin();
    admin.post(MAPS, &json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).expect(201);
    (hub, admin)
}

fn short_watch() -> String {
    format!("{MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1")
}

#[test]
fn connection_continues_after_its_watch() {
    let (_hub, admin) = hub();
    let mut client = admin.another();
    for _ in 0..2 {
        let answer = client.get(&short_watch());
        assert_eq!((answer.code, answer.header("transfer-encoding")), (200, vec!["chunked"]));
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.starts_with("{\"type\":\"ADDED\""), "{text}");
        assert!(text.lines().last().unwrap().starts_with("{\"type\":\"BOOKMARK\""), "{text}");
        // the same connection: `get` would have to dial again if it were gone
        assert_eq!(client.try_on_the_same("GET", &format!("{MAPS}/a")).unwrap().code, 200);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_hub, mut admin) = hub();
    // more than the socket buffers hold, so that the first answer is not finished when the watch is requested
    for number in 0..8 {
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(1_000_000)}});
        admin.post(MAPS, &map).expect(201);
    }
    let one = format!("{MAPS}/a");
    for paths in [[one.as_str(), &short_watch(), &one], [MAPS, &short_watch(), &one]] {
        let mut client = admin.another();
        let mut asked = Vec::new();
        for path in paths {
            write!(asked, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        }
        client.write_raw(&asked).unwrap();
        // time for the hub to receive everything
        std::thread::sleep(std::time::Duration::from_millis(300));
        let answers: Vec<_> = paths.iter().map(|_| client.read_reply().unwrap()).collect();
        assert!(answers.iter().all(|answer| answer.code == 200));
        assert_eq!(answers[0].header("transfer-encoding").len(), 0);
        assert!(answers[1].body.starts_with(b"{\"type\":\"ADDED\""));
        assert_eq!(answers[2].json()["metadata"]["name"], "a");
    }
}

#[test]
fn http_1_0_and_close_end_the_connection() {
    let (_hub, admin) = hub();
    for (version, header) in [("1.0", ""), ("1.1", "connection: close\r\n")] {
        let mut client = admin.another();
        let asked = format!("GET {} HTTP/{version}\r\nhost: x\r\n{header}\r\n", short_watch());
        client.write_raw(asked.as_bytes()).unwrap();
        let answer = client.read_to_end();
        assert!(answer.contains(" 200 OK") && answer.contains("{\"type\":\"ADDED\""), "{answer}");
    }
}
