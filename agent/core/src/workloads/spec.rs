//! `config.json` of the OCI runtime specification for one run of a container.
//!
//! Always holds: a value that a pod does not set is containerd's (capabilities, masked paths, devices,
//! mounts), so an image that runs there runs here. Namespaces that the pod's containers share are joined by
//! path; those of the machine are left out. A privileged container has the machine's devices, and `/proc` and
//! `/sys` unmasked. Leaves to others: whether the order can be carried out (`pods`), the places of its
//! volumes, devices and profiles (passed in).

use super::groups::{self, PERIOD};
use super::users::User;
use crate::pods::{ContainerOrder, Mount, Seccomp};
use serde_json::{Value, json};

/// The namespaces and files that the pod's containers share, and their paths; `None` for the machine's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shared {
    /// For `HOSTNAME`; the kernel's answer belongs to `uts`.
    pub hostname: String,
    /// `hostPID`.
    pub host_pid: bool,
    pub network: Option<String>,
    pub uts: Option<String>,
    pub ipc: Option<String>,
    /// `None` for a PID namespace of its own, unless the pod requests the machine's.
    pub pid: Option<String>,
    /// The source of `/dev/shm`.
    pub shm: String,
    /// The directory with `hosts`, `resolv.conf` and `hostname`.
    pub files: String,
}

/// Properties of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// The group above all pods'.
    pub pods_group: String,
    /// Whether one tree has all controllers.
    pub has_unified_groups: bool,
    pub memory_bytes: u64,
    /// The lowest OOM score that the machine lets us set.
    pub least_oom_score: i32,
}

/// Objects that an order names, as found on the machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Granted {
    /// A bit for the number of each capability that the machine cannot give.
    pub lacking: u64,
    /// For a privileged container all of the machine's.
    pub devices: Vec<Device>,
    /// The profile of [`Seccomp::Localhost`].
    pub profile: Option<Value>,
    /// The file at the path of the container's termination message; `None` if it gets no such file.
    pub message: Option<String>,
    /// Directories that the image declares as volumes: the container's path, and the machine's.
    pub volumes: Vec<(String, String)>,
}

/// A device that a container may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub path: String,
    pub is_block: bool,
    pub major: u64,
    pub minor: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Device {
    fn kind(&self) -> &'static str {
        if self.is_block { "b" } else { "c" }
    }
}

/// `securityContext.procMount: Default`.
const MASKED: [&str; 13] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/devices/system/cpu/cpu0/thermal_throttle",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// For a program without a directory in its name, if its image sets no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The bytes of `config.json`; `place` returns the machine's path of a mount's volume, or of the mounted part
/// of it.
///
/// # Errors
/// The order names a volume that the pod does not have, or a profile that was not passed in.
pub fn config(
    container: &ContainerOrder,
    user: &User,
    shared: &Shared,
    machine: &Machine,
    granted: &Granted,
    place: &dyn Fn(&Mount) -> Option<String>,
) -> Result<Vec<u8>, String> {
    let security = &container.security;
    let mut mounts = Vec::new();
    if security.read_only_root {
        // before all others: a later mount at the same place, or below it, covers them. A writable root does
        // not need them
        let mounted = granted.volumes.iter().map(|(path, source)| {
            let options = json!(["bind", "rprivate", "rw"]);
            json!({"destination": path, "type": "bind", "source": source, "options": options})
        });
        mounts.extend(mounted);
    }
    mounts.extend(own_mounts(shared, security.is_privileged));
    for mount in &container.mounts {
        let source = place(mount).ok_or_else(|| {
            format!("container {}: the pod has no volume {:?}", container.key.container, mount.volume)
        })?;
        let mode = if mount.read_only { "ro" } else { "rw" };
        let mut options = vec!["rbind", propagation(mount.follows_host), mode];
        if mount.no_exec {
            options.extend(["noexec", "nosuid", "nodev"]);
        }
        mounts.push(json!({"destination": mount.path, "type": "bind", "source": source, "options": options}));
    }
    let message = &container.termination_message.path;
    if let Some(source) = granted.message.as_ref().filter(|_| !message.is_empty()) {
        let options = json!(["bind", "rprivate", "rw"]);
        mounts.push(json!({"destination": message, "type": "bind", "source": source, "options": options}));
    }
    let cwd = if container.working_dir.is_empty() { "/" } else { &container.working_dir };
    let request = container.resources.memory_request_bytes.unwrap_or(0);
    // one that is named and lacking is an error, as upstream
    let lacking = if security.is_privileged { granted.lacking } else { 0 };
    let available = crate::pods::security::available(&security.capabilities, lacking);
    let capabilities = &available;
    let hidden = |paths: &[&'static str]| if security.is_privileged { Vec::new() } else { paths.to_vec() };
    let mut config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": container.console.tty,
            "user": {"uid": user.uid, "gid": user.gid, "additionalGids": user.groups},
            "args": container.argv,
            "env": environment(shared, container),
            "cwd": cwd,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "noNewPrivileges": security.no_new_privileges,
            "oomScoreAdj": groups::oom_score(container.qos, request, machine.memory_bytes).max(machine.least_oom_score),
        },
        "root": {"path": "rootfs", "readonly": security.read_only_root},
        "mounts": mounts,
        "linux": {
            "cgroupsPath": groups::container_group(&machine.pods_group, container.qos, &container.key),
            "namespaces": namespaces(shared, machine),
            "maskedPaths": hidden(&MASKED),
            "readonlyPaths": hidden(&READ_ONLY),
            "resources": resources(container, machine, granted),
            "devices": granted.devices.iter().map(node).collect::<Vec<_>>(),
            "sysctl": security.sysctls,
            // without it crun makes all mounts private first, so a mount that follows the host would not
            // show what is mounted there later
            "rootfsPropagation": propagation(container.mounts.iter().any(|mount| mount.follows_host)),
        },
    });
    match (&security.seccomp, &granted.profile) {
        (Seccomp::Unconfined, _) => {}
        (Seccomp::RuntimeDefault, _) => {
            config["linux"]["seccomp"] = super::seccomp::runtime_default(&security.capabilities);
        }
        (Seccomp::Localhost(_), Some(profile)) => config["linux"]["seccomp"] = profile.clone(),
        (Seccomp::Localhost(path), None) => return Err(format!("seccomp profile {path:?} was not read")),
    }
    if let Some(profile) = &security.apparmor {
        config["process"]["apparmorProfile"] = json!(profile);
    }
    Ok(serde_json::to_vec(&config).expect("a JSON value can be written"))
}

/// Whether later mounts of the machine appear there, too; never the other way round.
fn propagation(follows_host: bool) -> &'static str {
    if follows_host { "rslave" } else { "rprivate" }
}

/// The order's variables, and those that every program may expect.
fn environment(shared: &Shared, container: &ContainerOrder) -> Vec<String> {
    let has = |name: &str| container.env.iter().any(|(other, _)| other == name);
    let defaults = [("PATH", PATH), ("HOSTNAME", shared.hostname.as_str())];
    let terminal = container.console.tty.then_some(("TERM", "xterm"));
    let missing = defaults.into_iter().chain(terminal).filter(|(name, _)| !has(name));
    let own = container.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    missing.chain(own).map(|(name, value)| format!("{name}={value}")).collect()
}

fn node(device: &Device) -> Value {
    let Device { path, major, minor, mode, uid, gid, .. } = device;
    json!({"path": path, "type": device.kind(), "major": major, "minor": minor, "fileMode": mode, "uid": uid, "gid": gid})
}

/// crun's `rw` removes the flags with which the file system was mounted, so all of them are repeated here.
const SMALL: [&str; 6] = ["rbind", "rprivate", "rw", "nosuid", "noexec", "nodev"];

fn own_mounts(shared: &Shared, is_privileged: bool) -> Vec<Value> {
    let mode = if is_privileged { "rw" } else { "ro" };
    let mount = |destination: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": source, "options": options});
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        // a mount of its own, not a bind of the machine's: below that one there are others, writable
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", mode]),
        mount("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", mode]),
        mount("/dev/shm", "bind", &shared.shm, &SMALL),
    ];
    for name in ["hosts", "resolv.conf", "hostname"] {
        let source = format!("{}/{name}", shared.files);
        mounts.push(mount(&format!("/etc/{name}"), "bind", &source, &SMALL));
    }
    mounts
}

fn namespaces(shared: &Shared, machine: &Machine) -> Vec<Value> {
    let mut namespaces = vec![json!({"type": "mount"})];
    match &shared.pid {
        Some(path) => namespaces.push(json!({"type": "pid", "path": path})),
        None if shared.host_pid => {}
        None => namespaces.push(json!({"type": "pid"})),
    }
    for (kind, path) in [("network", &shared.network), ("uts", &shared.uts), ("ipc", &shared.ipc)] {
        namespaces.extend(path.as_ref().map(|path| json!({"type": kind, "path": path})));
    }
    if machine.has_unified_groups {
        namespaces.push(json!({"type": "cgroup"}));
    }
    namespaces
}

fn resources(container: &ContainerOrder, machine: &Machine, granted: &Granted) -> Value {
    let limits = groups::container_limits(&container.resources);
    // only the devices that every container has, which the runtime adds, and its own
    let is_privileged = container.security.is_privileged;
    let mut devices = vec![json!({"allow": is_privileged, "access": "rwm"})];
    let own = granted.devices.iter().filter(|_| !is_privileged);
    devices.extend(own.map(|device| {
        let Device { major, minor, .. } = device;
        json!({"allow": true, "type": device.kind(), "major": major, "minor": minor, "access": "rwm"})
    }));
    let mut resources = json!({"devices": devices, "cpu": {}});
    if let Some(shares) = limits.cpu_shares {
        resources["cpu"]["shares"] = shares.into();
    }
    if let Some(quota) = limits.cpu_quota {
        resources["cpu"]["quota"] = quota.into();
        resources["cpu"]["period"] = PERIOD.into();
    }
    if let Some(bytes) = limits.memory_bytes {
        resources["memory"] = json!({"limit": bytes});
    }
    if machine.has_unified_groups {
        // all of a container ends when its memory is used up: half a container is useless
        resources["unified"] = json!({"memory.oom.group": "1"});
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{
        Console, ContainerKey, Image, PodUid, QosClass, Resources, Security, TerminationMessage,
    };

    fn container() -> ContainerOrder {
        ContainerOrder {
            key: ContainerKey { pod: PodUid::new("u").unwrap(), container: "web".into(), attempt: 1 },
            namespace: "prod".into(),
            pod_name: "web-0".into(),
            image_name: "web:1".into(),
            image: Image::default(),
            argv: vec!["/bin/web".into(), "-v".into()],
            env: vec![("A".into(), "1=2".into())],
            working_dir: String::new(),
            mounts: vec![Mount {
                volume: "data".into(),
                path: "/data".into(),
                read_only: true,
                no_exec: false,
                follows_host: false,
                sub_path: String::new(),
            }],
            resources: Resources { memory_limit_bytes: Some(1 << 20), ..Resources::default() },
            security: Security { capabilities: vec!["CAP_KILL".into()], ..Security::default() },
            qos: QosClass::Burstable,
            stop_signal: "SIGTERM".into(),
            termination_message: TerminationMessage {
                path: "/dev/termination-log".into(),
                falls_back_to_logs: false,
            },
            console: Console::default(),
        }
    }

    fn shared() -> Shared {
        let at = |name: &str| Some(format!("/run/p/{name}"));
        Shared {
            hostname: "web-0".into(),
            host_pid: false,
            network: at("net"),
            uts: at("uts"),
            ipc: at("ipc"),
            pid: None,
            shm: "/run/p/shm".into(),
            files: "/run/p/files".into(),
        }
    }

    fn made(container: &ContainerOrder, shared: &Shared, unified: bool) -> Value {
        made_with(container, shared, unified, &Granted::default())
    }

    fn made_with(container: &ContainerOrder, shared: &Shared, unified: bool, granted: &Granted) -> Value {
        let machine = Machine {
            pods_group: "/kedgepods".into(),
            has_unified_groups: unified,
            memory_bytes: 1 << 30,
            least_oom_score: -500,
        };
        let place = |mount: &Mount| (mount.volume == "data").then(|| "/var/data".to_owned());
        let bytes = config(container, &User::default(), shared, &machine, granted, &place).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn granted() -> Granted {
        let path = "/dev/ttyUSB0".to_owned();
        Granted {
            lacking: 0,
            devices: vec![Device {
                path,
                is_block: false,
                major: 188,
                minor: 0,
                mode: 0o660,
                uid: 0,
                gid: 20,
            }],
            profile: Some(json!({"defaultAction": "SCMP_ACT_LOG"})),
            message: None,
            volumes: Vec::new(),
        }
    }

    fn kinds(config: &Value) -> String {
        let namespaces = config["linux"]["namespaces"].as_array().unwrap();
        let word = |namespace: &Value| {
            let joined = if namespace["path"].is_null() { "" } else { "=" };
            namespace["type"].as_str().unwrap().to_owned() + joined
        };
        namespaces.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn volumes_of_the_image_are_writable_on_a_root_that_is_not() {
        let volumes = vec![("/data".to_owned(), "/run/c/rootfs/data".to_owned())];
        let granted = Granted { volumes, ..Granted::default() };
        let mut container = container();
        container.mounts.clear();
        let mounted = |container: &ContainerOrder| {
            let config = made_with(container, &shared(), true, &granted);
            config["mounts"].as_array().unwrap().clone()
        };
        assert!(mounted(&container).iter().all(|mount| mount["destination"] != "/data"));
        container.security.read_only_root = true;
        let expect = json!({"destination": "/data", "type": "bind", "source": "/run/c/rootfs/data",
            "options": ["bind", "rprivate", "rw"]});
        assert_eq!(mounted(&container)[0], expect, "below all else that is mounted");
    }

    #[test]
    fn oom_score_is_the_lowest_that_the_machine_allows() {
        let guaranteed = ContainerOrder { qos: QosClass::Guaranteed, ..container() };
        assert_eq!(
            made(&guaranteed, &shared(), true)["process"]["oomScoreAdj"],
            -500,
            "-997 is what it asks for"
        );
        assert!(made(&container(), &shared(), true)["process"]["oomScoreAdj"].as_i64() > Some(0));
    }

    #[test]
    fn shared_namespaces_are_joined_and_the_machine_ones_left_out() {
        assert_eq!(kinds(&made(&container(), &shared(), false)), "mount pid network= uts= ipc=");
        assert_eq!(kinds(&made(&container(), &shared(), true)), "mount pid network= uts= ipc= cgroup");
        let joined = Shared { pid: Some("/run/p/pid".into()), ..shared() };
        assert_eq!(kinds(&made(&container(), &joined, false)), "mount pid= network= uts= ipc=");
        let host = Shared { host_pid: true, network: None, uts: None, ipc: None, ..shared() };
        assert_eq!(kinds(&made(&container(), &host, false)), "mount");
    }

    #[test]
    fn file_for_the_message_is_mounted_where_the_pod_says() {
        let of = |granted: &Granted| {
            let config = made_with(&container(), &shared(), true, granted);
            let mounts = config["mounts"].as_array().unwrap().clone();
            mounts.into_iter().find(|mount| mount["destination"] == "/dev/termination-log")
        };
        let message = Some("/var/m/web-1".to_owned());
        let mount = of(&Granted { message, ..Granted::default() }).unwrap();
        assert_eq!((&mount["source"], &mount["options"][2]), (&json!("/var/m/web-1"), &json!("rw")));
        assert_eq!(of(&Granted::default()), None);
    }

    #[test]
    fn unset_fields_have_the_values_of_containerd() {
        let config = made(&container(), &shared(), true);
        let process = &config["process"];
        assert_eq!(process["args"], json!(["/bin/web", "-v"]));
        assert_eq!(process["env"], json!([format!("PATH={PATH}"), "HOSTNAME=web-0", "A=1=2"]));
        assert_eq!((&process["cwd"], &process["noNewPrivileges"]), (&json!("/"), &json!(false)));
        assert_eq!(process["capabilities"]["bounding"], json!(["CAP_KILL"]));
        assert!(config["linux"]["seccomp"].is_null() && config["root"]["readonly"] == false);
        assert!(process["capabilities"]["inheritable"].is_null(), "a file capability must give nothing");
        assert_eq!(process["oomScoreAdj"], 999);
        let linux = &config["linux"];
        assert_eq!(linux["cgroupsPath"], "/kedgepods/burstable/podu/web-1");
        let expect = json!({"devices": [{"allow": false, "access": "rwm"}], "cpu": {"shares": 2},
            "memory": {"limit": 1 << 20}, "unified": {"memory.oom.group": "1"}});
        assert_eq!(linux["resources"], expect);
        let sys: Vec<&Value> =
            config["mounts"].as_array().unwrap().iter().filter(|it| it["destination"] == "/sys").collect();
        assert!(sys[0]["options"].as_array().unwrap().contains(&json!("ro")));
    }

    #[test]
    fn context_reaches_the_runtime() {
        let mut container = container();
        container.security = Security {
            read_only_root: true,
            no_new_privileges: true,
            seccomp: Seccomp::RuntimeDefault,
            apparmor: Some("own".into()),
            sysctls: [("net.ipv4.tcp_syncookies".to_owned(), "1".to_owned())].into(),
            ..Security::default()
        };
        let config = made_with(&container, &shared(), true, &granted());
        assert_eq!(
            (&config["root"]["readonly"], &config["process"]["noNewPrivileges"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(config["linux"]["seccomp"]["defaultErrnoRet"], 38);
        assert_eq!(config["process"]["capabilities"]["effective"], json!([]));
        assert_eq!(config["process"]["apparmorProfile"], "own");
        assert_eq!(config["linux"]["sysctl"], json!({"net.ipv4.tcp_syncookies": "1"}));
        let rules = &config["linux"]["resources"]["devices"];
        let own = json!({"allow": true, "type": "c", "major": 188, "minor": 0, "access": "rwm"});
        assert_eq!(*rules, json!([{"allow": false, "access": "rwm"}, own]));
        assert_eq!(config["linux"]["devices"][0]["path"], "/dev/ttyUSB0");
        container.security.seccomp = Seccomp::Localhost("a.json".into());
        assert_eq!(
            made_with(&container, &shared(), true, &granted())["linux"]["seccomp"]["defaultAction"],
            "SCMP_ACT_LOG"
        );
        let (machine, granted) = (Machine::default(), Granted::default());
        let error =
            super::config(&container, &User::default(), &shared(), &machine, &granted, &|_| Some("/".into()));
        assert!(error.unwrap_err().contains("\"a.json\" was not read"));
    }

    /// In a container or a restricted VM.
    #[test]
    fn privileged_container_asks_for_no_capability_that_is_lacking() {
        let named = vec!["CAP_CHOWN".to_owned(), "CAP_SYS_RESOURCE".to_owned(), "CAP_BPF".to_owned()];
        let of = |is_privileged: bool| {
            let mut container = container();
            container.security =
                Security { is_privileged, capabilities: named.clone(), ..Security::default() };
            let granted = Granted { lacking: 1 << 24 | 1 << 39, ..granted() };
            made_with(&container, &shared(), true, &granted)["process"]["capabilities"]["bounding"].clone()
        };
        assert_eq!(of(true), json!(["CAP_CHOWN"]));
        assert_eq!(of(false), json!(named), "one that is named and lacking is an error");
    }

    #[test]
    fn privileged_container_sees_the_machine() {
        let mut container = container();
        container.security = Security { is_privileged: true, ..Security::default() };
        let config = made_with(&container, &shared(), true, &granted());
        let linux = &config["linux"];
        assert_eq!((&linux["maskedPaths"], &linux["readonlyPaths"]), (&json!([]), &json!([])));
        assert_eq!(linux["resources"]["devices"], json!([{"allow": true, "access": "rwm"}]));
        assert_eq!(linux["devices"].as_array().unwrap().len(), 1);
        let read_only = json!("ro");
        let mounts = config["mounts"].as_array().unwrap();
        let sys = mounts.iter().filter(|it| it["destination"].as_str().unwrap().starts_with("/sys"));
        assert!(
            sys.clone().count() == 2
                && !sys.flat_map(|it| it["options"].as_array().unwrap()).any(|it| *it == read_only)
        );
    }

    #[test]
    fn mounts_of_the_machine_are_followed_where_that_is_asked_for() {
        let mut order = container();
        for (follows_host, expected) in [(false, "rprivate"), (true, "rslave")] {
            order.mounts[0].follows_host = follows_host;
            let config = made(&order, &shared(), false);
            assert_eq!(config["linux"]["rootfsPropagation"], expected);
            assert_eq!(config["mounts"].as_array().unwrap().last().unwrap()["options"][1], expected);
        }
    }

    #[test]
    fn volumes_are_bound_where_the_order_says() {
        let config = made(&container(), &shared(), false);
        let last = config["mounts"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["source"], "/var/data");
        assert_eq!(last["options"], json!(["rbind", "rprivate", "ro"]));
        let machine = Machine::default();
        let error =
            super::config(&container(), &User::default(), &shared(), &machine, &Granted::default(), &|_| {
                None
            })
            .unwrap_err();
        assert!(error.contains("no volume \"data\""), "{error}");
    }

    #[test]
    fn own_variables_win_over_defaults() {
        let mut container = container();
        container.env = vec![("HOSTNAME".into(), "x".into()), ("PATH".into(), "/".into())];
        let config = made(&container, &shared(), false);
        assert_eq!(config["process"]["env"], json!(["HOSTNAME=x", "PATH=/"]));
    }
}
