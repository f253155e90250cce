//! The chunks that a device finds in its running root, by the indexes that a build wrote.

use kedge_core::slot::chunks::{CHUNK_BYTES, Index, Local, Source, plan};

/// Bytes that do not repeat, as compressed ones do not.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Makes the wanted root as a device does; returns how many bytes came from the server, and how many chunks
/// the root has.
fn update(wanted: &[u8], running: &[u8]) -> (usize, usize) {
    let (wanted_index, running_index) = (kedge_chunks::index(wanted), kedge_chunks::index(running));
    let index = Index::parse(&wanted_index, wanted.len() as u64).expect("an index");
    let local = Local::new(Index::parse(&running_index, running.len() as u64).expect("an index"));
    let (mut made, mut remote) = (Vec::<u8>::new(), 0);
    for run in plan(index, &local, |_| false) {
        let bytes = run.bytes as usize;
        let source = match run.source {
            Source::Local(at) => &running[at as usize..],
            _ => {
                remote += bytes;
                &wanted[run.at as usize..]
            }
        };
        made.extend(&source[..bytes]);
    }
    assert!(made == wanted, "another root was made");
    (remote, index.len())
}

#[test]
fn chunks_have_their_sizes() {
    let root = noise(1, 8 << 20);
    let index = kedge_chunks::index(&root);
    let index = Index::parse(&index, root.len() as u64).unwrap();
    let lengths: Vec<_> = index.chunks().map(|(bytes, _)| bytes as usize).collect();
    let (last, others) = lengths.split_last().unwrap();
    assert!(others.iter().all(|length| (4096..=CHUNK_BYTES).contains(length)) && *last <= CHUNK_BYTES);
    let mean = root.len() / lengths.len();
    assert!((15 << 10..=19 << 10).contains(&mean), "{mean} bytes in the mean");
    // zeros have no place to cut at
    let zeros = kedge_chunks::index(&vec![0; 200_000]);
    assert_eq!(Index::parse(&zeros, 200_000).unwrap().len(), 4);
    assert!(Index::parse(&kedge_chunks::index(b""), 0).unwrap().is_empty());
}

#[test]
fn equal_roots_need_nothing() {
    let root = noise(2, 1 << 20);
    assert_eq!(update(&root, &root).0, 0);
    let (remote, _) = update(&root, &noise(3, 1 << 20));
    assert_eq!(remote, root.len(), "nothing in common");
}

/// A new program of 64 KiB in 4 MiB, of another length, moves everything behind it. Seven chunks at most hold
/// the change; blocks of 4 KiB at fixed places would fetch half of the root.
#[test]
fn moved_content_is_found() {
    let (old, new) = (noise(4, 60 << 10), noise(5, 65_537));
    let (begin, end) = (noise(6, 2 << 20), noise(7, 2 << 20));
    let running = [&begin[..], &old, &end].concat();
    let wanted = [&begin[..], &new, &end].concat();
    let (remote, chunks) = update(&wanted, &running);
    let index = chunks * 34;
    println!("{} bytes, {remote} fetched, index {index}, {chunks} chunks", wanted.len());
    assert!(remote < 65_537 + 2 * CHUNK_BYTES, "{remote} bytes were fetched");
    let fixed = |root: &[u8]| -> Vec<Vec<u8>> { root.chunks(4096).map(<[u8]>::to_vec).collect() };
    let own: std::collections::BTreeSet<_> = fixed(&running).into_iter().collect();
    let blocks = fixed(&wanted).into_iter().filter(|block| !own.contains(block)).count() * 4096;
    assert!(blocks > wanted.len() / 2, "{blocks} bytes by fixed blocks");
}

#[test]
fn edits_anywhere_make_the_wanted_root() {
    for seed in 0..40_u64 {
        let running = noise(seed + 100, 300_000);
        let mut wanted = running.clone();
        let mut random = noise(seed, 64).into_iter().map(usize::from);
        for _ in 0..1 + seed % 5 {
            let mut next = || random.next().unwrap() * 1000 + random.next().unwrap();
            let (at, length) = (next() % wanted.len(), next() % 20_000);
            let end = wanted.len().min(at + length);
            match seed % 3 {
                0 => drop(wanted.splice(at..at, noise(seed + 7, length))),
                1 => drop(wanted.drain(at..end)),
                _ => drop(wanted.splice(at..end, noise(seed + 9, end - at))),
            }
        }
        let (remote, _) = update(&wanted, &running);
        let most = 5 * (20_000 + 2 * CHUNK_BYTES);
        assert!(remote <= most.min(wanted.len()), "seed {seed}: {remote} bytes");
    }
}
