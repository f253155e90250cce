//! Linux' clocks.
//!
//! Always holds: the boot id is read once; `monotonic` is CLOCK_MONOTONIC, by which systemd measures its
//! timeouts, and which stops in suspend.
//!
//! Leaves to others: timers.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use super::{Roots, read_text};
use crate::clocks::Clocks;

/// The machine's clocks.
#[derive(Clone, Debug)]
pub struct LinuxClocks {
    boot_id: String,
}

impl LinuxClocks {
    /// Reads the boot id; an unreadable one is empty.
    pub fn new(roots: &Roots) -> Self {
        Self { boot_id: boot_id(roots) }
    }
}

impl Clocks for LinuxClocks {
    fn monotonic(&self) -> Duration {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .expect("CLOCK_MONOTONIC exists on every Linux, and the pointer is ours");
        Duration::from(now)
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn boot_id(&self) -> &str {
        &self.boot_id
    }
}

/// The kernel's random name for this boot; empty when it cannot be read.
pub(super) fn boot_id(roots: &Roots) -> String {
    let path = roots.proc.join("sys/kernel/random/boot_id");
    read_text(&path).unwrap_or_else(|error| {
        log::warn!("cannot read {}: {error}", path.display());
        String::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_clock_does_not_go_back() {
        let clocks = LinuxClocks::new(&Roots::default());
        let before = clocks.monotonic();
        assert!(clocks.monotonic() >= before);
        assert_eq!(clocks.boot_id().len(), 36);
        assert_eq!(clocks.boot_id(), LinuxClocks::new(&Roots::default()).boot_id());
    }

    #[test]
    fn missing_boot_id_is_empty() {
        assert_eq!(LinuxClocks::new(&Roots::under("/nonexistent")).boot_id(), "");
    }
}
