//! Lines about commands on the hub's machine: issuing credentials, backup, restore. These commands work with
//! or without a running hub.
//!
//! Always holds: a line names the command, the user of the system who ran it, and the time, and goes into the
//! administrators' log.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kedge_hub_core::identity::Identity;
use time::OffsetDateTime;

use super::class::Class;
use super::entry::{Entry, Note, ObjectRef};
use super::rotating::append;

/// The user name for users of this machine: access to the data directory gives them the right to act. The
/// `uid` is the system's.
const LOCAL_USER: &str = "kedge-hub:local";

/// Adds a line about a command.
///
/// # Errors
/// The log cannot be written; the text names it.
pub(crate) fn append_line(
    data_dir: &Path,
    verb: &str,
    object: ObjectRef<'_>,
    notes: &[(Note, String)],
) -> io::Result<()> {
    let uid = fs::metadata("/proc/self").map(|process| process.uid().to_string()).unwrap_or_default();
    let user = Identity { uid, ..Identity::new(LOCAL_USER, &[]) };
    let entry = Entry { object, notes, ..Entry::own(&user, verb, OffsetDateTime::now_utc()) };
    let path = data_dir.join(Class::Administration.budget().file);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    append(&path).and_then(|mut file| file.write_all(entry.line().as_bytes())).map_err(named)
}

/// As [`append_line`], for a command that must succeed even if the line cannot be written.
pub(crate) fn try_append_line(data_dir: &Path, verb: &str, object: ObjectRef<'_>, notes: &[(Note, String)]) {
    if let Err(error) = append_line(data_dir, verb, object, notes) {
        log::error!("{error}");
    }
}
