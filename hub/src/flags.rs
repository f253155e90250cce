//! The command line: raw words in, checked and complete options out.
//!
//! Always holds: every option is validated here, before anything is opened or written, and the returned
//! options are complete: later code fills in no defaults. Errors name the flag, the value found and the value
//! expected.

mod token;
mod user;

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use log::LevelFilter;

use crate::controllers::CertificateTimes;
use crate::help;
use crate::pki::{is_dns_subdomain, is_host};
use kedge_hub_core::controllers::daemon_sets::Defaults;
use kedge_hub_core::controllers::nodes::MINIMUM_GRACE;
use kedge_hub_core::value::duration;
use token::RawToken;
pub use token::{NewToken, NodeBootstrap, TokenAct, TokenCommand, Wanted};
use user::RawUser;
pub use user::{AdminKubeconfig, NewUser, Target, UserAct, UserCommand};

/// Kubernetes' own port for its API.
const DEFAULT_LISTEN: &str = "0.0.0.0:6443";
/// Where a packaged hub keeps its state.
const DEFAULT_DATA_DIR: &str = "/var/lib/kedge-hub";
/// Longest grace period; a longer one is a typing error: a lost node would show as Ready for more than a day.
const MAXIMUM_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Days of a year, as in the life of certificates.
const YEAR: i64 = 365;
/// Bounds in days for three times: the life of a node's certificate, the life of one that is made by hand,
/// and the period after its end in which a node may renew it.
const NODE_LIVES: (i64, i64) = (1, 10 * YEAR);
const LIVES_BY_HAND: (i64, i64) = (1, 50 * YEAR);
const MAY_RENEW: (i64, i64) = (0, 50 * YEAR);

#[derive(Debug, PartialEq)]
pub enum Command {
    /// Run the hub.
    Serve(Serve),
    /// Print credentials for a node.
    NodeKubeconfig(NodeKubeconfig),
    /// Make, list or revoke bootstrap tokens.
    Token(TokenCommand),
    /// Print a bootstrap kubeconfig for a node.
    NodeBootstrap(NodeBootstrap),
    /// List, revoke or readmit nodes.
    Node(NodeCommand),
    /// Print the deny list, or take an entry off it.
    Denied(DeniedCommand),
    /// Make credentials for a person, or refuse them.
    User(UserCommand),
    /// Print the administrator's kubeconfig for another machine.
    Kubeconfig(AdminKubeconfig),
    /// Show the progress of an update.
    Rollout(RolloutCommand),
    /// Run controllers beside another API server.
    Controllers(ControllersCommand),
    /// Replace the certificate authority.
    Ca(CaCommand),
    /// Copy everything into a new file.
    Backup(Backup),
    /// Replace the store by a copy, or by an empty one.
    Restore(Restore),
    /// Print the script of a shell's completions.
    Completions(&'static str),
    /// Print this page of help.
    Help(String),
    /// Print the version.
    Version,
}

/// Options of `serve`.
#[derive(Debug, PartialEq)]
pub struct Serve {
    /// The hub's directory; made if missing.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// Addresses at which others reach the hub; kubeconfigs name the first.
    pub advertise: Vec<Advertised>,
    /// More names for the serving certificate.
    pub tls_san: Vec<String>,
    /// Silence after which a node is lost, at least `MINIMUM_GRACE`.
    pub node_monitor_grace_period: Duration,
    /// How long nodes' certificates count.
    pub certificates: CertificateTimes,
    /// Defaults for DaemonSets that set no value of their own.
    pub rollouts: Defaults,
    /// Whether the hub rolls out configurations itself.
    pub config_rollouts: bool,
    /// Read-only but for the renewals of Leases: another hub takes this one's place.
    pub fenced: bool,
    pub log_level: LevelFilter,
}

/// Options of `node-kubeconfig`.
#[derive(Debug, PartialEq)]
pub struct NodeKubeconfig {
    /// The node, a DNS subdomain.
    pub name: String,
    /// The hub's directory.
    pub data_dir: PathBuf,
    /// The address to use instead of the one that the hub last published. It must then include a port.
    pub advertise: Option<Advertised>,
    /// The file to write, instead of printing.
    pub out: Option<PathBuf>,
    /// How long the certificate lives; `None`: as those that the hub signs.
    pub life: Option<time::Duration>,
}

/// Options of `node`.
#[derive(Debug, PartialEq)]
pub struct NodeCommand {
    /// The directory of the running hub.
    pub data_dir: PathBuf,
    /// Print JSON.
    pub json: bool,
    pub act: NodeAct,
}

/// Options of `denied`.
#[derive(Debug, PartialEq)]
pub struct DeniedCommand {
    /// The directory of the running hub.
    pub data_dir: PathBuf,
    /// Print JSON.
    pub json: bool,
    /// The entry to take off the list; `None`: print the list.
    pub lift: Option<String>,
}

/// Options of `rollout`.
#[derive(Debug, PartialEq)]
pub struct RolloutCommand {
    /// The directory of the running hub.
    pub data_dir: PathBuf,
    /// Of the DaemonSet; `None` for a ConfigRollout.
    pub namespace: Option<String>,
    pub name: String,
    /// Print again at each change, until the end.
    pub watch: bool,
    /// Print JSON.
    pub json: bool,
}

/// Options of `controllers`.
#[derive(Debug, PartialEq)]
pub struct ControllersCommand {
    /// Names the API server, and the credential.
    pub kubeconfig: PathBuf,
    /// The name of this process in the Lease.
    pub name: String,
    /// Run the controller of ConfigRollouts.
    pub config_rollouts: bool,
    /// Approve requests of nodes for certificates.
    pub approving: bool,
    pub log_level: LevelFilter,
}

/// Options of `ca`.
#[derive(Debug, PartialEq)]
pub struct CaCommand {
    /// The hub's directory.
    pub data_dir: PathBuf,
    /// Print JSON.
    pub json: bool,
    pub act: CaAct,
}

/// The act of the command `ca`.
#[derive(Debug, PartialEq)]
pub enum CaAct {
    New,
    Status,
    /// `back`: to the former authority; `leave`: how many nodes may be cut off.
    Switch {
        back: bool,
        leave: u64,
    },
    Retire {
        number: u8,
        leave: u64,
    },
}

/// The act of the command `node`.
#[derive(Debug, PartialEq)]
pub enum NodeAct {
    List,
    /// `force`: also revoke a name that the hub does not know.
    Revoke {
        name: String,
        reason: String,
        force: bool,
    },
    Readmit {
        name: String,
        same_credentials: bool,
    },
    /// `None`: all nodes that wait.
    Accept {
        name: Option<String>,
    },
    Rotate {
        name: String,
    },
    Decommission {
        name: String,
        wipe: bool,
    },
}

/// Options of `restore`.
#[derive(Debug, PartialEq)]
pub struct Restore {
    /// The hub's directory.
    pub data_dir: PathBuf,
    /// The backup; `None`: start with an empty store.
    pub file: Option<PathBuf>,
    /// Later revocations than the backup's do not count.
    pub forget_revocations: bool,
}

/// Options of `backup`.
#[derive(Debug, PartialEq)]
pub struct Backup {
    /// The hub's directory.
    pub data_dir: PathBuf,
    /// The new file, or with `keep` the directory of a series.
    pub file: PathBuf,
    /// How many files of the series are kept.
    pub keep: Option<u32>,
}

/// An advertised host; without a port, the port that the hub listens on.
#[derive(Debug, Clone, PartialEq)]
pub struct Advertised {
    /// Host name or IP address, no brackets.
    pub host: String,
    /// The port, if a forwarded one differs from the listening one.
    pub port: Option<u16>,
}

/// An invalid command line.
#[derive(Debug)]
pub enum FlagError {
    /// A missing value, and the like.
    Syntax(lexopt::Error),
    /// An unknown flag, without dashes.
    Unknown(String),
    /// An invalid value.
    Value {
        /// The flag or argument.
        flag: &'static str,
        /// The value found.
        found: String,
        /// The value expected.
        expected: String,
    },
    /// No command, or an unknown one.
    Command(Option<String>),
    /// A flag, without dashes, that the command does not take.
    Unused { flag: &'static str, command: &'static str },
}

impl fmt::Display for FlagError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagError::Syntax(error) => write!(formatter, "{error}"),
            FlagError::Value { flag, found, expected } => {
                write!(formatter, "{flag} is {found:?}, expected {expected}")
            }
            FlagError::Unknown(found) => {
                let meant = did_you_mean("--", help::similar_flag(found));
                write!(formatter, "unknown flag --{found}{meant}")
            }
            FlagError::Command(None) => {
                write!(formatter, "no command given, expected {}", help::first_words().join(", "))
            }
            FlagError::Command(Some(found)) => {
                let meant = did_you_mean("", help::similar_command(found));
                write!(
                    formatter,
                    "unknown command {found:?}{meant}, expected {}",
                    help::first_words().join(", ")
                )
            }
            FlagError::Unused { flag, command } => write!(formatter, "--{flag} has no meaning for {command}"),
        }
    }
}

impl std::error::Error for FlagError {}

fn did_you_mean(dashes: &str, meant: Option<&str>) -> String {
    meant.map(|meant| format!(" (did you mean {dashes}{meant}?)")).unwrap_or_default()
}

/// The flags of a command line, before its command is known.
#[derive(Default)]
struct Raw {
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    advertise: Vec<String>,
    tls_san: Vec<String>,
    grace: Option<String>,
    pre_pull: Option<String>,
    config_rollouts: Option<String>,
    kubeconfig: Option<PathBuf>,
    only: Option<String>,
    node_life: Option<String>,
    expired_may_renew: Option<String>,
    life: Option<String>,
    log_level: Option<String>,
    output: Option<String>,
    reason: Option<String>,
    same_credentials: bool,
    force: bool,
    wipe: bool,
    all: bool,
    out: Option<PathBuf>,
    namespace: Option<String>,
    watch: bool,
    empty: bool,
    token: RawToken,
    user: RawUser,
    leave: Option<String>,
    back: bool,
    fenced: bool,
    keep: Option<String>,
    forget_revocations: bool,
    words: Vec<String>,
    /// The flags that the line has.
    given: Vec<&'static str>,
}

/// Reads a command line, without the program's name in front.
pub fn parse<I>(arguments: I) -> Result<Command, FlagError>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let mut raw = Raw::default();
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(FlagError::Syntax)? {
        let name = match argument {
            Short('h') | Long("help") => return Ok(Command::Help(help::page(&raw.words))),
            Short('V') | Long("version") => return Ok(Command::Version),
            Short('n') => "namespace".to_owned(),
            Short('o') => "output".to_owned(),
            Long(name) => name.to_owned(),
            Value(word) => {
                raw.words.push(word.string().map_err(FlagError::Syntax)?);
                continue;
            }
            other => return Err(FlagError::Syntax(other.unexpected())),
        };
        raw.take(&name, &mut parser)?;
    }
    if let Some(command) = help::find_command(&raw.words)
        && let Some(flag) = raw.given.iter().find(|flag| !command.flags.contains(flag))
    {
        return Err(FlagError::Unused { flag, command: command.words });
    }
    // only now, because flags may stand before the command
    match raw.words.first().map(String::as_str) {
        Some("serve") => serve(raw),
        Some("node-kubeconfig") => node_kubeconfig(raw),
        Some("node-bootstrap") => token::node_bootstrap(raw),
        Some("token") => token::token(raw),
        Some("node") => node(raw),
        Some("denied") => denied(raw),
        Some("user") => user::user(&raw),
        Some("kubeconfig") => user::kubeconfig(&raw),
        Some("rollout") => rollout(raw),
        Some("controllers") => controllers(raw),
        Some("ca") => ca(raw),
        Some("backup") => backup(raw).map(Command::Backup),
        Some("restore") => restore(raw).map(Command::Restore),
        Some("completions") => completions(&raw).map(Command::Completions),
        Some("help") => Ok(Command::Help(help::page(&raw.words[1..]))),
        Some("version") => Ok(Command::Version),
        other => Err(FlagError::Command(other.map(str::to_owned))),
    }
}

impl Raw {
    /// Keeps a flag and its value.
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), FlagError> {
        let unknown = || FlagError::Unknown(name.to_owned());
        let flag = help::find_flag(name).ok_or_else(unknown)?;
        self.given.push(flag.name);
        let value = match flag.value {
            "" => OsString::new(),
            _ => parser.value().map_err(FlagError::Syntax)?,
        };
        let path = || Some(PathBuf::from(&value));
        let text = || value.clone().string().map_err(FlagError::Syntax);
        match flag.name {
            "data-dir" => self.data_dir = path(),
            "listen" => self.listen = Some(text()?),
            "advertise" => self.advertise.push(text()?),
            "tls-san" => self.tls_san.push(text()?),
            "node-monitor-grace-period" => self.grace = Some(text()?),
            "node-certificate-life" => self.node_life = Some(text()?),
            "expired-node-may-renew" => self.expired_may_renew = Some(text()?),
            "life" => self.life = Some(text()?),
            "rollout-pre-pull" => self.pre_pull = Some(text()?),
            "config-rollouts" => self.config_rollouts = Some(text()?),
            "kubeconfig" => self.kubeconfig = path(),
            "only" => self.only = Some(text()?),
            "log-level" => self.log_level = Some(text()?),
            "output" => self.output = Some(text()?),
            "reason" => self.reason = Some(text()?),
            "namespace" => self.namespace = Some(text()?),
            "watch" => self.watch = true,
            "same-credentials" => self.same_credentials = true,
            "force" => self.force = true,
            "wipe" => self.wipe = true,
            "all" => self.all = true,
            "out" => self.out = path(),
            "empty" => self.empty = true,
            "node" => self.token.node = Some(text()?),
            "names" => self.token.names = path(),
            "any-node" => self.token.any_node = true,
            "ttl" => self.token.ttl = Some(text()?),
            "uses" => self.token.uses = Some(text()?),
            "approve" => self.token.approve = true,
            "description" => self.token.description = Some(text()?),
            "role" => self.user.role = Some(text()?),
            "server" => self.user.server = Some(text()?),
            "user" => self.user.user = Some(text()?),
            "p12" => self.user.p12 = path(),
            "leave" => self.leave = Some(text()?),
            "back" => self.back = true,
            "fenced" => self.fenced = true,
            "keep" => self.keep = Some(text()?),
            "forget-revocations" => self.forget_revocations = true,
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn completions(raw: &Raw) -> Result<&'static str, FlagError> {
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        ["bash"] => include_str!("../completions/kedge-hub.bash"),
        ["zsh"] => include_str!("../completions/_kedge-hub"),
        ["fish"] => include_str!("../completions/kedge-hub.fish"),
        words => return Err(value("completions", &words.join(" "), "bash, zsh or fish")),
    })
}

fn serve(raw: Raw) -> Result<Command, FlagError> {
    if let Some(word) = raw.words.get(1) {
        return Err(value("serve", word, "no further argument"));
    }
    let hosts = |flag, list: &[String]| match list.iter().find(|name| !is_host(name)) {
        Some(name) => Err(value(flag, name, "a host name or an IP address")),
        None => Ok(()),
    };
    hosts("--tls-san", &raw.tls_san)?;
    let certificates = certificate_times(&raw)?;
    Ok(Command::Serve(Serve {
        data_dir: data_dir(raw.data_dir)?,
        listen: listen(raw.listen.as_deref().unwrap_or(DEFAULT_LISTEN))?,
        advertise: raw.advertise.iter().map(|text| advertised(text)).collect::<Result<_, _>>()?,
        tls_san: raw.tls_san,
        node_monitor_grace_period: raw.grace.as_deref().map_or(Ok(MINIMUM_GRACE), grace)?,
        fenced: raw.fenced,
        certificates,
        rollouts: raw.pre_pull.as_deref().map_or(Ok(Defaults::default()), rollouts)?,
        config_rollouts: match raw.config_rollouts.as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(value("--config-rollouts", other, "on or off")),
        },
        log_level: raw.log_level.as_deref().map_or(Ok(LevelFilter::Info), log_level)?,
    }))
}

/// True if `--output` demands JSON.
fn is_json(output: Option<&str>) -> Result<bool, FlagError> {
    match output {
        None | Some("table") => Ok(false),
        Some("json") => Ok(true),
        Some(other) => Err(value("--output", other, "table or json")),
    }
}

fn rollout(raw: Raw) -> Result<Command, FlagError> {
    let namespace = raw.namespace.as_deref().unwrap_or("default").to_owned();
    if !is_dns_subdomain(&namespace) {
        return Err(value("--namespace", &namespace, "the name of a namespace"));
    }
    let expected = "the name of one DaemonSet, or cro/ and that of a ConfigRollout";
    let (namespace, name) = match raw.words.as_slice() {
        [_, name] if is_dns_subdomain(name) => (Some(namespace), name.clone()),
        [_, word] => match word.strip_prefix("cro/").filter(|name| is_dns_subdomain(name)) {
            Some(_) if raw.namespace.is_some() => {
                return Err(value("--namespace", &namespace, "none: a ConfigRollout has no namespace"));
            }
            Some(name) => (None, name.to_owned()),
            None => return Err(value("rollout", word, expected)),
        },
        words => return Err(value("rollout", &words[1..].join(" "), expected)),
    };
    let (watch, json) = (raw.watch, is_json(raw.output.as_deref())?);
    Ok(Command::Rollout(RolloutCommand { data_dir: data_dir(raw.data_dir)?, namespace, name, watch, json }))
}

fn controllers(raw: Raw) -> Result<Command, FlagError> {
    if raw.words.len() > 1 {
        return Err(value("controllers", &raw.words[1..].join(" "), "no further argument"));
    }
    let log_level = raw.log_level.as_deref().map_or(Ok(LevelFilter::Info), log_level)?;
    let only = raw.only.as_deref().unwrap_or_default();
    let (mut config_rollouts, mut approving) = (false, false);
    for word in only.split(',') {
        match word {
            "config-rollouts" => config_rollouts = true,
            "approving" => approving = true,
            _ => {
                let expected =
                    "config-rollouts, approving or both, the controllers that run beside another API server";
                return Err(value("--only", only, expected));
            }
        }
    }
    let Some(kubeconfig) = raw.kubeconfig else {
        return Err(value("--kubeconfig", "", "a file that names an API server"));
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("{}_{}", host.trim(), std::process::id());
    Ok(Command::Controllers(ControllersCommand { kubeconfig, name, config_rollouts, approving, log_level }))
}

fn ca(raw: Raw) -> Result<Command, FlagError> {
    let leave = match raw.leave.as_deref().map(|text| text.parse::<u64>().map_err(|_| text)) {
        None => 0,
        Some(Ok(leave)) => leave,
        Some(Err(text)) => return Err(value("--leave", text, "a number of nodes")),
    };
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let act = match words.as_slice() {
        ["new"] => CaAct::New,
        ["status"] => CaAct::Status,
        ["switch"] => CaAct::Switch { back: raw.back, leave },
        ["retire", number] => {
            let number =
                number.parse().map_err(|_| value("ca retire", number, "the number of an authority"))?;
            CaAct::Retire { number, leave }
        }
        words => return Err(value("ca", &words.join(" "), "new, status, switch or retire NUMBER")),
    };
    let json = is_json(raw.output.as_deref())?;
    Ok(Command::Ca(CaCommand { data_dir: data_dir(raw.data_dir)?, json, act }))
}

fn denied(raw: Raw) -> Result<Command, FlagError> {
    let is_entry = |word: &str| {
        word.contains('.') && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let lift = match words.as_slice() {
        ["list"] => None,
        ["lift", entry] if is_entry(entry) => Some((*entry).to_owned()),
        words => return Err(value("denied", &words.join(" "), "list, or lift ENTRY as list prints it")),
    };
    let json = is_json(raw.output.as_deref())?;
    Ok(Command::Denied(DeniedCommand { data_dir: data_dir(raw.data_dir)?, json, lift }))
}

fn node(raw: Raw) -> Result<Command, FlagError> {
    let json = is_json(raw.output.as_deref())?;
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let named = |name: &str| name.to_owned();
    let act = match words.as_slice() {
        ["list"] => NodeAct::List,
        ["revoke", name] if is_dns_subdomain(name) => {
            let reason = raw.reason.clone().unwrap_or_default();
            NodeAct::Revoke { name: named(name), reason, force: raw.force }
        }
        ["readmit", name] if is_dns_subdomain(name) => {
            NodeAct::Readmit { name: named(name), same_credentials: raw.same_credentials }
        }
        ["accept", name] if is_dns_subdomain(name) => {
            if raw.all {
                return Err(FlagError::Unused { flag: "all", command: "node accept NAME" });
            }
            NodeAct::Accept { name: Some(named(name)) }
        }
        ["accept"] if raw.all => NodeAct::Accept { name: None },
        ["rotate", name] if is_dns_subdomain(name) => NodeAct::Rotate { name: named(name) },
        ["decommission", name] if is_dns_subdomain(name) => {
            NodeAct::Decommission { name: named(name), wipe: raw.wipe }
        }
        words => {
            let expected = "list, revoke NAME, readmit NAME, accept NAME or --all, rotate NAME or decommission NAME of a node";
            return Err(value("node", &words.join(" "), expected));
        }
    };
    Ok(Command::Node(NodeCommand { data_dir: data_dir(raw.data_dir)?, json, act }))
}

fn backup(raw: Raw) -> Result<Backup, FlagError> {
    let keep =
        match raw.keep.as_deref().map(|text| text.parse::<u32>().ok().filter(|keep| *keep > 0).ok_or(text)) {
            None => None,
            Some(Ok(keep)) => Some(keep),
            Some(Err(text)) => return Err(value("--keep", text, "how many backups are kept, at least 1")),
        };
    match raw.words.as_slice() {
        [_, file] if !file.is_empty() => {
            Ok(Backup { file: PathBuf::from(file), data_dir: data_dir(raw.data_dir)?, keep })
        }
        words => Err(value("backup", &words[1..].join(" "), "one file, or with --keep one directory")),
    }
}

fn restore(raw: Raw) -> Result<Restore, FlagError> {
    let file = match raw.words.as_slice() {
        [_, file] if !file.is_empty() && !raw.empty => Some(PathBuf::from(file)),
        [_] if raw.empty => None,
        words => return Err(value("restore", &words[1..].join(" "), "one file, or --empty")),
    };
    if file.is_none() && raw.forget_revocations {
        return Err(FlagError::Unused { flag: "forget-revocations", command: "restore --empty" });
    }
    Ok(Restore { file, data_dir: data_dir(raw.data_dir)?, forget_revocations: raw.forget_revocations })
}

fn node_kubeconfig(raw: Raw) -> Result<Command, FlagError> {
    const COMMAND: &str = "node-kubeconfig";
    let name = match raw.words.as_slice() {
        [_, name] if is_dns_subdomain(name) => name.clone(),
        [_, name] => {
            let expected = "a DNS name in lower case: letters, digits, '-' and '.', at most 253 characters";
            return Err(value(COMMAND, name, expected));
        }
        words => return Err(value(COMMAND, &words[1..].join(" "), "one node name")),
    };
    let advertise = node_address(&raw.advertise)?;
    if raw.out.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(value("--out", "", "the name of a file"));
    }
    let life = raw.life.as_deref().map(|text| days("--life", text, LIVES_BY_HAND)).transpose()?;
    let (data_dir, out) = (data_dir(raw.data_dir)?, raw.out);
    Ok(Command::NodeKubeconfig(NodeKubeconfig { name, data_dir, advertise, out, life }))
}

/// The hub's address for a node, if it is given.
fn node_address(given: &[String]) -> Result<Option<Advertised>, FlagError> {
    match given {
        [] => Ok(None),
        [text] => match advertised(text)? {
            Advertised { port: None, .. } => Err(value("--advertise", text, "HOST:PORT with a port")),
            advertised => Ok(Some(advertised)),
        },
        several => Err(value("--advertise", &several.join(" "), "one address: a node has one hub")),
    }
}

fn value(flag: &'static str, found: &str, expected: &str) -> FlagError {
    FlagError::Value { flag, found: found.to_owned(), expected: expected.to_owned() }
}

fn data_dir(given: Option<PathBuf>) -> Result<PathBuf, FlagError> {
    match given {
        None => Ok(PathBuf::from(DEFAULT_DATA_DIR)),
        Some(path) if path.as_os_str().is_empty() => Err(value("--data-dir", "", "a directory")),
        Some(path) => Ok(path),
    }
}

fn listen(text: &str) -> Result<SocketAddr, FlagError> {
    let wrong = || value("--listen", text, "ADDR:PORT, for example 0.0.0.0:6443, [::]:6443 or localhost:0");
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    // a name that this machine resolves (localhost): use the first of its addresses
    match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => {
            text.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

fn advertised(text: &str) -> Result<Advertised, FlagError> {
    let wrong =
        || value("--advertise", text, "HOST or HOST:PORT, an IPv6 address in brackets if a port follows");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(wrong)?) };
            (host, port)
        }
        None if text.parse::<std::net::Ipv6Addr>().is_ok() => (text, None),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => None,
        Some(port) => Some(port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
    };
    if !is_host(host) || host.starts_with('*') {
        return Err(wrong());
    }
    Ok(Advertised { host: host.to_owned(), port })
}

fn grace(text: &str) -> Result<Duration, FlagError> {
    let wrong =
        || value("--node-monitor-grace-period", text, "a duration from 50s to 24h, for example 90s or 2m30s");
    let found = duration(text).ok_or_else(wrong)?;
    if (MINIMUM_GRACE..=MAXIMUM_GRACE).contains(&found) { Ok(found) } else { Err(wrong()) }
}

fn certificate_times(raw: &Raw) -> Result<CertificateTimes, FlagError> {
    let mut times = CertificateTimes::default();
    if let Some(text) = &raw.node_life {
        times.life = days("--node-certificate-life", text, NODE_LIVES)?;
    }
    if let Some(text) = &raw.expired_may_renew {
        times.expired_may_renew = days("--expired-node-may-renew", text, MAY_RENEW)?;
    }
    Ok(times)
}

/// A time in days or years, within these days.
fn days(flag: &'static str, text: &str, (from, to): (i64, i64)) -> Result<time::Duration, FlagError> {
    let shown = |days: i64| {
        if days % YEAR == 0 && days > 0 { format!("{}y", days / YEAR) } else { format!("{days}d") }
    };
    let wrong = || value(flag, text, &format!("{} to {}, for example 90d or 2y", shown(from), shown(to)));
    let unit = if text.ends_with('y') { YEAR } else { 1 };
    let number =
        text.strip_suffix(['d', 'y']).and_then(|number| number.parse::<u32>().ok()).ok_or_else(wrong)?;
    let days = i64::from(number) * unit;
    if (from..=to).contains(&days) { Ok(time::Duration::days(days)) } else { Err(wrong()) }
}

fn rollouts(text: &str) -> Result<Defaults, FlagError> {
    match text {
        "on" => Ok(Defaults { pre_pull: true }),
        "off" => Ok(Defaults { pre_pull: false }),
        _ => Err(value("--rollout-pre-pull", text, "on or off")),
    }
}

fn log_level(text: &str) -> Result<LevelFilter, FlagError> {
    match text {
        "error" => Ok(LevelFilter::Error),
        "warn" => Ok(LevelFilter::Warn),
        "info" => Ok(LevelFilter::Info),
        "debug" => Ok(LevelFilter::Debug),
        _ => Err(value("--log-level", text, "error, warn, info or debug")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Command, FlagError> {
        parse(line.split_whitespace())
    }

    fn serve_of(line: &str) -> Serve {
        match words(line) {
            Ok(Command::Serve(serve)) => serve,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[track_caller]
    fn refused(line: &str, expect: &str) {
        let error = words(line).expect_err(line).to_string();
        assert!(error.contains(expect), "{line}: {error}");
    }

    #[test]
    fn serve_without_flags_is_complete() {
        let serve = serve_of("serve");
        assert_eq!(serve.data_dir, PathBuf::from("/var/lib/kedge-hub"));
        assert_eq!(serve.listen, "0.0.0.0:6443".parse().unwrap());
        assert_eq!(serve.node_monitor_grace_period, Duration::from_secs(50));
        assert!(serve.rollouts.pre_pull);
        let times = |life: i64, expired: i64| CertificateTimes {
            life: time::Duration::days(life),
            expired_may_renew: time::Duration::days(expired),
        };
        assert_eq!(serve.certificates, times(365, 1095));
        let given = serve_of("serve --node-certificate-life 10y --expired-node-may-renew 0d");
        assert_eq!(given.certificates, times(3650, 0));
        assert_eq!(
            (serve.advertise, serve.tls_san, serve.log_level),
            (Vec::new(), Vec::new(), LevelFilter::Info)
        );
    }

    #[test]
    fn flags_are_accepted_before_the_command_and_with_equals() {
        let serve = serve_of("--data-dir=/x serve --listen=[::1]:0 --log-level debug");
        assert_eq!(serve.data_dir, PathBuf::from("/x"));
        assert_eq!(serve.listen, "[::1]:0".parse().unwrap());
        assert_eq!(serve.log_level, LevelFilter::Debug);
        assert!(serve_of("serve --listen localhost:0").listen.ip().is_loopback());
        assert!(!serve_of("serve --rollout-pre-pull off").rollouts.pre_pull);
    }

    #[test]
    fn advertised_addresses_are_read_in_every_form() {
        let check = |text: &str, host: &str, port: Option<u16>| {
            let expect = Advertised { host: host.to_owned(), port };
            assert_eq!(serve_of(&format!("serve --advertise {text}")).advertise, [expect]);
        };
        check("hub.example", "hub.example", None);
        check("hub.example:8443", "hub.example", Some(8443));
        check("10.0.0.1", "10.0.0.1", None);
        check("10.0.0.1:1", "10.0.0.1", Some(1));
        check("fe80::1", "fe80::1", None);
        check("[fe80::1]", "fe80::1", None);
        check("[fe80::1]:7", "fe80::1", Some(7));
        for wrong in [
            "hub:",
            "hub:0",
            "hub:x",
            "hub:70000",
            "[::1",
            "[hub]:1",
            "[::1]7",
            "*.x",
            "-",
            "a/b",
            "https://x",
        ] {
            refused(&format!("serve --advertise {wrong}"), "--advertise is");
        }
    }

    #[test]
    fn node_commands_take_their_own_flags_only() {
        let act = |line: &str| match parse(line.split_whitespace()) {
            Ok(Command::Node(command)) => (command.act, command.json),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(act("node list --output json"), (NodeAct::List, true));
        let name = "edge-1".to_owned();
        let revoke =
            |reason: &str, force| NodeAct::Revoke { name: name.clone(), reason: reason.to_owned(), force };
        assert_eq!(act("node revoke edge-1 --reason stolen"), (revoke("stolen", false), false));
        assert_eq!(act("node revoke edge-1 --force"), (revoke("", true), false));
        let readmit = |same_credentials| NodeAct::Readmit { name: name.clone(), same_credentials };
        assert_eq!(act("node readmit edge-1 --output table"), (readmit(false), false));
        assert_eq!(act("node readmit edge-1 --same-credentials"), (readmit(true), false));
        for line in
            ["node", "node list x", "node revoke", "node revoke A", "node forget a", "node revoke a b"]
        {
            refused(line, "expected list, revoke NAME, readmit NAME, accept NAME");
        }
        assert_eq!(act("node accept edge-1"), (NodeAct::Accept { name: Some(name.clone()) }, false));
        assert_eq!(act("node accept --all"), (NodeAct::Accept { name: None }, false));
        assert_eq!(act("node rotate edge-1"), (NodeAct::Rotate { name: name.clone() }, false));
        let give_up = |wipe| (NodeAct::Decommission { name: name.clone(), wipe }, false);
        assert_eq!(act("node decommission edge-1"), give_up(false));
        assert_eq!(act("node decommission edge-1 --wipe"), give_up(true));
        refused("node accept edge-1 --all", "--all has no meaning for node accept NAME");
        refused("node accept", "expected list, revoke NAME, readmit NAME, accept NAME");
        refused("node rotate a --wipe", "--wipe has no meaning for node rotate");
        refused("restore f --wipe", "--wipe has no meaning for restore");
        refused("node list --output yaml", "--output is \"yaml\"");
        refused("node list --reason x", "--reason has no meaning for node list");
        refused("node revoke a --same-credentials", "--same-credentials has no meaning for node revoke");
        refused("node readmit a --reason x", "--reason has no meaning for node readmit");
        refused("node readmit a --force", "--force has no meaning for node readmit");
        refused("node list --out f", "--out has no meaning for node");
        refused("rollout a --out f", "--out has no meaning for rollout");
        refused("node list --listen x", "--listen has no meaning for node");
        refused("node list --rollout-pre-pull on", "--rollout-pre-pull has no meaning for node");
        refused("node list --advertise x", "--advertise has no meaning for node");
        let denied = |line: &str| match parse(line.split_whitespace()) {
            Ok(Command::Denied(command)) => command.lift,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(
            (denied("denied list"), denied("denied lift user.a_5f")),
            (None, Some("user.a_5f".to_owned()))
        );
        for line in ["denied", "denied lift", "denied lift jane", "denied lift user.a/b", "denied list x"] {
            refused(line, "expected list, or lift ENTRY");
        }
        refused("denied list --force", "--force has no meaning for denied");
        for command in ["serve", "backup f", "restore f", "node-kubeconfig a"] {
            refused(&format!("{command} --output json"), "--output has no meaning for");
            refused(&format!("{command} --same-credentials"), "--same-credentials has no meaning for");
            refused(&format!("{command} --force"), "--force has no meaning for");
        }
        for command in ["serve", "backup f", "restore f"] {
            refused(&format!("{command} --out f"), "--out has no meaning for");
        }
    }

    #[test]
    fn rollout_takes_one_set_and_its_namespace() {
        let rollout = |line: &str| match words(line) {
            Ok(Command::Rollout(command)) => command,
            other => panic!("{line}: {other:?}"),
        };
        let found = rollout("rollout agent");
        assert_eq!((found.namespace.as_deref(), found.watch, found.json), (Some("default"), false, false));
        let found = rollout("rollout agent -n edge --watch --output json");
        assert_eq!((found.namespace.as_deref(), found.watch, found.json), (Some("edge"), true, true));
        let found = rollout("rollout cro/shops");
        assert_eq!((found.namespace, found.name.as_str()), (None, "shops"));
        refused("rollout cro/shops -n a", "a ConfigRollout has no namespace");
        refused("controllers --kubeconfig f", "--only is \"\", expected config-rollouts");
        refused("controllers --only config-rollouts", "--kubeconfig is \"\"");
        for line in ["approving,", "approving config-rollouts", "config-rollouts,scheduler"] {
            refused(&format!("controllers --kubeconfig f --only {line}"), "controllers");
        }
        let controllers = |only: &str| match words(&format!("controllers --kubeconfig f --only {only}")) {
            Ok(Command::Controllers(command)) => (command.config_rollouts, command.approving),
            other => panic!("{only}: {other:?}"),
        };
        assert_eq!(controllers("config-rollouts"), (true, false));
        assert_eq!(controllers("approving"), (false, true));
        assert_eq!(controllers("approving,config-rollouts"), (true, true));
        for line in ["rollout", "rollout a b", "rollout A", "rollout ds/agent", "rollout cro/A"] {
            refused(line, "expected the name of one DaemonSet");
        }
        refused("rollout a -n A", "--namespace is \"A\"");
        refused("rollout a --reason x", "--reason has no meaning for rollout");
        refused("rollout a --listen x", "--listen has no meaning for rollout");
        for command in ["serve", "node list", "backup f", "node-kubeconfig a"] {
            refused(&format!("{command} --watch"), "--watch has no meaning for");
            refused(&format!("{command} -n x"), "--namespace has no meaning for");
        }
    }

    #[test]
    fn invalid_values_are_reported_with_the_expected_ones() {
        refused("", "no command");
        refused("serv", "unknown command \"serv\" (did you mean serve?)");
        refused("completions", "expected bash, zsh or fish");
        refused("serve --lisen x", "unknown flag --lisen (did you mean --listen?)");
        refused("serve --listen 6443", "--listen is \"6443\", expected ADDR:PORT");
        refused("serve --listen nowhere.invalid:1", "--listen is");
        refused("serve --tls-san a_b", "--tls-san is \"a_b\"");
        refused("serve --node-monitor-grace-period 40s", "expected a duration from 50s");
        refused("serve --node-monitor-grace-period 25h", "expected a duration from 50s");
        for wrong in ["0d", "11y", "1", "y", "1h", "-1d", "4000d"] {
            refused(
                &format!("serve --node-certificate-life {wrong}"),
                "expected 1d to 10y, for example 90d or 2y",
            );
        }
        refused("serve --expired-node-may-renew 51y", "expected 0d to 50y");
        refused("serve --rollout-pre-pull maybe", "--rollout-pre-pull is \"maybe\", expected on or off");
        refused("serve --log-level loud", "--log-level is \"loud\"");
        refused("serve --data-dir=", "--data-dir is");
        refused("serve extra", "no further argument");
        refused("serve --data-dir", "missing argument");
        refused("serve --nonsense", "--nonsense");
    }

    #[test]
    fn node_kubeconfig_takes_one_valid_name() {
        let expect = NodeKubeconfig {
            name: "edge-1".to_owned(),
            data_dir: PathBuf::from("/x"),
            advertise: None,
            out: None,
            life: None,
        };
        assert_eq!(words("node-kubeconfig edge-1 --data-dir /x").unwrap(), Command::NodeKubeconfig(expect));
        let Command::NodeKubeconfig(found) = words("node-kubeconfig a --advertise hub:1").unwrap() else {
            panic!()
        };
        assert_eq!(found.advertise, Some(Advertised { host: "hub".to_owned(), port: Some(1) }));
        refused("node-kubeconfig", "expected one node name");
        refused("node-kubeconfig a b", "expected one node name");
        refused("node-kubeconfig Edge", "expected a DNS name");
        refused("node-kubeconfig a --advertise hub", "with a port");
        refused("node-kubeconfig a --advertise hub:1 --advertise hub:2", "one address");
        let Command::NodeKubeconfig(found) = words("node-kubeconfig a --out b/c").unwrap() else {
            panic!("another command")
        };
        assert_eq!(found.out, Some(PathBuf::from("b/c")));
        let Command::NodeKubeconfig(found) = words("node-kubeconfig a --life 25y").unwrap() else {
            panic!("another command")
        };
        assert_eq!(found.life, Some(time::Duration::days(25 * 365)));
        refused("node-kubeconfig a --life 51y", "--life is \"51y\", expected 1d to 50y");
        refused("node list --life 1y", "--life has no meaning for node");
        refused("serve --life 1y", "--life has no meaning for serve");
        refused("node-kubeconfig a --listen 0.0.0.0:1", "--listen has no meaning for node-kubeconfig");
    }

    #[test]
    fn help_and_version_take_precedence() {
        assert!(matches!(words("serve --help"), Ok(Command::Help(page)) if page.contains("--listen")));
        assert_eq!(words("-V").unwrap(), Command::Version);
    }
}
