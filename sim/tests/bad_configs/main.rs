//! Configurations that must not brick a node: a corpus of invalid payloads, sources and ConfigMaps, each
//! pushed to a node with a working last-known-good.
//!
//! Always holds, for each of them and for both forms of a source: the node keeps renewing its Lease, runs a
//! configuration, stops restarting, reports what is wrong and where, keeps last-known-good and its verdict
//! over a crash and a power cut, and adopts a correct configuration that is pushed afterwards.
//!
//! `corpus/*.txt` hold each case and, below it, the texts that an operator reads about it, rewritten with
//! `KEDGE_GOLDEN=write`.

// the texts are those of a release build: with fault injection one of the payloads is valid
#![cfg(not(feature = "fault-injection"))]
#![allow(clippy::disallowed_methods, reason = "the core opens no file; its tests read their corpus")]

mod accepted;
mod archive;
mod corpus;
mod edits;
mod golden;
mod objects;
mod payloads;

use kedge_sim::situations::{TRIAL, TRIAL_AND_A_RENEWAL};
use kedge_sim::{DEFAULT_PODS as DEFAULT, World};
use serde_json::Value;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// `maxPods` of the last-known-good.
const GOOD: u32 = 201;
/// `maxPods` of the correct configuration that is pushed last.
const MENDED: u32 = 202;
/// Fewest Lease renewals in a minute: one every ten seconds, with a margin.
const RENEWALS_PER_MINUTE: u64 = 5;
/// Name of the invalid ConfigMap.
const BAD: &str = "edge-settings";

/// A node's state as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    status: String,
    reason: String,
    message: String,
    error: String,
    events: Vec<String>,
    state: &'static str,
    used: u32,
}

/// The checks of this program, on a board.
trait Operator {
    fn settle(&mut self, what: &str);
    fn seen(&mut self, what: &str) -> Seen;
    fn check_alive(&mut self, what: &str, used: u32);
    fn recorded_uid(&self, record: &str) -> String;
    fn check_survives(&mut self, what: &str, used: u32);
    fn check_mends(&mut self, what: &str);
}

impl Operator for World {
    /// Runs until there is nothing left to do, with every restart that the agent orders; this must end.
    #[track_caller]
    fn settle(&mut self, what: &str) {
        for _ in 0..4 {
            self.turn();
            if !self.exited() {
                return;
            }
            self.restart();
        }
        panic!("{what}: the agent restarts again and again");
    }

    #[track_caller]
    fn seen(&mut self, what: &str) -> Seen {
        let condition =
            self.hub.condition("ConfigOK").unwrap_or_else(|| panic!("{what}: no condition")).clone();
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let error = self.hub.node().map(|node| node["status"]["config"]["error"].clone());
        let events = self.take_events();
        Seen {
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
            error: error.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned(),
            events,
            state: self.report().config.state,
            used: self.used(),
        }
    }

    /// Some minutes pass: heartbeats continue, nothing restarts, the same configuration runs.
    #[track_caller]
    fn check_alive(&mut self, what: &str, used: u32) {
        let (renewals, starts) = (self.hub.renewals, self.starts);
        let minutes = 3;
        self.run_for(minutes * MINUTE);
        assert!(!self.exited(), "{what}: the agent wants to restart");
        assert_eq!(self.starts, starts, "{what}");
        let renewed = self.hub.renewals - renewals;
        assert!(
            renewed >= RENEWALS_PER_MINUTE * u64::from(minutes),
            "{what}: renewed {renewed} times in {minutes} minutes"
        );
        assert_eq!(self.used(), used, "{what}");
    }

    /// The UID that a record names.
    fn recorded_uid(&self, record: &str) -> String {
        let record = self.file(record).unwrap_or_default();
        record["uid"].as_str().unwrap_or_default().to_owned()
    }

    /// A crash, then a power cut without a network: the node runs the same configuration as before.
    #[track_caller]
    fn check_survives(&mut self, what: &str, used: u32) {
        let before = (self.bad_configs(), self.recorded_uid("last-known-good"), self.recorded_uid("current"));
        self.crash();
        self.advance(Duration::from_secs(2));
        self.start();
        assert_eq!(self.used(), used, "{what}: after a crash");
        self.power_cut();
        self.link = false;
        self.start();
        assert_eq!(self.used(), used, "{what}: after a cut, offline");
        self.link = true;
        self.settle(what);
        self.run_for(MINUTE);
        assert_eq!(self.used(), used, "{what}: online again");
        let after = (self.bad_configs(), self.recorded_uid("last-known-good"), self.recorded_uid("current"));
        assert_eq!(after, before, "{what}: what is recorded");
    }

    /// A correct configuration, pushed and assigned by UID, is adopted.
    #[track_caller]
    fn check_mends(&mut self, what: &str) {
        let uid = self.hub.push("mended", &kedge_sim::payload(MENDED, ""));
        self.hub.assign(self.hub.pinned("mended"));
        self.settle(what);
        assert_eq!(self.used(), MENDED, "{what}: a correct configuration is not taken");
        let seen = self.seen(what);
        assert_eq!(
            (seen.status.as_str(), seen.message),
            ("True", format!("using current (UID: {uid})")),
            "{what}"
        );
        assert_eq!(seen.error, "", "{what}");
    }
}
