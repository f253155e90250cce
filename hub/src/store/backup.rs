//! A copy of everything in one file, made while the hub runs, and the way back.
//!
//! A backup is a store of the same form, of one moment, with the hub's certificate authority beside the objects: whoever holds
//! it holds the fleet's keys, so it is readable by its owner only. A backup is a whole file or none. Restoring needs the hub
//! to be stopped (the directory's lock says so), validates the file before any change, keeps the old store as
//! `state.db.before-restore`, and raises the revision above all that were handed out: so clients that watched the old state must
//! list again, and no version is ever used twice. Renewals of the last seconds may be missing, as after a crash.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde_json::Value;

use crate::audit::{Note, ObjectRef, try_append_line};

use super::sqlite::{APPLICATION_ID, MARKS, failed, lock, open_reading, sync_directory};
use super::{OpenError, SCHEMA_VERSION, Sort, Spaces, StoreError};

/// The files of a hub's identity, below the data directory.
const KEYS: [&str; 2] = ["pki/ca.pem", "ca.crt"];
/// Another process may be folding the log back.
const BUSY: Duration = Duration::from_secs(10);
/// Raise of the revision if it is unknown which were handed out. 10^12 is 30 years of a thousand a second.
const UNKNOWN_RAISE: i64 = 1_000_000_000_000;
/// Raise of the revision if that is known.
const RAISE: i64 = 1;

/// The content of a backup.
#[derive(Debug, PartialEq, Eq)]
pub struct Content {
    pub objects: u64,
    /// No revision above these had been handed out.
    pub reserved: Spaces<i64>,
}

pub(super) fn wrong(path: &Path, what: impl std::fmt::Display) -> OpenError {
    OpenError::Engine(StoreError::certain(Sort::Other, format!("cannot use {}: {what}", path.display())))
}

pub(super) fn engine(tried: &'static str, path: &Path) -> impl Fn(rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Engine(failed(tried, &path, &error))
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, OpenError> {
    let connection = Connection::open_with_flags(path, flags).map_err(engine("open", path))?;
    connection.busy_timeout(BUSY).map_err(engine("open", path))?;
    Ok(connection)
}

/// Copies the store of a data directory, whose hub may run, and its keys into a new file.
///
/// # Errors
/// The file exists, one of the two places cannot be used, or the store is damaged. No file of that name is left then.
pub fn backup(data_dir: &Path, to: &Path) -> Result<Content, OpenError> {
    if to.exists() {
        return Err(wrong(to, "it exists already; give a new name"));
    }
    let from = data_dir.join("state.db");
    if !from.exists() {
        return Err(wrong(&from, "there is no store"));
    }
    let part = beside(to, "part");
    let outcome = copy(data_dir, &from, &part).and_then(|content| {
        let synced = File::open(&part).and_then(|file| file.sync_all());
        synced.and_then(|()| fs::rename(&part, to)).map_err(|error| wrong(to, error))?;
        sync_directory(
            to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )?;
        Ok(content)
    });
    if outcome.is_err() {
        // remove the incomplete file; the first error is the one to return
        let _ = fs::remove_file(&part);
    }
    if let Ok(content) = &outcome {
        note(data_dir, "backup", to, content.objects);
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
    // create the file with mode 0600: SQLite would create it readable for others
    File::options()
        .create(true)
        .truncate(true)
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
    for name in KEYS {
        let path = data_dir.join(name);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(wrong(&path, error)),
        };
        copy.execute("INSERT INTO keys VALUES (?1, ?2)", params![name, content])
            .map_err(engine("write", part))?;
    }
    judge(&copy, part)
}

/// The store to copy. On a read-only disk no hub writes, so that it can be read without what is usually beside it.
pub(super) fn source(path: &Path) -> Result<Connection, OpenError> {
    let store = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    match store.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())) {
        Ok(()) => Ok(store),
        Err(error) if failed("read", path, &error).sort == Sort::ReadOnly => open_reading(path),
        Err(error) => Err(engine("read", path)(error)),
    }
}

/// Whether this is a complete store of a known version that contains only objects.
fn judge(store: &Connection, path: &Path) -> Result<Content, OpenError> {
    let damaged = |what: String| OpenError::Damaged(path.to_owned(), what);
    let unreadable = |error: rusqlite::Error| damaged(error.to_string());
    let id: i64 = store.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(unreadable)?;
    if id != APPLICATION_ID {
        return Err(damaged("it is not a store of this program".to_owned()));
    }
    let verdict: String =
        store.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(unreadable)?;
    if verdict != "ok" {
        return Err(damaged(verdict));
    }
    let version = mark(store, "schema").map_err(unreadable)?.unwrap_or(0);
    if version > SCHEMA_VERSION {
        return Err(OpenError::TooNew(path.to_owned(), version));
    }
    let twice = "SELECT name FROM objects GROUP BY resource, namespace, name HAVING count(*) > 1";
    if let Some(name) =
        store.query_row(twice, [], |row| row.get::<_, String>(0)).optional().map_err(unreadable)?
    {
        return Err(damaged(format!("{name:?} is there twice")));
    }
    let mut objects = 0;
    let mut statement = store.prepare("SELECT resource, name, json FROM objects").map_err(unreadable)?;
    let mut rows = statement.query([]).map_err(unreadable)?;
    while let Some(row) = rows.next().map_err(unreadable)? {
        let json: Vec<u8> = row.get(2).map_err(unreadable)?;
        if !serde_json::from_slice::<Value>(&json).is_ok_and(|value| value["metadata"]["name"].is_string()) {
            let (resource, name) = (row.get::<_, String>(0), row.get::<_, String>(1));
            return Err(damaged(format!("{resource:?} {name:?} is no object with a name")));
        }
        objects += 1;
    }
    Ok(Content { objects, reserved: reserved(store).map_err(unreadable)?.unwrap_or_default() })
}

/// The reserved marks. A store from before Leases had their own has one for both.
fn reserved(store: &Connection) -> rusqlite::Result<Option<Spaces<i64>>> {
    let Some(common) = mark(store, MARKS.common[0])? else { return Ok(None) };
    Ok(Some(Spaces { common, leases: mark(store, MARKS.leases[0])?.unwrap_or(common) }))
}

fn mark(store: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    store.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Replaces the store of a data directory by a backup. The hub must be stopped.
///
/// # Errors
/// The hub runs, the file is not a valid backup, or it is of a hub with another certificate authority. Nothing was changed then.
pub fn restore(data_dir: &Path, from: &Path) -> Result<Content, OpenError> {
    let source = open(from, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let content = judge(&source, from)?;
    let _lock = lock(data_dir)?;
    let keys = keys(&source, from)?;
    drop(source);
    check_keys(data_dir, &keys)?;
    let state = data_dir.join("state.db");
    let raised = |present: Option<i64>, restored: i64| match present {
        Some(present) if present >= restored => present.saturating_add(RAISE),
        // the hub that made the backup may have handed out more since: this store does not go on from it
        _ => restored.saturating_add(UNKNOWN_RAISE),
    };
    let present = handed_out(&state);
    let reserved = Spaces {
        common: raised(present.map(|present| present.common), content.reserved.common),
        leases: raised(present.map(|present| present.leases), content.reserved.leases),
    };
    let part = data_dir.join("state.db.restoring");
    prepare(from, &part, reserved)?;
    for (name, content) in &keys {
        write_key(data_dir, name, content)?;
    }
    replace(data_dir, &state, &part)?;
    note(data_dir, "restore", from, content.objects);
    Ok(Content { reserved, ..content })
}

/// A backup holds the fleet's keys, and a restore takes back what others did: the audit log shows both.
fn note(data_dir: &Path, verb: &str, file: &Path, objects: u64) {
    let file = file.display().to_string();
    let object = ObjectRef { resource: "backups", name: &file, ..ObjectRef::default() };
    try_append_line(data_dir, verb, object, &[(Note::Count, objects.to_string())]);
}

fn keys(source: &Connection, path: &Path) -> Result<Vec<(String, Vec<u8>)>, OpenError> {
    let failed = engine("read", path);
    let mut statement = match source.prepare("SELECT name, content FROM keys") {
        Ok(statement) => statement,
        // a plain copy of a store has no keys
        Err(_) => return Ok(Vec::new()),
    };
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(&failed)?;
    let found: Vec<(String, Vec<u8>)> = rows.collect::<Result<_, _>>().map_err(&failed)?;
    // names become paths: accept only known ones
    Ok(found.into_iter().filter(|(name, _)| KEYS.contains(&name.as_str())).collect())
}

fn check_keys(data_dir: &Path, keys: &[(String, Vec<u8>)]) -> Result<(), OpenError> {
    for (name, content) in keys {
        let path = data_dir.join(name);
        match fs::read(&path) {
            Ok(present) if present != *content => {
                let what =
                    "it is of another certificate authority than the backup; restore into an empty directory";
                return Err(wrong(&path, what));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrong(&path, error)),
        }
    }
    Ok(())
}

/// The highest revisions that the present store may have handed out; `None` if they are unknown. A store that is not there tells as
/// little as a damaged one: the hub whose backup it is went on after it, wherever that was.
fn handed_out(state: &Path) -> Option<Spaces<i64>> {
    if !state.exists() {
        return None;
    }
    let store = open(state, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?;
    let reserved = reserved(&store).ok()??;
    // copies the log into the file, so that it is not read into the new one
    store.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).ok()?;
    Some(reserved)
}

/// Makes a file durable and readable only by the hub.
fn prepare(from: &Path, part: &Path, reserved: Spaces<i64>) -> Result<(), OpenError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        // left by an interrupted restore
        let _ = fs::remove_file(format!("{}{suffix}", part.display()));
    }
    let bytes = |error| wrong(part, error);
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(part).map_err(bytes)?;
    let mut source = File::open(from).map_err(|error| wrong(from, error))?;
    std::io::copy(&mut source, &mut file).map_err(bytes)?;
    drop(file);
    let store = open(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let [common, leases] = [(MARKS.common, reserved.common), (MARKS.leases, reserved.leases)]
        .map(|([reserved, _], upto)| format!("INSERT OR REPLACE INTO meta VALUES ('{reserved}', {upto});"));
    let statements = format!(
        "PRAGMA journal_mode = DELETE; BEGIN; DROP TABLE IF EXISTS keys; \
         DELETE FROM meta WHERE key IN ('{}', '{}'); {common} {leases} COMMIT;",
        MARKS.common[1], MARKS.leases[1]
    );
    store.execute_batch(&statements).map_err(engine("write", part))?;
    drop(store);
    File::open(part).and_then(|file| file.sync_all()).map_err(bytes)
}

fn write_key(data_dir: &Path, name: &str, content: &[u8]) -> Result<(), OpenError> {
    let path = data_dir.join(name);
    if path.exists() {
        return Ok(());
    }
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

/// The last step: until the rename the old store is in place, after it the new one.
fn replace(data_dir: &Path, state: &Path, part: &Path) -> Result<(), OpenError> {
    let kept = data_dir.join("state.db.before-restore");
    for suffix in ["", "-wal"] {
        let (from, to) = (format!("{}{suffix}", state.display()), format!("{}{suffix}", kept.display()));
        // only the latest is kept
        let _ = fs::remove_file(&to);
        if Path::new(&from).exists() {
            fs::hard_link(&from, &to).map_err(|error| wrong(&kept, error))?;
        }
    }
    // a log that could not be copied back belongs to the old file; read into the new one it would damage it
    for suffix in ["-wal", "-shm"] {
        match fs::remove_file(format!("{}{suffix}", state.display())) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrong(state, error)),
        }
    }
    sync_directory(data_dir)?;
    fs::rename(part, state).map_err(|error| wrong(state, error))?;
    sync_directory(data_dir)
}

#[cfg(test)]
mod tests {
    use super::super::sqlite::{Sqlite, version_1};
    use super::super::{Change, Marks, Spaces, Store};
    use super::*;
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
        assert_eq!(content, Content { objects: 1, reserved: Spaces::both(100) });
        assert!(backup(&data, &file).unwrap_err().to_string().contains("exists already"));
        store.commit(&[put("b", 300)], Some(Spaces::both(400))).unwrap();
        assert!(matches!(restore(&data, &file), Err(OpenError::Locked(_))), "the hub runs");
        drop(store);
        assert_eq!(restore(&data, &file).unwrap().reserved, Spaces::both(401));
        let (names, marks) = found(&data);
        assert_eq!(
            (names, marks),
            (vec!["a".to_owned()], Spaces::both(Marks { reserved: 401, clean: None }))
        );
        let kept = open(&data.join("state.db.before-restore"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        assert_eq!(judge(&kept, &data).unwrap().objects, 2);
        let audit = fs::read_to_string(data.join("audit.log")).unwrap();
        let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| &line["verb"]).collect::<Vec<_>>(), ["backup", "restore"]);
        for line in &lines {
            assert_eq!(line["objectRef"]["name"], file.to_str().unwrap());
            assert_eq!(line["annotations"]["kedge.dev/count"], "1");
        }
        // and into an empty directory
        let other = folder.join("other");
        restore(&other, &file).unwrap();
        assert_eq!(found(&other).0, ["a"]);
    }

    #[test]
    fn restore_without_its_own_store_reuses_no_revision() {
        let folder = scratch("unknown");
        let (data, file) = (folder.join("data"), folder.join("b"));
        let mut store = Sqlite::open(&data).unwrap();
        store.commit(&[put("a", 5)], Some(Spaces::both(100))).unwrap();
        backup(&data, &file).unwrap();
        // it goes on, and is lost with its disk
        store.commit(&[put("b", 90_000)], Some(Spaces::both(100_000))).unwrap();
        drop(store);
        let check = |directory: &Path| {
            let reserved = restore(directory, &file).unwrap().reserved;
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
        assert!(restore(&data, &file).unwrap().reserved.leases > UNKNOWN_RAISE);
        assert_eq!(found(&data).0, ["a"]);
    }

    #[test]
    fn backup_of_version_1_is_restored_and_a_newer_one_refused() {
        let folder = scratch("versions");
        let (old, file, data) = (folder.join("old"), folder.join("b"), folder.join("data"));
        // the old hub runs while the new program makes the backup
        let hub = version_1::make(&old, 900, None);
        assert_eq!(backup(&old, &file).unwrap(), Content { objects: 60, reserved: Spaces::both(900) });
        drop(hub);
        assert!(restore(&data, &file).unwrap().reserved.common > 900);
        let (names, marks) = found(&data);
        assert_eq!((names.len(), marks.common.clean), (60, None));
        assert!(marks.common.reserved > 900 && marks.leases.reserved > 900);
        // over a store that has gone on since
        assert_eq!(found(&old).0.len(), 60);
        restore(&old, &file).unwrap();
        assert_eq!(found(&old).0.len(), 60);
        let newer = Connection::open(&file).unwrap();
        newer.execute("UPDATE meta SET value = ?1 WHERE key = 'schema'", [SCHEMA_VERSION + 1]).unwrap();
        drop(newer);
        assert!(matches!(restore(&data, &file), Err(OpenError::TooNew(_, 4))));
        assert_eq!(found(&data).0.len(), 60);
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
            assert!(restore(&data, &file).is_err(), "{} bytes", bad.len());
            assert_eq!(found(&data).0, ["a"]);
        }
        fs::create_dir_all(data.join("pki")).unwrap();
        fs::write(data.join("pki/ca.pem"), "one").unwrap();
        let keyed = folder.join("keyed");
        backup(&data, &keyed).unwrap();
        fs::write(data.join("pki/ca.pem"), "another").unwrap();
        assert!(restore(&data, &keyed).unwrap_err().to_string().contains("another certificate authority"));
        fs::remove_file(data.join("pki/ca.pem")).unwrap();
        restore(&data, &keyed).unwrap();
        assert_eq!(fs::read(data.join("pki/ca.pem")).unwrap(), b"one");
    }
}
