//! The writer's thread: it takes changes in groups, lets `kedge_hub_core::state` order them, makes them durable, and publishes them.
//!
//! Always holds: a durable change is visible and acknowledged after the commit that holds it was flushed, a renewal at once; every
//! change that was submitted is answered. Left to others: which revision a change gets and what a commit holds (`state`), the file
//! (`sqlite`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use kedge_hub_core::kinds::KINDS;
use kedge_hub_core::object::Object;
use kedge_hub_core::state::{Batch, FLUSH, Order, Write, WriteError, restore};

use super::{Store, StoreError};
use crate::memory::Memory;

/// Changes in one commit.
const BATCH: usize = 2048;
/// Changes that wait for the writer; more are refused with 429, so memory stays bounded when the disk stalls.
const QUEUE: usize = 4096;
/// Wait after a failed flush of renewals, so that a full disk is not hammered.
const FLUSH_RETRY: Duration = Duration::from_secs(5);

/// The result of a change.
pub type Outcome = Result<Arc<Object>, WriteError>;

/// Called exactly once, from the writer's thread.
pub type Reply = Box<dyn FnOnce(Outcome) + Send>;

enum Command {
    Write(Write, Reply),
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
    pub counters: Arc<Counters>,
    alive: Arc<AtomicBool>,
    ended: Arc<tokio::sync::Notify>,
    thread: std::sync::Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Writer {
    /// Loads everything from the store into a new memory, reserves revisions, and starts the thread.
    pub fn start(mut store: Box<dyn Store>) -> Result<(Writer, Arc<Memory>), StoreError> {
        let mut records = Vec::new();
        let marks = store.load(&mut |record| records.push(record))?;
        let restored = restore(marks, records).map_err(|message| StoreError { message })?;
        for record in &restored.unserved {
            log::warn!("store holds {record}, a kind that is not served: kept, not shown");
        }
        store.commit(&[], Some(restored.reserve))?;
        let memory = Arc::new(Memory::new(restored.index));
        Ok((Writer::spawn(store, memory.clone(), restored.order), memory))
    }

    fn spawn(store: Box<dyn Store>, memory: Arc<Memory>, order: Order) -> Writer {
        let (queue, commands) = sync_channel(QUEUE);
        let counters = Arc::new(Counters::default());
        let alive = Arc::new(AtomicBool::new(true));
        let ended = Arc::new(tokio::sync::Notify::new());
        let guard = EndGuard { alive: alive.clone(), ended: ended.clone() };
        let names = KINDS.iter().map(|kind| kind.resource_name()).collect();
        let counted = counters.clone();
        let mut worker = Worker { store, memory, counters: counted, order, names, flush_at: None };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                let _guard = guard;
                worker.run(&commands);
            })
            .expect("a process that just started can start one thread");
        Writer { queue, counters, alive, ended, thread: std::sync::Mutex::new(Some(thread)) }
    }

    /// Hands a change to the thread. `reply` is called in every case.
    pub fn submit(&self, write: Write, reply: Reply) {
        let (command, error) = match self.queue.try_send(Command::Write(write, reply)) {
            Ok(()) => return,
            Err(TrySendError::Full(command)) => (command, WriteError::Busy),
            Err(TrySendError::Disconnected(command)) => (command, WriteError::Closed),
        };
        if let Command::Write(_, reply) = command {
            reply(Err(error));
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

    /// Writes all queued changes, marks the store clean and ends the thread. Blocks.
    pub fn close(&self) {
        // a full queue drains; a thread that ended is closed already
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

struct Worker {
    store: Box<dyn Store>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    order: Order,
    /// Resource names of [`KINDS`].
    names: Vec<String>,
    /// When the renewals that are only in memory are due.
    flush_at: Option<Instant>,
}

impl Worker {
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
            if let Command::Write(_, reply) = command {
                reply(Err(WriteError::Closed));
            }
        }
        if self.order.unsaved() > 0 {
            self.commit(Batch::default(), Vec::new(), true);
        }
        let revision = self.order.revision();
        match self.store.close(revision) {
            Ok(()) => log::info!("store closed at revision {revision}"),
            Err(error) => log::error!("{error}; the next start counts revisions from the reserved mark"),
        }
    }

    fn process(&mut self, writes: Vec<(Write, Reply)>) {
        let mut batch = Batch::default();
        let mut replies = Vec::new();
        // renewals first: they wait for nothing
        let (volatile, durable): (Vec<_>, Vec<_>) = writes.into_iter().partition(|(write, _)| write.volatile);
        for (write, reply) in volatile {
            reply(self.renew(write));
        }
        for (write, reply) in durable {
            // staged first: the index is not locked while an answer is given
            let staged = self.order.stage(&self.memory.read(), &mut batch, write);
            match staged {
                Ok(object) => replies.push((reply, object)),
                Err(error) => reply(Err(error)),
            }
        }
        let due = self.flush_at.is_some_and(|at| at <= Instant::now());
        self.commit(batch, replies, due);
    }

    fn renew(&mut self, write: Write) -> Outcome {
        let changed = self.order.renew(&self.memory.read(), write)?;
        let object = changed.event.object().clone();
        self.memory.publish(vec![changed]);
        self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
        self.counters.volatile.fetch_add(1, Ordering::Relaxed);
        Ok(object)
    }

    /// Makes a batch durable and publishes it, with all renewals that are only in memory if they are `due`; then answers.
    fn commit(&mut self, batch: Batch, replies: Vec<(Reply, Arc<Object>)>, due: bool) {
        let Some(commit) = self.order.commit(&self.memory.read(), batch, due) else { return };
        let changes = commit.changes(&self.names);
        let started = Instant::now();
        let outcome = self.store.commit(&changes, commit.reserve);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.commit_micros.fetch_add(micros, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
                if due {
                    self.flush_at = None;
                }
                self.memory.publish(self.order.committed(commit));
                for (reply, object) in replies {
                    reply(Ok(object));
                }
            }
            Err(error) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                let (refused, waiting) = (replies.len(), self.order.unsaved());
                log::error!("{error}; {refused} changes refused, {waiting} renewals wait");
                if due {
                    self.flush_at = Some(Instant::now() + FLUSH_RETRY);
                }
                for (reply, _) in replies {
                    reply(Err(WriteError::Failed(error.message.clone())));
                }
            }
        }
    }
}

fn take(command: Command, batch: &mut Vec<(Write, Reply)>) -> bool {
    match command {
        Command::Write(write, reply) => {
            batch.push((write, reply));
            false
        }
        Command::Close => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Change, Marks, Record};
    use kedge_hub_core::kinds::{Kind, LEASE, NODE};
    use kedge_hub_core::state::{Expect, RESERVE};
    use serde_json::{Value, json};
    use std::collections::HashMap;
    use std::sync::{Mutex, mpsc};

    /// A store in memory that can be made to fail; shared, so that it can be opened again.
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
        kind: &'static Kind,
        name: &str,
        expect: Expect,
        new: Option<Value>,
        volatile: bool,
    ) -> Outcome {
        let (answer, answered) = mpsc::channel();
        let (namespace, name) = (String::new(), name.to_owned());
        let write = Write { kind, namespace, name, expect, requires: Vec::new(), new, volatile };
        writer.submit(write, Box::new(move |outcome| answer.send(outcome).unwrap()));
        answered.recv().unwrap()
    }

    fn object(name: &str) -> Option<Value> {
        Some(json!({"metadata": {"name": name}}))
    }

    #[test]
    fn acknowledged_changes_and_revisions_survive_a_crash() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let first = write(&writer, &NODE, "a", Expect::Absent, object("a"), false).unwrap();
        assert_eq!(disk.0.lock().unwrap().objects.len(), 1);
        assert_eq!(first.value()["metadata"]["resourceVersion"], first.revision.to_string());
        // a crash: the thread ends without closing, its disk stays
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
    fn clean_close_continues_the_revisions() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let last = write(&writer, &NODE, "a", Expect::Absent, object("a"), false).unwrap();
        writer.close();
        let (_, memory) = Writer::start(Box::new(disk)).unwrap();
        assert_eq!(memory.revision(), last.revision);
    }

    #[test]
    fn failed_precondition_changes_nothing() {
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
        assert_eq!(memory.count(&NODE), 0);
    }

    #[test]
    fn renewals_are_acknowledged_from_memory_without_a_commit() {
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
    fn change_or_deletion_after_a_renewal_stays() {
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
    fn full_disk_refuses_changes_but_renewals_continue() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let lease = write(&writer, &LEASE, "l", Expect::Absent, object("l"), false).unwrap();
        disk.0.lock().unwrap().full = true;
        let refused = write(&writer, &NODE, "n", Expect::Absent, object("n"), false);
        assert!(matches!(refused, Err(WriteError::Failed(why)) if why == "disk full"));
        assert_eq!(memory.count(&NODE), 0);
        write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l"), true).unwrap();
        disk.0.lock().unwrap().full = false;
        let node = write(&writer, &NODE, "n", Expect::Absent, object("n"), false).unwrap();
        assert!(node.revision > lease.revision);
    }

    #[test]
    fn new_range_is_reserved_before_the_old_one_is_used_up() {
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
