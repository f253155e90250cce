//! Cuts a root file system into chunks by its content, and writes the index of them.
//!
//! Always holds: the last 64 bytes of a chunk alone decide its end, so bytes that were inserted or removed
//! change the chunks around them and no others. The cuts are a matter of the builder alone: other cuts cost a
//! device more bytes, once. Leaves to others: reading the index (`kedge_core::slot::chunks`).

use sha2::{Digest, Sha256};

/// The first line of an index.
const FORMAT: &[u8] = b"kedge-chunks 1\n";
/// Shortest chunk, but for the last one.
const LEAST: usize = 4 << 10;
/// From here on a cut is likelier, so that most chunks are about this long.
const USUAL: usize = 16 << 10;
/// Longest chunk.
const MOST: usize = 64 << 10;
/// How many bits must be zero for a cut, before and after `USUAL`.
const BITS: [u32; 2] = [16, 12];
/// A number for each byte.
const GEAR: [u64; 256] = gear();

/// The index of a root: for each chunk its length less one (16 bits, little endian) and its SHA-256.
#[must_use]
pub fn index(mut root: &[u8]) -> Vec<u8> {
    let mut index = FORMAT.to_vec();
    while !root.is_empty() {
        let (chunk, rest) = root.split_at(cut(root));
        let less_one = u16::try_from(chunk.len().saturating_sub(1)).unwrap_or(u16::MAX);
        index.extend(less_one.to_le_bytes());
        index.extend(Sha256::digest(chunk));
        root = rest;
    }
    index
}

/// The length of the first chunk.
fn cut(root: &[u8]) -> usize {
    let most = root.len().min(MOST);
    let mut sum = 0_u64;
    for (at, byte) in root.iter().enumerate().take(most).skip(LEAST) {
        // a byte has left the sum after 64 others
        sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        let bits = BITS[usize::from(at >= USUAL)];
        if sum.leading_zeros() >= bits {
            return at.saturating_add(1);
        }
    }
    most
}

/// Steele, Lea and Flood's SplitMix64, from zero.
const fn gear() -> [u64; 256] {
    let (mut gear, mut state, mut at) = ([0; 256], 0_u64, 0);
    while at < gear.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        gear[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    gear
}
