//! The first boot of a factory-new node, from which every story starts: one of the runs that share a folder
//! makes it, for all of them.
//!
//! Always holds: shared files are complete when others see them, and do not change. The hub's data is part of
//! it, because the node trusts that hub's authority; each run has a hub and an address of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::HilError;
use crate::stage::patience;

/// Interval at which a run checks whether another one's first boot has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A machine that was saved after its first boot, and its hub's data.
pub(crate) struct First {
    /// The directory of the machine's files.
    pub(crate) machine: PathBuf,
    /// The hub's data.
    pub(crate) hub: PathBuf,
    /// The duration of the first boot, by which the load of this machine is judged.
    pub(crate) boot: Duration,
}

impl First {
    fn at(dir: &Path, boot: Duration) -> First {
        First { machine: dir.join("machine"), hub: dir.join("hub"), boot }
    }
}

/// Waits for another run's first boot; `None` if this run must make it, and call [`share`] or [`failed`].
pub(crate) fn of_another_run(shared: &Path) -> Result<Option<First>, HilError> {
    let turn = shared.join("first-boot");
    match std::fs::File::create_new(&turn) {
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(HilError::io("create", &turn)(error)),
    }
    // its waits, one after the other, and the time between them
    let end = Instant::now() + patience() * 2;
    let (dir, failed) = (shared.join("first"), shared.join("first-failed"));
    loop {
        if let Ok(millis) = std::fs::read_to_string(dir.join("millis")) {
            let millis =
                millis.parse().map_err(|error| HilError::Garbled(format!("{}: {error}", dir.display())))?;
            return Ok(Some(First::at(&dir, Duration::from_millis(millis))));
        }
        if failed.exists() || Instant::now() > end {
            return Err(HilError::Machine("the first boot, which another run makes, has failed".into()));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Copies the files of this run's first boot to the place where the others expect them.
pub(crate) fn share(
    shared: &Path,
    boot: Duration,
    copy: impl FnOnce(&First) -> Result<(), HilError>,
) -> Result<First, HilError> {
    let (new, dir) = (shared.join("first.new"), shared.join("first"));
    copy(&First::at(&new, boot))?;
    let millis = new.join("millis");
    std::fs::write(&millis, boot.as_millis().to_string()).map_err(HilError::io("write", &millis))?;
    std::fs::rename(&new, &dir).map_err(HilError::io("rename", &new))?;
    Ok(First::at(&dir, boot))
}

/// Tells the others to stop waiting.
pub(crate) fn failed(shared: &Path) -> Result<(), HilError> {
    let path = shared.join("first-failed");
    std::fs::write(&path, "").map_err(HilError::io("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_makes_it_and_others_see_all_of_it() {
        let scratch = kedge_rig::scratch::Scratch::new("first").unwrap();
        let shared = scratch.path();
        assert!(of_another_run(shared).unwrap().is_none());
        let waiting = std::thread::spawn({
            let shared = shared.to_owned();
            move || of_another_run(&shared).unwrap().unwrap()
        });
        let copy = |first: &First| {
            std::fs::create_dir_all(&first.machine).unwrap();
            std::fs::write(first.machine.join("disk"), "bytes").unwrap();
            Ok(())
        };
        share(shared, Duration::from_millis(1234), copy).unwrap();
        let first = waiting.join().unwrap();
        assert_eq!(first.boot, Duration::from_millis(1234));
        assert_eq!(std::fs::read_to_string(first.machine.join("disk")).unwrap(), "bytes");
    }

    #[test]
    fn failed_first_boot_ends_the_other_runs() {
        let scratch = kedge_rig::scratch::Scratch::new("first").unwrap();
        assert!(of_another_run(scratch.path()).unwrap().is_none());
        failed(scratch.path()).unwrap();
        assert!(of_another_run(scratch.path()).is_err());
    }
}
