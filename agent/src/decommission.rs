//! The removals of a decommissioning: first the data of pods, images and configurations, and at its end the
//! identity.
//!
//! Always holds: each can be repeated after a power cut. Nothing is removed through a link, or below a mount
//! point, which may be the host's own directory. The record goes last. Leaves to others: when to remove
//! (`kedge_core::Decommission`).

use kedge_core::Decommission;
use kedge_platform::linux::slots::EFI;
use kedge_platform::linux::{Roots, read_named_file};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::errors::chain;
use crate::slot::host;

/// The record, below `--root-dir`.
pub(crate) const RECORD: &str = "decommission";
/// Most bytes of it.
const LIMIT: usize = 4096;
/// Longest time that discarding may take: less than a start may take.
const DISCARD_SECONDS: &str = "60";
/// The identity, below `--root-dir`: it is needed for the report.
const IDENTITY: [&str; 2] = ["pki", "serving"];
/// The identity on the EFI partition of a disk image, and its notes in `/etc/kedge`.
const HANDED_OVER: [&str; 2] = ["kubeconfig", "bootstrap-kubeconfig"];

/// The record of a decommissioning that was begun. An unreadable one counts as none: the Node still asks for
/// it.
pub(crate) fn begun(root_dir: &Path) -> Option<Decommission> {
    let path = root_dir.join(RECORD);
    let content = match read_named_file(&path, LIMIT) {
        Ok(content) => content,
        Err(kedge_platform::ReadError::NotFound { .. }) => return None,
        Err(error) => {
            log::warn!("{}", chain(&error));
            return None;
        }
    };
    Decommission::read(&content).map_err(|why| log::warn!("{}: {why}", path.display())).ok()
}

/// Removes everything below the directories but the record and the identity.
pub(crate) fn remove_state(root_dir: &Path, others: &[PathBuf]) -> Result<(), String> {
    let kept = [RECORD].into_iter().chain(IDENTITY).collect::<Vec<_>>();
    clear(root_dir, &kept)?;
    others.iter().filter(|other| !other.starts_with(root_dir)).try_for_each(|other| clear(other, &[]))
}

/// Removes the identity, and then the record; between both it calls `discard` with the directory.
pub(crate) fn remove_identity(
    root_dir: &Path,
    files: &[PathBuf],
    discard: Option<fn(&Path)>,
) -> Result<(), String> {
    if host::is_image(&Roots::default()) {
        let handed = HANDED_OVER.map(|name| Path::new(EFI).join("kedge").join(name));
        handed.iter().try_for_each(|file| remove(file))?;
    }
    files.iter().try_for_each(|file| remove(file))?;
    clear(root_dir, &[RECORD])?;
    if let Some(discard) = discard {
        discard(root_dir);
    }
    remove(&root_dir.join(RECORD))
}

/// Discards the blocks that the removed files had, with all others that are free. A disk that cannot do that
/// holds up nothing.
pub(crate) fn discard(root_dir: &Path) {
    let done = Command::new("timeout").args([DISCARD_SECONDS, "fstrim"]).arg(root_dir).status();
    let place = root_dir.display();
    match done {
        Ok(status) if status.success() => log::info!("the free blocks below {place} are discarded"),
        Ok(status) => log::warn!("fstrim {place}: {status}: discard the disk by hand"),
        Err(error) => log::warn!("fstrim {place}: {error}: discard the disk by hand"),
    }
}

/// Removes a file durably; a missing file is no error.
fn remove(file: &Path) -> Result<(), String> {
    let done = match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    let folder = file.parent().unwrap_or(Path::new("/"));
    done.and_then(|()| match fs::File::open(folder) {
        Ok(folder) => folder.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    })
    .map_err(|error| format!("remove {}: {error}", file.display()))
}

/// Removes the content of a directory but these entries.
fn clear(folder: &Path, kept: &[&str]) -> Result<(), String> {
    let failed = |path: &Path, error: io::Error| format!("remove {}: {error}", path.display());
    if let Some(mounted) = mounted_below(folder) {
        return Err(format!("{mounted} is still mounted: nothing below {} is removed", folder.display()));
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(folder, error)),
    };
    for entry in entries {
        let path = entry.map_err(|error| failed(folder, error))?.path();
        if path.file_name().is_some_and(|name| kept.iter().any(|kept| OsStr::new(kept) == name)) {
            continue;
        }
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|seen| seen.is_dir());
        // neither follows links
        let done = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path, error)),
            _ => {}
        }
    }
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(folder, error))
}

/// A mount point below a directory.
fn mounted_below(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .map(str::to_owned)
        .find(|point| Path::new(point) != folder && Path::new(point).starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names below a directory.
    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        kedge_api::sort::sort(&mut names);
        names
    }

    #[test]
    fn identity_goes_after_all_else_and_the_record_last() {
        let scratch = kedge_rig::Scratch::new("decommission").unwrap();
        for folder in ["pki", "images/layers/x", "volumes", "config/checkpoints", "serving"] {
            fs::create_dir_all(scratch.join(folder)).unwrap();
        }
        for file in ["pki/current", "images/layers/x/f", "config/current", "last-exit.json", RECORD] {
            scratch.write(file, "x");
        }
        let outside = kedge_rig::Scratch::new("decommission-outside").unwrap();
        outside.write("hosts", "stays");
        std::os::unix::fs::symlink(outside.join("hosts"), scratch.join("volumes/link")).unwrap();
        std::os::unix::fs::symlink(outside.join("."), scratch.join("volumes/folder")).unwrap();
        for _ in 0..2 {
            remove_state(&scratch, &[scratch.join("config"), scratch.join("missing")]).unwrap();
            assert_eq!(names(&scratch), [RECORD, "pki", "serving"]);
        }
        assert_eq!(names(&outside), ["hosts"]);
        let kubeconfig = outside.join("hosts");
        for _ in 0..2 {
            // the power may be cut while the disk discards
            let discard = |root_dir: &Path| {
                assert!(names(root_dir).iter().all(|name| name == RECORD));
                fs::write(root_dir.with_extension("discarded"), "").unwrap();
            };
            remove_identity(&scratch, std::slice::from_ref(&kubeconfig), Some(discard)).unwrap();
            assert!(names(&scratch).is_empty() && names(&outside).is_empty());
            fs::remove_file(scratch.with_extension("discarded")).unwrap();
        }
    }

    #[test]
    fn record_is_read_back() {
        let scratch = kedge_rig::Scratch::new("decommission-record").unwrap();
        assert_eq!(begun(&scratch), None);
        scratch.write(RECORD, "{}");
        assert_eq!(begun(&scratch), None);
        let text = r#"{"apiVersion":"kedge.dev/v1","kind":"Decommission","nodeUID":"u","wipe":true,"phase":"reporting"}"#;
        scratch.write(RECORD, text);
        let record = begun(&scratch).unwrap();
        assert_eq!((record.node_uid.as_str(), record.wipe, record.has_pods()), ("u", true, false));
        assert_eq!(record.text(), format!("{text}\n").as_bytes());
    }
}
