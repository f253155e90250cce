//! The chapters of `make try` about pods: an image from a real registry, a DaemonSet, events that containers
//! survive, and an update that fails.
//!
//! Owns traces of the chapters on this machine other than files: control groups, mounts, the processes of
//! containers. Always holds: all of them are removed when [`Pods`] is dropped, including those of an earlier
//! try-out that was killed; all shown facts came from kubectl, from a node's own command line, or from the
//! log of a container.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kedge_platform::linux::Roots;
use kedge_platform::workloads::{Cgroups, Crun, probe, unmount};
use serde_json::{Value, json};

use super::{Demo, NODES};
use crate::agent::{Agent, AgentOptions};
use crate::cluster::PATIENCE;
use crate::console::Tone;
use crate::error::RigError;
use crate::image_push;
use crate::scratch::poll;

/// The programs that the chapters need beside the agent.
const PROGRAMS: [&str; 4] = ["crun", "docker-registry", "umoci", "busybox"];
/// Prefix of the control group of a try-out; the id of its process follows.
const GROUP: &str = "kedge-try-";
/// Longest wait until the registry listens.
const REGISTRY_LIMIT: Duration = Duration::from_secs(20);
/// Interval of checks for facts that the view does not contain.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A line a second: a restarted container would begin at 1.
const SCRIPT: &str = "n=0; while sleep 1; do n=$((n+1)); echo tick $n; done";
/// The script of the update, which looks well for a moment.
const BAD_SCRIPT: &str = "sleep 1; echo cannot open the clock; exit 3";
/// The DaemonSet, its label, its container.
const NAME: &str = "clock";
/// A pod counts as available after this time.
const MIN_READY_SECS: u32 = 5;

/// The programs for pods on this machine, and the traces to remove.
pub(super) struct Pods {
    crun: PathBuf,
    docker_registry: PathBuf,
    umoci: PathBuf,
    busybox: PathBuf,
    cgroups: Cgroups,
    group: String,
    dir: PathBuf,
    registry: Option<Registry>,
}

/// `docker-registry` on a port of loopback.
struct Registry {
    process: Child,
    address: SocketAddr,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Pods {
    /// Checks that pods can run here, with all their files below `dir`. `Err`: the reason why they cannot,
    /// and the remedy.
    pub(super) fn new(dir: &Path) -> Result<Pods, String> {
        if !fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
            return Err(r#"containers need root: sudo env "PATH=$PATH" make try"#.to_owned());
        }
        let [crun, docker_registry, umoci, busybox] = PROGRAMS.map(|name| found(name).ok_or(name));
        let missing = |name| format!("{name} is missing; .ci/unpack fetches it");
        let (crun, docker_registry) = (crun.map_err(missing)?, docker_registry.map_err(missing)?);
        let board = probe(&Roots::default(), &Crun { program: crun.clone(), ..Crun::default() });
        if let Some(why) = board.obstacle() {
            return Err(why.to_owned());
        }
        let pods = Pods {
            crun,
            docker_registry,
            umoci: umoci.map_err(missing)?,
            busybox: busybox.map_err(missing)?,
            cgroups: board.cgroups,
            group: format!("/{GROUP}{}", std::process::id()),
            dir: dir.to_owned(),
            registry: None,
        };
        pods.clear_killed();
        Ok(pods)
    }

    /// Options of a node that runs containers, in control groups of its own.
    pub(super) fn options(&self, node: &str, options: &mut AgentOptions) {
        options.crun = Some(self.crun.clone());
        options.flags.extend(["--cgroup-root".into(), format!("{}/{node}", self.group).into()]);
    }

    /// The drop-in that makes it trust the registry, and keeps its logs in its own directory.
    pub(super) fn configure(&self, agent: &Agent) -> Result<(), RigError> {
        let name = self.name();
        let logs = logs_of(agent);
        let text = format!(
            "podLogsDir: {}\nkedge:\n  images:\n    insecureRegistries: [\"{name}\"]\n",
            logs.display()
        );
        agent.write_drop_in("20-pods.conf", &format!("{}{text}", crate::cluster::HEADER))
    }

    /// The registry's name in names of images.
    fn name(&self) -> String {
        self.registry.as_ref().map(|registry| registry.address.to_string()).unwrap_or_default()
    }

    /// Starts the registry, and waits until it listens.
    pub(super) fn start_registry(&mut self) -> Result<(), RigError> {
        let failed = |tried: &str| {
            let tried = tried.to_owned();
            move |source| RigError::Io { tried, source }
        };
        // free until another program takes it: then the registry reports an error and ends
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(failed("find a free port"))?;
        fs::create_dir_all(&self.dir).map_err(RigError::io("create directory", &self.dir))?;
        let config = json!({"version": 0.1, "log": {"level": "error"}, "http": {"addr": address},
            "storage": {"filesystem": {"rootdirectory": self.dir.join("storage")}}});
        // JSON is YAML
        let path = self.dir.join("registry.yaml");
        fs::write(&path, config.to_string()).map_err(RigError::io("write", &path))?;
        let log = self.dir.join("registry.log");
        let output = fs::File::create(&log).map_err(RigError::io("create", &log))?;
        let errors = output.try_clone().map_err(RigError::io("open", &log))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.docker_registry)
            .arg("serve")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(RigError::io("start", &self.docker_registry))?;
        self.registry = Some(Registry { process, address });
        let listens = poll(REGISTRY_LIMIT, || TcpStream::connect(address).ok());
        listens.map(drop).ok_or_else(|| RigError::TimedOut {
            awaited: format!("docker-registry on {address}"),
            found: fs::read_to_string(&log).unwrap_or_default(),
        })
    }

    /// Makes an image of busybox that runs this script, and pushes it; returns the commands as a user could
    /// type them, and its name.
    fn push_image(&self, tag: &str, script: &str) -> Result<(Vec<String>, String), RigError> {
        let (layout, bin) = (self.dir.join(format!("clock-{tag}")), self.dir.join("bin"));
        if !bin.exists() {
            fs::create_dir_all(&bin).map_err(RigError::io("create directory", &bin))?;
            fs::copy(&self.busybox, bin.join("busybox")).map_err(RigError::io("copy", &self.busybox))?;
            symlink("busybox", bin.join("sh")).map_err(RigError::io("make a link in", &bin))?;
        }
        let image = format!("{}:{tag}", layout.display());
        let steps: [&[&str]; 4] = [
            &["init", "--layout", &layout.display().to_string()],
            &["new", "--image", &image],
            &["insert", "--image", &image, &bin.display().to_string(), "/bin"],
            &[
                "config",
                "--image",
                &image,
                "--config.cmd",
                "/bin/sh",
                "--config.cmd",
                "-c",
                "--config.cmd",
                script,
            ],
        ];
        let mut commands = Vec::new();
        for step in steps {
            let output =
                Command::new(&self.umoci).args(step).output().map_err(RigError::io("run", &self.umoci))?;
            let command = format!("umoci {}", step.join(" "));
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(RigError::Failed { command, status: output.status.to_string(), said });
            }
            commands.push(command.replace(&format!("{}/", self.dir.display()), ""));
        }
        let name = format!("{}/site/clock:{tag}", self.name());
        image_push::push(&layout, &self.name(), "site/clock", tag)?;
        Ok((commands, name))
    }

    /// Ends all processes of a node and removes its mounts: a power cut, as far as containers can tell.
    fn cut_off(&self, agent: &Agent) -> Result<(), RigError> {
        let group = format!("{}/{}", self.group, agent.name());
        self.cgroups
            .kill_all(&group)
            .map_err(RigError::io("end what runs in the group", Path::new(&group)))?;
        unmount_below(&agent.run_dir())?;
        fs::remove_dir_all(agent.run_dir()).map_err(RigError::io("remove", &agent.run_dir()))
    }

    /// Ends all containers and removes their traces. The agents must have ended.
    pub(super) fn clear(&mut self) -> Result<(), RigError> {
        self.registry = None;
        clear_group(&self.cgroups, &self.group)?;
        unmount_below(self.dir.parent().unwrap_or(&self.dir))
    }

    /// Removes traces of try-outs that were killed.
    fn clear_killed(&self) {
        let roots: Vec<&Path> = match &self.cgroups {
            Cgroups::V2(root) => vec![root],
            Cgroups::V1(trees) => trees.iter().map(|(_, root)| root.as_path()).collect(),
            Cgroups::Absent => Vec::new(),
        };
        for name in roots.into_iter().flat_map(names) {
            let Some(pid) = name.strip_prefix(GROUP) else { continue };
            let is_pid = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
            // the kernel shows no command line for a process that has ended and not been reaped
            let command_line = fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
            if is_pid && command_line.is_empty() {
                let _ = clear_group(&self.cgroups, &format!("/{name}"));
            }
        }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("containers of the try-out: {error}");
        }
    }
}

impl Demo {
    /// An image from a registry on this machine, and a container of it on each node.
    pub(super) fn a_pod_on_each_node(&mut self) -> Result<(), RigError> {
        self.console.chapter("A DaemonSet: a pod on each node, from a registry on this machine");
        let image = match &self.pods {
            Ok(pods) => pods.push_image("v1", SCRIPT),
            // skipped chapters would go unnoticed in CI, so there it is an error
            Err(why) if std::env::var("CI").as_deref() == Ok("true") => {
                return Err(RigError::TimedOut {
                    awaited: "a machine that runs pods".into(),
                    found: why.clone(),
                });
            }
            Err(why) => {
                let line = format!("left out, with the other chapters about pods: {why}");
                self.console.say(Tone::Open, &line);
                return Ok(());
            }
        };
        let image = self.say_commands(image?);
        self.gloss(&["A DaemonSet keeps one pod on each node. An update replaces one pod after the other."]);
        let set = set(&image);
        let path = self.cluster.payload_file("clock", &set)?;
        self.console.say(Tone::Plain, &format!("{}:", path.display()));
        self.say_numbered(&set);
        self.kubectl(&["apply", "-f", &path.display().to_string()].map(str::to_owned))?;
        self.until_shown("a running container on each node", |demo| {
            NODES
                .iter()
                .all(|node| demo.runs_with(node, 0) && !demo.ticks(node).unwrap_or_default().is_empty())
        })?;
        self.show(&["get", "pods", "-o", "wide"])?;
        self.gloss(&["All three nodes are on this machine, so they show one address."]);
        self.show(&["rollout", "status", "daemonset/clock"])
    }

    fn say_commands(&mut self, (commands, image): (Vec<String>, String)) -> String {
        for command in commands {
            self.console.say(Tone::Plain, &format!("made by: {command}"));
        }
        // the command that does the same; the demonstration itself does not need skopeo
        let tag = image.rsplit(':').next().unwrap_or_default();
        let line = format!(
            "pushed to {image}; by hand: skopeo copy --dest-tls-verify=false oci:clock-{tag}:{tag} docker://..."
        );
        self.console.say(Tone::Plain, &line);
        image
    }

    /// The update stops by itself after one node, and one command reverts it.
    fn an_update_fails(&mut self) -> Result<(), RigError> {
        self.console.chapter("An update of the DaemonSet whose container crashes");
        let image = match &self.pods {
            Ok(pods) => pods.push_image("v2", BAD_SCRIPT)?,
            Err(_) => return Ok(()),
        };
        let image = self.say_commands(image);
        let arguments = ["set", "image", "daemonset/clock", &format!("clock={image}")].map(str::to_owned);
        self.kubectl(&arguments)?;
        self.until_shown("a crashed container of it", |demo| {
            demo.pods_of(&image)
                .iter()
                .any(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64() > Some(0))
        })?;
        let line = "rollout status daemonset/clock --timeout=5s";
        self.console.say(Tone::Command, &format!("kubectl {line}"));
        match self.cluster.kubectl().run(&line.split(' ').collect::<Vec<_>>()) {
            Err(RigError::Failed { said, .. }) => {
                said.lines().for_each(|line| self.console.say(Tone::Bad, line))
            }
            Err(other) => return Err(other),
            Ok(done) => {
                return Err(RigError::TimedOut {
                    awaited: "an update that does not get on".into(),
                    found: done,
                });
            }
        }
        self.show(&["get", "pods", "-o", "wide"])?;
        let bad = self.pods_of(&image).len();
        // `maxUnavailable` is 1, so the update may not replace a second pod before this one is available
        if bad != 1 {
            return Err(RigError::TimedOut {
                awaited: "one pod of the bad image".into(),
                found: bad.to_string(),
            });
        }
        self.console.say(
            Tone::Good,
            "it stopped after one node: maxUnavailable is 1, and that pod never became available",
        );
        self.kubectl(&["rollout", "undo", "daemonset/clock"].map(str::to_owned))?;
        self.show(&["rollout", "status", "daemonset/clock", "--timeout=60s"])?;
        self.show(&["rollout", "history", "daemonset/clock"])?;
        self.gloss(&["Revision 1 came back, and is the newest now: so it is called 3."]);
        Ok(())
    }

    /// The pods whose container runs this image.
    fn pods_of(&self, image: &str) -> Vec<Value> {
        let pods = self.cluster.kubectl().json(&["get", "pods", "-l", "app=clock"]).unwrap_or_default();
        let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.retain(|pod| pod["spec"]["containers"][0]["image"] == image);
        pods
    }

    /// After the crashes and roll backs of the other chapters: no container was restarted, and none missed a
    /// second.
    pub(super) fn the_pods_all_the_while(&mut self) -> Result<(), RigError> {
        if self.pods.is_err() {
            return Ok(());
        }
        self.console.chapter("The containers, all the while");
        for node in NODES {
            self.goes_on(node)?;
        }
        Ok(())
    }

    /// Events that containers survive, and the replacement of those that end.
    pub(super) fn what_containers_survive(&mut self) -> Result<(), RigError> {
        if self.pods.is_err() {
            return Ok(());
        }
        self.an_agent_is_killed()?;
        self.a_container_is_killed()?;
        self.a_node_boots_without_its_hub()?;
        self.an_update_fails()
    }

    fn an_agent_is_killed(&mut self) -> Result<(), RigError> {
        self.console.chapter("The agent of edge-1 is killed while its container runs");
        let before = self.cluster.agent("edge-1").babysitter().state();
        before.pid.map_or(Ok(()), |pid| self.kill(pid))?;
        self.until_shown("another agent, and a Ready node", |demo| {
            let state = demo.cluster.agent("edge-1").babysitter().state();
            state.runs > before.runs && state.is_ready() && demo.node_shows("edge-1").is_some()
        })?;
        self.goes_on("edge-1")
    }

    fn a_container_is_killed(&mut self) -> Result<(), RigError> {
        self.console.chapter("The container of edge-1 is killed");
        let uid = self.pod("edge-1")["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let pid = self.process_of("edge-1", &uid)?;
        self.kill(pid)?;
        self.until_shown("another container in its place", |demo| demo.runs_with("edge-1", 1))?;
        let last = self.pod("edge-1")["status"]["containerStatuses"][0]["lastState"]["terminated"].take();
        let line = format!(
            "edge-1: the last one ended with exit code {}, signal {}",
            last["exitCode"], last["signal"]
        );
        self.console.say(Tone::Good, &line);
        self.show(&["get", "pods"])
    }

    /// The agent is killed, all processes of its containers end, and everything that a boot would clear is
    /// removed.
    fn a_node_boots_without_its_hub(&mut self) -> Result<(), RigError> {
        self.console.chapter("The hub is stopped; then edge-2 loses its power, and boots with nobody to ask");
        self.console.say(Tone::Plain, "as on a server: systemctl stop kedge-hub");
        self.cluster.hub_mut().stop()?;
        self.cluster.agent_mut("edge-2").cut();
        if let Ok(pods) = &self.pods {
            pods.cut_off(self.cluster.agent("edge-2"))?;
        }
        let ended = self.ticks("edge-2").map_or(0, |ticks| ticks.len());
        self.console.say(Tone::Bad, &format!("edge-2 is off; its container had counted to {ended}"));
        self.cluster.agent_mut("edge-2").launch()?;
        self.until_shown("its container, from what lies on its disk", |demo| {
            let again = demo.ticks("edge-2").unwrap_or_default();
            demo.node_shows("edge-2").as_deref() == Some("Running") && again.first() == Some(&1)
        })?;
        let (_, listed, _) = self.cluster.agent("edge-2").kedge(&["pods"])?;
        let agent = self.cluster.agent("edge-2");
        let (root, run) = (agent.root_dir().display().to_string(), agent.run_dir().display().to_string());
        self.console.say(Tone::Command, &format!("kedge pods --root-dir {root} --run-dir {run}"));
        self.say_lines(&listed);
        self.console.say(Tone::Plain, "as on a server: systemctl start kedge-hub");
        self.cluster.hub_mut().start_again()?;
        self.until_shown("the hub to hear of it", |demo| demo.runs_with("edge-2", 1))?;
        self.goes_on("edge-3")
    }

    /// True if the container counted every second since it began, and was never restarted.
    fn goes_on(&mut self, node: &str) -> Result<(), RigError> {
        let before = self.ticks(node).unwrap_or_default().len();
        self.until_shown(&format!("{node}'s container to count on"), |demo| {
            demo.ticks(node).is_some_and(|ticks| ticks.len() > before) && demo.runs_with(node, 0)
        })?;
        let ticks = self.ticks(node).unwrap_or_default();
        match ticks.iter().copied().eq(1..=ticks.len()) {
            true => {
                let line = format!(
                    "{node}: the same container, never restarted, {} lines, none missing",
                    ticks.len()
                );
                self.console.say(Tone::Good, &line);
                Ok(())
            }
            false => Err(RigError::TimedOut {
                awaited: format!("{node}'s container to count without a gap"),
                found: format!("{ticks:?}"),
            }),
        }
    }

    /// The pod of a node, as the API shows it; null if it cannot be read.
    fn pod(&self, node: &str) -> Value {
        let of = format!("spec.nodeName={node}");
        let pods = self.cluster.kubectl().json(&["get", "pods", "-l", "app=clock", "--field-selector", &of]);
        pods.unwrap_or_default()["items"][0].take()
    }

    fn runs_with(&self, node: &str, restarts: u64) -> bool {
        let pod = self.pod(node);
        let container = &pod["status"]["containerStatuses"][0];
        pod["status"]["phase"] == "Running"
            && container["ready"] == true
            && container["restartCount"] == restarts
    }

    /// The state of its container that the node itself reports, without any server.
    fn node_shows(&self, node: &str) -> Option<String> {
        let shown = self.cluster.agent(node).kedge_json(&["pods"]).ok()?;
        shown.pointer("/pods/0/containers/0/state")?.as_str().map(str::to_owned)
    }

    /// The numbers that the node's container has printed since it began, from the log of its latest run.
    fn ticks(&self, node: &str) -> Option<Vec<usize>> {
        let logs = logs_of(self.cluster.agent(node));
        let pod = names(&logs).into_iter().next()?;
        let container = logs.join(pod).join(NAME);
        let run = |name: &String| name.strip_suffix(".log").and_then(|run| run.parse::<u32>().ok());
        let latest = names(&container).into_iter().max_by_key(run)?;
        let text = fs::read_to_string(container.join(latest)).ok()?;
        Some(text.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect())
    }

    /// The shell that counts, found in its control group.
    fn process_of(&self, node: &str, uid: &str) -> Result<i32, RigError> {
        let group = self.pods.as_ref().map(|pods| format!("{}/{node}/", pods.group)).unwrap_or_default();
        let is_its = |pid: &i32| {
            let dir = Path::new("/proc").join(pid.to_string());
            let groups = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
            let command = fs::read(dir.join("cmdline")).unwrap_or_default();
            groups.contains(&group) && groups.contains(uid) && command.starts_with(b"/bin/sh")
        };
        let pids = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
        pids.into_iter().find(is_its).ok_or_else(|| RigError::TimedOut {
            awaited: format!("the process of {node}'s container"),
            found: format!("none in the control group {group} of pod {uid}"),
        })
    }

    fn kill(&mut self, pid: i32) -> Result<(), RigError> {
        let command = format!("kill -KILL {pid}");
        self.console.say(Tone::Command, &command);
        // the program, not the shell's own
        let output = Command::new("env").args(command.split(' ')).output();
        let output = output.map_err(RigError::io("run", Path::new("kill")))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(RigError::Failed {
                command,
                status: output.status.to_string(),
                said: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
        }
    }

    /// Shows a kubectl command and its output.
    fn show(&mut self, arguments: &[&str]) -> Result<(), RigError> {
        self.console.say(Tone::Command, &crate::kubectl::shown(arguments));
        let text = self.cluster.kubectl().run(arguments)?;
        self.say_lines(&text);
        Ok(())
    }

    fn say_lines(&mut self, text: &str) {
        for line in text.lines() {
            self.console.say(Tone::Plain, &format!("  {line}"));
        }
    }

    /// Waits for something that is not in the view, and prints new facts from the view meanwhile.
    fn until_shown(&mut self, awaited: &str, is_so: impl Fn(&Demo) -> bool) -> Result<(), RigError> {
        let begin = std::time::Instant::now();
        while !is_so(self) {
            if begin.elapsed() > PATIENCE {
                let found = self.cluster.kubectl().run(&["get", "pods", "-o", "wide"]);
                return Err(RigError::TimedOut {
                    awaited: format!("{awaited} ({} s)", PATIENCE.as_secs()),
                    found: found.unwrap_or_else(|error| error.to_string()),
                });
            }
            match self.until(awaited, LOOK_EVERY, |_| false) {
                Err(RigError::TimedOut { .. }) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

fn set(image: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {NAME}
spec:
  selector:
    matchLabels: {{app: {NAME}}}
  minReadySeconds: {MIN_READY_SECS}
  template:
    metadata:
      labels: {{app: {NAME}}}
    spec:
      hostNetwork: true
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      containers:
      - name: {NAME}
        image: {image}
"
    )
}

fn logs_of(agent: &Agent) -> PathBuf {
    agent.root_dir().with_file_name("logs")
}

/// The path of a program in `$PATH`.
fn found(name: &str) -> Option<PathBuf> {
    let places = std::env::var_os("PATH")?;
    std::env::split_paths(&places).map(|place| place.join(name)).find(|path| path.is_file())
}

/// The names in a directory; empty if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn clear_group(cgroups: &Cgroups, group: &str) -> Result<(), RigError> {
    cgroups
        .kill_all(group)
        .and_then(|()| cgroups.remove(group))
        .map_err(RigError::io("clear the control group", Path::new(group)))
}

/// Unmounts everything below a directory, the last mounted first.
fn unmount_below(directory: &Path) -> Result<(), RigError> {
    let mounts = Path::new("/proc/self/mounts");
    let text = fs::read_to_string(mounts).map_err(RigError::io("read", mounts))?;
    let places = text.lines().rev().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    for place in places.filter(|place| place.starts_with(directory)) {
        unmount(place).map_err(RigError::io("unmount", place))?;
    }
    Ok(())
}
