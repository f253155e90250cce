//! Networks of pods: the operator's configuration, and arbitrary answers of plugins.

use crate::Target;
use crate::input::{joined, sections};
use kedge_core::pods::{Dns, HostPort, PodSandbox, PodUid, QosClass, Resources};
use kedge_core::workloads::cni::{Attachment, Ended, Network, Verb, answer};
use serde_json::Value;

pub(crate) const TARGET: Target =
    Target { name: "networks", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 2000 };

/// Longest error: it becomes an Event.
const ERROR_BYTES: usize = 4096;

const WORDS: &[&str] = &[
    "a.conf",
    "a.conflist",
    "\"cniVersion\":\"1.0.0\"",
    "\"cniVersions\":[",
    "\"0.3.1\"",
    "\"name\":\"edge\"",
    "\"plugins\":[{",
    "\"type\":\"bridge\"",
    "\"capabilities\":{\"portMappings\":true}",
    "\"ips\":[{\"address\":\"10.0.0.2/24\",\"interface\":0}]",
    "\"interfaces\":[{\"name\":\"eth0\",\"sandbox\":\"/x\"}]",
    "\"code\":11,\"msg\":\"",
    "\"details\":\"",
    "null",
    "18446744073709551615",
    "\\u0000",
];

fn seeds() -> Vec<Vec<u8>> {
    let list = r#"{"cniVersion":"1.0.0","name":"edge","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap","capabilities":{"portMappings":true}}]}"#;
    let result = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":1,"address":"10.0.0.2/24"},{"address":"fd00::2/64"}]}"#;
    [
        joined(&["a.conflist", list, result, "1", ""]),
        joined(&[
            "a.conf",
            r#"{"cniVersions":["0.4.0","1.1.0"],"name":"one","type":"ptp"}"#,
            result,
            "",
            "a warning",
        ]),
        joined(&[
            "a.conflist",
            list,
            r#"{"code":11,"msg":"no room","details":"of 254"}"#,
            "exit status: 1",
            "",
        ]),
        joined(&["a.conf", r#"{"name":"one","plugins":[{}]}"#, "garbage", "signal: 9", "panic: \u{1}"]),
    ]
    .to_vec()
}

fn run(data: &[u8]) {
    let [name, config, stdout, failure, stderr] = sections::<5>(data);
    let text = String::from_utf8_lossy(failure).into_owned();
    let failure =
        (!text.is_empty()).then(|| text.chars().filter(|letter| !letter.is_control()).take(64).collect());
    let ended = Ended { failure, stdout: stdout.to_vec(), stderr: stderr.to_vec() };
    for verb in [Verb::Add, Verb::Delete] {
        if let Err(why) = answer(verb, "bridge", &ended) {
            check_error(&why);
            assert!(!why.contains(['\n', '\0']), "one line: {why:?}");
        }
    }
    match Network::read(&String::from_utf8_lossy(name), config) {
        Ok(network) => attach(network, answer(Verb::Add, "bridge", &ended)),
        Err(why) => check_error(&why),
    }
}

fn check_error(why: &str) {
    assert!(!why.is_empty() && why.len() <= ERROR_BYTES, "{} bytes: {why}", why.len());
}

/// A network that was read can be attached, and its record is read back.
fn attach(network: Network, result: Result<Value, String>) {
    assert!(network.programs().all(|program| !program.is_empty() && !program.contains('/')));
    let attachment = match Attachment::of(network.clone(), &sandbox(true)) {
        Ok(attachment) => attachment,
        Err(why) => {
            check_error(&why);
            Attachment::of(network, &sandbox(false)).expect("a pod that asks for nothing")
        }
    };
    let attachment = match result {
        Ok(result) => attachment.attached(result),
        Err(_) => attachment,
    };
    match attachment.addresses() {
        Ok(addresses) => assert!(addresses.iter().all(|it| it.parse::<std::net::IpAddr>().is_ok())),
        Err(why) => check_error(&why),
    }
    for (number, program) in attachment.network.programs().enumerate() {
        for verb in [Verb::Add, Verb::Delete] {
            let input = attachment.input(verb, number, attachment.result.as_ref());
            let asked: Value = serde_json::from_slice(&input).expect("an object");
            assert_eq!(asked["type"], program);
            assert_eq!(asked["name"], attachment.network.name);
        }
    }
    let noted = serde_json::to_string(&attachment).expect("text keys");
    assert_eq!(serde_json::from_str::<Attachment>(&noted).ok(), Some(attachment));
}

fn sandbox(has_port: bool) -> PodSandbox {
    let port =
        HostPort { host_ip: String::new(), host_port: 8080, container_port: 80, protocol: "TCP".into() };
    PodSandbox {
        uid: PodUid::new("uid-1").expect("a UID"),
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
        volumes: Vec::new(),
        host_ports: if has_port { vec![port] } else { Vec::new() },
        dns: Dns::default(),
        host_aliases: Vec::new(),
    }
}
