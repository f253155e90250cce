//! Runs every target over its corpus, its seeds, its findings, and a fixed set of mutations of them, so that
//! a bug found by fuzzing stays fixed without a fuzzer.

use kedge_fuzz::mutation::Dice;
use kedge_fuzz::{TARGETS, findings, pack, target};
use std::path::Path;

/// Most bytes of all corpora together, because every clone of the repository has them.
const CORPORA_BYTES: usize = 1280 * 1024;

fn kept(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{name}.pack"));
    let packed = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    pack::unpack(&packed).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

#[track_caller]
fn replay(name: &str) {
    let target = target(name).unwrap_or_else(|| panic!("no target {name}"));
    let mut inputs = kept(name);
    assert!(inputs.len() > 10, "the corpus of {name} has {} inputs", inputs.len());
    inputs.extend((target.seeds)());
    inputs.extend(findings::of(name).map(|finding| finding.input.to_vec()));
    for input in &inputs {
        run(target.run, input);
    }
    let mut dice = Dice::new(3983);
    for _ in 0..target.mutations {
        run(target.run, &dice.mutation(&inputs, target.words, target.longest_bytes));
    }
}

/// Prints the input of a panic, then lets the panic continue.
fn run(target: fn(&[u8]), input: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| target(input)) {
        eprintln!("the input was b\"{}\"", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

macro_rules! replayed {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { replay($name) })*
        const REPLAYED: &[&str] = &[$($name),*];
    };
}

replayed! {
    yaml_input_parses_or_fails_with_an_error: "yaml",
    config_input_gives_a_configuration_or_an_error: "config",
    scalar_input_parses_or_is_refused: "scalars",
    source_input_is_accepted_or_refused: "source",
    record_input_is_read_or_unknown: "records",
    exit_record_input_is_evidence_or_a_problem: "exit_record",
    host_input_gives_host_facts: "host",
    network_input_is_asked_or_refused: "networks",
    image_input_is_read_or_refused: "images",
    layer_archive_gives_its_tree_or_is_refused: "layers",
    pod_runs_as_it_says_or_says_why_not: "pods",
    shim_and_agent_hear_each_other_or_give_a_reason: "shim",
    api_object_input_is_read_or_refused: "api_objects",
    kubeconfig_input_is_complete_or_refused: "kubeconfig",
    local_endpoint_input_gets_an_answer: "local_endpoint",
    kubelet_api_input_is_a_request_or_refused: "kubelet_api",
    websocket_input_is_heard_or_ends_the_session: "websocket",
    spdy_input_gives_the_same_frames_however_split: "spdy",
    logind_input_is_an_answer_or_an_error: "logind",
    probe_answer_gives_an_outcome_of_bounded_text: "probes",
    server_answers_do_not_break_the_client: "server",
    node_events_leave_a_running_configuration: "node",
    hub_body_becomes_an_object_or_a_status: "hub_body",
    hub_apply_stores_what_was_applied: "hub_apply",
    hub_patch_gives_an_object_or_a_reason: "hub_patch",
    hub_selector_selects_or_is_refused: "hub_selector",
    hub_request_gets_an_answer: "hub_request",
    hub_rights_are_those_of_a_naive_evaluator: "hub_rights",
    hub_store_opens_or_is_refused: "hub_store",
    call_answer_is_whole_or_refused: "call_answer",
}

#[test]
fn every_target_and_every_finding_is_replayed() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    // tests/cost.rs replays this one, in its own process
    let here: Vec<&str> = names.iter().copied().filter(|name| *name != "hub_cost").collect();
    assert_eq!(here, REPLAYED);
    for finding in findings::FINDINGS {
        assert!(names.contains(&finding.target), "{}: no target {}", finding.story, finding.target);
    }
}

#[test]
fn corpora_stay_small() {
    let bytes: usize = TARGETS.iter().flat_map(|target| kept(target.name)).map(|input| input.len() + 4).sum();
    assert!(bytes < CORPORA_BYTES, "{bytes} bytes");
}
