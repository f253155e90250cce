//! The Lease: when it is renewed and with what request.
//!
//! Always holds: renewing depends on nothing but the Node's existence, not on its status and not on the
//! configuration's state; a Lease is never created for a Node that is not known to exist; a renewal is as
//! short as it can be, and a Lease that is refused because of a wish for a smaller answer is renewed without
//! it.

use crate::answer::{Answer, Now};
use crate::event::LeaseRequest;
use crate::outbox::{Terms, Verdict};
use crate::pace::Jitter;
use serde_json::json;
use std::time::Duration;

/// Upstream renews at a quarter of the duration and stretches by 4 %.
const RENEWALS_PER_DURATION: u32 = 4;
const STRETCH: f64 = 0.04;

/// Longest time for a renewal, however long the Lease lasts: a later answer is unlikely, and three more tries
/// must fit into the grace period of a control plane (40 to 50 s).
const LONGEST_REQUEST: Duration = Duration::from_secs(10);

/// Shortest time for a renewal, however short the Lease: a handshake over a link of 600 ms with losses takes
/// seconds, and a renewal that is cut off before its answer never succeeds.
const SHORTEST_REQUEST: Duration = Duration::from_secs(4);

/// Shortest pause after a failure, whatever the period: each try is a new connection.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// The kind of the last request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    Renew,
    Patch { drops_managers: bool },
    Create,
}

#[derive(Debug, Clone)]
pub(crate) struct LeaseKeeper {
    name: String,
    duration_secs: u32,
    node_uid: Option<String>,
    /// The Lease has our owner reference and duration: a renewal is its time alone.
    claimed: bool,
    missing: bool,
    /// It was found missing, and no renewal has ended since: it is created once, then there is a pause.
    repaired: bool,
    /// UID of the Node that the last request was for.
    asked_for: String,
    asked: Asked,
    /// Whether a renewal drops the server's record of managed fields, which is two thirds of each answer: a
    /// Lease that only this node writes does not need it. Our hub sends no object in its answers anyway.
    drops_managers: bool,
    due: Duration,
    pub(crate) renewed: u64,
    pub(crate) last_renewed: Option<Duration>,
}

impl LeaseKeeper {
    pub(crate) fn new(name: &str, duration_secs: u32, now: Now) -> Self {
        Self {
            name: name.to_owned(),
            duration_secs,
            node_uid: None,
            claimed: false,
            missing: false,
            repaired: false,
            asked_for: String::new(),
            asked: Asked::Renew,
            drops_managers: false,
            due: now.mono,
            renewed: 0,
            last_renewed: None,
        }
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.duration_secs.into()).checked_div(RENEWALS_PER_DURATION).unwrap_or_default()
    }

    /// Time for a renewal: its period, because then the next is due.
    pub(crate) fn request_deadline(&self) -> Duration {
        self.period().clamp(SHORTEST_REQUEST, LONGEST_REQUEST)
    }

    /// The terms of its requests. A busy server may ask for a longer pause than a node may be silent: half
    /// the duration is safe.
    pub(crate) fn terms(&self) -> Terms {
        let patience = Duration::from_millis(u64::from(self.duration_secs).saturating_mul(500));
        let longest_wait = self.period().max(SHORTEST_PAUSE);
        Terms { longest_wait, patience, is_alone: true, ..Terms::default() }
    }

    /// The Node as last seen; `None` if it does not exist. Returns whether it is another one: then a renewal
    /// is due now.
    pub(crate) fn node(&mut self, uid: Option<&str>, now: Now) -> bool {
        let is_another = self.node_uid.as_deref() != uid;
        if is_another {
            self.node_uid = uid.map(str::to_owned);
            self.claimed = false;
            self.due = now.mono;
        }
        is_another
    }

    /// Another server: its Node is not known yet, and it has no Lease of ours.
    pub(crate) fn server_changed(&mut self, now: Now) {
        self.node(None, now);
        (self.missing, self.repaired, self.drops_managers) = (false, false, false);
    }

    /// The server's version is known. On a server other than our hub the next renewal drops the record of
    /// managed fields.
    pub(crate) fn server_is(&mut self, is_hub: bool) {
        if self.drops_managers == is_hub {
            (self.drops_managers, self.claimed) = (!is_hub, false);
        }
    }

    /// The request that is due, if one is. Not while another is in flight.
    pub(crate) fn poll(&mut self, now: Now) -> Option<LeaseRequest> {
        let uid = self.node_uid.as_ref().filter(|_| now.mono >= self.due)?;
        self.asked_for.clone_from(uid);
        // the next is due from now on, not from the answer on
        self.due = now.mono.saturating_add(self.period());
        let renew_time = now.wall.rfc3339_micros();
        if self.claimed && !self.missing {
            self.asked = Asked::Renew;
            return Some(LeaseRequest::Renew(renew_time));
        }
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": uid}]);
        let spec = json!({
            "holderIdentity": self.name,
            "leaseDurationSeconds": self.duration_secs,
            "renewTime": renew_time,
        });
        let drops_managers = self.drops_managers;
        self.asked = if self.missing { Asked::Create } else { Asked::Patch { drops_managers } };
        Some(if self.missing {
            LeaseRequest::Create(json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": self.name,
                    "namespace": kedge_api::NODE_LEASE_NAMESPACE,
                    "ownerReferences": owner,
                },
                "spec": spec,
            }))
        } else {
            let mut metadata = json!({"ownerReferences": owner});
            if drops_managers {
                // upstream's servers drop all entries when they get one empty entry. An update adds none
                // again, only another apply does
                metadata["managedFields"] = json!([{}]);
            }
            LeaseRequest::Patch(json!({"metadata": metadata, "spec": spec}))
        })
    }

    /// Whether the Lease existed, and was ours, at the last request.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// The answer to the last request.
    pub(crate) fn answered(&mut self, now: Now, answer: &Answer, jitter: &mut Jitter) -> Verdict {
        match answer {
            Answer::Accepted(_) => {
                let is_complete = match self.asked {
                    Asked::Renew => self.claimed,
                    Asked::Patch { drops_managers } => drops_managers == self.drops_managers,
                    Asked::Create => !self.drops_managers,
                };
                // a Node re-created meanwhile, or on another server, does not own the Lease of this answer
                let is_owned = self.node_uid.as_ref() == Some(&self.asked_for);
                (self.claimed, self.missing) = (is_owned && is_complete, false);
                self.repaired = false;
                self.renewed = self.renewed.saturating_add(1);
                self.last_renewed = Some(now.mono);
                let period = self.period();
                self.due = self
                    .due
                    .saturating_add(jitter.stretch(period, STRETCH).saturating_sub(period))
                    .max(now.mono);
                Verdict::Done
            }
            Answer::Refused { status: 404, .. } if !self.missing && !self.repaired => {
                (self.claimed, self.missing, self.repaired) = (false, true, true);
                self.due = now.mono;
                Verdict::Again
            }
            Answer::Refused { status: 409, .. } if self.missing => {
                (self.claimed, self.missing) = (false, false);
                self.due = now.mono;
                Verdict::Again
            }
            Answer::Refused { .. } | Answer::Failed(_) => {
                let refused =
                    answer.refusal().filter(|(status, _)| !matches!(status, 401 | 404 | 409 | 429 | 503));
                if refused.is_some() && self.asked == (Asked::Patch { drops_managers: true }) {
                    // the Lease matters, not its size
                    self.drops_managers = false;
                }
                // the namespace, the node's right or the Lease may be missing: start again with a patch
                (self.missing, self.repaired) = (false, false);
                self.due = now.mono;
                Verdict::Failed
            }
        }
    }

    /// When a renewal is due, unless one is in flight or waits after a failure.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.node_uid.as_ref().map(|_| self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::{self, Outbox, Sendable};
    use kedge_api::Timestamp;

    fn at(ms: u64) -> Now {
        Now { mono: Duration::from_millis(ms), wall: Timestamp::from_micros(1_763_688_958_000_000) }
    }

    fn refused(status: u16) -> Answer {
        Answer::Refused { status, reason: String::new(), message: "no".into(), retry_after: None }
    }

    fn keeper() -> (LeaseKeeper, Jitter) {
        let mut keeper = LeaseKeeper::new("edge-1", 40, at(0));
        keeper.node(Some("uid-1"), at(0));
        (keeper, Jitter::new(1))
    }

    impl Sendable for LeaseRequest {
        fn bytes(&self) -> usize {
            0
        }
    }

    /// A keeper and the outbox for its requests.
    struct Bench {
        keeper: LeaseKeeper,
        outbox: Outbox<(), LeaseRequest>,
        jitter: Jitter,
    }

    impl Bench {
        fn of(duration_secs: u32) -> Self {
            let mut keeper = LeaseKeeper::new("edge-1", duration_secs, at(0));
            keeper.node(Some("uid-1"), at(0));
            let mut outbox = Outbox::new(outbox::LIMITS);
            outbox.set_terms((), keeper.terms());
            Self { keeper, outbox, jitter: Jitter::new(1) }
        }

        /// Whether a request is sent.
        fn sends(&mut self, now: Now) -> bool {
            if self.outbox.is_free(now, &())
                && let Some(request) = self.keeper.poll(now)
            {
                assert!(self.outbox.put(now, (), request));
            }
            self.outbox.take_due(now).is_some()
        }

        fn answered(&mut self, now: Now, answer: &Answer) {
            let verdict = self.keeper.answered(now, answer, &mut self.jitter);
            self.outbox.answered(now, &(), answer, verdict, &mut self.jitter);
        }

        fn next_try(&self, now: Now) -> Duration {
            let free = self.outbox.next_deadline(now).unwrap_or_default();
            self.keeper.next_deadline().expect("the Node is known").max(free)
        }
    }

    #[test]
    fn unknown_node_gets_no_lease_request() {
        let mut keeper = LeaseKeeper::new("edge-1", 40, at(0));
        assert_eq!(keeper.poll(at(100_000)), None);
        assert_eq!(keeper.next_deadline(), None);
    }

    #[test]
    fn first_renewal_claims_and_the_next_send_only_the_time() {
        let (mut keeper, mut jitter) = keeper();
        let Some(LeaseRequest::Patch(first)) = keeper.poll(at(0)) else { panic!("no patch") };
        assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
        assert_eq!(keeper.poll(at(5)), None, "not due");
        keeper.answered(at(5), &Answer::Accepted(None), &mut jitter);
        let due = keeper.next_deadline().unwrap();
        assert!((10_000..=10_400).contains(&due.as_millis()), "{due:?}");
        assert_eq!(keeper.poll(at(9_999)), None);
        let second = keeper.poll(at(10_400)).unwrap();
        assert_eq!(second, LeaseRequest::Renew("2025-11-21T01:35:58.000000Z".into()));
    }

    /// The next request, which is accepted, and whether it drops the record of managed fields.
    fn accepted(keeper: &mut LeaseKeeper, jitter: &mut Jitter) -> (LeaseRequest, bool) {
        let now = Now { mono: keeper.next_deadline().expect("the Node is known"), ..at(0) };
        let request = keeper.poll(now).expect("it is due");
        keeper.answered(now, &Answer::Accepted(None), jitter);
        let drops = match &request {
            LeaseRequest::Patch(body) => body["metadata"]["managedFields"] == json!([{}]),
            _ => false,
        };
        (request, drops)
    }

    #[test]
    fn record_of_managers_is_dropped_once_elsewhere() {
        let (mut keeper, mut jitter) = keeper();
        assert!(!accepted(&mut keeper, &mut jitter).1, "the server has not said what it is");
        keeper.server_is(false);
        assert!(accepted(&mut keeper, &mut jitter).1);
        assert!(matches!(accepted(&mut keeper, &mut jitter).0, LeaseRequest::Renew(_)));
        // a new Lease has the record of its creation
        let now = Now { mono: keeper.next_deadline().expect("the Node is known"), ..at(0) };
        keeper.poll(now);
        keeper.answered(now, &refused(404), &mut jitter);
        assert!(matches!(accepted(&mut keeper, &mut jitter).0, LeaseRequest::Create(_)));
        assert!(accepted(&mut keeper, &mut jitter).1);
        assert!(matches!(accepted(&mut keeper, &mut jitter).0, LeaseRequest::Renew(_)));
        // another server, which is our hub
        keeper.server_changed(now);
        keeper.node(Some("uid-1"), now);
        keeper.server_is(true);
        assert!(!accepted(&mut keeper, &mut jitter).1);
    }

    #[test]
    fn server_that_keeps_its_record_loses_no_lease() {
        for status in [400, 403, 422, 500] {
            let (mut keeper, mut jitter) = keeper();
            keeper.server_is(false);
            assert!(matches!(keeper.poll(at(0)), Some(LeaseRequest::Patch(_))));
            assert_eq!(keeper.answered(at(1), &refused(status), &mut jitter), Verdict::Failed);
            let (request, drops) = accepted(&mut keeper, &mut jitter);
            assert!(matches!(request, LeaseRequest::Patch(_)) && !drops, "{status}");
            assert!(matches!(accepted(&mut keeper, &mut jitter).0, LeaseRequest::Renew(_)), "{status}");
        }
    }

    #[test]
    fn missing_lease_is_created_with_its_owner() {
        let (mut keeper, mut jitter) = keeper();
        keeper.poll(at(0));
        keeper.answered(at(1), &refused(404), &mut jitter);
        let Some(LeaseRequest::Create(lease)) = keeper.poll(at(1)) else { panic!("no create") };
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        keeper.answered(at(2), &refused(409), &mut jitter);
        assert!(matches!(keeper.poll(at(2)), Some(LeaseRequest::Patch(_))));
        keeper.answered(at(3), &Answer::Accepted(None), &mut jitter);
        assert_eq!(keeper.renewed, 1);
    }

    #[test]
    fn deleted_node_gets_no_lease_and_a_new_one_gets_its_own() {
        let (mut keeper, mut jitter) = keeper();
        keeper.poll(at(0));
        keeper.answered(at(1), &Answer::Accepted(None), &mut jitter);
        keeper.node(None, at(2));
        assert_eq!(keeper.poll(at(60_000)), None);
        keeper.node(Some("uid-2"), at(60_000));
        let Some(LeaseRequest::Patch(claim)) = keeper.poll(at(60_000)) else { panic!("no patch") };
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "uid-2");
    }

    #[test]
    fn lease_of_a_new_node_waits_for_no_period() {
        let (mut keeper, mut jitter) = keeper();
        keeper.poll(at(0));
        keeper.answered(at(1), &Answer::Accepted(None), &mut jitter);
        assert_eq!(keeper.poll(at(3_000)), None, "not due");
        keeper.node(Some("uid-2"), at(3_000));
        assert!(matches!(keeper.poll(at(3_000)), Some(LeaseRequest::Patch(_))));
    }

    #[test]
    fn renewals_of_a_fleet_spread() {
        let due = |seed: u64| {
            let (mut keeper, _) = keeper();
            keeper.poll(at(0));
            keeper.answered(at(1), &Answer::Accepted(None), &mut Jitter::new(seed * 7919));
            keeper.next_deadline().expect("it is renewed").as_millis()
        };
        let dues: std::collections::BTreeSet<u128> = (1..=20).map(due).collect();
        assert!(dues.len() >= 12 && dues.iter().all(|due| (10_000..=10_400).contains(due)), "{dues:?}");
    }

    #[test]
    fn failures_back_off_within_the_period() {
        let mut bench = Bench::of(40);
        let mut now = 0;
        for failures in 1..=20 {
            assert!(bench.sends(at(now)) && !bench.sends(at(now)), "one at a time");
            bench.answered(at(now), &Answer::Failed("no route".into()));
            assert_eq!(bench.outbox.failures(&()), failures);
            // a test's clock has whole milliseconds, and a deadline may have fractions
            let wait = bench.next_try(at(now)).as_millis() as u64 + 1 - now;
            assert!((1_000..=12_501).contains(&wait), "{wait}");
            now += wait;
        }
        assert!(bench.sends(at(now)));
        bench.answered(at(now), &Answer::Accepted(None));
        assert_eq!(bench.outbox.failures(&()), 0);
    }

    #[test]
    fn request_deadline_follows_the_period_up_to_its_limit() {
        let deadline = |secs| LeaseKeeper::new("edge-1", secs, at(0)).request_deadline();
        assert_eq!(deadline(40), Duration::from_secs(10));
        assert_eq!(deadline(160), Duration::from_secs(10));
        assert_eq!(deadline(20), Duration::from_secs(5));
        for short in [0, 1, 4, 16] {
            assert_eq!(deadline(short), Duration::from_secs(4), "{short}");
        }
    }

    #[test]
    fn shortest_lease_pauses_a_second_after_a_failure() {
        for secs in [0, 1, 4] {
            let mut bench = Bench::of(secs);
            let mut now = at(0);
            for _ in 0..4 {
                assert!(bench.sends(now));
                bench.answered(now, &Answer::Failed("late".into()));
                let next = bench.next_try(now);
                assert!(next >= now.mono + Duration::from_secs(1), "{secs}");
                now.mono = next;
            }
        }
    }

    #[test]
    fn retry_after_is_honoured_within_the_lease() {
        let mut bench = Bench::of(40);
        assert!(bench.sends(at(0)));
        let busy = Answer::Refused {
            status: 429,
            reason: "TooManyRequests".into(),
            message: "later".into(),
            retry_after: Some(Duration::from_secs(30)),
        };
        bench.answered(at(0), &busy);
        assert_eq!(bench.next_try(at(0)), Duration::from_secs(20));
    }

    /// The last of these answers, each to a request sent when it was due, is followed by a pause.
    #[track_caller]
    fn check_pause(answers: &[u16]) {
        let mut bench = Bench::of(40);
        for status in answers {
            assert!(bench.sends(at(0)), "asked again at once until the last");
            bench.answered(at(0), &refused(*status));
        }
        assert!(!bench.sends(at(0)) && bench.next_try(at(0)) >= Duration::from_secs(1));
    }

    #[test]
    fn unexpected_404_or_409_is_followed_by_a_pause() {
        // neither patched nor created: its namespace is missing
        check_pause(&[404, 404]);
        // a patch that conflicts is not repaired by another patch
        check_pause(&[409]);
        check_pause(&[404, 409, 409]);
        // it exists for a create and not for a patch
        check_pause(&[404, 409, 404]);
    }
}
