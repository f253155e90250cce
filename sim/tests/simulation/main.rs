//! Thousands of lives of a node, each from a seed: the core, a board, a hub and an operator on one thread, with power cuts
//! between any two steps and in the middle of a write, failing, full and read-only disks, dead, half-dead, slow and lying
//! networks, clocks that jump or are missing, agents that are replaced, and configs that crash, hang, eat memory or take the
//! board down.
//!
//! A failing seed prints its story and the command that lives it again. `KEDGE_SIM_SEEDS=n` lives n seeds, at most
//! `KEDGE_SIM_SECONDS` long and until `KEDGE_SIM_FAILURES` of them failed, `KEDGE_SIM_SEED=s` one. Each invariant must notice
//! a world that breaks it (`mutants`).

mod coverage;
mod designs;
mod ghost;
mod invariants;
mod life;
mod mutants;

use coverage::Coverage;
use life::Life;
use mutants::Mutant;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lives in a run of the tests that nobody asked for more.
const SEEDS: u64 = 500;
/// Lives that together must reach everything: time ends no run before. Fewer may miss a rule by chance.
const ENOUGH: u64 = 8000;
/// Fewest and most acts of a life, before everything comes to rest; most of them are several events.
const ACTS: (u64, u64) = (40, 160);
/// Lives within which each mutant must be noticed.
const MUTANT_SEEDS: u64 = 1000;

/// What one life came to.
struct Lived {
    coverage: Coverage,
    events: u64,
    failure: Option<String>,
    story: Vec<String>,
}

fn live(seed: u64, mutant: Option<Mutant>, tell: bool) -> Lived {
    let mut life = Life::new(seed, mutant, tell);
    let acts = ACTS.0 + life.random.below(ACTS.1 - ACTS.0);
    let result = catch_unwind(AssertUnwindSafe(|| life.live(acts)));
    let failure = match result {
        Ok(Ok(())) => None,
        Ok(Err(violated)) => Some(violated),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    Lived { coverage: life.coverage, events: life.events, failure, story: life.story.unwrap_or_default() }
}

#[allow(
    clippy::disallowed_methods,
    reason = "core reads no environment; a person who runs its simulation sets it"
)]
fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Time since the simulation began: for its progress and its limit, not for what it simulates.
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

/// Lives that threads take one after another.
struct Lives {
    first: u64,
    seeds: u64,
    limit: Option<Duration>,
    watch: Stopwatch,
    taken: AtomicU64,
    failed: AtomicU64,
    /// Failures after which no other life begins.
    failures: u64,
}

/// What many lives came to.
#[derive(Default)]
struct Sum {
    coverage: Coverage,
    lives: u64,
    events: u64,
    /// Events of the shortest life.
    fewest: u64,
    failures: Vec<(u64, String)>,
}

impl Lives {
    /// The next seed to live.
    fn next(&self) -> Option<u64> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let in_time = taken < ENOUGH || self.limit.is_none_or(|limit| self.watch.elapsed() < limit);
        let go_on = taken < self.seeds && in_time && self.failed.load(Ordering::Relaxed) < self.failures;
        go_on.then_some(self.first + taken)
    }

    fn live_all(&self, sum: &Mutex<Sum>) {
        let mut own = Sum { fewest: u64::MAX, ..Sum::default() };
        while let Some(seed) = self.next() {
            let lived = live(seed, None, false);
            if let Some(failure) = lived.failure {
                self.failed.fetch_add(1, Ordering::Relaxed);
                println!("seed {seed} failed: {failure}");
                own.failures.push((seed, failure));
            }
            own.coverage.add(lived.coverage);
            own.lives += 1;
            own.events += lived.events;
            own.fewest = own.fewest.min(lived.events);
            let number = seed - self.first + 1;
            if number.is_multiple_of(10_000) {
                println!("{number} lives after {} s", self.watch.elapsed().as_secs());
            }
        }
        let mut sum = sum.lock().expect("a life that panics is caught");
        sum.fewest = if sum.lives == 0 { own.fewest } else { sum.fewest.min(own.fewest) };
        sum.coverage.add(own.coverage);
        sum.lives += own.lives;
        sum.events += own.events;
        sum.failures.append(&mut own.failures);
    }
}

/// Lives the seed once more and tells its story.
fn tell_and_fail(seed: u64, failure: &str) -> ! {
    let story = live(seed, None, true).story;
    let shown = story.len().saturating_sub(400);
    for line in &story[shown..] {
        println!("{line}");
    }
    panic!(
        "seed {seed}: {failure}\nagain: KEDGE_SIM_SEED={seed} cargo test -p kedge-core --test simulation -- --nocapture \
         every_life"
    );
}

#[test]
fn every_life_keeps_the_invariants_and_together_they_reach_every_rule() {
    if let Some(seed) = number_from_environment("KEDGE_SIM_SEED") {
        let lived = live(seed, None, true);
        for line in &lived.story {
            println!("{line}");
        }
        assert_eq!(lived.failure, None, "seed {seed}");
        return;
    }
    let lives = Lives {
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
            scope.spawn(|| lives.live_all(&sum));
        }
    });
    let sum = sum.into_inner().expect("a life that panics is caught");
    if let Some((seed, failure)) = sum.failures.iter().min() {
        tell_and_fail(*seed, failure);
    }
    let seconds = lives.watch.elapsed().as_secs();
    println!(
        "{} lives from seed {}, {} events in {seconds} s, {} in the shortest life\n{}",
        sum.lives,
        lives.first,
        sum.events,
        sum.fewest,
        sum.coverage.table()
    );
    let missing = sum.coverage.missing();
    assert!(sum.lives < ENOUGH || missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn the_same_seed_lives_the_same_life() {
    for seed in [3, 4, 5] {
        assert_eq!(live(seed, None, true).story, live(seed, None, true).story);
    }
}

/// Lives the mutant's world until its invariant notices; else says who noticed instead.
fn noticed(mutant: Mutant, invariant: &str) -> Result<(), String> {
    let mut others = BTreeSet::new();
    for seed in 0..MUTANT_SEEDS {
        let Some(failure) = live(seed, Some(mutant), false).failure else { continue };
        if failure.starts_with(invariant) {
            println!("{mutant:?}: seed {seed}: {}", failure.chars().take(160).collect::<String>());
            return Ok(());
        }
        others.insert(failure.split([' ', ':']).next().unwrap_or_default().to_owned());
    }
    Err(format!("{mutant:?} lived {MUTANT_SEEDS} lives unnoticed by {invariant}; noticed by {others:?}"))
}

#[test]
fn a_world_that_breaks_a_promise_is_noticed_by_the_invariant_that_guards_it() {
    let all = Mutant::ALL.iter();
    let unnoticed: Vec<String> =
        all.filter_map(|(mutant, invariant)| noticed(*mutant, invariant).err()).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

/// Names of invariants in the texts of their violations.
fn invariants_in(source: &str) -> BTreeSet<String> {
    let texts = source.split("\"invariant_").skip(1);
    texts.filter_map(|text| Some(format!("invariant_{}", text.split([' ', ':', '"']).next()?))).collect()
}

#[test]
fn there_is_a_world_for_every_invariant() {
    let mut all = invariants_in(include_str!("invariants.rs"));
    all.append(&mut invariants_in(include_str!("life.rs")));
    let guarded: BTreeSet<String> =
        Mutant::ALL.iter().map(|(_, invariant)| (*invariant).to_owned()).collect();
    assert_eq!(all, guarded);
}
