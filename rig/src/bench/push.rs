//! A pushed configuration: the time until it is active, and its writes to the disk until it is promoted.
//!
//! Always holds: the push is a patch of the ConfigMap through the API, and *active* is what the Node's status
//! shows there. The allowed writes are those of RULES.md, "Durable writes", listed below; one more misses the
//! goal.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use kedge_rig::agent::Agent;
use kedge_rig::error::RigError;
use kedge_rig::programs;
use serde_json::{Value, json};

use crate::setup::{LIMIT, PLAIN, Setup, Watched, io, is_named};
use crate::trace;
use kedge_rig::client::Connection;
use kedge_rig::table::{Figure, Goal, quantile};

/// Edits that only change the ConfigMap's metadata.
const METADATA_EDITS: usize = 1000;
/// Timed pushes: the p99 is the slowest of them.
const PUSHES: usize = 50;
/// The trial period of the configuration whose writes are counted. The number of progress records does not
/// depend on it.
const TRIAL_SECS: u64 = 24;
/// The durable writes from adoption to promotion: checkpoint, current, startups | startups before it is
/// parsed | four records of progress, a quarter of the trial apart, because the promotion waits for a renewal
/// after the last | startups, last-known-good.
const WRITES_ALLOWED: [(&str, usize); 4] =
    [("checkpoints/", 1), ("current", 1), ("startups.json", 7), ("last-known-good", 1)];
pub(crate) const MERGE: &str = "content-type: application/merge-patch+json\r\n";
pub(crate) const JSON: &str = "content-type: application/json\r\n";
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn payload(verbosity: usize, trial_secs: u64) -> Value {
    let text = format!(
        "{PLAIN}configTrialDuration: {trial_secs}s\nlogging:\n  verbosity: {}\nmaxPods: {verbosity}\n",
        verbosity % 3
    );
    json!({"kubelet": text})
}

pub(crate) fn create(hub: &mut Connection, name: &str, data: &Value) -> Result<Value, RigError> {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    hub.accepted("POST", CONFIG_MAPS, JSON, &object).map_err(io("create a ConfigMap"))
}

pub(crate) fn follow(hub: &mut Connection, node: &str, name: &str) -> Result<(), RigError> {
    let source = json!({"namespace": "default", "name": name, "kubeletConfigKey": "kubelet"});
    let patch = json!({"spec": {"configSource": {"configMap": source}}});
    hub.accepted("PATCH", &format!("/api/v1/nodes/{node}"), MERGE, &patch)
        .map(drop)
        .map_err(io("assign the ConfigMap"))
}

pub(crate) fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn wait_active(nodes: &Watched, node: &str, version: &str) -> Result<Instant, RigError> {
    let is_active = |object: &Value| {
        is_named(object, node)
            && object["status"]["config"]["active"]["configMap"]["resourceVersion"] == version
    };
    nodes.wait(&format!("version {version} to be active on {node}"), LIMIT, is_active).map(|(at, _)| at)
}

/// Lets the next push replace the program in place, however many did so lately: operators push less often
/// than this program.
fn forget_pace(agent: &Agent) -> Result<(), RigError> {
    let path = agent.run_dir().join("replaced");
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(RigError::io("remove", &path)(error))
        }
        _ => Ok(()),
    }
}

/// The time from the patch of the ConfigMap to active.
pub(crate) fn push() -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-push")?;
    let node = "pushed";
    let nodes = setup.watch("/api/v1/nodes")?;
    let mut hub = setup.connect()?;
    let mut agent = setup.agent(node, &programs::built("kedge")?, PLAIN)?;
    agent.start()?;
    nodes.wait("the node to register", LIMIT, |object| is_named(object, node))?;
    let made = create(&mut hub, "edge", &payload(0, 600))?;
    follow(&mut hub, node, "edge")?;
    wait_active(&nodes, node, &version(&made))?;
    let process = agent.babysitter().state().pid;
    let (mut whole, mut ends) = (Vec::new(), Vec::new());
    for index in 1..=PUSHES {
        // the watch of the ConfigMap begins once the source is known; no operator of a fleet is faster
        std::thread::sleep(Duration::from_secs(1));
        forget_pace(&agent)?;
        let ended = agent.babysitter().state().ends.len();
        let begun = Instant::now();
        let patch = json!({"data": payload(index, 600)});
        let patched = hub
            .accepted("PATCH", &format!("{CONFIG_MAPS}/edge"), MERGE, &patch)
            .map_err(io("patch the ConfigMap"))?;
        agent.babysitter().wait_ends(ended + 1, LIMIT)?;
        ends.push(begun.elapsed().as_secs_f64() * 1e3);
        let at = wait_active(&nodes, node, &version(&patched))?;
        whole.push(at.duration_since(begun).as_secs_f64() * 1e3);
    }
    let is_same = agent.babysitter().state().pid == process;
    agent.stop()?;
    let detail = format!(
        "{PUSHES} pushes, from sending the patch to the Node's status; p50 {:.0} to the end of the old image; {}",
        quantile(&ends, 0.5),
        if is_same { "one process" } else { "the process was started again" }
    );
    let figure = |name: &str, q, goal| {
        Figure::new(name, quantile(&whole, q), "ms", detail.clone()).with_goal(Goal::AtMost(goal))
    };
    Ok(vec![
        figure("agent: ConfigMap patch to active, p50", 0.5, 150.0),
        figure("agent: ConfigMap patch to active, p99", 0.99, 400.0),
    ])
}

/// Durable writes from adoption to promotion, and of a settled node while its ConfigMap's metadata is edited.
pub(crate) fn writes() -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-writes")?;
    let node = "traced";
    let nodes = setup.watch("/api/v1/nodes")?;
    let mut hub = setup.connect()?;
    let prefix = setup.scratch.path().join("writes.strace");
    // -D: the agent stays the process that was started; one file per thread, so no call is split over two
    // lines
    let strace = format!("strace -D -f -ff -ttt -y -e {} -o {}", trace::CALLS, prefix.display());
    let program = setup.wrapper("kedge-strace", &strace)?;
    let mut agent = setup.agent(node, &program, PLAIN)?;
    agent.start()?;
    nodes.wait("the node to register", LIMIT, |object| is_named(object, node))?;
    // the writes of a first start are finished once the node is silent
    std::thread::sleep(Duration::from_secs(3));
    let before = trace::collect(&prefix)?.lines().count();
    let made = create(&mut hub, "edge", &payload(1, TRIAL_SECS))?;
    follow(&mut hub, node, "edge")?;
    let made = version(&made);
    wait_active(&nodes, node, &made)?;
    let is_promoted = |object: &Value| {
        is_named(object, node)
            && object["status"]["config"]["lastKnownGood"]["configMap"]["resourceVersion"] == made
    };
    nodes.wait("the promotion", LIMIT, is_promoted)?;
    std::thread::sleep(Duration::from_secs(2));
    let text = since(&prefix, before)?;
    let settled = trace::collect(&prefix)?.lines().count();
    let edited = edit_metadata(&mut hub, METADATA_EDITS)?;
    wait_active(&nodes, node, &edited)?;
    let while_edited = trace::read(&since(&prefix, settled)?, &[&format!("/{node}/log")]);
    agent.stop()?;
    let config_dir = agent.config_dir().display().to_string();
    let own = trace::read(&only(&text, &config_dir), &[]);
    let rest = trace::read(&without(&text, &config_dir), &[&format!("/{node}/log")]);
    let found = kinds(&own.renamed, &config_dir);
    let allowed: BTreeMap<String, usize> =
        WRITES_ALLOWED.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let beyond: usize =
        found.iter().map(|(name, count)| count.saturating_sub(allowed.get(name).copied().unwrap_or(0))).sum();
    let listed: Vec<String> = found.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let total: usize = allowed.values().sum();
    Ok(vec![
        Figure::new(
            "agent: durable writes, adoption to promotion",
            own.renamed.len() as f64,
            "",
            format!("strace, files renamed into place: {}", listed.join(", ")),
        )
        .with_goal(Goal::Exactly(total as f64)),
        Figure::new("agent: of them not in RULES.md's list", beyond as f64, "", "by file")
            .with_goal(Goal::Exactly(0.0)),
        Figure::new(
            "agent: fsyncs, adoption to promotion",
            own.syncs as f64,
            "",
            "strace; two per durable write (file, directory), more where a directory is new",
        ),
        Figure::new(
            "agent: bytes written, adoption to promotion",
            own.bytes as f64,
            "B",
            "strace, configuration's directory",
        ),
        Figure::new(
            "agent: other file changes meanwhile",
            rest.changes as f64,
            "",
            format!("strace: run directory (memory), socket, record of the exit ({} fsyncs)", rest.syncs),
        ),
        Figure::new(
            "agent: file writes, 1,000 metadata edits",
            while_edited.changes as f64,
            "",
            "strace: every call that can change a file system, while an annotation of its ConfigMap is edited",
        )
        .with_goal(Goal::Exactly(0.0)),
    ])
}

/// The output of strace after so many lines.
fn since(prefix: &Path, lines: usize) -> Result<String, RigError> {
    let all = trace::collect(prefix)?;
    Ok(all.lines().skip(lines).collect::<Vec<_>>().join("\n"))
}

/// Edits an annotation of the ConfigMap so many times, one after the other. Returns its last version.
fn edit_metadata(hub: &mut Connection, times: usize) -> Result<String, RigError> {
    let mut last = String::new();
    for time in 0..times {
        let patch = json!({"metadata": {"annotations": {"edited": time.to_string()}}});
        let edited = hub.accepted("PATCH", &format!("{CONFIG_MAPS}/edge"), MERGE, &patch);
        last = version(&edited.map_err(io("edit the ConfigMap's metadata"))?);
    }
    Ok(last)
}

fn only(text: &str, dir: &str) -> String {
    text.lines().filter(|line| line.contains(dir)).collect::<Vec<_>>().join("\n")
}

fn without(text: &str, dir: &str) -> String {
    text.lines().filter(|line| !line.contains(dir)).collect::<Vec<_>>().join("\n")
}

/// The number of writes by record: checkpoints together, other files by name.
fn kinds(renamed: &[String], dir: &str) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for path in renamed {
        let below = path.strip_prefix(dir).unwrap_or(path).trim_start_matches('/');
        let name = match below.starts_with("checkpoints/") {
            true => "checkpoints/",
            false => below.rsplit('/').next().unwrap_or(below),
        };
        *kinds.entry(name.to_owned()).or_insert(0) += 1;
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_record() {
        let renamed = ["/r/config/checkpoints/u/7", "/r/config/0.1.0/startups.json", "/r/config/current"];
        let found = kinds(&renamed.map(str::to_owned), "/r/config");
        let found: Vec<_> = found.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(found, [("checkpoints/", 1), ("current", 1), ("startups.json", 1)]);
    }
}
