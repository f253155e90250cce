//! `/portForward`: connections to ports of a pod, for a client that uses SPDY, alone or inside a WebSocket.
//!
//! Always holds: a port is one of the pod's own network, at its loopback address, as with the kubelet; the
//! session ends with the pod. Leaves to others: streams (`sessions`), sockets in the pod's network
//! (`kedge_platform::workloads`).

use crate::kubelet_api::node::Node;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use kedge_platform::workloads::{Settings, has_pod, pod_socket, running_pods};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::{Exchange, Request};
use crate::sessions::port_forward::{Reach, forward};
use crate::sessions::{tunnel, websocket};
use crate::workloads::{NAME, NAMESPACE};

/// The protocol over SPDY.
const PROTOCOL: &str = "portforward.k8s.io";
/// The same in a WebSocket.
const TUNNELLED: &str = "SPDY/3.1+portforward.k8s.io";
/// How long a program may take to accept: one that does not has a full backlog.
const CONNECT: Duration = Duration::from_secs(30);
/// How long bytes that a client sent before it left may still be passed on.
const LINGER: Duration = Duration::from_secs(10);
/// How often to check that the pod still exists.
const LOOK: Duration = Duration::from_secs(2);

/// The protocol that the client and this node use after the 101.
enum Upgrade {
    Spdy,
    WebSocket { accept: String },
}

/// # Errors
/// The protocols that are served.
fn upgrade(request: &Request) -> Result<Upgrade, String> {
    let asked = request.header("upgrade").unwrap_or("no upgrade");
    let offers = |header: &str, protocol: &str| {
        let all = request.headers.iter().filter(|(name, _)| name == header);
        let mut offered = all.flat_map(|(_, value)| value.split(',')).map(str::trim).peekable();
        // clients before 1.1 send no protocol
        (offered.peek().is_none() && header.starts_with('x')) || offered.any(|offered| offered == protocol)
    };
    let refused = |what: &str| {
        Err(format!(
            "unable to upgrade: the request asks for {asked}{what}, and this node serves SPDY/3.1 with {PROTOCOL}, and WebSocket with {TUNNELLED}"
        ))
    };
    if asked.eq_ignore_ascii_case("spdy/3.1") {
        let is_offered = offers("x-stream-protocol-version", PROTOCOL);
        return if is_offered { Ok(Upgrade::Spdy) } else { refused(" with another protocol") };
    }
    let key = request.header("sec-websocket-key").filter(|key| !key.is_empty());
    match (asked.eq_ignore_ascii_case("websocket"), key) {
        (true, Some(key)) if request.header("sec-websocket-version") == Some("13") => {
            if !offers("sec-websocket-protocol", TUNNELLED) {
                return refused(" with another protocol");
            }
            Ok(Upgrade::WebSocket { accept: websocket::accept(key) })
        }
        (true, _) => refused(" without a key, or not in version 13"),
        (false, _) => refused(""),
    }
}

/// `/portForward/NAMESPACE/POD[/UID]`.
pub(super) async fn serve(
    request: &Request,
    mut exchange: Exchange,
    node: Arc<Node>,
    (namespace, pod, uid): (&str, &str, Option<&str>),
) -> io::Result<()> {
    let upgrade = match upgrade(request) {
        Ok(upgrade) => upgrade,
        Err(why) => return exchange.refuse(400, &why).await,
    };
    let Some(settings) = node.agent.runtime.settings(&node.agent.places) else {
        return exchange.refuse(503, "no containers run on this node").await;
    };
    let Some(uid) = uid_of(&settings, namespace, pod, uid) else {
        let why = format!("pods \"{pod}\" not found in namespace \"{namespace}\" on this node");
        return exchange.refuse(404, &why).await;
    };
    let headers = match &upgrade {
        Upgrade::Spdy => vec![("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", PROTOCOL)],
        Upgrade::WebSocket { accept } => vec![
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Accept", accept.as_str()),
            ("Sec-WebSocket-Protocol", TUNNELLED),
        ],
    };
    let peer = exchange.peer.take();
    let client = exchange.take_over(&headers).await?;
    let shown = format!("{pod}_{namespace}, uid {uid}");
    let reach = Ports::new(settings.into(), uid.into());
    let gone = reach.clone();
    let serving = async {
        match upgrade {
            Upgrade::Spdy => forward(client, &shown, reach).await,
            Upgrade::WebSocket { .. } => {
                let (ours, theirs) = tunnel::pipe();
                let (carried, forwarded) =
                    tokio::join!(tunnel::carry(client, ours), forward(theirs, &shown, reach));
                forwarded.and(carried)
            }
        }
    };
    let left = async {
        match &peer {
            Some(peer) => peer.left_for(LINGER).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = serving => served,
        // while a program that does not read keeps the client's end from being read
        () = left => Ok(()),
        () = gone.gone() => Ok(()),
    }
}

/// The UID of the pod; if several have the name, that of the one with containers.
fn uid_of(settings: &Settings, namespace: &str, name: &str, uid: Option<&str>) -> Option<String> {
    let mut pods = running_pods(settings);
    pods.retain(|pod| {
        let is = |key: &str, value: &str| pod.notes.get(key).is_some_and(|noted| noted == value);
        is(NAMESPACE, namespace) && is(NAME, name) && uid.is_none_or(|uid| pod.uid == uid)
    });
    pods.into_iter().min_by_key(|pod| pod.containers.is_empty()).map(|pod| pod.uid)
}

/// The ports of a pod.
#[derive(Clone)]
pub(super) struct Ports {
    settings: Arc<Settings>,
    uid: Arc<str>,
}

impl Ports {
    pub(super) fn new(settings: Arc<Settings>, uid: Arc<str>) -> Self {
        Self { settings, uid }
    }

    async fn connect(&self, port: u16, address: IpAddr) -> io::Result<TcpStream> {
        let (settings, uid) = (Arc::clone(&self.settings), Arc::clone(&self.uid));
        let socket = spawn_blocking(move || pod_socket(&settings, &uid, address)).await??;
        let connecting = TcpSocket::from_std_stream(socket).connect((address, port).into());
        timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Returns when the pod is gone.
    pub(super) async fn gone(self) {
        loop {
            sleep(LOOK).await;
            let (settings, uid) = (Arc::clone(&self.settings), Arc::clone(&self.uid));
            if !spawn_blocking(move || has_pod(&settings, &uid)).await.unwrap_or(true) {
                return;
            }
        }
    }
}

impl Reach for Ports {
    async fn reach(self, port: u16) -> Result<TcpStream, String> {
        let mut tried = Vec::new();
        for (family, address) in
            [("IPv4", IpAddr::from(Ipv4Addr::LOCALHOST)), ("IPv6", Ipv6Addr::LOCALHOST.into())]
        {
            match self.connect(port, address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => tried.push(format!("{family}: {}", words(&error))),
            }
        }
        Err(format!("failed to connect to localhost:{port} inside the pod's network, {}", tried.join(", ")))
    }
}

/// The words that clients know from the kubelet.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::TimedOut => "connection timed out".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(headers: &[(&str, &str)], expect: &str) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let request = Request {
            method: "POST".into(),
            path: Vec::new(),
            query: Vec::new(),
            headers: headers.collect(),
        };
        let found = match upgrade(&request) {
            Ok(Upgrade::Spdy) => "spdy".to_owned(),
            Ok(Upgrade::WebSocket { accept }) => accept,
            Err(why) => why,
        };
        assert!(found.starts_with(expect), "{found}");
    }

    #[test]
    fn upgrade_is_chosen_by_what_the_client_offers() {
        let version = "x-stream-protocol-version";
        check(&[("upgrade", "SPDY/3.1"), (version, PROTOCOL)], "spdy");
        check(&[("upgrade", "SPDY/3.1"), (version, "x"), (version, "y, portforward.k8s.io")], "spdy");
        check(&[("upgrade", "spdy/3.1")], "spdy");
        let keyed = [
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        check(
            &[&keyed[..], &[("sec-websocket-protocol", TUNNELLED)]].concat(),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        );

        let refused = "unable to upgrade: the request asks for";
        check(
            &[&keyed[..], &[("sec-websocket-protocol", PROTOCOL)]].concat(),
            &format!("{refused} WebSocket with"),
        );
        check(&keyed, &format!("{refused} WebSocket with another"));
        check(&keyed[..1], &format!("{refused} WebSocket without a key"));
        check(
            &[("upgrade", "SPDY/3.1"), (version, "v4.channel.k8s.io")],
            &format!("{refused} SPDY/3.1 with"),
        );
        check(&[("upgrade", "h2c")], &format!("{refused} h2c,"));
        check(&[], &format!("{refused} no upgrade,"));
    }
}
