//! The time of a start: to READY=1, to the first Lease, and with 500 drop-ins.
//!
//! Always holds: times begin before the process is made, so they include the shell and `setpriv`, which
//! replace systemd's own work; a Lease counts when a watcher of the API sees it, not when the agent believes
//! it.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use kedge_rig::agent::Agent;
use kedge_rig::error::RigError;
use kedge_rig::programs;

use crate::cost;
use crate::setup::{LEASES, LIMIT, PLAIN, Setup, is_named};
use kedge_rig::table::{Figure, Goal, quantile};

/// Starts of one existing node, and first starts of new ones.
const STARTS: usize = 20;
const FIRST_STARTS: usize = 10;
/// Pairs of starts with and without drop-ins.
const PAIRS: usize = 10;
/// As many drop-ins as a machine with many administrators may collect.
const DROP_INS: usize = 500;

fn spread(values: &[f64]) -> String {
    format!("p50 of {} (p95 {:.0}, best {:.0})", values.len(), quantile(values, 0.95), quantile(values, 0.0))
}

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-start")?;
    let kedge = programs::built("kedge")?;
    let leases = setup.watch(LEASES)?;
    let mut ready = Vec::new();
    let mut lease = Vec::new();
    let mut first_lease = Vec::new();
    let timed = |agent: &mut Agent, ready: &mut Vec<f64>, lease: &mut Vec<f64>| {
        leases.forget();
        let name = agent.name().to_owned();
        let begun = Instant::now();
        agent.launch()?;
        agent.babysitter().wait_ready(LIMIT)?;
        ready.push(begun.elapsed().as_secs_f64() * 1e3);
        let (at, _) = leases.wait("a first Lease", LIMIT, |object| is_named(object, &name))?;
        lease.push(at.duration_since(begun).as_secs_f64() * 1e3);
        agent.stop()
    };
    for index in 0..FIRST_STARTS {
        let mut agent = setup.agent(&format!("new-{index}"), &kedge, PLAIN)?;
        timed(&mut agent, &mut Vec::new(), &mut first_lease)?;
    }
    let mut agent = setup.agent("known", &kedge, PLAIN)?;
    // not counted: this start registers the node
    timed(&mut agent, &mut Vec::new(), &mut Vec::new())?;
    for _ in 0..STARTS {
        timed(&mut agent, &mut ready, &mut lease)?;
    }
    let process = "from before the process is made";
    let mut figures = vec![
        Figure::new(
            "agent: exec to READY=1",
            quantile(&ready, 0.5),
            "ms",
            format!("{}, {process}", spread(&ready)),
        ),
        Figure::new(
            "agent: exec to first Lease",
            quantile(&lease, 0.5),
            "ms",
            format!("{}; the Node exists; seen by another watcher, {process}", spread(&lease)),
        )
        .with_goal(Goal::AtMost(100.0)),
        Figure::new(
            "agent: exec to first Lease, new node",
            quantile(&first_lease, 0.5),
            "ms",
            format!("{}; registers its Node first", spread(&first_lease)),
        )
        .with_goal(Goal::AtMost(100.0)),
    ];
    figures.extend(drop_ins(&setup, &kedge)?);
    Ok(figures)
}

fn drop_ins(setup: &Setup, kedge: &Path) -> Result<Vec<Figure>, RigError> {
    let mut few = setup.agent("few", kedge, PLAIN)?;
    let mut many = setup.agent("many", kedge, PLAIN)?;
    for index in 0..DROP_INS {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: {}\nsystemReserved:\n  memory: {index}Mi\n",
            index + 1
        );
        many.write_drop_in(&format!("50-{index:03}.conf"), &text)?;
    }
    let ready = |agent: &mut Agent| {
        let begun = Instant::now();
        agent.launch()?;
        agent.babysitter().wait_ready(LIMIT)?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        agent.stop()?;
        Ok::<f64, RigError>(took)
    };
    let mut differences = Vec::new();
    for _ in 0..PAIRS {
        // in pairs, so that the machine's other load affects both starts alike
        let (less, more) = (ready(&mut few)?, ready(&mut many)?);
        differences.push(more - less);
    }
    let instructions = |agent: &Agent| {
        let out = setup.scratch.path().join("check.callgrind");
        let output = Command::new("valgrind")
            .arg("--tool=callgrind")
            .arg(format!("--callgrind-out-file={}", out.display()))
            .arg(kedge)
            .args(["config", "check", "--config-dir"])
            .arg(agent.drop_in_dir())
            .output()
            .map_err(crate::setup::io("run valgrind"))?;
        if !output.status.success() {
            return Err(RigError::Failed {
                command: "valgrind kedge config check".into(),
                status: output.status.to_string(),
                said: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        Ok(cost::read(&out)?.instructions)
    };
    let more = instructions(&many)? - instructions(&few)?;
    Ok(vec![
        Figure::new(
            "agent: 500 drop-ins, start",
            quantile(&differences, 0.5),
            "ms",
            format!("READY=1 with 500 more than without, in turns: {}", spread(&differences)),
        ),
        Figure::new(
            "agent: 500 drop-ins, instructions",
            more / DROP_INS as f64,
            "each",
            "callgrind of `kedge config check`, with less without, by 500",
        ),
    ])
}
