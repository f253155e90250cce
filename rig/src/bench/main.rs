//! `kedge-bench`: the cost of the agent and the hub, as one table with the goal beside each figure. `make
//! bench` builds and runs it.
//!
//! Always holds: real programs on loopback over real TLS; counts where possible, times otherwise; a section
//! that cannot be measured is an error, not an empty row. Exits with 1 if something could not be measured,
//! not if a goal is missed: the table says that, and times depend on the machine.

mod calls;
mod cost;
mod fleet;
mod idle;
mod joined;
mod load;
mod memory;
mod nodes;
mod page;
mod pods;
mod pulls;
mod push;
mod relay;
mod rights;
mod rollouts;
mod setup;
mod start;
mod trace;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use kedge_rig::error::RigError;
use kedge_rig::flags;
use kedge_rig::programs;
use kedge_rig::table::{self, Figure, Goal};

const HELP: &str = "\
kedge-bench [--idle-secs N] [--nodes N] [--page FILE] [--part FILE] [--commit COMMIT] [SECTION...]

Measures kedge and kedge-hub from $KEDGE_PROGRAMS and prints one table. A run of all sections writes it
to the FILE of --page, a run of the named ones to that of --part. Sections, all by default:
  size    bytes of the programs
  start   exec to READY and to the first Lease; 500 drop-ins
  push    ConfigMap patch to active
  life    durable writes of a configuration, from adoption to promotion, and while its metadata is edited
  cost    instructions and allocations per renewal (under valgrind)
  idle    memory, threads, calls, bytes and writes of a settled node (N seconds, 600 by default, and 5 minutes more)
  joined  a node that joined by a token beside one with a kubeconfig: bytes, writes, memory (twice N seconds)
  pods    containers: memory with 0, 1, 10 and 50, times from order to process, writes, a pull beside skopeo
          (as root; N seconds of --idle-secs)
  volumes pods with probes and volumes: memory, processor time of a probe, bytes on the wire, an edit of a
          ConfigMap to its file, a full disk to an eviction (only if it is named; as root; 15 minutes)
  calls   kubectl logs and exec: time, throughput, memory of a session (as root)
  hub     1,000 nodes: renewals, status posts, the store's growth
  fleet   the hub's start, 5,000 nodes in it, many watchers; many writers, bytes per update
  nodes   what a node costs a hub with 100, 1,000 and as many real nodes as it has connections for
          (N at most, 10,000 by default); all of them back at once; instructions per renewal
  rollouts  DaemonSets of 100, 1,000 and 10,000 nodes: what one changed pod costs the hub; an update of
          100 nodes beside the least time that it could take
  rights    what a review of a caller's right costs the hub with 10 and with 1,000 bindings of others (under
            valgrind)
  updates   downtime of a node whose DaemonSet is updated: images first, without, maxSurge; bytes on the wire
          (as root)
";

/// Every section, in the order of the table.
const SECTIONS: [&str; 15] = [
    "size", "start", "push", "life", "cost", "idle", "joined", "pods", "calls", "hub", "fleet", "nodes",
    "rollouts", "rights", "updates",
];

/// A section that is measured only when its name is given.
const VOLUMES: &str = "volumes";

struct Options {
    idle: Duration,
    /// Most nodes in the section `nodes`.
    nodes: Option<usize>,
    /// The file to which the figures are written.
    page: Option<PathBuf>,
    /// The commit that is measured.
    commit: String,
    sections: Vec<String>,
}

fn options() -> Result<Option<Options>, String> {
    use lexopt::prelude::*;
    let mut options = Options {
        idle: Duration::from_secs(600),
        nodes: None,
        page: None,
        commit: "unknown".to_owned(),
        sections: Vec::new(),
    };
    let (mut page, mut part) = (None, None);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("idle-secs") => {
                options.idle = Duration::from_secs(flags::number("--idle-secs", &mut parser)?)
            }
            Long("nodes") => {
                let nodes: u64 = flags::number("--nodes", &mut parser)?;
                options.nodes = Some(usize::try_from(nodes).unwrap_or(usize::MAX));
            }
            Long("page") => page = Some(parser.value().map_err(|error| error.to_string())?),
            Long("part") => part = Some(parser.value().map_err(|error| error.to_string())?),
            Long("commit") => options.commit = flags::text(&mut parser)?,
            Value(word) if SECTIONS.iter().chain([&VOLUMES]).any(|known| word == *known) => {
                options.sections.push(word.to_string_lossy().into_owned());
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    let is_whole = options.sections.is_empty();
    if is_whole {
        options.sections = SECTIONS.map(str::to_owned).to_vec();
    }
    options.page = if is_whole { page } else { part }.map(PathBuf::from);
    Ok(Some(options))
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("kedge-bench: {why}; see --help");
            return ExitCode::from(2);
        }
    };
    let machine = page::machine();
    let mut figures = Vec::new();
    let mut failed = 0;
    for section in &options.sections {
        eprintln!("kedge-bench: {section} ...");
        match measure(section, &options) {
            Ok(more) => figures.extend(more),
            Err(error) => {
                eprintln!("kedge-bench: {section}: {error}");
                failed += 1;
            }
        }
    }
    print!("{}", table::render(&figures));
    let (met, missed) = table::goals(&figures);
    println!("\n{met} goals met, {missed} missed, {failed} sections could not be measured");
    if let Some(path) = options.page.as_ref().filter(|_| failed == 0)
        && let Err(error) = write_page(path, &options, machine, &figures)
    {
        eprintln!("kedge-bench: {error}");
        failed += 1;
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write_page(path: &Path, options: &Options, machine: String, figures: &[Figure]) -> Result<(), RigError> {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map_err(RigError::io("run date for", path))?.stdout;
    let date = String::from_utf8_lossy(&date).trim().to_owned();
    let is_whole = options.sections == SECTIONS;
    let sections = if is_whole { String::new() } else { options.sections.join(" ") };
    let text = page::text(&page::Run { date, commit: options.commit.clone(), machine, sections }, figures);
    std::fs::write(path, text).map_err(RigError::io("write", path))?;
    println!("written: {}", path.display());
    Ok(())
}

fn measure(section: &str, options: &Options) -> Result<Vec<Figure>, RigError> {
    match section {
        "size" => size(),
        "start" => start::measure(),
        "push" => push::push(),
        "life" => push::writes(),
        "cost" => cost::measure(),
        "idle" => idle::measure(options.idle),
        "joined" => joined::measure(options.idle),
        "pods" => pods::measure(options.idle),
        VOLUMES => pods::measure_volumes(options.idle),
        "calls" => calls::measure(),
        "fleet" => fleet::measure(),
        "nodes" => nodes::measure(options.nodes),
        "rollouts" => rollouts::measure(),
        "rights" => rights::measure(),
        "updates" => pods::measure_updates(),
        _ => load::measure(),
    }
}

/// The size promised to users with small flash; `cross/dist` refuses a larger program.
const AGENT_BYTES: f64 = 2_500_000.0;

fn size() -> Result<Vec<Figure>, RigError> {
    let bytes = |name: &str| {
        let path = programs::built(name)?;
        let metadata = std::fs::metadata(&path).map_err(RigError::io("look at", &path))?;
        Ok::<f64, RigError>(metadata.len() as f64)
    };
    let linked = "stripped, as built for this machine; static programs are smaller: cross/dist";
    let mut figures = vec![Figure::new("agent: program", bytes("kedge")?, "B", linked)];
    if let Some(path) = std::env::var_os("KEDGE_STATIC_AGENT") {
        let path = std::path::PathBuf::from(path);
        let metadata = std::fs::metadata(&path).map_err(RigError::io("look at", &path))?;
        figures.push(
            Figure::new("agent: program, static", metadata.len() as f64, "B", "as cross/dist builds it")
                .with_goal(Goal::AtMost(AGENT_BYTES)),
        );
    }
    figures.push(Figure::new("hub: program", bytes("kedge-hub")?, "B", "stripped, SQLite inside"));
    Ok(figures)
}
