//! Calls: somebody asks the hub for what only this node can answer, and a session is to take the call.
//!
//! Always holds: each call leads to one session, however often and on whatever way the hub tells of it; sessions begin at a bounded rate,
//! whatever a hub asks for. Leaves to others: the session itself, which dials the hub, and ends with the call.

use crate::event::{Action, Level};
use crate::turn::Turn;
use std::collections::VecDeque;
use std::time::Duration;

/// Ids that are remembered: more than wait for one node at once, which is 20.
const KNOWN: usize = 64;
/// Longest id; the hub's have 40 bytes.
const ID_BYTES: usize = 64;
/// Sessions that may begin at once; `kubectl logs` by selector begins five.
const BURST: u32 = 20;
/// One more may begin after this time: each costs a process and a handshake.
const PERIOD: Duration = Duration::from_millis(500);

/// The calls that were heard of.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    known: VecDeque<String>,
    /// Sessions that may begin now.
    free: u32,
    /// When they were counted.
    counted: Duration,
}

impl Calls {
    pub(crate) fn new(now: Duration) -> Self {
        Self { known: VecDeque::new(), free: BURST, counted: now }
    }

    /// The hub says that these wait.
    pub(crate) fn heard(&mut self, ids: &[String], turn: &mut Turn) {
        let (taken, left) = self.take(ids, turn.now.mono);
        taken.into_iter().for_each(|id| turn.act(Action::TakeCall(id)));
        if left > 0 {
            turn.log(
                Level::Warn,
                format!("too many calls of the hub in a short time, leaving {left} unanswered"),
            );
        }
    }

    /// Those that are new, and how many are left because there are too many.
    fn take(&mut self, ids: &[String], now: Duration) -> (Vec<String>, usize) {
        let periods = now.saturating_sub(self.counted).as_millis() / PERIOD.as_millis();
        if periods > 0 {
            self.free = self.free.saturating_add(u32::try_from(periods).unwrap_or(BURST)).min(BURST);
            self.counted = now;
        }
        let (mut taken, mut left) = (Vec::new(), 0);
        for id in ids.iter().take(KNOWN) {
            let is_id =
                (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !is_id || self.known.contains(id) {
                continue;
            }
            if self.free == 0 {
                left += 1;
                continue;
            }
            self.free -= 1;
            if self.known.len() == KNOWN {
                self.known.pop_front();
            }
            self.known.push_back(id.clone());
            taken.push(id.clone());
        }
        (taken, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn call_heard_twice_is_taken_once() {
        let mut calls = Calls::new(Duration::ZERO);
        assert_eq!(calls.take(&ids(&["a", "b", "a"]), Duration::ZERO).0, ["a", "b"]);
        assert_eq!(calls.take(&ids(&["b", "c"]), Duration::from_secs(9)).0, ["c"]);
        let hostile = ["", "../x", "a b", &"x".repeat(65)];
        assert_eq!(calls.take(&ids(&hostile), Duration::from_secs(9)), (Vec::new(), 0));
    }

    #[test]
    fn sessions_begin_at_a_bounded_rate() {
        let mut calls = Calls::new(Duration::ZERO);
        let many = |from: usize| (from..from + 40).map(|n| format!("c{n}")).collect::<Vec<_>>();
        let (taken, left) = calls.take(&many(0), Duration::ZERO);
        assert_eq!((taken.len(), left), (20, 20));
        // what was left is named again while it waits
        let (taken, left) = calls.take(&many(0), Duration::from_millis(1999));
        assert_eq!((taken.len(), left), (3, 17));
        assert_eq!(calls.take(&many(100), Duration::from_secs(3600)).0.len(), 20);
        assert_eq!(calls.known.len(), 43);
        calls.take(&many(200), Duration::from_secs(7200));
        calls.take(&many(300), Duration::from_secs(9000));
        assert_eq!(calls.known.len(), KNOWN);
    }
}
