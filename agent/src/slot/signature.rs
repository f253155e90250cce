//! Whether an update comes from somebody who may make updates for this image: the signature in its manifest.
//!
//! Always holds: an image that was built with keys accepts no update without a signature of one of them, and
//! one with unreadable keys accepts no update at all; an image without keys requires no signature. The
//! signature covers all of the manifest before it, and so, by their digests, everything that is written;
//! nothing may follow it. The manifest is not parsed before the check. Leaves to others: the meaning of the
//! manifest (`kedge_core::slot::admission`), and whether the content matches it (`steps`).

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kedge_platform::linux::{self, Roots};
use kedge_platform::{Entry, Files, ReadError};
use ring::signature::{ED25519, UnparsedPublicKey};
use std::path::Path;

/// Below `/usr/lib`, in the image's read-only root.
const FOLDER: &str = "kedge-image/update-keys";
/// A key in PEM has 113 bytes.
const KEY_BYTES: usize = 4096;
/// The key in use, one that will replace it, and a few for separate teams.
const KEYS: usize = 8;
/// The begin of an Ed25519 key as a SubjectPublicKeyInfo in DER (RFC 8410); 32 bytes follow.
const DER: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The manifest's last line.
const LINE: &str = "signature ";

/// The public keys of an image, each with the name of its file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Keys(Vec<(String, Vec<u8>)>);

impl Keys {
    /// Those of the running image; none if it was built without.
    pub(super) fn read(roots: &Roots) -> Result<Self, String> {
        let folder = roots.usr_lib.join(FOLDER);
        let files = linux::files(&folder);
        let failed = |error: ReadError| {
            format!("cannot read the keys in {}: {}", folder.display(), crate::errors::chain(&error))
        };
        let listing = match files.list(Path::new(""), KEYS) {
            Err(ReadError::NotFound { .. }) => return Ok(Self::default()),
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
        listing.entries.into_iter().map(key).collect::<Result<_, _>>().map(Self)
    }

    /// The name of the key that signed the manifest; `None` if no signature is required.
    ///
    /// # Errors
    /// Why the update is refused.
    pub(super) fn verify(&self, manifest: &[u8]) -> Result<Option<&str>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let wanted = "and this image takes only updates that are signed by one of its keys";
        let (signed, signature) =
            split(manifest).ok_or_else(|| format!("the update carries no signature, {wanted}"))?;
        let of = |key: &[u8]| UnparsedPublicKey::new(&ED25519, key).verify(signed, &signature).is_ok();
        let found = self.0.iter().find(|(_, key)| of(key));
        let names = || self.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        found.map(|(name, _)| Some(name.as_str())).ok_or_else(|| {
            format!("the update's signature is of none of this image's keys ({}), {wanted}", names())
        })
    }
}

/// The signed part, and the signature: the last line, followed by newlines only.
fn split(manifest: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let text = std::str::from_utf8(manifest).ok()?.trim_end_matches('\n');
    let (begin, last) = text.rsplit_once('\n')?;
    let signature = BASE64_STANDARD.decode(last.strip_prefix(LINE)?).ok()?;
    // with the newline that ends it
    Some((&manifest[..=begin.len()], signature))
}

fn public_key(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    let (_, rest) = text.split_once("-----BEGIN PUBLIC KEY-----")?;
    let (body, _) = rest.split_once("-----END PUBLIC KEY-----")?;
    let body: String = body.split_whitespace().collect();
    let der = BASE64_STANDARD.decode(body).ok()?;
    der.strip_prefix(&DER).filter(|key| key.len() == 32).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    /// Made by `openssl genpkey -algorithm ed25519`, and the signature of [`SIGNED`] by `openssl pkeyutl
    /// -sign -rawin` with it.
    const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAhnLSVcIEYF/1dqEeaFE09igBAZ40uGWXtWpUNcDu1cI=\n-----END PUBLIC KEY-----\n";
    const SIGNED: &str = "kedge-update 1\nboard toaster\n";
    const SIGNATURE: &str =
        "IiMhRnpOFT3cCzKfVmgTNdxLaBlVmaOFhT0ebHizzrU1TgMRT0kW1MSQBqsVimsIap37rqw/luARFsRTvDQHCA==";

    fn roots(keys: &[(&str, &str)]) -> (Scratch, Roots) {
        let scratch = Scratch::new("keys").unwrap();
        for (name, text) in keys {
            scratch.write(&format!("usr/lib/{FOLDER}/{name}"), text);
        }
        let roots = Roots::under(scratch.path());
        (scratch, roots)
    }

    fn read(keys: &[(&str, &str)]) -> Result<Keys, String> {
        Keys::read(&roots(keys).1)
    }

    fn manifest() -> Vec<u8> {
        let mut bytes = format!("{SIGNED}{LINE}{SIGNATURE}\n").into_bytes();
        bytes.resize(4096, b'\n');
        bytes
    }

    #[test]
    fn image_without_keys_asks_for_no_signature() {
        let keys = read(&[]).unwrap();
        assert_eq!(keys.verify(b"kedge-update 1\n"), Ok(None));
        assert_eq!(keys.verify(&manifest()), Ok(None), "of a key that it does not know");
    }

    #[test]
    fn update_that_openssl_signed_is_verified() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let der = [&DER, pair.public_key().as_ref()].concat();
        let other = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64_STANDARD.encode(der)
        );
        let keys = read(&[("2026.pem", KEY), ("2025.pem", &other)]).unwrap();
        assert_eq!(keys.verify(&manifest()), Ok(Some("2026.pem")));
        let signature = BASE64_STANDARD.encode(pair.sign(SIGNED.as_bytes()));
        let by_other = format!("{SIGNED}{LINE}{signature}\n\n");
        assert_eq!(keys.verify(by_other.as_bytes()), Ok(Some("2025.pem")));
    }

    #[test]
    fn altered_or_unsigned_update_is_refused() {
        let keys = read(&[("2026.pem", KEY)]).unwrap();
        for at in 0..SIGNED.len() + LINE.len() + SIGNATURE.len() {
            let mut altered = manifest();
            altered[at] ^= 1;
            assert!(keys.verify(&altered).is_err(), "byte {at}");
        }
        let check = |manifest: &str, expect: &str| {
            let why = keys.verify(manifest.as_bytes()).unwrap_err();
            assert!(why.starts_with(expect), "{why}, expected {expect}");
        };
        check(SIGNED, "the update carries no signature, and this image takes only");
        check("", "the update carries no signature");
        check(
            &format!("{SIGNED}{LINE}"),
            "the update's signature is of none of this image's keys (2026.pem)",
        );
        check(
            &format!("{SIGNED}{LINE}{SIGNATURE}\noptions init=/bin/sh\n"),
            "the update carries no signature",
        );
        check(
            &format!("options init=/bin/sh\n{SIGNED}{LINE}{SIGNATURE}\n"),
            "the update's signature is of none",
        );
        check(
            &format!("{SIGNED}{LINE}{SIGNATURE}\n{LINE}{SIGNATURE}\n"),
            "the update's signature is of none",
        );
    }

    #[test]
    fn image_whose_keys_are_damaged_takes_no_update() {
        let check = |keys: &[(&str, &str)], expect: &str| {
            let why = read(keys).unwrap_err();
            assert!(why.contains(expect), "{why}, expected {expect}");
        };
        check(&[("a.pem", KEY), ("b.pem", "")], "b.pem is no Ed25519 public key in PEM");
        check(&[("a.pem", &KEY.replace("MCow", "MCov"))], "a.pem is no Ed25519 public key");
        check(&[("a.pem", &"x".repeat(KEY_BYTES + 1))], "expected at most 4096");
        check(&[("a.pem/b", KEY)], "a.pem is a directory, expected a file");
        let names = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| format!("{number}.pem"));
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), KEY)).collect();
        check(&all, "more than 8 keys");
        let (scratch, roots) = roots(&[]);
        std::fs::create_dir_all(scratch.join(format!("usr/lib/{FOLDER}"))).unwrap();
        assert!(Keys::read(&roots).unwrap_err().contains("update-keys has no key"));
        std::fs::remove_dir(scratch.join(format!("usr/lib/{FOLDER}"))).unwrap();
        scratch.write(&format!("usr/lib/{FOLDER}"), KEY);
        assert!(Keys::read(&roots).is_err(), "unknown is not empty");
    }
}
