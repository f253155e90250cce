//! Archives that cannot be unpacked: remembered so that flash is not written with them again and again.
//!
//! Always holds: an archive that failed [`MOST_TRIES`] times is not tried again by this agent; the memory is
//! bounded, and lost by a restart. The key is the archive and the layers below it: another image with the
//! same layer in another archive is not affected. Leaves to others: which failures are the archive's own.

use crate::sorted::SortedMap;
use kedge_api::excerpt_of;

use super::digest::BlobDigest;

/// How often one is tried: a failure may have been this machine's.
const MOST_TRIES: u32 = 3;
/// Most archives remembered; about 300 bytes each. Beyond that an earlier one is tried again: failing pulls
/// are rare because of their back-off.
const MAX_ARCHIVES: usize = 64;
const REASON_CHARS: usize = 200;

/// The failures so far.
#[derive(Debug, Default)]
pub struct BadArchives {
    failed: SortedMap<BlobDigest, (u32, String)>,
}

impl BadArchives {
    /// The key of archives that are unpacked into the layer of this chain.
    pub fn key<'a>(chain: &BlobDigest, archives: impl IntoIterator<Item = &'a BlobDigest>) -> BlobDigest {
        let mut text = chain.to_string();
        archives.into_iter().for_each(|archive| text.push_str(&archive.to_string()));
        BlobDigest::of(text.as_bytes())
    }

    /// Records a failure.
    pub fn failed(&mut self, key: BlobDigest, why: &str) {
        if self.failed.len() >= MAX_ARCHIVES && !self.failed.contains_key(&key) {
            self.failed.pop_first();
        }
        let (tries, reason) = self.failed.entry(key).or_default();
        *tries = tries.saturating_add(1);
        *reason = excerpt_of(why, REASON_CHARS);
    }

    /// Why it is not tried again; `None` if it may be.
    #[must_use]
    pub fn refusal(&self, key: &BlobDigest) -> Option<String> {
        let (_, reason) = self.failed.get(key).filter(|(tries, _)| *tries >= MOST_TRIES)?;
        Some(format!(
            "{reason} (tried {MOST_TRIES} times; not again before the agent restarts, or by `kedge images pull`)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_that_failed_thrice_is_refused() {
        let mut bad = BadArchives::default();
        let (chain, one, two) = (BlobDigest::of(b"c"), BlobDigest::of(b"1"), BlobDigest::of(b"2"));
        let (key, other) = (BadArchives::key(&chain, [&one]), BadArchives::key(&chain, [&two]));
        for _ in 0..MOST_TRIES {
            assert_eq!(bad.refusal(&key), None);
            bad.failed(key, "layer: not a tar");
        }
        assert!(bad.refusal(&key).unwrap().starts_with("layer: not a tar (tried 3 times"));
        assert_eq!(bad.refusal(&other), None, "the same layer in another archive");
        for number in 0..1000_u32 {
            bad.failed(BlobDigest::of(&number.to_le_bytes()), &"x".repeat(1 << 20));
        }
        assert!(
            bad.failed.len() <= MAX_ARCHIVES
                && bad.failed.values().all(|(_, why)| why.len() <= REASON_CHARS + 3)
        );
    }
}
