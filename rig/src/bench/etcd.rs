//! An etcd of its own beside the hub: one member on the same disk, and the smallest gRPC client that can put a key.
//!
//! Always holds: a put counts when etcd answered it with the revision it made, which it does after its log was flushed. The way is
//! etcd's own (gRPC), without TLS and without reading before writing: the cheapest durable write it has, so what is seen here flatters
//! it beside the hub, which encrypts, authenticates, patches and checks. Not for anything but measuring.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kedge_rig::error::KitError;

use crate::stage::{PATIENCE, io as failed};

/// Longest wait for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How often a starting member is asked.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Largest frame that is read; HTTP/2 allows no larger one unasked.
const FRAME_BYTES: usize = 16 * 1024;

/// Where the fetched program is: `$KEDGE_ETCD_DIR` or the repository's target directory; none if it was not fetched.
pub(crate) fn program() -> Option<PathBuf> {
    let dir = match std::env::var_os("KEDGE_ETCD_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/etcd"),
    };
    dir.join("etcd").canonicalize().ok()
}

/// A running member; it ends when dropped.
pub(crate) struct Etcd {
    child: Child,
    address: SocketAddr,
    data_dir: PathBuf,
}

impl Etcd {
    /// Starts it with its defaults, and waits until it takes a put.
    pub(crate) fn start(program: &Path, dir: &Path) -> Result<Etcd, KitError> {
        let (address, peers) = (free_address()?, free_address()?);
        let (clients, peers) = (format!("http://{address}"), format!("http://{peers}"));
        let data_dir = dir.join("etcd");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .arg("--data-dir")
            .arg(&data_dir)
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--logger", "zap", "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed("start etcd"))?;
        let etcd = Etcd { child, address, data_dir };
        let begun = Instant::now();
        while let Err(error) = etcd.connect().and_then(|mut connection| connection.put(b"ready", b"yes")) {
            if begun.elapsed() > PATIENCE {
                return Err(failed("wait for etcd's first answer")(error));
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(etcd)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        // setpriv becomes the program, it does not start another
        self.child.id().try_into().unwrap_or(0)
    }

    /// Where it keeps what it was told.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.address)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // its data is thrown away: nothing needs an orderly end
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// etcd cannot be told to choose a port and say which: one that is free now.
fn free_address() -> Result<SocketAddr, KitError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map_err(failed("find a free port"))
}

/// One HTTP/2 connection, with one call at a time.
pub(crate) struct Connection {
    socket: TcpStream,
    host: String,
    stream: u32,
}

mod frame {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    /// Of DATA and HEADERS.
    pub(super) const END_STREAM: u8 = 1;
    /// Of SETTINGS and PING.
    pub(super) const ACK: u8 = 1;
    /// Of HEADERS.
    pub(super) const END_HEADERS: u8 = 4;
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Connection {
    /// Opens a connection.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Connection> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut connection = Connection { socket, host: address.to_string(), stream: 1 };
        let mut greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // all defaults; and answers may come for ever without our counting them
        greeting.extend(frame_of(frame::SETTINGS, 0, 0, &[]));
        greeting.extend(frame_of(frame::WINDOW_UPDATE, 0, 0, &(i32::MAX - 65_535).to_be_bytes()));
        connection.socket.write_all(&greeting)?;
        Ok(connection)
    }

    /// Puts a key; returns the revision that made.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<u64> {
        let mut message = Vec::new();
        bytes_field(&mut message, 1, key);
        bytes_field(&mut message, 2, value);
        let answer = self.call("/etcdserverpb.KV/Put", &message)?;
        // PutResponse.header.revision
        let header = field(&answer, 1)
            .and_then(Field::bytes)
            .ok_or_else(|| invalid("a put's answer has no header"))?;
        match field(header, 3) {
            Some(Field::Number(revision)) if revision > 0 => Ok(revision),
            _ => Err(invalid("a put's answer has no revision")),
        }
    }

    /// One call with one message each way.
    fn call(&mut self, path: &str, message: &[u8]) -> io::Result<Vec<u8>> {
        let stream = self.stream;
        self.stream += 2;
        let mut body = vec![0];
        body.extend(
            u32::try_from(message.len()).map_err(|_| invalid("the message is too long"))?.to_be_bytes(),
        );
        body.extend_from_slice(message);
        let mut text = frame_of(frame::HEADERS, frame::END_HEADERS, stream, &self.headers(path));
        text.extend(frame_of(frame::DATA, frame::END_STREAM, stream, &body));
        self.socket.write_all(&text)?;
        let answer = self.answer(stream)?;
        // an error is told in the trailers alone, so a message is a success; its text is not worth a decompressor
        match answer.split_at_checked(5) {
            Some(([0, length @ ..], message)) if length == (message.len() as u32).to_be_bytes() => {
                Ok(message.to_vec())
            }
            _ => Err(invalid(format!("{path}: {} bytes answered, expected one message", answer.len()))),
        }
    }

    /// Headers as HPACK writes them without a table of its own and without Huffman's code.
    fn headers(&self, path: &str) -> Vec<u8> {
        // POST and http, from the static table
        let mut block = vec![0x83, 0x86];
        for (index, name, value) in [
            (&[0x04][..], "", path),
            (&[0x01], "", &self.host),
            (&[0x0f, 0x10], "", "application/grpc"),
            (&[0x00], "te", "trailers"),
        ] {
            block.extend_from_slice(index);
            for text in [name, value].into_iter().filter(|text| !text.is_empty()) {
                // shorter than 127: one byte of length
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        }
        block
    }

    /// What is sent on a stream until its end.
    fn answer(&mut self, wanted: u32) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        loop {
            let mut head = [0; 9];
            self.socket.read_exact(&mut head)?;
            let [a, b, c, kind, flags, id @ ..] = head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes(id) & 0x7fff_ffff;
            if length > FRAME_BYTES {
                return Err(invalid(format!("a frame of {length} bytes")));
            }
            let mut payload = vec![0; length];
            self.socket.read_exact(&mut payload)?;
            match kind {
                frame::SETTINGS if flags & frame::ACK == 0 => {
                    self.socket.write_all(&frame_of(frame::SETTINGS, frame::ACK, 0, &[]))?;
                }
                frame::PING if flags & frame::ACK == 0 => {
                    self.socket.write_all(&frame_of(frame::PING, frame::ACK, 0, &payload))?;
                }
                frame::GOAWAY => return Err(invalid("etcd ends the connection")),
                frame::RST_STREAM if stream == wanted => return Err(invalid("etcd refuses the call")),
                frame::DATA if stream == wanted => answer.extend_from_slice(&payload),
                _ => {}
            }
            let ends = matches!(kind, frame::DATA | frame::HEADERS) && flags & frame::END_STREAM != 0;
            if ends && stream == wanted {
                return Ok(answer);
            }
        }
    }
}

fn frame_of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    // 24 bits of length: no payload here comes near them
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn bytes_field(to: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(to, number << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// A field of a protobuf message.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Field::Bytes(bytes) => Some(bytes),
            Field::Number(_) => None,
        }
    }
}

fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The first field of this number: numbers and bytes only, as in all of etcd's headers.
fn field(mut message: &[u8], wanted: u64) -> Option<Field<'_>> {
    loop {
        let key = read_varint(&mut message)?;
        let field = match key & 7 {
            0 => Field::Number(read_varint(&mut message)?),
            2 => {
                let length = usize::try_from(read_varint(&mut message)?).ok()?;
                let (bytes, rest) = message.split_at_checked(length)?;
                message = rest;
                Field::Bytes(bytes)
            }
            _ => return None,
        };
        if key >> 3 == wanted {
            return Some(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let mut inner = Vec::new();
        varint(&mut inner, 3 << 3);
        varint(&mut inner, 300);
        let mut message = Vec::new();
        bytes_field(&mut message, 2, b"other");
        bytes_field(&mut message, 1, &inner);
        let header = field(&message, 1).and_then(Field::bytes).unwrap();
        assert_eq!(field(header, 3), Some(Field::Number(300)));
        assert_eq!(field(header, 4), None);
        assert_eq!(field(&message[..3], 2), None, "cut off");
    }

    #[test]
    fn a_put_counts_only_with_its_revision() {
        // what etcd 3.4 answers, frame by frame; then an error, which is trailers alone
        let check = |frames: Vec<Vec<u8>>, expect: Option<u64>| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                socket.write_all(&frames.concat()).unwrap();
                // until the client leaves
                let _ = io::copy(&mut socket, &mut io::sink());
            });
            let mut connection = Connection::open(address).unwrap();
            assert_eq!(connection.put(b"k", b"v").ok(), expect);
            drop(connection);
            server.join().unwrap();
        };
        let settings = frame_of(frame::SETTINGS, 0, 0, &[]);
        let head = frame_of(frame::HEADERS, frame::END_HEADERS, 1, &[0x88]);
        // says that it is longer than it is
        let message = [0, 0, 0, 0, 5, 0x0a, 2, 0x18, 0x07];
        let trailers = frame_of(frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 1, &[0x88]);
        let data = frame_of(frame::DATA, 0, 1, &message);
        check(vec![settings.clone(), head.clone(), data, trailers.clone()], None);
        let message = [0, 0, 0, 0, 4, 0x0a, 2, 0x18, 0x07];
        let data = frame_of(frame::DATA, 0, 1, &message);
        check(vec![settings.clone(), head, data, trailers.clone()], Some(7));
        check(vec![settings.clone(), trailers], None);
        check(vec![settings, frame_of(frame::GOAWAY, 0, 0, &[0; 8])], None);
    }
}
