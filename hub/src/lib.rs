//! The hub: a small, durable Kubernetes API server for a fleet of edge devices.
//!
//! The semantics of the API (kinds, patches, apply, selectors, authorization) are in `kedge_hub_core`, which does no IO.
//!
//! | module | owns |
//! |---|---|
//! | `store`, `memory` | the durable copy behind one group-commit writer; all reads and watches from memory |
//! | `verbs` | create, update, patch, apply, delete: read, compute, write, and retry after a concurrent write |
//! | `garbage`, `accounts`, `signer`, `lifecycle` | the controllers |
//! | `audit` | the audit log |
//! | `server` | HTTP over TLS, discovery, OpenAPI, tables |
//! | `pki`, `flags`, `logging` | certificates, the command line, the log |
//!
//! # For controllers inside the hub
//! [`Hub`] is the API without HTTP: [`Hub::get`], [`Hub::list`], [`Hub::subscribe`] read from memory;
//! [`Hub::create`], [`Hub::update`], [`Hub::delete`] write with the same rules as a client's request and return once the
//! change is durable. A subscription starts with a snapshot and then yields every change once and in order.
//!
//! The hub never dials a node, and no node's clock is ever compared with ours.

pub mod audit;
pub mod controllers;
pub mod flags;
pub mod logging;
pub mod memory;
pub mod pki;
pub mod probe;
pub mod requests;
pub mod server;
pub mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kedge_hub_core::controllers::service_accounts;
use kedge_hub_core::kinds::{self};
use kedge_hub_core::{ApiError, Event, Object, identity};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::memory::{Memory, Watch};
use crate::store::sqlite::Sqlite;
use crate::store::writer::{Outcome, Writer};
use kedge_hub_core::kinds::{Kind, NAMESPACE, SERVICE_ACCOUNT};
use kedge_hub_core::requests::{Answer, DeleteOptions, Objects, Part, Place, WriteOptions, new_object};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Expect, Query, Start, Write, WriteError};

pub use crate::store::OpenError;

/// A request waits this long for the disk; upstream's limit for a request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// All state of a running hub. Shared as `Arc<Hub>`.
#[derive(Debug)]
pub struct Hub {
    memory: Arc<Memory>,
    writer: Writer,
    locks: requests::KeyedLocks,
    audit: Option<audit::Audit>,
}

impl Hub {
    /// Opens the data directory (created if missing), loads everything, and creates missing system namespaces.
    /// Blocks for as long as that takes; may be called from anywhere.
    ///
    /// # Errors
    /// Another process has the directory, it cannot be used, or the store in it is damaged: each text says what to do.
    pub fn open(data_dir: &Path) -> Result<Arc<Hub>, OpenError> {
        let store = Sqlite::open(data_dir)?;
        let audit = audit::Audit::open(data_dir)
            .map_err(|error| OpenError::Directory(data_dir.join("audit.log"), error))?;
        Hub::start(Box::new(store), Some(audit))
    }

    /// The same over another implementation of the store, for tests.
    ///
    /// # Errors
    /// As [`Hub::open`].
    pub fn open_with(store: Box<dyn store::Store>) -> Result<Arc<Hub>, OpenError> {
        Hub::start(store, None)
    }

    fn start(store: Box<dyn store::Store>, audit: Option<audit::Audit>) -> Result<Arc<Hub>, OpenError> {
        let (writer, memory) = Writer::start(store).map_err(OpenError::Engine)?;
        let hub = Arc::new(Hub { memory, writer, locks: requests::KeyedLocks::default(), audit });
        hub.make_namespaces()?;
        Ok(hub)
    }

    /// Creates the system namespaces before the first request, so that the version which a client sees at the start stays the latest
    /// until a client changes something. All are submitted before waiting for one: that takes one commit or two, not eight.
    fn make_namespaces(&self) -> Result<(), OpenError> {
        let mut awaited = Vec::new();
        for name in kinds::namespace::SYSTEM {
            awaited.extend(self.make_missing(&NAMESPACE, "", name)?);
            awaited.extend(self.make_missing(&SERVICE_ACCOUNT, name, service_accounts::NAME)?);
        }
        for answered in awaited {
            match answered.recv() {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(engine_error(&format!("{error:?}"))),
                Err(_) => return Err(engine_error("the writer ended")),
            }
        }
        Ok(())
    }

    /// Submits an object to be created; the result comes later. `None`: it exists.
    fn make_missing(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<std::sync::mpsc::Receiver<Outcome>>, OpenError> {
        if self.get(kind, namespace, name).is_some() {
            return Ok(None);
        }
        let mut value = json!({"metadata": {"name": name}});
        if kind.namespaced {
            value["metadata"]["namespace"] = namespace.into();
        }
        let value = requests::fresh()
            .and_then(|fresh| new_object(kind, value, &fresh))
            .map_err(|error| engine_error(&error.message))?;
        let (answer, answered) = std::sync::mpsc::channel();
        let write = Write {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            expect: Expect::Absent,
            new: Some(value),
            volatile: false,
        };
        self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
        Ok(Some(answered))
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

    /// The latest revision.
    pub fn revision(&self) -> u64 {
        self.memory.revision()
    }

    /// The objects of a kind and all later changes, without a gap.
    pub fn subscribe(&self, kind: &'static Kind) -> Subscription {
        match self.memory.watch(kind, Selection::default(), None) {
            Ok((Start::Objects(snapshot), revision, watch)) => {
                Subscription { snapshot, revision, watch: Some(watch) }
            }
            // too many watches, or closing: the subscriber gets the objects, then the end, and subscribes again
            _ => Subscription { snapshot: self.list(kind, ""), revision: self.revision(), watch: None },
        }
    }

    /// Creates an object; `generateName` works. Returns it as stored.
    pub async fn create(&self, kind: &'static Kind, value: Value) -> Result<Arc<Object>, ApiError> {
        let namespace = kinds::text(&value, &["metadata", "namespace"]).to_owned();
        let answer = requests::create(self, kind, &namespace, value, &WriteOptions::internal()).await?;
        self.stored(kind, answer)
    }

    /// Reads the object, lets `change` edit it (spec, status, metadata alike), and writes it; retries
    /// after a concurrent write. A change without an effect writes nothing.
    pub async fn update(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut Value) + Send,
    ) -> Result<Arc<Object>, ApiError> {
        let edit = |_: &Object, mut value: Value| {
            change(&mut value);
            Ok(value)
        };
        let answer = requests::edit(
            self,
            &Place { kind, namespace, name },
            Part::All,
            &WriteOptions::internal(),
            edit,
        )
        .await?;
        self.stored(kind, answer)
    }

    /// Deletes an object, or marks it for deletion if it has finalizers.
    pub async fn delete(&self, kind: &'static Kind, namespace: &str, name: &str) -> Result<(), ApiError> {
        let options = DeleteOptions::default();
        let place = Place { kind, namespace, name };
        requests::delete(self, &place, &options, &WriteOptions::internal()).await.map(|_| ())
    }

    fn stored(&self, kind: &'static Kind, answer: Answer) -> Result<Arc<Object>, ApiError> {
        let gone = || ApiError::not_found(kind, "");
        answer.object.ok_or_else(gone)
    }

    /// The audit log; a hub over another store has none.
    pub fn audit(&self) -> Option<&audit::Audit> {
        self.audit.as_ref()
    }

    /// The memory behind the hub, for lists and watches with selectors.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The writer behind the hub, for its counters and its end.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    pub(crate) fn locks(&self) -> &requests::KeyedLocks {
        &self.locks
    }

    /// One write through the group-commit thread.
    pub(crate) async fn write(&self, write: Write) -> Outcome {
        let (answer, answered) = oneshot::channel();
        // the client may be gone
        self.writer.submit(write, Box::new(move |outcome| drop(answer.send(outcome))));
        match tokio::time::timeout(WRITE_TIMEOUT, answered).await {
            Ok(answer) => answer.unwrap_or(Err(WriteError::Closed)),
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

fn engine_error(message: &str) -> OpenError {
    OpenError::Engine(store::StoreError { message: format!("cannot make the system namespaces: {message}") })
}

impl Objects for Hub {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        Hub::get(self, kind, namespace, name)
    }
}

impl identity::ClusterView for Hub {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let kind = kinds::by_resource(resource)?;
        self.get(kind, namespace, name).map(|object| Arc::new(object.value()))
    }

    fn pods_on(&self, node: &str, namespace: &str) -> Vec<Arc<Value>> {
        let pods = self.list(&kinds::POD, namespace);
        let bound = pods.iter().filter(|pod| pod.field(kinds::pod::NODE_NAME_FIELD) == node);
        bound.map(|pod| Arc::new(pod.value())).collect()
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
        self.watch.as_mut()?.receiver.recv().await
    }
}
