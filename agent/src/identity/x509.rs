//! The few structures of X.509 that a node needs, in DER (RFC 5280, 5915): a self-signed certificate and
//! requests to write, and the subject of a certificate to read.
//!
//! Always holds: no input panics; an unreadable subject counts as missing. Leaves verification to rustls.

use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::identity::certificate::{EXPLICIT_VERSION, SEQUENCE, value};

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SET: u8 = 0x31;
const TRUE: [u8; 3] = [0x01, 0x01, 0xff];
const EXPLICIT_3: u8 = 0xa3;
/// Tag of a GeneralName.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const PRIME_256_V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// A certificate's subject, as Kubernetes reads it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The common name; the last one if there are several.
    pub(crate) name: String,
    /// The organizations.
    pub(crate) groups: Vec<String>,
}

/// The subject of a certificate in DER.
pub(crate) fn subject(der: &[u8]) -> Option<Subject> {
    let (SEQUENCE, certificate, _) = value(der)? else { return None };
    let (SEQUENCE, mut fields, _) = value(certificate)? else { return None };
    if let (EXPLICIT_VERSION, _, rest) = value(fields)? {
        fields = rest;
    }
    // serial number, signature algorithm, issuer, validity
    for _ in 0..4 {
        fields = value(fields)?.2;
    }
    let (SEQUENCE, mut names, _) = value(fields)? else { return None };
    let mut subject = Subject::default();
    while !names.is_empty() {
        let (SET, mut set, rest) = value(names)? else { return None };
        names = rest;
        while !set.is_empty() {
            let (SEQUENCE, pair, rest) = value(set)? else { return None };
            set = rest;
            let (OBJECT_ID, sort, pair) = value(pair)? else { return None };
            if sort != COMMON_NAME && sort != ORGANIZATION {
                continue;
            }
            let (UTF8_STRING | PRINTABLE_STRING | IA5_STRING, text, _) = value(pair)? else { return None };
            let text = core::str::from_utf8(text).ok()?.to_owned();
            if sort == COMMON_NAME {
                subject.name = text;
            } else {
                subject.groups.push(text);
            }
        }
    }
    Some(subject)
}

/// A new key and a certificate that it signs itself, for a server of this name, in PEM. It never expires:
/// nobody verifies it by its issuer.
///
/// # Errors
/// The machine has no randomness.
pub(crate) fn self_signed(name: &str) -> Result<String, ring::error::Unspecified> {
    let names = match name.parse() {
        Ok(address) => Names { addresses: vec![address], ..Names::default() },
        Err(_) => Names { dns: vec![name.to_owned()], ..Names::default() },
    };
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random)
        .map_err(|_| ring::error::Unspecified)?;
    let mut serial = [0; 16];
    random.fill(&mut serial)?;
    // positive, and in its shortest form
    serial[0] = serial[0] & 0x3f | 0x40;
    let subject = sequence(&[&one(
        SET,
        &sequence(&[&one(OBJECT_ID, COMMON_NAME), &one(UTF8_STRING, name.as_bytes())]),
    )]);
    let validity = sequence(&[&one(UTC_TIME, b"000101000000Z"), &one(GENERALIZED_TIME, b"99991231235959Z")]);
    let to_sign = sequence(&[
        &one(EXPLICIT_VERSION, &one(INTEGER, &[2])),
        &one(INTEGER, &serial),
        &algorithm(),
        &subject,
        &validity,
        &subject,
        &public_key(&key),
        &one(EXPLICIT_3, &extensions(&names)),
    ]);
    let signature = key.sign(&random, &to_sign)?;
    let certificate = sequence(&[&to_sign, &algorithm(), &bits(signature.as_ref())]);
    Ok(pem("CERTIFICATE", &certificate) + &pem("PRIVATE KEY", pkcs8.as_ref()))
}

/// The names in a server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) dns: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// A new key in PEM.
///
/// # Errors
/// The machine has no randomness.
pub(crate) fn new_key() -> Result<String, ring::error::Unspecified> {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())?;
    Ok(pem("PRIVATE KEY", pkcs8.as_ref()))
}

/// A request in PEM (PKCS 10) for a certificate of a node's server, and its name, which is derived from the
/// key; `None` if the key is not one of ours.
pub(crate) fn request(node: &str, names: &Names, key: &[u8]) -> Option<(String, String)> {
    let key = ours(&PrivateKeyDer::from_pem_slice(key).ok()?)?;
    let attribute = sequence(&[&one(OBJECT_ID, EXTENSION_REQUEST), &one(SET, &extensions(names))]);
    let request = request_of(&node_subject(node), &attribute, &key)?;
    let digest = ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref());
    Some((format!("kedge-serving-{}", hex(&digest.as_ref()[..10])), request))
}

/// A request in PEM (PKCS 10) for the node's own certificate, and its name; `None` if the key is not one of
/// ours. The name is derived from the key and `salt`: the same request again has the same name.
pub(crate) fn client_request(node: &str, key: &PrivateKeyDer<'_>, salt: &str) -> Option<(String, String)> {
    let key = ours(key)?;
    let subject = node_subject(node);
    let request = request_of(&subject, &[], &key)?;
    let named = [&public_key(&key), &subject, b"client".as_slice(), salt.as_bytes()].concat();
    let digest = ring::digest::digest(&ring::digest::SHA256, &named);
    Some((format!("node-csr-{}", hex(&digest.as_ref()[..20])), request))
}

/// The SubjectPublicKeyInfo of a key, if it is one of ours.
pub(crate) fn public_key_of(key: &PrivateKeyDer<'_>) -> Option<Vec<u8>> {
    Some(public_key(&ours(key)?))
}

fn ours(key: &PrivateKeyDer<'_>) -> Option<EcdsaKeyPair> {
    let PrivateKeyDer::Pkcs8(pkcs8) = key else { return None };
    let (der, random) = (pkcs8.secret_pkcs8_der(), SystemRandom::new());
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random).ok()
}

/// The subject of a node's certificate.
fn node_subject(node: &str) -> Vec<u8> {
    let part = |sort: &[u8], text: &str| {
        one(SET, &sequence(&[&one(OBJECT_ID, sort), &one(UTF8_STRING, text.as_bytes())]))
    };
    sequence(&[
        &part(ORGANIZATION, kedge_api::NODE_GROUP),
        &part(COMMON_NAME, &format!("{}{node}", kedge_api::NODE_USER_PREFIX)),
    ])
}

/// A request in PEM (PKCS 10).
fn request_of(subject: &[u8], attributes: &[u8], key: &EcdsaKeyPair) -> Option<String> {
    let attributes = one(EXPLICIT_VERSION, attributes);
    let to_sign = sequence(&[&one(INTEGER, &[0]), subject, &public_key(key), &attributes]);
    let signature = key.sign(&SystemRandom::new(), &to_sign).ok()?;
    let request = sequence(&[&to_sign, &algorithm(), &bits(signature.as_ref())]);
    Some(pem("CERTIFICATE REQUEST", &request))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn extensions(names: &Names) -> Vec<u8> {
    let addresses = names.addresses.iter().map(|address| match address {
        IpAddr::V4(address) => one(IP_ADDRESS, &address.octets()),
        IpAddr::V6(address) => one(IP_ADDRESS, &address.octets()),
    });
    let alternative: Vec<u8> =
        names.dns.iter().map(|name| one(DNS_NAME, name.as_bytes())).chain(addresses).flatten().collect();
    let extension = |id: &[u8], critical: &[u8], content: &[u8]| {
        sequence(&[&one(OBJECT_ID, id), critical, &one(OCTET_STRING, content)])
    };
    sequence(&[
        // digitalSignature
        &extension(KEY_USAGE, &TRUE, &one(BIT_STRING, &[7, 0x80])),
        &extension(EXTENDED_KEY_USAGE, &[], &sequence(&[&one(OBJECT_ID, SERVER_AUTH)])),
        &extension(ALTERNATIVE_NAME, &[], &sequence(&[&alternative])),
    ])
}

fn algorithm() -> Vec<u8> {
    sequence(&[&one(OBJECT_ID, ECDSA_WITH_SHA256)])
}

fn public_key(key: &EcdsaKeyPair) -> Vec<u8> {
    let algorithm = sequence(&[&one(OBJECT_ID, EC_PUBLIC_KEY), &one(OBJECT_ID, PRIME_256_V1)]);
    sequence(&[&algorithm, &bits(key.public_key().as_ref())])
}

/// A bit string of whole bytes.
fn bits(bytes: &[u8]) -> Vec<u8> {
    one(BIT_STRING, &[&[0], bytes].concat())
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    one(SEQUENCE, &parts.concat())
}

fn one(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut der = vec![tag];
    match content.len() {
        0 => der.push(0),
        1..0x80 => der.extend(length),
        _ => {
            der.push(0x80 | u8::try_from(length.len()).unwrap_or(8));
            der.extend(length);
        }
    }
    der.extend_from_slice(content);
    der
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

/// The common name of a certificate in DER.
pub(crate) fn subject_name(der: &[u8]) -> Option<String> {
    subject(der).map(|subject| subject.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use rustls::pki_types::CertificateDer;

    #[test]
    fn subject_is_read_and_no_input_panics() {
        let mut params = CertificateParams::new(vec!["x".into()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(DnType::CountryName, "NO");
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver-kubelet-client");
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let expect =
            Subject { name: "kube-apiserver-kubelet-client".into(), groups: vec!["system:masters".into()] };
        assert_eq!(subject(&der), Some(expect));
        for at in 0..der.len() {
            subject(&der[..at]);
            let mut flipped = der.clone();
            flipped[at] ^= 0xff;
            subject(&flipped);
        }
    }

    #[test]
    fn self_signed_certificate_is_one_for_rustls() {
        for name in ["edge-1", "192.0.2.7", &"a".repeat(253)] {
            let pem = self_signed(name).unwrap();
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            assert_eq!(subject(&certificate), Some(Subject { name: name.into(), groups: Vec::new() }));
            let mut roots = rustls::RootCertStore::empty();
            roots.add(certificate.clone()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key);
            assert!(config.is_ok(), "{name}: the key is the certificate's");
        }
    }
}
