//! The system that the assigned config wants, at a start and while another config runs: rules s and g, the
//! boot loader's list, and the way back (RULES.md, "Systems").
//!
//! Always holds: these rules judge only the assigned config, and not one that is last-known-good, because a
//! fallback may run on any system. A system's fault is written to `system/bad` before the machine goes back,
//! and never to the list of bad configs. Leaves to others: the update itself (`crate::system`).

use crate::config::digest::Digest;
use crate::config::disk::Disk;
use crate::config::standing::Obstacle;
use crate::config::start::{Facts, Started};
use crate::kubelet::LayerText;
use crate::kubelet::wanted::{Reboot, Wanted};
use crate::system::records::{Again, BadSystems, Fault, MOST_ATTEMPTS, State, WantedRecord, Wish};
use crate::system::{Entry, Kind, Slots};
use crate::writes::{Steps, Suspendable};

/// The two records of systems.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Systems {
    pub(crate) wanted: Option<WantedRecord>,
    pub(crate) bad: BadSystems,
}

/// The system that a payload wants for this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) wish: Option<Wish>,
    /// It wants something, but names no system for this machine.
    pub(crate) is_elsewhere: bool,
}

/// Why the machine goes back to the system of last-known-good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoBack {
    /// A proven config crash-loops on this system.
    Crashes,
    /// A proven config is silent on this system.
    Silence,
    /// The assigned config failed together with its system.
    Pair(Digest, Option<Digest>),
}

/// Reads the system that a payload wants. Its start is counted by now.
pub(super) fn asked(facts: &Facts, payload: &LayerText) -> Asked {
    let Some(slots) = &facts.slots else { return Asked::default() };
    let text = &payload.text;
    let has = |word: &[u8]| text.windows(word.len()).any(|found| found == word);
    // most payloads want no system, and need not be read twice; a key may be written with escapes
    if !(has(b"system") || has(b"agent") || has(b"\\")) {
        return Asked::default();
    }
    // rule e takes a payload that does not parse
    let Ok(wanted) = Wanted::of_payload(text, &facts.local) else { return Asked::default() };
    let (version, list, is_manual, keys) = match (slots.kind, wanted.system, wanted.agent) {
        (Kind::System, Some(system), _) => {
            (system.version, system.images, system.reboot == Reboot::Manual, system.keys)
        }
        (Kind::Agent, _, Some(agent)) => (agent.version, agent.programs, false, String::new()),
        _ => return Asked::default(),
    };
    let pinned = list.into_iter().find(|(place, _)| *place == slots.place).map(|(_, pinned)| pinned);
    let Some(pinned) = pinned else { return Asked { wish: None, is_elsewhere: true } };
    let kind = slots.kind;
    let wish = Wish {
        kind,
        version,
        pinned,
        is_manual,
        bytes_per_second: wanted.download.bytes_per_second,
        in_window: wanted.download.in_window,
        keys,
    };
    Asked { wish: Some(wish), is_elsewhere: false }
}

/// Rules s and g.
pub(super) fn judge(slots: &Slots, disk: &Disk, payload: Digest, wish: Option<&Wish>) -> Option<Obstacle> {
    let digest = wish.map(|wish| wish.pinned.digest);
    let version = || wish.map(|wish| wish.version.clone()).unwrap_or_default();
    if disk.systems.bad.has_pair(payload, digest) {
        let (version, reason) = (version(), "it failed with this configuration".to_owned());
        return Some(Obstacle::BadSystem { version, reason, is_final: true });
    }
    // rule g: bad system
    if let Some(bad) = digest.and_then(|digest| disk.systems.bad.against(digest)) {
        let is_final = bad.again == Again::Never;
        return Some(Obstacle::BadSystem { version: version(), reason: bad.reason.clone(), is_final });
    }
    // rule s: another system. A trial of a system, and its probation, need a config that is known
    let (runs, back) = (slots.running.digest, disk.way_back());
    let is_another = digest.is_some() && digest != runs;
    let is_on_probation = digest != runs && back.is_some() && back != runs;
    (is_another || slots.is_on_trial || is_on_probation)
        .then(|| Obstacle::WaitsForSystem { version: version() })
}

impl Disk {
    /// The system of last-known-good.
    pub(crate) fn way_back(&self) -> Option<Digest> {
        self.last_known_good.known().and_then(|good| good.system)
    }

    /// The system to go back to: last-known-good's, while another one runs that is not on trial. `None` if
    /// the other slot cannot start it.
    pub(crate) fn can_go_back(&self, slots: Option<&Slots>) -> Option<Digest> {
        let slots = slots.filter(|slots| !slots.is_on_trial)?;
        let back = self.way_back()?;
        let has_tries = !matches!(slots.other.entry, Entry::Counted { left: 0, .. });
        let is_there = slots.other.digest == Some(back) && has_tries;
        (slots.running.digest != Some(back) && is_there && self.systems.bad.entry(back).is_none())
            .then_some(back)
    }

    /// Writes the records of systems unless they have this content: their faults first.
    pub(crate) fn put_systems(
        &mut self,
        steps: &mut Steps,
        systems: Systems,
    ) -> Suspendable<Result<(), String>> {
        if let Err(why) = self.put_bad_systems(steps, systems.bad)? {
            return Ok(Err(why));
        }
        self.put_wanted(steps, systems.wanted)
    }

    /// The records after a look at the boot loader's list.
    fn systems_by_list(&self, slots: &Slots) -> Systems {
        let mut systems = self.systems.clone();
        let Systems { wanted, bad } = &mut systems;
        let other = &slots.other;
        let is =
            |wanted: &Option<WantedRecord>, digest| wanted.as_ref().is_some_and(|w| w.digest() == digest);
        if let Some(digest) = other.digest.filter(|digest| bad.against(*digest).is_none()) {
            if other.entry.has_failed() {
                bad.fell_back(digest, &other.version, other.failure.as_ref());
            } else if matches!(other.entry, Entry::Counted { left: 0, is_good: true }) {
                // it passed its trial, and lost its tries later
                let lost = wanted.as_ref().filter(|wanted| wanted.digest() == digest);
                let attempts = lost.map_or(0, |wanted| wanted.attempts).saturating_add(1);
                let is_known = lost.is_some_and(|wanted| {
                    matches!(wanted.state, State::Lost | State::Fetching | State::Held | State::Written)
                });
                if attempts > MOST_ATTEMPTS {
                    let reason = "it lost all its tries again and again";
                    bad.mark(digest, &other.version, Fault::Failed, Again::Never, reason);
                } else if let (false, Some(wanted)) =
                    (is_known, wanted.as_mut().filter(|w| w.digest() == digest))
                {
                    (wanted.state, wanted.attempts) = (State::Lost, attempts);
                }
            }
        }
        if let Some(running) = slots.running.digest {
            if is(wanted, running) {
                let wanted = wanted.iter_mut();
                wanted
                    .filter(|wanted| matches!(wanted.state, State::Armed | State::Reverting | State::Written))
                    .for_each(|wanted| wanted.state = State::Good);
            } else if wanted.as_ref().is_some_and(|wanted| bad.against(wanted.digest()).is_some()) {
                *wanted = None;
            }
        }
        systems
    }
}

impl Started {
    /// Brings the records up to date with the boot loader's list, and begins all counts anew on another
    /// system.
    pub(super) fn read_list(&mut self, steps: &mut Steps, facts: &Facts) -> Suspendable<()> {
        let Some(slots) = &facts.slots else { return Ok(()) };
        let runs = slots.running.digest;
        if self.startups.system.is_some() && self.startups.system != runs {
            // crashes on another system say nothing about the configs on this one
            let baseline = self.startups.baseline;
            self.startups = Default::default();
            self.startups.baseline = baseline;
        }
        self.startups.system = runs;
        if slots.is_on_trial {
            return Ok(());
        }
        let systems = self.disk.systems_by_list(slots);
        let failed = slots.other.digest.and_then(|digest| {
            let is_new = systems.bad.entry(digest) != self.disk.systems.bad.entry(digest);
            systems.bad.entry(digest).filter(|_| is_new).cloned()
        });
        if let Some(bad) = failed {
            // with the last lines of its boot, which the records leave out
            let why = slots.other.failure.as_ref().map_or(bad.reason.as_str(), |failure| &failure.text);
            self.rolled_back =
                Some(format!("system {} used up its tries, and this one runs again: {why}", bad.version));
        }
        // a write that fails is repeated by the next start: the list still shows it
        let _ = self.disk.put_systems(steps, systems)?;
        Ok(())
    }

    /// The system that the assigned payload wants, if a record remembers it.
    pub(super) fn remembered(&self, payload: Digest) -> Option<Wish> {
        let wanted = self.disk.systems.wanted.as_ref()?;
        (wanted.payload == Some(payload)).then(|| wanted.wish.clone())
    }

    /// The assigned config does not run, and the machine may have to go back with it. `asks`: the system that
    /// the config which runs instead wants, if that is last-known-good.
    pub(super) fn failed_with_system(&self, facts: &Facts, asks: Option<Digest>) -> Option<GoBack> {
        let back = self.disk.can_go_back(facts.slots.as_ref())?;
        let payload = self.assigned?.payload;
        let is_final = match self.standing.obstacle()? {
            Obstacle::Marked { verdict, .. } => verdict.kind.is_final(),
            _ => false,
        };
        // on probation a config is judged only if it names the running system
        let digest = facts.slots.as_ref()?.running.digest;
        (is_final && asks == Some(back)).then_some(GoBack::Pair(payload, digest))
    }

    /// Records why the machine goes back, and then that it does.
    pub(super) fn go_back(&mut self, steps: &mut Steps, facts: &Facts, why: GoBack) -> Suspendable<()> {
        let Some(slots) = &facts.slots else { return Ok(()) };
        let Some(back) = self.disk.can_go_back(Some(slots)) else { return Ok(()) };
        let mut systems = self.disk.systems.clone();
        let reason = match (why, slots.running.digest) {
            (GoBack::Pair(payload, digest), _) => {
                systems.bad.add_pair(payload, digest);
                "the configuration that came with it failed"
            }
            (GoBack::Crashes, Some(runs)) => {
                let reason = "the last-known-good configuration ended too often on it";
                systems.bad.mark(runs, &slots.running.version, Fault::Failed, Again::Never, reason);
                reason
            }
            (GoBack::Silence, Some(runs)) => {
                let reason = "the last-known-good configuration had no contact on it";
                let is_known = |bad: &&crate::system::records::BadSystem| {
                    bad.fault == Fault::Contact && matches!(bad.again, Again::Never | Again::Undecided)
                };
                if systems.bad.entry(runs).filter(is_known).is_none() {
                    let version = &slots.running.version;
                    systems.bad.mark(runs, version, Fault::Contact, Again::Undecided, reason);
                }
                reason
            }
            (_, None) => return Ok(()),
        };
        systems.wanted = Some(WantedRecord::back(back, slots.other.version.clone()));
        if self.disk.put_systems(steps, systems)?.is_ok() {
            let (from, to) = (&slots.running.version, &slots.other.version);
            self.rolled_back = Some(format!("going back from system {from} to {to}: {reason}"));
        }
        Ok(())
    }
}
