//! A TCP relay between an agent and its hub that reads the heads of TLS records: it counts the bytes of each
//! side, with times.
//!
//! Always holds: bytes are passed on unchanged, at once; nothing is decrypted. It counts the bytes that TCP
//! carries: TLS records with their 5-byte heads and their tags, without the headers of TCP and IP.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kedge_rig::link::Link;

/// The type of TLS records that carry HTTP (and, in TLS 1.3, most of the handshake).
const APPLICATION_DATA: u8 = 23;

/// One TLS record that was passed on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Record {
    /// When its last byte was passed on.
    pub(crate) at: Instant,
    /// The number of its connection, counted from 0.
    pub(crate) connection: usize,
    /// True if it goes from the agent to the hub.
    pub(crate) is_up: bool,
    /// TLS content type.
    pub(crate) content: u8,
    /// All its bytes, head included.
    pub(crate) bytes: usize,
}

/// A running relay.
pub(crate) struct Relay {
    link: Link,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Relay {
    /// Listens on a free port and passes everything on to `target`.
    pub(crate) fn start(target: SocketAddr) -> io::Result<Relay> {
        let records: Arc<Mutex<Vec<Record>>> = Arc::default();
        let log = records.clone();
        let streams: Mutex<BTreeMap<(usize, bool), Heads>> = Mutex::default();
        let observer = move |connection, is_up, bytes: &[u8]| {
            let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.entry((connection, is_up)).or_default().read(bytes, |content, bytes| {
                let record = Record { at: Instant::now(), connection, is_up, content, bytes };
                log.lock().unwrap_or_else(PoisonError::into_inner).push(record);
            });
        };
        Ok(Relay { link: Link::observed(target, Some(Box::new(observer)))?, records })
    }

    /// The address for the agent to connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.link.address()
    }

    /// The number of the agent's open connections.
    pub(crate) fn open(&self) -> usize {
        self.link.open()
    }

    /// All records so far.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Finds the records in a stream that arrives in arbitrary pieces.
#[derive(Default)]
struct Heads {
    head: Vec<u8>,
    left: usize,
}

impl Heads {
    fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(u8, usize)) {
        while !bytes.is_empty() {
            if self.head.len() < 5 {
                let take = (5 - self.head.len()).min(bytes.len());
                self.head.extend_from_slice(&bytes[..take]);
                bytes = &bytes[take..];
                if self.head.len() < 5 {
                    return;
                }
                self.left = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
            }
            // also for an empty record, which consists only of its head
            let take = self.left.min(bytes.len());
            self.left -= take;
            bytes = &bytes[take..];
            if self.left == 0 {
                let length = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
                found(self.head[0], length + 5);
                self.head.clear();
            }
        }
    }
}

/// The traffic of one connection.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Traffic {
    /// The number of the connection.
    pub(crate) connection: usize,
    /// Bytes from the agent.
    pub(crate) up_bytes: usize,
    /// Bytes to the agent.
    pub(crate) down_bytes: usize,
    /// Requests with answers: how often the agent sent something after the hub had.
    pub(crate) exchanges: usize,
    /// Sizes of the records to the agent.
    pub(crate) down_records: Vec<usize>,
}

impl Traffic {
    /// Bytes in both directions.
    pub(crate) fn bytes(&self) -> usize {
        self.up_bytes + self.down_bytes
    }
}

/// Sorts records by connection.
pub(crate) fn by_connection<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Traffic> {
    let mut all: Vec<Traffic> = Vec::new();
    let mut up_before: Vec<bool> = Vec::new();
    for record in records {
        let at =
            all.iter().position(|traffic| traffic.connection == record.connection).unwrap_or_else(|| {
                all.push(Traffic { connection: record.connection, ..Traffic::default() });
                up_before.push(false);
                all.len() - 1
            });
        let traffic = &mut all[at];
        if record.is_up {
            traffic.up_bytes += record.bytes;
            if !up_before[at] && record.content == APPLICATION_DATA {
                traffic.exchanges += 1;
            }
        } else {
            traffic.down_bytes += record.bytes;
            traffic.down_records.push(record.bytes);
        }
        up_before[at] = record.is_up;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn tls_records_are_found_in_any_pieces() {
        let mut stream = vec![22, 3, 3, 0, 2, 9, 9];
        stream.extend([23, 3, 3, 0, 0]);
        stream.extend([23, 3, 3, 1, 0]);
        stream.extend([7; 256]);
        for piece in [1, 2, 5, 6, 300] {
            let mut heads = Heads::default();
            let mut seen = Vec::new();
            for part in stream.chunks(piece) {
                heads.read(part, |content, bytes| seen.push((content, bytes)));
            }
            assert_eq!(seen, [(22, 7), (23, 5), (23, 261)], "pieces of {piece}");
        }
    }

    #[test]
    fn exchange_is_an_agent_message_after_a_hub_message() {
        let at = Instant::now();
        let record = |connection, is_up, bytes| Record { at, connection, is_up, content: 23, bytes };
        let records = [
            record(0, true, 100),
            record(0, true, 50),
            record(1, false, 7),
            record(0, false, 30),
            record(0, true, 100),
            record(0, false, 30),
        ];
        let traffic = by_connection(records.iter());
        assert_eq!(traffic[0].exchanges, 2);
        assert_eq!((traffic[0].up_bytes, traffic[0].down_bytes), (250, 60));
        assert_eq!(traffic[1].down_records, [7]);
        assert_eq!(traffic[1].exchanges, 0);
    }

    #[test]
    fn bytes_pass_both_ways() {
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(hub.local_addr().unwrap()).unwrap();
        let mut agent = TcpStream::connect(relay.address()).unwrap();
        agent.write_all(&[23, 3, 3, 0, 1, 5]).unwrap();
        let (mut served, _) = hub.accept().unwrap();
        let mut got = [0; 6];
        served.read_exact(&mut got).unwrap();
        served.write_all(&[23, 3, 3, 0, 2, 5, 5]).unwrap();
        let mut back = [0; 7];
        agent.read_exact(&mut back).unwrap();
        let seen: Vec<_> = relay.records().iter().map(|record| (record.is_up, record.bytes)).collect();
        assert_eq!(seen, [(true, 6), (false, 7)]);
    }
}
