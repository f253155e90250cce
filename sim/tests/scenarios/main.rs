//! The decision rules as text: what happens to a node, and what it does about it, in `*.txt`.
//!
//! A scenario is `== name` and lines: an unindented line is a command to the world around the node, the
//! indented ones below it show what the node did. Always holds: the agent has nothing left to do after each
//! command, unless it is held (`launch`, `hold`); a write, an exit or a log line that is missing in the text
//! fails the test. `KEDGE_GOLDEN=write` rewrites the indented lines. Leaves tests with many inputs, bodies of
//! requests or counts over hours to `rows`.

#![allow(clippy::disallowed_methods, reason = "the core opens no file; its tests read their scenarios")]

mod commands;
mod output;

use commands::Stage;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*
        const ALL: &[&str] = &[$(stringify!($name)),*];
    };
}

scenarios! {
    adoption_writes
    condition
    failed_writes
    keys
    lost_records
    previous_run
    programs
    promotion
    proven
    rule_a_banned
    rule_b_missing
    rule_c_crash_loop
    rule_d_cuts
    rule_e_invalid
    rule_f_contact
    source
    start
    systems
    worse
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

#[test]
fn every_file_is_listed() {
    let entries = fs::read_dir(folder()).expect("the scenarios are there");
    let paths = entries.map(|entry| entry.expect("a name").path());
    let texts = paths.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let mut found: Vec<String> =
        texts.filter_map(|path| Some(path.file_stem()?.to_str()?.replace('-', "_"))).collect();
    found.sort();
    assert_eq!(found, ALL);
}

/// Plays a file and compares the result with its text, or rewrites it.
fn check(name: &str) {
    let path = folder().join(name.replace('_', "-")).with_extension("txt");
    let expect = fs::read_to_string(&path).expect("the file is there");
    let found = play(&path, &expect);
    if std::env::var("KEDGE_GOLDEN").is_ok_and(|word| word == "write") {
        fs::write(&path, found).expect("the file can be written");
        return;
    }
    if found == expect {
        return;
    }
    let mut message = String::new();
    let mut at = (0, "");
    let differ = found.lines().zip(expect.lines()).position(|(found, expect)| found != expect);
    let differ = differ.unwrap_or_else(|| found.lines().count().min(expect.lines().count()));
    for (number, line) in found.lines().enumerate().take(differ + 1) {
        if line.starts_with("== ") {
            at = (number, line);
        }
    }
    let shown = |text: &str| text.lines().skip(differ).take(8).collect::<Vec<_>>().join("\n  ");
    let _ = write!(message, "{}:{} in {}\n found\n  {}", path.display(), differ + 1, at.1, shown(&found));
    panic!("{message}\n expect\n  {}\nreview, then KEDGE_GOLDEN=write", shown(&expect));
}

/// The same text with what the nodes did.
fn play(path: &Path, text: &str) -> String {
    let mut played = String::new();
    let mut stage = Stage::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("  ") {
            continue;
        }
        played.push_str(line);
        played.push('\n');
        if line.starts_with("== ") {
            stage = Stage::new();
        } else if !line.is_empty() && !line.starts_with('#') {
            let place = Place(path, number + 1, line);
            for output in stage.perform(line).iter().flat_map(|output| output.lines()) {
                let _ = writeln!(played, "  {output}");
            }
            std::mem::forget(place);
        }
    }
    played
}

/// Names the line of the scenario when a command panics.
struct Place<'a>(&'a Path, usize, &'a str);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Self(path, number, line) = self;
        eprintln!("{}:{number}: {line}", path.display());
    }
}
