//! Devices whose certificate was refused lately.
//!
//! Always holds: only certificates count that an authority of this hub signed, so a stranger makes no entry.
//! The table is bounded, and forgets a device that has been quiet for an hour. It is kept in memory alone.
//! Left to others: the refusal (`authentication`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kedge_api::head_of;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::page::Knock;

/// How long a refusal counts, in seconds: longer than the longest pause of an agent between two attempts.
const LATELY: i64 = 60 * 60;
/// Devices in the table. Beyond that a new one is not noted until others are quiet.
const MOST: usize = 10_000;
/// Longest reason, in bytes: an administrator may have written it.
const WHY_BYTES: usize = 240;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Knocks(Mutex<Table>);

/// By name: when it was refused last (Unix time), and why.
type Table = HashMap<Box<str>, (i64, Box<str>)>;

impl Knocks {
    /// Notes that a device was refused; `now`: Unix time. Others than nodes are not noted.
    pub(super) fn note(&self, identity: &Identity, why: &str, now: i64) {
        let Some(node) = identity.node() else { return };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(node) {
            all.retain(|_, (at, _)| is_lately(*at, now));
        }
        if all.len() < MOST || all.contains_key(node) {
            all.insert(node.into(), (now, head_of(why, WHY_BYTES).into()));
        }
    }

    /// A certificate of this node was accepted.
    pub(super) fn forget(&self, node: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }

    /// The number of devices that were refused lately.
    pub(crate) fn count(&self, now: i64) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().filter(|(at, _)| is_lately(*at, now)).count()
    }

    /// The devices that were refused lately, the latest first.
    pub(super) fn all(&self, now: i64, is_registered: impl Fn(&str) -> bool) -> Vec<Knock> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for (node, (at, why)) in all.iter().filter(|(_, (at, _))| is_lately(*at, now)) {
            let (at, why, is_registered) = (*at, why.to_string(), is_registered(node));
            found.push(Knock { node: node.to_string(), at, why, is_registered });
        }
        found.sort_by(|a: &Knock, b: &Knock| (b.at, &a.node).cmp(&(a.at, &b.node)));
        found
    }
}

/// A clock that was set back makes no refusal stay for longer.
fn is_lately(at: i64, now: i64) -> bool {
    (now.saturating_sub(LATELY)..=now.saturating_add(LATELY)).contains(&at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Identity {
        Identity::new(&format!("system:node:{name}"), &["system:nodes"])
    }

    fn names(knocks: &Knocks, now: i64) -> Vec<String> {
        knocks.all(now, |_| true).into_iter().map(|knock| knock.node).collect()
    }

    #[test]
    fn refused_node_is_shown_for_an_hour_or_until_it_is_accepted() {
        let knocks = Knocks::default();
        knocks.note(&node("a"), "expired", 100);
        knocks.note(&node("b"), "revoked", 200);
        knocks.note(&node("a"), "revoked", 300);
        knocks.note(&Identity::new("jane", &[]), "revoked", 300);
        assert_eq!(names(&knocks, 300), ["a", "b"]);
        assert_eq!(names(&knocks, 200 + LATELY + 1), ["a"]);
        assert_eq!(knocks.count(200 + LATELY + 1), 1);
        knocks.forget("a");
        assert_eq!(names(&knocks, 300), ["b"]);
        // the clock was set back by years
        assert_eq!(names(&knocks, -1_000_000), Vec::<String>::new());
    }

    #[test]
    fn table_is_bounded() {
        let knocks = Knocks::default();
        for number in 0..MOST + 5 {
            knocks.note(&node(&format!("n{number}")), &"x".repeat(1 << 16), 0);
        }
        assert_eq!(knocks.count(0), MOST);
        assert_eq!(knocks.0.lock().unwrap()["n7"].1.len(), WHY_BYTES);
        // known ones are noted all the same, and quiet ones make room
        knocks.note(&node("n7"), "later", LATELY + 1);
        knocks.note(&node("new"), "later", LATELY + 1);
        assert_eq!(names(&knocks, LATELY + 1), ["n7", "new"]);
    }
}
