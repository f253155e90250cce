//! Security contexts of pods and containers, and sysctls.
//!
//! Leaves to others: the limits of a node, which may refuse to run a valid context.

use std::collections::BTreeSet;

use kedge_api::pod_numbers::IDS;
use serde_json::Value;

use super::super::rules::{self, Errors, list};
use crate::field_error::FieldError;
use crate::value::text;

/// Longest name of a sysctl.
const SYSCTL_BYTES: usize = 253;
const SYSCTL_FORM: &str = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
/// Longest path on a node, without the terminating zero.
const PROFILE_BYTES: usize = 4095;
/// Sysctls of the network namespace, by their beginnings.
const OF_NETWORK: [&str; 1] = ["net."];
/// Sysctls of the IPC namespace, by their beginnings.
const OF_IPC: [&str; 4] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// The context of a pod.
pub(super) fn validate_pod(spec: &Value, path: &str, errors: &mut Errors) {
    let context = &spec["securityContext"];
    let path = format!("{path}.securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        rules::between(&context[field], IDS, &format!("{path}.{field}"), errors);
    }
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        rules::between(group, IDS, &format!("{path}.supplementalGroups[{index}]"), errors);
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(format!("{path}.shareProcessNamespace"), true, why));
    }
    validate_sysctls(spec, &format!("{path}.sysctls"), errors);
    for (field, allowed) in [
        ("fsGroupChangePolicy", ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", ["Merge", "Strict"]),
        ("seLinuxChangePolicy", ["MountOption", "Recursive"]),
    ] {
        rules::optional_one_of(context, field, &allowed, &path, errors);
    }
    validate_profiles(context, &path, errors);
}

/// The context of a container; `host_users` unless the pod has a user namespace of its own.
pub(super) fn validate_container(context: &Value, host_users: bool, path: &str, errors: &mut Errors) {
    for field in ["runAsUser", "runAsGroup"] {
        rules::between(&context[field], IDS, &format!("{path}.{field}"), errors);
    }
    rules::optional_one_of(context, "procMount", &["Default", "Unmasked"], path, errors);
    if host_users && context["procMount"] == "Unmasked" {
        let why = "`hostUsers` must be false to use `Unmasked`";
        errors.push(FieldError::invalid(format!("{path}.procMount"), "Unmasked", why));
    }
    if context["allowPrivilegeEscalation"] == false {
        let why = "cannot set `allowPrivilegeEscalation` to false and";
        if context["privileged"] == true {
            let why = format!("{why} `privileged` to true");
            errors.push(FieldError::invalid(path, context.clone(), &why));
        }
        let added = context.get("capabilities").map_or(&[][..], |capabilities| list(capabilities, "add"));
        if added.iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            let why = format!("{why} `capabilities.Add` CAP_SYS_ADMIN");
            errors.push(FieldError::invalid(path, context.clone(), &why));
        }
    }
    validate_profiles(context, path, errors);
}

/// Profiles of seccomp and AppArmor.
fn validate_profiles(context: &Value, path: &str, errors: &mut Errors) {
    for (field, called) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        let Some(profile) = context.get(field) else { continue };
        let path = format!("{path}.{field}");
        let sort = text(profile, &["type"]);
        if sort.is_empty() {
            let why = format!("type is required when {field} is set");
            errors.push(FieldError::required(format!("{path}.type"), &why));
        }
        rules::optional_one_of(
            profile,
            "type",
            &["Localhost", "RuntimeDefault", "Unconfined"],
            &path,
            errors,
        );
        let path = format!("{path}.localhostProfile");
        match (sort, profile.get("localhostProfile").and_then(Value::as_str)) {
            ("Localhost", None) => {
                let why = format!("must be set when {called} type is Localhost");
                errors.push(FieldError::required(path, &why));
            }
            ("Localhost", Some(profile)) if called == "seccomp" => {
                rules::descending_path(profile, &path, errors);
            }
            ("Localhost", Some(profile)) => validate_app_armor(profile, path, errors),
            (_, Some(profile)) => {
                let why = format!("can only be set when {called} type is Localhost");
                errors.push(FieldError::invalid(path, profile, &why));
            }
            _ => {}
        }
    }
}

fn validate_app_armor(profile: &str, path: String, errors: &mut Errors) {
    if profile.trim() != profile {
        errors.push(FieldError::invalid(path, profile, "must not be padded with whitespace"));
    } else if profile.is_empty() {
        errors.push(FieldError::required(path, "must be set when AppArmor type is Localhost"));
    } else if profile.len() > PROFILE_BYTES {
        errors.push(FieldError::too_long(path, PROFILE_BYTES));
    }
}

fn is_sysctl(name: &str) -> bool {
    let end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let segment = |segment: &str| {
        let bytes = segment.as_bytes();
        bytes.first().is_some_and(|byte| end(*byte))
            && bytes.last().is_some_and(|byte| end(*byte))
            && bytes.iter().all(|byte| end(*byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= SYSCTL_BYTES && name.split(['.', '/']).all(segment)
}

fn validate_sysctls(spec: &Value, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in list(&spec["securityContext"], "sysctls").iter().enumerate() {
        let path = format!("{path}[{index}].name");
        let name = text(sysctl, &["name"]);
        let before = errors.len();
        if name.is_empty() {
            errors.push(FieldError::required(path.as_str(), ""));
        } else if !is_sysctl(name) {
            errors.push(FieldError::invalid(path.as_str(), name, SYSCTL_FORM));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(path.as_str(), name));
        }
        let dotted = name.replace('/', ".");
        for (field, of_host) in [("hostNetwork", &OF_NETWORK[..]), ("hostIPC", &OF_IPC[..])] {
            let shared = of_host.iter().any(|start| dotted.starts_with(start));
            if errors.len() == before && spec[field] == true && shared {
                let why = format!("may not be specified when '{field}' is true");
                errors.push(FieldError::invalid(path.as_str(), name, &why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(of_pod: bool, value: Value, expect: &[&str]) {
        let mut errors = Errors::default();
        match of_pod {
            true => validate_pod(&value, "spec", &mut errors),
            false => validate_container(&value, true, "c", &mut errors),
        }
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn ids_are_those_of_users() {
        let range = "must be between 0 and 2147483647, inclusive";
        check(false, json!({"runAsUser": 0, "runAsGroup": 2147483647}), &[]);
        check(false, json!({"runAsUser": -1}), &[&format!("c.runAsUser: Invalid value: -1: {range}")]);
        check(
            true,
            json!({"securityContext": {"fsGroup": -1, "supplementalGroups": [1, 2147483648_i64]}}),
            &[
                &format!("spec.securityContext.fsGroup: Invalid value: -1: {range}"),
                &format!("spec.securityContext.supplementalGroups[1]: Invalid value: 2147483648: {range}"),
            ],
        );
    }

    #[test]
    fn privileged_container_cannot_be_kept_from_escalating() {
        check(false, json!({"privileged": true, "allowPrivilegeEscalation": true}), &[]);
        check(
            false,
            json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}, "privileged": true}),
            &[
                "c: Invalid value: {\"allowPrivilegeEscalation\":false,\"capabilities\":{\"add\":[\"CAP_SYS_ADMIN\"]},\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
                "c: Invalid value: {\"allowPrivilegeEscalation\":false,\"capabilities\":{\"add\":[\"CAP_SYS_ADMIN\"]},\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            ],
        );
        check(
            false,
            json!({"procMount": "Unmasked"}),
            &["c.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`"],
        );
    }

    #[test]
    fn profiles_name_a_file_only_if_local() {
        let seccomp = |profile: Value| json!({"seccompProfile": profile});
        check(false, seccomp(json!({"type": "Localhost", "localhostProfile": "a/b.json"})), &[]);
        check(
            false,
            seccomp(json!({"type": "Localhost"})),
            &[
                "c.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ],
        );
        check(
            false,
            seccomp(json!({"type": "Localhost", "localhostProfile": "/../x"})),
            &[
                "c.seccompProfile.localhostProfile: Invalid value: \"/../x\": must be a relative path",
                "c.seccompProfile.localhostProfile: Invalid value: \"/../x\": must not contain '..'",
            ],
        );
        check(
            false,
            json!({"appArmorProfile": {"type": "Unconfined", "localhostProfile": "x"}}),
            &[
                "c.appArmorProfile.localhostProfile: Invalid value: \"x\": can only be set when AppArmor type is Localhost",
            ],
        );
        check(
            false,
            seccomp(json!({})),
            &["c.seccompProfile.type: Required value: type is required when seccompProfile is set"],
        );
    }

    #[test]
    fn sysctls_have_names_and_their_own_namespace() {
        let of = |names: &[&str]| {
            let sysctls: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
            json!({"securityContext": {"sysctls": sysctls}})
        };
        let path = "spec.securityContext.sysctls";
        check(true, of(&["kernel.shmmax", "safe-and-unsafe", "net/ipv4/x"]), &[]);
        check(
            true,
            of(&["foo-", "bar..", "", "a", "a"]),
            &[
                &format!("{path}[0].name: Invalid value: \"foo-\": {SYSCTL_FORM}"),
                &format!("{path}[1].name: Invalid value: \"bar..\": {SYSCTL_FORM}"),
                &format!("{path}[2].name: Required value"),
                &format!("{path}[4].name: Duplicate value: \"a\""),
            ],
        );
        let mut shared = of(&["net.ipv4.x", "kernel.shmmax"]);
        shared["hostNetwork"] = true.into();
        check(
            true,
            shared,
            &[&format!(
                "{path}[0].name: Invalid value: \"net.ipv4.x\": may not be specified when 'hostNetwork' is true"
            )],
        );
    }
}
