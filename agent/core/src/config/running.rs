//! The configuration of a running agent: compares the source with the records and with the running config,
//! and makes the one transition that is due (RULES.md, "Sources" and "Durable writes").
//!
//! Level-triggered: an event only changes the known facts, and then `next` compares. One transition is under
//! way at a time, as a program of durable writes; the agent's picture of its disk changes when it ends.
//! Always holds: the source is compared with `current`, never with the running config (otherwise a rolled
//! back node would restart for ever); a download is never parsed here; a failed write changes nothing but the
//! time of the next try.

use crate::answer::Now;
use crate::config::digest::Identity;
use crate::config::disk::{AssignedNow, Disk, payload};
use crate::config::judge::{self, Role};
use crate::config::records::{
    Asked, Assigned, BadConfigs, BadKind, CHECKPOINT_BYTES, CheckpointName, Complaints, ConfigRecord, Counts,
    Current, Known, LastKnownGood, RanAs, Recorded, Startups, StateFile, Verdict, shortened,
};
use crate::config::source::{self, RequestedSource, Source};
use crate::config::standing::{Obstacle, Rank, Standing, Substitute};
use crate::config::start::{Facts, Floor, InUse, Started};
use crate::kubelet::Effective;
use crate::writes::{Outcome, Step, Steps, Suspend, Suspendable};
use kedge_api::{ConfigMap, excerpt};
use serde_json::Value;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// After a failed write the next try waits this long: the disk is likely full, and trying sooner does not
/// free it.
const RETRY_WRITE: Duration = Duration::from_secs(60);

/// UIDs that wait to be forgiven: each is a request by a person at the node, and a hung disk must not let
/// them pile up.
const WAITING_TO_BE_FORGIVEN: usize = 8;

/// Longest annotation with a request to forgive: a UID of 64 bytes, and as much again to distinguish one
/// request from another.
const LONGEST_ASKED_BYTES: usize = 128;

/// The ConfigMap that the source names, as last read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    /// Not read yet.
    Unread,
    /// It does not exist.
    Missing,
    /// It could not be read; the reason.
    Unreadable(String),
    /// It has this UID and resourceVersion; its content was not read, because it is on disk.
    Unchanged {
        uid: String,
        resource_version: String,
    },
    Here(Rc<Value>),
    /// It has this UID and resourceVersion, and the records agree with it. Its content, perhaps a mebibyte,
    /// was dropped.
    Compared {
        uid: String,
        resource_version: String,
    },
    /// It has this UID and resourceVersion, and cannot be assigned; why. Its content was dropped, too.
    Refused {
        uid: String,
        resource_version: String,
        problem: SyncProblem,
    },
}

impl Object {
    /// Whether `other` adds nothing to the facts about this version of the object.
    fn is(&self, other: &Self) -> bool {
        match self {
            // a refused object is compared again if its content arrives again: the first may have arrived
            // damaged
            Self::Here(_) | Self::Refused { .. } => {
                matches!(other, Self::Unchanged { .. }) && self.version() == other.version()
            }
            Self::Compared { .. } => self.version() == other.version(),
            _ => false,
        }
    }

    /// The ConfigMap's UID and resourceVersion, once they are known.
    fn version(&self) -> Option<(&str, &str)> {
        match self {
            Self::Unread | Self::Missing | Self::Unreadable(_) => None,
            Self::Unchanged { uid, resource_version }
            | Self::Compared { uid, resource_version }
            | Self::Refused { uid, resource_version, .. } => Some((uid, resource_version)),
            Self::Here(here) => {
                let part = |pointer: &str| here.pointer(pointer).and_then(Value::as_str);
                Some((part("/metadata/uid")?, part("/metadata/resourceVersion")?))
            }
        }
    }

    /// The problem lasts as long as this version of the object: its content is not needed any more.
    fn refused(&self, problem: SyncProblem) -> Self {
        let (uid, resource_version) = self.version().unwrap_or_default();
        Self::Refused { uid: uid.to_owned(), resource_version: resource_version.to_owned(), problem }
    }
}

/// The source's config could not be assigned: the condition is Unknown, with this reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyncProblem {
    /// The source is invalid.
    Invalid(String),
    /// Any other failure between the source and a durable assignment.
    Failed(String),
}

impl SyncProblem {
    /// Much of it may be a client's text, and every watcher of Nodes gets the condition.
    fn shortened(self) -> Self {
        match self {
            Self::Invalid(why) => Self::Invalid(shortened(&why)),
            Self::Failed(why) => Self::Failed(shortened(&why)),
        }
    }
}

/// A transition under way.
#[derive(Debug, Clone)]
struct Job {
    kind: Transition,
    outcomes: Vec<Outcome>,
}

/// All counts without those that led to verdicts.
#[derive(Debug, Clone, PartialEq)]
struct Emptied {
    startups: Startups,
    /// Whether there were any.
    is_due: bool,
}

/// The transitions that a running agent makes (RULES.md, "Durable writes").
#[derive(Debug, Clone, PartialEq)]
enum Transition {
    /// Adopts a config with this verdict while the config runs that a start would choose.
    AdoptBad {
        checkpoint: Option<Vec<u8>>,
        current: Current,
        is: Identity,
        verdict: Verdict,
    },
    Adopt {
        checkpoint: Option<Vec<u8>>,
        current: Current,
        is: Identity,
        startups: Startups,
    },
    NoteSource {
        current: Current,
    },
    Unassign {
        current: Current,
        why: String,
    },
    TrialProgress {
        startups: Startups,
        bad: Option<BadConfigs>,
    },
    Promote {
        startups: Startups,
        config: ConfigRecord,
        previous: Option<ConfigRecord>,
        bad: Option<BadConfigs>,
    },
    SilentTrial {
        startups: Startups,
    },
    WaitOver {
        why: String,
        emptied: Emptied,
        bad: BadConfigs,
        closed: Startups,
    },
    TryAssigned {
        why: String,
        startups: Startups,
    },
    RecordVerdict {
        bad: BadConfigs,
        emptied: Emptied,
    },
    /// Records the Node's request to forgive, or that it was withdrawn, without another effect.
    NoteAsked {
        bad: BadConfigs,
    },
    Forgive {
        uid: String,
        bad: BadConfigs,
        emptied: Emptied,
    },
    CleanExit {
        why: String,
        closed: Option<Startups>,
        /// With the counts without those that led to the verdict.
        verdict: Option<(BadConfigs, Option<Startups>)>,
    },
}

/// Names of the transitions, for the log and for counting those that a simulation reached.
impl Transition {
    fn name(&self) -> &'static str {
        match self {
            Self::Adopt { .. } | Self::AdoptBad { .. } => "adopt",
            Self::NoteSource { .. } => "note-source",
            Self::Unassign { .. } => "unassign",
            Self::TrialProgress { .. } => "trial-progress",
            Self::Promote { .. } => "promote",
            Self::SilentTrial { .. } => "silent-trial",
            Self::WaitOver { .. } => "wait-over",
            Self::TryAssigned { .. } => "try-assigned",
            Self::RecordVerdict { .. } => "record-verdict",
            Self::NoteAsked { .. } => "note-asked",
            Self::Forgive { .. } => "forgive",
            Self::CleanExit { .. } => "clean-exit",
        }
    }

    /// Whether the run ends after it.
    fn exits(&self) -> bool {
        matches!(
            self,
            Self::Adopt { .. }
                | Self::Unassign { .. }
                | Self::SilentTrial { .. }
                | Self::WaitOver { .. }
                | Self::TryAssigned { .. }
                | Self::CleanExit { .. }
        )
    }
}

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

/// A config that is set aside, and tried again after a wait.
struct Waiting {
    uid: String,
    is: Identity,
    verdict: Verdict,
    /// How long the running config must run well before that.
    wait_ms: u64,
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

/// The configuration's state machine.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    facts: Facts,
    disk: Disk,
    in_use: InUse,
    /// The counts of all configs, recorded or not; those of the running config as last saved.
    startups: Startups,
    /// When this run began, in monotonic time.
    run_began: Duration,
    /// When running time began to count: at the start of the run, or when pods were released.
    counted_since: Duration,
    /// Running time of the config at the last save of progress.
    saved_ran_ms: u64,
    /// When an API server last accepted a renewal or a status, or when this run began.
    silent_since: Duration,
    /// The node's faults at the last look; `None` before the first.
    complaints: Option<Complaints>,
    /// Whether all thresholds of the config in use were checked.
    has_looked: bool,
    /// The faults under the config on trial beyond its baseline, as last reported.
    reported_worse: Complaints,
    /// While the running config is not proven: the last-known-good's limits for pods.
    floor: Option<Floor>,
    assigned: Option<Identity>,
    last_known_good: Option<Identity>,
    previous: Option<Identity>,
    standing: Standing,
    node_uid: String,
    /// The Node that requested something, valid or not, since this agent runs.
    asked_by: String,
    /// Where an operator writes the Node's request.
    place: &'static str,
    /// The Node's request, as last read.
    requested: Option<RequestedSource>,
    /// The ConfigMap that it names.
    object: Object,
    /// The object changed, or its checkpoint was lost: it must be read whole.
    must_read: bool,
    sync: Option<SyncProblem>,
    /// Why the exit, for which everything is written, cannot happen.
    held_up: Option<String>,
    /// The pinned ConfigMap was edited: not followed, but reported.
    edited: Option<String>,
    /// A checkpoint that is durable although its assignment could not be recorded.
    unnamed: Option<CheckpointName>,
    /// A transition left a checkpoint that no record names.
    must_sweep: bool,
    /// An edit of the list of bad configs during a transition.
    edited_bad: Option<Known<BadConfigs>>,
    stop: Option<String>,
    forgive: Vec<String>,
    /// The Node's request to forgive: a UID, and perhaps more words; `None` before a Node was read.
    asked_to_forgive: Option<String>,
    /// The last such request that was obeyed or recorded, whatever has happened to the list since; `None` if
    /// none is known.
    heard_of: Option<String>,
    /// This run's start found no list: an agent of another version may have obeyed the Node's request, and
    /// recorded it in its own.
    began_list: bool,
    reset: bool,
    job: Option<Job>,
    /// The end of the previous run has a consequence that is not on disk yet.
    evidence_unrecorded: bool,
    /// The last transition ended at a write that failed.
    write_failed: bool,
    /// No transition that writes starts before this, after one failed.
    not_before: Duration,
    notices: Vec<Notice>,
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
    /// resourceVersion of the assigned object as last read, if its payload is the recorded one.
    pub(crate) latest: Option<&'a str>,
}

impl Configuration {
    pub(crate) fn new(started: Started, facts: Facts, now: Now) -> Self {
        let saved_ran_ms = started.in_use.counts.ran_ms;
        let disk_refused = started.standing.waits_for_disk();
        let noted = started.disk.bad_configs.known().and_then(|bad| bad.forgiven.clone());
        Self {
            facts,
            disk: started.disk,
            in_use: started.in_use,
            startups: started.startups,
            run_began: now.mono,
            counted_since: now.mono,
            saved_ran_ms,
            silent_since: now.mono,
            complaints: None,
            has_looked: false,
            reported_worse: Complaints::default(),
            floor: started.floor,
            assigned: started.assigned,
            last_known_good: started.last_known_good,
            previous: started.previous,
            standing: started.standing,
            node_uid: String::new(),
            asked_by: String::new(),
            place: source::place(true),
            requested: None,
            object: Object::Unread,
            must_read: false,
            sync: None,
            held_up: None,
            edited: None,
            unnamed: None,
            must_sweep: false,
            edited_bad: None,
            stop: None,
            forgive: Vec::new(),
            asked_to_forgive: None,
            heard_of: noted.map(|noted| noted.text),
            began_list: started.began_list,
            reset: false,
            job: None,
            evidence_unrecorded: started.evidence_unrecorded,
            write_failed: false,
            // a disk that refused a moment ago is not tried again at once, or each start would lead to the
            // next
            not_before: if disk_refused { now.mono.saturating_add(RETRY_WRITE) } else { now.mono },
            notices: Vec::new(),
        }
    }

    // ------------------------------------------------------------------------------------------ knowledge

    /// The Node was read; `place` is where its source is written, for messages.
    pub(crate) fn node_seen(&mut self, uid: &str, requested: RequestedSource, place: &'static str) {
        self.place = place;
        let object_of = |requested: &RequestedSource| match requested {
            RequestedSource::Correct(source) => {
                Some((source.object().0.to_owned(), source.object().1.to_owned()))
            }
            _ => None,
        };
        if self.requested.as_ref().and_then(object_of) != object_of(&requested) {
            self.object = Object::Unread;
        } else if self.requested.as_ref() != Some(&requested)
            && matches!(self.object, Object::Compared { .. } | Object::Refused { .. })
        {
            // another key of it, or the other form: its content was dropped
            (self.object, self.must_read) = (Object::Unread, true);
        }
        if requested != RequestedSource::Nil && self.asked_by != uid {
            self.asked_by = uid.to_owned();
        }
        self.node_uid = uid.to_owned();
        self.requested = Some(requested);
    }

    /// The text of the Node's annotation `kedge.dev/forgive`, if there is one.
    pub(crate) fn asked_to_forgive(&mut self, asked: Option<&str>) {
        let asked = asked.filter(|asked| asked.len() <= LONGEST_ASKED_BYTES).unwrap_or_default();
        // the record of it was lost with the list, or is in another version's list: the Node's request may
        // have been obeyed long ago
        let may_be_old = self.heard_of.is_none() && (self.began_list || self.verdicts_were_lost());
        let is_withdrawn = asked.is_empty() && self.noted().is_none();
        if may_be_old || is_withdrawn {
            self.heard_of = Some(asked.to_owned());
        }
        self.asked_to_forgive = Some(asked.to_owned());
    }

    /// Another API server answers from now on: versions and objects of the old one must not be compared with
    /// its objects.
    pub(crate) fn server_changed(&mut self) {
        (self.requested, self.asked_to_forgive) = (None, None);
        (self.object, self.must_read) = (Object::Unread, true);
        self.node_uid.clear();
        self.asked_by.clear();
        (self.sync, self.edited) = (None, None);
    }

    /// The ConfigMap that the source names was read, or was not.
    pub(crate) fn object_seen(&mut self, namespace: &str, name: &str, object: Object) {
        let is_wanted = self.requested_object().is_some_and(|wanted| wanted == (namespace, name));
        // keep the whole object: a confirmation that it did not change has no content
        if is_wanted && !self.object.is(&object) {
            self.object = object;
        }
    }

    /// UID and resourceVersion of the wanted ConfigMap as recorded, if its checkpoint is whole: it need not
    /// be read again.
    pub(crate) fn held(&self) -> Option<(&str, &str)> {
        let Some(RequestedSource::Correct(source)) = &self.requested else { return None };
        let recorded = self.recorded(source)?;
        Some((&recorded.config.uid, &recorded.config.resource_version))
    }

    /// Returns once that the object must be read whole.
    pub(crate) fn take_must_read(&mut self) -> bool {
        std::mem::take(&mut self.must_read)
    }

    /// The record of this source's config, if its checkpoint is whole.
    fn recorded(&self, source: &Source) -> Option<&Assigned> {
        let recorded = self.disk.current.known().and_then(|current| current.assigned.as_ref())?;
        (self.assigned.is_some() && recorded.config.source == *source).then_some(recorded)
    }

    /// The ConfigMap to watch.
    pub(crate) fn requested_object(&self) -> Option<(&str, &str)> {
        match &self.requested {
            Some(RequestedSource::Correct(source)) if self.facts.dynamic => Some(source.object()),
            _ => None,
        }
    }

    /// The node was looked at; `is_whole` if at everything that has a threshold. A moment in which the node
    /// is worse than its baseline restarts the running time of a trial.
    pub(crate) fn looked(&mut self, now: Now, complaints: Complaints, is_whole: bool) {
        self.complaints = Some(complaints);
        self.has_looked |= is_whole;
        let worse = self.worse();
        if worse.is_empty() {
            return;
        }
        let ran_ms = self.ran_ms(now);
        let counts = &mut self.in_use.counts;
        counts.lost_ms = counts.lost_ms.saturating_add(ran_ms);
        counts.worse = counts.worse.and(worse);
        (counts.ran_ms, self.counted_since) = (0, now.mono);
        self.standing.trial_begins_anew();
        if !worse.beyond(self.reported_worse).is_empty() {
            self.reported_worse = self.reported_worse.and(worse);
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
        let complaints = self.complaints.filter(|_| self.in_trial()).unwrap_or_default();
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
        self.silent_since = now.mono;
    }

    /// An API server accepted a renewal. One that arrives just after the process began may be the last before
    /// the config cuts the node off: it proves nothing about the trial.
    pub(crate) fn renewed(&mut self, now: Now) {
        self.contact(now);
        let (trial_ms, ran_ms) = (self.in_use.terms.trial_ms, self.ran_ms(now));
        // thresholds that cannot be read for that long do not count
        let has_looked = self.has_looked || ran_ms >= self.in_use.terms.trial_ends_within_ms();
        if !(has_looked && self.worse().is_empty()) {
            return;
        }
        let lease_secs = u64::from(self.in_use.effective.config.node_lease_duration_secs);
        let two_periods = Duration::from_millis(lease_secs * 1000 / 2).min(Duration::from_millis(trial_ms));
        let is_old = now.mono.saturating_sub(self.run_began) >= two_periods;
        if is_old && ran_ms >= trial_ms {
            self.standing.heard_after_trial();
        }
    }

    /// Running time since the last contact, or since the config began.
    fn silent_ms(&self, now: Now) -> u64 {
        let since = now.mono.saturating_sub(self.silent_since).as_millis();
        self.in_use.counts.silent_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// A stop of the agent was requested.
    pub(crate) fn stop(&mut self, why: &str) {
        self.stop.get_or_insert_with(|| why.to_owned());
    }

    pub(crate) fn is_stop_asked(&self) -> bool {
        self.stop.is_some()
    }

    /// `kedge config forgive UID`.
    pub(crate) fn forgive(&mut self, uid: &str) -> Forgiveness {
        let answer = self.forgiveness(uid);
        if answer == Forgiveness::Taken && !self.waits_to_be_forgiven(uid) {
            self.forgive.push(uid.to_owned());
        }
        answer
    }

    /// The outcome of such a request at this moment.
    pub(crate) fn forgiveness(&self, uid: &str) -> Forgiveness {
        if !self.facts.dynamic {
            return Forgiveness::SwitchedOff;
        }
        if !self.has_verdict(uid) {
            return Forgiveness::NothingKnown;
        }
        if self.is_exiting() {
            return Forgiveness::Exiting;
        }
        if self.forgive.len() >= WAITING_TO_BE_FORGIVEN && !self.waits_to_be_forgiven(uid) {
            return Forgiveness::TooMany;
        }
        Forgiveness::Taken
    }

    /// Whether there is a verdict, as far as the list is readable.
    fn has_verdict(&self, uid: &str) -> bool {
        match &self.disk.bad_configs {
            Known::Is(bad) => {
                bad.entries().any(|(other, ..)| other == uid) || self.is_assigned(uid) && self.is_doubted()
            }
            Known::Absent => false,
            Known::Unknown { .. } => true,
        }
    }

    fn waits_to_be_forgiven(&self, uid: &str) -> bool {
        self.forgive.iter().any(|other| other == uid)
    }

    /// The exit, for which everything is written, cannot happen, for this reason; `None` if it can.
    pub(crate) fn hold_up_end(&mut self, held_up: Option<String>) {
        self.held_up = held_up;
    }

    /// An exit is on its way that comes before any new request.
    fn is_exiting(&self) -> bool {
        self.stop.is_some() || self.held_up.is_some() || self.job.as_ref().is_some_and(|job| job.kind.exits())
    }

    /// `kedge config reset`: use the local config, whatever the records say.
    pub(crate) fn reset(&mut self) {
        self.reset = true;
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
        let is_asked = self.requested.as_ref().is_some_and(|requested| *requested != RequestedSource::Nil);
        is_asked.then(|| format!("the Node still asks for a config; clear {} first", self.place))
    }

    /// The list of bad configs was edited by hand, which is a supported repair.
    pub(crate) fn bad_configs_edited(&mut self, bad: Known<BadConfigs>) {
        if !self.facts.dynamic {
            // the list was never read, so this is not an edit
            return;
        }
        let bad = if bad == Known::Absent { Known::Is(BadConfigs::default()) } else { bad };
        if let Known::Unknown { why, .. } = &bad {
            let message = format!(
                "bad-configs.json changed and cannot be read ({why}); the list as it was stays in force"
            );
            self.notices.push(Notice { warning: true, reason: "BadConfigsUnreadable", message });
        }
        if bad.known().is_none() || self.disk.bad_configs == bad {
            return;
        }
        if self.job.is_some() {
            // a transition under way uses the list as it was at its begin
            self.edited_bad = Some(bad);
            return;
        }
        self.take_bad_configs(bad);
    }

    /// Somebody else wrote the list on disk.
    fn take_bad_configs(&mut self, bad: Known<BadConfigs>) {
        let before = std::mem::replace(&mut self.disk.bad_configs, bad);
        let chain = self.chain();
        for (_, config, is) in &chain {
            self.disk.take_over_verdicts(&config.uid, is);
        }
        let of_deeds = |list: &Known<BadConfigs>, config: &ConfigRecord, is: &Identity| {
            let verdict = list.known().and_then(|bad| bad.verdict(&config.uid, Some(is)));
            verdict.is_some_and(|verdict| !verdict.kind.is_of_text())
        };
        let is_gone = |config: &ConfigRecord, is: &Identity| {
            of_deeds(&before, config, is) && !of_deeds(&self.disk.bad_configs, config, is)
        };
        let gone = chain.iter().filter(|(_, config, is)| is_gone(config, is)).map(|(.., is)| *is);
        // the counts of a config whose entry was removed are dropped, too: the next start finds that in its
        // record
        self.startups = self.without_counts(gone).startups;
        if let Some(noted) = self.noted().map(str::to_owned) {
            self.heard_of = Some(noted);
        }
        self.rejudge();
    }

    /// Running time of the config in use since its last counted startup.
    pub(crate) fn ran_ms(&self, now: Now) -> u64 {
        let run = now.mono.saturating_sub(self.counted_since).as_millis();
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
        let proven = [self.last_known_good, self.previous];
        proven.iter().flatten().any(|proven| proven.payload == is.payload)
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
            true => self.complaints.unwrap_or_default(),
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
            sync: self.sync.as_ref(),
            held_up: self.held_up.as_deref(),
            edited: self.edited.as_deref(),
            latest: match &self.object {
                Object::Compared { resource_version, .. } if self.edited.is_none() => Some(resource_version),
                _ => None,
            },
        }
    }

    /// The checkpoints that a sweep keeps, if a transition has left one that no record names.
    pub(crate) fn take_sweep(&mut self) -> Option<Option<Vec<CheckpointName>>> {
        std::mem::take(&mut self.must_sweep).then(|| self.checkpoints_to_keep())
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
        Some(assigned.into_iter().chain(adopted).chain(self.unnamed.clone()).chain(good).collect())
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
        !self.evidence_unrecorded
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
            self.counted_since
                .saturating_add(Duration::from_millis(ms.saturating_sub(self.in_use.counts.ran_ms)))
        };
        let mut deadlines = Vec::with_capacity(4);
        if self.counts_running() && self.ran_ms(now) < u64::MAX {
            let terms = self.in_use.terms;
            if self.saved_ran_ms < terms.settled_after_ms() {
                deadlines.push(at(self.save_due_ms()));
                deadlines.push(at(terms.settled_after_ms()));
            }
            if self.in_trial() {
                let Counts { silent_ms, lost_ms, .. } = self.in_use.counts;
                let left = self.patience_ms().saturating_sub(silent_ms);
                deadlines.push(self.silent_since.saturating_add(Duration::from_millis(left)));
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
        }
        if self.waits_for_disk() {
            deadlines.push(self.not_before);
        }
        deadlines.into_iter().map(|at| at.max(self.not_before)).filter(|at| *at > now.mono).min()
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
                    durable!(disk.put_startups(steps, startups.clone()));
                    if let Some(bad) = bad {
                        durable!(disk.put_bad_configs(steps, bad.clone()));
                    }
                }
                Transition::Promote { startups, config, previous, bad } => {
                    durable!(disk.put_startups(steps, startups.clone()));
                    let good = LastKnownGood { config: Some(config.clone()), previous: previous.clone() };
                    durable!(disk.put_last_known_good(steps, good));
                    if let Some(bad) = bad {
                        durable!(disk.put_bad_configs(steps, bad.clone()));
                    }
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
                Transition::Forgive { bad, emptied, .. } => {
                    // before the verdict, or a cut in between would leave the counts that led to it, and the
                    // next start would judge by them
                    if emptied.is_due {
                        durable!(disk.put_startups(steps, emptied.startups.clone()));
                    }
                    durable!(disk.put_bad_configs(steps, bad.clone()));
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
        if let Some(bad) = self.edited_bad.take().filter(|_| !rewritten) {
            self.take_bad_configs(bad);
        }
        if let Some(why) = ended.failed {
            self.not_before = now.mono.saturating_add(RETRY_WRITE);
            self.note_unnamed(&kind, ended.written);
            return self.failed(now, &kind, why);
        }
        self.write_failed = false;
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
            self.must_sweep |= self.unnamed.is_some();
            self.unnamed = name.cloned();
        }
    }

    /// Updates everything but the disk after a finished transition; returns the reports.
    fn succeeded(&mut self, now: Now, kind: &Transition, before: &Disk) -> Option<Notice> {
        if matches!(
            kind,
            Transition::TrialProgress { .. } | Transition::Promote { .. } | Transition::RecordVerdict { .. }
        ) {
            self.evidence_unrecorded = false;
        }
        let normal = |reason, message| Some(Notice { warning: false, reason, message });
        match kind {
            Transition::Promote { startups, config, .. } => {
                self.standing = Standing::KnownGood;
                self.in_use.counts.lost_ms = 0;
                self.saved_ran_ms = self.ours(startups).ran_ms.max(self.ran_ms(now));
                self.saved(startups);
                self.previous = self.last_known_good;
                self.last_known_good = self.in_use.config.as_ref().map(|(_, is)| *is);
                self.must_sweep = true;
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
                    (self.in_use.counts.ran_ms, self.counted_since) = (0, now.mono);
                }
                self.saved_ran_ms = self.ours(startups).ran_ms.max(self.ran_ms(now));
                self.saved(startups);
                None
            }
            Transition::AdoptBad { is, verdict, .. } => {
                self.begin_wait(now);
                self.assigned = Some(*is);
                (self.edited, self.unnamed) = (None, None);
                let was_assigned = self.standing.is_assigned();
                let runs = if self.in_trial() { Substitute::Previous } else { Substitute::LastKnownGood };
                let obstacle = Obstacle::Marked { verdict: verdict.clone(), recorded: true };
                self.standing.obstructed(obstacle, runs);
                if was_assigned {
                    self.now_runs_as(runs);
                }
                self.must_sweep = true;
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
                self.heard_of =
                    Some(bad.forgiven.as_ref().map(|noted| noted.text.clone()).unwrap_or_default());
                None
            }
            Transition::Forgive { uid, emptied, bad } => {
                self.heard_of =
                    bad.forgiven.as_ref().map(|noted| noted.text.clone()).or(self.heard_of.take());
                self.forgive.retain(|other| other != uid);
                self.startups.clone_from(&emptied.startups);
                if self.is_assigned(uid) {
                    self.standing.cleared(|obstacle| matches!(obstacle, Obstacle::Marked { .. }));
                }
                self.rejudge();
                normal("ConfigForgiven", format!("the verdicts on UID {uid} were removed on request"))
            }
            _ => None,
        }
    }

    /// The running config becomes a fallback, with the counts that a restart would find: the running time
    /// that is worth recording, and no silence from before the wait.
    fn begin_wait(&mut self, now: Now) {
        let ran_ms = self.ran_ms(now).min(self.counts_up_to_ms());
        (self.in_use.counts.ran_ms, self.counted_since) = (ran_ms, now.mono);
        self.in_use.counts.worst_silence_ms = 0;
        self.saved_ran_ms = self.saved_ran_ms.min(ran_ms);
    }

    /// The running config was assigned, and is now a fallback of the assigned one.
    fn now_runs_as(&mut self, fallback: Substitute) {
        let (config, is) = match fallback {
            Substitute::LastKnownGood => (self.disk.fallback(), self.last_known_good),
            _ => (self.disk.previous(), self.previous),
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
                self.sync =
                    Some(SyncProblem::Failed(format!("could not record the assignment on disk: {why}")));
            }
            Transition::Adopt { .. } | Transition::AdoptBad { .. } | Transition::Unassign { .. } => {
                self.sync =
                    Some(SyncProblem::Failed(format!("could not record the assignment on disk: {why}")));
                self.half_assigned(kind, &why);
            }
            // requested by a person: report it and drop it, they can ask again
            Transition::Forgive { uid, .. } => self.forgive.retain(|other| other != uid),
            // a failed save is tried again when the next is due
            Transition::TrialProgress { .. } => self.saved_ran_ms = self.ran_ms(now),
            _ => {}
        }
        // reported when the failure begins, not every minute that a disk is full
        if std::mem::replace(&mut self.write_failed, true) {
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
                self.assigned = Some(*is);
                self.edited = None;
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
        let (Some(assigned), Some(is)) = (&current.assigned, self.assigned) else { return };
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

    // ------------------------------------------------------------------------------------------ comparing

    /// The transition that is due, first match.
    fn due(&mut self, now: Now) -> Option<Transition> {
        if let Some(why) = &self.stop {
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
        if self.unnamed.is_some() && from_source.is_none() && self.sync.is_none() {
            // the config is not wanted any more
            (self.unnamed, self.must_sweep) = (None, true);
        }
        if now.mono < self.not_before {
            return None;
        }
        from_source
            .or_else(|| self.promotion(now))
            .or_else(|| self.silent_trial(now))
            .or_else(|| self.progress(now))
            .or_else(|| self.retry_assigned(now))
            .or_else(|| self.asked_from_afar(now))
    }

    fn asked_for(&self, now: Now) -> Option<Transition> {
        let Some(uid) = self.forgive.first().cloned() else {
            // a record must come before an exit; but while the disk refuses writes, more important ones are
            // tried first
            if !self.write_failed
                && let Some(kind) = self.asked_from_afar(now)
            {
                return Some(kind);
            }
            let why = "reset to the local config on request, restarting to use it".to_owned();
            // until it is done, because it was promised
            return (self.reset && now.mono >= self.not_before)
                .then(|| Transition::Unassign { current: self.reset_current(), why });
        };
        Some(self.forgiving(uid))
    }

    /// Records the Node's request to forgive, and obeys it if there is a verdict now: never later, because a
    /// request that stays on the Node is not about the next verdict. A withdrawn request may be made again.
    fn asked_from_afar(&self, now: Now) -> Option<Transition> {
        let asked = self.asked_to_forgive.as_deref().filter(|_| now.mono >= self.not_before)?;
        if self.noted().unwrap_or_default() == asked {
            return None;
        }
        let noted = (!asked.is_empty()).then(|| Asked { time: now.wall, text: asked.to_owned() });
        let uid = asked.split_whitespace().next().unwrap_or_default();
        let is_new = self.heard_of.as_deref() != Some(asked) && !uid.is_empty();
        if is_new && !self.has_verdict(uid) && self.is_assigned(uid) && self.has_unrecorded_verdict() {
            // the verdict is recorded first, and forgiven then
            return None;
        }
        if is_new && self.has_verdict(uid) {
            let mut kind = self.forgiving(uid.to_owned());
            if let Transition::Forgive { bad, .. } = &mut kind {
                bad.forgiven = noted;
            }
            return Some(kind);
        }
        let mut bad = match &self.disk.bad_configs {
            Known::Is(bad) => bad.clone(),
            Known::Absent => BadConfigs::default(),
            // an unreadable list may not be replaced for this record alone
            Known::Unknown { .. } => return None,
        };
        bad.forgiven = noted;
        Some(Transition::NoteAsked { bad })
    }

    /// The verdict on the assigned config waits for the disk.
    fn has_unrecorded_verdict(&self) -> bool {
        self.standing.unrecorded().is_some()
    }

    /// The request that the list has recorded.
    fn noted(&self) -> Option<&str> {
        self.disk.bad_configs.known()?.forgiven.as_ref().map(|noted| noted.text.as_str())
    }

    /// The list is unreadable, or has replaced an unreadable one.
    fn verdicts_were_lost(&self) -> bool {
        match &self.disk.bad_configs {
            Known::Is(bad) => bad.doubted.is_some(),
            Known::Absent => false,
            Known::Unknown { .. } => true,
        }
    }

    fn forgiving(&self, uid: String) -> Transition {
        let mut bad = match &self.disk.bad_configs {
            Known::Is(bad) => bad.clone(),
            Known::Absent => BadConfigs::default(),
            Known::Unknown { .. } => self.verdicts_lost(),
        };
        bad.forgive(&uid);
        if self.is_assigned(&uid) {
            bad.doubted = None;
        }
        let forgiven = self.chain().into_iter().filter(|(_, config, _)| config.uid == uid);
        let emptied = self.without_counts(forgiven.map(|(.., is)| is));
        Transition::Forgive { uid, bad, emptied }
    }

    /// All counts without those of these configs, except for the running one.
    fn without_counts(&self, of: impl Iterator<Item = Identity>) -> Emptied {
        let mut emptied = Emptied { startups: self.startups.clone(), is_due: false };
        for ran_as in of.map(|is| RanAs::Payload(is.payload)).filter(|other| *other != self.in_use.ran_as()) {
            emptied.is_due |= self.startups.counts_for(ran_as);
            emptied.startups.forgive(ran_as);
        }
        emptied
    }

    /// `current` after a reset. The node decides it, not its present Node: that one may need the config to
    /// fall back to, and only the Node that assigned it removes it by assigning nothing.
    fn reset_current(&self) -> Current {
        let recorded = self.disk.current.known().map(|current| current.node_uid.as_str());
        Current::reset(recorded.unwrap_or_default())
    }

    /// Compares the source with `current` (RULES.md, "Sources"). Sets the condition's problem with the
    /// source.
    fn compare_source(&mut self, now: Now) -> Option<Transition> {
        let requested = self.requested.clone()?;
        let (problem, transition) = match &requested {
            RequestedSource::Nil => self.compare_nil(),
            RequestedSource::Invalid(why) => self.compare_invalid(why),
            RequestedSource::Correct(source) => match self.object.clone() {
                // there is no new fact: the condition stays as it is
                Object::Unread => return None,
                Object::Missing => {
                    self.compare_invalid(&format!("invalid NodeConfigSource, {source} does not exist"))
                }
                Object::Unreadable(why) => {
                    (Some(SyncProblem::Failed(format!("failed to download {source}: {why}"))), None)
                }
                Object::Unchanged { uid, resource_version } => {
                    match self.recorded(source).cloned().filter(|old| old.config.is(&uid, &resource_version))
                    {
                        Some(recorded) => {
                            self.edited = None;
                            (None, self.source_is_current(recorded))
                        }
                        // the source has another key meanwhile, or the checkpoint was lost
                        None => {
                            (self.object, self.must_read) = (Object::Unread, true);
                            return None;
                        }
                    }
                }
                Object::Compared { .. } => match self.recorded(source).cloned() {
                    Some(recorded) => (None, self.source_is_current(recorded)),
                    None => {
                        (self.object, self.must_read) = (Object::Unread, true);
                        return None;
                    }
                },
                Object::Refused { problem, .. } => self.refused(problem),
                Object::Here(object) => match self.compare_object(now, source, &object) {
                    Ok(transition) => (None, transition),
                    Err(problem) => {
                        self.object = self.object.refused(problem.clone());
                        self.refused(problem)
                    }
                },
            },
        };
        // A problem stays in the condition while a transition is under way, otherwise each try on a full disk
        // would look like a change. And it is not reported before it is recorded, unless recording failed: a
        // power cut would take it back.
        let is_under_way = transition.is_some() && (problem.is_none() || now.mono >= self.not_before);
        if !is_under_way {
            self.sync = problem.map(SyncProblem::shortened);
        }
        transition
    }

    fn compare_nil(&self) -> (Option<SyncProblem>, Option<Transition>) {
        let known = self.disk.current.known();
        match self.disk.assigned() {
            AssignedNow::Local => {
                // the Node that assigned wants the local config, too: the mark of a reset is not needed any
                // more
                let is_kept = |current: &Current| current.reset && current.node_uid != self.node_uid;
                let noted = known.map(|current| match is_kept(current) {
                    true => Current { invalid_source: None, ..current.clone() },
                    false => Current::local(&self.node_uid),
                });
                let is_due = known.is_some_and(|current| {
                    current.invalid_source.is_some() || current.reset && !is_kept(current)
                });
                (None, noted.filter(|_| is_due).map(|current| Transition::NoteSource { current }))
            }
            AssignedNow::Config(config, _) => {
                let same_node = known.is_some_and(|current| current.node_uid == self.node_uid);
                if same_node || self.asked_by == self.node_uid {
                    let why = "the Node asks for no config, restarting to use the local one".to_owned();
                    let current = Current::local(&self.node_uid);
                    return (None, Some(Transition::Unassign { current, why }));
                }
                // another Node's source was invalid: this one has no source, so the assigned config may run
                // again
                let valid = known.filter(|current| current.invalid_source.is_some());
                let valid = valid.map(|current| Current { invalid_source: None, ..current.clone() });
                let why = format!(
                    "{} is empty on a Node that is not the one that assigned {} (UID: {}); \
                     set a source, or run kedge config reset on the node",
                    self.place, config.source, config.uid
                );
                let transition = valid.map(|current| Transition::NoteSource { current });
                (Some(SyncProblem::Failed(why)), transition)
            }
            AssignedNow::Unknown(why) => (
                Some(SyncProblem::Failed(format!(
                    "{} is empty, but the previous assignment is unknown ({why}); \
                     set a source, or run kedge config reset on the node",
                    self.place
                ))),
                None,
            ),
        }
    }

    fn compare_invalid(&self, why: &str) -> (Option<SyncProblem>, Option<Transition>) {
        // in the record's form, or the next start would find another text and write it again
        let why = &shortened(why);
        let problem = Some(SyncProblem::Invalid(why.clone()));
        let current = match (&self.disk.current, self.disk.assigned()) {
            (Known::Is(current), _) => current.clone(),
            (Known::Absent, AssignedNow::Local) => Current::local(&self.node_uid),
            // an unreadable record is not replaced by a note about another matter
            _ => return (problem, None),
        };
        if current.invalid_source.as_ref() == Some(why) {
            return (problem, None);
        }
        let current =
            Current { invalid_source: Some(why.clone()), node_uid: self.node_uid.clone(), ..current };
        (problem, Some(Transition::NoteSource { current }))
    }

    /// The object cannot be assigned until it is edited.
    fn refused(&self, problem: SyncProblem) -> (Option<SyncProblem>, Option<Transition>) {
        match problem {
            SyncProblem::Invalid(why) => self.compare_invalid(&why),
            SyncProblem::Failed(_) => (Some(problem), None),
        }
    }

    /// An error is about the object: it lasts as long as the source and this version of the object.
    fn compare_object(
        &mut self,
        now: Now,
        source: &Source,
        object: &Value,
    ) -> Result<Option<Transition>, SyncProblem> {
        let part = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (uid, resource_version) = (part("/metadata/uid"), part("/metadata/resourceVersion"));
        if let Source::Pinned { uid: wanted, .. } = source
            && wanted != uid
        {
            return Err(SyncProblem::Invalid(format!(
                "invalid ObjectReference, UID {wanted:?} does not match UID of downloaded ConfigMap {:?}",
                excerpt(uid)
            )));
        }
        let failed = |why: String| Err(SyncProblem::Failed(shortened(&why)));
        let found = (part("/metadata/namespace"), part("/metadata/name"));
        if found != source.object() {
            let found = format!("ConfigMap {}/{}", excerpt(found.0), excerpt(found.1));
            return failed(format!("failed to download {source}: the API server answered with {found}"));
        }
        if CheckpointName::new(uid, resource_version).is_none() {
            return failed(format!(
                "{source}: UID {:?} or resourceVersion {:?} cannot be a file name",
                excerpt(uid),
                excerpt(resource_version)
            ));
        }
        let text = match kedge_api::read::from_value::<ConfigMap>(object)
            .map_err(|error| format!("it is not a ConfigMap: {}", shortened(&error.to_string())))
            .and_then(|map| payload(map, source))
        {
            Ok(text) => text,
            Err(why) => return failed(format!("failed to download {source}: {why}")),
        };
        let is = Identity::of(uid, text.as_bytes(), &self.facts.overrides);
        let read = (uid.to_owned(), resource_version.to_owned());
        let old = self.disk.current.known().and_then(|current| current.assigned.clone());
        // Compared by payload, not by resourceVersion: every change of the object's metadata makes a new
        // version, and each adoption would cost a restart and a new trial. A lost checkpoint has no payload
        // to compare with.
        match (old, self.assigned) {
            (Some(old), Some(recorded)) if recorded.payload == is.payload => {
                self.edited = None;
                Ok(self.same_payload(source, read, old))
            }
            (Some(old), Some(_))
                if matches!(source, Source::Pinned { .. })
                    && old.config.uid == uid
                    && old.config.source == *source =>
            {
                self.edited = Some(format!(
                    "{source} was edited (resourceVersion {resource_version}, assigned {}); a source pinned to a UID \
                     does not follow edits",
                    old.config.resource_version
                ));
                self.object = Object::Compared { uid: read.0, resource_version: read.1 };
                Ok(self.source_is_current(old))
            }
            _ => {
                self.edited = None;
                self.adoption(now, source, object, is)
            }
        }
    }

    /// The payload is the recorded one, perhaps of another object, under another name or key, or for another
    /// Node: `current` is rewritten with the new names, and the checkpoint stays. A new version alone is not
    /// worth a write.
    fn same_payload(&mut self, source: &Source, read: (String, String), old: Assigned) -> Option<Transition> {
        let (uid, resource_version) = read;
        let same_object = old.config.uid == uid && old.config.source == *source;
        let version =
            if same_object { old.config.resource_version.clone() } else { resource_version.clone() };
        // in the first release's form the object's name is the checkpoint's, too
        let digest = match &self.assigned {
            Some(is) if !same_object => Recorded::Payload(is.payload),
            _ => old.config.digest,
        };
        let config = ConfigRecord {
            source: source.clone(),
            uid: uid.clone(),
            resource_version: version,
            digest,
            ..old.config
        };
        let due = self.source_is_current(Assigned { config, ..old });
        if due.is_none() {
            self.object = Object::Compared { uid, resource_version };
        }
        due
    }

    /// Another payload: it is assigned.
    fn adoption(
        &self,
        now: Now,
        source: &Source,
        object: &Value,
        is: Identity,
    ) -> Result<Option<Transition>, SyncProblem> {
        let part = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (uid, resource_version) = (part("/metadata/uid"), part("/metadata/resourceVersion"));
        // a last-known-good may have this payload: then it is on disk, and whole
        let has_it = |good: Option<Identity>| good.is_some_and(|good| good.payload == is.payload);
        let good = self.disk.fallback().filter(|_| has_it(self.last_known_good));
        let good = good.or_else(|| self.disk.previous().filter(|_| has_it(self.previous)));
        let own = CheckpointName::of(uid, is.payload).expect("the UID was checked");
        // this download repairs a damaged or lost one
        let named = self.disk.fallback().into_iter().chain(self.disk.previous());
        let lost = named.into_iter().find(|good| good.payload() == Some(is.payload));
        let name = good.or(lost).map_or(own, |good| good.checkpoint.clone());
        let is_there = good.is_some() || self.unnamed.as_ref() == Some(&name);
        let checkpoint =
            (!is_there).then(|| serde_json::to_vec(object).expect("a JSON value is written as it was read"));
        if let Some(bytes) = checkpoint.as_ref().map(Vec::len).filter(|bytes| *bytes > CHECKPOINT_BYTES) {
            // a checkpoint that is too large to be read back would be adopted again at every start
            let why = format!("{source} has {bytes} bytes, expected at most {CHECKPOINT_BYTES}");
            return Err(SyncProblem::Failed(shortened(&why)));
        }
        let config = ConfigRecord {
            source: source.clone(),
            uid: uid.to_owned(),
            resource_version: resource_version.to_owned(),
            checkpoint: name,
            digest: Recorded::Payload(is.payload),
        };
        let current = Current {
            assigned: Some(Assigned { config, since: Some(now.wall), downloaded: true }),
            ..Current::local(&self.node_uid)
        };
        let transition = match self.known_to_be_bad(uid, &is) {
            Some(verdict) => Transition::AdoptBad { checkpoint, current, is, verdict },
            None => Transition::Adopt { checkpoint, current, is, startups: self.handed_over(now) },
        };
        Ok(Some(transition))
    }

    /// The verdict that keeps this content from running, if a start with it assigned would choose the running
    /// config: a restart would change nothing.
    fn known_to_be_bad(&self, uid: &str, is: &Identity) -> Option<Verdict> {
        let verdict = self.verdict_against(uid, is)?;
        let is_banned = |config: Option<&ConfigRecord>, is: Option<Identity>| match (config, is) {
            (Some(config), Some(is)) => self.verdict_against(&config.uid, &is).is_some(),
            // there is no fallback, or its content is unavailable
            _ => true,
        };
        let (good, previous) = (self.last_known_good, self.previous);
        let first = if !is_banned(self.disk.fallback(), good) {
            good
        } else if !is_banned(self.disk.previous(), previous) {
            previous
        } else {
            None
        };
        let runs = self.in_use.config.as_ref().map(|(_, is)| is.payload);
        (first.map(|is| is.payload) == runs && first.map(|is| is.payload) != Some(is.payload))
            .then_some(verdict)
    }

    /// The verdict that keeps a content from running now.
    fn verdict_against(&self, uid: &str, is: &Identity) -> Option<Verdict> {
        self.disk.verdict(uid, Some(is), self.is_proven(is)).filter(|verdict| !verdict.retry)
    }

    /// The source names the recorded config: only the record of an invalid source, or the Node's UID, may
    /// have to change.
    fn source_is_current(&self, assigned: Assigned) -> Option<Transition> {
        let current = Current { assigned: Some(assigned), ..Current::local(&self.node_uid) };
        (self.disk.current.known() != Some(&current)).then_some(Transition::NoteSource { current })
    }

    /// Replaces an unreadable list: it may have had the assigned config.
    fn verdicts_lost(&self) -> BadConfigs {
        BadConfigs::default().doubting(self.assigned.map(|is| is.payload))
    }

    /// Whether the assigned config is of the object with this UID.
    fn is_assigned(&self, uid: &str) -> bool {
        matches!(self.disk.assigned(), AssignedNow::Config(config, _) if config.uid == uid)
    }

    // ------------------------------------------------------------------------------------------ trial

    /// Whether running time counts: not where the records are left alone.
    fn counts_running(&self) -> bool {
        self.facts.dynamic && self.in_use.counts.open.is_some()
    }

    /// The counts as of now: the running config's running time, silence where it matters, and after a whole
    /// trial no startups.
    fn progressed(&self, now: Now) -> Startups {
        let settled = self.in_use.terms.settled_after_ms();
        let ran_ms = self.ran_ms(now).min(self.counts_up_to_ms());
        let downloaded = matches!(self.disk.assigned(), AssignedNow::Config(_, true));
        let (in_trial, waited_for) = (self.in_trial() && downloaded, !self.waiting().is_empty());
        let silent_ms = if in_trial || waited_for { self.silent_ms(now) } else { 0 };
        // less than the time between two saves is not worth a write of its own
        let is_long = silent_ms >= self.in_use.terms.save_every_ms(self.saved_ran_ms);
        let silent_ms = if is_long { silent_ms } else { 0 };
        let worst_silence_ms = if waited_for { self.in_use.counts.worst_silence_ms } else { 0 };
        // no rule needs more
        let silent_ms = silent_ms.min(self.patience_ms().max(judge::LONGEST_WAIT_MS));
        let mut startups = self.startups.clone();
        let mut counts =
            Counts { ran_ms, silent_ms, worst_silence_ms, cuts: 0, ..self.in_use.counts.clone() };
        if ran_ms >= settled {
            counts.startups.clear();
        }
        match self.hold_ms() {
            // a hold never ends in a trial before the promotion: crashes that a config on trial causes must
            // show while pods are held
            Some(hold_ms) if ran_ms >= hold_ms && !self.in_trial() => {
                (startups.hold, startups.held) = (false, startups.held.saturating_add(1));
                counts.ran_ms = 0;
            }
            None if ran_ms >= settled => startups.held = 0,
            _ => {}
        }
        startups.set(self.in_use.ran_as(), counts);
        startups
    }

    /// Pods are held: the config that crashed too often is proven, and not known to be at fault.
    pub(crate) fn are_pods_held(&self) -> bool {
        self.startups.hold
    }

    /// The hold, for people.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let length = Duration::from_millis(self.hold_ms()?);
        Some(Hold { length, awaits_promotion: self.in_trial() })
    }

    /// The rest of it, if there is no crash meanwhile.
    pub(crate) fn hold_left(&self, now: Now) -> Option<Duration> {
        let left = Duration::from_millis(self.hold_ms()?.saturating_sub(self.ran_ms(now)));
        Some(left.max(self.trial_left(now).unwrap_or_default()))
    }

    /// How long pods are held, if they are.
    fn hold_ms(&self) -> Option<u64> {
        self.startups.hold.then(|| judge::hold_ms(self.startups.held, self.in_use.terms))
    }

    /// Most running time that is recorded: no rule needs more.
    fn counts_up_to_ms(&self) -> u64 {
        let terms = self.in_use.terms;
        terms.settled_after_ms().max(terms.trial_ms).max(self.longest_wait_ms())
    }

    fn save_due_ms(&self) -> u64 {
        let every = self.in_use.terms.save_every_ms(self.saved_ran_ms);
        // a long wait is saved in eighths: a cut may cost that much of it
        let every = every.max(self.longest_wait_ms() / 8);
        // and so is a long silence, once nothing else must be saved: a suspected config may be silent for a
        // day
        let is_ran = self.in_trial() && self.saved_ran_ms >= self.in_use.terms.settled_after_ms();
        let every = if is_ran { every.max(self.patience_ms() / 8) } else { every };
        let due = self.saved_ran_ms.saturating_add(every);
        // a save exactly at the end of the trial, not a little after it
        let ends = [self.in_use.terms.trial_ms, self.in_use.terms.settled_after_ms(), self.counts_up_to_ms()];
        ends.into_iter().filter(|end| self.saved_ran_ms < *end).fold(due, u64::min)
    }

    fn promotion(&self, now: Now) -> Option<Transition> {
        let due = self.counts_running() && self.standing == Standing::InTrial { is_promotable: true };
        let (config, is) = self.in_use.config.as_ref().filter(|_| due)?;
        // it was tried again, and had contact: the suspicion is over
        let bad = self.without_retried(&config.uid, is);
        // its old payload, whatever the form of its record
        let previous = self.disk.fallback().zip(self.last_known_good);
        let previous =
            previous.map(|(good, is)| ConfigRecord { digest: Recorded::Payload(is.payload), ..good.clone() });
        let mut startups = self.progressed(now);
        let ours = self.ours(&startups).unsuspected();
        startups.set(self.in_use.ran_as(), ours);
        Some(Transition::Promote { startups, config: config.clone(), previous, bad })
    }

    /// The list without the verdict on a config that was tried again and runs well; `None` if there is no
    /// such verdict.
    fn without_retried(&self, uid: &str, is: &Identity) -> Option<BadConfigs> {
        let bad = self.disk.bad_configs.known()?;
        bad.verdict(uid, Some(is)).filter(|verdict| verdict.retry)?;
        let mut bad = bad.clone();
        bad.clear(uid, is).then_some(bad)
    }

    /// How long the config in use may be silent in its trial.
    fn patience_ms(&self) -> u64 {
        let entry = self.in_use.config.as_ref().and_then(|(config, is)| {
            self.disk.bad_configs.known()?.verdict(&config.uid, Some(is)).filter(|verdict| verdict.retry)
        });
        judge::patience_ms(self.in_use.terms, entry.as_ref())
    }

    fn silent_trial(&self, now: Now) -> Option<Transition> {
        let downloaded = matches!(self.disk.assigned(), AssignedNow::Config(_, true));
        let role = Role {
            assigned: self.standing.is_assigned(),
            downloaded,
            last_known_good: !self.in_trial(),
            proven: !self.in_trial(),
        };
        let (startups, terms) = (self.progressed(now), self.in_use.terms);
        let ours = self.ours(&startups);
        let due = self.counts_running() && judge::lost_contact(&ours, self.patience_ms(), terms, role);
        due.then(|| {
            let mut startups = startups.closed();
            if judge::has_no_end(&ours, terms) {
                // the start uses it alone
                let lost_ms = ours.lost_ms.saturating_add(ours.ran_ms);
                startups.set(self.in_use.ran_as(), Counts { lost_ms, ran_ms: 0, open: None, ..ours });
            }
            Transition::SilentTrial { startups }
        })
    }

    /// Whether more running time changes nothing: all recorded running time is on disk, no trial is under
    /// way, pods are not held, and the config in use has no verdict that its running well removes.
    fn is_settled(&self) -> bool {
        let retried =
            self.in_use.config.as_ref().and_then(|(config, is)| self.without_retried(&config.uid, is));
        self.saved_ran_ms >= self.counts_up_to_ms()
            && !self.in_trial()
            && !self.startups.hold
            && retried.is_none()
    }

    fn progress(&mut self, now: Now) -> Option<Transition> {
        let is_due = self.ran_ms(now) >= self.save_due_ms() || self.began_anew(now);
        if !(self.counts_running() && !self.is_settled() && is_due) {
            return None;
        }
        let startups = self.progressed(now);
        // a proven config that was tried again is promoted by no trial: it ran well with pods, which is
        // enough
        let has_run_well = !self.in_trial()
            && !startups.hold
            && self.ours(&startups).ran_ms >= self.in_use.terms.settled_after_ms();
        let config = self.in_use.config.as_ref().filter(|_| has_run_well);
        let bad = config.and_then(|(config, is)| self.without_retried(&config.uid, is));
        if bad.is_none() && self.disk.startups.known() == Some(&startups) {
            // the trial is over and waits for a renewal
            self.saved_ran_ms = self.ran_ms(now);
            return None;
        }
        Some(Transition::TrialProgress { startups, bad })
    }

    /// The trial restarted since progress was saved, or has kept restarting for as long as between two saves:
    /// a power cut must undo neither.
    fn began_anew(&self, now: Now) -> bool {
        let saved_ms = self.ours(&self.startups).lost_ms;
        let lost_ms = self.in_use.counts.lost_ms.saturating_sub(saved_ms);
        let is_saved = self.ran_ms(now) >= self.saved_ran_ms;
        self.in_trial() && lost_ms > 0 && (!is_saved || lost_ms >= self.in_use.terms.save_every_ms(0))
    }

    // ------------------------------------------------------------------------------------------ while a
    // fallback runs

    /// While a fallback runs: whether the obstacle to the assigned config is gone.
    fn retry_assigned(&self, now: Now) -> Option<Transition> {
        if self.standing.is_assigned() {
            return None;
        }
        if let Some(over) = self.wait_over(now) {
            return Some(over);
        }
        if let Some(uid) = self.standing.fallback().and_then(|fallback| fallback.freed.as_ref()) {
            let why = format!("the config with UID {uid} can be fallen back to again, restarting");
            return Some(Transition::TryAssigned { why, startups: self.handed_over(now) });
        }
        if !matches!(self.disk.assigned(), AssignedNow::Config(..)) {
            return None;
        }
        match (self.standing.obstacle(), &self.assigned) {
            (Some(Obstacle::Marked { recorded: false, .. }), _) => {
                let emptied = self.without_counts(self.condemned().into_iter());
                self.unrecorded_verdict().map(|bad| Transition::RecordVerdict { bad, emptied })
            }
            (None | Some(Obstacle::NotRecorded(_)), Some(_)) => {
                let why = "the assigned config can be tried now, restarting".into();
                Some(Transition::TryAssigned { why, startups: self.handed_over(now) })
            }
            _ => None,
        }
    }

    /// The list with the verdict on the assigned config that could not be written yet.
    fn unrecorded_verdict(&self) -> Option<BadConfigs> {
        let verdict = self.standing.unrecorded()?;
        let AssignedNow::Config(config, _) = self.disk.assigned() else { return None };
        let mut bad = match &self.disk.bad_configs {
            Known::Is(bad) => bad.clone(),
            Known::Absent => BadConfigs::default(),
            Known::Unknown { .. } => return None,
        };
        bad.mark(&config.uid, self.assigned.as_ref()?, verdict.clone(), &self.disk.in_use());
        Some(bad)
    }

    /// The assigned config, if its verdict could not be written yet, and its counts led to that: they are
    /// dropped when it is.
    fn condemned(&self) -> Option<Identity> {
        let is_of_deeds = self.standing.unrecorded().is_some_and(|verdict| !verdict.kind.is_of_text());
        self.assigned.filter(|_| is_of_deeds)
    }

    /// The configs that a start would try, in this order, as far as their content is available.
    fn chain(&self) -> Vec<(Rank, ConfigRecord, Identity)> {
        let assigned = match self.disk.assigned() {
            AssignedNow::Config(config, _) => Some(config),
            _ => None,
        };
        let chain = [
            (Rank::Assigned, assigned, self.assigned),
            (Rank::LastKnownGood, self.disk.fallback().cloned(), self.last_known_good),
            (Rank::Previous, self.disk.previous().cloned(), self.previous),
        ];
        chain.into_iter().filter_map(|(rank, config, is)| Some((rank, config?, is?))).collect()
    }

    /// Those of them that come before the running one.
    fn before_in_use(&self) -> Vec<(Rank, ConfigRecord, Identity)> {
        self.chain().into_iter().filter(|(rank, ..)| self.standing.is_behind(*rank)).collect()
    }

    /// The configs that would run before the one in use, and are tried again after a wait.
    fn waiting(&self) -> Vec<Waiting> {
        let has_verdicts = self.disk.bad_configs.known().is_some_and(|bad| !bad.is_empty());
        if !has_verdicts || matches!(self.disk.assigned(), AssignedNow::Local) {
            return Vec::new();
        }
        let is_invalid = self.disk.invalid_source().is_some();
        let waits = |(rank, config, is): (Rank, ConfigRecord, Identity)| {
            let verdict = self.verdict_against(&config.uid, &is)?;
            let wait_ms = judge::wait_ms(&verdict, self.in_use.terms)?;
            (rank != Rank::Assigned || !is_invalid).then_some(Waiting {
                uid: config.uid,
                is,
                verdict,
                wait_ms,
            })
        };
        self.before_in_use().into_iter().filter_map(waits).collect()
    }

    /// How long the running config must run well at most before a waiting config is tried again, or before
    /// pods are released.
    fn longest_wait_ms(&self) -> u64 {
        let waits = self.waiting().into_iter().map(|waiting| waiting.wait_ms);
        waits.chain(self.hold_ms()).max().unwrap_or_default()
    }

    fn wait_over(&self, now: Now) -> Option<Transition> {
        let is_over = |waiting: &Waiting| {
            let may_end = match waiting.verdict.kind {
                BadKind::Contact => self.in_use.counts.contact,
                // the running config must run well with its pods
                BadKind::Proven => !self.startups.hold,
                _ => true,
            };
            may_end && self.ran_ms(now) >= waiting.wait_ms
        };
        let waiting = self.counts_running().then(|| self.waiting())?;
        let Waiting { uid, is, verdict, .. } = waiting.into_iter().find(is_over)?;
        let (why, patience_ms) = match verdict.kind {
            // the terms of the waiting config are known again when it is parsed; until then those of the
            // running one
            BadKind::Contact => (
                "the network works again, restarting to try the assigned config once more".to_owned(),
                judge::patience_after_ms(self.in_use.terms, self.in_use.counts.worst_silence_ms),
            ),
            _ => (format!("restarting to try the config with UID {uid} once more"), verdict.patience_ms),
        };
        let mut bad = self.disk.bad_configs.known()?.clone();
        bad.mark(&uid, &is, Verdict { retry: true, patience_ms, ..verdict }, &self.disk.in_use());
        let mut closed = self.handed_over(now);
        closed.forgive(RanAs::Payload(is.payload));
        let emptied = self.without_counts([is].into_iter());
        Some(Transition::WaitOver { why, emptied, bad, closed })
    }

    /// Judges the assigned config again after verdicts or content may have changed.
    fn rejudge(&mut self) {
        if self.standing.is_assigned() {
            return;
        }
        self.rejudge_fallbacks();
        let AssignedNow::Config(config, _) = self.disk.assigned() else { return };
        let marked = match &self.assigned {
            Some(is) => self.verdict_against(&config.uid, is),
            // an entry without contents also bans a content that was not downloaded yet
            None => self.disk.verdict(&config.uid, None, false).filter(|verdict| !verdict.retry),
        };
        let is_doubted = self.is_doubted();
        match marked {
            Some(verdict) => self.standing.marked(verdict),
            None => {
                self.standing.cleared(|obstacle| match obstacle {
                    Obstacle::Marked { recorded, .. } => *recorded,
                    Obstacle::VerdictsUnknown(_) => !is_doubted,
                    _ => false,
                });
            }
        }
    }

    /// Whether the assigned config may have been in a list that could not be read.
    fn is_doubted(&self) -> bool {
        let is_lost = self.disk.bad_configs.unknown().is_some();
        is_lost || self.assigned.is_some_and(|is| self.disk.is_doubted(&is))
    }

    /// A fallback without a verdict any more can replace one that ranks below it.
    fn rejudge_fallbacks(&mut self) {
        for (rank, config, is) in self.before_in_use() {
            if self.verdict_against(&config.uid, &is).is_none() {
                self.standing.free(rank, &config.uid);
            }
        }
    }

    fn waits_for_disk(&self) -> bool {
        self.standing.waits_for_disk() || self.sync.is_some()
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
    use crate::config::records::Read;
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
            let known = format!("{:?} {:?} {noted:?}", configuration.object, configuration.sync);
            assert!(known.contains(problem), "{known}");
        }
    }
}
