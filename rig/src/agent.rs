//! A `kedge agent` process under a babysitter: one node of a test or of `make try`.
//!
//! Owns the node's directory (state, run directory, local configuration, credentials, log) and its process.
//! Always holds: the process is started and watched, and its ends are recorded, as `kedge.service` does;
//! several nodes on one machine do not interfere with each other.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::babysitter::{Babysitter, Unit};
use crate::error::RigError;

/// Longest wait for the first full turn of an agent's main loop, on a machine that also compiles.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// The file name of [`RIG_DROP_IN`]; a test that writes it again replaces that drop-in.
pub const RIG_DROP_IN_FILE: &str = "10-rig.conf";

/// The drop-in of every node of the rig: no health port, because all nodes would use the same one, and a
/// short Lease, so that a renewal is visible every three seconds. A full disk of this machine must not keep
/// pods away. As a drop-in it also overrides every pushed configuration.
pub const RIG_DROP_IN: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
healthzPort: 0
nodeLeaseDurationSeconds: 12
evictionHard: {nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
";

/// The settings of one node.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The `kedge` program.
    pub program: PathBuf,
    /// Additional flags of `kedge agent`.
    pub flags: Vec<OsString>,
    /// `--crun`; `None`: the node has no container runtime, even if this machine has one.
    pub crun: Option<PathBuf>,
    /// `TimeoutStartSec=`
    pub start: Duration,
    /// `WatchdogSec=`
    pub watchdog: Duration,
    /// `TimeoutStopSec=`
    pub stop: Duration,
    /// `TimeoutAbortSec=`
    pub abort: Duration,
    /// `RestartSec=`
    pub restart_after: Duration,
    /// True if `ExecStopPost=` records each end, as under systemd; a container's restart policy has no
    /// equivalent.
    pub records_ends: bool,
}

impl AgentOptions {
    /// The limits of `kedge.service`, except that a stop may take longer: the machine of a test also
    /// compiles.
    pub fn new(program: &Path) -> AgentOptions {
        AgentOptions {
            program: program.to_owned(),
            flags: Vec::new(),
            crun: None,
            start: Duration::from_secs(90),
            watchdog: Duration::from_secs(30),
            stop: Duration::from_secs(30),
            abort: Duration::from_secs(20),
            restart_after: Duration::from_secs(2),
            records_ends: true,
        }
    }
}

/// One node.
pub struct Agent {
    name: String,
    dir: PathBuf,
    options: AgentOptions,
    babysitter: Option<Babysitter>,
}

impl Agent {
    /// Makes the node's directory `dir` with these credentials and [`RIG_DROP_IN`]; starts nothing yet.
    pub fn prepare(
        dir: &Path,
        name: &str,
        kubeconfig: &str,
        options: AgentOptions,
    ) -> Result<Agent, RigError> {
        let agent = Agent { name: name.to_owned(), dir: dir.to_owned(), options, babysitter: None };
        let drop_ins = agent.drop_in_dir();
        std::fs::create_dir_all(&drop_ins).map_err(RigError::io("create directory", &drop_ins))?;
        agent.write_drop_in(RIG_DROP_IN_FILE, RIG_DROP_IN)?;
        let path = agent.kubeconfig();
        std::fs::write(&path, kubeconfig).map_err(RigError::io("write", &path))?;
        Ok(agent)
    }

    /// Sets `RestartSec=` from the next start on.
    pub fn restart_after(&mut self, pause: Duration) {
        self.options.restart_after = pause;
    }

    /// Replaces its credentials, as an operator replaces the file, whether or not the agent runs.
    pub fn replace_kubeconfig(&self, kubeconfig: &str) -> Result<(), RigError> {
        let path = self.kubeconfig();
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, kubeconfig).map_err(RigError::io("write", &fresh))?;
        std::fs::rename(&fresh, &path).map_err(RigError::io("replace", &path))
    }

    /// The agent's name, which is also its Node's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renames its machine from the next start on; its state stays. The credentials stay those of the old
    /// name.
    pub fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// The file with the agent's credentials.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The agent's `--root-dir`.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory for records of its configuration.
    pub fn config_dir(&self) -> PathBuf {
        self.root_dir().join("config")
    }

    /// The agent's `--config-dir`.
    pub fn drop_in_dir(&self) -> PathBuf {
        self.dir.join("config.d")
    }

    /// The agent's standard error and output, over all its runs.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The whole log as text, empty if it does not exist.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// Writes a file of its drop-in directory, which takes effect at the next start.
    pub fn write_drop_in(&self, name: &str, content: &str) -> Result<(), RigError> {
        let path = self.drop_in_dir().join(name);
        std::fs::write(&path, content).map_err(RigError::io("write", &path))
    }

    /// Starts it, and waits until it is ready. Also after [`Agent::stop`] or [`Agent::cut`].
    pub fn start(&mut self) -> Result<(), RigError> {
        self.launch()?;
        self.babysitter().wait_ready(READY_LIMIT)?;
        Ok(())
    }

    /// Starts it without waiting.
    pub fn launch(&mut self) -> Result<(), RigError> {
        let mut unit = Unit::new(&self.name, self.command());
        unit.record_command = self.options.records_ends.then(|| self.record_command());
        unit.run_dir = Some(self.run_dir());
        unit.log = Some(self.log());
        unit.limits.start = self.options.start;
        unit.limits.watchdog = Some(self.options.watchdog);
        unit.limits.stop = self.options.stop;
        unit.limits.abort = self.options.abort;
        unit.limits.restart_after = self.options.restart_after;
        unit.environment.push(("RUST_BACKTRACE".into(), "1".into()));
        self.babysitter = Some(Babysitter::start(unit)?);
        Ok(())
    }

    /// The command line of the agent.
    pub fn command(&self) -> Vec<OsString> {
        let mut command: Vec<OsString> = vec![
            self.options.program.clone().into(),
            "agent".into(),
            "--kubeconfig".into(),
            self.kubeconfig().into(),
            "--root-dir".into(),
            self.root_dir().into(),
            "--config-dir".into(),
            self.drop_in_dir().into(),
            "--hostname-override".into(),
            self.name.clone().into(),
            "--crun".into(),
            self.options.crun.clone().unwrap_or_default().into(),
        ];
        command.extend(self.options.flags.iter().cloned());
        command
    }

    fn record_command(&self) -> Vec<OsString> {
        vec![
            self.options.program.clone().into(),
            "record-exit".into(),
            "--root-dir".into(),
            self.root_dir().into(),
        ]
    }

    /// The directory with the marks of a run and the local endpoint.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The agent's supervisor.
    ///
    /// # Panics
    /// It was never started, or was cut.
    pub fn babysitter(&self) -> &Babysitter {
        self.babysitter.as_ref().expect("a node is started before its process is used")
    }

    /// True if it has been started.
    pub fn is_started(&self) -> bool {
        self.babysitter.is_some()
    }

    /// Like `systemctl stop`; waits until its end is recorded.
    pub fn stop(&mut self) -> Result<(), RigError> {
        match self.babysitter.take() {
            Some(babysitter) => Ok(babysitter.stop_and_wait(READY_LIMIT)?),
            None => Ok(()),
        }
    }

    /// Kills the process with SIGKILL, without a record of its end, as a plain restart loop would.
    pub fn cut(&mut self) {
        self.babysitter = None;
    }

    /// Runs `kedge ARGUMENTS` on this node: exit code, standard output, standard error.
    pub fn kedge(&self, arguments: &[&str]) -> Result<(i32, String, String), RigError> {
        let output = Command::new(&self.options.program)
            .args(arguments)
            .arg("--root-dir")
            .arg(self.root_dir())
            .env("RUNTIME_DIRECTORY", self.run_dir())
            .output()
            .map_err(RigError::io("run", &self.options.program))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
    }

    /// The JSON that `kedge ARGUMENTS --output json` prints.
    pub fn kedge_json(&self, arguments: &[&str]) -> Result<Value, RigError> {
        let mut all = arguments.to_vec();
        all.extend(["--output", "json"]);
        let command = format!("kedge {}", all.join(" "));
        let (code, out, said) = self.kedge(&all)?;
        if code != 0 {
            return Err(RigError::Failed { command, status: format!("exit code {code}"), said });
        }
        serde_json::from_str(&out)
            .map_err(|error| RigError::BadAnswer { command, problem: error.to_string() })
    }
}
