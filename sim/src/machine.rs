//! A machine with two slots: the boot loader with its list and counter, and systems with natures of their
//! own.
//!
//! Always holds: the list changes in one step, as the shell's steps make it look to a boot; the loader counts
//! a try before it starts a slot. Systems are called by a letter; the factory's is X, in slot a. Leaves to
//! others: the agent that runs in the started slot (`node`), times.

use kedge_core::Digest;
use kedge_core::kubelet::wanted::Pinned;
use kedge_core::system::{By, Entry, Failure, Slot, Slots, SystemEvent, SystemOrder, programs};
use std::collections::BTreeMap;

/// The board of every machine.
pub const BOARD: &str = "toaster";
/// Tries of a new slot, and of a good one.
const TRIES: u8 = 3;
const GOOD_TRIES: u8 = 5;
const SYSTEMS: [&str; 3] = ["X", "Y", "Z"];

/// The behaviour of a started system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nature {
    #[default]
    Good,
    /// It never starts the agent.
    Hangs,
    /// It has no network.
    Deaf,
    /// It has none from its blessing on.
    DeafLater,
    /// Its key is revoked between its fetch and its write.
    Revoked,
}

#[derive(Clone)]
pub struct Machine {
    slots: [Slot; 2],
    running: usize,
    /// The slot that the loader tries first.
    newest: usize,
    is_on_trial: bool,
    pub natures: BTreeMap<String, Nature>,
    /// The agent's versions, by system; of others it is the factory's.
    pub agents: BTreeMap<String, String>,
    pub order: Option<SystemOrder>,
    fetched: Option<Digest>,
    /// The machine was ordered to restart.
    pub restarts: bool,
    /// The update can be fetched.
    pub is_served: bool,
    /// A restart waits for a command.
    pub boots: u32,
}

#[must_use]
pub fn digest_of(system: &str) -> Digest {
    Digest::of(system.as_bytes())
}

/// `kedge.system` of a payload; `Y+keys` has a list of keys with it.
#[must_use]
pub fn wants(system: &str) -> String {
    let (system, keys) = match system.strip_suffix("+keys") {
        Some(system) => (system, "keys: 'a list', "),
        None => (system, ""),
    };
    let digest = digest_of(system);
    format!(
        "kedge: {{system: {{version: '{system}', {keys}images: {{{BOARD}: {{url: 'https://dl.example/{system}', digest: 'sha256:{digest}'}}}}}}}}"
    )
}

pub(crate) fn name_of(digest: Option<Digest>) -> String {
    if digest == Some(programs::packaged()) {
        return "X".to_owned();
    }
    let found = SYSTEMS.iter().find(|name| Some(digest_of(name)) == digest);
    found.map_or_else(|| "nothing".to_owned(), |name| (*name).to_owned())
}

impl Default for Machine {
    fn default() -> Self {
        Self::in_slot(0)
    }
}

impl Machine {
    /// A machine with the factory's system in one slot, and nothing in the other.
    #[must_use]
    pub fn in_slot(slot: usize) -> Self {
        let factory = Slot {
            digest: Some(digest_of("X")),
            version: "X".into(),
            entry: Entry::Uncounted,
            ..Slot::default()
        };
        let mut slots = [Slot::default(), Slot::default()];
        slots[slot] = factory;
        Self {
            slots,
            running: slot,
            newest: slot,
            is_on_trial: false,
            natures: BTreeMap::new(),
            agents: BTreeMap::new(),
            order: None,
            fetched: None,
            restarts: false,
            is_served: true,
            boots: 0,
        }
    }

    #[must_use]
    pub fn slots(&self) -> Slots {
        Slots {
            place: BOARD.into(),
            running: self.slots[self.running].clone(),
            other: self.slots[1 - self.running].clone(),
            is_on_trial: self.is_on_trial,
            ..Slots::default()
        }
    }

    /// The running system.
    #[must_use]
    pub fn runs(&self) -> String {
        name_of(self.slots[self.running].digest)
    }

    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.is_on_trial
    }

    fn nature(&self, slot: usize) -> Nature {
        self.natures.get(&name_of(self.slots[slot].digest)).copied().unwrap_or_default()
    }

    #[must_use]
    pub fn is_deaf(&self) -> bool {
        match self.nature(self.running) {
            Nature::Deaf => true,
            Nature::DeafLater => !self.is_on_trial,
            Nature::Good | Nature::Hangs | Nature::Revoked => false,
        }
    }

    /// The version of the running system's agent, if it is another one than the factory's.
    #[must_use]
    pub fn agent(&self) -> Option<&String> {
        self.agents.get(&self.runs())
    }

    /// The boot loader starts a slot; one that hangs is reset, again and again.
    pub fn boot(&mut self) {
        (self.order, self.restarts) = (None, false);
        for _ in 0..10 {
            let is_startable = |slot: &usize| {
                !matches!(self.slots[*slot].entry, Entry::Absent | Entry::Counted { left: 0, .. })
            };
            let order = [self.newest, 1 - self.newest];
            let slot = order.into_iter().find(is_startable).expect("a slot can be started");
            self.boots += 1;
            self.running = slot;
            self.is_on_trial = false;
            if let Entry::Counted { left, is_good: false } = &mut self.slots[slot].entry {
                *left -= 1;
                self.is_on_trial = true;
            }
            if self.nature(slot) != Nature::Hangs {
                return;
            }
            assert!(self.is_on_trial, "a good system hangs");
        }
        unreachable!("it boots without end");
    }

    /// The health check finds the running slot good.
    pub fn bless(&mut self) {
        self.is_on_trial = false;
        self.slots[self.running].entry = Entry::Counted { left: GOOD_TRIES, is_good: true };
    }

    /// The health check misses contact, and resets the machine.
    pub fn fail(&mut self) {
        let text = "no contact with the API server".to_owned();
        self.slots[self.running].failure = Some(Failure { is_silence: true, text });
    }

    /// The good slot that does not run loses its tries.
    pub fn lose_tries(&mut self) {
        if let Entry::Counted { left, .. } = &mut self.slots[self.running].entry {
            *left = 0;
        }
    }

    /// A person writes this system into the other slot, and has it tried.
    pub fn write_by_hand(&mut self, system: &str) {
        let other = 1 - self.running;
        self.slots[self.running].entry = Entry::Uncounted;
        self.slots[other] = Slot {
            digest: Some(digest_of(system)),
            version: system.into(),
            entry: Entry::Counted { left: TRIES, is_good: false },
            by: By::Hand,
            failure: None,
        };
        self.newest = other;
        self.restarts = true;
    }

    /// Performs the order.
    pub fn perform(&mut self, is_online: bool) -> Vec<SystemEvent> {
        let Some(order) = self.order.take() else { return Vec::new() };
        let other = 1 - self.running;
        let done = match order {
            SystemOrder::Fetch { wanted, .. } if is_online && self.is_served => {
                self.fetched = Some(wanted.digest);
                return vec![SystemEvent::Progress(42), SystemEvent::Done(Ok(()))];
            }
            SystemOrder::Fetch { .. } => Err("no answer".to_owned()),
            SystemOrder::Write { wanted: Pinned { digest, .. } } => {
                assert!(!self.is_on_trial, "the fallback is written in a trial");
                let version = name_of(Some(digest));
                if self.natures.get(&version) == Some(&Nature::Revoked) {
                    let (reason, message) = ("NoSignature", "its key is revoked".to_owned());
                    return vec![SystemEvent::Slots(self.slots()), SystemEvent::Refused { reason, message }];
                }
                // the pieces are removed once they are written
                assert_eq!(self.fetched.take(), Some(digest), "it was not fetched");
                self.newest = self.running;
                self.slots[other] = Slot { digest: Some(digest), version, ..Slot::default() };
                Ok(())
            }
            SystemOrder::Arm { digest, by, .. } => {
                assert_eq!(self.slots[other].digest, Some(digest), "the armed slot is not whole");
                self.slots[self.running].entry = Entry::Uncounted;
                let entry = Entry::Counted { left: TRIES, is_good: false };
                self.slots[other] = Slot { entry, by, failure: None, ..self.slots[other].clone() };
                self.newest = other;
                Ok(())
            }
            SystemOrder::Disarm => {
                self.newest = self.running;
                self.slots[other] =
                    Slot { entry: Entry::Absent, by: By::Config, ..self.slots[other].clone() };
                Ok(())
            }
            SystemOrder::Reboot { .. } => {
                self.restarts = true;
                Ok(())
            }
            SystemOrder::RaiseFloor { .. } | SystemOrder::TakeKeys(_) => Ok(()),
            SystemOrder::StopFetch | SystemOrder::Bless => unreachable!("no order of a machine"),
        };
        vec![SystemEvent::Slots(self.slots()), SystemEvent::Done(done)]
    }

    /// An order in a few words.
    #[must_use]
    pub fn shown(order: &SystemOrder) -> String {
        match order {
            SystemOrder::Fetch { wanted, .. } => format!("fetch {}", name_of(Some(wanted.digest))),
            SystemOrder::StopFetch => "stop fetching".into(),
            SystemOrder::Write { wanted } => format!("write {}", name_of(Some(wanted.digest))),
            SystemOrder::Arm { digest, by, demands_contact, .. } => {
                let by = if *by == By::Revert { ", to go back" } else { "" };
                let demand = if *demands_contact { ", with contact" } else { "" };
                format!("arm {}{by}{demand}", name_of(Some(*digest)))
            }
            SystemOrder::Disarm => "disarm".into(),
            SystemOrder::Reboot { why } => format!("reboot: {why}"),
            SystemOrder::Bless => "bless".into(),
            SystemOrder::RaiseFloor { digest } => format!("raise the floor to {}", name_of(Some(*digest))),
            SystemOrder::TakeKeys(_) => "take keys".into(),
        }
    }

    /// The boot loader's list in a few words.
    #[must_use]
    pub fn list(&self) -> String {
        let order = [self.newest, 1 - self.newest];
        let shown = order.iter().map(|slot| {
            let name = name_of(self.slots[*slot].digest);
            match self.slots[*slot].entry {
                Entry::Absent => format!("({name})"),
                Entry::Uncounted => name,
                Entry::Counted { left, is_good: true } => format!("{name}+{left} good"),
                Entry::Counted { left, is_good: false } => format!("{name}+{left}"),
            }
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}
