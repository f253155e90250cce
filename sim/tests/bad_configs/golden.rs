//! The text an operator reads about each case, in one file, compared with what it was when somebody last reviewed it.
//!
//! Always holds: UIDs appear by what they are the UID of, so that a text changes only when its meaning does. Rewritten with
//! `KEDGE_GOLDEN=write`.

use crate::Seen;
use crate::corpus::directory;
use std::fmt::Write as _;
use std::fs;

/// Paragraphs, one a case.
#[derive(Default)]
pub(crate) struct Golden(String);

/// UIDs and what to call them.
pub(crate) type Names<'a> = [(&'a str, &'a str)];

impl Golden {
    /// Begins a case.
    pub(crate) fn case(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n=== {name}");
    }

    /// A line of a case; long and multi-line texts are shown whole.
    pub(crate) fn line(&mut self, label: &str, text: &str) {
        let mut lines = text.lines();
        let _ = writeln!(self.0, "{label:>8}  {}", lines.next().unwrap_or_default());
        for line in lines {
            let _ = writeln!(self.0, "{:>8}  {line}", "");
        }
    }

    /// Puts the cases of another behind these.
    pub(crate) fn add(&mut self, other: Self) {
        self.0.push_str(&other.0);
    }

    /// What an operator sees.
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

    /// Compares with the file, or writes it.
    pub(crate) fn check(self, file: &str) {
        let path = directory(file);
        if std::env::var("KEDGE_GOLDEN").is_ok_and(|word| word == "write") {
            fs::write(&path, &self.0).expect("the golden file can be written");
            return;
        }
        let expect = fs::read_to_string(&path).unwrap_or_default();
        let differing =
            self.0.lines().zip(expect.lines()).enumerate().find(|(_, (found, expect))| found != expect);
        if let Some((line, (found, expect))) = differing {
            panic!(
                "{file}, line {}:\n found  {found}\n expect {expect}\nreview, then KEDGE_GOLDEN=write",
                line + 1
            );
        }
        assert_eq!(self.0.lines().count(), expect.lines().count(), "{file} has another number of lines");
    }
}
