//! `GET /kedge/authorities`: the hub's authorities, and how many nodes trust them. The command `kedge-hub ca`
//! reads it.
//!
//! A node reports the set that it trusts in an annotation, by the set's digest. Left to others: the steps
//! that this permits an operator (`ca_command`), the authorities themselves (`pki`).

use http::Response;
use kedge_api::AUTHORITIES_ANNOTATION;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::context::RequestContext;
use super::respond::{self, Body};
use crate::pki::Known;
use crate::{Hub, credential_table};
use kedge_hub_core::identity::credential::Newest;
use kedge_hub_core::kinds::{NODE, text};
use kedge_hub_core::value::at;

/// A node that has been silent for longer does not hold up an operator.
const FORGOTTEN_AFTER: time::Duration = time::Duration::days(90);
/// Most names in an answer.
const NAMED: usize = 20;

pub(super) fn answer(context: &RequestContext<'_>) -> Response<Body> {
    let hub: &Hub = &context.server.hub;
    let Some(opened) = hub.authorities() else {
        return respond::json(200, &json!({"authorities": []}));
    };
    let nodes = hub.list(&NODE, "");
    let now = OffsetDateTime::now_utc();
    let mut trust = Trust::default();
    let mut holders: Vec<Holders> = opened.all.iter().map(|_| Holders::default()).collect();
    for node in &nodes {
        let value = node.value();
        let is_awaited = trust.count(&node.name, &value, &opened.bundle, now);
        let newest = credential_table::of(hub, &node.name).newest;
        for (known, holders) in opened.all.iter().zip(&mut holders) {
            if is_awaited
                && let Some(newest) = &newest
                && holds(newest, known, now)
            {
                holders.add(&node.name);
            }
        }
    }
    let authorities: Vec<Value> = opened
        .all
        .iter()
        .zip(&holders)
        .map(|(known, holders)| {
            json!({"number": known.number, "role": known.role.name(), "name": known.name, "sha256": known.sha256,
                "holders": {"count": holders.count, "names": holders.names}})
        })
        .collect();
    respond::json(
        200,
        &json!({"authorities": authorities, "bundle": opened.bundle, "nodes": {
            "trusting": trust.trusting, "behind": trust.behind, "forgotten": trust.forgotten, "names": trust.names}}),
    )
}

/// The nodes with certificates of one authority.
#[derive(Debug, Default, PartialEq)]
struct Holders {
    count: u32,
    /// The first of them.
    names: Vec<String>,
}

impl Holders {
    fn add(&mut self, name: &str) {
        self.count += 1;
        if self.names.len() < NAMED {
            self.names.push(name.to_owned());
        }
    }
}

/// Whether this authority signed a node's newest certificate, and the certificate has not expired. An expired
/// one is good for a return alone, also after its authority is retired.
fn holds(newest: &Newest, authority: &Known, now: OffsetDateTime) -> bool {
    let signed = authority.numbers.as_ref().is_some_and(|numbers| numbers.contains(&newest.issue));
    signed && now.unix_timestamp() < newest.not_after
}

/// How many nodes trust the present set.
#[derive(Debug, Default, PartialEq)]
struct Trust {
    /// Nodes that report it.
    trusting: u32,
    /// Nodes that do not, and may still report it.
    behind: u32,
    /// Nodes that do not, and are silent for longer than [`FORGOTTEN_AFTER`].
    forgotten: u32,
    /// The first of the nodes that are behind.
    names: Vec<String>,
}

impl Trust {
    /// Counts a node; returns whether a step has to wait for it.
    fn count(&mut self, name: &str, node: &Value, bundle: &str, now: OffsetDateTime) -> bool {
        let is_forgotten = silent_since(node).is_some_and(|since| now - since > FORGOTTEN_AFTER);
        if text(node, &["metadata", "annotations", AUTHORITIES_ANNOTATION]) == bundle {
            self.trusting += 1;
        } else if is_forgotten {
            self.forgotten += 1;
        } else {
            self.behind += 1;
            if self.names.len() < NAMED {
                self.names.push(name.to_owned());
            }
        }
        !is_forgotten
    }
}

/// When the hub noticed that the node is silent, by the hub's own clock; `None` while it is heard.
fn silent_since(node: &Value) -> Option<OffsetDateTime> {
    let conditions = at(node, &["status", "conditions"]).and_then(Value::as_array)?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    if ready["status"] != "Unknown" {
        return None;
    }
    OffsetDateTime::parse(ready["lastTransitionTime"].as_str()?, &Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn nodes_count_by_what_they_report_and_how_long_they_are_silent() {
        let now = datetime!(2036-06-01 00:00:00 UTC);
        let node = |digest: &str, ready: &str, since: &str| {
            json!({"metadata": {"annotations": {AUTHORITIES_ANNOTATION: digest}},
                "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}})
        };
        let mut trust = Trust::default();
        let mut awaited = Vec::new();
        let mut count = |name: &str, node: Value| {
            if trust.count(name, &node, "0123abcd", now) {
                awaited.push(name.to_owned());
            }
        };
        count("a", node("0123abcd", "True", "2030-01-01T00:00:00Z"));
        count("b", node("0123abcd", "Unknown", "2030-01-01T00:00:00Z"));
        count("c", node("ffffffff", "True", "2030-01-01T00:00:00Z"));
        count("d", json!({}));
        count("e", node("", "Unknown", "2036-05-01T00:00:00Z"));
        count("f", node("", "Unknown", "2036-02-01T00:00:00Z"));
        count("g", node("", "Unknown", "never"));
        let names = ["c", "d", "e", "g"].map(str::to_owned).to_vec();
        assert_eq!(trust, Trust { trusting: 2, behind: 4, forgotten: 1, names });
        assert_eq!(awaited, ["a", "c", "d", "e", "g"]);
    }

    #[test]
    fn node_holds_a_certificate_of_one_authority_until_it_expires() {
        let now = datetime!(2036-06-01 00:00:00 UTC);
        let known = |numbers| Known {
            number: 1,
            role: crate::pki::Role::Former,
            name: String::new(),
            sha256: String::new(),
            retired_at: None,
            numbers,
        };
        let newest = |issue: u64, secs: i64| {
            let not_after = now.unix_timestamp() + secs;
            Newest { issue, not_after, key: String::new() }
        };
        for (issue, secs, numbers, expect) in [
            (0, 1, Some(0..=7), true),
            (7, 1, Some(0..=7), true),
            (8, 1, Some(0..=7), false),
            (8, 1, Some(8..=u64::MAX), true),
            (7, 0, Some(0..=7), false),
            (7, 1, None, false),
        ] {
            let known = known(numbers.clone());
            assert_eq!(holds(&newest(issue, secs), &known, now), expect, "{issue} {secs} {numbers:?}");
        }
    }
}
