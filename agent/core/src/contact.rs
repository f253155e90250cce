//! Contact with the API server as an operator sees it: since when it exists, or since when not, and why.
//!
//! Owns the log lines about it. Always holds: an outage is one line when it begins and one when it ends,
//! whatever fails because of it; a line of work (a watch, a kind of request) without answers while the Lease
//! is renewed is a problem of its own, and is logged once. Leaves to others: the effect of contact on a trial
//! (`config`), retries, refusals (`agent`).

use crate::answer::{Level, Now};
use crate::sorted::SortedMap;
use serde::Serialize;
use std::time::Duration;

/// From the second consecutive failure on it is more than a lost packet.
const MORE_THAN_A_HICCUP: u64 = 2;

/// Key under which an unusable kubeconfig is logged. Each other problem of it is logged: it may be half
/// corrected.
pub(crate) const KUBECONFIG_LINE: &str = "kubeconfig";

/// A log line.
type Line = (Level, String);

#[derive(Debug, Clone)]
enum State {
    /// Not since the start, or not with this server.
    NotYet {
        since: Duration,
        problem: Option<String>,
        logged: Option<String>,
    },
    Made {
        since: Duration,
    },
    Lost {
        since: Duration,
        problem: String,
    },
}

/// A request, a watch, or the reading of the kubeconfig, that has had no answer since its last success.
#[derive(Debug, Clone)]
struct Silence {
    problem: String,
    failures: u64,
    is_logged: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Contact {
    state: State,
    silent: SortedMap<String, Silence>,
}

/// The contact's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContactReport {
    /// not-yet, made or lost.
    pub state: &'static str,
    /// For how long.
    pub seconds: u64,
    /// Why there is no contact.
    pub problem: Option<String>,
}

impl Contact {
    pub(crate) fn new(now: Now) -> Self {
        Self {
            state: State::NotYet { since: now.mono, problem: None, logged: None },
            silent: SortedMap::new(),
        }
    }

    /// The server accepted `what`: a renewal of the Lease, or, before there is a Lease, a status.
    pub(crate) fn accepted(&mut self, now: Now, what: &str) -> Vec<Line> {
        let (without, again) = match &self.state {
            State::Made { .. } => return self.problems_of_their_own(),
            State::NotYet { since, .. } => (since, ""),
            State::Lost { since, .. } => (since, " again"),
        };
        let secs = now.mono.saturating_sub(*without).as_secs();
        let line = format!("contact with the API server{again} after {secs} s: {what}");
        self.state = State::Made { since: now.mono };
        // lines of work that still fail will fail again
        self.silent.clear();
        vec![(Level::Info, line)]
    }

    /// The Lease was not renewed, for the `failures`th consecutive time.
    pub(crate) fn not_renewed(&mut self, now: Now, problem: String, failures: u64) -> Option<Line> {
        match &self.state {
            State::NotYet { .. } => self.not_yet(problem, false),
            State::Made { .. } if failures >= MORE_THAN_A_HICCUP => {
                let line = format!("contact with the API server lost: {problem}; retrying");
                self.state = State::Lost { since: now.mono, problem };
                Some((Level::Warn, line))
            }
            State::Made { .. } | State::Lost { .. } => None,
        }
    }

    /// There was no answer on a line of work other than the Lease's; `is_first`: since its last success.
    pub(crate) fn no_answer(&mut self, line: &str, problem: &str, is_first: bool) -> Option<Line> {
        if matches!(self.state, State::NotYet { .. }) {
            return self.not_yet(problem.to_owned(), line == KUBECONFIG_LINE);
        }
        if is_first {
            self.silent.remove(line);
        }
        let silence = self.silent.entry(line.to_owned()).or_insert(Silence {
            problem: String::new(),
            failures: 0,
            is_logged: false,
        });
        silence.failures = silence.failures.saturating_add(1);
        problem.clone_into(&mut silence.problem);
        None
    }

    /// The line of work was answered.
    pub(crate) fn answered(&mut self, line: &str) {
        self.silent.remove(line);
    }

    /// Some watch had an answer of the server; which one is unknown, so each has to fail again before it is
    /// logged.
    pub(crate) fn watch_answered(&mut self) {
        self.silent.retain(|_, silence| silence.is_logged);
    }

    /// Another server, about which nothing is known.
    pub(crate) fn server_changed(&mut self, now: Now) {
        *self = Self::new(now);
    }

    pub(crate) fn report(&self, now: Now) -> ContactReport {
        let (state, since, problem) = match &self.state {
            State::NotYet { since, problem, .. } => ("not-yet", since, problem.clone()),
            State::Made { since } => ("made", since, None),
            State::Lost { since, problem } => ("lost", since, Some(problem.clone())),
        };
        ContactReport { state, seconds: now.mono.saturating_sub(*since).as_secs(), problem }
    }

    /// The first problem is logged; the report has the latest.
    fn not_yet(&mut self, why: String, is_kubeconfig: bool) -> Option<Line> {
        let State::NotYet { problem, logged, .. } = &mut self.state else { return None };
        *problem = Some(why.clone());
        if logged.as_ref().is_some_and(|logged| !is_kubeconfig || *logged == why) {
            return None;
        }
        let line = format!("no contact with the API server yet: {why}; retrying");
        *logged = Some(why);
        Some((Level::Warn, line))
    }

    /// Lines that got no answer since before the Lease was renewed.
    fn problems_of_their_own(&mut self) -> Vec<Line> {
        let lasting = self.silent.iter_mut();
        let lasting =
            lasting.filter(|(_, silence)| silence.failures >= MORE_THAN_A_HICCUP && !silence.is_logged);
        lasting
            .map(|(line, silence)| {
                silence.is_logged = true;
                (Level::Warn, format!("{line}: {}; retrying", silence.problem))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_api::Timestamp;

    fn at(secs: u64) -> Now {
        Now { mono: Duration::from_secs(secs), wall: Timestamp::from_micros(0) }
    }

    fn texts(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
        lines.into_iter().map(|(_, text)| text).collect()
    }

    fn made() -> Contact {
        let mut contact = Contact::new(at(0));
        contact.accepted(at(2), "renewed");
        contact
    }

    #[test]
    fn start_without_server_logs_one_line_until_contact() {
        let mut contact = Contact::new(at(0));
        let first = contact.no_answer("watch-node", "refused", true);
        assert_eq!(texts(first), ["no contact with the API server yet: refused; retrying"]);
        assert_eq!(contact.no_answer("GET /version", "refused", true), None);
        assert_eq!(contact.no_answer("watch-node", "unreachable", false), None);
        let problem = contact.report(at(5)).problem;
        assert_eq!(problem.as_deref(), Some("unreachable"), "the latest");
        let made = contact.accepted(at(7), "Lease edge-1 renewed");
        assert_eq!(texts(made), ["contact with the API server after 7 s: Lease edge-1 renewed"]);
        assert!(contact.accepted(at(17), "Lease edge-1 renewed").is_empty());
        let expect = ContactReport { state: "made", seconds: 13, problem: None };
        assert_eq!(contact.report(at(20)), expect);
    }

    #[test]
    fn each_problem_of_the_kubeconfig_is_logged_once() {
        let mut contact = Contact::new(at(0));
        let mut logged = |line: &str, why: &str| contact.no_answer(line, why, true).is_some();
        assert!(logged("GET /version", "kubeconfig k: no such file"));
        assert!(!logged(KUBECONFIG_LINE, "kubeconfig k: no such file"));
        assert!(logged(KUBECONFIG_LINE, "kubeconfig k: not YAML"));
        assert!(!logged("GET /version", "kubeconfig k: not YAML"));
    }

    #[test]
    fn outage_logs_one_line_whatever_fails() {
        let mut contact = made();
        for failure in 0..5 {
            assert_eq!(contact.no_answer("watch-node", "cut", failure == 0), None);
            assert_eq!(contact.no_answer("watch-configmap", "cut", failure == 0), None);
        }
        assert_eq!(contact.not_renewed(at(10), "no route".into(), 1), None, "one lost packet is no outage");
        let lost = contact.not_renewed(at(12), "no route".into(), 2);
        assert_eq!(texts(lost), ["contact with the API server lost: no route; retrying"]);
        assert_eq!(contact.not_renewed(at(30), "no route".into(), 3), None);
        assert_eq!(contact.report(at(32)).seconds, 20);
        let again = contact.accepted(at(72), "renewed");
        assert_eq!(texts(again), ["contact with the API server again after 60 s: renewed"]);
        assert!(
            contact.accepted(at(82), "renewed").is_empty(),
            "what failed in the outage is not logged after it"
        );
    }

    #[test]
    fn watch_that_fails_alone_is_logged_once() {
        let mut contact = made();
        contact.no_answer("watch-node", "reset", true);
        assert!(contact.accepted(at(12), "renewed").is_empty(), "watches end now and then");
        contact.no_answer("watch-node", "reset", false);
        let own = contact.accepted(at(22), "renewed");
        assert_eq!(texts(own), ["watch-node: reset; retrying"]);
        contact.no_answer("watch-node", "reset", false);
        assert!(contact.accepted(at(32), "renewed").is_empty());
        // a success in between, and another failure
        contact.no_answer("watch-node", "reset", true);
        contact.watch_answered();
        contact.no_answer("watch-node", "reset", true);
        assert!(contact.accepted(at(42), "renewed").is_empty());
    }

    #[test]
    fn another_server_has_no_contact_yet() {
        let mut contact = made();
        contact.server_changed(at(50));
        assert_eq!(contact.report(at(53)), ContactReport { state: "not-yet", seconds: 3, problem: None });
        assert_eq!(
            texts(contact.accepted(at(55), "renewed")),
            ["contact with the API server after 5 s: renewed"]
        );
    }
}
