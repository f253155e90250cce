//! The program that started and supervises us (systemd, or anything that speaks its notification protocol).
//!
//! Always holds: without a supervisor every call is a cheap no-op; a supervisor that does not answer never
//! blocks or ends the agent.
//!
//! Leaves to others: deciding whether to ping. `watchdog` decides that.

use std::time::Duration;

/// Messages to the supervisor. The meanings are those of sd_notify(3).
pub trait Supervisor: Send + Sync {
    /// The first full turn is done (`READY=1`), which is a ping, too: from now on the watchdog's own period
    /// applies.
    fn ready(&self);

    /// A stop has begun that we chose or were ordered to make (`STOPPING=1`).
    fn stopping(&self);

    /// The program is about to replace itself in place (`RELOADING=1`); `READY=1` of the next image completes
    /// that. `monotonic`: the present time of the clock with which the supervisor compares it.
    fn reloading(&self, monotonic: Duration);

    /// Every loop makes progress (`WATCHDOG=1`). Send it more often than `watchdog_period`.
    fn watchdog_ping(&self);

    /// Starting or stopping needs this much longer, counted from now (`EXTEND_TIMEOUT_USEC`).
    fn extend_timeout(&self, by: Duration);

    /// One line for people (`STATUS=`); line breaks become spaces, and it is cut at [`STATUS_LIMIT`] bytes.
    fn status(&self, text: &str);

    /// How long the supervisor waits for a ping before it kills us; `None` when it does not watch this
    /// process. Ping at a third of it, so that two pings may be late without consequences.
    fn watchdog_period(&self) -> Option<Duration>;
}

/// Longest status line, in bytes: a datagram must fit into one socket buffer, and people read one line.
pub const STATUS_LIMIT: usize = 512;

/// `text` as one line of at most [`STATUS_LIMIT`] bytes.
pub fn status_line(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + character.len_utf8() > STATUS_LIMIT {
            break;
        }
        line.push(character);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_one_line_cut_at_a_character() {
        assert_eq!(status_line("in trial\nREADY=1"), "in trial READY=1");
        let long = "ä".repeat(STATUS_LIMIT);
        assert_eq!(status_line(&long).len(), STATUS_LIMIT);
        assert!(status_line(&format!("x{long}")).len() < STATUS_LIMIT);
    }
}
