//! The machine's shutdown, which logind delays while a program holds a delay lock: over the system's message
//! bus, in the six messages that this takes.
//!
//! Always holds: messages and the time of calls are limited; invalid data from the other side causes an error
//! at most. Only logind's signals count: the bus passes on anybody's, including those of a container that has
//! its socket. A delay lock ends with its descriptor, so that of a dead agent delays nothing.
//!
//! Leaves to others: the work during the delay, and reconnecting.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::workloads::receive;

/// The socket of the system's bus.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// Longest time of a call: logind answers within milliseconds, and starts on demand within seconds.
const CALL: Duration = Duration::from_secs(20);
/// Longest message that is read; the bus's messages for us have 200 bytes.
const MESSAGE_BYTES: usize = 64 * 1024;
/// Longest line of the greeting.
const LINE_BYTES: usize = 1024;
/// Most signals that are kept while an answer is awaited; of strangers half as many, so that there is room
/// for logind's.
const KEPT: usize = 16;

const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
const LOGIND_MANAGER: &str = "org.freedesktop.login1.Manager";
const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";
const SIGNAL: &str = "PrepareForShutdown";

/// A delay lock on the machine's shutdown; it is released when dropped.
#[derive(Debug)]
pub struct Delay(#[allow(dead_code, reason = "it counts by being open")] OwnedFd);

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    stream: UnixStream,
    serial: u32,
    /// Signals received: their senders, and true if a shutdown began, false if it was cancelled.
    heard: VecDeque<(String, bool)>,
    /// The bus's name for logind's connection, if known.
    owner: String,
}

/// An argument of a call.
#[derive(Clone, Copy)]
enum Argument<'a> {
    Text(&'a str),
    Number(i32),
}

use Argument::{Number, Text};

impl Logind {
    /// Connects to the bus, and subscribes to the start of shutdowns.
    ///
    /// # Errors
    /// The bus does not exist, or refuses the connection.
    pub fn connect(bus: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(bus)?)
    }

    /// The same over an existing connection to the bus.
    ///
    /// # Errors
    /// The bus refuses the connection.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(CALL))?;
        let mut logind = Self { stream, serial: 0, heard: VecDeque::new(), owner: String::new() };
        logind.greet()?;
        logind.call(BUS, BUS_PATH, BUS, "Hello", &[])?;
        let rule = format!(
            "type='signal',sender='{LOGIND}',interface='{LOGIND_MANAGER}',member='{SIGNAL}',path='{LOGIND_PATH}'"
        );
        logind.call(BUS, BUS_PATH, BUS, "AddMatch", &[Text(&rule)])?;
        Ok(logind)
    }

    /// The longest time for which logind waits for delay locks.
    ///
    /// # Errors
    /// It did not answer.
    pub fn longest_delay(&mut self) -> io::Result<Duration> {
        let value = self.property("InhibitDelayMaxUSec", "t")?;
        Ok(Duration::from_micros(Reader { bytes: &value, at: VALUE }.wide()?))
    }

    /// True if a shutdown is in progress.
    ///
    /// # Errors
    /// It did not answer.
    pub fn is_stopping(&mut self) -> io::Result<bool> {
        let value = self.property("PreparingForShutdown", "b")?;
        Ok(Reader { bytes: &value, at: VALUE }.number()? != 0)
    }

    /// The value of a property of this type, which has one letter.
    fn property(&mut self, name: &str, expected: &str) -> io::Result<Vec<u8>> {
        let arguments = [Text(LOGIND_MANAGER), Text(name)];
        let answer = self.call(LOGIND, LOGIND_PATH, "org.freedesktop.DBus.Properties", "Get", &arguments)?;
        let found = Reader { bytes: &answer.body, at: 0 }.signature()?;
        if found != expected {
            return Err(unexpected(&format!("{name} of type {found:?}, expected {expected:?}")));
        }
        Ok(answer.body)
    }

    /// Makes logind read its configuration again.
    ///
    /// # Errors
    /// systemd refused.
    pub fn reload(&mut self) -> io::Result<()> {
        let (path, manager) = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
        let arguments = [Text("systemd-logind.service"), Text("main"), Number(nix::libc::SIGHUP)];
        self.call("org.freedesktop.systemd1", path, manager, "KillUnit", &arguments).map(drop)
    }

    /// Takes a delay lock for the next shutdown.
    ///
    /// # Errors
    /// logind refused; a shutdown in progress cannot be delayed any more.
    pub fn delay(&mut self, who: &str, why: &str) -> io::Result<Delay> {
        let arguments = [Text("shutdown"), Text(who), Text(why), Text("delay")];
        let mut answer = self.call(LOGIND, LOGIND_PATH, LOGIND_MANAGER, "Inhibit", &arguments)?;
        answer
            .descriptors
            .pop()
            .map(Delay)
            .ok_or_else(|| unexpected("an answer to Inhibit without a descriptor"))
    }

    /// Waits until a shutdown begins (true) or is cancelled (false).
    ///
    /// # Errors
    /// The connection is lost.
    pub fn wait(&mut self) -> io::Result<bool> {
        loop {
            while let Some((sender, begins)) = self.heard.pop_front() {
                if self.is_logind(&sender)? {
                    return Ok(begins);
                }
            }
            self.stream.set_read_timeout(None)?;
            let message = self.read()?;
            self.hear(message);
        }
    }

    fn hear(&mut self, message: Message) {
        if message.member == SIGNAL && message.interface == LOGIND_MANAGER && message.signature == "b" {
            let begins = Reader { bytes: &message.body, at: 0 }.number();
            let room = if message.sender == self.owner { KEPT } else { KEPT / 2 };
            if let (Ok(begins), true) = (begins, self.heard.len() < room) {
                self.heard.push_back((message.sender, begins != 0));
            }
        }
    }

    /// The bus itself writes the sender into each message; logind gets another name whenever it is restarted.
    fn is_logind(&mut self, sender: &str) -> io::Result<bool> {
        if sender.is_empty() || sender == self.owner {
            return Ok(!sender.is_empty());
        }
        let answer = self.call(BUS, BUS_PATH, BUS, "GetNameOwner", &[Text(LOGIND)]);
        self.owner = match answer {
            Ok(answer) => Reader { bytes: &answer.body, at: 0 }.text()?,
            // no connection has the name
            Err(error) if error.kind() == ErrorKind::Other => String::new(),
            Err(error) => return Err(error),
        };
        Ok(sender == self.owner)
    }

    fn greet(&mut self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(CALL))?;
        let uid: String =
            nix::unistd::geteuid().to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        self.expect_line("OK ")?;
        self.stream.write_all(b"NEGOTIATE_UNIX_FD\r\n")?;
        self.expect_line("AGREE_UNIX_FD")?;
        self.stream.write_all(b"BEGIN\r\n")
    }

    /// Reads byte by byte, because the bytes after the line must stay.
    fn expect_line(&mut self, expected: &str) -> io::Result<()> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < LINE_BYTES {
            let mut byte = [0];
            self.fill(&mut byte, &mut Vec::new())?;
            line.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if line.starts_with(expected) {
            return Ok(());
        }
        Err(unexpected(&format!("{line:?} for {expected:?}")))
    }

    fn call(
        &mut self,
        to: &str,
        path: &str,
        interface: &str,
        member: &str,
        arguments: &[Argument<'_>],
    ) -> io::Result<Message> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let serial = self.serial;
        self.stream.write_all(&call(serial, [path, interface, member, to], arguments))?;
        let end = Instant::now() + CALL;
        let within = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => io::Error::new(
                ErrorKind::TimedOut,
                format!("{member} of {to} was not answered within {CALL:?}"),
            ),
            kind => io::Error::new(kind, format!("{member} of {to}: {error}")),
        };
        loop {
            // others may send any number of signals meanwhile
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(within(ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left))?;
            let message = self.read().map_err(within)?;
            if message.reply_to != Some(serial) {
                self.hear(message);
                continue;
            }
            if message.error.is_empty() {
                return Ok(message);
            }
            let text = Reader { bytes: &message.body, at: 0 }.text().unwrap_or_default();
            return Err(io::Error::other(format!("{member} of {to}: {}: {text}", message.error)));
        }
    }

    fn read(&mut self) -> io::Result<Message> {
        let mut descriptors = Vec::new();
        let mut bytes = vec![0; HEAD];
        self.fill(&mut bytes, &mut descriptors)?;
        let rest = rest_of(&bytes)?;
        bytes.resize(HEAD + rest, 0);
        self.fill(&mut bytes[HEAD..], &mut descriptors)?;
        Message::parse(&bytes, descriptors)
    }

    fn fill(&mut self, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match receive(self.stream.as_fd(), &mut bytes[filled..]) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((count, received)) => {
                    filled += count;
                    descriptors.extend(received);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the message bus gave {what}"))
}

// ---- messages, in the byte order of the machines that we run on: little-endian

/// Bytes of a message before its fields.
const HEAD: usize = 16;
/// Offset of the value in a variant whose type has one letter, without its padding.
const VALUE: usize = 3;
const LITTLE_ENDIAN: u8 = b'l';
const METHOD_CALL: u8 = 1;
/// Codes of fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SENDER: u8 = 7;
const SIGNATURE: u8 = 8;

/// The parts of a message that are used.
#[derive(Debug, Default)]
struct Message {
    reply_to: Option<u32>,
    interface: String,
    member: String,
    error: String,
    sender: String,
    signature: String,
    body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Message {
    fn parse(bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut message = Self { descriptors, ..Self::default() };
        let mut reader = Reader { bytes, at: 12 };
        let end = HEAD + usize::try_from(reader.number()?).map_err(io::Error::other)?;
        while reader.at < end {
            reader.align(8);
            let (code, signature) = (reader.byte()?, reader.signature()?);
            match (code, signature.as_str()) {
                (INTERFACE, "s") => message.interface = reader.text()?,
                (MEMBER, "s") => message.member = reader.text()?,
                (ERROR_NAME, "s") => message.error = reader.text()?,
                (SENDER, "s") => message.sender = reader.text()?,
                (SIGNATURE, "g") => message.signature = reader.signature()?,
                (REPLY_SERIAL, "u") => message.reply_to = Some(reader.number()?),
                (_, "s" | "o") => drop(reader.text()?),
                (_, "g") => drop(reader.signature()?),
                (_, "u") => drop(reader.number()?),
                (code, signature) => return Err(unexpected(&format!("field {code} of type {signature:?}"))),
            }
        }
        reader.at = end;
        reader.align(8);
        message.body = bytes.get(reader.at..).unwrap_or_default().to_vec();
        Ok(message)
    }
}

/// The number of bytes after this head.
fn rest_of(head: &[u8]) -> io::Result<usize> {
    if head.first() != Some(&LITTLE_ENDIAN) {
        return Err(unexpected("a message in another byte order"));
    }
    let number = |at| Reader { bytes: head, at }.number().map(|number| number as usize);
    let (body, fields) = (number(4)?, number(12)?);
    if body > MESSAGE_BYTES || fields > MESSAGE_BYTES {
        return Err(unexpected(&format!("a message of {} bytes", body.saturating_add(fields))));
    }
    Ok(fields.next_multiple_of(8) + body)
}

/// A call; `names`: path, interface, member, destination.
fn call(serial: u32, names: [&str; 4], arguments: &[Argument<'_>]) -> Vec<u8> {
    let mut fields = Vec::new();
    let codes = [(PATH, b'o'), (INTERFACE, b's'), (MEMBER, b's'), (DESTINATION, b's')];
    for ((code, kind), name) in codes.into_iter().zip(names) {
        pad(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        put_text(&mut fields, name);
    }
    let mut body = Vec::new();
    let mut signature = String::new();
    for argument in arguments {
        match argument {
            Text(text) => {
                signature.push('s');
                put_text(&mut body, text);
            }
            Number(number) => {
                signature.push('i');
                pad(&mut body, 4);
                body.extend(number.to_le_bytes());
            }
        }
    }
    if !signature.is_empty() {
        pad(&mut fields, 8);
        fields.extend([SIGNATURE, 1, b'g', 0]);
        put_signature(&mut fields, &signature);
    }
    message(METHOD_CALL, serial, fields, &body)
}

fn message(kind: u8, serial: u32, mut fields: Vec<u8>, body: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = vec![LITTLE_ENDIAN, kind, 0, 1];
    bytes.extend(length(body));
    bytes.extend(serial.to_le_bytes());
    bytes.extend(length(&fields));
    pad(&mut fields, 8);
    bytes.extend(fields);
    bytes.extend(body);
    bytes
}

/// Pads to a multiple of `unit`: a message begins at a multiple of eight, so offsets within it give the right
/// alignment.
fn pad(bytes: &mut Vec<u8>, unit: usize) {
    bytes.resize(bytes.len().next_multiple_of(unit), 0);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

fn put_signature(bytes: &mut Vec<u8>, signature: &str) {
    bytes.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
    bytes.extend(signature.as_bytes());
    bytes.push(0);
}

/// Reads values in their order.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, unit: usize) {
        self.at = self.at.next_multiple_of(unit);
    }

    fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or_else(|| unexpected("a message that is cut off"))?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u32> {
        self.align(4);
        let bytes = self.take(4)?.try_into().map_err(io::Error::other)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn wide(&mut self) -> io::Result<u64> {
        self.align(8);
        let bytes = self.take(8)?.try_into().map_err(io::Error::other)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self) -> io::Result<String> {
        let length = self.number()? as usize;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.take(1)?;
        Ok(text)
    }

    fn signature(&mut self) -> io::Result<String> {
        let length = usize::from(self.byte()?);
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.take(1)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::io::{IoSlice, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    const METHOD_RETURN: u8 = 2;
    const ERROR: u8 = 3;
    const SIGNAL_KIND: u8 = 4;

    /// The bus's side, for one client.
    struct Bus {
        stream: UnixStream,
        asked: Vec<String>,
    }

    impl Bus {
        fn line(&mut self) -> String {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                let mut byte = [0];
                self.stream.read_exact(&mut byte).unwrap();
                line.push(byte[0]);
            }
            String::from_utf8_lossy(&line).trim_matches(['\0', '\r', '\n']).to_owned()
        }

        fn greet(&mut self) {
            let uid: String =
                nix::unistd::geteuid().to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(self.line(), format!("AUTH EXTERNAL {uid}"));
            self.stream.write_all(b"OK 0123\r\n").unwrap();
            assert_eq!(self.line(), "NEGOTIATE_UNIX_FD");
            self.stream.write_all(b"AGREE_UNIX_FD\r\n").unwrap();
            assert_eq!(self.line(), "BEGIN");
        }

        /// The serial of the next call.
        fn call(&mut self) -> u32 {
            let mut head = [0; HEAD];
            self.stream.read_exact(&mut head).unwrap();
            let mut rest = vec![0; rest_of(&head).unwrap()];
            self.stream.read_exact(&mut rest).unwrap();
            let bytes = [&head[..], &rest].concat();
            let call = Message::parse(&bytes, Vec::new()).unwrap();
            self.asked.push(format!("{} {}", call.member, call.signature));
            u32::from_le_bytes(bytes[8..12].try_into().unwrap())
        }

        fn send(&mut self, kind: u8, fields: &[(u8, &str)], reply_to: Option<u32>, body: &[u8]) {
            self.stream.write_all(&answer(kind, fields, reply_to, body)).unwrap();
        }

        fn signal(&mut self, sender: &str, begins: bool) {
            let fields = [
                (PATH, LOGIND_PATH),
                (INTERFACE, LOGIND_MANAGER),
                (MEMBER, SIGNAL),
                (SENDER, sender),
                (SIGNATURE, "b"),
            ];
            self.send(SIGNAL_KIND, &fields, None, &u32::from(begins).to_le_bytes());
        }

        /// Answers with the name of logind's connection.
        fn name(&mut self, owner: &str) {
            let serial = self.call();
            let mut body = Vec::new();
            put_text(&mut body, owner);
            self.send(METHOD_RETURN, &[(SENDER, BUS), (SIGNATURE, "s")], Some(serial), &body);
        }
    }

    fn answer(kind: u8, names: &[(u8, &str)], reply_to: Option<u32>, body: &[u8]) -> Vec<u8> {
        let mut fields = Vec::new();
        for (code, name) in names {
            pad(&mut fields, 8);
            let kind = if *code == SIGNATURE {
                b'g'
            } else if *code == PATH {
                b'o'
            } else {
                b's'
            };
            fields.extend([*code, 1, kind, 0]);
            if kind == b'g' { put_signature(&mut fields, name) } else { put_text(&mut fields, name) }
        }
        if let Some(serial) = reply_to {
            pad(&mut fields, 8);
            fields.extend([REPLY_SERIAL, 1, b'u', 0]);
            fields.extend(serial.to_le_bytes());
        }
        message(kind, 7, fields, body)
    }

    /// Runs the bus's side beside a connected client.
    fn with_bus(
        name: &str,
        play: impl FnOnce(&mut Bus) + Send + 'static,
    ) -> (Logind, JoinHandle<Vec<String>>) {
        let path = std::env::temp_dir().join(format!("kedge-bus-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            let mut bus = Bus { stream: listener.accept().unwrap().0, asked: vec![] };
            bus.greet();
            for _ in 0..2 {
                let serial = bus.call();
                bus.send(METHOD_RETURN, &[], Some(serial), &[]);
            }
            play(&mut bus);
            bus.asked
        });
        let logind = Logind::connect(&path).unwrap();
        let _ = std::fs::remove_file(&path);
        (logind, thread)
    }

    #[test]
    fn delay_lasts_as_long_as_its_descriptor() {
        let (mut pipe, write_end) = std::io::pipe().unwrap();
        let (mut logind, bus) = with_bus("delay", move |bus| {
            let serial = bus.call();
            // a signal may come before the answer
            bus.signal(":1.5", true);
            let reply = answer(METHOD_RETURN, &[(SIGNATURE, "h")], Some(serial), &0u32.to_le_bytes());
            let descriptors = [write_end.as_raw_fd()];
            let with = [ControlMessage::ScmRights(&descriptors)];
            let parts = [IoSlice::new(&reply)];
            sendmsg::<()>(bus.stream.as_raw_fd(), &parts, &with, MsgFlags::empty(), None).unwrap();
            drop(write_end);
            bus.name(":1.5");
            bus.signal(":1.5", false);
        });
        let delay = logind.delay("kedge", "pods end first").unwrap();
        assert!(logind.wait().unwrap(), "it begins");
        assert!(!logind.wait().unwrap(), "it is cancelled");
        let asked = bus.join().unwrap();
        assert_eq!(asked, ["Hello ", "AddMatch s", "Inhibit ssss", "GetNameOwner s"], "it is asked once");
        assert_eq!(logind.wait().unwrap_err().kind(), ErrorKind::UnexpectedEof, "the bus has gone");
        drop(delay);
        assert_eq!(pipe.read(&mut [0]).unwrap(), 0, "nobody holds it any more");
    }

    /// Any program may send a signal over the system's bus, to all or to one connection.
    #[test]
    fn signals_of_others_than_logind_are_not_believed() {
        let (mut logind, bus) = with_bus("stranger", |bus| {
            bus.signal(":1.66", true);
            bus.name(":1.5");
            bus.signal("", true);
            bus.signal(":1.5", false);
            // logind was restarted
            bus.signal(":1.9", true);
            bus.name(":1.9");
            bus.signal(":1.5", false);
            let serial = bus.call();
            let fields = [(ERROR_NAME, "org.freedesktop.DBus.Error.NameHasNoOwner")];
            bus.send(ERROR, &fields, Some(serial), &[]);
        });
        assert!(!logind.wait().unwrap(), "what a stranger says is passed over");
        assert!(logind.wait().unwrap());
        assert_eq!(logind.wait().unwrap_err().kind(), ErrorKind::UnexpectedEof, "nor is a name that was its");
        assert_eq!(bus.join().unwrap()[2..], ["GetNameOwner s"; 3]);
    }

    #[test]
    fn shutdown_under_way_is_read() {
        let (mut logind, bus) = with_bus("under-way", |bus| {
            for stops in [true, false] {
                let serial = bus.call();
                let mut body = vec![1, b'b', 0, 0];
                body.extend(u32::from(stops).to_le_bytes());
                bus.send(METHOD_RETURN, &[(SIGNATURE, "v")], Some(serial), &body);
            }
        });
        assert!(logind.is_stopping().unwrap() && !logind.is_stopping().unwrap());
        assert_eq!(bus.join().unwrap()[2..], ["Get ss"; 2]);
    }

    #[test]
    fn longest_delay_is_read_and_refusals_are_named() {
        let (mut logind, bus) = with_bus("limit", |bus| {
            let serial = bus.call();
            let mut body = vec![1, b't', 0];
            pad(&mut body, 8);
            body.extend(5_000_000u64.to_le_bytes());
            bus.send(METHOD_RETURN, &[(SIGNATURE, "v")], Some(serial), &body);
            let serial = bus.call();
            let mut body = Vec::new();
            put_text(&mut body, "not today");
            bus.send(ERROR, &[(ERROR_NAME, "org.example.Denied"), (SIGNATURE, "s")], Some(serial), &body);
        });
        assert_eq!(logind.longest_delay().unwrap(), Duration::from_secs(5));
        let error = logind.reload().unwrap_err().to_string();
        assert_eq!(error, "KillUnit of org.freedesktop.systemd1: org.example.Denied: not today");
        assert_eq!(bus.join().unwrap()[2..], ["Get ss", "KillUnit ssi"]);
    }

    #[test]
    fn garbage_is_an_error() {
        let good = call(1, [LOGIND_PATH, LOGIND_MANAGER, SIGNAL, LOGIND], &[Text("a"), Number(7)]);
        assert_eq!(rest_of(&good[..HEAD]).unwrap(), good.len() - HEAD);
        for at in 0..good.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = byte;
                let _ = rest_of(&bytes[..HEAD]);
                let _ = Message::parse(&bytes, Vec::new());
                let _ = Message::parse(&bytes[..at], Vec::new());
            }
        }
        let mut huge = good;
        huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(rest_of(&huge[..HEAD]).unwrap_err().to_string().contains("a message of 42949"));
    }
}
