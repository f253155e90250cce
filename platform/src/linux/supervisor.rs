//! sd_notify(3) over the socket in `$NOTIFY_SOCKET`.
//!
//! Agent, hub and rig all use it. Not taken from a crate: sd-notify 0.5 opens a socket for each message,
//! blocks on a supervisor that does not read, and takes an abstract address (`@...`, in containers) for a
//! path. This one avoids all of that.
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
        Self::new(&|name| std::env::var_os(name), std::process::id())
    }

    /// True if there is a service manager that reads the messages.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// The supervisor in the variables `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`, for the process
    /// `pid`.
    pub fn new(variable: &dyn Fn(&str) -> Option<OsString>, pid: u32) -> Self {
        let socket = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()).and_then(|name| {
            let opened = open(&name);
            opened.inspect_err(|error| log::warn!("cannot use NOTIFY_SOCKET {name:?}: {error}")).ok()
        });
        let number = |name| variable(name).and_then(|value| value.to_str()?.parse::<u64>().ok());
        let watched = number("WATCHDOG_PID").is_none_or(|watched| watched == u64::from(pid));
        let period = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && watched);
        Self { socket, watchdog_period: period.map(Duration::from_micros), failing: AtomicBool::new(false) }
    }

    fn try_send(&self, message: &str) -> io::Result<()> {
        let Some((socket, address)) = &self.socket else { return Ok(()) };
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

    fn send(&self, message: &str) {
        self.report(self.try_send(message));
    }

    /// Sends a message without which the supervisor would kill a healthy program: waits up to [`PATIENCE`]
    /// while its queue is full.
    fn send_patiently(&self, message: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_send(message) {
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
        self.send_patiently("READY=1\nWATCHDOG=1");
    }

    fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn reloading(&self, monotonic: Duration) {
        // one message: systemd takes the time as that of the RELOADING beside it
        self.send_patiently(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic.as_micros()));
    }

    fn watchdog_ping(&self) {
        self.send("WATCHDOG=1");
    }

    fn extend_timeout(&self, by: Duration) {
        self.send_patiently(&format!("EXTEND_TIMEOUT_USEC={}", by.as_micros()));
    }

    fn status(&self, text: &str) {
        self.send(&format!("STATUS={}", status_line(text)));
    }

    fn watchdog_period(&self) -> Option<Duration> {
        self.watchdog_period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[test]
    fn watchdog_period_of_another_process_is_ignored() {
        let check = |pairs, expect: Option<u64>| {
            let socket = NotifySocket::new(&variables(pairs), 7);
            assert_eq!(socket.watchdog_period(), expect.map(Duration::from_secs), "{pairs:?}");
        };
        check(&[], None);
        check(&[("WATCHDOG_USEC", "30000000")], Some(30));
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "7")], Some(30));
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "8")], None);
        check(&[("WATCHDOG_USEC", "0")], None);
        check(&[("WATCHDOG_USEC", "soon")], None);
    }

    #[test]
    fn messages_follow_the_notify_protocol() {
        let address = SocketAddr::from_abstract_name(format!("kedge-test-{}", std::process::id())).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        let name = OsString::from(format!("@kedge-test-{}", std::process::id()));
        let socket = NotifySocket::new(&|key| (key == "NOTIFY_SOCKET").then(|| name.clone()), 7);
        socket.ready();
        socket.watchdog_ping();
        socket.extend_timeout(Duration::from_secs(2));
        socket.status("in trial\n00:12 left");
        socket.reloading(Duration::from_millis(7));
        socket.stopping();
        for expect in [
            "READY=1\nWATCHDOG=1",
            "WATCHDOG=1",
            "EXTEND_TIMEOUT_USEC=2000000",
            "STATUS=in trial 00:12 left",
            "RELOADING=1\nMONOTONIC_USEC=7000",
            "STOPPING=1",
        ] {
            let mut buffer = [0; 256];
            let length = listener.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(&buffer[..length]).unwrap(), expect);
        }
    }

    #[test]
    fn absent_or_blocked_supervisor_is_harmless() {
        NotifySocket::new(&variables(&[]), 7).ready();
        NotifySocket::new(&variables(&[("NOTIFY_SOCKET", "/nonexistent/socket")]), 7).ready();
        NotifySocket::new(&variables(&[("NOTIFY_SOCKET", "relative")]), 7).ready();
        let name = format!("kedge-deaf-{}", std::process::id());
        let _deaf = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let name = OsString::from(format!("@{name}"));
        let socket = NotifySocket::new(&|key| (key == "NOTIFY_SOCKET").then(|| name.clone()), 7);
        for _ in 0..10_000 {
            socket.watchdog_ping();
        }
    }

    #[test]
    fn ready_waits_while_the_queue_is_full() {
        let name = format!("kedge-busy-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let name = OsString::from(format!("@{name}"));
        let socket = NotifySocket::new(&|key| (key == "NOTIFY_SOCKET").then(|| name.clone()), 7);
        while socket.try_send("WATCHDOG=1").is_ok() {}
        std::thread::scope(|scope| {
            scope.spawn(|| socket.ready());
            let mut buffer = [0; 256];
            loop {
                let length = listener.recv(&mut buffer).unwrap();
                if &buffer[..length] == b"READY=1\nWATCHDOG=1" {
                    break;
                }
            }
        });
    }
}
