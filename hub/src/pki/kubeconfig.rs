//! The text of a kubeconfig, and the names and addresses in it.
//!
//! Always holds: a kubeconfig is self-contained (CA, certificate and key embedded), so an operator copies
//! only one file. Left to others: its path and mode (`super`).

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kedge_api::names::{self, LABEL_BYTES};

/// A kubeconfig for one user. `server` is a URL; the PEM texts are embedded. The plain quotes are safe,
/// because every value written into the YAML is either base64 or has been checked to consist of letters,
/// digits and `.:-[]/`.
pub(super) fn text(
    server: &str,
    authority_pem: &str,
    user: &str,
    certificate_pem: &str,
    key_pem: &str,
) -> String {
    let authority = STANDARD.encode(authority_pem);
    let certificate = STANDARD.encode(certificate_pem);
    let key = STANDARD.encode(key_pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: kedge
  cluster:
    server: \"{server}\"
    certificate-authority-data: {authority}
users:
- name: \"{user}\"
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: kedge
  context:
    cluster: kedge
    user: \"{user}\"
current-context: kedge
"
    )
}

/// The kubeconfig in `kube-public/cluster-info`: where the hub is and how to verify it, and no user. As
/// kubeadm's, its cluster has no name, by which `kubeadm join` finds it.
pub(super) fn cluster_info(server: &str, authority_pem: &str) -> String {
    let authority = STANDARD.encode(authority_pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: \"\"
  cluster:
    server: \"{server}\"
    certificate-authority-data: {authority}
contexts: []
current-context: \"\"
preferences: {{}}
users: []
"
    )
}

/// A kubeconfig for the first request of the node `user`, by a bootstrap token. The name of the user tells
/// the agent which node it is; the token consists of letters, digits and a dot.
pub(super) fn bootstrap(server: &str, authority_pem: &str, user: &str, token: &str) -> String {
    let authority = STANDARD.encode(authority_pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: kedge
  cluster:
    server: \"{server}\"
    certificate-authority-data: {authority}
users:
- name: \"{user}\"
  user:
    token: \"{token}\"
contexts:
- name: \"{user}\"
  context:
    cluster: kedge
    user: \"{user}\"
current-context: \"{user}\"
"
    )
}

/// `https://HOST:PORT`, an IPv6 address in brackets.
pub fn server_url(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("https://[{address}]:{port}"),
        _ => format!("https://{host}:{port}"),
    }
}

/// RFC 1123 subdomain, as Kubernetes demands of a Node's name: at most 253 characters, labels of at most 63
/// that consist of `a-z0-9-` and begin and end with a letter or digit, joined by dots.
pub fn is_dns_subdomain(name: &str) -> bool {
    names::subdomain_complaint(name).is_none() && name.split('.').all(|label| label.len() <= LABEL_BYTES)
}

/// True if a serving certificate may contain it: an IP address, or a host name in any case (`*.` in front
/// allowed).
pub fn is_host(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok() || is_dns_subdomain(lower.strip_prefix("*.").unwrap_or(&lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_dns_subdomains() {
        let check = |name: &str, expect: bool| assert_eq!(is_dns_subdomain(name), expect, "{name:?}");
        check("edge-1", true);
        check("a", true);
        check("edge-1.plant.example", true);
        check("0", true);
        check("", false);
        check("Edge", false);
        check("-a", false);
        check("a-", false);
        check("a..b", false);
        check(".a", false);
        check("a.", false);
        check("a_b", false);
        check("a\"b", false);
        check("a\nb", false);
        check("käfer", false);
        check(&"a".repeat(63), true);
        check(&"a".repeat(64), false);
        check(&["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join("."), true);
        check(&["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(62)].join("."), false);
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        let check = |name: &str, expect: bool| assert_eq!(is_host(name), expect, "{name:?}");
        check("Hub.Example.com", true);
        check("*.example.com", true);
        check("10.0.0.1", true);
        check("fe80::1", true);
        check("a*.example.com", false);
        check("", false);
        check("a b", false);
    }

    #[test]
    fn ipv6_server_is_bracketed() {
        assert_eq!(server_url("::1", 6443), "https://[::1]:6443");
        assert_eq!(server_url("10.0.0.1", 6443), "https://10.0.0.1:6443");
        assert_eq!(server_url("hub.example", 1), "https://hub.example:1");
    }
}
