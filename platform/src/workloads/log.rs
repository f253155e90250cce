//! A container's log in the CRI format: one line of the file for each line of output,
//! `2026-11-23T04:00:00.000000000Z stdout F text`; `P` in place of `F` where a line continues in the next
//! one.
//!
//! Always holds: a container never waits for its log for ever. A separate thread writes, so a disk that hangs
//! stops only that thread; the amount of waiting lines is limited. While the disk works nothing is lost,
//! however fast the output. Lines that could not be written are counted, and their number is written to the
//! log as soon as that is possible again. A file is rotated between two lines; each file holds whole lines
//! only. The file is checked before lines are written: one that was removed or replaced is made anew;
//! anything else in its place, such as a named pipe, which would hold the writer for ever, is renamed.
//!
//! Leaves to others: the times of reading (`shim`).

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;
use time::OffsetDateTime;

use super::records::LogOrder;
use super::rootfs::make_directory;
use crate::files::Kind;
use crate::linux::{kind_in_its_place, open_regular_as};
use crate::trees;

/// Longest text of one line of the log, as containerd's and CRI-O's: a longer line of output becomes several.
pub(super) const LINE_BYTES: usize = 16 * 1024;
/// Longest head of a line, before the text: time, stream, tag.
const HEAD_BYTES: usize = 64;
/// The longest line of the file.
const LONGEST_BYTES: u64 = (LINE_BYTES + HEAD_BYTES) as u64;
/// Bytes of lines that may wait for the disk; as many may be in the process of being written. Small, because
/// it is memory of a shim.
const QUEUE_BYTES: usize = 64 * 1024;
/// Limit on what a container writes to its log, in bytes of the file, each second and in a burst: flash wears
/// out, and reading takes processor time that is not charged to the container. A container that writes more
/// waits, as at any pipe.
const RATE_BYTES: u64 = 1024 * 1024;
const BURST_BYTES: u64 = 16 * 1024 * 1024;
/// Longest time for which a disk that takes no more lines may delay a container; after that, lines are
/// dropped until it does.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Unused memory that a buffer may keep after a burst.
const KEPT_BYTES: usize = 8 * 1024;

/// The output stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn word(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The bytes of one output that do not form a whole line yet.
#[derive(Debug)]
pub(super) struct Source {
    pipe: File,
    stream: Stream,
    buffer: Vec<u8>,
    open: bool,
    /// True if the last reading took all available bytes, and the log accepted them.
    is_dry: bool,
}

impl Source {
    /// # Errors
    /// The pipe cannot be made non-blocking.
    pub(super) fn new(pipe: OwnedFd, stream: Stream) -> io::Result<Self> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: pipe.into(), stream, buffer: Vec::new(), open: true, is_dry: false })
    }

    /// The pipe, while more output may come.
    pub(super) fn pipe(&self) -> Option<&File> {
        self.open.then_some(&self.pipe)
    }

    /// True if the last [`Source::pump`] left nothing; otherwise it stopped at its limit, or because the log
    /// accepted no more.
    pub(super) fn is_dry(&self) -> bool {
        self.is_dry
    }

    /// Reads at most `most` bytes into the log, as far as the log accepts them. Returns their number; 0 if
    /// there are none, or the output has ended, or the log accepts no more now. `copy` is called with the
    /// bytes.
    pub(super) fn pump(
        &mut self,
        log: &Log,
        most: usize,
        now: Instant,
        copy: &mut dyn FnMut(Stream, &[u8]),
    ) -> usize {
        let mut total = 0;
        let mut is_empty = !self.open;
        while self.open && total < most {
            if !self.give_lines(log, now) {
                break;
            }
            let before = self.buffer.len();
            self.buffer.resize(LINE_BYTES, 0);
            let read = self.pipe.read(&mut self.buffer[before..]);
            self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.open = false,
                Ok(count) => {
                    copy(self.stream, &self.buffer[before..]);
                    total += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::EAGAIN as i32) => {
                    is_empty = true;
                    break;
                }
                Err(_) => self.open = false,
            }
        }
        is_empty |= !self.open;
        self.is_dry = self.give_lines(log, now) && is_empty;
        if self.buffer.is_empty() {
            self.buffer.shrink_to(KEPT_BYTES);
        }
        total
    }

    /// Passes on the whole lines, and a full buffer as a part of one. False if the log accepts no more now.
    fn give_lines(&mut self, log: &Log, now: Instant) -> bool {
        let mut begin = 0;
        let mut taken = true;
        while taken {
            let rest = &self.buffer[begin..];
            let (text, tag, used) = match rest.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&rest[..end], 'F', end + 1),
                None if rest.len() == LINE_BYTES => (rest, 'P', LINE_BYTES),
                None => break,
            };
            taken = log.add(self.stream, tag, text, now);
            if taken {
                begin += used;
            }
        }
        self.buffer.drain(..begin);
        taken
    }

    /// Passes on the last lines, including an unterminated one.
    pub(super) fn finish(&mut self, log: &Log, now: Instant) {
        let rest = std::mem::take(&mut self.buffer);
        for line in rest.split_inclusive(|byte| *byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            if !log.add(self.stream, 'F', text, now) {
                log.shared.queue().drop_line(text.len(), "the disk did not answer");
            }
        }
        self.open = false;
    }
}

/// The rate limit of a log.
#[derive(Debug)]
struct Allowance {
    left: u64,
    at: Instant,
}

impl Allowance {
    fn full(now: Instant) -> Self {
        Self { left: BURST_BYTES, at: now }
    }

    /// True if enough is left for the longest line.
    fn suffices(&mut self, now: Instant) -> bool {
        let millis = u64::try_from(now.saturating_duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        if millis > 0 {
            self.left = millis.saturating_mul(RATE_BYTES / 1000).saturating_add(self.left).min(BURST_BYTES);
            self.at += Duration::from_millis(millis);
        }
        self.left >= LONGEST_BYTES
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }

    /// Time until enough is left.
    fn wait(&self) -> Duration {
        Duration::from_millis(LONGEST_BYTES.saturating_sub(self.left).div_ceil(RATE_BYTES / 1000))
    }
}

#[derive(Debug, Default)]
struct Queue {
    lines: Vec<u8>,
    /// `None` without a limit.
    allowance: Option<Allowance>,
    /// Since when the queue has been full without progress of the writer.
    full_since: Option<Instant>,
    /// Lines and bytes of output that were dropped, since the last notice and in all.
    dropped: (u64, u64),
    dropped_in_all: u64,
    why: String,
    closed: bool,
    /// The writer has ended.
    done: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Readable when the writer has made room.
    room: EventFd,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log of one container.
#[derive(Debug)]
pub(super) struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Starts the thread that writes. The first line creates the file.
    ///
    /// # Errors
    /// No thread or descriptor is available.
    pub(super) fn start(order: LogOrder) -> io::Result<Self> {
        Self::start_on(LogFile::new(order))
    }

    fn start_on(file: LogFile) -> io::Result<Self> {
        let allowance = Some(Allowance::full(Instant::now()));
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { allowance, ..Queue::default() }),
            changed: Condvar::new(),
            room: EventFd::from_flags(
                nix::sys::eventfd::EfdFlags::EFD_NONBLOCK | nix::sys::eventfd::EfdFlags::EFD_CLOEXEC,
            )?,
        });
        let theirs = Arc::clone(&shared);
        // small, because it copies nothing onto its stack
        let builder = std::thread::Builder::new().name("log".into()).stack_size(64 * 1024);
        builder.spawn(move || {
            write_all(&theirs, file);
            theirs.queue().done = true;
            theirs.changed.notify_all();
        })?;
        Ok(Self { shared })
    }

    /// Readable when there is room again.
    pub(super) fn room(&self) -> &EventFd {
        &self.shared.room
    }

    /// True if output should be read: the rate limit allows it, and there is room for a line, or the
    /// container has waited long enough.
    pub(super) fn takes_lines(&self, now: Instant) -> bool {
        let _ = self.shared.room.read();
        let mut queue = self.shared.queue();
        queue.may_write(now) && (has_room(&queue) || is_stuck(&queue, now))
    }

    /// The longest time to wait before `takes_lines` may change.
    pub(super) fn patience_left(&self, now: Instant) -> Duration {
        let mut queue = self.shared.queue();
        if !queue.may_write(now) {
            return queue.allowance.as_ref().map_or(Duration::ZERO, Allowance::wait);
        }
        let since = queue.full_since.unwrap_or(now);
        (since + PATIENCE).saturating_duration_since(now)
    }

    /// Lifts the rate limit after the container's end, so that its remaining output is taken.
    pub(super) fn lift_limit(&self) {
        self.shared.queue().allowance = None;
    }

    /// Adds a line. Returns false if the log did not take the line, and the caller is to try again later: the
    /// rate limit is reached, or the queue is full. Returns true also for a line that was dropped because the
    /// disk does not answer.
    fn add(&self, stream: Stream, tag: char, text: &[u8], now: Instant) -> bool {
        let mut queue = self.shared.queue();
        if !queue.may_write(now) {
            return false;
        }
        if !has_room(&queue) {
            if !is_stuck(&queue, now) {
                queue.full_since.get_or_insert(now);
                return false;
            }
            queue.spend(text.len());
            queue.drop_line(text.len(), "the disk did not answer");
            return true;
        }
        queue.full_since = None;
        let before = queue.lines.len();
        put_line(&mut queue.lines, stream, tag, text);
        let bytes = queue.lines.len() - before;
        queue.spend(bytes);
        drop(queue);
        self.shared.changed.notify_all();
        true
    }

    /// Waits, no longer than `patience`, until all lines are written; returns the number of dropped lines. A
    /// hanging writer is ended together with the process.
    pub(super) fn finish(self, patience: Duration) -> u64 {
        self.shared.queue().closed = true;
        self.shared.changed.notify_all();
        let end = Instant::now() + patience;
        let mut queue = self.shared.queue();
        while !queue.done {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waiting = queue.lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                return queue.dropped_in_all + waiting;
            }
            queue = self.shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.dropped_in_all
    }
}

fn has_room(queue: &Queue) -> bool {
    queue.lines.len() + LINE_BYTES + HEAD_BYTES <= QUEUE_BYTES
}

fn is_stuck(queue: &Queue, now: Instant) -> bool {
    queue.full_since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
}

impl Queue {
    fn may_write(&mut self, now: Instant) -> bool {
        self.allowance.as_mut().is_none_or(|allowance| allowance.suffices(now))
    }

    fn spend(&mut self, bytes: usize) {
        if let Some(allowance) = &mut self.allowance {
            allowance.spend(bytes);
        }
    }

    fn drop_line(&mut self, bytes: usize, why: &str) {
        self.dropped.0 += 1;
        self.dropped.1 += bytes as u64;
        self.dropped_in_all += 1;
        if self.why.is_empty() {
            why.clone_into(&mut self.why);
        }
    }
}

fn put_line(lines: &mut Vec<u8>, stream: Stream, tag: char, text: &[u8]) {
    put_time(lines, SystemTime::now());
    let _ = write!(lines, " {} {tag} ", stream.word());
    lines.extend_from_slice(text);
    lines.push(b'\n');
}

/// RFC 3339 with nine digits, UTC.
fn put_time(lines: &mut Vec<u8>, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let whole = i64::try_from(since.as_secs()).unwrap_or(0);
    let at = OffsetDateTime::from_unix_timestamp(whole).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day, (hour, minute, second)) = (at.year(), at.month() as u8, at.day(), at.to_hms());
    let nanos = since.subsec_nanos();
    let _ = write!(lines, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z");
}

/// The writer's thread: takes waiting lines, writes them, and repeats.
fn write_all(shared: &Shared, mut file: LogFile) {
    let mut batch = Vec::new();
    loop {
        let mut queue = shared.queue();
        while queue.lines.is_empty() && !queue.closed {
            queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.lines.is_empty() && queue.dropped.0 == 0 {
            return;
        }
        let was_last = queue.lines.is_empty();
        std::mem::swap(&mut queue.lines, &mut batch);
        queue.full_since = None;
        let (reported, notice) = (queue.dropped, queue.notice());
        drop(queue);
        let _ = shared.room.write(1);
        let noted = notice.is_none_or(|notice| file.append(&notice).0 == 0);
        let (lines, bytes, why) = file.append_all(&batch);
        batch.clear();
        batch.shrink_to(KEPT_BYTES);
        let mut queue = shared.queue();
        if noted {
            // more lines may have been dropped meanwhile
            queue.dropped.0 -= reported.0;
            queue.dropped.1 -= reported.1;
        }
        if queue.dropped.0 == 0 {
            queue.why.clear();
        }
        if lines > 0 {
            queue.dropped.0 += lines;
            queue.dropped.1 += bytes;
            queue.dropped_in_all += lines;
            queue.why = why;
        }
        if was_last {
            return;
        }
    }
}

impl Queue {
    /// The line that tells a reader of the log how many lines are missing.
    fn notice(&self) -> Option<Vec<u8>> {
        let (lines, bytes) = self.dropped;
        (lines > 0).then(|| {
            let mut notice = Vec::new();
            let text = format!("kedge: {lines} lines ({bytes} bytes) are missing here: {}", self.why);
            put_line(&mut notice, Stream::Stderr, 'F', text.as_bytes());
            notice
        })
    }
}

/// Opens the file for appending, creating it if missing.
type OpenLog = Box<dyn Fn(&Path) -> io::Result<File> + Send>;

/// The current file and the rotated ones.
struct LogFile {
    order: LogOrder,
    /// [`open_log`], except in tests.
    open_log: OpenLog,
    file: Option<File>,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// Bytes of whole lines in the file.
    bytes: u64,
}

impl LogFile {
    fn new(order: LogOrder) -> Self {
        Self { order, open_log: Box::new(open_log), file: None, identity: (0, 0), bytes: 0 }
    }

    /// Appends whole lines, rotating between them. Returns lines and bytes that could not be written, and the
    /// reason.
    fn append_all(&mut self, lines: &[u8]) -> (u64, u64, String) {
        self.close_if_replaced();
        let mut missed = (0, 0, String::new());
        let mut rest = lines;
        while !rest.is_empty() {
            let mut end = self.fitting(rest);
            if end == 0 {
                self.rotate();
                end = self.fitting(rest).max(first_line(rest));
            }
            let (part, later) = rest.split_at(end);
            let (lost_lines, why) = self.append(part);
            if lost_lines > 0 {
                missed = (missed.0 + lost_lines, missed.1 + part.len() as u64, why);
            }
            rest = later;
        }
        missed
    }

    /// Closes a file that is not in its place any more, or that another program truncated or wrote to:
    /// readers would not find lines written to it, or its size is not as expected.
    fn close_if_replaced(&mut self) {
        if self.file.is_none() {
            return;
        }
        let is_ours = match std::fs::symlink_metadata(&self.order.path) {
            Ok(found) => (found.dev(), found.ino()) == self.identity && found.len() == self.bytes,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if !is_ours {
            self.file = None;
        }
    }

    /// How many bytes of whole lines still fit into the file.
    fn fitting(&mut self, lines: &[u8]) -> usize {
        let _ = self.open();
        let left = usize::try_from(self.order.max_bytes.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        if lines.len() <= left {
            return lines.len();
        }
        lines[..left].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)
    }

    /// Appends lines that fit. Returns the number of lines that could not be written, which is all or none,
    /// and the reason.
    fn append(&mut self, lines: &[u8]) -> (u64, String) {
        match self.try_append(lines) {
            Ok(()) => {
                self.bytes += lines.len() as u64;
                (0, String::new())
            }
            Err(error) => {
                // half a line must not remain in front of the next one
                if self.file.as_ref().is_none_or(|file| file.set_len(self.bytes).is_err()) {
                    self.file = None;
                }
                (lines.iter().filter(|byte| **byte == b'\n').count() as u64, error.to_string())
            }
        }
    }

    fn try_append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.open()?;
        self.file.as_mut().expect("it was just opened").write_all(lines)
    }

    fn open(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let (mut file, notice) = match (self.open_log)(&self.order.path) {
            Ok(file) => (file, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = self.order.path.parent().unwrap_or(Path::new("/"));
                make_directory(parent, 0o755).map_err(io::Error::other)?;
                let mut notice = Vec::new();
                let text = b"kedge: the directory of this log was removed, and made again";
                put_line(&mut notice, Stream::Stderr, 'F', text);
                ((self.open_log)(&self.order.path)?, Some(notice))
            }
            Err(error) => {
                let notice = self.set_aside(kind_in_its_place(&error).ok_or(error)?)?;
                ((self.open_log)(&self.order.path)?, Some(notice))
            }
        };
        let found = file.metadata()?;
        self.identity = (found.dev(), found.ino());
        self.bytes = found.len();
        if self.bytes > 0 && !ends_with_newline(&file, self.bytes) {
            file.write_all(b"\n")?;
            self.bytes += 1;
        }
        if let Some(notice) = notice {
            file.write_all(&notice)?;
            self.bytes += notice.len() as u64;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Renames the obstacle in the file's place to `LOG.aside`, removing an older one of that name. Returns a
    /// line about it.
    fn set_aside(&self, found: Kind) -> io::Result<Vec<u8>> {
        let aside = self.named("aside");
        std::fs::rename(&self.order.path, &aside).or_else(|_| {
            trees::remove(&aside)?;
            std::fs::rename(&self.order.path, &aside)
        })?;
        let mut notice = Vec::new();
        let name = aside.file_name().unwrap_or_default().display();
        let text = format!("kedge: a {found} lay in place of this log, and was renamed to {name}");
        put_line(&mut notice, Stream::Stderr, 'F', text.as_bytes());
        Ok(notice)
    }

    /// The file's name with one more ending.
    fn named(&self, ending: &str) -> PathBuf {
        let mut name = self.order.path.clone().into_os_string();
        name.push(format!(".{ending}"));
        PathBuf::from(name)
    }

    /// `log.2` becomes `log.3`, `log.1` `log.2`, `log` `log.1`; one beyond the limit is removed. If the
    /// current one cannot be renamed it is emptied: the limit of its size is guaranteed, its content is not.
    fn rotate(&mut self) {
        let older = |number: u32| match number {
            0 => self.order.path.clone(),
            number => self.named(&number.to_string()),
        };
        let kept = self.order.max_files.max(1) - 1;
        let mut is_moved = false;
        for number in (0..kept).rev() {
            let done = std::fs::rename(older(number), older(number + 1));
            is_moved = done.map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true);
        }
        if !is_moved {
            let _ = self.file.as_ref().map(|file| file.set_len(0));
            self.bytes = 0;
        }
        self.file = None;
    }
}

fn open_log(path: &Path) -> io::Result<File> {
    open_regular_as(path, File::options().read(true).append(true).create(true).mode(0o640))
}

fn ends_with_newline(file: &File, bytes: u64) -> bool {
    let mut last = [0];
    file.read_exact_at(&mut last, bytes - 1).is_ok() && last == [b'\n']
}

fn first_line(lines: &[u8]) -> usize {
    lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| end + 1)
}

/// A log whose disk is as slow as the pipe's reader.
#[cfg(test)]
pub(super) fn on_a_pipe(order: LogOrder) -> (Log, io::PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    let open_log: OpenLog = Box::new(move |_| Ok(File::from(OwnedFd::from(writer.try_clone()?))));
    let file = LogFile { open_log, ..LogFile::new(order) };
    (Log::start_on(file).unwrap(), reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("kedge-log-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn order(&self, max_bytes: u64, max_files: u32) -> LogOrder {
            LogOrder { path: self.0.join("0.log"), max_bytes, max_files }
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap_or_default()
        }

        /// Checks that the log begins with the line about the obstacle in its place, and continues with
        /// `rest`.
        fn check_notice(&self, kind: &str, rest: &str) {
            let text = self.text("0.log");
            let (notice, written) = text.split_once('\n').unwrap();
            let expect = format!("kedge: a {kind} lay in place of this log, and was renamed to 0.log.aside");
            assert!(notice.ends_with(&format!(" stderr F {expect}")), "{notice}");
            assert_eq!(written, rest);
            assert!(self.0.join("0.log.aside").symlink_metadata().is_ok(), "{kind}");
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Writes a container's output through a pipe into a log; returns the number of dropped lines.
    fn logged(output: &[u8], order: LogOrder) -> u64 {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let log = Log::start(order).unwrap();
        let mut source = Source::new(reader.into(), Stream::Stdout).unwrap();
        let output = output.to_vec();
        let container = std::thread::spawn(move || writer.write_all(&output));
        while source.pipe().is_some() {
            source.pump(&log, usize::MAX, Instant::now(), &mut |_, _| ());
            std::thread::yield_now();
        }
        source.finish(&log, Instant::now());
        container.join().unwrap().unwrap();
        log.finish(PATIENCE)
    }

    fn texts(log: &str) -> Vec<(String, String)> {
        let line = |line: &str| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            assert_eq!((words[0].len(), words[1]), (30, "stdout"), "{line}");
            (words[2].to_owned(), words[3].to_owned())
        };
        log.lines().map(line).collect()
    }

    #[test]
    fn long_lines_are_parted_and_come_together_again() {
        for length in [0, 1, LINE_BYTES - 1, LINE_BYTES, LINE_BYTES + 1, 3 * LINE_BYTES + 7] {
            let place = Place::new("long");
            let output = format!("{}\nlast", "x".repeat(length));
            assert_eq!(logged(output.as_bytes(), place.order(1 << 30, 2)), 0);
            let lines = texts(&place.text("0.log"));
            let (last, parts) = lines.split_last().unwrap();
            assert_eq!(last, &("F".to_owned(), "last".to_owned()));
            let whole: String = parts.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(whole.len(), length);
            let tags: String = parts.iter().map(|(tag, _)| tag.as_str()).collect();
            assert_eq!(tags, format!("{}F", "P".repeat(length / LINE_BYTES)));
        }
    }

    #[test]
    fn many_lines_are_rotated_without_loss() {
        let place = Place::new("rotated");
        let output: String = (0..30_000).map(|number| format!("{number}\n")).collect();
        assert_eq!(logged(output.as_bytes(), place.order(1 << 17, 100)), 0);
        let mut number =
            (1..100).rev().find(|number| place.0.join(format!("0.log.{number}")).exists()).unwrap();
        let mut together = String::new();
        while number > 0 {
            let text = place.text(&format!("0.log.{number}"));
            assert!(text.len() <= 1 << 17 && text.ends_with('\n'), "0.log.{number}: {}", text.len());
            together += &text;
            number -= 1;
        }
        together += &place.text("0.log");
        let found: String = texts(&together).into_iter().map(|(_, text)| text + "\n").collect();
        assert_eq!(found, output);
    }

    #[test]
    fn only_the_wanted_number_of_files_is_kept() {
        for files in [1, 2, 3] {
            let place = Place::new("kept");
            let output: String = (0..1000).map(|number| format!("{number}\n")).collect();
            assert_eq!(logged(output.as_bytes(), place.order(1000, files)), 0);
            assert_eq!(fs::read_dir(&place.0).unwrap().count(), files as usize);
            assert!(place.text("0.log").ends_with(" 999\n"));
        }
    }

    #[test]
    fn line_longer_than_a_file_is_written_whole() {
        let place = Place::new("whole");
        assert_eq!(logged(b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nb\n", place.order(10, 3)), 0);
        assert_eq!(texts(&place.text("0.log.1"))[0].1.len(), 36);
        assert_eq!(texts(&place.text("0.log"))[0].1, "b");
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_in_the_log() {
        let place = Place::new("dropped");
        fs::write(place.0.join("file"), "").unwrap();
        let order = LogOrder { path: place.0.join("file/0.log"), ..place.order(1 << 20, 2) };
        let mut file = LogFile::new(order);
        let (lines, bytes, why) = file.append_all(b"one\ntwo\n");
        assert_eq!((lines, bytes), (2, 8));
        let queue = Queue { dropped: (lines, bytes), why, ..Queue::default() };
        file.order = place.order(1 << 20, 2);
        assert_eq!(file.append(&queue.notice().unwrap()).0, 0);
        let text = place.text("0.log");
        assert!(text.contains("stderr F kedge: 2 lines (8 bytes) are missing here: "), "{text}");
    }

    #[test]
    fn directory_that_was_removed_is_made_again_and_said_once() {
        let place = Place::new("directory");
        let directory = place.0.join("pod/container");
        fs::create_dir_all(&directory).unwrap();
        let order = LogOrder { path: directory.join("0.log"), ..place.order(1 << 20, 3) };
        let mut file = LogFile::new(order);
        assert_eq!(file.append_all(b"one\n").0, 0);
        fs::remove_dir_all(place.0.join("pod")).unwrap();
        for line in [&b"two\n"[..], b"three\n"] {
            assert_eq!(file.append_all(line), (0, 0, String::new()));
        }
        let text = place.text("pod/container/0.log");
        let (notice, rest) = text.split_once('\n').unwrap();
        assert!(
            notice.ends_with("stderr F kedge: the directory of this log was removed, and made again"),
            "{text}"
        );
        assert_eq!(rest, "two\nthree\n");
    }

    #[test]
    fn file_that_somebody_took_away_is_made_anew() {
        let place = Place::new("taken");
        let path = place.0.join("0.log");
        let mut file = LogFile::new(place.order(1 << 20, 3));
        let mut write =
            |text: &str| assert_eq!(file.append_all(text.as_bytes()), (0, 0, String::new()), "{text}");
        write("one\n");
        fs::remove_file(&path).unwrap();
        write("two\n");
        assert_eq!(place.text("0.log"), "two\n", "removed");
        fs::rename(&path, place.0.join("elsewhere")).unwrap();
        write("three\n");
        assert_eq!((place.text("elsewhere").as_str(), place.text("0.log").as_str()), ("two\n", "three\n"));
        fs::write(&path, "").unwrap();
        write("four\n");
        assert_eq!(place.text("0.log"), "four\n", "emptied");
        fs::write(&path, "garbage").unwrap();
        write("five\n");
        assert_eq!(place.text("0.log"), "garbage\nfive\n", "half a line does not stand before the next");
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("full")).unwrap();
        write("six\n");
        assert!(place.0.join("0.log.aside/full").exists());
        place.check_notice("directory", "six\n");
    }

    /// A named pipe without a reader would hold the writer for ever, and one with a reader would lose the
    /// lines.
    #[test]
    fn anything_in_place_of_the_file_is_renamed_and_noted() {
        type Put = fn(&Path);
        let pipe: Put = |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let others: [(&str, Put); 4] = [
            ("named pipe", pipe),
            ("symbolic link", |path| std::os::unix::fs::symlink("/nonexistent/thing", path).unwrap()),
            ("symbolic link", |path| std::os::unix::fs::symlink("/dev/full", path).unwrap()),
            ("socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
        ];
        let place = Place::new("in-its-place");
        let path = place.0.join("0.log");
        let mut file = LogFile::new(place.order(1 << 20, 3));
        let mut write = |text: &str| assert_eq!(file.append_all(text.as_bytes()), (0, 0, String::new()));
        for (kind, put) in others {
            let _ = fs::remove_file(&path);
            put(&path);
            write("text\n");
            place.check_notice(kind, "text\n");
        }
        let _ = fs::remove_file(&path);
        pipe(&path);
        let reader = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path).unwrap();
        write("text\n");
        place.check_notice("named pipe", "text\n");
        drop(reader);
        write("more\n");
        place.check_notice("named pipe", "text\nmore\n");
        for (name, put) in [("0.log.1", pipe), ("0.log.2", pipe)] {
            put(&place.0.join(name));
        }
        let mut small = LogFile::new(place.order(1, 3));
        for text in ["one\n", "two\n", "three\n"] {
            assert_eq!(small.append_all(text.as_bytes()), (0, 0, String::new()));
        }
        assert_eq!((place.text("0.log.2").as_str(), place.text("0.log.1").as_str()), ("one\n", "two\n"));
        assert_eq!(place.text("0.log"), "three\n", "pipes of rotated names are replaced");
    }

    /// Length by length as it fills: an emptied file must not be taken for full.
    #[test]
    fn file_that_was_emptied_is_filled_before_it_is_rotated() {
        let place = Place::new("emptied");
        let mut file = LogFile::new(place.order(10, 3));
        file.append_all(b"12345678\n");
        fs::write(place.0.join("0.log"), "").unwrap();
        file.append_all(b"abcdefgh\n");
        assert_eq!((place.text("0.log").as_str(), place.0.join("0.log.1").exists()), ("abcdefgh\n", false));
    }

    #[test]
    fn rotated_file_that_cannot_be_moved_costs_no_other() {
        let place = Place::new("stuck-rotation");
        fs::create_dir_all(place.0.join("0.log.2/full")).unwrap();
        let mut file = LogFile::new(place.order(10, 3));
        for text in ["aaaaaaaa\n", "bbbbbbbb\n", "cccccccc\n"] {
            assert_eq!(file.append_all(text.as_bytes()).0, 0);
        }
        assert_eq!(
            (place.text("0.log.1").as_str(), place.text("0.log").as_str()),
            ("bbbbbbbb\n", "cccccccc\n")
        );
        // neither does a missing one
        fs::remove_file(place.0.join("0.log.1")).unwrap();
        file.append_all(b"dddddddd\n");
        assert_eq!(
            (place.text("0.log.1").as_str(), place.text("0.log").as_str()),
            ("cccccccc\n", "dddddddd\n")
        );
    }

    #[test]
    fn container_that_writes_without_end_waits() {
        let place = Place::new("limit");
        // the same time for all calls, so that the result does not depend on the machine
        let log = Log::start(place.order(1 << 20, 1)).unwrap();
        let begin = Instant::now();
        // as the file grows: a line of one byte takes 42
        let written = |text: &[u8], now: Instant| {
            let mut lines = 0_u64;
            while log.patience_left(now) == PATIENCE {
                match log.add(Stream::Stdout, 'F', text, now) {
                    true => lines += 1,
                    false => std::thread::yield_now(),
                }
            }
            lines * (41 + text.len() as u64)
        };
        let near = |bytes: u64, expect: u64| (expect - 2 * LONGEST_BYTES..=expect).contains(&bytes);
        let burst = written(&[b'x'; 1000], begin);
        assert!(near(burst, BURST_BYTES), "{burst}");
        assert!(!log.takes_lines(begin));
        let later = begin + Duration::from_secs(2);
        let more = written(b"x", later);
        assert!(near(more, 2 * RATE_BYTES + LONGEST_BYTES), "{more}");
        let much_later = later + Duration::from_secs(1_000_000);
        let again = written(&[b'x'; 16_000], much_later);
        assert!(near(again, BURST_BYTES), "{again}");
        log.lift_limit();
        assert!(log.takes_lines(much_later) || !has_room(&log.shared.queue()));
        assert_eq!(log.finish(PATIENCE), 0);
    }

    #[test]
    fn queue_that_stays_full_drops_lines_after_patience() {
        let place = Place::new("stuck");
        // a writer that makes no progress: its disk is a pipe that is not read
        let (log, disk) = on_a_pipe(place.order(1 << 30, 1));
        let begin = Instant::now();
        let text = [b'x'; 1000];
        let mut taken = 0;
        while log.add(Stream::Stdout, 'F', &text, begin) {
            taken += 1;
            assert!(taken < 1000, "the queue has no end");
        }
        assert!(!log.takes_lines(begin));
        assert_eq!(log.patience_left(begin), PATIENCE);
        let later = begin + PATIENCE;
        assert!(log.takes_lines(later) && log.add(Stream::Stdout, 'F', &text, later));
        let dropped = log.finish(Duration::ZERO);
        assert!(dropped >= 1, "{dropped}");
        // lets the writer's thread end
        drop(disk);
    }
}
