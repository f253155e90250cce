//! The machine's shutdown: a thread that delays it until pods have ended, by logind's delay.
//!
//! Always holds: a delay is taken before the first shutdown is awaited, again after a cancelled one, and
//! released when core says so; it ends with this process, too, and logind waits no longer than it is
//! configured to. Without logind the machine stops without waiting, which is logged once, and checked again;
//! a shutdown that began or was cancelled meanwhile is noticed then. No watchdog waits for this thread.
//! Leaves to others: which pods end when (core).

use crate::locks::locked;
use kedge_core::Event;
use kedge_core::pods::PodEvent;
use kedge_platform::linux::logind::{Delay, Logind};
use kedge_platform::linux::write_regular;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::Sender;

const STACK_BYTES: usize = 64 * 1024;
/// Before a bus that is gone, or was never there, is tried again; doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How often to check whether logind has read its configuration again, and the time in between.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(200);
/// Time for the last statuses, in addition to the pods' time.
const SPARE: Duration = Duration::from_secs(5);

/// The places of the machine's parts.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The socket of the system's message bus.
    pub(crate) bus: PathBuf,
    /// The file from which logind reads its longest delay; lost with the next boot.
    pub(crate) drop_in: PathBuf,
}

/// A delay of the machine's shutdown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown(Arc<Mutex<Option<Delay>>>);

impl Shutdown {
    /// Delays the machine's shutdown for as long as pods have together.
    ///
    /// # Errors
    /// The system gave no thread for it.
    pub(crate) fn start(places: Places, grace: Duration, events: Sender<Event>) -> io::Result<Self> {
        let shutdown = Self::default();
        let own = shutdown.clone();
        let thread = std::thread::Builder::new().name("shutdown".into()).stack_size(STACK_BYTES);
        thread.spawn(move || own.run(&places, grace + SPARE, &events))?;
        Ok(shutdown)
    }

    /// Lets the machine stop.
    pub(crate) fn let_go(&self) {
        drop(locked(&self.0).take());
    }

    fn run(&self, places: &Places, needed: Duration, events: &Sender<Event>) {
        let mut pause = FIRST_PAUSE;
        let mut logged = String::new();
        let mut told = false;
        loop {
            let mut has_held = false;
            let Err(error) = self.follow(places, needed, &mut has_held, &mut |stops| {
                if std::mem::replace(&mut told, stops) != stops {
                    let _ = events.blocking_send(Event::Pods(Box::new(PodEvent::Shutdown(stops))));
                }
            });
            self.let_go();
            let why = error.to_string();
            if has_held {
                (pause, logged) = (FIRST_PAUSE, String::new());
            }
            if logged != why {
                log::warn!(
                    "the machine does not wait for pods when it stops: {}: {why}; trying again",
                    places.bus.display()
                );
                logged = why;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn follow(
        &self,
        places: &Places,
        needed: Duration,
        has_held: &mut bool,
        tell: &mut dyn FnMut(bool),
    ) -> io::Result<std::convert::Infallible> {
        let mut logind = Logind::connect(&places.bus)?;
        let mut is_stopping = logind.is_stopping()?;
        // after a cancelled shutdown pods run again, and none starts on a machine that stops
        tell(is_stopping);
        if !is_stopping {
            see_to_limit(&mut logind, places, needed)?;
        }
        loop {
            if !is_stopping {
                let delay = logind.delay("kedge", "Pods end before the machine stops")?;
                *locked(&self.0) = Some(delay);
                *has_held = true;
            }
            is_stopping = logind.wait()?;
            tell(is_stopping);
        }
    }
}

/// Raises logind's limit, which is five seconds by default.
fn see_to_limit(logind: &mut Logind, places: &Places, needed: Duration) -> io::Result<()> {
    if logind.longest_delay()? >= needed {
        return Ok(());
    }
    let text = format!(
        "# written by kedge: shutdownGracePeriod of its configuration, and a little more\n[Login]\nInhibitDelayMaxSec={}\n",
        needed.as_secs()
    );
    if let Some(folder) = places.drop_in.parent() {
        std::fs::create_dir_all(folder)?;
    }
    write_regular(&places.drop_in, text.as_bytes())?;
    logind.reload()?;
    for _ in 0..LOOKS {
        std::thread::sleep(LOOK);
        if logind.longest_delay()? >= needed {
            return Ok(());
        }
    }
    let found = logind.longest_delay()?;
    log::warn!(
        "logind waits {found:?} for pods when the machine stops, expected {needed:?} as {} says; pods may be cut off",
        places.drop_in.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    /// The bus's answer to the call of this number: a variant of a type with one letter.
    fn answer(call: u8, sort: u8, value: &[u8]) -> Vec<u8> {
        let mut body = vec![1, sort, 0];
        body.resize(body.len().next_multiple_of(value.len()), 0);
        body.extend(value);
        let number = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
        let head = [[b'l', 2, 0, 1], number(body.len()), number(7), number(15)].concat();
        [&head[..], &[5, 1, b'u', 0, call, 0, 0, 0], &[8, 1, b'g', 0, 1, b'v', 0, 0], &body].concat()
    }

    #[test]
    fn state_of_the_machine_is_told_after_each_connection() {
        let scratch = Scratch::new("shutdown").unwrap();
        let places = Places { bus: scratch.join("bus"), drop_in: scratch.join("logind/99.conf") };
        let listener = UnixListener::bind(&places.bus).unwrap();
        let bus = std::thread::spawn(move || {
            for stops in [1, 0] {
                let (mut stream, _) = listener.accept().unwrap();
                let greeting = b"OK 0123\r\nAGREE_UNIX_FD\r\n".to_vec();
                let welcome = [answer(1, b'b', &[0; 4]), answer(2, b'b', &[0; 4])].concat();
                let stops = answer(3, b'b', &[stops, 0, 0, 0]);
                let longest = answer(4, b't', &u64::MAX.to_le_bytes());
                stream.write_all(&[greeting, welcome, stops, longest].concat()).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let (shutdown, mut told, mut has_held) = (Shutdown::default(), Vec::new(), false);
        for _ in 0..2 {
            let mut tell = |stops| told.push(stops);
            let Err(_) = shutdown.follow(&places, Duration::from_secs(1), &mut has_held, &mut tell);
        }
        assert_eq!(told, [true, false], "it was cancelled while the bus was away");
        assert!(!has_held && !places.drop_in.exists());
        bus.join().unwrap();
    }
}
