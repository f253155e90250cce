//! The list of bad configs of a running agent: requests to forgive, edits by hand, and what follows for the
//! counts.
//!
//! Always holds: a request is obeyed once; an unreadable list is never replaced for a record of a request
//! alone. Leaves to others: how a verdict is reached (`start`, `judge`) and the writes (`running`).

use crate::answer::Now;
use crate::config::digest::Identity;
use crate::config::disk::AssignedNow;
use crate::config::records::{Asked, BadConfigs, ConfigRecord, Known, RanAs, Verdict};
use crate::config::running::{Configuration, Forgiveness, Notice};
use crate::config::standing::Obstacle;
use crate::config::transition::{Emptied, Transition};

/// UIDs that wait to be forgiven: each is a request by a person at the node, and a hung disk must not let
/// them pile up.
const WAITING_TO_BE_FORGIVEN: usize = 8;

/// Longest annotation with a request to forgive: a UID of 64 bytes, and as much again to distinguish one
/// request from another.
const LONGEST_ASKED_BYTES: usize = 128;

impl Configuration {
    /// The text of the Node's annotation `kedge.dev/forgive`, if there is one.
    pub(crate) fn asked_to_forgive(&mut self, asked: Option<&str>) {
        let asked = asked.filter(|asked| asked.len() <= LONGEST_ASKED_BYTES).unwrap_or_default();
        // the record of it was lost with the list, or is in another version's list: the Node's request may
        // have been obeyed long ago
        let may_be_old =
            self.forgiving.heard_of.is_none() && (self.forgiving.began_list || self.verdicts_were_lost());
        let is_withdrawn = asked.is_empty() && self.noted().is_none();
        if may_be_old || is_withdrawn {
            self.forgiving.heard_of = Some(asked.to_owned());
        }
        self.forgiving.on_node = Some(asked.to_owned());
    }

    /// `kedge config forgive UID`.
    pub(crate) fn forgive(&mut self, uid: &str) -> Forgiveness {
        let answer = self.forgiveness(uid);
        if answer == Forgiveness::Taken && !self.waits_to_be_forgiven(uid) {
            self.forgiving.requested.push(uid.to_owned());
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
        if self.forgiving.requested.len() >= WAITING_TO_BE_FORGIVEN && !self.waits_to_be_forgiven(uid) {
            return Forgiveness::TooMany;
        }
        Forgiveness::Taken
    }

    /// Whether there is a verdict, as far as the list is readable.
    fn has_verdict(&self, uid: &str) -> bool {
        if self.is_assigned(uid) && matches!(self.standing.obstacle(), Some(Obstacle::BadSystem { .. })) {
            return true;
        }
        match &self.disk.bad_configs {
            Known::Is(bad) => {
                bad.entries().any(|(other, ..)| other == uid) || self.is_assigned(uid) && self.is_doubted()
            }
            Known::Absent => false,
            Known::Unknown { .. } => true,
        }
    }

    fn waits_to_be_forgiven(&self, uid: &str) -> bool {
        self.forgiving.requested.iter().any(|other| other == uid)
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
            self.forgiving.edit = Some(bad);
            return;
        }
        self.take_bad_configs(bad);
    }

    /// Somebody else wrote the list on disk.
    pub(super) fn take_bad_configs(&mut self, bad: Known<BadConfigs>) {
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
            self.forgiving.heard_of = Some(noted);
        }
        self.rejudge();
    }

    /// Records the Node's request to forgive, and obeys it if there is a verdict now: never later, because a
    /// request that stays on the Node is not about the next verdict. A withdrawn request may be made again.
    pub(super) fn asked_from_afar(&self, now: Now) -> Option<Transition> {
        let asked = self.forgiving.on_node.as_deref().filter(|_| now.mono >= self.writes.not_before)?;
        if self.noted().unwrap_or_default() == asked {
            return None;
        }
        let noted = (!asked.is_empty()).then(|| Asked { time: now.wall, text: asked.to_owned() });
        let uid = asked.split_whitespace().next().unwrap_or_default();
        let is_new = self.forgiving.heard_of.as_deref() != Some(asked) && !uid.is_empty();
        if is_new && !self.has_verdict(uid) && self.is_assigned(uid) && self.has_unrecorded_verdict() {
            // the verdict is recorded first, and forgiven then
            return None;
        }
        if is_new && self.has_verdict(uid) {
            let mut kind = self.forgive_transition(uid.to_owned());
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

    pub(super) fn forgive_transition(&self, uid: String) -> Transition {
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
    pub(super) fn without_counts(&self, of: impl Iterator<Item = Identity>) -> Emptied {
        let mut emptied = Emptied { startups: self.startups.clone(), is_due: false };
        for ran_as in of.map(|is| RanAs::Payload(is.payload)).filter(|other| *other != self.in_use.ran_as()) {
            emptied.is_due |= self.startups.counts_for(ran_as);
            emptied.startups.forgive(ran_as);
        }
        emptied
    }

    /// The verdict that keeps a content from running now.
    pub(super) fn verdict_against(&self, uid: &str, is: &Identity) -> Option<Verdict> {
        self.disk.verdict(uid, Some(is), self.is_proven(is)).filter(|verdict| !verdict.retry)
    }

    /// Replaces an unreadable list: it may have had the assigned config.
    pub(super) fn verdicts_lost(&self) -> BadConfigs {
        BadConfigs::default().doubting(self.contents.assigned.map(|is| is.payload))
    }

    /// Whether the assigned config is of the object with this UID.
    pub(super) fn is_assigned(&self, uid: &str) -> bool {
        matches!(self.disk.assigned(), AssignedNow::Config(config, _) if config.uid == uid)
    }
}
