//! Containers that lose their records: each kind of record is removed or garbled while the container begins
//! or runs, with and without an agent.
//!
//! Always holds: the container is adopted, or it ends before the next run starts; two runs never overlap, and
//! no part of a run is left over. `KEDGE_CRASH_FULL=1` tries each kind at each moment in each way.

use crate::damage::{Damage, apply};
use crate::setup::{LIMIT, Machine, Runtime, Wanted, id, isolated, wanted};
use kedge_platform::workloads::{ContainerState, Workloads};
use kedge_rig::power_cut::is_full;
use kedge_rig::scratch::wait_until;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The container's only process has it in its command line.
const MARK: &str = "86411";
/// The limit of a step of crun. A container that has no record of its begin is ended after twice that.
const STEP: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lost {
    /// A file of the bundle.
    Record(&'static str),
    Bundle,
    OrderOfPod,
    /// The state that crun keeps of it.
    Crun,
    /// The runtime's whole directory, except for mount points.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    /// crun makes it.
    Begins,
    Runs,
}

const RECORDS: [&str; 4] = ["order.json", "shim.json", "state.json", "lock"];
const PLACES: [Lost; 4] = [Lost::Bundle, Lost::OrderOfPod, Lost::Crun, Lost::All];

fn living() -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(MARK)).count()
}

/// Counts the container's processes all the time.
struct Checker {
    most: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Checker {
    fn begin() -> Self {
        let (most, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, is_over) = (most.clone(), ends.clone());
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                seen.fetch_max(living(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { most, ends, thread }
    }

    fn end(self) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

fn lose(runtime_bundle: &std::path::Path, machine: &Machine, lost: Lost, damage: Damage) {
    let remove = |path: &std::path::Path| {
        // a mounted file cannot be removed, and neither can its mount point
        let text = format!("rm -rf {}", path.display());
        let _ = Command::new("sh").args(["-c", &text]).stderr(std::process::Stdio::null()).status().unwrap();
    };
    let pod = machine.settings.run.join("pods/uid-1");
    match lost {
        Lost::Record(name) if damage == Damage::Missing => {
            fs::remove_file(runtime_bundle.join(name)).unwrap()
        }
        Lost::Record(name) => apply(damage, &runtime_bundle.join(name)),
        Lost::Bundle => remove(runtime_bundle),
        Lost::OrderOfPod if damage == Damage::Missing => fs::remove_file(pod.join("order.json")).unwrap(),
        Lost::OrderOfPod => apply(damage, &pod.join("order.json")),
        Lost::Crun => remove(&machine.settings.run.join("crun/uid-1.web-0")),
        Lost::All => remove(&machine.settings.run),
    }
}

/// The state that an agent settles on; `None`: the container is unknown to it.
fn found(runtime: &mut Runtime<'_>, first: &Wanted) -> Option<ContainerState> {
    let mut last = None;
    let mut patience = Duration::ZERO;
    loop {
        for seen in runtime.workloads.observe(patience) {
            if seen.id == first.id {
                last = Some(seen.state);
            }
        }
        patience = LIMIT;
        if !matches!(last, Some(ContainerState::Created | ContainerState::Starting)) {
            return last;
        }
    }
}

fn check(lost: Lost, damage: Damage, when: When, agent_stays: bool) {
    let what = format!("{lost:?}, {damage:?}, {when:?}, the agent stays: {agent_stays}");
    eprintln!("{what}");
    let machine = Machine::new();
    let go = machine.scratch.join("go");
    let script = format!(
        "[ $STEP != create ] || while [ ! -e {} ]; do sleep 0.02; done\nexec $REAL \"$@\"",
        go.display()
    );
    let machine = machine.with_crun(&script, STEP);
    let first = wanted("web", &format!("exec sleep {MARK}"));
    let mut runtime = machine.open();
    let bundle = runtime.bundle(&first.id);
    let checker = Checker::begin();
    runtime.create(&first).unwrap();
    runtime.workloads.start_container(&first.id).unwrap();
    match when {
        When::Begins => {
            wait_until("its shim", LIMIT, || bundle.join("shim.json").exists());
        }
        When::Runs => {
            fs::write(&go, "").unwrap();
            runtime.await_state(&first.id, |state| matches!(state, ContainerState::Running { .. }));
        }
    }
    let mut runtime = match agent_stays {
        true => {
            lose(&bundle, &machine, lost, damage);
            runtime
        }
        false => {
            drop(runtime);
            lose(&bundle, &machine, lost, damage);
            machine.open()
        }
    };
    fs::write(&go, "").unwrap();
    // a running agent does not read the other records again
    let is_missed = matches!(
        (lost, damage),
        (Lost::Record("order.json"), Damage::Missing) | (Lost::Bundle | Lost::All, _)
    );
    let state = match agent_stays && when == When::Runs && !is_missed {
        true => Some(ContainerState::Running { pid: 0, started: 0 }),
        false => found(&mut runtime, &first),
    };
    if matches!(state, Some(ContainerState::Running { .. })) {
        wait_until(&format!("one process: {what}"), LIMIT, || living() == 1);
        runtime.workloads.kill_container(&first.id).unwrap();
        runtime.await_end(&first.id);
    }
    runtime.workloads.remove_container(&first.id).unwrap();
    let next = Wanted { id: id("web", 1), ..first };
    let state = runtime.run(&next);
    assert!(matches!(state, ContainerState::Running { .. }), "{what}: {state:?}");
    wait_until(&format!("one process of the next run: {what}"), LIMIT, || living() == 1);
    runtime.workloads.kill_container(&next.id).unwrap();
    runtime.await_end(&next.id);
    runtime.clean_up(&[next.id]);
    assert_eq!((checker.end(), living()), (1, 0), "{what}");
}

#[test]
fn lost_records_double_no_container() {
    isolated("lost_records::lost_records_double_no_container", || {
        for when in [When::Begins, When::Runs] {
            for agent_stays in [false, true] {
                for lost in RECORDS.into_iter().map(Lost::Record).chain(PLACES) {
                    let is_there =
                        !matches!((lost, when), (Lost::Record("state.json") | Lost::Crun, When::Begins));
                    let waits = lost == Lost::Record("state.json");
                    if is_there && (is_full() || !(waits && agent_stays)) {
                        check(lost, Damage::Missing, when, agent_stays);
                    }
                    let is_file = matches!(lost, Lost::Record(_) | Lost::OrderOfPod);
                    if is_there && is_file && (is_full() || !agent_stays) {
                        check(lost, Damage::Noise, when, agent_stays);
                    }
                    if is_there && is_file && is_full() {
                        check(lost, Damage::FullDirectory, when, agent_stays);
                    }
                }
            }
        }
    });
}
