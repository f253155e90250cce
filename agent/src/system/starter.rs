//! The first act of `kedge agent`: the packaged program starts the one that the configuration has chosen, if
//! there is one.
//!
//! Always holds: nothing happens without a record of a choice. A start of a program on trial is on the disk
//! before it begins, or does not happen. A program is started only with the very content that was installed.
//! After any failure an older program or the packaged one runs, also where the disk does not answer. The
//! command line is not parsed, because a flag may be one that only the chosen program knows.
//!
//! Leaves to others: which program (`kedge_core::system::starter`), and its installation.

use crate::run;
use kedge_core::system::starter::{Chosen, RECORD, RECORD_BYTES, Reason, Record};
use kedge_platform::linux::{self, LinuxClocks, Roots};
use kedge_platform::slots::digest_of;
use kedge_platform::{Files as _, ReadError, RunDirectory};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Set for a chosen program: the digest by which the configuration names it. It starts no other.
pub const CHOSEN: &str = "KEDGE_CHOSEN";

/// How long the disk may take. The service manager expects readiness after 90 seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest program that is read.
const PROGRAM_BYTES: u64 = 256 << 20;

/// Starts the chosen program of an agent in this process; returns if this very program is to run.
pub fn begin() {
    let arguments: Vec<OsString> = env::args_os().collect();
    if arguments.get(1).is_none_or(|word| word != "agent") || env::var_os(CHOSEN).is_some() {
        return;
    }
    // the thread must not get them: a stop is for the agent
    linux::block_stop_signals();
    let is_settled = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let settle = is_settled.clone();
    let body = move || {
        // replaces all threads, if it starts a program
        start_chosen(&arguments, || !settle.swap(true, Ordering::SeqCst));
        let _ = sender.send(());
    };
    let thread = thread::Builder::new().name("starter".into()).stack_size(256 * 1024).spawn(body);
    if thread.is_ok() && receiver.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
        match is_settled.swap(true, Ordering::SeqCst) {
            // it is about to start a program
            true => drop(receiver.recv()),
            false => say(format_args!(
                "{RECORD} cannot be read, its disk does not answer: the packaged program runs"
            )),
        }
    }
}

/// The log does not exist yet.
fn say(text: impl std::fmt::Display) {
    eprintln!("kedge: {text}");
}

/// Calls `may_start` once, before it starts a program.
fn start_chosen(arguments: &[OsString], may_start: impl Fn() -> bool) {
    let root_dir = flag(arguments, "root-dir").unwrap_or_else(|| "/var/lib/kedge".into());
    let files = linux::files(PathBuf::from(root_dir));
    let read = match files.read(Path::new(RECORD), RECORD_BYTES) {
        Err(ReadError::NotFound { .. }) => return,
        Err(error) => Err(crate::errors::chain(&error)),
        Ok(content) => Record::read(&content),
    };
    let found = read.and_then(|record| {
        let own = env::current_exe().map_err(|error| error.to_string())?;
        let packaged = digest("/proc/self/exe".as_ref()).map_err(|error| error.to_string())?;
        Ok((record, own, packaged))
    });
    let (mut record, own, packaged) = match found {
        Ok(found) => found,
        Err(why) => return say(format_args!("{RECORD}: {why}: the packaged program runs")),
    };
    let before = record.clone();
    let given = env::var_os("RUNTIME_DIRECTORY").filter(|given| !given.is_empty());
    let run_dir = flag(arguments, "run-dir").or(given).unwrap_or_else(|| "/run/kedge".into());
    let marks = RunDirectory::new(run_dir);
    let roots = Roots::default();
    let clocks = LinuxClocks::new(&roots);
    let boot = kedge_platform::Clocks::boot_id(&clocks).to_owned();
    let previous = linux::previous_exit(files.clone(), roots).beside(marks.clone());
    record.begin(&packaged, &boot, &run::previous_run(&previous, marks.next_run()));
    let save = |record: &Record| match *record == before {
        true => Ok(()),
        false => files.write_durably(Path::new(RECORD), &record.text()),
    };
    let mut may_start = Some(may_start);
    while let Some(chosen) = record.choose(&boot) {
        let path = place(&versions(&own), &chosen);
        let checked = match digest(&path) {
            Ok(found) if found == chosen.program => Ok(()),
            Ok(_) => Err((Reason::Damaged, "it has another content".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err((Reason::Gone, error.to_string())),
            Err(error) => Err((Reason::Damaged, error.to_string())),
        };
        let failed = checked.and_then(|()| {
            let is_counted = record.tried().as_ref() == Some(&chosen) && !record.is_good();
            match save(&record) {
                Err(error) if is_counted => {
                    return Err((Reason::Unrecorded, crate::errors::chain(&error)));
                }
                Err(error) => say(crate::errors::chain(&error)),
                Ok(()) => {}
            }
            if may_start.take().is_some_and(|may_start| !may_start()) {
                return Ok(());
            }
            // a program that does not begin must not be taken for the run before it
            marks.clear_marks();
            let words = arguments.get(1..).unwrap_or_default();
            let error = linux::become_program(&path, words, (CHOSEN, &chosen.digest));
            Err((Reason::Exec, error.to_string()))
        });
        let Err((reason, why)) = failed else { return };
        say(format_args!("cannot start {}: {why}", path.display()));
        record.fail(&chosen, reason);
    }
    if let Some((failed, reason)) = record.failed() {
        say(format_args!("the packaged program runs: {} is not used any more: {reason}", failed.digest));
    }
    if let Err(error) = save(&record) {
        say(crate::errors::chain(&error));
    }
}

/// The last value of a flag, in either form.
fn flag(arguments: &[OsString], name: &str) -> Option<OsString> {
    let mut found = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let Some(rest) =
            word.as_bytes().strip_prefix(b"--").and_then(|word| word.strip_prefix(name.as_bytes()))
        else {
            continue;
        };
        match rest.split_first() {
            None => found = words.next().cloned(),
            Some((b'=', value)) => found = Some(OsStr::from_bytes(value).to_owned()),
            Some(_) => {}
        }
    }
    found
}

/// Where programs are kept, by the path of the running one: `/usr/lib/kedge/versions` for `/usr/bin/kedge`.
pub(crate) fn versions(own: &Path) -> PathBuf {
    let above = |levels| own.ancestors().nth(levels).unwrap_or(Path::new("/"));
    match env::var_os(CHOSEN) {
        Some(_) => above(2).to_owned(),
        None => above(2).join("lib/kedge/versions"),
    }
}

pub(crate) fn place(versions: &Path, chosen: &Chosen) -> PathBuf {
    versions.join(&chosen.program).join("kedge")
}

/// The SHA-256 of a program.
pub(crate) fn digest(path: &Path) -> io::Result<String> {
    digest_of(File::open(path)?, PROGRAM_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_has_two_forms_and_the_last_value() {
        let check = |line: &str, expected: Option<&str>| {
            let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
            assert_eq!(flag(&arguments, "root-dir"), expected.map(OsString::from), "{line}");
        };
        check("kedge agent", None);
        check("kedge agent --root-dir /data -v 4", Some("/data"));
        check("kedge agent --later-flag x --root-dir=/data", Some("/data"));
        check("kedge agent --root-dir=/a --root-dir /b", Some("/b"));
        check("kedge agent --root-directory /a", None);
        check("kedge agent --root-dir", None);
    }

    #[test]
    fn programs_lie_beside_the_packaged_one() {
        assert_eq!(versions(Path::new("/usr/bin/kedge")), Path::new("/usr/lib/kedge/versions"));
        assert_eq!(versions(Path::new("/opt/bin/kedge (deleted)")), Path::new("/opt/lib/kedge/versions"));
    }
}
