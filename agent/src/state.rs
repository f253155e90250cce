//! `kedge state open`, for a disk image, before systemd starts: opens the state partition on `/var`, and
//! shows this device's own files.
//!
//! Performs the decisions of `kedge_core::state_partition`, one after the other. Always holds: it ends, and
//! nothing in it keeps the system from starting; failures are in the kernel's log.

use crate::output::CommandError;
use kedge_core::state_partition::{Act, Checked, Opening, Outcome};
use kedge_platform::Files;
use kedge_platform::linux::Roots;
use kedge_platform::linux::state::LinuxState;
use kedge_platform::state::{Check, StateBoard};
use std::fmt::Display;
use std::path::Path;

const MACHINE_ID: &str = "machine-id";
/// The id and a newline; a longer file is not an id.
const MACHINE_ID_BYTES: usize = 4096;
/// Most leftovers removed of a write that a power cut ended: there is one file.
const SWEPT: usize = 1000;

/// Opens the state partition.
///
/// # Errors
/// Nothing could be mounted on `/var`, not even memory.
pub fn open() -> Result<(), CommandError> {
    match open_on(&LinuxState::new(&Roots::default())) {
        true => Ok(()),
        false => Err(CommandError::new("no state partition, and no memory in its place")),
    }
}

/// Opens it by calls of this board; false if not even memory could be mounted.
fn open_on<B: StateBoard>(board: &B) -> bool {
    let mut opening = Opening::new(board.device().map(|device| device.display().to_string()));
    let mut is_there = true;
    while let Some(act) = opening.next() {
        let is_memory = act == Act::UseMemory;
        let outcome = perform(board, act);
        is_there &= !is_memory || outcome == Outcome::Is(true);
        opening.done(outcome);
    }
    is_there
}

fn perform<B: StateBoard>(board: &B, act: Act) -> Outcome {
    let done = |what: &str, result: std::io::Result<()>| Outcome::Is(worked(board, what, result).is_some());
    match act {
        Act::Say(text) => {
            board.say(&text);
            Outcome::Is(true)
        }
        Act::Pause(time) => {
            board.pause(time);
            Outcome::Is(true)
        }
        Act::Look => Outcome::Is(board.has_file_system()),
        Act::Correct => checked(board.correct()),
        Act::Repair => checked(board.repair(None)),
        Act::RepairFrom(copy) => checked(board.repair(Some((copy.block, copy.block_bytes)))),
        Act::Mount => done("mount the state partition", board.mount(true)),
        Act::MountToRead => done("mount the state partition for reading", board.mount(false)),
        Act::Measure => Outcome::Bytes(worked(board, "measure the state partition", board.bytes())),
        Act::Read { at, bytes } => done(&format!("read {bytes} bytes at {at}"), board.read(at, bytes)),
        Act::MeasureBehind => Outcome::Bytes(worked(board, "measure the disk", board.bytes_behind())),
        Act::Grow => done("enlarge the state partition", board.grow()),
        Act::Make => done("make a file system", board.make()),
        Act::UseMemory => done("mount memory on /var", board.use_memory()),
        Act::MakeDirectories => done("make the directories of /var", board.make_directories()),
        Act::ShowOwnFiles => done("show /etc/kedge", board.show_own_files()),
        Act::ReadMachineId => {
            let files = board.own();
            // `/var` has just been mounted: nobody else writes there yet
            files.sweep_root(SWEPT);
            let found = files.read(Path::new(MACHINE_ID), MACHINE_ID_BYTES).ok();
            Outcome::Text(found.map(|content| String::from_utf8_lossy(&content).into_owned()))
        }
        Act::DrawUuid => Outcome::Text(worked(board, "draw a UUID", board.uuid())),
        Act::WriteMachineId(text) => {
            let written = board.own().write_durably(Path::new(MACHINE_ID), text.as_bytes());
            Outcome::Is(
                worked(board, "write the machine id", written.map_err(|error| crate::errors::chain(&error)))
                    .is_some(),
            )
        }
        Act::ShowMachineId => done("show the machine id", board.show_machine_id()),
    }
}

fn worked<B: StateBoard, T, E: Display>(board: &B, what: &str, result: Result<T, E>) -> Option<T> {
    result.map_err(|error| board.say(&format!("cannot {what}: {error}"))).ok()
}

fn checked(check: Check) -> Outcome {
    Outcome::Checked(check.map_or(Checked::Ended, |(code, printed)| Checked::Code(code, printed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_platform::fake::{FakeDisk, FakeState, Loss, Medium, Torn, Var};

    const SEEDS: u64 = 16;
    const ID: &[u8] = b"0123456789abcdef0123456789abcdef\n";
    const FIRST_COPY: u64 = 8192 << 10;

    fn board(medium: Medium) -> FakeState {
        let board = FakeState::new(medium);
        board.content().put("machine-id", ID);
        board.content().put("kedge/kubeconfig", b"precious");
        board
    }

    fn is_kept(board: &FakeState) -> bool {
        board.content().holds("kedge/kubeconfig", b"precious")
    }

    /// Partitions, the calls that open them, the file system on `/var` then, and whether its content is the
    /// old one.
    const ROWS: [(Medium, &str, Var, bool); 15] = [
        (Medium::WHOLE, "look correct mount", Var::Disk, true),
        (Medium { damage: 1, ..Medium::WHOLE }, "look correct mount", Var::Disk, true),
        (Medium { damage: 2, ..Medium::WHOLE }, "look correct repair mount", Var::Disk, true),
        (
            Medium { damage: 3, ..Medium::WHOLE },
            "look correct repair mount mount-to-read read read read make mount",
            Var::Disk,
            false,
        ),
        (
            Medium { damage: 3, reads_when_damaged: true, ..Medium::WHOLE },
            "look correct repair mount mount-to-read",
            Var::DiskToRead,
            true,
        ),
        (
            Medium { is_read_only: true, ..Medium::WHOLE },
            "look correct mount repair mount mount-to-read",
            Var::DiskToRead,
            true,
        ),
        (Medium { has_superblock: false, ..Medium::WHOLE }, "look copy correct mount", Var::Disk, true),
        (
            Medium { has_superblock: false, damage: 2, ..Medium::WHOLE },
            "look copy correct mount",
            Var::Disk,
            true,
        ),
        (Medium::NEW, "look copy copy grow read read read make mount", Var::Disk, false),
        (
            Medium { bytes_behind: 0, bytes: 40 << 20, ..Medium::NEW },
            "look copy copy read read make mount",
            Var::Disk,
            false,
        ),
        (
            // the second try reads it
            Medium { unreadable: Some((FIRST_COPY, 1)), bytes_behind: 0, ..Medium::NEW },
            "look copy copy read read pause read read make mount",
            Var::Disk,
            false,
        ),
        (
            Medium { unreadable: Some((0, u32::MAX)), ..Medium::WHOLE },
            "look copy copy read pause read pause read correct repair mount mount-to-read read pause read pause read memory",
            Var::Memory,
            true,
        ),
        (Medium { is_slow: true, damage: 2, ..Medium::WHOLE }, "look correct mount", Var::Disk, true),
        (
            Medium { is_slow: true, damage: 3, ..Medium::WHOLE },
            "look correct mount mount-to-read memory",
            Var::Memory,
            true,
        ),
        (
            Medium { is_slow: true, has_superblock: false, ..Medium::WHOLE },
            "look copy mount mount-to-read memory",
            Var::Memory,
            true,
        ),
    ];

    #[test]
    fn partition_is_opened_as_its_state_allows() {
        for (medium, calls, var, kept) in ROWS {
            let board = board(medium);
            assert!(open_on(&board));
            assert_eq!(board.trace(), calls, "{medium:?}");
            assert_eq!((board.var(), is_kept(&board)), (var, kept), "{medium:?}");
            let id = board.machine_id().expect("a machine id");
            assert_eq!(id.as_bytes() == ID, kept && var != Var::Memory, "{medium:?}: {id}");
        }
    }

    #[test]
    fn second_boot_finds_what_the_first_left() {
        for (medium, ..) in ROWS {
            let board = board(medium);
            open_on(&board);
            let (var, id) = (board.var(), board.machine_id());
            board.content().cut_power();
            board.content().reboot(Loss::Everything);
            board.reboot();
            open_on(&board);
            assert_eq!(board.var(), var, "{medium:?}");
            assert_eq!(board.machine_id() == id, var != Var::Memory, "{medium:?}");
        }
    }

    #[test]
    fn power_cut_within_an_act_costs_no_state() {
        let mut cuts = 0;
        for (medium, _, var, kept) in ROWS {
            for (act, torn) in
                (0..10).flat_map(|act| [Torn::Nothing, Torn::Half, Torn::Whole].map(|torn| (act, torn)))
            {
                let board = board(medium);
                board.cut_power_after(act, torn);
                open_on(&board);
                if !board.is_off() {
                    break;
                }
                cuts += 1;
                board.reboot();
                open_on(&board);
                let at = format!("{medium:?}: cut at {act}, {torn:?}: {}", board.trace());
                assert_eq!((board.var(), is_kept(&board)), (var, kept), "{at}");
            }
        }
        assert!(cuts >= 25, "only {cuts} cuts");
    }

    /// The boards in a wrong state after a cut at each write of a first boot.
    fn first_boot_cuts(sabotage: fn(&FakeDisk)) -> Vec<String> {
        let mut wrong = Vec::new();
        for (cut, loss) in (0..20).flat_map(|cut| Loss::all(SEEDS).map(move |loss| (cut, loss))) {
            let board = FakeState::new(Medium::WHOLE);
            let disk = board.content();
            sabotage(&disk);
            disk.cut_power_after(cut);
            open_on(&board);
            let shown = board.machine_id();
            disk.cut_power();
            disk.reboot(loss);
            disk.heal();
            board.reboot();
            open_on(&board);
            let next = board.machine_id();
            let is_valid = next.as_ref().is_some_and(|id| id.len() == ID.len());
            if !is_valid || shown.is_some() && shown != next {
                wrong.push(format!("cut {cut}, {loss:?}: {shown:?}, then {next:?}"));
            }
        }
        wrong
    }

    #[test]
    fn machine_id_that_was_shown_survives_a_cut() {
        assert_eq!(first_boot_cuts(|_| {}), [""; 0]);
    }

    #[test]
    fn checker_notices_missing_flushes() {
        assert!(!first_boot_cuts(|disk| disk.ignore_sync(true)).is_empty(), "content without flushes");
        assert!(
            !first_boot_cuts(|disk| disk.ignore_sync_directory(true)).is_empty(),
            "names without flushes"
        );
    }

    #[test]
    fn full_partition_shows_no_machine_id() {
        let board = FakeState::new(Medium::WHOLE);
        board.content().set_space_bytes(Some(0));
        assert!(open_on(&board));
        assert_eq!((board.var(), board.machine_id()), (Var::Disk, None));
    }
}
