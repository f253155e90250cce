//! A node that joined by a token beside one that was handed a kubeconfig: bytes and writes of the first
//! minute, and of a settled node.
//!
//! Always holds: both run the same program with the defaults of a device, each through a relay of its own and
//! under strace, which stays beside the agent's process.

use std::time::{Duration, Instant};

use kedge_rig::agent::{Agent, AgentOptions, RIG_DROP_IN_FILE};
use kedge_rig::error::RigError;
use kedge_rig::process::Process;
use kedge_rig::table::{Figure, Goal};

use crate::relay::{Relay, by_connection};
use crate::setup::{LEASES, LIMIT, PLAIN, Setup, io, pid};
use crate::trace::{self, Trace};

/// Time until a node has settled.
const QUIET: Duration = Duration::from_secs(60);
/// How many more bytes a settled node may send that joined: nothing more is sent, and windows differ by a
/// message.
const SAME: f64 = 1.02;

/// The cost of one node.
struct Cost {
    first_bytes: usize,
    first: Trace,
    settled_bytes: usize,
    settled: Trace,
    pss_kib: f64,
}

/// See the module; `window` is the time for which a settled node is measured.
pub(crate) fn measure(window: Duration) -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-joined")?;
    let (handed, joined) =
        (cost(&setup, "edge-handed", false, window)?, cost(&setup, "edge-joined", true, window)?);
    let figure = |what: &str, joined: f64, handed: f64, unit: &'static str, how: &str| {
        Figure::new(&format!("joined: {what}"), joined, unit, format!("handed over: {handed:.0}; {how}"))
    };
    Ok(vec![
        figure(
            "bytes of the first minute",
            joined.first_bytes as f64,
            handed.first_bytes as f64,
            "B",
            "TLS records with heads and tags; a request for the certificate, and the handshakes with it",
        ),
        figure(
            "durable writes of the first minute",
            joined.first.renamed.len() as f64,
            handed.first.renamed.len() as f64,
            "",
            "strace, files renamed into place",
        ),
        figure(
            "flushes of the first minute",
            joined.first.syncs as f64,
            handed.first.syncs as f64,
            "",
            "the same: fsync and fdatasync",
        ),
        figure(
            "bytes to disk in the first minute",
            joined.first.bytes as f64,
            handed.first.bytes as f64,
            "B",
            "the same, without the log",
        ),
        figure(
            "bytes of a settled node",
            joined.settled_bytes as f64,
            handed.settled_bytes as f64,
            "B",
            &format!("in {} s", window.as_secs()),
        )
        .with_goal(Goal::AtMost(handed.settled_bytes as f64 * SAME)),
        figure(
            "file writes of a settled node",
            joined.settled.changes as f64,
            handed.settled.changes as f64,
            "",
            "strace in the same time: every call that can change a file system",
        )
        .with_goal(Goal::Exactly(0.0)),
        figure(
            "PSS, idle",
            joined.pss_kib,
            handed.pss_kib,
            "KiB",
            "most of 35 s of smaps_rollup, after that",
        ),
    ])
}

fn cost(setup: &Setup, name: &str, joins: bool, window: Duration) -> Result<Cost, RigError> {
    let hub = setup.admin.address();
    let relay = Relay::start(hub).map_err(io("start the relay"))?;
    let credential = if joins { setup.hub.node_bootstrap(name)? } else { setup.hub.node_kubeconfig(name)? };
    let credential = credential.replace(&hub.to_string(), &relay.address().to_string());
    let prefix = setup.scratch.path().join(format!("{name}.strace"));
    let strace = format!("strace -D -f -ff -ttt -y -e {} -o {}", trace::CALLS, prefix.display());
    let mut options = AgentOptions::new(&setup.wrapper(&format!("{name}-traced"), &strace)?);
    let dir = setup.scratch.path().join(name);
    let bootstrap = dir.join("bootstrap-kubeconfig");
    options.flags.extend(["--bootstrap-kubeconfig".into(), bootstrap.clone().into()]);
    let mut agent = Agent::prepare(&dir, name, &credential, options)?;
    agent.write_drop_in(RIG_DROP_IN_FILE, PLAIN)?;
    if joins {
        std::fs::rename(agent.kubeconfig(), &bootstrap).map_err(RigError::io("rename", &bootstrap))?;
    }
    let leases = setup.watch(LEASES)?;
    agent.start()?;
    leases.wait("the node's first renewal", LIMIT, |object| object["metadata"]["name"] == name)?;
    std::thread::sleep(QUIET);
    let log = format!("/{name}/log");
    let bytes = |since: Option<Instant>| -> usize {
        let records = relay.records();
        let records = records.iter().filter(|record| since.is_none_or(|since| record.at >= since));
        by_connection(records).iter().map(|traffic| traffic.bytes()).sum()
    };
    let text = trace::collect(&prefix)?;
    let (first, first_bytes, lines) = (trace::read(&text, &[&log]), bytes(None), text.lines().count());
    let begun = Instant::now();
    std::thread::sleep(window);
    let settled_bytes = bytes(Some(begun));
    let text = trace::collect(&prefix)?;
    let text = text.lines().skip(lines).collect::<Vec<_>>().join("\n");
    let settled = trace::read(&text, &[&log]);
    let pss_kib = Process::new(pid(&agent)?).most_memory()?.pss;
    agent.stop()?;
    Ok(Cost { first_bytes, first, settled_bytes, settled, pss_kib })
}
