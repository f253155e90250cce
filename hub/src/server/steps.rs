//! The requests of one caller take turns on the threads, and are charged for their processor time.
//!
//! Always holds: for a caller without the admin group the hub works on one request at a time (of a person on
//! a few), however many are in progress. So another caller's request waits for at most that many steps of
//! each. A long step is charged to the caller's rate, whatever made it long. A request that waits for a body
//! or the disk does not take its caller's turn. Left to others: limits on each kind of work (`limits`), and
//! renewals, which are short and never wait.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::limits::{Slot, Work};

/// Processor time that is free for each request, several times that of an ordinary one. A debug build is many
/// times slower.
const FREE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 50 } else { 1 });

/// The request of a caller that is being worked on, and the others that are ready.
#[derive(Debug, Default)]
pub(super) struct Steps(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    busy: u32,
    waiting: Vec<Waker>,
}

impl Steps {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // a panic leaves the state consistent, because no change of it can panic half way
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a turn to a task, if fewer than `most` have one; `None`: none is free, and the task will be
    /// woken.
    fn begin(&self, most: u32, task: &Waker) -> Option<Step<'_>> {
        let mut state = self.state();
        if state.busy < most {
            state.busy += 1;
            return Some(Step(self));
        }
        if !state.waiting.iter().any(|known| known.will_wake(task)) {
            state.waiting.push(task.clone());
        }
        None
    }
}

struct Step<'a>(&'a Steps);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy -= 1;
        // wakes all of them, because one whose request was dropped would not pass the turn on
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Works on a request when it is its caller's turn.
pub(super) async fn in_turn<T>(slot: &Slot, request: impl Future<Output = T>) -> T {
    let Some((steps, most)) = slot.steps() else { return request.await };
    let mut request = pin!(request);
    let mut free = FREE;
    poll_fn(|context| {
        let Some(step) = steps.begin(most, context.waker()) else { return Poll::Pending };
        let begun = processor_time();
        let polled = request.as_mut().poll(context);
        let taken = processor_time().saturating_sub(begun);
        drop(step);
        slot.charge(Work::Ran(taken.saturating_sub(free)), Instant::now());
        free = free.saturating_sub(taken);
        polled
    })
    .await
}

/// The time for which the current thread has used the processor.
fn processor_time() -> Duration {
    kedge_platform::linux::thread_time().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kedge_hub_core::identity::Identity;

    use super::*;
    use crate::capacity::{Capacity, Machine};
    use crate::server::limits::Limits;

    fn slot(group: &str) -> Arc<Slot> {
        let machine = Machine { memory_bytes: 1 << 30, descriptors: 4096, processors: 2 };
        let limits = Limits::new(&Capacity::of(&machine));
        limits.slot(Some(&Identity::new("system:node:n", &[group])), [127, 0, 0, 1].into(), Instant::now())
    }

    /// Runs requests of three steps each; returns the largest number that were worked on at once.
    fn most_at_once(group: &str) -> usize {
        let slot = slot(group);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..20 {
                let (slot, now, most) = (slot.clone(), now.clone(), most.clone());
                let task = tasks.spawn(async move {
                    in_turn(&slot, async {
                        for _ in 0..3 {
                            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            // give another thread the chance to run as well
                            for _ in 0..200 {
                                std::thread::yield_now();
                            }
                            now.fetch_sub(1, Ordering::SeqCst);
                            tokio::task::yield_now().await;
                        }
                    })
                    .await;
                });
                // a client that leaves holds up no other request
                if number % 5 == 0 {
                    task.abort();
                }
            }
            while tasks.join_next().await.is_some() {}
        });
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn requests_of_one_caller_take_turns() {
        assert_eq!(most_at_once("system:nodes"), 1);
        for group in ["system:masters", "people"] {
            assert!((0..100).any(|_| most_at_once(group) == 2), "of {group} they do not");
        }
    }

    #[test]
    fn long_step_is_paid_for() {
        let (slot, now) = (slot("system:nodes"), Instant::now());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let work = async |long: Duration| {
            let begun = processor_time();
            while processor_time() - begun < long {}
        };
        runtime.block_on(in_turn(&slot, work(FREE / 2)));
        runtime.block_on(in_turn(&slot, work(FREE + Duration::from_millis(20))));
        // two tokens for each millisecond, and a few more for the code around it
        let left = std::iter::from_fn(|| slot.pace(now).ok()).count();
        assert!((900..=960).contains(&left), "{left}");
    }
}
