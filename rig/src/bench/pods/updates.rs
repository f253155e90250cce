//! Updates of a DaemonSet on a node that runs containers: the time without a serving pod, with images pulled
//! in advance, without, and with `maxSurge`; and the bytes of an update.
//!
//! Always holds: hub, agent, crun and registry are real; each update has an image that the node does not
//! have, behind a line of [`LINE`] bytes a second. A container serves until its process has ended, and the
//! next one from the moment when its pod is ready in the hub.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kedge_rig::error::RigError;
use kedge_rig::link::{Link, LinkState};
use kedge_rig::registry::FakeRegistry;
use kedge_rig::table::{Figure, Goal, quantile};
use serde_json::{Value, json};

use super::{Bench, Kind, NODE as NAME, layout, milliseconds, missing, ran};
use crate::pulls;
use crate::push::{JSON, MERGE};
use crate::relay::by_connection;
use crate::setup::{LIMIT, PLAIN, io};

pub(super) const NODE: Kind =
    Kind { purpose: "bench-updates", drop_in: PLAIN, disk_mib: None, is_relayed: true };
const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const SET: &str = "updated";
const REPOSITORY: &str = "bench/update";
/// Bytes per second of the registry's line: an image takes two seconds and more.
const LINE: u32 = 2 * 1024 * 1024;
const LAYER_BYTES: u64 = 4 * 1024 * 1024;
/// Updates of each kind.
const TRIES: u32 = 5;
/// Seconds that a container's process sleeps, plus the number of its update.
const SLEEP_SECS: u32 = 700_000;
/// Time for the last reports of an update to arrive.
const SETTLE: Duration = Duration::from_secs(3);

/// The way in which pods are replaced.
#[derive(Clone, Copy, PartialEq)]
enum Sort {
    ImagesFirst,
    NoPrePull,
    Surge,
}

/// The cost of one update.
struct Update {
    /// Milliseconds without a serving pod.
    downtime: f64,
    /// Bytes to and from the hub.
    bytes: usize,
    /// Bytes from the registry, for each byte of the image as it is stored there.
    pulled: f64,
}

/// A registry behind a slow line that counts bytes.
struct Line {
    registry: FakeRegistry,
    link: Link,
    passed: Arc<AtomicUsize>,
}

impl Line {
    fn start() -> Result<Line, RigError> {
        let registry = FakeRegistry::start().map_err(io("start a registry"))?;
        registry.put("", "application/json", b"{}");
        let at: SocketAddr = registry.name().parse().map_err(|_| missing("an address", &registry.name()))?;
        let passed = Arc::new(AtomicUsize::new(0));
        let count = passed.clone();
        let observer = move |_, is_up: bool, bytes: &[u8]| {
            if !is_up {
                count.fetch_add(bytes.len(), Ordering::Relaxed);
            }
        };
        let link = Link::observed(at, Some(Box::new(observer))).map_err(io("start a link"))?;
        link.set(LinkState::Slow(LINE));
        Ok(Line { registry, link, passed })
    }

    /// Serves an image of its own; returns the bytes of its blobs.
    fn serve(&self, scratch: &Path, number: u32) -> Result<u64, RigError> {
        let place = scratch.join(format!("update-{number}"));
        fs::create_dir_all(&place).map_err(RigError::io("create directory", &place))?;
        let data = place.join("data");
        let count = format!("count={LAYER_BYTES}");
        let to = format!("of={}", data.display());
        ran("dd", &["if=/dev/urandom", "iflag=count_bytes", "bs=64k", &count, &to])?;
        let layout = layout(&place.join("layout"), &[super::found("busybox")?, data])?;
        let bytes = pulls::serve(&self.registry, &layout, REPOSITORY, &number.to_string())?;
        fs::remove_dir_all(&place).map_err(RigError::io("remove", &place))?;
        Ok(bytes)
    }

    fn image(&self, number: u32) -> String {
        format!("{}/{REPOSITORY}:{number}", self.link.address())
    }
}

/// See the module.
pub(super) fn figures(bench: &mut Bench) -> Result<Vec<Figure>, RigError> {
    let line = Line::start()?;
    bench.agent.stop()?;
    let text = format!("{PLAIN}kedge:\n  images:\n    insecureRegistries: [\"{}\"]\n", line.link.address());
    bench.agent.write_drop_in("90-updates.conf", &text)?;
    bench.agent.start()?;
    line.serve(bench.setup.scratch.path(), 0)?;
    let mut hub = bench.setup.connect()?;
    hub.accepted("POST", SETS, JSON, &set(&line.image(0), 0)).map_err(io("create a DaemonSet"))?;
    bench.pods.wait("the first pod to run", LIMIT, |pod| is_ready(pod, &line.image(0)))?;
    let (mut number, mut figures, mut all) = (0, Vec::new(), Vec::new());
    let sorts = [
        (Sort::ImagesFirst, "images first", Some(5000.0)),
        (Sort::NoPrePull, "without pre-pull", None),
        (Sort::Surge, "maxSurge", Some(500.0)),
    ];
    for (sort, name, goal) in sorts {
        let mut hub = bench.setup.connect()?;
        let path = format!("{SETS}/{SET}");
        hub.accepted("PATCH", &path, MERGE, &strategy(sort)).map_err(io("choose a strategy"))?;
        let mut downtimes = Vec::new();
        for _ in 0..TRIES {
            number += 1;
            let update = update(bench, &line, number)?;
            downtimes.push(update.downtime);
            all.push(update);
        }
        let how = format!(
            "from the end of a container's process to the next pod's Ready at the hub; an image of {} MiB at {} MiB a second; median of {TRIES}, \
             worst {:.0} ms",
            LAYER_BYTES >> 20,
            LINE >> 20,
            quantile(&downtimes, 1.0)
        );
        let figure = Figure::new(
            &format!("updates: downtime of a node, {name}"),
            quantile(&downtimes, 0.5),
            "ms",
            how,
        );
        figures.push(match goal {
            Some(most) => figure.with_goal(Goal::AtMost(most)),
            None => figure,
        });
    }
    let median = |of: fn(&Update) -> f64| quantile(&all.iter().map(of).collect::<Vec<_>>(), 0.5);
    let how = format!("between hub and node, TLS included, renewals, too; median of {} updates", all.len());
    let bytes = median(|update| update.bytes as f64);
    figures.push(Figure::new("updates: bytes on the wire per node updated", bytes, "B", how));
    let how = "what passed from the registry beside its blobs";
    figures.push(
        Figure::new("updates: bytes pulled per byte of the image", median(|update| update.pulled), "", how)
            .with_goal(Goal::AtMost(1.05)),
    );
    Ok(figures)
}

fn update(bench: &mut Bench, line: &Line, number: u32) -> Result<Update, RigError> {
    let stored = line.serve(bench.setup.scratch.path(), number)?;
    let old = process_of(number - 1).ok_or_else(|| missing("the process of the old pod", "none"))?;
    bench.pods.forget();
    line.passed.store(0, Ordering::Relaxed);
    let mut hub = bench.setup.connect()?;
    let begun = Instant::now();
    let patch = json!({"spec": {"template": {"spec": pod_spec(&line.image(number), number)}}});
    hub.accepted("PATCH", &format!("{SETS}/{SET}"), MERGE, &patch).map_err(io("change the template"))?;
    let end = std::thread::spawn(move || {
        let is_there = || fs::read(format!("/proc/{old}/cmdline")).is_ok_and(|line| !line.is_empty());
        while is_there() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    });
    let (ready, _) = bench.pods.wait("the new pod", LIMIT, |pod| is_ready(pod, &line.image(number)))?;
    let gone = end.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
    if gone.saturating_duration_since(begun) >= LIMIT {
        return Err(missing("the end of the old container", "it runs"));
    }
    std::thread::sleep(SETTLE);
    let records = bench.relay.as_ref().map(super::Relay::records).unwrap_or_default();
    let traffic = by_connection(records.iter().filter(|record| record.at >= begun));
    Ok(Update {
        downtime: milliseconds(gone, ready),
        bytes: traffic.iter().map(crate::relay::Traffic::bytes).sum(),
        pulled: line.passed.load(Ordering::Relaxed) as f64 / stored as f64,
    })
}

fn is_ready(pod: &Value, image: &str) -> bool {
    pod["spec"]["containers"][0]["image"] == image && pod["status"]["containerStatuses"][0]["ready"] == true
}

fn process_of(number: u32) -> Option<i32> {
    let line = format!("/bin/busybox\0sleep\0{}\0", SLEEP_SECS + number);
    super::pids(|found| found == line).pop()
}

fn strategy(sort: Sort) -> Value {
    let (surge, unavailable) = if sort == Sort::Surge { (1, 0) } else { (0, 1) };
    let pre_pull = if sort == Sort::NoPrePull { "false" } else { "true" };
    json!({"metadata": {"annotations": {"kedge.dev/pre-pull": pre_pull}},
        "spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}})
}

fn pod_spec(image: &str, number: u32) -> Value {
    json!({"nodeSelector": {"kubernetes.io/hostname": NAME}, "hostNetwork": true,
        "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": image,
            "command": ["/bin/busybox", "sleep", (SLEEP_SECS + number).to_string()]}]})
}

fn set(image: &str, number: u32) -> Value {
    let labels = json!({"app": SET});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": SET}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod_spec(image, number)}}})
}
