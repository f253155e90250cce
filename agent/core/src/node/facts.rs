//! Facts about the host, as plain values that the shell reads and core only compares and reports.
//!
//! Leaves to others: reading them (the crate `kedge`), what follows from them (`node::status`, `node::pressure`, `pods`).

/// Where an API server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServer {
    /// A name, or an address without brackets: what its certificate is for.
    pub host: String,
    pub port: u16,
}

impl ApiServer {
    /// A pod with a network of its own finds itself there.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.parse::<std::net::IpAddr>().map(|address| address.to_canonical());
        address.is_ok_and(|it| it.is_loopback() || it.is_unspecified())
            || host == "localhost"
            || host.ends_with(".localhost")
    }

    /// `host:port`, with brackets around an IPv6 address.
    #[must_use]
    pub fn joined(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Facts about the host, as plain values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// Identity of the board.
    pub system_uuid: String,
    /// This boot.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// PRETTY_NAME of os-release.
    pub os_image: String,
    /// In Go's spelling.
    pub architecture: String,
    /// The host's name.
    pub hostname: String,
    /// Addresses others may use, best first.
    pub addresses: Vec<String>,
    /// CPUs online.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the file system below `--root-dir`.
    pub storage_bytes: u64,
    /// Inodes there.
    pub inodes: u64,
    /// Highest number of processes.
    pub pids: u64,
    /// Bytes of memory that could be had; None, here and below: that could not be read.
    pub memory_available_bytes: Option<u64>,
    /// Bytes free below `--root-dir`.
    pub storage_available_bytes: Option<u64>,
    /// Inodes free there.
    pub inodes_free: Option<u64>,
    /// Processes there are.
    pub pids_in_use: Option<u64>,
    /// What runs containers.
    pub runtime: Runtime,
    /// Where they get a network of their own.
    pub pod_network: PodNetworks,
    /// Where the API server is; None: there is none that pods could be told.
    pub api_server: Option<ApiServer>,
    /// The kernel enforces profiles of AppArmor.
    pub has_apparmor: bool,
    /// The kernel labels files and processes by SELinux.
    pub has_selinux: bool,
    /// What resets the machine when its kernel hangs.
    pub watchdog: HardwareWatchdog,
    /// Which slot of a disk image runs, and why.
    pub image: ImageState,
}

/// What the slots of a node's disk image show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImageState {
    /// The node runs no disk image, or one whose boot loader counts nothing.
    #[default]
    NotAsked,
    /// The slot that runs is good, and the other one may be started, or is empty.
    Good(&'static str),
    /// The slot that runs is tried.
    OnTrial(&'static str),
    /// This slot runs because the other one has failed all its tries.
    FellBack(&'static str),
    /// The boot loader's list cannot be read: why.
    Unknown(String),
}

/// The hardware watchdog of a node that runs a disk image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HardwareWatchdog {
    /// Nobody asks: what the machine has is its owner's matter.
    #[default]
    NotAsked,
    /// The kernel has no driver for one.
    Absent,
    /// There is one of this name, and nobody has started it.
    Idle(String),
    /// One of this name runs.
    Active(String),
}

/// Whether pods can have a network of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodNetworks {
    /// They cannot: why.
    NotReady(String),
    /// They can, by the configuration of this name.
    Ready(String),
}

impl Default for PodNetworks {
    fn default() -> Self {
        Self::NotReady("nobody has looked yet".into())
    }
}

/// Whether this node can run containers: with its own state it is what `Ready` and the capacity for pods follow from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Runtime {
    /// The agent has none, and the node is ready for all that it does: to be configured and watched over.
    #[default]
    Absent,
    /// It is being started: nothing is concluded from that for a while.
    Starting,
    /// It does not work yet, or no longer: why.
    NotReady(String),
    /// It works.
    Ready,
}

/// Before the name of a device of the node, in a resource's name.
pub(crate) const DEVICE: &str = "kedge.dev/";
