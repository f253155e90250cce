//! Reads the local config from disk: the `--config` file and the drop-ins, as bytes; core judges them.
//!
//! Always holds: an unreadable file is an error that names it, never an absent layer. Leaves to others: the order and the
//! meaning of layers (`kedge_core::kubelet`).

use crate::errors::chain;
use crate::flags::LocalFiles;
use kedge_core::kubelet::{LayerText, LocalLayers, Origin, layers};
use kedge_platform::linux::read_named_file;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Longest file read; core's own limit for a text is below it, and says so better.
const FILE_BYTES: usize = 4 * 1024 * 1024;

/// Most entries looked at in a drop-in directory.
const DIRECTORY_ENTRIES: usize = 10_000;

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
/// A file or directory that should be there cannot be read.
pub(crate) fn read(files: &LocalFiles) -> Result<LocalLayers, LocalConfigError> {
    let base = match &files.config {
        None => None,
        Some(path) => Some(layer("config file", path, Origin::File)?),
    };
    let drop_ins = match &files.config_dir {
        None => Vec::new(),
        Some(directory) => drop_ins(directory, files.config_dir_must_exist)?,
    };
    Ok(LocalLayers { base, drop_ins, flags: files.flags.clone() })
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
    let failed = |error: io::Error| LocalConfigError {
        what: "drop-in directory",
        path: directory.to_owned(),
        why: match error.kind() {
            io::ErrorKind::NotFound => "it does not exist".into(),
            _ => error.to_string(),
        },
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if names.len() == DIRECTORY_ENTRIES {
            return Err(failed(io::Error::other(format!("more than {DIRECTORY_ENTRIES} entries"))));
        }
        names.push(entry.map_err(failed)?.file_name());
    }
    let sorted = layers::select_drop_ins(names);
    for skipped in &sorted.skipped {
        log::info!("drop-in directory {}: skipped {}, not *.conf", directory.display(), skipped.display());
    }
    sorted.taken.iter().map(|name| layer("drop-in", &directory.join(name), Origin::DropIn)).collect()
}
