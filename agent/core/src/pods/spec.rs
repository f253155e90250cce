//! A pod from the API, a file or its record, read once into the form that a life needs.
//!
//! Always holds: names that become file names or map keys are checked here and nowhere else; an unreadable
//! value is an error with the path of the field. Leaves to others: which fields are served (`table`), and
//! their meaning.

use crate::kubelet::quantity::Quantity;
use crate::pods::event::{PullPolicy, TerminationMessage};
use crate::pods::keys::{ObjectKind, PodRef, PodUid};
use kedge_api::{Timestamp, names, read};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Most containers of one pod, init containers included: each may cost a shim of some 0.5 MiB.
const MOST_CONTAINERS: usize = 64;
/// Most variables, sources of variables, ports and mounts of one container together: each is processed at
/// each start.
const MOST_PARTS: usize = 1024;
/// Most volumes of one pod: each is a mount, or a directory.
const MOST_VOLUMES: usize = 256;
/// Longest grace period, 68 years: the maximum of upstream's int32 fields, with which no time computation
/// overflows.
pub(crate) const LONGEST_GRACE_SECS: u64 = i32::MAX as u64;
/// `terminationGracePeriodSeconds` of a pod without it: upstream's default.
const DEFAULT_GRACE_SECS: u64 = 30;

/// A grace period from the API: upstream treats a negative one as one second.
pub(crate) fn grace_of(secs: i128) -> u64 {
    match u64::try_from(secs) {
        Ok(secs) => secs.min(LONGEST_GRACE_SECS),
        Err(_) if secs < 0 => 1,
        Err(_) => LONGEST_GRACE_SECS,
    }
}

/// A pod whose object was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub(crate) uid: PodUid,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// 0 if the server does not count generations.
    pub(crate) generation: i64,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Kind, namespace and name of its owning controller; without the UID, because a controller that is
    /// deleted and made again has another one.
    pub(crate) controller: Option<(String, String)>,
    /// The grace period of its deletion, if it is being deleted.
    pub(crate) deletion: Option<u64>,
    pub(crate) created: Option<Timestamp>,
    pub(crate) spec: PodSpec,
    /// The spec as it came, without nulls, for the record.
    pub(crate) raw_spec: Value,
}

impl Pod {
    /// Reads an object. The error contains the field.
    pub(crate) fn read(object: &Value) -> Result<Self, String> {
        let meta = read::from_value::<Metadata>(&without_nulls(&object["metadata"]))
            .map_err(|error| format!("metadata: {error}"))?;
        let raw_spec = without_nulls(&object["spec"]);
        let spec = read::from_value::<PodSpec>(&raw_spec).map_err(|error| format!("spec: {error}"))?;
        let uid = PodUid::new(&meta.uid)
            .ok_or_else(|| format!("metadata.uid is {:?}, expected a UID", kedge_api::excerpt(&meta.uid)))?;
        let name = Some(&meta.name).filter(|name| names::subdomain_complaint(name).is_none());
        let name = name.ok_or("metadata.name is no name of a pod")?;
        if names::label_complaint(&meta.namespace).is_some() {
            return Err("metadata.namespace is no name of a namespace".into());
        }
        spec.check_names()?;
        let controller = meta.owner_references.into_iter().find(|owner| owner.controller);
        Ok(Self {
            uid,
            namespace: meta.namespace,
            name: name.clone(),
            generation: meta.generation,
            labels: meta.labels,
            annotations: meta.annotations,
            controller: controller.map(|owner| (owner.kind, owner.name)),
            deletion: meta
                .deletion_timestamp
                .map(|_| meta.deletion_grace_period_seconds.map_or_else(|| spec.grace_secs(), grace_of)),
            created: meta.creation_timestamp,
            spec,
            raw_spec,
        })
    }

    /// Keeps only the data for a status and Events.
    pub(crate) fn slim(&mut self) {
        self.raw_spec = Value::Null;
        self.labels = BTreeMap::new();
        self.annotations = BTreeMap::new();
        let spec = &mut self.spec;
        spec.volumes = vec![];
        spec.host_aliases = vec![];
        spec.image_pull_secrets = vec![];
        spec.node_selector = BTreeMap::new();
        spec.affinity = Affinity::default();
        spec.dns_config = DnsConfig::default();
        for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
            container.command = vec![];
            container.args = vec![];
            container.env = vec![];
            container.env_from = vec![];
            container.ports = vec![];
            container.volume_mounts = vec![];
            container.lifecycle = Lifecycle::default();
            (container.liveness_probe, container.readiness_probe, container.startup_probe) =
                (None, None, None);
        }
    }

    /// Whether it was slimmed: the spec of a pod that was read is never null.
    pub(crate) fn is_slim(&self) -> bool {
        self.raw_spec.is_null()
    }

    pub(crate) fn reference(&self) -> PodRef {
        PodRef {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.as_str().to_owned(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    generation: i64,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner_references: Vec<Owner>,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i128>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Owner {
    kind: String,
    name: String,
    controller: bool,
}

/// `v1.PodSpec`, the fields that are served.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) init_containers: Vec<Container>,
    pub(crate) containers: Vec<Container>,
    pub(crate) ephemeral_containers: Vec<Ephemeral>,
    pub(crate) volumes: Vec<VolumeSpec>,
    pub(crate) restart_policy: RestartPolicy,
    pub(crate) termination_grace_period_seconds: Option<i128>,
    pub(crate) active_deadline_seconds: Option<u64>,
    pub(crate) priority: Option<i64>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) host_network: bool,
    #[serde(rename = "hostPID")]
    pub(crate) host_pid: bool,
    #[serde(rename = "hostIPC")]
    pub(crate) host_ipc: bool,
    pub(crate) share_process_namespace: bool,
    pub(crate) hostname: String,
    pub(crate) service_account_name: String,
    pub(crate) node_name: String,
    pub(crate) dns_policy: String,
    pub(crate) dns_config: DnsConfig,
    pub(crate) host_aliases: Vec<HostAlias>,
    pub(crate) image_pull_secrets: Vec<LocalName>,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) affinity: Affinity,
    pub(crate) readiness_gates: Vec<ReadinessGate>,
    pub(crate) security_context: PodSecurity,
}

/// The fields of an ephemeral container that its status needs; such containers are not served.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ephemeral {
    pub(crate) name: String,
    pub(crate) image: String,
}

impl PodSpec {
    pub(crate) fn grace_secs(&self) -> u64 {
        self.termination_grace_period_seconds.map_or(DEFAULT_GRACE_SECS, grace_of)
    }

    /// Init containers first, in the order in which they start.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }

    fn check_names(&self) -> Result<(), String> {
        let count = self.all_containers().count();
        if self.containers.is_empty() || count > MOST_CONTAINERS {
            return Err(format!("spec has {count} containers, expected 1 to {MOST_CONTAINERS}"));
        }
        let mut seen = std::collections::BTreeSet::new();
        for container in self.all_containers() {
            if names::label_complaint(&container.name).is_some() || !seen.insert(&container.name) {
                let name = kedge_api::excerpt(&container.name);
                return Err(format!("container name {name:?} is no label, or is used twice"));
            }
            let parts = container.parts();
            if parts > MOST_PARTS {
                let name = &container.name;
                let what = "variables, sources of variables, ports and mounts";
                return Err(format!("container {name} has {parts} {what}, expected at most {MOST_PARTS}"));
            }
        }
        for container in self.all_containers() {
            let is_init = self.init_containers.iter().any(|init| init.name == container.name);
            // a sidecar keeps running, so unlike other init containers it may have probes and hooks
            let is_init = is_init && !container.is_sidecar();
            let complaint = container.complaint_about_probes(is_init);
            if let Some(why) = complaint.or_else(|| container.complaint_about_hooks(is_init)) {
                return Err(why);
            }
        }
        if !self.hostname.is_empty() && names::label_complaint(&self.hostname).is_some() {
            let hostname = kedge_api::excerpt(&self.hostname);
            return Err(format!("spec.hostname is {hostname:?}, expected a label"));
        }
        let volumes = self.volumes.len();
        if volumes > MOST_VOLUMES {
            return Err(format!("spec has {volumes} volumes, expected at most {MOST_VOLUMES}"));
        }
        let mut seen = std::collections::BTreeSet::new();
        for volume in &self.volumes {
            if names::label_complaint(&volume.name).is_some() || !seen.insert(&volume.name) {
                let name = kedge_api::excerpt(&volume.name);
                return Err(format!("volume name {name:?} is no label, or is used twice"));
            }
        }
        Ok(())
    }
}

/// `v1.Toleration`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

impl Toleration {
    /// Whether it tolerates a taint without value.
    pub(crate) fn tolerates(&self, key: &str, effect: &str) -> bool {
        let is_any = self.operator == "Exists";
        (self.effect.is_empty() || self.effect == effect)
            && (self.key == key || (self.key.is_empty() && is_any))
            && (is_any || self.value.is_empty())
    }
}

/// `v1.Affinity`, as far as a node judges it: affinity to other pods is judged by the scheduler.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Affinity {
    pub(crate) node_affinity: NodeAffinity,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeAffinity {
    pub(crate) required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// Terms of which one has to match.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeSelector {
    node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelectorTerm {
    match_expressions: Vec<NodeRequirement>,
    match_fields: Vec<NodeRequirement>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct NodeRequirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl NodeSelector {
    /// Whether a node with this name and these labels matches. A term without requirements matches no node.
    pub(crate) fn selects(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let label = |rule: &NodeRequirement| rule.holds(labels.get(&rule.key).map(String::as_str));
        // upstream supports only this field
        let field = |rule: &NodeRequirement| rule.key == "metadata.name" && rule.holds(Some(name));
        let matches = |term: &NodeSelectorTerm| {
            let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
            !is_empty && term.match_expressions.iter().all(label) && term.match_fields.iter().all(field)
        };
        self.node_selector_terms.iter().any(matches)
    }
}

impl NodeRequirement {
    fn holds(&self, found: Option<&str>) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let compared = |is_so: fn(&i64, &i64) -> bool| {
            let wanted = self.values.first().and_then(|value| number(value));
            found.and_then(number).zip(wanted).is_some_and(|(found, wanted)| is_so(&found, &wanted))
        };
        match self.operator.as_str() {
            "In" => found.is_some_and(|found| self.values.iter().any(|value| value == found)),
            "NotIn" => found.is_none_or(|found| self.values.iter().all(|value| value != found)),
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            "Gt" => compared(i64::gt),
            "Lt" => compared(i64::lt),
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(crate) enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// A condition that other clients set, without which the pod is not ready.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReadinessGate {
    pub(crate) condition_type: String,
}

/// `v1.Container`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) image_pull_policy: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) working_dir: String,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) env_from: Vec<EnvFrom>,
    pub(crate) ports: Vec<Port>,
    pub(crate) resources: ResourceRequirements,
    pub(crate) volume_mounts: Vec<VolumeMount>,
    /// `Always` on an init container makes it a sidecar.
    pub(crate) restart_policy: Option<String>,
    pub(crate) security_context: ContainerSecurity,
    pub(crate) liveness_probe: Option<Probe>,
    pub(crate) readiness_probe: Option<Probe>,
    pub(crate) startup_probe: Option<Probe>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) termination_message_path: String,
    pub(crate) termination_message_policy: String,
    pub(crate) stdin: bool,
    pub(crate) stdin_once: bool,
    pub(crate) tty: bool,
}

impl Container {
    fn parts(&self) -> usize {
        let lengths = [self.env_from.len(), self.ports.len(), self.volume_mounts.len()];
        lengths.into_iter().fold(self.env.len(), usize::saturating_add)
    }

    pub(crate) fn is_sidecar(&self) -> bool {
        self.restart_policy.is_some()
    }

    /// The spec's values, else upstream's defaults, which a static pod does not contain.
    pub(crate) fn termination_message(&self) -> TerminationMessage {
        let path = match self.termination_message_path.as_str() {
            "" => "/dev/termination-log",
            path => path,
        };
        let falls_back_to_logs = self.termination_message_policy == "FallbackToLogsOnError";
        TerminationMessage { path: path.to_owned(), falls_back_to_logs }
    }

    /// The spec's policy, else upstream's default: `Always` for no tag or `latest`.
    pub(crate) fn pull_policy(&self) -> PullPolicy {
        pull_policy(&self.image, self.image_pull_policy.as_deref())
    }
}

/// The policy of an image; `given` is the spec's.
pub(crate) fn pull_policy(image: &str, given: Option<&str>) -> PullPolicy {
    match given {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some(_) => PullPolicy::IfNotPresent,
        None if has_fixed_tag(image) => PullPolicy::IfNotPresent,
        None => PullPolicy::Always,
    }
}

fn has_fixed_tag(image: &str) -> bool {
    if image.contains('@') {
        return true;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split_once(':').is_some_and(|(_, tag)| tag != "latest")
}

/// `v1.PodSecurityContext`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSecurity {
    pub(crate) run_as_user: Option<u32>,
    pub(crate) run_as_group: Option<u32>,
    pub(crate) run_as_non_root: Option<bool>,
    pub(crate) fs_group: Option<u32>,
    pub(crate) supplemental_groups: Vec<u32>,
    pub(crate) supplemental_groups_policy: String,
    pub(crate) seccomp_profile: Option<Profile>,
    pub(crate) app_armor_profile: Option<Profile>,
    pub(crate) sysctls: Vec<Sysctl>,
}

/// `v1.SecurityContext`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerSecurity {
    pub(crate) run_as_user: Option<u32>,
    pub(crate) run_as_group: Option<u32>,
    pub(crate) run_as_non_root: Option<bool>,
    pub(crate) read_only_root_filesystem: bool,
    pub(crate) allow_privilege_escalation: Option<bool>,
    pub(crate) capabilities: Capabilities,
    pub(crate) privileged: bool,
    pub(crate) seccomp_profile: Option<Profile>,
    pub(crate) app_armor_profile: Option<Profile>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Capabilities {
    pub(crate) add: Vec<String>,
    pub(crate) drop: Vec<String>,
}

/// `v1.SeccompProfile` and `v1.AppArmorProfile`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Profile {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) localhost_profile: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sysctl {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EnvVar {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) value_from: Option<EnvSource>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EnvSource {
    pub(crate) config_map_key_ref: Option<KeySelector>,
    pub(crate) secret_key_ref: Option<KeySelector>,
    pub(crate) field_ref: Option<FieldRef>,
    pub(crate) resource_field_ref: Option<ResourceFieldRef>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FieldRef {
    pub(crate) field_path: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceFieldRef {
    /// Empty for the variable's own container.
    pub(crate) container_name: String,
    /// Such as `limits.cpu`.
    pub(crate) resource: String,
    /// A quantity; null means 1.
    pub(crate) divisor: Value,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeySelector {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EnvFrom {
    pub(crate) prefix: String,
    pub(crate) config_map_ref: Option<LocalName>,
    pub(crate) secret_ref: Option<LocalName>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LocalName {
    pub(crate) name: String,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) container_port: u16,
    pub(crate) host_port: u16,
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: String,
    pub(crate) protocol: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceRequirements {
    /// Quantities: text or a number.
    pub(crate) requests: BTreeMap<String, Value>,
    pub(crate) limits: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeMount {
    pub(crate) name: String,
    pub(crate) mount_path: String,
    pub(crate) read_only: bool,
    pub(crate) sub_path: String,
    pub(crate) sub_path_expr: String,
    pub(crate) mount_propagation: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeSpec {
    pub(crate) name: String,
    pub(crate) empty_dir: Option<EmptyDir>,
    pub(crate) host_path: Option<HostPath>,
    pub(crate) config_map: Option<ObjectVolume>,
    pub(crate) secret: Option<ObjectVolume>,
    #[serde(rename = "downwardAPI")]
    pub(crate) downward_api: Option<DownwardVolume>,
    pub(crate) projected: Option<ProjectedVolume>,
    pub(crate) image: Option<ImageVolume>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ImageVolume {
    pub(crate) reference: String,
    pub(crate) pull_policy: String,
}

/// `medium` of an `emptyDir` that is a tmpfs.
const MEMORY: &str = "Memory";

/// One source of a volume's files.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileSource<'a> {
    Object(ObjectKind, &'a ObjectVolume),
    Downward(&'a [DownwardFile]),
    Token(&'a TokenSource),
}

impl VolumeSpec {
    /// Whether its content uses the node's disk and belongs to the pod.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.config_map.is_some() || self.empty_dir.as_ref().is_some_and(|dir| dir.medium != MEMORY)
    }

    /// `sizeLimit` of an `emptyDir` on the disk, which can only be enforced by measuring.
    pub(crate) fn limit_on_disk(&self) -> Option<u64> {
        let dir = self.empty_dir.as_ref().filter(|dir| dir.medium != MEMORY)?;
        let limit = quantity(dir.size_limit.as_ref()?)?.units().unsigned_abs();
        Some(limit).filter(|limit| *limit > 0)
    }

    /// The sources of its files; `None` if it is not a volume of files.
    pub(crate) fn file_sources(&self) -> Option<Vec<FileSource<'_>>> {
        match self {
            Self { config_map: Some(source), .. } => {
                Some(vec![FileSource::Object(ObjectKind::ConfigMap, source)])
            }
            Self { secret: Some(source), .. } => Some(vec![FileSource::Object(ObjectKind::Secret, source)]),
            Self { downward_api: Some(volume), .. } => Some(vec![FileSource::Downward(&volume.items)]),
            Self { projected: Some(volume), .. } => {
                Some(volume.sources.iter().filter_map(Projection::source).collect())
            }
            _ => None,
        }
    }

    /// Whether it contains a token of the pod's service account.
    pub(crate) fn has_token(&self) -> bool {
        let sources = self.file_sources().unwrap_or_default();
        sources.iter().any(|source| matches!(source, FileSource::Token(_)))
    }

    /// `defaultMode` of a volume of files.
    pub(crate) fn default_mode(&self) -> Option<u32> {
        let object = self.config_map.as_ref().or(self.secret.as_ref());
        let object = object.and_then(|source| source.default_mode);
        let downward = self.downward_api.as_ref().and_then(|volume| volume.default_mode);
        object.or(downward).or(self.projected.as_ref().and_then(|volume| volume.default_mode))
    }
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DownwardVolume {
    pub(crate) items: Vec<DownwardFile>,
    pub(crate) default_mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DownwardFile {
    pub(crate) path: String,
    pub(crate) field_ref: Option<FieldRef>,
    pub(crate) resource_field_ref: Option<ResourceFieldRef>,
    pub(crate) mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ProjectedVolume {
    pub(crate) sources: Vec<Projection>,
    pub(crate) default_mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Projection {
    pub(crate) config_map: Option<ObjectVolume>,
    pub(crate) secret: Option<ObjectVolume>,
    #[serde(rename = "downwardAPI")]
    pub(crate) downward_api: Option<DownwardVolume>,
    pub(crate) service_account_token: Option<TokenSource>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TokenSource {
    pub(crate) audience: String,
    pub(crate) expiration_seconds: Option<u64>,
    pub(crate) path: String,
}

impl Projection {
    pub(crate) fn count(&self) -> usize {
        let sources = [
            self.config_map.is_some(),
            self.secret.is_some(),
            self.downward_api.is_some(),
            self.service_account_token.is_some(),
        ];
        sources.into_iter().filter(|is_given| *is_given).count()
    }

    fn source(&self) -> Option<FileSource<'_>> {
        match self {
            Self { config_map: Some(source), .. } => Some(FileSource::Object(ObjectKind::ConfigMap, source)),
            Self { secret: Some(source), .. } => Some(FileSource::Object(ObjectKind::Secret, source)),
            Self { downward_api: Some(volume), .. } => Some(FileSource::Downward(&volume.items)),
            Self { service_account_token: Some(token), .. } => Some(FileSource::Token(token)),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EmptyDir {
    pub(crate) medium: String,
    pub(crate) size_limit: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HostPath {
    pub(crate) path: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// A ConfigMap's or a Secret's volume, or its part of a projected one.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ObjectVolume {
    /// `secretName` if it is a Secret's.
    #[serde(alias = "secretName")]
    pub(crate) name: String,
    pub(crate) items: Vec<KeyToPath>,
    pub(crate) default_mode: Option<u32>,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyToPath {
    pub(crate) key: String,
    pub(crate) path: String,
    pub(crate) mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DnsConfig {
    pub(crate) nameservers: Vec<String>,
    pub(crate) searches: Vec<String>,
    pub(crate) options: Vec<DnsOption>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DnsOption {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HostAlias {
    pub(crate) ip: String,
    pub(crate) hostnames: Vec<String>,
}

/// The same without nulls: Kubernetes' clients write null for an absent field.
pub(crate) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut kept = Map::new();
            for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                kept.insert(key.clone(), without_nulls(value));
            }
            Value::Object(kept)
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    }
}

/// `v1.Lifecycle`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Lifecycle {
    pub(crate) post_start: Option<Hook>,
    pub(crate) pre_stop: Option<Hook>,
    pub(crate) stop_signal: String,
}

/// `v1.LifecycleHandler`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Hook {
    pub(crate) exec: Option<Exec>,
    pub(crate) http_get: Option<HttpGet>,
    pub(crate) sleep: Option<Sleep>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sleep {
    pub(crate) seconds: u32,
}

/// `v1.Probe`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Probe {
    pub(crate) exec: Option<Exec>,
    pub(crate) http_get: Option<HttpGet>,
    pub(crate) tcp_socket: Option<TcpSocket>,
    pub(crate) grpc: Option<Grpc>,
    pub(crate) initial_delay_seconds: u32,
    pub(crate) timeout_seconds: u32,
    pub(crate) period_seconds: u32,
    pub(crate) success_threshold: u32,
    pub(crate) failure_threshold: u32,
    pub(crate) termination_grace_period_seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Exec {
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HttpGet {
    pub(crate) host: String,
    pub(crate) http_headers: Vec<HttpHeader>,
    pub(crate) path: String,
    pub(crate) port: PortOfProbe,
    pub(crate) scheme: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HttpHeader {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TcpSocket {
    pub(crate) host: String,
    pub(crate) port: PortOfProbe,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Grpc {
    pub(crate) port: i64,
    pub(crate) service: String,
}

/// `IntOrString`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum PortOfProbe {
    Number(i64),
    Name(String),
}

impl Default for PortOfProbe {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// A quantity as JSON has it: text or a number.
pub(crate) fn quantity(value: &Value) -> Option<Quantity> {
    let parsed = match value {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    };
    parsed.filter(|quantity| !quantity.is_negative())
}

/// The user that all containers run as, if the pod sets it: the owner of its tokens, as upstream.
pub(crate) fn user_of_all(pod: &Pod) -> Option<u32> {
    let whole = pod.spec.security_context.run_as_user;
    let mut users =
        pod.spec.all_containers().map(|container| container.security_context.run_as_user.or(whole));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// Upstream's `v1.MirrorPodAnnotationKey`.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// From this priority on a pod is critical: upstream's `SystemCriticalPriority`.
pub(crate) const CRITICAL_PRIORITY: i64 = 2_000_000_000;

/// The same for a pod that has not been admitted.
pub(crate) fn is_critical_spec(spec: &PodSpec, is_static: bool) -> bool {
    is_static || spec.priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value) -> Result<Pod, String> {
        Pod::read(&json!({"metadata": {"name": "p", "namespace": "default", "uid": "u-1",
            "creationTimestamp": null}, "spec": spec}))
    }

    #[test]
    fn pod_with_nulls_and_defaults_is_read() {
        let pod = pod(json!({"containers": [{"name": "a", "image": "x", "env": null}],
            "terminationGracePeriodSeconds": null}))
        .unwrap();
        assert_eq!(pod.spec.grace_secs(), 30);
        assert_eq!(pod.spec.restart_policy, RestartPolicy::Always);
        assert_eq!(pod.deletion, None);
    }

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for name in ["", "..", "a/b", "A", "a.b"] {
            let error = pod(json!({"containers": [{"name": name, "image": "x"}]})).unwrap_err();
            assert!(error.contains("container name"), "{error}");
        }
        let twice = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "a"}]});
        assert!(pod(twice).unwrap_err().contains("used twice"));
        let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "../x"},
            "spec": {"containers": [{"name": "a"}]}});
        assert!(Pod::read(&object).unwrap_err().contains("metadata.uid"));
        assert!(pod(json!({"containers": []})).unwrap_err().contains("0 containers"));
    }

    #[test]
    fn spec_without_measure_is_refused() {
        let check = |spec: Value, expect: &str| {
            let error = pod(spec).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        let parts = |count: usize| {
            json!({"containers": [{"name": "a", "env": vec![json!({"name": "V"}); count - 3],
                "envFrom": [{}], "ports": [{"containerPort": 1}], "volumeMounts": [{"name": "v"}]}]})
        };
        assert!(pod(parts(MOST_PARTS)).is_ok());
        check(parts(MOST_PARTS + 1), "container a has 1025 variables");
        let volumes: Vec<Value> =
            (0..=MOST_VOLUMES).map(|index| json!({"name": format!("v{index}")})).collect();
        check(json!({"containers": [{"name": "a"}], "volumes": volumes}), "257 volumes");
        for hostname in ["ä".repeat(40), "a.b".to_owned(), "-".to_owned(), "a".repeat(64)] {
            check(json!({"containers": [{"name": "a"}], "hostname": hostname}), "spec.hostname");
        }
    }

    #[test]
    fn grace_without_measure_is_cut() {
        let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": u64::MAX},
            "spec": {"containers": [{"name": "a"}], "terminationGracePeriodSeconds": u64::MAX}});
        let pod = Pod::read(&object).unwrap();
        assert_eq!((pod.spec.grace_secs(), pod.deletion), (2_147_483_647, Some(2_147_483_647)));
    }

    #[test]
    fn pull_policy_defaults_by_tag() {
        let policy = |image: &str| Container { image: image.into(), ..Container::default() }.pull_policy();
        for fixed in ["a:1", "r:5000/a:1", "a@sha256:00", "a:latest@sha256:00"] {
            assert_eq!(policy(fixed), PullPolicy::IfNotPresent, "{fixed}");
        }
        for floating in ["a", "a:latest", "r:5000/a", "r:5000/b/a:latest"] {
            assert_eq!(policy(floating), PullPolicy::Always, "{floating}");
        }
    }
}
