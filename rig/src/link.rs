//! A link between a node and its hub that can be disrupted: slow, stalled, cut, or forgotten.
//!
//! Owns a listening socket on loopback and the connections through it. Always holds: bytes that are passed on
//! are in order and unchanged; a stalled link delivers late, as TCP does; a forgotten connection never
//! carries another byte in either direction, and its node does not notice. Bytes are shown to an observer and
//! not changed.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting thread reads the link's state.
const TICK: Duration = Duration::from_millis(100);
/// How long the hub's side of a forgotten connection stays open: in reality TCP's own keepalive would end it.
/// The node's side stays open until the node gives up.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Bytes per read on a good link.
const PIECE: usize = 16 * 1024;

/// The treatment of bytes by a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Passes them on.
    Normal,
    /// Bytes per second, in each direction of each connection.
    Slow(u32),
    /// Holds them back until the state changes.
    Stalled,
    /// Ends every connection and refuses new ones.
    Cut,
}

impl std::fmt::Display for LinkState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkState::Normal => write!(out, "fair"),
            LinkState::Slow(rate) => write!(out, "slow, {rate} bytes a second"),
            LinkState::Stalled => write!(out, "stalled"),
            LinkState::Cut => write!(out, "cut"),
        }
    }
}

/// One connection through the link.
struct Connection {
    node: TcpStream,
    hub: TcpStream,
    forgotten: Mutex<Option<Instant>>,
    ended: AtomicBool,
}

impl Connection {
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for side in [&self.node, &self.hub] {
            // fails if the peer has already closed it
            let _ = side.shutdown(Shutdown::Both);
        }
    }

    fn forgotten(&self) -> Option<Instant> {
        *self.forgotten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives each piece that the link read: the number of the connection, from 0; true if it comes from the
/// node; the bytes.
pub type Observer = Box<dyn Fn(usize, bool, &[u8]) + Send + Sync>;

struct Shared {
    observer: Option<Observer>,
    state: Mutex<(LinkState, Vec<Arc<Connection>>)>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, (LinkState, Vec<Arc<Connection>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while nothing may pass, then returns what is allowed.
    fn passage(&self, connection: &Connection, is_up: bool) -> Passage {
        let mut guard = self.lock();
        loop {
            if connection.ended.load(Ordering::SeqCst) {
                return Passage::Over;
            }
            match (connection.forgotten(), guard.0) {
                // bytes that the node still sends are dropped, and reading them shows when it gives up
                (Some(_), _) if is_up => return Passage::Lost,
                (Some(since), _) if since.elapsed() >= FORGOTTEN => {
                    let _ = connection.hub.shutdown(Shutdown::Both);
                    return Passage::Over;
                }
                (None, LinkState::Normal) => return Passage::Free,
                (None, LinkState::Slow(rate)) => return Passage::Slow(rate),
                (Some(_), _) | (None, LinkState::Stalled | LinkState::Cut) => {}
            }
            (guard, _) = self.changed.wait_timeout(guard, TICK).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Permission for one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    Free,
    Slow(u32),
    /// Bytes are read and dropped.
    Lost,
    /// The direction is closed for good.
    Over,
}

/// A running link.
pub struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Link {
    /// Listens on a free port of 127.0.0.1 and passes everything on to `hub`.
    ///
    /// # Errors
    /// No port, or no thread.
    pub fn start(hub: SocketAddr) -> io::Result<Link> {
        Link::observed(hub, None)
    }

    /// The same; every piece is shown to the observer before it is passed on.
    ///
    /// # Errors
    /// As [`Link::start`].
    pub fn observed(hub: SocketAddr, observer: Option<Observer>) -> io::Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Mutex::new((LinkState::Normal, Vec::new()));
        let shared = Arc::new(Shared { observer, state, changed: Condvar::new() });
        let own = shared.clone();
        std::thread::Builder::new().name("link".into()).spawn(move || {
            for (number, node) in listener.incoming().flatten().enumerate() {
                // if the hub refuses, the link refuses as well by dropping the node's socket
                let _ = connect(&own, number, node, hub);
            }
        })?;
        Ok(Link { address, shared })
    }

    /// The address for the node to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state at once, including open connections.
    pub fn set(&self, state: LinkState) {
        let mut guard = self.shared.lock();
        guard.0 = state;
        if state == LinkState::Cut {
            guard.1.drain(..).for_each(|connection| connection.end());
        }
        self.shared.changed.notify_all();
    }

    /// As after a router lost its table: open connections are dead, and neither end is notified. New ones
    /// work.
    pub fn forget(&self) {
        let mut guard = self.shared.lock();
        for connection in guard.1.drain(..) {
            connection.forgotten.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Instant::now());
        }
        self.shared.changed.notify_all();
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.shared.lock().1.iter().filter(|connection| !connection.ended.load(Ordering::SeqCst)).count()
    }
}

fn connect(shared: &Arc<Shared>, number: usize, node: TcpStream, hub: SocketAddr) -> io::Result<()> {
    if shared.lock().0 == LinkState::Cut {
        return Ok(());
    }
    let hub = TcpStream::connect(hub)?;
    for side in [&node, &hub] {
        side.set_nodelay(true)?;
        side.set_read_timeout(Some(TICK))?;
    }
    let connection =
        Arc::new(Connection { node, hub, forgotten: Mutex::new(None), ended: AtomicBool::new(false) });
    {
        let mut guard = shared.lock();
        guard.1.retain(|connection| !connection.ended.load(Ordering::SeqCst));
        guard.1.push(connection.clone());
    }
    for is_up in [true, false] {
        let (shared, connection) = (shared.clone(), connection.clone());
        std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || pass(&shared, &connection, number, is_up))?;
    }
    Ok(())
}

/// Passes bytes in one direction, until either side closes.
fn pass(shared: &Shared, connection: &Connection, number: usize, is_up: bool) {
    let (mut from, mut to) =
        if is_up { (&connection.node, &connection.hub) } else { (&connection.hub, &connection.node) };
    let mut buffer = vec![0; PIECE];
    loop {
        let room = match shared.passage(connection, is_up) {
            Passage::Over => break,
            Passage::Slow(rate) => (rate as usize / 10).clamp(1, PIECE),
            Passage::Free | Passage::Lost => PIECE,
        };
        let count = match from.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => break,
        };
        if let Some(observer) = &shared.observer {
            observer(number, is_up, &buffer[..count]);
        }
        // the state may have changed during the read
        match shared.passage(connection, is_up) {
            Passage::Over => break,
            Passage::Lost => continue,
            Passage::Slow(rate) => {
                std::thread::sleep(Duration::from_secs(1).mul_f64(count as f64 / f64::from(rate.max(1))));
            }
            Passage::Free => {}
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // the hub's side of a forgotten connection ends first, and the node must not notice
    if is_up || connection.forgotten().is_none() {
        connection.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pair {
        link: Link,
        node: TcpStream,
        hub: TcpStream,
    }

    fn pair() -> Pair {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::start(listener.local_addr().unwrap()).unwrap();
        let node = TcpStream::connect(link.address()).unwrap();
        let (hub, _) = listener.accept().unwrap();
        for side in [&node, &hub] {
            side.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        // the hub's side exists a moment before the link counts the connection
        let known = crate::scratch::poll(Duration::from_secs(20), || (link.open() == 1).then_some(()));
        assert!(known.is_some(), "the link never knew the connection");
        Pair { link, node, hub }
    }

    fn read(mut from: &TcpStream, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        from.read_exact(&mut bytes).map(|()| bytes)
    }

    #[test]
    fn stalled_link_delivers_late_and_in_order() {
        let mut pair = pair();
        pair.node.write_all(b"one").unwrap();
        assert_eq!(read(&pair.hub, 3).unwrap(), b"one");
        pair.link.set(LinkState::Stalled);
        pair.node.write_all(b"two").unwrap();
        pair.hub.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(read(&pair.hub, 1).is_err(), "a stalled link passes nothing");
        pair.link.set(LinkState::Slow(100_000));
        pair.hub.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(read(&pair.hub, 3).unwrap(), b"two");
        pair.hub.write_all(b"three").unwrap();
        assert_eq!(read(&pair.node, 5).unwrap(), b"three");
    }

    #[test]
    fn cut_link_closes_and_refuses_connections() {
        let pair = pair();
        pair.link.set(LinkState::Cut);
        assert!(read(&pair.node, 1).is_err());
        assert!(read(&pair.hub, 1).is_err());
        assert_eq!(pair.link.open(), 0);
        let refused = TcpStream::connect(pair.link.address()).unwrap();
        refused.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert!(read(&refused, 1).is_err());
    }

    #[test]
    fn forgotten_connection_stays_open_and_carries_nothing() {
        let mut pair = pair();
        pair.link.forget();
        pair.node.write_all(b"lost").unwrap();
        for side in [&pair.node, &pair.hub] {
            side.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let error = read(side, 1).unwrap_err();
            assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        }
    }
}
