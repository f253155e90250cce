//! The author of a request: the identity that a credential proves, for as long as the credential is valid.
//!
//! Always holds: an identity belongs to one request, not to its connection. So each request is judged by the
//! time and deny list of its own moment, and one connection can carry requests of several tokens. Left to
//! others: verifying the credential's signature (TLS; `token`), checking that it is not revoked (`denied`),
//! and the permissions of the identity (`authorizer`).

use std::collections::BTreeMap;

use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::bootstrap_token;
use super::credential::key_id;
use kedge_api::{ADMIN_GROUP, AUTHENTICATED_GROUP, BOOTSTRAP_GROUP, NODE_GROUP, NODE_USER_PREFIX, serial};

/// More organizations than any certificate of ours has; further ones are ignored.
const MAX_GROUPS: usize = 32;
/// Upstream's key of a credential's id in the `extra` of a user.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Key of a credential's issue number in the `extra` of a user: a certificate request shows by it which
/// credential asked.
pub const ISSUE_NUMBER: &str = "kedge.dev/issue-number";
/// Key of the id of a node's public key in its `extra` ([`key_id`]).
pub const PUBLIC_KEY: &str = "kedge.dev/public-key-sha256";
/// Key of the time since which a node's certificate has been expired (Unix time), in its `extra`.
pub const EXPIRED_SINCE: &str = "kedge.dev/expired-since";
/// Prefix of the users of service accounts: `system:serviceaccount:NAMESPACE:NAME`.
pub(super) const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Upstream's key for the node in the token of a pod.
pub(super) const NODE_NAME_FACT: &str = "authentication.kubernetes.io/node-name";

/// The use of a credential.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standing {
    /// The rights of its identity.
    #[default]
    Live,
    /// It is a node's, and expired at this time (Unix time): it may only ask for the next one.
    Expired(i64),
}

/// An authenticated caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// For example `system:node:edge-1`.
    pub user: String,
    /// With `system:authenticated`.
    pub groups: Vec<String>,
    /// Distinguishes users of the same name over time; empty for certificates, as upstream.
    pub uid: String,
    /// Further facts, without the credential's id: see [`Identity::extra`].
    pub facts: BTreeMap<String, Vec<String>>,
    /// The credential proves nothing from this second on (Unix time); `None` if it does not expire.
    pub not_after: Option<i64>,
    /// The hub's counter when it issued the credential: a greater number is a later issue, whatever any clock
    /// showed. 0: the credential has none, because an older hub issued it.
    pub issue: u64,
    /// The id of its public key ([`key_id`]); empty for a token.
    pub key: Box<str>,
    pub standing: Standing,
    /// When the credential was issued (Unix time in microseconds), if it contains that.
    pub issued: Option<i64>,
    /// The credential in upstream's spelling, `X509SHA256=...` or `JTI=...`; empty for an identity without
    /// one of its own, as when another caller impersonates it.
    pub credential: Box<str>,
}

impl Identity {
    /// An identity without a credential that could expire or be revoked.
    pub fn new(user: &str, groups: &[&str]) -> Identity {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Identity { user: user.to_owned(), groups, ..Identity::default() }
    }

    /// Reads the identity from a certificate that TLS has already verified. `None` if it names no user or
    /// several: such a caller counts as anonymous.
    pub fn from_client_certificate(der: &[u8]) -> Option<Identity> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let mut names = subject.iter_common_name();
        let user = names.next()?.as_str().ok()?.to_owned();
        if user.is_empty() || names.next().is_some() {
            return None;
        }
        let mut groups = Vec::new();
        for organization in subject.iter_organization().take(MAX_GROUPS) {
            groups.push(organization.as_str().ok()?.to_owned());
        }
        groups.push(AUTHENTICATED_GROUP.to_owned());
        let serial = serial::read(certificate.raw_serial());
        Some(Identity {
            user,
            groups,
            // valid through its last second, as TLS has it
            not_after: Some(certificate.validity().not_after.timestamp().saturating_add(1)),
            issue: serial.map_or(0, |serial| serial.number),
            issued: serial.map(|serial| serial.issued_micros),
            credential: certificate_id(der).into(),
            key: key_id(certificate.public_key().raw).into(),
            ..Identity::default()
        })
    }

    /// Whether this caller is an administrator.
    pub fn is_admin(&self) -> bool {
        self.in_group(ADMIN_GROUP)
    }

    /// The name of the node, if this caller is one: by user name and group, both needed, as upstream.
    pub fn node(&self) -> Option<&str> {
        let name = self.user.strip_prefix(NODE_USER_PREFIX).filter(|name| !name.is_empty())?;
        self.in_group(NODE_GROUP).then_some(name)
    }

    /// The id of the bootstrap token, if this caller has one: by user name and group, both needed.
    pub fn bootstrap_token(&self) -> Option<&str> {
        bootstrap_token::of_user(&self.user).filter(|_| self.in_group(BOOTSTRAP_GROUP))
    }

    /// Whether this caller is no person: a service account, or a device with a bootstrap token.
    pub fn is_program(&self) -> bool {
        self.user.starts_with(SERVICE_ACCOUNT_PREFIX) || self.bootstrap_token().is_some()
    }

    /// Whether this caller is a person with a name: neither a node nor a program.
    pub fn is_person(&self) -> bool {
        !self.user.is_empty() && !self.user.starts_with("system:")
    }

    /// Whether the credential has expired.
    pub fn is_expired(&self, now: OffsetDateTime) -> bool {
        self.not_after.is_some_and(|end| now.unix_timestamp() >= end)
    }

    /// The same identity with an expired credential, if it may still ask for the next one: that of a node, by
    /// its certificate.
    pub fn returning(&self) -> Option<Identity> {
        let since =
            self.not_after.filter(|_| self.node().is_some() && !self.key.is_empty() && !self.is_admin())?;
        Some(Identity { standing: Standing::Expired(since), ..self.clone() })
    }

    /// Upstream's `extra` of the user: its facts, and the id and issue number of its credential. For a node
    /// also its key, and the time of its expiry if that is past.
    pub fn extra(&self) -> BTreeMap<String, Vec<String>> {
        let mut extra = self.facts.clone();
        if !self.credential.is_empty() {
            extra.insert(CREDENTIAL_ID.to_owned(), vec![self.credential.to_string()]);
        }
        if self.issue > 0 {
            extra.insert(ISSUE_NUMBER.to_owned(), vec![self.issue.to_string()]);
        }
        if self.node().is_some() && !self.key.is_empty() {
            extra.insert(PUBLIC_KEY.to_owned(), vec![self.key.to_string()]);
        }
        if let Standing::Expired(since) = self.standing {
            extra.insert(EXPIRED_SINCE.to_owned(), vec![since.to_string()]);
        }
        extra
    }

    fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// Unix time in microseconds.
pub(super) fn micros(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// The id of a certificate: upstream's, over all of it, so that no two certificates share one.
pub fn certificate_id(der: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, der);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("X509SHA256={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_api::serial::Serial;

    #[test]
    fn node_needs_its_user_name_and_its_group() {
        let check = |user: &str, groups: &[&str], expect: Option<&str>| {
            assert_eq!(Identity::new(user, groups).node(), expect, "{user} {groups:?}");
        };
        check("system:node:a", &["system:nodes"], Some("a"));
        check("system:node:a", &["other"], None);
        check("system:node:", &["system:nodes"], None);
        check("node:a", &["system:nodes"], None);
    }

    #[test]
    fn identity_comes_from_common_name_and_organizations() {
        use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
        let certificate = |entries: &[(DnType, &str)]| {
            let mut params = CertificateParams::default();
            params.not_after = OffsetDateTime::from_unix_timestamp(2_000_000_000).unwrap();
            params.distinguished_name = DistinguishedName::new();
            for (sort, text) in entries {
                params.distinguished_name.push(sort.clone(), *text);
            }
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        let node =
            certificate(&[(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:a")]);
        let found = Identity::from_client_certificate(&node).unwrap();
        assert_eq!((found.extra()[PUBLIC_KEY][0].len(), found.extra().get(EXPIRED_SINCE)), (64, None));
        let returning = found.returning().unwrap();
        assert_eq!(returning.extra()[EXPIRED_SINCE], ["2000000001"]);
        assert_eq!(Identity { groups: Vec::new(), ..found.clone() }.returning(), None);
        assert_eq!(Identity { key: "".into(), ..found.clone() }.returning(), None);
        assert_eq!(found.user, "system:node:a");
        assert_eq!(found.groups, ["system:nodes", "system:authenticated"]);
        assert_eq!((found.uid.as_str(), &found.facts), ("", &BTreeMap::new()));
        let at = |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        assert!(!found.is_expired(at(2_000_000_000)) && found.is_expired(at(2_000_000_001)));
        let id = &found.extra()[CREDENTIAL_ID][0];
        assert!(id.len() == 75 && id.starts_with("X509SHA256="), "{id}");
        let other =
            certificate(&[(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:a")]);
        assert_ne!(Identity::from_client_certificate(&other).unwrap().credential, found.credential);
        let nameless = certificate(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(Identity::from_client_certificate(&nameless), None);
        assert_eq!(Identity::from_client_certificate(&certificate(&[(DnType::CommonName, "")])), None);
        assert_eq!(Identity::from_client_certificate(b"nonsense"), None);
    }

    #[test]
    fn serial_number_gives_issue_and_time() {
        let certificate = |serial: &[u8]| {
            let mut params = rcgen::CertificateParams::default();
            params.serial_number = Some(serial.to_vec().into());
            params.distinguished_name.push(rcgen::DnType::CommonName, "x");
            let made = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            Identity::from_client_certificate(made.der()).unwrap()
        };
        let issued_micros = 1_800_000_000_000_000;
        let found = certificate(&serial::write(&Serial { number: 1 << 40, issued_micros }, [0xff; 4]));
        assert_eq!((found.issue, found.issued), (1 << 40, Some(issued_micros)));
        assert_eq!(found.extra()[ISSUE_NUMBER], ["1099511627776"]);
        let found = certificate(&[7; 20]);
        assert_eq!((found.issue, found.issued, found.extra().get(ISSUE_NUMBER)), (0, None, None));
    }

    #[test]
    fn identity_without_a_credential_does_not_expire() {
        let admin = Identity::new("admin", &["system:masters"]);
        assert!(!admin.is_expired(OffsetDateTime::from_unix_timestamp(i64::from(u32::MAX)).unwrap()));
        assert!(admin.extra().is_empty());
    }
}
