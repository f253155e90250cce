//! Whether the client at the other end of a connection is still there, also while nothing that it sent is
//! read.
//!
//! A program that takes no input stops its client's bytes all the way, and with them the end of the stream:
//! read in order, that end would be seen when the program takes input again, which may be never. Always
//! holds: looking takes nothing from the stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kedge_platform::streams::{Awaited, is_ready};

/// How often a client is looked at. A test has no such patience.
const LOOK: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };

/// A second descriptor of a client's connection.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// # Errors
    /// The process has no descriptor left.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        socket.as_fd().try_clone_to_owned().map(Self)
    }

    /// Returns when the client has left this long ago, at most a second later, or the connection was reset.
    pub(super) async fn left_for(&self, time: Duration) {
        let mut since = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let mut is_over = || since.get_or_insert_with(Instant::now).elapsed() >= time;
            if is_ready(Awaited::broken(&self.0)) || (is_ready(Awaited::end(&self.0)) && is_over()) {
                return;
            }
        }
    }
}
