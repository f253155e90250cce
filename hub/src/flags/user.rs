//! The command lines of `user` and `kubeconfig`.

use std::path::PathBuf;

use super::{Advertised, Command, FlagError, LIVES_BY_HAND, Raw, advertised, data_dir, days, is_json, value};
use crate::pki::{ADMIN_USER, is_dns_subdomain};

/// How long the certificate of a person lives, unless `--life` says otherwise.
const USER_LIFE: time::Duration = time::Duration::days(365);
/// Longest name of a user: RFC 5280 gives a common name 64 characters.
const NAME_BYTES: usize = 64;

/// Options of `user`.
#[derive(Debug, PartialEq)]
pub struct UserCommand {
    /// The hub's directory.
    pub data_dir: PathBuf,
    pub act: UserAct,
}

/// The act of the command `user`.
#[derive(Debug, PartialEq)]
pub enum UserAct {
    Create(NewUser),
    List { json: bool },
    Revoke { name: String, reason: String },
}

/// Credentials for a person.
#[derive(Debug, PartialEq)]
pub struct NewUser {
    pub name: String,
    /// The role to bind: a ClusterRole, or with a namespace also a Role.
    pub role: Option<String>,
    /// Where the role counts; `None`: everywhere.
    pub namespace: Option<String>,
    pub life: time::Duration,
    pub target: Target,
    /// The file for a browser.
    pub p12: Option<PathBuf>,
}

/// Options of `kubeconfig` without `--user`: the administrator's credentials.
#[derive(Debug, PartialEq)]
pub struct AdminKubeconfig {
    /// The hub's directory.
    pub data_dir: PathBuf,
    pub target: Target,
}

/// The machine that a kubeconfig is for.
#[derive(Debug, Default, PartialEq)]
pub struct Target {
    /// The address to use instead of the one that the hub last published, with its port.
    pub server: Option<Advertised>,
    /// The file to write, instead of printing.
    pub out: Option<PathBuf>,
}

/// The flags of these commands, before their command is known.
#[derive(Default)]
pub(super) struct RawUser {
    pub(super) role: Option<String>,
    pub(super) server: Option<String>,
    pub(super) user: Option<String>,
    pub(super) p12: Option<PathBuf>,
}

pub(super) fn user(raw: &Raw) -> Result<Command, FlagError> {
    let words: Vec<&str> = raw.words[1..].iter().map(String::as_str).collect();
    let act = match words.as_slice() {
        ["create", name] => UserAct::Create(new_user(raw, checked("user create", name)?)?),
        ["list"] => UserAct::List { json: is_json(raw.output.as_deref())? },
        ["revoke", name] => {
            let reason = raw.reason.clone().unwrap_or_default();
            UserAct::Revoke { name: checked("user revoke", name)?, reason }
        }
        words => return Err(value("user", &words.join(" "), "create NAME, list or revoke NAME")),
    };
    Ok(Command::User(UserCommand { data_dir: data_dir(raw.data_dir.clone())?, act }))
}

pub(super) fn kubeconfig(raw: &Raw) -> Result<Command, FlagError> {
    if let Some(word) = raw.words.get(1) {
        return Err(value("kubeconfig", word, "no further argument; --user NAME for a person"));
    }
    let data_dir = data_dir(raw.data_dir.clone())?;
    if let Some(name) = &raw.user.user {
        let act = UserAct::Create(new_user(raw, checked("--user", name)?)?);
        return Ok(Command::User(UserCommand { data_dir, act }));
    }
    if let Some(life) = &raw.life {
        return Err(value("--life", life, "--user beside it"));
    }
    Ok(Command::Kubeconfig(AdminKubeconfig { data_dir, target: target(raw)? }))
}

fn new_user(raw: &Raw, name: String) -> Result<NewUser, FlagError> {
    let role = raw.user.role.clone();
    if role.as_ref().is_some_and(|role| role.is_empty() || role.contains(['/', '%', '?', '#'])) {
        return Err(value(
            "--role",
            role.as_deref().unwrap_or_default(),
            "the name of a ClusterRole or Role",
        ));
    }
    if let (None, Some(namespace)) = (&role, &raw.namespace) {
        return Err(value("--namespace", namespace, "--role beside it"));
    }
    if let Some(namespace) = raw.namespace.as_deref().filter(|name| !is_dns_subdomain(name)) {
        return Err(value("--namespace", namespace, "the name of a namespace"));
    }
    if raw.user.p12.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(value("--p12", "", "the name of a file"));
    }
    let life = raw.life.as_deref().map(|text| days("--life", text, LIVES_BY_HAND)).transpose()?;
    Ok(NewUser {
        name,
        role,
        namespace: raw.namespace.clone(),
        life: life.unwrap_or(USER_LIFE),
        target: target(raw)?,
        p12: raw.user.p12.clone(),
    })
}

fn target(raw: &Raw) -> Result<Target, FlagError> {
    if raw.out.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(value("--out", "", "the name of a file"));
    }
    let server = raw.user.server.as_deref().map(|text| {
        let wrong = || value("--server", text, "https://HOST:PORT, as the machine reaches the hub");
        let address = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
        match advertised(address) {
            Ok(found) if found.port.is_some() => Ok(found),
            _ => Err(wrong()),
        }
    });
    Ok(Target { server: server.transpose()?, out: raw.out.clone() })
}

/// The name of a user: no name of the system, and nothing that a kubeconfig would have to quote.
fn checked(flag: &'static str, name: &str) -> Result<String, FlagError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._@".contains(&byte);
    if name == ADMIN_USER {
        let expected =
            "another name: it is the user of admin.kubeconfig, whose group system:masters is the way back";
        return Err(value(flag, name, expected));
    }
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(plain) {
        let expected = "a name of letters, digits, '-', '.', '_' and '@', at most 64 characters";
        return Err(value(flag, name, expected));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn words(line: &str) -> Result<Command, FlagError> {
        parse(line.split(' '))
    }

    #[track_caller]
    fn refused(line: &str, expect: &str) {
        let error = words(line).unwrap_err().to_string();
        assert!(error.contains(expect), "{line}: {error}");
    }

    #[test]
    fn user_has_a_name_a_role_and_a_life() {
        let Command::User(UserCommand { act: UserAct::Create(found), .. }) =
            words("user create jane@example.com --role edit -n shop --life 30d --server https://hub:443/")
                .unwrap()
        else {
            panic!("another command")
        };
        assert_eq!((&*found.name, found.role.as_deref()), ("jane@example.com", Some("edit")));
        assert_eq!((found.namespace.as_deref(), found.life), (Some("shop"), time::Duration::days(30)));
        let server = Advertised { host: "hub".to_owned(), port: Some(443) };
        assert_eq!(found.target.server, Some(server));
        let Command::User(found) = words("kubeconfig --user jane --out x").unwrap() else {
            panic!("another command")
        };
        let UserAct::Create(found) = found.act else { panic!("another act") };
        assert_eq!((found.role, found.life, found.target.out), (None, USER_LIFE, Some("x".into())));
        refused("user create admin", "system:masters");
        refused("user create system:node:a", "letters, digits");
        refused("user create", "create NAME, list or revoke NAME");
        refused("user list x", "create NAME, list or revoke NAME");
        refused("user create a --p12 ", "--p12 is \"\"");
        refused("kubeconfig --user a --p12 b", "--p12 has no meaning");
        refused("user create a --role b/c", "--role is");
        refused("user create a -n shop", "--role beside it");
        refused("user create a --life 0d", "--life is");
        refused("user create a --server hub", "--server is \"hub\"");
        refused("user create a --reason b", "--reason has no meaning");
        refused("user revoke a --role b", "--role has no meaning");
        refused("user create a --output json", "--output has no meaning");
        refused("kubeconfig --role b", "--role has no meaning");
        refused("kubeconfig --life 1y", "--user beside it");
        refused("kubeconfig a", "--user NAME");
        refused("node list --role b", "--role has no meaning");
        refused("serve --server https://a:1", "--server has no meaning");
    }
}
