//! The descriptions of a pod and its containers for the runtime: `config.json`, control groups, users, and
//! the pod's small files.
//!
//! Always holds: pure; the same order gives the same bytes. A value that an order does not set is that of a
//! kubelet with containerd. Leaves to others: the orders (`pods`), carrying them out
//! (`kedge_platform::workloads`).

pub mod cni;
pub mod files;
pub mod groups;
pub mod seccomp;
pub mod spec;
pub mod users;
