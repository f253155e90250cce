//! The progress of a rollout, node by node, for people: `kedge-hub rollout cro/NAME`.
//!
//! Always holds: it reads the stored objects and decides nothing; facts that depend on the controller's clock
//! (not promoted in time, a soak) are in the stored status. Leaves to others: the table (`kedge-hub`).

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::super::controller::World;
use super::history;
use super::node::{Assigned, Facts};
use super::settings::Settings;
use crate::kinds::config_rollout::UNDO;
use crate::kinds::{CONFIG_ROLLOUT, NODE};
use crate::value::{condition, text};

/// The rollout: its `state` (the phase in small letters), counts, and `nodes`, each with `node`, `revision`
/// (its number), `state` (waits, tries, runs, failed, away, left out) and `why`. `None` if it does not exist.
pub fn view(world: &dyn World, name: &str, wall: OffsetDateTime) -> Option<Value> {
    let rollout = world.get(&CONFIG_ROLLOUT, "", name)?.value();
    let (settings, status) = (Settings::read(&rollout), &rollout["status"]);
    let revisions = history::read(status);
    let update = text(status, &["updateRevision"]);
    // an undo that was asked for is not in the status yet
    let is_undone = !text(&rollout, &["metadata", "annotations", UNDO]).is_empty();
    let is_observed = rollout["metadata"]["generation"] == status["observedGeneration"] && !is_undone;
    let phase = if is_observed { text(status, &["phase"]).to_lowercase() } else { String::new() };
    let reason = ["Stopped", "Progressing"].into_iter().find_map(|sort| {
        let found = condition(status, sort).filter(|found| sort != "Stopped" || found["status"] == "True")?;
        Some(text(found, &["message"])).filter(|message| !message.is_empty())
    });
    let number = |name: &str| revisions.iter().find(|one| one.name == name).map(|one| one.number);
    let nodes: Vec<Facts> = world.list(&NODE, "").iter().map(|object| Facts::read(object)).collect();
    let rows = nodes.iter().filter(|facts| settings.selects(facts.node.labels())).map(|facts| {
        let (state, why) = row(facts, name, update, &settings, &phase, wall);
        let revision = facts.revision_of(name).and_then(number);
        json!({"node": facts.node.name, "revision": revision, "state": state, "why": why})
    });
    let rows: Vec<Value> = rows.collect();
    let count = |field: &str| status["nodes"][field].as_i64().unwrap_or(0);
    Some(json!({
        "namespace": "cro", "name": name, "revision": if is_undone { "" } else { update },
        "state": if phase.is_empty() || phase == "progressing" { "under way" } else { &phase },
        "message": if is_observed { reason.unwrap_or_default() } else { "" },
        "desired": count("selected"), "updated": count("updated"), "available": count("updated"),
        "failed": count("failed"), "nodes": rows,
    }))
}

fn row(
    facts: &Facts,
    rollout: &str,
    update: &str,
    settings: &Settings,
    phase: &str,
    wall: OffsetDateTime,
) -> (&'static str, String) {
    let is_its = matches!(&facts.assigned, Assigned::Rollout(by, _) if **by == *rollout);
    match &facts.assigned {
        _ if facts.is_set_aside => return ("left out", "set aside by its annotation".to_owned()),
        Assigned::ByHand => return ("left out", "somebody assigned its configuration by hand".to_owned()),
        Assigned::Rollout(by, _) if !is_its => {
            return ("left out", format!("ConfigRollout {by} assigned its configuration"));
        }
        _ => {}
    }
    if facts.revision_of(rollout) == Some(update) {
        let is_promoted = *facts.promoted == *update;
        return match facts.complaint(update) {
            _ if facts.node.is_lost && !is_promoted => ("failed", "node lost".to_owned()),
            Some(why) => ("failed", why),
            None if is_promoted => ("runs", String::new()),
            None => ("tries", "assigned, not promoted yet".to_owned()),
        };
    }
    if facts.node.is_lost {
        return ("away", "the node is lost".to_owned());
    }
    if let Some(least) = &settings.least_version
        && (least.is_none() || facts.version < *least)
    {
        return ("left out", "its version is older than minKubeletVersion".to_owned());
    }
    if !facts.node.windows(wall).is_open {
        return ("waits", facts.node.windows_shown());
    }
    let why = match phase {
        "stopped" => "the rollout is stopped",
        "paused" => "the rollout is paused",
        _ => "waits for its turn",
    };
    ("waits", why.to_owned())
}
