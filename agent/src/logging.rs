//! The log: one line per message on standard error, with a `<N>` priority that journald reads when it
//! listens, and a time of its own when it does not.
//!
//! Always holds: no loop waits for the reader of the log. Lines go through a bounded queue to a thread of
//! their own; while the reader is stuck and the queue is full, new lines are dropped, and their number is
//! logged once it reads again. At a normal exit and before a panic's message the queue is emptied, for as
//! long as [`FLUSH_LIMIT`].
//!
//! The level follows `logging.verbosity` of the configuration in use: 0 to 3 is for operators, 4 and above
//! shows everything.

use kedge_api::Timestamp;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest line: a message that repeats a stranger's text must not fill a disk.
const LINE_BYTES: usize = 4096;

/// Most bytes that wait for the reader: some 500 usual lines, more than a start with every possible fault
/// logs.
const QUEUE_BYTES: usize = 64 * 1024;

/// How long an exit waits for the reader of the log. A pipe that somebody reads takes microseconds.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Stack of the thread that writes: it formats nothing but a number.
const STACK_BYTES: usize = 64 * 1024;

/// Lines on their way to the reader.
#[derive(Default)]
struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<String>,
    bytes: usize,
    /// Lines that found no room since the last one that did.
    lost: u64,
    /// A line was passed to the system, which may hold it for any time.
    is_writing: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it as lost. Never waits for the reader.
    fn push(&self, line: String) {
        let mut state = self.state();
        if state.bytes + line.len() > QUEUE_BYTES {
            state.lost += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        self.changed.notify_all();
    }

    /// Waits for output: lines, and then how many were lost after them.
    fn next(&self) -> (Option<String>, u64) {
        let mut state = self.state();
        state.is_writing = false;
        self.changed.notify_all();
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.is_writing = true;
                return (Some(line), 0);
            }
            let lost = std::mem::take(&mut state.lost);
            if lost > 0 {
                state.is_writing = true;
                return (None, lost);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all lines are written; returns whether they were in time.
    fn flush(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.state();
        while state.is_writing || !state.lines.is_empty() || state.lost > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Writes lines as they arrive, for ever; errors are ignored, because an agent does not stop for its log.
    fn write_to(&self, mut out: impl Write, journald: bool) {
        loop {
            let (line, lost) = self.next();
            let line = line.unwrap_or_else(|| {
                let text = format!("{lost} log lines were dropped: the reader was too slow");
                written(Level::Warn, &text, journald)
            });
            let _ = out.write_all(line.as_bytes());
        }
    }
}

static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

struct Stderr {
    queue: Arc<Queue>,
    journald: bool,
}

impl Log for Stderr {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        let mut text = record.args().to_string();
        if text.len() > LINE_BYTES {
            let end = (0..=LINE_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push_str("...");
        }
        for line in text.lines() {
            self.queue.push(written(record.level(), line, self.journald));
        }
    }

    fn flush(&self) {}
}

/// The form in which a line is written, including its end.
fn written(level: Level, line: &str, journald: bool) -> String {
    let priority = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    if journald { format!("<{priority}>{line}\n") } else { format!("{} {level:5} {line}\n", now().rfc3339()) }
}

/// Starts logging at the level an operator wants.
///
/// # Errors
/// Standard error cannot be cloned, or no thread started.
pub(crate) fn start() -> io::Result<()> {
    // systemd sets the variable for the stream it reads; otherwise a person reads it
    let journald = std::env::var_os("JOURNAL_STREAM").is_some();
    // a descriptor of our own: std's lock of standard error would be held while the reader is stuck, and a
    // panic needs it
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let queue = QUEUE.get_or_init(Arc::default).clone();
    if log::set_boxed_logger(Box::new(Stderr { queue: queue.clone(), journald })).is_err() {
        return Ok(());
    }
    log::set_max_level(LevelFilter::Info);
    std::thread::Builder::new()
        .name("log".into())
        .stack_size(STACK_BYTES)
        .spawn(move || queue.write_to(out, journald))?;
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // the lines before the panic come first; and a stuck reader must not keep a broken process alive
        if flush() {
            tell(panic);
        }
    }));
    Ok(())
}

/// Waits a bounded time until all logged lines are written; returns whether they are.
pub(crate) fn flush() -> bool {
    QUEUE.get().is_none_or(|queue| queue.flush(FLUSH_LIMIT))
}

/// Follows `logging.verbosity`, 0 to 10.
pub(crate) fn verbosity(verbosity: u8) {
    log::set_max_level(match verbosity {
        0..=3 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    });
}

fn now() -> Timestamp {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// A reader that accepts one line for each turn, and blocks the writer until then.
    struct Reader {
        turns: Receiver<()>,
        read: SyncSender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.turns.recv();
            let _ = self.read.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stuck() -> (Arc<Queue>, SyncSender<()>, Receiver<String>) {
        let queue = Arc::new(Queue::default());
        let (turn, turns) = sync_channel(10_000);
        let (read, lines) = sync_channel(10_000);
        let writer = queue.clone();
        std::thread::spawn(move || writer.write_to(Reader { turns, read }, true));
        (queue, turn, lines)
    }

    fn line(number: usize) -> String {
        written(Level::Info, &format!("{number:0>93}"), true)
    }

    #[test]
    fn stuck_log_reader_blocks_nobody_and_losses_are_counted() {
        let (queue, turn, lines) = stuck();
        let (pushed, room) = (2_000, QUEUE_BYTES / 97);
        queue.push(line(0));
        while !queue.state().is_writing {
            std::thread::yield_now();
        }
        for number in 1..pushed {
            queue.push(line(number));
        }
        assert!(!queue.flush(Duration::from_millis(1)), "nothing was read");
        for _ in 0..pushed {
            turn.send(()).unwrap();
        }
        assert!(queue.flush(Duration::from_secs(60)));
        let read: Vec<String> = lines.try_iter().collect();
        // the line that the writer has taken out needs no room
        assert_eq!(read.len() - 1, room + 1);
        assert!(read.iter().zip(0..).take(read.len() - 1).all(|(read, number)| *read == line(number)));
        let lost = pushed - (read.len() - 1);
        let told = format!("<4>{lost} log lines were dropped: the reader was too slow\n");
        assert_eq!(read.last(), Some(&told));
    }

    #[test]
    fn log_is_written_before_an_exit() {
        let (queue, turn, lines) = stuck();
        for number in 0..3 {
            turn.send(()).unwrap();
            queue.push(line(number));
        }
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [line(0), line(1), line(2)]);
    }
}
