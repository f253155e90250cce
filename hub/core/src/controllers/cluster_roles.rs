//! Gives aggregated ClusterRoles the rules of the roles that they select, and completes the default roles and
//! bindings once after each start.
//!
//! Inputs: ClusterRole. Outputs: ClusterRole, ClusterRoleBinding. As upstream: an aggregated role has exactly
//! the rules of the others, so rules that somebody writes into it are removed again; a default role keeps
//! rules that somebody added. Left to others: the rules themselves (`identity::default_roles`).

use std::time::Duration;

use serde_json::Value;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::identity::default_roles::{aggregated, cluster_role_bindings, cluster_roles, complete};
use crate::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, Kind};
use crate::object::Event;
use crate::value::text;

static INPUTS: &[&Kind] = &[&CLUSTER_ROLE];
static OUTPUTS: &[&Kind] = &[&CLUSTER_ROLE, &CLUSTER_ROLE_BINDING];

/// See the module.
#[derive(Debug, Default)]
pub struct ClusterRoles {
    /// The defaults were completed since the start.
    completed: bool,
    /// A role has changed since the last step.
    changed: bool,
    log: Vec<Line>,
}

impl Controller for ClusterRoles {
    /// The name of the role or binding.
    type Purpose = String;
    const NAME: &'static str = "cluster_roles";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, _: &Event) {
        self.changed = true;
    }

    fn sweep(&mut self, _: &dyn World) {
        self.changed = true;
    }

    fn reconcile(&mut self, world: &dyn World, _: Now) -> Decision<String> {
        if !std::mem::take(&mut self.changed) {
            return Decision::default();
        }
        let mut tasks = Vec::new();
        if !std::mem::replace(&mut self.completed, true) {
            let defaults =
                [(&CLUSTER_ROLE, cluster_roles()), (&CLUSTER_ROLE_BINDING, cluster_role_bindings())];
            for (kind, wanted) in defaults {
                tasks.extend(wanted.into_iter().filter_map(|wanted| completion(world, kind, wanted)));
            }
        }
        // in the order of their names
        let all: Vec<Value> = world.list(&CLUSTER_ROLE, "").iter().map(|role| role.value()).collect();
        for role in &all {
            let Some(rules) = aggregated(role, &all).filter(|rules| !is_same(&role["rules"], rules)) else {
                continue;
            };
            let rule = role["aggregationRule"].clone();
            let edit: Edit = Box::new(move |role, _| {
                let applies = role["aggregationRule"] == rule;
                if applies {
                    role["rules"] = rules.clone();
                }
                applies
            });
            tasks.push(update(&CLUSTER_ROLE, role, edit));
        }
        Decision { tasks, ..Decision::default() }
    }

    fn performed(&mut self, name: String, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<String>> {
        if let Err(error) = outcome
            && !matches!(error.code, 404 | 409)
        {
            // the next sweep tries again
            self.completed = false;
            let line = format!("cannot write {name}: {error}; trying again within a minute");
            self.log.push((Level::Warning, line));
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

/// Whether these are the same rules; absent ones are none.
fn is_same(found: &Value, wanted: &Value) -> bool {
    found == wanted || (found.is_null() && wanted.as_array().is_some_and(Vec::is_empty))
}

/// Creates a missing default, or adds what it lacks.
fn completion(world: &dyn World, kind: &'static Kind, wanted: Value) -> Option<Task<String>> {
    let name = text(&wanted, &["metadata", "name"]).to_owned();
    let Some(found) = world.get(kind, "", &name) else {
        return Some(Task { purpose: name, action: Action::create(kind, wanted) });
    };
    let stored = found.value();
    if !complete(&mut stored.clone(), &wanted) {
        return None;
    }
    let edit: Edit = Box::new(move |value, _| complete(value, &wanted));
    Some(update(kind, &stored, edit))
}

fn update(kind: &'static Kind, object: &Value, edit: Edit) -> Task<String> {
    let name = text(object, &["metadata", "name"]).to_owned();
    let action =
        Action::Update { kind, namespace: String::new(), name: name.clone(), edit, requires: Vec::new() };
    Task { purpose: name, action }
}
