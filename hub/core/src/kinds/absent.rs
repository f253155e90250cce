//! The kinds of Kubernetes that a hub does not serve, and the alternative to each.
//!
//! Always holds: none of them is served; a test compares them with the table of kinds. Left to others: paths
//! that Kubernetes does not have either.

/// Kinds of one API group, by their plurals, and what to do instead.
struct Absent {
    group: &'static str,
    plurals: &'static [&'static str],
    instead: &'static str,
}

const ON_EACH_NODE: &str =
    "use a DaemonSet, whose nodeSelector or affinity chooses the nodes, or a Pod with a nodeName";
const ONCE: &str = "nothing here starts pods at a time: use a Pod with restartPolicy Never or OnFailure";
const NO_NETWORK: &str =
    "nothing gives Services an address: reach a pod by a hostPort of its node, or by kubectl port-forward";
const NO_QUOTA: &str = "no namespace is limited: set resources in the pods";
const VOLUMES: &str = "this hub has no persistent volumes: use hostPath, emptyDir, or an image volume";
const NO_PLUGINS: &str = "the API has no extensions";

static ABSENT: &[Absent] = &[
    Absent { group: "", plurals: &["replicationcontrollers", "podtemplates"], instead: ON_EACH_NODE },
    Absent { group: "", plurals: &["resourcequotas", "limitranges"], instead: NO_QUOTA },
    Absent { group: "", plurals: &["persistentvolumes", "persistentvolumeclaims"], instead: VOLUMES },
    Absent { group: "", plurals: &["endpoints"], instead: NO_NETWORK },
    Absent { group: "", plurals: &["componentstatuses"], instead: "see /readyz?verbose of the hub" },
    Absent { group: "apps", plurals: &["deployments", "replicasets", "statefulsets"], instead: ON_EACH_NODE },
    Absent { group: "batch", plurals: &["jobs", "cronjobs"], instead: ONCE },
    Absent {
        group: "autoscaling",
        plurals: &["horizontalpodautoscalers"],
        instead: "a DaemonSet has one pod on each node that it chooses",
    },
    Absent { group: "networking.k8s.io", plurals: &["ingresses", "ingressclasses"], instead: NO_NETWORK },
    Absent {
        group: "networking.k8s.io",
        plurals: &["networkpolicies", "servicecidrs", "ipaddresses"],
        instead: "pods have their node's network rules: set these on the node",
    },
    Absent { group: "discovery.k8s.io", plurals: &["endpointslices"], instead: NO_NETWORK },
    Absent {
        group: "storage.k8s.io",
        plurals: &["storageclasses", "volumeattachments", "csidrivers", "csinodes", "csistoragecapacities"],
        instead: VOLUMES,
    },
    Absent {
        group: "resource.k8s.io",
        plurals: &["resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"],
        instead: "ask for a device by a limit such as kedge.dev/gps",
    },
    Absent {
        group: "admissionregistration.k8s.io",
        plurals: &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ],
        instead: NO_PLUGINS,
    },
    Absent { group: "apiextensions.k8s.io", plurals: &["customresourcedefinitions"], instead: NO_PLUGINS },
    Absent { group: "apiregistration.k8s.io", plurals: &["apiservices"], instead: NO_PLUGINS },
    Absent {
        group: "flowcontrol.apiserver.k8s.io",
        plurals: &["flowschemas", "prioritylevelconfigurations"],
        instead: "the limits of each caller are built in",
    },
];

/// The reason why a hub does not serve this kind, in any version of its group, and the alternative; `None` if
/// Kubernetes does not have it either.
pub fn absent(group: &str, plural: &str) -> Option<String> {
    let found = ABSENT.iter().find(|absent| absent.group == group && absent.plurals.contains(&plural))?;
    let dot = if group.is_empty() { "" } else { "." };
    Some(format!("{plural}{dot}{group} is not served: {}", found.instead))
}

#[cfg(test)]
mod tests {
    use super::super::served;
    use super::*;

    #[test]
    fn absent_kinds_are_named_with_their_substitute() {
        let check = |group: &str, plural: &str, expect: Option<&str>| {
            assert_eq!(absent(group, plural).as_deref(), expect, "{plural}.{group}");
        };
        check("apps", "deployments", Some(&format!("deployments.apps is not served: {ON_EACH_NODE}")));
        check("", "resourcequotas", Some(&format!("resourcequotas is not served: {NO_QUOTA}")));
        check("apps", "daemonsets", None);
        check("apps", "gadgets", None);
        check("extensions.example.com", "deployments", None);
    }

    #[test]
    fn absent_kinds_are_not_served() {
        for Absent { group, plurals, .. } in ABSENT {
            for plural in *plurals {
                let is_served = served().any(|kind| kind.group == *group && kind.plural == *plural);
                assert!(!is_served, "{plural}.{group}");
            }
        }
    }
}
