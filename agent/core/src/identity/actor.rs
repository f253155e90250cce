//! When to do the steps of `plan`, and what to log and report about them.
//!
//! Always holds: one step or request is under way at a time; a failed one is tried again, after growing
//! pauses that differ between nodes; a rest causes no wake-up. Leaves to others: which step is next (`plan`).

use super::plan::{Plan, Situation, plan};
use super::{Asked, By, Certificate, Found, IdentityAction, IdentityEvent, Key, Step};
use crate::answer::{Level, Now};
use crate::config::running::Notice;
use crate::event::Action;
use crate::pace::Backoff;
use crate::report::IdentityReport;
use crate::turn::Turn;
use kedge_api::Timestamp;
use std::time::Duration;

/// Pause between reads of a waiting request: half of the time that it has waited, within these limits.
const SHORTEST_POLL: Duration = Duration::from_secs(2);
const LONGEST_POLL: Duration = Duration::from_secs(3600);
/// Longest pause after a request without an answer, after one that was refused, and after a step of the disk
/// that failed.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
const LONGEST_REFUSAL: Duration = Duration::from_secs(3600);
const LONGEST_FAULT: Duration = Duration::from_secs(300);
/// Pause after a request that was denied: the first one, and the longest.
const FIRST_DENIAL: Duration = Duration::from_secs(3600);
const LONGEST_DENIAL: Duration = Duration::from_secs(86_400);
/// How long the server must have refused the credential: one answer can be a mistake.
const REFUSED_FOR: Duration = Duration::from_secs(15);
/// How long a request for the next key may wait at a server that refuses everything else.
const NEXT_KEY_WAITS: Duration = Duration::from_secs(600);
/// Pause between looks at the files: without a credential, and with one.
const LOOK_FOR_ONE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_secs(6 * 3600);
/// Pause between two decisions while nothing is due.
const REST: Duration = Duration::from_secs(5);
/// A fleet that finds a new hub, or was flashed in one hour, begins its renewals within this time.
const SPREAD: Duration = Duration::from_secs(600);
/// Least time between two renewals by one process: a clock that runs ahead of the issuer's must not renew
/// without end. It doubles up to a tenth of the life.
const FIRST_REPEAT: Duration = Duration::from_secs(3600);
/// Time between writes of the running time while the clock cannot be right, doubled each time: flash wears,
/// and at most half of the time is lost.
const FIRST_SAVE: Duration = Duration::from_secs(3600);
const LONGEST_SAVE: Duration = Duration::from_secs(86_400);

/// Wishes of others about the credential.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes {
    /// `rotateCertificates`.
    pub(crate) renews: bool,
    /// The server issues numbered certificates.
    pub(crate) gives_numbers: bool,
    /// See [`kedge_api::ROTATE_ANNOTATION`].
    pub(crate) rotate: Option<u64>,
}

/// The step or request under way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Flight {
    Step(Step),
    Ask(Key, By),
}

/// A request that was composed.
#[derive(Debug, Clone)]
struct Prepared {
    key: Key,
    by: By,
    name: String,
    request: String,
    /// Since when the server lets it wait.
    waits: Option<Duration>,
}

/// For how long this node has run with a certificate.
#[derive(Debug, Clone, Default)]
struct Running {
    serial: String,
    before: u64,
    since: Duration,
    /// How often it was written, and when last.
    saves: u32,
    saved: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    None,
    Requesting,
    Waiting,
    Denied,
    Valid,
    Expired,
}

/// The renewals by this process.
#[derive(Debug, Clone)]
struct Renewals {
    count: u32,
    last: Duration,
    /// When the next may begin, once one is due.
    begin: Option<Duration>,
}

/// The credential of this node.
#[derive(Debug, Clone)]
pub(crate) struct IdentityActor {
    found: Option<Found>,
    looked: Duration,
    flight: Option<Flight>,
    /// No step begins before this time; and whether the end of the pause needs a wake-up.
    pause: (Duration, bool),
    /// The bootstrap kubeconfig was removed, or cannot be.
    is_token_spent: bool,
    prepared: Option<Prepared>,
    issued: Option<(Key, Certificate, Vec<u8>)>,
    is_denied: bool,
    denials: u32,
    /// Since when the server has refused the credential.
    refused: Option<Duration>,
    is_accepted: bool,
    own_was_refused: bool,
    is_next_unknown: bool,
    backoff: Backoff,
    running: Running,
    renewals: Renewals,
    state: State,
    /// For people.
    message: Option<String>,
    /// A new certificate is in use: requests that wait after a refusal may be sent now.
    pub(crate) has_news: bool,
    /// For Events about the Node.
    pub(crate) notices: Vec<Notice>,
}

impl IdentityActor {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            found: None,
            looked: now,
            flight: None,
            pause: (Duration::ZERO, false),
            is_token_spent: false,
            prepared: None,
            issued: None,
            is_denied: false,
            denials: 0,
            refused: None,
            is_accepted: false,
            own_was_refused: false,
            is_next_unknown: false,
            backoff: Backoff::default(),
            running: Running { since: now, saved: now, ..Running::default() },
            renewals: Renewals { count: 0, last: now, begin: None },
            state: State::None,
            message: None,
            has_news: false,
            notices: Vec::new(),
        }
    }

    // ------------------------------------------------------------------------------------------ events

    /// The server answered a request with this status; 401 means that it refuses the credential.
    pub(crate) fn heard(&mut self, now: Duration, status: Option<u16>) {
        if status == Some(401) {
            self.refused.get_or_insert(now);
            return;
        }
        if self.refused.take().is_some() {
            self.own_was_refused = false;
            self.is_next_unknown = false;
            self.message = None;
            self.pause = (now, true);
        }
        self.is_accepted = true;
    }

    /// The kubeconfig names another server.
    pub(crate) fn server_changed(&mut self, now: Duration) {
        (self.is_accepted, self.refused) = (false, None);
        (self.found, self.prepared, self.pause) = (None, None, (now, true));
    }

    pub(crate) fn take(&mut self, event: IdentityEvent, turn: &mut Turn) {
        let flight = self.flight.take();
        match event {
            IdentityEvent::Found(found) => self.looked_at(*found, turn),
            IdentityEvent::Done(done) => self.done(flight, done, turn),
            IdentityEvent::Prepared(Ok((name, request))) => {
                let Some(Flight::Step(Step::Prepare(key, by))) = flight else { return };
                self.prepared = Some(Prepared { key, by, name, request, waits: None });
            }
            IdentityEvent::Prepared(Err(why)) => self.fault(why, turn),
            IdentityEvent::Asked(asked) => {
                let Some(Flight::Ask(key, by)) = flight else { return };
                self.asked(key, by, asked, turn);
            }
        }
    }

    fn looked_at(&mut self, mut found: Found, turn: &mut Turn) {
        self.looked = turn.now.mono;
        if let Some(why) = found.unread.take() {
            return self.fault(why, turn);
        }
        found.has_leftover_token &= !self.is_token_spent;
        if let Some((certificate, _)) = found.in_use()
            && certificate.serial != self.running.serial
        {
            let saved = found.running.as_ref().filter(|(serial, _)| *serial == certificate.serial);
            let before = saved.map_or(0, |(_, secs)| *secs);
            let serial = certificate.serial.clone();
            let since = turn.now.mono;
            self.running = Running { serial, before, since, saves: 0, saved: since };
        }
        self.found = Some(found);
    }

    fn done(&mut self, flight: Option<Flight>, done: Result<(), String>, turn: &mut Turn) {
        self.found = None;
        let Some(Flight::Step(step)) = flight else { return };
        if let Err(why) = done {
            return self.fault(why, turn);
        }
        match step {
            Step::SetAside(file, why) => {
                turn.log(Level::Warn, format!("identity: pki/{file} {why}: set aside"));
            }
            Step::SaveRunning(..) => {
                self.running.saves = self.running.saves.saturating_add(1);
                self.running.saved = turn.now.mono;
            }
            Step::RemoveToken => self.is_token_spent = true,
            Step::Point(serial) => self.is_installed(&serial, turn),
            _ => {}
        }
        self.backoff.succeeded();
    }

    /// A new certificate is in use.
    fn is_installed(&mut self, serial: &str, turn: &mut Turn) {
        let issued = self.issued.take().map(|(_, certificate, _)| certificate);
        let until = issued.map(|certificate| format!(", valid until {}", date(certificate.not_after)));
        let message = format!("certificate {serial} is in use{}", until.unwrap_or_default());
        self.notices.push(Notice { reason: "CertificateInstalled", message, warning: false });
        (self.prepared, self.renewals.begin, self.message) = (None, None, None);
        (self.refused, self.own_was_refused, self.is_next_unknown) = (None, false, false);
        (self.is_denied, self.denials) = (false, 0);
        self.renewals.count = self.renewals.count.saturating_add(1);
        self.renewals.last = turn.now.mono;
        self.has_news = true;
    }

    fn fault(&mut self, why: String, turn: &mut Turn) {
        self.found = None;
        self.say(Level::Warn, why, turn);
        self.wait(LONGEST_FAULT, turn);
    }

    /// Logs it, unless it was the last line logged.
    fn say(&mut self, level: Level, what: String, turn: &mut Turn) {
        if self.message.as_ref() != Some(&what) {
            turn.log(level, format!("identity: {what}"));
            self.message = Some(what);
        }
    }

    fn wait(&mut self, longest: Duration, turn: &mut Turn) {
        let wait = self.backoff.failed(longest, turn.jitter);
        self.pause = (turn.now.mono.saturating_add(wait), true);
    }

    fn asked(&mut self, key: Key, by: By, asked: Asked, turn: &mut Turn) {
        let name = self.prepared.as_ref().map(|prepared| prepared.name.clone()).unwrap_or_default();
        match asked {
            Asked::Waits(why) => self.waits(key, &name, why, turn),
            Asked::Denied(why) => {
                let message = format!("request {name} is denied: {why}");
                self.notices.push(Notice {
                    reason: "CertificateDenied",
                    message: message.clone(),
                    warning: true,
                });
                self.message = Some(message);
                self.state = State::Denied;
                let pause = FIRST_DENIAL.saturating_mul(1 << self.denials.min(8)).min(LONGEST_DENIAL);
                self.denials = self.denials.saturating_add(1);
                self.is_denied = key == Key::Next;
                self.pause = (turn.now.mono.saturating_add(turn.jitter.stretch(pause, 0.25)), true);
            }
            Asked::Issued(certificate, pem) => {
                self.issued = Some((key, *certificate, pem));
                self.found = None;
                self.backoff.succeeded();
            }
            Asked::Refused(why) => {
                self.own_was_refused = by == By::Own;
                let can_join = self.found.as_ref().is_some_and(|found| found.can_join);
                let what = match by {
                    By::Own if !can_join => format!("Expired: needs a new bootstrap token: {why}"),
                    _ => why,
                };
                self.say(Level::Warn, what, turn);
                // the token may be replaced meanwhile
                (self.prepared, self.found) = (None, None);
                self.wait(LONGEST_REFUSAL, turn);
            }
            Asked::Failed(why) => {
                self.say(Level::Warn, why, turn);
                self.wait(LONGEST_SILENCE, turn);
            }
        }
    }

    fn waits(&mut self, key: Key, name: &str, why: Option<String>, turn: &mut Turn) {
        let now = turn.now.mono;
        let Some(prepared) = &mut self.prepared else { return };
        let since = now.saturating_sub(*prepared.waits.get_or_insert(now));
        if key == Key::Next && self.refused.is_some() && since >= NEXT_KEY_WAITS {
            // the request stays on the server, and no node fetches its certificate any more
            (self.is_next_unknown, self.prepared) = (true, None);
            return;
        }
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        self.backoff.succeeded();
        // the hub's approval takes a moment: only a longer wait is reported
        if since >= SHORTEST_POLL {
            self.state = State::Waiting;
            self.say(
                Level::Info,
                format!("CertificateSigningRequest {name} waits to be approved{why}"),
                turn,
            );
        }
        let poll = since.checked_div(2).unwrap_or_default().clamp(SHORTEST_POLL, LONGEST_POLL);
        self.pause = (now.saturating_add(turn.jitter.stretch(poll, 0.25)), true);
    }

    // ------------------------------------------------------------------------------------------ decisions

    fn situation(&self, now: Now, wishes: Wishes) -> Situation {
        let ran = self.running.before.saturating_add(now.mono.saturating_sub(self.running.since).as_secs());
        let is_refused = self.refused.is_some_and(|since| now.mono >= since.saturating_add(REFUSED_FOR));
        Situation {
            wall: u64::try_from(now.wall.micros()).unwrap_or_default() / 1_000_000,
            ran,
            is_accepted: self.is_accepted && self.refused.is_none(),
            is_refused,
            rotates: wishes.renews,
            gives_numbers: wishes.gives_numbers,
            rotate: wishes.rotate,
            is_next_unknown: self.is_next_unknown,
            own_was_refused: self.own_was_refused,
            issued: self.issued.clone(),
        }
    }

    /// Orders the step or the request that is due.
    pub(crate) fn decide(&mut self, wishes: Wishes, turn: &mut Turn) {
        let now = turn.now.mono;
        if self.flight.is_some() || now < self.pause.0 {
            return;
        }
        let is_old = now >= self.looked.saturating_add(LOOK_AGAIN);
        let Some(found) = self.found.take_if(|_| !is_old) else {
            return self.step(Step::Look, turn);
        };
        if std::mem::take(&mut self.is_denied) && found.next.is_some() {
            // another request needs another name, so another key
            self.prepared = None;
            return self.step(Step::RemoveKey, turn);
        }
        let situation = self.situation(turn.now, wishes);
        let plan = plan(&found, &situation);
        let in_use = found.in_use().map(|(certificate, _)| certificate.clone());
        self.found = Some(found);
        match plan {
            Plan::Step(Step::MakeKey) if !self.may_begin(in_use.as_ref(), wishes, turn) => {}
            Plan::Step(step) => self.step(step, turn),
            Plan::Ask(key, by) => {
                self.state = match (self.state, situation.is_refused) {
                    (State::Waiting | State::Denied, _) => self.state,
                    (_, true) => State::Expired,
                    _ if in_use.is_some() => State::Valid,
                    _ => State::Requesting,
                };
                self.ask(key, by, turn);
            }
            Plan::Rest => {
                self.state = if situation.is_refused { State::Expired } else { State::Valid };
                self.message.take_if(|_| !situation.is_refused);
                if let Some(certificate) = in_use
                    && !certificate.fits(situation.wall, situation.is_accepted)
                {
                    self.save_running(&certificate, situation.ran, turn);
                }
                // with the next event: a heartbeat
                self.pause = (self.pause.0.max(now.saturating_add(REST)), self.refused.is_some());
            }
            Plan::NotOurs => {
                self.state = State::None;
                (self.found, self.pause) = (None, (now.saturating_add(LOOK_AGAIN), false));
            }
            Plan::Without => {
                self.state = State::None;
                self.message = self.found.as_ref().and_then(|found| match &found.given {
                    super::Given::Unusable(why) => Some(why.clone()),
                    _ => None,
                });
                (self.found, self.pause) = (None, (now.saturating_add(LOOK_FOR_ONE), true));
            }
        }
    }

    fn step(&mut self, step: Step, turn: &mut Turn) {
        self.flight = Some(Flight::Step(step.clone()));
        turn.act(Action::Identity(Box::new(IdentityAction::Step(step))));
    }

    fn ask(&mut self, key: Key, by: By, turn: &mut Turn) {
        match &self.prepared {
            Some(prepared) if (prepared.key, prepared.by) == (key, by) => {
                let (name, request) = (prepared.name.clone(), prepared.request.clone());
                self.flight = Some(Flight::Ask(key, by));
                turn.act(Action::Identity(Box::new(IdentityAction::Ask { by, name, request })));
            }
            _ => self.step(Step::Prepare(key, by), turn),
        }
    }

    /// Whether a renewal that is due may begin now.
    fn may_begin(&mut self, certificate: Option<&Certificate>, wishes: Wishes, turn: &mut Turn) -> bool {
        let Some(certificate) = certificate else { return true };
        // a person waits for it, and the next certificate has a greater number
        if certificate.number > 0 && wishes.rotate.is_some_and(|number| certificate.number <= number) {
            return true;
        }
        let now = turn.now.mono;
        let life = Duration::from_secs(certificate.not_after.saturating_sub(certificate.issued));
        let Renewals { count, last, begin } = &mut self.renewals;
        let begin = *begin.get_or_insert_with(|| {
            let first =
                now.saturating_add(turn.jitter.within(SPREAD.min(life.checked_div(100).unwrap_or_default())));
            let exponent = count.saturating_sub(1).min(16);
            let repeat =
                FIRST_REPEAT.saturating_mul(1 << exponent).min(life.checked_div(10).unwrap_or_default());
            match *count {
                0 => first,
                _ => first.max(last.saturating_add(repeat)),
            }
        });
        if now < begin {
            self.state = State::Valid;
            self.pause = (begin, true);
        }
        now >= begin
    }

    fn save_running(&mut self, certificate: &Certificate, ran: u64, turn: &mut Turn) {
        let pause = FIRST_SAVE.saturating_mul(1 << self.running.saves.min(16)).min(LONGEST_SAVE);
        if self.running.saved.saturating_add(pause) <= turn.now.mono {
            self.step(Step::SaveRunning(certificate.serial.clone(), ran), turn);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let (at, needs_wake_up) = self.pause;
        (self.flight.is_none() && needs_wake_up).then_some(at)
    }

    pub(crate) fn report(&self) -> IdentityReport {
        let certificate = self.found.as_ref().and_then(Found::in_use).map(|(certificate, _)| certificate);
        let state = match self.state {
            State::None => "none",
            State::Requesting => "requesting",
            State::Waiting => "waiting",
            State::Denied => "denied",
            State::Valid => "valid",
            State::Expired => "expired",
        };
        IdentityReport {
            state,
            serial: certificate.map(|certificate| certificate.serial.clone()),
            number: certificate.map(|certificate| certificate.number).filter(|number| *number != 0),
            not_after: certificate.map(|certificate| date(certificate.not_after)),
            renews_after: certificate.map(|certificate| date(certificate.due())),
            request: self.prepared.as_ref().map(|prepared| prepared.name.clone()),
            message: self.message.clone(),
        }
    }
}

/// A time in seconds since 1970.
fn date(secs: u64) -> String {
    let micros = i64::try_from(secs).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    Timestamp::from_micros(micros).rfc3339()
}
