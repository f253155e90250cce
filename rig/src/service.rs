//! What systemd would do with `kedge.service`, as a state machine: events in, acts out.
//!
//! Owns the rules of `Type=notify`, `WatchdogSec=`, `Restart=always`, the start, stop and abort time limits, and how the end of a
//! process becomes `$SERVICE_RESULT`, `$EXIT_CODE` and `$EXIT_STATUS` (systemd.exec(5), "Environment Variables Set or Propagated").
//! Always holds: at most one process is alive; the first failure of a run names its result; every run that ended is recorded
//! before the next one starts.
//! It reads no clock and starts no process: [`crate::babysitter`] does. Not followed: `oom-kill` (needs the service's cgroup),
//! start limits and `Restart=` other than always or no (the unit does not use them).

use std::time::{Duration, Instant};

/// The time limits of a unit file, by their names there.
#[derive(Debug, Clone)]
pub struct Limits {
    /// `TimeoutStartSec=`: from the start of the process to `READY=1`.
    pub start: Duration,
    /// `TimeoutStopSec=`: from SIGTERM (or `STOPPING=1`) to SIGKILL.
    pub stop: Duration,
    /// `TimeoutAbortSec=`: from the watchdog's SIGABRT to SIGKILL.
    pub abort: Duration,
    /// `WatchdogSec=`: the longest silence between two `WATCHDOG=1` once ready. `None`: no watchdog.
    pub watchdog: Option<Duration>,
    /// `RestartSec=`: the pause before a restart.
    pub restart_after: Duration,
}

/// How a process ended, as `waitid` tells it. Signals by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// A signal ended it and the kernel wrote a core dump.
    Dumped(i32),
}

impl Exit {
    /// `$EXIT_CODE`.
    pub fn code(self) -> &'static str {
        match self {
            Exit::Exited(_) => "exited",
            Exit::Killed(_) => "killed",
            Exit::Dumped(_) => "dumped",
        }
    }

    /// `$EXIT_STATUS`: the exit code, or the signal's name without `SIG`.
    pub fn status(self) -> String {
        match self {
            Exit::Exited(code) => code.to_string(),
            Exit::Killed(signal) | Exit::Dumped(signal) => signal_name(signal),
        }
    }

    fn result(self) -> ServiceResult {
        match self {
            Exit::Exited(0) => ServiceResult::Success,
            // SIGHUP, SIGINT, SIGTERM and SIGPIPE are clean ends of a service (systemd.service(5), SuccessExitStatus=)
            Exit::Killed(1 | 2 | 13 | 15) => ServiceResult::Success,
            Exit::Exited(_) => ServiceResult::ExitCode,
            Exit::Killed(_) => ServiceResult::Signal,
            Exit::Dumped(_) => ServiceResult::CoreDump,
        }
    }
}

fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => known.as_str().trim_start_matches("SIG").to_owned(),
        Err(_) => signal.to_string(),
    }
}

/// `$SERVICE_RESULT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceResult {
    /// Ended as it should.
    Success,
    /// Ended well, but without ever saying `READY=1`.
    Protocol,
    /// A start or stop time limit passed.
    Timeout,
    /// A nonzero exit code.
    ExitCode,
    /// A signal.
    Signal,
    /// A signal, with a core dump.
    CoreDump,
    /// The watchdog's ping stopped.
    Watchdog,
}

impl ServiceResult {
    /// The text systemd puts into `$SERVICE_RESULT`.
    pub fn as_str(self) -> &'static str {
        match self {
            ServiceResult::Success => "success",
            ServiceResult::Protocol => "protocol",
            ServiceResult::Timeout => "timeout",
            ServiceResult::ExitCode => "exit-code",
            ServiceResult::Signal => "signal",
            ServiceResult::CoreDump => "core-dump",
            ServiceResult::Watchdog => "watchdog",
        }
    }
}

/// One message of the notify protocol (sd_notify(3)) that means something here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// `READY=1`
    Ready,
    /// `STOPPING=1`
    Stopping,
    /// `WATCHDOG=1`
    Ping,
    /// `WATCHDOG=trigger`: act as if the ping had stopped.
    Trigger,
    /// `WATCHDOG_USEC=`: another period from now on.
    Period(Duration),
    /// `EXTEND_TIMEOUT_USEC=`: the running time limit ends no sooner than this long from now.
    Extend(Duration),
    /// `STATUS=`
    Status(String),
}

/// The notices in one datagram. Lines we do not know are left out, as systemd does.
pub fn notices(datagram: &str) -> Vec<Notice> {
    datagram.lines().filter_map(notice).collect()
}

fn notice(line: &str) -> Option<Notice> {
    let (key, value) = line.split_once('=')?;
    let micros = || value.parse().ok().map(Duration::from_micros);
    match (key, value) {
        ("READY", "1") => Some(Notice::Ready),
        ("STOPPING", "1") => Some(Notice::Stopping),
        ("WATCHDOG", "1") => Some(Notice::Ping),
        ("WATCHDOG", "trigger") => Some(Notice::Trigger),
        ("WATCHDOG_USEC", _) => micros().map(Notice::Period),
        ("EXTEND_TIMEOUT_USEC", _) => micros().map(Notice::Extend),
        ("STATUS", text) => Some(Notice::Status(text.to_owned())),
        _ => None,
    }
}

/// What can happen to a service.
#[derive(Debug, Clone)]
pub enum Event {
    /// Start it (again) if it is stopped.
    Start,
    /// Stop it, and do not restart it.
    Stop,
    /// The main process ended, or could not be started.
    Ended(Exit),
    /// The command that records the end has ended itself.
    Recorded,
    /// The main process said something.
    Said(Notice),
    /// A deadline may have passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Start the main process.
    Spawn,
    /// Send this signal to the main process.
    Signal(i32),
    /// Run the command of `ExecStopPost=` with this end in its environment.
    Record(End),
    /// End the recording command: it took longer than the stop time limit.
    KillRecorder,
}

/// How one run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// `$SERVICE_RESULT`
    pub result: ServiceResult,
    /// `$EXIT_CODE` and `$EXIT_STATUS`
    pub exit: Exit,
    /// Whether `READY=1` came.
    pub was_ready: bool,
    /// Whether the process said `STOPPING=1` or was asked to stop before it ended.
    pub was_stopping: bool,
}

/// Where a service is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not running, and nobody wants it to.
    Stopped,
    /// Waiting for the pause before the next start to end.
    Pause,
    /// Running, `READY=1` not yet said.
    Starting,
    /// Running and ready.
    Running,
    /// Asked to end, by SIGTERM or by itself (`STOPPING=1`).
    Stopping,
    /// SIGABRT was sent because the ping stopped.
    Aborting,
    /// SIGKILL was sent.
    Killing,
    /// The end of the run is being recorded.
    Recording,
}

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// One service. Feed it events, perform its acts, and call again with [`Event::Tick`] at [`Service::deadline`].
#[derive(Debug)]
pub struct Service {
    limits: Limits,
    restart: bool,
    phase: Phase,
    /// When the limit of the current phase ends.
    until: Option<Instant>,
    watchdog_until: Option<Instant>,
    watchdog: Option<Duration>,
    result: ServiceResult,
    was_ready: bool,
    was_stopping: bool,
    wanted: bool,
}

impl Service {
    /// A stopped service. `restart`: after every end that nobody asked for.
    pub fn new(limits: Limits, restart: bool) -> Service {
        Service {
            watchdog: limits.watchdog,
            limits,
            restart,
            phase: Phase::Stopped,
            until: None,
            watchdog_until: None,
            result: ServiceResult::Success,
            was_ready: false,
            was_stopping: false,
            wanted: false,
        }
    }

    /// Where it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        [self.until, self.watchdog_until].into_iter().flatten().min()
    }

    /// One event. `acts` grows by what is to be done.
    pub fn handle(&mut self, now: Instant, event: Event, acts: &mut Vec<Act>) {
        match event {
            Event::Start => self.start(now, acts),
            Event::Stop => self.stop(now, acts),
            Event::Ended(exit) => self.ended(now, exit, acts),
            Event::Recorded => self.recorded(now),
            Event::Said(notice) => self.said(now, notice, acts),
            Event::Tick => self.tick(now, acts),
        }
    }

    fn start(&mut self, now: Instant, acts: &mut Vec<Act>) {
        self.wanted = true;
        if matches!(self.phase, Phase::Stopped | Phase::Pause) {
            self.spawn(now, acts);
        }
    }

    fn spawn(&mut self, now: Instant, acts: &mut Vec<Act>) {
        self.result = ServiceResult::Success;
        self.was_ready = false;
        self.was_stopping = false;
        self.watchdog = self.limits.watchdog;
        self.enter(Phase::Starting, Some(now + self.limits.start));
        acts.push(Act::Spawn);
    }

    fn stop(&mut self, now: Instant, acts: &mut Vec<Act>) {
        self.wanted = false;
        match self.phase {
            Phase::Pause => self.enter(Phase::Stopped, None),
            Phase::Starting | Phase::Running => self.terminate(now, ServiceResult::Success, acts),
            // it already stops by itself: as with `systemctl stop`, SIGTERM still comes
            Phase::Stopping => acts.push(Act::Signal(SIGTERM)),
            Phase::Stopped | Phase::Aborting | Phase::Killing | Phase::Recording => {}
        }
    }

    fn terminate(&mut self, now: Instant, result: ServiceResult, acts: &mut Vec<Act>) {
        self.blame(result);
        self.was_stopping = self.was_stopping || result == ServiceResult::Success;
        self.enter(Phase::Stopping, Some(now + self.limits.stop));
        acts.push(Act::Signal(SIGTERM));
    }

    fn ended(&mut self, now: Instant, exit: Exit, acts: &mut Vec<Act>) {
        self.blame(exit.result());
        if self.phase == Phase::Starting {
            self.blame(ServiceResult::Protocol);
        }
        acts.push(Act::Record(End {
            result: self.result,
            exit,
            was_ready: self.was_ready,
            was_stopping: self.was_stopping,
        }));
        self.enter(Phase::Recording, Some(now + self.limits.stop));
    }

    fn recorded(&mut self, now: Instant) {
        match self.wanted && self.restart {
            true => self.enter(Phase::Pause, Some(now + self.limits.restart_after)),
            false => self.enter(Phase::Stopped, None),
        }
    }

    fn said(&mut self, now: Instant, notice: Notice, acts: &mut Vec<Act>) {
        match notice {
            Notice::Ready if self.phase == Phase::Starting => {
                self.was_ready = true;
                self.enter(Phase::Running, None);
                self.watchdog_until = self.watchdog.map(|period| now + period);
            }
            Notice::Stopping if matches!(self.phase, Phase::Starting | Phase::Running) => {
                self.was_stopping = true;
                self.enter(Phase::Stopping, Some(now + self.limits.stop));
            }
            Notice::Ping if self.watchdog_until.is_some() => {
                self.watchdog_until = self.watchdog.map(|period| now + period);
            }
            Notice::Trigger if self.watchdog_until.is_some() => self.abort(now, acts),
            Notice::Period(period) => {
                self.watchdog = Some(period).filter(|period| !period.is_zero());
                if self.phase == Phase::Running {
                    self.watchdog_until = self.watchdog.map(|period| now + period);
                }
            }
            Notice::Extend(by) => {
                // only ever later, as systemd: extending by less than what is left changes nothing
                for limit in [&mut self.until, &mut self.watchdog_until].into_iter().flatten() {
                    *limit = (*limit).max(now + by);
                }
            }
            Notice::Ready | Notice::Stopping | Notice::Ping | Notice::Trigger | Notice::Status(_) => {}
        }
    }

    fn tick(&mut self, now: Instant, acts: &mut Vec<Act>) {
        if self.watchdog_until.is_some_and(|until| until <= now) {
            return self.abort(now, acts);
        }
        if self.until.is_none_or(|until| until > now) {
            return;
        }
        match self.phase {
            Phase::Pause => self.spawn(now, acts),
            Phase::Starting => self.terminate(now, ServiceResult::Timeout, acts),
            Phase::Stopping | Phase::Aborting => {
                self.blame(ServiceResult::Timeout);
                self.enter(Phase::Killing, None);
                acts.push(Act::Signal(SIGKILL));
            }
            Phase::Recording => {
                self.until = None;
                acts.push(Act::KillRecorder);
            }
            Phase::Stopped | Phase::Running | Phase::Killing => {}
        }
    }

    fn abort(&mut self, now: Instant, acts: &mut Vec<Act>) {
        self.blame(ServiceResult::Watchdog);
        self.enter(Phase::Aborting, Some(now + self.limits.abort));
        acts.push(Act::Signal(SIGABRT));
    }

    /// The first failure of a run is its result; what follows (the SIGKILL after a time limit) does not change it.
    fn blame(&mut self, result: ServiceResult) {
        if self.result == ServiceResult::Success {
            self.result = result;
        }
    }

    fn enter(&mut self, phase: Phase, until: Option<Instant>) {
        self.phase = phase;
        self.until = until;
        self.watchdog_until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn limits() -> Limits {
        Limits {
            start: secs(90),
            stop: secs(20),
            abort: secs(10),
            watchdog: Some(secs(30)),
            restart_after: secs(2),
        }
    }

    /// Runs a script of (second, event) and returns every act with its second, plus the service.
    fn run(script: &[(u64, Event)]) -> (Vec<(u64, Act)>, Service) {
        let base = Instant::now();
        let mut service = Service::new(limits(), true);
        let mut story = Vec::new();
        for (second, event) in script {
            let due = base + secs(*second);
            // deadlines on the way come first
            while let Some(deadline) = service.deadline().filter(|deadline| *deadline < due) {
                let mut acts = Vec::new();
                service.handle(deadline, Event::Tick, &mut acts);
                story.extend(acts.into_iter().map(|act| ((deadline - base).as_secs(), act)));
            }
            let mut acts = Vec::new();
            service.handle(due, event.clone(), &mut acts);
            story.extend(acts.into_iter().map(|act| (*second, act)));
        }
        (story, service)
    }

    fn record(result: ServiceResult, exit: Exit, was_ready: bool, was_stopping: bool) -> Act {
        Act::Record(End { result, exit, was_ready, was_stopping })
    }

    /// What a run that ends with `exit` after `before` is recorded as: `$SERVICE_RESULT`, `$EXIT_CODE`, `$EXIT_STATUS`.
    #[track_caller]
    fn check(before: &[Event], exit: Exit, expect: (&str, &str, &str)) {
        let mut script = vec![(0, Event::Start)];
        script.extend(before.iter().map(|event| (1, event.clone())));
        script.push((2, Event::Ended(exit)));
        let (story, _) = run(&script);
        let found = story.iter().rev().find_map(|(_, act)| match act {
            Act::Record(end) => Some((end.result.as_str(), end.exit.code(), end.exit.status())),
            _ => None,
        });
        let (result, code, status) = expect;
        assert_eq!(found, Some((result, code, status.to_owned())));
    }

    fn ready() -> Event {
        Event::Said(Notice::Ready)
    }

    #[test]
    fn each_end_has_the_words_systemd_has_for_it() {
        check(&[ready()], Exit::Exited(0), ("success", "exited", "0"));
        check(&[ready()], Exit::Exited(70), ("exit-code", "exited", "70"));
        check(&[ready()], Exit::Killed(9), ("signal", "killed", "KILL"));
        check(&[ready()], Exit::Killed(15), ("success", "killed", "TERM"));
        check(&[ready()], Exit::Killed(2), ("success", "killed", "INT"));
        check(&[ready()], Exit::Dumped(11), ("core-dump", "dumped", "SEGV"));
        check(&[ready()], Exit::Killed(6), ("signal", "killed", "ABRT"));
        check(&[], Exit::Exited(0), ("protocol", "exited", "0"));
        check(&[], Exit::Exited(2), ("exit-code", "exited", "2"));
        check(&[ready(), Event::Said(Notice::Stopping)], Exit::Exited(0), ("success", "exited", "0"));
        check(&[Event::Said(Notice::Stopping)], Exit::Exited(0), ("success", "exited", "0"));
        check(&[ready(), Event::Stop], Exit::Exited(0), ("success", "exited", "0"));
        check(&[ready(), Event::Stop], Exit::Exited(3), ("exit-code", "exited", "3"));
        check(&[ready(), Event::Said(Notice::Trigger)], Exit::Killed(6), ("watchdog", "killed", "ABRT"));
    }

    #[test]
    fn a_service_that_ends_is_recorded_and_started_again_after_the_pause() {
        let (story, service) = run(&[
            (0, Event::Start),
            (1, ready()),
            (5, Event::Ended(Exit::Exited(1))),
            (6, Event::Recorded),
            (9, Event::Tick),
        ]);
        assert_eq!(
            story,
            [
                (0, Act::Spawn),
                (5, record(ServiceResult::ExitCode, Exit::Exited(1), true, false)),
                (8, Act::Spawn)
            ]
        );
        assert_eq!(service.phase(), Phase::Starting);
    }

    #[test]
    fn a_ping_that_stops_is_answered_with_abort_and_then_kill() {
        let (story, _) = run(&[
            (0, Event::Start),
            (1, ready()),
            (20, Event::Said(Notice::Ping)),
            (61, Event::Ended(Exit::Killed(9))),
        ]);
        assert_eq!(
            story,
            [
                (0, Act::Spawn),
                (50, Act::Signal(SIGABRT)),
                (60, Act::Signal(SIGKILL)),
                (61, record(ServiceResult::Watchdog, Exit::Killed(9), true, false)),
            ]
        );
    }

    #[test]
    fn no_ping_is_owed_before_ready_nor_while_stopping() {
        let (story, _) = run(&[
            (0, Event::Start),
            (80, ready()),
            (109, Event::Said(Notice::Stopping)),
            (128, Event::Tick),
        ]);
        assert_eq!(story, [(0, Act::Spawn)]);
    }

    #[test]
    fn a_start_that_takes_too_long_is_a_timeout_unless_it_is_extended() {
        let (story, _) = run(&[(0, Event::Start), (91, Event::Ended(Exit::Killed(15)))]);
        assert_eq!(
            story,
            [
                (0, Act::Spawn),
                (90, Act::Signal(SIGTERM)),
                (91, record(ServiceResult::Timeout, Exit::Killed(15), false, false))
            ]
        );
        let (story, _) =
            run(&[(0, Event::Start), (80, Event::Said(Notice::Extend(secs(60)))), (139, ready())]);
        assert_eq!(story, [(0, Act::Spawn)]);
    }

    #[test]
    fn a_stop_that_takes_too_long_is_killed_and_not_restarted() {
        let (story, service) = run(&[
            (0, Event::Start),
            (1, ready()),
            (10, Event::Stop),
            (31, Event::Ended(Exit::Killed(9))),
            (32, Event::Recorded),
            (100, Event::Tick),
        ]);
        assert_eq!(
            story,
            [
                (0, Act::Spawn),
                (10, Act::Signal(SIGTERM)),
                (30, Act::Signal(SIGKILL)),
                (31, record(ServiceResult::Timeout, Exit::Killed(9), true, true)),
            ]
        );
        assert_eq!(service.phase(), Phase::Stopped);
    }

    #[test]
    fn a_recorder_that_hangs_is_killed_and_the_service_goes_on() {
        let (story, _) = run(&[
            (0, Event::Start),
            (1, Event::Ended(Exit::Exited(1))),
            (30, Event::Recorded),
            (33, Event::Tick),
        ]);
        assert_eq!(story[2..], [(21, Act::KillRecorder), (32, Act::Spawn)]);
    }

    #[test]
    fn messages_are_read_as_sd_notify_writes_them() {
        assert_eq!(
            notices(
                "READY=1\nSTATUS=all = well\nFDSTORE=1\nEXTEND_TIMEOUT_USEC=1500000\nWATCHDOG=1\nWATCHDOG_USEC=x"
            ),
            [
                Notice::Ready,
                Notice::Status("all = well".into()),
                Notice::Extend(Duration::from_millis(1500)),
                Notice::Ping
            ]
        );
    }
}
