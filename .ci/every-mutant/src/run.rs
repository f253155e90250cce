//! Runs the tests against one mutant after another, cheapest first: what caught the mutant's neighbours, then all quick
//! tests, then a short simulation, then the slow ones; the first failure ends it.

use crate::{Became, Listed};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A test that takes longer than this alone is slow.
const SLOW: Duration = Duration::from_millis(100);
/// Tests of a program longer than this many times what they take without a mutant, and longer than two minutes, hang.
const HANGS: (u32, Duration) = (20, Duration::from_secs(120));
/// How many tests that caught others are tried first.
const NEIGHBOURS: usize = 8;
/// Lives of a simulation, if the environment does not say.
const LIVES: &str = "60";

/// A test program and where it runs.
type Program = (String, PathBuf, PathBuf);

/// Tests of one program that are run together.
struct Stage<'a> {
    program: &'a Program,
    tests: Vec<String>,
    takes: Duration,
}

enum Run {
    Passed,
    Caught(String),
    TimedOut,
}

pub(crate) fn all(
    programs: &[Program],
    listed: &[Listed],
    numbers: &BTreeSet<usize>,
) -> Result<Became, String> {
    let stages = stages(programs)?;
    let left = Mutex::new(numbers.iter().copied());
    let caught_by: Mutex<BTreeMap<&str, Vec<(usize, String)>>> = Mutex::default();
    let became: Mutex<Became> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(number) = left.lock().ok().and_then(|mut left| left.next()) else { return };
                    let file = listed[number].file.as_str();
                    let first =
                        caught_by.lock().ok().and_then(|all| all.get(file).cloned()).unwrap_or_default();
                    let what = one(&stages, &first, number);
                    let text = match what {
                        Run::Passed => "survived".to_owned(),
                        Run::TimedOut => "timed out".to_owned(),
                        Run::Caught(test) => {
                            remember(&caught_by, file, &stages, &test);
                            format!("caught by {test}")
                        }
                    };
                    println!("{text}: {}", listed[number].name);
                    if let Ok(mut became) = became.lock() {
                        became.insert(number, text);
                    }
                }
            });
        }
    });
    became.into_inner().map_err(|_| "a thread that runs tests panicked".to_owned())
}

fn remember<'a>(
    caught_by: &Mutex<BTreeMap<&'a str, Vec<(usize, String)>>>,
    file: &'a str,
    stages: &[Stage],
    test: &str,
) {
    let Some(stage) = stages.iter().position(|stage| stage.tests.iter().any(|other| other == test)) else {
        return;
    };
    if let Ok(mut all) = caught_by.lock() {
        let tests = all.entry(file).or_default();
        tests.retain(|(_, other)| other != test);
        tests.insert(0, (stage, test.to_owned()));
        tests.truncate(NEIGHBOURS);
    }
}

fn one(stages: &[Stage], first: &[(usize, String)], number: usize) -> Run {
    for (index, stage) in stages.iter().enumerate() {
        let tests: Vec<&str> =
            first.iter().filter(|(of, _)| *of == index).map(|(_, test)| test.as_str()).collect();
        if !tests.is_empty()
            && let run @ (Run::Caught(_) | Run::TimedOut) = tested(stage.program, &tests, stage.takes, number)
        {
            return run;
        }
    }
    for stage in stages {
        let tests: Vec<&str> = stage.tests.iter().map(String::as_str).collect();
        let run = tested(stage.program, &tests, stage.takes, number);
        if !matches!(run, Run::Passed) {
            return run;
        }
    }
    Run::Passed
}

/// Every test alone, without a mutant: what fails now says nothing, and what is slow comes last.
fn stages(programs: &[Program]) -> Result<Vec<Stage<'_>>, String> {
    let (mut quick, mut slow) = (Vec::new(), Vec::new());
    for program in programs {
        let (mut fast, mut fast_take) = (Vec::new(), Duration::ZERO);
        for test in list(program)? {
            let start = Instant::now();
            if let Run::Caught(_) | Run::TimedOut =
                tested(program, &[&test], Duration::from_secs(30), usize::MAX)
            {
                return Err(format!("{test} of {} fails without any mutant", program.0));
            }
            let takes = start.elapsed();
            if takes < SLOW {
                fast.push(test);
                fast_take += takes;
            } else {
                slow.push(Stage { program, tests: vec![test], takes });
            }
        }
        quick.push(Stage { program, tests: fast, takes: fast_take });
    }
    quick.retain(|stage| !stage.tests.is_empty());
    quick.sort_by_key(|stage| stage.takes);
    slow.sort_by_key(|stage| stage.takes);
    quick.extend(slow);
    Ok(quick)
}

fn list(program: &Program) -> Result<Vec<String>, String> {
    let output = Command::new(&program.1)
        .arg("--list")
        .output()
        .map_err(|error| format!("{}: {error}", program.1.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let skipped = std::env::var("SKIP_TESTS").unwrap_or_default();
    let skipped: Vec<&str> = skipped.split_whitespace().collect();
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.filter(|test| !skipped.contains(test)).map(str::to_owned).collect())
}

/// One run of these tests; ends at the first that fails.
fn tested(program: &Program, tests: &[&str], takes: Duration, number: usize) -> Run {
    let (name, file, directory) = program;
    let mut command = Command::new(file);
    command.args(["--exact", "--test-threads=1"]).args(tests).current_dir(directory);
    command.env("MUTANT", number.to_string()).stdout(Stdio::piped()).stderr(Stdio::null());
    if std::env::var_os("KEDGE_SIM_SEEDS").is_none() {
        command.env("KEDGE_SIM_SEEDS", LIVES);
    }
    let Ok(mut child) = command.spawn() else { return Run::TimedOut };
    let output = child.stdout.take();
    let (say, hear) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in output.map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
            if let Some(test) = line.strip_suffix(" ... FAILED").and_then(|line| line.strip_prefix("test ")) {
                let _ = say.send(Some(test.to_owned()));
                return;
            }
        }
        let _ = say.send(None);
    });
    let heard = hear.recv_timeout((takes * HANGS.0).max(HANGS.1));
    if !matches!(heard, Ok(None)) {
        let _ = child.kill();
    }
    let ended = child.wait();
    let _ = reader.join();
    match heard {
        Ok(Some(test)) => Run::Caught(test),
        // an abort names no test
        Ok(None) if !ended.is_ok_and(|status| status.success()) => Run::Caught(name.clone()),
        Ok(None) => Run::Passed,
        Err(_) => Run::TimedOut,
    }
}
