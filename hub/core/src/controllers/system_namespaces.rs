//! Creates the namespaces that the hub needs and upstream's own priority classes, if one is missing: a start
//! creates them before it serves, unless the disk accepts no writes.
//!
//! Inputs: none; a sweep a minute, and soon after a refusal. Outputs: Namespace, PriorityClass. As upstream's
//! system-namespaces controller and the start of its API server. Left to others: refusing their deletion
//! (`requests::delete`), their accounts (`service_accounts`).

use std::time::Duration;

use serde_json::json;

use super::controller::{Action, Controller, Decision, Done, Level, Line, Now, RETRY, Task, World};
use crate::api_error::ApiError;
use crate::kinds::namespace::SYSTEM;
use crate::kinds::priority_class::{of_system, system_classes};
use crate::kinds::{Kind, NAMESPACE, PRIORITY_CLASS};
use crate::object::Event;

static OUTPUTS: &[&Kind] = &[&NAMESPACE, &PRIORITY_CLASS];

/// See the module.
#[derive(Debug, Default)]
pub struct SystemNamespaces {
    is_due: bool,
    /// The last refusal, which is logged once.
    refused: Option<String>,
    log: Vec<Line>,
}

impl Controller for SystemNamespaces {
    /// The name of the namespace or class.
    type Purpose = &'static str;
    const NAME: &'static str = "system_namespaces";
    /// Upstream's period.
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        &[]
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, _: &Event) {}

    fn sweep(&mut self, _: &dyn World) {
        self.is_due = true;
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<&'static str> {
        if !std::mem::take(&mut self.is_due) && self.refused.is_none() {
            return Decision::default();
        }
        let missing = SYSTEM.into_iter().filter(|name| world.get(&NAMESPACE, "", name).is_none());
        let tasks = missing.map(|name| {
            let value = json!({"metadata": {"name": name}});
            Task { purpose: name, action: Action::create(&NAMESPACE, value) }
        });
        let classes = system_classes().filter(|(name, _)| world.get(&PRIORITY_CLASS, "", name).is_none());
        let classes = classes
            .map(|(name, class)| Task { purpose: name, action: Action::create(&PRIORITY_CLASS, class) });
        let tasks: Vec<_> = tasks.chain(classes).collect();
        if tasks.is_empty() {
            self.refused = None;
        }
        let next = (!tasks.is_empty()).then(|| now.running + RETRY);
        Decision { tasks, next, ..Decision::default() }
    }

    fn performed(
        &mut self,
        name: &'static str,
        outcome: Result<Done, ApiError>,
        _: Now,
    ) -> Vec<Task<&'static str>> {
        match outcome {
            Ok(_) => self.log.push((Level::Info, format!("made the missing {} {name}", sort(name)))),
            // another client made it
            Err(error) if error.code == 409 => {}
            Err(error) if self.refused.as_ref() == Some(&error.message) => {}
            Err(error) => {
                let line = format!("cannot make the {} {name}: {error}; trying again", sort(name));
                self.log.push((Level::Warning, line));
                self.refused = Some(error.message);
            }
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

fn sort(name: &str) -> &'static str {
    if of_system(name).is_some() { "priority class" } else { "namespace" }
}
