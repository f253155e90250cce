//! The files of static pods, at `staticPodPath`: a directory, or one file.
//!
//! Always holds: it reads the same files as upstream's kubelet, every file of the directory whose name does
//! not begin with a dot, and nothing below other directories; a missing directory is empty, and an unreadable
//! one is unknown. Bounded in files and bytes; only regular files are opened. A pushed configuration sets the
//! place, which may be on a network mount or a removable disk: a look that hangs there delays nothing else,
//! least of all the records that replace that configuration. Leaves to others: when to look, what to do
//! without an answer, and the meaning of the files (core).

use crate::errors::chain;
use crate::faults::Faults;
use crate::perform::thread::{has_finished, spawn};
use crate::queue::{Sender, sync_channel};
use kedge_core::Event;
use kedge_core::images::BlobDigest;
use kedge_core::kubelet::yaml::MAX_TEXT_BYTES;
use kedge_core::pods::{PodEvent, StaticFile};
use kedge_platform::ReadError;
use kedge_platform::linux::read_named_file;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::mpsc::Sender as EventSender;

/// Most files: a node has hundreds of pods at most, and each look reads all of the files.
const MOST_FILES: usize = 1000;
/// Most bytes of all files together: the same as for the pods that the API server shows.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// The loop that reads them, on a thread of its own.
pub(crate) struct StaticFilesLoop {
    looks: Sender<PathBuf>,
    thread: JoinHandle<()>,
}

impl StaticFilesLoop {
    /// Starts the loop; it waits for orders.
    pub(crate) fn start(events: EventSender<Event>, faults: Faults) -> io::Result<Self> {
        let (looks, paths) = sync_channel::<PathBuf>(1);
        let thread = spawn("static-pods", move || {
            let mut files = StaticFiles::default();
            while let Ok(path) = paths.recv() {
                faults.gate("static-pods");
                let _ = events.blocking_send(Event::Pods(Box::new(files.read(&path))));
            }
        })?;
        Ok(Self { looks, thread })
    }

    /// Orders a look. Core requests another one only after the answer to the one before, so there is room.
    pub(crate) fn read(&self, path: String) {
        let _ = self.looks.try_send(path.into());
    }

    /// Ends the loop after the present look. False if it has not ended by then.
    pub(crate) fn end(self, by: Instant) -> bool {
        drop(self.looks);
        has_finished(&self.thread, by)
    }
}

/// One look after another.
#[derive(Default)]
struct StaticFiles {
    /// The result of the last look.
    last: Option<Seen>,
}

/// By path, the digest of the content, or why the file is unusable.
type Seen = Result<Vec<(String, Result<BlobDigest, String>)>, String>;

impl StaticFiles {
    /// Reads all files; the event leaves out the contents that have not changed since the last look.
    fn read(&mut self, path: &Path) -> PodEvent {
        let files = read(path);
        let seen = files.as_ref().map(|files| files.iter().map(digest).collect()).map_err(String::clone);
        if self.last.as_ref() == Some(&seen) {
            return PodEvent::StaticPodsUnchanged;
        }
        self.last = Some(seen);
        PodEvent::StaticPods(files)
    }
}

fn digest(file: &StaticFile) -> (String, Result<BlobDigest, String>) {
    let content = file.content.as_ref().map(|bytes| BlobDigest::of(bytes)).map_err(String::clone);
    (file.path.clone(), content)
}

fn read(path: &Path) -> Result<Vec<StaticFile>, String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let paths = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
        Ok(found) if found.is_dir() => entries(path).map_err(failed)?,
        Ok(_) => vec![path.to_path_buf()],
    };
    if paths.len() > MOST_FILES {
        return Err(format!("{} has more than {MOST_FILES} files", path.display()));
    }
    let (mut files, mut bytes) = (Vec::new(), 0);
    for file in paths.iter().filter_map(|path| read_one(path)) {
        bytes += file.content.as_ref().map_or(0, Vec::len);
        if bytes > MOST_BYTES {
            return Err(format!("the files in {} have more than {MOST_BYTES} bytes", path.display()));
        }
        files.push(file);
    }
    Ok(files)
}

/// Returns one more than allowed if there are too many.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
        if paths.len() > MOST_FILES {
            break;
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// `None` for a directory, or a file that is gone meanwhile.
fn read_one(path: &Path) -> Option<StaticFile> {
    if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
        return None;
    }
    let content = match read_named_file(path, MAX_TEXT_BYTES) {
        Err(ReadError::NotFound { .. }) => return None,
        read => read.map_err(|error| chain(&error)),
    };
    Some(StaticFile { path: path.display().to_string(), content })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use std::os::unix::net::UnixListener;

    /// Names and whether their content can be read.
    fn found(path: &Path) -> Vec<(String, bool)> {
        let name = |path: &str| Path::new(path).file_name().unwrap().to_string_lossy().into_owned();
        let files = read(path).unwrap();
        files.iter().map(|file| (name(&file.path), file.content.is_ok())).collect()
    }

    #[test]
    fn every_file_counts_but_hidden_ones_and_directories() {
        let scratch = Scratch::new("static-files").unwrap();
        let path = scratch.path();
        for name in ["b.yaml", "a.json", ".hidden.yaml", "plain"] {
            fs::write(path.join(name), name).unwrap();
        }
        fs::create_dir(path.join("below")).unwrap();
        fs::write(path.join("below/c.yaml"), "c").unwrap();
        let _socket = UnixListener::bind(path.join("socket")).unwrap();
        fs::write(path.join("large"), vec![b' '; MAX_TEXT_BYTES + 1]).unwrap();
        let expect =
            [("a.json", true), ("b.yaml", true), ("large", false), ("plain", true), ("socket", false)];
        assert_eq!(found(path), expect.map(|(name, is_read)| (name.to_owned(), is_read)));
        assert_eq!(found(&path.join("b.yaml")), [("b.yaml".to_owned(), true)]);
        assert_eq!(found(&path.join("missing")), []);
        assert!(read(&path.join("b.yaml/below")).is_err(), "not a directory: unknown, not empty");
    }

    #[test]
    fn too_many_files_or_bytes_are_unknown() {
        let scratch = Scratch::new("static-files").unwrap();
        let write =
            |name: usize, bytes| fs::write(scratch.path().join(name.to_string()), vec![b' '; bytes]).unwrap();
        (0..MOST_FILES).for_each(|name| write(name, 1));
        assert_eq!(read(scratch.path()).unwrap().len(), MOST_FILES);
        write(MOST_FILES, 1);
        assert!(read(scratch.path()).unwrap_err().contains("more than 1000 files"));
        fs::remove_file(scratch.path().join("0")).unwrap();
        (1..=MOST_BYTES / MAX_TEXT_BYTES + 1).for_each(|name| write(name, MAX_TEXT_BYTES));
        assert!(read(scratch.path()).unwrap_err().contains("bytes"));
    }

    #[test]
    fn what_does_not_change_is_told_once() {
        let scratch = Scratch::new("static-files").unwrap();
        let mut files = StaticFiles::default();
        let mut is_news = || !matches!(files.read(scratch.path()), PodEvent::StaticPodsUnchanged);
        assert!(is_news() && !is_news(), "also that there is nothing");
        fs::write(scratch.path().join("a"), "1").unwrap();
        assert!(is_news() && !is_news());
        fs::write(scratch.path().join("a"), "2").unwrap();
        assert!(is_news() && !is_news());
    }
}
