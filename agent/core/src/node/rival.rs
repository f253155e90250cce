//! Another machine that reports as this node: a copy of its disk, or of its virtual machine, has the same
//! credential and the same name.
//!
//! Always holds: one replaced report is not enough, because a watch may show the report of this machine's
//! previous boot late. It takes two reports of this process that another boot replaced, or the server's own
//! refusal. Leaves to others: the pace of writing while there is a rival (`heartbeat`).

use crate::report::AnotherMachine;
use kedge_api::{NodeSystemInfo, excerpt};
use std::time::Duration;

/// Pause between writes that answer the other machine's writes, and between reports without news: together
/// the two machines then write less than one node alone. Their Leases are renewed as always.
pub(crate) const PAUSE: Duration = Duration::from_secs(60 * 60);
/// A rival is forgotten if it has not reported for this long.
const FORGOTTEN_AFTER: Duration = PAUSE.saturating_mul(2);
/// So many of this process's reports must have been replaced.
const TIMES: u32 = 2;

#[derive(Debug, Clone, Default)]
pub(crate) struct Rival {
    machine_id: String,
    replaced: u32,
    last: Duration,
    /// The last report of this process was counted as replaced: it has not reported since.
    is_counted: bool,
    /// The server refused a status, because the other machine was there first.
    refused: Option<Refused>,
}

/// Whether the Node has shown the condition about two machines since the refusal.
#[derive(Debug, Clone, Copy)]
struct Refused {
    is_shown: bool,
}

impl Rival {
    /// The Node was read after a report of this process: the machine that it shows, and this machine.
    pub(crate) fn seen(&mut self, now: Duration, theirs: &NodeSystemInfo, ours: &NodeSystemInfo) {
        let is_other = !theirs.boot_id.is_empty()
            && (theirs.boot_id != ours.boot_id || theirs.machine_id != ours.machine_id);
        if is_other && !std::mem::replace(&mut self.is_counted, true) {
            if !self.is_there(now) {
                self.replaced = self.replaced.min(TIMES.saturating_sub(1));
            }
            self.replaced = self.replaced.saturating_add(1);
            self.last = now;
            self.machine_id = excerpt(&theirs.machine_id);
        }
    }

    /// This process has reported.
    pub(crate) fn reported(&mut self) {
        self.is_counted = false;
    }

    /// The server takes no status from this machine, because another one was there first.
    pub(crate) fn refused(&mut self, now: Duration) {
        self.refused = Some(Refused { is_shown: false });
        self.last = now;
    }

    /// The Node was read; `is_shown`: its condition says that two machines renew its Lease. Returns whether a
    /// refusal is over: the condition was shown and is shown no more.
    pub(crate) fn shown(&mut self, is_shown: bool) -> bool {
        let Some(refused) = &mut self.refused else { return false };
        let is_over = refused.is_shown && !is_shown;
        refused.is_shown |= is_shown;
        if is_over {
            *self = Self::default();
        }
        is_over
    }

    pub(crate) fn is_there(&self, now: Duration) -> bool {
        let is_believed = self.replaced >= TIMES || self.refused.is_some();
        is_believed && now < self.last.saturating_add(FORGOTTEN_AFTER)
    }

    pub(crate) fn report(&self, now: Duration) -> Option<AnotherMachine> {
        self.is_there(now).then(|| AnotherMachine {
            machine_id: Some(self.machine_id.clone()).filter(|id| !id.is_empty()),
            seconds_since: now.saturating_sub(self.last).as_secs(),
            is_refused: self.refused.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: &str, boot: &str) -> NodeSystemInfo {
        NodeSystemInfo { machine_id: id.into(), boot_id: boot.into(), ..NodeSystemInfo::default() }
    }

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn machine_is_believed_after_its_second_report() {
        let (ours, theirs) = (machine("a", "1"), machine("b", "2"));
        let mut rival = Rival::default();
        rival.seen(at(1), &theirs, &ours);
        rival.seen(at(2), &theirs, &ours);
        assert!(!rival.is_there(at(2)), "one report that is shown twice");
        rival.reported();
        rival.seen(at(3), &theirs, &ours);
        assert!(rival.is_there(at(3)));
        let report = rival.report(at(5)).expect("it is there");
        assert_eq!((report.machine_id.as_deref(), report.seconds_since), (Some("b"), 2));
        assert!(!rival.is_there(at(3) + FORGOTTEN_AFTER));
    }

    #[test]
    fn own_reports_and_the_previous_boot_are_nobody_else() {
        let ours = machine("a", "2");
        let mut rival = Rival::default();
        for secs in 0..9 {
            rival.seen(at(secs), &ours, &ours);
            rival.seen(at(secs), &machine("", ""), &ours);
            rival.reported();
        }
        // a watch shows the report from before the boot late, once
        rival.seen(at(9), &machine("a", "1"), &ours);
        rival.reported();
        rival.seen(at(10), &ours, &ours);
        assert!(!rival.is_there(at(10)) && rival.report(at(10)).is_none());
    }

    #[test]
    fn refusal_ends_when_the_node_shows_one_machine_again() {
        let mut rival = Rival::default();
        rival.refused(at(1));
        assert!(rival.is_there(at(1)));
        assert!(!rival.shown(false), "the watch is behind");
        assert!(!rival.shown(true) && rival.is_there(at(9)));
        assert!(rival.shown(false) && !rival.is_there(at(9)));
        assert!(!rival.shown(false), "it is over once");
    }
}
