//! The update of a running agent: fetches the wanted system, writes it, arms it, and restarts the machine.
//!
//! Level-triggered: each turn compares the records, the slots and the wish, and makes one step: a record or
//! an order. Always holds: a step is recorded on the disk before it is ordered; the other slot is not written
//! during a trial, nor while it is the way back. Only a process with contact arms a system. Leaves to others:
//! verdicts (`config::start`), performing (the shell).

use super::records::{Again, Fault, MOST_ATTEMPTS, State, WantedRecord, Wish};
use super::{By, Entry, Kind, Slots, SystemEvent, SystemOrder};
use crate::answer::{Level, Now};
use crate::config::digest::Digest;
use crate::config::running::{Configuration, Notice};
use crate::config::system::Systems;
use crate::event::Action;
use crate::kubelet::Config;
use crate::report::ConditionReport;
use crate::turn::Turn;
use kedge_api::MaintenanceWindows;
use serde_json::json;
use std::time::Duration;

/// Tries of a slot that was armed and not started.
const TRIES: u8 = 3;
/// How long an outage may last that begins with a fall back.
const OUTAGE_MS: u64 = 600_000;
/// The trial of a program alone: steady for this long with contact; given up after this long without.
const STEADY_MS: u64 = 15_000;
const SILENT_MS: u64 = 600_000;
/// Between two writes of how long a suspected system has waited.
const WAITED_MS: u64 = 900_000;
/// Pause after an order that failed: the first one, and the longest.
const PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
const WEEK_SECS: i64 = 7 * 86_400;
/// 1970 began on a Thursday, a week begins on a Monday.
const MONDAY_SECS: i64 = 3 * 86_400;

/// The next thing to do.
enum Next {
    Rest,
    Order(SystemOrder),
    /// Write these records; and before them that last-known-good's system is the running one.
    Write(Box<Systems>, bool),
    /// End this run, for the starter of programs.
    End(String),
}

/// Status, reason and message of `SystemOK`.
pub(crate) type SystemOk = (&'static str, &'static str, String);

#[derive(Clone, Default)]
pub(crate) struct SystemActor {
    flight: Option<SystemOrder>,
    /// The fetch under way is to end.
    is_stopping: bool,
    /// A step was performed, and its record is not written yet.
    done: Option<(Digest, State)>,
    /// A system was refused, and its record is not written yet.
    refused: Option<(Digest, String)>,
    /// No order begins before this.
    not_before: Duration,
    failures: u32,
    /// Why the last order failed.
    problem: Option<String>,
    percent: u8,
    has_taken_keys: bool,
    has_raised_floor: bool,
    /// The restart was ordered.
    is_ending: bool,
    /// Since when running time with contact was not taken off the waits.
    waited: Option<Duration>,
    /// For Events about the Node.
    pub(crate) notices: Vec<Notice>,
}

impl SystemActor {
    /// Takes the shell's news.
    pub(crate) fn take(&mut self, event: SystemEvent, config: &mut Configuration, turn: &mut Turn) {
        match event {
            SystemEvent::Slots(slots) => config.slots_changed(slots),
            // each other text is a write to the API server
            SystemEvent::Progress(percent) => self.percent = percent.saturating_sub(percent % 5),
            SystemEvent::Done(Ok(())) => self.performed(config),
            SystemEvent::Done(Err(why)) => {
                if let Some(order) = self.flight.take() {
                    self.is_stopping = false;
                    self.failures = self.failures.saturating_add(1).min(16);
                    let pause = PAUSE.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
                    self.not_before = turn.now.mono.saturating_add(pause);
                    if self.problem.as_ref() != Some(&why) {
                        turn.log(Level::Warn, format!("system: {}: {why}; trying again", name(&order)));
                    }
                    self.problem = Some(why);
                }
            }
            SystemEvent::Refused { reason, message } => {
                self.is_stopping = false;
                if let Some(SystemOrder::Fetch { wanted, .. } | SystemOrder::Write { wanted }) =
                    self.flight.take()
                {
                    self.refused = Some((wanted.digest, format!("{reason}: {message}")));
                }
            }
        }
    }

    fn performed(&mut self, config: &Configuration) {
        (self.failures, self.problem, self.is_stopping) = (0, None, false);
        let version = config.asked().wish.as_ref().map(|wish| wish.version.clone()).unwrap_or_default();
        match self.flight.take() {
            Some(SystemOrder::Fetch { wanted, .. }) => {
                self.percent = 100;
                self.done = Some((wanted.digest, State::Held));
                self.publish("SystemFetched", format!("system {version} is here"));
            }
            Some(SystemOrder::Write { wanted }) => self.done = Some((wanted.digest, State::Written)),
            Some(SystemOrder::Arm { .. }) => {
                self.publish("SystemArmed", "the other slot starts next".to_owned());
            }
            Some(SystemOrder::Reboot { .. }) => self.is_ending = true,
            Some(SystemOrder::RaiseFloor { digest }) => {
                self.has_raised_floor = true;
                self.done = Some((digest, State::Promoted));
            }
            Some(SystemOrder::TakeKeys(_)) => self.has_taken_keys = true,
            Some(SystemOrder::Disarm | SystemOrder::Bless | SystemOrder::StopFetch) | None => {}
        }
    }

    fn publish(&mut self, reason: &'static str, message: String) {
        self.notices.push(Notice { warning: false, reason, message });
    }

    /// Makes the step that is due.
    pub(crate) fn decide(&mut self, config: &mut Configuration, turn: &mut Turn) {
        let Some(slots) = config.slots() else { return };
        if config.is_writing_systems() || self.is_ending {
            return;
        }
        let next = self.next(slots, config, turn.now);
        match next {
            Next::Rest => {}
            Next::Write(systems, notes_way_back) => config.write_systems(*systems, notes_way_back),
            Next::End(why) => {
                self.is_ending = true;
                config.stop(&why);
            }
            Next::Order(SystemOrder::StopFetch) => {
                // the answer to the fetch comes all the same
                if !std::mem::replace(&mut self.is_stopping, true) {
                    turn.act(Action::System(Box::new(SystemOrder::StopFetch)));
                }
            }
            Next::Order(order) => {
                if self.flight.is_none() && turn.now.mono >= self.not_before {
                    self.percent = 0;
                    self.flight = Some(order.clone());
                    turn.act(Action::System(Box::new(order)));
                }
            }
        }
        let progress = self.progress(config);
        config.system_progress(progress);
    }

    fn next(&mut self, slots: &Slots, config: &Configuration, now: Now) -> Next {
        if let Some(next) = self.note(slots, config, now) {
            return next;
        }
        if slots.is_on_trial {
            return match slots.kind {
                // the boot's health check decides
                Kind::System => Next::Rest,
                Kind::Agent if config.is_heard(now) && config.run_ms(now) >= STEADY_MS => {
                    Next::Order(SystemOrder::Bless)
                }
                Kind::Agent if !config.is_heard(now) && config.run_ms(now) >= SILENT_MS => {
                    Next::End("no contact in the trial of this program, ending it".into())
                }
                Kind::Agent => Next::Rest,
            };
        }
        let wanted = config.systems().wanted.as_ref();
        let (runs, back) = (slots.running.digest, config.way_back());
        if let Some(wanted) = wanted.filter(|wanted| wanted.state == State::Reverting)
            && runs != Some(wanted.digest())
        {
            return go_back(slots, wanted);
        }
        if back.is_some() && back == runs && !self.has_raised_floor && config.has_proven_system(now) {
            let is_noted =
                wanted.is_some_and(|wanted| Some(wanted.digest()) == runs && wanted.state == State::Promoted);
            if let Some(digest) = runs.filter(|_| !is_noted) {
                return Next::Order(SystemOrder::RaiseFloor { digest });
            }
        }
        let wish = config.wish().filter(|wish| Some(wish.pinned.digest) != runs);
        let digest = wish.map(|wish| wish.pinned.digest);
        if let Some(SystemOrder::Fetch { wanted, .. }) = &self.flight {
            let is_open = wish.is_none_or(|wish| !wish.in_window) || is_open(&config.effective().config, now);
            let goes_on = Some(wanted.digest) == digest && is_open;
            return if goes_on { Next::Rest } else { Next::Order(SystemOrder::StopFetch) };
        }
        let other = &slots.other;
        let is_armed = matches!(other.entry, Entry::Counted { left: 1.., is_good: false });
        if config.knows_wish() && other.digest != digest && other.by == By::Config {
            if is_armed {
                return Next::Order(SystemOrder::Disarm);
            }
            if wanted.is_some_and(|wanted| wanted.state == State::Armed && Some(wanted.digest()) != digest) {
                let systems = Systems { wanted: None, ..config.systems().clone() };
                return Next::Write(Box::new(systems), false);
            }
        }
        // also where the system that runs is the wanted one
        if let Some(Wish { keys, .. }) = config.wish().filter(|wish| !wish.keys.is_empty())
            && !self.has_taken_keys
        {
            return Next::Order(SystemOrder::TakeKeys(keys.clone()));
        }
        let Some(wish) = wish else { return Next::Rest };
        self.update(slots, config, wish, now)
    }

    /// Records that are due before anything else.
    fn note(&mut self, slots: &Slots, config: &Configuration, now: Now) -> Option<Next> {
        let mut systems = config.systems().clone();
        let runs = slots.running.digest;
        let write = |systems: Systems| Some(Next::Write(Box::new(systems), false));
        if let Some((digest, why)) = self.refused.take() {
            let version = config.wish().map(|wish| wish.version.clone()).unwrap_or_default();
            systems.bad.mark(digest, &version, Fault::Failed, Again::Never, &why);
            systems.wanted = None;
            return write(systems);
        }
        if let Some((digest, state)) = self.done.take() {
            if state == State::Promoted {
                systems.bad.remove(digest);
            }
            let wanted = systems.wanted.as_mut().filter(|wanted| wanted.digest() == digest);
            if let Some(wanted) = wanted.filter(|wanted| wanted.state != state) {
                wanted.state = state;
                if state == State::Promoted {
                    let version = slots.running.version.as_str();
                    self.publish("SystemPromoted", format!("system {version} is last-known-good now"));
                }
            }
            if systems != *config.systems() {
                return write(systems);
            }
        }
        if slots.is_on_trial {
            return None;
        }
        if let Some(wanted) = systems.wanted.as_mut().filter(|wanted| Some(wanted.digest()) == runs)
            && matches!(wanted.state, State::Written | State::Armed | State::Reverting)
        {
            wanted.state = State::Good;
            return write(systems);
        }
        if systems.bad.is_undecided(runs) {
            let is_late = config.ran_ms(now) >= config.trial_ms().max(OUTAGE_MS);
            if config.is_heard(now) || is_late {
                systems.bad.decide(runs, !config.is_heard(now));
                return write(systems);
            }
        }
        let since = self.waited.replace(now.mono).filter(|_| config.is_heard(now));
        let left = systems.bad.shortest_wait_ms()?;
        let ms = since.map_or(0, |since| now.mono.saturating_sub(since).as_millis());
        let ms = u64::try_from(ms).unwrap_or(u64::MAX);
        if ms < left.min(WAITED_MS) {
            self.waited = since.or(self.waited);
            return None;
        }
        systems.bad.waited(runs, ms);
        write(systems)
    }

    /// The next step towards the wanted system.
    fn update(&self, slots: &Slots, config: &Configuration, wish: &Wish, now: Now) -> Next {
        let (systems, other, digest) = (config.systems(), &slots.other, wish.pinned.digest);
        let wanted = systems.wanted.as_ref().filter(|wanted| wanted.digest() == digest);
        let is_heard = config.is_heard(now);
        let is_open = is_open(&config.effective().config, now);
        let write = |wanted: WantedRecord| {
            Next::Write(Box::new(Systems { wanted: Some(wanted), bad: systems.bad.clone() }), false)
        };
        let to = |wanted: &WantedRecord, state| write(WantedRecord { state, ..wanted.clone() });
        let Some(wanted) = wanted.filter(|wanted| {
            !matches!(wanted.state, State::Good | State::Promoted | State::Lost | State::Reverting)
        }) else {
            let attempts = wanted.map_or(0, |wanted| wanted.attempts);
            return write(WantedRecord::new(wish.clone(), config.assigned_payload(), attempts));
        };
        let is_whole = other.digest == Some(digest);
        match wanted.state {
            // it is tried again
            State::Fetching | State::Held if is_whole && other.entry.has_failed() => {
                Next::Order(SystemOrder::Disarm)
            }
            // in Held: written before a power cut, and not recorded
            State::Fetching | State::Held if is_whole => to(wanted, State::Written),
            State::Fetching if !is_heard || wish.in_window && !is_open => Next::Rest,
            State::Fetching => Next::Order(SystemOrder::Fetch {
                wanted: wish.pinned.clone(),
                version: wish.version.clone(),
                bytes_per_second: wish.bytes_per_second,
            }),
            State::Held => {
                let back = config.way_back();
                // the other slot is the way back until the system that runs is promoted
                let is_way_back = back.is_some() && other.digest == back && slots.running.digest != back;
                let write = SystemOrder::Write { wanted: wish.pinned.clone() };
                if is_way_back { Next::Rest } else { Next::Order(write) }
            }
            State::Written if !is_whole => to(wanted, State::Fetching),
            // lost since it was armed
            State::Armed if !is_whole => Next::Write(
                Box::new(counted(systems, wanted, State::Fetching, "it is not there when it starts")),
                false,
            ),
            _ if !is_heard => Next::Rest,
            State::Written => {
                let armed =
                    WantedRecord { state: State::Armed, boot: config.boot_id().to_owned(), ..wanted.clone() };
                let systems = Systems { wanted: Some(armed), bad: systems.bad.clone() };
                Next::Write(Box::new(systems), config.way_back().is_none())
            }
            _ => self.armed(slots, config, wanted, is_open),
        }
    }

    fn armed(&self, slots: &Slots, config: &Configuration, wanted: &WantedRecord, is_open: bool) -> Next {
        let digest = wanted.digest();
        let arm = SystemOrder::Arm { digest, by: By::Config, config: wanted.payload, demands_contact: true };
        match slots.other.entry {
            Entry::Absent | Entry::Uncounted | Entry::Counted { left: 0, is_good: true } => Next::Order(arm),
            // the next start finds it
            Entry::Counted { left: 0, .. } => Next::Rest,
            // of a program it only shows that its start could not be counted
            Entry::Counted { left: TRIES, .. }
                if slots.kind == Kind::System && wanted.boot != config.boot_id() =>
            {
                let boot = config.boot_id().to_owned();
                let wanted = WantedRecord { boot, ..wanted.clone() };
                let why = "the boot loader does not start it";
                Next::Write(Box::new(counted(config.systems(), &wanted, State::Armed, why)), false)
            }
            Entry::Counted { .. } if wanted.wish.is_manual || !is_open => Next::Rest,
            // the starter starts no program whose start it cannot count
            Entry::Counted { .. } if slots.kind == Kind::Agent && config.disk_refuses() => Next::Rest,
            Entry::Counted { .. } => restart(slots.kind, format!("into system {}", wanted.wish.version)),
        }
    }

    /// For `ConfigOK`, while a config waits for its system.
    fn progress(&self, config: &Configuration) -> Option<String> {
        let (_, _, message) = self.system_ok(config)?;
        Some(message)
    }

    /// The same for `kedge status`.
    pub(crate) fn report(&self, config: &Configuration) -> Option<ConditionReport> {
        let (status, reason, message) = self.system_ok(config)?;
        Some(ConditionReport { status, reason: reason.to_owned(), message })
    }

    /// The value of the Node's annotation `kedge.dev/system`; `None` while the Node has no `SystemOK`.
    pub(crate) fn annotation(&self, config: &Configuration) -> Option<String> {
        let (_, state, _) = self.system_ok(config)?;
        let text = |digest: Option<Digest>| digest.map(|digest| format!("sha256:{digest}"));
        let wants = config.asked().wish.as_ref().map(|wish| wish.pinned.digest);
        let runs = config.slots().and_then(|slots| slots.running.digest);
        let (runs, wants, good) = (text(runs), text(wants), text(config.way_back()));
        Some(json!({"runs": runs, "wants": wants, "lastKnownGood": good, "state": state}).to_string())
    }

    /// `SystemOK`; `None` on a machine without slots, and where nothing was ever wanted.
    pub(crate) fn system_ok(&self, config: &Configuration) -> Option<SystemOk> {
        let slots = config.slots()?;
        let (systems, runs) = (config.systems(), slots.running.digest);
        let wish = config.asked().wish.as_ref();
        let is_used = wish.is_some() || config.asked().is_elsewhere || systems.wanted.is_some();
        if !is_used {
            return None;
        }
        let version = wish.map(|wish| wish.version.as_str()).unwrap_or_default();
        if slots.is_on_trial {
            let version = &slots.running.version;
            return Some(("Unknown", "SlotOnTrial", format!("system {version} is on trial")));
        }
        let wanted = systems.wanted.as_ref();
        if wanted.is_some_and(|w| {
            w.state == State::Reverting && slots.other.digest != Some(w.digest()) && runs != Some(w.digest())
        }) {
            let message = "the system of last-known-good is not in the other slot any more".to_owned();
            return Some(("False", "CannotGoBack", message));
        }
        // such a config is not read for what it wants
        if config.assigned_payload().is_some_and(|payload| systems.bad.has_payload(payload)) {
            return Some(("False", "BadSystem", "the system failed here with its configuration".to_owned()));
        }
        let Some(wish) = wish else {
            return Some(match config.asked().is_elsewhere {
                true => ("True", "NotForThisBoard", "no system is wanted for this board".to_owned()),
                false => ("True", "NotAsked", "no system is wanted".to_owned()),
            });
        };
        let digest = wish.pinned.digest;
        if let Some(bad) = systems.bad.against(digest) {
            return Some(("False", "BadSystem", format!("system {version} failed here: {}", bad.reason)));
        }
        if runs == Some(digest) {
            return Some(("True", "Wanted", format!("system {version} runs, as wanted")));
        }
        let wanted = wanted.filter(|wanted| wanted.digest() == digest);
        let (reason, mut message) = match wanted.map_or(State::Fetching, |wanted| wanted.state) {
            State::Held | State::Written => ("Held", "downloaded".to_owned()),
            State::Armed if wish.is_manual || config.effective().config.maintenance_windows.is_empty() => {
                ("WaitsForRestart", "it starts with the next restart".to_owned())
            }
            State::Armed => ("WaitsForWindow", "it starts with the next restart, in a window".to_owned()),
            _ => ("Fetching", format!("downloading {} %", self.percent)),
        };
        if let Some(problem) = &self.problem {
            message.push_str(&format!("; {problem}"));
        }
        Some(("Unknown", reason, message))
    }
}

/// The records after one more attempt that came to nothing; the last one makes the system bad.
fn counted(systems: &Systems, wanted: &WantedRecord, state: State, why: &str) -> Systems {
    let mut systems = systems.clone();
    let attempts = wanted.attempts.saturating_add(1);
    if attempts >= MOST_ATTEMPTS {
        systems.bad.mark(wanted.digest(), &wanted.wish.version, Fault::Failed, Again::Never, why);
    } else {
        systems.wanted = Some(WantedRecord { state, attempts, ..wanted.clone() });
    }
    systems
}

/// Arms the other slot, which has the system of last-known-good, and restarts.
fn go_back(slots: &Slots, wanted: &WantedRecord) -> Next {
    let digest = wanted.digest();
    if slots.other.digest != Some(digest) {
        return Next::Rest;
    }
    match slots.other.entry {
        Entry::Counted { left: 1.., .. } if slots.other.by == By::Revert => {
            restart(slots.kind, format!("back into system {}", slots.other.version))
        }
        _ => Next::Order(SystemOrder::Arm { digest, by: By::Revert, config: None, demands_contact: false }),
    }
}

fn restart(kind: Kind, into: String) -> Next {
    match kind {
        Kind::System => Next::Order(SystemOrder::Reboot { why: format!("restarting {into}") }),
        Kind::Agent => Next::End(format!("restarting {into}")),
    }
}

/// Whether a window of `kedge.maintenanceWindows` is open, or the list is empty.
fn is_open(config: &Config, now: Now) -> bool {
    if config.maintenance_windows.is_empty() {
        return true;
    }
    let secs = now.wall.micros().div_euclid(1_000_000);
    let second = u32::try_from(secs.saturating_add(MONDAY_SECS).rem_euclid(WEEK_SECS)).unwrap_or(0);
    let windows = MaintenanceWindows::parse(&config.maintenance_windows.join(","));
    windows.is_some_and(|windows| windows.at(second).is_open)
}

fn name(order: &SystemOrder) -> &'static str {
    match order {
        SystemOrder::Fetch { .. } | SystemOrder::StopFetch => "fetch",
        SystemOrder::Write { .. } => "write",
        SystemOrder::Arm { .. } => "arm",
        SystemOrder::Disarm => "disarm",
        SystemOrder::Reboot { .. } => "restart",
        SystemOrder::Bless => "bless",
        SystemOrder::RaiseFloor { .. } => "floor",
        SystemOrder::TakeKeys(_) => "keys",
    }
}
