//! Settings of one run, and the known facts about the run before it.
//!
//! Always holds: they do not change while the agent runs. Leaves to others: reading flags and files (the
//! crate `kedge`).

use crate::config::judge::PreviousRun;
use crate::kubelet::LocalLayers;
use crate::node::decommission::Decommission;
use crate::system::Slots;
use std::collections::BTreeMap;

/// Settings from the command line and the board, fixed for this run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the Node.
    pub node_name: String,
    /// Version of the agent.
    pub version: String,
    /// `--config`, drop-ins and flags.
    pub local: LocalLayers,
    /// `--dynamic-config`.
    pub dynamic_config: bool,
    /// `--node-labels`.
    pub node_labels: BTreeMap<String, String>,
    /// The running slot of the disk image, `a` or `b`; `None` if this node runs none.
    pub slot: Option<String>,
    /// The slots of this machine, if it can be updated.
    pub slots: Option<Slots>,
    /// How far an administrator's decommissioning has come, if one was begun.
    pub decommission: Option<Decommission>,
    /// Boot id of this boot.
    pub boot_id: String,
    /// Evidence of how the previous run ended.
    pub previous_run: PreviousRun,
    /// The one random number: spreads the actions of a fleet.
    pub seed: u64,
}
