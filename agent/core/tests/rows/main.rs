//! The tables of the architecture, row by row, through the core's one door: events in, actions out.
//!
//! Each module is one table: where a config comes from, what is written when, how a start decides, what is reported, how
//! records are lost, how heartbeats go on, what is asked of the API server. Each test is one row, told as a sentence; each looks at what the node did next.

#[allow(dead_code, reason = "each test program uses its part of the board")]
#[path = "../board/mod.rs"]
mod board;

mod condition;
mod heartbeats;
mod proofs;
mod records;
mod requests;
mod sources;
mod starts;
mod status;
mod verdicts;
mod writes;

use board::hub::Hub;
use board::{World, payload};
use serde_json::Value;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// `configTrialDuration` unless a payload says otherwise.
const TRIAL: Duration = Duration::from_secs(600);

use board::DEFAULT_PODS as DEFAULT;
/// `maxPods` of the first config pushed.
const A: u32 = 201;
/// `maxPods` of the second.
const B: u32 = 202;

/// A payload whose crash loop threshold and trial are small.
fn short(max_pods: u32, trial: &str, threshold: u8) -> String {
    payload(max_pods, &format!("configTrialDuration: {trial}\ncrashLoopThreshold: {threshold}"))
}

impl World {
    /// Pushes and assigns by UID. Returns the UID.
    fn assign(&mut self, name: &str, payload: &str) -> String {
        let uid = self.hub.push(name, payload);
        self.hub.assign(self.hub.pinned(name));
        uid
    }

    /// Pushes and assigns by name. Returns the UID.
    fn assign_following(&mut self, name: &str, payload: &str) -> String {
        let uid = self.hub.push(name, payload);
        self.hub.assign(Hub::following(name));
        uid
    }

    /// A running node that has just begun the trial of a config it was assigned. Nothing else is left to do.
    #[track_caller]
    fn in_trial(name: &str, payload: &str) -> (Self, String) {
        let mut world = Self::new();
        world.start();
        let uid = world.adopt(name, payload);
        (world, uid)
    }

    /// Assigns, waits for the exit, starts again.
    #[track_caller]
    fn adopt(&mut self, name: &str, payload: &str) -> String {
        let uid = self.assign(name, payload);
        self.turn();
        assert!(self.exited(), "{name} is not adopted: {:#?}", self.report());
        self.restart();
        uid
    }

    /// A node whose last-known-good is `A`.
    #[track_caller]
    fn known_good() -> (Self, String) {
        let (mut world, uid) = Self::in_trial("a", &payload(A, ""));
        world.run_for(TRIAL);
        assert_eq!(world.state(), "known-good");
        world.disk.take_written();
        world.take_events();
        (world, uid)
    }

    /// Crashes and starts again.
    fn crash_and_start(&mut self) {
        self.crash();
        self.advance(2 * SECOND);
        self.start();
    }

    /// The power goes, and the agent starts again.
    fn cut_and_start(&mut self) {
        self.power_cut();
        self.start();
    }

    #[track_caller]
    fn state(&self) -> &'static str {
        self.report().config.state
    }

    /// `ConfigOK` as the API server has it: status, message, reason.
    #[track_caller]
    fn config_ok(&self) -> [String; 3] {
        let condition = self.hub.condition("ConfigOK").expect("the condition was reported");
        ["status", "message", "reason"].map(|field| condition[field].as_str().expect("a text").to_owned())
    }

    #[track_caller]
    fn check_config_ok(&self, status: &str, message: &str, reason: &str) {
        assert_eq!(self.config_ok(), [status, message, reason].map(str::to_owned));
    }

    /// What was written since the last look.
    #[track_caller]
    fn check_written(&mut self, expect: &[&str]) {
        assert_eq!(self.disk.take_written(), expect);
        assert_eq!(self.disk.needless, Vec::<String>::new(), "written though it was there");
    }

    /// `status.config` as the API server has it.
    fn config_status(&self) -> Value {
        self.hub.node.as_ref().map(|node| node["status"]["config"].clone()).unwrap_or_default()
    }
}
