//! A node behind two routers that translate addresses, one at home and one of a provider: it can reach the
//! hub, but no other machine can reach it.
//!
//! Owns three network namespaces, the wires between them and the calling thread's, and the routers' tables.
//! Always holds: the only path between hub and node leads through both routers, which let in only packets of
//! connections that began inside; the machine's own network is not involved. Needs root, `ip` and `iptables`.
//! The hub listens on the same address as for lines ([`crate::lossy_line::HUB`]).

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};

/// The node's own address.
pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);
/// The node's address as the hub sees it: the provider's.
pub const SEEN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

/// See the module.
pub struct Nat {
    node: File,
    provider: File,
    _home: File,
}

impl Nat {
    /// Makes one between the network of the calling thread and that of a node.
    ///
    /// # Errors
    /// This needs root, `ip` and `iptables`.
    pub fn open() -> io::Result<Nat> {
        let (provider, home, node) = (network()?, network()?, network()?);
        wire(None, "provider", &provider, "out")?;
        wire(Some(&provider), "in", &home, "out")?;
        wire(Some(&home), "in", &node, "uplink")?;
        ran("ip", &["address", "add", "198.51.100.1/24", "dev", "provider"])?;
        ran("ip", &["link", "set", "provider", "up"])?;
        at(&provider, || router("198.51.100.2/24", "198.51.100.1", "100.64.0.1/24"))?;
        at(&home, || router("100.64.0.2/24", "100.64.0.1", "192.168.7.1/24"))?;
        at(&node, || {
            ran("ip", &["address", "add", &format!("{NODE}/24"), "dev", "uplink"])?;
            ran("ip", &["link", "set", "uplink", "up"])?;
            ran("ip", &["route", "add", "default", "via", "192.168.7.1"])
        })?;
        Ok(Nat { node, provider, _home: home })
    }

    /// Restarts the provider's router: it forgets all connections, drops packets of connections whose
    /// beginning it has not seen, and gets another address, 198.51.100.`last`.
    ///
    /// # Errors
    /// As [`Nat::open`].
    pub fn forget(&self, last: u8) -> io::Result<()> {
        at(&self.provider, || {
            std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0")?;
            // translations to an address are forgotten with it
            ran("ip", &["address", "flush", "dev", "out"])?;
            ran("ip", &["address", "add", &format!("198.51.100.{last}/24"), "dev", "out"])?;
            ran("ip", &["route", "replace", "default", "via", "198.51.100.1"])
        })
    }

    /// Runs `work` in the node's network; threads and processes that it starts are there, too.
    ///
    /// # Panics
    /// `work` panics.
    pub fn at_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        at(&self.node, work)
    }
}

/// Makes a new network namespace.
fn network() -> io::Result<File> {
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        ran("ip", &["link", "set", "lo", "up"])?;
        File::open("/proc/thread-self/ns/net")
    });
    made.join().expect("nothing panics there")
}

fn at<T: Send>(network: &File, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            setns(network, CloneFlags::CLONE_NEWNET).expect("whoever could make it can enter it");
            work()
        });
        there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes a wire with its two ends in two networks; `None`: the calling thread's.
fn wire(from: Option<&File>, name: &str, to: &File, far: &str) -> io::Result<()> {
    let there = format!("/proc/{}/fd/{}", std::process::id(), to.as_raw_fd());
    let make = || ran("ip", &["link", "add", name, "type", "veth", "peer", "name", far, "netns", &there]);
    match from {
        Some(network) => at(network, make),
        None => make(),
    }
}

/// Sets up a router in the calling thread's network.
fn router(out: &str, next: &str, inside: &str) -> io::Result<()> {
    for (device, address) in [("out", out), ("in", inside)] {
        ran("ip", &["address", "add", address, "dev", device])?;
        ran("ip", &["link", "set", device, "up"])?;
    }
    ran("ip", &["route", "add", "default", "via", next])?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    let rules = [
        "-t nat -A POSTROUTING -o out -j MASQUERADE",
        "-P FORWARD DROP",
        "-A FORWARD -i in -o out -j ACCEPT",
        "-A FORWARD -i out -o in -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    ];
    rules.iter().try_for_each(|rule| ran("iptables", &rule.split(' ').collect::<Vec<_>>()))
}

fn ran(program: &str, arguments: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{program} {}: {status}", arguments.join(" ")))),
    }
}
