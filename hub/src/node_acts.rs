//! Performs the acts that a Node's annotations and conditions ask of the hub: the decision about an
//! assignment after a restore, and the end of a node that was decommissioned.
//!
//! Always holds: a decommissioned node is denied, durably, before its Node is deleted, so a crash between
//! repeats both. Left to others: the meaning of a report (`kedge_hub_core::restored`), the commands that set
//! the annotations (`server::node_access`), the node's own acts (the agent).

use std::sync::Arc;
use std::time::Duration;

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::denied::{self, Change, DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList};
use kedge_hub_core::kinds::{CONFIG_MAP, NODE};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::{DeleteOptions, Part, Place, WriteOptions};
use kedge_hub_core::restored;
use kedge_hub_core::value::text;
use serde_json::Value;

use crate::Hub;
use crate::fresh::now_text;
use crate::requests;

/// Annotation: the UID of a Node that is to be given up, with `,wipe` if its disk is to be wiped. Nodes may
/// not write it.
pub(crate) const DECOMMISSION: &str = "kedge.dev/decommission";
/// Condition by which a node says that nothing but its identity is left.
const DECOMMISSIONED: &str = "Decommissioned";
/// Wait before the Nodes are read again, after their watch ended or an act failed.
const AGAIN: Duration = Duration::from_secs(10);

/// Acts for as long as the hub runs.
pub async fn follow(hub: Arc<Hub>) {
    loop {
        let mut changes = hub.subscribe(&NODE);
        let mut failed = false;
        for node in std::mem::take(&mut changes.snapshot) {
            failed |= !act_on(&hub, &node).await;
        }
        // after a failure all are read again
        while !failed && let Some(event) = changes.next().await {
            if let Some(node) = &event.new {
                failed |= !act_on(&hub, node).await;
            }
        }
        drop(changes);
        tokio::time::sleep(AGAIN).await;
    }
}

/// Returns false if something has to be tried again.
async fn act_on(hub: &Hub, object: &Object) -> bool {
    // most Nodes have neither, and are not parsed
    let has = |word: &str| object.json.windows(word.len()).any(|window| window == word.as_bytes());
    let mut done = true;
    if has(restored::RESTORED) {
        done &= report(&object.name, "decide on the assignment of", decide(hub, &object.value()).await);
    }
    if has(DECOMMISSION) && is_decommissioned(&object.value()) {
        done &= report(&object.name, "give up", give_up(hub, object).await);
    }
    done
}

fn report(node: &str, tried: &str, outcome: Result<(), ApiError>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(error) if error.code == 404 => true,
        Err(error) => {
            log::warn!("cannot {tried} node {node:?}, trying again: {error}");
            false
        }
    }
}

/// Writes into a restored Node whether the store knows what it reports.
async fn decide(hub: &Hub, node: &Value) -> Result<(), ApiError> {
    if !restored::is_marked(node) {
        return Ok(());
    }
    let finding = |node: &Value| {
        let found = restored::reported(node).and_then(|(space, name)| hub.get(&CONFIG_MAP, space, name));
        restored::judge(node, found.map(|found| found.value()).as_ref())
    };
    let mut settled = node.clone();
    if !restored::settle(&mut settled, &finding(node), "") {
        return Ok(());
    }
    let (name, now) = (text(node, &["metadata", "name"]), now_text());
    let change = |node: &mut Value| {
        if restored::is_marked(node) {
            let finding = finding(node);
            restored::settle(node, &finding, &now);
        }
    };
    let written = hub.update(&NODE, "", name, change).await?;
    if restored::awaits_decision(&written.value()) {
        log::warn!(
            "node {name:?} reports an assignment that the restored store does not know: it waits for `kedge-hub node accept`"
        );
    }
    Ok(())
}

/// Whether a node has done what the annotation asks: the annotation names this very Node, and the node says
/// so.
fn is_decommissioned(node: &Value) -> bool {
    let asked = text(node, &["metadata", "annotations", DECOMMISSION]);
    let uid = text(node, &["metadata", "uid"]);
    let conditions = node["status"]["conditions"].as_array();
    !uid.is_empty()
        && asked.split(',').next() == Some(uid)
        && conditions
            .is_some_and(|all| all.iter().any(|one| one["type"] == DECOMMISSIONED && one["status"] == "True"))
}

/// Denies a decommissioned node every credential that it had, and deletes its Node, but none that has the
/// same name since then.
async fn give_up(hub: &Hub, node: &Object) -> Result<(), ApiError> {
    let name: &str = &node.name;
    if hub.get(&NODE, "", name).is_none_or(|found| found.uid != node.uid) {
        return Ok(());
    }
    let list = hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let list = list.map_or(Value::Null, |list| list.value());
    // a node that was revoked stays so
    if !DenyList::read(&list).is_revoked(name) {
        let numbers = Arc::clone(hub.issue_numbers());
        let taken = tokio::task::spawn_blocking(move || numbers.take()).await;
        let issue = taken
            .map_err(|_| ApiError::internal("the counter failed"))?
            .map_err(|error| ApiError::internal(format!("cannot take an issue number: {error}")))?;
        deny(hub, name, issue).await?;
    }
    let place = Place { kind: &NODE, namespace: "", name };
    let asked = DeleteOptions { uid: Some(node.uid.to_string()), ..DeleteOptions::default() };
    requests::delete(hub, &place, &asked, &WriteOptions::internal()).await?;
    log::info!(
        "node {name:?} was decommissioned: its credentials are denied, its Node is deleted; a new token may let the name in again"
    );
    Ok(())
}

async fn deny(hub: &Hub, name: &str, issue: u64) -> Result<(), ApiError> {
    if hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME).is_none() {
        match hub.create(&CONFIG_MAP, denied::empty_list()).await {
            Err(error) if error.reason != "AlreadyExists" => return Err(error),
            _ => {}
        }
    }
    let time = now_text();
    let change = Change { by: "kedge-hub", time: &time, issue, reason: "decommissioned" };
    let options = WriteOptions { lifts_denials: true, ..WriteOptions::internal() };
    let place = Place { kind: &CONFIG_MAP, namespace: DENY_LIST_NAMESPACE, name: DENY_LIST_NAME };
    let compute = |_: &Object, mut list: Value| {
        if !DenyList::read(&list).is_revoked(name) {
            change.decommission(&mut list, name);
        }
        Ok(list)
    };
    requests::edit(hub, &place, Part::All, &options, compute).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_named_node_is_given_up() {
        let node = |asked: &str, status: &str| {
            json!({"metadata": {"name": "a", "uid": "u1", "annotations": {DECOMMISSION: asked}},
                "status": {"conditions": [{"type": "Ready"}, {"type": "Decommissioned", "status": status}]}})
        };
        for (asked, status, expect) in [
            ("u1", "True", true),
            ("u1,wipe", "True", true),
            ("u1", "False", false),
            // of an earlier Node of this name
            ("u0", "True", false),
            ("", "True", false),
        ] {
            assert_eq!(is_decommissioned(&node(asked, status)), expect, "{asked} {status}");
        }
        let mut unasked = node("u1", "True");
        unasked["metadata"].as_object_mut().unwrap().remove("annotations");
        assert!(!is_decommissioned(&unasked), "a node that says so by itself");
        unasked["metadata"]["uid"] = "".into();
        assert!(!is_decommissioned(&unasked));
    }
}
