//! Updates of a DaemonSet on three nodes, with a real hub, real agents, crun, and images from a registry:
//! good ones, a missing one, crashing ones; stops, undos, roll backs, canaries, surges, a pod whose status
//! somebody sets to Failed, a hub that is killed, a node that is away before and after it got the update, a
//! machine whose node gets another name.
//!
//! Always holds, in every step: no more containers run than there are nodes (but for a surge), and during an
//! update whose budget is one node, two nodes serve. `KEDGE_ROLLOUT_FULL=1` kills the hub a hundred times,
//! and waits until nodes are lost or forgotten.

use crate::setup::{INSIDE, isolated, make_image};
use kedge_core::images::BlobDigest;
use kedge_rig::Random;
use kedge_rig::agent::AgentOptions;
use kedge_rig::cluster::{Cluster, HEADER};
use kedge_rig::registry::FakeRegistry;
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const NODES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];
const SET: &str = "clock";
/// An update of three nodes takes 10 to 20 s; under the load of other tests more.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the hub is killed; in one update at most this often, each time after at most this long.
const KILLS: usize = 3;
const KILLS_OF_ONE: usize = 8;
const KILLED_WITHIN_MILLIS: usize = 4000;

fn is_full() -> bool {
    std::env::var_os("KEDGE_ROLLOUT_FULL").is_some()
}

/// Three nodes and a registry.
struct Site {
    cluster: Cluster,
    registry: FakeRegistry,
    layer: Vec<u8>,
}

impl Site {
    fn new() -> Self {
        let mut cluster = Cluster::start("rollouts").unwrap();
        let registry = FakeRegistry::start().unwrap();
        let root = cluster.scratch().join("image");
        make_image(&root);
        let archived = Command::new("tar")
            .args(["--mode=a+rX", "-C"])
            .arg(&root)
            .args(["-cf", "-", "."])
            .output()
            .unwrap();
        assert!(archived.status.success());
        let group = std::env::var(INSIDE).unwrap();
        for node in NODES {
            let mut options = AgentOptions::new(env!("CARGO_BIN_EXE_kedge").as_ref());
            options.crun = Some("/usr/bin/crun".into());
            options.flags = vec!["--cgroup-root".into(), format!("{group}/{node}").into()];
            let logs = cluster.scratch().join(format!("{node}-logs"));
            let agent = cluster.add(node, options).unwrap();
            let text = format!(
                "{HEADER}podLogsDir: {}\nkedge:\n  images:\n    insecureRegistries: [\"{}\"]\n",
                logs.display(),
                registry.name()
            );
            agent.write_drop_in("20-pods.conf", &text).unwrap();
            agent.start().unwrap();
        }
        Self { cluster, registry, layer: archived.stdout }
    }

    fn image(&self, tag: &str) -> String {
        format!("{}/site/clock:{tag}", self.registry.name())
    }

    /// An image that runs this command; all have the same layer.
    fn push(&self, tag: &str, command: &[&str]) {
        let put = |path: &str, media: &str, bytes: &[u8]| {
            let digest = BlobDigest::of(bytes);
            let path = if path.is_empty() { format!("site/clock/blobs/{digest}") } else { path.to_owned() };
            let media = format!("application/vnd.oci.image.{media}");
            self.registry.put(&path, &media, bytes);
            json!({"mediaType": media, "digest": digest, "size": bytes.len()})
        };
        let layer = put("", "layer.v1.tar", &self.layer);
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({"architecture": architecture, "os": "linux", "config": {"Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}});
        let config = put("", "config.v1+json", config.to_string().as_bytes());
        let media = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": media, "config": config, "layers": [layer]});
        put(&format!("site/clock/manifests/{tag}"), "manifest.v1+json", manifest.to_string().as_bytes());
    }

    /// An image whose container runs; `number` tells its processes from those of others.
    fn push_good(&self, tag: &str, number: u32) {
        self.push(tag, &["/bin/sleep", &number.to_string()]);
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl().run(arguments).unwrap()
    }

    fn set_image(&self, tag: &str) {
        let image = format!("{SET}={}", self.image(tag));
        self.kubectl(&["set", "image", &format!("daemonset/{SET}"), &image]);
    }

    fn annotate(&self, annotation: &str) {
        self.kubectl(&["annotate", "--overwrite", "daemonset", SET, annotation]);
    }

    /// The update is complete by the hub's word: its pods stayed.
    #[track_caller]
    fn completes(&self) {
        let begin = Instant::now();
        let (is_complete, said) = self.cluster.hub().watch_rollout(SET).unwrap();
        assert!(is_complete && said.contains("is complete"), "{said}\n{}", self.state());
        eprintln!("complete: {} ms", begin.elapsed().as_millis());
    }

    fn set(&self) -> Value {
        self.cluster.kubectl().json(&["get", "daemonset", SET]).unwrap_or_default()
    }

    fn stop(&self) -> String {
        let set = self.set();
        let conditions = set["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let stop = conditions.iter().find(|one| one["type"] == "RolloutStopped" && one["status"] == "True");
        stop.map_or(String::new(), |stop| stop["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Image tag and restarts of the pod of each node; only pods that are ready.
    fn ready(&self) -> BTreeMap<String, (String, u64)> {
        let pods = self.cluster.kubectl().json(&["get", "pods", "-l", "app=clock"]).unwrap_or_default();
        let of = |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0];
            let image = pod["spec"]["containers"][0]["image"].as_str()?;
            let tag = image.rsplit(':').next()?.to_owned();
            let node = pod["spec"]["nodeName"].as_str()?.to_owned();
            let is_ready = container["ready"] == true && pod["metadata"]["deletionTimestamp"].is_null();
            is_ready.then(|| (node, (tag, container["restartCount"].as_u64().unwrap_or(0))))
        };
        pods["items"].as_array().into_iter().flatten().filter_map(of).collect()
    }

    fn all_run(&self, tag: &str) -> bool {
        let ready = self.ready();
        ready.len() == NODES.len() && ready.values().all(|found| *found == (tag.to_owned(), 0))
    }

    /// Waits, and watches the promises meanwhile: at most `out` nodes have no container.
    #[track_caller]
    fn until(&self, awaited: &str, out: usize, is_so: impl Fn() -> bool) {
        self.until_with_more(awaited, out, 0, is_so);
    }

    /// The same with at most this many more containers than nodes.
    #[track_caller]
    fn until_with_more(&self, awaited: &str, out: usize, more: usize, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        let reached = poll(PATIENCE, || {
            count(awaited, out, more);
            is_so().then_some(())
        });
        eprintln!("{awaited}: {} ms", begin.elapsed().as_millis());
        assert!(reached.is_some(), "waited in vain for {awaited}\n{}", self.state());
    }

    fn state(&self) -> String {
        let pods = self.cluster.kubectl().run(&["get", "pods", "-o", "wide"]).unwrap_or_default();
        let logs: Vec<String> =
            self.cluster.agents().iter().map(|agent| tail(&agent.log_text(), 30)).collect();
        let log = fs::read_to_string(self.cluster.hub().log()).unwrap_or_default();
        format!("{:#}\n{pods}\n{}\n{}", self.set()["status"], tail(&log, 30), logs.join("\n"))
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Processes of good images.
fn processes() -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let command_lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    command_lines.filter(|line| line.starts_with(b"/bin/sleep\x0086")).count()
}

/// Checks that no more containers run than there are nodes and `more`, and that at most `out` nodes have
/// none.
#[track_caller]
fn count(when: &str, out: usize, more: usize) {
    let running = processes();
    assert!(running <= NODES.len() + more, "{when}: {running} containers on {} nodes", NODES.len());
    assert!(running + out >= NODES.len(), "{when}: only {running} containers run");
}

fn manifest(image: &str) -> String {
    let labels = json!({"app": "clock"});
    let annotations = json!({"kedge.dev/complete-after": "8s"});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": SET, "annotations": annotations}, "spec": {
        "selector": {"matchLabels": labels}, "minReadySeconds": 1,
        "template": {"metadata": {"labels": labels}, "spec": {
            "hostNetwork": true, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": SET, "image": image}]}}}})
    .to_string()
}

#[test]
fn updates_of_real_agents_stop_before_they_hurt() {
    isolated("rollouts::updates_of_real_agents_stop_before_they_hurt", || {
        let mut site = Site::new();
        site.push_good("v1", 86_401);
        site.cluster.kubectl().feed(&["apply", "-f", "-"], &manifest(&site.image("v1"))).unwrap();
        site.until("the first rollout", NODES.len(), || site.all_run("v1"));
        site.completes();

        image_that_is_missing_harms_nothing(&site);
        crash_loop_stops_after_one_node_and_is_undone(&site);
        failed_update_is_rolled_back(&site);
        image_that_ends_soon_is_never_complete(&site);
        canary_comes_first(&site);
        rollover_ends_with_the_last_template(&site);
        surge_leaves_no_node_without_a_container(&site);
        pod_that_is_called_failed_is_replaced(&site);
        hub_that_is_killed_goes_on(&mut site);
        if is_full() {
            node_that_is_lost_is_updated_on_return(&mut site);
            node_lost_under_the_update_stops_it(&mut site);
            machine_that_is_renamed_runs_one_container(&mut site);
        }
        site.kubectl(&["delete", "daemonset", SET]);
        site.until("the end", NODES.len(), || processes() == 0);
    });
}

/// A missing image stops no pod; when the image appears, the update continues.
fn image_that_is_missing_harms_nothing(site: &Site) {
    site.annotate("kedge.dev/max-failures=0");
    site.annotate("kedge.dev/progress-deadline=20s");
    site.set_image("v2");
    // no container ends all the while: `out` is 0
    site.until("a stop without harm", 0, || site.stop().contains("image not pulled in time"));
    assert!(site.all_run("v1"), "{}", site.state());
    site.push_good("v2", 86_402);
    site.annotate("kedge.dev/resume=1");
    site.annotate("kedge.dev/progress-deadline=10m");
    site.until("the update once the image is there", 1, || site.all_run("v2"));
}

fn crash_loop_stops_after_one_node_and_is_undone(site: &Site) {
    site.push("v3", &["/bin/sh", "-c", "exit 3"]);
    site.set_image("v3");
    site.until("a stop by a crash loop", 1, || site.stop().contains("(crash loop)"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(processes(), 2, "the other nodes keep what they run");
    let rollout = format!("daemonset/{SET}");
    site.kubectl(&["rollout", "undo", &rollout]);
    site.until("the undo", 1, || site.all_run("v2"));
    let said = site.kubectl(&["rollout", "status", &rollout, "--timeout=60s"]);
    assert!(said.contains("successfully rolled out"), "{said}");
    site.completes();
}

fn failed_update_is_rolled_back(site: &Site) {
    site.annotate("kedge.dev/rollback-on-failure=true");
    site.push("v4", &["/bin/sh", "-c", "exit 4"]);
    site.set_image("v4");
    let has_template =
        |tag: &str| site.set()["spec"]["template"]["spec"]["containers"][0]["image"] == *site.image(tag);
    site.until("the roll back", 1, || has_template("v2") && site.all_run("v2"));
    site.annotate("kedge.dev/rollback-on-failure=false");
}

/// It runs for longer than `minReadySeconds`, so kubectl may see a success; what waits for the hub's word
/// does not.
fn image_that_ends_soon_is_never_complete(site: &Site) {
    site.completes();
    site.annotate("kedge.dev/rollback-on-failure=true");
    site.push("soon", &["/bin/sh", "-c", "sleep 2; exit 3"]);
    site.set_image("soon");
    let (is_complete, said) = site.cluster.hub().watch_rollout(SET).unwrap();
    eprintln!("{said}");
    assert!(!is_complete && !said.contains("is complete"), "{said}");
    assert!(said.contains("failed, more than 0") || said.contains("was not completed"), "{said}");
    site.until("the roll back of what ended soon", NODES.len(), || site.all_run("v2"));
    site.completes();
    site.annotate("kedge.dev/rollback-on-failure=false");
}

fn canary_comes_first(site: &Site) {
    site.kubectl(&["label", "node", "edge-3", "canary=true"]);
    site.annotate("kedge.dev/canary-selector=canary=true");
    site.annotate("kedge.dev/canary-soak=4s");
    site.push_good("v5", 86_405);
    site.set_image("v5");
    let others_have = |tag: &str| {
        let ready = site.ready();
        ["edge-1", "edge-2"].iter().all(|node| ready.get(*node).is_some_and(|found| found.0 == tag))
    };
    site.until("the canary", 1, || {
        let is_updated = site.ready().get("edge-3").is_some_and(|found| found.0 == "v5");
        assert!(is_updated || others_have("v2"), "the others wait for it: {:?}", site.ready());
        is_updated
    });
    assert!(others_have("v2"), "{:?}", site.ready());
    site.until("the others after it", 1, || site.all_run("v5"));
    site.annotate("kedge.dev/canary-selector=");
}

fn rollover_ends_with_the_last_template(site: &Site) {
    site.push_good("v6", 86_406);
    site.push_good("v7", 86_407);
    site.set_image("v6");
    site.until("a node with the one between", 1, || site.ready().values().any(|found| found.0 == "v6"));
    site.set_image("v7");
    site.until("the last one", 1, || site.all_run("v7"));
}

/// The old container ends once the new one is available.
fn surge_leaves_no_node_without_a_container(site: &Site) {
    // the old ones take their time to end; the hub's own tests count how many new ones begin at a time
    const MORE: usize = NODES.len();
    let allow = |surge: u32, unavailable: u32| {
        let rolling = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        let patch = json!({"spec": {"updateStrategy": {"rollingUpdate": rolling}}}).to_string();
        site.kubectl(&["patch", "daemonset", SET, "-p", &patch]);
    };
    allow(1, 0);
    site.push_good("v9", 86_409);
    site.set_image("v9");
    site.until_with_more("the update by a surge", 0, MORE, || site.all_run("v9"));
    site.until_with_more("the end of the old ones", 0, MORE, || processes() == NODES.len());
    allow(0, 1);
}

/// Its containers run although its status is set to Failed, as upstream's conformance test does, which then
/// waits until the pod is gone.
fn pod_that_is_called_failed_is_replaced(site: &Site) {
    // before, it would be a failure of the update, which stops
    site.completes();
    let names = || -> Vec<String> {
        let text = site.kubectl(&["get", "pods", "-l", "app=clock", "-o", "name"]);
        text.lines().map(str::to_owned).collect()
    };
    let called = names().remove(0);
    let patch = json!({"status": {"phase": "Failed"}}).to_string();
    site.kubectl(&["patch", &called, "--subresource=status", "-p", &patch]);
    site.until("another pod in its place", 1, || !names().contains(&called) && site.all_run("v9"));
    assert_eq!(processes(), NODES.len());
}

/// Kills it at moments that differ from run to run, several times in one update.
fn hub_that_is_killed_goes_on(site: &mut Site) {
    let kills = if is_full() { 100 } else { KILLS };
    let begin = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = begin.as_nanos() as u64;
    let mut random = Random::new(seed);
    eprintln!("moments of seed {seed}");
    let (mut killed, mut round) = (0, 0);
    while killed < kills {
        let tag = if round % 2 == 0 { "v6" } else { "v7" };
        site.set_image(tag);
        let times = (1 + random.index(KILLS_OF_ONE)).min(kills - killed);
        for _ in 0..times {
            let end = Instant::now() + Duration::from_millis(random.index(KILLED_WITHIN_MILLIS) as u64);
            while Instant::now() < end {
                count("before a kill", 1, 0);
                std::thread::sleep(Duration::from_millis(20));
            }
            site.cluster.hub_mut().kill();
            count("after a kill", 1, 0);
            site.cluster.hub_mut().start_again().unwrap();
        }
        (killed, round) = (killed + times, round + 1);
        site.until(&format!("update {round} after {times} kills, {killed} in all"), 1, || site.all_run(tag));
    }
}

fn node_that_is_lost_is_updated_on_return(site: &mut Site) {
    site.cluster.agent_mut("edge-2").stop().unwrap();
    site.push_good("v8", 86_408);
    site.until("a node that is lost", 0, || {
        let node = site.cluster.kubectl().json(&["get", "node", "edge-2"]).unwrap_or_default();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "Unknown")
    });
    site.set_image("v8");
    site.until("the update of the others", 1, || {
        let set = site.set();
        set["metadata"]["annotations"]["kedge.dev/set-aside"] == "1"
            && set["status"]["numberAvailable"] == 2
            && site.ready().values().filter(|found| found.0 == "v8").count() == 2
    });
    site.cluster.agent_mut("edge-2").start().unwrap();
    site.until("the node that returned", 1, || site.all_run("v8"));
}

/// The canary is cut off after it got the update: that is a failure of the update, which stops, and the
/// others keep what they run.
fn node_lost_under_the_update_stops_it(site: &mut Site) {
    site.annotate("kedge.dev/canary-selector=canary=true");
    site.annotate("kedge.dev/canary-soak=10m");
    site.push_good("v10", 86_410);
    site.set_image("v10");
    site.until("the canary with the update", 1, || {
        site.ready().get("edge-3").is_some_and(|found| found.0 == "v10")
    });
    site.cluster.agent_mut("edge-3").stop().unwrap();
    site.until("a stop by a node that is lost", 0, || site.stop().contains("edge-3 (node lost)"));
    let others = site.ready().into_iter().filter(|(node, _)| node != "edge-3");
    assert!(
        others.map(|(_, found)| found).eq([("v8".to_owned(), 0), ("v8".to_owned(), 0)]),
        "{}",
        site.state()
    );
    site.cluster.agent_mut("edge-3").start().unwrap();
    site.annotate("kedge.dev/canary-selector=");
    site.annotate("kedge.dev/resume=2");
    site.until("the update after it returned", 1, || site.all_run("v10"));
}

/// Somebody deletes its Node and starts it under another name, with the containers of the old one still
/// running.
fn machine_that_is_renamed_runs_one_container(site: &mut Site) {
    site.cluster.agent_mut("edge-2").stop().unwrap();
    site.kubectl(&["delete", "node", "edge-2"]);
    let kubeconfig = site.cluster.hub().node_kubeconfig("edge-4").unwrap();
    let agent = site.cluster.agent_mut("edge-2");
    agent.rename("edge-4");
    agent.replace_kubeconfig(&kubeconfig).unwrap();
    agent.start().unwrap();
    let run = |tag: &str| {
        let ready = site.ready();
        let nodes: Vec<&str> = ready.keys().map(String::as_str).collect();
        nodes == ["edge-1", "edge-3", "edge-4"] && ready.values().all(|found| found.0 == tag)
    };
    site.until("the pod under the new name, and none of the old one", 1, || run("v10"));
    site.push_good("v11", 86_411);
    site.set_image("v11");
    site.until("an update after that", 1, || run("v11"));
}
