//! The other parts of a fake board: supervisor, traces of a reset, host facts. Clones share one state.
//!
//! Always holds: the supervisor detects missed pings as systemd does, by its own clock; traces stay until the
//! test resets the machine in another way.
//!
//! Leaves to others: killing and restarting the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clocks::FakeClocks;
use crate::clocks::Clocks;
use crate::exit::{PANIC_RECORDS_LIMIT, ResetTraces, fingerprint};
use crate::host::{
    Address, Capacity, HostFacts, HostIdentity, Usage, WatchdogDevice, go_architecture, in_order,
};
use crate::supervisor::{Supervisor, status_line};

/// A message to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// READY=1.
    Ready,
    /// STOPPING=1.
    Stopping,
    /// RELOADING=1, with MONOTONIC_USEC.
    Reloading(Duration),
    /// EXTEND_TIMEOUT_USEC.
    Extend(Duration),
    /// STATUS.
    Status(String),
}

/// A supervisor that watches one run of a program.
#[derive(Clone, Debug)]
pub struct FakeSupervisor {
    clocks: FakeClocks,
    period: Option<Duration>,
    told: Arc<Mutex<Told>>,
}

#[derive(Debug, Default)]
struct Told {
    notices: Vec<Notice>,
    pings: u64,
    // The time from which the watchdog counts: ready, or the last ping.
    fed: Option<Duration>,
}

impl FakeSupervisor {
    /// A supervisor that watches with `period`, or does not watch.
    pub fn new(clocks: FakeClocks, period: Option<Duration>) -> Self {
        Self { clocks, period, told: Arc::default() }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All messages but pings, in order.
    pub fn notices(&self) -> Vec<Notice> {
        self.told().notices.clone()
    }

    /// The number of pings.
    pub fn pings(&self) -> u64 {
        self.told().pings
    }

    /// True if it would kill the program now: the program was ready, and no ping came for the period.
    pub fn kills(&self) -> bool {
        match (self.period, self.told().fed) {
            (Some(period), Some(fed)) => self.clocks.monotonic().saturating_sub(fed) > period,
            _ => false,
        }
    }

    fn note(&self, notice: Notice) {
        self.told().notices.push(notice);
    }
}

impl Supervisor for FakeSupervisor {
    fn ready(&self) {
        self.note(Notice::Ready);
        let now = self.clocks.monotonic();
        self.told().fed.get_or_insert(now);
    }

    fn stopping(&self) {
        self.note(Notice::Stopping);
    }

    fn reloading(&self, monotonic: Duration) {
        self.note(Notice::Reloading(monotonic));
    }

    fn watchdog_ping(&self) {
        let now = self.clocks.monotonic();
        let mut told = self.told();
        told.pings += 1;
        // Until it is ready, systemd applies the start's time limit instead.
        if told.fed.is_some() {
            told.fed = Some(now);
        }
    }

    fn extend_timeout(&self, by: Duration) {
        self.note(Notice::Extend(by));
    }

    fn status(&self, text: &str) {
        self.note(Notice::Status(status_line(text)));
    }

    fn watchdog_period(&self) -> Option<Duration> {
        self.period
    }
}

/// The fake machine's record of its last reset.
#[derive(Clone, Debug, Default)]
pub struct FakeTraces {
    state: Arc<Mutex<Traces>>,
}

#[derive(Clone, Debug, Default)]
struct Traces {
    boot_id: String,
    watchdog_reset: bool,
    panics: Vec<String>,
}

impl FakeTraces {
    /// A machine that booted as `boot_id`, without traces of a reset.
    pub fn new(boot_id: &str) -> Self {
        let traces = Self::default();
        traces.booted(boot_id, false);
        traces
    }

    /// The record of another machine with the same past.
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state().clone())) }
    }

    fn state(&self) -> MutexGuard<'_, Traces> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Boots the machine again; `watchdog_reset`: the hardware watchdog caused it.
    pub fn booted(&self, boot_id: &str, watchdog_reset: bool) {
        let mut state = self.state();
        state.boot_id = boot_id.to_string();
        state.watchdog_reset = watchdog_reset;
    }

    /// Adds the record of a kernel panic; it is never removed, as on a real machine.
    pub fn panicked(&self) {
        let mut state = self.state();
        let number = state.panics.len();
        state.panics.insert(0, fingerprint(format!("Panic#1 Part1 number {number}").as_bytes()));
    }
}

impl ResetTraces for FakeTraces {
    fn boot_id(&self) -> String {
        self.state().boot_id.clone()
    }

    fn watchdog_reset(&self) -> bool {
        self.state().watchdog_reset
    }

    fn panic_records(&self) -> Vec<String> {
        let mut panics = self.state().panics.clone();
        panics.truncate(PANIC_RECORDS_LIMIT);
        panics
    }
}

/// A host whose facts the test sets.
#[derive(Clone, Debug)]
pub struct FakeHost {
    facts: Arc<Mutex<Facts>>,
}

#[derive(Clone, Debug)]
struct Facts {
    identity: HostIdentity,
    addresses: Vec<Address>,
    capacity: Capacity,
    usage: Usage,
    watchdogs: Vec<WatchdogDevice>,
}

impl FakeHost {
    /// A healthy small board called `hostname`.
    pub fn new(hostname: &str) -> Self {
        const GIB: u64 = 1 << 30;
        let identity = HostIdentity {
            machine_id: fingerprint(hostname.as_bytes()).repeat(2),
            boot_id: String::new(),
            system_uuid: fingerprint(hostname.as_bytes()),
            kernel_release: "6.1.0-fake".into(),
            os_image: "Fake Linux".into(),
            operating_system: "linux",
            architecture: go_architecture(std::env::consts::ARCH),
            hostname: hostname.into(),
        };
        let address = Address {
            interface: "eth0".into(),
            ip: std::net::IpAddr::V4([192, 0, 2, 10].into()),
            default_route: true,
        };
        let capacity =
            Capacity { cpus: 4, memory_bytes: GIB, root_bytes: 8 * GIB, root_inodes: 500_000, pids: 32_768 };
        let usage = Usage {
            memory_available_bytes: Some(GIB / 2),
            root_available_bytes: Some(4 * GIB),
            root_available_inodes: Some(400_000),
            pids_in_use: Some(150),
        };
        let (addresses, watchdogs) = (vec![address], Vec::new());
        Self { facts: Arc::new(Mutex::new(Facts { identity, addresses, capacity, usage, watchdogs })) }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the identity; a test of a broken `/proc` empties fields.
    pub fn set_identity(&self, change: impl FnOnce(&mut HostIdentity)) {
        change(&mut self.facts().identity);
    }

    /// Changes the addresses; an unplugged cable leaves none.
    pub fn set_addresses(&self, addresses: Vec<Address>) {
        self.facts().addresses = addresses;
    }

    /// Changes the capacity.
    pub fn set_capacity(&self, change: impl FnOnce(&mut Capacity)) {
        change(&mut self.facts().capacity);
    }

    /// Changes the watchdogs; for example one that no program pings, or whose driver is missing.
    pub fn set_watchdogs(&self, watchdogs: Vec<WatchdogDevice>) {
        self.facts().watchdogs = watchdogs;
    }

    /// Changes the usage.
    pub fn set_usage(&self, change: impl FnOnce(&mut Usage)) {
        change(&mut self.facts().usage);
    }
}

impl HostFacts for FakeHost {
    fn identity(&self) -> HostIdentity {
        self.facts().identity.clone()
    }

    fn addresses(&self) -> Vec<Address> {
        in_order(self.facts().addresses.clone())
    }

    fn capacity(&self) -> Capacity {
        self.facts().capacity.clone()
    }

    fn usage(&self) -> Usage {
        self.facts().usage.clone()
    }

    fn watchdogs(&self) -> Vec<WatchdogDevice> {
        self.facts().watchdogs.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn fake_supervisor_kills_ready_silent_programs_only() {
        let clocks = FakeClocks::new(SystemTime::UNIX_EPOCH);
        let supervisor = FakeSupervisor::new(clocks.clone(), Some(Duration::from_secs(30)));
        clocks.advance(Duration::from_secs(100));
        assert!(!supervisor.kills(), "a start has its own limit");
        supervisor.ready();
        clocks.advance(Duration::from_secs(29));
        supervisor.watchdog_ping();
        clocks.advance(Duration::from_secs(30));
        assert!(!supervisor.kills());
        clocks.advance(Duration::from_secs(1));
        assert!(supervisor.kills());
        supervisor.watchdog_ping();
        assert!(!supervisor.kills());
        assert_eq!(supervisor.notices(), [Notice::Ready]);
        assert_eq!(supervisor.pings(), 2);
    }

    #[test]
    fn fake_supervisor_without_watchdog_kills_nothing() {
        let clocks = FakeClocks::new(SystemTime::UNIX_EPOCH);
        let supervisor = FakeSupervisor::new(clocks.clone(), None);
        supervisor.ready();
        clocks.advance(Duration::from_secs(1_000_000));
        assert!(!supervisor.kills());
    }
}
