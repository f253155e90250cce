//! Pod Security: the levels that a namespace's labels name, and their judgement of a pod.
//!
//! The labels `pod-security.kubernetes.io/{enforce,audit,warn}` and their `-version`; texts and rules are
//! upstream's admission plugin of that name, with no exemptions and `privileged` where a label is missing.
//! Left to others: reading the labels ([`policy`]), which changes are judged (`requests`), and warnings
//! (`kedge-hub`).

mod checks;
mod level;
pub(crate) mod policy;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api_error::ApiError;
use crate::kinds::{DAEMON_SET, Kind, NAMESPACE, POD};
use crate::object::Object;
use crate::requests::Objects;
use crate::value::{at, text};
use checks::Violation;
use kedge_api::KUBERNETES_VERSION;
use level::Level;
use policy::{PREFIX, Policy, Rule};

/// Most pods that are judged when a namespace raises its level: some ten milliseconds of a request. Upstream
/// judges 3000, for a second.
const MOST_PODS: usize = 500;

/// The remarks of Pod Security on a change that it does not forbid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Remarks {
    /// For `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// For the audit log.
    pub(crate) audit: Option<String>,
}

impl Rule {
    fn violations(self, annotations: &Value, spec: &Value) -> Vec<Violation> {
        let latest = KUBERNETES_VERSION.1;
        let minor = self.minor.map_or(latest, |minor| minor.min(latest));
        match self.level {
            Level::Privileged => Vec::new(),
            level => checks::violations(level, minor, annotations, spec),
        }
    }

    /// The rules that a pod breaks, as one text.
    fn judge(self, annotations: &Value, spec: &Value) -> Option<String> {
        let found = self.violations(annotations, spec);
        let shown = found.iter().map(|found| match &*found.detail {
            "" => found.reason.clone(),
            detail => format!("{} ({detail})", found.reason),
        });
        let shown: Vec<String> = shown.collect();
        (!shown.is_empty()).then(|| format!("violate PodSecurity \"{}\": {}", self.shown(), shown.join(", ")))
    }
}

/// Judges a new or changed object by the policy of its namespace: a bad pod is refused, a bad template of a
/// DaemonSet only gets a warning.
///
/// # Errors
/// 403 for a pod that breaks the enforced level.
pub(crate) fn judge(
    objects: &dyn Objects,
    kind: &Kind,
    namespace: &str,
    old: Option<&Value>,
    new: &Value,
) -> Result<Remarks, ApiError> {
    let is_pod = kind.kind == POD.kind;
    if let Some(old) = old.filter(|_| kind.kind == NAMESPACE.kind) {
        return Ok(Remarks { warnings: raised(objects, old, new), audit: None });
    }
    let (metadata, spec) = match kind.kind {
        _ if is_pod && old.is_none_or(|old| images(old) != images(new)) => (&new["metadata"], &new["spec"]),
        template if template == DAEMON_SET.kind => {
            let template = &new["spec"]["template"];
            (&template["metadata"], &template["spec"])
        }
        _ => return Ok(Remarks::default()),
    };
    let Some(namespace) = objects.get(&NAMESPACE, "", namespace).filter(|found| has_labels(found)) else {
        return Ok(Remarks::default());
    };
    let (policy, _) = Policy::of(&namespace.value());
    let annotations = &metadata["annotations"];
    if let Some(found) = policy.enforce.judge(annotations, spec).filter(|_| is_pod) {
        // the texts differ in this word only
        let why = found.replacen("violate", "violates", 1);
        return Err(ApiError::forbidden_object(kind, text(new, &["metadata", "name"]), &why));
    }
    let remark = |rule: Rule| rule.judge(annotations, spec).map(|found| format!("would {found}"));
    Ok(Remarks { warnings: remark(policy.warn).into_iter().collect(), audit: remark(policy.audit) })
}

/// Warnings about the existing pods of a namespace that raises its enforced level.
fn raised(objects: &dyn Objects, old: &Value, new: &Value) -> Vec<String> {
    let (was, is) = (Policy::of(old).0.enforce, Policy::of(new).0.enforce);
    let is_lower = was.minor == is.minor && is.level <= was.level;
    if was == is || is.level == Level::Privileged || is_lower {
        return Vec::new();
    }
    let name = text(new, &["metadata", "name"]);
    let mut pods: Vec<Value> = objects.pods_of(name).iter().map(|pod| pod.value()).collect();
    let all = pods.len();
    // one pod of each controller first: its others are alike
    let mut controllers = BTreeSet::new();
    pods.sort_by_cached_key(|pod| controller_of(pod).is_some_and(|uid| !controllers.insert(uid.to_owned())));
    pods.truncate(MOST_PODS);
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for pod in &pods {
        let broken = is.violations(&pod["metadata"]["annotations"], &pod["spec"]);
        let reasons: Vec<String> = broken.into_iter().map(|broken| broken.reason).collect();
        if !reasons.is_empty() {
            found.entry(reasons.join(", ")).or_default().push(text(pod, &["metadata", "name"]));
        }
    }
    let mut warnings = Vec::new();
    if pods.len() < all {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MOST_PODS} of {all} existing pods"
        ));
    }
    if !found.is_empty() {
        let level = is.shown();
        warnings.push(format!(
            "existing pods in namespace {name:?} violate the new PodSecurity enforce level {level:?}"
        ));
    }
    let of_pods = found.into_iter().map(|(reasons, names)| {
        let first = names.iter().min().copied().unwrap_or_default();
        match names.len() {
            1 => format!("{first}: {reasons}"),
            2 => format!("{first} (and 1 other pod): {reasons}"),
            count => format!("{first} (and {} other pods): {reasons}", count - 1),
        }
    });
    let mut of_pods: Vec<String> = of_pods.collect();
    of_pods.sort();
    warnings.extend(of_pods);
    warnings
}

fn controller_of(pod: &Value) -> Option<&str> {
    let mut owners = pod["metadata"]["ownerReferences"].as_array()?.iter();
    owners.find(|owner| owner["controller"] == true).map(|owner| text(owner, &["uid"]))
}

/// A search of the text: most namespaces have no such label, and need not be parsed for each pod.
fn has_labels(namespace: &Object) -> bool {
    std::str::from_utf8(&namespace.json).is_ok_and(|text| text.contains(PREFIX))
}

fn images(pod: &Value) -> Vec<&str> {
    let lists = ["initContainers", "containers"].into_iter();
    let containers =
        lists.flat_map(|list| at(pod, &["spec", list]).and_then(Value::as_array).into_iter().flatten());
    containers.map(|container| text(container, &["image"])).collect()
}

#[cfg(test)]
mod tests;
