//! The table of the nodes' newest credentials: one record for each name that ever asked for one.
//!
//! Always holds: a record only moves forward, to a greater issue number, so an old copy of a disk never
//! becomes the newest one. A record is durable before its certificate leaves the hub; a certificate that was
//! made beside the hub is recorded when the node shows it. Left to others: storing it (`kedge-hub`), and what
//! follows from it (`controllers::approving`).

use serde_json::{Value, json};

use crate::value::text;

/// The known credentials of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The newest one; `None` before the first.
    pub newest: Option<Newest>,
    /// The id of the key ([`key_id`]) that a bootstrap token may get the first certificate for: of two
    /// requests for one name only the first is approved.
    pub pending: String,
    /// The use of a token that pays for that first certificate.
    pub payment: Payment,
}

/// The use of a bootstrap token that a reservation of a name relies on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payment {
    /// The token's id; empty in a record of an older hub.
    pub token: String,
    /// The record of the use in the token (`bootstrap_token::admission`).
    pub admission: String,
}

/// The newest credential of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newest {
    /// 0: a certificate of a hub that gave no numbers.
    pub issue: u64,
    /// The credential proves nothing from this second on (Unix time).
    pub not_after: i64,
    /// The id of its public key ([`key_id`]).
    pub key: String,
}

impl Record {
    /// From a stored record; an unreadable field counts as unknown.
    pub fn read(stored: &Value) -> Record {
        let field = |name| text(stored, &["data", name]);
        let newest = || {
            Some(Newest {
                issue: field("issue").parse().ok()?,
                not_after: field("notAfter").parse().ok()?,
                key: field("key").to_owned(),
            })
        };
        let payment = Payment { token: field("token").to_owned(), admission: field("admission").to_owned() };
        Record { newest: newest(), pending: field("pending").to_owned(), payment }
    }

    /// Writes it into a stored record.
    pub fn write(&self, stored: &mut Value) {
        let mut data = json!({});
        if let Some(Newest { issue, not_after, key }) = &self.newest {
            data = json!({"issue": issue.to_string(), "notAfter": not_after.to_string(), "key": key});
        }
        let reservation = [
            ("pending", &self.pending),
            ("token", &self.payment.token),
            ("admission", &self.payment.admission),
        ];
        for (name, text) in reservation {
            if !text.is_empty() {
                data[name] = text.as_str().into();
            }
        }
        stored["data"] = data;
    }

    /// Takes in the record of another copy of the table: the newer credential counts. Returns whether that
    /// changed it.
    pub fn unite(&mut self, other: &Record) -> bool {
        match &other.newest {
            Some(newest) => self.take(newest.clone()),
            None => false,
        }
    }

    /// Takes in a credential, unless it is older than the newest one. Returns whether it did.
    pub fn take(&mut self, new: Newest) -> bool {
        // of two without a number the one that ends later counts as newer
        let order = |known: &Newest| (known.issue, known.not_after);
        if self.newest.as_ref().is_some_and(|known| order(known) >= order(&new)) {
            return false;
        }
        *self = Record { newest: Some(new), ..Record::default() };
        true
    }
}

/// The id of a public key: SHA-256 of its SubjectPublicKeyInfo, in hexadecimal.
pub fn key_id(spki: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, spki);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(issue: u64, not_after: i64) -> Newest {
        Newest { issue, not_after, key: "0a".to_owned() }
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let mut stored = json!({"metadata": {"name": "edge-1"}});
        for (newest, pending) in
            [(None, ""), (None, "0b"), (Some(newest(0, -1)), ""), (Some(newest(u64::MAX, i64::MAX)), "0b")]
        {
            let payment = Payment { token: pending.to_owned(), admission: "x".repeat(pending.len()) };
            let record = Record { newest, pending: pending.to_owned(), payment };
            record.write(&mut stored);
            assert_eq!(Record::read(&stored), record);
        }
        assert_eq!(Record::read(&json!({"data": {"issue": "x", "notAfter": "1"}})), Record::default());
        assert_eq!(Record::read(&Value::Null), Record::default());
    }

    #[test]
    fn older_credential_takes_no_place() {
        let check = |new: (u64, i64), known: (u64, i64), expect: bool| {
            let known = Some(newest(known.0, known.1));
            let mut record = Record { newest: known.clone(), pending: "0b".to_owned(), ..Record::default() };
            let mut united = record.clone();
            let other = Record { newest: Some(newest(new.0, new.1)), ..Record::default() };
            assert_eq!(united.unite(&other), expect);
            assert_eq!(record.take(newest(new.0, new.1)), expect, "{new:?} {known:?}");
            assert_eq!((record.newest == known, record.pending.is_empty()), (!expect, expect));
            assert_eq!(united, record);
            assert!(!united.unite(&Record::default()));
        };
        check((2, 10), (1, 99), true);
        check((1, 99), (2, 10), false);
        check((0, 99), (1, 1), false);
        check((0, 99), (0, 98), true);
        check((7, 7), (7, 7), false);
        assert!(Record::default().take(newest(0, 0)));
    }
}
