//! The performer on a board in memory: core's orders, and the answers that its contract requires.

use super::*;
use kedge_core::pods::{ContainerState as Told, Dns, Image, QosClass, Resources, Volume, VolumeSource};
use kedge_platform::workloads::{FakeFault, FakeWorkloads};
use kedge_rig::Scratch;

pub(super) struct Shelf;

impl Layers for Shelf {
    fn layers(&self, image: &str) -> Result<Vec<PathBuf>, String> {
        match image {
            "here" => Ok(vec!["/layer".into()]),
            other => Err(format!("image {other:?} is not there")),
        }
    }
}

pub(super) fn performer(scratch: &Scratch, workloads: FakeWorkloads) -> Performer<FakeWorkloads, Shelf> {
    let plugins = Plugins {
        configurations: scratch.join("net.d"),
        programs: vec![scratch.join("plugins")],
        limit: Duration::from_secs(60),
    };
    performer_with(scratch, workloads, plugins)
}

pub(super) fn performer_with(
    scratch: &Scratch,
    workloads: FakeWorkloads,
    plugins: Plugins,
) -> Performer<FakeWorkloads, Shelf> {
    let node = Node {
        pods_group: "/kedgepods".into(),
        has_unified_groups: true,
        least_oom_score: -1000,
        lacking_capabilities: 0,
        memory_bytes: 1 << 30,
        allocatable_memory_bytes: 1 << 29,
        processes: Some(10_000),
        pod_pids_limit: None,
        volumes: volumes::Places { disk: scratch.join("disk"), memory: scratch.join("memory") },
        seccomp: scratch.join("seccomp"),
        logs: scratch.join("logs"),
        log_max_bytes: 1 << 20,
        log_max_files: 2,
        etc: scratch.join("etc"),
        plugins,
        plugins_lock: scratch.join("plugins.lock"),
        networks: scratch.join("networks"),
        looks: looks::Places { program: PathBuf::new(), locks: scratch.join("looks") },
        cluster_dns: Vec::new(),
        cluster_domain: String::new(),
    };
    Performer::new(workloads, Shelf, node, Arc::new(|| {}))
}

pub(super) fn pod() -> PodUid {
    PodUid::new("uid-1").unwrap()
}

fn key(attempt: u32) -> ContainerKey {
    ContainerKey { pod: pod(), container: "web".into(), attempt }
}

pub(super) fn sandbox() -> PodSandbox {
    PodSandbox {
        uid: pod(),
        namespace: "prod".into(),
        name: "web-0".into(),
        node_uid: "node".into(),
        hostname: "edge".into(),
        host_network: true,
        host_pid: false,
        host_ipc: false,
        share_process_namespace: false,
        qos: QosClass::BestEffort,
        resources: Resources::default(),
        volumes: vec![Volume {
            name: "data".into(),
            source: VolumeSource::EmptyDir { memory: false, size_limit: None },
            group: None,
        }],
        host_ports: Vec::new(),
        dns: Dns::default(),
        host_aliases: Vec::new(),
    }
}

fn order(image: &str, user: &str) -> pods::ContainerOrder {
    let mut image = Image { id: image.into(), reference: format!("{image}@sha256:0"), ..Image::default() };
    image.config.user = user.into();
    pods::ContainerOrder {
        key: key(0),
        namespace: "prod".into(),
        pod_name: "web-0".into(),
        image_name: "here:1".into(),
        image,
        argv: vec!["/web".into()],
        env: Vec::new(),
        working_dir: String::new(),
        mounts: vec![pods::Mount {
            volume: "data".into(),
            path: "/data".into(),
            read_only: false,
            no_exec: false,
            follows_host: false,
            sub_path: String::new(),
        }],
        resources: Resources::default(),
        security: pods::Security::default(),
        qos: QosClass::BestEffort,
        stop_signal: "SIGUSR1".into(),
        termination_message: pods::TerminationMessage {
            path: "/dev/termination-log".into(),
            falls_back_to_logs: true,
        },
        console: pods::Console::default(),
    }
}

/// The answers to one order, including observed ones.
#[track_caller]
fn perform(performer: &mut Performer<FakeWorkloads, Shelf>, action: PodAction) -> Vec<PodEvent> {
    let mut events = performer.perform(&action).expect("it is an order of the runtime");
    events.extend(performer.observe(Duration::ZERO));
    events
}

fn states(events: &[PodEvent]) -> Vec<Told> {
    let state = |event: &PodEvent| match event {
        PodEvent::Observed(observation) => Some(observation.state.clone()),
        _ => None,
    };
    events.iter().filter_map(state).collect()
}

#[track_caller]
pub(super) fn check_failed(events: &[PodEvent], command: &Command, reason: FailureReason, part: &str) {
    let [PodEvent::Failed { command: found, failure }] = events else { panic!("{events:?}") };
    assert_eq!((found, failure.reason), (command, reason));
    assert!(failure.message.contains(part), "{}", failure.message);
}

fn running(scratch: &Scratch, workloads: FakeWorkloads) -> Performer<FakeWorkloads, Shelf> {
    let mut performer = performer(scratch, workloads);
    let prepared = perform(&mut performer, PodAction::PreparePod(Box::new(sandbox())));
    assert!(matches!(&prepared[..], [PodEvent::PodPrepared { .. }]), "{prepared:?}");
    let created = perform(&mut performer, PodAction::CreateContainer(Box::new(order("here", ""))));
    assert_eq!(states(&created), [Told::Created]);
    let started = perform(&mut performer, PodAction::StartContainer(key(0)));
    assert!(matches!(states(&started)[..], [Told::Running { .. }]));
    performer
}

#[test]
fn life_of_a_pod_is_answered_step_by_step() {
    let scratch = Scratch::new("performer").unwrap();
    let mut performer = running(&scratch, FakeWorkloads::default());
    let stop = PodAction::StopContainer { container: key(0), signal: None, grace: Duration::from_secs(9) };
    let stopped = perform(&mut performer, stop.clone());
    let [Told::Exited(exit)] = &states(&stopped)[..] else { panic!("{stopped:?}") };
    assert_eq!((exit.code, exit.signal), (138, Some(10)), "the image's own signal");
    // a container that has ended answers again
    assert_eq!(states(&perform(&mut performer, stop)).len(), 1);
    let removed = perform(&mut performer, PodAction::RemoveContainer(key(0)));
    assert_eq!(removed, [PodEvent::ContainerRemoved(key(0))]);
    std::fs::create_dir_all(scratch.join("logs/prod_web-0_uid-1/web")).unwrap();
    let removed = perform(&mut performer, PodAction::RemovePod { pod: pod(), keep_logs: false });
    assert_eq!(removed, [PodEvent::PodRemoved { pod: pod() }]);
    assert!(!scratch.join("logs/prod_web-0_uid-1").exists() && !scratch.join("disk/uid-1").exists());
    let PodEvent::Inventory(inventory) = performer.inventory() else { panic!() };
    assert_eq!(inventory, Inventory::default());
}

#[test]
fn next_agent_finds_all_in_the_inventory() {
    let scratch = Scratch::new("performer").unwrap();
    let mut first = running(&scratch, FakeWorkloads::default());
    let next = first.workloads().after_restart();
    std::fs::create_dir_all(scratch.join("logs/prod_web-0_uid-1/web")).unwrap();
    for name in ["0.log", "3.log", "3.log.1", "junk"] {
        scratch.write(&format!("logs/prod_web-0_uid-1/web/{name}"), "");
    }
    let mut performer = performer(&scratch, next);
    let PodEvent::Inventory(inventory) = performer.inventory() else { panic!() };
    let [found] = &inventory.pods[..] else { panic!("{inventory:?}") };
    assert_eq!(
        (found.namespace.as_str(), found.name.as_str(), found.node_uid.as_str()),
        ("prod", "web-0", "node")
    );
    assert!(found.network.is_some());
    let [container] = &inventory.containers[..] else { panic!("{inventory:?}") };
    assert!(matches!(container.state, Told::Running { .. }));
    assert_eq!(container.image_reference, "here@sha256:0");
    assert_eq!(container.image_name, "here:1", "an edit of the pod is noticed by it");
    assert_eq!(inventory.logs[&pod()]["web"], 3);
    // a container of the pod can be made without preparing the pod again
    let mut more = order("here", "");
    more.key.attempt = 1;
    let created = perform(&mut performer, PodAction::CreateContainer(Box::new(more)));
    assert_eq!(states(&created), [Told::Created]);
}

#[test]
fn each_failure_has_its_reason() {
    let scratch = Scratch::new("performer").unwrap();
    let mut performer = performer(&scratch, FakeWorkloads::default());
    let prepare = Command::PreparePod(pod());
    let own_network = PodSandbox { host_network: false, ..sandbox() };
    let events = perform(&mut performer, PodAction::PreparePod(Box::new(own_network)));
    check_failed(&events, &prepare, FailureReason::Network, "no network config found in ");
    let mut bad = sandbox();
    bad.volumes[0].source =
        VolumeSource::HostPath { path: "/nonexistent/x".into(), kind: "Directory".into() };
    let events = perform(&mut performer, PodAction::PreparePod(Box::new(bad)));
    check_failed(&events, &prepare, FailureReason::Volume, "volume \"data\": hostPath /nonexistent/x");
    perform(&mut performer, PodAction::PreparePod(Box::new(sandbox())));
    let create = Command::CreateContainer(key(0));
    let events = perform(&mut performer, PodAction::CreateContainer(Box::new(order("gone", ""))));
    check_failed(&events, &create, FailureReason::ImageInspect, "\"gone\" is not there");
    let events = perform(&mut performer, PodAction::CreateContainer(Box::new(order("here", "nobody"))));
    check_failed(&events, &create, FailureReason::Config, "\"nobody\" is not in the image's /etc/passwd");
    perform(&mut performer, PodAction::CreateContainer(Box::new(order("here", ""))));
    performer.workloads().fail_next(FakeFault::Begin);
    let events = perform(&mut performer, PodAction::StartContainer(key(0)));
    check_failed(&events, &Command::StartContainer(key(0)), FailureReason::Other, "crun create");
    let again = perform(&mut performer, PodAction::StartContainer(key(0)));
    assert!(matches!(states(&again)[..], [Told::Running { .. }]), "{again:?}");
    let events = perform(&mut performer, PodAction::RemoveContainer(key(0)));
    check_failed(&events, &Command::RemoveContainer(key(0)), FailureReason::Other, "has not ended");
}

#[test]
fn stop_of_what_never_began_is_answered() {
    let scratch = Scratch::new("performer").unwrap();
    let mut performer = performer(&scratch, FakeWorkloads::default());
    perform(&mut performer, PodAction::PreparePod(Box::new(sandbox())));
    perform(&mut performer, PodAction::CreateContainer(Box::new(order("here", ""))));
    let stop = PodAction::StopContainer { container: key(0), signal: None, grace: Duration::ZERO };
    assert_eq!(states(&perform(&mut performer, stop)), [Told::Lost(String::new())]);
}

#[test]
fn volumes_stay_while_the_pod_has_containers() {
    let scratch = Scratch::new("performer").unwrap();
    let mut performer = running(&scratch, FakeWorkloads::default());
    let kept = scratch.write("disk/uid-1/data/kept", "x");
    let remove = PodAction::RemovePod { pod: pod(), keep_logs: false };
    let events = perform(&mut performer, remove);
    check_failed(&events, &Command::RemovePod(pod()), FailureReason::Other, "still has containers");
    assert!(kept.exists());
}

#[test]
fn all_pods_together_and_each_one_are_limited() {
    let scratch = Scratch::new("performer").unwrap();
    let check = |pod_pids_limit, expect| {
        let mut performer = performer(&scratch, FakeWorkloads::default());
        performer.node.pod_pids_limit = pod_pids_limit;
        perform(&mut performer, PodAction::PreparePod(Box::new(sandbox())));
        let groups = performer.workloads().pods()[0].order.clone().unwrap().groups;
        let (root, all) = groups.first().unwrap();
        assert_eq!((root.as_str(), all.memory, all.pids), ("/kedgepods", Some(1 << 29), Some(10_000)));
        let (own, one) = groups.last().unwrap();
        assert_eq!((own.as_str(), one.pids), ("/kedgepods/besteffort/poduid-1", Some(expect)));
    };
    check(None, POD_PROCESSES);
    check(Some(-1), POD_PROCESSES);
    check(Some(0), POD_PROCESSES);
    check(Some(64), 64);
}

#[test]
fn logs_of_a_pod_that_is_gone_are_removed() {
    let scratch = Scratch::new("performer").unwrap();
    let mut performer = performer(&scratch, FakeWorkloads::default());
    let own = scratch.join("logs/prod_web-0_uid-1/web");
    let other = scratch.join("logs/prod_web-0_uid-11/web");
    for directory in [&own, &other] {
        std::fs::create_dir_all(directory).unwrap();
    }
    perform(&mut performer, PodAction::RemovePod { pod: pod(), keep_logs: true });
    assert!(own.exists());
    perform(&mut performer, PodAction::RemovePod { pod: pod(), keep_logs: false });
    assert!(!own.exists() && other.exists());
}

#[test]
fn directories_of_others_beside_logs_are_not_a_pods() {
    let scratch = Scratch::new("performer").unwrap();
    let mut performer = performer(&scratch, FakeWorkloads::default());
    let others =
        ["my_uid-1", "a_b_c_uid-1", "Prod_web-0_uid-1", "_web-0_uid-1", "prod__uid-1", "prod_web-0_"];
    for name in others {
        scratch.write(&format!("logs/{name}/web/7.log"), "");
    }
    scratch.write("logs/prod_web-0_uid-2/web/3.log", "");
    let found = performer.logs_found();
    let uids: Vec<&str> = found.keys().map(PodUid::as_str).collect();
    assert_eq!(uids, ["uid-2"]);
    perform(&mut performer, PodAction::RemovePod { pod: pod(), keep_logs: false });
    assert!(others.iter().all(|name| scratch.join(format!("logs/{name}/web/7.log")).exists()));
}

#[test]
fn logs_of_the_two_latest_runs_stay() {
    let scratch = Scratch::new("performer").unwrap();
    for name in ["0.log", "1.log", "1.log.1", "2.log", "3.log", "3.log.1", "other"] {
        scratch.write(name, "");
    }
    keep_latest_logs(&scratch);
    let mut left = names_in(&scratch);
    left.sort();
    assert_eq!(left, ["2.log", "3.log", "3.log.1", "other"]);
}

#[test]
fn device_is_given_by_name_or_the_container_waits() {
    let named = |paths: &[&str]| {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let devices = SortedMap::from([("gps".to_owned(), paths)]);
        let mut order = order("here", "");
        order.security.devices = devices;
        let scratch = Scratch::new("performer").unwrap();
        let mut performer = performer(&scratch, FakeWorkloads::default());
        perform(&mut performer, PodAction::PreparePod(Box::new(sandbox())));
        let events = perform(&mut performer, PodAction::CreateContainer(Box::new(order)));
        match &events[..] {
            [PodEvent::Failed { failure, .. }] => Err(failure.message.clone()),
            _ => Ok(()),
        }
    };
    named(&["/dev/null", "/dev/null", "/dev/zero"]).unwrap();
    let check = |paths: &[&str], expect: &str| {
        let why = named(paths).unwrap_err();
        assert!(why.starts_with("kedge.dev/gps: ") && why.contains(expect), "{why}");
    };
    check(&[], "does not have it");
    check(&["/dev/ttyUSB99"], "device /dev/ttyUSB99: No such file");
    check(&["/etc"], "it is not a device");
}
