//! Quantities such as `100m` and `1.5Gi`: exact arithmetic, and the form in which upstream writes them.
//!
//! Owns: reading, comparing and writing a quantity. Always holds: a value is exact to a billionth, upstream's
//! smallest unit (`n`), and smaller parts are rounded away from zero, as upstream does; nothing passes
//! through floating point. Leaves to others: the quantities allowed in a field (`kinds`).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// Billionths in one.
const NANOS: i128 = 1_000_000_000;
/// Decimal places of a billionth.
const NANO_PLACES: i64 = 9;
/// The largest binary quantity; upstream cuts larger ones to it.
const BINARY_MAX: i128 = i64::MAX as i128 * NANOS;
/// Upstream reads a quantity of up to this many digits without arithmetic, and keeps its text if that is
/// canonical.
const EXACT_DIGITS: usize = 18;
const DECIMAL_SUFFIXES: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The family of a quantity's suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suffix {
    /// `m`, `k`, `M`: powers of ten.
    Decimal(i64),
    /// `e3`: powers of ten as an exponent.
    Exponent(i64),
    /// `Ki`, `Mi`: powers of two.
    Binary(u32),
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    suffix: Suffix,
}

/// An exact quantity. Two are equal if their values are, whatever their spelling: `1` is `1000m`.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    suffix: Suffix,
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl<'a> Parts<'a> {
    fn read(text: &'a str) -> Option<Parts<'a>> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number_len = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || whole.len() + fraction.len() == 0 {
            return None;
        }
        let negative = text.starts_with('-');
        Some(Parts {
            negative,
            whole: whole.trim_start_matches('0'),
            fraction,
            suffix: Suffix::read(suffix)?,
        })
    }

    fn digits(&self) -> impl Iterator<Item = i128> + '_ {
        self.whole.bytes().chain(self.fraction.bytes()).map(|digit| i128::from(digit - b'0'))
    }

    /// The value without its sign, in billionths; `None` if it is too large for 128 bits.
    fn nanos(&self) -> Option<i128> {
        match self.suffix {
            Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => self.decimal_nanos(exponent),
            Suffix::Binary(exponent) => self.binary_nanos(exponent),
        }
    }

    fn decimal_nanos(&self, exponent: i64) -> Option<i128> {
        if self.digits().all(|digit| digit == 0) {
            return Some(0);
        }
        // digits up to this position count billionths, the others only round
        let kept = (self.whole.len() as i64).saturating_add(exponent).saturating_add(NANO_PLACES);
        let mut nanos = 0_i128;
        let mut digits = self.digits();
        for _ in 0..kept.max(0) {
            let digit = digits.next();
            if digit.is_none() && nanos == 0 {
                break;
            }
            nanos = nanos.checked_mul(10)?.checked_add(digit.unwrap_or(0))?;
        }
        nanos.checked_add(i128::from(digits.any(|digit| digit != 0)))
    }

    fn binary_nanos(&self, exponent: u32) -> Option<i128> {
        let fraction = self.fraction.trim_end_matches('0');
        let mut digits = 0_i128;
        for digit in self.digits().take(self.whole.len() + fraction.len()) {
            digits = match digits.checked_mul(10).and_then(|digits| digits.checked_add(digit)) {
                Some(digits) => digits,
                None if fraction.is_empty() => return Some(BINARY_MAX),
                None => return None,
            };
        }
        let scaled = match digits.checked_mul((1_i128 << exponent).checked_mul(NANOS)?) {
            Some(scaled) => scaled,
            None if fraction.is_empty() => return Some(BINARY_MAX),
            None => return None,
        };
        let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        Some((scaled / divisor + i128::from(scaled % divisor != 0)).min(BINARY_MAX))
    }

    /// Whether upstream keeps this text unchanged: it reads short quantities without arithmetic, and keeps
    /// those that have no obvious shorter form.
    fn is_kept(&self) -> bool {
        let digits = self.whole.len().max(1) + self.fraction.len();
        match self.suffix {
            Suffix::Binary(exponent) => {
                let precision = 14 - self.whole.len().max(1) as i64 - i64::from(exponent * 3 / 10);
                let low_bits = self.whole.parse::<u64>().map_or(0, |whole| whole & 7);
                self.fraction.is_empty() && precision >= 0 && low_bits != 0
            }
            Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => {
                let scale = exponent.saturating_sub(self.fraction.len() as i64);
                let zeros = self.whole.bytes().chain(self.fraction.bytes()).rev().take(3);
                digits <= EXACT_DIGITS
                    && scale >= -NANO_PLACES
                    && scale % 3 == 0
                    && !self.whole.is_empty()
                    && zeros.filter(|digit| *digit == b'0').count() < 3
            }
        }
    }
}

impl Suffix {
    fn read(text: &str) -> Option<Suffix> {
        if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == text) {
            return Some(Suffix::Decimal(*exponent));
        }
        if let Some(index) = BINARY_SUFFIXES.iter().position(|known| *known == text) {
            return Some(Suffix::Binary(u32::try_from(index * 10).ok()?));
        }
        let exponent = text.strip_prefix(['e', 'E'])?;
        exponent.parse::<i32>().ok().map(|exponent| Suffix::Exponent(exponent.into()))
    }
}

impl Quantity {
    /// Zero.
    pub const ZERO: Quantity = Quantity { nanos: 0, suffix: Suffix::Decimal(0) };

    /// Reads upstream's grammar: a sign, decimal digits with at most one point, and a suffix or a decimal
    /// exponent. `None` also for values beyond 1.7e29.
    pub fn parse(text: &str) -> Option<Quantity> {
        let parts = Parts::read(text)?;
        let nanos = parts.nanos()?;
        Some(Quantity { nanos: if parts.negative { -nanos } else { nanos }, suffix: parts.suffix })
    }

    /// Whether it is a whole number.
    pub fn is_whole(self) -> bool {
        self.nanos % NANOS == 0
    }

    /// Whether it is a multiple of another one, which is not zero.
    pub fn is_multiple_of(self, unit: Quantity) -> bool {
        unit.nanos != 0 && self.nanos % unit.nanos == 0
    }

    /// The sum; sums that are too large become the largest quantity.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        Quantity { nanos: self.nanos.saturating_add(other.nanos), ..self }
    }

    /// The share of `whole` that this quantity is, in percent: 0 to 100; 100 also if `whole` is zero.
    #[must_use]
    pub fn percent_of(self, whole: Quantity) -> u8 {
        if whole.nanos <= 0 {
            return 100;
        }
        u8::try_from((self.nanos.max(0).min(whole.nanos) / (whole.nanos / 100).max(1)).min(100))
            .unwrap_or(100)
    }

    /// The canonical text: the largest suffix of its family with which the number is whole.
    fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        match self.suffix {
            Suffix::Binary(_) if self.is_whole() && self.nanos.abs() >= 1024 * NANOS => {
                let (number, power) = reduced(self.nanos / NANOS, 1024, BINARY_SUFFIXES.len());
                format!("{number}{}", BINARY_SUFFIXES[power])
            }
            Suffix::Exponent(_) => {
                // an i128 has fewer than 13 factors of a thousand
                let (number, power) = reduced(self.nanos, 1000, 14);
                match power as i64 * 3 - NANO_PLACES {
                    0 => number.to_string(),
                    exponent => format!("{number}e{exponent}"),
                }
            }
            _ => {
                let (number, power) = reduced(self.nanos, 1000, DECIMAL_SUFFIXES.len());
                format!("{number}{}", DECIMAL_SUFFIXES[power].0)
            }
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.canonical())
    }
}

/// A number without its factors of `base`, and the number of those factors: the index of one of so many
/// suffixes.
fn reduced(mut number: i128, base: i128, suffixes: usize) -> (i128, usize) {
    let mut power = 0;
    while power + 1 < suffixes && number % base == 0 {
        number /= base;
        power += 1;
    }
    (number, power)
}

/// A quantity as upstream stores and returns it; `None` if the text cannot be parsed.
pub fn normal_form(text: &str) -> Option<Cow<'_, str>> {
    let trimmed = text.trim();
    let quantity = Quantity::parse(trimmed)?;
    let kept = Parts::read(trimmed).is_some_and(|parts| parts.is_kept());
    Some(match kept {
        true if trimmed.len() == text.len() => text.into(),
        true => trimmed.to_owned().into(),
        false => quantity.canonical().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_compare_exactly() {
        for (less, more) in [
            ("100m", "1"),
            ("1k", "1Ki"),
            ("1e3", "1001"),
            ("900Mi", "1Gi"),
            ("-1", "0"),
            // equal in floating point
            ("9007199254740992", "9007199254740993"),
            ("1152921504606846975", "1Ei"),
            ("0.999999999", "1"),
        ] {
            assert!(Quantity::parse(less) < Quantity::parse(more), "{less} {more}");
            assert_ne!(Quantity::parse(less), Quantity::parse(more), "{less} {more}");
        }
        for (one, other) in [("1", "1000m"), ("0.5Gi", "512Mi"), ("1E", "1e18"), ("0", "0Ki"), ("-0", "0")] {
            assert_eq!(Quantity::parse(one), Quantity::parse(other), "{one} {other}");
        }
        assert!(Quantity::parse("3").unwrap().is_whole());
        assert!(!Quantity::parse("1500m").unwrap().is_whole());
        let multiple = |of: &str, unit: &str| {
            Quantity::parse(of).unwrap().is_multiple_of(Quantity::parse(unit).unwrap())
        };
        assert!(multiple("6Mi", "2Mi") && multiple("0", "2Mi"));
        assert!(!multiple("5Mi", "2Mi") && !multiple("5Mi", "0"));
    }

    /// The right column is what a Kubernetes 1.36 API server returns.
    #[test]
    fn quantity_is_written_as_upstream_writes_it() {
        for (given, expect) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("+.5k", "500"),
            ("12E-2", "120e-3"),
            (".5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000Ki", "1000Ki"),
            ("1001Mi", "1001Mi"),
            ("3000", "3k"),
            ("1.500", "1.500"),
            ("007", "007"),
            ("1e3", "1e3"),
            ("10e2", "1e3"),
            ("12e6", "12e6"),
            ("0.1Ki", "102400m"),
            ("512", "512"),
            ("1023Ki", "1023Ki"),
            ("0.0000000001", "1n"),
            ("0Gi", "0"),
            ("0.0", "0"),
            ("100000Ei", "9223372036854775807"),
            ("16384000Ki", "16000Mi"),
            (" 1 ", "1"),
            ("-1000m", "-1"),
            ("0.9765625Ki", "1k"),
            ("1.0Ki", "1Ki"),
            ("-1.0Ki", "-1Ki"),
            ("1.0000000001Ki", "1024000000103n"),
        ] {
            assert_eq!(normal_form(given).as_deref(), Some(expect), "{given}");
        }
        for wrong in ["", ".", "x", "1x", "1e", "1.2.3", "Ki", "1 Gi", "--1", "1e40", "1ki"] {
            assert_eq!(normal_form(wrong), None, "{wrong}");
        }
    }

    /// Whether the text stays as it is: this many digits are read without arithmetic.
    #[test]
    fn short_quantities_stay_as_they_are() {
        for kept in
            ["+1Ki", "+12345678901Ki", "+12345Gi", "+13Ti", "+123456789012345678", "+1n", "+1.125", "+1e3"]
        {
            assert_eq!(normal_form(kept).as_deref(), Some(kept));
        }
        for (given, expect) in [
            ("+123456789011Ki", "123456789011Ki"),
            ("+123457Gi", "123457Gi"),
            ("+123Ti", "123Ti"),
            ("+1234567890123456789", "1234567890123456789"),
            ("+1.001n", "2n"),
            ("+0.5", "500m"),
            ("+1000", "1k"),
            ("+1.50", "1500m"),
        ] {
            assert_eq!(normal_form(given).as_deref(), Some(expect), "{given}");
        }
    }

    #[test]
    fn quantity_beyond_all_suffixes_keeps_its_value() {
        for text in ["1000E", "1000000E"] {
            assert_eq!(normal_form(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn too_large_binary_quantities_stay_at_the_largest_if_whole() {
        for digits in ["9".repeat(40), "1".to_owned() + &"0".repeat(20)] {
            assert_eq!(normal_form(&format!("{digits}Ei")).as_deref(), Some("9223372036854775807"));
            assert_eq!(normal_form(&format!("{digits}.5Ei")), None);
        }
    }

    /// A client's quantity with a million digits or a huge exponent costs no more than its bytes.
    #[test]
    fn long_quantities_are_read_in_one_pass() {
        let zeros = "0".repeat(1_000_000);
        assert_eq!(normal_form(&format!("1.{zeros}")).as_deref(), Some("1"));
        assert_eq!(normal_form(&format!("0.{zeros}1")).as_deref(), Some("1n"));
        assert_eq!(normal_form(&format!("1{zeros}")), None);
        assert_eq!(normal_form("1e-2147483648").as_deref(), Some("1e-9"));
        assert_eq!(normal_form("1e2147483647"), None);
        assert_eq!(normal_form("0e2147483647").as_deref(), Some("0"));
    }
}
