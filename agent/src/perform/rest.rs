//! Brings a loop to rest, so that the process may be replaced: not within work that the next run would find
//! half done, and not while it waits for a disk that does not answer, which would delay the process, with its
//! heartbeat, for as long.
//!
//! Always holds: a loop that rests has performed its orders, and starts nothing of its own until it may work
//! again; requesting rest never blocks. Leaves to others: how long to wait for a loop, and the consequence if
//! it does not rest in time (`run`, core).

use crate::locks::locked;
use std::sync::{Condvar, Mutex};

/// A loop's rest.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: Wanted,
    rests: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    #[default]
    Work,
    Rest,
    End,
}

impl Rest {
    // ------------------------------------------------------------------------------------------ the loop's
    // side

    /// Waits for an order by `wait`; the loop counts as resting meanwhile.
    pub(crate) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        locked(&self.state).rests = true;
        let waited = wait();
        locked(&self.state).rests = false;
        waited
    }

    /// Rests for as long as rest is wanted. False if the loop is to end.
    pub(crate) fn work_is_wanted(&self) -> bool {
        let mut state = locked(&self.state);
        state.rests = true;
        while state.wanted == Wanted::Rest {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.rests = state.wanted == Wanted::End;
        !state.rests
    }

    // ------------------------------------------------------------------------------------------ the main
    // loop's side

    fn want(&self, wanted: Wanted) {
        locked(&self.state).wanted = wanted;
        self.changed.notify_all();
    }

    /// The loop will rest when it has finished its present work.
    pub(crate) fn begin(&self) {
        self.want(Wanted::Rest);
    }

    pub(crate) fn rests(&self) -> bool {
        locked(&self.state).rests
    }

    /// The loop works again.
    pub(crate) fn go_on(&self) {
        self.want(Wanted::Work);
    }

    /// The loop will end when it rests.
    pub(crate) fn end(&self) {
        self.want(Wanted::End);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    #[test]
    fn loop_at_rest_begins_nothing_until_it_may() {
        let (rest, (tell, told), (send, orders)) = (Arc::new(Rest::default()), channel(), channel::<u32>());
        let of_loop = rest.clone();
        let thread = std::thread::spawn(move || {
            while of_loop.work_is_wanted() {
                let Ok(order) = of_loop.during(|| orders.recv()) else { return };
                tell.send(order).unwrap();
            }
        });
        let await_rest = || {
            while !rest.rests() {
                std::thread::yield_now();
            }
        };
        await_rest();
        rest.begin();
        send.send(1).unwrap();
        assert_eq!(told.recv().unwrap(), 1, "what it was ordered");
        await_rest();
        send.send(2).unwrap();
        assert!(told.try_recv().is_err(), "it rests");
        rest.go_on();
        assert_eq!(told.recv().unwrap(), 2);
        // Only a loop that waits for orders is sure to see one that comes after `begin`.
        await_rest();
        rest.begin();
        send.send(3).unwrap();
        assert_eq!(told.recv().unwrap(), 3);
        await_rest();
        rest.end();
        thread.join().unwrap();
    }
}
