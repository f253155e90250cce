//! Writes the status of PodDisruptionBudgets.
//!
//! Inputs: PodDisruptionBudget, Pod. Outputs: PodDisruptionBudget. Always holds: nothing is decided by this
//! status: an eviction counts the pods itself, by the same arithmetic (`disruption`). A step reads all pods
//! of a namespace, so after one with many pods the next comes later.

use std::collections::BTreeSet;
use std::time::Duration;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::disruption::Standing;
use crate::kinds::{DISRUPTION_BUDGET, Kind, POD};
use crate::object::Event;

static INPUTS: &[&Kind] = &[&DISRUPTION_BUDGET, &POD];
static OUTPUTS: &[&Kind] = &[&DISRUPTION_BUDGET];
/// Least time between two steps: a rollout changes many pods.
const PACE: Duration = Duration::from_millis(500);
/// What each pod adds to it, several times what its reading takes.
const PACE_OF_A_POD: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Disruptions {
    /// Namespaces with changes since the last step.
    changed: BTreeSet<Box<str>>,
    /// No step before.
    rests_until: Duration,
    log: Vec<Line>,
}

impl Controller for Disruptions {
    /// Namespace and name of the budget.
    type Purpose = String;
    const NAME: &'static str = "disruptions";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, event: &Event) {
        let namespace = &event.object().namespace;
        if !self.changed.contains(namespace) {
            self.changed.insert(namespace.clone());
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        let budgets = world.list(&DISRUPTION_BUDGET, "");
        self.changed.extend(budgets.iter().map(|budget| budget.namespace.clone()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<String> {
        if self.changed.is_empty() {
            return Decision::default();
        }
        if now.running < self.rests_until {
            return Decision { next: Some(self.rests_until), ..Decision::default() };
        }
        let (mut tasks, mut read) = (Vec::new(), 0_u32);
        for namespace in std::mem::take(&mut self.changed) {
            let budgets = world.list(&DISRUPTION_BUDGET, &namespace);
            if budgets.is_empty() {
                continue;
            }
            let pods = world.list(&POD, &namespace);
            for found in budgets {
                read = read.saturating_add(u32::try_from(pods.len()).unwrap_or(u32::MAX));
                let stored = found.value();
                let standing = Standing::of(&stored, &pods);
                let mut written = stored.clone();
                standing.write(&mut written, "");
                if written == stored {
                    continue;
                }
                let generation = stored["metadata"]["generation"].clone();
                let edit: Edit = Box::new(move |value, now| {
                    let applies = value["metadata"]["generation"] == generation;
                    if applies {
                        standing.write(value, now);
                    }
                    applies
                });
                let (namespace, name) = (found.namespace.to_string(), found.name.to_string());
                let purpose = format!("{namespace}/{name}");
                let action =
                    Action::Update { kind: &DISRUPTION_BUDGET, namespace, name, edit, requires: Vec::new() };
                tasks.push(Task { purpose, action });
            }
        }
        self.rests_until =
            now.running.saturating_add(PACE).saturating_add(PACE_OF_A_POD.saturating_mul(read));
        Decision { tasks, ..Decision::default() }
    }

    fn performed(&mut self, name: String, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<String>> {
        if let Err(error) = outcome
            && !matches!(error.code, 404 | 409)
        {
            let line = format!(
                "cannot write the status of disruption budget {name}: {error}; trying again within a minute"
            );
            self.log.push((Level::Warning, line));
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}
