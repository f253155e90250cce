//! Containers by crun with one shim each: the verbs, the observations, and the clean-up at a start.
//!
//! Always holds: a container's state follows from the records of its bundle and the lock on it; only the last
//! report is kept in memory. So a killed agent loses nothing, and its successor adopts every container by
//! reading. A bundle has at most one shim, because a shim inherits the lock that is taken here. `order.json`
//! of a bundle is written last and removed first: a bundle without it is incomplete, and is removed; if its
//! shim or a process of it lives, its records were lost, and it is ended. A container without records is
//! ended before another container of its pod is made.
//!
//! Leaves to others: the times of verbs (core), the work of the shim (`shim`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::places::{self, Places};
use super::probe::{Board, probe};
use super::process::{self, ProcessFd};
use super::records::{
    ContainerExit, CrunOrder, EXIT, NOTES, NotesRecord, ORDER, Order, Records, SHIM, SHIM_IS_GONE, STATE,
    ShimRecord, StateRecord, VERSION,
};
use super::rootfs::{self, make_directory};
use super::{
    ContainerId, ContainerOrder, ContainerState, MakeConfig, Notes, Observation, PodFound, PodOrder,
    PodPlaces, WorkloadError, Workloads, check_name, on, sandbox,
};
use crate::linux::{Roots, kind_in_its_place, open_lock, write_regular};
use crate::trees::{self, Removal};

/// The file whose lock the shim holds.
const LOCK: &str = "lock";
/// Most pods, and containers of one, that a start examines: a hundred times the number that a node should
/// have.
const ENTRIES: usize = 10_000;
/// A shim that was just started by a killed agent has no record yet: the time until it is checked again;
/// doubled with each check, because the record may be damaged, and then the shim has none until it ends.
const UNNAMED_LOOK: Duration = Duration::from_millis(50);
const UNNAMED_DOUBLINGS: u32 = 5;
/// Interval of checks of a container for which the kernel gives no watch.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);
/// Wait before a container that does not end is killed again, or an attempt to end a lost one is repeated.
const RETRY: Duration = Duration::from_secs(2);
/// Time until killed processes are checked again; doubled with each check.
const LOST_LOOK: Duration = Duration::from_millis(10);
const LOST_DOUBLINGS: u32 = 8;

/// For how long crun is not called to forget a container after it did not answer: each call takes its whole
/// limit, and delays others.
const WITHOUT_CRUN: Duration = Duration::from_secs(60);

/// crun, and the time limit of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crun {
    /// The program: `/usr/bin/crun`.
    pub program: PathBuf,
    /// Time limit of `create` and of `start`.
    pub limit: Duration,
}

impl Default for Crun {
    fn default() -> Self {
        // create takes 31 ms, start 12 ms, on a busy machine; flash that collects garbage takes seconds
        Self { program: "/usr/bin/crun".into(), limit: Duration::from_secs(60) }
    }
}

/// The settings of a runtime.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory of our own on a file system that does not survive a reboot.
    pub run: PathBuf,
    /// A directory of our own on the disk.
    pub data: PathBuf,
    /// This program: `kedge shim` and `kedge pause`.
    pub program: PathBuf,
    /// crun.
    pub crun: Crun,
    /// The control group that contains all pods' groups. Two agents on one machine need different ones.
    pub pods_group: String,
    /// The control group of the shims.
    pub shims_group: String,
}

impl Settings {
    /// The settings of a node, below its agent's directories.
    pub fn new(run_dir: &Path, root_dir: &Path) -> Self {
        Self {
            run: run_dir.join("containers"),
            data: root_dir.join("containers"),
            // the running program, even after an upgrade of its file
            program: "/proc/self/exe".into(),
            crun: Crun::default(),
            pods_group: "/kedgepods".into(),
            shims_group: "/kedge/shims".into(),
        }
    }
}

/// Ends a wait of [`Workloads::observe`] from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Ends the present wait, or else the next one.
    pub fn wake(&self) {
        let _ = self.0.write(1);
    }
}

/// The agent's knowledge about a container's shim.
#[derive(Debug)]
enum Shim {
    /// No process holds the lock.
    Absent,
    /// A process holds the lock, and has not written its record.
    Unnamed,
    Alive(ProcessFd),
}

#[derive(Debug)]
struct Stop {
    signal: Option<i32>,
    kill_at: Instant,
}

#[derive(Debug)]
struct Container {
    bundle: PathBuf,
    group: String,
    notes: Notes,
    /// `None` if the kernel has no more watches.
    watch: Option<WatchDescriptor>,
    shim: Shim,
    reported: Option<ContainerState>,
    stop: Option<Stop>,
    /// When it must be judged again, because ending it failed.
    retry: Option<Instant>,
    /// How often its processes were found still alive.
    looks: u32,
    /// True if we started a shim for it, or tried to.
    was_started: bool,
    /// The reason why a record cannot be read: then the container is ended, because its state cannot be
    /// known.
    unreadable: Option<String>,
    /// True if it did not obey its stop, and its processes were killed.
    was_killed: bool,
    /// How often a process was found to hold the lock without having written its record.
    unnamed_looks: u32,
    /// Since when it has been beginning.
    begins: Option<Instant>,
}

impl Container {
    fn records(&self) -> Records {
        Records::of(&self.bundle)
    }
}

/// The containers of this machine's agent.
#[derive(Debug)]
pub struct LinuxWorkloads {
    settings: Settings,
    places: Places,
    board: Board,
    /// `None` if the kernel has no more: then no container is watched.
    inotify: Option<Inotify>,
    wake: Waker,
    removal: Removal,
    containers: BTreeMap<ContainerId, Container>,
    observed: Vec<Observation>,
    /// Time until which crun is not called to forget a container.
    without_crun: Cell<Option<Instant>>,
}

impl LinuxWorkloads {
    /// Examines the board, adopts containers of an earlier agent, and removes leftovers.
    ///
    /// # Errors
    /// Our directories cannot be made or read, or the kernel has no free descriptors. Then nothing was
    /// decided, because containers that could not be read may exist.
    pub fn open(settings: Settings, roots: &Roots) -> Result<Self, WorkloadError> {
        let places = Places { run: settings.run.clone(), data: settings.data.clone() };
        for directory in [&places.pods(), &places.crun()] {
            make_directory(directory, 0o700)?;
        }
        // only new containers need it: running ones can be followed and stopped on a disk that cannot be
        // written
        if let Err(error) = make_directory(&places.data, 0o700) {
            log::warn!("no container can be created: {error}");
        }
        let board = probe(roots, &settings.crun);
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(io::Error::from)
            .inspect_err(|error| log::warn!("containers are not watched, but looked at each second: {error}"))
            .ok();
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|error| WorkloadError::failed("make an event descriptor", error))?;
        let wake = Waker(Arc::new(event));
        let removal = Removal::open(&places.data);
        let (containers, observed, without_crun) = (BTreeMap::new(), Vec::new(), Cell::new(None));
        let mut workloads =
            Self { settings, places, board, inotify, wake, removal, containers, observed, without_crun };
        workloads.end_stray_shims();
        workloads.take_over()?;
        workloads.sweep();
        Ok(workloads)
    }

    /// The abilities of the board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Looks at the board again: crun was not there, for example. What runs is followed by what was found
    /// before.
    pub fn look_again(&mut self, roots: &Roots) -> &Board {
        self.board = probe(roots, &self.settings.crun);
        &self.board
    }

    /// A waker that ends waits of [`Workloads::observe`].
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// Every bundle becomes a container again, or is removed if it is incomplete. None may be skipped:
    /// otherwise a container might be run a second time.
    fn take_over(&mut self) -> Result<(), WorkloadError> {
        for uid in names_for_sure(&self.places.pods())? {
            for name in names_for_sure(&self.places.containers(&uid))? {
                let Some(id) = ContainerId::parse(&uid, &name) else { continue };
                self.adopt(&id)?;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        let bundle = self.places.bundle(id);
        let why = match Records::of(&bundle).read::<Order>(ORDER) {
            Ok(None) if !self.has_life(id) => {
                if let Err(error) = self.remove_rest(id, None) {
                    log::warn!("container {id}: {error}");
                }
                return Ok(());
            }
            Ok(None) => missing(&bundle),
            Err(error @ WorkloadError::Failed { .. }) => return Err(error),
            Ok(Some(order)) => {
                let notes = order.notes.into_iter().chain(later_notes(&bundle).notes).collect();
                self.track(id, order.group, notes);
                self.judge(id);
                return Ok(());
            }
            Err(error) => error.to_string(),
        };
        let group = self.group_of_foreign(id);
        self.track(id, group, Notes::new());
        self.end_unreadable(id, &why);
        Ok(())
    }

    /// True if a container without an order has a shim or a process: then its order was lost.
    fn has_life(&self, id: &ContainerId) -> bool {
        let is_held = matches!(lock(&self.places.bundle(id)), Ok(None));
        is_held || !self.board.cgroups.processes(&self.group_of_foreign(id)).is_empty()
    }

    /// Kills shims whose bundles have lost their orders, before they start containers without records.
    fn end_stray_shims(&self) {
        for pid in self.board.cgroups.processes(&self.settings.shims_group) {
            let Ok(Some(process)) = ProcessFd::open(pid) else { continue };
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0).skip(1);
            let (Some(b"shim"), Some(bundle)) = (words.next(), words.next()) else { continue };
            let bundle = Path::new(OsStr::from_bytes(bundle));
            if !bundle.starts_with(self.places.pods()) || Records::of(bundle).has(ORDER) {
                continue;
            }
            log::warn!("shim {pid} is killed: {}", missing(bundle));
            let _ = process.signal(libc::SIGKILL);
            process.wait(RETRY);
        }
    }

    /// Ends the pod's containers that have a control group and no bundle.
    fn end_strays(&self, uid: &str) -> Result<(), WorkloadError> {
        for class in self.classes() {
            let pod = format!("{class}/pod{uid}");
            for name in self.board.cgroups.children(&pod) {
                // the group of the pause process has no number
                let Some(id) = ContainerId::parse(uid, &name) else { continue };
                if self.containers.contains_key(&id) {
                    continue;
                }
                log::warn!("container {id} is ended: it has no record");
                let (groups, group) = (&self.board.cgroups, format!("{pod}/{name}"));
                groups
                    .kill_all(&group)
                    .and_then(|()| self.crun().forget_alone(&id))
                    .and_then(|()| groups.remove(&group))
                    .map_err(|error| WorkloadError::failed(format_args!("end container {id}"), error))?;
            }
        }
        Ok(())
    }

    fn track(&mut self, id: &ContainerId, group: String, notes: Notes) -> &mut Container {
        let bundle = self.places.bundle(id);
        let news = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
        let watch = self.inotify.as_ref().map(|it| it.add_watch(&bundle, news));
        if let Some(Err(error)) = &watch {
            let error = io::Error::from(*error);
            log::warn!("container {id} is looked at each second, its directory cannot be watched: {error}");
        }
        let container = Container {
            bundle,
            group,
            notes,
            watch: watch.and_then(Result::ok),
            shim: Shim::Absent,
            reported: None,
            stop: None,
            retry: None,
            looks: 0,
            was_started: false,
            unreadable: None,
            was_killed: false,
            unnamed_looks: 0,
            begins: None,
        };
        self.containers.remove(id);
        self.containers.entry(id.clone()).or_insert(container)
    }

    /// The control group of a container whose order cannot be read: it is found in the fixed layout, among
    /// the groups of all QoS classes.
    fn group_of_foreign(&self, id: &ContainerId) -> String {
        let pods = self.classes().map(|class| format!("{class}/pod{}", id.pod));
        let has_it = |pod: &&String| self.board.cgroups.children(pod).contains(&id.directory());
        let pod = pods.iter().find(has_it).unwrap_or(&pods[0]);
        format!("{pod}/{}", id.directory())
    }

    /// The groups of the QoS classes, which contain the groups of pods.
    fn classes(&self) -> [String; 3] {
        let root = &self.settings.pods_group;
        [root.clone(), format!("{root}/burstable"), format!("{root}/besteffort")]
    }

    /// Removes data of containers that the run directory does not have: the machine was rebooted since, or an
    /// agent was killed while it removed them. Then removes control groups of pods that it does not have.
    fn sweep(&mut self) {
        for uid in names(&self.places.data) {
            let data = self.places.data_of_pod(&uid);
            for name in names(&data) {
                let known =
                    ContainerId::parse(&uid, &name).is_some_and(|id| self.places.bundle(&id).exists());
                if !known && let Err(error) = self.removal.take(&data.join(&name)) {
                    log::warn!("remove leftover {}: {error}", data.join(&name).display());
                }
            }
            // removed only if it is empty
            let _ = fs::remove_dir(&data);
        }
        for class in self.classes() {
            for group in self.board.cgroups.children(&class) {
                let known = group.strip_prefix("pod").is_none_or(|uid| self.places.pod(uid).exists());
                if !known {
                    self.end_group(&format!("{class}/{group}"));
                }
            }
        }
        for uid in names(&self.places.pods()) {
            if let Err(error) = self.end_strays(&uid) {
                log::warn!("{error}");
            }
        }
        for name in names(&self.places.crun()) {
            let id = name.split_once('.').and_then(|(uid, directory)| ContainerId::parse(uid, directory));
            if let Some(id) = id.filter(|id| !self.containers.contains_key(id)) {
                let _ = self.crun().forget_alone(&id);
            }
        }
    }

    fn end_group(&self, group: &str) {
        let groups = &self.board.cgroups;
        if let Err(error) = groups.kill_all(group).and_then(|()| groups.remove(group)) {
            log::warn!("remove leftover control group {group}: {error}");
        }
    }

    fn container(&mut self, id: &ContainerId) -> Result<&mut Container, WorkloadError> {
        self.containers
            .get_mut(id)
            .ok_or_else(|| WorkloadError::refused(format_args!("container {id} does not exist")))
    }

    /// Determines a container's state, and reports it if it has changed.
    fn judge(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        container.retry = None;
        if let Err(error) = container.look_for_shim() {
            return self.judge_later(id, &error);
        }
        if container.has_lost_its_order() {
            let why = missing(&container.bundle);
            return self.end_unreadable(id, &why);
        }
        let found =
            if container.unreadable.is_some() { Ok(container.foreign_state()) } else { container.state() };
        // crun needs no longer to create and start it, and its shim then gives up
        let limit = 2 * self.settings.crun.limit + RETRY;
        let state = match found {
            Ok(Found::Is(ContainerState::Starting)) if container.unreadable.is_none() => {
                let until = *container.begins.get_or_insert_with(Instant::now) + limit;
                if until <= Instant::now() {
                    return self.end_unreadable(id, "its shim lives, and nothing says that it has begun");
                }
                container.retry = Some(until);
                ContainerState::Starting
            }
            // recorded, so that later agents also see that it failed to begin, and not a container that
            // awaits its start
            Ok(Found::Is(ContainerState::Created)) if container.was_started => {
                let exit = ContainerExit::never_began("its shim ended before it had begun");
                match container.records().write(EXIT, &exit) {
                    Ok(()) => ContainerState::Exited(exit),
                    Err(error) => return self.judge_later(id, &error),
                }
            }
            Ok(Found::Is(state)) => state,
            Ok(Found::Lost(started_at)) => match self.end_lost(id, started_at) {
                Ok(Some(state)) => state,
                Ok(None) => return self.judge_soon(id),
                Err(error) => return self.judge_later(id, &error),
            },
            Err(WorkloadError::Refused(why)) => return self.end_unreadable(id, &why),
            Err(error) => return self.judge_later(id, &error),
        };
        let Some(container) = self.containers.get_mut(id) else { return };
        container.looks = 0;
        if let (ContainerState::Running { .. }, Some(stop)) = (&state, &mut container.stop)
            && let Some(signal) = stop.signal.take()
            && let Err(error) = signal_first(&Records::of(&container.bundle), signal)
        {
            log::warn!("container {id}: {error}");
        }
        if container.reported.as_ref() != Some(&state) {
            if is_over(&state) {
                container.let_go();
            }
            container.reported = Some(state.clone());
            self.observed.push(Observation { id: id.clone(), state });
        }
    }

    /// Ends a container whose state cannot be determined: its order is missing or unreadable, or its shim
    /// lives and never reported a start.
    fn end_unreadable(&mut self, id: &ContainerId, why: &str) {
        log::warn!("container {id} is ended: {why}");
        if let Some(container) = self.containers.get_mut(id) {
            container.unreadable = Some(why.to_owned());
            container.stop = Some(Stop { signal: None, kill_at: Instant::now() });
            self.judge(id);
        }
    }

    fn judge_later(&mut self, id: &ContainerId, error: &WorkloadError) {
        log::warn!("container {id}: {error}");
        if let Some(container) = self.containers.get_mut(id) {
            container.retry = Some(Instant::now() + RETRY);
        }
    }

    /// The container's processes were killed and must be checked again: soon, but with growing delays,
    /// because a process that waits for a dead disk never leaves.
    fn judge_soon(&mut self, id: &ContainerId) {
        if let Some(container) = self.containers.get_mut(id) {
            let pause = LOST_LOOK * 2_u32.pow(container.looks.min(LOST_DOUBLINGS));
            container.looks = container.looks.saturating_add(1);
            container.retry = Some(Instant::now() + pause);
        }
    }

    /// The container has no shim any more that would record its end, so it is ended now. `None` if some of
    /// its processes still exist.
    fn end_lost(
        &self,
        id: &ContainerId,
        started_at: Option<i64>,
    ) -> Result<Option<ContainerState>, WorkloadError> {
        let container = &self.containers[id];
        let bundle = &container.bundle;
        let left = self.board.cgroups.kill_once(&container.group);
        if left.map_err(on("end the processes of", bundle))? > 0 {
            return Ok(None);
        }
        self.forget(bundle, id, true).map_err(on("make crun forget", bundle))?;
        let exit = match &container.unreadable {
            None => ContainerExit::lost(SHIM_IS_GONE, started_at),
            Some(why) => {
                let why = format!("a record of it cannot be read: {why}");
                match container.records().read::<ContainerExit>(EXIT).ok().flatten() {
                    Some(exit) if exit.lost || !container.was_killed => return Ok(Some(ended(exit))),
                    Some(exit) => ContainerExit::lost(&why, exit.started_at),
                    None => ContainerExit::lost(&why, started_at),
                }
            }
        };
        // the whole bundle may have been removed
        make_directory(bundle, 0o700)?;
        container.records().write(EXIT, &exit)?;
        Ok(Some(ContainerState::Lost(exit)))
    }

    /// Makes crun forget a container. `is_empty`: none of its processes is left, so its state can be removed
    /// even if crun does not answer.
    fn forget(&self, bundle: &Path, id: &ContainerId, is_empty: bool) -> io::Result<()> {
        let (crun, now) = (self.crun(), Instant::now());
        if is_empty && self.without_crun.get().is_some_and(|until| now < until) {
            return crun.forget_alone(id);
        }
        match crun.forget(bundle, id) {
            Err(error) if is_empty && error.kind() == io::ErrorKind::TimedOut => {
                log::warn!(
                    "container {id}: {error}; it has no process left, what crun keeps of it is removed"
                );
                self.without_crun.set(Some(Instant::now() + WITHOUT_CRUN));
                crun.forget_alone(id)
            }
            done => done,
        }
    }

    fn crun(&self) -> CrunOrder {
        CrunOrder::of(&self.settings)
    }

    fn order(&self, order: &ContainerOrder) -> Order {
        Order {
            version: VERSION,
            id: order.id.clone(),
            crun: self.crun(),
            cgroups: self.board.cgroups.clone(),
            group: order.group.clone(),
            shims_group: self.settings.shims_group.clone(),
            log: order.log.clone(),
            console: order.console,
            notes: order.notes.clone(),
        }
    }

    fn make_bundle(&mut self, order: &ContainerOrder, config: MakeConfig<'_>) -> Result<(), WorkloadError> {
        let (bundle, data) = (self.places.bundle(&order.id), self.places.data_of(&order.id));
        make_directory(&bundle, 0o700)?;
        if let Some(directory) = order.log.path.parent() {
            make_directory(directory, 0o755)?;
        }
        let root = places::rootfs(&bundle);
        rootfs::make(&order.layers, &data, &root, self.board.has_overlay)?;
        let places = rootfs::make_places(&root, &order.places);
        let places = places.map_err(on("make the volumes of the image in", &root))?;
        let config = config(&rootfs::user_files(&root)?, &places).map_err(WorkloadError::Refused)?;
        write_regular(&bundle.join("config.json"), &config).map_err(on("write config.json in", &bundle))?;
        let order_record = self.order(order);
        Records::of(&bundle).write(ORDER, &order_record)?;
        self.track(&order.id, order_record.group, order_record.notes);
        Ok(())
    }

    /// Removes everything of a container without a shim. Its order is removed only after its processes; from
    /// then on errors are collected.
    fn remove_rest(&mut self, id: &ContainerId, group: Option<&str>) -> Result<(), WorkloadError> {
        let (bundle, data) = (self.places.bundle(id), self.places.data_of(id));
        let groups = &self.board.cgroups;
        if let Some(group) = group {
            groups.kill_all(group).map_err(on("end the processes of", &bundle))?;
        }
        self.forget(&bundle, id, group.is_some()).map_err(on("make crun forget", &bundle))?;
        if let Some(group) = group {
            groups.remove(group).map_err(on("remove the control group of", &bundle))?;
        }
        Records::of(&bundle).remove(ORDER)?;
        let mut failed = None;
        let mut keep = |done: Result<(), WorkloadError>| {
            if let Err(error) = done {
                failed.get_or_insert(error);
            }
        };
        let root = places::rootfs(&bundle);
        let unmounted = rootfs::unmount(&root).map_err(on("unmount", &root));
        let is_unmounted = unmounted.is_ok();
        keep(unmounted);
        // a mounted directory must not be emptied
        if is_unmounted {
            keep(self.removal.take(&data).map_err(on("remove", &data)));
            keep(trees::remove(&bundle).map_err(on("remove", &bundle)));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Kills the containers whose grace period is over; returns until when to wait.
    fn kill_due(&mut self, now: Instant, end: Instant) -> Instant {
        let groups = &self.board.cgroups;
        let mut next = end;
        for (id, container) in &mut self.containers {
            if matches!(container.shim, Shim::Unnamed) {
                let looks = container.unnamed_looks.min(UNNAMED_DOUBLINGS);
                next = next.min(now + UNNAMED_LOOK * 2_u32.pow(looks));
            }
            next = container.retry.map_or(next, |retry| next.min(retry));
            if container.watch.is_none() {
                next = next.min(now + UNWATCHED_LOOK);
            }
            let is_over = matches!(container.shim, Shim::Absent);
            let Some(stop) = container.stop.as_mut().filter(|_| !is_over) else { continue };
            if stop.kill_at <= now {
                stop.kill_at = now + RETRY;
                container.was_killed = true;
                let killed = groups.kill_once(&container.group).map(|_| ());
                let first = signal_first(&Records::of(&container.bundle), libc::SIGKILL);
                if let Err(error) = killed.map_err(on("kill", &container.bundle)).and(first) {
                    log::warn!("container {id}: {error}");
                }
            }
            next = next.min(stop.kill_at);
        }
        next
    }

    /// Waits for a shim, a record, or the waker; judges the containers that may have changed. Returns true if
    /// it was the waker.
    fn wait(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let mut awaited = vec![PollFd::new(self.wake.0.as_fd(), PollFlags::POLLIN)];
        awaited.extend(self.inotify.as_ref().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
        let first_shim = awaited.len();
        let mut shims = Vec::new();
        for (id, container) in &self.containers {
            if let Shim::Alive(process) = &container.shim {
                awaited.push(PollFd::new(process.as_fd(), PollFlags::POLLIN));
                shims.push(id);
            }
        }
        let ready = poll(&mut awaited, timeout);
        if ready.is_err() {
            return false;
        }
        let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let woken = is_ready(&awaited[0]);
        let mut touched: Vec<ContainerId> = awaited[first_shim..]
            .iter()
            .zip(shims)
            .filter(|(fd, _)| is_ready(fd))
            .map(|(_, id)| id.clone())
            .collect();
        if awaited[1..first_shim].iter().any(is_ready) {
            touched.extend(self.with_new_records());
        }
        let now = Instant::now();
        // the kernel announces no change of these, so they are judged after each wait
        let unclear = |container: &Container| {
            matches!(container.shim, Shim::Unnamed)
                || container.watch.is_none()
                || container.retry.is_some_and(|retry| retry <= now)
        };
        touched.extend(self.containers.iter().filter(|(_, it)| unclear(it)).map(|(id, _)| id.clone()));
        if woken {
            let _ = self.wake.0.read();
        }
        touched.sort();
        touched.dedup();
        for id in &touched {
            self.judge(id);
        }
        woken
    }

    fn with_new_records(&self) -> Vec<ContainerId> {
        let mut touched = Vec::new();
        let Some(inotify) = &self.inotify else { return touched };
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    let lost_some =
                        events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
                    let of = |container: &Container| {
                        lost_some || events.iter().any(|event| Some(event.wd) == container.watch)
                    };
                    touched.extend(self.containers.iter().filter(|(_, it)| of(it)).map(|(id, _)| id.clone()));
                }
                Err(Errno::EINTR) => {}
                Err(_) => return touched,
            }
        }
    }
}

/// The state according to the records.
enum Found {
    Is(ContainerState),
    /// It began, or may have, and its shim ended without recording the end.
    Lost(Option<i64>),
}

impl Container {
    /// Finds a shim that an earlier agent started, and notices the end of one.
    ///
    /// # Errors
    /// It cannot be determined whether there is one.
    fn look_for_shim(&mut self) -> Result<(), WorkloadError> {
        match &self.shim {
            Shim::Alive(process) if process.wait(Duration::ZERO) => {
                process.reap();
                self.shim = Shim::Absent;
            }
            Shim::Alive(_) => return Ok(()),
            Shim::Absent | Shim::Unnamed => {}
        }
        let looks = std::mem::take(&mut self.unnamed_looks);
        let is_locked = match lock(&self.bundle) {
            Ok(held) => held.is_none(),
            // something else has the lock file's place
            Err(error) if kind_in_its_place(&error).is_some() || is_no_file(&error) => false,
            Err(error) => return Err(on("lock", &self.bundle)(error)),
        };
        let named = self.records().read::<ShimRecord>(SHIM).ok().flatten();
        let named = named.and_then(|record| record.shim.open().ok().flatten());
        self.shim = match named.filter(|process| !process.wait(Duration::ZERO)) {
            // the lock file may have been removed
            Some(process) => Shim::Alive(process),
            None if is_locked => {
                self.unnamed_looks = looks.saturating_add(1);
                Shim::Unnamed
            }
            None => Shim::Absent,
        };
        Ok(())
    }

    /// Unmounts its root file system, which is not needed any more: its layers could not be made anew while
    /// mounted, and the container's successor may wait for that.
    fn let_go(&self) {
        let root = places::rootfs(&self.bundle);
        if let Err(error) = rootfs::unmount(&root) {
            log::warn!("unmount {}: {error}", root.display());
        }
    }

    /// True if its order was removed: the next agent would take the container for half made.
    fn has_lost_its_order(&self) -> bool {
        let is_settled = self.unreadable.is_some() || self.reported.as_ref().is_some_and(is_over);
        !is_settled && matches!(self.bundle.join(ORDER).try_exists(), Ok(false))
    }

    /// The state of a container that is being ended because its records cannot be read.
    fn foreign_state(&self) -> Found {
        match self.shim {
            Shim::Absent => Found::Lost(None),
            Shim::Unnamed | Shim::Alive(_) => Found::Is(ContainerState::Starting),
        }
    }

    fn state(&self) -> Result<Found, WorkloadError> {
        found_in(&self.records(), !matches!(self.shim, Shim::Absent))
    }
}

/// The caller checks before whether the shim is alive: if it was not, it can record nothing more.
fn found_in(records: &Records, is_alive: bool) -> Result<Found, WorkloadError> {
    if let Some(exit) = records.read::<ContainerExit>(EXIT)? {
        return Ok(Found::Is(ended(exit)));
    }
    let begun = records.read::<StateRecord>(STATE)?;
    Ok(match (is_alive, begun) {
        (true, Some(state)) => {
            Found::Is(ContainerState::Running { pid: state.process.pid, started: state.started_at })
        }
        (true, None) => Found::Is(ContainerState::Starting),
        (false, Some(state)) => Found::Lost(Some(state.started_at)),
        (false, None) if records.has(SHIM) => Found::Lost(None),
        (false, None) => Found::Is(ContainerState::Created),
    })
}

/// The state of a bundle's records for an agent, for the fuzz target.
#[cfg(any(test, feature = "fake"))]
pub(super) fn state_of(bundle: &Path, is_alive: bool) -> Result<(&'static str, Notes), WorkloadError> {
    let state = match found_in(&Records::of(bundle), is_alive)? {
        Found::Lost(_) => "gone",
        Found::Is(ContainerState::Lost(_)) => "lost",
        Found::Is(ContainerState::Exited(_)) => "exited",
        Found::Is(ContainerState::Running { .. }) => "running",
        Found::Is(_) => "not begun",
    };
    Ok((state, later_notes(bundle).notes))
}

/// The reason why a container without its order is ended.
fn missing(bundle: &Path) -> String {
    format!("{} is missing", bundle.join(ORDER).display())
}

/// True if it has run: a container that never began may be started again.
fn is_over(state: &ContainerState) -> bool {
    match state {
        ContainerState::Exited(exit) => exit.error.is_none(),
        ContainerState::Lost(_) => true,
        _ => false,
    }
}

fn ended(exit: ContainerExit) -> ContainerState {
    if exit.lost { ContainerState::Lost(exit) } else { ContainerState::Exited(exit) }
}

/// Takes the bundle's lock; `None` if a shim has it.
fn lock(bundle: &Path) -> io::Result<Option<File>> {
    let file = open_lock(&bundle.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// True if the error shows that no file can be opened there, now or later.
fn is_no_file(error: &io::Error) -> bool {
    let raw = error.raw_os_error().map(Errno::from_raw);
    matches!(raw, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR | Errno::ENXIO | Errno::ELOOP))
}

/// Signals the container's first process, if it has begun and lives.
fn signal_first(records: &Records, signal: i32) -> Result<(), WorkloadError> {
    let Some(state) = records.read::<StateRecord>(STATE)? else { return Ok(()) };
    let sent = match state.process.open() {
        Ok(Some(process)) => process.signal(signal),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    sent.map_err(|error| {
        WorkloadError::failed(format_args!("send signal {signal} to {}", state.process.pid), error)
    })
}

/// The names in a directory that can be ours.
///
/// # Errors
/// It exists and cannot be read, so its content is unknown.
fn names_for_sure(directory: &Path) -> Result<Vec<String>, WorkloadError> {
    match fs::read_dir(directory) {
        Err(error) if !is_no_file(&error) => Err(on("read", directory)(error)),
        _ => Ok(names(directory)),
    }
}

/// The names in a directory that can be ours; an unreadable one has none.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().take(ENTRIES).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

impl Workloads for LinuxWorkloads {
    fn prepare_pod(&mut self, order: &PodOrder) -> Result<PodPlaces, WorkloadError> {
        check_name("pod UID", &order.uid)?;
        sandbox::prepare(&self.places, &self.board.cgroups, &self.settings.program, order)
    }

    fn create_container(
        &mut self,
        order: &ContainerOrder,
        config: MakeConfig<'_>,
    ) -> Result<(), WorkloadError> {
        let id = &order.id;
        id.check()?;
        if !self.board.cgroups.confine_devices() {
            return Err(WorkloadError::refused(
                "this machine has no control groups for devices: as root a container could open its disks",
            ));
        }
        if !sandbox::is_whole(&self.places, &id.pod) {
            return Err(WorkloadError::Unprepared(format!("pod {} is not prepared", id.pod)));
        }
        if !self.containers.contains_key(id) {
            self.end_strays(&id.pod)?;
            // remove the leftovers of a killed agent
            self.remove_rest(id, None)?;
            if let Err(error) = self.make_bundle(order, config) {
                self.containers.remove(id);
                if let Err(leftover) = self.remove_rest(id, None) {
                    log::warn!("container {id}: after a failed creation: {leftover}");
                }
                return Err(error);
            }
        }
        self.container(id)?.reported = None;
        self.judge(id);
        Ok(())
    }

    fn start_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        let program = self.settings.program.clone();
        let container = self.container(id)?;
        container.reported = None;
        let held = lock(&container.bundle).map_err(on("lock", &container.bundle))?;
        let records = container.records();
        let ended = records.read::<ContainerExit>(EXIT)?;
        let may_start = match &ended {
            _ if container.unreadable.is_some() => false,
            None => !records.has(SHIM),
            Some(exit) => exit.error.is_some(),
        };
        // even if a process that was just forked has a copy of the lock and so holds it for a moment: then
        // the container is found not to have begun, and the start is answered
        container.was_started |= may_start;
        if let Some(held) = held.filter(|_| may_start) {
            for name in [EXIT, STATE, SHIM] {
                records.remove(name)?;
            }
            (container.stop, container.begins) = (None, None);
            let mut command = Command::new(program);
            command.arg("shim").arg(&container.bundle).current_dir("/").process_group(0);
            // the lock is passed on, so that it is never free in between
            command.stdin(held).stdout(Stdio::null()).stderr(Stdio::null());
            process::with_plain_environment(&mut command);
            let child = command.spawn().map_err(on("start a shim for", &container.bundle))?;
            let process = ProcessFd::open(child.id().cast_signed())
                .map_err(on("watch the shim of", &container.bundle))?;
            container.shim = process.map_or(Shim::Unnamed, Shim::Alive);
        }
        self.judge(id);
        Ok(())
    }

    fn stop_container(
        &mut self,
        id: &ContainerId,
        signal: i32,
        grace: Duration,
    ) -> Result<(), WorkloadError> {
        let container = self.container(id)?;
        let kill_at = process::after(Instant::now(), grace);
        container.stop = match container.stop.take() {
            None => Some(Stop { signal: Some(signal).filter(|_| !grace.is_zero()), kill_at }),
            Some(stop) => Some(Stop { kill_at: stop.kill_at.min(kill_at), ..stop }),
        };
        container.reported = None;
        self.judge(id);
        let now = Instant::now();
        self.kill_due(now, now);
        Ok(())
    }

    fn kill_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        self.stop_container(id, libc::SIGKILL, Duration::ZERO)
    }

    fn remove_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError> {
        id.check()?;
        let Some(container) = self.containers.get_mut(id) else { return self.remove_rest(id, None) };
        container.look_for_shim()?;
        if !matches!(container.shim, Shim::Absent) {
            // its last record may exist already while the process ends
            let ends = matches!(&container.shim, Shim::Alive(process) if container.records().has(EXIT) && process.wait(RETRY));
            if !ends {
                return Err(WorkloadError::Busy(format!("container {id} has not ended")));
            }
            container.look_for_shim()?;
        }
        let group = container.group.clone();
        let watch = container.watch;
        self.remove_rest(id, Some(&group))?;
        if let (Some(inotify), Some(watch)) = (&self.inotify, watch) {
            let _ = inotify.rm_watch(watch);
        }
        self.containers.remove(id);
        Ok(())
    }

    fn has_containers(&self, uid: &str) -> bool {
        check_name("pod UID", uid).is_ok() && sandbox::has_containers(&self.places, uid)
    }

    fn network_of(&self, uid: &str) -> Option<PathBuf> {
        check_name("pod UID", uid).ok()?;
        sandbox::network_of(&self.places, uid)
    }

    fn drop_network(&mut self, uid: &str) -> Result<(), WorkloadError> {
        check_name("pod UID", uid)?;
        let may_run = |container: &Container| {
            !matches!(container.reported, Some(ContainerState::Exited(_) | ContainerState::Lost(_)))
        };
        if self.containers.iter().any(|(id, container)| id.pod == uid && may_run(container)) {
            return Err(WorkloadError::Busy(format!("a container uses the network of pod {uid}")));
        }
        sandbox::drop_network(&self.places, uid)
    }

    fn remove_pod(&mut self, uid: &str) -> Result<(), WorkloadError> {
        check_name("pod UID", uid)?;
        sandbox::remove(&self.places, &self.board.cgroups, uid)
    }

    fn observe(&mut self, patience: Duration) -> Vec<Observation> {
        let end = process::after(Instant::now(), patience);
        loop {
            let now = Instant::now();
            let until = self.kill_due(now, end);
            if !self.observed.is_empty() {
                return std::mem::take(&mut self.observed);
            }
            let woken = self.wait(until);
            if woken || (self.observed.is_empty() && Instant::now() >= end) {
                return std::mem::take(&mut self.observed);
            }
        }
    }

    fn pods(&self) -> Vec<PodFound> {
        let found = |uid: String| PodFound { order: sandbox::prepared(&self.places, &uid), uid };
        names(&self.places.pods()).into_iter().filter(|uid| check_name("", uid).is_ok()).map(found).collect()
    }

    fn notes(&self, id: &ContainerId) -> Notes {
        self.containers.get(id).map(|container| container.notes.clone()).unwrap_or_default()
    }

    fn note(&mut self, id: &ContainerId, name: &str, text: &str) -> Result<(), WorkloadError> {
        let container = self.container(id)?;
        let mut record = later_notes(&container.bundle);
        record.notes.insert(name.to_owned(), text.to_owned());
        container.records().write(NOTES, &record)?;
        container.notes.insert(name.to_owned(), text.to_owned());
        Ok(())
    }
}

/// The notes that were added after the container was made. Unreadable notes count as absent.
fn later_notes(bundle: &Path) -> NotesRecord {
    let found = Records::of(bundle).read::<NotesRecord>(NOTES).ok().flatten();
    found.unwrap_or(NotesRecord { version: VERSION, notes: Notes::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{Console, LogOrder};

    /// A runtime without a container, and without crun.
    struct Opened {
        scratch: PathBuf,
        workloads: LinuxWorkloads,
    }

    impl Opened {
        fn new(name: &str) -> Self {
            let name = format!("kedge-{name}-{}", std::process::id());
            let scratch = std::env::temp_dir().join(&name);
            let _ = fs::remove_dir_all(&scratch);
            let settings = Settings {
                pods_group: format!("/{name}"),
                crun: Crun { program: "/nonexistent/crun".into(), limit: Duration::from_secs(1) },
                ..Settings::new(&scratch.join("run"), &scratch.join("root"))
            };
            Self { workloads: LinuxWorkloads::open(settings, &Roots::default()).unwrap(), scratch }
        }

        /// Leaves it as an earlier agent would: created, not started.
        fn adopt(&mut self) -> Records {
            let order = ContainerOrder {
                id: id(),
                layers: Vec::new(),
                places: Vec::new(),
                group: format!("{}/x", self.workloads.settings.pods_group),
                log: LogOrder { path: self.scratch.join("log"), max_bytes: 1, max_files: 1 },
                console: Console::default(),
                notes: Notes::from([("image".to_owned(), "busybox".to_owned())]),
            };
            let bundle = self.workloads.places.bundle(&id());
            make_directory(&bundle, 0o700).unwrap();
            Records::of(&bundle).write(ORDER, &self.workloads.order(&order)).unwrap();
            self.workloads.adopt(&id()).unwrap();
            assert_eq!(self.states(), [ContainerState::Created]);
            Records::of(&bundle)
        }

        fn states(&mut self) -> Vec<ContainerState> {
            let observed = self.workloads.observe(Duration::from_secs(60));
            observed.into_iter().map(|observation| observation.state).collect()
        }
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.scratch);
        }
    }

    fn id() -> ContainerId {
        ContainerId { pod: "uid-1".into(), name: "web".into(), attempt: 0 }
    }

    #[test]
    fn container_is_followed_without_a_watch() {
        let mut opened = Opened::new("unwatched");
        opened.workloads.inotify = None;
        let records = opened.adopt();
        let exit = ContainerExit::now(3, Some(1));
        records.write(EXIT, &exit).unwrap();
        assert_eq!(opened.states(), [ContainerState::Exited(exit)]);
        assert_eq!(opened.workloads.notes(&id())["image"], "busybox");
    }

    #[test]
    fn container_without_a_readable_order_is_lost() {
        let mut opened = Opened::new("foreign");
        let bundle = opened.workloads.places.bundle(&id());
        make_directory(&bundle, 0o700).unwrap();
        fs::write(bundle.join(ORDER), r#"{"version":9}"#).unwrap();
        opened.workloads.take_over().unwrap();
        assert!(opened.workloads.has_containers("uid-1"));
        let lost = opened.states();
        let says_why = |exit: &ContainerExit| {
            exit.why.as_ref().is_some_and(|why| why.ends_with("order.json: version 9, expected 1"))
        };
        assert!(matches!(&lost[..], [ContainerState::Lost(exit)] if exit.lost && says_why(exit)), "{lost:?}");
        // it is not started again, and the next start gets the same result
        opened.workloads.start_container(&id()).unwrap();
        assert_eq!(opened.states(), lost);
        opened.workloads =
            LinuxWorkloads::open(opened.workloads.settings.clone(), &Roots::default()).unwrap();
        assert_eq!(opened.states(), lost);
    }

    /// Like a shim of another version: it holds the lock, and its record cannot be read.
    #[test]
    fn shim_without_a_readable_record_is_looked_at_ever_less_often() {
        let mut opened = Opened::new("unnamed");
        let records = opened.adopt();
        let bundle = opened.workloads.places.bundle(&id());
        fs::write(bundle.join(SHIM), r#"{"version":2,"shim":{}}"#).unwrap();
        let held = lock(&bundle).unwrap().unwrap();
        let pause = |opened: &mut Opened| {
            opened.workloads.judge(&id());
            let now = Instant::now();
            opened.workloads.kill_due(now, now + Duration::from_secs(60)) - now
        };
        let pauses: Vec<Duration> = (0..8).map(|_| pause(&mut opened)).collect();
        assert!(pauses[0] <= Duration::from_millis(100), "{pauses:?}");
        assert_eq!(pauses[6..], [Duration::from_millis(1600); 2], "{pauses:?}");
        assert_eq!(opened.states(), [ContainerState::Starting]);
        // its end is noticed
        drop(held);
        records.write(EXIT, &ContainerExit::now(3, Some(1))).unwrap();
        let ended = opened.states();
        assert!(matches!(&ended[..], [ContainerState::Exited(exit)] if exit.exit_code == 3), "{ended:?}");
    }

    #[test]
    fn container_that_does_not_end_is_killed_again() {
        let mut opened = Opened::new("stubborn");
        opened.adopt();
        let bundle = opened.workloads.places.bundle(&id());
        fs::write(bundle.join(SHIM), r#"{"version":2,"shim":{}}"#).unwrap();
        let _held = lock(&bundle).unwrap().unwrap();
        opened.workloads.judge(&id());
        opened.workloads.kill_container(&id()).unwrap();
        let kill_at = |opened: &Opened| opened.workloads.containers[&id()].stop.as_ref().unwrap().kill_at;
        let again = kill_at(&opened);
        assert!(opened.workloads.containers[&id()].was_killed && again <= Instant::now() + RETRY);
        let due = |opened: &mut Opened, now: Instant| {
            opened.workloads.kill_due(now, now + Duration::from_secs(60));
            kill_at(opened)
        };
        assert_eq!(due(&mut opened, again - Duration::from_millis(1)), again, "not yet");
        assert_eq!(due(&mut opened, again), again + RETRY);
    }

    #[test]
    fn start_that_meets_a_copied_lock_is_answered() {
        let mut opened = Opened::new("copied");
        opened.adopt();
        let copy = File::create(opened.workloads.places.bundle(&id()).join(LOCK)).unwrap();
        copy.lock().unwrap();
        opened.workloads.start_container(&id()).unwrap();
        assert_eq!(opened.states(), [ContainerState::Starting]);
        drop(copy);
        let states = opened.states();
        assert!(matches!(&states[..], [ContainerState::Exited(exit)] if exit.error.is_some()), "{states:?}");
    }
}
