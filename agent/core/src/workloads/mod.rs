//! How a pod and its containers are described to the runtime: `config.json`, control groups, users, and the pod's small files.
//!
//! Always holds: pure; the same order gives the same bytes. What an order does not say has the value that a kubelet with containerd
//! gives it. Leaves to others: what is ordered (`pods`), carrying it out (`kedge_platform::workloads`).

pub mod cni;
pub mod files;
pub mod groups;
pub mod seccomp;
pub mod spec;
pub mod users;
