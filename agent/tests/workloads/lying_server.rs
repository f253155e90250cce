//! An API server that lies, and the fate of the containers on a node that listens to it: the real agent and
//! crun, a server that is a script.
//!
//! Always holds: a container ends only because a list that could be read, under the Node that the pod is
//! bound to, lacks its pod, or an event of a watch says so; whatever else the server answers, the same
//! processes run, each once. Once the server is honest again the node runs what it says. Lies make nothing
//! grow, and the node deletes no pod from the server because of them.

use crate::cuts::stays;
use crate::killed_agents::pids;
use crate::net_server::{Authority, Chunks, Heard, NOW, Reply, Server, ServerOptions};
use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const FIRST: &str = "first";
const SECOND: &str = "second";

/// The server's objects, and how it lies.
struct World {
    node_uid: String,
    pods: BTreeMap<String, Value>,
    version: u64,
    /// Sent in place of a list of pods: of the next one, or of each.
    list: Option<List>,
    repeats: bool,
    /// Sent in place of the next watch of pods, once.
    watch: Option<Watch>,
    /// Every watch of pods is refused: its version is too old.
    forgets: bool,
    /// Watches end when this changes, and the version they began with is then too old.
    generation: u64,
    /// Lists and watches of pods that the node requested since the latest change, not counting those that
    /// were answered with a lie.
    lists: usize,
    watches: usize,
    /// Lists of pods that were answered with a lie since then.
    lies: usize,
    deleted: Vec<String>,
}

type List = Arc<dyn Fn(&World) -> Reply + Send + Sync>;
type Watch = Arc<dyn Fn(&World, &mut Chunks<'_>) + Send + Sync>;

impl World {
    fn list(&self, kind: &str, items: impl IntoIterator<Item = Value>) -> Value {
        let items: Vec<Value> = items.into_iter().collect();
        let metadata = json!({"resourceVersion": self.version.to_string()});
        json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": metadata, "items": items})
    }

    fn honest(&self) -> Value {
        self.list("Pod", self.pods.values().cloned())
    }

    fn node(&self) -> Value {
        json!({"metadata": {"name": NODE, "uid": self.node_uid, "resourceVersion": "60"}, "spec": {}})
    }

    /// Stores the status that the node reported for this pod.
    fn patch_status(&mut self, name: &str, patch: &Value) {
        if let (Some(pod), Some(fields)) = (self.pods.get_mut(name), patch["status"].as_object()) {
            let status = pod["status"].as_object_mut().unwrap();
            status.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
    }
}

/// The server's state, and a bell for whoever waits for a change of it.
#[derive(Clone)]
struct Shared(Arc<(Mutex<World>, Condvar)>);

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the server's state; watches end, and the node requests lists again.
    fn change(&self, change: impl FnOnce(&mut World)) {
        let mut world = self.world();
        change(&mut world);
        world.version += 10;
        world.generation += 1;
        (world.lists, world.watches, world.lies) = (0, 0, 0);
        self.0.1.notify_all();
    }

    fn answer(&self, heard: &Heard) -> Reply {
        let (path, query) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
        let mut world = self.world();
        let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok());
        match (heard.method.as_str(), path) {
            ("GET", "/version") => Reply::ok(r#"{"gitVersion":"v1.36.0"}"#),
            // a change happened between the list and this watch, so the watch could not show it
            ("GET", NODES | PODS) if from.is_some_and(|from: u64| from < world.version) => {
                Reply::Chunks(Box::new(|body| body.send(&expired())))
            }
            ("GET", NODES) if query.contains("watch=true") => self.watch(world.generation, None),
            ("GET", NODES) => Reply::ok(&world.list("Node", [world.node()]).to_string()),
            ("GET", PODS) if query.contains("watch=true") => {
                let lie = world.watch.take();
                world.watches += usize::from(lie.is_none());
                match world.forgets {
                    true => Reply::Chunks(Box::new(|body| body.send(&expired()))),
                    false => self.watch(world.generation, lie),
                }
            }
            ("GET", PODS) => match world.list.clone() {
                Some(lie) => {
                    world.lies += 1;
                    if !world.repeats {
                        world.list = None;
                    }
                    lie(&world)
                }
                None => {
                    world.lists += 1;
                    Reply::ok(&world.honest().to_string())
                }
            },
            ("PATCH", path) if path.contains("/pods/") => {
                let name = path.trim_end_matches("/status").rsplit('/').next().unwrap().to_owned();
                world.patch_status(&name, &serde_json::from_str(&heard.body).unwrap());
                Reply::ok("{}")
            }
            ("DELETE", path) => {
                world.deleted.push(path.to_owned());
                Reply::ok("{}")
            }
            ("PATCH" | "POST", _) => Reply::ok("{}"),
            _ => Reply::status(404, "NotFound", "not found"),
        }
    }

    fn watch(&self, generation: u64, lie: Option<Watch>) -> Reply {
        let shared = self.clone();
        Reply::Chunks(Box::new(move |body| {
            let world = shared.world();
            if let Some(lie) = lie {
                return lie(&world, body);
            }
            // an event, because it ends the pauses that lies have made longer
            let metadata = json!({"resourceVersion": (world.version + 1).to_string()});
            body.send(&event("BOOKMARK", &json!({"kind": "Pod", "metadata": metadata})));
            // the client may be gone long before: nobody minds
            drop(shared.0.1.wait_while(world, |world| world.generation == generation).unwrap());
            body.send(&expired());
        }))
    }
}

fn expired() -> String {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410});
    format!("{}\n", json!({"type": "ERROR", "object": status}))
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// The pod with another UID, as if it had been made anew.
fn made_anew(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["metadata"]["uid"] = json!(format!("{}-anew", pod["metadata"]["uid"].as_str().unwrap()));
    pod["status"] = json!({"phase": "Pending"});
    pod
}

/// The node's reaction to a lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// The same processes keep running.
    GoesOn,
    /// The server meant it: these end, the others keep running.
    Ends(&'static [&'static str]),
    /// The first ends, and one of its successor runs.
    Succeeds,
}

struct Node {
    shared: Shared,
    /// Where containers write.
    scratch: PathBuf,
    setup: Setup,
    // its thread serves until the process ends
    _server: Server,
}

impl Node {
    fn new() -> Self {
        let mut setup = Setup::before_the_agent();
        let scratch = setup.cluster.scratch().join("shared");
        fs::create_dir(&scratch).unwrap();
        let world = World {
            node_uid: "node-uid-1".into(),
            pods: pods_of(&scratch),
            version: 1000,
            list: None,
            repeats: false,
            watch: None,
            forgets: false,
            generation: 0,
            lists: 0,
            watches: 0,
            lies: 0,
            deleted: vec![],
        };
        let shared = Shared(Arc::new((Mutex::new(world), Condvar::new())));
        let authority = Authority::new("liar");
        let identity = authority.identity(&["127.0.0.1"], NOW);
        let options = ServerOptions {
            listen: "127.0.0.1:0",
            identity: &identity,
            clients: None,
            versions: rustls::ALL_VERSIONS,
        };
        let script = shared.clone();
        let server = Server::start_with(&options, move |heard| script.answer(heard));
        let directory = setup.cluster.agent(NODE).kubeconfig().parent().unwrap().to_owned();
        fs::write(directory.join("liar.pem"), &authority.pem).unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://{}', certificate-authority: liar.pem}}}}]\n\
             users: [{{name: u, user: {{token: secret}}}}]\n",
            server.address
        );
        setup.cluster.agent(NODE).replace_kubeconfig(&text).unwrap();
        // not before the kubeconfig leads to the liar: the agent never meets the real hub
        setup.cluster.agent_mut(NODE).start().unwrap();
        let node = Self { shared, scratch, setup, _server: server };
        node.shows("both pods run", || node.running().iter().all(|pids| pids.len() == 1));
        node
    }

    #[track_caller]
    fn shows(&self, what: &str, is_so: impl Fn() -> bool) {
        self.setup.shows(what, is_so);
    }

    /// The processes of each pod's container.
    fn running(&self) -> [Vec<i64>; 2] {
        [pids(FIRST), pids(SECOND)]
    }

    /// Tells a lie once, waits until the node requests more, and is honest again. A lie that ends containers
    /// is repeated until they have ended.
    fn check(&self, what: &str, list: Option<List>, watch: Option<Watch>, then: Then) {
        let before = self.running();
        let least = usize::from(list.is_some());
        self.shared.change(|world| {
            (world.list, world.watch, world.repeats) = (list, watch, then != Then::GoesOn);
        });
        // the node's next request shows that it has finished with the lie
        let is_heard = |world: &World| world.lies >= least && world.watch.is_none() && world.watches > 0;
        self.awaits(&format!("{what}: it was heard"), is_heard);
        let ends: &[&str] = match then {
            Then::GoesOn => &[],
            Then::Ends(names) => names,
            Then::Succeeds => &[FIRST],
        };
        let names = || [FIRST, SECOND].into_iter().enumerate();
        self.shows(&format!("{what}: the end of what is not there"), || {
            let now = self.running();
            names().all(|(at, name)| !ends.contains(&name) || before[at] != now[at])
        });
        // the pods that end in turn, once the server is honest again
        let mut ending = before.clone();
        if then == Then::Succeeds {
            self.shows(&format!("{what}: its successor"), || {
                let now = self.running();
                now[0].len() == 1 && now[0] != before[0]
            });
            ending = self.running();
        }
        let others = |when: &str| {
            let now = self.running();
            for (at, name) in names().filter(|(_, name)| !ends.contains(name)) {
                assert_eq!(now[at], before[at], "{what}: {name} {when}; {}", self.log());
            }
        };
        others("after the lie");
        self.shared.change(|world| world.list = None);
        self.awaits(&format!("{what}: honest again"), |world| world.lists > 0 && world.watches > 0);
        self.shows(&format!("{what}: one of each runs"), || {
            let now = self.running();
            let is_anew = names().all(|(at, name)| !ends.contains(&name) || now[at] != ending[at]);
            is_anew && now.iter().all(|pids| pids.len() == 1) && self.says_running()
        });
        others("at last");
        assert_eq!(self.shared.world().deleted, Vec::<String>::new(), "{what}");
        assert!(!self.log().contains("panicked"), "{what}: {}", self.log());
    }

    fn awaits(&self, what: &str, is_so: impl Fn(&World) -> bool) {
        let reached = kedge_rig::scratch::poll(LIMIT, || is_so(&self.shared.world()).then_some(()));
        assert!(reached.is_some(), "waited in vain: {what}\n{}", self.log());
    }

    fn says_running(&self) -> bool {
        let world = self.shared.world();
        world.pods.values().all(|pod| pod["status"]["phase"] == "Running")
    }

    /// How many pods the agent shows as orphaned: those of another Node than it has seen last.
    fn orphans(&self) -> usize {
        let pods = self.setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
        pods["pods"].as_array().into_iter().flatten().filter(|pod| pod["isOrphaned"] == true).count()
    }

    fn log(&self) -> String {
        self.setup.cluster.agent(NODE).log_text()
    }

    #[track_caller]
    fn has_not_grown(&self, begin: &(BTreeSet<String>, usize, usize)) {
        wait_until("what is left", LIMIT, || self.sizes().0 == begin.0);
        let end = self.sizes();
        assert!(end.1 <= begin.1 + 1 && end.2 <= begin.2 + 2, "{begin:?} before, {end:?} after");
    }

    /// Resources that time and lies could make grow: files of pods, their logs, and the agent's descriptors.
    fn sizes(&self) -> (BTreeSet<String>, usize, usize) {
        let names = |path: &Path| -> BTreeSet<String> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let root = self.setup.cluster.agent(NODE).root_dir();
        let pid = self.setup.cluster.agent(NODE).babysitter().state().pid.unwrap();
        let open = names(Path::new(&format!("/proc/{pid}/fd"))).len();
        (names(&root.join("pods/desired")), names(Path::new("/var/log/pods")).len(), open)
    }
}

fn pods_of(shared: &Path) -> BTreeMap<String, Value> {
    [FIRST, SECOND].map(|name| (name.to_owned(), pod(name, shared))).into()
}

fn pod(name: &'static str, shared: &Path) -> Value {
    let mut pod = stays(name, name, shared, &Value::Null);
    let metadata = json!({"name": name, "namespace": "default", "uid": format!("{name}-uid"), "resourceVersion": "70",
        "creationTimestamp": "2026-01-01T00:00:00Z"});
    pod["metadata"] = metadata;
    pod["spec"]["nodeName"] = json!(NODE);
    pod["status"] = json!({"phase": "Pending"});
    pod
}

fn lists(lie: impl Fn(&World) -> Value + Send + Sync + 'static) -> Option<List> {
    Some(Arc::new(move |world| Reply::ok(&lie(world).to_string())))
}

fn replies(lie: impl Fn(&World) -> Reply + Send + Sync + 'static) -> Option<List> {
    Some(Arc::new(lie))
}

/// Each pod of the honest list, changed.
fn each(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Option<List> {
    lists(move |world| {
        let mut list = world.honest();
        list["items"].as_array_mut().unwrap().iter_mut().for_each(&change);
        list
    })
}

/// Events, and then the end of the watch.
fn watches(lie: impl Fn(&World) -> String + Send + Sync + 'static) -> Option<Watch> {
    Some(Arc::new(move |world, body| {
        body.send(&lie(world));
        body.send(&expired());
    }))
}

/// The pod as an event of a watch has it, changed.
fn first(world: &World, change: impl Fn(&mut Value)) -> Value {
    let mut pod = world.pods[FIRST].clone();
    pod["kind"] = json!("Pod");
    pod["metadata"]["resourceVersion"] = json!((world.version + 1).to_string());
    change(&mut pod);
    pod
}

#[test]
fn lists_that_lie_end_no_container() {
    isolated_network("lying_server::lists_that_lie_end_no_container", || {
        let node = Node::new();
        let config_map =
            json!({"kind": "ConfigMap", "metadata": {"name": FIRST, "namespace": "default", "uid": "x"}});
        let of_lists: [(&str, Option<List>); 18] = [
            ("an error page", replies(|_| Reply::ok("<html>504 Gateway Time-out</html>"))),
            ("an empty answer", replies(|_| Reply::ok(""))),
            ("null", lists(|_| Value::Null)),
            (
                "a failure with status 200",
                lists(|_| json!({"kind": "Status", "status": "Failure", "code": 500})),
            ),
            ("an empty list of another kind", lists(|world| world.list("ConfigMap", []))),
            (
                "a list without items",
                lists(|_| json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}})),
            ),
            (
                "an empty list without a version",
                lists(|_| json!({"kind": "PodList", "metadata": {}, "items": []})),
            ),
            (
                "items that are no list",
                lists(|_| json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": {}})),
            ),
            (
                "half of the list",
                replies(|world| {
                    let text = world.honest().to_string();
                    Reply::ok(&text[..text.len() / 2])
                }),
            ),
            (
                "a list that breaks off",
                replies(|world| {
                    let text = world.honest().to_string();
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
                    Reply::Cut(format!("{head}{}", &text[..text.len() / 2]).into_bytes())
                }),
            ),
            (
                "the first page of a list, and no second",
                replies(|world| {
                    let mut list = world.list("Pod", []);
                    list["metadata"]["continue"] = json!("more");
                    list["metadata"]["resourceVersion"] = json!("");
                    Reply::ok(&list.to_string())
                }),
            ),
            ("items of another kind", lists(move |world| world.list("Pod", [config_map.clone()]))),
            ("items without anything", lists(|world| world.list("Pod", [json!({}), json!({})]))),
            (
                "items that are no objects",
                lists(|world| world.list("Pod", [json!("first"), Value::Null, json!([])])),
            ),
            ("items without a UID", each(|pod| drop(pod["metadata"].as_object_mut().unwrap().remove("uid")))),
            ("pods that another node has", each(|pod| pod["spec"]["nodeName"] = json!("edge-2"))),
            (
                "many pods of other nodes, and ours twice",
                lists(|world| {
                    let others = (0..500).map(|at| {
                        let mut pod = world.pods[FIRST].clone();
                        (pod["metadata"]["name"], pod["metadata"]["uid"]) =
                            (json!(format!("o{at}")), json!(format!("o{at}")));
                        pod["spec"]["nodeName"] = json!("edge-2");
                        pod
                    });
                    let ours = || world.pods.values().cloned();
                    world.list("Pod", others.chain(ours()).chain(ours()))
                }),
            ),
            (
                "older versions, with the status of others",
                lists(|world| {
                    let mut list = world.honest();
                    let statuses: Vec<Value> =
                        world.pods.values().rev().map(|pod| pod["status"].clone()).collect();
                    list["metadata"]["resourceVersion"] = json!("3");
                    for (pod, status) in list["items"].as_array_mut().unwrap().iter_mut().zip(statuses) {
                        (pod["metadata"]["resourceVersion"], pod["status"]) = (json!("2"), status);
                    }
                    list
                }),
            ),
        ];
        // the files and descriptors before the first lie
        let begin = node.sizes();
        for (what, list) in of_lists {
            node.check(what, list, None, Then::GoesOn);
        }
        // the node believes the server's true statements
        let both = &[FIRST, SECOND];
        node.check("an empty list", lists(|world| world.list("Pod", [])), None, Then::Ends(both));
        let null = |world: &World| {
            let mut list = world.list("Pod", []);
            list["items"] = Value::Null;
            list
        };
        node.check("an empty list as null", lists(null), None, Then::Ends(both));
        let one = |world: &World| world.list("Pod", [world.pods[SECOND].clone()]);
        node.check("a list of the other", lists(one), None, Then::Ends(&[FIRST]));
        let anew =
            |world: &World| world.list("Pod", [made_anew(&world.pods[FIRST]), world.pods[SECOND].clone()]);
        node.check("a successor of its name", lists(anew), None, Then::Succeeds);

        // the Node of another cluster, which has no pods
        let before = node.running();
        node.shared.change(|world| {
            world.node_uid = "node-uid-2".into();
            std::mem::take(&mut world.pods);
        });
        node.shows("another Node", || node.orphans() == 2);
        assert_eq!(node.running(), before, "{}", node.log());
        node.shared
            .change(|world| (world.node_uid, world.pods) = ("node-uid-1".into(), pods_of(&node.scratch)));
        node.shows("its own Node", || node.orphans() == 0);
        node.shows("both run", || node.says_running());
        assert_eq!(node.running(), before, "{}", node.log());
        node.has_not_grown(&begin);
    });
}

#[test]
fn watches_that_lie_end_no_container() {
    isolated_network("lying_server::watches_that_lie_end_no_container", || {
        let node = Node::new();
        let begin = node.sizes();
        let of_watches: [(&str, Option<Watch>); 7] = [
            ("a watch that is too old at once", watches(|_| String::new())),
            (
                "events that are no objects",
                watches(|_| ["null", "[]", "1", "{}", "{\"type\":\"DELETED\"}"].join("\n") + "\n"),
            ),
            ("a deletion of null", watches(|_| event("DELETED", &Value::Null))),
            ("half of a deletion", watches(|world| event("DELETED", &first(world, |_| ())).split_off(40))),
            (
                "the deletion of another of its name",
                watches(|world| {
                    event("DELETED", &first(world, |pod| pod["metadata"]["uid"] = json!("other")))
                }),
            ),
            (
                "the deletion of a pod without a UID",
                watches(|world| event("DELETED", &first(world, |pod| pod["metadata"]["uid"] = Value::Null))),
            ),
            (
                "versions that go back",
                watches(|world| {
                    let at = |version: u64| {
                        event(
                            "MODIFIED",
                            &first(world, |pod| {
                                pod["metadata"]["resourceVersion"] = json!(version.to_string())
                            }),
                        )
                    };
                    (1..20).rev().map(at).collect()
                }),
            ),
        ];
        for (what, watch) in of_watches {
            node.check(what, None, watch, Then::GoesOn);
        }

        let deletion = watches(|world| event("DELETED", &first(world, |_| ())));
        node.check("its deletion", None, deletion, Then::Ends(&[FIRST]));

        // a server that has forgotten each version does not get requests without end
        let before = node.running();
        node.shared.change(|world| world.forgets = true);
        node.awaits("a list after each watch", |world| world.lists >= 3);
        let begun = Instant::now();
        node.awaits("the fifth", |world| world.lists >= 5);
        assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}: the pauses grow", begun.elapsed());
        assert_eq!(node.running(), before, "{}", node.log());
        node.has_not_grown(&begin);
    });
}
