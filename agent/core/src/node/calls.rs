//! Calls: a client asks the hub for something that only this node can answer, and a session must accept the
//! call.
//!
//! Always holds: each call leads to one session, however often and in whatever way the hub announces it;
//! sessions start at a bounded rate, whatever a hub requests. Leaves to others: the session itself, which
//! dials the hub, and ends with the call.

use crate::answer::Level;
use crate::event::Action;
use crate::turn::Turn;
use std::collections::VecDeque;
use std::time::Duration;

/// Ids that are remembered: more calls than wait for one node at once, which is 20.
const KNOWN: usize = 64;
/// Longest id; the hub's have 40 bytes.
const ID_BYTES: usize = 64;
/// Sessions that may start at once; `kubectl logs` by selector starts five.
const BURST: u32 = 20;
/// One more may start after this time: each costs a process and a handshake.
const PERIOD: Duration = Duration::from_millis(500);

/// How long a call is worth answering, with a margin: the hub gives a node ten seconds and a period of
/// renewals of forty at most.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The calls that the hub announced.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    known: VecDeque<String>,
    /// Those of them whose turn has not come, and when they were announced.
    waiting: VecDeque<(String, Duration)>,
    /// Sessions that may start now.
    free: u32,
    /// When one was last added to them.
    counted: Duration,
}

impl Calls {
    pub(crate) fn new(now: Duration) -> Self {
        Self { known: VecDeque::new(), waiting: VecDeque::new(), free: BURST, counted: now }
    }

    /// The hub announces that these wait.
    pub(crate) fn heard(&mut self, ids: &[String], turn: &mut Turn) {
        self.note(ids, turn.now.mono);
        self.begin(turn);
        if !self.waiting.is_empty() {
            let line =
                format!("many calls of the hub in a short time: {} wait for their turn", self.waiting.len());
            turn.log(Level::Warn, line);
        }
    }

    /// Starts those whose turn has come.
    pub(crate) fn begin(&mut self, turn: &mut Turn) {
        self.due(turn.now.mono).into_iter().for_each(|id| turn.act(Action::TakeCall(id)));
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then(|| self.counted.saturating_add(PERIOD))
    }

    fn note(&mut self, ids: &[String], now: Duration) {
        for id in ids.iter().take(KNOWN) {
            let is_id =
                (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !is_id || self.known.contains(id) || self.waiting.len() == KNOWN {
                continue;
            }
            if self.known.len() == KNOWN {
                self.known.pop_front();
            }
            self.known.push_back(id.clone());
            self.waiting.push_back((id.clone(), now));
        }
    }

    fn due(&mut self, now: Duration) -> Vec<String> {
        let periods =
            now.saturating_sub(self.counted).as_millis().checked_div(PERIOD.as_millis()).unwrap_or(0);
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        self.free = self.free.saturating_add(periods).min(BURST);
        // the rest of a period counts for the next one
        self.counted = if self.free == BURST {
            now
        } else {
            self.counted.saturating_add(PERIOD.saturating_mul(periods))
        };
        // the hub has given up on those
        self.waiting.retain(|(_, heard)| now < (*heard).saturating_add(LONGEST_WAIT));
        let count = self.waiting.len().min(self.free as usize);
        self.free = self.free.saturating_sub(u32::try_from(count).unwrap_or(self.free));
        self.waiting.drain(..count).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn take(calls: &mut Calls, ids: &[String], now: Duration) -> (Vec<String>, usize) {
        calls.note(ids, now);
        (calls.due(now), calls.waiting.len())
    }

    #[test]
    fn call_heard_twice_is_taken_once() {
        let mut calls = Calls::new(Duration::ZERO);
        assert_eq!(take(&mut calls, &ids(&["a", "b", "a"]), Duration::ZERO).0, ["a", "b"]);
        assert_eq!(take(&mut calls, &ids(&["b", "c"]), Duration::from_secs(9)).0, ["c"]);
        let hostile = ["", "../x", "a b", &"x".repeat(65)];
        assert_eq!(take(&mut calls, &ids(&hostile), Duration::from_secs(9)), (Vec::new(), 0));
    }

    #[test]
    fn sessions_begin_at_a_bounded_rate() {
        let mut calls = Calls::new(Duration::ZERO);
        let many = |from: usize| (from..from + 40).map(|n| format!("c{n}")).collect::<Vec<_>>();
        let at = Duration::from_millis;
        let (taken, left) = take(&mut calls, &many(0), at(0));
        assert_eq!((taken.len(), left), (20, 20));
        // the hub announces the others again while they wait; they start in their turn whether or not it does
        let (taken, left) = take(&mut calls, &many(0), at(1999));
        assert_eq!((taken, left), (ids(&["c20", "c21", "c22"]), 17));
        assert_eq!(calls.next_deadline(), Some(at(2000)));
        assert_eq!((calls.due(at(2000)), calls.next_deadline()), (ids(&["c23"]), Some(at(2500))));
        assert_eq!(calls.due(at(59_999)).len(), 16);
        assert_eq!((calls.next_deadline(), calls.known.len()), (None, 40));
        for from in [200, 300, 400] {
            take(&mut calls, &many(from), at(60_000));
        }
        assert_eq!((calls.known.len(), calls.waiting.len()), (KNOWN, KNOWN));
        assert_eq!(calls.due(at(120_000)), ids(&[]), "nobody waits for them any more");
    }

    #[test]
    fn series_of_calls_waits_for_its_turn_alone() {
        // one after the other, as a script calls, a little faster than sessions may start in the long run
        let mut calls = Calls::new(Duration::ZERO);
        let (mut now, mut longest) = (Duration::ZERO, Duration::ZERO);
        for call in 0..140 {
            let heard = now;
            calls.note(&ids(&[&format!("c{call}")]), now);
            while calls.due(now).is_empty() {
                now = calls.next_deadline().expect("it waits");
            }
            longest = longest.max(now - heard);
            now += Duration::from_millis(450);
        }
        assert!(longest < PERIOD, "{longest:?}");
    }
}
