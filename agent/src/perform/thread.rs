//! Starts and ends the threads of loops.

use crate::net::transport;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a loop that talks to the network may take for one turn: the longest deadline, and the lookup of a
/// name, which no deadline can cut short.
pub(crate) const NETWORK_TURN: Duration = Duration::from_secs(60);

/// The stream of renewals. Without watches its connection is the only one that is kept.
pub(crate) const RENEW: &str = "renew";

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(transport::STACK_BYTES).spawn(body)
}

/// Waits for the end of a thread. False if it has not ended by then.
pub(crate) fn has_finished(thread: &JoinHandle<()>, by: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() > by {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
