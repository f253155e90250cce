//! What create, update, patch and delete mean, the same for every kind: upstream's order of steps and upstream's refusals.
//!
//! A write reads the object, computes the new one, and hands both to the writer with the revision it read; if somebody was
//! quicker, it starts again, and from then on waits for its turn (a client that named a version gets its 409 there). So nothing
//! is locked while a client's first try is computed, no update is lost, and no unversioned write ends in a conflict. Always holds: an update that changes nothing writes nothing and keeps its
//! resourceVersion; uid, name and creation time never change. Left to others: HTTP (`server`), who may (`auth`).

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::Hub;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::apply::{self, Owner};
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::kinds::{self, Kind, NAMESPACE, at, meta, schema, text};
use kedge_hub_core::object::Object;
use kedge_hub_core::state::{Expect, MAX_OBJECT_BYTES, WriteError};

/// How often a write that names no version is computed anew because others were quicker. Those who lost take turns, so only
/// newcomers can still be quicker: so many in a row means a flood of writes to one object, and the client is asked to wait.
const ATTEMPTS: usize = 64;
/// Queues in which losers wait for their turn; objects share them by their names' hash, which costs a wait and nothing else.
const TURNS: usize = 64;
/// Upstream tries so many generated names before it gives up.
const NAME_ATTEMPTS: usize = 8;
/// A generated name keeps so much of its base.
const NAME_BASE_BYTES: usize = 58;
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Finalizer of a deletion that waits for its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of a deletion that lets its dependents go first.
pub const ORPHAN: &str = "orphan";

/// Judges an object as it would be stored, before it is stored.
pub type Admit<'a> = dyn Fn(Option<&Value>, &Value) -> Result<(), ApiError> + Send + Sync + 'a;

/// What a client asks of a write beside the object.
pub struct WriteOptions<'a> {
    /// Do everything but the write.
    pub dry_run: bool,
    /// Admission, by who asks.
    pub admit: &'a Admit<'a>,
    /// Whose the fields are that this write sets.
    pub owner: Owner<'a>,
}

impl WriteOptions<'static> {
    /// The hub's own controllers: nothing to admit, and they own nothing.
    pub fn internal() -> WriteOptions<'static> {
        WriteOptions { dry_run: false, admit: &|_, _| Ok(()), owner: Owner::Nobody }
    }
}

/// How a write ended.
#[derive(Debug)]
pub struct Answer {
    /// The object as stored, or as it was when it was deleted. Absent after a dry run that stored nothing.
    pub object: Option<Arc<Object>>,
    /// The object of a dry run.
    pub value: Option<Value>,
    /// It did not exist before.
    pub created: bool,
    /// It is gone.
    pub deleted: bool,
    /// Sentences for `Warning` headers.
    pub warnings: Vec<String>,
}

impl Answer {
    fn of(object: Arc<Object>) -> Answer {
        Answer { object: Some(object), value: None, created: false, deleted: false, warnings: Vec::new() }
    }

    fn dry(value: Value) -> Answer {
        Answer { object: None, value: Some(value), created: false, deleted: false, warnings: Vec::new() }
    }

    fn warned(mut self, kind: &Kind, new: &Value, old: Option<&Value>) -> Answer {
        self.warnings = (kind.warnings)(new, old);
        self
    }

    /// The object as a value.
    pub fn value(&self) -> Value {
        match (&self.value, &self.object) {
            (Some(value), _) => value.clone(),
            (None, Some(object)) => object.value(),
            (None, None) => Value::Null,
        }
    }
}

/// Which part of an object a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All but the status, of kinds that have one as a subresource.
    Main,
    /// Status and metadata.
    Status,
    /// Everything; for the hub's own controllers.
    All,
    /// Whether a certificate request is approved.
    Approval,
}

/// What a delete asks for.
#[derive(Debug, Default, Clone)]
pub struct DeleteOptions {
    /// Only the object of this UID.
    pub uid: Option<String>,
    /// Only at this version.
    pub resource_version: Option<String>,
    /// What becomes of the objects it owns.
    pub propagation: Propagation,
    /// Seconds a pod gets to end; absent is the pod's own wish.
    pub grace_secs: Option<i64>,
}

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// As the object's own finalizers say; in the background if they say nothing.
    #[default]
    Unset,
    /// They go later.
    Background,
    /// They go first.
    Foreground,
    /// They stay, without their owner.
    Orphan,
}

/// Whose turn it is to write an object that several want to write at once.
#[derive(Debug)]
pub(crate) struct Turns(Vec<tokio::sync::Mutex<()>>);

impl Default for Turns {
    fn default() -> Turns {
        Turns((0..TURNS).map(|_| tokio::sync::Mutex::new(())).collect())
    }
}

impl Turns {
    /// Waits, first come first served, behind everybody who lost a race for this object.
    async fn take(&self, kind: &Kind, namespace: &str, name: &str) -> tokio::sync::MutexGuard<'_, ()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (kind.plural, namespace, name).hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % TURNS as u64).expect("it is below TURNS");
        self.0[index].lock().await
    }
}

/// The time as `metadata.creationTimestamp` writes it.
pub fn now_text() -> String {
    let now =
        time::OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

fn random(bytes: &mut [u8]) -> Result<(), ApiError> {
    let provider = rustls::crypto::ring::default_provider();
    let failed = |_| ApiError::internal("the system gives no random numbers");
    provider.secure_random.fill(bytes).map_err(failed)
}

fn new_uid() -> Result<String, ApiError> {
    let mut bytes = [0_u8; 16];
    random(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = |range: std::ops::Range<usize>| {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    Ok([hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-"))
}

fn generated_name(base: &str) -> Result<String, ApiError> {
    let mut bytes = [0_u8; 5];
    random(&mut bytes)?;
    let cut = base.char_indices().nth(NAME_BASE_BYTES).map_or(base, |(index, _)| &base[..index]);
    let letters =
        bytes.iter().map(|byte| char::from(NAME_ALPHABET[usize::from(*byte) % NAME_ALPHABET.len()]));
    Ok(cut.chars().chain(letters).collect())
}

fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    if !value["metadata"].is_object() {
        value["metadata"] = Value::Object(Map::new());
    }
    value["metadata"].as_object_mut().expect("it was made an object in the line before")
}

/// Gives a new object what the server decides: uid, creation time, generation, defaults; then judges it.
pub fn new_object(kind: &'static Kind, mut value: Value) -> Result<Value, ApiError> {
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.into();
    let uid = new_uid()?;
    let meta = metadata(&mut value);
    for field in
        ["managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"]
    {
        meta.remove(field);
    }
    meta.remove("resourceVersion");
    meta.insert("uid".to_owned(), uid.into());
    meta.insert("creationTimestamp".to_owned(), now_text().into());
    if kind.generation {
        meta.insert("generation".to_owned(), 1.into());
    }
    if kind.status
        && !kind.status_on_create
        && let Some(fields) = value.as_object_mut()
    {
        fields.remove("status");
    }
    kind.complete(&mut value);
    (kind.prepare)(&mut value, None);
    let mut errors = Vec::new();
    meta::validate(kind, &value, &mut errors);
    (kind.validate)(&value, None, &mut errors);
    match errors.as_slice() {
        [] => Ok(value),
        errors => Err(ApiError::invalid(kind, text(&value, &["metadata", "name"]), errors)),
    }
}

/// Creates an object. `value` passed [`schema::conform`]; its namespace is the request's.
pub async fn create(
    hub: &Hub,
    kind: &'static Kind,
    namespace: &str,
    mut value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    set_namespace(kind, namespace, &mut value)?;
    if !text(&value, &["metadata", "resourceVersion"]).is_empty() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let base = text(&value, &["metadata", "generateName"]).to_owned();
    let generate = text(&value, &["metadata", "name"]).is_empty() && !base.is_empty();
    let mut attempts = if generate { NAME_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        if generate {
            metadata(&mut value).insert("name".to_owned(), generated_name(&base)?.into());
        }
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
    mut value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    let claim = apply::take_claim(&mut value);
    let given: Vec<bool> = kind.admitted.iter().map(|path| at(&value, path).is_some()).collect();
    let mut value = new_object(kind, value)?;
    let before = set_by_nobody(kind, &value, &given);
    apply::track(kind, &before, &mut value, claim, options.owner, (false, &now_text()));
    let name = text(&value, &["metadata", "name"]).to_owned();
    check_namespace(hub, kind, namespace, &name)?;
    (options.admit)(None, &value)?;
    if let Some(existing) = hub.get(kind, namespace, &name) {
        return Err(ApiError::already_exists(kind, &name, existing.terminating));
    }
    if options.dry_run {
        let answer = Answer::dry(value.clone()).warned(kind, &value, None);
        return Ok(Answer { created: true, ..answer });
    }
    match hub.write(kind, (namespace, &name), Expect::Absent, Some(value.clone()), false).await {
        Ok(object) => Ok(Answer { created: true, ..Answer::of(object).warned(kind, &value, None) }),
        Err(WriteError::Mismatch) => Err(ApiError::already_exists(kind, &name, false)),
        Err(error) => Err(write_failed(error)),
    }
}

/// An object is where the request says: what it says itself of its name or namespace must not differ. An object without a name
/// is nowhere. Words and order are upstream's.
pub fn check_place(of: &str, given: &str, asked: &str) -> Result<(), ApiError> {
    if given == asked {
        return Ok(());
    }
    Err(ApiError::bad_request(match (of, given) {
        ("namespace", _) => format!(
            "the namespace of the provided object does not match the namespace sent on the request ({given:?}, {asked:?})"
        ),
        (_, "") => {
            format!("the name of the object ({asked} based on URL) was undeterminable: name must be provided")
        }
        _ => format!("the name of the object ({given}) does not match the name on the URL ({asked})"),
    }))
}

/// Of a new object that which its creator did not set: the parts that every object has, a status that is not the creator's to
/// give, and what admission added (`given` says which of it the creator had given).
fn set_by_nobody(kind: &Kind, new: &Value, given: &[bool]) -> Value {
    let mut before = Value::Object(Map::new());
    kind.complete(&mut before);
    if kind.status && !kind.status_on_create {
        before["status"] = new["status"].clone();
    }
    for (path, _) in kind.admitted.iter().zip(given).filter(|(_, given)| !**given) {
        if let (Some(value), [part, field]) = (at(new, path), path) {
            before[part][field] = value.clone();
        }
    }
    before
}

/// The namespace of the body must be that of the path, or absent.
fn set_namespace(kind: &Kind, namespace: &str, value: &mut Value) -> Result<(), ApiError> {
    let meta = metadata(value);
    let given = meta.get("namespace").and_then(Value::as_str).unwrap_or("").to_owned();
    if !kind.namespaced {
        // judged by the rules of metadata: it is forbidden there
        return Ok(());
    }
    if !given.is_empty() {
        check_place("namespace", &given, namespace)?;
    }
    meta.insert("namespace".to_owned(), namespace.into());
    Ok(())
}

/// Nothing is made in a namespace that is missing or goes away.
fn check_namespace(hub: &Hub, kind: &Kind, namespace: &str, name: &str) -> Result<(), ApiError> {
    if !kind.namespaced {
        return Ok(());
    }
    match hub.get(&NAMESPACE, "", namespace) {
        None => Err(ApiError::not_found(&NAMESPACE, namespace)),
        Some(found) if found.terminating => {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            Err(ApiError::forbidden_object(kind, name, &why))
        }
        Some(_) => Ok(()),
    }
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

/// Replaces an object by the body of a PUT.
pub async fn update(
    hub: &Hub,
    kind: &'static Kind,
    part: Part,
    namespace: &str,
    name: &str,
    mut value: Value,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    set_namespace(kind, namespace, &mut value)?;
    check_place("name", text(&value, &["metadata", "name"]), name)?;
    if hub.get(kind, namespace, name).is_none() && kind.create_on_update && part == Part::Main {
        metadata(&mut value).remove("resourceVersion");
        return create(hub, kind, namespace, value, options).await;
    }
    let unversioned = matches!(text(&value, &["metadata", "resourceVersion"]), "" | "0");
    if unversioned && !kind.unconditional_update {
        let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
        return Err(ApiError::invalid(kind, name, &[error]));
    }
    edit(hub, kind, part, namespace, name, options, |_, _| Ok(value.clone())).await
}

/// Applies a part of an object: to the object there is, or by creating it (`may_create` is asked first).
pub async fn apply(
    hub: &Hub,
    kind: &'static Kind,
    part: Part,
    place: (&str, &str),
    applied: &apply::Apply,
    options: &WriteOptions<'_>,
    may_create: &(dyn Fn() -> Result<(), ApiError> + Send + Sync),
) -> Result<Answer, ApiError> {
    let (namespace, name) = place;
    let options = WriteOptions { owner: Owner::Applied, ..*options };
    // who deletes and creates in turns is as quick as we are
    for _ in 0..ATTEMPTS {
        let outcome = if hub.get(kind, namespace, name).is_some() || part != Part::Main {
            let to = |_: &Object, live: Value| applied.to(live, &now_text());
            edit(hub, kind, part, namespace, name, &options, to).await
        } else {
            create_applied(hub, kind, place, applied, &options, may_create).await
        };
        match outcome {
            Err(error) if error.reason == "AlreadyExists" => {}
            Err(error)
                if error.reason == "NotFound"
                    && part == Part::Main
                    && hub.get(kind, namespace, name).is_none() =>
            {
                // gone meanwhile, or its namespace is missing: creating says which
                return create_applied(hub, kind, place, applied, &options, may_create).await;
            }
            outcome => return outcome,
        }
    }
    Err(crowded(kind, name))
}

/// Creates what is applied to nothing. What it says of an object that there was is judged as upstream judges it (apiserver's
/// `patcher.applyPatch`): a UID is a conflict; a resourceVersion says "no newer object of this name", which holds
/// (kubernetes/kubernetes#106745).
async fn create_applied(
    hub: &Hub,
    kind: &'static Kind,
    (namespace, name): (&str, &str),
    applied: &apply::Apply,
    options: &WriteOptions<'_>,
    may_create: &(dyn Fn() -> Result<(), ApiError> + Send + Sync),
) -> Result<Answer, ApiError> {
    may_create()?;
    let mut value = applied.created(&now_text());
    match text(&value, &["metadata", "uid"]) {
        "" => {}
        uid => {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict_because(kind, name, &why));
        }
    }
    check_place("name", text(&value, &["metadata", "name"]), name)?;
    metadata(&mut value).remove("resourceVersion");
    create(hub, kind, namespace, value, options).await
}

/// Reads, computes, writes; from the start again when somebody was quicker and the client named no version.
pub async fn edit(
    hub: &Hub,
    kind: &'static Kind,
    part: Part,
    namespace: &str,
    name: &str,
    options: &WriteOptions<'_>,
    mut compute: impl FnMut(&Object, Value) -> Result<Value, ApiError> + Send,
) -> Result<Answer, ApiError> {
    let mut turn = None;
    for _ in 0..ATTEMPTS {
        let Some(current) = hub.get(kind, namespace, name) else {
            return Err(ApiError::not_found(kind, name));
        };
        let mut old = current.value();
        // one that an older hub stored may not have them
        kind.complete(&mut old);
        let mut wanted = compute(&current, old.clone())?;
        check_version(kind, &current, &wanted)?;
        let claim = apply::take_claim(&mut wanted);
        let mut new = merged_with_old(kind, part, &old, wanted)?;
        // asked only where it matters: a node's renewals, which are most writes, have no managers
        let renewal = matches!(options.owner, Owner::Updates(_)) && is_renewal(kind, &old, &new);
        apply::track(kind, &old, &mut new, claim, options.owner, (renewal, &now_text()));
        (options.admit)(Some(&old), &new)?;
        if same_but_version(&old, &new) {
            return Ok(Answer::of(current).warned(kind, &new, Some(&old)));
        }
        let gone = is_released(&new);
        if options.dry_run {
            let mut new = new;
            metadata(&mut new).insert("resourceVersion".to_owned(), current.revision.to_string().into());
            let answer = Answer::dry(new.clone()).warned(kind, &new, Some(&old));
            return Ok(Answer { deleted: gone, ..answer });
        }
        let volatile = !gone && is_volatile(kind, &old, &new);
        let expect = Expect::Revision(current.revision);
        let stored = if gone { None } else { Some(new.clone()) };
        match hub.write(kind, (namespace, name), expect, stored, volatile).await {
            Ok(object) => {
                let answer = Answer::of(object).warned(kind, &new, Some(&old));
                return Ok(Answer { deleted: gone, ..answer });
            }
            // a client that named a version hears of it from `check_version`, with the object as it is then
            Err(WriteError::Mismatch) if turn.is_none() => {
                turn = Some(hub.turns().take(kind, namespace, name).await);
            }
            Err(WriteError::Mismatch) => {}
            Err(error) => return Err(write_failed(error)),
        }
    }
    Err(crowded(kind, name))
}

/// An error if the version named is not the current one, or if the UID is another object's. The version of a patched object is
/// the one that was patched, unless the patch itself names one.
fn check_version(kind: &Kind, current: &Object, wanted: &Value) -> Result<(), ApiError> {
    let uid = text(wanted, &["metadata", "uid"]);
    if !uid.is_empty() && uid != &*current.uid {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", current.uid);
        return Err(ApiError::conflict_because(kind, &current.name, &why));
    }
    match text(wanted, &["metadata", "resourceVersion"]) {
        "" | "0" => Ok(()),
        version => match version.parse::<u64>() {
            Ok(version) if version == current.revision => Ok(()),
            Ok(_) => Err(ApiError::conflict(kind, &current.name)),
            Err(_) => {
                let error =
                    FieldError::invalid("metadata.resourceVersion", version, "must be a whole number");
                Err(ApiError::invalid(kind, &current.name, &[error]))
            }
        },
    }
}

/// The object as it would be stored: what this part may not change is taken from the old one, the server's own fields
/// stay, and the kind's rules are asked.
fn merged_with_old(kind: &'static Kind, part: Part, old: &Value, wanted: Value) -> Result<Value, ApiError> {
    let Value::Object(mut fields) = wanted else {
        return Err(ApiError::bad_request("the object is no JSON object"));
    };
    let mut base = old.as_object().cloned().unwrap_or_default();
    match part {
        Part::All => {}
        Part::Main if kind.status => keep(&mut fields, &base, "status"),
        Part::Main => {}
        Part::Approval => {
            fields = match kinds::certificate_request::approved(old, &Value::Object(fields), &now_text()) {
                Value::Object(fields) => fields,
                _ => base,
            };
        }
        Part::Status => {
            let status = fields.remove("status");
            let meta = fields.remove("metadata");
            match status {
                Some(status) => base.insert("status".to_owned(), status),
                None => base.remove("status"),
            };
            base.extend(meta.map(|meta| ("metadata".to_owned(), meta)));
            fields = base;
            if kind.kind == kinds::CERTIFICATE_REQUEST.kind
                && let Value::Object(kept) =
                    kinds::certificate_request::reported(old, &Value::Object(fields.clone()), &now_text())
            {
                fields = kept;
            }
        }
    }
    let mut new = Value::Object(fields);
    keep_server_fields(kind, old, &mut new);
    kind.complete(&mut new);
    if !matches!(part, Part::Status | Part::Approval) {
        (kind.prepare)(&mut new, Some(old));
    }
    count_generation(kind, old, &mut new);
    let findings = schema::conform(kind.schema(), &mut new);
    if let Some(wrong) = findings.wrong {
        return Err(ApiError::bad_request(format!(
            "{} cannot be handled as a {}: {wrong}",
            kind.kind, kind.kind
        )));
    }
    let mut errors = Vec::new();
    meta::validate(kind, &new, &mut errors);
    (kind.validate)(&new, Some(old), &mut errors);
    check_finalizers(old, &new, &mut errors);
    match errors.as_slice() {
        [] => Ok(new),
        errors => Err(ApiError::invalid(kind, text(old, &["metadata", "name"]), errors)),
    }
}

fn keep(fields: &mut Map<String, Value>, old: &Map<String, Value>, field: &str) {
    match old.get(field) {
        Some(value) => fields.insert(field.to_owned(), value.clone()),
        None => fields.remove(field),
    };
}

fn keep_server_fields(kind: &Kind, old: &Value, new: &mut Value) {
    new["apiVersion"] = kind.api_version().into();
    new["kind"] = kind.kind.into();
    let empty = Map::new();
    let old = old["metadata"].as_object().unwrap_or(&empty);
    let meta = metadata(new);
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        keep(meta, old, field);
    }
    meta.remove("managedFields");
    meta.remove("selfLink");
}

fn count_generation(kind: &Kind, old: &Value, new: &mut Value) {
    if !kind.generation {
        return;
    }
    let spec_of = |value: &Value| {
        let mut fields = value.as_object().cloned().unwrap_or_default();
        fields.remove("metadata");
        fields.remove("status");
        fields
    };
    if spec_of(old) != spec_of(new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0).saturating_add(1);
        metadata(new).insert("generation".to_owned(), generation.into());
    }
}

/// While an object goes away its finalizers may only become fewer.
fn check_finalizers(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    if text(old, &["metadata", "deletionTimestamp"]).is_empty() {
        return;
    }
    let none = Vec::new();
    let list = |value: &Value| {
        at(value, &["metadata", "finalizers"]).and_then(Value::as_array).unwrap_or(&none).clone()
    };
    let before = list(old);
    for added in list(new).iter().filter(|finalizer| !before.contains(finalizer)) {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{added}}}"
        );
        errors.push(FieldError::forbidden("metadata.finalizers", &why));
    }
}

fn same_but_version(old: &Value, new: &Value) -> bool {
    old == new
}

/// Marked for deletion and nobody holds it any more.
fn is_released(value: &Value) -> bool {
    let list_is_empty = |path: &[&str]| at(value, path).and_then(Value::as_array).is_none_or(Vec::is_empty);
    // a pod stays for its grace, until its node says that it has ended
    let grace = at(value, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    !text(value, &["metadata", "deletionTimestamp"]).is_empty()
        && grace.unwrap_or(0) <= 0
        && list_is_empty(&["metadata", "finalizers"])
        && (value["kind"] != NAMESPACE.kind || list_is_empty(&["spec", "finalizers"]))
}

/// Whether nothing but the kind's volatile fields differs, whoever manages them. `new` has no managers yet.
fn is_renewal(kind: &Kind, old: &Value, new: &Value) -> bool {
    if kind.volatile.is_empty() || old["metadata"].get("managedFields").is_none() {
        return is_volatile(kind, old, new);
    }
    let mut old = old.clone();
    apply::take_claim(&mut old);
    is_volatile(kind, &old, new)
}

/// Whether nothing but the kind's volatile fields differs.
fn is_volatile(kind: &Kind, old: &Value, new: &Value) -> bool {
    if kind.volatile.is_empty() {
        return false;
    }
    let without = |value: &Value| {
        let mut value = value.clone();
        for path in kind.volatile {
            let Some((last, parents)) = path.split_last() else { continue };
            let parent = parents.iter().try_fold(&mut value, |value, field| value.get_mut(*field));
            if let Some(fields) = parent.and_then(Value::as_object_mut) {
                fields.remove(*last);
            }
        }
        value
    };
    without(old) == without(new)
}

/// Lets an empty terminating namespace go: what upstream does through the finalize subresource.
pub async fn finalize_namespace(hub: &Hub, name: &str, options: &WriteOptions<'_>) -> Result<(), ApiError> {
    let mut turn = None;
    for _ in 0..ATTEMPTS {
        let Some(current) = hub.get(&NAMESPACE, "", name) else { return Ok(()) };
        if !current.terminating || options.dry_run {
            return Ok(());
        }
        let mut value = current.value();
        if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("finalizers");
        }
        let stored = if is_released(&value) { None } else { Some(value) };
        match hub.write(&NAMESPACE, ("", name), Expect::Revision(current.revision), stored, false).await {
            Ok(_) => return Ok(()),
            Err(WriteError::Mismatch) if turn.is_none() => {
                turn = Some(hub.turns().take(&NAMESPACE, "", name).await);
            }
            Err(WriteError::Mismatch) => {}
            Err(error) => return Err(write_failed(error)),
        }
    }
    Err(crowded(&NAMESPACE, name))
}

/// Deletes an object, or marks it when something must happen first.
pub async fn delete(
    hub: &Hub,
    kind: &'static Kind,
    namespace: &str,
    name: &str,
    asked: &DeleteOptions,
    options: &WriteOptions<'_>,
) -> Result<Answer, ApiError> {
    if kind.kind == NAMESPACE.kind && kinds::namespace::PROTECTED.contains(&name) {
        return Err(ApiError::forbidden_object(kind, name, "this namespace may not be deleted"));
    }
    let mut turn = None;
    for _ in 0..ATTEMPTS {
        let Some(current) = hub.get(kind, namespace, name) else {
            return Err(ApiError::not_found(kind, name));
        };
        check_preconditions(kind, &current, asked)?;
        let old = current.value();
        (options.admit)(Some(&old), &old)?;
        let mut marked = marked_for_deletion(kind, &old, asked.propagation);
        if kind.kind == kinds::POD.kind {
            marked = kinds::pod::with_grace(&old, marked, asked.grace_secs, time::OffsetDateTime::now_utc());
        }
        let gone = is_released(&marked);
        if !gone && same_but_version(&old, &marked) {
            return Ok(Answer::of(current));
        }
        if options.dry_run {
            return Ok(Answer { deleted: gone, ..Answer::dry(marked) });
        }
        let stored = if gone { None } else { Some(marked) };
        match hub.write(kind, (namespace, name), Expect::Revision(current.revision), stored, false).await {
            Ok(object) => return Ok(Answer { deleted: gone, ..Answer::of(object) }),
            Err(WriteError::Mismatch) if turn.is_none() => {
                turn = Some(hub.turns().take(kind, namespace, name).await);
            }
            Err(WriteError::Mismatch) => {}
            Err(error) => return Err(write_failed(error)),
        }
    }
    Err(crowded(kind, name))
}

fn check_preconditions(kind: &Kind, current: &Object, asked: &DeleteOptions) -> Result<(), ApiError> {
    let differs = |what: &str, wanted: &str, found: &str| {
        let why =
            format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
        ApiError::conflict_because(kind, &current.name, &why)
    };
    if let Some(uid) = asked.uid.as_deref().filter(|uid| *uid != &*current.uid) {
        return Err(differs("UID", uid, &current.uid));
    }
    let version = current.revision.to_string();
    match asked.resource_version.as_deref() {
        Some(wanted) if wanted != version => Err(differs("ResourceVersion", wanted, &version)),
        _ => Ok(()),
    }
}

/// The object with its deletion time and the finalizers that the propagation asks for; without finalizers it can go.
fn marked_for_deletion(kind: &Kind, old: &Value, propagation: Propagation) -> Value {
    let mut value = old.clone();
    let again = !text(old, &["metadata", "deletionTimestamp"]).is_empty();
    let meta = metadata(&mut value);
    let mut finalizers = meta.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    if propagation != Propagation::Unset {
        finalizers.retain(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
    }
    match propagation {
        Propagation::Unset | Propagation::Background => {}
        Propagation::Foreground => finalizers.push(FOREGROUND.into()),
        Propagation::Orphan => finalizers.push(ORPHAN.into()),
    }
    match finalizers.is_empty() {
        true => drop(meta.remove("finalizers")),
        false => drop(meta.insert("finalizers".to_owned(), finalizers.into())),
    }
    if !again {
        meta.insert("deletionTimestamp".to_owned(), now_text().into());
        meta.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        if let Some(generation) = meta.get("generation").and_then(Value::as_i64) {
            meta.insert("generation".to_owned(), generation.saturating_add(1).into());
        }
    }
    if kind.kind == NAMESPACE.kind {
        value["status"]["phase"] = "Terminating".into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::{CONFIG_MAP, LEASE, NODE};
    use serde_json::json;

    fn stored(kind: &'static Kind, value: Value) -> Value {
        new_object(kind, value).unwrap()
    }

    #[test]
    fn a_new_object_gets_what_the_server_decides_and_nothing_it_claims() {
        let made = stored(
            &NODE,
            json!({"metadata": {"name": "n", "uid": "mine", "generation": 7, "selfLink": "x",
                "managedFields": [{}], "creationTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": "x"}}),
        );
        assert_eq!(made["kind"], "Node");
        assert_eq!(made["metadata"]["uid"].as_str().map(str::len), Some(36));
        assert_ne!(made["metadata"]["creationTimestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(made["status"]["phase"], "x");
        for field in ["generation", "selfLink", "managedFields"] {
            assert!(made["metadata"].get(field).is_none(), "{field}");
        }
        let refused =
            new_object(&CONFIG_MAP, json!({"metadata": {"name": "A", "namespace": "d"}})).unwrap_err();
        assert_eq!(refused.code, 422);
    }

    #[test]
    fn main_and_status_writes_keep_to_their_part() {
        let old = stored(
            &NODE,
            json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}, "status": {"phase": "a"}}),
        );
        let wanted =
            json!({"metadata": {"name": "n", "labels": {"l": "1"}}, "spec": {}, "status": {"phase": "b"}});
        let check = |part, spec: Value, phase: &str| {
            let new = merged_with_old(&NODE, part, &old, wanted.clone()).unwrap();
            assert_eq!((&new["spec"], &new["status"]["phase"]), (&spec, &json!(phase)));
            assert_eq!(new["metadata"]["labels"]["l"], "1");
            assert_eq!(new["metadata"]["uid"], old["metadata"]["uid"]);
        };
        check(Part::Main, json!({}), "a");
        assert_eq!(old["spec"]["unschedulable"], true);
        check(Part::Status, old["spec"].clone(), "b");
        check(Part::All, json!({}), "b");
    }

    #[test]
    fn only_a_pure_renewal_is_volatile() {
        let lease = |renewed: &str, holder: &str| json!({"metadata": {"name": "n"}, "spec": {"renewTime": renewed, "holderIdentity": holder}});
        assert!(is_volatile(&LEASE, &lease("1", "a"), &lease("2", "a")));
        assert!(is_volatile(&LEASE, &json!({"spec": {}}), &json!({"spec": {"renewTime": "1"}})));
        assert!(!is_volatile(&LEASE, &lease("1", "a"), &lease("2", "b")));
        assert!(!is_volatile(&NODE, &json!({"spec": {"renewTime": 1}}), &json!({"spec": {"renewTime": 2}})));
    }

    #[test]
    fn deletion_waits_for_finalizers() {
        let free = json!({"kind": "ConfigMap", "metadata": {"name": "c"}});
        assert!(is_released(&marked_for_deletion(&CONFIG_MAP, &free, Propagation::Background)));
        assert!(!is_released(&marked_for_deletion(&CONFIG_MAP, &free, Propagation::Foreground)));
        let held = json!({"kind": "ConfigMap", "metadata": {"name": "c", "generation": 1, "finalizers": ["example.com/x"]}});
        let marked = marked_for_deletion(&CONFIG_MAP, &held, Propagation::Background);
        assert!(!is_released(&marked));
        assert_eq!(marked["metadata"]["generation"], 2);
        assert_eq!(marked_for_deletion(&CONFIG_MAP, &marked, Propagation::Background), marked);
        let mut errors = Vec::new();
        let mut more = marked.clone();
        more["metadata"]["finalizers"] = json!(["example.com/x", "example.com/y"]);
        check_finalizers(&marked, &more, &mut errors);
        assert_eq!(errors.len(), 1);
    }

    /// Random values from words that mean something to patches and kinds; the seed is in the panic's message.
    struct Chaos(kedge_rig::Random);

    impl Chaos {
        fn next(&mut self, below: usize) -> usize {
            self.0.index(below)
        }

        fn word(&mut self) -> &'static str {
            const WORDS: &[&str] = &[
                "metadata",
                "name",
                "labels",
                "annotations",
                "finalizers",
                "ownerReferences",
                "uid",
                "spec",
                "status",
                "conditions",
                "type",
                "taints",
                "key",
                "effect",
                "configSource",
                "configMap",
                "configMapRef",
                "data",
                "binaryData",
                "immutable",
                "$patch",
                "$retainKeys",
                "$setElementOrder/conditions",
                "$setElementOrder/finalizers",
                "delete",
                "$deleteFromPrimitiveList/finalizers",
                "replace",
                "merge",
                "Ready",
                "addresses",
                "resourceVersion",
                "a",
                "leaseDurationSeconds",
                "renewTime",
                "creationTimestamp",
                "deletionTimestamp",
                "unschedulable",
                "",
                "2026-01-01T00:00:00Z",
            ];
            WORDS[self.next(WORDS.len())]
        }

        fn value(&mut self, depth: usize) -> Value {
            match self.next(if depth == 0 { 5 } else { 10 }) {
                0 => Value::Null,
                1 => (self.next(2) == 0).into(),
                2 => self.next(100).into(),
                3 | 4 => self.word().into(),
                5 | 6 => (0..self.next(4)).map(|_| self.value(depth - 1)).collect(),
                _ => Value::Object(
                    (0..self.next(5)).map(|_| (self.word().to_owned(), self.value(depth - 1))).collect(),
                ),
            }
        }

        fn pointer(&mut self) -> String {
            (0..self.next(4)).map(|_| format!("/{}", self.word().replace('/', "~1"))).collect()
        }

        fn json_patch(&mut self) -> Value {
            let operations = ["add", "remove", "replace", "move", "copy", "test", ""];
            (0..self.next(5))
                .map(|_| {
                    let operation = operations[self.next(operations.len())];
                    json!({"op": operation, "path": self.pointer(), "from": self.pointer(), "value": self.value(3)})
                })
                .collect()
        }
    }

    #[test]
    fn no_patch_of_any_shape_panics_or_makes_an_object_that_breaks_the_rules() {
        use kedge_hub_core::patch;
        let mut accepted = 0;
        for seed in 1..4000_u64 {
            let mut chaos = Chaos(kedge_rig::Random::new(seed));
            let kind = kinds::KINDS[chaos.next(kinds::KINDS.len())];
            let namespace = if kind.namespaced { json!("default") } else { Value::Null };
            let mut first = json!({"metadata": {"name": "x", "namespace": namespace}});
            for part in ["spec", "status", "data"] {
                first[part] = chaos.value(5);
            }
            schema::conform(kind.schema(), &mut first);
            // what is left may still break the schema; then it is no stored object
            if schema::conform(kind.schema(), &mut first).wrong.is_some() {
                continue;
            }
            let Ok(old) = new_object(kind, first) else { continue };
            let mut wanted = old.clone();
            let applied = match chaos.next(3) {
                0 => patch::json::apply(&mut wanted, &chaos.json_patch()).is_ok(),
                1 => {
                    patch::merge::apply(&mut wanted, chaos.value(6));
                    true
                }
                _ => patch::strategic::apply(kind.schema(), &mut wanted, chaos.value(6)).is_ok(),
            };
            if !applied || schema::conform(kind.schema(), &mut wanted).wrong.is_some() {
                continue;
            }
            let part = [Part::Main, Part::Status, Part::All][chaos.next(3)];
            let Ok(new) = merged_with_old(kind, part, &old, wanted) else { continue };
            accepted += 1;
            assert_eq!(new["metadata"]["uid"], old["metadata"]["uid"], "seed {seed}");
            assert_eq!(new["metadata"]["name"], "x", "seed {seed}");
            let mut again = new.clone();
            let findings = schema::conform(kind.schema(), &mut again);
            assert!(findings.wrong.is_none() && findings.unknown.is_empty(), "seed {seed}: {findings:?}");
            assert_eq!(again, new, "seed {seed}");
            assert_eq!((kind.cells)(&new, time::OffsetDateTime::UNIX_EPOCH).len(), kind.columns.len());
            (kind.warnings)(&new, Some(&old));
            assert!(Object::new(kind, &new, 1).is_some(), "seed {seed}");
            marked_for_deletion(kind, &new, Propagation::Foreground);
        }
        assert!(accepted > 200, "only {accepted} patches were accepted: the test proves little");
    }

    #[test]
    fn generated_names_keep_their_base() {
        let name = generated_name(&"a".repeat(100)).unwrap();
        assert_eq!(name.len(), 63);
        assert_ne!(generated_name("x-").unwrap(), generated_name("x-").unwrap());
    }
}
