//! For each node, the latest revision at which somebody else changed an object that it follows.
//!
//! A node *follows* its Node, the pods bound to it, and the objects that these refer to
//! ([`Kind::refers`](crate::kinds::Kind::refers)), whether they exist or not: creation, change and deletion
//! all count. The change by which it begins to follow an object counts too, however old that object is. The
//! node's own writes do not count, unless they make it follow more.
//!
//! Always holds: the revision of a node never falls, and a node that has read everything at that revision has
//! missed nothing. After a restart every node gets the revision of the start, which is above all earlier
//! ones: deletions before it are forgotten. The cost of a change is the objects that it refers to, and
//! at most two nodes; an object that ten thousand nodes follow has one number, which is looked up when a
//! node's revision is read. Memory depends on the stored objects only. Left to others: locks, and informing
//! nodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::index::Changed;
use crate::kinds::pod::NODE_NAME_FIELD;
use crate::kinds::{Kind, NODE, POD};
use crate::object::{Object, Reference};

/// See the module.
#[derive(Debug)]
pub struct Desired {
    nodes: BTreeMap<Box<str>, Followed>,
    objects: Objects,
    /// The revision of every unlisted node: it has had no Node and no pods since then.
    unlisted: u64,
}

/// The objects that one node follows.
#[derive(Debug)]
struct Followed {
    /// The number of objects that are its Node and its pods.
    sources: usize,
    /// The latest revision that counts, apart from changes of the objects that it refers to now.
    own: u64,
    /// Positions in [`Objects::list`], and how many of its sources refer to each.
    refers: BTreeMap<usize, usize>,
    /// The latest change of these, as of [`Objects::latest`]. Earlier changes of added objects, and later
    /// ones of removed objects, are in `own`.
    referred: AtomicU64,
    looked_up_at: AtomicU64,
}

/// Objects that nodes refer to.
#[derive(Debug, Default)]
struct Objects {
    positions: BTreeMap<Reference, usize>,
    list: Vec<Referred>,
    free: Vec<usize>,
    /// The latest change of any of them.
    latest: u64,
}

#[derive(Debug, Default)]
struct Referred {
    /// Its latest change since a node began to refer to it.
    changed: u64,
    /// The number of nodes that refer to it.
    nodes: usize,
}

impl Desired {
    /// Nobody follows anything yet; every change up to this revision may have concerned every node.
    pub fn new(revision: u64) -> Desired {
        Desired { nodes: BTreeMap::new(), objects: Objects::default(), unlisted: revision }
    }

    /// Adds a stored object, at start.
    pub fn restore(&mut self, kind: &Kind, object: &Object) {
        if let Some(node) = node_of(kind, object) {
            self.change(node, None, Some(object), self.unlisted, false);
        }
    }

    /// The revision of a node: a reader that read all objects that the node follows, at this revision or
    /// later, has missed no change.
    pub fn of(&self, node: &str) -> u64 {
        let known = |followed: &Followed| followed.own.max(followed.referred(&self.objects));
        self.nodes.get(node).map_or(self.unlisted, known)
    }

    /// Whether a node's Node, or a pod bound to it, refers to an object.
    pub fn refers(&self, node: &str, object: &Reference) -> bool {
        let followed = self.nodes.get(node);
        followed.zip(self.objects.positions.get(object)).is_some_and(|(of, at)| of.refers.contains_key(at))
    }

    /// Takes note of a change that is about to be published; in the order of revisions.
    pub fn note(&mut self, Changed { kind, event, author }: &Changed) {
        let (old, new) = (event.old.as_deref(), event.new.as_deref());
        let of = |object: Option<&Object>| object.and_then(|object| node_of(kind, object)).map(Box::from);
        let (from, to): (Option<Box<str>>, Option<Box<str>>) = (of(old), of(new));
        let by_itself = |node: &str| author.as_deref() == Some(node);
        match (from, to) {
            (Some(from), Some(to)) if from == to => {
                self.change(&to, old, new, event.revision, by_itself(&to));
            }
            (from, to) => {
                if let Some(from) = from {
                    self.change(&from, old, None, event.revision, by_itself(&from));
                }
                if let Some(to) = to {
                    self.change(&to, None, new, event.revision, by_itself(&to));
                }
            }
        }
        let object = event.object();
        self.objects.changed(&Reference::new(kind, &object.namespace, &object.name), event.revision);
    }

    /// Changes one of a node's sources.
    fn change(
        &mut self,
        node: &str,
        old: Option<&Object>,
        new: Option<&Object>,
        revision: u64,
        by_itself: bool,
    ) {
        let (was, is) = (refers(old), refers(new));
        if by_itself && old.is_some() && new.is_some() && was == is {
            return;
        }
        let (objects, unlisted) = (&mut self.objects, self.unlisted);
        let followed = self.nodes.entry(node.into()).or_insert_with(|| Followed::new(unlisted));
        // an object that it no longer follows may have had the latest change
        followed.own = followed.own.max(followed.referred(objects));
        // additions first: an object in both lists is then followed without a gap
        let mut more = false;
        is.iter().for_each(|reference| more |= followed.add(objects, reference));
        was.iter().for_each(|reference| followed.remove(objects, reference));
        followed.sources = followed.sources + usize::from(new.is_some()) - usize::from(old.is_some());
        if more || !by_itself {
            followed.own = followed.own.max(revision);
        }
        if followed.sources == 0 {
            self.nodes.remove(node);
            self.unlisted = self.unlisted.max(revision);
        }
    }
}

/// The node that follows an object because the object is its Node or bound to it.
fn node_of<'a>(kind: &Kind, object: &'a Object) -> Option<&'a str> {
    let node = match kind.kind {
        of if of == NODE.kind => &*object.name,
        of if of == POD.kind => object.field(NODE_NAME_FIELD),
        _ => "",
    };
    Some(node).filter(|node| !node.is_empty())
}

fn refers(object: Option<&Object>) -> &[Reference] {
    object.map_or(&[], |object| &object.refers)
}

impl Followed {
    fn new(own: u64) -> Followed {
        let (referred, looked_up_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Followed { sources: 0, own, refers: BTreeMap::new(), referred, looked_up_at }
    }

    /// The latest change of the objects that it refers to; computed once after each change of any such
    /// object.
    fn referred(&self, objects: &Objects) -> u64 {
        if self.looked_up_at.load(Ordering::Acquire) == objects.latest {
            return self.referred.load(Ordering::Relaxed);
        }
        let changed = self.refers.keys().map(|at| objects.list[*at].changed);
        let referred = changed.max().unwrap_or(0);
        // two concurrent readers compute the same
        self.referred.store(referred, Ordering::Relaxed);
        self.looked_up_at.store(objects.latest, Ordering::Release);
        referred
    }

    /// One more source refers to an object. Returns whether it is the first.
    fn add(&mut self, objects: &mut Objects, reference: &Reference) -> bool {
        let at = objects.position(reference);
        let sources = self.refers.entry(at).or_default();
        *sources += 1;
        let is_new = *sources == 1;
        objects.list[at].nodes += usize::from(is_new);
        is_new
    }

    /// One source less refers to an object.
    fn remove(&mut self, objects: &mut Objects, reference: &Reference) {
        let at = objects.position(reference);
        let Some(sources) = self.refers.get_mut(&at) else { return };
        *sources -= 1;
        if *sources == 0 {
            self.refers.remove(&at);
            objects.forget_one(at, reference);
        }
    }
}

impl Objects {
    /// The position of an object in the list; adds it if necessary.
    fn position(&mut self, reference: &Reference) -> usize {
        if let Some(at) = self.positions.get(reference) {
            return *at;
        }
        let at = self.free.pop().unwrap_or(self.list.len());
        if at == self.list.len() {
            self.list.push(Referred::default());
        }
        self.positions.insert(reference.clone(), at);
        at
    }

    /// One node less refers to it.
    fn forget_one(&mut self, at: usize, reference: &Reference) {
        self.list[at].nodes -= 1;
        if self.list[at].nodes == 0 {
            self.list[at] = Referred::default();
            self.positions.remove(reference);
            self.free.push(at);
        }
    }

    fn changed(&mut self, reference: &Reference, revision: u64) {
        if let Some(at) = self.positions.get(reference) {
            self.list[*at].changed = revision;
            self.latest = revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use kedge_rig::Random;
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::{CONFIG_MAP, SECRET, SERVICE_ACCOUNT, index_of};
    use crate::object::Event;

    const NODES: [&str; 3] = ["a", "b", "c"];

    /// Objects, and the effect of every change on each node.
    #[derive(Default)]
    struct World {
        revision: u64,
        objects: BTreeMap<Reference, (&'static Kind, Arc<Object>, Value)>,
        /// The last change that concerned each node.
        concerned: [u64; NODES.len()],
    }

    impl World {
        /// The objects that a node follows, by the definition.
        fn followed(&self, node: &str) -> BTreeSet<Reference> {
            let mut all = BTreeSet::from([Reference::new(&NODE, "", node)]);
            for (reference, (kind, object, value)) in &self.objects {
                if value["spec"]["nodeName"] == node
                    || (kind.kind == "Node" && value["metadata"]["name"] == node)
                {
                    all.insert(reference.clone());
                    all.extend(object.refers.iter().cloned());
                }
            }
            all
        }

        fn change(
            &mut self,
            kind: &'static Kind,
            name: &str,
            new: Option<Value>,
            author: Option<&'static str>,
        ) -> Changed {
            self.revision += 1;
            let reference = Reference::new(kind, if kind.namespaced { "x" } else { "" }, name);
            let before = NODES.map(|node| self.followed(node));
            let old = self.objects.remove(&reference).map(|(_, old, _)| old);
            let new = new.map(|value| {
                let new = Arc::new(Object::new(kind, &value, self.revision).unwrap());
                self.objects.insert(reference.clone(), (kind, new.clone(), value));
                new
            });
            for (node, before) in before.iter().enumerate() {
                if self.concerns(node, before, &reference, author) {
                    self.concerned[node] = self.revision;
                }
            }
            let event = Event { revision: self.revision, last: old.clone(), old, new };
            Changed { kind, event: Arc::new(event), author: author.map(Box::from) }
        }

        /// A change that a random history makes; `None` if there is nothing to delete.
        fn random(&mut self, random: &mut Random) -> Option<Changed> {
            let node = NODES[random.index(NODES.len())];
            let author = (random.index(3) == 0).then_some(node);
            let name = ["s", "t", "u"][random.index(3)];
            let kind = [&NODE, &POD, &POD, &CONFIG_MAP, &SECRET, &SERVICE_ACCOUNT][random.index(6)];
            let name = if kind.kind == "Node" { node } else { name };
            let reference = Reference::new(kind, if kind.namespaced { "x" } else { "" }, name);
            let is_there = self.objects.contains_key(&reference);
            let new = match random.index(4) {
                0 if !is_there => return None,
                0 => None,
                _ => Some(object(kind, name, random)),
            };
            Some(self.change(kind, name, new, author))
        }

        /// Whether a change concerns a node, by the definition: somebody else changed an object that it
        /// follows, or it follows more than `before`.
        fn concerns(
            &self,
            node: usize,
            before: &BTreeSet<Reference>,
            changed: &Reference,
            author: Option<&str>,
        ) -> bool {
            let after = self.followed(NODES[node]);
            let is_source = [&NODE, &POD].iter().any(|kind| index_of(kind) == changed.kind);
            let is_report = is_source && author == Some(NODES[node]);
            let is_followed = before.contains(changed) || after.contains(changed);
            (is_followed && !is_report) || after.iter().any(|now| now != changed && !before.contains(now))
        }

        fn is_listed(&self, node: &str) -> bool {
            self.followed(node).iter().any(|reference| {
                self.objects.get(reference).is_some_and(|(kind, ..)| matches!(kind.kind, "Node" | "Pod"))
            })
        }
    }

    fn object(kind: &Kind, name: &str, random: &mut Random) -> Value {
        let meta = json!({"name": name, "namespace": if kind.namespaced { "x" } else { "" }});
        let mut one = |of: [&'static str; 3]| of[random.index(3)];
        let spec = match kind.kind {
            "Node" => match one(["s", "t", ""]) {
                "" => json!({}),
                name => json!({"configSource": {"configMap": {"namespace": "x", "name": name}}}),
            },
            "Pod" => json!({
                "nodeName": if one(["", "n", "n"]).is_empty() { "" } else { one(NODES) },
                "serviceAccountName": one(["s", "t", "u"]),
                "volumes": [
                    {"name": "1", "secret": {"secretName": one(["s", "t", "u"])}},
                    {"name": "2", "configMap": {"name": one(["s", "t", "u"])}},
                ],
            }),
            _ => json!({}),
        };
        json!({"metadata": meta, "spec": spec})
    }

    fn check_sizes(desired: &Desired, world: &World) {
        for followed in desired.nodes.values() {
            assert!(followed.sources > 0);
        }
        let mut nodes = vec![0; desired.objects.list.len()];
        desired.nodes.values().flat_map(|followed| followed.refers.keys()).for_each(|at| nodes[*at] += 1);
        let counted: Vec<usize> = desired.objects.list.iter().map(|referred| referred.nodes).collect();
        assert_eq!(nodes, counted);
        let referred: BTreeSet<&Reference> = world
            .objects
            .values()
            .filter(|(kind, object, _)| node_of(kind, object).is_some())
            .flat_map(|(_, object, _)| object.refers.iter())
            .collect();
        assert_eq!(desired.objects.positions.keys().collect::<BTreeSet<_>>(), referred);
        let used = desired.objects.list.len() - desired.objects.free.len();
        assert_eq!(used, referred.len());
    }

    /// A node may read exactly the objects that its sources refer to.
    fn check_references(desired: &Desired, world: &World) {
        for node in NODES {
            let followed = world.followed(node);
            for kind in [&SECRET, &CONFIG_MAP, &SERVICE_ACCOUNT] {
                for name in ["s", "t", "u"] {
                    let object = Reference::new(kind, "x", name);
                    let expect = followed.contains(&object);
                    assert_eq!(desired.refers(node, &object), expect, "{node} {} {name}", kind.kind);
                }
            }
        }
    }

    /// Exactly as the definition requires, through any history, and over restarts no less.
    #[test]
    fn revisions_are_those_of_the_definition() {
        let (mut exact, mut higher) = (0, 0);
        for seed in 1..60 {
            let mut random = Random::new(seed);
            let mut world = World { revision: 10, ..World::default() };
            let mut desired = Desired::new(10);
            // for each node: since when its revision is exact
            let (mut since, mut before) = ([10; NODES.len()], [10; NODES.len()]);
            for _ in 0..80 {
                let Some(changed) = world.random(&mut random) else { continue };
                desired.note(&changed);
                if random.index(40) == 0 {
                    // an unclean start begins higher
                    world.revision += random.index(3) as u64;
                    desired = Desired::new(world.revision);
                    world.objects.values().for_each(|(kind, object, _)| desired.restore(kind, object));
                    since = [world.revision; NODES.len()];
                }
                check_sizes(&desired, &world);
                check_references(&desired, &world);
                for (node, name) in NODES.into_iter().enumerate() {
                    let (now, least) = (desired.of(name), world.concerned[node].max(since[node]));
                    assert!(now >= before[node], "seed {seed}: {name} fell from {} to {now}", before[node]);
                    assert!(now <= world.revision, "seed {seed}: {now} of {name} is not visible yet");
                    if world.is_listed(name) {
                        assert_eq!(now, least, "seed {seed}: {name}");
                        exact += 1;
                    } else {
                        assert!(now >= least, "seed {seed}: {name} is {now}, expected {least} at least");
                        higher += usize::from(now > least);
                        since[node] = now;
                    }
                    before[node] = now;
                }
            }
        }
        assert!(exact > 6_000 && higher > 50, "{exact} {higher} prove little");
    }

    fn pod(name: &str, node: &str, secret: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "x"},
            "spec": {"nodeName": node, "volumes": [{"name": "v", "secret": {"secretName": secret}}]}})
    }

    #[test]
    fn other_nodes_and_own_reports_raise_nothing() {
        let (mut world, mut desired) = (World::default(), Desired::new(0));
        let mut change = |kind, name: &str, new, author| {
            desired.note(&world.change(kind, name, new, author));
            NODES.map(|node| desired.of(node))
        };
        let node = |name: &str, assigned: &str| {
            let source = json!({"configMap": {"namespace": "x", "name": assigned}});
            Some(json!({"metadata": {"name": name}, "spec": {"configSource": source}}))
        };
        let named = |name: &str| Some(json!({"metadata": {"name": name, "namespace": "x"}}));
        assert_eq!(change(&CONFIG_MAP, "old", named("old"), None), [0, 0, 0], "nobody follows it");
        assert_eq!(change(&NODE, "a", node("a", "new"), None), [2, 0, 0]);
        assert_eq!(change(&NODE, "b", node("b", "new"), Some("b")), [2, 3, 0], "it follows more");
        assert_eq!(change(&NODE, "a", node("a", "new"), Some("a")), [2, 3, 0], "its own report");
        assert_eq!(change(&NODE, "a", node("a", "new"), Some("b")), [5, 3, 0], "somebody else's");
        assert_eq!(change(&NODE, "a", node("a", "old"), None), [6, 3, 0], "assigned to an older object");
        assert_eq!(change(&CONFIG_MAP, "old", None, None), [7, 3, 0], "which is deleted");
        assert_eq!(change(&POD, "p", Some(pod("p", "", "key")), None), [7, 3, 0], "not bound");
        assert_eq!(change(&POD, "p", Some(pod("p", "b", "key")), None), [7, 9, 0]);
        assert_eq!(change(&SECRET, "key", named("key"), None), [7, 10, 0], "created");
        assert_eq!(
            change(&POD, "p", None, Some("b")),
            [7, 10, 0],
            "it confirms the end of its pod, and nothing falls"
        );
        assert_eq!(change(&SECRET, "key", named("key"), None), [7, 10, 0], "followed no longer");
    }

    /// Neither the cost of one edit of a ConfigMap nor the memory for it depends on the number of nodes that
    /// follow it.
    #[test]
    fn shared_object_is_one_number() {
        let (mut world, mut desired) = (World { revision: 10, ..World::default() }, Desired::new(10));
        let source = json!({"configMap": {"namespace": "x", "name": "all"}});
        for number in 0..5000 {
            let name = format!("n{number}");
            let node = json!({"metadata": {"name": name}, "spec": {"configSource": source}});
            desired.restore(&NODE, &Object::new(&NODE, &node, 5).unwrap());
        }
        let named = |name: &str| Some(json!({"metadata": {"name": name, "namespace": "x"}}));
        desired.note(&world.change(&CONFIG_MAP, "all", named("all"), None));
        assert_eq!((desired.objects.list.len(), desired.objects.list[0].changed), (1, 11));
        let told = |desired: &Desired, expect: u64| {
            (0..5000).all(|number| desired.of(&format!("n{number}")) == expect)
        };
        let looked_up = |desired: &Desired| {
            desired.nodes.values().filter(|node| node.looked_up_at.load(Ordering::Relaxed) == 11).count()
        };
        assert_eq!(looked_up(&desired), 0, "the edit visits no node");
        assert!(told(&desired, 11));
        assert_eq!(looked_up(&desired), 5000);
        desired.note(&world.change(&CONFIG_MAP, "other", named("other"), None));
        assert!(told(&desired, 11));
    }
}
