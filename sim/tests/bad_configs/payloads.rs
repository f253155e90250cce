//! Each invalid payload: read as a layer, then pushed to a node in both forms of a source and to a node that
//! has no other config.
//!
//! Always holds: in every form the operator reads the same verdict, with the field or line if it is known.

use crate::Operator;
use crate::corpus::{Case, Corpus, PAYLOADS};
use crate::golden::Golden;
use crate::{BAD, DEFAULT, GOOD, Seen, TRIAL_AND_A_RENEWAL};
use kedge_core::kubelet::error::{ConfigError, ErrorKind};
use kedge_core::kubelet::{Effective, LayerText, LocalLayers, Origin, effective};
use kedge_sim::hub::Hub;
use kedge_sim::{World, payload};
use serde_json::json;

/// Larger payloads are pushed in one form only: parsing a megabyte takes a second in a debug build.
const LARGE_BYTES: usize = 64 * 1024;

/// The event of an adoption, before its version.
const ADOPTED: &str = "KubeletConfigChanged: kedge restarted to use \
                       /api/v1/namespaces/kube-system/configmaps/edge-settings, UID: UID-OF-BAD, ResourceVersion: ";

/// How a payload reaches a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A new ConfigMap, by UID.
    Pinned,
    /// An edit of the ConfigMap that the node follows.
    Edited,
    /// A new ConfigMap, to a node that has only run its local configuration so far.
    First,
}

#[test]
fn bad_payload_is_reported_and_bricks_no_node() {
    let corpora: Vec<Corpus> = PAYLOADS.into_iter().map(Corpus::open).collect();
    let cases: Vec<Vec<Case>> = corpora.iter().map(Corpus::cases).collect();
    let all: Vec<&Case> = cases.iter().flatten().collect();
    assert!(all.len() >= 200, "{} cases", all.len());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(8));
    let parts = all.chunks(all.len().div_ceil(threads));
    let seen: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().map(|case| read_of(case)).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("the failure was printed")).collect()
    });
    let mut seen = seen.into_iter();
    for (corpus, cases) in corpora.into_iter().zip(cases) {
        corpus.check(seen.by_ref().take(cases.len()).collect());
    }
}

/// Judges and pushes one payload; returns the texts that an operator reads.
fn read_of(case: &Case) -> String {
    let mut golden = Golden::default();
    let error = match judged(case) {
        Ok(found) => panic!("{} is valid: {:?}", case.name, found.config),
        Err(error) => error,
    };
    golden.line("check", &error.report());
    let mut forms = vec![Form::Pinned, Form::Edited, Form::First];
    if case.payload.len() > LARGE_BYTES {
        forms.truncate(1);
    }
    let what = |form: Form| format!("{} ({form:?})", case.name);
    let seen: Vec<Seen> = forms.into_iter().map(|form| push(case, form, &what(form))).collect();
    golden.line("reason", &seen[0].reason);
    golden.line("error", &seen[0].error);
    check_reports(case, &error, &seen);
    let [adopted, events @ ..] = seen[0].events.as_slice() else {
        assert!(std::str::from_utf8(&case.payload).is_err(), "{}: no event", case.name);
        return golden.into_text();
    };
    assert!(adopted.starts_with(ADOPTED) && adopted.ends_with(", KubeletConfigKey: kubelet"), "{adopted}");
    for event in events {
        golden.line("event", event);
    }
    golden.into_text()
}

/// The payload as a layer, above the node's drop-in if it has one.
fn judged(case: &Case) -> Result<Effective, ConfigError> {
    let origin =
        Origin::ConfigMap { namespace: "kube-system".into(), name: BAD.into(), uid: "UID-OF-BAD".into() };
    let text = LayerText { origin, text: case.payload.clone() };
    if case.drop_in.is_some() {
        let alone = effective(&LocalLayers::default(), Some(&text));
        assert!(alone.is_ok(), "{} is meant to be right alone: {alone:?}", case.name);
    }
    effective(&local(case), Some(&text))
}

fn local(case: &Case) -> LocalLayers {
    let layer = |text: &Vec<u8>| LayerText {
        origin: Origin::DropIn("/etc/kedge/config.d/10-site.conf".into()),
        text: text.clone(),
    };
    LocalLayers { drop_ins: case.drop_in.iter().map(layer).collect(), ..LocalLayers::default() }
}

/// Pushes the payload in this form and runs the node; returns the state that an operator sees, with UIDs by
/// name.
fn push(case: &Case, form: Form, what: &str) -> Seen {
    let mut world = World::new();
    world.local = local(case);
    world.start();
    let good = prepare(&mut world, form);
    let used = if form == Form::First { DEFAULT } else { GOOD };
    assert_eq!(world.used(), used, "{what}");
    world.take_events();

    // a payload that is not UTF-8 becomes `binaryData`, which agents do not read
    let data = std::str::from_utf8(&case.payload).map_or(json!({}), |text| json!({"kubelet": text}));
    let uid = world.hub.push_data(BAD, data);
    if form != Form::Edited {
        world.hub.assign(world.hub.pinned(BAD));
    }
    world.settle(what);
    let seen = world.seen(what);
    assert_eq!(seen.used, used, "{what}");
    world.check_alive(what, used);
    assert_eq!(world.recorded_uid("last-known-good"), good, "{what}: last-known-good");
    world.check_survives(what, used);
    let again = world.seen(what);
    assert_eq!((&again.reason, &again.error), (&seen.reason, &seen.error), "{what}: after a crash and a cut");
    match form {
        Form::Edited => mend_in_place(&mut world, what),
        _ => world.check_mends(what),
    }
    let named = |text: &str| {
        let text = text.replace(&uid, "UID-OF-BAD");
        if good.is_empty() { text } else { text.replace(&good, "UID-OF-GOOD") }
    };
    Seen {
        message: named(&seen.message),
        reason: named(&seen.reason),
        error: named(&seen.error),
        events: seen.events.iter().map(|event| named(event)).collect(),
        ..seen
    }
}

/// Gives the node a last-known-good and returns its UID, empty if that is the local configuration.
fn prepare(world: &mut World, form: Form) -> String {
    let name = match form {
        Form::First => return String::new(),
        Form::Pinned => "good",
        Form::Edited => BAD,
    };
    let uid = world.hub.push(name, &payload(GOOD, ""));
    let source = if form == Form::Pinned { world.hub.pinned(name) } else { Hub::following(name) };
    world.hub.assign(source);
    world.settle("the good one");
    world.run_for(TRIAL_AND_A_RENEWAL);
    assert_eq!(world.report().config.state, "known-good");
    uid
}

fn mend_in_place(world: &mut World, what: &str) {
    world.hub.push(BAD, &payload(crate::MENDED, ""));
    world.settle(what);
    assert_eq!(world.used(), crate::MENDED, "{what}: the correction in place is not taken");
    assert_eq!(world.seen(what).status, "True", "{what}");
}

/// The condition has the documented words, and error and Event name the field and place.
fn check_reports(case: &Case, error: &ConfigError, seen: &[Seen]) {
    let name = &case.name;
    let what = match error.kind {
        ErrorKind::Parse => "failed to parse current (UID: UID-OF-BAD)",
        ErrorKind::Validate => "failed to validate current (UID: UID-OF-BAD)",
    };
    for seen in seen {
        if std::str::from_utf8(&case.payload).is_err() {
            // it was never assigned, so the active config stays
            assert_eq!(seen.status, "Unknown", "{name}");
            assert!(seen.error.contains("no text under key \"kubelet\""), "{name}: {seen:?}");
            continue;
        }
        assert_eq!(seen.state, "fallback", "{name}");
        assert_eq!((seen.status.as_str(), seen.reason.as_str()), ("False", what), "{name}");
        let first = &error.problems[0];
        let told: Vec<&String> =
            seen.events.iter().filter(|event| event.starts_with("ConfigRolledBack: ")).collect();
        assert_eq!(told.len(), 1, "{name}: {seen:?}");
        for text in [&seen.error, told[0]] {
            assert!(text.contains(&first.message), "{name}: {:?} is not in {text:?}", first.message);
            if first.line > 0 {
                assert!(text.contains(&format!("(line {})", first.line)), "{name}: no line in {text:?}");
            }
        }
        if !first.field.is_empty() {
            // in the proposal one of them is spelled differently than in the object
            let (field, message) = (first.field.to_lowercase(), first.message.to_lowercase());
            let field: String = field.chars().take(60).collect();
            assert!(message.contains(&field), "{name}: {field:?} is not in {message:?}");
        }
    }
}
