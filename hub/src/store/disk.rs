//! The store of a data directory, also on a disk that cannot be written: full, read-only, or failing.
//!
//! Always holds: a hub starts and serves any store that it can read; on such a disk it writes nothing, and
//! needs no other file beside the store. [`Store::probe`] opens the store for writing as soon as the disk
//! permits, without a restart, if it is still the one that was read. The verdict of a connection that met an
//! I/O error is not trusted: it is closed, and the store counts as damaged only when several fresh
//! connections in turn say so. A missing or empty store, or one older than this directory's marker, never
//! counts as a first start. Left to others: the times of probes (`writer`), the file itself (`sqlite`), the
//! content of the marker (`marker`).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::own;
use kedge_hub_core::identity::denied;
use kedge_hub_core::kinds::CONFIG_MAP;
use rusqlite::Connection;
use serde_json::Value;

use super::marker::{self, Known, Marker};
use super::reserve::Reserve;
use super::sqlite::{self, Sqlite};
use super::{Change, Marks, OpenError, Record, Sort, Spaces, Store, StoreError};

/// The store of a data directory; see the module.
#[derive(Debug)]
pub struct DiskStore {
    directory: PathBuf,
    lock: Arc<File>,
    pages: i64,
    state: State,
    marker: Arc<Marker>,
}

#[derive(Debug)]
enum State {
    Open {
        store: Box<Sqlite>,
        /// The error because of which the reserve had to be given up to open it.
        short: Option<StoreError>,
    },
    /// The disk cannot be written.
    Waiting {
        why: StoreError,
        /// `None` after everything was read once.
        reader: Option<Connection>,
        read: Content,
    },
    /// Its connection met an error and was closed.
    Forsaken {
        why: StoreError,
        /// Number of fresh connections in a row that found it damaged.
        damaged: u32,
        /// The marks that the store must have when it is opened again.
        id: Option<i64>,
        reserved: Spaces<u64>,
    },
}
/// Number of fresh connections in a row that must find damage, which takes about a minute with the pauses
/// between probes: on a disk that recovers a little later, reads that fail now and then look like damage to
/// SQLite.
const LOOKS: u32 = 6;

/// Facts by which two states of a store are compared: number of objects, sum of their revisions, marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Content {
    objects: u64,
    revisions: u64,
    marks: Spaces<Marks>,
}

impl Content {
    fn count(&mut self, record: &Record) {
        self.objects += 1;
        self.revisions = self.revisions.wrapping_add(record.revision);
    }
}

impl DiskStore {
    /// Takes the directory's lock and opens the store in it; only for reading, if the disk cannot be written.
    ///
    /// # Errors
    /// Another process uses the directory, the store is damaged or cannot be read, or it does not exist and
    /// the disk cannot be written.
    pub fn open(directory: &Path) -> Result<DiskStore, OpenError> {
        let lock = Arc::new(sqlite::lock(directory)?);
        DiskStore::open_locked(lock, directory, sqlite::limit_pages())
    }

    fn open_locked(lock: Arc<File>, directory: &Path, pages: i64) -> Result<DiskStore, OpenError> {
        let marker = Marker::open(directory);
        let marker = Arc::new(marker.map_err(|error| OpenError::File(directory.join(marker::NAME), error))?);
        check_not_lost(directory, &marker)?;
        let open = || Sqlite::open_locked(lock.clone(), directory, pages);
        let (mut opened, mut short) = (open(), None);
        if let Err(error @ OpenError::Damaged(..)) = &opened {
            log::error!("{error}; trying to open it once more");
            opened = open();
        }
        if let Err(error) = &opened
            && let Some(fault) = error.disk_fault().filter(|fault| fault.sort == Sort::Full)
            && Reserve::of(directory).give_up().unwrap_or(false)
        {
            log::warn!("{fault}; gave up the reserve to open the store");
            (opened, short) = (open(), Some(fault));
        }
        let state = match opened {
            Ok(store) => {
                let short = short.filter(|_| !store.has_reserve());
                State::Open { store: Box::new(store), short }
            }
            Err(error) => wait(directory, error)?,
        };
        Ok(DiskStore { directory: directory.to_owned(), lock, pages, state, marker })
    }

    /// The store, if it is open for writing.
    fn writable(&mut self) -> Result<&mut Sqlite, StoreError> {
        match &mut self.state {
            State::Open { store, .. } => Ok(store),
            State::Waiting { why, .. } | State::Forsaken { why, .. } => Err(why.clone()),
        }
    }

    /// The directory's marker of its store.
    pub fn marker(&self) -> Arc<Marker> {
        Arc::clone(&self.marker)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("state.db")
    }

    /// Opens the store for writing, if it is still the one that was read.
    fn open_again(&mut self, expect: Content) -> Result<(), StoreError> {
        let path = self.path();
        if !is_there(&path) {
            // opening would create a new store in its place
            return Err(not_there(&path));
        }
        let opened = Sqlite::open_locked(self.lock.clone(), &self.directory, self.pages);
        let mut store = opened.map_err(not_opened)?;
        let mut found = Content::default();
        found.marks = store.load(&mut |record| found.count(&record))?;
        if found != expect {
            let message = format!(
                "the store in {} was changed while the disk took no writes: start the hub again",
                self.directory.display()
            );
            return Err(StoreError::certain(Sort::Damaged, message));
        }
        self.state = State::Open { store: Box::new(store), short: None };
        Ok(())
    }
}

/// Fails if the store is missing although the directory had one: that must not be taken for a first start.
fn check_not_lost(directory: &Path, marker: &Marker) -> Result<(), OpenError> {
    let path = directory.join("state.db");
    let what = match std::fs::metadata(&path) {
        Ok(file) if file.len() > 0 => return Ok(()),
        Ok(file) if !file.is_file() => return Ok(()),
        Ok(_) => "is empty (0 bytes), although a hub had stored objects in it",
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            "is missing, although a hub had stored objects in it"
        }
        // opening it will report the error
        Err(_) => return Ok(()),
    };
    if !Marker::had_a_store(directory) {
        return Ok(());
    }
    let denied = marker.known().map_or(0, |known| known.denials());
    Err(OpenError::Lost { path, what: what.to_owned(), denied })
}

/// The facts about a store that are collected while it is loaded.
#[derive(Debug, Default)]
struct Found {
    id: Option<i64>,
    marks: Spaces<Marks>,
    list: Option<(u64, Value)>,
}

impl Found {
    fn look(&mut self, record: &Record) {
        let is_list =
            record.resource == CONFIG_MAP.plural && denied::is_deny_list(&record.namespace, &record.name);
        if is_list {
            self.list = Some((record.revision, own::read(&record.json).unwrap_or_default()));
        }
    }

    /// The reason why it is not the store that the marker describes.
    fn fault(&self, known: &Known) -> Option<String> {
        let older = |what: &str, found: u64, known: u64| {
            (found < known).then(|| {
                format!("is older than the one that was here: {what} {found}, and {known} in the directory's marker")
            })
        };
        match self.id {
            Some(id) if id != known.id => Some("is another one than the hub kept here".to_owned()),
            None => Some(
                "is older than the one that was here: a hub of before its last upgrade wrote it".to_owned(),
            ),
            Some(_) => {
                older("it reserved resourceVersions up to", self.marks.common.reserved, known.reserved.common)
                    .or_else(|| {
                        older(
                            "it reserved those of Leases up to",
                            self.marks.leases.reserved,
                            known.reserved.leases,
                        )
                    })
                    .or_else(|| {
                        let found = self.list.as_ref().map_or(0, |(revision, _)| *revision);
                        older("its deny list has the version", found, known.list_revision)
                    })
            }
        }
    }
}

/// The state for a store that can only be read.
fn wait(directory: &Path, error: OpenError) -> Result<State, OpenError> {
    let Some(why) = error.disk_fault().map(while_waiting) else { return Err(error) };
    let path = directory.join("state.db");
    if !is_there(&path) {
        // a first start has nothing to serve
        return Err(error);
    }
    let reader = sqlite::open_reading(&path)?;
    log::error!("{why}; starting without writes");
    Ok(State::Waiting { why, reader: Some(reader), read: Content::default() })
}

/// True if there is a store to read; if none was ever made, its file is missing or empty.
fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

fn not_there(path: &Path) -> StoreError {
    StoreError::certain(Sort::Io, format!("the store is not there: {} is missing or empty", path.display()))
}

/// The error for a store that could not be opened again. Only faults in the file itself count as damage,
/// which is permanent: a file that is locked, or cannot be opened for lack of memory or file descriptors, is
/// tried again.
fn not_opened(error: OpenError) -> StoreError {
    match error {
        OpenError::Engine(error) => error,
        OpenError::Damaged(..) | OpenError::TooNew(..) | OpenError::Lost { .. } | OpenError::NoBackup(..) => {
            StoreError::certain(Sort::Damaged, error.to_string())
        }
        OpenError::File(..) => StoreError::certain(Sort::Other, error.to_string()),
        OpenError::Locked(_) => StoreError::certain(Sort::Busy, error.to_string()),
        OpenError::Directory(..) => {
            error.disk_fault().unwrap_or_else(|| StoreError::certain(Sort::Other, error.to_string()))
        }
    }
}

/// Adapts a fault for a store that is not open for writing: nothing in this process depends on a flush, and
/// nothing can be deleted.
fn while_waiting(mut error: StoreError) -> StoreError {
    error.sort = match error.sort {
        Sort::Flush => Sort::Io,
        Sort::Full => Sort::FullAtStart,
        other => other,
    };
    error.uncertain = false;
    error
}

impl DiskStore {
    /// Closes a connection that met an I/O error; only a fresh connection may report that the store is
    /// damaged.
    fn judge(&mut self, outcome: Result<(), StoreError>) -> Result<(), StoreError> {
        let Err(error) = outcome else { return Ok(()) };
        let State::Open { store, .. } = &self.state else { return Err(error) };
        if !matches!(error.sort, Sort::Io | Sort::Damaged) {
            return Err(error);
        }
        let id = store.id().or_else(|| self.marker.known().map(|known| known.id));
        let reserved = self.marker.known().map(|known| known.reserved).unwrap_or_default();
        let why = StoreError { sort: Sort::Io, ..error };
        let forsaken = State::Forsaken { why: why.clone(), damaged: 0, id, reserved };
        if let State::Open { store, .. } = std::mem::replace(&mut self.state, forsaken) {
            store.forsake();
        }
        Err(why)
    }

    /// Opens a store again whose connection was closed.
    fn look_again(&mut self) -> Result<(), StoreError> {
        let path = self.path();
        if !is_there(&path) {
            // opening would create a new store in its place
            return Err(not_there(&path));
        }
        // a first look that writes nothing: if this is another file, its log must not be lost by opening it
        let opened = sqlite::open_reading(&path)
            .and_then(|_| Sqlite::open_locked(self.lock.clone(), &self.directory, self.pages));
        let State::Forsaken { damaged, id, reserved, .. } = &mut self.state else { return Ok(()) };
        let mut store = match opened.map_err(not_opened) {
            Ok(store) => store,
            Err(error) if error.sort != Sort::Damaged => {
                *damaged = 0;
                return Err(error);
            }
            Err(error) => {
                *damaged += 1;
                let is_verdict = *damaged >= LOOKS;
                let sort = if is_verdict { Sort::Damaged } else { Sort::Io };
                return Err(StoreError { sort, ..error });
            }
        };
        *damaged = 0;
        let marks = store.load(&mut |_| {})?;
        let is_same = (id.is_none() || store.id() == *id)
            && marks.common.reserved >= reserved.common
            && marks.leases.reserved >= reserved.leases;
        if !is_same {
            let message = format!(
                "the store in {} was changed while its disk failed: start the hub again",
                self.directory.display()
            );
            return Err(StoreError::certain(Sort::Damaged, message));
        }
        self.state = State::Open { store: Box::new(store), short: None };
        Ok(())
    }

    /// Updates the marker after a durable commit.
    fn mark(&self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) {
        let list = changes.iter().rev().find_map(|change| match *change {
            Change::Put { resource, namespace, name, revision, json }
                if is_list(resource, namespace, name) =>
            {
                Some((revision, own::read(json).unwrap_or_default()))
            }
            Change::Delete { resource, namespace, name } if is_list(resource, namespace, name) => {
                Some((0, Value::Null))
            }
            _ => None,
        });
        if list.is_none() && reserved.is_none() {
            return;
        }
        if let (None, State::Open { store, .. }) = (self.marker.known(), &self.state)
            && let Some(id) = store.id()
        {
            // the store had an older format when it was read, and its disk could not be written
            self.marker.adopt(Known { id, ..Known::default() });
        }
        self.marker.change(|known| {
            if let Some(reserved) = reserved {
                known.reserved = reserved;
            }
            if let Some((revision, list)) = &list {
                known.note_list(*revision, list);
            }
        });
    }

    /// Checks that the loaded store is the one that the marker describes, and updates the marker.
    fn compare(&self, found: Found) -> Result<(), StoreError> {
        let known = self.marker.known();
        if let Some(known) = &known
            && let Some(what) = found.fault(known)
        {
            let lost = OpenError::Lost { path: self.path(), what, denied: known.denials() };
            return Err(StoreError::certain(Sort::Damaged, lost.to_string()));
        }
        // a store of an older format that can only be read has no id yet
        let Some(id) = found.id else { return Ok(()) };
        let mut known = known.unwrap_or_else(|| Known { id, ..Known::default() });
        known.reserved = Spaces { common: found.marks.common.reserved, leases: found.marks.leases.reserved };
        let (revision, list) = found.list.unwrap_or_default();
        known.meet_list(revision, &list);
        self.marker.adopt(known);
        Ok(())
    }
}

fn is_list(resource: &str, namespace: &str, name: &str) -> bool {
    resource == CONFIG_MAP.plural && denied::is_deny_list(namespace, name)
}

impl Store for DiskStore {
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Spaces<Marks>, StoreError> {
        let (path, mut found) = (self.path(), Found::default());
        found.marks = match &mut self.state {
            State::Open { store, .. } => {
                found.id = store.id();
                store.load(&mut |record| {
                    found.look(&record);
                    each(record);
                })?
            }
            State::Waiting { reader, read, why } => {
                let Some(connection) = reader.take() else { return Err(why.clone()) };
                let failed = |error| sqlite::Unreadable::Engine(error).failed(&path);
                found.id = sqlite::mark(&connection, sqlite::ID).map_err(failed)?;
                let mut counted = |record: Record| {
                    read.count(&record);
                    found.look(&record);
                    each(record);
                };
                let marks = sqlite::load_all(&connection, &path, &mut counted);
                read.marks = marks.map_err(|error| error.failed(&path))?;
                read.marks
            }
            State::Forsaken { why, .. } => return Err(why.clone()),
        };
        let marks = found.marks;
        self.compare(found)?;
        Ok(marks)
    }

    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) -> Result<(), StoreError> {
        let outcome = self.writable()?.commit(changes, reserved);
        self.judge(outcome)?;
        self.mark(changes, reserved);
        Ok(())
    }

    fn commit_from_reserve(
        &mut self,
        changes: &[Change<'_>],
        reserved: Option<Spaces<u64>>,
    ) -> Result<(), StoreError> {
        let outcome = self.writable()?.commit_from_reserve(changes, reserved);
        self.judge(outcome)?;
        self.mark(changes, reserved);
        Ok(())
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        let State::Open { store, .. } = &mut self.state else { return Ok(()) };
        let outcome = store.tidy();
        self.judge(outcome)
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        match &self.state {
            State::Waiting { read, .. } => self.open_again(*read).map_err(while_waiting)?,
            State::Forsaken { .. } => self.look_again()?,
            State::Open { .. } => {}
        }
        let outcome = self.writable()?.probe();
        self.judge(outcome)
    }

    fn trial(&mut self) -> Result<(), StoreError> {
        let outcome = self.writable()?.trial();
        self.judge(outcome)
    }

    fn close(&mut self, revisions: Spaces<u64>) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.close(revisions),
            // nothing was handed out that the store does not know
            State::Waiting { .. } => Ok(()),
            State::Forsaken { why, .. } => Err(why.clone()),
        }
    }

    fn unwritable(&self) -> Option<&StoreError> {
        match &self.state {
            State::Open { short, .. } => short.as_ref(),
            State::Waiting { why, .. } | State::Forsaken { why, .. } => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use kedge_hub_core::state::Spaces;
    use kedge_rig::Scratch;

    use super::*;

    const PUT: Change<'_> =
        Change::Put { resource: "nodes", namespace: "", name: "a", revision: 7, json: b"{}" };

    /// A store that was opened while its disk could not be written.
    fn waiting(folder: &Scratch) -> DiskStore {
        let mut store = Sqlite::open(folder.path()).unwrap();
        store.commit(&[PUT], Some(Spaces::both(100))).unwrap();
        drop(store);
        let lock = Arc::new(sqlite::lock(folder.path()).unwrap());
        let why = StoreError::certain(Sort::Full, "no room");
        let state = wait(folder.path(), OpenError::Engine(why)).unwrap();
        let directory = folder.path().to_owned();
        let marker = Arc::new(Marker::open(folder.path()).unwrap());
        let mut store = DiskStore { directory, lock, pages: 8000, state, marker };
        let mut names = Vec::new();
        store.load(&mut |record| names.push(record.name)).unwrap();
        assert_eq!(names, ["a"]);
        store
    }

    #[test]
    fn store_that_was_read_is_opened_by_a_probe() {
        let folder = Scratch::new("hub-disk-probe").unwrap();
        let mut store = waiting(&folder);
        assert_eq!(store.unwritable().map(|why| why.sort), Some(Sort::FullAtStart));
        assert_eq!(store.commit(&[PUT], None).unwrap_err().sort, Sort::FullAtStart);
        assert_eq!(store.commit_from_reserve(&[PUT], None).unwrap_err().sort, Sort::FullAtStart);
        store.probe().unwrap();
        store.commit(&[PUT], None).unwrap();
        assert!(store.unwritable().is_none());
    }

    #[test]
    fn store_missing_at_a_probe_is_waited_for() {
        let folder = Scratch::new("hub-disk-missing").unwrap();
        let mut store = waiting(&folder);
        let [path, aside] = ["state.db", "aside"].map(|name| folder.path().join(name));
        std::fs::rename(&path, &aside).unwrap();
        let check = |store: &mut DiskStore| {
            let refused = store.probe().unwrap_err();
            assert_eq!(refused.sort, Sort::Io, "{refused}");
            assert!(refused.message.contains("the store is not there"), "{refused}");
        };
        check(&mut store);
        assert!(!path.exists(), "a new store was made in its place");
        std::fs::write(&path, "").unwrap();
        check(&mut store);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "a new store was made in its place");
        std::fs::rename(&aside, &path).unwrap();
        store.probe().unwrap();
        store.commit(&[PUT], None).unwrap();
    }

    #[test]
    fn passing_fault_at_a_probe_is_no_damage() {
        let folder = Scratch::new("hub-disk-passing").unwrap();
        let mut store = waiting(&folder);
        // SQLite cannot open a directory
        let [path, aside] = ["state.db", "aside"].map(|name| folder.path().join(name));
        std::fs::rename(&path, &aside).unwrap();
        std::fs::create_dir_all(path.join("x")).unwrap();
        let refused = store.probe().unwrap_err();
        assert_eq!(refused.sort, Sort::Other, "{refused}");
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        store.probe().unwrap();
        store.commit(&[PUT], None).unwrap();

        let sort_of = |error| not_opened(error).sort;
        let directory = || folder.path().to_owned();
        for sort in [Sort::Busy, Sort::Other, Sort::Io, Sort::Full, Sort::Damaged] {
            assert_eq!(sort_of(OpenError::Engine(StoreError::certain(sort, "so"))), sort);
        }
        let too_many = std::io::Error::from_raw_os_error(24);
        assert_eq!(sort_of(OpenError::Directory(directory(), too_many)), Sort::Other);
        assert_eq!(sort_of(OpenError::Damaged(directory(), "so".to_owned())), Sort::Damaged);
        assert_eq!(sort_of(OpenError::TooNew(directory(), 9)), Sort::Damaged);
    }

    #[test]
    fn store_changed_meanwhile_is_not_opened() {
        let folder = Scratch::new("hub-disk-changed").unwrap();
        let mut store = waiting(&folder);
        let other = Connection::open(folder.path().join("state.db")).unwrap();
        other.execute("UPDATE meta SET value = 200 WHERE key = 'reserved'", []).unwrap();
        drop(other);
        let refused = store.probe().unwrap_err();
        assert!(refused.message.contains("was changed while the disk took no writes"), "{refused}");
        assert!(store.commit(&[PUT], None).is_err());
    }

    fn fault(sort: Sort) -> StoreError {
        StoreError::certain(sort, "injected")
    }

    /// For each sort of error, the store continues with its content when the disk recovers.
    #[test]
    fn store_goes_on_when_its_disk_comes_back() {
        for sort in Sort::ALL {
            let folder = Scratch::new("hub-disk-back").unwrap();
            let mut store = DiskStore::open(folder.path()).unwrap();
            store.load(&mut |_| {}).unwrap();
            store.commit(&[PUT], Some(Spaces::both(100))).unwrap();
            let judged = store.judge(Err(fault(sort))).unwrap_err().sort;
            let is_forsaken = matches!(sort, Sort::Io | Sort::Damaged);
            assert_eq!(judged, if is_forsaken { Sort::Io } else { sort }, "{sort:?}");
            assert_eq!(store.commit(&[PUT], None).is_err(), is_forsaken, "{sort:?}");
            store.probe().unwrap();
            store.commit(&[PUT], None).unwrap();
            let mut names = Vec::new();
            store.load(&mut |record| names.push(record.name)).unwrap();
            assert_eq!(names, ["a"], "{sort:?}");
        }
    }

    #[test]
    fn damage_is_what_fresh_connections_see_in_turn() {
        let folder = Scratch::new("hub-disk-damage").unwrap();
        let mut store = DiskStore::open(folder.path()).unwrap();
        store.load(&mut |_| {}).unwrap();
        store.commit(&[PUT], Some(Spaces::both(100))).unwrap();
        assert_eq!(store.judge(Err(fault(Sort::Damaged))).unwrap_err().sort, Sort::Io);
        let [path, aside] = ["state.db", "aside"].map(|name| folder.path().join(name));
        let spoil = || {
            std::fs::rename(&path, &aside).unwrap();
            std::fs::write(&path, [7; 9000]).unwrap();
        };
        spoil();
        assert_eq!(store.probe().unwrap_err().sort, Sort::Io, "the first look");
        std::fs::rename(&aside, &path).unwrap();
        store.probe().unwrap();
        store.commit(&[PUT], None).unwrap();
        store.judge(Err(fault(Sort::Io))).unwrap_err();
        spoil();
        for look in 1..LOOKS {
            assert_eq!(store.probe().unwrap_err().sort, Sort::Io, "{look}");
        }
        assert_eq!(store.probe().unwrap_err().sort, Sort::Damaged, "the last look in turn");
    }

    const LIST: &[u8] =
        br#"{"metadata":{"name":"kedge-denied","namespace":"kube-system"},"data":{"node.edge-1":""}}"#;

    fn list(revision: u64) -> Change<'static> {
        let (namespace, name) = ("kube-system", "kedge-denied");
        Change::Put { resource: "configmaps", namespace, name, revision, json: LIST }
    }

    /// A directory whose hub has run, with a copy of its store from before its last start.
    fn used(folder: &Path) {
        let start = |reserved| {
            let mut store = DiskStore::open(folder).unwrap();
            store.load(&mut |_| {}).unwrap();
            store.commit(&[PUT], Some(Spaces::both(reserved))).unwrap();
            store
        };
        start(100).close(Spaces::both(7)).unwrap();
        std::fs::copy(folder.join("state.db"), folder.join("copy")).unwrap();
        start(200).commit(&[list(9)], None).unwrap();
    }

    fn refusal(folder: &Path) -> String {
        match DiskStore::open(folder) {
            Err(error) => error.to_string(),
            Ok(mut store) => {
                store.load(&mut |_| {}).map_or_else(|error| error.to_string(), |_| String::new())
            }
        }
    }

    #[test]
    fn lost_or_older_store_is_no_first_start() {
        type Spoil = fn(&Path);
        let cases: [(&str, Spoil); 4] = [
            ("is missing", |folder| std::fs::remove_file(folder.join("state.db")).unwrap()),
            ("is empty (0 bytes)", |folder| std::fs::write(folder.join("state.db"), "").unwrap()),
            ("is older than the one that was here", |folder| {
                std::fs::rename(folder.join("copy"), folder.join("state.db")).unwrap();
            }),
            ("is another one", |folder| {
                let other = Connection::open(folder.join("state.db")).unwrap();
                other.execute("UPDATE meta SET value = value + 1 WHERE key = 'id'", []).unwrap();
            }),
        ];
        for (expect, spoil) in cases {
            let folder = Scratch::new("hub-disk-lost").unwrap();
            used(folder.path());
            assert_eq!(refusal(folder.path()), "", "it starts as it is");
            for beside in ["state.db-wal", "state.db-shm"] {
                drop(std::fs::remove_file(folder.join(beside)));
            }
            spoil(folder.path());
            let refused = refusal(folder.path());
            for part in [expect, "restore FILE", "restore --empty", "1 revoked credentials"] {
                assert!(refused.contains(part), "{part}: {refused}");
            }
        }
    }

    #[test]
    fn lost_deny_list_makes_a_store_older() {
        let folder = Scratch::new("hub-disk-list").unwrap();
        used(folder.path());
        let store = Connection::open(folder.join("state.db")).unwrap();
        store.execute("DELETE FROM objects WHERE resource = 'configmaps'", []).unwrap();
        drop(store);
        assert!(refusal(folder.path()).contains("its deny list has the version 0, and 9"));
    }

    #[test]
    fn older_hubs_directory_without_store_is_not_a_first_start() {
        for name in ["pki/ca.pem", "ca.crt"] {
            let folder = Scratch::new("hub-disk-traces").unwrap();
            std::fs::create_dir(folder.join("pki")).unwrap();
            std::fs::write(folder.join(name), "x").unwrap();
            assert!(refusal(folder.path()).contains("is missing"), "{name}");
        }
        let folder = Scratch::new("hub-disk-first-start").unwrap();
        assert_eq!(refusal(folder.path()), "");
    }

    #[test]
    fn marker_that_is_damaged_or_gone_is_made_anew() {
        let folder = Scratch::new("hub-disk-marker").unwrap();
        used(folder.path());
        let path = folder.join(marker::NAME);
        let good = std::fs::read_to_string(&path).unwrap();
        let flipped = good.replacen("200", "201", 1);
        for bad in [Some(flipped.as_str()), Some(""), Some("x"), None] {
            match bad {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let mut store = DiskStore::open(folder.path()).unwrap();
            store.load(&mut |_| {}).unwrap();
            store.commit(&[], Some(Spaces::both(200))).unwrap();
            drop(store);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), good, "{bad:?}");
        }
    }

    #[test]
    fn denial_that_ended_unexplained_stays_in_the_marker() {
        let folder = Scratch::new("hub-disk-ended").unwrap();
        used(folder.path());
        let denied = |store: &DiskStore| store.marker().known().unwrap().denials();
        let mut store = DiskStore::open(folder.path()).unwrap();
        store.load(&mut |_| {}).unwrap();
        let gone = Change::Delete { resource: "configmaps", namespace: "kube-system", name: "kedge-denied" };
        store.commit(&[gone], None).unwrap();
        drop(store);
        let mut store = DiskStore::open(folder.path()).unwrap();
        store.load(&mut |_| {}).unwrap();
        assert_eq!(denied(&store), 1, "the next start knows of it");
        store.marker().settle(&[denied::Denial::Node("edge-1".to_owned())]);
        assert_eq!(denied(&store), 0);
        store.commit(&[list(10)], None).unwrap();
        store.marker().settle(&[denied::Denial::Node("edge-1".to_owned())]);
        assert_eq!(denied(&store), 1, "it was revoked again");
    }

    #[test]
    fn first_start_without_room_is_an_error() {
        let folder = Scratch::new("hub-disk-first").unwrap();
        let why = StoreError::certain(Sort::Full, "no room");
        assert!(wait(folder.path(), OpenError::Engine(why)).is_err());
        // a fault that is not the disk's is still an error
        drop(waiting(&folder));
        let damaged = OpenError::Damaged(folder.path().to_owned(), "so".to_owned());
        assert!(matches!(wait(folder.path(), damaged), Err(OpenError::Damaged(..))));
    }
}
