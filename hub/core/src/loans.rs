//! Old versions of objects that stay in memory only for their readers, and the accounting for them.
//!
//! An object is sent from its own text. That costs nothing while it is the latest version, which the index
//! keeps anyway. When a later version replaces it, readers of the old one keep it in memory. Always holds: of
//! all readers of an old version one is charged for all of it, and when that one ends another is charged; if
//! none of them has budget left, all are ended. So a fleet that reads one object over slow links is charged
//! for it once. Left to others: a reader's budget, and how it is ended.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::object::Object;

/// Bytes that a version takes besides its text.
const FACTS_BYTES: usize = 256;

/// The reader of objects. Its methods are called under a lock: they must not wait or drop a loan.
pub trait Borrower: Debug + Send + Sync {
    /// Takes bytes from its budget. `false`: there are not enough, and nothing was taken.
    fn take(&self, bytes: usize) -> bool;
    /// Gives taken bytes back.
    fn give_back(&self, bytes: usize);
    /// No reader can pay for the object that it reads: this reader must drop its loans soon.
    fn end(&self);
}

/// The readers of an object. An empty one is as large as a lock and a pointer.
#[derive(Debug, Default)]
pub(crate) struct Loans(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A later version has replaced it.
    is_old: bool,
    /// `None` without readers.
    book: Option<Box<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    places: Vec<Place>,
    /// The first free place.
    free: Option<usize>,
    readers: usize,
    payer: Option<usize>,
}

#[derive(Debug)]
enum Place {
    Reader(Arc<dyn Borrower>),
    /// The next free place.
    Free(Option<usize>),
}

impl Loans {
    fn lock(&self) -> MutexGuard<'_, State> {
        // each change is complete before any call that could panic
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that readers of the index no longer get this object.
    pub(crate) fn supersede(&self, bytes: usize) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_old, true) {
            return;
        }
        if let Some(book) = &mut state.book {
            book.find_payer(0, bytes);
        }
    }

    fn lend(&self, to: Arc<dyn Borrower>, bytes: usize) -> usize {
        let mut state = self.lock();
        let is_old = state.is_old;
        let book = state.book.get_or_insert_default();
        let place = book.add(to);
        if is_old && book.payer.is_none() {
            book.find_payer(place, bytes);
        }
        place
    }

    fn take_back(&self, place: usize, bytes: usize) {
        let mut state = self.lock();
        let is_old = state.is_old;
        let Some(book) = &mut state.book else { return };
        let reader = book.remove(place);
        if book.payer == Some(place) {
            book.payer = None;
            if let Some(reader) = &reader {
                reader.give_back(bytes);
            }
        }
        if book.readers == 0 {
            state.book = None;
        } else if is_old && book.payer.is_none() {
            book.find_payer(place, bytes);
        }
    }
}

impl Book {
    fn add(&mut self, reader: Arc<dyn Borrower>) -> usize {
        self.readers += 1;
        match self.free {
            Some(place) => {
                if let Place::Free(next) = std::mem::replace(&mut self.places[place], Place::Reader(reader)) {
                    self.free = next;
                }
                place
            }
            None => {
                self.places.push(Place::Reader(reader));
                self.places.len() - 1
            }
        }
    }

    fn remove(&mut self, place: usize) -> Option<Arc<dyn Borrower>> {
        let Place::Reader(reader) = std::mem::replace(self.places.get_mut(place)?, Place::Free(self.free))
        else {
            return None;
        };
        self.free = Some(place);
        self.readers -= 1;
        Some(reader)
    }

    /// Looks for a reader with enough budget, from this place on: readers end in about the order in which
    /// they began, so the next one is near.
    fn find_payer(&mut self, from: usize, bytes: usize) {
        let (before, after) = self.places.split_at(from.min(self.places.len()));
        let readers = || {
            let all = after.iter().enumerate().map(|(at, place)| (at + before.len(), place));
            all.chain(before.iter().enumerate()).filter_map(|(at, place)| match place {
                Place::Reader(reader) => Some((at, reader)),
                Place::Free(_) => None,
            })
        };
        self.payer = readers().find(|(_, reader)| reader.take(bytes)).map(|(at, _)| at);
        if self.payer.is_none() {
            readers().for_each(|(_, reader)| reader.end());
        }
    }
}

/// An object in the hands of a reader, until it is dropped.
#[derive(Debug)]
pub struct Loan {
    object: Arc<Object>,
    /// `None`: not charged, so it must be dropped soon, or charged in another way.
    place: Option<usize>,
}

impl Loan {
    pub fn new(object: Arc<Object>, to: Arc<dyn Borrower>) -> Loan {
        let place = object.loans.lend(to, bytes_of(&object));
        Loan { object, place: Some(place) }
    }

    /// A loan that is not charged, because the object is dropped at once, or charged in another way.
    pub fn free(object: Arc<Object>) -> Loan {
        Loan { object, place: None }
    }

    /// From now on this reader holds it.
    pub fn lend(&mut self, to: Arc<dyn Borrower>) {
        *self = Loan::new(Arc::clone(&self.object), to);
    }
}

impl Deref for Loan {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.object.loans.take_back(place, bytes_of(&self.object));
        }
    }
}

/// Notes that this version was replaced or deleted.
pub(crate) fn supersede(object: &Object) {
    object.loans.supersede(bytes_of(object));
}

/// The bytes charged for a version.
fn bytes_of(object: &Object) -> usize {
    FACTS_BYTES + object.json.len()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::kinds::CONFIG_MAP;

    #[derive(Debug, Default)]
    struct Reader {
        may: usize,
        pays: AtomicUsize,
        ended: AtomicBool,
    }

    impl Borrower for Reader {
        fn take(&self, bytes: usize) -> bool {
            let fits = |held: usize| Some(held + bytes).filter(|sum| *sum <= self.may);
            self.pays.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        }

        fn give_back(&self, bytes: usize) {
            self.pays.fetch_sub(bytes, Ordering::Relaxed);
        }

        fn end(&self) {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    fn object() -> Arc<Object> {
        let map = json!({"metadata": {"namespace": "a", "name": "1"}, "data": {"k": "x".repeat(1000)}});
        Arc::new(Object::new(&CONFIG_MAP, &map, 1).unwrap())
    }

    /// Readers that may hold one version each, or nothing.
    fn readers<const N: usize>(may: [bool; N]) -> [Arc<Reader>; N] {
        let most = bytes_of(&object());
        may.map(|may| Arc::new(Reader { may: if may { most } else { 0 }, ..Reader::default() }))
    }

    fn pay(readers: &[Arc<Reader>]) -> Vec<usize> {
        let most = bytes_of(&object());
        readers.iter().map(|reader| reader.pays.load(Ordering::Relaxed) / most).collect()
    }

    fn ended(readers: &[Arc<Reader>]) -> Vec<bool> {
        readers.iter().map(|reader| reader.ended.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn old_version_is_paid_for_by_one_reader_at_a_time() {
        let object = object();
        let readers = readers([false, true, true, false]);
        let mut loans: Vec<Option<Loan>> =
            readers.iter().map(|reader| Some(Loan::new(Arc::clone(&object), reader.clone()))).collect();
        assert_eq!(pay(&readers), [0, 0, 0, 0], "the latest version costs nothing");
        supersede(&object);
        supersede(&object);
        assert_eq!(pay(&readers), [0, 1, 0, 0]);
        loans[0] = None;
        assert_eq!(pay(&readers), [0, 1, 0, 0]);
        loans[1] = None;
        assert_eq!(pay(&readers), [0, 0, 1, 0]);
        assert_eq!(ended(&readers), [false; 4]);
        loans[2] = None;
        assert_eq!(pay(&readers), [0; 4]);
        assert_eq!(ended(&readers), [false, false, false, true], "nobody is left who can");
        loans[3] = None;
        assert!(object.loans.lock().book.is_none());
    }

    #[test]
    fn readers_of_what_nobody_pays_are_ended() {
        let object = object();
        let poor = readers([false, false]);
        let loans = poor.each_ref().map(|reader| Loan::new(Arc::clone(&object), reader.clone()));
        supersede(&object);
        assert_eq!(ended(&poor), [true, true]);
        // an object that is old already when it is lent is charged at once
        let late = readers([true, false]);
        let _rich = Loan::new(Arc::clone(&object), late[0].clone());
        let _guest = Loan::new(Arc::clone(&object), late[1].clone());
        assert_eq!((pay(&late), ended(&late)), (vec![1, 0], vec![false, false]));
        drop(loans);
        assert_eq!(pay(&late), [1, 0]);
    }

    #[test]
    fn places_of_readers_are_used_again() {
        let object = object();
        let readers = readers([true]);
        let kept = Loan::new(Arc::clone(&object), readers[0].clone());
        for _ in 0..100 {
            let [one, two] = [(); 2].map(|()| Loan::new(Arc::clone(&object), readers[0].clone()));
            drop((one, two));
        }
        assert_eq!(object.loans.lock().book.as_ref().unwrap().places.len(), 3);
        drop(kept);
        let mut free = Loan::free(object);
        free.lend(readers[0].clone());
        supersede(&free);
        assert_eq!(pay(&readers), [1]);
        drop(free);
        assert_eq!(pay(&readers), [0]);
    }
}
