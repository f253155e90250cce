//! The effect of a configuration's size on a settled node's memory.
//!
//! Always holds: the same process is measured with a small payload and then with one of a mebibyte (the push
//! replaces its program in place), each a minute after it became active, with the watch of the ConfigMap
//! open. Left to others: an agent without a configuration (`idle`).

use std::time::Duration;

use kedge_rig::error::RigError;
use kedge_rig::process::Process;
use kedge_rig::programs;
use kedge_rig::table::{Figure, Goal};
use serde_json::{Value, json};

use crate::push::{CONFIG_MAPS, MERGE, create, follow, version, wait_active};
use crate::setup::{LIMIT, PLAIN, Setup, io, is_named, pid};

/// Longest time from becoming active to the figure: the first status was sent, and the watches are open.
const SETTLE: Duration = Duration::from_secs(60);
/// Bytes of the large payload: nearly all that a ConfigMap may contain.
const PAYLOAD_BYTES: usize = 1024 * 1024 - 4096;
/// The promised size of the static build: 2.4 MiB.
pub(crate) const STATIC_PSS_KIB: f64 = 2.4 * 1024.0;
/// The growth that is allowed with the large payload: a few pages.
const NOISE_KIB: f64 = 32.0;

fn payload(bytes: usize) -> Value {
    let comment = format!("# {}\n", "x".repeat(97)).repeat(bytes / 100);
    json!({"kubelet": format!("{PLAIN}configTrialDuration: 600s\n{comment}")})
}

/// The memory with each payload: of the static build, which has the goal, if it exists, otherwise of the
/// other one.
pub(crate) fn measure(setup: &Setup) -> Result<Vec<Figure>, RigError> {
    let (program, build, goal) = match std::env::var_os("KEDGE_STATIC_AGENT") {
        Some(program) => (program.into(), "static build", Goal::AtMost(STATIC_PSS_KIB)),
        None => (programs::built("kedge")?, "glibc build", Goal::None),
    };
    let node = "configured";
    let nodes = setup.watch("/api/v1/nodes")?;
    let mut hub = setup.connect()?;
    let mut agent = setup.agent(node, &program, PLAIN)?;
    agent.start()?;
    nodes.wait("the node to register", LIMIT, |object| is_named(object, node))?;
    let made = create(&mut hub, "edge-memory", &payload(0))?;
    follow(&mut hub, node, "edge-memory")?;
    wait_active(&nodes, node, &version(&made))?;
    std::thread::sleep(SETTLE);
    let small = Process::new(pid(&agent)?).most_memory()?;
    let path = format!("{CONFIG_MAPS}/edge-memory");
    let large = hub.accepted("PATCH", &path, MERGE, &json!({"data": payload(PAYLOAD_BYTES)}));
    wait_active(&nodes, node, &version(&large.map_err(io("patch the ConfigMap"))?))?;
    std::thread::sleep(SETTLE);
    let large = Process::new(pid(&agent)?).most_memory()?;
    agent.stop()?;
    let of_small = format!("{build}, assigned, of 200 bytes; its watch is open");
    Ok(vec![
        Figure::new("agent: PSS with a configuration", small.pss, "KiB", of_small).with_goal(goal),
        Figure::new("agent: PSS with one of 1 MiB", large.pss, "KiB", "then pushed to the same process")
            .with_goal(goal),
        // only written pages, because each start touches slightly different pages of the program's code
        Figure::new(
            "agent: memory that 1 MiB of payload adds",
            large.dirty - small.dirty,
            "KiB",
            "pages that it wrote to",
        )
        .with_goal(Goal::AtMost(NOISE_KIB)),
    ])
}
