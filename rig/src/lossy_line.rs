//! A long line that loses packets, between the network of a hub and one of a node: what a satellite or a bad radio does to TCP.
//!
//! Owns a network namespace for the node, a TUN device there and one here, and the threads that pass packets between the two; socat
//! makes the devices, which takes an ioctl, and hands over their packets, each as a datagram.
//! Always holds: a packet is passed on whole, in order and late, or lost; the machine's own network has no part in it. Everything
//! above packets (handshakes, retransmissions, time limits) is the kernel's and the programs' own. Needs root. Left to others:
//! disruptions of connections, which need no privileges ([`crate::link`]).

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

use crate::Random;
use crate::scratch::poll;

/// Where a hub listens that is to be reached over lines.
pub const HUB: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The largest packet: a TUN device's own limit, and Ethernet's.
const LARGEST_PACKET: usize = 1500;
/// Longest wait for a device.
const DEVICE_LIMIT: Duration = Duration::from_secs(20);
/// Packets on their way in one direction: what comes while so many are is lost, as in a router. It is more than a slow line fills.
const ON_THE_WAY: usize = 1000;

/// What a line does to each packet, whichever way it goes.
#[derive(Debug, Clone, Copy)]
pub struct Quality {
    /// How late it arrives.
    pub delay: Duration,
    /// How many of a hundred do not arrive.
    pub loss_percent: u64,
}

/// What a node and its hub sent over a line, lost packets included.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// Connections that the node tried to open.
    pub connections: usize,
    /// Bytes of packets, both ways.
    pub bytes: u64,
    /// Packets, both ways.
    pub packets: u64,
    /// Packets that were lost.
    pub lost: u64,
}

#[derive(Default)]
struct Counted {
    traffic: Traffic,
    /// Port and first sequence number of each: a SYN that is sent again has the same.
    opened: HashSet<[u8; 6]>,
}

impl Counted {
    fn count(&mut self, packet: &[u8], is_lost: bool) {
        self.traffic.packets += 1;
        self.traffic.bytes += packet.len() as u64;
        self.traffic.lost += u64::from(is_lost);
        if let Some(first) = first_of_connection(packet) {
            self.opened.insert(first);
            self.traffic.connections = self.opened.len();
        }
    }
}

/// Moves the calling thread, and the threads and processes that it starts from now on, to a network of their own, in which a hub
/// can listen on [`HUB`].
///
/// # Errors
/// This needs root.
pub fn own_network() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &format!("{HUB}/32"), "dev", "lo"])?;
    plain_tcp()
}

/// One line, from a node's network to that of the calling thread.
pub struct LossyLine {
    node: File,
    counted: Arc<Mutex<Counted>>,
    ends: Vec<End>,
    threads: Vec<JoinHandle<()>>,
}

impl LossyLine {
    /// Line number `number`, of 250 at most. Which packets it loses depends on the number, and on when they come.
    ///
    /// # Errors
    /// This needs root, `ip` and `socat`.
    pub fn open(number: u8, quality: Quality) -> io::Result<LossyLine> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            plain_tcp()?;
            File::open("/proc/thread-self/ns/net")
        });
        let node = made.join().expect("nothing panics there")?;
        let mut line = LossyLine { node, counted: Arc::default(), ends: Vec::new(), threads: Vec::new() };
        // the hub's network has one of these addresses, the node finds all of the hub's behind the other
        let hub_end = End::open(None, &format!("line{number}"), Ipv4Addr::new(10, 99, number, 1), 30)?;
        line.ends.push(hub_end);
        let node_end = End::open(Some(&line.node), "hub", Ipv4Addr::new(10, 99, number, 2), 16)?;
        line.ends.push(node_end);
        let is_there = poll(DEVICE_LIMIT, || {
            let both = has_route(&format!("line{number}")) && line.at_node(|| has_route("hub"));
            both.then_some(())
        });
        if is_there.is_none() {
            return Err(io::Error::other(format!("socat made no TUN device within {DEVICE_LIMIT:?}")));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            line.pass(from, to, quality, Random::new(u64::from(number) * 2 + from as u64))?;
        }
        Ok(line)
    }

    /// Does something in the node's network; so do the threads and processes started there.
    ///
    /// # Panics
    /// `work` panics.
    pub fn at_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                setns(&self.node, CloneFlags::CLONE_NEWNET).expect("whoever could make it can enter it");
                work()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// What was sent so far.
    pub fn traffic(&self) -> Traffic {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).traffic
    }

    fn pass(&mut self, from: usize, to: usize, quality: Quality, random: Random) -> io::Result<()> {
        let (way, out) = sync_channel(ON_THE_WAY);
        let (from, to) = (self.ends[from].packets.try_clone()?, self.ends[to].packets.try_clone()?);
        let counted = self.counted.clone();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread("line in").spawn(move || take_in(&from, &way, &counted, quality, random))?);
        self.threads.push(thread("line out").spawn(move || give_out(&to, &out))?);
        Ok(())
    }
}

impl Drop for LossyLine {
    fn drop(&mut self) {
        self.ends.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A TUN device: what is sent in its network to the other end can be received here, and the other way round.
struct End {
    packets: UnixDatagram,
    socat: Child,
}

impl End {
    /// In this network, or in the calling thread's.
    fn open(network: Option<&File>, name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<End> {
        let (packets, theirs) = UnixDatagram::pair()?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(network) = network {
            let path = format!("/proc/{}/fd/{}", std::process::id(), network.as_raw_fd());
            command.args(["nsenter", &format!("--net={path}"), "--"]);
        }
        let device = format!("TUN:{address}/{prefix},tun-type=tun,tun-name={name},iff-no-pi,iff-up");
        command.args(["socat", &device, "FD:0"]).stdin(OwnedFd::from(theirs));
        Ok(End { packets, socat: command.spawn()? })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = (self.socat.kill(), self.socat.wait());
        // wakes who waits for a packet
        let _ = self.packets.shutdown(Shutdown::Both);
    }
}

/// Whether packets leave the calling thread's network through this device.
fn has_route(device: &str) -> bool {
    let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    routes.lines().any(|line| line.split_whitespace().next() == Some(device))
}

/// A packet, and when it arrives.
type Late = (Instant, Vec<u8>);

/// Reads what one side sends, until the line ends.
fn take_in(
    from: &UnixDatagram,
    way: &SyncSender<Late>,
    counted: &Mutex<Counted>,
    quality: Quality,
    mut random: Random,
) {
    let mut buffer = [0; LARGEST_PACKET];
    while let Ok(length @ 1..) = from.recv(&mut buffer) {
        let packet = &buffer[..length];
        // of IPv6 there is what a kernel sends of its own accord
        if packet[0] >> 4 != 4 {
            continue;
        }
        let is_lost = random.percent(quality.loss_percent)
            || way.try_send((Instant::now() + quality.delay, packet.to_vec())).is_err();
        counted.lock().unwrap_or_else(PoisonError::into_inner).count(packet, is_lost);
    }
}

/// Hands each packet to the other side when it arrives there, until the line ends.
fn give_out(to: &UnixDatagram, way: &Receiver<Late>) {
    while let Ok((at, packet)) = way.recv() {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // refused while that side is being taken down: lost
        let _ = to.send(&packet);
    }
}

/// Port and first sequence number of a connection, if this packet asks for one.
fn first_of_connection(packet: &[u8]) -> Option<[u8; 6]> {
    const TCP: u8 = 6;
    const SYN_AND_ACK: u8 = 0x12;
    const SYN: u8 = 0x02;
    let head = usize::from(packet.first()? & 15) * 4;
    let tcp = packet.get(head..)?;
    if *packet.get(9)? != TCP || tcp.get(13)? & SYN_AND_ACK != SYN {
        return None;
    }
    let mut first = [0; 6];
    first[..2].copy_from_slice(tcp.get(..2)?);
    first[2..].copy_from_slice(tcp.get(4..8)?);
    Some(first)
}

/// Congestion control that every kernel has: what takes losses for anything but congestion would flatter the line.
fn plain_tcp() -> io::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {}: {status}", arguments.join(" ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet of 20 bytes and a TCP head with these flags.
    fn packet(port: u16, sequence: u32, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 40];
        (packet[0], packet[9]) = (0x45, 6);
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[24..28].copy_from_slice(&sequence.to_be_bytes());
        packet[33] = flags;
        packet
    }

    #[test]
    fn connection_is_counted_once_however_often_it_is_asked_for() {
        let mut counted = Counted::default();
        for (port, sequence, flags) in
            [(7, 1, 2), (7, 1, 2), (7, 1, 0x10), (443, 9, 0x12), (7, 2, 2), (8, 2, 2)]
        {
            counted.count(&packet(port, sequence, flags), false);
        }
        counted.count(&packet(7, 1, 2)[..30], true);
        let Traffic { connections, bytes, packets, lost } = counted.traffic;
        assert_eq!((connections, bytes, packets, lost), (3, 6 * 40 + 30, 7, 1));
    }
}
