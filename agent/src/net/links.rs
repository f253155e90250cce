//! The open connections to one server, and which of them may be dead: a router that restarts forgets all
//! connections at once, and sends no reset.
//!
//! Owns the time of the last bytes on each connection, and the addresses that did not serve. Always holds: a
//! connection is ended only after a kept one proved dead, a new one was made since, and no bytes arrived on
//! it since the request that found the dead one; so neither a slow server nor a link that is down costs a
//! connection. An address is avoided for [`AVOIDED`] at most, and only where its name has another. Leaves to
//! others: the outcome of a request on an ended connection (`client`).

use crate::locks::locked;
use socket2::Socket;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long an address that accepted connections and served none is tried after the others of its name.
const AVOIDED: Duration = Duration::from_secs(60);

/// Most addresses that are remembered as such: two names' worth.
const MAX_AVOIDED: usize = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct Links(Mutex<State>);

#[derive(Default)]
struct State {
    open: Vec<Weak<Link>>,
    /// A kept connection proved dead, and none was made since: when the request that found it began.
    dead: Option<Instant>,
    avoided: Vec<(SocketAddr, Instant)>,
}

/// One open connection.
pub(crate) struct Link {
    pub(crate) socket: Arc<Socket>,
    heard: Mutex<Instant>,
}

impl Link {
    /// Records that bytes arrived on it.
    pub(crate) fn heard(&self) {
        *locked(&self.heard) = Instant::now();
    }
}

impl Links {
    /// Records a new connection. If a kept one had proved dead, the new one shows that the server is there
    /// and that a router, or the server, forgot connections: those that have been silent as long are ended,
    /// so that their streams reconnect.
    pub(crate) fn made(&self, socket: Arc<Socket>) -> Arc<Link> {
        let link = Arc::new(Link { socket, heard: Mutex::new(Instant::now()) });
        let mut state = locked(&self.0);
        let dead = state.dead.take();
        state.open.retain(|link| {
            let Some(link) = link.upgrade() else { return false };
            let is_suspect = dead.is_some_and(|begun| *locked(&link.heard) < begun);
            if is_suspect {
                // an error means that it is closed already
                let _ = link.socket.shutdown(std::net::Shutdown::Both);
            }
            !is_suspect
        });
        state.open.push(Arc::downgrade(&link));
        link
    }

    /// Records that the kept connection of a request that began then is dead.
    pub(crate) fn proved_dead(&self, begun: Instant) {
        let mut state = locked(&self.0);
        state.dead = Some(state.dead.map_or(begun, |earlier| earlier.min(begun)));
    }

    /// Records that this address does not serve, whether or not it accepts connections.
    pub(crate) fn avoid(&self, address: SocketAddr) {
        let mut state = locked(&self.0);
        state.avoided.retain(|(avoided, until)| *avoided != address && Instant::now() < *until);
        if state.avoided.len() < MAX_AVOIDED {
            state.avoided.push((address, Instant::now() + AVOIDED));
        }
    }

    /// Puts the addresses that did not serve last.
    pub(crate) fn order(&self, addresses: &mut [SocketAddr]) {
        let state = locked(&self.0);
        let now = Instant::now();
        let is_avoided = |address: &SocketAddr| {
            state.avoided.iter().any(|(avoided, until)| avoided == address && now < *until)
        };
        kedge_api::sort::sort_by_key(addresses, is_avoided);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    /// A connection, and its other end.
    fn linked(links: &Links, listener: &TcpListener) -> (Arc<Link>, TcpStream) {
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (links.made(Arc::new(socket.into())), listener.accept().unwrap().0)
    }

    fn is_ended((_, far): &mut (Arc<Link>, TcpStream)) -> bool {
        far.set_nonblocking(true).unwrap();
        matches!(far.read(&mut [0]), Ok(0))
    }

    #[test]
    fn dead_connection_ends_those_as_quiet_once_another_is_made() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let links = Links::default();
        let mut quiet = linked(&links, &listener);
        let mut heard = linked(&links, &listener);
        let begun = Instant::now();
        heard.0.heard();
        links.proved_dead(begun);
        assert!(!is_ended(&mut quiet), "the link may be down, and come back");
        let mut new = linked(&links, &listener);
        assert_eq!([&mut quiet, &mut heard, &mut new].map(is_ended), [true, false, false]);
        // the next connection is not made because of a dead one
        let mut later = linked(&links, &listener);
        assert_eq!([&mut heard, &mut new, &mut later].map(is_ended), [false; 3]);
    }

    #[test]
    fn address_that_did_not_serve_comes_after_the_others() {
        let links = Links::default();
        let of = |last: u8| SocketAddr::from(([10, 0, 0, last], 443));
        let ordered = || {
            let mut addresses = [of(1), of(2), of(3)];
            links.order(&mut addresses);
            addresses
        };
        assert_eq!(ordered(), [of(1), of(2), of(3)]);
        links.avoid(of(1));
        assert_eq!(ordered(), [of(2), of(3), of(1)]);
        for last in 1..=100 {
            links.avoid(of(last));
        }
        assert!(locked(&links.0).avoided.len() <= MAX_AVOIDED);
    }
}
