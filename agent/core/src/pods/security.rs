//! Merges the `securityContext` of a pod and its containers: the user a container runs as, its groups and its
//! permissions.
//!
//! Always holds: a container's field takes precedence over the pod's, field by field, as upstream; a
//! capability that Linux does not have is refused before any container runs. Leaves to others: users of the
//! image (`workloads::users`), the settings for the kernel (`workloads::spec`), which fields are served
//! (`table`).

use crate::pods::event::{NodeFacts, Seccomp, Security};
use crate::pods::resources;
use crate::pods::spec::{Container, ContainerSecurity, Pod, PodSecurity, PodSpec, Profile};
use crate::pods::volumes::has_way_up;
use crate::sorted::{SortedMap, SortedSet};
use std::collections::{BTreeMap, BTreeSet};

/// Highest ID of a user or group: upstream's.
const MAX_ID: u32 = 0x7fff_ffff;
/// Most supplemental groups of a pod: the kernel allows 65536, but each container's configuration has to list
/// them.
const MOST_GROUPS: usize = 1024;
/// The capabilities of Linux 5.9 and later, without `CAP_`.
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
/// The numbers of the capabilities above, in the same order.
const NUMBERS: [u8; 41] = [
    30, 37, 29, 36, 39, 40, 0, 1, 2, 3, 4, 14, 15, 5, 28, 9, 33, 32, 27, 12, 10, 11, 13, 38, 31, 6, 8, 7, 34,
    21, 22, 18, 16, 23, 20, 19, 17, 24, 25, 26, 35,
];
/// The capabilities that containerd gives to a container without settings of its own.
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
const RUNTIME_DEFAULT: &str = "RuntimeDefault";
const LOCALHOST: &str = "Localhost";
const UNCONFINED: &str = "Unconfined";
/// The profile used for AppArmor's `RuntimeDefault`, if it is loaded.
pub(crate) const APPARMOR_DEFAULT: &str = "kedge-default";
/// Most sysctls of a pod: upstream knows thirty that are namespaced.
const MOST_SYSCTLS: usize = 64;
/// Longest name of a sysctl: upstream's. A value is a line of numbers or words.
const SYSCTL_BYTES: usize = 253;
/// Longest name of a profile: the kernel's for AppArmor, a path's for a file.
const PROFILE_NAME_BYTES: usize = 4095;
/// Namespaces that a sysctl may belong to: upstream's names of them, and the prefixes of the sysctls' names.
const NET: &str = "Net";
const IPC: &str = "IPC";
const NAMESPACED: [(&str, &str); 5] =
    [("net.", NET), ("fs.mqueue.", IPC), ("kernel.msg", IPC), ("kernel.sem", IPC), ("kernel.shm", IPC)];
/// Sysctls that affect no other pod, whatever their value: upstream's list.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// The complaint about the security contexts of this spec.
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
    if let Some(complaint) = sysctls_complaint(spec).or_else(|| profiles_complaint(spec)) {
        return Some(complaint);
    }
    spec.all_containers().find_map(|container| {
        let own = &container.security_context;
        let named = &own.capabilities;
        // as upstream: with either of the two the field could have no effect
        if own.allow_privilege_escalation == Some(false) {
            let is_admin = named.add.iter().any(|name| matches!(plain(name), "SYS_ADMIN"));
            for what in [own.privileged.then_some("privileged"), is_admin.then_some("CAP_SYS_ADMIN")] {
                let Some(what) = what else { continue };
                return Some(format!(
                    "container {}: allowPrivilegeEscalation is false and it asks for {what}, expected one of the two",
                    container.name
                ));
            }
        }
        let is_known = |name: &&String| {
            let name = plain(name);
            name == ALL || CAPABILITIES.contains(&name)
        };
        let unknown = named.add.iter().chain(&named.drop).find(|name| !is_known(name))?;
        let unknown = kedge_api::excerpt(unknown);
        Some(format!("container {}: unknown capability {unknown:?}", container.name))
    })
}

fn sysctls_complaint(spec: &PodSpec) -> Option<String> {
    let sysctls = &spec.security_context.sysctls;
    if sysctls.len() > MOST_SYSCTLS {
        return Some(format!("the pod has {} sysctls, expected at most {MOST_SYSCTLS}", sysctls.len()));
    }
    let mut names = BTreeSet::new();
    sysctls.iter().find_map(|sysctl| {
        let (name, value) = (kedge_api::excerpt(&sysctl.name), &sysctl.value);
        if !is_sysctl_name(&sysctl.name) {
            return Some(format!("{name:?} is not the name of a sysctl"));
        }
        if value.len() > SYSCTL_BYTES || value.bytes().any(|byte| byte < b' ' && byte != b'\t') {
            return Some(format!(
                "the value of sysctl {name:?} is not one line of at most {SYSCTL_BYTES} bytes"
            ));
        }
        (!names.insert(normal(&sysctl.name))).then(|| format!("sysctl {name:?} is given twice"))
    })
}

/// Upstream's syntax, with dots or slashes between the parts.
fn is_sysctl_name(name: &str) -> bool {
    let is_edge =
        |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let fits = |part: &str| {
        let mut bytes = part.bytes();
        is_edge(part.bytes().next())
            && is_edge(part.bytes().next_back())
            && bytes.all(|byte| is_edge(Some(byte)) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= SYSCTL_BYTES && name.contains(['.', '/']) && name.split(['.', '/']).all(fits)
}

/// The name with dots, as upstream: if the first separator is a slash, dots belong to the name of an
/// interface.
fn normal(name: &str) -> String {
    if !name.find(['.', '/']).is_some_and(|at| name[at..].starts_with('/')) {
        return name.to_owned();
    }
    let swap = |character| match character {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

fn profiles_complaint(spec: &PodSpec) -> Option<String> {
    let own = |container: &'_ Container| {
        let ContainerSecurity { seccomp_profile, app_armor_profile, .. } = &container.security_context;
        [("seccompProfile", seccomp_profile.clone()), ("appArmorProfile", app_armor_profile.clone())]
    };
    let PodSecurity { seccomp_profile, app_armor_profile, .. } = &spec.security_context;
    let whole = [("seccompProfile", seccomp_profile.clone()), ("appArmorProfile", app_armor_profile.clone())];
    whole.into_iter().chain(spec.all_containers().flat_map(own)).find_map(|(field, profile)| {
        let profile = profile?;
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        let shown = kedge_api::excerpt(name);
        let is_file = field == "seccompProfile";
        let is_local = profile.kind == LOCALHOST;
        if is_local == name.is_empty() {
            let expected = if is_local { "one, of type Localhost" } else { "none but of type Localhost" };
            return Some(format!("{field}.localhostProfile is {shown:?}, expected {expected}"));
        }
        let leaves = is_file && (name.starts_with('/') || has_way_up(name));
        let is_text = !name.bytes().any(|byte| byte < b' ') && name.trim() == name;
        (leaves || !is_text || name.len() > PROFILE_NAME_BYTES).then(|| {
            let expected =
                if is_file { "a path below seccomp of the root directory" } else { "a profile's name" };
            format!("{field}.localhostProfile is {shown:?}, expected {expected}")
        })
    })
}

/// Why the sysctls of a pod are not set here, with upstream's text.
pub(crate) fn forbidden_sysctl(spec: &PodSpec, allowed: &[String]) -> Option<String> {
    spec.security_context.sysctls.iter().find_map(|sysctl| {
        let name = normal(&sysctl.name);
        let namespace = NAMESPACED.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, kind)| *kind);
        let is_named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => *pattern == name,
        };
        let is_allowed = SAFE_SYSCTLS.contains(&name.as_str()) || allowed.iter().any(is_named);
        let why = match namespace {
            Some(namespace) if is_allowed => {
                let is_host = if namespace == NET { spec.host_network } else { spec.host_ipc };
                is_host.then(|| format!("{name:?} not allowed with host {namespace} enabled"))?
            }
            _ => format!("{name:?} not allowlisted"),
        };
        Some(format!("forbidden sysctl: {why}"))
    })
}

/// Whether a container of the pod requests an AppArmor profile.
pub(crate) fn needs_apparmor(spec: &PodSpec) -> bool {
    let whole = spec.security_context.app_armor_profile.as_ref();
    spec.all_containers().any(|container| {
        let profile = container.security_context.app_armor_profile.as_ref().or(whole);
        profile.is_some_and(|profile| !matches!(profile.kind.as_str(), "" | UNCONFINED))
    })
}

/// Upstream writes no `CAP_` prefix, but it is accepted.
fn plain(name: &str) -> &str {
    name.strip_prefix("CAP_").unwrap_or(name)
}

/// The security settings of a container on this node. A privileged container has no profile and all
/// capabilities, whatever its other fields say, as with containerd.
pub(crate) fn of(pod: &Pod, container: &Container, node: &NodeFacts) -> Security {
    let (whole, own) = (&pod.spec.security_context, &container.security_context);
    let seccomp = own.seccomp_profile.as_ref().or(whole.seccomp_profile.as_ref());
    let apparmor = own.app_armor_profile.as_ref().or(whole.app_armor_profile.as_ref());
    let sysctls = whole.sysctls.iter().map(|sysctl| (normal(&sysctl.name), sysctl.value.clone()));
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
        is_privileged: own.privileged,
        seccomp: if own.privileged { Seccomp::Unconfined } else { seccomp_of(seccomp, node) },
        apparmor: apparmor.filter(|_| !own.privileged).and_then(apparmor_of),
        devices: devices(container, node),
        sysctls: sysctls.collect::<BTreeMap<_, _>>(),
    }
}

fn devices(container: &Container, node: &NodeFacts) -> SortedMap<String, Vec<String>> {
    let names = resources::devices_of(container).into_keys();
    let named = names.map(|name| (name.to_owned(), node.devices.get(name).cloned().unwrap_or_default()));
    named.collect()
}

fn seccomp_of(profile: Option<&Profile>, node: &NodeFacts) -> Seccomp {
    match profile.map(|profile| (profile.kind.as_str(), profile.localhost_profile.clone())) {
        Some((RUNTIME_DEFAULT, _)) => Seccomp::RuntimeDefault,
        Some((LOCALHOST, path)) => Seccomp::Localhost(path.unwrap_or_default()),
        None if node.filters_calls => Seccomp::RuntimeDefault,
        _ => Seccomp::Unconfined,
    }
}

fn apparmor_of(profile: &Profile) -> Option<String> {
    match profile.kind.as_str() {
        RUNTIME_DEFAULT => Some(APPARMOR_DEFAULT.to_owned()),
        LOCALHOST => profile.localhost_profile.clone(),
        _ => None,
    }
}

/// In containerd's order: first all, the usual ones or none, then the added ones, then the dropped ones. If
/// all are both added and dropped, they are dropped.
fn capabilities(own: &ContainerSecurity) -> Vec<String> {
    if own.privileged {
        return CAPABILITIES.iter().map(|name| format!("CAP_{name}")).collect();
    }
    let has = |list: &[String], name: &str| list.iter().any(|other| plain(other) == name);
    let (add, drop) = (&own.capabilities.add, &own.capabilities.drop);
    let mut left: SortedSet<&str> = match (has(add, ALL), has(drop, ALL)) {
        (_, true) => SortedSet::new(),
        (true, false) => CAPABILITIES.into_iter().collect(),
        (false, false) => USUAL.into_iter().collect(),
    };
    left.extend(add.iter().map(|name| plain(name)).filter(|name| *name != ALL));
    left.retain(|name| !has(drop, name));
    left.into_iter().map(|name| format!("CAP_{name}")).collect()
}

/// Those of the capabilities that a machine has; `lacking`: a bit for the number of each that it has not.
pub(crate) fn available(named: &[String], lacking: u64) -> Vec<&String> {
    let is_lacking = |name: &str| {
        let number = CAPABILITIES.iter().zip(NUMBERS).find(|(known, _)| **known == plain(name));
        number.is_some_and(|(_, number)| lacking & (1 << number) != 0)
    };
    named.iter().filter(|name| !is_lacking(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::spec::user_of_all;
    use serde_json::{Value, json};

    fn pod(whole: Value, own: Value) -> Pod {
        Pod::read(&json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {
            "securityContext": whole, "containers": [{"name": "a", "securityContext": own}, {"name": "b"}]}}))
        .unwrap()
    }

    fn security(whole: Value, own: Value) -> Security {
        let pod = pod(whole, own);
        of(&pod, &pod.spec.containers[0], &NodeFacts::default())
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
            ..Security::default()
        };
        assert_eq!(found, expect);
        let plain = security(json!({}), json!({}));
        assert_eq!(plain, Security { capabilities: plain.capabilities.clone(), ..Security::default() });
    }

    #[test]
    fn profiles_are_the_containers_or_the_pods() {
        let seccomp = |whole: Value, own: Value| {
            security(json!({"seccompProfile": whole}), json!({"seccompProfile": own})).seccomp
        };
        let (default, unconfined) = (json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}));
        let file = json!({"type": "Localhost", "localhostProfile": "a/b.json"});
        assert_eq!(seccomp(default.clone(), Value::Null), Seccomp::RuntimeDefault);
        assert_eq!(seccomp(default.clone(), file.clone()), Seccomp::Localhost("a/b.json".into()));
        assert_eq!(seccomp(file, unconfined.clone()), Seccomp::Unconfined);
        let by_node = |own: Value| {
            let pod = pod(json!({}), json!({"seccompProfile": own}));
            let node = NodeFacts { filters_calls: true, ..NodeFacts::default() };
            of(&pod, &pod.spec.containers[0], &node).seccomp
        };
        assert_eq!(
            (by_node(Value::Null), by_node(unconfined)),
            (Seccomp::RuntimeDefault, Seccomp::Unconfined)
        );
        let apparmor = |own: Value| security(json!({}), json!({"appArmorProfile": own})).apparmor;
        assert_eq!(apparmor(default.clone()).as_deref(), Some(APPARMOR_DEFAULT));
        assert_eq!(apparmor(json!({"type": "Localhost", "localhostProfile": "own"})).as_deref(), Some("own"));
        assert_eq!(apparmor(json!({"type": "Unconfined"})), None);
        let all = security(
            json!({}),
            json!({"privileged": true, "seccompProfile": default,
            "appArmorProfile": {"type": "RuntimeDefault"}, "capabilities": {"drop": ["ALL"]}}),
        );
        assert_eq!((all.is_privileged, all.seccomp, all.apparmor), (true, Seccomp::Unconfined, None));
        assert_eq!(all.capabilities.len(), CAPABILITIES.len());
    }

    #[test]
    fn sysctls_are_safe_or_allowed_by_the_node() {
        let check = |name: &str, more: Value, allowed: &[&str], expect: Option<&str>| {
            let mut spec = json!({"containers": [{"name": "a"}],
                "securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let pod =
                Pod::read(&json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}));
            let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
            let found = forbidden_sysctl(&pod.unwrap().spec, &allowed);
            let expect = expect.map(|why| format!("forbidden sysctl: {why}"));
            assert_eq!(found, expect, "{name}");
        };
        check("net.ipv4.tcp_syncookies", json!({}), &[], None);
        check("net/ipv4/tcp_syncookies", json!({}), &[], None);
        check("kernel.msgmax", json!({}), &[], Some("\"kernel.msgmax\" not allowlisted"));
        check("kernel.msgmax", json!({}), &["kernel.msg*"], None);
        check("net.core.somaxconn", json!({}), &["net.core.somaxconn"], None);
        check(
            "net.core.somaxconn",
            json!({}),
            &["net.core.somax"],
            Some("\"net.core.somaxconn\" not allowlisted"),
        );
        // these affect the whole machine, so the node's configuration cannot allow them
        check("kernel.core_pattern", json!({}), &["*"], Some("\"kernel.core_pattern\" not allowlisted"));
        check("vm.swappiness", json!({}), &["vm.*"], Some("\"vm.swappiness\" not allowlisted"));
        let host = "\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled";
        check("net.ipv4.tcp_syncookies", json!({"hostNetwork": true}), &[], Some(host));
        let host = "\"kernel.shm_rmid_forced\" not allowed with host IPC enabled";
        check("kernel.shm_rmid_forced", json!({"hostIPC": true}), &[], Some(host));
        check("kernel.shm_rmid_forced", json!({"hostNetwork": true}), &[], None);
        let found =
            security(json!({"sysctls": [{"name": "net/ipv4/conf/eth0.1/x", "value": "1"}]}), json!({}));
        assert_eq!(found.sysctls, BTreeMap::from([("net.ipv4.conf.eth0/1.x".to_owned(), "1".to_owned())]));
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
        assert_eq!(of(json!({"add": ["ALL", "CHOWN"], "drop": ["ALL"]})), ["CAP_CHOWN"], "as containerd");
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
        check(json!({}), json!({"capabilities": {"drop": ["all"]}}), Some("unknown capability \"all\""));
        check(json!({"supplementalGroups": vec![1; 1025]}), json!({}), Some("1025"));
        let escalates = |own: &str| json!({"allowPrivilegeEscalation": false, own: true});
        check(json!({}), escalates("privileged"), Some("asks for privileged"));
        let admin = json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]}});
        check(json!({}), admin, Some("CAP_SYS_ADMIN"));
        let sysctl = |name: &str, value: &str| json!({"sysctls": [{"name": name, "value": value}]});
        check(sysctl("net.ipv4.tcp_syncookies", "0\t1 2"), json!({}), None);
        check(sysctl("net.ipv4.tcp_syncookies", "1\n2"), json!({}), Some("not one line"));
        for name in ["", "net", "../net.x", "net..x", "net.X", "/net/x", "net.x-"] {
            check(sysctl(name, "1"), json!({}), Some("not the name of a sysctl"));
        }
        check(json!({"sysctls": [{"name": "a.b"}, {"name": "a/b"}]}), json!({}), Some("given twice"));
        let local = |name: Value| json!({"type": "Localhost", "localhostProfile": name});
        for (name, expect) in [
            (json!("a/b.json"), None),
            (Value::Null, Some("expected one")),
            (json!("../a"), Some("below seccomp")),
            (json!("/a"), Some("below seccomp")),
            (json!("a\n"), Some("below seccomp")),
        ] {
            check(json!({"seccompProfile": local(name)}), json!({}), expect);
        }
        check(json!({}), json!({"appArmorProfile": local(json!(" a"))}), Some("a profile's name"));
        let named = json!({"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"}});
        check(named, json!({}), Some("expected none"));
    }

    #[test]
    fn tokens_belong_to_the_user_of_all_containers() {
        assert_eq!(user_of_all(&pod(json!({"runAsUser": 7}), json!({}))), Some(7));
        assert_eq!(user_of_all(&pod(json!({"runAsUser": 7}), json!({"runAsUser": 8}))), None);
        assert_eq!(user_of_all(&pod(json!({}), json!({"runAsUser": 8}))), None);
    }
}
