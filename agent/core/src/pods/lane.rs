//! Requests about pods of one sort: the order in which they are sent, and how many at once.
//!
//! Always holds: namespaces take turns, so a waiting request is preceded by at most one request of each other
//! namespace; requests about large pods are sent one at a time, with a pause after each by the pod's size,
//! because a server may count a request by the bytes of its object and limits the count of each node;
//! requests for pods without a record here are sent last. Leaves to others: the content of a request, and the
//! meaning of its answer.

use crate::event::{Request, RequestKey};
use crate::pods::event::{PodAsk, PodRequest, TokenName};
use crate::pods::keys::ObjectName;
use crate::sorted::SortedMap;
use crate::turn::{Order, Turn};
use std::collections::VecDeque;
use std::time::Duration;

/// A pod with more bytes than this counts as large: our hub counts a report about it as 16 requests.
const HEAVY_BYTES: usize = 64 * 1024;
/// Bytes of large pods that are reported on per second: a quarter of the rate that our hub allows a node.
const HEAVY_BYTES_A_SEC: usize = 50 * 1024;
/// Longest pause after a large pod: enough for a pod of 3 MiB, the largest that is read.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Most namespaces whose last turn is remembered. Beyond it only the order of their turns is lost.
const KNOWN_TURNS: usize = 256;

/// The purpose of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Purpose {
    Work(PodRequest),
    Read(ObjectName),
    Token(TokenName),
    /// An Event, after so many tries that failed.
    News(u8),
}

/// A request that waits.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) purpose: Purpose,
    pub(crate) body: PodAsk,
    /// The namespace whose turn it uses.
    pub(crate) namespace: String,
    /// Size of the pod that the request is about, as far as known.
    pub(crate) bytes: usize,
    /// It is sent before others of its namespace, and is kept when others are dropped.
    pub(crate) is_urgent: bool,
}

impl Ask {
    fn is_heavy(&self) -> bool {
        self.bytes > HEAVY_BYTES
    }
}

#[derive(Debug, Clone)]
struct Sent {
    slot: u8,
    purpose: Purpose,
    is_heavy: bool,
    /// An Event has no owner that would ask again: it is kept until it is answered.
    news: Option<Ask>,
}

/// Requests that wait, and requests in the outbox by their slot.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    slots: std::ops::Range<u8>,
    pub(crate) waiting: VecDeque<Ask>,
    /// Requests for pods without a record here: there may be thousands.
    pub(crate) later: VecDeque<Ask>,
    sent: Vec<Sent>,
    /// When each namespace had its last turn.
    turns: SortedMap<String, u64>,
    turn: u64,
    /// No request about a large pod is sent before this time.
    heavy_from: Duration,
    /// When to look again because a large pod has to wait for its time. All other changes here come with an
    /// event.
    wake: Option<Duration>,
}

impl Lane {
    pub(crate) fn new(slots: std::ops::Range<u8>) -> Self {
        let (waiting, later) = (VecDeque::new(), VecDeque::new());
        Self {
            slots,
            waiting,
            later,
            sent: Vec::new(),
            turns: SortedMap::new(),
            turn: 0,
            heavy_from: Duration::ZERO,
            wake: None,
        }
    }

    /// Sends as many requests as there are free slots. `is_stale`: a request for a pod that had no record
    /// then but has one now must not be sent.
    pub(crate) fn send(&mut self, turn: &mut Turn, is_stale: &dyn Fn(&Purpose) -> bool) {
        self.fill(turn, is_stale);
        self.wake = self.waits_until(turn.now.mono);
    }

    fn fill(&mut self, turn: &mut Turn, is_stale: &dyn Fn(&Purpose) -> bool) {
        for slot in self.slots.clone() {
            let key = RequestKey::Pods(slot);
            let is_taken = self.sent.iter().any(|sent| sent.slot == slot);
            // a slot whose request was sent to another server stays taken until that server answered
            if is_taken || !turn.outbox.is_free(turn.now, &key) {
                continue;
            }
            let Some((is_later, at)) = self.next_valid(turn.now.mono, is_stale) else { return };
            let queue = if is_later { &self.later } else { &self.waiting };
            let ask = Box::new(queue[at].body.clone());
            if !turn.outbox.put(turn.now, key, Order::Request(Request::Pods { slot, ask })) {
                return;
            }
            self.begin(turn.now.mono, slot, is_later, at);
        }
    }

    /// When to send the requests that have to wait for a time.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.wake
    }

    /// A future time; requests that wait for the outbox or for an answer are sent when it comes.
    fn waits_until(&self, now: Duration) -> Option<Duration> {
        let is_under_way = self.sent.iter().any(|sent| sent.is_heavy);
        let mut waiting = self.waiting.iter().chain(&self.later);
        (now < self.heavy_from && !is_under_way && waiting.any(Ask::is_heavy)).then_some(self.heavy_from)
    }

    /// The next request: whether it is in the last queue, and its position.
    fn next(&self, now: Duration) -> Option<(bool, usize)> {
        let of = |is_later: bool, queue| self.next_of(now, queue).map(|at| (is_later, at));
        of(false, &self.waiting).or_else(|| of(true, &self.later))
    }

    /// The same, after dropping those that are stale.
    fn next_valid(&mut self, now: Duration, is_stale: &dyn Fn(&Purpose) -> bool) -> Option<(bool, usize)> {
        loop {
            let (is_later, at) = self.next(now)?;
            if !is_later || !is_stale(&self.later[at].purpose) {
                return Some((is_later, at));
            }
            self.later.remove(at);
        }
    }

    fn begin(&mut self, now: Duration, slot: u8, is_later: bool, at: usize) {
        let queue = if is_later { &mut self.later } else { &mut self.waiting };
        if let Some(ask) = queue.remove(at) {
            let is_heavy = ask.is_heavy();
            if is_heavy {
                let millis = ask.bytes.saturating_mul(1000) / HEAVY_BYTES_A_SEC;
                let pause = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
                self.heavy_from = now.saturating_add(pause.min(LONGEST_PAUSE));
            }
            self.had_its_turn(ask.namespace.clone());
            let is_news = matches!(ask.purpose, Purpose::News(_));
            let (purpose, news) = if is_news { (Purpose::News(0), Some(ask)) } else { (ask.purpose, None) };
            self.sent.push(Sent { slot, purpose, is_heavy, news });
        }
    }

    /// The first request of the namespace whose last turn was longest ago.
    fn next_of(&self, now: Duration, queue: &VecDeque<Ask>) -> Option<usize> {
        let may_be_heavy = now >= self.heavy_from && !self.sent.iter().any(|sent| sent.is_heavy);
        let may = queue.iter().enumerate().filter(|(_, ask)| may_be_heavy || !ask.is_heavy());
        let last = |ask: &Ask| self.turns.get(&ask.namespace).copied().unwrap_or(0);
        may.min_by_key(|(_, ask)| (last(ask), !ask.is_urgent)).map(|(at, _)| at)
    }

    fn had_its_turn(&mut self, namespace: String) {
        if self.turns.len() == KNOWN_TURNS && !self.turns.contains_key(&namespace) {
            self.turns.clear();
        }
        self.turn = self.turn.saturating_add(1);
        self.turns.insert(namespace, self.turn);
    }

    /// Makes room when too many wait: drops the oldest of the namespace that has most, and one that is not
    /// urgent if there is any.
    pub(crate) fn drop_beyond(&mut self, most: usize) {
        while self.waiting.len() >= most.max(1) {
            let mut counts: SortedMap<&str, usize> = SortedMap::new();
            for ask in &self.waiting {
                let count = counts.entry(&ask.namespace).or_default();
                *count = count.saturating_add(1);
            }
            let largest = counts.iter().max_by_key(|(_, count)| **count).map(|(namespace, _)| *namespace);
            let is_its_own = |ask: &Ask| Some(ask.namespace.as_str()) == largest;
            let calm = self.waiting.iter().position(|ask| is_its_own(ask) && !ask.is_urgent);
            let oldest = calm.or_else(|| self.waiting.iter().position(is_its_own));
            self.waiting.remove(oldest.unwrap_or(0));
        }
    }

    /// The purpose of the request in this slot.
    pub(crate) fn answered(&mut self, slot: u8) -> Option<Purpose> {
        let at = self.sent.iter().position(|sent| sent.slot == slot)?;
        Some(self.sent.swap_remove(at).purpose)
    }

    /// The Event in this slot was not taken now: it waits again behind the others, with the name it has. False
    /// if it failed `most` times, and is dropped.
    pub(crate) fn try_again(&mut self, slot: u8, most: u8) -> bool {
        let at = self.sent.iter().position(|sent| sent.slot == slot);
        let Some(mut ask) = at.and_then(|at| self.sent.swap_remove(at).news) else { return true };
        let Purpose::News(tries) = &mut ask.purpose else { return true };
        *tries = tries.saturating_add(1);
        let is_kept = *tries < most;
        if is_kept {
            self.waiting.push_back(ask);
        }
        is_kept
    }

    /// Events on their way wait again, because no answer to them counts any longer.
    pub(crate) fn take_back(&mut self) {
        self.waiting.extend(self.sent.drain(..).filter_map(|sent| sent.news));
    }

    /// Forgets all requests, because they will not be answered.
    pub(crate) fn give_up(&mut self) -> Vec<Purpose> {
        let waiting = self.waiting.drain(..).chain(self.later.drain(..)).map(|ask| ask.purpose);
        self.sent.drain(..).map(|sent| sent.purpose).chain(waiting).collect()
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty() && self.later.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const SLOTS: u8 = 4;

    fn ask(namespace: &str, bytes: usize) -> Ask {
        let body = PodAsk::PostEvent { namespace: namespace.into(), body: Value::Null };
        Ask { purpose: Purpose::News(0), body, namespace: namespace.into(), bytes, is_urgent: false }
    }

    fn lane(waiting: impl IntoIterator<Item = Ask>, later: impl IntoIterator<Item = Ask>) -> Lane {
        let mut lane = Lane::new(0..SLOTS);
        (lane.waiting, lane.later) = (waiting.into_iter().collect(), later.into_iter().collect());
        lane
    }

    /// The order in which it sends: as many at once as there are slots, then one for each answer, the oldest
    /// first, one a second.
    fn asked(mut lane: Lane) -> String {
        let (mut order, mut now) = (String::new(), Duration::ZERO);
        loop {
            now += Duration::from_secs(1);
            while lane.sent.len() < usize::from(SLOTS)
                && let Some((is_later, at)) = lane.next(now)
            {
                let queue = if is_later { &lane.later } else { &lane.waiting };
                order.push_str(&queue[at].namespace);
                let slot = (0..SLOTS).find(|slot| lane.sent.iter().all(|sent| sent.slot != *slot));
                lane.begin(now, slot.expect("one is free"), is_later, at);
            }
            let Some(oldest) = lane.sent.first().map(|sent| sent.slot) else {
                match lane.waits_until(now) {
                    None => return order,
                    Some(due) => {
                        now = due;
                        continue;
                    }
                }
            };
            assert!(
                lane.sent.iter().filter(|sent| sent.is_heavy).count() <= 1,
                "heavy ones go one at a time"
            );
            lane.answered(oldest);
        }
    }

    #[test]
    fn urgent_ones_stay_and_go_before_others() {
        let urgent = |namespace: &str| Ask { is_urgent: true, ..ask(namespace, 0) };
        let mut lane = lane([urgent("a"), ask("a", 0), urgent("a"), ask("b", 0)], []);
        let left = |lane: &Lane| -> String {
            let word =
                |ask: &Ask| if ask.is_urgent { ask.namespace.to_uppercase() } else { ask.namespace.clone() };
            lane.waiting.iter().map(word).collect()
        };
        lane.drop_beyond(4);
        assert_eq!(left(&lane), "AAb", "of the namespace that has most");
        lane.drop_beyond(3);
        assert_eq!(left(&lane), "Ab", "its oldest where all are");
        lane.waiting = [ask("a", 0), urgent("a"), ask("b", 0)].into();
        let (is_later, at) = lane.next(Duration::ZERO).expect("some wait");
        assert_eq!((is_later, lane.waiting[at].is_urgent), (false, true));
    }

    #[test]
    fn requests_of_several_namespaces_alternate() {
        let many = (0..6).map(|_| ask("a", 5000));
        assert_eq!(
            asked(lane(many.chain([ask("b", 5000), ask("c", 5000), ask("b", 5000)]), [])),
            "abcabaaaa"
        );
    }

    #[test]
    fn heavy_requests_hold_up_no_others() {
        let heavy = || (0..6).map(|_| ask("h", 1_300_000));
        let light = || (0..6).map(|_| ask("l", 5000));
        // 25 s pass between two heavy ones
        assert_eq!(asked(lane(heavy().chain(light()), [])), "hllllllhhhhh");
        assert_eq!(asked(lane(heavy(), light())), "hllllllhhhhh");
        let of_one = [ask("a", 1_300_000), ask("a", 5000)];
        assert_eq!(
            asked(lane(of_one.into_iter().chain((0..20).map(|_| ask("b", 5000))), [])).find('b'),
            Some(1)
        );
    }

    #[test]
    fn requests_for_pods_that_are_not_remembered_go_last() {
        assert_eq!(asked(lane([ask("a", 5000), ask("a", 5000)], [ask("b", 5000)])), "aab");
    }

    #[test]
    fn answer_to_a_pod_that_is_remembered_now_is_not_sent() {
        let mut lane = lane([], [ask("taken", 5000), ask("other", 5000)]);
        // all have the same purpose here: only the first is checked as stale
        let asked = std::cell::Cell::new(0);
        let is_stale = |_: &Purpose| asked.replace(asked.get() + 1) == 0;
        let (is_later, at) = lane.next_valid(Duration::ZERO, &is_stale).expect("the other is sent");
        assert!(is_later && lane.later[at].namespace == "other" && lane.later.len() == 1);
    }

    /// Otherwise the agent would look again at once, over and over.
    #[test]
    fn wait_for_something_else_than_time_has_no_deadline() {
        let mut lane = lane([ask("h", 1_300_000), ask("h", 1_300_000)], []);
        let at = Duration::from_secs;
        assert_eq!(lane.waits_until(at(1)), None, "it may go now, as soon as the outbox takes it");
        lane.begin(at(1), 0, false, 0);
        assert_eq!(lane.waits_until(at(1)), None, "an answer comes first");
        lane.answered(0);
        let due = lane.waits_until(at(2)).expect("the next waits for its time");
        assert!(due > at(20) && lane.waits_until(due).is_none(), "{due:?}");
    }

    #[test]
    fn room_is_made_by_who_has_most() {
        let mut lane = lane((0..5).map(|_| ask("a", 5000)).chain([ask("b", 5000)]), []);
        for namespace in ["b", "c", "a", "a"] {
            lane.drop_beyond(6);
            lane.waiting.push_back(ask(namespace, 5000));
        }
        let left: String = lane.waiting.iter().map(|ask| ask.namespace.as_str()).collect();
        assert_eq!(left, "abbcaa");
    }

    #[test]
    fn turns_that_are_known_do_not_grow() {
        let mut lane = lane((0..1000).map(|index| ask(&index.to_string(), 5000)), []);
        while let Some((is_later, at)) = lane.next(Duration::ZERO) {
            lane.begin(Duration::ZERO, 0, is_later, at);
            lane.answered(0);
        }
        assert!(lane.turns.len() <= KNOWN_TURNS && lane.is_idle());
    }
}
