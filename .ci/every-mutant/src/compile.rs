//! Copies, and what the compiler says of them.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The switch: which mutant is on, read once.
const SWITCH: &str = r#"
#[allow(missing_docs, clippy::disallowed_methods)]
mod mutant {
    static ACTIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();

    pub(crate) fn on(number: u32) -> bool {
        let active = || std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
        *ACTIVE.get_or_init(active) == number
    }
}
"#;

/// A fresh copy.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("copying {} to {}: {other:?}", from.display(), to.display())),
    }
}

pub(crate) fn add_switch(library: &Path) -> Result<(), String> {
    let add = || std::fs::write(library, std::fs::read_to_string(library)? + SWITCH);
    add().map_err(|error| format!("{}: {error}", library.display()))
}

fn cargo(copy: &Path, work: &Path, arguments: &[&str], package: &str) -> Result<Vec<Value>, String> {
    let output = Command::new("cargo")
        .args(arguments)
        .args(["-q", "-p", package, "--message-format=json"])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", work.join("build"))
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .stderr(Stdio::null())
        .output()
        .map_err(|error| format!("cargo {}: {error}", arguments.join(" ")))?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// The mutants that the compiler complains of; an error if it complains of anything else.
pub(crate) fn refused(copy: &Path, work: &Path, package: &str) -> Result<BTreeSet<usize>, String> {
    let messages = cargo(copy, work, &["check", "--lib"], package)?;
    let mut texts = BTreeMap::new();
    let mut refused = BTreeSet::new();
    let mut others = Vec::new();
    for message in messages.iter().map(|line| &line["message"]) {
        if message["level"] != "error" || message["spans"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        match mutant_of(message, copy, &mut texts) {
            Some(number) => _ = refused.insert(number),
            None => others.push(message["rendered"].as_str().unwrap_or_default().to_owned()),
        }
    }
    if refused.is_empty() && !others.is_empty() {
        return Err(format!("no mutant's fault:\n{}", others.join("\n")));
    }
    Ok(refused)
}

/// The innermost mutant around what a message points at.
fn mutant_of(message: &Value, copy: &Path, texts: &mut BTreeMap<PathBuf, String>) -> Option<usize> {
    let mut spans: Vec<&Value> = message["spans"].as_array()?.iter().collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let children = message["children"].as_array().into_iter().flatten();
    spans.extend(children.filter_map(|child| child["spans"].as_array()).flatten());
    spans.into_iter().find_map(|span| {
        let path = copy.join(span["file_name"].as_str()?);
        let text =
            texts.entry(path.clone()).or_insert_with(|| std::fs::read_to_string(path).unwrap_or_default());
        let place = |name: &str| usize::try_from(span[name].as_u64()?).ok();
        innermost(text, place("byte_start")?, place("byte_end")?)
    })
}

fn innermost(text: &str, start: usize, end: usize) -> Option<usize> {
    let mut before = text.get(..start)?;
    while let Some(open) = before.rfind("/*<") {
        let number = text[open + 3..].split("*/").next().unwrap_or_default();
        if let Ok(number) = number.parse::<usize>() {
            let close = text[open..].find(&format!("/*{number}>*/")).map_or(0, |at| open + at);
            if end <= close {
                return Some(number);
            }
        }
        before = &text[..open];
    }
    None
}

/// The package's test programs, by name.
pub(crate) fn tests(
    copy: &Path,
    work: &Path,
    package: &str,
) -> Result<Vec<(String, PathBuf, PathBuf)>, String> {
    let messages = cargo(copy, work, &["test", "--no-run"], package)?;
    let program = |message: &Value| {
        let file = PathBuf::from(message["executable"].as_str()?);
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        Some((message["target"]["name"].as_str()?.to_owned(), file, manifest.parent()?.to_owned()))
    };
    let programs: Vec<_> = messages.iter().filter_map(program).collect();
    if programs.is_empty() {
        return Err(format!("the tests of {package} do not build with every mutant in it"));
    }
    Ok(programs)
}
