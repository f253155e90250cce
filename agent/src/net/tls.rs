//! What protects the agent's connections: rustls by ring.
//!
//! Always holds: the same as rustls' own choice, but that on x86_64 no ChaCha20 is offered. It serves processors
//! without instructions for AES, which x86_64 has had since 2010; every server must know AES for TLS 1.3; and
//! ring's ChaCha20 for x86_64 has 46 kB. So nothing here may name rustls' list of all ciphers, or the compiler
//! keeps it. `default_provider` of rustls does.

use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::crypto::ring::cipher_suite::*;
use rustls::crypto::ring::{ALL_KX_GROUPS, sign};
use rustls::crypto::{CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use rustls::{SignatureScheme, SupportedCipherSuite};
use std::sync::Arc;
use webpki::ring as known;
use zeroize::Zeroizing;

/// In the order of preference.
const SUITES: &[SupportedCipherSuite] = &[
    TLS13_AES_256_GCM_SHA384,
    TLS13_AES_128_GCM_SHA256,
    #[cfg(not(target_arch = "x86_64"))]
    TLS13_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    #[cfg(not(target_arch = "x86_64"))]
    TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    #[cfg(not(target_arch = "x86_64"))]
    TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// The signatures that are believed, on certificates and in handshakes.
pub static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        known::ECDSA_P256_SHA256,
        known::ECDSA_P256_SHA384,
        known::ECDSA_P384_SHA256,
        known::ECDSA_P384_SHA384,
        known::ED25519,
        known::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        known::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        known::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        known::RSA_PKCS1_2048_8192_SHA256,
        known::RSA_PKCS1_2048_8192_SHA384,
        known::RSA_PKCS1_2048_8192_SHA512,
        known::RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
        known::RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
        known::RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    ],
    // in TLS 1.2 the scheme does not name the curve
    mapping: &[
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[known::ECDSA_P384_SHA384, known::ECDSA_P256_SHA384]),
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[known::ECDSA_P256_SHA256, known::ECDSA_P384_SHA256]),
        (SignatureScheme::ED25519, &[known::ED25519]),
        (SignatureScheme::RSA_PSS_SHA512, &[known::RSA_PSS_2048_8192_SHA512_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA384, &[known::RSA_PSS_2048_8192_SHA384_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA256, &[known::RSA_PSS_2048_8192_SHA256_LEGACY_KEY]),
        (SignatureScheme::RSA_PKCS1_SHA512, &[known::RSA_PKCS1_2048_8192_SHA512]),
        (SignatureScheme::RSA_PKCS1_SHA384, &[known::RSA_PKCS1_2048_8192_SHA384]),
        (SignatureScheme::RSA_PKCS1_SHA256, &[known::RSA_PKCS1_2048_8192_SHA256]),
    ],
};

/// For every connection of the agent, whichever side it is.
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: SUITES.to_vec(),
        kx_groups: ALL_KX_GROUPS.to_vec(),
        signature_verification_algorithms: SIGNATURES,
        secure_random: &Ring,
        key_provider: &Ring,
    }
}

#[derive(Debug)]
struct Ring;

impl SecureRandom for Ring {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        SystemRandom::new().fill(buffer).map_err(|_| GetRandomFailed)
    }
}

impl KeyProvider for Ring {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        // its copy is wiped, as rustls does
        sign::any_supported_type(&Zeroizing::new(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::ring::default_provider;

    #[test]
    fn offers_what_rustls_does_but_chacha_on_x86_64() {
        let (ours, theirs) = (provider(), default_provider());
        let names = |of: &CryptoProvider| -> Vec<String> {
            let suites = of.cipher_suites.iter().map(|suite| format!("{:?}", suite.suite()));
            suites.filter(|name| cfg!(not(target_arch = "x86_64")) || !name.contains("CHACHA20")).collect()
        };
        assert_eq!(names(&ours), names(&theirs));
        assert_eq!(ours.cipher_suites.len(), names(&ours).len());
        let groups = |of: &CryptoProvider| of.kx_groups.iter().map(|group| group.name()).collect::<Vec<_>>();
        assert_eq!(groups(&ours), groups(&theirs));
        let (ours, theirs) = (SIGNATURES, theirs.signature_verification_algorithms);
        assert_eq!(ours.supported_schemes(), theirs.supported_schemes());
        let of = |algorithms: &[&'static dyn rustls::pki_types::SignatureVerificationAlgorithm]| {
            let ids = algorithms.iter().map(|one| (one.public_key_alg_id(), one.signature_alg_id()));
            ids.collect::<Vec<_>>()
        };
        assert_eq!(of(ours.all), of(theirs.all));
        assert_eq!(ours.mapping.len(), theirs.mapping.len());
        for (ours, theirs) in ours.mapping.iter().zip(theirs.mapping) {
            assert_eq!((ours.0, of(ours.1)), (theirs.0, of(theirs.1)));
        }
    }

    /// What the agent links must not name the list of all ciphers.
    #[test]
    fn nothing_in_the_agent_takes_the_default_provider() {
        fn sources(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                match entry.path() {
                    path if path.is_dir() => sources(&path, found),
                    path => found.push(path),
                }
            }
        }
        let mut found = Vec::new();
        sources(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
        assert!(found.len() > 100);
        let word = concat!("default", "_provider()");
        for path in found {
            let text = std::fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_test = path.ends_with("tests.rs");
            assert!(is_test || !product.contains(word), "{} takes all of rustls' ciphers", path.display());
        }
    }
}
