//! A long line that loses packets, between the network of a hub and one of a node: TCP as over a satellite or
//! a bad radio.
//!
//! Owns a network namespace for the node, a TUN device there and one here, and the threads that pass packets
//! between the two; socat makes the devices, which needs an ioctl, and passes their packets on, each as a
//! datagram. Always holds: a packet is delivered whole, in order and late, or lost; the machine's own network
//! is not involved. Everything above packets (handshakes, retransmissions, time limits) is real, in the
//! kernel and the programs. Needs root. Left to others: disruptions of connections, which need no privileges
//! ([`crate::link`]).

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

/// The address of a hub that nodes reach over lines.
pub const HUB: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The largest packet: a TUN device's own limit, and Ethernet's.
const LARGEST_PACKET: usize = 1500;
/// Longest wait for a device.
const DEVICE_LIMIT: Duration = Duration::from_secs(20);
/// Most packets in flight in one direction: further ones are lost, as in a router. It is more than fill a
/// slow line.
const ON_THE_WAY: usize = 1000;

/// The effect of a line on each packet, in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Quality {
    /// The delay of its arrival.
    pub delay: Duration,
    /// How many of a hundred are lost.
    pub loss_percent: u64,
}

/// The traffic between a node and its hub over a line, including lost packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// Connections that the node tried to open.
    pub connections: usize,
    /// Bytes of packets, in both directions.
    pub bytes: u64,
    /// Packets, in both directions.
    pub packets: u64,
    /// Packets that were lost.
    pub lost: u64,
}

#[derive(Default)]
struct Counted {
    traffic: Traffic,
    /// Port and first sequence number of each connection: a repeated SYN has the same.
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

/// Moves the calling thread, and the threads and processes that it starts from now on, to a separate network,
/// in which a hub can listen on [`HUB`].
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
    /// Opens line number `number`, of 250 at most. The packets that it loses depend on the number, and on
    /// their times.
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
        // the hub's network has one of these addresses, and the node reaches all of the hub's addresses
        // through the other
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

    /// Runs `work` in the node's network; threads and processes that it starts are there, too.
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

    /// The traffic so far.
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

/// A TUN device: packets sent in its network to the other end can be received here, and vice versa.
struct End {
    packets: UnixDatagram,
    socat: Child,
}

impl End {
    /// Opens it in this network, or in the calling thread's.
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
        // wakes the thread that waits for a packet
        let _ = self.packets.shutdown(Shutdown::Both);
    }
}

/// True if packets can leave the calling thread's network through this device.
fn has_route(device: &str) -> bool {
    let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    routes.lines().any(|line| line.split_whitespace().next() == Some(device))
}

/// A packet, and its time of arrival.
type Late = (Instant, Vec<u8>);

/// Reads the packets of one side, until the line ends.
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
        // IPv6 packets are only those that a kernel sends by itself
        if packet[0] >> 4 != 4 {
            continue;
        }
        let is_lost = random.percent(quality.loss_percent)
            || way.try_send((Instant::now() + quality.delay, packet.to_vec())).is_err();
        counted.lock().unwrap_or_else(PoisonError::into_inner).count(packet, is_lost);
    }
}

/// Delivers each packet to the other side at its time of arrival, until the line ends.
fn give_out(to: &UnixDatagram, way: &Receiver<Late>) {
    while let Ok((at, packet)) = way.recv() {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // refused while the other side is being closed: the packet is lost
        let _ = to.send(&packet);
    }
}

/// Port and first sequence number of a connection, if this packet is a SYN.
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

/// Sets a congestion control that every kernel has: one that does not treat losses as congestion would make
/// the line look better.
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

    /// An IPv4 packet with a head of 20 bytes and a TCP head with these flags.
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
