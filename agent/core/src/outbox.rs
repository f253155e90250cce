//! The requests to the API server that wait or are on their way, by key: when each is sent, and when again.
//!
//! Always holds: each key has one request in flight and one that waits, the latest that was put; keys take
//! turns, the one that has waited longest first; waiting requests use bounded room. After a failure a key
//! waits, longer after each, at most its `longest_wait` unless the server asks for more, until a success.
//! While the server gives no answer, one request at a time checks whether it does, whatever the number of
//! keys. A request that was refused for good is not sent again before `REFUSAL_PAUSE`, if its key requires
//! that, and the refusal is reported once. An answer from another server does not count. Leaves to others:
//! the content of requests and the meaning of answers: the owner of a failed request puts it, or a newer one,
//! again (`agent`).

use crate::answer::{Answer, LONGEST_PATIENCE, Now};
use crate::pace::{Backoff, Jitter};
use crate::sorted::SortedMap;
use serde_json::Value;
use std::time::Duration;

/// Longest wait between tries of a request, whatever fails: a link that recovers is used within this time.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Within this time after the network is back, waiting requests are tried: a fleet behind one link does not
/// send them all in one moment.
pub(crate) const HURRY: Duration = Duration::from_secs(3);

/// How long a request that the server refused for good is not sent again: somebody may change the rights
/// meanwhile.
pub(crate) const REFUSAL_PAUSE: Duration = LONGEST_PATIENCE;

/// The limits of a node's outbox.
pub(crate) const LIMITS: Limits = Limits { at_once: 8, keys: 512, bytes: 1024 * 1024 };

/// Bounds of one outbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Requests in flight, besides those of keys that go alone. They share a connection, so more would only
    /// wait there, where no newer request can replace them; and fewer than the orders that a loop accepts, so
    /// that none makes core wait.
    pub(crate) at_once: usize,
    /// Keys: two for each of the 250 pods that a node may have at most, and the node's own.
    pub(crate) keys: usize,
    /// Bytes of waiting requests: 250 statuses of 4 kB.
    pub(crate) bytes: usize,
}

/// A request, as far as an outbox knows it.
pub(crate) trait Sendable: Clone + PartialEq {
    /// About how much room it takes.
    fn bytes(&self) -> usize;

    /// Whether a server that refused one of the two would refuse the other: they have the same content.
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

/// The rules for sending the requests of one key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Terms {
    /// Longest wait after a failure.
    pub(crate) longest_wait: Duration,
    /// Longest pause that the server may ask for.
    pub(crate) patience: Duration,
    /// It has a connection of its own, so it neither waits for other keys nor do they wait for it.
    pub(crate) is_alone: bool,
    /// A request that was refused for good is not sent again before [`REFUSAL_PAUSE`]; a different one is.
    pub(crate) holds_refused: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self { longest_wait: LONGEST_WAIT, patience: LONGEST_PATIENCE, is_alone: false, holds_refused: false }
    }
}

/// The meaning of an answer for the next request of its key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// The wish is fulfilled, or never will be.
    Done,
    /// Another request follows at once; neither a success nor a failure.
    Again,
    /// The next waits.
    Failed,
}

/// The facts about a failure that are worth reporting.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Failure {
    /// The first after a success, or a final refusal of another kind than the reported one.
    pub(crate) is_news: bool,
    /// The same request waits for [`REFUSAL_PAUSE`].
    pub(crate) is_held: bool,
}

#[derive(Debug, Clone)]
struct Waiting<R> {
    request: R,
    bytes: usize,
    /// Keys are served in this order.
    ticket: u64,
}

#[derive(Debug, Clone)]
struct Flight<R> {
    /// Stored only if a refusal holds it.
    request: Option<R>,
    /// It was sent to another server: its answer does not count.
    is_stale: bool,
}

/// A request that the server refused for good.
#[derive(Debug, Clone)]
struct Refused<R> {
    request: R,
    until: Duration,
}

#[derive(Debug, Clone)]
struct Entry<R> {
    terms: Terms,
    waiting: Option<Waiting<R>>,
    flight: Option<Flight<R>>,
    not_before: Duration,
    backoff: Backoff,
    /// The last try got no answer, and its pause waits only for the network.
    waits_for_network: bool,
    refused: Option<Refused<R>>,
    /// The final refusal that was reported since the last success, by status and reason: messages contain
    /// times and numbers.
    reported: Option<(u16, String)>,
}

impl<R: Sendable> Entry<R> {
    fn new(terms: Terms) -> Self {
        Self {
            terms,
            waiting: None,
            flight: None,
            not_before: Duration::ZERO,
            backoff: Backoff::default(),
            waits_for_network: false,
            refused: None,
            reported: None,
        }
    }

    /// The owner of its requests wants no more of them, or has put none since a pause ended: it gives way to
    /// another key.
    fn is_idle(&self, now: Now) -> bool {
        let is_held = self.refused.as_ref().is_some_and(|refused| now.mono < refused.until);
        self.terms == Terms::default() && self.waiting.is_none() && self.is_free(now) && !is_held
    }

    fn is_free(&self, now: Now) -> bool {
        self.flight.is_none() && now.mono >= self.not_before
    }

    fn held_until(&self, request: &R) -> Option<Duration> {
        self.refused.as_ref().filter(|refused| refused.request.is_same(request)).map(|refused| refused.until)
    }

    /// When its waiting request may be sent, by the rules of its key.
    fn due(&self) -> Option<Duration> {
        let waiting = self.waiting.as_ref().filter(|_| self.flight.is_none())?;
        Some(self.not_before.max(self.held_until(&waiting.request).unwrap_or_default()))
    }

    /// Since when its sendable request has waited.
    fn turn(&self, now: Now) -> Option<u64> {
        self.due().filter(|due| *due <= now.mono)?;
        self.waiting.as_ref().map(|waiting| waiting.ticket)
    }

    fn failed(&mut self, now: Now, request: Option<R>, answer: &Answer, jitter: &mut Jitter) -> Failure {
        self.waits_for_network = matches!(answer, Answer::Failed(_));
        let asked = answer.retry_after().min(self.terms.patience);
        self.not_before =
            now.mono.saturating_add(self.backoff.failed(self.terms.longest_wait, jitter).max(asked));
        if !answer.is_final() {
            return Failure { is_news: self.backoff.failures() == 1, is_held: false };
        }
        let until = now.mono.saturating_add(jitter.stretch(REFUSAL_PAUSE, 0.25));
        self.refused = request.map(|request| Refused { request, until });
        let sort = answer.refusal();
        let is_news = self.reported != sort;
        self.reported = sort;
        Failure { is_news, is_held: self.refused.is_some() }
    }

    fn succeeded(&mut self) {
        self.waits_for_network = false;
        (self.refused, self.reported) = (None, None);
        self.backoff.succeeded();
    }
}

/// Whether the server answers at all.
#[derive(Debug, Clone, Default)]
struct Silence {
    backoff: Backoff,
    /// When the next request may check whether it does.
    not_before: Duration,
}

impl Silence {
    fn is_on(&self) -> bool {
        self.backoff.failures() > 0
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Outbox<K, R> {
    limits: Limits,
    entries: SortedMap<K, Entry<R>>,
    silence: Silence,
    tickets: u64,
}

impl<K: Ord + Clone, R: Sendable> Outbox<K, R> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, entries: SortedMap::new(), silence: Silence::default(), tickets: 0 }
    }

    /// Replaces the default terms, from the start on.
    pub(crate) fn set_terms(&mut self, key: K, terms: Terms) {
        self.entry(&key).terms = terms;
    }

    fn entry(&mut self, key: &K) -> &mut Entry<R> {
        self.entries.entry(key.clone()).or_insert_with(|| Entry::new(Terms::default()))
    }

    /// Queues the request, in place of a queued one with the same key, if any. False if the queue is full,
    /// and nothing changed; the caller puts it again later.
    #[must_use]
    pub(crate) fn put(&mut self, now: Now, key: K, request: R) -> bool {
        let before = self.entries.get(&key).and_then(|entry| entry.waiting.as_ref());
        let (ticket, freed) =
            before.map_or((self.tickets.saturating_add(1), 0), |before| (before.ticket, before.bytes));
        // a key that goes alone needs no shared room
        let is_alone = self.entries.get(&key).is_some_and(|entry| entry.terms.is_alone);
        let bytes = if is_alone { 0 } else { request.bytes() };
        if self.bytes().saturating_sub(freed).saturating_add(bytes) > self.limits.bytes
            || !self.has_room_for(now, &key)
        {
            return false;
        }
        self.tickets = self.tickets.max(ticket);
        self.entry(&key).waiting = Some(Waiting { request, bytes, ticket });
        true
    }

    fn has_room_for(&mut self, now: Now, key: &K) -> bool {
        if self.entries.len() < self.limits.keys || self.entries.contains_key(key) {
            return true;
        }
        self.entries.retain(|_, entry| !entry.is_idle(now));
        self.entries.len() < self.limits.keys
    }

    /// Bytes of the waiting requests.
    fn bytes(&self) -> usize {
        let waiting = self.entries.values().filter_map(|entry| entry.waiting.as_ref());
        waiting.map(|waiting| waiting.bytes).sum()
    }

    /// Drops a waiting request that is no longer wanted.
    pub(crate) fn withdraw(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.waiting = None;
        }
    }

    /// This key has nothing in flight, and no pause is under way.
    pub(crate) fn is_free(&self, now: Now, key: &K) -> bool {
        self.entries.get(key).is_none_or(|entry| entry.is_free(now))
    }

    pub(crate) fn is_in_flight(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.flight.is_some())
    }

    /// The server has refused this very request for good, not long ago.
    pub(crate) fn is_held(&self, now: Now, key: &K, request: &R) -> bool {
        let until = self.entries.get(key).and_then(|entry| entry.held_until(request));
        until.is_some_and(|until| now.mono < until)
    }

    /// Consecutive failures of this key.
    pub(crate) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.backoff.failures())
    }

    /// The request whose turn it is: it is in flight from now on.
    pub(crate) fn take_due(&mut self, now: Now) -> Option<(K, R)> {
        let is_open = self.is_open(now);
        let (key, entry) = self
            .entries
            .iter_mut()
            .filter(|(_, entry)| is_open || entry.terms.is_alone)
            .filter_map(|(key, entry)| Some((entry.turn(now)?, key, entry)))
            .min_by_key(|(ticket, _, _)| *ticket)
            .map(|(_, key, entry)| (key, entry))?;
        let request = entry.waiting.take()?.request;
        let kept = entry.terms.holds_refused.then(|| request.clone());
        entry.flight = Some(Flight { request: kept, is_stale: false });
        Some((key.clone(), request))
    }

    /// Whether one more of the requests that share a connection may be sent.
    fn is_open(&self, now: Now) -> bool {
        let shared = self.entries.values().filter(|entry| !entry.terms.is_alone);
        let in_flight = shared.filter(|entry| entry.flight.is_some()).count();
        match self.silence.is_on() {
            true => in_flight == 0 && now.mono >= self.silence.not_before,
            false => in_flight < self.limits.at_once,
        }
    }

    /// Whether this answer is to a request that was sent to another server; if so, its key is free again.
    pub(crate) fn is_answered_by_another_server(&mut self, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.flight.take_if(|flight| flight.is_stale).is_some()
    }

    /// The request in flight was answered.
    pub(crate) fn answered(
        &mut self,
        now: Now,
        key: &K,
        answer: &Answer,
        verdict: Verdict,
        jitter: &mut Jitter,
    ) -> Failure {
        let entry = self.entry(key);
        let request = entry.flight.take().and_then(|flight| flight.request);
        let failure = match verdict {
            Verdict::Done => {
                entry.succeeded();
                Failure::default()
            }
            Verdict::Again => {
                (entry.not_before, entry.waits_for_network) = (now.mono, false);
                Failure::default()
            }
            Verdict::Failed => entry.failed(now, request, answer, jitter),
        };
        let is_alone = entry.terms.is_alone;
        if !is_alone {
            self.note_silence(now, answer, jitter);
        }
        failure
    }

    fn note_silence(&mut self, now: Now, answer: &Answer, jitter: &mut Jitter) {
        if !matches!(answer, Answer::Failed(_)) {
            self.silence = Silence::default();
        } else if now.mono >= self.silence.not_before {
            // requests that were sent together fail together, and count as one
            self.silence.not_before =
                now.mono.saturating_add(self.silence.backoff.failed(LONGEST_WAIT, jitter));
        }
    }

    /// Sends nothing of this key before `at`.
    pub(crate) fn pause(&mut self, key: &K, at: Duration) {
        let entry = self.entry(key);
        entry.not_before = entry.not_before.max(at);
    }

    /// The event that the pause of this key waits for has happened.
    pub(crate) fn end_pause(&mut self, now: Now, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.not_before = entry.not_before.min(now.mono);
        }
    }

    /// As new, except for the requests that are on their way and will still be answered.
    pub(crate) fn server_changed(&mut self) {
        self.silence = Silence::default();
        for entry in self.entries.values_mut() {
            let flight = entry.flight.take().map(|_| Flight { request: None, is_stale: true });
            *entry = Entry { flight, ..Entry::new(entry.terms) };
        }
    }

    /// The network is back: requests that wait for it are sent within [`HURRY`].
    pub(crate) fn hurry(&mut self, now: Now, jitter: &mut Jitter) {
        self.silence = Silence::default();
        for entry in self.entries.values_mut().filter(|entry| entry.waits_for_network) {
            entry.not_before = entry.not_before.min(now.mono.saturating_add(jitter.within(HURRY)));
        }
    }

    /// The next time when a request may be sent, or a key becomes free.
    pub(crate) fn next_deadline(&self, now: Now) -> Option<Duration> {
        let keys = self.entries.values().filter(|entry| entry.flight.is_none());
        let keys = keys.flat_map(|entry| {
            let held = entry.refused.as_ref().map(|refused| refused.until);
            [Some(entry.not_before), held, entry.due()].into_iter().flatten()
        });
        let silence = self.silence.is_on().then_some(self.silence.not_before);
        keys.chain(silence).filter(|at| *at > now.mono).min()
    }
}

/// About how many bytes this has as text.
pub(crate) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len().saturating_add(2),
        Value::Array(items) => {
            items.iter().map(|item| json_bytes(item).saturating_add(1)).fold(2, usize::saturating_add)
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| name.len().saturating_add(4).saturating_add(json_bytes(value)))
            .fold(2, usize::saturating_add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_api::Timestamp;

    const SMALL: Limits = Limits { at_once: 2, keys: 6, bytes: 1000 };
    const SECOND: Duration = Duration::from_secs(1);

    /// A key's wish, and how often it has changed.
    #[derive(Debug, Clone, PartialEq)]
    struct Wish(u32, usize);

    impl Sendable for Wish {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn wish(number: u32) -> Wish {
        Wish(number, 10)
    }

    fn at(mono: Duration) -> Now {
        Now { mono, wall: Timestamp::default() }
    }

    fn no_answer() -> Answer {
        Answer::Failed("no route".into())
    }

    fn refused(status: u16) -> Answer {
        Answer::Refused { status, reason: "No".into(), message: "no".into(), retry_after: None }
    }

    /// An outbox of eight-bit keys, and the time.
    struct Bench {
        outbox: Outbox<u8, Wish>,
        jitter: Jitter,
        now: Now,
    }

    impl Bench {
        fn of(limits: Limits) -> Self {
            Self { outbox: Outbox::new(limits), jitter: Jitter::new(7), now: at(100 * SECOND) }
        }

        fn put(&mut self, key: u8, number: u32) -> bool {
            self.outbox.put(self.now, key, wish(number))
        }

        /// Everything that may be sent now.
        fn sent(&mut self) -> Vec<(u8, u32)> {
            std::iter::from_fn(|| self.outbox.take_due(self.now)).map(|(key, wish)| (key, wish.0)).collect()
        }

        fn answer(&mut self, key: u8, answer: &Answer) -> Failure {
            let verdict = if matches!(answer, Answer::Accepted(_)) { Verdict::Done } else { Verdict::Failed };
            self.outbox.answered(self.now, &key, answer, verdict, &mut self.jitter)
        }

        fn accept(&mut self, key: u8) {
            self.answer(key, &Answer::Accepted(None));
        }

        fn pass(&mut self, by: Duration) {
            self.now.mono += by;
        }
    }

    /// How long it takes until each of twenty nodes may send again, by seeds of their own.
    fn waits(until: impl Fn(&mut Bench) -> Duration) -> std::collections::BTreeSet<Duration> {
        let of = |seed: u64| {
            let mut bench = Bench::of(SMALL);
            bench.jitter = Jitter::new(seed * 7919);
            let begun = bench.now.mono;
            until(&mut bench) - begun
        };
        (1..=20).map(of).collect()
    }

    #[test]
    fn pauses_of_a_fleet_spread() {
        let refused = waits(|bench| {
            bench.outbox.set_terms(1, Terms { holds_refused: true, ..Terms::default() });
            assert!(bench.put(1, 1));
            bench.sent();
            bench.answer(1, &refused(403));
            while bench.outbox.is_held(bench.now, &1, &wish(1)) {
                bench.pass(SECOND);
            }
            bench.now.mono
        });
        let longest = REFUSAL_PAUSE.mul_f64(1.25) + SECOND;
        assert!(
            refused.len() >= 12 && refused.iter().all(|wait| (REFUSAL_PAUSE..=longest).contains(wait)),
            "{refused:?}"
        );
        let network_is_back = waits(|bench| {
            assert!(bench.put(1, 1));
            bench.sent();
            for _ in 0..6 {
                bench.answer(1, &no_answer());
                bench.pass(60 * SECOND);
                assert!(bench.put(1, 1));
                bench.sent();
            }
            bench.answer(1, &no_answer());
            bench.outbox.hurry(bench.now, &mut bench.jitter);
            assert!(bench.put(1, 1));
            let begun = bench.now.mono;
            while bench.sent().is_empty() {
                bench.pass(SECOND / 100);
            }
            bench.now.mono - begun + 100 * SECOND
        });
        let most = HURRY + SECOND / 50;
        assert!(
            network_is_back.len() >= 12 && network_is_back.iter().all(|wait| *wait <= most),
            "{network_is_back:?}"
        );
    }

    #[test]
    fn silence_of_the_old_server_holds_up_nothing_of_the_new() {
        let mut bench = Bench::of(SMALL);
        for _ in 0..6 {
            assert!(bench.put(1, 1));
            bench.sent();
            bench.answer(1, &no_answer());
            bench.pass(SECOND);
        }
        assert!(bench.put(2, 1));
        assert_eq!(bench.sent(), [], "one asks whether it answers again");
        bench.outbox.server_changed();
        assert!(bench.put(2, 1) && bench.put(3, 1));
        assert_eq!(bench.sent(), [(2, 1), (3, 1)]);
    }

    #[test]
    fn only_the_latest_that_waits_is_sent_after_one_in_flight() {
        let mut bench = Bench::of(SMALL);
        assert!(bench.put(1, 1));
        assert_eq!(bench.sent(), [(1, 1)]);
        assert!(bench.put(1, 2) && bench.put(1, 3));
        assert_eq!(bench.sent(), [], "one in flight");
        bench.accept(1);
        assert_eq!(bench.sent(), [(1, 3)]);
        bench.accept(1);
        assert!(bench.put(1, 4));
        bench.outbox.withdraw(&1);
        assert_eq!(bench.sent(), []);
    }

    #[test]
    fn keys_take_turns_and_one_that_goes_alone_waits_for_none() {
        let mut bench = Bench::of(SMALL);
        bench.outbox.set_terms(9, Terms { is_alone: true, ..Terms::default() });
        for key in [3, 1, 2, 9] {
            assert!(bench.put(key, 0));
        }
        assert_eq!(bench.sent(), [(3, 0), (1, 0), (9, 0)], "two at once, and the one that goes alone");
        bench.accept(3);
        assert!(bench.put(3, 1) && bench.put(2, 1), "a newer one keeps the turn");
        assert_eq!(bench.sent(), [(2, 1)]);
        bench.accept(1);
        assert_eq!(bench.sent(), [(3, 1)]);
    }

    #[test]
    fn what_finds_no_room_changes_nothing() {
        let mut bench = Bench::of(SMALL);
        assert!(bench.outbox.put(bench.now, 1, Wish(1, 600)));
        assert!(!bench.outbox.put(bench.now, 2, Wish(1, 401)), "too large beside the other");
        assert!(bench.outbox.put(bench.now, 1, Wish(2, 1000)), "in place of itself");
        assert!(!bench.outbox.put(bench.now, 1, Wish(3, 1001)));
        assert_eq!(bench.sent(), [(1, 2)], "in flight it takes no room");
        assert!((2..=6).all(|key| bench.put(key, 0)));
        assert!(!bench.put(7, 0), "six keys");
        bench.outbox.withdraw(&2);
        assert!(bench.put(7, 0), "one that is idle gives way");
    }

    #[test]
    fn no_answer_leaves_one_request_to_ask_for_all() {
        let mut bench = Bench::of(Limits { at_once: 4, keys: 9, bytes: 1000 });
        assert!((1..=4).all(|key| bench.put(key, 0)));
        assert_eq!(bench.sent().len(), 4);
        for key in 1..=4 {
            bench.answer(key, &no_answer());
        }
        assert!((1..=4).all(|key| bench.put(key, 0)));
        let mut tries = 0;
        for _ in 0..600 {
            bench.pass(SECOND);
            let sent = bench.sent();
            assert!(sent.len() <= 1, "{sent:?}");
            for (key, _) in sent {
                tries += 1;
                bench.answer(key, &no_answer());
                assert!(bench.put(key, 0));
            }
        }
        // after 1, 2, 4, 8 and 16 seconds, then every 30; each stretched by up to a quarter
        assert!((18..=25).contains(&tries), "{tries} of all keys together");
        bench.outbox.hurry(bench.now, &mut bench.jitter);
        bench.pass(HURRY);
        assert_eq!(bench.sent().len(), 4, "the network is back");
    }

    #[test]
    fn refused_for_good_is_news_once_and_held_where_asked() {
        let mut bench = Bench::of(SMALL);
        bench.outbox.set_terms(1, Terms { holds_refused: true, ..Terms::default() });
        for (number, status, expect) in [
            (1, 403, Failure { is_news: true, is_held: true }),
            (2, 403, Failure { is_news: false, is_held: true }),
            (3, 422, Failure { is_news: true, is_held: true }),
            (4, 503, Failure { is_news: false, is_held: false }),
        ] {
            bench.pass(LONGEST_WAIT * 2);
            assert!(bench.put(1, number));
            assert_eq!(bench.sent(), [(1, number)], "another one is not held");
            assert_eq!(bench.answer(1, &refused(status)), expect);
        }
        bench.pass(LONGEST_WAIT * 2);
        assert!(bench.put(1, 5));
        bench.sent();
        bench.answer(1, &refused(403));
        assert!(bench.put(1, 5));
        bench.pass(REFUSAL_PAUSE - SECOND);
        assert_eq!(bench.sent(), []);
        bench.now.mono = bench.outbox.next_deadline(bench.now).expect("it is held until then");
        assert_eq!(bench.sent(), [(1, 5)], "somebody may have changed the rights");
        bench.accept(1);
        assert!(bench.put(1, 5));
        assert_eq!(bench.sent(), [(1, 5)], "a success ends all of it");
        assert!(bench.answer(1, &refused(403)).is_news);
    }

    #[test]
    fn answer_of_another_server_only_frees_its_key() {
        let mut bench = Bench::of(SMALL);
        assert!(bench.put(1, 1) && bench.put(2, 1) && bench.put(3, 1));
        assert_eq!(bench.sent(), [(1, 1), (2, 1)]);
        bench.answer(2, &refused(500));
        bench.outbox.server_changed();
        assert!(bench.outbox.is_free(bench.now, &2), "a pause was the other server's");
        assert_eq!(bench.sent(), [], "what waited was for the other server");
        assert!(bench.put(1, 2));
        assert_eq!(bench.sent(), [], "in flight still");
        assert!(bench.outbox.is_answered_by_another_server(&1));
        assert!(!bench.outbox.is_answered_by_another_server(&1), "once");
        assert_eq!(bench.sent(), [(1, 2)]);
    }

    /// A server that sometimes gives no answer, refuses for a while or for good, or is replaced, and owners
    /// that put their wishes until they are fulfilled.
    struct Walk {
        bench: Bench,
        limits: Limits,
        /// The wish of each key, and its accepted one.
        wanted: [u32; 9],
        accepted: [u32; 9],
        in_flight: SortedMap<u8, (u32, bool)>,
        /// When each key last failed, and its failures since a success.
        failed: [Duration; 9],
        failures: [u32; 9],
        random: Jitter,
    }

    impl Walk {
        fn new(seed: u64) -> Self {
            let limits = Limits { at_once: 3, keys: 9, bytes: 80 };
            let mut bench = Bench::of(limits);
            bench.outbox.set_terms(0, Terms { is_alone: true, ..Terms::default() });
            bench.jitter = Jitter::new(seed);
            Self {
                bench,
                limits,
                wanted: [0; 9],
                accepted: [0; 9],
                in_flight: SortedMap::new(),
                failed: [Duration::ZERO; 9],
                failures: [0; 9],
                random: Jitter::new(seed.wrapping_mul(31)),
            }
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.random.within(Duration::from_nanos(limit * 1000)).as_nanos() as u64 / 1000
        }

        fn offer(&mut self) {
            for key in 0..9 {
                let index = usize::from(key);
                if self.wanted[index] != self.accepted[index] && !self.in_flight.contains_key(&key) {
                    let _ = self.bench.put(key, self.wanted[index]);
                }
            }
        }

        fn send(&mut self) {
            for (key, number) in self.bench.sent() {
                let index = usize::from(key);
                assert_eq!(number, self.wanted[index], "key {key}: an older wish");
                assert!(self.in_flight.insert(key, (number, true)).is_none(), "key {key}: two in flight");
                if let Some(exponent) = self.failures[index].checked_sub(1) {
                    let waited = self.bench.now.mono - self.failed[index];
                    assert!(
                        waited >= (SECOND * (1 << exponent.min(5))).min(LONGEST_WAIT),
                        "key {key}: {waited:?}"
                    );
                }
            }
            let shared = self.in_flight.keys().filter(|key| **key != 0).count();
            assert!(shared <= self.limits.at_once, "{shared} at once");
            assert!(self.bench.outbox.bytes() <= self.limits.bytes);
            assert!(self.bench.outbox.entries.len() <= self.limits.keys);
        }

        fn answer(&mut self, key: u8, answer: &Answer) {
            let Some((number, is_ours)) = self.in_flight.remove(&key) else { return };
            let index = usize::from(key);
            if !is_ours {
                assert!(self.bench.outbox.is_answered_by_another_server(&key));
                return;
            }
            assert!(!self.bench.outbox.is_answered_by_another_server(&key));
            self.bench.answer(key, answer);
            if matches!(answer, Answer::Accepted(_)) {
                (self.accepted[index], self.failures[index]) = (number, 0);
                assert!(self.bench.outbox.is_free(self.bench.now, &key), "a success ends the back-off");
            } else {
                self.failures[index] += 1;
                self.failed[index] = self.bench.now.mono;
            }
        }

        fn change_server(&mut self) {
            self.bench.outbox.server_changed();
            self.in_flight.values_mut().for_each(|(_, is_ours)| *is_ours = false);
            (self.failures, self.accepted) = ([0; 9], [0; 9]);
        }

        fn step(&mut self) {
            let key = self.below(9) as u8;
            match self.below(100) {
                0..30 => self.wanted[usize::from(key)] += 1,
                30..60 => {
                    let millis = self.below(3000);
                    self.bench.pass(Duration::from_millis(millis));
                }
                60..75 => self.answer(key, &Answer::Accepted(None)),
                75..85 => self.answer(key, &no_answer()),
                85..90 => self.answer(key, &refused(503)),
                90..98 => self.answer(key, &refused(403)),
                _ => self.change_server(),
            }
            self.offer();
            self.send();
        }

        /// The server answers well from now on: returns how long until all wishes are fulfilled.
        fn settle(&mut self) -> Duration {
            let begun = self.bench.now.mono;
            while self.wanted != self.accepted {
                assert!(
                    self.bench.now.mono < begun + 600 * SECOND,
                    "{:?}, wanted {:?}",
                    self.accepted,
                    self.wanted
                );
                for key in 0..9 {
                    self.answer(key, &Answer::Accepted(None));
                }
                self.offer();
                self.send();
                if self.in_flight.is_empty() {
                    let next = self.bench.outbox.next_deadline(self.bench.now);
                    self.bench.now.mono = next.unwrap_or(self.bench.now.mono + SECOND);
                }
            }
            self.bench.now.mono - begun
        }
    }

    #[test]
    fn nothing_starves_grows_or_goes_twice_whatever_the_answers() {
        for seed in 1..60 {
            let mut walk = Walk::new(seed);
            for _ in 0..400 {
                walk.step();
            }
            let settled = walk.settle();
            assert!(settled <= 2 * LONGEST_WAIT.mul_f64(1.25), "seed {seed}: {settled:?}");
            assert!(walk.wanted.iter().sum::<u32>() > 50);
        }
    }
}
