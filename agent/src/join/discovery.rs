//! Finds the authority of a cluster of which a new node knows only the address, a token and a pin, as
//! kubeadm's discovery does.
//!
//! The ConfigMap `kube-public/cluster-info` is read twice. The first time the server is not trusted: its
//! authority must have a pinned public key. A signature by this token, if there is one, must be right;
//! without a pin there must be one. The second time the server's certificate must verify under the pinned
//! authority, and the content is accepted. Always holds: nothing secret is sent; each failure names the
//! check. Leaves to others: the connection (`net::unknown_server`), trying again (`join`).

use crate::identity::certificate::{EXPLICIT_VERSION, SEQUENCE, value};
use crate::join::token::Token;
use crate::net::error::NetError;
use crate::net::kubeconfig::{ServerAddress, certificate_authority};
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::WallClock;
use crate::net::unknown_server::{self, CLUSTER_INFO, CLUSTER_INFO_BYTES, Trust};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::{digest, hmac};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

/// SHA-256 of a public key.
pub type Pin = [u8; 32];

/// The authorities of a cluster.
pub(crate) struct Authorities {
    /// All, as PEM in base64.
    pub(crate) text: String,
    /// Those with a pinned key; all, if nothing was pinned.
    pub(crate) trusted: Vec<CertificateDer<'static>>,
}

/// Why the authorities are not known.
#[derive(Debug)]
pub(crate) enum Fault {
    /// No answer: worth trying again.
    NoAnswer(String),
    /// A check failed.
    Final(String),
}

/// `pins`: of the authority. Without pins any authority is accepted that the token has signed.
pub(crate) fn discover(
    server: &ServerAddress,
    token: &Token,
    pins: &[Pin],
    clock: &WallClock,
    proxies: &ProxyEnvironment,
) -> Result<Authorities, Fault> {
    let look = |trust: Trust<'_>| {
        let seen =
            unknown_server::get(server, CLUSTER_INFO, CLUSTER_INFO_BYTES, trust, (clock.clone(), proxies));
        judge(&seen.map_err(fault)?, token, pins).map_err(Fault::Final)
    };
    let claimed = look(Trust::Anything)?;
    look(Trust::Only(&claimed.trusted))
}

fn fault(error: NetError) -> Fault {
    match &error {
        NetError::Unreachable { .. } | NetError::Refused { status: 429 | 500.., .. } => {
            Fault::NoAnswer(error.to_string())
        }
        NetError::Untrusted { .. } => Fault::Final(format!(
            "{error}: the server has the authority's certificate and none of its own that verifies under it for this address"
        )),
        NetError::Unauthorized { .. } | NetError::Refused { status: 403 | 404, .. } => Fault::Final(format!(
            "{error}: a server that nodes can join shows this to everybody; is it a kedge-hub or a cluster made by kubeadm, and not too old?"
        )),
        _ => Fault::Final(error.to_string()),
    }
}

/// The authorities in the ConfigMap, if the pin and the token vouch for them.
fn judge(config_map: &[u8], token: &Token, pins: &[Pin]) -> Result<Authorities, String> {
    let object: Value = serde_json::from_slice(config_map)
        .map_err(|error| format!("cluster-info is not the JSON of a ConfigMap: {error}"))?;
    let part = |name: &str| object["data"][name].as_str();
    let kubeconfig = part("kubeconfig").ok_or("cluster-info has no kubeconfig")?;
    let pem = certificate_authority(kubeconfig).ok_or("cluster-info has no certificate-authority-data")?;
    let mut trusted = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        trusted.push(certificate.map_err(|error| format!("the authority in cluster-info: {error}"))?);
    }
    let seen: Vec<String> = trusted.iter().filter_map(|authority| pin(authority)).map(shown).collect();
    if !pins.is_empty() {
        trusted.retain(|authority| is_pinned(authority, pins));
    }
    if trusted.is_empty() {
        let expected: Vec<String> = pins.iter().copied().map(shown).collect();
        return Err(format!(
            "the authority's public key has the hash {}, expected {}: this is not the cluster that the line was made for, \
             or somebody is between",
            seen.join(", "),
            expected.join(", ")
        ));
    }
    // tokens of a batch sign nothing: the pin alone vouches, and the first request shows whether the server
    // knows the token
    match part(&format!("jws-kubeconfig-{}", token.id)) {
        Some(signature) if has_signed(token, signature, kubeconfig) => {}
        Some(_) => {
            return Err(format!(
                "the signature of cluster-info is not by this token {}: is its secret complete?",
                token.id
            ));
        }
        None if pins.is_empty() => {
            return Err(format!(
                "the token {} has not signed cluster-info: it is used up, expired, revoked or one of a batch, and without \
                 --ca-cert-hash nothing else vouches for the server",
                token.id
            ));
        }
        None => {}
    }
    Ok(Authorities { text: BASE64_STANDARD.encode(pem), trusted })
}

/// Whether the key of this authority is one of these.
pub(crate) fn is_pinned(certificate: &CertificateDer<'_>, pins: &[Pin]) -> bool {
    pin(certificate).is_some_and(|pin| pins.contains(&pin))
}

/// The SubjectPublicKeyInfo of a certificate, in DER (RFC 5280 section 4.1).
fn public_key_info(der: &[u8]) -> Option<&[u8]> {
    let (SEQUENCE, certificate, _) = value(der)? else { return None };
    let (SEQUENCE, mut fields, _) = value(certificate)? else { return None };
    if let (EXPLICIT_VERSION, _, rest) = value(fields)? {
        fields = rest;
    }
    // serial number, signature algorithm, issuer, validity, subject
    for _ in 0..5 {
        fields = value(fields)?.2;
    }
    let (SEQUENCE, _, rest) = value(fields)? else { return None };
    fields.get(..fields.len() - rest.len())
}

fn pin(certificate: &CertificateDer<'_>) -> Option<Pin> {
    let digest = digest::digest(&digest::SHA256, public_key_info(certificate)?);
    digest.as_ref().try_into().ok()
}

fn shown(pin: Pin) -> String {
    let hex: String = pin.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// `sha256:HEX`, several separated by commas.
///
/// # Errors
/// One of them is not that.
pub fn pins(text: &str) -> Result<Vec<Pin>, String> {
    let one = |text: &str| {
        let hex = text
            .strip_prefix("sha256:")
            .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let mut pin = Pin::default();
        for (at, byte) in pin.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(pin)
    };
    let pins = text
        .split(',')
        .map(|text| one(text).ok_or_else(|| format!("{text:?}, expected sha256: and 64 hexadecimal digits")));
    pins.collect()
}

/// Whether a detached JWS (RFC 7515, appendix F) is this token's, with the one algorithm that is used for it.
fn has_signed(token: &Token, signature: &str, payload: &str) -> bool {
    let Some((head, mac)) = signature.split_once("..") else { return false };
    let decoded = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    let header =
        decoded(head).and_then(|head| serde_json::from_slice::<Value>(&head).ok()).unwrap_or_default();
    let signed = format!("{head}.{}", BASE64_URL_SAFE_NO_PAD.encode(payload));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    header["alg"] == "HS256"
        && header["kid"] == token.id.as_str()
        && decoded(mac).is_some_and(|mac| hmac::verify(&key, signed.as_bytes(), &mac).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HUB: &str = "abc123.0123456789abcdef";

    fn sign(token: &Token, alg: &str, payload: &str) -> String {
        let head = BASE64_URL_SAFE_NO_PAD.encode(json!({"alg": alg, "kid": token.id}).to_string());
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
        let signed = format!("{head}.{}", BASE64_URL_SAFE_NO_PAD.encode(payload));
        format!("{head}..{}", BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
    }

    /// A bundle of as many authorities, its ConfigMap, and their pins.
    fn cluster(authorities: usize) -> (Value, Vec<Pin>) {
        let made =
            (0..authorities).map(|_| rcgen::generate_simple_self_signed(["hub".to_owned()]).unwrap().cert);
        let made: Vec<_> = made.collect();
        let pem: String = made.iter().map(rcgen::Certificate::pem).collect();
        // as kubeadm writes it
        let kubeconfig = format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: https://hub:6443\n  name: \"\"\n\
             contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
            BASE64_STANDARD.encode(pem)
        );
        let signature = sign(&Token::parse(HUB).unwrap(), "HS256", &kubeconfig);
        let pins = made.iter().map(|authority| pin(authority.der()).unwrap()).collect();
        (json!({"data": {"kubeconfig": kubeconfig, "jws-kubeconfig-abc123": signature}}), pins)
    }

    #[track_caller]
    fn check(object: &Value, token: &str, pins: &[Pin], expect: &str) {
        let found = judge(object.to_string().as_bytes(), &Token::parse(token).unwrap(), pins);
        let found = found.map_or_else(|why| why, |found| format!("trusts {}", found.trusted.len()));
        assert!(found.contains(expect), "{found}, expected {expect}");
        assert!(!found.contains("0123456789abcdef"), "a secret: {found}");
    }

    #[test]
    fn failed_check_is_named() {
        let (object, pins) = cluster(1);
        check(&object, HUB, &pins, "trusts 1");
        check(&object, HUB, &[], "trusts 1");
        let (_, other) = cluster(1);
        check(&object, HUB, &other, &format!("{}, expected {}", shown(pins[0]), shown(other[0])));
        check(&object, "abc123.0123456789abcdee", &pins, "not by this token abc123");
        check(&object, "zzz123.0123456789abcdef", &[], "the token zzz123 has not signed");
        check(&object, "zzz123.0123456789abcdef", &pins, "trusts 1");
        let with = |name: &str, value: Value| {
            let mut changed = object.clone();
            changed["data"][name] = value;
            changed
        };
        check(&with("kubeconfig", Value::Null), HUB, &pins, "has no kubeconfig");
        check(&with("kubeconfig", json!("clusters: []")), HUB, &pins, "no certificate-authority-data");
        let changed = object["data"]["kubeconfig"].as_str().unwrap().replace("hub:6443", "hub:6444");
        check(&with("kubeconfig", json!(changed)), HUB, &pins, "not by this token");
        let text = object["data"]["kubeconfig"].as_str().unwrap();
        let none = sign(&Token::parse(HUB).unwrap(), "none", text);
        for wrong in ["", "..", "a.b.c", &none, &none.replace("..", ".")] {
            check(&with("jws-kubeconfig-abc123", json!(wrong)), HUB, &pins, "not by this token");
        }
        check(&json!([]), HUB, &pins, "has no kubeconfig");
    }

    #[test]
    fn authority_beside_the_pinned_one_is_not_trusted_yet() {
        let (object, pins) = cluster(3);
        check(&object, HUB, &pins[1..2], "trusts 1");
        check(&object, HUB, &pins[1..], "trusts 2");
        let all = judge(object.to_string().as_bytes(), &Token::parse(HUB).unwrap(), &pins[..1]).unwrap();
        let pem = BASE64_STANDARD.decode(all.text).unwrap();
        assert_eq!(CertificateDer::pem_slice_iter(&pem).count(), 3, "all are handed on");
    }

    #[test]
    fn pins_are_read_as_kubeadm_prints_them() {
        let hex = "0123456789abcdef".repeat(4);
        let read = pins(&format!("sha256:{hex},sha256:{}", hex.to_uppercase())).unwrap();
        assert_eq!(
            read.iter().copied().map(shown).collect::<Vec<_>>(),
            [format!("sha256:{hex}"), format!("sha256:{hex}")]
        );
        for wrong in
            ["", &hex, "sha256:", &format!("sha256:{}", &hex[1..]), &format!("sha256:+{}", &hex[1..])]
        {
            assert!(pins(wrong).is_err(), "{wrong}");
        }
    }
}
