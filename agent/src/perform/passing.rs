//! An answer that wakes nobody: the main loop takes it at its next turn, which another event is about to
//! begin.
//!
//! Always holds: an answer is handed over once, in the one way or the other. Leaves to others: how long the
//! main loop waits for the other event.

use crate::locks::locked;
use kedge_core::Event;
use std::sync::Mutex;

/// The place of one answer.
#[derive(Default)]
pub(crate) struct InPassing(Mutex<Place>);

#[derive(Default)]
enum Place {
    /// Nobody looks here: an answer is sent.
    #[default]
    Closed,
    /// The answer is put here.
    Open,
    Filled(Box<Event>),
}

impl InPassing {
    /// From now on an answer waits here; after one that was not taken yet, it is sent.
    pub(crate) fn open(&self) {
        let mut place = locked(&self.0);
        if matches!(*place, Place::Closed) {
            *place = Place::Open;
        }
    }

    /// Leaves an answer here. Returns it if it has to be sent.
    pub(super) fn leave(&self, answer: Event) -> Option<Event> {
        let mut place = locked(&self.0);
        match *place {
            Place::Open => *place = Place::Filled(Box::new(answer)),
            Place::Closed | Place::Filled(_) => return Some(answer),
        }
        None
    }

    /// Takes the answer, if it is here.
    pub(crate) fn take(&self) -> Option<Event> {
        let mut place = locked(&self.0);
        if matches!(*place, Place::Filled(_)) { Self::close(&mut place) } else { None }
    }

    /// Takes the answer, if it is here; a later one is sent.
    pub(crate) fn end(&self) -> Option<Event> {
        Self::close(&mut locked(&self.0))
    }

    fn close(place: &mut Place) -> Option<Event> {
        match std::mem::take(place) {
            Place::Filled(answer) => Some(*answer),
            Place::Open | Place::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_handed_over_once() {
        let place = InPassing::default();
        assert!(place.leave(Event::Tick).is_some(), "nobody looks for it");
        place.open();
        assert!(place.take().is_none());
        assert!(place.leave(Event::Tick).is_none());
        place.open();
        assert!(place.leave(Event::Tick).is_some(), "there is room for one");
        assert!(place.take().is_some() && place.take().is_none());
        assert!(place.leave(Event::Tick).is_some(), "it was taken");
    }

    #[test]
    fn answer_that_comes_too_late_is_sent() {
        let place = InPassing::default();
        place.open();
        assert!(place.end().is_none());
        assert!(place.leave(Event::Tick).is_some());
        place.open();
        assert!(place.leave(Event::Tick).is_none());
        assert!(place.end().is_some() && place.end().is_none());
    }
}
