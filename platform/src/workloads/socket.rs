//! Sockets in the network of a pod, for who forwards its ports.
//!
//! What always holds: nothing of a pod is entered but its network namespace, by a thread that makes the socket there and ends; a
//! pod that is not here gives no socket, never one of the machine. Leaves to others: connecting, and what is said.

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

/// A TCP socket of the pod with this UID, for an address of this family; not connected yet, and it never blocks. A pod without a
/// network of its own has the machine's.
///
/// # Errors
/// The pod is not here, or has no network yet.
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
    // a socket stays in the namespace that it was made in
    sandbox::in_thread(|| {
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        make()
    })
    .map(TcpStream::from)
}

/// Whether the pod with this UID is here, with its namespaces.
#[must_use]
pub fn has_pod(settings: &Settings, uid: &str) -> bool {
    check_name("pod UID", uid).is_ok() && Records::of(&places(settings).pod(uid)).has(ORDER)
}
