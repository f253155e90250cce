//! Hundreds of probes at once, of which dozens hang: their cost to the agent, and whether the others' results
//! arrive.

use crate::pods::{NODE, Setup};
use crate::setup::isolated_network;
use kedge_rig::scratch::{poll, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Containers with two probes each.
const PODS: usize = 15;
const CONTAINERS: usize = 10;
/// Pods whose probes hang, all of them: more than there are places for connections.
const HUNG_PODS: usize = 5;
/// Starting 150 containers on a busy machine takes long.
const LIMIT: Duration = Duration::from_secs(240);
/// Threads that the agent may begin for another reason, such as a pull or a look at the disk.
const OTHER_THREADS: usize = 4;

/// Answers each GET with 200, but those of one path, and counts them.
#[derive(Clone, Default)]
struct Answers {
    counts: Arc<Mutex<BTreeMap<String, u32>>>,
    refused: Arc<Mutex<String>>,
}

impl Answers {
    fn serve(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, answers) = (listener.local_addr().unwrap().port(), self.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                answers.answer(socket.unwrap());
            }
        });
        port
    }

    fn answer(&self, mut socket: TcpStream) {
        let mut request = [0; 2048];
        let length = socket.read(&mut request).unwrap_or(0);
        let text = String::from_utf8_lossy(&request[..length]);
        let path = text.split(' ').nth(1).unwrap_or("connected").to_owned();
        let is_refused = path == *self.refused.lock().unwrap();
        let status = if is_refused { "500 Broken" } else { "200 OK" };
        let _ = write!(socket, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        *self.counts.lock().unwrap().entry(path).or_default() += 1;
    }

    fn counts(&self) -> BTreeMap<String, u32> {
        self.counts.lock().unwrap().clone()
    }
}

/// A port that accepts no connection, and one that accepts connections and sends nothing. They do so until
/// this is dropped.
struct Silent {
    full: SocketAddr,
    mute: SocketAddr,
    _sockets: (Vec<TcpListener>, Vec<TcpStream>),
}

impl Silent {
    fn new() -> Self {
        let [full, mute] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (at, mute_at) = (full.local_addr().unwrap(), mute.local_addr().unwrap());
        let mut streams = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_secs(2)) {
            streams.push(stream);
            assert!(streams.len() < 10_000, "its backlog has an end");
        }
        Self { full: at, mute: mute_at, _sockets: (vec![full, mute], streams) }
    }
}

fn name(pod: usize) -> String {
    if pod < HUNG_PODS { format!("hung-{pod}") } else { format!("good-{pod}") }
}

fn pod(index: usize, probes: impl Fn(usize) -> [Value; 2]) -> Value {
    let container = |number: usize| {
        let [mut live, mut ready] = probes(number);
        for probe in [&mut live, &mut ready] {
            probe["periodSeconds"] = json!(2);
            probe["timeoutSeconds"] = json!(100_000);
        }
        json!({"name": format!("c{number}"), "image": "web:1", "command": ["sleep", "86321"],
            "livenessProbe": live, "readinessProbe": ready})
    };
    let containers: Vec<Value> = (0..CONTAINERS).map(container).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(index)}, "spec": {"nodeName": NODE,
        "hostNetwork": true, "terminationGracePeriodSeconds": 0, "containers": containers}})
}

/// Threads of the agent by name.
fn threads(setup: &Setup) -> Vec<String> {
    let pid = setup.cluster.agent(NODE).babysitter().state().pid.unwrap();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name = |path: std::path::PathBuf| fs::read_to_string(path.join("comm")).unwrap_or_default();
    let mut names: Vec<String> = tasks.map(|task| name(task.path()).trim().to_owned()).collect();
    names.sort();
    names
}

/// Of each pod: how many of its containers are ready, and how often they were started again.
fn shown(setup: &Setup) -> BTreeMap<String, (usize, u64)> {
    let list = setup.cluster.kubectl().json(&["get", "pods"]).unwrap_or_default();
    let of = |pod: &Value| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ready = all.iter().filter(|it| it["ready"] == true && it["started"] == true).count();
        let restarts = all.iter().filter_map(|it| it["restartCount"].as_u64()).sum();
        (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), (ready, restarts))
    };
    list["items"].as_array().into_iter().flatten().map(of).collect()
}

#[test]
fn hundreds_of_probes_take_no_threads_and_no_turns() {
    isolated_network("many_probes::hundreds_of_probes_take_no_threads_and_no_turns", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        let (answers, connected, silent) = (Answers::default(), Answers::default(), Silent::new());
        let (port, connect_port) = (answers.serve(), connected.serve());
        let apply = |pod: &Value| kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        let http =
            |port: u16, path: &str| json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": path}});
        let tcp = |port: u16| json!({"tcpSocket": {"host": "127.0.0.1", "port": port}});
        let begun = threads(&setup);
        for index in 0..HUNG_PODS {
            apply(&pod(index, |number| match number % 2 {
                0 => [http(silent.mute.port(), "/"), tcp(silent.full.port())],
                _ => [json!({"grpc": {"port": silent.mute.port()}}), http(silent.full.port(), "/")],
            }));
        }
        for index in HUNG_PODS..PODS {
            let path = |kind: &str, number: usize| format!("/{}/c{number}/{kind}", name(index));
            apply(&pod(index, |number| match number % 2 {
                0 => [http(port, &path("live", number)), http(port, &path("ready", number))],
                _ => [tcp(connect_port), http(port, &path("ready", number))],
            }));
        }
        let all_ready = || {
            let shown = shown(&setup);
            let is_so = |index: usize| shown.get(&name(index)) == Some(&(CONTAINERS, 0));
            (HUNG_PODS..PODS).all(is_so)
        };
        assert!(
            poll(LIMIT, || all_ready().then_some(())).is_some(),
            "not all are ready: {:?}",
            shown(&setup)
        );
        let before = answers.counts();
        let paths = (PODS - HUNG_PODS) * (CONTAINERS / 2 * 3);
        assert!(before.len() >= (PODS - HUNG_PODS) * CONTAINERS, "{} of {paths}", before.len());

        // every probe is still run, each at its own interval
        let mut most = Vec::new();
        wait_until("three more turns of each", LIMIT, || {
            let now = threads(&setup);
            most = if now.len() > most.len() { now } else { std::mem::take(&mut most) };
            let counts = answers.counts();
            let times = |path: &String| counts[path] - before.get(path).unwrap_or(&0);
            counts.len() == paths && counts.keys().all(|path| times(path) >= 3)
        });
        assert!(connected.counts()["connected"] > 0);
        println!("measured: threads of the agent: {} before, {} with 300 probes", begun.len(), most.len());
        assert!(most.len() <= begun.len() + OTHER_THREADS, "{begun:?} before, then {most:?}");

        // and their results are acted on although others hang
        *answers.refused.lock().unwrap() = format!("/{}/c0/ready", name(PODS - 1));
        setup.shows("a container that is not ready", || {
            shown(&setup).get(&name(PODS - 1)) == Some(&(CONTAINERS - 1, 0))
        });
        for index in 0..HUNG_PODS {
            assert_eq!(shown(&setup).get(&name(index)), Some(&(0, 0)), "{}", name(index));
        }
        drop(silent);
    });
}
