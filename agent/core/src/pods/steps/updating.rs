//! Updates the files of a running pod's volumes to the API server's current data.
//!
//! Always holds: a volume is replaced as a whole, or stays as it is while its new content is unknown or
//! unreadable; files are not replaced before their content is on disk, so a power cut brings back no older
//! content. Fields of the pod itself are taken from the API server, not from its record, which may be older.
//! Leaves to others: when objects are read again (`actor`), tokens (`tokens`), writing the files (the
//! runtime).

use crate::answer::Now;
use crate::pods::event::{Failure, PodAction};
use crate::pods::files::{Files, digest};
use crate::pods::life::{Context, Life, SandboxState};
use crate::pods::spec::Pod;
use crate::pods::volumes::{self, VolumeProblem};

impl Life {
    /// Orders the volumes whose files should change.
    pub(crate) fn update_files(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        let is_known = self.api.is_some() || self.is_static();
        if self.sandbox.state != SandboxState::Ready
            || !self.files.is_stale
            || self.files.is_updating
            || !is_known
        {
            return;
        }
        if !self.files.retry.is_due(ctx.now.mono) {
            self.wake_at(self.files.retry.due());
            return;
        }
        let Some(node) = ctx.node else { return };
        let since = *self.files.awaits_objects.get_or_insert(ctx.now.mono);
        if !Self::are_objects_settled(pod, since, ctx) {
            return;
        }
        self.files.awaits_objects = None;
        self.files.is_stale = false;
        let mut changed = vec![];
        for made in volumes::file_volumes(pod, ctx.objects, &self.tokens, node) {
            match made {
                Ok(volume) => {
                    let digest = digest(&volume);
                    if digest.is_some() && self.files.ordered.get(&volume.name) != digest.as_ref() {
                        self.files.ordered.extend(digest.map(|digest| (volume.name.clone(), digest)));
                        changed.push(volume);
                    }
                }
                // an answer triggers another look
                Err(VolumeProblem::Awaited) => {}
                Err(VolumeProblem::Failed(why) | VolumeProblem::TooLarge(why)) => {
                    self.announce(true, "FailedMount", why, ctx.actions);
                }
            }
        }
        if !changed.is_empty() {
            self.files.is_updating = true;
            ctx.actions.push(PodAction::UpdateVolumes { pod: self.uid.clone(), volumes: changed });
        }
    }

    /// Replacing some volumes failed; which of them is unknown.
    pub(crate) fn update_failed(&mut self, now: Now, failure: &Failure, actions: &mut Vec<PodAction>) {
        let retry = &mut self.files.retry;
        retry.failed(now.mono);
        self.files = Files { is_stale: true, retry: retry.clone(), ..Files::default() };
        self.announce(true, "FailedMount", failure.message.clone(), actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::event::{
        Command, DesiredFile, DesiredFound, FailureReason, Inventory, NodeFacts, ObjectRead, PodEvent,
        PodNetwork, TokenName, TokenRead, VolumeSource,
    };
    use crate::pods::keys::{ObjectKind, ObjectName, PodUid};
    use crate::pods::{Pods, keys};
    use kedge_api::Timestamp;
    use serde_json::{Value, json};
    use std::time::Duration;

    /// A node whose disk answers at once.
    struct World {
        pods: Pods,
        secs: u64,
        disk: Vec<(DesiredFile, Vec<u8>)>,
    }

    fn object(app: &str) -> Value {
        json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"app": app}}, "spec": {
            "serviceAccountName": "runs", "hostNetwork": true, "containers": [{"name": "a", "image": "x:1"}],
            "volumes": [{"name": "map", "configMap": {"name": "o"}}, {"name": "all", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}]}})
    }

    fn name() -> ObjectName {
        ObjectName { kind: ObjectKind::ConfigMap, namespace: "d".into(), name: "o".into() }
    }

    fn pod() -> PodUid {
        PodUid::new("u").unwrap()
    }

    impl World {
        /// With a pod that the API server shows.
        fn new() -> (Self, Vec<PodAction>) {
            Self { pods: Pods::new("edge"), secs: 1, disk: vec![] }.begin(vec![], object("1"))
        }

        fn begin(self, found: Vec<crate::pods::event::PodFound>, shown: Value) -> (Self, Vec<PodAction>) {
            let mut world = self;
            world.tell(PodEvent::DesiredRead(Ok(vec![])));
            world.tell(PodEvent::Inventory(Inventory { pods: found, ..Inventory::default() }));
            world.tell(PodEvent::StaticPods(Ok(vec![])));
            let facts = NodeFacts { pods: 10, memory_bytes: 1 << 30, ..NodeFacts::default() };
            world.tell(PodEvent::Node(Box::new(facts)));
            world.tell(PodEvent::Held(false));
            let listed = PodEvent::PodsListed { node_uid: "n".into(), pods: vec![shown] };
            let actions = world.tell(listed);
            (world, actions)
        }

        fn tell(&mut self, event: PodEvent) -> Vec<PodAction> {
            let now = Now { mono: Duration::from_secs(self.secs), wall: Timestamp::from_micros(0) };
            let (mut all, mut events) = (vec![], vec![event]);
            while let Some(event) = events.pop() {
                let mut actions = vec![];
                self.pods.handle(now, event, &mut actions);
                for action in actions {
                    if let PodAction::SaveDesired { file, content } = action {
                        self.disk.retain(|(known, _)| *known != file);
                        self.disk.extend(content.map(|content| (file.clone(), content)));
                        events.push(PodEvent::DesiredSaved { file, done: Ok(()) });
                    } else {
                        all.push(action);
                    }
                }
            }
            all
        }

        /// The same node after a boot, without contact.
        fn boot(self) -> World {
            let mut world = World { pods: Pods::new("edge"), secs: 1, disk: self.disk.clone() };
            let found =
                self.disk.into_iter().map(|(file, content)| DesiredFound { file, content: Ok(content) });
            world.tell(PodEvent::DesiredRead(Ok(found.collect())));
            world.tell(PodEvent::Inventory(Inventory::default()));
            world.tell(PodEvent::StaticPods(Ok(vec![])));
            let facts = NodeFacts { pods: 10, memory_bytes: 1 << 30, ..NodeFacts::default() };
            world.tell(PodEvent::Node(Box::new(facts)));
            world.tell(PodEvent::Held(false));
            world
        }

        fn at(&mut self, secs: u64) -> Vec<PodAction> {
            self.secs = secs;
            self.tell(PodEvent::Tick)
        }

        fn map_is(&mut self, text: &str) -> Vec<PodAction> {
            let read = ObjectRead::Found(json!({"data": {"key": text}}));
            self.tell(PodEvent::ObjectRead { name: name(), read })
        }

        fn token_is(&mut self, asked: &TokenName, token: &str) -> Vec<PodAction> {
            let read = TokenRead::Issued { token: token.into(), life: Duration::from_secs(3600) };
            self.tell(PodEvent::TokenRead { name: asked.clone(), read })
        }

        /// A node whose pod runs with this content and token.
        fn running() -> (Self, TokenName) {
            let (mut world, actions) = Self::new();
            let asked = asked(&actions).expect("a token is asked for");
            world.map_is("1");
            let actions = world.token_is(&asked, "t1");
            assert!(actions.iter().any(|action| matches!(action, PodAction::PreparePod(_))), "{actions:?}");
            world.tell(PodEvent::PodPrepared { pod: pod(), network: PodNetwork::default() });
            (world, asked)
        }
    }

    fn asked(actions: &[PodAction]) -> Option<TokenName> {
        actions.iter().find_map(|action| match action {
            PodAction::RequestToken(name) => Some(name.clone()),
            _ => None,
        })
    }

    /// The contents of the replaced volumes, by volume and path.
    fn updates(actions: &[PodAction]) -> Vec<String> {
        let volumes = actions.iter().filter_map(|action| match action {
            PodAction::UpdateVolumes { volumes, .. } => Some(volumes),
            _ => None,
        });
        let mut all = vec![];
        for volume in volumes.flatten() {
            let VolumeSource::Files { files, .. } = &volume.source else { panic!("{volume:?}") };
            for file in files {
                let content = String::from_utf8(file.content.clone()).unwrap();
                all.push(format!("{}/{} {content}", volume.name, file.path));
            }
        }
        all
    }

    fn has_event(actions: &[PodAction], reason: &str) -> bool {
        actions.iter().any(|action| matches!(action, PodAction::RecordEvent(news) if news.reason == reason))
    }

    #[test]
    fn edit_replaces_the_files_of_its_volume_once() {
        let (mut world, _) = World::running();
        world.secs = 100;
        let reads = world.tell(PodEvent::ObjectsAreOld);
        assert!(reads.contains(&PodAction::ReadObject(name())), "{reads:?}");
        assert!(updates(&world.map_is("1")).is_empty(), "nothing changed");
        world.secs = 200;
        world.tell(PodEvent::ObjectsAreOld);
        assert_eq!(updates(&world.map_is("2")), ["map/key 2"]);
        // another update while the first is under way
        world.secs = 300;
        world.tell(PodEvent::ObjectsAreOld);
        assert!(updates(&world.map_is("3")).is_empty(), "one at a time");
        assert_eq!(updates(&world.tell(PodEvent::VolumesUpdated { pod: pod() })), ["map/key 3"]);
        assert!(updates(&world.tell(PodEvent::VolumesUpdated { pod: pod() })).is_empty());
        let labelled = world.tell(PodEvent::PodSeen(object("2")));
        assert_eq!(updates(&labelled), ["all/labels app=\"2\"", "all/token t1"]);
    }

    #[test]
    fn edit_comes_although_another_object_is_always_being_read() {
        let mut shown = object("1");
        shown["spec"]["volumes"] =
            json!(["o", "q"].map(|map| json!({"name": map, "configMap": {"name": map}})));
        let (mut world, _) = World { pods: Pods::new("edge"), secs: 1, disk: vec![] }.begin(vec![], shown);
        let answer = |world: &mut World, map: &str, text: &str| {
            let read = ObjectRead::Found(json!({"data": {"key": text}}));
            world.tell(PodEvent::ObjectRead { name: ObjectName { name: map.into(), ..name() }, read })
        };
        answer(&mut world, "o", "1");
        answer(&mut world, "q", "1");
        world.tell(PodEvent::PodPrepared { pod: pod(), network: PodNetwork::default() });
        // each read takes 15 s, and all are read again every 10 s
        let (mut seen, mut maps) = (vec![], ["o", "q"].into_iter().cycle());
        for secs in 100..200 {
            world.secs = secs;
            if secs % 10 == 0 {
                world.tell(PodEvent::ObjectsAreOld);
            }
            if secs % 15 == 0
                && let Some(map) = maps.next()
            {
                seen.extend(updates(&answer(&mut world, map, &secs.to_string())));
                seen.extend(updates(&world.tell(PodEvent::VolumesUpdated { pod: pod() })));
            }
        }
        assert_eq!(seen[..2], ["o/key 105", "q/key 120"], "{seen:?}");
    }

    #[test]
    fn update_that_failed_is_tried_again() {
        let (mut world, _) = World::running();
        world.secs = 100;
        world.tell(PodEvent::ObjectsAreOld);
        assert_eq!(updates(&world.map_is("2")).len(), 1);
        let failure = Failure { reason: FailureReason::Volume, message: "disk full".into() };
        let failed = world.tell(PodEvent::Failed { command: Command::UpdateVolumes(pod()), failure });
        assert!(has_event(&failed, "FailedMount") && updates(&failed).is_empty(), "{failed:?}");
        assert!(updates(&world.at(109)).is_empty());
        assert!(updates(&world.at(110)).contains(&"map/key 2".to_owned()), "what was written is unknown");
    }

    #[test]
    fn volume_that_is_too_large_is_looked_at_seldom() {
        let mut shown = object("1");
        // many files of one object: more than a pod may have
        let sources = (0..20).map(|number| {
            let items = json!([{"key": "key", "path": format!("f-{number}")}]);
            json!({"configMap": {"name": "o", "items": items}})
        });
        shown["spec"]["volumes"] =
            json!([{"name": "all", "projected": {"sources": sources.collect::<Vec<_>>()}}]);
        let (mut world, _) = World { pods: Pods::new("edge"), secs: 1, disk: vec![] }.begin(vec![], shown);
        let large = "x".repeat(1 << 20);
        let refused = world.map_is(&large);
        assert!(has_event(&refused, "FailedMount"), "{refused:?}");
        let mut reads = vec![];
        for secs in 2..1802 {
            let actions = world.at(secs);
            // an event for other pods causes a look at this pod too
            let other = ObjectName { name: "other".into(), ..name() };
            let all = [actions, world.tell(PodEvent::ObjectRead { name: other, read: ObjectRead::Missing })];
            if all.iter().flatten().any(|action| *action == PodAction::ReadObject(name())) {
                reads.push(secs);
                assert!(!world.map_is(&large).contains(&PodAction::ReadObject(name())));
            }
        }
        assert_eq!(reads, [601, 1201, 1801], "each ten minutes");
        // an edit that was read for another pod is taken at once
        world.tell(PodEvent::ObjectsAreOld);
        let prepared = world.map_is("small");
        assert!(prepared.iter().any(|action| matches!(action, PodAction::PreparePod(_))), "{prepared:?}");
    }

    #[test]
    fn object_that_is_gone_leaves_its_files() {
        let (mut world, _) = World::running();
        world.secs = 100;
        world.tell(PodEvent::ObjectsAreOld);
        let gone = world.tell(PodEvent::ObjectRead { name: name(), read: ObjectRead::Missing });
        assert!(has_event(&gone, "FailedMount") && updates(&gone).is_empty(), "{gone:?}");
    }

    #[test]
    fn token_is_renewed_and_a_refusal_keeps_the_old_one() {
        let (mut world, asked_first) = World::running();
        let expect = TokenName {
            pod: keys::PodRef { namespace: "d".into(), name: "p".into(), uid: "u".into() },
            account: "runs".into(),
            audience: String::new(),
            expiration_secs: 3600,
        };
        assert_eq!(asked_first, expect);
        assert_eq!(asked(&world.at(2500)), None);
        let again = asked(&world.at(2890)).expect("four fifths of its life are over");
        let refused = TokenRead::Failed("no route".into());
        let failed = world.tell(PodEvent::TokenRead { name: again.clone(), read: refused });
        assert!(updates(&failed).is_empty() && asked(&failed).is_none(), "{failed:?}");
        let again = asked(&world.at(2900)).expect("after a pause");
        let renewed = world.token_is(&again, "t2");
        assert_eq!(updates(&renewed), ["all/labels app=\"1\"", "all/token t2"]);
    }

    #[test]
    fn pod_waits_for_its_token_and_says_why() {
        let (mut world, actions) = World::new();
        let name = asked(&actions).unwrap();
        assert!(!world.map_is("1").iter().any(|action| matches!(action, PodAction::PreparePod(_))));
        let why = TokenRead::Failed("serviceaccounts \"runs\" not found".into());
        let failed = world.tell(PodEvent::TokenRead { name, read: why });
        assert!(has_event(&failed, "FailedMount"), "{failed:?}");
        assert_eq!(asked(&world.at(10)), None, "not before the pause is over");
        let again = asked(&world.at(11)).unwrap();
        let prepared = world.token_is(&again, "t");
        assert!(prepared.iter().any(|action| matches!(action, PodAction::PreparePod(_))), "{prepared:?}");
    }

    /// A pod starts without its token only if the API server added the volume, and only without contact.
    #[test]
    fn pod_boots_without_the_token_that_was_added() {
        let has_token = |actions: &[PodAction]| {
            actions.iter().find_map(|action| match action {
                PodAction::PreparePod(sandbox) => Some(format!("{sandbox:?}").contains("\"token\"")),
                _ => None,
            })
        };
        let added = |name: &str| {
            let mut added = object("1");
            added["spec"]["volumes"][1]["name"] = name.into();
            added
        };
        for (name, starts) in [("kube-api-access-x", true), ("all", false)] {
            let world = World { pods: Pods::new("edge"), secs: 1, disk: vec![] };
            let (mut world, actions) = world.begin(vec![], added(name));
            let asked = asked(&actions).unwrap();
            world.map_is("1");
            assert_eq!(has_token(&world.at(100)), None, "with contact it waits for ever");
            let mut world = world.boot();
            assert_eq!(has_token(&world.at(2)), None);
            assert_eq!(has_token(&world.at(30)), None, "not before its patience is over");
            let started = has_token(&world.at(33));
            assert_eq!(started, starts.then_some(false), "{name}");
            if starts {
                world.tell(PodEvent::PodPrepared { pod: pod(), network: PodNetwork::default() });
                world.tell(PodEvent::PodsListed { node_uid: "n".into(), pods: vec![added(name)] });
                let files = updates(&world.token_is(&asked, "t"));
                assert_eq!(files, ["kube-api-access-x/labels app=\"1\"", "kube-api-access-x/token t"]);
            }
        }
    }

    #[test]
    fn agent_that_restarts_leaves_files_until_it_knows_better() {
        let found = crate::pods::event::PodFound {
            uid: pod(),
            namespace: "d".into(),
            name: "p".into(),
            node_uid: "n".into(),
            network: Some(PodNetwork::default()),
        };
        let world = World { pods: Pods::new("edge"), secs: 1, disk: vec![] };
        let (mut world, actions) = world.begin(vec![found], object("1"));
        assert!(updates(&actions).is_empty(), "neither is known");
        let name = asked(&actions).unwrap();
        assert_eq!(updates(&world.map_is("1")), ["map/key 1"]);
        world.tell(PodEvent::VolumesUpdated { pod: pod() });
        assert_eq!(updates(&world.token_is(&name, "t")), ["all/labels app=\"1\"", "all/token t"]);
    }
}
