//! The controllers, which act without a client's request: one file each.
//!
//! Each is a [`Controller`]: inputs and outputs at its top, a pure `reconcile` below. Left to others: the runner (`kedge-hub`).

pub mod certificates;
mod controller;
pub mod garbage;
pub mod nodes;
pub mod service_accounts;

pub use controller::{
    Action, Controller, Decision, Done, Edit, Guarded, Level, Line, Now, Signing, Task, World,
};

/// Controllers on the state alone: every task is decided as a request and committed at once, on one thread.
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};
    use time::macros::datetime;

    use super::*;
    use crate::api_error::ApiError;
    use crate::kinds::{CONFIG_MAP, KINDS, Kind, NAMESPACE, SERVICE_ACCOUNT};
    use crate::object::Event;
    use crate::requests::{
        self, Decision as Decided, DeleteOptions, Fresh, Part, Place, Propagation, WriteOptions,
    };
    use crate::state::{Batch, Index, Leases, Order, Restored, Sink, Spaces, restore};

    struct NoSink;

    impl Sink for NoSink {
        fn take(&self, _: &Arc<Event>) -> bool {
            true
        }
    }

    struct Hub {
        index: Index<NoSink>,
        leases: Leases<NoSink>,
        order: Order,
        random: u8,
    }

    impl Hub {
        fn new() -> Hub {
            let Restored { index, leases, order, .. } = restore(Spaces::default(), Vec::new()).unwrap();
            Hub { index, leases, order, random: 0 }
        }

        fn fresh(&mut self) -> Fresh {
            self.random += 1;
            Fresh { now: datetime!(2026-11-21 12:00:00 UTC), random: [self.random; 21] }
        }

        /// Makes a decision durable and visible.
        fn settle(
            &mut self,
            decided: Result<Decided, ApiError>,
        ) -> Result<Vec<(&'static Kind, Arc<Event>)>, ApiError> {
            let Decided::Write(write, _) = decided? else { return Ok(Vec::new()) };
            let mut batch = Batch::default();
            self.order.stage(&self.index, &mut batch, write).unwrap();
            let commit = self.order.commit(&self.leases, batch, 0).unwrap();
            let changes = self.order.committed(&mut self.leases, commit);
            let events = changes.iter().map(|changed| (changed.kind, changed.event.clone())).collect();
            self.index.publish(changes);
            Ok(events)
        }

        fn create(&mut self, kind: &'static Kind, value: Value) -> String {
            let fresh = self.fresh();
            let namespace = crate::value::text(&value, &["metadata", "namespace"]).to_owned();
            let options = WriteOptions::internal();
            let decided = requests::create(&self.index, kind, &namespace, value, &options, &fresh);
            self.settle(decided).unwrap()[0].1.object().uid.to_string()
        }

        fn delete(&mut self, kind: &'static Kind, namespace: &str, name: &str, propagation: Propagation) {
            let fresh = self.fresh();
            let options = DeleteOptions { propagation, ..DeleteOptions::default() };
            let place = Place { kind, namespace, name };
            let decided =
                requests::delete(&self.index, &place, &options, &WriteOptions::internal(), fresh.now);
            self.settle(decided).unwrap();
        }

        fn perform(&mut self, action: Action) -> Result<Vec<(&'static Kind, Arc<Event>)>, ApiError> {
            let (fresh, options) = (self.fresh(), WriteOptions::internal());
            let decided = match action {
                Action::Create { kind, value } => {
                    let namespace = crate::value::text(&value, &["metadata", "namespace"]).to_owned();
                    requests::create(&self.index, kind, &namespace, value, &options, &fresh)
                }
                Action::Update { kind, namespace, name, mut edit } => {
                    let place = Place { kind, namespace: &namespace, name: &name };
                    requests::edit(&self.index, &place, Part::All, &options, &fresh, |_, mut value| {
                        edit(&mut value, "2026-11-21T12:00:00Z");
                        Ok(value)
                    })
                }
                Action::Delete { kind, namespace, name, options: asked } => {
                    let place = Place { kind, namespace: &namespace, name: &name };
                    requests::delete(&self.index, &place, &asked, &options, fresh.now)
                }
                Action::FinalizeNamespace { name } => requests::finalize_namespace(&self.index, &name),
                Action::Sign(_) => panic!("no certificates here"),
            };
            self.settle(decided)
        }

        /// Runs a controller until it has nothing left to do.
        fn run<C: Controller>(&mut self, controller: &mut C) {
            let now = Now { running: Duration::ZERO, wall: self.fresh().now, stalled: Duration::ZERO };
            controller.sweep(&self.index);
            for _ in 0..1000 {
                let decision = controller.reconcile(&self.index, now);
                if decision.tasks.is_empty() && !decision.more {
                    return;
                }
                for Task { purpose, action } in decision.tasks {
                    let outcome = self.perform(action);
                    for (kind, event) in outcome.iter().flatten() {
                        if C::inputs().iter().any(|input| input.kind == kind.kind) && C::concerns(kind, event)
                        {
                            controller.observe(kind, event);
                        }
                    }
                    controller.performed(purpose, outcome.map(|_| Done::Gone), now);
                }
            }
            panic!("{} does not come to rest", C::NAME);
        }

        fn names(&self, kind: &'static Kind) -> Vec<String> {
            let objects = World::list(&self.index, kind, "");
            objects.iter().map(|object| format!("{}/{}", object.namespace, object.name)).collect()
        }
    }

    fn map(name: &str, owner: Option<&str>) -> Value {
        let mut value = json!({"metadata": {"namespace": "n", "name": name}});
        if let Some(uid) = owner {
            value["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": true}]);
        }
        value
    }

    #[test]
    fn each_propagation_leads_to_its_end() {
        let check = |propagation, expect: &[&str]| {
            let mut hub = Hub::new();
            hub.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
            let uid = hub.create(&CONFIG_MAP, map("owner", None));
            hub.create(&CONFIG_MAP, map("first", Some(&uid)));
            hub.create(&CONFIG_MAP, map("second", Some(&uid)));
            hub.create(&CONFIG_MAP, map("other", None));
            hub.delete(&CONFIG_MAP, "n", "owner", propagation);
            hub.run(&mut garbage::Garbage::default());
            assert_eq!(hub.names(&CONFIG_MAP), expect, "{propagation:?}");
        };
        check(Propagation::Background, &["n/other"]);
        check(Propagation::Foreground, &["n/other"]);
        check(Propagation::Orphan, &["n/first", "n/other", "n/second"]);
    }

    #[test]
    fn deleted_namespace_is_emptied_and_removed() {
        let mut hub = Hub::new();
        for name in ["n", "kept"] {
            hub.create(&NAMESPACE, json!({"metadata": {"name": name}}));
        }
        let mut accounts = service_accounts::ServiceAccounts::default();
        hub.run(&mut accounts);
        assert_eq!(hub.names(&SERVICE_ACCOUNT), ["kept/default", "n/default"]);
        hub.create(&CONFIG_MAP, map("a", None));
        hub.delete(&NAMESPACE, "", "n", Propagation::Unset);
        hub.run(&mut garbage::Garbage::default());
        hub.run(&mut accounts);
        let left: usize = KINDS.iter().map(|kind| hub.names(kind).len()).sum();
        assert_eq!((left, hub.names(&SERVICE_ACCOUNT)), (2, vec!["kept/default".to_owned()]));
    }
}
