//! Talking to programs in containers: `kedge exec` and `kedge attach` on the device, and the same for a
//! client of the API server.
//!
//! Owns the choice of the container (`place`), the movement of bytes in both directions (`relay`), and the
//! clients: a person's terminal (`local`), a WebSocket (`websocket`), streams of SPDY (`spdy_remote`).
//! Connections to ports of a pod are separate (`port_forward`, over `spdy`, which a WebSocket may carry:
//! `tunnel`). Always holds: it works while no agent runs, because everything is read from the records of the
//! containers; a program that was run for a client ends with it. Memory is bounded: a side that does not read
//! makes the other wait, as at any pipe. Blocks: it is a command, or a process of its own. Leaves to others:
//! starting and ending programs (platform).

mod local;
pub(crate) mod place;
pub(crate) mod port_forward;
pub(crate) mod relay;
mod spdy;
pub(crate) mod spdy_remote;
pub(crate) mod tunnel;
pub(crate) mod websocket;

use crate::options::{AgentOptions, AttachOptions, ExecOptions};
use crate::output::CommandError;
use std::time::Duration;

use kedge_core::kubelet;
use kedge_platform::streams::Signals;
use kedge_platform::workloads::{AttachOrder, Attachment, Session, SessionOrder, Settings, WindowSize};

use crate::local::client;
use crate::local_config;
use local::Local;
use place::Place;
use relay::{End, Running as _};
pub use spdy::heard as spdy_heard;
pub use websocket::heard as websocket_heard;

/// The size of a terminal whose own size is unknown.
pub(crate) const USUAL_SIZE: WindowSize = WindowSize { rows: 24, columns: 80 };
/// The shell adds this to a signal's number for the exit code.
const SIGNAL_CODE: i32 = 128;

/// How long a session of the API's clients may be silent, unless the configuration sets it: as upstream.
const USUAL_SILENCE: Duration = Duration::from_secs(4 * 60 * 60);

/// `streamingConnectionIdleTimeout`: of the running agent, or else of the local configuration.
pub(crate) fn longest_silence(agent: &AgentOptions) -> Duration {
    let of_agent = || {
        let answer = client::get(&agent.places.socket(), "/configz").ok()?;
        let body: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        let text = body.pointer("/kubeletconfig/streamingConnectionIdleTimeout")?.as_str()?;
        u64::try_from(kubelet::duration::parse(text)?).ok().map(Duration::from_nanos)
    };
    let local = || {
        let layers = local_config::read(&agent.local).ok()?;
        Some(kubelet::effective(&layers, None).ok()?.config.streaming_connection_idle_timeout)
    };
    of_agent().or_else(local).unwrap_or(USUAL_SILENCE)
}

fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(error)
}

/// crun and its places, if this user may use them.
fn settings(agent: &AgentOptions) -> Result<Settings, CommandError> {
    if !kedge_platform::linux::is_root() {
        return Err(failed("only root may talk to containers of this node"));
    }
    let crun = &agent.runtime.crun;
    agent
        .runtime
        .settings(&agent.places)
        .ok_or_else(|| failed(format_args!("{} is missing, so no containers run here", crun.display())))
}

/// `kedge exec`: the exit code of the program.
///
/// # Errors
/// The container or program does not exist, or the terminal cannot be used.
pub fn exec(options: &ExecOptions) -> Result<i32, CommandError> {
    let settings = settings(&options.agent)?;
    let place = Place::find(&settings, &options.pod, options.container.as_deref()).map_err(failed)?;
    let signals = Signals::take().map_err(|error| failed(format_args!("take over signals: {error}")))?;
    let mut local = Local::new(options.stdin, options.tty, signals).map_err(failed)?;
    let order = SessionOrder {
        id: &place.id,
        command: &options.command,
        stdin: options.stdin,
        stdout: true,
        stderr: !options.tty,
        terminal: options.tty.then(|| local.size().unwrap_or(USUAL_SIZE)),
    };
    let mut session = Session::start(&order, &settings).map_err(failed)?;
    match relay::relay(&mut session, &mut local, None) {
        Ok(End::Code(code)) => Ok(code),
        Ok(End::Gone) => Ok(local.ended_by().map_or(1, |signal| SIGNAL_CODE + signal)),
        Err(error) => {
            session.end();
            Err(failed(error))
        }
    }
}

/// `kedge attach`: the exit code of the container, if it ends meanwhile.
///
/// # Errors
/// The container does not exist, cannot be attached to, or the terminal cannot be used.
pub fn attach(options: &AttachOptions) -> Result<i32, CommandError> {
    let settings = settings(&options.agent)?;
    let place = Place::find(&settings, &options.pod, options.container.as_deref()).map_err(failed)?;
    let order = AttachOrder { id: &place.id, stdin: options.stdin, stdout: true, stderr: true };
    let mut attachment = Attachment::open(order, &settings).map_err(failed)?;
    let has_terminal = options.tty && attachment.has_terminal();
    if options.tty && !has_terminal {
        let name = &place.id.name;
        eprintln!("error: Unable to use a TTY - container {name} did not allocate one");
    }
    let signals = Signals::take().map_err(|error| failed(format_args!("take over signals: {error}")))?;
    let mut local = Local::new(options.stdin, has_terminal, signals).map_err(failed)?;
    if let Some(size) = local.size().filter(|_| has_terminal) {
        attachment.resize(size);
    }
    match relay::relay(&mut attachment, &mut local, None) {
        Ok(End::Code(code)) => Ok(code),
        Ok(End::Gone) => Ok(local.ended_by().map_or(1, |signal| SIGNAL_CODE + signal)),
        Err(error) => Err(failed(error)),
    }
}
