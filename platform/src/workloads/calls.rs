//! `kedge session`: a process of its own for each session that somebody has with this node.
//!
//! Always holds: it is nobody's child and has no descriptor of the agent's but where errors are written, so a session outlives agents, and
//! one that crashes harms nobody; beside the shims it gets little of a busy processor, and when memory ends it goes before they do.
//! Leaves to others: what it serves (the crate `kedge`).

use std::ffi::OsString;
use std::io;
use std::process::{Command, Stdio};

use super::probe::probe;
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
    // also after an upgrade the one that runs
    let mut command = Command::new("/proc/self/exe");
    process::with_plain_environment(&mut command);
    for name in KEPT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.args(words).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    process::orphaned(&mut command).spawn()?.wait().map(drop)
}

/// Leaves the agent's control group and its protection, in a process that [`start_session`] started. Where that is refused, as to a user
/// who is not root, it goes on where it is.
pub fn stand_apart(settings: Option<&Settings>) {
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let Some(settings) = settings else { return };
    let Some((parent, _)) = settings.shims_group.rsplit_once('/') else { return };
    let cgroups = probe(&Roots::default(), &settings.crun).cgroups;
    let group = format!("{parent}/{GROUP}");
    let limits = GroupLimits { cpu_shares: Some(SHARES), ..GroupLimits::default() };
    let _ = cgroups.make(&group, &limits);
    let _ = cgroups.put(&group, 0);
}
