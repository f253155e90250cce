//! Every mutant that cargo-mutants lists, in one build: each stands in the source behind a switch, and is then one run of
//! the tests with its number in `MUTANT`. One mutant costs a second of tests instead of a build and all tests.
//!
//! `every-mutant LIST.json PRISTINE WORK PACKAGE SOURCES FILE...`: LIST is what `cargo mutants --list --json` says of the
//! repository's copy PRISTINE, WORK a directory to build in, FILEs those below SOURCES that are asked about (a name ending
//! in `/` is a folder; none means all); with `ONLY_NAMED_IN=FILE`, only mutants whose name a line of this FILE ends in. What
//! compiles is found by compiling: what the compiler complains of is left out, and the rest tried again. What no switch
//! fits (constants, functions that return `impl Trait`, `||` in a chain of `let`) is listed, not run.

mod compile;
mod run;
mod switches;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One line of cargo-mutants' list.
pub(crate) struct Listed {
    pub(crate) file: String,
    pub(crate) name: String,
    pub(crate) genre: String,
    pub(crate) replacement: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) returns: String,
}

fn listed(value: &Value) -> Option<Listed> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64)?.try_into().ok();
    Some(Listed {
        file: text("/file")?,
        name: text("/name")?,
        genre: text("/genre")?,
        replacement: text("/replacement")?,
        line: number("/span/start/line")?,
        column: number("/span/start/column")?,
        returns: text("/function/return_type").unwrap_or_default(),
    })
}

/// Numbers of mutants, by what became of them.
pub(crate) type Became = BTreeMap<usize, String>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, pristine, work, package, sources, files @ ..] = arguments.as_slice() else {
        eprintln!("every-mutant LIST.json PRISTINE WORK PACKAGE SOURCES FILE...");
        std::process::exit(2);
    };
    if let Err(why) = all(Path::new(list), Path::new(pristine), Path::new(work), package, sources, files) {
        eprintln!("every-mutant: {why}");
        std::process::exit(1);
    }
}

fn all(
    list: &Path,
    pristine: &Path,
    work: &Path,
    package: &str,
    sources: &str,
    files: &[String],
) -> Result<(), String> {
    let text = std::fs::read_to_string(list).map_err(|error| format!("{}: {error}", list.display()))?;
    let values: Vec<Value> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", list.display()))?;
    let listed: Vec<Listed> = values.iter().filter_map(listed).collect();
    // what a run before this one printed, or some lines of it
    let named = match std::env::var("ONLY_NAMED_IN") {
        Ok(path) => Some(std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?),
        Err(_) => None,
    };
    let is_named = |mutant: &Listed| {
        named.as_ref().is_none_or(|text| text.lines().any(|line| line.ends_with(&mutant.name)))
    };
    let wanted = |mutant: &Listed| {
        let file = mutant.file.strip_prefix(sources).unwrap_or(&mutant.file).trim_start_matches('/');
        let is_below =
            |wanted: &String| file == wanted || (wanted.ends_with('/') && file.starts_with(wanted));
        is_named(mutant) && (files.is_empty() || files.iter().any(is_below))
    };
    let asked: BTreeSet<usize> = (0..listed.len()).filter(|number| wanted(&listed[*number])).collect();
    let mut became = Became::new();
    let copy: PathBuf = work.join("all");
    let switched = loop {
        compile::copy(pristine, &copy)?;
        let left: BTreeSet<usize> =
            asked.iter().copied().filter(|number| !became.contains_key(number)).collect();
        let switched = switches::write(&copy, &listed, &left)?;
        compile::add_switch(&copy.join(sources).join("lib.rs"))?;
        let refused = compile::refused(&copy, work, package)?;
        println!("{} mutants written, {} of them do not compile", switched.len(), refused.len());
        if refused.is_empty() {
            break switched;
        }
        became.extend(refused.into_iter().map(|number| (number, "does not compile".to_owned())));
    };
    for number in asked.iter().filter(|number| !switched.contains(number)) {
        became.entry(*number).or_insert_with(|| "no switch".to_owned());
    }
    let programs = compile::tests(&copy, work, package)?;
    became.extend(run::all(&programs, &listed, &switched)?);
    report(&listed, &became);
    Ok(())
}

/// Counts per file, then by name what was not caught.
fn report(listed: &[Listed], became: &Became) {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for (number, what) in became {
        let what = if what.starts_with("caught") { "caught" } else { what };
        *counts.entry(&listed[*number].file).or_default().entry(what).or_default() += 1;
    }
    for (file, counts) in counts {
        let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        println!("{file}: {}", counts.join(", "));
    }
    for what in ["survived", "timed out", "no switch"] {
        for (number, _) in became.iter().filter(|(_, became)| *became == what) {
            println!("{what}: {}", listed[*number].name);
        }
    }
}
