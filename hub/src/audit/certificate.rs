//! The notes that an audit line carries about a new certificate: enough to find it again and to revoke it.
//! Also searches a log for a certificate made for a node.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use kedge_api::NODE_USER_PREFIX;
use kedge_hub_core::value::rfc3339;
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::entry::Note;
use crate::files::open_regular;
use crate::own;

/// More than a log has before it is rotated: of a file that grew beyond that, the rest is not read.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// The serial number in hexadecimal digits, the expiry and the subject.
pub(crate) fn certificate_notes(der: &[u8]) -> Vec<(Note, String)> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let serial = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    let expiry = rfc3339(certificate.validity().not_after.to_datetime());
    vec![(Note::Serial, serial), (Note::NotAfter, expiry), (Note::Subject, certificate.subject().to_string())]
}

/// Whether a log has a line about a certificate for this node.
pub(super) fn is_for(node: &str, log: &Path) -> io::Result<bool> {
    let file = match open_regular(File::options().read(true), log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let name = format!("CN={NODE_USER_PREFIX}{node}");
    let is_one = |line: &str| {
        let line: Value = own::read(line.as_bytes()).unwrap_or_default();
        let subject = line["annotations"][Note::Subject.key()].as_str().unwrap_or_default();
        subject.split(", ").any(|part| part == name)
    };
    for line in BufReader::new(file.take(MOST_BYTES)).split(b'\n') {
        let line = line?;
        // most lines are not about certificates, so they are not parsed; the last one may be half written
        let text = String::from_utf8_lossy(&line);
        if text.contains(&name) && is_one(&text) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_of_a_node_is_found_by_its_whole_name() {
        let folder = kedge_rig::Scratch::new("hub-audit-issued").unwrap();
        let log = folder.join("audit.log");
        let lines = [
            r#"{"annotations":{"kedge.dev/subject":"O=system:nodes, CN=system:node:edge-10"}}"#,
            r#"{"annotations":{"kedge.dev/names":"CN=system:node:edge-2"},"requestURI":"CN=system:node:edge-2"}"#,
            r#"{"annotations":{"kedge.dev/subject":"CN=system:node:edge-3, O=system:nodes"}}"#,
            r#"{"annotations":{"kedge.dev/subject":"O=system:nodes, CN=system:node:edge-4"}"#,
        ];
        std::fs::write(&log, lines.join("\n")).unwrap();
        for (node, expect) in
            [("edge-1", false), ("edge-10", true), ("edge-2", false), ("edge-3", true), ("edge-4", false)]
        {
            assert_eq!(is_for(node, &log).unwrap(), expect, "{node}");
        }
        assert!(!is_for("edge-3", &folder.join("audit.log.1")).unwrap());
        assert!(is_for("edge-3", folder.path()).is_err(), "what cannot be read is not empty");
    }
}
