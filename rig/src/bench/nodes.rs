//! The cost of one node for a hub with few or many: memory, processor time per renewal, instructions and
//! allocations, and all nodes reconnecting at once.
//!
//! Always holds: every node has its own certificate, source address, Node and Lease, one connection that
//! renews and one that watches its own Node, all over real TLS. As many nodes connect as the hub has
//! connections for, at most [`FLEET`]; a figure for more is marked as extrapolated. At the end all watches
//! are closed, and as many nodes as there are connections renew. Ratios compare stages of one run, so they
//! are valid on a busy machine, too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kedge_rig::client::{Events, Identity};
use kedge_rig::error::RigError;
use kedge_rig::process::Process;
use kedge_rig::table::{Figure, Goal};

use crate::cost;
use crate::load::{Node, WORKERS, each, hub_process, join, renew};
use crate::setup::{Setup, identity, io};

/// The fleet that one hub is built for.
const FLEET: usize = 10_000;
/// Nodes of the first stage: there, the hub's own memory and tasks weigh no more than the nodes do.
const FEW: usize = 100;
const MANY: usize = 1000;
/// Descriptors of this process that are not for nodes.
const OTHER_DESCRIPTORS: usize = 256;
/// Connections of a node with a watch: one that renews, one that watches.
const CONNECTIONS_WITH_WATCH: usize = 2;
/// Renewals measured in each stage: enough for the 10 ms ticks of processor time to be a small error.
const RENEWALS: usize = 20_000;
/// Nodes whose renewals are counted under valgrind, and the renewals of each: before counting, and counted.
/// Together they stay within the burst that the hub allows a node: under valgrind even renewals are slow
/// enough to use up a node's processor time.
const COUNTED_NODES: usize = 64;
const SETTLE_EACH: usize = 2;
const COUNTED_EACH: usize = 8;
/// Time for the hub to release memory that was needed for connecting.
const SETTLED: Duration = Duration::from_secs(3);
const WITH_WATCH_KIB: f64 = 24.0;
const WITHOUT_WATCH_KIB: f64 = 10.0;
const CPU_SECS_PER_1000: f64 = 0.025;
const ALLOCATIONS: f64 = 20.0;
/// A cost is flat if a node among the most costs at most this much of a node among the fewest: ticks and
/// pages add noise.
const FLAT: f64 = 1.25;

/// One node, connected.
struct Connected {
    identity: Identity,
    node: Node,
    _watch: Option<Events>,
}

/// The cost of a node among so many.
struct Stage {
    nodes: usize,
    /// The nodes that this stage added.
    added: usize,
    rss: f64,
    /// The cost of each added node.
    without_watch: f64,
    with_watch: f64,
    cpu_secs_per_1000: f64,
}

/// See the module; `most` comes from the command line.
pub(crate) fn measure(most: Option<usize>) -> Result<Vec<Figure>, RigError> {
    let mut setup = Setup::open_with("bench-nodes", &["--node-monitor-grace-period", "1h"])?;
    let allowed = descriptors()?.saturating_sub(OTHER_DESCRIPTORS).min(places(&setup)?);
    let most = most.unwrap_or(FLEET).min(allowed).max(1);
    let watching = most.min(allowed / CONNECTIONS_WITH_WATCH).max(1);
    eprintln!("kedge-bench: nodes: {most} real nodes over TLS, {watching} of them with a watch");
    // all of them first: a connection that waits for them would be closed as idle
    let mut identities = identities(&setup, 0..most)?.into_iter();
    let mut counts = vec![FEW.min(watching), MANY.min(watching), watching];
    counts.dedup();
    let (mut nodes, mut stages) = (Vec::new(), Vec::new());
    let process = hub_process(&setup)?;
    for count in counts {
        let new = identities.by_ref().take(count - nodes.len()).collect();
        nodes = stage(&process, nodes, new, &mut stages)?;
    }
    let mut figures = figures(&stages, allowed);
    let (nodes, whole) = whole_fleet(&process, nodes, identities.collect())?;
    figures.extend(whole);
    figures.extend(storm(&mut setup, nodes)?);
    figures.extend(renewal()?);
    Ok(figures)
}

/// Connections that the hub allows for nodes: an eighth is reserved for administrators.
fn places(setup: &Setup) -> Result<usize, RigError> {
    let answer =
        setup.connect()?.request("GET", "/metrics", "", b"").map_err(io("read the hub's metrics"))?;
    let text = String::from_utf8_lossy(&answer.body);
    let size = text.lines().find_map(|line| line.strip_prefix("kedge_hub_pool_size{pool=\"connections\"} "));
    let size: Option<usize> = size.and_then(|size| size.parse().ok());
    let size =
        size.ok_or_else(|| io("read the hub's metrics")(std::io::Error::other("no size of connections")))?;
    Ok(size - size / 8)
}

/// The soft limit of this process; a hub that it starts has the same one.
fn descriptors() -> Result<usize, RigError> {
    let path = PathBuf::from("/proc/self/limits");
    let text = std::fs::read_to_string(&path).map_err(RigError::io("read", &path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    Ok(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(usize::MAX))
}

/// Connects more nodes and measures their cost.
fn stage(
    process: &Process,
    mut nodes: Vec<Connected>,
    new: Vec<(String, Identity)>,
    stages: &mut Vec<Stage>,
) -> Result<Vec<Connected>, RigError> {
    let (count, added) = (nodes.len() + new.len(), new.len());
    let each_added = added as f64;
    // objects first, with the memory for making them: only connections are to be measured
    each(new.clone(), |(name, identity)| join(name, &identity).map(drop))?;
    let before = settled_rss(process)?;
    let new = each(new, connected)?;
    let renewing = settled_rss(process)?;
    nodes.extend(each(new, |connected| {
        let watch = watch(&connected)?;
        Ok(Connected { _watch: Some(watch), ..connected })
    })?);
    let rss = settled_rss(process)?;
    let (nodes, cpu_secs_per_1000) = renewing_nodes(process, nodes)?;
    stages.push(Stage {
        nodes: count,
        added,
        rss,
        without_watch: (renewing - before) / each_added,
        with_watch: (rss - before) / each_added,
        cpu_secs_per_1000,
    });
    Ok(nodes)
}

/// A connection that has renewed once.
fn connected((name, identity): (String, Identity)) -> std::io::Result<Connected> {
    let mut node = Node { name, connection: identity.connect()? };
    renew(&mut node, 0)?;
    Ok(Connected { identity, node, _watch: None })
}

/// Renews on all connections; returns the hub's processor time for a thousand renewals.
fn renewing_nodes(process: &Process, nodes: Vec<Connected>) -> Result<(Vec<Connected>, f64), RigError> {
    let (count, times) = (nodes.len(), RENEWALS.div_ceil(nodes.len()));
    let cpu = process.cpu_secs()?;
    let nodes = each(nodes, move |mut connected| {
        for time in 1..=times {
            renew(&mut connected.node, time)?;
        }
        Ok(connected)
    })?;
    Ok((nodes, (process.cpu_secs()? - cpu) * 1000.0 / (times * count) as f64))
}

/// As many nodes as there are connections: without watches, like agents that learn of changes from their
/// renewals.
fn whole_fleet(
    process: &Process,
    nodes: Vec<Connected>,
    new: Vec<(String, Identity)>,
) -> Result<(Vec<Connected>, Vec<Figure>), RigError> {
    let mut nodes: Vec<_> = nodes.into_iter().map(|node| Connected { _watch: None, ..node }).collect();
    nodes.extend(each(new, |(name, identity)| {
        join(name.clone(), &identity)?;
        connected((name, identity))
    })?);
    let rss = settled_rss(process)?;
    let (nodes, cpu) = renewing_nodes(process, nodes)?;
    let figure = |what: &str, value: f64, unit, how: &str| {
        Figure::new(&format!("hub: {} nodes without watches, {what}", nodes.len()), value, unit, how)
    };
    let figures = vec![
        figure("RSS", rss / 1024.0, "MiB", "one renewing TLS connection each, from addresses of their own"),
        figure("CPU per 1,000 renewals", cpu, "s", "/proc/PID/stat of the hub")
            .with_goal(Goal::AtMost(CPU_SECS_PER_1000)),
    ];
    Ok((nodes, figures))
}

fn settled_rss(process: &Process) -> Result<f64, RigError> {
    std::thread::sleep(SETTLED);
    Ok(process.memory()?.rss)
}

fn name(number: usize) -> String {
    format!("node-{number:05}")
}

/// Credentials of these nodes; the program runs once for each.
fn identities(setup: &Setup, numbers: std::ops::Range<usize>) -> Result<Vec<(String, Identity)>, RigError> {
    let made = |number: usize| {
        let name = name(number);
        let identity = identity(setup, &name, number)?;
        Ok::<_, RigError>((name, identity))
    };
    let numbers: Vec<usize> = numbers.collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let shares = numbers.chunks(numbers.len().div_ceil(workers).max(1));
        let threads: Vec<_> = shares
            .map(|share| {
                scope.spawn(move || share.iter().map(|number| made(*number)).collect::<Result<Vec<_>, _>>())
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let share =
                thread.join().map_err(|_| io("make credentials")(std::io::Error::other("panicked")))?;
            all.extend(share?);
        }
        Ok(all)
    })
}

/// Watches the node's own Node, as an agent does.
fn watch(connected: &Connected) -> std::io::Result<Events> {
    let path = format!(
        "/api/v1/nodes?watch=true&omitHeartbeats=true&fieldSelector=metadata.name%3D{}",
        connected.node.name
    );
    let mut events = connected
        .identity
        .events(&path)?
        .map_err(|status| std::io::Error::other(format!("GET {path}: answered {status}")))?;
    // the Node itself; from then on nothing happens to it
    events.next()?;
    Ok(events)
}

fn figures(stages: &[Stage], allowed: usize) -> Vec<Figure> {
    let (Some(few), Some(last)) = (stages.first(), stages.last()) else { return Vec::new() };
    let mut figures = vec![Figure::new(
        "hub: real nodes with a watch",
        last.nodes as f64,
        "",
        format!("two TLS connections each, from addresses of their own; the hub has {allowed} for nodes"),
    )];
    figures.extend(slope(stages));
    for Stage { nodes, without_watch, with_watch, cpu_secs_per_1000, .. } in stages {
        figures.push(
            Figure::new(
                &format!("hub: memory per node, {nodes} nodes"),
                *with_watch,
                "KiB",
                "RSS, one renewing connection and one watch together, beside the objects; of the nodes added last",
            ),
        );
        figures.push(Figure::new(
            &format!("hub: of it without the watch, {nodes} nodes"),
            *without_watch,
            "KiB",
            "RSS, before the watch was opened",
        ));
        figures.push(
            Figure::new(
                &format!("hub: CPU per 1,000 renewals, {nodes} nodes"),
                *cpu_secs_per_1000,
                "s",
                format!("/proc/PID/stat of the hub; {WORKERS} at once, watches open"),
            )
            .with_goal(Goal::AtMost(CPU_SECS_PER_1000)),
        );
    }
    if last.nodes > few.nodes {
        let how = format!("at {} nodes, of what it is at {}", last.nodes, few.nodes);
        let ratio = last.cpu_secs_per_1000 / few.cpu_secs_per_1000;
        figures.push(
            Figure::new("hub: growth of CPU per renewal", ratio, "times", how.clone())
                .with_goal(Goal::AtMost(FLAT)),
        );
    }
    if last.nodes < FLEET {
        let more = (FLEET - last.nodes) as f64 * last.with_watch;
        figures.push(Figure::new(
            "hub: RSS, 10,000 nodes with watches, extrapolated",
            (last.rss + more) / 1024.0,
            "MiB",
            format!(
                "{:.0} MiB with {}, and the last stage's memory for each more",
                last.rss / 1024.0,
                last.nodes
            ),
        ));
    }
    figures
}

/// The cost of one more node, and the extra cost of the first ones: code that runs for the first time, heaps
/// of threads, minus pages that were free. The goals are for one more node, because the cost of the first
/// ones depends on what ran before.
fn slope(stages: &[Stage]) -> Vec<Figure> {
    let Some((few, later)) = stages.split_first().filter(|(_, later)| !later.is_empty()) else {
        return Vec::new();
    };
    let added = later.iter().map(|stage| stage.added).sum::<usize>() as f64;
    let each =
        |of: fn(&Stage) -> f64| later.iter().map(|stage| of(stage) * stage.added as f64).sum::<f64>() / added;
    let (with, without) = (each(|stage| stage.with_watch), each(|stage| stage.without_watch));
    // the first nodes partly use pages that existed already, so growth is measured from the second stage to
    // the last
    let growth = later.last().map_or(1.0, |last| last.with_watch / later[0].with_watch);
    let how = format!("RSS, of the {added} after the first {}", few.nodes);
    vec![
        Figure::new("hub: memory of one more node", with, "KiB", format!("{how}; with its watch"))
            .with_goal(Goal::AtMost(WITH_WATCH_KIB)),
        Figure::new("hub: of it without the watch", without, "KiB", how)
            .with_goal(Goal::AtMost(WITHOUT_WATCH_KIB)),
        Figure::new(
            "hub: memory that connections take once",
            (few.with_watch - with) * few.added as f64,
            "KiB",
            format!("what the first {} took beyond one more node each; negative: pages were free", few.nodes),
        ),
        Figure::new(
            "hub: growth of memory per node",
            growth,
            "times",
            "of the last nodes added, of the second ones",
        )
        .with_goal(Goal::AtMost(FLAT)),
    ]
}

/// The hub is killed and starts again; every node reconnects at once, with a new handshake and a renewal.
fn storm(setup: &mut Setup, nodes: Vec<Connected>) -> Result<Vec<Figure>, RigError> {
    let count = nodes.len();
    let identities: Vec<_> = nodes.into_iter().map(|node| (node.node.name, node.identity)).collect();
    setup.hub.kill();
    setup.hub.start_again()?;
    let process = hub_process(setup)?;
    let (cpu, begun) = (process.cpu_secs()?, Instant::now());
    let back = each(identities, |(name, identity)| {
        let mut tries = 1;
        loop {
            let came = identity.connect().and_then(|connection| {
                let mut node = Node { name: name.clone(), connection };
                renew(&mut node, COME_BACK)?;
                Ok(node)
            });
            match came {
                Ok(node) => return Ok((node, tries)),
                Err(error) if tries == MOST_TRIES => return Err(error),
                // refused under load: an agent, too, would retry
                Err(_) => tries += 1,
            }
        }
    })?;
    let (secs, cpu) = (begun.elapsed().as_secs_f64(), process.cpu_secs()? - cpu);
    let tries: usize = back.iter().map(|(_, tries)| tries).sum();
    let storm = |what: &str, value: f64, unit, how: String| {
        Figure::new(&format!("hub: reconnect storm, {what}"), value, unit, how)
    };
    Ok(vec![
        storm(
            "nodes per second",
            count as f64 / secs,
            "/s",
            format!(
                "{count} nodes after SIGKILL and a start, {WORKERS} at once, full handshake and a renewal"
            ),
        ),
        storm("CPU per node", cpu * 1000.0 / count as f64, "ms", "/proc/PID/stat of the hub".into()),
        storm("tries per node", tries as f64 / count as f64, "", "more than 1: the hub refused some".into()),
    ])
}

/// The time of renewals after reconnecting: later than all before.
const COME_BACK: usize = 40_000;
/// Attempts of a node in a storm.
const MOST_TRIES: usize = 10;

/// Instructions and allocations of the hub per renewal.
fn renewal() -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open_counted("bench-renewal", &[])?;
    let joined = identities(&setup, 0..COUNTED_NODES)?
        .into_iter()
        .map(|(name, identity)| join(name, &identity))
        .collect::<std::io::Result<Vec<_>>>();
    let mut nodes = joined.map_err(io("join as a node"))?;
    let pid = setup.hub.pid().ok_or_else(|| io("find the hub's process")(std::io::Error::other("gone")))?;
    let mut renewals = |mut times: std::ops::Range<usize>| {
        times
            .try_for_each(|time| nodes.iter_mut().try_for_each(|node| renew(node, time)))
            .map_err(io("renew"))
    };
    renewals(0..SETTLE_EACH)?;
    cost::control(pid, cost::BEGIN)?;
    renewals(SETTLE_EACH..SETTLE_EACH + COUNTED_EACH)?;
    cost::control(pid, "--dump")?;
    let counted = cost::read(&setup.scratch.path().join(format!("callgrind.{pid}.1")))?;
    let count = COUNTED_NODES * COUNTED_EACH;
    let each = |value: f64| value / count as f64;
    let how =
        format!("callgrind over {count} renewals of {COUNTED_NODES} nodes, all that the hub does meanwhile");
    Ok(vec![
        Figure::new("hub: instructions per renewal", each(counted.instructions), "", how.clone()),
        Figure::new("hub: allocations per renewal", each(counted.allocations), "", how)
            .with_goal(Goal::AtMost(ALLOCATIONS)),
    ])
}
