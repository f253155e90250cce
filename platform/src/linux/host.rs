//! Facts about a Linux host, from /proc, /sys, /etc, statvfs and getifaddrs.
//!
//! Always holds: each call reads a handful of small files; one that is missing or odd affects only its own
//! fact.
//!
//! Leaves to others: thresholds and reporting.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::statvfs::{Statvfs, statvfs};
use sha2::{Digest, Sha256};

use super::usage::memory_available;
use super::{Roots, clocks, open_fact, read_text};
use crate::host::{
    Address, Capacity, HostFacts, HostIdentity, ProcessFacts, Usage, WATCHDOG_LIMIT, WatchdogDevice,
    go_architecture, in_order,
};

/// Most file descriptors counted; more than this is a leak whatever the number.
const FDS_LIMIT: usize = 65_536;
/// Most interface addresses that are examined.
const INTERFACES_LIMIT: usize = 4096;

/// Most bytes read of a routing table: 30,000 routes. The kernel lists the default route of IPv6 last.
const ROUTES_LIMIT: u64 = 4 * 1024 * 1024;

/// The machine this runs on.
#[derive(Clone, Debug)]
pub struct LinuxHost {
    roots: Roots,
    root_dir: PathBuf,
}

impl LinuxHost {
    /// The machine under `roots`; disk figures are of the file system that holds `root_dir` (or its nearest
    /// existing parent).
    pub fn new(roots: Roots, root_dir: impl Into<PathBuf>) -> Self {
        Self { roots, root_dir: root_dir.into() }
    }

    fn proc(&self, path: &str) -> String {
        read_text(&self.roots.proc.join(path)).unwrap_or_default()
    }

    fn machine_id(&self, hardware: Option<&str>) -> String {
        let files = [self.roots.etc.join("machine-id"), self.roots.var_lib.join("dbus/machine-id")];
        let valid = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let stored = files.iter().find_map(|path| read_text(path).ok().filter(valid));
        stored.unwrap_or_else(|| self.derived_machine_id(hardware))
    }

    /// For images without one (`uninitialized`, read-only /etc): the same on every boot, different on every
    /// board.
    fn derived_machine_id(&self, hardware: Option<&str>) -> String {
        let source = hardware.map(str::to_string).or_else(|| self.lowest_mac()).unwrap_or_default();
        if source.is_empty() {
            return String::new();
        }
        let digest = Sha256::digest(format!("kedge machine id {source}"));
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The lowest hardware address of a real network card.
    fn lowest_mac(&self) -> Option<String> {
        let cards = fs::read_dir(self.roots.sys.join("class/net")).ok()?;
        cards
            .flatten()
            .take(INTERFACES_LIMIT)
            .filter(|card| card.path().join("device").exists())
            .filter_map(|card| read_text(&card.path().join("address")).ok())
            .filter(|mac| mac.bytes().any(|byte| !matches!(byte, b'0' | b':')))
            .min()
    }

    /// The mainboard's own identity: SMBIOS on PCs and servers, the device tree elsewhere.
    fn hardware_id(&self) -> Option<String> {
        let places = [
            self.roots.sys.join("class/dmi/id/product_uuid"),
            self.roots.proc.join("device-tree/vm,uuid"),
            self.roots.proc.join("device-tree/system-id"),
            self.roots.proc.join("device-tree/serial-number"),
        ];
        // Firmware that was never given an identity reports all zeros or all ones, the same on every such
        // board.
        let real = |id: &String| {
            let digits = || id.bytes().filter(|byte| !matches!(byte, b'-' | b' '));
            digits().any(|byte| byte != b'0') && digits().any(|byte| !byte.eq_ignore_ascii_case(&b'f'))
        };
        places.iter().find_map(|path| read_text(path).ok().filter(real))
    }

    fn os_image(&self) -> String {
        let places = [self.roots.etc.join("os-release"), self.roots.usr_lib.join("os-release")];
        let name = places.iter().find_map(|path| pretty_name(&read_text(path).ok()?));
        name.unwrap_or_else(|| "Linux".to_string())
    }

    fn root_file_system(&self) -> Option<Statvfs> {
        let existing = self.root_dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        statvfs(existing)
            .map_err(io::Error::from)
            .inspect_err(|error| log::warn!("cannot measure the disk of {}: {error}", existing.display()))
            .ok()
    }

    /// Interfaces that carry a default route, for IPv4 and IPv6.
    fn default_routes(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        (
            default_interfaces_v4(self.routes("net/route")),
            default_interfaces_v6(self.routes("net/ipv6_route")),
        )
    }

    /// True for a bridge that only connects containers of this machine: none of its ports is a device, or
    /// made of one. To other machines its address means another machine.
    fn is_inner_bridge(&self, interface: &str) -> bool {
        let class = self.roots.sys.join("class/net");
        let own = class.join(interface);
        if !own.join("bridge").exists() {
            return false;
        }
        let Ok(ports) = own.join("brif").read_dir() else { return false };
        let leads_out = |port: &Path| {
            let parts = port.read_dir().into_iter().flatten().flatten();
            let names = parts.map(|part| part.file_name());
            names
                .map(|name| name.to_string_lossy().into_owned())
                .any(|name| name == "device" || name.starts_with("lower_"))
        };
        !ports.flatten().take(INTERFACES_LIMIT).any(|port| leads_out(&class.join(port.file_name())))
    }

    /// Reads line by line: a router's table is long, and little of it is needed here.
    fn routes(&self, table: &str) -> impl Iterator<Item = String> + use<> {
        let file = open_fact(&self.roots.proc.join(table)).ok();
        let lines = file.map(|file| BufReader::new(file.take(ROUTES_LIMIT)).split(b'\n'));
        // an interface's name may contain any bytes
        lines
            .into_iter()
            .flatten()
            .map_while(Result::ok)
            .map(|line| String::from_utf8_lossy(&line).into_owned())
    }
}

/// The watchdogs that the kernel lists; see [`HostFacts::watchdogs`].
pub fn watchdogs(roots: &Roots) -> Vec<WatchdogDevice> {
    let devices = fs::read_dir(roots.sys.join("class/watchdog")).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let text = |name: &str| read_text(&entry.path().join(name)).unwrap_or_default();
        WatchdogDevice {
            name: entry.file_name().to_string_lossy().into_owned(),
            identity: text("identity"),
            state: text("state"),
            timeout: text("timeout"),
        }
    };
    let mut found: Vec<_> = devices.take(WATCHDOG_LIMIT).map(read).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

impl HostFacts for LinuxHost {
    fn watchdogs(&self) -> Vec<WatchdogDevice> {
        watchdogs(&self.roots)
    }

    fn identity(&self) -> HostIdentity {
        let hardware = self.hardware_id();
        let machine_id = self.machine_id(hardware.as_deref());
        HostIdentity {
            boot_id: clocks::boot_id(&self.roots),
            system_uuid: hardware.unwrap_or_else(|| machine_id.clone()),
            machine_id,
            kernel_release: self.proc("sys/kernel/osrelease"),
            os_image: self.os_image(),
            operating_system: "linux",
            architecture: go_architecture(std::env::consts::ARCH),
            hostname: self.proc("sys/kernel/hostname"),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        let (routes_v4, routes_v6) = self.default_routes();
        let interfaces = match getifaddrs().map_err(io::Error::from) {
            Ok(interfaces) => interfaces.take(INTERFACES_LIMIT),
            Err(error) => {
                log::warn!("cannot list network addresses: {error}");
                return Vec::new();
            }
        };
        let usable = interfaces.filter(|interface| {
            interface.flags.contains(InterfaceFlags::IFF_UP)
                && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
        });
        let addresses = usable.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            let ip = v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))?;
            let routes = if ip.is_ipv4() { &routes_v4 } else { &routes_v6 };
            let default_route = routes.contains(&interface.interface_name);
            let leads_out = default_route || !self.is_inner_bridge(&interface.interface_name);
            let reachable = leads_out && !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified();
            reachable.then_some(Address { interface: interface.interface_name, ip, default_route })
        });
        in_order(addresses.collect())
    }

    fn capacity(&self) -> Capacity {
        let disk = self.root_file_system();
        let limit = |path| self.proc(path).parse::<u64>().ok();
        let online = read_text(&self.roots.sys.join("devices/system/cpu/online")).ok();
        let cpus = online.and_then(|list| count_cpus(&list)).or_else(|| {
            let available = std::thread::available_parallelism().ok()?;
            u32::try_from(available.get()).ok()
        });
        // As upstream: the limit that is reached first.
        let pids = [limit("sys/kernel/pid_max"), limit("sys/kernel/threads-max")];
        Capacity {
            cpus: cpus.unwrap_or(1),
            memory_bytes: field_bytes(&self.proc("meminfo"), "MemTotal:").unwrap_or(0),
            root_bytes: disk.as_ref().map_or(0, |disk| bytes_of(disk, disk.blocks())),
            root_inodes: disk.as_ref().map_or(0, |disk| wide(disk.files())),
            pids: pids.into_iter().flatten().min().unwrap_or(0),
        }
    }

    fn usage(&self) -> Usage {
        let disk = self.root_file_system();
        Usage {
            memory_available_bytes: memory_available(&self.roots),
            root_available_bytes: disk.as_ref().map(|disk| bytes_of(disk, disk.blocks_available())),
            root_available_inodes: disk.as_ref().map(|disk| wide(disk.files_available())),
            pids_in_use: pids_in_use(&self.proc("loadavg")),
        }
    }
}

/// Memory and CPU of this process, from `/proc/self`; an unreadable value is `None`.
pub fn process_facts(roots: &Roots) -> ProcessFacts {
    let own = roots.proc.join("self");
    let status = read_text(&own.join("status")).unwrap_or_default();
    let rollup = read_text(&own.join("smaps_rollup")).unwrap_or_default();
    let fds = fs::read_dir(own.join("fd")).ok().map(|fds| {
        // One of them is the directory being read.
        fds.take(FDS_LIMIT).count().saturating_sub(1) as u64
    });
    ProcessFacts {
        rss_bytes: field_bytes(&status, "VmRSS:"),
        pss_bytes: field_bytes(&rollup, "Pss:"),
        threads: field(&status, "Threads:").and_then(|text| text.parse().ok()),
        fds,
    }
}

// Widths differ between 32 and 64 bit targets.
fn wide(count: impl Into<u64>) -> u64 {
    count.into()
}

fn bytes_of(disk: &Statvfs, blocks: impl Into<u64>) -> u64 {
    wide(blocks).saturating_mul(wide(disk.fragment_size()))
}

/// The first word after `name` at the start of a line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

/// A field that the kernel prints in KiB.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The fourth field of loadavg is `runnable/existing`.
fn pids_in_use(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Counts a list such as `0-3,5`.
fn count_cpus(list: &str) -> Option<u32> {
    let mut count: u32 = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// `PRETTY_NAME` of os-release(5), which may be quoted like a shell's.
fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.trim_start().strip_prefix("PRETTY_NAME="))?.trim();
    let quoted = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let text = match (quoted('"'), quoted('\'')) {
        (Some(inner), _) => unescaped(inner),
        (_, Some(inner)) => inner.to_string(),
        _ => value.to_string(),
    };
    Some(text).filter(|text| !text.is_empty())
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    plain
}

/// Interfaces of /proc/net/route with a route to everywhere: destination and mask are zero, the route is up.
fn default_interfaces_v4(lines: impl Iterator<Item = String>) -> BTreeSet<String> {
    const UP: u32 = 1;
    let default = |line: String| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        let everywhere = *fields.get(1)? == "00000000" && *fields.get(7)? == "00000000";
        (everywhere && flags & UP != 0).then(|| fields[0].to_string())
    };
    lines.skip(1).filter_map(default).collect()
}

/// Interfaces of /proc/net/ipv6_route with a route to everywhere. The kernel's own reject route is on `lo`.
fn default_interfaces_v6(lines: impl Iterator<Item = String>) -> BTreeSet<String> {
    let default = |line: String| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let everywhere = fields.first()?.bytes().all(|byte| byte == b'0') && *fields.get(1)? == "00";
        let interface = *fields.get(9)?;
        (everywhere && interface != "lo").then(|| interface.to_string())
    };
    lines.filter_map(default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        for (list, expect) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-3,5,7-8", Some(7)),
            ("", None),
            ("3-1", None),
            ("0-4294967295", None),
            ("x", None),
        ] {
            assert_eq!(count_cpus(list), expect, "{list:?}");
        }
    }

    #[test]
    fn the_pretty_name_is_unquoted() {
        for (text, expect) in [
            (
                "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"",
                Some("Debian GNU/Linux 12 (bookworm)"),
            ),
            ("PRETTY_NAME='Poky 4.0'", Some("Poky 4.0")),
            ("PRETTY_NAME=Buildroot", Some("Buildroot")),
            ("PRETTY_NAME=\"a \\\"b\\\" \\$c\"", Some("a \"b\" $c")),
            ("PRETTY_NAME=\"", Some("\"")),
            ("PRETTY_NAME=", None),
            ("NAME=x", None),
        ] {
            assert_eq!(pretty_name(text).as_deref(), expect, "{text:?}");
        }
    }

    #[test]
    fn default_routes_are_found_in_both_tables() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
                  eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\n\
                  eth1\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\n\
                  down\t00000000\t0101A8C0\t0002\t0\t0\t100\t00000000\t0\nodd\n";
        let lines = |table: &str| table.lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
        assert_eq!(default_interfaces_v4(lines(v4)), BTreeSet::from(["eth0".to_string()]));
        let zeros = "0".repeat(32);
        let v6 = format!(
            "{zeros} 00 {zeros} 00 fe80 00000400 00000001 00000000 00450003 wlan0\n\
             {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 lo\n\
             {zeros} 40 {zeros} 00 {zeros} 00000400 00000001 00000000 00000001 eth1\n"
        );
        assert_eq!(default_interfaces_v6(lines(&v6)), BTreeSet::from(["wlan0".to_string()]));
    }

    #[test]
    fn default_route_is_found_behind_many_others() {
        let root = std::env::temp_dir().join(format!("kedge-routes-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/net")).unwrap();
        let zeros = "0".repeat(32);
        let route = |destination: &str, length: &str, interface: &str| {
            format!(
                "{destination} {length} {zeros} 00 {zeros} 00000400 00000001 00000000 00000001 {interface:>8}\n"
            )
        };
        let many: String =
            (1..10_000).map(|number| route(&format!("fd{number:030x}"), "80", "eth1")).collect();
        let odd = b"the name of an interface is any bytes: \xff\xfe\n".to_vec();
        let table = [odd, (many + &route(&zeros, "00", "wlan0")).into_bytes()].concat();
        fs::write(root.join("proc/net/ipv6_route"), table).unwrap();
        let host = LinuxHost::new(Roots::under(&root), "/");
        let found = host.default_routes();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, (BTreeSet::new(), BTreeSet::from(["wlan0".to_string()])));
    }

    #[test]
    fn bridge_that_leads_nowhere_is_no_way_to_the_node() {
        let root = std::env::temp_dir().join(format!("kedge-bridges-{}", std::process::id()));
        for path in [
            "cni0/bridge",
            "cni0/brif/veth1",
            "veth1/queues",
            "br0/bridge",
            "br0/brif/veth2",
            "br0/brif/eth1",
            "veth2",
            "eth1/device",
            "br1/bridge",
            "br1/brif/eth0.7",
            "eth0.7/lower_eth0",
            "eth0/device",
            "br2/bridge",
            "br2/brif",
        ] {
            fs::create_dir_all(root.join("sys/class/net").join(path)).unwrap();
        }
        let host = LinuxHost::new(Roots::under(&root), "/");
        let inner = ["cni0", "br0", "br1", "br2", "eth0", "gone"].map(|name| host.is_inner_bridge(name));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(inner, [true, false, false, true, false, false]);
    }

    #[test]
    fn memory_and_pids_are_read_and_invalid_values_are_not() {
        let meminfo = "MemTotal:        1024 kB\nMemFree: 1 kB\n";
        assert_eq!(field_bytes(meminfo, "MemTotal:"), Some(1024 * 1024));
        assert_eq!(field_bytes("MemTotal: 99999999999999999999 kB", "MemTotal:"), None);
        assert_eq!(pids_in_use("0.1 0.2 0.3 2/345 6789"), Some(345));
        assert_eq!(pids_in_use("0.1 0.2 0.3 2 6789"), None);
    }
}
