//! The arithmetic of signatures, and the keys that an image was built with.
//!
//! Always holds: unreadable keys are an error, never an absence of keys. Leaves to others: which keys count,
//! and the texts that they sign (`kedge_core::slot::{keys, manifest}`); lists of keys (`keys`).

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kedge_core::slot::keys::Key;
use kedge_platform::linux;
use kedge_platform::{Entry, Files, ReadError};
use ring::signature::{ED25519, UnparsedPublicKey};
use std::path::Path;

/// A key in PEM has 113 bytes.
const KEY_BYTES: usize = 4096;
/// The key in use, one that will replace it, and a few for separate teams.
const KEYS: usize = 8;
/// The begin of an Ed25519 key as a SubjectPublicKeyInfo in DER (RFC 8410); 32 bytes follow.
const DER: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Whether an Ed25519 signature is this key's over these bytes.
pub(crate) fn check(key: &Key, signed: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(signed, signature).is_ok()
}

/// The public keys in the files of a folder, each with the name of its file; empty if the folder is missing.
pub(super) fn public_keys(folder: &Path) -> Result<Vec<(String, Key)>, String> {
    let files = linux::files(folder);
    let failed = |error: ReadError| {
        format!("cannot read the keys in {}: {}", folder.display(), crate::errors::chain(&error))
    };
    let listing = match files.list(Path::new(""), KEYS) {
        Err(ReadError::NotFound { .. }) => return Ok(Vec::new()),
        listing => listing.map_err(failed)?,
    };
    if listing.entries.is_empty() {
        return Err(format!("{} has no key, expected one of those that sign updates", folder.display()));
    }
    if listing.truncated {
        return Err(format!("{} has more than {KEYS} keys", folder.display()));
    }
    let key = |entry: Entry| {
        let bytes = files.read(Path::new(&entry.name), KEY_BYTES).map_err(failed)?;
        let name = entry.name.to_string_lossy().into_owned();
        let key = public_key(&bytes);
        key.map(|key| (name.clone(), key))
            .ok_or_else(|| format!("{} is no Ed25519 public key in PEM", folder.join(name).display()))
    };
    listing.entries.into_iter().map(key).collect()
}

fn public_key(pem: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(pem).ok()?;
    let (_, rest) = text.split_once("-----BEGIN PUBLIC KEY-----")?;
    let (body, _) = rest.split_once("-----END PUBLIC KEY-----")?;
    let body: String = body.split_whitespace().collect();
    let der = BASE64_STANDARD.decode(body).ok()?;
    der.strip_prefix(&DER)?.try_into().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use kedge_core::slot::keys::Trust;
    use kedge_core::slot::manifest::{Terms, verify};
    use kedge_rig::Scratch;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    /// Made by `openssl genpkey -algorithm ed25519`, and the signature of [`SIGNED`] by `openssl pkeyutl
    /// -sign -rawin` with it.
    pub(in crate::slot) const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAhnLSVcIEYF/1dqEeaFE09igBAZ40uGWXtWpUNcDu1cI=\n-----END PUBLIC KEY-----\n";
    const SIGNED: &str = "kedge-update 1\nboard toaster\n";
    const SIGNATURE: &str =
        "IiMhRnpOFT3cCzKfVmgTNdxLaBlVmaOFhT0ebHizzrU1TgMRT0kW1MSQBqsVimsIap37rqw/luARFsRTvDQHCA==";

    fn read(keys: &[(&str, &str)]) -> Result<Vec<(String, Key)>, String> {
        let scratch = Scratch::new("keys").unwrap();
        for (name, text) in keys {
            scratch.write(&format!("keys/{name}"), text);
        }
        public_keys(&scratch.join("keys"))
    }

    #[test]
    fn update_that_openssl_signed_is_verified() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let der = [&DER, pair.public_key().as_ref()].concat();
        let other = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64_STANDARD.encode(der)
        );
        let trust = Trust::Keys(read(&[("2026.pem", KEY), ("2025.pem", &other)]).unwrap());
        let terms =
            Terms { board: "toaster", running: "", trust: &trust, allows_older: true, below_floor: false };
        let why = |manifest: &str| {
            verify(manifest.as_bytes(), None, &terms, &check).expect_err("it is not whole").text
        };
        // the signature is right, and covers an incomplete manifest
        let whole = "the manifest has 0 lines \"vmlinuz\", expected one";
        assert_eq!(why(&format!("{SIGNED}signature {SIGNATURE}\n\n\n")), whole);
        let signature = BASE64_STANDARD.encode(pair.sign(SIGNED.as_bytes()));
        assert_eq!(why(&format!("{SIGNED}signature {signature}\n")), whole);
        let foreign = "the update's signature is of none of this image's keys (";
        assert!(why(&format!("{SIGNED}\nsignature {SIGNATURE}\n")).starts_with(foreign));
    }

    #[test]
    fn damaged_keys_are_no_absence_of_keys() {
        let check = |keys: &[(&str, &str)], expect: &str| {
            let why = read(keys).unwrap_err();
            assert!(why.contains(expect), "{why}, expected {expect}");
        };
        assert_eq!(read(&[]), Ok(Vec::new()));
        check(&[("a.pem", KEY), ("b.pem", "")], "b.pem is no Ed25519 public key in PEM");
        check(&[("a.pem", &KEY.replace("MCow", "MCov"))], "a.pem is no Ed25519 public key");
        check(&[("a.pem", &"x".repeat(KEY_BYTES + 1))], "expected at most 4096");
        check(&[("a.pem/b", KEY)], "a.pem is a directory, expected a file");
        let names = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| format!("{number}.pem"));
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), KEY)).collect();
        check(&all, "more than 8 keys");
        let scratch = Scratch::new("keys").unwrap();
        std::fs::create_dir_all(scratch.join("keys")).unwrap();
        assert!(public_keys(&scratch.join("keys")).unwrap_err().contains("keys has no key"));
        std::fs::remove_dir(scratch.join("keys")).unwrap();
        scratch.write("keys", KEY);
        assert!(public_keys(&scratch.join("keys")).is_err(), "unknown is not empty");
    }
}
