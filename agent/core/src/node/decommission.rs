//! The end of a node for good, by an administrator's annotation. Pods end; their data, images and
//! configurations are removed; the node reports this; then its identity is removed.
//!
//! Always holds: each phase is durable before its work begins, and its work can be repeated, so a power cut
//! anywhere leads to the same end. The identity goes last, after the API server has accepted the report,
//! because without it nothing can be reported. An annotation with another Node's UID is ignored, because a
//! Node of the same name may be meant for another device. A decommissioning that has begun is not taken back.
//! Leaves to others: removing (the agent), ending pods (`pods::actor`).

use crate::answer::{Answer, Level};
use crate::event::Action;
use crate::turn::Turn;
use kedge_api::{self as api, excerpt};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Pause between two tries of a step that failed.
const AGAIN: Duration = Duration::from_secs(60);
/// A server that answers the report with nothing but 401 for this long has denied the credential: it had
/// accepted the report, and its answer was lost.
const DENIED_FOR: Duration = Duration::from_secs(600);

const RECORD_VERSION: &str = "kedge.dev/v1";
const RECORD_KIND: &str = "Decommission";

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Pods end.
    Ending,
    /// Everything but the identity is removed. No pod is served from here on.
    Removing,
    /// It is reported.
    Reporting,
    /// The report was accepted: the identity is removed, and the record last.
    Leaving,
}

/// The record on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decommission {
    api_version: String,
    kind: String,
    /// The Node that is ended.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// The annotation has `,wipe`: the blocks of the disk are to be discarded at the end.
    #[serde(default)]
    pub wipe: bool,
    pub phase: Phase,
}

impl Decommission {
    /// The request in the Node's annotation, if it is for this very Node.
    fn asked(node: &api::Node) -> Option<Self> {
        let text = node.metadata.annotations.get(api::DECOMMISSION_ANNOTATION)?;
        let (uid, wipe) = text.split_once(',').map_or((text.as_str(), ""), |(uid, wipe)| (uid, wipe));
        let is_known = wipe.is_empty() || wipe == "wipe";
        (is_known && !uid.is_empty() && uid == node.metadata.uid).then(|| Self {
            api_version: RECORD_VERSION.into(),
            kind: RECORD_KIND.into(),
            node_uid: uid.to_owned(),
            wipe: !wipe.is_empty(),
            phase: Phase::Ending,
        })
    }

    /// # Errors
    /// The content is not a record of a decommissioning.
    pub fn read(content: &[u8]) -> Result<Self, String> {
        let record: Self = api::read::from_slice(content).map_err(|error| error.to_string())?;
        let is_one = record.api_version == RECORD_VERSION && record.kind == RECORD_KIND;
        is_one.then_some(record).ok_or_else(|| "it is no record of a decommissioning".to_owned())
    }

    /// As it is written.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    fn at(&self, phase: Phase) -> Self {
        Self { phase, ..self.clone() }
    }

    /// Whether pods may still be there.
    pub fn has_pods(&self) -> bool {
        self.phase == Phase::Ending
    }
}

/// Facts of other actors.
pub(crate) struct Seen<'a> {
    pub(crate) node: Option<&'a api::Node>,
    /// The server was read, and has no such Node.
    pub(crate) is_missing: bool,
    /// The number of pods; `None` while it is unknown.
    pub(crate) pods: Option<usize>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decommissioning {
    record: Option<Decommission>,
    /// The record on its way to the disk.
    writing: Option<Decommission>,
    /// State is being removed.
    removes: bool,
    /// Why the last step failed.
    problem: Option<String>,
    not_before: Duration,
    /// Since when the server answers 401.
    denied_since: Option<Duration>,
    /// Number of pods that the condition shows.
    left: usize,
}

impl Decommissioning {
    pub(crate) fn new(record: Option<Decommission>) -> Self {
        Self { record, ..Self::default() }
    }

    pub(crate) fn record(&self) -> Option<&Decommission> {
        self.record.as_ref()
    }

    /// Takes the next step that is due.
    pub(crate) fn decide(&mut self, seen: &Seen<'_>, turn: &mut Turn) {
        self.left = seen.pods.unwrap_or(self.left);
        if self.writing.is_some() || self.removes || turn.now.mono < self.not_before {
            return;
        }
        let Some(record) = &self.record else {
            let Some(asked) = seen.node.and_then(Decommission::asked) else { return };
            turn.log(
                Level::Warn,
                "an administrator decommissions this node: its pods end, its data is removed",
            );
            self.write(asked, turn);
            return;
        };
        match record.phase {
            Phase::Ending if seen.pods == Some(0) => {
                let next = record.at(Phase::Removing);
                self.write(next, turn);
            }
            Phase::Removing => {
                self.removes = true;
                turn.act(Action::RemoveState);
            }
            Phase::Reporting if self.is_reported(seen, turn.now.mono) => {
                let next = record.at(Phase::Leaving);
                self.write(next, turn);
            }
            Phase::Ending | Phase::Reporting | Phase::Leaving => {}
        }
    }

    fn is_reported(&self, seen: &Seen<'_>, now: Duration) -> bool {
        let is_denied = self.denied_since.is_some_and(|since| now >= since.saturating_add(DENIED_FOR));
        seen.is_missing || is_denied
    }

    fn write(&mut self, record: Decommission, turn: &mut Turn) {
        turn.act(Action::NoteDecommission(record.clone()));
        self.writing = Some(record);
    }

    /// The record was written, or not. Returns why the run has to end: the next one serves no pods, or has no
    /// identity.
    pub(crate) fn noted(&mut self, done: Result<(), String>, turn: &mut Turn) -> Option<String> {
        let record = self.writing.take()?;
        if let Err(why) = done {
            self.failed(why, turn);
            return None;
        }
        let ends = matches!(record.phase, Phase::Removing | Phase::Leaving);
        self.record = Some(record);
        self.problem = None;
        ends.then(|| "this node is decommissioned".to_owned())
    }

    /// State was removed, or some of it was not.
    pub(crate) fn removed(&mut self, done: Result<(), String>, turn: &mut Turn) {
        self.removes = false;
        match (done, &self.record) {
            (Ok(()), Some(record)) => {
                let next = record.at(Phase::Reporting);
                self.write(next, turn);
            }
            (Err(why), _) => self.failed(why, turn),
            (Ok(()), None) => {}
        }
    }

    fn failed(&mut self, why: String, turn: &mut Turn) {
        if self.problem.as_ref() != Some(&why) {
            turn.log(Level::Warn, format!("decommissioning: {why}; trying again each minute"));
        }
        self.problem = Some(why);
        self.not_before = turn.now.mono.saturating_add(AGAIN);
    }

    /// A status was accepted; `says_so`: the server has the condition True.
    pub(crate) fn reported(&mut self, says_so: bool, turn: &mut Turn) {
        self.denied_since = None;
        if let Some(record) = self.record.as_ref().filter(|record| record.phase == Phase::Reporting)
            && says_so
            && self.writing.is_none()
        {
            let next = record.at(Phase::Leaving);
            self.write(next, turn);
        }
    }

    /// The server answered something else to a status or a renewal.
    pub(crate) fn answered(&mut self, answer: &Answer, now: Duration) {
        match answer {
            Answer::Refused { status: 401, .. } => _ = self.denied_since.get_or_insert(now),
            Answer::Failed(_) => {}
            Answer::Accepted(_) | Answer::Refused { .. } => self.denied_since = None,
        }
    }

    /// Status, reason and message of the condition.
    pub(crate) fn condition(&self) -> Option<(&'static str, &'static str, String)> {
        let problem = || self.problem.as_deref().map(|why| format!("; {}", excerpt(why))).unwrap_or_default();
        Some(match self.record.as_ref()?.phase {
            Phase::Ending => ("False", "EndingPods", format!("{} pods are left{}", self.left, problem())),
            Phase::Removing => {
                ("False", "RemovingState", format!("data of pods and images is removed{}", problem()))
            }
            Phase::Reporting | Phase::Leaving => {
                ("True", "Decommissioned", "nothing is left of this node but its identity".to_owned())
            }
        })
    }

    pub(crate) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let denied = self.denied_since.map(|since| since.saturating_add(DENIED_FOR));
        let is_on = self.record.is_some() && self.writing.is_none() && !self.removes;
        [Some(self.not_before), denied].into_iter().flatten().filter(|at| is_on && *at > now).min()
    }
}
