//! How a disk image opens its state partition on `/var`, before systemd starts, so that the whole system may
//! rely on it.
//!
//! Always holds: the system starts, with state in memory if nothing else works, because a node without its
//! state still has its heartbeat. A file system is made only where all places of a superblock are readable,
//! no check was cut short, and neither repair nor a read-only mount found one: an unreadable partition is not
//! an empty one. Whatever was done before a power cut, the next boot begins anew. Leaves to others: reading
//! the disk, and performing (`agent/src/state.rs`); finding the partition and the time limits of programs
//! (`platform`).
//!
//! As in `writes.rs` the sequence is a straight function that runs again from its top over all outcomes so
//! far.

use std::time::Duration;

/// The whole file system is checked at each start, not only one marked as having errors: a damaged bitmap
/// stays unnoticed until the kernel reads it, minutes later, and then refuses all writes. It costs little
/// (51,000 files on 32 GiB: 20 MB read, 4 MB of memory), because e2fsck skips blocks that were never used.
const CHECKED_AT_EACH_START: Act = Act::Correct;
/// Where mkfs puts the first copy of the superblock, by the size of blocks.
const COPIES: [Copy; 2] = [Copy { block: 8193, block_bytes: 1024 }, Copy { block: 32768, block_bytes: 4096 }];
/// Where a superblock or its first copy may be, and how much must be readable before a new file system
/// replaces it.
const PLACES: [u64; 3] = [0, 8192 << 10, 131_072 << 10];
const PLACE_BYTES: u64 = 64 << 10;
/// A disk may need a moment, or fail for one.
const READ_TRIES: u32 = 3;
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Less space than this behind the partition is not worth a new partition table, whose second copy is there,
/// too.
const WORTH_GROWING_BYTES: u64 = 16 << 20;
/// The kernel's log has a limit for a line.
const SHOWN_CHARACTERS: usize = 700;

/// One complete action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// For the kernel's log. No outcome is needed.
    Say(String),
    /// Waits.
    Pause(Duration),
    /// Whether the partition has a superblock: [`Outcome::Is`].
    Look,
    /// Checks all of it and corrects small errors: [`Outcome::Checked`].
    Correct,
    /// Checks all of it and repairs what can be repaired: [`Outcome::Checked`].
    Repair,
    /// The same, beginning with a copy of the superblock: [`Outcome::Checked`].
    RepairFrom(Copy),
    /// Mounts it on `/var`: [`Outcome::Is`].
    Mount,
    /// The same, only for reading: [`Outcome::Is`].
    MountToRead,
    /// Its size: [`Outcome::Bytes`].
    Measure,
    /// Whether this many bytes from there are readable: [`Outcome::Is`].
    Read {
        /// The first one.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// How much of the disk behind it belongs to no partition: [`Outcome::Bytes`].
    MeasureBehind,
    /// Enlarges it to the end of the disk: [`Outcome::Is`].
    Grow,
    /// Makes an empty file system on it: [`Outcome::Is`].
    Make,
    /// Mounts memory on `/var`: [`Outcome::Is`].
    UseMemory,
    /// The directories that packages expect below `/var`; systemd-tmpfiles makes the others. [`Outcome::Is`].
    MakeDirectories,
    /// Shows the device's own files below `/etc`; memory, if `/var` lacks them and cannot be written:
    /// [`Outcome::Is`].
    ShowOwnFiles,
    /// The machine id of this installation, if its file is there: [`Outcome::Text`].
    ReadMachineId,
    /// A new UUID: [`Outcome::Text`].
    DrawUuid,
    /// Writes it durably: [`Outcome::Is`].
    WriteMachineId(String),
    /// Shows it below `/etc`: [`Outcome::Is`].
    ShowMachineId,
}

/// A copy of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// The number of its block.
    pub block: u32,
    /// The size of the file system's blocks.
    pub block_bytes: u32,
}

/// The outcome of an act. The reason of a failure is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Whether it is so, or whether it was done.
    Is(bool),
    /// A check of the file system.
    Checked(Checked),
    /// `None` if unknown.
    Bytes(Option<u64>),
    /// `None` if missing.
    Text(Option<String>),
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// e2fsck's exit code, and what it printed. Below 4 no error is left.
    Code(i32, String),
    /// It was killed: it took too long, or all the memory.
    Ended,
}

impl Checked {
    fn is_well(&self) -> bool {
        matches!(self, Self::Code(0..4, _))
    }
}

/// The opening of the state partition of this device, or of none.
#[derive(Debug)]
pub struct Opening {
    device: Option<String>,
    outcomes: Vec<Outcome>,
}

impl Opening {
    /// An opening that begins now.
    pub fn new(device: Option<String>) -> Self {
        Self { device, outcomes: Vec::new() }
    }

    /// The next act. `None` when the partition is open, and everything after it is done.
    pub fn next(&self) -> Option<Act> {
        let mut steps =
            Steps { outcomes: self.outcomes.iter(), device: self.device.as_deref(), check_was_ended: false };
        steps.run().err()
    }

    /// Takes the outcome of that act.
    pub fn done(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }
}

/// The act that the sequence waits for.
type Suspendable<T> = Result<T, Act>;

struct Steps<'a> {
    outcomes: std::slice::Iter<'a, Outcome>,
    device: Option<&'a str>,
    /// Then there is no second check: a slowly failing disk must not keep the node silent.
    check_was_ended: bool,
}

impl Steps<'_> {
    fn run(&mut self) -> Suspendable<()> {
        if !self.open()? {
            self.say("no usable state partition: state is in memory and lost with this boot")?;
            self.is(Act::UseMemory)?;
        }
        self.is(Act::MakeDirectories)?;
        self.is(Act::ShowOwnFiles)?;
        self.provide_machine_id()
    }

    /// Whether the partition is on `/var`. A disk that refuses writes may still be readable: that is tried
    /// before a new file system.
    fn open(&mut self) -> Suspendable<bool> {
        let Some(device) = self.device else {
            self.say("no partition labelled state")?;
            return Ok(false);
        };
        if !self.is(Act::Look)? {
            // without any copy the partition is new, or was wiped
            if self.take_a_copy()? {
                self.say(&format!("the superblock of {device} was lost, a copy of it was taken"))?;
            } else {
                self.grow()?;
                if self.make("there is no file system")? {
                    return Ok(true);
                }
            }
        }
        if self.repair_and_mount()? {
            return Ok(true);
        }
        if self.is(Act::MountToRead)? {
            self.say(&format!("{device} is read-only"))?;
            return Ok(true);
        }
        self.make("the old file system cannot be repaired")
    }

    /// No program shows beforehand whether there is a copy: dumpe2fs also fails if the group descriptors are
    /// lost, and e2fsck has copies of those.
    fn take_a_copy(&mut self) -> Suspendable<bool> {
        for copy in COPIES {
            if self.check(Act::RepairFrom(copy))?.is_well() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// After correcting small errors, or after repairing everything; unrepaired if a check was cut short.
    fn repair_and_mount(&mut self) -> Suspendable<bool> {
        let checked = self.check(CHECKED_AT_EACH_START)?;
        if let Checked::Code(code @ 1.., printed) = &checked {
            let printed: String =
                printed.trim_end().replace('\n', ";").chars().take(SHOWN_CHARACTERS).collect();
            self.say(&format!("e2fsck, exit code {code}: {printed}"))?;
        }
        if (self.check_was_ended || checked.is_well()) && self.is(Act::Mount)? {
            return Ok(true);
        }
        if self.check_was_ended {
            return Ok(false);
        }
        self.say(&format!("repairing {}", self.device.unwrap_or_default()))?;
        self.check(Act::Repair)?;
        self.is(Act::Mount)
    }

    fn check(&mut self, act: Act) -> Suspendable<Checked> {
        if self.check_was_ended {
            return Ok(Checked::Ended);
        }
        let checked = match self.outcome(act)? {
            Outcome::Checked(checked) => checked.clone(),
            _ => Checked::Ended,
        };
        if checked == Checked::Ended {
            self.check_was_ended = true;
            let device = self.device.unwrap_or_default();
            self.say(&format!(
                "the check of {device} was ended (limit: ten minutes); mounting it unrepaired if possible"
            ))?;
        }
        Ok(checked)
    }

    /// Gives a partition without a file system the space behind it on the disk: an image is smaller than most
    /// disks.
    fn grow(&mut self) -> Suspendable<()> {
        if self.check_was_ended {
            return Ok(());
        }
        let behind = self.bytes(Act::MeasureBehind)?.unwrap_or_default();
        if behind > WORTH_GROWING_BYTES {
            let device = self.device.unwrap_or_default();
            self.say(&format!("{} MiB of the disk are free: enlarging {device}", behind >> 20))?;
            self.is(Act::Grow)?;
        }
        Ok(())
    }

    fn make(&mut self, why: &str) -> Suspendable<bool> {
        let device = self.device.unwrap_or_default();
        if self.check_was_ended {
            self.say(&format!("the check of {device} was ended: it is not replaced"))?;
            return Ok(false);
        }
        if !self.is_readable()? {
            self.say(&format!("{device} cannot be read: it is not replaced"))?;
            return Ok(false);
        }
        self.say(&format!("making an empty file system on {device}: {why}"))?;
        Ok(self.is(Act::Make)? && self.is(Act::Mount)?)
    }

    /// As far as the partition has these places.
    fn is_readable(&mut self) -> Suspendable<bool> {
        let Some(size) = self.bytes(Act::Measure)? else { return Ok(false) };
        for at in PLACES.into_iter().filter(|at| at.saturating_add(PLACE_BYTES) <= size) {
            let mut tries = 1;
            while !self.is(Act::Read { at, bytes: PLACE_BYTES })? {
                if tries == READ_TRIES {
                    return Ok(false);
                }
                tries = tries.saturating_add(1);
                self.outcome(Act::Pause(READ_AGAIN_AFTER))?;
            }
        }
        Ok(true)
    }

    /// Without state the machine id is systemd's own, new at each boot.
    fn provide_machine_id(&mut self) -> Suspendable<()> {
        let found = self.text(Act::ReadMachineId)?;
        let mut is_there = found.as_deref().is_some_and(is_machine_id);
        if !is_there {
            if found.is_some_and(|found| !found.is_empty()) {
                self.say("/var/etc/machine-id was damaged, making a new one")?;
            }
            let new = self.text(Act::DrawUuid)?.unwrap_or_default().trim_end().replace('-', "");
            is_there = is_machine_id(&new) && self.is(Act::WriteMachineId(format!("{new}\n")))?;
        }
        if is_there {
            self.is(Act::ShowMachineId)?;
        }
        Ok(())
    }

    fn say(&mut self, text: &str) -> Suspendable<()> {
        self.outcome(Act::Say(text.to_owned())).map(drop)
    }

    fn is(&mut self, act: Act) -> Suspendable<bool> {
        Ok(*self.outcome(act)? == Outcome::Is(true))
    }

    fn bytes(&mut self, act: Act) -> Suspendable<Option<u64>> {
        Ok(if let Outcome::Bytes(bytes) = self.outcome(act)? { *bytes } else { None })
    }

    fn text(&mut self, act: Act) -> Suspendable<Option<String>> {
        Ok(if let Outcome::Text(text) = self.outcome(act)? { text.clone() } else { None })
    }

    fn outcome(&mut self, act: Act) -> Suspendable<&Outcome> {
        self.outcomes.next().ok_or(act)
    }
}

fn is_machine_id(text: &str) -> bool {
    let id = text.trim_end_matches('\n');
    id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The acts of an opening with these outcomes, except for log lines and those whose outcome is
    /// `Is(true)`.
    fn acts(mut outcome: impl FnMut(&Act) -> Option<Outcome>) -> Vec<Act> {
        let (mut opening, mut acts) = (Opening::new(Some("/dev/vda4".into())), Vec::new());
        while let Some(act) = opening.next() {
            assert!(acts.len() < 100, "it goes on for ever: {acts:?}");
            let default = match act {
                Act::Correct | Act::Repair | Act::RepairFrom(_) => {
                    Outcome::Checked(Checked::Code(0, String::new()))
                }
                Act::Measure => Outcome::Bytes(Some(40 << 20)),
                Act::MeasureBehind => Outcome::Bytes(Some(0)),
                Act::ReadMachineId => Outcome::Text(Some(format!("{}\n", "0123456789abcdef".repeat(2)))),
                Act::DrawUuid => Outcome::Text(Some("00112233-4455-6677-8899-aabbccddeeff\n".into())),
                _ => Outcome::Is(true),
            };
            opening.done(outcome(&act).unwrap_or(default));
            acts.push(act);
        }
        acts
    }

    fn is(act: &Act, acts: &[Act]) -> bool {
        acts.contains(act)
    }

    #[test]
    fn whole_partition_is_checked_and_mounted() {
        let found = acts(|_| None);
        let expected = [Act::Look, Act::Correct, Act::Mount, Act::MakeDirectories, Act::ShowOwnFiles];
        assert_eq!(found[..5], expected);
        assert_eq!(found[5..], [Act::ReadMachineId, Act::ShowMachineId]);
    }

    #[test]
    fn room_behind_the_partition_is_taken_if_it_is_worth_it() {
        let grows = |behind| {
            let found = acts(|act| match act {
                Act::Look => Some(Outcome::Is(false)),
                Act::RepairFrom(_) => Some(Outcome::Checked(Checked::Code(8, String::new()))),
                Act::MeasureBehind => Some(Outcome::Bytes(behind)),
                _ => None,
            });
            assert!(is(&Act::Make, &found));
            is(&Act::Grow, &found)
        };
        assert!(grows(Some((16 << 20) + 1)));
        assert!(!grows(Some(16 << 20)) && !grows(None));
    }

    #[test]
    fn only_places_within_the_partition_are_read() {
        let read = |mib: u64, unreadable: u64| {
            let found = acts(|act| match act {
                Act::Look => Some(Outcome::Is(false)),
                Act::RepairFrom(_) => Some(Outcome::Checked(Checked::Code(8, String::new()))),
                Act::Measure => Some(Outcome::Bytes(Some(mib << 20))),
                Act::Read { at, .. } => Some(Outcome::Is(*at != unreadable)),
                _ => None,
            });
            (found.iter().filter(|act| matches!(act, Act::Read { .. })).count(), is(&Act::Make, &found))
        };
        assert_eq!(read(40, 131_072 << 10), (2, true));
        assert_eq!(read(400, 131_072 << 10), (5, false), "three tries for the last");
        assert_eq!(read(400, 1), (3, true));
    }

    #[test]
    fn invalid_machine_id_is_replaced_once() {
        let written = |found: Option<&str>| {
            let acts = acts(|act| match act {
                Act::ReadMachineId => Some(Outcome::Text(found.map(str::to_owned))),
                _ => None,
            });
            let is_said =
                acts.iter().any(|act| matches!(act, Act::Say(text) if text.contains("was damaged")));
            let id = acts.iter().find_map(|act| match act {
                Act::WriteMachineId(id) => Some(id.clone()),
                _ => None,
            });
            (id, is_said)
        };
        let new = Some("00112233445566778899aabbccddeeff\n".to_owned());
        assert_eq!(written(None), (new.clone(), false));
        assert_eq!(written(Some("")), (new.clone(), false));
        assert_eq!(written(Some("0123456789ABCDEF0123456789ABCDEF\n")), (new.clone(), true));
        assert_eq!(written(Some("uninitialized\n")), (new, true));
        assert_eq!(written(Some("0123456789abcdef0123456789abcdef")), (None, false));
    }

    #[test]
    fn unwritten_machine_id_is_not_shown() {
        let found = acts(|act| match act {
            Act::ReadMachineId => Some(Outcome::Text(None)),
            Act::WriteMachineId(_) => Some(Outcome::Is(false)),
            _ => None,
        });
        assert!(!is(&Act::ShowMachineId, &found));
    }

    #[test]
    fn device_without_a_partition_uses_memory() {
        let (mut opening, mut acts) = (Opening::new(None), Vec::new());
        while let Some(act) = opening.next() {
            opening.done(Outcome::Is(true));
            acts.push(act);
        }
        assert!(is(&Act::UseMemory, &acts) && !is(&Act::Look, &acts));
    }
}
