//! The pods and containers that run here, by reading alone: for commands beside an agent, or without one.
//!
//! Always holds: nothing is written or locked, and no call waits. A container is listed if its shim's records
//! show that it has begun and not ended; of several runs under one name only the last one.
//!
//! Leaves to others: the meaning of notes.

use std::collections::BTreeMap;

use super::linux::names;
use super::places::Places;
use super::records::{EXIT, Records, STATE, StateRecord};
use super::{ContainerId, Notes, Settings, sandbox};

/// A pod with running containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// The pod's UID.
    pub uid: String,
    /// The agent's notes about it.
    pub notes: Notes,
    /// The runs that have begun and not ended, by name.
    pub containers: Vec<ContainerId>,
}

/// The pods that exist here.
pub fn running_pods(settings: &Settings) -> Vec<RunningPod> {
    let places = Places { run: settings.run.clone(), data: settings.data.clone() };
    let pods = names(&places.pods()).into_iter();
    pods.map(|uid| {
        let notes = sandbox::prepared(&places, &uid).map(|order| order.notes).unwrap_or_default();
        RunningPod { containers: running_in(&places, &uid), notes, uid }
    })
    .collect()
}

/// When a run of a container began, in microseconds since 1970. `None` if it has not begun, or does not exist
/// any more.
pub fn started_at(settings: &Settings, id: &ContainerId) -> Option<i64> {
    let places = Places { run: settings.run.clone(), data: settings.data.clone() };
    let state: StateRecord = Records::of(&places.bundle(id)).read(STATE).ok()??;
    Some(state.started_at)
}

fn running_in(places: &Places, uid: &str) -> Vec<ContainerId> {
    let runs = names(&places.containers(uid)).into_iter().filter_map(|name| ContainerId::parse(uid, &name));
    let mut last = BTreeMap::new();
    for id in runs {
        let records = Records::of(&places.bundle(&id));
        let has_begun = matches!(records.read::<StateRecord>(STATE), Ok(Some(_)));
        if has_begun && !records.has(EXIT) {
            let newest: &mut ContainerId = last.entry(id.name.clone()).or_insert_with(|| id.clone());
            newest.attempt = newest.attempt.max(id.attempt);
        }
    }
    last.into_values().collect()
}
