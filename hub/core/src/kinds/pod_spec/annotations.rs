//! Annotations of pods and templates that mean something upstream: profiles of containers in their older
//! form, the cost of a deletion, and the mark of a mirror pod.
//!
//! Always holds: a fault is reported at the path that upstream names. Leaves to others: what the profiles do
//! (the node).

use serde_json::Value;

use super::super::pod::MIRROR_ANNOTATION;
use super::super::rules::{self, Errors, entries, list};
use crate::field_error::FieldError;
use crate::value::{at, text};

pub(super) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// In front of a container's name.
pub(super) const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// In front of a container's name.
pub(in crate::kinds) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// In front of the name of a profile that the node has.
const LOCALHOST: &str = "localhost/";

/// The containers of a spec, each with the name of its list and its place in that.
pub(super) fn containers(spec: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(move |field| {
        list(spec, field).iter().enumerate().map(move |(index, container)| (field, index, container))
    })
}

/// Validates the annotations in `meta` whose keys `changed` accepts, for a pod or template of this spec.
pub(in crate::kinds) fn validate(
    meta: &Value,
    spec: &Value,
    changed: impl Fn(&str) -> bool,
    path: &str,
    errors: &mut Errors,
) {
    for (key, value) in entries(meta, "annotations").filter(|(key, _)| changed(key)) {
        let value = value.as_str().unwrap_or("");
        let keyed = format!("{path}[{key}]");
        if key == MIRROR_ANNOTATION && text(spec, &["nodeName"]).is_empty() {
            let why = "must set spec.nodeName if mirror pod annotation is set";
            errors.push(FieldError::invalid(keyed, value, why));
        } else if key == DELETION_COST && !is_deletion_cost(value) {
            errors.push(FieldError::invalid(keyed, value, "must be a 32bit integer"));
        } else if key == SECCOMP_POD || key.starts_with(SECCOMP) {
            validate_seccomp(value, &format!("{path}.{key}"), errors);
        } else if let Some(name) = key.strip_prefix(APP_ARMOR) {
            if !containers(spec).any(|(_, _, container)| text(container, &["name"]) == name) {
                errors.push(FieldError::invalid(keyed.as_str(), name, "container not found"));
            }
            let is_known = matches!(value, "" | "runtime/default" | "unconfined");
            if !is_known && !value.starts_with(LOCALHOST) {
                let why = format!("invalid AppArmor profile name: {value:?}");
                errors.push(FieldError::invalid(keyed, value, &why));
            }
        }
    }
}

/// A number as Go writes it: without a plus, and without zeros in front.
fn is_deletion_cost(value: &str) -> bool {
    let is_written_so = match value.as_bytes() {
        [b'-' | b'1'..=b'9', ..] => true,
        other => other == b"0",
    };
    is_written_so && value.parse::<i32>().is_ok()
}

fn validate_seccomp(profile: &str, path: &str, errors: &mut Errors) {
    match profile.strip_prefix(LOCALHOST) {
        Some(file) => rules::descending_path(file, path, errors),
        None if matches!(profile, "runtime/default" | "docker/default" | "unconfined") => {}
        None => errors.push(FieldError::invalid(path, profile, "must be a valid seccomp profile")),
    }
}

/// A sort of profile in both its forms.
struct Profile {
    /// In messages.
    name: &'static str,
    /// In a security context.
    field: &'static str,
    /// The annotation of a container, without its name.
    annotation: &'static str,
    /// What an annotation calls the runtime's own profile.
    default: &'static [&'static str],
}

const PROFILES: [Profile; 2] = [
    Profile {
        name: "seccomp",
        field: "seccompProfile",
        annotation: SECCOMP,
        default: &["runtime/default", "docker/default"],
    },
    Profile {
        name: "apparmor",
        field: "appArmorProfile",
        annotation: APP_ARMOR,
        default: &["runtime/default"],
    },
];

/// A profile that a new pod or a template names both in an annotation and in a field must be the same in
/// both. `path` is that of the spec.
pub(in crate::kinds) fn validate_agreement(meta: &Value, spec: &Value, path: &str, errors: &mut Errors) {
    let annotation = |key: &str| at(meta, &["annotations", key]).and_then(Value::as_str);
    let of_pod = |field: &str| at(spec, &["securityContext", field]);
    for profile in &PROFILES {
        let is_seccomp = profile.annotation == SECCOMP;
        if is_seccomp && let (Some(said), Some(field)) = (annotation(SECCOMP_POD), of_pod(profile.field)) {
            profile.compare(said, field, &format!("{path}.securityContext.{}", profile.field), errors);
        }
        if !is_seccomp && text(spec, &["os", "name"]) == "windows" {
            continue;
        }
        for (list, index, container) in containers(spec) {
            let key = format!("{}{}", profile.annotation, text(container, &["name"]));
            let own = at(container, &["securityContext", profile.field]);
            // upstream compares the pod's profile with the containers' annotations only for AppArmor
            let field = own.or_else(|| of_pod(profile.field).filter(|_| !is_seccomp));
            if let (Some(said), Some(field)) = (annotation(&key), field) {
                let path = format!("{path}.{list}[{index}].securityContext.{}", profile.field);
                profile.compare(said, field, &path, errors);
            }
        }
    }
}

impl Profile {
    fn compare(&self, said: &str, field: &Value, path: &str, errors: &mut Errors) {
        let file = said.strip_prefix(LOCALHOST);
        let agrees = match text(field, &["type"]) {
            "Unconfined" => said == "unconfined",
            "RuntimeDefault" => self.default.contains(&said),
            "Localhost" => file.is_some(),
            _ => return,
        };
        let (part, what) = match agrees {
            false => ("type", "type"),
            true if file.is_some() && file != field["localhostProfile"].as_str() => {
                ("localhostProfile", "profile")
            }
            true => return,
        };
        let why = format!("{} {what} in annotation and field must match", self.name);
        errors.push(FieldError::forbidden(format!("{path}.{part}"), &why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(annotations: Value, spec: Value, expect: &[&str]) {
        let mut errors = Errors::default();
        let meta = json!({"annotations": annotations});
        validate(&meta, &spec, |_| true, "a", &mut errors);
        validate_agreement(&meta, &spec, "s", &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn annotations_are_judged_as_upstream() {
        let spec = json!({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]});
        let is = |key: &str, value: &str, expect: &[&str]| check(json!({key: value}), spec.clone(), expect);
        let mirror = "kubernetes.io/config.mirror";
        is(
            mirror,
            "x",
            &[
                "a[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set",
            ],
        );
        check(json!({mirror: "x"}), json!({"nodeName": "n"}), &[]);
        let cost = "controller.kubernetes.io/pod-deletion-cost";
        ["0", "-5", "10", "2147483647"].iter().for_each(|good| is(cost, good, &[]));
        for bad in ["", "+10", "008", "2147483648", "x", "-"] {
            let expect = format!("a[{cost}]: Invalid value: {bad:?}: must be a 32bit integer");
            is(cost, bad, &[&expect]);
        }
        let seccomp = "container.seccomp.security.alpha.kubernetes.io/absent";
        for good in ["runtime/default", "docker/default", "unconfined", "localhost/a/b.json"] {
            is(SECCOMP_POD, good, &[]);
            is(seccomp, good, &[]);
        }
        is(
            SECCOMP_POD,
            "bogus",
            &[
                "a.seccomp.security.alpha.kubernetes.io/pod: Invalid value: \"bogus\": must be a valid seccomp profile",
            ],
        );
        let text = format!("a.{seccomp}: Invalid value: \"../x\": must not contain '..'");
        is(seccomp, "localhost/../x", &[&text]);
        let armor = "container.apparmor.security.beta.kubernetes.io/";
        for name in ["c", "i"] {
            for good in ["", "runtime/default", "unconfined", "localhost/p"] {
                is(&format!("{armor}{name}"), good, &[]);
            }
        }
        let (not_found, odd) = (format!("a[{armor}absent]: "), format!("a[{armor}c]: "));
        is(
            &format!("{armor}absent"),
            "unconfined",
            &[&format!("{not_found}Invalid value: \"absent\": container not found")],
        );
        is(
            &format!("{armor}c"),
            "bogus",
            &[&format!("{odd}Invalid value: \"bogus\": invalid AppArmor profile name: \"bogus\"")],
        );
    }

    #[test]
    fn annotation_agrees_with_the_field() {
        let profile = |kind: &str| json!({"type": kind, "localhostProfile": "p"});
        let of_pod = |field: &str, kind: &str| json!({"securityContext": {field: profile(kind)}, "containers": [{"name": "c"}]});
        let of_container = |field: &str, kind: &str| json!({"containers": [{"name": "c", "securityContext": {field: profile(kind)}}]});
        let own = "s.containers[0].securityContext";
        for (word, key, field) in
            [("seccomp", SECCOMP, "seccompProfile"), ("apparmor", APP_ARMOR, "appArmorProfile")]
        {
            let key = format!("{key}c");
            let sort =
                format!("{own}.{field}.type: Forbidden: {word} type in annotation and field must match");
            let file = format!(
                "{own}.{field}.localhostProfile: Forbidden: {word} profile in annotation and field must match"
            );
            for (kind, good) in [
                ("Unconfined", "unconfined"),
                ("RuntimeDefault", "runtime/default"),
                ("Localhost", "localhost/p"),
            ] {
                check(json!({&key: good}), of_container(field, kind), &[]);
                let bad = if good == "unconfined" { "runtime/default" } else { "unconfined" };
                check(json!({&key: bad}), of_container(field, kind), &[&sort]);
            }
            check(json!({&key: "localhost/q"}), of_container(field, "Localhost"), &[&file]);
            // only AppArmor's of the pod is the container's
            let of_pod = of_pod(field, "Localhost");
            let expect: &[&str] = if word == "apparmor" { &[&sort] } else { &[] };
            check(json!({&key: "unconfined"}), of_pod, expect);
        }
        check(
            json!({SECCOMP_POD: "unconfined"}),
            of_pod("seccompProfile", "RuntimeDefault"),
            &[
                "s.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
            ],
        );
        let mut windows = of_container("appArmorProfile", "Unconfined");
        windows["os"] = json!({"name": "windows"});
        check(json!({format!("{APP_ARMOR}c"): "runtime/default"}), windows, &[]);
    }
}
