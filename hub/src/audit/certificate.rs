//! The notes that an audit line carries about a new certificate: enough to find it again and to revoke it.
//! Also searches a log for a certificate made for a node, and for the last act on each node's access.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

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

/// A revocation in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Revoked {
    pub(crate) by: String,
    /// RFC 3339; for people.
    pub(crate) time: String,
}

/// The last act on the access of each node in these logs, the oldest log first: a revocation, or `None` if
/// the node was readmitted. A line with the verb `forgets` makes earlier ones count no more.
pub(super) fn acts(
    logs: impl Iterator<Item = PathBuf>,
    forgets: &str,
) -> io::Result<BTreeMap<String, Option<Revoked>>> {
    let mut acts = BTreeMap::new();
    for log in logs {
        let file = match open_regular(File::options().read(true), &log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        for line in BufReader::new(file.take(MOST_BYTES)).split(b'\n') {
            let line = line?;
            let text = String::from_utf8_lossy(&line);
            // most lines are about other things, so they are not parsed
            if !["revoke", "readmit", "lift", forgets]
                .iter()
                .any(|verb| text.contains(&format!("\"{verb}\"")))
            {
                continue;
            }
            let line: Value = own::read(text.as_bytes()).unwrap_or_default();
            let word =
                |pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            // a request that was refused has another code; one that was interrupted has none, and may have
            // been carried out
            let is_done = line["responseStatus"]["code"].as_u64().is_none_or(|code| code < 300);
            let (verb, node) = (word("/verb"), word("/objectRef/name"));
            let is_node = word("/objectRef/resource") == "nodes";
            if verb == forgets {
                acts.clear();
            } else if verb == "revoke" && is_node && is_done {
                let revoked = Revoked { by: word("/user/username"), time: word("/requestReceivedTimestamp") };
                acts.insert(node, Some(revoked));
            } else if is_node
                && (verb == "lift" || verb == "readmit" && line["responseStatus"]["code"] == 200)
            {
                // `lift` is a line of the hub's own, without a code
                acts.insert(node, None);
            }
        }
    }
    Ok(acts)
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

    #[test]
    fn last_act_on_a_node_counts_by_the_order_of_lines() {
        let folder = kedge_rig::Scratch::new("hub-audit-acts").unwrap();
        let line = |verb: &str, resource: &str, name: &str, code: u16, time: &str| {
            serde_json::json!({"verb": verb, "user": {"username": "admin"}, "requestReceivedTimestamp": time,
                "objectRef": {"resource": resource, "name": name}, "responseStatus": {"code": code}})
            .to_string()
        };
        let (old, new) = (folder.join("audit.log.1"), folder.join("audit.log"));
        let lines = [
            line("revoke", "nodes", "back", 200, "2099"),
            line("revoke", "nodes", "out", 200, "2099"),
            line("revoke", "nodes", "refused", 404, "2099"),
            line("revoke", "pods", "pod", 200, "2099"),
        ];
        std::fs::write(&old, lines.join("\n")).unwrap();
        let lines = [
            line("readmit", "nodes", "back", 200, "1970"),
            line("readmit", "nodes", "out", 409, "1970"),
            line("revoke", "nodes", "late", 200, "1970"),
            line("revoke", "nodes", "lifted", 200, "1970"),
            r#"{"verb":"lift","objectRef":{"resource":"nodes","name":"lifted"}}"#.to_owned(),
            r#"{"verb":"revoke","objectRef":{"resource":"nodes","name":"cut""#.to_owned(),
        ];
        std::fs::write(&new, lines.join("\n")).unwrap();
        let logs = || [folder.join("audit.log.2"), old.clone(), new.clone()].into_iter();
        let found = acts(logs(), "forget").unwrap();
        let found: Vec<_> = found.iter().map(|(node, act)| (node.as_str(), act.is_some())).collect();
        assert_eq!(found, [("back", false), ("late", true), ("lifted", false), ("out", true)]);
        let lines = format!(
            "{}\n{}\n",
            line("forget", "backups", "f", 200, ""),
            line("revoke", "nodes", "x", 200, "")
        );
        std::fs::write(&new, lines).unwrap();
        assert_eq!(acts(logs(), "forget").unwrap().into_keys().collect::<Vec<_>>(), ["x"]);
    }
}
