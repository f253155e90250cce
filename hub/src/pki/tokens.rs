//! The key that signs tokens of service accounts.
//!
//! Always holds: it is made when it is missing, since every token can be asked for again; a damaged one is replaced, which is logged.
//! Left to others: what a token claims (`kedge_hub_core::identity::token`).

use std::path::Path;

use kedge_hub_core::identity::token::{Verifier, signed};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::Value;

use super::durable::{self, Flush};
use super::error::PkiError;

/// Signs and verifies tokens.
#[derive(Debug)]
pub struct Tokens {
    key: EcdsaKeyPair,
    /// Verifies what `key` signed.
    pub verifier: Verifier,
    /// Where the hub is reached, for the documents of the issuer.
    pub url: String,
}

impl Tokens {
    pub(super) fn open(path: &Path, url: &str) -> Result<Tokens, PkiError> {
        let pair = match load(path) {
            Ok(pair) => pair,
            Err(why) => {
                log::info!("{} is made anew: {why}", path.display());
                let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
                    .map_err(|source| PkiError::Signing { what: "key", source })?;
                durable::write(path, pair.serialize_pem().as_bytes(), durable::SECRET, Flush::Now)
                    .map_err(|source| PkiError::Unwritable { path: path.to_owned(), source })?;
                pair
            }
        };
        let der = pair.serialize_der();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &SystemRandom::new())
            .map_err(|error| PkiError::Corrupt { path: path.to_owned(), why: error.to_string() })?;
        let verifier = Verifier::new(pair.public_key_raw(), &pair.subject_public_key_info());
        Ok(Tokens { key, verifier, url: url.to_owned() })
    }

    /// The token of these claims; `None` if the system gives no random numbers.
    pub fn sign(&self, claims: &Value) -> Option<String> {
        let text = self.verifier.unsigned(claims);
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes()).ok()?;
        Some(signed(&text, signature.as_ref()))
    }
}

fn load(path: &Path) -> Result<KeyPair, String> {
    let text = durable::read(path).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    KeyPair::from_pem_and_sign_algo(&text, &PKCS_ECDSA_P256_SHA256).map_err(|error| error.to_string())
}
