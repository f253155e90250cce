//! The calls that wait for their nodes to dial, and the sessions that they become.

use crate::server::limits::Slot;
use kedge_hub_core::api_error::ApiError;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::DuplexStream;
use tokio::sync::oneshot;

/// Most sessions of one node, because its memory is meant for its containers.
pub(super) const NODE_MOST: usize = 20;

/// Most sessions of one user. Administrators share one credential.
pub(super) const USER_MOST: usize = 256;

/// The calls that wait for their nodes, and the open sessions.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Most sessions in all.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Waiting calls by id.
    waiting: HashMap<Box<str>, Call>,
    /// Sessions of nodes and of users, waiting or open.
    pub(crate) held: HashMap<Holder, usize>,
    pub(crate) all: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Node(Box<str>),
    User(Box<str>),
}

#[derive(Debug)]
pub(crate) struct Call {
    node: Box<str>,
    pub(crate) dialled: oneshot::Sender<Dialled>,
    /// The node has tried to take this call.
    is_tried: bool,
}

/// A connection that a node has dialled.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) stream: DuplexStream,
    /// Held by the client's side: when it is dropped, the node's side ends, even while it cannot pass on
    /// earlier bytes.
    pub(crate) asker: Asker,
}

/// A new call.
pub(crate) struct Made {
    pub(crate) session: Session,
    pub(crate) dialled: oneshot::Receiver<Dialled>,
}

/// One session, counted until it is dropped; a call that still waits ends with it.
#[derive(Debug)]
pub(crate) struct Session {
    calls: Arc<Calls>,
    pub(crate) id: Box<str>,
    holders: [Holder; 2],
}

impl Calls {
    pub(crate) fn new(most: usize) -> Calls {
        Calls { most, state: Mutex::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // a panic leaves the state consistent, because no change of it can panic half way
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call of this user for this node.
    pub(crate) fn make(self: &Arc<Self>, node: &str, user: &str, id: String) -> Result<Made, ApiError> {
        let holders = [Holder::Node(node.into()), Holder::User(user.into())];
        let mut state = self.state();
        for (holder, most) in holders.iter().zip([NODE_MOST, USER_MOST]) {
            if state.held.get(holder).is_some_and(|held| *held >= most) {
                let whose = match holder {
                    Holder::Node(node) => format!("node {node:?}"),
                    Holder::User(user) => format!("user {user:?}"),
                };
                let message =
                    format!("{whose} has {most} sessions, and may have no more, please try again later");
                return Err(ApiError::too_many_requests(message));
            }
        }
        if state.all >= self.most {
            let most = self.most;
            let message = format!("the hub has {most} sessions, and takes no more, please try again later");
            return Err(ApiError::unavailable(message));
        }
        state.all += 1;
        for holder in &holders {
            *state.held.entry(holder.clone()).or_default() += 1;
        }
        let (sender, dialled) = oneshot::channel();
        let id: Box<str> = id.into();
        state.waiting.insert(id.clone(), Call { node: node.into(), dialled: sender, is_tried: false });
        Ok(Made { session: Session { calls: Arc::clone(self), id, holders }, dialled })
    }

    /// True if the call with this id waits for this node, and the node tries to take it for the first time.
    pub(crate) fn first_try(&self, id: &str, node: &str) -> bool {
        let mut state = self.state();
        let call = state.waiting.get_mut(id).filter(|call| *call.node == *node);
        call.is_some_and(|call| !std::mem::replace(&mut call.is_tried, true))
    }

    /// Takes the call with this id, if it waits and is for this node.
    pub(crate) fn take(&self, id: &str, node: &str) -> Option<Call> {
        let mut state = self.state();
        if state.waiting.get(id).is_some_and(|call| *call.node == *node) {
            return state.waiting.remove(id);
        }
        None
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        state.waiting.remove(&self.id);
        state.all -= 1;
        for holder in &self.holders {
            if let Some(held) = state.held.get_mut(holder) {
                *held -= 1;
                if *held == 0 {
                    state.held.remove(holder);
                }
            }
        }
    }
}

/// A call that is announced to its node until this is dropped.
pub(super) struct Announced {
    slot: Arc<Slot>,
    id: Arc<str>,
}

impl Announced {
    pub(crate) fn new(slot: Arc<Slot>, id: &str) -> Announced {
        let id: Arc<str> = id.into();
        slot.own_watches().call(&id);
        Announced { slot, id }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.slot.own_watches().forget(&self.id);
    }
}

/// Held by the client's side; when it is dropped, the node's side of the session ends.
pub(super) type Asker = oneshot::Sender<Infallible>;
