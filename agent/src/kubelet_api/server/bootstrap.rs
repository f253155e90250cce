//! `serverTLSBootstrap`: a certificate of the port that the cluster signs, by a CertificateSigningRequest to
//! `kubernetes.io/kubelet-serving`.
//!
//! Always holds: the key is on the disk before the request is sent to the API server, so a restart continues
//! with the same request instead of piling up new ones; a certificate is accepted only for the key of its
//! request; the one before it stays in use until then. Somebody has to approve the request: until then it is
//! polled less and less often. Blocks. Leaves to others: the certificate that TLS shows (`identity`).

use crate::kubelet_api::server::identity::SIGNED;
use crate::net::error::NetError;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kedge_api::SERVING_SIGNER;
use kedge_platform::Files;
use serde_json::Value;

use crate::errors::chain;
use crate::identity::certificate::validity;
use crate::identity::of_pem;
use crate::identity::request::{self, State, Wanted};
use crate::identity::x509::{self, Names};
use crate::net::client::{Api, Client, Request};
use crate::net::kubeconfig::MAX_PEM_BYTES;

const REQUESTED: &str = "serving/requested.pem";
/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Most addresses of a node in a certificate.
const MOST_NAMES: usize = 32;
/// Between polls of a waiting request: half of its age, within these limits.
const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(3600);
/// Between checks of a valid certificate: the addresses of the node may change.
const QUIET: Duration = Duration::from_secs(6 * 3600);
/// After a check that found no Node, or one without an address: a node that joins is whole soon.
const UNREGISTERED: Duration = Duration::from_secs(30);
/// After a check that failed.
const FAILED: Duration = Duration::from_secs(300);

pub(super) struct Bootstrap {
    client: Client,
    node: String,
    files: Arc<dyn Files>,
}

impl Bootstrap {
    pub(super) fn new(api: &Arc<Api>, node: String, files: Arc<dyn Files>) -> Self {
        Self { client: api.stream("serving-certificate"), node, files }
    }

    /// Takes the next step, and returns when to check again; `now` in seconds since 1970.
    pub(super) fn look(&self, now: u64) -> Duration {
        match self.step(now) {
            Ok(next) => next,
            Err((why, next)) => {
                log::warn!("the port's certificate: {why}; looking again in {} s", next.as_secs());
                next
            }
        }
    }

    fn step(&self, now: u64) -> Result<Duration, (String, Duration)> {
        let failed = |why: String| (why, FAILED);
        let node = self.get(&format!("/api/v1/nodes/{}", self.node)).map_err(|error| {
            let next = if error.status() == Some(404) { UNREGISTERED } else { FAILED };
            (error.to_string(), next)
        })?;
        let names =
            names(&node).ok_or_else(|| ("the Node's status has no address yet".to_owned(), UNREGISTERED))?;
        if let Some(due) = self.kept(SIGNED, &names).and_then(|pem| due(&pem))
            && now < due
        {
            return Ok(Duration::from_secs(due - now).min(QUIET));
        }
        let key = match self.kept(REQUESTED, &names) {
            Some(pem) => pem,
            None => {
                let key =
                    x509::new_key().map_err(|_| failed("the machine gives no randomness".to_owned()))?;
                let pem = format!("{}{key}", line(&names)).into_bytes();
                self.write(REQUESTED, &pem).map_err(failed)?;
                pem
            }
        };
        let (name, request) = x509::request(&self.node, &names, &key)
            .ok_or_else(|| failed(format!("{REQUESTED} holds no key that can be used")))?;
        let usages = ["digital signature", "server auth"];
        let wanted = Wanted { name: &name, request: &request, signer: SERVING_SIGNER, usages };
        let state = request::ask(&self.client, &wanted).map_err(|error| failed(error.to_string()))?;
        self.judge(&name, state, &names, &key)
    }

    /// Handles the state of a request.
    fn judge(
        &self,
        name: &str,
        state: State,
        names: &Names,
        key: &[u8],
    ) -> Result<Duration, (String, Duration)> {
        let pem = match state {
            State::Made => {
                log::info!(
                    "asked for a certificate of the port: CertificateSigningRequest {name} waits to be approved"
                );
                return Ok(SHORTEST);
            }
            State::Waits(age, _) => return Ok(Duration::from_secs(age / 2).clamp(SHORTEST, LONGEST)),
            State::Refused(why) => {
                // the next request needs another name, so another key
                self.files.remove(Path::new(REQUESTED)).map_err(|error| (chain(&error), LONGEST))?;
                return Err((format!("request {name} is {why}"), LONGEST));
            }
            State::Signed(pem) => pem,
        };
        let unusable = |why: String| (format!("the certificate of request {name} {why}"), LONGEST);
        of_pem(&pem, key).map_err(unusable)?;
        let whole = [line(names).as_bytes(), &pem, b"\n", key].concat();
        self.write(SIGNED, &whole).map_err(|why| (why, FAILED))?;
        log::info!("the port has a certificate of the cluster: request {name}");
        // a leftover is recognised by its names and its certificate
        let _ = self.files.remove(Path::new(REQUESTED));
        Ok(SHORTEST)
    }

    fn get(&self, path: &str) -> Result<Value, NetError> {
        self.client.request(&Request::get(path, DEADLINE))?.json()
    }

    /// The content of a file, if it is for these names.
    fn kept(&self, place: &str, names: &Names) -> Option<Vec<u8>> {
        let pem = self.files.read(Path::new(place), MAX_PEM_BYTES).ok()?;
        pem.starts_with(line(names).as_bytes()).then_some(pem)
    }

    fn write(&self, place: &str, content: &[u8]) -> Result<(), String> {
        self.files.write_durably(Path::new(place), content).map_err(|error| chain(&error))
    }
}

/// The first line of our files: the names that a certificate is for. PEM readers ignore it.
fn line(names: &Names) -> String {
    let addresses = names.addresses.iter().map(ToString::to_string);
    let names: Vec<String> = names.dns.iter().cloned().chain(addresses).collect();
    format!("for {}\n", names.join(" "))
}

/// The names that a certificate must have: the addresses that the API server may dial.
fn names(node: &Value) -> Option<Names> {
    let mut names = Names::default();
    let listed = node["status"]["addresses"].as_array()?;
    for address in listed.iter().take(MOST_NAMES) {
        let text = address["address"].as_str()?;
        match (address["type"].as_str()?, text.parse()) {
            ("InternalIP" | "ExternalIP", Ok(ip)) => names.addresses.push(ip),
            ("Hostname" | "InternalDNS" | "ExternalDNS", Ok(ip)) => names.addresses.push(ip),
            ("Hostname" | "InternalDNS" | "ExternalDNS", Err(_))
                if kedge_api::names::subdomain_complaint(text).is_none() =>
            {
                names.dns.push(text.to_owned());
            }
            _ => {}
        }
    }
    kedge_api::sort::sort(&mut names.dns);
    names.dns.dedup();
    kedge_api::sort::sort(&mut names.addresses);
    names.addresses.dedup();
    (!names.dns.is_empty() || !names.addresses.is_empty()).then_some(names)
}

/// When to request the next certificate, in seconds since 1970: after 70 to 90 % of this one's time, which
/// differs from node to node.
fn due(pem: &[u8]) -> Option<u64> {
    let (certificates, _) = of_pem(pem, pem).ok()?;
    let der = certificates.first()?;
    let (begin, end) = validity(der)?;
    let spread = u64::from(ring::digest::digest(&ring::digest::SHA256, der).as_ref()[0]);
    Some(begin + end.saturating_sub(begin) * (7 * 255 + 2 * spread) / 2550)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_the_addresses_of_the_node() {
        let node = |addresses: Value| json!({"status": {"addresses": addresses}});
        let of = |sort: &str, address: &str| json!({"type": sort, "address": address});
        let found = names(&node(json!([
            of("InternalIP", "192.0.2.7"),
            of("Hostname", "edge-1"),
            of("Hostname", "192.0.2.7"),
            of("InternalDNS", "bad name"),
            of("InternalIP", "2001:db8::1"),
            of("Else", "x"),
        ])));
        assert_eq!(line(&found.unwrap()), "for edge-1 192.0.2.7 2001:db8::1\n");
        assert!(names(&node(json!([]))).is_none());
        assert!(names(&json!({})).is_none());
    }
}
