//! The handle of a running hub: its objects in memory, its writer, its audit log.
//!
//! Owns: opening and closing, reading, subscriptions, and one write at a time. Always holds: a write returns
//! once it is durable (a renewal at once). Leaves to others: the meaning of requests, and their retries
//! (`requests`).

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::controllers::daemon_sets::Defaults;
use kedge_hub_core::controllers::{Clock, ClockFault, bootstrap_tokens, root_certificate, service_accounts};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::oneshot;

use kedge_hub_core::identity::default_roles;
use kedge_hub_core::identity::denied::{self, DENY_LIST_NAME, DENY_LIST_NAMESPACE};
use kedge_hub_core::kinds::{
    self, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP, Kind, NAMESPACE, NODE, POD, PRIORITY_CLASS,
    SERVICE, SERVICE_ACCOUNT, priority_class, schema, service, text,
};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::{Fresh, Objects, new_object};
use kedge_hub_core::restored;
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Changed, Expect, Query, Start, UNRESERVED, Write, WriteError};

use crate::audit::Audit;
use crate::clock;
use crate::fresh::fresh;
use crate::guard::Loops;
use crate::locks::KeyedLocks;
use crate::memory::{Memory, News, Watch};
use crate::pki::{IssueNumbers, Known, Role, Tokens};
use crate::store::disk::DiskStore;
use crate::store::marker::Marker;
use crate::store::writer::{Outcome, Writer};
use crate::store::{self, OpenError};

/// Longest time that a request waits for the disk: half of upstream's limit for a request, so that the hub
/// answers before the client gives up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// All state of a running hub. Shared as `Arc<Hub>`.
#[derive(Debug)]
pub struct Hub {
    memory: Arc<Memory>,
    writer: Writer,
    locks: KeyedLocks,
    audit: Option<Audit>,
    marker: Option<Arc<Marker>>,
    numbers: Arc<IssueNumbers>,
    clock: Mutex<Clock>,
    begun: Instant,
    tokens: OnceLock<Tokens>,
    rollouts: OnceLock<Defaults>,
    names: OnceLock<Vec<String>>,
    authorities: OnceLock<Authorities>,
    fenced: AtomicBool,
    last_backup: Mutex<LastBackup>,
    loops: Arc<Loops>,
}

/// The time of the last backup (Unix time), `Some(None)` if there was none; `None`: unknown.
pub(crate) type LastBackup = Option<Option<i64>>;

/// The certificate authorities of a running hub.
#[derive(Debug)]
pub struct Authorities {
    pub all: Vec<Known>,
    /// The digest of the set that is trusted.
    pub bundle: String,
}

impl Hub {
    /// Opens the data directory (created if missing), loads everything, and creates missing system namespaces
    /// if the disk can be written. Blocks until then; may be called from anywhere.
    ///
    /// # Errors
    /// Another process uses the directory, it cannot be used, or its store is damaged: each text tells the
    /// operator what to do.
    pub fn open(data_dir: &Path) -> Result<Arc<Hub>, OpenError> {
        let store = DiskStore::open(data_dir)?;
        let marker = store.marker();
        Hub::start(Box::new(store), Some((data_dir, marker)))
    }

    /// The same over another implementation of the store, for tests.
    ///
    /// # Errors
    /// As [`Hub::open`].
    pub fn open_with(store: Box<dyn store::Store>) -> Result<Arc<Hub>, OpenError> {
        Hub::start(store, None)
    }

    fn start(
        store: Box<dyn store::Store>,
        directory: Option<(&Path, Arc<Marker>)>,
    ) -> Result<Arc<Hub>, OpenError> {
        let (writer, memory) = Writer::start(store).map_err(OpenError::Engine)?;
        let open = |directory: &Path| {
            let health = writer.health().clone();
            Audit::open(directory, move || health.is_full())
                .map_err(|error| OpenError::Directory(directory.join("audit.log"), error))
        };
        let audit = directory.as_ref().map(|(directory, _)| open(directory)).transpose()?;
        let numbers = match &directory {
            Some((directory, _)) => IssueNumbers::open(directory)
                .map_err(|error| OpenError::File(directory.join("pki/issue-number"), error))?,
            None => IssueNumbers::default(),
        };
        let numbers = Arc::new(numbers);
        let marker = directory.map(|(_, marker)| marker);
        let loops = Arc::new(Loops::default());
        writer.health().report_turns(loops.watch("store"));
        let (begun, now) = (Instant::now(), OffsetDateTime::now_utc());
        let clock = Mutex::new(Clock::new(
            Duration::ZERO,
            now,
            Clock::newest(clock::noted(&memory), newest_time(&memory)),
        ));
        let (tokens, rollouts, names) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let hub = Arc::new(Hub {
            memory,
            writer,
            locks: KeyedLocks::default(),
            audit,
            marker,
            numbers,
            clock,
            begun,
            tokens,
            rollouts,
            names,
            authorities: OnceLock::new(),
            fenced: AtomicBool::new(false),
            last_backup: Mutex::default(),
            loops,
        });
        hub.put_back_denials();
        hub.mark_restored();
        hub.make_namespaces();
        Ok(hub)
    }

    /// Puts denials back that the directory's marker has and the store lacks: only a command ends one.
    fn put_back_denials(&self) {
        let Some(known) = self.marker.as_ref().and_then(|marker| marker.known()) else { return };
        let found = self.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        let mut list = found.as_ref().map_or_else(denied::empty_list, |found| found.value());
        let back = denied::unite(&mut list, &known.list);
        if back.is_empty() {
            return;
        }
        let (issued, denials) = (self.numbers.highest(), denied::shown(back.iter()));
        log::error!(
            "the store lacked denials that were in force: {denials}; they are put back, and are lifted by commands only"
        );
        let made = match found {
            Some(_) => Ok(list),
            None => fresh().and_then(|fresh| new_object(&CONFIG_MAP, list, &fresh)),
        };
        let (answer, answered) = std::sync::mpsc::channel();
        let written = made.map(|new| {
            let write = Write {
                kind: &CONFIG_MAP,
                namespace: DENY_LIST_NAMESPACE.to_owned(),
                name: DENY_LIST_NAME.to_owned(),
                expect: found.map_or(Expect::Absent, |found| Expect::Revision(found.revision)),
                requires: Vec::new(),
                new: Some(new),
                volatile: false,
                author: None,
            };
            self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
            answered.recv()
        });
        match written {
            Ok(Ok(Ok(_))) => {}
            why => log::error!("cannot put back denials of before issue number {issued}: {why:?}"),
        }
    }

    /// Marks the Nodes after a restore, before any node can read its own. If this start is killed, or the
    /// disk takes no writes, the next one continues.
    fn mark_restored(&self) {
        let Some(marker) = &self.marker else { return };
        let id = marker.known().map_or(0, |known| known.restored);
        if id == 0 {
            return;
        }
        let mut awaited = Vec::new();
        for node in self.list(&NODE, "") {
            let mut value = node.value();
            if !restored::mark(&mut value, id) {
                continue;
            }
            let (answer, answered) = std::sync::mpsc::channel();
            let write = Write {
                kind: &NODE,
                namespace: String::new(),
                name: node.name.to_string(),
                expect: Expect::Revision(node.revision),
                requires: Vec::new(),
                new: Some(value),
                volatile: false,
                author: None,
            };
            self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
            awaited.push(answered);
        }
        let marked = awaited.len();
        let failed = awaited.into_iter().filter(|answered| !matches!(answered.recv(), Ok(Ok(_)))).count();
        if failed > 0 {
            log::error!(
                "{failed} of {marked} restored nodes may go back to older configurations: they could not be marked"
            );
            return;
        }
        log::info!("{marked} restored nodes report before they get the assignment of the backup");
        marker.change(|known| known.restored = 0);
    }

    /// Creates the system namespaces and the default roles before the first request. So the version that a
    /// client sees at the start stays the latest until a client changes something.
    fn make_namespaces(&self) {
        let account = |name| json!({"metadata": {"name": service_accounts::NAME, "namespace": name}});
        let missing = kinds::namespace::SYSTEM.iter().flat_map(|name| {
            [(&NAMESPACE, json!({"metadata": {"name": name}})), (&SERVICE_ACCOUNT, account(name))]
        });
        let roles = default_roles::cluster_roles().into_iter().map(|role| (&CLUSTER_ROLE, role));
        let bindings = default_roles::cluster_role_bindings();
        let bindings = bindings.into_iter().map(|binding| (&CLUSTER_ROLE_BINDING, binding));
        let classes = priority_class::system_classes().map(|(_, class)| (&PRIORITY_CLASS, class));
        self.make_all(missing.chain(roles).chain(bindings).chain(classes));
    }

    /// Creates missing ConfigMaps with the CA in the system namespaces, for the same reason.
    pub fn make_root_certificates(&self, certificate: &str) {
        let map = |name: &&str| (&CONFIG_MAP, root_certificate::config_map(name, certificate));
        self.make_all(kinds::namespace::SYSTEM.iter().map(map));
    }

    /// Brings `kube-public/cluster-info` up to date, for the same reason: the hub's address may have changed.
    pub fn make_cluster_info(&self, kubeconfig: &str) {
        let Some(value) = bootstrap_tokens::due(self, kubeconfig, OffsetDateTime::now_utc()) else { return };
        let meta = |field| text(&value, &["metadata", field]).to_owned();
        let (namespace, name) = (meta("namespace"), meta("name"));
        let Some(found) = self.get(&CONFIG_MAP, &namespace, &name) else {
            return self.make_all([(&CONFIG_MAP, value)].into_iter());
        };
        let (expect, new) = (Expect::Revision(found.revision), Some(value));
        let (requires, kind) = (Vec::new(), &CONFIG_MAP);
        let write = Write { kind, namespace, name, expect, requires, new, volatile: false, author: None };
        let (answer, answered) = std::sync::mpsc::channel();
        self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
        if !matches!(answered.recv(), Ok(Ok(_))) {
            log::warn!("cannot bring kube-public/cluster-info up to date, trying again");
        }
    }

    /// Creates the objects that are missing. All are submitted before waiting for one: that takes one commit
    /// or two, not one each. A hub starts even if the disk cannot be written: controllers repeat what fails
    /// here.
    fn make_all(&self, objects: impl Iterator<Item = (&'static Kind, Value)>) {
        let awaited: Vec<_> = objects.map(|(kind, value)| (kind, self.make_missing(kind, value))).collect();
        for (kind, made) in awaited {
            let why = match made.map(|made| made.map(|answered| answered.recv())) {
                Ok(None | Some(Ok(Ok(_)))) => continue,
                Ok(Some(Ok(Err(error)))) => format!("{error:?}"),
                Ok(Some(Err(_))) => "the writer ended".to_owned(),
                Err(error) => error.message,
            };
            log::warn!("cannot make a missing {} of the hub's own, trying again: {why}", kind.kind);
        }
    }

    /// Submits the creation of an object; the result arrives through the returned receiver. `None`: the
    /// object exists.
    fn make_missing(
        &self,
        kind: &'static Kind,
        value: Value,
    ) -> Result<Option<std::sync::mpsc::Receiver<Outcome>>, ApiError> {
        let meta = |field| text(&value, &["metadata", field]).to_owned();
        let (namespace, name) = (meta("namespace"), meta("name"));
        if self.get(kind, &namespace, &name).is_some() {
            return Ok(None);
        }
        let value = fresh().and_then(|fresh| new_object(kind, value, &fresh))?;
        let (answer, answered) = std::sync::mpsc::channel();
        let write = Write {
            kind,
            namespace,
            name,
            expect: Expect::Absent,
            requires: Vec::new(),
            new: Some(value),
            volatile: false,
            author: None,
        };
        self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
        Ok(Some(answered))
    }

    /// Shows clients the Service `kubernetes`, in memory only. Its uid and age are derived from those of its
    /// namespace, so that they stay the same across restarts; without a namespace, which happens only if the
    /// disk could not be written at the first start, the next start shows the Service. Must be called once,
    /// before requests are served.
    pub fn publish_service(&self, address: IpAddr, port: u16, target_port: u16) {
        let Some(namespace) = self.get(&NAMESPACE, "", "default").map(|found| found.value()) else { return };
        let created = schema::parse_time(kinds::text(&namespace, &["metadata", "creationTimestamp"]));
        let mut made = Fresh { now: created.unwrap_or(OffsetDateTime::UNIX_EPOCH), random: [0; 21] };
        let uid = kinds::text(&namespace, &["metadata", "uid"]).replace('-', "");
        for (byte, pair) in made.random.iter_mut().zip(uid.as_bytes().chunks(2)) {
            let number = std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
            // the uid must differ from the namespace's own
            *byte = !number.unwrap_or(0);
        }
        let revision = self.revision(&SERVICE);
        let service = service::kubernetes(address, port, target_port);
        let made = new_object(&SERVICE, service, &made).ok().and_then(|mut value| {
            value["metadata"]["resourceVersion"] = revision.to_string().into();
            Object::new(&SERVICE, &value, revision)
        });
        let Some(made) = made else { return };
        let event = Event { revision, old: None, new: Some(Arc::new(made)), last: None };
        self.memory.publish(vec![Changed { kind: &SERVICE, event: Arc::new(event), author: None }]);
    }

    /// One object; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.memory.get(kind, namespace, name)
    }

    /// All objects of a kind in a namespace, in all namespaces if it is empty.
    pub fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        let page = self.memory.list(kind, &Selection::all(namespace), &Query::default());
        page.map(|page| page.objects).unwrap_or_default()
    }

    /// The latest revision of a kind.
    pub fn revision(&self, kind: &Kind) -> u64 {
        self.memory.revision(kind)
    }

    /// The objects of a kind and all later changes except renewals, without a gap.
    pub fn subscribe(&self, kind: &'static Kind) -> Subscription {
        match self.memory.watch(kind, Selection::default(), None, None) {
            Ok((Start::Objects(snapshot), revision, watch)) => {
                Subscription { snapshot, revision, watch: Some(watch) }
            }
            // closing: the subscriber gets the objects, then the end, and subscribes again
            _ => Subscription { snapshot: self.list(kind, ""), revision: self.revision(kind), watch: None },
        }
    }

    /// The audit log; a hub over another store has none.
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// The data directory's memory of its store; a hub over another store has none.
    pub(crate) fn marker(&self) -> Option<&Arc<Marker>> {
        self.marker.as_ref()
    }

    /// The counter of what was issued; in memory alone for a hub over another store.
    pub(crate) fn issue_numbers(&self) -> &Arc<IssueNumbers> {
        &self.numbers
    }

    /// Notes in the directory's marker which issue numbers were handed out, in case their own file is lost.
    /// Blocks for the disk.
    pub fn note_issued(&self) {
        if let Some(marker) = &self.marker {
            let issued = self.numbers.refreshed();
            marker.change(|known| known.issued = known.issued.max(issued));
        }
    }

    /// Handles a version that a client names: all versions that this hub handed out are below the latest.
    pub(crate) fn meet_version(&self, kind: &Kind, version: u64) {
        // after a start on a disk that could not be written, Leases have versions above all others
        if !kind.is_renewed() && version > self.revision(kind) && version < UNRESERVED {
            self.writer.raise_above(version);
        }
    }

    /// True if old objects may be deleted by the time `wall`.
    pub(crate) fn believes_clock(&self, wall: OffsetDateTime) -> bool {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.is_believed(self.begun.elapsed(), wall)
    }

    /// Why the wall clock is wrong now, if it is.
    pub(crate) fn clock_fault(&self) -> Option<ClockFault> {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.fault(self.begun.elapsed(), OffsetDateTime::now_utc())
    }

    /// The newest time that was not wrong; `None` if this hub never had one.
    pub(crate) fn newest_time(&self) -> Option<OffsetDateTime> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).trusted()
    }

    pub(crate) fn last_backup(&self) -> LastBackup {
        *self.last_backup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn show_last_backup(&self, last: LastBackup) {
        *self.last_backup.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    /// From now on the hub issues tokens of service accounts, and accepts them.
    pub fn use_tokens(&self, tokens: Tokens) {
        // a second key is ignored: tokens signed with the first are in use
        drop(self.tokens.set(tokens));
    }

    /// The key that signs tokens, if the hub has one.
    pub fn tokens(&self) -> Option<&Tokens> {
        self.tokens.get()
    }

    /// Sets the rollout defaults for DaemonSets that set none, before the controllers start.
    pub fn use_rollout_defaults(&self, defaults: Defaults) {
        // a second call is ignored: controllers already use the first defaults
        let _ = self.rollouts.set(defaults);
    }

    pub(crate) fn rollout_defaults(&self) -> Defaults {
        self.rollouts.get().copied().unwrap_or_default()
    }

    /// The names and addresses by which clients reach the hub: those of its certificate.
    pub fn use_names(&self, names: Vec<String>) {
        // a second call is ignored: a certificate has the first names
        drop(self.names.set(names));
    }

    /// From now on the hub is read-only but for the renewals of Leases, because another hub takes its place.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// Takes the certificate authorities that this hub has opened.
    pub fn use_authorities(&self, authorities: Authorities) {
        // a second call is ignored: the authorities of a start hold until the next one
        drop(self.authorities.set(authorities));
    }

    /// The certificate authorities; `None` before they are opened.
    pub(crate) fn authorities(&self) -> Option<&Authorities> {
        self.authorities.get()
    }

    /// The end of everything that an authority of this name signed, in Unix time: its retirement, or
    /// `i64::MAX` if that time is unknown. `None`: its certificates count.
    pub(crate) fn ended(&self, authority: Option<&str>) -> Option<i64> {
        let authorities = self.authorities()?;
        let named = authorities.all.iter().find(|known| Some(known.name.as_str()) == authority);
        match named.map(|known| (known.role, known.retired_at)) {
            Some((Role::Retired, at)) => Some(at.unwrap_or(i64::MAX)),
            Some(_) => None,
            None => Some(i64::MAX),
        }
    }

    pub(crate) fn names(&self) -> &[String] {
        self.names.get().map_or(&[], Vec::as_slice)
    }

    /// The loops that must make progress while the hub runs.
    pub(crate) fn loops(&self) -> &Arc<Loops> {
        &self.loops
    }

    /// The memory behind the hub, for lists and watches with selectors.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The writer behind the hub, for its counters and its end.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    pub(crate) fn locks(&self) -> &KeyedLocks {
        &self.locks
    }

    /// Performs one write: a renewal at once, without waiting for anything; others through the group-commit
    /// thread.
    pub(crate) async fn write(&self, write: Write) -> Outcome {
        if write.volatile {
            return self.writer.renew(write);
        }
        let (answer, answered) = oneshot::channel();
        // the client may have disconnected
        let ticket = self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
        match tokio::time::timeout(WRITE_TIMEOUT, answered).await {
            Ok(answer) => answer.unwrap_or(Err(WriteError::Closed)),
            // a write that is still queued must not be made minutes after the client got its answer
            Err(_) if ticket.take_back() => Err(WriteError::TakenBack),
            Err(_) => Err(WriteError::TimedOut),
        }
    }

    /// Ends all watches, writes all state that is only in memory, and closes the store. Blocks until that is
    /// done.
    pub fn close(&self) {
        self.memory.close();
        self.writer.close();
        if let Some(audit) = &self.audit {
            audit.close();
        }
    }
}

/// The latest time that the hub itself wrote to the store. Searches the encoded text: a quote inside a string
/// would be escaped, so the field's name matches nowhere else.
fn newest_time(memory: &Memory) -> Option<OffsetDateTime> {
    const FIELD: &[u8] = b"\"creationTimestamp\":\"";
    let of = |object: &Object| {
        let at = object.json.windows(FIELD.len()).position(|window| window == FIELD)?;
        let time = object.json.get(at + FIELD.len()..)?.split(|byte| *byte == b'"').next()?;
        schema::parse_time(std::str::from_utf8(time).ok()?)
    };
    let all = |kind: &'static Kind| memory.list(kind, &Selection::default(), &Query::default()).ok();
    let newest = |kind: &'static Kind| all(kind)?.objects.iter().filter_map(|object| of(object)).max();
    kinds::KINDS.iter().copied().filter_map(newest).max()
}

impl Objects for Hub {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        Hub::get(self, kind, namespace, name)
    }

    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.list(&POD, namespace)
    }

    fn all_of(&self, kind: &'static Kind) -> Vec<Arc<Object>> {
        self.list(kind, "")
    }
}

/// A snapshot of a kind and the changes after it.
#[derive(Debug)]
pub struct Subscription {
    /// The objects when the subscription began.
    pub snapshot: Vec<Arc<Object>>,
    /// The revision of the snapshot.
    pub revision: u64,
    watch: Option<Watch>,
}

impl Subscription {
    /// Returns the next change; `None` when the subscriber fell behind or the hub closes: then subscribe
    /// again (or end). Safe to cancel.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        let receiver = &mut self.watch.as_mut()?.receiver;
        loop {
            if let News::Event(event) = receiver.recv().await? {
                return Some(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Pki;

    /// Starts a hub as the program does; returns the first error.
    fn start(directory: &Path) -> Result<(), String> {
        let now = OffsetDateTime::now_utc();
        let hub = Hub::open(directory).map_err(|error| error.to_string())?;
        let opened = Pki::open(directory, &["localhost".to_owned()], now).and_then(|pki| {
            pki.publish("https://localhost:1", "https://localhost:1", now)?;
            pki.tokens("https://localhost:1")
        });
        hub.close();
        opened.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn denial_that_the_store_lacks_is_put_back() {
        let folder = kedge_rig::Scratch::new("hub-put-back").unwrap();
        start(&folder).unwrap();
        let marker = Marker::open(&folder).unwrap();
        let list = json!({"data": {"node.thief": "", "user.jane": "left"}});
        marker.change(|known| known.note_list(known.list_revision, &list));
        for _ in 0..2 {
            let hub = Hub::open(&folder).unwrap();
            let found = hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME).unwrap().value();
            assert_eq!(denied::maps(&found), list);
            hub.close();
        }
    }

    /// A read of one of them would hang, or fill the memory.
    #[test]
    fn something_else_in_place_of_a_file_is_named_or_does_without() {
        let folder = kedge_rig::Scratch::new("hub-strange-files").unwrap();
        let good = folder.join("good");
        start(&good).unwrap();
        let refused = ["state.db", "state.db-wal", "state.db-shm", "lock", "pki/ca.pem", "pki/store-marker"];
        let done_without = [
            "reserve",
            "audit.log",
            "audit-reads.log",
            "audit-others.log",
            "audit-refused.log",
            "pki/tokens.pem",
        ];
        let made_anew = ["ca.crt", "server-url", "admin.kubeconfig", "pki/serving.pem", "pki/admin.pem"];
        type Put = fn(&Path);
        let put: [(&str, Put); 3] = [
            ("pipe", |path| {
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.unwrap().success());
            }),
            ("link", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
            ("directory", |path| std::fs::create_dir(path).unwrap()),
        ];
        let all = refused.iter().chain(&done_without).chain(&made_anew);
        for (name, (what, put)) in all.flat_map(|name| put.map(|put| (*name, put))) {
            let data = folder.join("data");
            drop(std::fs::remove_dir_all(&data));
            let copied = std::process::Command::new("cp").arg("-a").arg(&good).arg(&data).status();
            assert!(copied.unwrap().success());
            drop(std::fs::remove_file(data.join(name)));
            put(&data.join(name));
            let outcome = start(&data);
            let must_fail = refused.contains(&name) || (made_anew.contains(&name) && what == "directory");
            match outcome {
                Ok(()) => assert!(!must_fail, "{name}, {what}"),
                Err(error) => {
                    assert!(must_fail, "{name}, {what}: {error}");
                    assert!(error.contains(name), "{name}, {what}: {error}");
                }
            }
        }
    }
}
