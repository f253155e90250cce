//! Uses the Rust `kube` client against a running hub, given by KUBECONFIG, and checks the outcome of every
//! step.
//!
//! The main part is the reflector: a list and a watch that must show every change, as every operator written
//! with `kube` expects.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

/// Limit for each part; a local hub needs far less, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"tour": "kube"}}, "data": {"k": value}}),
    )
    .unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::try_default().await.expect("the hub's kubeconfig is readable");
    let version = client.apiserver_version().await.expect("the version is served");
    assert!(!version.git_version.is_empty());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    tokio::time::timeout(LIMIT, objects(&maps)).await.expect("objects in time");
    tokio::time::timeout(LIMIT, apply(&maps)).await.expect("apply in time");
    tokio::time::timeout(LIMIT, watches(&maps)).await.expect("watches in time");
    tokio::time::timeout(LIMIT, informer(&maps)).await.expect("the reflector in time");
    tokio::time::timeout(LIMIT, nodes(Api::all(client))).await.expect("nodes in time");
    println!("kube: every step as expected");
}

async fn objects(maps: &Api<ConfigMap>) {
    let made = maps.create(&PostParams::default(), &map("one", "1")).await.expect("created");
    assert!(made.uid().is_some() && made.resource_version().is_some());
    let refused = maps.create(&PostParams::default(), &map("one", "1")).await.expect_err("it is there");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, &*status.reason), (409, "AlreadyExists"));

    let mut changed = made.clone();
    changed.data.as_mut().unwrap().insert("k".into(), "2".into());
    let replaced = maps.replace("one", &PostParams::default(), &changed).await.expect("replaced");
    assert_ne!(replaced.resource_version(), made.resource_version());
    let stale = maps.replace("one", &PostParams::default(), &changed).await.expect_err("the version is old");
    assert!(matches!(stale, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"));

    let merge = Patch::Merge(json!({"data": {"m": "3"}}));
    maps.patch("one", &PatchParams::default(), &merge).await.expect("merged");
    let strategic = Patch::Strategic(json!({"data": {"k": null}}));
    let patched = maps.patch("one", &PatchParams::default(), &strategic).await.expect("patched");
    assert_eq!(patched.data.unwrap().into_iter().collect::<Vec<_>>(), [("m".to_owned(), "3".to_owned())]);

    for name in ["p1", "p2", "p3"] {
        maps.create(&PostParams::default(), &map(name, "x")).await.expect("created");
    }
    let page = maps.list(&ListParams::default().labels("tour=kube").limit(3)).await.expect("a page");
    assert_eq!(page.items.len(), 3);
    let rest =
        ListParams::default().labels("tour=kube").limit(3).continue_token(&page.metadata.continue_.unwrap());
    assert_eq!(maps.list(&rest).await.expect("the rest").items.len(), 1);
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("tour=kube"))
        .await
        .expect("deleted");
    assert!(maps.get_opt("one").await.expect("asked").is_none());
}

async fn apply(maps: &Api<ConfigMap>) {
    let applied = |value: &str| {
        Patch::Apply(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}}),
        )
    };
    maps.patch("a", &PatchParams::apply("one"), &applied("1")).await.expect("created by apply");
    let refused = maps.patch("a", &PatchParams::apply("two"), &applied("2")).await.expect_err("one owns it");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(
        (status.code, &*status.message),
        (409, "Apply failed with 1 conflict: conflict with \"one\": .data.k")
    );
    let forced = maps.patch("a", &PatchParams::apply("two").force(), &applied("2")).await.expect("forced");
    let managers: Vec<String> =
        forced.managed_fields().iter().filter_map(|entry| entry.manager.clone()).collect();
    assert_eq!(managers, ["two"]);
    let dry = maps.patch("a", &PatchParams::apply("two").dry_run(), &applied("3")).await.expect("tried");
    assert_eq!(dry.data.unwrap()["k"], "3");
    assert_eq!(maps.get("a").await.expect("read").data.unwrap()["k"], "2");
    maps.delete("a", &DeleteParams::default()).await.expect("deleted");
}

async fn watches(maps: &Api<ConfigMap>) {
    let version = maps.list(&ListParams::default()).await.expect("listed").metadata.resource_version.unwrap();
    let watching = WatchParams::default().labels("tour=kube");
    let mut events = maps.watch(&watching, &version).await.expect("watched").boxed();
    maps.create(&PostParams::default(), &map("w", "1")).await.expect("created");
    maps.patch("w", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}})))
        .await
        .expect("patched");
    maps.delete("w", &DeleteParams::default()).await.expect("deleted");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(match events.try_next().await.expect("an event").expect("the watch goes on") {
            WatchEvent::Added(map) => format!("added {}", map.data.unwrap()["k"]),
            WatchEvent::Modified(map) => format!("modified {}", map.data.unwrap()["k"]),
            WatchEvent::Deleted(map) => format!("deleted {}", map.name_any()),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("{status:?}"),
        });
    }
    assert_eq!(seen, ["added 1", "modified 2", "deleted w"]);
}

/// The reflector with both ways to start: a list followed by a watch, and a watch that sends the list.
async fn informer(maps: &Api<ConfigMap>) {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        maps.create(&PostParams::default(), &map("before", "1")).await.expect("created");
        let (store, writer) = reflector::store::<ConfigMap>();
        let stream = reflector(writer, watcher(maps.clone(), config.labels("tour=kube"))).applied_objects();
        let mut stream = stream.boxed();
        let first = stream.try_next().await.expect("no error").expect("the first object");
        assert_eq!(first.name_any(), "before");
        maps.create(&PostParams::default(), &map("after", "1")).await.expect("created");
        let mut last = String::new();
        maps.patch("after", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "9"}})))
            .await
            .expect("patched");
        while last != "9" {
            last = stream.try_next().await.expect("no error").expect("the stream goes on").data.unwrap()["k"]
                .clone();
        }
        let mut names: Vec<String> = store.state().iter().map(|map| map.name_any()).collect();
        names.sort();
        assert_eq!(names, ["after", "before"]);
        maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("tour=kube"))
            .await
            .expect("deleted");
        // deletions arrive on the same stream: once a later object has arrived, they have, too
        maps.create(&PostParams::default(), &map("mark", "1")).await.expect("created");
        while stream.try_next().await.expect("no error").expect("the stream goes on").name_any() != "mark" {}
        let names: Vec<String> = store.state().iter().map(|map| map.name_any()).collect();
        assert_eq!(names, ["mark"]);
        maps.delete("mark", &DeleteParams::default()).await.expect("deleted");
    }
}

async fn nodes(nodes: Api<Node>) {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "kube-1"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.expect("created");
    nodes.cordon("kube-1").await.expect("cordoned");
    let status = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    nodes.patch_status("kube-1", &PatchParams::default(), &status).await.expect("reported");
    let stored = nodes.get("kube-1").await.expect("read");
    assert_eq!(stored.spec.unwrap().unschedulable, Some(true));
    assert_eq!(stored.status.unwrap().conditions.unwrap()[0].status, "True");
    nodes.delete("kube-1", &DeleteParams::default()).await.expect("deleted");
}
