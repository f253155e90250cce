//! Pods on a network of their own, by the configuration that packages bring and Debian's plugins.

use crate::setup::{LIMIT, Machine, add_program, isolated_network};
use kedge::workloads::network::Plugins;
use kedge::workloads::{Layers, Node, Performer, volumes};
use kedge_core::pods::{
    Console, ContainerKey, ContainerOrder, ContainerState, Dns, FailureReason, HostPort, Image, PodAction,
    PodEvent, PodSandbox, PodUid, QosClass, Resources, Security, TerminationMessage,
};
use kedge_platform::linux::Roots;
use kedge_platform::workloads::{Cgroups, LinuxWorkloads, Workloads};
use kedge_rig::scratch::wait_until;
use std::fs;
use std::io::Read as _;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The network configuration that the package installs.
pub(crate) const SHIPPED: &str = include_str!("../../cni/99-kedge.conflist");
/// The variable by which the process that is killed finds its machine.
const MACHINE: &str = "KEDGE_TEST_NETWORK";
/// The variable with that process' task.
const WHAT: &str = "KEDGE_TEST_NETWORK_DOES";
/// Waits if a test wants it to, and passes its input on.
const STEP: &str = r#"#!/bin/sh
here=${0%/*} me=${0##*/} input=$(cat)
[ "$CNI_COMMAND" = ADD ] || exit 0
if [ "$(cat "$here/wait" 2>/dev/null)" = "$me" ]; then touch "$here/reached"; sleep 1000; fi
before=$(printf '%s' "$input" | sed -n 's/.*"prevResult":\(.*\),"type":"step[0-9]"}$/\1/p')
[ -n "$before" ] || before='{"cniVersion":"1.0.0"}'
printf '%s' "$before"
"#;

pub(crate) struct OneImage(PathBuf);

impl Layers for OneImage {
    fn layers(&self, _: &str) -> Result<Vec<PathBuf>, String> {
        Ok(vec![self.0.clone()])
    }
}

pub(crate) struct Agent(pub(crate) Performer<LinuxWorkloads, OneImage>);

/// The plugins' records of addresses.
fn addresses(machine: &Machine) -> PathBuf {
    machine.scratch.join("addresses")
}

/// The shipped configuration, with steps between its plugins to be killed at.
fn configure(machine: &Machine) {
    let mut list: serde_json::Value = serde_json::from_str(SHIPPED).unwrap();
    list["plugins"][0]["ipam"]["dataDir"] = addresses(machine).to_str().unwrap().into();
    let plugins = list["plugins"].as_array_mut().unwrap();
    for (number, at) in [0, 2, 4].into_iter().enumerate() {
        plugins.insert(at, serde_json::json!({"type": format!("step{number}")}));
        let program = machine.scratch.join(format!("plugins/step{number}"));
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, STEP).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir_all(machine.scratch.join("net.d")).unwrap();
    fs::write(machine.scratch.join("net.d/10.conflist"), list.to_string()).unwrap();
}

impl Agent {
    pub(crate) fn of(machine: &Machine) -> Self {
        let workloads = LinuxWorkloads::open(machine.settings.clone(), &Roots::default()).unwrap();
        let waker = workloads.waker();
        let scratch = machine.scratch.path();
        let node = Node {
            pods_group: machine.settings.pods_group.clone(),
            has_unified_groups: matches!(workloads.board().cgroups, Cgroups::V2(_)),
            least_oom_score: workloads.board().least_oom_score,
            lacking_capabilities: workloads.board().lacking,
            memory_bytes: 1 << 30,
            allocatable_memory_bytes: 1 << 29,
            processes: None,
            pod_pids_limit: None,
            volumes: volumes::Places { disk: scratch.join("volumes"), memory: scratch.join("memory") },
            seccomp: scratch.join("seccomp"),
            logs: scratch.join("logs"),
            log_max_bytes: 1 << 20,
            log_max_files: 2,
            etc: "/etc".into(),
            plugins: Plugins {
                configurations: scratch.join("net.d"),
                programs: vec![scratch.join("plugins"), "/usr/lib/cni".into()],
                ..Plugins::default()
            },
            plugins_lock: scratch.join("plugins.lock"),
            networks: scratch.join("networks"),
            looks: kedge::workloads::looks::Places {
                program: env!("CARGO_BIN_EXE_kedge").into(),
                locks: scratch.join("looks"),
            },
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
        };
        let image = OneImage(scratch.join("image"));
        Self(Performer::new(workloads, image, node, Arc::new(move || waker.wake())))
    }

    /// Waits for the first event of this kind.
    #[track_caller]
    pub(crate) fn awaits<T>(
        &mut self,
        mut events: Vec<PodEvent>,
        is_it: impl Fn(&PodEvent) -> Option<T>,
    ) -> T {
        loop {
            for event in &events {
                if let Some(found) = is_it(event) {
                    return found;
                }
                assert!(!matches!(event, PodEvent::Failed { .. }), "{event:?}");
            }
            events = self.0.observe(LIMIT);
        }
    }

    fn prepare(&mut self, uid: &str, host_port: Option<u16>) -> Vec<String> {
        let events = self.0.perform(&PodAction::PreparePod(Box::new(sandbox(uid, host_port)))).unwrap();
        self.awaits(events, |event| match event {
            PodEvent::PodPrepared { network, .. } => Some(network.addresses.clone()),
            _ => None,
        })
    }

    fn run(&mut self, uid: &str, script: &str) {
        let order = container(uid, script);
        let key = order.key.clone();
        let events = self.0.perform(&PodAction::CreateContainer(Box::new(order))).unwrap();
        self.awaits_state(events, |state| matches!(state, ContainerState::Created));
        let events = self.0.perform(&PodAction::StartContainer(key)).unwrap();
        self.awaits_state(events, |state| !matches!(state, ContainerState::Created));
    }

    fn awaits_state(&mut self, events: Vec<PodEvent>, is_it: impl Fn(&ContainerState) -> bool) {
        self.awaits(events, |event| match event {
            PodEvent::Observed(observation) => is_it(&observation.state).then_some(()),
            _ => None,
        });
    }

    fn end(&mut self, uid: &str) {
        let key = container(uid, "").key;
        let stop = PodAction::StopContainer { container: key.clone(), signal: None, grace: Duration::ZERO };
        let events = self.0.perform(&stop).unwrap();
        self.awaits_state(events, |state| matches!(state, ContainerState::Exited(_)));
        let events = self.0.perform(&PodAction::RemoveContainer(key)).unwrap();
        assert!(matches!(events[..], [PodEvent::ContainerRemoved(_)]), "{events:?}");
        self.remove(uid);
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        let remove = PodAction::RemovePod { pod: PodUid::new(uid).unwrap(), keep_logs: true };
        let events = self.0.perform(&remove).unwrap();
        self.awaits(events, |event| matches!(event, PodEvent::PodRemoved { .. }).then_some(()));
    }

    /// The addresses of the pods that it finds; `None` for a pod that is not prepared.
    fn found(&mut self) -> Vec<Option<Vec<String>>> {
        let PodEvent::Inventory(inventory) = self.0.inventory() else { panic!("no inventory") };
        inventory.pods.into_iter().map(|pod| pod.network.map(|network| network.addresses)).collect()
    }
}

pub(crate) fn sandbox(uid: &str, host_port: Option<u16>) -> PodSandbox {
    let port = |host_port| HostPort {
        host_ip: String::new(),
        host_port,
        container_port: 80,
        protocol: "TCP".into(),
    };
    PodSandbox {
        uid: PodUid::new(uid).unwrap(),
        namespace: "prod".into(),
        name: format!("pod-{uid}"),
        node_uid: "node".into(),
        hostname: format!("pod-{uid}"),
        host_network: false,
        host_pid: false,
        host_ipc: false,
        share_process_namespace: false,
        qos: QosClass::BestEffort,
        resources: Resources::default(),
        volumes: Vec::new(),
        host_ports: host_port.map(port).into_iter().collect(),
        dns: Dns::default(),
        host_aliases: Vec::new(),
    }
}

pub(crate) fn container(uid: &str, script: &str) -> ContainerOrder {
    ContainerOrder {
        key: ContainerKey { pod: PodUid::new(uid).unwrap(), container: "main".into(), attempt: 0 },
        namespace: "prod".into(),
        pod_name: format!("pod-{uid}"),
        image_name: "web:1".into(),
        image: Image::default(),
        argv: ["/bin/sh", "-c", script].map(String::from).to_vec(),
        env: Vec::new(),
        working_dir: String::new(),
        mounts: Vec::new(),
        resources: Resources::default(),
        // a port below 1024 needs root
        security: Security { capabilities: vec!["CAP_NET_BIND_SERVICE".into()], ..Default::default() },
        qos: QosClass::BestEffort,
        stop_signal: "SIGTERM".into(),
        termination_message: TerminationMessage::default(),
        console: Console::default(),
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An iptables that is found before the machine's, and waits before it deletes a rule while a file says so.
/// Returns that file, and one that exists once it waits.
fn iptables_that_waits(machine: &Machine) -> (PathBuf, PathBuf) {
    let (wait, reached) = (machine.scratch.join("wait"), machine.scratch.join("reached"));
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *'-D POSTROUTING'*) while [ -e {} ]; do touch {}; sleep 0.02; done;; esac\n\
         exec /usr/sbin/iptables \"$@\"\n",
        wait.display(),
        reached.display()
    );
    output("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/usr/local/sbin"]);
    fs::write("/usr/local/sbin/iptables", text).unwrap();
    fs::set_permissions("/usr/local/sbin/iptables", fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&wait, "").unwrap();
    (wait, reached)
}

/// Another process of this test that has a pod, and removes it if `what` says so.
fn agent_process_for(machine: &Machine, what: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "network::agent_process", "--nocapture", "--test-threads=1"])
        .env(MACHINE, machine.scratch.path())
        .env(WHAT, what)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Checks that no interface, address, rule or namespace of a pod is left.
#[track_caller]
fn assert_no_network_is_left(machine: &Machine) {
    let links = output("ip", &["-o", "link"]);
    assert!(!links.contains("veth"), "{links}");
    let reserved = fs::read_dir(addresses(machine).join("kedge")).into_iter().flatten().flatten();
    let reserved: Vec<String> = reserved.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let is_address = |name: &&String| name.starts_with("10.");
    assert!(!reserved.iter().any(|name| is_address(&name)), "{reserved:?}");
    let rules = output("/usr/sbin/iptables", &["-t", "nat", "-S"]);
    let of_pods = rules.lines().filter(|rule| rule.contains("CNI-") && !rule.contains("CNI-HOSTPORT-"));
    assert_eq!(of_pods.collect::<Vec<_>>(), [""; 0]);
    let kept = fs::read_dir(machine.scratch.join("networks")).into_iter().flatten().flatten();
    assert_eq!(kept.map(|entry| entry.file_name()).collect::<Vec<_>>(), [""; 0]);
    machine.assert_nothing_is_left();
}

#[test]
fn pods_reach_each_other_and_a_host_port_leads_in() {
    isolated_network("network::pods_reach_each_other_and_a_host_port_leads_in", || {
        let machine = Machine::new();
        configure(&machine);
        let mut agent = Agent::of(&machine);
        let [server] = &agent.prepare("uid-a", Some(8080))[..] else { panic!("one address") };
        let [client] = &agent.prepare("uid-b", None)[..] else { panic!("one address") };
        assert!(server.starts_with("10.85.0.") && client.starts_with("10.85.0.") && server != client);
        agent.run("uid-a", "while :; do echo hello from $(hostname) | /bin/busybox nc -l -p 80; done");
        let ask = format!(
            "until /bin/busybox nc {server} 80 </dev/null; do sleep 0.1; done; cat /etc/hosts; sleep 1000"
        );
        agent.run("uid-b", &ask);
        let log = machine.scratch.join("logs/prod_pod-uid-b_uid-b/main/0.log");
        let own = format!("{client}\tpod-uid-b");
        wait_until("an answer from the other pod, and an entry of its own", LIMIT, || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.contains("hello from pod-uid-a") && text.contains(&own)
        });
        wait_until("an answer at the host's port", LIMIT, || {
            let mut text = String::new();
            let read =
                TcpStream::connect("10.85.0.1:8080").and_then(|mut stream| stream.read_to_string(&mut text));
            read.is_ok() && text == "hello from pod-uid-a\n"
        });
        // another agent knows them, and ends them
        drop(agent);
        let mut next = Agent::of(&machine);
        assert_eq!(next.found(), [Some(vec![server.clone()]), Some(vec![client.clone()])]);
        next.end("uid-a");
        next.end("uid-b");
        assert_no_network_is_left(&machine);
    });
}

/// A program that answers each datagram with its own words, and one that sends until it has an answer.
const ANSWERS: &str = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Proto => \"udp\", LocalPort => 81) or die $!; \
    while ($s->recv($_, 99)) { $s->send(\"$_ answered\") }'";
const ASKS: &str = "perl -MIO::Socket::INET -e '$| = 1; $s = IO::Socket::INET->new(Proto => \"udp\", PeerAddr => \"SERVER:81\") or die $!; \
    $SIG{ALRM} = sub { $s->send(\"from a pod\"); alarm 1 }; $s->send(\"from a pod\"); alarm 1; \
    until ($s->recv($_, 99)) {} alarm 0; print \"$_\\n\"; sleep 1000'";

#[test]
fn pods_and_their_node_reach_a_pod_by_udp() {
    isolated_network("network::pods_and_their_node_reach_a_pod_by_udp", || {
        let machine = Machine::new();
        configure(&machine);
        let image = machine.scratch.join("image");
        add_program(&image, "/usr/bin/perl");
        add_perl_modules(&image);
        let mut agent = Agent::of(&machine);
        let [server] = &agent.prepare("uid-a", None)[..] else { panic!("one address") };
        agent.prepare("uid-b", None);
        agent.run("uid-a", ANSWERS);
        agent.run("uid-b", &ASKS.replace("SERVER", server));
        let log = machine.scratch.join("logs/prod_pod-uid-b_uid-b/main/0.log");
        wait_until("an answer to a pod", LIMIT, || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("from a pod answered"))
        });
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        wait_until("an answer to the node", LIMIT, || {
            let mut text = [0; 99];
            socket.send_to(b"from the node", format!("{server}:81")).unwrap();
            socket.recv(&mut text).is_ok_and(|count| text[..count] == *b"from the node answered")
        });
        for pod in ["uid-a", "uid-b"] {
            agent.end(pod);
        }
        assert_no_network_is_left(&machine);
    });
}

/// Where this machine's perl looks for its own modules, as far as they are there.
fn add_perl_modules(image: &Path) {
    let listed = Command::new("perl").args(["-e", "print join qq(\\n), grep { -d } @INC"]).output().unwrap();
    for directory in String::from_utf8(listed.stdout).unwrap().lines() {
        // the modules of perl-base are some megabytes; those of other packages are not needed
        if directory.contains("perl-base") {
            let to = image.join(directory.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            assert!(Command::new("cp").args(["-r", directory]).arg(&to).status().unwrap().success());
        }
    }
    assert!(Command::new("chmod").args(["-R", "a+rX"]).arg(image).status().unwrap().success());
}

/// Not a test of its own: the process that is killed while a plugin runs.
#[test]
fn agent_process() {
    let Some(scratch) = std::env::var_os(MACHINE) else { return };
    let machine = Machine::existing(Path::new(&scratch));
    let mut agent = Agent::of(&machine);
    agent.prepare("uid-a", Some(8080));
    if std::env::var_os(WHAT).is_some_and(|what| what == "remove") {
        agent.remove("uid-a");
    }
}

#[test]
fn agent_killed_between_two_plugins_leaks_nothing() {
    isolated_network("network::agent_killed_between_two_plugins_leaks_nothing", || {
        let machine = Machine::new();
        configure(&machine);
        let (wait, reached) = (machine.scratch.join("plugins/wait"), machine.scratch.join("plugins/reached"));
        for step in ["step0", "step1", "step2"] {
            fs::write(&wait, step).unwrap();
            let mut agent = agent_process_for(&machine, "prepare");
            wait_until("the plugin that waits", LIMIT, || reached.exists());
            agent.kill().unwrap();
            agent.wait().unwrap();
            fs::remove_file(&reached).unwrap();
            fs::remove_file(&wait).unwrap();
            let mut next = Agent::of(&machine);
            assert_eq!(next.found(), [None], "{step}: it was not prepared to the end");
            // a wanted pod gets its network, another pod ends
            if step != "step1" {
                assert_eq!(next.prepare("uid-a", Some(8080)).len(), 1);
            }
            next.remove("uid-a");
            assert_eq!(next.0.workloads().pods(), []);
            assert_no_network_is_left(&machine);
        }
    });
}

/// A plugin must not be killed halfway, because no other process would know its half of the work: it keeps
/// running, and the next agent waits for its end.
#[test]
fn agent_killed_within_a_plugin_leaks_nothing() {
    isolated_network("network::agent_killed_within_a_plugin_leaks_nothing", || {
        let machine = Machine::new();
        configure(&machine);
        let (wait, reached) = iptables_that_waits(&machine);
        let mut agent = agent_process_for(&machine, "remove");
        wait_until("a plugin that deletes a rule", LIMIT, || reached.exists());
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert_eq!(plugins(), 1, "it goes on");
        let mut next = Agent::of(&machine);
        fs::remove_file(wait).unwrap();
        wait_until("the plugin's own end", LIMIT, || plugins() == 0);
        next.remove("uid-a");
        assert_no_network_is_left(&machine);
    });
}

/// The plugins that run.
fn plugins() -> usize {
    crate::setup::processes("bridge").len()
}

#[test]
fn plugin_killed_within_its_deletion_leaves_no_rules() {
    isolated_network("network::plugin_killed_within_its_deletion_leaves_no_rules", || {
        let machine = Machine::new();
        configure(&machine);
        let mut agent = Agent::of(&machine);
        agent.prepare("uid-a", Some(8080));
        let (wait, reached) = iptables_that_waits(&machine);
        let remove = PodAction::RemovePod { pod: PodUid::new("uid-a").unwrap(), keep_logs: true };
        assert_eq!(agent.0.perform(&remove).unwrap(), []);
        wait_until("a plugin that deletes a rule", LIMIT, || reached.exists());
        output(
            "sh",
            &[
                "-c",
                "for it in /proc/[0-9]*; do grep -q ^bridge $it/comm && kill -KILL ${it#/proc/}; done; :",
            ],
        );
        let mut events = Vec::new();
        while events.is_empty() {
            events = agent.0.observe(LIMIT);
        }
        assert!(matches!(events[..], [PodEvent::Failed { .. }]), "{events:?}");
        fs::remove_file(wait).unwrap();
        agent.remove("uid-a");
        assert_no_network_is_left(&machine);
    });
}

/// The run directory is lost, by a person or by a boot, but the addresses of its pods are still recorded on
/// the disk.
#[test]
fn lost_run_directory_gives_its_addresses_back() {
    isolated_network("network::lost_run_directory_gives_its_addresses_back", || {
        let machine = Machine::new();
        configure(&machine);
        for (is_known, is_wanted) in [(true, false), (true, true), (false, false), (false, true)] {
            let mut agent = Agent::of(&machine);
            let before = agent.prepare("uid-a", Some(8080));
            drop(agent);
            let run = machine.settings.run.join("pods/uid-a");
            for place in ["net", "uts", "ipc", "shm", "files"] {
                output("umount", &[run.join(place).to_str().unwrap()]);
            }
            fs::remove_dir_all(run).unwrap();
            let kept = machine.scratch.join("networks/uid-a.json");
            if !is_known {
                fs::write(&kept, "{").unwrap();
            }
            let mut next = Agent::of(&machine);
            assert_eq!(next.found(), [None], "it is known, and not prepared");
            if is_wanted {
                let after = next.prepare("uid-a", Some(8080));
                assert_eq!((before.len(), after.len()), (1, 1));
            }
            next.remove("uid-a");
            assert_no_network_is_left(&machine);
        }
    });
}

#[test]
fn pod_that_lost_its_record_keeps_its_network() {
    isolated_network("network::pod_that_lost_its_record_keeps_its_network", || {
        let machine = Machine::new();
        configure(&machine);
        let mut agent = Agent::of(&machine);
        let before = agent.prepare("uid-a", None);
        agent.run("uid-a", "exec sleep 86412");
        drop(agent);
        fs::remove_file(machine.settings.run.join("pods/uid-a/order.json")).unwrap();
        let mut next = Agent::of(&machine);
        assert_eq!(next.found(), [None]);
        assert_eq!(next.prepare("uid-a", None), before);
        assert_eq!(crate::setup::processes("86412").len(), 1, "its container goes on");
        // without its namespace it is apart from the next network: that is not made beside it
        let namespace = machine.settings.run.join("pods/uid-a/net");
        output("umount", &[namespace.to_str().unwrap()]);
        let events = next.0.perform(&PodAction::PreparePod(Box::new(sandbox("uid-a", None)))).unwrap();
        let mut answers = events;
        while answers.is_empty() {
            answers = next.0.observe(LIMIT);
        }
        let [PodEvent::Failed { failure, .. }] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(failure.reason, FailureReason::Network, "{}", failure.message);
        let key = container("uid-a", "").key;
        let stop = PodAction::StopContainer { container: key, signal: None, grace: Duration::ZERO };
        let events = next.0.perform(&stop).unwrap();
        next.awaits_state(events, |state| matches!(state, ContainerState::Exited(_)));
        assert_eq!(next.prepare("uid-a", None).len(), 1);
        next.0.workloads().remove_container(&id_of("uid-a")).unwrap();
        next.remove("uid-a");
        assert_no_network_is_left(&machine);
    });
}

fn id_of(uid: &str) -> kedge_platform::workloads::ContainerId {
    kedge_platform::workloads::ContainerId { pod: uid.into(), name: "main".into(), attempt: 0 }
}
