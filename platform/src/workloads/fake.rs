//! Containers in memory, which behave and fail as the real ones do.
//!
//! Always holds: the machine (`Machine` below) outlives the agent's handle on it, as shims do; a new handle
//! observes all that exists. Nothing happens by itself except ordered acts: tests end containers, kill shims,
//! cut the power, and choose the verbs that fail. It has no clock: a test decides when `grace` is over.
//!
//! Leaves to others: a container's behaviour, which the test decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::records::SHIM_IS_GONE;
use super::{
    ContainerExit, ContainerId, ContainerOrder, ContainerState, MakeConfig, Notes, Observation, PodFound,
    PodOrder, PodPlaces, UserFiles, WorkloadError, Workloads, check_name,
};

const SIGKILL: i32 = 9;

/// A fault that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FakeFault {
    /// `prepare_pod` fails half way: the pod exists without having been prepared.
    Prepare,
    /// `create_container` fails and leaves nothing.
    Create,
    /// The agent is killed within `create_container`: a half-made container, which the next start removes.
    CreateCut,
    /// crun fails or hangs: the container never begins, and its record has the reason.
    Begin,
    /// The shim is killed between crun's `create` and `start`.
    ShimAtBegin,
    /// A verb meets a full or stuck disk: removal fails, and works when repeated.
    Remove,
}

/// A container of the fake machine.
#[derive(Clone, Debug)]
pub struct FakeContainer {
    /// Its order.
    pub order: ContainerOrder,
    /// Its state.
    pub state: ContainerState,
    /// How often its process was begun: never more than once, except after an error.
    pub begun: u32,
    /// The signals that its first process received.
    pub signals: Vec<i32>,
    /// True if it ends when it gets a signal; otherwise only SIGKILL ends it.
    pub obeys: bool,
}

#[derive(Debug, Default)]
struct Machine {
    pods: BTreeMap<String, Option<PodOrder>>,
    containers: BTreeMap<ContainerId, FakeContainer>,
    half_made: BTreeSet<ContainerId>,
    faults: Vec<FakeFault>,
    next_pid: i32,
    clock: i64,
}

/// A handle on the machine, as an agent has it.
#[derive(Debug, Default)]
pub struct FakeWorkloads {
    machine: Arc<Mutex<Machine>>,
    reported: BTreeMap<ContainerId, ContainerState>,
}

impl FakeWorkloads {
    /// The handle of another agent, after this one is gone: containers continue, half-made ones are removed,
    /// and all are observed anew.
    #[must_use]
    pub fn after_restart(&self) -> Self {
        let mut machine = self.machine();
        machine.half_made.clear();
        drop(machine);
        Self { machine: Arc::clone(&self.machine), reported: BTreeMap::new() }
    }

    /// The machine after a power cut: nothing is left.
    #[must_use]
    pub fn after_power_cut(&self) -> Self {
        let faults = std::mem::take(&mut self.machine().faults);
        *self.machine() = Machine { faults, ..Machine::default() };
        self.after_restart()
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next verb that can fail in this way fail.
    pub fn fail_next(&self, fault: FakeFault) {
        self.machine().faults.push(fault);
    }

    /// The present state of a container, whatever was reported.
    pub fn container(&self, id: &ContainerId) -> Option<FakeContainer> {
        self.machine().containers.get(id).cloned()
    }

    /// Sets whether the container ends by signals other than SIGKILL.
    pub fn set_obeys(&self, id: &ContainerId, obeys: bool) {
        if let Some(container) = self.machine().containers.get_mut(id) {
            container.obeys = obeys;
        }
    }

    /// Ends the container's first process by itself.
    pub fn exit(&self, id: &ContainerId, code: i32) {
        self.machine().end(id, |exit| exit.exit_code = code);
    }

    /// Lets the kernel kill it for lack of memory.
    pub fn run_out_of_memory(&self, id: &ContainerId) {
        self.machine().end(id, |exit| {
            exit.oom_killed = true;
            exit.signal = Some(SIGKILL);
            exit.exit_code = 128 + SIGKILL;
        });
    }

    /// Kills its shim: the container is ended, and lost.
    pub fn kill_shim(&self, id: &ContainerId) {
        let mut machine = self.machine();
        machine.end(id, |exit| {
            *exit = ContainerExit {
                finished_at: exit.finished_at,
                ..ContainerExit::lost(SHIM_IS_GONE, exit.started_at)
            };
        });
    }

    /// Ends the grace period of stopped containers.
    pub fn end_grace(&self) {
        let mut machine = self.machine();
        let stopped: Vec<ContainerId> = machine
            .containers
            .iter()
            .filter(|(_, container)| !container.signals.is_empty())
            .map(|(id, _)| id.clone())
            .collect();
        for id in stopped {
            machine.signal(&id, SIGKILL);
        }
    }
}

impl Machine {
    fn fails(&mut self, fault: FakeFault) -> bool {
        let found = self.faults.iter().position(|waiting| *waiting == fault);
        found.map(|index| self.faults.remove(index)).is_some()
    }

    fn now(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    fn end(&mut self, id: &ContainerId, describe: impl FnOnce(&mut ContainerExit)) {
        let finished_at = self.now();
        let Some(container) = self.containers.get_mut(id) else { return };
        let ContainerState::Running { started, .. } = container.state else { return };
        let mut exit = ContainerExit { finished_at, ..ContainerExit::now(0, Some(started)) };
        describe(&mut exit);
        container.state = if exit.lost { ContainerState::Lost(exit) } else { ContainerState::Exited(exit) };
    }

    fn signal(&mut self, id: &ContainerId, signal: i32) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if !matches!(container.state, ContainerState::Running { .. }) {
            return;
        }
        container.signals.push(signal);
        if signal == SIGKILL || container.obeys {
            self.end(id, |exit| {
                exit.signal = Some(signal);
                exit.exit_code = 128 + signal;
            });
        }
    }
}

fn cut(tried: &str) -> WorkloadError {
    WorkloadError::failed(tried, std::io::Error::other("a fault that the test asked for"))
}

impl Workloads for FakeWorkloads {
    fn prepare_pod(&mut self, order: &PodOrder) -> Result<PodPlaces, WorkloadError> {
        check_name("pod UID", &order.uid)?;
        let mut machine = self.machine();
        if machine.fails(FakeFault::Prepare) {
            machine.pods.entry(order.uid.clone()).or_default();
            return Err(cut("prepare a pod"));
        }
        machine.pods.insert(order.uid.clone(), Some(order.clone()));
        let at = |name: &str| std::path::Path::new("/fake").join(&order.uid).join(name);
        Ok(PodPlaces {
            network: (!order.host_network).then(|| at("net")),
            uts: (!order.host_network).then(|| at("uts")),
            ipc: (!order.host_ipc).then(|| at("ipc")),
            pid: order.share_process_namespace.then(|| at("pid")),
            shm: at("shm"),
            files: at("files"),
        })
    }

    fn create_container(
        &mut self,
        order: &ContainerOrder,
        config: MakeConfig<'_>,
    ) -> Result<(), WorkloadError> {
        order.id.check()?;
        let mut machine = self.machine();
        if !machine.pods.contains_key(&order.id.pod) {
            return Err(WorkloadError::Unprepared(format!("pod {} is not prepared", order.id.pod)));
        }
        if machine.fails(FakeFault::Create) {
            return Err(cut("create a container"));
        }
        if machine.fails(FakeFault::CreateCut) {
            machine.half_made.insert(order.id.clone());
            return Err(cut("create a container"));
        }
        if !machine.containers.contains_key(&order.id) {
            config(&UserFiles::default(), &[]).map_err(WorkloadError::Refused)?;
            machine.half_made.remove(&order.id);
            let state = ContainerState::Created;
            let made =
                FakeContainer { order: order.clone(), state, begun: 0, signals: Vec::new(), obeys: true };
            machine.containers.insert(order.id.clone(), made);
        }
        drop(machine);
        self.reported.remove(&order.id);
        Ok(())
    }

    fn start_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        self.reported.remove(id);
        let mut machine = self.machine();
        let (fails, loses) = (machine.fails(FakeFault::Begin), machine.fails(FakeFault::ShimAtBegin));
        let (started, pid) = (machine.now(), machine.next_pid + 1);
        machine.next_pid = pid;
        let Some(container) = machine.containers.get_mut(id) else {
            return Err(WorkloadError::refused(format_args!("container {id} does not exist")));
        };
        let may_start = match &container.state {
            ContainerState::Created => true,
            ContainerState::Exited(exit) => exit.error.is_some(),
            _ => false,
        };
        if may_start {
            container.state = match (fails, loses) {
                (true, _) => ContainerState::Exited(ContainerExit::never_began("crun create: a fault")),
                (_, true) => ContainerState::Lost(ContainerExit::lost(SHIM_IS_GONE, None)),
                _ => ContainerState::Running { pid, started },
            };
            container.begun += u32::from(!fails && !loses);
        }
        Ok(())
    }

    fn stop_container(
        &mut self,
        id: &ContainerId,
        signal: i32,
        grace: Duration,
    ) -> Result<(), WorkloadError> {
        self.reported.remove(id);
        self.machine().signal(id, if grace.is_zero() { SIGKILL } else { signal });
        Ok(())
    }

    fn kill_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        self.stop_container(id, SIGKILL, Duration::ZERO)
    }

    fn remove_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        let mut machine = self.machine();
        let is_running = |container: &FakeContainer| {
            matches!(container.state, ContainerState::Running { .. } | ContainerState::Starting)
        };
        if machine.containers.get(id).is_some_and(is_running) {
            return Err(WorkloadError::Busy(format!("container {id} has not ended")));
        }
        if machine.fails(FakeFault::Remove) {
            return Err(cut("remove a container"));
        }
        machine.containers.remove(id);
        machine.half_made.remove(id);
        drop(machine);
        self.reported.remove(id);
        Ok(())
    }

    fn has_containers(&self, uid: &str) -> bool {
        let machine = self.machine();
        machine.containers.keys().chain(&machine.half_made).any(|id| id.pod == uid)
    }

    fn network_of(&self, uid: &str) -> Option<std::path::PathBuf> {
        let machine = self.machine();
        let order = machine.pods.get(uid)?.as_ref()?;
        (!order.host_network).then(|| std::path::Path::new("/fake").join(uid).join("net"))
    }

    fn drop_network(&mut self, uid: &str) -> Result<(), WorkloadError> {
        let machine = self.machine();
        let may_run = |container: &FakeContainer| {
            !matches!(container.state, ContainerState::Exited(_) | ContainerState::Lost(_))
        };
        if machine.containers.iter().any(|(id, container)| id.pod == uid && may_run(container)) {
            return Err(WorkloadError::Busy(format!("a container uses the network of pod {uid}")));
        }
        Ok(())
    }

    fn remove_pod(&mut self, uid: &str) -> Result<(), WorkloadError> {
        let is_busy = self.has_containers(uid);
        let mut machine = self.machine();
        if is_busy {
            return Err(WorkloadError::Busy(format!("pod {uid} still has containers")));
        }
        if machine.fails(FakeFault::Remove) {
            return Err(cut("remove a pod"));
        }
        machine.pods.remove(uid);
        Ok(())
    }

    fn observe(&mut self, _: Duration) -> Vec<Observation> {
        let containers = self.machine().containers.clone();
        let mut news = Vec::new();
        for (id, FakeContainer { state, .. }) in containers {
            if self.reported.get(&id) != Some(&state) {
                self.reported.insert(id.clone(), state.clone());
                news.push(Observation { id, state });
            }
        }
        news
    }

    fn pods(&self) -> Vec<PodFound> {
        let machine = self.machine();
        machine.pods.iter().map(|(uid, order)| PodFound { uid: uid.clone(), order: order.clone() }).collect()
    }

    fn notes(&self, id: &ContainerId) -> Notes {
        self.machine().containers.get(id).map(|container| container.order.notes.clone()).unwrap_or_default()
    }

    fn note(&mut self, id: &ContainerId, name: &str, text: &str) -> Result<(), WorkloadError> {
        let mut machine = self.machine();
        let container = machine.containers.get_mut(id);
        let container =
            container.ok_or_else(|| WorkloadError::refused(format_args!("container {id} does not exist")))?;
        container.order.notes.insert(name.to_owned(), text.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Console;
    use super::*;
    use crate::workloads::LogOrder;

    fn id() -> ContainerId {
        ContainerId { pod: "p".into(), name: "c".into(), attempt: 0 }
    }

    fn order() -> ContainerOrder {
        let log = LogOrder { path: "/fake/log".into(), max_bytes: 1, max_files: 1 };
        ContainerOrder {
            id: id(),
            layers: Vec::new(),
            places: Vec::new(),
            group: "/p".into(),
            log,
            console: Console::default(),
            notes: Notes::new(),
        }
    }

    fn started() -> FakeWorkloads {
        let mut fake = FakeWorkloads::default();
        fake.prepare_pod(&PodOrder { uid: "p".into(), ..PodOrder::default() }).unwrap();
        fake.create_container(&order(), &|_, _| Ok(Vec::new())).unwrap();
        fake.start_container(&id()).unwrap();
        fake
    }

    fn observed(fake: &mut FakeWorkloads) -> Vec<ContainerState> {
        fake.observe(Duration::ZERO).into_iter().map(|observation| observation.state).collect()
    }

    #[test]
    fn restart_of_the_agent_leaves_containers_alone() {
        let mut fake = started();
        let before = observed(&mut fake);
        assert!(matches!(before[..], [ContainerState::Running { .. }]));
        let mut next = fake.after_restart();
        next.start_container(&id()).unwrap();
        assert_eq!(observed(&mut next), before);
        assert_eq!(next.container(&id()).unwrap().begun, 1);
        assert!(matches!(next.remove_container(&id()), Err(WorkloadError::Busy(_))));
        assert!(observed(&mut next.after_power_cut()).is_empty());
    }

    #[test]
    fn container_that_ignores_signals_ends_with_its_grace() {
        let mut fake = started();
        fake.set_obeys(&id(), false);
        fake.stop_container(&id(), 15, Duration::from_secs(30)).unwrap();
        assert!(matches!(observed(&mut fake)[..], [ContainerState::Running { .. }]));
        fake.end_grace();
        let [ContainerState::Exited(exit)] = &observed(&mut fake)[..] else { panic!() };
        assert_eq!((exit.exit_code, exit.signal), (137, Some(9)));
        assert_eq!(fake.container(&id()).unwrap().signals, [15, 9]);
    }

    #[test]
    fn faults_come_once_and_in_the_verb_they_name() {
        let mut fake = FakeWorkloads::default();
        let pod = PodOrder { uid: "p".into(), ..PodOrder::default() };
        fake.fail_next(FakeFault::Prepare);
        assert!(fake.prepare_pod(&pod).is_err());
        assert_eq!(fake.pods()[0].order, None);
        fake.prepare_pod(&pod).unwrap();
        fake.fail_next(FakeFault::CreateCut);
        assert!(fake.create_container(&order(), &|_, _| Ok(Vec::new())).is_err());
        assert!(fake.remove_pod("p").is_err(), "it is half made");
        let mut fake = fake.after_restart();
        fake.create_container(&order(), &|_, _| Ok(Vec::new())).unwrap();
        fake.fail_next(FakeFault::Begin);
        fake.start_container(&id()).unwrap();
        assert!(matches!(&observed(&mut fake)[..], [ContainerState::Exited(exit)] if exit.error.is_some()));
        fake.start_container(&id()).unwrap();
        fake.kill_shim(&id());
        assert!(matches!(&observed(&mut fake)[..], [ContainerState::Lost(_)]));
        fake.fail_next(FakeFault::Remove);
        assert!(fake.remove_container(&id()).is_err());
        fake.remove_container(&id()).unwrap();
        fake.remove_pod("p").unwrap();
    }
}
