//! Keeps a ServiceAccount named `default` in every namespace: pods without an account use it.
//!
//! Inputs: Namespace, ServiceAccount. Outputs: ServiceAccount. A deleted one is created again, as upstream
//! does; a terminating namespace gets none.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use super::controller::{Action, Controller, Decision, Done, Level, Line, Now, RETRY, Task, World};
use crate::api_error::ApiError;
use crate::kinds::{Kind, NAMESPACE, SERVICE_ACCOUNT};
use crate::object::Event;

static INPUTS: &[&Kind] = &[&NAMESPACE, &SERVICE_ACCOUNT];
static OUTPUTS: &[&Kind] = &[&SERVICE_ACCOUNT];

/// The account's name in every namespace.
pub const NAME: &str = "default";

/// See the module.
#[derive(Debug, Default)]
pub struct ServiceAccounts {
    /// Namespaces to check.
    queue: BTreeSet<String>,
    /// Namespaces whose account was refused: tried again with each step.
    refused: BTreeSet<String>,
    log: Vec<Line>,
}

impl Controller for ServiceAccounts {
    /// The namespace.
    type Purpose = String;
    const NAME: &'static str = "service_accounts";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        if kind.kind == NAMESPACE.kind && event.old.is_none() {
            self.queue.insert(object.name.to_string());
        } else if kind.kind == SERVICE_ACCOUNT.kind && event.new.is_none() && &*object.name == NAME {
            self.queue.insert(object.namespace.to_string());
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        self.queue.extend(world.list(&NAMESPACE, "").iter().map(|found| found.name.to_string()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<String> {
        let is_missing = |namespace: &String| {
            let wanted = world.get(&NAMESPACE, "", namespace).is_some_and(|found| !found.terminating);
            wanted && world.get(&SERVICE_ACCOUNT, namespace, NAME).is_none()
        };
        let mut queue = std::mem::take(&mut self.queue);
        queue.extend(self.refused.iter().cloned());
        self.refused.retain(&is_missing);
        let tasks = queue.into_iter().filter(is_missing).map(|namespace| {
            let value = json!({"metadata": {"name": NAME, "namespace": namespace}});
            Task { purpose: namespace, action: Action::create(&SERVICE_ACCOUNT, value) }
        });
        let tasks: Vec<_> = tasks.collect();
        let next = (!tasks.is_empty()).then(|| now.running + RETRY);
        Decision { tasks, next, ..Decision::default() }
    }

    fn performed(&mut self, namespace: String, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<String>> {
        // with these codes another client created it, or the namespace is terminating
        if let Err(error) = outcome
            && !matches!(error.code, 403 | 404 | 409)
            && self.refused.insert(namespace.clone())
        {
            let line = format!(
                "cannot make the service account {NAME} of namespace {namespace}: {error}; trying again"
            );
            self.log.push((Level::Warning, line));
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}
