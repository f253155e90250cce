//! The identity of each request, judged at the moment of the request.
//!
//! Always holds: a credential that has expired proves nothing, however long its connection or TLS session has stood: such a request is
//! answered 401 and its connection ends. An anonymous caller is none whose credential is no longer valid. Left to others: what an
//! identity may do (`kedge_hub_core::identity`).

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;
use time::OffsetDateTime;

use super::connection::Caller;
use super::shared::Server;

/// The identity of a request of this caller; `None` for an anonymous one.
///
/// # Errors
/// 401 for a credential that is not valid any more; the reason is logged.
pub(super) fn of_request(server: &Server, caller: &Caller) -> Result<Arc<Option<Identity>>, ApiError> {
    match (*caller.identity).as_ref() {
        Some(identity) if identity.is_expired(OffsetDateTime::now_utc()) => {
            refuse(server, caller, identity, "expired")
        }
        _ => Ok(Arc::clone(&caller.identity)),
    }
}

fn refuse<T>(server: &Server, caller: &Caller, identity: &Identity, why: &str) -> Result<T, ApiError> {
    let lines = &server.counters.refused_credential_lines;
    let before = lines.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
    if let Some(before) = before {
        log::warn!(
            "refused a request of {:?} from {}: its credential {} has {why} ({before} more since the last line)",
            identity.user,
            caller.from,
            identity.credential
        );
    }
    Err(ApiError::unauthorized())
}
