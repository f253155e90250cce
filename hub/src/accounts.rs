//! Every namespace has a ServiceAccount named `default`: pods that name none run as it.
//!
//! Level-driven, as `garbage`: it looks at everything at start and now and again, and in between at what changes. A deleted one is
//! made again, as upstream does; a terminating namespace gets none.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::Hub;
use kedge_hub_core::kinds::{NAMESPACE, SERVICE_ACCOUNT};

/// The account's name in every namespace.
pub const NAME: &str = "default";
/// Everything is looked at this often, besides what changes.
const SWEEP: Duration = Duration::from_secs(60);
/// Wait before subscriptions are made again.
const RESUBSCRIBE: Duration = Duration::from_millis(200);

/// Runs until the hub closes.
pub async fn run(hub: Arc<Hub>) {
    loop {
        let (mut namespaces, mut accounts) = (hub.subscribe(&NAMESPACE), hub.subscribe(&SERVICE_ACCOUNT));
        for namespace in hub.list(&NAMESPACE, "") {
            ensure(&hub, &namespace.name).await;
        }
        let sweep = tokio::time::sleep(SWEEP);
        tokio::pin!(sweep);
        loop {
            tokio::select! {
                change = namespaces.next() => match change {
                    Some(event) if event.old.is_none() => ensure(&hub, &event.object().name).await,
                    Some(_) => {}
                    None => break,
                },
                change = accounts.next() => match change {
                    Some(event) if event.new.is_none() && &*event.object().name == NAME => {
                        ensure(&hub, &event.object().namespace).await;
                    }
                    Some(_) => {}
                    None => break,
                },
                () = &mut sweep => break,
            }
        }
        tokio::time::sleep(RESUBSCRIBE).await;
    }
}

async fn ensure(hub: &Hub, namespace: &str) {
    let wanted = hub.get(&NAMESPACE, "", namespace).is_some_and(|found| !found.terminating);
    if !wanted || hub.get(&SERVICE_ACCOUNT, namespace, NAME).is_some() {
        return;
    }
    let account = json!({"metadata": {"name": NAME, "namespace": namespace}});
    match hub.create(&SERVICE_ACCOUNT, account).await {
        Ok(_) => {}
        // made by somebody else, or the namespace began to go away
        Err(error) if matches!(error.code, 403 | 404 | 409) => {}
        Err(error) => log::warn!("cannot make the service account {NAME} of namespace {namespace}: {error}"),
    }
}
