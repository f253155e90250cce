//! Thousands of lives of a node, each from a seed: the core, a board, a hub and an operator on one thread, with power cuts
//! between any two steps, failing and full disks, dead, slow and lying networks, clocks that jump, and configs that crash,
//! hang, eat memory or take the board down.
//!
//! A failing seed prints its story and the command that lives it again. `KEDGE_SIM_SEEDS=n` lives n seeds,
//! `KEDGE_SIM_SEED=s` one. The same invariants must notice worlds that break a promise (`mutants`).

#[allow(dead_code, reason = "each test program uses its part of the board")]
#[path = "../board/mod.rs"]
mod board;

mod coverage;
mod designs;
mod ghost;
mod invariants;
mod life;
mod mutants;
mod random;

use coverage::Coverage;
use life::Life;
use mutants::Mutant;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Lives in an ordinary run of the tests: what takes about a minute on two slow cores.
const SEEDS: u64 = 1000;
/// Acts of a life, before everything comes to rest; most of them are several events.
const ACTS: u32 = 250;
/// Lives within which each mutant must be noticed.
const MUTANT_SEEDS: u64 = 400;

/// What one life came to.
struct Lived {
    coverage: Coverage,
    failure: Option<String>,
    story: Vec<String>,
}

fn live(seed: u64, mutant: Option<Mutant>, tell: bool) -> Lived {
    let mut life = Life::new(seed, mutant, tell);
    let result = catch_unwind(AssertUnwindSafe(|| life.live(ACTS)));
    let failure = match result {
        Ok(Ok(())) => None,
        Ok(Err(violated)) => Some(violated),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    Lived { coverage: life.coverage, failure, story: life.story.unwrap_or_default() }
}

#[allow(
    clippy::disallowed_methods,
    reason = "core reads no environment; a person who runs its simulation sets it"
)]
fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
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
    let seeds = number_from_environment("KEDGE_SIM_SEEDS").unwrap_or(SEEDS);
    let mut coverage = Coverage::default();
    let first = number_from_environment("KEDGE_SIM_FIRST").unwrap_or_default();
    for seed in first..first + seeds {
        let lived = live(seed, None, false);
        if let Some(failure) = lived.failure {
            tell_and_fail(seed, &failure);
        }
        coverage.add(lived.coverage);
    }
    println!("{seeds} lives of {ACTS} acts\n{}", coverage.table());
    let missing = coverage.missing();
    assert!(seeds < SEEDS || missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn the_same_seed_lives_the_same_life() {
    for seed in [3, 4, 5] {
        assert_eq!(live(seed, None, true).story, live(seed, None, true).story);
    }
}

#[test]
fn a_world_that_breaks_a_promise_is_noticed() {
    for mutant in Mutant::ALL {
        let noticed =
            (0..MUTANT_SEEDS).find_map(|seed| Some((seed, live(seed, Some(mutant), false).failure?)));
        let (seed, failure) =
            noticed.unwrap_or_else(|| panic!("{mutant:?} lived {MUTANT_SEEDS} lives unnoticed"));
        println!("{mutant:?}: seed {seed}: {}", failure.chars().take(160).collect::<String>());
    }
}
