//! `kubectl port-forward` of three versions to programs in pods, with a real hub and a real agent: the newest
//! speaks SPDY inside a WebSocket, the oldest SPDY alone.

use crate::network::SHIPPED;
use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network, processes};
use kedge_rig::programs::kubectl_of;
use kedge_rig::scratch::wait_until;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// How many connections there are at once.
const CONNECTIONS: u64 = 50;
/// Bytes that each side sends and gets back: more than all buffers on the way hold.
const BYTES: usize = 256 * 1024;

/// `kubectl port-forward`, until it is dropped.
struct Forwarding {
    child: Child,
    port: u16,
    /// Everything it printed to standard error.
    complaints: Arc<Mutex<String>>,
}

impl Forwarding {
    fn new(setup: &Setup, version: &str, pod: &str, port: u16) -> Self {
        let mut command = Command::new(kubectl_of(version).unwrap());
        command.arg("--kubeconfig").arg(setup.cluster.kubectl().kubeconfig());
        command.args(["port-forward", &format!("pod/{pod}"), &format!(":{port}"), "--address=127.0.0.1"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
        let Some(port) = port.and_then(|port| port.parse().ok()) else {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("kubectl {version}: {line}{why}\n{}", setup.cluster.agent(NODE).log_text());
        };
        // kubectl keeps printing, and would block on a full pipe
        thread::spawn(move || lines.lines().count());
        let complaints = Arc::new(Mutex::new(String::new()));
        let (heard, stderr) = (Arc::clone(&complaints), child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                heard.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, port, complaints }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn complaints(&self) -> String {
        self.complaints.lock().unwrap().clone()
    }

    /// Waits until it complains in these words.
    #[track_caller]
    fn complains(&self, expect: &str) {
        wait_until(expect, LIMIT, || self.complaints().contains(expect));
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends while it reads, and compares.
fn echoes(forwarding: &Forwarding, stream: TcpStream, seed: u64) {
    let sent: Vec<u8> = (0..BYTES as u64).map(|at| (at * (seed + 3) / 7) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let to_send = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let (mut stream, mut heard) = (stream, Vec::new());
    stream.read_to_end(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(
        heard == sent,
        "connection {seed}: {} of {} bytes: {}",
        heard.len(),
        sent.len(),
        forwarding.complaints()
    );
}

/// Echoes each client, in the machine's network: a pod's, if it has none of its own. Returns the port. The
/// port.
fn echo_server() -> u16 {
    // busybox's server resets some of so many connections
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    port
}

fn pod(name: &str, host_network: bool, script: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": host_network, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script]}]}})
    .to_string()
}

#[test]
fn kubectl_of_all_ages_forwards_fifty_connections() {
    isolated_network("port_forward::kubectl_of_all_ages_forwards_fifty_connections", || {
        let mut setup = Setup::before_the_agent();
        fs::create_dir_all("/etc/cni/net.d").unwrap();
        let list = SHIPPED.replace("/run/kedge/addresses", "/etc/cni/addresses");
        fs::write("/etc/cni/net.d/99-kedge.conflist", list).unwrap();
        setup.await_pods();
        let kubectl = setup.cluster.kubectl();
        let echo = "exec /bin/busybox nc -ll -p 81 -e /bin/cat";
        kubectl.feed(&["apply", "-f", "-"], &pod("web", false, echo)).unwrap();
        kubectl.feed(&["apply", "-f", "-"], &pod("host", true, "exec sleep 1000")).unwrap();
        setup.shows("the pods Running", || {
            let phases = kubectl.run(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"]);
            phases.is_ok_and(|phases| phases == "Running Running")
        });
        // the program listens a moment after the pod runs
        wait_until("the server", LIMIT, || !processes("busybox").is_empty());

        for version in ["1.36", "1.32", "1.20"] {
            let forwarding = Forwarding::new(&setup, version, "host", echo_server());
            thread::scope(|scope| {
                for seed in 0..CONNECTIONS {
                    let (forwarding, stream) = (&forwarding, forwarding.connect());
                    scope.spawn(move || echoes(forwarding, stream, seed));
                }
            });
            drop(forwarding);

            // a network of its own, in which nobody else can listen
            let forwarding = Forwarding::new(&setup, version, "web", 81);
            echoes(&forwarding, forwarding.connect(), 99);
            drop(forwarding);
            let refused = Forwarding::new(&setup, version, "web", 82);
            assert_eq!(refused.connect().read(&mut [0; 1]).unwrap_or_default(), 0);
            refused.complains("82: error forwarding port 82 to pod web_default, uid ");
        }

        // exec of a kubectl that speaks no WebSocket
        let mut old = Command::new(kubectl_of("1.20").unwrap());
        old.arg("--kubeconfig").arg(kubectl.kubeconfig());
        old.args(["exec", "-i", "host", "--", "/bin/sh", "-c", "cat; echo why >&2; exit 7"]);
        let mut old =
            old.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stdin, sent) = (old.stdin.take().unwrap(), vec![b'x'; BYTES]);
        let writing = thread::spawn(move || stdin.write_all(&sent).unwrap());
        let output = old.wait_with_output().unwrap();
        writing.join().unwrap();
        assert!(output.stdout == vec![b'x'; BYTES], "{} bytes", output.stdout.len());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors, "why\ncommand terminated with exit code 7\n");
        wait_until("the sessions to end with kubectl", LIMIT, || processes("session").is_empty());

        let lost = Forwarding::new(&setup, "1.36", "web", 81);
        let mut open = lost.connect();
        open.write_all(b"x").unwrap();
        open.read_exact(&mut [0]).unwrap();
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        lost.complains("lost connection to pod");
        assert_eq!(open.read(&mut [0]).unwrap(), 0);
        wait_until("the session to end with the pod", LIMIT, || processes("session").is_empty());
    });
}
