//! Connections of unknown callers: unfinished TLS handshakes.
//!
//! Always holds: one network may have as many unfinished handshakes as nodes last connected from it, at least
//! [`PER_NETWORK`] and at most a quarter of all; networks from which no node ever connected share half of
//! all. A new connection is not refused because of others: the oldest silent handshake of the fullest network
//! makes room, or that network's oldest one, unless the newcomer's own network is as full; then its own
//! oldest one does, once it has taken [`SLOW`]. A handshake that makes progress takes milliseconds, so a
//! client succeeds despite any number of connections that send nothing, or too little. Key exchanges, which
//! cost the processor a millisecond each, have a rate for each network ([`PER_PLACE`]); one beyond that rate
//! uses the machine's spare capacity ([`SPARE`]), and is refused only if none is left. A connection that ends
//! before its hello is complete costs its network nothing. A client that shares an address with a host that
//! completes hellos all the time may therefore need several attempts. Left to others: time limits (`accept`),
//! connections after the handshake (`limits`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::bucket::{Bucket, Rate};

/// Unfinished handshakes that each network may have: an address, or a /64 of IPv6. Nodes behind one router
/// may all come back at once, so a network with more nodes has a place for each.
const PER_NETWORK: usize = 64;
/// The fraction of all handshakes that one network may have, however many nodes it has. This machine itself
/// may have as many: its processes share a processor with the hub, so many of their handshakes wait for it at
/// a time, and ending some would only make work.
const NETWORK_PART: usize = 4;
/// A handshake makes room for a newcomer of its own network, however full that is, once it has taken this
/// long. While hundreds of nodes wait for the processor of a busy hub, some handshakes take seconds; ending
/// those would only make work.
const SLOW: Duration = Duration::from_secs(3);
/// Rate of key exchanges of a network for each of its places: two a second. Strangers take an eighth of a
/// processor at most. The burst allows all nodes of a site to come back at once, several times.
const PER_PLACE: Rate = Rate { per_sec: 2.0, burst: 8.0 };
/// Rate of key exchanges beyond the networks' own rates: less than half of a processor, which no other work
/// misses for that time.
const SPARE: Rate = Rate { per_sec: 400.0, burst: 400.0 };
/// Number of buckets for unknown networks, 24 bytes each. The bucket of a network is found by a hash that an
/// attacker cannot foresee: with a thousand networks it affects one in sixteen others, however many there
/// are.
const PACES: usize = 16_384;
/// Most nodes whose networks are remembered. The networks of further nodes are treated as unknown.
const MAX_NODES: usize = 16_384;

/// The owner of a connection, as far as its address shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Network {
    /// This machine itself.
    Local,
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Network {
    /// The network of a connection from `peer` to the address `own`. A program on this machine that binds to
    /// no other address connects from the address that it connects to; the hub's probe of itself is one.
    pub(super) fn of(peer: IpAddr, own: Option<IpAddr>) -> Network {
        let peer = peer.to_canonical();
        let is_own = own.is_some_and(|own| own.to_canonical() == peer);
        match peer {
            _ if is_own || peer == Ipv4Addr::LOCALHOST || peer == Ipv6Addr::LOCALHOST => Network::Local,
            IpAddr::V4(address) => Network::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Network::V6([a, b, c, d])
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Handshakes {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    of: HashMap<Network, Vec<Entry>>,
    /// Handshakes in all, and those of unknown networks.
    all: usize,
    strangers: usize,
    /// The network from which each node last connected: one node vouches for one network.
    nodes: HashMap<Box<str>, Network>,
    /// The state of those networks.
    known: HashMap<Network, Known>,
    /// The rates of unknown networks, by their hash; empty before the first key exchange.
    strangers_paces: Vec<Bucket>,
    hasher: RandomState,
    /// The spare rate of all networks beyond that.
    spare: Option<Bucket>,
    next: u64,
}

/// A network from which nodes last connected.
#[derive(Debug)]
struct Known {
    nodes: usize,
    /// The rate of its key exchanges; `None` before the first.
    pace: Option<Bucket>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    since: Instant,
    /// True if the client has sent anything.
    heard: bool,
    stranger: bool,
    /// Dropped to end the handshake.
    _end: oneshot::Sender<()>,
}

impl Handshakes {
    pub(super) fn new(most: usize) -> Handshakes {
        Handshakes { most, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // a panic leaves the table consistent, because no change of it can panic half way
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unfinished handshakes.
    pub(super) fn count(&self) -> usize {
        self.lock().all
    }

    /// Counts a new connection until the handshake is dropped; `None` refuses it. To make room it may end
    /// another handshake.
    pub(super) fn begin(self: &Arc<Self>, network: Network, now: Instant) -> Option<Handshake> {
        let mut table = self.lock();
        let stranger = !table.known.contains_key(&network);
        let own = table.of.get(&network).map_or(0, Vec::len);
        let has_place = own < table.places(network, self.most)
            || table.make_room(network)
            // the hub's probe of itself is among this machine's connections
            || (network == Network::Local && table.end_oldest(network))
            || table.end_slow(network, now);
        if !has_place {
            return None;
        }
        let full = table.all >= self.most || (stranger && table.strangers >= (self.most / 2).max(1));
        let gets_one = !full
            || table.fullest(stranger).is_some_and(|fullest| table.give_way(fullest, network))
            || table.end_slow(network, now);
        if !gets_one {
            return None;
        }
        let (end, ended) = oneshot::channel();
        let id = table.next;
        table.next += 1;
        table.all += 1;
        table.strangers += usize::from(stranger);
        table.of.entry(network).or_default().push(Entry {
            id,
            since: now,
            heard: false,
            stranger,
            _end: end,
        });
        Some(Handshake { handshakes: Arc::clone(self), network, id, ended })
    }

    /// Remembers that a node connects from here, and no longer from its former network.
    pub(super) fn trust(&self, node: &str, network: Network) {
        let mut table = self.lock();
        let before = table.nodes.get(node).copied();
        if before == Some(network) || (before.is_none() && table.nodes.len() >= MAX_NODES) {
            return;
        }
        table.nodes.insert(node.into(), network);
        // the network keeps the tokens that it had left as a stranger, so that it gains nothing by nodes that
        // come and go
        let pace = table.stranger_pace(network).copied();
        table.known.entry(network).or_insert(Known { nodes: 0, pace }).nodes += 1;
        if let Some(before) = before {
            table.forget(before);
        }
    }
}

impl Table {
    /// The handshakes that a network may have, of `most` in all.
    fn places(&self, network: Network, most: usize) -> usize {
        let wanted = if network == Network::Local {
            most
        } else {
            self.known.get(&network).map_or(0, |known| known.nodes)
        };
        wanted.min(most / NETWORK_PART).max(PER_NETWORK)
    }

    /// Counts a key exchange of a network; `false` if there are too many, and the machine has no spare
    /// capacity.
    fn pace(&mut self, network: Network, most: usize, now: Instant) -> bool {
        // programs that share the processor gain nothing by handshakes, and the hub's probe of itself is
        // among them
        if network == Network::Local {
            return true;
        }
        let rate = rate(self.places(network, most));
        let full = Bucket::full(rate, now);
        let has_own = match self.known.get_mut(&network) {
            Some(known) => known.pace.get_or_insert(full).at(rate, now).take(1.0),
            None => {
                self.strangers_paces.resize(PACES, full);
                self.stranger_pace(network).is_some_and(|pace| pace.at(rate, now).take(1.0))
            }
        };
        let spare = self.spare.get_or_insert_with(|| Bucket::full(SPARE, now)).at(SPARE, now);
        has_own || spare.take(1.0)
    }

    /// The rate of an unknown network, once any has begun a key exchange.
    fn stranger_pace(&mut self, network: Network) -> Option<&mut Bucket> {
        let place = self.place(network);
        self.strangers_paces.get_mut(place)
    }

    fn place(&self, network: Network) -> usize {
        (self.hasher.hash_one(network) % PACES as u64) as usize
    }

    /// A node of this network now connects from another one.
    fn forget(&mut self, network: Network) {
        let Some(known) = self.known.get_mut(&network) else { return };
        known.nodes -= 1;
        if known.nodes > 0 {
            return;
        }
        let left = self.known.remove(&network).and_then(|known| known.pace);
        if let (Some(left), Some(pace)) = (left, self.stranger_pace(network)) {
            *pace = left;
        }
    }

    /// The network with the most handshakes, and among equals the one with the oldest; among strangers only,
    /// if one of them needs room.
    fn fullest(&self, strangers: bool) -> Option<Network> {
        let of = self.of.iter().filter(|(network, _)| !strangers || !self.known.contains_key(network));
        let age = |entries: &[Entry]| Reverse(entries.first().map(|entry| entry.id));
        of.max_by_key(|(_, entries)| (entries.len(), age(entries))).map(|(network, _)| *network)
    }

    /// Ends a handshake of the fullest network for one of another: its oldest silent one, or else its oldest.
    /// `false`: the newcomer's network is as full.
    fn give_way(&mut self, fullest: Network, newcomer: Network) -> bool {
        let count = |network| self.of.get(&network).map_or(0, Vec::len);
        let is_fuller = count(fullest) > count(newcomer);
        self.make_room(fullest) || (is_fuller && self.end_oldest(fullest))
    }

    /// Ends the oldest silent handshake of a network. `false`: all have sent something.
    fn make_room(&mut self, network: Network) -> bool {
        let silent = |entries: &Vec<Entry>| entries.iter().find(|entry| !entry.heard).map(|entry| entry.id);
        match self.of.get(&network).and_then(silent) {
            Some(id) => self.remove(network, id),
            None => false,
        }
    }

    /// Ends the oldest handshake of a network.
    fn end_oldest(&mut self, network: Network) -> bool {
        let oldest = self.of.get(&network).and_then(|entries| entries.first()).map(|entry| entry.id);
        oldest.is_some_and(|id| self.remove(network, id))
    }

    /// Ends the oldest handshake of a network if it has taken long.
    fn end_slow(&mut self, network: Network, now: Instant) -> bool {
        let oldest = self.of.get(&network).and_then(|entries| entries.first());
        oldest.is_some_and(|entry| now.saturating_duration_since(entry.since) > SLOW)
            && self.end_oldest(network)
    }

    /// The handshake, unless it was ended to make room.
    fn entry(&mut self, network: Network, id: u64) -> Option<&mut Entry> {
        self.of.get_mut(&network)?.iter_mut().find(|entry| entry.id == id)
    }

    fn remove(&mut self, network: Network, id: u64) -> bool {
        let Some(entries) = self.of.get_mut(&network) else { return false };
        let Some(place) = entries.iter().position(|entry| entry.id == id) else { return false };
        let entry = entries.remove(place);
        if entries.is_empty() {
            self.of.remove(&network);
        }
        self.all -= 1;
        self.strangers -= usize::from(entry.stranger);
        true
    }
}

/// The rate of a network with this many places.
fn rate(places: usize) -> Rate {
    let places = places as f64;
    Rate { per_sec: PER_PLACE.per_sec * places, burst: PER_PLACE.burst * places }
}

/// The decision whether a handshake may do its key exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    Paid,
    /// It was ended before to make room, and is charged nothing.
    Ended,
    /// Its network begins too many handshakes.
    Refused,
}

/// A counted handshake; uncounted when dropped.
#[derive(Debug)]
pub(super) struct Handshake {
    handshakes: Arc<Handshakes>,
    network: Network,
    id: u64,
    ended: oneshot::Receiver<()>,
}

impl Handshake {
    pub(super) fn network(&self) -> Network {
        self.network
    }

    /// Notes that the client has sent something, or has closed: from now on it is not ended as a silent one.
    /// `false`: it was ended before.
    #[must_use]
    pub(super) fn heard(&self) -> bool {
        let mut table = self.handshakes.lock();
        let entry = table.entry(self.network, self.id);
        entry.map(|entry| entry.heard = true).is_some()
    }

    /// Charges the cost of the key exchange to the rate of the network.
    #[must_use]
    pub(super) fn exchange(&self, now: Instant) -> Exchange {
        let mut table = self.handshakes.lock();
        if table.entry(self.network, self.id).is_none() {
            return Exchange::Ended;
        }
        match table.pace(self.network, self.handshakes.most, now) {
            true => Exchange::Paid,
            false => Exchange::Refused,
        }
    }

    /// Resolves when the handshake is ended to make room.
    pub(super) async fn ended(&mut self) {
        // the sender is only ever dropped
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.lock().remove(self.network, self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const HERE: Network = Network::V4([192, 0, 2, 1]);

    fn address(number: u32) -> Network {
        Network::V4((0x0a00_0000 + number).to_be_bytes())
    }

    fn begin(all: &Arc<Handshakes>, from: Network) -> Option<Handshake> {
        // all handshakes begin at the same time
        static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
        all.begin(from, *NOW)
    }

    /// The client of this handshake sends something.
    fn hear(handshake: &Handshake) {
        assert!(handshake.heard());
    }

    /// A handshake that ends as soon as its key exchange has begun.
    fn exchanges(all: &Arc<Handshakes>, from: Network, now: Instant) -> bool {
        all.begin(from, now).is_some_and(|new| new.heard() && new.exchange(now) == Exchange::Paid)
    }

    /// A handshake whose client has sent something.
    fn begun(all: &Arc<Handshakes>, number: u32) -> Option<Handshake> {
        let handshake = begin(all, address(number))?;
        hear(&handshake);
        Some(handshake)
    }

    fn is_ended(handshake: &mut Handshake) -> bool {
        !matches!(handshake.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn silent_connections_make_room_for_their_own_network() {
        let all = Arc::new(Handshakes::new(2048));
        let mut silent: Vec<_> = (0..20_000).map(|_| begin(&all, HERE).unwrap()).collect();
        assert_eq!(all.count(), PER_NETWORK);
        // a client of the same network begins, and thousands of silent ones do not end its handshake
        let mut client = begin(&all, HERE).unwrap();
        hear(&client);
        silent.extend((0..20_000).map(|_| begin(&all, HERE).unwrap()));
        assert!(!is_ended(&mut client));
        assert_eq!(silent.iter_mut().map(is_ended).filter(|ended| !ended).count(), PER_NETWORK - 1);
        assert_eq!(all.count(), PER_NETWORK);
        drop((silent, client));
        assert_eq!(all.count(), 0);
        assert!(all.lock().of.is_empty() && all.lock().strangers == 0);
    }

    #[test]
    fn network_whose_handshakes_have_all_begun_is_refused() {
        let all = Arc::new(Handshakes::new(2048));
        let held: Vec<_> = (0..PER_NETWORK).map(|_| begin(&all, HERE).unwrap()).collect();
        held.iter().for_each(hear);
        assert!(begin(&all, HERE).is_none());
        assert!(begin(&all, address(1)).is_some(), "others are not");
        drop(held);
        assert!(begin(&all, HERE).is_some());
    }

    #[test]
    fn slow_handshakes_make_room_in_a_full_network() {
        let all = Arc::new(Handshakes::new(2048));
        let start = Instant::now();
        // one byte each, shortly after each other
        let at = |number: u32| start + Duration::from_millis(u64::from(number));
        let begun = |now| all.begin(HERE, now).inspect(hear);
        let mut held: Vec<_> = (0..64).map(|number| begun(at(number)).unwrap()).collect();
        assert!(begun(start + SLOW).is_none());
        let mut node = begun(at(9) + SLOW).expect("a place of a slow one");
        assert!(is_ended(&mut held[0]) && !held[1..].iter_mut().any(is_ended));
        // only as many as are slow are ended, and no younger one
        let more: Vec<_> = (0..100).map_while(|_| begun(at(9) + SLOW)).collect();
        assert_eq!(more.len(), 8);
        assert!(!held[9..].iter_mut().any(is_ended) && !is_ended(&mut node));
        assert_eq!(all.count(), PER_NETWORK);
    }

    #[test]
    fn slow_handshake_makes_room_when_no_other_network_is_fuller() {
        let all = Arc::new(Handshakes::new(256));
        let start = Instant::now();
        let begun = |number, now| all.begin(address(number), now).inspect(hear);
        let mut held: Vec<_> = (0..128).map(|number| begun(number, start).unwrap()).collect();
        assert!(begun(7, start + SLOW).is_none(), "all strangers have one");
        let node = begun(7, start + SLOW + Duration::from_millis(1));
        assert!(node.is_some() && is_ended(&mut held[7]));
        assert_eq!(held.iter_mut().map(is_ended).filter(|ended| *ended).count(), 1);
    }

    #[test]
    fn loopback_is_never_refused_for_its_own_sake() {
        let all = Arc::new(Handshakes::new(2048));
        let mut held: Vec<_> =
            (0..2048 / NETWORK_PART).map(|_| begin(&all, Network::Local).unwrap()).collect();
        held.iter().for_each(hear);
        assert!(!held.iter_mut().any(is_ended), "hundreds of local clients at once get through");
        let _probe = begin(&all, Network::Local).unwrap();
        assert!(is_ended(&mut held[0]) && !is_ended(&mut held[1]));
    }

    #[test]
    fn machine_is_known_by_the_address_it_connects_to() {
        let check = |peer: &str, own: &str, expect: bool| {
            let network = Network::of(peer.parse().unwrap(), own.parse().ok());
            assert_eq!(network == Network::Local, expect, "{peer} to {own}");
        };
        for (peer, own) in [("127.0.0.1", ""), ("::1", ""), ("127.0.0.1", "192.0.2.1")] {
            check(peer, own, true);
        }
        // the probe of a hub that listens on that address
        check("192.0.2.1", "192.0.2.1", true);
        check("::ffff:192.0.2.1", "192.0.2.1", true);
        check("2001:db8::1", "2001:db8::1", true);
        for (peer, own) in [("192.0.2.2", "192.0.2.1"), ("192.0.2.1", ""), ("2001:db8::2", "2001:db8::1")] {
            check(peer, own, false);
        }
        check("127.0.1.9", "127.0.0.1", false);
        check("::2", "::1", false);
    }

    #[test]
    fn network_has_a_place_for_each_of_its_nodes() {
        let all = Arc::new(Handshakes::new(2048));
        let places = || (0..1000).map_while(|_| begun(&all, 1)).collect::<Vec<_>>().len();
        for (nodes, expected) in [(1, PER_NETWORK), (200, 200), (1000, 2048 / NETWORK_PART)] {
            (0..nodes).for_each(|node| all.trust(&node.to_string(), address(1)));
            assert_eq!(places(), expected, "{nodes} nodes");
        }
        (0..1000).for_each(|node| all.trust(&node.to_string(), address(2)));
        assert_eq!(places(), PER_NETWORK, "the nodes are elsewhere now");
    }

    #[test]
    fn fullest_network_makes_room_for_others() {
        let all = Arc::new(Handshakes::new(256));
        let mut few = begin(&all, address(1)).unwrap();
        let numbers = (2..4).flat_map(|number| std::iter::repeat_n(number, PER_NETWORK));
        let mut many: Vec<_> = numbers.filter_map(|number| begin(&all, address(number))).collect();
        assert_eq!(all.count(), 128, "strangers have half");
        let newcomer = begin(&all, address(9));
        assert!(newcomer.is_some() && !is_ended(&mut few));
        assert!(many.iter_mut().any(is_ended));
    }

    #[test]
    fn node_vouches_for_one_network() {
        let all = Arc::new(Handshakes::new(256));
        let known = || all.lock().known.len();
        for number in 0..1000 {
            all.trust("edge-1", address(number));
            assert_eq!(known(), 1);
        }
        all.trust("edge-2", address(999));
        all.trust("edge-1", address(1));
        assert_eq!(known(), 2, "another node is still there");
        all.trust("edge-2", address(1));
        assert_eq!((known(), all.lock().nodes.len()), (1, 2));
        (0..MAX_NODES).for_each(|number| all.trust(&number.to_string(), HERE));
        assert_eq!(all.lock().nodes.len(), MAX_NODES);
    }

    #[test]
    fn strangers_leave_half_for_networks_of_nodes() {
        let all = Arc::new(Handshakes::new(256));
        all.trust("edge-1", HERE);
        let held: Vec<_> = (0..1000).filter_map(|number| begun(&all, number)).collect();
        assert_eq!(all.count(), 128);
        let mut nodes: Vec<_> = (0..PER_NETWORK).map_while(|_| begin(&all, HERE)).collect();
        assert_eq!((nodes.len(), all.count()), (PER_NETWORK, 128 + PER_NETWORK));
        // strangers make room for other strangers only
        assert!(begun(&all, 5000).is_some());
        assert!(!nodes.iter_mut().any(is_ended));
        drop(held);
    }

    #[test]
    fn networks_of_nodes_have_no_more_than_all_places() {
        let all = Arc::new(Handshakes::new(256));
        (1..=5).for_each(|number| all.trust(&number.to_string(), address(number)));
        let numbers = (1..5).flat_map(|number| std::iter::repeat_n(number, PER_NETWORK));
        let mut held: Vec<_> = numbers.map(|number| begun(&all, number).unwrap()).collect();
        assert_eq!(all.count(), 256);
        let _newcomer = begun(&all, 5).expect("the place of the oldest");
        assert!(is_ended(&mut held[0]) && !held[1..].iter_mut().any(is_ended));
        assert_eq!(all.count(), 256);
    }

    #[test]
    fn network_begins_so_many_a_second() {
        let all = Arc::new(Handshakes::new(2048));
        let start = Instant::now();
        let begins = |from: Network, after: Duration| {
            (0..20_000).take_while(|_| exchanges(&all, from, start + after)).count()
        };
        let spare = SPARE.burst as usize;
        assert_eq!(begins(HERE, Duration::ZERO), 512 + spare);
        assert_eq!(begins(HERE, Duration::from_secs(1)), 128 + spare);
        let other = {
            let table = all.lock();
            (1..).map(address).find(|other| table.place(*other) != table.place(HERE)).unwrap()
        };
        assert_eq!(begins(other, Duration::from_secs(1)), 512, "another network");
        (0..200).for_each(|node| all.trust(&node.to_string(), HERE));
        assert_eq!(begins(HERE, Duration::from_secs(2)), 400 + spare, "two for each of its nodes");
        assert_eq!(begins(Network::Local, Duration::ZERO), 20_000, "this machine");
    }

    #[test]
    fn connections_without_a_whole_hello_are_not_paced() {
        let all = Arc::new(Handshakes::new(2048));
        let now = Instant::now();
        assert!((0..20_000).all(|_| begin(&all, HERE).is_some_and(|new| new.heard())));
        assert!((0..20_000).all(|_| begin(&all, HERE).is_some()), "silent ones");
        let paced = (0..20_000).take_while(|_| exchanges(&all, HERE, now)).count();
        assert_eq!(paced, 512 + SPARE.burst as usize, "all that a network may begin");
    }

    #[test]
    fn handshake_that_made_room_pays_nothing() {
        let all = Arc::new(Handshakes::new(2048));
        let first = begin(&all, HERE).unwrap();
        let _others: Vec<_> = (0..PER_NETWORK).map(|_| begin(&all, HERE).unwrap()).collect();
        assert!(!first.heard());
        assert_eq!(first.exchange(Instant::now()), Exchange::Ended);
        assert!(all.lock().strangers_paces.is_empty() && all.lock().spare.is_none());
    }

    #[test]
    fn flood_of_networks_takes_the_rate_of_few_others() {
        const DRAINED: u32 = 100;
        let all = Arc::new(Handshakes::new(2048));
        let (now, home) = (Instant::now(), address(99_999));
        all.trust("edge", home);
        // from any number of networks, once each; and from some as many as their rate allows
        assert!((0..30_000).all(|number| exchanges(&all, address(number), now)));
        (0..DRAINED).for_each(|number| while exchanges(&all, address(number), now) {});
        assert_eq!(all.lock().strangers_paces.len(), PACES);
        let served = (50_000..51_000).filter(|number| exchanges(&all, address(*number), now)).count();
        assert!(
            served > 950,
            "{served} of 1000, of which {DRAINED} in {PACES} share with one that has taken all"
        );
        assert!(exchanges(&all, home, now), "a network of a node has its own rate");
    }

    #[test]
    fn network_gains_no_rate_by_a_node_that_moves() {
        let all = Arc::new(Handshakes::new(2048));
        let now = Instant::now();
        let took_all = |number| while exchanges(&all, address(number), now) {};
        (1..=2).for_each(took_all);
        for _ in 0..10 {
            for number in 1..=2 {
                all.trust("edge", address(number));
                assert!(!exchanges(&all, address(1), now) && !exchanges(&all, address(2), now));
            }
        }
    }

    #[test]
    fn one_byte_each_does_not_shut_the_door() {
        let all = Arc::new(Handshakes::new(2048));
        let numbers = || (0..16).flat_map(|number| std::iter::repeat_n(number, PER_NETWORK));
        let mut held: Vec<_> = numbers().map(|number| begun(&all, number).unwrap()).collect();
        assert_eq!(all.count(), 1024, "all places of strangers");
        let mut client = begun(&all, 100).expect("a network with none");
        assert!(is_ended(&mut held[0]), "the oldest");
        assert!(!held[1..].iter_mut().any(is_ended));
        // the attackers repeat it, and end only each other's connections
        for _ in 0..20 {
            held.extend(numbers().filter_map(|number| begun(&all, number)));
        }
        assert!(!is_ended(&mut client));
        assert_eq!(all.count(), 1024);
        // a network with the most handshakes gets no room from others
        let own = (0..16).find(|number| all.lock().of[&address(*number)].len() == PER_NETWORK);
        assert!(own.is_some_and(|number| begun(&all, number).is_none()));
    }

    #[test]
    fn networks_with_one_each_make_room_in_turn() {
        let all = Arc::new(Handshakes::new(256));
        let mut held: Vec<_> = (0..200).map(|number| begun(&all, number).unwrap()).collect();
        let ended: Vec<bool> = held.iter_mut().map(is_ended).collect();
        assert!(ended[..72].iter().all(|ended| *ended) && !ended[72..].contains(&true), "oldest first");
    }
}
