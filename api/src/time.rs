//! Points in wall time, as the API writes them: `Time` (whole seconds) and `MicroTime` (six digits), both RFC
//! 3339, UTC.
//!
//! A `Timestamp` is for people and for fields that require one. Whether a node is alive or a trial is over is
//! never decided by comparing timestamps, but by running time. (Only a pod's deadline uses them, because it
//! counts across restarts of the agent.)

use ::time::format_description::well_known::Rfc3339;
use ::time::{OffsetDateTime, UtcOffset};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Time from 1970 to a day before the first run of this release (2026-11-01T00:00:00Z): a clock that shows an
/// earlier time is not set. Certificates are judged and issued as if it were at least this late. `cross/dist`
/// refuses a value that is 60 days older than its commit.
pub const EARLIEST_NOW: Duration = Duration::from_secs(1_793_491_200);

/// Ten years later: a clock that shows a later time is not set either, whatever somebody has set it to.
pub const LATEST_NOW: Duration = EARLIEST_NOW.saturating_add(Duration::from_secs(10 * 365 * 24 * 60 * 60));

/// A point in wall time: microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// A text that is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampError(String);

impl fmt::Display for TimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an RFC 3339 time such as 2026-11-21T01:35:58Z", self.0)
    }
}

impl std::error::Error for TimestampError {}

/// 9999-12-31T23:59:59Z, the last second RFC 3339 can write: a clock beyond it is shown as this.
const LAST_MICROS: i64 = 253_402_300_799_000_000;

impl Timestamp {
    /// From microseconds since the epoch; values that RFC 3339 cannot write are set to the nearest end (the
    /// epoch, the year 9999).
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, LAST_MICROS))
    }

    /// Microseconds since the epoch.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// `Time` of the API: whole seconds, as in `2026-11-21T01:35:58Z`.
    pub fn rfc3339(self) -> String {
        let (d, t) = self.parts();
        format!("{}-{:02}-{:02}T{:02}:{:02}:{:02}Z", Year(d.0), d.1, d.2, t.0, t.1, t.2)
    }

    /// `MicroTime` of the API: always six digits, as in `2026-11-21T01:35:58.000000Z`.
    pub fn rfc3339_micros(self) -> String {
        let (d, t) = self.parts();
        format!(
            "{}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            Year(d.0),
            d.1,
            d.2,
            t.0,
            t.1,
            t.2,
            self.0 % 1_000_000
        )
    }

    /// Reads either form, with any offset and any number of digits.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| TimestampError(crate::excerpt(text)))?;
        Ok(Self::from_micros((at.unix_timestamp_nanos() / 1_000) as i64))
    }

    fn parts(self) -> ((i32, u8, u8), (u8, u8, u8)) {
        let at = OffsetDateTime::from_unix_timestamp(self.0 / 1_000_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
            .to_offset(UtcOffset::UTC);
        ((at.year(), at.month() as u8, at.day()), at.to_hms())
    }
}

struct Year(i32);

impl fmt::Display for Year {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}", self.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_time_formats_are_written_as_upstream() {
        let t = Timestamp::from_micros(1_763_688_958_000_042);
        assert_eq!(t.rfc3339(), "2025-11-21T01:35:58Z");
        assert_eq!(t.rfc3339_micros(), "2025-11-21T01:35:58.000042Z");
        assert_eq!(Timestamp::default().rfc3339(), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn other_texts_than_rfc3339_are_refused_by_name() {
        assert_eq!(
            Timestamp::parse("2025-11-21T03:35:58.000042+02:00").unwrap().micros(),
            1_763_688_958_000_042
        );
        assert_eq!(Timestamp::parse("2025-11-21T01:35:58Z").unwrap().rfc3339(), "2025-11-21T01:35:58Z");
        let error = Timestamp::parse("yesterday").unwrap_err();
        assert!(error.to_string().starts_with("\"yesterday\" is not an RFC 3339 time"));
    }

    #[test]
    fn time_out_of_range_is_clamped() {
        assert_eq!(Timestamp::from_micros(i64::MAX).rfc3339(), "9999-12-31T23:59:59Z");
        assert_eq!(Timestamp::from_micros(-5).rfc3339(), "1970-01-01T00:00:00Z");
    }
}
