//! The command line: raw flags become complete, checked options in one step.
//!
//! Flags carry kubelet's names where they mean the same. Flags of an agent belong to its local config: those
//! that set a field of the configuration become its topmost layer. Always holds: a wrong flag is an error
//! that names it. Leaves to others: the range of such a field (core), reading files (`local_config`).

use crate::help;
use crate::identity::files;
use crate::images::DEFAULT_PRELOADED;
use crate::join::discovery;
use crate::options::{
    AgentOptions, AttachOptions, CheckOptions, ExecOptions, ImagesOptions, JoinOptions, LocalFiles,
    LogsOptions, Output, Places, PortOptions, RuntimeOptions, SessionOptions, Task, UpdateOptions,
};
use crate::service;
use kedge_api::{Timestamp, labels, names};
use kedge_core::WithPods;
use kedge_core::kubelet::duration;
use kedge_core::sorted::SortedMap;
use kedge_platform::images::UnpackArguments;
use lexopt::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of drop-ins unless `--config-dir` gives another; it need not exist.
pub const DEFAULT_CONFIG_DIR: &str = "/etc/kedge/config.d";

/// How long `kedge join` waits: a person may have to approve.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Where Debian puts crun.
const DEFAULT_CRUN: &str = if WithPods::built().is_some() { "/usr/bin/crun" } else { "" };

/// First words of the commands that only an agent with pods has.
const PODS: [&str; 11] = [
    "pods",
    "session",
    "kubelet-port",
    "shim",
    "pause",
    "look",
    "unpack",
    "logs",
    "exec",
    "attach",
    "images",
];

/// Why an agent does not have them.
pub const NO_PODS: &str =
    "this kedge was built without pods: it keeps the configuration and the heartbeat of its node";

#[derive(Debug)]
pub enum Command {
    /// Run the agent.
    Agent(Box<AgentOptions>),
    /// Record how the agent ended (`ExecStopPost=`).
    RecordExit(Places),
    /// `kedge record-exit to-disk`, which `record-exit` starts.
    CopyExitRecord(Places),
    /// Make this machine a node.
    Join(Box<JoinOptions>),
    /// Show a running agent's state.
    Status(Places, Output),
    /// Look at everything between the node and its API server.
    Doctor(Box<AgentOptions>, Output),
    /// `kedge doctor write`, which `doctor` starts.
    DoctorWrite(Places),
    /// The effective configuration.
    ConfigShow(Box<AgentOptions>, Output),
    /// The configuration's state, now.
    ConfigStatus(Box<AgentOptions>, Output),
    /// The configurations that were tried, and the verdicts.
    ConfigHistory(Places, Output),
    /// Check files without an API server.
    ConfigCheck(Box<CheckOptions>, Output),
    /// Forget the verdicts on a ConfigMap.
    ConfigForgive(Places, String),
    /// Back to the local config.
    ConfigReset(Places),
    /// One that only an agent with pods has.
    OfPods(WithPods, PodCommand),
    /// On a disk image: decide whether this boot is good.
    SlotHealth(Places),
    /// On a disk image: write an update into the other slot, and try it at once.
    SlotUpdate(Places, UpdateOptions),
    /// On a disk image: the keys that sign updates; or take this list of them.
    SlotKeys(Places, Option<String>),
    /// On a disk image: mark this boot as good.
    SlotBless(Places),
    /// On a disk image: the slots.
    SlotStatus,
    /// The system that is wanted, and the ones that failed here.
    SystemStatus(Places),
    /// On a disk image: whether the disk with this name has the root partition.
    SlotHoldsRoot(String),
    /// On a disk image, before systemd: open the state partition.
    StateOpen,
    /// On a disk image: install the identity that was handed over.
    Provision,
    /// Print a version.
    Version(Output),
    /// Print this help.
    Help(help::Page),
}

/// Commands about pods, their images and sessions.
#[derive(Debug)]
pub enum PodCommand {
    /// Accept a call of the hub (the agent starts it).
    Session(Box<SessionOptions>),
    /// `kedge kubelet-port SETTINGS`
    KubeletPort(Box<PortOptions>),
    /// Serve the container of a bundle (the agent starts it).
    Shim(PathBuf),
    /// Be the first process of a PID namespace, in an empty directory (the agent starts it).
    Pause(PathBuf),
    /// Look at paths that a pod names (the agent starts it).
    Look,
    /// Pods of this node.
    List(Places, Output),
    /// Let orphaned pods end: all, or the one of this namespace and name.
    Release(Places, Option<String>),
    /// A container's output.
    Logs(Box<LogsOptions>),
    /// Run a program in a container.
    Exec(Box<ExecOptions>),
    Attach(Box<AttachOptions>),
    /// Images of this node.
    Images(Box<ImagesOptions>, Output),
    /// `kedge unpack`, which pulls start.
    Unpack(UnpackArguments),
}

/// An invalid command line.
#[derive(Debug)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; see kedge --help", self.0)
    }
}

impl std::error::Error for UsageError {}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        Self(error.to_string())
    }
}

/// Reads a command line, program name included.
///
/// # Errors
/// It is invalid; the text shows which word.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    match parse_raw(args)? {
        Parsed::Command(raw, words) => raw.command(&words),
        Parsed::Answer(command) => Ok(command),
    }
}

/// A command line, word by word.
enum Parsed {
    Command(Raw, Vec<String>),
    /// Help or the version, whatever else is on the line.
    Answer(Command),
}

fn parse_raw(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let mut parser = lexopt::Parser::from_iter(args);
    let mut words = Vec::new();
    let mut raw = Raw::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Parsed::Answer(Command::Help(help::page(&words)))),
            Short('V') | Long("version") => return Ok(Parsed::Answer(Command::Version(Output::Text))),
            Value(word) => {
                words.push(word.into_string().map_err(|word| UsageError(format!("{word:?} is not UTF-8")))?)
            }
            Short('v') => match raw.take("v", &mut parser) {
                // `-v` alone asks for the version; with a command it is a level of verbosity
                Err(_) if words.is_empty() => return Ok(Parsed::Answer(Command::Version(Output::Text))),
                taken => taken?,
            },
            Short('f') => raw.follow = true,
            Short('p') => raw.previous = true,
            Short('i') => raw.stdin = true,
            Short('t') => raw.tty = true,
            Short('c') => raw.take("container", &mut parser)?,
            Short('o') => raw.output = Some(output(&parser.value()?.string()?)?),
            Long(name) => {
                let name = name.to_owned();
                raw.take(&name, &mut parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Parsed::Command(raw, words))
}

#[derive(Default)]
struct Raw {
    texts: SortedMap<&'static str, String>,
    dynamic_config: Option<bool>,
    reboots: bool,
    allows_older: bool,
    again: bool,
    skips_authority: bool,
    timestamps: bool,
    previous: bool,
    follow: bool,
    stdin: bool,
    tty: bool,
    output: Option<Output>,
    node_labels: BTreeMap<String, String>,
    config_flags: Vec<(&'static str, Value)>,
}

/// Flags that take one text.
const TEXTS: [&str; 26] = [
    "root-dir",
    "dynamic-config-dir",
    "run-dir",
    "config",
    "config-dir",
    "init-config-dir",
    "kubeconfig",
    "bootstrap-kubeconfig",
    "token-file",
    "ca-cert-hash",
    "node-name",
    "timeout",
    "hostname-override",
    "node-labels",
    "environment-file",
    "key",
    "credentials",
    "name",
    "crun",
    "cgroup-root",
    "preloaded-images",
    "container",
    "tail",
    "since",
    "since-time",
    "limit-bytes",
];

/// The others, as [`Raw::take`] reads them.
#[cfg(test)]
const OTHERS: [&str; 19] = [
    "output",
    "reboot",
    "allow-older",
    "again",
    "unsafe-skip-ca-verification",
    "timestamps",
    "previous",
    "follow",
    "stdin",
    "tty",
    "dynamic-config",
    "register-node",
    "register-with-taints",
    "provider-id",
    "healthz-port",
    "healthz-bind-address",
    "node-status-update-frequency",
    "v",
    "node-labels",
];

/// Flags that select the local config; if one is given, the service's flags are not read.
const LOCAL_TEXTS: [&str; 3] = ["config", "config-dir", "init-config-dir"];

impl Raw {
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), UsageError> {
        if let Some(known) = TEXTS.iter().find(|known| **known == name) {
            let value = parser.value()?.string()?;
            // labels of repeated flags add up; any other text may be given only once
            if *known == "node-labels" {
                self.node_labels.extend(node_labels(&value)?);
            } else if self.texts.insert(known, value).is_some() {
                return Err(UsageError(format!("--{name} is given twice")));
            }
            return Ok(());
        }
        match name {
            "output" => self.output = Some(output(&parser.value()?.string()?)?),
            "reboot" => self.reboots = true,
            "allow-older" => self.allows_older = true,
            "again" => self.again = true,
            "unsafe-skip-ca-verification" => self.skips_authority = true,
            "timestamps" => self.timestamps = boolean(name, parser)?,
            "previous" => self.previous = boolean(name, parser)?,
            "follow" => self.follow = boolean(name, parser)?,
            "stdin" => self.stdin = boolean(name, parser)?,
            "tty" => self.tty = boolean(name, parser)?,
            "dynamic-config" => self.dynamic_config = Some(boolean(name, parser)?),
            "register-node" => self.set("register-node", json!({"registerNode": boolean(name, parser)?})),
            "register-with-taints" => {
                let taints = taints(&parser.value()?.string()?)?;
                self.set("register-with-taints", json!({"registerWithTaints": taints}));
            }
            "provider-id" => {
                let value = parser.value()?.string()?;
                self.set("provider-id", json!({"providerID": value}));
            }
            "healthz-port" => {
                let port = number("healthz-port", parser)?;
                self.set("healthz-port", json!({"healthzPort": port}));
            }
            "healthz-bind-address" => {
                let value = parser.value()?.string()?;
                self.set("healthz-bind-address", json!({"healthzBindAddress": value}));
            }
            "node-status-update-frequency" => {
                let value = parser.value()?.string()?;
                self.set("node-status-update-frequency", json!({"nodeStatusUpdateFrequency": value}));
            }
            "v" => {
                let verbosity = number("v", parser)?;
                self.set("v", json!({"logging": {"verbosity": verbosity}}));
            }
            // kubeadm's flag
            "token" => {
                let why = "--token would show the token to every user of this machine: --token-file FILE, or - for standard input";
                return Err(UsageError(why.into()));
            }
            other => {
                let meant = did_you_mean("--", help::similar_flag(other));
                return Err(UsageError(format!("unknown flag --{other}{meant}")));
            }
        }
        Ok(())
    }

    fn set(&mut self, flag: &'static str, fragment: Value) {
        self.config_flags.retain(|(other, _)| *other != flag);
        self.config_flags.push((flag, fragment));
    }

    fn command(mut self, words: &[String]) -> Result<Command, UsageError> {
        let output = self.output.unwrap_or_default();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(match words.as_slice() {
            [] => Command::Help(help::page(&words)),
            ["help", of @ ..] => Command::Help(help::page(of)),
            ["agent"] => Command::Agent(Box::new(self.agent()?)),
            ["record-exit"] => Command::RecordExit(self.places()),
            ["record-exit", "to-disk"] => Command::CopyExitRecord(self.places()),
            ["join", server] => Command::Join(Box::new(self.join(server)?)),
            ["join", ..] => return Err(UsageError("join needs the server's URL, https://HOST:PORT".into())),
            ["status"] => Command::Status(self.places(), output),
            ["doctor", "write"] => Command::DoctorWrite(self.places()),
            // commands about the configured agent read the flags of its service too
            ["doctor"] => Command::Doctor(Box::new(self.service_agent()?), output),
            ["version"] => Command::Version(output),
            ["config", "show"] => Command::ConfigShow(Box::new(self.service_agent()?), output),
            ["config", "status"] => Command::ConfigStatus(Box::new(self.service_agent()?), output),
            ["config", "history"] => Command::ConfigHistory(self.places(), output),
            ["config", "reset"] => Command::ConfigReset(self.places()),
            ["config", "forgive", uid] => Command::ConfigForgive(self.places(), (*uid).to_owned()),
            ["config", "forgive"] => return Err(UsageError("config forgive needs a UID".into())),
            ["config", "check", files @ ..] => {
                let files = files.iter().map(PathBuf::from).collect();
                let key = self.text("key");
                Command::ConfigCheck(
                    Box::new(CheckOptions { agent: self.service_agent()?, key, files }),
                    output,
                )
            }
            ["config" | "images" | "slot" | "state" | "system"] => Command::Help(help::page(&words)),
            ["slot", "health"] => Command::SlotHealth(self.places()),
            ["slot", "update"] => {
                return Err(UsageError("slot update needs a file, or - for standard input".into()));
            }
            ["slot", "update", file] => {
                let Raw { reboots, allows_older, again, .. } = self;
                Command::SlotUpdate(
                    self.places(),
                    UpdateOptions { file: (*file).to_owned(), reboots, allows_older, again },
                )
            }
            ["slot", "keys"] => Command::SlotKeys(self.places(), None),
            ["slot", "keys", file] => Command::SlotKeys(self.places(), Some((*file).to_owned())),
            ["slot", "bless"] => Command::SlotBless(self.places()),
            ["slot", "status"] => Command::SlotStatus,
            ["system", "status"] => Command::SystemStatus(self.places()),
            ["slot", "holds-root", disk] => Command::SlotHoldsRoot((*disk).to_owned()),
            ["slot", "holds-root"] => {
                return Err(UsageError("slot holds-root needs the name of a disk".into()));
            }
            ["state", "open"] => Command::StateOpen,
            ["provision"] => Command::Provision,
            [first, ..] if PODS.contains(first) => match WithPods::built() {
                Some(with_pods) => Command::OfPods(with_pods, self.pod_command(&words, output)?),
                None => return Err(UsageError(format!("{first}: {NO_PODS}"))),
            },
            other => return Err(unknown(other)),
        })
    }

    fn pod_command(mut self, words: &[&str], output: Output) -> Result<PodCommand, UsageError> {
        Ok(match words {
            ["pods"] => PodCommand::List(self.places(), output),
            ["pods", "release"] => PodCommand::Release(self.places(), None),
            ["pods", "release", pod] => PodCommand::Release(self.places(), Some((*pod).to_owned())),
            ["session", call] => {
                let call = (*call).to_owned();
                PodCommand::Session(Box::new(SessionOptions { agent: self.agent()?, call }))
            }
            ["kubelet-port", settings] => {
                let settings = (*settings).to_owned();
                PodCommand::KubeletPort(Box::new(PortOptions { agent: self.agent()?, settings }))
            }
            ["shim", bundle] => PodCommand::Shim(PathBuf::from(bundle)),
            ["pause", root] => PodCommand::Pause(PathBuf::from(root)),
            ["look"] => PodCommand::Look,
            ["unpack", words @ ..] => PodCommand::Unpack(UnpackArguments::parse(words).map_err(UsageError)?),
            ["logs", pod] => PodCommand::Logs(Box::new(self.logs(pod)?)),
            ["logs", ..] => return Err(UsageError("logs needs one pod, [NAMESPACE/]NAME".into())),
            ["exec", pod, command @ ..] if !command.is_empty() => {
                PodCommand::Exec(Box::new(self.exec(pod, command)?))
            }
            ["exec", ..] => {
                return Err(UsageError("exec needs one pod, [NAMESPACE/]NAME, and -- COMMAND".into()));
            }
            ["attach", pod] => PodCommand::Attach(Box::new(self.attach(pod)?)),
            ["attach", ..] => return Err(UsageError("attach needs one pod, [NAMESPACE/]NAME".into())),
            ["images", words @ ..] if !words.is_empty() => self.images(words, output)?,
            other => return Err(unknown(other)),
        })
    }

    fn logs(mut self, pod: &str) -> Result<LogsOptions, UsageError> {
        let unread = |name: &str, text: &str, expected: &str| {
            UsageError(format!("--{name} is {text:?}, expected {expected}"))
        };
        let whole = |name: &str, text: Option<String>| {
            let number = text.map(|text| text.parse().map_err(|_| unread(name, &text, "a number from 0 on")));
            number.transpose()
        };
        // as in kubectl: all lines
        let tail = whole("tail", self.text("tail").filter(|text| text != "-1"))?;
        let limit_bytes = whole("limit-bytes", self.text("limit-bytes"))?;
        let since = self.text("since").map(|text| {
            let nanos = duration::parse(&text).and_then(|nanos| u64::try_from(nanos).ok());
            nanos.map(Duration::from_nanos).ok_or_else(|| unread("since", &text, "a duration such as 1h30m"))
        });
        let since_time = self.text("since-time").map(|text| {
            Timestamp::parse(&text)
                .map_err(|_| unread("since-time", &text, "a time such as 2026-11-23T04:00:00Z"))
        });
        Ok(LogsOptions {
            pod: pod.to_owned(),
            container: self.text("container"),
            tail,
            since: since.transpose()?,
            since_time: since_time.transpose()?,
            limit_bytes,
            stream: None,
            timestamps: self.timestamps,
            previous: self.previous,
            follow: self.follow,
            agent: self.service_agent()?,
        })
    }

    fn join(mut self, server: &str) -> Result<JoinOptions, UsageError> {
        let token_file = self.text("token-file").ok_or_else(|| {
            UsageError("join needs --token-file FILE (- for standard input), with a token that kedge-hub token create made".into())
        })?;
        let pins = match (self.text("ca-cert-hash"), self.skips_authority) {
            (Some(_), true) => {
                return Err(UsageError(
                    "--ca-cert-hash and --unsafe-skip-ca-verification are both given".into(),
                ));
            }
            (Some(text), false) => {
                discovery::pins(&text).map_err(|why| UsageError(format!("--ca-cert-hash has {why}")))?
            }
            (None, true) => Vec::new(),
            (None, false) => {
                return Err(UsageError(
                    "join needs --ca-cert-hash sha256:HEX, or any server could take this node: it is in the line that kedge-hub token \
                     create prints on the hub"
                        .into(),
                ));
            }
        };
        let node_name = self.text("node-name");
        if let Some(name) = &node_name {
            check_node_name(name)?;
        }
        let timeout = match self.text("timeout") {
            None => JOIN_TIMEOUT,
            Some(text) => {
                let nanos = duration::parse(&text).and_then(|nanos| u64::try_from(nanos).ok());
                nanos.map(Duration::from_nanos).ok_or_else(|| {
                    UsageError(format!("--timeout is {text:?}, expected a duration such as 10m"))
                })?
            }
        };
        let server = server.to_owned();
        Ok(JoinOptions { server, token_file, pins, node_name, timeout, agent: self.service_agent()? })
    }

    fn exec(mut self, pod: &str, command: &[&str]) -> Result<ExecOptions, UsageError> {
        Ok(ExecOptions {
            pod: pod.to_owned(),
            container: self.text("container"),
            stdin: self.stdin,
            tty: self.tty,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            agent: self.service_agent()?,
        })
    }

    fn attach(mut self, pod: &str) -> Result<AttachOptions, UsageError> {
        Ok(AttachOptions {
            pod: pod.to_owned(),
            container: self.text("container"),
            stdin: self.stdin,
            tty: self.tty,
            agent: self.service_agent()?,
        })
    }

    fn images(mut self, words: &[&str], output: Output) -> Result<PodCommand, UsageError> {
        let name = self.text("name");
        let credentials = self.text("credentials").map(PathBuf::from);
        let names = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let task = match words {
            ["ls"] => Task::List,
            ["pull", first @ ..] if !first.is_empty() => Task::Pull(names(first)),
            ["import", path] => Task::Import { path: PathBuf::from(path), name },
            ["rm", first @ ..] if !first.is_empty() => Task::Remove(names(first)),
            ["prune"] => Task::Prune,
            ["pull" | "rm"] => return Err(UsageError(format!("images {} needs an image", words[0]))),
            ["import", ..] => return Err(UsageError("images import needs one directory or archive".into())),
            other => {
                return Err(UsageError(format!(
                    "unknown command {:?}",
                    format!("images {}", other.join(" "))
                )));
            }
        };
        Ok(PodCommand::Images(
            Box::new(ImagesOptions { task, agent: self.service_agent()?, credentials }),
            output,
        ))
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.texts.remove(name)
    }

    fn places(&mut self) -> Places {
        let root_dir = PathBuf::from(self.text("root-dir").unwrap_or_else(|| "/var/lib/kedge".into()));
        let dynamic_config_dir = self.text("dynamic-config-dir").map(PathBuf::from);
        let run_dir = self.text("run-dir").map(PathBuf::from);
        // systemd and the babysitter set the directory that they made
        let given =
            std::env::var_os("RUNTIME_DIRECTORY").filter(|given| !given.is_empty()).map(PathBuf::from);
        Places {
            dynamic_config_dir: dynamic_config_dir.unwrap_or_else(|| root_dir.join("config")),
            run_dir: run_dir.or(given).unwrap_or_else(|| "/run/kedge".into()),
            preloaded_images: self
                .text("preloaded-images")
                .unwrap_or_else(|| DEFAULT_PRELOADED.into())
                .into(),
            root_dir,
        }
    }

    fn local(&mut self) -> Result<LocalFiles, UsageError> {
        let config = match (self.text("config"), self.text("init-config-dir")) {
            (Some(_), Some(_)) => {
                return Err(UsageError("--config and --init-config-dir are both given".into()));
            }
            (Some(file), None) => Some(PathBuf::from(file)),
            (None, Some(dir)) => Some(PathBuf::from(dir).join("kubelet")),
            (None, None) => None,
        };
        let config_dir = self.text("config-dir");
        Ok(LocalFiles {
            config,
            config_dir_must_exist: config_dir.is_some(),
            config_dir: match config_dir.as_deref() {
                Some("") => None,
                Some(dir) => Some(dir.into()),
                None => Some(DEFAULT_CONFIG_DIR.into()),
            },
            flags: std::mem::take(&mut self.config_flags),
        })
    }

    /// The options of the service's agent, unless the command line selects a local config.
    fn service_agent(mut self) -> Result<AgentOptions, UsageError> {
        let file = self.text("environment-file").unwrap_or_else(|| service::ENVIRONMENT_FILE.into());
        if file.is_empty()
            || LOCAL_TEXTS.iter().any(|name| self.texts.contains_key(name))
            || !self.config_flags.is_empty()
        {
            return self.agent();
        }
        let words = service::flags(Path::new(&file)).map_err(UsageError)?;
        let Some(words) = words else { return self.agent() };
        let line = ["kedge", "agent", "--kubeconfig", service::KUBECONFIG].map(OsString::from);
        let parsed = parse_raw(line.into_iter().chain(words.into_iter().map(OsString::from)));
        let Parsed::Command(mut raw, _) =
            parsed.map_err(|error| UsageError(format!("{file}: KEDGE_FLAGS: {}", error.0)))?
        else {
            return Err(UsageError(format!("{file}: KEDGE_FLAGS asks for help or the version")));
        };
        // the command line's flags win
        raw.texts.extend(self.texts);
        raw.node_labels.extend(self.node_labels);
        raw.dynamic_config = self.dynamic_config.or(raw.dynamic_config);
        Ok(AgentOptions { service: Some(file.into()), ..raw.agent()? })
    }

    fn agent(mut self) -> Result<AgentOptions, UsageError> {
        let places = self.places();
        let local = self.local()?;
        let cgroup_root = self.text("cgroup-root").unwrap_or_default();
        if !(cgroup_root.is_empty() || cgroup_root.starts_with('/')) || cgroup_root.contains("..") {
            return Err(UsageError(format!(
                "--cgroup-root is {cgroup_root:?}, expected a path of control groups that begins with /"
            )));
        }
        let crun = PathBuf::from(self.text("crun").unwrap_or_else(|| DEFAULT_CRUN.into()));
        if WithPods::built().is_none() && !crun.as_os_str().is_empty() {
            return Err(UsageError(format!("--crun {}: {NO_PODS}", crun.display())));
        }
        let node_name = self.text("hostname-override").filter(|name| !name.is_empty());
        if let Some(name) = &node_name {
            check_node_name(name)?;
        }
        let mut file = |flag| self.text(flag).map(PathBuf::from);
        let (kubeconfig, bootstrap) = (file("kubeconfig"), file("bootstrap-kubeconfig"));
        let kubeconfig = kubeconfig.filter(|path| !path.as_os_str().is_empty());
        // where a node has an API server, a token may come later
        let default = kubeconfig.is_some().then(|| service::BOOTSTRAP_KUBECONFIG.into());
        let bootstrap_kubeconfig = bootstrap.or(default).filter(|path| !path.as_os_str().is_empty());
        let generated = files::folder(&places.root_dir).join(files::KUBECONFIG);
        Ok(AgentOptions {
            places,
            local,
            kubeconfig: kubeconfig.or(bootstrap_kubeconfig.is_some().then_some(generated)),
            bootstrap_kubeconfig,
            node_name,
            dynamic_config: self.dynamic_config.unwrap_or(true),
            node_labels: self.node_labels,
            runtime: RuntimeOptions { crun, cgroup_root },
            service: None,
        })
    }
}

/// A Node's name is a DNS subdomain: it goes into paths and certificates.
///
/// # Errors
/// It is not one.
pub fn check_node_name(name: &str) -> Result<(), UsageError> {
    if names::subdomain_complaint(name).is_none() {
        return Ok(());
    }
    Err(UsageError(format!(
        "{name:?} is not a Node name: expected lower case letters, digits, '-' and '.', at most 253 in all"
    )))
}

fn unknown(words: &[&str]) -> UsageError {
    let first = words.first().copied().unwrap_or_default();
    // the first word may be right and the second wrong
    let meant = did_you_mean("", help::similar(first).filter(|meant| *meant != first));
    UsageError(format!("unknown command {:?}{meant}", words.join(" ")))
}

fn did_you_mean(dashes: &str, meant: Option<&str>) -> String {
    meant.map(|meant| format!(" (did you mean {dashes}{meant}?)")).unwrap_or_default()
}

/// All flags.
#[cfg(test)]
pub(crate) fn known_flags() -> Vec<&'static str> {
    TEXTS.into_iter().chain(OTHERS).collect()
}

fn output(text: &str) -> Result<Output, UsageError> {
    match text {
        "json" => Ok(Output::Json),
        "text" => Ok(Output::Text),
        other => Err(UsageError(format!("--output is {other:?}, expected text or json"))),
    }
}

fn boolean(name: &str, parser: &mut lexopt::Parser) -> Result<bool, UsageError> {
    match parser.optional_value() {
        None => Ok(true),
        Some(value) => match value.to_str() {
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            _ => Err(UsageError(format!("--{name} is {value:?}, expected true or false"))),
        },
    }
}

fn number(name: &str, parser: &mut lexopt::Parser) -> Result<u32, UsageError> {
    let value = parser.value()?.string()?;
    value.parse().map_err(|_| UsageError(format!("--{name} is {value:?}, expected a number")))
}

fn node_labels(text: &str) -> Result<BTreeMap<String, String>, UsageError> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs.map(|pair| label(pair).map_err(|why| UsageError(format!("--node-labels has {why}")))).collect()
}

/// The kubelet's rule, whatever the credential: an API server with NodeRestriction would refuse any other
/// label of a node, for ever.
fn label(pair: &str) -> Result<(String, String), String> {
    let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?}, expected key=value"))?;
    if let Some(why) = names::qualified_name_complaint(key) {
        return Err(format!("the key {key:?}: {why}"));
    }
    if let Some(why) = names::label_value_complaint(value) {
        return Err(format!("the value {value:?} of {key}: {why}"));
    }
    if !labels::may_node_set(key) {
        return Err(format!(
            "{key}, which a node may not set on itself (NodeRestriction): expected another domain than kubernetes.io and \
             k8s.io, or one below {}, or one of {}; an administrator can set it: kubectl label node",
            labels::OWN_LABEL_DOMAINS.join(", "),
            labels::OWN_LABELS.join(", ")
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// The kubelet's form: `key=value:effect,key:effect`.
fn taints(text: &str) -> Result<Vec<Value>, UsageError> {
    text.split(',')
        .filter(|taint| !taint.is_empty())
        .map(|taint| {
            let (left, effect) = taint.rsplit_once(':').ok_or_else(|| {
                UsageError(format!("--register-with-taints has {taint:?}, expected key=value:effect"))
            })?;
            let (key, value) = left.split_once('=').unwrap_or((left, ""));
            Ok(json!({"key": key, "value": value, "effect": effect}))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, UsageError> {
        parse(std::iter::once("kedge").chain(line.split_whitespace()).map(OsString::from))
    }

    #[track_caller]
    fn agent(line: &str) -> AgentOptions {
        match parsed(line) {
            Ok(Command::Agent(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn no_flags_give_complete_options() {
        let options = agent("agent");
        assert_eq!(options.places.dynamic_config_dir, PathBuf::from("/var/lib/kedge/config"));
        assert_eq!(options.local.config_dir, Some(PathBuf::from(DEFAULT_CONFIG_DIR)));
        assert!(options.dynamic_config && !options.local.config_dir_must_exist);
    }

    #[test]
    fn flags_that_set_a_field_become_a_layer() {
        let options = agent("agent -v 4 --register-with-taints a=b:NoSchedule,c:NoExecute --healthz-port=0");
        let flags = options.local.flags;
        assert_eq!(flags[0], ("v", json!({"logging": {"verbosity": 4}})));
        assert_eq!(
            flags[1].1["registerWithTaints"][1],
            json!({"key": "c", "value": "", "effect": "NoExecute"})
        );
        assert_eq!(flags[2].1, json!({"healthzPort": 0}));
    }

    #[test]
    fn empty_config_dir_opts_out_and_a_named_one_must_exist() {
        let none = parse(["kedge", "agent", "--config-dir", ""].map(OsString::from)).unwrap();
        let Command::Agent(options) = none else { panic!() };
        assert_eq!(options.local.config_dir, None);
        assert!(agent("agent --config-dir /x").local.config_dir_must_exist);
        assert_eq!(agent("agent --init-config-dir /x").local.config, Some(PathBuf::from("/x/kubelet")));
    }

    #[test]
    fn record_exit_uses_the_paths_of_the_agent() {
        let unit = include_str!("../systemd/kedge.service");
        let flags = "--root-dir /data/kedge --config /etc/kedge/config.yaml --node-labels site=quarry -v 4";
        let command = |setting: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(setting)).unwrap();
            parsed(line.split_once("/usr/bin/kedge ").unwrap().1.replace("$KEDGE_FLAGS", flags).as_str())
        };
        let Ok(Command::Agent(agent)) = command("ExecStart=") else { panic!() };
        let Ok(Command::RecordExit(places)) = command("ExecStopPost=") else { panic!() };
        assert_eq!(places.root_dir, PathBuf::from("/data/kedge"));
        assert_eq!((places.root_dir, places.run_dir), (agent.places.root_dir, agent.places.run_dir));
    }

    #[test]
    fn local_commands_judge_what_the_service_runs() {
        let scratch = kedge_rig::Scratch::new("flags").unwrap();
        let file = scratch.write("default", "KEDGE_FLAGS=\"--config /x.yaml --root-dir /data -v 4\"\n");
        let show =
            |more: &str| match parsed(&format!("config show --environment-file {} {more}", file.display())) {
                Ok(Command::ConfigShow(options, _)) => *options,
                other => panic!("{other:?}"),
            };
        let options = show("");
        assert_eq!(options.service.as_ref(), Some(&file));
        assert_eq!(options.local.config, Some(PathBuf::from("/x.yaml")));
        assert_eq!(options.local.flags, [("v", json!({"logging": {"verbosity": 4}}))]);
        assert_eq!(options.kubeconfig, Some(PathBuf::from(service::KUBECONFIG)));
        let there = show("--root-dir /elsewhere");
        assert_eq!((there.places.root_dir, there.local.config), ("/elsewhere".into(), options.local.config));
        assert!(options.dynamic_config && options.node_labels.is_empty());
        let more = show("--dynamic-config=false --node-labels site=quarry");
        assert!(!more.dynamic_config && more.node_labels["site"] == "quarry" && more.service.is_some());
        let named = show("--config /y.yaml");
        assert_eq!((named.service, named.local.config), (None, Some("/y.yaml".into())));
        std::fs::write(&file, "KEDGE_FLAGS=--confg=x\n").unwrap();
        let error = parsed(&format!("config check --environment-file {}", file.display())).unwrap_err();
        assert!(error.to_string().contains("KEDGE_FLAGS: unknown flag --confg"), "{error}");
    }

    #[test]
    fn join_takes_the_printed_line() {
        let hash = "a1".repeat(32);
        let line =
            format!("join https://hub:6443 --ca-cert-hash sha256:{hash} --token-file - --node-name edge-7");
        let Ok(Command::Join(options)) = parsed(&line) else { panic!("{line}") };
        assert_eq!((options.server.as_str(), options.token_file.as_str()), ("https://hub:6443", "-"));
        assert_eq!((options.pins, options.node_name.as_deref()), (vec![[0xa1; 32]], Some("edge-7")));
    }

    #[test]
    fn lone_v_asks_for_the_version() {
        assert!(matches!(parsed("-v"), Ok(Command::Version(_))));
        assert!(
            matches!(parsed("record-exit --help"), Ok(Command::Help([first, ..])) if first.contains("ExecStopPost="))
        );
        assert!(
            matches!(parsed("status --help"), Ok(Command::Help([first, ..])) if first.contains("Usage: kedge status"))
        );
        assert!(parsed("agent -v").is_err());
    }

    #[test]
    fn wrong_command_line_names_the_word() {
        for (line, part) in [
            ("agent --confg x", "unknown flag --confg (did you mean --config?)"),
            ("agnt", "unknown command \"agnt\" (did you mean agent?)"),
            ("statsu", "(did you mean status?)"),
            ("pods list", "unknown command \"pods list\"; see"),
            ("agent --config a --config b", "--config is given twice"),
            ("agent --config a --init-config-dir b", "both given"),
            ("agent --dynamic-config=maybe", "expected true or false"),
            ("agent --hostname-override Edge_1", "is not a Node name"),
            ("agent --node-labels x", "has \"x\", expected key=value"),
            ("agent --node-labels =x", "the key \"\": name part must be non-empty"),
            ("agent --node-labels a/b/c=x", "the key \"a/b/c\""),
            ("agent --node-labels site=a/b", "the value \"a/b\" of site: a valid label must be"),
            ("agent --node-labels a=b,kubernetes.io/foo=x", "kubernetes.io/foo, which a node may not set"),
            (
                "agent --node-labels node-role.kubernetes.io/edge=",
                "below kubelet.kubernetes.io, node.kubernetes.io",
            ),
            ("agent --v loud", "--v is \"loud\", expected a number"),
            ("config forgive", "needs a UID"),
            ("join --token-file -", "join needs the server's URL"),
            ("join https://hub:6443", "join needs --token-file"),
            (
                "join https://hub:6443 --token abc123.0123456789abcdef",
                "every user of this machine: --token-file FILE",
            ),
            (
                "join https://hub:6443 --token-file -",
                "join needs --ca-cert-hash sha256:HEX, or any server could",
            ),
            ("join https://hub:6443 --token-file - --ca-cert-hash sha256:12", "expected sha256: and 64"),
            ("join h --token-file - --ca-cert-hash x --unsafe-skip-ca-verification", "are both given"),
            ("join h --token-file - --unsafe-skip-ca-verification --node-name Edge_7", "is not a Node name"),
            (
                "join h --token-file - --unsafe-skip-ca-verification --timeout soon",
                "expected a duration such as 10m",
            ),
            ("exec -it prod/web", "exec needs one pod, [NAMESPACE/]NAME, and -- COMMAND"),
            ("attach -it", "attach needs one pod, [NAMESPACE/]NAME"),
            ("status --output yaml", "expected text or json"),
        ] {
            let error = parsed(line).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part) && error.contains("--help"), "{line}: {error}");
        }
    }
}
