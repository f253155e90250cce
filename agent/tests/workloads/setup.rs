//! A machine for one test: namespaces of its own, one image with a shell, a runtime, and a short form of
//! orders for containers.

use kedge_core::pods::{self, ContainerKey, Dns, Image, PodUid, QosClass, Resources};
use kedge_core::workloads::{files, groups, spec, users};
use kedge_platform::linux::Roots;
use kedge_platform::workloads::{
    Cgroups, Console, ContainerExit, ContainerId, ContainerOrder, ContainerState, Crun, GroupLimits,
    LinuxWorkloads, LogOrder, Notes, PodOrder, PodPlaces, Settings, WorkloadError, Workloads, probe,
};
use kedge_rig::Scratch;
use kedge_rig::power_cut::print_past_test_runner;
use kedge_rig::scratch::wait_until;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A test that has not seen what it waits for by then has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const HOSTNAME: &str = "web-0";
const QOS: QosClass = QosClass::Burstable;

/// Set in the namespaces of a test; the name of its control groups.
pub(crate) const INSIDE: &str = "KEDGE_TEST_GROUP";

/// How many tests run; a test that needs the machine alone counts as all.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();
const ALONE: usize = usize::MAX;

/// A test's permission to run, until it has ended.
struct Turn;

impl Turn {
    fn beside_others() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let running = ENDED.wait_while(running, |running| *running == ALONE);
        *running.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }

    /// Delays no other test while it waits, so it comes last.
    fn alone() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let running = ENDED.wait_while(running, |running| *running != 0);
        *running.unwrap_or_else(PoisonError::into_inner) = ALONE;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        *running = if *running == ALONE { 0 } else { *running - 1 };
        ENDED.notify_all();
    }
}

/// Where Debian has the plugins.
const PLUGINS: [&str; 4] =
    ["/usr/lib/cni/bridge", "/usr/lib/cni/host-local", "/usr/lib/cni/portmap", "/usr/sbin/iptables"];

/// Runs a test of this program in namespaces of its own. `name` is its path within this program.
pub(crate) fn isolated(name: &str, test: impl FnOnce()) {
    let _turn = Turn::beside_others();
    isolated_in(name, &[], missing(), test);
}

/// The same in a network namespace, too.
pub(crate) fn isolated_network(name: &str, test: impl FnOnce()) {
    let _turn = Turn::beside_others();
    isolated_in(name, &["--net"], missing_with_network(), test);
}

/// The same for a test that uses resources which all tests of a machine share, such as process IDs: no other
/// test of this program runs beside it.
pub(crate) fn isolated_network_alone(name: &str, test: impl FnOnce()) {
    let _turn = Turn::alone();
    isolated_in(name, &["--net"], missing_with_network(), test);
}

fn missing_with_network() -> Option<String> {
    let absent = PLUGINS.into_iter().find(|path| !Path::new(path).exists());
    missing().or_else(|| absent.map(|path| format!("missing: {path} (.ci/prepare tests)")))
}

/// A command that runs its further arguments with mounts and processes of their own, which end with this
/// thread: options of `unshare` first.
pub(crate) fn set_apart() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork"]);
    command
}

fn isolated_in(name: &str, more: &[&str], missing: Option<String>, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{name}: {missing}");
        kedge_rig::power_cut::print_past_test_runner(&format!("SKIPPED: {name}: {missing}"));
        return;
    }
    let group = format!("/kedge-test-{}-{}", std::process::id(), name.replace(':', "-"));
    // one version of control groups; a PID namespace whose end ends all its processes; and the environment
    // that systemd gives to a service, which no container may inherit
    let mut script = "umount /sys/fs/cgroup/unified 2>/dev/null; umask 077; ip link set lo up 2>/dev/null; export NOTIFY_SOCKET=/run/systemd/notify; "
        .to_owned();
    // process 1 of a real machine reaps orphans; the runtime here has no such process, and must work without
    script += if more.is_empty() { "exec \"$@\"" } else { "\"$@\"; exit $?" };
    let mut command = set_apart();
    command.args(more).args(["--mount-proc", "--kill-child=KILL", "sh", "-c", &script, "sh"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let output = command.env(INSIDE, &group).stdin(Stdio::null()).output().unwrap();
    clear_groups(&group);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // the inner test runner prints lines of its own before them
    text.lines()
        .filter_map(|line| line.split_once("measured: "))
        .for_each(|(_, line)| print_past_test_runner(line));
    // A CI run's last lines show the first line of a failure alone, so the reason comes first. The rest is
    // indented, or a failure would be counted twice.
    let mut lines = text.lines().skip_while(|line| !line.contains(" panicked at "));
    let reason = [lines.next(), lines.next()].map(Option::unwrap_or_default).join(" ");
    let shown = text.replace('\n', "\n    ");
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{reason} ({})\n    {shown}", output.status);
}

fn missing() -> Option<String> {
    let has = |program: &str| {
        let found = Command::new("which").arg(program).stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    if fs::write("/proc/self/oom_score_adj", "0").is_err() || Path::new("/root").read_dir().is_err() {
        return Some("not root".into());
    }
    let absent: Vec<&str> =
        ["crun", "busybox", "unshare", "setpriv"].into_iter().filter(|it| !has(it)).collect();
    (!absent.is_empty()).then(|| format!("missing: {} (.ci/prepare tests)", absent.join(", ")))
}

fn clear_groups(group: &str) {
    let groups = probe(&Roots::default(), &Crun::default()).cgroups;
    if let Err(error) = groups.kill_all(group).and_then(|()| groups.remove(group)) {
        eprintln!("control groups of the test: {error}");
    }
}

/// A directory that is removed with the machine, unless it belongs to another process.
pub(crate) enum Place {
    Ours(Scratch),
    Theirs(PathBuf),
}

impl Place {
    pub(crate) fn path(&self) -> &Path {
        self
    }
}

impl std::ops::Deref for Place {
    type Target = Path;

    fn deref(&self) -> &Path {
        match self {
            Self::Ours(scratch) => scratch,
            Self::Theirs(path) => path,
        }
    }
}

pub(crate) struct Machine {
    pub(crate) scratch: Place,
    pub(crate) settings: Settings,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new("workloads").unwrap();
        make_image(&scratch.join("image"));
        Self::at(Place::Ours(scratch))
    }

    /// Opens the machine that another process of this test made.
    pub(crate) fn existing(scratch: &Path) -> Self {
        Self::at(Place::Theirs(scratch.to_path_buf()))
    }

    fn at(scratch: Place) -> Self {
        let group = std::env::var(INSIDE).unwrap();
        let settings = Settings {
            program: env!("CARGO_BIN_EXE_kedge").into(),
            pods_group: format!("{group}/pods"),
            shims_group: format!("{group}/shims"),
            ..Settings::new(&scratch.join("run"), &scratch.join("root"))
        };
        Self { scratch, settings }
    }

    /// A script in place of crun: `$REAL` is the real one, and `$STEP` the step that it should perform.
    pub(crate) fn with_crun(mut self, script: &str, limit: Duration) -> Self {
        let text = format!(
            "#!/bin/sh\nREAL=/usr/bin/crun\nfor STEP; do case $STEP in create|start|delete) break;; esac; done\n{script}\n"
        );
        let program = self.scratch.join("crun");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        self.settings.crun = Crun { program, limit };
        self
    }

    pub(crate) fn open(&self) -> Runtime<'_> {
        let workloads = LinuxWorkloads::open(self.settings.clone(), &Roots::default()).unwrap();
        Runtime { machine: self, workloads }
    }

    pub(crate) fn cgroups(&self) -> Cgroups {
        probe(&Roots::default(), &Crun::default()).cgroups
    }

    /// Checks that nothing is left of a removed container: no file below the runtime's directories, no mount,
    /// control group or process.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self) {
        let names = |directory: &Path| -> Vec<PathBuf> {
            fs::read_dir(directory)
                .map(|all| all.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_default()
        };
        for directory in
            [self.settings.run.join("pods"), self.settings.run.join("crun"), self.settings.data.clone()]
        {
            // a background thread removes the containers' files, so this waits
            let is_empty = || names(&directory).is_empty();
            wait_until(&format!("nothing below {}", directory.display()), LIMIT, is_empty);
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours: Vec<&str> =
            mounts.lines().filter(|line| line.contains(self.scratch.to_str().unwrap())).collect();
        assert!(ours.is_empty(), "mounts: {ours:?}");
        let groups = self.cgroups();
        for class in ["", "/burstable", "/besteffort"] {
            let left = groups.children(&format!("{}{class}", self.settings.pods_group));
            let left: Vec<&String> = left.iter().filter(|name| name.starts_with("pod")).collect();
            assert!(left.is_empty(), "control groups: {left:?}");
        }
        let shims = processes("shim");
        assert!(shims.is_empty(), "shims: {shims:?}");
        let containers = processes("busybox");
        assert!(containers.is_empty(), "containers: {containers:?}");
    }

    pub(crate) fn log(&self, id: &ContainerId) -> PathBuf {
        self.scratch.join("logs").join(format!("{}-{}.log", id.name, id.attempt))
    }

    /// The texts of the log, from the oldest file to the current one.
    pub(crate) fn logged(&self, id: &ContainerId) -> Vec<String> {
        let path = self.log(id);
        let older = |number: u32| PathBuf::from(format!("{}.{number}", path.display()));
        let mut all: Vec<PathBuf> = (1..1000).map(older).take_while(|path| path.exists()).collect();
        all.reverse();
        all.push(path);
        let text: String = all.iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect()
    }
}

/// Command lines with this word, of processes that are alive.
pub(crate) fn processes(word: &str) -> Vec<String> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter_map(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.split([' ', '/']).any(|found| found == word))
        .collect()
}

/// busybox, static, as every program of an image.
pub(crate) fn make_image(layer: &Path) {
    for directory in ["bin", "etc", "tmp"] {
        fs::create_dir_all(layer.join(directory)).unwrap();
    }
    fs::copy("/bin/busybox", layer.join("bin/busybox")).unwrap();
    for name in [
        "sh", "echo", "cat", "seq", "sleep", "kill", "hostname", "id", "ip", "dd", "ps", "mkfifo",
        "readlink", "env", "sort", "ls", "tar",
    ] {
        symlink("busybox", layer.join("bin").join(name)).unwrap();
    }
    fs::write(layer.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nweb:x:100:101::/:/bin/sh\n").unwrap();
    fs::write(layer.join("etc/group"), "root:x:0:\nweb:x:101:\nlogs:x:4:web\n").unwrap();
    // a user other than root has no capability to pass the modes that this process's umask made
    for directory in ["", "bin", "etc", "tmp"] {
        fs::set_permissions(layer.join(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Adds a program of this machine, with the libraries that it is linked with, to an image.
pub(crate) fn add_program(image: &Path, program: &str) {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for path in libraries.chain([program]) {
        let to = image.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path, &to).unwrap();
    }
    // this process's umask made the directories
    let readable = Command::new("chmod").args(["-R", "a+rX"]).arg(image).status().unwrap();
    assert!(readable.success());
}

pub(crate) fn id(name: &str, attempt: u32) -> ContainerId {
    ContainerId { pod: "uid-1".into(), name: name.into(), attempt }
}

/// The order for one container; the pod's order is derived from it.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) id: ContainerId,
    pub(crate) script: String,
    pub(crate) user: &'static str,
    pub(crate) memory: Option<u64>,
    pub(crate) log_bytes: u64,
    pub(crate) log_files: u32,
    pub(crate) log: Option<PathBuf>,
    pub(crate) host_network: bool,
    pub(crate) shares_processes: bool,
    pub(crate) security: pods::Security,
    pub(crate) devices: Vec<spec::Device>,
    pub(crate) console: Console,
    /// Layers above the image with the shell, the topmost first.
    pub(crate) above: Vec<PathBuf>,
}

pub(crate) fn wanted(name: &str, script: &str) -> Wanted {
    Wanted {
        id: id(name, 0),
        script: script.into(),
        user: "",
        memory: None,
        log_bytes: 10 << 20,
        log_files: 5,
        log: None,
        host_network: true,
        shares_processes: false,
        security: pods::Security { capabilities: vec!["CAP_KILL".into()], ..Default::default() },
        devices: Vec::new(),
        console: Console::default(),
        above: Vec::new(),
    }
}

pub(crate) struct Runtime<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) workloads: LinuxWorkloads,
}

impl Runtime<'_> {
    pub(crate) fn prepare(&mut self, wanted: &Wanted) -> PodPlaces {
        let root = &self.machine.settings.pods_group;
        let class = groups::class_group(root, QOS);
        let own = groups::pod_group(root, QOS, &PodUid::new(&wanted.id.pod).unwrap());
        let order = PodOrder {
            uid: wanted.id.pod.clone(),
            hostname: HOSTNAME.into(),
            host_network: wanted.host_network,
            host_ipc: false,
            share_process_namespace: wanted.shares_processes,
            groups: vec![
                (class, GroupLimits::default()),
                (own, GroupLimits { cpu_shares: Some(2), ..GroupLimits::default() }),
            ],
            files: [
                ("hosts", files::hosts(None, &[], HOSTNAME, &[])),
                (
                    "resolv.conf",
                    files::resolv_conf(&Dns::default(), "prod", false, &files::Resolver::default()),
                ),
                ("hostname", format!("{HOSTNAME}\n")),
            ]
            .map(|(name, text)| (name.to_owned(), text))
            .into(),
            notes: [("namespace", "prod"), ("name", "web-0")]
                .map(|(key, text)| (key.to_owned(), text.to_owned()))
                .into(),
        };
        self.workloads.prepare_pod(&order).unwrap()
    }

    pub(crate) fn create(&mut self, wanted: &Wanted) -> Result<(), WorkloadError> {
        let places = self.prepare(wanted);
        let resources = Resources { memory_limit_bytes: wanted.memory, ..Resources::default() };
        let container = pods::ContainerOrder {
            key: ContainerKey {
                pod: PodUid::new(&wanted.id.pod).unwrap(),
                container: wanted.id.name.clone(),
                attempt: wanted.id.attempt,
            },
            namespace: "prod".into(),
            pod_name: "web-0".into(),
            image_name: "web:1".into(),
            image: Image::default(),
            argv: ["/bin/sh", "-c", &wanted.script].map(String::from).to_vec(),
            env: Vec::new(),
            working_dir: String::new(),
            mounts: Vec::new(),
            resources,
            security: wanted.security.clone(),
            qos: QOS,
            stop_signal: "SIGTERM".into(),
            termination_message: pods::TerminationMessage::default(),
            console: pods::Console {
                stdin: wanted.console.stdin,
                stdin_once: wanted.console.stdin_once,
                tty: wanted.console.tty,
            },
        };
        let machine = spec::Machine {
            pods_group: self.machine.settings.pods_group.clone(),
            has_unified_groups: matches!(self.workloads.board().cgroups, Cgroups::V2(_)),
            least_oom_score: self.workloads.board().least_oom_score,
            memory_bytes: 1 << 30,
        };
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let shared = spec::Shared {
            hostname: HOSTNAME.into(),
            host_pid: false,
            network: text(&places.network),
            uts: text(&places.uts),
            ipc: text(&places.ipc),
            pid: text(&places.pid),
            shm: places.shm.display().to_string(),
            files: places.files.display().to_string(),
        };
        let order = ContainerOrder {
            id: wanted.id.clone(),
            layers: wanted.above.iter().cloned().chain([self.machine.scratch.join("image")]).collect(),
            places: vec!["/volume/of/image".into(), "/tmp".into()],
            group: kedge_core::workloads::groups::container_group(&machine.pods_group, QOS, &container.key),
            log: LogOrder {
                path: wanted.log.clone().unwrap_or_else(|| self.machine.log(&wanted.id)),
                max_bytes: wanted.log_bytes,
                max_files: wanted.log_files,
            },
            console: wanted.console,
            notes: Notes::from([("image".to_owned(), "busybox".to_owned())]),
        };
        self.workloads.create_container(&order, &|image, places| {
            let user = users::resolve(wanted.user, &image.passwd, &image.group)?;
            let shown = |path: &Path| path.display().to_string();
            let granted = spec::Granted {
                devices: wanted.devices.clone(),
                volumes: places.iter().map(|(path, found)| (shown(path), shown(found))).collect(),
                ..spec::Granted::default()
            };
            spec::config(&container, &user, &shared, &machine, &granted, &|_| None)
        })
    }

    /// Creates and starts it, and waits until it runs or has ended.
    pub(crate) fn run(&mut self, wanted: &Wanted) -> ContainerState {
        self.create(wanted).unwrap();
        self.workloads.start_container(&wanted.id).unwrap();
        self.await_state(&wanted.id, |state| {
            !matches!(state, ContainerState::Created | ContainerState::Starting)
        })
    }

    #[track_caller]
    pub(crate) fn await_state(
        &mut self,
        id: &ContainerId,
        is_it: impl Fn(&ContainerState) -> bool,
    ) -> ContainerState {
        let begin = Instant::now();
        let mut seen = Vec::new();
        while begin.elapsed() < LIMIT {
            for observation in self.workloads.observe(LIMIT) {
                if observation.id == *id && is_it(&observation.state) {
                    return observation.state;
                }
                seen.push(observation);
            }
        }
        panic!("waited in vain; seen: {seen:?}; log: {:?}", self.machine.logged(id));
    }

    #[track_caller]
    pub(crate) fn await_end(&mut self, id: &ContainerId) -> ContainerExit {
        let has_ended =
            |state: &ContainerState| matches!(state, ContainerState::Exited(_) | ContainerState::Lost(_));
        match self.await_state(id, has_ended) {
            ContainerState::Exited(exit) | ContainerState::Lost(exit) => exit,
            _ => unreachable!(),
        }
    }

    /// Runs it to its end and returns how it ended.
    #[track_caller]
    pub(crate) fn run_to_end(&mut self, wanted: &Wanted) -> ContainerExit {
        match self.run(wanted) {
            ContainerState::Exited(exit) | ContainerState::Lost(exit) => exit,
            _ => self.await_end(&wanted.id),
        }
    }

    /// Removes the container and its pod; nothing may be left.
    #[track_caller]
    pub(crate) fn clean_up(mut self, ids: &[ContainerId]) {
        for id in ids {
            self.workloads.remove_container(id).unwrap();
        }
        self.workloads.remove_pod("uid-1").unwrap();
        self.machine.assert_nothing_is_left();
    }

    /// Where the container's root file system is.
    pub(crate) fn root(&self, id: &ContainerId) -> PathBuf {
        self.bundle(id).join("rootfs")
    }

    pub(crate) fn bundle(&self, id: &ContainerId) -> PathBuf {
        self.machine
            .settings
            .run
            .join("pods")
            .join(&id.pod)
            .join("c")
            .join(format!("{}-{}", id.name, id.attempt))
    }

    pub(crate) fn record(&self, id: &ContainerId, name: &str) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.bundle(id).join(name)).unwrap()).unwrap()
    }
}

pub(crate) fn kill(pid: i64) {
    let status = Command::new("/usr/bin/env").args(["kill", "-KILL", &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill {pid}");
}
