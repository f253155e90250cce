//! `kedge-hub token create|list|revoke` and `node-bootstrap`: tokens by which machines join.
//!
//! Always holds: the running hub stores each token before its secret is printed; no list, error or line of a
//! log contains a secret; a revoked node gets no token. Left to others: the form of a token
//! (`kedge_hub_core::identity::bootstrap_token`), the request (`asking`), its use (`server`).

use std::path::Path;

use kedge_hub_core::identity::bootstrap_token::{BootstrapToken, Names, RANDOM_BYTES, TYPE, secret_name};
use kedge_hub_core::kinds::names::is_subdomain;
use kedge_hub_core::value::rfc3339;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::asking::{self, ask};
use crate::flags::{NewToken, NodeBootstrap, TokenAct, TokenCommand, Wanted};
use crate::kubeconfig_command::{Printed, checked, guess, refusal};
use crate::pki::{self, Meeting, server_url};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
/// Most names in one file: each is a request to the hub, and an object in it.
const MOST_NAMES: usize = 20_000;

/// Runs the command; `print` gets the output in parts, `warn` each remark for people.
///
/// # Errors
/// No hub runs, or it refuses, or a name or file is wrong. The tokens that were made before are printed.
pub async fn run(
    command: &TokenCommand,
    mut print: impl FnMut(&str) -> Result<(), String>,
    mut warn: impl FnMut(&str),
) -> Result<(), String> {
    let data_dir = &command.data_dir;
    match &command.act {
        TokenAct::Create(new) => match &new.of {
            Wanted::Names(names) => {
                let meeting = meeting(data_dir, new, &mut warn)?;
                if let Names::One(name) = names {
                    refuse_revoked(data_dir, name)?;
                }
                let token = create(data_dir, new, names, true).await?;
                if command.json {
                    return print(&format!("{:#}\n", described(&token, &meeting)));
                }
                warn(&explanation(&token));
                print(&format!("echo {} | {}\n", token.shown(), join_line(&token.names, &meeting)))
            }
            Wanted::File(file) => {
                let names = read_names(file)?;
                let meeting = meeting(data_dir, new, &mut warn)?;
                for name in &names {
                    refuse_revoked(data_dir, name)?;
                }
                let mut made = 0;
                for name in &names {
                    let token = create(data_dir, new, &Names::One(name.clone()), false).await;
                    let token = token.map_err(|why| {
                        format!("{made} of {} tokens were made, and not that of {name}: {why}", names.len())
                    })?;
                    made += 1;
                    print(&match command.json {
                        true => format!("{}\n", described(&token, &meeting)),
                        false => format!("{name} {}\n", token.shown()),
                    })?;
                }
                let any = Names::Prefix(String::new());
                warn(&format!(
                    "{made} tokens, each for its node; on a device, as root, with its token on standard input: {} --node-name NAME",
                    join_line(&any, &meeting)
                ));
                Ok(())
            }
        },
        TokenAct::List => {
            let path = format!("{SECRETS}?fieldSelector=type%3D{}", TYPE.replace('/', "%2F"));
            let found = ask(data_dir, "GET", &path, &Value::Null).await?;
            let secrets = found["items"].as_array().map_or(&[][..], Vec::as_slice);
            let now = OffsetDateTime::now_utc();
            let listed: Vec<Listed> = secrets.iter().filter_map(|secret| Listed::of(secret, now)).collect();
            if command.json {
                let all: Vec<Value> = listed.iter().map(Listed::json).collect();
                return print(&format!("{:#}\n", json!({"tokens": all})));
            }
            print(&asking::table(COLUMNS, listed.into_iter().map(|listed| listed.cells)))
        }
        TokenAct::Revoke(id) => {
            let path = format!("{SECRETS}/{}", secret_name(id));
            ask(data_dir, "DELETE", &path, &Value::Null).await.map_err(|why| match why.contains(": 404 ") {
                true => format!("there is no bootstrap token {id}: it was revoked or has expired; see `kedge-hub token list`"),
                false => why,
            })?;
            print(&format!("bootstrap token {id} is revoked: machines that joined by it stay\n"))
        }
    }
}

/// Makes a bootstrap kubeconfig for one node.
///
/// # Errors
/// As [`run`]; or the file cannot be written.
pub async fn bootstrap(options: &NodeBootstrap) -> Result<Printed, String> {
    let NodeBootstrap { name, data_dir, token: new, out } = options;
    let file = out.as_deref().map(|path| checked("--out", path)).transpose()?;
    let mut warnings = Vec::new();
    let meeting = meeting(data_dir, new, &mut |text: &str| warnings.push(text.to_owned()))?;
    refuse_revoked(data_dir, name)?;
    let token = create(data_dir, new, &Names::One(name.clone()), true).await?;
    let text = meeting.bootstrap_kubeconfig(name, &token.shown());
    let Some(path) = file else { return Ok(Printed { out: text, warnings }) };
    pki::write_secret(&path, text.as_bytes()).map_err(|error| error.to_string())?;
    let (path, what) = (path.display(), explanation(&token));
    Ok(Printed { out: format!("{path}: bootstrap kubeconfig, keep it secret; {what}\n"), warnings })
}

/// Where machines find the hub; warns if that address is a guess.
fn meeting(data_dir: &Path, new: &NewToken, warn: &mut impl FnMut(&str)) -> Result<Meeting, String> {
    let url = new.advertise.as_ref().map(|to| server_url(&to.host, to.port.unwrap_or_default()));
    if url.is_none()
        && let Some(guess) = guess(data_dir, "do the machines find")
    {
        warn(&guess);
    }
    Meeting::read(data_dir, url).map_err(|error| error.to_string())
}

fn refuse_revoked(data_dir: &Path, name: &str) -> Result<(), String> {
    refusal(data_dir, name)?.map_or(Ok(()), Err)
}

/// Makes one token and has the hub store it; `signs`: also `cluster-info`. A fleet's tokens do not: every
/// machine would read all their signatures, and needs none beside the authority's hash.
async fn create(
    data_dir: &Path,
    new: &NewToken,
    names: &Names,
    signs: bool,
) -> Result<BootstrapToken, String> {
    let token = made(new, names, signs, OffsetDateTime::now_utc())?;
    ask(data_dir, "POST", SECRETS, &token.to_secret()).await?;
    Ok(token)
}

fn made(new: &NewToken, names: &Names, signs: bool, now: OffsetDateTime) -> Result<BootstrapToken, String> {
    let mut random = [0; RANDOM_BYTES];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut random).ok();
    let token = filled.and_then(|()| BootstrapToken::new(&random, names.clone()));
    let mut token = token.ok_or("the system gives no random numbers")?;
    let ttl = time::Duration::try_from(new.ttl).unwrap_or_default();
    // as it is stored: in whole seconds
    let end = now.replace_nanosecond(0).unwrap_or(now).saturating_add(ttl);
    token.expiration = Some(end);
    token.description = new.description.clone();
    (token.uses, token.approve, token.signs) = (new.uses, new.approve, signs);
    Ok(token)
}

/// The command for the device; it reads the token from its standard input, so that no list of processes shows
/// it.
fn join_line(names: &Names, meeting: &Meeting) -> String {
    let Meeting { url, pins, .. } = meeting;
    let name = match names {
        Names::One(name) => format!(" --node-name {name}"),
        Names::Prefix(_) => String::new(),
    };
    format!("kedge join {url} --ca-cert-hash {pins}{name} --token-file -")
}

/// The purpose of a token as text, without its secret.
fn explanation(token: &BootstrapToken) -> String {
    let end = token.expiration.map(rfc3339).unwrap_or_default();
    let of = match &token.names {
        Names::One(name) => format!("node {name}"),
        Names::Prefix(prefix) if prefix.is_empty() => "any node".to_owned(),
        Names::Prefix(prefix) => format!("nodes whose name begins with {prefix}"),
    };
    let uses = match token.uses {
        None => "any number of times".to_owned(),
        Some(1) => "once".to_owned(),
        Some(uses) => format!("{uses} times"),
    };
    let waits = match (&token.names, token.approve) {
        (Names::Prefix(_), false) => {
            "; each request waits until somebody approves it (kubectl certificate approve)"
        }
        _ => "",
    };
    format!("token {} is for {of}, {uses}, until {end}{waits}; run the line on the device, as root", token.id)
        .replace(char::is_control, " ")
}

/// For programs: the token with all that a device needs.
fn described(token: &BootstrapToken, meeting: &Meeting) -> Value {
    json!({
        "id": token.id,
        "token": token.shown(),
        "node": token.names.to_string(),
        "uses": token.uses,
        "approve": token.approve,
        "expiration": token.expiration.map(rfc3339),
        "server": meeting.url,
        "caCertHash": meeting.pins,
        "command": join_line(&token.names, meeting),
    })
}

const COLUMNS: [&str; 7] = ["ID", "NODE", "STATE", "USES", "EXPIRES", "APPROVE", "DESCRIPTION"];

/// A line of the list.
struct Listed {
    cells: [String; 7],
}

impl Listed {
    /// `None` for a Secret that is no valid token.
    fn of(secret: &Value, now: OffsetDateTime) -> Option<Listed> {
        let token = BootstrapToken::from_secret(secret)?;
        let state = match () {
            () if token.is_expired(now) => "Expired",
            () if token.is_spent() => "Used",
            () if !token.authenticates => "SignsOnly",
            () => "Usable",
        };
        let asks =
            if token.approve || matches!(token.names, Names::One(_)) { "by itself" } else { "by a person" };
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        Some(Listed {
            cells: [
                token.id.clone(),
                token.names.to_string(),
                state.to_owned(),
                token.uses.map_or_else(|| "unlimited".to_owned(), |uses| uses.to_string()),
                token.expiration.map_or_else(|| "never".to_owned(), rfc3339),
                asks.to_owned(),
                or_dash(token.description.clone()),
            ],
        })
    }

    fn json(&self) -> Value {
        let [id, node, state, uses, expires, approve, description] = &self.cells;
        json!({"id": id, "node": node, "state": state, "uses": uses, "expires": expires, "approve": approve,
            "description": description})
    }
}

/// The names in a file, one a line; empty lines and lines that begin with `#` are skipped.
fn read_names(file: &Path) -> Result<Vec<String>, String> {
    let path = file.display();
    let text = crate::files::read(file).map_err(|error| format!("cannot read {path}: {error}"))?;
    let text = String::from_utf8(text).map_err(|_| format!("{path}: expected a text"))?;
    let (mut names, mut known) = (Vec::new(), std::collections::BTreeSet::new());
    for (index, line) in text.lines().enumerate() {
        let name = line.trim();
        if name.is_empty() || name.starts_with('#') {
            continue;
        }
        let wrong =
            |why: &str| Err(format!("{path}, line {}: {:?} {why}", index + 1, kedge_api::excerpt(name)));
        if !pki::is_dns_subdomain(name) || !is_subdomain(name) {
            return wrong("is no name of a node, expected a DNS name in lower case");
        }
        if !known.insert(name) {
            return wrong("is there twice");
        }
        names.push(name.to_owned());
    }
    match names.len() {
        0 => Err(format!("{path}: it has no names")),
        1..=MOST_NAMES => Ok(names),
        found => Err(format!("{path}: it has {found} names, at most {MOST_NAMES} are possible at a time")),
    }
}
