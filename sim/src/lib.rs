//! One world for every test of a node: a hub and N nodes on one thread, with one seed and a time that the
//! test controls. The rows of the tables, the simulation and the fuzz target of a node use it.
//!
//! Owns the hub, the nodes and the passing of time. Always holds: time passes only by [`World::advance`]; the
//! same acts give the same world. Leaves to others: a single node (`node`), a server's answers (`hub`),
//! invariants.
//!
//! Most tests have one node, and a [`World`] can be used like its first node: `world.disk` is that node's
//! disk.

pub mod board;
mod checks;
pub mod containers;
pub mod credential;
pub mod disk;
pub mod hub;
pub mod machine;
pub mod node;
pub mod programs;
pub mod situations;
mod watch;

pub use node::{Node, Process, Seen, map_event, node_event};

use hub::{Flavour, Hub};
use kedge_core::{Answer, Event, Exit};
use serde_json::Value;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub const NODE: &str = "edge-1";
/// 2026-11-21T01:35:58Z.
pub const WALL_MICROS: i64 = 1_795_224_958_000_000;
pub const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
/// `maxPods` of a node without a configuration.
pub const DEFAULT_PODS: u32 = 110;

/// Most acts before a node must have stopped acting, if no time passes.
const TURNS: u32 = 10_000;
/// Ticks after which the next deadline must be in the future.
const TICKS_AT_ONCE: u32 = 4;
/// Runs after which an agent that is left alone must stay up.
const RUNS_TO_REST: u32 = 8;
/// Most steps and deadlines of an agent in uneventful hours.
const ACTS_ALONE: u32 = 20_000;
/// Time between an exit and the supervisor's next start.
const RESTART_DELAY: Duration = Duration::from_secs(2);
/// Most starts in one stretch of time, for each node: more would be a loop.
const STARTS: u64 = 200;

/// A payload with its own `maxPods`, by which a test recognises the running configuration.
pub fn payload(max_pods: u32, fields: &str) -> String {
    format!("{HEADER}maxPods: {max_pods}\n{fields}\n")
}

/// A hub, its nodes, and their time.
pub struct World {
    pub hub: Hub,
    pub nodes: Vec<Node>,
    /// Time since the world began, whatever the boards' clocks show.
    pub time: Duration,
}

/// The first node.
impl Deref for World {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.nodes[0]
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A new board, with a hub that has its Node, without an assigned config. Not started.
    pub fn new() -> Self {
        Self::with(Flavour::Kedge)
    }

    pub fn with(flavour: Flavour) -> Self {
        Self::fleet(flavour, &[NODE])
    }

    /// Boards of these names, with a hub that has their Nodes, without an assigned config. Not started.
    pub fn fleet(flavour: Flavour, names: &[&str]) -> Self {
        let mut hub = Hub::new(flavour);
        for name in names {
            hub.create_node(name);
        }
        let nodes = names.iter().zip(1..).map(|(name, seed)| Node::new(name, seed)).collect();
        Self { hub, nodes, time: Duration::ZERO }
    }

    // ------------------------------------------------------------------------------------------ the first
    // node and the hub

    /// An event for the first node.
    pub fn handle(&mut self, event: Event) {
        self.nodes[0].handle(event);
    }

    /// The first node's process ends, and the supervisor records how.
    pub fn end(&mut self, exit: Exit) {
        self.nodes[0].end(exit);
    }

    /// Answers the first node's oldest request: the server's answer, or this one instead.
    pub fn do_request(&mut self, instead: Option<Answer>) -> bool {
        self.nodes[0].do_request(&mut self.hub, instead)
    }

    pub fn do_renewal(&mut self, instead: Option<Answer>) -> bool {
        self.nodes[0].do_renewal(&mut self.hub, instead)
    }

    pub fn do_watch_node(&mut self) -> bool {
        self.nodes[0].do_watch_node(&mut self.hub)
    }

    pub fn watch_node(&mut self) -> Option<Value> {
        self.nodes[0].watch_node(&mut self.hub)
    }

    pub fn do_watch_map(&mut self) -> bool {
        self.nodes[0].do_watch_map(&mut self.hub)
    }

    pub fn watch_map(&mut self) -> Option<Value> {
        self.nodes[0].watch_map(&mut self.hub)
    }

    /// Starts the first node's agent, and runs every node until it stops acting.
    pub fn start(&mut self) {
        self.launch();
        self.turn();
    }

    /// Sends SIGTERM to the first node's agent, and lets it exit.
    #[track_caller]
    pub fn stop(&mut self) {
        self.process.as_mut().expect("it runs").stop_asked = true;
        self.handle(Event::Stop("asked to stop".into()));
        self.turn();
        self.exit();
    }

    /// A planned reboot of the first node.
    pub fn reboot(&mut self) {
        self.stop();
        self.power_cut();
    }

    /// Performs the exit that the first node's agent ordered, then its next start, until it stops acting.
    pub fn restart(&mut self) {
        self.exit();
        self.advance(RESTART_DELAY);
        self.start();
    }

    /// Reasons and messages of the Events posted since the last look.
    pub fn take_events(&mut self) -> Vec<String> {
        let events = std::mem::take(&mut self.hub.events);
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        events.iter().map(|event| format!("{}: {}", text(event, "reason"), text(event, "message"))).collect()
    }

    // ------------------------------------------------------------------------------------------ time

    /// Time passes on every board.
    pub fn advance(&mut self, by: Duration) {
        self.time += by;
        for node in &mut self.nodes {
            node.advance(by);
        }
    }

    /// Performs everything that agents order, until there is nothing left or every agent exits. No time
    /// passes.
    pub fn turn(&mut self) {
        for _ in 0..TURNS {
            let hub = &mut self.hub;
            if self.nodes.iter_mut().filter_map(|node| node.turn(hub).then_some(())).count() == 0 {
                return;
            }
        }
        panic!(
            "an agent does not come to rest; last: {:#?}",
            self.seen.iter().rev().take(12).collect::<Vec<_>>()
        );
    }

    /// Time passes; agents are woken at their deadlines. Stops early if all have exited.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.time + time;
        loop {
            self.turn();
            if self.time >= end || self.nodes.iter().all(Node::exited) {
                return;
            }
            self.pass_to_deadline(end);
        }
    }

    /// Time passes up to the first deadline, or to `end`.
    fn pass_to_deadline(&mut self, end: Duration) {
        let running = self.nodes.iter().filter(|node| !node.exited());
        let waits = running
            .filter_map(|node| node.deadline()?.checked_sub(node.mono()))
            .filter(|wait| !wait.is_zero());
        let left = end - self.time;
        self.advance(waits.min().map_or(left, |wait| wait.min(left)));
        for node in &mut self.nodes {
            node.handle(Event::Tick);
        }
    }

    /// Like the first node's main loop: at its deadline it gets a tick; a deadline that does not move on
    /// would keep a processor busy.
    pub fn wait_for_deadline(&mut self) {
        for _ in 0..TICKS_AT_ONCE {
            let Some(at) = self.deadline().filter(|_| !self.exited()) else { return };
            let wait = at.saturating_sub(self.mono());
            self.advance(wait);
            self.handle(Event::Tick);
            if !wait.is_zero() {
                return;
            }
        }
        let deadline = self.deadline().filter(|_| !self.exited());
        assert!(
            deadline.is_none_or(|at| at > self.mono()),
            "the deadline {deadline:?} stays in the past at {:?}",
            self.mono()
        );
    }

    /// No server answers, and the disk works: after a few runs an agent must stay up, with a configuration in
    /// use.
    pub fn comes_to_rest_alone(&mut self) {
        for _ in 0..RUNS_TO_REST {
            if self.exited() {
                self.nodes[0].supervise();
            }
            if self.stays_for(Duration::from_secs(2 * 3600)) {
                let process = self.process.as_ref().expect("it stays");
                assert!(process.node.effective().is_some(), "no configuration in use");
                return;
            }
        }
        panic!("the agent does not stay");
    }

    /// Whether it runs all that time, with answers from the disk only.
    fn stays_for(&mut self, time: Duration) -> bool {
        let end = self.time + time;
        for _ in 0..ACTS_ALONE {
            if self.exited() {
                return false;
            }
            if self.do_step() {
                continue;
            }
            let left = end.saturating_sub(self.time);
            match self.deadline() {
                Some(at) if at <= self.mono() + left => self.wait_for_deadline(),
                _ => return self.process.as_ref().is_some_and(|process| process.used.is_some()),
            }
        }
        panic!("{ACTS_ALONE} steps and deadlines in {time:?} in which nothing happened")
    }

    /// Time passes; supervisors start agents that are not running or have exited.
    #[track_caller]
    pub fn supervise_for(&mut self, time: Duration) {
        let end = self.time + time;
        let starts = |world: &Self| world.nodes.iter().map(|node| node.starts).sum::<u64>();
        let most = starts(self) + STARTS * self.nodes.len() as u64;
        loop {
            self.turn();
            let stopped = self.nodes.iter_mut().filter(|node| node.exited());
            let launched = stopped.map(Node::supervise).count();
            assert!(
                starts(self) < most,
                "restarted again and again: {:#?}",
                self.log.iter().rev().take(12).collect::<Vec<_>>()
            );
            match launched {
                0 if self.time >= end => return,
                0 => self.pass_to_deadline(end),
                _ => {}
            }
        }
    }
}
