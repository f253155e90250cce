//! The marker, which a data directory keeps beside its keys about its store: the store's id, the highest
//! reserved resourceVersions, and the denied nodes and certificates.
//!
//! A missing, empty or old store cannot be recognized as such by itself; the hub recognizes it by this file.
//! Always holds: the marker is written after the store, so a store that is older than the marker is not the
//! one that was here. A start puts denials that the store lacks back into it. Denials that a command ended
//! stay here until their end was explained (`denials`). So neither a crash nor a lost or exchanged store
//! removes one. A failed write of the marker stops nothing; it is repeated with the next change. Left to
//! others: the decision whether a hub may start on a store (`disk`), replacing the store (`backup`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flate2::Crc;
use kedge_hub_core::identity::denied::{self, Denial};
use serde_json::{Value, json};

use super::Spaces;
use crate::files::{self, Flush};
use crate::own;

/// Path below the data directory.
pub(super) const NAME: &str = "pki/store-marker";
/// The first word of the file, with the version of its format.
const HEAD: &str = "kedge-store-marker-1";
/// Longest file: the largest deny list that fits in a ConfigMap, in another notation.
const MOST_BYTES: u64 = 8 * 1024 * 1024;

/// The content of a marker; see the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    /// The store's id.
    pub id: i64,
    /// The highest versions that may have been handed out.
    pub reserved: Spaces<u64>,
    /// The version of the deny list; 0 without one.
    pub list_revision: u64,
    /// The maps of the deny list.
    pub list: Value,
    /// Entries that were removed, but whose end was not explained yet.
    pub ended: Value,
    /// The highest issue number that is known to be handed out; 0 in a marker of an older hub.
    pub issued: u64,
    /// The id of a restore whose Nodes are still to be marked; 0 without one.
    pub restored: u64,
}

impl Known {
    /// Takes over a newer deny list.
    pub fn note_list(&mut self, revision: u64, list: &Value) {
        self.list_revision = revision;
        let before = std::mem::replace(&mut self.list, denied::maps(list));
        let mut gone = before;
        let present: Vec<_> =
            denied::lifted(&self.list, &Value::Null).into_iter().map(|one| one.denial).collect();
        denied::forget(&mut gone, &present);
        denied::unite_gone(&mut self.ended, &gone);
        denied::forget(&mut self.ended, &present);
    }

    /// Takes over the list of a store that was opened. Denials that it lacks stay known: only a command ends
    /// one.
    pub fn meet_list(&mut self, revision: u64, list: &Value) {
        let mut united = denied::maps(list);
        denied::unite(&mut united, &self.list);
        self.note_list(revision, &united);
    }

    /// The denials in force, and those that ended a moment ago.
    pub fn denied(&self) -> Value {
        let mut all = self.list.clone();
        denied::unite_gone(&mut all, &self.ended);
        all
    }

    /// The number of denials.
    pub fn denials(&self) -> usize {
        denied::lifted(&self.denied(), &Value::Null).len()
    }

    fn text(&self) -> String {
        let Spaces { common, leases } = self.reserved;
        let content = json!({"id": self.id, "reserved": common, "leaseReserved": leases,
            "listRevision": self.list_revision, "list": self.list, "ended": self.ended, "issued": self.issued, "restored": self.restored})
        .to_string();
        format!("{HEAD} {:08x}\n{content}\n", sum(content.as_bytes()))
    }

    fn read(text: &str) -> Option<Known> {
        let (head, content) = text.split_once('\n')?;
        let content = content.strip_suffix('\n')?;
        let told = u32::from_str_radix(head.strip_prefix(HEAD)?.trim(), 16).ok()?;
        if told != sum(content.as_bytes()) {
            return None;
        }
        let value: Value = own::read(content.as_bytes()).ok()?;
        let reserved =
            Spaces { common: value["reserved"].as_u64()?, leases: value["leaseReserved"].as_u64()? };
        Some(Known {
            id: value["id"].as_i64()?,
            reserved,
            list_revision: value["listRevision"].as_u64()?,
            list: value["list"].clone(),
            ended: value["ended"].clone(),
            issued: value["issued"].as_u64().unwrap_or(0),
            restored: value["restored"].as_u64().unwrap_or(0),
        })
    }
}

fn sum(content: &[u8]) -> u32 {
    let mut sum = Crc::new();
    sum.update(content);
    sum.sum()
}

/// The file of a data directory.
#[derive(Debug)]
pub struct Marker {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    known: Option<Known>,
    /// True if the file has the present content.
    is_saved: bool,
}

impl Marker {
    /// Reads the marker of a data directory; a missing or damaged file counts as no marker.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn open(data_dir: &Path) -> io::Result<Marker> {
        let path = data_dir.join(NAME);
        let known = match files::read_regular(&path, MOST_BYTES) {
            Ok(content) => {
                let known = std::str::from_utf8(&content).ok().and_then(Known::read);
                if known.is_none() {
                    log::error!("{} is damaged: it is made anew from the store", path.display());
                }
                known
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display())));
            }
        };
        Ok(Marker { path, state: Mutex::new(State { is_saved: known.is_some(), known }) })
    }

    /// True if a hub of this or an older version kept a store here.
    pub fn had_a_store(data_dir: &Path) -> bool {
        // the keys are made after the store
        [NAME, "pki/ca.pem", "ca.crt"].iter().any(|name| data_dir.join(name).symlink_metadata().is_ok())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content, if the marker has any.
    pub fn known(&self) -> Option<Known> {
        self.state().known.clone()
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes over the facts of an open store, in memory only.
    pub fn adopt(&self, known: Known) {
        let mut state = self.state();
        state.is_saved &= state.known.as_ref() == Some(&known);
        state.known = Some(known);
    }

    /// Changes the content, durably if the disk permits.
    pub fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut state = self.state();
        let Some(known) = &mut state.known else { return };
        let before = known.clone();
        change(known);
        if *known == before && state.is_saved {
            return;
        }
        let text = state.known.as_ref().map(Known::text).unwrap_or_default();
        let saved = self.write(&text);
        if let Err(error) = &saved {
            log::warn!(
                "cannot write {}: {error}; it is tried again with the next change",
                self.path.display()
            );
        }
        state.is_saved = saved.is_ok();
    }

    fn write(&self, text: &str) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            files::make_private_directory(directory)?;
        }
        files::write(&self.path, text.as_bytes(), files::SECRET, Flush::Now)
    }

    /// Removes these denials, because their end was explained.
    pub fn settle(&self, explained: &[Denial]) {
        self.change(|known| denied::forget(&mut known.ended, explained));
    }

    /// Replaces the content, durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn replace(&self, known: Known) -> io::Result<()> {
        self.write(&known.text())?;
        *self.state() = State { known: Some(known), is_saved: true };
        Ok(())
    }
}
