//! Tests: the allocations of a request on a kept-alive TLS connection, without its client's; the memory of
//! the table of latest changes, which answers to renewals use; and the memory of a node's idle connection.
//!
//! Always holds: the real code serves a connection of real TLS; the allocator counts all threads, so each
//! test runs alone in a process of its own.

use crate::server::caller::Caller;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use kedge_hub_core::identity::Identity;
use kedge_hub_core::kinds::{LEASE, NODE, POD};
use kedge_hub_core::object::Object;
use kedge_hub_core::state::Desired;
use rustls::ClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use stats_alloc::INSTRUMENTED_SYSTEM;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::watch as signal;
use tokio_rustls::TlsAcceptor;

use super::accept::accept;
use super::connection::serve_requests;
use super::link::Link;
use super::shared::Server;
use crate::Hub;
use crate::capacity::{Capacity, Machine};
use crate::credential_table;
use crate::pki::{self, Pki};

/// Set in the process that runs one test alone.
const ALONE: &str = "KEDGE_TEST_ALLOCATIONS";
const PIPE_BYTES: usize = 4096;
/// Requests before counting starts, and counted ones; together fewer than a caller may make at once.
const BEFORE: usize = 100;
const COUNTED: usize = 400;
/// Most allocations of a renewal: those of TLS for two or three records, the received bytes, and the renewed
/// Lease.
const MOST: f64 = 12.0;
/// Nodes in the table, the pods of each, and the most bytes of such a node.
const NODES: usize = 500;
const PODS: usize = 4;
const MOST_NODE_BYTES: usize = 512;
/// Nodes that connect before counting starts, and counted ones; and the most bytes of an idle connection that
/// has renewed, with the hub's state about its node: 4 KiB of them are TLS's for its next record.
const CONNECTED: usize = 20;
const COUNTED_NODES: usize = 100;
const MOST_CONNECTION_BYTES: usize = 12 * 1024 + 256;
/// The same for a request that the HTTP library reads and answers.
const MOST_OF_OTHERS: f64 = 40.0;

fn allocations() -> usize {
    let stats = INSTRUMENTED_SYSTEM.stats();
    stats.allocations + stats.reallocations
}

/// The client's end of a connection, which counts its own allocations.
struct Client {
    tls: ClientConnection,
    wire: DuplexStream,
    own: usize,
}

impl Client {
    fn counted<T>(&mut self, act: impl FnOnce(&mut ClientConnection) -> T) -> T {
        let before = allocations();
        let result = act(&mut self.tls);
        self.own += allocations() - before;
        result
    }

    async fn flush(&mut self, space: &mut [u8; 2 * PIPE_BYTES]) {
        let written = self.counted(|tls| {
            let mut room = &mut space[..];
            while tls.wants_write() {
                tls.write_tls(&mut room).unwrap();
            }
            2 * PIPE_BYTES - room.len()
        });
        self.wire.write_all(&space[..written]).await.unwrap();
    }

    async fn receive(&mut self, space: &mut [u8; 2 * PIPE_BYTES]) {
        let read = self.wire.read(space).await.unwrap();
        assert!(read > 0, "the hub closed the connection");
        self.counted(|tls| {
            let mut received = &space[..read];
            while !received.is_empty() {
                tls.read_tls(&mut received).unwrap();
                tls.process_new_packets().unwrap();
            }
        });
    }

    /// Sends one request in parts, as an agent does, and returns the status of its answer, which ends with
    /// `end`.
    async fn request(&mut self, parts: &[String], end: &[u8]) -> [u8; 3] {
        let (mut space, mut head, mut length) = ([0; 2 * PIPE_BYTES], [0; 512], 0);
        for part in parts {
            self.counted(|tls| tls.writer().write_all(part.as_bytes()).unwrap());
            self.flush(&mut space).await;
            tokio::task::yield_now().await;
        }
        while !head[..length].ends_with(end) {
            self.receive(&mut space).await;
            length += self.counted(|tls| tls.reader().read(&mut head[length..]).unwrap_or(0));
        }
        head[9..12].try_into().unwrap()
    }
}

/// Runs the named test alone in a process of its own. `true`: this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = format!("server::allocations::{test}");
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", &name, "--nocapture"]).env(ALONE, "1");
    assert!(alone.status().unwrap().success());
    false
}

/// A hub with its authority, in a directory of its own.
fn open(data_dir: &Path) -> (Arc<Server>, Pki) {
    let hub = Hub::open(data_dir).unwrap();
    let pki = Pki::open(data_dir, &["localhost".to_owned()], OffsetDateTime::now_utc()).unwrap();
    let machine = Machine { memory_bytes: 1 << 30, descriptors: 65_536, processors: 2 };
    (Arc::new(Server::new(hub, Capacity::of(&machine))), pki)
}

/// A node with its Lease.
async fn join(hub: &Hub, name: &str) {
    hub.create(&NODE, json!({"metadata": {"name": name}})).await.unwrap();
    let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": name,
        "leaseDurationSeconds": 40, "renewTime": "2026-11-21T00:00:00.000000Z"}});
    hub.create(&LEASE, lease).await.unwrap();
}

fn bytes() -> isize {
    let stats = INSTRUMENTED_SYSTEM.stats();
    let [allocated, freed] = [stats.bytes_allocated, stats.bytes_deallocated].map(usize::cast_signed);
    allocated - freed
}

/// Bytes of each node in the table: all nodes follow one ConfigMap, and each has pods with an account and two
/// other references.
fn desired_bytes() -> usize {
    let (mut before, mut desired) = (0, Desired::new(1));
    for number in 0..=NODES {
        if number == 1 {
            // not counted: entries that all nodes share, and allocations at the first use
            before = bytes();
        }
        let name = format!("node-{number:05}");
        let source = json!({"configMap": {"namespace": "default", "name": "all"}});
        let node = json!({"metadata": {"name": name}, "spec": {"configSource": source}});
        desired.restore(&NODE, &Object::new(&NODE, &node, 1).unwrap());
        for pod in 0..PODS {
            let volumes = json!([{"name": "v", "secret": {"secretName": format!("key-{pod}")}},
                {"name": "w", "configMap": {"name": "kube-root-ca.crt"}}]);
            let pod = json!({"metadata": {"name": format!("{name}-{pod}"), "namespace": "default"},
                "spec": {"nodeName": name, "serviceAccountName": "default", "volumes": volumes}});
            desired.restore(&POD, &Object::new(&POD, &pod, 1).unwrap());
        }
    }
    usize::try_from(bytes() - before).unwrap() / NODES
}

/// A node's connection to a hub of its own.
struct Stage {
    // removed after the hub is closed
    _data_dir: kedge_rig::Scratch,
    server: Arc<Server>,
    _stop: signal::Sender<bool>,
    client: Client,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.server.hub.close();
    }
}

impl Stage {
    async fn new() -> Stage {
        let data_dir = kedge_rig::Scratch::new("hub-allocations").unwrap();
        let (server, pki) = open(&data_dir);
        join(&server.hub, "n").await;
        let (stop, stopped) = signal::channel(false);
        let node = Identity::new("system:node:n", &["system:nodes"]);
        let caller = Caller::new(&server, Some(node), [127, 0, 0, 1].into());
        let (wire, ours) = tokio::io::duplex(PIPE_BYTES);
        let (acceptor, serving) = (TlsAcceptor::from(pki.server_config().unwrap()), Arc::clone(&server));
        tokio::spawn(async move {
            let stream = acceptor.accept(ours).await.unwrap();
            serve_requests(Link::new(stream), &serving, caller, stopped).await
        });
        let config = pki.client_config(OffsetDateTime::now_utc()).unwrap();
        let tls = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        let mut client = Client { tls, wire, own: 0 };
        let mut space = [0; 2 * PIPE_BYTES];
        while client.tls.is_handshaking() {
            client.flush(&mut space).await;
            if client.tls.is_handshaking() {
                client.receive(&mut space).await;
            }
        }
        Stage { _data_dir: data_dir, server, _stop: stop, client }
    }

    /// The allocations of each of many requests, without the client's.
    async fn count(&mut self, parts: impl Fn(usize) -> Vec<String>, (status, end): (&str, &str)) -> f64 {
        let requests: Vec<Vec<String>> = (0..BEFORE + COUNTED).map(parts).collect();
        let (mut before, mut own) = (0, 0);
        for (number, request) in requests.iter().enumerate() {
            if number == BEFORE {
                (before, own) = (allocations(), self.client.own);
            }
            assert_eq!(self.client.request(request, end.as_bytes()).await, status.as_bytes());
        }
        (allocations() - before - (self.client.own - own)) as f64 / COUNTED as f64
    }
}

/// Head and body.
fn renewal(micros: usize) -> Vec<String> {
    let body = format!("{{\"spec\":{{\"renewTime\":\"2026-11-21T00:00:00.{micros:06}Z\"}}}}");
    let head = format!(
        "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/merge-patch+json\r\nprefer: return=minimal\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    vec![head, body]
}

#[test]
fn renewal_takes_few_allocations() {
    if !is_alone("renewal_takes_few_allocations") {
        return;
    }
    let each = desired_bytes();
    println!("bytes: {each} of a node with {PODS} pods");
    assert!(each <= MOST_NODE_BYTES, "{each} bytes of a node with {PODS} pods, expected {MOST_NODE_BYTES}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let answered = ("204", "\r\n\r\n");
        let at_once = Stage::new().await.count(|number| vec![renewal(number + 1).concat()], answered).await;
        let in_two = Stage::new().await.count(|number| renewal(number + 1), answered).await;
        let get = |_| vec!["GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()];
        let other = Stage::new().await.count(get, ("200", "ok")).await;
        println!("allocations: {at_once:.1} and {in_two:.1} for a renewal, {other:.1} for GET /livez");
        assert!(
            at_once <= MOST && in_two <= MOST,
            "{at_once:.1} and {in_two:.1} for a renewal, expected {MOST}"
        );
        assert!(other <= MOST_OF_OTHERS, "{other:.1} for GET /livez, expected {MOST_OF_OTHERS}");
    });
}

/// Credentials of a node, which the table of credentials knows.
async fn credentials(hub: &Hub, data_dir: &Path, url: &str, name: &str) -> String {
    let now = OffsetDateTime::now_utc();
    let kubeconfig = pki::node_kubeconfig(data_dir, name, Some(url.to_owned()), None, now).unwrap();
    let line =
        kubeconfig.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: ")).unwrap();
    let pem = kedge_hub_core::kinds::schema::base64_decode(line).unwrap();
    let identity = Identity::from_client_certificate(&CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let (node, newest) = credential_table::newest(&identity).unwrap();
    credential_table::note(hub, node, &newest).await.unwrap();
    kubeconfig
}

/// A node connects and renews; its end of the connection.
fn connect(kubeconfig: &str, name: &str) -> TcpStream {
    let mut connection = kedge_rig::client::Identity::read(kubeconfig).unwrap().connect().unwrap();
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}");
    let fields = "content-type: application/merge-patch+json\r\nprefer: return=minimal\r\n";
    let renewal = json!({"spec": {"renewTime": "2026-11-21T00:00:01.000000Z"}}).to_string();
    let answer = connection.request("PATCH", &path, fields, renewal.as_bytes()).unwrap();
    assert_eq!(answer.status, 204);
    connection.into_socket()
}

#[test]
fn idle_connection_keeps_few_bytes() {
    if !is_alone("idle_connection_keeps_few_bytes") {
        return;
    }
    let data_dir = kedge_rig::Scratch::new("hub-idle").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, _) = open(&data_dir);
    let pki = Pki::open(&data_dir, &["127.0.0.1".to_owned()], OffsetDateTime::now_utc()).unwrap();
    let names: Vec<String> =
        (0..CONNECTED + COUNTED_NODES).map(|number| format!("node-{number:05}")).collect();
    let (_stop, stopped) = signal::channel(false);
    let kubeconfigs = runtime.block_on(async {
        for name in &names {
            join(&server.hub, name).await;
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(accept(listener, pki.server_config().unwrap(), Arc::clone(&server), stopped));
        let mut kubeconfigs = Vec::new();
        for name in &names {
            kubeconfigs.push(credentials(&server.hub, &data_dir, &url, name).await);
        }
        kubeconfigs
    });
    let mut sockets = Vec::with_capacity(names.len());
    let mut before = 0;
    for (number, (name, kubeconfig)) in names.iter().zip(&kubeconfigs).enumerate() {
        if number == CONNECTED {
            before = bytes();
        }
        sockets.push(connect(kubeconfig, name));
    }
    let each = usize::try_from(bytes() - before).unwrap() / COUNTED_NODES;
    println!("bytes: {each} of an idle connection");
    assert!(each <= MOST_CONNECTION_BYTES, "{each} bytes, expected {MOST_CONNECTION_BYTES}");
    server.hub.close();
}
