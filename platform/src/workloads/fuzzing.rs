//! The messages between agent and shim, for the fuzz target: feature `fake`, never in a release.
//!
//! Always holds: the code of a release reads the bytes, from its usual files and socket; their content starts
//! or ends no process. Leaves to others: the properties of the outcome.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::attach::{Attachers, SOCKET};
use super::linux::state_of;
use super::log::Stream;
use super::places::Places;
use super::records::{
    ContainerExit, EXIT, NOTES, NotesRecord, ORDER, Order, Records, SHIM, STATE, ShimRecord, StateRecord,
};
use super::{AttachOrder, Attachment, Console, ContainerId, Notes, Settings};

/// The records of a bundle, by their files.
pub const RECORDS: [&str; 5] = [ORDER, SHIM, STATE, EXIT, NOTES];

/// A container's directory in a scratch directory of the target.
#[derive(Debug)]
pub struct Bundle {
    settings: Settings,
    id: ContainerId,
    path: PathBuf,
}

/// The outcome of a client's conversation with a shim.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Talk {
    /// The bytes that the shim wrote to the client.
    pub lines: Vec<u8>,
    /// The bytes that the container read.
    pub stdin: Vec<u8>,
    /// The bytes of the container's output that the client received.
    pub outputs: [Vec<u8>; 2],
}

impl Bundle {
    /// # Errors
    /// It cannot be made.
    pub fn new(scratch: &Path) -> io::Result<Self> {
        let settings = Settings::new(&scratch.join("run"), &scratch.join("data"));
        let id = ContainerId { pod: "u".into(), name: "a".into(), attempt: 0 };
        let path = Places { run: settings.run.clone(), data: settings.data.clone() }.bundle(&id);
        fs::create_dir_all(&path)?;
        Ok(Self { settings, id, path })
    }

    /// # Errors
    /// The disk failed.
    pub fn put(&self, record: &str, bytes: &[u8]) -> io::Result<()> {
        fs::write(self.path.join(record), bytes)
    }

    /// # Errors
    /// The disk failed.
    pub fn clear(&self) -> io::Result<()> {
        fs::read_dir(&self.path)?.try_for_each(|entry| fs::remove_file(entry?.path()))
    }

    /// A record that is read, written again, and read again: both results.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn read_twice(&self, record: &str) -> Result<Option<[String; 2]>, String> {
        match record {
            ORDER => self.twice::<Order>(record),
            SHIM => self.twice::<ShimRecord>(record),
            STATE => self.twice::<StateRecord>(record),
            EXIT => self.twice::<ContainerExit>(record),
            _ => self.twice::<NotesRecord>(record),
        }
    }

    fn twice<T: DeserializeOwned + Serialize + Debug>(
        &self,
        name: &str,
    ) -> Result<Option<[String; 2]>, String> {
        let records = Records::of(&self.path);
        let read = || records.read::<T>(name).map_err(|error| error.to_string());
        let Some(first) = read()? else { return Ok(None) };
        records.write(name, &first).map_err(|error| error.to_string())?;
        let second = read()?.ok_or("it was written, and is not there")?;
        Ok(Some([format!("{first:?}"), format!("{second:?}")]))
    }

    /// The state that an agent derives for the container, with or without a live shim; and its notes.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn state(&self, has_shim: bool) -> Result<(&'static str, Notes), String> {
        state_of(&self.path, has_shim).map_err(|error| error.to_string())
    }

    /// Sends these messages to a shim, each with so many of the client's pipes (input, output, errors),
    /// writes `input` and leaves; the container writes `output` to both of its own.
    ///
    /// # Errors
    /// The kernel has no free descriptors.
    pub fn talk_to_shim(
        &self,
        console: Console,
        said: &[(&[u8], usize)],
        input: &[u8],
        output: &[u8],
    ) -> io::Result<Talk> {
        let now = Instant::now();
        let (mut reader, writer) = io::pipe()?;
        let mut shim = Attachers::listen(&self.path, console);
        shim.begin(console.stdin.then(|| File::from(OwnedFd::from(writer))), None)?;
        let mut client = UnixStream::connect(self.path.join(SOCKET))?;
        let ((in_reader, mut in_writer), (out_reader, out_writer), (err_reader, err_writer)) =
            (io::pipe()?, io::pipe()?, io::pipe()?);
        let theirs = [OwnedFd::from(in_reader), out_writer.into(), err_writer.into()];
        in_writer.write_all(input)?;
        drop(in_writer);
        for (line, descriptors) in said {
            let raw: Vec<RawFd> = theirs.iter().take(*descriptors).map(|fd| fd.as_raw_fd()).collect();
            let with = [ControlMessage::ScmRights(&raw)];
            let with: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &with };
            // fails if the shim has already closed the connection
            let _ =
                sendmsg::<()>(client.as_raw_fd(), &[IoSlice::new(line)], with, MsgFlags::MSG_NOSIGNAL, None);
            shim.serve(now);
        }
        drop(theirs);
        if !shim.is_behind() {
            shim.take(Stream::Stdout, output, now);
            shim.take(Stream::Stderr, output, now);
        }
        shim.serve(now);
        shim.drain(now);
        shim.finish(3);
        let mut talk = Talk::default();
        client.set_nonblocking(true)?;
        rest_of(&mut client, &mut talk.lines);
        rest_of(&mut File::from(OwnedFd::from(out_reader)), &mut talk.outputs[0]);
        rest_of(&mut File::from(OwnedFd::from(err_reader)), &mut talk.outputs[1]);
        reader.read_to_end(&mut talk.stdin)?;
        Ok(talk)
    }

    /// A client attaches to a shim that sends this answer and closes the connection; returns the container's
    /// exit code, or the error.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn talk_to_client(&self, answer: &[u8]) -> io::Result<Result<i32, String>> {
        let path = self.path.join(SOCKET);
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let answer = answer.to_vec();
        let shim = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept()?;
            // the greeting, and the pipes that come with it
            let _ = super::receive(&connection, &mut [0; 1024]);
            connection.write_all(&answer)
        });
        let order = AttachOrder { id: &self.id, stdin: false, stdout: true, stderr: false };
        let opened = Attachment::open(order, &self.settings);
        // the client may already have left
        let _ = shim.join();
        let mut client = match opened {
            Ok(client) => client,
            Err(error) => return Ok(Err(error.to_string())),
        };
        loop {
            match client.ended() {
                Ok(Some(code)) => return Ok(Ok(code)),
                Ok(None) => {}
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
    }
}

fn rest_of(source: &mut impl Read, bytes: &mut Vec<u8>) {
    // an error means that no more bytes are there now
    let _ = source.read_to_end(bytes);
}
