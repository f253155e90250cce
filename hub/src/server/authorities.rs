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
use kedge_hub_core::kinds::{NODE, text};
use kedge_hub_core::value::at;

/// A node that has been silent for longer does not hold up an operator.
const FORGOTTEN_AFTER: time::Duration = time::Duration::days(90);
/// Most names in an answer.
const NAMED: usize = 20;

pub(super) fn answer(context: &RequestContext<'_>) -> Response<Body> {
    let hub = &context.server.hub;
    let Some(opened) = hub.authorities() else {
        return respond::json(200, &json!({"authorities": []}));
    };
    let nodes = hub.list(&NODE, "");
    let mut trust = Trust::default();
    for node in &nodes {
        let value = node.value();
        trust.count(&node.name, &value, &opened.bundle, OffsetDateTime::now_utc());
    }
    let authorities: Vec<Value> = opened
        .all
        .iter()
        .map(|known| {
            json!({"number": known.number, "role": known.role.name(), "name": known.name, "sha256": known.sha256})
        })
        .collect();
    respond::json(
        200,
        &json!({"authorities": authorities, "bundle": opened.bundle, "nodes": {
            "trusting": trust.trusting, "behind": trust.behind, "forgotten": trust.forgotten, "names": trust.names}}),
    )
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
    fn count(&mut self, name: &str, node: &Value, bundle: &str, now: OffsetDateTime) {
        if text(node, &["metadata", "annotations", AUTHORITIES_ANNOTATION]) == bundle {
            self.trusting += 1;
        } else if silent_since(node).is_some_and(|since| now - since > FORGOTTEN_AFTER) {
            self.forgotten += 1;
        } else {
            self.behind += 1;
            if self.names.len() < NAMED {
                self.names.push(name.to_owned());
            }
        }
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
        let mut count = |name: &str, node: Value| trust.count(name, &node, "0123abcd", now);
        count("a", node("0123abcd", "True", "2030-01-01T00:00:00Z"));
        count("b", node("0123abcd", "Unknown", "2030-01-01T00:00:00Z"));
        count("c", node("ffffffff", "True", "2030-01-01T00:00:00Z"));
        count("d", json!({}));
        count("e", node("", "Unknown", "2036-05-01T00:00:00Z"));
        count("f", node("", "Unknown", "2036-02-01T00:00:00Z"));
        count("g", node("", "Unknown", "never"));
        let names = ["c", "d", "e", "g"].map(str::to_owned).to_vec();
        assert_eq!(trust, Trust { trusting: 2, behind: 4, forgotten: 1, names });
    }
}
