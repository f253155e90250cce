//! Networks of pods by CNI (containernetworking/cni, SPEC 0.3 to 1.1): which configuration is used, the input
//! of each plugin, and the meaning of its output.
//!
//! Always holds: pure. The first file by name is used, as for a kubelet with containerd, and an invalid one
//! is not skipped: the next one would be another network. A pod is detached by the configuration that it was
//! attached by, even if the file has changed. Errors have upstream's text. Leaves to others: the files, the
//! processes, the pod's namespace.

use crate::pods::{HostPort, PodSandbox, PodUid};
use kedge_api::excerpt_of;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// Longest configuration: real ones have 1 KiB, and each pod's record keeps its own.
pub const CONFIG_BYTES: usize = 32 * 1024;
/// Most plugins of a network: real ones have 2 to 4, and each costs every pod a process at its begin and its
/// end.
const PLUGINS: usize = 16;
/// Longest answer of a plugin: real ones have 1 KiB; it is stored, and passed on to the later plugins.
pub const ANSWER_BYTES: usize = 64 * 1024;
/// Most addresses of a pod: one of each family is usual, and each is in its status.
const ADDRESSES: usize = 8;
/// Longest text of a plugin in an Event.
const TEXT_CHARS: usize = 512;
/// The name of the interface within the pod.
pub const INTERFACE: &str = "eth0";
/// Supported versions, the oldest first. Before 0.3 there were no lists, and answers had another form.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// From this version on a plugin gets the result of ADD at DEL.
const RESULT_AT_DELETE: &str = "0.4.0";
const PORTS: &str = "portMappings";

/// A network, as a file describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Network {
    pub name: String,
    /// `cniVersion`.
    pub version: String,
    /// Each with its `type`.
    plugins: Vec<Map<String, Value>>,
}

/// The name that is used, of the names in the directory of configurations.
pub fn first_config(names: impl Iterator<Item = String>) -> Option<String> {
    let is_one = |name: &String| {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        matches!(ending, Some("conf" | "conflist" | "json"))
    };
    names.filter(is_one).min()
}

impl Network {
    /// Reads a file of this name.
    ///
    /// # Errors
    /// The fault in it.
    pub fn read(name: &str, text: &[u8]) -> Result<Self, String> {
        let file: Map<String, Value> =
            kedge_api::read::from_slice(text).map_err(|error| shown(&error.to_string()))?;
        let plugins = match name.ends_with(".conflist") {
            true => plugins_of(&file)?,
            false => vec![file.clone()],
        };
        let network = Self { name: name_of(&file)?, version: version_of(&file)?, plugins };
        if network.plugins.is_empty() || network.plugins.len() > PLUGINS {
            return Err(format!("it has {} plugins, expected 1 to {PLUGINS}", network.plugins.len()));
        }
        if let Some(program) = network.programs().find(|program| !is_program(program)) {
            let shown = excerpt_of(program, 64);
            return Err(format!("a plugin's type is {shown:?}, expected the name of a program"));
        }
        Ok(network)
    }

    /// The programs of its plugins, in the order of ADD.
    pub fn programs(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.plugins.iter().map(|plugin| plugin.get("type").and_then(Value::as_str).unwrap_or_default())
    }

    /// True if a plugin makes a chain of rules for each pod by which the pod reaches other networks.
    #[must_use]
    pub fn masquerades(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.get("ipMasq").and_then(Value::as_bool) == Some(true))
    }

    fn takes_ports(&self) -> bool {
        self.plugins.iter().any(|plugin| has_capability(plugin, PORTS))
    }
}

fn name_of(file: &Map<String, Value>) -> Result<String, String> {
    let name = file.get("name").and_then(Value::as_str).unwrap_or_default();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= 128 && name.bytes().all(fits) {
        return Ok(name.to_owned());
    }
    Err(format!("name is {:?}, expected 1 to 128 letters, digits, '_', '.' and '-'", excerpt_of(name, 64)))
}

/// The newest version that both sides know, where the file offers several.
fn version_of(file: &Map<String, Value>) -> Result<String, String> {
    let one = file.get("cniVersion").and_then(Value::as_str);
    let several = file.get("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let offered: Vec<&str> = several.filter_map(Value::as_str).chain(one).collect();
    let known = VERSIONS.iter().rev().find(|known| offered.contains(known));
    known.map(|known| (*known).to_owned()).ok_or_else(|| {
        format!(
            "cniVersion is {:?}, expected one of {}",
            excerpt_of(&offered.join(" "), 64),
            VERSIONS.join(", ")
        )
    })
}

fn plugins_of(file: &Map<String, Value>) -> Result<Vec<Map<String, Value>>, String> {
    let list = file.get("plugins").and_then(Value::as_array).ok_or("it has no list \"plugins\"")?;
    let object = |plugin: &Value| plugin.as_object().cloned().ok_or("a plugin is no object");
    Ok(list.iter().map(object).collect::<Result<_, _>>()?)
}

/// Whether it can be the last part of a path.
fn is_program(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}

fn has_capability(plugin: &Map<String, Value>, name: &str) -> bool {
    plugin.get("capabilities").and_then(|all| all.get(name)).and_then(Value::as_bool) == Some(true)
}

/// The command to plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Add,
    Delete,
}

impl Verb {
    /// `CNI_COMMAND`.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Delete => "DEL",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Delete => "delete",
        }
    }
}

/// One pod's part of a network: everything that its end needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    pub network: Network,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_ARGS`.
    pub arguments: String,
    /// The `runtimeConfig` of plugins that declare capabilities.
    runtime_config: Map<String, Value>,
    /// The last plugin's answer; `None` if it has not run yet, and the work of the earlier plugins must be
    /// undone.
    pub result: Option<Value>,
}

impl Attachment {
    /// An attachment that has not begun.
    ///
    /// # Errors
    /// The pod requests a function that no plugin of this network has.
    pub fn of(network: Network, sandbox: &PodSandbox) -> Result<Self, String> {
        let mut runtime_config = Map::new();
        if let Some(first) = sandbox.host_ports.first() {
            if !network.takes_ports() {
                let (name, port) = (&network.name, first.host_port);
                return Err(format!(
                    "hostPort {port}: no plugin of network {name:?} has the capability {PORTS}"
                ));
            }
            runtime_config.insert(PORTS.into(), sandbox.host_ports.iter().map(port_mapping).collect());
        }
        let PodSandbox { uid, namespace, name, .. } = sandbox;
        // a semicolon ends a value; names of Kubernetes have none
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={uid};K8S_POD_UID={uid}"
        );
        Ok(Self { network, container_id: uid.to_string(), arguments, runtime_config, result: None })
    }

    /// The attachment of a pod whose records are lost: enough for DEL, which finds everything by the ID.
    #[must_use]
    pub fn lost(network: Network, pod: &PodUid) -> Self {
        let arguments = format!("IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID={pod};K8S_POD_UID={pod}");
        // portmap does nothing without a port, and then removes the rules of all ports
        let any =
            HostPort { host_ip: String::new(), host_port: 1, container_port: 1, protocol: "TCP".into() };
        let runtime_config = [(PORTS.into(), json!([port_mapping(&any)]))].into_iter().collect();
        Self { network, container_id: pod.to_string(), arguments, runtime_config, result: None }
    }

    /// The same with the last plugin's answer.
    #[must_use]
    pub fn attached(self, result: Value) -> Self {
        Self { result: Some(result), ..self }
    }

    /// The input of the plugin of this number. `previous` is the answer of the plugin before it.
    #[must_use]
    pub fn input(&self, verb: Verb, plugin: usize, previous: Option<&Value>) -> Vec<u8> {
        let mut config = self.network.plugins.get(plugin).cloned().unwrap_or_default();
        let wanted = self.runtime_config.iter().filter(|(name, _)| has_capability(&config, name));
        let wanted: Map<String, Value> = wanted.map(|(name, value)| (name.clone(), value.clone())).collect();
        config.insert("name".into(), json!(self.network.name));
        config.insert("cniVersion".into(), json!(self.network.version));
        if !wanted.is_empty() {
            config.insert("runtimeConfig".into(), Value::Object(wanted));
        }
        let at = |version: &str| VERSIONS.iter().position(|known| *known == version);
        let is_told = verb == Verb::Add || at(&self.network.version) >= at(RESULT_AT_DELETE);
        if let Some(previous) = previous.filter(|_| is_told) {
            config.insert("prevResult".into(), previous.clone());
        }
        Value::Object(config).to_string().into_bytes()
    }

    /// The pod's addresses, IPv4 before IPv6; empty while it is not attached.
    ///
    /// # Errors
    /// The answer has no address, or an unreadable one.
    pub fn addresses(&self) -> Result<Vec<String>, String> {
        self.result.as_ref().map_or_else(|| Ok(Vec::new()), addresses_in)
    }
}

fn port_mapping(port: &HostPort) -> Value {
    let HostPort { host_ip, host_port, container_port, protocol } = port;
    let protocol = protocol.to_ascii_lowercase();
    json!({"hostPort": host_port, "containerPort": container_port, "protocol": protocol, "hostIP": host_ip})
}

/// The addresses of the interface within the pod; an address without an interface is the pod's.
fn addresses_in(result: &Value) -> Result<Vec<String>, String> {
    let interface = |ip: &Value| {
        let number = usize::try_from(ip["interface"].as_u64()?).ok()?;
        result["interfaces"].get(number)
    };
    let is_the_pods = |ip: &&Value| {
        interface(ip).is_none_or(|it| {
            it["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty()) && it["name"] == INTERFACE
        })
    };
    let ips = result["ips"].as_array().into_iter().flatten().filter(is_the_pods).take(ADDRESSES);
    let mut found = ips.map(address).collect::<Result<Vec<IpAddr>, String>>()?;
    if found.is_empty() {
        return Err(format!("its plugins gave no address to {INTERFACE}"));
    }
    kedge_api::sort::sort_by_key(&mut found, IpAddr::is_ipv6);
    found.dedup();
    Ok(found.iter().map(IpAddr::to_string).collect())
}

fn address(ip: &Value) -> Result<IpAddr, String> {
    let text = ip["address"].as_str().unwrap_or_default();
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.parse().map_err(|_| {
        format!("a plugin returned the address {:?}, expected an IP address", excerpt_of(text, 64))
    })
}

/// The input of iptables-restore that removes a chain and the rules that lead to it. `rules`: the output of
/// `iptables -t nat -S`. `None`: the chain does not exist.
#[must_use]
pub fn without_chain(rules: &str, chain: &str) -> Option<String> {
    let mut undone = String::new();
    let mut is_there = false;
    for line in rules.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("-N"), Some(name)) if name == chain => is_there = true,
            (Some("-A"), Some(from)) if from != chain => {
                let mut rest = words.skip_while(|word| *word != "-j").skip(1);
                if rest.next() == Some(chain) {
                    undone += &line.replacen("-A", "-D", 1);
                    undone.push('\n');
                }
            }
            _ => {}
        }
    }
    is_there.then(|| format!("*nat\n{undone}-F {chain}\n-X {chain}\nCOMMIT\n"))
}

/// How a plugin ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How it failed, if it did.
    pub failure: Option<String>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The result of the plugin's end: for ADD its answer, for DEL null.
///
/// # Errors
/// The plugin failed, or its answer is invalid.
pub fn answer(verb: Verb, program: &str, ended: &Ended) -> Result<Value, String> {
    let stdout: Result<Value, _> = serde_json::from_slice(&ended.stdout);
    let failed = |why: String| Err(failure(verb, program, &why));
    let Some(how) = &ended.failure else {
        return match stdout {
            _ if verb == Verb::Delete => Ok(Value::Null),
            Ok(Value::Object(result)) => Ok(Value::Object(result)),
            Ok(_) => failed(format!("its answer is no object: {}", quoted(&ended.stdout))),
            Err(error) => failed(format!("its answer {} cannot be read: {error}", quoted(&ended.stdout))),
        };
    };
    let part = |name: &str| stdout.as_ref().ok().and_then(|error| error[name].as_str()).map(shown);
    match (part("msg"), part("details").filter(|details| !details.is_empty())) {
        (Some(message), Some(details)) => failed(format!("{message}; {details}")),
        (Some(message), None) => failed(message),
        _ if ended.stdout.is_empty() => failed(format!("{how}: {}", quoted(&ended.stderr))),
        _ => failed(format!("{how}: {}", quoted(&ended.stdout))),
    }
}

/// A failure with upstream's text.
#[must_use]
pub fn failure(verb: Verb, program: &str, why: &str) -> String {
    format!("plugin type={program:?} failed ({}): {why}", verb.word())
}

/// A text in a form for a line of an Event.
fn shown(text: &str) -> String {
    excerpt_of(text.replace(char::is_control, " ").trim(), TEXT_CHARS)
}

fn quoted(bytes: &[u8]) -> String {
    // a character has 4 bytes at most
    let begin = &bytes[..bytes.len().min(4 * TEXT_CHARS)];
    format!("{:?}", excerpt_of(String::from_utf8_lossy(begin).trim(), TEXT_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{Dns, QosClass, Resources};

    fn list(version: &str) -> Value {
        json!({"cniVersion": version, "name": "edge", "plugins": [
            {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local"}},
            {"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": true}}]})
    }

    fn network(version: &str) -> Network {
        Network::read("a.conflist", list(version).to_string().as_bytes()).unwrap()
    }

    fn sandbox(host_ports: Vec<HostPort>) -> PodSandbox {
        PodSandbox {
            uid: PodUid::new("uid-1").unwrap(),
            namespace: "prod".into(),
            name: "web-0".into(),
            node_uid: String::new(),
            hostname: "web-0".into(),
            host_network: false,
            host_pid: false,
            host_ipc: false,
            share_process_namespace: false,
            qos: QosClass::BestEffort,
            resources: Resources::default(),
            volumes: vec![],
            host_ports,
            dns: Dns::default(),
            host_aliases: vec![],
        }
    }

    fn port() -> HostPort {
        HostPort { host_ip: String::new(), host_port: 8080, container_port: 80, protocol: "TCP".into() }
    }

    #[test]
    fn first_file_by_name_counts() {
        let first = |names: &[&str]| first_config(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(first(&["20-b.conf", "10-a.conflist", "30.json"]).as_deref(), Some("10-a.conflist"));
        assert_eq!(
            first(&["10-a.conflist.bak", "README", "conf", "20-b.json"]).as_deref(),
            Some("20-b.json")
        );
        assert_eq!(first(&["00-a.conf~"]), None);
    }

    #[track_caller]
    fn check_wrong(name: &str, change: impl Fn(&mut Value), part: &str) {
        let mut file = list("0.4.0");
        change(&mut file);
        let error = Network::read(name, file.to_string().as_bytes()).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn wrong_configuration_is_refused_by_name() {
        check_wrong("a.conflist", |file| file["name"] = json!("../a"), "name is \"../a\"");
        check_wrong("a.conflist", |file| file["cniVersion"] = json!("0.2.0"), "cniVersion is \"0.2.0\"");
        check_wrong("a.conflist", |file| file["plugins"] = json!([]), "it has 0 plugins");
        check_wrong("a.conflist", |file| file["plugins"][1] = json!(3), "a plugin is no object");
        check_wrong(
            "a.conflist",
            |file| file["plugins"][1]["type"] = json!("../../bin/sh"),
            "expected the name of a program",
        );
        check_wrong("a.conflist", |file| file["plugins"][0]["type"] = Value::Null, "a plugin's type is \"\"");
        // a list in the file of a single plugin
        check_wrong("a.conf", |_| {}, "a plugin's type is \"\"");
        assert!(Network::read("a.conf", b"[1").is_err());
    }

    #[test]
    fn newest_common_version_is_spoken() {
        let version = |versions: Value| {
            let mut file = list("0.3.1");
            file["cniVersions"] = versions;
            Network::read("a.conflist", file.to_string().as_bytes()).unwrap().version
        };
        assert_eq!(version(json!(["1.0.0", "0.4.0", "9.0.0"])), "1.0.0");
        assert_eq!(version(Value::Null), "0.3.1");
    }

    #[test]
    fn plugin_reads_its_part_and_what_came_before() {
        let attachment = Attachment::of(network("0.4.0"), &sandbox(vec![port()])).unwrap();
        let input = |verb, plugin, previous: Option<&Value>| -> Value {
            serde_json::from_slice(&attachment.input(verb, plugin, previous)).unwrap()
        };
        let first = json!({"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local"}, "name": "edge", "cniVersion": "0.4.0"});
        assert_eq!(input(Verb::Add, 0, None), first);
        let previous = json!({"ips": []});
        let second = input(Verb::Add, 1, Some(&previous));
        assert_eq!(second["prevResult"], previous);
        let mapping = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]});
        assert_eq!(second["runtimeConfig"], mapping, "and no bandwidth, which nobody asked for");
        assert_eq!(input(Verb::Delete, 1, Some(&previous))["prevResult"], previous);
        let older = Attachment { network: network("0.3.1"), ..attachment };
        let told: Value = serde_json::from_slice(&older.input(Verb::Delete, 1, Some(&previous))).unwrap();
        assert_eq!(told["prevResult"], Value::Null, "an older plugin is not told");
    }

    #[test]
    fn host_port_without_a_plugin_for_it_is_refused() {
        let mut file = list("1.0.0");
        file["plugins"].as_array_mut().unwrap().truncate(1);
        let network = Network::read("a.conflist", file.to_string().as_bytes()).unwrap();
        let error = Attachment::of(network.clone(), &sandbox(vec![port()])).unwrap_err();
        assert!(error.starts_with("hostPort 8080: no plugin of network \"edge\""), "{error}");
        assert!(Attachment::of(network, &sandbox(vec![])).is_ok());
    }

    #[track_caller]
    fn check_addresses(result: Value, expect: Result<&[&str], &str>) {
        let result = Some(result);
        let found =
            Attachment { result, ..Attachment::of(network("0.4.0"), &sandbox(vec![])).unwrap() }.addresses();
        match (&found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_are_those_of_the_pods_interface() {
        let interfaces = json!([{"name": "cni0"}, {"name": "eth0", "sandbox": "/run/net"}, {"name": "net1", "sandbox": "/run/net"}]);
        let ips = json!([
            {"interface": 1, "address": "fd00::2/64"}, {"interface": 0, "address": "10.1.0.1/24"},
            {"interface": 1, "address": "10.1.0.2/24"}, {"interface": 2, "address": "10.9.0.2/24"}]);
        check_addresses(json!({"interfaces": interfaces, "ips": ips}), Ok(&["10.1.0.2", "fd00::2"]));
        check_addresses(json!({"ips": [{"address": "10.1.0.2/24"}]}), Ok(&["10.1.0.2"]));
        check_addresses(
            json!({"ips": [{"address": "10.1.0.2.3/24"}]}),
            Err("returned the address \"10.1.0.2.3/24\""),
        );
        check_addresses(json!({"ips": []}), Err("no address"));
        check_addresses(json!({}), Err("no address"));
    }

    #[test]
    fn chain_goes_with_the_rules_that_lead_to_it() {
        let list = "-P POSTROUTING ACCEPT\n-N CNI-1\n-N CNI-2\n\
            -A POSTROUTING -s 10.85.0.2/32 -m comment --comment \"name: \\\"-j CNI-2\\\"\" -j CNI-1\n\
            -A POSTROUTING -s 10.85.0.3/32 -j CNI-2\n-A CNI-1 -d 10.85.0.0/16 -j ACCEPT\n";
        let expect = "*nat\n-D POSTROUTING -s 10.85.0.3/32 -j CNI-2\n-F CNI-2\n-X CNI-2\nCOMMIT\n";
        assert_eq!(without_chain(list, "CNI-2").as_deref(), Some(expect));
        assert_eq!(without_chain(list, "CNI-3"), None);
        assert_eq!(
            without_chain("-N CNI-3\n", "CNI-3").as_deref(),
            Some("*nat\n-F CNI-3\n-X CNI-3\nCOMMIT\n")
        );
    }

    #[track_caller]
    fn check_answer(
        verb: Verb,
        failure: Option<&str>,
        stdout: &str,
        stderr: &str,
        expect: Result<Value, &str>,
    ) {
        let ended =
            Ended { failure: failure.map(str::to_owned), stdout: stdout.into(), stderr: stderr.into() };
        assert_eq!(answer(verb, "bridge", &ended), expect.map_err(str::to_owned));
    }

    #[test]
    fn answers_of_plugins_have_upstream_words() {
        check_answer(Verb::Add, None, r#"{"ips":[]}"#, "", Ok(json!({"ips": []})));
        check_answer(Verb::Delete, None, "whatever", "", Ok(Value::Null));
        let failed = Some("exit status: 1");
        let words = "plugin type=\"bridge\" failed (add): no room; of 254";
        check_answer(
            Verb::Add,
            failed,
            r#"{"code":11,"msg":"no room","details":"of 254\n"}"#,
            "",
            Err(words),
        );
        let words = "plugin type=\"bridge\" failed (delete): exit status: 1: \"panic\"";
        check_answer(Verb::Delete, failed, "", "panic\n", Err(words));
        let words = "plugin type=\"bridge\" failed (add): exit status: 1: \"garbage\"";
        check_answer(Verb::Add, failed, "garbage", "", Err(words));
        let words = "plugin type=\"bridge\" failed (add): its answer is no object: \"3\"";
        check_answer(Verb::Add, None, "3", "", Err(words));
        let ended = Ended { failure: None, stdout: vec![b'{'; ANSWER_BYTES], stderr: vec![] };
        assert!(answer(Verb::Add, "bridge", &ended).unwrap_err().len() < 4 * TEXT_CHARS, "an Event holds it");
    }
}
