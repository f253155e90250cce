//! `kedge-soak`: an hour of compressed operation, to see whether anything grows. `make soak` builds and runs
//! it.
//!
//! Four nodes on links that are throttled, stalled, forgotten and cut, under a hub that is restarted and
//! killed again and again and once is away for ten real minutes. One node gets no pushes, so one process of
//! it lives through everything; the others get pushes all the time. Always holds: real programs, real TLS,
//! one link per node; a line a minute; at the end one table with the goal beside each figure, and exit code 0
//! only if every goal is met. Leaves to others: the pushed contents ([`pushes`]), the behaviour of links
//! ([`kedge_rig::link`]), the times of all that ([`run`]).

mod disruptions;
mod figures;
mod pushes;
mod run;
mod series;

use std::process::ExitCode;
use std::time::Duration;

use kedge_rig::error::RigError;
use kedge_rig::{flags, signals, table};

const HELP: &str = "\
kedge-soak [--minutes N] [--outage-minutes N] [--seed N]

An hour of compressed operation by default (or $SOAK_MINUTES): four nodes, a hub, bad links, constant pushes. Once in it the hub is away
for ten minutes; without --outage-minutes that is left out of runs shorter than 25 minutes.
Prints a line a minute and a table at the end; exits with 0 if every goal in it is met.
";

/// In a shorter run an outage of the usual length would take most of the time.
const SHORTEST_WITH_OUTAGE_MINUTES: u64 = 25;
/// Longer than the hub's grace period, than every back-off and than every idle limit of a connection except
/// one.
const OUTAGE_MINUTES: u64 = 10;
/// A week: more is a typing error.
const LONGEST_MINUTES: u64 = 7 * 24 * 60;

/// The options of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Options {
    /// The whole time, including the outage.
    whole: Duration,
    /// The length of the hub's one outage; zero for none.
    outage: Duration,
    /// Chooses the disruptions.
    seed: u64,
}

impl Options {
    fn new(minutes: u64, outage_minutes: Option<u64>, seed: u64) -> Result<Options, String> {
        let usual = if minutes >= SHORTEST_WITH_OUTAGE_MINUTES { OUTAGE_MINUTES } else { 0 };
        let outage_minutes = outage_minutes.unwrap_or(usual);
        if minutes > LONGEST_MINUTES || minutes < outage_minutes.saturating_add(2) {
            return Err(format!(
                "{minutes} minutes, an outage of {outage_minutes} among them: expected at most {LONGEST_MINUTES}, \
                 and 2 more than the outage"
            ));
        }
        let span = |minutes: u64| Duration::from_secs(minutes * 60);
        Ok(Options { whole: span(minutes), outage: span(outage_minutes), seed })
    }
}

fn options() -> Result<Option<Options>, String> {
    use lexopt::prelude::*;
    let mut minutes = match std::env::var("SOAK_MINUTES") {
        Ok(text) => flags::parsed("SOAK_MINUTES", &text)?,
        Err(_) => 60,
    };
    let (mut outage, mut seed) = (None, 1);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let name = match argument {
            Short('h') | Long("help") => return Ok(None),
            Long(name) if ["minutes", "outage-minutes", "seed"].contains(&name) => name.to_owned(),
            other => return Err(other.unexpected().to_string()),
        };
        let value = flags::number(&format!("--{name}"), &mut parser)?;
        match name.as_str() {
            "minutes" => minutes = value,
            "seed" => seed = value,
            _ => outage = Some(value),
        }
    }
    Options::new(minutes, outage, seed).map(Some)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("kedge-soak: {why}; see --help");
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kedge-soak: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if every goal is met.
fn run(options: Options) -> Result<bool, RigError> {
    let stop = signals::listen()
        .map_err(|source| RigError::Io { tried: "listen for SIGINT and SIGTERM".into(), source })?;
    let result = run::run(&options, &stop)?;
    let figures = figures::figures(&result);
    print!("\n{}", table::render(&figures));
    for failure in &result.tally.failures {
        println!("failed: {failure}");
    }
    let (met, missed) = table::goals(&figures);
    let cut_short = if result.interrupted { "; it was cut short" } else { "" };
    println!("\nseed {}: {met} goals met, {missed} missed{cut_short}", options.seed);
    Ok(missed == 0 && !result.interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_include_an_outage() {
        let check = |minutes, outage, expect: Option<(u64, u64)>| {
            let options = Options::new(minutes, outage, 1).ok();
            let found = options.map(|options| (options.whole.as_secs() / 60, options.outage.as_secs() / 60));
            assert_eq!(found, expect, "{minutes} {outage:?}");
        };
        check(60, None, Some((60, 10)));
        check(24, None, Some((24, 0)));
        check(12, Some(10), Some((12, 10)));
        check(11, Some(10), None);
        check(1, None, None);
        check(60, Some(u64::MAX), None);
        check(u64::MAX, None, None);
    }
}
