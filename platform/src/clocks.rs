//! The clocks of a board.
//!
//! What always holds: `monotonic` never goes back and never jumps when the date is set; durations,
//! deadlines and trials are measured with it. `wall` is for people to read and for certificates: it may be years off, may
//! step either way at any moment, and nothing here compares two of its values.
//!
//! Leaves to others: timers, and what to do when a date is absurd.

use std::time::{Duration, SystemTime};

/// The clocks of a board.
pub trait Clocks: Send + Sync {
    /// Time since an arbitrary moment of this boot. Stands still while the machine sleeps, so it measures *running*.
    fn monotonic(&self) -> Duration;

    /// The date, as the machine believes it. Boards without a battery begin in 1970 or at the image's date.
    fn wall(&self) -> SystemTime;

    /// The kernel's random name for this boot: two equal ids mean that no power cut and no reboot lies between.
    /// Empty when it cannot be read, which must be taken as "another boot".
    fn boot_id(&self) -> &str;
}
