//! Runs the tests and tells how they went in libtest's words, with two things libtest cannot: a test that finds out that
//! it cannot run here is counted as ignored, and what a passing test counted is printed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// How a test that did not panic ended.
pub(crate) enum Outcome {
    /// What it counted.
    Passed(String),
    /// Why it could not run.
    Skipped(String),
}

/// A test by its name.
pub(crate) type Test = (&'static str, fn() -> Outcome);

enum Verdict {
    Ok,
    Ignored,
    Failed,
}

/// Runs those of the tests that the command line names, all of them at once: they mostly wait.
pub(crate) fn run(tests: &[Test]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen: Vec<&Test> = tests.iter().filter(|test| is_chosen(test.0, &arguments)).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.iter().for_each(|test| println!("{}: test", test.0));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let start = Instant::now();
    let verdicts: Vec<Verdict> = std::thread::scope(|scope| {
        let running: Vec<_> = chosen.iter().map(|test| scope.spawn(|| verdict(test))).collect();
        running.into_iter().map(|test| test.join().unwrap_or(Verdict::Failed)).collect()
    });
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| wanted(verdict)).count();
    let failed = count(|verdict| matches!(verdict, Verdict::Failed));
    println!(
        "\ntest result: {}. {} passed; {failed} failed; {} ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        count(|verdict| matches!(verdict, Verdict::Ok)),
        count(|verdict| matches!(verdict, Verdict::Ignored)),
        tests.len() - chosen.len(),
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_chosen(name: &str, arguments: &[String]) -> bool {
    // no test here is marked as ignored, so "only the ignored ones" chooses none
    if arguments.iter().any(|argument| argument == "--ignored") {
        return false;
    }
    let exact = arguments.iter().any(|argument| argument == "--exact");
    let matches = |part: &str| if exact { name == part } else { name.contains(part) };
    let mut filters = Vec::new();
    let mut skipped = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--skip" => skipped |= words.next().is_some_and(|part| matches(part)),
            // options of libtest that take a value and mean nothing here
            "--format" | "--color" | "--test-threads" | "--logfile" | "-Z" => drop(words.next()),
            option if option.starts_with('-') => {}
            part => filters.push(matches(part)),
        }
    }
    !skipped && (filters.is_empty() || filters.contains(&true))
}

fn verdict((name, test): &Test) -> Verdict {
    let start = Instant::now();
    match catch_unwind(AssertUnwindSafe(test)) {
        Ok(Outcome::Passed(counted)) => {
            println!("test {name} ... ok ({:.0} s)\n  {counted}", start.elapsed().as_secs_f64());
            Verdict::Ok
        }
        Ok(Outcome::Skipped(why)) => {
            println!("test {name} ... ignored, SKIPPED: {why}");
            Verdict::Ignored
        }
        Err(_) => {
            println!("test {name} ... FAILED");
            Verdict::Failed
        }
    }
}
