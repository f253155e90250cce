//! A program that skips what makes its writes durable, for those who must show that they would notice.
//!
//! The program is the real one; a library preloaded into it answers fsync and fdatasync and does nothing. Needs a C compiler, and a
//! program that is not static.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::RigError;

const LIBRARY: &str = include_str!("nosync_preload.c");

/// What is not synced.
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

/// A program in `directory` that runs `program` with the same arguments, without these syncs.
///
/// # Errors
/// No C compiler, or the directory cannot be written.
pub fn program(directory: &Path, program: &Path, skips: Skips) -> Result<PathBuf, RigError> {
    let at = |name: &str| directory.join(name);
    let (source, library) = (at("nosync_preload.c"), at("nosync_preload.so"));
    std::fs::write(&source, LIBRARY).map_err(RigError::io("write", &source))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(&source);
    let output = compiler.output().map_err(RigError::io("compile", &source))?;
    if !output.status.success() {
        return Err(RigError::Failed {
            command: format!("{compiler:?}"),
            status: output.status.to_string(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    let script = format!(
        "#!/bin/sh\nKEDGE_NOSYNC={} LD_PRELOAD={} exec {} \"$@\"\n",
        skips.name(),
        library.display(),
        program.display()
    );
    let wrapper = at("nosync");
    std::fs::write(&wrapper, script).map_err(RigError::io("write", &wrapper))?;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))
        .map_err(RigError::io("make executable", &wrapper))?;
    Ok(wrapper)
}
