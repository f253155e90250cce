//! Networks of pods: finds the configuration, and runs its plugins on a thread of their own.
//!
//! Always holds: plugins run one after another, so two never disturb each other; a hanging plugin delays pods
//! that wait for a network, and no others. After a failed or interrupted ADD, DEL of all plugins undoes it,
//! the last plugin first; DEL continues after a failure and reports the first one. A plugin survives the
//! death of its agent, because only it knows which part of its work is done, and no other plugin runs before
//! it has ended; a plugin that is killed itself may leave a chain of rules that its DEL does not find, so the
//! chain is searched for. Leaves to others: when a pod is attached (`Performer`), the input of plugins and
//! the meaning of their answers (`kedge_core::workloads::cni`).

use crate::queue::{Receiver, Sender, channel};
use kedge_core::PodNetworks;
use kedge_core::pods::PodUid;
use kedge_core::sorted::SortedSet;
use kedge_core::workloads::cni::{self, Attachment, Ended, Network, Verb};
use kedge_platform::linux::read_named_file;
use kedge_platform::workloads::{Plugin, plugins_of_earlier_agents};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The directory of a kubelet with containerd.
const CONFIGURATIONS: &str = "/etc/cni/net.d";
/// The directories of plugins: of upstream's own packages, then of Debian's.
const PROGRAMS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// Longest time for a plugin: bridge takes 0.1 s; a DHCP server, or an agent that contacts its API server,
/// takes seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the plugins of a killed agent, and their child processes, may keep running: they usually end by
/// themselves in 0.1 s, on a slow board in a second.
const EARLIER_GRACE: Duration = Duration::from_secs(5);
/// Longest list of rules.
const RULES_BYTES: usize = 4 * 1024 * 1024;
/// The programs that list and change rules, by address family.
const IPTABLES: [(&str, &str); 2] = [("iptables", "iptables-restore"), ("ip6tables", "ip6tables-restore")];
/// Most names read in the directory of configurations.
const NAMES: usize = 1000;
/// Room for parsing an answer of 64 KiB. Only pages in use become memory.
const STACK_BYTES: usize = 256 * 1024;

/// The sources of pods' network.
#[derive(Debug, Clone)]
pub struct Plugins {
    /// The directory of configurations.
    pub configurations: PathBuf,
    /// The directories of plugins, the first one first.
    pub programs: Vec<PathBuf>,
    /// How long a plugin may take.
    pub limit: Duration,
}

impl Default for Plugins {
    /// The places on a node.
    fn default() -> Self {
        let programs = PROGRAMS.map(PathBuf::from).into();
        Self { configurations: CONFIGURATIONS.into(), programs, limit: LIMIT }
    }
}

impl Plugins {
    /// Whether pods can have a network of their own.
    pub(crate) fn look(&self) -> PodNetworks {
        match self.network() {
            Ok(network) => PodNetworks::Ready(network.name),
            Err(why) => PodNetworks::NotReady(why),
        }
    }

    /// The first configuration by name, whose plugins all exist.
    ///
    /// # Errors
    /// The configuration is missing or unusable: why.
    pub fn network(&self) -> Result<Network, String> {
        let directory = &self.configurations;
        let listed = match directory.read_dir() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("cannot list {}: {error}", directory.display()));
            }
            listed => listed.into_iter().flatten().flatten().take(NAMES),
        };
        let name = cni::first_config(listed.filter_map(|entry| entry.file_name().into_string().ok()))
            .ok_or_else(|| format!("no network config found in {}", directory.display()))?;
        let path = directory.join(&name);
        let text = read_named_file(&path, cni::CONFIG_BYTES).map_err(|error| crate::errors::chain(&error))?;
        let network = Network::read(&name, &text).map_err(|why| format!("{}: {why}", path.display()))?;
        network.programs().try_for_each(|program| self.find(program).map(drop))?;
        Ok(network)
    }

    fn find(&self, program: &str) -> Result<PathBuf, String> {
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        let found = self.programs.iter().map(|directory| directory.join(program)).find(is_program);
        found.ok_or_else(|| {
            let places: Vec<String> = self.programs.iter().map(|place| place.display().to_string()).collect();
            format!("failed to find plugin {program:?} in path [{}]", places.join(" "))
        })
    }
}

/// A pod to be attached or detached, by its namespace; `None` if that is gone.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) pod: PodUid,
    pub(super) verb: Verb,
    pub(super) attachment: Attachment,
    pub(super) namespace: Option<PathBuf>,
}

/// The outcome of an order: for ADD the result of the last plugin.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) pod: PodUid,
    pub(super) done: Result<Value, String>,
}

/// Called when there is an answer.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The channel to the thread, which starts with the first order.
pub(super) struct Networks {
    pub(super) plugins: Plugins,
    lock: PathBuf,
    wake: Wake,
    orders: Option<Sender<Order>>,
    answers: (Sender<Answer>, Receiver<Answer>),
}

impl Networks {
    /// `lock`: a file that is locked while a plugin runs.
    pub(super) fn new(plugins: Plugins, lock: PathBuf, wake: Wake) -> Self {
        Self { plugins, lock, wake, orders: None, answers: channel() }
    }

    /// Passes on an order, which is answered later.
    ///
    /// # Errors
    /// The system gives no thread now.
    pub(super) fn order(&mut self, order: Order) -> Result<(), String> {
        let orders = match &self.orders {
            Some(orders) => orders,
            None => {
                let begun =
                    self.begin().map_err(|error| format!("cannot start the thread of networks: {error}"))?;
                self.orders.insert(begun)
            }
        };
        orders.send(order).map_err(|_| "the thread of networks has ended".to_owned())
    }

    fn begin(&self) -> io::Result<Sender<Order>> {
        let (orders, incoming) = channel::<Order>();
        let (plugins, lock_at, whole) = (self.plugins.clone(), self.lock.clone(), SortedSet::new());
        let mut worker = Worker { plugins, lock_at, lock: None, whole };
        let (answers, wake) = (self.answers.0.clone(), self.wake.clone());
        std::thread::Builder::new().name("networks".into()).stack_size(STACK_BYTES).spawn(move || {
            while let Ok(order) = incoming.recv() {
                let done = worker.perform(&order);
                let _ = answers.send(Answer { pod: order.pod, done });
                wake();
            }
        })?;
        Ok(orders)
    }

    /// An answer, if there is one.
    pub(super) fn answer(&self) -> Option<Answer> {
        self.answers.1.try_recv().ok()
    }
}

/// The thread that runs plugins.
struct Worker {
    plugins: Plugins,
    lock_at: PathBuf,
    /// Locked by us; `None` before the first plugin.
    lock: Option<File>,
    /// Pods that this worker attached without a failure.
    whole: SortedSet<PodUid>,
}

impl Worker {
    fn perform(&mut self, order: &Order) -> Result<Value, String> {
        self.take_lock()?;
        let is_whole = self.whole.remove(&order.pod);
        match order.verb {
            Verb::Add => {
                let done = self.attach(order);
                if done.is_ok() {
                    self.whole.insert(order.pod.clone());
                }
                done
            }
            Verb::Delete => {
                let mut done = self.detach(order);
                if done.is_err() || !is_whole {
                    done = done.and(self.remove_chain(&order.attachment));
                }
                done.map(|()| Value::Null)
            }
        }
    }

    /// Removes the rules of a plugin that was killed: DEL finds them by the pod's link, which it removes
    /// first.
    fn remove_chain(&self, attachment: &Attachment) -> Result<(), String> {
        if !attachment.network.masquerades() {
            return Ok(());
        }
        let chain = masquerade_chain(&attachment.network.name, &attachment.container_id);
        for (program, restore) in IPTABLES {
            let call = |program, arguments, input: &str| {
                let plugin = Plugin {
                    program: Path::new(program),
                    arguments,
                    environment: &[],
                    input: input.as_bytes(),
                    limit: self.plugins.limit,
                    answer_bytes: RULES_BYTES,
                    lock: self.lock.as_ref(),
                };
                plugin.run()
            };
            // a machine without the program or the table has no such rules
            let Ok(list) = call(program, &["-w", "-t", "nat", "-S"], "") else { continue };
            let Some(undo) = cni::without_chain(&String::from_utf8_lossy(&list.stdout), &chain) else {
                continue;
            };
            let undone = call(restore, &["-w", "--noflush"], &undo).map_err(|error| error.to_string());
            let failed = undone.and_then(|output| match output.failure {
                None => Ok(()),
                Some(how) => Err(format!("{how}: {}", String::from_utf8_lossy(&output.stderr).trim())),
            });
            failed.map_err(|why| format!("{restore} did not remove chain {chain}: {why}"))?;
        }
        Ok(())
    }

    fn take_lock(&mut self) -> Result<(), String> {
        if self.lock.is_none() {
            let path = &self.lock_at;
            let taken = plugins_of_earlier_agents(path, EARLIER_GRACE);
            let taken = taken.map_err(|error| format!("cannot lock {}: {error}", path.display()))?;
            let why =
                || format!("a network plugin that an earlier agent started still runs ({})", path.display());
            self.lock = Some(taken.ok_or_else(why)?);
        }
        Ok(())
    }

    fn attach(&self, order: &Order) -> Result<Value, String> {
        let mut result = None;
        for (number, program) in order.attachment.network.programs().enumerate() {
            match self.run(order, Verb::Add, (number, program), result.as_ref()) {
                Ok(answer) => result = Some(answer),
                Err(why) => return Err(self.undo(order, why)),
            }
        }
        let attached = order.attachment.clone().attached(result.unwrap_or_default());
        match attached.addresses() {
            Ok(_) => Ok(attached.result.unwrap_or_default()),
            Err(why) => Err(self.undo(order, why)),
        }
    }

    /// Undoes an ADD after a failure, and returns the text of both.
    fn undo(&self, order: &Order, why: String) -> String {
        match self.detach(order) {
            Ok(()) => why,
            Err(error) => format!("{why}; undoing it failed, too: {error}"),
        }
    }

    fn detach(&self, order: &Order) -> Result<(), String> {
        let attachment = &order.attachment;
        let mut failed = None;
        for (number, program) in attachment.network.programs().enumerate().rev() {
            if let Err(why) = self.run(order, Verb::Delete, (number, program), attachment.result.as_ref()) {
                failed.get_or_insert(why);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Runs one plugin.
    fn run(
        &self,
        order: &Order,
        verb: Verb,
        (number, program): (usize, &str),
        previous: Option<&Value>,
    ) -> Result<Value, String> {
        let attachment = &order.attachment;
        let namespace =
            order.namespace.as_deref().map_or_else(String::new, |path| path.display().to_string());
        let places = std::env::join_paths(&self.plugins.programs).unwrap_or_default();
        let environment = [
            ("CNI_COMMAND", verb.command().to_owned()),
            ("CNI_CONTAINERID", attachment.container_id.clone()),
            ("CNI_NETNS", namespace),
            ("CNI_IFNAME", cni::INTERFACE.to_owned()),
            ("CNI_ARGS", attachment.arguments.clone()),
            ("CNI_PATH", places.to_string_lossy().into_owned()),
        ];
        let plugin = Plugin {
            program: &self.plugins.find(program)?,
            arguments: &[],
            environment: &environment,
            input: &attachment.input(verb, number, previous),
            limit: self.plugins.limit,
            answer_bytes: cni::ANSWER_BYTES,
            lock: self.lock.as_ref(),
        };
        let output = plugin.run().map_err(|error| cni::failure(verb, program, &error.to_string()))?;
        let ended = Ended { failure: output.failure, stdout: output.stdout, stderr: output.stderr };
        cni::answer(verb, program, &ended)
    }
}

/// The name of a pod's chain, as upstream's plugins compose it.
fn masquerade_chain(network: &str, container_id: &str) -> String {
    const LENGTH: usize = 28;
    let digest = hex_digest(&ring::digest::SHA512, &format!("{network}{container_id}"));
    let mut chain = format!("CNI-{digest}");
    chain.truncate(LENGTH);
    chain
}

/// A digest in hexadecimal digits.
pub(super) fn hex_digest(algorithm: &'static ring::digest::Algorithm, text: &str) -> String {
    let digest = ring::digest::digest(algorithm, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
