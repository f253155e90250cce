//! Callers that are not authenticated yet: how many there may be, and how often their tokens may be wrong.
//!
//! Always holds: at most [`MOST`] wait, [`MOST_OF_ONE`] of them from one address; a further one replaces the
//! one that has waited longest, so silent connections keep no client out. No clock here: the caller gives the
//! time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Most strangers, at some 40 KiB for a handshake.
pub(super) const MOST: usize = 32;
/// Most of one address: the API server's connections begin one by one, in milliseconds each.
pub(super) const MOST_OF_ONE: usize = 16;

/// Most unknown tokens, from one address and from all, in [`WINDOW`]: each costs a request, on a line that
/// may be metered.
const MOST_WRONG_OF_ONE: u32 = 10;
const MOST_WRONG: u32 = 60;
const WINDOW: Duration = Duration::from_secs(60);

/// The unit of counting: an address; for IPv6 its network, because each machine has many addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer([u8; 8]);

impl Peer {
    pub(super) fn of(address: IpAddr) -> Self {
        let mut octets = [0; 8];
        match address.to_canonical() {
            // ::/32 belongs to nobody
            IpAddr::V4(address) => octets[4..].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets.copy_from_slice(&address.octets()[..8]),
        }
        Self(octets)
    }
}

/// The waiting callers, the longest first. Each learns through its receiver that it has to leave.
#[derive(Default)]
pub(super) struct Strangers {
    waiting: Vec<(u64, Peer, oneshot::Sender<()>)>,
    next: u64,
}

impl Strangers {
    /// Adds one; returns its number, and a receiver that ends when it must leave.
    pub(super) fn enter(&mut self, peer: Peer) -> (u64, oneshot::Receiver<()>) {
        if self.of(peer) >= MOST_OF_ONE {
            self.send_away(peer);
        } else if self.waiting.len() >= MOST
            && let Some(busiest) =
                self.waiting.iter().map(|(_, peer, _)| *peer).max_by_key(|peer| self.of(*peer))
        {
            self.send_away(busiest);
        }
        let (sender, receiver) = oneshot::channel();
        self.next += 1;
        self.waiting.push((self.next, peer, sender));
        (self.next, receiver)
    }

    /// Forgets a connection that is gone, or is not a stranger's any more.
    pub(super) fn leave(&mut self, number: u64) {
        self.waiting.retain(|(known, ..)| *known != number);
    }

    fn of(&self, peer: Peer) -> usize {
        self.waiting.iter().filter(|(_, known, _)| *known == peer).count()
    }

    fn send_away(&mut self, peer: Peer) {
        if let Some(oldest) = self.waiting.iter().position(|(_, known, _)| *known == peer) {
            self.waiting.remove(oldest);
        }
    }
}

/// Wrong tokens of the current window.
#[derive(Default)]
pub(super) struct Wrong {
    since: Option<Instant>,
    of: HashMap<Peer, u32>,
    all: u32,
}

impl Wrong {
    /// Whether the API server may be asked about a token of this caller that is not cached.
    pub(super) fn may_ask(&mut self, peer: Peer, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            *self = Self { since: Some(now), ..Self::default() };
        }
        self.all < MOST_WRONG && self.of.get(&peer).is_none_or(|count| *count < MOST_WRONG_OF_ONE)
    }

    /// Counts a wrong token.
    pub(super) fn note(&mut self, peer: Peer) {
        self.all += 1;
        // at most as many entries as wrong tokens in a window
        *self.of.entry(peer).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn one_too_many_costs_the_oldest_of_the_same_peer() {
        let mut strangers = Strangers::default();
        let (_, mut honest) = strangers.enter(peer(1));
        let mut idle: Vec<_> = (0..1000).map(|_| strangers.enter(peer(2)).1).collect();
        let is_there = |receiver: &mut oneshot::Receiver<()>| {
            receiver.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(is_there(&mut honest));
        let left = idle.iter_mut().filter_map(|one| is_there(one).then_some(())).count();
        assert!(left == MOST_OF_ONE && is_there(&mut idle[999]), "{left}");
    }

    #[test]
    fn full_house_costs_the_busiest_peer() {
        let mut strangers = Strangers::default();
        let (_, mut honest) = strangers.enter(peer(0));
        let many: Vec<_> = (0..200).map(|number| strangers.enter(peer(1 + number % 3))).collect();
        assert_eq!(strangers.waiting.len(), MOST);
        assert_eq!(honest.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let (last, _) = many.last().unwrap();
        strangers.leave(*last);
        assert_eq!(strangers.waiting.len(), MOST - 1);
    }

    #[test]
    fn wrong_tokens_are_bounded_by_peer_and_in_all() {
        let (mut wrong, now) = (Wrong::default(), Instant::now());
        let asked = |wrong: &mut Wrong, peer: Peer, now: Instant| {
            let may = wrong.may_ask(peer, now);
            if may {
                wrong.note(peer);
            }
            may
        };
        assert_eq!((0..100).filter(|_| asked(&mut wrong, peer(1), now)).count(), 10);
        assert!(asked(&mut wrong, peer(2), now));
        assert_eq!((0..250).filter(|last| asked(&mut wrong, peer(*last), now)).count(), 49);
        assert!(asked(&mut wrong, peer(1), now + WINDOW));
    }

    #[test]
    fn peers_of_ipv6_are_networks() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), peer(1));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
