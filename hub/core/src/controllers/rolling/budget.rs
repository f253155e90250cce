//! Numbers and shares of nodes: how many may be out at a time, and how many may fail.

use std::time::Duration;

use serde_json::Value;

use crate::value::duration;

/// Longest time that a setting may give: longer than a person waits, and far from the overflow of a clock.
pub(in crate::controllers) const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A number, or a percentage of `all`, rounded up.
pub(in crate::controllers) fn share(value: &Value, all: usize) -> usize {
    match percent(value) {
        Some(percent) => (all * percent).div_ceil(100),
        None => number(value),
    }
}

/// A number, or a percentage of `all`, rounded down: for failures, of which a share of few nodes is zero.
pub(in crate::controllers) fn share_down(value: &Value, all: usize) -> usize {
    match percent(value) {
        Some(percent) => all * percent / 100,
        None => number(value),
    }
}

fn percent(value: &Value) -> Option<usize> {
    let percent = value.as_str()?.strip_suffix('%')?.parse::<usize>().ok()?;
    Some(percent.min(100))
}

fn number(value: &Value) -> usize {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

/// A number, or a percentage of at most 100, as it is written in an annotation.
pub(in crate::controllers) fn count(found: &str) -> Option<Value> {
    match found.strip_suffix('%') {
        Some(percent) => percent.parse::<u32>().ok().filter(|percent| *percent <= 100).map(|_| found.into()),
        None => found.parse::<u32>().ok().map(Value::from),
    }
}

/// A duration small enough to be added to any time of the hub's clock.
pub(in crate::controllers) fn time(found: &str) -> Option<Duration> {
    duration(found).filter(|found| *found <= LONGEST)
}

/// How many nodes may be out at a time by a rollout's doing, and how many are.
#[derive(Debug, Clone, Copy)]
pub(in crate::controllers) struct Budget {
    most: usize,
    out: usize,
}

impl Budget {
    pub(in crate::controllers) fn new(most: usize, out: usize) -> Budget {
        Budget { most, out }
    }

    /// One more node is out, whether or not there was room.
    pub(in crate::controllers) fn note_out(&mut self) {
        self.out += 1;
    }

    /// A node that was counted is not out.
    pub(in crate::controllers) fn note_back(&mut self) {
        self.out = self.out.saturating_sub(1);
    }

    /// How many more nodes may be taken.
    pub(in crate::controllers) fn room(self) -> usize {
        self.most.saturating_sub(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shares_of_few_nodes_are_rounded_to_the_safe_side() {
        for (value, all, up, down) in [
            (json!("1%"), 3, 1, 0),
            (json!("1%"), 1000, 10, 10),
            (json!("2%"), 101, 3, 2),
            (json!("500%"), 10, 10, 10),
            (json!(4), 2, 4, 4),
            (json!("x"), 2, 0, 0),
            (json!(-1), 2, 0, 0),
        ] {
            assert_eq!((share(&value, all), share_down(&value, all)), (up, down), "{value} of {all}");
        }
    }

    #[test]
    fn budget_in_excess_has_no_room() {
        let mut budget = Budget::new(2, 1);
        assert_eq!(budget.room(), 1);
        budget.note_out();
        budget.note_out();
        assert_eq!(budget.room(), 0);
    }
}
