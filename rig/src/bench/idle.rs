//! A settled node without work: memory, threads, descriptors, bytes on the wire, writes to files.
//!
//! Always holds: the agent has its defaults (a renewal each 10 s, a status each 5 minutes), and connects to
//! the hub through [`crate::relay`]. Memory is read before strace attaches. Events that occur each 5 minutes
//! are counted separately and scaled, so that a window that happens to contain one more of them changes
//! nothing.

use std::time::{Duration, Instant};

use kedge_rig::agent::Agent;
use kedge_rig::error::RigError;
use kedge_rig::programs;

use crate::memory::{self, STATIC_PSS_KIB};
use crate::relay::{Record, Relay, Traffic, by_connection};
use crate::setup::{Helper, LEASES, PLAIN, Setup, io, pid};
use crate::trace;
use kedge_rig::process::Process;
use kedge_rig::table::{Figure, Goal};

/// Pause before the node's memory is read, and again before its processor time.
const QUIET: Duration = Duration::from_secs(60);
/// A name of usual length, because every request contains it.
const NAME: &str = "edge-0042";
/// Longer than any bookmark or renewal, shorter than a Node on a watch.
const NODE_RECORD_BYTES: usize = 600;
/// Statuses per hour: `nodeStatusReportFrequency` is 5 minutes.
const STATUSES_PER_HOUR: f64 = 12.0;

/// The bytes of an idle hour, by their purpose.
#[derive(Debug, Default)]
struct Hour {
    renewal_bytes: f64,
    renewals: f64,
    steady_bytes: f64,
    status_bytes: f64,
    echo_bytes: f64,
    bookmark_bytes: f64,
}

impl Hour {
    /// Extrapolates the traffic of each connection in a window.
    fn of(traffic: &[Traffic], window: Duration) -> Option<Hour> {
        let scale = 3600.0 / window.as_secs_f64();
        let renewing = traffic.iter().max_by_key(|traffic| traffic.exchanges)?;
        let mut hour = Hour {
            renewals: renewing.exchanges as f64,
            renewal_bytes: renewing.bytes() as f64 / renewing.exchanges as f64,
            ..Hour::default()
        };
        let others = || traffic.iter().filter(|traffic| traffic.connection != renewing.connection);
        let posting = || others().filter(|traffic| traffic.exchanges > 0);
        let statuses: usize = posting().map(|traffic| traffic.exchanges).sum();
        let posted: usize = posting().map(Traffic::bytes).sum();
        let received: Vec<usize> = others()
            .filter(|traffic| traffic.exchanges == 0)
            .flat_map(|traffic| traffic.down_records.clone())
            .collect();
        let (nodes, small): (Vec<usize>, Vec<usize>) =
            received.iter().partition(|bytes| **bytes > NODE_RECORD_BYTES);
        let other_up: usize =
            others().filter(|traffic| traffic.exchanges == 0).map(|traffic| traffic.up_bytes).sum();
        if statuses > 0 {
            hour.status_bytes = posted as f64 / statuses as f64;
            hour.echo_bytes = nodes.iter().sum::<usize>() as f64 / statuses as f64;
        }
        hour.bookmark_bytes = small.iter().sum::<usize>() as f64 / small.len().max(1) as f64;
        let small: usize = small.iter().sum();
        hour.steady_bytes = (renewing.bytes() + small + other_up) as f64 * scale;
        Some(hour)
    }

    fn bytes(&self) -> f64 {
        self.steady_bytes + STATUSES_PER_HOUR * (self.status_bytes + self.echo_bytes)
    }
}

/// See the module; `window` is the time for which bytes and writes are counted.
pub(crate) fn measure(window: Duration) -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-idle")?;
    let hub = setup.admin.address();
    let relay = Relay::start(hub).map_err(io("start the relay"))?;
    let name = NAME;
    let kubeconfig = setup.hub.node_kubeconfig(name)?.replace(&hub.to_string(), &relay.address().to_string());
    let kedge = programs::built("kedge")?;
    let leases = setup.watch(LEASES)?;
    let mut agent = setup.agent_with(name, &kedge, PLAIN, &kubeconfig)?;
    agent.start()?;
    let mut still = match std::env::var_os("KEDGE_STATIC_AGENT") {
        Some(program) => Some(setup.agent("static", std::path::Path::new(&program), PLAIN)?),
        None => None,
    };
    if let Some(agent) = &mut still {
        agent.start()?;
    }
    std::thread::sleep(QUIET);
    let process = Process::new(pid(&agent)?);
    let memory = process.most_memory()?;
    let (threads, descriptors) = (process.count("task")?, process.count("fd")?);
    let opening = by_connection(relay.records().iter());
    let mut figures = vec![
        Figure::new(
            "agent: PSS, idle",
            memory.pss,
            "KiB",
            "most of 35 s of smaps_rollup, 60 s after the start, registered; glibc build, which is not what is shipped",
        )
        .with_goal(if still.is_none() { Goal::AtMost(3072.0) } else { Goal::None }),
        Figure::new("agent: RSS, idle", memory.rss, "KiB", "the same; kubelet and containerd: 130 MiB"),
        Figure::new("agent: private memory, idle", memory.private, "KiB", "the same: clean and dirty"),
    ];
    if let Some(agent) = &still {
        let memory = Process::new(pid(agent)?).most_memory()?;
        figures.push(
            Figure::new(
                "agent: PSS, idle, static build",
                memory.pss,
                "KiB",
                format!("RSS {:.0} KiB, private {:.0} KiB", memory.rss, memory.private),
            )
            .with_goal(Goal::AtMost(STATIC_PSS_KIB)),
        );
    }
    figures.push(Figure::new("agent: threads", threads as f64, "", "/proc/PID/task, idle"));
    figures.push(Figure::new("agent: descriptors", descriptors as f64, "", "/proc/PID/fd, idle"));

    let (cpu, waits) = (process.cpu_secs()?, process.waits()?);
    std::thread::sleep(QUIET);
    let per_hour = 3600.0 / QUIET.as_secs_f64();
    figures.push(Figure::new(
        "agent: processor time, idle hour",
        (process.cpu_secs()? - cpu) * per_hour,
        "s",
        "/proc/PID/stat over 60 s, in steps of 10 ms, times 60",
    ));
    figures.push(Figure::new(
        "agent: wake-ups, idle hour",
        process.waits()?.saturating_sub(waits) as f64 * per_hour,
        "",
        "voluntary context switches of all threads over 60 s, times 60",
    ));

    figures.push(Figure::new(
        "agent: system calls, idle hour",
        calls(&setup, &agent)? as f64 * per_hour,
        "",
        "strace -c of all threads over 60 s, times 60",
    ));

    let prefix = setup.scratch.path().join("idle.strace");
    let (prefix_text, pid_text) = (prefix.display().to_string(), pid(&agent)?.to_string());
    let strace = Helper::start(
        "strace",
        &["-f", "-ff", "-ttt", "-y", "-e", trace::CALLS, "-o", &prefix_text, "-p", &pid_text],
    )?;
    leases.forget();
    let begun = Instant::now();
    std::thread::sleep(window);
    let renewals_seen = leases.count(name);
    let records: Vec<Record> = relay.records().into_iter().filter(|record| record.at >= begun).collect();
    strace.stop()?;
    let traffic = by_connection(records.iter());
    let hour = Hour::of(&traffic, window).filter(|hour| hour.renewals > 0.0).ok_or_else(|| {
        RigError::TimedOut { awaited: "renewals through the relay".into(), found: format!("{traffic:?}") }
    })?;
    // on a device, log lines go to journald
    let writes = trace::read(&trace::collect(&prefix)?, &[&format!("/{NAME}/log")]);
    figures.extend(wire(&hour, &opening, renewals_seen, window));
    figures.push(
        Figure::new(
            "agent: file writes, idle hour",
            writes.changes as f64 * 3600.0 / window.as_secs_f64(),
            "",
            format!(
                "strace over {} s: every call that can change a file system; its log is not counted",
                window.as_secs()
            ),
        )
        .with_goal(Goal::Exactly(0.0)),
    );
    agent.stop()?;
    if let Some(mut agent) = still {
        agent.stop()?;
    }
    figures.extend(memory::measure(&setup)?);
    Ok(figures)
}

/// The number of system calls of the idle agent.
fn calls(setup: &Setup, agent: &Agent) -> Result<u64, RigError> {
    let path = setup.scratch.path().join("idle.calls");
    let (path_text, pid_text) = (path.display().to_string(), pid(agent)?.to_string());
    let strace = Helper::start("strace", &["-f", "-c", "-o", &path_text, "-p", &pid_text])?;
    std::thread::sleep(QUIET);
    strace.stop()?;
    let text = std::fs::read_to_string(&path).map_err(RigError::io("read", &path))?;
    total_calls(&text).ok_or_else(|| RigError::TimedOut { awaited: "strace's summary".into(), found: text })
}

/// The calls in the line `100.00 0.001234 6 183 12 total`: seconds, microseconds per call, calls, errors if
/// there were any.
fn total_calls(summary: &str) -> Option<u64> {
    let line = summary.lines().rfind(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn wire(hour: &Hour, opening: &[Traffic], renewals_seen: usize, window: Duration) -> Vec<Figure> {
    let window_secs = window.as_secs();
    let started: usize = opening.iter().map(Traffic::bytes).sum();
    vec![
        Figure::new(
            "wire: bytes per renewal, both ways",
            hour.renewal_bytes,
            "B",
            format!(
                "TLS records with heads and tags, without TCP/IP's; {} renewals, {renewals_seen} seen by a watcher; a kubelet: 1,026",
                hour.renewals
            ),
        )
        .with_goal(Goal::AtMost(300.0)),
        Figure::new(
            "wire: bytes per bookmark",
            hour.bookmark_bytes,
            "B",
            "the hub's sign of life on the watch, one a minute",
        ),
        Figure::new(
            "wire: bytes per status post",
            hour.status_bytes,
            "B",
            format!("each 5 minutes, both ways; and {:.0} B come back on the Node watch", hour.echo_bytes),
        ),
        Figure::new(
            "wire: bytes per idle hour",
            hour.bytes(),
            "B",
            format!("{window_secs} s of renewals and bookmarks, scaled, and 12 status posts with what comes back"),
        ),
        Figure::new(
            "wire: bytes per idle day",
            hour.bytes() * 24.0 / 1e6,
            "MB",
            "24 such hours; a kubelet without pods: 9.8. Watches begun anew (about 30 a day, 1 kB each) are not in it",
        )
        .with_goal(Goal::AtMost(3.0)),
        Figure::new(
            "wire: bytes of the first minute",
            started as f64,
            "B",
            format!("{} connections with their handshakes, registration, first status", opening.len()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_the_last_line_of_the_summary() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ----------------\n \
                     60.00    0.000600           3       200           futex\n";
        let with_errors = "100.00    0.001000           4       241        12 total\n";
        assert_eq!(total_calls(&format!("{table}{with_errors}")), Some(241));
        let without = "100.00    0.001000           4       241           total\n";
        assert_eq!(total_calls(&format!("{table}{without}")), Some(241));
        assert_eq!(total_calls(table), None);
    }

    #[test]
    fn idle_hour_is_the_sum_of_its_messages() {
        let connection = |connection, up_bytes, down: &[usize], exchanges| Traffic {
            connection,
            up_bytes,
            down_bytes: down.iter().sum(),
            exchanges,
            down_records: down.to_vec(),
        };
        let traffic = [
            connection(0, 0, &[150, 2000, 150], 0),
            connection(1, 1500, &[500], 5),
            connection(2, 300, &[60], 1),
        ];
        let hour = Hour::of(&traffic, Duration::from_secs(360)).unwrap();
        assert_eq!((hour.renewals, hour.renewal_bytes), (5.0, 400.0));
        assert_eq!((hour.status_bytes, hour.echo_bytes, hour.bookmark_bytes), (360.0, 2000.0, 150.0));
        assert_eq!(hour.bytes(), 10.0 * (2000.0 + 300.0) + 12.0 * 2360.0);
        assert!(Hour::of(&[], Duration::from_secs(1)).is_none());
    }
}
