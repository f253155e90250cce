//! Long answers: compressed when the client asks for it, in pieces, and with the same content as short ones.

use std::io::Read as _;

use serde_json::{Value, json};

use crate::server::{Hub, Reply};
use crate::{JSON, LEASES, MAPS, NODES};

fn decompressed(body: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut text).unwrap();
    text
}

/// What kubectl asks for before its first command.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[test]
fn long_answers_are_compressed_for_clients_that_ask() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for number in 0..4 {
        let data =
            json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "kedge ".repeat(12_000)}});
        client.send("POST", MAPS, &[JSON, ("prefer", "return=minimal")], data.to_string().as_bytes());
    }
    client
        .post(MAPS, &json!({"metadata": {"name": "large"}, "data": {"k": "x".repeat(140_000)}}))
        .expect(201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let gzip = |accept| [("accept-encoding", "deflate, gzip"), ("accept", accept)];
    for (path, accept) in [
        (MAPS, "application/json"),
        (MAPS, "application/json;as=Table;v=v1;g=meta.k8s.io"),
        (&*format!("{MAPS}/large"), "application/json"),
        (&*format!("{MAPS}?includeObject=Object"), table),
        ("/openapi/v3/api/v1", "application/json"),
        ("/api", DISCOVERY),
        ("/apis", DISCOVERY),
    ] {
        let plain = client.send("GET", path, &[("accept", accept)], b"");
        let short = client.send("GET", path, &gzip(accept), b"");
        assert_eq!(plain.header("content-encoding").len(), 0, "{path}");
        assert_eq!(short.header("content-encoding"), ["gzip"], "{path}");
        assert_eq!(short.header("vary"), ["Accept-Encoding"], "{path}");
        assert!(short.body.len() * 3 < plain.body.len() || plain.body.len() < 128 * 1024, "{path}");
        let (plain, short): (Value, Value) =
            (plain.json(), serde_json::from_slice(&decompressed(&short.body)).unwrap());
        assert_eq!(plain["rows"].as_array().map(Vec::len), short["rows"].as_array().map(Vec::len));
        assert_eq!(plain["items"], short["items"], "{path}");
        // the connection stays usable after each
        client.try_on_the_same("GET", "/version").unwrap();
    }
    // short answers are not, and watches never
    for path in ["/version", "/api", "/api/v1"] {
        let short = client.send("GET", path, &gzip("application/json"), b"");
        assert_eq!(short.header("content-encoding").len(), 0, "{path}");
    }
    let watch = format!("{MAPS}?watch=true&timeoutSeconds=1");
    let watch = client.send("GET", &watch, &gzip("*/*"), b"");
    assert_eq!(watch.header("content-encoding").len(), 0);
    assert!(watch.body.starts_with(b"{\"type\":\"ADDED\""));
}

#[test]
fn reader_that_stops_holds_nothing_that_others_need() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for number in 0..6 {
        let data = json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(900_000)}});
        client.send("POST", MAPS, &[JSON, ("prefer", "return=minimal")], data.to_string().as_bytes());
    }
    // more than a client of this kind may have in progress at a time
    let mut unread = Vec::new();
    for _ in 0..40 {
        let mut reader = client.another();
        reader
            .write_raw(format!("GET {MAPS} HTTP/1.1\r\nhost: x\r\naccept-encoding: gzip\r\n\r\n").as_bytes())
            .unwrap();
        reader.write_raw(format!("GET {MAPS} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
        unread.push(reader);
    }
    let list = client.get(MAPS).json();
    // and the hub's own, kube-root-ca.crt
    assert_eq!(list["items"].as_array().unwrap().len(), 6 + 1);
    drop(unread);
}

#[test]
fn answers_have_the_hubs_time_but_for_renewals() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge"));
    let lease = format!("{LEASES}/edge");
    node.post(NODES, &json!({"metadata": {"name": "edge"}})).expect(201);
    node.post(LEASES, &json!({"metadata": {"name": "edge"}, "spec": {"holderIdentity": "edge"}})).expect(201);
    let has = |reply: &Reply, expect: bool| {
        let found = reply.header("date");
        assert_eq!(found.len(), usize::from(expect), "{}", reply.head());
        assert!(found.iter().all(|date| date.ends_with(" GMT") && date.len() == 29), "{found:?}");
    };
    has(&admin.get("/version"), true);
    has(&hub.anonymous().get("/version"), true);
    has(&hub.anonymous().get(MAPS), true);
    has(&admin.get("/none"), true);
    has(&node.get(&format!("{NODES}/edge")), true);
    has(&admin.post(MAPS, &json!({"metadata": {"name": "m"}})), true);
    // bytes that are not a request yet
    let mut odd = hub.admin();
    odd.write_raw(b"GET /version\r\n\r\n").unwrap();
    let refused = odd.read_to_end();
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("\r\ndate: "), "{refused}");
    // on metered links every byte counts
    let media = ("content-type", "application/merge-patch+json");
    let minimal = ("prefer", "return=minimal");
    let renewal = br#"{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}"#;
    for (headers, body) in [
        (&[media, minimal][..], &renewal[..]),
        (&[("content-type", "text/vnd.kedge.renewal")], b"2026-01-01T00:00:00.000000Z"),
        // in the general way
        (&[media, minimal, ("x-other", "1")], renewal),
    ] {
        let renewed = node.send("PATCH", &lease, headers, body);
        assert_eq!(renewed.code, 204);
        has(&renewed, false);
    }
    let status = br#"{"status":{"phase":"Running"}}"#;
    let reported = node.send("PATCH", &format!("{NODES}/edge/status"), &[media, minimal], status);
    assert_eq!(reported.code, 204);
    has(&reported, false);
    // a refused node learns whether its clock is the reason
    let refused = node.send(
        "PATCH",
        &format!("{NODES}/edge"),
        &[media, minimal],
        br#"{"spec":{"unschedulable":true}}"#,
    );
    assert_eq!(refused.code, 403);
    has(&refused, true);
}
