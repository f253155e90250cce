//! The store on one machine: SQLite in WAL mode, every commit flushed to the disk (`synchronous=FULL`).
//!
//! `state.db` in the data directory holds current objects only, no history. `lock` beside it is held with an advisory lock
//! for the life of the process, so that two hubs never write one directory; the operating system drops it when we die.
//! At open the whole file is checked (`quick_check`): a damaged store is an error that names the way out, never a start with less.
//! Another process may read it meanwhile: that is how a backup is made while the hub runs (`backup`).

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, params};

use super::{Change, Marks, OpenError, Record, Store, StoreError};

/// The layout that this code reads and writes.
pub const SCHEMA_VERSION: i64 = 1;
/// How a file of each older version becomes one of the next: the first brings 1 to 2. All that a file needs run in one
/// transaction, so a crash leaves the old version or the new one.
const UPGRADES: &[&str] = &[];
/// Pages of 4 KiB that the file may have: 2 GiB. Changes that need more are refused, reads and deletes go on.
const MAX_PAGES: i64 = 512 * 1024;
/// The write-ahead log is cut back to this when it was folded back after a long backup.
const LOG_BYTES: i64 = 16 * 1024 * 1024;
/// Unused pages from which a start gives them back to the file system, when they are also more than half of the file.
const COMPACT_PAGES: i64 = 4096;
/// Marks a file as ours in its header (`kedg`), so that a stranger's database is not mistaken for a store.
pub(super) const APPLICATION_ID: i64 = 0x6b65_6467;
/// Pages of the write-ahead log after which it is folded back: 4 MiB, bounding the file and the work at open.
const CHECKPOINT_PAGES: i64 = 1000;
/// Page cache. The engine's reads hardly matter, memory answers them.
const CACHE_KIB: i64 = 1024;

const TABLES: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE objects (
        resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        revision INTEGER NOT NULL, json BLOB NOT NULL,
        PRIMARY KEY (resource, namespace, name)
    ) WITHOUT ROWID;
";

/// See the module.
#[derive(Debug)]
pub struct Sqlite {
    connection: Connection,
    path: PathBuf,
    // held, never read: closing it releases the lock
    _lock: File,
}

impl Sqlite {
    /// Takes the directory's lock, then opens or makes the file in it and checks it.
    pub fn open(directory: &Path) -> Result<Sqlite, OpenError> {
        let lock = lock(directory)?;
        let path = directory.join("state.db");
        if std::fs::metadata(&path).map_or(true, |metadata| metadata.len() == 0) {
            create(directory, &path)?;
        }
        let store = Sqlite { connection: connect(&path)?, path, _lock: lock };
        store.set_pragmas()?;
        if store.is_empty()? {
            store.make()?;
        }
        store.check()?;
        store.upgrade(UPGRADES)?;
        store.compact()?;
        sync_directory(directory)?;
        Ok(store)
    }

    fn open_failed(&self, tried: &str, error: &rusqlite::Error) -> OpenError {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match error.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => OpenError::Damaged(self.path.clone(), error.to_string()),
            _ => OpenError::Engine(failed(tried, &self.path, error)),
        }
    }

    fn set_pragmas(&self) -> Result<(), OpenError> {
        let pragmas: [(&str, &dyn rusqlite::ToSql); 6] = [
            ("journal_mode", &"WAL"),
            ("synchronous", &"FULL"),
            ("wal_autocheckpoint", &CHECKPOINT_PAGES),
            ("cache_size", &-CACHE_KIB),
            ("max_page_count", &MAX_PAGES),
            ("journal_size_limit", &LOG_BYTES),
        ];
        for (name, value) in pragmas {
            self.connection
                .pragma_update_and_check(None, name, value, |_| Ok(()))
                .or_else(
                    |error| if error == rusqlite::Error::QueryReturnedNoRows { Ok(()) } else { Err(error) },
                )
                .map_err(|error| self.open_failed(&format!("set {name} on"), &error))?;
        }
        Ok(())
    }

    fn is_empty(&self) -> Result<bool, OpenError> {
        self.connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
            .map(|tables| tables == 0)
            .map_err(|error| self.open_failed("read", &error))
    }

    /// In place: a start of an older hub may have ended between making the file and the tables.
    fn make(&self) -> Result<(), OpenError> {
        self.connection.execute_batch(&schema()).map_err(|error| self.open_failed("make", &error))
    }

    fn check(&self) -> Result<(), OpenError> {
        let damaged = |what: String| OpenError::Damaged(self.path.clone(), what);
        let id: i64 = self
            .connection
            .query_row("PRAGMA application_id", [], |row| row.get(0))
            .map_err(|error| self.open_failed("read", &error))?;
        if id != APPLICATION_ID {
            return Err(damaged("it is not a store of this program".to_owned()));
        }
        let version = self
            .mark("schema")
            .map_err(|error| self.open_failed("read", &error))?
            .ok_or_else(|| damaged("it has no schema version".to_owned()))?;
        if version > SCHEMA_VERSION {
            return Err(OpenError::TooNew(self.path.clone(), version));
        }
        if version < 1 {
            return Err(damaged(format!("it has schema version {version}, expected 1 or more")));
        }
        let verdict: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|error| self.open_failed("check", &error))?;
        if verdict == "ok" { Ok(()) } else { Err(damaged(verdict)) }
    }

    /// Brings an older file to the present version; `steps[0]` makes version 2 of version 1.
    fn upgrade(&self, steps: &[&str]) -> Result<(), OpenError> {
        let failed = |error| self.open_failed("upgrade", &error);
        let version = self.mark("schema").map_err(failed)?.unwrap_or(1);
        let done = usize::try_from(version - 1).unwrap_or(0).min(steps.len());
        let missing = &steps[done..];
        if missing.is_empty() {
            return Ok(());
        }
        let newest = steps.len() + 1;
        log::info!("upgrading store {} from version {version} to {newest}", self.path.display());
        let statements = format!(
            "BEGIN; {}; UPDATE meta SET value = {newest} WHERE key = 'schema'; COMMIT;",
            missing.join(";")
        );
        self.connection.execute_batch(&statements).map_err(|error| {
            // the file stays as it was; the error that matters is the first
            let _ = self.connection.execute_batch("ROLLBACK");
            self.open_failed("upgrade", &error)
        })
    }

    /// Gives unused pages back, when there are many. Needs as much free disk as the store has content.
    fn compact(&self) -> Result<(), OpenError> {
        let number = |pragma: &str| {
            self.connection
                .query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0))
                .map_err(|error| self.open_failed("read", &error))
        };
        let (unused, all) = (number("freelist_count")?, number("page_count")?);
        if unused < COMPACT_PAGES || unused * 2 < all {
            return Ok(());
        }
        log::info!("store {}: {unused} of {all} pages are unused, compacting", self.path.display());
        if let Err(error) = self.connection.execute_batch("VACUUM") {
            // a full disk is no reason not to start
            log::warn!("cannot compact store {}: {error}", self.path.display());
        }
        Ok(())
    }

    fn mark(&self, key: &str) -> rusqlite::Result<Option<i64>> {
        let mut statement = self.connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
        let mut rows = statement.query([key])?;
        rows.next()?.map(|row| row.get(0)).transpose()
    }

    fn load_all(&self, each: &mut dyn FnMut(Record)) -> rusqlite::Result<Marks> {
        let mut statement =
            self.connection.prepare("SELECT resource, namespace, name, revision, json FROM objects")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            each(Record {
                resource: row.get(0)?,
                namespace: row.get(1)?,
                name: row.get(2)?,
                revision: unsigned(row.get(3)?)?,
                json: row.get(4)?,
            });
        }
        let reserved = unsigned(self.mark("reserved")?.unwrap_or(0))?;
        Ok(Marks { reserved, clean: self.mark("clean")?.map(unsigned).transpose()? })
    }

    fn commit_all(&mut self, changes: &[Change<'_>], reserved: Option<u64>) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for change in changes {
            match *change {
                Change::Put { resource, namespace, name, revision, json } => {
                    let sql = "INSERT INTO objects VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE \
                               SET revision = excluded.revision, json = excluded.json";
                    let parameters = params![resource, namespace, name, revision.cast_signed(), json];
                    transaction.prepare_cached(sql)?.execute(parameters)?;
                }
                Change::Delete { resource, namespace, name } => {
                    let sql = "DELETE FROM objects WHERE resource = ?1 AND namespace = ?2 AND name = ?3";
                    transaction.prepare_cached(sql)?.execute([resource, namespace, name])?;
                }
            }
        }
        if let Some(reserved) = reserved {
            let sql = "INSERT OR REPLACE INTO meta VALUES ('reserved', ?1)";
            transaction.prepare_cached(sql)?.execute([reserved.cast_signed()])?;
            transaction.prepare_cached("DELETE FROM meta WHERE key = 'clean'")?.execute([])?;
        }
        transaction.commit()
    }
}

impl Store for Sqlite {
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Marks, StoreError> {
        self.load_all(each).map_err(|error| failed("read", &self.path, &error))
    }

    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<u64>) -> Result<(), StoreError> {
        self.commit_all(changes, reserved).map_err(|error| failed("write", &self.path, &error))
    }

    fn close(&mut self, revision: u64) -> Result<(), StoreError> {
        self.connection
            .execute("INSERT OR REPLACE INTO meta VALUES ('clean', ?1)", [revision.cast_signed()])
            .map(|_| ())
            .map_err(|error| failed("close", &self.path, &error))
    }
}

/// Makes an empty store beside its place and moves it there whole, with one flush of its own. Made in place, SQLite flushes each
/// step, nine times in all, and a memory card takes 10 to 50 ms for one. The caller makes the directory durable.
fn create(directory: &Path, path: &Path) -> Result<(), OpenError> {
    let cannot = |error| OpenError::Directory(directory.to_owned(), error);
    let beside = |ending: &str| directory.join(format!("state.db{ending}"));
    // an unfinished one, and logs of a store that is gone, which would be read into the new one
    for ending in [".new", ".new-wal", ".new-shm", "-wal", "-shm"] {
        match std::fs::remove_file(beside(ending)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
    }
    let new = beside(".new");
    // SQLite would make it readable for others; the log beside it takes the mode over
    File::options().create_new(true).write(true).mode(0o600).open(&new).map_err(cannot)?;
    let store = connect(&new)?;
    let failed = |error| OpenError::Engine(failed("make", &new, &error));
    store
        .pragma_update(None, "synchronous", "OFF")
        .and_then(|()| store.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())))
        .and_then(|()| store.execute_batch(&schema()))
        .map_err(failed)?;
    // folds the log into the file
    store.close().map_err(|(_, error)| failed(error))?;
    File::open(&new)
        .and_then(|file| file.sync_all())
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(cannot)
}

fn connect(path: &Path) -> Result<Connection, OpenError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).map_err(|error| OpenError::Engine(failed("open", path, &error)))
}

/// A revision as it is stored; no hub writes a negative one.
fn unsigned(number: i64) -> rusqlite::Result<u64> {
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, number))
}

/// What makes an empty file a store.
fn schema() -> String {
    format!(
        "BEGIN; PRAGMA application_id = {APPLICATION_ID}; {TABLES} \
         INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}), ('reserved', 0); COMMIT;"
    )
}

pub(super) fn failed(tried: &str, path: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError { message: format!("cannot {tried} store {}: {error}", path.display()) }
}

pub(super) fn lock(directory: &Path) -> Result<File, OpenError> {
    let cannot = |error| OpenError::Directory(directory.to_owned(), error);
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let path = directory.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::Locked(path)),
        Err(std::fs::TryLockError::Error(error)) => Err(cannot(error)),
    }
}

/// The names of new files are durable only when their directory is.
pub(super) fn sync_directory(directory: &Path) -> Result<(), OpenError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| OpenError::Directory(directory.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("kedge-hub-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn put<'a>(name: &'a str, revision: u64) -> Change<'a> {
        Change::Put { resource: "nodes", namespace: "", name, revision, json: b"{}" }
    }

    fn names(store: &mut Sqlite) -> (Vec<String>, Marks) {
        let mut names = Vec::new();
        let marks =
            store.load(&mut |record| names.push(format!("{}@{}", record.name, record.revision))).unwrap();
        (names, marks)
    }

    #[test]
    fn an_older_file_is_upgraded_step_by_step_or_left_as_it_was() {
        let folder = Folder::new("upgrade");
        let mut store = Sqlite::open(&folder.0).unwrap();
        store.commit(&[put("a", 5)], None).unwrap();
        let version = |store: &Sqlite| store.mark("schema").unwrap();
        let steps =
            ["ALTER TABLE objects ADD COLUMN one INTEGER", "ALTER TABLE objects ADD COLUMN two INTEGER"];
        let broken = [steps[0], "ALTER TABLE nosuch ADD COLUMN x"];
        assert!(store.upgrade(&broken).is_err());
        assert_eq!(version(&store), Some(1));
        assert!(store.connection.prepare("SELECT one FROM objects").is_err(), "half an upgrade stayed");
        store.upgrade(&steps[..1]).unwrap();
        assert_eq!(version(&store), Some(2));
        store.upgrade(&steps).unwrap();
        store.upgrade(&steps).unwrap();
        assert_eq!(version(&store), Some(3));
        store.connection.prepare("SELECT one, two FROM objects").unwrap();
        assert_eq!(names(&mut store).0, ["a@5"]);
        drop(store);
        assert!(matches!(Sqlite::open(&folder.0), Err(OpenError::TooNew(_, 3))));
    }

    #[test]
    fn unused_space_is_given_back_at_the_next_start() {
        let folder = Folder::new("compact");
        let mut store = Sqlite::open(&folder.0).unwrap();
        let json = vec![b' '; 1024 * 1024];
        let name = |number: usize| format!("n{number}");
        for number in 0..24 {
            let change =
                Change::Put { resource: "x", namespace: "", name: &name(number), revision: 1, json: &json };
            store.commit(&[change], None).unwrap();
        }
        for number in 0..24 {
            let change = Change::Delete { resource: "x", namespace: "", name: &name(number) };
            store.commit(&[change], None).unwrap();
        }
        store.commit(&[put("kept", 3)], None).unwrap();
        let path = store.path.clone();
        drop(store);
        let before = std::fs::metadata(&path).unwrap().len();
        let mut store = Sqlite::open(&folder.0).unwrap();
        assert_eq!(names(&mut store).0, ["kept@3"]);
        drop(store);
        let after = std::fs::metadata(&path).unwrap().len();
        assert!(before > 20 << 20 && after < 1 << 20, "{before} then {after}");
    }

    #[test]
    fn what_was_committed_is_found_again() {
        let folder = Folder::new("found-again");
        let mut store = Sqlite::open(&folder.0).unwrap();
        assert_eq!(names(&mut store), (vec![], Marks::default()));
        store.commit(&[put("a", 1), put("b", 2)], Some(100)).unwrap();
        let remove = Change::Delete { resource: "nodes", namespace: "", name: "a" };
        store.commit(&[put("b", 3), remove], None).unwrap();
        drop(store);
        let mut store = Sqlite::open(&folder.0).unwrap();
        assert_eq!(names(&mut store), (vec!["b@3".to_owned()], Marks { reserved: 100, clean: None }));
        store.close(3).unwrap();
        drop(store);
        let mut store = Sqlite::open(&folder.0).unwrap();
        assert_eq!(names(&mut store).1, Marks { reserved: 100, clean: Some(3) });
        store.commit(&[], Some(200)).unwrap();
        assert_eq!(names(&mut store).1, Marks { reserved: 200, clean: None });
    }

    #[test]
    fn a_start_that_was_cut_while_it_made_the_store_leaves_a_first_start() {
        let check = |left: &[(&str, &[u8])]| {
            let folder = Folder::new("cut");
            std::fs::create_dir_all(&folder.0).unwrap();
            for (name, content) in left {
                std::fs::write(folder.0.join(name), content).unwrap();
            }
            let mut store = Sqlite::open(&folder.0).unwrap_or_else(|error| panic!("{left:?}: {error}"));
            store.commit(&[put("a", 1)], Some(10)).unwrap();
            drop(store);
            let mut store = Sqlite::open(&folder.0).unwrap();
            assert_eq!(names(&mut store).0, ["a@1"], "{left:?}");
            assert!(!folder.0.join("state.db.new").exists(), "{left:?}");
        };
        check(&[("state.db.new", b"half")]);
        check(&[("state.db.new", b""), ("state.db.new-wal", b"log")]);
        check(&[("state.db", b"")]);
        // somebody removed the store and not its log
        check(&[("state.db-wal", b"of another store"), ("state.db-shm", b"x")]);
    }

    #[test]
    fn the_log_of_a_removed_store_is_not_read_into_a_new_one() {
        let folder = Folder::new("stale-log");
        let mut store = Sqlite::open(&folder.0).unwrap();
        store.commit(&[put("old", 5)], Some(100)).unwrap();
        let log = std::fs::read(folder.0.join("state.db-wal")).unwrap();
        assert!(!log.is_empty());
        drop(store);
        std::fs::remove_file(folder.0.join("state.db")).unwrap();
        std::fs::write(folder.0.join("state.db-wal"), log).unwrap();
        let mut store = Sqlite::open(&folder.0).unwrap();
        assert_eq!(names(&mut store), (vec![], Marks::default()));
    }

    #[test]
    fn two_hubs_cannot_open_one_directory() {
        let folder = Folder::new("two-hubs");
        let first = Sqlite::open(&folder.0).unwrap();
        assert!(matches!(Sqlite::open(&folder.0), Err(OpenError::Locked(_))));
        drop(first);
        assert!(Sqlite::open(&folder.0).is_ok());
    }

    #[test]
    fn a_damaged_a_foreign_and_a_newer_store_are_refused_with_advice() {
        let folder = Folder::new("damaged");
        let path = folder.0.join("state.db");
        let refused = |expect: &str| {
            let error = Sqlite::open(&folder.0).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        std::fs::create_dir_all(&folder.0).unwrap();
        std::fs::write(&path, "this is certainly no database file, it is only text of some length").unwrap();
        refused("is damaged: ");
        std::fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
        refused("it is not a store of this program");
        std::fs::remove_file(&path).unwrap();
        drop(Sqlite::open(&folder.0).unwrap());
        Connection::open(&path)
            .unwrap()
            .execute("UPDATE meta SET value = 99 WHERE key = 'schema'", [])
            .unwrap();
        refused("schema version 99");
        std::fs::remove_file(&path).unwrap();
        let mut store = Sqlite::open(&folder.0).unwrap();
        let text = "x".repeat(3000).into_bytes();
        let names: Vec<String> = (0..200).map(|index| format!("n{index}")).collect();
        let changes: Vec<_> = names
            .iter()
            .map(|name| Change::Put { resource: "nodes", namespace: "", name, revision: 1, json: &text })
            .collect();
        store.commit(&changes, None).unwrap();
        drop(store);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2 / 4096 * 4096;
        bytes[middle..middle + 8192].fill(0xa5);
        std::fs::write(&path, bytes).unwrap();
        refused("is damaged: ");
    }
}
