//! Which of two versions of an image is the older one.
//!
//! Always holds: the order is total, and that of Debian's versions without an epoch, which `cross/version`
//! writes: "1.0~git2026" comes before "1.0", "1.0.dirty" after it. Leaves to others: the consequences
//! (`admission`).

use std::cmp::Ordering;
use std::iter::once;

/// Most bytes of a version.
const MOST_BYTES: usize = 128;

/// Whether this can be a version. It is part of a boot entry's title, so it has no spaces.
pub(crate) fn is_version(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b".+~-_".contains(&byte);
    (1..=MOST_BYTES).contains(&text.len()) && text.bytes().all(is_known)
}

/// Compares word and number in turn, as dpkg does.
pub(super) fn order(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    while !one.is_empty() || !other.is_empty() {
        let words =
            (take(&mut one, |byte| !byte.is_ascii_digit()), take(&mut other, |byte| !byte.is_ascii_digit()));
        let numbers = (take(&mut one, u8::is_ascii_digit), take(&mut other, u8::is_ascii_digit));
        let found =
            weights(words.0).cmp(weights(words.1)).then_with(|| number(numbers.0).cmp(&number(numbers.1)));
        if found.is_ne() {
            return found;
        }
    }
    Ordering::Equal
}

/// Takes the bytes at the beginning for which `holds` is true.
fn take<'a>(text: &mut &'a [u8], holds: impl Fn(&u8) -> bool) -> &'a [u8] {
    let length = text.iter().position(|byte| !holds(byte)).unwrap_or(text.len());
    let (taken, rest) = text.split_at(length);
    *text = rest;
    taken
}

/// A tilde comes before the end, letters after it, everything else after letters.
fn weights(word: &[u8]) -> impl Iterator<Item = i16> {
    let weight = |byte: &u8| match byte {
        b'~' => -1,
        letter if letter.is_ascii_alphabetic() => i16::from(*letter),
        other => i16::from(*other).saturating_add(256),
    };
    word.iter().map(weight).chain(once(0))
}

/// The longer number is larger, without zeros in front.
fn number(digits: &[u8]) -> (usize, &[u8]) {
    let digits = digits.iter().position(|digit| *digit != b'0').map_or(&[][..], |first| &digits[first..]);
    (digits.len(), digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_that_of_debian() {
        // each before the next, as in dpkg --compare-versions
        let rising = [
            "~",
            "",
            "0.1.0~git20261124061622.798bb913a6",
            "0.1.0~git20261124061623.0000000000",
            "0.1.0~git20261124061623.0000000000.dirty",
            "0.1.0~rc1",
            "0.1.0",
            "0.1.0a",
            "0.1.0+1",
            "0.1.0.1",
            "0.1.9",
            "0.1.10",
            "0.2",
            "1.0~~",
            "1.0~",
            "1.0",
            "10.0",
            "99999999999999999999999",
        ];
        for (at, one) in rising.iter().enumerate() {
            for (other_at, other) in rising.iter().enumerate() {
                assert_eq!(order(one, other), at.cmp(&other_at), "{one:?} {other:?}");
            }
        }
        assert_eq!(order("1.00", "1.0"), Ordering::Equal);
        assert_eq!(order("01.5", "1.05"), Ordering::Equal);
    }

    #[test]
    fn version_is_one_word() {
        assert!(is_version("0.1.0~git20261124061622.798bb913a6.dirty") && is_version("2"));
        for text in ["", "1 kedge.slot=good", "1\t", "1:2", "ä", "1/2", &"1".repeat(MOST_BYTES + 1)] {
            assert!(!is_version(text), "{text:?}");
        }
    }
}
