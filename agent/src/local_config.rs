//! Reads the local config from disk: the `--config` file and the drop-ins, those in sub-directories too, as
//! bytes; core judges them.
//!
//! Always holds: an unreadable file is an error that names it, never an absent layer. Leaves to others: the
//! order and the meaning of layers (`kedge_core::kubelet`).

use crate::errors::chain;
use crate::options::LocalFiles;
use kedge_core::kubelet::{LayerText, LocalLayers, Origin, layers};
use kedge_platform::linux::read_named_file;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Longest file read; core's own limit for a text is lower, and its error is clearer.
const FILE_BYTES: usize = 4 * 1024 * 1024;

/// Most entries read in a drop-in directory and below it.
const DIRECTORY_ENTRIES: usize = 10_000;

/// Skipped files that the log lists by name.
const SKIPPED_NAMED: usize = 5;

/// A layer that could not be read.
#[derive(Debug)]
pub struct LocalConfigError {
    what: &'static str,
    path: PathBuf,
    why: String,
}

impl fmt::Display for LocalConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {} {}: {}", self.what, self.path.display(), self.why)
    }
}

impl std::error::Error for LocalConfigError {}

/// Reads all layers of the local config.
///
/// # Errors
/// A required file or directory cannot be read.
pub(crate) fn read(files: &LocalFiles) -> Result<LocalLayers, LocalConfigError> {
    let base = match &files.config {
        None => None,
        Some(path) => Some(layer("config file", path, Origin::File)?),
    };
    let drop_ins = match &files.config_dir {
        None => Vec::new(),
        Some(directory) => drop_ins(directory, files.config_dir_must_exist)?,
    };
    Ok(LocalLayers { base, drop_ins, flags: files.flags.clone(), ..LocalLayers::default() })
}

/// The state of a local configuration: path, size and time of each file. It differs if a file was changed.
pub(crate) type Fingerprint = Vec<(PathBuf, Option<(u64, SystemTime)>)>;

/// The same for these files, as of now.
pub(crate) fn fingerprint(files: &LocalFiles) -> Fingerprint {
    let directory = files.config_dir.iter();
    let drop_ins = directory.flat_map(|directory| {
        let below = files_below(directory).unwrap_or_default();
        below.into_iter().map(|path| directory.join(path))
    });
    let all = files.config.iter().cloned().chain(drop_ins);
    all.map(|path| {
        let found = path.metadata().ok();
        let found = found.and_then(|found| Some((found.len(), found.modified().ok()?)));
        (path, found)
    })
    .collect()
}

/// Reads one file whole.
///
/// # Errors
/// It cannot be read, or is too large to be a configuration.
pub(crate) fn layer(
    what: &'static str,
    path: &Path,
    origin: impl FnOnce(String) -> Origin,
) -> Result<LayerText, LocalConfigError> {
    match read_named_file(path, FILE_BYTES) {
        Ok(text) => Ok(LayerText { origin: origin(path.display().to_string()), text }),
        Err(error) => Err(LocalConfigError { what, path: path.to_owned(), why: chain(&error) }),
    }
}

fn drop_ins(directory: &Path, must_exist: bool) -> Result<Vec<LayerText>, LocalConfigError> {
    let sorted = match files_below(directory) {
        Ok(paths) => layers::select_drop_ins(paths),
        Err((path, error)) if error.kind() == io::ErrorKind::NotFound && !must_exist && path == directory => {
            return Ok(Vec::new());
        }
        Err((path, error)) => {
            let why = match error.kind() {
                io::ErrorKind::NotFound => "it does not exist".into(),
                _ => error.to_string(),
            };
            return Err(LocalConfigError { what: "drop-in directory", path, why });
        }
    };
    if let Some(names) = some_names(&sorted.skipped) {
        log::info!("drop-in directory {}: skipped {names}, not *.conf", directory.display());
    }
    sorted.taken.iter().map(|name| layer("drop-in", &directory.join(name), Origin::DropIn)).collect()
}

/// The first few of these, and how many more there are: a whole tree may have been put there. `None` if the
/// list is empty.
fn some_names(paths: &[PathBuf]) -> Option<String> {
    let mut names: Vec<String> =
        paths.iter().take(SKIPPED_NAMED).map(|path| path.display().to_string()).collect();
    let more = paths.len() - names.len();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

/// Everything but directories below this one, by its path below it. A link to a directory is not followed, as
/// upstream does not.
///
/// # Errors
/// The directory that cannot be read.
fn files_below(directory: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut files = Vec::new();
    let mut below = vec![PathBuf::new()];
    let mut entries = 0;
    while let Some(part) = below.pop() {
        // joining with nothing would add a slash at the end
        let path = if part.as_os_str().is_empty() { directory.to_owned() } else { directory.join(&part) };
        let failed = |error| (path.clone(), error);
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            entries += 1;
            if entries > DIRECTORY_ENTRIES {
                return Err(failed(io::Error::other(format!("more than {DIRECTORY_ENTRIES} entries"))));
            }
            let name = part.join(entry.file_name());
            let is_directory = entry.file_type().map_err(failed)?.is_dir();
            if is_directory { below.push(name) } else { files.push(name) }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;

    fn names(scratch: &Scratch) -> Result<Vec<String>, String> {
        let read = drop_ins(scratch.path(), true).map_err(|error| error.to_string())?;
        Ok(read.iter().map(|layer| String::from_utf8_lossy(&layer.text).into_owned()).collect())
    }

    #[test]
    fn drop_ins_of_sub_directories_are_read_in_order() {
        let scratch = Scratch::new("drop-ins").unwrap();
        for path in ["20.conf", "10/b.conf", "10/a/z.conf", "10/README", "15.conf/x.conf", "README"] {
            scratch.write(path, path);
        }
        assert_eq!(names(&scratch).unwrap(), ["10/a/z.conf", "10/b.conf", "15.conf/x.conf", "20.conf"]);
        // a link to a file is read, one to a directory is not a drop-in
        std::os::unix::fs::symlink("20.conf", scratch.join("30.conf")).unwrap();
        std::os::unix::fs::symlink("10", scratch.join("link")).unwrap();
        assert_eq!(names(&scratch).unwrap().len(), 5);
        std::os::unix::fs::symlink("10", scratch.join("link.conf")).unwrap();
        let error = names(&scratch).unwrap_err();
        assert!(error.contains("link.conf is a directory, expected a file"), "{error}");
    }

    #[test]
    fn skipped_files_are_named_up_to_a_number() {
        let of = |count: usize| {
            some_names(&(1..=count).map(|number| PathBuf::from(number.to_string())).collect::<Vec<_>>())
        };
        assert_eq!(of(0), None);
        assert_eq!(of(5).as_deref(), Some("1, 2, 3, 4, 5"));
        assert_eq!(of(10_000).as_deref(), Some("1, 2, 3, 4, 5, and 9995 more"));
    }

    #[test]
    fn missing_drop_in_directory_is_an_error_if_it_was_named() {
        let scratch = Scratch::new("drop-ins").unwrap();
        let missing = scratch.join("missing");
        assert_eq!(drop_ins(&missing, false).map(|read| read.len()).ok(), Some(0));
        let error = drop_ins(&missing, true).unwrap_err().to_string();
        assert!(error.ends_with("missing: it does not exist"), "{error}");
    }
}
