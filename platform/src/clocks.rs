//! The clocks of a board.
//!
//! Always holds: `monotonic` never goes back and never jumps when the date is set; durations, deadlines and
//! trials are measured with it. `wall` is for people to read and for certificates: it may be years off, may
//! step either way at any moment, and nothing here compares two of its values.
//!
//! Leaves to others: timers, and the reaction to an absurd date.

use std::time::{Duration, SystemTime};

/// The clocks of a board.
pub trait Clocks: Send + Sync {
    /// Time since an arbitrary moment of this boot. It does not advance while the machine sleeps, so it
    /// measures *running*.
    fn monotonic(&self) -> Duration;

    /// The date, as the machine believes it. Boards without a battery begin in 1970 or at the image's date.
    fn wall(&self) -> SystemTime;

    /// The kernel's random name for this boot: two equal ids prove that there was no power cut and no reboot
    /// in between. Empty when it cannot be read, which must be taken as "another boot".
    fn boot_id(&self) -> &str;
}
