//! `kedge unpack`: the process that reads a stranger's archive, and the messages between it and its parent.
//!
//! Always holds: it is confined to its working directory before it reads the first byte; the archive is its
//! standard input; it prints one line: the result, or, with exit code 1, the refusal with the party at fault,
//! whose text is also its error.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::apply::{self, Bounds, Packing, Refusal};
use super::confine;

/// The arguments of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpackArguments {
    packing: Packing,
    entries: u64,
    bytes: u64,
    cpu_secs: u64,
}

impl UnpackArguments {
    /// Reads the words that follow the command: packing, most entries, most bytes, most seconds of processor
    /// time.
    ///
    /// # Errors
    /// The words are not of this form.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let wrong = || format!("unpack {}: expected plain|gzip|zstd ENTRIES BYTES SECONDS", words.join(" "));
        let [packing, entries, bytes, cpu_secs] = words else { return Err(wrong()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        Ok(Self {
            packing: Packing::parse(packing).ok_or_else(wrong)?,
            entries: number(entries)?,
            bytes: number(bytes)?,
            cpu_secs: number(cpu_secs)?,
        })
    }
}

impl fmt::Display for UnpackArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {} {}", self.packing, self.entries, self.bytes, self.cpu_secs)
    }
}

/// The line that it prints on success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unpacked {
    pub(super) diff: String,
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

/// The line that it prints on failure, beside the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refused {
    pub(super) refused: Refusal,
}

/// Unpacks standard input into the working directory; `print` receives the line with the result.
///
/// # Errors
/// The reason why it is not unpacked. Files written so far stay.
pub fn unpack_child(arguments: &UnpackArguments, print: &dyn Fn(String)) -> Result<(), String> {
    let input = io::stdin().lock();
    confine::confine(arguments.cpu_secs)
        .map_err(|error| format!("cannot be confined (it needs root): {error}"))?;
    let bounds = Bounds { entries: arguments.entries, bytes: arguments.bytes };
    let line = |line: serde_json::Result<String>| line.map_err(|error| error.to_string());
    match apply::apply(input, arguments.packing, bounds) {
        Ok(applied) => {
            let unpacked = Unpacked { diff: applied.diff, entries: applied.entries, bytes: applied.bytes };
            print(line(serde_json::to_string(&unpacked))?);
            Ok(())
        }
        Err(refused) => {
            let why = refused.why.clone();
            print(line(serde_json::to_string(&Refused { refused }))?);
            Err(why)
        }
    }
}
