//! The judgement of a configuration before it runs (RULES.md, "Rules a to f"): how the previous run ended,
//! how that counts, and rules c, d and f.
//!
//! Pure arithmetic on records: no step here reads or writes. Rules c and d are applied before parsing and
//! again after it, because a payload that kills the parser must not loop, and because its threshold and trial
//! are known only after parsing. Running time decides, never wall time.

use crate::config::records::{BadKind, Complaints, Counts, STARTUPS, Verdict};
use kedge_api::Timestamp;

/// Consecutive cuts, without a save of progress between them, that condemn a config (rule d: cuts): each
/// start costs at least a boot, so this many show that the config keeps the board from running. The bound of
/// Mender's update state machine.
pub(crate) const CUTS: u32 = 28;

/// Rules c, d and f use at least this trial: a push must not be able to switch the protection off with a
/// trial of 0, nor be condemned for a lack of contact before there was time for any.
pub(crate) const SHORTEST_TRIAL_MS: u64 = 60_000;

/// A config may be on trial for at most this many times its trial, if moments in which the node is worse
/// restart it again and again.
const LONGEST_TRIALS: u64 = 6;

/// Upper limit of waits and patience: a config is tried again once a day at least, whatever happened to it.
pub(crate) const LONGEST_WAIT_MS: u64 = 24 * 3600 * 1000;

/// Counted startups that a proven config may have before pods are held, and again before it is set aside: as
/// many as can be remembered, whatever threshold it sets.
pub(super) const PROVEN_THRESHOLD: usize = STARTUPS - 1;

/// How long a fallback must run well before a config with this verdict is tried again; `None` if it is not.
/// After a loss of contact until the node's conditions are the fallback's own, then for the fallback's trial,
/// and twice as long after each further time. After cuts, once, for as long as it takes to save progress:
/// then the power is stable, and a second such verdict is the config's fault.
pub(crate) fn wait_ms(verdict: &Verdict, terms: Terms) -> Option<u64> {
    match (verdict.kind, verdict.tries) {
        (BadKind::Contact, 0 | 1) => Some(terms.unmixed_after_ms().min(LONGEST_WAIT_MS)),
        (BadKind::Contact, tries) => Some(
            doubled_ms(terms, tries.saturating_sub(2)).max(terms.unmixed_after_ms()).min(LONGEST_WAIT_MS),
        ),
        (BadKind::Cuts, 0 | 1) => Some(terms.save_every_ms(0)),
        (BadKind::Proven, tries) => Some(doubled_ms(terms, tries.saturating_sub(1))),
        _ => None,
    }
}

/// How long pods are held: for a trial, and twice as long each time that they were held before.
pub(crate) fn hold_ms(held: u8, terms: Terms) -> u64 {
    doubled_ms(terms, held)
}

/// A trial, doubled this many times, up to a day.
fn doubled_ms(terms: Terms, times: u8) -> u64 {
    let times = 1_u64.checked_shl(u32::from(times)).unwrap_or(u64::MAX);
    terms.settled_after_ms().saturating_mul(times).min(LONGEST_WAIT_MS)
}

/// The same verdict when the config is proven: crashes and cuts only set it aside.
pub(crate) fn against_proven(verdict: Verdict) -> Verdict {
    match verdict.kind {
        BadKind::CrashLoop | BadKind::Cuts => {
            Verdict { kind: BadKind::Proven, tries: verdict.tries.max(1), ..verdict }
        }
        _ => verdict,
    }
}

/// How long a config in its trial may be silent: its trial; a suspected one, longer than the outage that its
/// fallback had.
pub(crate) fn patience_ms(terms: Terms, entry: Option<&Verdict>) -> u64 {
    terms.settled_after_ms().max(entry.map_or(0, |entry| entry.patience_ms))
}

/// The patience with a config that is tried again after its fallback's longest silence.
pub(crate) fn patience_after_ms(terms: Terms, worst_silence_ms: u64) -> u64 {
    terms.settled_after_ms().saturating_add(worst_silence_ms.saturating_mul(2)).min(LONGEST_WAIT_MS)
}

/// The terms of a config's own trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// `configTrialDuration`, ms of running time.
    pub trial_ms: u64,
    /// `crashLoopThreshold`: the number of counted startups that is still tolerated.
    pub threshold: u8,
    /// `evictionPressureTransitionPeriod`: a condition outlasts its cause by this time.
    pub transition_ms: u64,
}

impl Default for Terms {
    fn default() -> Self {
        Self { trial_ms: 600_000, threshold: 10, transition_ms: 300_000 }
    }
}

impl Terms {
    /// From the last time the config was parsed, or else the defaults.
    pub(crate) fn remembered(counts: &Counts) -> Self {
        let default = Self::default();
        Self {
            trial_ms: counts.trial_ms.unwrap_or(default.trial_ms),
            threshold: counts.threshold.unwrap_or(default.threshold),
            transition_ms: default.transition_ms,
        }
    }

    /// The running time after which startups and cuts are forgotten.
    pub(crate) fn settled_after_ms(self) -> u64 {
        self.trial_ms.max(SHORTEST_TRIAL_MS)
    }

    /// The running time after which no condition of the node is left over from the config before.
    pub(crate) fn unmixed_after_ms(self) -> u64 {
        self.settled_after_ms().saturating_add(self.transition_ms)
    }

    /// The running time within which a trial must end; after that the config is suspected, as after a
    /// silence.
    pub(crate) fn trial_ends_within_ms(self) -> u64 {
        self.settled_after_ms().saturating_mul(LONGEST_TRIALS)
    }

    /// How often progress is saved while running: every quarter of the trial, at most every five minutes.
    pub(crate) fn save_every_ms(self, ran_ms: u64) -> u64 {
        let trial = if ran_ms < self.trial_ms { self.trial_ms } else { self.settled_after_ms() };
        (trial / 4).clamp(1, 300_000)
    }
}

/// How a run under the supervisor ended, as `ExecStopPost` recorded it (systemd's words).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exit {
    /// Boot in which it ended.
    pub boot_id: String,
    /// The number of the run in that boot, counted from 1; 0 if not counted.
    pub run: u64,
    /// `$SERVICE_RESULT`: success, exit-code, signal, core-dump, watchdog, oom-kill, timeout, ...
    pub result: String,
    /// `$EXIT_CODE`: exited, killed, dumped.
    pub exit_code: String,
    /// `$EXIT_STATUS`: a number or a signal's name.
    pub exit_status: String,
    /// It had sent READY=1.
    pub was_ready: bool,
    /// A stop had been requested.
    pub stop_asked: bool,
    /// The loops that hung, if the watchdog ended it.
    pub stalled: Vec<String>,
}

/// The name of the disk loop: a hung disk is not the config's fault.
pub const DISK_LOOP: &str = "disk";

/// Evidence of how the previous run ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreviousRun {
    /// The record of its exit, if there is one. It may be of an older run: a run that a power cut ended
    /// leaves no record.
    pub exit: Option<Exit>,
    /// Runs that began in this boot, including the present one; 0 if unknown.
    pub runs: u64,
    /// The hardware watchdog reset the board, and that was not counted yet.
    pub hardware_reset: bool,
    /// The kernel left a panic in pstore, and that was not counted yet.
    pub kernel_panic: bool,
}

/// How the previous run ended, as far as counting needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By our choice or on request: no effect.
    Clean,
    /// Unclean: a counted startup. The text describes the end.
    Counted(String),
    /// The power went: a cut.
    Cut,
}

impl Ended {
    /// How the run that left this record ended (RULES.md, "How the previous run ended").
    pub(crate) fn read(counts: &Counts, boot_id: &str, previous: &PreviousRun) -> Self {
        let Some(open) = counts.open.as_deref() else { return Self::Clean };
        // "fresh evidence": the end of a run before the one that left this record open is irrelevant. Such a
        // record is still there after a cut between the start that made this one and the consumption of the
        // evidence.
        let exit = previous.exit.as_ref().filter(|exit| exit.boot_id == open && !exit.is_before(counts.run));
        match exit {
            Some(exit) => exit.ended(),
            // two empty boot ids need not be the same boot: there may have been a power cut between
            None if open == boot_id && !boot_id.is_empty() => {
                Self::Counted("its end was not recorded".into())
            }
            None if previous.kernel_panic => Self::Counted("the kernel panicked".into()),
            None if previous.hardware_reset => Self::Counted("the hardware watchdog reset the board".into()),
            None => Self::Cut,
        }
    }
}

impl Exit {
    /// Whether it is about an earlier run of the same boot. One without a number may be of any.
    fn is_before(&self, run: u64) -> bool {
        self.run != 0 && self.run < run
    }

    fn ended(&self) -> Ended {
        // A start timeout also asks to stop; but a run that never was ready is the config's fault. For an
        // agent that was ready a timeout can only be that of a stop, even if it hung too deep to record the
        // request.
        let start_timeout = self.result == "timeout" && !self.was_ready;
        let stop_timeout = self.result == "timeout" && self.was_ready;
        if stop_timeout || (self.stop_asked && !start_timeout && self.result != "watchdog") {
            return Ended::Clean;
        }
        // code 0 is an exit that core ordered, even if its record could not be closed
        if self.result == "success" && self.exit_code == "exited" && self.exit_status == "0" {
            return Ended::Clean;
        }
        // while only the disk hung, neither a missed ping nor a late start is the config's fault
        if matches!(self.result.as_str(), "watchdog" | "timeout")
            && !self.stalled.is_empty()
            && self.stalled.iter().all(|name| name == DISK_LOOP)
        {
            return Ended::Cut;
        }
        Ended::Counted(match self.result.as_str() {
            "watchdog" if self.stalled.is_empty() => "the watchdog ended it, no loop is named".into(),
            "watchdog" => format!("the watchdog ended it, stalled: {}", self.stalled.join(", ")),
            "oom-kill" => "the kernel killed it for memory".into(),
            "timeout" => "it was not ready in time".into(),
            "core-dump" => format!("it dumped core on {}", self.exit_status),
            "signal" => format!("killed by signal {}", self.exit_status),
            "exit-code" => format!("exit code {}", self.exit_status),
            other => format!("{other} ({} {})", self.exit_code, self.exit_status),
        })
    }
}

/// The counts of a config, updated with how its run ended.
pub(crate) fn counted(mut counts: Counts, ended: &Ended, wall: Timestamp) -> Counts {
    match ended {
        Ended::Clean => {}
        Ended::Counted(_) => {
            // full means eleven, and eleven always condemns or holds: one more has no effect
            let _ = counts.startups.push(wall);
            // contact made by a run that crashed does not prove that the config runs well
            (counts.ran_ms, counts.contact) = (0, false);
        }
        Ended::Cut => {
            if counts.ran_ms < Terms::remembered(&counts).settled_after_ms() {
                counts.cuts = counts.cuts.saturating_add(1);
            }
        }
    }
    counts
}

/// The same, opened in this boot by the run that begins, the boot's `run`th.
pub(crate) fn opened(counts: Counts, boot_id: &str, run: u64) -> Counts {
    // A clean end whose record could not be closed leaves it in the form in which this start would write it,
    // but with an older run's number. That is not worth a write, perhaps on a full disk: exits older than
    // that run are older than this one, too.
    if counts.open.as_deref() == Some(boot_id) {
        return counts;
    }
    Counts { open: Some(boot_id.to_owned()), run, ..counts }
}

/// The result of rules c and d for the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weighed {
    GoesOn,
    /// It is proven, and not certainly at fault, because it ran well once: it continues with pods held, and
    /// with empty counts.
    HoldsPods,
    Bad(BadKind),
}

/// Rules c and d; `hold` if pods are held.
pub(crate) fn by_counts(counts: &Counts, hold: bool, terms: Terms, is_proven: bool) -> Weighed {
    let most = if is_proven { PROVEN_THRESHOLD } else { usize::from(terms.threshold) };
    let is_crash_loop = counts.startups.len() > most;
    let is_cut = counts.ran_ms < terms.settled_after_ms() && counts.cuts > CUTS;
    match (is_crash_loop, is_cut, is_proven) {
        (false, false, _) => Weighed::GoesOn,
        (true, _, false) => Weighed::Bad(BadKind::CrashLoop),
        (false, true, false) => Weighed::Bad(BadKind::Cuts),
        // it crash-loops although pods are held: it is set aside
        (true, _, true) if hold => Weighed::Bad(BadKind::Proven),
        (_, _, true) => Weighed::HoldsPods,
    }
}

/// Without startups and cuts.
pub(crate) fn emptied(counts: Counts) -> Counts {
    Counts { startups: heapless::Vec::new(), cuts: 0, ..counts }
}

/// The role of a config, which the rules need besides the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Role {
    /// It is assigned; a last-known-good had contact in its own trial.
    pub assigned: bool,
    /// It was downloaded, so there was a network.
    pub downloaded: bool,
    /// It is also the last-known-good.
    pub last_known_good: bool,
    /// Its payload is that of last-known-good or of the one before it.
    pub proven: bool,
}

/// rule f: contact. Silent for a whole trial of running, or on trial for six times that without an end; a
/// running agent then exits, and the start gives the verdict.
pub(crate) fn lost_contact(counts: &Counts, patience_ms: u64, terms: Terms, role: Role) -> bool {
    let is_suspected = counts.silent_ms >= patience_ms || has_no_end(counts, terms);
    role.assigned && role.downloaded && !role.last_known_good && is_suspected
}

/// Whether moments in which the node was worse than its baseline have restarted the trial for too long.
pub(crate) fn has_no_end(counts: &Counts, terms: Terms) -> bool {
    let ran_ms = counts.lost_ms.saturating_add(counts.ran_ms);
    counts.lost_ms > 0 && counts.ran_ms < terms.settled_after_ms() && ran_ms >= terms.trial_ends_within_ms()
}

/// The verdict of this kind, with the reason for the condition. `before` is the earlier entry.
pub(crate) fn verdict(
    kind: BadKind,
    what: &str,
    uid: &str,
    wall: Timestamp,
    before: Option<&Verdict>,
) -> Verdict {
    let before_of_kind = before.filter(|entry| entry.kind == kind).map_or(0, |entry| entry.tries);
    let waits = matches!(kind, BadKind::Contact | BadKind::Cuts | BadKind::Proven);
    Verdict {
        time: wall,
        reason: reason(kind, false, what, uid),
        kind,
        detail: String::new(),
        source: String::new(),
        tries: if waits { before_of_kind.saturating_add(1) } else { 0 },
        retry: false,
        patience_ms: before.map_or(0, |entry| entry.patience_ms),
        order: 0,
        payload: None,
    }
}

/// The same if the node's state got worse under the config, which does not count as contact: names the new
/// conditions.
pub(crate) fn blaming(verdict: Verdict, worse: Complaints, what: &str, uid: &str) -> Verdict {
    let names = worse.names().join(", ");
    let detail = match names.is_empty() {
        true => "conditions of the node that were not there before it came and went".to_owned(),
        false => format!("{names} began under it"),
    };
    Verdict { reason: reason(verdict.kind, true, what, uid), detail, ..verdict }
}

/// The condition's reason for a verdict; `what` is `current` or `last-known-good`. `is_worse`: the node's
/// state was worse, so its contact did not count.
pub(crate) fn reason(kind: BadKind, is_worse: bool, what: &str, uid: &str) -> String {
    match kind {
        BadKind::Contact if is_worse => {
            format!("{what} failed trial period due to worse conditions of the node (UID: {uid})")
        }
        BadKind::Parse => format!("failed to parse {what} (UID: {uid})"),
        BadKind::Validate => format!("failed to validate {what} (UID: {uid})"),
        BadKind::CrashLoop => format!("{what} failed trial period due to crash loop (UID: {uid})"),
        BadKind::Cuts => format!("{what} failed trial period due to power cuts (UID: {uid})"),
        BadKind::Contact => {
            format!("{what} failed trial period due to lost contact with the API server (UID: {uid})")
        }
        BadKind::Proven => {
            format!("{what} crashes although it is proven, and is set aside for a while (UID: {uid})")
        }
        BadKind::Unknown => format!("earlier verdicts on {what} were lost (UID: {uid})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "this-boot";

    fn exit(result: &str) -> Exit {
        Exit { boot_id: BOOT.into(), result: result.into(), was_ready: true, ..Exit::default() }
    }

    fn after(exit: Exit) -> PreviousRun {
        PreviousRun { exit: Some(exit), ..PreviousRun::default() }
    }

    fn left_open(open: Option<&str>, run: u64) -> Counts {
        Counts { open: open.map(str::to_owned), run, ..Counts::default() }
    }

    #[track_caller]
    fn check(open: Option<&str>, previous: PreviousRun, expect: &str) {
        let got = match Ended::read(&left_open(open, 0), BOOT, &previous) {
            Ended::Clean => "none".to_owned(),
            Ended::Cut => "cut".to_owned(),
            Ended::Counted(how) => format!("counted: {how}"),
        };
        assert_eq!(got, expect, "{open:?} {previous:?}");
    }

    #[test]
    fn closed_record_counts_nothing() {
        check(None, PreviousRun::default(), "none");
        check(None, after(exit("watchdog")), "none");
        check(
            None,
            PreviousRun { hardware_reset: true, kernel_panic: true, ..PreviousRun::default() },
            "none",
        );
    }

    #[test]
    fn open_record_of_this_boot_is_a_counted_startup() {
        let this = Some(BOOT);
        check(this, PreviousRun::default(), "counted: its end was not recorded");
        let status = |result: &str, status: &str| Exit { exit_status: status.into(), ..exit(result) };
        check(this, after(status("exit-code", "101")), "counted: exit code 101");
        check(this, after(status("signal", "SEGV")), "counted: killed by signal SEGV");
        check(this, after(status("core-dump", "ABRT")), "counted: it dumped core on ABRT");
        check(this, after(exit("oom-kill")), "counted: the kernel killed it for memory");
        check(
            this,
            after(Exit { was_ready: false, stop_asked: true, ..exit("timeout") }),
            "counted: it was not ready in time",
        );
        check(this, after(exit("watchdog")), "counted: the watchdog ended it, no loop is named");
        let stalled = |names: &[&str]| Exit {
            stalled: names.iter().map(|n| n.to_string()).collect(),
            ..exit("watchdog")
        };
        check(this, after(stalled(&["renew"])), "counted: the watchdog ended it, stalled: renew");
        check(
            this,
            after(stalled(&["disk", "renew"])),
            "counted: the watchdog ended it, stalled: disk, renew",
        );
        // systemd reports some signals as success, too
        check(
            this,
            after(Exit { exit_code: "killed".into(), exit_status: "PIPE".into(), ..exit("success") }),
            "counted: success (killed PIPE)",
        );
        let other_boot = Exit { boot_id: "before".into(), ..exit("signal") };
        check(this, after(other_boot), "counted: its end was not recorded");
    }

    #[test]
    fn requested_stop_is_clean_even_if_killed() {
        // it hung too deep to record the request
        check(Some(BOOT), after(exit("timeout")), "none");
        for result in ["success", "timeout", "signal", "exit-code"] {
            check(Some(BOOT), after(Exit { stop_asked: true, ..exit(result) }), "none");
        }
        // the stop was requested before it was ready, and did not time out
        check(Some(BOOT), after(Exit { stop_asked: true, was_ready: false, ..exit("signal") }), "none");
    }

    #[test]
    fn exit_0_is_clean_even_if_its_record_is_open() {
        let ordered = Exit { exit_code: "exited".into(), exit_status: "0".into(), ..exit("success") };
        check(Some(BOOT), after(ordered.clone()), "none");
        check(Some("boot-before"), after(Exit { boot_id: "boot-before".into(), ..ordered.clone() }), "none");
        // the watchdog was quicker than the exit
        let late = Exit { result: "watchdog".into(), ..ordered };
        check(Some(BOOT), after(late), "counted: the watchdog ended it, no loop is named");
    }

    #[test]
    fn watchdog_kill_for_a_stalled_disk_is_a_cut() {
        check(Some(BOOT), after(Exit { stalled: vec!["disk".into()], ..exit("watchdog") }), "cut");
    }

    #[test]
    fn open_record_of_another_boot_is_a_cut_without_evidence() {
        let before = Some("boot-before");
        check(before, PreviousRun::default(), "cut");
        check(
            before,
            PreviousRun { hardware_reset: true, ..PreviousRun::default() },
            "counted: the hardware watchdog reset the board",
        );
        check(
            before,
            PreviousRun { kernel_panic: true, ..PreviousRun::default() },
            "counted: the kernel panicked",
        );
        let named = Exit { boot_id: "boot-before".into(), exit_status: "KILL".into(), ..exit("signal") };
        check(before, after(named.clone()), "counted: killed by signal KILL");
        check(before, after(Exit { stop_asked: true, ..named }), "none");
        check(before, after(exit("signal")), "cut");
    }

    #[test]
    fn two_boots_without_an_id_are_not_one_boot() {
        let open = left_open(Some(""), 0);
        assert_eq!(Ended::read(&open, "", &PreviousRun::default()), Ended::Cut);
        let crashed = Exit { boot_id: String::new(), ..exit("signal") };
        assert!(matches!(Ended::read(&open, "", &after(crashed)), Ended::Counted(_)));
    }

    #[test]
    fn counted_startup_resets_running_time_and_a_cut_does_not() {
        let wall = Timestamp::from_micros(9);
        let ran = Counts { ran_ms: 300_000, cuts: 3, contact: true, ..Counts::default() };
        let crashed = counted(ran.clone(), &Ended::Counted("x".into()), wall);
        assert_eq!((crashed.ran_ms, crashed.startups.len(), crashed.cuts, crashed.contact), (0, 1, 3, false));
        let cut = counted(ran.clone(), &Ended::Cut, wall);
        assert_eq!((cut.ran_ms, cut.startups.len(), cut.cuts, cut.contact), (300_000, 0, 4, true));
        assert_eq!(counted(ran.clone(), &Ended::Clean, wall), ran);
        assert_eq!(opened(ran.clone(), BOOT, 7), Counts { open: Some(BOOT.into()), run: 7, ..ran });
    }

    #[test]
    fn exit_of_an_older_run_is_ignored() {
        let before = "boot-before";
        let end =
            |run| after(Exit { boot_id: before.into(), run, exit_status: "101".into(), ..exit("exit-code") });
        let counted = Ended::Counted("exit code 101".into());
        for (open, ended, expect) in [
            (3, 2, Ended::Cut),
            (3, 3, counted.clone()),
            // it ended before a later run did, and only the later run's end is known
            (3, 4, counted.clone()),
            // by an agent that did not count runs, or in a run directory that kept nothing
            (3, 0, counted.clone()),
            (0, 2, counted.clone()),
        ] {
            let open = left_open(Some(before), open);
            assert_eq!(Ended::read(&open, BOOT, &end(ended)), expect, "{} {ended}", open.run);
        }
        let older = after(Exit { run: 2, ..exit("success") });
        let ended = Ended::read(&left_open(Some(BOOT), 3), BOOT, &older);
        assert_eq!(ended, Ended::Counted("its end was not recorded".into()));
    }

    #[test]
    fn record_left_open_by_a_clean_exit_needs_no_write() {
        let open = left_open(Some(BOOT), 3);
        assert_eq!(opened(open.clone(), BOOT, 4), open);
        let other_boot = opened(open.clone(), "next-boot", 1);
        assert_eq!(other_boot, Counts { open: Some("next-boot".into()), run: 1, ..open });
    }

    #[test]
    fn cut_counts_only_in_the_trial() {
        let cuts = |counts| counted(counts, &Ended::Cut, Timestamp::default()).cuts;
        assert_eq!(cuts(Counts { ran_ms: 600_000, ..Counts::default() }), 0);
        let short = Counts { ran_ms: 20_000, trial_ms: Some(0), ..Counts::default() };
        assert_eq!(cuts(short), 1, "a trial of 0 protects for a minute");
    }

    fn with(startups: usize, cuts: u32, ran_ms: u64) -> Counts {
        let stamps = (0..startups).map(|n| Timestamp::from_micros(n as i64));
        Counts { startups: stamps.collect(), cuts, ran_ms, ..Counts::default() }
    }

    #[test]
    fn rule_c_needs_one_startup_more_than_the_threshold() {
        for threshold in 0..=10 {
            let terms = Terms { trial_ms: 0, threshold, ..Terms::default() };
            let weighed = |more| by_counts(&with(usize::from(threshold) + more, 0, 0), false, terms, false);
            assert_eq!([0, 1].map(weighed), [Weighed::GoesOn, Weighed::Bad(BadKind::CrashLoop)]);
        }
    }

    #[test]
    fn rule_d_needs_more_than_28_cuts_within_the_trial() {
        let terms = Terms::default();
        let short = Terms { trial_ms: 0, ..terms };
        let weighed = |cuts, ran_ms, terms| by_counts(&with(0, cuts, ran_ms), false, terms, false);
        assert_eq!(weighed(28, 0, terms), Weighed::GoesOn);
        assert_eq!(weighed(29, 599_999, terms), Weighed::Bad(BadKind::Cuts));
        assert_eq!(weighed(29, 600_000, terms), Weighed::GoesOn);
        assert_eq!(weighed(29, 30_000, short), Weighed::Bad(BadKind::Cuts));
    }

    #[test]
    fn rule_f_needs_an_assigned_and_downloaded_config() {
        let terms = Terms::default();
        let role = Role { assigned: true, downloaded: true, last_known_good: false, proven: false };
        let silent = silent_for(600_000);
        let patience = patience_ms(terms, None);
        assert!(lost_contact(&silent, patience, terms, role));
        assert!(!lost_contact(&silent_for(599_999), patience, terms, role));
        assert!(!lost_contact(&silent, patience, terms, Role { assigned: false, ..role }));
        assert!(!lost_contact(&silent, patience, terms, Role { downloaded: false, ..role }));
        assert!(!lost_contact(&silent, patience, terms, Role { last_known_good: true, ..role }));
        let patience = patience_ms(Terms { trial_ms: 0, ..terms }, None);
        assert!(!lost_contact(&silent_for(59_999), patience, terms, role), "a minute for the first contact");
        assert!(lost_contact(&silent_for(60_000), patience, terms, role));
    }

    fn silent_for(silent_ms: u64) -> Counts {
        Counts { silent_ms, ..with(0, 0, silent_ms) }
    }

    #[test]
    fn trial_that_worse_moments_begin_anew_ends_after_six() {
        let terms = Terms::default();
        let role = Role { assigned: true, downloaded: true, last_known_good: false, proven: false };
        let check = |lost_secs: u64, ran_secs: u64, expect: bool| {
            let counts = Counts { lost_ms: lost_secs * 1000, ran_ms: ran_secs * 1000, ..Counts::default() };
            assert_eq!(lost_contact(&counts, 600_000, terms, role), expect, "{lost_secs} {ran_secs}");
        };
        check(3600, 0, true);
        check(3001, 599, true);
        check(3000, 599, false);
        // the trial is over, and waits for a renewal
        check(3600, 600, false);
        check(0, 5000, false);
        let given = verdict(BadKind::Contact, "current", "u", Timestamp::default(), None);
        let blamed = blaming(given, Complaints::of([true, false, false, true]), "current", "u");
        assert_eq!(blamed.reason, "current failed trial period due to worse conditions of the node (UID: u)");
        assert_eq!(blamed.detail, "MemoryPressure, NotReady began under it");
    }

    #[test]
    fn each_silent_trial_doubles_the_wait_up_to_a_day() {
        let wall = Timestamp::default();
        let first = verdict(BadKind::Contact, "current", "u", wall, None);
        let second = verdict(BadKind::Contact, "current", "u", wall, Some(&first));
        assert_eq!((first.tries, second.tries, second.retry), (1, 2, false));
        let minutes = waits_of(BadKind::Contact, [1, 2, 3, 4, 9, 10, 255]);
        // a trial, and the time by which conditions may outlast their cause
        assert_eq!(minutes, [15, 15, 20, 40, 1280, 1440, 1440].map(Some));
        assert_eq!(waits_of(BadKind::Proven, [0, 1, 2, 3, 255]), [10, 10, 20, 40, 1440].map(Some));
        let seconds = waits_of(BadKind::Cuts, [0, 1, 2, 3]);
        assert_eq!(seconds, [Some(2), Some(2), None, None], "a save is due after 150 s");
        for kind in [BadKind::Parse, BadKind::Validate, BadKind::CrashLoop, BadKind::Unknown] {
            assert_eq!(waits_of(kind, [1, 2]), [None, None], "{kind:?} is final");
        }
    }

    fn waits_of<const N: usize>(kind: BadKind, tries: [u8; N]) -> [Option<u64>; N] {
        tries.map(|tries| {
            let given = Verdict { tries, ..verdict(kind, "current", "u", Timestamp::default(), None) };
            wait_ms(&given, Terms::default()).map(|ms| ms / 60_000)
        })
    }

    #[test]
    fn proven_config_is_held_before_it_is_set_aside() {
        let terms = Terms { threshold: 0, ..Terms::default() };
        let weighed = |startups, cuts, hold| by_counts(&with(startups, cuts, 7), hold, terms, true);
        assert_eq!(weighed(10, 28, false), Weighed::GoesOn);
        assert_eq!(weighed(11, 5, false), Weighed::HoldsPods);
        assert_eq!(weighed(11, 0, true), Weighed::Bad(BadKind::Proven));
        for hold in [false, true] {
            assert_eq!(weighed(1, 29, hold), Weighed::HoldsPods, "cuts set nothing aside");
        }
        assert_eq!(emptied(with(11, 29, 7)), with(0, 0, 7));
        assert_eq!([0, 1, 2, 255].map(|held| hold_ms(held, terms) / 60_000), [10, 20, 40, 1440]);
    }

    #[test]
    fn crash_verdict_against_a_proven_config_only_waits() {
        let of = |kind| against_proven(verdict(kind, "current", "u", Timestamp::default(), None));
        let kinds = [BadKind::CrashLoop, BadKind::Cuts, BadKind::Proven, BadKind::Validate, BadKind::Contact];
        let found = kinds.map(|kind| (of(kind).kind, of(kind).tries));
        let proven = (BadKind::Proven, 1);
        assert_eq!(found, [proven, proven, proven, (BadKind::Validate, 0), (BadKind::Contact, 1)]);
    }

    #[test]
    fn patience_outlasts_the_outage_of_the_fallback() {
        let terms = Terms::default();
        let minutes = |silence: u64| patience_after_ms(terms, silence * 60_000) / 60_000;
        assert_eq!([0, 5, 60, 1000, u64::MAX / 60_000].map(minutes), [10, 20, 130, 1440, 1440]);
        let entry = Verdict {
            patience_ms: 1_200_000,
            ..verdict(BadKind::Contact, "current", "u", Timestamp::default(), None)
        };
        assert_eq!(patience_ms(terms, Some(&entry)), 1_200_000);
        assert_eq!(patience_ms(Terms { trial_ms: 3_600_000, ..terms }, Some(&entry)), 3_600_000);
    }

    #[test]
    fn progress_is_saved_every_quarter_up_to_five_minutes() {
        let every = |trial_ms, ran_ms| Terms { trial_ms, ..Terms::default() }.save_every_ms(ran_ms);
        assert_eq!(every(600_000, 0), 150_000);
        assert_eq!(every(86_400_000, 0), 300_000);
        assert_eq!(every(12_000, 0), 3_000);
        assert_eq!(every(12_000, 12_000), 15_000, "past its own trial, towards the shortest one");
        assert_eq!(every(0, 0), 15_000);
    }
}
