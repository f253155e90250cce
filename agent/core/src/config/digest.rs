//! SHA-256 digests: of a checkpoint's bytes, and the identity of a configuration.
//!
//! Always holds: a `ConfigId` names one payload under one set of overrides, whichever object has the payload.
//! The verdict whether a config is valid belongs to the id, so that an edit of a drop-in is like an upgrade:
//! a fresh trial. The verdicts on a config's behaviour belong to its payload, or a drop-in that some program
//! rewrites at each boot would switch the protection off. No verdict belongs to a time or a file.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// A SHA-256 digest, written as 64 lower case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads 64 hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| (c as char).to_digit(16);
            *byte = digit(pair[0])?.saturating_mul(16).saturating_add(digit(pair[1])?) as u8;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("expected 64 hex digits"))
    }
}

/// The content id, to which verdicts on the text belong: SHA-256 over the payload, and the canonical merged
/// drop-ins and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConfigId(Digest);

impl ConfigId {
    pub fn of(payload: &[u8], overrides: &[u8]) -> Self {
        Self::over(&[payload, overrides])
    }

    /// The id in the first release's form, for one object: its records are found by this id.
    pub(crate) fn older(uid: &str, payload: &[u8], overrides: &[u8]) -> Self {
        Self::over(&[uid.as_bytes(), payload, overrides])
    }

    /// Each part is preceded by its length, so that no two different lists give the same bytes.
    fn over(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(Digest(hash.finalize().into()))
    }

    /// Reads 64 hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        Digest::parse(text).map(Self)
    }
}

impl fmt::Display for ConfigId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Distinguishes one content from all others. The payload itself is not kept: it may have a mebibyte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Together with this board's drop-ins and flags.
    pub id: ConfigId,
    pub payload: Digest,
    /// The id under which the first release recorded it.
    older: ConfigId,
}

impl Identity {
    pub fn of(uid: &str, payload: &[u8], overrides: &[u8]) -> Self {
        Self {
            id: ConfigId::of(payload, overrides),
            payload: Digest::of(payload),
            older: ConfigId::older(uid, payload, overrides),
        }
    }

    /// Whether a record under this id is about this content.
    pub(crate) fn is_called(&self, id: ConfigId) -> bool {
        id == self.id || id == self.older
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_read_as_written_and_nothing_else() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(format!("{digest:?}"), "e3b0c442", "enough to tell two apart");
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        for wrong in ["", "e3", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn id_depends_on_each_part_and_where_it_ends() {
        let id = ConfigId::of(b"p", b"o");
        for other in [("q", "o"), ("p", "n"), ("po", ""), ("", "po")] {
            assert_ne!(id, ConfigId::of(other.0.as_bytes(), other.1.as_bytes()));
        }
        let id = ConfigId::older("u", b"p", b"o");
        for other in [("v", "p", "o"), ("u", "q", "o"), ("u", "p", "n"), ("up", "", "o"), ("u", "po", "")] {
            assert_ne!(id, ConfigId::older(other.0, other.1.as_bytes(), other.2.as_bytes()));
        }
    }
}
