//! The wanted lines of a log, and how they are shown.
//!
//! Always holds: the bytes of the output are those that the container wrote; a line that was too long for one
//! line of the file is joined again; a line that is not in the CRI format is shown as it is.

use std::io::{self, Write};

use kedge_api::Timestamp;

/// One of the outputs of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Time, stream, `F` or `P` (the next line continues this one), text.
struct Line<'a> {
    time: &'a [u8],
    stream: Stream,
    is_partial: bool,
    text: &'a [u8],
}

impl<'a> Line<'a> {
    fn read(line: &'a [u8]) -> Option<Line<'a>> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (time, stream, tags) = (parts.next()?, parts.next()?, parts.next()?);
        let stream = match stream {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return None,
        };
        if time.last() != Some(&b'Z') {
            return None;
        }
        // tags may be joined by colons
        let is_partial = tags.split(|byte| *byte == b':').any(|tag| tag == b"P");
        Some(Line { time, stream, is_partial, text: parts.next().unwrap_or_default() })
    }
}

/// The selection of lines, and how they are shown.
pub(super) struct Wanted {
    /// In the form of the log, up to microseconds: it is compared as text.
    since: Option<Vec<u8>>,
    /// Only lines of this stream are shown; other lines, and those without a stream, are left out.
    stream: Option<Stream>,
    timestamps: bool,
    /// Bytes that may still be shown.
    left: Option<u64>,
    /// The next line continues the last one.
    is_within: bool,
}

impl Wanted {
    pub(super) fn new(
        since: Option<Timestamp>,
        stream: Option<Stream>,
        timestamps: bool,
        limit_bytes: Option<u64>,
    ) -> Wanted {
        let since = since.map(|since| since.rfc3339_micros().trim_end_matches('Z').as_bytes().to_vec());
        Wanted { since, stream, timestamps, left: limit_bytes, is_within: false }
    }

    /// Whether as many bytes as requested have been shown.
    pub(super) fn is_enough(&self) -> bool {
        self.left == Some(0)
    }

    /// Shows a line of the file, if it is wanted.
    pub(super) fn write(&mut self, line: &[u8], out: &mut impl Write) -> io::Result<()> {
        let Some(found) = Line::read(line) else {
            if self.stream.is_some() {
                return Ok(());
            }
            self.put(line, out)?;
            return self.put(b"\n", out);
        };
        if self.stream.is_some_and(|stream| stream != found.stream) {
            return Ok(());
        }
        if let Some(since) = &self.since {
            if found.time < since.as_slice() {
                return Ok(());
            }
            // times only grow
            self.since = None;
        }
        if self.timestamps && !self.is_within {
            self.put(found.time, out)?;
            self.put(b" ", out)?;
        }
        self.put(found.text, out)?;
        self.is_within = found.is_partial;
        if found.is_partial { Ok(()) } else { self.put(b"\n", out) }
    }

    fn put(&mut self, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        let most = self
            .left
            .map_or(bytes.len(), |left| bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        if let Some(left) = &mut self.left {
            *left -= most as u64;
        }
        out.write_all(&bytes[..most])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[&str] = &[
        "2026-11-23T04:00:00.000000001Z stdout F one",
        "2026-11-23T04:00:01.500000000Z stderr P two ",
        "2026-11-23T04:00:01.500000001Z stderr F goes on",
        "garbage",
        "2026-11-23T04:00:02.000000000Z stdout F ",
        "2026-11-23T04:00:03.000000000Z stdout F:x  three",
    ];

    #[track_caller]
    fn check(since: Option<&str>, timestamps: bool, limit: Option<u64>, expect: &str) {
        let since = since.map(|text| Timestamp::parse(text).unwrap());
        check_wanted(Wanted::new(since, None, timestamps, limit), expect);
    }

    #[track_caller]
    fn check_wanted(mut wanted: Wanted, expect: &str) {
        let mut out = Vec::new();
        for line in LOG {
            wanted.write(line.as_bytes(), &mut out).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), expect);
    }

    #[test]
    fn text_is_what_the_container_wrote() {
        check(None, false, None, "one\ntwo goes on\ngarbage\n\n three\n");
    }

    #[test]
    fn timestamps_stand_before_whole_lines() {
        let expect = "2026-11-23T04:00:02.000000000Z \n2026-11-23T04:00:03.000000000Z  three\n";
        check(Some("2026-11-23T04:00:02Z"), true, None, &format!("garbage\n{expect}"));
    }

    #[test]
    fn since_is_compared_by_time() {
        check(Some("2026-11-23T05:00:01+01:00"), false, None, "two goes on\ngarbage\n\n three\n");
        check(Some("2026-11-23T04:00:03.000001Z"), false, None, "garbage\n");
    }

    #[test]
    fn one_stream_is_shown_without_the_other() {
        let of = |stream| Wanted::new(None, Some(stream), false, None);
        check_wanted(of(Stream::Stdout), "one\n\n three\n");
        check_wanted(of(Stream::Stderr), "two goes on\n");
    }

    #[test]
    fn limit_counts_bytes_that_are_shown() {
        check(None, false, Some(6), "one\ntw");
        check(None, false, Some(0), "");
    }
}
