//! Which nodes are assigned which revision next, and how far the batches are.
//!
//! Always holds: a pure function of the nodes' states. At most `maxUnavailable` nodes (and as many of each
//! group as `perGroup` allows) are out by the rollout's doing: assigned, and neither promoted nor lost since
//! another revision came. A node that is out already is taken without further room, because that takes
//! nothing more down; so is one that never had a configuration, for the complete revision alone. A node that
//! refused the update runs its former configuration, so it holds up no node that is to get the complete
//! revision. The next batch begins once each node of the ones before is well, for the time that its batch
//! soaks, and for `completeAfter` at least. So a node that gets worse soon after its promotion is noticed,
//! also in the last batch. Nodes are taken in order of their names. Leaves to others: judging nodes (`node`),
//! and stopping (`rolling::stop`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::rolling::budget::{Budget, share};
use super::node::{State, Why};
use super::settings::Settings;
use crate::kinds::config_rollout::BATCHES;

/// A selected node.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) state: State,
    /// Since when it is good.
    pub(super) good: Option<Duration>,
    /// One bit for each batch that it may belong to.
    pub(super) batches: u32,
    pub(super) group: &'a str,
    /// It is assigned the revision of the update.
    pub(super) has_update: bool,
    /// It is assigned the complete revision.
    pub(super) has_complete: bool,
    /// It was assigned nothing yet.
    pub(super) is_new: bool,
    /// It may be down by the rollout's doing.
    pub(super) is_out: bool,
}

impl Row<'_> {
    fn has_refused(&self) -> bool {
        matches!(self.state, State::Failed(Why::Refused(_)))
    }
}

/// The revisions, and how far the update is.
pub(super) struct Progress {
    /// Batches that the update has passed; all of them, if it was complete before.
    pub(super) passed: usize,
    /// The update may be assigned: it is neither stopped nor paused, and its state is stored.
    pub(super) may_update: bool,
    /// The complete revision may be assigned to nodes that do not get the update yet.
    pub(super) may_complete: bool,
    /// The update is stopped: nodes whose turn it is get the complete revision, too, if they have another one.
    pub(super) is_stopped: bool,
    /// Most assignments.
    pub(super) most: usize,
    /// Failures that the update tolerates.
    pub(super) tolerated: usize,
    pub(super) now: Duration,
}

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan<'a> {
    pub(super) update: Vec<&'a str>,
    pub(super) complete: Vec<&'a str>,
    /// The batch under way is passed.
    pub(super) is_passed: bool,
    /// The update is complete.
    pub(super) is_complete: bool,
    /// The batch under way waits for this time to be over.
    pub(super) soaks_until: Option<Duration>,
    /// Each node that is there is assigned the update and has tried it, with or without success.
    pub(super) is_everywhere: bool,
    /// Nodes wait, and failed ones use up the budget.
    pub(super) is_used_up: bool,
    /// There are more nodes to assign at once.
    pub(super) has_more: bool,
    /// The batch under way waits for a node that matches it.
    pub(super) has_nobody: bool,
}

/// Most nodes that may be out at a time.
pub(super) fn budget(settings: &Settings, selected: usize) -> usize {
    share(&settings.max_unavailable, selected).max(1)
}

pub(super) fn plan<'a>(settings: &Settings, rows: &[Row<'a>], progress: &Progress) -> Plan<'a> {
    let mut seats = Seats::new(settings, rows.len(), progress.passed);
    let counted: Vec<&Row<'a>> = rows.iter().filter(|row| row.state != State::SetAside).collect();
    let mut tally = Tally::default();
    for row in counted.iter().filter(|row| row.has_update) {
        let batch = seats.take(row);
        tally.add(row, batch == Some(progress.passed));
    }
    // those that may be assigned the update by now, taken or not
    let mut open = Vec::new();
    let mut held = Vec::new();
    for row in counted.iter().copied().filter(|row| !row.has_update) {
        match row.state {
            State::Waiting | State::Closed | State::Busy => match seats.take(row) {
                Some(_) => open.push(row),
                None => held.push(row),
            },
            _ => {}
        }
    }
    let mut plan = Plan::default();
    let mut turns = Turns::new(settings, rows, progress.most);
    let is_waiting = |row: &&&Row<'_>| row.state == State::Waiting;
    if progress.may_update {
        let (first, then): (Vec<_>, Vec<_>) = open.iter().filter(is_waiting).partition(|row| row.is_out);
        for row in first.into_iter().chain(then) {
            if turns.take(row, row.is_out) {
                plan.update.push(row.name);
            }
        }
    }
    if progress.may_complete {
        rows.iter().filter(|row| row.is_out && row.has_refused()).for_each(|row| turns.note_back(row));
        let turn = if progress.is_stopped { &open[..] } else { &[] };
        let behind = held.iter().chain(turn).filter(is_waiting).filter(|row| !row.has_complete);
        let (first, then): (Vec<_>, Vec<_>) = behind.partition(|row| row.is_out || row.is_new);
        for row in first.into_iter().chain(then) {
            if turns.take(row, row.is_out || row.is_new) {
                plan.complete.push(row.name);
            }
        }
    }
    plan.has_more = turns.has_more;
    let takes = turns.has_more || !plan.update.is_empty() || !plan.complete.is_empty();
    let waits = open.iter().any(|row| row.state == State::Waiting);
    plan.is_used_up = progress.may_update && waits && !takes && tally.trying == 0 && tally.failed > 0;
    let is_settled = tally.trying == 0 && open.is_empty() && tally.failed <= progress.tolerated;
    plan.is_everywhere = tally.trying == 0 && open.is_empty() && held.is_empty();
    match settings.batches.get(progress.passed) {
        None => match tally.latest.map(|since| since + settings.stays) {
            _ if !(is_settled && held.is_empty()) => {}
            Some(at) if at > progress.now => plan.soaks_until = Some(at),
            Some(_) => plan.is_complete = true,
            None => {}
        },
        Some(batch) => {
            // a batch that is a number of nodes is full, or no node is left
            let is_filled = tally.good_here > 0 || batch.selector.is_none() && tally.good > 0;
            plan.has_nobody = is_settled && !is_filled;
            let soaked =
                tally.latest_here.zip(batch.soak).map(|(since, soak)| since + soak.max(settings.stays));
            match soaked {
                _ if !(is_settled && is_filled) => {}
                Some(at) if at > progress.now => plan.soaks_until = Some(at),
                Some(_) => plan.is_passed = true,
                None => plan.is_passed = tally.latest_here.is_none(),
            }
        }
    }
    plan
}

/// Nodes with the update.
#[derive(Default)]
struct Tally {
    trying: usize,
    failed: usize,
    good: usize,
    /// Of these, those of the batch under way, and since when the last of them is good.
    good_here: usize,
    latest_here: Option<Duration>,
    latest: Option<Duration>,
}

impl Tally {
    fn add(&mut self, row: &Row<'_>, is_here: bool) {
        match row.state {
            State::Good => {
                self.good += 1;
                self.latest = self.latest.max(row.good);
                if is_here {
                    self.good_here += 1;
                    self.latest_here = self.latest_here.max(row.good);
                }
            }
            State::Failed(_) => self.failed += 1,
            State::Trying => self.trying += 1,
            _ => {}
        }
    }
}

/// The places in the batches that are open.
struct Seats {
    /// The places left in each open batch; `None`: any number.
    left: Vec<Option<usize>>,
    is_open_to_all: bool,
}

impl Seats {
    fn new(settings: &Settings, selected: usize, passed: usize) -> Seats {
        let open = settings.batches.iter().take(passed + 1);
        let left = open.map(|batch| batch.limit.as_ref().map(|limit| share(limit, selected).max(1)));
        Seats { left: left.collect(), is_open_to_all: passed >= settings.batches.len() }
    }

    /// The batch that a node belongs to: the first open one with a place for it.
    fn take(&mut self, row: &Row<'_>) -> Option<usize> {
        let fits = |(index, left): &(usize, &mut Option<usize>)| {
            *index < BATCHES && row.batches & (1 << index) != 0 && left.is_none_or(|left| left > 0)
        };
        let batches = self.left.len();
        match self.left.iter_mut().enumerate().find(fits) {
            Some((index, left)) => {
                *left = left.map(|left| left - 1);
                Some(index)
            }
            None => self.is_open_to_all.then_some(batches),
        }
    }
}

/// The budgets of one look.
struct Turns<'a> {
    whole: Budget,
    groups: Option<BTreeMap<&'a str, Budget>>,
    left: usize,
    has_more: bool,
}

impl<'a> Turns<'a> {
    fn new(settings: &Settings, rows: &[Row<'a>], most: usize) -> Turns<'a> {
        let counts = |row: &&Row<'_>| row.is_out && row.state != State::SetAside;
        let out = rows.iter().filter(counts).count();
        let groups = settings.group.as_ref().map(|(_, limit)| {
            let mut all: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
            for row in rows {
                let (selected, out) = all.entry(row.group).or_default();
                *selected += 1;
                *out += usize::from(counts(&row));
            }
            let budget = |(selected, out)| Budget::new(share(limit, selected).max(1), out);
            all.into_iter().map(|(group, counts)| (group, budget(counts))).collect()
        });
        let whole = Budget::new(budget(settings, rows.len()), out);
        Turns { whole, groups, left: most, has_more: false }
    }

    fn note_back(&mut self, row: &Row<'a>) {
        self.whole.note_back();
        if let Some(group) = self.groups.as_mut().and_then(|groups| groups.get_mut(row.group)) {
            group.note_back();
        }
    }

    /// Whether the node may be taken now. `is_free`: it needs no room.
    fn take(&mut self, row: &Row<'a>, is_free: bool) -> bool {
        let group = self.groups.as_mut().and_then(|groups| groups.get_mut(row.group));
        if !is_free && (self.whole.room() == 0 || group.as_ref().is_some_and(|group| group.room() == 0)) {
            return false;
        }
        if self.left == 0 {
            self.has_more = true;
            return false;
        }
        self.left -= 1;
        if !row.is_out {
            self.whole.note_out();
            if let Some(group) = group {
                group.note_out();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Rows by letters: `w` waits with the complete revision, `x` with an older one, `n` is new, `o` is out
    /// with another revision. `t` tries the update, `g` is good with it, `f` failed, `r` refused it. `a` is
    /// away, `c` is outside its windows, `b` is busy, `s` is set aside. A capital letter belongs to the batch
    /// with a selector.
    fn check(strategy: Value, nodes: &str, passed: usize, expect: &str) {
        let settings = Settings::read(&json!({"spec": {"allNodes": true, "strategy": strategy}}));
        let names: Vec<String> =
            nodes.chars().enumerate().map(|(at, letter)| format!("{at}{letter}")).collect();
        let row = |name: &str| -> Row<'_> {
            let letter = name.chars().last().unwrap();
            let state = match letter.to_ascii_lowercase() {
                'w' | 'x' | 'n' | 'o' => State::Waiting,
                't' => State::Trying,
                'g' => State::Good,
                'f' => State::Failed(Why::Lost),
                'r' => State::Failed(Why::Refused("".into())),
                'a' => State::Away,
                'c' => State::Closed,
                'b' => State::Busy,
                _ => State::SetAside,
            };
            let small = letter.to_ascii_lowercase();
            let batches = settings.batches.iter().enumerate().fold(0, |all, (index, batch)| {
                let is_in = index < BATCHES && (batch.selector.is_none() || letter.is_uppercase());
                if is_in { all | 1 << index } else { all }
            });
            Row {
                name: Box::leak(name.to_owned().into_boxed_str()),
                state,
                good: matches!(small, 'g').then_some(Duration::from_secs(100)),
                batches,
                group: if small == letter { "small" } else { "big" },
                has_update: matches!(small, 't' | 'g' | 'f' | 'r'),
                has_complete: small == 'w',
                is_new: small == 'n',
                is_out: matches!(small, 't' | 'f' | 'o' | 'r'),
            }
        };
        let rows: Vec<Row<'_>> = names.iter().map(|name| row(name)).collect();
        let progress = Progress {
            passed,
            may_update: true,
            may_complete: true,
            is_stopped: false,
            most: 50,
            tolerated: 0,
            now: Duration::from_secs(190),
        };
        let plan = plan(&settings, &rows, &progress);
        let mut found = format!("{} | {}", plan.update.join(" "), plan.complete.join(" "));
        for (is_so, word) in [
            (plan.is_passed, "passed"),
            (plan.is_complete, "complete"),
            (plan.soaks_until.is_some(), "soaks"),
            (plan.has_nobody, "nobody"),
        ] {
            if is_so {
                found = format!("{} {word}", found.trim_end());
            }
        }
        assert_eq!(found.trim(), expect, "{nodes}");
    }

    #[test]
    fn budget_bounds_what_is_out() {
        let strategy = || json!({"maxUnavailable": 2});
        check(strategy(), "wwww", 0, "0w 1w |");
        check(strategy(), "twww", 0, "1w |");
        check(strategy(), "tfww", 0, "|");
        // out already: it takes nothing more down
        check(strategy(), "tfow", 0, "2o |");
        check(strategy(), "ttoww", 0, "2o |");
        check(strategy(), "aswcbw", 0, "2w 5w |");
        // a share of few is one
        check(json!({"maxUnavailable": "1%"}), "www", 0, "0w |");
    }

    #[test]
    fn each_group_has_its_budget() {
        let strategy = json!({"maxUnavailable": 5, "perGroup": {"label": "x", "maxUnavailable": 1}});
        check(strategy.clone(), "wwWW", 0, "0w 2W |");
        check(strategy, "twWW", 0, "2W |");
    }

    #[test]
    fn batches_follow_one_another() {
        let canary = json!({"matchLabels": {"a": "b"}});
        let strategy =
            || json!({"maxUnavailable": 9, "batches": [{"selector": canary, "soak": "90s"}, {"limit": 2}]});
        check(strategy(), "wWwWww", 0, "1W 3W |");
        check(strategy(), "wGwTww", 0, "|");
        // a canary outside its window, or with a pod in an update, is waited for; one that is away is not
        check(strategy(), "wGwC", 0, "|");
        check(strategy(), "wGwB", 0, "|");
        check(strategy(), "wGwA", 0, "| passed");
        check(strategy(), "wwaA", 0, "| nobody");
        check(strategy(), "wGwGww", 0, "| passed");
        check(strategy(), "wGwGww", 1, "0w 2w |");
        check(strategy(), "gGtGww", 1, "|");
        check(strategy(), "gGgGww", 1, "| passed");
        // a new canary comes while the second batch is under way
        check(strategy(), "gGgGwW", 1, "5W |");
        check(strategy(), "gGgGww", 2, "4w 5w |");
        check(strategy(), "gGgGgg", 2, "| complete");
        check(strategy(), "gGgGga", 2, "| complete");
        check(strategy(), "aaaa", 2, "|");
        let longer = json!({"maxUnavailable": 9, "batches": [{"limit": 1, "soak": "91s"}]});
        check(longer, "gww", 0, "| soaks");
    }

    #[test]
    fn batch_with_selector_and_limit_takes_as_many() {
        let strategy = || json!({"maxUnavailable": 9, "batches": [{"selector": {"matchLabels": {"a": "b"}}, "limit": 1}]});
        check(strategy(), "wWWW", 0, "1W |");
        check(strategy(), "wGWW", 0, "| passed");
    }

    /// As another API server may have let it pass.
    #[test]
    fn batch_without_bounds_is_one_node() {
        for batch in [json!({"soak": "1s"}), json!({"selector": {}})] {
            check(json!({"maxUnavailable": 9, "batches": [batch]}), "wwww", 0, "0w |");
        }
        let many: Vec<Value> = (0..40).map(|_| json!({"limit": 1})).collect();
        let nodes = "w".repeat(36);
        let settings = json!({"maxUnavailable": 99, "batches": many});
        let expect: Vec<String> = (0..32).map(|at| format!("{at}w")).collect();
        check(settings, &nodes, 35, &format!("{} |", expect.join(" ")));
    }

    #[test]
    fn failed_node_holds_its_batch() {
        let strategy = || json!({"maxUnavailable": 9, "batches": [{"limit": 2}]});
        check(strategy(), "gfww", 0, "|");
        check(strategy(), "ggfw", 1, "3w |");
    }

    /// New nodes get the complete revision although the budget is used up; others within it.
    #[test]
    fn new_nodes_get_the_complete_revision_at_once() {
        let strategy =
            || json!({"maxUnavailable": 1, "batches": [{"selector": {"matchLabels": {"a": "b"}}}]});
        check(strategy(), "nnnT", 0, "| 0n 1n 2n");
        check(strategy(), "wxnT", 0, "| 2n");
        check(strategy(), "wxnA", 0, "| 2n nobody");
        check(strategy(), "wxxG", 0, "| 1x passed");
        check(strategy(), "wxxR", 0, "| 1x");
        check(strategy(), "wxxF", 0, "|");
    }
}
