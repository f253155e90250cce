//! A log's files: the current one and the rotated ones.
//!
//! Always holds: only their owner can read them; there are never more than [`FILES`], each at most one write
//! larger than its limit; a failed write leaves no half line. Other programs may append whole lines, also
//! while this one writes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::files::open_regular;

/// The current file and the rotated ones.
pub(super) const FILES: usize = 5;

#[derive(Debug)]
pub(super) struct Rotating {
    path: PathBuf,
    /// `None` until it could be opened.
    file: Option<File>,
    /// The file's name may not be on the disk yet.
    is_new: bool,
    limit: u64,
    failing: bool,
}

impl Rotating {
    /// A log that cannot be opened costs its lines, not the API: opening is tried again at each write.
    pub(super) fn open(path: PathBuf, limit: u64) -> Rotating {
        let mut log = Rotating { path, file: None, is_new: true, limit, failing: false };
        if let Err(error) = log.reopen() {
            log::error!("cannot open {}: {error}; its lines wait", log.path.display());
        }
        log
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = Some(append(&self.path)?);
        self.is_new = true;
        Ok(())
    }

    /// Flushes the written lines to the disk; returns true if that succeeded.
    pub(super) fn sync(&mut self) -> bool {
        let synced = self.flush();
        if let Err(error) = &synced {
            log::error!("cannot write {}: {error}", self.path.display());
        }
        synced.is_ok()
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        file.sync_data()?;
        if let Some(parent) = self.path.parent().filter(|_| self.is_new) {
            File::open(parent)?.sync_all()?;
            self.is_new = false;
        }
        Ok(())
    }

    /// Writes whole lines; returns true if all are written.
    pub(super) fn write_lines(&mut self, text: &str) -> bool {
        let written = self.write(text.as_bytes());
        let failed_before = std::mem::replace(&mut self.failing, written.is_err());
        if let (Err(error), false) = (&written, failed_before) {
            // logged once, not for every try
            log::error!("cannot write {}: {error}; its lines wait", self.path.display());
        }
        written.is_ok()
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        if self.bytes()? >= self.limit {
            self.rotate()?;
        }
        let before = self.bytes()?;
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(text).inspect_err(|_| {
            // no half line, and no line twice
            drop(file.set_len(before));
        })
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.as_ref().map_or(Ok(0), |file| file.metadata().map(|data| data.len()))
    }

    /// `audit.log` becomes `audit.log.1`, that one `.2`, and so on; the last one is deleted.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number| numbered(&self.path, number);
        for number in (0..FILES - 1).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.reopen()
    }
}

fn numbered(path: &Path, number: usize) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => PathBuf::from(format!("{}.{number}", path.display())),
    }
}

/// The files of a log, the latest first.
pub(super) fn files(path: &Path) -> impl Iterator<Item = PathBuf> + use<'_> {
    (0..FILES).map(move |number| numbered(path, number))
}

/// Opens a log for lines at its end. A new file is given to the owner of its directory: a command that root
/// runs must not lock the hub out of its log.
pub(super) fn append(path: &Path) -> io::Result<File> {
    let is_new = !path.exists();
    let file = open_regular(File::options().create(true).append(true).mode(0o600), path)?;
    if let Some(owner) = path.parent().filter(|_| is_new).and_then(|parent| fs::metadata(parent).ok()) {
        // only root may change an owner, and only root needs to
        drop(std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid())));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_rotated_and_bounded() {
        let folder = kedge_rig::Scratch::new("hub-audit").unwrap();
        let mut log = Rotating::open(folder.join("audit.log"), 100);
        for number in 0..200 {
            assert!(log.write_lines(&format!("{number:019}\n")));
        }
        let mut sizes: Vec<u64> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes.len(), FILES);
        assert!(sizes.iter().all(|size| *size <= 120), "{sizes:?}");
        let newest = fs::read_to_string(folder.join("audit.log")).unwrap();
        assert!(newest.ends_with(&format!("{:019}\n", 199)));
        // each file has five lines, so the oldest begins with the 25th before the end
        let oldest = fs::read_to_string(folder.join("audit.log.4")).unwrap();
        assert!(oldest.starts_with(&format!("{:019}\n", 175)), "{oldest}");
    }

    #[test]
    fn new_log_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = kedge_rig::Scratch::new("hub-audit-mode").unwrap();
        let file = append(&folder.join("audit.log")).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(file.metadata().unwrap().uid(), fs::metadata(folder.path()).unwrap().uid());
    }

    #[test]
    fn lines_of_another_program_are_kept() {
        let folder = kedge_rig::Scratch::new("hub-audit-two").unwrap();
        let path = folder.join("audit.log");
        let mut log = Rotating::open(path.clone(), 1000);
        assert!(log.write_lines("one\n"));
        append(&path).unwrap().write_all(b"two\n").unwrap();
        assert!(log.write_lines("three\n"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\n");
    }

    #[test]
    fn log_that_cannot_be_opened_is_tried_again() {
        let folder = kedge_rig::Scratch::new("hub-audit-none").unwrap();
        let path = folder.join("audit.log");
        fs::create_dir(&path).unwrap();
        let mut log = Rotating::open(path.clone(), 1000);
        assert!(!log.write_lines("lost\n"));
        fs::remove_dir(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(!log.write_lines("lost\n"));
        fs::remove_file(&path).unwrap();
        assert!(log.write_lines("kept\n"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept\n");
    }
}
