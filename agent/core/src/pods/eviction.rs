//! Ends pods because the node runs short of a resource, or because they use more of its disk than their
//! limits allow.
//!
//! Always holds, as upstream: while a disk is short, images that no pod needs and the logs of finished pods
//! are removed before running pods are ended; pods end one at a time, and whether another has to end is
//! decided by a look at the host after the first one's files were removed; a static pod, and a pod with a
//! priority of 2,000,000,000 or more, is never ended, and neither is a pod that uses none of the short
//! resource. No pod ends after the pressure has passed, nor while pods are held or the machine shuts down.
//! Pods are measured only while there is pressure or if one has a limit on disk usage, and the pauses between
//! measurements are long compared with the time that measuring takes. Leaves to others: when there is
//! pressure (`node::pressure`), measuring (the runtime), ending a pod (`failing`, `ending`).

use crate::answer::{Level, Now};
use crate::images::thresholds::Thresholds;
use crate::kubelet::Signal;
use crate::kubelet::quantity::bytes;
use crate::node::pressing::Pressing;
use crate::pods::Pods;
use crate::pods::event::{DiskUsage, Measure, PodAction, PodUsage};
use crate::pods::failing::Failed;
use crate::pods::keys::PodUid;
use crate::pods::life::{Life, Swept, Verdict};
use crate::pods::resources::{Resource, requested, storage_limit, storage_limit_of_pod};
use crate::pods::spec::{CRITICAL_PRIORITY, Container, PodSpec};
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::Duration;

/// The grace period of pods that end at once: upstream's.
const LEAST_GRACE_SECS: u64 = 1;
/// How long an evicted pod may take to go before the host is looked at again: upstream's `podCleanupTimeout`.
const CLEANUP: Duration = Duration::from_secs(30);
/// Between two looks at the host while there is pressure: upstream's monitoring interval.
const LOOK: Duration = Duration::from_secs(10);
/// How long removing images and logs may take before pods are considered: it waits for pulls that are under
/// way.
const COLLECTION: Duration = Duration::from_secs(60);
/// How long removing a pod's files may take: an SD card removes some thousand files a second.
const REMOVAL: Duration = Duration::from_secs(10 * 60);
/// Longest pause after a measurement under pressure, however long it took.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Wait before pods are measured again if none of them could be ended.
const NOTHING_TO_END: Duration = Duration::from_secs(60);
/// Interval between two measurements of the disk usage of pods with a limit: upstream's
/// `volumeStatsAggPeriod`.
const LIMITS_EVERY: Duration = Duration::from_secs(60);
/// Measuring takes at most one part in this many of the time.
const SHARE: u32 = 20;
const EVICTED: &str = "Evicted";

/// The current step against the pressure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Step {
    /// None.
    #[default]
    Idle,
    /// Images and the logs of finished pods are being removed; pods are considered at this time at the
    /// latest.
    Collecting {
        until: Duration,
        has_images: bool,
    },
    Measuring(Measure),
    /// This pod ends; the host is looked at again at this time at the latest.
    Ending {
        pod: PodUid,
        until: Duration,
    },
}

/// A pod has ended, and its files are being removed one by one; no other pod ends while the available space
/// grows.
#[derive(Debug, Clone)]
struct Freeing {
    until: Duration,
    /// The time of a look, and the amount that was available then.
    seen: Option<(Duration, Signal, u64)>,
}

impl Freeing {
    /// The state after this look; `None` if the available amount no longer grows, or if the short resource is
    /// not the disk.
    fn after(self, now: Now, pressing: Option<&Pressing>) -> Option<Self> {
        let found = pressing.filter(|it| measure_of(it.signal) == Measure::Disk && now.mono < self.until)?;
        if self.seen.is_some_and(|(at, ..)| now.mono < at.saturating_add(LOOK)) {
            return Some(self);
        }
        let before = self.seen.filter(|(_, signal, _)| *signal == found.signal);
        let grows = before.is_none_or(|(_, _, available)| found.available > available);
        grows.then_some(Self { seen: Some((now.mono, found.signal, found.available)), ..self })
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Eviction {
    /// The pressure that the last look at the host found.
    pressing: Option<Pressing>,
    freeing: Option<Freeing>,
    /// Pods were neither ended nor cleaned up since that look.
    is_fresh: bool,
    step: Step,
    /// Images and logs were removed since the last pod ended, or since the pressure began.
    has_collected: bool,
    /// A pod whose eviction an earlier agent began was searched for.
    has_adopted: bool,
    /// The resource whose shortage was reported.
    reported: Option<&'static str>,
    /// No pod is measured before this time.
    pause: Duration,
    look_due: Option<Duration>,
    /// Pods are being measured for their limits.
    measures_limits: bool,
    limits_due: Duration,
}

impl Pods {
    /// Takes the result of a look at the host.
    pub(crate) fn looked(&mut self, now: Now, pressing: Option<Pressing>) {
        let eviction = &mut self.eviction;
        let freeing = eviction.freeing.take();
        eviction.freeing = freeing.and_then(|freeing| freeing.after(now, pressing.as_ref()));
        eviction.is_fresh = eviction.freeing.is_none();
        eviction.look_due = pressing.as_ref().map(|_| now.mono.saturating_add(LOOK));
        if pressing.is_none() {
            (eviction.has_collected, eviction.reported, eviction.pause) = (false, None, Duration::ZERO);
        }
        eviction.pressing = pressing;
    }

    /// Images were removed, for whatever reason.
    pub(crate) fn images_collected(&mut self) {
        if let Step::Collecting { has_images, .. } = &mut self.eviction.step {
            *has_images = false;
        }
    }

    fn look_anew(&mut self, actions: &mut Vec<PodAction>) {
        (self.eviction.step, self.eviction.is_fresh) = (Step::Idle, false);
        actions.push(PodAction::LookAtHost);
    }

    pub(crate) fn eviction_deadline(&self) -> Option<Duration> {
        let eviction = &self.eviction;
        let step = match eviction.step {
            Step::Ending { until, .. } | Step::Collecting { until, .. } => Some(until),
            Step::Idle | Step::Measuring(_) => None,
        };
        let limits = Some(eviction.limits_due).filter(|_| !eviction.measures_limits && self.has_limits());
        step.into_iter().chain(eviction.look_due).chain(limits).min()
    }

    /// Takes the next step against pressure, and measures pods with limits if that is due.
    pub(crate) fn see_to_pressure(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        match &self.eviction.step {
            Step::Ending { pod, until } => {
                let has_gone = self.lives.get(pod).is_none_or(has_gone);
                if has_gone || *until <= now.mono {
                    let freeing = Freeing { until: now.mono.saturating_add(REMOVAL), seen: None };
                    self.eviction.freeing = has_gone.then_some(freeing);
                    self.eviction.has_collected = false;
                    self.look_anew(actions);
                }
            }
            Step::Collecting { until, has_images } => {
                let has_logs = |life: &Life| life.sandbox.gives_up_logs && life.sandbox.swept != Swept::All;
                let is_done = !has_images && !self.lives.values().any(has_logs);
                if is_done || *until <= now.mono {
                    self.look_anew(actions);
                }
            }
            _ => {}
        }
        if self.eviction.look_due.is_some_and(|due| due <= now.mono) {
            self.eviction.look_due = Some(now.mono.saturating_add(LOOK));
            actions.push(PodAction::LookAtHost);
        }
        if self.eviction.step == Step::Idle && self.eviction.is_fresh && self.eviction.pause <= now.mono {
            self.reclaim(now, actions);
        }
        if !self.eviction.measures_limits && self.eviction.limits_due <= now.mono && self.has_limits() {
            self.eviction.measures_limits = true;
            let pods = self.living().filter(|life| is_limited(life)).map(|life| life.uid.clone()).collect();
            actions.push(PodAction::MeasurePods { measure: Measure::Limits, pods });
        }
    }

    fn reclaim(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        let Some(pressing) = self.eviction.pressing.clone() else { return };
        let resource = pressing.signal.resource();
        if self.eviction.reported != Some(resource) {
            self.eviction.reported = Some(resource);
            let message = format!("Attempting to reclaim {resource}");
            actions.push(PodAction::WarnOfNode { reason: "EvictionThresholdMet", message });
        }
        if self.adopt_an_end(now) {
            return;
        }
        let measure = measure_of(pressing.signal);
        if measure == Measure::Disk && !self.eviction.has_collected {
            self.eviction.has_collected = true;
            self.eviction.step =
                Step::Collecting { until: now.mono.saturating_add(COLLECTION), has_images: true };
            actions.push(PodAction::CollectImages(Thresholds::ALL_UNUSED));
            // the runtime keeps no container of them: it removed these when the pods had finished
            let had_runs = |life: &&mut Life| life.admission.verdict == Verdict::Admitted && life.is_down();
            for life in self.lives.values_mut().filter(had_runs) {
                (life.sandbox.gives_up_logs, life.is_dirty) = (true, true);
            }
            return;
        }
        let pods: Vec<PodUid> = self.candidates(measure).map(|life| life.uid.clone()).collect();
        if pods.is_empty() {
            return self.give_up(now, resource, actions);
        }
        self.eviction.step = Step::Measuring(measure);
        actions.push(PodAction::MeasurePods { measure, pods });
    }

    /// A pod that an earlier agent evicted may still be ending, or its files are being removed: its share is
    /// not available yet, so no other pod may end for it.
    fn adopt_an_end(&mut self, now: Now) -> bool {
        if std::mem::replace(&mut self.eviction.has_adopted, true) {
            return false;
        }
        let ends = self.lives.values().filter_map(|life| {
            let failed =
                life.ending.failed.as_ref().filter(|failed| failed.reason == EVICTED && !has_gone(life))?;
            Some((failed.grace_left(now.mono), life.uid.clone()))
        });
        let Some((grace, pod)) = ends.max() else { return false };
        self.eviction.step = Step::Ending { pod, until: now.mono.saturating_add(CLEANUP.max(grace)) };
        true
    }

    fn give_up(&mut self, now: Now, resource: &str, actions: &mut Vec<PodAction>) {
        let line = format!("the node is low on {resource}, and runs no pod that may be ended for it");
        actions.push(PodAction::Log(Level::Warn, line));
        self.eviction.pause = now.mono.saturating_add(NOTHING_TO_END);
    }

    /// Takes the measured usage of pods.
    pub(crate) fn measured(
        &mut self,
        now: Now,
        measure: Measure,
        usages: &[PodUsage],
        took: Duration,
        actions: &mut Vec<PodAction>,
    ) {
        let may_end = self.is_held == Some(false) && !self.is_shutting_down();
        if measure == Measure::Limits {
            self.eviction.measures_limits = false;
            self.eviction.limits_due = now.mono.saturating_add(LIMITS_EVERY.max(took.saturating_mul(SHARE)));
            for usage in usages.iter().filter(|_| may_end) {
                self.hold_to_limits(now, usage, actions);
            }
            return;
        }
        if self.eviction.step != Step::Measuring(measure) {
            return;
        }
        self.eviction.step = Step::Idle;
        let pressing = self.eviction.pressing.clone();
        let Some(pressing) = pressing.filter(|it| may_end && measure_of(it.signal) == measure) else {
            return;
        };
        // a measurement that takes long is not repeated at once
        self.eviction.pause = now.mono.saturating_add(took.saturating_mul(SHARE).min(LONGEST_PAUSE));
        // if no pod could be measured, it is unknown which one uses most
        let ranked = self.ranked(pressing.signal, usages).filter(|_| !usages.is_empty());
        let Some((uid, usage)) = ranked else {
            return self.give_up(now, pressing.signal.resource(), actions);
        };
        let Some(life) = self.lives.get_mut(&uid) else { return };
        let own = life.own_grace();
        let grace = pressing.longest_grace.map_or(Duration::ZERO, |longest| longest.min(own));
        let message = message_of(life, &pressing, usage);
        evict(life, now, message, true, grace, actions);
        self.eviction.step = Step::Ending { pod: uid, until: now.mono.saturating_add(CLEANUP.max(grace)) };
    }

    /// The pod that ends first, in upstream's order: pods that use more than they requested come first, then
    /// lower priorities, then those that exceed their request by more.
    fn ranked<'a>(&self, signal: Signal, usages: &'a [PodUsage]) -> Option<(PodUid, Option<&'a PodUsage>)> {
        let rank = |life: &Life| {
            let spec = life.pod.as_ref().map(|pod| &pod.spec)?;
            let usage = usages.iter().find(|usage| usage.pod == life.uid);
            let used = usage.and_then(|usage| used_of(signal, spec, usage));
            let requested = resource_of(signal).and_then(|resource| requested(spec, resource)).unwrap_or(0);
            let over = used.map(|used| i128::from(used).saturating_sub(i128::from(requested)));
            // processes cannot be requested
            let exceeds = signal != Signal::Pids && over.is_some_and(|over| over > 0);
            let rank = (used.is_some(), !exceeds, priority(life), Reverse(over));
            Some((rank, life.uid.clone(), usage))
        };
        let candidates = self.candidates(measure_of(signal)).filter_map(rank);
        let first = candidates.min_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        first.map(|(_, uid, usage)| (uid, usage))
    }

    /// Ends a pod that exceeds a limit on disk usage.
    fn hold_to_limits(&mut self, now: Now, usage: &PodUsage, actions: &mut Vec<PodAction>) {
        let Some(life) = self.lives.get_mut(&usage.pod).filter(|life| is_living(life) && !is_critical(life))
        else {
            return;
        };
        let complaint = life.pod.as_ref().and_then(|pod| beyond_limits(&pod.spec, usage));
        if let Some(message) = complaint {
            // as upstream: the pod itself is the cause, so this is not shown as a disruption
            evict(life, now, message, false, Duration::ZERO, actions);
        }
    }

    fn has_limits(&self) -> bool {
        self.living().any(is_limited)
    }

    /// Pods that may be ended for a resource measured this way; if it is memory or processes, only those with
    /// a running container.
    fn candidates(&self, measure: Measure) -> impl Iterator<Item = &Life> {
        let takes = move |life: &&Life| !is_critical(life) && (measure == Measure::Disk || life.may_run());
        self.living().filter(takes)
    }

    /// Pods that use resources of the node and are not ending.
    fn living(&self) -> impl Iterator<Item = &Life> {
        self.lives.values().filter(|life| is_living(life))
    }
}

fn is_living(life: &Life) -> bool {
    life.pod.is_some() && life.admission.verdict == Verdict::Admitted && !life.is_over() && life.has_begun()
}

fn priority(life: &Life) -> i64 {
    life.pod.as_ref().and_then(|pod| pod.spec.priority).unwrap_or(0)
}

/// Upstream's `IsCriticalPod`.
pub(crate) fn is_critical(life: &Life) -> bool {
    life.is_static() || priority(life) >= CRITICAL_PRIORITY
}

fn is_limited(life: &Life) -> bool {
    let Some(pod) = &life.pod else { return false };
    let mut containers = pod.spec.all_containers();
    containers.any(|container| storage_limit(container).is_some())
        || pod.spec.volumes.iter().any(|volume| volume.limit_on_disk().is_some())
}

/// Whether an evicted pod has ended and its files are removed.
fn has_gone(life: &Life) -> bool {
    life.is_down() && life.sandbox.swept != Swept::No
}

fn evict(
    life: &mut Life,
    now: Now,
    message: String,
    is_disruption: bool,
    grace: Duration,
    actions: &mut Vec<PodAction>,
) {
    let text = format!("pod {}/{} is evicted: {message}", life.namespace, life.name);
    actions.push(PodAction::Log(Level::Warn, text));
    life.announce(true, EVICTED, message.clone(), actions);
    let grace_secs = grace.as_secs().max(LEAST_GRACE_SECS);
    life.fail(Failed { reason: EVICTED.into(), message, is_disruption, grace_secs, since: now.mono });
}

fn measure_of(signal: Signal) -> Measure {
    match signal {
        Signal::Memory => Measure::Memory,
        Signal::Pids => Measure::Processes,
        _ => Measure::Disk,
    }
}

/// The resource of requests that corresponds to the signal.
fn resource_of(signal: Signal) -> Option<Resource> {
    match signal {
        Signal::Memory => Some(Resource::Memory),
        Signal::NodefsBytes | Signal::ImagefsBytes => Some(Resource::Storage),
        _ => None,
    }
}

fn amount_of(signal: Signal, disk: DiskUsage) -> u64 {
    match signal {
        Signal::NodefsInodes | Signal::ImagefsInodes => disk.inodes,
        _ => disk.bytes,
    }
}

fn used_of(signal: Signal, spec: &PodSpec, usage: &PodUsage) -> Option<u64> {
    match signal {
        Signal::Memory => usage.memory_bytes,
        Signal::Pids => usage.processes,
        _ => Some(amount_of(signal, disk_of(spec, usage))),
    }
}

/// A pod's disk usage: its containers' root file systems and logs, and its own volumes.
fn disk_of(spec: &PodSpec, usage: &PodUsage) -> DiskUsage {
    let is_own =
        |name: &String| spec.volumes.iter().any(|volume| volume.name == *name && volume.is_on_disk());
    let volumes = usage.volumes.iter().filter(|(name, _)| is_own(name)).map(|(_, disk)| *disk);
    let containers = usage.containers.values().filter_map(|container| container.disk);
    containers.chain(volumes).fold(DiskUsage::default(), DiskUsage::plus)
}

/// The limit that the pod exceeds, with upstream's text and in its order.
fn beyond_limits(spec: &PodSpec, usage: &PodUsage) -> Option<String> {
    let volume = spec.volumes.iter().find_map(|volume| {
        let (limit, used) = (volume.limit_on_disk()?, usage.volumes.get(&volume.name)?);
        let text =
            || format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", volume.name, bytes(limit));
        (used.bytes > limit).then(text)
    });
    let pod = || {
        let limit = storage_limit_of_pod(spec)?;
        (disk_of(spec, usage).bytes > limit).then(|| {
            format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
                bytes(limit)
            )
        })
    };
    let container = || {
        spec.all_containers().find_map(|container| {
            let limit = storage_limit(container)?;
            let used = usage.containers.get(&container.name)?.disk?.bytes;
            let (name, text) = (&container.name, bytes(limit));
            let text = || format!("Container {name} exceeded its local ephemeral storage limit {text:?}. ");
            (used > limit).then(text)
        })
    };
    volume.or_else(pod).or_else(container)
}

/// Upstream's text.
fn message_of(life: &Life, pressing: &Pressing, usage: Option<&PodUsage>) -> String {
    let signal = pressing.signal;
    let resource = signal.resource();
    let shown = |amount: u64| match signal {
        Signal::Memory | Signal::NodefsBytes | Signal::ImagefsBytes => bytes(amount),
        _ => thousands(amount),
    };
    let (least, available) = (shown(pressing.least), shown(pressing.available));
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {least}, available: {available}. "
    );
    let containers = life.pod.iter().flat_map(|pod| pod.spec.all_containers());
    for container in containers {
        let Some((used, requested)) = usage.and_then(|usage| consumption(signal, container, usage)) else {
            continue;
        };
        if used > requested {
            let (name, used, requested) = (&container.name, shown(used), shown(requested));
            let _ = write!(
                message,
                "Container {name} was using {used}, request is {requested}, has larger consumption of {resource}. "
            );
        }
    }
    message
}

/// A container's usage, and its request.
fn consumption(signal: Signal, container: &Container, usage: &PodUsage) -> Option<(u64, u64)> {
    let own = usage.containers.get(&container.name)?;
    let used = match signal {
        Signal::Memory => own.memory_bytes?,
        Signal::NodefsBytes | Signal::ImagefsBytes => own.disk?.bytes,
        _ => return None,
    };
    Some((used, resource_of(signal)?.requested_by(container).unwrap_or(0)))
}

/// Formats a number that does not count bytes as the API server does.
fn thousands(value: u64) -> String {
    let mut value = value;
    for suffix in ["", "k", "M", "G", "T", "P"] {
        if !value.is_multiple_of(1000) || value == 0 {
            return format!("{value}{suffix}");
        }
        value /= 1000;
    }
    format!("{value}E")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PodEvent;
    use crate::pods::event::{ContainerState, ContainerUsage, Exit, Observation};
    use crate::pods::fixture::Node;
    use crate::pods::keys::ContainerKey;
    use serde_json::{Value, json};

    const MI: u64 = 1 << 20;

    fn pressing(signal: Signal, longest_grace: Option<u64>) -> Option<Pressing> {
        let longest_grace = longest_grace.map(Duration::from_secs);
        Some(Pressing { signal, least: 100 * MI, available: 50 * MI, longest_grace })
    }

    fn looked(node: &mut Node, pressing: Option<Pressing>) {
        node.tell(PodEvent::Looked(pressing));
    }

    fn spec(priority: i64, request: &str) -> Value {
        json!({"priority": priority, "containers": [{"name": "a", "image": "x:1",
            "resources": {"requests": {"memory": request, "ephemeral-storage": request}}}]})
    }

    /// A pod whose only container uses this many MiB of each resource.
    fn takes(pod: &str, mi: u64) -> PodUsage {
        let disk = DiskUsage { bytes: mi * MI, inodes: mi };
        let own = ContainerUsage { memory_bytes: Some(mi * MI), disk: Some(disk) };
        PodUsage {
            pod: PodUid::new(pod).expect("a UID"),
            memory_bytes: Some(mi * MI),
            processes: Some(mi),
            containers: [("a".to_owned(), own)].into(),
            volumes: Default::default(),
        }
    }

    fn measured(node: &mut Node, measure: Measure, usages: Vec<PodUsage>) {
        node.tell(PodEvent::PodsMeasured { measure, usages, took: Duration::ZERO });
    }

    fn asked(node: &Node) -> Vec<Measure> {
        let measure = |action: &PodAction| match action {
            PodAction::MeasurePods { measure, .. } => Some(*measure),
            _ => None,
        };
        node.seen.iter().filter_map(measure).collect()
    }

    #[test]
    fn pod_is_evicted_in_upstreams_words() {
        let mut node = Node::new();
        node.bind("p", spec(0, "10Mi"));
        looked(&mut node, pressing(Signal::Memory, None));
        assert_eq!(asked(&node), [Measure::Memory], "no image is removed for memory");
        measured(&mut node, Measure::Memory, vec![takes("p", 64)]);
        let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
            Container a was using 64Mi, request is 10Mi, has larger consumption of memory. ";
        let status = node.status("p");
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
        assert_eq!(status["message"], message);
        let condition = node.condition("p", "DisruptionTarget");
        assert_eq!([&condition["status"], &condition["reason"]], ["True", "TerminationByKubelet"]);
        assert_eq!(condition["message"], message);
        assert!(node.news().contains(&format!("Evicted {message}")));
        assert_eq!(node.stops(), [("p", 2)], "as soon as a pod can end here");
        let met = "Attempting to reclaim memory".to_owned();
        let met = PodAction::WarnOfNode { reason: "EvictionThresholdMet", message: met };
        assert_eq!(node.seen.iter().filter(|action| **action == met).count(), 1);
        assert!(node.runs.is_empty());
    }

    #[test]
    fn order_is_by_excess_then_priority_then_amount() {
        // name, priority, request and use; the first to end comes next
        type Row = (&'static str, i64, &'static str, u64);
        let check = |signal: Signal, rows: &[Row], expect: &str| {
            let mut node = Node::new();
            rows.iter().for_each(|(name, priority, request, _)| node.bind(name, spec(*priority, request)));
            looked(&mut node, pressing(signal, None));
            if measure_of(signal) == Measure::Disk {
                node.tell(PodEvent::ImagesCollected(Err("none".into())));
                looked(&mut node, pressing(signal, None));
            }
            let usages =
                rows.iter().filter(|row| row.3 > 0).map(|(name, _, _, mi)| takes(name, *mi)).collect();
            measured(&mut node, measure_of(signal), usages);
            let first = node.stops().first().map(|(name, _)| (*name).to_owned());
            assert_eq!(first.unwrap_or_default(), expect, "{signal:?} {rows:?}");
            assert!(node.stops().len() <= 1, "one at a time");
        };
        let memory = Signal::Memory;
        check(memory, &[("a", 0, "100Mi", 99), ("b", 1000, "10Mi", 11)], "b");
        check(memory, &[("a", 5, "0", 900), ("b", 1, "0", 10)], "b");
        check(memory, &[("a", 0, "50Mi", 100), ("b", 0, "10Mi", 70)], "b");
        check(memory, &[("a", 0, "50Mi", 40), ("b", 0, "50Mi", 45)], "b");
        check(memory, &[("a", 0, "0", 900), ("b", 0, "10Mi", 0)], "b");
        check(memory, &[("a", CRITICAL_PRIORITY, "0", 900), ("b", 1000, "100Mi", 1)], "b");
        check(memory, &[("a", CRITICAL_PRIORITY, "0", 900)], "");
        check(Signal::NodefsBytes, &[("a", 0, "50Mi", 40), ("b", 7, "10Mi", 20)], "b");
        check(Signal::ImagefsInodes, &[("a", 0, "50Mi", 40), ("b", 0, "10Mi", 20)], "a");
        check(Signal::Pids, &[("a", 0, "0", 4), ("b", 7, "0", 40)], "a");
        check(Signal::Pids, &[("a", 0, "0", 4), ("b", 0, "0", 40)], "b");
    }

    #[test]
    fn images_go_before_pods() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        let collects = |node: &Node| {
            let all = node.seen.iter();
            all.filter(|action| matches!(action, PodAction::CollectImages(_))).count()
        };
        looked(&mut node, pressing(Signal::NodefsBytes, None));
        looked(&mut node, pressing(Signal::NodefsBytes, None));
        assert_eq!((collects(&node), asked(&node).len()), (1, 0));
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        assert_eq!(node.seen.last(), Some(&PodAction::LookAtHost), "perhaps that was enough");
        looked(&mut node, None);
        assert!(asked(&node).is_empty());
        looked(&mut node, pressing(Signal::NodefsBytes, None));
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        looked(&mut node, pressing(Signal::NodefsBytes, None));
        assert_eq!((collects(&node), asked(&node)), (2, vec![Measure::Disk]));
    }

    #[test]
    fn logs_of_finished_pods_go_before_pods() {
        let removes = |node: &Node, keep_logs: bool| {
            let removal = PodAction::RemovePod { pod: PodUid::new("done").expect("a UID"), keep_logs };
            node.seen.iter().filter(|action| **action == removal).count()
        };
        for is_removed in [true, false] {
            let mut node = Node::new();
            node.bind("p", spec(0, "0"));
            node.bind("done", json!({"restartPolicy": "Never"}));
            node.ends("done", "a", 0);
            node.wait(1000);
            assert_eq!(
                (removes(&node, true), removes(&node, false)),
                (1, 0),
                "they stay while there is room"
            );
            node.keeps_logs = true;
            short_of_disk(&mut node, 1);
            assert_eq!((removes(&node, false), asked(&node).len()), (1, 0));
            node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
            assert_ne!(node.seen.last(), Some(&PodAction::LookAtHost), "they are being removed");
            if is_removed {
                node.tell(PodEvent::PodRemoved { pod: PodUid::new("done").expect("a UID") });
                assert_eq!(node.seen.last(), Some(&PodAction::LookAtHost), "perhaps that was enough");
            } else {
                node.wait(COLLECTION.as_secs() - 1);
                short_of_disk(&mut node, 1);
                assert!(asked(&node).is_empty(), "not before its time");
                node.wait(1);
            }
            assert!(node.runs("p") && asked(&node).is_empty());
            let status = node.status("done").clone();
            short_of_disk(&mut node, 1);
            assert_eq!(asked(&node), [Measure::Disk]);
            measured(&mut node, Measure::Disk, vec![takes("p", 1)]);
            assert_eq!(node.stops(), [("p", 2)]);
            assert_eq!((&status, removes(&node, false)), (node.status("done"), 1), "it ended before");
        }
    }

    #[test]
    fn logs_of_finished_pods_stay_where_memory_is_short() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        node.bind("done", json!({"restartPolicy": "Never"}));
        node.ends("done", "a", 0);
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, vec![takes("p", 1)]);
        let removes_logs =
            |action: &PodAction| matches!(action, PodAction::RemovePod { keep_logs: false, .. });
        assert!(!node.seen.iter().any(removes_logs));
    }

    #[test]
    fn eviction_ends_with_the_pressure() {
        let mut node = Node::new();
        ["a", "b", "c"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        let all = || vec![takes("a", 3), takes("b", 2), takes("c", 1)];
        looked(&mut node, pressing(Signal::Memory, None));
        looked(&mut node, None);
        measured(&mut node, Measure::Memory, all());
        assert!(node.stops().is_empty(), "it passed while pods were measured");
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, all());
        assert_eq!(node.stops(), [("a", 2)]);
        assert_eq!(asked(&node).len(), 2, "the next one only by another look");
        assert!(node.seen.contains(&PodAction::LookAtHost), "which comes once it has gone");
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, all());
        assert_eq!(node.stops(), [("a", 2), ("b", 2)]);
        looked(&mut node, None);
        node.wait(1000);
        assert!(node.runs("c"));
        assert_eq!(asked(&node).len(), 3);
    }

    fn short_of_disk(node: &mut Node, available: u64) {
        let pressing = pressing(Signal::NodefsBytes, None).map(|it| Pressing { available, ..it });
        looked(node, pressing);
    }

    #[test]
    fn next_pod_waits_while_files_of_the_last_are_removed() {
        let mut node = Node::new();
        ["a", "b"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        short_of_disk(&mut node, 1);
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        short_of_disk(&mut node, 1);
        measured(&mut node, Measure::Disk, vec![takes("a", 3), takes("b", 2)]);
        assert_eq!(node.stops(), [("a", 2)]);
        for available in [1, 5, 9] {
            short_of_disk(&mut node, available);
            node.wait(4);
            // a look that another part requested
            short_of_disk(&mut node, available);
            node.wait(6);
            let collections = node.seen.iter().filter(|it| matches!(it, PodAction::CollectImages(_)));
            assert_eq!((collections.count(), asked(&node).len()), (1, 1), "{available}");
        }
        // all its files are removed, and the disk is still short
        short_of_disk(&mut node, 9);
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        short_of_disk(&mut node, 9);
        measured(&mut node, Measure::Disk, vec![takes("b", 2)]);
        assert_eq!(node.stops(), [("a", 2), ("b", 2)]);
    }

    #[test]
    fn removal_without_end_holds_up_the_next_pod_for_its_time() {
        let mut node = Node::new();
        ["a", "b"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        short_of_disk(&mut node, 1);
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        short_of_disk(&mut node, 1);
        measured(&mut node, Measure::Disk, vec![takes("a", 3), takes("b", 2)]);
        let mut available = 1;
        while node.seen.iter().filter(|it| matches!(it, PodAction::CollectImages(_))).count() < 2 {
            available += 1;
            short_of_disk(&mut node, available);
            node.wait(10);
            assert!(available < 100, "it is over at some time");
        }
        assert_eq!(available, 62);
    }

    #[test]
    fn images_that_take_long_to_remove_hold_up_no_eviction() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        short_of_disk(&mut node, 1);
        node.wait(59);
        short_of_disk(&mut node, 1);
        assert!(asked(&node).is_empty());
        node.wait(1);
        short_of_disk(&mut node, 1);
        assert_eq!(asked(&node), [Measure::Disk]);
        node.tell(PodEvent::ImagesCollected(Err("it was a pull that held it up".into())));
        measured(&mut node, Measure::Disk, vec![takes("p", 1)]);
        assert_eq!(node.stops(), [("p", 2)]);
    }

    #[test]
    fn pod_that_has_nothing_is_not_evicted_first() {
        let mut node = Node::new();
        ["hog", "idle"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        short_of_disk(&mut node, 1);
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        short_of_disk(&mut node, 1);
        let nothing = PodUsage { containers: Default::default(), ..takes("idle", 0) };
        measured(&mut node, Measure::Disk, vec![takes("hog", 1), nothing]);
        assert_eq!(node.stops(), [("hog", 2)], "it has nothing on the disk, and that is known");

        let mut node = Node::new();
        ["hog", "idle"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        while node.runs("idle") {
            crash(&mut node, "idle");
        }
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, vec![takes("hog", 1)]);
        assert_eq!(node.stops(), [("hog", 2)], "one that waits for its next start has no memory");
    }

    fn crash(node: &mut Node, pod: &str) {
        let mut runs = node.runs.iter();
        let is_it = |(key, state): &(&ContainerKey, &ContainerState)| {
            key.pod.as_str() == pod && matches!(state, ContainerState::Running { .. })
        };
        let container = runs.find(is_it).expect("it runs").0.clone();
        let exit = Exit {
            code: 1,
            signal: None,
            oom_killed: false,
            started: None,
            finished: None,
            message: String::new(),
        };
        let state = ContainerState::Exited(exit);
        node.runs.insert(container.clone(), state.clone());
        let (image_name, image_reference) = ("x:1".into(), "x:1".into());
        node.tell(PodEvent::Observed(Observation { container, state, image_name, image_reference }));
    }

    #[test]
    fn nothing_is_evicted_while_the_machine_stops() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        looked(&mut node, pressing(Signal::Memory, None));
        node.tell(PodEvent::Shutdown(true));
        measured(&mut node, Measure::Memory, vec![takes("p", 1)]);
        assert_eq!(node.status("p")["phase"], "Running", "it comes again after the boot");
    }

    #[test]
    fn soft_eviction_gives_pods_their_time() {
        for (longest, own, expect) in [(60, 30, 30), (20, 30, 20), (0, 30, 2)] {
            let mut node = Node::new();
            let mut spec = spec(0, "0");
            spec["terminationGracePeriodSeconds"] = json!(own);
            node.bind("p", spec);
            looked(&mut node, pressing(Signal::Memory, Some(longest)));
            measured(&mut node, Measure::Memory, vec![takes("p", 1)]);
            assert_eq!(node.stops(), [("p", expect)]);
        }
    }

    #[test]
    fn pod_that_does_not_end_holds_up_the_next_for_half_a_minute() {
        let mut node = Node::new();
        ["a", "b"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        node.is_deaf = true;
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, vec![takes("a", 3), takes("b", 2)]);
        node.wait(29);
        looked(&mut node, pressing(Signal::Memory, None));
        assert_eq!(asked(&node).len(), 1);
        node.wait(1);
        looked(&mut node, pressing(Signal::Memory, None));
        assert_eq!(asked(&node).len(), 2);
    }

    #[test]
    fn eviction_goes_on_with_the_next_agent() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        node.is_deaf = true;
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, vec![takes("p", 1)]);
        assert_eq!(node.stops().len(), 1);
        node.is_deaf = false;
        node.start();
        let status = node.status("p");
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
        assert_eq!(node.condition("p", "DisruptionTarget")["status"], "True");
        assert!(node.runs.is_empty());
    }

    #[test]
    fn next_agent_ends_no_other_pod_while_the_evicted_one_ends() {
        for does_end in [true, false] {
            let mut node = Node::new();
            ["a", "b"].iter().for_each(|name| node.bind(name, spec(0, "0")));
            node.is_deaf = true;
            looked(&mut node, pressing(Signal::Memory, Some(60)));
            measured(&mut node, Measure::Memory, vec![takes("a", 3), takes("b", 2)]);
            assert_eq!(node.stops(), [("a", 30)]);
            node.start();
            looked(&mut node, pressing(Signal::Memory, Some(60)));
            node.wait(20);
            looked(&mut node, pressing(Signal::Memory, Some(60)));
            assert_eq!(asked(&node).len(), 1, "its end is awaited by this agent, too");
            // the pod ends, or its time is over
            if does_end {
                node.ends("a", "a", 0);
            } else {
                node.wait(10);
            }
            looked(&mut node, pressing(Signal::Memory, Some(60)));
            assert_eq!(asked(&node).len(), 2);
            measured(&mut node, Measure::Memory, vec![takes("b", 2)]);
            assert_eq!(node.stops().last(), Some(&("b", 30)));
        }
    }

    #[test]
    fn restarted_agent_evicts_one_pod_while_its_files_go() {
        let mut node = Node::new();
        ["a", "b"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        node.keeps_files = true;
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, vec![takes("a", 3), takes("b", 2)]);
        assert!(!node.runs("a") && node.stops().len() == 1);
        node.start();
        for _ in 0..3 {
            looked(&mut node, pressing(Signal::Memory, None));
            node.wait(5);
        }
        assert_eq!(asked(&node).len(), 1, "what it had is not free yet");
        node.keeps_files = false;
        node.tell(PodEvent::PodRemoved { pod: PodUid::new("a").expect("it is one") });
        looked(&mut node, pressing(Signal::Memory, None));
        assert_eq!(asked(&node).len(), 2);
        // a pod that has been gone for long delays no other
        measured(&mut node, Measure::Memory, vec![takes("b", 2)]);
        assert!(!node.runs("b"));
        node.start();
        node.bind("c", spec(0, "0"));
        looked(&mut node, pressing(Signal::Memory, None));
        assert_eq!(asked(&node).len(), 3);
    }

    #[test]
    fn nothing_is_evicted_while_pods_are_held() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        looked(&mut node, pressing(Signal::Memory, None));
        node.tell(PodEvent::Held(true));
        measured(&mut node, Measure::Memory, vec![takes("p", 1)]);
        looked(&mut node, pressing(Signal::Memory, None));
        assert!(node.stops().is_empty());
        assert_eq!(asked(&node).len(), 1);
    }

    #[test]
    fn pod_measured_while_pods_are_held_stays() {
        for measure in [Measure::Memory, Measure::Limits] {
            let mut node = Node::new();
            let mut limited = spec(0, "0");
            limited["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "1Mi"}});
            node.bind("p", limited);
            looked(&mut node, pressing(Signal::Memory, None));
            node.tell(PodEvent::Held(true));
            measured(&mut node, measure, vec![takes("p", 64)]);
            looked(&mut node, None);
            node.tell(PodEvent::Held(false));
            node.wait(5);
            assert!(node.runs("p") && node.status("p")["phase"] == "Running", "{measure:?}");
        }
    }

    #[test]
    fn no_pod_ends_where_none_could_be_measured() {
        let mut node = Node::new();
        node.bind("p", spec(0, "0"));
        looked(&mut node, pressing(Signal::Memory, None));
        measured(&mut node, Measure::Memory, vec![]);
        assert!(node.stops().is_empty() && node.runs("p"));
    }

    #[test]
    fn walk_over_a_slow_disk_is_not_repeated_at_once() {
        let mut node = Node::new();
        ["a", "b"].iter().for_each(|name| node.bind(name, spec(0, "0")));
        short_of_disk(&mut node, 1);
        node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
        short_of_disk(&mut node, 1);
        let (usages, took) = (vec![takes("a", 3), takes("b", 2)], Duration::from_secs(10));
        node.tell(PodEvent::PodsMeasured { measure: Measure::Disk, usages, took });
        let mut repeated_after = 0;
        while asked(&node).len() < 2 {
            node.wait(1);
            repeated_after += 1;
            short_of_disk(&mut node, 1);
            node.tell(PodEvent::ImagesCollected(Err("nothing to remove".into())));
            assert!(repeated_after < 1000, "it is repeated at some time");
        }
        assert!((200..220).contains(&repeated_after), "a twentieth of the time: {repeated_after}");
    }

    #[test]
    fn grace_of_the_evicted_pod_holds_up_the_next() {
        let mut node = Node::new();
        let patient = json!({"terminationGracePeriodSeconds": 60});
        ["a", "b"].iter().for_each(|name| node.bind(name, patient.clone()));
        node.is_deaf = true;
        let soft = || pressing(Signal::Memory, Some(100));
        looked(&mut node, soft());
        measured(&mut node, Measure::Memory, vec![takes("a", 3), takes("b", 2)]);
        node.wait(59);
        looked(&mut node, soft());
        assert_eq!(asked(&node).len(), 1, "it has its grace");
        node.wait(1);
        looked(&mut node, soft());
        assert_eq!(asked(&node).len(), 2);
    }

    #[test]
    fn host_is_looked_at_every_ten_seconds_under_pressure() {
        let mut node = Node::new();
        node.bind("p", spec(CRITICAL_PRIORITY, "0"));
        looked(&mut node, pressing(Signal::Memory, None));
        node.seen.clear();
        let looks = |node: &Node| node.seen.iter().filter(|it| **it == PodAction::LookAtHost).count();
        for count in 1..=3 {
            node.wait(10);
            assert_eq!(looks(&node), count);
            looked(&mut node, pressing(Signal::Memory, None));
        }
        looked(&mut node, None);
        node.wait(100);
        assert_eq!(looks(&node), 3, "and no more after it");
    }

    #[test]
    fn pod_beyond_its_limits_on_the_disk_is_evicted() {
        let limited = |limit: &str| {
            json!({"containers": [{"name": "a", "image": "x:1", "resources": {"limits": {"ephemeral-storage": limit}}}],
                "volumes": [{"name": "v", "emptyDir": {}}]})
        };
        let volume = |medium: &str| json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi", "medium": medium}}]});
        let with_volume = |mi: u64| {
            let mut usage = takes("p", 1);
            usage.volumes.insert("v".into(), DiskUsage { bytes: mi * MI, inodes: 1 });
            usage
        };
        let check = |spec: Value, usage: PodUsage, expect: &str| {
            let mut node = Node::new();
            node.bind("p", spec);
            node.wait(60);
            let is_measured = asked(&node) == [Measure::Limits];
            if is_measured {
                measured(&mut node, Measure::Limits, vec![usage]);
            }
            let message = node.status("p")["message"].as_str().unwrap_or_default();
            assert_eq!(message, expect);
            assert_eq!(node.runs("p"), expect.is_empty());
            assert!(node.condition("p", "DisruptionTarget").is_null());
        };
        check(limited("10Mi"), takes("p", 10), "");
        let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ";
        check(limited("10Mi"), takes("p", 11), whole);
        check(limited("10Mi"), with_volume(10), whole);
        check(volume(""), with_volume(10), "");
        check(volume(""), with_volume(11), "Usage of EmptyDir volume \"v\" exceeds the limit \"10Mi\". ");
        check(volume("Memory"), with_volume(11), "");
        let two = json!({"containers": [
            {"name": "a", "image": "x:1", "resources": {"limits": {"ephemeral-storage": "10Mi"}}},
            {"name": "b", "image": "x:1", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}]});
        check(two, takes("p", 11), "Container a exceeded its local ephemeral storage limit \"10Mi\". ");
        // as for each resource: an init container counts in place of the containers that start after it
        let mut first = limited("8Mi");
        first["initContainers"] = json!([{"name": "i", "image": "x:1",
            "resources": {"limits": {"ephemeral-storage": "10Mi"}}}]);
        check(first, with_volume(10), whole);
    }

    #[test]
    fn pods_without_limits_are_not_measured() {
        let mut node = Node::new();
        node.bind("p", spec(0, "1Mi"));
        node.wait(1000);
        assert!(asked(&node).is_empty());
        let limits = json!({"containers": [{"name": "a", "image": "x:1",
            "resources": {"limits": {"ephemeral-storage": "1Mi"}}}]});
        node.bind("q", limits);
        node.wait(10);
        let took = Duration::from_secs(10);
        let usages = vec![takes("q", 1)];
        node.tell(PodEvent::PodsMeasured { measure: Measure::Limits, usages, took });
        node.wait(199);
        assert_eq!(asked(&node).len(), 1, "a twentieth of the time");
        node.wait(1);
        assert_eq!(asked(&node).len(), 2);
    }
}
