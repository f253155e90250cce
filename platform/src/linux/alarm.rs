//! A kernel timer as a descriptor, for a loop that waits for descriptors anyway. A runtime's timers also wake
//! their thread on the way: tokio's after at most 4.1 s, and again for the rest.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Readable once its time is over.
#[derive(Debug)]
pub struct Alarm(TimerFd);

impl Alarm {
    /// Makes one that is not set.
    ///
    /// # Errors
    /// The system gave none.
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?))
    }

    /// Sets it in place of what it was set to; `None`: it never goes off.
    ///
    /// # Errors
    /// Only for a time that the system does not take.
    pub fn set(&self, after: Option<Duration>) -> io::Result<()> {
        // zero would be never
        let after = after.map(|after| TimeSpec::from_duration(after.max(Duration::from_nanos(1))));
        match after {
            Some(after) => self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())?,
            None => self.0.unset()?,
        }
        Ok(())
    }

    /// Acknowledges that it went off.
    ///
    /// # Errors
    /// `WouldBlock`: it did not since it was set.
    pub fn went_off(&self) -> io::Result<()> {
        Ok(nix::unistd::read(self.0.as_fd(), &mut [0; 8]).map(drop)?)
    }

    /// Waits until it goes off, however often it is set anew meanwhile: that does not wake this thread.
    ///
    /// # Errors
    /// The system does not let it wait.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            let mut waits = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, PollTimeout::NONE) {
                // set anew just before it was acknowledged: it did not go off
                Ok(_) if self.went_off().is_ok() => return Ok(()),
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(alarm: &Alarm, within_ms: u16) -> bool {
        let mut waits = [PollFd::new(alarm.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut waits, PollTimeout::from(within_ms)).unwrap() == 1
    }

    #[test]
    fn alarm_goes_off_once_each_time_it_is_set() {
        let alarm = Alarm::new().unwrap();
        assert_eq!(alarm.went_off().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        for after in [Duration::ZERO, Duration::from_millis(1)] {
            alarm.set(Some(after)).unwrap();
            assert!(is_readable(&alarm, 10_000), "{after:?}");
            alarm.went_off().unwrap();
            assert!(!is_readable(&alarm, 0), "{after:?}");
        }
    }

    #[test]
    fn alarm_set_anew_forgets_that_it_went_off() {
        let alarm = Alarm::new().unwrap();
        for later in [Some(Duration::from_secs(3600)), None] {
            alarm.set(Some(Duration::ZERO)).unwrap();
            assert!(is_readable(&alarm, 10_000));
            alarm.set(later).unwrap();
            assert_eq!(alarm.went_off().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }
    #[test]
    fn alarm_that_is_set_anew_wakes_nobody() {
        let alarm = Alarm::new().unwrap();
        alarm.set(Some(Duration::from_secs(3600))).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| alarm.wait());
            for _ in 0..100 {
                alarm.set(Some(Duration::from_secs(3600))).unwrap();
            }
            assert!(!waiting.is_finished());
            alarm.set(Some(Duration::ZERO)).unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(alarm.went_off().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
