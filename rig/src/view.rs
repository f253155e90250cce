//! The view of Nodes, Leases and Events through the API server.
//!
//! Owns one `kubectl get --watch` per resource and the state that is built from their output. Always holds:
//! the whole state came through the API; nothing is taken from a node's disk or process. A watch that ends
//! (because the hub restarts) is begun again, and until then the state is the last known one. Objects that
//! were deleted while no watch ran stay in it.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::RigError;
use crate::kubectl::Kubectl;

/// The resources that are watched.
const WATCHED: [(&str, &[&str]); 3] = [
    ("nodes", &["get", "nodes"]),
    ("leases", &["get", "leases", "-n", "kube-node-lease"]),
    ("events", &["get", "events", "-A"]),
];
/// Pause before a watch is begun again.
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// Interval of checks during a wait even if nothing changed: for conditions that depend on time.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Most remembered renewals of one node, and facts in total: some hours of a try-out. The oldest half is
/// dropped first.
const REMEMBERED: usize = 20_000;

/// One change that the API showed.
#[derive(Debug, Clone)]
pub struct Fact {
    /// The time at which it was seen here.
    pub at: Instant,
    /// The node that it concerns.
    pub node: String,
    /// The change.
    pub kind: FactKind,
}

/// The kinds of [`Fact`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactKind {
    /// A condition has a new status, message or reason.
    Condition {
        /// Its type, such as `ConfigOK`.
        name: String,
        /// `True`, `False` or `Unknown`.
        status: String,
        /// The text for people.
        message: String,
        /// Also for people, in `ConfigOK`'s case.
        reason: String,
    },
    /// `status.config` has changed.
    Config(ConfigStatus),
    /// An event about the node.
    Event {
        /// Its reason.
        reason: String,
        /// Its message.
        message: String,
    },
}

/// `Node.status.config`, reduced to UIDs. `None` means local.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigStatus {
    /// UID of the ConfigMap the node acknowledges as assigned.
    pub assigned: Option<String>,
    /// UID of the one in use.
    pub active: Option<String>,
    /// UID of the last-known-good.
    pub last_known_good: Option<String>,
    /// The reason why active is not assigned, or empty.
    pub error: String,
}

/// The state that the API shows.
#[derive(Debug, Default)]
pub struct World {
    nodes: BTreeMap<String, Value>,
    renew_times: BTreeMap<String, String>,
    renewals: BTreeMap<String, Vec<Instant>>,
    facts: Vec<Fact>,
    /// The last seen Events, by UID: a watch that is begun again shows them all once more.
    events: BTreeMap<String, String>,
    /// Number of facts dropped from the front, so that an index into all facts stays valid.
    dropped: usize,
}

impl World {
    /// The Node object as last seen.
    pub fn node(&self, name: &str) -> Option<&Value> {
        self.nodes.get(name)
    }

    /// A condition of a node: (status, message, reason).
    pub fn condition(&self, node: &str, name: &str) -> Option<(&str, &str, &str)> {
        conditions(self.nodes.get(node)?).find(|(found, ..)| *found == name).map(|(_, s, m, r)| (s, m, r))
    }

    /// `status.config` of a node; all fields are `None` if it is absent.
    pub fn config(&self, node: &str) -> ConfigStatus {
        self.nodes.get(node).map(config_status).unwrap_or_default()
    }

    /// The number of changes of the Lease's renewTime, as seen here.
    pub fn renewal_count(&self, node: &str) -> usize {
        self.renewals.get(node).map_or(0, Vec::len)
    }

    /// The times at which renewals of the node's Lease were seen.
    pub fn renewals(&self, node: &str) -> &[Instant] {
        self.renewals.get(node).map_or(&[], Vec::as_slice)
    }

    /// The longest time between two renewals after `since`, counting the one before it and the time up to
    /// now.
    pub fn longest_silence(&self, node: &str, since: Instant) -> Duration {
        let renewals = self.renewals(node);
        let first = renewals.partition_point(|at| *at < since).saturating_sub(1);
        let mut times = renewals[first..].to_vec();
        times.push(Instant::now());
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
    }

    /// All facts so far, and the number of older ones that were dropped.
    pub fn facts(&self) -> (&[Fact], usize) {
        (&self.facts, self.dropped)
    }

    /// True if an event about this node with this reason was seen whose message contains `part`.
    pub fn saw_event(&self, node: &str, reason: &str, part: &str) -> bool {
        self.facts.iter().any(|fact| {
            fact.node == node
                && matches!(&fact.kind, FactKind::Event { reason: found, message }
                    if found == reason && message.contains(part))
        })
    }

    /// Takes in one object from a watch.
    fn take(&mut self, resource: &str, deleted: bool, object: Value) {
        let name = text(&object, "/metadata/name").to_owned();
        match resource {
            "nodes" if deleted => drop(self.nodes.remove(&name)),
            "nodes" => self.take_node(name, object),
            "leases" if !deleted => self.take_lease(name, &object),
            "events" if !deleted => self.take_event(&object),
            _ => {}
        }
    }

    fn take_node(&mut self, name: String, node: Value) {
        let before = self.nodes.insert(name.clone(), node);
        let node = &self.nodes[&name];
        let known: Vec<_> = before.iter().flat_map(conditions).collect();
        let mut news: Vec<FactKind> = conditions(node)
            .filter(|condition| !known.contains(condition))
            .map(|(name, status, message, reason)| FactKind::Condition {
                name: name.to_owned(),
                status: status.to_owned(),
                message: message.to_owned(),
                reason: reason.to_owned(),
            })
            .collect();
        let config = config_status(node);
        if config != before.as_ref().map(config_status).unwrap_or_default() {
            news.push(FactKind::Config(config));
        }
        for kind in news {
            self.remember(name.clone(), kind);
        }
    }

    fn take_lease(&mut self, name: String, lease: &Value) {
        let renewed = text(lease, "/spec/renewTime").to_owned();
        if self.renew_times.insert(name.clone(), renewed.clone()).as_ref() != Some(&renewed) {
            let renewals = self.renewals.entry(name).or_default();
            if renewals.len() == REMEMBERED {
                renewals.drain(..REMEMBERED / 2);
            }
            renewals.push(Instant::now());
        }
    }

    fn take_event(&mut self, event: &Value) {
        let [uid, version] =
            ["/metadata/uid", "/metadata/resourceVersion"].map(|at| text(event, at).to_owned());
        if self.events.len() == REMEMBERED {
            self.events.clear();
        }
        if self.events.insert(uid, version.clone()).as_ref() == Some(&version) {
            return;
        }
        let kind = FactKind::Event {
            reason: text(event, "/reason").to_owned(),
            message: text(event, "/message").to_owned(),
        };
        if text(event, "/involvedObject/kind") == "Node" {
            self.remember(text(event, "/involvedObject/name").to_owned(), kind);
        }
    }

    fn remember(&mut self, node: String, kind: FactKind) {
        if self.facts.len() == REMEMBERED {
            self.facts.drain(..REMEMBERED / 2);
            self.dropped += REMEMBERED / 2;
        }
        self.facts.push(Fact { at: Instant::now(), node, kind });
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// (type, status, message, reason) of each condition.
fn conditions(node: &Value) -> impl Iterator<Item = (&str, &str, &str, &str)> {
    node.pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|one| (text(one, "/type"), text(one, "/status"), text(one, "/message"), text(one, "/reason")))
}

fn config_status(node: &Value) -> ConfigStatus {
    // either form of the source carries the UID
    let uid = |role: &str| {
        let source = node.pointer("/status/config")?.get(role)?;
        ["/configMapRef/uid", "/configMap/uid"]
            .iter()
            .find_map(|pointer| source.pointer(pointer).and_then(Value::as_str))
            .map(str::to_owned)
    };
    ConfigStatus {
        assigned: uid("assigned"),
        active: uid("active"),
        last_known_good: uid("lastKnownGood"),
        error: text(node, "/status/config/error").to_owned(),
    }
}

#[derive(Default)]
struct Shared {
    world: Mutex<World>,
    changed: Condvar,
    over: AtomicBool,
    complaint: Mutex<String>,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches until it is dropped.
pub struct View {
    shared: Arc<Shared>,
    watches: Vec<Watch>,
}

struct Watch {
    /// The running kubectl, if any.
    child: Arc<Mutex<Option<Child>>>,
    thread: JoinHandle<()>,
}

impl View {
    /// Begins to watch with this identity, which must be allowed to list all Nodes, Leases and Events.
    pub fn open(kubectl: &Kubectl) -> Result<View, RigError> {
        let mut view = View { shared: Arc::default(), watches: Vec::new() };
        for (resource, arguments) in WATCHED {
            let shared = view.shared.clone();
            let child = Arc::new(Mutex::new(None));
            let (kubectl, slot) = (kubectl.clone(), child.clone());
            let thread = std::thread::Builder::new()
                .name(format!("watch-{resource}"))
                .spawn(move || keep_watching(&kubectl, resource, arguments, &shared, &slot))
                .map_err(|source| RigError::Io { tried: format!("start the watch of {resource}"), source })?;
            view.watches.push(Watch { child, thread });
        }
        Ok(view)
    }

    /// Reads the state.
    pub fn look<T>(&self, at: impl FnOnce(&World) -> T) -> T {
        at(&self.shared.world())
    }

    /// Waits until the API shows the awaited state. `on_look` is called at every check, including the last,
    /// and may end the wait.
    pub fn wait(
        &self,
        awaited: &str,
        limit: Duration,
        mut on_look: impl FnMut(&World) -> Result<(), RigError>,
        is_so: impl Fn(&World) -> bool,
    ) -> Result<(), RigError> {
        let start = Instant::now();
        let mut world = self.shared.world();
        loop {
            on_look(&world)?;
            if is_so(&world) {
                return Ok(());
            }
            if start.elapsed() >= limit {
                return Err(self.timed_out(awaited, limit, &world));
            }
            (world, _) =
                self.shared.changed.wait_timeout(world, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// [`View::wait`] without `on_look`.
    pub fn wait_for(
        &self,
        awaited: &str,
        limit: Duration,
        is_so: impl Fn(&World) -> bool,
    ) -> Result<(), RigError> {
        self.wait(awaited, limit, |_| Ok(()), is_so)
    }

    fn timed_out(&self, awaited: &str, limit: Duration, world: &World) -> RigError {
        let mut found: Vec<String> = world.nodes.keys().map(|name| describe(world, name)).collect();
        let complaint = self.shared.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        if !complaint.is_empty() {
            found.push(format!("kubectl: {}", complaint.trim_end()));
        }
        RigError::TimedOut {
            awaited: format!("{awaited} ({} s)", limit.as_secs()),
            found: if found.is_empty() { "no node".to_owned() } else { found.join("; ") },
        }
    }
}

fn describe(world: &World, node: &str) -> String {
    let show = |name: &str| match world.condition(node, name) {
        Some((status, message, reason)) => format!("{name}={status} \"{message}\" / \"{reason}\""),
        None => format!("no {name}"),
    };
    let ready = world.condition(node, "Ready").map_or("no", |(status, ..)| status);
    format!("{node}: {}, {:?}, Ready={ready}", show("ConfigOK"), world.config(node))
}

impl Drop for View {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for Watch { child, .. } in &self.watches {
            if let Some(child) = child.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                let _ = child.kill();
            }
        }
        for Watch { thread, .. } in self.watches.drain(..) {
            let _ = thread.join();
        }
    }
}

fn keep_watching(
    kubectl: &Kubectl,
    resource: &str,
    arguments: &[&str],
    shared: &Shared,
    slot: &Mutex<Option<Child>>,
) {
    while !shared.over.load(Ordering::SeqCst) {
        if let Err(error) = watch_once(kubectl, resource, arguments, shared, slot) {
            *shared.complaint.lock().unwrap_or_else(PoisonError::into_inner) =
                format!("watch of {resource}: {error}");
        }
        // not waiting for an event: this only limits the rate of requests to a hub that is away
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn watch_once(
    kubectl: &Kubectl,
    resource: &str,
    arguments: &[&str],
    shared: &Shared,
    slot: &Mutex<Option<Child>>,
) -> Result<(), String> {
    let mut child = kubectl
        .command()
        .args(arguments)
        .args(["--watch", "--output-watch-events", "-o", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
    let stderr = child.stderr.take().expect("standard error was asked to be a pipe");
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
    // checked once the child is in its slot: an end announced before that found no child to kill
    if shared.over.load(Ordering::SeqCst) {
        kill_and_reap(slot);
        return Ok(());
    }
    let mut problem = None;
    for document in serde_json::Deserializer::from_reader(BufReader::new(stdout)).into_iter::<Value>() {
        match document {
            Ok(document) => take_document(resource, document, shared),
            Err(error) => {
                problem = Some(error.to_string());
                break;
            }
        }
    }
    kill_and_reap(slot);
    let complaint = std::io::read_to_string(stderr).unwrap_or_default();
    match (problem, complaint.trim()) {
        (None, "") => Ok(()),
        (None, complaint) => Err(complaint.to_owned()),
        (Some(problem), complaint) => Err(format!("{problem} {complaint}")),
    }
}

fn kill_and_reap(slot: &Mutex<Option<Child>>) {
    let child = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn take_document(resource: &str, mut document: Value, shared: &Shared) {
    let deleted = document.get("type").and_then(Value::as_str) == Some("DELETED");
    let Some(object) = document.get_mut("object").map(Value::take) else {
        return;
    };
    shared.world().take(resource, deleted, object);
    shared.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(status: &str, message: &str, assigned: Option<&str>) -> Value {
        let mut node = json!({
            "metadata": {"name": "edge-1"},
            "status": {"conditions": [{"type": "ConfigOK", "status": status, "message": message, "reason": "r"}]}
        });
        if let Some(uid) = assigned {
            node["status"]["config"] = json!({"assigned": {"configMapRef": {"uid": uid}}, "error": "no"});
        }
        node
    }

    #[test]
    fn unchanged_node_adds_no_fact() {
        let mut world = World::default();
        world.take("nodes", false, node("True", "m", None));
        world.take("nodes", false, node("True", "m", None));
        assert_eq!(world.facts().0.len(), 1);
        world.take("nodes", false, node("True", "m", Some("u")));
        world.take("nodes", false, node("False", "n", Some("u")));
        let kinds: Vec<_> = world.facts().0.iter().map(|fact| fact.kind.clone()).collect();
        let config =
            ConfigStatus { assigned: Some("u".into()), error: "no".into(), ..ConfigStatus::default() };
        assert_eq!(kinds[1], FactKind::Config(config.clone()));
        assert!(matches!(&kinds[2], FactKind::Condition { status, .. } if status == "False"));
        assert_eq!(world.config("edge-1"), config);
        assert_eq!(world.condition("edge-1", "ConfigOK"), Some(("False", "n", "r")));
    }

    #[test]
    fn renewal_is_a_changed_renew_time() {
        let mut world = World::default();
        let start = Instant::now();
        assert_eq!(world.longest_silence("edge-1", start), Duration::MAX);
        for time in ["1", "2", "2", "3"] {
            world.take("leases", false, json!({"metadata": {"name": "edge-1"}, "spec": {"renewTime": time}}));
        }
        assert_eq!(world.renewal_count("edge-1"), 3);
        assert!(world.longest_silence("edge-1", start) <= start.elapsed());
    }
}
