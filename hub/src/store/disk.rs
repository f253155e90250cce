//! The store of a data directory, also on a disk that takes no writes: full, read-only, or failing.
//!
//! Always holds: a hub whose store can be read starts and serves it; on such a disk nothing is written, and nothing beside the store is
//! needed. The store is opened for writing by [`Store::probe`] as soon as the disk lets it, without a restart, if it is still what was
//! read. Left to others: when to probe (`writer`), the file itself (`sqlite`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;

use super::reserve::Reserve;
use super::sqlite::{self, Sqlite, failed};
use super::{Change, Marks, OpenError, Record, Sort, Spaces, Store, StoreError};

/// See the module.
#[derive(Debug)]
pub struct DiskStore {
    directory: PathBuf,
    lock: Arc<File>,
    pages: i64,
    state: State,
}

#[derive(Debug)]
enum State {
    Open {
        store: Box<Sqlite>,
        /// The reserve had to be given up to open it.
        short: Option<StoreError>,
    },
    /// The disk takes no writes.
    Waiting {
        why: StoreError,
        /// Until everything was read once.
        reader: Option<Connection>,
        read: Content,
    },
}

/// What tells two states of a store apart: objects, the sum of their revisions, marks.
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
    /// Takes the directory's lock and opens the store in it; for reading, if the disk takes no writes.
    ///
    /// # Errors
    /// Another process has the directory, the store is damaged or cannot be read, or there is none and the disk takes no writes.
    pub fn open(directory: &Path) -> Result<DiskStore, OpenError> {
        let lock = Arc::new(sqlite::lock(directory)?);
        DiskStore::open_locked(lock, directory, sqlite::limit_pages())
    }

    fn open_locked(lock: Arc<File>, directory: &Path, pages: i64) -> Result<DiskStore, OpenError> {
        let open = || Sqlite::open_locked(lock.clone(), directory, pages);
        let (mut opened, mut short) = (open(), None);
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
        Ok(DiskStore { directory: directory.to_owned(), lock, pages, state })
    }

    /// Opens it for writing, if it is what was read.
    fn open_again(&mut self, expect: Content) -> Result<(), StoreError> {
        let path = self.directory.join("state.db");
        if !is_there(&path) {
            // opening would make a new one in its place
            let message = format!("the store is not there: {} is missing or empty", path.display());
            return Err(StoreError::certain(Sort::Io, message));
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

/// The state of a store that could only be read.
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

/// Whether there is a store to read; the file of one that was never made is missing or empty.
fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Why a store could not be opened again. Only what the file itself shows is damage, which does not pass: a file that is locked, or
/// cannot be opened for want of memory or file descriptors, is tried again.
fn not_opened(error: OpenError) -> StoreError {
    match error {
        OpenError::Engine(error) => error,
        OpenError::Damaged(..) | OpenError::TooNew(..) => {
            StoreError::certain(Sort::Damaged, error.to_string())
        }
        OpenError::Locked(_) => StoreError::certain(Sort::Busy, error.to_string()),
        OpenError::Directory(..) => {
            error.disk_fault().unwrap_or_else(|| StoreError::certain(Sort::Other, error.to_string()))
        }
    }
}

/// What a fault means while the store is not open for writing: nothing of this process depends on a flush, and nothing can be deleted.
fn while_waiting(mut error: StoreError) -> StoreError {
    error.sort = match error.sort {
        Sort::Flush => Sort::Io,
        Sort::Full => Sort::FullAtStart,
        other => other,
    };
    error.uncertain = false;
    error
}

impl Store for DiskStore {
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Spaces<Marks>, StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.load(each),
            State::Waiting { reader, read, why } => {
                let Some(connection) = reader.take() else { return Err(why.clone()) };
                let path = self.directory.join("state.db");
                let mut counted = |record: Record| {
                    read.count(&record);
                    each(record);
                };
                let marks = sqlite::load_all(&connection, &mut counted);
                read.marks = marks.map_err(|error| failed("read", &path, &error))?;
                Ok(read.marks)
            }
        }
    }

    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.commit(changes, reserved),
            State::Waiting { why, .. } => Err(why.clone()),
        }
    }

    fn commit_from_reserve(
        &mut self,
        changes: &[Change<'_>],
        reserved: Option<Spaces<u64>>,
    ) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.commit_from_reserve(changes, reserved),
            State::Waiting { why, .. } => Err(why.clone()),
        }
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.tidy(),
            State::Waiting { .. } => Ok(()),
        }
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        if let State::Waiting { read, .. } = self.state {
            self.open_again(read).map_err(while_waiting)?;
        }
        match &mut self.state {
            State::Open { store, .. } => store.probe(),
            State::Waiting { why, .. } => Err(why.clone()),
        }
    }

    fn trial(&mut self) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.trial(),
            State::Waiting { why, .. } => Err(why.clone()),
        }
    }

    fn close(&mut self, revisions: Spaces<u64>) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open { store, .. } => store.close(revisions),
            // nothing was handed out that it does not know
            State::Waiting { .. } => Ok(()),
        }
    }

    fn unwritable(&self) -> Option<&StoreError> {
        match &self.state {
            State::Open { short, .. } => short.as_ref(),
            State::Waiting { why, .. } => Some(why),
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

    /// A store that was read while its disk took no writes.
    fn waiting(folder: &Scratch) -> DiskStore {
        let mut store = Sqlite::open(folder.path()).unwrap();
        store.commit(&[PUT], Some(Spaces::both(100))).unwrap();
        drop(store);
        let lock = Arc::new(sqlite::lock(folder.path()).unwrap());
        let why = StoreError::certain(Sort::Full, "no room");
        let state = wait(folder.path(), OpenError::Engine(why)).unwrap();
        let directory = folder.path().to_owned();
        let mut store = DiskStore { directory, lock, pages: 8000, state };
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
        // SQLite cannot open a folder
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
        other.execute("UPDATE objects SET revision = 8", []).unwrap();
        drop(other);
        let refused = store.probe().unwrap_err();
        assert!(refused.message.contains("was changed while the disk took no writes"), "{refused}");
        assert!(store.commit(&[PUT], None).is_err());
    }

    #[test]
    fn first_start_without_room_is_an_error() {
        let folder = Scratch::new("hub-disk-first").unwrap();
        let why = StoreError::certain(Sort::Full, "no room");
        assert!(wait(folder.path(), OpenError::Engine(why)).is_err());
        // a fault that is not the disk's stays one
        drop(waiting(&folder));
        let damaged = OpenError::Damaged(folder.path().to_owned(), "so".to_owned());
        assert!(matches!(wait(folder.path(), damaged), Err(OpenError::Damaged(..))));
    }
}
