//! The command lines of `token` and `node-bootstrap`.

use std::path::PathBuf;
use std::time::Duration;

use kedge_hub_core::identity::bootstrap_token::{MOST_USES, Names};
use kedge_hub_core::value::duration;

use super::{Advertised, Command, FlagError, Raw, data_dir, is_json, node_address, value};
use crate::pki::is_dns_subdomain;

/// Validity of a token, as kubeadm's.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MINIMUM_TTL: Duration = Duration::from_secs(60);
/// Devices may be in storage for years; a longer one is a typing error.
const MAXIMUM_TTL: Duration = Duration::from_secs(5 * 366 * 24 * 60 * 60);

/// Options of `token`.
#[derive(Debug, PartialEq)]
pub struct TokenCommand {
    /// The directory of the running hub.
    pub data_dir: PathBuf,
    /// Print JSON.
    pub json: bool,
    pub act: TokenAct,
}

/// The act of the command `token`.
#[derive(Debug, PartialEq)]
pub enum TokenAct {
    Create(NewToken),
    List,
    /// The token's id.
    Revoke(String),
}

/// A token to make.
#[derive(Debug, Clone, PartialEq)]
pub struct NewToken {
    pub of: Wanted,
    pub ttl: Duration,
    /// `None`: any number until it expires.
    pub uses: Option<u32>,
    /// Requests under a prefix wait for nobody.
    pub approve: bool,
    pub description: String,
    /// The address to use instead of the one that the hub last published, with its port.
    pub advertise: Option<Advertised>,
}

/// The nodes that get a token.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// One token, for a name, a prefix or any name.
    Names(Names),
    /// A token for each name in this file.
    File(PathBuf),
}

/// Options of `node-bootstrap`.
#[derive(Debug, PartialEq)]
pub struct NodeBootstrap {
    /// The node, a DNS subdomain.
    pub name: String,
    /// The directory of the running hub.
    pub data_dir: PathBuf,
    pub token: NewToken,
    /// The file to write, instead of printing.
    pub out: Option<PathBuf>,
}

/// The flags of these commands, before their command is known.
#[derive(Default)]
pub(super) struct RawToken {
    pub(super) node: Option<String>,
    pub(super) names: Option<PathBuf>,
    pub(super) any_node: bool,
    pub(super) ttl: Option<String>,
    pub(super) uses: Option<String>,
    pub(super) approve: bool,
    pub(super) description: Option<String>,
}

pub(super) fn token(raw: Raw) -> Result<Command, FlagError> {
    let json = is_json(raw.output.as_deref())?;
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let act = match words.as_slice() {
        ["create"] => TokenAct::Create(new_token(&raw)?),
        ["list"] => TokenAct::List,
        ["revoke", word] => {
            // the secret of a whole token is not repeated
            let id = word.split('.').next().unwrap_or_default();
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            if id.len() != 6 || !id.bytes().all(plain) {
                return Err(value(
                    "token revoke",
                    id,
                    "the id of a token, six letters and digits; see token list",
                ));
            }
            TokenAct::Revoke(id.to_owned())
        }
        words => {
            let first = words.first().copied().unwrap_or_default();
            return Err(value("token", first, "create, list or revoke ID"));
        }
    };
    Ok(Command::Token(TokenCommand { data_dir: data_dir(raw.data_dir)?, json, act }))
}

fn new_token(raw: &Raw) -> Result<NewToken, FlagError> {
    let RawToken { node, names, any_node, approve, description, .. } = &raw.token;
    let of = match (node, names, any_node) {
        (Some(name), None, false) => Wanted::Names(
            Names::parse(name)
                .ok()
                .filter(|names| matches!(names, Names::Prefix(_)) || is_dns_subdomain(name))
                .ok_or_else(|| {
                    value("--node", name, "the name of a node, or the beginning of names and *: edge-*")
                })?,
        ),
        (None, Some(file), false) if !file.as_os_str().is_empty() => Wanted::File(file.clone()),
        (None, None, true) => Wanted::Names(Names::Prefix(String::new())),
        _ => return Err(value("token create", "", "one of --node NAME, --names FILE and --any-node")),
    };
    if *approve && !matches!(of, Wanted::Names(Names::Prefix(_))) {
        let command = "token create for nodes that are named: their requests wait for nobody";
        return Err(FlagError::Unused { flag: "approve", command });
    }
    Ok(NewToken {
        of,
        ttl: ttl(raw)?,
        uses: uses(raw)?,
        approve: *approve,
        description: description.clone().unwrap_or_default(),
        advertise: node_address(&raw.advertise)?,
    })
}

pub(super) fn node_bootstrap(raw: Raw) -> Result<Command, FlagError> {
    const COMMAND: &str = "node-bootstrap";
    let description = &raw.token.description;
    let name = match raw.words.as_slice() {
        [_, name] if is_dns_subdomain(name) => name.clone(),
        words => return Err(value(COMMAND, &words[1..].join(" "), "the name of one node")),
    };
    if raw.out.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(value("--out", "", "the name of a file"));
    }
    let token = NewToken {
        of: Wanted::Names(Names::One(name.clone())),
        ttl: ttl(&raw)?,
        uses: uses(&raw)?,
        approve: false,
        description: description.clone().unwrap_or_default(),
        advertise: node_address(&raw.advertise)?,
    };
    Ok(Command::NodeBootstrap(NodeBootstrap { name, data_dir: data_dir(raw.data_dir)?, token, out: raw.out }))
}

fn ttl(raw: &Raw) -> Result<Duration, FlagError> {
    let Some(text) = raw.token.ttl.as_deref() else { return Ok(DEFAULT_TTL) };
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let found =
        days.map(|days| Duration::from_secs(u64::from(days) * 24 * 60 * 60)).or_else(|| duration(text));
    found
        .filter(|found| (MINIMUM_TTL..=MAXIMUM_TTL).contains(found))
        .ok_or_else(|| value("--ttl", text, "a duration from 1m to 5 years, for example 24h or 90d"))
}

fn uses(raw: &Raw) -> Result<Option<u32>, FlagError> {
    match raw.token.uses.as_deref() {
        None => Ok(Some(1)),
        Some("unlimited") => Ok(None),
        Some(text) => match text.parse() {
            Ok(uses) if (1..=MOST_USES).contains(&uses) => Ok(Some(uses)),
            _ => Err(value("--uses", text, "a number from 1 to 1000, or unlimited")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn words(line: &str) -> Result<Command, FlagError> {
        parse(line.split_whitespace())
    }

    fn act(line: &str) -> TokenAct {
        match words(line) {
            Ok(Command::Token(command)) => command.act,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[track_caller]
    fn refused(line: &str, expect: &str) {
        let error = words(line).expect_err(line).to_string();
        assert!(error.contains(expect), "{line}: {error}");
        assert!(!error.contains("0123456789abcdef"), "{error}");
    }

    fn new_token(of: Wanted) -> NewToken {
        let (ttl, uses) = (Duration::from_secs(86_400), Some(1));
        NewToken { of, ttl, uses, approve: false, description: String::new(), advertise: None }
    }

    #[test]
    fn token_is_for_a_name_a_prefix_a_file_or_any_node() {
        let names = |written: &str| Wanted::Names(Names::parse(written).unwrap());
        assert_eq!(act("token create --node edge-1"), TokenAct::Create(new_token(names("edge-1"))));
        assert_eq!(act("token create --node edge-*"), TokenAct::Create(new_token(names("edge-*"))));
        assert_eq!(act("token create --any-node"), TokenAct::Create(new_token(names("*"))));
        assert_eq!(act("token create --names f"), TokenAct::Create(new_token(Wanted::File("f".into()))));
        let line = "token create --any-node --approve --ttl 90d --uses unlimited --description shops --advertise hub:1";
        let advertise = Some(Advertised { host: "hub".to_owned(), port: Some(1) });
        let expect = NewToken {
            ttl: Duration::from_secs(90 * 86_400),
            uses: None,
            approve: true,
            description: "shops".to_owned(),
            advertise,
            ..new_token(names("*"))
        };
        assert_eq!(act(line), TokenAct::Create(expect));
        let one_of = "expected one of --node NAME, --names FILE and --any-node";
        for line in ["token create", "token create --node a --any-node", "token create --names f --node a"] {
            refused(line, one_of);
        }
        refused("token create --node Edge", "--node is \"Edge\"");
        refused("token create --node edge-1 --approve", "their requests wait for nobody");
        for ttl in ["10s", "6000d", "x", "-1h", "5"] {
            refused(&format!("token create --any-node --ttl {ttl}"), "--ttl is");
        }
        for uses in ["0", "1001", "many"] {
            refused(&format!("token create --any-node --uses {uses}"), "--uses is");
        }
        refused("token create --any-node --advertise hub", "with a port");
        refused("token create --any-node --out f", "--out has no meaning for token");
    }

    #[test]
    fn listed_and_revoked_tokens_take_no_other_flags() {
        assert_eq!(act("token list --output json"), TokenAct::List);
        assert_eq!(act("token revoke abcdef"), TokenAct::Revoke("abcdef".to_owned()));
        assert_eq!(act("token revoke abcdef.0123456789abcdef"), TokenAct::Revoke("abcdef".to_owned()));
        for line in ["token revoke ABC", "token revoke .0123456789abcdef"] {
            refused(line, "expected the id of a token");
        }
        for line in ["token", "token forget", "token revoke", "token list x", "token revoke abcdef x"] {
            refused(line, "expected create, list or revoke ID");
        }
        refused("token list --ttl 1h", "--ttl has no meaning for token list");
        refused("token revoke abcdef --node a", "--node has no meaning for token revoke");
        for command in ["serve", "node list", "rollout a", "backup f", "restore f", "node-kubeconfig a"] {
            for flag in ["--node a", "--any-node", "--ttl 1h", "--uses 1", "--approve", "--description x"] {
                refused(&format!("{command} {flag}"), "has no meaning for");
            }
        }
    }

    #[test]
    fn bootstrap_kubeconfig_is_for_one_node() {
        let found = words("node-bootstrap edge-1 --ttl 1h --out f --data-dir /x").unwrap();
        let token = NewToken {
            ttl: Duration::from_secs(3600),
            ..new_token(Wanted::Names(Names::One("edge-1".to_owned())))
        };
        let (name, data_dir) = ("edge-1".to_owned(), PathBuf::from("/x"));
        let expect = NodeBootstrap { name, data_dir, token, out: Some(PathBuf::from("f")) };
        assert_eq!(found, Command::NodeBootstrap(expect));
        for line in ["node-bootstrap", "node-bootstrap a b", "node-bootstrap edge-*"] {
            refused(line, "expected the name of one node");
        }
        refused("node-bootstrap a --any-node", "--any-node has no meaning for node-bootstrap");
        refused("node-bootstrap a --output json", "--output has no meaning for node-bootstrap");
    }
}
