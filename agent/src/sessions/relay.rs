//! Moves bytes between a program in a container and a client, until one of them ends.
//!
//! Always holds: at most [`CHUNK_BYTES`] of each direction are held here; while a client accepts nothing, the
//! program's output is not read, and while the program accepts nothing, the client's input is not. Everything
//! that the program wrote before its end reaches the client before the end does; output of other processes
//! that keep the stream open is not waited for. A vanished client ends it at once, even if the program does
//! not read the client's input: a probe that is sent to the client fails. Leaves to others: the client's
//! protocol (`Client`), the program (`Running`).

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use kedge_core::kubelet::duration;
use kedge_platform::streams::{Awaited, wait};
use kedge_platform::workloads::{Attachment, Session, Streams, WindowSize};

/// Bytes read of an output at once.
pub(crate) const CHUNK_BYTES: usize = 32 * 1024;
/// Most bytes read of the outputs after the end: everything that pipes can hold, and some more. Any further
/// output is another program's.
const LAST_BYTES: usize = 1024 * 1024;
/// How long to wait for a client that reads nothing, once the program has ended.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
/// How often a client is probed while the program takes no input: an end that the client sent behind its
/// input cannot arrive. A test has no such patience.
const PROBE_EVERY: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(5) };
/// The error of reading a terminal whose programs are all gone.
const HUNG_UP: i32 = 5;

/// The stream that output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    Stderr,
}

/// A message of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Input(Vec<u8>),
    EndOfInput,
    Resize(WindowSize),
    /// The client is gone, or broke the protocol.
    Gone,
}

/// The side that talks to a program.
pub(crate) trait Client {
    /// The client's next message; `None` if there is none now. Called only while the program accepts input,
    /// except that `Local` always reports signals.
    fn said(&mut self, takes_input: bool) -> Option<Said>;

    /// Whether it accepts output now.
    ///
    /// # Errors
    /// It is gone.
    fn has_room(&mut self) -> Result<bool, Lost>;

    /// Hands over output. Called only when it has room, and with at most [`CHUNK_BYTES`].
    ///
    /// # Errors
    /// It is gone.
    fn deliver(&mut self, from: Output, bytes: &[u8]) -> Result<(), Lost>;

    /// Sends bytes that the client ignores, so that a dead connection causes an error. Called only when it
    /// has room.
    ///
    /// # Errors
    /// It is gone.
    fn probe(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    /// The events to wait for: a message (if `takes_input`), room for output, and its disappearance.
    fn awaited(&self, takes_input: bool) -> Vec<Awaited<'_>>;
}

/// The client is gone.
#[derive(Debug)]
pub(crate) struct Lost;

/// A client whose first message was read already.
pub(crate) struct Begun<'a> {
    client: &'a mut dyn Client,
    first: Option<Said>,
}

/// The size of a client's terminal, if that is its first message and arrives within `limit`; and the client.
pub(crate) fn first_size(client: &mut dyn Client, limit: Duration) -> (Option<WindowSize>, Begun<'_>) {
    let until = Instant::now() + limit;
    let first = loop {
        if let Some(said) = client.said(true) {
            break Some(said);
        }
        // also sends waiting output
        let is_there = client.has_room().is_ok();
        let left = until.saturating_duration_since(Instant::now());
        if !is_there || left.is_zero() || wait(&mut client.awaited(true), Some(left)).is_err() {
            break None;
        }
    };
    match first {
        Some(Said::Resize(size)) => (Some(size), Begun { client, first: None }),
        first => (None, Begun { client, first }),
    }
}

impl Client for Begun<'_> {
    fn said(&mut self, takes_input: bool) -> Option<Said> {
        let first = if takes_input { self.first.take() } else { None };
        first.or_else(|| self.client.said(takes_input))
    }

    fn has_room(&mut self) -> Result<bool, Lost> {
        self.client.has_room()
    }

    fn deliver(&mut self, from: Output, bytes: &[u8]) -> Result<(), Lost> {
        self.client.deliver(from, bytes)
    }

    fn probe(&mut self) -> Result<(), Lost> {
        self.client.probe()
    }

    fn awaited(&self, takes_input: bool) -> Vec<Awaited<'_>> {
        self.client.awaited(takes_input)
    }
}

/// The program, and its streams.
pub(crate) trait Running {
    fn streams(&mut self) -> &mut Streams;
    fn resize(&mut self, size: WindowSize);
    /// The program's exit code; `None` while it runs.
    ///
    /// # Errors
    /// It never started, or cannot be watched; the text is for a person.
    fn ended(&mut self) -> Result<Option<i32>, String>;
    /// The program's streams, and a descriptor that becomes readable when it ends.
    fn parts(&self) -> (&Streams, BorrowedFd<'_>);
    /// The client is gone.
    fn end(&mut self);
}

impl Running for Session {
    fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    fn resize(&mut self, size: WindowSize) {
        // a terminal that is gone shows as the program's end
        let _ = Session::resize(self, size);
    }

    fn ended(&mut self) -> Result<Option<i32>, String> {
        Session::ended(self).map_err(|error| error.to_string())
    }

    fn parts(&self) -> (&Streams, BorrowedFd<'_>) {
        use std::os::fd::AsFd as _;
        (&self.streams, self.as_fd())
    }

    fn end(&mut self) {
        self.kill();
    }
}

/// A container's own first process: it keeps running without clients.
impl Running for Attachment {
    fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    fn resize(&mut self, size: WindowSize) {
        Attachment::resize(self, size);
    }

    fn ended(&mut self) -> Result<Option<i32>, String> {
        Attachment::ended(self).map_err(|error| error.to_string())
    }

    fn parts(&self) -> (&Streams, BorrowedFd<'_>) {
        use std::os::fd::AsFd as _;
        (&self.streams, self.as_fd())
    }

    fn end(&mut self) {
        self.streams = Streams::default();
    }
}

/// How the relay ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The program ended, and the client has all of its output.
    Code(i32),
    /// The client went away; a program that ran for it was ended.
    Gone,
}

/// Moves bytes until the end, or until no byte has passed for as long as `silence`.
///
/// # Errors
/// The program never started, no byte passed for too long, or waiting failed; the text is for a person.
pub(crate) fn relay(
    running: &mut dyn Running,
    client: &mut dyn Client,
    silence: Option<Duration>,
) -> Result<End, String> {
    let (input, buffer) = (Vec::new(), vec![0; CHUNK_BYTES]);
    let mut relay = Relay { running, client, input, buffer, end: None, silence, passed: Instant::now() };
    match relay.run() {
        Ok(end) => Ok(end),
        Err(Failed::Lost) => {
            relay.running.end();
            Ok(End::Gone)
        }
        Err(Failed::Broken(why)) => Err(why),
    }
}

enum Failed {
    Lost,
    Broken(String),
}

impl From<Lost> for Failed {
    fn from(_: Lost) -> Self {
        Self::Lost
    }
}

struct Relay<'a> {
    running: &'a mut dyn Running,
    client: &'a mut dyn Client,
    /// Input that the program has not read yet.
    input: Vec<u8>,
    buffer: Vec<u8>,
    /// The program's end: its code, how much may still be read, and until when.
    end: Option<(i32, usize, Instant)>,
    silence: Option<Duration>,
    /// When bytes last passed.
    passed: Instant,
}

/// The result of one try at an output.
enum Moved {
    Some,
    /// There is no output now.
    Dry,
    /// The client accepts no more.
    Full,
}

impl Relay<'_> {
    fn run(&mut self) -> Result<End, Failed> {
        loop {
            // before the outputs are read: all output from before the end can be read then
            if self.end.is_none()
                && let Some(code) = self.running.ended().map_err(Failed::Broken)?
            {
                self.end = Some((code, LAST_BYTES, Instant::now() + LAST_PATIENCE));
                self.running.streams().stdin = None;
                self.input.clear();
            }
            let heard = self.hear()?;
            let outputs = [self.pump(Output::Stdout)?, self.pump(Output::Stderr)?];
            if let Some((code, left, until)) = self.end {
                let is_dry = outputs.iter().all(|moved| matches!(moved, Moved::Dry));
                let is_over = (is_dry || left == 0) && self.client.has_room()?;
                if is_over || Instant::now() > until {
                    return Ok(End::Code(code));
                }
            }
            if heard || outputs.iter().any(|moved| matches!(moved, Moved::Some)) {
                self.passed = Instant::now();
            } else {
                self.wait()?;
            }
        }
    }

    /// Reads the client's messages, and gives the program its input. Returns whether it did something.
    fn hear(&mut self) -> Result<bool, Failed> {
        let gave = self.give()?;
        let Some(said) = self.client.said(self.input.is_empty()) else { return Ok(gave) };
        match said {
            Said::Input(bytes) => {
                if self.running.streams().stdin.is_some() {
                    self.input = bytes;
                    self.give()?;
                }
            }
            Said::EndOfInput => self.running.streams().stdin = None,
            Said::Resize(size) => self.running.resize(size),
            Said::Gone => return Err(Failed::Lost),
        }
        Ok(true)
    }

    fn give(&mut self) -> Result<bool, Failed> {
        if self.input.is_empty() {
            return Ok(false);
        }
        let Some(stdin) = &mut self.running.streams().stdin else {
            self.input = Vec::new();
            return Ok(true);
        };
        match stdin.write(&self.input) {
            Ok(count) => {
                self.input.drain(..count);
                Ok(count > 0)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            // the program has closed its input, and keeps running
            Err(_) => {
                self.running.streams().stdin = None;
                self.input = Vec::new();
                Ok(true)
            }
        }
    }

    fn pump(&mut self, from: Output) -> Result<Moved, Failed> {
        let streams = self.running.streams();
        let stream = match from {
            Output::Stdout => &mut streams.stdout,
            Output::Stderr => &mut streams.stderr,
        };
        if stream.is_none() {
            return Ok(Moved::Dry);
        }
        if !self.client.has_room()? {
            return Ok(Moved::Full);
        }
        match read(stream, &mut self.buffer) {
            0 => Ok(Moved::Dry),
            count => {
                self.client.deliver(from, &self.buffer[..count])?;
                if let Some((_, left, until)) = &mut self.end {
                    *left = left.saturating_sub(count);
                    *until = Instant::now() + LAST_PATIENCE;
                }
                Ok(Moved::Some)
            }
        }
    }

    fn wait(&mut self) -> Result<(), Failed> {
        let has_room = self.client.has_room()?;
        let takes_input = self.input.is_empty();
        let (streams, end) = self.running.parts();
        let mut awaited = Vec::with_capacity(8);
        if self.end.is_none() {
            awaited.push(Awaited::read(&end));
        }
        if has_room {
            awaited.extend([&streams.stdout, &streams.stderr].into_iter().flatten().map(Awaited::read));
        }
        if let (false, Some(stdin)) = (takes_input, &streams.stdin) {
            awaited.push(Awaited::write(stdin));
        }
        let of_running = awaited.len();
        awaited.extend(self.client.awaited(takes_input));
        let now = Instant::now();
        let silent = self.silence.and_then(|silence| self.passed.checked_add(silence));
        let probe = (!takes_input).then(|| now + PROBE_EVERY);
        let until = [self.end.map(|(_, _, until)| until), silent, probe].into_iter().flatten().min();
        let limit = until.map(|until| until.saturating_duration_since(now));
        wait(&mut awaited, limit).map_err(|error| Failed::Broken(format!("wait for a program: {error}")))?;
        if awaited[of_running..].iter().any(Awaited::has_ended) {
            return Err(Failed::Lost);
        }
        let is_quiet = !awaited.iter().any(Awaited::is_ready);
        drop(awaited);
        let now = Instant::now();
        if is_quiet && silent.is_some_and(|silent| silent <= now) {
            return Err(Failed::Broken(self.too_silent()));
        }
        if is_quiet && has_room && probe.is_some_and(|probe| probe <= now) {
            self.client.probe()?;
        }
        Ok(())
    }

    fn too_silent(&self) -> String {
        let nanos = self.silence.and_then(|silence| i64::try_from(silence.as_nanos()).ok());
        let silence = duration::format(nanos.unwrap_or(i64::MAX));
        format!("nothing passed for {silence} (streamingConnectionIdleTimeout), so the session was ended")
    }
}

/// Reads at most one buffer of available bytes; 0 if there are none, now or ever.
fn read(stream: &mut Option<File>, buffer: &mut [u8]) -> usize {
    let Some(file) = stream else { return 0 };
    loop {
        match file.read(buffer) {
            Ok(count @ 1..) => return count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return 0,
            Err(error) if error.raw_os_error() == Some(HUNG_UP) => {
                *stream = None;
                return 0;
            }
            Ok(0) | Err(_) => {
                *stream = None;
                return 0;
            }
        }
    }
}

/// Whether an error means that a client can be written to later.
pub(crate) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::super::websocket::Remote;
    use super::*;
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use tungstenite::protocol::Role;
    use tungstenite::{Message, WebSocket};

    /// A program that runs until its client is gone, and neither reads nor writes.
    struct Idle {
        streams: Streams,
        /// Never readable: it does not end by itself.
        end: UnixStream,
        _others: (UnixStream, OwnedFd),
    }

    impl Idle {
        fn new() -> Idle {
            let (end, other) = UnixStream::pair().unwrap();
            let (reader, writer) = UnixStream::pair().unwrap();
            writer.set_nonblocking(true).unwrap();
            let stdin = Some(File::from(OwnedFd::from(writer)));
            let streams = Streams { stdin, ..Streams::default() };
            Idle { streams, end, _others: (other, reader.into()) }
        }
    }

    impl Running for Idle {
        fn streams(&mut self) -> &mut Streams {
            &mut self.streams
        }

        fn resize(&mut self, _: WindowSize) {}

        fn ended(&mut self) -> Result<Option<i32>, String> {
            Ok(None)
        }

        fn parts(&self) -> (&Streams, BorrowedFd<'_>) {
            (&self.streams, self.end.as_fd())
        }

        fn end(&mut self) {}
    }

    fn connected() -> (WebSocket<UnixStream>, Remote) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = WebSocket::from_raw_socket(ours, Role::Client, None);
        (client, Remote::new(theirs, "v5.channel.k8s.io", Output::Stdout).unwrap())
    }

    #[test]
    fn silent_session_ends_and_the_limit_is_named() {
        let (_client, mut remote) = connected();
        let end = relay(&mut Idle::new(), &mut remote, Some(Duration::from_millis(50)));
        let why = end.expect_err("it is too silent");
        assert!(why.contains("nothing passed for 50ms (streamingConnectionIdleTimeout)"), "{why}");
    }

    #[test]
    fn client_is_probed_while_its_input_is_not_taken() {
        let (mut client, mut remote) = connected();
        let serving = thread::spawn(move || relay(&mut Idle::new(), &mut remote, None));
        let mut sender =
            WebSocket::from_raw_socket(client.get_ref().try_clone().unwrap(), Role::Client, None);
        // more than the program's pipe holds, and so much that a part stays unread with the client, too
        let sending = thread::spawn(move || {
            let piece = [0; 64 * 1024];
            while sender.send(Message::binary(piece.to_vec())).is_ok() {}
        });
        while !client.read().unwrap().is_ping() {}
        client.get_ref().shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(serving.join().unwrap(), Ok(End::Gone));
        sending.join().unwrap();
    }
}
