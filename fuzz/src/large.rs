//! Large inputs from small ones: a piece of an input may be repeated many times, so that a fuzzer that
//! changes a few bytes changes a body of megabytes, and the corpora stay small.
//!
//! `REPEAT`, a count, a length and that many bytes are replaced by repetitions of the bytes; `NUMBER` in them
//! by the number of the repetition. Both are control bytes, which neither JSON nor YAML text contains.

/// Begins a repeated piece.
const REPEAT: u8 = 0x1d;
/// The number of the repetition.
const NUMBER: u8 = 0x1c;

/// `NUMBER`, for the text of a piece.
pub const COUNTED: &str = "\u{1c}";

/// One to sixteen times a power of two up to 32,768: one byte covers from one to half a million.
fn count(byte: u8) -> usize {
    (1 + usize::from(byte & 0x0f)) << (byte >> 4)
}

/// The large input, cut at `longest` bytes.
#[must_use]
pub fn expanded(mut text: &[u8], longest: usize) -> Vec<u8> {
    let mut large = Vec::new();
    while let Some((first, rest)) = text.split_first() {
        text = rest;
        match (*first, rest) {
            (REPEAT, [times, length, rest @ ..]) => {
                let (piece, rest) = rest.split_at(usize::from(*length).min(rest.len()));
                repeat(&mut large, piece, count(*times), longest);
                text = rest;
            }
            _ => large.push(*first),
        }
        if large.len() >= longest {
            break;
        }
    }
    large.truncate(longest);
    large
}

fn repeat(large: &mut Vec<u8>, piece: &[u8], times: usize, longest: usize) {
    for number in 0..times {
        if large.len() >= longest || piece.is_empty() {
            return;
        }
        for byte in piece {
            match *byte {
                NUMBER => large.extend_from_slice(number.to_string().as_bytes()),
                other => large.push(other),
            }
        }
    }
}

/// A piece repeated at least so many times; panics if it is longer than the one byte of its length can count.
#[must_use]
pub fn repeated(at_least: usize, piece: &str) -> Vec<u8> {
    let times = (0..=u8::MAX).filter(|byte| count(*byte) >= at_least).min_by_key(|byte| count(*byte));
    let length = u8::try_from(piece.len()).expect("a piece has at most 255 bytes");
    [&[REPEAT, times.unwrap_or(u8::MAX), length][..], piece.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_repeated_numbered_and_cut() {
        let small = [&b"["[..], &repeated(3, "n\u{1c},"), b"]"].concat();
        assert_eq!(expanded(&small, 99), b"[n0,n1,n2,]");
        assert_eq!(expanded(&small, 5), b"[n0,n");
        assert_eq!(expanded(&[REPEAT, 0xff, 1, b'x'], 1 << 20).len(), 16 << 15);
        assert_eq!(expanded(&[REPEAT, 1], 99), [REPEAT, 1]);
        assert_eq!(expanded(&[REPEAT, 0xff, 0], 99), b"");
    }
}
