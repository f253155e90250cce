//! Signatures of images: reading them from a source, and the verification that core is handed.
//!
//! Always holds: a signed text is read into memory within its limits of size and time, never to the disk; an
//! unusable one is skipped and reported, because another may serve; a source that does not answer is not
//! treated as one without signatures. Left to others: the content of a signature, and which ones convince
//! (`kedge_core::images::signature`).

use std::io::Read;

use kedge_core::images::BlobDigest;
use kedge_core::images::manifest::Blob;
use kedge_core::images::signature::{self, Algorithm, MAX_SIGNATURES, PublicKey, Signature};
use kedge_core::sorted::{SortedMap, SortedSet};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};

use super::error::{PullError, Sort};
use super::registry::{BODY, read_within};
use super::source::Source;

/// Whether a key made this signature of these bytes.
pub(super) fn is_by(key: &PublicKey, text: &[u8], signature: &[u8]) -> bool {
    let algorithm: &'static dyn VerificationAlgorithm = match key.algorithm {
        Algorithm::P256 => &ECDSA_P256_SHA256_ASN1,
        Algorithm::Ed25519 => &ED25519,
    };
    UnparsedPublicKey::new(algorithm, &key.bytes).verify(text, signature).is_ok()
}

/// A source's signatures for one manifest.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) signatures: SortedSet<Signature>,
    /// The first reason why signatures are missing or were skipped.
    pub(super) problem: Option<String>,
}

impl Found {
    /// Records why a signature of the source is unusable; a failure that may pass ends the search.
    fn passed_over(&mut self, error: PullError) -> Result<(), PullError> {
        match error.sort {
            Sort::Denied | Sort::Bad => {
                self.problem.get_or_insert(error.text);
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// The signatures that a source has for a manifest.
///
/// # Errors
/// The source did not answer, or the pull was cancelled: its signatures are unknown.
pub(super) fn of(source: &mut dyn Source, manifest: &BlobDigest) -> Result<Found, PullError> {
    let mut found = Found::default();
    let mut listed = Vec::new();
    match source.signatures(manifest) {
        Err(error) => found.passed_over(error)?,
        Ok(manifests) => {
            for bytes in manifests {
                match signature::listed(&bytes) {
                    Ok(more) => listed.extend(more),
                    Err(why) => found.passed_over(bad(source, manifest, &why))?,
                }
            }
        }
    }
    // a signer that signs again signs the same text
    let mut texts: SortedMap<BlobDigest, Vec<u8>> = SortedMap::new();
    let beyond = listed.len().saturating_sub(MAX_SIGNATURES);
    for one in listed.into_iter().skip(beyond) {
        let text = match texts.get(&one.payload.digest) {
            Some(text) => Ok(text.clone()),
            None => text(source, &one.payload),
        };
        let read = text.and_then(|text| {
            let signature = one.with_payload(&text).map_err(|why| bad(source, manifest, &why));
            texts.insert(one.payload.digest, text);
            signature
        });
        match read {
            Ok(signature) => {
                found.signatures.insert(signature);
            }
            Err(error) => found.passed_over(error)?,
        }
    }
    Ok(found)
}

fn bad(source: &dyn Source, manifest: &BlobDigest, why: &str) -> PullError {
    PullError::new(Sort::Bad, format!("{}: {}: {why}", source.shown(), signature::tag(manifest)))
}

/// A signed text; the caller checks its digest.
fn text(source: &mut dyn Source, blob: &Blob) -> Result<Vec<u8>, PullError> {
    let shown = format!("{}: signed text {}", source.shown(), blob.digest);
    let Some(stream) = source.blob(blob, 0)? else {
        return Err(PullError::new(Sort::Bad, format!("{shown}: it has no first byte")));
    };
    let (bytes, read) = read_within(BODY, stream.reader.take(blob.size_bytes + 1));
    read.map_err(|error| PullError::new(Sort::Unreachable, format!("{shown}: broke off: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    /// Made by `openssl dgst -sha256 -sign` and `openssl pkeyutl -sign -rawin`, like cosign's with such keys.
    const TEXT: &[u8] = br#"{"critical":{"identity":{"docker-reference":"r.lan/team/app"},"image":{"docker-manifest-digest":"sha256:0000000000000000000000000000000000000000000000000000000000000007"},"type":"cosign container image signature"},"optional":null}"#;
    const P256: [&str; 2] = [
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEIJweQBvnoC9gUotZyfRLDXrRpf16OBH88cGWIg16Z4BTLdHpcrMKxh1WYeZNeMNtnGCWXTvOa/Aqflv3T3V6Sg==",
        "MEQCICN/8duix1IF5U4rRX0uNip62MsN/WUlCw4Tr6B6tfNGAiAvsBDbRPRLLcSZ468m6c4j5yewA6vpCNAYtlgNS6NenQ==",
    ];
    const ED25519: [&str; 2] = [
        "MCowBQYDK2VwAyEAxdqg3KncHPWpNp+ahrwWIUO3aZ5EtYmmVxc+FeoxQFg=",
        "7LpIBhwFAFODI0ZZFPPrnBc0WRg7UbpLJxLWMQV00tzOHmJr8U40+RW0J0GcBgFN+hhzvq4tRqkhdXCB4gHPCQ==",
    ];

    #[test]
    fn signature_is_by_its_key_over_its_text() {
        let keys = [P256, ED25519].map(|[key, signature]| {
            let pem = format!("-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n");
            (PublicKey::parse(&pem).unwrap(), BASE64_STANDARD.decode(signature).unwrap())
        });
        for (at, (key, signature)) in keys.iter().enumerate() {
            assert!(is_by(key, TEXT, signature));
            assert!(!is_by(key, &TEXT[1..], signature), "another text");
            assert!(!is_by(&keys[1 - at].0, TEXT, signature), "another key");
            assert!(!is_by(key, TEXT, &signature[1..]) && !is_by(key, TEXT, b""), "no signature");
            let mut changed = signature.clone();
            *changed.last_mut().unwrap() ^= 1;
            assert!(!is_by(key, TEXT, &changed), "a changed one");
        }
    }
}
