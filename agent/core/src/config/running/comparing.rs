//! Compares the Node's request with `current` (RULES.md, "Sources"): the step that is due because of it, and
//! the problem with it that the condition reports.
//!
//! Always holds: the request is compared with `current`, never with the running config; payloads are
//! compared, never versions; a download is not parsed. Leaves to others: whether and when a transition begins
//! (`running`).

use crate::answer::Now;
use crate::config::digest::Identity;
use crate::config::disk::{AssignedNow, payload};
use crate::config::records::{
    Assigned, CHECKPOINT_BYTES, CheckpointName, ConfigRecord, Current, Known, Recorded, Verdict, shortened,
};
use crate::config::requested::{Object, SyncProblem};
use crate::config::running::Configuration;
use crate::config::source::{RequestedSource, Source};
use crate::config::transition::Transition;
use kedge_api::{ConfigMap, excerpt};
use serde_json::Value;

impl Configuration {
    /// Compares the source with `current` (RULES.md, "Sources"). Sets the condition's problem with the
    /// source.
    pub(super) fn compare_source(&mut self, now: Now) -> Option<Transition> {
        let requested = self.requested.source.clone()?;
        let (problem, transition) = match &requested {
            RequestedSource::Nil => self.compare_nil(),
            RequestedSource::Invalid(why) => self.compare_invalid(why),
            RequestedSource::Correct(source) => match self.requested.object.clone() {
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
                            self.requested.edited = None;
                            (None, self.source_is_current(recorded))
                        }
                        // the source has another key meanwhile, or the checkpoint was lost
                        None => {
                            self.requested.read_again();
                            return None;
                        }
                    }
                }
                Object::Compared { .. } => match self.recorded(source).cloned() {
                    Some(recorded) => (None, self.source_is_current(recorded)),
                    None => {
                        self.requested.read_again();
                        return None;
                    }
                },
                Object::Refused { problem, .. } => self.refused(problem),
                Object::Here(object) => match self.compare_object(now, source, &object) {
                    Ok(transition) => (None, transition),
                    Err(problem) => {
                        self.requested.object = self.requested.object.refused(problem.clone());
                        self.refused(problem)
                    }
                },
            },
        };
        // A problem stays in the condition while a transition is under way, otherwise each try on a full disk
        // would look like a change. And it is not reported before it is recorded, unless recording failed: a
        // power cut would take it back.
        let is_under_way = transition.is_some() && (problem.is_none() || now.mono >= self.writes.not_before);
        if !is_under_way {
            self.requested.problem = problem.map(SyncProblem::shortened);
        }
        transition
    }

    fn compare_nil(&self) -> (Option<SyncProblem>, Option<Transition>) {
        let known = self.disk.current.known();
        match self.disk.assigned() {
            AssignedNow::Local => {
                // the Node that assigned wants the local config, too: the mark of a reset is not needed any
                // more
                let is_kept =
                    |current: &Current| current.reset && current.node_uid != self.requested.node_uid;
                let noted = known.map(|current| match is_kept(current) {
                    true => Current { invalid_source: None, ..current.clone() },
                    false => Current::local(&self.requested.node_uid),
                });
                let is_due = known.is_some_and(|current| {
                    current.invalid_source.is_some() || current.reset && !is_kept(current)
                });
                (None, noted.filter(|_| is_due).map(|current| Transition::NoteSource { current }))
            }
            AssignedNow::Config(config, _) => {
                let same_node = known.is_some_and(|current| current.node_uid == self.requested.node_uid);
                if same_node || self.requested.is_by_this_node() {
                    let why = "the Node asks for no config, restarting to use the local one".to_owned();
                    let current = Current::local(&self.requested.node_uid);
                    return (None, Some(Transition::Unassign { current, why }));
                }
                // another Node's source was invalid: this one has no source, so the assigned config may run
                // again
                let valid = known.filter(|current| current.invalid_source.is_some());
                let valid = valid.map(|current| Current { invalid_source: None, ..current.clone() });
                let why = format!(
                    "{} is empty on a Node that is not the one that assigned {} (UID: {}); \
                     set a source, or run kedge config reset on the node",
                    self.requested.place, config.source, config.uid
                );
                let transition = valid.map(|current| Transition::NoteSource { current });
                (Some(SyncProblem::Failed(why)), transition)
            }
            AssignedNow::Unknown(why) => (
                Some(SyncProblem::Failed(format!(
                    "{} is empty, but the previous assignment is unknown ({why}); \
                     set a source, or run kedge config reset on the node",
                    self.requested.place
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
            (Known::Absent, AssignedNow::Local) => Current::local(&self.requested.node_uid),
            // an unreadable record is not replaced by a note about another matter
            _ => return (problem, None),
        };
        if current.invalid_source.as_ref() == Some(why) {
            return (problem, None);
        }
        let current = Current {
            invalid_source: Some(why.clone()),
            node_uid: self.requested.node_uid.clone(),
            ..current
        };
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
        match (old, self.contents.assigned) {
            (Some(old), Some(recorded)) if recorded.payload == is.payload => {
                self.requested.edited = None;
                Ok(self.same_payload(source, read, old))
            }
            (Some(old), Some(_))
                if matches!(source, Source::Pinned { .. })
                    && old.config.uid == uid
                    && old.config.source == *source =>
            {
                self.requested.edited = Some(format!(
                    "{source} was edited (resourceVersion {resource_version}, assigned {}); a source pinned to a UID \
                     does not follow edits",
                    old.config.resource_version
                ));
                self.requested.object = Object::Compared { uid: read.0, resource_version: read.1 };
                Ok(self.source_is_current(old))
            }
            _ => {
                self.requested.edited = None;
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
        let digest = match &self.contents.assigned {
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
            self.requested.object = Object::Compared { uid, resource_version };
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
        let good = self.disk.fallback().filter(|_| has_it(self.contents.last_known_good));
        let good = good.or_else(|| self.disk.previous().filter(|_| has_it(self.contents.previous)));
        let own = CheckpointName::of(uid, is.payload).expect("the UID was checked");
        // this download repairs a damaged or lost one
        let named = self.disk.fallback().into_iter().chain(self.disk.previous());
        let lost = named.into_iter().find(|good| good.payload() == Some(is.payload));
        let name = good.or(lost).map_or(own, |good| good.checkpoint.clone());
        let is_there = good.is_some() || self.checkpoints.unnamed.as_ref() == Some(&name);
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
            ..Current::local(&self.requested.node_uid)
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
        let (good, previous) = (self.contents.last_known_good, self.contents.previous);
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

    /// The source names the recorded config: only the record of an invalid source, or the Node's UID, may
    /// have to change.
    fn source_is_current(&self, assigned: Assigned) -> Option<Transition> {
        let current = Current { assigned: Some(assigned), ..Current::local(&self.requested.node_uid) };
        (self.disk.current.known() != Some(&current)).then_some(Transition::NoteSource { current })
    }
}
