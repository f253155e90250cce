//! The writer's thread: it collects durable changes into groups, lets `kedge_hub_core::state` order them,
//! makes them durable, publishes them, and flushes renewals.
//!
//! Always holds: a durable change is visible and acknowledged only after its commit was flushed; a renewal is
//! made on the thread that requests it and waits for none of that; every submitted change is answered. A
//! failed commit is not repeated: its changes are answered, "not made" when that is certain, and new changes
//! are refused at once until a probe has succeeded ([`Health`]). A failed flush ends the thread, and with it
//! the process: only a new process can find out what is on the disk. Left to others: the revision of a
//! change, the content of a commit and the length of pauses (`state`), a commit that fails because of one
//! change (`at_fault`), the file (`sqlite`).

mod at_fault;

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use kedge_hub_core::kinds::{KINDS, Kind, LEASE};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::Renewal;
use kedge_hub_core::state::{
    Batch, Changed, Commit, Effect, Expect, FLUSH, Leases, Order, Renewed, Require, Restored, Sort, Spaces,
    Write, WriteError, may_free_room, restore,
};
use kedge_platform::Progress;
use time::OffsetDateTime;

use self::at_fault::Failed;
use super::health::Health;
use super::{Store, StoreError};
use crate::fresh::fresh;
use crate::memory::{Memory, Sender};

/// Most changes in one commit.
const BATCH: usize = 2048;
/// Most bytes of objects in one commit, apart from a last object: this bounds the log, the reserve that must
/// be able to hold it, and the time for which one caller's large objects delay the others' commit.
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Most changes that wait for the writer; more are refused with 429, so memory stays bounded when the disk
/// stalls.
const QUEUE: usize = 4096;
/// Most renewals in one commit: a flush of a large fleet is split, and waiting changes are committed with
/// each piece.
const FLUSH_PIECE: usize = 2000;
/// Wait after a failed flush of renewals, so that a full disk is not flooded with attempts.
const FLUSH_RETRY: Duration = Duration::from_secs(5);

/// Longest time that renewals of a Lease wait for a durable change of it ([`Leases::stage`]): a stalled disk
/// must not keep a node from renewing.
const HOLD: Duration = Duration::from_secs(1);

/// The result of a change.
pub type Outcome = Result<Arc<Object>, WriteError>;

/// Called exactly once, from the writer's thread.
pub type Reply = Box<dyn FnOnce(Outcome) + Send>;

enum Command {
    Write(Write, Reply, Ticket),
    /// A client knows this revision, which this hub never handed out.
    Raise(u64),
    Close,
}

/// A submitted change that waits for its turn.
#[derive(Debug, Clone, Default)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Takes the change back: it will not be made, and its reply is not called. `false`: it is too late,
    /// because the change is being made or was answered.
    pub fn take_back(&self) -> bool {
        self.take()
    }

    /// True for the first caller only.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
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
    /// Microseconds spent in commits.
    pub commit_micros: AtomicU64,
}

/// The sending side, shared by all requests.
#[derive(Debug)]
pub struct Writer {
    memory: Arc<Memory>,
    queue: SyncSender<Command>,
    pub counters: Arc<Counters>,
    health: Arc<Health>,
    alive: Arc<AtomicBool>,
    ended: Arc<tokio::sync::Notify>,
    /// Revisions are raised only once, so that false claims of clients cannot use them up.
    raised: AtomicBool,
    thread: std::sync::Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Writer {
    /// Loads everything from the store into a new memory, reserves revisions, and starts the thread.
    pub fn start(mut store: Box<dyn Store>) -> Result<(Writer, Arc<Memory>), StoreError> {
        let mut records = Vec::new();
        let marks = store.load(&mut |record| records.push(record))?;
        let restored =
            restore(marks, records).map_err(|message| StoreError::certain(Sort::Damaged, message))?;
        let Restored { index, mut leases, desired, mut order, reserve, unserved } = restored;
        for record in &unserved {
            log::warn!("store holds {record}, a kind that is not served: kept, not shown");
        }
        let health = Arc::new(Health::default());
        if let Err(error) = store.commit_from_reserve(&[], Some(reserve)) {
            // otherwise the next start finds a log that it cannot fold, and can only read
            if error.sort == Sort::Flush {
                return Err(error);
            }
            log::error!("{error}; {}", error.sort.consequence());
            health.failed(&error, false);
            order.not_reserved();
            let no_offset = |error: kedge_hub_core::ApiError| StoreError::certain(Sort::Other, error.message);
            let [high, low, ..] = fresh().map_err(no_offset)?.random;
            leases.not_reserved(milliseconds(OffsetDateTime::now_utc()), u16::from_be_bytes([high, low]));
        } else if let Some(error) = store.unwritable() {
            health.failed(error, false);
        }
        let memory = Arc::new(Memory::new(index, leases, desired));
        Ok((Writer::spawn(store, memory.clone(), order, health), memory))
    }

    fn spawn(store: Box<dyn Store>, memory: Arc<Memory>, order: Order, health: Arc<Health>) -> Writer {
        let (queue, commands) = sync_channel(QUEUE);
        let counters = Arc::new(Counters::default());
        let alive = Arc::new(AtomicBool::new(true));
        let ended = Arc::new(tokio::sync::Notify::new());
        let guard = EndGuard { alive: alive.clone(), ended: ended.clone() };
        let mut worker = Worker {
            store,
            memory: memory.clone(),
            counters: counters.clone(),
            health: health.clone(),
            order,
            names: KINDS.iter().map(|kind| kind.resource_name()).collect(),
            flush_at: Instant::now() + FLUSH,
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                let _guard = guard;
                worker.run(&commands);
            })
            .expect("a process that just started can start one thread");
        let (raised, thread) = (AtomicBool::new(false), std::sync::Mutex::new(Some(thread)));
        Writer { memory, queue, counters, health, alive, ended, raised, thread }
    }

    /// Makes a renewal, on the caller's thread: it is visible and acknowledged when this returns.
    pub fn renew(&self, write: Write) -> Outcome {
        if !self.is_alive() {
            return Err(WriteError::Closed);
        }
        let renewed = self.leases_for_a_renewal().renew(write)?;
        self.counters.volatile.fetch_add(1, Ordering::Relaxed);
        Ok(renewed)
    }

    /// The same for a plain renewal; `None`: it must be made in the general way.
    pub fn renew_plainly(&self, namespace: &str, name: &str, renewal: &Renewal) -> Option<Outcome> {
        if !self.is_alive() {
            return None;
        }
        let renewed = self.leases_for_a_renewal().renew_plainly(&LEASE, namespace, name, renewal)?;
        Some(renewed.map(|Renewed { object, changed }| {
            self.counters.volatile.fetch_add(u64::from(changed), Ordering::Relaxed);
            object
        }))
    }

    fn leases_for_a_renewal(&self) -> impl DerefMut<Target = Leases<Sender>> {
        let mut leases = self.memory.leases_mut();
        if leases.holds_renewals() && self.health.oldest_unfinished_commit() >= HOLD {
            leases.release();
        }
        leases
    }

    /// Passes a durable change to the thread. `reply` is always called, unless the change is taken back.
    pub fn submit(&self, write: Write, reply: Reply) -> Ticket {
        let ticket = Ticket::default();
        // only a first check: the thread decides about an object that is being deleted, which may be changed
        // in many ways
        if let Some(refused) = self.health.refusal(may_free_room(&write)) {
            reply(Err(refused));
            return ticket;
        }
        let (command, error) = match self.queue.try_send(Command::Write(write, reply, ticket.clone())) {
            Ok(()) => return ticket,
            Err(TrySendError::Full(command)) => (command, WriteError::Busy),
            Err(TrySendError::Disconnected(command)) => (command, WriteError::Closed),
        };
        if let Command::Write(_, reply, _) = command {
            reply(Err(error));
        }
        ticket
    }

    /// A client knows a revision that this store does not: an older copy of the data directory was restored.
    /// Revisions then continue from far above; this happens only once.
    pub fn raise_above(&self, revision: u64) {
        if !self.raised.swap(true, Ordering::AcqRel) && self.queue.try_send(Command::Raise(revision)).is_err()
        {
            self.raised.store(false, Ordering::Release);
        }
    }

    /// The condition of the store, and the age of its commit in progress.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// True if the thread still runs.
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
        // a full queue is drained; a thread that ended needs no message
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

/// A staged change that waits for its commit, with the facts needed to stage it again.
struct Waiting {
    reply: Reply,
    /// The object after the change.
    object: Arc<Object>,
    kind: &'static Kind,
    expect: Expect,
    requires: Vec<Require>,
    deletes: bool,
    author: Option<Box<str>>,
    /// Set while the store is full: the effect of the change on its room.
    effect: Option<Effect>,
}

impl Waiting {
    /// Size of the object that it stores.
    fn bytes(&self) -> usize {
        if self.deletes { 0 } else { self.object.json.len() }
    }

    /// The change as it was requested. Its object has a resourceVersion, which staging replaces anyway.
    fn again(self) -> (Write, Reply) {
        let Waiting { reply, object, kind, expect, requires, deletes, author, .. } = self;
        let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
        let new = (!deletes).then(|| object.value());
        (Write { kind, namespace, name, expect, requires, new, volatile: false, author }, reply)
    }
}

struct Worker {
    store: Box<dyn Store>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    health: Arc<Health>,
    order: Order,
    /// Resource names of [`KINDS`].
    names: Vec<String>,
    /// The time of the next flush of renewals.
    flush_at: Instant,
}

impl Worker {
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let (mut closing, mut raise) = (false, None);
            let mut batch = Vec::new();
            let wake = self.health.retry_at().map_or(self.flush_at, |at| at.min(self.flush_at));
            let wait = wake.saturating_duration_since(Instant::now());
            self.health.turn(|turns| turns.idle_for(wait));
            let received = commands.recv_timeout(wait);
            self.health.turn(Progress::busy);
            match received {
                Ok(command) => closing |= take(command, &mut batch, &mut raise),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => closing = true,
            }
            while batch.len() < BATCH && !closing {
                match commands.try_recv() {
                    Ok(command) => closing |= take(command, &mut batch, &mut raise),
                    Err(_) => break,
                }
            }
            if self.health.retry_at().is_some_and(|at| at <= Instant::now()) {
                self.probe();
            }
            if let Some(known) = raise {
                self.raise(known);
            }
            self.process(batch);
            if closing || self.health.end().is_some() {
                self.close(commands);
                return self.health.turn(Progress::idle);
            }
        }
    }

    /// Raises all later revisions above those that the lost, newer store may have handed out.
    fn raise(&mut self, known: u64) {
        let before = self.order.revision();
        self.order.raise();
        let made = self.commit(Batch::default(), Vec::new(), 0);
        log::error!(
            "a node knows the resourceVersion {known}, and the store's last one is {before}: an older copy of the data directory was put \
             back, or the node comes from another hub; versions go on from {}{}",
            self.order.revision(),
            if made { "" } else { ", once the disk takes writes" }
        );
    }

    fn close(&mut self, commands: &Receiver<Command>) {
        let rest = std::iter::from_fn(|| commands.try_recv().ok());
        for command in rest.collect::<Vec<_>>() {
            if let Command::Write(_, reply, ticket) = command
                && ticket.take()
            {
                reply(Err(WriteError::Closed));
            }
        }
        if self.health.end().is_some() {
            return;
        }
        if self.health.is_failing() {
            self.probe();
        }
        // the mark is exact, because no Lease is renewed from here on
        let leases = self.memory.leases_mut().end();
        self.memory.leases_mut().flush();
        while self.memory.leases().is_flushing() && self.commit(Batch::default(), Vec::new(), FLUSH_PIECE) {}
        let revisions = Spaces { common: self.order.revision(), leases };
        match self.store.close(revisions) {
            Ok(()) => log::info!("store closed at revision {}", revisions.common),
            Err(error) => log::error!("{error}; the next start counts revisions from the reserved mark"),
        }
    }

    fn process(&mut self, writes: Vec<(Write, Reply)>) {
        let mut writes = writes.into_iter();
        loop {
            let (batch, waiting) = self.stage(&mut writes);
            let due = self.flush_at <= Instant::now() && !self.health.is_failing();
            if due && !self.memory.leases().is_flushing() {
                self.memory.leases_mut().flush();
            }
            let made = self.commit(batch, waiting, if due { FLUSH_PIECE } else { 0 });
            self.schedule_flush(made);
            if writes.len() == 0 {
                return;
            }
        }
    }

    /// After a piece the next one follows at once, together with new changes; after a failure, later.
    fn schedule_flush(&mut self, made: bool) {
        let now = Instant::now();
        if self.flush_at > now {
            return;
        }
        if !made || self.health.is_failing() {
            self.flush_at = now + FLUSH_RETRY;
        } else if !self.memory.leases().is_flushing() {
            self.flush_at = now + FLUSH;
        }
    }

    /// Collects the content of one commit. Answers changes that cannot be made.
    fn stage(&mut self, writes: &mut impl Iterator<Item = (Write, Reply)>) -> (Batch, Vec<Waiting>) {
        let (mut batch, mut waiting, mut bytes) = (Batch::default(), Vec::new(), 0);
        while bytes < BATCH_BYTES
            && let Some((write, reply)) = writes.next()
        {
            // staged first, so that the index is not locked while an answer is given
            match self.stage_one(&mut batch, write, reply) {
                Ok(staged) => {
                    bytes += staged.object.json.len();
                    waiting.push(staged);
                }
                Err((reply, error)) => reply(Err(error)),
            }
        }
        (batch, waiting)
    }

    fn stage_one(
        &mut self,
        batch: &mut Batch,
        write: Write,
        reply: Reply,
    ) -> Result<Waiting, (Reply, WriteError)> {
        let (kind, expect, deletes) = (write.kind, write.expect, write.new.is_none());
        let (requires, author) = (write.requires.clone(), write.author.clone());
        match self.try_to_stage(batch, write) {
            Ok((object, effect)) => {
                Ok(Waiting { reply, object, kind, expect, requires, deletes, author, effect })
            }
            Err(error) => Err((reply, error)),
        }
    }

    fn try_to_stage(
        &mut self,
        batch: &mut Batch,
        write: Write,
    ) -> Result<(Arc<Object>, Option<Effect>), WriteError> {
        // checked here, because Leases have another lock; and so late, because the change may have waited for
        // a disk that hung
        if !self.memory.are_unchanged(&write.requires) {
            return Err(WriteError::Mismatch);
        }
        let found = || self.memory.get(write.kind, &write.namespace, &write.name);
        let mut effect = self.health.minds_effects().then(|| Effect::of(&write, found().as_deref()));
        if let Some(effect) = &mut effect {
            self.health.admit(effect)?;
        }
        let index = self.memory.read();
        let staged = match write.kind.is_renewed() {
            true => self.memory.leases_mut().stage(&index, batch, write),
            false => self.order.stage(&index, batch, write),
        };
        drop(index);
        if staged.is_err() {
            self.not_made(effect.as_ref());
        }
        Ok((staged?, effect))
    }

    /// Notes that a change whose effect was admitted was not made.
    fn not_made(&self, effect: Option<&Effect>) {
        if let Some(effect) = effect {
            self.health.not_made(effect);
        }
    }

    /// Makes a batch durable and publishes it, with at most so many of the renewals that are due; then
    /// answers. Returns true if everything was made.
    fn commit(&mut self, batch: Batch, waiting: Vec<Waiting>, renewals: usize) -> bool {
        self.flush(batch, waiting, renewals).is_some()
    }

    /// As [`commit`](Self::commit), for a flush. Returns the number of due renewals that are durable now;
    /// `None` if the commit failed.
    fn flush(&mut self, batch: Batch, waiting: Vec<Waiting>, renewals: usize) -> Option<usize> {
        if batch.is_empty() && self.health.is_failing() {
            // renewals stay in memory until a probe has succeeded
            return None;
        }
        match self.attempt(batch, waiting, renewals) {
            Ok(flushed) => Some(flushed),
            Err(failed) => {
                self.failed(failed);
                None
            }
        }
    }

    /// Makes one commit; if it fails, its changes are not answered yet. Returns the number of due renewals
    /// that are durable now.
    fn attempt(&mut self, batch: Batch, waiting: Vec<Waiting>, renewals: usize) -> Result<usize, Failed> {
        // on a full disk only changes that free room are staged, and they alone may use the reserve
        let freeing = self.health.is_failing();
        let renewals = if freeing { 0 } else { renewals };
        let commit = self.order.commit(&self.memory.leases(), batch, renewals);
        let Some(commit) = commit else { return Ok(0) };
        let flushed = commit.flushed();
        if let Err(error) = self.make_durable(&commit, freeing) {
            self.memory.leases_mut().release();
            // changes that are attempted again are judged again
            waiting.iter().for_each(|change| self.not_made(change.effect.as_ref()));
            return Err(Failed { error, waiting, freeing, alone: flushed == 0 });
        }
        let changes = self.order.committed(&mut self.memory.leases_mut(), commit);
        self.publish(changes, waiting);
        self.tidy();
        Ok(flushed)
    }

    /// Publishes durable changes and answers them: one answer for each, in their order.
    fn publish(&mut self, changes: Vec<Changed>, waiting: Vec<Waiting>) {
        let (mut others, mut answers, mut overtaken) = (Vec::new(), Vec::new(), Vec::new());
        for (changed, Waiting { reply, object, effect, .. }) in changes.into_iter().zip(waiting) {
            if let Some(effect) = effect {
                self.health.made(&effect);
            }
            if !changed.kind.is_renewed() {
                others.push(changed);
                answers.push((reply, Ok(object)));
                continue;
            }
            match self.memory.leases_mut().settle(changed) {
                Err(WriteError::Mismatch) => overtaken.push(reply),
                outcome => answers.push((reply, outcome)),
            }
        }
        if !others.is_empty() {
            self.memory.publish(others);
        }
        for (reply, outcome) in answers {
            reply(outcome);
        }
        if !overtaken.is_empty() {
            self.replace(overtaken);
        }
    }

    /// Replaces the rows of Lease changes that a renewal overtook while they were written: those Leases are
    /// flushed first. Only then do their clients learn that nothing changed: after a crash before that, the
    /// changes would be visible.
    fn replace(&mut self, overtaken: Vec<Reply>) {
        let mut replaced = 0;
        while replaced < overtaken.len()
            && let Some(more @ 1..) = self.flush(Batch::default(), Vec::new(), overtaken.len() - replaced)
        {
            replaced += more;
        }
        let open = || WriteError::Uncertain("a renewal came while it was written".to_owned());
        let is_replaced = replaced >= overtaken.len();
        for reply in overtaken {
            reply(Err(if is_replaced { WriteError::Mismatch } else { open() }));
        }
    }

    fn make_durable(&mut self, commit: &Commit, freeing: bool) -> Result<(), StoreError> {
        let changes = commit.changes(&self.names);
        let started = Instant::now();
        let busy = self.health.busy();
        let outcome = match freeing {
            true => self.store.commit_from_reserve(&changes, commit.reserve),
            false => self.store.commit(&changes, commit.reserve),
        };
        drop(busy);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.commit_micros.fetch_add(micros, Ordering::Relaxed);
        if outcome.is_ok() {
            self.counters.commits.fetch_add(1, Ordering::Relaxed);
            self.counters.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
        }
        outcome
    }

    /// Notes a failure, for later changes and for the log.
    fn note(&self, error: &StoreError, freeing: bool, changes: usize) {
        self.health.failed(error, freeing);
        let made = match (changes, error.uncertain) {
            (0, _) => String::new(),
            (_, true) => format!("{changes} changes may or may not have been made; "),
            (_, false) => format!("{changes} changes were not made; "),
        };
        log::error!("{error}; {made}{}", error.sort.consequence());
        if error.sort == Sort::Flush {
            self.health.ends(error.message.clone());
        }
    }

    /// Work for which no acknowledgement waits. A failure stops further changes, but undoes none.
    fn tidy(&mut self) {
        let busy = self.health.busy();
        let outcome = self.store.tidy();
        drop(busy);
        if let Err(error) = outcome {
            self.note(&error, false, 0);
        }
    }

    /// Called after the pause that follows a failure: checks that the store accepts changes again.
    fn probe(&mut self) {
        let health = self.health.clone();
        let busy = health.busy();
        let outcome = self.try_again();
        drop(busy);
        match outcome {
            Ok(()) => health.works(),
            Err(error) => self.note(&error, false, 0),
        }
    }

    fn try_again(&mut self) -> Result<(), StoreError> {
        self.store.probe()?;
        // reserve now, because a start on a disk that could not be written reserved nothing
        let commit = self.order.commit(&self.memory.leases(), Batch::default(), 0);
        if let Some(commit) = commit {
            self.store.commit(&[], commit.reserve)?;
            self.order.committed(&mut self.memory.leases_mut(), commit);
        }
        Ok(())
    }
}

/// Since 1970; 0 before.
fn milliseconds(now: OffsetDateTime) -> u64 {
    u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
}

fn answer_to(error: &StoreError) -> WriteError {
    match error.uncertain {
        true => WriteError::Uncertain(error.message.clone()),
        false => WriteError::Failed(error.message.clone()),
    }
}

fn take(command: Command, batch: &mut Vec<(Write, Reply)>, raise: &mut Option<u64>) -> bool {
    match command {
        Command::Raise(known) => {
            *raise = Some(known);
            false
        }
        Command::Write(write, reply, ticket) => {
            if ticket.take() {
                batch.push((write, reply));
            }
            false
        }
        Command::Close => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Change, Marks, Record};
    use kedge_hub_core::kinds::{Kind, NODE};
    use kedge_hub_core::selector::Selection;
    use kedge_hub_core::state::{Expect, MAX_OBJECT_BYTES, RESERVE, UNRESERVED, WatchRefused};
    use serde_json::{Value, json};
    use std::collections::HashMap;
    use std::sync::{Condvar, Mutex, MutexGuard, mpsc};

    /// A store in memory that can be made to fail; clones share it, so that it can be opened again.
    #[derive(Clone, Default)]
    struct Fake(Arc<(Mutex<Disk>, Condvar)>);

    #[derive(Default)]
    struct Disk {
        objects: HashMap<(String, String, String), (u64, Vec<u8>)>,
        marks: Spaces<Marks>,
        commits: usize,
        /// The sizes of the commits.
        changes: Vec<usize>,
        /// Commits and probes, including failed ones.
        tries: usize,
        fails: Option<StoreError>,
        /// Bytes of objects that a commit may have.
        room: Option<usize>,
        /// The name of an object that it refuses.
        odd: Option<&'static str>,
        /// Number of times it tidied up after a commit, and its error if it cannot.
        tidied: usize,
        untidy: Option<StoreError>,
        /// True if changes that free room have room.
        reserve: bool,
        /// Operations wait while this is set.
        blocked: bool,
        waiting: bool,
    }

    impl Fake {
        /// One operation of the store.
        fn turn(&self, from_reserve: bool) -> Result<MutexGuard<'_, Disk>, StoreError> {
            let (disk, changed) = (&self.0.0, &self.0.1);
            let mut disk = disk.lock().unwrap();
            disk.tries += 1;
            disk.waiting = true;
            changed.notify_all();
            disk = changed.wait_while(disk, |disk| disk.blocked).unwrap();
            disk.waiting = false;
            match &disk.fails {
                Some(_) if from_reserve && disk.reserve => Ok(disk),
                Some(error) => Err(error.clone()),
                None => Ok(disk),
            }
        }

        fn disk(&self) -> MutexGuard<'_, Disk> {
            self.0.0.lock().unwrap()
        }

        fn fail(&self, fails: Option<StoreError>) {
            self.disk().fails = fails;
        }

        /// Blocks the next operation.
        fn block(&self) {
            self.disk().blocked = true;
        }

        fn wait_until_it_waits(&self) {
            drop(self.0.1.wait_while(self.disk(), |disk| !disk.waiting).unwrap());
        }

        fn stored(&self, name: &str) -> Option<(u64, Value)> {
            let disk = self.disk();
            let found = disk.objects.iter().find(|((_, _, found), _)| found == name);
            found.map(|(_, (revision, json))| (*revision, serde_json::from_slice(json).unwrap()))
        }

        fn go_on(&self) {
            self.disk().blocked = false;
            self.0.1.notify_all();
        }

        fn make(disk: &mut Disk, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) {
            disk.commits += 1;
            disk.changes.push(changes.len());
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
            if let Some(Spaces { common, leases }) = reserved {
                disk.marks.common = Marks { reserved: common, clean: None };
                disk.marks.leases = Marks { reserved: leases, clean: None };
            }
        }
    }

    impl Store for Fake {
        fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Spaces<Marks>, StoreError> {
            let disk = self.disk();
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

        fn commit(
            &mut self,
            changes: &[Change<'_>],
            reserved: Option<Spaces<u64>>,
        ) -> Result<(), StoreError> {
            let mut disk = self.turn(false)?;
            let put = changes.iter().filter_map(|change| match change {
                Change::Put { name, json, .. } => Some((*name, json.len())),
                Change::Delete { .. } => None,
            });
            if disk.room.is_some_and(|room| put.clone().map(|(_, bytes)| bytes).sum::<usize>() > room) {
                return Err(fault(Sort::Full).unwrap());
            }
            if put.clone().any(|(name, _)| disk.odd == Some(name)) {
                return Err(fault(Sort::Other).unwrap());
            }
            Fake::make(&mut disk, changes, reserved);
            Ok(())
        }

        fn commit_from_reserve(
            &mut self,
            changes: &[Change<'_>],
            reserved: Option<Spaces<u64>>,
        ) -> Result<(), StoreError> {
            Fake::make(&mut *self.turn(true)?, changes, reserved);
            Ok(())
        }

        fn tidy(&mut self) -> Result<(), StoreError> {
            let mut disk = self.disk();
            disk.tidied += 1;
            disk.untidy.clone().map_or(Ok(()), Err)
        }

        fn probe(&mut self) -> Result<(), StoreError> {
            self.turn(false).map(|_| ())
        }

        fn close(&mut self, revisions: Spaces<u64>) -> Result<(), StoreError> {
            let mut disk = self.disk();
            if let Some(error) = &disk.fails {
                return Err(error.clone());
            }
            disk.marks.common.clean = Some(revisions.common);
            disk.marks.leases.clean = Some(revisions.leases);
            Ok(())
        }
    }

    /// Submits a change; its answer comes later.
    fn submit(
        writer: &Writer,
        kind: &'static Kind,
        name: &str,
        expect: Expect,
        new: Option<Value>,
    ) -> mpsc::Receiver<Outcome> {
        let (answer, answered) = mpsc::channel();
        let (namespace, name) = (String::new(), name.to_owned());
        let write =
            Write { kind, namespace, name, expect, requires: Vec::new(), new, volatile: false, author: None };
        writer.submit(write, Box::new(move |outcome| answer.send(outcome).unwrap()));
        answered
    }

    fn write(
        writer: &Writer,
        kind: &'static Kind,
        name: &str,
        expect: Expect,
        new: Option<Value>,
    ) -> Outcome {
        submit(writer, kind, name, expect, new).recv().unwrap()
    }

    fn renew(writer: &Writer, name: &str, revision: u64) -> Outcome {
        let (expect, namespace, name) = (Expect::Revision(revision), String::new(), name.to_owned());
        let (kind, new, requires) = (&LEASE, object(&name), Vec::new());
        writer.renew(Write { kind, namespace, name, expect, requires, new, volatile: true, author: None })
    }

    fn object(name: &str) -> Option<Value> {
        Some(json!({"metadata": {"name": name}}))
    }

    /// The object `n`, which is being deleted and has grown by this many bytes.
    fn ending(bytes: usize) -> Option<Value> {
        let meta = json!({"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"x": "x".repeat(bytes)}});
        Some(json!({ "metadata": meta }))
    }

    #[test]
    fn acknowledged_changes_and_revisions_survive_a_crash() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let first = write(&writer, &NODE, "a", Expect::Absent, object("a")).unwrap();
        assert_eq!(disk.disk().objects.len(), 1);
        assert_eq!(first.value()["metadata"]["resourceVersion"], first.revision.to_string());
        // a crash: the thread ends without closing, its disk stays
        let (objects, marks) = {
            let disk = disk.disk();
            (disk.objects.clone(), disk.marks)
        };
        let crashed = Fake::default();
        *crashed.disk() = Disk { objects, marks, ..Disk::default() };
        let (again, memory) = Writer::start(Box::new(crashed)).unwrap();
        assert!(memory.revision(&NODE) >= first.revision + RESERVE - 1);
        let second = write(&again, &NODE, "a", Expect::Revision(first.revision), object("a")).unwrap();
        assert!(second.revision > first.revision);
    }

    #[test]
    fn clean_close_continues_the_revisions() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let last = write(&writer, &NODE, "a", Expect::Absent, object("a")).unwrap();
        writer.close();
        let (_, memory) = Writer::start(Box::new(disk)).unwrap();
        assert_eq!(memory.revision(&NODE), last.revision);
    }

    #[test]
    fn failed_precondition_changes_nothing() {
        let (writer, memory) = Writer::start(Box::new(Fake::default())).unwrap();
        let check = |expect, new| {
            let outcome = write(&writer, &NODE, "a", expect, new);
            assert!(matches!(outcome, Err(WriteError::Mismatch)), "{outcome:?}");
        };
        check(Expect::Revision(1), object("a"));
        check(Expect::Absent, None);
        let now = write(&writer, &NODE, "a", Expect::Absent, object("a")).unwrap();
        check(Expect::Absent, object("a"));
        check(Expect::Revision(now.revision + 1), None);
        assert_eq!(memory.revision(&NODE), now.revision);
        let gone = write(&writer, &NODE, "a", Expect::Revision(now.revision), None).unwrap();
        assert!(gone.revision > now.revision);
        assert_eq!(memory.count(&NODE), 0);
    }

    #[test]
    fn renewals_are_acknowledged_from_memory_without_a_commit() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let made = write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        let mut lease = made.clone();
        let commits = disk.disk().commits;
        for _ in 0..5 {
            lease = renew(&writer, "l", lease.revision).unwrap();
        }
        assert_eq!(disk.disk().commits, commits);
        assert_eq!(memory.revision(&LEASE), lease.revision);
        write(&writer, &NODE, "n", Expect::Absent, object("n")).unwrap();
        let stored = || disk.stored("l").map(|(revision, _)| revision);
        assert_eq!(stored(), Some(made.revision));
        writer.close();
        assert_eq!(stored(), Some(lease.revision));
    }

    #[test]
    fn change_or_deletion_after_a_renewal_stays() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let lease = write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        let lease = renew(&writer, "l", lease.revision).unwrap();
        let changed = write(&writer, &LEASE, "l", Expect::Revision(lease.revision), object("l")).unwrap();
        write(&writer, &NODE, "n", Expect::Absent, object("n")).unwrap();
        let other = write(&writer, &LEASE, "m", Expect::Absent, object("m")).unwrap();
        let other = renew(&writer, "m", other.revision).unwrap();
        write(&writer, &LEASE, "m", Expect::Revision(other.revision), None).unwrap();
        writer.close();
        let disk = disk.disk();
        let mut stored: Vec<_> =
            disk.objects.iter().map(|(place, (revision, _))| (&*place.2, *revision)).collect();
        stored.sort_unstable();
        assert_eq!(stored, [("l", changed.revision), ("n", 2)], "the first of its own space");
    }

    fn fault(sort: Sort) -> Option<StoreError> {
        Some(StoreError::certain(sort, "at fault"))
    }

    /// Submits a change until the store accepts it; returns how often it was refused without an attempt.
    fn write_when_possible(writer: &Writer, name: &str) -> usize {
        let mut refused = 0;
        loop {
            match write(writer, &NODE, name, Expect::Absent, object(name)) {
                Ok(_) => return refused,
                Err(WriteError::Refused(refusal)) => assert!(refusal.retry_after >= Duration::from_secs(1)),
                Err(other) => panic!("{other:?}"),
            }
            refused += 1;
            std::thread::yield_now();
        }
    }

    #[test]
    fn full_disk_refuses_changes_but_renewals_continue() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let mut lease = write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        disk.fail(fault(Sort::Full));
        let tries = disk.disk().tries;
        let refused = write(&writer, &NODE, "n", Expect::Absent, object("n"));
        assert!(matches!(refused, Err(WriteError::Failed(why)) if why == "at fault"));
        assert_eq!(memory.count(&NODE), 0);
        for _ in 0..1000 {
            let refused = write(&writer, &NODE, "n", Expect::Absent, object("n"));
            assert!(matches!(&refused, Err(WriteError::Refused(_))), "{refused:?}");
            lease = renew(&writer, "l", lease.revision).unwrap();
        }
        let tried = disk.disk().tries - tries;
        // one attempt a second, however many changes arrive; the machine may have been slow
        assert!(tried <= 10, "{tried} tries for 1001 changes and 1000 renewals");
        assert!(writer.health().failing().is_some_and(|(failing, _)| failing.sort == Sort::Full));
        disk.fail(None);
        write_when_possible(&writer, "n");
        assert_eq!(memory.get(&LEASE, "", "l").unwrap().revision, lease.revision);
        assert!(writer.health().failing().is_none());
    }

    #[test]
    fn deletions_use_the_reserve_also_beside_other_changes() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let made = |name| write(&writer, &NODE, name, Expect::Absent, object(name)).unwrap().revision;
        let (a, b, c) = (made("a"), made("b"), made("c"));
        {
            let mut disk = disk.disk();
            (disk.fails, disk.reserve, disk.blocked) = (fault(Sort::Full), true, true);
        }
        let (answer, answers) = mpsc::channel();
        let submit = |name: &'static str, expect, new: Option<Value>| {
            let answer = answer.clone();
            let (namespace, kind) = (String::new(), &NODE);
            let write = Write {
                kind,
                namespace,
                name: name.to_owned(),
                expect,
                requires: Vec::new(),
                new,
                volatile: false,
                author: None,
            };
            writer.submit(write, Box::new(move |outcome| answer.send((name, outcome.is_ok())).unwrap()));
        };
        submit("first", Expect::Absent, object("first"));
        disk.wait_until_it_waits();
        // these two form one batch after it
        submit("a", Expect::Revision(a), None);
        submit("second", Expect::Absent, object("second"));
        disk.go_on();
        let mut answered: Vec<_> = answers.iter().take(3).collect();
        answered.sort_unstable();
        assert_eq!(answered, [("a", true), ("first", false), ("second", false)]);
        let ending = json!({"metadata": {"name": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        write(&writer, &NODE, "b", Expect::Revision(b), Some(ending.clone())).unwrap();
        let mut grown = ending;
        grown["metadata"]["annotations"] = json!({"x": "x".repeat(100_000)});
        grown["metadata"]["name"] = "c".into();
        let refused = write(&writer, &NODE, "c", Expect::Revision(c), Some(grown));
        assert!(matches!(&refused, Err(WriteError::Refused(_))), "{refused:?}");
        assert_eq!(memory.count(&NODE), 2);
        // without a reserve deletions fail, too
        disk.disk().reserve = false;
        let refused = write(&writer, &NODE, "c", Expect::Revision(c), None);
        assert!(matches!(&refused, Err(WriteError::Failed(_))), "{refused:?}");
        let refused = write(&writer, &NODE, "c", Expect::Revision(c), None);
        assert!(matches!(&refused, Err(WriteError::Refused(_))), "{refused:?}");
        assert!(memory.get(&NODE, "", "c").is_some());
    }

    /// The worker of the thread, driven by the test.
    fn worker(disk: &Fake) -> Worker {
        let mut records = Vec::new();
        let marks = disk.clone().load(&mut |record| records.push(record)).unwrap();
        let Restored { index, leases, order, desired, .. } = restore(marks, records).unwrap();
        Worker {
            store: Box::new(disk.clone()),
            memory: Arc::new(Memory::new(index, leases, desired)),
            counters: Arc::default(),
            health: Arc::default(),
            order,
            names: KINDS.iter().map(|kind| kind.resource_name()).collect(),
            flush_at: Instant::now() + FLUSH,
        }
    }

    /// A change for it, and the receiver of its answer.
    fn asked(
        kind: &'static Kind,
        name: &str,
        expect: Expect,
        new: Option<Value>,
    ) -> ((Write, Reply), mpsc::Receiver<Outcome>) {
        let (answer, answered) = mpsc::channel();
        let (namespace, name, requires) = (String::new(), name.to_owned(), Vec::new());
        let write = Write { kind, namespace, name, expect, requires, new, volatile: false, author: None };
        ((write, Box::new(move |outcome| answer.send(outcome).unwrap())), answered)
    }

    impl Worker {
        /// Makes the changes in one batch.
        fn make_all(&mut self, changes: Vec<(&'static Kind, &str, Expect, Option<Value>)>) -> Vec<Outcome> {
            let asked = changes.into_iter().map(|(kind, name, expect, new)| asked(kind, name, expect, new));
            let (writes, answers): (Vec<_>, Vec<_>) = asked.unzip();
            self.process(writes);
            answers.into_iter().map(|answer| answer.recv().unwrap()).collect()
        }

        fn make(&mut self, kind: &'static Kind, name: &str, expect: Expect, new: Option<Value>) -> Outcome {
            self.make_all(vec![(kind, name, expect, new)]).remove(0)
        }

        fn renew(&self, name: &str, new: Option<Value>) -> u64 {
            let revision = self.memory.get(&LEASE, "", name).unwrap().revision;
            let (expect, namespace, name) = (Expect::Revision(revision), String::new(), name.to_owned());
            let (kind, requires) = (&LEASE, Vec::new());
            let renewal =
                Write { kind, namespace, name, expect, requires, new, volatile: true, author: None };
            self.memory.leases_mut().renew(renewal).unwrap().revision
        }
    }

    #[test]
    fn failure_after_a_commit_takes_nothing_back() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        worker.make(&NODE, "a", Expect::Absent, object("a")).unwrap();
        assert_eq!(disk.disk().tidied, 1);
        disk.disk().untidy = fault(Sort::Io);
        worker.make(&NODE, "b", Expect::Absent, object("b")).unwrap();
        assert_eq!(worker.memory.count(&NODE), 2);
        let refused = worker.make(&NODE, "c", Expect::Absent, object("c"));
        assert!(matches!(refused, Err(WriteError::Refused(_))), "{refused:?}");
    }

    #[test]
    fn failed_probe_is_no_recovery() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        disk.fail(fault(Sort::ReadOnly));
        worker.make(&NODE, "a", Expect::Absent, object("a")).unwrap_err();
        worker.probe();
        assert!(worker.health.is_failing());
        disk.fail(None);
        worker.probe();
        assert!(!worker.health.is_failing());
        worker.make(&NODE, "a", Expect::Absent, object("a")).unwrap();
    }

    #[test]
    fn change_that_requires_a_silent_lease_is_judged_last() {
        let mut worker = worker(&Fake::default());
        let lease = worker.make(&LEASE, "l", Expect::Absent, object("l")).unwrap().revision;
        let mark = |worker: &mut Worker, revision: Option<u64>| {
            let ((mut write, reply), answer) = asked(&NODE, "n", Expect::Absent, object("n"));
            let (namespace, name) = (String::new(), "l".to_owned());
            write.requires = vec![Require::Unchanged { kind: &LEASE, namespace, name, revision }];
            worker.process(vec![(write, reply)]);
            answer.recv().unwrap()
        };
        let renewed = worker.renew("l", object("l"));
        for stale in [Some(lease), None] {
            let refused = mark(&mut worker, stale);
            assert!(matches!(refused, Err(WriteError::Mismatch)), "{refused:?}");
        }
        mark(&mut worker, Some(renewed)).unwrap();
    }

    #[test]
    fn deletion_on_a_full_disk_goes_without_renewals() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        let node = worker.make(&NODE, "n", Expect::Absent, object("n")).unwrap();
        worker.make(&LEASE, "l", Expect::Absent, object("l")).unwrap();
        worker.renew("l", object("l"));
        {
            let mut disk = disk.disk();
            (disk.fails, disk.reserve) = (fault(Sort::Full), true);
            disk.changes.clear();
        }
        worker.flush_at = Instant::now();
        worker.make(&NODE, "n", Expect::Revision(node.revision), None).unwrap();
        assert_eq!(disk.disk().changes, [1], "what is kept for deletions took a renewal");
        assert_eq!(worker.memory.leases().unsaved(), 1);
        disk.fail(None);
        worker.probe();
        worker.flush_at = Instant::now();
        worker.process(Vec::new());
        assert_eq!((worker.memory.leases().unsaved(), disk.disk().changes.last()), (0, Some(&1)));
    }

    fn padded(name: &str, bytes: usize) -> Option<Value> {
        Some(json!({"metadata": {"name": name, "annotations": {"x": "x".repeat(bytes)}}}))
    }

    #[test]
    fn object_without_room_stops_no_other() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        worker.make(&LEASE, "l", Expect::Absent, object("l")).unwrap();
        worker.renew("l", object("l"));
        worker.flush_at = Instant::now();
        disk.disk().room = Some(500_000);
        let sizes = [10, 700_000, 100_000, 20, 900_000];
        let names = ["a", "b", "c", "d", "e"];
        let add = |(name, bytes): (&'static str, usize)| (&NODE, name, Expect::Absent, padded(name, bytes));
        let made = worker.make_all(names.into_iter().zip(sizes).map(add).collect());
        assert_eq!(made.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true, false]);
        assert!(made.iter().flatten().all(|made| worker.memory.get(&NODE, "", &made.name).is_some()));
        assert!(!worker.health.is_failing());
        assert!(worker.health.failing().is_some(), "it is shown");
        // no further attempts while this lasts, and all others are made
        let tries = disk.disk().tries;
        for number in 0..100 {
            worker.make(&NODE, "f", Expect::Absent, padded("f", 900_000)).unwrap_err();
            let name = format!("n{number}");
            worker.make(&NODE, &name, Expect::Absent, object(&name)).unwrap();
        }
        // one commit and one probe more whenever a pause ended, which happens on a slow machine
        assert!(disk.disk().tries - tries < 100 + 20, "{} tries", disk.disk().tries - tries);
        // without room even for small ones, the store counts as full
        disk.disk().room = Some(0);
        let refused = worker.make(&NODE, "g", Expect::Absent, object("g"));
        assert!(matches!(refused, Err(WriteError::Failed(_))), "{refused:?}");
        assert!(worker.health.is_failing());
    }

    #[test]
    fn change_that_the_store_does_not_take_stops_no_other() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        disk.disk().odd = Some("n7");
        let names: Vec<_> = (0..100).map(|number| format!("n{number}")).collect();
        for _ in 0..2 {
            let tries = disk.disk().tries;
            let add = |name: &String| {
                let present = worker.memory.get(&NODE, "", name);
                let expect = present.map_or(Expect::Absent, |found| Expect::Revision(found.revision));
                (asked(&NODE, name, expect, object(name)), name.clone())
            };
            let asked: Vec<_> = names.iter().map(add).collect();
            let (mut writes, mut answers) = (Vec::new(), Vec::new());
            for ((write, answer), name) in asked {
                writes.push(write);
                answers.push((answer, name));
            }
            worker.process(writes);
            for (answer, name) in answers {
                let made = answer.recv().unwrap();
                assert_eq!(made.is_ok(), name != "n7", "{name}: {made:?}");
            }
            assert!(worker.health.failing().is_none());
            assert!(disk.disk().tries - tries < 20, "{} tries", disk.disk().tries - tries);
        }
        // a store that accepts no change is itself at fault
        disk.fail(fault(Sort::Other));
        let refused = worker.make(&NODE, "x", Expect::Absent, object("x"));
        assert!(matches!(refused, Err(WriteError::Failed(_))), "{refused:?}");
        assert!(worker.health.is_failing());
    }

    #[test]
    fn deletions_find_the_reserve_however_ending_objects_grow() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        let mut revision = worker.make(&NODE, "n", Expect::Absent, ending(0)).unwrap().revision;
        {
            let mut disk = disk.disk();
            (disk.fails, disk.reserve) = (fault(Sort::Full), true);
        }
        let (mut bytes, mut grown) = (0, 0);
        let refused = loop {
            match worker.make(&NODE, "n", Expect::Revision(revision), ending(bytes + 4000)) {
                Ok(made) => (revision, bytes) = (made.revision, bytes + 4000),
                Err(refused) => break refused,
            }
            grown += 1;
            assert!(grown < 1000, "it grows for ever");
        };
        assert!(
            matches!(&refused, WriteError::Refused(why) if why.why.contains("have grown")),
            "{refused:?}"
        );
        assert!(grown > 10, "{grown} changes");
        worker.make(&NODE, "n", Expect::Revision(revision), ending(bytes)).unwrap();
        let revision = worker.memory.get(&NODE, "", "n").unwrap().revision;
        worker.make(&NODE, "n", Expect::Revision(revision), None).unwrap();
    }

    #[test]
    fn large_renewals_are_written_in_pieces_and_replace_others() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        let large = |name: &str| {
            let text = "x".repeat(MAX_OBJECT_BYTES - 1000);
            Some(json!({"metadata": {"name": name, "annotations": {"x": text}}}))
        };
        let names = ["a", "b", "c", "d", "e"];
        for name in names {
            worker.make(&LEASE, name, Expect::Absent, large(name)).unwrap();
        }
        for name in names {
            worker.renew(name, large(name));
        }
        disk.disk().changes.clear();
        worker.flush_at = Instant::now();
        while worker.flush_at <= Instant::now() {
            worker.process(Vec::new());
        }
        assert_eq!(disk.disk().changes, [2, 2, 1]);
        // renewed between the judgement of a change and its commit
        let revision = |worker: &Worker, name: &str| worker.memory.get(&LEASE, "", name).unwrap().revision;
        let small = |name| Some(json!({"metadata": {"name": name}, "spec": {"holderIdentity": "x"}}));
        let asked =
            names.map(|name| asked(&LEASE, name, Expect::Revision(revision(&worker, name)), small(name)));
        let (writes, answers): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let (batch, waiting) = worker.stage(&mut writes.into_iter());
        let renewed = names.map(|name| worker.renew(name, large(name)));
        worker.commit(batch, waiting, 0);
        assert!(answers.iter().all(|answer| matches!(answer.recv().unwrap(), Err(WriteError::Mismatch))));
        assert_eq!(names.map(|name| disk.stored(name).unwrap().0), renewed);
        assert_eq!(disk.disk().changes, [2, 2, 1, 5, 2, 2, 1]);
    }

    #[test]
    fn failed_flush_leaves_the_outcome_open_and_ends() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let spec = json!({"holderIdentity": "l", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"});
        let lease = json!({"metadata": {"name": "l"}, "spec": spec});
        write(&writer, &LEASE, "l", Expect::Absent, Some(lease)).unwrap();
        let renews = |time: &str| {
            let body = format!("{{\"spec\":{{\"renewTime\":\"2026-01-01T00:00:{time}.000000Z\"}}}}");
            let renewal = Renewal::read("application/merge-patch+json", body.as_bytes()).unwrap();
            writer.renew_plainly("", "l", &renewal).is_some_and(|renewed| renewed.is_ok())
        };
        assert!(renews("01"));
        disk.fail(Some(StoreError { uncertain: true, ..fault(Sort::Flush).unwrap() }));
        let open = write(&writer, &NODE, "n", Expect::Absent, object("n"));
        assert!(matches!(&open, Err(WriteError::Uncertain(why)) if why == "at fault"), "{open:?}");
        assert_eq!(memory.count(&NODE), 0);
        writer.close();
        assert!(!writer.is_alive());
        assert!(!renews("02"), "nobody will flush it");
        assert_eq!(writer.health().end().as_deref(), Some("at fault"));
        assert_eq!(disk.disk().marks.common.clean, None, "a clean close was recorded");
    }

    #[test]
    fn change_taken_back_before_its_turn_is_not_made() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        disk.block();
        let (answer, answers) = mpsc::channel();
        let submit = |name: &'static str| {
            let (answer, new, expect) = (answer.clone(), object(name), Expect::Absent);
            let (namespace, kind) = (String::new(), &NODE);
            let write = Write {
                kind,
                namespace,
                name: name.to_owned(),
                expect,
                requires: Vec::new(),
                new,
                volatile: false,
                author: None,
            };
            writer.submit(write, Box::new(move |outcome| answer.send((name, outcome.is_ok())).unwrap()))
        };
        let first = submit("first");
        disk.wait_until_it_waits();
        let (second, _third) = (submit("second"), submit("third"));
        assert!(!first.take_back(), "it is under way");
        assert!(second.take_back());
        assert!(writer.health().oldest_unfinished_commit() > Duration::ZERO);
        disk.go_on();
        assert_eq!(answers.iter().take(2).collect::<Vec<_>>(), [("first", true), ("third", true)]);
        assert!(memory.get(&NODE, "", "second").is_none());
    }

    #[test]
    fn start_whose_first_flush_fails_is_given_up() {
        let disk = Fake::default();
        disk.fail(fault(Sort::Flush));
        assert!(Writer::start(Box::new(disk)).is_err_and(|error| error.sort == Sort::Flush));
    }

    #[test]
    fn start_on_a_failing_disk_serves_reads_and_reserves_later() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let kept = write(&writer, &NODE, "kept", Expect::Absent, object("kept")).unwrap();
        // the mark of its end is not written either: the next start begins above all reserved revisions
        disk.fail(fault(Sort::ReadOnly));
        writer.close();
        let before = disk.disk().marks;
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        assert_eq!(memory.get(&NODE, "", "kept").unwrap().revision, kept.revision);
        let refused = write(&writer, &NODE, "kept", Expect::Revision(kept.revision), None);
        assert!(matches!(&refused, Err(WriteError::Refused(_))), "{refused:?}");
        disk.fail(None);
        write_when_possible(&writer, "new");
        assert!(
            disk.disk().marks.common.reserved > before.common.reserved,
            "revisions were handed out unreserved"
        );
        assert!(memory.get(&NODE, "", "new").unwrap().revision > before.common.reserved);
    }

    #[test]
    fn thousand_renewals_complete_while_a_commit_is_stalled() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let mut lease = write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        disk.block();
        let waiting = submit(&writer, &NODE, "n", Expect::Absent, object("n"));
        disk.wait_until_it_waits();
        for _ in 0..1000 {
            lease = renew(&writer, "l", lease.revision).unwrap();
        }
        assert_eq!(memory.get(&LEASE, "", "l").unwrap().revision, lease.revision);
        assert!(waiting.try_recv().is_err() && memory.count(&NODE) == 0, "the commit is not finished");
        disk.go_on();
        waiting.recv().unwrap().unwrap();
        writer.close();
        assert_eq!(disk.stored("l").unwrap().0, lease.revision);
        assert!(matches!(renew(&writer, "l", lease.revision), Err(WriteError::Closed)));
    }

    #[test]
    fn change_of_a_lease_renewed_meanwhile_is_not_made() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let made = write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        let held = Some(json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}));
        let check = |expect: Expect, new: Option<Value>| {
            disk.block();
            let answered = submit(&writer, &LEASE, "l", expect, new);
            disk.wait_until_it_waits();
            let Expect::Revision(revision) = expect else { panic!("it is there") };
            let renewed = renew(&writer, "l", revision).unwrap();
            disk.go_on();
            assert!(matches!(answered.recv().unwrap(), Err(WriteError::Mismatch)));
            // the row that the commit wrote is replaced before the answer
            let (revision, stored) = disk.stored("l").unwrap();
            assert_eq!((revision, &stored["spec"]), (renewed.revision, &Value::Null));
            assert_eq!(memory.get(&LEASE, "", "l").unwrap().revision, renewed.revision);
            renewed.revision
        };
        let revision = check(Expect::Revision(made.revision), held.clone());
        let revision = check(Expect::Revision(revision), None);
        // not overtaken: made, with a revision above those of other Leases that were renewed meanwhile
        let other = write(&writer, &LEASE, "m", Expect::Absent, object("m")).unwrap();
        disk.block();
        let answered = submit(&writer, &LEASE, "l", Expect::Revision(revision), held);
        disk.wait_until_it_waits();
        let other = renew(&writer, "m", other.revision).unwrap();
        disk.go_on();
        let changed = answered.recv().unwrap().unwrap();
        assert!(changed.revision > other.revision);
        assert_eq!(changed.value()["spec"]["holderIdentity"], "x");
        assert_eq!(changed.value()["metadata"]["resourceVersion"], changed.revision.to_string());
        writer.close();
        assert_eq!(disk.stored("l").unwrap().0, changed.revision);
    }

    /// A node that renews without a pause can neither prevent changes of its Lease, nor be kept from renewing
    /// by a stalled disk.
    #[test]
    fn change_of_a_lease_wins_against_a_flood_of_renewals() {
        let disk = Fake::default();
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        for name in ["l", "other"] {
            write(&writer, &LEASE, name, Expect::Absent, object(name)).unwrap();
        }
        let revision = |name| memory.get(&LEASE, "", name).unwrap().revision;
        let mut overtaken = 0;
        let refused = loop {
            disk.block();
            let answered = submit(&writer, &LEASE, "l", Expect::Revision(revision("l")), None);
            disk.wait_until_it_waits();
            let renewed = renew(&writer, "l", revision("l"));
            renew(&writer, "other", revision("other")).unwrap();
            if renewed.is_err() {
                // the disk stalls
                while writer.health().oldest_unfinished_commit() < HOLD {
                    std::thread::yield_now();
                }
                renew(&writer, "l", revision("l")).unwrap();
            }
            disk.go_on();
            assert!(matches!(answered.recv().unwrap(), Err(WriteError::Mismatch)));
            overtaken += 1;
            if let Err(refused) = renewed {
                break refused;
            }
            assert!(overtaken < 64, "renewals always win");
        };
        assert!(matches!(refused, WriteError::Held), "{refused:?}");
        disk.block();
        let answered = submit(&writer, &LEASE, "l", Expect::Revision(revision("l")), None);
        disk.wait_until_it_waits();
        assert!(matches!(renew(&writer, "l", revision("l")), Err(WriteError::Held)));
        disk.go_on();
        answered.recv().unwrap().unwrap();
        // no renewal is held any more, and counting starts anew
        write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        renew(&writer, "l", revision("l")).unwrap();
        disk.block();
        let answered = submit(&writer, &LEASE, "l", Expect::Revision(revision("l")), None);
        disk.wait_until_it_waits();
        renew(&writer, "l", revision("l")).unwrap();
        disk.go_on();
        assert!(matches!(answered.recv().unwrap(), Err(WriteError::Mismatch)));
    }

    #[test]
    fn growth_of_failed_changes_is_not_counted() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        let revision = worker.make(&NODE, "n", Expect::Absent, ending(0)).unwrap().revision;
        {
            let mut disk = disk.disk();
            (disk.fails, disk.reserve) = (fault(Sort::Full), true);
        }
        worker.make(&NODE, "m", Expect::Absent, object("m")).unwrap_err();
        assert!(worker.health.is_failing());
        // a megabyte that is not staged, and one whose commits fail
        for _ in 0..256 {
            let stale = worker.make(&NODE, "n", Expect::Revision(revision + 1), ending(4000));
            assert!(matches!(stale, Err(WriteError::Mismatch)), "{stale:?}");
        }
        disk.disk().reserve = false;
        for _ in 0..256 {
            let (change, _answer) = asked(&NODE, "n", Expect::Revision(revision), ending(4000));
            let (batch, waiting) = worker.stage(&mut std::iter::once(change));
            assert_eq!(waiting.len(), 1);
            assert!(worker.attempt(batch, waiting, 0).is_err());
        }
        disk.disk().reserve = true;
        worker.make(&NODE, "n", Expect::Revision(revision), ending(4000)).unwrap();
    }

    /// Otherwise one could be acknowledged after the last flush, with a revision above the mark of a clean
    /// close.
    #[test]
    fn nothing_is_renewed_once_the_end_is_counted() {
        let mut worker = worker(&Fake::default());
        worker.make(&LEASE, "l", Expect::Absent, object("l")).unwrap();
        let revision = worker.renew("l", object("l"));
        let mut leases = worker.memory.leases_mut();
        assert_eq!(leases.end(), revision);
        let (expect, namespace, name) = (Expect::Revision(revision), String::new(), "l".to_owned());
        let (kind, new, requires) = (&LEASE, object("l"), Vec::new());
        let renewal = Write { kind, namespace, name, expect, requires, new, volatile: true, author: None };
        assert!(matches!(leases.renew(renewal), Err(WriteError::Closed)));
        let body = br#"{"spec":{"renewTime":"2026-01-01T00:00:09.000000Z"}}"#;
        let plain = Renewal::read("application/merge-patch+json", body).unwrap();
        let renewed = leases.renew_plainly(&LEASE, "", "l", &plain);
        assert!(!matches!(renewed, Some(Ok(_))), "{renewed:?}");
        assert_eq!(leases.revision(), revision);
    }

    #[test]
    fn failed_change_of_a_contested_lease_holds_nothing() {
        let disk = Fake::default();
        let mut worker = worker(&disk);
        worker.make(&LEASE, "l", Expect::Absent, object("l")).unwrap();
        for _ in 0..64 {
            let revision = worker.memory.get(&LEASE, "", "l").unwrap().revision;
            let (write, answer) = asked(&LEASE, "l", Expect::Revision(revision), None);
            let (batch, waiting) = worker.stage(&mut vec![write].into_iter());
            if worker.memory.leases().holds_renewals() {
                disk.fail(fault(Sort::Io));
                worker.commit(batch, waiting, 0);
                answer.recv().unwrap().unwrap_err();
                worker.renew("l", object("l"));
                return;
            }
            worker.renew("l", object("l"));
            worker.commit(batch, waiting, 0);
        }
        panic!("renewals always win");
    }

    #[test]
    fn flush_is_written_in_pieces() {
        const LEASES: usize = FLUSH_PIECE * 2 + 10;
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let name = |number: usize| format!("l{number}");
        let answers: Vec<_> = (0..LEASES)
            .map(|number| submit(&writer, &LEASE, &name(number), Expect::Absent, object(&name(number))))
            .collect();
        for (number, answered) in answers.into_iter().enumerate() {
            let made = answered.recv().unwrap();
            // changes beyond the queue's limit are refused
            if let Ok(made) = made {
                renew(&writer, &name(number), made.revision).unwrap();
            }
        }
        let before = disk.disk().changes.len();
        writer.close();
        let pieces = disk.disk().changes.split_off(before);
        assert_eq!(pieces[..2], [FLUSH_PIECE; 2], "{pieces:?}");
    }

    #[test]
    fn start_without_a_reservation_renews_in_a_span_of_its_own() {
        let disk = Fake::default();
        let (writer, _) = Writer::start(Box::new(disk.clone())).unwrap();
        let made = write(&writer, &LEASE, "l", Expect::Absent, object("l")).unwrap();
        let used = renew(&writer, "l", made.revision).unwrap().revision;
        disk.fail(fault(Sort::Full));
        writer.close();
        let mut highest = used;
        for _ in 0..3 {
            // no process starts twice within a millisecond
            let begun = milliseconds(OffsetDateTime::now_utc());
            while milliseconds(OffsetDateTime::now_utc()) == begun {}
            let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
            let refused = write(&writer, &NODE, "n", Expect::Absent, object("n"));
            assert!(matches!(refused, Err(WriteError::Refused(_))), "{refused:?}");
            let first = renew(&writer, "l", memory.get(&LEASE, "", "l").unwrap().revision).unwrap().revision;
            assert!(first > UNRESERVED && first > highest, "{first} after {highest}");
            highest = renew(&writer, "l", first).unwrap().revision;
            writer.close();
        }
        disk.fail(None);
        let (writer, memory) = Writer::start(Box::new(disk.clone())).unwrap();
        let again = renew(&writer, "l", memory.get(&LEASE, "", "l").unwrap().revision).unwrap();
        assert!(again.revision > used && again.revision < UNRESERVED, "{}", again.revision);
        // the history after a revision between the two starts is unknown
        let watch = |from| memory.watch(&LEASE, Selection::all(""), Some(from), None).map(|_| ());
        assert!(matches!(watch(highest), Err(WatchRefused::TooOld(_))));
        assert!(matches!(watch(again.revision + 1), Err(WatchRefused::TooLarge(_))));
        assert_eq!(watch(again.revision), Ok(()));
    }
}
