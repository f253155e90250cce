//! `kedge system status`: the system that the configuration wants, and the systems that failed here.
//!
//! Always holds: it changes nothing, and needs a running agent only for the progress of an update. Leaves to
//! others: the decisions (`kedge_core::system`).

use super::host;
use crate::options::Places;
use crate::output::{self, CommandError};
use kedge_core::config::records::StateFile;
use kedge_core::system::records::{Again, BadSystems, WantedRecord};
use std::fs;

/// Prints it.
///
/// # Errors
/// A record is damaged.
pub fn status(places: &Places) -> Result<(), CommandError> {
    let read = |file: StateFile| fs::read(places.root_dir.join(file.path(""))).ok();
    let damaged = |why: String| CommandError::new(format_args!("a record of systems is damaged: {why}"));
    let report = host::status(places).unwrap_or_default();
    let part = |name: &str| report["system"][name].as_str().unwrap_or_default().to_owned();
    let wanted = read(StateFile::SystemWanted).map(|bytes| WantedRecord::read(&bytes)).transpose();
    let wanted = wanted.map_err(damaged)?.flatten();
    match (report["system"].is_object(), wanted) {
        (true, _) => output::print(format_args!("SystemOK={}: {}", part("status"), part("message"))),
        (false, Some(wanted)) => {
            output::print(format_args!("system {}: {}", wanted.wish.version, wanted.state.name()));
        }
        (false, None) => output::print("no system is wanted"),
    }
    let bad = read(StateFile::SystemBad).map(|bytes| BadSystems::read(&bytes)).transpose();
    for bad in bad.map_err(damaged)?.unwrap_or_default().iter() {
        let again = if bad.again == Again::Never { "" } else { ", to be tried again" };
        output::print(format_args!("failed: system {}{again}: {}", bad.version, bad.reason));
    }
    Ok(())
}
