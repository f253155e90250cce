//! The doctor's checks for pods: crun, control groups, a network, registries, static pods; and how pods and
//! runs ended.
//!
//! Always holds: facts that the running agent knows come from it; without one the local configuration and the
//! flags count. Nothing is pulled or started but `crun --version`.

use crate::doctor::finding::{Finding, within};
use crate::images::ping;
use crate::local::client;
use crate::local_config;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::system_clock;
use crate::options::AgentOptions;
use crate::status;
use crate::workloads::network::Plugins;
use kedge_core::WithPods;
use kedge_core::images::Reference;
use kedge_core::images::settings::{Endpoint, Registries};
use kedge_core::kubelet;
use kedge_platform::RunDirectory;
use kedge_platform::linux::Roots;
use kedge_platform::workloads::{Board, Crun, probe};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Most registries that are contacted, and most pods that are listed.
const MOST: usize = 8;

/// How long one registry may take: a handshake over a link of 600 ms with losses.
const REGISTRY_LIMIT: Duration = Duration::from_secs(15);

/// The remedy for a kernel without that controller.
const MEMORY_ADVICE: &str = "append cgroup_enable=memory cgroup_memory=1 to the one line of /boot/firmware/cmdline.txt (Raspberry Pi OS, \
    which switches it off; /boot/cmdline.txt on older ones), elsewhere to the kernel's command line, and reboot";

/// The running agent's answers; each is null without one.
#[derive(Default, Clone)]
pub(super) struct Running {
    pub(super) status: Value,
    /// The effective configuration.
    config: Value,
    pods: Value,
}

impl Running {
    pub(super) fn ask(options: &AgentOptions) -> Self {
        let get = |path: &str| -> Option<Value> {
            let answer = client::get(&options.places.socket(), path).ok()?;
            serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)
        };
        let Some(status) = get("/status") else { return Self::default() };
        let config = get("/configz").map(|mut config| config["kubeletconfig"].take()).unwrap_or_default();
        Self { status, config, pods: get("/pods").unwrap_or_default() }
    }

    /// The running configuration, or else the local one.
    fn config(&self, options: &AgentOptions) -> Value {
        if self.config.is_object() {
            return self.config.clone();
        }
        let layers = local_config::read(&options.local).ok();
        let effective = layers.and_then(|layers| kubelet::effective(&layers, None).ok());
        effective.map(|effective| effective.configz()["kubeletconfig"].take()).unwrap_or_default()
    }

    fn flag(&self, name: &str) -> Option<&str> {
        self.status["flags"][name].as_str()
    }

    fn pods(&self) -> &[Value] {
        self.pods["pods"].as_array().map_or(&[], Vec::as_slice)
    }
}

/// All checks; just one line on a node that runs no pods.
pub(super) fn check(options: &AgentOptions, running: &Running) -> Vec<Finding> {
    let crun = running.flag("crun").map_or_else(|| options.runtime.crun.clone(), PathBuf::from);
    let mut findings = ends(options, running);
    if crun.as_os_str().is_empty() || WithPods::built().is_none() {
        findings.push(Finding::ok("crun", "this node runs no pods: --crun is empty"));
        return findings;
    }
    if !crun.is_file() {
        let found = format!("no pod can begin here: {} is not there", crun.display());
        let advice = "apt install crun; the agent notices by itself. --crun FILE if it is elsewhere, --crun \"\" for a node without pods";
        findings.push(Finding::fail("crun", found, advice));
        return findings;
    }
    let board = probe(&Roots::default(), &Crun { program: crun, ..Crun::default() });
    findings.extend(runtime(&board));
    let cgroup_root = running.flag("cgroupRoot").unwrap_or(&options.runtime.cgroup_root);
    findings.extend(control_groups(&board, cgroup_root));
    findings.push(network(&Plugins::default()));
    let config = running.config(options);
    findings.extend(static_pods(&config, running));
    findings.extend(waiting(running));
    findings.extend(registries(&config, running));
    findings
}

fn runtime(board: &Board) -> Vec<Finding> {
    let version = board.crun.iter().map(|version| Finding::ok("crun", version.clone()));
    let problems = board.problems.iter().map(|problem| match board.obstacle() == Some(problem) {
        true => {
            Finding::fail("crun", problem.clone(), "docs/reference/pods.md says what a node with pods needs")
        }
        false => Finding::warn(
            "crun",
            problem.clone(),
            "pods run all the same; docs/reference/pods.md says what this costs",
        ),
    });
    version.chain(problems).collect()
}

fn control_groups(board: &Board, cgroup_root: &str) -> Vec<Finding> {
    let lacking = board.cgroups.lacking();
    let mut findings: Vec<Finding> = lacking
        .iter()
        .map(|controller| {
            let found =
                format!("the kernel has no controller {controller}: such limits of pods are not kept");
            match *controller {
                "memory" => Finding::fail("cgroups", found, MEMORY_ADVICE),
                _ => Finding::warn("cgroups", found, "use a kernel that has it: docs/reference/pods.md"),
            }
        })
        .collect();
    if !cgroup_root.is_empty() && !board.cgroups.has(cgroup_root) {
        let found = format!("--cgroup-root is {cgroup_root}, and there is no such control group");
        let advice = "make it before the agent starts, or correct the flag: no pod starts until then";
        findings.push(Finding::fail("cgroups", found, advice));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("cgroups", "limits of memory, processor and processes can be kept"));
    }
    findings
}

fn network(plugins: &Plugins) -> Finding {
    match plugins.network() {
        Ok(network) => Finding::ok("network", format!("pods are attached to the network {:?}", network.name)),
        Err(why) => {
            let advice = "only pods with hostNetwork: true run here. For others: apt install containernetworking-plugins, and a \
                configuration in /etc/cni/net.d (docs/reference/pods.md)";
            Finding::warn("network", why, advice)
        }
    }
}

fn static_pods(config: &Value, running: &Running) -> Option<Finding> {
    let path = config["staticPodPath"].as_str().filter(|path| !path.is_empty())?;
    let files = match std::fs::read_dir(path) {
        Ok(entries) => {
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| !name.starts_with('.')).count()
        }
        Err(error) => {
            let advice = "make the directory, or correct staticPodPath";
            return Some(Finding::warn("static pods", format!("{path}: {error}"), advice));
        }
    };
    let pods = running.pods().iter().filter(|pod| pod["origin"] == "static").count();
    let found = format!("{path}: {files} files, {pods} static pods");
    Some(match running.pods.is_object() && pods < files {
        true => {
            Finding::warn("static pods", found, "journalctl -u kedge says which file is not used, and why")
        }
        false => Finding::ok("static pods", found),
    })
}

/// Pods that do not run, each with its first container's reason.
fn waiting(running: &Running) -> Vec<Finding> {
    let reason = |pod: &Value| -> Option<String> {
        let own = pod["rejected"].as_str().map(str::to_owned);
        let containers = pod["containers"].as_array()?;
        let mut waiting = containers.iter().filter_map(|container| {
            let reason = container["reason"].as_str().filter(|reason| *reason != "Completed")?;
            Some(format!("{}: {reason}", container["name"].as_str().unwrap_or_default()))
        });
        own.or_else(|| waiting.next())
    };
    let found = running.pods().iter().filter_map(|pod| {
        let text = |name: &str| pod[name].as_str().unwrap_or_default();
        let found = format!("{}/{}: {}", text("namespace"), text("name"), reason(pod)?);
        Some(Finding::warn("pods", found, "kedge pods; kubectl describe pod has its Events"))
    });
    found.take(MOST).collect()
}

/// How runs of the agent ended.
fn ends(options: &AgentOptions, running: &Running) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(crashes) = status::crashes(&running.status["config"]) {
        let advice = "journalctl -u kedge; kedge config history";
        findings.push(Finding::warn("exits", format!("crashes of the agent: {crashes}"), advice));
    }
    if let Some(record) = RunDirectory::new(&options.places.run_dir).recorded()
        && record.result != "success"
    {
        let found = format!(
            "the agent's last run ended by {} {} {}",
            record.result, record.exit_code, record.exit_status
        );
        findings.push(Finding::warn("exits", found.trim_end(), "journalctl -u kedge"));
    }
    findings
}

/// The registries of the configuration and the pods.
fn registries(config: &Value, running: &Running) -> Vec<Finding> {
    let images = &config["kedge"]["images"];
    let settings = Registries::read(images.as_object(), &mut |_, _| ());
    let keys = |name: &str| {
        images[name].as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<Vec<_>>()
    };
    let insecure = images["insecureRegistries"].as_array().into_iter().flatten();
    let configured = insecure.filter_map(|name| name.as_str().map(str::to_owned));
    let configured = configured.chain(keys("mirrors")).chain(keys("certificateAuthorities"));
    let containers = running.pods().iter().filter_map(|pod| pod["containers"].as_array()).flatten();
    let named = containers.filter_map(|container| container["image"].as_str());
    let references = configured
        .filter_map(|registry| Reference::parse(&format!("{registry}/x")).ok())
        .chain(named.filter_map(|image| Reference::parse(image).ok()));
    let mut asked: Vec<Endpoint> = Vec::new();
    for endpoint in references.flat_map(|reference| settings.endpoints(&reference)) {
        if asked.len() < MOST && !asked.iter().any(|known| known.server == endpoint.server) {
            asked.push(endpoint);
        }
    }
    let ask = |endpoint: Endpoint| {
        let (server, settings) = (endpoint.server.clone(), settings.clone());
        let answer = within(REGISTRY_LIMIT, move || {
            ping(&settings, endpoint, system_clock(), ProxyEnvironment::of_process())
        });
        match answer {
            Some(Ok(())) => Finding::ok("registry", format!("{server} answers")),
            Some(Err(why)) => {
                Finding::warn("registry", why, "images that are here go on; others cannot be pulled")
            }
            None => {
                let found = format!("{server}: no answer within {} s", REGISTRY_LIMIT.as_secs());
                Finding::warn("registry", found, "a firewall, a route, or a wrong name")
            }
        }
    };
    asked.into_iter().map(ask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;
    use kedge_platform::workloads::Cgroups;
    use serde_json::json;
    use std::path::Path;

    fn text(findings: &[Finding]) -> String {
        findings.iter().map(|finding| format!("{:?} {}\n", finding.level, finding.found)).collect()
    }

    fn board(cgroups: Cgroups) -> Board {
        Board {
            cgroups,
            has_overlay: true,
            processes: None,
            least_oom_score: 0,
            lacking: 0,
            crun: Some("crun version 1.8.1".into()),
            problems: Vec::new(),
        }
    }

    #[test]
    fn missing_memory_controller_fails_with_the_line_to_add() {
        let trees = ["cpu", "pids", "devices"].map(|name| (name.to_owned(), "/sys/fs/cgroup".into()));
        let found = control_groups(&board(Cgroups::V1(trees.to_vec())), "");
        assert_eq!(
            text(&found),
            "Fail the kernel has no controller memory: such limits of pods are not kept\n"
        );
        assert!(found[0].advice.as_ref().unwrap().contains("cgroup_enable=memory cgroup_memory=1"));
    }

    #[test]
    fn cgroup_root_that_is_not_there_fails() {
        let names = ["cpu", "pids", "memory"];
        let trees = Cgroups::V1(names.map(|name| (name.to_owned(), "/proc".into())).to_vec());
        let found = |root: &str| text(&control_groups(&board(trees.clone()), root));
        assert!(found("/nosuch.slice").contains("Fail --cgroup-root is /nosuch.slice"));
        assert!(found("/self").starts_with("Ok"), "any directory stands for a group here");
    }

    #[test]
    fn pods_that_wait_are_named_with_their_reason() {
        let pods = json!({"pods": [
            {"namespace": "a", "name": "runs", "containers": [{"name": "c", "state": "Running"}]},
            {"namespace": "a", "name": "waits", "containers": [{"name": "c", "reason": "ErrImagePull"}]},
            {"namespace": "a", "name": "no", "rejected": "OutOfcpu", "containers": []},
        ]});
        let running = Running { pods, ..Running::default() };
        assert_eq!(text(&waiting(&running)), "Warn a/waits: c: ErrImagePull\nWarn a/no: OutOfcpu\n");
    }

    #[test]
    fn static_pods_that_are_fewer_than_their_files_are_noticed() {
        let scratch = kedge_rig::Scratch::new("doctor-static").unwrap();
        scratch.write("a.yaml", "");
        let config = json!({"staticPodPath": scratch.path()});
        let found =
            |pods: Value| static_pods(&config, &Running { pods, ..Running::default() }).unwrap().level;
        assert_eq!(found(json!({"pods": []})), Level::Warn);
        assert_eq!(found(json!({"pods": [{"origin": "static"}]})), Level::Ok);
        let gone = json!({"staticPodPath": Path::new("/nosuch/directory")});
        assert!(static_pods(&gone, &Running::default()).unwrap().found.contains("No such file"));
    }
}
