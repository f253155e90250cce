//! A client of the API server: exec and attach over SPDY/3.1, by `v4.channel.k8s.io`, which kubectl uses
//! before 1.30.
//!
//! The client opens a stream for errors, and one for each of stdin, stdout, stderr and resize that it wants;
//! the first one reports how the program ended (a Status). Always holds: nothing runs before all of them are
//! open; at most [`CHUNK_BYTES`] and some replies wait for a client that does not read; a client that breaks
//! the protocol counts as gone. Leaves to others: frames (`spdy`), the Status (`websocket`), which program it
//! talks to.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kedge_platform::streams::{Awaited, wait};

use super::relay::{CHUNK_BYTES, Client, End, Lost, Output, Said, is_later};
use super::spdy::{self, Decoder, Encoder, Frame, Headers, Refusal};
use super::websocket;

/// The protocol.
pub(crate) const PROTOCOL: &str = "v4.channel.k8s.io";
/// Bytes read at once.
const PIECE_BYTES: usize = 16 * 1024;
/// How long a client may take to open its streams, as upstream.
const OPENING: Duration = Duration::from_secs(30);
/// How long a client may take to read the program's end, and to hang up.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// Longest JSON of a terminal's size.
const SIZE_BYTES: usize = 1024;
/// Most bytes of replies that wait for a client that does not read them.
const ANSWER_BYTES: usize = 16 * 1024;

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Error,
    Stdin,
    Stdout,
    Stderr,
    Resize,
}

/// In the order of their places in [`Remote::streams`].
const CHANNELS: [(&str, Channel); 5] = [
    ("error", Channel::Error),
    ("stdin", Channel::Stdin),
    ("stdout", Channel::Stdout),
    ("stderr", Channel::Stderr),
    ("resize", Channel::Resize),
];

/// Which streams a client must open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) resize: bool,
}

/// A frame of the client, with a copy of its bytes.
enum Heard {
    Open {
        stream: u32,
        headers: Headers,
    },
    Data {
        channel: Channel,
        bytes: Vec<u8>,
        is_last: bool,
    },
    Reset(Channel),
    /// It is answered already, or has no meaning here.
    Other,
}

/// The client, behind a stream that never blocks.
pub(crate) struct Remote {
    stream: UnixStream,
    decoder: Decoder,
    encoder: Encoder,
    streams: [Option<u32>; CHANNELS.len()],
    /// Bytes that were read, and how many of them were decoded.
    received: Vec<u8>,
    decoded: usize,
    /// The client's input has ended; the next message says so.
    ends: bool,
    /// The bytes of an incomplete terminal size.
    size: Vec<u8>,
    to_send: Vec<u8>,
}

impl Remote {
    /// After the 101: waits until the client has opened its streams.
    ///
    /// # Errors
    /// It is gone, breaks the protocol, or does not open them in time.
    pub(crate) fn new(stream: UnixStream, wanted: Wanted) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut remote = Self {
            stream,
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            streams: [None; CHANNELS.len()],
            received: Vec::new(),
            decoded: 0,
            ends: false,
            size: Vec::new(),
            to_send: Vec::new(),
        };
        let Wanted { stdin, stdout, stderr, resize } = wanted;
        let wanted = [true, stdin, stdout, stderr, resize];
        let until = Instant::now() + OPENING;
        let gone = |Lost| {
            io::Error::new(ErrorKind::ConnectionAborted, "the client left before its streams were open")
        };
        while !remote.is_open(wanted) {
            remote.flush().map_err(gone)?;
            match remote.heard().map_err(gone)? {
                Some(Heard::Open { stream, headers }) => remote.open(stream, &headers, wanted),
                // the client sends data once all streams are open
                Some(Heard::Data { bytes, .. }) if !bytes.is_empty() => return Err(gone(Lost)),
                Some(_) => {}
                None => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let why =
                            format!("the client did not open its streams within {} s", OPENING.as_secs());
                        return Err(io::Error::new(ErrorKind::TimedOut, why));
                    }
                    wait(&mut [Awaited::read(&remote.stream)], Some(left))?;
                }
            }
        }
        Ok(remote)
    }

    fn is_open(&self, wanted: [bool; CHANNELS.len()]) -> bool {
        self.streams.iter().zip(wanted).all(|(stream, wanted)| stream.is_some() || !wanted)
    }

    fn open(&mut self, stream: u32, headers: &Headers, wanted: [bool; CHANNELS.len()]) {
        let kind = headers.get("streamtype");
        let place = CHANNELS.iter().position(|(name, _)| Some(*name) == kind);
        let answer = match place.filter(|place| wanted[*place] && self.streams[*place].is_none()) {
            Some(place) if stream % 2 == 1 && !self.streams.contains(&Some(stream)) => {
                self.streams[place] = Some(stream);
                self.encoder.reply(stream)
            }
            _ => spdy::reset(stream, Refusal::ProtocolError),
        };
        self.to_send.extend(answer);
    }

    fn stream(&self, channel: Channel) -> Option<u32> {
        self.streams[channel as usize]
    }

    /// The next frame of the client; `None` if there is none now.
    fn heard(&mut self) -> Result<Option<Heard>, Lost> {
        loop {
            let mut rest = &self.received[self.decoded..];
            let frame = self.decoder.next(&mut rest).map_err(|_| Lost)?;
            let channel = |stream: u32| {
                let place = self.streams.iter().position(|open| *open == Some(stream))?;
                Some(CHANNELS[place].1)
            };
            let heard = frame.map(|frame| match frame {
                Frame::Open { stream, headers, .. } => Heard::Open { stream, headers },
                Frame::Data { stream, bytes, is_last } => channel(stream)
                    .map_or(Heard::Other, |channel| Heard::Data { channel, bytes: bytes.to_vec(), is_last }),
                Frame::Reset { stream } => channel(stream).map_or(Heard::Other, Heard::Reset),
                Frame::Ping { id } => {
                    self.to_send.extend(spdy::ping(id));
                    Heard::Other
                }
                Frame::GoAway => Heard::Other,
            });
            self.decoded = self.received.len() - rest.len();
            if heard.is_some() {
                return Ok(heard);
            }
            if self.to_send.len() > CHUNK_BYTES + ANSWER_BYTES {
                return Err(Lost);
            }
            self.decoded = 0;
            self.received.resize(PIECE_BYTES, 0);
            let read = self.stream.read(&mut self.received);
            self.received.truncate(read.as_ref().map_or(0, |amount| *amount));
            match read {
                Ok(0) => return Err(Lost),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_later(&error) => return Ok(None),
                Err(_) => return Err(Lost),
            }
        }
    }

    /// The message to the program in a frame.
    fn meaning(&mut self, heard: Heard) -> Option<Said> {
        match heard {
            Heard::Data { channel: Channel::Stdin, bytes, is_last } => {
                self.ends |= is_last;
                (!bytes.is_empty()).then_some(Said::Input(bytes))
            }
            Heard::Reset(Channel::Stdin) => Some(Said::EndOfInput),
            Heard::Data { channel: Channel::Resize, bytes, .. } => {
                self.size.extend_from_slice(&bytes);
                let line = self.size.iter().rposition(|byte| *byte == b'\n');
                let said = line.and_then(|end| {
                    let lines: Vec<u8> = self.size.drain(..=end).collect();
                    // of several sizes the last one counts
                    lines.split(|byte| *byte == b'\n').rev().find_map(websocket::size)
                });
                self.size.truncate(SIZE_BYTES);
                said.map(Said::Resize)
            }
            Heard::Open { stream, .. } => {
                self.to_send.extend(spdy::reset(stream, Refusal::RefusedStream));
                None
            }
            Heard::Data { .. } | Heard::Reset(_) | Heard::Other => None,
        }
    }

    fn flush(&mut self) -> Result<(), Lost> {
        while !self.to_send.is_empty() {
            match self.stream.write(&self.to_send) {
                Ok(count) => drop(self.to_send.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_later(&error) => return Ok(()),
                Err(_) => return Err(Lost),
            }
        }
        Ok(())
    }

    /// Reports to the client how its task ended, and waits, a bounded time, until it has hung up.
    pub(crate) fn finish(mut self, end: &Result<End, String>, task: &str) {
        if !matches!(end, Ok(End::Gone)) {
            let status = websocket::status(end, task).to_string();
            for (channel, last) in
                [(Channel::Stdout, ""), (Channel::Stderr, ""), (Channel::Error, status.as_str())]
            {
                let stream = self.stream(channel);
                self.to_send
                    .extend(stream.into_iter().flat_map(|stream| spdy::data(stream, last.as_bytes(), true)));
            }
        }
        let until = Instant::now() + LAST_PATIENCE;
        let mut is_shut = false;
        while Instant::now() < until {
            if self.flush().is_err() {
                return;
            }
            if self.to_send.is_empty() && !is_shut {
                is_shut = true;
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            // further frames are dropped; reading them keeps the kernel from resetting the connection before
            // the client has read the end
            match self.heard() {
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(Lost) => return,
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut awaited = vec![Awaited::read(&self.stream)];
            if !self.to_send.is_empty() {
                awaited.push(Awaited::write(&self.stream));
            }
            if wait(&mut awaited, Some(left)).is_err() {
                return;
            }
        }
    }
}

impl Client for Remote {
    fn said(&mut self, takes_input: bool) -> Option<Said> {
        if !takes_input {
            return None;
        }
        loop {
            if std::mem::take(&mut self.ends) {
                return Some(Said::EndOfInput);
            }
            match self.heard() {
                Ok(None) => return None,
                Ok(Some(heard)) => {
                    if let Some(said) = self.meaning(heard) {
                        return Some(said);
                    }
                }
                Err(Lost) => return Some(Said::Gone),
            }
        }
    }

    fn has_room(&mut self) -> Result<bool, Lost> {
        self.flush()?;
        Ok(self.to_send.is_empty())
    }

    fn deliver(&mut self, from: Output, bytes: &[u8]) -> Result<(), Lost> {
        let channel = match from {
            Output::Stdout => Channel::Stdout,
            Output::Stderr => Channel::Stderr,
        };
        if let Some(stream) = self.stream(channel) {
            self.to_send.extend(spdy::data(stream, bytes, false));
        }
        self.flush()
    }

    fn awaited(&self, takes_input: bool) -> Vec<Awaited<'_>> {
        let mut awaited =
            vec![if takes_input { Awaited::read(&self.stream) } else { Awaited::end(&self.stream) }];
        if !self.to_send.is_empty() {
            awaited.push(Awaited::write(&self.stream));
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::super::spdy::tests::opens;
    use super::*;
    use kedge_platform::workloads::WindowSize;
    use std::thread;

    const ALL: Wanted = Wanted { stdin: true, stdout: true, stderr: true, resize: true };

    fn open(stream: u32, kind: &str) -> Vec<u8> {
        opens(stream, &[("streamtype", kind)], stream == 1)
    }

    /// A client that has opened all its streams: error 1, stdin 3, stdout 5, stderr 7, resize 9; and has read
    /// the replies.
    fn opened() -> (UnixStream, Remote) {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let said = ["error", "stdin", "stdout", "stderr", "resize"];
        let said: Vec<u8> =
            (1..).step_by(2).zip(said).flat_map(|(stream, kind)| open(stream, kind)).collect();
        client.write_all(&said).unwrap();
        let mut remote = Remote::new(ours, ALL).unwrap();
        assert!(remote.has_room().unwrap());
        let mut encoder = Encoder::new();
        let expect: Vec<u8> = (1..10).step_by(2).flat_map(|stream| encoder.reply(stream)).collect();
        let mut replies = vec![0; expect.len()];
        client.read_exact(&mut replies).unwrap();
        assert_eq!(replies, expect);
        (client, remote)
    }

    #[test]
    fn streams_carry_input_sizes_and_ends() {
        let (mut client, mut remote) = opened();
        let said = [
            spdy::data(3, b"one", false),
            spdy::data(9, b"{\"Width\":80,\"Hei", false),
            spdy::data(9, b"ght\":24}\n", false),
            spdy::data(9, b"{\"Width\":-1}\n", false),
            spdy::data(5, b"not ours to hear", false),
            spdy::data(3, b"two", true),
        ];
        client.write_all(&said.concat()).unwrap();
        assert_eq!(Client::said(&mut remote, false), None);
        let mut next = || Client::said(&mut remote, true);
        assert_eq!(next(), Some(Said::Input(b"one".to_vec())));
        assert_eq!(next(), Some(Said::Resize(WindowSize { rows: 24, columns: 80 })));
        assert_eq!(next(), Some(Said::Input(b"two".to_vec())));
        assert_eq!(next(), Some(Said::EndOfInput));
        assert_eq!(next(), None);
        client.write_all(&spdy::reset(3, Refusal::RefusedStream)).unwrap();
        assert_eq!(next(), Some(Said::EndOfInput));
        drop(client);
        assert_eq!(next(), Some(Said::Gone));
    }

    #[test]
    fn outputs_and_the_end_reach_their_streams() {
        let (mut client, mut remote) = opened();
        remote.deliver(Output::Stdout, b"out").unwrap();
        remote.deliver(Output::Stderr, b"err").unwrap();
        let finishing = thread::spawn(move || remote.finish(&Ok(End::Code(3)), "x"));
        let status = websocket::status(&Ok(End::Code(3)), "x").to_string();
        let expect = [
            spdy::data(5, b"out", false),
            spdy::data(7, b"err", false),
            spdy::data(5, b"", true),
            spdy::data(7, b"", true),
            spdy::data(1, status.as_bytes(), true),
        ];
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, expect.concat());
        drop(client);
        finishing.join().unwrap();
    }

    #[test]
    fn client_that_opens_other_streams_is_refused() {
        #[track_caller]
        fn check(said: &[Vec<u8>], answer: &[u8]) {
            let (mut client, ours) = UnixStream::pair().unwrap();
            client.write_all(&said.concat()).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let wanted = Wanted { stdin: true, stdout: false, stderr: false, resize: false };
            let error = Remote::new(ours, wanted).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, answer);
        }
        let refused = |stream| spdy::reset(stream, Refusal::ProtocolError);
        check(&[open(1, "stdout")], &refused(1));
        check(&[open(1, "other")], &refused(1));
        check(&[open(1, "error"), open(3, "error")], &[Encoder::new().reply(1), refused(3)].concat());
        check(&[open(1, "error"), spdy::data(1, b"early", false)], &Encoder::new().reply(1));
        check(&[b"\x80\x02........".to_vec()], b"");
    }
}
