//! The system that a configuration wants: the disk image of a machine with two slots, or the program alone of
//! a plain installation. Both are handled alike. Without slots, an installed program takes the part of a
//! slot, and the packaged program, which starts the others, that of the boot loader.
//!
//! Owns the decisions of a running agent (`actor`), and the records that outlive a process and a slot
//! (`records`); `starter` decides which program runs on a machine without slots, `programs` shows programs as
//! slots. Always holds: a verdict is reached at a start (`config::start`), from the boot loader's list and the
//! records; a running agent only fetches, writes, arms and waits. One order is under way at a time.
//! Leaves to others: bytes, signatures, the boot loader's list and restarts (the shell).

pub(crate) mod actor;
pub mod programs;
pub mod records;
pub mod starter;

use crate::config::digest::Digest;
use crate::kubelet::wanted::Pinned;

/// The part of this machine that updates replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A disk image with two slots: `kedge.system`.
    #[default]
    System,
    /// The program alone: `kedge.agent`.
    Agent,
}

/// The slots of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    pub kind: Kind,
    /// Board or processor, by which configurations name what they want.
    pub place: String,
    pub running: Slot,
    pub other: Slot,
    /// The running slot has not passed its trial yet.
    pub is_on_trial: bool,
}

/// One slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The digest of its manifest, if the slot is whole.
    pub digest: Option<Digest>,
    pub version: String,
    pub entry: Entry,
    /// The origin of its entry.
    pub by: By,
    /// Why its last trial failed, if its health check recorded it.
    pub failure: Option<Failure>,
}

/// A slot's entry in the boot loader's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    #[default]
    Absent,
    Uncounted,
    Counted {
        /// Tries that are left.
        left: u8,
        /// The slot has passed a trial.
        is_good: bool,
    },
}

impl Entry {
    /// All tries of a trial were used up.
    pub(crate) fn has_failed(self) -> bool {
        self == Self::Counted { left: 0, is_good: false }
    }
}

/// The origin of a slot's trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Config,
    Hand,
    /// The way back from a system that failed later.
    Revert,
}

/// Why a trial failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Only contact was missing: perhaps the network was away.
    pub is_silence: bool,
    /// For people: the reason, and the last lines of that boot.
    pub text: String,
}

/// An order for the shell. Each but `StopFetch` is answered by [`SystemEvent::Done`] or
/// [`SystemEvent::Refused`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemOrder {
    /// Fetch and judge the manifest, then fetch all of its parts that are not here.
    Fetch { wanted: Pinned, version: String, bytes_per_second: Option<u64> },
    /// End a fetch that is under way. The parts that are here stay.
    StopFetch,
    /// Write the other slot, with its entry out of the boot loader's list, and compare. Parts that are not here
    /// any more are fetched.
    Write { wanted: Pinned },
    /// Put an entry for the other slot into the list, as the newest, with three tries.
    Arm {
        digest: Digest,
        by: By,
        /// The payload that wants it.
        config: Option<Digest>,
        /// The trial passes with contact only.
        demands_contact: bool,
    },
    /// Take the other slot's entry from the list, so that the running slot starts again.
    Disarm,
    /// End pods gracefully, and restart the machine.
    Reboot { why: String },
    /// The running program passed its trial: only of a plain installation.
    Bless,
    /// Record the floor and the keys of the running system: on the EFI partition first.
    RaiseFloor { digest: Digest },
    /// Store this list of keys, if it is newer and signed.
    TakeKeys(String),
}

/// The shell's news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemEvent {
    /// The slots have changed: before the `Done` of the order that changed them.
    Slots(Slots),
    /// How much of a fetch is here.
    Progress(u8),
    /// The order was performed, or the reason why not yet.
    Done(Result<(), String>),
    /// The system is refused for good.
    Refused { reason: &'static str, message: String },
}
