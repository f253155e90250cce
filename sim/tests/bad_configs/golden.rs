//! The text an operator reads about one case.
//!
//! Always holds: UIDs are replaced by the names of their objects, so that a text changes only when its
//! meaning does; a line that repeats an earlier one is replaced by that one's label, as in `<reason>`.

use crate::Seen;
use std::fmt::Write as _;

/// A longer line is never repeated.
const LABEL_BYTES: usize = 16;

#[derive(Default)]
pub(crate) struct Golden {
    text: String,
    lines: Vec<(String, String)>,
}

/// UIDs and the names for them.
pub(crate) type Names<'a> = [(&'a str, &'a str)];

impl Golden {
    /// A labelled text, all lines of it.
    pub(crate) fn line(&mut self, label: &str, text: &str) {
        let shorten =
            |text: String, (label, line): &(String, String)| text.replace(line, &format!("<{label}>"));
        let short = self.lines.iter().fold(text.to_owned(), shorten);
        if text.len() > LABEL_BYTES {
            self.lines.push((label.to_owned(), text.to_owned()));
        }
        let mut lines = short.lines();
        let _ = writeln!(self.text, "{label:>8}  {}", lines.next().unwrap_or_default());
        for line in lines {
            let _ = writeln!(self.text, "{:>8}  {line}", "");
        }
    }

    pub(crate) fn seen(&mut self, seen: &Seen, names: &Names) {
        let named =
            |text: &str| names.iter().fold(text.to_owned(), |text, (uid, name)| text.replace(uid, name));
        self.line("ConfigOK", &seen.status);
        self.line("message", &named(&seen.message));
        self.line("reason", &named(&seen.reason));
        self.line("error", &named(&seen.error));
        for event in &seen.events {
            self.line("event", &named(event));
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
