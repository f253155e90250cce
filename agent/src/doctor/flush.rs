//! A durable write below `--root-dir`, to measure its time.
//!
//! Always holds: another process makes it, in a group of its own, which is left behind where the disk hangs:
//! no signal ends a process that waits for a disk, and the doctor's answer must not wait for it. At most one
//! waits, however often the doctor is run: it locks a directory in the run directory. Leaves to others: the
//! running agent's knowledge of its disk (`node`).

use crate::doctor::finding::{Finding, HANGS};
use crate::options::Places;
use crate::output;
use kedge_platform::linux;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for the other process: flash that collects its garbage takes seconds. Less than the limit
/// of a check of the node.
const LIMIT: Duration = Duration::from_secs(10);

/// A flush that takes longer is not healthy, even on flash that collects its garbage.
const SLOW: Duration = Duration::from_secs(2);

/// The directory that the writing process locks, below the run directory.
const ONLY_ONE: &str = "doctor";

/// The result of the writing process, as its exit code. It prints the milliseconds, or the error.
#[derive(Clone, Copy)]
#[repr(u8)]
enum End {
    Written = 0,
    Failed = 1,
    /// `EX_NOINPUT` of sysexits.h.
    NoDirectory = 66,
    /// `EX_TEMPFAIL`.
    AnotherWaits = 75,
    /// `EX_NOPERM`.
    Denied = 77,
}

/// `kedge doctor write`, which [`look`] starts.
pub fn write(places: &Places) -> ExitCode {
    let (end, text) = match linux::claim(&places.run_dir.join(ONLY_ONE)) {
        Ok(Some(_only)) => written(&places.root_dir),
        Ok(None) => (End::AnotherWaits, String::new()),
        Err(error) => (of_error(&error), format!("{}: {error}", places.run_dir.display())),
    };
    output::print(text);
    ExitCode::from(end as u8)
}

fn written(root: &Path) -> (End, String) {
    let path = root.join(format!(".kedge-doctor-{}", std::process::id()));
    let begun = Instant::now();
    let written =
        linux::open_regular_as(&path, File::options().write(true).create_new(true)).and_then(|mut file| {
            file.write_all(&vec![0; 4096])?;
            file.sync_all()
        });
    let took = begun.elapsed();
    let _ = fs::remove_file(&path);
    match written {
        Ok(()) => (End::Written, took.as_millis().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !root.exists() => {
            (End::NoDirectory, String::new())
        }
        Err(error) => (of_error(&error), format!("write to {}: {error}", root.display())),
    }
}

fn of_error(error: &io::Error) -> End {
    if error.kind() == io::ErrorKind::PermissionDenied { End::Denied } else { End::Failed }
}

/// Measures how long a durable write takes.
pub(super) fn check(places: &Places) -> Finding {
    let shown = places.root_dir.display();
    match end_of_write(places) {
        Ok(Some((code, text))) => judged(code, text.trim(), &shown.to_string()),
        Ok(None) => Finding::fail(
            "disk",
            format!("a durable write to {shown} did not end within {} s", LIMIT.as_secs()),
            HANGS,
        ),
        Err(error) => {
            Finding::warn("disk", format!("not seen: start the process that writes: {error}"), "ask again")
        }
    }
}

/// Exit code and text of the writing process; `None` if it still waits.
fn end_of_write(places: &Places) -> io::Result<Option<(Option<i32>, String)>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["doctor", "write", "--root-dir"])
        .arg(&places.root_dir)
        .arg("--run-dir")
        .arg(&places.run_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((status.code(), printed(&mut child))));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn printed(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut output) = child.stdout.take() {
        let _ = output.read_to_string(&mut text);
    }
    text
}

fn judged(code: Option<i32>, text: &str, root: &str) -> Finding {
    let is = |end: End| code == Some(i32::from(end as u8));
    let took = || text.parse().map(Duration::from_millis);
    match took() {
        Ok(took) if is(End::Written) => {
            let found = format!("a durable write to {root} took {} ms", took.as_millis());
            let advice = "the disk is slow or wearing out: see dmesg and its health report";
            if took < SLOW { Finding::ok("disk", found) } else { Finding::warn("disk", found, advice) }
        }
        _ if is(End::NoDirectory) => {
            Finding::ok("disk", format!("{root} does not exist yet; the agent makes it"))
        }
        _ if is(End::AnotherWaits) => {
            Finding::fail("disk", "the write of an earlier kedge doctor still waits for the disk", HANGS)
        }
        _ if is(End::Denied) => Finding::warn("disk", format!("not seen: {text}"), "ask as root"),
        _ if text.is_empty() => {
            Finding::warn("disk", "not seen: the process that writes was ended", "ask again")
        }
        _ => Finding::fail("disk", text, "no push can be recorded: is it mounted read-only, or full?"),
    }
}
