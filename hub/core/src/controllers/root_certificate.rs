//! Keeps a ConfigMap `kube-root-ca.crt` with the hub's CA in every namespace: clients in pods verify the API
//! server by it.
//!
//! Inputs: Namespace, ConfigMap of that name. Outputs: ConfigMap. A deleted one is created again and a
//! changed one repaired, as by upstream's root-ca-certificate-publisher; a terminating namespace gets none.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::{CONFIG_MAP, Kind, NAMESPACE};
use crate::object::Event;
use crate::value::text;

static INPUTS: &[&Kind] = &[&NAMESPACE, &CONFIG_MAP];
static OUTPUTS: &[&Kind] = &[&CONFIG_MAP];

/// The ConfigMap's name in every namespace.
pub const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";

/// See the module.
#[derive(Debug)]
pub struct RootCertificate {
    certificate: String,
    /// Namespaces to check.
    queue: BTreeSet<String>,
    log: Vec<Line>,
}

impl RootCertificate {
    /// `certificate`: PEM.
    pub fn new(certificate: String) -> RootCertificate {
        RootCertificate { certificate, queue: BTreeSet::new(), log: Vec::new() }
    }
}

/// The ConfigMap of a namespace.
pub fn config_map(namespace: &str, certificate: &str) -> Value {
    let mut value = json!({"metadata": {"name": NAME, "namespace": namespace}});
    complete(&mut value, certificate);
    value
}

fn complete(value: &mut Value, certificate: &str) {
    value["data"] = json!({KEY: certificate});
    if let Some(fields) = value.as_object_mut() {
        fields.remove("binaryData");
    }
    if text(value, &["metadata", "annotations", DESCRIPTION]).is_empty() {
        // upstream's text, cut to what is true here
        value["metadata"]["annotations"][DESCRIPTION] =
            "Contains a CA bundle that can be used to verify the API server.".into();
    }
}

impl Controller for RootCertificate {
    /// The namespace.
    type Purpose = String;
    const NAME: &'static str = "root_certificate";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(30));

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        match kind.kind == NAMESPACE.kind {
            true => event.old.is_none(),
            false => &*event.object().name == NAME,
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        let namespace = if kind.namespaced { &object.namespace } else { &object.name };
        self.queue.insert(namespace.to_string());
    }

    fn sweep(&mut self, world: &dyn World) {
        self.queue.extend(world.list(&NAMESPACE, "").iter().map(|found| found.name.to_string()));
    }

    fn reconcile(&mut self, world: &dyn World, _: Now) -> Decision<String> {
        let mut tasks = Vec::new();
        for namespace in std::mem::take(&mut self.queue) {
            if world.get(&NAMESPACE, "", &namespace).is_none_or(|found| found.terminating) {
                continue;
            }
            let action = match world.get(&CONFIG_MAP, &namespace, NAME).map(|found| found.value()) {
                None => Action::create(&CONFIG_MAP, config_map(&namespace, &self.certificate)),
                Some(found) => {
                    let mut whole = found.clone();
                    complete(&mut whole, &self.certificate);
                    if whole == found {
                        continue;
                    }
                    let certificate = self.certificate.clone();
                    let edit: Edit = Box::new(move |value, _| {
                        complete(value, &certificate);
                        true
                    });
                    let name = NAME.to_owned();
                    Action::Update {
                        kind: &CONFIG_MAP,
                        namespace: namespace.clone(),
                        name,
                        edit,
                        requires: Vec::new(),
                    }
                }
            };
            tasks.push(Task { purpose: namespace, action });
        }
        Decision { tasks, ..Decision::default() }
    }

    fn performed(&mut self, namespace: String, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<String>> {
        match outcome {
            // another client created it, or the namespace is terminating
            Err(error) if !matches!(error.code, 403 | 404 | 409) => {
                let line = format!("cannot write {NAME} of namespace {namespace}: {error}; trying again");
                self.log.push((Level::Warning, line));
            }
            _ => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}
