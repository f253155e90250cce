//! A series of backups in one directory: each run adds a file, and the oldest are removed.
//!
//! Always holds: files are removed only after the new one is complete, and only files of the series. Their
//! order is that of the numbers in their names, so a clock that was wrong neither hides the newest file nor
//! removes it. Left to others: a backup (`backup`), the time of each run (systemd's timer).

use std::fs;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::backup::{self, Made, wrong};

const PREFIX: &str = "kedge-hub-";
const SUFFIX: &str = ".backup";

/// Adds a backup of `data_dir` to the series in `directory` and keeps the newest `keep` of its files. Returns
/// the new file. A file that cannot be removed is logged.
///
/// # Errors
/// The directory cannot be read, or the backup cannot be made; then nothing is removed.
pub fn backup(data_dir: &Path, directory: &Path, keep: u32) -> Result<(PathBuf, Made), OpenError> {
    let mut present = numbers(directory)?;
    let number = present.last().map_or(1, |last| last.saturating_add(1));
    let path = file(directory, number);
    let made = backup::backup(data_dir, &path)?;
    present.push(number);
    let surplus = present.len().saturating_sub(keep as usize);
    for number in &present[..surplus] {
        let old = file(directory, *number);
        if let Err(error) = fs::remove_file(&old) {
            log::warn!("cannot remove the old backup {}: {error}", old.display());
        }
    }
    Ok((path, made))
}

fn file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{number:06}{SUFFIX}"))
}

/// The numbers of the series in a directory, in their order.
fn numbers(directory: &Path) -> Result<Vec<u64>, OpenError> {
    let failed = |error| wrong(directory, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        let number = digits.and_then(|digits| digits.parse().ok());
        // of two spellings of a number only ours is of the series
        found.extend(number.filter(|number| file(directory, *number).file_name() == Some(&name)));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hub;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn newest_backups_are_kept_and_other_files_left_alone() {
        let folder = kedge_rig::Scratch::new("hub-series").unwrap();
        let (data, series) = (folder.join("data"), folder.join("series"));
        drop(Hub::open(&data).unwrap());
        fs::create_dir(&series).unwrap();
        for name in ["notes", "kedge-hub-7.backup", "kedge-hub-x.backup", "kedge-hub-000001.backup.part"] {
            fs::write(series.join(name), "x").unwrap();
        }
        let others = names(&series);
        for _ in 0..4 {
            backup(&data, &series, 2).unwrap();
        }
        let mut expect = others.clone();
        // the third run's own part was written over and renamed
        expect.retain(|name| !name.ends_with(".part"));
        expect.extend(["kedge-hub-000003.backup", "kedge-hub-000004.backup"].map(str::to_owned));
        expect.sort();
        assert_eq!(names(&series), expect);
    }

    #[test]
    fn failed_backup_removes_nothing() {
        let folder = kedge_rig::Scratch::new("hub-series-failed").unwrap();
        let (data, series) = (folder.join("data"), folder.join("series"));
        fs::create_dir_all(&data).unwrap();
        fs::create_dir(&series).unwrap();
        for number in 1..=3 {
            fs::write(file(&series, number), "x").unwrap();
        }
        assert!(backup(&data, &series, 1).unwrap_err().to_string().contains("there is no store"));
        assert_eq!(names(&series).len(), 3);
    }
}
