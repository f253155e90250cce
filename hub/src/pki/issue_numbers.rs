//! The issue number: a counter that only this hub raises, once for each certificate and each readmission.
//!
//! A credential's age is its issue number; it is never judged by a wall clock, which a hub may have lost.
//! Always holds: a number is durable before anything carries it, so none is handed out twice, not even after
//! a crash. Several processes may take numbers (`node-kubeconfig` works beside a running hub). They take
//! turns by the lock of `pki/issue-number.lock`, so a later number is a greater one. If the file is lost or
//! damaged, or a certificate shows a number that this directory never reached (it was replaced by an older
//! copy), the counter continues far above. Left to others: the place of the number in a certificate
//! (`kedge_hub_core::identity`), what it decides (`denied`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::files::{self, Flush, open_regular};
use crate::store::marker::Marker;

/// The counter, below the data directory.
const NAME: &str = "pki/issue-number";
/// The file whose lock a process holds while it takes a number.
const LOCK: &str = "pki/issue-number.lock";
/// A greater number in a credential does not raise the counter.
const MOST_MET: u64 = 1 << 62;
/// The first word of the file, with the version of its format.
const HEAD: &str = "kedge-issue-number-1";
/// Raise of the counter where it is unknown which numbers were handed out: more than any hub issues.
pub(crate) const RAISE: u64 = 1 << 32;

/// The counter of a data directory, or one in memory for a hub without a directory.
#[derive(Debug, Default)]
pub struct IssueNumbers {
    data_dir: Option<PathBuf>,
    /// The highest number that this process knows to be handed out.
    highest: AtomicU64,
}

impl IssueNumbers {
    /// Reads the counter of a data directory, which may have none yet.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn open(data_dir: &Path) -> io::Result<IssueNumbers> {
        let highest = read(data_dir)?.into();
        Ok(IssueNumbers { data_dir: Some(data_dir.to_owned()), highest })
    }

    /// Takes the next number. It is durable on return. Blocks for the disk.
    ///
    /// # Errors
    /// The counter cannot be read or written; the text names the file.
    pub fn take(&self) -> io::Result<u64> {
        let next = self.advance(|highest| highest.checked_add(1))?;
        match next == u64::MAX {
            false => Ok(next),
            true => Err(io::Error::other("all issue numbers are used up")),
        }
    }

    /// The highest number that this process knows to be handed out: any number that it takes later is
    /// greater.
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::Acquire)
    }

    /// The same, with those that other processes took; as far as the file can be read.
    pub(crate) fn refreshed(&self) -> u64 {
        let on_disk = self.data_dir.as_ref().and_then(|data_dir| read(data_dir).ok());
        self.highest.fetch_max(on_disk.unwrap_or(0), Ordering::AcqRel);
        self.highest()
    }

    /// True if a credential shows a number that this process does not know. [`meet`](Self::meet) explains it.
    pub fn is_unknown(&self, number: u64) -> bool {
        number > self.highest()
    }

    /// Handles a number that a genuine credential shows: if nobody took it from this directory, numbers are
    /// taken from far above it from now on. Returns whether that was so. Blocks for the disk.
    ///
    /// # Errors
    /// The counter cannot be read or written.
    pub fn meet(&self, number: u64) -> io::Result<bool> {
        // no hub comes so far, but a thief of an old authority's key may write it
        if !self.is_unknown(number) || number > MOST_MET {
            return Ok(false);
        }
        let mut was_unknown = false;
        self.advance(|highest| {
            was_unknown = number > highest;
            was_unknown.then(|| number.saturating_add(RAISE))
        })?;
        Ok(was_unknown)
    }

    /// Raises the counter to at least `number`, durably.
    ///
    /// # Errors
    /// The counter cannot be read or written.
    pub fn raise_to(&self, number: u64) -> io::Result<()> {
        self.advance(|highest| (number > highest).then_some(number)).map(drop)
    }

    /// Computes a new value of the counter from the present one, and stores it; `None` keeps it.
    fn advance(&self, next: impl FnOnce(u64) -> Option<u64>) -> io::Result<u64> {
        let Some(data_dir) = &self.data_dir else {
            let highest = self.highest();
            let next = next(highest).unwrap_or(highest);
            self.highest.fetch_max(next, Ordering::AcqRel);
            return Ok(next);
        };
        let _lock = lock(data_dir)?;
        let highest = read(data_dir)?.max(self.highest());
        let after = match next(highest) {
            Some(after) => {
                let path = data_dir.join(NAME);
                let text = format!("{HEAD} {after} {:08x}\n", sum(after));
                files::write(&path, text.as_bytes(), files::SECRET, Flush::Now).map_err(named(&path))?;
                after
            }
            None => highest,
        };
        self.highest.fetch_max(after, Ordering::AcqRel);
        Ok(after)
    }
}

/// Waits until no other process or thread takes a number.
fn lock(data_dir: &Path) -> io::Result<File> {
    let path = data_dir.join(LOCK);
    if let Some(directory) = path.parent() {
        files::make_private_directory(directory).map_err(named(directory))?;
    }
    let options = File::options().create(true).truncate(false).write(true).mode(files::SECRET).clone();
    let file = open_regular(&options, &path).map_err(named(&path))?;
    file.lock().map_err(named(&path))?;
    Ok(file)
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// The highest number that was handed out; far above all that may have been if the file is lost or damaged.
pub(crate) fn read(data_dir: &Path) -> io::Result<u64> {
    let path = data_dir.join(NAME);
    let what = match files::read(&path) {
        Ok(content) => match std::str::from_utf8(&content).ok().and_then(parse) {
            Some(number) => return Ok(number),
            None => "is damaged",
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing",
        Err(error) => return Err(named(&path)(error)),
    };
    // 0: a hub of before issue numbers, or none, used this directory
    let known = Marker::open(data_dir)?.known().map_or(0, |known| known.issued);
    if known == 0 && fs::symlink_metadata(&path).is_err() {
        return Ok(0);
    }
    let above = known.saturating_add(RAISE);
    log::error!("{} {what}: issue numbers continue above {above}", path.display());
    Ok(above)
}

fn parse(text: &str) -> Option<u64> {
    let (number, told) = text.strip_prefix(HEAD)?.trim().split_once(' ')?;
    let number = number.parse().ok()?;
    (u32::from_str_radix(told, 16) == Ok(sum(number))).then_some(number)
}

fn sum(number: u64) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(&number.to_be_bytes());
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::marker::Known;

    fn taken(data: &Path) -> u64 {
        IssueNumbers::open(data).unwrap().take().unwrap()
    }

    #[test]
    fn no_number_is_handed_out_twice() {
        let data = kedge_rig::Scratch::new("hub-issue-numbers").unwrap();
        let (hub, command) = (IssueNumbers::open(&data).unwrap(), IssueNumbers::open(&data).unwrap());
        // two processes: the one that lags behind reads the other's
        let numbers = [hub.take(), hub.take(), command.take(), command.take(), hub.take()];
        assert_eq!(numbers.map(Result::unwrap), [1, 2, 3, 4, 5]);
        assert_eq!((hub.highest(), command.highest()), (5, 4));
        assert_eq!(taken(&data), 6);
        let own = std::thread::scope(|scope| {
            let many = [(); 4].map(|()| scope.spawn(|| (0..25).map(|_| taken(&data)).collect::<Vec<_>>()));
            let mut all: Vec<u64> = many.into_iter().flat_map(|one| one.join().unwrap()).collect();
            all.sort_unstable();
            all
        });
        assert_eq!(own, (7..107).collect::<Vec<_>>());
        assert_eq!(IssueNumbers::default().take().unwrap(), 1);
    }

    #[test]
    fn lost_or_damaged_counter_continues_far_above() {
        let data = kedge_rig::Scratch::new("hub-issue-lost").unwrap();
        assert_eq!(taken(&data), 1);
        let marker = Marker::open(&data).unwrap();
        marker.replace(Known { issued: 7, ..Known::default() }).unwrap();
        for spoil in [None, Some(""), Some("kedge-issue-number-1 3 00000000\n")] {
            match spoil {
                None => fs::remove_file(data.join(NAME)).unwrap(),
                Some(text) => fs::write(data.join(NAME), text).unwrap(),
            }
            assert_eq!(taken(&data), 8 + RAISE, "{spoil:?}");
            assert_eq!(taken(&data), 9 + RAISE, "{spoil:?}");
        }
    }

    #[test]
    fn number_that_nobody_here_took_raises_the_counter() {
        let data = kedge_rig::Scratch::new("hub-issue-met").unwrap();
        let (hub, command) = (IssueNumbers::open(&data).unwrap(), IssueNumbers::open(&data).unwrap());
        assert_eq!(command.take().unwrap(), 1);
        assert!(hub.is_unknown(1) && !hub.meet(1).unwrap(), "the command took it");
        assert!(!hub.is_unknown(1));
        assert!(hub.meet(9).unwrap());
        assert_eq!((hub.take().unwrap(), command.take().unwrap()), (10 + RAISE, 11 + RAISE));
        hub.raise_to(5).unwrap();
        assert_eq!(hub.take().unwrap(), 12 + RAISE);
    }

    #[test]
    fn number_that_no_hub_reaches_does_not_raise_the_counter() {
        let data = kedge_rig::Scratch::new("hub-issue-numbers-far").unwrap();
        std::fs::create_dir(data.join("pki")).unwrap();
        let numbers = IssueNumbers::open(&data).unwrap();
        assert!(!numbers.meet(u64::MAX).unwrap());
        assert_eq!(numbers.take().unwrap(), 1);
        assert!(numbers.meet(MOST_MET).unwrap(), "it is above all");
        numbers.raise_to(u64::MAX - 1).unwrap();
        let refused = numbers.take().unwrap_err().to_string();
        assert!(refused.contains("used up"), "{refused}");
    }
}
