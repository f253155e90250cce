//! The identity of each request, checked at the time of the request, and the end of connections whose
//! credential is no longer valid.
//!
//! Always holds: an expired or revoked credential proves nothing, however old its connection, TLS session or
//! watch is. Its requests are answered with 401, also those that began earlier or are queued, and its open
//! connections are closed. The one exception: a node with an expired certificate may ask for the next one (a
//! standing of its own, which only the authorizer of returning nodes judges). A watch that a token began
//! sends nothing more, and ends within a minute after the deletion of the object that the token is bound to.
//! A watch or session whose caller loses the right to begin it ends at once. A request with an invalid
//! credential uses up none of the limits of the identity that it names. A change of the deny list, of a role
//! or of a binding takes effect before its writer is answered. Left to others: the rights of an identity, and
//! the meaning of the deny list (`kedge_hub_core::identity`).

use crate::server::caller::Caller;
use crate::server::credentials;
use crate::server::guesses::Guesses;
use crate::server::handshakes::Network;
use crate::server::request;
use crate::server::shared::Server;
use kedge_api::BOOTSTRAP_USER_PREFIX;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::bootstrap_token::{self, BootstrapToken};
use kedge_hub_core::identity::{self, Attributes, EXPIRED_SINCE, Identity};
use kedge_hub_core::kinds::SECRET;
use serde_json::Value;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Longest time until the object that a token is bound to is checked again: its deletion is not announced.
pub(super) const TOKEN_RECHECK: Duration = Duration::from_secs(60);

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
    token: Option<Token>,
}

const TOO_MANY_GUESSES: &str = "too many wrong bootstrap tokens from this network, try again later";

/// The token of a request. Not `Debug`, because it may contain a secret.
#[derive(Clone)]
enum Token {
    /// A service account's: its claims, if this hub signed it.
    Account(Option<Value>),
    /// Id and secret of a bootstrap token.
    Bootstrap(Box<str>, Box<str>),
}

impl Token {
    fn of(server: &Server, written: &str) -> Token {
        match bootstrap_token::parse(written) {
            Some((id, secret)) => Token::Bootstrap(id.into(), secret.into()),
            None => Token::Account(credentials::claims(&server.hub, written)),
        }
    }

    /// The identity that it proves now; if it proves none, the identity that it names, and the reason.
    fn proves(&self, server: &Server) -> Result<Identity, Box<(Identity, String)>> {
        match self {
            Token::Account(claims) => of_token(server, claims.as_ref()),
            Token::Bootstrap(id, secret) => of_bootstrap_token(server, id, secret),
        }
    }

    fn not_after(&self) -> Option<i64> {
        match self {
            Token::Account(claims) => claims.as_ref()?["exp"].as_i64(),
            // it is checked again after `TOKEN_RECHECK`
            Token::Bootstrap(..) => None,
        }
    }
}

impl Presented {
    pub(super) fn new(server: Arc<Server>, caller: Caller, parts: &http::request::Parts) -> Presented {
        let anonymous = caller.identity.is_none();
        let token = credentials::bearer(&parts.headers).filter(|_| anonymous);
        let token = token.map(|token| Token::of(&server, token));
        Presented { server, caller, token }
    }

    /// The same for the first time in a request: a wrong bootstrap token counts as a guess of its network.
    ///
    /// # Errors
    /// As [`Presented::identity`], and 429 if this network has made too many guesses: even a right token does
    /// not count then.
    pub(super) fn first_identity(&self) -> Result<Arc<Option<Identity>>, ApiError> {
        let Some(Token::Bootstrap(..)) = self.token else { return self.identity() };
        let (guesses, now) = (&self.server.guesses, Instant::now());
        let network = Network::of(self.caller.from, None);
        // counted before it is compared, so that no number of guesses at once exceeds the rate
        if !guesses.begin(network, now) {
            return Err(ApiError::too_many_requests(TOO_MANY_GUESSES).retry_after(Guesses::SECS_PER_GUESS));
        }
        let identity = self.identity()?;
        guesses.was_right(network, now);
        Ok(identity)
    }

    /// The identity that the credentials prove now; `None` for an anonymous caller.
    ///
    /// # Errors
    /// 401 for a credential that is not valid, or no longer valid; the reason is logged.
    pub(super) fn identity(&self) -> Result<Arc<Option<Identity>>, ApiError> {
        let (server, caller) = (&*self.server, &self.caller);
        if let Some(token) = &self.token {
            return match token.proves(server) {
                Ok(identity) => Ok(Arc::new(Some(identity))),
                Err(named) => Err(refused(server, caller, &named.0, &named.1)),
            };
        }
        if let Some(identity) = (*caller.identity).as_ref() {
            if let Some(returning) = server.credentials.returning(identity) {
                return Ok(Arc::new(Some(returning)));
            }
            prove(server, caller, identity).map_err(|why| {
                let now = OffsetDateTime::now_utc().unix_timestamp();
                server.credentials.knocks.note(identity, &why, now);
                refused(server, caller, identity, &why)
            })?;
        }
        Ok(Arc::clone(&caller.identity))
    }

    /// The refusal of a status by this node, if its connection is of the second of two machines.
    pub(super) fn refusal_of_status(&self, node: &str, body: &[u8]) -> Option<ApiError> {
        self.caller.boot.refusal(node, body)
    }

    /// Resolves when the client disconnects during its call.
    pub(super) async fn left(&self) {
        self.caller.patience.left_for(Duration::ZERO).await;
    }

    /// The validity of a watch or session that began by this right; `None` without a token and without a
    /// right that may go, because a certificate ends its whole connection.
    pub(super) fn standing(&self, right: Option<Right>) -> Option<Standing> {
        let token = self.token.clone();
        if token.is_none() && right.is_none() {
            return None;
        }
        Some(Standing::of(Arc::clone(&self.server), token, right))
    }
}

/// The right by which a watch or session began, for a caller that roles give its rights.
pub(super) struct Right {
    caller: Identity,
    /// Headers by which the caller impersonates another one.
    headers: Vec<(String, Vec<u8>)>,
    asked: Asked,
    /// The number of changes of all rights at the last time that it was found to hold.
    seen: AtomicU64,
}

/// The attributes of a request.
struct Asked {
    verbs: Vec<String>,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

impl Right {
    /// `identity`: the effective identity. `None` for administrators, and for nodes, whose rights follow from
    /// the stored objects.
    pub(super) fn new(
        caller: &Identity,
        identity: &Identity,
        headers: &http::HeaderMap,
        asked: &Attributes<'_>,
    ) -> Option<Right> {
        // also of the caller: the right to impersonate one may end
        let is_settled = |who: &Identity| who.is_admin() || who.node().is_some();
        if is_settled(caller) && is_settled(identity) {
            return None;
        }
        let own = |text: &str| text.to_owned();
        let mut verbs = vec![own(asked.verb)];
        if request::needs_create(asked.verb, asked.subresource) {
            verbs.push(own("create"));
        }
        let asked = Asked {
            verbs,
            group: own(asked.group),
            resource: own(asked.resource),
            subresource: own(asked.subresource),
            namespace: own(asked.namespace),
            name: own(asked.requested_name()),
        };
        let headers = headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
        let headers = headers.map(|(name, value)| (own(name.as_str()), value.as_bytes().to_vec())).collect();
        // a change since the request was authorized counts, too
        Some(Right { caller: caller.clone(), headers, asked, seen: AtomicU64::new(u64::MAX) })
    }

    /// Whether the caller may still make the request.
    fn holds(&self, server: &Server) -> bool {
        let hub = &server.hub;
        let changes = hub.memory().rights_changes();
        if self.seen.load(Ordering::Relaxed) == changes {
            return true;
        }
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let Ok(identity) = identity::effective(Some(&self.caller), headers, &**hub) else { return false };
        let Asked { verbs, group, resource, subresource, namespace, name } = &self.asked;
        let holds = verbs.iter().all(|verb| {
            let (selection, path) = (None, "");
            let asked = Attributes { verb, group, resource, subresource, namespace, name, selection, path };
            identity::authorize(identity.as_ref(), &asked, &**hub).is_ok()
        });
        if holds {
            self.seen.store(changes, Ordering::Relaxed);
        }
        holds
    }
}

/// The identity of a bootstrap token, as [`of_token`].
fn of_bootstrap_token(server: &Server, id: &str, secret: &str) -> Result<Identity, Box<(Identity, String)>> {
    let named = || Identity::new(&format!("{BOOTSTRAP_USER_PREFIX}{id}"), &[]);
    let found = server.hub.get(&SECRET, bootstrap_token::NAMESPACE, &bootstrap_token::secret_name(id));
    let token = found.and_then(|found| BootstrapToken::from_secret(&found.value()));
    let Some(token) = token.filter(|token| token.is_secret(secret)) else {
        return Err(Box::new((named(), "there is no such bootstrap token".to_owned())));
    };
    if !token.authenticates {
        return Err(Box::new((named(), "this bootstrap token does not authenticate".to_owned())));
    }
    let identity = token.identity();
    match server.credentials.fault(&identity) {
        Some(why) => Err(Box::new((identity, why))),
        None => Ok(identity),
    }
}

/// The identity that a bootstrap token in a review proves now, or the reason why it proves none. `from`: the
/// address of the review; a node may make one, and must not guess in this way either.
pub(super) fn of_reviewed(server: &Server, from: IpAddr, token: &str) -> Option<Result<Identity, String>> {
    let (id, secret) = bootstrap_token::parse(token)?;
    let (network, now) = (Network::of(from, None), Instant::now());
    if !server.guesses.begin(network, now) {
        return Some(Err(TOO_MANY_GUESSES.to_owned()));
    }
    let judged = of_bootstrap_token(server, id, secret).map_err(|named| named.1);
    if judged.is_ok() {
        server.guesses.was_right(network, now);
    }
    Some(judged)
}

/// The identity that a token proves now; if it proves none, the identity that it names, and the reason.
pub(super) fn of_token(server: &Server, claims: Option<&Value>) -> Result<Identity, Box<(Identity, String)>> {
    let nobody = |why: String| Box::new((Identity::new("", &[]), why));
    let claims = claims.ok_or_else(|| nobody("the token is not of this hub".to_owned()))?;
    let identity = credentials::identify(&server.hub, claims).map_err(nobody)?;
    match server.credentials.fault(&identity) {
        Some(why) => Err(Box::new((identity, why))),
        None => Ok(identity),
    }
}

/// The token and the right of a watch or session, for checks that both are still valid.
pub(super) struct Standing {
    proves: Arc<dyn Fn() -> bool + Send + Sync>,
    over: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl Standing {
    /// Of a service account's token with these claims.
    #[cfg(test)]
    pub(super) fn new(server: Arc<Server>, claims: Value) -> Standing {
        Standing::of(server, Some(Token::Account(Some(claims))), None)
    }

    fn of(server: Arc<Server>, token: Option<Token>, right: Option<Right>) -> Standing {
        let not_after = token.as_ref().and_then(Token::not_after);
        let recheck = if token.is_some() { TOKEN_RECHECK } else { credentials::RECHECK };
        let waits = Arc::clone(&server);
        let proves: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || {
            token.as_ref().is_none_or(|token| token.proves(&server).is_ok())
                && right.as_ref().is_none_or(|right| right.holds(&server))
        });
        let holds = Arc::clone(&proves);
        let over = Box::pin(async move {
            waits.credentials.while_holds(not_after, recheck, || holds()).await;
        });
        Standing { proves, over }
    }

    /// True if both are valid now; otherwise nothing more may be sent.
    pub(super) fn proves(&self) -> bool {
        (self.proves)()
    }

    /// Ready when one of them has become invalid.
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.over.as_mut().poll(context)
    }
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Standing")
    }
}

/// Logs the holder of an expired certificate: if it asks for nothing, no other line would name it.
pub(super) fn note_returning(server: &Server, from: IpAddr, identity: &Identity) {
    let lines = &server.counters.returning_lines;
    let before = lines.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
    if let Some(before) = before {
        let since = identity.extra().remove(EXPIRED_SINCE).unwrap_or_default().concat();
        log::warn!(
            "{} at {} shows a certificate that has been expired since {since} (Unix time): it may ask for the next one ({before} more \
             since the last line)",
            identity.user,
            from
        );
    }
}

pub(super) fn refused(server: &Server, caller: &Caller, identity: &Identity, why: &str) -> ApiError {
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
