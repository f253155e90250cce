//! Whether a boot of a disk image is good: the demands of its trial, the working parts, and the judgement of
//! the two.
//!
//! Always holds: times run from the beginning of the judgement, not from the boot, so the time of the disk's
//! check does not count against the slot; a demand that this version does not know condemns nothing. A slot
//! that was good before only needs to be readable: systemd and the agent deal with restarts, and a bad
//! configuration must not bring back an older image. Leaves to others: updates (`manifest`, `keys`,
//! `admission`, `chunks`, `list`); reading the facts (`agent/src/slot.rs`); counting tries, and the reset
//! (the boot loader, systemd).

pub mod admission;
pub mod chunks;
pub mod keys;
pub mod list;
pub mod manifest;
pub(crate) mod version;

use crate::sorted::SortedSet;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an agent may take to stay up: its unit's own limits (start 90 s, watchdog 30 s) are well below.
const UP_WITHIN: Duration = Duration::from_secs(240);
/// How long it must have been up as the same process.
const STEADY: Duration = Duration::from_secs(15);
/// Time for the demands: slow links, and a clock that must be set before a certificate is valid, take
/// minutes.
const DEMANDS_WITHIN: Duration = Duration::from_secs(600);
/// A configuration is rolled back after at most 11 crashes (the highest threshold, plus one), and so is the
/// one before it: an agent with more starts than that will not recover by itself.
const MOST_RESTARTS: u32 = 30;
/// How old the last renewal of the Lease may be for contact to count as working: several of the longest
/// intervals between two.
pub const CONTACT_WITHIN: Duration = Duration::from_secs(600);

/// Time for systemd's answer about its units, on a machine that is busy with its start.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// Without one of these the node cannot be reached. A decaying root may lose a single unit: its small files
/// share blocks.
pub const NEEDED_UNITS: [&str; 5] = [
    "kedge.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-udevd.service",
];
/// systemd's states of a unit that it cannot read. `masked` is somebody's wish.
const UNREADABLE: [&str; 3] = ["not-found", "bad-setting", "error"];

/// A function that works in a boot, and that another image easily loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// `/var` is on the disk, and can be written.
    State,
    /// A watchdog of the hardware is active.
    Watchdog,
    /// The API server accepted a renewal of the Lease within [`CONTACT_WITHIN`], from the agent's present
    /// process.
    Contact,
}

impl Work {
    /// The word for it on the kernel's command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Watchdog => "watchdog",
            Self::Contact => "contact",
        }
    }
}

/// The working functions.
pub type Works = SortedSet<Work>;

/// Reads the form of `kedge.demands=`: words with commas between them. Unknown words are left out.
pub fn parse(words: &str) -> Works {
    let all = [Work::State, Work::Watchdog, Work::Contact];
    all.into_iter().filter(|work| words.split(',').any(|word| word == work.word())).collect()
}

/// The demands of a trial: the functions that work in the slot before it, and in any case a `/var` on the
/// disk. In memory it would lose the configuration with each boot, and the faulty image would be kept.
pub fn demands(mut works: Works) -> Works {
    works.insert(Work::State);
    works
}

/// The words, in a fixed order.
pub fn words(works: &Works, between: &str) -> String {
    works.iter().map(|work| work.word()).collect::<Vec<_>>().join(between)
}

/// The slot's settings on the kernel's command line.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// `a` or `b`, by the partition of the root; `None` if it is not one of our images.
    pub slot: Option<&'static str>,
    /// Whether the slot was marked good in an earlier boot.
    pub was_good: bool,
    demands: Works,
    demands_within: Duration,
}

impl CommandLine {
    /// Of several values of a word the last one wins.
    pub fn parse(line: &str) -> Self {
        let value = |name: &str| {
            let mut values =
                line.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            values.next_back().unwrap_or_default()
        };
        Self {
            slot: ["a", "b"]
                .into_iter()
                .find(|slot| value("root").strip_prefix("PARTLABEL=root-") == Some(slot)),
            was_good: value("kedge.slot") == "good",
            demands: parse(value("kedge.demands")),
            demands_within: value("kedge.demands-secs").parse().map_or(DEMANDS_WITHIN, Duration::from_secs),
        }
    }
}

/// How a trial ends; the text is for people.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slot is good.
    Good(String),
    /// This try has failed.
    Bad(String),
}

/// The trial of a slot that has not been marked good.
#[derive(Debug)]
pub struct Trial {
    line: CommandLine,
    /// The agent's process, and since when it is this one.
    process: Option<(u32, Duration)>,
    was_steady: bool,
    missing: Works,
}

impl Trial {
    /// A trial that begins now.
    pub fn new(line: CommandLine) -> Self {
        Self { line, process: None, was_steady: false, missing: Works::new() }
    }

    /// One look, this long after the beginning: the agent's process, if it is active and answers; how often
    /// systemd has restarted it; and the working functions, which are determined only if they matter. `None`
    /// means look again.
    pub fn look(
        &mut self,
        at: Duration,
        process: Option<u32>,
        restarts: u32,
        works: impl FnOnce() -> Works,
    ) -> Option<Verdict> {
        if restarts > MOST_RESTARTS {
            return Some(Verdict::Bad(format!("the agent was started {restarts} times")));
        }
        match (process, self.process) {
            (Some(process), Some((same, since))) if process == same => {
                if at.saturating_sub(since) >= STEADY {
                    self.was_steady = true;
                    let works = works();
                    self.missing = self.line.demands.difference(&works).copied().collect();
                    if self.missing.is_empty() {
                        let text =
                            format!("the agent (process {process}) has been up for {} s", STEADY.as_secs());
                        return Some(Verdict::Good(text));
                    }
                }
            }
            _ => self.process = process.map(|process| (process, at)),
        }
        self.too_late(at)
    }

    fn too_late(&self, at: Duration) -> Option<Verdict> {
        let text = match self.was_steady {
            false if at >= UP_WITHIN => {
                format!(
                    "the agent did not stay up for {} s within {} s",
                    STEADY.as_secs(),
                    UP_WITHIN.as_secs()
                )
            }
            true if at >= self.line.demands_within => format!(
                "after {} s this slot has no {}, which the one before it had",
                at.as_secs(),
                words(&self.missing, " and no ")
            ),
            _ => return None,
        };
        Some(Verdict::Bad(text))
    }
}

/// The boot of a slot that was good before, this long after the beginning: systemd must be able to read
/// [`NEEDED_UNITS`], whose states are these (`LoadState`, by name). There is no other demand: a bad
/// configuration must not bring back an older image. `None` means look again.
pub fn still_good(at: Duration, units: &BTreeMap<String, String>) -> Option<Verdict> {
    let is_lost = |unit: &&str| units.get(*unit).is_some_and(|state| UNREADABLE.contains(&state.as_str()));
    let lost: Vec<_> = NEEDED_UNITS.into_iter().filter(is_lost).collect();
    match () {
        () if !lost.is_empty() => Some(Verdict::Bad(format!(
            "this slot was good before, and systemd can no longer read {}",
            lost.join(" and ")
        ))),
        () if NEEDED_UNITS.iter().all(|unit| units.contains_key(*unit)) => {
            Some(Verdict::Good("this slot was good before, and can still be read".to_owned()))
        }
        () => (at >= ANSWERS_WITHIN)
            .then(|| Verdict::Bad(format!("systemd did not answer within {} s", ANSWERS_WITHIN.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_slot_that_lost_a_unit_is_bad() {
        let judged = |secs, change: &[(&str, &str)]| {
            let mut units: BTreeMap<_, _> =
                NEEDED_UNITS.map(|unit| (unit.to_owned(), "loaded".to_owned())).into();
            for (unit, state) in change {
                match *state {
                    "" => drop(units.remove(*unit)),
                    _ => drop(units.insert((*unit).to_owned(), (*state).to_owned())),
                }
            }
            match still_good(Duration::from_secs(secs), &units) {
                Some(Verdict::Good(text)) => format!("good: {text}"),
                Some(Verdict::Bad(text)) => format!("bad: {text}"),
                None => String::new(),
            }
        };
        let check = |secs, change: &[(&str, &str)], expected: &str| {
            let found = judged(secs, change);
            assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{found}");
        };
        check(0, &[], "good:");
        check(999, &[], "good:");
        check(0, &[("systemd-networkd.service", "masked")], "good:");
        for state in UNREADABLE {
            check(
                0,
                &[("kedge.service", state)],
                "bad: this slot was good before, and systemd can no longer",
            );
        }
        check(0, &[("systemd-udevd.service", ""), ("kedge.service", "error")], "bad: this slot was good");
        // for a while, unknown does not count as lost
        check(119, &[("systemd-udevd.service", "")], "");
        check(120, &[("systemd-udevd.service", "")], "bad: systemd did not answer within 120 s");
    }

    /// The verdict on an agent whose process is replaced at this interval in seconds (0: never up), with
    /// functions that work from a time on: its text, after "good:" or "bad:".
    fn judged(line: &str, restarts_every: u64, works: &str, from_secs: u64) -> String {
        let mut trial = Trial::new(CommandLine::parse(line));
        for secs in 0_u64.. {
            let process = secs.checked_div(restarts_every).map(|number| 1000 + number as u32);
            let restarts = secs.checked_div(restarts_every).unwrap_or_default() as u32;
            let now = if secs >= from_secs { parse(works) } else { Works::new() };
            match trial.look(Duration::from_secs(secs), process, restarts, || now) {
                Some(Verdict::Good(text)) => return format!("good: {secs}: {text}"),
                Some(Verdict::Bad(text)) => return format!("bad: {secs}: {text}"),
                None => assert!(secs < 10_000, "{line}: no verdict"),
            }
        }
        unreachable!("the loop has no end")
    }

    #[track_caller]
    fn check(line: &str, restarts_every: u64, works: &str, from_secs: u64, expected: &str) {
        let found = judged(line, restarts_every, works, from_secs);
        assert!(found.starts_with(expected), "{line}: {found}, expected {expected}");
    }

    #[test]
    fn agent_must_stay_up_as_one_process() {
        check("", 9999, "", 0, "good: 15: the agent (process 1000) has been up for 15 s");
        check("", 0, "", 0, "bad: 240: the agent did not stay up for 15 s within 240 s");
        check("", 14, "", 0, "bad: 240: the agent did not stay up");
        check("", 5, "", 0, "bad: 155: the agent was started 31 times");
    }

    #[test]
    fn what_worked_before_must_work() {
        check("kedge.demands=state,contact", 9999, "state,watchdog,contact", 0, "good: 15:");
        check("kedge.demands=contact", 9999, "contact", 599, "good: 599:");
        check(
            "kedge.demands=state,contact",
            9999,
            "state",
            0,
            "bad: 600: after 600 s this slot has no contact,",
        );
        check(
            "kedge.demands=state,watchdog,contact",
            9999,
            "contact",
            0,
            "bad: 600: after 600 s this slot has no state and no watchdog,",
        );
        // steady once, then restarted every 20 s: still the demands' time, and still judged by the missing
        // functions
        check("kedge.demands=contact", 20, "", 0, "bad: 600: after 600 s this slot has no contact,");
    }

    #[test]
    fn command_line_sets_the_limit() {
        check("kedge.demands=contact kedge.demands-secs=90", 9999, "", 0, "bad: 90:");
        check("kedge.demands=contact kedge.demands-secs=soon", 9999, "", 0, "bad: 600:");
        check("kedge.demands-secs=9 kedge.demands=contact kedge.demands-secs=90", 9999, "", 0, "bad: 90:");
    }

    #[test]
    fn unknown_demand_condemns_nothing() {
        check("kedge.demands=levitation,state", 9999, "state", 0, "good: 15:");
        assert_eq!(words(&parse("contact,levitation,state"), ","), "state,contact");
    }

    #[test]
    fn root_names_the_slot() {
        let slot = |line| CommandLine::parse(line).slot;
        assert_eq!(slot("root=PARTLABEL=root-b quiet"), Some("b"));
        assert_eq!(
            ["", "root=/dev/sda1", "root=PARTLABEL=root-ab", "xroot=PARTLABEL=root-a"].map(slot),
            [None; 4]
        );
    }

    #[test]
    fn slot_that_was_good_is_known_by_the_last_word() {
        assert!(CommandLine::parse("root=PARTLABEL=root-a quiet kedge.slot=good\n").was_good);
        assert!(!CommandLine::parse("kedge.slot=goodish xkedge.slot=good").was_good);
        assert!(!CommandLine::parse("kedge.slot=good kedge.slot=").was_good);
    }
}
