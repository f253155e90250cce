//! The host's identity, capacity and usage, in plain values.
//!
//! Always holds: no call fails; an unreadable value is empty or `None`, so a board with half a `/proc`
//! still reports the other half. Sizes are bytes, counts are counts.
//!
//! Leaves to others: reports made of these values, thresholds, and the choice of an address.

use std::net::IpAddr;

/// Facts that do not change while the machine runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostIdentity {
    /// 32 hex digits that stay the same over reboots; from `/etc/machine-id`, else derived from the hardware.
    pub machine_id: String,
    /// The kernel's name for this boot.
    pub boot_id: String,
    /// The mainboard's UUID or serial number, else the machine id.
    pub system_uuid: String,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel_release: String,
    /// `PRETTY_NAME` of os-release.
    pub os_image: String,
    /// The operating system in Go's spelling: `linux`.
    pub operating_system: &'static str,
    /// The processor this program was built for, in Go's spelling: `amd64`, `arm64`, `arm`, ...
    pub architecture: &'static str,
    /// The host name in the kernel.
    pub hostname: String,
}

/// An address at which other machines may reach this one: of an interface that is up, neither loopback nor
/// multicast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface it belongs to.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// True if the interface carries a default route of the address's family.
    pub default_route: bool,
}

/// The size of the machine's resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// CPUs online.
    pub cpus: u32,
    /// RAM.
    pub memory_bytes: u64,
    /// The file system that holds the root directory.
    pub root_bytes: u64,
    /// Inodes of that file system; zero where it has no such limit.
    pub root_inodes: u64,
    /// The number of processes and threads that the kernel allows.
    pub pids: u64,
}

/// How much of the resources is left or used; `None`: it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The capacity without the working set, as the kubelet counts it; less if the kernel reports that
    /// programs could get less.
    pub memory_available_bytes: Option<u64>,
    /// Bytes that an ordinary user may still write to the root directory's file system.
    pub root_available_bytes: Option<u64>,
    /// Free inodes there.
    pub root_available_inodes: Option<u64>,
    /// Processes and threads that exist.
    pub pids_in_use: Option<u64>,
}

/// A watchdog that the kernel has a driver for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchdogDevice {
    /// `watchdog0`.
    pub name: String,
    /// The name that its driver reports.
    pub identity: String,
    /// `active`, `inactive`; empty where the kernel does not report it.
    pub state: String,
    /// Seconds without a ping after which it resets, as text from the kernel.
    pub timeout: String,
}

/// The name of the kernel's own timer.
const SOFTDOG: &str = "Software Watchdog";

impl WatchdogDevice {
    /// True if a program pings it.
    pub fn is_active(&self) -> bool {
        self.state == "active"
    }

    /// True if it works without the kernel, so that it also ends a kernel that hangs.
    pub fn is_hardware(&self) -> bool {
        self.identity != SOFTDOG
    }
}

/// Facts about the host. Each call reads anew and takes well under a millisecond.
pub trait HostFacts: Send + Sync {
    /// Facts that do not change while the machine runs.
    fn identity(&self) -> HostIdentity;

    /// The machine's addresses: those on a default route first, global before link-local, IPv4 before IPv6,
    /// then by interface name and value, so that the order is stable. At most [`ADDRESS_LIMIT`].
    fn addresses(&self) -> Vec<Address>;

    /// The size of the machine's resources.
    fn capacity(&self) -> Capacity;

    /// How much of it is used.
    fn usage(&self) -> Usage;

    /// The watchdogs, by name; at most [`WATCHDOG_LIMIT`].
    fn watchdogs(&self) -> Vec<WatchdogDevice>;
}

/// Most watchdogs that are returned: boards have one or two.
pub const WATCHDOG_LIMIT: usize = 16;

/// Most addresses that are returned: a host of many containers has an interface for each, and those do not
/// belong in a status.
pub const ADDRESS_LIMIT: usize = 64;

/// Memory and CPU of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Resident memory, shared pages counted whole.
    pub rss_bytes: Option<u64>,
    /// Resident memory, with shared pages divided among their users: the most meaningful figure. Kernels
    /// before 4.14 lack it.
    pub pss_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open file descriptors.
    pub fds: Option<u64>,
}

/// Go's name for the architecture that Rust calls `name`; unknown ones keep Rust's name.
pub fn go_architecture(name: &'static str) -> &'static str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "loongarch64" => "loong64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        other => other,
    }
}

/// Sorts as [`HostFacts::addresses`] promises, drops duplicates, and cuts at [`ADDRESS_LIMIT`].
pub(crate) fn in_order(mut addresses: Vec<Address>) -> Vec<Address> {
    addresses.sort_by_cached_key(|address| {
        let link_local = match address.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        (!address.default_route, link_local, address.ip.is_ipv6(), address.interface.clone(), address.ip)
    });
    addresses.dedup();
    addresses.truncate(ADDRESS_LIMIT);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_spelled_as_in_go() {
        for (rust, go) in [
            ("x86_64", "amd64"),
            ("aarch64", "arm64"),
            ("arm", "arm"),
            ("x86", "386"),
            ("riscv64", "riscv64"),
        ] {
            assert_eq!(go_architecture(rust), go);
        }
    }

    #[test]
    fn addresses_have_a_stable_order() {
        let address = |interface: &str, ip: &str, default_route| Address {
            interface: interface.into(),
            ip: ip.parse().unwrap(),
            default_route,
        };
        let wanted = vec![
            address("eth0", "192.168.1.5", true),
            address("eth0", "2001:db8::5", true),
            address("eth0", "fe80::5", true),
            address("cni0", "10.88.0.1", false),
            address("eth1", "169.254.3.4", false),
        ];
        let mut given = wanted.clone();
        given.reverse();
        given.push(wanted[0].clone());
        assert_eq!(in_order(given), wanted);
    }

    #[test]
    fn addresses_of_1000_interfaces_are_bounded() {
        let many = (0..1000u32).map(|n| Address {
            interface: format!("veth{n}"),
            ip: IpAddr::V4(n.into()),
            default_route: false,
        });
        assert_eq!(in_order(many.collect()).len(), ADDRESS_LIMIT);
    }
}
