//! A program that believes to run on a machine with less memory, for tests of limits that follow from it.
//!
//! The program is the real one; a library preloaded into it answers `sysinfo`. Always holds: only what the program is told is smaller,
//! not what it gets; a control group's own limit counts as before.

use std::path::{Path, PathBuf};

use crate::error::RigError;
use crate::preload;

const LIBRARY: &str = include_str!("small_machine_preload.c");

/// A program in `directory` that runs `program` with the same arguments, on a machine with so many bytes of memory.
///
/// # Errors
/// No C compiler, or the directory cannot be written.
pub fn program(directory: &Path, program: &Path, memory_bytes: u64) -> Result<PathBuf, RigError> {
    let memory = memory_bytes.to_string();
    preload::program(directory, "small_machine", LIBRARY, program, &[("KEDGE_SMALL_MACHINE", &memory)])
}
