//! The storage limits of a caller outside the admin group: objects and bytes in all, and bytes of the parts
//! that it writes.
//!
//! Always holds: only [`ALLOWANCES`] and [`QUOTA_BYTES`] contain the numbers. One identity can fill neither
//! the store nor the memory of a small board, whatever its rights allow. Left to others: which callers are
//! limited (`WriteOptions::limited`), the judgement over all stored objects (`state::Require::Quota`), rights
//! (`identity`).

use serde_json::Value;

use crate::api_error::ApiError;
use crate::identity::bootstrap_token;
use crate::kinds::{CERTIFICATE_REQUEST, EVENT, Kind, LEASE, NODE, POD};
use crate::state::Quota;
use crate::value::{at, text};

/// JSON text of all objects that are charged to one user: events, mirror pods and certificate requests
/// together.
pub const QUOTA_BYTES: usize = 1024 * 1024;

/// The limits of one kind.
#[derive(Debug)]
pub struct Allowance {
    pub kind: &'static Kind,
    /// Objects charged to one user.
    pub objects: usize,
    /// Paths and the most bytes at each: for a text its own, for other values the JSON text; the empty path
    /// is the whole object. A part that was larger before may shrink.
    pub parts: &'static [(&'static [&'static str], usize)],
}

/// A kind without an entry is not limited: only callers to whom somebody gave the right write it.
pub static ALLOWANCES: &[Allowance] = &[
    // `garbage` keeps a node at half of it by deleting its oldest events, so an honest node never reaches
    // this limit
    Allowance { kind: &EVENT, objects: 256, parts: &[(&["message"], 1024), (&[], 8 * 1024)] },
    // 64 static pods are more than any edge device runs; a pod's status has 20 kB with ten containers
    Allowance { kind: &POD, objects: 64, parts: &[(&["status"], 64 * 1024)] },
    Allowance { kind: &CERTIFICATE_REQUEST, objects: 16, parts: &[(&[], 32 * 1024)] },
    // 50 images, the most that a kubelet reports, have 15 kB
    Allowance {
        kind: &NODE,
        objects: usize::MAX,
        parts: &[(&["status"], 64 * 1024), (&["metadata"], 64 * 1024)],
    },
    Allowance { kind: &LEASE, objects: usize::MAX, parts: &[(&[], 8 * 1024)] },
];

/// Certificate requests of a bootstrap token, which may be for a whole fleet: as many as [`QUOTA_BYTES`] has
/// room for.
const REQUESTS_OF_A_TOKEN: usize = 256;

/// The quota for the write of an object of a kind.
pub(super) fn quota(kind: &Kind, object: &Value) -> Option<Quota> {
    let allowance = of(kind)?;
    let holder = (kind.holder)(object);
    let by_token = holder.is_some_and(|user| bootstrap_token::of_user(&user).is_some());
    let objects = if by_token { allowance.objects.max(REQUESTS_OF_A_TOKEN) } else { allowance.objects };
    Some(Quota { objects, bytes: QUOTA_BYTES })
}

fn of(kind: &Kind) -> Option<&'static Allowance> {
    ALLOWANCES.iter().find(|allowance| allowance.kind.kind == kind.kind && allowance.kind.group == kind.group)
}

/// Refuses a part that is too large and larger than before.
pub(super) fn check_size(kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let bytes = |value: Option<&Value>| match value {
        // the bytes of the text itself, as upstream counts
        Some(Value::String(text)) => text.len(),
        value => value.map_or(0, |value| value.to_string().len()),
    };
    for (path, limit) in of(kind).map_or(&[][..], |allowance| allowance.parts) {
        let found = bytes(at(new, path));
        if found > *limit && found > bytes(old.and_then(|old| at(old, path))) {
            let part = if path.is_empty() { "the object".to_owned() } else { path.join(".") };
            let name = text(new, &["metadata", "name"]);
            return Err(ApiError::too_large(format!(
                "Request entity too large: {part} of {} {name:?} has {found} bytes, limit is {limit} for this user",
                kind.resource_name(),
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::CONFIG_MAP;
    use serde_json::json;

    #[test]
    fn quota_is_for_what_nodes_write() {
        for allowance in ALLOWANCES {
            let expect = Quota { objects: allowance.objects, bytes: QUOTA_BYTES };
            assert_eq!(quota(allowance.kind, &Value::Null), Some(expect), "{}", allowance.kind.kind);
        }
        assert_eq!(quota(&CONFIG_MAP, &Value::Null), None);
    }

    #[test]
    fn token_for_a_fleet_has_room_for_its_requests() {
        let check = |user: &str, objects: usize| {
            let request = json!({"spec": {"username": user}});
            assert_eq!(
                quota(&CERTIFICATE_REQUEST, &request),
                Some(Quota { objects, bytes: QUOTA_BYTES }),
                "{user}"
            );
        };
        check("system:bootstrap:abcdef", 256);
        check("system:bootstrap:abc", 16);
        check("system:node:abcdef", 16);
    }

    #[test]
    fn text_is_counted_without_its_quotes() {
        let check = |message: String, expect: bool| {
            let event = json!({"metadata": {"name": "e"}, "message": message});
            assert_eq!(check_size(&EVENT, None, &event).is_ok(), expect, "{} bytes", message.len());
        };
        check("x".repeat(1024), true);
        check("\"\n".repeat(512), true);
        check("x".repeat(1025), false);
        check("ä".repeat(513), false);
    }

    #[test]
    fn large_part_may_shrink_but_not_grow() {
        let status = |bytes: usize| json!({"metadata": {"name": "n"}, "status": {"x": "y".repeat(bytes)}});
        let check = |old: Option<usize>, new: usize, expect: bool| {
            let old = old.map(status);
            assert_eq!(check_size(&NODE, old.as_ref(), &status(new)).is_ok(), expect, "{new}");
        };
        check(None, 60_000, true);
        check(None, 70_000, false);
        check(Some(60_000), 70_000, false);
        check(Some(80_000), 70_000, true);
        check(Some(80_000), 80_001, false);
        check(Some(80_000), 80_000, true);
        // the rest of its text adds 8 bytes
        check(None, 64 * 1024 - 8, true);
        check(None, 64 * 1024 - 7, false);
        let refused = check_size(&NODE, None, &status(70_000)).unwrap_err();
        assert_eq!(refused.code, 413);
        assert!(
            refused.message.contains("status of nodes \"n\" has 70008 bytes, limit is 65536"),
            "{refused}"
        );
    }
}
