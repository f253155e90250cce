//! The key that signs tokens of service accounts.
//!
//! Always holds: a missing key is made, since clients can request every token again; a damaged one is
//! replaced and kept aside. A key file that cannot be read is left alone: it may be good. Neither that nor a
//! disk that cannot be written keeps the hub from starting; the key is then valid until the next start only.
//! Left to others: the claims of a token (`kedge_hub_core::identity::token`).

use std::path::Path;
use std::{fs, io};

use kedge_hub_core::identity::token::{Verifier, signed};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::Value;

use super::error::PkiError;
use super::if_the_disk_lets;
use crate::files::{self, Flush};

/// The file to which a damaged key is moved.
const DAMAGED: &str = "tokens.pem.damaged";

/// Signs and verifies tokens.
#[derive(Debug)]
pub struct Tokens {
    key: EcdsaKeyPair,
    /// Verifies signatures of `key`.
    pub verifier: Verifier,
    /// The URL of the hub in the documents of the issuer.
    pub url: String,
}

impl Tokens {
    pub(super) fn open(path: &Path, url: &str) -> Result<Tokens, PkiError> {
        let pair = match load(path) {
            Ok(pair) => pair,
            Err(fault) => replaced(path, fault)?,
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

/// The reason why no key could be loaded.
enum Fault {
    Missing,
    /// The file exists and contains no valid key.
    Damaged(String),
    /// The key may be good.
    Unreadable(io::Error),
}

fn load(path: &Path) -> Result<KeyPair, Fault> {
    let text = files::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::Missing,
        io::ErrorKind::InvalidData => Fault::Damaged(error.to_string()),
        _ => Fault::Unreadable(error),
    })?;
    let text = String::from_utf8(text).map_err(|error| Fault::Damaged(error.to_string()))?;
    KeyPair::from_pem_and_sign_algo(&text, &PKCS_ECDSA_P256_SHA256)
        .map_err(|error| Fault::Damaged(error.to_string()))
}

/// A new key, stored unless the file may hold a good one.
fn replaced(path: &Path, fault: Fault) -> Result<KeyPair, PkiError> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|source| PkiError::Signing { what: "key", source })?;
    let unwritable = |source| PkiError::Unwritable { path: path.to_owned(), source };
    let store =
        || files::write(path, pair.serialize_pem().as_bytes(), files::SECRET, Flush::Now).map_err(unwritable);
    let shown = path.display();
    match fault {
        Fault::Missing => {
            log::info!("{shown} is made: there was no key for tokens");
            if_the_disk_lets(store())?;
        }
        Fault::Damaged(why) => {
            log::error!(
                "{shown} is made anew: {why}; tokens of before are refused; the old file is {DAMAGED} beside it"
            );
            let kept = fs::rename(path, path.with_file_name(DAMAGED)).map_err(unwritable);
            if_the_disk_lets(kept.and_then(|()| store()))?;
        }
        Fault::Unreadable(error) => log::error!(
            "cannot read {shown}: {error}; it stays as it is, and until it is read at a start tokens of before are refused"
        ),
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::super::test_directory;
    use super::*;

    fn id(path: &Path) -> String {
        Tokens::open(path, "https://h").unwrap().verifier.id
    }

    #[test]
    fn key_is_made_once() {
        let directory = test_directory("tokens-once");
        let path = directory.join("tokens.pem");
        assert_eq!(id(&path), id(&path));
    }

    #[test]
    fn damaged_key_is_replaced_and_kept_aside() {
        let directory = test_directory("tokens-damaged");
        let path = directory.join("tokens.pem");
        for damage in [&b""[..], b"-----BEGIN", &[0xff; 9]] {
            let before = id(&path);
            fs::write(&path, damage).unwrap();
            let after = id(&path);
            assert_ne!(after, before);
            assert_eq!(id(&path), after, "it is stored");
            assert_eq!(fs::read(directory.join(DAMAGED)).unwrap(), damage);
        }
    }

    #[test]
    fn key_that_cannot_be_read_is_not_overwritten() {
        let directory = test_directory("tokens-unreadable");
        let path = directory.join("tokens.pem");
        // the path exists, and every read of it fails, also for root
        fs::create_dir(&path).unwrap();
        fs::write(path.join("kept"), "x").unwrap();
        assert_ne!(id(&path), id(&path), "a key in memory");
        assert!(path.join("kept").exists());
        let names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["tokens.pem"], "nothing was written");
    }
}
