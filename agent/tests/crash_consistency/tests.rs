//! The tests: lives on several file systems, and agents that skip what makes a write durable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kedge_rig::logged_disk::{self, BTRFS, Choice, Cuts, EXT4, EXT4_WRITEBACK, FileSystem, Image};
use kedge_rig::nosync_preload::{self, Skips};

use crate::harness::{Outcome, Test};
use crate::life::{self, Length, Lived};
use crate::restart::UNMOUNTABLE;

/// All tests.
pub(crate) const ALL: [Test; 5] = [
    ("a_cut_at_any_flush_of_ext4_loses_nothing_that_was_acknowledged", ext4),
    ("a_cut_at_any_flush_of_ext4_with_unordered_data_loses_nothing_that_was_acknowledged", ext4_writeback),
    ("a_cut_at_any_flush_of_btrfs_loses_nothing_that_was_acknowledged", btrfs),
    ("an_agent_that_does_not_sync_its_files_is_caught", without_file_sync),
    ("an_agent_that_does_not_sync_its_directories_is_caught", without_directory_sync),
];

/// Violations spelt out; further ones are only counted.
const TOLD: usize = 3;

fn full() -> bool {
    std::env::var_os("KEDGE_CRASH_FULL").is_some_and(|value| !value.is_empty() && value != "0")
}

fn seed() -> u64 {
    let chosen = std::env::var("KEDGE_CRASH_SEED").ok();
    chosen.map_or(1, |seed| seed.parse().expect("KEDGE_CRASH_SEED is a number"))
}

fn ext4() -> Outcome {
    explore(&EXT4, if full() { 3 } else { 1 }, Length::Whole)
}

fn ext4_writeback() -> Outcome {
    let length = if full() { Length::Whole } else { Length::Short };
    explore(&EXT4_WRITEBACK, if full() { 3 } else { 1 }, length)
}

fn btrfs() -> Outcome {
    let length = if full() { Length::Whole } else { Length::Short };
    explore(&BTRFS, if full() { 2 } else { 1 }, length)
}

/// Why this cannot be shown here. What a developer's machine lacks is skipped; what CI lacks is a failure.
fn skipped(file_system: &FileSystem) -> Option<Outcome> {
    let lacks = logged_disk::missing(file_system)?;
    let why = format!("no power cut can be shown on {} here, for want of: {lacks}", file_system.name);
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    Some(Outcome::Skipped(why))
}

/// A directory for disks and images that goes with the test.
struct Files(PathBuf);

impl Files {
    fn new(purpose: &str) -> Self {
        let name = format!("kedge-crash-{}-{purpose}", std::process::id());
        let path = logged_disk::fast_directory().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn below(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn explore(file_system: &FileSystem, subsets: usize, length: Length) -> Outcome {
    if let Some(skipped) = skipped(file_system) {
        return skipped;
    }
    let purpose = file_system.name.replace([' ', '='], "-");
    let files = Files::new(&purpose);
    let agent = life::agent_with_faults();
    let lived =
        life::live(&format!("crash-{purpose}"), file_system, length, &files.below("disk"), &agent, &agent);
    let boots = if full() { 2 } else { 1 };
    let found = check(&lived, &files, subsets, boots, None);
    let counted = found.counted(&lived);
    assert!(found.states > lived.recording.flushes() / 2, "too few states: {counted}");
    assert!(
        found.violations + found.unmountable == 0,
        "{counted}\n{}\nthe agent's log:\n{}",
        found.told.join("\n\n"),
        lived.log
    );
    Outcome::Passed(counted)
}

/// What the checks of one life found.
#[derive(Default)]
struct Findings {
    states: usize,
    violations: usize,
    /// States that the file system itself makes nothing of: no fault of the agent's, and none that shows anything about it.
    unmountable: usize,
    told: Vec<String>,
    /// States by the step they fall into.
    steps: BTreeMap<&'static str, usize>,
}

impl Findings {
    fn counted(&self, lived: &Lived) -> String {
        let steps: Vec<String> =
            self.steps.iter().map(|(step, states)| format!("{step}: {states}")).collect();
        format!(
            "{}: {} steps, {} ends of the agent, {} acknowledgements; {} writes, {} flushes; {} states, {} violations, {} that do not mount\n  \
             states by step: {}",
            lived.start.file_system.name,
            lived.history.steps(),
            lived.ends,
            lived.history.acknowledgements(),
            lived.recording.writes(),
            lived.recording.flushes(),
            self.states,
            self.violations,
            self.unmountable,
            steps.join("; ")
        )
    }
}

/// Starts the agent on every state; stops after `enough` violations, if given.
fn check(lived: &Lived, files: &Files, subsets: usize, boots: usize, enough: Option<usize>) -> Findings {
    let choice = Choice { subsets, thin: !full(), instants: lived.history.instants(), seed: seed() };
    let cuts = Mutex::new(lived.recording.cuts(&choice));
    let findings = Mutex::new(Findings::default());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let directory = files.below(&format!("worker-{worker}"));
            let (cuts, findings) = (&cuts, &findings);
            scope.spawn(move || work(lived, &directory, boots, enough, cuts, findings));
        }
    });
    findings.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn work(
    lived: &Lived,
    directory: &Path,
    boots: usize,
    enough: Option<usize>,
    cuts: &Mutex<Cuts<'_>>,
    findings: &Mutex<Findings>,
) {
    loop {
        let cut = cuts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(cut) = cut else { return };
        // until the first step there is nothing of ours on the disk: its making and mounting are the file system's affair
        if !lived.history.has_begun(cut.at) {
            continue;
        }
        let judged = lived.start.judge(&lived.history, &cut.image, cut.at, directory, boots);
        let mut findings = findings.lock().unwrap_or_else(PoisonError::into_inner);
        let step = lived.history.step_at(cut.at);
        findings.states += 1;
        if findings.states.is_multiple_of(500) {
            println!(
                "  {}: {} states, {} violations so far",
                lived.start.file_system.name, findings.states, findings.violations
            );
        }
        *findings.steps.entry(step).or_default() += 1;
        if let Err(why) = judged {
            match why.starts_with(UNMOUNTABLE) {
                true => findings.unmountable += 1,
                false => findings.violations += 1,
            }
            if findings.told.len() < TOLD {
                let kept = keep(&cut.image, directory, findings.violations + findings.unmountable);
                let told = format!(
                    "flush {}, subset {}, during \"{step}\" (the disk is kept as {kept}): {why}",
                    cut.flush, cut.subset
                );
                findings.told.push(told);
            }
        }
        if enough.is_some_and(|enough| findings.violations >= enough) {
            return;
        }
    }
}

fn keep(image: &Image, directory: &Path, number: usize) -> String {
    let path = directory.with_file_name(format!("violation-{number}"));
    image.write_to(&path).map_or_else(|error| error.to_string(), |()| path.display().to_string())
}

fn without_file_sync() -> Outcome {
    // ext4 saves careless programs from themselves, unless told not to
    let careless = FileSystem { options: "data=writeback,noauto_da_alloc", ..EXT4_WRITEBACK };
    catch(Skips::Files, &careless)
}

fn without_directory_sync() -> Outcome {
    catch(Skips::Directories, &EXT4)
}

/// Lets an agent live that skips the sync of these, and expects the checks to find fault.
fn catch(skips: Skips, file_system: &FileSystem) -> Outcome {
    let what = skips.name();
    if let Some(skipped) = skipped(file_system) {
        return skipped;
    }
    let files = Files::new(&format!("without-{what}"));
    let agent = life::agent_with_faults();
    let careless = nosync_preload::program(&files.below("careless"), &agent, skips).unwrap();
    let purpose = format!("crash-without-{what}");
    let lived = life::live(&purpose, file_system, Length::Short, &files.below("disk"), &careless, &agent);
    let enough = if full() { None } else { Some(3) };
    let found = check(&lived, &files, 1, 1, enough);
    let counted = found.counted(&lived);
    assert!(found.violations > 0, "an agent that does not sync its {what} goes unnoticed: {counted}");
    let first =
        found.told.first().map(|told| told.lines().take(3).collect::<Vec<_>>().join(" ")).unwrap_or_default();
    Outcome::Passed(format!("{counted}\n  as it must be; the first: {first}"))
}
