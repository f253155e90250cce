//! Bytes that clients do not read, in every form in which they get bytes: the hub's memory grows only by the
//! amount in its pools.
//!
//! The clients use links on which few bytes are in flight, and read only the head of the answer. Always
//! holds: no test measures time; the memory of a form is read from the process and from `/metrics` while its
//! readers are connected, and a node renews meanwhile.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod server;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use kedge_rig::small_machine;
use serde_json::{Value, json};
use server::{Client, Hub, scratch};

const MIB: u64 = 1024 * 1024;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const TABLE: &str = "accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n";
/// Bytes that are reckoned for a connection (`capacity`).
const CONNECTION_BYTES: u64 = 24 * 1024;
/// Freed memory that the allocator keeps, and requests in progress: bodies of 1 MiB, and trees of them.
const SLACK: u64 = 28 * MIB;
/// Nodes with a pod that refers to the ConfigMap `big`.
const FLEET: usize = 7;
/// Bytes of the ConfigMap `big`.
const BIG: usize = 900_000;
/// So many versions of that, each with the one before, are more than the hub remembers.
const REMEMBERED: usize = 12;
/// Number of readings of the process while readers are connected, and the pause between.
const LOOKS: usize = 4;
const PAUSE: Duration = Duration::from_millis(40);
/// Most checks until a pool must be empty again.
const LIMIT: usize = 1500;

struct Stage {
    hub: Hub,
    admin: Client,
    nodes: Vec<Client>,
    witness: Client,
    renewals: usize,
    /// Resident bytes without readers.
    before: u64,
    versions: usize,
}

fn name(number: usize) -> String {
    format!("n{number}")
}

fn start(program: &Path, data: &Path) -> Hub {
    let mut command = Command::new(program);
    let log = fs::File::options().append(true).create(true).open(data.with_extension("log")).unwrap();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).stderr(Stdio::from(log));
    Hub::spawn(command, data)
}

/// Makes nodes with a Lease each; each except the witness has a pod that refers to a large ConfigMap.
fn furnish(hub: &Hub) -> Vec<String> {
    let mut admin = hub.admin();
    admin.post(MAPS, &json!({"metadata": {"name": "big"}, "data": {"k": "x".repeat(BIG)}})).expect(201);
    for number in 0..4 {
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "y".repeat(300_000)}});
        admin.post(MAPS, &map).expect(201);
    }
    let furnish = |number: usize| {
        let name = name(number);
        let outcome = hub.command(&["node-kubeconfig", &name]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let mut node = Client::new(&outcome.out, &hub.url);
        node.post(NODES, &json!({"metadata": {"name": name}})).expect(201);
        let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 3600});
        node.post(LEASES, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
        outcome.out
    };
    let kubeconfigs = (0..=FLEET).map(furnish).collect();
    for number in 0..FLEET {
        let spec = json!({"nodeName": name(number), "containers": [{"name": "a", "image": "i"}],
            "volumes": [{"name": "v", "configMap": {"name": "big"}}]});
        admin.post(PODS, &json!({"metadata": {"name": format!("p{number}")}, "spec": spec})).expect(201);
    }
    kubeconfigs
}

impl Stage {
    fn new(hub: Hub, kubeconfigs: &[String]) -> Stage {
        let mut clients: Vec<Client> = kubeconfigs.iter().map(|text| Client::new(text, &hub.url)).collect();
        let witness = clients.pop().unwrap();
        let mut stage =
            Stage { admin: hub.admin(), hub, nodes: clients, witness, renewals: 0, before: 0, versions: 0 };
        // memory that a hub takes at the first request of a kind, and the versions that it remembers for
        // watches
        stage.renew();
        (0..REMEMBERED).for_each(|_| drop(stage.put()));
        stage.admin.get("/openapi/v3/api/v1").expect(200);
        stage.before = stage.status("VmRSS");
        stage
    }

    /// A figure of the process in bytes, from the kernel.
    fn status(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.hub.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The bytes that callers hold: bodies and answers, changes that wait for readers, connections.
    fn pools(&mut self) -> [u64; 3] {
        let text = String::from_utf8(self.admin.get("/metrics").body).unwrap();
        ["body_bytes", "watch_backlog_bytes", "connections"].map(|pool| {
            let name = format!("kedge_hub_pool_used{{pool=\"{pool}\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        })
    }

    #[track_caller]
    fn renew(&mut self) {
        self.renewals += 1;
        let time = format!("2026-11-22T17:00:00.{:06}Z", self.renewals);
        let path = format!("{LEASES}/{}", name(FLEET));
        self.witness.patch("merge", &path, &json!({"spec": {"renewTime": time}})).expect(200);
    }

    /// Writes another version of `big`.
    fn put(&mut self) -> String {
        self.versions += 1;
        let data = json!({"data": {"k": format!("{:09}", self.versions).repeat(BIG / 9)}}).to_string();
        let minimal = [("content-type", "application/merge-patch+json"), ("prefer", "return=minimal")];
        let reply = self.admin.send("PATCH", &format!("{MAPS}/big"), &minimal, data.as_bytes());
        assert_eq!(reply.code, 204);
        let mut list =
            self.admin.get(&format!("{MAPS}?limit=1&fieldSelector=metadata.name%3Dnone")).expect(200);
        list["metadata"]["resourceVersion"].take().as_str().unwrap().to_owned()
    }

    /// Checks the hub's memory while these readers are connected; then they leave.
    #[track_caller]
    fn check(&mut self, form: &str, readers: Vec<Option<TcpStream>>) {
        let served = readers.iter().flatten().count();
        assert!(served > 0, "{form}: no reader was served");
        let mut most = (i64::MIN, String::new());
        for _ in 0..LOOKS {
            self.renew();
            thread::sleep(PAUSE);
            let [bodies, backlog, connections] = self.pools();
            let grown = self.status("VmRSS").saturating_sub(self.before);
            let held = bodies + backlog + connections * CONNECTION_BYTES;
            let beyond = grown.cast_signed() - held.cast_signed();
            if beyond > most.0 {
                let text = format!(
                    "{form}: {served} of {} readers: grown by {grown}, bodies {bodies}, backlog {backlog}, {connections} connections",
                    readers.len()
                );
                most = (beyond, text);
            }
        }
        println!("{}", most.1);
        assert!(most.0 <= SLACK.cast_signed(), "{}", most.1);
        drop(readers);
        for _ in 0..LIMIT {
            if self.pools()[..2].iter().all(|used| *used < 100_000) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{form}: the bytes of readers that left are held: {:?}", self.pools());
    }
}

/// A reader of only the answer's head; `None` if it is refused because of the bytes that its caller holds
/// already.
fn unread(client: &Client, path: &str, headers: &str) -> Option<TcpStream> {
    let mut client = client.narrow();
    client.write_raw(format!("GET {path} HTTP/1.1\r\nhost: h\r\n{headers}\r\n").as_bytes()).unwrap();
    let head = client.read_until("\r\n\r\n");
    match &head[9..12] {
        "200" | "101" => Some(client.into_socket()),
        "429" | "503" => None,
        _ => panic!("{path}: {head}"),
    }
}

fn watch_of_big(from: &str) -> String {
    format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dbig&resourceVersion={from}")
}

/// A fleet after a restart of its hub: each node watches its ConfigMap, over a slow link. None is refused,
/// and a client that reads on gets all of it.
fn honest_fleet(stage: &mut Stage, count: usize) {
    let path = watch_of_big("");
    let mut slow = stage.nodes[0].narrow();
    slow.write_raw(format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).unwrap();
    slow.read_until("\"object\":");
    let readers: Vec<_> =
        stage.nodes.iter().cycle().take(count).map(|node| unread(node, &path, "")).collect();
    assert!(readers.iter().all(Option::is_some), "nobody is refused");
    stage.check("watches of a fleet begin", readers);
    let text = slow.read_until("}\n\r\n");
    assert!(text.len() > BIG, "{}", text.len());
}

/// Each version of the ConfigMap is read by only one watch, one list and one get.
fn old_versions(stage: &mut Stage) {
    let mut readers = Vec::new();
    for turn in 0..14 {
        let node = stage.nodes[turn % FLEET].another();
        let now = stage.put();
        readers.push(unread(&node, &watch_of_big(&now), ""));
        readers.push(unread(&node, &watch_of_big(""), ""));
        readers.push(unread(&node, &format!("{MAPS}/big"), ""));
        readers.push(unread(&stage.admin, &format!("{MAPS}?fieldSelector=metadata.name%3Dbig"), ""));
    }
    stage.put();
    stage.check("watches, gets and lists of old versions", readers);
}

/// A node and an administrator who request texts that are made only for them.
fn own_texts(stage: &mut Stage) {
    let object = "includeObject=Object";
    let whole = format!("{MAPS}/big?{object}");
    for (form, path, headers, count) in [
        ("lists", MAPS.to_owned(), "", 32),
        ("tables of one object", whole.clone(), TABLE, 32),
        ("tables", format!("{MAPS}?{object}"), TABLE, 12),
        ("watches of tables", format!("{MAPS}?watch=true&{object}"), TABLE, 32),
        ("answers in lines", format!("{MAPS}/big?pretty=true"), "", 32),
        ("compressed lists", MAPS.to_owned(), "accept-encoding: gzip\r\n", 8),
        ("metrics", "/metrics".to_owned(), "", 8),
        ("openapi", "/openapi/v3/api/v1".to_owned(), "", 8),
        ("openapi of version 2", "/openapi/v2".to_owned(), "", 8),
    ] {
        let readers = (0..count).map(|_| unread(&stage.admin, &path, headers)).collect();
        stage.check(form, readers);
    }
}

/// The path of the call that a node's own watch announces.
fn called(node: &Client, name: &str) -> String {
    let own = format!("{NODES}?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3D{name}");
    let mut watch = node.another().watch(&own);
    loop {
        let event = watch.next().expect("the watch has not ended");
        if let Some(id) = event["object"]["metadata"]["annotations"]["kedge.dev/calls"].as_str() {
            return format!("/apis/kedge.dev/v1/nodes/{name}/calls/{id}");
        }
    }
}

/// Makes each node answer its next call with these bytes, as far as they are taken.
fn nodes_answer(stage: &Stage, count: usize, body: &[u8]) -> Vec<thread::JoinHandle<Client>> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = [head.as_bytes(), body].concat();
    let answering = |number: usize| {
        let (node, answer) = (stage.nodes[number].another(), answer.clone());
        thread::spawn(move || {
            let path = called(&node, &name(number));
            let mut session = node.another();
            let upgrade = [("connection", "Upgrade"), ("upgrade", "kedge-session")];
            assert_eq!(session.send("POST", &path, &upgrade, b"").code, 101);
            // the client may leave before everything is taken
            let _ = session.write_raw(&answer);
            session
        })
    };
    (0..count).map(answering).collect()
}

/// Logs, of which nodes send megabytes, and figures that would be large trees.
fn answers_of_nodes(stage: &mut Stage) {
    let answering = nodes_answer(stage, FLEET, &vec![b'x'; 2_000_000]);
    while stage.watches() < FLEET {
        thread::sleep(PAUSE);
    }
    let log = |number: usize| unread(&stage.admin, &format!("{PODS}/p{number}/log"), "");
    let readers = (0..FLEET).map(log).collect();
    stage.check("logs", readers);
    answering.into_iter().for_each(|answering| drop(answering.join().unwrap()));

    let odd = format!("{{\"x\":[{}0]}}", "{\"\":0},".repeat(72_000));
    assert!(odd.len() < 512 * 1024);
    fs::write(format!("/proc/{}/clear_refs", stage.hub.pid()), "5").unwrap();
    let before = stage.status("VmHWM");
    let answering = nodes_answer(stage, FLEET, odd.as_bytes());
    while stage.watches() < FLEET {
        thread::sleep(PAUSE);
    }
    let reply = stage.admin.another().get("/apis/metrics.k8s.io/v1beta1/nodes");
    let warnings = reply.header("warning").join("");
    assert!(warnings.contains("no usage of the node"), "{warnings}");
    answering.into_iter().for_each(|answering| drop(answering.join().unwrap()));
    let grown = stage.status("VmHWM").saturating_sub(before);
    println!("top: grown by {grown} for a moment");
    assert!(grown <= SLACK, "figures of nodes: {grown} bytes");
}

impl Stage {
    fn watches(&mut self) -> usize {
        let text = String::from_utf8(self.admin.get("/metrics").body).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("kedge_hub_pool_used{pool=\"watches\"} "));
        line.unwrap().parse().unwrap()
    }
}

#[test]
fn unread_bytes_are_what_the_pools_say() {
    let scratch = scratch();
    let data = scratch.path().join("data");
    let kubeconfigs = {
        let mut hub = start(Path::new(env!("CARGO_BIN_EXE_kedge-hub")), &data);
        let kubeconfigs = furnish(&hub);
        hub.stop("TERM");
        kubeconfigs
    };
    for mib in [64, 128, 256] {
        let place = scratch.path().join(mib.to_string());
        fs::create_dir(&place).unwrap();
        let program =
            small_machine::program(&place, Path::new(env!("CARGO_BIN_EXE_kedge-hub")), mib * MIB).unwrap();
        let mut stage = Stage::new(start(&program, &data), &kubeconfigs);
        println!("{mib} MiB, {} resident", stage.before);
        honest_fleet(&mut stage, if mib == 64 { 200 } else { 60 });
        old_versions(&mut stage);
        own_texts(&mut stage);
        answers_of_nodes(&mut stage);
        let _: Value = stage.admin.get(&format!("{MAPS}/big")).expect(200);
        stage.hub.stop("TERM");
    }
}
