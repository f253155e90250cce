//! Attacks on a real hub, each judged by its effect on others: a victim node's renewals, the hub's memory,
//! its descriptors.
//!
//! Always holds: no test measures time. A victim is served while the attack lasts (it ends only after the
//! victim was served), and the attacker's use of resources is read from the process and its metrics.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod server;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use server::{Client, Hub};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A node with a Lease.
struct Victim {
    client: Client,
    renewals: usize,
}

impl Victim {
    fn new(hub: &Hub, name: &str) -> Victim {
        let mut client = hub.node(name);
        client.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).expect(201);
        let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 40});
        let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec});
        client.post(LEASES, &lease).expect(201);
        Victim { client, renewals: 0 }
    }

    /// Renews on its open connection.
    #[track_caller]
    fn renew(&mut self, name: &str) {
        self.renewals += 1;
        let time = format!("2026-11-22T17:00:00.{:06}Z", self.renewals);
        self.client
            .patch("merge", &format!("{LEASES}/{name}"), &json!({"spec": {"renewTime": time}}))
            .expect(200);
    }

    /// Renews on a new connection.
    #[track_caller]
    fn renew_anew(&mut self, name: &str) {
        self.client = self.client.another();
        self.renew(name);
    }
}

/// A sample of `/metrics`.
fn metric(hub: &Hub, name: &str) -> u64 {
    let text = String::from_utf8(hub.admin().get("/metrics").body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

fn pool(hub: &Hub, name: &str) -> u64 {
    metric(hub, &format!("kedge_hub_pool_used{{pool=\"{name}\"}}"))
}

/// Bytes of the hub's memory that are resident.
fn resident(hub: &Hub) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", hub.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Unfinished handshakes that this machine may have: a quarter of all. Another network may have 64.
const LOCAL_HANDSHAKES: u64 = 512;

fn descriptors(hub: &Hub) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", hub.pid())).unwrap().count()
}

/// Begins a request of this length, and sends the beginning of its body.
fn begin_with(client: &mut Client, path: &str, length: usize, body: &str) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    client.write_raw(head.as_bytes()).unwrap();
    client.write_raw(body.as_bytes()).unwrap();
}

#[test]
fn silent_connections_do_not_keep_a_node_out() {
    kedge_platform::linux::raise_descriptor_limit().unwrap();
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    let address = hub.url.strip_prefix("https://").unwrap();
    let silent: Vec<TcpStream> = (0..3000).map_while(|_| TcpStream::connect(address).ok()).collect();
    assert!(silent.len() > 500, "{}", silent.len());
    victim.renew_anew("victim");
    assert!(metric(&hub, "kedge_hub_unfinished_handshakes") <= LOCAL_HANDSHAKES);
    assert!(metric(&hub, "kedge_hub_dropped_handshakes_total") + LOCAL_HANDSHAKES <= silent.len() as u64);
    assert!(descriptors(&hub) < LOCAL_HANDSHAKES as usize + 100, "{}", descriptors(&hub));
    drop(silent);
}

#[test]
fn connections_that_begin_and_stall_do_not_keep_a_node_out() {
    kedge_platform::linux::raise_descriptor_limit().unwrap();
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    let address = hub.url.strip_prefix("https://").unwrap();
    let mut stalled: Vec<TcpStream> = (0..1500).map_while(|_| TcpStream::connect(address).ok()).collect();
    for socket in &mut stalled {
        // the first bytes of a ClientHello
        let _ = socket.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00]);
    }
    victim.renew_anew("victim");
    assert!(descriptors(&hub) < LOCAL_HANDSHAKES as usize + 100, "{}", descriptors(&hub));
}

/// Key exchanges that one network may begin at once.
const EXCHANGES: usize = 512;

/// A complete hello of TLS 1.2 with a suite that no server has: it is charged like any other, and costs the
/// hub so little that even a slow machine begins more of them than allowed.
fn cheap_hello() -> Vec<u8> {
    let algorithms = [0x00, 0x0d, 0x00, 0x04, 0x00, 0x02, 0x04, 0x03];
    // one suite, no compression
    let suites = [0x00, 0x02, 0xfe, 0xfe, 0x01, 0x00, 0x00, algorithms.len() as u8];
    let body = [&[0x03, 0x03][..], &[7; 32], &[0], &suites, &algorithms].concat();
    let length = body.len() as u8;
    [&[0x16, 0x03, 0x01, 0x00, length + 4, 0x01, 0x00, 0x00, length][..], &body].concat()
}

/// Each may cost the processor a key exchange.
#[test]
fn network_that_begins_too_many_handshakes_waits() {
    const THREADS: usize = 4;
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    let stranger = hub.anonymous();
    let paced = || metric(&hub, "kedge_hub_paced_handshakes_total");
    let mut begun = 0;
    while paced() == 0 {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..2 * EXCHANGES / THREADS {
                        let mut socket = stranger.from(9).dial();
                        let _ = socket.write_all(&cheap_hello());
                        // one after the other: each takes a place until it is answered
                        let _ = socket.read(&mut [0; 16]);
                    }
                });
            }
        });
        begun += 2 * EXCHANGES;
    }
    let log = hub.log();
    assert!(log.contains("the network of 127.0.1.9 begins too many TLS handshakes"), "{log}");
    victim.renew_anew("victim");
    assert_eq!(stranger.from(10).get("/livez").code, 200, "another network, after {begun}");
}

/// One of two hosts behind one router sends a byte on each of many connections, or none.
#[test]
fn connections_without_a_hello_cost_a_neighbour_nothing() {
    let hub = Hub::new();
    let neighbour = hub.anonymous().from(9);
    for count in 0..4 * EXCHANGES {
        let mut socket = neighbour.dial();
        if count % 2 == 0 {
            let _ = socket.write_all(&[0x16]);
        }
        // until the hub has noticed its end: more at a time would only make room for each other
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read(&mut [0; 16]);
    }
    while metric(&hub, "kedge_hub_unfinished_handshakes") > 0 {}
    assert_eq!(neighbour.another().get("/livez").code, 200);
    assert_eq!(metric(&hub, "kedge_hub_paced_handshakes_total"), 0);
}

#[test]
fn slow_bodies_hold_no_place_of_others() {
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    // identities without any right except to ask who they are
    let attackers: Vec<Client> = (0..4).map(|number| hub.node(&format!("attacker-{number}"))).collect();
    let mut open: Vec<Client> = Vec::new();
    for number in 0..160 {
        let mut client = attackers[number % 4].another();
        begin_with(&mut client, REVIEWS, if number % 2 == 0 { 100 } else { 3_000_000 }, "{");
        open.push(client);
    }
    // four of eight each are refused at once, because the attacker's own bodies take its places
    victim.renew_anew("victim");
    victim.renew("victim");
    assert_eq!(pool(&hub, "requests"), 1, "the request that asks");
    assert!(pool(&hub, "body_bytes") < 1_000_000);
    assert!(pool(&hub, "connections") > 100, "the attack stands");
    drop(open);
}

#[test]
fn large_bodies_do_not_hold_up_renewals() {
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    let attackers: Vec<Client> = (0..8).map(|number| hub.node(&format!("attacker-{number}"))).collect();
    // as many values as a body may have
    let body = format!("{{\"spec\":{{\"x\":[{}0]}}}}", "\"value\",".repeat(200_000));
    let (rest, last) = body.split_at(body.len() - 1);
    let mut open: Vec<Client> = attackers
        .into_iter()
        .map(|mut client| {
            begin_with(&mut client, REVIEWS, body.len(), rest);
            client
        })
        .collect();
    while pool(&hub, "body_bytes") < 8 * rest.len() as u64 {
        std::thread::yield_now();
    }
    // all are complete at once
    for client in &mut open {
        client.write_raw(last.as_bytes()).unwrap();
    }
    let answered = AtomicUsize::new(0);
    let mut renewals = 0;
    std::thread::scope(|scope| {
        for mut client in open {
            let answered = &answered;
            scope.spawn(move || {
                assert_ne!(client.read_reply().unwrap().code, 500);
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        // if threads read several bodies at a time, they would answer no renewal before some are read
        while answered.load(Ordering::SeqCst) < 2 {
            victim.renew("victim");
            renewals += 1;
        }
    });
    assert!(
        renewals >= 16,
        "{renewals} renewals before two of eight bodies of {} bytes were judged",
        body.len()
    );
}

/// Small bodies, so that they are handled on the threads of renewals.
#[test]
fn costly_patches_of_one_node_take_turns() {
    const TOGETHER: usize = 12;
    // a node's limit of requests
    const ENOUGH: usize = 800;
    let hub = Hub::new();
    let (mut victim, attacker) = (Victim::new(&hub, "victim"), Victim::new(&hub, "attacker"));
    // each copy doubles the content, up to the memory limit of a body
    let mut patch =
        vec![json!({"op": "add", "path": "/metadata/annotations", "value": {"a": vec![0; 2000]}})];
    let copies = (0..7).map(|number| {
        json!({"op": "copy", "from": "/metadata/annotations", "path": format!("/metadata/annotations/c{number}")})
    });
    patch.extend(copies);
    let patch = json!(patch).to_string();
    assert!(patch.len() < 8 * 1024);
    let mut open: Vec<Client> = (0..TOGETHER).map(|_| attacker.client.another()).collect();
    open.iter_mut().for_each(|client| drop(client.get("/version").expect(200)));
    let head = format!(
        "PATCH /api/v1/nodes/attacker HTTP/1.1\r\nhost: x\r\ncontent-type: application/json-patch+json\r\ncontent-length: {}\r\n\r\n",
        patch.len()
    );
    open.iter_mut().for_each(|client| client.write_raw(format!("{head}{patch}").as_bytes()).unwrap());
    let answered = AtomicUsize::new(0);
    let mut renewals = 0;
    std::thread::scope(|scope| {
        for mut client in open {
            let answered = &answered;
            scope.spawn(move || {
                let code = client.read_reply().unwrap().code;
                answered.fetch_add(1, Ordering::SeqCst);
                // 429: the others have used up its rate
                assert!(matches!(code, 413 | 422 | 429), "{code}");
            });
        }
        // a thread is free for others while they are being handled
        while answered.load(Ordering::SeqCst) < TOGETHER && renewals < ENOUGH {
            victim.renew("victim");
            renewals += 1;
        }
    });
    // there would be a tenth of them if the patches had all threads
    assert!(renewals >= 250, "{renewals} renewals while {TOGETHER} patches were refused");
}

#[test]
fn watch_that_is_not_read_keeps_little() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let put = |admin: &mut Client, count: usize| {
        let data = json!({"data": {"k": format!("{count:08}").repeat(120_000)}}).to_string();
        let minimal = [("content-type", "application/merge-patch+json"), ("prefer", "return=minimal")];
        assert_eq!(admin.send("PATCH", &format!("{MAPS}/a"), &minimal, data.as_bytes()).code, 204);
    };
    let first = admin.post(MAPS, &json!({"metadata": {"name": "a"}})).expect(201);
    // fills the hub's memory of changes for watchers, 16 MiB
    (0..20).for_each(|count| put(&mut admin, count));
    let before = resident(&hub);
    let first = first["metadata"]["resourceVersion"].as_str().unwrap();
    let unread: Vec<_> = (0..4).map(|_| admin.watch(&format!("{MAPS}?watch=true"))).collect();
    (20..50).for_each(|count| put(&mut admin, count));
    // one change each, and the bytes in sockets
    assert!(pool(&hub, "watch_backlog_bytes") <= 4 * 2_000_000);
    let grown = resident(&hub).saturating_sub(before);
    assert!(grown < 16_000_000, "{grown} bytes for four watches and 29 MB of changes");
    drop(unread);
    let mut reading = admin.watch(&format!("{MAPS}?watch=true"));
    assert_eq!(reading.event(), "ADDED a");
    // the hub no longer has the first of these versions
    let mut late = admin.watch(&format!("{MAPS}?watch=true&resourceVersion={first}"));
    assert_eq!(late.next().unwrap()["object"]["code"], 410);
    assert!(late.next().is_none());
}

/// Ends the threads of a test even if it fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests for the hub's health are answered while others flood it: the probe of a supervisor, a load
/// balancer.
#[test]
fn anonymous_flood_hides_no_probe() {
    const ATTACKERS: u8 = 2;
    const CONNECTIONS: usize = 4;
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    let anonymous = hub.anonymous();
    let (served, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let probed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 1..=ATTACKERS {
            for _ in 0..CONNECTIONS {
                let mut client = anonymous.from(number);
                let (served, refused, probed) = (&served, &refused, &probed);
                scope.spawn(move || {
                    while !probed.load(Ordering::Relaxed) {
                        match client.get("/livez?verbose").code {
                            200 => served.fetch_add(1, Ordering::Relaxed),
                            429 => refused.fetch_add(1, Ordering::Relaxed),
                            other => panic!("{other}"),
                        };
                    }
                });
            }
        }
        let _end = SetWhenDropped(&probed);
        let mut turn = 0;
        // until each has used up its burst, and a while longer
        while refused.load(Ordering::Relaxed) < CONNECTIONS * usize::from(ATTACKERS) {
            for path in ["/livez", "/readyz", "/healthz"] {
                // each begins a handshake, and one address may not begin that many
                let reply = anonymous.from(100 + (turn % 100) as u8).get(path);
                assert_eq!((reply.code, &*reply.body), (200, &b"ok"[..]), "{path}");
            }
            victim.renew("victim");
            turn += 1;
        }
    });
    assert!(served.into_inner() >= 1000 * usize::from(ATTACKERS));
}

#[test]
fn connections_of_one_node_are_its_own_limit() {
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    let attacker = hub.node("attacker");
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..80 {
        let mut client = attacker.another();
        match client.try_send("GET", "/version", &[], b"").map(|reply| reply.code) {
            Ok(200) => open.push(client),
            Ok(429) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((open.len(), refused), (64, 16));
    victim.renew_anew("victim");
    // a refused connection does not stay open
    assert_eq!(pool(&hub, "connections"), 64 + 2);
}

#[test]
fn ambiguous_requests_are_refused() {
    let hub = Hub::new();
    for request in [
        "GET /version HTTP/1.1\nhost: h\n\n",
        "GET /version HTTP/1.1\r\nhost: h\r\nx: y\nhost: z\r\n\r\n",
        "GET /version HTTP/1.1\r\n\r\n",
        "GET /version HTTP/1.1\r\nhost: h\r\nHost: h\r\n\r\n",
        "POST /version HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let mut client = hub.admin();
        client.write_raw(request.as_bytes()).unwrap();
        let answer = client.read_to_end();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{request:?}: {answer}");
        assert!(answer.contains("\"kind\":\"Status\""), "{answer}");
    }
    // a proxy might see another end of these than the hub: the rest must not count as a second request
    for fields in [
        "content-length: 5\r\ncontent-length: 0\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding : chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "x: y\r\n transfer-encoding: chunked\r\n",
        "content-length: 0x5\r\n",
    ] {
        let mut client = hub.admin();
        let second = "GET /livez HTTP/1.1\r\nhost: h\r\n\r\n";
        client
            .write_raw(
                format!("POST /version HTTP/1.1\r\nhost: h\r\n{fields}\r\n0\r\n\r\n{second}").as_bytes(),
            )
            .unwrap();
        let answer = client.read_to_end();
        assert!(answer.starts_with("HTTP/1.1 4"), "{fields:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{fields:?}: {answer}");
    }
}

/// The most memory that the hub ever had.
fn peak(hub: &Hub) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", hub.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn costly_bodies_are_refused_and_nodes_go_on() {
    const JSON: (&str, &str) = ("content-type", "application/json");
    const PATCH: (&str, &str) = ("content-type", "application/json-patch+json");
    const PROTOBUF: (&str, &str) = ("content-type", "application/vnd.kubernetes.protobuf");
    let hub = Hub::new();
    let mut victim = Victim::new(&hub, "victim");
    // an identity has a budget of bytes, so each attack has an identity of its own
    let attackers: Vec<Client> =
        (0..8).map(|number| Victim::new(&hub, &format!("attacker-{number}")).client).collect();
    let mut attackers = attackers.into_iter();
    let before = peak(&hub);
    let repeated = |piece: &str, bytes: usize| piece.repeat(bytes / piece.len());
    let large = 3_000_000;
    let mut attack = |method: &str, path: &str, kind: (&str, &str), body: &[u8], code: u16, why: &str| {
        let reply = attackers.next().unwrap().send(method, path, &[kind], body);
        let (length, message) = (reply.body.len(), reply.expect(code)["message"].to_string());
        assert!(message.contains(why), "{message:.300}, expected {why}");
        assert!(length < 64 * 1024, "an answer of {length} bytes");
        victim.renew("victim");
    };
    // nine copies, each into the deepest place of the last, of 52 kB in all
    let mut deepest = "/metadata/annotations".to_owned();
    let copies: Vec<_> = (0..9)
        .map(|_| {
            deepest.push_str(&"/a".repeat(100));
            json!({"op": "copy", "from": "", "path": deepest})
        })
        .collect();
    let nested = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
    let mut patch = vec![json!({"op": "add", "path": "/metadata/annotations", "value": nested})];
    patch.extend(copies);
    let patch = json!(patch).to_string();
    let own = "/api/v1/nodes/attacker-0/status";
    attack("PATCH", own, PATCH, patch.as_bytes(), 422, "nested more than 127 levels deep");
    // a key of half the body above as many elements as fit into the rest
    let long = format!("{{\"{}\":[{}0]}}", repeated("k", large / 2), repeated("0,", large / 2));
    attack("POST", REVIEWS, JSON, long.as_bytes(), 400, "a key has more than 65536 bytes");
    for tiny in ["{\"\":0},", "[0],", "\"\","] {
        let body = format!("{{\"x\":[{}0]}}", repeated(tiny, large));
        attack("POST", REVIEWS, JSON, body.as_bytes(), 413, "more than 16777216 bytes of memory");
    }
    let labels: Vec<String> = (0..60_000).map(|number| format!("\"-{number}\":\"\"")).collect();
    let labels = format!("{{\"metadata\":{{\"name\":\"attacker-5\",\"labels\":{{{}}}}}}}", labels.join(","));
    attack("PUT", "/api/v1/nodes/attacker-5", JSON, labels.as_bytes(), 422, "and 59968 more");
    // SelfSubjectReview with a status whose field 99 is unknown
    let unknown = b"k8s\0\n2\n\x18authentication.k8s.io/v1\x12\x11SelfSubjectReview";
    let mut unknown = unknown.to_vec();
    unknown[5] = u8::try_from(unknown.len() - 6).unwrap();
    unknown[7] = 24;
    unknown.extend_from_slice(b"\x12\x05\x12\x03\x98\x06\x01");
    attack("POST", REVIEWS, PROTOBUF, &unknown, 400, "field 99 of authentication/v1/SelfSubjectReviewStatus");
    // inserts at the head of a long list
    let mut inserts = vec![json!({"op": "add", "path": "/metadata/annotations", "value": vec![0; 100_000]})];
    inserts.extend(vec![json!({"op": "add", "path": "/metadata/annotations/0", "value": 0}); 20]);
    let inserts = json!(inserts).to_string();
    let own = "/api/v1/nodes/attacker-7/status";
    attack("PATCH", own, PATCH, inserts.as_bytes(), 422, "the patch moves too many list items");
    let taken = peak(&hub) - before;
    assert!(taken < 128 << 20, "the hub took {taken} bytes more at its peak");
}
