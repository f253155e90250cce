//! The stories, and the choice of those in the ordinary run.
//!
//! Always holds: a story starts on a node that has joined and is Ready, with nothing assigned, and with a hub
//! without traces of other stories; it passes only if everything that it waited for happened.

mod chance;
mod config;
mod cost;
mod ends;
mod join;
mod platforms;
mod pods;
mod power;
mod pressure;
mod slot_cuts;
mod slots;
mod surroundings;
mod system_cost;
mod systems;

use crate::error::HilError;
use crate::stage::Stage;

/// A requirement of a story on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// The agent that supports fault injection.
    Faults,
    /// The same, and two slots.
    FaultsAndSlots,
    /// A hardware watchdog.
    Watchdog,
    /// No hardware watchdog.
    NoWatchdog,
    /// A boot loader that counts tries, and therefore two slots.
    Slots,
    /// A program for each processor.
    Programs,
    /// Two slots, and an update whose agent does not start.
    BrokenUpdate,
}

/// One story.
pub(crate) struct Story {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// A description for people.
    pub(crate) about: &'static str,
    /// Part of the ordinary run.
    pub(crate) is_core: bool,
    /// The requirement on the board.
    pub(crate) needs: Needs,
    /// The story itself.
    pub(crate) run: fn(&mut Stage<'_>) -> Result<(), HilError>,
}

const fn story(
    name: &'static str,
    about: &'static str,
    is_core: bool,
    needs: Needs,
    run: fn(&mut Stage<'_>) -> Result<(), HilError>,
) -> Story {
    Story { name, about, is_core, needs, run }
}

/// All of them, in the order in which they run.
pub(crate) const STORIES: &[Story] = &[
    story(
        "config",
        "a pushed config is adopted, promoted, survives a reboot without a network, and is taken back",
        false,
        Needs::Nothing,
        config::lives,
    ),
    story(
        "crash-loop",
        "a config under which the agent crashes is rolled back at the threshold",
        true,
        Needs::Faults,
        config::crashes,
    ),
    story(
        "killed",
        "an agent that is killed again and again under a config: rolled back",
        true,
        Needs::Nothing,
        config::killed,
    ),
    story(
        "hang",
        "an agent that is stopped is killed by systemd's watchdog, returns, and that counts",
        true,
        Needs::Nothing,
        config::stopped,
    ),
    story(
        "stalled-loop",
        "one loop of the agent stalls: killed, counted, named in describe node",
        false,
        Needs::Faults,
        config::stalled,
    ),
    story("ends", "every way in which a run can end counts as documented", true, Needs::Nothing, ends::rows),
    story(
        "rare-ends",
        "an exit code, a refused start, a start and a stop that take too long count as documented",
        false,
        Needs::Faults,
        ends::rare_rows,
    ),
    story(
        "dead-kernel",
        "a dead kernel is reset by the hardware watchdog and comes back with its config",
        true,
        Needs::Watchdog,
        ends::dead_kernel,
    ),
    story(
        "no-watchdog",
        "a board whose hardware has no watchdog: shown in the Node, and a hung systemd is reset by the kernel's own timer",
        false,
        Needs::NoWatchdog,
        ends::dead_systemd,
    ),
    story(
        "update",
        "an update into the other slot is tried, refuses another one meanwhile, and is kept",
        true,
        Needs::Slots,
        slots::good,
    ),
    story(
        "system",
        "a pushed config brings a signed system from a registry: tried, kept; a deaf one: back by itself, and not tried again",
        false,
        Needs::Slots,
        systems::lives,
    ),
    story(
        "system-crash",
        "a pushed system whose agent does not start: three tries, back by itself, and never again",
        false,
        Needs::Slots,
        systems::crashes,
    ),
    story(
        "system-hang",
        "a pushed system that hangs before its agent: three tries, back by itself, and not tried again",
        false,
        Needs::Slots,
        systems::hangs,
    ),
    story(
        "system-forged",
        "pushed systems with a wrong signature, without one, below the floor, of another board, and shortened: refused, nothing is restarted",
        false,
        Needs::Slots,
        systems::forged,
    ),
    story(
        "system-cuts",
        "a pushed system whose download is interrupted twelve times, by power, cable, agent and registry: fetched once, and kept",
        false,
        Needs::Slots,
        systems::interrupted,
    ),
    story(
        "system-pair",
        "a config with a field of the next agent waits for its system; one that fails later takes its system back; the floor outlives /var",
        false,
        Needs::FaultsAndSlots,
        systems::pairs,
    ),
    story(
        "system-cost",
        "a pushed system over 1 Mbit/s, by chunks and whole: bytes, seconds, writes to the disk, and the agent's memory",
        false,
        Needs::Slots,
        system_cost::over_a_line,
    ),
    story(
        "update-cuts",
        "the power goes at every flush of an update and of its blessing: what the boot loader would start is whole",
        false,
        Needs::Slots,
        slot_cuts::cuts,
    ),
    story(
        "bad-update",
        "an update whose agent does not start: back on the old slot by itself",
        false,
        Needs::BrokenUpdate,
        slots::bad,
    ),
    story(
        "deaf-update",
        "an update under which the node has no network any more: back on the old slot by itself",
        false,
        Needs::Slots,
        slots::deaf,
    ),
    story(
        "rotten-slot",
        "a good slot stays although the EFI partition is read-only; it rots: after five starts the other one runs; both: shown and tried again",
        false,
        Needs::Slots,
        slots::rotten,
    ),
    story(
        "unreadable-slot",
        "the initramfs of a good slot cannot be read: the kernel panics, and after five starts the other slot runs",
        false,
        Needs::Slots,
        slots::unreadable,
    ),
    story(
        "no-files",
        "no file of a good slot's root can be read, systemd included: the kernel panics, and after five starts the other slot runs",
        false,
        Needs::Slots,
        slots::no_files,
    ),
    story(
        "no-system",
        "systemd cannot start a good slot and would wait for a person: reset, and after five starts the other slot runs",
        false,
        Needs::Slots,
        slots::no_system,
    ),
    story(
        "no-kernel",
        "the boot loader cannot load the kernel of a good slot: it resets, and after five starts the other slot runs",
        false,
        Needs::Slots,
        slots::no_kernel,
    ),
    story(
        "refused-update",
        "kedge slot update refuses other data, another board's update, a damaged and a shortened one: boot entries stay",
        false,
        Needs::Slots,
        slots::refused,
    ),
    story(
        "pods",
        "a pod from an image on the disk: limits, an agent that is killed, a power cut without a network, a reset",
        true,
        Needs::Nothing,
        pods::live,
    ),
    story(
        "pods-update",
        "a pod runs again after an update into the other slot",
        false,
        Needs::Slots,
        pods::updated,
    ),
    story(
        "platforms",
        "one image for amd64, arm64 and armv7 from a registry: a DaemonSet is rolled out and updated, the board runs its own programs",
        false,
        Needs::Programs,
        platforms::one_image,
    ),
    story(
        "pods-pressure",
        "a pod takes more memory than the board can spare: it alone is evicted, the node says so and is tainted, and that ends",
        false,
        Needs::Nothing,
        pressure::memory,
    ),
    story(
        "pods-cost",
        "ten pods: memory of the agent and its shims, which write nothing to the disk, and limits of processor and processes that the kernel keeps",
        false,
        Needs::Nothing,
        cost::ten_pods,
    ),
    story(
        "power-cuts",
        "the power goes at random moments of adoption, promotion and roll back",
        false,
        Needs::Nothing,
        power::cuts,
    ),
    story(
        "first-boot-cuts",
        "the power goes at random moments of the first boot",
        false,
        Needs::Nothing,
        power::first_boot_cuts,
    ),
    story(
        "no-clock",
        "the board's clock starts in 1970, then is stepped both ways",
        false,
        Needs::Nothing,
        surroundings::clock,
    ),
    story(
        "no-network",
        "a pushed config survives a power cut; the cable is out at boot, comes, and flaps; the config is taken back",
        true,
        Needs::Nothing,
        surroundings::network,
    ),
    story("flapping", "the cable is bad for minutes", false, Needs::Nothing, surroundings::flapping),
    story(
        "long-outage",
        "no network for so long that every timer has run, in the middle of a trial",
        false,
        Needs::Nothing,
        surroundings::long_outage,
    ),
    story("address", "the node gets another address", false, Needs::Nothing, surroundings::address),
    story(
        "own-network",
        "a file on the EFI partition gives the node a fixed address: it has that, and no other, from then on",
        false,
        Needs::Slots,
        surroundings::own_network,
    ),
    story(
        "late-efi",
        "udev finds the EFI partition after the boot has stopped waiting: mounted then, identity and network of it are taken",
        false,
        Needs::Slots,
        surroundings::late_efi,
    ),
    story("no-hub", "the hub goes and comes back", false, Needs::Nothing, surroundings::hub),
    story("moved-hub", "the hub moves to another address", false, Needs::Nothing, surroundings::moved_hub),
    story(
        "state-full",
        "the state partition is full, then has room again",
        false,
        Needs::Nothing,
        surroundings::state_full,
    ),
    story(
        "state-read-only",
        "the state partition turns read-only",
        false,
        Needs::Nothing,
        surroundings::state_read_only,
    ),
    story(
        "state-wiped",
        "the state partition is wiped: the node comes back with the identity handed over at boot",
        true,
        Needs::Nothing,
        surroundings::state_wiped,
    ),
    story(
        "state-corrupted",
        "the state partition is corrupted: its superblock, its bitmaps, the identity, random blocks",
        false,
        Needs::Nothing,
        surroundings::state_corrupted,
    ),
    story(
        "state-displaced",
        "a file or a link lies in place of the state directory, or of one below it: set aside, and the node is Ready",
        false,
        Needs::Nothing,
        surroundings::state_displaced,
    ),
    story(
        "join",
        "a token on the EFI partition: joins, exchanges its certificate, and returns after its end, but not from an older disk by itself",
        true,
        Needs::Slots,
        join::lives,
    ),
    story(
        "sticks",
        "sticks with the disk's labels and an identity are plugged in: nothing of them is used",
        false,
        Needs::Slots,
        surroundings::sticks,
    ),
    story(
        "small",
        "the board's small memory is enough for the system and the agent",
        false,
        Needs::Nothing,
        surroundings::small,
    ),
];
