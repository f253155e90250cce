//! Performs the decisions of `kedge_hub_core::requests`: writes them durably, and retries after a concurrent
//! write.
//!
//! Always holds: the first attempt of a request takes no lock; requests that lost a race for the same object
//! queue up behind each other, so no unversioned write ends in a conflict. Left to others: the decisions
//! (core), HTTP (`server`), authorization (`identity`).

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kedge_hub_core::ApiError;
use kedge_hub_core::apply::Apply;
use kedge_hub_core::controllers::service_accounts;
use kedge_hub_core::kinds::{Kind, NAMESPACE, POD, SERVICE_ACCOUNT};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::{
    self, Answer, Decision, DeleteOptions, MayCreate, Part, Place, WriteOptions, wants_generated_name,
};
use kedge_hub_core::state::{MAX_OBJECT_BYTES, Require, WriteError};
use kedge_hub_core::value::text;
use serde_json::Value;
use time::OffsetDateTime;

use crate::fresh::fresh;
use crate::hub::Hub;

/// Most attempts of an unversioned write that loses to concurrent writes. Losers queue up, so only new
/// requests can still overtake them: losing this often means a flood of writes to one object, and the client
/// is sent away to retry later.
const ATTEMPTS: usize = 64;
/// Deletions of one collection under way at once: enough for the store to commit them in groups, and room for
/// others in its queue.
const DELETED_TOGETHER: usize = 256;
/// How often the default account of a new namespace is looked up, and the pause between; upstream's values.
const ACCOUNT_ATTEMPTS: usize = 10;
const ACCOUNT_WAIT: Duration = Duration::from_millis(100);
/// Most attempts at a generated name; upstream's value.
const NAME_ATTEMPTS: usize = 8;

/// Decides and writes. Each attempt decides anew, including identity and admission, because it may have
/// waited for long. It retries after a concurrent write if the client named no version. (A versioned request
/// is refused by the second decision, which sees the new object.)
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
        // a renewal must not queue behind a change that waits for the disk
        let queues = turn.is_none() && !write.volatile;
        match hub.write(write).await {
            Ok(object) => return Ok(pending.answer(object)),
            Err(WriteError::Mismatch) if queues => turn = Some(hub.locks().lock(place).await),
            Err(WriteError::Mismatch) => {}
            Err(error) => return Err(write_failed(error, place.kind, place.name)),
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
    if kind.kind == POD.kind {
        default_account(hub, namespace, &value).await;
    }
    let mut attempts = if wants_generated_name(&value) { NAME_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match create_once(hub, kind, namespace, value.clone(), options).await {
            Err(error) if error.reason == "AlreadyExists" && attempts > 0 => {}
            outcome => return outcome,
        }
    }
}

/// Waits a moment for a controller to make the account of a new namespace, as upstream does.
async fn default_account(hub: &Hub, namespace: &str, pod: &Value) {
    let account = text(pod, &["spec", "serviceAccountName"]);
    let open = || hub.get(&NAMESPACE, "", namespace).is_some_and(|found| !found.terminating);
    let missing = || hub.get(&SERVICE_ACCOUNT, namespace, service_accounts::NAME).is_none();
    for _ in 0..ACCOUNT_ATTEMPTS {
        if !matches!(account, "" | service_accounts::NAME) || !missing() || !open() {
            return;
        }
        tokio::time::sleep(ACCOUNT_WAIT).await;
    }
}

/// Decides anew when a precondition no longer holds: the next decision then meets the other client's object,
/// or the closed namespace.
async fn create_once(
    hub: &Hub,
    kind: &'static Kind,
    namespace: &str,
    value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    for _ in 0..ATTEMPTS {
        let decision = requests::create(hub, kind, namespace, value.clone(), options, &fresh()?)?;
        let (write, pending) = match decision {
            Decision::Answer(answer) => return Ok(answer),
            Decision::Write(write, pending) => (write, pending),
        };
        let name = write.name.clone();
        match hub.write(write).await {
            Ok(object) => return Ok(pending.answer(object)),
            Err(WriteError::Mismatch) => {}
            Err(error) => return Err(write_failed(error, kind, &name)),
        }
    }
    Err(crowded(kind, text(&value, &["metadata", "name"])))
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

/// Applies a part of an object, or creates it if it does not exist (after `may_create`).
pub async fn apply(
    hub: &Hub,
    place: &Place<'_>,
    part: Part,
    applied: &Apply,
    options: &WriteOptions<'_>,
    may_create: &MayCreate<'_>,
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::apply(hub, place, part, applied, options, may_create, &fresh()?)).await
}

/// Changes an existing object to the result of `compute`.
pub async fn edit(
    hub: &Hub,
    place: &Place<'_>,
    part: Part,
    options: &WriteOptions<'_>,
    mut compute: impl FnMut(&Object, Value) -> Result<Value, ApiError> + Send,
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::edit(hub, place, part, options, &fresh()?, &mut compute)).await
}

/// Deletes an object, or marks it for deletion if finalizers or a grace period require that.
pub async fn delete(
    hub: &Hub,
    place: &Place<'_>,
    asked: &DeleteOptions,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    settle(hub, place, || requests::delete(hub, place, asked, options, OffsetDateTime::now_utc())).await
}

/// Deletes listed objects together, so that they share commits. Objects that are gone are skipped without an
/// error; an object created again under the same name meanwhile stays. As upstream, an error does not keep
/// the others from being deleted; the first error is returned.
pub async fn delete_all(
    hub: &Hub,
    kind: &'static Kind,
    objects: &[Arc<Object>],
    asked: &DeleteOptions,
    options: &WriteOptions<'_>,
) -> Result<(), ApiError> {
    let mut outcome = Ok(());
    for group in objects.chunks(DELETED_TOGETHER) {
        let deleted = group.iter().map(|object| async {
            let asked = DeleteOptions { uid: Some(object.uid.to_string()), ..asked.clone() };
            let place = Place { kind, namespace: &object.namespace, name: &object.name };
            delete(hub, &place, &asked, options).await
        });
        for deleted in join_all(deleted).await {
            match deleted {
                Err(error) if !matches!(error.code, 404 | 409) && outcome.is_ok() => outcome = Err(error),
                _ => {}
            }
        }
    }
    outcome
}

/// Deletes an empty terminating namespace.
pub async fn finalize_namespace(hub: &Hub, name: &str, uid: &str) -> Result<Answer, ApiError> {
    let place = Place { kind: &NAMESPACE, namespace: "", name };
    settle(hub, &place, || requests::finalize_namespace(hub, name, uid)).await
}

/// Runs all concurrently; returns their outcomes in order.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, outcome) in all.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *outcome = Some(ready);
            }
        }
        if all.iter().all(|(_, outcome)| outcome.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

fn write_failed(error: WriteError, kind: &'static Kind, name: &str) -> ApiError {
    match error {
        WriteError::OverQuota(why) => ApiError::forbidden_object(kind, name, &why),
        WriteError::Mismatch => ApiError::internal("the object changed while it was written"),
        WriteError::TooLarge => {
            ApiError::too_large(format!("Request entity too large: limit is {MAX_OBJECT_BYTES}"))
        }
        WriteError::Excess(excess) => excess.refusal("the object"),
        WriteError::TimedOut => ApiError::timeout("the disk is slow: the change may still be made"),
        WriteError::Failed(why) => {
            ApiError::unavailable(format!("the change could not be made durable and was not made: {why}"))
        }
        WriteError::Refused(refusal) => {
            let secs = u32::try_from(refusal.retry_after.as_secs()).unwrap_or(u32::MAX).max(1);
            ApiError::unavailable(format!("the change was not made: {}", refusal.why)).retry_after(secs)
        }
        // without Retry-After: the write may have been made, and a client that retries by itself would make
        // it twice
        WriteError::Uncertain(why) => ApiError::internal(format!(
            "the change may or may not have been made ({why}); read the object before you try again"
        )),
        WriteError::TakenBack => ApiError::timeout("the disk is slow: the change was not made"),
        WriteError::Busy => {
            ApiError::too_many_requests("too many changes wait for the disk, please try again later")
        }
        WriteError::Held => crowded(kind, name),
        WriteError::Closed => ApiError::unavailable("the hub is shutting down"),
    }
}

/// The error is not a conflict: the request is valid and will succeed a second later.
fn crowded(kind: &Kind, name: &str) -> ApiError {
    let what = kind.resource_name();
    ApiError::too_many_requests(format!(
        "too many changes of {what} {name:?} at once, please try again later"
    ))
}

/// Requests of the hub itself, which obey the same rules as a client's.
impl Hub {
    /// Creates an object; `generateName` works. Returns it as stored.
    pub async fn create(&self, kind: &'static Kind, value: Value) -> Result<Arc<Object>, ApiError> {
        self.create_if(kind, value, &[]).await
    }

    /// As [`create`](Self::create), if all of `requires` is true of other objects; else a conflict.
    pub async fn create_if(
        &self,
        kind: &'static Kind,
        value: Value,
        requires: &[Require],
    ) -> Result<Arc<Object>, ApiError> {
        let namespace = text(&value, &["metadata", "namespace"]).to_owned();
        let options = WriteOptions { requires, ..WriteOptions::internal() };
        let answer = create(self, kind, &namespace, value, &options).await?;
        self.stored(kind, answer)
    }

    /// Reads the object, lets `change` edit it (spec, status, metadata alike), and writes it; retries
    /// after a concurrent write. A change without an effect writes nothing.
    pub async fn update(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut Value) + Send,
    ) -> Result<Arc<Object>, ApiError> {
        let compute = |_: &Object, mut value: Value| {
            change(&mut value);
            Ok(value)
        };
        let answer =
            edit(self, &Place { kind, namespace, name }, Part::All, &WriteOptions::internal(), compute)
                .await?;
        self.stored(kind, answer)
    }

    /// Deletes an object, or marks it for deletion if it has finalizers.
    pub async fn delete(&self, kind: &'static Kind, namespace: &str, name: &str) -> Result<(), ApiError> {
        let options = DeleteOptions::default();
        let place = Place { kind, namespace, name };
        delete(self, &place, &options, &WriteOptions::internal()).await.map(|_| ())
    }

    fn stored(&self, kind: &'static Kind, answer: Answer) -> Result<Arc<Object>, ApiError> {
        let gone = || ApiError::not_found(kind, "");
        answer.object.ok_or_else(gone)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kedge_api::NODE_LEASE_NAMESPACE;
    use kedge_hub_core::apply::{Manager, Owner};
    use kedge_hub_core::kinds::{CONFIG_MAP, LEASE};
    use kedge_hub_core::state::{Expect, Write};
    use serde_json::json;

    use super::*;

    /// A renewal shares its lock with changes of other objects of the same hash, and those may wait for a
    /// stalled disk.
    #[tokio::test]
    async fn renewal_that_lost_a_race_waits_for_no_change() {
        let data_dir = kedge_rig::Scratch::new("hub-requests-renewal").unwrap();
        let hub = Hub::open(&data_dir).unwrap();
        let place = Place { kind: &LEASE, namespace: NODE_LEASE_NAMESPACE, name: "n" };
        let lease = json!({"metadata": {"namespace": place.namespace, "name": place.name},
            "spec": {"holderIdentity": "n", "renewTime": "2026-01-01T00:00:00.000000Z"}});
        hub.create(&LEASE, lease).await.unwrap();
        let _waiting = hub.locks().lock(&place).await;
        let mut tries = 0;
        let renew = |old: &Object, mut lease: Value| {
            tries += 1;
            if tries == 1 {
                let mut other = old.value();
                other["spec"]["renewTime"] = "2026-01-01T00:00:01.000000Z".into();
                let renewal = Write {
                    kind: &LEASE,
                    namespace: place.namespace.to_owned(),
                    name: place.name.to_owned(),
                    expect: Expect::Revision(old.revision),
                    requires: Vec::new(),
                    new: Some(other),
                    volatile: true,
                    author: None,
                };
                hub.writer().renew(renewal).unwrap();
            }
            lease["spec"]["renewTime"] = "2026-01-01T00:00:02.000000Z".into();
            Ok(lease)
        };
        let options = WriteOptions::internal();
        let renewed = edit(&hub, &place, Part::All, &options, renew);
        // so that the test fails instead of hanging
        let renewed = tokio::time::timeout(Duration::from_secs(60), renewed).await;
        assert!(renewed.expect("it waits for a change").unwrap().object.is_some());
        assert_eq!(tries, 2);
    }

    const MAP: Place<'static> = Place { kind: &CONFIG_MAP, namespace: "default", name: "m" };

    fn map(text: &str) -> Value {
        let metadata = json!({"namespace": "default", "name": "m"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}})
    }

    /// Runs a request whose first decision loses against another write, and whose caller is revoked
    /// meanwhile.
    async fn check<F: Future<Output = Result<Answer, ApiError>>>(
        request: impl FnOnce(Arc<Hub>, &'static WriteOptions<'static>) -> F,
    ) {
        let data_dir = kedge_rig::Scratch::new("hub-requests").unwrap();
        let hub = Hub::open(&data_dir).unwrap();
        hub.create(&CONFIG_MAP, map("old")).await.unwrap();
        let (other, runtime) = (Arc::clone(&hub), tokio::runtime::Handle::current());
        let decisions = AtomicUsize::new(0);
        let admit = move |_: Option<&Value>, _: &Value| match decisions.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let (hub, runtime) = (Arc::clone(&other), runtime.clone());
                let overtake = move || {
                    runtime.block_on(async {
                        hub.update(&CONFIG_MAP, "default", "m", |map| map["data"] = json!({"text": "new"}))
                            .await
                    })
                };
                std::thread::spawn(overtake).join().unwrap().map(drop)
            }
            _ => Err(ApiError::unauthorized()),
        };
        // leaked: the process of a test ends soon
        let (admit, owner) = (Box::leak(Box::new(admit)), Owner::Applied);
        let options = WriteOptions { admit, owner, ..WriteOptions::internal() };
        let outcome = request(Arc::clone(&hub), Box::leak(Box::new(options))).await;
        assert_eq!(outcome.map(drop).map_err(|error| error.code), Err(401));
        let found = hub.get(&CONFIG_MAP, "default", "m").unwrap();
        assert_eq!(found.value()["data"], json!({"text": "new"}));
        hub.close();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn request_that_lost_a_race_is_judged_anew() {
        check(|hub, options| async move { update(&hub, &MAP, Part::Main, map("mine"), options).await }).await;
        check(|hub, options| async move {
            let mine = |_: &Object, mut value: Value| {
                value["data"] = json!({"text": "mine"});
                Ok(value)
            };
            edit(&hub, &MAP, Part::Main, options, mine).await
        })
        .await;
        check(|hub, options| async move { delete(&hub, &MAP, &DeleteOptions::default(), options).await })
            .await;
        check(|hub, options| async move {
            let manager = Manager { name: "m".to_owned(), subresource: String::new() };
            let applied = Apply::new(&CONFIG_MAP, map("mine"), manager, true)?;
            apply(&hub, &MAP, Part::Main, &applied, options, &|_| Ok(())).await
        })
        .await;
    }
}
