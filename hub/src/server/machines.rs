//! The machines that renew each node's Lease, and the Node's condition about two of them.
//!
//! A connection is of the machine that its first request names (`Kedge-Boot`); without that header it is of
//! no known machine. Always holds: no renewal is refused or delayed because of a double. Left to others: the
//! verdict (`kedge_hub_core::identity::duplicates`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use http::HeaderMap;
use kedge_api::{BOOT_HEADER, CLUSTER_EVENT_NAMESPACE, DUPLICATE};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::decode;
use kedge_hub_core::identity::duplicates::{self, Machines, News};
use kedge_hub_core::kinds::{EVENT, NODE};
use serde_json::json;

use crate::fresh::now_text;
use crate::hub::Hub;

/// Those of one node.
type OfNode = Arc<Mutex<Machines>>;

/// Those of all nodes. The number of verified names is limited by the hub's signatures.
#[derive(Debug)]
pub(super) struct AllMachines {
    began: Instant,
    nodes: Mutex<HashMap<Box<str>, OfNode>>,
}

impl Default for AllMachines {
    fn default() -> AllMachines {
        AllMachines { began: Instant::now(), nodes: Mutex::default() }
    }
}

/// The machine at the other end of a connection.
#[derive(Debug, Default)]
pub(super) struct Boot(OnceLock<Known>);

#[derive(Debug)]
struct Known {
    boot: u64,
    machines: OfNode,
}

impl Boot {
    /// Takes the header of a request of this node, if it has it; the first one of a connection counts.
    pub(super) fn note(&self, all: &AllMachines, node: &str, headers: &HeaderMap) {
        let Some(value) = headers.get(BOOT_HEADER) else { return };
        if let Some(boot) = duplicates::boot_of_header(value.as_bytes()) {
            self.0.get_or_init(|| {
                let machines = Arc::clone(locked(&all.nodes).entry(node.into()).or_default());
                Known { boot, machines }
            });
        }
    }

    /// A renewal on the connection was accepted.
    pub(super) fn renewed(&self, all: &AllMachines, hub: &Arc<Hub>, node: &str, from: IpAddr) {
        let Some(Known { boot, machines }) = self.0.get() else { return };
        let news = locked(machines).renewed(all.began.elapsed(), *boot, from);
        if let Some(news) = news {
            tokio::spawn(tell(Arc::clone(hub), node.to_owned(), Arc::clone(machines), news));
        }
    }

    /// The refusal of a status, if it is of a machine that came second. `status`: the body of the request.
    pub(super) fn refusal(&self, node: &str, status: &[u8]) -> Option<ApiError> {
        let Known { boot, machines } = self.0.get()?;
        let mut machines = locked(machines);
        machines.is_second(*boot).then(|| {
            let status = decode::value(status).unwrap_or_default();
            if let Some(id) = status["status"]["nodeInfo"]["machineID"].as_str() {
                machines.says(*boot, id);
            }
            let why = "another machine uses the credential of this node and was there first: its statuses count, this machine's do not";
            ApiError { reason: DUPLICATE, ..ApiError::conflict_because(&NODE, node, why) }
        })
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // each change is complete before the lock is released, and none panics half way
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the Node's condition, and records an Event if it changed. A failure is only logged: the verdict is
/// announced again while it stands.
async fn tell(hub: Arc<Hub>, node: String, machines: OfNode, news: News) {
    let Some(found) = hub.get(&NODE, "", &node) else { return };
    let shown = found.value();
    let message = match news {
        News::Two { first, second } => Some(locked(&machines).message(first, second, &shown)),
        News::One => None,
    };
    let time = now_text();
    // most nodes never had a double
    let mut tried = shown.clone();
    duplicates::set_condition(&mut tried, message.as_deref(), &time);
    if tried == shown {
        return;
    }
    let mut is_change = false;
    let edited = hub.update(&NODE, "", &node, |object| {
        is_change = duplicates::set_condition(object, message.as_deref(), &time);
    });
    if let Err(error) = edited.await {
        log::warn!("cannot set the condition {} of node {node:?}: {error}", kedge_api::DUPLICATE_IDENTITY);
        return;
    }
    if !is_change {
        return;
    }
    let (sort, reason) = match &message {
        Some(_) => ("Warning", "DuplicateIdentity"),
        None => ("Normal", "DuplicateIdentityOver"),
    };
    let message = message.unwrap_or_else(|| "one machine renews the Lease of this node again".to_owned());
    log::warn!("node {node:?}: {message}");
    let event = json!({
        "metadata": {"generateName": format!("{node}-"), "namespace": CLUSTER_EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": &*found.uid},
        "reason": reason, "message": message, "type": sort,
        "source": {"component": "kedge-hub"}, "reportingComponent": "kedge-hub", "reportingInstance": "",
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    });
    if let Err(error) = hub.create(&EVENT, event).await {
        log::warn!("cannot record an Event about node {node:?}: {error}");
    }
}
