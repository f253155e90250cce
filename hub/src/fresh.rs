//! The inputs that a pure decision cannot compute itself: the wall clock's time, and random bytes.

use kedge_hub_core::ApiError;
use kedge_hub_core::requests::Fresh;
use kedge_hub_core::value::rfc3339;
use time::OffsetDateTime;

/// The time as `metadata.creationTimestamp` writes it.
pub(crate) fn now_text() -> String {
    rfc3339(OffsetDateTime::now_utc())
}

/// The clock's time, and random bytes of the system.
pub(crate) fn fresh() -> Result<Fresh, ApiError> {
    let mut random = [0; 21];
    let provider = rustls::crypto::ring::default_provider();
    let failed = |_| ApiError::internal("the system gives no random numbers");
    provider.secure_random.fill(&mut random).map_err(failed)?;
    Ok(Fresh { now: OffsetDateTime::now_utc(), random })
}
