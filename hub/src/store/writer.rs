//! The one thread that writes: it orders changes, gives them revisions, makes them durable in groups, and publishes them.
//!
//! Two classes. A *durable* change is acknowledged and becomes visible after the commit that holds it was flushed. A
//! *volatile* one (a Lease renewal) is visible and acknowledged at once and is written with all others of the same [`FLUSH`], not with
//! whatever is committed meanwhile: a fleet always commits something, and each renewal would cost the flash a page. A crash may lose
//! the renewals of that time, never more.
//! Always holds: revisions rise, also over crashes, because ranges are reserved durably before they are used and an
//! unclean start begins above the reserved mark; nothing visible or acknowledged as durable is ever taken back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Change, Store, StoreError};
use crate::memory::{Memory, key};
use kedge_hub_core::kinds::{KINDS, Kind};
use kedge_hub_core::object::{Event, Object};

/// Revisions reserved at a time: at 500 writes a second a new reservation is due every three minutes.
pub const RESERVE: u64 = 100_000;
/// The highest revision to start from: SQLite and clients count in signed 64 bits, and a thousand changes a second for a million years
/// do not come near it. A store that names a higher one was not written by us.
const MAX_REVISION: u64 = 1 << 62;
/// A new range is reserved when fewer than this are left; more than any batch uses.
const RESERVE_LOW: u64 = 10_000;
/// Changes in one commit.
const BATCH: usize = 2048;
/// Changes that wait for the writer; more are refused with 429, so memory stays bounded when the disk stalls.
const QUEUE: usize = 4096;
/// Largest stored object; the limit that upstream's etcd sets.
pub const MAX_OBJECT_BYTES: usize = 1536 * 1024;
/// The longest time a renewal stays in memory only.
pub const FLUSH: Duration = Duration::from_secs(30);
/// Wait after a failed flush of renewals, so that a full disk is not hammered.
const FLUSH_RETRY: Duration = Duration::from_secs(5);

/// What the change expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No object of that name.
    Absent,
    /// The object at this revision.
    Revision(u64),
}

/// How a change ended.
pub type Outcome = Result<Arc<Object>, WriteError>;

/// Why a change was not made.
#[derive(Debug, Clone)]
pub enum WriteError {
    /// The object is not (or no longer) what was expected: read again and decide anew.
    Mismatch,
    /// The object is larger than [`MAX_OBJECT_BYTES`].
    TooLarge,
    /// The store could not make it durable; nothing changed.
    Failed(String),
    /// Too many changes wait.
    Busy,
    /// The disk took too long; the change may still be made.
    TimedOut,
    /// The writer has ended.
    Closed,
}

/// One change to be made.
pub struct Write {
    /// Position of the kind in the table.
    pub kind: usize,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What must be there.
    pub expect: Expect,
    /// The object to store, its resourceVersion is set here; `None` deletes.
    pub new: Option<Value>,
    /// May be acknowledged before it is durable.
    pub volatile: bool,
    /// Called exactly once, from the writer's thread.
    pub answer: Box<dyn FnOnce(Outcome) + Send>,
}

enum Command {
    Write(Write),
    Close,
}

/// Counters for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commits made.
    pub commits: AtomicU64,
    /// Changes made durable.
    pub changes: AtomicU64,
    /// Changes acknowledged from memory.
    pub volatile: AtomicU64,
    /// Commits that failed.
    pub failures: AtomicU64,
    /// Microseconds spent in commits.
    pub commit_micros: AtomicU64,
}

/// The sending side, shared by all requests.
#[derive(Debug)]
pub struct Writer {
    queue: SyncSender<Command>,
    /// Counters.
    pub counters: Arc<Counters>,
    alive: Arc<AtomicBool>,
    ended: Arc<tokio::sync::Notify>,
    thread: std::sync::Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Writer {
    /// Loads everything from the store into a new memory, reserves revisions, and starts the thread.
    pub fn start(mut store: Box<dyn Store>) -> Result<(Writer, Arc<Memory>), StoreError> {
        let mut loaded = Vec::new();
        let marks = store.load(&mut |record| loaded.push(record))?;
        // no object may be newer than the marks say; if one is, versions still must not go back
        let newest = loaded.iter().map(|record| record.revision).max().unwrap_or(0);
        // 0 means "any version" to clients, so revisions start above it
        let start = marks.clean.unwrap_or(marks.reserved).max(newest).max(1);
        if start > MAX_REVISION {
            let message = format!("the store's latest revision is {start}, expected at most {MAX_REVISION}");
            return Err(StoreError { message });
        }
        let memory = Memory::new(start);
        for record in loaded {
            let Some(kind) = KINDS.iter().position(|kind| kind.resource_name() == record.resource) else {
                log::warn!(
                    "store holds {} {}/{}, a kind that is not served: kept, not shown",
                    record.resource,
                    record.namespace,
                    record.name
                );
                continue;
            };
            match Object::from_json(KINDS[kind], record.json, record.revision) {
                Some(object) => memory.restore(kind, object),
                None => {
                    let what = format!("{} {}/{}", record.resource, record.namespace, record.name);
                    return Err(StoreError {
                        message: format!("stored object {what} is no JSON object with a name"),
                    });
                }
            }
        }
        let reserved = start + RESERVE;
        store.commit(&[], Some(reserved))?;
        let memory = Arc::new(memory);
        Ok((Writer::spawn(store, memory.clone(), start, reserved), memory))
    }

    fn spawn(store: Box<dyn Store>, memory: Arc<Memory>, revision: u64, reserved: u64) -> Writer {
        let (queue, commands) = sync_channel(QUEUE);
        let counters = Arc::new(Counters::default());
        let alive = Arc::new(AtomicBool::new(true));
        let ended = Arc::new(tokio::sync::Notify::new());
        let guard = EndGuard { alive: alive.clone(), ended: ended.clone() };
        let mut state = State {
            store,
            memory,
            counters: counters.clone(),
            revision,
            reserved,
            unsaved: HashSet::new(),
            names: KINDS.iter().map(|kind| kind.resource_name()).collect(),
            flush_at: None,
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                let _guard = guard;
                state.run(&commands);
            })
            .expect("a process that just started can start one thread");
        Writer { queue, counters, alive, ended, thread: std::sync::Mutex::new(Some(thread)) }
    }

    /// Hands a change to the thread. Its `answer` is called in every case.
    pub fn submit(&self, write: Write) {
        let (write, error) = match self.queue.try_send(Command::Write(write)) {
            Ok(()) => return,
            Err(TrySendError::Full(command)) => (command, WriteError::Busy),
            Err(TrySendError::Disconnected(command)) => (command, WriteError::Closed),
        };
        if let Command::Write(write) = write {
            (write.answer)(Err(error));
        }
    }

    /// Whether the thread still runs.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Resolves when the thread has ended.
    pub async fn ended(&self) {
        let notified = self.ended.notified();
        if self.is_alive() {
            notified.await;
        }
    }

    /// Writes what is left, marks the store clean and ends the thread. Blocks.
    pub fn close(&self) {
        // a full queue drains; a gone thread is closed already
        let _ = self.queue.send(Command::Close);
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the store's thread had failed before it could close");
        }
    }
}

struct EndGuard {
    alive: Arc<AtomicBool>,
    ended: Arc<tokio::sync::Notify>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Release);
        self.ended.notify_waiters();
    }
}

struct State {
    store: Box<dyn Store>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    revision: u64,
    reserved: u64,
    /// Objects whose latest renewal is only in memory.
    unsaved: HashSet<(usize, String)>,
    names: Vec<String>,
    flush_at: Option<Instant>,
}

/// A durable change that waits for its commit.
struct Staged {
    kind: usize,
    event: Arc<Event>,
    answer: Box<dyn FnOnce(Outcome) + Send>,
}

impl State {
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let mut closing = false;
            let mut batch = Vec::new();
            match self.wait(commands) {
                Ok(command) => closing |= take(command, &mut batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => closing = true,
            }
            while batch.len() < BATCH && !closing {
                match commands.try_recv() {
                    Ok(command) => closing |= take(command, &mut batch),
                    Err(_) => break,
                }
            }
            self.process(batch);
            if closing {
                return self.close(commands);
            }
        }
    }

    fn wait(&self, commands: &Receiver<Command>) -> Result<Command, RecvTimeoutError> {
        match self.flush_at {
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => commands.recv_timeout(at.saturating_duration_since(Instant::now())),
        }
    }

    fn close(&mut self, commands: &Receiver<Command>) {
        let rest = std::iter::from_fn(|| commands.try_recv().ok());
        for command in rest.collect::<Vec<_>>() {
            if let Command::Write(write) = command {
                (write.answer)(Err(WriteError::Closed));
            }
        }
        if !self.unsaved.is_empty() {
            // a failure is logged there; what is lost are renewals
            let _ = self.commit(&[], true);
        }
        match self.store.close(self.revision) {
            Ok(()) => log::info!("store closed at revision {}", self.revision),
            Err(error) => log::error!("{error}; the next start counts revisions from the reserved mark"),
        }
    }

    fn process(&mut self, batch: Vec<Write>) {
        let (volatile, durable): (Vec<_>, Vec<_>) = batch.into_iter().partition(|write| write.volatile);
        self.apply_volatile(volatile);
        let mut overlay = HashMap::new();
        let staged: Vec<Staged> =
            durable.into_iter().filter_map(|write| self.stage(write, &mut overlay)).collect();
        let due = self.flush_at.is_some_and(|at| at <= Instant::now());
        if staged.is_empty() && !due && self.reserved - self.revision > RESERVE_LOW {
            return;
        }
        match self.commit(&staged, due) {
            Ok(()) => self.finish(staged),
            Err(error) => {
                for staged in staged {
                    (staged.answer)(Err(WriteError::Failed(error.clone())));
                }
            }
        }
    }

    fn apply_volatile(&mut self, writes: Vec<Write>) {
        for write in writes {
            let mut none = HashMap::new();
            let (kind, place) = (write.kind, key(&write.namespace, &write.name));
            let Some(staged) = self.stage(write, &mut none) else { continue };
            self.memory.publish(vec![(kind, staged.event.clone())]);
            self.unsaved.insert((kind, place));
            self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
            self.counters.volatile.fetch_add(1, Ordering::Relaxed);
            (staged.answer)(Ok(staged.event.object().clone()));
        }
    }

    /// Checks the expectation against what this batch already changed, or memory, and gives the change its revision.
    fn stage(
        &mut self,
        write: Write,
        overlay: &mut HashMap<(usize, String), Option<Arc<Object>>>,
    ) -> Option<Staged> {
        let place = (write.kind, key(&write.namespace, &write.name));
        let current = match overlay.get(&place) {
            Some(staged) => staged.clone(),
            None => self.memory.get(write.kind, &write.namespace, &write.name),
        };
        let found = current.as_ref().map_or(Expect::Absent, |object| Expect::Revision(object.revision));
        if found != write.expect || (write.new.is_none() && current.is_none()) {
            (write.answer)(Err(WriteError::Mismatch));
            return None;
        }
        if self.revision >= self.reserved {
            let why = "no revision can be reserved on the disk".to_owned();
            (write.answer)(Err(WriteError::Failed(why)));
            return None;
        }
        let Some(event) = event(KINDS[write.kind], self.revision + 1, write.new, current) else {
            (write.answer)(Err(WriteError::Failed("the object has no name".to_owned())));
            return None;
        };
        if event.new.as_ref().is_some_and(|new| new.json.len() > MAX_OBJECT_BYTES) {
            (write.answer)(Err(WriteError::TooLarge));
            return None;
        }
        self.revision += 1;
        overlay.insert(place, event.new.clone());
        Some(Staged { kind: write.kind, event: Arc::new(event), answer: write.answer })
    }

    /// One durable commit: the staged changes, all renewals that are only in memory if they are `due`, and a new reservation when
    /// that is.
    fn commit(&mut self, staged: &[Staged], due: bool) -> Result<(), String> {
        let started = Instant::now();
        let reserved = (self.reserved - self.revision <= RESERVE_LOW).then(|| self.revision + RESERVE);
        let renewed: Vec<(usize, Arc<Object>)> = self
            .unsaved
            .iter()
            .filter(|_| due)
            .filter_map(|(kind, place)| {
                let (namespace, name) = place.split_once('/')?;
                Some((*kind, self.memory.get(*kind, namespace, name)?))
            })
            .collect();
        let mut changes: Vec<Change<'_>> = Vec::with_capacity(renewed.len() + staged.len());
        // renewals first: a staged change of the same object is later
        changes.extend(renewed.iter().map(|(kind, object)| put(&self.names[*kind], object)));
        changes.extend(staged.iter().map(|staged| match &staged.event.new {
            Some(object) => put(&self.names[staged.kind], object),
            None => {
                let object = staged.event.object();
                Change::Delete {
                    resource: &self.names[staged.kind],
                    namespace: &object.namespace,
                    name: &object.name,
                }
            }
        }));
        let outcome = self.store.commit(&changes, reserved);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.commit_micros.fetch_add(micros, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
                self.reserved = reserved.unwrap_or(self.reserved);
                if due {
                    self.unsaved.clear();
                    self.flush_at = None;
                }
                Ok(())
            }
            Err(error) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                log::error!(
                    "{error}; {} changes refused, {} renewals wait",
                    staged.len(),
                    self.unsaved.len()
                );
                if due {
                    self.flush_at = Some(Instant::now() + FLUSH_RETRY);
                }
                Err(error.message)
            }
        }
    }

    fn finish(&mut self, staged: Vec<Staged>) {
        self.memory.publish(staged.iter().map(|staged| (staged.kind, staged.event.clone())).collect());
        for staged in staged {
            (staged.answer)(Ok(staged.event.object().clone()));
        }
    }
}

fn take(command: Command, batch: &mut Vec<Write>) -> bool {
    match command {
        Command::Write(write) => {
            batch.push(write);
            false
        }
        Command::Close => true,
    }
}

fn put<'a>(resource: &'a str, object: &'a Object) -> Change<'a> {
    Change::Put {
        resource,
        namespace: &object.namespace,
        name: &object.name,
        revision: object.revision,
        json: &object.json,
    }
}

fn event(kind: &Kind, revision: u64, new: Option<Value>, old: Option<Arc<Object>>) -> Option<Event> {
    let stamped = |mut value: Value| {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        Object::new(kind, &value, revision).map(Arc::new)
    };
    match new {
        Some(value) => Some(Event { revision, old, new: Some(stamped(value)?), last: None }),
        None => {
            let last = stamped(old.as_ref()?.value())?;
            Some(Event { revision, old, new: None, last: Some(last) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::index_of;
    use crate::store::{Marks, Record};
    use kedge_hub_core::kinds::{LEASE, NODE};
    use serde_json::json;
    use std::sync::{Mutex, mpsc};

    /// A store in memory that can be told to fail; shared, so that it can be opened again.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Disk>>);

    #[derive(Default)]
    struct Disk {
        objects: HashMap<(String, String, String), (u64, Vec<u8>)>,
        marks: Marks,
        commits: usize,
        full: bool,
    }

    impl Store for Fake {
        fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Marks, StoreError> {
            let disk = self.0.lock().unwrap();
            for ((resource, namespace, name), (revision, json)) in &disk.objects {
                each(Record {
                    resource: resource.clone(),
                    namespace: namespace.clone(),
                    name: name.clone(),
                    revision: *revision,
                    json: json.clone(),
                });
            }
            Ok(disk.marks)
        }

        fn commit(&mut self, changes: &[Change<'_>], reserved: Option<u64>) -> Result<(), StoreError> {
            let mut disk = self.0.lock().unwrap();
            if disk.full {
                return Err(StoreError { message: "disk full".to_owned() });
            }
            disk.commits += 1;
            for change in changes {
                match *change {
                    Change::Put { resource, namespace, name, revision, json } => {
                        let place = (resource.to_owned(), namespace.to_owned(), name.to_owned());
                        disk.objects.insert(place, (revision, json.to_vec()));
                    }
                    Change::Delete { resource, namespace, name } => {
                        disk.objects.remove(&(resource.to_owned(), namespace.to_owned(), name.to_owned()));
                    }
                }
            }
            if let Some(reserved) = reserved {
                disk.marks = Marks { reserved, clean: None };
            }
            Ok(())
        }

        fn close(&mut self, revision: u64) -> Result<(), StoreError> {
            self.0.lock().unwrap().marks.clean = Some(revision);
            Ok(())
        }
    }

    fn write(
        writer: &Writer,
        kind: &Kind,
        name: &str,
        expect: Expect,
        new: Option<Value>,
        volatile: bool,
    ) -> Outcome {
        let (answer, answered) = mpsc::channel();
        let answer = Box::new(move |outcome| answer.send(outcome).unwrap());
        let (kind, namespace, name) = (index_of(kind), String::new(), name.to_owned());
        writer.submit(Write { kind, namespace, name, expect, new, volatile, answer });
        answered.recv().unwrap()
    }

    fn object(name: &str) -> Option<Value> {
        Some(json!({"metadata": {"name": name}}))
    }

    #[test]
    fn acknowledged_changes_are_on_the_disk_and_revisions_rise_over_a_crash() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let first = write(&writer, &NODE, "a", Expect::Absent, object("a"), false).unwrap();
        assert_eq!(disk.0.lock().unwrap().objects.len(), 1);
        assert_eq!(first.value()["metadata"]["resourceVersion"], first.revision.to_string());
        // a crash: the thread goes without closing, its disk stays
        let (objects, marks) = {
            let disk = disk.0.lock().unwrap();
            (disk.objects.clone(), disk.marks)
        };
        let crashed = Fake(Arc::new(Mutex::new(Disk { objects, marks, ..Disk::default() })));
        let (again, memory) = Writer::start(Box::new(crashed)).unwrap();
        assert!(memory.revision() >= first.revision + RESERVE - 1);
        let second = write(&again, &NODE, "a", Expect::Revision(first.revision), object("a"), false).unwrap();
        assert!(second.revision > first.revision);
    }

    #[test]
    fn a_clean_close_keeps_counting_where_it_stopped() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let last = write(&writer, &NODE, "a", Expect::Absent, object("a"), false).unwrap();
        writer.close();
        let (_, memory) = Writer::start(Box::new(disk)).unwrap();
        assert_eq!(memory.revision(), last.revision);
    }

    #[test]
    fn a_wrong_expectation_changes_nothing() {
        let (writer, memory) = Writer::start(Box::new(Fake::default())).unwrap();
        let check = |expect, new| {
            let outcome = write(&writer, &NODE, "a", expect, new, false);
            assert!(matches!(outcome, Err(WriteError::Mismatch)), "{outcome:?}");
        };
        check(Expect::Revision(1), object("a"));
        check(Expect::Absent, None);
        let now = write(&writer, &NODE, "a", Expect::Absent, object("a"), false).unwrap();
        check(Expect::Absent, object("a"));
        check(Expect::Revision(now.revision + 1), None);
        assert_eq!(memory.revision(), now.revision);
        let gone = write(&writer, &NODE, "a", Expect::Revision(now.revision), None, false).unwrap();
        assert!(gone.revision > now.revision);
        assert_eq!(memory.count(index_of(&NODE)), 0);
    }

    #[test]
    fn renewals_are_acknowledged_from_memory_and_cost_no_commit_of_others() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let made = write(&writer, &LEASE, "l", Expect::Absent, object("l"), false).unwrap();
        let mut lease = made.clone();
        let commits = disk.0.lock().unwrap().commits;
        for _ in 0..5 {
            lease = write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l"), true).unwrap();
        }
        assert_eq!(disk.0.lock().unwrap().commits, commits);
        assert_eq!(memory.revision(), lease.revision);
        write(&writer, &NODE, "n", Expect::Absent, object("n"), false).unwrap();
        let stored = || disk.0.lock().unwrap().objects.values().map(|(revision, _)| *revision).min();
        assert_eq!(stored(), Some(made.revision));
        writer.close();
        assert_eq!(stored(), Some(lease.revision));
    }

    #[test]
    fn a_renewed_object_that_is_changed_or_deleted_stays_so() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let lease = write(&writer, &LEASE, "l", Expect::Absent, object("l"), false).unwrap();
        let lease = write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l"), true).unwrap();
        let changed =
            write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l"), false).unwrap();
        write(&writer, &NODE, "n", Expect::Absent, object("n"), false).unwrap();
        let other = write(&writer, &LEASE, "m", Expect::Absent, object("m"), false).unwrap();
        let other = write(&writer, &LEASE, "m", Expect::Revision(other.revision), object("m"), true).unwrap();
        write(&writer, &LEASE, "m", Expect::Revision(other.revision), None, false).unwrap();
        writer.close();
        let disk = disk.0.lock().unwrap();
        let mut stored: Vec<_> =
            disk.objects.iter().map(|(place, (revision, _))| (&*place.2, *revision)).collect();
        stored.sort_unstable();
        assert_eq!(stored, [("l", changed.revision), ("n", changed.revision + 1)]);
    }

    #[test]
    fn a_full_disk_refuses_changes_and_renewals_go_on() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let lease = write(&writer, &LEASE, "l", Expect::Absent, object("l"), false).unwrap();
        disk.0.lock().unwrap().full = true;
        let refused = write(&writer, &NODE, "n", Expect::Absent, object("n"), false);
        assert!(matches!(refused, Err(WriteError::Failed(why)) if why == "disk full"));
        assert_eq!(memory.count(index_of(&NODE)), 0);
        write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l"), true).unwrap();
        disk.0.lock().unwrap().full = false;
        let node = write(&writer, &NODE, "n", Expect::Absent, object("n"), false).unwrap();
        assert!(node.revision > lease.revision);
    }

    #[test]
    fn a_new_range_is_reserved_before_the_old_one_is_used_up() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let mut lease = write(&writer, &LEASE, "l", Expect::Absent, object("l"), false).unwrap();
        for _ in 0..RESERVE {
            lease = write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l"), true).unwrap();
        }
        assert!(disk.0.lock().unwrap().marks.reserved > lease.revision);
        assert!(disk.0.lock().unwrap().commits >= 3);
    }
}
