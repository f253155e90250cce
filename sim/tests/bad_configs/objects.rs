//! Invalid sources, and ConfigMaps that are missing or contain no configuration.
//!
//! Always holds: the node does not restart and writes no more than a note in `current`; the condition is
//! Unknown and names the problem; a correct source is adopted afterwards.
//!
//! A case has the `configSource` and the members of the `configMap`; `$UID` is the UID of that ConfigMap.

use crate::Operator;
use crate::corpus::{Corpus, OBJECTS};
use crate::golden::Golden;
use crate::{BAD, GOOD, TRIAL_AND_A_RENEWAL};
use kedge_sim::{World, payload};
use serde_json::{Value, json};

/// Longest text in a condition: every watcher of Nodes reads it.
const LONGEST_REASON: usize = 1000;

#[test]
fn bad_source_or_config_map_is_reported_and_bricks_no_node() {
    for corpus in OBJECTS.into_iter().map(Corpus::open) {
        let cases = corpus.cases();
        let seen = cases.iter().map(|case| {
            let object: Value = serde_json::from_slice(&case.payload).expect("the corpus is JSON");
            push(&case.name, &object)
        });
        corpus.check(seen.collect());
    }
}

fn push(what: &str, case: &Value) -> String {
    let mut world = World::new();
    world.start();
    let good = world.hub.push("good", &payload(GOOD, ""));
    world.hub.assign(world.hub.pinned("good"));
    world.settle("the good one");
    world.run_for(TRIAL_AND_A_RENEWAL);
    world.take_events();
    let starts = world.starts;

    let uid = world.hub.push_data(BAD, json!({}));
    let mut map = world.hub.delete_config_map(BAD).expect("pushed");
    map.as_object_mut().expect("an object").remove("data");
    for (member, value) in case["configMap"].as_object().expect("members") {
        map[member] = value.clone();
    }
    world.hub.put_config_map(BAD, &map);
    let source = case["configSource"].to_string().replace("$UID", &uid);
    world.hub.assign(serde_json::from_str(&source).expect("it was JSON"));
    world.settle(what);
    let seen = world.seen(what);
    assert_eq!(world.starts, starts, "{what}: restarted");
    assert_eq!((seen.used, seen.status.as_str()), (GOOD, "Unknown"), "{what}");
    assert!(seen.reason.len() < LONGEST_REASON && seen.error.len() < LONGEST_REASON, "{what}: {seen:?}");
    assert!(world.disk.paths().iter().all(|path| !path.contains("..")), "{what}: {:?}", world.disk.paths());
    let mut golden = Golden::default();
    golden.seen(&seen, &[(&uid, "UID-OF-BAD"), (&good, "UID-OF-GOOD")]);

    world.check_alive(what, GOOD);
    world.check_survives(what, GOOD);
    let again = world.seen(what);
    assert_eq!(again.reason, seen.reason, "{what}: after a crash and a cut");
    world.check_mends(what);
    golden.into_text()
}
