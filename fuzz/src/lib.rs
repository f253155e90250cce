//! Fuzz targets for all data that a network peer or a disk can give to a node or the hub: bytes in, a panic
//! if a promise is broken.
//!
//! Owns the targets, their stored inputs (`corpus/`, one packed file a target) and the bugs that they found
//! (`findings`). Always holds: a target is deterministic, needs no network beyond this machine and, except
//! `layers`, no root, leaves no file behind, and checks more than the absence of panics: a value that was
//! read is written back equal, limits hold, errors have a text. The same targets run under libFuzzer (`make
//! fuzz`) and, over all stored inputs and a fixed number of mutations, as plain tests. Left to others:
//! searching for inputs (libFuzzer).

mod api_objects;
mod call_answer;
mod config;
pub mod cost;
mod exit_record;
pub mod findings;
mod host;
mod hub_apply;
mod hub_body;
mod hub_cost;
mod hub_patch;
mod hub_request;
mod hub_rights;
mod hub_selector;
mod hub_store;
mod images;
mod input;
mod kubeconfig;
mod kubelet_api;
pub mod large;
mod layers;
mod local_endpoint;
mod logind;
pub mod mutation;
mod networks;
mod node;
pub mod pack;
mod pods;
mod probes;
mod records;
mod scalars;
mod server;
mod shim;
mod source;
mod spdy;
mod websocket;
mod yaml;

/// A directory for a target's files, in memory where the machine has such a file system.
fn scratch(name: &str) -> kedge_rig::Scratch {
    kedge_rig::Scratch::in_memory(&format!("fuzz-{name}"))
        .expect("a fuzz target needs a directory for its files")
}

/// One reader of foreign input.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, used by its corpus and the command line.
    pub name: &'static str,
    /// Feeds it one input; a panic is a finding.
    pub run: fn(&[u8]),
    /// Initial inputs: one of each shape, so that the search starts behind the first checks.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that matter to it and that random bytes would hardly form.
    pub words: &'static [&'static str],
    /// Longest input worth trying, in bytes.
    pub longest_bytes: usize,
    /// Mutations that a plain test run tries: about half a second of them, unoptimised.
    pub mutations: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    yaml::TARGET,
    config::TARGET,
    scalars::TARGET,
    source::TARGET,
    records::TARGET,
    exit_record::TARGET,
    host::TARGET,
    networks::TARGET,
    images::TARGET,
    layers::TARGET,
    pods::TARGET,
    shim::TARGET,
    api_objects::TARGET,
    kubeconfig::TARGET,
    local_endpoint::TARGET,
    kubelet_api::TARGET,
    websocket::TARGET,
    spdy::TARGET,
    logind::TARGET,
    probes::TARGET,
    server::TARGET,
    node::TARGET,
    hub_body::TARGET,
    hub_cost::TARGET,
    hub_apply::TARGET,
    hub_patch::TARGET,
    hub_selector::TARGET,
    hub_request::TARGET,
    hub_rights::TARGET,
    hub_store::TARGET,
    call_answer::TARGET,
];

/// The bytes that a request allocates, given its kind, its sort (`c`reate, `p`rotobuf, `u`pdate, `a`pply,
/// `s`trategic, `m`erge or `j`SON patch), the existing object and the body. Panics where the target
/// `hub_cost` would.
#[must_use]
pub fn request_cost(
    kind: &'static kedge_hub_core::kinds::Kind,
    request: u8,
    object: &[u8],
    body: &[u8],
) -> usize {
    hub_cost::judged(kind, request, object, body)
}

/// The target with that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
