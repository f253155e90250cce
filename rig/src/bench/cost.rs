//! The cost of a renewal: instructions and allocations, counted by callgrind while a settled agent renews.
//!
//! Always holds: counting begins after the agent has settled and ends after a whole number of seconds; the
//! renewals in it are those that another watcher of the API saw. The counts include everything that the
//! process does meanwhile: TLS, timers, the watchdog's thread.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kedge_rig::agent::Agent;
use kedge_rig::error::RigError;
use serde_json::Value;

use crate::setup::{LEASES, LIMIT, PLAIN, Setup, Watched, io, is_named, pid};
use kedge_rig::table::Figure;

/// The functions of the C library that allocate memory.
const ALLOCATORS: [&str; 6] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"];
/// Renewals before counting, and counted renewals.
const SETTLE: usize = 6;
const COUNTED: usize = 30;

/// The counts of callgrind.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Counted {
    /// Instructions.
    pub(crate) instructions: f64,
    /// Calls to [`ALLOCATORS`].
    pub(crate) allocations: f64,
}

/// Reads a file that callgrind wrote.
pub(crate) fn read(path: &Path) -> Result<Counted, RigError> {
    let text = std::fs::read(path).map_err(RigError::io("read", path))?;
    parse(&String::from_utf8_lossy(&text)).ok_or_else(|| RigError::BadAnswer {
        command: format!("read {}", path.display()),
        problem: "no total in it".into(),
    })
}

fn parse(text: &str) -> Option<Counted> {
    let mut counted = Counted::default();
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut is_allocator = false;
    let mut total = None;
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            // "(12) name" the first time, "(12)" from then on
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            let name = names.get(id).copied().unwrap_or_default();
            is_allocator =
                line.starts_with('c') && ALLOCATORS.contains(&name.split('\'').next().unwrap_or(name));
        } else if let Some(calls) = line.strip_prefix("calls=") {
            if is_allocator {
                counted.allocations += calls.split(' ').next()?.parse::<f64>().ok()?;
            }
        } else if let Some(rest) = line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")) {
            total = rest.split_whitespace().next().and_then(|number| number.parse().ok());
        }
    }
    counted.instructions = total?;
    Some(counted)
}

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-cost")?;
    // a renewal each second; the status is not computed meanwhile, or computed with each renewal
    let alone = format!(
        "{PLAIN}nodeLeaseDurationSeconds: 4\nnodeStatusUpdateFrequency: 5m\nnodeStatusReportFrequency: 5m\n"
    );
    let both = format!(
        "{PLAIN}nodeLeaseDurationSeconds: 4\nnodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 5m\n"
    );
    let (renewals, lone) = run(&setup, "alone", &alone)?;
    let (turns, with_status) = run(&setup, "both", &both)?;
    let per = |value: f64, count: usize| value / count as f64;
    let how = |renewals: usize| {
        format!("callgrind over {renewals} renewals of a settled node, release agent, one renewal a second")
    };
    Ok(vec![
        Figure::new("agent: instructions per renewal", per(lone.instructions, renewals), "", how(renewals)),
        Figure::new(
            "agent: instructions per 10 s turn",
            per(with_status.instructions, turns),
            "",
            format!("the same, and the node's status computed with each renewal; {turns} turns"),
        ),
        Figure::new(
            "agent: allocations per renewal",
            per(lone.allocations, renewals),
            "",
            "calls of malloc, calloc, realloc in the same run",
        ),
        Figure::new(
            "agent: allocations per 10 s turn",
            per(with_status.allocations, turns),
            "",
            "with the node's status computed, too",
        ),
    ])
}

/// Runs a node of this configuration until it has settled, then counts. Returns the number of renewals seen
/// meanwhile.
fn run(setup: &Setup, name: &str, drop_in: &str) -> Result<(usize, Counted), RigError> {
    let out = setup.scratch.path().join(format!("{name}.callgrind"));
    let command = format!("{COUNTER}{}.%p", out.display());
    let program = setup.wrapper(&format!("{name}-callgrind"), &command)?;
    let leases = setup.watch(LEASES)?;
    let mut agent = setup.agent(name, &program, drop_in)?;
    agent.start()?;
    let pid = pid(&agent)?;
    renewals(&leases, name, SETTLE)?;
    control(pid, BEGIN)?;
    leases.forget();
    let counted = renewals(&leases, name, COUNTED)?;
    // half a period later the work of the last renewal is finished
    std::thread::sleep(Duration::from_millis(300));
    control(pid, "--dump")?;
    let dump = PathBuf::from(format!("{}.{pid}.1", out.display()));
    let found = read(&dump)?;
    stop(agent)?;
    Ok((counted, found))
}

fn renewals(leases: &Watched, name: &str, wanted: usize) -> Result<usize, RigError> {
    for _ in 0..wanted {
        leases.wait("a renewal", LIMIT, |object: &Value| is_named(object, name))?;
    }
    Ok(wanted)
}

fn stop(mut agent: Agent) -> Result<(), RigError> {
    agent.stop()
}

/// The beginning of a command line; the file for the counts and the program follow. Counting starts with
/// [`BEGIN`]; until then the program is only a few times slower.
pub(crate) const COUNTER: &str = "valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file=";
/// An order for [`control`]: start counting.
pub(crate) const BEGIN: &str = "--instr=on";

/// Gives an order to a program that runs under callgrind. The two find each other in the directory of TMPDIR,
/// which is unset for programs of the rig.
pub(crate) fn control(pid: i32, order: &str) -> Result<(), RigError> {
    let output = Command::new("callgrind_control")
        .args([order, &pid.to_string()])
        .env_remove("TMPDIR")
        .output()
        .map_err(io("run callgrind_control"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(RigError::Failed {
        command: format!("callgrind_control {order} {pid}"),
        status: output.status.to_string(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_to_allocators_are_counted_by_name_and_by_number() {
        let text = "events: Ir\nfn=(1) main\n10 5\ncfn=(2) malloc\ncalls=3 0\n10 90\ncfn=(3) free\ncalls=9 0\n10 9\nfn=(2)\n1 90\n\
            fn=(4) other\ncfn=(2)\ncalls=2 0\n4 60\ncfn=(5) realloc'2\ncalls=1 0\n4 6\ntotals: 1234\n";
        assert_eq!(parse(text), Some(Counted { instructions: 1234.0, allocations: 6.0 }));
        assert_eq!(parse("events: Ir\n"), None);
    }
}
