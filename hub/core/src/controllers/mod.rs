//! The controllers, which act without a client's request: one file each.
//!
//! Each is a [`Controller`]: inputs and outputs at its top, a pure `reconcile` below. Left to others: the
//! runner (`kedge-hub`).

mod approved;
pub mod approving;
pub mod bootstrap_tokens;
pub mod certificates;
mod clock;
pub mod cluster_roles;
pub mod config_rollouts;
mod controller;
pub mod daemon_sets;
pub mod disruptions;
pub mod events;
pub mod garbage;
pub mod namespaces;
pub mod nodes;
mod placing;
pub mod pods;
mod record;
mod rolling;
pub mod root_certificate;
pub mod scheduler;
pub mod service_accounts;
pub mod system_namespaces;
pub mod taint_eviction;
pub mod trust;

pub use clock::{Clock, ClockFault};
pub use controller::{
    Action, Controller, Decision, Done, Edit, Guarded, Level, Line, Now, Signing, Task, World,
};

/// Runs controllers on the state alone: every task is decided as a request and committed at once, on one
/// thread.
#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};
    use time::OffsetDateTime;
    use time::macros::datetime;

    use super::*;
    use crate::api_error::ApiError;
    use crate::kinds::{CONFIG_MAP, KINDS, Kind, NAMESPACE, NODE, POD, SERVICE_ACCOUNT};
    use crate::object::{Event, Object};
    use crate::requests::{
        self, Decision as Decided, DeleteOptions, Fresh, Part, Place, Propagation, WriteOptions,
    };
    use crate::selector::Selection;
    use crate::state::{Batch, Index, Leases, Order, Require, Restored, Seen, Sink, Spaces, Write, restore};
    use kedge_rig::Random;

    mod approving;
    mod bootstrap_tokens;
    mod cluster_roles;
    mod config_fleet;
    mod config_rollouts;
    mod daemon_sets;
    mod design_document;
    mod drain;
    mod hostile;
    mod maintenance;
    mod numbers;
    mod pull_ahead;
    mod rollouts;
    mod scheduler;
    mod soak;
    mod taint_eviction;

    struct NoSink;

    /// A step of another client.
    type Step<'a> = &'a dyn Fn(&mut Hub);

    impl Sink for NoSink {
        fn queue(&self, _: &Arc<Event>, _: Seen) -> bool {
            true
        }
    }

    struct Hub {
        index: Index<NoSink>,
        leases: Leases<NoSink>,
        order: Order,
        random: u64,
        /// Staged writes that are not visible yet.
        batch: Batch,
        /// Changes that the controller hears of later; `None`: it reads everything before it acts.
        changes: Option<Vec<(&'static Kind, Arc<Event>)>>,
        /// The controllers' clock on the wall: a Saturday.
        wall: OffsetDateTime,
    }

    impl Hub {
        fn new() -> Hub {
            let Restored { index, leases, order, .. } = restore(Spaces::default(), Vec::new()).unwrap();
            Hub {
                index,
                leases,
                order,
                random: 0,
                batch: Batch::default(),
                changes: None,
                wall: datetime!(2026-11-21 12:00:00 UTC),
            }
        }

        fn fresh(&mut self) -> Fresh {
            self.random += 1;
            let mut random = [0; 21];
            random[..8].copy_from_slice(&self.random.to_le_bytes());
            Fresh { now: datetime!(2026-11-21 12:00:00 UTC), random }
        }

        /// Makes the staged writes durable and visible.
        fn publish(&mut self) -> Vec<(&'static Kind, Arc<Event>)> {
            let batch = std::mem::take(&mut self.batch);
            let Some(commit) = self.order.commit(&self.leases, batch, 0) else { return Vec::new() };
            let changes = self.order.committed(&mut self.leases, commit);
            let events: Vec<_> =
                changes.iter().map(|changed| (changed.kind, changed.event.clone())).collect();
            self.index.publish(changes);
            if let Some(changes) = &mut self.changes {
                changes.extend(events.iter().cloned());
            }
            events
        }

        fn stage(&mut self, write: Write) -> Result<(), ApiError> {
            let refused = |error| ApiError::internal(format!("{error:?}"));
            self.order.stage(&self.index, &mut self.batch, write).map(|_| ()).map_err(refused)
        }

        /// Makes a decision durable and visible.
        fn settle(
            &mut self,
            decided: Result<Decided, ApiError>,
        ) -> Result<Vec<(&'static Kind, Arc<Event>)>, ApiError> {
            let Decided::Write(write, _) = decided? else { return Ok(Vec::new()) };
            self.stage(write)?;
            Ok(self.publish())
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
                Action::Create { kind, value, requires } => {
                    let namespace = crate::value::text(&value, &["metadata", "namespace"]).to_owned();
                    let options = WriteOptions { requires: &requires, ..options };
                    requests::create(&self.index, kind, &namespace, value, &options, &fresh)
                }
                Action::Update { kind, namespace, name, edit, requires } => {
                    let place = Place { kind, namespace: &namespace, name: &name };
                    return self.update(&place, Part::All, edit, &requires, &fresh);
                }
                Action::Bind { namespace, name, edit, requires } => {
                    let place = Place { kind: &POD, namespace: &namespace, name: &name };
                    return self.update(&place, Part::Binding, edit, &requires, &fresh);
                }
                Action::Delete { kind, namespace, name, options: asked, requires } => {
                    let place = Place { kind, namespace: &namespace, name: &name };
                    let options = WriteOptions { requires: &requires, ..WriteOptions::internal() };
                    requests::delete(&self.index, &place, &asked, &options, fresh.now)
                }
                Action::FinalizeNamespace { name, uid } => {
                    requests::finalize_namespace(&self.index, &name, &uid)
                }
                Action::Sign(_) => panic!("no certificates here"),
            };
            self.settle(decided)
        }

        fn update(
            &mut self,
            place: &Place<'_>,
            part: Part,
            mut edit: Edit,
            requires: &[Require],
            fresh: &Fresh,
        ) -> Result<Vec<(&'static Kind, Arc<Event>)>, ApiError> {
            if !self.are_unchanged(requires) {
                return Ok(Vec::new());
            }
            let options = WriteOptions::internal();
            let decided = requests::edit(&self.index, place, part, &options, fresh, |_, mut value| {
                edit(&mut value, "2026-11-21T12:00:00Z");
                Ok(value)
            });
            self.settle(decided)
        }

        fn are_unchanged(&self, requires: &[Require]) -> bool {
            requires.iter().all(|require| match require {
                Require::Unchanged { kind, namespace, name, revision } => {
                    self.index.get(kind, namespace, name).map(|found| found.revision) == *revision
                }
                other => panic!("{other:?} is not for controllers"),
            })
        }

        fn now(&mut self, second: u64) -> Now {
            Now {
                running: Duration::from_secs(second),
                wall: self.wall,
                ages: true,
                right: true,
                stalled: Duration::ZERO,
                disk_stalled: Duration::ZERO,
                disk_stalls: false,
            }
        }

        /// Performs one task; returns those that follow.
        fn act<C: Controller>(
            &mut self,
            controller: &mut C,
            task: Task<C::Purpose>,
            now: Now,
        ) -> Vec<Task<C::Purpose>> {
            let outcome = self.perform(task.action);
            // otherwise it hears of its own changes later, with the others
            for (kind, event) in outcome.iter().flatten().filter(|_| self.changes.is_none()) {
                tell_one(controller, kind, event);
            }
            let stored = |events: Vec<(&'static Kind, Arc<Event>)>| match events.into_iter().next() {
                Some((_, event)) if event.new.is_some() => Done::Stored(event.object().clone(), true),
                _ => Done::Gone,
            };
            controller.performed(task.purpose, outcome.map(stored), now)
        }

        /// Passes a controller the changes, or has it read everything.
        fn tell<C: Controller>(&mut self, controller: &mut C) {
            match &mut self.changes {
                Some(changes) => {
                    changes.drain(..).for_each(|(kind, event)| tell_one(controller, kind, &event))
                }
                None => controller.sweep(&self.index),
            }
        }

        /// Passes it the changes of one kind before the others: each kind has a subscription of its own.
        fn tell_of<C: Controller>(&mut self, controller: &mut C, kind: &'static Kind) {
            let Some(changes) = &mut self.changes else { return };
            for (kind, event) in changes.extract_if(.., |(one, _)| one.kind == kind.kind) {
                tell_one(controller, kind, &event);
            }
        }

        /// Runs a controller until it has nothing left to do.
        fn run<C: Controller>(&mut self, controller: &mut C) {
            self.run_at(controller, 0);
        }

        fn run_at<C: Controller>(&mut self, controller: &mut C, second: u64) {
            let now = self.now(second);
            self.tell(controller);
            for _ in 0..1000 {
                let decision = controller.reconcile(&self.index, now);
                if decision.tasks.is_empty() && !decision.more {
                    return;
                }
                let mut tasks = std::collections::VecDeque::from(decision.tasks);
                while let Some(task) = tasks.pop_front() {
                    tasks.extend(self.act(controller, task, now));
                }
                if self.changes.is_some() {
                    self.tell(controller);
                }
            }
            panic!("{} does not come to rest", C::NAME);
        }

        fn names(&self, kind: &'static Kind) -> Vec<String> {
            let objects = World::list(&self.index, kind, "");
            objects.iter().map(|object| format!("{}/{}", object.namespace, object.name)).collect()
        }
    }

    fn tell_one<C: Controller>(controller: &mut C, kind: &'static Kind, event: &Event) {
        if C::inputs().iter().any(|input| input.kind == kind.kind) && C::concerns(kind, event) {
            controller.observe(kind, event);
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
        hub.run(&mut namespaces::Namespaces::default());
        hub.run(&mut accounts);
        let left: usize = KINDS.iter().map(|kind| hub.names(kind).len()).sum();
        assert_eq!((left, hub.names(&SERVICE_ACCOUNT)), (2, vec!["kept/default".to_owned()]));
    }

    /// In whatever order creations are decided and committed around the deletion of their namespace: the
    /// namespace is removed, and none of their objects remains.
    #[test]
    fn namespace_goes_whatever_its_creators_do() {
        for seed in 1..150 {
            let mut random = Random::new(seed);
            let mut hub = Hub::new();
            hub.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
            let mut controller = namespaces::Namespaces::default();
            let mut decided = Vec::new();
            let (mut created, mut deleted) = (0, false);
            for step in 0..60 {
                match random.index(8) {
                    0..4 => {
                        let fresh = hub.fresh();
                        let value = map(&format!("c{step}"), None);
                        let options = WriteOptions::internal();
                        let decision =
                            requests::create(&hub.index, &CONFIG_MAP, "n", value, &options, &fresh);
                        if let Ok(Decided::Write(write, _)) = decision {
                            decided.push(write);
                        }
                    }
                    4 | 5 if !decided.is_empty() => {
                        let write = decided.swap_remove(random.index(decided.len()));
                        created += usize::from(hub.stage(write).is_ok());
                    }
                    6 => drop(hub.publish()),
                    7 if step > 20 && !deleted => {
                        let place = Place { kind: &NAMESPACE, namespace: "", name: "n" };
                        let (asked, options) = (DeleteOptions::default(), WriteOptions::internal());
                        let now = hub.fresh().now;
                        let decision = requests::delete(&hub.index, &place, &asked, &options, now);
                        if let Ok(Decided::Write(write, _)) = decision {
                            deleted = hub.stage(write).is_ok();
                        }
                    }
                    // a controller reads published state only, so it runs between two commits
                    _ if deleted && hub.batch.is_empty() => hub.run(&mut controller),
                    _ => {}
                }
            }
            if !deleted {
                continue;
            }
            hub.publish();
            hub.run(&mut controller);
            for write in decided {
                assert!(hub.stage(write).is_err(), "seed {seed}: created in a namespace that is gone");
            }
            assert!(created > 0, "seed {seed}: the test proves nothing");
            assert_eq!(hub.names(&CONFIG_MAP), Vec::<String>::new(), "seed {seed}");
            assert!(hub.index.get(&NAMESPACE, "", "n").is_none(), "seed {seed}");
        }
    }

    /// Answers the first reads from one state, the later ones from another.
    struct Changing<'a> {
        states: [&'a Hub; 2],
        reads: Cell<usize>,
        change_at: usize,
    }

    impl Changing<'_> {
        fn index(&self) -> &Index<NoSink> {
            let read = self.reads.replace(self.reads.get() + 1);
            &self.states[usize::from(read >= self.change_at)].index
        }
    }

    impl requests::Objects for Changing<'_> {
        fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
            self.index().get(kind, namespace, name)
        }

        fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
            requests::Objects::pods_of(self.index(), namespace)
        }
    }

    impl World for Changing<'_> {
        fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
            World::list(self.index(), kind, namespace)
        }

        fn select(&self, kind: &'static Kind, selection: &Selection) -> Vec<Arc<Object>> {
            World::select(self.index(), kind, selection)
        }

        fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
            self.index().dependents(uid)
        }

        fn charged(&self, holder: &str, kind: &'static Kind) -> Vec<Arc<Object>> {
            self.index().charged(holder, kind)
        }

        fn lost_owners(&self) -> Vec<String> {
            self.index().lost_owners()
        }

        fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
            self.index().terminating()
        }

        fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)> {
            self.index().in_namespace(namespace)
        }

        fn namespaces_in_use(&self) -> BTreeSet<String> {
            self.index().namespaces_in_use()
        }

        fn values(&self, kind: &'static Kind, field: usize) -> Vec<String> {
            self.index().values(kind, field)
        }
    }

    /// The controller's tasks for namespace `n` when the state changes before this read, and the number of
    /// its reads.
    fn look_at_namespace(states: [&Hub; 2], change_at: usize) -> (Vec<Task<namespaces::Purpose>>, usize) {
        let mut controller = namespaces::Namespaces::default();
        let namespace = json!({"metadata": {"name": "n"}});
        let seen = Arc::new(Object::new(&NAMESPACE, &namespace, 1).unwrap());
        controller.observe(&NAMESPACE, &Event { revision: 1, old: None, new: Some(seen), last: None });
        let world = Changing { states, reads: Cell::new(0), change_at };
        let now = Now {
            running: Duration::ZERO,
            wall: datetime!(2026-11-21 12:00:00 UTC),
            ages: true,
            right: true,
            stalled: Duration::ZERO,
            disk_stalled: Duration::ZERO,
            disk_stalls: false,
        };
        let tasks = controller.reconcile(&world, now).tasks;
        (tasks, world.reads.get())
    }

    /// The controller deletes nothing, whenever the state changes.
    #[track_caller]
    fn check_spared(states: [&Hub; 2]) {
        for change_at in 0..6 {
            let (tasks, _) = look_at_namespace(states, change_at);
            let harm = |task: &&Task<_>| !matches!(task.action, Action::Update { .. });
            let harm: Vec<_> = tasks.iter().filter(harm).map(|task| &task.action).collect();
            assert!(harm.is_empty(), "change before read {change_at}: {harm:?}");
        }
    }

    /// Thousands of nodes delete pods and have old events in one namespace: none of these deletions may list
    /// all objects.
    #[test]
    fn deletion_in_an_open_namespace_costs_one_read() {
        let mut open = Hub::new();
        open.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
        let (tasks, reads) = look_at_namespace([&open, &open], usize::MAX);
        assert_eq!((tasks.len(), reads), (0, 1));
    }

    #[test]
    fn namespace_made_anew_keeps_its_objects() {
        let (gone, mut anew) = (Hub::new(), Hub::new());
        anew.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
        anew.create(&CONFIG_MAP, map("a", None));
        check_spared([&gone, &anew]);
        let mut hub = anew;
        let finalize = Action::FinalizeNamespace { name: "n".to_owned(), uid: "of another".to_owned() };
        assert_eq!(hub.perform(finalize).unwrap_err().code, 409);
    }

    #[test]
    fn terminating_namespace_with_objects_is_not_finalized() {
        let (mut open, mut closed) = (Hub::new(), Hub::new());
        for hub in [&mut open, &mut closed] {
            hub.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
        }
        let mut held = map("a", None);
        held["metadata"]["finalizers"] = json!(["example.com/x"]);
        closed.create(&CONFIG_MAP, held);
        closed.delete(&CONFIG_MAP, "n", "a", Propagation::Unset);
        closed.delete(&NAMESPACE, "", "n", Propagation::Unset);
        check_spared([&open, &closed]);
    }

    /// An older hub may have left such objects behind.
    #[test]
    fn objects_of_a_namespace_that_is_gone_are_deleted() {
        let mut hub = Hub::new();
        hub.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
        hub.create(&CONFIG_MAP, map("a", None));
        let current = hub.index.get(&NAMESPACE, "", "n").unwrap();
        let expect = crate::state::Expect::Revision(current.revision);
        let (namespace, name, requires) = (String::new(), "n".to_owned(), Vec::new());
        let gone = Write {
            kind: &NAMESPACE,
            namespace,
            name,
            expect,
            requires,
            new: None,
            volatile: false,
            author: None,
        };
        hub.stage(gone).unwrap();
        hub.publish();
        hub.run(&mut namespaces::Namespaces::default());
        assert_eq!(hub.names(&CONFIG_MAP), Vec::<String>::new());
    }

    fn pod(name: &str, node: &str) -> Value {
        let mut pod = json!({"metadata": {"namespace": "n", "name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        pod
    }

    impl Hub {
        /// With a namespace `n` and its account.
        fn with_namespace() -> Hub {
            let mut hub = Hub::new();
            hub.create(&NAMESPACE, json!({"metadata": {"name": "n"}}));
            hub.run(&mut service_accounts::ServiceAccounts::default());
            hub
        }

        fn edit(&mut self, kind: &'static Kind, namespace: &str, name: &str, edit: impl FnMut(&mut Value)) {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let mut edit = edit;
            let fresh = self.fresh();
            let place = Place { kind, namespace: &namespace, name: &name };
            let options = WriteOptions::internal();
            let decided = requests::edit(&self.index, &place, Part::All, &options, &fresh, |_, mut value| {
                edit(&mut value);
                Ok(value)
            });
            self.settle(decided).unwrap();
        }

        fn value(&self, kind: &'static Kind, namespace: &str, name: &str) -> Value {
            self.index.get(kind, namespace, name).map_or(Value::Null, |object| object.value())
        }
    }

    impl Hub {
        /// Creates a pod and then changes the stored object against all rules, as an older hub may have left
        /// it.
        fn leave_pod(&mut self, pod: Value, change: impl FnOnce(&mut Value)) {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            self.create(&POD, pod);
            let current = self.index.get(&POD, "n", &name).unwrap();
            let mut left = current.value();
            change(&mut left);
            let write = Write {
                kind: &POD,
                namespace: "n".to_owned(),
                name,
                expect: crate::state::Expect::Revision(current.revision),
                requires: Vec::new(),
                new: Some(left),
                volatile: false,
                author: None,
            };
            self.stage(write).unwrap();
            self.publish();
        }
    }

    #[test]
    fn pod_with_two_account_names_can_be_changed() {
        let mut hub = Hub::with_namespace();
        let mut bound = pod("old", "a");
        bound["metadata"]["finalizers"] = json!(["example.com/x"]);
        hub.leave_pod(bound, |pod| pod["spec"]["serviceAccount"] = "a".into());
        hub.edit(&POD, "n", "old", |pod| pod["metadata"]["labels"] = json!({"a": "b"}));
        let stored = hub.value(&POD, "n", "old");
        assert_eq!(stored["metadata"]["labels"]["a"], "b");
        assert_eq!(stored["spec"]["serviceAccount"], "default", "the newer name decides");
        hub.edit(&POD, "n", "old", |pod| pod["metadata"]["finalizers"] = json!([]));
        let left = hub.value(&POD, "n", "old");
        assert!(left["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty), "{left}");
        hub.delete(&POD, "n", "old", Propagation::Unset);
        assert_eq!(hub.value(&POD, "n", "old")["metadata"]["deletionGracePeriodSeconds"], 30);
    }

    #[test]
    fn mirror_pod_marked_with_a_grace_period_holds_no_namespace() {
        let mut hub = Hub::with_namespace();
        let mut mirror = pod("mirror", "a");
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        for pod in [mirror, pod("other", "a")] {
            hub.leave_pod(pod, |pod| {
                pod["metadata"]["deletionTimestamp"] = "2094-12-09T15:14:07Z".into();
                pod["metadata"]["deletionGracePeriodSeconds"] = i32::MAX.into();
            });
        }
        hub.delete(&NAMESPACE, "", "n", Propagation::Unset);
        hub.run(&mut namespaces::Namespaces::default());
        assert_eq!(hub.names(&POD), ["n/other"], "its node confirms the end of the other one");
    }

    #[test]
    fn pods_of_a_namespace_go_before_the_rest() {
        let mut hub = Hub::with_namespace();
        hub.create(&CONFIG_MAP, map("kept", None));
        let mut bound = pod("bound", "a");
        bound["metadata"]["finalizers"] = json!(["example.com/x"]);
        hub.create(&POD, bound);
        hub.delete(&NAMESPACE, "", "n", Propagation::Unset);
        let mut controller = namespaces::Namespaces::default();
        hub.run(&mut controller);
        assert_eq!(hub.names(&CONFIG_MAP), ["n/kept"]);
        let shown = |hub: &Hub| {
            let namespace = hub.value(&NAMESPACE, "", "n");
            let conditions = namespace["status"]["conditions"].as_array().unwrap().clone();
            let line = |condition: &Value| {
                let text = |field: &str| condition[field].as_str().unwrap().to_owned();
                format!("{} {} {}: {}", text("type"), text("status"), text("reason"), text("message"))
            };
            conditions.iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&hub),
            [
                "NamespaceDeletionDiscoveryFailure False ResourcesDiscovered: All resources successfully discovered",
                "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully parsed",
                "NamespaceDeletionContentFailure False ContentDeleted: All content successfully deleted, may be waiting on finalization",
                "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances",
                "NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances",
            ]
        );
        hub.edit(&POD, "n", "bound", |pod| pod["metadata"]["finalizers"] = json!([]));
        hub.run(&mut controller);
        assert_eq!(
            shown(&hub)[4],
            "NamespaceFinalizersRemaining False ContentHasNoFinalizers: All content-preserving finalizers finished"
        );
        let revision = hub.index.revision();
        hub.run(&mut controller);
        assert_eq!(hub.index.revision(), revision, "the same conditions are not written again");
        // its node confirms its end
        let _ = hub.perform(Action::Delete {
            kind: &POD,
            namespace: "n".to_owned(),
            name: "bound".to_owned(),
            options: DeleteOptions { grace_secs: Some(0), ..DeleteOptions::default() },
            requires: Vec::new(),
        });
        hub.run(&mut controller);
        assert_eq!((hub.names(&CONFIG_MAP).len(), hub.value(&NAMESPACE, "", "n")), (0, Value::Null));
    }

    fn owned(name: &str, owner: &str, uid: &str) -> Value {
        let mut value = map(name, Some(uid));
        value["metadata"]["ownerReferences"][0]["name"] = owner.into();
        value
    }

    /// Upstream's conformance test "should not be blocked by dependency circle".
    #[test]
    fn ring_of_owners_is_deleted_in_the_foreground() {
        let mut hub = Hub::with_namespace();
        let names = ["a", "b", "c"];
        let uids = names.map(|name| hub.create(&CONFIG_MAP, map(name, None)));
        for (index, name) in names.iter().enumerate() {
            let owner = (index + 2) % 3;
            let references = owned(name, names[owner], &uids[owner])["metadata"]["ownerReferences"].clone();
            hub.edit(&CONFIG_MAP, "n", name, |map| map["metadata"]["ownerReferences"] = references.clone());
        }
        hub.delete(&CONFIG_MAP, "n", "a", Propagation::Foreground);
        hub.run(&mut garbage::Garbage::default());
        assert_eq!(hub.names(&CONFIG_MAP), Vec::<String>::new());
    }

    /// A reference that has only the UID of somebody else's object does not hold up its deletion.
    #[test]
    fn foreign_reference_does_not_block_a_deletion() {
        let mut hub = Hub::with_namespace();
        hub.create(&NAMESPACE, json!({"metadata": {"name": "m"}}));
        let uid = hub.create(&CONFIG_MAP, map("owner", None));
        let mut elsewhere = owned("elsewhere", "owner", &uid);
        elsewhere["metadata"]["namespace"] = json!("m");
        for mut foreign in [owned("misnamed", "other", &uid), elsewhere] {
            foreign["metadata"]["finalizers"] = json!(["example.com/x"]);
            let namespace = crate::value::text(&foreign, &["metadata", "namespace"]).to_owned();
            let name = crate::value::text(&foreign, &["metadata", "name"]).to_owned();
            hub.create(&CONFIG_MAP, foreign);
            hub.delete(&CONFIG_MAP, &namespace, &name, Propagation::Unset);
        }
        hub.delete(&CONFIG_MAP, "n", "owner", Propagation::Foreground);
        hub.run(&mut garbage::Garbage::default());
        assert_eq!(hub.names(&CONFIG_MAP), ["m/elsewhere", "n/misnamed"]);
    }

    /// The deletion of an owner that waits for its dependents does not delete a dependent that another owner
    /// still has.
    #[test]
    fn shared_dependent_outlives_one_owner() {
        let mut hub = Hub::with_namespace();
        let first = hub.create(&CONFIG_MAP, map("first", None));
        let second = hub.create(&CONFIG_MAP, map("second", None));
        let mut shared = owned("shared", "first", &first);
        let other = owned("x", "second", &second)["metadata"]["ownerReferences"][0].clone();
        shared["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other);
        hub.create(&CONFIG_MAP, shared);
        hub.delete(&CONFIG_MAP, "n", "first", Propagation::Foreground);
        hub.run(&mut garbage::Garbage::default());
        assert_eq!(hub.names(&CONFIG_MAP), ["n/second", "n/shared"]);
        let left = hub.value(&CONFIG_MAP, "n", "shared")["metadata"]["ownerReferences"].clone();
        assert_eq!((left.as_array().unwrap().len(), &left[0]["uid"]), (1, &json!(second)));
    }

    fn ready(status: &str) -> Value {
        json!({"conditions": [{"type": "Ready", "status": status}], "phase": "Running", "qosClass": "BestEffort"})
    }

    #[test]
    fn pods_of_a_node_that_is_gone_are_removed_after_quarantine() {
        let mut hub = Hub::with_namespace();
        for node in ["a", "b"] {
            hub.create(&NODE, json!({"metadata": {"name": node}}));
            let mut held = pod(&format!("on-{node}"), node);
            held["metadata"]["finalizers"] = json!(["example.com/x"]);
            hub.create(&POD, held);
            hub.create(&POD, pod(&format!("free-{node}"), node));
        }
        hub.delete(&NODE, "", "a", Propagation::Unset);
        let mut controller = pods::Pods::default();
        hub.run_at(&mut controller, 100);
        hub.run_at(&mut controller, 139);
        assert_eq!(hub.names(&POD).len(), 4);
        hub.run_at(&mut controller, 140);
        assert_eq!(hub.names(&POD), ["n/free-b", "n/on-a", "n/on-b"]);
        let held = hub.value(&POD, "n", "on-a");
        assert_eq!(
            (&held["status"]["phase"], &held["metadata"]["deletionGracePeriodSeconds"]),
            (&json!("Failed"), &json!(0))
        );
        assert_eq!(held["status"]["conditions"][0]["reason"], "DeletionByPodGC");
        assert_eq!(hub.value(&POD, "n", "on-b")["status"]["phase"], "Pending");
    }

    #[test]
    fn node_made_anew_keeps_its_pods() {
        let mut hub = Hub::with_namespace();
        hub.create(&POD, pod("p", "a"));
        let mut controller = pods::Pods::default();
        hub.run_at(&mut controller, 100);
        hub.create(&NODE, json!({"metadata": {"name": "a"}}));
        hub.run_at(&mut controller, 120);
        hub.delete(&NODE, "", "a", Propagation::Unset);
        hub.run_at(&mut controller, 150);
        hub.run_at(&mut controller, 189);
        assert_eq!(hub.names(&POD), ["n/p"]);
    }

    /// A change by another client between the decision and its two writes.
    #[test]
    fn pod_of_a_node_made_anew_is_not_removed() {
        let node = |hub: &mut Hub| drop(hub.create(&NODE, json!({"metadata": {"name": "a"}})));
        let report = |hub: &mut Hub| {
            hub.edit(&POD, "n", "p", |pod| pod["metadata"]["labels"] = json!({"seen": "x"}));
        };
        let changes: [(usize, Step<'_>); 3] = [(0, &node), (1, &node), (1, &report)];
        for (before, change) in changes {
            let mut hub = Hub::with_namespace();
            hub.create(&POD, pod("p", "a"));
            let mut controller = pods::Pods::default();
            hub.run_at(&mut controller, 100);
            let now = hub.now(140);
            controller.sweep(&hub.index);
            let mut tasks = controller.reconcile(&hub.index, now).tasks;
            let mut performed = 0;
            while let Some(task) = tasks.pop() {
                if performed == before {
                    change(&mut hub);
                }
                performed += 1;
                tasks.extend(hub.act(&mut controller, task, now));
            }
            assert_eq!((performed, hub.names(&POD)), (before + 1, vec!["n/p".to_owned()]));
        }
    }

    #[test]
    fn stall_of_the_hub_does_not_shorten_the_quarantine() {
        let mut hub = Hub::with_namespace();
        hub.create(&POD, pod("p", "a"));
        let mut controller = pods::Pods::default();
        hub.run_at(&mut controller, 100);
        let stall = Duration::from_secs(60);
        let process = Now { stalled: stall, ..hub.now(165) };
        let disk = Now { disk_stalled: stall, ..hub.now(225) };
        for stalled in [process, disk] {
            controller.sweep(&hub.index);
            assert!(controller.reconcile(&hub.index, stalled).tasks.is_empty());
        }
        hub.run_at(&mut controller, 259);
        assert_eq!(hub.names(&POD), ["n/p"]);
        hub.run_at(&mut controller, 260);
        assert_eq!(hub.names(&POD), Vec::<String>::new());
    }

    /// In either order of taint and deletion.
    #[test]
    fn terminating_pod_of_a_node_out_of_service_is_removed() {
        let taint = |hub: &mut Hub| {
            hub.edit(&NODE, "", "a", |node| {
                node["spec"]["taints"] =
                    json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            });
        };
        let delete = |hub: &mut Hub| hub.delete(&POD, "n", "p", Propagation::Unset);
        let orders: [[Step<'_>; 2]; 2] = [[&taint, &delete], [&delete, &taint]];
        for order in orders {
            let mut hub = Hub::with_namespace();
            hub.create(&NODE, json!({"metadata": {"name": "a"}}));
            hub.edit(&NODE, "", "a", |node| {
                node["status"] = json!({"conditions": ready("Unknown")["conditions"]})
            });
            for name in ["p", "kept"] {
                hub.create(&POD, pod(name, "a"));
            }
            let mut controller = pods::Pods::default();
            for step in order {
                hub.run(&mut controller);
                assert_eq!(hub.names(&POD).len(), 2);
                step(&mut hub);
            }
            hub.run(&mut controller);
            assert_eq!(hub.names(&POD), ["n/kept"]);
        }
    }

    #[test]
    fn pods_of_a_lost_node_are_not_ready() {
        let mut hub = Hub::with_namespace();
        let mut controller = pods::Pods::default();
        for node in ["a", "b"] {
            hub.create(&NODE, json!({"metadata": {"name": node}}));
            hub.edit(&NODE, "", node, |node| {
                node["status"] = json!({"conditions": ready("True")["conditions"]})
            });
            hub.create(&POD, pod(node, node));
            hub.edit(&POD, "n", node, |pod| pod["status"] = ready("True"));
        }
        hub.run(&mut controller);
        let status =
            |hub: &Hub, pod: &str| hub.value(&POD, "n", pod)["status"]["conditions"][0]["status"].clone();
        assert_eq!(status(&hub, "a"), "True");
        hub.edit(&NODE, "", "a", |node| node["status"]["conditions"][0]["status"] = json!("Unknown"));
        hub.run(&mut controller);
        assert_eq!((status(&hub, "a"), status(&hub, "b")), (json!("False"), json!("True")));
        // a node that is not ready, but reports: the readiness that it reports for its pods stays
        hub.edit(&POD, "n", "a", |pod| pod["status"] = ready("True"));
        hub.edit(&NODE, "", "a", |node| node["status"]["conditions"][0]["status"] = json!("False"));
        hub.run(&mut controller);
        assert_eq!(status(&hub, "a"), "True");
        // lost, back and lost again between two looks
        for (time, expect) in [("1", "False"), ("1", "True"), ("2", "False")] {
            hub.edit(&POD, "n", "a", |pod| pod["status"] = ready("True"));
            hub.edit(&NODE, "", "a", |node| {
                node["status"]["conditions"][0]["status"] = json!("Unknown");
                node["status"]["conditions"][0]["lastTransitionTime"] =
                    json!(format!("2026-01-01T00:00:0{time}Z"));
                node["metadata"]["labels"] = json!({"looked": expect});
            });
            hub.run(&mut controller);
            assert_eq!(status(&hub, "a"), expect, "{time}");
        }
        // the node is back and reports its pods as ready; the hub does not overwrite that
        hub.edit(&POD, "n", "a", |pod| pod["status"] = ready("True"));
        hub.edit(&NODE, "", "a", |node| node["status"]["conditions"][0]["status"] = json!("True"));
        hub.run(&mut controller);
        assert_eq!(status(&hub, "a"), "True");
    }

    #[test]
    fn nodes_learn_of_a_second_authority_a_few_at_a_time() {
        let announced = |hub: &Hub| {
            let nodes = World::list(&hub.index, &NODE, "");
            let digest = |node: &Arc<Object>| {
                node.value()["metadata"]["annotations"][kedge_api::TRUST_ANNOTATION].clone()
            };
            nodes.iter().filter(|node| digest(node) == "0123abcd").count()
        };
        let mut hub = Hub::new();
        for number in 0..120 {
            hub.create(&NODE, json!({"metadata": {"name": format!("node-{number}")}}));
        }
        hub.run(&mut trust::Trust::new(None));
        assert_eq!(announced(&hub), 0, "with one authority nothing is written");
        let mut controller = trust::Trust::new(Some("0123abcd".to_owned()));
        for (second, expect) in [(0, 50), (0, 50), (1, 100), (2, 120)] {
            hub.run_at(&mut controller, second);
            assert_eq!(announced(&hub), expect, "after {second} s");
        }
        let before = hub.index.get(&NODE, "", "node-7").unwrap().revision;
        hub.run_at(&mut controller, 9);
        assert_eq!(hub.index.get(&NODE, "", "node-7").unwrap().revision, before, "told once");
    }

    #[test]
    fn every_namespace_has_the_root_certificate() {
        let mut hub = Hub::with_namespace();
        let mut controller = root_certificate::RootCertificate::new("PEM".to_owned());
        let name = root_certificate::NAME;
        hub.run(&mut controller);
        let made = hub.value(&CONFIG_MAP, "n", name);
        assert_eq!(made["data"], json!({"ca.crt": "PEM"}));
        let revision = hub.index.revision();
        hub.run(&mut controller);
        assert_eq!(hub.index.revision(), revision);
        hub.edit(&CONFIG_MAP, "n", name, |map| map["data"] = json!({"ca.crt": "other", "more": "x"}));
        hub.run(&mut controller);
        assert_eq!(hub.value(&CONFIG_MAP, "n", name)["data"], made["data"]);
        hub.delete(&CONFIG_MAP, "n", name, Propagation::Unset);
        hub.run(&mut controller);
        assert_eq!(hub.value(&CONFIG_MAP, "n", name)["data"], made["data"]);
        hub.delete(&NAMESPACE, "", "n", Propagation::Unset);
        hub.delete(&CONFIG_MAP, "n", name, Propagation::Unset);
        hub.run(&mut controller);
        assert_eq!(hub.names(&CONFIG_MAP), Vec::<String>::new(), "a terminating namespace gets none");
    }
}
