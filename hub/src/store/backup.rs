//! Backups: a copy of all data in one file, made while the hub runs, and its restoration.
//!
//! A backup is a store in the same format, of one moment. It also contains the hub's certificate authority:
//! its owner can control the whole fleet, so it is readable by its owner only. A backup file is complete or
//! absent, and ends with the SHA-256 of the bytes before it.
//!
//! A restore needs the hub to be stopped (the directory's lock ensures that). It reads every object and key
//! before any change, and keeps the old store as `state.db.before-restore`. It raises the revision above all
//! that were handed out: so clients that watched the old state must list again, and no version is ever used
//! twice. The issue number is raised, too. Denied nodes, users and certificates stay denied: by the backup,
//! by the directory, or by the last act in its audit log. Of two records of a node's newest credential the
//! newer one counts, so an old copy of a disk does not become the newest one. Bootstrap tokens of the backup
//! are void, because their uses since then are unknown. Renewals of the last seconds may be missing, as after
//! a crash. Left to others: the file format (`sqlite`), the checksum (`trailer`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kedge_hub_core::identity::credential::Record;
use kedge_hub_core::identity::denied::{self, DENY_LIST_NAME, DENY_LIST_NAMESPACE, Denial};
use kedge_hub_core::kinds::rules::list;
use kedge_hub_core::kinds::{CLUSTER_ROLE_BINDING, CONFIG_MAP, CREDENTIAL, KINDS, ROLE_BINDING};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::new_object;
use kedge_hub_core::state::RAISE as RAISE_UNKNOWN;
use kedge_hub_core::value::text;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde_json::{Value, json};

use crate::audit::{Note, ObjectRef, last_acts, try_append_line};
use crate::files::{self, open_regular};
use crate::fresh::fresh;
use crate::own;
use crate::pki::{self, IssueNumbers, issue_numbers};

use super::last_backup;
use super::marker::{Known, Marker};
use super::sqlite::{
    APPLICATION_ID, ID, MARKS, Sqlite, failed, load_all, lock, open_reading, sync_directory,
};
use super::trailer::{self, Sealed};
use super::{Change, OpenError, SCHEMA_VERSION, Sort, Spaces, Store, StoreError};

/// Longest wait for another process that is folding the log back.
const BUSY: Duration = Duration::from_secs(10);
/// Raise of the revision if it is unknown which ones were handed out.
const UNKNOWN_RAISE: i64 = RAISE_UNKNOWN.cast_signed();
/// Raise of the revision if that is known.
const RAISE: i64 = 1;
/// Key of the highest issue number, in a backup alone.
const ISSUED: &str = "issued";
/// Type of the Secrets that are bootstrap tokens, and their namespace.
const BOOTSTRAP_TOKEN: (&str, &str) = ("bootstrap.kubernetes.io/token", "kube-system");
/// Verb of the line in the audit log after which earlier revocations count no more.
const FORGETS: &str = "forget-revocations";
/// The file in which a restore keeps the store that it replaces.
const KEPT: &str = "state.db.before-restore";

/// Names and contents of key files.
type Keys = Vec<(String, Vec<u8>)>;

/// The content of a backup.
#[derive(Debug, PartialEq, Eq)]
pub struct Content {
    pub objects: u64,
    /// The highest revisions that may have been handed out.
    pub reserved: Spaces<i64>,
}

/// A backup that was made.
#[derive(Debug, PartialEq, Eq)]
pub struct Made {
    pub content: Content,
    /// SHA-256 of all but the last line, in hexadecimal.
    pub digest: String,
}

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    pub objects: u64,
    /// The highest revisions that may have been handed out.
    pub reserved: Spaces<i64>,
    /// The SHA-256 in the backup; `None` if an older hub made it, or it is a plain copy of a store.
    pub digest: Option<String>,
    /// Denials that the backup did not have, by the directory's own list or its audit log.
    pub kept: Vec<Denial>,
    /// Denials of the backup that had ended in this directory.
    pub back: Vec<Denial>,
    /// Names of bootstrap tokens that the backup had, and which are void.
    pub voided: Vec<String>,
    /// Bindings of roles that the backup has and the replaced store had not, or with other subjects: in
    /// words.
    pub granted: Vec<String>,
    /// Nodes whose newest credential this directory knew, and the backup did not.
    pub newer: u64,
    /// Files of the authorities that were written: missing ones, and those that were united.
    pub keys: Vec<String>,
    /// The path of the replaced store.
    pub before: Option<PathBuf>,
}

pub(super) fn wrong(path: &Path, what: impl std::fmt::Display) -> OpenError {
    OpenError::Engine(StoreError::certain(Sort::Other, format!("cannot use {}: {what}", path.display())))
}

pub(super) fn engine(tried: &'static str, path: &Path) -> impl Fn(rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Engine(failed(tried, &path, &error))
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, OpenError> {
    files::check_regular(path).map_err(|error| OpenError::File(path.to_owned(), error))?;
    let connection = Connection::open_with_flags(path, flags).map_err(engine("open", path))?;
    connection.busy_timeout(BUSY).map_err(engine("open", path))?;
    Ok(connection)
}

/// Copies the store of a data directory, even of a running hub, and its keys into a new file.
///
/// # Errors
/// The file exists, one of the two paths cannot be used, or the store is damaged. Then no file of that name
/// is left.
pub fn backup(data_dir: &Path, to: &Path) -> Result<Made, OpenError> {
    if to.symlink_metadata().is_ok() {
        return Err(wrong(to, "it exists already; give a new name"));
    }
    let from = data_dir.join("state.db");
    if !from.exists() {
        return Err(wrong(&from, "there is no store"));
    }
    let part = beside(to, "part");
    let outcome = copy(data_dir, &from, &part).and_then(|content| {
        let digest = trailer::seal(&part).map_err(|error| wrong(&part, error))?;
        fs::rename(&part, to).map_err(|error| wrong(to, error))?;
        sync_directory(
            to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )?;
        Ok(Made { content, digest })
    });
    if outcome.is_err() {
        // remove the incomplete file; the caller gets the first error
        let _ = fs::remove_file(&part);
    }
    if let Ok(made) = &outcome {
        note(data_dir, "backup", to, made.content.objects);
        last_backup::note(data_dir, time::OffsetDateTime::now_utc());
    }
    outcome
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

fn copy(data_dir: &Path, from: &Path, part: &Path) -> Result<Content, OpenError> {
    let _ = fs::remove_file(part);
    // create the file with mode 0600: SQLite would create it readable for others
    File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(part)
        .map_err(|error| wrong(part, error))?;
    let store = source(from)?;
    let text = part.to_str().ok_or_else(|| wrong(part, "its name is no UTF-8"))?;
    store.execute("VACUUM INTO ?1", [text]).map_err(engine("copy", from))?;
    drop(store);
    let copy = open(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    copy.execute_batch("CREATE TABLE keys (name TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID")
        .map_err(engine("write", part))?;
    for name in pki::key_files(data_dir).map_err(|error| wrong(data_dir, error))? {
        let path = data_dir.join(&name);
        let content = match files::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(wrong(&path, error)),
        };
        copy.execute("INSERT INTO keys VALUES (?1, ?2)", params![name, content])
            .map_err(engine("write", part))?;
    }
    let issued = crate::pki::issue_numbers::read(data_dir).map_err(|error| wrong(data_dir, error))?;
    copy.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)",
        params![ISSUED, issued.cast_signed()],
    )
    .map_err(engine("write", part))?;
    let judged = judge(&copy, part).map_err(|fault| match fault {
        Fault::TooNew(version) => OpenError::TooNew(from.to_owned(), version),
        Fault::Foreign(what) | Fault::Damaged(what) => OpenError::Damaged(from.to_owned(), what),
    })?;
    Ok(judged.content)
}

/// Opens the store to copy. No hub can write on a read-only disk, so the store can be read there without the
/// files that are usually beside it.
pub(super) fn source(path: &Path) -> Result<Connection, OpenError> {
    let store = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    match store.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())) {
        Ok(()) => Ok(store),
        Err(error) if failed("read", path, &error).sort == Sort::ReadOnly => open_reading(path),
        Err(error) => Err(engine("read", path)(error)),
    }
}

/// The reason why a file is not a valid store.
#[derive(Debug)]
enum Fault {
    /// No hub wrote it.
    Foreign(String),
    Damaged(String),
    TooNew(i64),
}

/// The content of a valid store.
#[derive(Debug)]
struct Judged {
    content: Content,
    version: i64,
    /// The deny list, null without one.
    list: Value,
    /// The highest issue number; 0 if an older hub made it, or it is a plain copy.
    issued: u64,
}

/// Checks that this is a complete store of a known version, in which every object can be read as a start
/// reads it.
fn judge(store: &Connection, path: &Path) -> Result<Judged, Fault> {
    let unreadable = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => Fault::Foreign(error.to_string()),
        _ => Fault::Damaged(error.to_string()),
    };
    let id: i64 = store.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(unreadable)?;
    if id != APPLICATION_ID {
        return Err(Fault::Foreign("it is not a store of this program".to_owned()));
    }
    let verdict: String =
        store.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(unreadable)?;
    if verdict != "ok" {
        return Err(Fault::Damaged(verdict));
    }
    let version = mark(store, "schema").map_err(unreadable)?.unwrap_or(0);
    if version > SCHEMA_VERSION {
        return Err(Fault::TooNew(version));
    }
    let twice = "SELECT name FROM objects GROUP BY resource, namespace, name HAVING count(*) > 1";
    if let Some(name) =
        store.query_row(twice, [], |row| row.get::<_, String>(0)).optional().map_err(unreadable)?
    {
        return Err(Fault::Damaged(format!("{name:?} is there twice")));
    }
    let (mut objects, mut list, mut bad) = (0, Value::Null, None);
    let loaded = load_all(store, path, &mut |record| {
        objects += 1;
        if record.resource == CONFIG_MAP.plural && denied::is_deny_list(&record.namespace, &record.name) {
            list = own::read(&record.json).unwrap_or_default();
        }
        let kind = KINDS.iter().find(|kind| kind.resource_name() == record.resource);
        let (name, losable) = (
            format!("{} {}/{}", record.resource, record.namespace, record.name),
            super::sqlite::may_be_lost(&record.resource),
        );
        // objects of kinds that are not served are kept unchanged
        let is_read = kind.is_none_or(|kind| Object::from_json(kind, record.json, record.revision).is_some());
        if !is_read && !losable {
            bad.get_or_insert(format!("{name} is no JSON object with a name"));
        }
    });
    loaded.map_err(|error| Fault::Damaged(error.failed(path).message))?;
    if let Some(bad) = bad {
        return Err(Fault::Damaged(bad));
    }
    let reserved = reserved(store).map_err(unreadable)?.unwrap_or_default();
    let issued = mark(store, ISSUED).map_err(unreadable)?.unwrap_or(0).cast_unsigned();
    Ok(Judged { content: Content { objects, reserved }, version, list, issued })
}

/// The reserved marks. A store from before Leases had a mark of their own has one for both.
fn reserved(store: &Connection) -> rusqlite::Result<Option<Spaces<i64>>> {
    let Some(common) = mark(store, MARKS.common[0])? else { return Ok(None) };
    Ok(Some(Spaces { common, leases: mark(store, MARKS.leases[0])?.unwrap_or(common) }))
}

fn mark(store: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    store.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// A backup that was read completely.
struct Source {
    judged: Judged,
    keys: Keys,
    sealed: Option<Sealed>,
}

/// Reads a backup without changing anything.
fn inspect(from: &Path) -> Result<Source, OpenError> {
    let no_backup = |what: String| OpenError::NoBackup(from.to_owned(), what);
    let unreadable = |error: std::io::Error| no_backup(error.to_string());
    let file = open_regular(File::options().read(true), from).map_err(unreadable)?;
    let sealed = trailer::read(&file).map_err(unreadable)?;
    if let Some(Sealed { told, found, .. }) = &sealed
        && told != found
    {
        return Err(no_backup(format!(
            "it is damaged: its SHA-256 is {found}, and was {told} when it was made; take another backup"
        )));
    }
    let foreign = |what: &str| format!("it is no backup of a hub ({what})");
    let store = open(from, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|error| no_backup(foreign(&error.to_string())))?;
    let judged = judge(&store, from).map_err(|fault| match fault {
        Fault::Foreign(what) => no_backup(foreign(&what)),
        Fault::Damaged(what) => no_backup(format!("it is damaged: {what}; take another backup")),
        Fault::TooNew(version) => OpenError::TooNew(from.to_owned(), version),
    })?;
    let keys = keys(&store, from)?;
    if let (None, Some(_)) = (&sealed, &keys)
        && judged.version >= trailer::SINCE
    {
        return Err(no_backup(
            "it is cut short: it has no SHA-256 at its end; take another backup".to_owned(),
        ));
    }
    let keys = keys.unwrap_or_default();
    pki::check_authorities(&keys)
        .map_err(|what| no_backup(format!("it is damaged: {what}; take another backup")))?;
    Ok(Source { judged, keys, sealed })
}

/// Replaces the store of a data directory by a backup. The hub must be stopped. `forget`: only the backup's
/// own denials count.
///
/// # Errors
/// The hub runs, the file is not a valid backup, or it is of a hub with another certificate authority.
/// Nothing was changed then.
pub fn restore(data_dir: &Path, from: &Path, forget: bool) -> Result<Restored, OpenError> {
    let Source { judged, keys, sealed } = inspect(from)?;
    let lock = Arc::new(lock(data_dir)?);
    let keys = keys_to_write(data_dir, keys)?;
    let before = Before::of(data_dir)?;
    let mut reserved = before.raised(judged.content.reserved);
    let of_backup = judged.list;
    let mut list = of_backup.clone();
    let denials = |lifted: Vec<denied::Lifted>| lifted.into_iter().map(|one| one.denial).collect::<Vec<_>>();
    if !forget {
        denied::unite(&mut list, &before.denied);
    }
    let back = match before.is_known {
        true => denials(denied::lifted(&list, &before.denied)),
        false => Vec::new(),
    };
    if !forget {
        deny_by_log(data_dir, &mut list, judged.issued)?;
    }
    let kept = denials(denied::lifted(&list, &of_backup));
    // before anything is replaced: a number too many harms nobody
    let numbers = IssueNumbers::open(data_dir).map_err(|error| wrong(data_dir, error))?;
    let above = numbers.refreshed().max(judged.issued).saturating_add(issue_numbers::RAISE);
    numbers.raise_to(above).map_err(|error| wrong(data_dir, error))?;
    let part = data_dir.join("state.db.restoring");
    let length = sealed.as_ref().map(|sealed| sealed.content_bytes);
    let voided = prepare(from, &part, length)?;
    let granted = granted(&data_dir.join("state.db"), &part)?;
    let list = (list != of_backup).then_some(list);
    let credentials = newer_credentials(&part, &before.credentials)?;
    let newer = credentials.len() as u64;
    reserved.common = reserved.common.saturating_add(newer.cast_signed());
    let mut known = finish(lock, data_dir, &part, &before, reserved, list, &credentials)?;
    known.issued = above;
    known.restored = known.reserved.common;
    if !forget {
        known.ended = before.ended();
    }
    for (name, content) in &keys {
        write_key(data_dir, name, content)?;
    }
    let moved = replace(data_dir, &part)?;
    before.marker.replace(known).map_err(|error| wrong(before.marker.path(), error))?;
    let objects = judged.content.objects;
    note(data_dir, "restore", from, objects);
    if forget {
        note(data_dir, FORGETS, from, objects);
    }
    let digest = sealed.map(|sealed| sealed.found);
    let keys = keys.into_iter().map(|(name, _)| name).collect();
    Ok(Restored { objects, reserved, digest, kept, back, voided, granted, newer, keys, before: moved })
}

/// Replaces the store of a data directory by an empty one, which keeps the denials. The hub must be stopped.
///
/// # Errors
/// The hub runs, or the directory cannot be used. Nothing was changed then.
pub fn begin_anew(data_dir: &Path) -> Result<Restored, OpenError> {
    let lock = Arc::new(lock(data_dir)?);
    let before = Before::of(data_dir)?;
    // the marker may lag behind if its disk failed
    let raised = |present: i64| present.saturating_add(UNKNOWN_RAISE);
    let present = before.handed_out.unwrap_or_default();
    let newer = before.credentials.len() as u64;
    let common = raised(present.common).saturating_add(newer.cast_signed());
    let reserved = Spaces { common, leases: raised(present.leases) };
    let part = data_dir.join("state.db.restoring");
    clear(&part);
    let mut list = Value::Null;
    let kept = denied::unite(&mut list, &before.denied);
    let list = (!kept.is_empty()).then_some(list);
    let credentials: Vec<Stored> = before.credentials.values().cloned().collect();
    let mut known = finish(lock, data_dir, &part, &before, reserved, list, &credentials)?;
    known.issued = crate::pki::issue_numbers::read(data_dir).map_err(|error| wrong(data_dir, error))?;
    let moved = replace(data_dir, &part)?;
    before.marker.replace(known).map_err(|error| wrong(before.marker.path(), error))?;
    note(data_dir, "restore", Path::new("--empty"), 0);
    let (back, voided, granted, keys) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    Ok(Restored {
        objects: 0,
        reserved,
        digest: None,
        kept,
        back,
        voided,
        granted,
        newer,
        keys,
        before: moved,
    })
}

/// The facts about a directory before its store is replaced.
struct Before {
    marker: Marker,
    id: Option<i64>,
    /// The highest revisions that may have been handed out here; `None` if unknown.
    handed_out: Option<Spaces<i64>>,
    /// The denials in the store or the marker.
    denied: Value,
    /// Whether the directory had a list, or is known to have had none.
    is_known: bool,
    /// The table of credentials, by node.
    credentials: BTreeMap<String, Stored>,
}

/// A record of the table of credentials, as it is stored.
#[derive(Debug, Clone)]
struct Stored {
    name: String,
    value: Value,
}

impl Before {
    fn of(data_dir: &Path) -> Result<Before, OpenError> {
        let marker = Marker::open(data_dir).map_err(|error| wrong(data_dir, error))?;
        let present = present(&data_dir.join("state.db"));
        let known = marker.known();
        let of_marker = known.as_ref().map(|known| Spaces {
            common: known.reserved.common.cast_signed(),
            leases: known.reserved.leases.cast_signed(),
        });
        let of_store = present.as_ref().map(|(reserved, ..)| *reserved);
        let handed_out = match (of_marker, of_store) {
            (Some(one), Some(other)) => {
                Some(Spaces { common: one.common.max(other.common), leases: one.leases.max(other.leases) })
            }
            (one, other) => one.or(other),
        };
        let mut denied = present.as_ref().map_or(Value::Null, |(_, _, list)| denied::maps(list));
        if let Some(known) = &known {
            denied::unite(&mut denied, &known.list);
        }
        let is_known = known.is_some() || present.is_some();
        let id = known.map(|known| known.id).or_else(|| present.and_then(|(_, id, _)| id));
        let credentials = credentials(&data_dir.join("state.db")).unwrap_or_default();
        Ok(Before { marker, id, handed_out, denied, is_known, credentials })
    }

    /// Denials that a command ended, and whose end is not explained so far.
    fn ended(&self) -> Value {
        self.marker.known().map_or(Value::Null, |known| known.ended)
    }

    /// Revisions above all that were handed out, by this directory's hub or by the one that made a backup
    /// with these marks.
    fn raised(&self, restored: Spaces<i64>) -> Spaces<i64> {
        let raised = |present: Option<i64>, restored: i64| match present {
            Some(present) if present >= restored => present.saturating_add(RAISE),
            // the hub that made the backup may have handed out more since, and this store is not its
            // continuation
            _ => restored.saturating_add(UNKNOWN_RAISE),
        };
        Spaces {
            common: raised(self.handed_out.map(|present| present.common), restored.common),
            leases: raised(self.handed_out.map(|present| present.leases), restored.leases),
        }
    }
}

/// Records the command in the audit log: a backup contains the fleet's keys, and a restore undoes the acts of
/// others.
fn note(data_dir: &Path, verb: &str, file: &Path, objects: u64) {
    let file = file.display().to_string();
    let object = ObjectRef { resource: "backups", name: &file, ..ObjectRef::default() };
    try_append_line(data_dir, verb, object, &[(Note::Count, objects.to_string())]);
}

/// The keys of a backup; a plain copy of a store has none.
fn keys(source: &Connection, path: &Path) -> Result<Option<Keys>, OpenError> {
    let failed = engine("read", path);
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'keys'";
    if source.query_row(there, [], |row| row.get::<_, i64>(0)).map_err(&failed)? == 0 {
        return Ok(None);
    }
    let mut statement = source.prepare("SELECT name, content FROM keys").map_err(&failed)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(&failed)?;
    let found: Keys = rows.collect::<Result<_, _>>().map_err(&failed)?;
    // names become paths: accept only known ones
    Ok(Some(found.into_iter().filter(|(name, _)| pki::is_key_file(name)).collect()))
}

/// The key files that a restore writes: those that are missing, and those in which directory and backup have
/// to be united.
fn keys_to_write(data_dir: &Path, keys: Keys) -> Result<Keys, OpenError> {
    let mut found = Vec::new();
    for (name, content) in keys {
        let path = data_dir.join(&name);
        match files::read(&path) {
            Ok(present) => {
                let united = pki::united(&name, &present, &content).map_err(|what| wrong(&path, what))?;
                found.extend(united.map(|content| (name, content)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => found.push((name, content)),
            Err(error) => return Err(wrong(&path, error)),
        }
    }
    Ok(found)
}

/// The highest revisions that the present store may have handed out, its id, and its deny list; `None` if
/// unknown. A missing store proves as little as a damaged one: the hub of the backup may have continued
/// elsewhere.
fn present(state: &Path) -> Option<(Spaces<i64>, Option<i64>, Value)> {
    if !fs::metadata(state).is_ok_and(|file| file.is_file() && file.len() > 0) {
        return None;
    }
    let store = open(state, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?;
    let reserved = reserved(&store).ok()??;
    let id = mark(&store, ID).ok()?;
    let sql = "SELECT json FROM objects WHERE resource = ?1 AND namespace = ?2 AND name = ?3";
    let place = [CONFIG_MAP.plural, DENY_LIST_NAMESPACE, DENY_LIST_NAME];
    let list: Option<Vec<u8>> = store.query_row(sql, place, |row| row.get(0)).optional().ok()?;
    let list = list.and_then(|json| own::read(&json).ok()).unwrap_or_default();
    // copies the log into the file, so that it is not replayed into the new one
    store.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).ok()?;
    Some((reserved, id, list))
}

/// The table of credentials of a store; `None` if it cannot be read.
fn credentials(state: &Path) -> Option<BTreeMap<String, Stored>> {
    if !fs::metadata(state).is_ok_and(|file| file.is_file() && file.len() > 0) {
        return None;
    }
    let store = open(state, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?;
    let mut statement = store.prepare("SELECT name, json FROM objects WHERE resource = ?1").ok()?;
    let rows = statement
        .query_map([CREDENTIAL.resource_name()], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?))
        })
        .ok()?;
    let read = |(name, json): (String, Vec<u8>)| {
        let value = own::read(&json).ok()?;
        Some((name.clone(), Stored { name, value }))
    };
    // one that is damaged counts as unknown
    Some(rows.filter_map(|row| read(row.ok()?)).collect())
}

/// The records that are newer than those of a restored store: a backup must not make an older key of a node
/// its newest one.
fn newer_credentials(part: &Path, before: &BTreeMap<String, Stored>) -> Result<Vec<Stored>, OpenError> {
    if before.is_empty() {
        return Ok(Vec::new());
    }
    let of_backup =
        credentials(part).ok_or_else(|| wrong(part, "its table of credentials cannot be read"))?;
    let is_newer = |stored: &&Stored| match of_backup.get(&stored.name) {
        Some(known) => Record::read(&known.value).unite(&Record::read(&stored.value)),
        None => true,
    };
    Ok(before.values().filter(is_newer).cloned().collect())
}

/// Removes the leftovers of an interrupted restore.
fn clear(part: &Path) {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(format!("{}{suffix}", part.display()));
    }
}

/// Copies a backup, without its checksum and its bootstrap tokens, into a file that only the hub may read.
/// Returns the names of those tokens' Secrets.
fn prepare(from: &Path, part: &Path, length: Option<u64>) -> Result<Vec<String>, OpenError> {
    clear(part);
    let bytes = |error| wrong(part, error);
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(part).map_err(bytes)?;
    let source = File::open(from).map_err(|error| wrong(from, error))?;
    std::io::copy(&mut source.take(length.unwrap_or(u64::MAX)), &mut file).map_err(bytes)?;
    drop(file);
    let store = open(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    store.execute_batch("DROP TABLE IF EXISTS keys").map_err(engine("write", part))?;
    store.execute("DELETE FROM meta WHERE key = ?1", [ISSUED]).map_err(engine("write", part))?;
    let tokens = bootstrap_tokens(&store).map_err(engine("read", part))?;
    for name in &tokens {
        let sql = "DELETE FROM objects WHERE resource = 'secrets' AND namespace = ?1 AND name = ?2";
        store.execute(sql, params![BOOTSTRAP_TOKEN.1, name]).map_err(engine("write", part))?;
    }
    Ok(tokens)
}

/// The names of the Secrets that are bootstrap tokens.
fn bootstrap_tokens(store: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name, json FROM objects WHERE resource = 'secrets' AND namespace = ?1";
    let mut statement = store.prepare(sql)?;
    let rows = statement
        .query_map([BOOTSTRAP_TOKEN.1], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    let mut tokens = Vec::new();
    for row in rows {
        let (name, json) = row?;
        if own::read(&json).is_ok_and(|secret| secret["type"] == BOOTSTRAP_TOKEN.0) {
            tokens.push(name);
        }
    }
    Ok(tokens)
}

/// The bindings of roles in a store that another one has not, or with other subjects; without the hub's own.
/// A store that cannot be read has none.
fn granted(before: &Path, restored: &Path) -> Result<Vec<String>, OpenError> {
    let of = |path: &Path| -> Result<BTreeMap<String, Value>, OpenError> {
        let store = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        bindings(&store).map_err(engine("read", path))
    };
    // a lost store has lost its bindings, too
    let known = if before.is_file() { of(before).unwrap_or_default() } else { BTreeMap::new() };
    let mut found = Vec::new();
    for (place, binding) in of(restored)? {
        let old = known.get(&place);
        let own = text(&binding, &["metadata", "labels", "kubernetes.io/bootstrapping"]) == "rbac-defaults";
        let is_known = old.is_some_and(|old| {
            old["subjects"] == binding["subjects"] && old["roleRef"] == binding["roleRef"]
        });
        if is_known || (own && old.is_none()) {
            continue;
        }
        let subjects = list(&binding, "subjects")
            .iter()
            .map(|subject| format!("{} {:?}", text(subject, &["kind"]), text(subject, &["name"])));
        let subjects = subjects.collect::<Vec<_>>().join(", ");
        found.push(format!("{place} gives {:?} to {subjects}", text(&binding, &["roleRef", "name"])));
    }
    Ok(found)
}

/// The bindings of roles by their kind, namespace and name.
fn bindings(store: &Connection) -> rusqlite::Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for kind in [&CLUSTER_ROLE_BINDING, &ROLE_BINDING] {
        let mut statement = store.prepare("SELECT namespace, name, json FROM objects WHERE resource = ?1")?;
        let rows = statement.query_map([kind.resource_name()], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Vec<u8>>(2)?))
        })?;
        for row in rows {
            let (namespace, name, json) = row?;
            let slash = if namespace.is_empty() { "" } else { "/" };
            if let Ok(binding) = own::read(&json) {
                all.insert(format!("{} {namespace}{slash}{name}", kind.kind), binding);
            }
        }
    }
    Ok(all)
}

/// Denies the nodes whose last act in the audit log is a revocation: for a directory whose store and marker
/// are lost. The order of the lines counts, not their times.
fn deny_by_log(data_dir: &Path, list: &mut Value, issue: u64) -> Result<(), OpenError> {
    let acts = last_acts(data_dir, FORGETS).map_err(|error| wrong(data_dir, error))?;
    for (node, revoked) in acts.into_iter().filter_map(|(node, act)| Some((node, act?))) {
        if !denied::DenyList::read(list).is_revoked(&node) {
            let change =
                denied::Change { by: &revoked.by, time: &revoked.time, issue, reason: "by the audit log" };
            change.revoke(list, &node);
        }
    }
    Ok(())
}

/// Makes a new store of a file, or an empty one if it does not exist. It has the present format, these marks
/// and records of credentials, and this deny list if one is given. It is durable on return; returns the facts
/// for the directory's marker.
fn finish(
    lock: Arc<File>,
    data_dir: &Path,
    part: &Path,
    before: &Before,
    reserved: Spaces<i64>,
    list: Option<Value>,
    credentials: &[Stored],
) -> Result<Known, OpenError> {
    let unsigned = |number: i64| number.cast_unsigned();
    let reserved = Spaces { common: unsigned(reserved.common), leases: unsigned(reserved.leases) };
    let mut store = Sqlite::rework(part, data_dir, lock, before.id)?;
    let revision = reserved.common;
    let written = list.map(|list| list_object(list, revision)).transpose()?;
    // below that of the list: the marks leave room for them
    let revisions = (1..=revision).rev().skip(1);
    let records: Vec<(&str, u64, Object)> = credentials
        .iter()
        .zip(revisions)
        .map(|(stored, revision)| Ok((&*stored.name, revision, record_object(stored, revision)?)))
        .collect::<Result<_, OpenError>>()?;
    let list = written.iter().map(|object| Change::Put {
        resource: CONFIG_MAP.plural,
        namespace: DENY_LIST_NAMESPACE,
        name: DENY_LIST_NAME,
        revision,
        json: &object.json,
    });
    let resource = CREDENTIAL.resource_name();
    let records = records.iter().map(|(name, revision, object)| Change::Put {
        resource: &resource,
        namespace: "",
        name,
        revision: *revision,
        json: &object.json,
    });
    let changes: Vec<Change<'_>> = records.chain(list).collect();
    store.commit(&changes, Some(reserved)).map_err(OpenError::Engine)?;
    let mut known = Known { id: store.id().unwrap_or_default(), reserved, ..Known::default() };
    store
        .load(&mut |record| {
            if record.resource == CONFIG_MAP.plural && denied::is_deny_list(&record.namespace, &record.name) {
                let list = own::read(&record.json).unwrap_or_default();
                known.note_list(record.revision, &list);
            }
        })
        .map_err(OpenError::Engine)?;
    store.finish()?;
    File::open(part).and_then(|file| file.sync_all()).map_err(|error| wrong(part, error))?;
    Ok(known)
}

/// A record of the table of credentials as a stored object of this revision.
fn record_object(stored: &Stored, revision: u64) -> Result<Object, OpenError> {
    let mut value = stored.value.clone();
    value["metadata"]["resourceVersion"] = revision.to_string().into();
    Object::new(&CREDENTIAL, &value, revision).ok_or_else(|| {
        let what = format!("the record of the credential of {:?} cannot be stored", stored.name);
        OpenError::Engine(StoreError::certain(Sort::Other, what))
    })
}

/// The deny list as a stored object.
fn list_object(mut list: Value, revision: u64) -> Result<Object, OpenError> {
    let unmade = |what: String| OpenError::Engine(StoreError::certain(Sort::Other, what));
    if !list["metadata"].is_object() {
        list["metadata"] = json!({"name": DENY_LIST_NAME, "namespace": DENY_LIST_NAMESPACE});
        list = fresh()
            .and_then(|fresh| new_object(&CONFIG_MAP, list, &fresh))
            .map_err(|error| unmade(error.message))?;
    }
    list["metadata"]["resourceVersion"] = revision.to_string().into();
    Object::new(&CONFIG_MAP, &list, revision)
        .ok_or_else(|| unmade("the deny list cannot be stored".to_owned()))
}

fn write_key(data_dir: &Path, name: &str, content: &[u8]) -> Result<(), OpenError> {
    let path = data_dir.join(name);
    let failed = |error| wrong(&path, error);
    let parent = path.parent().unwrap_or(data_dir);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    let part = beside(&path, "restoring");
    let mode = if name == "ca.crt" { 0o644 } else { 0o600 };
    let mut file =
        File::options().create(true).truncate(true).write(true).mode(mode).open(&part).map_err(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&part, &path).map_err(failed)?;
    sync_directory(parent)
}

/// The last step: before the rename the old store is in place, after it the new one. Returns the path at
/// which the old one is kept.
fn replace(data_dir: &Path, part: &Path) -> Result<Option<PathBuf>, OpenError> {
    let (state, kept) = (data_dir.join("state.db"), data_dir.join(KEPT));
    for suffix in ["", "-wal"] {
        let (from, to) = (format!("{}{suffix}", state.display()), format!("{}{suffix}", kept.display()));
        // an earlier one is removed, because only the latest is kept
        let _ = fs::remove_file(&to);
        if Path::new(&from).exists() {
            fs::hard_link(&from, &to).map_err(|error| wrong(&kept, error))?;
        }
    }
    // a log that could not be copied back belongs to the old file; replayed into the new one it would damage
    // it
    for suffix in ["-wal", "-shm"] {
        match fs::remove_file(format!("{}{suffix}", state.display())) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrong(&state, error)),
        }
    }
    sync_directory(data_dir)?;
    fs::rename(part, &state).map_err(|error| wrong(&state, error))?;
    sync_directory(data_dir)?;
    Ok(kept.exists().then_some(kept))
}

#[cfg(test)]
mod tests {
    use super::super::sqlite::{Sqlite, version_1};
    use super::super::{Change, Marks, Spaces, Store};
    use super::*;
    use kedge_hub_core::identity::credential::Newest;
    use kedge_rig::Scratch;

    fn scratch(purpose: &str) -> Scratch {
        Scratch::new(&format!("hub-backup-{purpose}")).unwrap()
    }

    const OBJECT: &[u8] = br#"{"metadata":{"name":"a"}}"#;

    fn put(name: &str, revision: u64) -> Change<'_> {
        Change::Put { resource: "nodes", namespace: "", name, revision, json: OBJECT }
    }

    fn found(data_dir: &Path) -> (Vec<String>, Spaces<Marks>) {
        let mut names = Vec::new();
        let mut store = Sqlite::open(data_dir).unwrap();
        let marks = store.load(&mut |record| names.push(record.name)).unwrap();
        (names, marks)
    }

    #[test]
    fn backup_of_a_running_store_restores_with_higher_revisions() {
        let folder = scratch("moment");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        let content = backup(&data, &file).unwrap();
        assert_eq!(content.content, Content { objects: 1, reserved: Spaces::both(100) });
        assert!(backup(&data, &file).unwrap_err().to_string().contains("exists already"));
        store.commit(&[put("b", 300)], Some(Spaces::both(400))).unwrap();
        assert!(matches!(restore(&data, &file, false), Err(OpenError::Locked(_))), "the hub runs");
        drop(store);
        assert_eq!(restore(&data, &file, false).unwrap().reserved, Spaces::both(401));
        let (names, marks) = found(&data);
        assert_eq!(
            (names, marks),
            (vec!["a".to_owned()], Spaces::both(Marks { reserved: 401, clean: None }))
        );
        let kept = open(&data.join("state.db.before-restore"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        assert_eq!(judge(&kept, &data).unwrap().content.objects, 2);
        let audit = fs::read_to_string(data.join("audit.log")).unwrap();
        let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| &line["verb"]).collect::<Vec<_>>(), ["backup", "restore"]);
        for line in &lines {
            assert_eq!(line["objectRef"]["name"], file.to_str().unwrap());
            assert_eq!(line["annotations"]["kedge.dev/count"], "1");
        }
        // and into an empty directory
        let other = folder.join("other");
        restore(&other, &file, false).unwrap();
        assert_eq!(found(&other).0, ["a"]);
    }

    #[test]
    fn restore_without_its_own_store_reuses_no_revision() {
        let folder = scratch("unknown");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        backup(&data, &file).unwrap();
        // the hub continues after the backup, and its disk is lost
        store.commit(&[put("b", 90_000)], Some(Spaces::both(100_000))).unwrap();
        drop(store);
        let check = |directory: &Path| {
            let reserved = restore(directory, &file, false).unwrap().reserved;
            assert_eq!(reserved, Spaces::both(100 + UNKNOWN_RAISE));
            assert_eq!(found(directory).1.common.reserved, reserved.common.cast_unsigned());
            assert_eq!(found(directory).1.leases.reserved, reserved.leases.cast_unsigned());
        };
        check(&folder.join("empty"));
        // a hub was started there before the restore
        let new = folder.join("new");
        let mut store = Sqlite::open(&new).unwrap();
        store.commit(&[put("c", 1)], Some(Spaces::both(99))).unwrap();
        drop(store);
        check(&new);
    }

    #[test]
    fn damaged_store_is_replaced_and_no_revision_is_reused() {
        let folder = scratch("damaged");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        drop(store);
        backup(&data, &file).unwrap();
        fs::write(data.join("state.db"), vec![7; 9000]).unwrap();
        assert!(matches!(Sqlite::open(&data), Err(OpenError::Damaged(..))));
        assert!(restore(&data, &file, false).unwrap().reserved.leases > UNKNOWN_RAISE);
        assert_eq!(found(&data).0, ["a"]);
    }

    #[test]
    fn backup_of_version_1_is_restored_and_a_newer_one_refused() {
        let folder = scratch("versions");
        let (old, file, data) = (folder.join("old"), folder.join("b"), folder.join("data"));
        // the old hub runs while the new program makes the backup
        let hub = version_1::make(&old, 900, None);
        assert_eq!(
            backup(&old, &file).unwrap().content,
            Content { objects: 60, reserved: Spaces::both(900) }
        );
        drop(hub);
        assert!(restore(&data, &file, false).unwrap().reserved.common > 900);
        let (names, marks) = found(&data);
        assert_eq!((names.len(), marks.common.clean), (60, None));
        assert!(marks.common.reserved > 900 && marks.leases.reserved > 900);
        // over a store that has changed since
        assert_eq!(found(&old).0.len(), 60);
        restore(&old, &file, false).unwrap();
        assert_eq!(found(&old).0.len(), 60);
        let sealed = trailer::read(&File::open(&file).unwrap()).unwrap().unwrap();
        File::options().write(true).open(&file).unwrap().set_len(sealed.content_bytes).unwrap();
        let newer = Connection::open(&file).unwrap();
        newer.execute("UPDATE meta SET value = ?1 WHERE key = 'schema'", [SCHEMA_VERSION + 1]).unwrap();
        drop(newer);
        assert!(matches!(restore(&data, &file, false), Err(OpenError::TooNew(_, 5))));
        assert_eq!(found(&data).0.len(), 60);
    }

    /// Flips some bits of a store's or a backup's file, one at a time.
    fn flips(file: &Path, check: impl Fn(usize)) {
        let good = fs::read(file).unwrap();
        for at in (0..good.len()).step_by(211) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(file, &bad).unwrap();
            check(at);
        }
        fs::write(file, &good).unwrap();
    }

    #[test]
    fn backup_with_a_flipped_bit_is_refused() {
        let folder = scratch("flips");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        drop(store);
        let made = backup(&data, &file).unwrap();
        let other = folder.join("other");
        flips(&file, |at| {
            let refused = restore(&other, &file, false).unwrap_err().to_string();
            assert!(refused.contains("nothing was changed"), "byte {at}: {refused}");
        });
        assert!(!other.exists(), "nothing was made");
        assert_eq!(restore(&other, &file, false).unwrap().digest, Some(made.digest));
        // without its last line it is not accepted as the backup of an older hub
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 90]).unwrap();
        assert!(restore(&other, &file, false).unwrap_err().to_string().contains("cut short"));
    }

    #[test]
    fn copy_of_a_store_is_restored_with_a_remark() {
        let folder = scratch("copy");
        let data = folder.join("data");
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        drop(store);
        fs::copy(data.join("state.db"), folder.join("copy")).unwrap();
        let done = restore(&folder.join("other"), &folder.join("copy"), false).unwrap();
        assert_eq!((done.digest, done.objects, done.before), (None, 1, None));
    }

    #[test]
    fn file_that_is_no_backup_is_called_so() {
        let folder = scratch("foreign");
        let file = |name: &str| folder.join(name);
        fs::write(file("text"), "no database, but some text of more than a hundred bytes".repeat(9)).unwrap();
        fs::write(file("empty"), "").unwrap();
        fs::create_dir(file("folder")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(file("pipe")).status().unwrap().success());
        let other = Connection::open(file("other")).unwrap();
        other.execute_batch("CREATE TABLE x (y)").unwrap();
        drop(other);
        for (name, expect) in [
            ("text", "it is no backup of a hub"),
            ("empty", "it is no backup of a hub"),
            ("other", "it is no backup of a hub"),
            ("folder", "directory"),
            ("pipe", "named pipe"),
            ("missing", "No such file"),
        ] {
            let refused = restore(&folder.join("data"), &file(name), false).unwrap_err().to_string();
            assert!(refused.contains(expect) && refused.contains("nothing was changed"), "{name}: {refused}");
            assert!(!refused.contains("save what is left"), "{name}: {refused}");
        }
    }

    #[test]
    fn damaged_key_in_a_backup_is_found_before_anything_changes() {
        let folder = scratch("keys");
        let (data, file) = (folder.join("data"), folder.join("b"));
        drop(Sqlite::open(&data).unwrap());
        fs::create_dir_all(data.join("pki")).unwrap();
        fs::write(data.join("pki/ca.pem"), "no key").unwrap();
        backup(&data, &file).unwrap();
        let refused = restore(&folder.join("other"), &file, false).unwrap_err().to_string();
        assert!(refused.contains("pki/ca.pem") && refused.contains("nothing was changed"), "{refused}");
        assert!(!folder.join("other").exists());
    }

    fn denying(nodes: &[&str]) -> Vec<u8> {
        let data: serde_json::Map<_, _> =
            nodes.iter().map(|node| (format!("node.{node}"), Value::from(""))).collect();
        let meta = json!({"name": DENY_LIST_NAME, "namespace": DENY_LIST_NAMESPACE, "uid": "u"});
        json!({"metadata": meta, "data": data}).to_string().into_bytes()
    }

    fn put_list(json: &[u8], revision: u64) -> Change<'_> {
        let (namespace, name) = (DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        Change::Put { resource: CONFIG_MAP.plural, namespace, name, revision, json }
    }

    /// The denials in a directory, and the version of its list.
    fn denied_in(data_dir: &Path) -> (Vec<String>, u64) {
        let (mut found, mut revision) = (Vec::new(), 0);
        let mut store = super::super::disk::DiskStore::open(data_dir).unwrap();
        store
            .load(&mut |record| {
                if record.name == DENY_LIST_NAME {
                    let list: Value = serde_json::from_slice(&record.json).unwrap();
                    assert_eq!(list["metadata"]["name"], DENY_LIST_NAME);
                    found = denied::lifted(&list, &Value::Null)
                        .into_iter()
                        .map(|one| one.denial.to_string())
                        .collect();
                    revision = record.revision;
                }
            })
            .unwrap();
        (found, revision)
    }

    /// Opens a store, makes these changes, and closes it.
    fn run(data_dir: &Path, changes: &[Change<'_>], reserved: u64) {
        let mut store = super::super::disk::DiskStore::open(data_dir).unwrap();
        store.load(&mut |_| {}).unwrap();
        store.commit(changes, Some(Spaces::both(reserved))).unwrap();
    }

    #[test]
    fn restore_names_the_bindings_that_it_brings_back() {
        let folder = scratch("bindings");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let binding = |name: &str, user: &str, own: bool| {
            let labels =
                if own { json!({"kubernetes.io/bootstrapping": "rbac-defaults"}) } else { json!({}) };
            json!({"metadata": {"name": name, "labels": labels}, "roleRef": {"kind": "ClusterRole", "name": "edit"},
                "subjects": [{"kind": "User", "name": user}]})
            .to_string()
        };
        let put = |name: &'static str, namespace: &'static str, json: &str, revision: u64| {
            let kind = if namespace.is_empty() { &CLUSTER_ROLE_BINDING } else { &ROLE_BINDING };
            let (resource, json) = (kind.resource_name(), json.as_bytes().to_vec());
            (resource, namespace, name, json, revision)
        };
        let write = |all: &[(String, &str, &str, Vec<u8>, u64)], reserved: u64| {
            let changes: Vec<Change<'_>> = all
                .iter()
                .map(|(resource, namespace, name, json, revision)| Change::Put {
                    resource,
                    namespace,
                    name,
                    revision: *revision,
                    json,
                })
                .collect();
            run(&data, &changes, reserved);
        };
        let jane = binding("jane", "jane", false);
        write(
            &[
                put("jane", "", &jane, 5),
                put("joe", "shop", &binding("joe", "joe", false), 6),
                put("same", "", &binding("same", "x", false), 7),
                put("own", "", &binding("own", "y", true), 8),
            ],
            100,
        );
        backup(&data, &file).unwrap();
        assert_eq!(restore(&data, &file, false).unwrap().granted, Vec::<String>::new());
        // jane's was taken from her, and joe's given to jim
        write(
            &[
                put("jane", "", &jane.replace(r#"[{"kind":"User","name":"jane"}]"#, "[]"), 110),
                put("joe", "shop", &binding("joe", "jim", false), 111),
            ],
            200,
        );
        let expect = [
            r#"ClusterRoleBinding jane gives "edit" to User "jane""#,
            r#"RoleBinding shop/joe gives "edit" to User "joe""#,
        ];
        assert_eq!(restore(&data, &file, false).unwrap().granted, expect);
        // a lost store has no bindings to compare with
        fs::write(data.join("state.db"), "").unwrap();
        assert_eq!(restore(&data, &file, false).unwrap().granted.len(), 3);
    }

    #[test]
    fn restore_readmits_nobody() {
        let folder = scratch("denied");
        let (data, file) = (folder.join("data"), folder.join("b"));
        run(&data, &[put("a", 5), put_list(&denying(&["edge-1"]), 6)], 100);
        backup(&data, &file).unwrap();
        run(&data, &[put_list(&denying(&["edge-2"]), 7)], 200);
        let done = restore(&data, &file, false).unwrap();
        assert_eq!(done.kept, [Denial::Node("edge-2".to_owned())]);
        assert_eq!(done.before, Some(data.join(KEPT)));
        let both = vec!["node \"edge-1\"".to_owned(), "node \"edge-2\"".to_owned()];
        assert_eq!(denied_in(&data), (both.clone(), 201), "with a version of its own");
        // the store is lost, and its denials are known all the same
        run(&data, &[put_list(&denying(&["edge-1", "edge-2", "edge-3"]), 300)], 400);
        fs::write(data.join("state.db"), "").unwrap();
        let done = restore(&data, &file, false).unwrap();
        assert_eq!(done.kept.len(), 2);
        assert_eq!(done.reserved, Spaces::both(401), "the marker tells what was handed out");
        assert_eq!(denied_in(&data).0.len(), 3);
        // a second restore removes no denial
        assert_eq!(restore(&data, &file, false).unwrap().kept.len(), 2);
    }

    /// An older copy of a disk does not become the newest one by a restore.
    #[test]
    fn restore_keeps_the_newest_credentials() {
        let folder = scratch("credentials");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let record = |name: &str, issue: u64| {
            let mut value = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "5"}});
            let newest = Newest { issue, not_after: 100, key: format!("key-{issue}") };
            Record { newest: Some(newest), ..Record::default() }.write(&mut value);
            value.to_string().into_bytes()
        };
        let put = |records: &[(&'static str, u64)], first: u64| {
            let resource = CREDENTIAL.resource_name();
            let jsons: Vec<_> = records.iter().map(|(name, issue)| record(name, *issue)).collect();
            let changes: Vec<_> = (first..)
                .zip(records)
                .zip(&jsons)
                .map(|((revision, (name, _)), json)| Change::Put {
                    resource: &resource,
                    namespace: "",
                    name,
                    revision,
                    json,
                })
                .collect();
            run(&data, &changes, first + 10);
        };
        let known = |data: &Path| {
            let table = credentials(&data.join("state.db")).unwrap();
            let newest = |stored: &Stored| Record::read(&stored.value).newest.unwrap().issue;
            table.iter().map(|(name, stored)| (name.clone(), newest(stored))).collect::<Vec<_>>()
        };
        let of = |found: &[(&str, u64)]| -> Vec<(String, u64)> {
            found.iter().map(|(name, issue)| ((*name).to_owned(), *issue)).collect()
        };
        put(&[("a", 2), ("b", 3), ("c", 4)], 5);
        backup(&data, &file).unwrap();
        put(&[("a", 7), ("b", 1), ("d", 6)], 20);
        let done = restore(&data, &file, false).unwrap();
        assert_eq!((known(&data), done.newer), (of(&[("a", 7), ("b", 3), ("c", 4), ("d", 6)]), 2));
        assert_eq!(done.reserved, Spaces { common: 33, leases: 31 });
        // even if all else is forgotten
        assert_eq!(restore(&data, &file, true).unwrap().newer, 2);
        assert_eq!(known(&data), of(&[("a", 7), ("b", 3), ("c", 4), ("d", 6)]));
        assert_eq!((begin_anew(&data).unwrap().newer, known(&data).len()), (4, 4));
        // no other place has a record
        let other = folder.join("other");
        restore(&other, &file, false).unwrap();
        assert_eq!(known(&other), of(&[("a", 2), ("b", 3), ("c", 4)]));
    }

    #[test]
    fn restore_raises_the_issue_number_and_voids_tokens() {
        let folder = scratch("numbers");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let secret = |name: &str, sort: &str| {
            json!({"metadata": {"name": name, "namespace": "kube-system"}, "type": sort}).to_string()
        };
        let (token, other) =
            (secret("bootstrap-token-a", "bootstrap.kubernetes.io/token"), secret("s", "Opaque"));
        let put = |name: &'static str, revision: u64, json: &'static str| Change::Put {
            resource: "secrets",
            namespace: "kube-system",
            name,
            revision,
            json: json.as_bytes(),
        };
        let [token, other] = [token, other].map(|text| &*text.leak());
        run(&data, &[put("bootstrap-token-a", 5, token), put("s", 6, other)], 100);
        let numbers = IssueNumbers::open(&data).unwrap();
        numbers.raise_to(7).unwrap();
        backup(&data, &file).unwrap();
        numbers.raise_to(9).unwrap();
        let done = restore(&data, &file, false).unwrap();
        assert_eq!(done.voided, ["bootstrap-token-a"]);
        assert_eq!(found(&data).0, ["s"]);
        assert_eq!(IssueNumbers::open(&data).unwrap().take().unwrap(), 10 + issue_numbers::RAISE);
        let known = Marker::open(&data).unwrap().known().unwrap();
        assert_eq!((known.issued, known.restored), (9 + issue_numbers::RAISE, known.reserved.common));
        // elsewhere the backup's own number counts
        let other = folder.join("other");
        restore(&other, &file, false).unwrap();
        assert_eq!(IssueNumbers::open(&other).unwrap().take().unwrap(), 8 + issue_numbers::RAISE);
    }

    #[test]
    fn begun_anew_denies_and_counts_on() {
        let folder = scratch("anew");
        let data = folder.join("data");
        run(&data, &[put("a", 5), put_list(&denying(&["edge-1"]), 6)], 100);
        fs::remove_file(data.join("state.db")).unwrap();
        assert!(matches!(super::super::disk::DiskStore::open(&data), Err(OpenError::Lost { denied: 1, .. })));
        let done = begin_anew(&data).unwrap();
        assert_eq!((done.objects, done.kept.len(), done.before), (0, 1, None));
        let raised = u64::try_from(100 + UNKNOWN_RAISE).unwrap();
        assert_eq!(denied_in(&data), (vec!["node \"edge-1\"".to_owned()], raised));
        assert_eq!(found(&data).1.common.reserved, raised);
        // without any trace of a store
        let other = folder.join("other");
        assert_eq!(begin_anew(&other).unwrap().kept, []);
        assert_eq!(denied_in(&other).0.len(), 0);
    }

    #[test]
    fn invalid_backup_changes_nothing() {
        let folder = scratch("bad");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        drop(store);
        let good = folder.join("good");
        backup(&data, &good).unwrap();
        let bytes = fs::read(&good).unwrap();
        let mut torn = bytes.clone();
        torn.truncate(bytes.len() / 2);
        for bad in [&b""[..], &b"no database"[..], &torn] {
            fs::write(&file, bad).unwrap();
            assert!(restore(&data, &file, false).is_err(), "{} bytes", bad.len());
            assert_eq!(found(&data).0, ["a"]);
        }
        let make_keys = |directory: &Path| {
            let now = time::OffsetDateTime::now_utc();
            drop(pki::Pki::open(directory, &["localhost".to_owned()], now).unwrap());
            ["pki/ca.pem", "ca.crt"].map(|name| fs::read(directory.join(name)).unwrap())
        };
        let own = make_keys(&data);
        let keyed = folder.join("keyed");
        backup(&data, &keyed).unwrap();
        let others = folder.join("others");
        fs::create_dir(&others).unwrap();
        make_keys(&others);
        assert!(
            restore(&others, &keyed, false)
                .unwrap_err()
                .to_string()
                .contains("another certificate authority")
        );
        fs::remove_dir_all(data.join("pki")).unwrap();
        fs::remove_file(data.join("ca.crt")).unwrap();
        restore(&data, &keyed, false).unwrap();
        assert_eq!(["pki/ca.pem", "ca.crt"].map(|name| fs::read(data.join(name)).unwrap()), own);
        // a backup of before a replacement of the authority goes into the directory of after it
        pki::step(&data, pki::Step::New).unwrap();
        pki::step(&data, pki::Step::Switch { back: false }).unwrap();
        let files = ["pki/ca.pem", "pki/ca-2.pem", "pki/authorities.json"];
        let read = |directory: &Path| files.map(|name| fs::read(directory.join(name)).unwrap());
        let newer = read(&data);
        let later = folder.join("later");
        backup(&data, &later).unwrap();
        restore(&data, &keyed, false).unwrap();
        assert_eq!(read(&data), newer);
        // and all authorities of a backup into an empty one
        let empty = folder.join("empty");
        fs::create_dir(&empty).unwrap();
        restore(&empty, &later, false).unwrap();
        assert_eq!(read(&empty), newer);
    }
}
