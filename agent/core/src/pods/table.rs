//! The table of all fields of PodSpec: which are served, which are refused and why, which are ignored and
//! why.
//!
//! Always holds: each field of upstream's PodSpec has a row or is below a field with one, and fields below a
//! served one are read. Tests check them all. The same table is in docs/reference/pods.md. A field without a
//! row is refused by its name. Empty lists, objects and texts, zero and `false` count as absent unless a row
//! gives values, as in Go's encoding. Leaves to others: the meaning of served fields.

use serde_json::Value;

/// How a field is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// The field has its effect, and so have all fields below it that have no row.
    Served,
    /// Served with these values; refused with any other.
    Only(&'static [&'static str], &'static str),
    /// A pod with this field is not run.
    Refused(&'static str),
    /// The field is refused by a status of its own; the pod keeps running, because the field may be added
    /// when it has run for long.
    RefusedAlone(&'static str),
    /// It has no effect on a node, or none yet that a pod depends on.
    Ignored(&'static str),
    /// The rows below it decide.
    Below,
}

use Treatment::{Below, Ignored, Only, Refused, RefusedAlone, Served};

const NO_HOOK: &str = "upstream fails such a hook, too";
const SELINUX: &str =
    "without SELinux there is nothing to label, as with the kubelet; with it admission refuses the pod";
const WINDOWS: &str = "this node runs Linux";
const PROFILES: &str = "RuntimeDefault, Localhost or Unconfined";
const KINDS: &[&str] = &["RuntimeDefault", "Localhost", "Unconfined"];
const SCHEDULER: &str = "the scheduler's: the pod is bound already";
const STORAGE: &str = "no storage drivers: use emptyDir, hostPath, configMap or secret";
const GROUPS: &str = "pods are scheduled one by one";
pub(crate) const EPHEMERAL: &str = "ephemeral containers are not served; use `kubectl exec`, or debug a copy of the pod (`kubectl debug --copy-to`)";
const CLAIMS: &str = "no dynamic resource allocation";

/// Path in the spec, treatment. `initContainers[]` is looked up as `containers[]` where it has no row of its
/// own.
pub(crate) const POD_SPEC: &[(&str, Treatment)] = &[
    ("activeDeadlineSeconds", Served),
    ("affinity", Below),
    ("affinity.nodeAffinity", Below),
    ("affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", Ignored(SCHEDULER)),
    ("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", Served),
    ("affinity.podAffinity", Ignored(SCHEDULER)),
    ("affinity.podAntiAffinity", Ignored(SCHEDULER)),
    ("automountServiceAccountToken", Ignored("the API server adds the volume")),
    ("containers", Below),
    ("containers[].args", Served),
    ("containers[].command", Served),
    ("containers[].env", Below),
    ("containers[].env[].name", Served),
    ("containers[].env[].value", Served),
    ("containers[].env[].valueFrom", Below),
    ("containers[].env[].valueFrom.configMapKeyRef", Served),
    ("containers[].env[].valueFrom.fieldRef", Served),
    ("containers[].env[].valueFrom.fileKeyRef", Refused("files are no source of variables")),
    ("containers[].env[].valueFrom.resourceFieldRef", Served),
    ("containers[].env[].valueFrom.secretKeyRef", Served),
    ("containers[].envFrom", Served),
    ("containers[].image", Served),
    ("containers[].imagePullPolicy", Served),
    ("containers[].lifecycle", Below),
    ("containers[].lifecycle.postStart", Below),
    ("containers[].lifecycle.postStart.exec", Served),
    ("containers[].lifecycle.postStart.httpGet", Served),
    ("containers[].lifecycle.postStart.sleep", Served),
    ("containers[].lifecycle.postStart.tcpSocket", Refused(NO_HOOK)),
    ("containers[].lifecycle.preStop", Below),
    ("containers[].lifecycle.preStop.exec", Served),
    ("containers[].lifecycle.preStop.httpGet", Served),
    ("containers[].lifecycle.preStop.sleep", Served),
    ("containers[].lifecycle.preStop.tcpSocket", Refused(NO_HOOK)),
    ("containers[].lifecycle.stopSignal", Served),
    ("containers[].livenessProbe", Served),
    ("containers[].name", Served),
    ("containers[].ports", Served),
    ("containers[].readinessProbe", Served),
    ("containers[].resizePolicy", Ignored("pods are not resized in place")),
    ("containers[].resources", Below),
    ("containers[].resources.claims", Refused(CLAIMS)),
    ("containers[].resources.limits", Served),
    ("containers[].resources.requests", Served),
    (
        "containers[].restartPolicy",
        Refused("a restart policy of one container is not served, but of a sidecar"),
    ),
    ("containers[].restartPolicyRules", Refused("restart rules are not served")),
    ("containers[].securityContext", Below),
    ("containers[].securityContext.allowPrivilegeEscalation", Served),
    ("containers[].securityContext.appArmorProfile", Below),
    ("containers[].securityContext.appArmorProfile.localhostProfile", Served),
    ("containers[].securityContext.appArmorProfile.type", Only(KINDS, PROFILES)),
    ("containers[].securityContext.capabilities", Served),
    ("containers[].securityContext.privileged", Served),
    (
        "containers[].securityContext.procMount",
        Only(&["Default"], "without user namespaces /proc stays masked"),
    ),
    ("containers[].securityContext.readOnlyRootFilesystem", Served),
    ("containers[].securityContext.runAsGroup", Served),
    ("containers[].securityContext.runAsNonRoot", Served),
    ("containers[].securityContext.runAsUser", Served),
    ("containers[].securityContext.seLinuxOptions", Ignored(SELINUX)),
    ("containers[].securityContext.seccompProfile", Below),
    ("containers[].securityContext.seccompProfile.localhostProfile", Served),
    ("containers[].securityContext.seccompProfile.type", Only(KINDS, PROFILES)),
    ("containers[].securityContext.windowsOptions", Refused(WINDOWS)),
    ("containers[].startupProbe", Served),
    ("containers[].stdin", Served),
    ("containers[].stdinOnce", Served),
    ("containers[].terminationMessagePath", Served),
    ("containers[].terminationMessagePolicy", Served),
    ("containers[].tty", Served),
    ("containers[].volumeDevices", Refused(STORAGE)),
    ("containers[].volumeMounts", Below),
    ("containers[].volumeMounts[].mountPath", Served),
    (
        "containers[].volumeMounts[].mountPropagation",
        Only(&["None", "HostToContainer"], "no container mounts anything on the machine"),
    ),
    ("containers[].volumeMounts[].name", Served),
    ("containers[].volumeMounts[].readOnly", Served),
    (
        "containers[].volumeMounts[].recursiveReadOnly",
        Only(&["Disabled", "IfPossible"], "mounts below are not made read-only"),
    ),
    ("containers[].volumeMounts[].subPath", Served),
    ("containers[].volumeMounts[].subPathExpr", Served),
    ("containers[].workingDir", Served),
    ("dnsConfig", Served),
    ("dnsPolicy", Served),
    (
        "enableServiceLinks",
        Ignored("the API server is told in any case, and there are no other Services on a node"),
    ),
    ("ephemeralContainers", RefusedAlone(EPHEMERAL)),
    ("hostAliases", Served),
    ("hostIPC", Served),
    ("hostNetwork", Served),
    ("hostPID", Served),
    ("hostUsers", Only(&["true"], "no user namespaces")),
    ("hostname", Served),
    ("hostnameOverride", Refused("hostnameOverride is not served")),
    ("imagePullSecrets", Served),
    ("initContainers", Below),
    (
        "initContainers[].restartPolicy",
        Only(&["Always"], "an init container restarts always, or by the pod's policy"),
    ),
    ("nodeName", Served),
    ("nodeSelector", Served),
    ("os", Below),
    ("os.name", Served),
    ("overhead", Ignored("it belongs to runtime classes, which are refused")),
    ("preemptionPolicy", Ignored(SCHEDULER)),
    ("priority", Served),
    ("priorityClassName", Ignored("the API server resolves it to a priority")),
    ("readinessGates", Served),
    ("resourceClaims", Refused(CLAIMS)),
    ("resources", Refused("resources of a pod as a whole are not served")),
    ("restartPolicy", Served),
    ("runtimeClassName", Refused("there is one runtime")),
    ("schedulerName", Ignored(SCHEDULER)),
    ("schedulingGates", Ignored(SCHEDULER)),
    ("schedulingGroup", Ignored(GROUPS)),
    ("securityContext", Below),
    ("securityContext.appArmorProfile", Below),
    ("securityContext.appArmorProfile.localhostProfile", Served),
    ("securityContext.appArmorProfile.type", Only(KINDS, PROFILES)),
    ("securityContext.fsGroup", Served),
    ("securityContext.fsGroupChangePolicy", Ignored("it concerns no volume that is served, as upstream")),
    ("securityContext.runAsGroup", Served),
    ("securityContext.runAsNonRoot", Served),
    ("securityContext.runAsUser", Served),
    ("securityContext.seLinuxChangePolicy", Ignored("it says how volumes are labelled")),
    ("securityContext.seLinuxOptions", Ignored(SELINUX)),
    ("securityContext.seccompProfile", Below),
    ("securityContext.seccompProfile.localhostProfile", Served),
    ("securityContext.seccompProfile.type", Only(KINDS, PROFILES)),
    ("securityContext.supplementalGroups", Served),
    ("securityContext.supplementalGroupsPolicy", Only(&["Merge", "Strict"], "Merge or Strict")),
    ("securityContext.sysctls", Served),
    ("securityContext.windowsOptions", Refused(WINDOWS)),
    ("serviceAccount", Ignored("the older name of serviceAccountName")),
    ("serviceAccountName", Served),
    ("setHostnameAsFQDN", Refused("a node has no cluster domain of its own")),
    ("shareProcessNamespace", Served),
    ("subdomain", Ignored("there are no Services on a node, so no name is made of it")),
    ("terminationGracePeriodSeconds", Served),
    ("tolerations", Served),
    ("topologySpreadConstraints", Ignored(SCHEDULER)),
    ("volumes", Below),
    ("volumes[].awsElasticBlockStore", Refused(STORAGE)),
    ("volumes[].azureDisk", Refused(STORAGE)),
    ("volumes[].azureFile", Refused(STORAGE)),
    ("volumes[].cephfs", Refused(STORAGE)),
    ("volumes[].cinder", Refused(STORAGE)),
    ("volumes[].configMap", Served),
    ("volumes[].csi", Refused(STORAGE)),
    ("volumes[].downwardAPI", Served),
    ("volumes[].emptyDir", Served),
    ("volumes[].ephemeral", Refused(STORAGE)),
    ("volumes[].fc", Refused(STORAGE)),
    ("volumes[].flexVolume", Refused(STORAGE)),
    ("volumes[].flocker", Refused(STORAGE)),
    ("volumes[].gcePersistentDisk", Refused(STORAGE)),
    ("volumes[].gitRepo", Refused(STORAGE)),
    ("volumes[].glusterfs", Refused(STORAGE)),
    ("volumes[].hostPath", Served),
    ("volumes[].image", Served),
    ("volumes[].iscsi", Refused(STORAGE)),
    ("volumes[].name", Served),
    ("volumes[].nfs", Refused(STORAGE)),
    ("volumes[].persistentVolumeClaim", Refused(STORAGE)),
    ("volumes[].photonPersistentDisk", Refused(STORAGE)),
    ("volumes[].portworxVolume", Refused(STORAGE)),
    ("volumes[].projected", Below),
    ("volumes[].projected.defaultMode", Served),
    ("volumes[].projected.sources", Below),
    ("volumes[].projected.sources[].clusterTrustBundle", Refused("bundles of trust are not served")),
    ("volumes[].projected.sources[].configMap", Served),
    ("volumes[].projected.sources[].downwardAPI", Served),
    ("volumes[].projected.sources[].podCertificate", Refused("certificates of pods are not served")),
    ("volumes[].projected.sources[].secret", Served),
    ("volumes[].projected.sources[].serviceAccountToken", Served),
    ("volumes[].quobyte", Refused(STORAGE)),
    ("volumes[].rbd", Refused(STORAGE)),
    ("volumes[].scaleIO", Refused(STORAGE)),
    ("volumes[].secret", Served),
    ("volumes[].storageos", Refused(STORAGE)),
    ("volumes[].vsphereVolume", Refused(STORAGE)),
];

/// Most refusals in one message: enough to correct a manifest at once, and no more than a status should
/// contain.
const MOST_REFUSALS: usize = 8;

/// Why this spec is not run, field by field; empty if it is.
pub(crate) fn refusals(spec: &Value) -> Vec<String> {
    let mut found = vec![];
    walk(spec, "", "", &mut found);
    found
}

/// The first SELinux label in this spec, with its path.
pub(crate) fn label(spec: &Value) -> Option<String> {
    let asks = |object: &Value| !is_zero(&object["securityContext"]["seLinuxOptions"]);
    if asks(spec) {
        return Some("spec.securityContext.seLinuxOptions".into());
    }
    ["initContainers", "containers"].into_iter().find_map(|list| {
        let at = spec[list].as_array()?.iter().position(asks)?;
        Some(format!("spec.{list}[{at}].securityContext.seLinuxOptions"))
    })
}

fn walk(value: &Value, row: &str, shown: &str, found: &mut Vec<String>) {
    if found.len() == MOST_REFUSALS {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let join = |prefix: &str| {
                    if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") }
                };
                judge(value, &join(row), &join(shown), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{row}[]"), &format!("{shown}[{index}]"), found);
            }
        }
        _ => {}
    }
}

fn judge(value: &Value, row: &str, shown: &str, found: &mut Vec<String>) {
    let why = match treatment(row) {
        Some(Served | Ignored(_) | RefusedAlone(_)) => None,
        Some(Below) => {
            walk(value, row, shown, found);
            None
        }
        Some(Only(values, why)) => {
            (!is_empty_text(value) && !values.contains(&text_of(value).as_str())).then_some(why)
        }
        Some(Refused(why)) => (!is_zero(value)).then_some(why),
        None => (!is_zero(value)).then_some("this agent does not know the field"),
    };
    if let Some(why) = why.filter(|_| found.len() < MOST_REFUSALS) {
        found.push(format!("spec.{}: {why}", kedge_api::excerpt_of(shown, 120)));
    }
}

/// The row of a path.
pub(crate) fn treatment(path: &str) -> Option<Treatment> {
    let exact = |path: &str| POD_SPEC.iter().find(|(row, _)| *row == path).map(|(_, treatment)| *treatment);
    exact(path).or_else(|| exact(&format!("containers[]{}", path.strip_prefix("initContainers[]")?)))
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_empty_text(value: &Value) -> bool {
    value.as_str() == Some("") || value.is_null()
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(Value::is_null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    /// Upstream's types with their fields: type, then lines of `name number shape`.
    const TYPES: &str = include_str!("../../../../hub/core/schema/types.txt");

    fn fields_of(kind: &str) -> Vec<(&'static str, &'static str)> {
        let mut lines = TYPES.lines().skip_while(|line| line.split(' ').next() != Some(kind)).skip(1);
        let mut fields = vec![];
        while let Some(line) = lines.next().filter(|line| line.starts_with("  ")) {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap();
            fields.push((name, words.nth(1).unwrap()));
        }
        assert!(!fields.is_empty(), "{kind} is in the schema");
        fields
    }

    fn walk_schema(kind: &str, prefix: &str, without: &mut Vec<String>, seen: &mut Vec<String>) {
        for (name, shape) in fields_of(kind) {
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            match treatment(&path) {
                None => without.push(path),
                Some(Below) => {
                    let list = shape.strip_prefix("[]");
                    let below = if list.is_some() { format!("{path}[]") } else { path.clone() };
                    walk_schema(list.unwrap_or(shape), &below, without, seen);
                    seen.push(path);
                }
                Some(_) => seen.push(path),
            }
        }
    }

    #[test]
    fn each_field_of_upstream_has_a_row_and_each_row_a_field() {
        let (mut without, mut seen) = (vec![], vec![]);
        walk_schema("core/v1/PodSpec", "", &mut without, &mut seen);
        assert_eq!(without, Vec::<String>::new(), "fields of the PodSpec without a row");
        for (path, _) in POD_SPEC {
            assert!(seen.iter().any(|field| field == path), "{path} is no field of the PodSpec");
        }
    }

    /// Fields below served ones that no code reads, and why a pod loses nothing by this.
    const UNREAD: &[(&str, &str)] = &[
        (".fieldRef.apiVersion", "there is one"),
        ("os.name", "admission reads it as it came"),
        ("tolerations[].tolerationSeconds", "the hub ends pods by it"),
    ];

    /// A value of this shape that is not the default.
    fn sample(shape: &str, values: Option<&str>) -> Value {
        match shape {
            "bool" => json!(true),
            "int32" | "int64" | "intorstring" => json!(7),
            "string" => json!(values.map_or("x", |values| values.rsplit(',').next().unwrap())),
            "quantity" => json!("7"),
            _ => match shape.strip_prefix("[]").or_else(|| shape.strip_prefix("{}")) {
                Some(of) if shape.starts_with("[]") => json!([sample(of, None)]),
                Some(of) => json!({"x": sample(of, None)}),
                None => panic!("a shape without a sample: {shape}"),
            },
        }
    }

    /// Wraps `value` in these fields, outermost first.
    fn within(path: &[(&str, bool)], value: Value) -> Value {
        path.iter().rev().fold(
            value,
            |value, (name, is_list)| {
                if *is_list { json!({*name: [value]}) } else { json!({*name: value}) }
            },
        )
    }

    type Way = Vec<(&'static str, bool)>;

    /// Each leaf from this type on: its path (names, and whether each is a list), its shape and its possible
    /// values.
    fn leaves(
        kind: &'static str,
        way: &mut Way,
        each: &mut impl FnMut(&Way, &'static str, &str, Option<&str>),
    ) {
        let lines = TYPES.lines().skip_while(|line| line.split(' ').next() != Some(kind)).skip(1);
        for line in lines.take_while(|line| line.starts_with("  ")) {
            let head = line.split(" | ").next().unwrap();
            let mut words = head.split_whitespace();
            let (name, shape) = (words.next().unwrap(), words.nth(1).unwrap());
            let values = words.find_map(|word| word.strip_prefix("enum="));
            let item = shape.strip_prefix("[]").unwrap_or(shape);
            if item.contains('/') {
                way.push((name, item != shape));
                leaves(item, way, each);
                way.pop();
            } else {
                each(way, name, shape, values);
            }
        }
    }

    #[test]
    fn what_is_below_a_served_field_is_read() {
        let read = |spec: Value| serde_json::from_value::<crate::pods::spec::PodSpec>(spec).ok();
        let (mut unread, mut count) = (vec![], 0);
        leaves("core/v1/PodSpec", &mut vec![], &mut |way, name, shape, values| {
            let mut rows = vec![];
            let mut row = String::new();
            for (part, is_list) in way.iter().copied().chain([(name, false)]) {
                row = if row.is_empty() { part.to_owned() } else { format!("{row}.{part}") };
                rows.push(row.clone());
                row += if is_list { "[]" } else { "" };
            }
            let nearest = rows.iter().rev().find_map(|row| treatment(row));
            if nearest != Some(Served) {
                return;
            }
            count += 1;
            // a refused value was read
            let without = read(within(way, json!({})));
            let with = read(within(way, json!({name: sample(shape, values)})));
            if with.is_some() && with == without && !UNREAD.iter().any(|(end, _)| row.ends_with(end)) {
                unread.push(row);
            }
        });
        assert_eq!(unread, Vec::<String>::new(), "fields that a pod may have and nothing reads");
        assert!(count > 150, "{count}");
    }

    /// The table as in docs/reference/pods.md: one line for fields that are treated alike for the same
    /// reason, in the same part of a spec.
    fn page() -> String {
        let shown = |treatment: &Treatment| match treatment {
            Served => Some((0, "served".to_owned(), "")),
            Only(values, why) => {
                Some((1, format!("served as `{}`, else refused", values.join("`, `")), *why))
            }
            Refused(why) => Some((2, "refused".to_owned(), *why)),
            RefusedAlone(why) => Some((3, "refused by its own status; the pod goes on".to_owned(), *why)),
            Ignored(why) => Some((4, "ignored".to_owned(), *why)),
            Below => None,
        };
        let mut rows: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for (path, treatment) in POD_SPEC {
            let part = path.split_once('.').map_or("", |(part, _)| part);
            if let Some((order, what, why)) = shown(treatment) {
                rows.entry((order, part, what, why)).or_default().push(format!("`{path}`"));
            }
        }
        let line = |((_, _, what, why), paths): (&(u8, &str, String, &str), &Vec<String>)| {
            format!("| {} | {what} | {why} |\n", paths.join(", "))
        };
        let lines: String = rows.iter().map(line).collect();
        format!("| field | here | why |\n|---|---|---|\n{lines}")
    }

    #[test]
    fn page_has_the_same_table() {
        let page_of_pods = include_str!("../../../../docs/reference/pods.md");
        let begin = "<!-- PodSpec: begin -->\n";
        let found =
            page_of_pods.split_once(begin).and_then(|(_, rest)| rest.split_once("<!-- PodSpec: end -->"));
        assert_eq!(
            found.map(|(table, _)| table),
            Some(page().as_str()),
            "docs/reference/pods.md is to have:\n{}",
            page()
        );
    }

    #[test]
    fn unserved_fields_are_refused_by_path() {
        let check = |spec: Value, expect: &[&str]| {
            let found = refusals(&spec);
            assert_eq!(found.len(), expect.len(), "{found:?}");
            for (found, expect) in found.iter().zip(expect) {
                assert!(found.starts_with(expect), "{found:?}, expected {expect:?}");
            }
        };
        check(
            json!({"containers": [{"name": "a", "image": "x", "tty": true, "stdin": true, "securityContext": {}}]}),
            &[],
        );
        check(
            json!({"securityContext": {"runAsUser": 1, "fsGroup": 2, "seccompProfile": {"type": "RuntimeDefault"}}}),
            &[],
        );
        check(
            json!({"securityContext": {"windowsOptions": {"a": "b"}, "appArmorProfile": {"type": "Other"}}}),
            &["spec.securityContext.appArmorProfile.type", "spec.securityContext.windowsOptions"],
        );
        check(
            json!({"initContainers": [{"securityContext": {"procMount": "Unmasked", "seccompProfile": {"type": "Own"}}}]}),
            &[
                "spec.initContainers[0].securityContext.procMount",
                "spec.initContainers[0].securityContext.seccompProfile.type",
            ],
        );
        check(json!({"hostUsers": false}), &["spec.hostUsers: no user"]);
        check(json!({"ephemeralContainers": [{"name": "debugger", "image": "x"}]}), &[]);
        check(json!({"hostUsers": true, "hostNetwork": true}), &[]);
        check(
            json!({"initContainers": [{"restartPolicy": "Always"}, {"restartPolicy": "Never", "volumeDevices": [{}]}]}),
            &["spec.initContainers[1].restartPolicy", "spec.initContainers[1].volumeDevices"],
        );
        check(json!({"containers": [{"restartPolicy": "Always"}]}), &["spec.containers[0].restartPolicy"]);
        check(
            json!({"volumes": [{"name": "v", "nfs": {"path": "/"}}]}),
            &["spec.volumes[0].nfs: no storage"],
        );
        check(json!({"brandNew": 1, "other": 0}), &["spec.brandNew: this agent does not know"]);
        check(json!({"containers": vec![json!({"volumeDevices": [{}]}); 50]}), &["spec"; MOST_REFUSALS]);
    }
}
