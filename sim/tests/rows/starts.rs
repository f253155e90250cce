//! ARCHITECTURE.md, "How the previous run ended" and cases 1 to 5 of "Start".

use crate::{A, HOUR, payload};
use kedge_core::config::records::StateFile;
use kedge_core::{Action, Step};
use kedge_sim::{Seen, World};

#[test]
fn a_start_reads_a_checkpoint_that_two_records_name_once() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.seen.clear();
    world.start();
    let is_read = |seen: &&Seen| matches!(seen, Seen::Performed(Step::Read(StateFile::Checkpoint(_)), _));
    assert_eq!(world.seen.iter().filter(is_read).count(), 1);
}

#[test]
fn evidence_is_consumed_once() {
    let (mut world, _) = World::known_good();
    world.crash();
    world.seen.clear();
    world.start();
    world.run_for(HOUR);
    let consumed = world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert_eq!(consumed.count(), 1);
}

#[test]
fn what_was_consumed_is_said_after_it_was_recorded() {
    let (mut world, _) = World::in_trial("a", &payload(A, ""));
    world.crash();
    world.seen.clear();
    world.start();
    let at = |wanted: &dyn Fn(&Seen) -> bool| world.seen.iter().position(wanted).expect("it happened");
    let written =
        at(&|seen| matches!(seen, Seen::Performed(kedge_core::Step::Write(StateFile::Startups, _), _)));
    let consumed = at(&|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert!(written < consumed);
}

#[test]
fn there_is_no_configuration_before_the_start_is_decided() {
    let (mut world, _) = World::known_good();
    world.stop();
    let max_pods = |world: &World| {
        let node = &world.process.as_ref().expect("it runs").node;
        node.effective().map(|effective| effective.config.max_pods)
    };
    world.launch();
    assert_eq!(max_pods(&world), None);
    world.turn();
    assert_eq!(max_pods(&world), Some(A));
}
