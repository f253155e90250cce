//! kubectl for programs: every change and every query of the cluster is made with it, like a user's.
//!
//! Always holds: the user's own kubeconfig and kubectl cache are not touched; every request has a time limit.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::error::RigError;
use crate::programs;

/// Longest wait for one answer of the API server. The hub answers in milliseconds; a loaded machine may take
/// seconds.
const REQUEST_TIMEOUT: &str = "--request-timeout=30s";

/// A kubectl with one identity.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

impl Kubectl {
    /// The fetched kubectl with this kubeconfig; its cache is kept beside it.
    pub fn new(kubeconfig: &Path) -> Result<Kubectl, RigError> {
        Ok(Kubectl {
            program: programs::kubectl()?,
            kubeconfig: kubeconfig.to_owned(),
            cache: kubeconfig.with_extension("kubectl-cache"),
        })
    }

    /// The path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The kubeconfig it uses.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the standard output of `kubectl ARGUMENTS`; an error if it exits with another code than 0.
    pub fn run(&self, arguments: &[&str]) -> Result<String, RigError> {
        self.feed(arguments, "")
    }

    /// The same with something on standard input (`create -f -`).
    pub fn feed(&self, arguments: &[&str], input: &str) -> Result<String, RigError> {
        let output = self.output(arguments, input)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(RigError::Failed {
            command: shown(arguments),
            status: output.status.to_string(),
            said: if complaint.trim().is_empty() { text } else { complaint },
        })
    }

    /// The answer of `kubectl ARGUMENTS -o json`.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, RigError> {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let text = self.run(&all)?;
        serde_json::from_str(&text)
            .map_err(|error| RigError::BadAnswer { command: shown(&all), problem: error.to_string() })
    }

    /// The answer of `kubectl get --raw PATH`.
    pub fn raw(&self, path: &str) -> Result<Value, RigError> {
        let arguments = ["get", "--raw", path];
        let text = self.run(&arguments)?;
        serde_json::from_str(&text)
            .map_err(|error| RigError::BadAnswer { command: shown(&arguments), problem: error.to_string() })
    }

    /// Starts a kubectl that goes on, as `get --watch` does; it writes into this file. The caller ends it, or it
    /// ends with this program.
    ///
    /// # Errors
    /// It cannot be started, or the file not be made.
    pub fn start(&self, arguments: &[&str], into: &Path) -> Result<Child, RigError> {
        let output = std::fs::File::create(into).map_err(RigError::io("create", into))?;
        let errors = output.try_clone().map_err(RigError::io("open", into))?;
        let failed = |source| RigError::Io { tried: shown(arguments), source };
        self.command()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(failed)
    }

    fn output(&self, arguments: &[&str], input: &str) -> Result<Output, RigError> {
        let failed = |source| RigError::Io { tried: shown(arguments), source };
        let mut child = self
            .command()
            .arg(REQUEST_TIMEOUT)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut stdin = child.stdin.take().expect("standard input was asked to be a pipe");
        // a kubectl that does not read its input closes it, and prints the reason
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().map_err(failed)
    }

    /// Program, identity and cache; the caller adds the arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        let option = |name: &str, path: &Path| {
            let mut option = OsString::from(name);
            option.push(path);
            option
        };
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .arg(option("--kubeconfig=", &self.kubeconfig))
            .arg(option("--cache-dir=", &self.cache))
            .env_remove("KUBECONFIG")
            // garbage collection takes a fifth of the processor time of such a short process; a long one
            // collects at the limit
            .env("GOGC", "off")
            .env("GOMEMLIMIT", "256MiB")
            // Ctrl-C in the terminal is meant for us, not for a request in progress
            .process_group(0);
        command
    }
}

/// A kubectl command line as a user would type it.
pub fn shown(arguments: &[&str]) -> String {
    let mut line = String::from("kubectl");
    for argument in arguments {
        line.push(' ');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=./:,@%+".contains(&byte);
        match !argument.is_empty() && argument.bytes().all(plain) {
            true => line.push_str(argument),
            false => line.push_str(&format!("'{}'", argument.replace('\'', r"'\''"))),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn command_lines_are_quoted_for_a_shell() {
        assert_eq!(shown(&["get", "nodes", "-o=wide"]), "kubectl get nodes -o=wide");
        assert_eq!(
            shown(&["patch", "node", "a", "-p", r#"{"a":1}"#]),
            r#"kubectl patch node a -p '{"a":1}'"#
        );
        assert_eq!(shown(&["annotate", "node", "a", "why=it's"]), r"kubectl annotate node a 'why=it'\''s'");
    }
}
