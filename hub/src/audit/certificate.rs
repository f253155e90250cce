//! What a line says of a certificate that was made: enough to find it again and to revoke it.

use kedge_hub_core::value::rfc3339;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::entry::Note;

/// The serial number in hexadecimal digits, the expiry and the subject.
pub(crate) fn certificate_notes(der: &[u8]) -> Vec<(Note, String)> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let serial = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    let expiry = rfc3339(certificate.validity().not_after.to_datetime());
    vec![(Note::Serial, serial), (Note::NotAfter, expiry), (Note::Subject, certificate.subject().to_string())]
}
