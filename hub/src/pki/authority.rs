//! The hub's own certificate authority and every kind of certificate it signs.
//!
//! Always holds: the CA is created once and never replaced by the program; key and certificate are one file,
//! so a CA cannot be half present. Every certificate has one use: a serving certificate is invalid for
//! clients, a client's is invalid for servers, and none is a CA. Left to others: files and renewal (`super`).
//!
//! Time. Boards without a clock battery start in 1970, or on the day their image was built, and must reach
//! the hub before they can learn the time. So every certificate is valid from 1970 on: a `notBefore` protects
//! nobody here (the CA did not exist before it either) and would lock such a board out. The same is true of a
//! hub that starts with its clock unset: its certificates then expire as if signed on the day this program
//! was written (`EARLIEST_NOW`).

use std::net::IpAddr;
use std::path::Path;

use kedge_api::serial::{self, Serial};
use kedge_api::{ADMIN_GROUP, NODE_GROUP, NODE_USER_PREFIX};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::error::PkiError;
use crate::files::{self, Flush};
use kedge_hub_core::identity::certificate_request::Request;

/// Start of every certificate's validity; see the module's paragraph on time.
const NOT_BEFORE: OffsetDateTime = datetime!(1970-01-01 00:00:00 UTC);
/// "No well-defined expiration date" in RFC 5280 4.1.2.5. An expired CA would lock out every device, and
/// nobody could give a device in the field a new one.
const AUTHORITY_NOT_AFTER: OffsetDateTime = datetime!(9999-12-31 23:59:59 UTC);
/// No hub runs before this: an earlier clock is an unset clock.
const EARLIEST_NOW: OffsetDateTime =
    NOT_BEFORE.saturating_add(Duration::seconds(kedge_api::EARLIEST_NOW.as_secs().cast_signed()));

const YEAR: Duration = Duration::days(365);
/// Serving certificates outlast the largest clock error we promise to survive on a node (twenty years ahead).
/// A short validity would gain nothing: this key is in the same directory as the CA's, so a thief of one has
/// the other.
pub(super) const SERVING_LIFE: Duration = Duration::seconds(25 * YEAR.whole_seconds());
/// The administrator's credential; the hub renews its own copy, other copies stay valid for this long.
pub(super) const ADMIN_LIFE: Duration = Duration::seconds(10 * YEAR.whole_seconds());

/// The user in `admin.kubeconfig`.
pub const ADMIN_USER: &str = "admin";
/// The user, and the group, of the hub's requests to itself. It has the rights of any identity, and the hub
/// signs no certificate request with such a name.
pub const PROBE_USER: &str = "system:kedge-hub";

/// A certificate with its key. The chain consists of this certificate alone, because clients know the CA.
#[derive(Debug)]
pub(super) struct Credential {
    pub(super) certificate: CertificateDer<'static>,
    key: KeyPair,
}

/// The CA, with the key that it signs with.
pub(super) struct Authority {
    own: Credential,
    /// Its name and key, signed by its predecessor: for clients that know that one alone.
    crossed: Option<CertificateDer<'static>>,
}

impl Credential {
    /// PEM of the certificate alone.
    pub(super) fn certificate_pem(&self) -> String {
        certificate_pem(&self.certificate)
    }

    /// PEM (PKCS 8) of the key alone.
    pub(super) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The key in the form that rustls needs.
    pub(super) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialize_der()).into()
    }

    /// Writes key and certificate to one file, with mode 0600 from its first byte.
    pub(super) fn save(&self, path: &Path, flush: Flush) -> Result<(), PkiError> {
        let content = format!("{}{}", self.key_pem(), self.certificate_pem());
        files::write(path, content.as_bytes(), files::SECRET, flush)
            .map_err(|source| PkiError::Unwritable { path: path.to_owned(), source })
    }

    /// Reads the file of `save`. A key that does not match the certificate is an error here, not in a
    /// handshake.
    pub(super) fn load(path: &Path) -> Result<Credential, PkiError> {
        let content =
            files::read(path).map_err(|source| PkiError::Unreadable { path: path.to_owned(), source })?;
        Credential::read(path, &content)
    }

    /// As [`load`](Self::load), from a content already read.
    fn read(path: &Path, content: &[u8]) -> Result<Credential, PkiError> {
        let corrupt = |why: String| PkiError::Corrupt { path: path.to_owned(), why };
        let certificate = CertificateDer::from_pem_slice(content)
            .map_err(|error| corrupt(format!("expected a PEM certificate: {error}")))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(content)
            .map_err(|error| corrupt(format!("expected a PEM private key: {error}")))?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256)
            .map_err(|error| corrupt(format!("expected an ECDSA P-256 key: {error}")))?;
        let parsed = parse(&certificate).map_err(corrupt)?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(corrupt("the key does not belong to the certificate".to_owned()));
        }
        Ok(Credential { certificate, key })
    }

    /// How long it is still valid at `now`; negative once expired.
    pub(super) fn remaining(&self, now: OffsetDateTime) -> Result<Duration, String> {
        Ok(parse(&self.certificate)?.validity().not_after.to_datetime() - now.max(EARLIEST_NOW))
    }

    /// Whether it names every one of `names` (host names or IP addresses).
    pub(super) fn covers(&self, names: &[String]) -> Result<bool, String> {
        let parsed = parse(&self.certificate)?;
        let alternative = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
        let present: Vec<String> = alternative
            .iter()
            .flat_map(|extension| &extension.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some((*name).to_owned()),
                GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
                _ => None,
            })
            .collect();
        Ok(names.iter().all(|name| present.contains(&canonical(name))))
    }
}

impl Authority {
    /// A new CA. Its name carries eight random digits, so that a client which still trusts an older hub's CA
    /// says "unknown authority" and not "bad signature".
    pub(super) fn make() -> Result<Authority, PkiError> {
        let key = new_key()?;
        let params = authority_params(&format!("kedge-hub-ca-{}", random_digits()?));
        let certificate =
            params.self_signed(&key).map_err(|source| PkiError::Signing { what: "CA", source })?;
        Ok(Authority { own: Credential { certificate: certificate.der().clone(), key }, crossed: None })
    }

    /// A new CA, which this one vouches for.
    pub(super) fn make_successor(&self) -> Result<Authority, PkiError> {
        let mut new = Authority::make()?;
        let params = authority_params(&common_name(&new.own.certificate).unwrap_or_default());
        new.crossed = Some(self.certify("CA", params, &new.own.key)?);
        Ok(new)
    }

    /// The CA from its file; any fault is an error, never a new CA.
    pub(super) fn load(path: &Path) -> Result<Authority, PkiError> {
        let content =
            files::read(path).map_err(|source| PkiError::Unreadable { path: path.to_owned(), source })?;
        Authority::read(path, &content)
    }

    /// As [`load`](Self::load), from a content already read.
    pub(super) fn read(path: &Path, content: &[u8]) -> Result<Authority, PkiError> {
        let own = Credential::read(path, content)?;
        let corrupt = |why: String| PkiError::Corrupt { path: path.to_owned(), why };
        let parsed = parse(&own.certificate).map_err(corrupt)?;
        if !parsed.is_ca() {
            return Err(corrupt("the certificate is no CA".to_owned()));
        }
        parsed
            .verify_signature(None)
            .map_err(|_| corrupt("the certificate is not signed by its key".to_owned()))?;
        let crossed = CertificateDer::pem_slice_iter(content).nth(1).and_then(Result::ok);
        Ok(Authority { own, crossed })
    }

    /// Durable once it returns, because certificates are signed from then on.
    pub(super) fn save(&self, path: &Path) -> Result<(), PkiError> {
        let crossed = self.crossed.as_ref().map(certificate_pem).unwrap_or_default();
        let content = format!("{}{}{crossed}", self.own.key_pem(), self.own.certificate_pem());
        files::write(path, content.as_bytes(), files::SECRET, Flush::Now)
            .map_err(|source| PkiError::Unwritable { path: path.to_owned(), source })
    }

    /// Its name and key, signed by its predecessor.
    pub(super) fn crossed(&self) -> Option<&CertificateDer<'static>> {
        self.crossed.as_ref()
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.own.certificate
    }

    #[cfg(test)]
    pub(super) fn certificate_pem(&self) -> String {
        self.own.certificate_pem()
    }

    /// A certificate for the hub's own address, for `names` and nothing else.
    pub(super) fn issue_serving(
        &self,
        names: &[String],
        now: OffsetDateTime,
    ) -> Result<Credential, PkiError> {
        let mut params = params("kedge-hub", &[], expiry(now, SERVING_LIFE));
        for name in names {
            params.subject_alt_names.push(alternative_name(name)?);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign("serving", params)
    }

    /// A client certificate for the administrator.
    pub(super) fn issue_admin(&self, number: u64, now: OffsetDateTime) -> Result<Credential, PkiError> {
        self.issue_client("admin", (ADMIN_USER, &[ADMIN_GROUP]), number, now, ADMIN_LIFE)
    }

    /// A client certificate for one node. RFC 5280 asks for at most 64 characters in a common name; a long
    /// node name breaks that, as it does upstream, and both rustls and Go accept it.
    pub(super) fn issue_node(
        &self,
        node: &str,
        number: u64,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<Credential, PkiError> {
        let user = format!("{NODE_USER_PREFIX}{node}");
        self.issue_client("node", (&user, &[NODE_GROUP]), number, now, life)
    }

    /// A client certificate for one person, with the rights that bindings give to the name.
    pub(super) fn issue_user(
        &self,
        user: &str,
        number: u64,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<Credential, PkiError> {
        self.issue_client("user", (user, &[]), number, now, life)
    }

    /// A client certificate for the hub's probe of itself. It has no number: it never leaves the process.
    pub(super) fn issue_probe(&self, now: OffsetDateTime) -> Result<Credential, PkiError> {
        self.issue_client("probe", (PROBE_USER, &[PROBE_USER]), 0, now, SERVING_LIFE)
    }

    fn issue_client(
        &self,
        what: &'static str,
        (user, groups): (&str, &[&str]),
        number: u64,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<Credential, PkiError> {
        let mut params = params(user, groups, expiry(now, life));
        params.serial_number = Some(serial_number(number, now)?);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(what, params)
    }

    /// A client certificate (PEM) for the key of a request that was checked.
    pub(super) fn sign_client(
        &self,
        asked: &Request,
        enciphers: bool,
        number: u64,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<String, PkiError> {
        let what = "client";
        let groups: Vec<&str> = asked.organizations.iter().map(String::as_str).collect();
        let mut params = params(&asked.common_name, &groups, expiry(now, life));
        params.serial_number = Some(serial_number(number, now)?);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if enciphers {
            params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
        }
        let key = SubjectPublicKeyInfo::from_der(&asked.public_key)
            .map_err(|source| PkiError::Signing { what, source })?;
        Ok(certificate_pem(&self.certify(what, params, &key)?))
    }

    fn sign(&self, what: &'static str, params: CertificateParams) -> Result<Credential, PkiError> {
        let key = new_key()?;
        Ok(Credential { certificate: self.certify(what, params, &key)?, key })
    }

    fn certify(
        &self,
        what: &'static str,
        params: CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<CertificateDer<'static>, PkiError> {
        let signing = |source| PkiError::Signing { what, source };
        let issuer = Issuer::from_ca_cert_der(&self.own.certificate, &self.own.key).map_err(signing)?;
        let certificate = params.signed_by(key, &issuer).map_err(signing)?;
        Ok(certificate.der().clone())
    }

    /// True if this CA signed the credential: one left by an older CA must not be served.
    pub(super) fn signed(&self, credential: &Credential) -> Result<bool, String> {
        let own = parse(&self.own.certificate)?;
        let other = parse(&credential.certificate)?;
        Ok(other.issuer() == own.subject() && other.verify_signature(Some(own.public_key())).is_ok())
    }
}

/// One spelling per name, as in a certificate: lower case, addresses in their shortest form.
pub(super) fn canonical(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

fn expiry(now: OffsetDateTime, life: Duration) -> OffsetDateTime {
    now.max(EARLIEST_NOW).checked_add(life).unwrap_or(AUTHORITY_NOT_AFTER).min(AUTHORITY_NOT_AFTER)
}

fn params(user: &str, groups: &[&str], not_after: OffsetDateTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    for group in groups {
        name.push(DnType::OrganizationName, *group);
    }
    name.push(DnType::CommonName, user);
    params.distinguished_name = name;
    params.not_before = NOT_BEFORE;
    params.not_after = not_after;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

/// A CA. Its successor's certificate is signed by it, and that one's by the next, so paths have no limit.
fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(name, &[], AUTHORITY_NOT_AFTER);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The common name of a certificate's subject.
pub(super) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = parse(certificate).ok()?;
    parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).map(str::to_owned)
}

/// The common name of the authority that signed a certificate.
pub fn issuer_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = parse(certificate).ok()?;
    parsed.issuer().iter_common_name().next().and_then(|name| name.as_str().ok()).map(str::to_owned)
}

fn alternative_name(name: &str) -> Result<SanType, PkiError> {
    let name = canonical(name);
    match name.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => {
            let text = name.as_str().try_into().map_err(|_| PkiError::BadName { name: name.clone() })?;
            Ok(SanType::DnsName(text))
        }
    }
}

fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|source| PkiError::Signing { what: "key", source })
}

fn random_digits() -> Result<String, PkiError> {
    Ok(random::<4>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A serial number with the issue number of a client's certificate, and for people the time by the clock that
/// its expiry is counted from.
fn serial_number(number: u64, now: OffsetDateTime) -> Result<SerialNumber, PkiError> {
    let issued_micros = now.max(EARLIEST_NOW).unix_timestamp().saturating_mul(1_000_000);
    Ok(serial::write(&Serial { number, issued_micros }, random()?).to_vec().into())
}

fn random<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| PkiError::Tls(rustls::Error::FailedToGetRandomBytes))?;
    Ok(bytes)
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err("bytes follow the certificate".to_owned()),
        Err(error) => Err(format!("expected an X.509 certificate: {error}")),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

pub(super) fn certificate_pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    // 64 characters a line: RFC 7468
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn certificates_are_valid_from_1970_for_over_twenty_years() {
        let authority = Authority::make().unwrap();
        let now = datetime!(2030-06-01 00:00:00 UTC);
        let serving = authority.issue_serving(&strings(&["localhost"]), now).unwrap();
        let node = authority.issue_node("edge-1", 1, now, SERVING_LIFE).unwrap();
        for credential in [&authority.own, &serving, &node] {
            let parsed = parse(&credential.certificate).unwrap();
            assert_eq!(parsed.validity().not_before.timestamp(), 0);
            assert!(credential.remaining(now).unwrap() > 20 * YEAR);
        }
    }

    #[test]
    fn unset_clock_signs_as_if_on_the_programs_own_date() {
        let authority = Authority::make().unwrap();
        let unset = datetime!(1970-01-01 00:01:00 UTC);
        let serving = authority.issue_serving(&strings(&["localhost"]), unset).unwrap();
        assert_eq!(serving.remaining(unset).unwrap(), SERVING_LIFE);
        let later = EARLIEST_NOW + 20 * YEAR;
        assert!(serving.remaining(later).unwrap().is_positive(), "and it still holds twenty years on");
    }

    #[test]
    fn clock_at_its_maximum_does_not_overflow() {
        let end = datetime!(9999-12-31 23:00:00 UTC);
        Authority::make().unwrap().issue_node("edge-1", u64::MAX, end, YEAR).unwrap();
    }

    #[test]
    fn names_are_covered_in_any_spelling() {
        let authority = Authority::make().unwrap();
        let names = strings(&["localhost", "::1", "Hub.Example.COM", "10.0.0.1"]);
        let serving = authority.issue_serving(&names, EARLIEST_NOW).unwrap();
        let check = |names: &[&str], expect: bool| {
            assert_eq!(serving.covers(&strings(names)), Ok(expect), "{names:?}");
        };
        check(&["localhost"], true);
        check(&["0:0:0:0:0:0:0:1", "hub.example.com"], true);
        check(&["10.0.0.1", "LOCALHOST"], true);
        check(&["10.0.0.2"], false);
        check(&["localhost", "example.com"], false);
        check(&[], true);
    }

    #[test]
    fn certificate_of_another_ca_is_recognized() {
        let (ours, other) = (Authority::make().unwrap(), Authority::make().unwrap());
        let credential = ours.issue_node("edge-1", 7, EARLIEST_NOW, YEAR).unwrap();
        assert_eq!(ours.signed(&credential), Ok(true));
        assert_eq!(other.signed(&credential), Ok(false));
    }

    #[test]
    fn leaf_certificates_allow_only_their_own_use() {
        let authority = Authority::make().unwrap();
        let check = |credential: Credential, server: bool, client: bool, user: &str, group: Option<&str>| {
            let parsed = parse(&credential.certificate).unwrap();
            let usage = parsed.extended_key_usage().unwrap().unwrap().value.clone();
            assert_eq!((usage.server_auth, usage.client_auth, usage.any), (server, client, false));
            assert!(!parsed.is_ca());
            assert_eq!(parsed.subject().iter_common_name().next().unwrap().as_str().unwrap(), user);
            let found = parsed.subject().iter_organization().next().map(|name| name.as_str().unwrap());
            assert_eq!(found, group);
        };
        let names = strings(&["localhost"]);
        check(authority.issue_serving(&names, EARLIEST_NOW).unwrap(), true, false, "kedge-hub", None);
        check(authority.issue_admin(1, EARLIEST_NOW).unwrap(), false, true, "admin", Some("system:masters"));
        let node = authority.issue_node("edge-1", 7, EARLIEST_NOW, YEAR).unwrap();
        let identity =
            kedge_hub_core::identity::Identity::from_client_certificate(&node.certificate).unwrap();
        assert_eq!(identity.issue, 7);
        assert_eq!(identity.issued, Some(EARLIEST_NOW.unix_timestamp() * 1_000_000));
        check(node, false, true, "system:node:edge-1", Some("system:nodes"));
    }
}
