//! Tests of the decision rules in RULES.md for which text would not do (see `scenarios`): one property over
//! many inputs, counts over hours, the bodies of requests, and core's answers to direct questions.
//!
//! Always holds: the core is driven by events and observed by its actions; the tests never look inside.

mod condition;
mod forgive;
mod heartbeats;
mod records;
mod requests;
mod sources;
mod starts;
mod status;
mod takeover;
mod watches;
mod writes;

use kedge_sim::DEFAULT_PODS as DEFAULT;
use kedge_sim::payload;
use kedge_sim::situations::{A, B, TRIAL, TRIAL_AND_A_RENEWAL};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A payload with a small crash loop threshold and a short trial.
fn short(max_pods: u32, trial: &str, threshold: u8) -> String {
    payload(max_pods, &format!("configTrialDuration: {trial}\ncrashLoopThreshold: {threshold}"))
}
