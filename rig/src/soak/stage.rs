//! The hub, the nodes, and what befalls them when: one thread that brings trouble, looks at everything, and says a line a minute.
//!
//! Always holds: trouble is written down before it begins and after it ended; nothing is sampled of a process that has just
//! started; every end of every process is counted. The weather comes from a seed, its moments from the clock.

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
use kedge_rig::error::KitError;
use kedge_rig::hub::Hub;
use kedge_rig::process::{Process, files_below};
use kedge_rig::programs;
use kedge_rig::scratch::Scratch;
use kedge_rig::signals::StopSignal;
use kedge_rig::view::View;

use crate::Options;
use crate::link::{Link, Weather};
use crate::pushes::{Pusher, Tally};
use crate::series::AllSeries;
use crate::trouble::{HUB, Troubles};

/// Never pushed to: its one process lives through everything else.
pub(crate) const STEADY: &str = "steady";
/// Pushed everything there is, also what makes it crash and hang.
pub(crate) const HANGING: &str = "tried";
/// The nodes, and whether bad configurations are among what is pushed to them; `None`: nothing is.
const NODES: [(&str, Option<bool>); 4] =
    [(STEADY, None), ("pushed", Some(false)), ("remote", Some(false)), (HANGING, Some(true))];
/// The lives of a node, compressed: a renewal each 3 s (the Lease's 12 s are in the story's drop-in), a status each 10 s.
const COMPRESSED: &str = "nodeStatusUpdateFrequency: 2s\nnodeStatusReportFrequency: 10s\n";
/// A hang is noticed this long after the ping stopped.
const WATCHDOG: Duration = Duration::from_secs(10);
/// The beat of the thread that brings trouble.
const BEAT: Duration = Duration::from_millis(500);
/// How often a line is said.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// How often everything is measured.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// A process is measured once it has lived so long: a start needs more for a moment. Those that are pushed to live two seconds longer.
const SETTLED: Duration = Duration::from_millis(1500);
/// Bytes a second of a slow link, each way: a bad mobile link.
const SLOW: u32 = 4096;
/// Longest wait for the first renewal of every node, at the beginning and after everything.
const PATIENCE: Duration = Duration::from_secs(120);
/// The share of the time that is warm-up.
pub(crate) const WARM_UP: f64 = 0.25;
/// The share of the time after which the outage begins.
const OUTAGE_AT: f64 = 0.4;

/// What is left when it is over.
pub(crate) struct Lived {
    pub(crate) series: AllSeries,
    pub(crate) tally: Tally,
    pub(crate) ends: BTreeMap<&'static str, Ends>,
    /// The longest fair time without a renewal, in seconds, by node.
    pub(crate) silences: BTreeMap<&'static str, f64>,
    pub(crate) renewals: BTreeMap<&'static str, usize>,
    /// Seconds from the hub's return after the outage to each node's first renewal.
    pub(crate) returns: Vec<(&'static str, f64)>,
    pub(crate) restarts: usize,
    pub(crate) kills: usize,
    pub(crate) weathers: usize,
    pub(crate) lived_secs: f64,
    pub(crate) outage_secs: f64,
    pub(crate) warm_up_secs: f64,
    pub(crate) interrupted: bool,
}

/// How the runs of an agent ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// By its own choice.
    pub(crate) clean: usize,
    /// Any other way.
    pub(crate) unclean: usize,
    /// The last run that was counted.
    last_run: u64,
}

/// Lives it.
pub(crate) fn live(options: &Options, stop: &Receiver<StopSignal>) -> Result<Lived, KitError> {
    let mut stage = Stage::open(options)?;
    let over = AtomicBool::new(false);
    let (gate, tally) = (RwLock::new(()), Mutex::new(Tally::default()));
    let (troubles, view) = (Troubles::default(), View::open(stage.hub.kubectl())?);
    let kubectl = stage.hub.kubectl().clone();
    stage.wait_heard(&view, "a renewal of every node", |count| count > 0)?;
    let lived = std::thread::scope(|scope| {
        for (node, pushes) in NODES {
            let Some(with_bad) = pushes else { continue };
            let pause = Duration::from_secs(if node == "remote" { 5 } else { 0 });
            let pusher = Pusher {
                node,
                kubectl: kubectl.clone(),
                view: &view,
                hub: &gate,
                troubles: &troubles,
                over: &over,
                tally: &tally,
                pause,
                with_bad,
                count: Cell::new(0),
            };
            scope.spawn(move || pusher.run());
        }
        let around = Around { view: &view, gate: &gate, troubles: &troubles, tally: &tally, stop };
        let told = stage.spend(options, &around);
        over.store(true, Ordering::SeqCst);
        stage.fair(&troubles);
        told
    });
    lived?;
    // every push is answered by now; and everybody must still be there
    let before: BTreeMap<&str, usize> = stage.renewals(&view);
    stage.wait_heard(&view, "one more renewal of every node", |count| count > 0)?;
    let last = Instant::now();
    stage.wait_more(&view, &before)?;
    stage.count_ends();
    let silences = NODES.map(|(node, _)| {
        let heard = view.look(|world| world.renewals(node).to_vec());
        (node, troubles.longest_silence(node, &heard, last).as_secs_f64())
    });
    let renewals = stage.renewals(&view);
    stage.close()?;
    Ok(Lived {
        tally: tally.into_inner().unwrap_or_else(PoisonError::into_inner),
        silences: silences.into_iter().collect(),
        renewals,
        ..stage.lived
    })
}

/// What the threads share.
struct Around<'a> {
    view: &'a View,
    gate: &'a RwLock<()>,
    troubles: &'a Troubles,
    tally: &'a Mutex<Tally>,
    stop: &'a Receiver<StopSignal>,
}

struct Stage {
    hub: Hub,
    agents: Vec<(&'static str, Agent, Link)>,
    lived: Lived,
    begun: Instant,
    next_sample: Instant,
    next_line: Instant,
    /// Process and since when it is known, by node or hub.
    processes: BTreeMap<&'static str, (i32, Instant)>,
    /// Until when a node's weather lasts.
    weather: BTreeMap<&'static str, Instant>,
    random: Random,
    // last: the processes end before their directory goes
    scratch: Scratch,
}

impl Stage {
    fn open(options: &Options) -> Result<Stage, KitError> {
        let scratch = Scratch::new("soak")
            .map_err(|source| KitError::Io { tried: "make a temporary directory".into(), source })?;
        let hub = Hub::start(&scratch.path().join("hub"), &[])?;
        let address = hub.address().parse().map_err(|_| KitError::Garbled {
            command: "read the hub's address".into(),
            problem: format!("it is {:?}, expected ADDRESS:PORT", hub.address()),
        })?;
        let (plain, faulty) = (programs::built("kedge")?, programs::agent_with_faults()?);
        let mut agents = Vec::new();
        for (node, pushes) in NODES {
            let link = Link::start(address)
                .map_err(|source| KitError::Io { tried: "start a link".into(), source })?;
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
        let lived = Lived {
            series: AllSeries::default(),
            tally: Tally::default(),
            ends: BTreeMap::new(),
            silences: BTreeMap::new(),
            renewals: BTreeMap::new(),
            returns: Vec::new(),
            restarts: 0,
            kills: 0,
            weathers: 0,
            lived_secs: 0.0,
            outage_secs: options.outage.as_secs_f64(),
            warm_up_secs: options.whole.as_secs_f64() * WARM_UP,
            interrupted: false,
        };
        let begun = Instant::now();
        Ok(Stage {
            hub,
            agents,
            lived,
            begun,
            next_sample: begun,
            next_line: begun + LINE_EVERY,
            processes: BTreeMap::new(),
            weather: BTreeMap::new(),
            random: Random::new(options.seed),
            scratch,
        })
    }

    /// The time between beginning and end.
    fn spend(&mut self, options: &Options, around: &Around<'_>) -> Result<(), KitError> {
        let mut outage = Some(options.outage).filter(|outage| !outage.is_zero());
        let mut next_weather = self.begun + Duration::from_secs(20);
        let mut next_restart = self.begun + Duration::from_secs(90);
        while self.begun.elapsed() < options.whole && !self.lived.interrupted {
            let now = self.turn(around);
            if now >= next_weather {
                next_weather = now + self.secs(10, 30);
                self.worsen(now, around.troubles);
            }
            let its_time = self.begun.elapsed() >= options.whole.mul_f64(OUTAGE_AT);
            let length = match outage {
                Some(length) if its_time => {
                    self.fair(around.troubles);
                    length
                }
                _ if now >= next_restart => self.secs(1, 20),
                _ => continue,
            };
            self.away(length, around)?;
            if its_time && outage.take().is_some() {
                self.see_returns(around.view)?;
            }
            next_restart = Instant::now() + self.secs(60, 120);
        }
        self.lived.lived_secs = self.begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// A beat of waiting, and what is done in each.
    fn turn(&mut self, around: &Around<'_>) -> Instant {
        std::thread::sleep(BEAT);
        // also when whoever would tell has ended
        self.lived.interrupted |= !matches!(around.stop.try_recv(), Err(TryRecvError::Empty));
        let now = Instant::now();
        self.look();
        self.clear(now, around.troubles);
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_EVERY;
            self.sample();
        }
        if now >= self.next_line {
            self.next_line += LINE_EVERY;
            self.say(around);
        }
        now
    }

    /// The hub is away for so long: by turns stopped in order, and killed in the middle of what it does.
    fn away(&mut self, length: Duration, around: &Around<'_>) -> Result<(), KitError> {
        // nobody is pushing now; what was acknowledged a moment ago must not be lost
        let nobody = around.gate.write().unwrap_or_else(PoisonError::into_inner);
        around.troubles.begin(HUB);
        if (self.lived.restarts + self.lived.kills).is_multiple_of(2) {
            self.hub.stop()?;
            self.lived.restarts += 1;
        } else {
            self.hub.kill();
            self.lived.kills += 1;
        }
        let end = Instant::now() + length;
        while Instant::now() < end && !self.lived.interrupted {
            self.turn(around);
        }
        self.hub.start_again()?;
        around.troubles.end(HUB);
        drop(nobody);
        Ok(())
    }

    /// How long each node needs after the outage.
    fn see_returns(&mut self, view: &View) -> Result<(), KitError> {
        let back = Instant::now();
        let heard =
            |node: &str| view.look(|world| world.renewals(node).iter().copied().find(|at| *at > back));
        view.wait_for("a renewal of every node after the outage", PATIENCE, |world| {
            NODES.iter().all(|(node, _)| world.renewals(node).last().is_some_and(|at| *at > back))
        })?;
        for (node, _) in NODES {
            let secs = heard(node).map_or(f64::INFINITY, |at| (at - back).as_secs_f64());
            self.lived.returns.push((node, secs));
        }
        Ok(())
    }

    /// One node's link gets worse.
    fn worsen(&mut self, now: Instant, troubles: &Troubles) {
        let at = self.random.below(self.agents.len() as u64) as usize;
        let (node, kind) = (self.agents[at].0, self.random.below(4));
        if self.weather.contains_key(node) {
            return;
        }
        self.lived.weathers += 1;
        let (weather, length) = match kind {
            0 => (Weather::Cut, self.secs(3, 20)),
            1 => (Weather::Stalled, self.secs(3, 25)),
            2 => (Weather::Slow(SLOW), self.secs(20, 40)),
            _ => return self.agents[at].2.forget(),
        };
        // a slow link is no excuse
        if !matches!(weather, Weather::Slow(_)) {
            troubles.begin(node);
        }
        self.agents[at].2.set(weather);
        self.weather.insert(node, now + length);
    }

    /// Weather that has lasted long enough is over.
    fn clear(&mut self, now: Instant, troubles: &Troubles) {
        for (node, _, link) in &self.agents {
            if self.weather.get(node).is_some_and(|until| *until <= now) {
                self.weather.remove(node);
                link.set(Weather::Fair);
                troubles.end(node);
            }
        }
    }

    /// All weather is over.
    fn fair(&mut self, troubles: &Troubles) {
        self.weather.clear();
        for (node, _, link) in &self.agents {
            link.set(Weather::Fair);
            troubles.end(node);
        }
    }

    /// Notes which processes there are, and how others ended.
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
            let counted = self.lived.ends.entry(node).or_default();
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
        let series = &mut self.lived.series;
        let mut add = |whose: &str, what: &'static str, value: f64| {
            series.entry((whose.to_owned(), what)).or_default().add(at, value);
        };
        for (name, (pid, since)) in &self.processes {
            if since.elapsed() < SETTLED {
                continue;
            }
            let process = Process::new(*pid);
            // it may end while it is looked at: then there is no sample
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

    fn say(&self, around: &Around<'_>) {
        let last = |whose: &str, what: &'static str| {
            self.lived.series.get(&(whose.to_owned(), what)).and_then(|series| series.last()).unwrap_or(0.0)
        };
        let tally: MutexGuard<'_, Tally> = around.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let silence = NODES.map(|(node, _)| {
            let heard = around.view.look(|world| world.renewals(node).to_vec());
            around.troubles.longest_silence(node, &heard, now).as_secs_f64()
        });
        let disk: f64 = NODES.iter().map(|(node, _)| last(node, "bytes")).sum();
        let files: f64 = NODES.iter().map(|(node, _)| last(node, "files")).sum();
        let ends: usize = self.lived.ends.values().map(|ends| ends.clean + ends.unclean).sum();
        println!(
            "{:>3} min | pushes {}, answered {}, failed {} | weather {}, hub {} restarts, {} kills | steady {} KiB PSS {} dirty, \
             {} fds, {} threads | hub {} KiB, {} fds | disk {:.0} KiB in {files} files, hub {:.0} KiB | {ends} ends | \
             longest silence {:.1} s",
            self.begun.elapsed().as_secs() / 60,
            tally.made,
            tally.answered.len(),
            tally.failures.len() + tally.further,
            self.lived.weathers,
            self.lived.restarts,
            self.lived.kills,
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

    fn wait_heard(&self, view: &View, awaited: &str, enough: impl Fn(usize) -> bool) -> Result<(), KitError> {
        view.wait_for(awaited, PATIENCE, |world| {
            NODES.iter().all(|(node, _)| enough(world.renewal_count(node)))
        })
    }

    fn wait_more(&self, view: &View, before: &BTreeMap<&'static str, usize>) -> Result<(), KitError> {
        view.wait_for("one more renewal of every node, and Ready", PATIENCE, |world| {
            before.iter().all(|(node, count)| {
                world.renewal_count(node) > *count
                    && world.condition(node, "Ready").is_some_and(|(status, ..)| status == "True")
            })
        })
    }

    fn close(&mut self) -> Result<(), KitError> {
        for (_, agent, _) in &mut self.agents {
            agent.stop()?;
        }
        self.hub.stop()
    }
}
