//! The API over real TLS, as clients see it. Each test has its own hub: a process on a free port, in a
//! directory of its own.

#![allow(clippy::disallowed_methods, reason = "tests read what they and the hub wrote")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod abuse;
mod acts;
mod answers;
mod apply;
mod audit;
mod authorities;
mod bootstrap;
mod calls;
mod desired;
mod events;
mod fleet;
mod garbled;
mod identity;
mod kinds;
mod lifecycles;
mod objects;
mod pod_proxy;
mod recorded;
mod refusals;
mod returning;
mod revocation;
mod rollouts;
#[path = "../server/mod.rs"]
mod server;
mod stolen;
mod usage;
mod watchdog;

const NAMESPACES: &str = "/api/v1/namespaces";
const NODES: &str = "/api/v1/nodes";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const JSON: (&str, &str) = ("content-type", "application/json");
