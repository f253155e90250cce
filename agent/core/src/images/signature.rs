//! Which images need a signature, the content of a signature, and whether a configured key made it: cosign's
//! "simple signing", checked without a network.
//!
//! Always holds: a signature is for one manifest, whose digest is in the signed bytes; no image of a
//! repository that a rule covers runs without one; signatures are compared with the keys of the present
//! configuration, so a removed key vouches for nothing any more. Everything is bounded before it is parsed.
//! As with `cosign verify` the repository in the signed text is not compared: the signature goes with the
//! image to mirrors and sites, and keys are chosen by repository here. Leaves to others: fetching
//! (`agent/src/images/signatures.rs`), and the arithmetic of a signature, which the caller passes in.

use crate::sorted::{SortedMap, SortedSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kedge_api::excerpt;
use serde::{Deserialize, Serialize};

use super::digest::BlobDigest;
use super::manifest::{Blob, MAX_MANIFEST_BYTES, Offered};
use super::reference::{
    DEFAULT_REGISTRY, DEFAULT_SERVER, LEGACY_REGISTRY, Reference, is_registry, is_repository,
};

/// Most rules. A site has a few registries and teams.
pub const MAX_RULES: usize = 100;
/// Most keys of one rule: the present ones, and their successors while keys change. Each is tried with each
/// signature.
pub const MAX_KEYS: usize = 16;
/// Most signatures of one manifest that are read: the last ones, because a signer that signs again adds to
/// the end. Each may cost a request.
pub const MAX_SIGNATURES: usize = 16;
/// Longest signed text. cosign's has some 250 bytes; annotations of the signer make it longer.
pub const MAX_PAYLOAD_BYTES: usize = 4096;
/// Longest signature in base64: ECDSA on P-256 has 72 bytes at most.
const MAX_SIGNATURE_BYTES: usize = 200;
/// The longest PEM that is read; a key has 180 bytes.
const MAX_PEM_BYTES: usize = 4096;

/// The key of the rule for images that no other rule covers.
const EVERYTHING: &str = "*";
/// The rule that requires no signature, with other tools' word for it (containers-policy.json).
pub const ACCEPT_ANYTHING: &str = "insecureAcceptAnything";
/// The form of a rule's key.
pub(super) const PREFIX_EXPECTED: &str = "a registry, a registry with the first parts of repositories (docker.io/library in full), or \"*\", each once";
/// The form of a rule's value.
pub(super) const RULE_EXPECTED: &str =
    "at most 16 public keys in PEM (ECDSA P-256 or Ed25519), or insecureAcceptAnything alone";

const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNED_TYPE: &str = "cosign container image signature";
/// How `cosign save` marks signatures in a layout.
const SIGNATURES_KIND: &str = "dev.cosignproject.cosign/sigs";

/// The bytes before the key in the DER of a public key (RFC 5480: id-ecPublicKey on secp256r1; the point
/// uncompressed).
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const UNCOMPRESSED: u8 = 4;
const P256_BYTES: usize = 65;
/// The same for RFC 8410: id-Ed25519.
const ED25519_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const ED25519_BYTES: usize = 32;

/// The algorithm of a key's signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA on P-256 over SHA-256, the signature in ASN.1.
    P256,
    Ed25519,
}

/// A key that may vouch for images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    pub algorithm: Algorithm,
    /// The point, without its PEM and DER wrapping.
    pub bytes: Vec<u8>,
    /// The digest of its DER, as `openssl pkey -pubin -outform DER | sha256sum` shows it: for messages.
    id: BlobDigest,
}

impl PublicKey {
    /// Reads one `PUBLIC KEY` in PEM.
    ///
    /// # Errors
    /// The form expected.
    pub fn parse(pem: &str) -> Result<Self, &'static str> {
        let inner = pem.trim().strip_prefix("-----BEGIN PUBLIC KEY-----");
        let inner = inner.and_then(|rest| rest.strip_suffix("-----END PUBLIC KEY-----"));
        let packed: Vec<u8> =
            inner.unwrap_or_default().bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let der = BASE64_STANDARD.decode(packed).ok().filter(|_| pem.len() <= MAX_PEM_BYTES);
        let der = der.ok_or(RULE_EXPECTED)?;
        let id = BlobDigest::of(&der);
        let key = |algorithm, bytes: &[u8]| Self { algorithm, bytes: bytes.to_vec(), id };
        match (der.strip_prefix(&P256_PREFIX), der.strip_prefix(&ED25519_PREFIX)) {
            (Some(point @ [UNCOMPRESSED, ..]), _) if point.len() == P256_BYTES => {
                Ok(key(Algorithm::P256, point))
            }
            (_, Some(point)) if point.len() == ED25519_BYTES => Ok(key(Algorithm::Ed25519, point)),
            _ => Err(RULE_EXPECTED),
        }
    }

    /// The first digits of its digest.
    fn shown(&self) -> String {
        self.id.hex()[..12].to_owned()
    }
}

/// Whether a key made this signature of these bytes.
pub type Verify<'a> = &'a dyn Fn(&PublicKey, &[u8], &[u8]) -> bool;

/// The requirement for images of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    AcceptAnything,
    /// A signature by one of these keys; without keys no image is accepted.
    SignedBy(Vec<PublicKey>),
}

impl Rule {
    /// Reads the list of a rule.
    ///
    /// # Errors
    /// The first text of another form.
    pub(super) fn parse<'a>(texts: &[&'a str]) -> Result<Self, &'a str> {
        if let [ACCEPT_ANYTHING] = texts {
            return Ok(Self::AcceptAnything);
        }
        let keys = texts.iter().map(|text| PublicKey::parse(text).map_err(|_| *text));
        keys.collect::<Result<_, _>>().map(Self::SignedBy)
    }
}

/// `kedge.images.signaturePolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignaturePolicy {
    /// By [`prefix`].
    rules: SortedMap<String, Rule>,
}

impl SignaturePolicy {
    /// Adds a rule; false if its key is not a prefix, or has a rule already.
    #[must_use]
    pub(super) fn add(&mut self, text: &str, rule: Rule) -> bool {
        prefix(text).is_some_and(|prefix| self.rules.insert(prefix, rule).is_none())
    }

    /// The rule for an image, with its prefix: the longest that fits, by whole parts of the name.
    fn rule_for(&self, image: &Reference) -> Option<(&str, &Rule)> {
        let name = format!("{}/{}", registry_name(&image.registry), image.repository);
        let parts = name.match_indices('/').map(|(at, _)| &name[..at]);
        let mut prefixes: Vec<&str> = parts.chain([name.as_str()]).collect();
        prefixes.reverse();
        prefixes.push(EVERYTHING);
        let found = prefixes.into_iter().find_map(|prefix| self.rules.get_key_value(prefix));
        found.map(|(prefix, rule)| (prefix.as_str(), rule))
    }

    /// Whether an image of this name runs only with a signature.
    #[must_use]
    pub fn covers(&self, image: &Reference) -> bool {
        self.rule_for(image).is_some_and(|(_, rule)| *rule != Rule::AcceptAnything)
    }

    /// Whether an image may run under this name. `manifests` are the digests it was resolved from,
    /// `signatures` all of its known ones.
    ///
    /// # Errors
    /// The requirement, and the signatures found.
    pub fn judge(
        &self,
        image: &Reference,
        manifests: &SortedSet<BlobDigest>,
        signatures: &SortedSet<Signature>,
        verify: Verify,
    ) -> Result<(), String> {
        let Some((prefix, Rule::SignedBy(keys))) = self.rule_for(image) else { return Ok(()) };
        if keys.is_empty() {
            return Err(format!(
                "kedge.images.signaturePolicy has no key for {prefix:?}, so it accepts no image of it"
            ));
        }
        let own: Vec<&Signature> = signatures
            .iter()
            .filter(|one| one.manifest().is_some_and(|signed| manifests.contains(&signed)))
            .collect();
        if own.iter().any(|one| keys.iter().any(|key| one.is_by(key, verify))) {
            return Ok(());
        }
        let names: Vec<String> = keys.iter().map(PublicKey::shown).collect();
        let found = match (own.len(), signatures.len()) {
            (_, 0) => "found none".to_owned(),
            (0, others) => format!("found {others} of other manifests"),
            (others, _) => format!("found {others} that none of them made"),
        };
        Err(format!(
            "kedge.images.signaturePolicy asks for a signature by a key of {prefix:?} ({}), {found}",
            names.join(", ")
        ))
    }
}

/// The part of a registry's name that is compared: another spelling of it, or its default port, is the same
/// registry.
fn registry_name(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let host = lower.strip_suffix(":443").or_else(|| lower.strip_suffix(":80")).unwrap_or(&lower);
    match host {
        DEFAULT_SERVER | LEGACY_REGISTRY => DEFAULT_REGISTRY.to_owned(),
        host => host.to_owned(),
    }
}

/// The key of a rule in the form for comparison.
fn prefix(text: &str) -> Option<String> {
    if text == EVERYTHING {
        return Some(text.to_owned());
    }
    let (registry, repository) = text.split_once('/').map_or((text, None), |(host, rest)| (host, Some(rest)));
    // "library" alone is read as a repository of Docker Hub elsewhere
    let is_host = registry.contains(['.', ':']) || registry == "localhost";
    if !is_host || !is_registry(registry) || !repository.is_none_or(is_repository) {
        return None;
    }
    let below = repository.map_or_else(String::new, |repository| format!("/{repository}"));
    Some(format!("{}{below}", registry_name(registry)))
}

/// The tag under which a repository keeps the signatures of a manifest.
#[must_use]
pub fn tag(manifest: &BlobDigest) -> String {
    format!("sha256-{}.sig", manifest.hex())
}

/// A signature in a manifest's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The signed text.
    pub payload: Blob,
    /// In base64.
    signature: String,
}

impl Listed {
    /// The signature, with its fetched text.
    ///
    /// # Errors
    /// The text is not of cosign's form.
    pub fn with_payload(&self, payload: &[u8]) -> Result<Signature, String> {
        let unreadable =
            |why: &str| format!("the signed text {} is not cosign's: {why}", self.payload.digest);
        if BlobDigest::of(payload) != self.payload.digest || payload.len() > MAX_PAYLOAD_BYTES {
            return Err(unreadable("it has another digest"));
        }
        let text = std::str::from_utf8(payload).map_err(|_| unreadable("it is not UTF-8"))?;
        signed_manifest(text).map_err(|why| unreadable(&why))?;
        Ok(Signature { payload: text.to_owned(), signature: self.signature.clone() })
    }
}

#[derive(Deserialize)]
struct RawManifest {
    #[serde(default)]
    layers: Vec<RawLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawLayer {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: Option<RawAnnotations>,
}

#[derive(Deserialize)]
struct RawAnnotations {
    #[serde(rename = "dev.cosignproject.cosign/signature")]
    signature: Option<String>,
}

impl RawLayer {
    fn listed(self) -> Option<Listed> {
        let signature = self.annotations?.signature.filter(|text| text.len() <= MAX_SIGNATURE_BYTES)?;
        let is_one = self.media_type == PAYLOAD_TYPE && self.size <= MAX_PAYLOAD_BYTES as u64;
        let digest = BlobDigest::parse(&self.digest).ok().filter(|_| is_one)?;
        Some(Listed { payload: Blob { digest, size_bytes: self.size }, signature })
    }
}

/// Reads the manifest of a [`tag`]: the last [`MAX_SIGNATURES`] usable ones.
///
/// # Errors
/// The manifest is not the JSON that is expected.
pub fn listed(bytes: &[u8]) -> Result<Vec<Listed>, String> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(format!("the manifest has {} bytes, expected at most {MAX_MANIFEST_BYTES}", bytes.len()));
    }
    let raw: RawManifest = kedge_api::read::from_slice(bytes).map_err(|error| {
        format!("the manifest is not the JSON that is expected: {}", excerpt(&error.to_string()))
    })?;
    let mut all: Vec<Listed> = raw.layers.into_iter().filter_map(RawLayer::listed).collect();
    Ok(all.split_off(all.len().saturating_sub(MAX_SIGNATURES)))
}

/// The kind of an entry of a layout that is not an image but about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The signatures of this manifest, or of one that only they name.
    Signatures(Option<BlobDigest>),
    /// An attestation, a list of parts.
    Other,
}

impl Attached {
    /// Recognises cosign's attachments to images, by the tag or by the mark of its `save`.
    #[must_use]
    pub fn of(entry: &Offered) -> Option<Self> {
        let named = entry.image_name.as_deref().or(entry.ref_name.as_deref()).unwrap_or_default();
        let tag = named.rsplit([':', '/']).next().unwrap_or_default();
        let of_tag = tag.strip_prefix("sha256-").and_then(|rest| rest.split_once('.'));
        let manifest = of_tag.and_then(|(hex, _)| BlobDigest::parse(&format!("sha256:{hex}")).ok());
        match (manifest, of_tag, entry.kind.as_deref()) {
            (Some(manifest), Some((_, "sig")), _) => Some(Self::Signatures(Some(manifest))),
            (Some(_), Some((_, "att" | "sbom")), _) => Some(Self::Other),
            (_, _, Some(SIGNATURES_KIND)) => Some(Self::Signatures(None)),
            (_, _, Some("dev.cosignproject.cosign/atts" | "dev.cosignproject.cosign/sboms")) => {
                Some(Self::Other)
            }
            _ => None,
        }
    }

    /// Whether it may contain signatures of this manifest.
    #[must_use]
    pub fn may_sign(self, manifest: &BlobDigest) -> bool {
        matches!(self, Self::Signatures(of) if of.is_none_or(|of| of == *manifest))
    }
}

/// A signature with the text it signs, in a record's form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    payload: String,
    /// In base64.
    signature: String,
}

impl Signature {
    /// The manifest that it is for.
    #[must_use]
    pub fn manifest(&self) -> Option<BlobDigest> {
        signed_manifest(&self.payload).ok()
    }

    fn is_by(&self, key: &PublicKey, verify: Verify) -> bool {
        let signature = BASE64_STANDARD.decode(&self.signature);
        signature.is_ok_and(|signature| verify(key, self.payload.as_bytes(), &signature))
    }
}

#[derive(Deserialize)]
struct RawPayload {
    critical: RawCritical,
}

#[derive(Deserialize)]
struct RawCritical {
    image: RawImage,
    #[serde(rename = "type")]
    signed_type: String,
}

#[derive(Deserialize)]
struct RawImage {
    #[serde(rename = "docker-manifest-digest")]
    manifest: BlobDigest,
}

/// The manifest in a signed text.
fn signed_manifest(payload: &str) -> Result<BlobDigest, String> {
    let raw: RawPayload = kedge_api::read::from_slice(payload.as_bytes())
        .map_err(|error| excerpt(&error.to_string()).to_string())?;
    if raw.critical.signed_type != SIGNED_TYPE {
        let found = excerpt(&raw.critical.signed_type).to_string();
        return Err(format!("critical.type is {found:?}, expected {SIGNED_TYPE:?}"));
    }
    Ok(raw.critical.image.manifest)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A key as `cosign generate-key-pair` makes it.
    pub(crate) const P256: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEIJweQBvnoC9gUotZyfRLDXrRpf16
OBH88cGWIg16Z4BTLdHpcrMKxh1WYeZNeMNtnGCWXTvOa/Aqflv3T3V6Sg==
-----END PUBLIC KEY-----
";
    const ED25519: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAxdqg3KncHPWpNp+ahrwWIUO3aZ5EtYmmVxc+FeoxQFg=
-----END PUBLIC KEY-----
";

    fn image(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    fn digest(n: u8) -> BlobDigest {
        BlobDigest::of(&[n])
    }

    fn payload(manifest: &BlobDigest) -> Value {
        json!({"critical": {"identity": {"docker-reference": "r.lan/team/app"},
            "image": {"docker-manifest-digest": manifest}, "type": SIGNED_TYPE}, "optional": null})
    }

    fn listing(payload: &[u8], signature: &str) -> Value {
        json!({"mediaType": PAYLOAD_TYPE, "digest": BlobDigest::of(payload), "size": payload.len(),
            "annotations": {"dev.cosignproject.cosign/signature": signature, "dev.sigstore.cosign/bundle": "{}"}})
    }

    fn manifest(layers: &[Value]) -> Vec<u8> {
        json!({"schemaVersion": 2, "layers": layers}).to_string().into_bytes()
    }

    /// This text as a signature, made with these bytes.
    fn signature(payload: &Value, bytes: &[u8]) -> Result<Signature, String> {
        let text = payload.to_string();
        let signed = listed(&manifest(&[listing(text.as_bytes(), &BASE64_STANDARD.encode(bytes))])).unwrap();
        signed[0].with_payload(text.as_bytes())
    }

    fn policy(rules: &[(&str, &[&str])]) -> SignaturePolicy {
        let mut policy = SignaturePolicy::default();
        for (prefix, texts) in rules {
            assert!(policy.add(prefix, Rule::parse(texts).unwrap()), "{prefix}");
        }
        policy
    }

    /// In these tests a signature is a key's when it equals the key's own bytes.
    fn is_same(key: &PublicKey, _: &[u8], signature: &[u8]) -> bool {
        key.bytes == signature
    }

    #[test]
    fn keys_of_both_sorts_are_read() {
        let key = |pem: &str| PublicKey::parse(pem).map(|key| (key.algorithm, key.bytes.len(), key.shown()));
        assert_eq!(key(P256), Ok((Algorithm::P256, 65, "f20ca500f9cc".into())));
        assert_eq!(key(ED25519), Ok((Algorithm::Ed25519, 32, "868b987c9b2f".into())));
        assert_eq!(key(&P256.replace('\n', "\r\n")), key(P256));
    }

    #[test]
    fn what_is_no_such_key_is_refused() {
        let long = format!("{}{P256}", " ".repeat(MAX_PEM_BYTES));
        for pem in [
            "",
            "insecureAcceptAnything",
            "-----BEGIN PUBLIC KEY----------END PUBLIC KEY-----",
            &P256.replace("PUBLIC", "PRIVATE"),
            &P256.replace("MFkw", "MFkx"),
            &P256.replace("-----END", "AAAA\n-----END"),
            &format!("{P256}{P256}"),
            &long,
        ] {
            assert_eq!(PublicKey::parse(pem), Err(RULE_EXPECTED), "{pem}");
        }
    }

    #[test]
    fn longest_prefix_of_whole_parts_decides() {
        let policy = policy(&[
            ("*", &[]),
            ("r.lan", &[P256]),
            ("r.lan/team", &[ACCEPT_ANYTHING]),
            ("r.lan/team/app", &[ED25519]),
            ("docker.io/library", &[P256, ED25519]),
        ]);
        for (name, expect) in [
            ("r.lan/team/app:v1", "r.lan/team/app"),
            ("r.lan/team/app/part", "r.lan/team/app"),
            ("r.lan/team/application", "r.lan/team"),
            ("r.lan/teams/app", "r.lan"),
            ("R.LAN:443/teams/app", "r.lan"),
            ("r.lan:80/x", "r.lan"),
            ("r.lan:5000/x", "*"),
            ("r.lan.evil/team/app", "*"),
            ("nginx", "docker.io/library"),
            ("Index.docker.io/library/nginx", "docker.io/library"),
            ("registry-1.docker.io:443/library/nginx", "docker.io/library"),
            ("other/nginx", "*"),
        ] {
            assert_eq!(policy.rule_for(&image(name)).map(|(prefix, _)| prefix), Some(expect), "{name}");
            assert_eq!(policy.covers(&image(name)), expect != "r.lan/team", "{name}");
        }
        assert!(!SignaturePolicy::default().covers(&image("nginx")), "no policy, no signature");
    }

    #[test]
    fn key_of_a_rule_is_a_prefix_or_refused() {
        for text in
            ["", "**", "team", "library/nginx", "r.lan/", "r.lan/A", "r.lan/a:v1", "https://r.lan", "r.lan/*"]
        {
            assert_eq!(prefix(text), None, "{text}");
        }
        let mut policy = SignaturePolicy::default();
        assert!(policy.add("r.lan:443/a", Rule::AcceptAnything));
        assert!(!policy.add("R.lan/a", Rule::AcceptAnything), "the same registry");
    }

    #[test]
    fn image_runs_with_a_signature_by_a_named_key() {
        let policy =
            policy(&[("r.lan", &[P256, ED25519]), ("r.lan/none", &[]), ("r.lan/any", &[ACCEPT_ANYTHING])]);
        let [first, second] = [P256, ED25519].map(|pem| PublicKey::parse(pem).unwrap().bytes);
        let good = signature(&payload(&digest(1)), &second).unwrap();
        let judge = |name: &str, resolved: u8, signatures: &[&Signature]| {
            policy.judge(
                &image(name),
                &SortedSet::from([digest(resolved)]),
                &signatures.iter().copied().cloned().collect(),
                &is_same,
            )
        };
        assert_eq!(judge("r.lan/a", 1, &[&good]), Ok(()));
        assert_eq!(judge("other.lan/a", 1, &[]), Ok(()));
        assert_eq!(judge("r.lan/any", 1, &[]), Ok(()));
        let refused = |name: &str, resolved, signatures: &[&Signature], expect: &str| {
            let why = judge(name, resolved, signatures).unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        refused("r.lan/a", 2, &[&good], "found 1 of other manifests");
        refused("r.lan/a", 1, &[], "a key of \"r.lan\" (f20ca500f9cc, 868b987c9b2f), found none");
        refused("r.lan/none", 1, &[&good], "no key for \"r.lan/none\"");
        let strange = signature(&payload(&digest(1)), b"x").unwrap();
        refused("r.lan/a", 1, &[&strange], "found 1 that none of them made");
        let by_first = signature(&payload(&digest(1)), &first).unwrap();
        assert_eq!(judge("r.lan/a", 1, &[&strange, &by_first]), Ok(()), "each is tried");
    }

    #[test]
    fn text_that_is_not_cosigns_is_refused() {
        let check = |change: fn(&mut Value), expect: &str| {
            let mut text = payload(&digest(1));
            change(&mut text);
            let why = signature(&text, b"x").unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        check(|text| text["critical"]["type"] = "atomic container signature".into(), "critical.type is");
        check(|text| text["critical"]["image"] = json!({}), "docker-manifest-digest");
        check(|text| text["critical"]["image"]["docker-manifest-digest"] = "sha256:../x".into(), "digest is");
        check(|text| *text = json!([1]), "is not cosign's");
        let text = payload(&digest(1)).to_string();
        let signed = listed(&manifest(&[listing(text.as_bytes(), "AA==")])).unwrap();
        assert!(signed[0].with_payload(b"{}").unwrap_err().contains("another digest"));
    }

    #[test]
    fn last_usable_signatures_are_looked_at() {
        let good = |n: usize| listing(format!("{{\"n\": {n}}}").as_bytes(), "AA==");
        let mut other = good(100);
        other["mediaType"] = "application/vnd.dsse.envelope.v1+json".into();
        let mut long = good(101);
        long["size"] = (MAX_PAYLOAD_BYTES + 1).into();
        let mut path = good(102);
        path["digest"] = "sha256:../../etc/passwd".into();
        let bare = json!({"mediaType": PAYLOAD_TYPE, "digest": digest(1), "size": 1});
        let padded = listing(b"x", &"A".repeat(MAX_SIGNATURE_BYTES + 1));
        assert_eq!(listed(&manifest(&[other, long, path, bare, padded])), Ok(Vec::new()));
        let many = listed(&manifest(&(0..100).map(good).collect::<Vec<_>>())).unwrap();
        assert_eq!(many.len(), MAX_SIGNATURES);
        assert_eq!(many[MAX_SIGNATURES - 1].payload.digest, BlobDigest::of(b"{\"n\": 99}"));
        assert!(listed(b"no").is_err() && listed(&vec![b' '; MAX_MANIFEST_BYTES + 1]).is_err());
        assert_eq!(listed(b"{}"), Ok(Vec::new()), "an index or whatever it is");
    }

    #[test]
    fn what_cosign_attaches_is_no_image() {
        let of = |ref_name: Option<String>, image_name: Option<&str>, kind: Option<&str>| {
            let manifest = Blob { digest: digest(9), size_bytes: 1 };
            let (image_name, kind) = (image_name.map(str::to_owned), kind.map(str::to_owned));
            Attached::of(&Offered { manifest, platform: None, ref_name, image_name, kind })
        };
        let signed = of(Some(tag(&digest(1))), None, None).unwrap();
        assert!(signed.may_sign(&digest(1)) && !signed.may_sign(&digest(2)));
        assert_eq!(of(Some(format!("r.lan/a:{}", tag(&digest(1)))), None, None), Some(signed));
        let saved = of(None, None, Some(SIGNATURES_KIND)).unwrap();
        assert!(saved.may_sign(&digest(1)));
        let other = of(Some(tag(&digest(1)).replace(".sig", ".att")), None, None);
        assert_eq!(other, Some(Attached::Other));
        assert!(!Attached::Other.may_sign(&digest(1)));
        for name in ["v1", "r.lan/a:v1", "sha256-abc.sig", "sha256-.sig"] {
            assert_eq!(
                of(Some(name.to_owned()), None, Some("dev.cosignproject.cosign/image")),
                None,
                "{name}"
            );
        }
    }
}
