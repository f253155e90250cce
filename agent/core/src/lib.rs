//! The decisions of the agent: events in, actions out.
//!
//! Core reads no clock, opens no file, talks to nobody and draws no random number: the time comes with each event, files
//! and answers come as events, what must happen leaves as complete actions, and the same events give the same actions,
//! every time. What must survive a power cut is two steps: the action that writes it, and, on the event that it is
//! written, the act. So a simulator can hold the disk, the network and the clock in its hand and cut anywhere.

mod condition;
pub mod config;
mod configuration;
mod digest;
mod disk;
mod judge;
mod lease;
mod node;
mod node_status;
mod pace;
mod program;
pub mod records;
pub mod source;
mod start;

pub use condition::ConfigOk;
pub use configuration::{Forgiveness, Now};
pub use digest::{ConfigId, Digest};
pub use judge::{DISK_LOOP, Exit, PreviousRun};
pub use lease::LeaseRequest;
pub use node::{
    Action, Answer, BadReport, ConditionReport, ConfigReport, Event, LeaseReport, Level, Node, Options,
    Report, Request, RequestKind, is_hub_version,
};
pub use node_status::{HostFacts, kubelet_version};
pub use program::{Outcome, Step};
pub use start::Active;
