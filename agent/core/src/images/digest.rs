//! Digests of blobs, as registries write them: `sha256:` and 64 lower case hexadecimal digits.
//!
//! Always holds: a value is safe as a file's name, and two texts of one value are equal. Other algorithms are
//! refused, and the error names them: no registry in use needs them, and a second one would double the code
//! that has to be trusted.

use std::fmt;

use kedge_api::excerpt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::digest::Digest;

const PREFIX: &str = "sha256:";

/// The digest of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest(Digest);

impl BlobDigest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Digest::of(bytes))
    }

    /// Reads `sha256:` and 64 lower case hexadecimal digits.
    ///
    /// # Errors
    /// The text found, and the form expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("digest is {:?}, expected sha256: and 64 lower case hexadecimal digits", excerpt(text))
        };
        let hex = text.strip_prefix(PREFIX).ok_or_else(wrong)?;
        if hex.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(wrong());
        }
        Digest::parse(hex).map(Self).ok_or_else(wrong)
    }

    /// The hexadecimal digits alone: a file's name.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.to_string()
    }

    /// The name of a chain of layers: of the first one its own digest, of each further one a digest over the
    /// chain below and its own (OCI image specification, "Layer ChainID").
    #[must_use]
    pub fn chain(below: Option<&Self>, layer: &Self) -> Self {
        match below {
            None => *layer,
            Some(below) => Self::of(format!("{below} {layer}").as_bytes()),
        }
    }

    /// The name of a directory with all layers of this chain merged, for a node without overlayfs. It differs
    /// from the name of the chain's top layer, which has only the top's own files: a node that gets overlayfs
    /// later must not take one for the other.
    #[must_use]
    pub fn merged(&self) -> Self {
        Self::of(format!("merged {self}").as_bytes())
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

impl Serialize for BlobDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlobDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_spelling_of_a_digest_is_read() {
        let hex = "ab".repeat(32);
        assert_eq!(BlobDigest::parse(&format!("sha256:{hex}")).unwrap().hex(), hex);
        for text in [
            hex.clone(),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha512:{hex}{hex}"),
            format!("sha256:{}", &hex[2..]),
            format!("sha256:../{}", &hex[3..]),
            String::new(),
        ] {
            assert!(BlobDigest::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn chain_is_that_of_the_specification() {
        let (first, second) = (BlobDigest::of(b"1"), BlobDigest::of(b"2"));
        assert_eq!(BlobDigest::chain(None, &first), first);
        let expected = BlobDigest::of(format!("{first} {second}").as_bytes());
        assert_eq!(BlobDigest::chain(Some(&first), &second), expected);
    }
}
