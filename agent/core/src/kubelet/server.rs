//! The kubelet's API on a port of its own, for API servers that dial their nodes: its settings in the
//! configuration.
//!
//! Always holds: the port is off unless `port` sets one; a port that is on serves no caller without a client
//! certificate or a token, and nothing that the API server has not allowed. Values that contradict that are
//! refused in a push; in this machine's own files, which earlier releases accepted because they had no
//! effect, the nearest safe value is used. Leaves to others: sockets and files.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use kedge_api::excerpt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::duration;
use super::schema::Beyond;

/// Upstream's defaults: how long an answer of the API server is cached.
const TOKEN_TTL: Duration = Duration::from_secs(2 * 60);
const ALLOWED_TTL: Duration = Duration::from_secs(5 * 60);
const REFUSED_TTL: Duration = Duration::from_secs(30);

/// The only `authorization.mode`.
const WEBHOOK: &str = "Webhook";
const TLS_12: &str = "VersionTLS12";
const TLS_13: &str = "VersionTLS13";

/// The settings of a port that is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// `address` and `port`.
    pub address: SocketAddr,
    /// `authentication.x509.clientCAFile`; `None` if no client certificate is accepted.
    pub client_ca_file: Option<String>,
    /// `authentication.webhook.enabled`: whether bearer tokens are accepted.
    pub takes_tokens: bool,
    /// `authentication.webhook.cacheTTL`.
    pub token_ttl: Duration,
    /// `authorization.webhook.cacheAuthorizedTTL`.
    pub allowed_ttl: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`.
    pub refused_ttl: Duration,
    /// `tlsCertFile` and `tlsPrivateKeyFile`; `None` if the node makes a certificate.
    pub certificate: Option<CertificateFiles>,
    /// `serverTLSBootstrap`: it requests one from the cluster's signer.
    pub requests_certificate: bool,
    /// `tlsMinVersion` is `VersionTLS13`.
    pub only_tls_13: bool,
    /// `enableDebuggingHandlers`: logs, programs in containers, and the configuration.
    pub has_debugging: bool,
}

/// A certificate of the node owner's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFiles {
    /// `tlsCertFile`.
    pub certificate: String,
    /// `tlsPrivateKeyFile`.
    pub key: String,
}

impl ServerSettings {
    /// A port that is on, for tests.
    ///
    /// # Panics
    /// The address is invalid.
    #[cfg(test)]
    pub(crate) fn on(address: &str) -> Self {
        let address: SocketAddr = address.parse().expect("an address and a port");
        let object =
            [("port", Value::from(address.port())), ("address", Value::from(address.ip().to_string()))];
        let object = object.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        Self::read(&object).expect("the port is on")
    }

    /// Reads a complete, type-checked object after [`hold`]; `None` if the port is off.
    pub(super) fn read(object: &Map<String, Value>) -> Option<Self> {
        let port = on(object)?;
        let address = text(object, "address").and_then(|text| text.parse().ok());
        let (certificate, key) = (text(object, "tlsCertFile"), text(object, "tlsPrivateKeyFile"));
        let ttl = |path: &str, default: Duration| {
            let nanos =
                text(object, path).and_then(duration::parse).and_then(|nanos| u64::try_from(nanos).ok());
            // zero stands for the default, as in upstream's defaulting
            nanos.filter(|nanos| *nanos > 0).map_or(default, Duration::from_nanos)
        };
        Some(Self {
            address: SocketAddr::new(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port),
            client_ca_file: text(object, "authentication.x509.clientCAFile").map(str::to_owned),
            takes_tokens: is_not_false(object, "authentication.webhook.enabled"),
            token_ttl: ttl("authentication.webhook.cacheTTL", TOKEN_TTL),
            allowed_ttl: ttl("authorization.webhook.cacheAuthorizedTTL", ALLOWED_TTL),
            refused_ttl: ttl("authorization.webhook.cacheUnauthorizedTTL", REFUSED_TTL),
            certificate: certificate.zip(key).map(|(certificate, key)| CertificateFiles {
                certificate: certificate.into(),
                key: key.into(),
            }),
            requests_certificate: at(object, "serverTLSBootstrap") == Some(&Value::Bool(true))
                && certificate.is_none(),
            only_tls_13: text(object, "tlsMinVersion") == Some(TLS_13),
            has_debugging: is_not_false(object, "enableDebuggingHandlers"),
        })
    }
}

/// The port, if it is on.
fn on(object: &Map<String, Value>) -> Option<u16> {
    let port = object.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    port.filter(|port| *port != 0 && is_not_false(object, "enableServer"))
}

fn at<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    rest.split('.')
        .filter(|name| !name.is_empty())
        .try_fold(object.get(first)?, |value, name| value.get(name))
}

/// Text that is not empty.
fn text<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a str> {
    at(object, path).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Upstream's default of these is true.
fn is_not_false(object: &Map<String, Value>, path: &str) -> bool {
    at(object, path) != Some(&Value::Bool(false))
}

fn set(object: &mut Map<String, Value>, path: &str, value: Value) {
    let mut names = path.split('.');
    let last = names.next_back().unwrap_or_default();
    let parent = names.try_fold(object, |object, name| object.get_mut(name).and_then(Value::as_object_mut));
    if let Some(parent) = parent {
        parent.insert(last.to_owned(), value);
    }
}

/// Replaces values of a port that is on, with which no release has served it, by the nearest valid ones, and
/// reports them. For a value that cannot be guessed (an address, a certificate) the port stays off.
pub(super) fn hold(object: &mut Map<String, Value>, report: &mut dyn FnMut(Beyond)) {
    if on(object).is_none() {
        return;
    }
    let mut beyond = |field: &str, found: &str, expected: &str, nearest: &str| {
        let message = format!("{field} is {found}, expected {expected}");
        report(Beyond { field: field.to_owned(), message, nearest: nearest.to_owned(), was_taken: true });
    };
    let quoted = |text: &str| format!("{:?}", excerpt(text));
    let anonymous = "authentication.anonymous.enabled";
    if at(object, anonymous) == Some(&Value::Bool(true)) {
        beyond(anonymous, "true", "false: no port serves callers without credentials", "false");
        set(object, anonymous, Value::Bool(false));
    }
    let mode = "authorization.mode";
    if let Some(found) = text(object, mode).filter(|mode| *mode != WEBHOOK) {
        beyond(mode, &quoted(found), "Webhook: the API server says what a caller may do", "\"Webhook\"");
        set(object, mode, WEBHOOK.into());
    }
    let version = "tlsMinVersion";
    if let Some(found) = text(object, version).filter(|version| ![TLS_12, TLS_13].contains(version)) {
        beyond(version, &quoted(found), "VersionTLS12 or VersionTLS13", "\"VersionTLS12\"");
        set(object, version, TLS_12.into());
    }
    // no value may be guessed for these: another address or certificate would serve other callers
    let off = "no port";
    let mut is_off = false;
    if let Some(found) = text(object, "address").filter(|text| text.parse::<IpAddr>().is_err()) {
        beyond("address", &quoted(found), "an IP address such as \"0.0.0.0\"", off);
        is_off = true;
    }
    let files = ["tlsCertFile", "tlsPrivateKeyFile", "authentication.x509.clientCAFile"];
    for field in files {
        if let Some(found) = text(object, field).filter(|path| !path.starts_with('/')) {
            beyond(field, &quoted(found), "an absolute path", off);
            is_off = true;
        }
    }
    let [certificate, key] = [files[0], files[1]].map(|field| text(object, field));
    if certificate.is_some() != key.is_some() {
        let (there, missing) = if key.is_none() { (files[0], files[1]) } else { (files[1], files[0]) };
        beyond(there, "set", &format!("{missing} beside it"), off);
        is_off = true;
    }
    if is_off {
        object.insert("port".to_owned(), Value::from(0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LayerText, LocalLayers, Origin, effective};
    use super::*;

    const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    /// The port's settings for a local file with these fields, and the values that were replaced; a push of
    /// them is refused if there were any.
    #[track_caller]
    fn check(fields: &str) -> (Option<ServerSettings>, Vec<String>) {
        let text = format!("{HEADER}{fields}");
        let local = LocalLayers {
            base: Some(LayerText { origin: Origin::File("/c.yaml".into()), text: text.clone().into() }),
            ..LocalLayers::default()
        };
        let found = effective(&local, None).unwrap();
        let held: Vec<String> = found.held.iter().map(ToString::to_string).collect();
        let origin = Origin::ConfigMap { namespace: "n".into(), name: "c".into(), uid: "u".into() };
        let pushed = LayerText { origin, text: text.into() };
        assert_eq!(effective(&LocalLayers::default(), Some(&pushed)).is_ok(), held.is_empty(), "{held:?}");
        (found.config.server, held)
    }

    #[test]
    fn port_is_off_unless_named() {
        assert_eq!(check(""), (None, Vec::new()));
        assert_eq!(check("port: 0\nauthorization: {mode: AlwaysAllow}\n"), (None, Vec::new()));
        assert_eq!(check("port: 10250\nenableServer: false\n"), (None, Vec::new()));
    }

    #[test]
    fn port_has_the_defaults_of_a_kubelet() {
        // as kubeadm writes it
        let (server, held) = check(
            "port: 10250\nauthentication:\n  anonymous: {enabled: false}\n  webhook: {cacheTTL: 0s, enabled: true}\n  \
             x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}\nauthorization:\n  mode: Webhook\n  \
             webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}\n",
        );
        let server = server.unwrap();
        assert_eq!((server.address.to_string().as_str(), held), ("0.0.0.0:10250", Vec::new()));
        assert_eq!(server.client_ca_file.as_deref(), Some("/etc/kubernetes/pki/ca.crt"));
        assert_eq!(
            [server.token_ttl, server.allowed_ttl, server.refused_ttl].map(|ttl| ttl.as_secs()),
            [120, 300, 30]
        );
        assert!(
            server.takes_tokens
                && server.has_debugging
                && !server.only_tls_13
                && server.certificate.is_none()
        );
    }

    #[test]
    fn open_port_is_refused_and_held_in_old_files() {
        let held = |fields: &str, expect: &str| {
            let (server, held) = check(&format!("port: 10250\n{fields}\n"));
            assert!(held.len() == 1 && held[0].contains(expect), "{held:?}");
            server
        };
        assert!(
            held("authentication: {anonymous: {enabled: true}}", "enabled is true, expected false").is_some()
        );
        assert!(held("authorization: {mode: AlwaysAllow}", "is \"AlwaysAllow\", expected Webhook").is_some());
        assert!(held("tlsMinVersion: VersionTLS10", "expected VersionTLS12 or VersionTLS13").is_some());
        assert!(held("address: everywhere", "expected an IP address").is_none());
        assert!(held("tlsCertFile: /c.pem", "tlsCertFile is set, expected tlsPrivateKeyFile").is_none());
        assert!(
            held("authentication: {x509: {clientCAFile: ca.pem}}", "expected an absolute path").is_none()
        );
        assert!(held("readOnlyPort: 10255", "readOnlyPort is 10255, expected 0 to 0").is_some());
    }
}
