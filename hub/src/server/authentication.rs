//! The identity of each request, checked at the time of the request, and the end of connections whose
//! credential is no longer valid.
//!
//! Always holds: an expired or revoked credential proves nothing, however old its connection, TLS session or
//! watch is: its requests are answered with 401, also those that began earlier or are queued, and its open
//! connections are closed; a watch that a token began sends nothing more, and ends within a minute after the
//! deletion of the object that the token is bound to. A request with an invalid credential uses up none of
//! the limits of the identity that it names. A change of the deny list takes effect before its writer is
//! answered. Left to others: the rights of an identity, and the meaning of the deny list
//! (`kedge_hub_core::identity`).

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList};
use kedge_hub_core::kinds::CONFIG_MAP;
use kedge_hub_core::selector::Selection;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::watch as signal;

use super::connection::Caller;
use super::shared::Server;
use super::tokens;
use crate::hub::Hub;

/// Longest time until an expiry is checked again: the wall clock may have been set meanwhile.
const RECHECK: Duration = Duration::from_secs(60 * 60);
/// Longest time until the object that a token is bound to is checked again: its deletion is not announced.
const TOKEN_RECHECK: Duration = Duration::from_secs(60);
/// How long a connection whose credential has become invalid may wait for a last request, which is refused.
const LAST_REQUEST: Duration = Duration::from_secs(10);
/// Pause before the deny list is watched again, after its watch has ended.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// The server's state about credentials.
#[derive(Debug)]
pub(super) struct Credentials {
    hub: Arc<Hub>,
    /// The deny list as it was at a revision.
    denied: RwLock<(u64, Arc<DenyList>)>,
    changed: signal::Sender<()>,
    /// The latest valid credential of each node since the hub started.
    nodes: Mutex<HashMap<Box<str>, Arc<Seen>>>,
    /// The issue time of the newest credential that each node has shown since the hub started, including
    /// refused ones.
    issued: Mutex<HashMap<Box<str>, i64>>,
}

/// The credential that a node last connected with.
#[derive(Debug)]
pub(super) struct Seen {
    /// Unix time.
    pub(super) not_after: Option<i64>,
    /// Time of its last request that was accepted; Unix time, 0 before the first.
    contact: AtomicI64,
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
    fn fault(&self, identity: &Identity) -> Option<String> {
        if identity.is_expired(OffsetDateTime::now_utc()) {
            return Some("the credential has expired".to_owned());
        }
        self.denied().refusal(identity)
    }

    /// Notes that a node connects with this credential, which is valid.
    pub(super) fn connected(&self, identity: Option<&Identity>) -> Option<Arc<Seen>> {
        let identity = identity?;
        let node = identity.node()?;
        self.note_issue(identity);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = nodes.get(node).filter(|seen| seen.not_after == identity.not_after);
        let seen = known
            .cloned()
            .unwrap_or_else(|| Arc::new(Seen { not_after: identity.not_after, contact: AtomicI64::new(0) }));
        // the number of verified names is limited by the hub's signatures
        nodes.insert(node.into(), Arc::clone(&seen));
        Some(seen)
    }

    /// Notes when a credential of a node was issued. The number of verified names is limited by the hub's
    /// signatures.
    fn note_issue(&self, identity: &Identity) {
        let (Some(node), Some(issued)) = (identity.node(), identity.issued) else { return };
        let mut newest = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        match newest.get_mut(node) {
            Some(known) => *known = issued.max(*known),
            None => drop(newest.insert(node.into(), issued)),
        }
    }

    /// Issue time of the newest credential that a node has shown since the hub started, Unix time in
    /// microseconds.
    pub(super) fn newest_issue(&self, node: &str) -> Option<i64> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner).get(node).copied()
    }

    /// The credential that a node last connected with.
    pub(super) fn seen(&self, node: &str) -> Option<Arc<Seen>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// Notifies open connections of each change of the deny list, for as long as the hub runs.
    pub(super) async fn follow(&self) {
        let selected = format!("metadata.name={DENY_LIST_NAME}");
        let selection = Selection::parse(&CONFIG_MAP, DENY_LIST_NAMESPACE, "", &selected)
            .expect("it selects one name, which every kind has");
        loop {
            if let Ok((_, _, mut watch)) = self.hub.memory().watch(&CONFIG_MAP, selection.clone(), None, None)
            {
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

    /// Resolves when `holds` returns false. `holds` is called at each change of the deny list, at the expiry,
    /// and after `recheck` at the latest.
    async fn while_holds(&self, not_after: Option<i64>, recheck: Duration, holds: impl Fn() -> bool) {
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

/// Checks that the certificate of a connection proves its identity now; if so, notes a contact.
///
/// # Errors
/// The reason why it does not.
pub(super) fn prove(server: &Server, caller: &Caller, identity: &Identity) -> Result<(), String> {
    if let Some(why) = server.credentials.fault(identity) {
        server.credentials.note_issue(identity);
        return Err(why);
    }
    if let Some(seen) = &caller.seen {
        seen.contact.store(OffsetDateTime::now_utc().unix_timestamp(), Ordering::Relaxed);
    }
    Ok(())
}

/// The credentials that a request shows. They are checked when its head has been read, and again when its
/// body has: that may be minutes later.
pub(super) struct Presented {
    server: Arc<Server>,
    caller: Caller,
    /// The claims of a token, if the client shows one that this hub signed.
    token: Option<Option<Value>>,
}

impl Presented {
    pub(super) fn new(server: Arc<Server>, caller: Caller, parts: &http::request::Parts) -> Presented {
        let anonymous = caller.identity.is_none();
        let token = tokens::bearer(&parts.headers).filter(|_| anonymous);
        let token = token.map(|token| tokens::claims(&server.hub, token));
        Presented { server, caller, token }
    }

    /// The identity that the credentials prove now; `None` for an anonymous caller.
    ///
    /// # Errors
    /// 401 for a credential that is not valid, or no longer valid; the reason is logged.
    pub(super) fn identity(&self) -> Result<Arc<Option<Identity>>, ApiError> {
        let (server, caller) = (&*self.server, &self.caller);
        if let Some(claims) = &self.token {
            return match of_token(server, claims.as_ref()) {
                Ok(identity) => Ok(Arc::new(Some(identity))),
                Err(named) => Err(refused(server, caller, &named.0, &named.1)),
            };
        }
        if let Some(identity) = (*caller.identity).as_ref() {
            prove(server, caller, identity).map_err(|why| refused(server, caller, identity, &why))?;
        }
        Ok(Arc::clone(&caller.identity))
    }

    /// Resolves when the client disconnects during its call.
    pub(super) async fn left(&self) {
        self.caller.patience.left_for(Duration::ZERO).await;
    }

    /// The validity of a watch that a token began; `None` without a token, because a certificate ends its
    /// whole connection.
    pub(super) fn standing(&self) -> Option<Standing> {
        let claims = self.token.clone()??;
        Some(Standing::new(Arc::clone(&self.server), claims))
    }
}

/// The identity that a token proves now; if it proves none, the identity that it names, and the reason.
fn of_token(server: &Server, claims: Option<&Value>) -> Result<Identity, Box<(Identity, String)>> {
    let nobody = |why: String| Box::new((Identity::new("", &[]), why));
    let claims = claims.ok_or_else(|| nobody("the token is not of this hub".to_owned()))?;
    let identity = tokens::identify(&server.hub, claims).map_err(nobody)?;
    match server.credentials.fault(&identity) {
        Some(why) => Err(Box::new((identity, why))),
        None => Ok(identity),
    }
}

/// The token of a watch or session, for checks that it is still valid.
pub(super) struct Standing {
    proves: Arc<dyn Fn() -> bool + Send + Sync>,
    over: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl Standing {
    pub(super) fn new(server: Arc<Server>, claims: Value) -> Standing {
        let (not_after, credentials) = (claims["exp"].as_i64(), Arc::clone(&server));
        let proves: Arc<dyn Fn() -> bool + Send + Sync> =
            Arc::new(move || of_token(&server, Some(&claims)).is_ok());
        let holds = Arc::clone(&proves);
        let over = Box::pin(async move {
            credentials.credentials.while_holds(not_after, TOKEN_RECHECK, || holds()).await;
        });
        Standing { proves, over }
    }

    /// True if the token is valid now; otherwise nothing more may be sent.
    pub(super) fn proves(&self) -> bool {
        (self.proves)()
    }

    /// Ready when the token has become invalid.
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.over.as_mut().poll(context)
    }
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Standing")
    }
}

fn refused(server: &Server, caller: &Caller, identity: &Identity, why: &str) -> ApiError {
    let lines = &server.counters.refused_credential_lines;
    let before = lines.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
    if let Some(before) = before {
        log::warn!(
            "refused a request of {:?} from {} with {}: {why} ({before} more since the last line)",
            identity.user,
            caller.from,
            identity.credential
        );
    }
    ApiError::unauthorized()
}
