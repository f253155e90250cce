//! `kedge join`: makes this machine a node of a cluster, by one line and a token.
//!
//! It verifies the cluster (`discovery`), writes the agent's bootstrap kubeconfig, starts the agent, and
//! shows what the node waits for until it is Ready. The agent makes the key and asks for the certificate; it
//! does so without this command, and continues when this ends. Always holds: nothing is written before every
//! check has passed. A node that has joined is neither moved to another cluster nor renamed. A repeated line
//! ends with the same result. The token is in no output.

pub(crate) mod bootstrap;
pub mod discovery;
mod token;
mod waiting;

use crate::local::client;
use crate::net::kubeconfig::{self, ServerAddress};
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::WallClock;
use crate::node_name;
use crate::options::JoinOptions;
use crate::output::{CommandError, print};
use crate::service;
use discovery::{Authorities, Fault, Pin};
use kedge_platform::HostFacts as _;
use kedge_platform::linux::{LinuxHost, Roots};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use token::Token;
use waiting::{Step, step};

/// Pause between looks at the agent, and between tries to reach the server.
const PAUSE: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_secs(2);
/// A new wait is shown at once, the same one again after this time.
const REPEAT: Duration = Duration::from_secs(10);

/// The names of freshly installed machines: two of them in one cluster would be one node.
const EVERYBODYS: [&str; 5] = ["localhost", "raspberrypi", "debian", "ubuntu", "kedge"];

/// `kedge join`.
///
/// # Errors
/// The node did not join, or was not Ready in time. The text names what to do.
pub fn run(options: &JoinOptions) -> Result<(), CommandError> {
    join(options).map_err(CommandError::new)
}

fn join(options: &JoinOptions) -> Result<(), String> {
    let end = Instant::now() + options.timeout;
    let server =
        kubeconfig::parse_server(&options.server).map_err(|why| format!("the server's URL {why}"))?;
    let (node, is_hosts) = name(options)?;
    let from = if is_hosts { " (this machine's host name; --node-name gives another)" } else { "" };
    print(format_args!("node {node}{from} joins {}", server.url()));
    let places = Places::of(options);
    let mut said = Said::default();
    if places.is_joined(&server, &node, &options.pins)? && places.is_in_contact(&node) {
        print("this node has joined already: nothing is written, and the token is not used");
    } else {
        let token = Token::read(&options.token_file)?;
        let authorities = discover(options, &server, &token, end, &mut said)?;
        print("the server is the one that the line names");
        let text = bootstrap::text(&server, &authorities.text, &node, &token);
        bootstrap::write(&places.bootstrap, &text)?;
        print(format_args!("{} is written: the agent asks for its certificate", places.bootstrap.display()));
    }
    places.start_agent()?;
    loop {
        match step(places.report().as_ref(), &node) {
            Step::Ready => {
                print(format_args!("node {node} is Ready"));
                return Ok(());
            }
            Step::Over(why) => return Err(why),
            Step::Waits(what) => said.say(&format!("waits {what}")),
        }
        if Instant::now() >= end {
            return Err(format!(
                "not Ready within {} s; the agent goes on trying: kedge status, kedge doctor",
                options.timeout.as_secs()
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The node's name, and whether it is the host's.
fn name(options: &JoinOptions) -> Result<(String, bool), String> {
    match (&options.node_name, &options.agent.node_name) {
        (Some(name), Some(flag)) if name != flag => Err(format!(
            "--node-name is {name}, and --hostname-override in {} is {flag}: take one of them out",
            service::ENVIRONMENT_FILE
        )),
        (Some(name), _) | (None, Some(name)) => Ok((name.clone(), false)),
        (None, None) => {
            let host = LinuxHost::new(Roots::default(), &options.agent.places.root_dir).identity().hostname;
            let name = host.to_lowercase();
            crate::flags::check_node_name(&name)
                .map_err(|error| format!("{error}; --node-name gives the node's name"))?;
            match EVERYBODYS.contains(&name.as_str()) {
                true => Err(format!(
                    "this machine is called {name}, as any new one: --node-name NAME gives the node a name of its own"
                )),
                false => Ok((name, true)),
            }
        }
    }
}

/// Tries until the server answers.
fn discover(
    options: &JoinOptions,
    server: &ServerAddress,
    token: &Token,
    end: Instant,
    said: &mut Said,
) -> Result<Authorities, String> {
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock: WallClock = Arc::new(move || wall().max(kedge_api::EARLIEST_NOW));
    let proxies = ProxyEnvironment::of_process();
    loop {
        match discovery::discover(server, token, &options.pins, &clock, &proxies) {
            Ok(authorities) => return Ok(authorities),
            Err(Fault::Final(why)) => return Err(format!("{why} (nothing is written)")),
            Err(Fault::NoAnswer(why)) if Instant::now() + RETRY >= end => {
                return Err(format!(
                    "no connection within {} s: {why} (nothing is written)",
                    options.timeout.as_secs()
                ));
            }
            Err(Fault::NoAnswer(why)) => said.say(&format!("waits for a connection: {why}")),
        }
        std::thread::sleep(RETRY);
    }
}

/// The lines shown while it waits.
#[derive(Default)]
struct Said(Option<(String, Instant)>);

impl Said {
    fn say(&mut self, text: &str) {
        let is_same = |(said, at): &(String, Instant)| said == text && at.elapsed() < REPEAT;
        if !self.0.as_ref().is_some_and(is_same) {
            print(text);
            self.0 = Some((text.to_owned(), Instant::now()));
        }
    }
}

/// The files of this node's identity, and its agent.
struct Places {
    kubeconfig: PathBuf,
    /// Where the agent keeps the certificates that it was given.
    issued: PathBuf,
    bootstrap: PathBuf,
    socket: PathBuf,
}

impl Places {
    fn of(options: &JoinOptions) -> Self {
        let agent = &options.agent;
        let or = |path: &Option<PathBuf>, other: &str| path.clone().unwrap_or_else(|| other.into());
        Self {
            kubeconfig: or(&agent.kubeconfig, service::KUBECONFIG),
            issued: agent.places.root_dir.join("pki/kubeconfig"),
            bootstrap: or(&agent.bootstrap_kubeconfig, service::BOOTSTRAP_KUBECONFIG),
            socket: agent.places.socket(),
        }
    }

    /// Whether there is an identity already. A bootstrap kubeconfig is none: it may be from a try with a
    /// wrong address.
    fn is_joined(&self, server: &ServerAddress, node: &str, pins: &[Pin]) -> Result<bool, String> {
        let found = [&self.issued, &self.kubeconfig].into_iter().find_map(|path| kubeconfig::load(path).ok());
        let Some(own) = found else { return Ok(false) };
        let is_same = own.server == *server || own.roots.iter().any(|root| discovery::is_pinned(root, pins));
        let name = node_name::of_kubeconfig(&own);
        let is_named = name.as_deref().is_none_or(|name| name == node);
        if is_same && is_named {
            return Ok(true);
        }
        Err(format!(
            "this machine is node {} of {} (by {}). To leave: on that hub \"kedge-hub node decommission {0}\", here \
             \"systemctl stop kedge; rm -rf {} {} {}\"; then give this line again",
            name.as_deref().unwrap_or(node),
            own.server.url(),
            own.path.display(),
            self.kubeconfig.display(),
            self.bootstrap.display(),
            self.issued.parent().unwrap_or(Path::new("")).display(),
        ))
    }

    fn report(&self) -> Option<Value> {
        let answer = client::get(&self.socket, "/status").ok().filter(|answer| answer.status == 200)?;
        serde_json::from_slice(&answer.body).ok()
    }

    fn is_in_contact(&self, node: &str) -> bool {
        self.report().is_some_and(|report| report["node"] == node && report["contact"]["state"] == "made")
    }

    /// Starts the service, if no agent runs.
    fn start_agent(&self) -> Result<(), String> {
        let answer = client::get(&self.socket, "/healthz");
        match answer {
            Err(client::AskError::NotRunning { .. }) => {}
            Err(error @ client::AskError::Denied { .. }) => return Err(error.to_string()),
            // it runs; whether it answers shows while we wait
            Ok(_) | Err(_) => return Ok(()),
        }
        if !Path::new("/run/systemd/system").is_dir() {
            print(format_args!(
                "no agent runs, and there is no systemd here: start kedge agent --kubeconfig {} --bootstrap-kubeconfig {}",
                self.kubeconfig.display(),
                self.bootstrap.display()
            ));
            return Ok(());
        }
        let is_enabled = systemctl(&["-q", "is-enabled", "kedge.service"]).is_ok();
        if !is_enabled {
            systemctl(&["enable", "kedge.service"])?;
        }
        systemctl(&["start", "--no-block", "kedge.service"])?;
        let enabled = if is_enabled { "" } else { "enabled and " };
        print(format_args!("the agent did not run: kedge.service is {enabled}started"));
        Ok(())
    }
}

fn systemctl(words: &[&str]) -> Result<(), String> {
    let done = Command::new("systemctl").args(words).output();
    let failed = |why: &str| format!("systemctl {}: {}", words.join(" "), why.trim());
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(failed(&String::from_utf8_lossy(&done.stderr))),
        Err(error) => Err(failed(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use kedge_core::kubelet::yaml::{self, Tree};
    use serde_json::Value;

    /// The objects of docs/kubernetes/join.yaml.
    fn objects() -> Vec<Value> {
        let file = include_str!("../../../docs/kubernetes/join.yaml");
        let parsed = file.split("\n---\n").map(|text| match yaml::parse(text.as_bytes()) {
            Ok(tree) => Tree::to_json(&tree),
            Err(error) => panic!("{error}:\n{text}"),
        });
        parsed.collect()
    }

    #[test]
    fn manifests_bind_what_upstream_calls_so() {
        let objects = objects();
        let bindings = objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding");
        let bound = bindings.map(|binding| {
            let (role, subjects) = (&binding["roleRef"]["name"], &binding["subjects"]);
            (
                role.as_str().unwrap(),
                subjects[0]["kind"].as_str().unwrap(),
                subjects[0]["name"].as_str().unwrap(),
            )
        });
        let csr = "system:certificates.k8s.io:certificatesigningrequests";
        assert_eq!(
            bound.collect::<Vec<_>>(),
            [
                ("system:node-bootstrapper", "Group", kedge_api::BOOTSTRAP_GROUP),
                (&format!("{csr}:nodeclient"), "Group", kedge_api::BOOTSTRAP_GROUP),
                (&format!("{csr}:selfnodeclient"), "Group", kedge_api::NODE_GROUP),
            ]
        );
    }

    #[test]
    fn policy_is_bound_and_judges_tokens_alone() {
        let objects = objects();
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
        let (policy, binding) = (of("ValidatingAdmissionPolicy"), of("ValidatingAdmissionPolicyBinding"));
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"][0], "Deny");
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let condition = spec["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(condition.contains(kedge_api::BOOTSTRAP_USER_PREFIX), "{condition}");
        // each variable is declared before it is used
        let mut known = Vec::new();
        let parts =
            spec["variables"].as_array().unwrap().iter().chain(spec["validations"].as_array().unwrap());
        for part in parts {
            let expression = part["expression"].as_str().unwrap();
            for used in expression.split("variables.").skip(1) {
                let name: String = used.chars().take_while(char::is_ascii_alphanumeric).collect();
                assert!(known.contains(&name), "{name} in {expression}");
            }
            known.extend(part["name"].as_str().map(str::to_owned));
        }
        // the subject of a request as the agent makes it is what the policy compares
        let names = spec["validations"][0]["expression"].as_str().unwrap();
        let organization: Vec<String> = kedge_api::NODE_GROUP.bytes().map(|byte| byte.to_string()).collect();
        assert!(names.contains(&format!("[{}]", organization.join(", "))), "{names}");
    }
}
