//! The log: one line per message on standard error, with a `<N>` priority that journald reads when it listens, and a
//! time of its own when it does not.
//!
//! The level follows `logging.verbosity` of the configuration in use: 0 to 3 says what an operator wants to know, 4 and
//! above everything.

use kedge_api::Timestamp;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

struct Stderr {
    journald: bool,
}

/// Longest line: a message that carries somebody else's text must not fill a disk.
const LINE_BYTES: usize = 4096;

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
        let priority = match record.level() {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let mut out = std::io::stderr().lock();
        for line in text.lines() {
            // a log that cannot be written is no reason to stop
            let _ = if self.journald {
                writeln!(out, "<{priority}>{line}")
            } else {
                writeln!(out, "{} {:5} {line}", now().rfc3339(), record.level())
            };
        }
    }

    fn flush(&self) {}
}

/// Starts logging at the level an operator wants.
pub(crate) fn start() {
    // systemd names the stream it reads; under anything else a person does
    let journald = std::env::var_os("JOURNAL_STREAM").is_some();
    if log::set_boxed_logger(Box::new(Stderr { journald })).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Follows `logging.verbosity`, 0 to 10.
pub(crate) fn verbosity(verbosity: u8) {
    log::set_max_level(match verbosity {
        0..=3 => LevelFilter::Info,
        4..=7 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    });
}

fn now() -> Timestamp {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}
