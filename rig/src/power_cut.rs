//! Cuts the power at every flush of a program's run on a real file system, and checks every disk that could
//! be left.
//!
//! Owns the procedure: the run on a [`LoggedDisk`], the rebuilt disks, the threads that check them, the count
//! of results. Always holds: a disk is checked for each flush and for each acknowledgement; a check that
//! panics is a violation; the first violations are described, the others only counted. The caller chooses the
//! program and the data that must survive.
//!
//! `KEDGE_CRASH_FULL=1` checks more disks, `KEDGE_CRASH_SEED` chooses other random parts.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Scratch;
use crate::error::RigError;
use crate::logged_disk::{self, Choice, Cut, Cuts, FileSystem, LoggedDisk, Mounted};

/// Most violations that are described; further ones are only counted.
const DESCRIBED: usize = 3;

/// The history of a run, for the checks.
pub trait History: Sync {
    /// Positions of the log at which something new was acknowledged.
    fn acknowledged(&self) -> Vec<u64>;

    /// The step in progress at this position; `None`: nothing that concerns the checks yet.
    fn step_at(&self, _at: u64) -> Option<&'static str> {
        Some("the run")
    }
}

/// The place of a run and the number of disks to check.
#[derive(Debug, Clone, Copy)]
pub struct Cutting<'a> {
    /// For names of directories.
    pub name: &'a str,
    pub file_system: FileSystem,
    /// The mount point of the disk during the run; made if missing.
    pub mount: &'a Path,
    /// Number of random parts of unflushed writes that survive, besides none.
    pub subsets: usize,
    /// Only one of these at each flush, in turns.
    pub thin: bool,
    /// Stops after this many violations.
    pub enough: Option<usize>,
}

/// One disk to check.
#[derive(Debug)]
pub struct Rebuilt<'a> {
    pub cut: &'a Cut,
    /// A directory for the check's own files, which the next check on this thread finds again.
    pub directory: &'a Path,
    file_system: FileSystem,
    is_unmountable: AtomicBool,
}

impl Rebuilt<'_> {
    /// Mounts a fresh copy of the disk. The previous one must have been dropped.
    ///
    /// # Errors
    /// The kernel cannot mount it.
    pub fn mount(&self) -> Result<Mounted, String> {
        let mount = self.directory.join("mount");
        let made = std::fs::create_dir_all(&mount).map_err(RigError::io("make", &mount));
        let image = self.directory.join("image");
        made.and_then(|()| Mounted::new(&self.file_system, &self.cut.image, &image, &mount)).map_err(
            |error| {
                self.is_unmountable.store(true, Ordering::SeqCst);
                format!("the file system does not mount: {error}")
            },
        )
    }
}

/// The results of the checks.
#[derive(Debug, Default)]
pub struct Report {
    pub writes: usize,
    pub flushes: usize,
    pub acknowledgements: usize,
    /// Number of checked disks.
    pub disks: usize,
    pub violations: usize,
    /// Disks that the kernel cannot mount: not the program's fault, and they prove nothing about it.
    pub unmountable: usize,
    /// The first violations; the disk of each is kept.
    pub described: Vec<String>,
    /// Number of disks by the interrupted step.
    steps: BTreeMap<&'static str, usize>,
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { writes, flushes, acknowledgements, disks, violations, unmountable, .. } = self;
        write!(
            out,
            "{acknowledgements} acknowledgements, {writes} writes, {flushes} flushes; {disks} disks, {violations} violations, \
             {unmountable} that do not mount"
        )?;
        if self.steps.len() > 1 {
            self.steps.iter().try_for_each(|(step, disks)| write!(out, "\n  {disks:>5}  {step}"))?;
        }
        Ok(())
    }
}

impl Report {
    /// # Panics
    /// There were violations, or fewer than `disks` disks: too few to prove anything.
    #[track_caller]
    pub fn assert_none_wrong(&self, disks: usize) {
        assert!(self.violations + self.unmountable == 0, "{self}\n{}", self.described.join("\n\n"));
        assert!(self.disks > disks, "only {self}");
    }
}

/// True if more disks than usual are to be checked.
pub fn is_full() -> bool {
    std::env::var_os("KEDGE_CRASH_FULL").is_some_and(|value| !value.is_empty() && value != "0")
}

/// True if this machine can cut this file system. Missing requirements of a developer's machine are reported
/// past the test runner, which hides the output of passing tests.
///
/// # Panics
/// CI lacks a requirement.
pub fn is_possible(file_system: &FileSystem) -> bool {
    let Some(missing) = logged_disk::missing(file_system) else { return true };
    let why = format!("no power can be cut on {} here, missing: {missing}", file_system.name);
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    print_past_test_runner(&format!("SKIPPED: {why}"));
    false
}

/// Prints a line that `cargo test` shows for passing tests, too.
pub fn print_past_test_runner(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs `run` on a new disk, cuts the power when it returns, and calls `check` with every disk that a cut at
/// any flush or acknowledgement could have left. An error or a panic of `check` is a violation.
///
/// # Errors
/// The disk cannot be made or read.
pub fn cut_at_every_flush<H: History>(
    cutting: &Cutting<'_>,
    run: impl FnOnce(&LoggedDisk) -> H,
    check: impl Fn(&H, &Rebuilt<'_>) -> Result<(), String> + Sync,
) -> Result<(Report, H), RigError> {
    let files = Scratch::in_memory(cutting.name)
        .map_err(|source| RigError::Io { tried: "make a directory for disks".into(), source })?;
    std::fs::create_dir_all(cutting.mount).map_err(RigError::io("make", cutting.mount))?;
    let disk = LoggedDisk::start(&cutting.file_system, files.path(), cutting.mount)?;
    let history = run(&disk);
    let recording = disk.cut()?;
    let acknowledged = history.acknowledged();
    let report = Report {
        writes: recording.writes(),
        flushes: recording.flushes(),
        acknowledgements: acknowledged.len(),
        ..Report::default()
    };
    let choice =
        Choice { subsets: cutting.subsets, thin: cutting.thin, instants: acknowledged, seed: seed() };
    let checks = Checks {
        cutting,
        history: &history,
        cuts: Mutex::new(recording.cuts(&choice)),
        report: Mutex::new(report),
        check: &check,
        files: &files,
    };
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let checks = &checks;
            scope.spawn(move || checks.work(worker));
        }
    });
    let report = checks.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    // a person will want to read the files, except where the caller expects violations
    if !report.described.is_empty() && cutting.enough.is_none() {
        let mut files = files;
        files.keep();
    }
    Ok((report, history))
}

fn seed() -> u64 {
    let chosen = std::env::var("KEDGE_CRASH_SEED").ok();
    chosen.map_or(1, |seed| seed.parse().expect("KEDGE_CRASH_SEED is a number"))
}

struct Checks<'a, H, C> {
    cutting: &'a Cutting<'a>,
    history: &'a H,
    cuts: Mutex<Cuts<'a>>,
    report: Mutex<Report>,
    check: &'a C,
    files: &'a Scratch,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H: History, C: Fn(&H, &Rebuilt<'_>) -> Result<(), String> + Sync> Checks<'_, H, C> {
    /// Checks one disk after another until all are checked.
    fn work(&self, worker: usize) {
        let directory: PathBuf = self.files.join(format!("worker-{worker}"));
        std::fs::create_dir_all(&directory).expect("a directory in our own");
        loop {
            let Some(cut) = lock(&self.cuts).next() else { return };
            let Some(step) = self.history.step_at(cut.at) else { continue };
            let rebuilt = Rebuilt {
                cut: &cut,
                directory: &directory,
                file_system: self.cutting.file_system,
                is_unmountable: AtomicBool::new(false),
            };
            let checked = catch_unwind(AssertUnwindSafe(|| (self.check)(self.history, &rebuilt)));
            let checked = checked.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Err(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
            });
            let is_unmountable = rebuilt.is_unmountable.load(Ordering::SeqCst);
            if self.count(&cut, step, checked, is_unmountable) {
                return;
            }
        }
    }

    /// Returns true if enough was found.
    fn count(
        &self,
        cut: &Cut,
        step: &'static str,
        checked: Result<(), String>,
        is_unmountable: bool,
    ) -> bool {
        let mut report = lock(&self.report);
        report.disks += 1;
        *report.steps.entry(step).or_default() += 1;
        if let Err(why) = checked {
            match is_unmountable {
                true => report.unmountable += 1,
                false => report.violations += 1,
            }
            if report.described.len() < DESCRIBED {
                let kept = self.files.join(format!("violation-{}", report.described.len() + 1));
                let kept = cut
                    .image
                    .write_to(&kept)
                    .map_or_else(|error| error.to_string(), |()| kept.display().to_string());
                let Cut { flush, subset, .. } = cut;
                report
                    .described
                    .push(format!("flush {flush}, subset {subset}, during {step:?} (disk: {kept}): {why}"));
            }
        }
        self.cutting.enough.is_some_and(|enough| report.violations >= enough)
    }
}
