//! The events that core takes and the actions it gives, with their parts.
//!
//! Always holds: both lists are closed, and an action is complete: performing it needs no decision. Leaves to
//! others: the meaning of an event (`agent`), performing an action (the crate `kedge`, the simulator).

use crate::answer::{Answer, Level};
use crate::config::records::{CheckpointName, Read};
use crate::identity::{IdentityAction, IdentityEvent};
use crate::kubelet::Effective;
use crate::node::decommission::Decommission;
use crate::node::facts::HostFacts;
use crate::pods::{PodAction, PodAsk, PodEvent};
use crate::system::{SystemEvent, SystemOrder};
use crate::watching::{ObjectVersion, WatchEnd, WatchOrder, Watched};
use crate::writes::{Outcome, Step};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// Everything that can happen. Core may receive outcomes in any order, and late.
#[derive(Debug, Clone)]
pub enum Event {
    /// The agent starts. First, once.
    Start,
    /// Time passed.
    Tick,
    /// The ordered file step was performed.
    StepDone(Outcome),
    /// Facts about the host were read.
    HostFacts(Box<HostFacts>),
    /// A request was answered, or failed.
    Answered(RequestKey, Answer),
    /// The Lease request was answered, or failed.
    Renewed(Answer),
    /// It was accepted, and the answer had the number of the latest change that concerns the node:
    /// `Kedge-Desired`.
    RenewedAsOf(u64),
    /// The hub announced that calls with these ids wait for this node. It may do so more than once.
    Called(Vec<String>),
    /// A list of the collection was read to its end.
    Listed { of: Collection, listing: Listing },
    /// The watch showed an object that was added or changed; or one that is gone, in its last state.
    Changed { of: Collection, object: Value, is_deleted: bool },
    /// A round has shown everything up to this resourceVersion; `is_change`: by a change of the object, not a
    /// list or a bookmark. Also contact.
    WatchPosition { watched: Watched, round: u64, version: String, is_change: bool },
    /// A round is receiving an event that is not complete yet.
    WatchReceiving { watched: Watched, round: u64 },
    /// A round of a watch ended: which round of which object, and how.
    WatchEnded { watched: Watched, round: u64, end: WatchEnd },
    /// A watch had an answer other than 401: contact.
    Contact,
    /// The kubeconfig, which the shell reads, is unusable: why.
    NoKubeconfig(String),
    /// `bad-configs.json` changed on disk.
    BadConfigsRead(Read),
    /// The disk of the state has stopped answering, or answers again.
    DiskStalled(bool),
    /// The ordered end of a run that the next should follow at once cannot happen: a thread of this process
    /// does not end, and would delay the process with its heartbeat for as long. Why; `None` if it can happen
    /// now.
    EndHeldUp(Option<String>),
    /// `kedge config forgive UID`.
    Forgive(String),
    /// `kedge config reset`.
    Reset,
    /// Events of the pods' runtime, images and files, and answers to [`Action::Pods`].
    Pods(Box<PodEvent>),
    /// Answers to [`Action::Identity`].
    Identity(Box<IdentityEvent>),
    /// Answers to [`Action::System`], and changes of the slots.
    System(Box<SystemEvent>),
    /// This came from the API server of that number: the servers that the kubeconfig has named are counted.
    /// Events of an earlier one are dropped; with the first of a later one, all facts from the earlier are
    /// forgotten.
    Heard { server: u64, event: Box<Event> },
    /// The outcome of `NoteDecommission`.
    DecommissionNoted(Result<(), String>),
    /// The outcome of `RemoveState`.
    StateRemoved(Result<(), String>),
    /// A stop of the agent was requested: by whom.
    Stop(String),
}

/// A listed and watched collection: all objects of a selection, here one by its name. Its stream is
/// [`Watched`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collection {
    /// The own Node.
    Node,
    /// One ConfigMap.
    ConfigMap { namespace: String, name: String },
    /// The pods bound to the node.
    Pods,
}

impl Collection {
    /// The stream on which it is watched.
    pub fn watched(&self) -> Watched {
        match self {
            Self::Node => Watched::Node,
            Self::ConfigMap { .. } => Watched::ConfigMap,
            Self::Pods => Watched::Pods,
        }
    }
}

/// The result of a list of a collection.
#[derive(Debug, Clone, PartialEq)]
pub enum Listing {
    /// All objects.
    Objects(Vec<Value>),
    /// Its one object still has the version of [`WatchOrder::held`]; its content was not read.
    Unchanged(ObjectVersion),
}

/// Everything that the agent does. Performed in the given order: actions after `Use` may rely on the
/// configuration in use, and a log line explains the action after it.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Perform one file step, then report `StepDone`.
    Step(Step),
    /// This is the configuration from now on. Everything that must be recorded before it is used is recorded.
    Use(Box<Effective>),
    /// The evidence of the previous run is recorded: it may be deleted.
    ConsumeEvidence,
    /// Remove checkpoints no record names, leftovers, and other versions' counts. In the background.
    Sweep {
        /// Checkpoints to keep; `None` keeps all, because a record that might name one is unknown.
        keep: Option<Vec<CheckpointName>>,
    },
    /// Read facts about the host, then report `HostFacts`.
    ReadHostFacts,
    /// Send a request to the API server, then report `Answered`.
    Request(Request),
    /// Send a request to the API server on the stream of renewals, then report `Renewed`.
    Renew { request: LeaseRequest, deadline: Duration },
    /// Watch the own Node for one round, in place of the one under way, then report `WatchEnded`.
    WatchNode(WatchOrder),
    /// The same for this ConfigMap, and no other.
    WatchConfigMap { namespace: String, name: String, order: WatchOrder },
    /// Stop watching ConfigMaps.
    EndConfigMapWatch,
    /// Watch the pods bound to the node for one round, in place of the one under way, then report
    /// `WatchEnded`.
    WatchPods(WatchOrder),
    /// Stop watching pods.
    EndPodsWatch,
    /// An order of the pods' actor for the runtime, the images or the disk: never one for the API server.
    Pods(Box<PodAction>),
    /// An order about the node's own credential.
    Identity(Box<IdentityAction>),
    /// An order about the system of this machine.
    System(Box<SystemOrder>),
    /// Read the set of certificate authorities of this name from the server, and trust it from then on, if
    /// all checks pass. There is no answer but the next facts.
    TakeAuthorities(String),
    /// Start a session that accepts the call with this id.
    TakeCall(String),
    /// Record durably which images pods need, for commands that remove others.
    NeedImages {
        images: BTreeSet<String>,
        /// False if there may be pods that could not be read yet: then the earlier record stays.
        is_all: bool,
    },
    /// End this run. Only log lines follow.
    Exit {
        why: String,
        /// Whether another configuration is to run: then the program starts again, in place if it can.
        /// Otherwise a stop was requested. Either way an exit with code 0 is right.
        start_again: bool,
    },
    /// Record durably how far the decommissioning of this node has come, then report `DecommissionNoted`.
    NoteDecommission(Decommission),
    /// Remove the data of pods, images, and configurations, then report `StateRemoved`. No pod is served.
    RemoveState,
    /// Log a line.
    Log(Level, String),
}

/// A request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// `GET /version`.
    Version,
    /// Create the Node.
    Register(Value),
    /// Strategic-merge-patch the Node's status.
    PatchStatus(Value),
    /// Merge-patch the Node: its labels.
    PatchLabels(Value),
    /// Merge-patch the Node: the mirrored status.
    PatchNode(Value),
    /// Create an Event in namespace default.
    PostEvent(Value),
    /// A request of the pods' actor, in one of its slots.
    Pods { slot: u8, ask: Box<PodAsk> },
    /// List the pods that are bound to this node, and send the requests of [`crate::pods::rejection`] about
    /// each.
    RejectPods,
}

/// The purpose of a request: one of each is in flight at a time, and its answer carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestKey {
    /// Renew the Lease, or create it.
    Renew,
    /// `GET /version`.
    Version,
    /// Create the Node.
    Register,
    /// Patch the Node's status.
    PatchStatus,
    /// Patch the Node's labels: separate from the mirrored status, because a server may refuse a label.
    PatchLabels,
    /// Patch the Node's annotation of the mirrored status.
    PatchNode,
    /// Create an Event.
    PostEvent,
    /// A request of the pods' actor: it has a few of these slots, and repeats failed ones itself.
    Pods(u8),
    /// Reject all pods of a node that runs none.
    RejectPods,
}

impl Request {
    /// The request's body, if it has one.
    pub(crate) fn body(&self) -> Option<&Value> {
        match self {
            Self::Version | Self::RejectPods => None,
            Self::Pods { ask, .. } => ask.body(),
            Self::Register(body)
            | Self::PatchStatus(body)
            | Self::PatchLabels(body)
            | Self::PatchNode(body)
            | Self::PostEvent(body) => Some(body),
        }
    }

    /// Its purpose.
    pub fn key(&self) -> RequestKey {
        match self {
            Self::Version => RequestKey::Version,
            Self::Register(_) => RequestKey::Register,
            Self::PatchStatus(_) => RequestKey::PatchStatus,
            Self::PatchLabels(_) => RequestKey::PatchLabels,
            Self::PatchNode(_) => RequestKey::PatchNode,
            Self::PostEvent(_) => RequestKey::PostEvent,
            Self::Pods { slot, .. } => RequestKey::Pods(*slot),
            Self::RejectPods => RequestKey::RejectPods,
        }
    }
}

/// The request to the API server that keeps the Lease.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseRequest {
    /// Set its `renewTime`, and nothing else.
    Renew(String),
    /// Merge-patch the Lease.
    Patch(Value),
    /// Create it.
    Create(Value),
}
