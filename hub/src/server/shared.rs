//! State that all connections and requests share: the hub, the limits, and the counters of `/metrics`.

use crate::server::calls::session::Calls;
use crate::server::credentials::Credentials;
use crate::server::usages::NodeUsages;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fleet::cache::Pages;
use super::guesses::Guesses;
use super::handshakes::Handshakes;
use super::large::Large;
use super::leases::Holders;
use super::limits::Limits;
use super::machines::AllMachines;
use crate::capacity::Capacity;
use crate::hub::Hub;

/// Least time between two log lines that clients can provoke: often enough to be found, too rarely to fill a
/// journal.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// The context that all requests share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) hub: Arc<Hub>,
    pub(crate) counters: Counters,
    pub(super) limits: Limits,
    pub(super) handshakes: Arc<Handshakes>,
    pub(super) guesses: Guesses,
    pub(super) large: Large,
    pub(super) credentials: Credentials,
    pub(super) calls: Arc<Calls>,
    pub(super) usages: NodeUsages,
    pub(super) holders: Holders,
    pub(super) machines: AllMachines,
    pub(super) pages: Pages,
}

impl Server {
    pub(super) fn new(hub: Arc<Hub>, capacity: Capacity) -> Server {
        Server {
            credentials: Credentials::new(Arc::clone(&hub)),
            hub,
            counters: Counters::default(),
            limits: Limits::new(&capacity),
            guesses: Guesses::default(),
            handshakes: Arc::new(Handshakes::new(capacity.handshakes)),
            large: Large::new(capacity.large_workers),
            calls: Arc::new(Calls::new(capacity.sessions)),
            usages: NodeUsages::default(),
            holders: Holders::default(),
            machines: AllMachines::default(),
            pages: Pages::default(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicUsize,
    pub(crate) refused_handshakes: AtomicU64,
    pub(super) handshake_lines: Mutex<LogThrottle>,
    pub(super) refused_credential_lines: Mutex<LogThrottle>,
    pub(super) returning_lines: Mutex<LogThrottle>,
    /// Connections that are being refused because there are too many.
    pub(super) turned_away: AtomicUsize,
    /// Connections that were closed before their handshake, because there were too many.
    pub(super) dropped_handshakes: AtomicU64,
    /// Handshakes that were ended before the key exchange, because their network begins too many and the
    /// machine has no spare capacity.
    pub(super) paced_handshakes: AtomicU64,
    pub(super) paced_handshake_lines: Mutex<LogThrottle>,
    /// Number of answers by the first digit of their status.
    pub(crate) answers: [AtomicU64; 6],
    pub(crate) panics: AtomicU64,
}

/// Limits a log line that clients can provoke to one per [`LOG_PERIOD`].
#[derive(Debug, Default)]
pub(super) struct LogThrottle {
    written: Option<Instant>,
    unwritten: u64,
}

impl LogThrottle {
    /// Counts an occurrence. Returns `Some` if its line may be written now, with the number of occurrences
    /// suppressed before it.
    pub(super) fn one_more(&mut self, now: Instant) -> Option<u64> {
        if self.written.is_some_and(|written| now.duration_since(written) < LOG_PERIOD) {
            self.unwritten += 1;
            return None;
        }
        self.written = Some(now);
        Some(std::mem::take(&mut self.unwritten))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_of_clients_is_written_once_a_minute_with_a_count() {
        let start = Instant::now();
        let mut lines = LogThrottle::default();
        let mut check = |secs, expect| assert_eq!(lines.one_more(start + Duration::from_secs(secs)), expect);
        check(0, Some(0));
        check(1, None);
        check(59, None);
        check(60, Some(2));
        check(61, None);
        check(500, Some(1));
        check(1000, Some(0));
    }
}
