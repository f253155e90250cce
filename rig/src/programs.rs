//! The paths of the programs that tests and `make try` run: our own, as `.ci/build` makes them, and the
//! fetched kubectl.
//!
//! Always holds: a program that is returned exists. Nothing is built or fetched here; the error contains the
//! command for that.

use std::path::{Path, PathBuf};

use crate::error::RigError;

/// The kubectl that is used. It must be the newest of those that `hub/tests/kubectl/fetch` gets.
const KUBECTL_VERSION: &str = "1.36";

/// A program of this workspace from cargo's debug directory: the one of the running program or test, or
/// `$KEDGE_PROGRAMS`.
pub fn built(name: &str) -> Result<PathBuf, RigError> {
    existing(name, build_dir()?.join(name), ".ci/build")
}

/// The agent that supports the configuration field `kedge.faultInjection`.
pub fn agent_with_faults() -> Result<PathBuf, RigError> {
    let dir = build_dir()?;
    existing("kedge with fault injection", dir.with_file_name("faults").join("kedge"), ".ci/build")
}

/// kubectl: `$KEDGE_KUBECTL`, or as fetched into the repository's target directory (or `$KEDGE_KUBECTL_DIR`).
pub fn kubectl() -> Result<PathBuf, RigError> {
    if let Some(path) = std::env::var_os("KEDGE_KUBECTL") {
        return existing("kubectl", path.into(), "unset KEDGE_KUBECTL");
    }
    kubectl_of(KUBECTL_VERSION)
}

/// kubectl of one of the fetched versions: `1.20`.
pub fn kubectl_of(version: &str) -> Result<PathBuf, RigError> {
    let dir = match std::env::var_os("KEDGE_KUBECTL_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kubectl"),
    };
    existing("kubectl", dir.join(version).join("kubectl"), "hub/tests/kubectl/fetch")
}

fn build_dir() -> Result<PathBuf, RigError> {
    if let Some(dir) = std::env::var_os("KEDGE_PROGRAMS") {
        return Ok(dir.into());
    }
    let own = std::env::current_exe()
        .map_err(|source| RigError::Io { tried: "find the running program".into(), source })?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    // the program of a test is one level deeper
    Ok(if dir.ends_with("deps") { dir.parent().unwrap_or(dir).to_owned() } else { dir.to_owned() })
}

fn existing(name: &str, path: PathBuf, remedy: &str) -> Result<PathBuf, RigError> {
    match path.canonicalize() {
        Ok(path) if path.is_file() => Ok(path),
        _ => Err(RigError::Missing {
            program: name.to_owned(),
            looked: path.display().to_string(),
            remedy: remedy.to_owned(),
        }),
    }
}
