//! Moves inputs between the packed corpora and libFuzzer's working folders.
//!
//!     kedge-corpus names                lists the targets
//!     kedge-corpus unpack TARGET DIR    writes corpus, seeds and findings as files in DIR
//!     kedge-corpus words TARGET         prints the target's words as a libFuzzer dictionary
//!     kedge-corpus longest TARGET       prints the longest input worth trying, in bytes
//!     kedge-corpus pack TARGET DIR      replaces the corpus by the files in DIR

use kedge_fuzz::{TARGETS, Target, findings, pack, target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Longest input that is kept. Most inputs that a search finds are far shorter; the long ones are a sixth of
/// the inputs and half of the bytes, and the next search finds similar ones again from the seeds.
const KEPT_BYTES: usize = 320;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("kedge-corpus: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<String, String> {
    match arguments {
        ["names"] => Ok(TARGETS.iter().map(|target| format!("{}\n", target.name)).collect()),
        ["unpack", name, folder] => unpack(named(name)?, Path::new(folder)),
        ["words", name] => Ok(words(named(name)?)),
        ["longest", name] => Ok(format!("{}\n", named(name)?.longest_bytes)),
        ["pack", name, folder] => keep(named(name)?, Path::new(folder)),
        _ => Err("expected names, unpack TARGET DIR, words TARGET, longest TARGET or pack TARGET DIR".into()),
    }
}

fn named(name: &str) -> Result<&'static Target, String> {
    target(name).ok_or_else(|| format!("no target {name:?}"))
}

fn corpus_of(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{}.pack", target.name))
}

fn unpack(target: &Target, folder: &Path) -> Result<String, String> {
    let kept = match fs::read(corpus_of(target)) {
        Ok(packed) => pack::unpack(&packed)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(format!("read {}: {error}", corpus_of(target).display())),
    };
    fs::create_dir_all(folder).map_err(|error| format!("make {}: {error}", folder.display()))?;
    let found = findings::of(target.name).map(|finding| finding.input.to_vec());
    let all: Vec<Vec<u8>> = kept.into_iter().chain((target.seeds)()).chain(found).collect();
    for (number, input) in all.iter().enumerate() {
        let path = folder.join(format!("kept-{number:05}"));
        fs::write(&path, input).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    Ok(format!("{}: {} inputs\n", target.name, all.len()))
}

fn words(target: &Target) -> String {
    let escaped = |word: &str| -> String { word.bytes().map(|byte| format!("\\x{byte:02x}")).collect() };
    target.words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect()
}

fn keep(target: &Target, folder: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", folder.display());
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        inputs.push(fs::read(entry.map_err(failed)?.path()).map_err(failed)?);
    }
    inputs.retain(|input: &Vec<u8>| input.len() <= KEPT_BYTES);
    let (count, packed) = (inputs.len(), pack::pack(inputs)?);
    let path = corpus_of(target);
    fs::write(&path, &packed).map_err(|error| format!("write {}: {error}", path.display()))?;
    Ok(format!("{}: {count} inputs, {} bytes\n", target.name, packed.len()))
}
