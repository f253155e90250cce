//! How far an update of a DaemonSet may go: canaries first, when failures stop it, and when it is complete.
//!
//! Always holds: a stop is recorded at its revision (`recorded`), with the generation of the template in
//! which it happened. So an update stays stopped after a hub is killed, and a changed template, an undo or an
//! annotation starts afresh. In the step that would replace more pods the stop is derived from the pods,
//! before it is recorded, so no pod is ended in between. Times are of the hub's clock, from when it saw a
//! pod. Only updates are stopped, never the first rollout of a set, nor a rollout that was complete once.
//! Leaves to others: which pod a held node gets (`update`), and writing (`mod`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::super::placing::Node;
use super::super::rolling::budget::{count, share, time};
use super::super::rolling::recorded::Record;
use super::super::rolling::stop::{self, Stop};
use super::ahead::Step;
use super::history::Revision;
use super::rest::AtRest;
use super::update::{Here, Pod, Strategy, Wanted};
use super::words::{COMPLETE, DRAIN, PAUSED, PRE_PULL};
use crate::selector::Labels;
use crate::value::text;

/// How many nodes may fail: a number, a share, or `off`.
const MAX_FAILURES: &str = "kedge.dev/max-failures";
/// How long a pod of a new revision may take to become ready.
const PROGRESS_DEADLINE: &str = "kedge.dev/progress-deadline";
/// A value that differs from the one at the stop resumes the update.
const RESUME: &str = "kedge.dev/resume";
/// `true`: a stopped update is undone.
const ROLLBACK: &str = "kedge.dev/rollback-on-failure";
/// Nodes that get a new revision first: a label selector.
const CANARY: &str = "kedge.dev/canary-selector";
/// How long the canaries must have been available before other nodes get the revision.
const SOAK: &str = "kedge.dev/canary-soak";
/// How long each pod must have been ready, at least once, before a rollout is complete.
pub(super) const STAYS: &str = "kedge.dev/complete-after";
/// The condition of the set.
pub(super) const STOPPED: &str = "RolloutStopped";

/// Without an annotation: upstream's for Deployments.
const DEADLINE: Duration = Duration::from_secs(10 * 60);
/// Without an annotation: the time after which an unready pod counts as failed, so that bad canaries have
/// failed by then.
const DEFAULT_SOAK: Duration = DEADLINE;
/// Without an annotation: longer than a container takes to crash for the third time.
const DEFAULT_STAYS: Duration = Duration::from_secs(60);
/// Failures that stop an update without an annotation. It is a share, so that it suits any fleet, and never
/// less than the update's own budget: a passing network fault makes at most as many pods wait as the budget
/// allows, and must not stop the update until somebody resumes it.
const DEFAULT_SHARE: &str = "10%";
/// A pull or a start counts as failed after failing for this long, so that a registry's short outage stops no
/// update. Meanwhile the pod is unavailable and uses up the budget. An old pod that is unready for longer
/// counts as not serving.
pub(super) const SETTLES: Duration = Duration::from_secs(60);
/// A container that ended with an error and was started this often counts as crashing, even if it runs at the
/// moment.
const RESTARTS: i64 = 3;
/// Unless its pod has been ready for this long: the agent, too, forgets crashes of a container after this
/// time.
pub(super) const RECOVERS: Duration = Duration::from_secs(10 * 60);
/// Longest part of a bad value in an Event.
const SHOWN_BYTES: usize = 60;

/// Why a container of a pod does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Crashes,
    Pull,
    Start,
}

impl Trouble {
    /// The worst of a pod's containers.
    pub(super) fn read(status: &Value) -> Option<Trouble> {
        let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
        let mut found = None;
        for container in lists.flat_map(|list| status[list].as_array().into_iter().flatten()) {
            // an init container that has done its work does not start again
            if container["state"]["terminated"]["exitCode"] == 0 {
                continue;
            }
            let ended = &container["lastState"]["terminated"]["exitCode"];
            let restarts = container["restartCount"].as_i64().unwrap_or(0);
            match text(container, &["state", "waiting", "reason"]) {
                "CrashLoopBackOff" => return Some(Trouble::Crashes),
                _ if restarts >= RESTARTS && ended.as_i64().is_some_and(|code| code != 0) => {
                    return Some(Trouble::Crashes);
                }
                "ErrImagePull"
                | "ImagePullBackOff"
                | "InvalidImageName"
                | "ErrImageNeverPull"
                | "ImageInspectError"
                | "RegistryUnavailable"
                | "SignatureValidationFailed" => found = Some(Trouble::Pull),
                "CreateContainerConfigError"
                | "CreateContainerError"
                | "RunContainerError"
                | "StartError"
                | "PreStartHookError"
                | "PostStartHookError" => found = found.or(Some(Trouble::Start)),
                _ => {}
            }
        }
        found
    }
}

/// Why a node failed under a new revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Crashes,
    Pull,
    Start,
    Failed,
    NotReady,
    /// The old pod still waits for the new images, which do not arrive.
    NotPulled,
    Lost,
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Why::Crashes => "crash loop",
            Why::Pull => "image not pulled",
            Why::Start => "container not started",
            Why::Failed => "pod failed",
            Why::NotReady => "not ready in time",
            Why::NotPulled => "image not pulled in time",
            Why::Lost => "node lost",
        })
    }
}

/// Since when the hub has seen a pod unready, and since when a pull or a start of it has failed.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Watch {
    /// A pod that is ready at times, but never long enough to be available, counts as unready all the time.
    unready: Option<Duration>,
    /// Since when it has not been ready for [`RECOVERS`] without a break: a pod that is ready now and then
    /// does not count as starting for ever.
    restless: Option<Duration>,
    /// The longest time for which it was ready on end, but for the present one.
    longest: Duration,
    stuck: Option<Duration>,
    /// The revision of the request to pull images ahead, and since when the node has it.
    asked: Option<(Box<str>, Duration)>,
    /// Since when the node reports that it cannot pull them.
    cannot: Option<Duration>,
}

impl Watch {
    /// `was_ready`: for how long the pod had been ready until now. The pod was available if that is at least
    /// `min_ready`.
    pub(super) fn next(
        self,
        pod: &Pod,
        was_ready: Option<Duration>,
        min_ready: Duration,
        now: Duration,
    ) -> Watch {
        let asked = Some(pod.ahead.asked.as_str()).filter(|asked| !asked.is_empty());
        let known = self.asked.filter(|(known, _)| asked == Some(known));
        let asked = known.or_else(|| Some((asked?.into(), now)));
        let cannot = self.cannot.or(Some(now)).filter(|_| pod.ahead.is_failing());
        let unready = self.unready.filter(|_| was_ready.is_none_or(|time| time < min_ready));
        let restless = self.restless.filter(|_| was_ready.is_none_or(|time| time < RECOVERS));
        let longest = self.longest.max(was_ready.unwrap_or_default());
        if pod.ready_since.is_some() {
            return Watch { unready, restless, longest, stuck: None, asked, cannot };
        }
        let is_stuck = matches!(pod.trouble, Some(Trouble::Pull | Trouble::Start));
        let stuck = self.stuck.or_else(|| is_stuck.then_some(now));
        let (unready, restless) = (unready.or(Some(now)), restless.or(Some(now)));
        Watch { unready, restless, longest, stuck, asked, cannot }
    }

    pub(super) fn unready(&self) -> Option<Duration> {
        self.unready
    }

    pub(super) fn restless(&self) -> Option<Duration> {
        self.restless
    }

    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// Since when the node has been asked to pull images ahead.
    pub(super) fn asked(&self) -> Option<Duration> {
        self.asked.as_ref().map(|(_, since)| *since)
    }

    /// The hub stood still for `by` and received nothing: that time does not count.
    pub(super) fn shift(&mut self, by: Duration, now: Duration) {
        let asked = self.asked.as_mut().map(|(_, since)| since);
        let all =
            [self.unready.as_mut(), self.restless.as_mut(), self.stuck.as_mut(), self.cannot.as_mut(), asked];
        for since in all.into_iter().flatten() {
            *since = (*since + by).min(now);
        }
    }
}

/// The annotations of a set, parsed.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    limit: Limit,
    /// As it is written, to notice a change.
    limit_text: String,
    pub(super) deadline: Duration,
    /// How long a pod stays available before the rollout is complete.
    pub(super) stays: Duration,
    resume: String,
    rolls_back: bool,
    canary: Canary,
    /// Invalid values, each with the value used in its place.
    pub(super) wrong: Vec<String>,
}

#[derive(Debug, PartialEq)]
enum Canary {
    Off,
    /// The selector cannot be parsed, so the canaries are unknown.
    Unreadable,
    /// If the soak time cannot be parsed, other nodes wait without end.
    Nodes(Labels, Option<Duration>),
}

#[derive(Debug, PartialEq)]
enum Limit {
    Default,
    Off,
    /// A number or a percentage.
    Share(Value),
}

impl Settings {
    pub(super) fn read(set: &Value) -> Settings {
        let given = |key: &str| text(set, &["metadata", "annotations", key]).trim();
        let mut wrong = Vec::new();
        // a bad value must not make an update bolder: each falls back to the default or the safe side, and is
        // reported
        let limit = match given(MAX_FAILURES) {
            "" => Limit::Default,
            "off" => Limit::Off,
            found => match count(found) {
                Some(share) => Limit::Share(share),
                None => {
                    let expected = "a number, a percentage of at most 100% or off";
                    wrong.push(complaint(MAX_FAILURES, found, expected, "the default holds"));
                    Limit::Default
                }
            },
        };
        let deadline = match given(PROGRESS_DEADLINE) {
            "" => DEADLINE,
            found => positive(found).unwrap_or_else(|| {
                let expected = "a duration of at most a year, such as 10m";
                wrong.push(complaint(PROGRESS_DEADLINE, found, expected, "the default holds"));
                DEADLINE
            }),
        };
        let stays = match given(STAYS) {
            "" => DEFAULT_STAYS,
            found => time(found).unwrap_or_else(|| {
                let expected = "a duration of at most a year, such as 5m";
                wrong.push(complaint(STAYS, found, expected, "the default holds"));
                DEFAULT_STAYS
            }),
        };
        let rolls_back = match given(ROLLBACK) {
            "" | "false" => false,
            "true" => true,
            found => {
                wrong.push(complaint(ROLLBACK, found, "true or false", "nothing is rolled back"));
                false
            }
        };
        if !matches!(given(PRE_PULL), "" | "true" | "false") {
            let consequence = "the hub's default holds";
            wrong.push(complaint(PRE_PULL, given(PRE_PULL), "true or false", consequence));
        }
        if !matches!(given(DRAIN), "" | "true" | "false" | "force") {
            let consequence = "nodes are drained as for true";
            wrong.push(complaint(DRAIN, given(DRAIN), "true, force or false", consequence));
        }
        if !matches!(given(PAUSED), "" | "true" | "false") {
            wrong.push(complaint(PAUSED, given(PAUSED), "true or false", "the set is paused"));
        }
        let soak = match given(SOAK) {
            "" => Some(DEFAULT_SOAK),
            found => time(found).or_else(|| {
                let expected = "a duration of at most a year, such as 1h";
                wrong.push(complaint(SOAK, found, expected, "nodes beyond the canaries are not updated"));
                None
            }),
        };
        let canary = match given(CANARY) {
            "" => Canary::Off,
            found => match Labels::parse(found) {
                Ok(nodes) => Canary::Nodes(nodes, soak),
                Err(_) => {
                    let expected = "a label selector such as canary=true";
                    wrong.push(complaint(CANARY, found, expected, "no node is updated"));
                    Canary::Unreadable
                }
            },
        };
        Settings {
            limit,
            rolls_back,
            canary,
            limit_text: given(MAX_FAILURES).to_owned(),
            deadline,
            stays,
            resume: given(RESUME).to_owned(),
            wrong,
        }
    }

    /// When a pod that is not ready has failed, if it does not become so before: within the deadline, or, if
    /// it was ready now and then, but never for as long as it is to stay, within both times.
    pub(super) fn overdue_at(&self, pod: &Pod) -> Option<Duration> {
        let never = pod.unready().map(|since| since + self.deadline);
        let unsteady = pod.restless().filter(|_| pod.watch.longest() < self.stays);
        let unsteady = unsteady.map(|since| since + self.deadline + self.stays);
        never.into_iter().chain(unsteady).min()
    }

    pub(super) fn has_canaries(&self) -> bool {
        !matches!(self.canary, Canary::Off)
    }

    pub(super) fn is_canary(&self, node: &Node) -> bool {
        matches!(&self.canary, Canary::Nodes(nodes, _) if nodes.select(|key| node.label(key)))
    }

    /// Most nodes that may fail; `None`: any number.
    fn most(&self, desired: usize, strategy: &Strategy) -> Option<usize> {
        match &self.limit {
            Limit::Off => None,
            Limit::Share(value) => Some(share(value, desired)),
            Limit::Default => {
                let budget = match strategy {
                    Strategy::Rolling { unavailable, surge } => {
                        share(unavailable, desired).max(share(surge, desired)).max(1)
                    }
                    Strategy::OnDelete => 1,
                };
                Some(share(&DEFAULT_SHARE.into(), desired).max(budget))
            }
        }
    }
}

/// The annotations of a set that cannot be parsed, each with the value used in its place.
pub(crate) fn complaints(set: &Value) -> Vec<String> {
    Settings::read(set).wrong
}

fn complaint(key: &str, found: &str, expected: &str, consequence: &str) -> String {
    let shown = &found[..found.floor_char_boundary(SHOWN_BYTES)];
    format!("annotation {key} is {shown:?}, expected {expected}; {consequence}")
}

fn positive(found: &str) -> Option<Duration> {
    time(found).filter(|found| !found.is_zero())
}

/// The nodes that failed under a revision, kept between looks, because a crashing container runs now and
/// then.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Failures {
    /// Hash and generation of the revision.
    of: (String, String),
    nodes: BTreeMap<String, Why>,
}

impl Failures {
    pub(super) fn has(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }
}

/// Which nodes keep their current pod.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Hold {
    #[default]
    Nothing,
    All,
    /// All nodes except these.
    Others(BTreeSet<String>),
}

impl Hold {
    pub(super) fn holds(&self, node: &str) -> bool {
        match self {
            Hold::Nothing => false,
            Hold::All => true,
            Hold::Others(canaries) => !canaries.contains(node),
        }
    }
}

/// The result of a look at a rollout.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    pub(super) hold: Hold,
    /// Nodes that failed; those of a stopped rollout do not count as available.
    pub(super) failed: BTreeSet<String>,
    /// Held nodes whose pod may still be starting: they use up the budget. A pod that is unready for longer
    /// was not broken by this update, and must not keep canaries from getting the revision that fixes it.
    pub(super) starting: BTreeSet<String>,
    /// The reason of the stop, as the set's condition and an Event show it.
    pub(super) stopped: Option<String>,
    /// The template of the proven revision is to replace the current one.
    pub(super) rolls_back: bool,
    /// The new record of the current revision, if it changed.
    pub(super) record: Option<Record>,
    /// The rollout is complete: the number to remember.
    pub(super) complete: Option<i64>,
    /// Events: type, reason, message.
    pub(super) events: Vec<(&'static str, &'static str, String)>,
    /// When to look again if nothing changes.
    pub(super) next: Option<Duration>,
}

/// One look at the rollout of the current revision.
pub(super) struct Judge<'a> {
    pub(super) settings: &'a Settings,
    pub(super) wanted: &'a Wanted,
    pub(super) current: &'a Revision,
    /// The revision is about to get another number.
    pub(super) is_renumbered: bool,
    /// The stored status already shows an available pod of the revision on every node: clients that see the
    /// rollout complete must find these counts.
    pub(super) is_shown: bool,
    /// All nodes except those at rest; canaries never are.
    pub(super) heres: &'a [Here<'a>],
    pub(super) at_rest: AtRest,
    pub(super) now: Duration,
}

impl Judge<'_> {
    pub(super) fn judge(&self, failures: &mut Failures) -> Verdict {
        let mut verdict = Verdict::default();
        let done = self.current.is_done() && !self.is_renumbered;
        let of = (self.wanted.hash.clone(), self.wanted.generation.clone());
        if failures.of != of || done {
            *failures = Failures { of, ..Failures::default() };
        }
        if done {
            return verdict;
        }
        self.note(failures, &mut verdict);
        if self.wanted.is_rolling {
            self.stop_or_go_on(failures, &mut verdict);
        }
        let is_complete = failures.nodes.is_empty() && self.is_everywhere(&mut verdict);
        if is_complete && !self.is_renumbered {
            verdict.complete = self.is_shown.then_some(self.current.number);
            verdict.stopped = None;
            verdict.hold = Hold::Nothing;
            if self.is_shown || self.current.record.stopped.is_some() {
                verdict.record = self.current.record.write().map(|_| Record::default());
            }
        }
        verdict.failed = failures.nodes.keys().cloned().collect();
        self.note_starting(&mut verdict);
        verdict
    }

    fn note_starting(&self, verdict: &mut Verdict) {
        let held = |here: &&Here<'_>| !here.is_set_aside && verdict.hold.holds(&here.node.name);
        for here in self.heres.iter().filter(held) {
            let Some(since) = here.old.first().and_then(|pod| pod.restless()) else { continue };
            let over = since + self.settings.deadline;
            if over > self.now {
                verdict.starting.insert(here.node.name.clone());
                verdict.next = Some(verdict.next.map_or(over, |next| next.min(over)));
            }
        }
    }

    /// Remembers which nodes fail, and forgets those that recovered.
    fn note(&self, failures: &mut Failures, verdict: &mut Verdict) {
        let mut known = BTreeSet::new();
        for here in self.heres.iter().filter(|here| here.placed.runs) {
            if !self.wanted.minds_failures && !self.settings.is_canary(here.node) {
                continue;
            }
            known.insert(here.node.name.as_str());
            let newest = here.all.iter().rev().find(|pod| self.wanted.is_current(pod));
            let Some(pod) = newest else {
                self.note_pull(here, failures, verdict);
                continue;
            };
            if let Some(why) = self.failure(here, pod, verdict) {
                failures.nodes.insert(here.node.name.clone(), why);
            } else if !pod.is_troubled(self.now) && self.wanted.is_available(pod, self.now) {
                failures.nodes.remove(&here.node.name);
            }
        }
        failures.nodes.retain(|node, _| known.contains(node.as_str()));
    }

    /// Notes a node that waits for images with its old pod: it can fail without a pod being stopped there.
    fn note_pull(&self, here: &Here<'_>, failures: &mut Failures, verdict: &mut Verdict) {
        let Some((old, request)) = here.old.first().zip(self.wanted.ahead.as_ref()) else { return };
        let step = request.step(old, here.node);
        if here.is_set_aside || !matches!(step, Step::Pulling(_) | Step::Failing(_) | Step::Pulled) {
            return;
        }
        let mut is_over = |since: Option<Duration>, limit: Duration| {
            let Some(over) = since.map(|since| since + limit) else { return false };
            if over > self.now {
                verdict.next = Some(verdict.next.map_or(over, |next| next.min(over)));
            }
            over <= self.now
        };
        let why = match step {
            Step::Failing(_) if is_over(old.watch.cannot, SETTLES) => Some(Why::Pull),
            Step::Failing(_) | Step::Pulling(_) if is_over(old.watch.asked(), self.settings.deadline) => {
                Some(Why::NotPulled)
            }
            _ => None,
        };
        let is_of_pulls = |why: &Why| matches!(why, Why::Pull | Why::NotPulled);
        match why {
            Some(why) => _ = failures.nodes.insert(here.node.name.clone(), why),
            None if failures.nodes.get(&here.node.name).is_some_and(is_of_pulls) => {
                failures.nodes.remove(&here.node.name);
            }
            None => {}
        }
    }

    fn failure(&self, here: &Here<'_>, pod: &Pod, verdict: &mut Verdict) -> Option<Why> {
        let mut is_over = |since: Option<Duration>, limit: Duration| {
            let over = since? + limit;
            if over > self.now {
                verdict.next = Some(verdict.next.map_or(over, |next| next.min(over)));
            }
            Some(over <= self.now)
        };
        if here.node.is_lost {
            return Some(Why::Lost);
        }
        if pod.is_terminating {
            return None;
        }
        let is_stuck = is_over(pod.watch.stuck, SETTLES) == Some(true);
        let has_recovered = is_over(pod.recovers_at(), Duration::ZERO) == Some(true);
        match pod.trouble {
            _ if pod.phase == "Failed" => Some(Why::Failed),
            Some(Trouble::Crashes) if !has_recovered => Some(Why::Crashes),
            Some(Trouble::Pull) if is_stuck => Some(Why::Pull),
            Some(Trouble::Start) if is_stuck => Some(Why::Start),
            _ if is_over(self.settings.overdue_at(pod), Duration::ZERO) == Some(true) => Some(Why::NotReady),
            _ => None,
        }
    }

    fn stop_or_go_on(&self, failures: &Failures, verdict: &mut Verdict) {
        let (settings, known, failed) = (self.settings, &self.current.record, &failures.nodes);
        let generation = &self.wanted.generation;
        let judged = self.heres.iter().filter(|here| here.placed.runs && !here.is_set_aside).count();
        let desired = judged + self.at_rest.desired();
        let stop = Stop {
            known,
            generation,
            resume: &settings.resume,
            limit: &settings.limit_text,
            failed: failed.len(),
            most: settings.most(desired, &self.wanted.strategy),
            is_update: self.is_update(),
        };
        let again = |before: &str| {
            format!(
                "Stopped revision {}: it was rolled back in template generation {before}, and written again since; nodes keep what they \
                 run until the template changes or the annotation {RESUME} gets another value",
                self.current.name
            )
        };
        let (mut next, was_stopped) = stop.next(|most| self.why(failed, most), again);
        if next.stopped.is_some() && settings.rolls_back && next.rolled_back.is_none() && self.is_new() {
            match self.wanted.proven.as_ref().filter(|proven| proven.was_complete) {
                Some(_) => next.rolled_back = Some(generation.clone()),
                None => {
                    let message =
                        format!("Revision {} stays: no other was rolled out completely", self.current.name);
                    verdict.events.push(("Warning", "RollbackImpossible", message));
                }
            }
        }
        // only once the stop is recorded
        verdict.rolls_back = next == *known
            && next.rolled_back.as_ref() == Some(generation)
            && next.stopped.is_some()
            && self.wanted.proven.as_ref().is_some_and(|proven| proven.was_complete);
        match (&next.stopped, was_stopped) {
            (Some(why), false) => verdict.events.push(("Warning", STOPPED, why.clone())),
            (None, true) => {
                let message = format!("Revision {} goes on", self.current.name);
                verdict.events.push(("Normal", "RolloutResumed", message));
            }
            _ => {}
        }
        // a revision that was complete before needs no canaries, so they do not delay an undo
        if next.stopped.is_some() {
            verdict.hold = Hold::All;
        } else if self.is_new() && !next.soaked {
            verdict.hold = self.hold_for_canaries(failed, verdict);
            next.soaked = verdict.hold == Hold::Nothing && !matches!(settings.canary, Canary::Off);
        }
        verdict.stopped.clone_from(&next.stopped);
        verdict.record = (next.write() != known.write()).then_some(next);
    }

    /// Holds all nodes except canaries until all canaries were available for long enough.
    fn hold_for_canaries(&self, failed: &BTreeMap<String, Why>, verdict: &mut Verdict) -> Hold {
        let soak = match &self.settings.canary {
            Canary::Off => return Hold::Nothing,
            Canary::Unreadable => return Hold::All,
            Canary::Nodes(_, soak) => soak,
        };
        let is_canary = |here: &&Here<'_>| here.placed.runs && self.settings.is_canary(here.node);
        let canaries: Vec<&Here<'_>> = self.heres.iter().filter(is_canary).collect();
        let mut present = canaries.iter().filter(|here| !here.is_set_aside).peekable();
        if present.peek().is_none() {
            let message = format!("No canary of revision {} is there: no node is updated", self.current.name);
            verdict.events.push(("Warning", "NoCanary", message));
            return Hold::All;
        }
        let passes_at = |here: &&Here<'_>| {
            let pod = here.new.first().filter(|_| here.old.is_empty())?;
            let since = pod.ready_at?;
            let is_well = !pod.is_troubled(self.now) && !failed.contains_key(&here.node.name);
            Some(since + (*soak)?.max(self.wanted.min_ready)).filter(|_| is_well)
        };
        // the time at which the last canary passes; `None` if one of them is not available at all
        let all: Option<Vec<Duration>> = present.map(passes_at).collect();
        match all.and_then(|all| all.into_iter().max()) {
            Some(at) if at <= self.now => {
                let message = format!(
                    "The {} canaries of revision {} are available: the other nodes are updated",
                    canaries.len(),
                    self.current.name
                );
                verdict.events.push(("Normal", "CanaryPassed", message));
                return Hold::Nothing;
            }
            Some(at) => verdict.next = Some(verdict.next.map_or(at, |next| next.min(at))),
            None => {}
        }
        Hold::Others(canaries.iter().map(|here| here.node.name.clone()).collect())
    }

    /// Whether the revision was never rolled out completely. A revision that was, and fails now, is not at
    /// fault: its predecessor may fail as well.
    fn is_new(&self) -> bool {
        self.current.complete.is_none()
    }

    /// Whether another revision runs, or ran, that could be kept.
    fn is_update(&self) -> bool {
        let is_at_rest = self.at_rest.outdated + self.at_rest.aside_with_pod > 0;
        self.wanted.proven.is_some() || is_at_rest || self.heres.iter().any(|here| !here.old.is_empty())
    }

    /// Why a stopped revision is not rolled back; empty if it is.
    fn why_it_stays(&self) -> String {
        match (self.settings.rolls_back, self.current.complete) {
            (false, _) => format!("; not rolled back, for {ROLLBACK} is not \"true\""),
            (true, Some(number)) => {
                format!("; not rolled back, for it was complete before, as number {number} ({COMPLETE})")
            }
            (true, None) if self.wanted.proven.as_ref().is_none_or(|proven| !proven.was_complete) => {
                "; not rolled back, for no other revision was complete".to_owned()
            }
            (true, None) => String::new(),
        }
    }

    fn why(&self, failed: &BTreeMap<String, Why>, most: usize) -> String {
        let failed = failed.iter().map(|(node, why)| (node.clone(), *why));
        format!(
            "Stopped revision {}: {}; other nodes keep what they run until the template changes or the annotation \
             {RESUME} gets another value{}",
            self.current.name,
            stop::failures(failed, most),
            self.why_it_stays()
        )
    }

    /// Whether each node has an available pod of the current revision, which has stayed ready, and no other
    /// pod. A stopped rollout is not complete before lost nodes have it, too.
    fn is_everywhere(&self, verdict: &mut Verdict) -> bool {
        let (at_rest, with_lost) = (&self.at_rest, verdict.stopped.is_some());
        let new =
            self.heres.iter().filter_map(|here| here.new.first()).filter(|pod| !pod.is_unsteady(self.now));
        if let Some(at) = new.filter_map(|pod| self.wanted.stays_at(pod)).filter(|at| *at > self.now).min() {
            verdict.next = Some(verdict.next.map_or(at, |next| next.min(at)));
        }
        if at_rest.desired() > at_rest.updated || at_rest.soaking > 0 || with_lost && at_rest.aside > 0 {
            return false;
        }
        let mut expected =
            self.heres.iter().filter(|here| here.placed.runs && (with_lost || !here.is_set_aside)).peekable();
        let has = |here: &Here<'_>| {
            let new = here.new.first();
            let is_well = |pod: &&Pod| {
                self.wanted.is_available(pod, self.now)
                    && !pod.is_unsteady(self.now)
                    && self.wanted.has_stayed(pod, self.now)
            };
            here.old.is_empty() && new.is_some_and(is_well)
        };
        (at_rest.updated > 0 || expected.peek().is_some()) && expected.all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::rolling::budget::LONGEST;
    use super::*;
    use serde_json::json;

    #[test]
    fn time_beyond_a_year_is_a_bad_value() {
        // a duration close to the overflow of a clock
        let endless = "5124095576030h".repeat(999);
        for (found, expect) in
            [("8760h", Some(LONGEST)), ("8761h", None), (&*endless, None), ("soon", None), ("0s", None)]
        {
            let set = json!({"metadata": {"annotations": {PROGRESS_DEADLINE: found, SOAK: found, STAYS: found, CANARY: "a=b"}}});
            let settings = Settings::read(&set);
            assert_eq!(settings.deadline, expect.unwrap_or(DEADLINE));
            let zero = (found == "0s").then_some(Duration::ZERO);
            assert_eq!(settings.stays, expect.or(zero).unwrap_or(DEFAULT_STAYS));
            assert!(matches!(settings.canary, Canary::Nodes(_, soak) if soak == expect.or(zero)));
            let wrong = 3 * usize::from(expect.is_none()) - 2 * usize::from(zero.is_some());
            assert_eq!(settings.wrong.len(), wrong, "{:?}", settings.wrong);
        }
    }
}
