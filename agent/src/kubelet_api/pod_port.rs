//! `/podPort/UID/ADDRESS/PORT`: one connection to a program in a pod, for a hub that speaks HTTP with it
//! (`pods/proxy`).
//!
//! Always holds: the target is an address of the pod's own network, and never one of the machine: its
//! loopback has programs that only port-forward may reach; the connection ends with the pod. Leaves to
//! others: the bytes on it.

use crate::kubelet_api::node::Node;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kedge_api::POD_PORT_UPGRADE;
use kedge_platform::workloads::{Settings, pod_socket};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::port_forward::{Ports, words};
use super::{Exchange, Request, exec};

/// How long a program may take to accept. Below the time that the hub waits for this node's answer.
const CONNECT: Duration = Duration::from_secs(20);

pub(super) async fn serve(
    request: &Request,
    mut exchange: Exchange,
    node: Arc<Node>,
    [uid, address, port]: [&str; 3],
) -> io::Result<()> {
    if !request.header("upgrade").is_some_and(|asked| asked.eq_ignore_ascii_case(POD_PORT_UPGRADE)) {
        return exchange.refuse(400, &format!("expected an upgrade to {POD_PORT_UPGRADE}")).await;
    }
    let (Ok(address), Ok(port @ 1..)) = (address.parse(), port.parse()) else {
        return refuse(exchange, 400, &format!("{address:?} with {port:?} is no address with a port")).await;
    };
    if !is_of_a_machine(address) {
        return refuse(exchange, 400, &format!("address not allowed: {address}")).await;
    }
    let Some(settings) = node.agent.runtime.settings(&node.agent.places) else {
        return refuse(exchange, 503, "no containers run on this node").await;
    };
    let settings = Arc::new(settings);
    let program = match connect(Arc::clone(&settings), uid.to_owned(), address, port).await {
        Ok(program) => program,
        Err(why) => {
            let why =
                format!("error trying to reach service: dial tcp {}: {}", shown(address, port), words(&why));
            return refuse(exchange, 503, &why).await;
        }
    };
    let peer = exchange.peer.take();
    let hub = exchange.take_over(&[("Upgrade", POD_PORT_UPGRADE)]).await?;
    let gone = Ports::new(settings, uid.into());
    tokio::select! {
        passed = exec::pass(hub, program, peer) => passed,
        () = gone.gone() => Ok(()),
    }
}

/// Unlike [`Exchange::refuse`]: the hub reads the text, so no client takes it for YAML.
async fn refuse(exchange: Exchange, status: u16, why: &str) -> io::Result<()> {
    exchange.answer(status, "text/plain; charset=utf-8", why.as_bytes()).await
}

async fn connect(settings: Arc<Settings>, uid: String, address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let socket = spawn_blocking(move || pod_socket(&settings, &uid, address)).await??;
    let socket = TcpSocket::from_std_stream(socket);
    stay_inside(&socket, address)?;
    let stream = timeout(CONNECT, socket.connect((address, port).into()))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    // the hub writes whole requests, and waits for answers
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Connects only from an address of the pod's network itself, and so only to one: the hub, which sent the
/// address, has no right to others.
fn stay_inside(socket: &TcpSocket, address: IpAddr) -> io::Result<()> {
    socket.bind((address, 0).into()).map_err(|error| match error.kind() {
        io::ErrorKind::AddrNotAvailable => io::Error::other("it is not an address of the pod"),
        _ => error,
    })
}

fn shown(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::from((address, port)).to_string()
}

/// Upstream's "global unicast": not loopback, link-local or multicast.
fn is_of_a_machine(address: IpAddr) -> bool {
    let is_of_the_link = match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_of_the_link || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_of_another_machine_is_not_reached() {
        let bound = |address: &str| stay_inside(&TcpSocket::new_v4().unwrap(), address.parse().unwrap());
        assert_eq!(bound("203.0.113.1").unwrap_err().to_string(), "it is not an address of the pod");
        bound("127.0.0.1").unwrap();
    }

    #[test]
    fn only_addresses_of_machines_are_reached() {
        for allowed in ["10.1.0.2", "192.168.1.1", "203.0.113.1", "fd00::2", "2001:db8::1"] {
            assert!(is_of_a_machine(allowed.parse().unwrap()), "{allowed}");
        }
        for refused in [
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "169.254.169.254",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            assert!(!is_of_a_machine(refused.parse().unwrap()), "{refused}");
        }
    }
}
