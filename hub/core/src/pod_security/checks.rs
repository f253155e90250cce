//! The checks of the levels `baseline` and `restricted`, by the version of the policy.
//!
//! Reasons, details and their order are upstream's Pod Security Standards. Always holds: pure functions of a
//! pod's annotations and spec, in their defaulted form; a detail names at most [`NAMED`] items of each kind,
//! because it is sent back in an answer and a header. Left to others: which level applies (the module above).

use std::collections::BTreeSet;

use serde_json::Value;

use super::level::Level;
use crate::value::{at, text};

/// Most containers, volumes or values that a detail names; a pod has a thousand of each.
const NAMED: usize = 32;

/// A rule that a pod breaks, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) reason: String,
    pub(super) detail: String,
}

/// The parts of a pod that the checks read.
struct Pod<'a> {
    annotations: &'a Value,
    spec: &'a Value,
    /// Minor version of the policy.
    minor: u32,
}

type Check = fn(&Pod<'_>) -> Option<Violation>;

/// A check, and the minor version from which it applies.
struct Row {
    level: Level,
    since: u32,
    /// From this minor version on another check replaces it in the level `restricted`.
    replaced: Option<u32>,
    check: Check,
}

const fn baseline(since: u32, check: Check) -> Row {
    Row { level: Level::Baseline, since, replaced: None, check }
}

const fn replaced(replaced: u32, check: Check) -> Row {
    Row { level: Level::Baseline, since: 0, replaced: Some(replaced), check }
}

const fn restricted(since: u32, check: Check) -> Row {
    Row { level: Level::Restricted, since, replaced: None, check }
}

/// In the order of their names, which is that of the answer.
static CHECKS: [Row; 19] = [
    baseline(0, app_armor),
    replaced(22, capabilities_baseline),
    baseline(0, host_namespaces),
    replaced(0, host_paths),
    baseline(0, host_ports),
    baseline(34, probe_hosts),
    baseline(0, privileged),
    replaced(35, proc_mount_baseline),
    baseline(0, se_linux),
    replaced(19, seccomp_baseline),
    baseline(0, sysctls),
    baseline(0, windows_host_process),
    restricted(8, privilege_escalation),
    restricted(22, capabilities_restricted),
    restricted(35, proc_mount),
    restricted(0, volumes),
    restricted(0, run_as_non_root),
    restricted(23, run_as_user),
    restricted(19, seccomp_restricted),
];

/// The rules of a level that a pod breaks.
pub(super) fn violations(level: Level, minor: u32, annotations: &Value, spec: &Value) -> Vec<Violation> {
    let pod = Pod { annotations, spec, minor };
    let counts = |row: &&Row| {
        let is_replaced = level == Level::Restricted && row.replaced.is_some_and(|since| since <= minor);
        row.level <= level && row.since <= minor && !is_replaced
    };
    CHECKS.iter().filter(counts).filter_map(|row| (row.check)(&pod)).collect()
}

impl<'a> Pod<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| items(spec, &[list]).iter())
    }

    /// The names of the containers whose security context is bad.
    fn bad(&self, is_bad: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
        let bad = self.containers().filter(|container| is_bad(&container["securityContext"]));
        bad.map(|container| text(container, &["name"])).collect()
    }

    fn context(&self) -> &'a Value {
        &self.spec["securityContext"]
    }

    fn is_windows(&self) -> bool {
        self.minor >= 25 && text(self.spec, &["os", "name"]) == "windows"
    }

    /// The pod has a user namespace of its own, in which root is not the node's root.
    fn has_own_users(&self) -> bool {
        self.minor >= 35 && self.spec["hostUsers"] == false
    }

    /// The pod and containers that set a bad value at this path of their context, and those values.
    fn setters(&self, path: &[&str], is_bad: impl Fn(&Value) -> bool) -> (Vec<String>, BTreeSet<String>) {
        let bad = |context: &'a Value| at(context, path).filter(|value| is_bad(value));
        let mut setters: Vec<String> = bad(self.context()).map(|_| "pod".to_owned()).into_iter().collect();
        let names = self.bad(|context| bad(context).is_some());
        if !names.is_empty() {
            setters.push(named("container", &names));
        }
        let contexts = self.containers().map(|container| &container["securityContext"]);
        let values = contexts.chain([self.context()]).filter_map(bad);
        (
            setters,
            values.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).collect(),
        )
    }
}

fn items<'a>(of: &'a Value, path: &[&str]) -> &'a [Value] {
    at(of, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn violation(reason: impl Into<String>, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail })
}

fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> =
        items.into_iter().take(NAMED).map(|item| format!("\"{}\"", item.as_ref())).collect();
    items.join(", ")
}

/// `word "a"`, or `words "a", "b"`.
fn named(word: &str, names: &[&str]) -> String {
    format!("{} {}", plural(word, names.len()), quoted(names))
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

fn is_filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let is_bad = |profile: &Value| !matches!(profile.as_str(), Some("RuntimeDefault" | "Localhost"));
    let (mut setters, values) = pod.setters(&["appArmorProfile", "type"], is_bad);
    let mut values: Vec<String> = values.into_iter().collect();
    let annotations = pod.annotations.as_object().into_iter().flatten();
    let annotations = annotations.filter(|(key, value)| {
        let value = value.as_str().unwrap_or("");
        let is_allowed = matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
        key.starts_with("container.apparmor.security.beta.kubernetes.io/") && !is_allowed
    });
    let annotations: BTreeSet<String> = annotations.map(|(key, value)| format!("{key}={value}")).collect();
    if !annotations.is_empty() {
        setters.push(plural("annotation", annotations.len()));
        values.extend(annotations);
    }
    if setters.is_empty() {
        return None;
    }
    let detail =
        format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(&values));
    violation(plural("forbidden AppArmor profile", values.len()), detail)
}

/// Capabilities that a container of `baseline` may add.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// `containers "a" must not include "X" in securityContext.capabilities.add`, if some add capabilities
/// besides these.
fn added(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let others = |context: &Value| -> Vec<String> {
        let added = items(context, &["capabilities", "add"]).iter().filter_map(Value::as_str);
        added.filter(|one| !allowed.contains(one)).map(str::to_owned).collect()
    };
    let bad = pod.bad(|context| !others(context).is_empty());
    let all: BTreeSet<String> =
        pod.containers().flat_map(|container| others(&container["securityContext"])).collect();
    let containers = named("container", &bad);
    (!bad.is_empty()).then(|| {
        format!("{containers} must not include {} in securityContext.capabilities.add", quoted(&all))
    })
}

fn capabilities_baseline(pod: &Pod<'_>) -> Option<Violation> {
    violation("non-default capabilities", added(pod, &CAPABILITIES)?)
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let used = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.spec[*field] == true);
    let used: Vec<String> = used.map(|field| format!("{field}=true")).collect();
    (!used.is_empty()).then(|| violation("host namespaces", used.join(", "))).flatten()
}

fn host_paths(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = items(pod.spec, &["volumes"]).iter().filter(|volume| volume.get("hostPath").is_some());
    let names: Vec<&str> = volumes.map(|volume| text(volume, &["name"])).collect();
    (!names.is_empty()).then(|| violation("hostPath volumes", named("volume", &names))).flatten()
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let ports_of = |container: &Value| -> Vec<String> {
        let ports = items(container, &["ports"]).iter().filter_map(|port| port["hostPort"].as_u64());
        ports.filter(|port| *port != 0).map(|port| port.to_string()).collect()
    };
    let bad = pod.containers().filter(|container| !ports_of(container).is_empty());
    let names: Vec<&str> = bad.map(|container| text(container, &["name"])).collect();
    if names.is_empty() {
        return None;
    }
    let ports: BTreeSet<String> = pod.containers().flat_map(ports_of).collect();
    let word = plural("hostPort", ports.len());
    let ports: Vec<String> = ports.into_iter().take(NAMED).collect();
    let detail = format!("{} {} {word} {}", named("container", &names), uses(names.len()), ports.join(", "));
    violation("hostPort", detail)
}

fn probe_hosts(pod: &Pod<'_>) -> Option<Violation> {
    let hosts_of = |container: &Value| -> Vec<String> {
        let handlers = [
            at(container, &["livenessProbe"]),
            at(container, &["readinessProbe"]),
            at(container, &["startupProbe"]),
            at(container, &["lifecycle", "postStart"]),
            at(container, &["lifecycle", "preStop"]),
        ];
        let hosts = handlers.into_iter().flatten().flat_map(|handler| {
            ["httpGet", "tcpSocket"].map(|sort| text(handler, &[sort, "host"]).to_owned())
        });
        hosts.filter(|host| !host.is_empty()).collect()
    };
    let bad = pod.containers().filter(|container| !hosts_of(container).is_empty());
    let names: BTreeSet<&str> = bad.map(|container| text(container, &["name"])).collect();
    if names.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.into_iter().collect();
    let hosts: BTreeSet<String> = pod.containers().flat_map(hosts_of).collect();
    let detail = format!(
        "{} {} {} {}",
        named("container", &names),
        uses(names.len()),
        plural("probe or lifecycle host", hosts.len()),
        quoted(&hosts)
    );
    violation("probe or lifecycle host", detail)
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.bad(|context| context["privileged"] == true);
    let detail = format!("{} must not set securityContext.privileged=true", named("container", &bad));
    (!bad.is_empty()).then(|| violation("privileged", detail)).flatten()
}

fn proc_mount_baseline(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() { None } else { proc_mount(pod) }
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let other = |context: &'_ Value| {
        context["procMount"].as_str().filter(|mount| *mount != "Default").map(str::to_owned)
    };
    let bad = pod.bad(|context| other(context).is_some());
    let mounts: BTreeSet<String> =
        pod.containers().filter_map(|container| other(&container["securityContext"])).collect();
    let detail =
        format!("{} must not set securityContext.procMount to {}", named("container", &bad), quoted(&mounts));
    (!bad.is_empty()).then(|| violation("procMount", detail)).flatten()
}

fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    let bad_type = |options: &Value| {
        let found = text(options, &["type"]);
        let is_allowed = matches!(found, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || pod.minor >= 31 && found == "container_engine_t";
        (!is_allowed).then(|| found.to_owned())
    };
    let options_are_bad = |options: &Value| {
        bad_type(options).is_some() || is_filled(&options["user"]) || is_filled(&options["role"])
    };
    let (setters, _) = pod.setters(&["seLinuxOptions"], options_are_bad);
    if setters.is_empty() {
        return None;
    }
    let contexts = pod.containers().map(|container| &container["securityContext"]).chain([pod.context()]);
    let options: Vec<&Value> = contexts.filter_map(|context| context.get("seLinuxOptions")).collect();
    let types: BTreeSet<String> = options.iter().filter_map(|options| bad_type(options)).collect();
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
    }
    for field in ["user", "role"] {
        if options.iter().any(|options| is_filled(&options[field])) {
            data.push(format!("{field} may not be set"));
        }
    }
    let detail = format!(
        "{} set forbidden securityContext.seLinuxOptions: {}",
        setters.join(" and "),
        data.join("; ")
    );
    violation("seLinuxOptions", detail)
}

const SECCOMP: &[&str] = &["seccompProfile", "type"];

fn is_bad_seccomp(profile: &Value) -> bool {
    !matches!(profile.as_str(), Some("Localhost" | "RuntimeDefault"))
}

fn seccomp_baseline(pod: &Pod<'_>) -> Option<Violation> {
    if pod.minor < 19 {
        return seccomp_annotations(pod);
    }
    let (setters, values) = pod.setters(SECCOMP, is_bad_seccomp);
    let detail = || {
        let (setters, values) = (setters.join(" and "), quoted(&values));
        format!("{setters} must not set securityContext.seccompProfile.type to {values}")
    };
    (!setters.is_empty()).then(|| violation("seccompProfile", detail())).flatten()
}

/// The annotations used before there were fields for it.
fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let of_container =
        |container| format!("container.seccomp.security.alpha.kubernetes.io/{}", text(container, &["name"]));
    let keys = ["seccomp.security.alpha.kubernetes.io/pod".to_owned()];
    let keys = keys.into_iter().chain(pod.containers().map(of_container));
    let bad = keys.filter_map(|key| {
        let value = pod.annotations.get(&key)?.as_str()?;
        let is_allowed =
            matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
        (!is_allowed).then(|| format!("{key}={value:?}"))
    });
    let bad: BTreeSet<String> = bad.collect();
    let word = plural("annotation", bad.len());
    let shown: Vec<String> = bad.into_iter().take(NAMED).collect();
    let detail = format!("forbidden {word} {}", shown.join(", "));
    (!shown.is_empty()).then(|| violation("seccompProfile", detail)).flatten()
}

fn seccomp_restricted(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    if let Some(bad) = seccomp_baseline(pod) {
        return Some(bad);
    }
    if at(pod.context(), SECCOMP).is_some() {
        return None;
    }
    let bad = pod.bad(|context| at(context, SECCOMP).is_none());
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        named("container", &bad)
    );
    (!bad.is_empty()).then(|| violation("seccompProfile", detail)).flatten()
}

/// Safe sysctls, each with the minor version from which it is safe.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    let names = items(pod.context(), &["sysctls"]).iter().map(|sysctl| text(sysctl, &["name"]));
    let is_safe = |name: &str| SYSCTLS.iter().any(|(safe, since)| *safe == name && *since <= pod.minor);
    let bad: Vec<&str> = names.filter(|name| !is_safe(name)).take(NAMED).collect();
    (!bad.is_empty()).then(|| violation("forbidden sysctls", bad.join(", "))).flatten()
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let (setters, _) = pod.setters(&["windowsOptions", "hostProcess"], |value| *value == true);
    let detail =
        || format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and "));
    (!setters.is_empty()).then(|| violation("hostProcess", detail())).flatten()
}

fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.bad(|context| context["allowPrivilegeEscalation"] != false);
    let detail =
        || format!("{} must set securityContext.allowPrivilegeEscalation=false", named("container", &bad));
    let is_broken = !bad.is_empty() && !pod.is_windows();
    is_broken.then(|| violation("allowPrivilegeEscalation != false", detail())).flatten()
}

fn capabilities_restricted(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    let drops_all =
        |context: &Value| items(context, &["capabilities", "drop"]).iter().any(|one| one == "ALL");
    let keeping = pod.bad(|context| !drops_all(context));
    let kept =
        format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named("container", &keeping));
    let kept = (!keeping.is_empty()).then_some(kept);
    let details: Vec<String> = kept.into_iter().chain(added(pod, &["NET_BIND_SERVICE"])).collect();
    (!details.is_empty()).then(|| violation("unrestricted capabilities", details.join("; "))).flatten()
}

fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let sort_of = |volume: &Value| {
        let mut sources = volume.as_object().into_iter().flatten().map(|(key, _)| key.clone());
        sources.find(|key| key != "name").unwrap_or_else(|| "unknown".to_owned())
    };
    let bad = || items(pod.spec, &["volumes"]).iter().filter(|one| !ALLOWED.contains(&&*sort_of(one)));
    let names: Vec<&str> = bad().map(|volume| text(volume, &["name"])).collect();
    let sorts: BTreeSet<String> = bad().map(sort_of).collect();
    let detail = || {
        let (word, count) = (plural("restricted volume type", sorts.len()), names.len());
        format!("{} {} {word} {}", named("volume", &names), uses(count), quoted(&sorts))
    };
    (!names.is_empty()).then(|| violation("restricted volume types", detail())).flatten()
}

fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    let reason = "runAsNonRoot != true";
    let (setters, _) = pod.setters(&["runAsNonRoot"], |value| *value == false);
    if !setters.is_empty() {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", setters.join(" and "));
        return violation(reason, detail);
    }
    let bad = pod.bad(|context| !context["runAsNonRoot"].is_boolean());
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", named("container", &bad));
    (!bad.is_empty() && pod.context()["runAsNonRoot"] != true).then(|| violation(reason, detail)).flatten()
}

fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    let (setters, _) = pod.setters(&["runAsUser"], |user| *user == 0);
    let detail = || format!("{} must not set runAsUser=0", setters.join(" and "));
    (!setters.is_empty() && !pod.has_own_users()).then(|| violation("runAsUser=0", detail())).flatten()
}
