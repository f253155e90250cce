//! What a start reads and in which order it acts. What it decides: `start.txt` and `previous-run.txt`.

use crate::{A, HOUR, payload};
use kedge_core::config::records::StateFile;
use kedge_core::{Action, Step};
use kedge_sim::{Seen, World};

#[test]
fn checkpoint_named_twice_is_read_once() {
    let (mut world, _) = World::known_good();
    world.stop();
    world.seen.clear();
    world.start();
    let is_read = |seen: &&Seen| matches!(seen, Seen::Performed(Step::Read(StateFile::Checkpoint(_)), _));
    assert_eq!(world.seen.iter().filter(is_read).count(), 1);
}

#[test]
fn evidence_is_consumed_once_per_start() {
    let (mut world, _) = World::known_good();
    world.crash();
    world.seen.clear();
    world.start();
    world.run_for(HOUR);
    let consumed = world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(Action::ConsumeEvidence)));
    assert_eq!(consumed.count(), 1);
}

#[test]
fn evidence_is_consumed_only_after_startups_is_durable() {
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
fn no_config_is_in_use_before_start_is_decided() {
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
