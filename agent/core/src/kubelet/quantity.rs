//! Amounts as Kubernetes writes them: `200Mi`, `2Gi`, `1500m`, `1e3`, and eviction thresholds such as `10%`.
//!
//! Always holds: an amount is exact to a billionth (finer ones are rounded up, as upstream's are) and
//! saturates at `i64::MAX` units, the largest that upstream keeps. Sign and meaning are left to the field
//! that uses it.

/// Longest text read: an `i64` and nine decimals with a suffix need 31.
const MAX_TEXT_BYTES: usize = 64;

/// Billionths in one unit: the finest step a Kubernetes quantity has.
const NANO: i128 = 1_000_000_000;

/// The largest amount kept, in billionths (upstream caps at `i64::MAX` units too).
const LARGEST: i128 = i64::MAX as i128 * NANO;

/// An amount: bytes, CPUs, inodes, process numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

impl Quantity {
    /// Reads Kubernetes' form; `None` if the text has another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let magnitude = Decimal::parse(number)?.in_nanos(scale(suffix)?);
        Some(Self { nanos: if negative { magnitude.saturating_neg() } else { magnitude } })
    }

    /// Whole units, rounded up.
    #[must_use]
    pub fn units(self) -> i64 {
        rounded_up(self.nanos, NANO)
    }

    /// Thousandths, rounded up: the unit CPUs are counted in.
    #[must_use]
    pub fn milli_units(self) -> i64 {
        rounded_up(self.nanos, NANO / 1000)
    }

    /// Whether it is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it is zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

fn rounded_up(nanos: i128, unit: i128) -> i64 {
    let up = nanos.div_euclid(unit).saturating_add(i128::from(nanos.rem_euclid(unit) > 0));
    i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
}

/// The factor of a suffix.
enum Scale {
    Binary(u32),
    Decimal(i32),
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "" => Scale::Decimal(0),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        exponent => Scale::Decimal(decimal_exponent(exponent)?),
    })
}

fn decimal_exponent(suffix: &str) -> Option<i32> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let unsigned = digits.strip_prefix(['-', '+']).unwrap_or(digits);
    if unsigned.is_empty() || unsigned.len() > 4 || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// `digits` times ten to the minus `places`.
struct Decimal {
    digits: u128,
    places: i32,
}

impl Decimal {
    /// Digits with at most one point; more than 38 digits are out of any range and not accepted as a number.
    fn parse(number: &str) -> Option<Self> {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let mut digits: u128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            digits = digits.checked_mul(10)?.checked_add(u128::from(digit.saturating_sub(b'0')))?;
        }
        Some(Self { digits, places: i32::try_from(fraction.len()).ok()? })
    }

    /// Rounded up to a billionth, and never more than [`LARGEST`].
    fn in_nanos(&self, scale: Scale) -> i128 {
        let (factor, exponent) = match scale {
            Scale::Binary(bits) => (1_u128 << bits, 9_i32.saturating_sub(self.places)),
            Scale::Decimal(power) => (1, 9_i32.saturating_sub(self.places).saturating_add(power)),
        };
        if self.digits == 0 {
            return 0;
        }
        let ten_power = 10_u128.checked_pow(exponent.unsigned_abs());
        let scaled = self.digits.checked_mul(factor);
        let nanos = match (scaled, ten_power) {
            (None, _) => None,
            (Some(value), Some(power)) if exponent >= 0 => value.checked_mul(power),
            (Some(value), Some(power)) => Some(value.div_ceil(power)),
            (Some(_), None) => (exponent < 0).then_some(1),
        };
        nanos.and_then(|nanos| i128::try_from(nanos).ok()).map_or(LARGEST, |nanos| nanos.min(LARGEST))
    }
}

/// The limit of an eviction signal: there is pressure if less than this is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Never: written as `0%` or `100%`, upstream's way to switch a signal off.
    Off,
    /// Less than this share of the capacity, in millionths.
    Share(u32),
    /// Less than this many bytes, inodes or process numbers.
    Amount(u64),
}

impl Threshold {
    const WHOLE: u32 = 1_000_000;

    /// Reads a quantity above zero or a percentage from `0%` to `100%`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let Some(percentage) = text.strip_suffix('%') else {
            let quantity = Quantity::parse(text)?;
            let amount = u64::try_from(quantity.units()).ok().filter(|amount| *amount > 0)?;
            return Some(Self::Amount(amount));
        };
        let plain = percentage.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let quantity = Quantity::parse(percentage).filter(|_| plain)?;
        // a percentage in billionths is a share in hundred-billionths
        let millionths = u32::try_from(quantity.nanos / (NANO / 10_000)).ok()?;
        match millionths {
            0 | Self::WHOLE => Some(Self::Off),
            share if share < Self::WHOLE => Some(Self::Share(share)),
            _ => None,
        }
    }

    /// Half of the capacity.
    pub(super) const HALF: u32 = Self::WHOLE / 2;

    /// Whether it is more than half of a resource; `capacity` is 0 if unknown.
    #[must_use]
    pub fn is_beyond_half(self, capacity: u64) -> bool {
        match self {
            Self::Off => false,
            Self::Share(share) => share > Self::HALF,
            Self::Amount(amount) => capacity > 0 && amount > capacity / 2,
        }
    }

    /// The amount below which there is pressure, for a resource of this capacity; `None` when switched off.
    #[must_use]
    pub fn amount(self, capacity: u64) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::Amount(amount) => Some(amount),
            Self::Share(share) => {
                let amount = u128::from(capacity)
                    .saturating_mul(share.into())
                    .checked_div(Self::WHOLE.into())
                    .unwrap_or(0);
                Some(u64::try_from(amount).unwrap_or(u64::MAX))
            }
        }
    }
}

/// In the API server's canonical form, so that the value read back equals the one sent.
pub(crate) fn bytes(value: u64) -> String {
    let mut value = value;
    for suffix in ["", "Ki", "Mi", "Gi", "Ti", "Pi"] {
        if !value.is_multiple_of(1024) || value == 0 {
            return format!("{value}{suffix}");
        }
        value /= 1024;
    }
    format!("{value}Ei")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let table = [
            ("0", Some((0, 0))),
            ("1", Some((1, 1000))),
            ("200Mi", Some((200 << 20, 1000 * (200 << 20)))),
            ("2Gi", Some((2 << 30, 1000 * (2 << 30)))),
            ("1.5Gi", Some((3 << 29, 1000 * (3 << 29)))),
            ("0.5Ki", Some((512, 512_000))),
            ("1500m", Some((2, 1500))),
            ("100m", Some((1, 100))),
            ("1n", Some((1, 1))),
            ("0.0000000001", Some((1, 1))),
            ("2k", Some((2000, 2_000_000))),
            ("1e3", Some((1000, 1_000_000))),
            ("1E3", Some((1000, 1_000_000))),
            ("1E", Some((1_000_000_000_000_000_000, i64::MAX))),
            ("15e-1", Some((2, 1500))),
            ("1e-9999", Some((1, 1))),
            ("1e9999", Some((i64::MAX, i64::MAX))),
            ("0e9999", Some((0, 0))),
            ("16Ei", Some((i64::MAX, i64::MAX))),
            ("+1", Some((1, 1000))),
            ("-16Ei", Some((-i64::MAX, i64::MIN))),
            ("1500u", Some((1, 2))),
            ("12345678901234567890e-13", Some((1_234_568, 1_234_567_891))),
            ("-1500m", Some((-1, -1500))),
            (".5", Some((1, 500))),
            ("1.", Some((1, 1000))),
            ("", None),
            ("-", None),
            (".", None),
            ("Mi", None),
            ("1.2.3", None),
            ("10 Mi", None),
            ("10MB", None),
            ("10mi", None),
            ("1K", None),
            ("1e", None),
            ("1e99999", None),
            ("--1", None),
            ("0x10", None),
        ];
        for (text, expect) in table {
            let found = Quantity::parse(text).map(|quantity| (quantity.units(), quantity.milli_units()));
            assert_eq!(found, expect, "{text}");
            let is_zero = Quantity::parse(text).is_some_and(Quantity::is_zero);
            assert_eq!(is_zero, expect == Some((0, 0)), "{text}");
        }
        assert_eq!(Quantity::parse(&format!("{:0>64}", 1)), Quantity::parse("1"), "the longest text read");
        assert_eq!(Quantity::parse(&format!("{:0>65}", 1)), None);
        assert_eq!(Quantity::parse(&"1".repeat(40)), None);
        assert_eq!(Quantity::parse(&"1".repeat(100)), None);
    }

    #[test]
    fn thresholds_are_amounts_or_shares() {
        let table = [
            ("100Mi", Some(Threshold::Amount(100 << 20))),
            ("10%", Some(Threshold::Share(100_000))),
            ("0.5%", Some(Threshold::Share(5_000))),
            ("99.99%", Some(Threshold::Share(999_900))),
            ("0%", Some(Threshold::Off)),
            ("100%", Some(Threshold::Off)),
            ("101%", None),
            ("-1%", None),
            ("1Mi%", None),
            ("%", None),
            ("0", None),
            ("-1Gi", None),
            ("loud", None),
        ];
        for (text, expect) in table {
            assert_eq!(Threshold::parse(text), expect, "{text}");
        }
    }

    #[test]
    fn share_is_taken_of_the_capacity() {
        assert_eq!(Threshold::Share(100_000).amount(1000), Some(100));
        assert_eq!(Threshold::Share(999_999).amount(u64::MAX), Some(18_446_725_626_965_477_905));
        assert_eq!(Threshold::Amount(5).amount(3), Some(5));
        assert_eq!(Threshold::Off.amount(1000), None);
    }
}
