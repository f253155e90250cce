//! Ends resumable TLS sessions at each new denial. Explains the end of each denial, by whatever act it ended:
//! a line in the log and in the audit log, and for a node an event.
//!
//! Always holds: a denial that ended stays in the directory's marker until it is explained. So one that ended
//! just before a crash, or with a store that was replaced, is explained by the next start. Left to others:
//! the rules of the list (`kedge_hub_core::identity::denied`), and the answers of commands that edit it
//! (`server::node_access`).

use std::sync::Arc;
use std::time::Duration;

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::denied::{self, DENY_LIST_NAME, DENY_LIST_NAMESPACE, Denial, DenyList, Lifted};
use kedge_hub_core::kinds::{CONFIG_MAP, EVENT, NODE};
use serde_json::{Value, json};

use crate::Hub;
use crate::audit::ObjectRef;
use crate::fresh::now_text;
use crate::pki::Pki;

/// Annotation of a Node, with the reason why it cannot connect. Nodes may not write this annotation.
pub(crate) const REVOKED_ANNOTATION: &str = "kedge.dev/revoked";
/// Wait before a failed attempt is repeated, and before the list is watched again.
const RETRY: Duration = Duration::from_secs(10);

/// Follows the deny list for as long as the hub runs.
pub async fn follow(hub: Arc<Hub>, pki: Arc<Pki>) {
    let Some(marker) = hub.marker().cloned() else { return };
    // denials that ended before this start, unexplained
    let mut known = marker.known().map_or(Value::Null, |known| known.denied());
    loop {
        let mut changes = hub.subscribe(&CONFIG_MAP);
        let list = hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        settle(&hub, &pki, &mut known, list.map_or(Value::Null, |list| list.value())).await;
        // each change by itself: the next one may bring back a denial that this one removes
        while let Some(event) = changes.next().await {
            let object = event.object();
            if denied::is_deny_list(&object.namespace, &object.name) {
                let list = event.new.as_ref().map_or(Value::Null, |list| list.value());
                settle(&hub, &pki, &mut known, list).await;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Ends resumable sessions if a new list has more denials. Explains those that it no longer has, and retries
/// until that succeeds.
async fn settle(hub: &Hub, pki: &Pki, known: &mut Value, list: Value) {
    let list = denied::maps(&list);
    if !denied::lifted(&list, known).is_empty() {
        pki.end_sessions();
    }
    let ended = denied::lifted(known, &list);
    for lifted in &ended {
        let message = announce(hub, lifted);
        let mut failed_before = false;
        while let Err(error) = show(hub, &lifted.denial, &message, &list).await {
            if !failed_before {
                log::warn!("cannot show on its node that {message}: {error}");
            }
            failed_before = true;
            if error.code < 500 && error.code != 429 {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
    if let Some(marker) = hub.marker().cloned()
        && !ended.is_empty()
    {
        let explained: Vec<_> = ended.into_iter().map(|lifted| lifted.denial).collect();
        // it writes to the disk, and so may block
        drop(tokio::task::spawn_blocking(move || marker.settle(&explained)).await);
    }
    *known = list;
}

/// Announces it in the log and the audit log; returns the sentence.
fn announce(hub: &Hub, Lifted { denial, is_gone }: &Lifted) -> String {
    let place = format!("{DENY_LIST_NAMESPACE}/{DENY_LIST_NAME}");
    let message = match is_gone {
        true => format!(
            "{denial} is no longer denied: its entry in {place} is gone, and its old credentials count again"
        ),
        false => format!(
            "{denial} is denied less: by its entry in {place} credentials that are issued after its readmission count"
        ),
    };
    log::warn!("{message}");
    let (resource, name) = match denial {
        Denial::Node(name) => ("nodes", name),
        Denial::Digest(name) | Denial::User(name) | Denial::Certificate(name) => ("configmaps", name),
    };
    if let Some(audit) = hub.audit() {
        let object = ObjectRef { version: "v1", resource, name, ..ObjectRef::default() };
        audit.record_own("lift", object, &[]);
    }
    message
}

/// Announces it on the Node, if that exists.
async fn show(hub: &Hub, denial: &Denial, message: &str, list: &Value) -> Result<(), ApiError> {
    let Denial::Node(name) = denial else { return Ok(()) };
    let Some(node) = hub.get(&NODE, "", name) else { return Ok(()) };
    if !DenyList::read(list).is_revoked(name) {
        let annotated = hub.update(&NODE, "", name, |object| {
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                annotations.remove(REVOKED_ANNOTATION);
            }
        });
        match annotated.await {
            Err(error) if error.code != 404 => return Err(error),
            _ => {}
        }
    }
    let time = now_text();
    let event = json!({
        "metadata": {"generateName": format!("{name}-"), "namespace": kedge_api::CLUSTER_EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": &*node.uid},
        "reason": "DenialLifted", "message": message, "type": "Warning",
        "source": {"component": "kedge-hub"}, "reportingComponent": "kedge-hub", "reportingInstance": "",
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    });
    hub.create(&EVENT, event).await.map(drop)
}
