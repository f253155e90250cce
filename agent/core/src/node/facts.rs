//! Facts about the host, as plain values that the shell reads and core only compares and reports.
//!
//! Leaves to others: reading them (the crate `kedge`), the consequences (`node::status`, `node::pressure`,
//! `pods`).

/// The address of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServer {
    /// A name, or an address without brackets, which its certificate is for.
    pub host: String,
    pub port: u16,
}

impl ApiServer {
    /// The server of `https://HOST[:PORT]`, an IPv6 address in brackets; `None` for any other text.
    pub fn of_url(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("https://")?;
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
            }
            None => {
                let (host, port) =
                    rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
                let is_name = kedge_api::names::subdomain_complaint(host).is_none();
                (is_name.then_some(host)?, port)
            }
        };
        let is_port = |port: &&str| port.bytes().all(|digit| digit.is_ascii_digit());
        let port: u16 = match port {
            Some(port) => Some(port).filter(is_port)?.parse().ok().filter(|port| *port > 0)?,
            None => 443,
        };
        Some(Self { host: host.to_owned(), port })
    }

    /// As a URL, with its port.
    pub fn url(&self) -> String {
        format!("https://{}", self.joined())
    }

    /// Whether a pod with a network of its own would reach itself there.
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
    /// Addresses that others may use, best first.
    pub addresses: Vec<String>,
    /// CPUs online.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the file system below `--root-dir`.
    pub storage_bytes: u64,
    /// Inodes of the same file system.
    pub inodes: u64,
    /// Highest number of processes.
    pub pids: u64,
    /// Bytes of memory that are available; `None`, here and below, if it could not be read.
    pub memory_available_bytes: Option<u64>,
    /// Bytes free below `--root-dir`.
    pub storage_available_bytes: Option<u64>,
    /// Inodes free in it.
    pub inodes_free: Option<u64>,
    /// Number of processes.
    pub pids_in_use: Option<u64>,
    /// The state of the container runtime.
    pub runtime: Runtime,
    /// The controllers of control groups that limits of pods need and the kernel lacks; `None` before the
    /// runtime has looked.
    pub lacking_controllers: Option<Vec<&'static str>>,
    /// The network from which pods get a namespace of their own.
    pub pod_network: PodNetworks,
    /// The API server's address; `None` if pods could not use it.
    pub api_server: Option<ApiServer>,
    /// The name of the set of certificate authorities that connections to the API server trust; `None`
    /// without a kubeconfig.
    pub authorities: Option<String>,
    /// Whether the kernel enforces profiles of AppArmor.
    pub has_apparmor: bool,
    /// Whether the kernel labels files and processes by SELinux.
    pub has_selinux: bool,
    /// The device that resets the machine when its kernel hangs.
    pub watchdog: HardwareWatchdog,
    /// The running slot of a disk image, and why it runs.
    pub image: ImageState,
}

/// The message about limits of pods that a kernel without these controllers does not keep.
pub(crate) fn limits_not_kept(lacking: &[&str]) -> String {
    let remedy = match lacking.contains(&"memory") {
        true => {
            "append cgroup_enable=memory cgroup_memory=1 to its command line (Raspberry Pi: cmdline.txt) and reboot"
        }
        false => "use a kernel that has it",
    };
    format!("the kernel has no controller {}: such limits of pods are not kept; {remedy}", lacking.join(", "))
}

/// The state of the slots of a node's disk image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImageState {
    /// The node runs no disk image, or one whose boot loader does not count.
    #[default]
    NotAsked,
    /// The running slot is good, and the other one may be started, or is empty.
    Good(&'static str),
    /// The running slot is on trial.
    OnTrial(&'static str),
    /// This slot runs because the other one has failed all its tries.
    FellBack(&'static str),
    /// The boot loader's list is unreadable: why.
    Unknown(String),
}

/// The hardware watchdog of a node that runs a disk image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HardwareWatchdog {
    /// Not checked: the owner of the machine decides about it.
    #[default]
    NotAsked,
    /// The kernel has no driver for one.
    Absent,
    /// There is one of this name, which no program has started.
    Idle(String),
    /// One of this name runs.
    Active(String),
}

/// Whether pods can have a network of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodNetworks {
    /// They cannot, for this reason.
    NotReady(String),
    /// They can, by the configuration of this name.
    Ready(String),
}

impl Default for PodNetworks {
    fn default() -> Self {
        Self::NotReady("not checked yet".into())
    }
}

/// Whether this node can run containers: together with the runtime's state, this decides `Ready` and the
/// capacity for pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Runtime {
    /// The agent has no runtime, and the node is ready for its other work: to be configured and monitored.
    #[default]
    Absent,
    /// It is being started: for a while this does not count as a fault.
    Starting,
    /// It does not work yet, or no longer, for this reason.
    NotReady(String),
    /// Running containers are followed, but none can begin until somebody installs what is missing, for this
    /// reason. Pods are rejected.
    Missing(String),
    /// It works.
    Ready,
}

/// Prefix of the resource name of a device of the node.
pub(crate) const DEVICE: &str = "kedge.dev/";
