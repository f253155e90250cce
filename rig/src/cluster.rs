//! A hub, its nodes, and the view of them, for `make try` and the end-to-end tests.
//!
//! Owns a scratch directory with everything in it. Always holds: changes are made with kubectl, and waits
//! depend only on the API; the processes end before their directory is removed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, AgentOptions};
use crate::error::RigError;
use crate::hub::Hub;
use crate::kubectl::Kubectl;
use crate::scratch::Scratch;
use crate::view::{View, World};

/// Longest additional time of any act, on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The first two lines of every payload.
pub const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// The source of a node's configuration, as in `spec.configSource`.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// One object by its UID, in namespace default; an edit in place is not followed.
    Pinned {
        /// The ConfigMap's name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// The present content of the ConfigMap of this name in namespace default.
    Following {
        /// The ConfigMap's name.
        name: String,
    },
    /// None: the node's local configuration.
    Nil,
    /// Anything else.
    Raw(Value),
}

impl Source {
    /// The JSON of `spec.configSource`.
    pub fn to_value(&self) -> Value {
        match self {
            Source::Pinned { name, uid } => {
                json!({"configMapRef": {"namespace": "default", "name": name, "uid": uid}})
            }
            Source::Following { name } => {
                json!({"configMap": {"namespace": "default", "name": name, "kubeletConfigKey": "kubelet"}})
            }
            Source::Nil => Value::Null,
            Source::Raw(value) => value.clone(),
        }
    }

    /// The arguments of the kubectl command that assigns it to a node whose source does not have the other
    /// form.
    pub fn assign_arguments(&self, node: &str) -> Vec<String> {
        let patch = json!({"spec": {"configSource": self.to_value()}});
        ["patch", "node", node, "-p", &patch.to_string()].map(str::to_owned).to_vec()
    }
}

/// Sets a node's `spec.configSource`, whatever it was before.
///
/// # Errors
/// kubectl fails.
pub fn assign(kubectl: &Kubectl, node: &str, source: &Source) -> Result<(), RigError> {
    let mut value = source.to_value();
    // a patch keeps fields that it does not contain, so the other form must be removed explicitly
    if let Some(fields) = value.as_object_mut() {
        for form in ["configMap", "configMapRef"] {
            fields.entry(form).or_insert(Value::Null);
        }
    }
    let patch = json!({"spec": {"configSource": value}}).to_string();
    kubectl.run(&["patch", "node", node, "--type=merge", "-p", &patch]).map(|_| ())
}

/// The arguments of the kubectl command that makes a ConfigMap from files, each under its key.
pub fn create_arguments(name: &str, payloads: &[(&str, &Path)]) -> Vec<String> {
    let from = payloads.iter().map(|(key, path)| format!("--from-file={key}={}", path.display()));
    ["create", "configmap", name].map(str::to_owned).into_iter().chain(from).collect()
}

/// The UID of a ConfigMap in namespace default.
pub fn uid_of(kubectl: &Kubectl, name: &str) -> Result<String, RigError> {
    let object = kubectl.json(&["get", "configmap", name])?;
    match object.pointer("/metadata/uid").and_then(Value::as_str) {
        Some(uid) => Ok(uid.to_owned()),
        None => Err(RigError::BadAnswer {
            command: format!("kubectl get configmap {name} -o json"),
            problem: "no metadata.uid".into(),
        }),
    }
}

/// `&[String]` as `&[&str]`, for kubectl.
pub fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// A hub and nodes.
pub struct Cluster {
    // in this order, because the first one is dropped first
    view: View,
    agents: Vec<Agent>,
    hub: Hub,
    scratch: Scratch,
}

impl Cluster {
    /// Starts a hub without nodes.
    pub fn start(purpose: &str) -> Result<Cluster, RigError> {
        Cluster::start_with(purpose, &[])
    }

    /// The same with more flags of the hub.
    pub fn start_with(purpose: &str, flags: &[&str]) -> Result<Cluster, RigError> {
        Cluster::around(purpose, |dir| Hub::start(dir, flags))
    }

    /// The same with a hub on another address of this machine.
    pub fn start_at(purpose: &str, address: IpAddr) -> Result<Cluster, RigError> {
        Cluster::around(purpose, |dir| Hub::start_at(dir, address))
    }

    fn around(
        purpose: &str,
        start: impl FnOnce(&Path) -> Result<Hub, RigError>,
    ) -> Result<Cluster, RigError> {
        let scratch = Scratch::new(purpose)
            .map_err(|source| RigError::Io { tried: "make a temporary directory".into(), source })?;
        let hub = start(&scratch.path().join("hub"))?;
        let view = View::open(hub.kubectl())?;
        Ok(Cluster { view, agents: Vec::new(), hub, scratch })
    }

    /// Makes credentials and a directory for a node, and starts nothing yet.
    pub fn add(&mut self, name: &str, options: AgentOptions) -> Result<&mut Agent, RigError> {
        let kubeconfig = self.hub.node_kubeconfig(name)?;
        let agent = Agent::prepare(&self.scratch.path().join(name), name, &kubeconfig, options)?;
        self.agents.push(agent);
        Ok(self.agents.last_mut().expect("one was pushed"))
    }

    /// A node by name.
    ///
    /// # Panics
    /// No agent has this name, which the caller chose itself.
    pub fn agent(&self, name: &str) -> &Agent {
        self.agents.iter().find(|agent| agent.name() == name).expect("the node was added")
    }

    /// The same, to start and stop it.
    ///
    /// # Panics
    /// No agent has this name, which the caller chose itself.
    pub fn agent_mut(&mut self, name: &str) -> &mut Agent {
        self.agents.iter_mut().find(|agent| agent.name() == name).expect("the node was added")
    }

    /// All nodes.
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// The hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The hub, to stop and start it.
    pub fn hub_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }

    /// The view of the API.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> &Kubectl {
        self.hub.kubectl()
    }

    /// The directory that contains everything.
    pub fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    /// Writes a payload to a file for [`create_arguments`].
    pub fn payload_file(&self, name: &str, payload: &str) -> Result<PathBuf, RigError> {
        let path = self.scratch.path().join(format!("{name}.yaml"));
        std::fs::write(&path, payload).map_err(RigError::io("write", &path))?;
        Ok(path)
    }

    /// The UID of a ConfigMap.
    pub fn uid_of(&self, name: &str) -> Result<String, RigError> {
        uid_of(self.kubectl(), name)
    }

    /// Makes a ConfigMap with the payload in the key `kubelet`, and returns its UID.
    pub fn create_config(&self, name: &str, payload: &str) -> Result<String, RigError> {
        let path = self.payload_file(name, payload)?;
        self.kubectl().run(&borrowed(&create_arguments(name, &[("kubelet", &path)])))?;
        self.uid_of(name)
    }

    /// Edits the ConfigMap in place.
    pub fn edit_config(&self, name: &str, payload: &str) -> Result<(), RigError> {
        let patch = json!({"data": {"kubelet": payload}}).to_string();
        self.kubectl().run(&["patch", "configmap", name, "--type=merge", "-p", &patch]).map(|_| ())
    }

    /// Sets a node's `spec.configSource`, whatever it was before.
    pub fn assign(&self, node: &str, source: &Source) -> Result<(), RigError> {
        assign(self.kubectl(), node, source)
    }

    /// Waits until the API shows it.
    pub fn wait(&self, awaited: &str, is_so: impl Fn(&World) -> bool) -> Result<(), RigError> {
        self.view.wait_for(awaited, PATIENCE, is_so)
    }

    /// Stops the agents; containers continue to run.
    pub fn stop_agents(&mut self) -> Result<(), RigError> {
        self.agents.iter_mut().try_for_each(Agent::stop)
    }

    /// Stops all processes properly.
    pub fn close(mut self) -> Result<(), RigError> {
        self.stop_agents()?;
        self.hub.stop()
    }
}
