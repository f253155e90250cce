//! The system under the configuration of a running agent: the wanted one, whether the running one is proven,
//! and the records of an update.
//!
//! Always holds: a wait for a system ends as soon as a start would run the assigned config; this module
//! declares nothing bad. Leaves to others: rules s and g (`config::system`), the update
//! (`crate::system::actor`).

use crate::answer::Now;
use crate::config::digest::Digest;
use crate::config::disk::AssignedNow;
use crate::config::records::{Known, LastKnownGood};
use crate::config::running::Configuration;
use crate::config::standing::Obstacle;
use crate::config::system::{self, Asked, Systems};
use crate::config::transition::Transition;
use crate::slot::CONTACT_WITHIN;
use crate::system::Slots;
use crate::system::records::{State, Wish};
use std::time::Duration;

impl Configuration {
    /// The slots, on a machine that has some.
    pub(crate) fn slots(&self) -> Option<&Slots> {
        self.facts.slots.as_ref().filter(|_| self.facts.dynamic)
    }

    pub(crate) fn slots_changed(&mut self, slots: Slots) {
        if self.facts.slots.is_some() {
            self.facts.slots = Some(slots);
            self.systems_changed();
        }
    }

    /// The boot's health check found the running slot good.
    pub(crate) fn slot_is_good(&mut self) {
        if let Some(slots) = self.facts.slots.as_mut().filter(|slots| slots.is_on_trial) {
            slots.is_on_trial = false;
            self.systems_changed();
        }
    }

    pub(crate) fn systems(&self) -> &Systems {
        &self.disk.systems
    }

    /// The system that the assigned payload wants.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }

    pub(crate) fn way_back(&self) -> Option<Digest> {
        self.disk.way_back()
    }

    pub(crate) fn assigned_payload(&self) -> Option<Digest> {
        self.contents.assigned.map(|is| is.payload)
    }

    pub(crate) fn boot_id(&self) -> &str {
        &self.facts.boot_id
    }

    pub(crate) fn trial_ms(&self) -> u64 {
        self.in_use.terms.trial_ms
    }

    /// For how long this process has run.
    pub(crate) fn run_ms(&self, now: Now) -> u64 {
        let run = now.mono.saturating_sub(self.timing.began).as_millis();
        u64::try_from(run).unwrap_or(u64::MAX)
    }

    /// Whether this process has contact.
    pub(crate) fn is_heard(&self, now: Now) -> bool {
        self.timing.is_heard && now.mono.saturating_sub(self.timing.silent_since) <= CONTACT_WITHIN
    }

    /// Whether the running system is proven, and stays so.
    pub(crate) fn has_proven_system(&self, now: Now) -> bool {
        self.is_heard(now) && self.ran_ms(now) >= self.in_use.terms.settled_after_ms()
    }

    /// The system that the assigned payload wants, unless one of the two is bad.
    pub(crate) fn wish(&self) -> Option<&Wish> {
        let (wish, payload) = (self.asked.wish.as_ref()?, self.assigned_payload()?);
        let digest = wish.pinned.digest;
        let is_condemned = match self.standing.obstacle() {
            Some(Obstacle::Marked { verdict, .. }) => verdict.kind.is_final(),
            Some(obstacle) => !obstacle.is_of_system(),
            None => false,
        };
        let bad = &self.disk.systems.bad;
        let is_free = bad.against(digest).is_none() && !bad.has_pair(payload, Some(digest));
        (is_free && !is_condemned).then_some(wish)
    }

    /// Whether the wanted system, or its absence, is known.
    pub(crate) fn knows_wish(&self) -> bool {
        let obstacle = self.standing.obstacle();
        obstacle.is_none_or(|obstacle| matches!(obstacle, Obstacle::Marked { .. }) || obstacle.is_of_system())
    }

    /// The disk refused the last write, or the record of this start.
    pub(crate) fn disk_refuses(&self) -> bool {
        self.writes.have_failed || self.writes.evidence_unrecorded
    }

    /// The disk refused the last write, and an update waits until it takes one.
    pub(super) fn waits_for_a_write(&self) -> bool {
        self.disk_refuses() && self.slots().is_some()
    }

    /// The Node was read; `holds_promotion`: it has the annotation `kedge.dev/hold-promotion`.
    pub(crate) fn promotion_asked(&mut self, holds_promotion: bool) {
        self.may_promote = !holds_promotion;
    }

    /// Whether the Node allows promotions, as far as this process has read it.
    pub(super) fn may_promote(&self) -> bool {
        self.may_promote
    }

    /// Records of systems wait for the disk.
    pub(crate) fn is_writing_systems(&self) -> bool {
        let kind = self.job.as_ref().map(|job| &job.kind);
        self.systems_due.is_some() || matches!(kind, Some(Transition::NoteSystems { .. }))
    }

    /// Has these records written; `notes_way_back`: before them that last-known-good's system is the running
    /// one.
    pub(crate) fn write_systems(&mut self, systems: Systems, notes_way_back: bool) {
        self.systems_due = Some((systems, notes_way_back));
    }

    /// How far the update has come, for the condition of a config that waits for it.
    pub(crate) fn system_progress(&mut self, progress: Option<String>) {
        self.system_progress = progress;
    }

    pub(super) fn note_systems(&mut self) -> Option<Transition> {
        let (systems, notes_way_back) = self.systems_due.take()?;
        let good = self.last_known_good();
        let runs = self.slots().and_then(|slots| slots.running.digest);
        let good =
            (notes_way_back && good.system.is_none()).then_some(LastKnownGood { system: runs, ..good });
        Some(Transition::NoteSystems { systems, good })
    }

    fn last_known_good(&self) -> LastKnownGood {
        self.disk.last_known_good.known().cloned().unwrap_or_default()
    }

    /// The system that a config is promoted with; `None` as long as no config has wanted one.
    pub(super) fn promoted_system(&self) -> Option<Digest> {
        let back = self.way_back();
        let runs = self.slots().and_then(|slots| slots.running.digest);
        if back.is_some() || self.asked.wish.is_some() { runs.or(back) } else { None }
    }

    /// Any proven config that has run well for T proves the system under it, but not before the assigned
    /// config that came with it was tried.
    pub(super) fn system_promotion(&self) -> Option<Transition> {
        let slots = self.slots().filter(|slots| !slots.is_on_trial)?;
        let (runs, back) = (slots.running.digest?, self.way_back()?);
        let is_known = !matches!(self.disk.last_known_good, Known::Unknown { .. });
        let is_due = self.timing.heard_at_end && self.may_promote();
        let is_due = is_due && self.counts_running() && self.runs_proven() && is_known;
        if runs == back || !is_due || self.may_leave(slots, runs) {
            return None;
        }
        let good = self.last_known_good();
        let config = self.in_use.config.as_ref().map(|(config, _)| config.clone());
        let is_same = match (&config, &good.config) {
            (Some(config), Some(good)) => config.is_same_payload(good),
            (ours, good) => ours.is_none() && good.is_none(),
        };
        let good = match is_same {
            true => LastKnownGood { system: Some(runs), ..good },
            false => LastKnownGood { config, previous: good.config, system: Some(runs) },
        };
        Some(Transition::PromoteSystem { good, is_same })
    }

    /// Whether the running system is still to be judged together with the assigned config, which names it and
    /// can be tried now, or the machine is on its way back. Last-known-good has run for T on it all the same
    /// if T is shorter than the trial of the slot, or than the end of the pods before a restart.
    fn may_leave(&self, slots: &Slots, runs: Digest) -> bool {
        let is_named = self.asked.wish.as_ref().is_some_and(|wish| wish.pinned.digest == runs);
        let is_next = self
            .standing
            .fallback()
            .is_some_and(|fallback| matches!(fallback.obstacle, None | Some(Obstacle::NotRecorded(_))));
        let goes_back = self.disk.systems.wanted.as_ref().is_some_and(|wanted| {
            wanted.state == State::Reverting && slots.other.digest == Some(wanted.digest())
        });
        is_named && is_next || goes_back
    }

    /// As long as the running system is not last-known-good's and the machine can go back, the silence of a
    /// proven config counts, too.
    pub(super) fn is_on_probation(&self) -> bool {
        self.runs_proven() && self.disk.can_go_back(self.slots()).is_some()
    }

    /// When that silence is too long.
    pub(super) fn probation_ends(&self) -> Option<Duration> {
        let left = self.in_use.terms.settled_after_ms().saturating_sub(self.in_use.counts.silent_ms);
        self.is_on_probation().then(|| self.timing.silent_since.saturating_add(Duration::from_millis(left)))
    }

    /// Judges the assigned config again by what it wants.
    pub(super) fn systems_changed(&mut self) {
        let is_of_system = self.standing.obstacle().is_some_and(Obstacle::is_of_system);
        let (Some(payload), AssignedNow::Config(..)) = (self.assigned_payload(), self.disk.assigned()) else {
            return;
        };
        if let Some(slots) = self.facts.slots.as_ref().filter(|_| is_of_system) {
            let obstacle = system::judge(slots, &self.disk, payload, self.asked.wish.as_ref());
            self.standing.system_judged(obstacle);
        }
    }

    /// The records of systems without what speaks against this config.
    pub(super) fn systems_without(&self, uid: &str) -> Systems {
        let mut systems = self.disk.systems.clone();
        if self.is_assigned(uid) {
            let digest = self.asked.wish.as_ref().map(|wish| wish.pinned.digest);
            systems.bad.forgive(self.assigned_payload(), digest);
            if let Some(wanted) = systems.wanted.as_mut().filter(|wanted| Some(wanted.digest()) == digest) {
                wanted.attempts = 0;
            }
        }
        systems
    }
}
