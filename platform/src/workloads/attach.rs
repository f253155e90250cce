//! Clients at a container's first process: its shim listens on a socket of the bundle, and copies output and
//! input.
//!
//! Always holds: a client sends its ends of pipes once, and only the shim reads and writes them, never
//! blocking. A client that does not read delays the container and its log by at most [`PATIENCE`]; then it is
//! dropped, with the reason. At most [`MOST`] clients are served, and for each at most two readings of output
//! wait in memory. A client that leaves changes nothing, except that with `stdinOnce` the input ends.
//!
//! The protocol: a line of JSON from the client ([`Hello`]) with one descriptor for each stream that it
//! wants, in order; a line back ([`Answer`]); then sizes of the terminal in one direction, and one [`Last`]
//! line in the other. An added field has a default; the version changes when an old reader would
//! misunderstand.
//!
//! Leaves to others: the content of the log (`log`), the clients.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::log::Stream;
use super::places::Places;
use super::process::{self, WindowSize};
use super::records::Console;
use super::session::{self, Streams};
use super::{ContainerId, Settings, WorkloadError};

/// The socket's name in the bundle.
pub(super) const SOCKET: &str = "attach.sock";
/// Version of the protocol.
const VERSION: u32 = 1;
/// Most clients of one container: each may cost the shim 32 KiB of memory.
const MOST: usize = 8;
/// Longest time for which a client that takes no output may delay the container.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of input that wait for the container.
const INPUT_BYTES: usize = 4096;
/// Readings of input that are passed on before output is handled.
const TURN_READINGS: usize = 16;
/// Longest line of the protocol.
const LINE_BYTES: usize = 1024;
/// Longest wait of a client for the shim's answer: a shim answers when crun has started its container.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A client's request.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u32,
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

/// The shim's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    version: u32,
    /// True if the container has a terminal.
    #[serde(default)]
    terminal: bool,
    /// The reason why the client is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The last message, with the reason why the connection ends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Last {
    /// The container ended, with this exit code.
    Code(i32),
    /// The shim dropped the client.
    Dropped(String),
}

fn line_of(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message has no maps");
    line.push(b'\n');
    line
}

/// Removes the first complete line from the received bytes and parses it. `None` if no line is complete, or
/// its message is unknown.
fn next_line<T: DeserializeOwned>(heard: &mut Vec<u8>) -> Option<T> {
    let end = heard.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = heard.drain(..=end).collect();
    serde_json::from_slice(&line).ok()
}

/// Reads the bytes that have arrived. False if the other side has closed, or breaks the protocol.
fn hear(mut connection: &UnixStream, heard: &mut Vec<u8>) -> bool {
    let mut some = [0; 256];
    while heard.len() < LINE_BYTES {
        match connection.read(&mut some) {
            Ok(0) => return false,
            Ok(count) => heard.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    heard.contains(&b'\n')
}

fn unblock(file: impl AsFd) -> io::Result<()> {
    Ok(fcntl(file.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)?)
}

/// The shim's side of a client.
#[derive(Debug)]
struct Attacher {
    connection: UnixStream,
    heard: Vec<u8>,
    is_attached: bool,
    /// The client has closed its connection; input that it has written is still taken.
    is_gone: bool,
    stdin: Option<File>,
    /// Standard output and errors, and the bytes of each that the client has not taken.
    outputs: [Option<File>; 2],
    waiting: [Vec<u8>; 2],
    /// Since when bytes have been waiting.
    since: Option<Instant>,
}

impl Attacher {
    fn new(connection: UnixStream) -> io::Result<Self> {
        connection.set_nonblocking(true)?;
        Ok(Self {
            connection,
            heard: Vec::new(),
            is_attached: false,
            is_gone: false,
            stdin: None,
            outputs: [None, None],
            waiting: [Vec::new(), Vec::new()],
            since: None,
        })
    }

    /// Handles its first message, with the ends of its pipes. The error is sent to the client.
    fn greet(&mut self) -> Result<(), String> {
        let mut bytes = [0; LINE_BYTES];
        let (count, descriptors) = match process::receive(&self.connection, &mut bytes) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.heard.extend_from_slice(&bytes[..count]);
        let hello: Hello = next_line(&mut self.heard).ok_or("the first line is no greeting")?;
        if hello.version != VERSION {
            let found = hello.version;
            return Err(format!(
                "version {found} of the protocol, and this container's shim speaks {VERSION}"
            ));
        }
        let wanted = [hello.stdin, hello.stdout, hello.stderr];
        if descriptors.len() != wanted.into_iter().filter(|it| *it).count() {
            return Err(format!("{} descriptors came with the greeting", descriptors.len()));
        }
        let mut descriptors = descriptors.into_iter();
        let [stdin, stdout, stderr] =
            wanted.map(|is_wanted| if is_wanted { descriptors.next() } else { None });
        for file in [&stdin, &stdout, &stderr].into_iter().flatten() {
            unblock(file).map_err(|error| error.to_string())?;
        }
        self.stdin = stdin.map(File::from);
        self.outputs = [stdout.map(File::from), stderr.map(File::from)];
        self.is_attached = true;
        Ok(())
    }

    fn say(&self, message: &impl Serialize) {
        // if the client does not receive it, it finds the connection closed
        let _ = (&self.connection).write(&line_of(message));
    }

    /// Writes waiting bytes, as far as the client takes them.
    fn flush(&mut self, now: Instant) {
        for (output, waiting) in self.outputs.iter_mut().zip(&mut self.waiting) {
            while let Some(file) = output.as_mut().filter(|_| !waiting.is_empty()) {
                match file.write(waiting) {
                    Ok(count) => drop(waiting.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // the client has closed this stream
                    Err(_) => *output = None,
                }
            }
            if output.is_none() || waiting.is_empty() {
                *waiting = Vec::new();
            }
        }
        match self.is_behind() {
            true => drop(self.since.get_or_insert(now)),
            false => self.since = None,
        }
    }

    fn is_behind(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    fn is_over(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
    }

    /// Handles a closed connection: the client gets nothing more.
    fn leave(&mut self) {
        self.is_gone = true;
        self.outputs = [None, None];
        self.waiting = [Vec::new(), Vec::new()];
        self.since = None;
    }
}

/// The clients of one container, and its input.
#[derive(Debug)]
pub(super) struct Attachers {
    /// `None` if the socket could not be made: then no client can attach.
    listener: Option<UnixListener>,
    all: Vec<Attacher>,
    /// The container's input: a pipe, or its terminal.
    stdin: Option<File>,
    terminal: Option<File>,
    input: Vec<u8>,
    /// With `stdinOnce`, input ends with the first client that sent some.
    is_once: bool,
    /// That client has left.
    was_left: bool,
}

impl Attachers {
    /// Listens; [`Attachers::begin`] sets the streams.
    pub(super) fn listen(bundle: &Path, console: Console) -> Self {
        let path = bundle.join(SOCKET);
        let _ = fs::remove_file(&path);
        Self {
            listener: session::listen(&path).ok().map(|(socket, _)| socket),
            all: Vec::new(),
            stdin: None,
            terminal: None,
            input: Vec::new(),
            // a terminal's input is not ended, as upstream
            is_once: console.stdin_once && !console.tty,
            was_left: false,
        }
    }

    /// Sets the container's input and its terminal.
    ///
    /// # Errors
    /// The input cannot be made non-blocking.
    pub(super) fn begin(&mut self, stdin: Option<File>, terminal: Option<File>) -> io::Result<()> {
        stdin.as_ref().map_or(Ok(()), unblock)?;
        (self.stdin, self.terminal) = (stdin, terminal);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Does all work that is possible without waiting.
    pub(super) fn serve(&mut self, now: Instant) {
        self.accept();
        for attacher in &mut self.all {
            if !attacher.is_attached {
                match attacher.greet() {
                    Ok(()) if attacher.is_attached => {
                        let terminal = self.terminal.is_some();
                        attacher.say(&Answer { version: VERSION, terminal, error: None });
                    }
                    Ok(()) => continue,
                    Err(error) => {
                        attacher.say(&Answer { version: VERSION, terminal: false, error: Some(error) });
                        attacher.leave();
                        continue;
                    }
                }
            }
            if !attacher.is_gone && !hear(&attacher.connection, &mut attacher.heard) {
                attacher.leave();
            }
            while attacher.heard.contains(&b'\n') {
                let size = next_line::<WindowSize>(&mut attacher.heard);
                if let (Some(size), Some(terminal)) = (size, &self.terminal) {
                    let _ = process::set_window_size(terminal, size);
                }
            }
            attacher.flush(now);
            if attacher.is_over(now) {
                let patience = PATIENCE.as_secs();
                let why = format!(
                    "the client took no output for {patience} s, and was dropped; the container goes on"
                );
                attacher.say(&Last::Dropped(why));
                attacher.leave();
            }
        }
        self.feed();
        self.all.retain(|attacher| !attacher.is_gone || attacher.stdin.is_some());
    }

    fn accept(&mut self) {
        while let Some(Ok((connection, _))) = self.listener.as_ref().map(UnixListener::accept) {
            let Ok(attacher) = Attacher::new(connection) else { continue };
            if self.all.len() == MOST {
                self.all.retain(|attacher| !attacher.is_gone);
            }
            if self.all.len() < MOST {
                self.all.push(attacher);
            } else {
                let error = Some(format!("{MOST} clients are attached to it, which is the limit"));
                attacher.say(&Answer { version: VERSION, terminal: false, error });
            }
        }
    }

    /// Passes input on.
    fn feed(&mut self) {
        for _ in 0..TURN_READINGS {
            self.give();
            if !self.input.is_empty() || !self.read_input() {
                break;
            }
        }
        self.give();
        if self.was_left && self.input.is_empty() {
            self.stdin = None;
        }
        if self.stdin.is_none() {
            self.input = Vec::new();
            // a client that writes on gets the error from its pipe
            self.all.iter_mut().for_each(|attacher| attacher.stdin = None);
        }
    }

    fn give(&mut self) {
        while let Some(stdin) = self.stdin.as_mut().filter(|_| !self.input.is_empty()) {
            match stdin.write(&self.input) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.stdin = None,
            }
        }
    }

    /// Reads the next input, from whichever client has some. False if there was none.
    fn read_input(&mut self) -> bool {
        if self.stdin.is_none() || self.was_left {
            return false;
        }
        let mut some = [0; INPUT_BYTES];
        for at in 0..self.all.len() {
            let attacher = &mut self.all[at];
            let Some(stdin) = &mut attacher.stdin else { continue };
            match stdin.read(&mut some) {
                Ok(count @ 1..) => {
                    self.input = some[..count].to_vec();
                    // begin with the next client next time
                    self.all.rotate_left(at + 1);
                    return true;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Ok(0) | Err(_) => {
                    attacher.stdin = None;
                    self.was_left |= self.is_once;
                }
            }
        }
        false
    }

    /// Copies output of the container to the clients; it may only be read when [`Attachers::is_behind`] is
    /// false.
    pub(super) fn take(&mut self, from: Stream, bytes: &[u8], now: Instant) {
        let which = match from {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        };
        for attacher in self.all.iter_mut().filter(|attacher| attacher.outputs[which].is_some()) {
            attacher.waiting[which].extend_from_slice(bytes);
            attacher.flush(now);
        }
    }

    /// True if a client has not taken the last output yet.
    pub(super) fn is_behind(&self) -> bool {
        self.all.iter().any(Attacher::is_behind)
    }

    /// The remaining time for which such a client may delay the container.
    pub(super) fn patience_left(&self, now: Instant) -> Duration {
        let left = |since: Instant| (since + PATIENCE).saturating_duration_since(now);
        self.all.iter().filter_map(|attacher| attacher.since).map(left).min().unwrap_or(PATIENCE)
    }

    /// Adds the descriptors to wait for.
    pub(super) fn await_in<'a>(&'a self, awaited: &mut Vec<PollFd<'a>>) {
        let mut add = |fd: BorrowedFd<'a>, flags| awaited.push(PollFd::new(fd, flags));
        if let Some(listener) = &self.listener {
            add(listener.as_fd(), PollFlags::POLLIN);
        }
        let takes_input = self.stdin.is_some() && self.input.is_empty() && !self.was_left;
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            add(stdin.as_fd(), PollFlags::POLLOUT);
        }
        for attacher in &self.all {
            if !attacher.is_gone {
                add(attacher.connection.as_fd(), PollFlags::POLLIN);
            }
            if let Some(stdin) = attacher.stdin.as_ref().filter(|_| takes_input) {
                add(stdin.as_fd(), PollFlags::POLLIN);
            }
            attacher.await_outputs(&mut add);
        }
    }

    /// After the container's end: waits until all clients have received the output, at most until `end`.
    pub(super) fn drain(&mut self, end: Instant) {
        loop {
            let now = Instant::now();
            self.all.iter_mut().for_each(|attacher| attacher.flush(now));
            if !self.is_behind() {
                return;
            }
            let left = end.saturating_duration_since(now);
            if left.is_zero() {
                self.all.retain(|attacher| !attacher.is_behind());
                return;
            }
            let mut awaited = Vec::new();
            let mut add = |fd, flags| awaited.push(PollFd::new(fd, flags));
            self.all.iter().for_each(|attacher| attacher.await_outputs(&mut add));
            let limit = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut awaited, limit);
        }
    }

    /// The time until which slow clients are waited for after the container's end.
    pub(super) fn end_of_patience() -> Instant {
        Instant::now() + PATIENCE
    }

    /// Tells the clients that the container has ended, after they have received its output.
    pub(super) fn finish(self, code: i32) {
        for attacher in self.all.iter().filter(|attacher| attacher.is_attached) {
            attacher.say(&Last::Code(code));
        }
    }
}

impl Attacher {
    fn await_outputs<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        for (output, waiting) in self.outputs.iter().zip(&self.waiting) {
            if let Some(output) = output.as_ref().filter(|_| !waiting.is_empty()) {
                add(output.as_fd(), PollFlags::POLLOUT);
            }
        }
    }
}

/// A request to attach to streams of a container's first process.
#[derive(Clone, Copy, Debug)]
pub struct AttachOrder<'a> {
    /// The container.
    pub id: &'a ContainerId,
    /// To write its input, if it has one.
    pub stdin: bool,
    /// To read its output from now on.
    pub stdout: bool,
    /// To read its error output; a terminal has none.
    pub stderr: bool,
}

/// A client's side. When it is dropped, the client leaves, and the container continues.
#[derive(Debug)]
pub struct Attachment {
    /// The streams to read and write; none of them blocks.
    pub streams: Streams,
    connection: UnixStream,
    heard: Vec<u8>,
    has_terminal: bool,
    shown: String,
    end: Option<i32>,
}

impl Attachment {
    /// Attaches to a running container. Blocks until its shim has answered.
    ///
    /// # Errors
    /// It does not run, or its shim does not support this, or has too many clients already.
    pub fn open(order: AttachOrder<'_>, settings: &Settings) -> Result<Self, WorkloadError> {
        let id = order.id;
        id.check()?;
        let bundle = Places { run: settings.run.clone(), data: settings.data.clone() }.bundle(id);
        let failed = |error| WorkloadError::failed(format_args!("attach to container {id}"), error);
        let connection = match connect(&bundle) {
            Ok(connection) => connection,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Err(WorkloadError::refused(format_args!(
                    "cannot attach to container {id}: it has ended, or was started by a release of kedge that did not serve attach; once it has been \
                     started again it can be attached to"
                )));
            }
            Err(error) => return Err(failed(error)),
        };
        let (streams, theirs) = pipes(order).map_err(failed)?;
        let hello =
            Hello { version: VERSION, stdin: order.stdin, stdout: order.stdout, stderr: order.stderr };
        send(&connection, &line_of(&hello), &theirs).map_err(failed)?;
        // only the shim may hold them from now on
        drop(theirs);
        let mut heard = Vec::new();
        let answer = answer(&connection, &mut heard).map_err(failed)?;
        if let Some(error) = answer.error {
            return Err(failed(io::Error::other(error)));
        }
        connection.set_nonblocking(true).map_err(failed)?;
        streams.unblock().map_err(failed)?;
        let has_terminal = answer.terminal;
        Ok(Self { streams, connection, heard, has_terminal, shown: id.to_string(), end: None })
    }

    /// True if the container has a terminal, which is its input and output.
    pub fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// Changes the size of the container's terminal; has no effect without one.
    pub fn resize(&self, size: WindowSize) {
        // if the shim is gone, `ended` will notice
        let _ = (&self.connection).write(&line_of(&size));
    }

    /// The exit code of the container once it has ended; `None` while it runs. Does not wait.
    ///
    /// # Errors
    /// The shim has dropped this client because it did not read, or the shim is gone.
    pub fn ended(&mut self) -> Result<Option<i32>, WorkloadError> {
        if self.end.is_some() {
            return Ok(self.end);
        }
        let is_there = hear(&self.connection, &mut self.heard);
        let failed = |why: String| {
            Err(WorkloadError::failed(
                format_args!("stay attached to container {}", self.shown),
                io::Error::other(why),
            ))
        };
        match next_line(&mut self.heard) {
            Some(Last::Code(code)) => {
                self.end = Some(code);
                Ok(self.end)
            }
            Some(Last::Dropped(why)) => failed(why),
            None if is_there => Ok(None),
            None => failed("its shim has closed the connection".to_owned()),
        }
    }
}

impl AsFd for Attachment {
    /// Becomes readable at the end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Connects by a short path, because the bundle's path may exceed the length limit of a socket's address.
fn connect(bundle: &Path) -> io::Result<UnixStream> {
    let directory = File::open(bundle)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}

/// Our ends of the wanted pipes, and the container's.
fn pipes(order: AttachOrder<'_>) -> io::Result<(Streams, Vec<OwnedFd>)> {
    let mut theirs = Vec::new();
    let mut streams = Streams::default();
    if order.stdin {
        let (reader, writer) = io::pipe()?;
        theirs.push(reader.into());
        streams.stdin = Some(File::from(OwnedFd::from(writer)));
    }
    for (is_wanted, stream) in [(order.stdout, &mut streams.stdout), (order.stderr, &mut streams.stderr)] {
        if is_wanted {
            let (reader, writer) = io::pipe()?;
            theirs.push(writer.into());
            *stream = Some(File::from(OwnedFd::from(reader)));
        }
    }
    Ok((streams, theirs))
}

/// Sends a line with descriptors; the line must be short enough for one message.
fn send(connection: &UnixStream, line: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let with = [ControlMessage::ScmRights(&raw)];
    let with: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &with };
    let sent =
        sendmsg::<()>(connection.as_raw_fd(), &[IoSlice::new(line)], with, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == line.len() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{sent} of {} bytes were sent", line.len())))
    }
}

fn answer(mut connection: &UnixStream, heard: &mut Vec<u8>) -> io::Result<Answer> {
    connection.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut some = [0; 256];
    while !heard.contains(&b'\n') && heard.len() < LINE_BYTES {
        match connection.read(&mut some) {
            Ok(0) => break,
            Ok(count) => heard.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let text = format!("its shim did not answer within {} s", ANSWER_LIMIT.as_secs());
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    next_line(heard)
        .ok_or_else(|| io::Error::other("its shim gave no answer, so it ends or speaks another protocol"))
}
