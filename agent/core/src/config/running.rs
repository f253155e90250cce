//! The configuration of a running agent: compares the source with the records and with the running config,
//! and makes the one transition that is due (RULES.md, "Sources" and "Durable writes").
//!
//! Level-triggered: an event only changes the known facts, and then `next` compares. One transition is under
//! way at a time, as a program of durable writes; the agent's picture of its disk changes when it ends.
//! Always holds: the source is compared with `current`, never with the running config (otherwise a rolled
//! back node would restart for ever); a download is never parsed here; a failed write changes nothing but the
//! time of the next try.

mod comparing;
mod fallback;
mod systems;
mod trial;
mod verdicts;

use crate::answer::Now;
use crate::config::digest::Identity;
use crate::config::disk::{AssignedNow, Disk};
use crate::config::judge;
use crate::config::records::{
    Assigned, BadConfigs, CheckpointName, Complaints, ConfigRecord, Counts, Current, Known, LastKnownGood,
    RanAs, Startups, StateFile, Verdict,
};
use crate::config::requested::{Object, Requested, SyncProblem};
use crate::config::source::{RequestedSource, Source};
use crate::config::standing::{Obstacle, Standing, Substitute};
use crate::config::start::{Facts, Floor, InUse, Started};
use crate::config::system::{Asked, Systems};
use crate::config::transition::{Job, Transition};
use crate::kubelet::Effective;
use crate::writes::{Outcome, Step, Steps, Suspend, Suspendable};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// After a failed write the next try waits this long: the disk is likely full, and trying sooner does not
/// free it.
const RETRY_WRITE: Duration = Duration::from_secs(60);

/// The next thing to do about the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Perform this step and report its outcome.
    Step(Step),
    /// Exit with code 0: everything that the next start needs is written.
    Exit(String),
}

/// Outcome of `kedge config forgive UID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgiveness {
    /// The verdicts are removed as soon as the disk accepts the write.
    Taken,
    /// There are no verdicts on it.
    NothingKnown,
    /// Eight others wait for the disk: this one is dropped, and can be requested again.
    TooMany,
    /// The agent is about to exit: dropped, and can be requested from the next run.
    Exiting,
    /// Dynamic configuration is off: the records are left alone.
    SwitchedOff,
}

impl fmt::Display for Forgiveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Taken => "removing the verdicts on it",
            Self::NothingKnown => "there is no verdict on it",
            Self::TooMany => "not done, too many others wait for the disk; ask again later",
            Self::Exiting => "not done, the agent is about to restart; ask again then",
            Self::SwitchedOff => {
                "not done, dynamic configuration is off (--dynamic-config=false) and the records are left alone"
            }
        })
    }
}

/// Something worth reporting: becomes a log line and an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// How long pods are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Running time since the last counted startup.
    length: Duration,
    /// And until the config on trial is last-known-good.
    awaits_promotion: bool,
}

impl Hold {
    /// The condition's text: it does not count down, because each other text is a write to the API server.
    pub(crate) fn message(&self) -> String {
        let promotion = if self.awaits_promotion { " and its configuration is last-known-good" } else { "" };
        format!(
            "the agent ended too often under a proven configuration: no pod is started or stopped until it has run for {} s \
             without that{promotion}",
            self.length.as_secs()
        )
    }
}

/// How a transition ended.
struct Ended {
    disk: Disk,
    /// A write failed; the rest was not attempted.
    failed: Option<String>,
    exit: Option<String>,
    /// Writes that succeeded.
    written: usize,
}

/// The identities of the configs that a start would try, each only if its content is available.
#[derive(Debug, Clone, Copy)]
struct Contents {
    assigned: Option<Identity>,
    last_known_good: Option<Identity>,
    previous: Option<Identity>,
}

impl Contents {
    /// Whether the payload is last-known-good's or the one's before it.
    fn have_proven(&self, is: &Identity) -> bool {
        let proven = [self.last_known_good, self.previous];
        proven.iter().flatten().any(|proven| proven.payload == is.payload)
    }
}

/// Points in time of this run, in monotonic time, from which running time and silence count.
#[derive(Debug, Clone, Copy)]
struct Timing {
    /// When this run began.
    began: Duration,
    /// When running time began to count: at the start of the run, or when pods were released.
    counted_since: Duration,
    /// Running time of the config at the last save of progress.
    saved_ran_ms: u64,
    /// When an API server last accepted a renewal or a status, or when this run began.
    silent_since: Duration,
    /// One did in this run.
    is_heard: bool,
    /// A renewal was accepted when the config in use had run well for its trial.
    heard_at_end: bool,
}

/// The node's faults.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    /// At the last look; `None` before the first.
    complaints: Option<Complaints>,
    /// Whether all thresholds of the config in use were checked.
    has_looked: bool,
}

/// Checkpoints that no record names.
#[derive(Debug, Clone, Default)]
struct Unnamed {
    /// One that is durable although its assignment could not be recorded.
    unnamed: Option<CheckpointName>,
    /// A transition left one.
    must_sweep: bool,
}

/// Changes to the list of bad configs that came from outside: requests, and edits by hand.
#[derive(Debug, Clone)]
struct Forgiving {
    /// UIDs from `kedge config forgive`.
    requested: Vec<String>,
    /// The Node's request: a UID, and perhaps more words; `None` before a Node was read.
    on_node: Option<String>,
    /// The last such request that was obeyed or recorded, whatever has happened to the list since; `None` if
    /// none is known.
    heard_of: Option<String>,
    /// This run's start found no list: an agent of another version may have obeyed the Node's request, and
    /// recorded it in its own.
    began_list: bool,
    /// An edit of the list during a transition.
    edit: Option<Known<BadConfigs>>,
}

/// Requests to end this run.
#[derive(Debug, Clone, Default)]
struct Exit {
    /// A stop of the agent; why.
    stop: Option<String>,
    /// `kedge config reset`, which ends the run once it is recorded.
    reset: bool,
    /// Why the exit, for which everything is written, cannot happen.
    held_up: Option<String>,
}

/// The disk's acceptances and refusals.
#[derive(Debug, Clone, Copy)]
struct Writes {
    /// The end of the previous run has a consequence that is not on disk yet.
    evidence_unrecorded: bool,
    /// The last transition ended at a write that failed.
    have_failed: bool,
    /// No transition that writes starts before this, after one failed.
    not_before: Duration,
}

/// The configuration's state machine.
///
/// `standing` is its state: settled (local or last-known-good), on trial, or a fallback, each with what only
/// that state needs. `requested` is the source that it is compared with, and `exit` can end the run from any
/// state.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    facts: Facts,
    disk: Disk,
    contents: Contents,
    in_use: InUse,
    standing: Standing,
    /// The counts of all configs, recorded or not; those of the running config as last saved.
    startups: Startups,
    timing: Timing,
    faults: Faults,
    /// While the running config is not proven: the last-known-good's limits for pods.
    floor: Option<Floor>,
    requested: Requested,
    checkpoints: Unnamed,
    forgiving: Forgiving,
    exit: Exit,
    job: Option<Job>,
    writes: Writes,
    notices: Vec<Notice>,
    /// The system that the assigned payload wants for this machine.
    asked: Asked,
    /// Records of systems that wait for the disk, and whether the way back is noted before.
    systems_due: Option<(Systems, bool)>,
    /// How far an update of the system has come.
    system_progress: Option<String>,
    /// This server's Node was read, and holds no promotion up.
    may_promote: bool,
}

/// The parts that condition and report are composed from: the records, the config in use, and its relation to
/// the one that should run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) disk: &'a Disk,
    pub(crate) in_use: &'a InUse,
    pub(crate) standing: &'a Standing,
    pub(crate) sync: Option<&'a SyncProblem>,
    /// Why the exit that comes next cannot happen.
    pub(crate) held_up: Option<&'a str>,
    pub(crate) edited: Option<&'a str>,
    /// How far the update has come that the assigned config waits for.
    pub(crate) system: Option<&'a str>,
    /// resourceVersion of the assigned object as last read, if its payload is the recorded one.
    pub(crate) latest: Option<&'a str>,
}

impl Configuration {
    pub(crate) fn new(started: Started, facts: Facts, now: Now) -> Self {
        let disk_refused = started.standing.waits_for_disk();
        let noted = started.disk.bad_configs.known().and_then(|bad| bad.forgiven.clone());
        Self {
            facts,
            disk: started.disk,
            contents: Contents {
                assigned: started.assigned,
                last_known_good: started.last_known_good,
                previous: started.previous,
            },
            timing: Timing {
                began: now.mono,
                counted_since: now.mono,
                saved_ran_ms: started.in_use.counts.ran_ms,
                silent_since: now.mono,
                is_heard: false,
                heard_at_end: false,
            },
            in_use: started.in_use,
            standing: started.standing,
            startups: started.startups,
            faults: Faults::default(),
            floor: started.floor,
            requested: Requested::default(),
            checkpoints: Unnamed::default(),
            forgiving: Forgiving {
                requested: Vec::new(),
                on_node: None,
                heard_of: noted.map(|noted| noted.text),
                began_list: started.began_list,
                edit: None,
            },
            exit: Exit::default(),
            job: None,
            writes: Writes {
                evidence_unrecorded: started.evidence_unrecorded,
                have_failed: false,
                // a disk that refused a moment ago is not tried again at once, or each start would lead to
                // the next
                not_before: if disk_refused { now.mono.saturating_add(RETRY_WRITE) } else { now.mono },
            },
            notices: Vec::new(),
            asked: started.asked,
            systems_due: None,
            system_progress: None,
            may_promote: false,
        }
    }

    // ------------------------------------------------------------------------------------------ knowledge

    /// The Node was read; `place` is where its source is written, for messages.
    pub(crate) fn node_seen(&mut self, uid: &str, source: RequestedSource, place: &'static str) {
        self.requested.node_seen(uid, source, place);
    }

    /// Another API server answers from now on: versions and objects of the old one must not be compared with
    /// its objects.
    pub(crate) fn server_changed(&mut self) {
        self.requested.server_changed();
        self.forgiving.on_node = None;
        self.may_promote = false;
    }

    /// The ConfigMap that the source names was read, or was not.
    pub(crate) fn object_seen(&mut self, namespace: &str, name: &str, object: Object) {
        if self.requested_object().is_some_and(|wanted| wanted == (namespace, name)) {
            self.requested.object_seen(object);
        }
    }

    /// UID and resourceVersion of the wanted ConfigMap as recorded, if its checkpoint is whole: it need not
    /// be read again.
    pub(crate) fn held(&self) -> Option<(&str, &str)> {
        let recorded = self.recorded(self.requested.correct()?)?;
        Some((&recorded.config.uid, &recorded.config.resource_version))
    }

    /// Returns once that the object must be read whole.
    pub(crate) fn take_must_read(&mut self) -> bool {
        self.requested.take_must_read()
    }

    /// The record of this source's config, if its checkpoint is whole.
    fn recorded(&self, source: &Source) -> Option<&Assigned> {
        let recorded = self.disk.current.known().and_then(|current| current.assigned.as_ref())?;
        (self.contents.assigned.is_some() && recorded.config.source == *source).then_some(recorded)
    }

    /// The ConfigMap to watch.
    pub(crate) fn requested_object(&self) -> Option<(&str, &str)> {
        self.requested.correct().filter(|_| self.facts.dynamic).map(Source::object)
    }

    /// The node was looked at; `is_whole` if at everything that has a threshold. A moment in which the node
    /// is worse than its baseline restarts the running time of a trial.
    pub(crate) fn looked(&mut self, now: Now, complaints: Complaints, is_whole: bool) {
        self.faults.complaints = Some(complaints);
        self.faults.has_looked |= is_whole;
        let worse = self.worse();
        if worse.is_empty() {
            return;
        }
        let ran_ms = self.ran_ms(now);
        let counts = &mut self.in_use.counts;
        counts.lost_ms = counts.lost_ms.saturating_add(ran_ms);
        counts.worse = counts.worse.and(worse);
        (counts.ran_ms, self.timing.counted_since) = (0, now.mono);
        if self.standing.trial_begins_anew(worse) {
            let message = format!(
                "{} under the configuration on trial, and not before it: as long as that is so its trial does not go on, and no answer \
                 of the API server counts as contact",
                worse.names().join(", ")
            );
            self.notices.push(Notice { warning: true, reason: "NodeWorseOnTrial", message });
        }
    }

    /// The node's faults that were not there when the config on trial was adopted. For a proven config they
    /// do not count: they would delay everything that waits for it to run well.
    fn worse(&self) -> Complaints {
        let complaints = self.faults.complaints.filter(|_| self.in_trial()).unwrap_or_default();
        complaints.beyond(self.startups.baseline)
    }

    /// An API server accepted a renewal or a status under the config in use: contact, unless the node is
    /// worse than before its trial.
    pub(crate) fn contact(&mut self, now: Now) {
        if !self.worse().is_empty() {
            return;
        }
        self.in_use.counts.worse = Complaints::default();
        let silence = self.silent_ms(now);
        let counts = &mut self.in_use.counts;
        counts.worst_silence_ms = counts.worst_silence_ms.max(silence);
        (counts.contact, counts.silent_ms) = (true, 0);
        (self.timing.silent_since, self.timing.is_heard) = (now.mono, true);
    }

    /// An API server accepted a renewal. One that arrives just after the process began may be the last before
    /// the config cuts the node off: it proves nothing about the trial.
    pub(crate) fn renewed(&mut self, now: Now) {
        self.contact(now);
        let (trial_ms, ran_ms) = (self.in_use.terms.trial_ms, self.ran_ms(now));
        // thresholds that cannot be read for that long do not count
        let has_looked = self.faults.has_looked || ran_ms >= self.in_use.terms.trial_ends_within_ms();
        if !(has_looked && self.worse().is_empty()) {
            return;
        }
        let lease_secs = u64::from(self.in_use.effective.config.node_lease_duration_secs);
        let two_periods = Duration::from_millis(lease_secs * 1000 / 2).min(Duration::from_millis(trial_ms));
        let is_old = now.mono.saturating_sub(self.timing.began) >= two_periods;
        if is_old && ran_ms >= trial_ms {
            self.timing.heard_at_end = true;
            self.standing.heard_after_trial();
        }
    }

    /// Running time since the last contact, or since the config began.
    fn silent_ms(&self, now: Now) -> u64 {
        let since = now.mono.saturating_sub(self.timing.silent_since).as_millis();
        self.in_use.counts.silent_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// A stop of the agent was requested.
    pub(crate) fn stop(&mut self, why: &str) {
        self.exit.stop.get_or_insert_with(|| why.to_owned());
    }

    pub(crate) fn is_stop_asked(&self) -> bool {
        self.exit.stop.is_some()
    }

    /// The exit, for which everything is written, cannot happen, for this reason; `None` if it can.
    pub(crate) fn hold_up_end(&mut self, held_up: Option<String>) {
        self.exit.held_up = held_up;
    }

    /// An exit is on its way that comes before any new request.
    fn is_exiting(&self) -> bool {
        self.exit.stop.is_some()
            || self.exit.held_up.is_some()
            || self.job.as_ref().is_some_and(|job| job.kind.exits())
    }

    /// `kedge config reset`: use the local config, whatever the records say.
    pub(crate) fn reset(&mut self) {
        self.exit.reset = true;
    }

    /// Why such a request would be refused at this moment.
    pub(crate) fn reset_refusal(&self) -> Option<String> {
        if !self.facts.dynamic {
            return Some(
                "dynamic configuration is off (--dynamic-config=false) and the local config runs".into(),
            );
        }
        if self.is_exiting() {
            return Some("the agent is about to restart; ask again then".into());
        }
        // it would be adopted again at once, and last-known-good would be lost for nothing
        let is_asked =
            self.requested.source.as_ref().is_some_and(|requested| *requested != RequestedSource::Nil);
        is_asked.then(|| format!("the Node still asks for a config; clear {} first", self.requested.place))
    }

    /// Running time of the config in use since its last counted startup.
    pub(crate) fn ran_ms(&self, now: Now) -> u64 {
        let run = now.mono.saturating_sub(self.timing.counted_since).as_millis();
        self.in_use.counts.ran_ms.saturating_add(u64::try_from(run).unwrap_or(u64::MAX))
    }

    /// The rest of the trial, if one is under way.
    pub(crate) fn trial_left(&self, now: Now) -> Option<Duration> {
        (self.in_trial())
            .then(|| Duration::from_millis(self.in_use.terms.trial_ms.saturating_sub(self.ran_ms(now))))
    }

    fn in_trial(&self) -> bool {
        self.standing.is_trial()
    }

    /// Whether the running config is local, last-known-good or the one before it.
    fn runs_proven(&self) -> bool {
        self.in_use.config.as_ref().is_none_or(|(_, is)| self.is_proven(is))
    }

    fn is_proven(&self, is: &Identity) -> bool {
        self.contents.have_proven(is)
    }

    /// The last-known-good's limits for pods, while the running config is not proven.
    pub(crate) fn floor(&self) -> Option<&Floor> {
        self.floor.as_ref().filter(|_| !self.runs_proven())
    }

    /// The baseline of a config that is adopted now. Only under a proven config, and when no condition is
    /// left over from the config before it, is that the node's present state; otherwise it is the baseline of
    /// the running config.
    fn next_baseline(&self, now: Now) -> Complaints {
        let is_its_own = self.runs_proven() && self.ran_ms(now) >= self.in_use.terms.unmixed_after_ms();
        match is_its_own {
            true => self.faults.complaints.unwrap_or_default(),
            false => self.startups.baseline,
        }
    }

    /// All counts as a config that is tried next gets them.
    fn handed_over(&self, now: Now) -> Startups {
        Startups { baseline: self.next_baseline(now), ..self.closed(now) }
    }

    /// For condition and report.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            facts: &self.facts,
            disk: &self.disk,
            in_use: &self.in_use,
            standing: &self.standing,
            sync: self.requested.problem.as_ref(),
            held_up: self.exit.held_up.as_deref(),
            edited: self.requested.edited.as_deref(),
            system: self.system_progress.as_deref(),
            latest: match &self.requested.object {
                Object::Compared { resource_version, .. } if self.requested.edited.is_none() => {
                    Some(resource_version)
                }
                _ => None,
            },
        }
    }

    /// The checkpoints that a sweep keeps, if a transition has left one that no record names.
    pub(crate) fn take_sweep(&mut self) -> Option<Option<Vec<CheckpointName>>> {
        std::mem::take(&mut self.checkpoints.must_sweep).then(|| self.checkpoints_to_keep())
    }

    /// Checkpoints that a record names; `None` while a record that might name one is unreadable, or was not
    /// read.
    pub(crate) fn checkpoints_to_keep(&self) -> Option<Vec<CheckpointName>> {
        let disk = &self.disk;
        if !self.facts.dynamic || disk.current.unknown().is_some() || disk.last_known_good.unknown().is_some()
        {
            return None;
        }
        let assigned = match disk.assigned() {
            AssignedNow::Config(config, _) => Some(config.checkpoint),
            _ => None,
        };
        let adopted = match &self.job {
            Some(Job {
                kind: Transition::Adopt { current, .. } | Transition::AdoptBad { current, .. },
                ..
            }) => current.assigned.clone(),
            _ => None,
        };
        let adopted = adopted.map(|assigned| assigned.config.checkpoint);
        let good = disk.fallback().into_iter().chain(disk.previous()).map(|config| config.checkpoint.clone());
        Some(
            assigned.into_iter().chain(adopted).chain(self.checkpoints.unnamed.clone()).chain(good).collect(),
        )
    }

    pub(crate) fn effective(&self) -> &Rc<Effective> {
        &self.in_use.effective
    }

    pub(crate) fn under_way(&self) -> Option<&'static str> {
        self.job.as_ref().map(|job| job.kind.name())
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Whether the evidence of the previous run's end is not needed any more: its consequence is on disk, or
    /// void.
    pub(crate) fn evidence_is_recorded(&self) -> bool {
        !self.writes.evidence_unrecorded
    }

    // ------------------------------------------------------------------------------------------ the next
    // step

    /// The step or exit that is due now, if any. Called after every event; a step under way must be reported
    /// first.
    pub(crate) fn next(&mut self, now: Now) -> Option<Next> {
        if self.job.is_some() {
            return None;
        }
        let kind = self.due(now)?;
        self.job = Some(Job { kind, outcomes: Vec::new() });
        self.run(now)
    }

    /// A step was performed.
    pub(crate) fn done(&mut self, now: Now, outcome: Outcome) -> Option<Next> {
        self.job.as_mut()?.outcomes.push(outcome);
        self.run(now)
    }

    /// When `next` may have something new although no event happens.
    pub(crate) fn next_deadline(&self, now: Now) -> Option<Duration> {
        if self.job.is_some() {
            return None;
        }
        let at = |ms: u64| {
            self.timing
                .counted_since
                .saturating_add(Duration::from_millis(ms.saturating_sub(self.in_use.counts.ran_ms)))
        };
        let mut deadlines = Vec::with_capacity(4);
        if self.counts_running() && self.ran_ms(now) < u64::MAX {
            let terms = self.in_use.terms;
            if self.timing.saved_ran_ms < terms.settled_after_ms() {
                deadlines.push(at(self.save_due_ms()));
                deadlines.push(at(terms.settled_after_ms()));
            }
            if self.in_trial() {
                let Counts { silent_ms, lost_ms, .. } = self.in_use.counts;
                let left = self.patience_ms().saturating_sub(silent_ms);
                deadlines.push(self.timing.silent_since.saturating_add(Duration::from_millis(left)));
                if lost_ms > 0 {
                    deadlines.push(at(terms.trial_ends_within_ms().saturating_sub(lost_ms)));
                }
            }
            for waiting in self.waiting() {
                deadlines.push(at(waiting.wait_ms));
            }
            if !self.is_settled() {
                deadlines.push(at(self.save_due_ms()));
            }
            deadlines.extend(self.probation_ends());
        }
        if self.waits_for_disk() {
            deadlines.push(self.writes.not_before);
        }
        deadlines.into_iter().map(|at| at.max(self.writes.not_before)).filter(|at| *at > now.mono).min()
    }

    /// The transition that is due, first match.
    fn due(&mut self, now: Now) -> Option<Transition> {
        if let Some(why) = &self.exit.stop {
            let closed = self.counts_running().then(|| self.closed(now));
            let verdict = self.unrecorded_verdict().map(|bad| {
                let emptied = self.condemned().zip(closed.clone());
                let emptied = emptied.map(|(is, mut closed)| {
                    closed.forgive(RanAs::Payload(is.payload));
                    closed
                });
                (bad, emptied)
            });
            return Some(Transition::CleanExit { why: why.clone(), closed, verdict });
        }
        if !self.facts.dynamic {
            return None;
        }
        if let Some(kind) = self.asked_for(now) {
            return Some(kind);
        }
        let from_source = self.compare_source(now);
        if self.checkpoints.unnamed.is_some() && from_source.is_none() && self.requested.problem.is_none() {
            // the config is not wanted any more
            (self.checkpoints.unnamed, self.checkpoints.must_sweep) = (None, true);
        }
        if now.mono < self.writes.not_before {
            return None;
        }
        from_source
            .or_else(|| self.promotion(now))
            .or_else(|| self.system_promotion())
            .or_else(|| self.note_systems())
            .or_else(|| self.silent_trial(now))
            .or_else(|| self.progress(now))
            .or_else(|| self.retry_assigned(now))
            .or_else(|| self.asked_from_afar(now))
    }

    fn asked_for(&self, now: Now) -> Option<Transition> {
        let Some(uid) = self.forgiving.requested.first().cloned() else {
            // a record must come before an exit; but while the disk refuses writes, more important ones are
            // tried first
            if !self.writes.have_failed
                && let Some(kind) = self.asked_from_afar(now)
            {
                return Some(kind);
            }
            let why = "reset to the local config on request, restarting to use it".to_owned();
            // until it is done, because it was promised
            return (self.exit.reset && now.mono >= self.writes.not_before)
                .then(|| Transition::Unassign { current: self.reset_current(), why });
        };
        Some(self.forgive_transition(uid))
    }

    /// `current` after a reset. The node decides it, not its present Node: that one may need the config to
    /// fall back to, and only the Node that assigned it removes it by assigning nothing.
    fn reset_current(&self) -> Current {
        let recorded = self.disk.current.known().map(|current| current.node_uid.as_str());
        Current::reset(recorded.unwrap_or_default())
    }

    fn run(&mut self, now: Now) -> Option<Next> {
        let job = self.job.take()?;
        match self.perform(&job) {
            Err(Suspend(step)) => {
                self.job = Some(job);
                Some(Next::Step(step))
            }
            Ok(ended) => self.end(now, job.kind, ended),
        }
    }

    /// The writes of each transition, in the order of RULES.md, "Durable writes".
    fn perform(&self, job: &Job) -> Suspendable<Ended> {
        let mut steps = Steps::over(&job.outcomes);
        let steps = &mut steps;
        let mut disk = self.disk.clone();
        let mut exit = None;
        let failed = 'writes: {
            macro_rules! durable {
                ($write:expr) => {
                    if let Err(why) = $write? {
                        break 'writes Some(why);
                    }
                };
            }
            match &job.kind {
                Transition::Adopt { checkpoint, current, startups, .. } => {
                    let config = current.assigned.as_ref().map(|assigned| &assigned.config);
                    if let (Some(config), Some(checkpoint)) = (config, checkpoint) {
                        let file = StateFile::Checkpoint(config.checkpoint.clone());
                        durable!(steps.write(file, checkpoint.clone()));
                    }
                    if matches!(disk.bad_configs, Known::Unknown { .. }) {
                        // re-assigned: the list begins anew, and doubts the one config that may have had a
                        // verdict in it
                        durable!(disk.put_bad_configs(steps, self.verdicts_lost()));
                    }
                    durable!(disk.put_current(steps, current.clone()));
                    durable!(disk.put_startups(steps, startups.clone()));
                    let config = config.map(ConfigRecord::describe);
                    exit = Some(format!("restarting to use {}", config.unwrap_or_default()));
                }
                Transition::AdoptBad { checkpoint, current, .. } => {
                    let config = current.assigned.as_ref().map(|assigned| &assigned.config);
                    if let (Some(config), Some(checkpoint)) = (config, checkpoint) {
                        let file = StateFile::Checkpoint(config.checkpoint.clone());
                        durable!(steps.write(file, checkpoint.clone()));
                    }
                    durable!(disk.put_current(steps, current.clone()));
                }
                Transition::NoteSource { current } => durable!(disk.put_current(steps, current.clone())),
                Transition::Unassign { current, why } => {
                    durable!(disk.put_current(steps, current.clone()));
                    exit = Some(why.clone());
                }
                Transition::TrialProgress { startups, bad } => {
                    durable!(match self.waits_for_a_write() {
                        true => disk.rewrite_startups(steps, startups.clone()),
                        false => disk.put_startups(steps, startups.clone()),
                    });
                    if let Some(bad) = bad {
                        durable!(disk.put_bad_configs(steps, bad.clone()));
                    }
                }
                Transition::Promote { startups, config, previous, bad } => {
                    durable!(disk.put_startups(steps, startups.clone()));
                    let (config, system) = (Some(config.clone()), self.promoted_system());
                    let good = LastKnownGood { config, previous: previous.clone(), system };
                    durable!(disk.put_last_known_good(steps, good));
                    if let Some(bad) = bad {
                        durable!(disk.put_bad_configs(steps, bad.clone()));
                    }
                }
                Transition::PromoteSystem { good, .. } => {
                    durable!(disk.put_last_known_good(steps, good.clone()));
                }
                Transition::NoteSystems { systems, good } => {
                    if let Some(good) = good {
                        durable!(disk.put_last_known_good(steps, good.clone()));
                    }
                    durable!(disk.put_systems(steps, systems.clone()));
                }
                Transition::SilentTrial { startups } => {
                    durable!(disk.put_startups(steps, startups.clone()));
                    let ours = self.ours(startups);
                    let why = match ours.worse.is_empty() && !judge::has_no_end(&ours, self.in_use.terms) {
                        true => "no contact with the API server for a whole trial",
                        false => "the node was worse than before for a whole trial",
                    };
                    exit = Some(format!("{why}, restarting for the verdict"));
                }
                Transition::WaitOver { why, emptied, bad, closed } => {
                    // before the verdict, as in forgive
                    if emptied.is_due {
                        durable!(disk.put_startups(steps, emptied.startups.clone()));
                    }
                    durable!(disk.put_bad_configs(steps, bad.clone()));
                    close(closed, &mut disk, steps)?;
                    exit = Some(why.clone());
                }
                Transition::TryAssigned { why, startups } => {
                    // written even if unchanged: only a write that succeeds shows that the disk works
                    durable!(disk.rewrite_startups(steps, startups.clone()));
                    exit = Some(why.clone());
                }
                Transition::RecordVerdict { bad, emptied } => {
                    durable!(disk.put_bad_configs(steps, bad.clone()));
                    // as a start does: otherwise the next one would undo the repair of the list by hand
                    if emptied.is_due {
                        durable!(disk.put_startups(steps, emptied.startups.clone()));
                    }
                }
                Transition::NoteAsked { bad } => durable!(disk.put_bad_configs(steps, bad.clone())),
                Transition::Forgive { uid, bad, emptied } => {
                    // before the verdict, or a cut in between would leave the counts that led to it, and the
                    // next start would judge by them
                    if emptied.is_due {
                        durable!(disk.put_startups(steps, emptied.startups.clone()));
                    }
                    durable!(disk.put_bad_configs(steps, bad.clone()));
                    durable!(disk.put_systems(steps, self.systems_without(uid)));
                }
                Transition::CleanExit { why, closed, verdict } => {
                    // the record of this end replaces the one that proves it
                    let mut closed = closed.as_ref();
                    if let Some((bad, emptied)) = verdict
                        && disk.put_bad_configs(steps, bad.clone())?.is_ok()
                    {
                        closed = emptied.as_ref().or(closed);
                    }
                    if let Some(startups) = closed {
                        close(startups, &mut disk, steps)?;
                    }
                    exit = Some(why.clone());
                }
            }
            None
        };
        let written = job.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(Ok(())))).count();
        Ok(Ended { disk, failed, exit, written })
    }

    /// All counts as a clean exit leaves them.
    fn closed(&self, now: Now) -> Startups {
        if !self.counts_running() {
            return self.startups.clone().closed();
        }
        let mut startups = self.progressed(now).closed();
        let settled = self.in_use.terms.settled_after_ms();
        if let Some(counts) = startups.records.get_mut(&self.in_use.ran_as())
            && counts.ran_ms < settled
        {
            // rule d: cuts. An exit before the config settled does not count as progress, so the cuts before
            // it stay counted
            counts.cuts = self.in_use.counts.cuts;
        }
        startups
    }

    fn end(&mut self, now: Now, kind: Transition, ended: Ended) -> Option<Next> {
        let rewritten = self.disk.bad_configs != ended.disk.bad_configs;
        let before = std::mem::replace(&mut self.disk, ended.disk);
        // an edit that this transition overwrote is gone from the disk, too
        if let Some(bad) = self.forgiving.edit.take().filter(|_| !rewritten) {
            self.take_bad_configs(bad);
        }
        if let Some(why) = ended.failed {
            self.writes.not_before = now.mono.saturating_add(RETRY_WRITE);
            self.note_unnamed(&kind, ended.written);
            return self.failed(now, &kind, why);
        }
        self.writes.have_failed = false;
        if let Some(notice) = self.succeeded(now, &kind, &before) {
            self.notices.push(notice);
        }
        match ended.exit {
            Some(why) => Some(Next::Exit(why)),
            None => self.next(now),
        }
    }

    /// The checkpoint of an adoption that failed after its first write is on disk: the next try need not
    /// write it again, and another adoption leaves it to a sweep.
    fn note_unnamed(&mut self, kind: &Transition, written: usize) {
        let (Transition::Adopt { checkpoint, current, .. }
        | Transition::AdoptBad { checkpoint, current, .. }) = kind
        else {
            return;
        };
        let name = current.assigned.as_ref().map(|assigned| &assigned.config.checkpoint);
        if checkpoint.is_some() && written > 0 && self.disk.current.known() != Some(current) {
            self.checkpoints.must_sweep |= self.checkpoints.unnamed.is_some();
            self.checkpoints.unnamed = name.cloned();
        }
    }

    /// Updates everything but the disk after a finished transition; returns the reports.
    fn succeeded(&mut self, now: Now, kind: &Transition, before: &Disk) -> Option<Notice> {
        if matches!(
            kind,
            Transition::TrialProgress { .. } | Transition::Promote { .. } | Transition::RecordVerdict { .. }
        ) {
            self.writes.evidence_unrecorded = false;
        }
        let normal = |reason, message| Some(Notice { warning: false, reason, message });
        match kind {
            Transition::Promote { startups, config, .. } => {
                self.standing = Standing::KnownGood;
                self.in_use.counts.lost_ms = 0;
                self.timing.saved_ran_ms = self.ours(startups).ran_ms.max(self.ran_ms(now));
                self.saved(startups);
                self.contents.previous = self.contents.last_known_good;
                self.contents.last_known_good = self.in_use.config.as_ref().map(|(_, is)| *is);
                self.checkpoints.must_sweep = true;
                normal(
                    "ConfigPromoted",
                    format!(
                        "{} (UID: {}, ResourceVersion: {}) ran well for its trial of {} s and is last-known-good now",
                        config.source,
                        config.uid,
                        config.resource_version,
                        self.in_use.terms.trial_ms / 1000
                    ),
                )
            }
            Transition::TrialProgress { startups, .. } => {
                if self.startups.hold && !startups.hold {
                    // from now on the run without held pods counts
                    (self.in_use.counts.ran_ms, self.timing.counted_since) = (0, now.mono);
                }
                self.timing.saved_ran_ms = self.ours(startups).ran_ms.max(self.ran_ms(now));
                self.saved(startups);
                None
            }
            Transition::PromoteSystem { is_same, .. } => {
                if !is_same {
                    let ours = self.in_use.config.as_ref().map(|(_, is)| *is);
                    self.contents.previous = std::mem::replace(&mut self.contents.last_known_good, ours);
                }
                self.checkpoints.must_sweep |= !is_same;
                self.systems_changed();
                None
            }
            Transition::NoteSystems { .. } => {
                self.systems_changed();
                None
            }
            Transition::AdoptBad { is, verdict, .. } => {
                self.asked = Asked::default();
                self.begin_wait(now);
                self.contents.assigned = Some(*is);
                (self.requested.edited, self.checkpoints.unnamed) = (None, None);
                let was_assigned = self.standing.is_assigned();
                let runs = if self.in_trial() { Substitute::Previous } else { Substitute::LastKnownGood };
                let obstacle = Obstacle::Marked { verdict: verdict.clone(), recorded: true };
                self.standing.obstructed(obstacle, runs);
                if was_assigned {
                    self.now_runs_as(runs);
                }
                self.checkpoints.must_sweep = true;
                let config = match self.disk.assigned() {
                    AssignedNow::Config(config, _) => config.named(),
                    _ => String::new(),
                };
                let message = format!("{}; what runs goes on", explained(&config, &verdict.reason, verdict));
                Some(Notice { warning: true, reason: "ConfigKnownBad", message })
            }
            Transition::NoteSource { current } => {
                let before = before.current.known().and_then(|current| current.assigned.as_ref());
                let uid = before.map(|assigned| assigned.config.uid.as_str()).unwrap_or_default();
                self.renamed(current, uid);
                self.source_noted();
                let why = current.invalid_source.as_ref()?;
                let message = format!("{why}; what runs goes on");
                Some(Notice { warning: true, reason: "ConfigSourceInvalid", message })
            }
            Transition::RecordVerdict { emptied, .. } => {
                self.startups.clone_from(&emptied.startups);
                self.standing.verdict_recorded();
                None
            }
            Transition::NoteAsked { bad } => {
                self.forgiving.heard_of =
                    Some(bad.forgiven.as_ref().map(|noted| noted.text.clone()).unwrap_or_default());
                None
            }
            Transition::Forgive { uid, emptied, bad } => {
                self.forgiving.heard_of =
                    bad.forgiven.as_ref().map(|noted| noted.text.clone()).or(self.forgiving.heard_of.take());
                self.forgiving.requested.retain(|other| other != uid);
                self.startups.clone_from(&emptied.startups);
                if self.is_assigned(uid) {
                    self.standing.cleared(|obstacle| matches!(obstacle, Obstacle::Marked { .. }));
                }
                self.rejudge();
                self.systems_changed();
                normal("ConfigForgiven", format!("the verdicts on UID {uid} were removed on request"))
            }
            _ => None,
        }
    }

    /// The running config becomes a fallback, with the counts that a restart would find: the running time
    /// that is worth recording, and no silence from before the wait.
    fn begin_wait(&mut self, now: Now) {
        let ran_ms = self.ran_ms(now).min(self.counts_up_to_ms());
        (self.in_use.counts.ran_ms, self.timing.counted_since) = (ran_ms, now.mono);
        self.in_use.counts.worst_silence_ms = 0;
        self.timing.saved_ran_ms = self.timing.saved_ran_ms.min(ran_ms);
    }

    /// The running config was assigned, and is now a fallback of the assigned one.
    fn now_runs_as(&mut self, fallback: Substitute) {
        let (config, is) = match fallback {
            Substitute::LastKnownGood => (self.disk.fallback(), self.contents.last_known_good),
            _ => (self.disk.previous(), self.contents.previous),
        };
        self.in_use.config = config.cloned().zip(is);
    }

    fn failed(&mut self, now: Now, kind: &Transition, why: String) -> Option<Next> {
        let what = kind.name();
        let next = match kind {
            Transition::Forgive { .. } => "ask again when the disk works",
            _ => "trying again later",
        };
        match kind {
            Transition::NoteSource { current } if current.invalid_source.is_none() => {
                self.requested.problem =
                    Some(SyncProblem::Failed(format!("could not record the assignment on disk: {why}")));
            }
            Transition::Adopt { .. } | Transition::AdoptBad { .. } | Transition::Unassign { .. } => {
                self.requested.problem =
                    Some(SyncProblem::Failed(format!("could not record the assignment on disk: {why}")));
                self.half_assigned(kind, &why);
            }
            // requested by a person: report it and drop it, they can ask again
            Transition::Forgive { uid, .. } => self.forgiving.requested.retain(|other| other != uid),
            // a failed save is tried again when the next is due
            Transition::TrialProgress { .. } => self.timing.saved_ran_ms = self.ran_ms(now),
            _ => {}
        }
        // reported when the failure begins, not every minute that a disk is full
        if std::mem::replace(&mut self.writes.have_failed, true) {
            return None;
        }
        self.notices.push(Notice {
            warning: true,
            reason: "ConfigNotRecorded",
            message: format!("{what}: a write failed ({why}); nothing was changed, {next}"),
        });
        None
    }

    /// `current` was written, and a later write of the same transition failed: the new config is assigned,
    /// another one runs.
    fn half_assigned(&mut self, kind: &Transition, why: &str) {
        match kind {
            Transition::Adopt { current, is, .. } if self.disk.current.known() == Some(current) => {
                // as the next start will find it: assigned, with its start not recorded
                self.contents.assigned = Some(*is);
                self.requested.edited = None;
                // the running config is no longer the assigned one: it is last-known-good, or was on trial
                // and is superseded
                let runs = if self.in_trial() { Substitute::Superseded } else { Substitute::LastKnownGood };
                self.standing.obstructed(Obstacle::NotRecorded(why.to_owned()), runs);
                self.standing.forget_passed_over();
            }
            _ => {}
        }
    }

    /// The counts of the running config.
    fn ours(&self, startups: &Startups) -> Counts {
        startups.records.get(&self.in_use.ran_as()).cloned().unwrap_or_default()
    }

    /// Takes over the saved counts. Running time and silence still count from the start of this run, and
    /// contact made meanwhile is kept.
    fn saved(&mut self, startups: &Startups) {
        let saved = self.ours(startups);
        self.startups.clone_from(startups);
        let ours = &mut self.in_use.counts;
        *ours = Counts {
            ran_ms: ours.ran_ms,
            silent_ms: ours.silent_ms,
            worst_silence_ms: ours.worst_silence_ms,
            lost_ms: ours.lost_ms,
            worse: ours.worse,
            contact: saved.contact || ours.contact,
            ..saved
        };
    }

    /// `current` was written: it may name the same payload under another object, name, key or Node.
    fn renamed(&mut self, current: &Current, before: &str) {
        let (Some(assigned), Some(is)) = (&current.assigned, self.contents.assigned) else { return };
        let config = assigned.config.clone();
        let is_another = config.uid != before;
        if self.standing.is_assigned() {
            self.in_use.config = Some((config, is));
        } else if is_another && self.standing.cleared(|obstacle| matches!(obstacle, Obstacle::Marked { .. }))
        {
            // the verdict is about another object with this payload
            self.rejudge();
        }
    }

    /// The source is recorded as valid again: its config may run.
    fn source_noted(&mut self) {
        let is_valid = self.disk.invalid_source().is_none();
        if is_valid && self.standing.cleared(|obstacle| matches!(obstacle, Obstacle::SourceInvalid(_))) {
            if matches!(self.disk.assigned(), AssignedNow::Local) {
                self.standing = Standing::Local;
            }
            self.rejudge();
        }
    }
}

/// Why a config does not run, for an Event: which one, the reason, and field and place if there are any.
pub(crate) fn explained(config: &str, reason: &str, verdict: &Verdict) -> String {
    // an earlier release's record does not name the config
    let of = if config.is_empty() { verdict.source.as_str() } else { config };
    let colons = [of, verdict.detail.as_str()].map(|part| if part.is_empty() { "" } else { ": " });
    format!("{of}{}{reason}{}{}", colons[0], colons[1], verdict.detail)
}

/// A clean exit closes the record of the config that ran, and saves its running time. It does not wait for a
/// disk that refuses the write: the next start will count one startup too many, not one too few.
fn close(closed: &Startups, disk: &mut Disk, steps: &mut Steps) -> Suspendable<()> {
    let _ = disk.put_startups(steps, closed.clone())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::records::{CHECKPOINT_BYTES, Read};
    use crate::config::start::{self, Parsed};
    use kedge_api::Timestamp;
    use serde_json::json;

    fn now() -> Now {
        Now { mono: Duration::ZERO, wall: Timestamp::from_micros(0) }
    }

    /// A node to which nothing was assigned yet.
    fn local() -> Configuration {
        let facts = start::tests::facts();
        let mut outcomes = Vec::new();
        let started = loop {
            match start::start(&mut Steps::over(&outcomes), &facts, &mut Parsed::default()) {
                Ok(started) => break started,
                Err(Suspend(Step::Read(_))) => outcomes.push(Outcome::Read(Read::Absent)),
                // its start is recorded
                Err(Suspend(_)) => outcomes.push(Outcome::Done(Ok(()))),
            }
        };
        Configuration::new(started, facts, now())
    }

    /// While the disk refuses, the agent keeps the latest pushed content (up to a mebibyte), and only that
    /// one, until the disk accepts it. Downloading it again for each try would cost more than keeping it.
    #[test]
    fn refusing_disk_keeps_one_content_in_memory() {
        let source = Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u-1".into() };
        let mut configuration = local();
        configuration.node_seen("node-1", RequestedSource::Correct(source), "spec.configSource");
        let mut kept = Vec::new();
        let mut time = now();
        for version in ["1", "2", "3"] {
            let object = Rc::new(json!({
                "metadata": {"namespace": "n", "name": "m", "uid": "u-1", "resourceVersion": version},
                "data": {"kubelet": format!("maxPods: {version}")},
            }));
            kept.push(Rc::downgrade(&object));
            configuration.object_seen("n", "m", Object::Here(object));
            for _ in 0..3 {
                time.mono += RETRY_WRITE;
                let Some(Next::Step(Step::Write(..))) = configuration.next(time) else { panic!("no write") };
                let refused = Outcome::Done(Err("no space left on device".into()));
                assert!(configuration.done(time, refused).is_none(), "later");
            }
            let counts: Vec<usize> = kept.iter().map(std::rc::Weak::strong_count).collect();
            assert_eq!(counts.iter().sum::<usize>(), 1, "{counts:?}");
            assert_eq!(counts.last(), Some(&1), "the latest");
        }
        time.mono += RETRY_WRITE;
        let mut next = configuration.next(time);
        while let Some(Next::Step(_)) = next {
            next = configuration.done(time, Outcome::Done(Ok(())));
        }
        assert!(matches!(next, Some(Next::Exit(_))), "{next:?}");
    }

    /// The content may have a mebibyte, on a board with 64 of them.
    #[test]
    fn content_that_cannot_be_assigned_is_not_kept() {
        let source = Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u-1".into() };
        let object = |uid: &str, key: &str, filler: usize| {
            json!({
                "metadata": {"namespace": "n", "name": "m", "uid": uid, "resourceVersion": "7"},
                "data": {key: "maxPods: 7", "filler": "x".repeat(filler)},
            })
        };
        for (object, problem) in [
            (object("u-1", "other", 0), "has no text under key"),
            (object("u-2", "kubelet", 0), "does not match UID"),
            (object("u-1", "kubelet", CHECKPOINT_BYTES), "expected at most"),
        ] {
            let mut configuration = local();
            configuration.node_seen("node-1", RequestedSource::Correct(source.clone()), "spec.configSource");
            let object = Rc::new(object);
            let kept = Rc::downgrade(&object);
            configuration.object_seen("n", "m", Object::Here(object));
            let noted = configuration.next(now());
            assert_eq!(kept.strong_count(), 0, "{problem}");
            let known = format!(
                "{:?} {:?} {noted:?}",
                configuration.requested.object, configuration.requested.problem
            );
            assert!(known.contains(problem), "{known}");
        }
    }
}
