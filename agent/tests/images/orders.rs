//! The orders of the pods' actor: each `PullImage` is answered once, with one of upstream's reasons for a
//! failure.

use kedge_core::images::thresholds::Thresholds;
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kedge::images::{Options, Progress, Puller, Store};
use kedge::net::proxy::ProxyEnvironment;
use kedge::net::transport::{Cancel, system_clock};
use kedge::workloads::Layers;
use kedge_core::images::collect::Ages;
use kedge_core::images::credentials::Keyring;
use kedge_core::images::settings::Registries;
use kedge_core::images::{BlobDigest, Reference};
use kedge_core::pods::{FailureReason, ImageOrder, PodEvent, PodUid, PullPolicy};
use kedge_rig::registry::{Access, FakeRegistry, Fault};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};

use super::archive::{Archive, Image, Packed};
use super::hostile::million;
use super::pull::{image, noise};
use super::setup::{Node, PROGRAM};

/// A test that has not seen what it waits for by then has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// A node's images, and a puller that trusts this server without TLS.
fn puller(node: &Node, server: &str) -> (Store, Puller) {
    pulling(node, server, Path::new(PROGRAM))
}

/// The same with a program of the test's that unpacks layers.
fn pulling(node: &Node, server: &str, program: &Path) -> (Store, Puller) {
    configured(node, &json!({"insecureRegistries": [server]}), program)
}

/// The same with this `kedge.images`.
pub(crate) fn configured(node: &Node, images: &Value, program: &Path) -> (Store, Puller) {
    let store = Store::open(&node.root(), program).unwrap();
    let options = Options {
        preloaded: node.scratch.join("preloaded"),
        registries: Registries::read(images.as_object(), &mut |_, why| panic!("{why}")),
        clock: system_clock(),
        proxies: ProxyEnvironment::default(),
        cancel: Cancel::new(),
    };
    (store.clone(), Puller::new(store, options))
}

/// The answer to an order, in short.
pub(crate) fn told(puller: &Puller, image: &str, policy: PullPolicy, secret: &str) -> Vec<String> {
    let order = ImageOrder {
        pod: PodUid::new("7f3c").unwrap(),
        container: "app".to_owned(),
        image: image.to_owned(),
        policy,
        credentials: vec![b"garbage".to_vec(), secret.as_bytes().to_vec()],
    };
    let told = RefCell::new(Vec::new());
    puller.perform(&order, &|event| {
        told.borrow_mut().push(match event {
            PodEvent::ImagePulling { .. } => "pulling".to_owned(),
            PodEvent::ImageReady { image, .. } => {
                format!("ready {:?} fetched {}", image.config.cmd, image.pulled.is_some())
            }
            PodEvent::Failed { failure, .. } => match failure.reason {
                FailureReason::Other => format!("failed {}", failure.message),
                FailureReason::ImageSignature => format!("unsigned {}", failure.message),
                reason => format!("{reason:?}"),
            },
            other => format!("{other:?}"),
        });
    });
    told.into_inner()
}

#[test]
fn pull_that_got_further_is_told_apart() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("orders-further", &[&registry]) else { return };
    let large = Image::new(vec![Packed::raw(Archive::default().file("large", &noise(900_000)).bytes())]);
    large.push(&registry, "team/large", "v1");
    let blob = large.layers[0].digest().to_string();
    let (_, puller) = puller(&node, &registry.name());
    let pull = || told(&puller, &format!("{}/team/large:v1", registry.name()), PullPolicy::Always, "{}");
    registry.fail(&blob, Fault::CutAfter(300_000));
    registry.fail(&blob, Fault::Status(503));
    assert_eq!(pull(), ["pulling", "PullBrokeOff"]);
    registry.fail(&blob, Fault::Status(503));
    let failed = pull();
    assert!(failed[1].starts_with("failed ") && failed[1].contains("503"), "{failed:?}");
    assert_eq!(pull().len(), 2);
}

#[test]
fn each_order_is_answered_once() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("orders", &[&registry]) else { return };
    image().push(&registry, "team/app", "v1");
    registry.set_access(Access::Basic("edge:s3cret".into()));
    let (store, puller) = puller(&node, &registry.name());
    let name = format!("{}/team/app:v1", registry.name());
    let secret = json!({"auths": {registry.name(): {"auth": "ZWRnZTpzM2NyZXQ="}}}).to_string();

    assert_eq!(told(&puller, "Not/A/Name", PullPolicy::Always, &secret), ["InvalidImageName"]);
    assert_eq!(told(&puller, &name, PullPolicy::Never, &secret), ["ImageNeverPull"]);
    let denied = told(&puller, &name, PullPolicy::IfNotPresent, "{}");
    assert!(denied.len() == 1 && denied[0].contains("unauthorized"), "{denied:?}");
    let ready = |fetched: bool| format!("ready [\"/bin/tick\"] fetched {fetched}");
    assert_eq!(told(&puller, &name, PullPolicy::IfNotPresent, &secret), ["pulling".to_owned(), ready(true)]);
    assert_eq!(told(&puller, &name, PullPolicy::Never, "{}"), [ready(false)], "it is here");

    // each try writes it to flash
    Image::new(vec![Packed::raw(vec![0xff; 4096])]).push(&registry, "team/bad", "v1");
    let bad = name.replace("/app", "/bad");
    for _ in 0..3 {
        let failed = told(&puller, &bad, PullPolicy::Always, &secret);
        assert!(
            failed.len() == 2 && failed[1].contains("entry 1") && !failed[1].contains("tried"),
            "{failed:?}"
        );
    }
    let refused = told(&puller.until(Cancel::new()), &bad, PullPolicy::Always, &secret);
    assert!(refused.len() == 1 && refused[0].contains("tried 3 times"), "{refused:?}");

    // the pod's event says that an image has too many entries
    Image::new(vec![million()]).push(&registry, "team/many", "v1");
    let failed = told(&puller, &name.replace("/app", "/many"), PullPolicy::Always, &secret);
    assert!(
        failed[1].starts_with("failed pull ") && failed[1].ends_with("it has more than 500000 entries"),
        "{failed:?}"
    );

    let id = store.records().unwrap().iter().next().unwrap().id.to_string();
    let layers = store.layers(&id).unwrap();
    assert!(layers.len() == 2 && layers[0].join("etc/noted").exists(), "the topmost first: {layers:?}");
    assert!(store.layers(&id.replace("sha256:", "sha256:0")).is_err());
}

#[test]
fn present_image_stands_in_for_a_registry_that_is_out() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("offline", &[&registry]) else { return };
    image().push(&registry, "team/app", "latest");
    let name = format!("{}/team/app", registry.name());
    let images = |offline: &str| json!({"insecureRegistries": [registry.name()], "offline": offline});
    let (_, waiting) = configured(&node, &images("wait"), Path::new(PROGRAM));
    let (_, using) = configured(&node, &images("usePresent"), Path::new(PROGRAM));
    let ready = |fetched: bool| format!("ready [\"/bin/tick\"] fetched {fetched}");
    assert_eq!(told(&using, &name, PullPolicy::Always, "{}"), ["pulling".to_owned(), ready(true)]);

    // the error of a registry that answers is the one reported
    registry.set_access(Access::Basic("edge:s3cret".into()));
    let denied = told(&using, &name, PullPolicy::Always, "{}");
    assert!(denied.len() == 1 && denied[0].contains("unauthorized"), "{denied:?}");
    registry.set_access(Access::default());
    let missing = told(&using, &format!("{name}:v9"), PullPolicy::Always, "{}");
    assert!(missing.len() == 1 && missing[0].contains("404"), "{missing:?}");

    registry.go_out().unwrap();
    let failed = told(&waiting, &name, PullPolicy::Always, "{}");
    assert!(failed.len() == 1 && failed[0].starts_with("failed pull "), "{failed:?}");
    assert_eq!(told(&using, &name, PullPolicy::Always, "{}"), [ready(false)]);
    let absent = told(&using, &format!("{name}:v9"), PullPolicy::Always, "{}");
    assert!(
        absent.len() == 1 && absent[0].starts_with("failed pull "),
        "the outage, not the absence: {absent:?}"
    );
}

#[test]
fn preloaded_image_needs_no_registry() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("preloaded", &[&registry]) else { return };
    let (store, puller) = puller(&node, &registry.name());
    let name = format!("{}/team/app:v1", registry.name());
    let ready = |fetched: bool| format!("ready [\"/bin/tick\"] fetched {fetched}");
    assert_eq!(told(&puller, &name, PullPolicy::Never, "{}"), ["ImageNeverPull"]);

    let layouts = node.scratch.join("preloaded");
    // the first layout by name is unreadable
    node.scratch.write("preloaded/a/index.json", "{");
    image().write_named_layout(&layouts.join("b"), &name);
    let listed = node.ok(&["ls"]);
    assert_eq!((&listed["images"], &listed["preloaded"]), (&json!([]), &json!([name])));
    let other = told(&puller, &name.replace(":v1", ":v2"), PullPolicy::IfNotPresent, "{}");
    assert!(other.len() == 1 && other[0].contains("404"), "another tag is the registry's: {other:?}");
    let always = told(&puller, &name, PullPolicy::Always, "{}");
    assert!(always.len() == 1 && always[0].contains("404"), "asked for anew each time: {always:?}");

    // a caller that must not wait looks only at unpacked images
    let unpacked = puller.of_what_is_unpacked();
    assert_eq!(told(&unpacked, &name, PullPolicy::Never, "{}"), ["ImageNeverPull"]);
    assert_eq!(node.names("layers"), [""; 0]);
    assert!(puller.is_preloaded(&name) && !puller.is_preloaded(&name.replace(":v1", ":v2")));
    assert_eq!(told(&puller, &name, PullPolicy::Never, "{}"), [ready(false)]);
    assert_eq!(told(&unpacked, &name, PullPolicy::Never, "{}"), [ready(false)]);
    assert_eq!(node.ok(&["ls"])["preloaded"], json!([]));
    node.ok(&["rm", &name]);
    let digest = BlobDigest::of(&image().manifest);
    let pinned = format!("{}@{digest}", name.trim_end_matches(":v1"));
    assert_eq!(told(&puller, &pinned, PullPolicy::IfNotPresent, "{}"), [ready(false)]);
    let id = store.records().unwrap().iter().next().unwrap().id.to_string();
    node.ok(&["rm", &id]);

    // a flash block of it went bad
    let blob = layouts.join("b/blobs/sha256").join(BlobDigest::of(image().blobs().next().unwrap()).hex());
    std::fs::write(&blob, b"rotten").unwrap();
    let never = told(&puller, &name, PullPolicy::Never, "{}");
    assert!(never.len() == 1 && never[0].contains("preloaded/b"), "{never:?}");
    image().push(&registry, "team/app", "v1");
    assert_eq!(told(&puller, &name, PullPolicy::IfNotPresent, "{}"), ["pulling".to_owned(), ready(true)]);
}

#[test]
fn pull_that_waits_for_ever_ends_when_it_is_cancelled() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("cancelled", &[&registry]) else { return };
    let puller = puller(&node, &server).1;
    let cancel = Cancel::new();
    let failed = thread::scope(|scope| {
        let pull = puller.until(cancel.clone());
        let name = format!("{server}/team/app:v1");
        let told = scope.spawn(move || told(&pull, &name, PullPolicy::Always, "{}"));
        // the pull sends a request and gets no answer
        let (mut asked, _) = silent.accept().unwrap();
        asked.read_exact(&mut [0; 4]).unwrap();
        cancel.cancel();
        told.join().unwrap()
    });
    assert!(failed.len() == 1 && failed[0].contains("cancelled"), "{failed:?}");
}

#[test]
fn cancelled_pull_goes_no_further() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("cancelled-midway", &[&registry]) else { return };
    image().push(&registry, "team/app", "v1");
    let puller = puller(&node, &registry.name()).1;
    let reference = Reference::parse(&format!("{}/team/app:v1", registry.name())).unwrap();
    let ends_at = |is_it: fn(&Progress) -> bool| {
        let cancel = Cancel::new();
        let steps = Cell::new(0);
        let progress = |progress: Progress| {
            steps.set(steps.get() + usize::from(is_it(&progress)));
            if is_it(&progress) {
                cancel.cancel();
            }
        };
        let pull = puller.until(cancel.clone());
        let error = pull.ensure(&reference, PullPolicy::Always, &Keyring::default(), &progress).unwrap_err();
        assert!(error.to_string().contains("cancelled"), "{error}");
        assert_eq!(steps.get(), 1);
    };
    // a registry without TLS that does not stop sending
    ends_at(|progress| matches!(progress, Progress::Fetching { size, .. } if *size > 100_000));
    ends_at(|progress| matches!(progress, Progress::Unpacking { .. }));
    assert_eq!(node.names("layers"), [""; 0], "nothing is unpacked for nobody");
    let named = told(&puller, &reference.to_string(), PullPolicy::Always, "{}");
    assert_eq!(named.len(), 2, "it is not to blame: {named:?}");
}

#[test]
fn unpacking_ends_when_its_pull_is_cancelled() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("unpacking", &[&registry]) else { return };
    // it never ends by itself
    let pid = node.scratch.join("pid");
    let script = format!("#!/bin/sh\necho $$ > '{}'\nexec sleep 86400\n", pid.display());
    let program = node.scratch.write("unpack", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (_, puller) = pulling(&node, &registry.name(), &program);
    let layer = Packed::gzip(&Archive::default().file("one", b"1"));
    let digest = layer.digest().hex();
    Image::new(vec![layer]).push(&registry, "team/waits", "v1");
    image().push(&registry, "team/app", "v1");
    let (first, second) = (Cancel::new(), Cancel::new());
    let begin = |name: &str, cancel: &Cancel| {
        let (pull, name) = (puller.until(cancel.clone()), format!("{}/team/{name}:v1", registry.name()));
        move || told(&pull, &name, PullPolicy::Always, "{}")
    };
    thread::scope(|scope| {
        let unpacks = scope.spawn(begin("app", &first));
        wait_until("the process", LIMIT, || fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')));
        let waits = scope.spawn(begin("waits", &second));
        wait_until("its layer", LIMIT, || node.names("blobs").contains(&digest));
        let pulling = node.ok(&["ls"])["pulling"].take();
        let of = |at: usize, what: &str| pulling[at][what].clone();
        let name = |name: &str| json!(format!("{}/team/{name}:v1", registry.name()));
        assert_eq!((of(0, "name"), of(1, "name")), (name("app"), name("waits")), "{pulling}");
        assert_eq!(of(1, "haveBytes"), of(1, "sizeBytes"), "{pulling}");
        let (have, all) = (of(0, "haveBytes").as_u64().unwrap(), of(0, "sizeBytes").as_u64().unwrap());
        assert!(have > 0 && have < all, "one layer after the other: {pulling}");
        second.cancel();
        let failed = waits.join().unwrap();
        assert!(failed.last().unwrap().contains("cancelled"), "one that waits for another: {failed:?}");
        first.cancel();
        let failed = unpacks.join().unwrap();
        assert!(failed.last().unwrap().contains("cancelled"), "{failed:?}");
    });
    let pid = fs::read_to_string(&pid).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the process has ended");
    assert_eq!(node.ok(&["ls"])["pulling"], json!([]));
    node.has_nothing();
}

#[test]
fn collection_spares_what_pods_need_or_may_need() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("collection", &[&registry]) else { return };
    let (store, puller) = puller(&node, &registry.name());
    let name = |tag: &str| format!("{}/team/app:{tag}", registry.name());
    for tag in ["v1", "v2"] {
        let layer = Packed::gzip(&Archive::default().file(tag, b"1"));
        Image::new(vec![layer]).push(&registry, "team/app", tag);
        assert_eq!(told(&puller, &name(tag), PullPolicy::Always, "{}").len(), 2, "pulling, ready");
    }
    // the disk is never empty enough for the image
    let minimum_age = Duration::from_secs(60);
    let full = Thresholds { minimum_age, maximum_age: None, high_percent: 0, low_percent: 0 };
    let mut ages = Ages::default();
    let mut collect = |secs| store.collect(&mut ages, &full, Duration::from_secs(secs)).unwrap();
    let need =
        |tags: &[&str], is_all| store.set_needed(tags.iter().map(|tag| name(tag)).collect(), is_all).unwrap();
    need(&["v1"], true);
    assert_eq!(collect(0).images, [""; 0], "they are young");
    let second = collect(100);
    assert_eq!(second.images, [name("v2")]);
    assert!(second.wanted_bytes > second.freed_bytes && second.freed_bytes > 0, "{second:?}");
    need(&[], false);
    assert_eq!(collect(200).images, [""; 0], "what was noted before may still be needed");
    need(&[], true);
    assert_eq!(collect(300).images, [name("v1")]);
    node.has_nothing();
}
