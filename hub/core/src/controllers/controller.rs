//! What a controller is: a state, and a pure step from the objects there are to what is to be done.
//!
//! Always holds: a controller looks at objects as they are and not at what happened, so an event that is missed or comes twice costs a
//! sweep and nothing else. It never waits and never writes: it returns [`Action`]s, is handed their outcomes, and names its next
//! deadline. Leaves to others: subscribing, performing and back-off (one runner for all controllers, in `kedge-hub`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use crate::api_error::ApiError;
use crate::identity::certificate_request::Request;
use crate::kinds::Kind;
use crate::object::{Event, Object};
use crate::requests::{DeleteOptions, Objects};
use crate::selector::Selection;
use crate::state::{Index, Query, Sink};

/// All objects there are.
pub trait World: Objects {
    /// All objects of a kind in a namespace, in all namespaces if it is empty.
    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>>;
    /// Objects that name this UID as an owner, of all kinds.
    fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)>;
    /// All objects of a namespace.
    fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)>;
}

impl<S: Sink> World for Index<S> {
    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        let page = Index::list(self, kind, &Selection::all(namespace), &Query::default());
        page.map(|page| page.objects).unwrap_or_default()
    }

    fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        Index::dependents(self, uid)
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
    /// The longest standstill of this process since the last step.
    pub stalled: Duration,
}

/// Changes a value, which has the time for its stamps as RFC 3339 beside it; called again if somebody else writes in between.
/// Returns whether it meant this object.
pub type Edit = Box<dyn FnMut(&mut Value, &str) -> bool + Send>;

/// What is to be done.
pub enum Action {
    Create {
        kind: &'static Kind,
        value: Value,
    },
    /// Reads the object, edits it, and writes it if that changed it.
    Update {
        kind: &'static Kind,
        namespace: String,
        name: String,
        edit: Edit,
    },
    Delete {
        kind: &'static Kind,
        namespace: String,
        name: String,
        options: DeleteOptions,
    },
    /// Lets an empty terminating namespace go.
    FinalizeNamespace {
        name: String,
    },
    /// Signs a client certificate.
    Sign(Signing),
}

impl fmt::Debug for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Create { kind, value } => write!(out, "create {} {value}", kind.plural),
            Action::Update { kind, namespace, name, .. } => {
                write!(out, "update {} {namespace}/{name}", kind.plural)
            }
            Action::Delete { kind, namespace, name, .. } => {
                write!(out, "delete {} {namespace}/{name}", kind.plural)
            }
            Action::FinalizeNamespace { name } => write!(out, "finalize namespace {name}"),
            Action::Sign(signing) => write!(out, "sign for {}", signing.request.common_name),
        }
    }
}

/// A client certificate to be signed.
#[derive(Debug)]
pub struct Signing {
    pub request: Request,
    /// The key may encipher other keys, besides signing.
    pub enciphers: bool,
    pub life: time::Duration,
}

/// What an action led to.
#[derive(Debug)]
pub enum Done {
    /// The object as stored; for an update, whether the edit meant it.
    Stored(Arc<Object>, bool),
    /// Deleted, marked for deletion, or finalized.
    Gone,
    /// The certificate (PEM), or why there is none.
    Signed(Result<String, String>),
}

/// An action, and what it is for.
#[derive(Debug)]
pub struct Task<P> {
    pub purpose: P,
    pub action: Action,
}

/// What one step decided.
#[derive(Debug)]
pub struct Decision<P> {
    /// In order.
    pub tasks: Vec<Task<P>>,
    /// To be done only if the hub can reach itself over the network; what to log if it cannot.
    pub guarded: Option<Guarded<P>>,
    /// There is more to decide right away.
    pub more: bool,
    /// When to take the next step if nothing changes before.
    pub next: Option<Duration>,
}

impl<P> Default for Decision<P> {
    fn default() -> Decision<P> {
        Decision { tasks: Vec::new(), guarded: None, more: false, next: None }
    }
}

/// Tasks that blame others for what may be the hub's own fault.
#[derive(Debug)]
pub struct Guarded<P> {
    pub tasks: Vec<Task<P>>,
    /// The subject of the line to log if they are dropped.
    pub blamed: String,
}

/// How important a line for the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
}

/// A line for the log.
pub type Line = (Level, String);

/// See the module.
pub trait Controller: Send + 'static {
    /// Why an action is performed; comes back with its outcome.
    type Purpose: Send;
    /// In the log.
    const NAME: &'static str;
    /// Everything is looked at this often, besides what changes.
    const SWEEP: Option<Duration> = None;
    /// Actions under way at once.
    const AT_ONCE: usize = 1;
    /// Wants [`Now::stalled`].
    const MINDS_STALLS: bool = false;

    /// Inputs: the kinds whose changes it observes.
    fn inputs() -> &'static [&'static Kind];

    /// Outputs: the kinds it writes.
    fn outputs() -> &'static [&'static Kind];

    /// Whether a change is worth waking up for.
    fn concerns(_kind: &'static Kind, _event: &Event) -> bool {
        true
    }

    /// Notes what to look at after a change.
    fn observe(&mut self, kind: &'static Kind, event: &Event);

    /// Notes to look at everything: at the start, after changes may have been missed, and now and again.
    fn sweep(&mut self, world: &dyn World);

    /// Takes a step.
    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Self::Purpose>;

    /// Takes an outcome in; returns what follows from it at once.
    fn performed(
        &mut self,
        purpose: Self::Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Self::Purpose>>;

    /// Lines for the log since the last call.
    fn take_log(&mut self, now: Now) -> Vec<Line>;
}
