//! Durations as Kubernetes writes them: Go's `1h10m`, `10s`, `1.5h`, `100ms`, `0`.
//!
//! Always holds: a parsed duration is a whole number of nanoseconds in an `i64` (292 years either way), and
//! [`parse`] reads the text that [`format`] writes back to the same number. Range is left to the field that
//! uses it.

use core::fmt::Write;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
/// Nanoseconds in a second.
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Longest text read: far longer than `-2562047h47m16.854775808s`, the longest that Go writes.
const MAX_TEXT_BYTES: usize = 64;

/// Nanoseconds of a duration in Go's form (`time.ParseDuration`); `None` if it is not one or does not fit.
#[must_use]
pub fn parse(text: &str) -> Option<i64> {
    if text.len() > MAX_TEXT_BYTES {
        return None;
    }
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = leading_part(rest)?;
        nanos = nanos.checked_add(part)?;
        rest = after;
    }
    let magnitude = i128::from(nanos);
    i64::try_from(if negative { magnitude.saturating_neg() } else { magnitude }).ok()
}

/// The nanoseconds of one number and its unit, and the rest of the text.
fn leading_part(text: &str) -> Option<(u64, &str)> {
    let is_number = |character: char| character.is_ascii_digit() || character == '.';
    let unit_at = text.find(|character| !is_number(character))?;
    let (number, rest) = text.split_at(unit_at);
    let unit_end = rest.find(is_number).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(unit_end);
    Some((nanos_of(number, unit_nanos(unit)?)?, after))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // the micro sign and the Greek letter mu, as in Go
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// `number` times `unit`; digits below a nanosecond are cut, as in Go.
fn nanos_of(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(unit)?;
    let mut scale: u128 = 1;
    let mut sum: u128 = 0;
    // 18 digits of an hour are finer than a nanosecond
    for digit in fraction.bytes().take(18) {
        sum = sum.saturating_mul(10).saturating_add(digit.saturating_sub(b'0').into());
        scale = scale.saturating_mul(10);
    }
    let rest = sum.saturating_mul(unit.into()).checked_div(scale).unwrap_or(0);
    nanos = nanos.checked_add(u64::try_from(rest).ok()?)?;
    Some(nanos)
}

/// Go's form of a duration given in nanoseconds: `1h10m0s`, `1.5s`, `100ms`, `0s`.
#[must_use]
pub fn format(nanos: i64) -> String {
    let mut text = String::new();
    if nanos < 0 {
        text.push('-');
    }
    let magnitude = nanos.unsigned_abs();
    let below_a_second = [(1, "ns"), (MICROSECOND, "\u{b5}s"), (MILLISECOND, "ms")];
    if magnitude == 0 {
        return "0s".to_owned();
    }
    if magnitude < SECOND {
        let (unit, name) =
            below_a_second.into_iter().rfind(|(unit, _)| magnitude >= *unit).unwrap_or((1, "ns"));
        push_decimal(&mut text, magnitude, unit);
        text.push_str(name);
        return text;
    }
    // writing to a String cannot fail
    if magnitude >= HOUR {
        let _ = write!(text, "{}h", magnitude / HOUR);
    }
    if magnitude >= MINUTE {
        let _ = write!(text, "{}m", magnitude % HOUR / MINUTE);
    }
    push_decimal(&mut text, magnitude % MINUTE, SECOND);
    text.push('s');
    text
}

fn push_decimal(text: &mut String, nanos: u64, unit: u64) {
    let _ = write!(text, "{}", nanos.checked_div(unit).unwrap_or(0));
    let mut rest = nanos.checked_rem(unit).unwrap_or(0);
    let mut place = unit;
    if rest > 0 {
        text.push('.');
    }
    while rest > 0 {
        place /= 10;
        let _ = write!(text, "{}", rest.checked_div(place).unwrap_or(0));
        rest = rest.checked_rem(place).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        let second = 1_000_000_000;
        let table = [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("0s", Some(0)),
            ("10s", Some(10 * second)),
            ("1h10m", Some(4200 * second)),
            ("1.5h", Some(5400 * second)),
            (".5s", Some(second / 2)),
            ("1.s", Some(second)),
            ("-1.5s", Some(-3 * second / 2)),
            ("+5m", Some(300 * second)),
            ("100ms", Some(second / 10)),
            ("3us", Some(3000)),
            ("3\u{b5}s", Some(3000)),
            ("3\u{3bc}s", Some(3000)),
            ("1.5ns", Some(1)),
            ("1m1m", Some(120 * second)),
            ("2562047h47m16.854775807s", Some(i64::MAX)),
            ("-2562047h47m16.854775808s", Some(i64::MIN)),
            ("2562047h47m16.854775808s", None),
            ("99999999999999999999s", None),
            ("", None),
            ("-", None),
            ("10", None),
            ("s", None),
            (".s", None),
            ("1..5s", None),
            ("1.2.3s", None),
            ("10 s", None),
            ("10S", None),
            ("1d", None),
            ("--1s", None),
            ("1s-1s", None),
        ];
        for (text, expect) in table {
            assert_eq!(parse(text), expect, "{text}");
        }
        assert_eq!(parse(&format!("{:0>64}", "1s")), Some(second), "the longest text read");
        assert_eq!(parse(&format!("{:0>65}", "1s")), None);
        assert_eq!(parse(&"1s".repeat(40)), None);
    }

    #[test]
    fn duration_is_written_as_go_writes_it() {
        let table = [
            ("0", "0s"),
            ("10m", "10m0s"),
            ("1h10m", "1h10m0s"),
            ("1.5h", "1h30m0s"),
            ("1h", "1h0m0s"),
            ("40s", "40s"),
            ("1.5s", "1.5s"),
            ("100ms", "100ms"),
            ("1.5ms", "1.5ms"),
            ("1100us", "1.1ms"),
            ("2us", "2\u{b5}s"),
            ("7ns", "7ns"),
            ("-90s", "-1m30s"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
        ];
        for (text, expect) in table {
            let nanos = parse(text).unwrap();
            assert_eq!(format(nanos), expect);
            assert_eq!(parse(expect), Some(nanos));
        }
    }
}
