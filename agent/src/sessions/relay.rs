//! Moves bytes between a program in a container and a client, until one of them ends.
//!
//! Always holds: at most [`CHUNK_BYTES`] of each direction are held here; while a client takes nothing, the program's output is not
//! read, and while the program takes nothing, the client's input is not. All that the program wrote before its end reaches the
//! client before the end does; what others hold open behind it is not waited for. A client that is gone
//! ends it at once. Leaves to others: how a client speaks (`Client`), what runs (`Running`).

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use kedge_platform::streams::{Awaited, wait};
use kedge_platform::workloads::{Attachment, Session, Streams, WindowSize};

/// What is read of an output at once.
pub(crate) const CHUNK_BYTES: usize = 32 * 1024;
/// Most that is read of the outputs after the end: all that pipes can hold, and room. What still writes then is another program.
const LAST_BYTES: usize = 1024 * 1024;
/// How long a client that takes nothing is waited for once the program has ended.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
/// What reading a terminal says whose programs are all gone.
const HUNG_UP: i32 = 5;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    Stderr,
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Input(Vec<u8>),
    EndOfInput,
    Resize(WindowSize),
    /// It is not there any more, or broke the protocol.
    Gone,
}

/// Who talks to a program.
pub(crate) trait Client {
    /// What it says next; `None`: nothing now. Asked only while its input can be taken, but for `Local`'s signals.
    fn said(&mut self, takes_input: bool) -> Option<Said>;

    /// Whether it takes output now. `Err`: it is gone.
    ///
    /// # Errors
    /// It is gone.
    fn has_room(&mut self) -> Result<bool, Lost>;

    /// Hands over output. Asked only when it has room, and of at most [`CHUNK_BYTES`].
    ///
    /// # Errors
    /// It is gone.
    fn take(&mut self, from: Output, bytes: &[u8]) -> Result<(), Lost>;

    /// What to wait for: that it says something (if `takes_input`), that it has room again, and that it goes away.
    fn awaited(&self, takes_input: bool) -> Vec<Awaited<'_>>;
}

/// The client is gone.
#[derive(Debug)]
pub(crate) struct Lost;

/// What runs, and its streams.
pub(crate) trait Running {
    fn streams(&mut self) -> &mut Streams;
    fn resize(&mut self, size: WindowSize);
    /// Its exit code; `None`: it runs.
    ///
    /// # Errors
    /// It never began, or cannot be followed; the text is for a person.
    fn ended(&mut self) -> Result<Option<i32>, String>;
    /// Streams, and what becomes readable at its end.
    fn parts(&self) -> (&Streams, BorrowedFd<'_>);
    /// Nobody talks to it any more.
    fn end(&mut self);
}

impl Running for Session {
    fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    fn resize(&mut self, size: WindowSize) {
        // a terminal that is gone shows as its program's end
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

/// A container's own first process: it goes on without its clients.
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

/// How it came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The program ended, and the client has what it wrote.
    Code(i32),
    /// The client went away; a program that was run for it was ended.
    Gone,
}

/// Moves bytes until the end.
///
/// # Errors
/// The program never began, or the kernel does not let us wait; the text is for a person.
pub(crate) fn relay(running: &mut dyn Running, client: &mut dyn Client) -> Result<End, String> {
    let mut relay = Relay { running, client, input: Vec::new(), buffer: vec![0; CHUNK_BYTES], end: None };
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
    /// What the program has not taken yet.
    input: Vec<u8>,
    buffer: Vec<u8>,
    /// The program's end: its code, how much may still be read, and until when.
    end: Option<(i32, usize, Instant)>,
}

/// What one try at an output came to.
enum Moved {
    Some,
    /// Nothing is there now.
    Dry,
    /// The client takes no more.
    Full,
}

impl Relay<'_> {
    fn run(&mut self) -> Result<End, Failed> {
        loop {
            // before the outputs are read: what was written before the end is there then
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
            if !heard && !outputs.iter().any(|moved| matches!(moved, Moved::Some)) {
                self.wait()?;
            }
        }
    }

    /// Takes what the client says, and gives the program its input. True: something was done.
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
            // it reads no more, and goes on
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
                self.client.take(from, &self.buffer[..count])?;
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
        let limit = self.end.map(|(_, _, until)| until.saturating_duration_since(Instant::now()));
        wait(&mut awaited, limit).map_err(|error| Failed::Broken(format!("wait for a program: {error}")))?;
        if awaited[of_running..].iter().any(Awaited::has_ended) { Err(Failed::Lost) } else { Ok(()) }
    }
}

/// Reads what is there, at most the buffer; 0: nothing is there now, or ever.
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

/// For clients that write: what an error means.
pub(crate) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
