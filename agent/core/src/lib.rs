//! The decisions of the agent: events in, actions out.
//!
//! Core reads no clock, file or socket and draws no random number: the time comes with each event, files and
//! answers come as events, everything to do leaves as a complete action, and the same events give the same
//! actions, every time. A change that must survive a power cut takes two steps: the action that writes it,
//! and, on the event that it is written, the act. So a simulator can control the disk, the network and the
//! clock, and cut the power anywhere.

// numbers of files, objects and records arrive here: one that overflows would stop the agent, again at each
// start
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod agent;
mod answer;
pub mod config;
mod contact;
mod event;
#[cfg(test)]
mod extremes;
pub mod identity;
pub mod images;
pub mod kubelet;
mod node;
mod options;
mod outbox;
mod pace;
pub mod pods;
pub mod provision;
mod reflector;
mod report;
pub mod slot;
pub mod sorted;
pub mod state_partition;
pub mod system;
mod turn;
mod watching;
mod with_pods;
pub mod workloads;
mod writes;

pub use agent::{Core, is_hub_version};
pub use answer::{Answer, Level, Now};
pub use config::condition::ConfigOk;
pub use config::digest::{ConfigId, Digest, Identity};
pub use config::judge::{DISK_LOOP, Exit, PreviousRun};
pub use config::running::Forgiveness;
pub use contact::ContactReport;
pub use event::{Action, Collection, Event, LeaseRequest, Listing, Request, RequestKey};
pub use node::decommission::{Decommission, Phase};
pub use node::facts::{HardwareWatchdog, HostFacts, ImageState, PodNetworks, Runtime};
pub use node::status::{allocatable_memory, kubelet_version};
pub use options::Options;
pub use report::{
    AnotherMachine, BadReport, ConditionReport, ConfigReport, IdentityReport, LeaseReport, Report,
    StorageReport,
};
pub use watching::{ObjectVersion, WatchEnd, WatchFailure, WatchOrder, Watched};
pub use with_pods::{PodPart, WithPods};
pub use writes::{Outcome, Step};
