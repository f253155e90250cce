//! The store on one machine: SQLite in WAL mode, every commit flushed to the disk (`synchronous=FULL`).
//!
//! `state.db` in the data directory holds current objects only, no history. `lock` beside it is held with an
//! advisory lock for the life of the process, so that two hubs never write one directory; the operating
//! system drops it when we die. Opening checks the whole file (`quick_check`): a damaged store is an error
//! with advice, never a start with fewer objects. An update costs the disk only the changed pages: objects
//! are rows of a table by number ([`Rows`]); one that fits in a page of 4 KiB takes one page, and of a larger
//! one only the differing pages are written. Pages are deliberately not smaller than a file system's blocks:
//! a power cut that damages the block being written must not damage another page than the one in the log.
//! Another process may read the file meanwhile: that is how a backup is made while the hub runs (`backup`).
//! The log is folded back into the file before anything is served: so data that an earlier process had
//! written but not flushed is then either durable or an error. Each row has a checksum, verified when it is
//! loaded: a row whose checksum differs is read once more by a fresh connection, and then refused by name;
//! rows of kinds that a fleet makes anew (Events, Leases) are kept but not shown. Left to others: the
//! consequences of failures (`writer`), starting on a disk that cannot be written (`disk`).

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::Crc;
use kedge_hub_core::kinds::{EVENT, LEASE};
use kedge_platform::Supervisor as _;
use kedge_platform::linux::{NotifySocket, Roots, memory_limit};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, ffi, params};

use super::reserve::Reserve;
use super::rows::Rows;
use super::{Change, Marks, OpenError, Record, SCHEMA_VERSION, Sort, Spaces, Store, StoreError, sort_of};
use crate::files::{self, open_regular};

/// The upgrade of each older version to the next: the first is from 1 to 2. All upgrades of a file run in one
/// transaction, so a crash leaves the old version or the new one.
const UPGRADES: &[Upgrade] = &[number_rows, split_marks, add_sums];
const PAGE_BYTES: u64 = 4096;
/// Most pages of the file: 2 GiB. Beyond that, changes that need more are refused, while reads and deletes
/// continue.
const MAX_PAGES: i64 = 512 * 1024;
/// The file may have this fraction of the memory: a hub holds all objects in memory, with an index, and needs
/// as much again while it answers. A store that grew larger than its machine could not be started there
/// again.
const MEMORY_SHARE: u64 = 2;
/// Size of the file that is allowed even on the smallest machine.
const LEAST_BYTES: u64 = 16 * 1024 * 1024;
/// Pages of the limit that are reserved for changes which free room.
const RESERVE_PAGES: i64 = 1024;
/// After the store was full, it accepts other changes again when this many pages are unused or below the
/// limit. Changes that fit into unused pages need no reserve: the file does not grow, so the log can always
/// be folded back and overwritten.
const ROOM_PAGES: i64 = 64;
/// Time between two attempts to make the reserve again while the disk has no room for it.
const RESERVE_RETRY: Duration = Duration::from_secs(60);
/// The write-ahead log is truncated to this size when it is folded back after a long backup.
const LOG_BYTES: i64 = 16 * 1024 * 1024;
/// If a start finds at least this many unused pages, and more than a third of the file, it returns them to
/// the file system. An upgrade leaves about half of the file unused.
const COMPACT_PAGES: i64 = 4096;
const COMPACT_SHARE: i64 = 3;
/// For files from this size on, each start asks systemd for more time: smaller files are read within the 90
/// seconds of the unit's timeout.
const LARGE_BYTES: u64 = 64 * 1024 * 1024;
/// The time that is requested, plus some for each byte of the file.
const PATIENCE_LEAST: Duration = Duration::from_secs(120);
/// Enough to read it three times (to check, number and load it) from a card with 6 MB a second.
const READ_BYTES_PER_SEC: u64 = 2 * 1024 * 1024;
/// Enough to write it to the log, to the file and once more to return unused pages, on a card with 5 MB a
/// second.
const REWRITE_BYTES_PER_SEC: u64 = 1024 * 1024;
/// Marks a file as ours in its header (`kedg`), so that a foreign database is not taken for a store.
pub(super) const APPLICATION_ID: i64 = 0x6b65_6467;
/// Pages of the write-ahead log after which it is folded back: 4 MiB, which limits the file, the work at
/// open, and the time for which writes pause on a slow card. 16 MiB would save a quarter of the bytes of a
/// status among 500 nodes, and a tenth among 5,000.
const CHECKPOINT_PAGES: i64 = 1000;
/// Size of the page cache. It is small, because reads are answered from memory.
const CACHE_KIB: i64 = 1024;

/// The names of the marks in `meta`, reserved and clean. Up to version 2 Leases had no marks of their own.
pub(super) const MARKS: Spaces<[&str; 2]> =
    Spaces { common: ["reserved", "clean"], leases: ["lease-reserved", "lease-clean"] };

const META: &str = "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID";
/// Version 1 had no `id` and `PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID`: there a row of more
/// than a kilobyte takes an overflow page, so that a Node was two pages, and three when its size changed.
const OBJECTS: &str = "
    CREATE TABLE objects (
        id INTEGER PRIMARY KEY,
        resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        revision INTEGER NOT NULL, sum BLOB NOT NULL, json BLOB NOT NULL
    )";
/// The table in versions 2 and 3.
const OBJECTS_2: &str = "
    CREATE TABLE objects (
        id INTEGER PRIMARY KEY,
        resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        revision INTEGER NOT NULL, json BLOB NOT NULL
    )";
/// The name of the mark with the id, which distinguishes a store from all others. A store that is restored
/// into a directory takes over the id of the one before it.
pub(super) const ID: &str = "id";
const MAKE_ID: &str = "INSERT OR IGNORE INTO meta VALUES ('id', abs(random() >> 1))";

const SET_MARK: &str = "INSERT OR REPLACE INTO meta VALUES (?1, ?2)";
const INSERT: &str = "INSERT INTO objects VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const INSERT_2: &str = "INSERT INTO objects VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

type Upgrade = fn(&Connection) -> rusqlite::Result<()>;

#[derive(Debug)]
pub struct Sqlite {
    connection: Connection,
    path: PathBuf,
    /// `None` after a commit that failed for another reason than a full disk: then the rows are read again
    /// from the file.
    rows: Option<Rows>,
    /// The limit for changes that do not free room.
    pages: i64,
    /// True if deletions have made the file grow beyond that limit. SQLite then has no limit below its size.
    is_over: bool,
    reserve: Reserve,
    /// When to make the reserve again; `None` while it exists.
    reserve_due: Option<Instant>,
    // held, but never read: closing it releases the lock
    _lock: Arc<File>,
}

impl Sqlite {
    /// Takes the directory's lock, then opens or creates the file in it and checks it.
    pub fn open(directory: &Path) -> Result<Sqlite, OpenError> {
        Sqlite::open_locked(Arc::new(lock(directory)?), directory, limit_pages())
    }

    /// The same with the lock already taken and another limit.
    pub(super) fn open_locked(lock: Arc<File>, directory: &Path, pages: i64) -> Result<Sqlite, OpenError> {
        let path = directory.join("state.db");
        check_files(&path)?;
        let bytes = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            // the file may exist, so none is created in its place
            Err(error) => return Err(OpenError::Directory(directory.to_owned(), error)),
        };
        if bytes == 0 {
            create(directory, &path)?;
        }
        let mut store = Sqlite::new(directory, path, pages, lock)?;
        if bytes >= LARGE_BYTES {
            store.ask_for_time("read", READ_BYTES_PER_SEC);
        }
        store.set_pragmas()?;
        if store.is_empty()? {
            store.make()?;
        }
        check(&store.connection, &store.path)?;
        store.fold("TRUNCATE").map_err(OpenError::Engine)?;
        store.upgrade(UPGRADES)?;
        store.compact()?;
        store.limit_to(pages).map_err(OpenError::Engine)?;
        store.is_over = store.number("page_count").is_ok_and(|count| count > pages);
        store.rows = Some(store.read_rows()?);
        sync_directory(directory)?;
        store.make_reserve();
        Ok(store)
    }

    fn new(directory: &Path, path: PathBuf, pages: i64, lock: Arc<File>) -> Result<Sqlite, OpenError> {
        Ok(Sqlite {
            connection: connect(&path)?,
            path,
            rows: None,
            pages,
            is_over: false,
            reserve: Reserve::of(directory),
            reserve_due: None,
            _lock: lock,
        })
    }

    /// Converts a file of any version, which may be missing, to the present format, to replace a directory's
    /// store: with that store's id, and no mark of a clean end. The caller must hold the directory's lock.
    pub(super) fn rework(
        path: &Path,
        directory: &Path,
        lock: Arc<File>,
        id: Option<i64>,
    ) -> Result<Sqlite, OpenError> {
        if !path.exists() {
            File::options()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(path)
                .map_err(|error| OpenError::File(path.to_owned(), error))?;
        }
        let mut store = Sqlite::new(directory, path.to_owned(), MAX_PAGES, lock)?;
        store.set_pragmas()?;
        if store.is_empty()? {
            store.make()?;
        }
        check(&store.connection, &store.path)?;
        store.upgrade(UPGRADES)?;
        let failed = |error| store.open_failed("write", &error);
        let clean = format!("DELETE FROM meta WHERE key IN ('{}', '{}')", MARKS.common[1], MARKS.leases[1]);
        store.connection.execute_batch(&clean).map_err(failed)?;
        if let Some(id) = id {
            store.connection.execute(SET_MARK, params![ID, id]).map_err(failed)?;
        }
        store.rows = Some(store.read_rows()?);
        Ok(store)
    }

    /// Leaves a single file, with nothing beside it.
    pub(super) fn finish(self) -> Result<(), OpenError> {
        self.connection
            .pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
            .map_err(|error| self.open_failed("finish", &error))
    }

    /// The id that distinguishes it from all other stores.
    pub(super) fn id(&self) -> Option<i64> {
        self.mark(ID).ok().flatten()
    }

    /// Closes it without touching its log: its connection met an error, so the state that it holds must not
    /// be written.
    pub(super) fn forsake(self) {
        let set = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        if let Err(error) = set {
            log::warn!("{}", failed("leave the log of", &self.path, &error));
        }
    }

    /// True if room is reserved for deletions.
    pub(super) fn has_reserve(&self) -> bool {
        self.reserve_due.is_none()
    }

    fn open_failed(&self, tried: &str, error: &rusqlite::Error) -> OpenError {
        open_failed(tried, &self.path, error)
    }

    fn set_pragmas(&self) -> Result<(), OpenError> {
        let pragmas: [(&str, &dyn rusqlite::ToSql); 5] = [
            ("journal_mode", &"WAL"),
            ("synchronous", &"FULL"),
            // done by `tidy`, so that errors are noticed
            ("wal_autocheckpoint", &0),
            ("cache_size", &-CACHE_KIB),
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

    /// Called after an upgrade, which needs room for two copies of each object, and again when the second is
    /// freed. The limit is never below the present size.
    fn limit_to(&self, pages: i64) -> Result<(), StoreError> {
        self.connection
            .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
            .map_err(|error| failed("set the size limit (max_page_count) of", &self.path, &error))
    }

    fn number(&self, pragma: &str) -> rusqlite::Result<i64> {
        self.connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
    }

    /// Created in place: an older hub may have been stopped between creating the file and the tables.
    fn make(&self) -> Result<(), OpenError> {
        self.connection.execute_batch(&schema()).map_err(|error| self.open_failed("make", &error))
    }

    /// Upgrades an older file to the present version; `steps[0]` makes version 2 of version 1.
    fn upgrade(&self, steps: &[Upgrade]) -> Result<(), OpenError> {
        let failed = |error| self.open_failed("upgrade", &error);
        let version = self.mark("schema").map_err(failed)?.unwrap_or(1);
        let done = usize::try_from(version - 1).unwrap_or(0).min(steps.len());
        let missing = &steps[done..];
        if missing.is_empty() {
            return Ok(());
        }
        let newest = 1 + i64::try_from(steps.len()).unwrap_or(i64::MAX - 1);
        log::info!("upgrading store {} from version {version} to {newest}", self.path.display());
        self.ask_for_time("upgrade", REWRITE_BYTES_PER_SEC);
        let all_or_nothing = || {
            let transaction = self.connection.unchecked_transaction()?;
            missing.iter().try_for_each(|step| step(&transaction))?;
            transaction.execute("UPDATE meta SET value = ?1 WHERE key = 'schema'", [newest])?;
            transaction.commit()
        };
        all_or_nothing().map_err(failed)
    }

    /// Returns unused pages to the file system, if there are many. It needs as much free disk as the store
    /// has content.
    fn compact(&self) -> Result<(), OpenError> {
        let number = |pragma| self.number(pragma).map_err(|error| self.open_failed("read", &error));
        let (unused, all) = (number("freelist_count")?, number("page_count")?);
        if unused < COMPACT_PAGES || unused * COMPACT_SHARE < all {
            return Ok(());
        }
        log::info!("store {}: {unused} of {all} pages are unused, compacting", self.path.display());
        self.ask_for_time("compact", REWRITE_BYTES_PER_SEC);
        if let Err(error) = self.connection.execute_batch("VACUUM") {
            // a full disk must not prevent the start
            log::warn!("cannot compact store {}: {error}", self.path.display());
        }
        Ok(())
    }

    /// A large store on a slow card takes longer than systemd's start timeout; killed then, the hub would
    /// restart for ever. A later request never shortens an earlier one.
    fn ask_for_time(&self, to: &str, bytes_per_sec: u64) {
        let bytes = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        let time = PATIENCE_LEAST + Duration::from_secs(bytes / bytes_per_sec);
        log::debug!("asking systemd for {} s to {to} store {}", time.as_secs(), self.path.display());
        NotifySocket::from_environment().extend_timeout(time);
    }

    fn read_rows(&self) -> Result<Rows, OpenError> {
        let (mut rows, mut wrong) = (Rows::default(), None);
        let mut read = || {
            let sql = "SELECT id, resource, namespace, name FROM objects ORDER BY id";
            let mut statement = self.connection.prepare(sql)?;
            let mut found = statement.query([])?;
            while let Some(row) = found.next()? {
                let [resource, namespace, name]: [String; 3] = [row.get(1)?, row.get(2)?, row.get(3)?];
                if let Err(error) = rows.read(row.get(0)?, &resource, &namespace, &name) {
                    wrong = Some(format!("{resource} {namespace}/{name}: {error}"));
                    break;
                }
            }
            Ok(())
        };
        read().map_err(|error| self.open_failed("read", &error))?;
        match wrong {
            None => Ok(rows),
            Some(what) => Err(OpenError::Damaged(self.path.clone(), what)),
        }
    }

    fn mark(&self, key: &str) -> rusqlite::Result<Option<i64>> {
        mark(&self.connection, key)
    }

    fn commit_all(
        &mut self,
        rows: &mut Rows,
        changes: &[Change<'_>],
        reserved: Option<Spaces<u64>>,
        committing: &mut bool,
    ) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        let transaction = self.connection.transaction()?;
        for change in changes {
            make(&transaction, rows, change)?;
        }
        if let Some(Spaces { common, leases }) = reserved {
            for ([reserved, clean], upto) in [(MARKS.common, common), (MARKS.leases, leases)] {
                transaction.prepare_cached(SET_MARK)?.execute(params![reserved, upto.cast_signed()])?;
                transaction.prepare_cached("DELETE FROM meta WHERE key = ?1")?.execute([clean])?;
            }
        }
        *committing = true;
        transaction.commit()
    }

    fn write(&mut self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) -> Result<(), StoreError> {
        let mut rows = match self.rows.take() {
            Some(rows) => rows,
            None => self.read_rows().map_err(|error| match error {
                OpenError::Engine(error) => error,
                other => StoreError::certain(Sort::Damaged, other.to_string()),
            })?,
        };
        let mut committing = false;
        match self.commit_all(&mut rows, changes, reserved, &mut committing) {
            Ok(()) => rows.commit(),
            // while the disk is full every change fails here, and reading all rows again each time would keep
            // the disk busy
            Err(error) if is_about_room(&error) && (!committing || is_before_the_log(&error)) => {
                rows.roll_back();
                self.rows = Some(rows);
                return Err(failed("write", &self.path, &error));
            }
            Err(error) => {
                let mut failure = failed("write", &self.path, &error);
                failure.uncertain = committing && !is_before_the_log(&error);
                return Err(self.broken(failure));
            }
        }
        self.rows = Some(rows);
        Ok(())
    }

    /// Copies the log into the file and flushes it; `mode` is that of SQLite's pragma. A part of the log may
    /// remain while another process reads.
    fn fold(&self, mode: &str) -> Result<(), StoreError> {
        let pragma = format!("PRAGMA wal_checkpoint({mode})");
        self.connection
            .query_row(&pragma, [], |_| Ok(()))
            .map_err(|error| self.broken(failed("fold the log into", &self.path, &error)))
    }

    /// Pages of the log that are not copied into the file yet.
    fn log_pages(&self) -> rusqlite::Result<i64> {
        let mut statement = self.connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?;
        statement.query_row([], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
    }

    /// Reserves room for deletions, if there is enough; else retries later.
    fn make_reserve(&mut self) {
        let made = self.reserve.make();
        if let Err(error) = &made {
            log::warn!(
                "no room is kept for deletions: cannot make {}: {error}",
                self.reserve.path().display()
            );
        }
        self.reserve_due = made.is_err().then(|| Instant::now() + RESERVE_RETRY);
    }

    /// Releases the reserve to make room for deletions. The next commit shows whether that helps.
    fn give_up_reserve(&mut self) -> Result<(), StoreError> {
        match self.reserve.give_up() {
            Ok(true) => {
                log::warn!("the disk is full: gave up {} for deletions", self.reserve.path().display());
            }
            Ok(false) => {}
            Err(error) => log::warn!("cannot remove {}: {error}", self.reserve.path().display()),
        }
        self.reserve_due = Some(Instant::now() + RESERVE_RETRY);
        self.limit_to(self.pages + RESERVE_PAGES)?;
        // first: the file may need room for the pages in the log, and then the log is overwritten
        match self.fold("PASSIVE") {
            Err(error) if error.sort == Sort::Full => log::debug!("{error}"),
            outcome => outcome?,
        }
        Ok(())
    }

    /// Checks that this many pages are free below the limit. Returns the number of unused ones in the file.
    fn keeps_free(&self, pages: i64) -> Result<i64, StoreError> {
        let number = |pragma| self.number(pragma).map_err(|error| failed("read", &self.path, &error));
        let unused = number("freelist_count")?;
        if self.pages - number("page_count")? + unused >= pages {
            return Ok(unused);
        }
        let mib = self.pages * 4 / 1024;
        let message = format!("store {} has reached its limit of {mib} MiB", self.path.display());
        Err(StoreError::certain(Sort::Full, message))
    }

    /// Checks that there is room for other changes than deletions: unused pages or pages below the limit, and
    /// on the disk the reserve or pages of the file.
    fn has_room(&mut self) -> Result<(), StoreError> {
        let unused = self.keeps_free(ROOM_PAGES)?;
        match self.reserve.make() {
            Ok(()) => self.reserve_due = None,
            Err(_) if unused >= ROOM_PAGES => {}
            Err(error) => {
                let fault = StoreError::of_file("write", self.reserve.path(), &error);
                return Err(fault.unwrap_or_else(|| StoreError::certain(Sort::Other, error.to_string())));
            }
        }
        Ok(())
    }

    /// Writes a page with its present content, and flushes it.
    fn write_one_page(&self) -> Result<(), StoreError> {
        self.connection
            .execute("UPDATE meta SET value = value WHERE key = 'schema'", [])
            .map(|_| ())
            .map_err(|error| self.broken(failed("write", &self.path, &error)))
    }

    /// After a failed flush this process never again trusts the cached content of the files, be it SQLite's
    /// or the system's: not even to fold the log when the store is closed.
    fn broken(&self, error: StoreError) -> StoreError {
        if error.sort == Sort::Flush {
            let set = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            if let Err(error) = set {
                log::warn!("{}", failed("leave the log of", &self.path, &error));
            }
        }
        error
    }
}

impl Store for Sqlite {
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Spaces<Marks>, StoreError> {
        load_all(&self.connection, &self.path, each).map_err(|error| error.failed(&self.path))
    }

    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) -> Result<(), StoreError> {
        if self.is_over {
            self.keeps_free(i64::try_from(pages_of(changes)).unwrap_or(i64::MAX))?;
        }
        self.write(changes, reserved)
    }

    fn commit_from_reserve(
        &mut self,
        changes: &[Change<'_>],
        reserved: Option<Spaces<u64>>,
    ) -> Result<(), StoreError> {
        match self.commit(changes, reserved) {
            Err(error) if error.sort == Sort::Full => {}
            outcome => return outcome,
        }
        let outcome = self.give_up_reserve().and_then(|()| self.write(changes, reserved));
        let limited = self.limit_to(self.pages);
        // not an error of the commit: without the limit only the reserve is smaller
        if let Err(error) = limited {
            log::warn!("{error}");
        }
        self.is_over = self.number("page_count").is_ok_and(|count| count > self.pages);
        outcome
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        let waiting = self.log_pages().map_err(|error| failed("read the log of", &self.path, &error))?;
        if waiting >= CHECKPOINT_PAGES {
            self.fold("PASSIVE")?;
        }
        if self.reserve_due.is_some_and(|due| due <= Instant::now()) {
            self.make_reserve();
        }
        Ok(())
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        match self.fold("PASSIVE") {
            // deletions that fitted into the log left the reserve alone, and now folding the log needs it
            Err(error)
                if error.sort == Sort::Full
                    && self.number("freelist_count").is_ok_and(|unused| unused >= ROOM_PAGES) =>
            {
                self.give_up_reserve()?;
                self.limit_to(self.pages)?;
                self.fold("PASSIVE")?;
            }
            outcome => outcome?,
        }
        self.has_room()?;
        self.write_one_page()
    }

    /// Does not fold the log, because there may be no room for it: the part of the log that a failed commit
    /// used is reused by the next ones.
    fn trial(&mut self) -> Result<(), StoreError> {
        self.keeps_free(ROOM_PAGES)?;
        self.write_one_page()
    }

    fn close(&mut self, revisions: Spaces<u64>) -> Result<(), StoreError> {
        let mut set_both = || {
            let transaction = self.connection.transaction()?;
            for ([_, clean], at) in [(MARKS.common, revisions.common), (MARKS.leases, revisions.leases)] {
                transaction.execute(SET_MARK, params![clean, at.cast_signed()])?;
            }
            transaction.commit()
        };
        let outcome = set_both();
        outcome.map_err(|error| self.broken(failed("close", &self.path, &error)))
    }
}

/// The largest number of pages that these changes may need.
fn pages_of(changes: &[Change<'_>]) -> u64 {
    let bytes = |change: &Change<'_>| match change {
        Change::Put { json, .. } => json.len() as u64,
        Change::Delete { .. } => 0,
    };
    changes.iter().map(|change| bytes(change) / PAGE_BYTES + 2).sum()
}

/// True if SQLite's error is about lack of room, and not about a conflict with the rows.
fn is_about_room(error: &rusqlite::Error) -> bool {
    use ErrorCode::{DiskFull, OutOfMemory, TooBig};
    matches!(error.sqlite_error_code(), Some(DiskFull | TooBig | OutOfMemory))
}

/// True if this error occurs before the last page of a transaction is in the log: then no start can find the
/// transaction there.
fn is_before_the_log(error: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly};
    matches!(error.sqlite_error_code(), Some(DiskFull | ReadOnly | DatabaseBusy | DatabaseLocked))
}

pub(super) fn mark(store: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    let mut statement = store.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    let mut rows = statement.query([key])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

/// The reason why objects could not be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    Engine(rusqlite::Error),
    /// A row's content is not what was written. The text names the row, and the way out.
    Row(String),
}

impl From<rusqlite::Error> for Unreadable {
    fn from(error: rusqlite::Error) -> Unreadable {
        Unreadable::Engine(error)
    }
}

impl Unreadable {
    pub(super) fn failed(self, path: &Path) -> StoreError {
        match self {
            Unreadable::Engine(error) => failed("read", path, &error),
            Unreadable::Row(what) => {
                let message = format!("store {} is damaged: {what}", path.display());
                StoreError::certain(Sort::Damaged, message)
            }
        }
    }
}

/// Kinds whose objects a fleet makes anew.
pub(super) fn may_be_lost(resource: &str) -> bool {
    [&EVENT, &LEASE].iter().any(|kind| kind.resource_name() == resource)
}

/// Reads all objects of a store of any version. Damaged rows of kinds that may be lost are left out.
pub(super) fn load_all(
    store: &Connection,
    path: &Path,
    each: &mut dyn FnMut(Record),
) -> Result<Spaces<Marks>, Unreadable> {
    let has_sums = mark(store, "schema")?.unwrap_or(1) >= 4;
    let (id, sum) = if has_sums { ("id", "sum") } else { ("0", "NULL") };
    let sql = format!("SELECT resource, namespace, name, revision, json, {sum}, {id} FROM objects");
    let mut statement = store.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let found = if has_sums { verified(row, path)? } else { Some(record(row)?) };
        if let Some(record) = found {
            each(record);
        }
    }
    let common = marks(store, MARKS.common)?.unwrap_or_default();
    // before the upgrade Leases shared the revisions of the others
    Ok(Spaces { common, leases: marks(store, MARKS.leases)?.unwrap_or(common) })
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        resource: row.get(0)?,
        namespace: row.get(1)?,
        name: row.get(2)?,
        revision: unsigned(row.get(3)?)?,
        json: row.get(4)?,
    })
}

/// True if the row's checksum matches its content.
fn is_sound(row: &Row<'_>, record: &Record) -> bool {
    let place = [&*record.resource, &*record.namespace, &*record.name];
    let told: Option<[u8; 4]> = row.get(5).ok();
    told == Some(checksum(place, record.revision.cast_signed(), &record.json))
}

/// The object of a row; `None` if it is damaged and may be lost.
fn verified(row: &Row<'_>, path: &Path) -> Result<Option<Record>, Unreadable> {
    let found = record(row);
    if let Ok(record) = found
        && is_sound(row, &record)
    {
        return Ok(Some(record));
    }
    if let Some(record) = read_again(row.get(6)?, path) {
        log::warn!(
            "store {}: a row was read wrongly once, and rightly again: the disk fails at times",
            path.display()
        );
        return Ok(Some(record));
    }
    let [resource, namespace, name] =
        [0, 1, 2].map(|column| row.get::<_, String>(column).unwrap_or_else(|_| "?".to_owned()));
    if may_be_lost(&resource) {
        log::error!(
            "store {}: {resource} {namespace}/{name} does not match its checksum: it is kept in the file and not shown",
            path.display()
        );
        return Ok(None);
    }
    Err(Unreadable::Row(format!(
        "{resource} {namespace}/{name} does not match its checksum; {}",
        way_out(path, row.get(6)?)
    )))
}

/// Advice for giving up one damaged object.
fn way_out(path: &Path, id: i64) -> String {
    format!(
        "keep a copy of the directory, then restore a backup with `kedge-hub restore FILE`, or give up this object with \
         `sqlite3 {} 'DELETE FROM objects WHERE id = {id}'`",
        path.display()
    )
}

/// Reads the row once more, by a connection that has cached nothing of it.
fn read_again(id: i64, path: &Path) -> Option<Record> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let store = Connection::open_with_flags(path, flags).ok()?;
    let sql = "SELECT resource, namespace, name, revision, json, sum, id FROM objects WHERE id = ?1";
    let look = store.query_row(sql, [id], |row| {
        let record = record(row)?;
        Ok(is_sound(row, &record).then_some(record))
    });
    look.ok().flatten()
}

fn marks(store: &Connection, [reserved, clean]: [&str; 2]) -> rusqlite::Result<Option<Marks>> {
    let Some(reserved) = mark(store, reserved)? else { return Ok(None) };
    let clean = mark(store, clean)?.map(unsigned).transpose()?;
    Ok(Some(Marks { reserved: unsigned(reserved)?, clean }))
}

/// Checks that the file is a complete store of a version that this hub knows.
pub(super) fn check(store: &Connection, path: &Path) -> Result<(), OpenError> {
    let damaged = |what: String| OpenError::Damaged(path.to_owned(), what);
    let unreadable = |error| open_failed("read", path, &error);
    let id: i64 = store.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(unreadable)?;
    if id != APPLICATION_ID {
        return Err(damaged("it is not a store of this program".to_owned()));
    }
    let version = mark(store, "schema")
        .map_err(unreadable)?
        .ok_or_else(|| damaged("it has no schema version".to_owned()))?;
    if version > SCHEMA_VERSION {
        return Err(OpenError::TooNew(path.to_owned(), version));
    }
    if version < 1 {
        return Err(damaged(format!("it has schema version {version}, expected 1 or more")));
    }
    let verdict: String = store
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| open_failed("check", path, &error))?;
    if verdict == "ok" { Ok(()) } else { Err(damaged(verdict)) }
}

/// Checks that the store and the files beside it are regular files: with a named pipe or a device SQLite
/// would wait or read for ever.
fn check_files(path: &Path) -> Result<(), OpenError> {
    for ending in ["", "-wal", "-shm"] {
        let path = PathBuf::from(format!("{}{ending}", path.display()));
        files::check_regular(&path).map_err(|error| OpenError::File(path, error))?;
    }
    Ok(())
}

/// Opens a store without writing anything beside it, to read it once. The caller must hold the directory's
/// lock.
///
/// # Errors
/// It cannot be read, or is damaged.
pub(super) fn open_reading(path: &Path) -> Result<Connection, OpenError> {
    let failed = |error| open_failed("read", path, &error);
    let log = path.with_extension("db-wal");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let store = if std::fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        // without file locks the index of the log may live in memory instead of a file
        let store = Connection::open_with_flags_and_vfs(path, flags, "unix-none").map_err(failed)?;
        store.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(())).map_err(failed)?;
        store
    } else {
        let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let uri = format!("file:{escaped}?immutable=1");
        Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).map_err(failed)?
    };
    store.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    check(&store, path)?;
    Ok(store)
}

/// The largest size of the file, in pages, for the memory of this machine, without those reserved for
/// deletions.
pub(super) fn limit_pages() -> i64 {
    let memory = memory_limit(&Roots::default());
    let pages = pages_for(memory);
    if pages < MAX_PAGES {
        log::info!("the store may grow to {} MiB: half of {} MiB of memory", pages * 4 / 1024, memory >> 20);
    }
    pages - RESERVE_PAGES
}

fn pages_for(memory_bytes: u64) -> i64 {
    let bytes = (memory_bytes / MEMORY_SHARE).max(LEAST_BYTES);
    i64::try_from(bytes / PAGE_BYTES).unwrap_or(MAX_PAGES).min(MAX_PAGES)
}

/// Makes one change in a transaction.
fn make(transaction: &Connection, rows: &mut Rows, change: &Change<'_>) -> rusqlite::Result<()> {
    let one =
        |changed| if changed == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(changed)) };
    match *change {
        Change::Put { resource, namespace, name, revision, json } => {
            let revision = revision.cast_signed();
            let sum = checksum([resource, namespace, name], revision, json);
            if let Some(id) = rows.find(resource, namespace, name) {
                let sql = "UPDATE objects SET revision = ?2, json = ?3, sum = ?4 WHERE id = ?1";
                return one(transaction.prepare_cached(sql)?.execute(params![id, revision, json, sum])?);
            }
            let id = rows.add(resource, namespace, name).ok_or_else(no_number)?;
            let parameters = params![id, resource, namespace, name, revision, sum, json];
            one(transaction.prepare_cached(INSERT)?.execute(parameters)?)
        }
        Change::Delete { resource, namespace, name } => match rows.remove(resource, namespace, name) {
            Some(id) => {
                one(transaction.prepare_cached("DELETE FROM objects WHERE id = ?1")?.execute([id])?)
            }
            None => Ok(()),
        },
    }
}

/// SQLite's own error for exhausted row numbers.
fn no_number() -> rusqlite::Error {
    let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
    rusqlite::Error::SqliteFailure(full, Some("no row number is left".to_owned()))
}

/// From version 1 to 2. Copies row by row, so that memory need not hold them all.
fn number_rows(store: &Connection) -> rusqlite::Result<()> {
    store.execute_batch(&format!("ALTER TABLE objects RENAME TO objects_1; {OBJECTS_2}"))?;
    copy_rows(store)?;
    store.execute_batch("DROP TABLE objects_1")
}

/// From version 2 to 3: the revisions of Leases continue from the common ones. A restored backup may already
/// have their marks.
fn split_marks(store: &Connection) -> rusqlite::Result<()> {
    for (from, to) in MARKS.common.into_iter().zip(MARKS.leases) {
        let sql = "INSERT OR IGNORE INTO meta SELECT ?2, value FROM meta WHERE key = ?1";
        store.execute(sql, [from, to])?;
    }
    Ok(())
}

/// From version 3 to 4: an id, and a checksum for each row, stored before its text so that a large object
/// takes no extra page. The checksum cannot show damage from before the upgrade.
fn add_sums(store: &Connection) -> rusqlite::Result<()> {
    store.execute_batch(&format!("ALTER TABLE objects RENAME TO objects_3; {OBJECTS}; {MAKE_ID}"))?;
    let sql = "SELECT id, resource, namespace, name, revision, json FROM objects_3 ORDER BY id";
    let (mut old, mut insert) = (store.prepare(sql)?, store.prepare(INSERT)?);
    let mut found = old.query([])?;
    while let Some(row) = found.next()? {
        let [resource, namespace, name]: [String; 3] = [row.get(1)?, row.get(2)?, row.get(3)?];
        let (id, revision, json): (i64, i64, Vec<u8>) = (row.get(0)?, row.get(4)?, row.get(5)?);
        let sum = checksum([resource.as_str(), &namespace, &name], revision, &json);
        insert.execute(params![id, resource, namespace, name, revision, sum, json])?;
    }
    drop(found);
    drop(old);
    store.execute_batch("DROP TABLE objects_3")
}

/// The checksum of a row: CRC-32, which detects any flip of a few bits, and all but one in four billion other
/// changes. It has a fixed size, so that a row keeps its own.
pub fn checksum(place: [&str; 3], revision: i64, json: &[u8]) -> [u8; 4] {
    let mut sum = Crc::new();
    for part in place {
        sum.update(part.as_bytes());
        sum.update(&[0]);
    }
    sum.update(&revision.to_le_bytes());
    sum.update(json);
    sum.sum().to_le_bytes()
}

fn copy_rows(store: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT resource, namespace, name, revision, json FROM objects_1 ORDER BY 1, 2, 3";
    let (mut old, mut insert) = (store.prepare(sql)?, store.prepare(INSERT_2)?);
    let (mut rows, mut found) = (Rows::default(), old.query([])?);
    while let Some(row) = found.next()? {
        let [resource, namespace, name]: [String; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
        let (revision, json): (i64, Vec<u8>) = (row.get(3)?, row.get(4)?);
        let id = rows.add(&resource, &namespace, &name).ok_or_else(no_number)?;
        insert.execute(params![id, resource, namespace, name, revision, json])?;
        rows.commit();
    }
    Ok(())
}

/// Creates an empty store in a temporary file and renames it, with one flush. Created in place, SQLite would
/// flush each step, nine times in all, and a memory card takes 10 to 50 ms for one. The caller makes the
/// directory durable.
fn create(directory: &Path, path: &Path) -> Result<(), OpenError> {
    let cannot = |error| OpenError::Directory(directory.to_owned(), error);
    let beside = |ending: &str| directory.join(format!("state.db{ending}"));
    // removes an unfinished one, and the logs of a deleted store, which would be replayed into the new one
    for ending in [".new", ".new-wal", ".new-shm", "-wal", "-shm"] {
        match std::fs::remove_file(beside(ending)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
    }
    let new = beside(".new");
    // SQLite would create it readable for others; the log gets the same mode
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

/// Converts a stored revision; no hub writes a negative one.
fn unsigned(number: i64) -> rusqlite::Result<u64> {
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, number))
}

/// The statements that create the tables of an empty file.
fn schema() -> String {
    format!(
        "BEGIN; PRAGMA application_id = {APPLICATION_ID}; {META}; {OBJECTS}; \
         INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}), ('reserved', 0), ('lease-reserved', 0); {MAKE_ID}; COMMIT;"
    )
}

pub(super) fn failed(tried: &str, path: &Path, error: &rusqlite::Error) -> StoreError {
    let message = format!("cannot {tried} store {}: {error}", path.display());
    StoreError::certain(sort(error, path), message)
}

fn open_failed(tried: &str, path: &Path, error: &rusqlite::Error) -> OpenError {
    use rusqlite::Error::{FromSqlConversionFailure, InvalidColumnType, Utf8Error};
    let strange = matches!(error, FromSqlConversionFailure(..) | InvalidColumnType(..) | Utf8Error(..));
    let failure = failed(tried, path, error);
    // a value whose type is not its column's cannot be from a hub
    if strange || failure.sort == Sort::Damaged {
        return OpenError::Damaged(path.to_owned(), error.to_string());
    }
    OpenError::Engine(failure)
}

/// The disk fault behind an error of SQLite. For a full or read-only disk SQLite often reports only a failed
/// call: then writing a small file beside the store finds out.
fn sort(error: &rusqlite::Error, path: &Path) -> Sort {
    let Some(engine) = error.sqlite_error() else { return Sort::Other };
    match engine.code {
        ErrorCode::DiskFull => Sort::Full,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Sort::Damaged,
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Sort::Busy,
        _ if matches!(engine.extended_code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC) => {
            Sort::Flush
        }
        ErrorCode::SystemIoFailure => try_disk(path).unwrap_or(Sort::Io),
        ErrorCode::ReadOnly | ErrorCode::CannotOpen => try_disk(path).unwrap_or(Sort::Other),
        _ => Sort::Other,
    }
}

/// The fault of writing a small file beside the store, if any.
fn try_disk(path: &Path) -> Option<Sort> {
    let trial = path.with_extension("db.trial");
    drop(std::fs::remove_file(&trial));
    let tried = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&trial)
        .and_then(|mut file| io::Write::write_all(&mut file, &[0; 64 * 1024]));
    // a leftover does no harm
    drop(std::fs::remove_file(&trial));
    tried.err().and_then(|error| sort_of(&error))
}

/// Takes the directory's lock for this process. On a disk that cannot be written the lock is the existing
/// file, or else the directory.
pub(super) fn lock(directory: &Path) -> Result<File, OpenError> {
    let cannot = |error| OpenError::Directory(directory.to_owned(), error);
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let path = directory.join("lock");
    let opened = open_regular(File::options().create(true).truncate(false).write(true).mode(0o600), &path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if sort_of(&error).is_some() => {
            File::open(&path).or_else(|_| File::open(directory)).map_err(cannot)?
        }
        Err(error) => return Err(OpenError::File(path, error)),
    };
    // older hubs left it readable, and any process that can open it can hold its lock
    if file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o077 != 0)
        && let Err(error) = file.set_permissions(Permissions::from_mode(0o600))
    {
        log::warn!("cannot make {} private: {error}", path.display());
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::Locked(path)),
        Err(std::fs::TryLockError::Error(error)) => Err(cannot(error)),
    }
}

/// Makes the names of new files durable.
pub(super) fn sync_directory(directory: &Path) -> Result<(), OpenError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| OpenError::Directory(directory.to_owned(), error))
}

/// A store as a hub of version 1 left it, made with that version's own statements.
#[cfg(test)]
pub(super) mod version_1 {
    use super::*;

    const TABLES: &str = "
        BEGIN; PRAGMA application_id = 1801806951;
        CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
        CREATE TABLE objects (
            resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
            revision INTEGER NOT NULL, json BLOB NOT NULL,
            PRIMARY KEY (resource, namespace, name)
        ) WITHOUT ROWID;
        INSERT INTO meta VALUES ('schema', 1), ('reserved', 0);
        COMMIT;";

    /// Makes a store with objects of various sizes, revisions up to 60, and these marks. Its log is not
    /// folded back while it is open.
    pub(crate) fn make(directory: &Path, reserved: i64, clean: Option<i64>) -> Connection {
        std::fs::create_dir_all(directory).unwrap();
        let store = Connection::open(directory.join("state.db")).unwrap();
        store.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
        store.execute_batch(TABLES).unwrap();
        for (resource, namespace, name, revision, json) in objects() {
            let sql = "INSERT INTO objects VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE \
                       SET revision = excluded.revision, json = excluded.json";
            store.execute(sql, params![resource, namespace, name, revision, json]).unwrap();
        }
        store.execute("INSERT OR REPLACE INTO meta VALUES ('reserved', ?1)", [reserved]).unwrap();
        if let Some(clean) = clean {
            store.execute("INSERT OR REPLACE INTO meta VALUES ('clean', ?1)", [clean]).unwrap();
        }
        store
    }

    /// Resource, namespace, name, revision and text.
    pub(crate) type Row = (String, String, String, i64, Vec<u8>);

    /// Sorted by keys.
    pub(crate) fn objects() -> Vec<Row> {
        let mut objects = Vec::new();
        let kinds =
            [("configmaps", "default"), ("leases.coordination.k8s.io", "kube-node-lease"), ("nodes", "")];
        for (place, (resource, namespace)) in kinds.into_iter().enumerate() {
            for number in 0..20 {
                // several rows in a page, one row in a page, and rows that need several pages
                let bytes = [0, 300, 700, 2900, 6000][number % 5] + if number == 9 { 60_000 } else { number };
                let name = format!("n{number:02}");
                let value = serde_json::json!({"metadata": {"name": name, "namespace": namespace}, "data": "x".repeat(bytes)});
                let revision = i64::try_from(place * 20 + number + 1).unwrap();
                let json = value.to_string().into_bytes();
                objects.push((resource.to_owned(), namespace.to_owned(), name, revision, json));
            }
        }
        objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;

    fn scratch(purpose: &str) -> Scratch {
        Scratch::new(&format!("hub-{purpose}")).unwrap()
    }

    fn put<'a>(name: &'a str, revision: u64) -> Change<'a> {
        Change::Put { resource: "nodes", namespace: "", name, revision, json: b"{}" }
    }

    fn names(store: &mut Sqlite) -> (Vec<String>, Spaces<Marks>) {
        let mut names = Vec::new();
        let marks =
            store.load(&mut |record| names.push(format!("{}@{}", record.name, record.revision))).unwrap();
        (names, marks)
    }

    fn version(store: &Sqlite) -> Option<i64> {
        store.mark("schema").unwrap()
    }

    #[test]
    fn row_that_is_not_what_was_written_is_refused_by_name() {
        let folder = scratch("sums");
        let lease = Change::Put {
            resource: "leases.coordination.k8s.io",
            namespace: "n",
            name: "l",
            revision: 6,
            json: b"{\"a\": 1}",
        };
        let event =
            Change::Put { resource: "events", namespace: "n", name: "e", revision: 7, json: b"{\"a\": 1}" };
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("a", 5), lease, event], None).unwrap();
        let spoil = |store: &Sqlite, sql: &str| store.connection.execute(sql, []).unwrap();
        for (field, value) in [
            ("json", "CAST('{\"a\": 2}' AS BLOB)"),
            ("revision", "revision + 1"),
            ("sum", "x'00'"),
            ("name", "'x'"),
        ] {
            for resource in ["leases.coordination.k8s.io", "events"] {
                spoil(&store, &format!("UPDATE objects SET {field} = {value} WHERE resource = '{resource}'"));
            }
            assert_eq!(names(&mut store).0, ["a@5"], "{field}: they are not shown");
            drop(store);
            store = Sqlite::open(&folder).unwrap();
            assert_eq!(names(&mut store).0, ["a@5"], "{field}");
        }
        // made anew they are good
        store
            .commit(
                &[Change::Put { resource: "events", namespace: "n", name: "e", revision: 8, json: b"{}" }],
                None,
            )
            .unwrap();
        assert_eq!(names(&mut store).0.len(), 2);
        spoil(&store, "UPDATE objects SET json = CAST('[]' AS BLOB) WHERE resource = 'nodes'");
        let refused = store.load(&mut |_| {}).unwrap_err();
        assert_eq!(refused.sort, Sort::Damaged);
        for part in
            ["nodes /a does not match its checksum", "restore FILE", "DELETE FROM objects WHERE id = 0"]
        {
            assert!(refused.message.contains(part), "{part}: {refused}");
        }
    }

    #[test]
    fn checksum_notices_each_part_of_a_row() {
        let of = |place, revision, json: &[u8]| checksum(place, revision, json);
        let whole = of(["a", "b", "c"], 7, b"{}");
        assert_eq!(whole, of(["a", "b", "c"], 7, b"{}"));
        for other in
            [of(["ab", "", "c"], 7, b"{}"), of(["a", "b", "c"], 6, b"{}"), of(["a", "b", "c"], 7, b"[]")]
        {
            assert_ne!(other, whole);
        }
    }

    #[test]
    fn older_file_is_upgraded_stepwise_or_left_unchanged() {
        const FIRST: Upgrade = |store| store.execute_batch("ALTER TABLE objects ADD COLUMN one INTEGER");
        const SECOND: Upgrade = |store| store.execute_batch("ALTER TABLE objects ADD COLUMN two INTEGER");
        const BROKEN: Upgrade = |store| store.execute_batch("ALTER TABLE nosuch ADD COLUMN x");
        let present: Upgrade = |_| panic!("a file of the present version needs no step to it");
        let folder = scratch("upgrade");
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("a", 5)], None).unwrap();
        assert!(store.upgrade(&[present, present, present, FIRST, BROKEN]).is_err());
        assert_eq!(version(&store), Some(4));
        assert!(store.connection.prepare("SELECT one FROM objects").is_err(), "half an upgrade stayed");
        store.upgrade(&[present, present, present, FIRST]).unwrap();
        assert_eq!(version(&store), Some(5));
        store.upgrade(&[present, present, present, FIRST, SECOND]).unwrap();
        store.upgrade(&[present, present, present, FIRST, SECOND]).unwrap();
        assert_eq!(version(&store), Some(6));
        store.connection.prepare("SELECT one, two FROM objects").unwrap();
        assert_eq!(names(&mut store).0, ["a@5"]);
        drop(store);
        assert!(matches!(Sqlite::open(&folder), Err(OpenError::TooNew(_, 6))));
    }

    /// All its content, in the form of `version_1::objects`.
    fn content(store: &mut Sqlite) -> (Vec<version_1::Row>, Spaces<Marks>) {
        let mut found = Vec::new();
        let marks = store
            .load(&mut |record| {
                let revision = record.revision.cast_signed();
                found.push((record.resource, record.namespace, record.name, revision, record.json));
            })
            .unwrap();
        found.sort_unstable();
        (found, marks)
    }

    #[test]
    fn store_of_version_1_is_upgraded_completely() {
        let check = |how: &str, crashed: bool, clean: Option<u64>| {
            let folder = scratch(how);
            let (made, data) = (folder.join("made"), folder.join("data"));
            let old = version_1::make(&made, 900, clean.map(u64::cast_signed));
            if crashed {
                // with its log
                std::fs::create_dir_all(&data).unwrap();
                for name in ["state.db", "state.db-wal"] {
                    std::fs::copy(made.join(name), data.join(name)).unwrap();
                }
                assert!(std::fs::metadata(data.join("state.db-wal")).unwrap().len() > 4096, "{how}");
            } else {
                drop(old);
                std::fs::rename(&made, &data).unwrap();
            }
            let mut store = Sqlite::open(&data).unwrap();
            assert_eq!(version(&store), Some(SCHEMA_VERSION), "{how}");
            let expect = (version_1::objects(), Spaces::both(Marks { reserved: 900, clean }));
            assert!(content(&mut store) == expect, "{how}: objects or marks differ");
            // and behaves like any other store
            store.commit(&[put("n03", 901), put("new", 902)], Some(Spaces::both(2000))).unwrap();
            let remove = Change::Delete { resource: "nodes", namespace: "", name: "n04" };
            store.commit(&[remove], None).unwrap();
            drop(store);
            let mut store = Sqlite::open(&data).unwrap();
            let (found, marks) = content(&mut store);
            assert_eq!(marks, Spaces::both(Marks { reserved: 2000, clean: None }), "{how}");
            let nodes: Vec<_> = found.iter().filter(|object| object.0 == "nodes").collect();
            assert_eq!((found.len(), nodes.len()), (60, 20), "{how}");
            assert_eq!((nodes[3].3, nodes[19].2.as_str(), nodes[19].3), (901, "new", 902), "{how}");
            assert!(!nodes.iter().any(|object| object.2 == "n04"), "{how}");
            let in_place: bool = store
                .connection
                .query_row("SELECT max(id) - min(id) < 21 FROM objects WHERE resource = 'nodes'", [], |row| {
                    row.get(0)
                })
                .unwrap();
            assert!(in_place, "{how}: the nodes' rows do not lie together");
        };
        check("closed in order", false, Some(60));
        check("killed before it closed", false, None);
        check("killed with a log", true, None);
    }

    #[test]
    fn kill_during_an_upgrade_leaves_a_store_that_starts() {
        let folder = scratch("upgrade-cut");
        let (data, cut) = (folder.join("data"), folder.join("cut"));
        drop(version_1::make(&data, 900, Some(60)));
        let file = |name: &str| std::fs::read(data.join(name)).unwrap();
        let before = file("state.db");
        let store = Sqlite::open(&data).unwrap();
        let log = file("state.db-wal");
        assert_eq!(
            file("state.db"),
            before,
            "the log was folded back already, the test needs a smaller store"
        );
        drop(store);
        let after = file("state.db");
        let check = |what: &str, at: usize, state: &[u8], log: &[u8]| {
            let _ = std::fs::remove_dir_all(&cut);
            std::fs::create_dir_all(&cut).unwrap();
            std::fs::write(cut.join("state.db"), state).unwrap();
            std::fs::write(cut.join("state.db-wal"), log).unwrap();
            let mut store = Sqlite::open(&cut).unwrap_or_else(|error| panic!("{what} {at}: {error}"));
            assert_eq!(version(&store), Some(SCHEMA_VERSION), "{what} {at}");
            let expect = (version_1::objects(), Spaces::both(Marks { reserved: 900, clean: Some(60) }));
            assert!(content(&mut store) == expect, "{what} {at}: objects or marks differ");
        };
        // killed while the transaction was being written, between two pages and within one: without its last
        // page it does not count
        let frame = 24 + 4096;
        let frames = (log.len() - 32) / frame;
        assert!(frames > 20, "{frames} frames prove little");
        for at in (0..=frames).filter(|at| at % 10 == 0 || at + 3 > frames) {
            let end = 32 + at * frame;
            check("cut after frame", at, &before, &log[..end]);
            check("torn in frame", at, &before, &log[..(end + 2000).min(log.len())]);
        }
        // killed while it was being folded back
        for at in (0..=after.len() / 4096).step_by(8) {
            let mut state = after[..at * 4096].to_vec();
            state.extend_from_slice(before.get(at * 4096..).unwrap_or_default());
            check("folded back to page", at, &state, &log);
        }
    }

    #[test]
    fn failed_commit_leaves_no_trace() {
        let folder = scratch("failed-commit");
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("a", 1), put("b", 1)], Some(Spaces::both(10))).unwrap();
        let limit = |store: &Sqlite, pages: i64| {
            store.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
        };
        limit(&store, 1);
        let large = vec![b' '; 100_000];
        let too_much =
            Change::Put { resource: "nodes", namespace: "", name: "large", revision: 3, json: &large };
        let remove = Change::Delete { resource: "nodes", namespace: "", name: "b" };
        let error = store.commit(&[put("new", 2), remove, too_much], Some(Spaces::both(20))).unwrap_err();
        assert!(error.message.contains("full"), "{error}");
        assert!(store.rows.is_some(), "a full disk has every change read all rows");
        assert_eq!(
            names(&mut store),
            (vec!["a@1".to_owned(), "b@1".to_owned()], Spaces::both(Marks { reserved: 10, clean: None }))
        );
        // creates and changes the objects of the failed commit
        store.commit(&[put("new", 4), put("b", 5)], None).unwrap();
        limit(&store, MAX_PAGES);
        store.commit(&[put("more", 6)], None).unwrap();
        drop(store);
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(names(&mut store).0, ["a@1", "b@5", "new@4", "more@6"]);
    }

    fn fill(store: &mut Sqlite) -> usize {
        let json = vec![b' '; 100_000];
        for number in 0..1000 {
            let name = format!("n{number}");
            let put = Change::Put { resource: "x", namespace: "", name: &name, revision: 1, json: &json };
            match store.commit(&[put], None) {
                Ok(()) => {}
                Err(error) => {
                    assert!(error.sort == Sort::Full && !error.uncertain, "{error:?}");
                    return number;
                }
            }
        }
        panic!("the limit was not met");
    }

    #[test]
    fn store_at_its_limit_takes_deletions_then_other_changes() {
        let folder = scratch("limit");
        let mut store = Sqlite::open_locked(Arc::new(lock(&folder).unwrap()), &folder, 1000).unwrap();
        let made = fill(&mut store);
        assert_eq!(store.commit(&[put("small", 2)], None).map_err(|error| error.sort), Ok(()), "a gap");
        let unfit = store.probe().unwrap_err();
        assert!(unfit.message.ends_with("has reached its limit of 3 MiB"), "{unfit}");
        // deletions, and changes that lead to them, may exceed the limit
        let large = vec![b'x'; 400_000];
        let ending = Change::Put { resource: "x", namespace: "", name: "n0", revision: 3, json: &large };
        assert_eq!(store.commit(&[ending], None).unwrap_err().sort, Sort::Full);
        let ending = Change::Put { resource: "x", namespace: "", name: "n0", revision: 3, json: &large };
        store.commit_from_reserve(&[ending], None).unwrap();
        assert_eq!(fill(&mut store), 0, "the limit was not set back");
        for number in 0..made {
            let name = format!("n{number}");
            let remove = Change::Delete { resource: "x", namespace: "", name: &name };
            store.commit_from_reserve(&[remove], None).unwrap();
        }
        store.probe().unwrap();
        assert!(store.has_reserve());
        let again = fill(&mut store);
        assert!(again.abs_diff(made) <= 2, "{made} objects, then {again}");
    }

    #[test]
    fn store_is_read_without_writing_beside_it() {
        let folder = scratch("reading");
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("a", 1), put("b", 2)], Some(Spaces::both(100))).unwrap();
        let read = || {
            let path = folder.join("state.db");
            let before: Vec<_> = files(&folder);
            let reader = open_reading(&path).unwrap();
            let mut names = Vec::new();
            let marks = load_all(&reader, &path, &mut |record| names.push(record.name)).unwrap();
            drop(reader);
            assert_eq!(files(&folder), before, "something was written");
            (names, marks)
        };
        let expect =
            (vec!["a".to_owned(), "b".to_owned()], Spaces::both(Marks { reserved: 100, clean: None }));
        // as after a kill: everything is in the log
        let log = std::fs::read(folder.join("state.db-wal")).unwrap();
        let state = std::fs::read(folder.join("state.db")).unwrap();
        drop(store);
        assert_eq!(read(), expect, "folded back");
        std::fs::write(folder.join("state.db"), state).unwrap();
        std::fs::write(folder.join("state.db-wal"), log).unwrap();
        assert_eq!(read(), expect, "in the log");
        std::fs::write(folder.join("state.db"), vec![7; 9000]).unwrap();
        assert!(matches!(open_reading(&folder.join("state.db")), Err(OpenError::Damaged(..))));
    }

    /// Names and contents.
    fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        files.sort();
        files
    }

    #[test]
    fn log_is_in_the_file_before_anything_is_served() {
        let folder = scratch("folded");
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("a", 1)], Some(Spaces::both(100))).unwrap();
        let log = std::fs::read(folder.join("state.db-wal")).unwrap();
        let state = std::fs::read(folder.join("state.db")).unwrap();
        drop(store);
        std::fs::write(folder.join("state.db"), state).unwrap();
        std::fs::write(folder.join("state.db-wal"), log).unwrap();
        let store = Sqlite::open(&folder).unwrap();
        assert_eq!(std::fs::metadata(folder.join("state.db-wal")).unwrap().len(), 0);
        assert_eq!(store.log_pages().unwrap(), 0);
    }

    /// Folding could then copy pages into the file that the disk does not have.
    #[test]
    fn log_is_not_folded_at_the_end_after_a_failed_flush() {
        for (sort, folds) in [(Sort::Io, true), (Sort::Flush, false)] {
            let folder = scratch("unfolded");
            let mut store = Sqlite::open(&folder).unwrap();
            let file = || std::fs::read(folder.join("state.db")).unwrap();
            let before = file();
            store.commit(&[put("a", 5)], None).unwrap();
            store.broken(StoreError::certain(sort, "at fault".to_owned()));
            drop(store);
            assert_eq!(file() != before, folds, "{sort:?}");
            assert_eq!(names(&mut Sqlite::open(&folder).unwrap()).0, ["a@5"], "{sort:?}");
        }
    }

    #[test]
    fn long_log_is_folded_back_after_a_commit() {
        let folder = scratch("long-log");
        let mut store = Sqlite::open(&folder).unwrap();
        let json = vec![b' '; 1024 * 1024];
        let mut longest = 0;
        for number in 0..12 {
            let name = format!("n{number}");
            let put = Change::Put { resource: "x", namespace: "", name: &name, revision: 1, json: &json };
            store.commit(&[put], None).unwrap();
            longest = longest.max(store.log_pages().unwrap());
            store.tidy().unwrap();
            assert!(store.log_pages().unwrap() < CHECKPOINT_PAGES);
        }
        assert!(longest >= CHECKPOINT_PAGES, "{longest} pages prove nothing");
    }

    #[test]
    fn limit_follows_memory() {
        let check =
            |mib: u64, expect: i64| assert_eq!(pages_for(mib << 20) / 256, expect, "{mib} MiB of memory");
        check(64, 32);
        check(512, 256);
        check(4 * 1024, 2048);
        check(1024 * 1024, 2048);
        check(8, 16);
    }

    #[test]
    fn lock_is_private_also_after_an_older_hub() {
        let folder = scratch("lock-mode");
        let mode = || std::fs::metadata(folder.join("lock")).unwrap().permissions().mode() & 0o777;
        drop(lock(&folder).unwrap());
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(folder.join("lock"), Permissions::from_mode(0o644)).unwrap();
        drop(lock(&folder).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn object_may_be_created_and_deleted_in_one_commit() {
        let check = |changes: &[Change<'_>], expect: &[&str]| {
            let folder = scratch("come-and-go");
            let mut store = Sqlite::open(&folder).unwrap();
            store.commit(&[put("old", 1)], Some(Spaces::both(10))).unwrap();
            store.commit(changes, None).unwrap();
            assert_eq!(names(&mut store).0, expect, "{changes:?}");
            drop(store);
            assert_eq!(names(&mut Sqlite::open(&folder).unwrap()).0, expect, "{changes:?}");
        };
        let remove = |name| Change::Delete { resource: "nodes", namespace: "", name };
        check(&[put("a", 2), put("a", 3)], &["old@1", "a@3"]);
        check(&[put("a", 2), remove("a")], &["old@1"]);
        check(&[put("a", 2), remove("a"), put("a", 4)], &["old@1", "a@4"]);
        check(&[remove("old"), put("old", 5)], &["old@5"]);
        check(&[remove("old"), remove("old"), remove("nosuch")], &[]);
    }

    #[test]
    fn deleted_row_is_restored_by_the_next_write() {
        let folder = scratch("taken-away");
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("a", 1)], Some(Spaces::both(10))).unwrap();
        Connection::open(&store.path).unwrap().execute("DELETE FROM objects", []).unwrap();
        assert!(store.commit(&[put("a", 2)], None).is_err());
        store.commit(&[put("a", 3)], None).unwrap();
        assert_eq!(names(&mut store).0, ["a@3"]);
    }

    #[test]
    fn update_writes_only_changed_pages() {
        let folder = scratch("pages");
        let mut store = Sqlite::open(&folder).unwrap();
        let mut revision = 0;
        let mut frames = |changes: &[(&str, usize, u8)]| {
            let log = store.path.with_extension("db-wal");
            let bytes = || std::fs::metadata(&log).map_or(0, |log| log.len());
            let before = bytes();
            let texts: Vec<_> = changes.iter().map(|(_, bytes, with)| vec![*with; *bytes]).collect();
            let puts = changes.iter().zip(&texts).map(|((name, ..), json)| {
                revision += 1;
                Change::Put { resource: "nodes", namespace: "", name, revision, json }
            });
            store.commit(&puts.collect::<Vec<_>>(), None).unwrap();
            (bytes() - before) / (24 + 4096)
        };
        frames(&[("small", 300, 1), ("other", 300, 1)]);
        assert_eq!(frames(&[("small", 300, 2)]), 1);
        assert_eq!(frames(&[("small", 310, 3)]), 1, "its size changed");
        assert_eq!(frames(&[("small", 300, 4), ("other", 310, 4)]), 1, "both in one page");
        // a Node: one page, whether it keeps its size or not
        frames(&[("node", 3000, 1)]);
        assert_eq!(frames(&[("node", 3000, 2)]), 1);
        assert_eq!(frames(&[("node", 3100, 3)]), 1);
        // an object larger than a page: only the differing pages
        frames(&[("large", 40_000, 1)]);
        assert!(frames(&[("large", 40_000, 1)]) <= 2, "only its revision is another one");
        assert!(frames(&[("large", 40_000, 2)]) >= 10);
    }

    #[test]
    fn unused_space_is_returned_at_the_next_start() {
        let folder = scratch("compact");
        let mut store = Sqlite::open(&folder).unwrap();
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
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(names(&mut store).0, ["kept@3"]);
        drop(store);
        let after = std::fs::metadata(&path).unwrap().len();
        assert!(before > 20 << 20 && after < 1 << 20, "{before} then {after}");
    }

    #[test]
    fn upgrade_on_a_full_disk_keeps_the_old_store_and_is_retried() {
        let folder = scratch("upgrade-full");
        drop(version_1::make(&folder, 900, Some(60)));
        let path = folder.join("state.db");
        let store = Sqlite::new(&folder, path, MAX_PAGES, Arc::new(lock(&folder).unwrap())).unwrap();
        store.set_pragmas().unwrap();
        // with no more pages than the old format has
        store.limit_to(1).unwrap();
        let refused = store.upgrade(UPGRADES).unwrap_err().to_string();
        assert!(refused.contains("cannot upgrade store") && refused.contains("full"), "{refused}");
        assert_eq!(version(&store), Some(1));
        drop(store);
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(version(&store), Some(SCHEMA_VERSION));
        let expect = (version_1::objects(), Spaces::both(Marks { reserved: 900, clean: Some(60) }));
        assert!(content(&mut store) == expect, "objects or marks differ");
    }

    #[test]
    fn upgrade_keeps_file_size_and_size_limit() {
        const LIMIT: i64 = 8000;
        let folder = scratch("upgrade-size");
        let old = version_1::make(&folder, 900, None);
        old.execute_batch("BEGIN").unwrap();
        let mut insert = old.prepare("INSERT INTO objects VALUES ('x', '', ?1, 1, ?2)").unwrap();
        // rows of equal size in both versions
        let json = [b' '; 900];
        for number in 0..20_000 {
            insert.execute(params![format!("n{number:05}"), json]).unwrap();
        }
        drop(insert);
        // packed, as a restored backup is
        old.execute_batch("COMMIT; VACUUM").unwrap();
        let pages = |store: &Connection, of: &str| -> i64 {
            store.query_row(&format!("PRAGMA {of}"), [], |row| row.get(0)).unwrap()
        };
        let before = pages(&old, "page_count");
        assert!(before > COMPACT_PAGES && 2 * before > LIMIT, "{before} pages prove nothing");
        drop(old);
        let store = Sqlite::open_locked(Arc::new(lock(&folder).unwrap()), &folder, LIMIT).unwrap();
        let after = pages(&store.connection, "page_count");
        assert!(after < before * 11 / 10, "{before} pages, then {after}");
        assert_eq!(pages(&store.connection, "max_page_count"), LIMIT);
    }

    #[test]
    fn committed_objects_are_loaded_again() {
        let folder = scratch("found-again");
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(names(&mut store), (vec![], Spaces::default()));
        store.commit(&[put("a", 1), put("b", 2)], Some(Spaces::both(100))).unwrap();
        let remove = Change::Delete { resource: "nodes", namespace: "", name: "a" };
        store.commit(&[put("b", 3), remove], None).unwrap();
        drop(store);
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(
            names(&mut store),
            (vec!["b@3".to_owned()], Spaces::both(Marks { reserved: 100, clean: None }))
        );
        store.close(Spaces::both(3)).unwrap();
        drop(store);
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(names(&mut store).1, Spaces::both(Marks { reserved: 100, clean: Some(3) }));
        store.commit(&[], Some(Spaces::both(200))).unwrap();
        assert_eq!(names(&mut store).1, Spaces::both(Marks { reserved: 200, clean: None }));
    }

    #[test]
    fn interrupted_first_start_is_a_first_start_again() {
        let check = |left: &[(&str, &[u8])]| {
            let folder = scratch("cut");
            std::fs::create_dir_all(&folder).unwrap();
            for (name, content) in left {
                std::fs::write(folder.join(name), content).unwrap();
            }
            let mut store = Sqlite::open(&folder).unwrap_or_else(|error| panic!("{left:?}: {error}"));
            store.commit(&[put("a", 1)], Some(Spaces::both(10))).unwrap();
            drop(store);
            let mut store = Sqlite::open(&folder).unwrap();
            assert_eq!(names(&mut store).0, ["a@1"], "{left:?}");
            assert!(!folder.join("state.db.new").exists(), "{left:?}");
        };
        check(&[("state.db.new", b"half")]);
        check(&[("state.db.new", b""), ("state.db.new-wal", b"log")]);
        check(&[("state.db", b"")]);
        // the store was removed without its log
        check(&[("state.db-wal", b"of another store"), ("state.db-shm", b"x")]);
    }

    #[test]
    fn log_of_a_removed_store_is_not_read_into_a_new_one() {
        let folder = scratch("stale-log");
        let mut store = Sqlite::open(&folder).unwrap();
        store.commit(&[put("old", 5)], Some(Spaces::both(100))).unwrap();
        let log = std::fs::read(folder.join("state.db-wal")).unwrap();
        assert!(!log.is_empty());
        drop(store);
        std::fs::remove_file(folder.join("state.db")).unwrap();
        std::fs::write(folder.join("state.db-wal"), log).unwrap();
        let mut store = Sqlite::open(&folder).unwrap();
        assert_eq!(names(&mut store), (vec![], Spaces::default()));
    }

    #[test]
    fn second_hub_cannot_open_the_directory() {
        let folder = scratch("two-hubs");
        let first = Sqlite::open(&folder).unwrap();
        assert!(matches!(Sqlite::open(&folder), Err(OpenError::Locked(_))));
        drop(first);
        assert!(Sqlite::open(&folder).is_ok());
    }

    #[test]
    fn damaged_foreign_or_newer_store_is_refused_with_advice() {
        let folder = scratch("damaged");
        let path = folder.join("state.db");
        let refused = |expect: &str| {
            let error = Sqlite::open(&folder).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, "this is certainly no database file, it is only text of some length").unwrap();
        refused("is damaged: ");
        std::fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
        refused("it is not a store of this program");
        std::fs::remove_file(&path).unwrap();
        drop(Sqlite::open(&folder).unwrap());
        Connection::open(&path)
            .unwrap()
            .execute("UPDATE meta SET value = 99 WHERE key = 'schema'", [])
            .unwrap();
        refused(
            "schema version 99, this hub knows 4: use the newer hub that wrote it, or restore a backup that an older one made",
        );
        std::fs::remove_file(&path).unwrap();
        let mut store = Sqlite::open(&folder).unwrap();
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
        let with = |change: &str, expect: &str| {
            std::fs::remove_file(&path).unwrap();
            let mut store = Sqlite::open(&folder).unwrap();
            store.commit(&[put("a", 1), put("b", 1)], Some(Spaces::both(10))).unwrap();
            drop(store);
            Connection::open(&path).unwrap().execute(change, []).unwrap();
            refused(expect);
        };
        with("UPDATE objects SET name = 'a'", "is damaged: nodes /a: it is there twice");
        with("UPDATE objects SET name = x'ff'", "is damaged: ");
        with("UPDATE objects SET id = -id - 1", "its row has a negative number");
    }
}
