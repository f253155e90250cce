//! Sockets in the network of a pod, for forwarding its ports.
//!
//! Always holds: of a pod only its network namespace is entered, by a thread that makes the socket there and
//! ends; for a pod that does not exist here the call fails, and never returns a socket of the machine's
//! network. Leaves to others: connecting, and the protocol.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::places::Places;
use super::records::{ORDER, Records};
use super::{Settings, check_name, sandbox};
use crate::linux::open_regular;

fn places(settings: &Settings) -> Places {
    Places { run: settings.run.clone(), data: settings.data.clone() }
}

/// A TCP socket of the pod with this UID, for an address of this family; it is not connected yet, and never
/// blocks. A pod without a network of its own has the machine's.
///
/// # Errors
/// The pod does not exist here, or has no network yet.
pub fn pod_socket(settings: &Settings, uid: &str, peer: IpAddr) -> io::Result<TcpStream> {
    check_name("pod UID", uid).map_err(io::Error::other)?;
    let places = places(settings);
    let Some(order) = sandbox::prepared(&places, uid) else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the pod is not here any more"));
    };
    let family = if peer.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let make = || -> io::Result<OwnedFd> { Ok(socket(family, SockType::Stream, flags, None)?) };
    if order.host_network {
        return make().map(TcpStream::from);
    }
    let namespace = open_regular(&places.pod(uid).join("net"))?;
    // a socket stays in the namespace in which it was made
    sandbox::in_thread(|| {
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        make()
    })
    .map(TcpStream::from)
}

/// True if the pod with this UID exists here, with its namespaces.
#[must_use]
pub fn has_pod(settings: &Settings, uid: &str) -> bool {
    check_name("pod UID", uid).is_ok() && Records::of(&places(settings).pod(uid)).has(ORDER)
}
