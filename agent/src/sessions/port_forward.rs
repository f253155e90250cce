//! Port-forward: connections to ports of a pod, many at once over one connection of SPDY.
//!
//! A client opens two streams for each, one for errors and one for data, with headers that give the port and
//! a request number of both. Always holds: at most [`MOST_STREAMS`] are open; at most [`QUEUE`] pieces wait
//! for each direction of a connection, and all bytes for the client wait in one queue; a client that does not
//! read stops the programs, and a program that does not read stops the client, with all its connections: the
//! protocol has no flow control. Errors reach the client in the kubelet's form. Leaves to others: frames
//! (`spdy`), how a port is reached.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::spdy::{self, Broken, Decoder, Encoder, Frame, Headers, Refusal};

/// Most streams of one client, two for each connection: browsers open a handful of connections, tests fifty.
/// With everything that may wait this is 6 MiB.
const MOST_STREAMS: usize = 256;
/// Bytes read at once, from the client and from each program.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces that wait for a reader.
const QUEUE: usize = 2;
/// How long sending the rest may take once a side has ended.
const LINGER: Duration = Duration::from_secs(10);

/// Connects to a port of the pod. The error is a text for the user.
pub(crate) trait Reach: Clone + Send + Sync + 'static {
    fn reach(self, port: u16) -> impl Future<Output = Result<TcpStream, String>> + Send;
}

/// Forwards until the client is gone, or has said that it leaves and its last connection has ended.
///
/// # Errors
/// The client's stream broke, or it does not speak the protocol.
pub(crate) async fn forward(
    client: impl AsyncRead + AsyncWrite + Send,
    pod: &str,
    reach: impl Reach,
) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(client);
    let (out, queue) = channel(QUEUE);
    let mut forwarder = Forwarder {
        decoder: Decoder::new(),
        encoder: Encoder::new(),
        out,
        streams: HashMap::new(),
        halves: HashMap::new(),
        pairs: JoinSet::new(),
        pod: pod.into(),
        reach,
    };
    let writing = write(writer, queue);
    tokio::pin!(writing);
    let heard = tokio::select! {
        heard = forwarder.hear(reader) => heard,
        written = &mut writing => return written,
    };
    // also drops its connections, and with them the last sender of the queue
    drop(forwarder);
    let written = timeout(LINGER, writing).await.unwrap_or(Ok(()));
    heard.and(written)
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut queue: Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(frame) = queue.recv().await {
        writer.write_all(&frame).await?;
        if queue.is_empty() {
            writer.flush().await?;
        }
    }
    writer.shutdown().await
}

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Errors,
    Data,
}

/// A stream whose counterpart has not been opened yet.
struct Half {
    stream: u32,
    purpose: Purpose,
    /// Data that the client already sends on it.
    input: Option<Receiver<Vec<u8>>>,
}

/// An open stream.
enum Role {
    Half { request: String, input: Option<Sender<Vec<u8>>> },
    Errors,
    Data { errors: u32, input: Option<Sender<Vec<u8>>>, task: AbortHandle },
}

struct Forwarder<R> {
    decoder: Decoder,
    encoder: Encoder,
    /// Whole frames for the client.
    out: Sender<Vec<u8>>,
    streams: HashMap<u32, Role>,
    /// By request number.
    halves: HashMap<String, Half>,
    /// The connections; each ends with its two streams.
    pairs: JoinSet<[u32; 2]>,
    /// The pod's name, for errors.
    pod: Arc<str>,
    reach: R,
}

impl<R: Reach> Forwarder<R> {
    async fn hear(&mut self, mut reader: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut is_leaving = false;
        loop {
            let amount = tokio::select! {
                Some(ended) = self.pairs.join_next() => {
                    // the streams of an aborted connection are gone already
                    for stream in ended.into_iter().flatten() {
                        self.streams.remove(&stream);
                    }
                    if is_leaving && self.pairs.is_empty() {
                        return Ok(());
                    }
                    continue;
                }
                read = reader.read(&mut buffer) => read?,
            };
            if amount == 0 {
                return Ok(());
            }
            let mut bytes = &buffer[..amount];
            while let Some(frame) = self.decoder.next(&mut bytes).map_err(broken)? {
                is_leaving |= frame == Frame::GoAway;
                self.forward(frame).await;
            }
            if is_leaving && self.pairs.is_empty() {
                return Ok(());
            }
        }
    }

    async fn forward(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Open { stream, headers, is_last } => self.open(stream, &headers, is_last).await,
            Frame::Data { stream, bytes, is_last } => self.data(stream, bytes, is_last).await,
            Frame::Reset { stream } => self.reset(stream).await,
            Frame::Ping { id } => self.say(spdy::ping(id)).await,
            Frame::GoAway => {}
        }
    }

    async fn say(&self, frame: Vec<u8>) {
        // without its writer the whole session ends
        let _ = self.out.send(frame).await;
    }

    async fn open(&mut self, stream: u32, headers: &Headers, is_last: bool) {
        let is_new = stream % 2 == 1 && !self.streams.contains_key(&stream);
        let wanted = wanted(stream, headers).filter(|_| is_new);
        let Some((purpose, port, request)) = wanted else {
            return self.say(spdy::reset(stream, Refusal::ProtocolError)).await;
        };
        let other = match self.halves.remove(&request) {
            Some(other) if other.purpose == purpose => {
                self.halves.insert(request, other);
                return self.say(spdy::reset(stream, Refusal::ProtocolError)).await;
            }
            other => other,
        };
        if self.streams.len() >= MOST_STREAMS {
            self.halves.extend(other.map(|other| (request, other)));
            return self.say(spdy::reset(stream, Refusal::RefusedStream)).await;
        }
        let reply = self.encoder.reply(stream);
        self.say(reply).await;
        let (sender, receiver) = channel(QUEUE);
        let (sender, receiver) = match purpose {
            Purpose::Data => ((!is_last).then_some(sender), Some(receiver)),
            Purpose::Errors => (None, None),
        };
        let Some(other) = other else {
            self.halves.insert(request.clone(), Half { stream, purpose, input: receiver });
            self.streams.insert(stream, Role::Half { request, input: sender });
            return;
        };
        let early = match self.streams.remove(&other.stream) {
            Some(Role::Half { input, .. }) => input,
            _ => None,
        };
        let [data, errors] = match purpose {
            Purpose::Data => [stream, other.stream],
            Purpose::Errors => [other.stream, stream],
        };
        let Some(input) = receiver.or(other.input) else { return };
        let pair = Pair { data, errors, port, pod: Arc::clone(&self.pod), out: self.out.clone() };
        let task = self.pairs.spawn(pair.serve(input, self.reach.clone()));
        self.streams.insert(errors, Role::Errors);
        self.streams.insert(data, Role::Data { errors, input: sender.or(early), task });
    }

    async fn data(&mut self, stream: u32, bytes: &[u8], is_last: bool) {
        match self.streams.get_mut(&stream) {
            Some(Role::Data { input, .. }) => {
                if let Some(sender) = input.as_ref().filter(|_| !bytes.is_empty()) {
                    // a program that has closed its input gets no more, and its end is on its way
                    let _ = sender.send(bytes.to_vec()).await;
                }
                if is_last {
                    *input = None;
                }
            }
            // waiting here would delay the other half
            Some(Role::Half { input, .. }) => {
                let has_room = input.as_ref().is_none_or(|input| input.try_send(bytes.to_vec()).is_ok());
                if is_last {
                    *input = None;
                }
                if !has_room {
                    self.forget(stream);
                    self.say(spdy::reset(stream, Refusal::RefusedStream)).await;
                }
            }
            // only we write to an error stream, and late data for a stream that has ended is dropped
            Some(Role::Errors) | None => {}
        }
    }

    async fn reset(&mut self, stream: u32) {
        if let Some(Role::Data { errors, task, .. }) = self.streams.get(&stream) {
            task.abort();
            let errors = *errors;
            self.streams.remove(&errors);
            // the client waits for it
            self.say(spdy::data(errors, &[], true)).await;
        }
        self.forget(stream);
    }

    fn forget(&mut self, stream: u32) {
        if let Some(Role::Half { request, .. }) = self.streams.remove(&stream) {
            self.halves.remove(&request);
        }
    }
}

fn broken(why: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the client's SPDY: {}", why.0))
}

/// The purpose of a stream, its port, and its request number; `None` if a header is missing or wrong.
fn wanted(stream: u32, headers: &Headers) -> Option<(Purpose, u16, String)> {
    let purpose = match headers.get("streamtype")? {
        "error" => Purpose::Errors,
        "data" => Purpose::Data,
        _ => return None,
    };
    let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    let request = match headers.get("requestid") {
        Some(request) if !request.is_empty() => request.to_owned(),
        // clients before 1.2 send no request number, and open the stream for errors first
        _ if purpose == Purpose::Errors => format!("stream {stream}"),
        _ => format!("stream {}", stream.checked_sub(2)?),
    };
    Some((purpose, port, request))
}

/// One forwarded connection.
struct Pair {
    data: u32,
    errors: u32,
    port: u16,
    pod: Arc<str>,
    out: Sender<Vec<u8>>,
}

impl Pair {
    async fn serve(self, input: Receiver<Vec<u8>>, reach: impl Reach) -> [u32; 2] {
        let why = match reach.reach(self.port).await {
            Ok(program) => {
                self.relay(program, input).await;
                String::new()
            }
            Err(why) => format!("error forwarding port {} to pod {}: {why}", self.port, self.pod),
        };
        let errors = spdy::data(self.errors, why.as_bytes(), true);
        for last in [errors, spdy::data(self.data, &[], true)] {
            let _ = self.out.send(last).await;
        }
        [self.data, self.errors]
    }

    /// Relays until the program has closed its output. An error of the connection only ends the connection:
    /// to a client an error would mean that the forwarding as a whole is over, and it would give up its other
    /// connections.
    async fn relay(&self, program: TcpStream, input: Receiver<Vec<u8>>) {
        let _ = program.set_nodelay(true);
        let (from_program, to_program) = program.into_split();
        let (up, down) = (give(to_program, input), self.pass(from_program));
        tokio::pin!(up, down);
        tokio::select! {
            () = &mut down => {}
            () = &mut up => down.await,
        }
    }

    async fn pass(&self, program: OwnedReadHalf) {
        loop {
            // an idle connection has no buffer
            if program.readable().await.is_err() {
                return;
            }
            let mut piece = vec![0; PIECE_BYTES];
            match program.try_read(&mut piece) {
                Ok(amount @ 1..) => {
                    let frame = spdy::data(self.data, &piece[..amount], false);
                    drop(piece);
                    if self.out.send(frame).await.is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Gives a program the client's data, and its end.
async fn give(mut program: OwnedWriteHalf, mut input: Receiver<Vec<u8>>) {
    while let Some(piece) = input.recv().await {
        if program.write_all(&piece).await.is_err() {
            return;
        }
    }
    let _ = program.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;
    use tokio::net::TcpListener;

    /// Port 1 refuses; any other one is a program that echoes its input, and then ends.
    #[derive(Clone)]
    struct Echo;

    impl Reach for Echo {
        async fn reach(self, port: u16) -> Result<TcpStream, String> {
            if port == 1 {
                return Err("connection refused".into());
            }
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                let (mut program, _) = listener.accept().await.unwrap();
                let (mut reader, mut writer) = program.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
            Ok(TcpStream::connect(address).await.unwrap())
        }
    }

    fn opens(stream: u32, kind: &str, port: &str, request: &str) -> Vec<u8> {
        spdy::tests::opens(
            stream,
            &[("streamtype", kind), ("port", port), ("requestid", request)],
            stream == 1,
        )
    }

    /// Checks all replies to a client's bytes, frame by frame; it hangs up after as many bytes.
    async fn answered(said: Vec<u8>, expect: &[Vec<u8>]) {
        let (mut client, node) = tokio::io::duplex(64 * 1024);
        let expect = expect.concat();
        let asking = async {
            client.write_all(&said).await.unwrap();
            let mut heard = vec![0; expect.len()];
            client.read_exact(&mut heard).await.unwrap();
            assert!(heard == expect, "heard {}\nexpected {}", heard.escape_ascii(), expect.escape_ascii());
            drop(client);
        };
        let (served, ()) = tokio::join!(forward(node, "web_default", Echo), asking);
        served.unwrap();
    }

    #[tokio::test]
    async fn connection_carries_data_until_both_ends() {
        let mut encoder = Encoder::new();
        let said = [
            opens(1, "error", "80", "0"),
            spdy::data(1, b"", true),
            opens(3, "data", "80", "0"),
            spdy::ping(7),
            spdy::data(3, b"hello", false),
            spdy::data(3, b"", true),
        ];
        let expect = [
            encoder.reply(1),
            encoder.reply(3),
            spdy::ping(7),
            spdy::data(3, b"hello", false),
            spdy::data(1, b"", true),
            spdy::data(3, b"", true),
        ];
        answered(said.concat(), &expect).await;
    }

    #[tokio::test]
    async fn refused_connection_says_why_and_leaves_others() {
        let mut encoder = Encoder::new();
        let why = b"error forwarding port 1 to pod web_default: connection refused";
        let said = [opens(1, "data", "1", "a"), opens(3, "error", "1", "a")];
        let expect = [encoder.reply(1), encoder.reply(3), spdy::data(3, why, true), spdy::data(1, b"", true)];
        answered(said.concat(), &expect).await;
    }

    #[tokio::test]
    async fn stream_that_means_nothing_is_reset() {
        let reset = |stream| spdy::reset(stream, Refusal::ProtocolError);
        for (kind, port) in [("resize", "80"), ("data", "0"), ("data", "65536"), ("error", "")] {
            answered(opens(1, kind, port, "0"), &[reset(1)]).await;
        }
        // clients use odd numbers only
        let even = spdy::tests::opens(2, &[("streamtype", "data"), ("port", "1"), ("requestid", "0")], true);
        answered(even, &[reset(2)]).await;
        // the second of one kind, and one with the number of another
        let again =
            spdy::tests::opens(1, &[("streamtype", "error"), ("port", "80"), ("requestid", "0")], false);
        let said = [opens(1, "data", "80", "0"), opens(3, "data", "80", "0"), again];
        answered(said.concat(), &[Encoder::new().reply(1), reset(3), reset(1)]).await;
    }

    #[tokio::test]
    async fn streams_are_limited_and_ended_ones_make_room() {
        let mut encoder = Encoder::new();
        let (mut said, mut expect) = (Vec::new(), Vec::new());
        let streams: Vec<u32> = (0..MOST_STREAMS as u32).map(|number| 2 * number + 1).collect();
        for stream in &streams {
            said.push(opens(*stream, "data", "80", &stream.to_string()));
            expect.push(encoder.reply(*stream));
        }
        said.push(opens(9001, "data", "80", "more"));
        expect.push(spdy::reset(9001, Refusal::RefusedStream));
        said.push(spdy::reset(5, Refusal::ProtocolError));
        said.push(opens(9003, "data", "80", "more"));
        expect.push(encoder.reply(9003));
        answered(said.concat(), &expect).await;
    }

    #[tokio::test]
    async fn reset_ends_the_connection_and_its_errors() {
        let mut encoder = Encoder::new();
        let said = [
            opens(1, "error", "80", "0"),
            opens(3, "data", "80", "0"),
            spdy::reset(3, Refusal::RefusedStream),
            spdy::data(3, b"late", true),
        ];
        let expect = [encoder.reply(1), encoder.reply(3), spdy::data(1, b"", true)];
        answered(said.concat(), &expect).await;
    }

    #[tokio::test]
    async fn client_that_goes_away_keeps_what_is_open() {
        let mut encoder = Encoder::new();
        let (mut client, node): (DuplexStream, _) = tokio::io::duplex(64 * 1024);
        let begin = [opens(1, "error", "80", "0"), opens(3, "data", "80", "0")].concat();
        let asking = async {
            client.write_all(&begin).await.unwrap();
            client.write_all(b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0").await.unwrap();
            client.write_all(&spdy::data(3, b"still", true)).await.unwrap();
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.unwrap();
            let expect = [
                encoder.reply(1),
                encoder.reply(3),
                spdy::data(3, b"still", false),
                spdy::data(1, b"", true),
            ];
            assert_eq!(heard, [expect.concat(), spdy::data(3, b"", true)].concat());
        };
        let (served, ()) = tokio::join!(forward(node, "web_default", Echo), asking);
        served.unwrap();
    }

    #[tokio::test]
    async fn client_that_breaks_the_protocol_is_gone() {
        let (mut client, node) = tokio::io::duplex(64 * 1024);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n................").await.unwrap();
        drop(client);
        // taken for data of some stream, which has no effect
        forward(node, "web_default", Echo).await.unwrap();
        let (mut client, node) = tokio::io::duplex(64 * 1024);
        client.write_all(b"\x80\x02\0\x06\0\0\0\x04\0\0\0\x01").await.unwrap();
        let error = forward(node, "web_default", Echo).await.unwrap_err();
        assert_eq!(error.to_string(), "the client's SPDY: a frame of SPDY version 2, expected 3");
    }
}
