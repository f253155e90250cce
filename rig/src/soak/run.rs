//! The hub, the nodes, and the times of their disruptions: a single thread disrupts, samples everything, and
//! prints a line a minute.
//!
//! Always holds: a disruption is recorded before it begins and after it ended; a process that has just
//! started is not sampled; every end of every process is counted. A seed chooses the kinds of disruptions,
//! and the clock their times.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kedge_rig::Random;
use kedge_rig::agent::{Agent, AgentOptions};
use kedge_rig::babysitter::ServiceResult;
use kedge_rig::cluster::HEADER;
use kedge_rig::error::RigError;
use kedge_rig::hub::Hub;
use kedge_rig::link::{Link, LinkState};
use kedge_rig::process::{Process, files_below};
use kedge_rig::programs;
use kedge_rig::scratch::Scratch;
use kedge_rig::signals::StopSignal;
use kedge_rig::view::View;

use crate::Options;
use crate::disruptions::{Disruptions, HUB};
use crate::pushes::{Pusher, Tally};
use crate::series::AllSeries;

/// The node without pushes: one process of it lives through everything else.
pub(crate) const STEADY: &str = "steady";
/// The node that gets every kind of push, including those that make it crash and hang.
pub(crate) const HANGING: &str = "tried";
/// The nodes, and whether bad configurations are among their pushes; `None`: no pushes.
const NODES: [(&str, Option<bool>); 4] =
    [(STEADY, None), ("pushed", Some(false)), ("remote", Some(false)), (HANGING, Some(true))];
/// A node's periods, compressed: a renewal each 3 s (the Lease's 12 s are in the rig's drop-in), a status
/// each 10 s.
const COMPRESSED: &str = "nodeStatusUpdateFrequency: 2s\nnodeStatusReportFrequency: 10s\n";
/// The time after the last ping at which a hang is noticed.
const WATCHDOG: Duration = Duration::from_secs(10);
/// One turn of the thread that disrupts.
const TURN: Duration = Duration::from_millis(500);
/// Interval of printed lines.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// Interval of measurements.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Age from which a process is measured: a start needs more memory for a moment. The processes of nodes with
/// pushes live two seconds longer.
const SETTLED: Duration = Duration::from_millis(1500);
/// Bytes a second of a slow link, in each direction: a bad mobile link.
const SLOW: u32 = 4096;
/// Longest wait for the first renewal of every node, at the beginning and after everything.
const PATIENCE: Duration = Duration::from_secs(120);
/// The share of the time that is warm-up.
pub(crate) const WARM_UP: f64 = 0.25;
/// The share of the time after which the outage begins.
const OUTAGE_AT: f64 = 0.4;

/// Everything recorded by the end of a run.
pub(crate) struct SoakResult {
    pub(crate) series: AllSeries,
    pub(crate) tally: Tally,
    pub(crate) ends: BTreeMap<&'static str, Ends>,
    /// The longest undisturbed time without a renewal, in seconds, by node.
    pub(crate) silences: BTreeMap<&'static str, f64>,
    pub(crate) renewals: BTreeMap<&'static str, usize>,
    /// Seconds from the hub's return after the outage to each node's first renewal.
    pub(crate) returns: Vec<(&'static str, f64)>,
    pub(crate) restarts: usize,
    pub(crate) kills: usize,
    pub(crate) disrupted_links: usize,
    pub(crate) run_secs: f64,
    pub(crate) outage_secs: f64,
    pub(crate) warm_up_secs: f64,
    pub(crate) interrupted: bool,
}

/// The number of ends of an agent's runs, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// By its own choice.
    pub(crate) clean: usize,
    /// For any other reason.
    pub(crate) unclean: usize,
    /// The last run that was counted.
    last_run: u64,
}

/// Runs it.
pub(crate) fn run(options: &Options, stop: &Receiver<StopSignal>) -> Result<SoakResult, RigError> {
    let mut soak = Soak::open(options)?;
    let over = AtomicBool::new(false);
    let (gate, tally) = (RwLock::new(()), Mutex::new(Tally::default()));
    let (disruptions, view) = (Disruptions::default(), View::open(soak.hub.kubectl())?);
    let kubectl = soak.hub.kubectl().clone();
    soak.wait_renewals(&view, "a renewal of every node", |count| count > 0)?;
    let result = std::thread::scope(|scope| {
        for (node, pushes) in NODES {
            let Some(with_bad) = pushes else { continue };
            let pause = Duration::from_secs(if node == "remote" { 5 } else { 0 });
            let pusher = Pusher {
                node,
                kubectl: kubectl.clone(),
                view: &view,
                hub: &gate,
                disruptions: &disruptions,
                over: &over,
                tally: &tally,
                pause,
                with_bad,
                count: Cell::new(0),
            };
            scope.spawn(move || pusher.run());
        }
        let shared = Shared { view: &view, gate: &gate, disruptions: &disruptions, tally: &tally, stop };
        let told = soak.spend(options, &shared);
        over.store(true, Ordering::SeqCst);
        soak.end_disruptions(&disruptions);
        told
    });
    result?;
    // every push is answered by now; and all nodes must still renew
    let before: BTreeMap<&str, usize> = soak.renewals(&view);
    soak.wait_renewals(&view, "one more renewal of every node", |count| count > 0)?;
    let last = Instant::now();
    soak.wait_more(&view, &before)?;
    soak.count_ends();
    let silences = NODES.map(|(node, _)| {
        let renewals_seen = view.look(|world| world.renewals(node).to_vec());
        (node, disruptions.longest_silence(node, &renewals_seen, last).as_secs_f64())
    });
    let renewals = soak.renewals(&view);
    soak.close()?;
    Ok(SoakResult {
        tally: tally.into_inner().unwrap_or_else(PoisonError::into_inner),
        silences: silences.into_iter().collect(),
        renewals,
        ..soak.result
    })
}

/// The state that the threads share.
struct Shared<'a> {
    view: &'a View,
    gate: &'a RwLock<()>,
    disruptions: &'a Disruptions,
    tally: &'a Mutex<Tally>,
    stop: &'a Receiver<StopSignal>,
}

struct Soak {
    hub: Hub,
    agents: Vec<(&'static str, Agent, Link)>,
    result: SoakResult,
    begun: Instant,
    next_sample: Instant,
    next_line: Instant,
    /// The process and the time since which it is known, by node or hub.
    processes: BTreeMap<&'static str, (i32, Instant)>,
    /// When the disruption of a node's link ends.
    link_states: BTreeMap<&'static str, Instant>,
    random: Random,
    // last: the processes end before their directory is removed
    scratch: Scratch,
}

impl Soak {
    fn open(options: &Options) -> Result<Soak, RigError> {
        let scratch = Scratch::new("soak")
            .map_err(|source| RigError::Io { tried: "make a temporary directory".into(), source })?;
        let hub = Hub::start(&scratch.path().join("hub"), &[])?;
        let address = hub.address().parse().map_err(|_| RigError::BadAnswer {
            command: "read the hub's address".into(),
            problem: format!("it is {:?}, expected ADDRESS:PORT", hub.address()),
        })?;
        let (plain, faulty) = (programs::built("kedge")?, programs::agent_with_faults()?);
        let mut agents = Vec::new();
        for (node, pushes) in NODES {
            let link = Link::start(address)
                .map_err(|source| RigError::Io { tried: "start a link".into(), source })?;
            // the other nodes run the agent as users have it, without fault injection
            let program: &Path = if pushes == Some(true) { &faulty } else { &plain };
            let mut agent_options = AgentOptions::new(program);
            agent_options.restart_after = Duration::from_millis(100);
            agent_options.watchdog = WATCHDOG;
            agent_options.abort = Duration::from_secs(2);
            let kubeconfig = hub.node_kubeconfig(node)?.replace(hub.address(), &link.address().to_string());
            let mut agent = Agent::prepare(&scratch.path().join(node), node, &kubeconfig, agent_options)?;
            agent.write_drop_in("20-soak.conf", &format!("{HEADER}{COMPRESSED}"))?;
            agent.start()?;
            agents.push((node, agent, link));
        }
        let result = SoakResult {
            series: AllSeries::default(),
            tally: Tally::default(),
            ends: BTreeMap::new(),
            silences: BTreeMap::new(),
            renewals: BTreeMap::new(),
            returns: Vec::new(),
            restarts: 0,
            kills: 0,
            disrupted_links: 0,
            run_secs: 0.0,
            outage_secs: options.outage.as_secs_f64(),
            warm_up_secs: options.whole.as_secs_f64() * WARM_UP,
            interrupted: false,
        };
        let begun = Instant::now();
        Ok(Soak {
            hub,
            agents,
            result,
            begun,
            next_sample: begun,
            next_line: begun + LINE_EVERY,
            processes: BTreeMap::new(),
            link_states: BTreeMap::new(),
            random: Random::new(options.seed),
            scratch,
        })
    }

    /// Runs the time between beginning and end.
    fn spend(&mut self, options: &Options, shared: &Shared<'_>) -> Result<(), RigError> {
        let mut outage = Some(options.outage).filter(|outage| !outage.is_zero());
        let mut next_disruption = self.begun + Duration::from_secs(20);
        let mut next_restart = self.begun + Duration::from_secs(90);
        while self.begun.elapsed() < options.whole && !self.result.interrupted {
            let now = self.turn(shared);
            if now >= next_disruption {
                next_disruption = now + self.secs(10, 30);
                self.disrupt(now, shared.disruptions);
            }
            let its_time = self.begun.elapsed() >= options.whole.mul_f64(OUTAGE_AT);
            let length = match outage {
                Some(length) if its_time => {
                    self.end_disruptions(shared.disruptions);
                    length
                }
                _ if now >= next_restart => self.secs(1, 20),
                _ => continue,
            };
            self.stop_hub(length, shared)?;
            if its_time && outage.take().is_some() {
                self.measure_returns(shared.view)?;
            }
            next_restart = Instant::now() + self.secs(60, 120);
        }
        self.result.run_secs = self.begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// One turn: waits, samples, prints.
    fn turn(&mut self, shared: &Shared<'_>) -> Instant {
        std::thread::sleep(TURN);
        // also when the signal thread has ended
        self.result.interrupted |= !matches!(shared.stop.try_recv(), Err(TryRecvError::Empty));
        let now = Instant::now();
        self.look();
        self.clear(now, shared.disruptions);
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_EVERY;
            self.sample();
        }
        if now >= self.next_line {
            self.next_line += LINE_EVERY;
            self.print_line(shared);
        }
        now
    }

    /// Stops the hub for this time: alternately stopped properly, and killed in the middle of its work.
    fn stop_hub(&mut self, length: Duration, shared: &Shared<'_>) -> Result<(), RigError> {
        // the lock ensures that no push is in progress; changes that were just acknowledged must not be lost
        let paused = shared.gate.write().unwrap_or_else(PoisonError::into_inner);
        shared.disruptions.begin(HUB);
        if (self.result.restarts + self.result.kills).is_multiple_of(2) {
            self.hub.stop()?;
            self.result.restarts += 1;
        } else {
            self.hub.kill();
            self.result.kills += 1;
        }
        let end = Instant::now() + length;
        while Instant::now() < end && !self.result.interrupted {
            self.turn(shared);
        }
        self.hub.start_again()?;
        shared.disruptions.end(HUB);
        drop(paused);
        Ok(())
    }

    /// Measures the time that each node needs after the outage.
    fn measure_returns(&mut self, view: &View) -> Result<(), RigError> {
        let back = Instant::now();
        let renewals_seen =
            |node: &str| view.look(|world| world.renewals(node).iter().copied().find(|at| *at > back));
        view.wait_for("a renewal of every node after the outage", PATIENCE, |world| {
            NODES.iter().all(|(node, _)| world.renewals(node).last().is_some_and(|at| *at > back))
        })?;
        for (node, _) in NODES {
            let secs = renewals_seen(node).map_or(f64::INFINITY, |at| (at - back).as_secs_f64());
            self.result.returns.push((node, secs));
        }
        Ok(())
    }

    /// Disrupts one node's link.
    fn disrupt(&mut self, now: Instant, disruptions: &Disruptions) {
        let at = self.random.below(self.agents.len() as u64) as usize;
        let (node, kind) = (self.agents[at].0, self.random.below(4));
        if self.link_states.contains_key(node) {
            return;
        }
        self.result.disrupted_links += 1;
        let (state, length) = match kind {
            0 => (LinkState::Cut, self.secs(3, 20)),
            1 => (LinkState::Stalled, self.secs(3, 25)),
            2 => (LinkState::Slow(SLOW), self.secs(20, 40)),
            _ => return self.agents[at].2.forget(),
        };
        // a renewal must not be missing because of a slow link
        if !matches!(state, LinkState::Slow(_)) {
            disruptions.begin(node);
        }
        self.agents[at].2.set(state);
        self.link_states.insert(node, now + length);
    }

    /// Ends a link's disruption that has lasted long enough.
    fn clear(&mut self, now: Instant, disruptions: &Disruptions) {
        for (node, _, link) in &self.agents {
            if self.link_states.get(node).is_some_and(|until| *until <= now) {
                self.link_states.remove(node);
                link.set(LinkState::Normal);
                disruptions.end(node);
            }
        }
    }

    /// Ends all disruptions of links.
    fn end_disruptions(&mut self, disruptions: &Disruptions) {
        self.link_states.clear();
        for (node, _, link) in &self.agents {
            link.set(LinkState::Normal);
            disruptions.end(node);
        }
    }

    /// Notes the present processes, and how others ended.
    fn look(&mut self) {
        let agents = self.agents.iter().map(|(node, agent, _)| (*node, agent.babysitter().state().pid));
        let all: Vec<_> = agents.chain([(HUB, self.hub.pid())]).collect();
        for (name, pid) in all {
            match pid {
                Some(pid) if self.processes.get(name).is_some_and(|(known, _)| *known == pid) => {}
                Some(pid) => drop(self.processes.insert(name, (pid, Instant::now()))),
                None => drop(self.processes.remove(name)),
            }
        }
        self.count_ends();
    }

    fn count_ends(&mut self) {
        for (node, agent, _) in &self.agents {
            let counted = self.result.ends.entry(node).or_default();
            let last_run = counted.last_run;
            for ended in agent.babysitter().state().ends.iter().filter(|ended| ended.run > last_run) {
                counted.last_run = ended.run;
                match ended.result {
                    ServiceResult::Success => counted.clean += 1,
                    _ => counted.unclean += 1,
                }
            }
        }
    }

    fn sample(&mut self) {
        let at = self.begun.elapsed().as_secs_f64();
        let series = &mut self.result.series;
        let mut add = |subject: &str, what: &'static str, value: f64| {
            series.entry((subject.to_owned(), what)).or_default().add(at, value);
        };
        for (name, (pid, since)) in &self.processes {
            if since.elapsed() < SETTLED {
                continue;
            }
            let process = Process::new(*pid);
            // the process may end during the reading: then the sample is skipped
            if let (Ok(memory), Ok(threads), Ok(descriptors)) =
                (process.memory(), process.count("task"), process.count("fd"))
            {
                add(name, "PSS", memory.pss);
                add(name, "memory", memory.dirty);
                add(name, "threads", threads as f64);
                add(name, "descriptors", descriptors as f64);
            }
        }
        let roots = self.agents.iter().map(|(node, agent, _)| (*node, agent.root_dir()));
        let data: PathBuf = self.scratch.path().join("hub").join("data");
        for (name, dir) in roots.chain([(HUB, data)]) {
            let (files, bytes) = files_below(&dir);
            add(name, "files", files as f64);
            add(name, "bytes", bytes as f64);
        }
    }

    fn print_line(&self, shared: &Shared<'_>) {
        let last = |subject: &str, what: &'static str| {
            self.result
                .series
                .get(&(subject.to_owned(), what))
                .and_then(|series| series.last())
                .unwrap_or(0.0)
        };
        let tally: MutexGuard<'_, Tally> = shared.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let silence = NODES.map(|(node, _)| {
            let renewals_seen = shared.view.look(|world| world.renewals(node).to_vec());
            shared.disruptions.longest_silence(node, &renewals_seen, now).as_secs_f64()
        });
        let disk: f64 = NODES.iter().map(|(node, _)| last(node, "bytes")).sum();
        let files: f64 = NODES.iter().map(|(node, _)| last(node, "files")).sum();
        let ends: usize = self.result.ends.values().map(|ends| ends.clean + ends.unclean).sum();
        println!(
            "{:>3} min | pushes {}, answered {}, failed {} | disrupted links {}, hub {} restarts, {} kills | steady {} KiB PSS {} dirty, \
             {} fds, {} threads | hub {} KiB, {} fds | disk {:.0} KiB in {files} files, hub {:.0} KiB | {ends} ends | \
             longest silence {:.1} s",
            self.begun.elapsed().as_secs() / 60,
            tally.made,
            tally.answered.len(),
            tally.failures.len() + tally.further,
            self.result.disrupted_links,
            self.result.restarts,
            self.result.kills,
            last(STEADY, "PSS"),
            last(STEADY, "memory"),
            last(STEADY, "descriptors"),
            last(STEADY, "threads"),
            last(HUB, "PSS"),
            last(HUB, "descriptors"),
            disk / 1024.0,
            last(HUB, "bytes") / 1024.0,
            silence.into_iter().fold(0.0, f64::max)
        );
    }

    fn secs(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_secs(least + self.random.below(most - least + 1))
    }

    fn renewals(&self, view: &View) -> BTreeMap<&'static str, usize> {
        view.look(|world| NODES.iter().map(|(node, _)| (*node, world.renewal_count(node))).collect())
    }

    fn wait_renewals(
        &self,
        view: &View,
        awaited: &str,
        enough: impl Fn(usize) -> bool,
    ) -> Result<(), RigError> {
        view.wait_for(awaited, PATIENCE, |world| {
            NODES.iter().all(|(node, _)| enough(world.renewal_count(node)))
        })
    }

    fn wait_more(&self, view: &View, before: &BTreeMap<&'static str, usize>) -> Result<(), RigError> {
        view.wait_for("one more renewal of every node, and Ready", PATIENCE, |world| {
            before.iter().all(|(node, count)| {
                world.renewal_count(node) > *count
                    && world.condition(node, "Ready").is_some_and(|(status, ..)| status == "True")
            })
        })
    }

    fn close(&mut self) -> Result<(), RigError> {
        for (_, agent, _) in &mut self.agents {
            agent.stop()?;
        }
        self.hub.stop()
    }
}
