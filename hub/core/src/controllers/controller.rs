//! The interface of a controller: a state, and a pure step from the stored objects to actions.
//!
//! Always holds: a controller reads the current objects, not the history, so a missed or repeated event only
//! costs a sweep. It never waits and never writes: it returns [`Action`]s, is handed their outcomes, and
//! names its next deadline. Leaves to others: subscribing, performing and back-off (one runner for all
//! controllers, in `kedge-hub`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use crate::api_error::ApiError;
use crate::identity::certificate_request::Request;
use crate::kinds::{Kind, NAMESPACE, POD};
use crate::object::{Event, Object};
use crate::requests::{DeleteOptions, Objects};
use crate::selector::Selection;
use crate::state::{Heard, Index, Query, Require, Sink};

/// All stored objects.
pub trait World: Objects {
    /// All objects of a kind in a namespace, in all namespaces if it is empty.
    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>>;
    /// The selected objects of a kind.
    fn select(&self, kind: &'static Kind, selection: &Selection) -> Vec<Arc<Object>>;
    /// Objects that name this UID as an owner, of all kinds.
    fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)>;
    /// The objects of a kind that are charged to a user.
    fn charged(&self, holder: &str, kind: &'static Kind) -> Vec<Arc<Object>>;
    /// UIDs that objects name as an owner, and that no object has.
    fn lost_owners(&self) -> Vec<String>;
    /// Objects that are marked for deletion, of all kinds.
    fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)>;
    /// All objects of a namespace.
    fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)>;
    /// The namespaces that have objects, whether or not they exist themselves.
    fn namespaces_in_use(&self) -> BTreeSet<String>;
    /// The values of an indexed field that objects of a kind have.
    fn values(&self, kind: &'static Kind, field: usize) -> Vec<String>;
    /// The Leases that changed since the last call, by anybody's write. Only one controller uses it: renewals
    /// are not published as events.
    fn heard(&self) -> Heard {
        Heard::default()
    }
}

impl<S: Sink> World for Index<S> {
    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        let page = Index::list(self, kind, &Selection::all(namespace), &Query::default());
        page.map(|page| page.objects).unwrap_or_default()
    }

    fn select(&self, kind: &'static Kind, selection: &Selection) -> Vec<Arc<Object>> {
        let page = Index::list(self, kind, selection, &Query::default());
        page.map(|page| page.objects).unwrap_or_default()
    }

    fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        Index::dependents(self, uid)
    }

    fn charged(&self, holder: &str, kind: &'static Kind) -> Vec<Arc<Object>> {
        Index::charged(self, holder, kind)
    }

    fn lost_owners(&self) -> Vec<String> {
        Index::lost_owners(self)
    }

    fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
        Index::terminating(self)
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        Index::namespaces_in_use(self)
    }

    fn values(&self, kind: &'static Kind, field: usize) -> Vec<String> {
        Index::values(self, kind, field)
    }

    fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        Index::in_namespace(self, namespace)
    }
}

/// The time, as the runner knows it.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic, since an arbitrary start.
    pub running: Duration,
    pub wall: OffsetDateTime,
    /// Whether something may be deleted because it is old by `wall` ([`Clock`](super::Clock)).
    pub ages: bool,
    /// Whether `wall` is not known to be wrong ([`ClockFault`](super::ClockFault)).
    pub right: bool,
    /// The longest stall of this process since the last step: it received nothing meanwhile.
    pub stalled: Duration,
    /// How long the disk has not finished an operation of the store, at most since the last step. Writes to
    /// the store had to wait for the disk; renewals of Leases did not.
    pub disk_stalled: Duration,
    /// The disk does not respond at present, so no write is possible.
    pub disk_stalls: bool,
}

/// Changes a value; the text is the time for its stamps (RFC 3339). Called again after a concurrent write.
/// Returns whether it applies to this object.
pub type Edit = Box<dyn FnMut(&mut Value, &str) -> bool + Send>;

/// An action to perform.
pub enum Action {
    Create {
        kind: &'static Kind,
        value: Value,
        /// Conditions on other objects that must hold until the object is created; otherwise the create fails
        /// with a conflict.
        requires: Vec<Require>,
    },
    /// Reads the object, edits it, and writes it if it changed.
    Update {
        kind: &'static Kind,
        namespace: String,
        name: String,
        edit: Edit,
        /// Conditions on other objects that must hold until the change is made; otherwise the edit does not
        /// apply.
        requires: Vec<Require>,
    },
    /// The same for a pod without a node, which this edit may give one.
    Bind { namespace: String, name: String, edit: Edit, requires: Vec<Require> },
    Delete {
        kind: &'static Kind,
        namespace: String,
        name: String,
        options: DeleteOptions,
        /// Conditions on other objects that must hold until the object is deleted; otherwise the deletion
        /// fails with a conflict.
        requires: Vec<Require>,
    },
    /// Deletes the empty terminating namespace of this UID.
    FinalizeNamespace { name: String, uid: String },
    /// Signs a client certificate.
    Sign(Signing),
}

impl Action {
    /// Creates an object without conditions on others.
    pub fn create(kind: &'static Kind, value: Value) -> Action {
        Action::Create { kind, value, requires: Vec::new() }
    }

    /// The kind that it writes.
    pub fn kind(&self) -> Option<&'static Kind> {
        match self {
            Action::Create { kind, .. } | Action::Update { kind, .. } | Action::Delete { kind, .. } => {
                Some(kind)
            }
            Action::Bind { .. } => Some(&POD),
            Action::FinalizeNamespace { .. } => Some(&NAMESPACE),
            Action::Sign(_) => None,
        }
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Create { kind, value, .. } => write!(out, "create {} {value}", kind.plural),
            Action::Update { kind, namespace, name, .. } => {
                write!(out, "update {} {namespace}/{name}", kind.plural)
            }
            Action::Delete { kind, namespace, name, .. } => {
                write!(out, "delete {} {namespace}/{name}", kind.plural)
            }
            Action::Bind { namespace, name, .. } => write!(out, "bind pod {namespace}/{name}"),
            Action::FinalizeNamespace { name, .. } => write!(out, "finalize namespace {name}"),
            Action::Sign(signing) => write!(out, "sign for {}", signing.request.common_name),
        }
    }
}

/// A client certificate to sign.
#[derive(Debug)]
pub struct Signing {
    pub request: Request,
    /// The key may encipher other keys, besides signing.
    pub enciphers: bool,
    pub life: time::Duration,
}

/// The outcome of an action.
#[derive(Debug)]
pub enum Done {
    /// The object as stored; for an update, whether the edit applied to it.
    Stored(Arc<Object>, bool),
    /// Deleted, marked for deletion, or finalized.
    Gone,
    /// The certificate (PEM), or the reason of the failure.
    Signed(Result<String, String>),
}

/// Pause before the hub tries again to create an object that it needs itself, after the store refused it.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// An action and its purpose.
#[derive(Debug)]
pub struct Task<P> {
    pub purpose: P,
    pub action: Action,
}

/// The decision of one step.
#[derive(Debug)]
pub struct Decision<P> {
    /// In order.
    pub tasks: Vec<Task<P>>,
    /// Tasks to perform only if the hub can reach itself over the network, and the log line if it cannot.
    pub guarded: Option<Guarded<P>>,
    /// Whether another step is due at once.
    pub more: bool,
    /// The time of the next step if nothing changes before.
    pub next: Option<Duration>,
}

impl<P> Default for Decision<P> {
    fn default() -> Decision<P> {
        Decision { tasks: Vec::new(), guarded: None, more: false, next: None }
    }
}

/// Tasks that act on nodes for a failure which may be the hub's own.
#[derive(Debug)]
pub struct Guarded<P> {
    pub tasks: Vec<Task<P>>,
    /// The subject of the line to log if they are dropped.
    pub blamed: String,
}

/// The level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
}

/// A line for the log.
pub type Line = (Level, String);

/// See the module.
pub trait Controller: Send + 'static {
    /// The purpose of an action, returned with its outcome.
    type Purpose: Send;
    /// The controller's name in the log.
    const NAME: &'static str;
    /// Time between two sweeps over everything.
    const SWEEP: Option<Duration> = None;
    /// Most concurrent actions.
    const AT_ONCE: usize = 1;
    /// Whether it uses [`Now::stalled`] and [`Now::disk_stalled`].
    const MINDS_STALLS: bool = false;

    /// Inputs: the kinds whose changes it observes.
    fn inputs() -> &'static [&'static Kind];

    /// Outputs: the kinds it writes. The runner asserts it in debug builds.
    fn outputs() -> &'static [&'static Kind];

    /// Whether a change needs a step.
    fn concerns(_kind: &'static Kind, _event: &Event) -> bool {
        true
    }

    /// Queues the objects to check after a change.
    fn observe(&mut self, kind: &'static Kind, event: &Event);

    /// Queues everything: at the start, after changes may have been missed, and periodically.
    fn sweep(&mut self, world: &dyn World);

    /// Decides one step.
    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Self::Purpose>;

    /// Handles an outcome; returns tasks that follow at once.
    fn performed(
        &mut self,
        purpose: Self::Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Self::Purpose>>;

    /// Lines for the log since the last call.
    fn take_log(&mut self, now: Now) -> Vec<Line>;
}
