//! The simulation of one node: thousands of runs, each from a seed, of the core, a board, a hub and an
//! operator on one thread.
//!
//! Owns the set of runs and the coverage that they must reach together. Possible events: power cuts between
//! any two steps and within a write, failing, full and read-only disks, dead, half-dead, slow and lying
//! networks, clocks that jump or are missing, agents that are replaced, and configs that crash, hang, use up
//! memory or take the board down. Always holds: the same seed gives the same run; every invariant notices a
//! broken promise (`mutants`).
//!
//! A failing seed prints its trace and the command that runs it again. `KEDGE_SIM_SEEDS=n` runs n seeds, at
//! most `KEDGE_SIM_SECONDS` long and until `KEDGE_SIM_FAILURES` of them failed, `KEDGE_SIM_SEED=s` one.
//! `KEDGE_SIM_MUTANT=m` breaks that promise only.

mod configs;
mod coverage;
mod invariants;
mod model;
mod mutants;
mod run;

use coverage::Coverage;
use mutants::Mutant;
use run::Simulation;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Usual number of runs.
const SEEDS: u64 = 500;
/// Runs that together must reach everything, even if the time limit passes. Fewer may miss a rule by chance.
const ENOUGH: u64 = 1000;
/// Fewest and most acts of a run before the faults stop; most acts are several events.
const ACTS: (u64, u64) = (40, 160);
/// Runs in which each mutant must be noticed.
const MUTANT_SEEDS: u64 = 1000;

/// The result of one run.
struct SimulationResult {
    coverage: Coverage,
    events: u64,
    failure: Option<String>,
    trace: Vec<String>,
}

fn simulate(seed: u64, mutant: Option<Mutant>, traced: bool) -> SimulationResult {
    let mut simulation = Simulation::new(seed, mutant, traced);
    let acts = ACTS.0 + simulation.random.below(ACTS.1 - ACTS.0);
    let outcome = catch_unwind(AssertUnwindSafe(|| simulation.run(acts)));
    let failure = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(violated)) => Some(violated),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    SimulationResult {
        coverage: simulation.coverage,
        events: simulation.events,
        failure,
        trace: simulation.trace.unwrap_or_default(),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "core reads no environment; a person who runs its simulation sets it"
)]
fn text_from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number_from_environment(name: &str) -> Option<u64> {
    text_from_environment(name)?.parse().ok()
}

/// Real time since the simulation began: for its progress and its limit, not for the simulated world.
#[derive(Clone, Copy)]
struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[allow(clippy::disallowed_methods, reason = "core reads no clock; a person who waits for it does")]
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Runs that threads take one after another.
struct Runs {
    first: u64,
    seeds: u64,
    limit: Option<Duration>,
    watch: Stopwatch,
    taken: AtomicU64,
    failed: AtomicU64,
    /// Number of failures after which no further run begins.
    failures: u64,
}

/// The result of all runs.
#[derive(Default)]
struct Sum {
    coverage: Coverage,
    runs: u64,
    events: u64,
    /// Events of the shortest run.
    fewest: u64,
    failures: Vec<(u64, String)>,
}

impl Runs {
    /// The next seed to run.
    fn next(&self) -> Option<u64> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let in_time = taken < ENOUGH || self.limit.is_none_or(|limit| self.watch.elapsed() < limit);
        let go_on = taken < self.seeds && in_time && self.failed.load(Ordering::Relaxed) < self.failures;
        go_on.then_some(self.first + taken)
    }

    fn run_all(&self, sum: &Mutex<Sum>) {
        let mut own = Sum { fewest: u64::MAX, ..Sum::default() };
        while let Some(seed) = self.next() {
            let result = simulate(seed, None, false);
            if let Some(failure) = result.failure {
                self.failed.fetch_add(1, Ordering::Relaxed);
                println!("seed {seed} failed: {failure}");
                own.failures.push((seed, failure));
            }
            own.coverage.add(result.coverage);
            own.runs += 1;
            own.events += result.events;
            own.fewest = own.fewest.min(result.events);
            let number = seed - self.first + 1;
            if number.is_multiple_of(10_000) {
                println!("{number} runs after {} s", self.watch.elapsed().as_secs());
            }
        }
        let mut sum = sum.lock().expect("a run that panics is caught");
        sum.fewest = if sum.runs == 0 { own.fewest } else { sum.fewest.min(own.fewest) };
        sum.coverage.add(own.coverage);
        sum.runs += own.runs;
        sum.events += own.events;
        sum.failures.append(&mut own.failures);
    }
}

/// Runs the seed again and prints its trace.
fn print_trace_and_fail(seed: u64, failure: &str) -> ! {
    let trace = simulate(seed, None, true).trace;
    let shown = trace.len().saturating_sub(400);
    for line in &trace[shown..] {
        println!("{line}");
    }
    panic!(
        "seed {seed}: {failure}\nagain: KEDGE_SIM_SEED={seed} cargo test -p kedge-sim --test simulation -- --nocapture \
         runs_keep"
    );
}

#[test]
fn runs_keep_every_invariant_and_reach_every_rule() {
    if let Some(seed) = number_from_environment("KEDGE_SIM_SEED") {
        let result = simulate(seed, None, true);
        for line in &result.trace {
            println!("{line}");
        }
        assert_eq!(result.failure, None, "seed {seed}");
        return;
    }
    let runs = Runs {
        first: number_from_environment("KEDGE_SIM_FIRST").unwrap_or_default(),
        seeds: number_from_environment("KEDGE_SIM_SEEDS").unwrap_or(SEEDS),
        limit: number_from_environment("KEDGE_SIM_SECONDS").map(Duration::from_secs),
        watch: Stopwatch::start(),
        taken: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        failures: number_from_environment("KEDGE_SIM_FAILURES").unwrap_or(1),
    };
    let sum = Mutex::new(Sum::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| runs.run_all(&sum));
        }
    });
    let sum = sum.into_inner().expect("a run that panics is caught");
    if let Some((seed, failure)) = sum.failures.iter().min() {
        print_trace_and_fail(*seed, failure);
    }
    let seconds = runs.watch.elapsed().as_secs();
    println!(
        "{} runs from seed {}, {} events in {seconds} s, {} in the shortest run\n{}",
        sum.runs,
        runs.first,
        sum.events,
        sum.fewest,
        sum.coverage.table()
    );
    let missing = sum.coverage.missing();
    // fewer runs may miss a rule by chance
    assert!(sum.runs < ENOUGH || missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in [3, 4, 5] {
        assert_eq!(simulate(seed, None, true).trace, simulate(seed, None, true).trace);
    }
}

/// Runs the mutant's world until its invariant notices; otherwise names the one that noticed instead.
fn noticed(mutant: Mutant, invariant: &str, first: u64) -> Result<(), String> {
    let mut others = BTreeSet::new();
    for seed in std::iter::once(first).chain(0..MUTANT_SEEDS) {
        let Some(failure) = simulate(seed, Some(mutant), false).failure else { continue };
        if failure.starts_with(invariant) {
            println!("{mutant:?}: seed {seed}: {}", failure.chars().take(160).collect::<String>());
            return Ok(());
        }
        others.insert(failure.split([' ', ':']).next().unwrap_or_default().to_owned());
    }
    Err(format!("{mutant:?} went unnoticed for {MUTANT_SEEDS} runs by {invariant}; noticed by {others:?}"))
}

#[test]
fn every_broken_promise_is_noticed_by_its_invariant() {
    let only = text_from_environment("KEDGE_SIM_MUTANT");
    let is_wanted = |mutant: &Mutant| only.as_ref().is_none_or(|only| format!("{mutant:?}") == *only);
    let all = Mutant::ALL.iter().filter(|(mutant, ..)| is_wanted(mutant));
    let unnoticed: Vec<String> =
        all.filter_map(|(mutant, invariant, seed)| noticed(*mutant, invariant, *seed).err()).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

/// A cut within a write must not hide that an older content than the acknowledged one is back.
#[test]
fn name_lost_under_its_next_write_is_noticed() {
    let failures =
        (0..MUTANT_SEEDS).filter_map(|seed| simulate(seed, Some(Mutant::NamesNotSynced), false).failure);
    assert!(failures.into_iter().any(|failure| {
        failure.starts_with("invariant_a_cut_takes_nothing_back")
            && failure.contains("(under its next write)")
    }));
}

/// Names of invariants in the texts of their violations.
fn invariants_in(source: &str) -> BTreeSet<String> {
    let texts = source.split("\"invariant_").skip(1);
    texts.filter_map(|text| Some(format!("invariant_{}", text.split([' ', ':', '"']).next()?))).collect()
}

#[test]
fn every_invariant_has_a_broken_promise() {
    let mut all = invariants_in(include_str!("invariants.rs"));
    for source in [include_str!("run.rs"), include_str!("run/observe.rs")] {
        all.append(&mut invariants_in(source));
    }
    let guarded: BTreeSet<String> =
        Mutant::ALL.iter().map(|(_, invariant, _)| (*invariant).to_owned()).collect();
    assert_eq!(all, guarded);
}
