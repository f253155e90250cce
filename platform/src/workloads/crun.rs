//! Calls of crun, in the same form for shim and agent.
//!
//! Always holds: each call is limited in time and writes its errors to a file of the bundle, because the
//! container inherits its output. `delete` of a container that crun does not know succeeds.
//!
//! Leaves to others: a container that crun could not make (`shim`, `linux`).

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::places::Places;
use super::process;
use super::records::{CrunOrder, ERROR_BYTES, shortened};
use super::{ContainerId, Settings};
use crate::linux::read_regular;
use crate::trees;

/// crun's errors, in the bundle.
const LOG: &str = "crun.log";
/// The file in the bundle to which crun writes the ID of the container's first process.
pub(super) const PID_FILE: &str = "pid";
const PID_BYTES: usize = 64;
/// Longest `config.json` that is read: ten times the limit of a process's environment, and the mounts of the
/// largest pod.
const CONFIG_BYTES: usize = 32 * 1024 * 1024;
/// Longest time of `crun delete` beyond what the kernel needs to end processes.
pub(super) const DELETE_WITHIN: Duration = Duration::from_secs(15);

/// The name of a container for crun: one root directory of crun serves many pods.
pub(super) fn name_of(id: &ContainerId) -> String {
    format!("{}.{}", id.pod, id.directory())
}

impl CrunOrder {
    pub(super) fn of(settings: &Settings) -> Self {
        let places = Places { run: settings.run.clone(), data: settings.data.clone() };
        Self {
            program: settings.crun.program.clone(),
            root: places.crun(),
            limit_ms: u64::try_from(settings.crun.limit.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms)
    }

    fn command(&self, bundle: &Path) -> Command {
        let mut command = self.without_log(bundle);
        command.arg("--log").arg(bundle.join(LOG));
        command
    }

    fn without_log(&self, bundle: &Path) -> Command {
        let mut command = Command::new(&self.program);
        // the one manager that works on both kinds of trees, and needs no D-Bus
        command.arg("--cgroup-manager=cgroupfs").arg("--root").arg(&self.root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(bundle);
        process::with_plain_environment(&mut command);
        command
    }

    /// `crun create`; its streams become the container's. With `console`, a socket in the bundle, it sends
    /// the master side of the container's terminal there.
    pub(super) fn create(
        &self,
        bundle: &Path,
        id: &ContainerId,
        [stdin, stdout, stderr]: [Stdio; 3],
        console: Option<&Path>,
    ) -> Command {
        let mut command = self.command(bundle);
        command.args(["create", "--bundle"]).arg(bundle).arg("--pid-file").arg(bundle.join(PID_FILE));
        if let Some(console) = console {
            command.arg("--console-socket").arg(console);
        }
        // the keyring that it gets here, and none from crun
        command.arg("--no-new-keyring").arg(name_of(id)).stdin(stdin).stdout(stdout).stderr(stderr);
        process::with_own_keyring(process::making_readable_files(&mut command));
        command
    }

    /// `crun start`.
    pub(super) fn start(&self, bundle: &Path, id: &ContainerId) -> Command {
        let mut command = self.command(bundle);
        command.arg("start").arg(name_of(id));
        command
    }

    /// `crun exec`; its errors go to the program's error output, because several may run at once, and a
    /// bundle has only one log.
    pub(super) fn exec(&self, bundle: &Path, id: &ContainerId, process: &str, pid_file: &Path) -> Command {
        let mut command = self.without_log(bundle);
        command.args(["exec", "--process", process, "--pid-file"]).arg(pid_file).arg(name_of(id));
        process::with_own_keyring(&mut command);
        command
    }

    /// `crun exec` of a program with a client: crun's own errors go to a file. With `console`, a socket in
    /// the bundle, it sends the master side of the program's terminal there.
    pub(super) fn session(
        &self,
        bundle: &Path,
        id: &ContainerId,
        process: &str,
        files: (&Path, &Path),
        console: Option<&Path>,
    ) -> Command {
        let mut command = self.without_log(bundle);
        let (pid_file, log) = files;
        command.arg("--log").arg(log).args(["exec", "--process", process, "--pid-file"]).arg(pid_file);
        if let Some(console) = console {
            command.arg("--console-socket").arg(console);
        }
        command.arg(name_of(id));
        process::with_own_keyring(&mut command);
        command
    }

    /// `crun delete --force`.
    pub(super) fn delete(&self, bundle: &Path, id: &ContainerId) -> Command {
        let mut command = self.command(bundle);
        command.args(["delete", "--force"]).arg(name_of(id));
        command
    }

    /// Removes crun's state of a container, killing the container if it lives.
    ///
    /// # Errors
    /// crun still has it; `TimedOut`: because crun does not answer.
    pub(super) fn forget(&self, bundle: &Path, id: &ContainerId) -> io::Result<()> {
        let known = self.root.join(name_of(id));
        if !known.exists() {
            return Ok(());
        }
        let limit = DELETE_WITHIN.min(self.limit());
        let done = process::run_within(&mut self.delete(bundle, id), limit);
        match done {
            _ if !known.exists() => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), format!("crun delete {}: {error}", name_of(id)))),
            Ok(status) => {
                // an interrupted create leaves a directory without a status, which crun will not delete
                if !known.join("status").exists() {
                    return fs::remove_dir_all(&known);
                }
                let said = errors(bundle);
                Err(io::Error::other(format!("crun delete {} ended with {status}: {said}", name_of(id))))
            }
        }
    }

    /// Removes its state without crun, which does not answer. The caller must have made sure that none of the
    /// container's processes is left: then crun would have nothing else to do.
    ///
    /// # Errors
    /// The state could not be removed.
    pub(super) fn forget_alone(&self, id: &ContainerId) -> io::Result<()> {
        trees::remove(&self.root.join(name_of(id)))
    }
}

/// The first process of a container, from its bundle's `config.json`.
pub(super) fn process(bundle: &Path) -> io::Result<Value> {
    let path = bundle.join("config.json");
    let config = read_regular(&path, CONFIG_BYTES).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    let mut config: Value =
        config.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(config["process"].take())
}

/// The process in a file that crun wrote.
pub(super) fn read_pid(path: &Path) -> io::Result<i32> {
    let text = String::from_utf8_lossy(&read_regular(path, PID_BYTES)?).into_owned();
    text.trim().parse().map_err(|_| io::Error::other(format!("{}: {text:?} is no process", path.display())))
}

/// The errors that crun wrote last.
pub(super) fn errors(bundle: &Path) -> String {
    errors_in(&bundle.join(LOG))
}

/// The same in another file.
pub(super) fn errors_in(log: &Path) -> String {
    let bytes = read_regular(log, 64 * ERROR_BYTES);
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it wrote no error");
    shortened(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;

    /// Reading a pipe would wait for a writer for ever.
    #[test]
    fn files_of_a_bundle_are_read_only_if_they_are_files() {
        let scratch = Scratch::new("bundle").unwrap();
        scratch.write("config.json", r#"{"process": {"cwd": "/"}}"#);
        scratch.write(PID_FILE, "12\n");
        assert_eq!(process(scratch.path()).unwrap()["cwd"], "/");
        assert_eq!(read_pid(&scratch.join(PID_FILE)).unwrap(), 12);
        for name in ["config.json", PID_FILE, LOG] {
            let _ = fs::remove_file(scratch.join(name));
            nix::unistd::mkfifo(&scratch.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        let refused = process(scratch.path()).unwrap_err().to_string();
        assert!(refused.ends_with("config.json: not a regular file but a named pipe"), "{refused}");
        assert!(read_pid(&scratch.join(PID_FILE)).unwrap_err().to_string().contains("named pipe"));
        assert_eq!(errors(scratch.path()), "it wrote no error");
    }
}
