//! Which container is meant by names, as the records of this node have it.
//!
//! Always holds: of pods of one name the one that has running containers is meant; an error says what there
//! is instead.

use kedge_platform::workloads::{ContainerId, RunningPod, Settings, running_pods};

use crate::workloads::{NAME, NAMESPACE};

/// A container that runs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: ContainerId,
}

impl Place {
    /// By `[NAMESPACE/]POD` and the container's name, which may be missing if there is only one.
    ///
    /// # Errors
    /// It is not there, or does not run; the text is for a person.
    pub(crate) fn find(settings: &Settings, pod: &str, container: Option<&str>) -> Result<Self, String> {
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
        Self::of(settings, (namespace, name, None), container)
    }

    /// By namespace, name, and, where it is known, UID.
    ///
    /// # Errors
    /// As [`Place::find`].
    pub(crate) fn of(
        settings: &Settings,
        (namespace, name, uid): (&str, &str, Option<&str>),
        container: Option<&str>,
    ) -> Result<Self, String> {
        let mut pods = running_pods(settings);
        pods.retain(|pod| uid.is_none_or(|uid| pod.uid == uid));
        choose(pods, namespace, name, container)
    }
}

fn choose(
    pods: Vec<RunningPod>,
    namespace: &str,
    name: &str,
    container: Option<&str>,
) -> Result<Place, String> {
    let note = |pod: &RunningPod, key: &str| pod.notes.get(key).cloned().unwrap_or_default();
    let mut named: Vec<RunningPod> =
        pods.into_iter().filter(|pod| note(pod, NAMESPACE) == namespace && note(pod, NAME) == name).collect();
    if named.is_empty() {
        return Err(format!("pods \"{name}\" not found in namespace \"{namespace}\" on this node"));
    }
    // one that ends may still be there beside its successor
    kedge_api::sort::sort_by_key(&mut named, |pod| pod.containers.is_empty());
    let containers = named.swap_remove(0).containers;
    let names: Vec<&str> = containers.iter().map(|id| id.name.as_str()).collect();
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let found = match (container, containers.as_slice()) {
        (Some(wanted), all) => all.iter().find(|id| id.name == wanted),
        (None, [only]) => Some(only),
        (None, []) => None,
        (None, _) => {
            return Err(format!(
                "pod {namespace}/{name} has several containers, choose one with -c: {listed}"
            ));
        }
    };
    match (found, container) {
        (Some(id), _) => Ok(Place { id: id.clone() }),
        (None, Some(wanted)) => Err(format!(
            "container {wanted:?} of pod {namespace}/{name} does not run here; running: {listed}"
        )),
        (None, None) => Err(format!("no container of pod {namespace}/{name} runs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, name: &str, containers: &[&str]) -> RunningPod {
        let notes = [(NAMESPACE, "prod"), (NAME, name)].map(|(key, text)| (key.to_owned(), text.to_owned()));
        let id = |name: &&str| ContainerId { pod: uid.into(), name: (*name).into(), attempt: 3 };
        RunningPod { uid: uid.into(), notes: notes.into(), containers: containers.iter().map(id).collect() }
    }

    #[track_caller]
    fn check(name: &str, container: Option<&str>, expect: &str) {
        let pods = vec![
            pod("old", "web", &[]),
            pod("new", "web", &["a"]),
            pod("two", "db", &["a", "b"]),
            pod("e", "e", &[]),
        ];
        let found = choose(pods, "prod", name, container);
        assert_eq!(found.map_or_else(|error| error, |place| place.id.to_string()), expect);
    }

    #[test]
    fn container_is_found_by_its_names() {
        check("web", None, "new/a#3");
        check("web", Some("a"), "new/a#3");
        check("db", Some("b"), "two/b#3");
    }

    #[test]
    fn missing_container_names_those_that_run() {
        check("none", None, "pods \"none\" not found in namespace \"prod\" on this node");
        check("db", None, "pod prod/db has several containers, choose one with -c: a, b");
        check("db", Some("c"), "container \"c\" of pod prod/db does not run here; running: a, b");
        check("e", Some("a"), "container \"a\" of pod prod/e does not run here; running: none");
        check("e", None, "no container of pod prod/e runs");
    }
}
