//! Pods from files, read as upstream's node agent reads them: names, UID, annotations, defaults.
//!
//! Always holds: the numbers of a file are in the ranges that an API server would have enforced; the UID is a
//! digest of node, path and content, so an edit makes another pod, except an edit of a comment; a file that
//! is unreadable or invalid does not change its pod, and neither does a file whose pod has the name of
//! another file's pod. Leaves to others: when files are read (`actor`), running the pods, their mirrors in
//! the API.

use crate::config::digest::Digest;
use crate::kubelet::yaml;
use crate::pods::event::StaticFile;
use crate::pods::keys::PodUid;
use crate::pods::spec::Pod;
use crate::sorted::SortedMap;
use kedge_api::{STATIC_PATH_ANNOTATION, pod_numbers};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Upstream's annotations of a pod that is not from the API.
const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// Pods with the path of their file, by UID; and why the other files are unusable.
pub(crate) type Read = (SortedMap<PodUid, (String, Rc<Pod>)>, BTreeMap<String, String>);

/// Reads all files. If two files have a pod of the same name, the file counts whose pod `is_known`, else the
/// first one.
pub(crate) fn read_all(files: &[StaticFile], node_name: &str, is_known: &dyn Fn(&PodUid) -> bool) -> Read {
    let (mut found, mut unusable) = (Vec::new(), BTreeMap::new());
    for StaticFile { path, content } in files {
        let content = content.as_ref().map_err(String::clone);
        match content.and_then(|content| read(path, content, node_name)) {
            Ok(pod) => found.push((path, pod)),
            Err(why) => _ = unusable.insert(path.clone(), why),
        }
    }
    kedge_api::sort::sort_by_key(&mut found, |(path, pod)| (!is_known(&pod.uid), *path));
    let (mut pods, mut owners) = (SortedMap::new(), SortedMap::new());
    for (path, pod) in found {
        let name = (pod.namespace.clone(), pod.name.clone());
        if let Some(owner) = owners.get(&name) {
            let why = format!("{owner} has a pod {}/{}, too", name.0, name.1);
            unusable.insert(path.clone(), why);
            continue;
        }
        owners.insert(name, path);
        pods.insert(pod.uid.clone(), (path.clone(), Rc::new(pod)));
    }
    (pods, unusable)
}

/// Reads one file.
fn read(path: &str, content: &[u8], node_name: &str) -> Result<Pod, String> {
    let tree =
        yaml::parse(content).map_err(|error| format!("line {}: {}", error.position.line, error.message))?;
    let mut object = tree.to_json();
    let (version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
    if (version, kind) != (Some("v1"), Some("Pod")) {
        return Err("expected apiVersion v1, kind Pod".into());
    }
    let hash = uid(path, &object, node_name);
    let fields = object.as_object_mut().ok_or("expected an object")?;
    let metadata = part(fields, "metadata")?;
    let name = metadata.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let name =
        format!("{}-{}", name.ok_or("invalid pod: name is needed for the pod")?, node_name.to_lowercase());
    metadata.insert("name".into(), json!(name));
    metadata.insert("uid".into(), json!(hash));
    if metadata.get("namespace").and_then(Value::as_str).is_none_or(str::is_empty) {
        metadata.insert("namespace".into(), json!("default"));
    }
    for unused in
        ["deletionTimestamp", "generation", "ownerReferences", "creationTimestamp", "resourceVersion"]
    {
        metadata.remove(unused);
    }
    let annotations = part(metadata, "annotations")?;
    annotations.insert(HASH_ANNOTATION.into(), json!(hash));
    annotations.insert(SOURCE_ANNOTATION.into(), json!("file"));
    annotations.insert(STATIC_PATH_ANNOTATION.into(), json!(path));
    if let Some(why) = pod_numbers::complaint(fields.get("spec").unwrap_or(&Value::Null)) {
        return Err(why);
    }
    let spec = part(fields, "spec")?;
    spec.insert("nodeName".into(), json!(node_name));
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(tolerations) = tolerations.as_array_mut() {
        tolerations.push(json!({"operator": "Exists", "effect": "NoExecute"}));
    }
    Pod::read(&object)
}

fn part<'a>(fields: &'a mut Map<String, Value>, name: &str) -> Result<&'a mut Map<String, Value>, String> {
    let value = fields.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().ok_or_else(|| format!("{name}: expected an object"))
}

/// 32 hexadecimal digits, as upstream's.
fn uid(path: &str, object: &Value, node_name: &str) -> String {
    let parts = format!("{}\nhost:{node_name}\nfile:{path}", Digest::of(object.to_string().as_bytes()));
    let mut digest = Digest::of(parts.as_bytes()).to_string();
    digest.truncate(32);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::pods::fixture::Node;
    use crate::pods::{ContainerKey, PodAction, PodEvent, PodRef, PodRequest};

    const TEXT: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwork: true\n  containers:\n  - {name: a, image: x}\n";

    #[test]
    fn static_pod_is_named_after_the_node() {
        let pod = read("/etc/p.yaml", TEXT.as_bytes(), "Edge-1").unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "web-edge-1"));
        assert_eq!(pod.uid.as_str().len(), 32);
        assert_eq!(pod.annotations[HASH_ANNOTATION], pod.uid.as_str());
        assert_eq!(pod.spec.node_name, "Edge-1");
        assert_eq!(read("/etc/p.yaml", TEXT.as_bytes(), "Edge-1").unwrap(), pod);
    }

    #[test]
    fn edit_move_and_node_change_the_uid() {
        let uid = |path: &str, text: &str, node: &str| read(path, text.as_bytes(), node).unwrap().uid;
        let first = uid("/p", TEXT, "n");
        assert_ne!(uid("/p", &TEXT.replace("image: x", "image: z"), "n"), first);
        assert_ne!(uid("/q", TEXT, "n"), first);
        assert_ne!(uid("/p", TEXT, "m"), first);
        assert_eq!(uid("/p", &format!("# a comment\n{TEXT}"), "n"), first);
    }

    #[test]
    fn second_file_of_a_name_is_unusable() {
        let file = |path: &str, text: &str| StaticFile { path: path.into(), content: Ok(text.into()) };
        let other = TEXT.replace("image: x", "image: z");
        let files =
            [file("/a", TEXT), file("/b", &other), file("/c", &TEXT.replace("web", "db")), file("/d", "")];
        let check = |known: Option<&PodUid>, expect: [&str; 2]| {
            let (pods, unusable) = read_all(&files, "n", &|uid| Some(uid) == known);
            let mut paths: Vec<&str> = pods.values().map(|(path, _)| path.as_str()).collect();
            paths.sort_unstable();
            assert_eq!(paths, [expect[0], "/c"]);
            let unusable: Vec<_> = unusable.keys().map(String::as_str).collect();
            assert_eq!(unusable, [expect[1], "/d"]);
        };
        check(None, ["/a", "/b"]);
        check(Some(&read("/b", other.as_bytes(), "n").unwrap().uid), ["/b", "/a"]);
    }

    #[test]
    fn file_that_is_no_pod_is_an_error() {
        for text in [
            "",
            "[]",
            "a: [",
            "apiVersion: v1\nkind: Service\n",
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: 5\n",
            "apiVersion: v1\nkind: Pod\nmetadata: 5\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: x}\nspec: {}\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: ../a}\nspec: {containers: [{name: a}]}\n",
        ] {
            assert!(read("/p", text.as_bytes(), "n").is_err(), "{text:?}");
        }
    }

    /// A node with one static pod; the tests answer for the API server.
    struct Mirrored {
        node: Node,
        made: u32,
    }

    const NAMESPACE: &str = "default";
    const NAME: &str = "web-edge";

    /// A manifest with an image that the node has.
    fn manifest() -> Vec<u8> {
        TEXT.replace("image: x", "image: 'x:1'").into_bytes()
    }

    fn uid_of(path: &str) -> String {
        read(path, &manifest(), "edge").unwrap().uid.to_string()
    }

    fn pod(mirror: &str) -> PodRef {
        PodRef { namespace: NAMESPACE.into(), name: NAME.into(), uid: mirror.into() }
    }

    fn refused(status: u16) -> Answer {
        Answer::Refused { status, reason: String::new(), message: String::new(), retry_after: None }
    }

    impl Mirrored {
        /// The pod of the file `/a` runs, its mirror is `m-1`, and its status was accepted.
        fn new() -> Self {
            let mut this = Self { node: Node::new(), made: 0 };
            this.file("/a");
            let mirror = this.made();
            this.created(mirror);
            this.patched("m-1", Answer::Accepted(None));
            assert!(this.node.runs(&uid_of("/a")));
            this.node.seen.clear();
            this
        }

        /// From now on this is the only file.
        fn file(&mut self, path: &str) {
            let file = StaticFile { path: path.into(), content: Ok(manifest()) };
            self.node.tell(PodEvent::StaticPods(Ok(vec![file])));
        }

        /// The server creates the mirror that was ordered last.
        fn made(&mut self) -> Value {
            let order = self.node.seen.iter().rev().find_map(|action| match action {
                PodAction::CreateMirrorPod { pod, .. } => Some(pod.clone()),
                _ => None,
            });
            let mut object = order.expect("a mirror is ordered");
            self.made += 1;
            object["metadata"]["uid"] = json!(format!("m-{}", self.made));
            object["metadata"]["resourceVersion"] = json!(self.made.to_string());
            object
        }

        fn created(&mut self, mirror: Value) {
            let request = PodRequest::CreateMirror { namespace: NAMESPACE.into(), name: NAME.into() };
            self.node.tell(PodEvent::Answered { request, answer: Answer::Accepted(Some(mirror)) });
        }

        fn patched(&mut self, mirror: &str, answer: Answer) {
            self.node.tell(PodEvent::Answered { request: PodRequest::PatchStatus(pod(mirror)), answer });
        }

        fn deleted(&mut self, mirror: &str) {
            let request = PodRequest::Delete(pod(mirror));
            self.node.tell(PodEvent::Answered { request, answer: Answer::Accepted(None) });
        }

        /// The first mirror, as it is on the server.
        fn mirror(&self, says_path: bool) -> Value {
            let mut annotations = json!({"kubernetes.io/config.mirror": uid_of("/a")});
            if says_path {
                annotations[STATIC_PATH_ANNOTATION] = json!("/a");
            }
            json!({"metadata": {"uid": "m-1", "resourceVersion": "1", "annotations": annotations}})
        }

        /// The requests to the API server so far: each verb with the mirror's UID.
        fn asked(&self) -> Vec<String> {
            let word = |action: &PodAction| match action {
                PodAction::CreateMirrorPod { .. } => Some("create".to_owned()),
                PodAction::DeletePod(pod) => Some(format!("delete {}", pod.uid)),
                PodAction::PatchPodStatus { pod, .. } => Some(format!("patch {}", pod.uid)),
                PodAction::ListPods => Some("list".to_owned()),
                _ => None,
            };
            self.node.seen.iter().filter_map(word).collect()
        }

        /// Ends the container of this file's pod, which was ordered to stop.
        fn ends(&mut self, path: &str) {
            let uid = uid_of(path);
            let key = |action: &PodAction| match action {
                PodAction::StopContainer { container, .. } => Some(container.clone()),
                _ => None,
            };
            let stopped: Vec<ContainerKey> = self.node.seen.iter().filter_map(key).collect();
            assert_eq!(stopped.iter().map(|key| key.pod.as_str()).collect::<Vec<_>>(), [&uid]);
            self.node.ends(&uid, "a", 137);
        }
    }

    #[test]
    fn pod_of_a_renamed_file_waits_for_no_mirror() {
        for is_watch_first in [true, false] {
            let mut this = Mirrored::new();
            this.node.is_deaf = true;
            let mirror = json!({"metadata": {"uid": "m-1", "annotations": {"kubernetes.io/config.mirror": uid_of("/a")}}});
            this.file("/b");
            if is_watch_first {
                this.node.tell(PodEvent::PodGone(mirror.clone()));
            }
            this.deleted("m-1");
            if !is_watch_first {
                this.node.tell(PodEvent::PodGone(mirror));
            }
            let other = this.made();
            this.created(other);
            this.patched("m-2", Answer::Accepted(None));
            assert!(this.node.runs(&uid_of("/a")), "it has its grace");
            this.ends("/a");
            assert!(this.node.runs(&uid_of("/b")), "watch first: {is_watch_first}; {:?}", this.asked());
            // the other pod's mirror stays, and no status is sent to the deleted one
            let asked = this.asked();
            assert_eq!(asked[..3], ["delete m-1", "create", "patch m-2"], "watch first: {is_watch_first}");
            assert!(asked[3..].iter().all(|word| word == "patch m-2"), "{asked:?}");
        }
    }

    #[test]
    fn static_pod_is_replaced_without_an_api_server() {
        let mut this = Mirrored::new();
        this.node.is_deaf = true;
        this.file("/b");
        let no_route = || Answer::Failed("no route".into());
        let request = PodRequest::Delete(pod("m-1"));
        this.node.tell(PodEvent::Answered { request, answer: no_route() });
        this.ends("/a");
        assert!(this.node.runs(&uid_of("/b")), "{:?}", this.asked());
        this.patched("m-1", no_route());
        assert_eq!(this.asked(), ["delete m-1", "patch m-1"], "its end is told once");
        this.node.wait(10);
        assert_eq!(this.asked()[2..], ["delete m-1"], "and no pods are listed because of it");
    }

    #[test]
    fn mirror_deleted_before_its_creation_is_answered_is_remade() {
        let mut this = Mirrored { node: Node::new(), made: 0 };
        this.file("/a");
        let mirror = this.made();
        this.node.tell(PodEvent::PodSeen(mirror.clone()));
        this.node.tell(PodEvent::PodGone(mirror.clone()));
        this.created(mirror);
        this.patched("m-1", refused(404));
        assert_eq!(this.asked().iter().filter(|word| *word == "create").count(), 2, "{:?}", this.asked());
        let other = this.made();
        this.created(other);
        assert_eq!(this.asked().last().map(String::as_str), Some("patch m-2"));
    }

    #[test]
    fn mirror_that_another_pod_replaced_is_made_again() {
        let mut this = Mirrored::new();
        // as the watch shows a pod whose deletion it missed: only its UID
        this.node.tell(PodEvent::PodGone(json!({"metadata": {"uid": "m-1"}})));
        assert_eq!(this.asked(), ["create"]);
    }

    /// The agent reads these files, and others that contain no pod.
    fn files(this: &mut Mirrored, paths: &[&str], unusable: &[&str]) {
        let pods = paths.iter().map(|path| StaticFile { path: (*path).into(), content: Ok(manifest()) });
        let others =
            unusable.iter().map(|path| StaticFile { path: (*path).into(), content: Ok(b"notes".to_vec()) });
        this.node.tell(PodEvent::StaticPods(Ok(pods.chain(others).collect())));
    }

    #[test]
    fn file_that_is_no_pod_freezes_no_mirror() {
        // the pod's file is replaced by another
        let mut this = Mirrored::new();
        files(&mut this, &["/b"], &["/README"]);
        assert_eq!(this.asked()[0], "delete m-1");
        this.deleted("m-1");
        let other = this.made();
        this.created(other);
        assert!(this.node.runs(&uid_of("/b")), "{:?}", this.asked());

        // the pod's file is removed
        let mut this = Mirrored::new();
        files(&mut this, &[], &["/README"]);
        this.node.wait(1);
        assert!(this.asked().contains(&"delete m-1".to_owned()), "{:?}", this.asked());

        // only its own file is unusable
        let mut this = Mirrored::new();
        files(&mut this, &[], &["/a", "/README"]);
        this.node.wait(100);
        assert!(this.node.runs(&uid_of("/a")) && this.asked().is_empty(), "{:?}", this.asked());
    }

    /// Starts an agent beside a mirror that an earlier one made, for a file at `/a` that is unusable now, or
    /// missing.
    fn restarted(says_path: bool, paths: &[&str], unusable: &[&str]) -> Vec<String> {
        let mut this = Mirrored::new();
        let mut mirror = this.mirror(says_path);
        mirror["metadata"]["namespace"] = json!(NAMESPACE);
        mirror["metadata"]["name"] = json!(NAME);
        this.node.start();
        this.node.seen.clear();
        files(&mut this, paths, unusable);
        this.node.tell(PodEvent::PodSeen(mirror));
        this.node.wait(2);
        this.asked()
    }

    #[test]
    fn mirror_of_an_earlier_agent_waits_for_its_own_file() {
        assert!(restarted(true, &[], &["/README"]).contains(&"delete m-1".to_owned()));
        assert_eq!(restarted(true, &[], &["/a"]), [""; 0], "it may be back");
        assert_eq!(restarted(false, &[], &["/README"]), [""; 0], "any file may be its own");
        // but if another pod has its name now, the mirror belongs to no pod
        assert!(restarted(false, &["/b"], &["/README"]).contains(&"delete m-1".to_owned()));
        assert!(restarted(false, &[], &[]).contains(&"delete m-1".to_owned()));
    }

    #[test]
    fn pod_edited_while_no_agent_ran_is_replaced() {
        let mut this = Mirrored::new();
        this.node.start();
        files(&mut this, &["/b"], &["/README"]);
        this.node.wait(2);
        assert!(this.node.runs(&uid_of("/b")) && !this.node.runs(&uid_of("/a")));
    }

    /// How another client deletes a mirror.
    #[derive(Debug, Clone, Copy)]
    enum Deleted {
        /// Without a grace period: the watch shows that it is gone.
        AtOnce,
        /// With a grace period: the node deletes it finally.
        Gracefully,
        /// While the watch is interrupted: a list lacks it.
        Unseen,
    }

    /// The times at which a node makes mirrors that another client deletes this many seconds after each was
    /// made.
    fn remade(how: Deleted, after: u64, until: u64) -> Vec<u64> {
        let mut this = Mirrored::new();
        let (mut times, mut made_at) = (vec![], this.node.secs);
        let begun = this.node.secs;
        while this.node.secs < begun + until {
            this.node.wait(1);
            if this.asked().iter().any(|word| word == "create") {
                times.push(this.node.secs - begun);
                made_at = this.node.secs;
                let mirror = this.made();
                this.created(mirror);
                let uid = format!("m-{}", this.made);
                this.patched(&uid, Answer::Accepted(None));
                this.node.seen.clear();
            }
            if this.node.secs == made_at + after {
                let uid = format!("m-{}", this.made);
                let gone = json!({"metadata": {"uid": uid, "annotations": {"kubernetes.io/config.mirror": uid_of("/a")}}});
                match how {
                    Deleted::AtOnce => this.node.tell(PodEvent::PodGone(gone)),
                    Deleted::Unseen => {
                        this.node.tell(PodEvent::PodsListed { node_uid: "n".into(), pods: vec![] });
                    }
                    Deleted::Gracefully => {
                        let version = (1000 + this.made).to_string();
                        let leaving = json!({"metadata": {"uid": uid, "namespace": NAMESPACE, "name": NAME,
                            "resourceVersion": version, "deletionTimestamp": "2027-01-15T08:00:00Z",
                            "annotations": {"kubernetes.io/config.mirror": uid_of("/a")}}});
                        this.node.tell(PodEvent::PodSeen(leaving));
                        assert!(this.asked().contains(&format!("delete {uid}")), "{:?}", this.asked());
                        this.deleted(&uid);
                    }
                }
            }
        }
        times
    }

    #[test]
    fn repeatedly_deleted_mirrors_are_remade_after_pauses() {
        for how in [Deleted::AtOnce, Deleted::Gracefully, Deleted::Unseen] {
            let times = remade(how, 1, 1500);
            let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            // each at most one second after its deletion, which comes a second after its creation
            let expect = [10, 20, 40, 80, 160, 300, 300, 300];
            assert!(times[0] <= 3, "the first at once: {times:?}");
            let is_so = |(pause, expect): (&u64, &u64)| (*expect..=expect + 2).contains(pause);
            assert!(pauses.len() >= 7 && pauses.iter().zip(&expect).all(is_so), "{how:?}: {pauses:?}");
        }
    }

    #[test]
    fn mirror_that_stayed_is_made_again_at_once() {
        let times = remade(Deleted::AtOnce, 700, 3000);
        let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(times.len() >= 3 && pauses.iter().all(|pause| *pause <= 702), "{times:?}");
    }

    #[test]
    fn mirrors_that_the_node_deletes_leave_no_pause() {
        let mut this = Mirrored::new();
        for (round, path) in ["/b", "/a", "/b", "/a"].into_iter().enumerate() {
            this.node.seen.clear();
            this.file(path);
            let mirror = format!("m-{}", round + 1);
            this.deleted(&mirror);
            let other = this.made();
            this.created(other);
        }
    }

    #[test]
    fn status_of_a_mirror_is_sent_once() {
        let mut this = Mirrored::new();
        this.file("/a");
        this.node.wait(60);
        assert_eq!(this.asked(), [""; 0]);
        this.node.ends(&uid_of("/a"), "a", 1);
        assert_eq!(this.asked(), ["patch m-1"]);
    }
}
