//! The cached usage of nodes: figures, the reasons why some are missing, and how long either counts.
//!
//! Left to others: querying a node and answering a client (`usage`).

use crate::server::limits::Taken;
use kedge_api::excerpt_of;
use kedge_api::names::label_complaint;
use kedge_hub_core::summary::{self, Usage};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// The reason why a node could not take a call at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unready {
    /// The hub has not heard from the node for long, or never.
    Unheard,
    /// The node would learn of the call only at its next renewal.
    WithoutWatch,
}

/// Most nodes that one request may query, and most that are queried at once for all requests: a tenth of all
/// sessions.
pub(super) const MOST_NODES: usize = 50;

/// Bytes of a cached pod, and of a cached container, without their names.
pub(super) const POD_BYTES: usize = 160;

pub(super) const CONTAINER_BYTES: usize = 64;

/// How long figures are cached, and how long a failure is.
pub(super) const KEPT: Duration = Duration::from_secs(30);

pub(super) const KEPT_FAILURE: Duration = Duration::from_secs(10);

pub(super) const REASON_CHARS: usize = 160;

/// The cached usage of nodes, and the queries in progress.
#[derive(Debug)]
pub(super) struct NodeUsages {
    nodes: Mutex<HashMap<Box<str>, Known>>,
    pub(crate) turns: Semaphore,
}

impl Default for NodeUsages {
    fn default() -> Self {
        Self { nodes: Mutex::default(), turns: Semaphore::new(MOST_NODES) }
    }
}

pub(super) type Known = watch::Receiver<Option<Answered>>;

/// A node's answer and its time.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    pub(crate) at: Instant,
    /// In the format of timestamps.
    pub(crate) time: Arc<str>,
    pub(crate) usage: Result<Arc<NodeUsage>, Missing>,
    /// Taken from the node's limit of body bytes while the answer is cached.
    pub(crate) _held: Option<Arc<Taken>>,
}

impl Answered {
    pub(crate) fn is_current(&self, now: Instant) -> bool {
        let kept = if self.usage.is_ok() { KEPT } else { KEPT_FAILURE };
        now.saturating_duration_since(self.at) < kept
    }
}

/// The reason why a node has no figures.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Missing {
    /// The request asks for more nodes than may be queried at once.
    TooMany,
    /// It cannot be called.
    Unready(Unready),
    Late,
    Failed(String),
}

impl Missing {
    pub(crate) fn text(&self) -> String {
        match self {
            Missing::TooMany => {
                format!("one request asks {MOST_NODES} nodes at most; ask again, or for fewer")
            }
            Missing::Unready(Unready::Unheard) => "the hub does not hear from it".to_owned(),
            Missing::Unready(Unready::WithoutWatch) => {
                "without watches it hears of a call with its next renewal only".to_owned()
            }
            Missing::Late => "no answer in time".to_owned(),
            Missing::Failed(why) => excerpt_of(why, REASON_CHARS),
        }
    }
}

/// The usage of each container of a pod, by its name.
pub(super) type Containers = Vec<(Box<str>, Usage)>;

/// The nodes without figures, by the reason.
pub(super) type Left = BTreeMap<Missing, Vec<String>>;

/// The usage that a node reports for itself and its pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeUsage {
    pub(crate) node: Usage,
    /// By namespace and name.
    pub(crate) pods: HashMap<(Box<str>, Box<str>), Containers>,
}

impl NodeUsage {
    /// Reads a node's answer; `is_its` tells which pods are bound to the node.
    pub(crate) fn read(answer: &[u8], is_its: impl Fn(&str, &str) -> bool) -> Result<NodeUsage, String> {
        let mut pods = HashMap::new();
        let mut tell = |namespace: String, name: String, containers: Vec<(String, Usage)>| {
            if !is_its(&namespace, &name) {
                return;
            }
            let named = containers.into_iter().filter(|(name, _)| label_complaint(name).is_none());
            let known: Containers = named.map(|(name, usage)| (name.into(), usage)).collect();
            pods.insert((namespace.into(), name.into()), known);
        };
        let node = summary::read(answer, &mut tell)?;
        Ok(NodeUsage { node, pods })
    }

    /// The approximate size of a node's usage in memory.
    pub(crate) fn size(&self) -> usize {
        let pods = self.pods.iter().map(|((namespace, name), containers)| {
            let containers = containers.iter().map(|(name, _)| CONTAINER_BYTES + name.len());
            POD_BYTES + namespace.len() + name.len() + containers.sum::<usize>()
        });
        POD_BYTES + pods.sum::<usize>()
    }
}

impl NodeUsages {
    /// The cached or pending usage of these nodes, and the reasons why others are not queried. `ask` starts
    /// the query of one node, or returns why it cannot.
    pub(crate) fn wanted(
        &self,
        nodes: &BTreeSet<String>,
        ask: impl Fn(&str, watch::Sender<Option<Answered>>) -> Result<(), Missing>,
    ) -> (Vec<(String, Known)>, Left) {
        let now = Instant::now();
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, known| match &*known.borrow() {
            Some(answered) => answered.is_current(now),
            // the sender exists, so the querying task has not been ended by a panic
            None => known.has_changed().is_ok(),
        });
        let (mut wanted, mut missing, mut asked) = (Vec::new(), BTreeMap::<_, Vec<String>>::new(), 0);
        for node in nodes {
            if let Some(known) = known.get(node.as_str()) {
                wanted.push((node.clone(), known.clone()));
                continue;
            }
            let (sender, receiver) = watch::channel(None);
            let begun = if asked < MOST_NODES { ask(node, sender) } else { Err(Missing::TooMany) };
            match begun {
                Ok(()) => {
                    asked += 1;
                    known.insert(node.as_str().into(), receiver.clone());
                    wanted.push((node.clone(), receiver));
                }
                Err(why) => missing.entry(why).or_default().push(node.clone()),
            }
        }
        (wanted, missing)
    }
}
