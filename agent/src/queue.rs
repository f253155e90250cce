//! A bounded channel between threads, with the interface and the errors of `std::sync::mpsc`.
//!
//! The agent does not use that one for two reasons. It contains three kinds of channel, and the compiler
//! generates all three for each type: 50 kB of the program. And its sender wakes the receiver while it still
//! holds a lock that the receiver takes first, so the receiver goes to sleep again: three wake-ups for each
//! order instead of one, on a node that otherwise sleeps.

use std::collections::VecDeque;
pub(crate) use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct Queue<T> {
    state: Mutex<State<T>>,
    /// Signals the receiver: an item came, or the last sender is gone.
    filled: Condvar,
    /// Signals senders: there is room, or the receiver is gone.
    emptied: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    room: usize,
    senders: usize,
    has_receiver: bool,
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end.
pub(crate) struct Sender<T>(Arc<Queue<T>>);

/// The receiving end.
pub(crate) struct Receiver<T>(Arc<Queue<T>>);

/// A channel that holds at most `room` items; `send` waits for room.
pub(crate) fn sync_channel<T>(room: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { waiting: VecDeque::new(), room, senders: 1, has_receiver: true };
    let queue = Arc::new(Queue { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() });
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

/// A channel without a limit.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    sync_channel(usize::MAX)
}

impl<T> Sender<T> {
    /// # Errors
    /// The receiver is gone.
    pub(crate) fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state();
        while state.has_receiver && state.waiting.len() >= state.room {
            state = self.0.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.put(state, item).map_err(SendError)
    }

    /// # Errors
    /// There is no room, or the receiver is gone.
    pub(crate) fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        let state = self.0.state();
        if state.has_receiver && state.waiting.len() >= state.room {
            return Err(TrySendError::Full(item));
        }
        self.put(state, item).map_err(TrySendError::Disconnected)
    }

    fn put(&self, mut state: MutexGuard<'_, State<T>>, item: T) -> Result<(), T> {
        if !state.has_receiver {
            return Err(item);
        }
        state.waiting.push_back(item);
        drop(state);
        self.0.filled.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state().senders -= 1;
        self.0.filled.notify_one();
    }
}

impl<T> Receiver<T> {
    /// # Errors
    /// All senders are gone.
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        self.take_by(None).map_err(|_| RecvError)
    }

    /// # Errors
    /// Nothing came in this time, or all senders are gone.
    pub(crate) fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.take_by(Instant::now().checked_add(limit))
    }

    /// # Errors
    /// The channel is empty, or all senders are gone.
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        self.take_by(Some(Instant::now())).map_err(|why| match why {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// `None`: waits without a limit.
    fn take_by(&self, end: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.state();
        loop {
            if let Some(item) = state.waiting.pop_front() {
                drop(state);
                self.0.emptied.notify_one();
                return Ok(item);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let Some(end) = end else {
                state = self.0.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            state = self.0.filled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.has_receiver = false;
        // dropped without the lock: an item may hold an end of a channel
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.emptied.notify_all();
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn items_come_out_in_order_from_all_senders() {
        let (sender, receiver) = sync_channel(1);
        thread::scope(|scope| {
            for first in [0, 1000] {
                let sender = sender.clone();
                scope.spawn(move || (first..first + 1000).for_each(|number| sender.send(number).unwrap()));
            }
            drop(sender);
            let mut seen: Vec<Vec<u32>> = vec![vec![], vec![]];
            while let Ok(number) = receiver.recv() {
                seen[(number / 1000) as usize].push(number);
            }
            assert_eq!(seen, [(0..1000).collect::<Vec<_>>(), (1000..2000).collect()]);
        });
    }

    #[test]
    fn full_queue_takes_nothing_until_there_is_room() {
        let (sender, receiver) = sync_channel(2);
        assert_eq!([1, 2, 3].map(|number| sender.try_send(number).is_ok()), [true, true, false]);
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.send(4));
            assert_eq!(receiver.recv(), Ok(1));
            waiting.join().unwrap().unwrap();
        });
        assert_eq!([receiver.recv(), receiver.recv()], [Ok(2), Ok(4)]);
    }

    #[test]
    fn end_without_a_sender_comes_after_what_was_sent() {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(receiver.recv_timeout(Duration::MAX), Err(RecvTimeoutError::Disconnected));
        assert_eq!(receiver.recv(), Err(RecvError));
    }

    #[test]
    fn receiver_that_waits_hears_of_the_end() {
        let (sender, receiver) = channel::<()>();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| receiver.recv());
            drop(sender);
            assert_eq!(waiting.join().unwrap(), Err(RecvError));
        });
    }

    #[test]
    fn sender_that_waits_hears_that_nobody_takes_it() {
        let (sender, receiver) = sync_channel(1);
        sender.send(1).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.send(2));
            drop(receiver);
            assert_eq!(waiting.join().unwrap(), Err(SendError(2)));
        });
        assert_eq!(sender.try_send(3), Err(TrySendError::Disconnected(3)));
    }

    #[test]
    fn nothing_that_comes_ends_the_wait_in_its_time() {
        let (_sender, receiver) = channel::<()>();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
    }
}
