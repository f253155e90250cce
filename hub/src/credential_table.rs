//! Keeps the table of the nodes' newest credentials in the store.
//!
//! Always holds: a record is durable when `note` returns; an older credential changes nothing. Left to
//! others: the order of credentials (`kedge_hub_core::identity::credential`).

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::identity::credential::{Newest, Record};
use kedge_hub_core::kinds::CREDENTIAL;
use serde_json::{Value, json};

use crate::Hub;

/// The record of a node.
pub(crate) fn of(hub: &Hub, node: &str) -> Record {
    hub.get(&CREDENTIAL, "", node).map(|found| Record::read(&found.value())).unwrap_or_default()
}

/// The node and the credential of an identity, if it has one that the table keeps.
pub(crate) fn newest(identity: &Identity) -> Option<(&str, Newest)> {
    let (node, not_after) = (identity.node()?, identity.not_after?);
    let is_kept = !identity.is_admin() && !identity.key.is_empty();
    is_kept.then(|| (node, Newest { issue: identity.issue, not_after, key: identity.key.to_string() }))
}

/// Notes the newest credential of a node, unless a newer one is known.
pub(crate) async fn note(hub: &Hub, node: &str, newest: &Newest) -> Result<(), ApiError> {
    let place = (&CREDENTIAL, "", node);
    if hub.get(place.0, place.1, place.2).is_none() {
        let mut value = json!({"metadata": {"name": node}});
        Record { newest: Some(newest.clone()), ..Record::default() }.write(&mut value);
        match hub.create(&CREDENTIAL, value).await {
            Err(error) if error.reason == "AlreadyExists" => {}
            outcome => return outcome.map(drop),
        }
    }
    let edit = |stored: &mut Value| {
        let mut record = Record::read(stored);
        if record.take(newest.clone()) {
            record.write(stored);
        }
    };
    hub.update(place.0, place.1, place.2, edit).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(issue: u64, not_after: i64) -> Newest {
        Newest { issue, not_after, key: format!("key-{issue}") }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn newest_credential_outlasts_the_hub() {
        let data = kedge_rig::Scratch::new("hub-credential-table").unwrap();
        let hub = Hub::open(&data).unwrap();
        assert_eq!(of(&hub, "edge-1"), Record::default());
        for (issue, expect) in [(2, 2), (7, 7), (3, 7)] {
            note(&hub, "edge-1", &certificate(issue, 100)).await.unwrap();
            assert_eq!(of(&hub, "edge-1").newest, Some(certificate(expect, 100)), "{issue}");
        }
        hub.close();
        let hub = Hub::open(&data).unwrap();
        assert_eq!(of(&hub, "edge-1").newest, Some(certificate(7, 100)));
        assert_eq!(of(&hub, "edge-2").newest, None);
        hub.close();
    }
}
