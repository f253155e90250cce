//! The audit log: changes, refused attempts and reads of Secrets, with their callers, in lines of JSON
//! (`entry`).
//!
//! Left out are a node's periodic reports (its Lease, statuses, events): heartbeats must not wear out a disk,
//! and would bury the acts of people. Always holds: a class of callers has a file, a queue and a budget of
//! its own (`class`), so no class can push out the lines of another; repeated lines (`folds`), lines beyond
//! an identity's quota, requests without a valid credential, requests over a limit, and lines that found no
//! room are counted, and the counts are written as lines (`quota`). A line is written soon after the answer,
//! not before it: a power cut may lose the last lines. The first line of a command is the exception: if it
//! cannot be made durable, the command is not carried out. While the disk is full or cannot be written, lines
//! wait in memory: the remaining room belongs to deletions.

mod certificate;
mod class;
mod command;
mod entry;
mod folds;
mod quota;
mod rotating;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kedge_hub_core::identity::Identity;
use time::OffsetDateTime;
use tokio::sync::oneshot;

use class::{Budget, CLASSES};
use folds::{Folded, Folds};
use quota::{Counts, Quotas, Source, Wanted};
use rotating::Rotating;

pub(crate) use certificate::{Revoked, certificate_notes};
pub(crate) use class::Class;
pub(crate) use command::{append_line, try_append_line};
pub(crate) use entry::{Entry, Note, ObjectRef, Stage};

/// Time between two attempts to write waiting lines.
const RETRY: Duration = Duration::from_secs(5);
/// Time between two lines of counts.
const COUNT_PERIOD: Duration = Duration::from_secs(60);
/// The user of acts that the hub performs by itself.
const HUB_USER: &str = "system:kedge-hub";
const ANONYMOUS: &str = "system:anonymous";

/// The open log of a running hub.
#[derive(Debug)]
pub struct Audit {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Of the administrators' log.
    path: PathBuf,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    logs: [Log; CLASSES.len()],
    counts: Counts,
    /// When the counts must be written; `None` while nothing is counted.
    counts_due: Option<Instant>,
    closed: bool,
}

/// The line was not queued: its caller's quota is used up, or too many lines wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// Lines of one class that wait for the disk.
#[derive(Debug, Default)]
struct Log {
    waiting: String,
    /// Notified once all earlier lines are on the disk; dropped if they cannot be written now.
    awaited: Vec<oneshot::Sender<()>>,
    lost: u64,
    quotas: Quotas,
    folds: Folds,
}

impl Log {
    fn push(&mut self, budget: &Budget, line: &str) -> bool {
        let fits = self.waiting.len() + line.len() <= budget.waiting_bytes;
        if fits {
            self.waiting.push_str(line);
        } else {
            self.lost += 1;
        }
        fits
    }

    /// After a write the queue has room again: adds a line with the number of lost ones.
    fn count_lost(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            self.waiting.push_str(&own_line(&[(Note::Lost, lost.to_string())]));
        }
    }
}

/// A line of the hub about its log.
fn own_line(notes: &[(Note, String)]) -> String {
    let hub = Identity::new(HUB_USER, &[]);
    Entry { notes, ..Entry::own(&hub, "count", OffsetDateTime::now_utc()) }.line()
}

/// A line about requests of one source; `None`: of many.
fn count_line(source: Option<&Source>, count: u64) -> String {
    let user = source.map_or("", |source| &source.user);
    let user = Identity::new(if user.is_empty() { ANONYMOUS } else { user }, &[]);
    let notes = [(Note::Count, count.to_string())];
    let own = Entry::own(&user, "count", OffsetDateTime::now_utc());
    let (from, code) = (source.map(|source| source.from), source.map_or(own.code, |source| source.code));
    Entry { from, code, notes: &notes, ..own }.line()
}

impl State {
    /// Queues a line, or counts it.
    ///
    /// # Errors
    /// The line was omitted or lost, and counted as such; it is not counted as a repetition of written lines.
    fn record(&mut self, class: Class, entry: &Entry<'_>, line: &str, now: Instant) -> Result<(), NoRoom> {
        let log = &mut self.logs[class as usize];
        let whose = class.whose(entry);
        let (act, is_own) = (entry.act(), entry.is_own());
        let wanted = Wanted { whose: &whose, act: &act, bytes: line.len(), is_own, requests: 1 };
        let is_folded = log.folds.take(entry, &whose, line, now);
        if is_folded || !log.quotas.take(class.budget(), &wanted, now) {
            self.count_soon(now);
            return if is_folded { Ok(()) } else { Err(NoRoom) };
        }
        if self.push(class, line) { Ok(()) } else { Err(NoRoom) }
    }

    fn push(&mut self, class: Class, line: &str) -> bool {
        self.logs[class as usize].push(class.budget(), line)
    }

    fn count(&mut self, source: Source, now: Instant) {
        self.counts.add(source);
        self.count_soon(now);
    }

    fn count_soon(&mut self, now: Instant) {
        self.counts_due.get_or_insert(now + COUNT_PERIOD);
    }

    /// Turns all counts into lines.
    fn write_counts(&mut self, now: Instant) {
        self.counts_due = None;
        for (log, budget) in self.logs.iter_mut().zip(&CLASSES) {
            for folded in log.folds.lines() {
                let Folded { repeats, line, whose, act, is_own } = &folded;
                let (bytes, is_own) = (line.len(), *is_own);
                let wanted = Wanted { whose, act, bytes, is_own, requests: *repeats };
                if log.quotas.take(budget, &wanted, now) {
                    // a line that is lost is counted
                    let _ = log.push(budget, line);
                }
            }
            if let Some((count, whose)) = log.quotas.omitted(budget, now) {
                let line = own_line(&[(Note::Omitted, count.to_string()), (Note::OmittedOf, whose)]);
                let _ = log.push(budget, &line);
            }
        }
        let (sources, rest) = self.counts.take();
        let rest = (rest > 0).then(|| count_line(None, rest));
        let lines = sources.iter().map(|(source, count)| count_line(Some(source), *count)).chain(rest);
        for line in lines {
            let _ = self.push(Class::Refused, &line);
        }
    }

    fn is_waiting(&self) -> bool {
        self.logs.iter().any(|log| !log.waiting.is_empty()) || self.is_awaited()
    }

    fn is_awaited(&self) -> bool {
        self.logs.iter().any(|log| !log.awaited.is_empty())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // a panic leaves the state consistent, because each change of it is one complete step
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the thread if it has something to do.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        drop(state);
        self.changed.notify_one();
        changed
    }

    /// Waits for lines, or until counts are due. `retry`: lines wait already; they are tried again later, or
    /// at the end.
    fn wait(&self, retry: bool) -> bool {
        let mut state = self.state();
        let retry_at = retry.then(|| Instant::now() + RETRY);
        loop {
            let now = Instant::now();
            if state.closed || state.counts_due.is_some_and(|due| due <= now) {
                state.write_counts(now);
            }
            let ready = match retry_at {
                Some(at) => at <= now || state.is_awaited(),
                None => state.is_waiting(),
            };
            if ready || state.closed {
                return state.closed;
            }
            let wake = [retry_at, state.counts_due].into_iter().flatten().min();
            state = match wake {
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Writes until the log is closed.
    fn run(&self, files: &mut [Rotating], must_wait: impl Fn() -> bool) {
        let mut retry = false;
        loop {
            let closed = self.wait(retry);
            // on a full disk only commands' first lines are written, because a command is refused without; at
            // the end all are
            let all = closed || !must_wait();
            retry = !self.write(files, all);
            if closed {
                return;
            }
        }
    }

    /// Writes the waiting lines, one write for each file, or only the logs with awaited lines; returns true
    /// if nothing is left.
    fn write(&self, files: &mut [Rotating], is_for_all: bool) -> bool {
        let mut all = true;
        for (at, file) in files.iter_mut().enumerate() {
            let (text, awaited) = {
                let log = &mut self.state().logs[at];
                if !is_for_all && log.awaited.is_empty() {
                    all &= log.waiting.is_empty();
                    continue;
                }
                (std::mem::take(&mut log.waiting), std::mem::take(&mut log.awaited))
            };
            if text.is_empty() && awaited.is_empty() {
                continue;
            }
            let written = text.is_empty() || file.write_lines(&text);
            // folded lines are awaited, too: the lines that they repeat may have been written just now
            if written && !awaited.is_empty() && file.sync() {
                for waits in awaited {
                    // the receiver may have given up
                    let _ = waits.send(());
                }
            }
            let log = &mut self.state().logs[at];
            if written {
                log.count_lost();
            } else {
                log.waiting.insert_str(0, &text);
                all = false;
            }
        }
        all
    }
}

impl Audit {
    /// Opens the logs of a data directory. `must_wait` returns true while lines must not take room on the
    /// disk.
    ///
    /// # Errors
    /// The system could not start a thread.
    pub fn open(data_dir: &Path, must_wait: impl Fn() -> bool + Send + 'static) -> io::Result<Audit> {
        Audit::with(data_dir, |budget| budget.file_bytes, must_wait)
    }

    fn with(
        data_dir: &Path,
        file_bytes: impl Fn(&Budget) -> u64,
        must_wait: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<Audit> {
        let open = |budget: &Budget| Rotating::open(data_dir.join(budget.file), file_bytes(budget));
        let mut files: Vec<Rotating> = CLASSES.iter().map(open).collect();
        let shared = Arc::new(Shared::default());
        let running = Arc::clone(&shared);
        let run = move || running.run(&mut files, must_wait);
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(run)?;
        let path = data_dir.join(Class::Administration.budget().file);
        Ok(Audit { shared, thread: Mutex::new(Some(thread)), path })
    }

    /// Queues a line; never waits for the disk.
    pub(crate) fn record(&self, class: Class, entry: &Entry<'_>) {
        let line = entry.line();
        // an omitted line is counted by `record` itself
        let _ = self.shared.change(|state| state.record(class, entry, &line, Instant::now()));
    }

    /// Queues a line and returns a receiver that is notified when the line is on the disk; it ends without a
    /// value if the line cannot be written now. A repeated line is counted like any other; the lines that it
    /// repeats are on the disk by then.
    ///
    /// # Errors
    /// The line found no room.
    pub(crate) fn record_durably(
        &self,
        class: Class,
        entry: &Entry<'_>,
    ) -> Result<oneshot::Receiver<()>, NoRoom> {
        let line = entry.line();
        let (written, is_written) = oneshot::channel();
        self.shared.change(|state| {
            state.record(class, entry, &line, Instant::now())?;
            state.logs[class as usize].awaited.push(written);
            Ok(is_written)
        })
    }

    /// Queues a line about an act of the hub.
    pub(crate) fn record_own(&self, verb: &str, object: ObjectRef<'_>, notes: &[(Note, String)]) {
        let hub = Identity::new(HUB_USER, &[]);
        let entry = Entry { object, notes, ..Entry::own(&hub, verb, OffsetDateTime::now_utc()) };
        self.record(Class::Administration, &entry);
    }

    /// Counts a request without a valid credential, or over a limit.
    pub(crate) fn count(&self, from: IpAddr, user: &str, code: u16) {
        let source = Source::new(from, user, code);
        // the thread is woken for the first one only
        let mut state = self.shared.state();
        let first = state.counts_due.is_none();
        state.count(source, Instant::now());
        drop(state);
        if first {
            self.shared.changed.notify_one();
        }
    }

    /// True if the log has a line about a certificate for a node of this name, or if it cannot be read.
    /// Blocks.
    pub(crate) fn has_issued(&self, node: &str) -> bool {
        rotating::files(&self.path).any(|log| certificate::is_for(node, &log).unwrap_or(true))
    }

    /// Writes the waiting lines and ends the thread. Blocks.
    pub fn close(&self) {
        self.shared.change(|state| state.closed = true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the audit log's thread had failed");
        }
        let lost: u64 = self.shared.state().logs.iter().map(|log| log.lost).sum();
        if lost > 0 {
            log::warn!("{lost} lines of the audit log were lost while the disk took none");
        }
    }
}

/// The last act on the access of each node in the log of a data directory: a revocation, or `None` if the
/// node was readmitted. A line with the verb `forgets` makes earlier ones count no more. Blocks.
pub(crate) fn last_acts(data_dir: &Path, forgets: &str) -> io::Result<BTreeMap<String, Option<Revoked>>> {
    let path = data_dir.join(Class::Administration.budget().file);
    let mut logs: Vec<_> = rotating::files(&path).collect();
    logs.reverse();
    certificate::acts(logs.into_iter(), forgets)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use kedge_rig::Scratch;
    use serde_json::Value;

    use super::*;

    /// The lines of a class that are still in its files, oldest first.
    fn left(folder: &Path, class: Class) -> Vec<Value> {
        let file = class.budget().file;
        let numbered =
            (1..rotating::FILES).rev().map(|number| format!("{file}.{number}")).chain([file.to_owned()]);
        let text: String =
            numbered.filter_map(|name| std::fs::read_to_string(folder.join(name)).ok()).collect();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn note(line: &Value, note: Note) -> u64 {
        line["annotations"][note.key()].as_str().map_or(0, |text| text.parse().unwrap())
    }

    fn admin() -> Identity {
        Identity::new("admin", &["system:masters"])
    }

    /// Acts on another object each time.
    fn act(audit: &Audit, user: &Identity, verb: &str, reads: bool, code: u16) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        act_on(audit, user, verb, reads, code, &name);
    }

    fn act_on(audit: &Audit, user: &Identity, verb: &str, reads: bool, code: u16, name: &str) {
        let object = ObjectRef { resource: "nodes", name, ..ObjectRef::default() };
        let entry = Entry { code, object, ..Entry::own(user, verb, OffsetDateTime::UNIX_EPOCH) };
        audit.record(Class::of(user, reads, code), &entry);
    }

    /// All lines that callers other than administrators can cause: 300 identities, each far beyond its quota.
    fn noise(audit: &Audit) {
        for number in 0..300 {
            let node = Identity::new(&format!("system:node:{number}"), &["system:nodes"]);
            for _ in 0..20 {
                act(audit, &node, "patch", false, 200);
                act(audit, &node, "get", true, 200);
                act(audit, &node, "delete", false, 403);
            }
            audit.count(IpAddr::from([10, 0, (number % 2) as u8, (number / 2) as u8]), "", 401);
        }
    }

    #[test]
    fn noise_does_not_push_out_administrators_lines() {
        let folder = Scratch::new("hub-audit-noise").unwrap();
        // files so small that the noise goes through all of them many times
        let audit = Audit::with(folder.path(), |_| 4096, || false).unwrap();
        act(&audit, &admin(), "delete", false, 200);
        act(&audit, &admin(), "get", true, 200);
        audit.record_own("sign", ObjectRef::default(), &[]);
        noise(&audit);
        audit.close();
        let kept: Vec<Value> = left(folder.path(), Class::Administration);
        let verbs: Vec<&str> = kept.iter().map(|line| line["verb"].as_str().unwrap()).collect();
        assert_eq!(verbs, ["delete", "sign"]);
        assert_eq!(left(folder.path(), Class::Reads).len(), 1);
    }

    #[test]
    fn noise_pushes_out_lines_of_its_own_log() {
        let folder = Scratch::new("hub-audit-control").unwrap();
        let audit = Audit::with(folder.path(), |_| 4096, || false).unwrap();
        let victim = Identity::new("system:victim", &[]);
        act(&audit, &victim, "delete", false, 200);
        for round in 0..50 {
            let node = Identity::new(&format!("system:node:{round}"), &[]);
            (0..20).for_each(|_| act(&audit, &node, "patch", false, 200));
            // as the thread would in time
            while audit.shared.state().is_waiting() {
                std::thread::yield_now();
            }
        }
        audit.close();
        let lines = left(folder.path(), Class::Others);
        assert!(!lines.is_empty() && lines.iter().all(|line| line["user"]["username"] != "system:victim"));
    }

    #[test]
    fn one_identity_does_not_push_out_another() {
        let folder = Scratch::new("hub-audit-identity").unwrap();
        let audit = Audit::with(folder.path(), |_| 16 * 1024, || false).unwrap();
        let (victim, noisy) = (Identity::new("system:victim", &[]), Identity::new("system:noisy", &[]));
        act(&audit, &victim, "delete", false, 200);
        act(&audit, &victim, "delete", false, 403);
        for _ in 0..1000 {
            act(&audit, &noisy, "patch", false, 200);
            act(&audit, &noisy, "patch", false, 403);
        }
        audit.close();
        for class in [Class::Others, Class::Refused] {
            let lines = left(folder.path(), class);
            let of = |user| lines.iter().filter(|line| line["user"]["username"] == user).count() as u64;
            assert_eq!(of("system:victim"), 1, "{class:?}");
            let omitted: u64 = lines.iter().map(|line| note(line, Note::Omitted)).sum();
            assert!(of("system:noisy") >= 10, "{}", of("system:noisy"));
            assert_eq!(of("system:noisy") + omitted, 1000, "every line is there or counted");
            let whose = lines.iter().find_map(|line| line["annotations"][Note::OmittedOf.key()].as_str());
            let code = if class == Class::Others { 200 } else { 403 };
            assert_eq!(
                whose,
                Some(&*format!("{omitted} of \"system:noisy\" ({omitted} patch nodes {code})"))
            );
        }
    }

    #[test]
    fn program_that_repeats_itself_pushes_out_nobody() {
        let folder = Scratch::new("hub-audit-repeats").unwrap();
        let audit = Audit::with(folder.path(), |_| 4096, || false).unwrap();
        act(&audit, &admin(), "delete", false, 200);
        for _ in 0..10_000 {
            act_on(&audit, &admin(), "patch", false, 200, "same");
            act_on(&audit, &admin(), "patch", false, 409, "same");
            act_on(&audit, &admin(), "get", true, 404, "same");
        }
        audit.close();
        for (class, verb, code, distinct) in [
            (Class::Administration, "patch", 200, 1 + 2 * 4),
            (Class::Administration, "patch", 409, 1 + 2 * 4),
            (Class::Reads, "get", 404, 4),
        ] {
            let lines = left(folder.path(), class);
            let of =
                || lines.iter().filter(|line| line["verb"] == verb && line["responseStatus"]["code"] == code);
            let repeats: u64 = of().map(|line| note(line, Note::Repeats)).sum();
            let single = of().filter(|line| note(line, Note::Repeats) == 0).count() as u64;
            assert_eq!((lines.len(), single + repeats), (distinct, 10_000), "{class:?} {code}");
        }
    }

    #[test]
    fn one_administrator_does_not_push_out_another() {
        let mut state = State::default();
        let (user, now) = (admin(), Instant::now());
        let line = format!("{{\"requestURI\": \"{}\"}}\n", "x".repeat(600));
        let mut written = [0, 0];
        for number in 0..40_000 {
            let from = Some(IpAddr::from([192, 0, 2, u8::from(number % 400 == 0)]));
            let object =
                ObjectRef { resource: "configmaps", namespace: &number.to_string(), ..ObjectRef::default() };
            let entry = Entry { object, from, ..Entry::own(&user, "create", OffsetDateTime::UNIX_EPOCH) };
            let _ = state.record(Class::Administration, &entry, &line, now);
            let log = &mut state.logs[0];
            written[usize::from(number % 400 == 0)] += std::mem::take(&mut log.waiting).lines().count();
        }
        assert_eq!(written[1], 100, "of a person");
        let budget = Class::Administration.budget();
        assert!(written[0] > 10_000 && written[0] < 30_000, "{written:?}");
        state.write_counts(now);
        let line: Value = serde_json::from_str(state.logs[0].waiting.trim_end()).unwrap();
        assert_eq!(note(&line, Note::Omitted), 40_000 - 100 - written[0] as u64);
        let whose = line["annotations"][Note::OmittedOf.key()].as_str().unwrap();
        assert!(
            whose.contains("admin from 192.0.2.0 with ") && whose.contains("create configmaps 200)"),
            "{whose}"
        );
        assert!(budget.quota.burst as u64 <= 2 * budget.file_bytes);
    }

    #[test]
    fn refused_requests_are_counted_by_source() {
        let folder = Scratch::new("hub-audit-counts").unwrap();
        let audit = Audit::open(folder.path(), || false).unwrap();
        for number in 0..1000_u16 {
            audit.count(IpAddr::from([192, 0, 2, (number % 3) as u8]), "", 401);
        }
        audit.count(IpAddr::from([192, 0, 2, 1]), "system:node:a", 429);
        audit.close();
        let shown: Vec<String> = left(folder.path(), Class::Refused)
            .iter()
            .map(|line| {
                let word = |value: &Value| value.as_str().unwrap().to_owned();
                let (user, from) = (word(&line["user"]["username"]), word(&line["sourceIPs"][0]));
                format!("{user} {from} {} {}", line["responseStatus"]["code"], note(line, Note::Count))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "system:node:a 192.0.2.1 429 1",
                "system:anonymous 192.0.2.0 401 334",
                "system:anonymous 192.0.2.1 401 333",
                "system:anonymous 192.0.2.2 401 333",
            ]
        );
    }

    #[test]
    fn counts_are_due_a_minute_after_the_first() {
        let start = Instant::now();
        let mut state = State::default();
        let here = || Source::new(IpAddr::from([192, 0, 2, 1]), "", 401);
        state.count(here(), start);
        state.count(here(), start + COUNT_PERIOD / 2);
        assert_eq!(state.counts_due, Some(start + COUNT_PERIOD));
        state.write_counts(start + COUNT_PERIOD);
        assert_eq!(
            (state.counts_due, state.logs[Class::Refused as usize].waiting.lines().count()),
            (None, 1)
        );
    }

    #[test]
    fn lines_wait_while_the_disk_is_full() {
        let folder = Scratch::new("hub-audit-held").unwrap();
        let full = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&full);
        let audit = Audit::open(folder.path(), move || seen.load(Ordering::Relaxed)).unwrap();
        let file = folder.join(Class::Administration.budget().file);
        let size = || std::fs::metadata(&file).unwrap().len();
        for _ in 0..4_000 {
            act(&audit, &admin(), "delete", false, 200);
        }
        assert_eq!(size(), 0, "a full disk was written to");
        let lost = audit.shared.state().logs[0].lost;
        let waiting = audit.shared.state().logs[0].waiting.len();
        assert!(lost > 0 && waiting <= Class::Administration.budget().waiting_bytes);
        // at the end waiting lines are written even if the disk seems full
        audit.close();
        assert_eq!(size(), waiting as u64);
        assert_eq!(left(folder.path(), Class::Administration).len() as u64 + lost, 4_000);
    }

    #[test]
    fn full_queue_of_others_leaves_room_for_administrators() {
        let folder = Scratch::new("hub-audit-queue").unwrap();
        let audit = Audit::open(folder.path(), || true).unwrap();
        noise(&audit);
        act(&audit, &admin(), "delete", false, 200);
        let state = audit.shared.state();
        assert!(state.logs[Class::Others as usize].lost > 0, "the queue is full");
        assert_eq!(state.logs[Class::Administration as usize].waiting.lines().count(), 1);
    }

    #[test]
    fn lost_lines_are_counted_in_the_log() {
        let folder = Scratch::new("hub-audit-lost").unwrap();
        let shared = Shared::default();
        let open = |budget: &Budget| Rotating::open(folder.join(budget.file), budget.file_bytes);
        let mut files: Vec<Rotating> = CLASSES.iter().map(open).collect();
        let line = format!("{}\n", "x".repeat(1023));
        for _ in 0..1030 {
            shared.change(|state| state.push(Class::Administration, &line));
        }
        assert!(shared.write(&mut files, true), "the lines");
        assert!(shared.write(&mut files, true), "their number");
        let text = std::fs::read_to_string(folder.join(Class::Administration.budget().file)).unwrap();
        assert_eq!(text.lines().count(), 1024 + 1);
        assert_eq!(note(&serde_json::from_str(text.lines().last().unwrap()).unwrap(), Note::Lost), 6);
    }

    #[test]
    fn lines_that_cannot_be_written_wait_in_order() {
        let folder = Scratch::new("hub-audit-order").unwrap();
        let shared = Shared::default();
        let open = |budget: &Budget| Rotating::open(folder.join(budget.file), 0);
        let mut files: Vec<Rotating> = CLASSES.iter().map(open).collect();
        // a directory is in the way of the rotation
        std::fs::write(folder.join("audit.log.3"), "").unwrap();
        std::fs::create_dir(folder.join("audit.log.4")).unwrap();
        let record = |line| shared.change(|state| state.push(Class::Administration, line));
        record("one\n");
        assert!(!shared.write(&mut files, true));
        record("two\n");
        assert_eq!(shared.state().logs[0].waiting, "one\ntwo\n");
        std::fs::remove_dir(folder.join("audit.log.4")).unwrap();
        assert!(shared.write(&mut files, true));
        assert_eq!(std::fs::read_to_string(folder.join("audit.log")).unwrap(), "one\ntwo\n");
    }
}
