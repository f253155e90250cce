//! The hub's log: one line per record on standard error.
//!
//! Always holds: a record is one line whatever it contains (names come from clients, and a line break must
//! not forge a record), written with one call. Under systemd each line starts with the journal's priority and
//! has no time, for the journal keeps its own; elsewhere it starts with the time in UTC. Left to others: the
//! choice of messages.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;

use log::{Level, LevelFilter, Log, Metadata, Record};
use time::OffsetDateTime;

/// Longest text of one record, so that clients cannot fill the log.
const MAX_TEXT_BYTES: usize = 4096;

struct Logger {
    journal: bool,
}

/// Starts logging at `level`. Later calls only change the level.
pub fn start(level: LevelFilter) {
    let logger = Box::new(Logger { journal: is_journal() });
    // an error means that a logger is already set
    let _ = log::set_boxed_logger(logger);
    log::set_max_level(level);
}

/// Whether standard error is the journal: systemd names its device and inode in JOURNAL_STREAM.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fs::metadata("/proc/self/fd/2").is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        // messages of libraries below a warning are meant for their authors
        metadata.target().starts_with("kedge") || metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let now = (!self.journal).then(OffsetDateTime::now_utc);
        let line = line(record.level(), record.target(), &record.args().to_string(), now);
        // if standard error is gone, nothing else can be done
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// RFC 3339 with always three fractional digits, so that lines are aligned and sort as text.
fn time_text(now: OffsetDateTime) -> String {
    let (hour, minute, second, millisecond) = now.to_hms_milli();
    format!("{}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z", now.date())
}

fn line(level: Level, target: &str, text: &str, now: Option<OffsetDateTime>) -> String {
    let (priority, name) = match level {
        Level::Error => (3, "error"),
        Level::Warn => (4, "warn"),
        Level::Info => (6, "info"),
        Level::Debug | Level::Trace => (7, "debug"),
    };
    let part = target.strip_prefix("kedge_hub").map_or(target, |rest| rest.trim_start_matches(':'));
    let part = if part.is_empty() { "hub" } else { part };
    let mut line = match now {
        None => format!("<{priority}>{part}: "),
        Some(now) => format!("{} {name:<5} {part}: ", time_text(now)),
    };
    let mut shown = text;
    if text.len() > MAX_TEXT_BYTES {
        let end = (0..=MAX_TEXT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        shown = &text[..end];
    }
    for character in shown.chars() {
        match character {
            character if character.is_control() => {
                // writing to a string cannot fail
                let _ = write!(line, "{}", character.escape_default());
            }
            character => line.push(character),
        }
    }
    if shown.len() < text.len() {
        line.push_str(" [cut]");
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn record_is_one_line_with_time_or_priority() {
        let check = |level, target: &str, text: &str, now, expect: &str| {
            assert_eq!(line(level, target, text, now), expect);
        };
        let now = Some(datetime!(2026-11-21 02:10:20.123456 UTC));
        check(Level::Info, "kedge_hub::nodes", "x", now, "2026-11-21T02:10:20.123Z info  nodes: x\n");
        check(Level::Error, "kedge_hub", "x", now, "2026-11-21T02:10:20.123Z error hub: x\n");
        let round = Some(datetime!(2026-11-21 02:10:20 UTC));
        check(Level::Warn, "kedge_hub", "x", round, "2026-11-21T02:10:20.000Z warn  hub: x\n");
        check(Level::Warn, "kedge_hub::store", "x", None, "<4>store: x\n");
        check(Level::Debug, "rustls", "x", None, "<7>rustls: x\n");
        check(Level::Info, "kedge_hub", "node \"a\nb\u{1b}[31m", None, "<6>hub: node \"a\\nb\\u{1b}[31m\n");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "ä".repeat(MAX_TEXT_BYTES);
        let line = line(Level::Info, "kedge_hub", &text, None);
        assert!(line.ends_with("ä [cut]\n") && line.len() < MAX_TEXT_BYTES + 32);
    }
}
