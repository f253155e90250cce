//! Requests, from reading to durable: what `kedge_hub_core::requests` decides is written, and decided again if somebody was quicker.
//!
//! Always holds: nothing is locked while a request's first try is computed; a request that lost a race takes turns with the others that
//! lost one for the same object, so no unversioned write ends in a conflict. Left to others: what a request means (core), HTTP
//! (`server`), who may (`identity`).

use kedge_hub_core::ApiError;
use kedge_hub_core::apply::Apply;
use kedge_hub_core::kinds::{Kind, NAMESPACE};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::{
    self, Answer, Decision, DeleteOptions, Fresh, Part, Place, WriteOptions, wants_generated_name,
};
use kedge_hub_core::state::{MAX_OBJECT_BYTES, WriteError};
use kedge_hub_core::value::rfc3339;
use serde_json::Value;
use time::OffsetDateTime;

use crate::Hub;

/// How often a write that names no version is decided anew because others were quicker. Those who lost take turns, so only
/// newcomers can still be quicker: so many in a row means a flood of writes to one object, and the client is asked to wait.
const ATTEMPTS: usize = 64;
/// Locks behind which losers wait for their turn; objects share them by their names' hash, which costs a wait and nothing else.
const LOCKS: usize = 64;
/// Upstream tries so many generated names before it gives up.
const NAME_ATTEMPTS: usize = 8;

/// One lock for each object that several want to write at once; first come, first served.
#[derive(Debug)]
pub(crate) struct KeyedLocks(Vec<tokio::sync::Mutex<()>>);

impl Default for KeyedLocks {
    fn default() -> KeyedLocks {
        KeyedLocks((0..LOCKS).map(|_| tokio::sync::Mutex::new(())).collect())
    }
}

impl KeyedLocks {
    async fn lock(&self, place: &Place<'_>) -> tokio::sync::MutexGuard<'_, ()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (place.kind.plural, place.namespace, place.name).hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % LOCKS as u64).expect("it is below LOCKS");
        self.0[index].lock().await
    }
}

/// The time as `metadata.creationTimestamp` writes it.
pub fn now_text() -> String {
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

/// Decides, writes; from the start again when somebody was quicker and the client named no version. (One that named a version is
/// refused by the second decision, which sees the object as it is then.)
async fn settle(
    hub: &Hub,
    place: &Place<'_>,
    mut decide: impl FnMut() -> Result<Decision, ApiError> + Send,
) -> Result<Answer, ApiError> {
    let mut turn = None;
    for _ in 0..ATTEMPTS {
        let (write, pending) = match decide()? {
            Decision::Answer(answer) => return Ok(answer),
            Decision::Write(write, pending) => (write, pending),
        };
        match hub.write(write).await {
            Ok(object) => return Ok(pending.answer(object)),
            Err(WriteError::Mismatch) if turn.is_none() => turn = Some(hub.locks().lock(place).await),
            Err(WriteError::Mismatch) => {}
            Err(error) => return Err(write_failed(error)),
        }
    }
    Err(crowded(place.kind, place.name))
}

/// Creates an object. `value` passed the schema; its namespace is the request's.
pub async fn create(
    hub: &Hub,
    kind: &'static Kind,
    namespace: &str,
    value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    let mut attempts = if wants_generated_name(&value) { NAME_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match create_once(hub, kind, namespace, value.clone(), options).await {
            Err(error) if error.reason == "AlreadyExists" && attempts > 0 => {}
            outcome => return outcome,
        }
    }
}

async fn create_once(
    hub: &Hub,
    kind: &'static Kind,
    namespace: &str,
    value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    let (write, pending) = match requests::create(hub, kind, namespace, value, options, &fresh()?)? {
        Decision::Answer(answer) => return Ok(answer),
        Decision::Write(write, pending) => (write, pending),
    };
    let name = write.name.clone();
    match hub.write(write).await {
        Ok(object) => Ok(pending.answer(object)),
        Err(WriteError::Mismatch) => Err(ApiError::already_exists(kind, &name, false)),
        Err(error) => Err(write_failed(error)),
    }
}

/// Replaces an object by the body of a PUT.
pub async fn update(
    hub: &Hub,
    place: &Place<'_>,
    part: Part,
    value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::update(hub, place, part, value.clone(), options, &fresh()?)).await
}

/// Applies a part of an object: to the object there is, or by creating it (`may_create` is asked first).
pub async fn apply(
    hub: &Hub,
    place: &Place<'_>,
    part: Part,
    applied: &Apply,
    options: &WriteOptions<'_>,
    may_create: &(dyn Fn() -> Result<(), ApiError> + Send + Sync),
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::apply(hub, place, part, applied, options, may_create, &fresh()?)).await
}

/// Changes the object there is to what `compute` makes of it.
pub async fn edit(
    hub: &Hub,
    place: &Place<'_>,
    part: Part,
    options: &WriteOptions<'_>,
    mut compute: impl FnMut(&Object, Value) -> Result<Value, ApiError> + Send,
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::edit(hub, place, part, options, &fresh()?, &mut compute)).await
}

/// Deletes an object, or marks it when something must happen first.
pub async fn delete(
    hub: &Hub,
    place: &Place<'_>,
    asked: &DeleteOptions,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::delete(hub, place, asked, options, OffsetDateTime::now_utc())).await
}

/// Lets an empty terminating namespace go.
pub async fn finalize_namespace(hub: &Hub, name: &str) -> Result<Answer, ApiError> {
    let place = Place { kind: &NAMESPACE, namespace: "", name };
    settle(hub, &place, || requests::finalize_namespace(hub, name)).await
}

fn write_failed(error: WriteError) -> ApiError {
    match error {
        WriteError::Mismatch => ApiError::internal("the object changed while it was written"),
        WriteError::TooLarge => {
            ApiError::too_large(format!("Request entity too large: limit is {MAX_OBJECT_BYTES}"))
        }
        WriteError::TimedOut => ApiError::timeout("the disk is slow: the change may still be made"),
        WriteError::Failed(why) => {
            ApiError::unavailable(format!("the change could not be made durable and was not made: {why}"))
        }
        WriteError::Busy => {
            ApiError::too_many_requests("too many changes wait for the disk, please try again later")
        }
        WriteError::Closed => ApiError::unavailable("the hub is shutting down"),
    }
}
/// Not a conflict: the client did nothing wrong, and the same request is right a second later.
fn crowded(kind: &Kind, name: &str) -> ApiError {
    let what = kind.resource_name();
    ApiError::too_many_requests(format!(
        "too many changes of {what} {name:?} at once, please try again later"
    ))
}
