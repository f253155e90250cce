//! The settings for images: `kedge.images`, and kubelet's fields for pulls and garbage collection.
//!
//! Always holds: a value of these types is usable; every list is bounded; plain HTTP only to registries that
//! are listed as insecure; a mirror is tried before the registry it replaces, and with its own credentials,
//! never with the registry's. Leaves to others: reading the named files.

use crate::sorted::SortedMap;
use std::collections::BTreeSet;

use kedge_api::excerpt;
use serde_json::{Map, Value};

use super::reference::{DEFAULT_REGISTRY, DEFAULT_SERVER, Reference, is_registry};
use super::signature::{MAX_KEYS, MAX_RULES, PREFIX_EXPECTED, RULE_EXPECTED, Rule, SignaturePolicy};

/// Most registries that have mirrors, certificate authorities, or are insecure. A site has a few.
pub const MAX_REGISTRIES: usize = 100;
/// Most mirrors of one registry: each one that is down costs a pull its time limit.
pub const MAX_MIRRORS: usize = 8;
/// Begin of a text with certificates; any other text is a file's path.
const PEM: &str = "-----BEGIN ";

/// One server with images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host, and port if one is given.
    pub server: String,
    /// Plain HTTP.
    pub is_plain: bool,
    /// Put before the repository; empty, or without slashes at its ends.
    pub prefix: String,
}

impl Endpoint {
    /// An image's name on this server: for requests and credentials.
    #[must_use]
    pub fn localized(&self, image: &Reference) -> Reference {
        let separator = if self.prefix.is_empty() { "" } else { "/" };
        Reference {
            registry: if self.server == DEFAULT_SERVER { DEFAULT_REGISTRY } else { &self.server }.to_owned(),
            repository: format!("{}{separator}{}", self.prefix, image.repository),
            ..image.clone()
        }
    }

    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.is_plain { "http" } else { "https" }
    }
}

/// The place of an authority's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    Pem(String),
    File(String),
}

/// `kedge.images`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registries {
    mirrors: SortedMap<String, Vec<Endpoint>>,
    insecure: BTreeSet<String>,
    authorities: SortedMap<String, Authority>,
    /// `credentialsFile`: a Docker `config.json`.
    pub credentials_file: Option<String>,
    /// Which images need a signature.
    pub signatures: SignaturePolicy,
    /// `offline: usePresent`: a pod whose image should be pulled each time uses the present one while no
    /// server answers.
    pub uses_present_offline: bool,
}

impl Registries {
    /// Reads the object `kedge.images`, whose types were checked. Problems are passed to `report` as path and
    /// sentence.
    pub fn read(object: Option<&Map<String, Value>>, report: &mut dyn FnMut(&str, String)) -> Self {
        let Some(object) = object else { return Self::default() };
        let mut read = Reading { object, report };
        let insecure: BTreeSet<String> = read.insecure().into_iter().collect();
        Self {
            mirrors: read.mirrors(&insecure),
            authorities: read.authorities(),
            credentials_file: read.credentials_file(),
            signatures: read.signatures(),
            uses_present_offline: object.get("offline").and_then(Value::as_str) == Some("usePresent"),
            insecure,
        }
    }

    /// The servers for an image, in the order in which they are tried: mirrors, then the registry itself.
    #[must_use]
    pub fn endpoints(&self, image: &Reference) -> Vec<Endpoint> {
        let own = Endpoint {
            server: image.server().to_owned(),
            is_plain: self.insecure.contains(&image.registry),
            prefix: String::new(),
        };
        let mirrors = self.mirrors.get(&image.registry).map(Vec::as_slice).unwrap_or_default();
        mirrors.iter().cloned().chain([own]).collect()
    }

    /// Whether plain HTTP is allowed to this server.
    #[must_use]
    pub fn is_insecure(&self, server: &str) -> bool {
        self.insecure.contains(server)
    }

    /// The authority trusted for this server, besides the system's.
    #[must_use]
    pub fn authority(&self, server: &str) -> Option<&Authority> {
        let name = if server == DEFAULT_SERVER { DEFAULT_REGISTRY } else { server };
        self.authorities.get(name)
    }
}

struct Reading<'a> {
    object: &'a Map<String, Value>,
    report: &'a mut dyn FnMut(&str, String),
}

impl Reading<'_> {
    fn wrong(&mut self, field: &str, found: &str, expected: &str) {
        let path = format!("kedge.images.{field}");
        let message = format!("{path} is {:?}, expected {expected}", excerpt(found));
        (self.report)(&path, message);
    }

    fn insecure(&mut self) -> Vec<String> {
        let list = texts(self.object.get("insecureRegistries"));
        self.bounded("insecureRegistries", list.len(), MAX_REGISTRIES);
        let (good, bad): (Vec<_>, Vec<_>) =
            list.into_iter().take(MAX_REGISTRIES).partition(|name| is_registry(name));
        for name in bad {
            self.wrong("insecureRegistries", &name, "host or host:port");
        }
        good
    }

    fn mirrors(&mut self, insecure: &BTreeSet<String>) -> SortedMap<String, Vec<Endpoint>> {
        let mut found = SortedMap::new();
        for (registry, list) in self.entries("mirrors") {
            let list = texts(Some(&list));
            self.bounded("mirrors", list.len(), MAX_MIRRORS);
            let mut endpoints = Vec::new();
            for text in list.iter().take(MAX_MIRRORS) {
                match mirror(text, insecure) {
                    Ok(endpoint) => endpoints.push(endpoint),
                    Err(expected) => self.wrong("mirrors", text, expected),
                }
            }
            found.insert(registry, endpoints);
        }
        found
    }

    fn authorities(&mut self) -> SortedMap<String, Authority> {
        let mut found = SortedMap::new();
        for (registry, value) in self.entries("certificateAuthorities") {
            let text = value.as_str().unwrap_or_default();
            if text.trim_start().starts_with(PEM) {
                found.insert(registry, Authority::Pem(text.to_owned()));
            } else if text.starts_with('/') {
                found.insert(registry, Authority::File(text.to_owned()));
            } else {
                self.wrong(
                    "certificateAuthorities",
                    text,
                    "certificates in PEM, or the absolute path of a file with them",
                );
            }
        }
        found
    }

    fn credentials_file(&mut self) -> Option<String> {
        let text = self.object.get("credentialsFile")?.as_str()?.to_owned();
        if text.starts_with('/') {
            return Some(text);
        }
        self.wrong("credentialsFile", &text, "an absolute path");
        None
    }

    fn signatures(&mut self) -> SignaturePolicy {
        let mut policy = SignaturePolicy::default();
        for (prefix, list) in self.present("signaturePolicy", MAX_RULES) {
            let texts = texts(Some(&list));
            self.bounded("signaturePolicy", texts.len(), MAX_KEYS);
            let texts: Vec<&str> = texts.iter().take(MAX_KEYS).map(String::as_str).collect();
            match Rule::parse(&texts) {
                Err(text) => self.wrong("signaturePolicy", text, RULE_EXPECTED),
                Ok(rule) => {
                    if !policy.add(&prefix, rule) {
                        self.wrong("signaturePolicy", &prefix, PREFIX_EXPECTED);
                    }
                }
            }
        }
        policy
    }

    /// An object's entries that are not null.
    fn present(&mut self, field: &str, most: usize) -> Vec<(String, Value)> {
        let map = self.object.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
        self.bounded(field, map.len(), most);
        map.into_iter().filter(|(_, value)| !value.is_null()).take(most).collect()
    }

    /// An object by registry, without entries whose key is not a registry's name.
    fn entries(&mut self, field: &str) -> Vec<(String, Value)> {
        let all = self.present(field, MAX_REGISTRIES).into_iter();
        let (good, bad): (Vec<_>, Vec<_>) = all.partition(|(registry, _)| is_registry(registry));
        for (registry, _) in bad {
            self.wrong(field, &registry, "a registry, host or host:port, for each key");
        }
        good
    }

    fn bounded(&mut self, field: &str, found: usize, most: usize) {
        if found > most {
            self.wrong(field, &format!("{found} entries"), &format!("at most {most}"));
        }
    }
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn mirror(text: &str, insecure: &BTreeSet<String>) -> Result<Endpoint, &'static str> {
    let expected = "https://host[:port][/prefix]";
    let (scheme, rest) = text.split_once("://").ok_or(expected)?;
    let (server, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let prefix = prefix.trim_matches('/');
    // a repository's path there must be a valid one here
    let is_path = prefix.is_empty() || Reference::parse(&format!("localhost/{prefix}:x")).is_ok();
    if !is_registry(server) || !is_path {
        return Err(expected);
    }
    let is_plain = match scheme {
        "https" => false,
        "http" if insecure.contains(server) => true,
        "http" => return Err("https, or a server that insecureRegistries names"),
        _ => return Err(expected),
    };
    Ok(Endpoint { server: server.to_owned(), is_plain, prefix: prefix.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::signature::{ACCEPT_ANYTHING, tests::P256};
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> (Registries, Vec<String>) {
        let mut problems = Vec::new();
        let found = Registries::read(value.as_object(), &mut |_, why| problems.push(why));
        (found, problems)
    }

    fn image(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    #[test]
    fn mirrors_come_before_the_registry() {
        let (found, problems) = read(json!({
            "mirrors": {"docker.io": ["https://harbor.lan/hub/", "http://cache.lan:5000"], "gone.lan": null},
            "insecureRegistries": ["cache.lan:5000", "old.lan"],
            "certificateAuthorities": {"harbor.lan": "-----BEGIN CERTIFICATE-----\n", "docker.io": "/etc/ca.pem"},
        }));
        assert_eq!(problems, [""; 0]);
        let nginx = image("nginx");
        let endpoints = found.endpoints(&nginx);
        let shown: Vec<String> = endpoints
            .iter()
            .map(|endpoint| format!("{}://{}", endpoint.scheme(), endpoint.localized(&nginx)))
            .collect();
        assert_eq!(
            shown,
            [
                "https://harbor.lan/hub/library/nginx:latest",
                "http://cache.lan:5000/library/nginx:latest",
                "https://docker.io/library/nginx:latest",
            ]
        );
        assert_eq!(endpoints[2].server, DEFAULT_SERVER);
        assert!(found.endpoints(&image("old.lan/a"))[0].is_plain);
        assert!(!found.endpoints(&image("new.lan/a"))[0].is_plain);
        assert_eq!(found.authority(DEFAULT_SERVER), Some(&Authority::File("/etc/ca.pem".into())));
        assert!(matches!(found.authority("harbor.lan"), Some(Authority::Pem(_))));
        assert_eq!(found.authority("other.lan"), None);
    }

    #[test]
    fn signature_policy_is_read() {
        let (found, problems) = read(json!({"signaturePolicy": {"r.lan/team": [P256], "gone.lan": null}}));
        assert_eq!(problems, [""; 0]);
        assert!(
            found.signatures.covers(&image("r.lan/team/app"))
                && !found.signatures.covers(&image("gone.lan/app"))
        );
    }

    #[test]
    fn unusable_value_is_reported() {
        let check = |value: Value, expect: &str| {
            let (_, problems) = read(value);
            assert!(problems.iter().any(|why| why.contains(expect)), "{problems:?}");
        };
        check(json!({"mirrors": {"docker.io": ["http://cache.lan"]}}), "insecureRegistries names");
        check(json!({"mirrors": {"docker.io": ["cache.lan"]}}), "expected https://host");
        check(json!({"mirrors": {"docker.io": ["https://u:p@cache.lan"]}}), "expected https://host");
        check(json!({"mirrors": {"docker.io": ["https://cache.lan/A"]}}), "expected https://host");
        check(json!({"mirrors": {"https://docker.io": []}}), "a registry");
        check(json!({"mirrors": {"a": vec!["https://x"; 9]}}), "at most 8");
        check(json!({"insecureRegistries": ["http://x"]}), "host or host:port");
        check(json!({"insecureRegistries": vec!["x"; 101]}), "at most 100");
        check(json!({"certificateAuthorities": {"x": "ca.pem"}}), "absolute path");
        check(json!({"credentialsFile": "creds"}), "absolute path");
        check(json!({"signaturePolicy": {"team": []}}), "signaturePolicy is \"team\", expected a registry");
        check(json!({"signaturePolicy": {"*": ["/etc/cosign.pub"]}}), "public keys in PEM");
        check(json!({"signaturePolicy": {"*": vec![P256; 17]}}), "at most 16");
        check(json!({"signaturePolicy": {"*": [ACCEPT_ANYTHING, P256]}}), "insecureAcceptAnything alone");
        check(json!({"signaturePolicy": {"r.lan": [], "R.lan:443": []}}), "each once");
        assert_eq!(read(json!({})), Default::default());
    }
}
