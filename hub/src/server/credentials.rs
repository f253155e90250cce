//! The server's state about credentials: which nodes use theirs, which are denied, until when one is valid.
//!
//! Left to others: the credential that one request presents (`authentication`).

use crate::credential_table;
use crate::hub::Hub;
use crate::server::knocks::Knocks;
use http::header;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList};
use kedge_hub_core::identity::token::{self, ISSUER};
use kedge_hub_core::kinds::{CONFIG_MAP, Kind};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::KINDS_OF_RIGHTS;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch as signal;

/// The bearer token of a request.
pub(super) fn bearer(headers: &http::HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The identity that the claims of a token prove to this API now.
pub(super) fn identify(hub: &Hub, claims: &Value) -> Result<Identity, String> {
    let (identity, _) = token::authenticate(claims, &[ISSUER.to_owned()], OffsetDateTime::now_utc(), hub)?;
    Ok(identity)
}

/// The claims of a token, if this hub signed it.
pub(super) fn claims(hub: &Hub, token: &str) -> Option<Value> {
    hub.tokens()?.verifier.claims(token)
}

/// Longest time until an expiry is checked again: the wall clock may have been set meanwhile.
pub(super) const RECHECK: Duration = Duration::from_secs(60 * 60);

/// How long a connection whose credential has become invalid may wait for a last request, which is refused.
pub(super) const LAST_REQUEST: Duration = Duration::from_secs(10);

/// Pause before the deny list is watched again, after its watch has ended.
pub(super) const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// The server's state about credentials.
#[derive(Debug)]
pub(super) struct Credentials {
    hub: Arc<Hub>,
    /// The deny list as it was at a revision.
    denied: RwLock<(u64, Arc<DenyList>)>,
    changed: signal::Sender<()>,
    /// The latest valid credential of each node since the hub started.
    nodes: Mutex<HashMap<Box<str>, Arc<Seen>>>,
    /// The issue number of the newest credential that each node has shown since the hub started, including
    /// refused ones.
    issued: Mutex<HashMap<Box<str>, u64>>,
    pub(super) knocks: Knocks,
}

/// The credential that a node last connected with.
#[derive(Debug)]
pub(super) struct Seen {
    /// Unix time.
    pub(super) not_after: Option<i64>,
    /// Time of its last request that was accepted; Unix time, 0 before the first.
    pub(crate) contact: AtomicI64,
}

impl Seen {
    /// Time of the node's last accepted request, Unix time.
    pub(super) fn contact(&self) -> Option<i64> {
        Some(self.contact.load(Ordering::Relaxed)).filter(|time| *time > 0)
    }
}

impl Credentials {
    pub(super) fn new(hub: Arc<Hub>) -> Credentials {
        Credentials {
            hub,
            denied: RwLock::default(),
            changed: signal::channel(()).0,
            nodes: Mutex::default(),
            issued: Mutex::default(),
            knocks: Knocks::default(),
        }
    }

    /// The deny list at this moment.
    pub(super) fn denied(&self) -> Arc<DenyList> {
        let revision = self.hub.memory().deny_list();
        let known = self.denied.read().unwrap_or_else(PoisonError::into_inner);
        if known.0 == revision {
            return Arc::clone(&known.1);
        }
        drop(known);
        let found = self.hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        let revision = found.as_ref().map_or(0, |found| found.revision);
        let list = Arc::new(found.map_or_else(DenyList::default, |found| DenyList::read(&found.value())));
        if !list.unknown.is_empty() {
            log::warn!("{DENY_LIST_NAMESPACE}/{DENY_LIST_NAME}: these keys deny nothing: {:?}", list.unknown);
        }
        *self.denied.write().unwrap_or_else(PoisonError::into_inner) = (revision, Arc::clone(&list));
        list
    }

    /// This identity, unless its credential is not valid now.
    pub(super) fn valid<'a>(&self, identity: Option<&'a Identity>) -> Option<&'a Identity> {
        identity.filter(|identity| self.fault(identity).is_none())
    }

    /// The reason why this identity's credential is not valid now, if so.
    pub(crate) fn fault(&self, identity: &Identity) -> Option<String> {
        if identity.is_expired(OffsetDateTime::now_utc()) {
            return Some("the credential has expired".to_owned());
        }
        self.denied().refusal(identity)
    }

    /// Notes that a node connects with this credential, which is valid.
    pub(super) fn connected(&self, identity: Option<&Identity>) -> Option<Arc<Seen>> {
        let identity = identity?;
        self.note_issue(identity);
        let node = identity.node()?;
        self.knocks.forget(node);
        self.note_newest(identity);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = nodes.get(node).filter(|seen| seen.not_after == identity.not_after);
        let seen = known
            .cloned()
            .unwrap_or_else(|| Arc::new(Seen { not_after: identity.not_after, contact: AtomicI64::new(0) }));
        // the number of verified names is limited by the hub's signatures
        nodes.insert(node.into(), Arc::clone(&seen));
        Some(seen)
    }

    /// Handles an issue number that this directory may not have handed out. Then the directory is an older
    /// copy of the one that did.
    fn meet(&self, identity: &Identity) {
        let number = identity.issue;
        if !self.hub.issue_numbers().is_unknown(number) {
            return;
        }
        let (numbers, user) = (Arc::clone(self.hub.issue_numbers()), identity.user.clone());
        // once for each such number: the disk must not hold up the connection
        std::thread::spawn(move || match numbers.meet(number) {
            Ok(false) => {}
            Ok(true) => log::error!(
                "{user:?} has a certificate with issue number {number}, which this data directory never handed out: the                  directory is an older copy, and later revocations may be missing in it; see kedge-hub node list"
            ),
            Err(error) => log::error!("cannot raise the issue number above {number}: {error}"),
        });
    }

    /// Notes a credential in the table if it is the node's newest one: it may have been made beside the hub,
    /// or by an older one.
    fn note_newest(&self, identity: &Identity) {
        let Some((node, newest)) = credential_table::newest(identity) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !credential_table::of(&self.hub, node).take(newest.clone()) {
            return;
        }
        let (hub, node) = (Arc::clone(&self.hub), node.to_owned());
        runtime.spawn(async move {
            if let Err(error) = credential_table::note(&hub, &node, &newest).await {
                log::debug!("cannot note the certificate of node {node}, until it connects again: {error}");
            }
        });
    }

    /// The identity of an expired certificate that may ask for the next one.
    pub(super) fn returning(&self, identity: &Identity) -> Option<Identity> {
        let returning = identity.is_expired(OffsetDateTime::now_utc()).then(|| identity.returning())??;
        self.denied().refusal(&returning).is_none().then_some(returning)
    }

    /// Notes the issue number of a node's credential. The number of verified names is limited by the hub's
    /// signatures.
    pub(crate) fn note_issue(&self, identity: &Identity) {
        self.meet(identity);
        let (Some(node), issued) = (identity.node(), identity.issue) else { return };
        let mut newest = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        match newest.get_mut(node) {
            Some(known) => *known = issued.max(*known),
            None => drop(newest.insert(node.into(), issued)),
        }
    }

    /// Issue number of the newest credential that a node has shown since the hub started.
    pub(super) fn newest_issue(&self, node: &str) -> u64 {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner).get(node).copied().unwrap_or(0)
    }

    /// The credential that a node last connected with.
    pub(super) fn seen(&self, node: &str) -> Option<Arc<Seen>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// Notifies open connections of each change of the deny list, of a role or of a binding, for as long as
    /// the hub runs.
    pub(super) async fn follow(&self) {
        let selected = format!("metadata.name={DENY_LIST_NAME}");
        let selection = Selection::parse(&CONFIG_MAP, DENY_LIST_NAMESPACE, "", &selected)
            .expect("it selects one name, which every kind has");
        let [first, second, third, fourth] = KINDS_OF_RIGHTS;
        tokio::join!(
            self.follow_kind(&CONFIG_MAP, selection),
            self.follow_kind(first, Selection::default()),
            self.follow_kind(second, Selection::default()),
            self.follow_kind(third, Selection::default()),
            self.follow_kind(fourth, Selection::default()),
        );
    }

    async fn follow_kind(&self, kind: &'static Kind, selection: Selection) {
        loop {
            if let Ok((_, _, mut watch)) = self.hub.memory().watch(kind, selection.clone(), None, None) {
                self.changed.send_replace(());
                while watch.receiver.recv().await.is_some() {
                    self.changed.send_replace(());
                }
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    /// Resolves when this identity has become invalid; never resolves for an anonymous one.
    pub(super) async fn ended(&self, identity: Option<&Identity>) {
        let Some(identity) = identity else { return std::future::pending().await };
        if self.fault(identity).is_some() {
            // so that the client learns from an answer that it is refused
            return tokio::time::sleep(LAST_REQUEST).await;
        }
        self.while_holds(identity.not_after, RECHECK, || self.fault(identity).is_none()).await;
    }

    /// Resolves when `holds` returns false. `holds` is called at each change of the deny list, of a role or
    /// of a binding, at the expiry, and after `recheck` at the latest.
    pub(crate) async fn while_holds(
        &self,
        not_after: Option<i64>,
        recheck: Duration,
        holds: impl Fn() -> bool,
    ) {
        // subscribed before the first check, so no change is missed
        let mut changed = self.changed.subscribe();
        while holds() {
            let left = not_after.map_or(i64::MAX, |end| end - OffsetDateTime::now_utc().unix_timestamp());
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0)).min(recheck);
            tokio::select! {
                // the expiry is rounded down to a second, so wait a little longer
                () = tokio::time::sleep(left + Duration::from_millis(10)) => {}
                told = changed.changed() => if told.is_err() { return std::future::pending().await },
            }
        }
    }
}
