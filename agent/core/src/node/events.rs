//! The Events about the own Node, for people who use kubectl.
//!
//! Always holds: each is a log line at once and an Event once there is a Node; they are posted one at a time,
//! in order; of too many the oldest are dropped, but never the one in flight. Leaves to others: which facts
//! are worth an Event.

use crate::answer::{Answer, Level, Now};
use crate::config::running::Notice;
use crate::event::{Request, RequestKey};
use crate::turn::Turn;
use kedge_api as api;
use serde_json::json;

/// Notices that wait to be posted as Events: enough for a start with every possible fault, and no more than a
/// hub can take from 10,000 nodes that reconnect together.
const PENDING_EVENTS: usize = 16;

#[derive(Debug, Clone, Default)]
pub(crate) struct NodeEvents {
    pending: heapless::Deque<api::Event, PENDING_EVENTS>,
    /// Number published since the start.
    count: u64,
}

impl NodeEvents {
    /// A log line, and an Event once there is a Node to post it on.
    pub(crate) fn publish(&mut self, notice: Notice, turn: &mut Turn) {
        let level = if notice.warning { Level::Warn } else { Level::Info };
        turn.log(level, format!("{}: {}", notice.reason, notice.message));
        self.count = self.count.saturating_add(1);
        let node = &turn.options.node_name;
        let name = event_name(node, turn.now, self.count);
        let event = api::Event {
            metadata: api::ObjectMeta { name, namespace: "default".into(), ..Default::default() },
            involved_object: api::ObjectReference {
                kind: "Node".into(),
                name: node.clone(),
                uid: node.clone(),
                api_version: "v1".into(),
                namespace: String::new(),
            },
            reason: notice.reason.into(),
            message: notice.message.chars().take(1000).collect(),
            source: api::EventSource { component: "kedge".into(), host: node.clone() },
            first_timestamp: Some(turn.now.wall),
            last_timestamp: Some(turn.now.wall),
            count: 1,
            event_type: if notice.warning { "Warning" } else { "Normal" }.into(),
        };
        // the one in flight stays, because its answer removes the first; of the others the oldest is dropped
        if self.pending.is_full() {
            let first = self.pending.pop_front();
            if turn.outbox.is_in_flight(&RequestKey::PostEvent) {
                self.pending.pop_front();
                if let Some(first) = first {
                    let _ = self.pending.push_front(first);
                }
            }
        }
        let _ = self.pending.push_back(event);
    }

    /// `is_there`: whether there is a Node.
    pub(crate) fn offer(&self, is_there: bool, turn: &mut Turn) {
        turn.offer(RequestKey::PostEvent, |_| {
            let event = self.pending.front().filter(|_| is_there);
            event.map(|event| Request::PostEvent(json!(event)))
        });
    }

    /// The first was accepted, or refused for good.
    pub(crate) fn posted(&mut self, answer: &Answer, turn: &mut Turn) {
        self.pending.pop_front();
        // 409: it was taken at an earlier try, whose answer got lost
        if !matches!(answer, Answer::Accepted(_) | Answer::Refused { status: 409, .. }) {
            turn.log(Level::Warn, format!("event dropped: {answer}"));
        }
    }
}

/// Upstream's form of an Event's name, within the limit of a name: a long node name is cut.
pub(crate) fn event_name(node: &str, now: Now, number: u64) -> String {
    let stamp = format!(".{:x}{:02x}", now.wall.micros(), number & 0xff);
    // names are ASCII; a part of one may not end with a dot or a dash
    let room = api::names::SUBDOMAIN_BYTES.saturating_sub(stamp.len()).min(node.len());
    format!("{}{stamp}", node.get(..room).unwrap_or_default().trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn event_of_the_longest_node_name_has_a_valid_name() {
        let now = Now { mono: Duration::ZERO, wall: api::Timestamp::from_micros(1_763_688_958_000_000) };
        let longest = format!("{}.{}", "a".repeat(126), "b".repeat(126));
        let dotted = "a.".repeat(126) + "a";
        let hyphens = format!("a{}b", "-".repeat(251));
        for node in ["edge-1", &longest, &dotted, &hyphens] {
            let name = event_name(node, now, 300);
            assert_eq!(api::names::subdomain_complaint(&name), None, "{name}");
            assert!(name.ends_with(".64410d5d5fb802c"), "{name}");
        }
        assert_ne!(event_name(&longest, now, 1), event_name(&longest, now, 2));
    }
}
