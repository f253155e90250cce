//! The basis of every section: a hub, agents with the defaults of a device, and a watch that records when
//! something was seen.
//!
//! Always holds: agents run under the babysitter with the limits of `kedge.service`, without the rig's
//! drop-in (short Leases); times are taken when the API server's answer arrives here.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use kedge_rig::agent::{Agent, AgentOptions, RIG_DROP_IN_FILE};
use kedge_rig::error::RigError;
use kedge_rig::hub::Hub;
use kedge_rig::programs;
use kedge_rig::scratch::Scratch;
use serde_json::Value;

use kedge_rig::client::{Connection, Identity};

/// Longest wait for any event.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The collection of heartbeats.
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The node's own drop-in in a section that changes nothing else: no health port, because several agents
/// share this machine, and no eviction because of this machine's full disk.
pub(crate) const PLAIN: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 0\nevictionHard: {nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}\n";

/// A hub in a directory of its own.
pub(crate) struct Setup {
    pub(crate) hub: Hub,
    pub(crate) admin: Identity,
    pub(crate) scratch: Scratch,
}

/// For `map_err` on errors of this program's own acts.
pub(crate) fn io(tried: &str) -> impl FnOnce(std::io::Error) -> RigError {
    let tried = tried.to_owned();
    move |source| RigError::Io { tried, source }
}

impl Setup {
    /// Starts the hub.
    pub(crate) fn open(purpose: &str) -> Result<Setup, RigError> {
        Setup::open_with(purpose, &[])
    }

    /// The same with additional flags.
    pub(crate) fn open_with(purpose: &str, flags: &[&str]) -> Result<Setup, RigError> {
        let scratch = Scratch::new(purpose).map_err(io("make a temporary directory"))?;
        let hub = Hub::start(&scratch.path().join("hub"), flags)?;
        Setup::around(hub, scratch)
    }

    /// A hub under callgrind, which dumps to `callgrind.PID.N` in the scratch directory.
    pub(crate) fn open_counted(purpose: &str, flags: &[&str]) -> Result<Setup, RigError> {
        let scratch = Scratch::new(purpose).map_err(io("make a temporary directory"))?;
        let out = scratch.path().join("callgrind.%p");
        let command = format!("{}{}", crate::cost::COUNTER, out.display());
        let program = wrapper(&scratch.path().join("kedge-hub-counted"), &command, "kedge-hub")?;
        let hub = Hub::start_program(&scratch.path().join("hub"), flags, program)?;
        Setup::around(hub, scratch)
    }

    fn around(hub: Hub, scratch: Scratch) -> Result<Setup, RigError> {
        let path = hub.kubectl().kubeconfig().to_owned();
        let kubeconfig = std::fs::read_to_string(&path).map_err(RigError::io("read", &path))?;
        let admin = Identity::read(&kubeconfig).map_err(io("read the administrator's kubeconfig"))?;
        Ok(Setup { hub, admin, scratch })
    }

    /// A connection as the administrator.
    pub(crate) fn connect(&self) -> Result<Connection, RigError> {
        self.admin.connect().map_err(io("connect to the hub"))
    }

    /// Watches a collection as the administrator.
    pub(crate) fn watch(&self, path: &str) -> Result<Watched, RigError> {
        Ok(Watched {
            receiver: self.admin.watch(path).map_err(io(&format!("watch {path}")))?,
            path: path.to_owned(),
        })
    }

    /// A node that is not started, with `drop_in` as its only local configuration. `program` runs in place of
    /// `kedge`.
    pub(crate) fn agent(&self, name: &str, program: &Path, drop_in: &str) -> Result<Agent, RigError> {
        let kubeconfig = self.hub.node_kubeconfig(name)?;
        self.agent_with(name, program, drop_in, &kubeconfig)
    }

    /// The same with these credentials.
    pub(crate) fn agent_with(
        &self,
        name: &str,
        program: &Path,
        drop_in: &str,
        kubeconfig: &str,
    ) -> Result<Agent, RigError> {
        let dir = self.scratch.path().join(name);
        let agent = Agent::prepare(&dir, name, kubeconfig, AgentOptions::new(program))?;
        agent.write_drop_in(RIG_DROP_IN_FILE, drop_in)?;
        Ok(agent)
    }

    /// A program that runs `command`, then `kedge` and its arguments, in place of `kedge`.
    pub(crate) fn wrapper(&self, name: &str, command: &str) -> Result<PathBuf, RigError> {
        wrapper(&self.scratch.path().join(name), command, "kedge")
    }
}

/// A node's credentials as an operator makes them; the n-th node connects from a loopback address of its own,
/// like nodes of a fleet.
pub(crate) fn identity(setup: &Setup, name: &str, number: usize) -> Result<Identity, RigError> {
    let kubeconfig = setup.hub.node_kubeconfig(name)?;
    let identity = Identity::read(&kubeconfig).map_err(io("read a node's kubeconfig"))?;
    Ok(identity.from_address(source(number)))
}

/// The n-th address of this machine from which a section connects: the hub limits each address.
pub(crate) fn source(number: usize) -> Ipv4Addr {
    let [.., high, low] = u32::try_from(number + 1).unwrap_or(u32::MAX).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Writes a script that runs `command`, then the program with the given arguments.
fn wrapper(path: &Path, command: &str, program: &str) -> Result<PathBuf, RigError> {
    let program = programs::built(program)?;
    let text = format!("#!/bin/sh\nexec {command} {} \"$@\"\n", program.display());
    std::fs::write(path, text).map_err(RigError::io("write", path))?;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).map_err(RigError::io("make executable", path))?;
    Ok(path.to_owned())
}

/// A watch and what it has received.
pub(crate) struct Watched {
    receiver: Receiver<(Instant, Value)>,
    path: String,
}

impl Watched {
    /// Forgets what was received so far.
    pub(crate) fn forget(&self) {
        while self.receiver.try_recv().is_ok() {}
    }

    /// Waits for an event about an object for which `is_it` returns true; returns the time of its arrival.
    pub(crate) fn wait(
        &self,
        awaited: &str,
        limit: Duration,
        mut is_it: impl FnMut(&Value) -> bool,
    ) -> Result<(Instant, Value), RigError> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
                Ok((at, event)) if is_it(&event["object"]) => return Ok((at, event)),
                Ok(_) => {}
                Err(why) => {
                    return Err(RigError::TimedOut {
                        awaited: format!("{awaited}, for {} s", limit.as_secs()),
                        found: format!("nothing on {} ({why})", self.path),
                    });
                }
            }
        }
    }

    /// The number of events about an object of this name since the last `forget`.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.receiver.try_iter().filter(|(_, event)| is_named(&event["object"], name)).count()
    }
}

/// True if an object has this name.
pub(crate) fn is_named(object: &Value, name: &str) -> bool {
    object["metadata"]["name"] == name
}

/// The main process of a node.
pub(crate) fn pid(agent: &Agent) -> Result<i32, RigError> {
    agent.babysitter().state().pid.ok_or_else(|| RigError::TimedOut {
        awaited: format!("a process of node {}", agent.name()),
        found: "none".into(),
    })
}

/// A helper process that ends with this value: its own program gets `SIGINT`, as from a terminal, so that it
/// can finish.
pub(crate) struct Helper {
    child: Child,
    name: String,
}

impl Helper {
    /// Starts it; it dies with us.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Result<Helper, RigError> {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", name])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io(&format!("start {name}")))?;
        Ok(Helper { child, name: name.to_owned() })
    }

    /// Ends it properly.
    pub(crate) fn stop(mut self) -> Result<(), RigError> {
        if let Some(status) = self.child.try_wait().map_err(io("wait for a helper"))? {
            return Err(RigError::Failed {
                command: self.name.clone(),
                status: status.to_string(),
                said: "it ended before it was asked to".into(),
            });
        }
        let id = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap_or(0));
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT)
            .map_err(|errno| RigError::Io { tried: format!("signal {}", self.name), source: errno.into() })?;
        self.child.wait().map_err(io("wait for a helper"))?;
        Ok(())
    }
}
