//! Which labels a node may set on its own Node object, after upstream's NodeRestriction and its kubelet.
//!
//! Owns that one rule: a hub refuses labels that break it, and an agent refuses to start with such a label in
//! `--node-labels`, because a server would refuse its Node for ever. Always holds: a node may set any label
//! outside Kubernetes' own domains. Leaves to others: the syntax of a label (`names`).

/// Labels in Kubernetes' own domains that a node may set on itself (upstream's kubelet labels).
pub const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Domains of further such labels, and of those below them.
pub const OWN_LABEL_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Kubernetes' own domains, and that of the labels by which rollouts choose nodes.
const RESERVED_DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "fleet.kedge.dev"];

/// Whether a node may set this label on itself: not `node-role.kubernetes.io/...`,
/// `node-restriction.kubernetes.io/...` or `fleet.kedge.dev/...`, because administrators choose nodes by
/// these.
#[must_use]
pub fn may_node_set(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| {
        domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
    };
    !RESERVED_DOMAINS.into_iter().any(within)
        || OWN_LABELS.contains(&key)
        || OWN_LABEL_DOMAINS.into_iter().any(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_domains_are_reserved_but_for_the_nodes_own() {
        for free in [
            "site",
            "example.com/role",
            "mykubernetes.io/x",
            "kubernetes.io/hostname",
            "node.kubernetes.io/x",
            "a.node.kubernetes.io/x",
            "kubelet.kubernetes.io/x",
        ] {
            assert!(may_node_set(free), "{free}");
        }
        for reserved in [
            "kubernetes.io/foo",
            "k8s.io/foo",
            "a.k8s.io/foo",
            "fleet.kedge.dev/group",
            "node-role.kubernetes.io/edge",
            "node-restriction.kubernetes.io/x",
            "beta.kubernetes.io/foo",
            "xkubelet.kubernetes.io/x",
        ] {
            assert!(!may_node_set(reserved), "{reserved}");
        }
    }
}
