//! A program that believes it runs on a machine with less memory, for tests of limits that depend on it.
//!
//! The program is the real one; a library preloaded into it answers `sysinfo`. Always holds: only the
//! reported memory is smaller, not the available one; a control group's own limit applies as before.

use std::path::{Path, PathBuf};

use crate::error::RigError;
use crate::preload;

const LIBRARY: &str = include_str!("small_machine_preload.c");

/// Makes a program in `directory` that runs `program` with the same arguments, on a machine with this many
/// bytes of memory.
///
/// # Errors
/// No C compiler, or the directory cannot be written.
pub fn program(directory: &Path, program: &Path, memory_bytes: u64) -> Result<PathBuf, RigError> {
    let memory = memory_bytes.to_string();
    preload::program(directory, "small_machine", LIBRARY, program, &[("KEDGE_SMALL_MACHINE", &memory)])
}
