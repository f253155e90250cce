//! How the configuration is reported: the condition `ConfigOK` for people, `status.config` for machines.
//!
//! Always holds: composed from durable records, never from a record that is about to be written; the five
//! examples of the proposal (dynamic kubelet configuration) appear word for word in their situations. Further
//! details go to `status.config.error`, events and the log.

use crate::config::disk::AssignedNow;
use crate::config::judge;
use crate::config::records::{BadKind, ConfigRecord};
use crate::config::requested::SyncProblem;
use crate::config::running::View;
use crate::config::standing::{Obstacle, Standing, Substitute};
use kedge_api::{ConfigMapNodeConfigSource, NodeConfigSource, NodeConfigStatus};

/// The text of the condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigOk {
    /// True, False or Unknown.
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

/// `ConfigOK`, as of now.
pub(crate) fn config_ok(view: &View) -> ConfigOk {
    let (status, reason) = status_and_reason(view);
    ConfigOk { status, reason, message: message(view) }
}

fn message(view: &View) -> String {
    let local = if view.facts.has_init() { "(init)" } else { "(default)" };
    let uid = view.in_use.config.as_ref().map(|(config, _)| config.uid.as_str()).unwrap_or_default();
    match view.standing {
        Standing::Local => format!("using current {local}"),
        Standing::InTrial(_) | Standing::KnownGood => format!("using current (UID: {uid})"),
        Standing::Fallback(fallback) => match fallback.runs {
            Substitute::LastKnownGood => format!("using last known good: (UID: {uid})"),
            Substitute::Previous => format!("using the last known good before it: (UID: {uid})"),
            Substitute::Superseded => format!("using previous (UID: {uid})"),
            Substitute::Local => format!("using last-known-good {local}"),
        },
    }
}

fn status_and_reason(view: &View) -> (&'static str, String) {
    if !view.facts.dynamic {
        return (
            "True",
            format!("{}; dynamic configuration is off (--dynamic-config=false)", local_reason(view)),
        );
    }
    if let Some(why) = view.held_up {
        return (
            "Unknown",
            format!("failed to sync, reason: restarting to use what is assigned waits: {why}"),
        );
    }
    match (view.sync, view.standing.obstacle()) {
        (Some(SyncProblem::Invalid(cause)), _) | (None, Some(Obstacle::SourceInvalid(cause))) => {
            ("Unknown", format!("failed to sync, desired config unclear, cause: {cause}"))
        }
        (Some(SyncProblem::Failed(cause)), _) => ("Unknown", format!("failed to sync, reason: {cause}")),
        (None, Some(obstacle)) => {
            let uid = assigned_uid(view);
            let (status, mut reason) = obstacle_reason(obstacle, "current", &uid);
            if let (Obstacle::WaitsForSystem { version }, Some(progress)) = (obstacle, view.system)
                && !version.is_empty()
            {
                reason = format!("{reason} ({progress})");
            }
            for (rank, uid, fallback) in view.standing.passed_over() {
                reason = format!("{reason}; {}", obstacle_reason(fallback, rank.name(), uid).1);
            }
            (status, reason)
        }
        (None, None) => without_obstacle(view),
    }
}

fn without_obstacle(view: &View) -> (&'static str, String) {
    match (awaited_uid(view), view.edited) {
        (Some(uid), _) => ("Unknown", format!("current (UID: {uid}) can be tried now, restarting to use it")),
        (None, _) if view.standing.is_local() => ("True", local_reason(view)),
        (None, Some(edited)) => ("True", format!("all checks passed; {edited}")),
        (None, None) => ("True", "all checks passed".into()),
    }
}

/// UID of the assigned config if nothing keeps it from running any more, but another one still runs: after
/// `kedge config forgive`, for example, until this process ends. The condition is not `True`: the assigned
/// config does not run yet.
fn awaited_uid(view: &View) -> Option<String> {
    match view.disk.assigned() {
        AssignedNow::Config(config, _) if !view.standing.is_assigned() => Some(config.uid),
        _ => None,
    }
}

fn local_reason(view: &View) -> String {
    let init =
        if view.facts.has_init() { "an init config was provided" } else { "no init config was provided" };
    format!("current is set to the local default, and {init}")
}

fn assigned_uid(view: &View) -> String {
    match view.disk.assigned() {
        AssignedNow::Config(config, _) => config.uid,
        _ => "unknown".into(),
    }
}

fn obstacle_reason(obstacle: &Obstacle, what: &str, uid: &str) -> (&'static str, String) {
    match obstacle {
        Obstacle::Marked { verdict, recorded } => {
            let status = if verdict.kind == BadKind::Unknown { "Unknown" } else { "False" };
            let not_recorded = if *recorded { "" } else { "; the verdict could not be recorded" };
            // a last-known-good may have been marked while it was current, and the other way round
            let reason = match verdict.reason.contains(uid) {
                true => judge::reason(verdict.kind, !verdict.detail.is_empty(), what, uid),
                false => verdict.reason.clone(),
            };
            (status, format!("{reason}{not_recorded}"))
        }
        Obstacle::Missing(why) => ("Unknown", format!("failed to load {what} (UID: {uid}): {why}")),
        Obstacle::AssignmentUnknown(why) => ("Unknown", format!("failed to load {what}: {why}")),
        Obstacle::VerdictsUnknown(why) => (
            "Unknown",
            format!(
                "failed to load {what} (UID: {uid}): the list of bad configs is unknown ({why}), so it may be one of them"
            ),
        ),
        Obstacle::NotRecorded(why) => (
            "Unknown",
            format!("failed to load {what} (UID: {uid}): its start could not be recorded on disk: {why}"),
        ),
        Obstacle::SourceInvalid(cause) => {
            ("Unknown", format!("failed to sync, desired config unclear, cause: {cause}"))
        }
        // a config that wants no system waits until the running one is proven
        Obstacle::WaitsForSystem { version } if version.is_empty() => {
            ("Unknown", "waits until the system that runs is proven".into())
        }
        Obstacle::WaitsForSystem { version } => ("Unknown", format!("waits for system {version}")),
        Obstacle::BadSystem { version, reason, is_final } => {
            let status = if *is_final { "False" } else { "Unknown" };
            (status, format!("system {version} failed here: {reason}"))
        }
    }
}

/// `status.config`, as of now. Its error adds to the condition's text the field and place.
pub(crate) fn config_status(view: &View) -> NodeConfigStatus {
    let assigned = match view.disk.assigned() {
        AssignedNow::Config(config, _) => Some(source(view, &config)),
        _ => None,
    };
    let (status, reason) = status_and_reason(view);
    let error = match (view.sync, view.standing.obstacle()) {
        _ if status == "True" => String::new(),
        (None, Some(Obstacle::Marked { verdict, .. })) if !verdict.detail.is_empty() => {
            format!("{reason}: {}", verdict.detail)
        }
        _ => reason,
    };
    NodeConfigStatus {
        assigned,
        active: view.in_use.config.as_ref().map(|(config, _)| source(view, config)),
        last_known_good: view.disk.fallback().map(|config| source(view, config)),
        error,
    }
}

/// The object as recorded, with its version as last read, because a version with the same payload is not
/// recorded.
fn source(view: &View, config: &ConfigRecord) -> NodeConfigSource {
    let (namespace, name) = config.source.object();
    let is_assigned = matches!(view.disk.assigned(), AssignedNow::Config(assigned, _)
        if assigned.uid == config.uid && assigned.digest == config.digest);
    let latest = view.latest.filter(|_| is_assigned);
    NodeConfigSource {
        config_map: Some(ConfigMapNodeConfigSource {
            namespace: namespace.into(),
            name: name.into(),
            uid: config.uid.clone(),
            resource_version: latest.unwrap_or(&config.resource_version).to_owned(),
            kubelet_config_key: config.source.key().into(),
        }),
    }
}
