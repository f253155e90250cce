//! A bounded search: the first states that a node can reach with a few faults, breadth first, over the real
//! core on the fake board. `KEDGE_SEARCH_STATES` sets the number of states for each scenario; a `+` after a
//! number in the list means that there are more, and the last line shows how many scenarios were searched
//! completely.
//!
//! Owns the search and its table of promises that are known not to hold yet. Always holds: a state consists
//! of the durable files, the running core and the server's objects; every act of `acts` is tried in every
//! state; a broken promise is shown with the shortest way to it. Leaves faults that need long ways to the
//! simulation: torn writes, slow networks, clocks that jump.
//!
//! `KEDGE_SEARCH_ONLY=words` searches only scenarios with these words in the title.

mod acts;
mod cast;
mod future;
mod invariants;
mod scenarios;
mod state;

use acts::{Done, Stage};
use cast::Cast;
use invariants::{Invariant, Judge};
use scenarios::{SCENARIOS, Scenario};
use state::{Records, State};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Usual number of states of a scenario.
const STATES: usize = 12;
/// Number of states of a scenario that is enough to find everything in [`OPEN`].
const ENOUGH: usize = 150;

/// Promises that do not hold yet, by scenario, and why. A search of [`ENOUGH`] states breaks exactly these: a
/// change that fixes one removes its line.
const OPEN: &[(&str, Invariant, &str)] = &[];

/// The result of the search of one scenario.
struct Found {
    states: usize,
    is_complete: bool,
    /// For each promise its first violation, and the way there.
    broken: BTreeMap<Invariant, (String, Vec<String>)>,
    excuses: BTreeMap<Invariant, u64>,
    judged: BTreeMap<Invariant, u64>,
}

struct Search<'a> {
    judge: Judge<'a>,
    stage: &'a Stage,
    seen: HashSet<u64>,
    /// For each state, its predecessor and the act that led to it.
    ways: Vec<(usize, String)>,
    queue: VecDeque<(usize, State, Records)>,
    broken: BTreeMap<Invariant, (String, Vec<String>)>,
}

impl<'a> Search<'a> {
    fn new(stage: &'a Stage) -> Self {
        let judge = Judge::new(stage);
        let (seen, ways, queue) = (HashSet::new(), Vec::new(), VecDeque::new());
        Self { judge, stage, seen, ways, queue, broken: BTreeMap::new() }
    }

    fn run(mut self, states: usize) -> Found {
        let first = Stage::first_state(self.stage.scenario);
        self.reached(0, "it begins".into(), first);
        let mut looked_at = 0;
        while let Some((at, state, records)) = self.queue.pop_front() {
            if looked_at == states {
                self.queue.push_front((at, state, records));
                break;
            }
            looked_at += 1;
            self.look_at(at, &state, &records);
        }
        let is_complete = self.queue.is_empty();
        let Judge { excuses, judged, .. } = self.judge;
        Found { states: looked_at, is_complete, broken: self.broken, excuses, judged }
    }

    fn look_at(&mut self, at: usize, state: &State, records: &Records) {
        let stage = self.stage;
        for invariant in stage.scenario.invariants() {
            if !self.broken.contains_key(&invariant)
                && let Some(how) = self.judge.state(invariant, state, records)
            {
                self.broken.insert(invariant, (how, self.way_to(at)));
            }
        }
        let Ok(successors) = catch_unwind(AssertUnwindSafe(|| stage.successors(state))) else {
            let way = self.way_to(at);
            self.broken.entry(Invariant::NothingPanics).or_insert(("see above".into(), way));
            return;
        };
        for (done, mut next) in successors {
            let after = Records::of(&next, &stage.cast);
            self.judge_act(at, (state, records), (&next, &after), &done);
            next.remember_bans(state, records, &after);
            self.reached_with(at, done.text, next, after);
        }
    }

    fn judge_act(&mut self, at: usize, before: (&State, &Records), after: (&State, &Records), done: &Done) {
        for invariant in self.stage.scenario.invariants() {
            if !self.broken.contains_key(&invariant)
                && let Some(how) = self.judge.act(invariant, before, after, done)
            {
                let mut way = self.way_to(at);
                way.push(done.text.clone());
                self.broken.insert(invariant, (how, way));
            }
        }
    }

    fn reached(&mut self, from: usize, text: String, state: State) {
        let records = Records::of(&state, &self.stage.cast);
        self.reached_with(from, text, state, records);
    }

    fn reached_with(&mut self, from: usize, text: String, state: State, records: Records) {
        if self.seen.insert(state.whole_key()) {
            self.ways.push((from, text));
            self.queue.push_back((self.ways.len() - 1, state, records));
        }
    }

    /// The shortest way to a state, because states are reached breadth first.
    fn way_to(&self, mut at: usize) -> Vec<String> {
        let mut way = Vec::new();
        while at != 0 {
            let (from, text) = &self.ways[at];
            way.push(text.clone());
            at = *from;
        }
        way.reverse();
        way
    }
}

impl State {
    /// Which configs are banned from now on; if lists were lost, only the assigned config can be banned.
    fn remember_bans(&mut self, before: &State, records: &Records, after: &Records) {
        let is_lost = records.bad.is_none() || after.bad.is_none() || records.doubted.is_some();
        if is_lost {
            let is_asked_anew = before.asks != self.asks;
            let assigned = after.assigned;
            self.ghost.banned.retain(|(_, config)| !is_asked_anew && Some(*config) == assigned);
        } else {
            let finals = after.finals().into_iter();
            self.ghost.banned.extend(finals.filter(|(_, config)| !after.is_proven(*config)));
        }
    }
}

fn search(scenario: &'static Scenario, states: usize) -> Found {
    let stage = Stage { scenario, cast: Cast::new(scenario), is_tame: false };
    Search::new(&stage).run(states)
}

/// One scenario and its result in words.
fn told(scenario: &Scenario, found: &Found) -> String {
    let names: Vec<String> = found.broken.keys().map(|invariant| format!("{invariant:?}")).collect();
    let end = if found.is_complete { "" } else { "+" };
    let mut text = format!("{:6}{end:1} {}", found.states, scenario.title);
    if !names.is_empty() {
        text.push_str(&format!("  BREAKS {}", names.join(", ")));
    }
    for (invariant, (how, way)) in &found.broken {
        text.push_str(&format!("\n      {invariant:?}: {how}"));
        for (number, step) in way.iter().enumerate() {
            text.push_str(&format!(
                "\n         {}. {}",
                number + 1,
                step.chars().take(260).collect::<String>()
            ));
        }
    }
    text
}

#[allow(clippy::disallowed_methods, reason = "a person who runs the search sets it")]
fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
fn search_breaks_only_what_is_known_to_be_open() {
    let states = from_environment("KEDGE_SEARCH_STATES").and_then(|text| text.parse().ok()).unwrap_or(STATES);
    let only = from_environment("KEDGE_SEARCH_ONLY").unwrap_or_default();
    let chosen: Vec<&'static Scenario> = SCENARIOS.iter().filter(|one| one.title.contains(&only)).collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = search(scenario, states);
                    println!("{}", told(scenario, &found));
                    results.lock().expect("nobody panics with it").insert(scenario.title, found);
                }
            });
        }
    });
    let results = results.into_inner().expect("nobody panics with it");
    let broken: BTreeSet<(&str, Invariant)> = results
        .iter()
        .flat_map(|(title, found)| found.broken.keys().map(|broken| (*title, *broken)))
        .collect();
    let open: BTreeSet<(&str, Invariant)> = OPEN
        .iter()
        .filter(|(title, ..)| results.contains_key(title))
        .map(|(title, of, _)| (*title, *of))
        .collect();
    let sum_of = |counts: fn(&Found) -> &BTreeMap<Invariant, u64>| {
        results.values().flat_map(counts).fold(BTreeMap::new(), |mut sum, (of, count)| {
            *sum.entry(*of).or_insert(0) += count;
            sum
        })
    };
    let (judged, excuses) = (sum_of(|found| &found.judged), sum_of(|found| &found.excuses));
    let sum: usize = results.values().map(|found| found.states).sum();
    let whole = results.values().filter(|found| found.is_complete).count();
    println!("{} scenarios, {whole} of them to the end, {sum} states", results.len());
    println!("judged: {judged:?}; excused: {excuses:?}");
    let promised = chosen.iter().flat_map(|scenario| scenario.invariants());
    // a panic is not a judgement, and a search of few states may have no promotion
    let promised =
        promised.filter(|of| *of != Invariant::NothingPanics && (only.is_empty() && states >= ENOUGH));
    let unjudged: BTreeSet<_> = promised.filter(|of| !judged.contains_key(of)).collect();
    assert!(unjudged.is_empty(), "promised and never judged: {unjudged:?}");
    let new: Vec<_> = broken.difference(&open).collect();
    assert!(new.is_empty(), "newly broken, with the shortest ways above: {new:#?}");
    let mended: Vec<_> = open.difference(&broken).collect();
    assert!(states < ENOUGH || mended.is_empty(), "held now, so take them out of OPEN: {mended:#?}");
}
