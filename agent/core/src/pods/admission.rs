//! Decides whether a pod may run on this node, with upstream's reasons.
//!
//! Always holds: a pod that has run here is not judged again, so a restart of the agent ends no pod; the
//! verdict follows from the pod, the node and the pods admitted before it. Leaves to others: which fields are
//! served (`table`).

use crate::pods::event::{HostPort, NodeFacts, QosClass};
use crate::pods::spec::{Pod, PodSpec};
use crate::pods::{resources, security, spec, table, volumes};
use crate::sorted::SortedMap;
use std::collections::BTreeSet;

/// Why a pod does not run here.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Rejection {
    pub(crate) reason: String,
    /// Without "Pod was rejected: ".
    pub(crate) message: String,
}

/// The reason for a pod that uses a field this agent does not serve. Upstream has no such reason.
pub(crate) const NOT_SERVED: &str = "PodFeatureUnsupported";
/// Upstream's reason for a pod that does not fit the labels or the name of the Node.
pub(crate) const NODE_AFFINITY: &str = "NodeAffinity";
/// The reason for a pod that upstream's API server would have refused.
const INVALID: &str = "UnexpectedAdmissionError";

/// Most host ports of one pod with its own network: portmap takes about 50 ms for each, and meanwhile no
/// other pod gets a network. With some 600 ports the plugin reaches its time limit, and the pod never starts.
const MOST_HOST_PORTS: usize = 128;

/// Longest message of a rejection: room for eight reasons, each with a path.
const MESSAGE_CHARS: usize = 2000;

/// Judges a pod; `others` are the pods that are admitted and have not finished.
pub(crate) fn admit<'a>(
    pod: &Pod,
    is_static: bool,
    node: &NodeFacts,
    others: impl Iterator<Item = &'a PodSpec> + Clone,
) -> Result<(), Rejection> {
    // a complaint may quote the spec, and goes into a status
    let rejected = |reason: &str, message: String| {
        Err(Rejection { reason: reason.to_owned(), message: kedge_api::excerpt_of(&message, MESSAGE_CHARS) })
    };
    if let Some(why) = &node.no_runtime {
        return rejected(kedge_api::NO_CONTAINER_RUNTIME, why.clone());
    }
    let refusals = table::refusals(&pod.raw_spec);
    if !refusals.is_empty() {
        return rejected(NOT_SERVED, refusals.join("; "));
    }
    let refers =
        || !pod.spec.service_account_name.is_empty() || !crate::pods::objects::needed_by(pod).is_empty();
    if is_static && refers() {
        let why = "a static pod may not refer to ConfigMaps, Secrets or a service account";
        return rejected(NOT_SERVED, why.into());
    }
    let complaint = resources::complaint(&pod.spec).or_else(|| volumes::complaint(&pod.spec));
    let complaint = complaint.or_else(|| security::complaint(&pod.spec));
    if let Some(complaint) = complaint.or_else(|| complaint_about_ports(&pod.spec)) {
        return rejected(INVALID, complaint);
    }
    if let Some(refusal) = resources::refusal(&pod.spec) {
        return rejected(NOT_SERVED, refusal);
    }
    let os = pod.raw_spec["os"]["name"].as_str();
    if os.is_some_and(|os| os != "linux") {
        return rejected(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS".into(),
        );
    }
    if let Some(forbidden) = security::forbidden_sysctl(&pod.spec, &node.unsafe_sysctls) {
        return rejected("SysctlForbidden", forbidden);
    }
    if security::needs_apparmor(&pod.spec) && !node.has_apparmor {
        let why = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        return rejected("AppArmor", why.into());
    }
    if let Some(path) = table::label(&pod.raw_spec).filter(|_| node.has_selinux) {
        return rejected(
            NOT_SERVED,
            format!("{path}: labels of SELinux are not set, and this machine has it"),
        );
    }
    if let Some(message) = refused_under_pressure(pod, is_static, node) {
        return rejected("Evicted", message);
    }
    fits(pod, node, others)
}

/// Upstream's rule for a node under pressure: critical pods are admitted; if only memory is short, also pods
/// that request some memory or tolerate the taint.
fn refused_under_pressure(pod: &Pod, is_static: bool, node: &NodeFacts) -> Option<String> {
    let taint = ("node.kubernetes.io/memory-pressure", "NoSchedule");
    let may_come = match node.pressures[..] {
        [] => true,
        ["MemoryPressure"] => {
            resources::qos_class(&pod.spec) != QosClass::BestEffort
                || pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint.0, taint.1))
        }
        _ => false,
    };
    let is_refused = !may_come && !spec::is_critical_spec(&pod.spec, is_static);
    is_refused.then(|| format!("The node had condition: [{}]. ", node.pressures.join(" ")))
}

/// Upstream's general predicates, in its order: resources, node selector, ports.
fn fits<'a>(
    pod: &Pod,
    node: &NodeFacts,
    others: impl Iterator<Item = &'a PodSpec> + Clone,
) -> Result<(), Rejection> {
    let own = resources::Total::of(&pod.spec);
    let used = |pick: fn(&resources::Total) -> u64| {
        others.clone().fold(0u64, |sum, other| sum.saturating_add(pick(&resources::Total::of(other))))
    };
    let count = others.clone().count() as u64;
    // an unknown capacity rejects no pod
    let storage = node.storage_bytes.unwrap_or(u64::MAX);
    for (resource, requested, used, capacity) in [
        ("pods", 1, count, node.pods),
        ("cpu", own.cpu_milli, used(|total| total.cpu_milli), node.cpu_milli),
        ("memory", own.memory_bytes, used(|total| total.memory_bytes), node.memory_bytes),
        ("ephemeral-storage", own.storage_bytes, used(|total| total.storage_bytes), storage),
    ] {
        if requested > 0 && requested.saturating_add(used) > capacity {
            return Err(Rejection {
                reason: format!("OutOf{resource}"),
                message: format!(
                    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            });
        }
    }
    for name in resources::device_names(&pod.spec) {
        if !node.devices.contains_key(name) {
            let name = kedge_api::excerpt(name);
            return Err(Rejection {
                reason: INVALID.into(),
                message: format!(
                    "Allocate failed due to can't allocate unregistered device kedge.dev/{name}, which is unexpected"
                ),
            });
        }
        let requested = resources::device_count(&pod.spec, name);
        let used: u64 =
            others.clone().map(|other| resources::device_count(other, name)).fold(0, u64::saturating_add);
        if requested.saturating_add(used) > 1 {
            return Err(Rejection {
                reason: format!("OutOfkedge.dev/{name}"),
                message: format!(
                    "Node didn't have enough resource: kedge.dev/{name}, requested: {requested}, used: {used}, capacity: 1"
                ),
            });
        }
    }
    let matches = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    let required = &pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution;
    let is_required = required.as_ref().is_none_or(|required| required.selects(&node.name, &node.labels));
    if !pod.spec.node_selector.iter().all(matches) || !is_required {
        return Err(Rejection {
            reason: NODE_AFFINITY.into(),
            message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
                .into(),
        });
    }
    let own = host_ports(&pod.spec);
    let taken = if own.is_empty() { Taken::default() } else { Taken::of(others.flat_map(host_ports)) };
    if own.iter().any(|port| taken.has(port)) {
        return Err(Rejection {
            reason: "NodePorts".into(),
            message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
                .into(),
        });
    }
    Ok(())
}

/// The ports of the host that a pod takes.
pub(crate) fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let ports = spec.all_containers().flat_map(|container| &container.ports);
    let ports = ports.filter(|port| port.host_port != 0).map(|port| HostPort {
        host_ip: port.host_ip.clone(),
        host_port: port.host_port,
        container_port: port.container_port,
        protocol: if port.protocol.is_empty() { "TCP".to_owned() } else { port.protocol.clone() },
    });
    ports.collect()
}

/// The complaint if a pod has too many host ports. A pod on the machine's own network may have any number,
/// because no plugin sets its ports up.
fn complaint_about_ports(spec: &PodSpec) -> Option<String> {
    let count = host_ports(spec).len();
    (count > MOST_HOST_PORTS && !spec.host_network).then(|| {
        format!(
            "the pod has {count} hostPorts, expected at most {MOST_HOST_PORTS}: other pods wait for their network \
             while they are set up one by one; with hostNetwork there is no limit"
        )
    })
}

/// Taken ports: protocol and port, with the addresses; the empty address means every address.
#[derive(Default)]
struct Taken(SortedMap<(String, u16), BTreeSet<String>>);

impl Taken {
    fn of(ports: impl Iterator<Item = HostPort>) -> Self {
        let mut taken = Self::default();
        for port in ports {
            let address = address_of(&port).to_owned();
            taken.0.entry((port.protocol, port.host_port)).or_default().insert(address);
        }
        taken
    }

    fn has(&self, port: &HostPort) -> bool {
        let address = address_of(port);
        let others = self.0.get(&(port.protocol.clone(), port.host_port));
        others.is_some_and(|others| address.is_empty() || others.contains("") || others.contains(address))
    }
}

fn address_of(port: &HostPort) -> &str {
    if port.host_ip == "0.0.0.0" { "" } else { &port.host_ip }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PodAction;
    use crate::pods::event::PodEvent;
    use crate::pods::fixture::Node;
    use serde_json::{Value, json};

    fn reads(node: &Node) -> usize {
        node.seen.iter().filter(|action| **action == PodAction::ReadNode).count()
    }

    #[test]
    fn labels_that_are_not_known_yet_keep_no_pod_away() {
        let spec = json!({"nodeSelector": {"race": "1"}});
        for has_label in [true, false] {
            let mut node = Node::new();
            node.node_is_silent = true;
            node.bind("p", spec.clone());
            node.wait(300);
            assert_eq!((reads(&node), &node.status("p")["phase"]), (1, &json!("Pending")), "an intention");
            let waits = node.pods.report()[0].waits.clone().expect("it says why");
            assert_eq!(waits.reason, NODE_AFFINITY);
            if has_label {
                node.labels.insert("race".into(), "1".into());
            }
            let facts = NodeFacts { labels: node.labels.clone(), ..node.facts() };
            node.tell(PodEvent::Node(Box::new(facts)));
            node.tell(PodEvent::NodeRead);
            let reason = if has_label { json!(null) } else { json!(NODE_AFFINITY) };
            assert_eq!((node.runs("p"), &node.status("p")["reason"]), (has_label, &reason));
        }
    }

    #[test]
    fn pods_that_do_not_belong_here_share_readings_of_the_node() {
        let mut node = Node::new();
        let spec = json!({"nodeSelector": {"race": "1"}});
        ["a", "b", "c"].iter().for_each(|name| node.bind(name, spec.clone()));
        assert_eq!((reads(&node), &node.status("a")["reason"]), (1, &json!(NODE_AFFINITY)));
        assert_eq!(node.status("c")["phase"], "Pending", "bound after the reading began");
        node.wait(5);
        assert_eq!((reads(&node), &node.status("c")["reason"]), (2, &json!(NODE_AFFINITY)));
    }

    #[test]
    fn pods_without_a_runtime_fail_and_can_be_deleted() {
        let mut node = Node::new();
        node.bind("before", json!({}));
        assert!(node.runs("before"));
        let why = "no container can start: /usr/bin/crun is not there";
        let facts = NodeFacts { no_runtime: Some(why.into()), ..node.facts() };
        node.tell(PodEvent::Node(Box::new(facts)));
        node.bind("p", json!({}));
        let status = node.status("p").clone();
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("NoContainerRuntime")));
        assert!(status["message"].as_str().is_some_and(|message| message.ends_with(why)), "{status}");
        assert!(node.runs("before"), "what runs is left alone");
        node.see(json!({"metadata": {"name": "p", "namespace": "default", "uid": "p",
            "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30}, "spec": {"containers": []},
            "status": status}));
        let is_deleted = |action: &PodAction| matches!(action, PodAction::DeletePod(pod) if pod.name == "p");
        assert!(node.seen.iter().any(is_deleted), "its deletion is confirmed");
        // it is installed
        let facts = node.facts();
        node.tell(PodEvent::Node(Box::new(facts)));
        node.bind("after", json!({}));
        assert!(node.runs("after") && node.runs("before"));
    }

    #[test]
    fn limits_without_their_controllers_are_reported_once() {
        let check = |lacking: &[&'static str], limits_pids: bool, limits: Value, expect: &str| {
            let mut node = Node::new();
            let facts = NodeFacts { lacking_controllers: lacking.to_vec(), limits_pids, ..node.facts() };
            node.tell(PodEvent::Node(Box::new(facts)));
            node.bind(
                "p",
                json!({"containers": [{"name": "a", "image": "x:1"},
                    {"name": "b", "image": "x:1", "resources": {"limits": limits}}]}),
            );
            assert!(node.runs("p"));
            node.ends("p", "a", 1);
            node.wait(60);
            let news = node.news();
            let mut told = news.iter().filter_map(|line| line.strip_prefix("LimitsNotKept "));
            let missed = told.next().map_or("", |text| {
                assert!(text.ends_with(match expect.contains("memory") {
                    true => "(Raspberry Pi: cmdline.txt) and reboot",
                    false => "use a kernel that has it",
                }));
                text.strip_prefix("the kernel has no controller ").unwrap().split(':').next().unwrap()
            });
            assert_eq!((missed, told.next()), (expect, None), "{lacking:?} {limits_pids} {limits}");
        };
        let all = ["memory", "cpu", "pids"];
        let both = json!({"memory": "20Mi", "cpu": "100m"});
        check(&[], true, both.clone(), "");
        check(&["memory"], true, both.clone(), "memory");
        check(&["memory"], true, json!({"cpu": "100m"}), "");
        check(&["memory"], true, json!({"memory": 0}), "");
        check(&["cpu"], true, json!({"cpu": "100m"}), "cpu");
        check(&["cpu"], true, json!({"memory": "20Mi"}), "");
        check(&["pids"], true, json!({}), "pids");
        check(&["pids"], false, both.clone(), "");
        check(&all, false, both.clone(), "memory, cpu");
        check(&all, true, both, "memory, cpu, pids");
    }

    fn pod(spec: Value) -> Pod {
        Pod::read(&json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn check(spec: Value, others: &[Value], expect: Option<(&str, &str)>) {
        let labels =
            [("zone", "a"), ("size", "3")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let devices = SortedMap::from([("gps".to_owned(), vec!["/dev/ttyUSB0".to_owned()])]);
        let node = NodeFacts {
            name: "edge".into(),
            labels,
            devices,
            cpu_milli: 1000,
            memory_bytes: 1 << 30,
            storage_bytes: Some(2 << 30),
            pods: 3,
            ..NodeFacts::default()
        };
        let others: Vec<PodSpec> = others.iter().map(|spec| pod(spec.clone()).spec).collect();
        let verdict = admit(&pod(spec.clone()), false, &node, others.iter());
        match (verdict, expect) {
            (Ok(()), None) => {}
            (Err(found), Some((reason, message))) => {
                assert_eq!(found.reason, reason, "{found:?}");
                assert!(found.message.contains(message), "{found:?}");
            }
            other => panic!("{spec}: {other:?}"),
        }
    }

    fn asks(cpu: &str) -> Value {
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]})
    }

    fn listens(port: u16, ip: &str) -> Value {
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": port, "hostIP": ip}]}]})
    }

    #[test]
    fn pods_are_admitted_by_what_the_node_has() {
        check(asks("1"), &[], None);
        let message = "resource: cpu, requested: 600, used: 500, capacity: 1000";
        check(asks("600m"), &[asks("500m")], Some(("OutOfcpu", message)));
        check(asks("0"), &[asks("5")], None);
        check(asks("0"), &[asks("0"), asks("0"), asks("0")], Some(("OutOfpods", "used: 3, capacity: 3")));
        let memory = json!({"containers": [{"name": "a", "resources": {"limits": {"memory": "2Gi"}}}]});
        check(memory, &[], Some(("OutOfmemory", "capacity: 1073741824")));
        let stores = |which: &str, amount: &str| json!({"containers": [{"name": "a", "resources": {which: {"ephemeral-storage": amount}}}]});
        let (half, more) = (stores("requests", "1Gi"), stores("limits", "1025Mi"));
        check(half.clone(), std::slice::from_ref(&half), None);
        let message =
            "resource: ephemeral-storage, requested: 1074790400, used: 1073741824, capacity: 2147483648";
        check(more, &[half], Some(("OutOfephemeral-storage", message)));
    }

    #[test]
    fn device_belongs_to_one_pod_at_a_time() {
        let asks = |resources: Value| json!({"containers": [{"name": "a", "resources": resources}]});
        let gps = asks(json!({"limits": {"kedge.dev/gps": "1"}}));
        check(gps.clone(), &[], None);
        let message = "resource: kedge.dev/gps, requested: 1, used: 1, capacity: 1";
        check(gps.clone(), std::slice::from_ref(&gps), Some(("OutOfkedge.dev/gps", message)));
        check(
            asks(json!({"limits": {"kedge.dev/gps": 2}})),
            &[],
            Some(("OutOfkedge.dev/gps", "requested: 2")),
        );
        let other = asks(json!({"limits": {"kedge.dev/lidar": "1"}}));
        check(other, &[], Some((INVALID, "unregistered device kedge.dev/lidar")));
        check(asks(json!({"limits": {"kedge.dev/lidar": "0"}})), &[gps], None);
        for wrong in [
            json!({"requests": {"kedge.dev/gps": "1"}}),
            json!({"limits": {"kedge.dev/gps": "500m"}}),
            json!({"limits": {"kedge.dev/gps": "1"}, "requests": {"kedge.dev/gps": "2"}}),
        ] {
            check(asks(wrong), &[], Some((INVALID, "expected a whole number in limits")));
        }
    }

    #[test]
    fn selector_affinity_os_and_ports_are_checked() {
        let select = |zone: &str| json!({"nodeSelector": {"zone": zone}, "containers": [{"name": "a"}]});
        check(select("a"), &[], None);
        check(select("b"), &[], Some(("NodeAffinity", "didn't match")));
        let require = |terms: Value| {
            json!({"containers": [{"name": "a"}], "affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
        };
        let label = |key: &str, operator: &str, values: Value| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let name = |operator: &str, name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}]);
        for (terms, is_met) in [
            (label("zone", "In", json!(["b", "a"])), true),
            (label("zone", "In", json!(["b"])), false),
            (label("zone", "NotIn", json!(["a"])), false),
            (label("other", "NotIn", json!(["a"])), true),
            (label("zone", "Exists", json!([])), true),
            (label("zone", "DoesNotExist", json!([])), false),
            (label("size", "Gt", json!(["2"])), true),
            (label("size", "Gt", json!(["3"])), false),
            (label("size", "Lt", json!(["4"])), true),
            (label("zone", "Lt", json!(["4"])), false),
            (label("zone", "Near", json!(["a"])), false),
            (name("In", "edge"), true),
            (name("In", "other"), false),
            (name("NotIn", "edge"), false),
            (json!([]), false),
            (json!([{}]), false),
            // one term is enough if all its requirements hold
            (json!([{}, name("In", "edge")[0]]), true),
            (
                json!([{"matchExpressions": label("zone", "Exists", json!([]))[0]["matchExpressions"],
                "matchFields": name("In", "other")[0]["matchFields"]}]),
                false,
            ),
        ] {
            let refused = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
            check(require(terms), &[], (!is_met).then_some(("NodeAffinity", refused)));
        }
        // only the scheduler judges preferences and affinity to other pods
        let other = json!({"containers": [{"name": "a"}], "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 1, "preference": label("zone", "In", json!(["b"]))[0]}]}}});
        check(other, &[], None);
        let os = |name: &str| json!({"os": {"name": name}, "containers": [{"name": "a"}]});
        check(os("linux"), &[], None);
        check(os("windows"), &[], Some(("PodOSNotSupported", "OS field")));
        check(listens(80, ""), &[listens(81, "")], None);
        check(listens(80, "10.0.0.1"), &[listens(80, "10.0.0.2")], None);
        check(listens(80, "10.0.0.1"), &[listens(80, "")], Some(("NodePorts", "free ports")));
        check(listens(80, "0.0.0.0"), &[listens(80, "10.0.0.2")], Some(("NodePorts", "free ports")));
        check(listens(80, "10.0.0.1"), &[listens(80, "10.0.0.1")], Some(("NodePorts", "free ports")));
    }

    #[test]
    fn pod_with_many_host_ports_is_rejected() {
        let listens = |count: usize, host_network: bool| {
            let port = |index: usize| json!({"containerPort": 1 + index, "hostPort": 1 + index});
            let (own, others): (Vec<_>, Vec<_>) =
                (0..count).map(port).partition(|port| port["hostPort"] == 1);
            let sidecar = json!({"name": "b", "restartPolicy": "Always", "ports": own});
            let main = json!({"name": "a", "ports": others});
            json!({"hostNetwork": host_network, "initContainers": [sidecar], "containers": [main]})
        };
        check(listens(128, false), &[], None);
        let message = "the pod has 129 hostPorts, expected at most 128: other pods wait";
        check(listens(129, false), &[], Some((INVALID, message)));
        check(listens(1000, true), &[], None);
        let inner: Vec<Value> = (1..1000).map(|port| json!({"containerPort": port})).collect();
        check(json!({"containers": [{"name": "a", "ports": inner}]}), &[], None);
    }

    #[test]
    fn unserved_and_invalid_specs_are_rejected() {
        let disks = json!({"containers": [{"name": "a", "volumeDevices": [{"name": "v"}]}]});
        check(disks, &[], Some((NOT_SERVED, "spec.containers[0].volumeDevices: no storage")));
        check(asks("many"), &[], Some((INVALID, "expected a quantity")));
        let resources = |which: &str, resource: &str, amount: &str| json!({"containers": [{"name": "a", "resources": {which: {resource: amount}}}]});
        check(resources("requests", "ephemeral-storage", "1Gi"), &[], None);
        check(resources("limits", "ephemeral-storage", "1Gi"), &[], None);
        for (which, resource) in [("requests", "hugepages-2Mi"), ("limits", "example.com/gpu")] {
            let message = format!("{which}.{resource} is not served");
            check(resources(which, resource, "1"), &[], Some((NOT_SERVED, message.as_str())));
            check(resources(which, resource, "0"), &[], None);
        }
    }

    #[test]
    fn sysctls_and_profiles_are_judged_by_the_node() {
        let with = |context: Value| json!({"securityContext": context, "containers": [{"name": "a"}]});
        check(with(json!({"sysctls": [{"name": "net.ipv4.ping_group_range", "value": "0 1"}]})), &[], None);
        let forbidden = with(json!({"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}));
        check(
            forbidden,
            &[],
            Some(("SysctlForbidden", "forbidden sysctl: \"net.core.somaxconn\" not allowlisted")),
        );
        check(with(json!({"appArmorProfile": {"type": "Unconfined"}})), &[], None);
        let apparmor = with(json!({"appArmorProfile": {"type": "RuntimeDefault"}}));
        check(apparmor.clone(), &[], Some(("AppArmor", "AppArmor is not enabled on the host")));
        let node = NodeFacts { pods: 1, has_apparmor: true, ..NodeFacts::default() };
        assert!(admit(&pod(apparmor), false, &node, [].iter()).is_ok());
    }

    #[test]
    fn selinux_label_matters_where_the_machine_has_it() {
        let own = json!({"containers": [{"name": "a", "image": "i"},
            {"name": "b", "image": "i", "securityContext": {"seLinuxOptions": {"level": "s0:c0,c1"}}}]});
        let whole = json!({"securityContext": {"seLinuxOptions": {"level": "s0:c0,c1"}},
            "containers": [{"name": "a", "image": "i"}]});
        let with = NodeFacts { pods: 1, has_selinux: true, ..NodeFacts::default() };
        let without = NodeFacts { has_selinux: false, ..with.clone() };
        for (spec, path) in [
            (own, "spec.containers[1].securityContext.seLinuxOptions"),
            (whole, "spec.securityContext.seLinuxOptions"),
        ] {
            assert!(admit(&pod(spec.clone()), false, &without, [].iter()).is_ok());
            let refused = admit(&pod(spec), false, &with, [].iter()).unwrap_err();
            assert!(refused.message.starts_with(path), "{refused:?}");
        }
        let none =
            json!({"securityContext": {"seLinuxOptions": {}}, "containers": [{"name": "a", "image": "i"}]});
        assert!(admit(&pod(none), false, &with, [].iter()).is_ok());
    }

    #[test]
    fn node_under_pressure_takes_what_upstream_lets_in() {
        let check = |spec: Value, pressures: &[&'static str], is_static, expect: Option<&str>| {
            let node = NodeFacts {
                memory_bytes: 1 << 30,
                pods: 1,
                pressures: pressures.to_vec(),
                ..NodeFacts::default()
            };
            let found = admit(&pod(spec.clone()), is_static, &node, [].iter())
                .map_err(|why| (why.reason, why.message));
            let expect = expect.map(|message| ("Evicted".to_owned(), message.to_owned()));
            assert_eq!(found.err(), expect, "{spec} {pressures:?}");
        };
        let plain = || json!({"containers": [{"name": "a"}]});
        let burstable =
            || json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "1Mi"}}}]});
        let tolerant = |key: &str| json!({"containers": [{"name": "a"}], "tolerations": [{"key": key, "operator": "Exists"}]});
        let critical = || json!({"containers": [{"name": "a"}], "priority": 2_000_000_000});
        let (memory, disk) = ("MemoryPressure", "DiskPressure");
        let refused = "The node had condition: [MemoryPressure]. ";
        check(plain(), &[], false, None);
        check(plain(), &[memory], false, Some(refused));
        check(plain(), &[memory], true, None);
        check(critical(), &[memory, disk], false, None);
        check(burstable(), &[memory], false, None);
        check(tolerant("node.kubernetes.io/memory-pressure"), &[memory], false, None);
        check(tolerant(""), &[memory], false, None);
        check(tolerant("node.kubernetes.io/disk-pressure"), &[memory], false, Some(refused));
        let both = "The node had condition: [MemoryPressure DiskPressure]. ";
        check(burstable(), &[memory, disk], false, Some(both));
        check(burstable(), &[disk], false, Some("The node had condition: [DiskPressure]. "));
    }

    #[test]
    fn static_pod_may_not_refer_to_objects() {
        let env = json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let pod = pod(json!({"containers": [{"name": "a", "env": env}]}));
        let node = NodeFacts { pods: 1, ..NodeFacts::default() };
        assert!(admit(&pod, false, &node, [].iter()).is_ok());
        assert_eq!(admit(&pod, true, &node, [].iter()).unwrap_err().reason, NOT_SERVED);
    }
}
