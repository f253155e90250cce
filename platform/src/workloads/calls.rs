//! `kedge session`: a process of its own for each session that somebody has with this node.
//!
//! Always holds: it is nobody's child and has no descriptor of the agent's but where errors are written, so a session outlives agents, and
//! one that crashes harms nobody; beside the shims it gets little of a busy processor, and when memory ends it goes before they do.
//! Leaves to others: what it serves (the crate `kedge`).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};

use super::probe::control_groups;
use super::{GroupLimits, Settings, process};
use crate::linux::Roots;

/// An ordinary process: the agent's own score is inherited, and protects it.
const OOM_SCORE: &str = "0";
/// The group below that of the shims' parent: `/kedge/sessions` for `/kedge/shims`.
const GROUP: &str = "sessions";
/// What all sessions together get of busy processors, where a service of the machine gets 1024.
const SHARES: u64 = 128;
/// What of the environment a session needs: the way to the server.
const KEPT: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];

/// Starts this program anew with these words. Returns once it runs.
///
/// # Errors
/// The machine gives no process.
pub fn start_session(words: &[OsString]) -> io::Result<()> {
    start(words, Stdio::null(), Stdio::null())
}

/// The same for the process that serves a port: with the socket that listens, and a stream by which its starter hears when it
/// listens no longer.
///
/// # Errors
/// As [`start_session`].
pub fn start_port(words: &[OsString], listener: OwnedFd, starter: OwnedFd) -> io::Result<()> {
    start(words, listener.into(), starter.into())
}

/// Takes both over, in the process that [`start_port`] started: they end with what is returned.
///
/// # Errors
/// There is no room for descriptors.
pub fn handed_over() -> io::Result<(OwnedFd, OwnedFd)> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let starter = io::stdout().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(&nothing)?;
    nix::unistd::dup2_stdout(&nothing)?;
    Ok((listener, starter))
}

fn start(words: &[OsString], input: Stdio, output: Stdio) -> io::Result<()> {
    // also after an upgrade the one that runs
    let mut command = Command::new("/proc/self/exe");
    process::with_plain_environment(&mut command);
    for name in KEPT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.args(words).current_dir("/").stdin(input).stdout(output);
    process::orphaned(&mut command).spawn()?.wait().map(drop)
}

/// Leaves the agent's control group and its protection, in a process that [`start_session`] started. Where that is refused, as to a user
/// who is not root, it goes on where it is.
pub fn stand_apart(settings: Option<&Settings>) {
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let Some(settings) = settings else { return };
    let Some((parent, _)) = settings.shims_group.rsplit_once('/') else { return };
    let cgroups = control_groups(&Roots::default());
    let group = format!("{parent}/{GROUP}");
    let limits = GroupLimits { cpu_shares: Some(SHARES), ..GroupLimits::default() };
    let _ = cgroups.make(&group, &limits);
    let _ = cgroups.put(&group, 0);
}
