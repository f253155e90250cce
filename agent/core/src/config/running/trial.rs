//! The running time of the config in use: its trial, its progress on disk, its silence, and how long pods are
//! held.
//!
//! Always holds: promotion needs a renewal at the end of the trial; time that a power cut may undo is saved
//! every `Terms::save_every_ms`. Leaves to others: the thresholds (`judge`) and the writes (`running`).

use crate::answer::Now;
use crate::config::digest::Identity;
use crate::config::disk::AssignedNow;
use crate::config::judge;
use crate::config::judge::Role;
use crate::config::records::{BadConfigs, ConfigRecord, Counts, Recorded, Startups};
use crate::config::running::{Configuration, Hold};
use crate::config::transition::Transition;
use std::time::Duration;

impl Configuration {
    /// Whether running time counts: not where the records are left alone.
    pub(super) fn counts_running(&self) -> bool {
        self.facts.dynamic && self.in_use.counts.open.is_some()
    }

    /// The counts as of now: the running config's running time, silence where it matters, and after a whole
    /// trial no startups.
    pub(super) fn progressed(&self, now: Now) -> Startups {
        let settled = self.in_use.terms.settled_after_ms();
        let ran_ms = self.ran_ms(now).min(self.counts_up_to_ms());
        let downloaded = matches!(self.disk.assigned(), AssignedNow::Config(_, true));
        let (in_trial, waited_for) = (self.in_trial() && downloaded, !self.waiting().is_empty());
        let counts_silence = in_trial || waited_for || self.is_on_probation();
        let silent_ms = if counts_silence { self.silent_ms(now) } else { 0 };
        // less than the time between two saves is not worth a write of its own
        let is_long = silent_ms >= self.in_use.terms.save_every_ms(self.timing.saved_ran_ms);
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
    pub(super) fn hold_ms(&self) -> Option<u64> {
        self.startups.hold.then(|| judge::hold_ms(self.startups.held, self.in_use.terms))
    }

    /// Most running time that is recorded: no rule needs more.
    pub(super) fn counts_up_to_ms(&self) -> u64 {
        let terms = self.in_use.terms;
        terms.settled_after_ms().max(terms.trial_ms).max(self.longest_wait_ms())
    }

    pub(super) fn save_due_ms(&self) -> u64 {
        let every = self.in_use.terms.save_every_ms(self.timing.saved_ran_ms);
        // a long wait is saved in eighths: a cut may cost that much of it
        let every = every.max(self.longest_wait_ms() / 8);
        // and so is a long silence, once nothing else must be saved: a suspected config may be silent for a
        // day
        let is_ran = self.in_trial() && self.timing.saved_ran_ms >= self.in_use.terms.settled_after_ms();
        let every = if is_ran { every.max(self.patience_ms() / 8) } else { every };
        let due = self.timing.saved_ran_ms.saturating_add(every);
        // a save exactly at the end of the trial, not a little after it
        let ends = [self.in_use.terms.trial_ms, self.in_use.terms.settled_after_ms(), self.counts_up_to_ms()];
        ends.into_iter().filter(|end| self.timing.saved_ran_ms < *end).fold(due, u64::min)
    }

    pub(super) fn promotion(&self, now: Now) -> Option<Transition> {
        let due = self.counts_running() && self.standing.is_promotable() && self.may_promote();
        let (config, is) = self.in_use.config.as_ref().filter(|_| due)?;
        // it was tried again, and had contact: the suspicion is over
        let bad = self.without_retried(&config.uid, is);
        // its old payload, whatever the form of its record
        let previous = self.disk.fallback().zip(self.contents.last_known_good);
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
    pub(super) fn patience_ms(&self) -> u64 {
        let entry = self.in_use.config.as_ref().and_then(|(config, is)| {
            self.disk.bad_configs.known()?.verdict(&config.uid, Some(is)).filter(|verdict| verdict.retry)
        });
        judge::patience_ms(self.in_use.terms, entry.as_ref())
    }

    pub(super) fn silent_trial(&self, now: Now) -> Option<Transition> {
        let downloaded = matches!(self.disk.assigned(), AssignedNow::Config(_, true));
        let role = Role {
            assigned: self.standing.is_assigned(),
            downloaded,
            last_known_good: !self.in_trial(),
            proven: !self.in_trial(),
        };
        let (startups, terms) = (self.progressed(now), self.in_use.terms);
        let ours = self.ours(&startups);
        let is_lost = judge::lost_contact(&ours, self.patience_ms(), terms, role)
            || self.is_on_probation() && ours.silent_ms >= terms.settled_after_ms();
        let due = self.counts_running() && is_lost;
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
    /// way, pods are not held, and the config in use has no verdict that its running well removes. Where
    /// systems or programs are updated, the disk must also have taken the last write: a program is not started
    /// before that, and only another write shows it.
    pub(super) fn is_settled(&self) -> bool {
        let retried =
            self.in_use.config.as_ref().and_then(|(config, is)| self.without_retried(&config.uid, is));
        self.timing.saved_ran_ms >= self.counts_up_to_ms()
            && !self.in_trial()
            && !self.startups.hold
            && retried.is_none()
            && !self.waits_for_a_write()
    }

    pub(super) fn progress(&mut self, now: Now) -> Option<Transition> {
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
        if bad.is_none() && self.disk.startups.known() == Some(&startups) && !self.waits_for_a_write() {
            // the trial is over and waits for a renewal
            self.timing.saved_ran_ms = self.ran_ms(now);
            return None;
        }
        Some(Transition::TrialProgress { startups, bad })
    }

    /// The trial restarted since progress was saved, or has kept restarting for as long as between two saves:
    /// a power cut must undo neither.
    fn began_anew(&self, now: Now) -> bool {
        let saved_ms = self.ours(&self.startups).lost_ms;
        let lost_ms = self.in_use.counts.lost_ms.saturating_sub(saved_ms);
        let is_saved = self.ran_ms(now) >= self.timing.saved_ran_ms;
        self.in_trial() && lost_ms > 0 && (!is_saved || lost_ms >= self.in_use.terms.save_every_ms(0))
    }
}
