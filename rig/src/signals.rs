//! SIGINT and SIGTERM as a message, without unsafe code.
//!
//! Owns one thread with tokio's signal driver. Once started, neither signal ends this process by itself any
//! more; processes started from here get the default actions back.

use std::io;
use std::sync::mpsc::{Receiver, channel};

/// A signal that orders us to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Starts to listen; each signal is one message.
pub fn listen() -> io::Result<Receiver<StopSignal>> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    drop(guard);
    let (sender, receiver) = channel();
    let forward_interrupts = sender.clone();
    runtime.spawn(async move {
        while interrupt.recv().await.is_some() && forward_interrupts.send(StopSignal::Interrupt).is_ok() {}
    });
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async move {
            while terminate.recv().await.is_some() && sender.send(StopSignal::Terminate).is_ok() {}
        });
    })?;
    Ok(receiver)
}
