//! The options of each command, checked and complete.
//!
//! Owns the types alone, so that a command does not depend on the parsing of its line. Leaves to others:
//! reading and checking the line (`flags`).

use crate::identity::files;
use crate::join::discovery::Pin;
use crate::logs::lines::Stream;
use kedge_api::Timestamp;
use kedge_platform::workloads::{Crun, Settings};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For scripts.
    Json,
}

/// The agent's directories.
#[derive(Debug, Clone)]
pub struct Places {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `--dynamic-config-dir`.
    pub dynamic_config_dir: PathBuf,
    /// `--run-dir`.
    pub run_dir: PathBuf,
    /// `--preloaded-images`: OCI layouts that came with the system.
    pub preloaded_images: PathBuf,
}

impl Places {
    /// The local endpoint.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("kedge.sock")
    }
}

/// The files of the local config.
#[derive(Debug, Clone, Default)]
pub struct LocalFiles {
    /// `--config`, or `--init-config-dir`/kubelet.
    pub config: Option<PathBuf>,
    /// `--config-dir`; `None` if it is switched off.
    pub config_dir: Option<PathBuf>,
    /// A flag gave it, so it must exist.
    pub config_dir_must_exist: bool,
    /// Flags that set a field.
    pub flags: Vec<(&'static str, Value)>,
}

/// The container runtime.
#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// `--crun`.
    pub crun: PathBuf,
    /// `--cgroup-root`.
    pub cgroup_root: String,
}

impl RuntimeOptions {
    /// `None` if the node is to run no pods, or this user may not start containers. The agent then does
    /// everything else. While crun is missing it knows its pods, and lets none begin.
    pub fn settings(&self, places: &Places) -> Option<Settings> {
        let program = &self.crun;
        if program.as_os_str().is_empty() {
            return None;
        }
        if !kedge_platform::linux::is_root() {
            log::info!("no pods run here: only root may start containers with {}", program.display());
            return None;
        }
        let settings = Settings::new(&places.run_dir, &places.root_dir);
        let below = |group: &str| format!("{}{group}", self.cgroup_root.trim_end_matches('/'));
        Some(Settings {
            crun: Crun { program: program.clone(), ..Crun::default() },
            pods_group: below(&settings.pods_group),
            shims_group: below(&settings.shims_group),
            ..settings
        })
    }
}

/// Options of `kedge agent`.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The agent's directories.
    pub places: Places,
    /// The files of the local config.
    pub local: LocalFiles,
    /// `--kubeconfig`; `None` means no API server, the local config alone.
    pub kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`: the way to a first certificate.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--hostname-override`; `None` means the host's name.
    pub node_name: Option<String>,
    /// `--dynamic-config`.
    pub dynamic_config: bool,
    /// `--node-labels`.
    pub node_labels: BTreeMap<String, String>,
    /// The container runtime.
    pub runtime: RuntimeOptions,
    /// The environment file of the service, if that gave the flags; `None` if the command line did.
    pub service: Option<PathBuf>,
}

impl AgentOptions {
    /// `--kubeconfig`, unless that is the one that the node makes when it joins.
    pub(crate) fn given_kubeconfig(&self) -> Option<PathBuf> {
        let generated = files::folder(&self.places.root_dir).join(files::KUBECONFIG);
        self.kubeconfig.clone().filter(|path| *path != generated)
    }

    /// The command line selects a local configuration, so a running agent's is not shown instead.
    pub fn names_local_files(&self) -> bool {
        self.service.is_none() && (self.local.config.is_some() || self.local.config_dir_must_exist)
    }
}

/// Options of `kedge config check`.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// The agent whose local config is checked.
    pub agent: AgentOptions,
    /// `--key`: the key of a ConfigMap manifest.
    pub key: Option<String>,
    /// Files to check, each as if it were the pushed payload.
    pub files: Vec<PathBuf>,
}

/// The options of `kedge session`.
#[derive(Debug)]
pub struct SessionOptions {
    pub agent: AgentOptions,
    /// The call's id.
    pub call: String,
}

/// The task of `kedge images`.
#[derive(Debug)]
pub enum Task {
    List,
    Pull(Vec<String>),
    Import { path: PathBuf, name: Option<String> },
    Remove(Vec<String>),
    Prune,
}

/// Options of `kedge images`.
#[derive(Debug)]
pub struct ImagesOptions {
    pub task: Task,
    pub agent: AgentOptions,
    /// `--credentials`: a Docker `config.json`.
    pub credentials: Option<PathBuf>,
}

/// The options of `kedge kubelet-port`.
#[derive(Debug)]
pub struct PortOptions {
    pub agent: AgentOptions,
    /// [`ServerSettings`] in JSON.
    pub settings: String,
}

/// The options of `kedge logs`.
#[derive(Debug)]
pub struct LogsOptions {
    pub agent: AgentOptions,
    /// `[NAMESPACE/]POD`.
    pub pod: String,
    /// `--container`.
    pub container: Option<String>,
    /// `--tail`: lines at the end.
    pub tail: Option<u64>,
    /// `--since`.
    pub since: Option<Duration>,
    /// `--since-time`.
    pub since_time: Option<Timestamp>,
    /// `--limit-bytes`.
    pub limit_bytes: Option<u64>,
    /// One output alone.
    pub(crate) stream: Option<Stream>,
    pub timestamps: bool,
    pub previous: bool,
    pub follow: bool,
}

/// The options of `kedge exec`.
#[derive(Debug)]
pub struct ExecOptions {
    pub agent: AgentOptions,
    /// `[NAMESPACE/]POD`.
    pub pod: String,
    /// `--container`.
    pub container: Option<String>,
    /// `--stdin`.
    pub stdin: bool,
    /// `--tty`.
    pub tty: bool,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// The options of `kedge attach`.
#[derive(Debug)]
pub struct AttachOptions {
    pub agent: AgentOptions,
    /// `[NAMESPACE/]POD`.
    pub pod: String,
    /// `--container`.
    pub container: Option<String>,
    /// `--stdin`.
    pub stdin: bool,
    /// `--tty`.
    pub tty: bool,
}

/// The options of `kedge slot update`.
#[derive(Debug)]
pub struct UpdateOptions {
    /// The update, or `-` for standard input.
    pub file: String,
    /// Try it at once.
    pub reboots: bool,
    /// An update with an older version than the image that runs is taken, too.
    pub allows_older: bool,
    /// An update is taken that failed here before, or while a configuration brings another.
    pub again: bool,
}

/// The options of `kedge join`.
#[derive(Debug)]
pub struct JoinOptions {
    pub agent: AgentOptions,
    /// The server's URL.
    pub server: String,
    /// `--token-file`; `-` for standard input.
    pub token_file: String,
    /// `--ca-cert-hash`; empty with `--unsafe-skip-ca-verification`.
    pub pins: Vec<Pin>,
    /// `--node-name`.
    pub node_name: Option<String>,
    pub timeout: Duration,
}
