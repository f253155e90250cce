//! Common initial situations of tests, and what the tests read: shorthands over [`World`]'s acts.
//!
//! Always holds: each works with events in and actions out, like everything else.

use crate::hub::Hub;
use crate::{World, payload};
use serde_json::Value;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// `configTrialDuration` unless a payload says otherwise.
pub const TRIAL: Duration = Duration::from_secs(600);
/// A config that works is promoted after this time: its trial is over, and a renewal, due every ten seconds,
/// was accepted since.
pub const TRIAL_AND_A_RENEWAL: Duration = Duration::from_secs(615);
/// `maxPods` of the first pushed config.
pub const A: u32 = 201;
/// `maxPods` of the second.
pub const B: u32 = 202;

impl World {
    /// Pushes and assigns by UID. Returns the UID.
    pub fn assign(&mut self, name: &str, payload: &str) -> String {
        let uid = self.hub.push(name, payload);
        self.hub.assign(self.hub.pinned(name));
        uid
    }

    /// Pushes and assigns by name. Returns the UID.
    pub fn assign_following(&mut self, name: &str, payload: &str) -> String {
        let uid = self.hub.push(name, payload);
        self.hub.assign(Hub::following(name));
        uid
    }

    /// A running node that has just begun the trial of an assigned config. It has no orders left.
    #[track_caller]
    pub fn in_trial(name: &str, payload: &str) -> (Self, String) {
        let mut world = Self::new();
        world.start();
        let uid = world.adopt(name, payload);
        (world, uid)
    }

    /// Assigns, waits for the exit, starts again.
    #[track_caller]
    pub fn adopt(&mut self, name: &str, payload: &str) -> String {
        let uid = self.assign(name, payload);
        self.turn();
        assert!(self.exited(), "{name} is not adopted: {:#?}", self.report());
        self.restart();
        uid
    }

    /// A node whose last-known-good is `A`.
    #[track_caller]
    pub fn known_good() -> (Self, String) {
        let (mut world, uid) = Self::in_trial("a", &payload(A, ""));
        world.run_for(TRIAL_AND_A_RENEWAL);
        assert_eq!(world.state(), "known-good");
        world.disk.take_written();
        world.take_events();
        (world, uid)
    }

    /// Crashes and starts again.
    pub fn crash_and_start(&mut self) {
        self.crash();
        self.advance(2 * SECOND);
        self.start();
    }

    #[track_caller]
    pub fn state(&self) -> &'static str {
        self.report().config.state
    }

    /// `ConfigOK` on the API server: status, message, reason.
    #[track_caller]
    pub fn config_ok(&self) -> [String; 3] {
        let condition = self.hub.condition("ConfigOK").expect("the condition was reported");
        ["status", "message", "reason"].map(|field| condition[field].as_str().expect("a text").to_owned())
    }

    #[track_caller]
    pub fn check_config_ok(&self, status: &str, message: &str, reason: &str) {
        assert_eq!(self.config_ok(), [status, message, reason].map(str::to_owned));
    }

    /// Checks the records written since the last call.
    #[track_caller]
    pub fn check_written(&mut self, expect: &[&str]) {
        assert_eq!(self.disk.take_written(), expect);
        assert_eq!(self.disk.needless, Vec::<String>::new(), "written though it was there");
    }

    /// `status.config` on the API server.
    pub fn config_status(&self) -> Value {
        self.hub.node().map(|node| node["status"]["config"].clone()).unwrap_or_default()
    }

    pub fn adopt_without_start(&mut self, name: &str, payload: &str) -> String {
        let uid = self.assign(name, payload);
        self.turn();
        self.exit();
        uid
    }

    /// A node with a last-known-good config and without a network; its new config is `b`.
    pub fn silent_trial() -> Self {
        let (mut world, _) = Self::known_good();
        world.adopt_without_start("b", &payload(B, ""));
        world.link = false;
        world.start();
        world
    }

    pub fn entry(&self, name: &str) -> serde_json::Value {
        let bad = self.bad_configs();
        let contents = bad[self.hub.uid_of(name)]["contents"].as_object().cloned().unwrap_or_default();
        contents.values().next().cloned().unwrap_or_default()
    }
}
