//! sd_notify(3) over the socket in `$NOTIFY_SOCKET`.
//!
//! Agent, hub and rig all use it. The crate sd-notify composes the messages and reads the watchdog's
//! variables. The socket is ours: sd-notify 0.5 opens one for each message, blocks on a supervisor that does
//! not read, and takes an abstract address (`@...`, in containers) for a path.
//!
//! Always holds: without the variable nothing is sent; of failures in a row only the first is logged, and
//! none has other effects. Leaves to others: the times of pings. The variables stay in the environment; child
//! processes must not inherit them.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::supervisor::{Supervisor, status_line};

/// How long READY and extensions wait for a busy supervisor: at boot its queue can be full.
const PATIENCE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// The supervisor behind `$NOTIFY_SOCKET`, if any.
#[derive(Debug)]
pub struct NotifySocket {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog_period: Option<Duration>,
    failing: AtomicBool,
}

impl NotifySocket {
    /// The supervisor of this process's environment.
    pub fn from_environment() -> Self {
        Self::new(std::env::var_os("NOTIFY_SOCKET"), sd_notify::watchdog_enabled())
    }

    /// True if there is a service manager that reads the messages.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// The supervisor at this address, which expects a ping within each period; zero expects none.
    pub fn new(address: Option<OsString>, watchdog_period: Option<Duration>) -> Self {
        let socket = address.filter(|name| !name.is_empty()).and_then(|name| {
            let opened = open(&name);
            opened.inspect_err(|error| log::warn!("cannot use NOTIFY_SOCKET {name:?}: {error}")).ok()
        });
        let watchdog_period = watchdog_period.filter(|period| !period.is_zero());
        Self { socket, watchdog_period, failing: AtomicBool::new(false) }
    }

    fn try_send(&self, states: &[NotifyState]) -> io::Result<()> {
        let Some((socket, address)) = &self.socket else { return Ok(()) };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        socket.send_to_addr(message.as_bytes(), address).map(|_| ())
    }

    fn report(&self, sent: io::Result<()>) {
        match sent {
            Ok(()) => self.failing.store(false, Ordering::Relaxed),
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                log::warn!("cannot notify the supervisor: {error}");
            }
            Err(_) => {}
        }
    }

    fn send(&self, state: NotifyState) {
        self.report(self.try_send(&[state]));
    }

    /// Sends a message without which the supervisor would kill a healthy program: waits up to [`PATIENCE`]
    /// while its queue is full.
    fn send_patiently(&self, states: &[NotifyState]) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_send(states) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(RETRY);
                }
                sent => return self.report(sent),
            }
        }
    }
}

fn open(name: &OsString) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    let socket = UnixDatagram::unbound()?;
    // A full queue means that the supervisor does not read; a lost ping is then justified.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

impl Supervisor for NotifySocket {
    fn ready(&self) {
        // systemd has applied the start's extensions to the watchdog, too: the ping ends that
        self.send_patiently(&[NotifyState::Ready, NotifyState::Watchdog]);
    }

    fn stopping(&self) {
        self.send(NotifyState::Stopping);
    }

    fn reloading(&self, monotonic: Duration) {
        // one message: systemd takes the time as that of the RELOADING beside it
        let time = i128::try_from(monotonic.as_micros()).unwrap_or(i128::MAX);
        self.send_patiently(&[NotifyState::Reloading, NotifyState::MonotonicUsec(time)]);
    }

    fn watchdog_ping(&self) {
        self.send(NotifyState::Watchdog);
    }

    fn extend_timeout(&self, by: Duration) {
        // the crate's longest: 71 minutes
        let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
        self.send_patiently(&[NotifyState::ExtendTimeoutUsec(micros)]);
    }

    fn status(&self, text: &str) {
        self.send(NotifyState::Status(&status_line(text)));
    }

    fn watchdog_period(&self) -> Option<Duration> {
        self.watchdog_period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> NotifySocket {
        NotifySocket::new(Some(address.into()), None)
    }

    #[test]
    fn watchdog_without_a_period_expects_no_ping() {
        let period = |period| NotifySocket::new(None, period).watchdog_period();
        assert_eq!(period(Some(Duration::from_secs(30))), Some(Duration::from_secs(30)));
        assert_eq!((period(Some(Duration::ZERO)), period(None)), (None, None));
    }

    /// The variables of another process, as `systemd-run` leaves them to children, are not this one's.
    #[test]
    fn watchdog_of_another_process_is_ignored() {
        let name = "linux::supervisor::tests::watchdog_of_another_process_is_ignored";
        if let Some(expect) = std::env::var_os("KEDGE_TEST_WATCHDOG") {
            let period = NotifySocket::from_environment().watchdog_period();
            assert_eq!(format!("{period:?}").as_str(), expect);
            return;
        }
        let check = |usec: Option<&str>, pid: Option<&str>, expect| {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", name]).env("KEDGE_TEST_WATCHDOG", expect);
            for (key, value) in [("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)] {
                child.env_remove(key).envs(value.map(|value| (key, value)));
            }
            let output = child.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        };
        check(None, None, "None");
        check(Some("30000000"), None, "Some(30s)");
        check(Some("30000000"), Some("1"), "None");
        check(Some("0"), None, "None");
        check(Some("soon"), None, "None");
    }

    #[test]
    fn messages_follow_the_notify_protocol() {
        let address = SocketAddr::from_abstract_name(format!("kedge-test-{}", std::process::id())).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        let socket = at(&format!("@kedge-test-{}", std::process::id()));
        socket.ready();
        socket.watchdog_ping();
        socket.extend_timeout(Duration::from_secs(2));
        socket.status("in trial\n00:12 left");
        socket.reloading(Duration::from_millis(7));
        socket.stopping();
        for expect in [
            "READY=1\nWATCHDOG=1\n",
            "WATCHDOG=1\n",
            "EXTEND_TIMEOUT_USEC=2000000\n",
            "STATUS=in trial 00:12 left\n",
            "RELOADING=1\nMONOTONIC_USEC=7000\n",
            "STOPPING=1\n",
        ] {
            let mut buffer = [0; 256];
            let length = listener.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(&buffer[..length]).unwrap(), expect);
        }
    }

    #[test]
    fn absent_or_blocked_supervisor_is_harmless() {
        NotifySocket::new(None, None).ready();
        at("/nonexistent/socket").ready();
        at("relative").ready();
        at("").ready();
        let name = format!("kedge-deaf-{}", std::process::id());
        let _deaf = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let socket = at(&format!("@{name}"));
        for _ in 0..10_000 {
            socket.watchdog_ping();
        }
    }

    #[test]
    fn ready_waits_while_the_queue_is_full() {
        let name = format!("kedge-busy-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let socket = at(&format!("@{name}"));
        while socket.try_send(&[NotifyState::Watchdog]).is_ok() {}
        std::thread::scope(|scope| {
            scope.spawn(|| socket.ready());
            let mut buffer = [0; 256];
            loop {
                let length = listener.recv(&mut buffer).unwrap();
                if &buffer[..length] == b"READY=1\nWATCHDOG=1\n" {
                    break;
                }
            }
        });
    }
}
