//! Credentials for registries: Docker's `config.json` and the older `.dockercfg`, from a file of the node or
//! from Secrets.
//!
//! Always holds: kubelet's rule decides which entry serves which image: globs in the host's labels, equal
//! ports, a prefix of the path, the longer key first, `https://index.docker.io/v1/` for docker.io; no
//! password appears in a debug text or an error. Leaves to others: reading files and Secrets. `credHelpers`
//! and `credsStore` name programs, which are not run.

use crate::sorted::SortedMap;
use std::cmp::Reverse;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::reference::{DEFAULT_REGISTRY, Reference};

/// Longest file or Secret: a Secret cannot be longer.
pub const MAX_BYTES: usize = 1 << 20;
/// Most entries of one file.
const MAX_ENTRIES: usize = 1000;
/// The key for docker.io, as `docker login` writes it.
const DEFAULT_KEY: &str = "index.docker.io";

/// User and password, or a token, for one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.user)
    }
}

impl Credential {
    /// The value of an `Authorization` header.
    #[must_use]
    pub fn basic(&self) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

/// Credentials of several sources; of equal keys those of the earlier source are tried first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// Key without scheme, and its credential.
    entries: Vec<(String, Credential)>,
}

#[derive(Deserialize)]
struct RawConfig {
    auths: SortedMap<String, RawEntry>,
}

#[derive(Deserialize, Default)]
struct RawEntry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Keyring {
    /// Adds the entries of a `config.json` (Secret key `.dockerconfigjson`) or a `.dockercfg`.
    ///
    /// # Errors
    /// It is unreadable; nothing was added. The error repeats none of its values.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("{} bytes, expected at most {MAX_BYTES}", bytes.len()));
        }
        let raw = match kedge_api::read::from_slice::<RawConfig>(bytes) {
            Ok(config) => config.auths,
            // an older file is the inner object alone
            Err(_) => kedge_api::read::from_slice(bytes).map_err(|error| {
                format!(
                    "line {}: not the JSON of Docker's config.json, expected {{\"auths\": ...}}",
                    error.line()
                )
            })?,
        };
        if raw.len() > MAX_ENTRIES {
            return Err(format!("{} entries, expected at most {MAX_ENTRIES}", raw.len()));
        }
        let mut added = Vec::new();
        for (key, entry) in raw {
            let credential =
                entry.credential().map_err(|why| format!("entry {:?}: {why}", kedge_api::excerpt(&key)))?;
            added.extend(credential.map(|credential| (normalized(&key), credential)));
        }
        self.entries.extend(added);
        Ok(())
    }

    /// Adds user and password for every image of a registry.
    pub fn add_for(&mut self, registry: &str, credential: Credential) {
        self.entries.push((normalized(registry), credential));
    }

    /// Credentials for an image, the most specific first, as kubelet tries them.
    #[must_use]
    pub fn for_image(&self, image: &Reference) -> Vec<&Credential> {
        let mut fitting: Vec<&(String, Credential)> = self
            .entries
            .iter()
            .filter(|(key, _)| is_match(key, &image.registry, &image.repository))
            .collect();
        if fitting.is_empty() && image.registry == DEFAULT_REGISTRY {
            fitting = self.entries.iter().filter(|(key, _)| key == DEFAULT_KEY).collect();
        }
        // a stable sort: equal keys stay in the order of their sources
        kedge_api::sort::sort_by_key(&mut fitting, |(key, _)| Reverse(key.as_str()));
        fitting.into_iter().map(|(_, credential)| credential).collect()
    }
}

impl RawEntry {
    /// `None` for an entry without a user, as a credential helper leaves it.
    fn credential(self) -> Result<Option<Credential>, &'static str> {
        if self.auth.is_empty() {
            let credential = Credential { user: self.username, password: self.password };
            return Ok((!credential.user.is_empty()).then_some(credential));
        }
        let wrong = "its auth is not base64 of user:password";
        let decoded = BASE64_STANDARD.decode(self.auth.trim()).map_err(|_| wrong)?;
        let decoded = String::from_utf8(decoded).map_err(|_| wrong)?;
        let (user, password) = decoded.split_once(':').ok_or(wrong)?;
        // Docker pads the password with NUL
        Ok(Some(Credential { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() }))
    }
}

/// A key without scheme, without `/v1/` or `/v2/`, without a slash at its end.
fn normalized(key: &str) -> String {
    let bare = key.split_once("://").map_or(key, |(_, bare)| bare);
    let (host, path) = bare.split_at(bare.find('/').unwrap_or(bare.len()));
    let path = ["/v1/", "/v2/", "/v1", "/v2"].iter().find(|version| path == **version).map_or(path, |_| "");
    format!("{host}{}", path.trim_end_matches('/'))
}

fn is_match(key: &str, registry: &str, repository: &str) -> bool {
    let (key_host, key_path) = key.split_at(key.find('/').unwrap_or(key.len()));
    let (key_name, key_port) = split_port(key_host);
    let (name, port) = split_port(registry);
    let (key_labels, labels) = (key_name.split('.'), name.split('.'));
    key_port == port
        && key_name.split('.').count() == name.split('.').count()
        && key_labels.zip(labels).all(|(glob, label)| is_glob_match(glob.as_bytes(), label.as_bytes()))
        && format!("/{repository}").starts_with(key_path)
}

fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port),
        _ => (host, ""),
    }
}

/// `*` for any run and `?` for any one character, in time linear in both for each star.
fn is_glob_match(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some(b'*') => {
                star = Some((g, t));
                g = g.saturating_add(1);
            }
            Some(byte) if *byte == b'?' || *byte == text[t] => {
                g = g.saturating_add(1);
                t = t.saturating_add(1);
            }
            _ => match star {
                Some((at, matched)) => {
                    star = Some((at, matched.saturating_add(1)));
                    g = at.saturating_add(1);
                    t = matched.saturating_add(1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keyring(keys: &[&str]) -> Keyring {
        let mut ring = Keyring::default();
        for key in keys {
            let auth = BASE64_STANDARD.encode(format!("{key}:secret"));
            ring.add(json!({"auths": {*key: {"auth": auth}}}).to_string().as_bytes()).unwrap();
        }
        ring
    }

    #[track_caller]
    fn check(keys: &[&str], image: &str, expect: &[&str]) {
        let ring = keyring(keys);
        let image = Reference::parse(image).unwrap();
        let found: Vec<&str> =
            ring.for_image(&image).iter().map(|found| found.user.split(':').next().unwrap()).collect();
        assert_eq!(found, expect, "{image}");
    }

    #[test]
    fn entry_is_found_as_kubelet_finds_it() {
        check(&["r.lan"], "r.lan/a/b", &["r.lan"]);
        check(&["r.lan", "r.lan/a", "r.lan/b"], "r.lan/a/b", &["r.lan/a", "r.lan"]);
        check(&["*.lan"], "r.lan/a", &["*.lan"]);
        check(&["*.lan"], "x.r.lan/a", &[]);
        check(&["r*.l?n"], "reg.lan/a", &["r*.l?n"]);
        check(&["r.lan"], "r.lan:5000/a", &[]);
        check(&["evil.lan"], "r.lan/a", &[]);
        check(&["r.lan"], "nginx", &[]);
    }

    #[test]
    fn key_of_docker_login_serves_docker_io() {
        let ring = |key: &str| {
            let mut ring = Keyring::default();
            ring.add_for(key, Credential { user: "u".into(), password: "p".into() });
            ring
        };
        let image = Reference::parse("team/app").unwrap();
        for key in ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "https://docker.io/v2/"] {
            assert_eq!(ring(key).for_image(&image).len(), 1, "{key}");
        }
        assert!(
            ring("https://index.docker.io/v1/").for_image(&Reference::parse("r.lan/a").unwrap()).is_empty()
        );
        let image = Reference::parse("r.lan:5000/a").unwrap();
        assert_eq!(ring("http://r.lan:5000/v2/").for_image(&image).len(), 1);
    }

    #[test]
    fn both_forms_of_the_file_are_read() {
        let image = Reference::parse("r.lan/a").unwrap();
        for file in [
            json!({"auths": {"r.lan": {"auth": "dTpwOng="}}, "credsStore": "x"}),
            json!({"r.lan": {"username": "u", "password": "p:x", "email": "e"}}),
        ] {
            let mut ring = Keyring::default();
            ring.add(file.to_string().as_bytes()).unwrap();
            let found = ring.for_image(&image);
            assert_eq!((found[0].user.as_str(), found[0].password.as_str()), ("u", "p:x"));
            assert_eq!(found[0].basic(), "Basic dTpwOng=");
            assert!(!format!("{ring:?}").contains("p:x"));
        }
        let mut ring = Keyring::default();
        ring.add(br#"{"auths": {"r.lan": {}}}"#).unwrap();
        assert!(ring.for_image(&image).is_empty(), "an entry of a credential helper");
    }

    #[test]
    fn unreadable_file_adds_nothing_and_shows_nothing() {
        let mut ring = Keyring::default();
        for file in [
            json!({"auths": {"a": {"auth": "secret!"}}}).to_string(),
            json!({"auths": {"a": {"auth": BASE64_STANDARD.encode("secret")}}}).to_string(),
            json!({"auths": "secret"}).to_string(),
            "secret".to_owned(),
            " ".repeat(MAX_BYTES + 1),
        ] {
            let why = ring.add(file.as_bytes()).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
        assert_eq!(ring, Keyring::default());
    }

    #[test]
    fn glob_with_many_stars_takes_no_long_time() {
        let glob = "*a".repeat(2000);
        assert!(!is_glob_match(glob.as_bytes(), "a".repeat(1999).as_bytes()));
        assert!(is_glob_match(b"*", b"") && is_glob_match(b"a*c", b"abbc") && !is_glob_match(b"a?", b"a"));
    }
}
