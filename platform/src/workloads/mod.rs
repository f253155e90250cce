//! Containers on a board: the verbs by which an agent orders them, and its observations. `linux` runs them
//! with crun and one shim each; `fake` (feature `fake`) behaves and fails in the same way in memory.
//!
//! Always holds: a container belongs to a shim, not to the agent, so it survives the agent, and its end is
//! recorded however long no agent runs. A verb may be repeated. A container whose shim died is ended before
//! it is reported as lost. Incomplete work of a verb that was interrupted by a kill is found and cleaned up
//! by the next start of the agent.
//!
//! Leaves to others: the choice of containers (core), the content of `config.json` (core), the layers of an
//! image (images).

mod attach;
mod calls;
pub mod cgroups;
mod crun;
mod devices;
mod exec;
#[cfg(any(test, feature = "fake"))]
mod fake;
#[cfg(any(test, feature = "fake"))]
pub mod fuzzing;
mod linux;
mod log;
mod pause;
mod places;
mod plugin;
mod probe;
mod process;
mod records;
mod rootfs;
mod running;
mod sandbox;
mod session;
mod shim;
mod socket;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use attach::{AttachOrder, Attachment};
pub use calls::{handed_over, stand_apart, start_port, start_session};
pub use cgroups::{Cgroups, GroupLimits};
pub use devices::{Device, all_devices, device};
pub use exec::{Exec, ExecEnd, LeftProgram};
#[cfg(any(test, feature = "fake"))]
pub use fake::{FakeContainer, FakeFault, FakeWorkloads};
pub use linux::{Crun, LinuxWorkloads, Settings, Waker};
pub use pause::pause;
pub use plugin::{Plugin, PluginOutput, plugins_of_earlier_agents};
pub use probe::{Board, control_groups, has_apparmor, has_selinux, probe};
pub(crate) use process::receive;
pub use process::{WindowSize, take_out_ended_children, window_size};
pub use records::{Console, ContainerExit, LogOrder};
pub use rootfs::{
    FoundPlace, UserFiles, bind_below, make_open_directory, mount_image, mount_memory, unmount,
};
pub use running::{RunningPod, running_pods, started_at};
pub use session::{Session, SessionOrder, Streams};
pub use shim::shim;
pub use socket::{has_pod, pod_socket};

/// Longest name of a pod's UID or a container: both become file names, and parts of crun's.
pub const NAME_BYTES: usize = 64;

/// One run of one container: a container that is started again is another attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerId {
    /// The pod's UID.
    pub pod: String,
    /// The container's name within the pod.
    pub name: String,
    /// Counts the runs under this name, from 0.
    pub attempt: u32,
}

impl ContainerId {
    /// # Errors
    /// A part of it cannot be used in a file name.
    pub fn check(&self) -> Result<(), WorkloadError> {
        check_name("pod UID", &self.pod)?;
        check_name("container name", &self.name)
    }

    /// Its directory's name within the pod's.
    pub(crate) fn directory(&self) -> String {
        format!("{}-{}", self.name, self.attempt)
    }

    /// The reverse of [`Self::directory`].
    pub(crate) fn parse(pod: &str, directory: &str) -> Option<Self> {
        let (name, attempt) = directory.rsplit_once('-')?;
        let id = Self { pod: pod.to_owned(), name: name.to_owned(), attempt: attempt.parse().ok()? };
        (id.check().is_ok() && id.directory() == directory).then_some(id)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.pod, self.name, self.attempt)
    }
}

/// Checks that a name consists of letters, digits and '-', so that it is one component of a path.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), WorkloadError> {
    let fits = (1..=NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !name.starts_with('-');
    if fits {
        return Ok(());
    }
    Err(WorkloadError::refused(format_args!(
        "{what} {name:?}, expected 1 to {NAME_BYTES} letters, digits and '-'"
    )))
}

/// The parts that the containers of a pod share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOrder {
    /// The pod's UID.
    pub uid: String,
    /// The host name that its processes see; not used with `host_network`.
    pub hostname: String,
    /// The machine's network and UTS namespaces instead of the pod's own.
    pub host_network: bool,
    /// The machine's IPC namespace and `/dev/shm` instead of the pod's own.
    pub host_ipc: bool,
    /// One PID namespace for all its containers, held by `kedge pause`.
    pub share_process_namespace: bool,
    /// Its control groups, outermost first and its own last, each with its limits; paths start at the root of
    /// the tree.
    pub groups: Vec<(String, GroupLimits)>,
    /// Small files that its containers share (hosts, resolv.conf): name and text.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Facts about the pod that the agent needs again after a restart. They are not interpreted here.
    #[serde(default)]
    pub notes: Notes,
}

/// Facts that an agent needs again after a restart: a few short texts by name.
pub type Notes = BTreeMap<String, String>;

/// A pod that exists here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFound {
    /// The pod's UID.
    pub uid: String,
    /// Its order, if it was prepared completely; `None`: it must be prepared again, or removed.
    pub order: Option<PodOrder>,
}

/// The paths of a pod's shared parts, for its `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlaces {
    /// The network namespace; `None`: the machine's.
    pub network: Option<PathBuf>,
    /// The UTS namespace; `None`: the machine's.
    pub uts: Option<PathBuf>,
    /// The IPC namespace; `None`: the machine's.
    pub ipc: Option<PathBuf>,
    /// The PID namespace that all containers share; `None` if they have separate ones.
    pub pid: Option<PathBuf>,
    /// The directory to bind to `/dev/shm`.
    pub shm: PathBuf,
    /// The directory of its small files.
    pub files: PathBuf,
}

/// A container to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerOrder {
    /// The container's id.
    pub id: ContainerId,
    /// The image's layers, the topmost first; they are only read.
    pub layers: Vec<PathBuf>,
    /// Absolute paths of directories that are made in its root file system where missing.
    pub places: Vec<PathBuf>,
    /// Its control group, as in `linux.cgroupsPath` of `config.json`.
    pub group: String,
    /// The log of its output.
    pub log: LogOrder,
    /// Its input, and whether it has a terminal.
    pub console: Console,
    /// Facts about the container that the agent needs again after a restart. They are not interpreted here.
    pub notes: Notes,
}

/// Makes `config.json` once the image's own user files can be read. An error is the container's fault, and
/// final.
pub type MakeConfig<'a> = &'a dyn Fn(&UserFiles, &[FoundPlace]) -> Result<Vec<u8>, String>;

/// The state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Its root file system exists, and no process runs.
    Created,
    /// Its shim lives, and its process has not begun; or it cannot be adopted and is being ended.
    Starting,
    /// Its process runs.
    Running {
        /// The ID of its process on the machine.
        pid: i32,
        /// Microseconds since 1970.
        started: i64,
    },
    /// It ended, and its shim recorded how; or it never began, and `exit.error` has the reason.
    Exited(ContainerExit),
    /// Its shim died first. It has been ended; how it would have ended by itself is unknown.
    Lost(ContainerExit),
}

/// A container and its state: the first call returns one for each existing container, later calls one for
/// each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The container's id.
    pub id: ContainerId,
    /// Its present state.
    pub state: ContainerState,
}

/// The reason why a verb was not carried out.
#[derive(Debug)]
pub enum WorkloadError {
    /// The order itself cannot be carried out, now or later.
    Refused(String),
    /// Something else must end first.
    Busy(String),
    /// The parts that the pod's containers share are missing: `prepare_pod` makes them.
    Unprepared(String),
    /// The board failed; the same verb may be repeated.
    Failed {
        /// The operation and its object.
        tried: String,
        /// The cause.
        source: io::Error,
    },
}

impl WorkloadError {
    pub(crate) fn refused(why: impl fmt::Display) -> Self {
        Self::Refused(why.to_string())
    }

    pub(crate) fn failed(tried: impl fmt::Display, source: impl Into<io::Error>) -> Self {
        Self::Failed { tried: tried.to_string(), source: source.into() }
    }
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Busy(why) | Self::Unprepared(why) => f.write_str(why),
            Self::Failed { tried, source } => write!(f, "cannot {tried}: {source}"),
        }
    }
}

impl Error for WorkloadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Makes an error that names the operation and the path.
pub(crate) fn on(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorkloadError {
    move |source| WorkloadError::failed(format_args!("{tried} {}", path.display()), source)
}

/// The containers of one agent. Calls may block for as long as the disk, or a limited run of crun, takes:
/// call them on a thread that may.
pub trait Workloads: Send {
    /// Makes the parts that the pod's containers share. Repeated, it makes missing ones.
    ///
    /// # Errors
    /// See [`WorkloadError`].
    fn prepare_pod(&mut self, order: &PodOrder) -> Result<PodPlaces, WorkloadError>;

    /// Makes the container's root file system and records; starts no process. One that exists is left
    /// unchanged.
    ///
    /// # Errors
    /// See [`WorkloadError`]; nothing is left behind.
    fn create_container(
        &mut self,
        order: &ContainerOrder,
        config: MakeConfig<'_>,
    ) -> Result<(), WorkloadError>;

    /// Starts a created container; an observation will tell whether it began. One that was started before
    /// stays unchanged.
    ///
    /// # Errors
    /// See [`WorkloadError`]; the verb may be repeated.
    fn start_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError>;

    /// Sends the signal to the container's first process, and kills the container if it has not ended after
    /// `grace`. Repeated, it can only shorten the remaining time.
    ///
    /// # Errors
    /// See [`WorkloadError`].
    fn stop_container(&mut self, id: &ContainerId, signal: i32, grace: Duration)
    -> Result<(), WorkloadError>;

    /// Kills all of a container's processes now.
    ///
    /// # Errors
    /// See [`WorkloadError`].
    fn kill_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError>;

    /// Removes a container that has ended or never started; its log stays. Removing one that does not exist
    /// succeeds.
    ///
    /// # Errors
    /// It still runs, or something could not be removed; the rest was.
    fn remove_container(&mut self, id: &ContainerId) -> Result<(), WorkloadError>;

    /// True if anything exists of a container of this pod, including one that cannot be adopted.
    fn has_containers(&self, uid: &str) -> bool;

    /// The network namespace of a pod, if it has one of its own.
    fn network_of(&self, uid: &str) -> Option<PathBuf>;

    /// Removes the network namespace of a pod whose containers have all ended; `prepare_pod` makes another
    /// one.
    ///
    /// # Errors
    /// One may run, or the namespace could not be unmounted.
    fn drop_network(&mut self, uid: &str) -> Result<(), WorkloadError>;

    /// Removes the parts that a pod's containers shared. Removing a pod that does not exist succeeds.
    ///
    /// # Errors
    /// It still has containers, or something could not be removed; the rest was.
    fn remove_pod(&mut self, uid: &str) -> Result<(), WorkloadError>;

    /// Waits until something has changed, or until `patience` is over.
    fn observe(&mut self, patience: Duration) -> Vec<Observation>;

    /// The pods that exist here.
    fn pods(&self) -> Vec<PodFound>;

    /// The notes of an existing container, including those added by `note`; empty if they cannot be read.
    fn notes(&self, id: &ContainerId) -> Notes;

    /// Adds a note to an existing container, replacing an earlier note of that name.
    ///
    /// # Errors
    /// It could not be written; the earlier notes are kept.
    fn note(&mut self, id: &ContainerId, name: &str, text: &str) -> Result<(), WorkloadError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_name_their_containers() {
        let id = |name: &str, attempt| ContainerId { pod: "uid-1".into(), name: name.into(), attempt };
        for id in [id("a", 0), id("a-1", 2), id("web", u32::MAX)] {
            assert_eq!(ContainerId::parse("uid-1", &id.directory()), Some(id));
        }
        for foreign in ["a", "a-", "-1", "a-01", "a-+1", ".kedge-new-1", "a/b-1", "a-99999999999"] {
            assert_eq!(ContainerId::parse("uid-1", foreign), None, "{foreign}");
        }
    }

    #[test]
    fn names_that_leave_their_directory_are_refused() {
        for name in ["", "..", "a/b", "-rf", "a b", "\n", &"a".repeat(65)] {
            let id = ContainerId { pod: "uid".into(), name: name.to_owned(), attempt: 0 };
            assert!(matches!(id.check(), Err(WorkloadError::Refused(_))), "{name:?}");
            assert!(check_name("pod UID", name).is_err(), "{name:?}");
        }
    }
}
