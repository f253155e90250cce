//! The serial numbers of certificates that a hub issues: they carry the issue number and the time of issue.
//!
//! The issue number is a counter that only the hub raises: of two certificates the one with the greater
//! number was issued later, whatever any clock showed. The time is for people. (A certificate cannot show it
//! in another way: all are valid from 1970 on, for boards without a clock.) Hubs of before issue numbers
//! wrote the time alone.

/// First bytes of a serial number: then the issue number (8 bytes), the time in seconds (4), random bytes
/// (4).
const MARK: [u8; 4] = *b"kdgn";
/// The same of an older hub: then the time in microseconds (8 bytes), random bytes (8).
const NUMBERLESS_MARK: [u8; 4] = *b"kdge";
/// Bytes of a serial number: the most that X.509 permits.
const BYTES: usize = 20;

/// The content of a serial number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serial {
    /// 0: the certificate has none.
    pub number: u64,
    /// By the clock of the hub that issued it; Unix time.
    pub issued_micros: i64,
}

/// Reads a serial number; `None` if it is not of a hub, or of one from before both marks.
pub fn read(serial: &[u8]) -> Option<Serial> {
    let serial: &[u8; BYTES] = serial.try_into().ok()?;
    if let Some(rest) = serial.strip_prefix(&NUMBERLESS_MARK) {
        return Some(Serial { number: 0, issued_micros: i64::from_be_bytes(*rest.first_chunk()?) });
    }
    let (number, rest) = serial.strip_prefix(&MARK)?.split_first_chunk()?;
    let seconds = u32::from_be_bytes(*rest.first_chunk()?);
    Some(Serial { number: u64::from_be_bytes(*number), issued_micros: i64::from(seconds) * 1_000_000 })
}

/// Writes a serial number; a time beyond 2106 is cut.
pub fn write(serial: &Serial, random: [u8; 4]) -> [u8; BYTES] {
    let seconds = u32::try_from((serial.issued_micros / 1_000_000).max(0)).unwrap_or(u32::MAX);
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&MARK);
    bytes[4..12].copy_from_slice(&serial.number.to_be_bytes());
    bytes[12..16].copy_from_slice(&seconds.to_be_bytes());
    bytes[16..].copy_from_slice(&random);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_number_tells_number_and_time() {
        let check = |serial: &[u8], number: u64, issued_micros: i64| {
            assert_eq!(read(serial), Some(Serial { number, issued_micros }), "{serial:?}");
        };
        let issued = Serial { number: 1 << 40, issued_micros: 1_800_000_000_123_456 };
        let serial = write(&issued, [0xff; 4]);
        assert!(serial[0] < 0x80, "a positive number");
        check(&serial, 1 << 40, 1_800_000_000_000_000);
        check(&write(&Serial { number: u64::MAX, issued_micros: -1 }, [0; 4]), u64::MAX, 0);
        check(
            &write(&Serial { number: 1, issued_micros: i64::MAX }, [0; 4]),
            1,
            i64::from(u32::MAX) * 1_000_000,
        );
        let mut old = [7; BYTES];
        old[..4].copy_from_slice(b"kdge");
        old[4..12].copy_from_slice(&1_700_000_000_123_456_i64.to_be_bytes());
        check(&old, 0, 1_700_000_000_123_456);
        for other in [&serial[1..], &[1; 20], &[]] {
            assert_eq!(read(other), None);
        }
    }
}
