//! The fields that a node reads of an X.509 certificate (RFC 5280 section 4.1).
//!
//! Always holds: no input panics; the result for an unreadable certificate is `None`. Leaves verification to
//! rustls.

use crate::identity::x509::hex;
use crate::net::date::days_since_1970;
use kedge_core::identity::Certificate;
use ring::digest::{SHA256, digest};
use std::time::Duration;

/// The end of the validity of a DER certificate, in seconds since 1970.
pub(crate) fn not_after(der: &[u8]) -> Option<u64> {
    validity(der).map(|(_, end)| end)
}

/// The fields of a node's own certificate, from DER.
pub(crate) fn facts(der: &[u8]) -> Option<Certificate> {
    let (SEQUENCE, certificate, _) = value(der)? else { return None };
    let (SEQUENCE, mut fields, _) = value(certificate)? else { return None };
    if let (EXPLICIT_VERSION, _, rest) = value(fields)? {
        fields = rest;
    }
    let (_, serial, fields) = value(fields)?;
    let algorithm = value(fields)?;
    let (_, issuer, fields) = value(algorithm.2)?;
    let validity_and_on = value(fields)?;
    let key = value(validity_and_on.2)?.2;
    let after_key = value(key)?.2;
    let key = &key[..key.len() - after_key.len()];
    let (begin, not_after) = validity(der)?;
    let known = kedge_api::serial::read(serial);
    let issued = known.and_then(|known| u64::try_from(known.issued_micros).ok()).map(Duration::from_micros);
    let digest_of = |bytes: &[u8]| hex(digest(&SHA256, bytes).as_ref());
    Some(Certificate {
        serial: hex(serial),
        number: known.map_or(0, |known| known.number),
        // those of our hub are valid from 1970 on
        issued: issued.map_or(begin, |issued| issued.as_secs().max(begin)),
        not_after,
        key: digest_of(key),
        id: digest_of(der),
        issuer: digest_of(issuer),
        replaces: None,
    })
}

/// Beginning and end of the validity of a DER certificate, in seconds since 1970.
pub(crate) fn validity(der: &[u8]) -> Option<(u64, u64)> {
    let (SEQUENCE, certificate, _) = value(der)? else { return None };
    let (SEQUENCE, mut fields, _) = value(certificate)? else { return None };
    if let (EXPLICIT_VERSION, _, rest) = value(fields)? {
        fields = rest;
    }
    // serial number, signature algorithm, issuer
    for _ in 0..3 {
        fields = value(fields)?.2;
    }
    let (SEQUENCE, validity, _) = value(fields)? else { return None };
    let (first, begin, rest) = value(validity)?;
    let (second, end, _) = value(rest)?;
    let read = |tag, text| time(tag, core::str::from_utf8(text).ok()?);
    Some((read(first, begin)?, read(second, end)?))
}

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const EXPLICIT_VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Tag, content and the bytes after it.
pub(crate) fn value(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` with years from 1950 on, or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<u64> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let number = |from: usize, to: usize| digits.get(from..to)?.parse::<u64>().ok();
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => (number(0, 2).map(|year| if year < 50 { 2000 + year } else { 1900 + year })?, 2),
        (GENERALIZED_TIME, 14) => (number(0, 4)?, 4),
        _ => return None,
    };
    let part = |index: usize| number(rest + 2 * index, rest + 2 * index + 2);
    let (month, day) = (part(0)?, part(1)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + part(2)? * 3600 + part(3)? * 60 + part(4)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_certificate_are_read() {
        let pem = crate::identity::x509::new_key().unwrap();
        let key = rcgen::KeyPair::from_pem(&pem).unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.serial_number = Some(vec![0x42, 7].into());
        let der = params.self_signed(&key).unwrap().der().to_vec();
        let found = facts(&der).unwrap();
        assert_eq!((found.serial.as_str(), found.number), ("4207", 0));
        let own = <rustls::pki_types::PrivateKeyDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(
            pem.as_bytes(),
        );
        let own = crate::identity::x509::public_key_of(&own.unwrap()).unwrap();
        assert_eq!(found.key, hex(digest(&SHA256, &own).as_ref()));
        assert_eq!(validity(&der), Some((found.issued, found.not_after)));
    }

    #[test]
    fn end_of_validity_is_read() {
        let mut params = rcgen::CertificateParams::new(vec!["hub".into()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        for (year, expect) in [(2031, 1_925_078_400), (2120, 4_733_596_800)] {
            params.not_after = rcgen::date_time_ymd(year, 1, 2);
            let der = params.self_signed(&key).unwrap().der().to_vec();
            assert_eq!(not_after(&der), Some(expect), "{year}");
            // cut or flipped anywhere, it does not panic
            for at in 0..der.len() {
                not_after(&der[..at]);
                facts(&der[..at]);
                let mut flipped = der.clone();
                flipped[at] ^= 0xff;
                not_after(&flipped);
                facts(&flipped);
            }
        }
    }
}
