//! Containers of the real crun, kept by real shims (`kedge shim`), on this machine's kernel: they survive an
//! agent's restart, their state stays known, and nothing is left behind.
//!
//! Each test runs in mount and PID namespaces of its own, so that whatever it leaves goes with it, and
//! control groups of both versions at once, which crun refuses, become one version. Needs root, Debian's crun
//! and busybox-static (.ci/prepare tests).

#![allow(clippy::unwrap_used, reason = "a panic is how a test says what failed")]

mod adoption;
mod cuts;
#[allow(
    dead_code,
    reason = "what befalls files of the configuration befalls others, too, but not in each way"
)]
#[path = "../corrupt_state/damage.rs"]
mod damage;
mod damaged;
mod dead_paths;
mod ends;
mod escapes;
mod far_away;
mod faults;
mod hooks;
mod hostile_configs;
mod hostile_pods;
mod identity;
mod image_volumes;
mod kill_loop;
mod killed_agents;
mod logs;
mod lost_records;
mod lying_server;
mod many_probes;
mod messages;
mod named_pipes;
#[path = "../net_server/mod.rs"]
mod net_server;
mod network;
mod orphans;
mod pod_proxy;
mod pods;
mod port_forward;
mod pressure;
mod probes;
mod pulls;
mod rollouts;
mod sessions;
mod setup;
mod sharing;
mod static_pods;
mod threads;
mod under_systemd;
mod usage;
mod volumes;
mod whole;
mod without_crun;
