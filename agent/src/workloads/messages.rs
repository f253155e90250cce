//! A container's message about why it ended: a file for each run, bound to its `terminationMessagePath`, or
//! the end of its log.
//!
//! Always holds: the file is on the disk, where endless output of a container does not use up the machine's
//! memory, and stays until the run is removed, so an agent that was not there at the end reads it, too; a
//! read is bounded, follows no link and never blocks. Its size counts as the container's own ephemeral
//! storage, with its limit and evictions: there is no other limit, and upstream has no limit at all. Leaves
//! to others: when to read it, and how much of it a status shows (core).

use super::volumes::Places;
use kedge_core::pods::{ContainerKey, DiskUsage, TERMINATION_MESSAGE_BYTES};
use kedge_platform::linux::read_end;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Below a pod's directory on the disk. No volume can have this name.
pub(super) const DIRECTORY: &str = ".messages";
/// Most files read in it: a container has two at most, that of its last run and of the one before.
const MOST_FILES: usize = 1000;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// Upstream's limits for a message from a log.
const LOG_LINES: usize = 80;
const LOG_BYTES: usize = 2048;
/// Bytes read of a log's file: more than that many lines with their heads, and the longest line (16 KiB)
/// before them.
const LOG_READ_BYTES: u64 = 32 * 1024;

fn file_of(places: &Places, key: &ContainerKey) -> PathBuf {
    places.disk.join(key.pod.as_str()).join(DIRECTORY).join(format!("{}-{}", key.container, key.attempt))
}

/// Makes an empty file for a run, which any user of the container may write.
///
/// # Errors
/// It cannot be made: which, and why.
pub(super) fn make(places: &Places, key: &ContainerKey) -> Result<PathBuf, String> {
    let path = file_of(places, key);
    let made = path
        .parent()
        .map_or(Ok(()), |directory| DirBuilder::new().recursive(true).mode(0o700).create(directory));
    let made = made.and_then(|()| remove_file(&path)).and_then(|()| {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        // whatever this process's umask is
        fs::set_permissions(&path, Permissions::from_mode(0o666))
    });
    made.map_err(|error| format!("make the file for the termination message {}: {error}", path.display()))?;
    Ok(path)
}

/// The file's content; empty if there is no file.
pub(super) fn read(places: &Places, key: &ContainerKey) -> String {
    let path = file_of(places, key);
    match read_end(&path, TERMINATION_MESSAGE_BYTES as u64) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            kedge_api::head_of(&text, TERMINATION_MESSAGE_BYTES).to_owned()
        }
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        // upstream's text
        Err(error) => format!("Error on reading termination log {}: {error}", path.display()),
    }
}

/// # Errors
/// The file could not be removed: which, and why.
pub(super) fn remove(places: &Places, key: &ContainerKey) -> Result<(), String> {
    let path = file_of(places, key);
    remove_file(&path).map_err(|error| format!("remove {}: {error}", path.display()))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Disk usage of the messages of a pod's containers, by container; the argument is the pod's directory there.
/// `None` if it cannot be read.
pub(super) fn sizes(pod: &Path) -> Option<Vec<(String, DiskUsage)>> {
    let entries = match fs::read_dir(pod.join(DIRECTORY)) {
        Ok(entries) => entries,
        Err(error) => return (error.kind() == ErrorKind::NotFound).then(Vec::new),
    };
    let mut sizes = Vec::new();
    for entry in entries.flatten().take(MOST_FILES) {
        let name = entry.file_name();
        let Some((container, _)) = name.to_str().and_then(|name| name.rsplit_once('-')) else { continue };
        // of the directory entry itself, even if it is not a regular file
        match entry.metadata() {
            Ok(found) => {
                let size = DiskUsage { bytes: found.blocks() * BLOCK_BYTES, inodes: 1 };
                sizes.push((container.to_owned(), size));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(sizes)
}

/// The last lines of a run's log, also when the file was begun anew a moment ago.
pub(super) fn end_of_log(log: &Path) -> String {
    let older = PathBuf::from(format!("{}.1", log.display()));
    let mut bytes = Vec::new();
    for path in [older.as_path(), log] {
        match read_end(path, LOG_READ_BYTES) {
            Ok(part) => bytes.extend(part),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // upstream's text
            Err(error) => return format!("Error on reading termination message from logs: {error}"),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let mut shown = String::new();
    for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
        // a line that was cut there has no head
        let mut parts = line.splitn(4, ' ').skip(2);
        let (Some(tag @ ("F" | "P")), Some(text)) = (parts.next(), parts.next()) else { continue };
        shown.push_str(text);
        shown.push_str(if tag == "F" { "\n" } else { "" });
    }
    // the log does not record whether the last line had an end
    let shown = shown.strip_suffix('\n').unwrap_or(&shown);
    let mut start = shown.len().saturating_sub(LOG_BYTES);
    while !shown.is_char_boundary(start) {
        start += 1;
    }
    shown[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_core::pods::PodUid;
    use kedge_rig::Scratch;
    use std::process::Command;

    fn key() -> ContainerKey {
        ContainerKey { pod: PodUid::new("uid-1").unwrap(), container: "web".into(), attempt: 2 }
    }

    #[test]
    fn message_is_read_to_its_limit_and_removed() {
        let scratch = Scratch::new("messages").unwrap();
        let places = Places { disk: scratch.join("disk"), memory: scratch.join("memory") };
        assert_eq!(read(&places, &key()), "");
        let file = make(&places, &key()).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(read(&places, &key()), "");
        fs::write(&file, "why\n").unwrap();
        assert_eq!(read(&places, &key()), "why\n");
        fs::write(&file, [b"begin".as_slice(), &[b'x'; 4095], b"!"].concat()).unwrap();
        let read_now = read(&places, &key());
        assert!(read_now.len() == 4096 && read_now.ends_with("x!"), "the end of a long one, as upstream");
        // each byte becomes a character of three
        fs::write(&file, vec![0xff; 1 << 20]).unwrap();
        assert!(read(&places, &key()).len() <= 4096);
        make(&places, &key()).unwrap();
        assert_eq!(read(&places, &key()), "", "a run that is made again has said nothing");
        remove(&places, &key()).unwrap();
        remove(&places, &key()).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn nothing_but_a_file_is_read() {
        let scratch = Scratch::new("messages").unwrap();
        let places = Places { disk: scratch.join("disk"), memory: scratch.join("memory") };
        let file = make(&places, &key()).unwrap();
        let secret = scratch.write("secret", "hidden");
        remove(&places, &key()).unwrap();
        std::os::unix::fs::symlink(&secret, &file).unwrap();
        let refused = read(&places, &key());
        assert!(
            refused.ends_with("not a regular file but a symbolic link") && !refused.contains("hidden"),
            "{refused}"
        );
        remove(&places, &key()).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert!(
            read(&places, &key()).ends_with("not a regular file but a named pipe"),
            "and it does not wait"
        );
    }

    #[test]
    fn end_of_a_log_is_its_last_lines() {
        let scratch = Scratch::new("messages").unwrap();
        let log = scratch.join("2.log");
        let line = |tag: &str, text: &str| format!("2026-11-23T04:00:00.000000000Z stdout {tag} {text}\n");
        assert_eq!(end_of_log(&log), "");
        fs::write(&log, line("F", "a b") + &line("P", "c") + &line("F", "d")).unwrap();
        assert_eq!(end_of_log(&log), "a b\ncd");
        let many: String = (0..200).map(|number| line("F", &number.to_string())).collect();
        fs::write(&log, &many).unwrap();
        let shown = end_of_log(&log);
        assert_eq!((shown.lines().count(), shown.lines().next()), (80, Some("120")));
        // begun anew a moment ago
        fs::rename(&log, scratch.join("2.log.1")).unwrap();
        fs::write(&log, line("F", "last")).unwrap();
        assert!(end_of_log(&log).ends_with("198\n199\nlast"));
        fs::write(&log, line("P", &"x".repeat(16 << 10)) + &line("F", &("y".repeat(3000) + "z"))).unwrap();
        let shown = end_of_log(&log);
        assert!(shown.len() == 2048 && shown.ends_with("yz"), "{} bytes", shown.len());
        fs::write(&log, "junk\n".repeat(10_000)).unwrap();
        assert_eq!(end_of_log(&log), "");
    }
}
