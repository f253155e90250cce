//! `kedge session`: a separate process for each session that a client has with this node.
//!
//! Always holds: it is not a child of the agent and has none of its descriptors, except the one for errors,
//! so a session outlives agents, and a crash of one harms no other process; compared with the shims it gets a
//! small share of a busy processor, and is killed first when memory runs out. Leaves to others: the service
//! itself (the crate `kedge`).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};

use super::probe::control_groups;
use super::{GroupLimits, Settings, process};
use crate::linux::Roots;

/// The score of an ordinary process: otherwise it would inherit the agent's, which protects it.
const OOM_SCORE: &str = "0";
/// The group below that of the shims' parent: `/kedge/sessions` for `/kedge/shims`.
const GROUP: &str = "sessions";
/// Processor share of all sessions together, where a service of the machine gets 1024.
const SHARES: u64 = 128;
/// The environment variables that a session needs to reach the server.
const KEPT: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];

/// Starts this program anew with these words. Returns once it runs.
///
/// # Errors
/// The machine cannot start another process.
pub fn start_session(words: &[OsString]) -> io::Result<()> {
    start(words, Stdio::null(), Stdio::null())
}

/// The same for the process that serves a port: with the listening socket, and a stream that tells its
/// starter when it stops listening.
///
/// # Errors
/// As [`start_session`].
pub fn start_port(words: &[OsString], listener: OwnedFd, starter: OwnedFd) -> io::Result<()> {
    start(words, listener.into(), starter.into())
}

/// Takes over both descriptors, in the process that [`start_port`] started.
///
/// # Errors
/// No descriptor is free.
pub fn handed_over() -> io::Result<(OwnedFd, OwnedFd)> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let starter = io::stdout().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(&nothing)?;
    nix::unistd::dup2_stdout(&nothing)?;
    Ok((listener, starter))
}

fn start(words: &[OsString], input: Stdio, output: Stdio) -> io::Result<()> {
    // the running program, even after an upgrade of its file
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

/// Leaves the agent's control group and gives up its protection from the OOM killer, in a process that
/// [`start_session`] started. If that is refused, as for a user other than root, the process stays where it
/// is.
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
