//! Each check, the policy of labels, and what is forbidden or remarked on.

use std::sync::Arc;

use serde_json::json;

use super::policy::{label_errors, read_version};
use super::*;

/// The pods of a namespace.
struct Pods(Vec<Arc<Object>>);

impl Objects for Pods {
    fn get(&self, _: &'static Kind, _: &str, _: &str) -> Option<Arc<Object>> {
        None
    }

    fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
        self.0.clone()
    }
}

/// A pod that breaks nothing.
fn good() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "a", "image": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}]}})
}

fn judged(rule: &str, pod: &Value) -> String {
    let (level, version) = rule.split_once(':').unwrap();
    let rule = Rule { level: Level::read(level).unwrap(), minor: read_version(version).unwrap() };
    let found = rule.judge(&pod["metadata"]["annotations"], &pod["spec"]).unwrap_or_default();
    found.replace(&format!("violate PodSecurity \"{}\": ", rule.shown()), "")
}

#[track_caller]
fn check(rule: &str, change: impl Fn(&mut Value), expect: &str) {
    let mut pod = good();
    change(&mut pod);
    assert_eq!(judged(rule, &pod), expect, "{rule}");
}

/// Changes the first container.
fn container(field: &'static str, value: Value) -> impl Fn(&mut Value) {
    move |pod| pod["spec"]["containers"][0][field] = value.clone()
}

/// Changes the security context of the pod, and of its container.
fn context(of_pod: bool, field: &'static str, value: Value) -> impl Fn(&mut Value) {
    move |pod| {
        let holder = if of_pod { &mut pod["spec"] } else { &mut pod["spec"]["containers"][0] };
        holder["securityContext"][field] = value.clone();
    }
}

#[test]
fn each_check_of_baseline_has_upstreams_words() {
    let latest = "baseline:latest";
    check(latest, |_| {}, "");
    let profile = |sort: &str| json!({"type": sort});
    check(
        latest,
        context(true, "appArmorProfile", profile("Unconfined")),
        r#"forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")"#,
    );
    check(latest, context(true, "appArmorProfile", profile("Localhost")), "");
    check(
        latest,
        |pod| {
            pod["metadata"]["annotations"] =
                json!({"container.apparmor.security.beta.kubernetes.io/a": "unconfined"})
        },
        r#"forbidden AppArmor profile (annotation must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/a="unconfined"")"#,
    );
    check(
        latest,
        context(false, "capabilities", json!({"add": ["NET_RAW", "CHOWN", "BPF"]})),
        r#"non-default capabilities (container "a" must not include "BPF", "NET_RAW" in securityContext.capabilities.add)"#,
    );
    check(
        latest,
        |pod| {
            pod["spec"]["hostNetwork"] = true.into();
            pod["spec"]["hostIPC"] = true.into();
        },
        "host namespaces (hostNetwork=true, hostIPC=true)",
    );
    let paths = json!([{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]);
    check(latest, |pod| pod["spec"]["volumes"] = paths.clone(), r#"hostPath volumes (volumes "v", "w")"#);
    check(
        latest,
        container("ports", json!([{"hostPort": 80}, {"hostPort": 8080}, {"containerPort": 9}])),
        r#"hostPort (container "a" uses hostPorts 80, 8080)"#,
    );
    let probe = json!({"httpGet": {"host": "10.0.0.1", "port": 1}});
    let hosts = r#"probe or lifecycle host (container "a" uses probe or lifecycle host "10.0.0.1")"#;
    check(latest, container("livenessProbe", probe.clone()), hosts);
    check(latest, container("lifecycle", json!({"preStop": probe})), hosts);
    check("baseline:v1.33", container("livenessProbe", json!({"tcpSocket": {"host": "h"}})), "");
    check(
        latest,
        context(false, "privileged", json!(true)),
        r#"privileged (container "a" must not set securityContext.privileged=true)"#,
    );
    let unmasked = r#"procMount (container "a" must not set securityContext.procMount to "Unmasked")"#;
    check(latest, context(false, "procMount", json!("Unmasked")), unmasked);
    let with_own_users = |pod: &mut Value| {
        pod["spec"]["hostUsers"] = false.into();
        pod["spec"]["containers"][0]["securityContext"]["procMount"] = "Unmasked".into();
    };
    check(latest, with_own_users, "");
    check("baseline:v1.34", with_own_users, unmasked);
    check("restricted:latest", with_own_users, unmasked);
    check(
        latest,
        context(true, "seLinuxOptions", json!({"type": "spc_t", "user": "u", "role": "r"})),
        r#"seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set; role may not be set)"#,
    );
    let engine = json!({"type": "container_engine_t"});
    check(latest, context(true, "seLinuxOptions", engine.clone()), "");
    check(
        "baseline:v1.30",
        context(false, "seLinuxOptions", engine),
        r#"seLinuxOptions (container "a" set forbidden securityContext.seLinuxOptions: type "container_engine_t")"#,
    );
    check(
        latest,
        |pod| {
            context(true, "seccompProfile", profile("Unconfined"))(pod);
            context(false, "seccompProfile", profile("Unconfined"))(pod);
        },
        r#"seccompProfile (pod and container "a" must not set securityContext.seccompProfile.type to "Unconfined")"#,
    );
    check(
        "baseline:v1.18",
        |pod| {
            pod["metadata"]["annotations"] = json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"})
        },
        r#"seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")"#,
    );
    let some = json!([{"name": "net.ipv4.tcp_rmem"}, {"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_syncookies"}]);
    check(latest, context(true, "sysctls", some.clone()), "forbidden sysctls (kernel.msgmax)");
    let earlier = "forbidden sysctls (net.ipv4.tcp_rmem, kernel.msgmax)";
    check("baseline:v1.31", context(true, "sysctls", some), earlier);
    check(
        latest,
        context(false, "windowsOptions", json!({"hostProcess": true})),
        r#"hostProcess (container "a" must not set securityContext.windowsOptions.hostProcess=true)"#,
    );
}

#[test]
fn each_check_of_restricted_has_upstreams_words() {
    let latest = "restricted:latest";
    check(latest, |_| {}, "");
    let escalation = r#"allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false)"#;
    check(latest, context(false, "allowPrivilegeEscalation", Value::Null), escalation);
    check("restricted:v1.7", context(false, "allowPrivilegeEscalation", json!(true)), "");
    check(
        latest,
        context(false, "capabilities", json!({"add": ["CHOWN"]})),
        r#"unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]; container "a" must not include "CHOWN" in securityContext.capabilities.add)"#,
    );
    check("restricted:v1.21", context(false, "capabilities", json!({"add": ["CHOWN"]})), "");
    let sorts = json!([{"name": "v", "hostPath": {}}, {"name": "w", "nfs": {}}, {"name": "x", "image": {}}]);
    check(
        latest,
        |pod| pod["spec"]["volumes"] = sorts.clone(),
        r#"restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "nfs")"#,
    );
    check(
        latest,
        context(true, "runAsNonRoot", Value::Null),
        r#"runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true)"#,
    );
    check(
        latest,
        context(false, "runAsNonRoot", json!(false)),
        r#"runAsNonRoot != true (container "a" must not set securityContext.runAsNonRoot=false)"#,
    );
    check(latest, context(true, "runAsUser", json!(0)), "runAsUser=0 (pod must not set runAsUser=0)");
    check("restricted:v1.22", context(true, "runAsUser", json!(0)), "");
    check(
        latest,
        context(true, "seccompProfile", Value::Null),
        r#"seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#,
    );
    check("restricted:v1.18", context(true, "seccompProfile", Value::Null), "");
    // rules that do not apply to Windows
    let on_windows = |pod: &mut Value| {
        pod["spec"]["os"] = json!({"name": "windows"});
        pod["spec"]["containers"][0]["securityContext"] = json!({});
        pod["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    };
    check(latest, on_windows, "");
}

/// Checks of `baseline` come first, each sort by name; every container counts.
#[test]
fn plain_pod_breaks_restricted_in_upstreams_order() {
    let pod = json!({"metadata": {}, "spec": {"hostNetwork": true, "securityContext": {},
        "initContainers": [{"name": "i"}], "containers": [{"name": "c", "securityContext": {"privileged": true}}]}});
    let expect = r#"host namespaces (hostNetwork=true), privileged (container "c" must not set securityContext.privileged=true), allowPrivilegeEscalation != false (containers "i", "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (containers "i", "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or containers "i", "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or containers "i", "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#;
    assert_eq!(judged("restricted:latest", &pod), expect);
    assert_eq!(judged("privileged:latest", &pod), "");
}

#[test]
fn long_lists_are_cut() {
    let containers: Vec<Value> = (0..1000).map(|number| json!({"name": format!("c{number}")})).collect();
    let pod = json!({"metadata": {}, "spec": {"securityContext": {}, "containers": containers}});
    assert!(judged("restricted:latest", &pod).len() < 4096);
}

#[test]
fn labels_make_the_policy() {
    let check = |labels: Value, enforce: &str, audit: &str, warn: &str, errors: usize| {
        let mut all = json!({});
        for (label, value) in labels.as_object().unwrap() {
            all[format!("{PREFIX}{label}")] = value.clone();
        }
        let (policy, found) = Policy::of(&json!({"metadata": {"labels": all}}));
        let shown = [policy.enforce, policy.audit, policy.warn].map(Rule::shown);
        assert_eq!((shown, found.len()), ([enforce, audit, warn].map(str::to_owned), errors), "{labels}");
    };
    let none = "privileged:latest";
    check(json!({}), none, none, none, 0);
    check(json!({"audit": "baseline"}), none, "baseline:latest", none, 0);
    check(json!({"enforce": "baseline"}), "baseline:latest", none, "baseline:latest", 0);
    let versioned = json!({"enforce": "baseline", "enforce-version": "v1.25"});
    check(versioned, "baseline:v1.25", none, "baseline:v1.25", 0);
    let own = json!({"enforce": "restricted", "warn": "privileged"});
    check(own, "restricted:latest", none, none, 0);
    check(json!({"enforce": "x"}), "restricted:latest", none, none, 1);
    check(json!({"warn": "x", "audit": "", "warn-version": "v2.0"}), none, none, none, 3);
    for bad in ["", "1.2", "v1", "v1.", "v1.02", "v1.x", "v1.+1", "Latest"] {
        assert_eq!(read_version(bad), None, "{bad}");
    }
    assert_eq!(read_version("v1.0"), Some(Some(0)));
    assert_eq!(read_version("v1.99999999999"), Some(Some(u32::MAX)));
}

#[test]
fn bad_label_is_refused_once() {
    let with = |level: &str| json!({"metadata": {"labels": {format!("{PREFIX}enforce"): level, "a": "b"}}});
    let texts = |new: &Value, old: Option<&Value>| label_errors(new, old).len();
    assert_eq!((texts(&with("x"), None), texts(&with("baseline"), None)), (1, 0));
    assert_eq!(texts(&with("x"), Some(&with("baseline"))), 1);
    assert_eq!(texts(&with("x"), Some(&with("x"))), 0, "a namespace that has it can be changed otherwise");
    assert_eq!(texts(&with("y"), Some(&with("x"))), 1);
}

#[test]
fn raised_level_names_the_pods_that_break_it() {
    let with = |labels: Value| json!({"metadata": {"name": "n", "labels": labels}});
    let enforce = |level: &str| with(json!({format!("{PREFIX}enforce"): level}));
    let pod = |index: usize, set: Option<&str>| {
        let mut pod = json!({"metadata": {"namespace": "n", "name": format!("p{index:04}")}, "spec": {
            "hostNetwork": index % 2 == 1, "containers": [{"name": "c"}]}});
        if let Some(uid) = set {
            pod["metadata"]["ownerReferences"] = json!([{"uid": uid, "controller": true}]);
        }
        Arc::new(Object::new(&POD, &pod, 1).unwrap())
    };
    let few = Pods((0..4).map(|index| pod(index, None)).collect());
    let heading = |level: &str| {
        format!(
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"{level}:latest\""
        )
    };
    let raise = |pods: &Pods, old: &Value, new: &str| raised(pods, old, &enforce(new));
    let expect = [heading("baseline"), "p0001 (and 1 other pod): host namespaces".to_owned()];
    assert_eq!(raise(&few, &with(json!({})), "baseline"), expect);
    assert_eq!(raise(&few, &enforce("baseline"), "restricted").len(), 3);
    for (old, new) in [("restricted", "baseline"), ("baseline", "baseline"), ("baseline", "privileged")] {
        assert_eq!(raise(&few, &enforce(old), new), Vec::<String>::new(), "{old} {new}");
    }
    // one of each controller is judged, however many pods the first has
    let mut many: Vec<_> = (0..600).map(|index| pod(index * 2, Some("large"))).collect();
    many.push(pod(1999, Some("small")));
    let expect = [
        "new PodSecurity enforce level only checked against the first 500 of 601 existing pods".to_owned(),
        heading("baseline"),
        "p1999: host namespaces".to_owned(),
    ];
    assert_eq!(raise(&Pods(many), &with(json!({})), "baseline"), expect);
}
