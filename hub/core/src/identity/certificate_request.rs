//! Requests for client certificates (PKCS 10): reading them, and the rules of each signer.
//!
//! Always holds: a request is valid only if its own key signed it, and only its name, organizations and key
//! reach a certificate; everything else in it is refused here or dropped. The rules and texts are those of
//! upstream's signers. Left to others: approval and signing (`controllers::certificates`).

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, GeneralName};

use kedge_api::{CLIENT_SIGNER, NODE_GROUP, NODE_SIGNER, NODE_USER_PREFIX};

use crate::kinds::names::NameRule;

/// Prefix of the users and groups that have a meaning to the authorizers.
const SYSTEM_PREFIX: &str = "system:";
/// Longest user or group: as the longest name of an object.
const MAX_NAME_BYTES: usize = 253;

/// A parsed request.
#[derive(Debug)]
pub struct Request {
    /// The user, from the subject's common name.
    pub common_name: String,
    /// The groups, from the subject's organizations.
    pub organizations: Vec<String>,
    /// Types of subject alternative names in the request: a client certificate may have none.
    alternative: Vec<&'static str>,
    /// DER of SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
}

impl Request {
    /// From PEM. The error is a text for people.
    pub fn from_pem(pem: &[u8]) -> Result<Request, String> {
        let read = Pem::read(std::io::Cursor::new(pem));
        let (pem, _) = read.map_err(|error| format!("expected a PEM certificate request: {error}"))?;
        let parsed = parse(&pem)?;
        parsed
            .verify_signature()
            .map_err(|error| format!("unable to verify certificate request signature: {error}"))?;
        let subject = &parsed.certification_request_info.subject;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(str::to_owned).map_err(|error| format!("the subject is no text: {error}"))
        };
        let mut names = subject.iter_common_name().map(text).collect::<Result<Vec<_>, _>>()?;
        if names.len() > 1 {
            return Err("the subject has more than one common name".to_owned());
        }
        Ok(Request {
            common_name: names.pop().unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect::<Result<_, _>>()?,
            alternative: alternative_names(&parsed),
            public_key: parsed.certification_request_info.subject_pki.raw.to_vec(),
        })
    }

    /// Whether this signer signs such a request for these usages.
    ///
    /// # Errors
    /// The error is upstream's reason.
    pub fn check(&self, signer: &str, usages: &[&str]) -> Result<(), String> {
        match signer {
            NODE_SIGNER => self.check_node(usages),
            _ => self.check_client(usages),
        }
    }

    /// The reason why a certificate with this subject is never signed for people and programs: users and
    /// groups of the system, including administrators and nodes, are created in other ways, and logs and
    /// limits must be able to tell a name from others.
    pub fn reserved_subject(&self) -> Option<String> {
        let reserved = |name: &&String| name.starts_with(SYSTEM_PREFIX);
        if let Some(group) = self.organizations.iter().find(reserved) {
            return Some(format!("use of {CLIENT_SIGNER} signer with {group} group is not allowed"));
        }
        let user = &self.common_name;
        if reserved(&user) {
            return Some(format!("use of {CLIENT_SIGNER} signer with user name {user} is not allowed"));
        }
        let odd = |name: &String| {
            name.trim() != name || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control)
        };
        [user].into_iter().chain(&self.organizations).find(|name| odd(name)).map(|name| {
            format!(
                "the subject has the name {:?}, expected at most {MAX_NAME_BYTES} bytes without control characters, \
                 and no blank at its ends",
                kedge_api::excerpt(name)
            )
        })
    }

    /// The reason why a certificate with this subject is never signed for a node: a Node cannot have that
    /// name, so nobody could revoke it.
    pub fn impossible_node(&self) -> Option<String> {
        let node = self.common_name.strip_prefix(NODE_USER_PREFIX)?;
        let why = NameRule::Subdomain.complaint(node)?;
        Some(format!(
            "the subject has the user name {:?}, and no Node has such a name: {why}",
            kedge_api::excerpt(&self.common_name)
        ))
    }

    fn check_client(&self, usages: &[&str]) -> Result<(), String> {
        if let Some(why) = self.reserved_subject() {
            return Err(why);
        }
        // the library that writes certificates would keep only the last one
        if self.organizations.len() > 1 {
            let found = self.organizations.len();
            return Err(format!(
                "the subject has {found} organizations, which are groups; a certificate gets one at most"
            ));
        }
        if self.common_name.is_empty() {
            return Err("the subject has no common name, which is the user's name".to_owned());
        }
        let odd = usages
            .iter()
            .find(|usage| !matches!(**usage, "digital signature" | "key encipherment" | "client auth"));
        if let Some(odd) = odd {
            return Err(format!("invalid usage for client certificate: {odd}"));
        }
        if !usages.contains(&"client auth") {
            return Err("missing required usage for client certificate: client auth".to_owned());
        }
        Ok(())
    }

    fn check_node(&self, usages: &[&str]) -> Result<(), String> {
        if self.organizations != [NODE_GROUP] {
            return Err(format!("subject organization is not {NODE_GROUP}"));
        }
        if let Some(sort) = self.alternative.first() {
            return Err(format!("{sort} subjectAltNames are not allowed"));
        }
        if !self.common_name.starts_with(NODE_USER_PREFIX) {
            return Err(format!("subject common name does not begin with {NODE_USER_PREFIX}"));
        }
        if let Some(why) = self.impossible_node() {
            return Err(why);
        }
        let mut sorted = usages.to_vec();
        sorted.sort_unstable();
        match sorted.as_slice() {
            ["client auth", "digital signature"]
            | ["client auth", "digital signature", "key encipherment"] => Ok(()),
            _ => Err("usages did not match [client auth digital signature key encipherment]".to_owned()),
        }
    }
}

/// The request in a PEM block. The error is a text for people.
pub fn parse(pem: &Pem) -> Result<X509CertificationRequest<'_>, String> {
    if pem.label != "CERTIFICATE REQUEST" {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    }
    match X509CertificationRequest::from_der(&pem.contents) {
        Ok(([], parsed)) => Ok(parsed),
        Ok((rest, _)) => Err(format!("expected a certificate request, found {} bytes more", rest.len())),
        Err(error) => Err(format!("expected a certificate request: {error}")),
    }
}

fn alternative_names(request: &X509CertificationRequest<'_>) -> Vec<&'static str> {
    let extensions = request.requested_extensions().into_iter().flatten();
    let names = extensions.filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names
        .flatten()
        .map(|name| match name {
            GeneralName::DNSName(_) => "DNS",
            GeneralName::RFC822Name(_) => "Email",
            GeneralName::IPAddress(_) => "IP",
            GeneralName::URI(_) => "URI",
            _ => "Other",
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    /// PEM of a request by a new key.
    pub(crate) fn pem(name: &str, groups: &[&str], alternative: &[&str]) -> String {
        let names: Vec<String> = alternative.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        // the library, which keeps one value of each type, takes this for another type; in the request it is
        // the same
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        assert!(groups.len() <= types.len());
        types.into_iter().zip(groups).for_each(|(of, group)| params.distinguished_name.push(of, *group));
        params.distinguished_name.push(DnType::CommonName, name);
        signed(&params)
    }

    fn signed(params: &CertificateParams) -> String {
        signed_by(params, &KeyPair::generate().unwrap())
    }

    fn signed_by(params: &CertificateParams, key: &KeyPair) -> String {
        params.serialize_request(key).unwrap().pem().unwrap()
    }

    /// PEM of a node's request by this key.
    pub(crate) fn node_pem(node: &str, key: &KeyPair) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        signed_by(&params, key)
    }

    const FULL: &[&str] = &["digital signature", "key encipherment", "client auth"];

    #[track_caller]
    fn check(signer: &str, pem: &str, usages: &[&str], expect: Result<(), &str>) {
        let found = Request::from_pem(pem.as_bytes()).and_then(|request| request.check(signer, usages));
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn node_signer_signs_only_node_certificates() {
        let check = |pem: &str, usages: &[&str], expect| check(NODE_SIGNER, pem, usages, expect);
        let good = pem("system:node:a", &["system:nodes"], &[]);
        check(&good, FULL, Ok(()));
        check(&good, &["client auth", "digital signature"], Ok(()));
        let usages = "usages did not match [client auth digital signature key encipherment]";
        check(&good, &["client auth"], Err(usages));
        check(&good, &["client auth", "digital signature", "server auth"], Err(usages));
        let organization = "subject organization is not system:nodes";
        check(&pem("system:node:a", &[], &[]), FULL, Err(organization));
        check(&pem("system:node:a", &["system:nodes", "x"], &[]), FULL, Err(organization));
        check(&pem("system:node:a", &["system:masters"], &[]), FULL, Err(organization));
        let name = "subject common name does not begin with system:node:";
        check(&pem("a", &["system:nodes"], &[]), FULL, Err(name));
        let dns = "DNS subjectAltNames are not allowed";
        check(&pem("system:node:a", &["system:nodes"], &["hub.example"]), FULL, Err(dns));
        let address = "IP subjectAltNames are not allowed";
        check(&pem("system:node:a", &["system:nodes"], &["192.0.2.1"]), FULL, Err(address));
        for (sort, name) in [
            ("Email", SanType::Rfc822Name("a@hub.example".try_into().unwrap())),
            ("URI", SanType::URI("https://hub.example".try_into().unwrap())),
        ] {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
            params.distinguished_name.push(DnType::CommonName, "system:node:a");
            params.subject_alt_names.push(name);
            let found = Request::from_pem(signed(&params).as_bytes()).unwrap().check(NODE_SIGNER, FULL);
            assert_eq!(found, Err(format!("{sort} subjectAltNames are not allowed")));
        }
    }

    #[test]
    fn node_that_cannot_be_is_not_signed() {
        let why = |node: &str| {
            let pem = pem(&format!("system:node:{node}"), &["system:nodes"], &[]);
            let request = Request::from_pem(pem.as_bytes()).unwrap();
            let signed = request.check(NODE_SIGNER, FULL);
            assert_eq!(signed.err(), request.impossible_node(), "{node:?}");
            request.impossible_node()
        };
        for node in ["a", "edge-1.site.example"] {
            assert_eq!(why(node), None);
        }
        for node in ["", "../b", "B", "a b", "a:b", "-a", "ä", &"a".repeat(254)] {
            let why = why(node).unwrap_or_else(|| panic!("{node:?} is signed"));
            assert!(why.contains("no Node has such a name"), "{why}");
        }
    }

    #[test]
    fn request_has_one_common_name_at_most() {
        let with = |names: &[&str]| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            // another type to the library, the same one in the request
            let types = [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])];
            types.into_iter().zip(names).for_each(|(of, name)| params.distinguished_name.push(of, *name));
            Request::from_pem(signed(&params).as_bytes()).map(|request| request.common_name)
        };
        assert_eq!(with(&[]).as_deref(), Ok(""));
        assert_eq!(with(&["jane"]).as_deref(), Ok("jane"));
        assert_eq!(with(&["jane", "admin"]), Err("the subject has more than one common name".to_owned()));
    }

    #[test]
    fn client_signer_signs_names_that_are_not_the_systems() {
        let check = |pem: &str, usages: &[&str], expect| check(CLIENT_SIGNER, pem, usages, expect);
        check(&pem("jane", &["people"], &[]), &["client auth"], Ok(()));
        check(&pem("jane", &[], &[]), FULL, Ok(()));
        let two = "the subject has 2 organizations, which are groups; a certificate gets one at most";
        check(&pem("jane", &["people", "guests"], &[]), FULL, Err(two));
        let masters =
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
        check(&pem("jane", &["people", "system:masters"], &[]), FULL, Err(masters));
        let nodes =
            "use of kubernetes.io/kube-apiserver-client signer with system:nodes group is not allowed";
        check(&pem("system:node:b", &["system:nodes"], &[]), FULL, Err(nodes));
        let node =
            "use of kubernetes.io/kube-apiserver-client signer with user name system:node:b is not allowed";
        check(&pem("system:node:b", &[], &[]), FULL, Err(node));
        check(&pem("system", &["systemic"], &[]), FULL, Ok(()));
        check(&pem(&"a".repeat(253), &[], &[]), FULL, Ok(()));
        for odd in [" admin", "admin ", "a\nb", &"a".repeat(254)] {
            let refused =
                Request::from_pem(pem(odd, &[], &[]).as_bytes()).unwrap().check(CLIENT_SIGNER, FULL);
            assert!(refused.unwrap_err().starts_with("the subject has the name"), "{odd:?}");
            let request = Request::from_pem(pem("jane", &[odd], &[]).as_bytes()).unwrap();
            assert!(request.check(CLIENT_SIGNER, FULL).is_err(), "{odd:?}");
        }
        check(
            &pem("jane", &[], &[]),
            &["server auth"],
            Err("invalid usage for client certificate: server auth"),
        );
        let missing = "missing required usage for client certificate: client auth";
        check(&pem("jane", &[], &[]), &["digital signature"], Err(missing));
    }

    fn block(text: &str) -> String {
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
    }

    #[test]
    fn request_not_signed_by_its_key_is_refused() {
        use base64::Engine as _;
        let engine = base64::engine::general_purpose::STANDARD;
        let honest = pem("jane", &[], &[]);
        let body: String = honest.lines().filter(|line| !line.starts_with('-')).collect();
        let mut der = engine.decode(body).unwrap();
        let longer = block(&engine.encode([der.clone(), vec![0; 1 << 20]].concat()));
        let more = "expected a certificate request, found 1048576 bytes more";
        assert_eq!(Request::from_pem(longer.as_bytes()).unwrap_err(), more);
        let at = der.windows(4).position(|bytes| bytes == b"jane").unwrap();
        der[at] = b'J';
        let text = engine.encode(der);
        let forged = block(&text);
        let why = Request::from_pem(forged.as_bytes()).unwrap_err();
        assert!(why.starts_with("unable to verify certificate request signature"), "{why}");
        for broken in ["", "x", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"] {
            assert!(Request::from_pem(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
