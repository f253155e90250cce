//! Warnings about an accepted change that will not do what its author expects: `Warning` headers, in addition
//! to those of each kind.
//!
//! Owns: the table of annotations below `kedge.dev/` (which kinds use which of them, and who writes it), and
//! the warnings about pods that need a registry to start and updates that wait without end. Always holds:
//! warnings are only about fields that this change sets, and nothing is refused. Left to others: the meaning
//! of an annotation (`controllers`, the agent).

use serde_json::{Map, Value};

use kedge_api::{
    AUTHORITIES_ANNOTATION, CALLS_ANNOTATION, CONFIG_SOURCE_ANNOTATION, CONFIG_STATUS_ANNOTATION,
    FORGIVE_ANNOTATION, HOLD_PROMOTION_ANNOTATION, MAINTENANCE_ANNOTATION, PULL_AHEAD_ANNOTATION, SLOT,
    SYSTEM_ANNOTATION, TRUST_ANNOTATION,
};

use super::write_options::WriteOptions;
use crate::apply::Owner;
use crate::controllers::daemon_sets;
use crate::kinds::{CONFIG_MAP, CONFIG_ROLLOUT, CONTROLLER_REVISION, DAEMON_SET, Kind, NODE, POD, SECRET};
use crate::value::{at, text};

/// The domain of our annotations; those below it are ours, too.
const DOMAIN: &str = "kedge.dev";
/// Suffix of the domains in which nodes may write any annotation.
const OF_NODES: &str = ".node.kedge.dev";
/// Most letters by which a misspelled name differs from the intended one.
const MOST_SLIPS: usize = 2;

/// An annotation that the hub or its agents read.
struct Annotation {
    name: &'static str,
    /// The kinds whose objects may have it.
    on: &'static [&'static Kind],
    /// The reason why writing it by hand has no effect; empty for annotations that people write.
    instead: &'static str,
}

const fn of_people(name: &'static str, on: &'static [&'static Kind]) -> Annotation {
    Annotation { name, on, instead: "" }
}

const BY_HUB: &str = "the hub writes it by itself, and what others write there has no effect";

/// All annotations below [`DOMAIN`].
static ANNOTATIONS: &[Annotation] = &[
    of_people("kedge.dev/canary-selector", &[&DAEMON_SET]),
    of_people("kedge.dev/canary-soak", &[&DAEMON_SET]),
    of_people("kedge.dev/complete-after", &[&DAEMON_SET]),
    of_people("kedge.dev/drain-before-update", &[&DAEMON_SET]),
    of_people("kedge.dev/max-failures", &[&DAEMON_SET]),
    of_people("kedge.dev/paused", &[&DAEMON_SET]),
    of_people("kedge.dev/pre-pull", &[&DAEMON_SET]),
    of_people("kedge.dev/progress-deadline", &[&DAEMON_SET]),
    of_people("kedge.dev/resume", &[&DAEMON_SET]),
    of_people("kedge.dev/rollback-on-failure", &[&DAEMON_SET]),
    of_people(FORGIVE_ANNOTATION, &[&NODE]),
    of_people(HOLD_PROMOTION_ANNOTATION, &[&NODE]),
    of_people("kedge.dev/release-pods", &[&NODE]),
    of_people("fleet.kedge.dev/resume", &[&CONFIG_ROLLOUT]),
    of_people("fleet.kedge.dev/undo-to", &[&CONFIG_ROLLOUT]),
    of_people("fleet.kedge.dev/set-aside", &[&NODE]),
    of_people("kedge.dev/offline", &[&CONFIG_MAP, &SECRET]),
    Annotation {
        name: CONFIG_SOURCE_ANNOTATION,
        on: &[&NODE],
        instead: "nodes of this hub do not read it: set spec.configSource of the Node",
    },
    Annotation {
        name: CONFIG_STATUS_ANNOTATION,
        on: &[&NODE],
        instead: "nodes of this hub do not write it: see status.config of the Node",
    },
    Annotation {
        name: MAINTENANCE_ANNOTATION,
        on: &[&NODE],
        instead: "the node writes it from its configuration: set maintenanceWindows there",
    },
    Annotation { name: SLOT, on: &[&NODE], instead: "the node writes it by itself" },
    Annotation { name: SYSTEM_ANNOTATION, on: &[&NODE], instead: "the node writes it by itself" },
    Annotation {
        name: "kedge.dev/revoked",
        on: &[&NODE],
        instead: "it revokes nothing: use kedge-hub node revoke",
    },
    Annotation { name: AUTHORITIES_ANNOTATION, on: &[&NODE], instead: "the node writes it by itself" },
    Annotation { name: TRUST_ANNOTATION, on: &[&NODE], instead: BY_HUB },
    Annotation { name: "kedge.dev/drained-for", on: &[&NODE], instead: BY_HUB },
    Annotation { name: CALLS_ANNOTATION, on: &[], instead: BY_HUB },
    Annotation { name: PULL_AHEAD_ANNOTATION, on: &[&POD], instead: BY_HUB },
    Annotation { name: "kedge.dev/set-aside", on: &[&DAEMON_SET], instead: BY_HUB },
    Annotation { name: "kedge.dev/rollout", on: &[&CONTROLLER_REVISION], instead: BY_HUB },
    Annotation { name: "kedge.dev/complete", on: &[&CONTROLLER_REVISION], instead: BY_HUB },
];

/// Where the annotations of an object are: its own, and those of the pods that it makes.
const PLACES: [&[&str]; 2] = [&["metadata", "annotations"], &["spec", "template", "metadata", "annotations"]];

/// All warnings about a change: those of its kind, those of admission, and these. The last are left out for
/// writes of nodes and of the hub itself, because nobody would read them.
pub(super) fn warnings(
    kind: &Kind,
    new: &Value,
    old: Option<&Value>,
    options: &WriteOptions<'_>,
    of_admission: Vec<String>,
) -> Vec<String> {
    let mut warnings = (kind.warnings)(new, old);
    warnings.extend(of_admission);
    if !matches!(options.owner, Owner::Nobody) {
        warnings.extend(of(kind, new, old));
    }
    warnings
}

fn of(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for place in PLACES {
        let before = old.and_then(|old| at(old, place));
        for (key, value) in annotations(new, place) {
            if before.and_then(|before| before.get(key)) != Some(value) {
                let of = if place.len() == 2 { kind } else { &POD };
                warnings.extend(about(key, of).map(|why| format!("{}[{key}]: {why}", place.join("."))));
            }
        }
    }
    if kind.kind == DAEMON_SET.kind && kind.group == DAEMON_SET.group {
        let known = old.map(daemon_sets::complaints).unwrap_or_default();
        warnings.extend(daemon_sets::complaints(new).into_iter().filter(|one| !known.contains(one)));
        warnings.extend(surge(new, old));
    }
    warnings.extend(registry(kind, new, old));
    warnings
}

fn annotations<'a>(object: &'a Value, place: &[&str]) -> impl Iterator<Item = (&'a String, &'a Value)> {
    at(object, place).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The reason why one of our annotations has no effect on an object of this kind.
fn about(key: &str, kind: &Kind) -> Option<String> {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain).to_ascii_lowercase();
    let is_ours = domain == DOMAIN || domain.strip_suffix(DOMAIN).is_some_and(|front| front.ends_with('.'));
    if !is_ours || domain.ends_with(OF_NODES) {
        return None;
    }
    let Some(known) = ANNOTATIONS.iter().find(|known| known.name == key) else {
        let meant = ANNOTATIONS
            .iter()
            .filter(|known| known.instead.is_empty())
            .map(|known| (slips(known.name, key), known.name))
            .min()
            .filter(|(slips, _)| *slips <= MOST_SLIPS);
        let meant = meant.map(|(_, name)| format!(", {name} is one"));
        return Some(format!("nothing reads an annotation of this name{}", meant.unwrap_or_default()));
    };
    if !known.instead.is_empty() {
        return Some(known.instead.to_owned());
    }
    let is_on = |on: &&&Kind| on.kind == kind.kind && on.group == kind.group;
    if known.on.iter().any(|on| is_on(&on)) {
        return None;
    }
    let on: Vec<&str> = known.on.iter().map(|on| on.kind).collect();
    Some(format!("it has no effect on a {}, only on a {}", kind.kind, on.join(" or a ")))
}

/// The number of missing, additional or wrong letters, ignoring case and the difference between dash and
/// underscore.
fn slips(one: &str, other: &str) -> usize {
    let plain = |text: &str| text.to_ascii_lowercase().replace('_', "-").into_bytes();
    let (one, other) = (plain(one), plain(other));
    if one.len().abs_diff(other.len()) > MOST_SLIPS {
        return usize::MAX;
    }
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, found) in other.iter().enumerate() {
            let changed = above[column] + usize::from(letter != found);
            line.push(changed.min(above[column + 1] + 1).min(line[column] + 1));
        }
        above = line;
    }
    above.last().copied().unwrap_or_default()
}

/// The path of the pod in an object: the object itself, or in a template.
fn pod_of(kind: &Kind) -> Option<&'static [&'static str]> {
    match kind.kind {
        "Pod" => Some(&["spec"]),
        "DaemonSet" => Some(&["spec", "template", "spec"]),
        _ => None,
    }
}

fn containers(spec: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    ["initContainers", "containers"].into_iter().flat_map(move |list| {
        let containers = at(spec, &[list]).and_then(Value::as_array);
        containers.into_iter().flatten().enumerate().map(move |(number, one)| (list, number, one))
    })
}

/// A pod with the pull policy `Always` cannot start while its registry is unreachable, even if its image is
/// on the node.
fn registry(kind: &Kind, new: &Value, old: Option<&Value>) -> Option<String> {
    let path = pod_of(kind)?;
    let spec = at(new, path)?;
    let before = old.and_then(|old| at(old, path));
    let asks = |one: &Value| one["imagePullPolicy"] == "Always";
    let is_known = |one: &Value| {
        before.is_some_and(|before| {
            containers(before).any(|(_, _, old)| old["name"] == one["name"] && asks(old))
        })
    };
    let (list, number, _) = containers(spec).find(|(_, _, one)| asks(one) && !is_known(one))?;
    Some(format!(
        "{}.{list}[{number}].imagePullPolicy: Always (the default for the tag latest) starts nothing while the registry is out of reach, \
         also where the image is present; IfNotPresent does",
        path.join(".")
    ))
}

/// A pod with a host port cannot run beside the pod that it replaces.
fn surge(new: &Value, old: Option<&Value>) -> Option<String> {
    let blocked = |set: &Value| {
        let surge = at(set, &["spec", "updateStrategy", "rollingUpdate", "maxSurge"]);
        let has_surge = surge.is_some_and(|surge| *surge != 0 && *surge != "0%" && !surge.is_null());
        let is_rolling = text(set, &["spec", "updateStrategy", "type"]) != "OnDelete";
        let spec = at(set, &["spec", "template", "spec"])?;
        let port = containers(spec).find_map(|(_, _, one)| {
            let ports = one["ports"].as_array()?;
            ports.iter().find_map(|port| port["hostPort"].as_u64().filter(|port| *port > 0))
        });
        port.filter(|_| has_surge && is_rolling)
    };
    let port = blocked(new).filter(|_| old.and_then(blocked).is_none())?;
    Some(format!(
        "spec.updateStrategy.rollingUpdate.maxSurge: no update of this set ends: a new pod waits for hostPort {port}, which the pod that \
         it replaces has; use maxUnavailable"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::EVENT;

    #[track_caller]
    fn check(kind: &Kind, new: &Value, old: Option<&Value>, expect: &[&str]) {
        assert_eq!(of(kind, new, old), expect, "{new}");
    }

    fn annotated(key: &str, value: &str) -> Value {
        json!({"metadata": {"annotations": {key: value}}})
    }

    #[test]
    fn annotation_that_does_nothing_is_remarked_upon() {
        let warned = |kind: &Kind, key: &str, expect: &str| {
            let new = annotated(key, "1");
            check(kind, &new, None, &[&format!("metadata.annotations[{key}]: {expect}")]);
            check(kind, &new, Some(&new), &[]);
        };
        let unknown = "nothing reads an annotation of this name";
        let meant = |name: &str| format!("{unknown}, {name} is one");
        warned(&DAEMON_SET, "kedge.dev/canary_selector", &meant("kedge.dev/canary-selector"));
        warned(&DAEMON_SET, "kedge.dev/maxfailure", &meant("kedge.dev/max-failures"));
        warned(&DAEMON_SET, "Kedge.dev/paused", &meant("kedge.dev/paused"));
        warned(&NODE, "kedge.dev/config-sorce", unknown);
        warned(&NODE, "kedge.dev/something", unknown);
        warned(&POD, "rollouts.kedge.dev/paused", unknown);
        warned(
            &NODE,
            "kedge.dev/config-source",
            "nodes of this hub do not read it: set spec.configSource of the Node",
        );
        warned(&NODE, "kedge.dev/revoked", "it revokes nothing: use kedge-hub node revoke");
        for key in ["fleet.kedge.dev/undo-to", "fleet.kedge.dev/resume"] {
            assert_eq!(about(key, &CONFIG_ROLLOUT), None, "{key}");
        }
        assert_eq!(about("fleet.kedge.dev/set-aside", &NODE), None);
        warned(&CONFIG_MAP, "kedge.dev/paused", "it has no effect on a ConfigMap, only on a DaemonSet");
        warned(&POD, "kedge.dev/offline", "it has no effect on a Pod, only on a ConfigMap or a Secret");
        for (kind, key) in [
            (&NODE, "kedge.dev/forgive"),
            (&NODE, "disk.node.kedge.dev/wear"),
            (&EVENT, "example.com/canary-selector"),
            (&EVENT, "notkedge.dev/x"),
            (&SECRET, "kedge.dev/offline"),
        ] {
            check(kind, &annotated(key, "1"), None, &[]);
        }
        check(
            &NODE,
            &annotated("kedge.dev/x", "2"),
            Some(&annotated("kedge.dev/x", "1")),
            &[&format!("metadata.annotations[kedge.dev/x]: {unknown}")],
        );
    }

    #[test]
    fn annotation_of_a_template_is_the_pods() {
        let set = json!({"spec": {"template": {"metadata": {"annotations": {"kedge.dev/max-failures": "1", "a/b": "c"}}}}});
        let expect = "spec.template.metadata.annotations[kedge.dev/max-failures]: it has no effect on a Pod, only on a DaemonSet";
        check(&DAEMON_SET, &set, None, &[expect]);
    }

    #[test]
    fn value_that_cannot_be_read_is_remarked_upon_once() {
        let set = annotated("kedge.dev/max-failures", "few");
        let expect = "annotation kedge.dev/max-failures is \"few\", expected a number, a percentage of at most 100% or off; the default \
             holds";
        check(&DAEMON_SET, &set, None, &[expect]);
        check(&DAEMON_SET, &set, Some(&set), &[]);
    }

    #[test]
    fn pod_that_needs_its_registry_is_remarked_upon() {
        let pod = |policies: &[&str]| {
            let containers: Vec<Value> = policies
                .iter()
                .enumerate()
                .map(|(number, policy)| json!({"name": format!("c{number}"), "imagePullPolicy": policy}))
                .collect();
            json!({"containers": containers})
        };
        let own = |policies: &[&str]| json!({"spec": pod(policies)});
        let set = |policies: &[&str]| json!({"spec": {"template": {"spec": pod(policies)}}});
        let warned = |kind: &Kind, new: &Value, old: Option<&Value>, expect: Option<&str>| {
            let found = of(kind, new, old);
            assert_eq!(found.len(), usize::from(expect.is_some()), "{found:?}");
            let text = found.first().map_or("", String::as_str);
            assert!(text.starts_with(expect.unwrap_or_default()), "{text}");
            // longer ones are cut
            assert!(text.len() <= 256, "{text}");
        };
        let last = "spec.containers[1].imagePullPolicy: Always";
        warned(&POD, &own(&["IfNotPresent", "Always"]), None, Some(last));
        warned(&POD, &own(&["IfNotPresent", "Never"]), None, None);
        let of_set = "spec.template.spec.containers[0].imagePullPolicy: Always";
        warned(&DAEMON_SET, &set(&["Always"]), None, Some(of_set));
        warned(&DAEMON_SET, &set(&["Always"]), Some(&set(&["Always"])), None);
        warned(&DAEMON_SET, &set(&["Always"]), Some(&set(&["IfNotPresent"])), Some(of_set));
        let init = json!({"spec": {"initContainers": [{"name": "i", "imagePullPolicy": "Always"}]}});
        warned(&POD, &init, None, Some("spec.initContainers[0].imagePullPolicy"));
    }

    #[test]
    fn update_that_waits_for_its_own_port_is_remarked_upon() {
        let set = |surge: Value, port: u64| {
            json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge}},
                "template": {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": port}]}]}}}})
        };
        let warned = |new: &Value, old: Option<&Value>, expect: bool| {
            let found = of(&DAEMON_SET, new, old);
            assert_eq!(found.len(), usize::from(expect), "{new} {found:?}");
            assert!(found.iter().all(|one| one.contains("hostPort 8080") && one.len() <= 256), "{found:?}");
        };
        warned(&set(json!(1), 8080), None, true);
        warned(&set(json!("10%"), 8080), None, true);
        warned(&set(json!(0), 8080), None, false);
        warned(&set(json!("0%"), 8080), None, false);
        warned(&set(json!(1), 0), None, false);
        warned(&set(json!(1), 8080), Some(&set(json!(1), 8080)), false);
        warned(&set(json!(1), 8080), Some(&set(json!(0), 8080)), true);
    }
}
