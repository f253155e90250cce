//! The audit log: one line of JSON for every write that a client requested, refused ones too.
//!
//! Omitted are reads, and a node's periodic reports (its Lease, statuses, events): heartbeats must not wear out a disk, and would
//! bury the writes of people. `audit.log` is readable only by its owner, rotated by size, and never more than [`FILES`] files; it
//! contains no content of objects. A line is written soon after the answer, not before it: a power cut may lose the last lines, and a
//! disk that does not keep up loses lines, which is logged. While the disk is full or takes no writes lines wait in memory, up to
//! [`HELD_BYTES`]: what room there is belongs to deletions.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};

/// A larger file is rotated.
const FILE_BYTES: u64 = 8 * 1024 * 1024;
/// The current file and the rotated ones: 40 MiB, a hundred thousand changes.
const FILES: usize = 5;
/// Lines that wait for the disk.
const QUEUE: usize = 4096;
/// Lines kept in memory while they cannot be written: a thousand or two.
const HELD_BYTES: usize = 256 * 1024;
/// Between two tries to write what is held.
const HELD_RETRY: Duration = Duration::from_secs(5);
/// Longest name or user that is written out: both are bounded elsewhere, but a refused request may carry anything.
const TEXT_CHARS: usize = 256;

/// One request, as the audit sees it.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The user of the certificate; empty for anonymous callers.
    pub user: &'a str,
    /// The impersonated user, if any.
    pub impersonated: Option<&'a str>,
    /// `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'a str,
    /// `plural` or `plural.group`.
    pub resource: &'a str,
    /// For example `status`.
    pub subresource: &'a str,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The object; empty for collections.
    pub name: &'a str,
    pub dry_run: bool,
    /// The answer's status.
    pub code: u16,
}

impl Entry<'_> {
    fn line(&self, time: &str) -> String {
        let cut = |text: &str| text.chars().take(TEXT_CHARS).collect::<String>();
        let mut entry = json!({
            "time": time, "user": cut(self.user), "verb": self.verb, "resource": self.resource, "name": cut(self.name),
            "code": self.code,
        });
        for (field, text) in [("subresource", self.subresource), ("namespace", self.namespace)] {
            if !text.is_empty() {
                entry[field] = cut(text).into();
            }
        }
        if let Some(user) = self.impersonated {
            entry["impersonatedUser"] = cut(user).into();
        }
        if self.dry_run {
            entry["dryRun"] = Value::Bool(true);
        }
        format!("{entry}\n")
    }
}

#[derive(Debug)]
pub struct Audit {
    queue: Mutex<Option<SyncSender<String>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    lost: AtomicU64,
}

impl Audit {
    /// Opens the log of a data directory. `must_wait`: whether its lines must not take room on the disk now.
    ///
    /// # Errors
    /// The file cannot be made or appended to, and the disk is not at fault.
    pub fn open(data_dir: &Path, must_wait: impl Fn() -> bool + Send + 'static) -> io::Result<Audit> {
        let mut log = Rotating::open(data_dir.join("audit.log"), FILE_BYTES)?;
        let (queue, lines) = sync_channel::<String>(QUEUE);
        let run = move || log.run(&lines, must_wait);
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(run)?;
        Ok(Audit {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            lost: AtomicU64::new(0),
        })
    }

    /// Queues a line; never waits.
    pub fn record(&self, entry: &Entry<'_>) {
        let line = entry.line(&crate::fresh::now_text());
        let queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let kept = queue.as_ref().is_some_and(|queue| queue.try_send(line).is_ok());
        if !kept && self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            log::warn!("the audit log cannot keep up: lines are lost");
        }
    }

    /// Writes the queued lines and ends. Blocks.
    pub fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the audit log's thread had failed");
        }
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            log::warn!("{lost} lines of the audit log were lost");
        }
    }
}

struct Rotating {
    path: PathBuf,
    /// `None` until the disk lets it be opened.
    file: Option<File>,
    bytes: u64,
    limit: u64,
    failing: bool,
    /// Lines that could not be written yet.
    held: String,
    lost: u64,
}

impl Rotating {
    fn open(path: PathBuf, limit: u64) -> io::Result<Rotating> {
        let mut log =
            Rotating { path, file: None, bytes: 0, limit, failing: false, held: String::new(), lost: 0 };
        match log.reopen() {
            Err(error) if crate::store::sort_of(&error).is_none() => Err(error),
            // the hub starts on a disk that takes no writes
            Err(error) => {
                log::error!("cannot open {}: {error}; its lines wait", log.path.display());
                Ok(log)
            }
            Ok(()) => Ok(log),
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        let file = append(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn run(&mut self, lines: &Receiver<String>, must_wait: impl Fn() -> bool) {
        loop {
            let next = match self.held.is_empty() {
                true => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => lines.recv_timeout(HELD_RETRY),
            };
            match next {
                Ok(line) => self.hold(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // one write for all queued lines
            while self.held.len() < 64 * 1024
                && let Ok(line) = lines.try_recv()
            {
                self.hold(&line);
            }
            if !must_wait() {
                self.write_held();
            }
        }
        self.write_held();
        if self.lost > 0 {
            log::warn!("{} lines of the audit log were lost while the disk took none", self.lost);
        }
    }

    fn hold(&mut self, line: &str) {
        if self.held.len() + line.len() <= HELD_BYTES {
            self.held.push_str(line);
        } else {
            self.lost += 1;
        }
    }

    fn write_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.held);
        match self.write(text.as_bytes()) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.held = text;
                // logged once, not for every line
                if !std::mem::replace(&mut self.failing, true) {
                    log::error!("cannot write {}: {error}; its lines wait", self.path.display());
                }
            }
        }
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        if self.bytes >= self.limit {
            self.rotate()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(text) {
            // no half line, and no line twice
            drop(file.set_len(self.bytes));
            return Err(error);
        }
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// `audit.log` becomes `audit.log.1`, that one `.2`, and so on; the last one is deleted.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: usize| match number {
            0 => self.path.clone(),
            _ => PathBuf::from(format!("{}.{number}", self.path.display())),
        };
        for number in (0..FILES - 1).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.reopen()
    }
}

/// Adds a line about a command that changed the data directory while no hub ran. The outcome of the command does not depend on it.
pub(crate) fn append_line(data_dir: &Path, entry: &Value) {
    let path = data_dir.join("audit.log");
    let written = append(&path).and_then(|mut file| file.write_all(format!("{entry}\n").as_bytes()));
    if let Err(error) = written {
        log::error!("cannot write {}: {error}", path.display());
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_rotated_and_bounded() {
        let folder = kedge_rig::Scratch::new("hub-audit").unwrap();
        let mut log = Rotating::open(folder.join("audit.log"), 100).unwrap();
        for number in 0..200 {
            log.write(format!("{number:019}\n").as_bytes()).unwrap();
        }
        let mut sizes: Vec<u64> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes.len(), FILES);
        assert!(sizes.iter().all(|size| *size <= 120), "{sizes:?}");
        let newest = fs::read_to_string(folder.join("audit.log")).unwrap();
        assert!(newest.ends_with(&format!("{:019}\n", 199)));
    }

    #[test]
    fn lines_wait_while_the_disk_is_full() {
        use std::sync::Arc;
        use std::sync::atomic::AtomicBool;
        let folder = kedge_rig::Scratch::new("hub-audit-held").unwrap();
        let full = Arc::new(AtomicBool::new(true));
        let mut log = Rotating::open(folder.join("audit.log"), FILE_BYTES).unwrap();
        let (queue, lines) = sync_channel::<String>(2 * HELD_BYTES / 100);
        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..2 * HELD_BYTES / 100 {
            queue.send(line.clone()).unwrap();
        }
        let (seen, asked) = (full.clone(), std::cell::Cell::new(0));
        let size = || fs::metadata(folder.join("audit.log")).unwrap().len();
        drop(queue);
        log.run(&lines, || {
            assert_eq!(size(), 0, "a full disk was written to");
            asked.set(asked.get() + 1);
            seen.load(Ordering::Relaxed)
        });
        assert!(asked.get() > 0);
        // at the end what was held is tried
        assert!(size() > HELD_BYTES as u64 - 100 && size() <= HELD_BYTES as u64, "{} bytes", size());
        assert_eq!(log.lost as usize + log.held.len(), 2 * HELD_BYTES / 100 - HELD_BYTES / 100);
    }

    #[test]
    fn entry_is_one_line_whatever_it_contains() {
        let long = "x".repeat(5000);
        let entry = Entry {
            user: "a\nb",
            impersonated: None,
            verb: "create",
            resource: "nodes",
            subresource: "",
            namespace: "",
            name: &long,
            dry_run: true,
            code: 403,
        };
        let line = entry.line("2026-01-01T00:00:00Z");
        assert_eq!(line.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&read["user"], &read["dryRun"], read.get("namespace")),
            (&json!("a\nb"), &json!(true), None)
        );
        assert_eq!(read["name"].as_str().map(str::len), Some(TEXT_CHARS));
    }
}
