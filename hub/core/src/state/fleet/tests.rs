use std::sync::Arc;

use kedge_rig::Random;
use serde_json::{Value, json};

use super::*;
use crate::object::Event;

const NOW: i64 = 1_800_000_000;

fn pick<'a>(random: &mut Random, all: &[&'a str]) -> &'a str {
    all[random.index(all.len())]
}

fn node(random: &mut Random, name: &str) -> Value {
    let mut conditions = Vec::new();
    let sorts = ["Ready", "ConfigOK", "ImageOK", "SystemOK", "DiskPressure", "DuplicateIdentity"];
    for sort in sorts {
        if random.index(4) == 0 {
            continue;
        }
        let status = pick(random, &["True", "False", "Unknown"]);
        let reason = pick(random, &["", "A", "NodeStatusNeverUpdated", "failed (UID: 7)", "<b>"]);
        let since =
            pick(random, &["2027-01-15T07:59:00Z", "2027-01-14T00:00:00Z", "2026-01-01T00:00:00Z", "never"]);
        conditions
            .push(json!({"type": sort, "status": status, "reason": reason, "lastTransitionTime": since}));
    }
    json!({"metadata": {"name": name, "labels": {"kedge.dev/watchdog": pick(random, &["none", "active"])}},
        "status": {"conditions": conditions, "config": {"error": pick(random, &["", "x (UID: 7): a.b is 1", "x"])},
            "nodeInfo": {"kubeletVersion": pick(random, &["", "v1", "v2"]), "osImage": pick(random, &["A", "B"])}}})
}

fn pod(random: &mut Random, name: &str) -> Value {
    let state = match random.index(4) {
        0 => {
            json!({"waiting": {"reason": pick(random, &["CrashLoopBackOff", "ErrImagePull", "ContainerCreating"])}})
        }
        1 => json!({"waiting": {}}),
        _ => json!({"running": {}}),
    };
    json!({"metadata": {"name": name, "namespace": "d"}, "spec": {"nodeName": pick(random, &["", "a", "b"])},
        "status": {"phase": pick(random, &["Pending", "Running"]), "containerStatuses": [{"state": state}]}})
}

fn value(random: &mut Random, kind: &Kind, name: &str) -> Value {
    match kind.kind {
        "Node" => node(random, name),
        "Pod" => pod(random, name),
        "Event" => {
            json!({"metadata": {"name": name, "namespace": "d"}, "type": pick(random, &["Normal", "Warning"])})
        }
        _ => {
            let end = NOW + 86_400 * i64::try_from(random.index(200)).unwrap() - 86_400 * 20;
            let mut record = json!({"metadata": {"name": name}});
            if random.index(5) > 0 {
                record["data"] = json!({"issue": "1", "notAfter": end.to_string(), "key": "k"});
            }
            record
        }
    }
}

/// Everything that readers see, counted from the objects by the shortest means.
fn naive(objects: &BTreeMap<(&'static str, String), Arc<Object>>) -> Vec<String> {
    let of = |kind: &'static str| {
        objects.iter().filter(move |((found, _), _)| *found == kind).map(|(_, object)| object)
    };
    let sights: Vec<(String, Sight)> =
        of("Node").map(|node| (node.name.to_string(), Sight::read(&node.value()))).collect();
    let mut lines = vec![format!("nodes {}", sights.len())];
    for by in By::ALL {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (fact_by, value) in sights.iter().flat_map(|(_, sight)| &sight.facts) {
            *counts.entry(value).or_default() += usize::from(*fact_by == by);
        }
        counts.retain(|_, count| *count > 0);
        let counts: BTreeMap<&str, usize> = counts;
        lines.push(format!("{} {counts:?}", by.name()));
    }
    let mut waits: BTreeSet<(String, String)> = BTreeSet::new();
    let mut phases: BTreeMap<String, usize> = BTreeMap::new();
    for pod in of("Pod").map(|pod| pod.value()) {
        *phases.entry(text(&pod, &["status", "phase"]).to_owned()).or_default() += 1;
        let reason = pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str();
        if let Some(reason) = reason.filter(|reason| *reason != "ContainerCreating") {
            waits.insert((reason.to_owned(), text(&pod, &["spec", "nodeName"]).to_owned()));
        }
    }
    let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
    for (reason, node) in waits {
        if sights.iter().any(|(name, _)| *name == node) {
            *waiting.entry(reason).or_default() += 1;
        }
    }
    lines.push(format!("waiting {waiting:?} phases {phases:?}"));
    let mut silences = [0; 6];
    for since in sights.iter().filter_map(|(_, sight)| sight.silent_since) {
        let passed = NOW - since;
        silences[SILENCES.iter().filter(|(_, bound)| passed >= *bound).count()] += 1;
    }
    lines.push(format!("silences {silences:?}"));
    let ends: Vec<i64> = of("Credential")
        .filter(|record| sights.iter().any(|(name, _)| **name == *record.name))
        .filter_map(|record| record.value()["data"]["notAfter"].as_str()?.parse().ok())
        .collect();
    let within = |days: i64| ends.iter().filter(|end| **end <= NOW + days * 86_400).count();
    let buckets = [within(0), within(7), within(30), within(90), within(365), ends.len()];
    lines.push(format!("certificates {buckets:?}"));
    let mut warnings: Vec<(u64, String)> = of("Event")
        .filter(|event| event.value()["type"] == "Warning")
        .map(|event| (event.revision, format!("d/{}", event.name)))
        .collect();
    warnings.sort();
    lines.push(format!(
        "warnings {:?}",
        warnings.iter().rev().take(3).map(|(_, key)| key).collect::<Vec<_>>()
    ));
    lines
}

fn counted(fleet: &Fleet) -> Vec<String> {
    let map = |groups: Groups| -> BTreeMap<String, usize> {
        assert_eq!((groups.more, groups.of_more), (0, 0));
        groups.rows.into_iter().collect()
    };
    let mut lines = vec![format!("nodes {}", fleet.count())];
    lines.extend(By::ALL.map(|by| format!("{} {:?}", by.name(), map(fleet.groups(by, usize::MAX)))));
    lines.push(format!("waiting {:?} phases {:?}", map(fleet.waiting(usize::MAX)), map(fleet.phases())));
    lines.push(format!("silences {:?}", fleet.silences(NOW)));
    lines.push(format!("certificates {:?}", fleet.certificates(NOW).0));
    lines.push(format!("warnings {:?}", fleet.warnings(3)));
    lines
}

#[test]
fn counts_are_those_of_all_objects() {
    for seed in 1..60 {
        let mut random = Random::new(seed);
        let mut objects: BTreeMap<(&'static str, String), Arc<Object>> = BTreeMap::new();
        let mut fleet = Fleet::default();
        for revision in 1..300 {
            let kind: &'static Kind = [&NODE, &NODE, &POD, &EVENT, &CREDENTIAL][random.index(5)];
            let name = pick(&mut random, &["a", "b", "c", "d"]).to_owned();
            let old = objects.get(&(kind.kind, name.clone())).cloned();
            let new = (old.is_none() || random.index(4) > 0)
                .then(|| Arc::new(Object::new(kind, &value(&mut random, kind, &name), revision).unwrap()));
            match &new {
                Some(new) => objects.insert((kind.kind, name), new.clone()),
                None => objects.remove(&(kind.kind, name)),
            };
            let event =
                Arc::new(Event { revision, last: new.is_none().then(|| old.clone()).flatten(), old, new });
            let note = Note::of(&Changed { kind, event, author: None }).unwrap();
            fleet.apply(note, Duration::from_secs(revision * 60));
            let expect = naive(&objects);
            assert_eq!(counted(&fleet), expect, "seed {seed}, revision {revision}");
        }
        // a start counts the same
        let mut restored = Fleet::default();
        for ((kind, _), object) in &objects {
            let kind = [&NODE, &POD, &EVENT, &CREDENTIAL].into_iter().find(|known| known.kind == *kind);
            restored.restore(kind.unwrap(), object);
        }
        assert_eq!(counted(&restored), naive(&objects), "seed {seed}");
        // every number is the length of the list behind it
        for by in By::ALL {
            for (value, count) in fleet.groups(by, usize::MAX).rows {
                let filter = Filter::parse(by.name(), &value).unwrap();
                assert_eq!(filter.parameter(), (by.name(), value.clone()));
                assert_eq!(fleet.find(&[filter], NOW).count(), count, "{} {value}", by.name());
                assert_eq!(fleet.count_of(by, &value), count);
            }
        }
        for (reason, count) in fleet.waiting(usize::MAX).rows {
            assert_eq!(fleet.find(&[Filter::Waiting(reason)], NOW).count(), count);
        }
        for (bucket, count) in fleet.silences(NOW).into_iter().enumerate() {
            assert_eq!(fleet.find(&[Filter::Silent(bucket)], NOW).count(), count);
        }
        let (buckets, _) = fleet.certificates(NOW);
        for (days, count) in CERTIFICATE_DAYS.into_iter().zip(buckets) {
            assert_eq!(fleet.find(&[Filter::Ends(days)], NOW).count(), count);
        }
    }
}

#[test]
fn most_frequent_values_come_first_and_the_rest_is_counted() {
    let all = [("a", 1), ("b", 5), ("c", 5), ("d", 2)].map(|(value, count)| (value.to_owned(), count));
    let groups = Groups::of(all.into_iter(), 2);
    let rows = vec![("b".to_owned(), 5), ("c".to_owned(), 5)];
    assert_eq!(groups, Groups { rows, more: 2, of_more: 3 });
}

#[test]
fn days_are_rounded_up_until_the_end() {
    for (seconds, days) in [(0, 0), (1, 1), (86_400, 1), (86_401, 2), (-1, 0), (-86_401, -1)] {
        assert_eq!(days_left(NOW, NOW + seconds), days, "{seconds}");
    }
    assert_eq!(days_left(i64::MIN, i64::MAX), i64::MAX / 86_400 + 1);
}
