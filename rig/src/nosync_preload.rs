//! A program whose fsyncs have no effect, for power-cut tests that must prove that they notice it.
//!
//! The program is the real one; a library preloaded into it answers fsync and fdatasync without doing
//! anything.

use std::path::{Path, PathBuf};

use crate::error::RigError;
use crate::preload;

const LIBRARY: &str = include_str!("nosync_preload.c");

/// The kind of sync that is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skips {
    /// Contents of files.
    Files,
    /// Names in directories.
    Directories,
}

impl Skips {
    pub fn name(self) -> &'static str {
        match self {
            Skips::Files => "files",
            Skips::Directories => "directories",
        }
    }
}

/// Makes a program in `directory` that runs `program` with the same arguments, without these syncs.
///
/// # Errors
/// No C compiler, or the directory cannot be written.
pub fn program(directory: &Path, program: &Path, skips: Skips) -> Result<PathBuf, RigError> {
    preload::program(directory, "nosync", LIBRARY, program, &[("KEDGE_NOSYNC", skips.name())])
}
