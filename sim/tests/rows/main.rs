//! The decision rules of ARCHITECTURE.md, row by row, through the core's one door: events in, actions out.
//!
//! Each module is one table: where a config comes from, what is written when, how a start decides, what is reported, how
//! records are lost, how heartbeats go on, what is asked of the API server. Each test is one row, told as a sentence; each looks at what the node did next.

mod condition;
mod forgive;
mod heartbeats;
mod records;
mod requests;
mod sources;
mod starts;
mod status;
mod writes;

use kedge_sim::DEFAULT_PODS as DEFAULT;
use kedge_sim::payload;
use kedge_sim::situations::{A, B, TRIAL};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A payload whose crash loop threshold and trial are small.
fn short(max_pods: u32, trial: &str, threshold: u8) -> String {
    payload(max_pods, &format!("configTrialDuration: {trial}\ncrashLoopThreshold: {threshold}"))
}
