//! The time of the last backup, in a file of the data directory, so that a running hub can show it.
//!
//! Always holds: the file is written after its backup is complete and durable. A hub reads it every minute,
//! beside everything else: a disk that hangs holds up nothing. Left to others: the backup (`backup`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use kedge_hub_core::kinds::schema::parse_time;
use kedge_hub_core::value::rfc3339;
use time::OffsetDateTime;

use crate::Hub;
use crate::files::{self, Flush};

/// The name of the file.
const FILE: &str = "last-backup";
/// Longest content that is read: a time and the end of its line.
const MOST_BYTES: u64 = 64;
/// How often a hub reads it.
const PERIOD: Duration = Duration::from_secs(60);

/// Writes the time of a backup. A failure is logged: the backup is good without it.
pub(super) fn note(data_dir: &Path, now: OffsetDateTime) {
    let path = data_dir.join(FILE);
    // readable for the hub, if an administrator made the backup
    if let Err(error) =
        files::write(&path, format!("{}\n", rfc3339(now)).as_bytes(), files::PUBLIC, Flush::Later)
    {
        log::warn!(
            "cannot note the time of this backup in {}, so the fleet page does not show it: {error}",
            path.display()
        );
    }
}

/// The time of the last backup (Unix time); `None`: there was none.
///
/// # Errors
/// The file cannot be read, or has no time.
fn read(data_dir: &Path) -> io::Result<Option<i64>> {
    let content = match files::read_regular(&data_dir.join(FILE), MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => String::from_utf8_lossy(&content?).into_owned(),
    };
    let time = parse_time(content.trim_end());
    time.map(|time| Some(time.unix_timestamp())).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Shows the time in the hub, for as long as it runs. While it cannot be read, it is unknown.
///
/// # Errors
/// The thread cannot be started.
pub fn follow(hub: Weak<Hub>, data_dir: PathBuf) -> io::Result<()> {
    let turn = move || {
        while let Some(hub) = hub.upgrade() {
            hub.show_last_backup(read(&data_dir).ok());
            drop(hub);
            std::thread::sleep(PERIOD);
        }
    };
    std::thread::Builder::new().name("last-backup".to_owned()).spawn(turn).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_as_it_was_written() {
        let folder = kedge_rig::Scratch::new("hub-last-backup").unwrap();
        assert_eq!(read(&folder).unwrap(), None);
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        note(&folder, now);
        assert_eq!(read(&folder).unwrap(), Some(1_800_000_000));
        for bad in ["", "yesterday", "2026-13-01T00:00:00Z", &"2".repeat(1 << 16)] {
            std::fs::write(folder.join(FILE), bad).unwrap();
            assert!(read(&folder).is_err(), "{bad:.20}");
        }
    }
}
