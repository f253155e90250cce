//! Programs that run with a library of ours preloaded, for tests that need the real program on a system with
//! faults.
//!
//! Needs a C compiler, and a program that is not static.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::RigError;

/// Compiles `source` in `directory` and writes a program there that runs `program` with the same arguments,
/// with the library and this environment. `name` is that of the program and of the library's files.
///
/// # Errors
/// No C compiler, or the directory cannot be written.
pub(crate) fn program(
    directory: &Path,
    name: &str,
    source: &str,
    program: &Path,
    environment: &[(&str, &str)],
) -> Result<PathBuf, RigError> {
    let at = |ending: &str| directory.join(format!("{name}{ending}"));
    let (text, library, wrapper) = (at(".c"), at(".so"), at(""));
    std::fs::write(&text, source).map_err(RigError::io("write", &text))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(&text);
    let output = compiler.output().map_err(RigError::io("compile", &text))?;
    if !output.status.success() {
        return Err(RigError::Failed {
            command: format!("{compiler:?}"),
            status: output.status.to_string(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    let variables: String = environment.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    let script =
        format!("#!/bin/sh\n{variables}LD_PRELOAD={} exec {} \"$@\"\n", library.display(), program.display());
    std::fs::write(&wrapper, script).map_err(RigError::io("write", &wrapper))?;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))
        .map_err(RigError::io("make executable", &wrapper))?;
    Ok(wrapper)
}
