//! The index of a root: its chunks, by which a device finds in its running root what it need not fetch.
//!
//! Always holds: the chunks of an index cover the root without a gap, in order; a plan covers the wanted root
//! the same way. A plan only claims that a chunk is in the running root: the reader compares each chunk's
//! digest. The memory is that of the two indexes and eight bytes a chunk. Leaves to others: cutting a root
//! (`images/chunks`), reading, fetching and writing (`agent/src/system`).

use std::ops::Range;

/// The first line of an index.
pub const FORMAT: &[u8; 15] = b"kedge-chunks 1\n";
/// Largest index: a root of 200 MiB and more.
pub const INDEX_BYTES: usize = 512 * 1024;
/// Longest chunk.
pub const CHUNK_BYTES: usize = 1 << 16;
/// Of a chunk in the index: its length less one (little endian), and its SHA-256.
pub const ENTRY_BYTES: usize = 34;

/// The chunks of a root.
#[derive(Debug, Default, Clone, Copy)]
pub struct Index<'a>(&'a [[u8; ENTRY_BYTES]]);

impl<'a> Index<'a> {
    /// The index of a root of this size.
    ///
    /// # Errors
    /// It is not an index, or that of another size.
    pub fn parse(bytes: &'a [u8], root_bytes: u64) -> Result<Self, String> {
        let entries = bytes.strip_prefix(FORMAT).filter(|_| bytes.len() <= INDEX_BYTES);
        let (entries, rest) = entries.ok_or("the index of chunks has an unknown format")?.as_chunks();
        let index = Self(entries);
        let sum = index.chunks().fold(0_u64, |sum, (bytes, _)| sum.saturating_add(bytes.into()));
        match rest.is_empty() && sum == root_bytes {
            true => Ok(index),
            false => Err(format!("the index is of {sum} bytes, the root has {root_bytes}")),
        }
    }

    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Length and SHA-256 of a chunk.
    pub fn chunk(&self, number: usize) -> Option<(u32, &'a [u8])> {
        self.0.get(number).map(|entry| {
            let [low, high, digest @ ..] = entry;
            (u32::from(u16::from_le_bytes([*low, *high])).saturating_add(1), &digest[..])
        })
    }

    /// All chunks.
    pub fn chunks(&self) -> impl Iterator<Item = (u32, &'a [u8])> {
        let index = *self;
        (0..self.len()).filter_map(move |number| index.chunk(number))
    }
}

/// The chunks of the running root, by their digests.
#[derive(Debug, Default)]
pub struct Local<'a> {
    index: Index<'a>,
    /// Number of each chunk, and its place in the root; sorted by the digests.
    chunks: Vec<(u32, u32)>,
}

impl<'a> Local<'a> {
    /// Sorts the chunks of an index.
    pub fn new(index: Index<'a>) -> Self {
        let mut at = 0_u32;
        let mut chunks = Vec::with_capacity(index.len());
        for (number, (bytes, _)) in (0_u32..).zip(index.chunks()) {
            chunks.push((number, at));
            // at most a gigabyte: INDEX_BYTES / ENTRY_BYTES * CHUNK_BYTES
            at = at.saturating_add(bytes);
        }
        chunks.sort_unstable_by_key(|(number, _)| {
            index.chunk(*number as usize).map(|(bytes, digest)| (digest, bytes))
        });
        Self { index, chunks }
    }

    /// Where a chunk is in the running root; at `after` rather than elsewhere, because one long read is
    /// faster than two short ones.
    fn find(&self, chunk: (u32, &[u8]), after: Option<u64>) -> Option<u64> {
        let (bytes, digest) = chunk;
        let own = |number: u32| self.index.chunk(number as usize).map(|(bytes, digest)| (digest, bytes));
        let wanted = Some((digest, bytes));
        let first = self.chunks.partition_point(|(number, _)| own(*number) < wanted);
        let same = self.chunks.get(first..)?.iter().take_while(|(number, _)| own(*number) == wanted);
        let mut places = same.map(|(_, at)| u64::from(*at)).peekable();
        let first = *places.peek()?;
        Some(after.filter(|after| places.any(|at| at == *after)).unwrap_or(first))
    }
}

/// From where a part of the wanted root comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From the running root, at this offset.
    Local(u64),
    /// It was fetched before.
    Held,
    /// From the server.
    Remote,
}

/// Consecutive chunks of the wanted root that come from one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// That place.
    pub source: Source,
    /// Where they begin in the wanted root.
    pub at: u64,
    /// Their length.
    pub bytes: u64,
    /// Their numbers in the wanted index.
    pub chunks: Range<usize>,
}

/// The runs that make up the wanted root, in its order; `is_held` names the chunks that were fetched before.
pub fn plan<'a>(
    wanted: Index<'a>,
    local: &'a Local<'a>,
    is_held: impl Fn(usize) -> bool + 'a,
) -> impl Iterator<Item = Run> + 'a {
    let mut number = 0;
    let mut at = 0_u64;
    std::iter::from_fn(move || {
        let source = |number: usize, after: Option<u64>| {
            let chunk = wanted.chunk(number)?;
            let source = match local.find(chunk, after) {
                _ if is_held(number) => Source::Held,
                Some(at) => Source::Local(at),
                None => Source::Remote,
            };
            Some((source, u64::from(chunk.0)))
        };
        let (first, bytes) = source(number, None)?;
        let mut run = Run { source: first, at, bytes, chunks: number..number.saturating_add(1) };
        loop {
            let goes_on = match first {
                Source::Local(begin) => Source::Local(begin.saturating_add(run.bytes)),
                other => other,
            };
            let after = if let Source::Local(after) = goes_on { Some(after) } else { None };
            match source(run.chunks.end, after) {
                Some((next, bytes)) if next == goes_on => {
                    run.bytes = run.bytes.saturating_add(bytes);
                    run.chunks.end = run.chunks.end.saturating_add(1);
                }
                _ => break,
            }
        }
        number = run.chunks.end;
        at = at.saturating_add(run.bytes);
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// The index of a root that consists of these chunks.
    fn index(chunks: &[&[u8]]) -> Vec<u8> {
        let mut index = FORMAT.to_vec();
        for chunk in chunks {
            index.extend(((chunk.len() - 1) as u16).to_le_bytes());
            index.extend(Sha256::digest(chunk));
        }
        index
    }

    /// Words as chunks.
    fn split(root: &str) -> Vec<&[u8]> {
        root.split_inclusive(' ').map(str::as_bytes).collect()
    }

    #[track_caller]
    fn check(wanted: &str, local: &str, held: &[usize], expected: &str) {
        let (wanted_index, local_index) = (index(&split(wanted)), index(&split(local)));
        let wanted_index = Index::parse(&wanted_index, wanted.len() as u64).unwrap();
        let local_index = Local::new(Index::parse(&local_index, local.len() as u64).unwrap());
        let runs: Vec<_> = plan(wanted_index, &local_index, |chunk| held.contains(&chunk)).collect();
        let shown: Vec<_> = runs
            .iter()
            .map(|run| {
                let from = match run.source {
                    Source::Local(at) => format!("{at}"),
                    Source::Held => "held".to_owned(),
                    Source::Remote => "remote".to_owned(),
                };
                let text = &wanted[run.at as usize..][..run.bytes as usize];
                assert_eq!(
                    text,
                    split(wanted)[run.chunks.clone()]
                        .concat()
                        .iter()
                        .map(|byte| *byte as char)
                        .collect::<String>()
                );
                if let Source::Local(at) = run.source {
                    assert_eq!(text, &local[at as usize..][..run.bytes as usize]);
                }
                format!("{from}:{text}")
            })
            .collect();
        assert_eq!(shown.join("|"), expected);
    }

    #[test]
    fn adjacent_chunks_are_one_run() {
        check("a b c ", "a b c ", &[], "0:a b c ");
        check("a b c ", "", &[], "remote:a b c ");
        check("a X Y b c ", "a b c ", &[], "0:a |remote:X Y |2:b c ");
        check("c a b ", "a b c ", &[], "4:c |0:a b ");
        check("a X b ", "a b ", &[1], "0:a |held:X |2:b ");
        check("a b ", "a b ", &[0, 1], "held:a b ");
        check("", "a ", &[], "");
        // of two equal chunks, the one behind the last read is taken
        check("b a c ", "a a b a c ", &[], "4:b a c ");
        // the same bytes cut elsewhere are other chunks
        check("ab ", "a b ", &[], "remote:ab ");
    }

    #[test]
    fn plan_covers_each_root_once() {
        let mut random = 1_u64;
        let mut next = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        for _ in 0..300 {
            let mut root = |letters: u64| -> String {
                (0..next(40)).map(|_| format!("{} ", "x".repeat(1 + next(letters) as usize))).collect()
            };
            let (wanted, local) = (root(9), root(6));
            let held = next(41) as usize;
            let (wanted_index, local_index) = (index(&split(&wanted)), index(&split(&local)));
            let wanted_index = Index::parse(&wanted_index, wanted.len() as u64).unwrap();
            let local_index = Local::new(Index::parse(&local_index, local.len() as u64).unwrap());
            let (mut at, mut chunk, mut last) = (0, 0, None);
            for run in plan(wanted_index, &local_index, |chunk| chunk == held) {
                assert_eq!((run.at, run.chunks.start), (at, chunk));
                if let Source::Local(from) = run.source {
                    let own = &wanted[run.at as usize..][..run.bytes as usize];
                    assert_eq!(own, &local[from as usize..][..run.bytes as usize]);
                }
                assert!(
                    run.source != Source::Remote || last != Some(Source::Remote),
                    "two runs in place of one"
                );
                last = Some(run.source);
                (at, chunk) = (at + run.bytes, run.chunks.end);
            }
            assert_eq!((at, chunk), (wanted.len() as u64, wanted_index.len()));
        }
    }

    #[test]
    fn index_of_another_root_is_refused() {
        let whole = index(&[b"one", b"two"]);
        assert_eq!(Index::parse(&whole, 6).unwrap().chunk(1).unwrap().0, 3);
        let check = |bytes: &[u8], root_bytes, expected: &str| {
            let why = Index::parse(bytes, root_bytes).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        check(&whole, 7, "the index is of 6 bytes, the root has 7");
        check(&whole[..whole.len() - 1], 3, "the index is of 3 bytes");
        check(&whole[1..], 6, "unknown format");
        check(b"", 0, "unknown format");
        let longest = [&FORMAT[..], &vec![0xff; INDEX_BYTES]].concat();
        check(&longest, 0, "unknown format");
        let chunk = index(&[&vec![0; CHUNK_BYTES]]);
        assert_eq!(Index::parse(&chunk, 65536).unwrap().chunk(0).unwrap().0, 65536);
    }
}
