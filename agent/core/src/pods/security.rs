//! `securityContext` of a pod and its containers, put together: as whom a container runs, with which groups and rights.
//!
//! Always holds: what the container says counts before what the pod says, field by field, as upstream; a capability that Linux does not
//! have is refused before anything runs. Leaves to others: users of the image (`workloads::users`), what the kernel is told
//! (`workloads::spec`), which fields are served (`table`).

use crate::pods::event::Security;
use crate::pods::spec::{Container, ContainerSecurity, Pod, PodSecurity, PodSpec, SeccompProfile};
use std::collections::BTreeSet;

/// Highest ID of a user or group: upstream's.
const MAX_ID: u32 = 0x7fff_ffff;
/// Most supplemental groups of a pod: the kernel takes 65536, and each container's configuration has them.
const MOST_GROUPS: usize = 1024;
/// Those of Linux 5.9 and later, without `CAP_`.
pub(crate) const CAPABILITIES: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];
/// What containerd leaves to a container that says nothing.
const USUAL: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const ALL: &str = "ALL";

/// What is wrong with the contexts of this spec.
pub(crate) fn complaint(spec: &PodSpec) -> Option<String> {
    let PodSecurity { run_as_user, run_as_group, fs_group, supplemental_groups, .. } = &spec.security_context;
    let ids = run_as_user.iter().chain(run_as_group).chain(fs_group).chain(supplemental_groups);
    let own = |container: &Container| {
        let ContainerSecurity { run_as_user, run_as_group, .. } = &container.security_context;
        [*run_as_user, *run_as_group]
    };
    let of_containers = spec.all_containers().flat_map(own).flatten();
    if let Some(id) = ids.copied().chain(of_containers).find(|id| *id > MAX_ID) {
        return Some(format!("a securityContext has the ID {id}, expected at most {MAX_ID}"));
    }
    if supplemental_groups.len() > MOST_GROUPS {
        let count = supplemental_groups.len();
        return Some(format!("the pod has {count} supplementalGroups, expected at most {MOST_GROUPS}"));
    }
    spec.all_containers().find_map(|container| {
        let named = &container.security_context.capabilities;
        let is_known = |name: &&String| {
            let name = plain(name);
            name == ALL || CAPABILITIES.contains(&name)
        };
        let unknown = named.add.iter().chain(&named.drop).find(|name| !is_known(name))?;
        let unknown = kedge_api::excerpt(unknown);
        Some(format!("container {}: {unknown:?} is no capability", container.name))
    })
}

/// `CAP_` is not upstream's spelling, but is taken.
fn plain(name: &str) -> &str {
    name.strip_prefix("CAP_").unwrap_or(name)
}

/// How a container runs.
pub(crate) fn of(pod: &Pod, container: &Container) -> Security {
    let (whole, own) = (&pod.spec.security_context, &container.security_context);
    let seccomp = own.seccomp_profile.as_ref().or(whole.seccomp_profile.as_ref());
    let mut groups = whole.supplemental_groups.clone();
    groups.extend(whole.fs_group);
    Security {
        user: own.run_as_user.or(whole.run_as_user),
        group: own.run_as_group.or(whole.run_as_group),
        groups,
        without_groups_of_image: whole.supplemental_groups_policy == "Strict",
        must_not_be_root: own.run_as_non_root.or(whole.run_as_non_root).unwrap_or(false),
        capabilities: capabilities(own),
        read_only_root: own.read_only_root_filesystem,
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        filters_calls: seccomp.is_some_and(|SeccompProfile { kind }| kind == "RuntimeDefault"),
    }
}

/// In containerd's order: all or what is usual or nothing, then what is added, then what is dropped.
fn capabilities(own: &ContainerSecurity) -> Vec<String> {
    let has = |list: &[String], name: &str| list.iter().any(|other| plain(other) == name);
    let (add, drop) = (&own.capabilities.add, &own.capabilities.drop);
    let mut left: BTreeSet<&str> = match (has(add, ALL), has(drop, ALL)) {
        (true, _) => CAPABILITIES.into_iter().collect(),
        (false, true) => BTreeSet::new(),
        (false, false) => USUAL.into_iter().collect(),
    };
    left.extend(add.iter().map(|name| plain(name)).filter(|name| *name != ALL));
    left.retain(|name| !has(drop, name));
    left.into_iter().map(|name| format!("CAP_{name}")).collect()
}

/// The user that all containers run as, if the pod says so: the owner of its tokens, as upstream.
pub(crate) fn user_of_all(pod: &Pod) -> Option<u32> {
    let whole = pod.spec.security_context.run_as_user;
    let mut users =
        pod.spec.all_containers().map(|container| container.security_context.run_as_user.or(whole));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(whole: Value, own: Value) -> Pod {
        Pod::read(&json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {
            "securityContext": whole, "containers": [{"name": "a", "securityContext": own}, {"name": "b"}]}}))
        .unwrap()
    }

    fn security(whole: Value, own: Value) -> Security {
        let pod = pod(whole, own);
        of(&pod, &pod.spec.containers[0])
    }

    #[test]
    fn container_counts_before_the_pod() {
        let found = security(
            json!({"runAsUser": 1, "runAsGroup": 2, "runAsNonRoot": true, "fsGroup": 3, "supplementalGroups": [4],
                "supplementalGroupsPolicy": "Strict", "seccompProfile": {"type": "RuntimeDefault"}}),
            json!({"runAsUser": 5, "runAsNonRoot": false, "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true, "seccompProfile": {"type": "Unconfined"}}),
        );
        let expect = Security {
            user: Some(5),
            group: Some(2),
            groups: vec![4, 3],
            without_groups_of_image: true,
            must_not_be_root: false,
            capabilities: found.capabilities.clone(),
            read_only_root: true,
            no_new_privileges: true,
            filters_calls: false,
        };
        assert_eq!(found, expect);
        let plain = security(json!({}), json!({}));
        assert!(!plain.no_new_privileges && !plain.filters_calls && plain.user.is_none(), "{plain:?}");
        assert!(security(json!({"seccompProfile": {"type": "RuntimeDefault"}}), json!({})).filters_calls);
    }

    #[test]
    fn capabilities_are_added_and_dropped_as_by_containerd() {
        let of = |own: Value| security(json!({}), json!({"capabilities": own})).capabilities;
        let count = |own: Value| of(own).len();
        assert_eq!(count(json!({})), 14);
        assert_eq!(count(json!({"add": ["NET_ADMIN", "CHOWN"]})), 15);
        assert_eq!(count(json!({"drop": ["NET_RAW"]})), 13);
        assert_eq!(of(json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]})), ["CAP_NET_BIND_SERVICE"]);
        assert_eq!(count(json!({"drop": ["ALL"]})), 0);
        assert_eq!(count(json!({"add": ["ALL"]})), 41);
        assert_eq!(count(json!({"add": ["ALL"], "drop": ["SYS_ADMIN"]})), 40);
    }

    #[test]
    fn impossible_ids_and_capabilities_are_refused() {
        let check = |whole: Value, own: Value, expect: Option<&str>| {
            let found = complaint(&pod(whole, own).spec);
            assert_eq!(found.is_some(), expect.is_some(), "{found:?}");
            assert!(found.zip(expect).is_none_or(|(found, expect)| found.contains(expect)));
        };
        check(json!({"runAsUser": MAX_ID}), json!({"capabilities": {"add": ["CAP_KILL", "ALL"]}}), None);
        check(json!({"fsGroup": 2_147_483_648_u32}), json!({}), Some("2147483648"));
        check(json!({}), json!({"runAsUser": 4_000_000_000_u32}), Some("4000000000"));
        check(json!({}), json!({"capabilities": {"drop": ["all"]}}), Some("\"all\" is no capability"));
        check(json!({"supplementalGroups": vec![1; 1025]}), json!({}), Some("1025"));
    }

    #[test]
    fn tokens_belong_to_the_user_of_all_containers() {
        assert_eq!(user_of_all(&pod(json!({"runAsUser": 7}), json!({}))), Some(7));
        assert_eq!(user_of_all(&pod(json!({"runAsUser": 7}), json!({"runAsUser": 8}))), None);
        assert_eq!(user_of_all(&pod(json!({}), json!({"runAsUser": 8}))), None);
    }
}
