//! The paths of containers' files: those that a reboot must remove are under the run directory (tmpfs), those
//! that would not fit into memory are on the disk.
//!
//! Always holds: every path of a container follows from its ID, so a start finds the leftovers of a killed
//! agent. A container's directory on the disk without one under the run directory is garbage: the machine has
//! been rebooted since.
//!
//! Leaves to others: the contents.
//!
//!     RUN/crun                        crun's own state
//!     RUN/pods/UID/order.json         the pod, written when it is prepared
//!     RUN/pods/UID/{net,uts,ipc}      its namespaces, bound to files
//!     RUN/pods/UID/{shm,files}        its /dev/shm, and small files
//!     RUN/pods/UID/pause.json         the process that holds its PID namespace
//!     RUN/pods/UID/c/NAME-ATTEMPT/    the bundle: config.json, order.json, notes.json, rootfs, lock; by its shim: shim.json, state.json, exit.json
//!     DATA/UID/NAME-ATTEMPT/          what the container writes into its root file system
//!     DATA/.gone-N/                   what is being removed

use std::path::{Path, PathBuf};

use super::ContainerId;

#[derive(Clone, Debug)]
pub(super) struct Places {
    /// On tmpfs: gone after a reboot.
    pub(super) run: PathBuf,
    /// On the disk.
    pub(super) data: PathBuf,
}

impl Places {
    pub(super) fn crun(&self) -> PathBuf {
        self.run.join("crun")
    }

    pub(super) fn pods(&self) -> PathBuf {
        self.run.join("pods")
    }

    pub(super) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    pub(super) fn containers(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("c")
    }

    pub(super) fn bundle(&self, id: &ContainerId) -> PathBuf {
        self.containers(&id.pod).join(id.directory())
    }

    pub(super) fn data_of_pod(&self, uid: &str) -> PathBuf {
        self.data.join(uid)
    }

    pub(super) fn data_of(&self, id: &ContainerId) -> PathBuf {
        self.data_of_pod(&id.pod).join(id.directory())
    }
}

/// The mount point of a bundle's root file system.
pub(super) fn rootfs(bundle: &Path) -> PathBuf {
    bundle.join("rootfs")
}
