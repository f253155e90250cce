//! The handle of a running hub: its objects in memory, its writer, its audit log.
//!
//! Owns: opening and closing, reading, subscriptions, and one write at a time. Always holds: a write returns once it is durable (a
//! renewal at once). Leaves to others: what a request means and when it is tried again (`requests`).

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::controllers::daemon_sets::Defaults;
use kedge_hub_core::controllers::{root_certificate, service_accounts};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::oneshot;

use kedge_hub_core::kinds::{
    self, CONFIG_MAP, Kind, NAMESPACE, POD, SERVICE, SERVICE_ACCOUNT, schema, service, text,
};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::{Fresh, Objects, new_object};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Changed, Expect, Query, Start, Write, WriteError};

use crate::audit::Audit;
use crate::fresh::fresh;
use crate::guard::Loops;
use crate::locks::KeyedLocks;
use crate::memory::{Memory, News, Watch};
use crate::pki::Tokens;
use crate::store::disk::DiskStore;
use crate::store::writer::{Outcome, Writer};
use crate::store::{self, OpenError};

/// A request waits this long for the disk: half of upstream's limit for a request, so that the answer is there before a client's own
/// patience ends.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// All state of a running hub. Shared as `Arc<Hub>`.
#[derive(Debug)]
pub struct Hub {
    memory: Arc<Memory>,
    writer: Writer,
    locks: KeyedLocks,
    audit: Option<Audit>,
    tokens: OnceLock<Tokens>,
    rollouts: OnceLock<Defaults>,
    names: OnceLock<Vec<String>>,
    loops: Arc<Loops>,
}

impl Hub {
    /// Opens the data directory (created if missing), loads everything, and creates missing system namespaces if the disk takes writes.
    /// Blocks for as long as that takes; may be called from anywhere.
    ///
    /// # Errors
    /// Another process has the directory, it cannot be used, or the store in it is damaged: each text says what to do.
    pub fn open(data_dir: &Path) -> Result<Arc<Hub>, OpenError> {
        let store = DiskStore::open(data_dir)?;
        Hub::start(Box::new(store), Some(data_dir))
    }

    /// The same over another implementation of the store, for tests.
    ///
    /// # Errors
    /// As [`Hub::open`].
    pub fn open_with(store: Box<dyn store::Store>) -> Result<Arc<Hub>, OpenError> {
        Hub::start(store, None)
    }

    fn start(store: Box<dyn store::Store>, audited: Option<&Path>) -> Result<Arc<Hub>, OpenError> {
        let (writer, memory) = Writer::start(store).map_err(OpenError::Engine)?;
        let open = |directory: &Path| {
            let health = writer.health().clone();
            Audit::open(directory, move || health.is_full())
                .map_err(|error| OpenError::Directory(directory.join("audit.log"), error))
        };
        let audit = audited.map(open).transpose()?;
        let loops = Arc::new(Loops::default());
        writer.health().report_turns(loops.watch("store"));
        let (tokens, rollouts, names) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let locks = KeyedLocks::default();
        let hub = Arc::new(Hub { memory, writer, locks, audit, tokens, rollouts, names, loops });
        hub.make_namespaces();
        Ok(hub)
    }

    /// Creates the system namespaces before the first request, so that the version which a client sees at the start stays the latest
    /// until a client changes something.
    fn make_namespaces(&self) {
        let account = |name| json!({"metadata": {"name": service_accounts::NAME, "namespace": name}});
        let missing = kinds::namespace::SYSTEM.iter().flat_map(|name| {
            [(&NAMESPACE, json!({"metadata": {"name": name}})), (&SERVICE_ACCOUNT, account(name))]
        });
        self.make_all(missing);
    }

    /// Creates missing ConfigMaps with the CA in the system namespaces, for the same reason.
    pub fn make_root_certificates(&self, certificate: &str) {
        let map = |name: &&str| (&CONFIG_MAP, root_certificate::config_map(name, certificate));
        self.make_all(kinds::namespace::SYSTEM.iter().map(map));
    }

    /// Creates the objects that are missing. All are submitted before waiting for one: that takes one commit or two, not one each. A disk
    /// that takes no write keeps no hub from its start: controllers try again what fails here.
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

    /// Submits an object to be created; the result comes later. `None`: it exists.
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

    /// Shows clients the Service `kubernetes`, in memory only. Its uid and age follow from those of its namespace, so that they stay over
    /// restarts; without one, which only a disk that took no write at the first start explains, the next start shows it. Call it once,
    /// before requests are served.
    pub fn publish_service(&self, address: IpAddr, port: u16, target_port: u16) {
        let Some(namespace) = self.get(&NAMESPACE, "", "default").map(|found| found.value()) else { return };
        let created = schema::parse_time(kinds::text(&namespace, &["metadata", "creationTimestamp"]));
        let mut made = Fresh { now: created.unwrap_or(OffsetDateTime::UNIX_EPOCH), random: [0; 21] };
        let uid = kinds::text(&namespace, &["metadata", "uid"]).replace('-', "");
        for (byte, pair) in made.random.iter_mut().zip(uid.as_bytes().chunks(2)) {
            let number = std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
            // another uid than the namespace's own
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

    /// The objects of a kind and all later changes but renewals, without a gap.
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

    /// From now on the hub issues tokens of service accounts, and believes them.
    pub fn use_tokens(&self, tokens: Tokens) {
        // a second key is ignored: tokens of the first are around
        drop(self.tokens.set(tokens));
    }

    /// The key of tokens, if the hub has one.
    pub fn tokens(&self) -> Option<&Tokens> {
        self.tokens.get()
    }

    /// What holds for DaemonSets that do not say otherwise, from before the controllers start.
    pub fn use_rollout_defaults(&self, defaults: Defaults) {
        // the first ones hold: controllers run by them
        let _ = self.rollouts.set(defaults);
    }

    pub(crate) fn rollout_defaults(&self) -> Defaults {
        self.rollouts.get().copied().unwrap_or_default()
    }

    /// The names and addresses by which clients reach the hub: those of its certificate.
    pub fn use_names(&self, names: Vec<String>) {
        // the first ones hold: a certificate has them
        drop(self.names.set(names));
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

    /// One write: a renewal at once, without waiting for anything; others through the group-commit thread.
    pub(crate) async fn write(&self, write: Write) -> Outcome {
        if write.volatile {
            return self.writer.renew(write);
        }
        let (answer, answered) = oneshot::channel();
        // the client may be gone
        let ticket = self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
        match tokio::time::timeout(WRITE_TIMEOUT, answered).await {
            Ok(answer) => answer.unwrap_or(Err(WriteError::Closed)),
            // one that still waits for its turn must not be made minutes after its answer
            Err(_) if ticket.take_back() => Err(WriteError::TakenBack),
            Err(_) => Err(WriteError::TimedOut),
        }
    }

    /// Ends all watches, writes what is only in memory, and closes the store. Blocks until that is done.
    pub fn close(&self) {
        self.memory.close();
        self.writer.close();
        if let Some(audit) = &self.audit {
            audit.close();
        }
    }
}

impl Objects for Hub {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        Hub::get(self, kind, namespace, name)
    }

    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.list(&POD, namespace)
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
    /// The next change; `None` when the subscriber fell behind or the hub closes: then subscribe again (or end).
    /// Safe to cancel.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        let receiver = &mut self.watch.as_mut()?.receiver;
        loop {
            if let News::Change(waiting) = receiver.recv().await? {
                return Some(waiting.event);
            }
        }
    }
}
