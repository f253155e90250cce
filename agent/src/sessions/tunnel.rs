//! A stream inside a WebSocket, as kubectl carries SPDY to a server that may be behind proxies: written bytes
//! become binary messages, and messages become bytes; the borders between messages have no meaning.
//!
//! Always holds: a message has at most [`MESSAGE_BYTES`]; besides it [`PIPE_BYTES`] wait each way, so a side
//! that does not read stops the other. Leaves to others: frames (tungstenite), the content.

use crate::kubelet_api::node::Stream;
use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tungstenite::error::Error;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

/// Longest message that is accepted: kubectl sends some 32 KiB at once.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// Most bytes that wait between the two sides, each way, and that are read at once.
const PIPE_BYTES: usize = 16 * 1024;
/// How long a client may take to hang up once the end was sent to it.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// The buffers between the library and the client's stream.
#[derive(Default)]
struct Between {
    received: Vec<u8>,
    to_send: Vec<u8>,
}

impl Read for Between {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.received.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let amount = self.received.len().min(buffer.len());
        buffer[..amount].copy_from_slice(&self.received[..amount]);
        self.received.drain(..amount);
        Ok(amount)
    }
}

impl Write for Between {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to_send.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Tunnel {
    socket: Mutex<WebSocket<Between>>,
    /// Notified when the library itself has something to send: an answer to a ping, or to an end.
    answers: Notify,
}

/// Carries the bytes of `inner` in the messages of a client, until both sides have ended their output, or the
/// client is gone.
///
/// # Errors
/// The client's stream broke, or it does not speak WebSocket.
pub(crate) async fn carry(client: Box<dyn Stream>, inner: DuplexStream) -> io::Result<()> {
    let config = WebSocketConfig::default()
        .read_buffer_size(PIPE_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    let socket = WebSocket::from_raw_socket(Between::default(), Role::Server, Some(config));
    let tunnel = Tunnel { socket: Mutex::new(socket), answers: Notify::new() };
    let (client_in, client_out) = tokio::io::split(client);
    let (inner_in, inner_out) = tokio::io::split(inner);
    let (inward, outward) = (tunnel.inward(client_in, inner_out), tunnel.outward(inner_in, client_out));
    tokio::pin!(inward, outward);
    tokio::select! {
        // the client has ended its output: the inner side sees that, and ends by itself
        done = &mut inward => {
            done?;
            timeout(LAST_PATIENCE, outward).await.unwrap_or(Ok(()))
        }
        done = &mut outward => {
            done?;
            // keep reading, so that the client does not lose the end to a connection reset
            timeout(LAST_PATIENCE, inward).await.unwrap_or(Ok(()))
        }
    }
}

/// Both ends of a pipe to be carried.
pub(crate) fn pipe() -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(PIPE_BYTES)
}

impl Tunnel {
    fn socket(&self) -> MutexGuard<'_, WebSocket<Between>> {
        // nothing panics while it is held
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn inward(
        &self,
        mut client: impl AsyncRead + Unpin,
        mut inner: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; PIPE_BYTES];
        loop {
            let amount = client.read(&mut buffer).await?;
            if amount == 0 {
                return inner.shutdown().await;
            }
            let (carried, has_ended) = self.heard(&buffer[..amount])?;
            self.answers.notify_one();
            // a side that has ended accepts no more, and further bytes are dropped
            let _ = inner.write_all(&carried).await;
            if has_ended {
                return inner.shutdown().await;
            }
        }
    }

    /// The content of the messages that these bytes complete, and whether the client marked its end.
    fn heard(&self, bytes: &[u8]) -> io::Result<(Vec<u8>, bool)> {
        let mut socket = self.socket();
        socket.get_mut().received.extend_from_slice(bytes);
        let mut carried = Vec::new();
        loop {
            if socket.get_ref().to_send.len() > MESSAGE_BYTES {
                return Err(garbled("it reads no answers"));
            }
            match socket.read() {
                Ok(Message::Binary(bytes)) => carried.extend_from_slice(&bytes),
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => {
                    return Ok((carried, true));
                }
                Ok(Message::Text(_)) => return Err(garbled("a message of text")),
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((carried, false));
                }
                Err(error) => return Err(garbled(error)),
            }
        }
    }

    async fn outward(
        &self,
        mut inner: impl AsyncRead + Unpin,
        mut client: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; PIPE_BYTES];
        loop {
            let read = tokio::select! {
                read = inner.read(&mut buffer) => Some(read?),
                () = self.answers.notified() => None,
            };
            let to_send = self.said(read.map(|amount| &buffer[..amount]))?;
            client.write_all(&to_send).await?;
            client.flush().await?;
            if read == Some(0) {
                return client.shutdown().await;
            }
        }
    }

    /// The bytes to be sent, with these in a message of their own; an empty slice is the end.
    fn said(&self, carried: Option<&[u8]>) -> io::Result<Vec<u8>> {
        let mut socket = self.socket();
        let sent = match carried {
            None => socket.flush(),
            Some([]) => socket.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })),
            Some(bytes) => socket.write(Message::binary(bytes.to_vec())),
        };
        match sent.and_then(|()| socket.flush()) {
            Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(_)) => {}
            Err(error) => return Err(garbled(error)),
        }
        Ok(std::mem::take(&mut socket.get_mut().to_send))
    }
}

fn garbled(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the client's WebSocket: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as a client sends it, with a mask of zeros.
    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 0x80 | payload.len() as u8, 0, 0, 0, 0], payload].concat()
    }

    #[tokio::test]
    async fn messages_carry_bytes_whatever_their_limits() {
        let (mut client, node) = tokio::io::duplex(1024);
        let (ours, mut inside) = pipe();
        let talking = async {
            // in parts, and with a ping between them
            let said = [frame(0x02, b"one "), frame(0x89, b"p"), frame(0x80, b"two "), frame(0x82, b"three")];
            client.write_all(&said.concat()).await.unwrap();
            let mut pong = [0; 3];
            client.read_exact(&mut pong).await.unwrap();
            assert_eq!(&pong, b"\x8a\x01p");
            let mut heard = [0; 13];
            inside.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"one two three");
            inside.write_all(b"four").await.unwrap();
            let mut answer = [0; 6];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"\x82\x04four");
            // the end of one side is sent to the other, which hangs up
            drop(inside);
            let mut end = Vec::new();
            client.read_to_end(&mut end).await.unwrap();
            assert_eq!(end, b"\x88\x02\x03\xe8");
            client.write_all(&frame(0x88, b"\x03\xe8")).await.unwrap();
            drop(client);
        };
        let (carried, ()) = tokio::join!(carry(Box::new(node), ours), talking);
        carried.unwrap();
    }

    #[tokio::test]
    async fn client_that_leaves_ends_what_is_inside() {
        for last in [frame(0x88, b"\x03\xe8"), Vec::new()] {
            let (mut client, node) = tokio::io::duplex(1024);
            let (ours, mut inside) = pipe();
            client.write_all(&[frame(0x82, b"last"), last].concat()).await.unwrap();
            client.shutdown().await.unwrap();
            let listening = async {
                let mut heard = String::new();
                inside.read_to_string(&mut heard).await.unwrap();
                assert_eq!(heard, "last");
                drop(inside);
            };
            let (carried, ()) = tokio::join!(carry(Box::new(node), ours), listening);
            carried.unwrap();
        }
    }

    #[tokio::test]
    async fn client_that_speaks_no_websocket_is_gone() {
        for said in [b"\x82\x01no mask".as_slice(), &frame(0x81, b"text"), &[0xff; 20]] {
            let (mut client, node) = tokio::io::duplex(1024);
            client.write_all(said).await.unwrap();
            let error = carry(Box::new(node), pipe().0).await.unwrap_err().to_string();
            assert!(error.starts_with("the client's WebSocket: "), "{error}");
        }
    }
}
