//! The command line: raw words in, checked and complete options out.
//!
//! Always holds: every option is validated here, before anything is opened or written, and the returned
//! options are complete: later code fills in no defaults. Errors name the flag, the value found and the value
//! expected.

mod token;

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use log::LevelFilter;

use crate::controllers::CertificateTimes;
use crate::pki::{is_dns_subdomain, is_host};
use kedge_hub_core::controllers::daemon_sets::Defaults;
use kedge_hub_core::controllers::nodes::MINIMUM_GRACE;
use kedge_hub_core::value::duration;
pub use token::{NewToken, NodeBootstrap, TokenAct, TokenCommand, Wanted};
use token::{RawToken, of_token};

/// Kubernetes' own port for its API.
const DEFAULT_LISTEN: &str = "0.0.0.0:6443";
/// Where a packaged hub keeps its state.
const DEFAULT_DATA_DIR: &str = "/var/lib/kedge-hub";
/// The only command that takes `--out`.
const NODE_KUBECONFIG: &str = "node-kubeconfig";
/// Longest grace period; a longer one is a typing error: a lost node would show as Ready for more than a day.
const MAXIMUM_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Days of a year, as in the life of certificates.
const YEAR: i64 = 365;
/// Bounds in days for three times: the life of a node's certificate, the life of one that is made by hand,
/// and the period after its end in which a node may renew it.
const NODE_LIVES: (i64, i64) = (1, 10 * YEAR);
const LIVES_BY_HAND: (i64, i64) = (1, 50 * YEAR);
const MAY_RENEW: (i64, i64) = (0, 50 * YEAR);

/// `kedge-hub --help`.
pub const HELP: &str = "\
kedge-hub: a Kubernetes API server in one process, for edge devices

Usage:
  kedge-hub serve [FLAGS]
  kedge-hub node-kubeconfig NAME [--life TIME] [--out FILE] [--data-dir DIR] [--advertise HOST[:PORT]]
  kedge-hub node-bootstrap NAME [--ttl DURATION] [--out FILE] [--data-dir DIR] [--advertise HOST:PORT]
  kedge-hub token create --node NAME|--names FILE|--any-node [--ttl DURATION] [--uses N] [--approve]
                         [--description TEXT] [--data-dir DIR] [--advertise HOST:PORT] [--output json]
  kedge-hub token list|revoke ID [--data-dir DIR] [--output json]
  kedge-hub node list|revoke NAME|readmit NAME [--data-dir DIR] [--output json]
  kedge-hub node rotate NAME|decommission NAME [--wipe]|accept NAME|accept --all [--data-dir DIR] [--output json]
  kedge-hub denied list|lift ENTRY [--data-dir DIR] [--output json]
  kedge-hub rollout NAME [-n NAMESPACE] [--watch] [--data-dir DIR] [--output json]
  kedge-hub ca new|status|switch|retire NUMBER [--leave COUNT] [--data-dir DIR]
  kedge-hub backup FILE|DIRECTORY --keep COUNT [--data-dir DIR]
  kedge-hub restore FILE [--forget-revocations] [--data-dir DIR]
  kedge-hub restore --empty [--data-dir DIR]

Commands:
  serve            run the hub; prints its address, its CA and its kubeconfig once it is ready
  node-kubeconfig  make a kubeconfig with new credentials for the node NAME, and print it or write it to --out; the hub
                   may be running; a node that is revoked gets none
  node-bootstrap   make a kubeconfig with a token, by which the node NAME asks for its own certificate: its key never
                   leaves the device; the hub must be running
  token create     make a token by which a machine joins, and print the line to run there; --names prints NAME TOKEN
                   for each name; the hub must be running
  token list       print the tokens, without their secrets; the hub must be running
  token revoke     make the token ID useless; machines that joined by it stay; the hub must be running
  node list        print the nodes: state, expiry of their certificate, last contact; the hub must be
                   running
  node revoke      refuse all credentials of the node NAME from now on, end its connections, sign it no certificate;
                   the hub must be running
  node readmit     let the node NAME return with new credentials; those of before stay refused; the hub must be
                   running
  node rotate      ask the node NAME to exchange its certificate and key now; the hub must be running
  node decommission
                   ask the node NAME to end its pods and remove its state; then its credentials are denied and its
                   Node is deleted; the hub must be running
  node accept      after a restore: let the node NAME, or --all that wait (AwaitingDecision in node list), go back to
                   the assignment that the backup has; the hub must be running
  denied list      print the deny list: revoked nodes, users and certificates; the hub must be running
  denied lift      take the ENTRY off the deny list, as user.jane: its credentials count again; the hub must be running
  rollout          print the state of the DaemonSet NAME's update on each node, with reasons; the hub must be running
  ca new           make the next certificate authority: nodes learn to trust it, and it signs nothing
  ca status        print the authorities and how many nodes trust them
  ca switch        let the next authority sign, while the former one is still trusted; refused while nodes do not trust
                   the next one; with --back let the former one sign again; the hub must be running
  ca retire        end the trust in the authority NUMBER and erase its key; the hub must be running
  backup           copy everything, including the authority's key, into a new FILE; the hub may be running
  restore          replace the directory's state with a backup; the hub must be stopped; revoked nodes and
                   users stay revoked, and bootstrap tokens of the backup are void

Flags:
  --data-dir DIR            all state of the hub: store, keys, admin.kubeconfig [/var/lib/kedge-hub]
  --listen ADDR:PORT        address of the API; port 0 takes a free one [0.0.0.0:6443]
  --advertise HOST[:PORT]   address under which others reach the hub, written to kubeconfigs (the first one) and to
                            the serving certificate; may be repeated [the listen address, or this machine's name]
  --tls-san NAME            another host name or address for the serving certificate; may be repeated
  --node-monitor-grace-period DURATION
                            silence after which a node's Ready becomes Unknown, at least 50s [50s]
  --node-certificate-life TIME
                            longest and usual life of the certificates that nodes get, 1d to 10y; nodes renew theirs
                            before that [1y]
  --expired-node-may-renew TIME
                            how long after the end of its certificate a node may still get the next one without a
                            person, with the key of its newest one, 0d to 50y [3y]
  --rollout-pre-pull on|off updates of DaemonSets stop a pod once the next one's images are on its node (on), or at once,
                            as upstream does (off), unless the annotation kedge.dev/pre-pull of the set says otherwise [on]
  --fenced                  of serve: change nothing but the Leases of nodes, and run no controllers, while another hub takes
                            this one's place
  --log-level LEVEL         least severe level logged: error, warn, info or debug [info]
  --output FORMAT           of node, token and rollout: table or json [table]
  --life TIME               of node-kubeconfig: how long its certificate lives, 1d to 50y [--node-certificate-life of the hub]
  --out FILE                of node-kubeconfig and node-bootstrap: write it there, readable by its owner alone, instead of
                            printing it
  --node NAME               of token create: the node that may join by it, or the beginning of names and a *: edge-*
  --names FILE              of token create: make one token for each name in FILE, one name a line
  --any-node                of token create: the machine chooses its name
  --ttl DURATION            of token create and node-bootstrap: how long it is valid, 1m to 5 years: 12h, 90d [24h]
  --uses N                  of token create and node-bootstrap: how many machines may join by it, 1 to 1000, or unlimited [1]
  --approve                 of token create, for a beginning of names or any node: requests are approved without a person
  --description TEXT        of token create and node-bootstrap: what it is for, for others to read
  --reason TEXT             of node revoke: why, for others to read
  --wipe                    of node decommission: ask for a wiped state partition; no agent wipes it so far
  --all                     of node accept: every node that waits for a decision
  --force                   of node revoke: also a name that this hub does not know
  --keep COUNT              of backup: FILE is a directory; write the next numbered file there, and remove all but this many
  --leave COUNT             of ca switch and ca retire: give up this many nodes that do not trust the authority so far [0]
  --back                    of ca switch: let the former authority sign again
  --empty                   of restore: begin anew with no objects, if no backup is left; versions go on, and
                            revoked nodes and users stay revoked
  --forget-revocations      of restore: only the backup's own revocations count, not the later ones of the directory;
                            stolen credentials that were revoked since are let in
  --same-credentials        of node readmit: accept the old credentials again; use it only if nobody else can have them
  -n, --namespace NAME      of rollout: the namespace of the DaemonSet [default]
  --watch                   of rollout: print again at each change, until the update is complete (status 0: each pod has
                            been available for kedge.dev/complete-after), stopped or followed by another one (status 1)
  -h, --help                this text
  -V, --version             the version

Exit status: 0 after SIGTERM or SIGINT, 1 if the hub cannot start or has to stop, 2 for a wrong command line.
";

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
    /// Show the progress of an update.
    Rollout(RolloutCommand),
    /// Replace the certificate authority.
    Ca(CaCommand),
    /// Copy everything into a new file.
    Backup(Backup),
    /// Replace the store by a copy, or by an empty one.
    Restore(Restore),
    /// Print the help.
    Help,
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
    pub namespace: String,
    /// The DaemonSet.
    pub name: String,
    /// Print again at each change, until the end.
    pub watch: bool,
    /// Print JSON.
    pub json: bool,
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
    /// Unknown flag, missing value, and the like.
    Syntax(lexopt::Error),
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
    /// A flag that the command does not take.
    Unused { flag: &'static str, command: &'static str },
}

impl fmt::Display for FlagError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagError::Syntax(error) => write!(formatter, "{error}"),
            FlagError::Value { flag, found, expected } => {
                write!(formatter, "{flag} is {found:?}, expected {expected}")
            }
            FlagError::Command(None) => formatter.write_str(
                "no command given, expected serve, node-kubeconfig, node-bootstrap, token, node, denied, rollout, ca, backup or restore",
            ),
            FlagError::Command(Some(found)) => {
                write!(
                    formatter,
                    "unknown command {found:?}, expected serve, node-kubeconfig, node-bootstrap, token, node, denied, rollout, ca, backup or restore"
                )
            }
            FlagError::Unused { flag, command } => write!(formatter, "{flag} has no meaning for {command}"),
        }
    }
}

impl std::error::Error for FlagError {}

/// The flags of a command line, before its command is known.
#[derive(Default)]
struct Raw {
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    advertise: Vec<String>,
    tls_san: Vec<String>,
    grace: Option<String>,
    pre_pull: Option<String>,
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
    leave: Option<String>,
    back: bool,
    fenced: bool,
    keep: Option<String>,
    forget_revocations: bool,
    words: Vec<String>,
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
        let text = |parser: &mut lexopt::Parser| {
            parser.value().and_then(|value| value.string()).map_err(FlagError::Syntax)
        };
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("data-dir") => raw.data_dir = Some(parser.value().map_err(FlagError::Syntax)?.into()),
            Long("listen") => raw.listen = Some(text(&mut parser)?),
            Long("advertise") => raw.advertise.push(text(&mut parser)?),
            Long("tls-san") => raw.tls_san.push(text(&mut parser)?),
            Long("node-monitor-grace-period") => raw.grace = Some(text(&mut parser)?),
            Long("node-certificate-life") => raw.node_life = Some(text(&mut parser)?),
            Long("expired-node-may-renew") => raw.expired_may_renew = Some(text(&mut parser)?),
            Long("life") => raw.life = Some(text(&mut parser)?),
            Long("rollout-pre-pull") => raw.pre_pull = Some(text(&mut parser)?),
            Long("log-level") => raw.log_level = Some(text(&mut parser)?),
            Long("output") => raw.output = Some(text(&mut parser)?),
            Long("reason") => raw.reason = Some(text(&mut parser)?),
            Short('n') | Long("namespace") => raw.namespace = Some(text(&mut parser)?),
            Long("watch") => raw.watch = true,
            Long("same-credentials") => raw.same_credentials = true,
            Long("force") => raw.force = true,
            Long("wipe") => raw.wipe = true,
            Long("all") => raw.all = true,
            Long("out") => raw.out = Some(parser.value().map_err(FlagError::Syntax)?.into()),
            Long("empty") => raw.empty = true,
            Long("node") => raw.token.node = Some(text(&mut parser)?),
            Long("names") => raw.token.names = Some(parser.value().map_err(FlagError::Syntax)?.into()),
            Long("any-node") => raw.token.any_node = true,
            Long("ttl") => raw.token.ttl = Some(text(&mut parser)?),
            Long("uses") => raw.token.uses = Some(text(&mut parser)?),
            Long("approve") => raw.token.approve = true,
            Long("description") => raw.token.description = Some(text(&mut parser)?),
            Long("leave") => raw.leave = Some(text(&mut parser)?),
            Long("back") => raw.back = true,
            Long("fenced") => raw.fenced = true,
            Long("keep") => raw.keep = Some(text(&mut parser)?),
            Long("forget-revocations") => raw.forget_revocations = true,
            Value(word) => raw.words.push(word.string().map_err(FlagError::Syntax)?),
            other => return Err(FlagError::Syntax(other.unexpected())),
        }
    }
    if raw.words.first().is_none_or(|word| word != "ca") {
        refuse("this command", &of_ca(&raw))?;
    }
    if raw.keep.is_some() && raw.words.first().is_none_or(|word| word != "backup") {
        return Err(FlagError::Unused { flag: "--keep", command: "this command" });
    }
    // only now, because flags may stand before the command
    match raw.words.first().map(String::as_str) {
        Some("serve") => serve(raw),
        Some("node-kubeconfig") => node_kubeconfig(raw),
        Some("node-bootstrap") => token::node_bootstrap(raw),
        Some("token") => token::token(raw),
        Some("node") => node(raw),
        Some("denied") => denied(raw),
        Some("rollout") => rollout(raw),
        Some("ca") => ca(raw),
        Some("backup") => backup(raw).map(Command::Backup),
        Some("restore") => restore(raw).map(Command::Restore),
        Some("help") => Ok(Command::Help),
        Some("version") => Ok(Command::Version),
        other => Err(FlagError::Command(other.map(str::to_owned))),
    }
}

fn serve(raw: Raw) -> Result<Command, FlagError> {
    if let Some(word) = raw.words.get(1) {
        return Err(value("serve", word, "no further argument"));
    }
    unused_outside_node(&raw, "serve")?;
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
        log_level: raw.log_level.as_deref().map_or(Ok(LevelFilter::Info), log_level)?,
    }))
}

/// Refuses flags that only `serve` takes.
fn unused(raw: &Raw, command: &'static str) -> Result<(), FlagError> {
    let unused = [
        ("--listen", raw.listen.is_some()),
        ("--tls-san", !raw.tls_san.is_empty()),
        ("--node-monitor-grace-period", raw.grace.is_some()),
        ("--node-certificate-life", raw.node_life.is_some()),
        ("--expired-node-may-renew", raw.expired_may_renew.is_some()),
        ("--rollout-pre-pull", raw.pre_pull.is_some()),
        ("--log-level", raw.log_level.is_some()),
        ("--fenced", raw.fenced),
    ];
    match unused.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(FlagError::Unused { flag, command }),
        None => Ok(()),
    }
}

/// Refuses flags that only `node` and `rollout` take.
fn unused_outside_node(raw: &Raw, command: &'static str) -> Result<(), FlagError> {
    refuse(
        command,
        &[
            ("--output", raw.output.is_some()),
            ("--empty", raw.empty),
            ("--forget-revocations", raw.forget_revocations),
        ],
    )?;
    refuse(command, &of_node(raw))?;
    refuse(command, &of_rollout(raw))?;
    refuse(command, &of_token(raw))?;
    match command {
        NODE_KUBECONFIG => Ok(()),
        _ => refuse(command, &of_kubeconfig(raw)),
    }
}

fn of_kubeconfig(raw: &Raw) -> [(&'static str, bool); 2] {
    [("--out", raw.out.is_some()), ("--life", raw.life.is_some())]
}

fn of_node(raw: &Raw) -> [(&'static str, bool); 5] {
    [
        ("--reason", raw.reason.is_some()),
        ("--same-credentials", raw.same_credentials),
        ("--force", raw.force),
        ("--wipe", raw.wipe),
        ("--all", raw.all),
    ]
}

fn of_ca(raw: &Raw) -> [(&'static str, bool); 2] {
    [("--leave", raw.leave.is_some()), ("--back", raw.back)]
}

fn of_rollout(raw: &Raw) -> [(&'static str, bool); 2] {
    [("--namespace", raw.namespace.is_some()), ("--watch", raw.watch)]
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
    unused(&raw, "rollout")?;
    refuse(
        "rollout",
        &[
            ("--advertise", !raw.advertise.is_empty()),
            ("--empty", raw.empty),
            ("--forget-revocations", raw.forget_revocations),
        ],
    )?;
    refuse("rollout", &of_node(&raw))?;
    refuse("rollout", &of_kubeconfig(&raw))?;
    refuse("rollout", &of_token(&raw))?;
    let namespace = raw.namespace.as_deref().unwrap_or("default").to_owned();
    if !is_dns_subdomain(&namespace) {
        return Err(value("--namespace", &namespace, "the name of a namespace"));
    }
    let name = match raw.words.as_slice() {
        [_, name] if is_dns_subdomain(name) => name.clone(),
        words => return Err(value("rollout", &words[1..].join(" "), "the name of one DaemonSet")),
    };
    let (watch, json) = (raw.watch, is_json(raw.output.as_deref())?);
    Ok(Command::Rollout(RolloutCommand { data_dir: data_dir(raw.data_dir)?, namespace, name, watch, json }))
}

fn ca(raw: Raw) -> Result<Command, FlagError> {
    unused(&raw, "ca")?;
    refuse(
        "ca",
        &[
            ("--advertise", !raw.advertise.is_empty()),
            ("--empty", raw.empty),
            ("--forget-revocations", raw.forget_revocations),
        ],
    )?;
    refuse("ca", &of_node(&raw))?;
    refuse("ca", &of_rollout(&raw))?;
    refuse("ca", &of_kubeconfig(&raw))?;
    let leave = match raw.leave.as_deref().map(|text| text.parse::<u64>().map_err(|_| text)) {
        None => 0,
        Some(Ok(leave)) => leave,
        Some(Err(text)) => return Err(value("--leave", text, "a number of nodes")),
    };
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let [no_leave, no_back] = of_ca(&raw);
    let act = match words.as_slice() {
        ["new"] => {
            refuse("ca new", &[no_leave, no_back])?;
            CaAct::New
        }
        ["status"] => {
            refuse("ca status", &[no_leave, no_back])?;
            CaAct::Status
        }
        ["switch"] => CaAct::Switch { back: raw.back, leave },
        ["retire", number] => {
            refuse("ca retire", &[no_back])?;
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
    unused(&raw, "denied")?;
    refuse(
        "denied",
        &[
            ("--advertise", !raw.advertise.is_empty()),
            ("--empty", raw.empty),
            ("--forget-revocations", raw.forget_revocations),
        ],
    )?;
    refuse("denied", &of_node(&raw))?;
    refuse("denied", &of_rollout(&raw))?;
    refuse("denied", &of_kubeconfig(&raw))?;
    refuse("denied", &of_token(&raw))?;
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

fn refuse(command: &'static str, given: &[(&'static str, bool)]) -> Result<(), FlagError> {
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(FlagError::Unused { flag, command }),
        None => Ok(()),
    }
}

fn node(raw: Raw) -> Result<Command, FlagError> {
    unused(&raw, "node")?;
    refuse(
        "node",
        &[
            ("--advertise", !raw.advertise.is_empty()),
            ("--empty", raw.empty),
            ("--forget-revocations", raw.forget_revocations),
        ],
    )?;
    refuse("node", &of_rollout(&raw))?;
    refuse("node", &of_kubeconfig(&raw))?;
    refuse("node", &of_token(&raw))?;
    let json = is_json(raw.output.as_deref())?;
    // refuses the flags of other acts
    let only = |command: &'static str, own: &[&str]| {
        let others: Vec<_> = of_node(&raw).into_iter().filter(|(flag, _)| !own.contains(flag)).collect();
        refuse(command, &others)
    };
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let named = |name: &str| name.to_owned();
    let act = match words.as_slice() {
        ["list"] => {
            only("node list", &[])?;
            NodeAct::List
        }
        ["revoke", name] if is_dns_subdomain(name) => {
            only("node revoke", &["--reason", "--force"])?;
            let reason = raw.reason.clone().unwrap_or_default();
            NodeAct::Revoke { name: named(name), reason, force: raw.force }
        }
        ["readmit", name] if is_dns_subdomain(name) => {
            only("node readmit", &["--same-credentials"])?;
            NodeAct::Readmit { name: named(name), same_credentials: raw.same_credentials }
        }
        ["accept", name] if is_dns_subdomain(name) => {
            only("node accept NAME", &[])?;
            NodeAct::Accept { name: Some(named(name)) }
        }
        ["accept"] if raw.all => {
            only("node accept", &["--all"])?;
            NodeAct::Accept { name: None }
        }
        ["rotate", name] if is_dns_subdomain(name) => {
            only("node rotate", &[])?;
            NodeAct::Rotate { name: named(name) }
        }
        ["decommission", name] if is_dns_subdomain(name) => {
            only("node decommission", &["--wipe"])?;
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
    unused_beside_files(&raw, "backup")?;
    refuse("backup", &[("--empty", raw.empty), ("--forget-revocations", raw.forget_revocations)])?;
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
    unused_beside_files(&raw, "restore")?;
    let file = match raw.words.as_slice() {
        [_, file] if !file.is_empty() && !raw.empty => Some(PathBuf::from(file)),
        [_] if raw.empty => None,
        words => return Err(value("restore", &words[1..].join(" "), "one file, or --empty")),
    };
    if file.is_none() && raw.forget_revocations {
        return Err(FlagError::Unused { flag: "--forget-revocations", command: "restore --empty" });
    }
    Ok(Restore { file, data_dir: data_dir(raw.data_dir)?, forget_revocations: raw.forget_revocations })
}

fn unused_beside_files(raw: &Raw, command: &'static str) -> Result<(), FlagError> {
    unused(raw, command)?;
    refuse(command, &[("--output", raw.output.is_some()), ("--advertise", !raw.advertise.is_empty())])?;
    refuse(command, &[("--out", raw.out.is_some())])?;
    refuse(command, &of_node(raw))?;
    refuse(command, &of_token(raw))?;
    refuse(command, &of_rollout(raw))
}

fn node_kubeconfig(raw: Raw) -> Result<Command, FlagError> {
    const COMMAND: &str = NODE_KUBECONFIG;
    unused(&raw, COMMAND)?;
    unused_outside_node(&raw, COMMAND)?;
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
        assert_eq!((found.namespace.as_str(), found.watch, found.json), ("default", false, false));
        let found = rollout("rollout agent -n edge --watch --output json");
        assert_eq!((found.namespace.as_str(), found.watch, found.json), ("edge", true, true));
        for line in ["rollout", "rollout a b", "rollout A", "rollout ds/agent"] {
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
        refused("sreve", "unknown command \"sreve\"");
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
        assert_eq!(words("serve --help").unwrap(), Command::Help);
        assert_eq!(words("-V").unwrap(), Command::Version);
    }
}
